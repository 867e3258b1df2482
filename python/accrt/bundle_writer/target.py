"""Writing for given readers: what they can do, what is left out for them, and what cannot be written for them.

docs/contract.md, "Writing for a target", says what each side relies on; the C writer does the same.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .common import ARCH_KINDS, CPU_FEATURES, DTYPES, FEATURE_FUNCTION_TARGET, BundleError, Encoding, ImageKind
from .devices import Device
from .expressions import OPS

if TYPE_CHECKING:
    from .encoder import Encoder
    from .functions import Function
    from .kernels import Kernel, Variant
    from .model import BundleWriter

#: Sections that a reader may ignore and that came after container 0.1, with what came with each.
OPTIONAL_SECTIONS = ("assets", "asset_data", "locations", "adapters")
OPCODES = ("", "dispatch", "copy", "fill", "barrier", "call", "repeat", "branch", "marker")
_IMAGE_KINDS = ("", "host ELF", "cubin", "PTX", "fatbin", "pack")
_FUNCTION_FEATURES = ("target",)
_FILE_FEATURES = ("encrypted-data",)
#: As `accx caps` writes them: "avx512-vnni", "neon".
_CPU_NAMES = {mask.bit_length() - 1: name.replace("arm_", "").replace("_", "-") for name, mask in CPU_FEATURES.items()}
_BIT, _VERSION, _WORD = re.compile("bit ([0-9]+)"), re.compile(r"([0-9]+)\.([0-9]+)"), re.compile("[^: ]+")
_CPU_FEATURES = [_CPU_NAMES.get(bit, "") for bit in range(64)]


class TargetError(BundleError):
    """What the readers that a bundle is for cannot do; the message names the feature and what needs it."""


@dataclass
class Omissions:
    """What a bundle is written without."""

    functions: Set[Tuple[str, str]] = field(default_factory=set)
    kernels: Set[str] = field(default_factory=set)
    constants: Set[str] = field(default_factory=set)
    variants: Set[int] = field(default_factory=set)  # by id()
    sections: Set[str] = field(default_factory=set)


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError
    return number


def _numbers(names: Any, table: Iterable[str]) -> FrozenSet[int]:
    """Numbers of names; "bit 7" is 7, {"id": 7, ...} too. Names that are newer than this writer are of no use to it."""
    if not isinstance(names, (list, tuple)):
        raise TypeError
    index = {name: number for number, name in enumerate(table) if name}
    found = set()
    for name in names:
        if isinstance(name, Mapping):
            found.add(_whole(name["id"]))
        else:
            bit = _BIT.fullmatch(name)
            found.add(index.get(name, int(bit[1]) if bit else 64))
    return frozenset(number for number in found if number < 64)


def _version(text: Any) -> Tuple[int, int]:
    major, minor = map(int, _VERSION.fullmatch(text).groups())
    if max(major, minor) > 0xFFFF:
        raise ValueError
    return major, minor


def _rank(number: Any) -> int:
    if _whole(number) > 0xFFFFFFFF:
        raise ValueError
    return number


def _word(text: Any) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError
    return text


def _devices(drivers: Any) -> Optional[Dict[str, Tuple[str, ...]]]:
    """By driver; None where none is told, as in older versions' JSON."""
    if not isinstance(drivers, (list, tuple)):
        raise TypeError
    found = {}
    for driver in drivers:
        name, archs = _word(driver["name"]), driver.get("architectures", [])
        if not isinstance(archs, (list, tuple)):
            raise TypeError
        if "architectures" in driver:
            found[name] = tuple(map(_word, archs))
    return found or None


def _no_caps(where: str, why: str) -> BundleError:
    return BundleError(f"{where}: this is not what `accx caps --json` prints: {why}")


class _Members:
    """What is in the JSON, by name; `where` is for messages."""

    def __init__(self, given: Mapping[str, Any], where: str):
        self.given, self.where = given, where

    def read(self, key: str, convert: Callable[[Any], Any], *default: Any) -> Any:
        if key not in self.given:
            if default:
                return default[0]
            raise _no_caps(self.where, f"there is no {key!r}")
        try:
            return convert(self.given[key])
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise _no_caps(self.where, f"{key!r} is {self.given[key]!r:.200}") from problem


