/* abi/watch.c - validates handles: a register of the handles that functions returned. See
 * abi/watch.h.
 *
 * There is one register per process, because a freed handle cannot tell its instance. It has the
 * handles of instances with validate.handles. Its lock is the last one in the order: neither the
 * library nor the user's code is called under it.
 */
#include "abi/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/memory.h"
#include "runtime/core/object.h"
#include "runtime/core/struct.h"
#include "runtime/core/sync.h"

#define BUCKETS 4096u
#define MAX_FREED 65536u /* limit of freed handles in the register, most with their memory */
#define MAX_ELEMENTS 65536u
#define LENDERS 4
#define MAX_DEPTH 8

/* An instance that validates. Its memory comes from the allocator that it wraps. */
typedef struct watched {
  accrt_allocator_t wrapped;
  accrt_instance_t* instance;
  struct watched* next;
} watched_t;

typedef struct record {
  struct record* next;  /* of the same bucket */
  struct record* after; /* in the list of freed handles: the next newer one */
  const void* address;
  watched_t* owner; /* NULL: its instance has ended */
  uint64_t number;
  const char* made_by;
  const char* ended_by; /* function that dropped the last reference; NULL: not dropped */
  uint32_t references;  /* references of the user */
  char type;
  bool lent;             /* an accessor returned it first */
  bool freed;            /* the object was freed */
  bool has_more_lenders; /* it has more lenders than fit; one of them may still be valid */
  void* block; /* memory of the freed object, kept so that no new handle gets the address */
  size_t block_bytes, alignment;
  const void* lenders[LENDERS];
  uint64_t lender_numbers[LENDERS];
} record_t;

static accrt_mutex_t lock = ACCRT_MUTEX_STATIC(ACCRT_LOCK_HANDLES);
static record_t* buckets[BUCKETS];
static record_t *first_freed, *last_freed;
static uint32_t freed_count;
static watched_t* instances;
static uint64_t last_number;
/* True when valid handles may be missing in the register: those of an instance that does not
 * validate, or those for which memory was short. */
static bool has_unregistered;

/* The letter of each type, and its name. */
static const char types[][14] = {
    "iinstance",  "ddevice",  "ppool",         "bbuffer",      "sstream", "eevent",
    "msemaphore", "llaunch",  "ccommand list", "kkernel pack", "nkernel", "ubundle",
    "wweights",   "aadapter", "gprogram",      "tsession",     "xcall",   "?handle"};

static const char* type_name(char letter) {
  size_t i = 0;
  while (types[i][0] != letter && i + 1 < sizeof types / sizeof types[0])
    ++i;
  return &types[i][1];
}

/* "an event", "a stream", but "weights". */
static const char* article_of(const char* type) {
  if (type[0] == 'w')
    return "";
  return strchr("aei", type[0]) != NULL ? "an " : "a ";
}

accrt_status_t accrt_body_instance_create(const accrt_instance_options_t* options,
                                          accrt_instance_t** out_instance);
void accrt_body_instance_release(accrt_instance_t* instance);

/* ---- The register. Every function here requires the lock. ---- */

static record_t** bucket_of(const void* address) {
  const uint64_t mixed = ((uintptr_t)address >> 4) * UINT64_C(0x9E3779B97F4A7C15);
  return &buckets[mixed >> 52];
}

static record_t* find(const void* address) {
  ACCRT_ASSERT_HELD(&lock);
  record_t* record = *bucket_of(address);
  while (record != NULL && record->address != address)
    record = record->next;
  return record;
}

static void unlink_record(record_t* record) {
  ACCRT_ASSERT_HELD(&lock);
  record_t** at = bucket_of(record->address);
  while (*at != record)
    at = &(*at)->next;
  *at = record->next;
}

static void free_record(record_t* record) {
  accrt_free(&accrt_allocator_system, record, sizeof *record);
}

static void mark_freed(record_t* record) {
  ACCRT_ASSERT_HELD(&lock);
  record->freed = true;
  record->after = NULL;
  if (last_freed != NULL)
    last_freed->after = record;
  else
    first_freed = record;
  last_freed = record;
  ++freed_count;
}

