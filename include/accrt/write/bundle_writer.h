/* accrt/write/bundle_writer.h - writes .accx bundles: what a compiler links to.
 *
 * Nothing here depends on devices or programs. Add the parts of a bundle to a writer, each after
 * those that it refers to, then write it, as often as you like. docs/accx-format.md specifies the
 * bytes; docs/bundle-writer.md explains by example. Encoding is canonical: the same content gives
 * the same bytes. The order in which symbols, constants, states, kernels, images, functions and
 * metadata were added does not matter. (The order of arguments, commands, variants and components
 * has a meaning: they keep the order of adding.)
 *
 * Ids. Each part that was added has an accrt_writer_id_t in that writer. 0 is no id: if a field
 *   says "or 0", its comment says what 0 means. An id of another kind, or an id that does not
 *   exist, is ACCRT_ERROR_INVALID_ARGUMENT.
 * Sizes. A size that may depend on symbols is the id of an expression: accrt_bundle_writer_integer
 *   for numbers, accrt_bundle_writer_add_symbol, accrt_bundle_writer_expression.
 * Strings are UTF-8, NUL-terminated, and copied. A name has 1 to 1023 bytes, any other string up to
 *   65535. NULL means "" unless the comment says otherwise. Arrays and structs are copied too.
 * Names for the numbers of fields are in accrt/kernel.h (data types, ACCRT_KERNEL_PARAM_*,
 *   _ACCESS_*, _TRAIT_*, ACCRT_CPU_*), accrt/bundle.h (ACCRT_SYMBOL_*, ACCRT_ARGUMENT_*) and
 *   accrt/layout.h (ACCRT_LAYOUT_*); accrt/accrt.h has them all. Reserved fields are 0; another
 *   value is ACCRT_ERROR_INVALID_ARGUMENT.
 * Bytes (weights, code, assets) are not copied. They are read in pieces while the bundle is
 *   written, and are never in memory as a whole. The data behind an accrt_writer_bytes_t must stay
 *   unchanged until the writer is released or will not write any more.
 * Failures. A function that fails has added nothing, and you can go on using the writer: a compiler
 *   may try one thing, and another if that is refused. Messages use the compiler's terms: they name
 *   the function, command, kernel or parameter. Beside the statuses in comments, every _add
 *   function may return ACCRT_ERROR_ALREADY_EXISTS (the name is taken), ACCRT_ERROR_OUT_OF_MEMORY
 *   and ACCRT_ERROR_OUT_OF_RANGE (a limit of the format; more than 2^24 parts of one kind).
 *   ACCRT_ERROR_INVALID_ARGUMENT is a mistake in the content. Some mistakes show only when all
 *   parts are there (a symbol without a value, a function that calls itself):
 *   accrt_bundle_writer_check reports them, and so do the functions that write, before they write a
 *   byte. A bundle that they accept can be opened.
 * Signing happens while a bundle is written (accrt_bundle_writer_set_signer), or afterwards as
 *   encrypting does: accrt_bundle_sign and accrt_bundle_encrypt of the written bundle
 *   (accrt/write/rewrite.h). Link libaccrt_write (accrt/write.h).
 * Threads. A writer is externally synchronized; different writers are independent. A writer needs
 *   no instance. Its callbacks (bytes, output, signer) may not call functions of the same writer:
 *   they get ACCRT_ERROR_INVALID_STATE, as a second thread does.
 * Handles. The option validate.handles does not know writers; they are always checked. A function
 *   gets ACCRT_ERROR_INVALID_ARGUMENT for a writer that was released, and for another handle in
 *   place of a writer. This is so while the process has at most 256 writers, and while no new
 *   writer has the address of the released one.
 */
#ifndef ACCRT_WRITE_BUNDLE_WRITER_H_
#define ACCRT_WRITE_BUNDLE_WRITER_H_

#include "accrt/instance.h"
#include "accrt/layout.h"

ACCRT_BEGIN

typedef struct accrt_bundle_writer accrt_bundle_writer_t;
typedef uint32_t accrt_writer_id_t;

/** Options of accrt_bundle_writer_create. */
typedef struct accrt_bundle_writer_options {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  const accrt_chain_t* next;
  const accrt_allocator_t* allocator; /**< copied; NULL: the C library's */
  /** What the readers of the bundle can do, from accrt_caps_parse and the output of `accx caps
   * --json` on their machine. Copied. If the readers lack a feature, the writer uses an older
   * encoding with the same meaning if there is one, or else refuses the feature by name before it
   * writes anything (docs/contract.md, "Writing for a target"). NULL: any reader. */
  const accrt_caps_t* target;
} accrt_bundle_writer_options_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_writer_options_t, target, 32);
#define ACCRT_BUNDLE_WRITER_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_bundle_writer_options_t)

/** Makes a writer with an empty bundle. The caller owns it.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Never blocks. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_create(const accrt_bundle_writer_options_t* options,
                                                    accrt_bundle_writer_t** out_writer);
/** Drops the writer and all that was added; NULL is allowed. While a function is in the writer (in
 * a callback of it, or on another thread) it records ACCRT_ERROR_INVALID_STATE and drops nothing.
 * A second release records ACCRT_ERROR_INVALID_ARGUMENT. Since: 0.3 */
