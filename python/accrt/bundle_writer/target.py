"""Writing for given readers: what they can do, what is left out for them, and what cannot be written for them.

docs/contract.md, "Writing for a target", says what each side relies on; the C writer does the same.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Iterable, List, Mapping, Set, Tuple

from .common import ARCH_KINDS, DTYPES, FEATURE_FUNCTION_TARGET, BundleError, Encoding, ImageKind
from .expressions import OPS

if TYPE_CHECKING:
    from .encoder import Encoder
    from .functions import Function
    from .kernels import Kernel, Variant
    from .model import BundleWriter

#: Sections that a reader may ignore and that came after container 0.1, with what came with each.
OPTIONAL_SECTIONS = ("assets", "asset_data", "locations", "adapters")
_OPCODES = ("", "dispatch", "copy", "fill", "barrier", "call", "repeat", "branch", "marker")
_IMAGE_KINDS = ("", "host ELF", "cubin", "PTX", "fatbin", "pack")
_FUNCTION_FEATURES = ("target",)
_FILE_FEATURES = ("encrypted-data",)


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


def _numbers(names: Iterable[Any], table: Iterable[str]) -> FrozenSet[int]:
    """Numbers of names; "bit 7" is 7, {"id": 7, ...} too. Names that are newer than this writer are of no use to it."""
    index = {name: number for number, name in enumerate(table) if name}
    found = set()
    for name in names:
        if isinstance(name, Mapping):
            found.add(int(name["id"]))
        elif name in index:
            found.add(index[name])
        elif name.startswith("bit "):
            found.add(int(name[4:]))
    return frozenset(found)


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
    sections: FrozenSet[int]
    opcodes: FrozenSet[int]
    expression_ops: FrozenSet[int]
    dtypes: FrozenSet[int]
    encodings: FrozenSet[int]
    image_kinds: FrozenSet[int]

    @staticmethod
    def of(given: Any) -> "TargetCaps":
        """From the JSON of `accx caps` (a path, its text, or what it gives in Python), or from `accrt.caps()`."""
        if isinstance(given, TargetCaps):
            return given
        if isinstance(given, (str, os.PathLike)) and not str(given).lstrip().startswith("{"):
            with open(given, encoding="utf-8") as file:
                given = json.load(file)
        elif isinstance(given, str):
            given = json.loads(given)
        try:
            return TargetCaps._of_masks(given) if "command_mask" in given else TargetCaps._of_names(given)
        except (KeyError, TypeError, ValueError) as problem:
            raise BundleError(f"target_caps: this is not what `accx caps --json` prints: {problem!r}") from problem

    @staticmethod
    def _of_names(given: Mapping[str, Any]) -> "TargetCaps":
        def version(key: str) -> Tuple[int, int]:
            major, minor = str(given[key]).split(".")
            return int(major), int(minor)

        container = version("container")
        sections = given.get("sections")
        known = _sections_of(container[1]) if sections is None else _numbers(sections, _section_names())
        names = [e.name.lower() for e in Encoding]
        table = [""] * 64
        for number, name in zip(Encoding, names):
            table[number] = name
        dtypes = frozenset(DTYPES[name][0] for name in given["dtypes"] if name in DTYPES)
        return TargetCaps(
            container, version("commands"), version("kernel_abi"), version("layouts"), int(given["max_rank"]),
            _numbers(given["function_features"], _FUNCTION_FEATURES), _numbers(given["file_features"], _FILE_FEATURES), known,
            _numbers(given["command_set"], _OPCODES), _numbers(given.get("expression_ops", OPS), OPS), dtypes,
            _numbers(given["encodings"], table), _numbers(given.get("image_kinds", _IMAGE_KINDS[1:5]), _IMAGE_KINDS),
        )  # fmt: skip

    @staticmethod
    def _of_masks(given: Mapping[str, Any]) -> "TargetCaps":
        def version(key: str) -> Tuple[int, int]:
            return int(given[key + "_major"]), int(given[key + "_minor"])

        container = version("container")
        sections = given.get("section_mask")
        return TargetCaps(
            container, version("commands"), version("kernel_abi"), version("layouts"), int(given["max_rank"]),
            _bits(given["function_features"]), _bits(given["file_features"]),
            _bits(sections) if sections else _sections_of(container[1]), _bits(given["command_mask"]),
            _bits(given.get("expression_mask") or (1 << len(OPS)) - 1), _bits(given["dtype_mask"]),
            _bits(given["encoding_mask"]), _bits(given.get("image_kind_mask") or 0b11110),
        )  # fmt: skip

    # -- what is left out

    def omissions(self, bundle: "BundleWriter") -> Omissions:
        """What means nothing to these readers, or less than what stands beside it."""
        found = Omissions()
        numbers = _section_numbers()
        found.sections.update(name for name in OPTIONAL_SECTIONS if numbers[name] not in self.sections)
        if FEATURE_FUNCTION_TARGET.bit_length() - 1 not in self.function_features:
            self._omit_versions(bundle, found)
        for kernel in bundle._kernels.values():
            if kernel.name not in found.kernels:
                found.variants.update(self._variants_to_omit(kernel))
        return found

    @staticmethod
    def _omit_versions(bundle: "BundleWriter", found: Omissions) -> None:
        """Versions with a target beside one without; internal and prepare functions that only such versions need; and the kernels
        and constants that nothing else touches. What is left with a target is refused later, by name."""
        functions = bundle._functions
        plain = [f for f in functions.values() if not f.target]
        needed = {constant_.name for f in plain for constant_ in f.constants()}
        for (name, target), function in functions.items():
            made = {argument.constant.name for argument in function.results if argument.constant is not None}
            helps = function.internal or (function.prepare and not made & needed)
            if target and ((name, "") in functions or helps):
                found.functions.add((name, target))
        kept = [f for key, f in functions.items() if key not in found.functions]
        gone = [f for key, f in functions.items() if key in found.functions]
        found.kernels = _kernels_of(gone) - _kernels_of(kept)
        found.constants = {c.name for f in gone for c in f.constants()} - {c.name for f in kept for c in f.constants()}

    def _variant_problem(self, variant: "Variant") -> str:
        """What of a variant these readers cannot do; empty when nothing."""
        if variant.image.kind not in self.image_kinds:
            return f"images of kind {variant.image.kind.name}"
        if variant.launch is not None and _section_numbers()["launches"] not in self.sections:
            return "launch records (container 0.2)"
        if variant.image.kind == ImageKind.PACK and self.kernel_abi < (0, 2):
            return "kernel packs outside the bundle (kernel ABI 0.2)"
        if variant.arch_kind == ARCH_KINDS["portable"] and variant.arch and self.container < (0, 2):
            return "portable variants with an architecture (container 0.2)"
        return ""

    def _variants_to_omit(self, kernel: "Kernel") -> List[int]:
        problems = [self._variant_problem(variant) for variant in kernel.variants]
        if kernel.variants and all(problems):
            raise TargetError(f"the target does not know {problems[0]}, and kernel {kernel.name!r} has no variant without")
        return [id(variant) for variant, problem in zip(kernel.variants, problems) if problem]

    # -- what cannot be written

    def check(self, encoder: "Encoder") -> None:
        """Refuses what is still beyond these readers. Nothing has been written yet."""
        for name, number, required, needs in encoder.section_needs():
            if required and number not in self.sections:
                raise TargetError(f"the target does not know section {name!r}, which {needs} needs")
        if encoder.required_features and 0 not in self.file_features:
            raise TargetError("the target does not know encrypted weights (file feature bit 0), which section 'encryption' needs")
        for constant_ in encoder.constants:
            self._check_encoding(constant_.encoding, f"constant {constant_.name!r}")
            self._check_tensor(constant_.dtype, len(constant_.shape), f"constant {constant_.name!r}")
            for component in constant_.components:
                self._check_tensor(component.dtype, 0, f"constant {constant_.name!r}, {component.role.name}")
            if constant_.source == 2 and self.container < (0, 3):
                raise TargetError(f"the target does not know EXTERNAL constants (container 0.3): {constant_.name!r} is one")
        for state in encoder.states:
            self._check_tensor(state.dtype, len(state.shape), f"state {state.name!r}")
        for function in encoder.functions:
            self._check_function(function)
        for scope in encoder.scopes:
            self._check_operations(scope.indices, scope.where)
        self._check_versions(encoder.versions())

    def _check_function(self, function: "Function") -> None:
        if function.target and FEATURE_FUNCTION_TARGET.bit_length() - 1 not in self.function_features:
            raise TargetError(
                f"the target does not know function targets (function feature bit 0), and {function} has no version without one"
            )
        for argument in function.arguments:
            where = f"function {function.name!r}, argument {argument.name!r}"
            self._check_encoding(argument.encoding, where)
            self._check_tensor(argument.dtype, len(argument.shape), where)
        for command in function.commands():
            required = command.opcode < len(_OPCODES) and _OPCODES[command.opcode] != "marker"
            if required and command.opcode not in self.opcodes:
                raise TargetError(f"the target does not know opcode {command.opcode}: {command}")

    def _check_encoding(self, encoding: Encoding, where: str) -> None:
        if encoding not in self.encodings:
            raise TargetError(f"the target does not know layout {encoding.name} ({int(encoding)}): {where}")

    def _check_tensor(self, dtype: str, rank: int, where: str) -> None:
        if DTYPES[dtype][0] not in self.dtypes:
            raise TargetError(f"the target does not know data type {dtype}: {where}")
        if rank > self.max_rank:
            raise TargetError(f"the target knows ranks up to {self.max_rank}: {where} has {rank}")

    def _check_operations(self, nodes: Iterable[Any], where: str) -> None:
        for node in nodes:
            if OPS.index(node.op) not in self.expression_ops:
                raise TargetError(f"the target does not know the operation {node.op!r} of expressions: {where}")

    def _check_versions(self, versions: Tuple[int, ...]) -> None:
        for name, at in (("container", 0), ("commands", 2), ("kernel_abi", 4), ("layouts", 6)):
            needed, known = versions[at : at + 2], getattr(self, name)
            if needed[0] != known[0] or needed[1] > known[1]:
                raise TargetError(
                    f"the bundle needs {name} {needed[0]}.{needed[1]}, the target reads {known[0]}.{known[1]}"
                )


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

