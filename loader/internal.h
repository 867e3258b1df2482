/* loader/internal.h - the bundle object and the verifier's context. Private to loader/. */
#ifndef ACCRT_LOADER_INTERNAL_H_
#define ACCRT_LOADER_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/trust.h"
#include "format/digest.h"
#include "runtime/core/utf8.h"
#include "loader/bundle.h"
#include "format/rules.h"
#include "loader/source.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"
#include "runtime/core/object.h"
#include "runtime/core/sync.h"

#define ACCX_MAX_NEEDED_SYMBOLS                                                                    \
  (1u << 22) /* of all functions together; limits the verifier's memory */

#define ACCX_CHUNK_LOCKS 16u

struct accrt_bundle {
  accrt_object_t object;
  accrt_instance_t* instance; /* not retained by the struct: each public reference retains it */
  const accrt_allocator_t* allocator;
  char* name;
  int folder_fd;   /* folder of the files that it names; -1: not opened by path, or names none */
  uint32_t verify; /* ACCRT_VERIFY_* */
  accx_source_t source;
  accrt_bundle_tables_t tables;
  /* A copy of all sections except CODE, DATA and unknown ones (accx_section_bytes). Behind it, the
   * records of older forms, widened. */
  unsigned char* metadata;
  size_t metadata_size_bytes;
  accx_section_t* section_table;
  char (*section_names)[17]; /* terminated */
  const unsigned char* command_stream;
  uint64_t command_stream_size_bytes;
  const accx_command_t** commands;
  uint32_t* block_first;
  uint32_t* function_command_count;
  uint32_t* function_first;
  uint32_t* function_next;
  uint32_t* named_functions;
  accx_digest_t* image_digests; /* computed at open, from bytes that matched CODE's digest */
  uint64_t code_offset;         /* offset in the file */
  uint64_t data_offset;
  accx_header_t* out_minimum; /* gets the computed versions, which are then not compared; or NULL */
  /* DATA in place (mapped, or the caller's memory), or an anonymous mapping that is read chunk by
   * chunk. */
  const unsigned char* data;
  bool data_in_place;
  void* mapping;
  size_t mapping_size_bytes;
  atomic_uchar* chunks; /* chunk_state_t */
  /* chunk i uses lock i modulo the number of locks while it is read */
  accrt_mutex_t chunk_locks[ACCX_CHUNK_LOCKS];
  /* Trust (trust.c). The lock guards the code root, after its computation, and the SHA-256 of each
   * host image. */
  accrt_mutex_t trust_lock;
  bool code_root_known;
  accrt_key_t code_root;
  accrt_key_t* image_roots;
  bool check_leaves; /* compare chunks with their leaves too */
  /* Encrypted weights (encryption.c): NULL without a key. */
  const struct accrt_crypto* crypto;
  unsigned char chunk_key[32];
  bool is_bound; /* the chunks were encrypted for this code root */
  accrt_key_t bound_root;
};

/* ---- data.c ---- */
accrt_status_t accx_data_open(accrt_bundle_t* bundle);
void accx_data_close(accrt_bundle_t* bundle);
/* Checks every chunk, and that gaps between components are zero. */
accrt_status_t accx_data_verify_all(accrt_bundle_t* bundle);
/* Reads a chunk as it is in the file (perhaps encrypted) and compares it with its digest. Blocks on
 * the file. */
accrt_status_t accx_data_file_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* target);