ACCRT_API void accrt_bundle_writer_release(accrt_bundle_writer_t* writer);

/* ---- Text ---- */

/** Adds a key and a value, such as a license or provenance, which a reader may ignore.
 * @param key a name. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_metadata(accrt_bundle_writer_t* writer,
                                                          const char* key, const char* value);
/** Stores a string for the bytes of a raw section or command that refer to it. A repeated call does
 * no harm. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_string(accrt_bundle_writer_t* writer,
                                                        const char* text);
/** Sets the file's feature bits that a reader may ignore. Required bits follow from the content.
 * Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_set_optional_features(accrt_bundle_writer_t* writer,
                                                                   uint64_t features);

/* ---- Symbols and expressions ---- */

/** A shape symbol. */
typedef struct accrt_writer_symbol {
  uint32_t struct_size;
  uint32_t symbol_class; /**< ACCRT_SYMBOL_*: 0 SPECIALIZE, 1 BUCKET, 2 RUNTIME, 3 SESSION */
  const accrt_chain_t* next;
  const char* name; /**< a name, unique among symbols */
  int64_t minimum;  /**< at least 0 */
  int64_t maximum;  /**< at most 2^48; 0: 2^48 */
  int64_t divisor;  /**< every value is a multiple; 0: 1 */
  /** BUCKET: bounds, ascending from at least 1 to at least the maximum; others: NULL */
  const int64_t* buckets;
  uint32_t bucket_count;
  uint32_t flags; /**< ACCRT_WRITER_SYMBOL_* */
} accrt_writer_symbol_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_symbol_t, flags, 64);
#define ACCRT_WRITER_SYMBOL_INIT ACCRT_STRUCT_INIT(accrt_writer_symbol_t)
#define ACCRT_WRITER_SYMBOL_ZERO_MAXIMUM 1u /**< the maximum is really 0 */

/** Adds a symbol. An input with the bare symbol as a dimension, or a SCALAR, gives it a value. A
 * SESSION symbol gets its value when a session is made.
 * @param out_id its value, as an expression. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_symbol(accrt_bundle_writer_t* writer,
                                                        const accrt_writer_symbol_t* symbol,
                                                        accrt_writer_id_t* out_id);

/* operations: made of format/format.def */
#define ACCRT_EXPR_CONSTANT 0u  /**< accrt_bundle_writer_integer */
#define ACCRT_EXPR_SYMBOL 1u    /**< accrt_bundle_writer_add_symbol */
#define ACCRT_EXPR_INDUCTION 2u /**< accrt_bundle_writer_induction */
#define ACCRT_EXPR_ADD 3u
#define ACCRT_EXPR_SUB 4u /**< a - b */
#define ACCRT_EXPR_MUL 5u
#define ACCRT_EXPR_FLOORDIV 6u /**< a / b, rounded down */
#define ACCRT_EXPR_CEILDIV 7u  /**< a / b, rounded up */
#define ACCRT_EXPR_MOD 8u      /**< a - b * floor(a / b): has the sign of b */
#define ACCRT_EXPR_MIN 9u
#define ACCRT_EXPR_MAX 10u
#define ACCRT_EXPR_EQ 11u /**< comparisons give 1 or 0 */
#define ACCRT_EXPR_NE 12u
#define ACCRT_EXPR_LT 13u /**< a < b */
#define ACCRT_EXPR_LE 14u
#define ACCRT_EXPR_AND 15u /**< logical, 1 or 0; if a decides, b may fail */
#define ACCRT_EXPR_OR 16u
#define ACCRT_EXPR_NOT 17u     /**< of a */
#define ACCRT_EXPR_SELECT 18u  /**< b if a is not 0, else c; the other one may fail */
#define ACCRT_EXPR_PRESENT 19u /**< accrt_bundle_writer_present */
/* operations: end */

/** A number as an expression. Equal expressions have equal ids. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_integer(accrt_bundle_writer_t* writer, int64_t value,
                                                     accrt_writer_id_t* out_id);
/** Makes an operation on expressions, in checked signed 64-bit arithmetic. Overflow, division by
 * zero and symbols without a value are errors when the expression is used. Nothing is simplified.
 * @param op ACCRT_EXPR_ADD to _SELECT.
 * @param a,b,c operands; 0: the operation has no such operand. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_expression(accrt_bundle_writer_t* writer, uint32_t op,
                                                        accrt_writer_id_t a, accrt_writer_id_t b,
                                                        accrt_writer_id_t c,
                                                        accrt_writer_id_t* out_id);
/** The number of the current iteration of the repeat at nesting depth `depth` (0: the outermost;
 * below 16). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_induction(accrt_bundle_writer_t* writer,
                                                       uint32_t depth, accrt_writer_id_t* out_id);
/** An expression that is 1 if a call has the optional input, else 0. Use it in the input's
 * function.
 * @param input from accrt_bundle_writer_add_argument. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_present(accrt_bundle_writer_t* writer,
                                                     accrt_writer_id_t input,
                                                     accrt_writer_id_t* out_id);

/* ---- Bytes ---- */

