"""The format's structures as tables: sections, records, enumerations, limits, rules. It holds
numbers and no code that reads; docs/accx-format.md is where they come from."""

from __future__ import annotations

import struct
from collections import namedtuple
from typing import Any, Dict, List, Tuple

NONE = 0xFFFFFFFF
MAGIC = b"\x89ACCX\r\n\x1a"
HEADER_BYTES = 128
SECTION_BYTES = 64
CHUNK_BYTES = 1 << 20
BIG_ALIGN = 4096
TENSOR_ALIGN = 256

#: What this reader speaks: major, newest minor.
VERSIONS: Dict[str, Tuple[int, int]] = {"container": (0, 3), "commands": (0, 1), "kernel_abi": (0, 3), "layouts": (0, 3)}

MAX_SECTIONS = 64
MAX_METADATA_BYTES = 1 << 30
MAX_CODE_BYTES = 1 << 32
MAX_RECORDS = 1 << 24
MAX_STRING_BYTES = 65535
MAX_NAME_BYTES = 1023
MAX_RANK = 8
MAX_SYMBOL_VALUE = 1 << 48
MAX_ARGUMENTS = 4096
MAX_BLOCK_DEPTH = 16
MAX_CALL_DEPTH = 16
MAX_FUNCTION_TARGETS = 16
MAX_EXPANDED_COMMANDS = 1 << 24
MAX_NEEDED_SYMBOLS = 1 << 22
MAX_PARAMETERS = 64
MAX_PARAMETER_BYTES = 4096
MAX_PARAMETER_NAME_BYTES = 255
MAX_LOCAL_BYTES = 256 << 20
MAX_BLOCK_THREADS = 1024
MAX_CLUSTER_BLOCKS = 64
MAX_PACK_NAME_BYTES = 127

MAX_FILE_NAME_BYTES = 255

FEATURE_ENCRYPTED_DATA = 1
FILE_FEATURES = FEATURE_ENCRYPTED_DATA
FUNCTION_FEATURES = 1
FEATURE_FUNCTION_TARGET = 1

#: Bits of an element by data type id.
DTYPE_BITS = {1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 16, 12: 32, 13: 64, 14: 8, 15: 8, 16: 8,
              17: 4, 18: 4, 19: 4}  # fmt: skip
DTYPE_NAMES = {1: "bool", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "bf16",
               12: "f32", 13: "f64", 14: "f8e4m3fn", 15: "f8e5m2", 16: "f8e8m0", 17: "f4e2m1", 18: "i4", 19: "u4"}  # fmt: skip
DTYPE_I64 = 5


class Record:
    """A fixed-size record: a struct format and the names of its fields."""

    def __init__(self, name: str, layout: str, fields: str):
        self.name = name
        self.struct = struct.Struct("<" + layout)
        self.type = namedtuple(name, fields)
        self.size_bytes = self.struct.size

    def all(self, data: Any) -> List[Any]:
        """Every record of a section's bytes."""
        return list(map(self.type._make, self.struct.iter_unpack(data)))

    def at(self, data: Any, offset: int) -> Any:
        """One record."""
        return self.type._make(self.struct.unpack_from(data, offset))


# Kept as bytes within arguments and states.
TYPE = Record("Type", "4I8I", "dtype encoding rank group_elements d0 d1 d2 d3 d4 d5 d6 d7")
HEADER = Record(
    "Header",
    "8s8HQQQIIQQ40s16s",
    "magic container_major container_minor commands_major commands_minor kernel_abi_major kernel_abi_minor layouts_major "
    "layouts_minor file_size_bytes required_features optional_features section_count section_record_bytes "
    "section_table_offset flags reserved digest",
)
SECTION = Record("Section", "IIQQII16s16s", "type flags offset size_bytes record_bytes record_count name digest")

