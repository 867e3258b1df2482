/* loader/weights.h - sources of weights, as the loader's own files and the program layer see them.
 *
 * Everything in an accrt_weights_t has passed its format's rules (loader/weights_rules.h). It knows no device and no program.
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
#include "runtime/core/object.h"

#define ACCX_WEIGHTS_MAX_HEADER_BYTES 100000000u /* safetensors' own limit; of an index too */
#define ACCX_WEIGHTS_MAX_GGUF_HEADER_BYTES (256u << 20)
#define ACCX_WEIGHTS_MAX_TENSORS (1u << 24)
#define ACCX_WEIGHTS_MAX_METADATA 65536u /* of a safetensors file */
#define ACCX_WEIGHTS_MAX_FILES 1024u
#define ACCX_WEIGHTS_MAX_NAME_BYTES 65535u
#define ACCX_WEIGHTS_MAX_FILE_NAME_BYTES 255u
#define ACCX_WEIGHTS_NONE UINT32_MAX

/* A type of a foreign format: blocks of so many elements and bytes. */
typedef struct accx_weights_type {
  char name[12]; /* empty: there is no such type */
  uint8_t dtype; /* 0: the format does not say */
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
  uint64_t offset_bytes; /* in its file; ACCX: index of the constant */
  uint64_t size_bytes;
  uint32_t name_bytes;
  uint32_t shape_first; /* in `sizes` */
  uint32_t file;
  uint16_t type; /* index in its format's types */
  uint8_t rank;
  uint8_t kept; /* while a set is put together */
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
  uint32_t kind;       /* ACCRT_WEIGHTS_KIND_* */
  uint32_t version;    /* GGUF */
  char* header;        /* private copy; names and texts lie in it */
  size_t header_bytes; /* of that memory */
  const unsigned char*
      bytes; /* the whole file: mapped, or the caller's memory, or read on demand */
  void* mapping;
  bool on_demand;
  accrt_bundle_t* bundle; /* ACCX */
  uint32_t entry_first;
  uint32_t entry_count;
  uint32_t split_number; /* GGUF: of split_count parts; 0: not split */
  uint32_t split_count;
  uint64_t split_tensors;
} accx_weights_file_t;

struct accrt_weights {
  accrt_object_t object;
  accrt_instance_t* instance; /* borrowed: each public reference holds it */
  const accrt_allocator_t* allocator;
  char* name;
  uint32_t kind;
  uint32_t flags;
  uint32_t verify;
  accx_weights_file_t* files;
  uint32_t file_count;
  size_t file_capacity;
  accx_weights_entry_t* entries;
  uint32_t entry_count;
  size_t entry_capacity;
  int64_t* sizes; /* of all shapes */
  uint32_t size_count;
  size_t size_capacity;
  accx_weights_value_t* values; /* metadata, of the first file */
  uint32_t value_count;
  size_t value_capacity;
  uint64_t* table; /* entries by name: open addressing; hash and index + 1; 0 is free */
  uint32_t table_capacity;
  uint64_t seed;
  atomic_uchar*
      ready; /* by entry: read already, for files on demand; release by the reader, acquire by others */
  char* index; /* text of an index */
  size_t index_bytes;
};

/* ---- weights.c ---- */

/* A refusal of `file` by a rule; its status is the rule's. The message ends in the rule. */
accrt_status_t accx_weights_refuse(const char* name, uint32_t rule, const char* source_file,
                                   uint32_t line, const char* format, ...) ACCRT_PRINTF(5, 6);