#define ACCRT_WRITER_BYTES_MEMORY 0u /**< `data` */
/** `fd` from `offset` on; read with pread, its position stays */
#define ACCRT_WRITER_BYTES_FILE 1u
#define ACCRT_WRITER_BYTES_READER 2u /**< `read` */
/** Bytes that are read while a bundle is written. Frozen. */
typedef struct accrt_writer_bytes {
  uint64_t size_bytes;
  uint32_t kind;   /**< ACCRT_WRITER_BYTES_* */
  int32_t fd;      /**< FILE: the caller keeps it, and keeps it open */
  uint64_t offset; /**< FILE */
  const void* data;
  /** Fills exactly size_bytes from `offset` of these bytes on and returns 0, or an errno value. It
   * is called on the thread that writes, in ascending order from 0. A function that reads twice
   * starts again at 0, and must get the same bytes. */
  int32_t (*read)(void* self, uint64_t offset, void* target, uint64_t size_bytes);
  void* self;
} accrt_writer_bytes_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_bytes_t, self, 48);

/* ---- Constants and states ---- */

/* sources: made of format/format.def */
#define ACCRT_CONSTANT_INLINE 0u   /**< bytes in the bundle */
#define ACCRT_CONSTANT_PREPARED 1u /**< made at load, by a prepare function */
#define ACCRT_CONSTANT_EXTERNAL 2u /**< bytes in another file, given when a program is made */
/* sources: end */
/** One component of a constant. Frozen. */
typedef struct accrt_writer_component {
  uint32_t role;              /**< ACCRT_LAYOUT_ROLE_*, ascending: those of docs/layouts.md */
  accrt_dtype_t dtype;        /**< of its elements; 0: the constant's */
  accrt_writer_bytes_t bytes; /**< PREPARED, EXTERNAL: only the size */
} accrt_writer_component_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_component_t, bytes, 56);

/** EXTERNAL: bound by name only; the digest is zero and not checked */
#define ACCRT_BINDING_BY_NAME 1u
/** A weight or another immutable tensor. */
typedef struct accrt_writer_constant {
  uint32_t struct_size;
  uint32_t source; /**< ACCRT_CONSTANT_* */
  const accrt_chain_t* next;
  const char* name;        /**< a name, unique among constants */
  accrt_dtype_t dtype;     /**< logical type of the elements; quantized: F32, F16 or BF16 */
  uint32_t encoding;       /**< ACCRT_LAYOUT_* */
  uint32_t group_elements; /**< layouts with a free group size; else 0 */
  uint32_t rank;
  int64_t shape[8];
  /** PLAIN and OPAQUE: one, of role DATA; else the layout's */
  const accrt_writer_component_t* components;
  uint32_t component_count;
  accrt_writer_id_t file; /**< EXTERNAL: accrt_bundle_writer_add_file, or 0: any source at load */
  const char* tensor;     /**< EXTERNAL: its name there; NULL: the constant's */
  /** EXTERNAL: XXH3-128 (canonical bytes) of the components' bytes, one after another; zeros only
   * with BY_NAME */
  unsigned char digest[16];
  uint32_t binding_flags; /**< EXTERNAL: ACCRT_BINDING_* */
  uint32_t reserved;      /**< 0 */
} accrt_writer_constant_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_constant_t, reserved, 152);
#define ACCRT_WRITER_CONSTANT_INIT ACCRT_STRUCT_INIT(accrt_writer_constant_t)
/** Adds a constant. The sizes of its components must fit shape and encoding:
 * accrt_layout_component_size (accrt/layout.h) gives them. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_constant(accrt_bundle_writer_t* writer,
                                                          const accrt_writer_constant_t* constant,
                                                          accrt_writer_id_t* out_id);

/* files: made of format/format.def */
#define ACCRT_FILE_ACCX 1u
#define ACCRT_FILE_SAFETENSORS 2u
#define ACCRT_FILE_GGUF 3u
/* files: end */
/** Adds a file that holds EXTERNAL constants.
 * @param name the bare file name, unique among files.
 * @param kind ACCRT_FILE_*.
 * @param size_bytes of the file; 0: any.
 * @param digest 16 bytes, XXH3-128 of the whole file; NULL: not known. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_file(accrt_bundle_writer_t* writer,
                                                      const char* name, uint32_t kind,
                                                      uint64_t size_bytes,
                                                      const unsigned char* digest,
                                                      accrt_writer_id_t* out_id);

/* shards: made of format/format.def */
#define ACCRT_SHARD_REPLICATED 0u
#define ACCRT_SHARD_SPLIT 1u
/* shards: end */
/** A part of a split axis that is divided among the ranks separately. Frozen. */
typedef struct accrt_writer_segment {
  int64_t begin; /**< in the full tensor, along the axis */
  int64_t end;
  uint32_t replicas; /**< ranks that share a part; at least 1, divides the degree */
  uint32_t reserved; /**< 0 */
} accrt_writer_segment_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_segment_t, reserved, 24);
/** Says which part of a full tensor a constant is; the constant has the shape of one rank's part.
 * If any constant has a shard, every EXTERNAL constant needs one.
 * @param kind ACCRT_SHARD_*. REPLICATED: each rank has all of it; axis, extent and segments are 0
 *   and NULL.
 * @param degree number of ranks, the same for all shards.
 * @param extent elements of the full tensor along `axis`.
 * @param segments cover [0, extent) in order; each is cut into degree / replicas equal parts. SPLIT
 *   has at least one. accrt_bundle_writer_check finds shards that do not fit together.
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_shard(accrt_bundle_writer_t* writer,
                                                       accrt_writer_id_t constant, uint32_t kind,
                                                       uint32_t axis, uint32_t degree,
                                                       int64_t extent,
                                                       const accrt_writer_segment_t* segments,
                                                       uint32_t segment_count);
#define ACCRT_ADAPTER_SCALED 1u /**< multiply by alpha / rank while loading */
/** Names the tensor of an adapter file that an optional input takes.
 * @param slot name of the tensor, unique among adapters.
 * @param input name of the input. It must be optional in every function that has an input of that
 *   name.
 * @param flags ACCRT_ADAPTER_*. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_adapter(accrt_bundle_writer_t* writer,
                                                         const char* slot, const char* input,
                                                         uint32_t flags);

/** A tensor type. Frozen. */
typedef struct accrt_writer_type {
  accrt_dtype_t dtype;
  uint32_t encoding;       /**< ACCRT_LAYOUT_* */
  uint32_t group_elements; /**< layouts with a free group size; else 0 */
  uint32_t rank;
  accrt_writer_id_t dims[8]; /**< expressions; numbers are 0 to 2^48 */
} accrt_writer_type_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_type_t, dims, 48);

