/* accrt/bundle.h - opens .accx bundles and looks inside.
 *
 * Nothing here depends on devices or programs: a bundle is a file.
 */
#ifndef ACCRT_BUNDLE_H_
#define ACCRT_BUNDLE_H_

#include "accrt/instance.h"

ACCRT_BEGIN

/** check structure and metadata at open, chunks of weights before first use */
#define ACCRT_VERIFY_DEFAULT 0u
#define ACCRT_VERIFY_FULL 1u /**< check all digests at open */
/** do not check the bytes of weights; the structure is always checked */
#define ACCRT_VERIFY_NO_DATA 2u

/** Options of the accrt_bundle_open_* functions. */
typedef struct accrt_bundle_options {
  uint32_t struct_size;
  uint32_t verify; /**< ACCRT_VERIFY_* */
  const accrt_chain_t* next;
  const char* name; /**< for messages when there is no path; copied; may be NULL or empty */
  /* Since 0.3 */
  /** For encrypted weights. It is called once, while the bundle is opened, with a key's id
   * (accrt_key_id). It writes the 32 bytes of that key and returns 0. The library does not keep the
   * callback. NULL: there is no key. */
  int32_t (*secret_key)(void* user, const uint8_t* id, uint8_t* out_key);
  void* secret_key_user;
  /* Since 0.4 */
  const accrt_budget_t* budget; /**< for opening; NULL: the defaults */
} accrt_bundle_options_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_options_t, budget, 48);
#define ACCRT_BUNDLE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_bundle_options_t)

/** Opens a bundle from a file. The file is mapped, so that host devices use weights in place. A
 * bundle does not change and is thread-safe. While it is open you may replace (rename over) or
 * unlink the file. You may not truncate or write to it: if a program reads mapped weights that are
 * gone from the file, the operating system ends it (SIGBUS). Everything but the weights is read and
 * checked at open.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_IO (errno in driver_code);
 *   ACCRT_ERROR_INVALID_FORMAT (the message has the section, the record and the offending values);
 *   ACCRT_ERROR_VERSION_MISMATCH (both ranges, or the name of an unknown required section, command
 *   or feature); ACCRT_ERROR_DATA_CORRUPT (the message says which section or chunk);
 *   ACCRT_ERROR_UNTRUSTED (trust.weights is 'signed', and no trusted key signed the weights);
 *   ACCRT_ERROR_PERMISSION_DENIED (the callback returned no key, or the wrong one);
 *   ACCRT_ERROR_UNSUPPORTED (keys or signatures without libcrypto); ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_BUDGET, ACCRT_ERROR_TIMEOUT, ACCRT_ERROR_CANCELLED (options->budget); with
 *   ACCRT_VERIFY_FULL as accrt_bundle_verify. Blocks on the file. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_open_path(accrt_instance_t* instance, const char* path,
                                                const accrt_bundle_options_t* options,
                                                accrt_bundle_t** out_bundle);
/** As accrt_bundle_open_path, from a file descriptor, from its offset 0. The library duplicates it;
 * the caller keeps its own. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_open_fd(accrt_instance_t* instance, int32_t fd,
                                              const accrt_bundle_options_t* options,
                                              accrt_bundle_t** out_bundle);
/** As accrt_bundle_open_path, from memory, which is used in place. If it is aligned to 4096 bytes,
 * weights need no copy.
 * @param release called once with `user` when the last reference is gone, but not if this function
 *   fails. NULL: the memory must outlive the bundle. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_open_memory(accrt_instance_t* instance, const void* data,
                                                  uint64_t size_bytes, void (*release)(void* user),
                                                  void* user, const accrt_bundle_options_t* options,
                                                  accrt_bundle_t** out_bundle);

/** A source of bytes. Frozen. `read` fills exactly size_bytes from `offset` on and returns 0, or an
 * errno value. The library calls it from any thread, one call at a time. It calls `close` (may be
 * NULL) once, at the end, but not if opening fails. The callbacks may not use the bundle that they
 * serve. */
