"""Whether a device of the machine that a bundle is for runs it: each kernel that its functions use there has a variant for it. The runtime
chooses variants by the same rules (runtime/core/arch.c); the C writer does the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, Optional, Tuple

from .common import ARCH_KINDS

if TYPE_CHECKING:
    from .functions import Function
    from .kernels import Kernel, Variant

_PORTABLE, _FAMILY = ARCH_KINDS["portable"], ARCH_KINDS["family"]


def _x86_level(arch: str) -> int:
    found = re.fullmatch(r"x86-64(?:-v([1-9]))?", arch)
    return int(found[1] or 1) if found else 0


def _sm(arch: str) -> Tuple[int, str]:
    """Number and suffix of "sm_90a"; (0, "") for other names."""
    found = re.fullmatch(r"(?:sm|compute)_([0-9]{2,4})([^0-9]?)", arch)
    return (int(found[1]), found[2]) if found else (0, "")


def arch_fits(kind: int, arch: str, device: str) -> bool:
    """Whether code for `arch` runs on a device of that architecture."""
    (number, suffix), (there, _suffix) = _sm(arch), _sm(device)
    if number and there:
        if suffix == "a":
            return number == there
        if suffix == "f" or kind == _FAMILY:
            return number // 10 == there // 10 and number <= there
        return number <= there if kind == _PORTABLE else number == there
    contains = arch == device or 0 < _x86_level(arch) <= _x86_level(device)
    if kind == _PORTABLE:
        return not arch or contains
    return contains if kind == _FAMILY else arch == device


class Device:
    def __init__(self, driver: str, arch: str, cpu_features: int):
        self.driver, self.arch, self.cpu_features = driver, arch, cpu_features

    def fits(self, variant: "Variant") -> bool:
        lacking = variant.cpu_features & ~self.cpu_features if self.driver == "host" else 0
        return variant.driver == self.driver and not lacking and arch_fits(variant.arch_kind, variant.arch, self.arch)

    def missing(self, functions: Iterable["Function"], variants: Mapping["Kernel", List["Variant"]]) -> Optional[Tuple["Function", "Kernel"]]:
        """The first of the functions that callers can name here and that this device does not run, and why. Callees come first."""
        without = {kernel for kernel, kept in variants.items() if not any(map(self.fits, kept))}
        found: Dict["Function", Optional["Kernel"]] = {}
        own = {function.name for function in functions if function.target == self.driver}
        for function in functions:
            commands = [command.fields for command in function.commands()]
            used = [fields["kernel"] for fields in commands if "kernel" in fields and fields["kernel"] in without]
            used += [kernel for fields in commands if "function" in fields and (kernel := found[fields["function"]]) is not None]
            found[function] = min(used, key=lambda kernel: kernel.index, default=None)
            here = function.target == (self.driver if function.name in own else "")
            if here and not function.internal and not function.prepare and found[function] is not None:
                return function, found[function]  # type: ignore[return-value]
        return None