/** Memory that lives in a session. */
typedef struct accrt_writer_state {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  const accrt_chain_t* next;
  const char* name;         /**< a name, unique among states */
  accrt_writer_type_t type; /**< PLAIN; dimensions of SESSION symbols */
  uint64_t fill_pattern;    /**< bits of every element when a session is made or reset */
} accrt_writer_state_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_state_t, fill_pattern, 80);
#define ACCRT_WRITER_STATE_INIT ACCRT_STRUCT_INIT(accrt_writer_state_t)
/** Adds a state. @param out_id for accrt_bundle_writer_slot. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_state(accrt_bundle_writer_t* writer,
                                                       const accrt_writer_state_t* state,
                                                       accrt_writer_id_t* out_id);

/* ---- Kernels and code ---- */

/* images: made of format/format.def */
#define ACCRT_IMAGE_HOST_ELF 1u
#define ACCRT_IMAGE_CUBIN 2u
#define ACCRT_IMAGE_PTX 3u /**< ends with a NUL */
#define ACCRT_IMAGE_FATBIN 4u
/** no bytes: the name of an installed kernel pack (letters, digits, '.', '_', '-') */
#define ACCRT_IMAGE_PACK 5u
/* images: end */
/** Adds code.
 * @param name a name, unique among images; shown by perf, gdb and messages.
 * @param bytes not empty; PACK: NULL. A kernel pack that was added before gives the same id.
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_image(accrt_bundle_writer_t* writer,
                                                       const char* name, uint32_t kind,
                                                       const accrt_writer_bytes_t* bytes,
                                                       accrt_writer_id_t* out_id);

/** One declared parameter of a kernel (accrt/kernel.h). Frozen. */
typedef struct accrt_writer_parameter {
  const char* name;      /**< a name, unique in the kernel */
  uint32_t kind;         /**< ACCRT_KERNEL_PARAM_BUFFER, _TENSOR, _SCALAR, _SYMBOL, _WORKSPACE */
  uint32_t access;       /**< ACCRT_KERNEL_ACCESS_*; WORKSPACE: 0 is READ_WRITE */
  uint32_t flags;        /**< ACCRT_KERNEL_PARAM_FLAG_OPTIONAL */
  uint32_t size_bytes;   /**< SCALAR: 1, 2, 4 or 8; others: 0 */
  uint32_t offset_bytes; /**< in the parameter block; 0: where C puts the next member */
  uint32_t align_bytes;  /**< of the offset; 0: the size's, at most 8 */
} accrt_writer_parameter_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_parameter_t, align_bytes, 32);
/** A kernel. */
typedef struct accrt_writer_kernel {
  uint32_t struct_size;
  uint32_t traits; /**< ACCRT_KERNEL_TRAIT_*, without those of launches */
  const accrt_chain_t* next;
  const char* name;                           /**< a name, unique among kernels */
  const accrt_writer_parameter_t* parameters; /**< in the order of the packed block; at most 64 */
  uint32_t parameter_count;
  uint32_t params_size_bytes; /**< of the block; 0: what the parameters need */
  uint32_t local_memory_bytes;
  uint32_t reserved; /**< 0 */
} accrt_writer_kernel_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_kernel_t, reserved, 48);
#define ACCRT_WRITER_KERNEL_INIT ACCRT_STRUCT_INIT(accrt_writer_kernel_t)
/** Adds a kernel without variants. It needs at least one when the bundle is written. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_kernel(accrt_bundle_writer_t* writer,
                                                        const accrt_writer_kernel_t* kernel,
                                                        accrt_writer_id_t* out_id);

/* predicates: made of format/format.def */
#define ACCRT_PREDICATE_DIVISIBLE 1u /**< a SYMBOL or SCALAR is a multiple of `value` */
/** the address of a BUFFER or TENSOR is a multiple of it; a power of two up to 4096 */
#define ACCRT_PREDICATE_ALIGNED 2u
#define ACCRT_PREDICATE_EQUAL 3u
#define ACCRT_PREDICATE_AT_MOST 4u
#define ACCRT_PREDICATE_AT_LEAST 5u
/* predicates: end */
/** A condition of a variant. Frozen. */
typedef struct accrt_writer_predicate {
  const char* parameter; /**< of the kernel, by name */
  uint32_t kind;         /**< ACCRT_PREDICATE_* */
  uint32_t reserved;     /**< 0 */
  int64_t value;
} accrt_writer_predicate_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_predicate_t, value, 24);

