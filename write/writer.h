/* write/writer.h - the state of a bundle writer. For write/writer*.c alone.
 *
 * The added parts are stored as records of the format (format/format.h), whose references are still
 * ids and string numbers. Writing copies them in canonical order and resolves the references. All
 * data of variable size is in one arena until the writer is released.
 */
#ifndef ACCRT_WRITE_WRITER_H_
#define ACCRT_WRITE_WRITER_H_

#include <stdbool.h>

#include <string.h>

#include "accrt/bundle.h"
#include "accrt/write/bundle_writer.h"
#include "format/commands.h"
#include "format/common.h"
#include "format/digest.h"
#include "format/names.h"
#include "runtime/core/utf8.h"
#include "runtime/core/error.h"
#include "runtime/core/guard.h"
#include "runtime/core/memory.h"
#include "runtime/core/near_name.h"
#include "runtime/core/sha256.h"
#include "write/below.h"

/* The kinds of items. The first ones have public ids: kind << 24 | index. */
typedef enum writer_kind {
  WRITER_NONE,
  WRITER_EXPRESSION,
  WRITER_CONSTANT,
  WRITER_STATE,
  WRITER_IMAGE,
  WRITER_KERNEL,
  WRITER_FUNCTION,
  WRITER_BLOCK,
  WRITER_SLOT,
  WRITER_COMMAND,
  WRITER_FILE,
  WRITER_LOCATION,
  WRITER_ID_KINDS, /* the kinds before it have public ids */
  WRITER_SYMBOL = WRITER_ID_KINDS,
  WRITER_METADATA,
  WRITER_VARIANT,
  WRITER_ARGUMENT,
  WRITER_VIEW,
  WRITER_STRING,
  WRITER_SECTION,
  WRITER_SHARD,
  WRITER_ADAPTER,
  WRITER_ASSET,
  WRITER_KEY,
  WRITER_KINDS,
  /* Only keys of names: */
  WRITER_INPUT,
  WRITER_RESULT,
} writer_kind_t;
#define WRITER_INDEX_BITS 24
#define WRITER_INDEX(id) ((id) & ((1u << WRITER_INDEX_BITS) - 1))
#define WRITER_NO ACCX_NONE /* no index */

/* Items of one size, in the order of adding. */
typedef struct writer_items {
  unsigned char* data;
  size_t capacity;
  uint32_t count;
  uint32_t item_bytes;
} writer_items_t;

typedef struct writer_string {
  const char* text;
  uint32_t size_bytes; /* without the NUL */
  uint32_t kept;       /* stored even without a reference from a record */
} writer_string_t;

/* A key for a name or a combination, with its value. One hash table has the keys of all kinds. */
typedef struct writer_key {
  uint32_t kind; /* writer_kind_t; expressions: | op << 8 */
  uint32_t a, b, c;
  int64_t d;
  uint32_t value;
  uint32_t reserved;
} writer_key_t;

typedef struct writer_symbol {
  accx_symbol_t record;
  const int64_t* buckets;
} writer_symbol_t;

/* A node. Its operands are indices of expressions. The immediate of SYMBOL is the symbol's index,
 * that of PRESENT the argument's. */
typedef struct writer_expression {
  accx_expression_t node;
  /* ACCX_USES_*, and the required nesting of repeats << 8, as the verifier counts them */
  uint32_t uses;
  uint32_t reserved;
} writer_expression_t;

typedef struct writer_constant {
  accx_constant_t record;
  const accx_component_t* components;
  const accrt_writer_bytes_t* bytes; /* by component */
} writer_constant_t;

typedef struct writer_image {
  accx_image_t record;
  accrt_writer_bytes_t bytes;
} writer_image_t;

typedef struct writer_kernel {
  accx_kernel_t record;
  const accx_parameter_t* parameters;
  uint32_t first_variant, last_variant;
} writer_kernel_t;

typedef struct writer_variant {
  accx_variant_t record;
  const accx_predicate_t* predicates;
  accx_launch_t launch;
  bool has_launch;
  uint32_t kernel;
  uint32_t next;
} writer_variant_t;

