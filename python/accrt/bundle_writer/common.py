"""Numbers, names and errors that every part of the writer uses. It imports nothing of the package."""

from __future__ import annotations

import enum
import numbers
import struct
from typing import Dict, Tuple

NONE = 0xFFFFFFFF
MAX_RANK = 8
MAX_PARAMETERS = 64
MAX_PARAMETER_BYTES = 4096
CHUNK_BYTES = 1 << 20
BIG_ALIGN = 4096
TENSOR_ALIGN = 256
# Written in large pieces from memory that is there already, a file gets large pages in the page cache; it is then mapped in a
# fraction of the time (digests are made first: they bring the memory in).
WRITE_BYTES = 4 << 20
SYMBOL_LIMIT = 1 << 48
MAGIC = b"\x89ACCX\r\n\x1a"

#: Data types by name: (id, bits an element).
DTYPES: Dict[str, Tuple[int, int]] = {
    "bool": (1, 8), "i8": (2, 8), "i16": (3, 16), "i32": (4, 32), "i64": (5, 64), "u8": (6, 8), "u16": (7, 16),
    "u32": (8, 32), "u64": (9, 64), "f16": (10, 16), "bf16": (11, 16), "f32": (12, 32), "f64": (13, 64),
    "f8e4m3fn": (14, 8), "f8e5m2": (15, 8), "f8e8m0": (16, 8), "f4e2m1": (17, 4), "i4": (18, 4), "u4": (19, 4),
}  # fmt: skip
FORMAT_DTYPES = {
    "?": "bool", "b": "i8", "h": "i16", "i": "i32", "B": "u8", "H": "u16", "I": "u32", "e": "f16", "f": "f32", "d": "f64",
    "q": "i64", "Q": "u64", "l": "i64" if struct.calcsize("l") == 8 else "i32",
    "L": "u64" if struct.calcsize("L") == 8 else "u32",
}  # fmt: skip


class BundleError(ValueError):
    """A mistake in what was asked of the writer; the message names what is wrong and where."""


class SymbolClass(enum.IntEnum):
    """Who fixes a symbol's value, and when."""

    SPECIALIZE = 0  #: each value gets its own plan
    BUCKET = 1  #: each bucket gets a plan; memory is sized at its bound, the live value is patched in at each call
    RUNTIME = 2  #: patched in at each call; memory is sized at the maximum
    SESSION = 3  #: given when a session is made


class Encoding(enum.IntEnum):
    """The layout registry: docs/layouts.md says what the bytes of each mean."""

    PLAIN = 0  #: row-major elements
    OPAQUE = 1  #: bytes that only the bundle's own kernels understand
    F8_TENSOR = 2
    F8_CHANNEL = 3
    F8_BLOCK128 = 4
    I8_CHANNEL = 5
    I8_GROUP = 6
    I4_GROUP = 7
    I4_GROUP_ASYM = 8
    GPTQ_V1 = 9
    GPTQ_V2 = 10
    AWQ = 11
    Q8_0 = 16
    Q4_0 = 17
    Q4_1 = 18
    Q4_K = 19
    Q5_K = 20
    Q6_K = 21
    GGML_MXFP4 = 22
    GGML_NVFP4 = 23
    MXFP4 = 24
    MXFP8 = 25
    NVFP4 = 26


class Role(enum.IntEnum):
    """What a component of a weight is."""

    DATA = 0
    SCALES = 1
    ZEROS = 2
    GROUP_INDEX = 3
    GLOBAL_SCALE = 4


class FileKind(enum.IntEnum):
    ACCX = 1
    SAFETENSORS = 2
    GGUF = 3


class ImageKind(enum.IntEnum):
    HOST_ELF = 1
    CUBIN = 2
    PTX = 3
    FATBIN = 4
    PACK = 5  #: no bytes: a kernel pack outside the bundle, found by name (`BundleWriter.pack`)


class AliasKind(enum.IntEnum):
    """How a result's storage relates to an input's."""

    NONE = 0
    MAY = 1
    MUST = 2


ARCH_KINDS = {"portable": 0, "family": 1, "exact": 2}
PARAMETER_KINDS = {"buffer": 1, "tensor": 2, "scalar": 3, "symbol": 4, "workspace": 5}
ACCESSES = {"none": 0, "read": 1, "write": 2, "read_write": 3}
PREDICATES = {"divisible": 1, "aligned": 2, "equal": 3, "at_most": 4, "at_least": 5}
TENSOR_PARAMETER_BYTES = 144
#: Traits of kernels, as in accrt/kernel.h.
TRAIT_DETERMINISTIC, TRAIT_CAPTURABLE, TRAIT_ZEROED_WORKSPACE, TRAIT_READS_HOST_METADATA, TRAIT_SERIAL = 1, 2, 4, 8, 16
#: Traits of device code, as in accrt/kernel.h: `launch_traits` of a variant, not of its kernel.
TRAIT_COOPERATIVE, TRAIT_OVERLAPS_PREVIOUS = 32, 64
FEATURE_FUNCTION_TARGET = 1
FEATURE_ENCRYPTED_DATA = 1
BINDING_BY_NAME = 1
ADAPTER_SCALED = 1
MAX_NAME_BYTES = 1023
MAX_STRING_BYTES = 65535
MAX_FILE_NAME_BYTES = 255
MAX_BLOCK_THREADS = 1024
MAX_CLUSTER_BLOCKS = 64
MAX_SHARED_BYTES = 256 << 20
MAX_LOCAL_MEMORY_BYTES = 256 << 20
MAX_PACK_NAME_BYTES = 127
MAX_FUNCTION_TARGETS = 16
#: CPU features, as in accrt/kernel.h.
CPU_FEATURES = {
    "x86_64_v2": 1 << 0, "x86_64_v3": 1 << 1, "x86_64_v4": 1 << 2, "avx512_vnni": 1 << 3, "avx512_bf16": 1 << 4,
    "avx512_fp16": 1 << 5, "avx_vnni": 1 << 6, "amx_bf16": 1 << 7, "amx_int8": 1 << 8, "avx512_vbmi": 1 << 9,
    "arm_neon": 1 << 32, "arm_fp16": 1 << 33, "arm_dotprod": 1 << 34, "arm_bf16": 1 << 35, "arm_i8mm": 1 << 36,
    "arm_sve": 1 << 37,
}  # fmt: skip


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
