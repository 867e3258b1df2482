/* write/writer.c - a bundle writer's lifetime, memory, names and messages. It knows no particular
 * part of a bundle, and no file. */
#include "write/writer.h"

#include <stdatomic.h>
#include <stdio.h>

#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"

#define CHUNK_BYTES ((size_t)64 * 1024)
#define MAX_DETAIL_BYTES 400

/* ---- The arena ---- */

typedef struct writer_chunk {
  struct writer_chunk* next;
  size_t size_bytes; /* of the whole chunk, this header included */
  size_t used_bytes;
  size_t reserved;
} writer_chunk_t;
_Static_assert(sizeof(writer_chunk_t) % 16 == 0, "what follows is aligned");

accrt_status_t accx_writer_reserve(accrt_bundle_writer_t* writer, size_t size_bytes, void** out) {
  size_t wanted;
  if (__builtin_add_overflow(size_bytes, sizeof(writer_chunk_t) + 15, &wanted))
    return WRITER_FAIL(writer, OUT_OF_MEMORY, "%zu bytes cannot be had", size_bytes);
  wanted &= ~(size_t)15;
  const size_t size = wanted - sizeof(writer_chunk_t);
  writer_chunk_t* chunk = writer->chunks;
  if (chunk == NULL || chunk->size_bytes - chunk->used_bytes < size) {
    const size_t total = wanted > CHUNK_BYTES ? wanted : CHUNK_BYTES;
    void* memory;
    ACCRT_TRY(accrt_alloc(&writer->allocator, total, &memory));
    chunk = memory;
    *chunk = (writer_chunk_t){writer->chunks, total, sizeof *chunk, 0};
    writer->chunks = chunk;
  }
  *out = (unsigned char*)chunk + chunk->used_bytes;
  chunk->used_bytes += size;
  return ACCRT_OK;
}

accrt_status_t accx_writer_copy(accrt_bundle_writer_t* writer, const void* bytes, size_t size_bytes,
                                const void** out) {
  void* copy;
  ACCRT_TRY(accx_writer_reserve(writer, size_bytes, &copy));
  if (size_bytes != 0)
    memcpy(copy, bytes, size_bytes);
  *out = copy;
  return ACCRT_OK;
}

/* ---- Items ---- */

/* By writer_kind_t: name for messages, and size. */
static const struct {
  /* in place, because a pointer would need a relocation when the library is loaded */
  char name[14];
  uint16_t item_bytes;
} kinds[WRITER_KINDS] = {
    [WRITER_NONE] = {"nothing", 0},
    [WRITER_EXPRESSION] = {"expression", sizeof(writer_expression_t)},
    [WRITER_CONSTANT] = {"constant", sizeof(writer_constant_t)},
    [WRITER_STATE] = {"state", sizeof(accx_state_t)},
    [WRITER_IMAGE] = {"image", sizeof(writer_image_t)},
    [WRITER_KERNEL] = {"kernel", sizeof(writer_kernel_t)},
    [WRITER_FUNCTION] = {"function", sizeof(writer_function_t)},
    [WRITER_BLOCK] = {"block", sizeof(writer_block_t)},
    [WRITER_SLOT] = {"slot", sizeof(writer_slot_t)},
    [WRITER_COMMAND] = {"command", sizeof(writer_command_t)},
    [WRITER_FILE] = {"file", sizeof(accx_file_t)},
    [WRITER_LOCATION] = {"location", sizeof(accx_location_t)},
    [WRITER_SYMBOL] = {"symbol", sizeof(writer_symbol_t)},
    [WRITER_METADATA] = {"metadata key", sizeof(accx_metadata_t)},
    [WRITER_VARIANT] = {"variant", sizeof(writer_variant_t)},
    [WRITER_ARGUMENT] = {"argument", sizeof(writer_argument_t)},
    [WRITER_VIEW] = {"view", sizeof(accx_view_t)},
    [WRITER_STRING] = {"string", sizeof(writer_string_t)},
    [WRITER_SECTION] = {"section", sizeof(writer_section_t)},
    [WRITER_SHARD] = {"shard", sizeof(writer_shard_t)},
    [WRITER_ADAPTER] = {"adapter", sizeof(accx_adapter_t)},
    [WRITER_ASSET] = {"asset", sizeof(writer_asset_t)},
    [WRITER_KEY] = {"key", sizeof(writer_key_t)},
};