/* Removes the oldest freed handle if there are too many of them; otherwise returns NULL. */
static record_t* remove_oldest_freed(void) {
  ACCRT_ASSERT_HELD(&lock);
  record_t* record = first_freed;
  if (freed_count <= MAX_FREED || record == NULL)
    return NULL;
  first_freed = record->after;
  if (first_freed == NULL)
    last_freed = NULL;
  --freed_count;
  unlink_record(record);
  return record;
}

/* Removes freed handles from the list: those at `address`, or (NULL) those whose instance has
 * ended. */
static void remove_freed(const void* address) {
  ACCRT_ASSERT_HELD(&lock);
  record_t** at = &first_freed;
  last_freed = NULL;
  while (*at != NULL) {
    record_t* record = *at;
    if (address != NULL ? record->address == address : record->owner == NULL) {
      *at = record->after;
      unlink_record(record);
      free_record(record);
      --freed_count;
    } else {
      last_freed = record;
      at = &record->after;
    }
  }
}

static bool is_valid(const record_t* record, int depth) {
  ACCRT_ASSERT_HELD(&lock);
  if (record->freed || depth > MAX_DEPTH)
    return false;
  if (record->references > 0)
    return true;
  /* A buffer that its lender has replaced stays in its pool while streams use it. */
  if (record->type == 'b' && !accrt_object_is_alive(record->address))
    return false;
  if (record->has_more_lenders)
    return true;
  for (int i = 0; i < LENDERS; ++i) {
    const record_t* lender = record->lenders[i] != NULL ? find(record->lenders[i]) : NULL;
    if (lender != NULL && lender->number == record->lender_numbers[i] &&
        is_valid(lender, depth + 1))
      return true;
  }
  return false;
}

static void add_lender(record_t* record, const record_t* lender) {
  ACCRT_ASSERT_HELD(&lock);
  int place = -1;
  for (int i = 0; i < LENDERS; ++i) {
    const record_t* old = record->lenders[i] != NULL ? find(record->lenders[i]) : NULL;
    const bool there = old != NULL && old->number == record->lender_numbers[i];
    if (there && old == lender)
      return;
    if (!there || !is_valid(old, 0))
      place = i;
  }
  if (place < 0) {
    record->has_more_lenders = true;
    return;
  }
  record->lenders[place] = lender->address;
  record->lender_numbers[place] = lender->number;
}

static record_t* add_record(const void* address, char type, const char* function,
                            watched_t* owner) {
  ACCRT_ASSERT_HELD(&lock);
  if (find(address) != NULL) {
    record_t* old = find(address);
    if (old->freed) {
      remove_freed(address);
    } else {
      unlink_record(old);
      free_record(old);
    }
  }
  record_t* record = accrt_allocator_system.allocate(accrt_allocator_system.self, sizeof *record,
                                                     _Alignof(max_align_t));
  if (record == NULL) {
    has_unregistered = true;
    return NULL;
  }
  *record = (record_t){.address = address,
                       .owner = owner,
                       .number = ++last_number,
                       .made_by = function,
                       .type = type};
  record_t** at = bucket_of(address);
  record->next = *at;
  *at = record;
  return record;
}

/* Registers `handle`, which `function` returned from the object `from`. */
static void register_result(const char* function, const void* from, void* handle, char type,
                            bool is_lent) {
  record_t* parent = find(from);
  if (handle == NULL || parent == NULL || parent->owner == NULL)
    return;
  record_t* record = find(handle);
  const bool same = record != NULL && !record->freed && record->type == type &&
                    (is_lent || record->references > 0);
  if (!same)
    record = add_record(handle, type, function, parent->owner);
  if (record == NULL)
    return;
  if (!same)
    record->lent = is_lent;
  if (is_lent)
    add_lender(record, parent);
  else
    ++record->references;
}

/* ---- Reports ---- */

