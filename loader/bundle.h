/* loader/bundle.h - a validated bundle in memory, as the program layer reads it.
 *
 * Everything here has passed the verifier (loader/verify.c; docs/accx-format.md numbers the
 * checks): indices are in range, enums and flags are known, strings are terminated UTF-8, ranges
 * tile, blocks nest without cycles. A reader of these tables needs no check of its own on
 * structure. What no file can promise is left to whoever makes a plan: values of expressions, and
 * ranges against the size of what they lie in.
 *
 * The loader knows no device and no program. It may include runtime/core and the public headers.
 */
#ifndef ACCRT_LOADER_BUNDLE_H_
#define ACCRT_LOADER_BUNDLE_H_

#include <stdbool.h>

#include "accrt/bundle.h"
#include "loader/format.h"

/* Limits that the verifier enforces beyond those in format.h. */
#define ACCX_MAX_SECTIONS 64u
#define ACCX_MAX_METADATA_BYTES (UINT64_C(1) << 30) /* all sections but CODE and DATA together */
#define ACCX_MAX_CODE_BYTES (UINT64_C(1) << 32)
#define ACCX_MAX_RECORDS (1u << 24) /* of one section */
#define ACCX_MAX_STRING_BYTES 65535u
#define ACCX_MAX_NAME_BYTES 1023u /* of anything that is found by name */
#define ACCX_MAX_SYMBOL_VALUE (INT64_C(1) << 48)
#define ACCX_MAX_ARGUMENTS 4096u      /* of one function */
#define ACCX_MAX_BLOCK_DEPTH 16u      /* the function's body is depth 1 */
#define ACCX_MAX_CALL_DEPTH 16u       /* a function that calls none is depth 1 */
#define ACCX_MAX_FUNCTION_TARGETS 16u /* functions of one name */
#define ACCX_MAX_PACK_NAME_BYTES 127u
#define ACCX_MAX_BLOCK_THREADS 1024u
#define ACCX_MAX_CLUSTER_BLOCKS 64u
#define ACCX_MAX_EXPANDED_COMMANDS                                                                 \
  (UINT64_C(1) << 24) /* of one function, calls expanded, each repeat counted once */

/* The tables, as arrays. A pointer is NULL when its count is 0. All of it is private memory that
 * lives as long as the bundle. */
typedef struct accrt_bundle_tables {
  accx_header_t header;
  const accx_section_t* sections; /* as in the file, unknown ones too */
  uint32_t section_count;
  uint32_t string_count;
  const char* strings; /* string at offset o: accrt_bundle_string */
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
  const accx_tree_t* tree; /* NULL, or one */
  const accx_signature_t* signatures;
  const accx_leaf_t* leaves;           /* of chunks, as chunk_digests */
  const accx_encryption_t* encryption; /* NULL, or one */
  const accx_tag_t* tags;              /* of chunks, as chunk_digests */
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
  uint32_t command_count; /* in all blocks */
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
  /* Commands in all blocks of function f, its callees' not counted. */
  const uint32_t* function_command_count;
  /* By function: the first one of its name, and the next one of it or NONE. */
  const uint32_t* function_first;
  const uint32_t* function_next;
  /* One function for each name, in the order of their first: the one without a target, else the first. */
  const uint32_t* named_functions;
  uint32_t named_function_count;
} accrt_bundle_tables_t;

/* Borrowed; valid and unchanged as long as the bundle is. */
const accrt_bundle_tables_t* accrt_bundle_tables(const accrt_bundle_t* bundle);
/* The instance it was opened with, borrowed (each public reference of the bundle holds it). */
accrt_instance_t* accrt_bundle_instance(const accrt_bundle_t* bundle);
/* References that do not hold the instance, for what ends with it. */
void accrt_bundle_ref(accrt_bundle_t* bundle);
void accrt_bundle_unref(accrt_bundle_t* bundle);
/* Path, or the name given at open; "bundle" when there is none. For messages. */
const char* accrt_bundle_name(const accrt_bundle_t* bundle);

/* Host address of one component of an INLINE constant, 256-aligned, valid while the bundle is.
 * Checks the 1 MiB chunks that it touches before their first use (unless the bundle was opened with
 * ACCRT_VERIFY_NO_DATA); in place where the file is mapped or the memory given is aligned, else
 * read when first needed. Thread-safe; may block on the file. A component of 0 bytes gives a valid
 * address. Fails as accrt_bundle_constant_data. */