typedef struct writer_function {
  accx_function_t record; /* body: index of its block; transient_size: an id or 0 */
  uint32_t first_input, last_input;
  uint32_t first_result, last_result;
  uint32_t first_slot; /* without those of arguments */
  uint32_t arena;      /* slot */
  uint32_t first_call; /* CALL commands */
  uint32_t
      /* while writing: depth of its calls; WRITER_NO: unknown, WRITER_NO - 1: in computation */
      depth;
} writer_function_t;

typedef struct writer_argument {
  accx_argument_t record; /* alias_input: index among the inputs, as in the format */
  uint32_t function;
  uint32_t index; /* among the inputs or the results */
  uint32_t next;
  uint32_t aliased; /* an input whose storage a result shares */
} writer_argument_t;

typedef struct writer_slot {
  uint32_t function;
  uint32_t kind;   /* ACCX_SLOT_* */
  uint32_t target; /* ARGUMENT: index of the argument; CONSTANT, STATE: id */
  uint32_t component;
  uint32_t next;   /* next slot of the function, without those of arguments */
  uint32_t number; /* while writing: number in the file; for arguments, see the argument */
  bool used;
} writer_slot_t;

typedef struct writer_block {
  uint32_t function;
  uint32_t first, last, count; /* commands */
  uint32_t depth;              /* 1: a function's body */
  uint32_t repeat_depth;
  uint32_t number; /* while writing: number in the file */
} writer_block_t;

typedef struct writer_command {
  accx_command_t
      header; /* location: an id or 0; size_bytes: without predecessors and this header */
  const uint32_t* predecessors;
  const void* body;
  uint32_t block;
  uint32_t index;
  uint32_t next;      /* next command of the block */
  uint32_t next_call; /* next call of the function */
  uint32_t blocks[2]; /* of REPEAT and BRANCH; or WRITER_NO */
} writer_command_t;

typedef struct writer_section {
  uint32_t type;
  uint32_t flags;
  char name[17];
  uint32_t record_bytes;
  uint32_t record_count;
  accrt_writer_bytes_t bytes;
} writer_section_t;

typedef struct writer_shard {
  accx_shard_t record; /* constant: an id */
  const accx_segment_t* segments;
} writer_shard_t;

typedef struct writer_asset {
  accx_asset_t record;
  accrt_writer_bytes_t bytes;
} writer_asset_t;

/* The subject of the current call, for messages. */
typedef struct writer_where {
  const char* kind; /* such as "kernel"; NULL: none */
  const char* name;
  uint32_t function;     /* index, or WRITER_NO */
  uint32_t command;      /* index in its block: `kind` is its opcode's name; or WRITER_NO */
  const char* part_kind; /* such as "parameter" */
  const char* part;
} writer_where_t;

struct accrt_bundle_writer {
  accrt_guard_t guard;
  accrt_allocator_t allocator;
  accrt_caps_t target;
  bool has_target;
  uint64_t optional_features;
  struct writer_chunk* chunks; /* memory of the arena */
  writer_items_t items[WRITER_KINDS];
  uint32_t* key_table; /* index of a key or string + 1; open addressing, at most half full */
  size_t key_capacity;
  uint32_t* string_table;
  size_t string_capacity;
  const char* operation; /* the running public function */
  writer_where_t where;
  struct writer_signing* signing; /* writer_sign.c; NULL: no signer was set */
};

/* ---- writer.c: memory, names, messages ---- */

/* Begins a public function: WRITER_ENTER. Refuses a NULL writer, and one that a function is in. */
accrt_status_t accx_writer_begin(accrt_bundle_writer_t* writer, const char* operation,
                                 const char* kind, const char* name);
/* Begins a public function, whose subject is `name` of this kind. The function is in the writer
 * until it returns. */
#define WRITER_ENTER(writer, kind, name)                                                           \
  ACCRT_TRY(accx_writer_begin((writer), ACCRT_THIS_FUNCTION, (kind), (name)));                     \
  WRITER_INSIDE(writer)
#define WRITER_INSIDE(writer)                                                                      \
  accrt_guard_t* const inside_ __attribute__((cleanup(accrt_guard_leave), unused)) =               \
      &(writer)->guard