/* Such as "stream 7, made by accrt_stream_create". */
static void describe(const record_t* record, char* text, size_t size_bytes) {
  (void)snprintf(text, size_bytes, "%s %" PRIu64 ", %s by %s", type_name(record->type),
                 record->number, record->lent ? "lent" : "made", record->made_by);
}

/* Returns a validating instance that can log, retained: the wanted one, or else any. */
static accrt_instance_t* retain_logger(const watched_t* wanted) {
  for (watched_t* watched = instances; watched != NULL; watched = watched->next) {
    if ((wanted == NULL || watched == wanted) &&
        accrt_object_try_retain((accrt_object_t*)(void*)watched->instance))
      return watched->instance;
  }
  return wanted != NULL ? retain_logger(NULL) : NULL;
}

static accrt_status_t report(accrt_instance_t* logger, const char* function, const char* message) {
  if (logger != NULL) {
    accrt_instance_log(logger, ACCRT_LOG_ERROR, "handles", "%s: %s", function, message);
    accrt_body_instance_release(logger);
  }
  accrt_error_enter(function);
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s", message);
}

/* Writes the fault of a handle, or "" when it has none. Requires the lock. */
static void find_fault(const char* name, const void* handle, char type, bool released,
                       const record_t* record, char* text, size_t size_bytes) {
  ACCRT_ASSERT_HELD(&lock);
  char what[160];
  text[0] = '\0';
  if (record == NULL) {
    if (!has_unregistered)
      (void)snprintf(text, size_bytes, "`%s` (%p) is not a handle of this library", name, handle);
    return;
  }
  describe(record, what, sizeof what);
  if (record->type != type) {
    (void)snprintf(text, size_bytes, "`%s` must be %s%s; it is %s%s", name,
                   article_of(type_name(type)), type_name(type), what,
                   is_valid(record, 0) ? "" : ", and released");
  } else if (record->references == 0 && record->ended_by != NULL &&
             (released || !is_valid(record, 0))) {
    (void)snprintf(text, size_bytes,
                   "`%s` is released%s: it is %s, and %s dropped its last reference", name,
                   released ? " twice" : "", what, record->ended_by);
  } else if (released && record->references == 0) {
    (void)snprintf(text, size_bytes, "`%s` is lent and must not be released: it is %s", name, what);
  } else if (!is_valid(record, 0)) {
    (void)snprintf(text, size_bytes,
                   "`%s` is not valid any more: it is %s, and its lender has ended or replaced it",
                   name, what);
  }
}

/* Checks one handle. A release drops one of its references, a retain adds one. */
static accrt_status_t check(const char* function, const char* name, void* handle, char type,
                            int change, bool released) {
  if (handle == NULL)
    return ACCRT_OK;
  char message[400];
  accrt_instance_t* logger = NULL;
  accrt_mutex_lock(&lock);
  record_t* record = find(handle);
  find_fault(name, handle, type, released, record, message, sizeof message);
  if (message[0] != '\0') {
    logger = retain_logger(record != NULL ? record->owner : NULL);
  } else if (record != NULL && change != 0) {
    record->references += (uint32_t)change;
    record->ended_by = record->references == 0 ? function : NULL;
  }
  accrt_mutex_unlock(&lock);
  return message[0] != '\0' ? report(logger, function, message) : ACCRT_OK;
}

/* ---- Arguments ---- */

typedef struct item {
  char role, type;
  int count_at, at;
  char name[32];
} item_t;

/* Reads the next item of a specification; false at its end. */
static bool next_item(const char** spec, item_t* item) {
  const char* text = *spec;
  if (text[0] == ';')
    return false;
  const size_t length = strcspn(text, ",;");
  item->role = text[0];
  item->type = text[1];
  item->count_at = text[2] == '-' ? -1 : text[2] - '0';
  item->at = text[3] == '-' ? -1 : text[3] - '0';
  (void)snprintf(item->name, sizeof item->name, "%.*s", (int)(length - 4), text + 4);
  *spec = text + length + (text[length] == ',');
  return true;
}

