/* loader/bundle.h - a validated bundle in memory, for the program layer.
 *
 * Everything here has passed the verifier (loader/verify.c; docs/accx-format.md numbers the
 * checks): indices are in range, enums and flags are known, strings are terminated UTF-8, ranges
 * tile, blocks nest without cycles. Readers of these tables need no checks of structure. A plan
 * checks what depends on a call: values of expressions, and ranges against the size of their
 * storage.
 *
 * The loader knows no device and no program. It may include runtime/core and the public headers.
 */
#ifndef ACCRT_LOADER_BUNDLE_H_
#define ACCRT_LOADER_BUNDLE_H_

#include <stdbool.h>

#include "accrt/bundle.h"
#include "format/commands.h"
#include "format/common.h"
#include "format/format.h"

/* The tables as arrays. A pointer is NULL when its count is 0. All are in private memory that lives
 * as long as the bundle. */
typedef struct accrt_bundle_tables {
  accx_header_t header;
  const accx_section_t* sections; /* as in the file, with unknown ones */
  uint32_t section_count;
  uint32_t string_count;
  const char* strings; /* use accrt_bundle_string for the string at an offset */
  uint64_t strings_size_bytes;
  const accx_metadata_t* metadata;
  const accx_symbol_t* symbols;
  const int64_t* buckets;
  const accx_expression_t* expressions; /* module scope: [0, module_expression_count) */
  const accx_constant_t* constants;
  const accx_component_t* components;
  const accx_state_t* states;
  const accx_function_t* functions;
  const accx_argument_t* arguments;
  const accx_slot_t* slots;
  const accx_view_t* views;
  const accx_block_t* blocks;
  const accx_kernel_t* kernels;
  const accx_parameter_t* parameters;
  const accx_variant_t* variants;
  const accx_predicate_t* predicates;
  const accx_image_t* images;
  const accx_launch_t* launches;
  const accx_asset_t* assets;
  const accx_location_t* locations;
  const accx_file_t* files;
  const accx_shard_t* shards;
  const accx_segment_t* segments;
  const accx_adapter_t* adapters;
  const accx_tree_t* tree; /* NULL, or one record */
  const accx_signature_t* signatures;
  const accx_leaf_t* leaves;           /* by chunk, as chunk_digests */
  const accx_encryption_t* encryption; /* NULL, or one record */
  const accx_tag_t* tags;              /* by chunk, as chunk_digests */
  const unsigned char* asset_data;
  const accx_digest_t* chunk_digests;
  uint32_t metadata_count;
  uint32_t symbol_count;
  uint32_t bucket_count;
  uint32_t expression_count;
  uint32_t module_expression_count;
  uint32_t constant_count;
  uint32_t component_count;
  uint32_t state_count;
  uint32_t function_count;
  uint32_t argument_count;
  uint32_t slot_count;
  uint32_t view_count;
  uint32_t block_count;
  uint32_t command_count; /* of all blocks */
  uint32_t kernel_count;
  uint32_t parameter_count;
  uint32_t variant_count;
  uint32_t predicate_count;
  uint32_t image_count;
  uint32_t launch_count;
  uint32_t chunk_count;
  uint32_t asset_count;
  uint32_t location_count;
  uint32_t file_count;
  uint32_t shard_count;
  uint32_t segment_count;
  uint32_t adapter_count;
  uint32_t tree_count;
  uint32_t signature_count;
  uint32_t leaf_count;
  uint32_t encryption_count;
  uint32_t tag_count;
  uint64_t asset_data_size_bytes;
  uint64_t code_size_bytes;
  uint64_t data_size_bytes;
  /* Commands of block b, in order: commands[block_first[b]] .. commands[block_first[b] +
   * blocks[b].command_count - 1]. */
  const accx_command_t* const* commands;
  const uint32_t* block_first;
  /* By function: number of commands in all its blocks, without those of its callees. */
  const uint32_t* function_command_count;
  /* By function: the first function with its name, and the next one with that name or NONE. */
  const uint32_t* function_first;
  const uint32_t* function_next;
  /* One function per name, in the order of each name's first function: the one without a target, or
   * else the first. */
  const uint32_t* named_functions;
  uint32_t named_function_count;
  /* The functions of call depth d + 1 are [depth_first[d], depth_first[d + 1]); their names
   * ascend. */
  uint32_t depth_first[ACCX_MAX_CALL_DEPTH + 1];
} accrt_bundle_tables_t;