typedef struct accrt_reader {
  void* self;
  uint64_t size_bytes;
  int32_t (*read)(void* self, uint64_t offset, void* target, uint64_t size_bytes);
  void (*close)(void* self);
} accrt_reader_t;
ACCRT_ASSERT_LAYOUT(accrt_reader_t, close, 32);
/** As accrt_bundle_open_path, through callbacks. Weights are copied to memory when they are first
 * needed. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_open_callbacks(accrt_instance_t* instance,
                                                     const accrt_reader_t* reader,
                                                     const accrt_bundle_options_t* options,
                                                     accrt_bundle_t** out_bundle);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_bundle_t* accrt_bundle_retain(accrt_bundle_t* bundle);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_bundle_release(accrt_bundle_t* bundle);
/** Checks every digest, of the weights too, with several threads, and trees and signatures.
 * @return ACCRT_OK; ACCRT_ERROR_DATA_CORRUPT (the message says which section, chunk, root or
 *   signature); ACCRT_ERROR_INVALID_FORMAT (bytes between weights that are not zero);
 *   ACCRT_ERROR_UNSUPPORTED (signatures without libcrypto); ACCRT_ERROR_IO;
 *   ACCRT_ERROR_OUT_OF_MEMORY. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_verify(accrt_bundle_t* bundle);
/** As accrt_bundle_verify, within a budget. It looks at the time limit and at `cancel` before each
 * MiB. Parts that were checked stay checked. Thread-safe. Blocks.
 * @param budget NULL for the defaults.
 * @return as accrt_bundle_verify; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_CANCELLED; ACCRT_ERROR_BUDGET.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_bundle_verify_within(accrt_bundle_t* bundle,
                                                    const accrt_budget_t* budget);

/** The instance that the bundle was opened with, lent: valid while the bundle is. NULL for NULL.
 * Thread-safe, never blocks. Since: 0.4 */
ACCRT_API accrt_instance_t* accrt_bundle_instance(const accrt_bundle_t* bundle);

/* ---- What is in a bundle ----
 * Strings and arrays are lent by the bundle. Functions with an index return ACCRT_OK or
 * ACCRT_ERROR_OUT_OF_RANGE. Functions that find return ACCRT_OK or ACCRT_ERROR_NOT_FOUND (the
 * message has similar names). All are thread-safe and never block, unless their comment says
 * otherwise. */

/** What a bundle contains. */
typedef struct accrt_bundle_info {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  const char* name;  /**< the path, or the name in the options */
  uint64_t size_bytes;
  uint16_t container_major, container_minor; /**< the lowest version that can read the file */
  uint16_t commands_major, commands_minor;
  uint16_t kernel_abi_major, kernel_abi_minor;
  uint16_t layouts_major, layouts_minor;
  uint64_t required_features;
  uint32_t section_count;
  uint32_t metadata_count;
  uint32_t symbol_count;
  uint32_t constant_count;
  uint32_t state_count;
  uint32_t function_count;
  uint32_t kernel_count;
  uint32_t image_count;
  uint64_t data_size_bytes; /**< weights in the file */
  /* Since 0.3. */
  uint64_t optional_features;
  uint32_t file_count;
  uint32_t shard_count;
  uint32_t adapter_count;
  uint32_t asset_count;
  uint32_t location_count;
  uint32_t signature_count;
} accrt_bundle_info_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_info_t, signature_count, 128);
#define ACCRT_BUNDLE_INFO_INIT ACCRT_STRUCT_INIT(accrt_bundle_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_info(accrt_bundle_t* bundle, accrt_bundle_info_t* out_info);

/** Checks bytes that are to become a bundle, for writers. It makes the checks of opening, with two
 * differences: it does not read the bytes of the weights, and it does not check the versions in the
 * header but returns the lowest ones that can read the content. It needs no instance, and uses no
 * policy and no key.
 * @param allocator for memory during the call; NULL: the C library's.
 * @param reader called from this thread, during the call; its `close` is not called.
 * @param out_info as accrt_bundle_info fills it, with the lowest versions; `name` is NULL.
 *   Unchanged on failure.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_FORMAT, ACCRT_ERROR_VERSION_MISMATCH,
 *   ACCRT_ERROR_DATA_CORRUPT as accrt_bundle_open_path; ACCRT_ERROR_IO (driver_code has what `read`
 *   returned); ACCRT_ERROR_OUT_OF_MEMORY. Thread-safe. Blocks on the reader. Since: 0.4 */
ACCRT_API accrt_status_t accrt_bundle_check(const accrt_allocator_t* allocator,
                                            const accrt_reader_t* reader,
                                            accrt_bundle_info_t* out_info);