static accrt_status_t check_array(const char* function, const char* name, const void* array,
                                  uint64_t count, char type) {
  void* const* handles = array;
  accrt_status_t status = ACCRT_OK;
  for (uint64_t i = 0; array != NULL && i < count && i < MAX_ELEMENTS && status == ACCRT_OK; ++i) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s[%" PRIu64 "]", name, i);
    status = check(function, full, handles[i], type, 0, false);
  }
  return status;
}

static bool has_memory(const accrt_watch_struct_t* kind, const unsigned char* element) {
  uint32_t words[2];
  memcpy(words, element, sizeof words);
  if (kind->when == ACCRT_WATCH_UNBOUND)
    return words[0] == ACCRT_BINDING_NONE;
  const bool memory = words[0] == ACCRT_KERNEL_PARAM_BUFFER ||
                      words[0] == ACCRT_KERNEL_PARAM_TENSOR ||
                      words[0] == ACCRT_KERNEL_PARAM_WORKSPACE;
  return kind->when != ACCRT_WATCH_MEMORY ||
         /* with a binding set too, the argument may be used where bindings are not allowed */
         memory;
}

static accrt_status_t check_struct(const char* function, const char* name,
                                   const accrt_watch_struct_t* kind, const unsigned char* element) {
  uint32_t size_bytes = kind->size_bytes;
  if (kind->when == ACCRT_WATCH_SIZED)
    memcpy(&size_bytes, element, sizeof size_bytes);
  accrt_status_t status = ACCRT_OK;
  for (uint8_t i = 0; i < kind->field_count && status == ACCRT_OK; ++i) {
    const accrt_watch_field_t* field = &accrt_watch_fields[kind->field_first + i];
    if (field->offset + sizeof(void*) > size_bytes ||
        field->count_offset + sizeof(uint32_t) > size_bytes || !has_memory(kind, element))
      continue;
    char full[64];
    void* handle;
    uint32_t count = 0;
    (void)snprintf(full, sizeof full, "%s.%s", name, field->name);
    memcpy(&handle, element + field->offset, sizeof handle);
    memcpy(&count, element + field->count_offset, sizeof count);
    status = field->count_offset != 0 ? check_array(function, full, handle, count, field->type)
                                      : check(function, full, handle, field->type, 0, false);
  }
  return status;
}

static accrt_status_t check_structs(const char* function, const item_t* item,
                                    const unsigned char* elements, uint64_t count) {
  const accrt_watch_struct_t* kind = &accrt_watch_structs[item->type - 'A'];
  accrt_status_t status = ACCRT_OK;
  for (uint64_t i = 0; elements != NULL && i < count && i < MAX_ELEMENTS && status == ACCRT_OK;
       ++i) {
    char name[48];
    (void)snprintf(name, sizeof name, item->count_at < 0 ? "%s" : "%s[%" PRIu64 "]", item->name, i);
    status = check_struct(function, name, kind, elements + i * kind->size_bytes);
  }
  return status;
}

/* Sets the results of a refused call to NULL or zero. */
static void clear_results(const char* spec, const uintptr_t* words) {
  item_t item;
  while (next_item(&spec, &item)) {
    void* target = item.at >= 0 ? (void*)words[item.at] : NULL;
    if (target == NULL)
      continue;
    if (item.role == 'o' || item.role == 'l')
      *(void**)target = NULL;
    if (item.role == 'z')
      memset(target, strcmp(item.name, "out_fd") == 0 ? 0xFF : 0, (size_t)(item.type - '0'));
  }
}

/* ---- The end of an instance ---- */

/* Copies the handles that the user of an instance has not released (NULL: only counts them). */
static uint32_t copy_held(const watched_t* owner, record_t* copies) {
  ACCRT_ASSERT_HELD(&lock);
  uint32_t count = 0;
  for (uint32_t i = 0; i < BUCKETS; ++i) {
    for (const record_t* record = buckets[i]; record != NULL; record = record->next) {
      if (record->owner != owner || record->references == 0)
        continue;
      if (copies != NULL)
        copies[count] = *record;
      ++count;
    }
  }
  return count;
}

