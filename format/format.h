/* format/format.h - the .accx container as C structs, byte for byte. docs/accx-format.md is its
 * specification.
 *
 * Private to the libraries: format/, loader/, write/ and runtime/program read it; docs and tests
 * are checked against it. Numbers with names are in format/format.def. It may not include any
 * header of another folder: it describes files, not the runtime. Little-endian. Every struct is a
 * multiple of 8 bytes without implicit padding. Every reserved field is zero and checked.
 *
 *   offset  what                 size and alignment
 *   0       header               128 bytes
 *   128     section table        64 bytes per section; ascending by type, each type at most once
 *   ...     sections             in the order of the table; each aligned to 8 bytes, CODE and DATA
 *                                to 4096; gaps are zero; the file ends with the last section
 *
 * Records name strings by byte offset into STRINGS (offset 0 is the empty string), records by
 * index, and expressions by node index within a scope. NONE (0xFFFFFFFF) means absent.
 */
#ifndef ACCRT_FORMAT_FORMAT_H_
#define ACCRT_FORMAT_FORMAT_H_

#include <stddef.h>
#include <stdint.h>

#define ACCX_NONE 0xFFFFFFFFu
#define ACCX_MAGIC                                                                                 \
  "\x89"                                                                                           \
  "ACCX\r\n\x1A" /* 8 bytes */
#define ACCX_MAX_RANK 8
#define ACCX_CHUNK_BYTES (1024u * 1024u)
#define ACCX_DATA_ALIGN 4096u
#define ACCX_TENSOR_ALIGN 256u

#define ACCX_CONTAINER_MAJOR 0
#define ACCX_CONTAINER_MINOR 3
#define ACCX_COMMANDS_MAJOR 0 /* ACCX_COMMANDS_MINOR: format/fields.h, the latest of the opcodes */
#define ACCX_LAYOUTS_MAJOR 0  /* ACCX_LAYOUTS_MINOR: there too, the latest of the layouts */

#define ACCX_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)

/* Digest: XXH3-128 with seed 0, canonical (big-endian) byte order as XXH128_canonicalFromHash
 * gives. */
typedef struct accx_digest {
  uint8_t bytes[16];
} accx_digest_t;

typedef struct accx_version {
  uint16_t major;
  uint16_t minor;
} accx_version_t;

/* Header, 128 bytes. Versions are the computed minimum a reader must speak; the verifier computes
 * them again. */
typedef struct accx_header {
  uint8_t magic[8];
  accx_version_t container;
  accx_version_t commands;
  accx_version_t kernel_abi;
  accx_version_t layouts;
  uint64_t file_size_bytes;
  uint64_t required_features; /* ACCX_FEATURE_* */
  uint64_t optional_features;
  uint32_t section_count;        /* 1..64 */
  uint32_t section_record_bytes; /* 64 */
  uint64_t section_table_offset; /* 128 */
  uint64_t flags;                /* 0 */
  uint8_t reserved[40];
  accx_digest_t digest; /* of this header with this field zero, followed by the section table */
} accx_header_t;
ACCX_ASSERT_SIZE(accx_header_t, 128);

/* Sections; those whose numbers are reserved are unknown. */
enum {
#define DEF_SECTION(number, name, ...) ACCX_SECTION_##name = number,
#define DEF_RESERVED_SECTION(number, name, ...) ACCX_SECTION_##name = number,
#include "format/format.def"
  ACCX_SECTION_VENDOR_FIRST = 0x10000, /* never assigned by the specification */
};
#define ACCX_SECTION_FLAG_REQUIRED 1u

/* Section record, 64 bytes. `digest` covers the section's bytes, except for DATA, whose digest
 * covers CHUNK_DIGESTS' bytes (so that opening needs not read the weights). */
typedef struct accx_section {
  uint32_t type;
  uint32_t flags; /* ACCX_SECTION_FLAG_REQUIRED */
  uint64_t offset;
  uint64_t size_bytes;
  uint32_t record_bytes; /* 0 for STRINGS, COMMANDS, ASSET_DATA, CODE, DATA */
  uint32_t record_count; /* COMMANDS: number of commands; STRINGS: of strings */
  char name[16];         /* ASCII, zero-padded: "strings", "functions", ...: what a refusal names */
  accx_digest_t digest;
} accx_section_t;
ACCX_ASSERT_SIZE(accx_section_t, 64);