/** One section. */
typedef struct accrt_section_info {
  uint32_t struct_size;
  uint32_t type;
  void* next; /**< NULL */
  const char* name;
  uint64_t offset;
  uint64_t size_bytes;
  uint32_t required; /**< 1: a reader must know the section */
  uint32_t known;    /**< 1: this library knows it */
  uint32_t record_count;
  uint32_t record_bytes;
  /* Since 0.4. */
  unsigned char digest[16]; /**< XXH3-128, from the file's table */
} accrt_section_info_t;
ACCRT_ASSERT_LAYOUT(accrt_section_info_t, digest, 72);
#define ACCRT_SECTION_INFO_INIT ACCRT_STRUCT_INIT(accrt_section_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_section(accrt_bundle_t* bundle, uint32_t index,
                                              accrt_section_info_t* out_info);
/** Copies bytes of a section as they are in the file. Code, weights and unknown sections are read
 * now; all others were read and verified at open.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (the index, or bytes past the section's end);
 *   ACCRT_ERROR_IO. May block on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_section_read(accrt_bundle_t* bundle, uint32_t index,
                                                   uint64_t offset_bytes, void* target,
                                                   uint64_t size_bytes);
#define ACCRT_CHUNK_PLAIN 1u /**< decrypt the chunk if the weights are encrypted */
/** Copies one chunk of the weights: 1 MiB of section `data` from index * 1 MiB on, or what is left
 * of the section. The chunk is read from the file and checked against its digest. For writers that
 * write a bundle again.
 * @param flags 0: the bytes in the file; or ACCRT_CHUNK_PLAIN.
 * @param target size_bytes, the exact size of the chunk. Owned by the caller. After a failure its
 *   bytes are undefined.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (no such chunk); ACCRT_ERROR_INVALID_ARGUMENT (a wrong
 *   size, unknown flags); ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_PERMISSION_DENIED
 *   (ACCRT_CHUNK_PLAIN, and the bundle was opened without its key); ACCRT_ERROR_IO. Thread-safe.
 *   Blocks on the file. Since: 0.4 */
ACCRT_API accrt_status_t accrt_bundle_chunk(accrt_bundle_t* bundle, uint32_t index, uint32_t flags,
                                            void* target, uint64_t size_bytes);
/** Key and value of a metadata entry by index. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_metadata(accrt_bundle_t* bundle, uint32_t index,
                                               const char** out_key, const char** out_value);

/* symbol classes: made of format/format.def */
#define ACCRT_SYMBOL_SPECIALIZE 0u /**< each value has its own plan */
#define ACCRT_SYMBOL_BUCKET 1u  /**< each bucket has its own plan; the live value is patched in */
#define ACCRT_SYMBOL_RUNTIME 2u /**< patched in at each call; never makes a plan */
#define ACCRT_SYMBOL_SESSION 3u /**< set when a session is made; sizes its state */
/* symbol classes: end */
/** One shape symbol. */
typedef struct accrt_symbol_info {
  uint32_t struct_size;
  uint32_t symbol_class; /**< ACCRT_SYMBOL_* */
  void* next;            /**< NULL */
  const char* name;
  int64_t minimum, maximum, divisor;
  const int64_t* buckets; /**< BUCKET: ascending bounds */
  uint32_t bucket_count;
  uint32_t reserved; /**< 0 */
} accrt_symbol_info_t;
ACCRT_ASSERT_LAYOUT(accrt_symbol_info_t, reserved, 64);
#define ACCRT_SYMBOL_INFO_INIT ACCRT_STRUCT_INIT(accrt_symbol_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_symbol(accrt_bundle_t* bundle, uint32_t index,
                                             accrt_symbol_info_t* out_info);

/** One constant (weight). */
typedef struct accrt_constant_info {
  uint32_t struct_size;
  uint32_t source; /**< 0: in the bundle; 1: made by a prepare function; 2: outside the bundle */
  void* next;      /**< NULL */
  const char* name;
  accrt_dtype_t dtype;
  uint32_t encoding; /**< ACCRT_LAYOUT_* (accrt/layout.h): 0 plain, 1 opaque */
  uint32_t rank;
  uint32_t component_count;
  const int64_t* shape;
  uint64_t size_bytes; /**< all components */
  /* Since 0.3. */
  uint32_t group_elements; /**< of layouts whose group size is free; else 0 */
  uint32_t file;      /**< EXTERNAL: index of a file. 0xFFFFFFFF: any source, or not EXTERNAL */
  const char* tensor; /**< EXTERNAL: the tensor's name there; else "" */
  /** EXTERNAL: XXH3-128 of its components' bytes; zeros: bound by name only */
  unsigned char digest[16];
  uint32_t shard;    /**< index of its shard, or 0xFFFFFFFF */
  uint32_t reserved; /**< 0 */
} accrt_constant_info_t;
ACCRT_ASSERT_LAYOUT(accrt_constant_info_t, reserved, 96);
#define ACCRT_CONSTANT_INFO_INIT ACCRT_STRUCT_INIT(accrt_constant_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_constant(accrt_bundle_t* bundle, uint32_t index,
                                               accrt_constant_info_t* out_info);