static int by_number(const void* a, const void* b) {
  const record_t *x = a, *y = b;
  return (x->number > y->number) - (x->number < y->number);
}

/* Logs copies of records, the oldest first. */
static void log_held(accrt_instance_t* logger, record_t* held, uint32_t count) {
  qsort(held, count, sizeof *held, by_number);
  for (uint32_t i = 0; i < count; ++i) {
    const record_t* record = &held[i];
    char what[160];
    describe(record, what, sizeof what);
    accrt_instance_log(logger, ACCRT_LOG_WARNING, "handles",
                       "not released when its instance was: %s (%" PRIu32 " reference%s)", what,
                       record->references, record->references == 1 ? "" : "s");
  }
}

/* Logs the handles that the user still has when the last reference to the instance is dropped. The
 * sink may call the library, so it gets copies, without the lock. */
static void report_held(const void* instance) {
  record_t* held = NULL;
  uint32_t count = 0;
  accrt_instance_t* logger = NULL;
  accrt_mutex_lock(&lock);
  const record_t* own = find(instance);
  if (own != NULL && own->references == 0)
    count = copy_held(own->owner, NULL);
  if (count > 0)
    logger = retain_logger(own->owner);
  const size_t size_bytes = count * sizeof *held;
  if (logger != NULL)
    held = accrt_allocator_system.allocate(accrt_allocator_system.self, size_bytes,
                                           _Alignof(max_align_t));
  if (held != NULL)
    (void)copy_held(own->owner, held);
  accrt_mutex_unlock(&lock);
  if (logger == NULL)
    return;
  if (held == NULL) {
    accrt_instance_log(logger, ACCRT_LOG_WARNING, "handles",
                       "not released when its instance was: %" PRIu32
                       " handles, for a list of which memory is short",
                       count);
  } else {
    log_held(logger, held, count);
    accrt_free(&accrt_allocator_system, held, size_bytes);
  }
  accrt_body_instance_release(logger);
}

/* Ends the register's part of an instance. The handles stay registered without memory. Requires the
 * lock. The caller frees the returned blocks without the lock. */
static record_t* end_watched(watched_t* watched) {
  ACCRT_ASSERT_HELD(&lock);
  record_t* blocks = NULL;
  for (watched_t** at = &instances; *at != NULL; at = &(*at)->next) {
    if (*at == watched) {
      *at = watched->next;
      break;
    }
  }
  for (uint32_t i = 0; i < BUCKETS; ++i) {
    for (record_t* record = buckets[i]; record != NULL; record = record->next) {
      if (record->owner != watched)
        continue;
      record->owner = NULL;
      if (!record->freed)
        mark_freed(record);
      if (record->block == NULL)
        continue;
      /* Make a copy for the list of blocks, because the record itself stays. */
      record_t* block = accrt_allocator_system.allocate(accrt_allocator_system.self, sizeof *block,
                                                        _Alignof(max_align_t));
      if (block == NULL)
        continue; /* there is no memory for the copy, so the block leaks */
      *block = *record;
      block->after = blocks;
      blocks = block;
      record->block = NULL;
    }
  }
  if (has_unregistered) {
    remove_freed(NULL);
    if (instances == NULL)
      atomic_store_explicit(&accrt_watch_flag, 0, memory_order_relaxed);
  }
  return blocks;
}

/* ---- The allocator of an instance that validates: memory of handles is kept ---- */

static void* allocate(void* self, size_t size_bytes, size_t alignment) {
  const watched_t* watched = self;
  return watched->wrapped.allocate(watched->wrapped.self, size_bytes, alignment);
}

static void free_block(const accrt_allocator_t* wrapped, const record_t* record) {
  if (record->block != NULL)
    wrapped->deallocate(wrapped->self, record->block, record->block_bytes, record->alignment);
}

/* Marks the handles inside a freed block as freed. Requires the lock. */
static void end_inside(const char* block, size_t size_bytes) {
  ACCRT_ASSERT_HELD(&lock);
  for (uint32_t i = 0; i < BUCKETS; ++i) {
    for (record_t* record = buckets[i]; record != NULL; record = record->next) {
      const char* address = record->address;
      if (!record->freed && record->type == 'n' && address > block && address < block + size_bytes)
        mark_freed(record);
    }
  }
}