/* Features of the file, of functions and of variants, known to this library: any other required bit
 * is refused by number. */
enum {
#define DEF_FILE_FEATURE(bit, name, ...) ACCX_FEATURE_##name = 1 << bit,
#define DEF_FUNCTION_FEATURE(bit, name, ...) ACCX_FEATURE_##name = 1 << bit,
#include "format/format.def"
};
/* ENCRYPTED_DATA: DATA is ciphertext: section ENCRYPTION. Since 0.3; not among the known ones where
 * this library was built without a reader of it, so that ciphertext is never taken for weights. */
#define ACCX_FILE_FEATURES_KNOWN ((uint64_t)ACCX_FEATURE_ENCRYPTED_DATA)
/* FUNCTION_TARGET: the function is for devices of one driver alone: accx_function_t.target. Since
 * 0.2. */
#define ACCX_FUNCTION_FEATURES_KNOWN ((uint64_t)ACCX_FEATURE_FUNCTION_TARGET)
#define ACCX_VARIANT_FEATURES_KNOWN UINT64_C(0)

typedef struct accx_metadata {
  uint32_t key;   /* string */
  uint32_t value; /* string */
} accx_metadata_t;
ACCX_ASSERT_SIZE(accx_metadata_t, 8);

/* Symbols. Class decides who fixes the value, and when. */
enum {
#define DEF_SYMBOL(number, name, ...) ACCX_SYMBOL_##name = number,
#include "format/format.def"
  ACCX_SYMBOL_END,
};
typedef struct accx_symbol {
  uint32_t name; /* string, unique */
  uint32_t symbol_class;
  int64_t minimum;       /* >= 0 */
  int64_t maximum;       /* >= minimum, <= 2^48 */
  int64_t divisor;       /* >= 1: every value is a multiple */
  uint32_t bucket_first; /* BUCKET: ascending bounds in BUCKETS, last >= maximum */
  uint32_t bucket_count;
} accx_symbol_t;
ACCX_ASSERT_SIZE(accx_symbol_t, 40);

/* Expressions: nodes in order, operands refer to earlier nodes of the same scope, by index within
 * the scope. A scope is the module (states' dimensions; nodes [0, the first function's
 * expression_first)) or one function. Signed 64-bit, checked: overflow, division by zero, or a
 * symbol without a value makes the node invalid, and an error where it is used. */
enum {
#define DEF_EXPRESSION(number, name, ...) ACCX_EXPR_##name = number,
#include "format/format.def"
  ACCX_EXPR_END,
};
typedef struct accx_expression {
  uint32_t op;
  uint32_t a, b, c; /* operands; NONE where unused */
  int64_t immediate;
} accx_expression_t;
ACCX_ASSERT_SIZE(accx_expression_t, 24);

/* Encodings: the layout registry (docs/layouts.md). */
enum {
#define DEF_LAYOUT(number, name, ...) ACCX_ENCODING_##name = number,
#include "format/format.def"
};

/* A tensor type with symbolic dimensions; dimensions are expressions in the scope of its
 * holder. */
typedef struct accx_type {
  uint32_t dtype; /* accrt_dtype_t */
  uint32_t encoding;
  uint32_t rank;
  uint32_t group_elements;      /* of encodings whose group size is free, else 0. Since 0.3 */
  uint32_t dims[ACCX_MAX_RANK]; /* expression; NONE past rank */
} accx_type_t;
ACCX_ASSERT_SIZE(accx_type_t, 48);

