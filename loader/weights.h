/* loader/weights.h - sources of weights, for the loader's own files and the program layer.
 *
 * Everything in an accrt_weights_t has passed the rules of its format (loader/weights_rules.h). It
 * knows no device and no program.
 */
#ifndef ACCRT_LOADER_WEIGHTS_H_
#define ACCRT_LOADER_WEIGHTS_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/weights.h"
#include "loader/source.h"
#include "loader/weights_rules.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"
#include "runtime/core/object.h"

#define ACCX_WEIGHTS_MAX_HEADER_BYTES 100000000u /* safetensors' own limit; also for an index */
#define ACCX_WEIGHTS_MAX_GGUF_HEADER_BYTES (256u << 20)
#define ACCX_WEIGHTS_MAX_TENSORS (1u << 24)
#define ACCX_WEIGHTS_MAX_METADATA 65536u /* of a safetensors file */
#define ACCX_WEIGHTS_MAX_FILES 1024u
#define ACCX_WEIGHTS_MAX_NAME_BYTES 65535u
#define ACCX_WEIGHTS_MAX_FILE_NAME_BYTES 255u
#define ACCX_WEIGHTS_NONE UINT32_MAX

/* A type of a foreign format: the elements and bytes of one block. */
typedef struct accx_weights_type {
  char name[12]; /* empty: the number is not a type */
  uint8_t dtype; /* 0: the format does not define it */
  uint8_t encoding;
  uint16_t block_elements;
  uint16_t block_bytes;
} accx_weights_type_t;
extern const accx_weights_type_t accx_safetensors_types[];
extern const uint32_t accx_safetensors_type_count;
extern const accx_weights_type_t accx_gguf_types[];
extern const uint32_t accx_gguf_type_count;

typedef struct accx_weights_entry {
  const char* name;
  uint64_t offset_bytes; /* in its file; ACCX: the constant's index */
  uint64_t size_bytes;
  uint32_t name_bytes;
  uint32_t shape_first; /* index in `sizes` */
  uint32_t file;
  uint16_t type; /* index in the types of its format */
  uint8_t rank;
  uint8_t kept; /* used while a set is opened */
} accx_weights_entry_t;

typedef struct accx_weights_value {
  const char* key;
  const unsigned char* data;
  uint64_t size_bytes;
  uint64_t count;
  uint32_t key_bytes;
  uint32_t type;
  uint32_t element_type;
  uint32_t reserved;
} accx_weights_value_t;

/* One file of a source. */
typedef struct accx_weights_file {
  accx_source_t source;
  char* name;
  uint32_t kind;              /* ACCRT_WEIGHTS_KIND_* */
  uint32_t version;           /* GGUF */
  char* header;               /* private copy with all names and texts */
  size_t header_bytes;        /* of that memory */
  const unsigned char* bytes; /* the whole file: mapped, the caller's memory, or read on demand */
  void* mapping;
  bool on_demand;
  accrt_bundle_t* bundle; /* ACCX */
  uint32_t entry_first;
  uint32_t entry_count;
  uint32_t split_number; /* GGUF: number of this part of split_count; 0: not split */
  uint32_t split_count;
  uint64_t split_tensors;
} accx_weights_file_t;

struct accrt_weights {
  accrt_object_t object;
  accrt_instance_t* instance; /* not retained by the struct: each public reference retains it */
  const accrt_allocator_t* allocator;
  char* name;
  uint32_t kind;
  uint32_t flags;
  uint32_t verify;
  accrt_budget_t budget; /* for opening */
  accx_weights_file_t* files;
  uint32_t file_count;
  size_t file_capacity;
  accx_weights_entry_t* entries;
  uint32_t entry_count;
  size_t entry_capacity;
  int64_t* sizes; /* shapes of all tensors */
  uint32_t size_count;
  size_t size_capacity;
  accx_weights_value_t* values; /* metadata of the first file */
  uint32_t value_count;
  size_t value_capacity;
  uint64_t* table; /* entries by name, with open addressing: hash and index + 1; 0: free */
  uint32_t table_capacity;
  uint64_t seed;
  /* By entry, for files on demand: 1 when its bytes are read. Stored with release, loaded with
   * acquire. */
  atomic_uchar* ready;
  char* index; /* the text of an index */
  size_t index_bytes;
};

/* ---- weights.c ---- */

/* Closes all files, and empties all lists. */
void accx_weights_forget_files(accrt_weights_t* weights);
/* Reads, checks and maps one file. It does not open the other files of a set. */
accrt_status_t accx_weights_load_file(accrt_weights_t* weights, uint32_t file);

/* ---- weights_tables.c ---- */

/* Refuses `file` because of a rule, whose status it returns. The message ends with the rule. */
accrt_status_t accx_weights_refuse(const char* name, accrt_error_place_t rule, const char* format,
                                   ...) ACCRT_PRINTF(3, 4);
