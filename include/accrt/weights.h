/* accrt/weights.h - sources of weights: safetensors, GGUF and .accx files, one file or a set.
 *
 * A source is a list of named tensors with their bytes, and metadata. It does not change and is
 * thread-safe. Nothing here depends on devices: accrt/program.h binds sources to programs.
 * docs/weights.md has the rules for files of other formats, and the names of their types here.
 */
#ifndef ACCRT_WEIGHTS_H_
#define ACCRT_WEIGHTS_H_

#include "accrt/base.h"
#include "accrt/bundle.h"

ACCRT_BEGIN

#define ACCRT_WEIGHTS_KIND_ACCX 1u        /**< the stored constants of a bundle */
#define ACCRT_WEIGHTS_KIND_SAFETENSORS 2u /**< one file, or the files of an index */
#define ACCRT_WEIGHTS_KIND_GGUF 3u        /**< version 2 or 3, one file or a split set */

/** only this file: refuse an index; open one part of a split GGUF set alone */
#define ACCRT_WEIGHTS_FLAG_ONE_FILE 1u
/** the other files of a set may be symbolic links, as in download caches */
#define ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS 2u

/** Options of the accrt_weights_open_* functions. */
typedef struct accrt_weights_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_WEIGHTS_FLAG_* */
  const accrt_chain_t* next;
  const char* name; /**< for messages when there is no path; copied; may be NULL or empty */
  uint32_t verify;  /**< .accx files: ACCRT_VERIFY_* */
  uint32_t reserved;
  /* Since 0.4 */
  const accrt_budget_t* budget; /**< for opening; NULL: the defaults */
} accrt_weights_options_t;
ACCRT_ASSERT_LAYOUT(accrt_weights_options_t, budget, 40);
#define ACCRT_WEIGHTS_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_weights_options_t)

/** Opens a source of weights. The file's content, not its name, decides its format. For a folder,
 * the function opens its `model.safetensors.index.json`, else its `model.safetensors`, else its
 * `adapter_model.safetensors`. The files that an index names, and the other parts of a split GGUF
 * set, are opened by bare name in the same folder, and not through symbolic links unless
 * FOLLOW_LINKS is set. Files are mapped; headers and names are copied and checked once. While the
 * source is open you may replace or unlink files, but not truncate or write to them (see
 * accrt_bundle_open_path).
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_IO (errno in driver_code);
 *   ACCRT_ERROR_INVALID_FORMAT (the message ends with the rule's number);
 *   ACCRT_ERROR_VERSION_MISMATCH (a GGUF version or a data type that this library does not know);
 *   ACCRT_ERROR_PERMISSION_DENIED (a symbolic link); ACCRT_ERROR_UNTRUSTED (trust.weights is
 *   'signed', and the format has no signatures); ACCRT_ERROR_UNSUPPORTED;
 *   ACCRT_ERROR_OUT_OF_MEMORY; for .accx files as accrt_bundle_open_path. Blocks on the files.
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_open_path(accrt_instance_t* instance, const char* path,
                                                 const accrt_weights_options_t* options,
                                                 accrt_weights_t** out_weights);
/** As accrt_weights_open_path, from a file descriptor, from its offset 0. The library duplicates
 * it; the caller keeps its own. It opens one file, not a set. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_open_fd(accrt_instance_t* instance, int32_t fd,
                                               const accrt_weights_options_t* options,
                                               accrt_weights_t** out_weights);
/** As accrt_weights_open_path, from memory, which is used in place.
 * @param release called once with `user` when the last reference is gone, but not if this function
 *   fails. NULL: the memory must outlive the source. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_open_memory(accrt_instance_t* instance, const void* data,
                                                   uint64_t size_bytes, void (*release)(void* user),
                                                   void* user,
                                                   const accrt_weights_options_t* options,
                                                   accrt_weights_t** out_weights);
/** As accrt_weights_open_path, through callbacks (accrt/bundle.h). Tensors are copied to memory
 * when they are first needed. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_open_callbacks(accrt_instance_t* instance,
                                                      const accrt_reader_t* reader,
                                                      const accrt_weights_options_t* options,
                                                      accrt_weights_t** out_weights);
/** Makes a source of the stored constants of an open bundle. Retains the bundle. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_open_bundle(accrt_bundle_t* bundle,
                                                   accrt_weights_t** out_weights);
/** Adds a reference; returns its argument. Since: 0.3 */
ACCRT_API accrt_weights_t* accrt_weights_retain(accrt_weights_t* weights);
/** Drops a reference; NULL is allowed. Since: 0.3 */
ACCRT_API void accrt_weights_release(accrt_weights_t* weights);

/* ---- What is in a source ----
 * Strings and arrays are lent by the source. Functions with an index return ACCRT_OK or
 * ACCRT_ERROR_OUT_OF_RANGE. All are thread-safe and never block, unless their comment says
 * otherwise. */

/** What a source contains. */
typedef struct accrt_weights_info {
  uint32_t struct_size;
  uint32_t kind;            /**< ACCRT_WEIGHTS_KIND_* */
  void* next;               /**< NULL */
  const char* name;         /**< the path, or the name in the options */
  uint64_t size_bytes;      /**< of all files */
  uint64_t data_size_bytes; /**< of all tensors */
  uint32_t tensor_count;
  uint32_t metadata_count;
  uint32_t file_count;
  uint32_t version; /**< GGUF: 2 or 3; else 0 */
} accrt_weights_info_t;
ACCRT_ASSERT_LAYOUT(accrt_weights_info_t, version, 56);
#define ACCRT_WEIGHTS_INFO_INIT ACCRT_STRUCT_INIT(accrt_weights_info_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_info(accrt_weights_t* weights,
                                            accrt_weights_info_t* out_info);