/* Constants: weights and other immutable tensors. */
enum {
#define DEF_SOURCE(number, name, ...) ACCX_CONSTANT_##name = number,
#include "format/format.def"
  ACCX_CONSTANT_OPTIONAL = 3, /* reserved */
};
/* Binding flags of EXTERNAL constants. */
#define ACCX_BINDING_BY_NAME 1u /* any bytes of the right type will do: no digest is checked */
typedef struct accx_constant {
  uint32_t name; /* string, unique, may not be empty */
  uint32_t source;
  uint32_t dtype;
  uint32_t encoding;
  uint32_t rank;
  uint32_t component_first; /* COMPONENTS; exactly one (role DATA) for PLAIN and OPAQUE */
  uint32_t component_count;
  uint32_t group_elements;      /* as in accx_type_t */
  int64_t shape[ACCX_MAX_RANK]; /* 0 past rank */
  /* Since 0.3. A section of records that end here has file NONE and zeros; see
   * docs/accx-format.md. */
  uint32_t file;   /* EXTERNAL: FILES, or NONE: whatever is given at load; else NONE */
  uint32_t tensor; /* EXTERNAL: string: its name in the file; empty: the constant's own; else 0 */
  accx_digest_t digest;   /* EXTERNAL: of the components' bytes, one after another; else 0 */
  uint32_t binding_flags; /* EXTERNAL: ACCX_BINDING_*; else 0 */
  uint32_t reserved;
} accx_constant_t;
ACCX_ASSERT_SIZE(accx_constant_t, 128);
#define ACCX_CONSTANT_BYTES_0_1 96u /* a record of 0.1 and 0.2 */
_Static_assert(offsetof(accx_constant_t, file) == ACCX_CONSTANT_BYTES_0_1, "the first form");

enum {
#define DEF_ROLE(number, name, ...) ACCX_ROLE_##name = number,
#include "format/format.def"
};
typedef struct accx_component {
  uint32_t role;
  uint32_t dtype;
  uint64_t offset_bytes; /* within DATA, 256-aligned; PREPARED: 0 */
  uint64_t size_bytes;   /* PLAIN: exactly the product of shape and dtype size */
} accx_component_t;
ACCX_ASSERT_SIZE(accx_component_t, 24);

/* State: memory that lives in a session (a KV cache). Dimensions are module-scope expressions of
 * SESSION symbols. */
typedef struct accx_state {
  uint32_t name;  /* string, unique */
  uint32_t flags; /* 0 */
  accx_type_t type;
  uint64_t fill_pattern; /* value of every element at create and reset, in the low bytes */
} accx_state_t;
ACCX_ASSERT_SIZE(accx_state_t, 64);

enum {
#define DEF_FUNCTION_FLAG(bit, name, ...) ACCX_FUNCTION_##name = 1u << bit,
#include "format/format.def"
};
typedef struct accx_function {
  uint32_t name; /* string; several functions may have it, for different targets */
  uint32_t flags;
  uint64_t required_features;
  uint32_t argument_first; /* ARGUMENTS: inputs, then results */
  uint32_t input_count;
  uint32_t result_count;
  uint32_t slot_first; /* SLOTS */
  uint32_t slot_count;
  uint32_t expression_first; /* EXPRESSIONS: this function's scope */
  uint32_t expression_count;
  uint32_t body;            /* BLOCKS: the function's top block */
  uint32_t transient_size;  /* expression: bytes of the transient arena (memory values) */
  uint32_t transient_align; /* bytes, power of two, <= 4096 */
  uint32_t doc;             /* string */
  uint32_t target;          /* string: a driver's name; empty: for any. 0 (reserved) in 0.1 */
} accx_function_t;
ACCX_ASSERT_SIZE(accx_function_t, 64);

/* Arguments: inputs first, then results, in order of the signature. */
enum {
#define DEF_ARGUMENT(number, name, ...) ACCX_ARGUMENT_##name = number,
#include "format/format.def"
};
enum {
#define DEF_ALIAS(number, name, ...) ACCX_ALIAS_##name = number,
#include "format/format.def"
};
#define ACCX_ARGUMENT_FLAG_OPTIONAL 1u
typedef struct accx_argument {
  uint32_t name; /* string, unique among a function's inputs, and among its results */
  uint32_t kind;
  uint32_t flags;
  uint32_t symbol;      /* SCALAR: the symbol; else NONE */
  uint32_t alias_kind;  /* RESULT */
  uint32_t alias_input; /* RESULT: input index within the function; else NONE */
  uint32_t constant;    /* prepare functions: the constant read or made; else NONE */
  uint32_t doc;         /* string */
  accx_type_t type;     /* SCALAR: i64, rank 0 */
} accx_argument_t;
ACCX_ASSERT_SIZE(accx_argument_t, 80);

/* Slots: a function's binding table. Every storage a command touches is a slot. The slots of
 * arguments come first, one for each argument of the signature in order (SCALAR arguments too:
 * theirs may not be referenced). */
enum {
#define DEF_SLOT(number, name) ACCX_SLOT_##name = number,
#include "format/format.def"
};
typedef struct accx_slot {
  uint32_t kind;
  uint32_t index;     /* TRANSIENT: 0 */
  uint32_t component; /* CONSTANT: component within the constant; else 0 */
  uint32_t reserved;
} accx_slot_t;
ACCX_ASSERT_SIZE(accx_slot_t, 16);