/** device code of a file for container 0.1; it is never chosen */
#define ACCRT_WRITER_VARIANT_NO_LAUNCH 1u
/** An implementation of a kernel. */
typedef struct accrt_writer_variant {
  uint32_t struct_size;
  uint32_t arch_kind; /**< ACCRT_ARCH_* */
  const accrt_chain_t* next;
  const char* driver;      /**< "host", "cuda"; NULL: "host" */
  const char* arch;        /**< "x86-64-v3", "sm_90"; may be empty for PORTABLE alone */
  const char* entry;       /**< name in the image; NULL: the kernel's */
  accrt_writer_id_t image; /**< HOST_ELF or PACK for the driver "host" */
  /** highest first; then the most specific architecture, then the order of adding */
  int32_t priority;
  uint64_t cpu_features;      /**< ACCRT_CPU_*, all needed */
  uint64_t required_features; /**< of the format, beside those that follow from the content */
  const accrt_writer_predicate_t* predicates; /**< all must hold; in any order */
  uint32_t predicate_count;
  uint32_t flags; /**< ACCRT_WRITER_VARIANT_* */
  /** device code: threads of a workgroup, at most 1024; 0 after the first: 1. Others: zeros */
  uint32_t block[3];
  uint32_t cluster[3]; /**< workgroups of a cluster, at most 64; zeros: none */
  uint32_t dynamic_shared_bytes;
  uint32_t launch_traits; /**< ACCRT_KERNEL_TRAIT_COOPERATIVE, _OVERLAPS_PREVIOUS */
} accrt_writer_variant_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_variant_t, launch_traits, 112);
#define ACCRT_WRITER_VARIANT_INIT ACCRT_STRUCT_INIT(accrt_writer_variant_t)
/** Adds a variant to a kernel. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_variant(accrt_bundle_writer_t* writer,
                                                         accrt_writer_id_t kernel,
                                                         const accrt_writer_variant_t* variant);

/* ---- Functions ---- */