def _bits(mask: int) -> FrozenSet[int]:
    return frozenset(bit for bit in range(64) if mask >> bit & 1)


@dataclass(frozen=True)
class TargetCaps:
    """What the readers of a bundle can do."""

    container: Tuple[int, int]
    commands: Tuple[int, int]
    kernel_abi: Tuple[int, int]
    layouts: Tuple[int, int]
    max_rank: int
    function_features: FrozenSet[int]
    file_features: FrozenSet[int]
    variant_features: FrozenSet[int]
    sections: FrozenSet[int]
    opcodes: FrozenSet[int]
    expression_ops: FrozenSet[int]
    dtypes: FrozenSet[int]
    encodings: FrozenSet[int]
    image_kinds: FrozenSet[int]
    #: Of the devices there, by driver; None where the readers' machine is not known.
    architectures: Optional[Mapping[str, Tuple[str, ...]]] = field(default=None, compare=False)
    cpu_features: int = field(default=0, compare=False)

    @staticmethod
    def of(given: Any) -> "TargetCaps":
        """From the JSON of `accx caps` (a path, its text, or what it gives in Python), or from `accrt.caps()`."""
        if isinstance(given, TargetCaps):
            return given
        where = "target_caps"
        if isinstance(given, (str, os.PathLike)) and not str(given).lstrip().startswith("{"):
            where = f"target_caps: {os.fspath(given)}"
            with open(given, "rb") as file:
                given = file.read()
        if isinstance(given, (str, bytes)):
            try:
                given = json.loads(given)
            except ValueError as problem:
                raise _no_caps(where, str(problem)) from problem
        if not isinstance(given, Mapping):
            raise _no_caps(where, "it is no object")
        members = _Members(given, where)
        return TargetCaps._of_masks(members) if "command_mask" in given else TargetCaps._of_names(members)

    @staticmethod
    def _of_names(given: "_Members") -> "TargetCaps":
        def version(key: str) -> Tuple[int, int]:
            return given.read(key, _version)

        def numbers(key: str, table: Sequence[str], *default: Any) -> FrozenSet[int]:
            return given.read(key, lambda names: _numbers(names, table), *default)

        container = version("container")
        table, dtypes = [""] * 64, [""] * 64
        for encoding in Encoding:
            table[encoding] = encoding.name.lower()
        for name, (number, _bits_each) in DTYPES.items():
            dtypes[number] = name
        return TargetCaps(
            container, version("commands"), version("kernel_abi"), version("layouts"), given.read("max_rank", _rank),
            numbers("function_features", _FUNCTION_FEATURES), numbers("file_features", _FILE_FEATURES),
            numbers("variant_features", (), frozenset()),
            _until(container, numbers("sections", _section_names(), _sections_of(container[1]))),
            numbers("command_set", OPCODES), numbers("expression_ops", OPS, frozenset(range(len(OPS)))), numbers("dtypes", dtypes),
            numbers("encodings", table), numbers("image_kinds", _IMAGE_KINDS, frozenset(range(1, 5))),
            given.read("drivers", _devices, None),
            sum(1 << bit for bit in numbers("cpu_features", _CPU_FEATURES, frozenset())),
        )  # fmt: skip

    @staticmethod
    def _of_masks(given: "_Members") -> "TargetCaps":
        def version(key: str) -> Tuple[int, int]:
            return given.read(key + "_major", int), given.read(key + "_minor", int)

        def bits(key: str, *default: int) -> FrozenSet[int]:
            return _bits(given.read(key, int, *default) or sum(default))

        container = version("container")
        return TargetCaps(
            container, version("commands"), version("kernel_abi"), version("layouts"), given.read("max_rank", int),
            bits("function_features"), bits("file_features"), bits("variant_features", 0),
            _until(container, bits("section_mask", 0) or _sections_of(container[1])), bits("command_mask"),
            bits("expression_mask", (1 << len(OPS)) - 1),
            bits("dtype_mask"), bits("encoding_mask"), bits("image_kind_mask", 0b11110),
        )  # fmt: skip

    # -- what is left out

    def omissions(self, bundle: "BundleWriter") -> Omissions:
        """What means nothing to these readers, or less than what stands beside it."""
        found = Omissions()
        numbers = _section_numbers()
        found.sections.update(name for name in OPTIONAL_SECTIONS if numbers[name] not in self.sections)
        self._omit_versions(bundle, found)
        for kernel in bundle._kernels.values():
            if kernel.name not in found.kernels:
                found.variants.update(self._variants_to_omit(kernel))
        return found

    def _omit_versions(self, bundle: "BundleWriter", found: Omissions) -> None:
        """Versions with a target beside one without; internal and prepare functions that only such versions need; and the kernels
        and constants that nothing else touches. Other features of functions cannot be left out."""
        functions = bundle._functions
        plain = [f for f in functions.values() if not f.target]
        needed = {constant_.name for f in plain for constant_ in f.constants()}
        for (name, target), function in functions.items():
            missing = [bit for bit in sorted(_bits(function.required_features)) if bit not in self.function_features]
            if not missing:
                continue
            made = {argument.constant.name for argument in function.results if argument.constant is not None}
            helps = function.internal or (function.prepare and not made & needed)
            versions = FEATURE_FUNCTION_TARGET.bit_length() - 1 in missing
            if not versions or not ((name, "") in functions or helps):
                without = ", and there is no version without" if versions else ""
                raise self._unknown(_text("function feature bit", missing[0], _FUNCTION_FEATURES) + without, place_of(function))
            found.functions.add((name, target))
        kept = [f for key, f in functions.items() if key not in found.functions]
        gone = [f for key, f in functions.items() if key in found.functions]
        found.kernels = _kernels_of(gone) - _kernels_of(kept)
        found.constants = {c.name for f in gone for c in f.constants()} - {c.name for f in kept for c in f.constants()}

    def _variant_problem(self, variant: "Variant") -> str:
        """What of a variant these readers cannot do; empty when nothing."""
        missing = sorted(_bits(variant.required_features) - self.variant_features)
        pack = variant.image.kind == ImageKind.PACK
        if missing:
            return _text("variant feature bit", missing[0], ())
        if variant.image.kind not in self.image_kinds:
            return _text("image kind", variant.image.kind, _IMAGE_KINDS)
        if variant.launch is not None and _section_numbers()["launches"] not in self.sections:
            return _text("section", _section_numbers()["launches"], _section_names())
        if (pack or variant.launch is not None) and self.kernel_abi[0] == 0 and self.kernel_abi < (0, 2):
            return "kernel packs (kernel ABI 0.2)" if pack else "launches (kernel ABI 0.2)"
        portable = variant.arch_kind == ARCH_KINDS["portable"] and variant.arch
        if portable and self.container[0] == 0 and self.container < (0, 2):
            return "portable variants with an architecture (container 0.2)"
        return ""

    def _variants_to_omit(self, kernel: "Kernel") -> List[int]:
        problems = [self._variant_problem(variant) for variant in kernel.variants]
        if kernel.variants and all(problems):
            raise self._unknown(f"{problems[0]}, and there is no variant without", f"kernel '{kernel.name}'")
        return [id(variant) for variant, problem in zip(kernel.variants, problems) if problem]

    # -- what cannot be written

    @staticmethod
    def _unknown(what: str, place: str) -> TargetError:
        return TargetError(f"{place}: the target does not know {what}" if place else f"the target does not know {what}")

    def _need(self, known: FrozenSet[int], kind: str, number: int, names: Sequence[str], place: str) -> None:
        if number not in known:
            raise self._unknown(_text(kind, number, names), place)

    def need_operation(self, op: str, place: str) -> None:
        self._need(self.expression_ops, "expression operation", OPS.index(op), OPS, place)

    def need_opcode(self, opcode: int, place: str) -> None:
        self._need(self.opcodes, "opcode", opcode, OPCODES, place)

    def need_dtype(self, dtype: str, place: str) -> None:
        if DTYPES[dtype][0] not in self.dtypes:
            raise self._unknown(f"data type {DTYPES[dtype][0]} ({dtype})", place)

    def need_image(self, kind: ImageKind, place: str) -> None:
        self._need(self.image_kinds, "image kind", kind, _IMAGE_KINDS, place)

    def need_container(self, minor: int, what: str, place: str) -> None:
        if self.container[0] == 0 and self.container[1] < minor:
            raise self._unknown(f"{what} (container 0.{minor})", place)

    def need_type(self, dtype: str, encoding: Encoding, rank: int, group_elements: int, place: str) -> None:
        if encoding not in self.encodings:
            raise self._unknown(f"layout {int(encoding)} ({Encoding(encoding).name.lower()})", place)
        self.need_dtype(dtype, place)
        if rank > self.max_rank:
            raise TargetError(f"{place}: the target knows ranks up to {self.max_rank}, not {rank}")
        if group_elements:
            self.need_container(3, "group sizes of layouts", place)

    def check_devices(self, encoder: "Encoder") -> None:
        """Refuses a bundle that no device there runs as a whole."""
        devices = [(driver, arch) for driver, archs in (self.architectures or {}).items() for arch in archs]
        variants = {kernel: encoder._variants(kernel) for kernel in encoder.kernels}
        first = None
        for driver, arch in devices:
            found = Device(driver, arch, self.cpu_features).missing(encoder.functions, variants)
            if found is None:
                return
            first = first or found
        if first is not None:
            there = " ".join(f"{driver}:{arch}" for driver, arch in devices)
            raise TargetError(f"{place_of(first[0])}: kernel '{first[1].name}' has no variant for the devices of the target ({there})")

    def check(self, encoder: "Encoder") -> None:
        """Refuses what the whole file needs and these readers lack: sections, its features, versions. Nothing has been written yet."""
        for name, number, required, place in encoder.section_needs():
            if required:
                self._need(self.sections, "section", number, {number: name}, place)  # type: ignore[arg-type]
        for bit in sorted(_bits(encoder.required_features)):
            self._need(self.file_features, "file feature bit", bit, _FILE_FEATURES, "")
        versions = encoder.versions()
        for name, at in (("container", 0), ("command set", 2), ("kernel ABI", 4), ("layouts", 6)):
            needed, known = versions[at : at + 2], getattr(self, {"command set": "commands"}.get(name, name.lower().replace(" ", "_")))
            if needed[0] != known[0] or needed[1] > known[1]:
                raise TargetError(f"the bundle needs {name} {needed[0]}.{needed[1]}, the target reads {known[0]}.{known[1]}")