/* No new reference: valid and unchanged as long as the bundle. */
const accrt_bundle_tables_t* accrt_bundle_tables(const accrt_bundle_t* bundle);
/* References that do not retain the instance, for objects that end with it. */
void accrt_bundle_ref(accrt_bundle_t* bundle);
void accrt_bundle_unref(accrt_bundle_t* bundle);
/* The path, or the name that the caller of open gave; "bundle" if there is none. For messages. */
const char* accrt_bundle_name(const accrt_bundle_t* bundle);

/* Returns the host address of one component of an INLINE constant. It is 256-aligned and valid as
 * long as the bundle. The 1 MiB chunks of the component are checked before their first use (unless
 * the bundle was opened with ACCRT_VERIFY_NO_DATA). The bytes are used in place where the file is
 * mapped or the caller's memory is aligned; otherwise they are read at the first need. Thread-safe;
 * may block on the file. A component of 0 bytes has a valid address too. Fails as
 * accrt_bundle_constant_data. */
accrt_status_t accrt_bundle_constant_component(accrt_bundle_t* bundle, uint32_t constant,
                                               uint32_t component, const void** out_data,
                                               uint64_t* out_size_bytes);
/* Copies a range of a component, which must contain the range. Fails as
 * accrt_bundle_constant_component. */
accrt_status_t accrt_bundle_constant_read(accrt_bundle_t* bundle, uint32_t constant,
                                          uint32_t component, uint64_t offset_bytes, void* target,
                                          uint64_t size_bytes);
/* Opens a file that the bundle names, in the bundle's folder, and returns an internal reference.
 * The file is checked against its record. */
accrt_status_t accrt_bundle_open_file(accrt_bundle_t* bundle, uint32_t file,
                                      accrt_weights_t** out_weights);
/* Size of the tables. Budgets are proportional to it. */
uint64_t accrt_bundle_table_bytes(const accrt_bundle_t* bundle);
/* Opened with ACCRT_VERIFY_NO_DATA. */
int accrt_bundle_skips_digests(const accrt_bundle_t* bundle);
/* Offset of DATA in the file. */
uint64_t accrt_bundle_data_offset(const accrt_bundle_t* bundle);
/* Copies image `image` to `target` (images[image].size_bytes bytes). It compares the copy with the
 * digest that was verified at open: ACCRT_ERROR_DATA_CORRUPT if the file has changed since.
 * Thread-safe; may block on the file. */
accrt_status_t accrt_bundle_image_copy(accrt_bundle_t* bundle, uint32_t image, void* target);

/* ---- Look-ups: NONE if the name does not exist ---- */
uint32_t accrt_bundle_lookup_constant(const accrt_bundle_t* bundle, const char* name);
/* Returns the first function with that name. function_next has the others. */
uint32_t accrt_bundle_lookup_function(const accrt_bundle_t* bundle, const char* name);
/* Returns, of the functions with one name, the one for the driver, or else the one for any driver;
 * NONE without either. */
uint32_t accrt_bundle_function_for(const accrt_bundle_tables_t* tables, uint32_t first,
                                   const char* driver);
/* As accrt_bundle_argument_type_text, but for a function's record: the public function counts
 * names, and a name may have several records. False when the text is cut. */
bool accrt_bundle_record_type_text(const accrt_bundle_t* bundle, uint32_t record, uint32_t index,
                                   char* text, uint64_t capacity_bytes);
/* The launch record of a variant; NULL when it has none. */
const accx_launch_t* accrt_bundle_launch(const accrt_bundle_tables_t* tables, uint32_t variant);
uint32_t accrt_bundle_lookup_symbol(const accrt_bundle_t* bundle, const char* name);
uint32_t accrt_bundle_lookup_state(const accrt_bundle_t* bundle, const char* name);
uint32_t accrt_bundle_lookup_kernel(const accrt_bundle_t* bundle, const char* name);

/* The SHA-256 of the bytes that have this digest, in hexadecimal digits, as the metadata says; NULL
 * where it says nothing. The text is not checked. */
const char* accrt_bundle_sha256_of(const accrt_bundle_tables_t* tables,
                                   const accx_digest_t* digest);

/* ---- Reading commands ---- */

static inline const char* accrt_bundle_string(const accrt_bundle_tables_t* tables,
                                              uint32_t offset) {
  return tables->strings + offset;
}
static inline const accx_command_t* const*
accrt_bundle_block_commands(const accrt_bundle_tables_t* tables, uint32_t block) {
  /* NULL when no block has a command. */
  return tables->commands != NULL ? tables->commands + tables->block_first[block] : NULL;
}

#endif /* ACCRT_LOADER_BUNDLE_H_ */
