/* loader/internal.h - the bundle object and the verifier's context. Private to loader/. */
#ifndef ACCRT_LOADER_INTERNAL_H_
#define ACCRT_LOADER_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/trust.h"
#include "loader/bundle.h"
#include "loader/digest.h"
#include "loader/rules.h"
#include "loader/source.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/object.h"
#include "runtime/core/sync.h"

#define ACCX_MAX_LOCAL_MEMORY_BYTES (256u << 20)
#define ACCX_MAX_NEEDED_SYMBOLS                                                                    \
  (1u << 22) /* of all functions together: bounds the verifier's memory */

#define ACCX_CHUNK_LOCKS 16u

/* What the format says of one section. */
typedef struct accx_section_kind {
  uint16_t type;
  uint16_t record_bytes; /* of the newest form: loader/upgrade.h has the others */
  uint16_t alignment;
  bool required;
  uint8_t since_minor; /* container minor that brought it */
  char name[16];       /* in place: a pointer would be relocated when the library is loaded */
} accx_section_kind_t;
/* NULL for sections this library does not know. */
const accx_section_kind_t* accx_section_kind(uint32_t type);

struct accrt_bundle {
  accrt_object_t object;
  accrt_instance_t* instance; /* borrowed: each public reference holds it */
  const accrt_allocator_t* allocator;
  char* name;
  int folder_fd;   /* where files that it names are; -1: it was not opened by path, or names none */
  uint32_t verify; /* ACCRT_VERIFY_* */
  accx_source_t source;
  accrt_bundle_tables_t tables;
  /* All sections but CODE, DATA and unknown ones, copied (accx_section_bytes); then the records of those of an
   * older form, widened. */
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
  accx_digest_t* image_digests; /* made at open, from the bytes that matched CODE's digest */
  uint64_t code_offset;         /* in the file */
  uint64_t data_offset;
  accx_header_t*
      out_minimum; /* where the computed versions go instead of being compared; or NULL */
  /* DATA: in place (mapped, or the caller's memory), or an anonymous mapping that is read into
   * chunk by chunk. */
  const unsigned char* data;
  bool data_in_place;
  void* mapping;
  size_t mapping_size_bytes;
  atomic_uchar* chunks;                        /* chunk_state_t */
  accrt_mutex_t chunk_locks[ACCX_CHUNK_LOCKS]; /* of every so many-th chunk, while it is read */
  /* Trust (trust.c). Under the lock: the code root, once it has been computed, and SHA-256 of each host image. */
  accrt_mutex_t trust_lock;
  bool code_root_known;
  accrt_key_t code_root;
  accrt_key_t* image_roots;
  bool check_leaves; /* chunks are checked against their leaves too */
  /* Encrypted weights (encryption.c): NULL while there is no key. */
  const struct accrt_crypto* crypto;
  unsigned char chunk_key[32];
};

/* ---- data.c ---- */
accrt_status_t accx_data_open(accrt_bundle_t* bundle);
void accx_data_close(accrt_bundle_t* bundle);
/* Checks every chunk, and that the gaps between components are zero. */
accrt_status_t accx_data_verify_all(accrt_bundle_t* bundle);
/* A chunk as it is in the file (encrypted, where it is), checked against its digest. Blocks on the file. */
accrt_status_t accx_data_file_chunk(accrt_bundle_t* bundle, uint32_t chunk, void* target);

/* ---- open.c ---- */
/* Verifies what a reader gives, but for DATA and the versions in its header, whose computed minimum it gives. For writers. */
accrt_status_t accx_check_bytes(const accrt_allocator_t* allocator, const accrt_reader_t* reader,
                                accx_header_t* out_minimum);

/* ---- The verifier ---- */
typedef struct accx_verifier {
  accrt_bundle_t* bundle;
  accrt_bundle_tables_t* tables;
  const accx_section_t* sections[64]; /* known ones by type, NULL when the file has none */
  /* The file needs a newer minor of something: what is unknown is no mistake of the file. */
  bool newer;
  /* What each expression is made of: see ACCX_USES_*. */
  uint16_t* expression_uses;
  /* A set of string offsets with epochs, emptied by counting the epoch up. */
  uint32_t* set_keys;
  uint32_t* set_epochs;
  uint32_t* set_values;  /* what the last accx_set_value of the key left there */
  uint32_t set_capacity; /* power of two, at least twice what is ever put in */
  uint32_t set_epoch;
  /* Per symbol: last function (index + 1) that needed, bound, or got it by a SCALAR. */
  uint32_t* symbol_needed;
  uint32_t* symbol_bound;
  uint32_t* symbol_scalar;
  /* Symbols that callers of a function must have: runs in `needed`. */
  uint32_t* needed;
  size_t needed_capacity;
  uint32_t needed_count;
  struct accx_function_facts* facts;
  uint32_t* prepared_by; /* per constant: function + 1 */
  uint32_t prepared_count;
  uint32_t next_block;
  uint32_t next_view;
} accx_verifier_t;

typedef struct accx_function_facts {
  uint32_t needed_first;
  uint32_t needed_count;
  uint32_t call_depth;
  bool impure; /* touches a constant, a state or a SESSION symbol, itself or through a call */
  uint64_t expanded_commands;
} accx_function_facts_t;

/* Bits of expression_uses: symbol classes in the low four, then PRESENT; the high byte is the
 * repeat depth needed. */
#define ACCX_USES_SPECIALIZE (1u << ACCX_SYMBOL_SPECIALIZE)
#define ACCX_USES_BUCKET (1u << ACCX_SYMBOL_BUCKET)
#define ACCX_USES_RUNTIME (1u << ACCX_SYMBOL_RUNTIME)
#define ACCX_USES_SESSION (1u << ACCX_SYMBOL_SESSION)
#define ACCX_USES_SYMBOLS 15u
#define ACCX_USES_PRESENT 16u
#define ACCX_USES_ANY 31u