const char* accx_writer_kind_name(uint32_t kind) {
  return kinds[kind].name;
}

const char* accx_writer_opcode_name(uint32_t opcode) {
  const char* name = accx_number_name(ACCX_NUMBERS_OPCODE, opcode);
  return name[0] != '\0' ? name : "command";
}

accrt_status_t accx_writer_new(accrt_bundle_writer_t* writer, writer_kind_t kind, void* out_item) {
  writer_items_t* items = &writer->items[kind];
  if (items->count == ACCX_MAX_RECORDS - 1) {
    return WRITER_FAIL(writer, OUT_OF_RANGE, "there are %" PRIu32 " %ss already", items->count,
                       kinds[kind].name);
  }
  void* data = items->data;
  ACCRT_TRY(accrt_grow_array(&writer->allocator, items->count + 1, items->item_bytes,
                             &items->capacity, &data));
  items->data = data;
  void* item = items->data + (size_t)items->count * items->item_bytes;
  memset(item, 0, items->item_bytes);
  memcpy(out_item, &item, sizeof item);
  return ACCRT_OK;
}

uint32_t accx_writer_commit(accrt_bundle_writer_t* writer, writer_kind_t kind) {
  return writer->items[kind].count++;
}

void* accx_writer_item(const accrt_bundle_writer_t* writer, writer_kind_t kind, uint32_t index) {
  const writer_items_t* items = &writer->items[kind];
  return items->data + (size_t)index * items->item_bytes;
}

accrt_status_t accx_writer_index(const accrt_bundle_writer_t* writer, writer_kind_t kind,
                                 accrt_writer_id_t id, bool optional, const char* field,
                                 uint32_t* out_index) {
  *out_index = WRITER_NO;
  if (id == 0 && optional)
    return ACCRT_OK;
  const uint32_t found = id >> WRITER_INDEX_BITS;
  if (found == (uint32_t)kind && WRITER_INDEX(id) < writer->items[kind].count) {
    *out_index = WRITER_INDEX(id);
    return ACCRT_OK;
  }
  const bool named = found > WRITER_NONE && found < WRITER_ID_KINDS;
  const char* wanted = kinds[kind].name;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s is 0x%" PRIx32 " (%s), not the id of %s %s",
                     field, id, named ? kinds[found].name : "no id",
                     strchr("aeiou", wanted[0]) != NULL ? "an" : "a", wanted);
}

/* ---- Hashing ---- */

static uint32_t hash_bytes(const void* bytes, size_t size_bytes) {
  const unsigned char* at = bytes;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < size_bytes; ++i)
    hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  return (uint32_t)(hash ^ hash >> 32);
}

static uint32_t hash_item(const accrt_bundle_writer_t* writer, writer_kind_t kind, uint32_t index) {
  if (kind == WRITER_KEY)
    return hash_bytes(WRITER_ITEM(writer, key, kind, index), offsetof(writer_key_t, value));
  const writer_string_t* string = WRITER_ITEM(writer, string, kind, index);
  return hash_bytes(string->text, string->size_bytes);
}

/* Returns the entry that `same` accepts, or the empty one where it belongs. The table has a free
 * entry. */
