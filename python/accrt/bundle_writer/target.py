"""What the readers of a bundle can do. The C writer decides what that means for a bundle:
docs/contract.md, "Writing for a target"."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, Mapping, Optional, Tuple

from .._files import regular
from ..errors import named_files
from .common import BundleError

#: Not what a reader can do with a file: two that differ in these alone are equal.
_OF_THE_MACHINE = ("struct_size", "reserved", "next", "library_version", "cpu_features", "cpu_arch", "devices")
_NEEDED = ("container", "commands", "kernel_abi", "layouts")


class TargetError(BundleError):
    """The bundle cannot be written for its target; the message names what the target does not know,
    and where that is."""


def _no_caps(where: str, why: Any) -> BundleError:
    return BundleError(f"{where}: {why}")


def _parsed(text: bytes, where: str) -> Any:
    from .. import _ffi, _library

    raw = _library.struct(_ffi.accrt_caps)
    status = _library.lib.accrt_caps_parse(text, len(text), None, ctypes.byref(raw))
    if status != 0:
        raise _no_caps(where, _library.last_error(status).message)
    return raw


def _of_masks(given: Mapping[str, Any], where: str) -> Any:
    """From `accrt.caps()`."""
    from .. import _ffi, _library

    raw = _library.struct(_ffi.accrt_caps)
    for name in [f"{what}_{part}" for what in _NEEDED for part in ("major", "minor")] + ["max_rank", "dtype_mask", "encoding_mask"]:
        if name not in given:
            raise _no_caps(where, f"there is no {name!r}: `accx caps --json` prints what is read")
    for name, _kind in raw._fields_:
        if name in given and name not in _OF_THE_MACHINE:
            if not isinstance(given[name], int):
                raise _no_caps(where, f"{name!r} is {given[name]!r:.200}")
            setattr(raw, name, given[name])
    return raw


class TargetCaps:
    """What the readers of a bundle can do.

    `TargetCaps.of` makes one of the JSON of `accx caps` (a path, its text, or what it gives in
    Python), or of `accrt.caps()`.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw  # accrt_caps_t

    @staticmethod
    def of(given: Any) -> "TargetCaps":
        """See the class. Raises BundleError where it is something else, OSError where there is no
        such file."""
        if isinstance(given, TargetCaps):
            return given
        where = "target_caps"
        if isinstance(given, (str, os.PathLike)) and not str(given).lstrip().startswith("{"):
            where = f"target_caps: {os.fspath(given)}"
            with named_files(), open(given, "rb", opener=regular) as file:
                given = file.read()
        if isinstance(given, Mapping):
            if "command_mask" in given:
                return TargetCaps(_of_masks(given, where))
            try:
                given = json.dumps(given)
            except (TypeError, ValueError) as problem:
                raise _no_caps(where, problem) from problem
        if not isinstance(given, (str, bytes)):
            raise _no_caps(where, "it is no object; `accx caps --json` prints one")
        return TargetCaps(_parsed(given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given, where))

    @property
    def architectures(self) -> Optional[Mapping[str, Tuple[str, ...]]]:
        """Of the devices there, by driver; None where the readers' machine is not known."""
        found: Dict[str, Tuple[str, ...]] = {}
        for device in self.raw.devices.decode().split():
            driver, _, arch = device.partition(":")
            found[driver] = (*found.get(driver, ()), arch)
        return found or None

    def _key(self) -> Tuple[int, ...]:
        return tuple(getattr(self.raw, name) for name, _kind in self.raw._fields_ if name not in _OF_THE_MACHINE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TargetCaps) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())