/** runs at load: reads INLINE and EXTERNAL constants, makes PREPARED ones; cannot be called */
#define ACCRT_FUNCTION_PREPARE 1u
#define ACCRT_FUNCTION_INTERNAL 2u /**< only commands of the bundle can call it */
/** A function. */
typedef struct accrt_writer_function {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_FUNCTION_* */
  const accrt_chain_t* next;
  /** a name; functions of one name have different targets and the same signature */
  const char* name;
  const char* doc;
  const char* target;         /**< a driver's name: a version for its devices; NULL: any */
  uint64_t required_features; /**< of the format, beside those that follow from the content */
} accrt_writer_function_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_function_t, required_features, 48);
#define ACCRT_WRITER_FUNCTION_INIT ACCRT_STRUCT_INIT(accrt_writer_function_t)
/** Adds a function without arguments and commands. @param out_body its block. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_function(accrt_bundle_writer_t* writer,
                                                          const accrt_writer_function_t* function,
                                                          accrt_writer_id_t* out_id,
                                                          accrt_writer_id_t* out_body);

/** An argument. Inputs and results are each in the order of adding. */
typedef struct accrt_writer_argument {
  uint32_t struct_size;
  /** ACCRT_ARGUMENT_* (accrt/bundle.h): 0 READ, 1 READ_WRITE, 2 DONATED, 3 RESULT, 4 SCALAR */
  uint32_t kind;
  const accrt_chain_t* next;
  const char* name; /**< a name, unique among the inputs, or among the results */
  const char* doc;
  accrt_writer_type_t type; /**< SCALAR, or with `constant`: zeros, because the type follows */
  uint32_t optional;        /**< 1: the caller may leave it out; not in prepare functions */
  accrt_writer_id_t symbol; /**< SCALAR: the symbol that gets its value; else 0 */
  uint32_t alias_kind;      /**< RESULT: 0 none, 1 may, 2 must share the storage of `alias_input` */
  accrt_writer_id_t alias_input; /**< a READ_WRITE or DONATED input, for at most one result; or 0 */
  /** prepare functions: the constant that is read (INLINE, EXTERNAL; kind READ) or made (PREPARED;
   * kind RESULT); else 0 */
  accrt_writer_id_t constant;
  uint32_t reserved; /**< 0 */
} accrt_writer_argument_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_argument_t, reserved, 104);
#define ACCRT_WRITER_ARGUMENT_INIT ACCRT_STRUCT_INIT(accrt_writer_argument_t)
/** Adds an argument.
 * @param out_slot its slot, for ranges (a SCALAR has none). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_argument(accrt_bundle_writer_t* writer,
                                                          accrt_writer_id_t function,
                                                          const accrt_writer_argument_t* argument,
                                                          accrt_writer_id_t* out_slot);
/** The slot of a constant's component, or of a state, in a function. Repeated calls give the same
 * id.
 * @param target constant or state.
 * @param component index among the constant's; 0 for a state. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_slot(accrt_bundle_writer_t* writer,
                                                  accrt_writer_id_t function,
                                                  accrt_writer_id_t target, uint32_t component,
                                                  accrt_writer_id_t* out_slot);
/** The slot of a function's arena: memory during one call. Call it again to set the size later.
 * @param size_bytes an expression of symbols and of accrt_bundle_writer_present; 0: do not change
 *   the size.
 * @param align_bytes a power of two up to 4096; 0: 256. Only checked without a size. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_arena(accrt_bundle_writer_t* writer,
                                                   accrt_writer_id_t function,
                                                   accrt_writer_id_t size_bytes,
                                                   uint32_t align_bytes,
                                                   accrt_writer_id_t* out_slot);

/* ---- Commands ---- */

/** Bytes of a slot, and how a command accesses them. Frozen. */
typedef struct accrt_writer_range {
  accrt_writer_id_t slot; /**< of the same function */
  uint32_t access; /**< ACCRT_KERNEL_ACCESS_*; 0: what the parameter, argument or opcode needs */
  accrt_writer_id_t offset; /**< expression, bytes; 0: from its start */
  accrt_writer_id_t size;   /**< expression, bytes; 0: to its end */
} accrt_writer_range_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_range_t, size, 16);

/* operands: made of format/format.def */
#define ACCRT_OPERAND_BUFFER 1u    /**< range; kinds have the numbers of parameter kinds */
#define ACCRT_OPERAND_TENSOR 2u    /**< range, dtype, rank, shape, strides */
#define ACCRT_OPERAND_SCALAR 3u    /**< bits */
#define ACCRT_OPERAND_SYMBOL 4u    /**< value */
#define ACCRT_OPERAND_WORKSPACE 5u /**< range of the arena */
#define ACCRT_OPERAND_ABSENT 6u    /**< nothing; the same as no operand */
/* operands: end */
/** The value of a kernel's parameter (an operand of the same kind), or of a function's argument
 * (BUFFER for tensors and results, SYMBOL for scalars). Frozen. */
typedef struct accrt_writer_operand {
  /** of the parameter or argument; NULL: the one of the same index (inputs, then results). If an
   * input and a result have the same name, use NULL */
  const char* name;
  uint32_t kind;              /**< ACCRT_OPERAND_* */
  accrt_writer_id_t value;    /**< SYMBOL: an expression */
  accrt_writer_range_t range; /**< BUFFER, TENSOR, WORKSPACE */
  uint64_t bits;              /**< SCALAR: little-endian, in the low bytes, the others 0 */
  accrt_dtype_t dtype;        /**< TENSOR: this field and those below */
  uint32_t rank;
  accrt_writer_id_t shape[8];
  accrt_writer_id_t strides[8]; /**< in elements; all 0: row-major */
} accrt_writer_operand_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_operand_t, strides, 112);

/* opcodes: made of format/format.def */
#define ACCRT_OPCODE_DISPATCH 1u
#define ACCRT_OPCODE_COPY 2u
#define ACCRT_OPCODE_FILL 3u
#define ACCRT_OPCODE_BARRIER 4u
#define ACCRT_OPCODE_CALL 5u
#define ACCRT_OPCODE_REPEAT 6u
#define ACCRT_OPCODE_BRANCH 7u
#define ACCRT_OPCODE_MARKER 8u
/* opcodes: end */
/** A command. Fields that its opcode does not use are zero; other values are
 * ACCRT_ERROR_INVALID_ARGUMENT. Fields without an opcode in their comment belong to every
 * command. */