static size_t find_place(const accrt_bundle_writer_t* writer, const uint32_t* places,
                         size_t capacity, uint32_t hash,
                         bool (*same)(const accrt_bundle_writer_t*, uint32_t, const void*),
                         const void* wanted) {
  size_t at = hash & (capacity - 1);
  while (places[at] != 0 && (same == NULL || !same(writer, places[at] - 1, wanted)))
    at = (at + 1) & (capacity - 1);
  return at;
}

/* Doubles the table if one more item would make it more than half full. */
static accrt_status_t widen_table(accrt_bundle_writer_t* writer, writer_kind_t kind,
                                  uint32_t** places, size_t* capacity) {
  const uint32_t count = writer->items[kind].count;
  if (((size_t)count + 1) * 2 <= *capacity)
    return ACCRT_OK;
  const size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(&writer->allocator, wanted, sizeof **places, &memory));
  uint32_t* wider = memory;
  for (uint32_t i = 0; i < count; ++i)
    wider[find_place(writer, wider, wanted, hash_item(writer, kind, i), NULL, NULL)] = i + 1;
  accrt_free_array(&writer->allocator, *places, *capacity, sizeof **places);
  *places = wider;
  *capacity = wanted;
  return ACCRT_OK;
}

static bool same_key(const accrt_bundle_writer_t* writer, uint32_t index, const void* wanted) {
  return memcmp(WRITER_ITEM(writer, key, WRITER_KEY, index), wanted,
                offsetof(writer_key_t, value)) == 0;
}

static size_t place_of_key(const accrt_bundle_writer_t* writer, const writer_key_t* key) {
  return find_place(writer, writer->key_table, writer->key_capacity,
                    hash_bytes(key, offsetof(writer_key_t, value)), same_key, key);
}

uint32_t accx_writer_find(const accrt_bundle_writer_t* writer, const writer_key_t* key) {
  if (writer->key_capacity == 0)
    return WRITER_NO;
  const uint32_t place = writer->key_table[place_of_key(writer, key)];
  return place == 0 ? WRITER_NO : WRITER_ITEM(writer, key, WRITER_KEY, place - 1)->value;
}

accrt_status_t accx_writer_make_room(accrt_bundle_writer_t* writer) {
  writer_key_t* item;
  ACCRT_TRY(accx_writer_new(writer, WRITER_KEY, &item));
  return widen_table(writer, WRITER_KEY, &writer->key_table, &writer->key_capacity);
}

void accx_writer_put(accrt_bundle_writer_t* writer, const writer_key_t* key, uint32_t value) {
  const size_t place = place_of_key(writer, key);
  const uint32_t index = accx_writer_commit(writer, WRITER_KEY);
  writer_key_t* item = WRITER_ITEM(writer, key, WRITER_KEY, index);
  *item = *key;
  item->value = value;
  writer->key_table[place] = index + 1;
}

accrt_status_t accx_writer_claim(accrt_bundle_writer_t* writer, const writer_key_t* key) {
  if (accx_writer_find(writer, key) != WRITER_NO)
    return WRITER_FAIL(writer, ALREADY_EXISTS, "there is one of this name already");
  return accx_writer_make_room(writer);
}

accrt_status_t accx_writer_add_named(accrt_bundle_writer_t* writer, writer_kind_t kind,
                                     const char* name, void* item, size_t name_offset,
                                     accrt_writer_id_t* out_id) {
  writer_key_t key = {.kind = kind};
  void* added;
  ACCRT_TRY(accx_writer_name(writer, name, "the name", &key.a));
  ACCRT_TRY(accx_writer_claim(writer, &key));
  ACCRT_TRY(accx_writer_new(writer, kind, &added));
  memcpy((unsigned char*)item + name_offset, &key.a, sizeof key.a);
  memcpy(added, item, kinds[kind].item_bytes);
  *out_id = accx_writer_id(kind, accx_writer_commit(writer, kind));
  accx_writer_put(writer, &key, *out_id);
  return ACCRT_OK;
}