/* Nodes that may be referred to, and from where. */
typedef struct accx_scope {
  uint32_t first;
  uint32_t count;
  uint32_t allowed;      /* ACCX_USES_* */
  uint32_t repeat_depth; /* of the place */
} accx_scope_t;

/* What breaking a rule is. */
accrt_status_t accx_rule_status(uint32_t rule);
/* Records a refusal: "<bundle>: <section>[<index>].<field>: <what> (rule N)". `index` and `field`
 * may be NONE and NULL. */
accrt_status_t accx_reject(const accx_verifier_t* verifier, uint32_t rule, const char* file,
                           uint32_t line, const char* section, uint32_t index, const char* field,
                           const char* format, ...) ACCRT_PRINTF(8, 9);
#define ACCX_REJECT(verifier, rule, section, index, field, ...)                                    \
  accx_reject((verifier), ACCX_RULE_##rule, __FILE__, (uint32_t)__LINE__, (section), (index),      \
              (field), __VA_ARGS__)

/* verify_container.c: header, section table, digests; copies all metadata into the bundle. */
accrt_status_t accx_verify_container(accx_verifier_t* verifier);
/* The bytes of the section with that index in the table, as they are in the file; NULL for CODE, DATA and unknown
 * ones, which are not copied. */
const unsigned char* accx_section_bytes(const accrt_bundle_t* bundle, uint32_t index);
/* A section's digest is `found`. */
accrt_status_t accx_check_digest(const accx_verifier_t* verifier, const accx_section_t* section,
                                 const accx_digest_t* found);
/* verify_tables.c: strings, symbols, expressions, states. */
accrt_status_t accx_verify_strings(accx_verifier_t* verifier);
accrt_status_t accx_verify_symbols(accx_verifier_t* verifier);
accrt_status_t accx_verify_scopes(accx_verifier_t* verifier);
accrt_status_t accx_verify_states(accx_verifier_t* verifier);
/* verify_files.c: before the constants that are in them. */
accrt_status_t accx_verify_files(accx_verifier_t* verifier);
/* verify_constants.c */
accrt_status_t accx_verify_constants(accx_verifier_t* verifier);
/* verify_shards.c: shards and segments, then (after functions) adapters. */
accrt_status_t accx_verify_shards(accx_verifier_t* verifier);
accrt_status_t accx_verify_adapters(accx_verifier_t* verifier);
/* One component of a path, and neither this folder nor the one above. */
bool accx_file_name_good(const char* name);
/* Product of three sizes when each is 1 to `limit`, else 0. */
uint64_t accx_volume(const uint32_t sizes[3], uint32_t limit);
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
/* verify_commands.c: the command stream as a whole, then the blocks of one function. */
accrt_status_t accx_verify_blocks(accx_verifier_t* verifier);
accrt_status_t accx_verify_body(accx_verifier_t* verifier, uint32_t function);
/* verify.c: all of the above, in order. */
accrt_status_t accx_verify(accrt_bundle_t* bundle);
void accx_verify_minimum(const accrt_bundle_tables_t* tables, accx_header_t* out_versions);

/* reflect.c: what public functions with an index begin with; `operation` is the one that was called. */
accrt_status_t accx_check_index(const char* operation, const accrt_bundle_t* bundle,
                                const char* what, uint32_t index, uint32_t count);
/* reflect_extras.c: index of a constant's shard, or NONE. */
uint32_t accx_shard_of(const accrt_bundle_tables_t* tables, uint32_t constant);

/* Helpers of the tables (verify_tables.c). */
accrt_status_t accx_check_string(const accx_verifier_t* verifier, uint32_t offset,
                                 const char* section, uint32_t index, const char* field);
accrt_status_t accx_check_name(const accx_verifier_t* verifier, uint32_t offset,
                               const char* section, uint32_t index, const char* field);
/* A name that comes after `previous` in its table (0 for the first). */
accrt_status_t accx_check_ordered_name(const accx_verifier_t* verifier, uint32_t offset,
                                       uint32_t previous, const char* section, uint32_t index,
                                       const char* field);
/* An expression in use; NONE is refused. */
accrt_status_t accx_check_expression(const accx_verifier_t* verifier, const accx_scope_t* scope,
                                     uint32_t node, const char* section, uint32_t index,
                                     const char* field);
accrt_status_t accx_check_dtype(const accx_verifier_t* verifier, uint32_t dtype,
                                const char* section, uint32_t index, const char* field);
/* What a type and a constant have in common. */
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
/* The symbols that `callee` leaves to its callers are needed by `function` too. */
accrt_status_t accx_need_symbols_of(accx_verifier_t* verifier, uint32_t function, uint32_t callee);
/* Where a text stops being UTF-8: at its end when it is. */
size_t accx_utf8_check(const char* text);
void accx_set_clear(accx_verifier_t* verifier);
/* False when it is there already. */
bool accx_set_add(accx_verifier_t* verifier, uint32_t key);
/* Where a key of the set has its value, valid until the set is cleared; a key that was not there is added with `value`. */
uint32_t* accx_set_value(accx_verifier_t* verifier, uint32_t key, uint32_t value);
/* The value of a key that accx_set_value put there; NULL when it is not there. */
uint32_t* accx_set_find(const accx_verifier_t* verifier, uint32_t key);
/* The string, or "?" for a reference that has not been checked yet and is not one. For messages. */
const char* accx_text(const accx_verifier_t* verifier, uint32_t offset);

#endif /* ACCRT_LOADER_INTERNAL_H_ */