typedef struct accrt_writer_command {
  uint32_t struct_size;
  uint32_t opcode; /**< ACCRT_OPCODE_*; any other: `raw` */
  const accrt_chain_t* next;
  const char* name; /**< for traces and messages; NULL: the kernel's or function's name, else "" */
  /** earlier commands of the same block, in any order; BARRIER: none */
  const accrt_writer_id_t* after;
  uint32_t after_count;
  accrt_writer_id_t location; /**< accrt_bundle_writer_add_location, or 0 */
  accrt_writer_id_t target;   /**< DISPATCH: the kernel; CALL: the function */
  accrt_writer_id_t grid[3];  /**< DISPATCH: workgroups; 0: 1 */
  /** DISPATCH, CALL: in any order; missing ones are absent */
  const accrt_writer_operand_t* operands;
  uint32_t operand_count;
  /** REPEAT: how often; BRANCH: the condition. No BUCKET or RUNTIME symbols */
  accrt_writer_id_t value;
  accrt_writer_range_t source;        /**< COPY: read; without a size */
  accrt_writer_range_t destination;   /**< COPY, without a size, and FILL: written */
  accrt_writer_id_t extent[3];        /**< COPY: bytes, rows, planes; 0 after the first: 1 */
  accrt_writer_id_t source_stride[2]; /**< COPY: bytes between rows, between planes; 0: 0 */
  accrt_writer_id_t destination_stride[2];
  uint32_t pattern_bytes; /**< FILL: 1, 2, 4 or 8; 0: 1 */
  uint64_t pattern;       /**< FILL */
  const char* text;       /**< MARKER */
  /** An opcode that this library does not know: the bytes of its fields, copied. */
  const void* raw;
  uint32_t raw_size_bytes; /**< of `raw`: a multiple of 8 */
  uint32_t flags;          /**< of an unknown opcode: ACCRT_WRITER_COMMAND_* */
} accrt_writer_command_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_command_t, flags, 168);
/** For an opcode that this library does not know. With the flag, readers that do not know it may
 * not skip the command: the function must then have a required feature that this library does not
 * know; a reader without that feature opens the file but refuses to call the function. Without the
 * flag, such readers skip the command. */
#define ACCRT_WRITER_COMMAND_REQUIRED 1u
#define ACCRT_WRITER_COMMAND_INIT ACCRT_STRUCT_INIT(accrt_writer_command_t)
/** Adds a command to a block. The command starts when the commands in `after`, and all commands
 * before the last BARRIER, have ended; without either, when the block starts. Commands that access
 * the same bytes without such an order may run at the same time.
 * @param out_id may be the memory that `after` points to. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_command(accrt_bundle_writer_t* writer,
                                                         accrt_writer_id_t block,
                                                         const accrt_writer_command_t* command,
                                                         accrt_writer_id_t* out_id);
/** A block of a REPEAT (index 0: the body) or a BRANCH (0: if the condition is not 0; 1: else), for
 * accrt_bundle_writer_add_command. Empty blocks of a BRANCH are left out. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_block(accrt_bundle_writer_t* writer,
                                                   accrt_writer_id_t command, uint32_t index,
                                                   accrt_writer_id_t* out_block);

/* ---- Locations, assets and raw sections ---- */

/** Adds a place in the compiler's source that commands come from. The same place gives the same id.
 * The message of a failed call names it.
 * @param line, column from 1; 0: not known.
 * @param name of the thing at that place, or NULL. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_location(accrt_bundle_writer_t* writer,
                                                          const char* file, uint32_t line,
                                                          uint32_t column, const char* name,
                                                          accrt_writer_id_t* out_id);
/** Adds an asset: a file inside the bundle that the library does not interpret (a tokenizer, a
 * license).
 * @param name a name, unique among assets. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_asset(accrt_bundle_writer_t* writer,
                                                       const char* name, const char* media_type,
                                                       const accrt_writer_bytes_t* bytes);

/** A section as bytes. */
typedef struct accrt_writer_section {
  uint32_t struct_size;
  /** 0x10000 and up: a vendor's; else a type that the writer does not make itself */
  uint32_t type;
  const accrt_chain_t* next;
  const char* name;      /**< 1 to 16 characters of printable ASCII without spaces */
  uint32_t record_bytes; /**< 0: not of records */
  uint32_t record_count;
  accrt_writer_bytes_t bytes; /**< not empty */
  uint32_t flags;             /**< ACCRT_WRITER_SECTION_*. Since 0.4 */
  uint32_t reserved;          /**< 0 */
} accrt_writer_section_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_section_t, reserved, 88);
/** Only for a type that this library does not know. A reader that does not know the type refuses
 * the file. */
#define ACCRT_WRITER_SECTION_REQUIRED 1u
#define ACCRT_WRITER_SECTION_INIT ACCRT_STRUCT_INIT(accrt_writer_section_t)
/** Adds a section byte for byte: one that this library does not know (readers may ignore it), or
 * one about the finished file (tree, leaves, signatures, encryption, tags: docs/accx-format.md).
 * With a section `encryption` you may add `data` (63) too, of the size that the constants need: it
 * replaces their bytes, and has the encrypted zeros between them. Offsets of strings in a section
 * stay valid only while the bundle's strings stay the same. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_add_section(accrt_bundle_writer_t* writer,
                                                         const accrt_writer_section_t* section);

/* ---- Signing ---- */