_EIGHT = " ".join(f"s{i}" for i in range(8))
#: Records by section name.
RECORDS: Dict[str, Record] = {
    "metadata": Record("Metadata", "II", "key value"),
    "symbols": Record("Symbol", "IIqqqII", "name symbol_class minimum maximum divisor bucket_first bucket_count"),
    "buckets": Record("Bucket", "q", "bound"),
    "expressions": Record("Expression", "IIIIq", "op a b c immediate"),
    "constants": Record(
        "Constant",
        "8I8qII16sII",
        "name source dtype encoding rank component_first component_count group_elements " + _EIGHT
        + " file tensor digest binding_flags reserved",
    ),
    "components": Record("Component", "IIQQ", "role dtype offset_bytes size_bytes"),
    "states": Record("State", "II48sQ", "name flags type fill_pattern"),
    "functions": Record(
        "Function",
        "IIQ12I",
        "name flags required_features argument_first input_count result_count slot_first slot_count expression_first "
        "expression_count body transient_size transient_align doc target",
    ),
    "arguments": Record("Argument", "8I48s", "name kind flags symbol alias_kind alias_input constant doc type"),
    "slots": Record("Slot", "IIII", "kind index component reserved"),
    "views": Record("View", "II8I8I", "dtype rank " + _EIGHT + " " + _EIGHT.replace("s", "t")),
    "blocks": Record("Block", "QII", "offset_bytes size_bytes command_count"),
    "kernels": Record(
        "Kernel",
        "8I",
        "name traits parameter_first parameter_count params_size_bytes local_memory_size_bytes variant_first variant_count",
    ),
    "parameters": Record("Parameter", "IBBBBII", "name kind access flags align_log2 offset_bytes size_bytes"),
    "variants": Record(
        "Variant",
        "IIIiQQIIII",
        "driver arch_kind arch priority cpu_features required_features image entry predicate_first predicate_count",
    ),
    "predicates": Record("Predicate", "IIq", "kind parameter value"),
    "images": Record("Image", "IIQQ", "kind name offset_bytes size_bytes"),
    "chunk_digests": Record("Digest", "16s", "bytes"),
    "launches": Record(
        "Launch", "II3I3III", "variant traits block_x block_y block_z cluster_x cluster_y cluster_z dynamic_shared_bytes reserved"
    ),
}

RECORDS.update({
    "assets": Record("Asset", "IIQQQ", "name media_type offset_bytes size_bytes reserved"),
    "locations": Record("Location", "IIII", "file line column name"),
    "files": Record("File", "IIQ16sII", "name kind size_bytes digest flags reserved"),
    "shards": Record("Shard", "IIIIqII", "constant kind axis degree extent segment_first segment_count"),
    "adapters": Record("Adapter", "IIII", "slot input flags reserved"),
    "tree": Record("Tree", "II32s32sQ", "algorithm chunk_log2 code_root weight_root reserved"),
    "signatures": Record("Signature", "II32s64sQ", "scope algorithm key signature reserved"),
    "segments": Record("Segment", "qqII", "begin end replicas reserved"),
    "leaves": Record("Leaf", "32s", "bytes"),
    "encryption": Record("Encryption", "II16s32sQ", "algorithm reserved key_id salt reserved_2"),
    "tags": Record("Tag", "16s", "bytes"),
})  # fmt: skip

#: Forms that records had before: by section, (bytes, container minor, what stands for the fields
#: that came later).
FORMS: Dict[str, List[Tuple[int, int, bytes]]] = {
    "constants": [(96, 1, b"\xff\xff\xff\xff" + bytes(28))],
}

#: Sections without meaning when another is not there: (section, needs, how many records: any, one,
#: or a chunk's each).
PAIRS = [
    ("tree", "strings", "one"), ("signatures", "tree", "any"), ("segments", "shards", "any"), ("leaves", "tree", "chunks"),
    ("encryption", "tags", "one"), ("tags", "encryption", "chunks"), ("asset_data", "assets", "any"),
]  # fmt: skip