#define ACCX_REFUSE(name, rule, ...)                                                               \
  accx_weights_refuse((name), ACCRT_PLACE(ACCX_RULE_##rule), __VA_ARGS__)
/* Appends a zeroed file to the list. Existing pointers to files become invalid. */
accrt_status_t accx_weights_add_file(accrt_weights_t* weights, const char* name,
                                     accx_weights_file_t** out_file);
/* Append one element to the list. */
accrt_status_t accx_weights_add_entry(accrt_weights_t* weights, accx_weights_entry_t** out_entry);
accrt_status_t accx_weights_add_value(accrt_weights_t* weights, accx_weights_value_t** out_value);
accrt_status_t accx_weights_add_sizes(accrt_weights_t* weights, uint32_t count,
                                      int64_t** out_sizes);
/* The sizes of an entry; NULL for a scalar, which may have no array. */
static inline const int64_t* accx_weights_shape(const accrt_weights_t* weights,
                                                const accx_weights_entry_t* entry) {
  return entry->rank > 0 ? weights->sizes + entry->shape_first : NULL;
}
/* A little-endian number of at most 8 bytes. */
uint64_t accx_weights_number(const unsigned char* bytes, size_t size_bytes);
/* Finds a value, from `first` on, whose key occurs twice; NULL: none. */
accrt_status_t accx_weights_find_twice(const accrt_weights_t* weights, uint32_t first,
                                       const accx_weights_value_t** out_value);
/* Rebuilds the table of all entries. With `file_too`, equal names in different files are different.
 * Returns the second of two equal entries, or NONE. */
accrt_status_t accx_weights_make_table(accrt_weights_t* weights, bool file_too,
                                       uint32_t* out_duplicate);
/* A hash for tables of names. The seed prevents collisions by an attacker who chooses the names. */
uint64_t accx_hash_name(const char* name, size_t name_bytes, uint64_t seed);
/* Index of an entry in any file (NONE) or in one file; NONE if there is none. */
uint32_t accx_weights_lookup(const accrt_weights_t* weights, const char* name, size_t name_bytes,
                             uint32_t file);
/* The product of the sizes, zeros left out. False when it, or the bytes of so many elements, reach
 * 2^63. */
bool accx_weights_blocks(const int64_t* sizes, uint32_t rank, const accx_weights_type_t* type,
                         uint64_t* out_elements, uint64_t* out_size_bytes);

/* ---- The formats ---- */

accrt_status_t accx_safetensors_load(accrt_weights_t* weights, uint32_t file);
accrt_status_t accx_gguf_load(accrt_weights_t* weights, uint32_t file);

/* ---- weights_set.c: several files ---- */

/* Opens a file by bare name in a folder, never outside it, and through symbolic links only with
 * `follow`. */
accrt_status_t accx_open_in(int folder_fd, const char* folder, const char* name, bool follow,
                            int* out_fd);
accrt_status_t accx_open_beneath(const char* folder, const char* name, bool follow, int* out_fd);
/* Length of the folder part of a path, with its slash. */
size_t accx_folder_bytes(const char* path);
/* File 0 is an index: opens the files that it names, in the folder of `path` (NULL: no folder). */
accrt_status_t accx_weights_load_index(accrt_weights_t* weights, const char* path);
/* File 0 is a part of a split GGUF set: opens the other parts. */
accrt_status_t accx_weights_load_parts(accrt_weights_t* weights, const char* path);

/* ---- For the program layer ---- */

/* As the public functions, but the operation's name in error records stays the caller's.
 * weights_read.c. */
const char* accx_weights_name(const accrt_weights_t* weights);
accrt_status_t accx_weights_describe(const accrt_weights_t* weights, uint32_t index,
                                     accrt_weights_tensor_t* out_tensor);
void accx_weights_value(const accrt_weights_t* weights, uint32_t index,
                        accrt_weights_metadata_t* out_value);
accrt_status_t accx_weights_place(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accrt_weights_component_t* out_component);
accrt_status_t accx_weights_bytes(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes);
/* The descriptor of the file that has the tensor; -1: memory or callbacks. */
int accx_weights_fd(const accrt_weights_t* weights, uint32_t tensor);
accrt_status_t accx_weights_copy(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                 uint64_t offset_bytes, void* target, uint64_t size_bytes);
/* Passes all bytes of a component to `visit`, in order and in pieces. Files are read into private
 * memory; their mappings are not accessed. It returns the first failure. Do not call it between
 * accx_source_begin and _end. */
typedef accrt_status_t (*accx_weights_visit_t)(void* user, uint64_t offset_bytes,
                                               const unsigned char* bytes, size_t size_bytes);
accrt_status_t accx_weights_visit(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accx_weights_visit_t visit, void* user);
/* weights.c: references that do not retain the instance, for objects that end with it. */
void accx_weights_ref(accrt_weights_t* weights);
void accx_weights_unref(accrt_weights_t* weights);
/* Makes a source of the constants that a bundle stores, in the order of the bundle. Its tensors are
 * not found by name. The reference is internal. */
accrt_status_t accx_weights_of_bundle(accrt_bundle_t* bundle, accrt_weights_t** out_weights);
/* Makes a source of one open file, without further files. Takes ownership of `fd`. The reference is
 * internal. */
accrt_status_t accx_weights_open_taken(accrt_instance_t* instance, int fd, const char* name,
                                       uint32_t verify, accrt_weights_t** out_weights);

/* open.c: opens the bundle in a source of a set of weights, as accrt_bundle_open_... do. */
accrt_status_t accx_bundle_open_source(accrt_instance_t* instance, const accx_source_t* source,
                                       const accrt_bundle_options_t* options,
                                       accrt_bundle_t** out_bundle);

#endif /* ACCRT_LOADER_WEIGHTS_H_ */