const char* accx_writer_near(const accrt_bundle_writer_t* writer, uint32_t kind, uint32_t b,
                             const char* wanted, accrt_near_t* buffer) {
  accrt_near_init(buffer, wanted);
  for (uint32_t i = 0; i < writer->items[WRITER_KEY].count; ++i) {
    const writer_key_t* key = WRITER_ITEM(writer, key, WRITER_KEY, i);
    if (key->kind == kind && key->b == b)
      accrt_near_add(buffer, accx_writer_text(writer, key->a));
  }
  return accrt_near_text(buffer);
}

/* ---- Strings ---- */

typedef struct wanted_text {
  const char* text;
  size_t size_bytes;
} wanted_text_t;

static bool same_text(const accrt_bundle_writer_t* writer, uint32_t index, const void* wanted) {
  const writer_string_t* string = WRITER_ITEM(writer, string, WRITER_STRING, index);
  const wanted_text_t* text = wanted;
  return string->size_bytes == text->size_bytes &&
         memcmp(string->text, text->text, text->size_bytes) == 0;
}

static accrt_status_t add_text(accrt_bundle_writer_t* writer, const wanted_text_t* wanted,
                               uint32_t* out_string) {
  ACCRT_TRY(widen_table(writer, WRITER_STRING, &writer->string_table, &writer->string_capacity));
  const size_t place = find_place(writer, writer->string_table, writer->string_capacity,
                                  hash_bytes(wanted->text, wanted->size_bytes), same_text, wanted);
  if (writer->string_table[place] != 0) {
    *out_string = writer->string_table[place] - 1;
    return ACCRT_OK;
  }
  writer_string_t* item;
  const void* copy;
  ACCRT_TRY(accx_writer_new(writer, WRITER_STRING, &item));
  ACCRT_TRY(accx_writer_copy(writer, wanted->text, wanted->size_bytes + 1, &copy));
  *item = (writer_string_t){copy, (uint32_t)wanted->size_bytes, 0};
  *out_string = accx_writer_commit(writer, WRITER_STRING);
  writer->string_table[place] = *out_string + 1;
  return ACCRT_OK;
}

accrt_status_t accx_writer_string(accrt_bundle_writer_t* writer, const char* text,
                                  const char* field, uint32_t* out_string) {
  const wanted_text_t wanted = {text != NULL ? text : "", text != NULL ? strlen(text) : 0};
  if (wanted.size_bytes > ACCX_MAX_STRING_BYTES) {
    return WRITER_FAIL(writer, OUT_OF_RANGE, "%s has %zu bytes; the limit is %u", field,
                       wanted.size_bytes, ACCX_MAX_STRING_BYTES);
  }
  const size_t bad = accrt_utf8_check(wanted.text);
  if (bad == wanted.size_bytes)
    return add_text(writer, &wanted, out_string);
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s is not UTF-8: byte 0x%02x at %zu", field,
                     (unsigned char)wanted.text[bad], bad);
}