/* A range of a slot. `size` is checked against the slot at plan time (constants) and at each call
 * (patched ones). */
typedef struct accx_range {
  uint32_t slot;
  uint32_t access; /* accrt kernel access: 1 read, 2 write, 3 both */
  uint32_t offset; /* expression, bytes */
  uint32_t size;   /* expression, bytes; NONE: to the end of the slot */
} accx_range_t;
ACCX_ASSERT_SIZE(accx_range_t, 16);

/* Shape and strides of a TENSOR parameter, expressions in the function's scope. */
typedef struct accx_view {
  uint32_t dtype;
  uint32_t rank;
  uint32_t shape[ACCX_MAX_RANK];   /* NONE past rank */
  uint32_t strides[ACCX_MAX_RANK]; /* elements; NONE past rank */
} accx_view_t;
ACCX_ASSERT_SIZE(accx_view_t, 72);

/* A block: consecutive commands. Blocks of one function nest by REPEAT and BRANCH; a block is used
 * exactly once. */
typedef struct accx_block {
  uint64_t offset_bytes; /* of the first command, within COMMANDS */
  uint32_t size_bytes;
  uint32_t command_count;
} accx_block_t;
ACCX_ASSERT_SIZE(accx_block_t, 16);

enum {
#define DEF_COMMAND(number, name, ...) ACCX_COMMAND_##name = number,
#define DEF_RESERVED_COMMAND(number, ...) ACCX_COMMAND_RESERVED_##number = number,
#include "format/format.def"
  ACCX_COMMAND_END,
  ACCX_COMMAND_VENDOR_FIRST = 0x8000,
};
#define ACCX_COMMAND_FLAG_REQUIRED 1u

/* Every command: this header, the opcode's own fields, then its predecessors: u32 indices of
 * earlier commands of the same block, ascending, then zero padding to 8 bytes. A command without
 * predecessors starts at once (after the block's entry). */
typedef struct accx_command {
  uint16_t opcode;
  uint16_t flags;
  uint32_t size_bytes; /* of the whole command, multiple of 8 */
  uint32_t name;       /* string: the operation's name, for traces and refusals; may be empty */
  uint32_t location;   /* LOCATIONS index or NONE */
  uint32_t predecessor_count;
  uint32_t reserved;
} accx_command_t;
ACCX_ASSERT_SIZE(accx_command_t, 24);

/* One kernel argument in a DISPATCH, in the order of the kernel's declared parameters. */
enum {
#define DEF_OPERAND(number, name, ...) ACCX_OPERAND_##name = number,
#include "format/format.def"
};
typedef struct accx_operand {
  uint32_t kind;
  /* SYMBOL; else NONE. A BUFFER whose slot is an optional argument passes NULL when it is
   * absent. */
  uint32_t expression;
  uint32_t view; /* TENSOR: index into VIEWS; else NONE */
  uint32_t reserved;
  accx_range_t range; /* BUFFER, TENSOR, WORKSPACE; else {NONE, 0, NONE, NONE} */
  uint64_t immediate; /* SCALAR; else 0 */
} accx_operand_t;
ACCX_ASSERT_SIZE(accx_operand_t, 40);

/* The own fields of commands: accx_dispatch_t, accx_copy_t, ...
 *
 * DISPATCH: after them come operand_count operands, then the predecessors.
 *
 * COPY: a strided copy of up to 3 dimensions of bytes. extent[0] is contiguous bytes. 1D: extent[1]
 * = extent[2] = a constant one and strides of a constant zero.
 *
 * CALL: runs another function of the bundle in place. Then one accx_operand_t for each of its
 * arguments in order: BUFFER ranges for tensors (whose type is what the callee declares), SYMBOL
 * for SCALAR arguments, ABSENT for optional ones. The callee's symbols: a SCALAR's by its operand;
 * every other symbol must be one the caller has too, by name. No recursion: the callee's index is
 * lower than the caller's.
 *
 * REPEAT: the body runs count times, in order; the iteration's number is INDUCTION of this
 * depth. */
#include "format/fields.h"