/** Index of a constant by name, or ACCRT_ERROR_NOT_FOUND (with similar names). Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_find_constant(accrt_bundle_t* bundle, const char* name,
                                                    uint32_t* out_index);
/** The host address of a plain constant's bytes, valid while the bundle is. Its chunks are checked
 * first.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO;
 *   ACCRT_ERROR_INVALID_STATE (a prepared or external constant: only programs have it);
 *   ACCRT_ERROR_PERMISSION_DENIED (encrypted weights, and the bundle was opened without a key). May
 *   block on the file. Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_constant_data(accrt_bundle_t* bundle, uint32_t index,
                                                    const void** out_data,
                                                    uint64_t* out_size_bytes);

/** One component of a constant. */
typedef struct accrt_component_info {
  uint32_t struct_size;
  uint32_t role; /**< ACCRT_LAYOUT_ROLE_* (accrt/layout.h) */
  void* next;    /**< NULL */
  accrt_dtype_t dtype;
  uint32_t reserved; /**< 0 */
  uint64_t size_bytes;
} accrt_component_info_t;
ACCRT_ASSERT_LAYOUT(accrt_component_info_t, size_bytes, 32);
#define ACCRT_COMPONENT_INFO_INIT ACCRT_STRUCT_INIT(accrt_component_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_component(accrt_bundle_t* bundle, uint32_t constant,
                                                uint32_t component,
                                                accrt_component_info_t* out_info);
/** As accrt_bundle_constant_data, for one component of a constant in the bundle. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_component_data(accrt_bundle_t* bundle, uint32_t constant,
                                                     uint32_t component, const void** out_data,
                                                     uint64_t* out_size_bytes);

/** One file beside the bundle that holds weights. */
typedef struct accrt_file_info {
  uint32_t struct_size;
  uint32_t kind; /**< 1 .accx, 2 safetensors, 3 GGUF */
  void* next;    /**< NULL */
  const char* name;
  uint64_t size_bytes;      /**< 0: any */
  unsigned char digest[16]; /**< XXH3-128 of the file; zeros: not known */
} accrt_file_info_t;
ACCRT_ASSERT_LAYOUT(accrt_file_info_t, digest, 48);
#define ACCRT_FILE_INFO_INIT ACCRT_STRUCT_INIT(accrt_file_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_file(accrt_bundle_t* bundle, uint32_t index,
                                           accrt_file_info_t* out_info);

/** A part of a split axis that is divided among the ranks separately. Frozen. */
typedef struct accrt_shard_segment {
  int64_t begin; /**< in the full tensor */
  int64_t end;
  uint32_t replicas; /**< ranks that share a part */
  uint32_t reserved; /**< 0 */
} accrt_shard_segment_t;
ACCRT_ASSERT_LAYOUT(accrt_shard_segment_t, reserved, 24);
/** Which part of a full tensor a constant is, on each rank. */
typedef struct accrt_shard_info {
  uint32_t struct_size;
  uint32_t constant;
  void* next;      /**< NULL */
  uint32_t kind;   /**< 0 replicated, 1 split */
  uint32_t axis;   /**< split */
  uint32_t degree; /**< number of ranks */
  uint32_t segment_count;
  int64_t extent; /**< split: size of the full tensor along the axis */
  const accrt_shard_segment_t* segments;
} accrt_shard_info_t;
ACCRT_ASSERT_LAYOUT(accrt_shard_info_t, segments, 48);
#define ACCRT_SHARD_INFO_INIT ACCRT_STRUCT_INIT(accrt_shard_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_shard(accrt_bundle_t* bundle, uint32_t index,
                                            accrt_shard_info_t* out_info);

/** One tensor that an adapter file may have. */
typedef struct accrt_adapter_info {
  uint32_t struct_size;
  uint32_t flags;    /**< bit 0: multiply it by alpha / rank */
  void* next;        /**< NULL */
  const char* slot;  /**< the tensor's name in an adapter file */
  const char* input; /**< name of the optional input that takes it */
} accrt_adapter_info_t;
ACCRT_ASSERT_LAYOUT(accrt_adapter_info_t, input, 32);
#define ACCRT_ADAPTER_INFO_INIT ACCRT_STRUCT_INIT(accrt_adapter_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_adapter(accrt_bundle_t* bundle, uint32_t index,
                                              accrt_adapter_info_t* out_info);