accrt_status_t accx_writer_name(accrt_bundle_writer_t* writer, const char* text, const char* field,
                                uint32_t* out_string) {
  const size_t size = text != NULL ? strlen(text) : 0;
  if (size == 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s is empty", field);
  if (size > ACCX_MAX_NAME_BYTES) {
    return WRITER_FAIL(writer, OUT_OF_RANGE, "%s has %zu bytes; a name has at most %u", field, size,
                       ACCX_MAX_NAME_BYTES);
  }
  return accx_writer_string(writer, text, field, out_string);
}

const char* accx_writer_text(const accrt_bundle_writer_t* writer, uint32_t string) {
  return WRITER_ITEM(writer, string, WRITER_STRING, string)->text;
}

/* ---- Messages ---- */

typedef struct line {
  char text[MAX_DETAIL_BYTES];
  size_t size_bytes;
} line_t;

static void append(line_t* line, const char* format, ...) ACCRT_PRINTF(2, 3);
static void append(line_t* line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t left = sizeof line->text - line->size_bytes;
  const int wanted = vsnprintf(line->text + line->size_bytes, left, format, arguments);
  va_end(arguments);
  if (wanted > 0)
    line->size_bytes += (size_t)wanted < left ? (size_t)wanted : left - 1;
}

static void append_where(line_t* line, const accrt_bundle_writer_t* writer) {
  const writer_where_t* where = &writer->where;
  if (where->function != WRITER_NO) {
    const accx_function_t* function =
        &WRITER_ITEM(writer, function, WRITER_FUNCTION, where->function)->record;
    const char* target = accx_writer_text(writer, function->target);
    append(line, "function '%.64s'%s%.32s, ", accx_writer_text(writer, function->name),
           target[0] != '\0' ? " for " : "", target);
  }
  const char* name = where->name != NULL ? where->name : "";
  if (where->command != WRITER_NO)
    append(line, "command %" PRIu32 " (%s '%.64s'), ", where->command, where->kind, name);
  else if (where->kind != NULL)
    append(line, "%s '%.64s', ", where->kind, name);
  if (where->part_kind != NULL)
    append(line, "%s '%.64s', ", where->part_kind, where->part != NULL ? where->part : "");
  if (line->size_bytes >= 2)
    memcpy(line->text + line->size_bytes - 2, ": ", 2);
}

void accx_writer_at(accrt_bundle_writer_t* writer, writer_kind_t kind, uint32_t name) {
  writer->where = (writer_where_t){kind != WRITER_NONE ? kinds[kind].name : NULL,
                                   kind != WRITER_NONE ? accx_writer_text(writer, name) : NULL,
                                   writer->where.function,
                                   WRITER_NO,
                                   NULL,
                                   NULL};
}

accrt_status_t accx_writer_fail(const accrt_bundle_writer_t* writer, accrt_error_place_t place,
                                const char* format, ...) {
  line_t where = {"", 0};
  append_where(&where, writer);
  char detail[MAX_DETAIL_BYTES];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(detail, sizeof detail, format, arguments) < 0)
    detail[0] = '\0';
  va_end(arguments);
  return accrt_error_fail(place, "%s%s", where.text, detail);
}

/* ---- Which addresses are writers ---- */

/* All writers but those that found no place. While there are such, every address is believed. */
static _Atomic(accrt_bundle_writer_t*) listed[256];
#define LISTED (sizeof listed / sizeof listed[0])
static atomic_size_t unlisted;

/* Puts `next` in the place of `writer`. The release and acquire make the writer's bytes visible to
 * the thread that finds it. */
static bool exchange(accrt_bundle_writer_t* writer, accrt_bundle_writer_t* next) {
  for (size_t i = 0; i < LISTED; ++i) {
    accrt_bundle_writer_t* found = writer;
    if (atomic_load_explicit(&listed[i], memory_order_relaxed) == writer &&
        atomic_compare_exchange_strong(&listed[i], &found, next))
      return true;
  }
  return false;
}

static void list(accrt_bundle_writer_t* writer) {
  if (!exchange(NULL, writer))
    ++unlisted;
}

static void unlist(accrt_bundle_writer_t* writer) {
  if (!exchange(writer, NULL))
    --unlisted;
}

/* Does not look at what is there: a released writer, or another handle. */
static accrt_status_t check_writer(const accrt_bundle_writer_t* writer) {
  if (writer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "writer is NULL");
  for (size_t i = 0; i < LISTED; ++i) {
    if (atomic_load_explicit(&listed[i], memory_order_acquire) == writer)
      return ACCRT_OK;
  }
  if (unlisted != 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "writer %p is no bundle writer, or was released",
                    (const void*)writer);
}