/** Path or name of a file by index. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_file(accrt_weights_t* weights, uint32_t index,
                                            const char** out_name);

/** One tensor. Tensors have the order of the files and of their headers. */
typedef struct accrt_weights_tensor {
  uint32_t struct_size;
  uint32_t file; /**< index of the file that holds it */
  void* next;    /**< NULL */
  const char* name;
  const char* type_name; /**< its type's name in the file's format: "BF16", "Q4_K", "F8_E4M3" */
  /** plain: of the elements; else the logical type if the file has it, or 0 */
  accrt_dtype_t dtype;
  uint32_t encoding;       /**< layout id: 0 plain, 1 unknown bytes, else as docs/layouts.md */
  uint32_t group_elements; /**< of encodings with a free group size; else 0 */
  uint32_t rank;
  const int64_t* shape;     /**< outermost first; GGUF files store the reverse order */
  uint32_t component_count; /**< 1, except for constants of .accx files */
  uint32_t reserved;        /**< 0 */
  uint64_t size_bytes;      /**< all components */
} accrt_weights_tensor_t;
ACCRT_ASSERT_LAYOUT(accrt_weights_tensor_t, size_bytes, 72);
#define ACCRT_WEIGHTS_TENSOR_INIT ACCRT_STRUCT_INIT(accrt_weights_tensor_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_tensor(accrt_weights_t* weights, uint32_t index,
                                              accrt_weights_tensor_t* out_tensor);
/** Index of a tensor by name.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message has similar names). Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_find(accrt_weights_t* weights, const char* name,
                                            uint32_t* out_index);

/** One component of a tensor. */
typedef struct accrt_weights_component {
  uint32_t struct_size;
  uint32_t role;         /**< 0 data, 1 scales, 2 zeros, 3 group index, 4 global scale */
  void* next;            /**< NULL */
  accrt_dtype_t dtype;   /**< of the stored elements */
  uint32_t reserved;     /**< 0 */
  uint64_t offset_bytes; /**< in its file */
  uint64_t size_bytes;
} accrt_weights_component_t;
ACCRT_ASSERT_LAYOUT(accrt_weights_component_t, size_bytes, 40);
#define ACCRT_WEIGHTS_COMPONENT_INIT ACCRT_STRUCT_INIT(accrt_weights_component_t)
/** Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_component(accrt_weights_t* weights, uint32_t tensor,
                                                 uint32_t component,
                                                 accrt_weights_component_t* out_component);

/** The host address of a component's bytes, read-only, valid while the source is. In files of other
 * formats it may have any alignment. Chunks of .accx files are checked first.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO;
 *   ACCRT_ERROR_PERMISSION_DENIED (an encrypted .accx file, opened without a key);
 *   ACCRT_ERROR_OUT_OF_MEMORY. May block on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_data(accrt_weights_t* weights, uint32_t tensor,
                                            uint32_t component, const void** out_data,
                                            uint64_t* out_size_bytes);
/** Copies part of a component's bytes. It reads the file and does not touch the mapping of a file
 * of another format. So use it to read a small part of a large file: the rows of one rank, piece by
 * piece.
 * @return as accrt_weights_data; ACCRT_ERROR_OUT_OF_RANGE (the message has offset, size and the
 *   component's size). Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_read(accrt_weights_t* weights, uint32_t tensor,
                                            uint32_t component, uint64_t offset_bytes, void* target,
                                            uint64_t size_bytes);

/* Types of metadata values, with the numbers of GGUF. safetensors and .accx files have only
 * strings. */
#define ACCRT_METADATA_U8 0u
#define ACCRT_METADATA_I8 1u
#define ACCRT_METADATA_U16 2u
#define ACCRT_METADATA_I16 3u
#define ACCRT_METADATA_U32 4u
#define ACCRT_METADATA_I32 5u
#define ACCRT_METADATA_F32 6u
#define ACCRT_METADATA_BOOL 7u
#define ACCRT_METADATA_STRING 8u
#define ACCRT_METADATA_ARRAY 9u
#define ACCRT_METADATA_U64 10u
#define ACCRT_METADATA_I64 11u
#define ACCRT_METADATA_F64 12u
/** One key and its value. */
typedef struct accrt_weights_metadata {
  uint32_t struct_size;
  uint32_t type; /**< ACCRT_METADATA_* */
  void* next;    /**< NULL */
  const char* key;
  const char* text;      /**< STRING: the value; else NULL */
  uint32_t element_type; /**< ARRAY: type of its elements, never ARRAY; else `type` */
  uint32_t reserved;     /**< 0 */
  uint64_t count;        /**< ARRAY: elements; else 1 */
  /** The value's bytes: little-endian, of any alignment, elements one after another. Each string of
   * an ARRAY is a u64 with its size, then that many bytes, which need not be UTF-8. */
  const void* data;
  uint64_t size_bytes; /**< of `data` */
  int64_t integer;     /**< integers and BOOL: the value (U64 above 2^63: its bits); else 0 */
  double real;         /**< F32, F64: the value; else 0 */
} accrt_weights_metadata_t;
ACCRT_ASSERT_LAYOUT(accrt_weights_metadata_t, real, 80);
#define ACCRT_WEIGHTS_METADATA_INIT ACCRT_STRUCT_INIT(accrt_weights_metadata_t)
/** Metadata by index, in the file's order. In a set, the metadata of the first file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_metadata(accrt_weights_t* weights, uint32_t index,
                                                accrt_weights_metadata_t* out_metadata);
/** Index of a metadata entry by key. @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. Since: 0.3 */
ACCRT_API accrt_status_t accrt_weights_find_metadata(accrt_weights_t* weights, const char* key,
                                                     uint32_t* out_index);

ACCRT_END
#endif /* ACCRT_WEIGHTS_H_ */