SectionKind = namedtuple("SectionKind", "type name required alignment since_minor")
_SECTIONS = [
    (1, "strings", True, 8, 1), (2, "metadata", False, 8, 1), (3, "symbols", True, 8, 1), (4, "buckets", True, 8, 1),
    (5, "expressions", True, 8, 1), (6, "constants", True, 8, 1), (7, "components", True, 8, 1), (8, "states", True, 8, 1),
    (9, "functions", True, 8, 1), (10, "arguments", True, 8, 1), (11, "slots", True, 8, 1), (12, "views", True, 8, 1),
    (13, "blocks", True, 8, 1), (14, "commands", True, 8, 1), (15, "kernels", True, 8, 1), (16, "parameters", True, 8, 1),
    (17, "variants", True, 8, 1), (18, "predicates", True, 8, 1), (19, "images", True, 8, 1),
    (20, "chunk_digests", True, 8, 1), (21, "launches", True, 8, 2), (32, "assets", False, 8, 3), (33, "locations", False, 8, 3),
    (37, "files", True, 8, 3), (38, "shards", True, 8, 3), (39, "adapters", False, 8, 3), (40, "tree", False, 8, 3),
    (41, "signatures", False, 8, 3), (42, "segments", True, 8, 3), (43, "leaves", False, 8, 3),
    (44, "encryption", True, 8, 3), (45, "tags", True, 8, 3), (46, "asset_data", False, 8, 3), (62, "code", True, BIG_ALIGN, 1),
    (63, "data", True, BIG_ALIGN, 1),
]  # fmt: skip
SECTION_KINDS: Dict[int, SectionKind] = {row[0]: SectionKind(*row) for row in _SECTIONS}

COMMAND = Record("Command", "HHIIIII", "opcode flags size_bytes name location predecessor_count reserved")
RANGE = Record("Range", "IIII", "slot access offset size")
DISPATCH = Record("Dispatch", "II3II", "kernel operand_count x y z reserved")
OPERAND = Record(
    "Operand", "IIII4IQ", "kind expression view reserved slot access offset size immediate"
)
COPY = Record(
    "Copy",
    "4I4I3I2I2II",
    "s_slot s_access s_offset s_size t_slot t_access t_offset t_size bytes rows planes s_row s_plane t_row t_plane reserved",
)
FILL = Record("Fill", "4IQII", "slot access offset size pattern pattern_bytes reserved")
CALL = Record("Call", "II", "function operand_count")
REPEAT = Record("Repeat", "II", "count block")
BRANCH = Record("Branch", "IIII", "condition then_block else_block reserved")
MARKER = Record("Marker", "II", "text reserved")
OP_DISPATCH, OP_COPY, OP_FILL, OP_BARRIER, OP_CALL, OP_REPEAT, OP_BRANCH, OP_MARKER = range(1, 9)
#: By opcode: bytes of its own fields, REQUIRED bit, minor version of the command set that has it
#: first.
COMMAND_KINDS = {
    OP_DISPATCH: (DISPATCH.size_bytes, 1, 1), OP_COPY: (COPY.size_bytes, 1, 1), OP_FILL: (FILL.size_bytes, 1, 1),
    OP_BARRIER: (0, 1, 1), OP_CALL: (CALL.size_bytes, 1, 1), OP_REPEAT: (REPEAT.size_bytes, 1, 1),
    OP_BRANCH: (BRANCH.size_bytes, 1, 1), OP_MARKER: (MARKER.size_bytes, 0, 1),
}  # fmt: skip

EXPR_CONSTANT, EXPR_SYMBOL, EXPR_INDUCTION, EXPR_NOT, EXPR_SELECT, EXPR_PRESENT = 0, 1, 2, 17, 18, 19
#: Operands by op.
EXPR_OPERANDS = [0, 0, 0] + [2] * 14 + [1, 3, 0]