typedef struct accx_kernel {
  uint32_t name;            /* string, unique */
  uint32_t traits;          /* ACCRT_KERNEL_TRAIT_* */
  uint32_t parameter_first; /* PARAMETERS */
  uint32_t parameter_count;
  uint32_t params_size_bytes; /* of the packed block, <= 4096 */
  uint32_t local_memory_size_bytes;
  uint32_t variant_first; /* VARIANTS, in order of preference among equals */
  uint32_t variant_count;
} accx_kernel_t;
ACCX_ASSERT_SIZE(accx_kernel_t, 32);

typedef struct accx_parameter {
  uint32_t name;  /* string */
  uint8_t kind;   /* ACCRT_KERNEL_PARAM_* */
  uint8_t access; /* ACCRT_KERNEL_ACCESS_* */
  uint8_t flags;  /* ACCRT_KERNEL_PARAM_FLAG_* */
  uint8_t align_log2;
  uint32_t offset_bytes;
  uint32_t size_bytes;
} accx_parameter_t;
ACCX_ASSERT_SIZE(accx_parameter_t, 16);

enum {
#define DEF_ARCH(number, name, ...) ACCX_ARCH_##name = number,
#include "format/format.def"
  ACCX_ARCH_END,
};
typedef struct accx_variant {
  uint32_t driver;       /* string: "host", "cuda" */
  uint32_t arch_kind;    /* ACCX_ARCH_* */
  uint32_t arch;         /* string: "x86-64-v3", "aarch64", "sm_90" */
  int32_t priority;      /* higher first; then the more specific architecture, then table order */
  uint64_t cpu_features; /* ACCRT_CPU_*, all needed */
  uint64_t required_features;
  uint32_t image;           /* IMAGES */
  uint32_t entry;           /* string: kernel name inside the image */
  uint32_t predicate_first; /* PREDICATES: all must hold */
  uint32_t predicate_count;
} accx_variant_t;
ACCX_ASSERT_SIZE(accx_variant_t, 48);

enum {
#define DEF_PREDICATE(number, name, ...) ACCX_PREDICATE_##name = number,
#include "format/format.def"
  ACCX_PREDICATE_END,
};
/* Predicates on values are decided when the plan is made: a parameter that is patched at each call
 * does not satisfy EQUAL, AT_MOST or AT_LEAST unless its symbol's range proves it, nor DIVISIBLE
 * unless its divisor does. ALIGNED on a slot whose storage the caller gives is proved by the offset
 * and by the alignment that the call requires of arguments (16). */
typedef struct accx_predicate {
  uint32_t kind;
  uint32_t parameter; /* index among the kernel's parameters */
  int64_t value;
} accx_predicate_t;
ACCX_ASSERT_SIZE(accx_predicate_t, 16);

enum {
#define DEF_IMAGE(number, name, ...) ACCX_IMAGE_##name = number,
#include "format/format.def"
  ACCX_IMAGE_END,
};
typedef struct accx_image {
  uint32_t kind;
  uint32_t name;         /* string: for perf, gdb and messages */
  uint64_t offset_bytes; /* within CODE, 4096-aligned; PACK: 0 */
  uint64_t size_bytes;   /* PACK: 0 */
} accx_image_t;
ACCX_ASSERT_SIZE(accx_image_t, 24);

/* How device code is launched: one record for each variant whose image is CUBIN, PTX or FATBIN,
 * ascending by variant. Since 0.2; a variant without one (of a 0.1 file) is never chosen. */
typedef struct accx_launch {
  uint32_t variant; /* VARIANTS */
  uint32_t
      traits; /* ACCRT_KERNEL_TRAIT_COOPERATIVE, _OVERLAPS_PREVIOUS; the kernel has the others */
  uint32_t block[3];   /* threads of a workgroup in x, y, z */
  uint32_t cluster[3]; /* workgroups of a cluster; zeros: no clusters */
  uint32_t dynamic_shared_bytes;
  uint32_t reserved;
} accx_launch_t;
ACCX_ASSERT_SIZE(accx_launch_t, 40);

/* ---- Since 0.3 ---- */

/* Files that EXTERNAL constants are in, beside the bundle. */
enum {
#define DEF_FILE(number, name, ...) ACCX_FILE_##name = number,
#include "format/format.def"
  ACCX_FILE_END,
};
typedef struct accx_file {
  uint32_t name; /* string, strictly ascending: a bare file name */
  uint32_t kind;
  uint64_t size_bytes;  /* 0: any */
  accx_digest_t digest; /* of the whole file; zeros: not known */
  uint32_t flags;       /* 0 */
  uint32_t reserved;
} accx_file_t;
ACCX_ASSERT_SIZE(accx_file_t, 40);