#define ACCX_REFUSE(name, rule, ...)                                                               \
  accx_weights_refuse((name), ACCX_RULE_##rule, __FILE__, (uint32_t)__LINE__, __VA_ARGS__)
/* A new file at the end of the list, zeroed. Pointers to files end. */
accrt_status_t accx_weights_add_file(accrt_weights_t* weights, const char* name,
                                     accx_weights_file_t** out_file);
/* Closes all files, and empties all lists. */
void accx_weights_forget_files(accrt_weights_t* weights);
/* Room for one more of each. */
accrt_status_t accx_weights_add_entry(accrt_weights_t* weights, accx_weights_entry_t** out_entry);
accrt_status_t accx_weights_add_value(accrt_weights_t* weights, accx_weights_value_t** out_value);
accrt_status_t accx_weights_add_sizes(accrt_weights_t* weights, uint32_t count,
                                      int64_t** out_sizes);
/* The sizes of an entry; NULL for a scalar, of which there may be nothing at all. */
static inline const int64_t* accx_weights_shape(const accrt_weights_t* weights,
                                                const accx_weights_entry_t* entry) {
  return entry->rank > 0 ? weights->sizes + entry->shape_first : NULL;
}
/* Reads, checks and maps what the source of a file has. `alone`: what else a set has is not looked for. */
accrt_status_t accx_weights_load_file(accrt_weights_t* weights, uint32_t file);
/* A little-endian number of at most 8 bytes. */
uint64_t accx_weights_number(const unsigned char* bytes, size_t size_bytes);
/* Of the values from `first` on, one whose key another has too; NULL: there is none. */
accrt_status_t accx_weights_find_twice(const accrt_weights_t* weights, uint32_t first,
                                       const accx_weights_value_t** out_value);
/* Puts all entries into the table, anew. With `file_too` equal names in different files are different. Gives the second of two equal
 * ones, or NONE. */
accrt_status_t accx_weights_make_table(accrt_weights_t* weights, bool file_too,
                                       uint32_t* out_duplicate);
/* A hash for tables of names: the seed keeps those who choose the names from making them meet. */
uint64_t accx_hash_name(const char* name, size_t name_bytes, uint64_t seed);
/* Index of an entry, in any file (NONE) or in one; NONE. */
uint32_t accx_weights_lookup(const accrt_weights_t* weights, const char* name, size_t name_bytes,
                             uint32_t file);
/* Product of sizes, zeros left out; false when it or the bytes of so many elements reach 2^63. `out_blocks`: blocks of a type. */
bool accx_weights_blocks(const int64_t* sizes, uint32_t rank, const accx_weights_type_t* type,
                         uint64_t* out_elements, uint64_t* out_size_bytes);

/* ---- The formats ---- */

accrt_status_t accx_safetensors_load(accrt_weights_t* weights, uint32_t file);
accrt_status_t accx_gguf_load(accrt_weights_t* weights, uint32_t file);

/* ---- weights_set.c: more files than one ---- */

/* A file by bare name in a folder, never above it, and through no symbolic link unless `follow`. */
accrt_status_t accx_open_in(int folder_fd, const char* folder, const char* name, bool follow,
                            int* out_fd);
accrt_status_t accx_open_beneath(const char* folder, const char* name, bool follow, int* out_fd);
/* The folder part of a path, with the slash: its length. */
size_t accx_folder_bytes(const char* path);
/* The text of an index is in file 0: opens what it names, in the folder of `path` (NULL: there is none). */
accrt_status_t accx_weights_load_index(accrt_weights_t* weights, const char* path);
/* File 0 is a part of a split GGUF set: opens the others. */
accrt_status_t accx_weights_load_parts(accrt_weights_t* weights, const char* path);

/* ---- For the program layer ---- */

/* As the public functions, for callers inside the library: they leave the operation's name alone. */
const char* accx_weights_name(const accrt_weights_t* weights);
accrt_status_t accx_weights_describe(const accrt_weights_t* weights, uint32_t index,
                                     accrt_weights_tensor_t* out_tensor);
void accx_weights_value(const accrt_weights_t* weights, uint32_t index,
                        accrt_weights_metadata_t* out_value);
accrt_status_t accx_weights_place(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accrt_weights_component_t* out_component);
accrt_status_t accx_weights_bytes(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes);
accrt_status_t accx_weights_copy(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                 uint64_t offset_bytes, void* target, uint64_t size_bytes);
/* References that do not hold the instance, for what ends with it. */
void accx_weights_ref(accrt_weights_t* weights);
void accx_weights_unref(accrt_weights_t* weights);
/* Opens a file that is open already: takes `fd`. No set. The reference is an internal one. */
accrt_status_t accx_weights_open_taken(accrt_instance_t* instance, int fd, const char* name,
                                       uint32_t verify, accrt_weights_t** out_weights);

#endif /* ACCRT_LOADER_WEIGHTS_H_ */