/* ---- The verifier ---- */
typedef struct accx_verifier {
  accrt_bundle_t* bundle;
  accrt_bundle_tables_t* tables;
  const accx_section_t* sections[64]; /* by type, for known sections; NULL when the file has none */
  /* The file needs a newer minor version, so unknown content is not an error. */
  bool newer;
  /* By expression: what it uses, see ACCX_USES_*. */
  uint16_t* expression_uses;
  /* A set of string offsets. Raising the epoch empties it. */
  uint32_t* set_keys;
  uint32_t* set_epochs;
  uint32_t* set_values;  /* by key: the value of the last accx_set_value */
  uint32_t set_capacity; /* power of two, at least twice the maximum number of keys */
  uint32_t set_epoch;
  uint64_t set_seed; /* random for each open: an attacker cannot choose keys that collide */
  /* By symbol: the last function (index + 1) that needed it, bound it, or got it by a SCALAR. */
  uint32_t* symbol_needed;
  uint32_t* symbol_bound;
  uint32_t* symbol_scalar;
  /* The symbols that a function needs from its callers, in runs of `needed`. */
  uint32_t* needed;
  size_t needed_capacity;
  uint32_t needed_count;
  struct accx_function_facts* facts;
  uint32_t* merged; /* by function: the last caller (index + 1) that took over its needed symbols */
  uint32_t* prepared_by; /* by constant: the function + 1 */
  uint32_t prepared_count;
  uint32_t next_block;
  uint32_t next_view;
  uint32_t commands_minor; /* that brought the latest of the bundle's opcodes */
} accx_verifier_t;

typedef struct accx_function_facts {
  uint32_t needed_first;
  uint32_t needed_count;
  uint32_t call_depth;
  bool impure; /* uses a constant, a state or a SESSION symbol, directly or in a call */
  uint64_t expanded_commands;
} accx_function_facts_t;

/* The nodes that an expression may refer to, and the place of the reference. */
typedef struct accx_scope {
  uint32_t first;
  uint32_t count;
  uint32_t allowed;      /* ACCX_USES_* */
  uint32_t repeat_depth; /* nesting of repeats at that place */
} accx_scope_t;

/* The status for a broken rule. */
accrt_status_t accx_rule_status(uint32_t rule);
/* Records a refusal: "<bundle>: <section>[<index>].<field>: <what> (rule N)". `index` and `field`
 * may be NONE and NULL. */
accrt_status_t accx_reject(const accx_verifier_t* verifier, accrt_error_place_t rule,
                           const char* section, uint32_t index, const char* field,
                           const char* format, ...) ACCRT_PRINTF(6, 7);