/** A file inside the bundle that the library does not interpret: a tokenizer, a license. */
typedef struct accrt_asset_info {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  const char* name;
  const char* media_type; /**< may be "" */
  const void* data;
  uint64_t size_bytes;
} accrt_asset_info_t;
ACCRT_ASSERT_LAYOUT(accrt_asset_info_t, size_bytes, 48);
#define ACCRT_ASSET_INFO_INIT ACCRT_STRUCT_INIT(accrt_asset_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_asset(accrt_bundle_t* bundle, uint32_t index,
                                            accrt_asset_info_t* out_info);
/** Index of an asset by name, or ACCRT_ERROR_NOT_FOUND (with similar names). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_find_asset(accrt_bundle_t* bundle, const char* name,
                                                 uint32_t* out_index);

/** A place in the compiler's source that a command comes from. */
typedef struct accrt_location_info {
  uint32_t struct_size;
  uint32_t line; /**< from 1; 0: not known */
  void* next;    /**< NULL */
  const char* file;
  const char* name;  /**< of the operation or layer at that place */
  uint32_t column;   /**< from 1; 0: not known */
  uint32_t reserved; /**< 0 */
} accrt_location_info_t;
ACCRT_ASSERT_LAYOUT(accrt_location_info_t, reserved, 40);
#define ACCRT_LOCATION_INFO_INIT ACCRT_STRUCT_INIT(accrt_location_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_location(accrt_bundle_t* bundle, uint32_t index,
                                               accrt_location_info_t* out_info);

/** One function. A bundle may have several versions of a function with the same signature, each for
 * the devices of one driver or for any device. Here they are one function; doc and command_count
 * are those of the version for any driver, or else of the first version. */
typedef struct accrt_function_info {
  uint32_t struct_size;
  uint32_t flags; /**< bit 0: prepare function; bit 1: internal */
  void* next;     /**< NULL */
  const char* name;
  const char* doc;
  uint32_t input_count;
  uint32_t result_count;
  uint32_t command_count; /**< in all its blocks */
  /** at least 1; see accrt_bundle_function_target. Since 0.2 (before: 0) */
  uint32_t version_count;
  uint64_t required_features;
} accrt_function_info_t;
ACCRT_ASSERT_LAYOUT(accrt_function_info_t, required_features, 56);
#define ACCRT_FUNCTION_INFO_INIT ACCRT_STRUCT_INIT(accrt_function_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_function(accrt_bundle_t* bundle, uint32_t index,
                                               accrt_function_info_t* out_info);
/** Index of a function by name, or ACCRT_ERROR_NOT_FOUND (with similar names). Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_find_function(accrt_bundle_t* bundle, const char* name,
                                                    uint32_t* out_index);

/** The driver that a version of a function is for ("cuda"), or "" for any. A program uses the
 * version for its device's driver, or else the one for any.
 * @param version below accrt_function_info_t.version_count. Since: 0.2 */
ACCRT_API accrt_status_t accrt_bundle_function_target(accrt_bundle_t* bundle, uint32_t function,
                                                      uint32_t version, const char** out_target);

/* arguments: made of format/format.def */
#define ACCRT_ARGUMENT_READ 0u
#define ACCRT_ARGUMENT_READ_WRITE 1u /**< updated in place */
#define ACCRT_ARGUMENT_DONATED 2u    /**< its storage may be overwritten */
#define ACCRT_ARGUMENT_RESULT 3u
#define ACCRT_ARGUMENT_SCALAR 4u /**< an i64 that gives a symbol its value */
/* arguments: end */
/* aliases: made of format/format.def */
#define ACCRT_ALIAS_NONE 0u
#define ACCRT_ALIAS_MAY 1u
#define ACCRT_ALIAS_MUST 2u
/* aliases: end */
#define ACCRT_DIM_CONSTANT 0u /**< value */
#define ACCRT_DIM_SYMBOL 1u   /**< `value` is a symbol's index */
/** an expression of symbols; accrt_bundle_argument_type_text shows it */
#define ACCRT_DIM_EXPRESSION 2u
/** One dimension of an argument. Frozen. */
typedef struct accrt_dim {
  uint32_t kind; /**< ACCRT_DIM_* */
  uint32_t reserved;
  int64_t value;
} accrt_dim_t;
ACCRT_ASSERT_LAYOUT(accrt_dim_t, value, 16);
/** One argument: inputs are 0..input_count-1, results follow. */
typedef struct accrt_argument_info {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_ARGUMENT_* */
  void* next;    /**< NULL */
  const char* name;
  const char* doc;
  accrt_dtype_t dtype;
  uint32_t rank;
  uint32_t optional;    /**< 1: the caller may leave it out */
  uint32_t symbol;      /**< SCALAR: index of the symbol that it binds; else 0xFFFFFFFF */
  uint32_t alias_kind;  /**< results: ACCRT_ALIAS_* */
  uint32_t alias_input; /**< results: the input, or 0xFFFFFFFF */
  accrt_dim_t dims[8];
} accrt_argument_info_t;
ACCRT_ASSERT_LAYOUT(accrt_argument_info_t, dims, 184);
#define ACCRT_ARGUMENT_INFO_INIT ACCRT_STRUCT_INIT(accrt_argument_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_argument(accrt_bundle_t* bundle, uint32_t function,
                                               uint32_t index, accrt_argument_info_t* out_info);
