"""Numbers, names and errors that every part of the writer uses. What the format says of numbers
comes from format/format.def."""

from __future__ import annotations

import numbers
import struct

from .._format import (  # noqa: F401 - the other parts take them from here
    ACCESSES, ARCH_KINDS, ARGUMENT_KINDS, COMMAND_FIELDS, CPU_FEATURES, DTYPES, EXPRESSION_OPERANDS, EXPRESSION_OPS, EXTERNAL,
    FEATURE_FUNCTION_TARGET, INLINE, OPCODES, PARAMETER_KINDS, PREDICATES, PREPARED, SECTIONS, TRAIT_CAPTURABLE, TRAIT_COOPERATIVE,
    TRAIT_DETERMINISTIC, TRAIT_OVERLAPS_PREVIOUS, TRAIT_READS_HOST_METADATA, TRAIT_SERIAL, TRAIT_ZEROED_WORKSPACE, AliasKind,
    ArgumentKind, Encoding, FileKind, ImageKind, Opcode, OperandKind, Role, SymbolClass,
)  # fmt: skip

MAX_RANK = 8
MAX_PARAMETERS = 64
MAX_PARAMETER_BYTES = 4096
BIG_ALIGN = 4096
SYMBOL_LIMIT = 1 << 48

FORMAT_DTYPES = {
    "?": "bool", "b": "i8", "h": "i16", "i": "i32", "B": "u8", "H": "u16", "I": "u32", "e": "f16", "f": "f32", "d": "f64",
    "q": "i64", "Q": "u64", "l": "i64" if struct.calcsize("l") == 8 else "i32",
    "L": "u64" if struct.calcsize("L") == 8 else "u32",
}  # fmt: skip


class BundleError(ValueError):
    """A mistake in what was asked of the writer; the message names what is wrong and where."""


TENSOR_PARAMETER_BYTES = 144
BINDING_BY_NAME = 1
ADAPTER_SCALED = 1
MAX_NAME_BYTES = 1023
MAX_FILE_NAME_BYTES = 255
MAX_BLOCK_THREADS = 1024
MAX_CLUSTER_BLOCKS = 64
MAX_SHARED_BYTES = 256 << 20
MAX_LOCAL_MEMORY_BYTES = 256 << 20
MAX_PACK_NAME_BYTES = 127
MAX_FUNCTION_TARGETS = 16


def check_name(name: str, what: str) -> None:
    if isinstance(name, str) and len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise BundleError(f"{what} {name[:40]!r}...: a name has at most {MAX_NAME_BYTES} bytes")


def dtype_id(name: str, where: str) -> int:
    if name not in DTYPES:
        raise BundleError(f"{where}: no data type {name!r}; there are {', '.join(DTYPES)}")
    return DTYPES[name][0]


def dtype_size_bytes(dtype: str, elements: int = 1) -> int:
    """Bytes of so many packed elements."""
    return (DTYPES[dtype][1] * elements + 7) // 8


def align_up(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


def whole(value: object, least: int, most: int, what: str) -> int:
    """`value`, which must be a whole number of that range: a record's field takes no other."""
    if not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise BundleError(f"{what} is {value!r}; it is a whole number from {least} to {most}")
    return int(value)