#define ACCX_REJECT(verifier, rule, section, index, field, ...)                                    \
  accx_reject((verifier), ACCRT_PLACE(ACCX_RULE_##rule), (section), (index), (field), __VA_ARGS__)

/* verify_container.c: header, section table, digests; copies all metadata into the bundle. */
accrt_status_t accx_verify_container(accx_verifier_t* verifier);
/* The bytes of a section by its index in the table, as they are in the file. NULL for CODE, DATA
 * and unknown sections, which are not copied. */
const unsigned char* accx_section_bytes(const accrt_bundle_t* bundle, uint32_t index);
/* Compares a section's digest with `found`. */
accrt_status_t accx_check_digest(const accx_verifier_t* verifier, const accx_section_t* section,
                                 const accx_digest_t* found);
/* verify_tables.c: strings, symbols, expressions, states. */
accrt_status_t accx_verify_strings(accx_verifier_t* verifier);
accrt_status_t accx_verify_symbols(accx_verifier_t* verifier);
accrt_status_t accx_verify_scopes(accx_verifier_t* verifier);
accrt_status_t accx_verify_states(accx_verifier_t* verifier);
/* verify_files.c: call it before the constants, which refer to files. */
accrt_status_t accx_verify_files(accx_verifier_t* verifier);
/* verify_constants.c */
accrt_status_t accx_verify_constants(accx_verifier_t* verifier);
/* verify_shards.c: shards and segments, then (after functions) adapters. */
accrt_status_t accx_verify_shards(accx_verifier_t* verifier);
accrt_status_t accx_verify_adapters(accx_verifier_t* verifier);
/* verify_trust.c: tree, signatures, encryption. */
accrt_status_t accx_verify_trust(accx_verifier_t* verifier);
/* verify_extras.c: assets and locations. */
accrt_status_t accx_verify_extras(accx_verifier_t* verifier);
/* verify_kernels.c */
accrt_status_t accx_verify_kernels(accx_verifier_t* verifier);
accrt_status_t accx_verify_images(accx_verifier_t* verifier);
/* verify_functions.c: the records alone, then signatures, slots and bodies. */
accrt_status_t accx_verify_function_table(accx_verifier_t* verifier);
accrt_status_t accx_verify_functions(accx_verifier_t* verifier);
/* verify_commands.c: the whole command stream, then the blocks of one function. */
accrt_status_t accx_verify_blocks(accx_verifier_t* verifier);
accrt_status_t accx_verify_body(accx_verifier_t* verifier, uint32_t function);
/* verify.c: all of the above, in order. */
accrt_status_t accx_verify(accrt_bundle_t* bundle);

/* reflect.c: fills the result of accrt_bundle_info. */
void accx_bundle_info(const accrt_bundle_t* bundle, accrt_bundle_info_t* out_info);
/* ACCRT_ENTER for a public function that takes the index of a record: it refuses a NULL bundle and
 * an index beyond the table. The count is read only where there is a bundle. */
#define ACCX_ENTER_INDEX(bundle, what, index, count_field)                                         \
  ACCRT_TRY(accx_enter_index(ACCRT_THIS_FUNCTION, (bundle), (what), (index),                       \
                             (bundle) != NULL ? (bundle)->tables.count_field : 0))
accrt_status_t accx_enter_index(const char* function, const accrt_bundle_t* bundle,
                                const char* what, uint32_t index, uint32_t count);
accrt_status_t accx_check_index(const accrt_bundle_t* bundle, const char* what, uint32_t index,
                                uint32_t count);
/* reflect.c: index of the asset with that name, or NONE. */
uint32_t accx_find_asset(const accrt_bundle_tables_t* tables, const char* name);
/* reflect_extras.c: index of a constant's shard, or NONE. */
uint32_t accx_shard_of(const accrt_bundle_tables_t* tables, uint32_t constant);

/* Helpers of the tables (verify_tables.c). */
accrt_status_t accx_check_string(const accx_verifier_t* verifier, uint32_t offset,
                                 const char* section, uint32_t index, const char* field);
accrt_status_t accx_check_name(const accx_verifier_t* verifier, uint32_t offset,
                               const char* section, uint32_t index, const char* field);
/* Checks a name that must come after `previous` in its table (0 for the first). */
accrt_status_t accx_check_ordered_name(const accx_verifier_t* verifier, uint32_t offset,
                                       uint32_t previous, const char* section, uint32_t index,
                                       const char* field);
/* Checks the index of an expression that is in use; NONE is refused. */
accrt_status_t accx_check_expression(const accx_verifier_t* verifier, const accx_scope_t* scope,
                                     uint32_t node, const char* section, uint32_t index,
                                     const char* field);
accrt_status_t accx_check_dtype(const accx_verifier_t* verifier, uint32_t dtype,
                                const char* section, uint32_t index, const char* field);
/* Fields that types and constants have in common. */
typedef struct accx_tensor_facts {
  uint32_t dtype;
  uint32_t encoding;
  uint32_t rank;
  uint32_t group_elements;
} accx_tensor_facts_t;
accrt_status_t accx_check_tensor(const accx_verifier_t* verifier, const accx_tensor_facts_t* facts,
                                 const char* section, uint32_t index);
accrt_status_t accx_check_type(const accx_verifier_t* verifier, const accx_scope_t* scope,
                               const accx_type_t* type, const char* section, uint32_t index);
/* Adds the symbols that `callee` needs from its callers to those of `function`. */
accrt_status_t accx_need_symbols_of(accx_verifier_t* verifier, uint32_t function, uint32_t callee);
void accx_set_clear(accx_verifier_t* verifier);
/* Adds a key; false when the set has it already. */
bool accx_set_add(accx_verifier_t* verifier, uint32_t key);
/* Returns the address of a key's value, valid until the set is cleared. A new key gets `value`. */
uint32_t* accx_set_value(accx_verifier_t* verifier, uint32_t key, uint32_t value);
/* Returns the address of the value that accx_set_value stored for a key; NULL without one. */
uint32_t* accx_set_find(const accx_verifier_t* verifier, uint32_t key);
/* Returns the string, or "?" for an unchecked offset that is invalid. For messages. */
const char* accx_verifier_text(const accx_verifier_t* verifier, uint32_t offset);

#endif /* ACCRT_LOADER_INTERNAL_H_ */