static void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  watched_t* watched = self;
  const accrt_allocator_t wrapped = watched->wrapped;
  record_t *removed = NULL, *blocks = NULL;
  accrt_mutex_lock(&lock);
  const bool last = watched->instance != NULL && pointer == watched->instance;
  record_t* record = find(pointer);
  const bool kept = !last && record != NULL && !record->freed && record->owner == watched;
  if (last) {
    blocks = end_watched(watched);
  } else if (kept) {
    record->block = pointer;
    record->block_bytes = size_bytes;
    record->alignment = alignment;
    mark_freed(record);
    if (first_freed != NULL && (first_freed->owner == watched || first_freed->owner == NULL))
      removed = remove_oldest_freed();
  } else if (watched->instance != NULL) {
    end_inside(pointer, size_bytes);
  }
  accrt_mutex_unlock(&lock);
  if (!kept)
    wrapped.deallocate(wrapped.self, pointer, size_bytes, alignment);
  if (removed != NULL) {
    free_block(&wrapped, removed);
    free_record(removed);
  }
  while (blocks != NULL) {
    record_t* next = blocks->after;
    free_block(&wrapped, blocks);
    free_record(blocks);
    blocks = next;
  }
  if (last)
    wrapped.deallocate(wrapped.self, watched, sizeof *watched, _Alignof(max_align_t));
}

/* ---- Entry points ---- */

static const char* items_of(const char* spec) {
  return spec + 1;
}

static const char* name_of(const char* spec) {
  return strchr(spec, ';') + 1;
}

accrt_status_t accrt_watch_enter(const char* spec, const uintptr_t* words) {
  if (accrt_forked())
    return ACCRT_OK; /* the function's body reports it */
  const char *const function = name_of(spec), *const items = items_of(spec);
  const bool retains = items[0] == 'r';
  const size_t length = strlen(function);
  const bool releases = length > 8 && strcmp(function + length - 8, "_release") == 0;
  accrt_status_t status = ACCRT_OK;
  item_t item;
  spec = items;
  while (status == ACCRT_OK && next_item(&spec, &item)) {
    void* word = item.at >= 0 ? (void*)words[item.at] : NULL;
    const uint64_t count = item.count_at >= 0 ? (uint32_t)words[item.count_at] : 1;
    if (item.role == 'h' || item.role == 'c')
      status = check(function, item.name, word, item.type,
                     retains    ? 1
                     : releases ? -1
                                : 0,
                     item.role == 'c');
    else if (item.role == 'a')
      status = check_array(function, item.name, word, count, item.type);
    else if (item.role == 's')
      status = check_structs(function, &item, word, count);
    if (status == ACCRT_OK && releases && item.type == 'i')
      report_held(word);
  }
  if (status != ACCRT_OK)
    clear_results(items, words);
  return status;
}

/* Returns the first handle among the arguments, from which the results come. */
static const void* first_handle(const char* spec, const uintptr_t* words) {
  item_t item;
  while (next_item(&spec, &item)) {
    if (item.role == 'h')
      return (const void*)words[item.at];
  }
  return NULL;
}

accrt_status_t accrt_watch_leave(const char* spec, const uintptr_t* words, accrt_status_t status) {
  const char* const function = name_of(spec);
  if (status != ACCRT_OK || accrt_forked())
    return status;
  spec = items_of(spec);
  const void* from = first_handle(spec, words);
  item_t item;
  accrt_mutex_lock(&lock);
  while (next_item(&spec, &item)) {
    void* word = item.at >= 0 ? (void*)words[item.at] : NULL;
    if (word == NULL)
      continue;
    record_t* record = item.role == 'c' ? find(word) : NULL;
    if (record != NULL && record->references > 0 && --record->references == 0)
      record->ended_by = function;
    if (item.role == 'o' || item.role == 'l')
      register_result(function, from, *(void**)word, item.type, item.role == 'l');
    if (item.role == 'O' || item.role == 'L')
      register_result(function, from, ((accrt_tensor_t*)word)->buffer, 'b', item.role == 'L');
  }
  accrt_mutex_unlock(&lock);
  return status;
}