/** The type of an argument as text, e.g. "f32[batch, seq, 384]". It writes at most capacity_bytes,
 * the NUL included. out_size_bytes gets the size that the text needs. To ask for the size only,
 * pass NULL and 0.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (the index, or too small a buffer). Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_argument_type_text(accrt_bundle_t* bundle, uint32_t function,
                                                         uint32_t index, char* text,
                                                         uint64_t capacity_bytes,
                                                         uint64_t* out_size_bytes);

/** One state (session memory). */
typedef struct accrt_state_info {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  const char* name;
  accrt_dtype_t dtype;
  uint32_t rank;
  accrt_dim_t dims[8];
} accrt_state_info_t;
ACCRT_ASSERT_LAYOUT(accrt_state_info_t, dims, 160);
#define ACCRT_STATE_INFO_INIT ACCRT_STRUCT_INIT(accrt_state_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_state(accrt_bundle_t* bundle, uint32_t index,
                                            accrt_state_info_t* out_info);

/** One kernel of the bundle. */
typedef struct accrt_bundle_kernel_info {
  uint32_t struct_size;
  uint32_t traits;
  void* next; /**< NULL */
  const char* name;
  uint32_t parameter_count;
  uint32_t variant_count;
} accrt_bundle_kernel_info_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_kernel_info_t, variant_count, 32);
#define ACCRT_BUNDLE_KERNEL_INFO_INIT ACCRT_STRUCT_INIT(accrt_bundle_kernel_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_kernel(accrt_bundle_t* bundle, uint32_t index,
                                             accrt_bundle_kernel_info_t* out_info);
/* Which devices can run a variant: all with the architecture's features, those of its family, or
 * that architecture only. */
/* architectures: made of format/format.def */
#define ACCRT_ARCH_PORTABLE 0u
#define ACCRT_ARCH_FAMILY 1u
#define ACCRT_ARCH_EXACT 2u
/* architectures: end */
/** One variant of a kernel. */
typedef struct accrt_variant_info {
  uint32_t struct_size;
  uint32_t arch_kind; /**< 0 portable, 1 family, 2 exact */
  void* next;         /**< NULL */
  const char* driver;
  const char* arch;
  const char* entry;
  const char* image;
  uint64_t cpu_features;
  int32_t priority;
  /** 1 host ELF, 2 cubin, 3 PTX, 4 fatbin, 5 a kernel pack outside the bundle */
  uint32_t image_kind;
  /* Since 0.2: how device code is launched; zeros for host code and kernel packs. */
  uint32_t launch_traits; /**< ACCRT_KERNEL_TRAIT_COOPERATIVE, _OVERLAPS_PREVIOUS */
  uint32_t block[3];      /**< threads of a workgroup */
  uint32_t cluster[3];    /**< workgroups of a cluster; zeros: none */
  uint32_t dynamic_shared_bytes;
} accrt_variant_info_t;
ACCRT_ASSERT_LAYOUT(accrt_variant_info_t, dynamic_shared_bytes, 96);
#define ACCRT_VARIANT_INFO_INIT ACCRT_STRUCT_INIT(accrt_variant_info_t)
/** Since: 0.1 */
ACCRT_API accrt_status_t accrt_bundle_variant(accrt_bundle_t* bundle, uint32_t kernel,
                                              uint32_t index, accrt_variant_info_t* out_info);

ACCRT_END
#endif /* ACCRT_BUNDLE_H_ */