accrt_status_t accx_writer_begin(accrt_bundle_writer_t* writer, const char* operation,
                                 const char* kind, const char* name) {
  accrt_error_enter(operation);
  ACCRT_TRY(check_writer(writer));
  if (!accrt_guard_enter(&writer->guard, operation))
    return accrt_guard_refuse(&writer->guard, "writer");
  writer->operation = operation;
  writer->where = (writer_where_t){kind, name, WRITER_NO, WRITER_NO, NULL, NULL};
  return ACCRT_OK;
}

accrt_status_t accx_writer_reserved(const accrt_bundle_writer_t* writer, uint32_t reserved) {
  if (reserved == 0)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "reserved is 0x%" PRIx32 ", not 0", reserved);
}

accrt_status_t accx_writer_out(const accrt_bundle_writer_t* writer, accrt_writer_id_t* out_id) {
  if (out_id == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "out_id is NULL");
  *out_id = 0;
  return ACCRT_OK;
}

/* ---- Lifetime ---- */

static accrt_status_t writer_fill(accrt_bundle_writer_t* writer, const accrt_caps_t* target) {
  for (uint32_t kind = 0; kind < WRITER_KINDS; ++kind)
    writer->items[kind].item_bytes = kinds[kind].item_bytes;
  writer->where = (writer_where_t){NULL, NULL, WRITER_NO, WRITER_NO, NULL, NULL};
  writer->has_target = target != NULL;
  if (target != NULL)
    ACCRT_TRY(accrt_struct_read("accrt_caps_t", target, &writer->target, sizeof writer->target));
  ACCRT_TRY(accx_writer_reserved(writer, writer->target.reserved));
  uint32_t empty; /* string number 0 */
  return accx_writer_string(writer, "", "text", &empty);
}

static void writer_free(accrt_bundle_writer_t* writer) {
  const accrt_allocator_t allocator = writer->allocator;
  for (uint32_t kind = 0; kind < WRITER_KINDS; ++kind) {
    writer_items_t* items = &writer->items[kind];
    accrt_free_array(&allocator, items->data, items->capacity, items->item_bytes);
  }
  accrt_free_array(&allocator, writer->key_table, writer->key_capacity, sizeof(uint32_t));
  accrt_free_array(&allocator, writer->string_table, writer->string_capacity, sizeof(uint32_t));
  while (writer->chunks != NULL) {
    writer_chunk_t* chunk = writer->chunks;
    writer->chunks = chunk->next;
    accrt_free(&allocator, chunk, chunk->size_bytes);
  }
  accx_writer_free_signing(writer);
  accrt_free(&allocator, writer, sizeof *writer);
}

accrt_status_t accrt_bundle_writer_create(const accrt_bundle_writer_options_t* options,
                                          accrt_bundle_writer_t** out_writer) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  if (out_writer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_writer is NULL");
  *out_writer = NULL;
  accrt_bundle_writer_options_t local;
  ACCRT_TRY(accrt_struct_read("accrt_bundle_writer_options_t", options, &local, sizeof local));
  if (local.reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "reserved is 0x%" PRIx32 ", not 0", local.reserved);
  const accrt_allocator_t* allocator =
      local.allocator != NULL ? local.allocator : &accrt_allocator_system;
  accrt_bundle_writer_t* writer;
  ACCRT_TRY(ACCRT_NEW(allocator, &writer));
  writer->allocator = *allocator;
  const accrt_status_t status = writer_fill(writer, local.target);
  if (status != ACCRT_OK) {
    writer_free(writer);
    return status;
  }
  list(writer);
  *out_writer = writer;
  return ACCRT_OK;
}

void accrt_bundle_writer_release(accrt_bundle_writer_t* writer) {
  if (writer == NULL)
    return;
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  if (check_writer(writer) != ACCRT_OK)
    return;
  if (!accrt_guard_enter(&writer->guard, ACCRT_THIS_FUNCTION)) {
    (void)accrt_guard_refuse(&writer->guard, "writer");
    return;
  }
  unlist(writer);
  writer_free(writer);
}