void* accrt_watch_lend(const char* spec, const uintptr_t* words, void* handle) {
  if (accrt_forked())
    return handle;
  accrt_mutex_lock(&lock);
  const char* const items = items_of(spec);
  register_result(name_of(spec), first_handle(items, words), handle, items[1], true);
  accrt_mutex_unlock(&lock);
  return handle;
}

/* ---- Beginning ---- */

/* Reads the option and the environment variable. Errors in other options are reported later, when
 * all options are read. */
static accrt_status_t read_option(const accrt_instance_options_t* options, bool* out_wanted) {
  const char* value = NULL;
  for (uint32_t i = 0;
       options->options != NULL && options->option_size_bytes == sizeof(accrt_option_t) &&
       i < options->option_count && i < MAX_ELEMENTS;
       ++i) {
    const accrt_option_t* option = &options->options[i];
    if (option->key != NULL && strcmp(option->key, "validate.handles") == 0)
      value = option->value;
  }
  *out_wanted = value != NULL && strcmp(value, "1") == 0;
  const char* list = value == NULL ? secure_getenv("ACCRT_VALIDATE") : NULL;
  if (list == NULL || list[0] == '\0')
    return ACCRT_OK;
  if (strcmp(list, "handles") != 0) {
    accrt_error_enter("accrt_instance_create");
    return ACCRT_FAIL(INVALID_ARGUMENT, "ACCRT_VALIDATE is '%.80s': expected 'handles' or nothing",
                      list);
  }
  *out_wanted = true;
  return ACCRT_OK;
}

static accrt_status_t create_watched(accrt_instance_options_t* options,
                                     accrt_instance_t** out_instance) {
  const accrt_allocator_t wrapped =
      options->allocator != NULL ? *options->allocator : accrt_allocator_system;
  void* memory = NULL;
  ACCRT_TRY(accrt_alloc_aligned(&wrapped, sizeof(watched_t), _Alignof(max_align_t), &memory));
  watched_t* watched = memory;
  watched->wrapped = wrapped;
  const accrt_allocator_t own = {watched, allocate, deallocate};
  options->allocator = &own;
  accrt_status_t status = accrt_body_instance_create(options, out_instance);
  if (status != ACCRT_OK) {
    accrt_free_aligned(&wrapped, watched, sizeof *watched, _Alignof(max_align_t));
    return status;
  }
  accrt_mutex_lock(&lock);
  watched->instance = *out_instance;
  watched->next = instances;
  instances = watched;
  record_t* record = add_record(*out_instance, 'i', "accrt_instance_create", watched);
  if (record != NULL)
    record->references = 1;
  atomic_store_explicit(&accrt_watch_flag, 1, memory_order_relaxed);
  accrt_mutex_unlock(&lock);
  return ACCRT_OK;
}

accrt_status_t accrt_watch_instance(const accrt_instance_options_t* options,
                                    accrt_instance_t** out_instance) {
  accrt_instance_options_t local;
  bool wanted = false;
  const bool readable =
      out_instance != NULL && !accrt_forked() &&
      accrt_struct_read("accrt_instance_options_t", options, &local, sizeof local) == ACCRT_OK;
  if (readable) {
    *out_instance = NULL;
    ACCRT_TRY(read_option(&local, &wanted));
  }
  if (wanted && (local.allocator == NULL ||
                 (local.allocator->allocate != NULL && local.allocator->deallocate != NULL)))
    return create_watched(&local, out_instance);
  ACCRT_TRY(accrt_body_instance_create(options, out_instance));
  accrt_mutex_lock(&lock);
  has_unregistered = true;
  remove_freed(NULL);
  if (instances == NULL)
    atomic_store_explicit(&accrt_watch_flag, 0, memory_order_relaxed);
  accrt_mutex_unlock(&lock);
  return ACCRT_OK;
}