/** Signs a bundle while it is written. Frozen. */
typedef struct accrt_writer_signer {
  void* self;
  /** Makes the 64 bytes of the Ed25519 signature of `message` and returns 0, or an errno value,
   * which ends the writing. The writer calls it on the thread that writes: once for the code, and
   * once for the weights if there are any. NULL: nothing is signed, but the code root is made. */
  int32_t (*sign)(void* self, const void* message, uint64_t size_bytes,
                  unsigned char* out_signature);
  unsigned char public_key[32];
} accrt_writer_signer_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_signer_t, public_key, 48);
/** Says who signs the bundles that are written from now on. A bundle for a target that knows no
 * signatures is not signed. A bundle that has its tree, signatures or encryption as sections of
 * bytes cannot be signed: the functions that write it fail with ACCRT_ERROR_INVALID_ARGUMENT.
 * @param signer copied; `self` must stay until nothing more is written. NULL: no signature, and no
 *   code root is made.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (writer is NULL); ACCRT_ERROR_OUT_OF_MEMORY. After
 *   a failure the signer is as before. May load libcrypto. Since: 0.4 */
ACCRT_API accrt_status_t accrt_bundle_writer_set_signer(accrt_bundle_writer_t* writer,
                                                        const accrt_writer_signer_t* signer);
/** The code root of the bundle that was last written or checked: SHA-256 over all that says what
 * runs (docs/accx-format.md). The signature of the code signs this root.
 * @param out_root 32 bytes; zeros after a failure.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (NULL); ACCRT_ERROR_INVALID_STATE (nothing was
 *   written or checked since a signer was set). Never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_bundle_writer_code_root(accrt_bundle_writer_t* writer,
                                                       unsigned char* out_root);

/* ---- Writing ---- */

/** What the writer would write. */
typedef struct accrt_writer_summary {
  uint32_t struct_size;
  uint32_t section_count;
  void* next; /**< NULL */
  uint64_t size_bytes;
  uint64_t data_size_bytes;                  /**< weights */
  uint16_t container_major, container_minor; /**< the lowest version that can read it */
  uint16_t commands_major, commands_minor;
  uint16_t kernel_abi_major, kernel_abi_minor;
  uint16_t layouts_major, layouts_minor;
} accrt_writer_summary_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_summary_t, layouts_minor, 48);
#define ACCRT_WRITER_SUMMARY_INIT ACCRT_STRUCT_INIT(accrt_writer_summary_t)
/** Makes all checks without writing. It reads the code but not the weights.
 * @param out_summary may be NULL.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (the message says what is wrong, and where);
 *   ACCRT_ERROR_UNSUPPORTED (what the target cannot do, by name); ACCRT_ERROR_OUT_OF_RANGE (a limit
 *   of the format); ACCRT_ERROR_IO (from the source of code); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_check(accrt_bundle_writer_t* writer,
                                                   accrt_writer_summary_t* out_summary);

/** Writes the bundle to a file. It writes a new file beside `path` and renames it when it is
 * complete. It reads weights once, 1 MiB at a time, and code three times. On failure it leaves no
 * new file, and the file at `path` stays. Blocks on the files.
 * @return as accrt_bundle_writer_check; ACCRT_ERROR_IO (errno in driver_code). You can go on using
 *   the writer in any case. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_write_path(accrt_bundle_writer_t* writer,
                                                        const char* path);
/** Writes the bundle to a file descriptor, from its position on. Afterwards the position is the
 * bundle's end. A descriptor without a position (a pipe) is written in order, and weights are read
 * twice. After a failure, the bytes written so far stay. Otherwise as
 * accrt_bundle_writer_write_path. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_write_fd(accrt_bundle_writer_t* writer, int32_t fd);

/** offsets ascend without gaps; weights are then read twice */
#define ACCRT_WRITER_OUTPUT_IN_ORDER 1u
/** A destination of bundles. Frozen. */
typedef struct accrt_writer_output {
  void* self;
  /** Takes all of size_bytes at `offset` of the bundle and returns 0, or an errno value, which ends
   * the writing. It is called on the thread that writes. No byte is written twice. Without
   * IN_ORDER, bytes that are not written are zero. */
  int32_t (*write)(void* self, uint64_t offset, const void* data, uint64_t size_bytes);
  uint32_t flags;    /**< ACCRT_WRITER_OUTPUT_* */
  uint32_t reserved; /**< 0 */
} accrt_writer_output_t;
ACCRT_ASSERT_LAYOUT(accrt_writer_output_t, reserved, 24);
/** Writes the bundle through a callback. Weights that are read twice and differ give
 * ACCRT_ERROR_DATA_CORRUPT. Otherwise as accrt_bundle_writer_write_fd. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_writer_write_callback(accrt_bundle_writer_t* writer,
                                                            const accrt_writer_output_t* output);

ACCRT_END
#endif /* ACCRT_WRITE_BUNDLE_WRITER_H_ */