/* How a constant is part of a tensor that several ranks share. */
enum {
#define DEF_SHARD(number, name) ACCX_SHARD_##name = number,
#include "format/format.def"
};
typedef struct accx_shard {
  uint32_t constant; /* strictly ascending */
  uint32_t kind;
  uint32_t axis;          /* SPLIT; else 0 */
  uint32_t degree;        /* number of ranks: the same in all records */
  int64_t extent;         /* SPLIT: of the full tensor along the axis; else 0 */
  uint32_t segment_first; /* SEGMENTS; REPLICATED: 0 */
  uint32_t segment_count; /* SPLIT: at least 1; else 0 */
} accx_shard_t;
ACCX_ASSERT_SIZE(accx_shard_t, 32);

/* A range of the full tensor along the axis, cut into degree / replicas equal parts. */
typedef struct accx_segment {
  int64_t begin;
  int64_t end;
  uint32_t replicas; /* at least 1, divides the degree */
  uint32_t reserved;
} accx_segment_t;
ACCX_ASSERT_SIZE(accx_segment_t, 24);

#define ACCX_ADAPTER_SCALED 1u /* alpha / rank is multiplied in while loading */
typedef struct accx_adapter {
  uint32_t slot;  /* string, strictly ascending: the tensor's name in an adapter file */
  uint32_t input; /* string: an OPTIONAL input of every function that has one so named */
  uint32_t flags; /* ACCX_ADAPTER_* */
  uint32_t reserved;
} accx_adapter_t;
ACCX_ASSERT_SIZE(accx_adapter_t, 16);

#define ACCX_TREE_SHA256 1u
#define ACCX_TREE_CHUNK_LOG2 20u
typedef struct accx_tree {
  uint32_t algorithm;
  uint32_t chunk_log2;
  uint8_t code_root[32];
  uint8_t weight_root[32];
  uint64_t reserved;
} accx_tree_t;
ACCX_ASSERT_SIZE(accx_tree_t, 80);

typedef struct accx_leaf {
  uint8_t bytes[32];
} accx_leaf_t;
ACCX_ASSERT_SIZE(accx_leaf_t, 32);

enum {
#define DEF_SCOPE(number, name) ACCX_SCOPE_##name = number,
#include "format/format.def"
};
#define ACCX_SIGNATURE_ED25519 1u
typedef struct accx_signature {
  uint32_t scope;
  uint32_t algorithm;
  uint8_t key[32];
  uint8_t signature[64];
  uint64_t reserved;
} accx_signature_t;
ACCX_ASSERT_SIZE(accx_signature_t, 112);

#define ACCX_ENCRYPTION_AES256_GCM 1u
#define ACCX_ENCRYPTION_AES256_GCM_BOUND 2u /* the code root is additional data */
typedef struct accx_encryption {
  uint32_t algorithm;
  uint32_t reserved;
  uint8_t key_id[16];
  uint8_t salt[32];
  uint64_t reserved_2;
} accx_encryption_t;
ACCX_ASSERT_SIZE(accx_encryption_t, 64);

typedef struct accx_tag {
  uint8_t bytes[16];
} accx_tag_t;
ACCX_ASSERT_SIZE(accx_tag_t, 16);

/* What travels with a model and is no tensor: a tokenizer, a license, where it comes from. */
typedef struct accx_asset {
  uint32_t name;         /* string, strictly ascending */
  uint32_t media_type;   /* string */
  uint64_t offset_bytes; /* within ASSET_DATA: the first multiple of 8 after the asset before it */
  uint64_t size_bytes;
  uint64_t reserved;
} accx_asset_t;
ACCX_ASSERT_SIZE(accx_asset_t, 32);

/* Where a command comes from: accx_command_t.location. */
typedef struct accx_location {
  uint32_t file;   /* string */
  uint32_t line;   /* from 1; 0: not known */
  uint32_t column; /* from 1; 0: not known */
  uint32_t name;   /* string: what it is in the source */
} accx_location_t;
ACCX_ASSERT_SIZE(accx_location_t, 16);

#endif /* ACCRT_FORMAT_FORMAT_H_ */