accrt_status_t accrt_bundle_constant_component(accrt_bundle_t* bundle, uint32_t constant,
                                               uint32_t component, const void** out_data,
                                               uint64_t* out_size_bytes);
/* Copies a part of one, which lies in it. Fails as accrt_bundle_constant_component. */
accrt_status_t accrt_bundle_constant_read(accrt_bundle_t* bundle, uint32_t constant,
                                          uint32_t component, uint64_t offset_bytes, void* target,
                                          uint64_t size_bytes);
/* Opens a file that the bundle names, in its folder; an internal reference. What the record says of it holds. */
accrt_status_t accrt_bundle_open_file(accrt_bundle_t* bundle, uint32_t file,
                                      accrt_weights_t** out_weights);
/* Opened with ACCRT_VERIFY_NO_DATA. */
int accrt_bundle_skips_digests(const accrt_bundle_t* bundle);
/* Where DATA begins in the file. */
uint64_t accrt_bundle_data_offset(const accrt_bundle_t* bundle);
/* Copies image `image` into `target` (images[image].size_bytes bytes) and checks the copy against
 * the digest of what was verified at open: a file that changed since is ACCRT_ERROR_DATA_CORRUPT.
 * Thread-safe; may block on the file. */
accrt_status_t accrt_bundle_image_copy(accrt_bundle_t* bundle, uint32_t image, void* target);

/* ---- Look-ups. NONE when there is no such name. ---- */
uint32_t accrt_bundle_lookup_constant(const accrt_bundle_t* bundle, const char* name);
/* The first function of that name; the others follow by function_next. */
uint32_t accrt_bundle_lookup_function(const accrt_bundle_t* bundle, const char* name);
/* Of the functions with that name, the one for the driver, else the one for any; NONE when it has neither. */
uint32_t accrt_bundle_function_for(const accrt_bundle_tables_t* tables, uint32_t first,
                                   const char* driver);
/* The launch record of a variant; NULL when it has none. */
const accx_launch_t* accrt_bundle_launch(const accrt_bundle_tables_t* tables, uint32_t variant);
/* A pack's name: letters, digits, '.', '_' and '-', and it begins with none of the last three. */
bool accx_pack_name_good(const char* name);
uint32_t accrt_bundle_lookup_symbol(const accrt_bundle_t* bundle, const char* name);
uint32_t accrt_bundle_lookup_state(const accrt_bundle_t* bundle, const char* name);
uint32_t accrt_bundle_lookup_kernel(const accrt_bundle_t* bundle, const char* name);

/* ---- Reading commands ---- */

static inline const char* accrt_bundle_string(const accrt_bundle_tables_t* tables,
                                              uint32_t offset) {
  return tables->strings + offset;
}
static inline const accx_command_t* const*
accrt_bundle_block_commands(const accrt_bundle_tables_t* tables, uint32_t block) {
  /* NULL where no block has a command. */
  return tables->commands != NULL ? tables->commands + tables->block_first[block] : NULL;
}
/* The opcode's own fields: an accx_dispatch_t, accx_copy_t, ... by opcode. */
static inline const void* accx_command_fields(const accx_command_t* command) {
  return command + 1;
}
static inline const accx_operand_t* accx_dispatch_operands(const accx_dispatch_t* dispatch) {
  return (const accx_operand_t*)(const void*)(dispatch + 1);
}
static inline const accx_operand_t* accx_call_operands(const accx_call_t* call) {
  return (const accx_operand_t*)(const void*)(call + 1);
}
/* Predecessors end the command, padded to 8 bytes: this holds for unknown opcodes too. */
static inline const uint32_t* accx_command_predecessors(const accx_command_t* command) {
  const size_t padded_bytes = ((size_t)command->predecessor_count * 4 + 7) & ~(size_t)7;
  return (const uint32_t*)(const void*)((const char*)(const void*)command + command->size_bytes -
                                        padded_bytes);
}
/* False for an ignorable opcode of a later version: it runs as a no-op that keeps its place in the
 * order. */
static inline int accx_command_known(const accx_command_t* command) {
  return command->opcode >= ACCX_COMMAND_DISPATCH && command->opcode <= ACCX_COMMAND_MARKER;
}

#endif /* ACCRT_LOADER_BUNDLE_H_ */