#: Every rule: name and status, by number.
RULES: Dict[int, Tuple[str, str]] = {
    1: ("FILE_SIZE", "INVALID_FORMAT"), 2: ("MAGIC", "INVALID_FORMAT"), 3: ("VERSION", "VERSION_MISMATCH"),
    4: ("HEADER_FIELDS", "INVALID_FORMAT"), 5: ("SECTION_COUNT", "INVALID_FORMAT"), 6: ("HEADER_DIGEST", "DATA_CORRUPT"),
    7: ("FILE_FEATURES", "VERSION_MISMATCH"),
    10: ("SECTION_ORDER", "INVALID_FORMAT"), 11: ("SECTION_NAME", "INVALID_FORMAT"), 12: ("SECTION_FLAGS", "INVALID_FORMAT"),
    13: ("SECTION_UNKNOWN", "VERSION_MISMATCH"), 14: ("SECTION_PLACE", "INVALID_FORMAT"),
    15: ("SECTION_BOUNDS", "INVALID_FORMAT"), 16: ("SECTION_RECORDS", "INVALID_FORMAT"),
    17: ("SECTION_LIMITS", "INVALID_FORMAT"), 18: ("SECTION_NEEDED", "INVALID_FORMAT"), 19: ("SECTION_GAPS", "INVALID_FORMAT"),
    20: ("SECTION_DIGEST", "DATA_CORRUPT"),
    30: ("STRING_TABLE", "INVALID_FORMAT"), 31: ("STRING_ORDER", "INVALID_FORMAT"), 32: ("STRING_UTF8", "INVALID_FORMAT"),
    33: ("STRING_REFERENCE", "INVALID_FORMAT"), 34: ("NAME", "INVALID_FORMAT"), 35: ("NAME_ORDER", "INVALID_FORMAT"),
    40: ("SYMBOL_CLASS", "INVALID_FORMAT"), 41: ("SYMBOL_RANGE", "INVALID_FORMAT"), 42: ("SYMBOL_BUCKETS", "INVALID_FORMAT"),
    43: ("EXPRESSION_SCOPE", "INVALID_FORMAT"), 44: ("EXPRESSION_OP", "INVALID_FORMAT"),
    45: ("EXPRESSION_OPERANDS", "INVALID_FORMAT"), 46: ("EXPRESSION_LEAF", "INVALID_FORMAT"),
    47: ("EXPRESSION_USE", "INVALID_FORMAT"),
    50: ("TYPE", "INVALID_FORMAT"), 51: ("CONSTANT_SOURCE", "INVALID_FORMAT"), 52: ("CONSTANT_SHAPE", "INVALID_FORMAT"),
    53: ("COMPONENTS", "INVALID_FORMAT"), 54: ("COMPONENT_SIZE", "INVALID_FORMAT"), 55: ("COMPONENT_PLACE", "INVALID_FORMAT"),
    56: ("STATE", "INVALID_FORMAT"), 57: ("LAYOUT_TYPE", "INVALID_FORMAT"), 58: ("LAYOUT_SHAPE", "INVALID_FORMAT"),
    60: ("FUNCTION_NAME", "INVALID_FORMAT"), 61: ("FUNCTION_FIELDS", "INVALID_FORMAT"), 62: ("FUNCTION_ORDER", "INVALID_FORMAT"),
    63: ("FUNCTION_TILING", "INVALID_FORMAT"), 64: ("ARGUMENT_KIND", "INVALID_FORMAT"), 65: ("ARGUMENT_NAME", "INVALID_FORMAT"),
    66: ("ARGUMENT_SCALAR", "INVALID_FORMAT"), 67: ("ARGUMENT_ALIAS", "INVALID_FORMAT"), 68: ("PREPARE", "INVALID_FORMAT"),
    69: ("PREPARE_ONCE", "INVALID_FORMAT"), 70: ("SLOT", "INVALID_FORMAT"), 71: ("SYMBOL_BOUND", "INVALID_FORMAT"),
    72: ("VIEW", "INVALID_FORMAT"), 73: ("FUNCTION_TARGET", "INVALID_FORMAT"), 74: ("FUNCTION_VERSIONS", "INVALID_FORMAT"),
    75: ("CALL_TARGET", "INVALID_FORMAT"),
    80: ("BLOCK_TILING", "INVALID_FORMAT"), 81: ("BLOCK_USE", "INVALID_FORMAT"), 82: ("BLOCK_DEPTH", "INVALID_FORMAT"),
    83: ("COMMAND_SIZE", "INVALID_FORMAT"), 84: ("COMMAND_FLAGS", "INVALID_FORMAT"), 85: ("COMMAND_UNKNOWN", "VERSION_MISMATCH"),
    86: ("COMMAND_FIELDS", "INVALID_FORMAT"), 87: ("COMMAND_PREDECESSORS", "INVALID_FORMAT"),
    88: ("RANGE_SLOT", "INVALID_FORMAT"), 89: ("RANGE_ACCESS", "INVALID_FORMAT"), 90: ("DISPATCH_KERNEL", "INVALID_FORMAT"),
    91: ("OPERAND", "INVALID_FORMAT"), 92: ("FILL", "INVALID_FORMAT"), 93: ("CALL", "INVALID_FORMAT"),
    94: ("CALL_LIMITS", "INVALID_FORMAT"),
    100: ("KERNEL_TRAITS", "INVALID_FORMAT"), 101: ("KERNEL_TILING", "INVALID_FORMAT"), 102: ("PARAMETERS", "INVALID_FORMAT"),
    103: ("PARAMETER_NAME", "INVALID_FORMAT"), 104: ("VARIANT", "INVALID_FORMAT"), 105: ("PREDICATE", "INVALID_FORMAT"),
    106: ("IMAGE_PLACE", "INVALID_FORMAT"), 107: ("IMAGE_KIND", "INVALID_FORMAT"), 108: ("IMAGE_HEADER", "INVALID_FORMAT"),
    109: ("LAUNCH", "INVALID_FORMAT"),
    110: ("MINIMUM", "INVALID_FORMAT"), 111: ("DATA_DIGEST", "DATA_CORRUPT"), 112: ("DATA_GAPS", "INVALID_FORMAT"),
    113: ("CODE_CHANGED", "DATA_CORRUPT"), 114: ("RECORD_FORM", "INVALID_FORMAT"), 115: ("SECTION_PAIRS", "INVALID_FORMAT"),
    120: ("FILE", "INVALID_FORMAT"), 121: ("EXTERNAL", "INVALID_FORMAT"), 130: ("SHARD", "INVALID_FORMAT"),
    131: ("SEGMENT", "INVALID_FORMAT"), 135: ("ADAPTER", "INVALID_FORMAT"), 140: ("TREE", "INVALID_FORMAT"),
    141: ("SIGNATURE", "INVALID_FORMAT"), 142: ("CODE_ROOT", "DATA_CORRUPT"), 143: ("WEIGHT_ROOT", "DATA_CORRUPT"),
    144: ("LEAF", "DATA_CORRUPT"), 145: ("SIGNED", "DATA_CORRUPT"), 146: ("CODE_TRUST", "UNTRUSTED"),
    147: ("WEIGHT_TRUST", "UNTRUSTED"), 148: ("FLOOR", "UNTRUSTED"), 149: ("ENCRYPTED", "UNTRUSTED"), 150: ("ENCRYPTION", "INVALID_FORMAT"),
    151: ("ENCRYPTION_KEY", "PERMISSION_DENIED"), 152: ("TAG", "DATA_CORRUPT"), 155: ("ASSET", "INVALID_FORMAT"),
    156: ("ASSET_PLACE", "INVALID_FORMAT"), 157: ("LOCATION", "INVALID_FORMAT"),
}  # fmt: skip