def _text(kind: str, number: int, names: Any) -> str:
    """ "opcode 2 (copy)": the number alone, where this writer has no name for it."""
    try:
        name = names[number]
    except (IndexError, KeyError):
        name = ""
    return f"{kind} {int(number)} ({name})" if name else f"{kind} {int(number)}"


def place_of(function: "Function") -> str:
    return f"function '{function.name}'" + (f" for {function.target}" if function.target else "")


def _kernels_of(functions: Iterable["Function"]) -> Set[str]:
    return {c.fields["kernel"].name for f in functions for c in f.commands() if "kernel" in c.fields}


def _section_numbers() -> Dict[str, int]:
    from .encoder import SECTIONS

    return {name: number for name, (number, _size) in SECTIONS.items()}


def _section_names() -> List[str]:
    names = [""] * 64
    for name, number in _section_numbers().items():
        names[number] = name
    return names


def _sections_of(minor: int) -> FrozenSet[int]:
    """What a reader of container 0.`minor` knows."""
    first = {*range(1, 21), 62, 63}
    if minor >= 2:
        first.add(21)
    if minor >= 3:
        first |= set(_section_numbers().values())
    return frozenset(first)


def _until(container: Tuple[int, int], listed: FrozenSet[int]) -> FrozenSet[int]:
    """The listed sections without those that came with a later container, which are not known whatever the list says."""
    return listed - (_sections_of(3) - _sections_of(container[1])) if container[0] == 0 else listed