/* The same for functions that return an id, which is 0 before anything else. */
#define WRITER_ENTER_FOR(writer, kind, name, out_id)                                               \
  if ((out_id) != NULL)                                                                            \
    *(out_id) = 0;                                                                                 \
  WRITER_ENTER(writer, kind, name);                                                                \
  ACCRT_TRY(accx_writer_out((writer), (out_id)))
/* Sets the subject of messages to an item of this kind and name; NONE for no subject. A command is
 * not the subject any more. The function stays. */
void accx_writer_at(accrt_bundle_writer_t* writer, writer_kind_t kind, uint32_t name);
accrt_status_t accx_writer_fail(const accrt_bundle_writer_t* writer, accrt_error_place_t place,
                                const char* format, ...) ACCRT_PRINTF(3, 4);
#define WRITER_FAIL(writer, status, ...)                                                           \
  accx_writer_fail((writer), ACCRT_PLACE(ACCRT_ERROR_##status), __VA_ARGS__)

/* Refuses a value in a reserved field. */
accrt_status_t accx_writer_reserved(const accrt_bundle_writer_t* writer, uint32_t reserved);
/* Sets a result to 0; refuses NULL. */
accrt_status_t accx_writer_out(const accrt_bundle_writer_t* writer, accrt_writer_id_t* out_id);
/* The start of functions that take a struct with a name: `local` gets a copy of the caller's. */
#define WRITER_BEGIN(writer, given, local, what, out_id)                                           \
  WRITER_ENTER_FOR(writer, what, NULL, out_id);                                                    \
  ACCRT_TRY(accrt_struct_read("accrt_writer_" what "_t", (given), (local), sizeof *(local)));      \
  (writer)->where.name = (local)->name

/* Zeroed memory of the arena, 16-aligned. */
accrt_status_t accx_writer_reserve(accrt_bundle_writer_t* writer, size_t size_bytes, void** out);
/* Copies bytes to the arena. */
accrt_status_t accx_writer_copy(accrt_bundle_writer_t* writer, const void* bytes, size_t size_bytes,
                                const void** out);
/* Reserves a zeroed item of a kind. accx_writer_commit adds it. Existing pointers to items of the
 * kind become invalid. */
accrt_status_t accx_writer_new(accrt_bundle_writer_t* writer, writer_kind_t kind, void* out_item);
/* Adds the reserved item, and returns its index. */
uint32_t accx_writer_commit(accrt_bundle_writer_t* writer, writer_kind_t kind);
/* The item with this index. */
void* accx_writer_item(const accrt_bundle_writer_t* writer, writer_kind_t kind, uint32_t index);
#define WRITER_ITEM(writer, type, kind, index)                                                     \
  ((writer_##type##_t*)accx_writer_item((writer), (kind), (index)))
static inline accrt_writer_id_t accx_writer_id(writer_kind_t kind, uint32_t index) {
  return (uint32_t)kind << WRITER_INDEX_BITS | index;
}
static inline writer_function_t* accx_writer_function_at(const accrt_bundle_writer_t* writer,
                                                         uint32_t index) {
  return WRITER_ITEM(writer, function, WRITER_FUNCTION, index);
}
/* The index of an id's item. With `optional` the id may be 0, which gives WRITER_NO. `field` is for
 * the message. */
accrt_status_t accx_writer_index(const accrt_bundle_writer_t* writer, writer_kind_t kind,
                                 accrt_writer_id_t id, bool optional, const char* field,
                                 uint32_t* out_index);

/* The number of a string; NULL is "". */
accrt_status_t accx_writer_string(accrt_bundle_writer_t* writer, const char* text,
                                  const char* field, uint32_t* out_string);
/* The same for a name, which may not be empty. */
accrt_status_t accx_writer_name(accrt_bundle_writer_t* writer, const char* text, const char* field,
                                uint32_t* out_string);
const char* accx_writer_text(const accrt_bundle_writer_t* writer, uint32_t string);

/* The value of a key, or WRITER_NO. */
uint32_t accx_writer_find(const accrt_bundle_writer_t* writer, const writer_key_t* key);
/* Makes room, so that the next accx_writer_put cannot fail. */
accrt_status_t accx_writer_make_room(accrt_bundle_writer_t* writer);
void accx_writer_put(accrt_bundle_writer_t* writer, const writer_key_t* key, uint32_t value);
/* Refuses an existing key, otherwise works as accx_writer_make_room. */
accrt_status_t accx_writer_claim(accrt_bundle_writer_t* writer, const writer_key_t* key);
/* Adds an item whose name must be new for its kind. It checks and claims the name, copies `item`
 * with the name's string at `name_offset`, and returns the item's id. */
accrt_status_t accx_writer_add_named(accrt_bundle_writer_t* writer, writer_kind_t kind,
                                     const char* name, void* item, size_t name_offset,
                                     accrt_writer_id_t* out_id);
/* "; did you mean ...": similar names among the keys of that kind and `b`. `buffer` holds the
 * text. */
const char* accx_writer_near(const accrt_bundle_writer_t* writer, uint32_t kind, uint32_t b,
                             const char* wanted, accrt_near_t* buffer);

/* Such as "kernel". */
const char* accx_writer_kind_name(uint32_t kind);
/* Such as "dispatch"; "command" for opcodes that this library does not know. */
const char* accx_writer_opcode_name(uint32_t opcode);

/* ---- writer_parts.c ---- */

/* What an expression may use at its place. */
typedef struct writer_place {
  uint32_t allowed; /* ACCX_USES_* */
  uint32_t repeat_depth;
  bool size; /* the value may not be negative */
} writer_place_t;
accrt_status_t accx_writer_use(const accrt_bundle_writer_t* writer, accrt_writer_id_t id,
                               const writer_place_t* place, const char* field);
accrt_status_t accx_writer_type(const accrt_bundle_writer_t* writer,
                                const accrt_writer_type_t* type, uint32_t allowed,
                                accx_type_t* out_type);
/* Returns the id of a number. */
accrt_status_t accx_writer_number(accrt_bundle_writer_t* writer, int64_t value,
                                  accrt_writer_id_t* out_id);
accrt_status_t accx_writer_node(accrt_bundle_writer_t* writer, const accx_expression_t* node,
                                uint32_t uses, accrt_writer_id_t* out_id);

/* Finds a kernel's parameter by name, or WRITER_NO with similar names, as accx_writer_near. */
uint32_t accx_writer_parameter(const accrt_bundle_writer_t* writer, const writer_kernel_t* kernel,
                               const char* name);
const char* accx_writer_near_parameter(const accrt_bundle_writer_t* writer,
                                       const writer_kernel_t* kernel, const char* wanted,
                                       accrt_near_t* buffer);

/* ---- writer_encode.c, writer_file.c ---- */

/* Bytes from a source, and their offset in the section. Gaps between pieces are zeros. */
typedef struct writer_piece {
  uint64_t offset_bytes;
  const accrt_writer_bytes_t* bytes;
  uint32_t kind; /* kind and name of their owner, for messages */
  uint32_t name;
} writer_piece_t;

/* A section of the future file. */
typedef struct writer_part {
  accx_section_t section;       /* the digest is set when it is known */
  const unsigned char* content; /* or NULL: the bytes come from pieces */
  const writer_piece_t* pieces;
  uint32_t piece_count;
  unsigned char sha256[ACCRT_SHA256_BYTES]; /* with a signer, for sections under the code root */
} writer_part_t;

/* State of writing one file. Items that are left out for the target have no rank. */
typedef struct writer_encoder {
  accrt_bundle_writer_t* writer;
  writer_items_t sections[ACCX_MAX_SECTIONS]; /* by type: sections in memory */
  uint32_t* order[WRITER_KINDS];              /* indices in the order of the file */
  uint32_t* rank[WRITER_KINDS];               /* positions by index; WRITER_NO: not in the file */
  uint32_t order_count[WRITER_KINDS];
  uint32_t* string_offsets; /* by string number; WRITER_NO: not in the file */
  uint32_t string_count;
  uint32_t* scope_epochs; /* by expression: the last scope with it */
  uint32_t* scope_nodes;  /* by expression: its node in that scope */
  writer_items_t stack;   /* expressions in progress */
  uint32_t epoch;
  uint32_t scope_first;  /* record of the scope's first node */
  uint32_t function;     /* the current function, or WRITER_NO */
  writer_items_t blocks; /* blocks of that function, in the order of the file */
  writer_items_t slots;  /* slots of that function, likewise */
  uint32_t* view_table;  /* views of that function: record + 1, open addressing */
  uint32_t* view_epochs;
  size_t view_capacity;
  accrt_writer_id_t zero;   /* the number 0 as an expression */
  writer_items_t pieces[3]; /* of ASSET_DATA, CODE and DATA */
  uint64_t pulled_bytes[3];
  uint32_t command_count;
  writer_part_t parts[ACCX_MAX_SECTIONS];
  uint32_t part_count;
  writer_piece_t* raw_pieces; /* by position of a WRITER_SECTION */
  accx_header_t header;
  accx_section_t table[ACCX_MAX_SECTIONS]; /* after the header in the file */
  unsigned char* buffer;                   /* WRITER_BUFFER_BYTES, for bytes from sources */
  uint64_t known[ACCX_NUMBERS_VARIANT_FEATURE + 1]; /* by accx_numbers_t: what the target knows */
} writer_encoder_t;
enum { WRITER_PULLED_ASSETS, WRITER_PULLED_CODE, WRITER_PULLED_DATA };
#define WRITER_BUFFER_BYTES ((size_t)4 << 20)

accrt_status_t accx_writer_encode(writer_encoder_t* encoder);
void accx_writer_encode_end(writer_encoder_t* encoder);

/* Returns a section of the file, or NULL. */
writer_part_t* accx_writer_part(writer_encoder_t* encoder, uint32_t type);
/* Makes zeroed records of a section in memory. */
accrt_status_t accx_writer_make_records(writer_encoder_t* encoder, uint32_t type, uint64_t count);

/* ---- writer_sign.c ---- */

void accx_writer_free_signing(accrt_bundle_writer_t* writer);
/* True when the code root is needed. `out_crypto` gets the implementation of SHA-256; NULL is the
 * library's own. */
bool accx_writer_makes_root(const accrt_bundle_writer_t* writer,
                            const struct accrt_crypto** out_crypto);
/* Reserves tree, leaves and signatures if there is a signer. Call it before the sections are laid
 * out. */
accrt_status_t accx_writer_place_signatures(writer_encoder_t* encoder);
/* Computes the code root from the sections' digests. */
void accx_writer_make_root(writer_encoder_t* encoder);
/* Computes the leaf of a chunk, if there are leaves. */
void accx_writer_leaf(writer_encoder_t* encoder, uint64_t index, const void* bytes,
                      size_t size_bytes);
/* Signs. Call it when all leaves are computed. */
accrt_status_t accx_writer_sign(writer_encoder_t* encoder);

/* ---- writer_target.c ---- */

/* Leaves out optional parts that the target does not know, and refuses required ones. Call it
 * before encoding. */
accrt_status_t accx_writer_fit(writer_encoder_t* encoder);
/* Refuses the part that is being encoded if the target does not know it. The writer's `where` names
 * the part. */
accrt_status_t accx_writer_need(const writer_encoder_t* encoder, accx_numbers_t numbers,
                                uint32_t number);
accrt_status_t accx_writer_need_type(const writer_encoder_t* encoder, uint32_t dtype,
                                     uint32_t encoding, uint32_t rank, uint32_t group_elements);
accrt_status_t accx_writer_need_container(const writer_encoder_t* encoder, uint32_t minor,
                                          const char* what);
/* Refuses a file if the target lacks something that it needs as a whole: sections, features,
 * versions. Call it before writing. */
accrt_status_t accx_writer_check_target(const writer_encoder_t* encoder);

/* ---- writer_devices.c ---- */

/* Refuses a bundle that no device of the target can run completely. Call it after the items are
 * sorted. */
accrt_status_t accx_writer_check_devices(const writer_encoder_t* encoder);

#endif /* ACCRT_WRITE_WRITER_H_ */
