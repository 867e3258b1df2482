/* serve/handles.c - a register of the handles that functions returned. See serve/handles.h.
 *
 * Its lock is the last one in the order: neither a library nor the user's code is called under it.
 * abi/watch.c does the same for libaccrt and shares no code with it: there, handles belong to an
 * instance, whose allocator is wrapped and which ends what is left; their types and their lenders
 * (several each) come from specs of a few letters, and the way to them is bare of calls. What is
 * left in common, a table by address and a list of what was freed, is smaller than what it would
 * take to share it below the public headers, on which this library stands alone.
 * What is not released is reported when the process ends, or when the library is unloaded.
 */
#define _GNU_SOURCE
#include "serve/handles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accrt/serve.h"
#include "serve/lock.h"

#define BUCKETS 1024u
#define MAX_FREED 65536u /* limit of freed handles in the register, with their memory */

typedef struct record {
  struct record* next;  /* of the same bucket */
  struct record* after; /* in the list of freed handles: the next newer one */
  void* address;        /* from accsv_allocator_system */
  uint64_t number;
  const char* type; /* NULL: memory that is not a registered handle */
  const char* made_by;
  const char* ended_by; /* function that dropped the last reference; NULL: not dropped */
  uint32_t references;  /* of the user; of a job 1 until it is answered */
  accsv_handle_gift_t gift;
  bool freed;
  const void* lender; /* the handle that it comes from */
  uint64_t lender_number;
} record_t;

atomic_uint accsv_handles_flag;
static atomic_uint held; /* handles that have memory */

static accsv_lock_t lock = ACCSV_LOCK_STATIC(ACCRT_LOCK_SERVE_HANDLES);
static record_t* buckets[BUCKETS];
static record_t *first_freed, *last_freed;
static uint32_t freed_count;
static uint64_t last_number;
static pid_t process; /* that validates; a forked child does not report what is left */
/* True when valid handles may be missing in the register. */
static bool has_unregistered;
static bool watches_forks;

/* ---- The register. Every function here requires the lock. ---- */

static record_t** bucket_of(const void* address) {
  return &buckets[accsv_mix((uintptr_t)address) % BUCKETS];
}

static record_t* find(const void* address) {
  ACCRT_ASSERT_HELD(&lock);
  record_t* record = *bucket_of(address);
  while (record != NULL && record->address != address)
    record = record->next;
  return record;
}

/* The same, for handles alone. */
static record_t* find_handle(const void* address) {
  record_t* record = find(address);
  return record != NULL && record->type != NULL ? record : NULL;
}

static void unlink_record(const record_t* record) {
  record_t** at = bucket_of(record->address);
  while (*at != record)
    at = &(*at)->next;
  *at = record->next;
}

static record_t* add_record(void* address) {
  ACCRT_ASSERT_HELD(&lock);
  record_t* record = calloc(1, sizeof *record);
  if (record == NULL) {
    has_unregistered = true;
    return NULL;
  }
  record->address = address;
  record_t** at = bucket_of(address);
  record->next = *at;
  *at = record;
  return record;
}

/* Adds a freed handle to the list, and returns the oldest one if there are too many of them. */
static record_t* add_freed(record_t* record) {
  ACCRT_ASSERT_HELD(&lock);
  record->freed = true;
  record->after = NULL;
  if (last_freed != NULL)
    last_freed->after = record;
  else
    first_freed = record;
  last_freed = record;
  if (++freed_count <= MAX_FREED)
    return NULL;
  record_t* oldest = first_freed;
  first_freed = oldest->after;
  --freed_count;
  unlink_record(oldest);
  return oldest;
}

static bool is_valid(const record_t* record) {
  ACCRT_ASSERT_HELD(&lock);
  if (record->freed)
    return false;
  if (record->references > 0)
    return true;
  const record_t* lender = record->lender != NULL && record->gift != ACCSV_HANDLE_DUE
                               ? find_handle(record->lender)
                               : NULL;
  return lender != NULL && lender->number == record->lender_number && !lender->freed &&
         lender->references > 0;
}

/* ---- Reports ---- */

/* Such as "engine 7, made by accrt_serve_engine_create". */
static void describe(const record_t* record, char* text, size_t size_bytes) {
  (void)snprintf(text, size_bytes, "%s %" PRIu64 ", %s by %s", record->type, record->number,
                 record->gift == ACCSV_HANDLE_OWNED ? "made" : "lent", record->made_by);
}

/* "an engine", "a model", but "grammars". */
static const char* article_of(const char* type) {
  if (type[strlen(type) - 1] == 's')
    return "";
  return strchr("aeiou", type[0]) != NULL ? "an " : "a ";
}

/* The fault of a handle whose references have gone. */
static void find_end(const char* name, const record_t* record, const char* what, bool released,
                     char* text, size_t size_bytes) {
  if (record->gift == ACCSV_HANDLE_DUE)
    (void)snprintf(text, size_bytes, "`%s` is answered already: it is %s, and %s answered it", name,
                   what, record->ended_by != NULL ? record->ended_by : "the end of its server");
  else if (record->ended_by != NULL)
    (void)snprintf(text, size_bytes,
                   "`%s` is released%s: it is %s, and %s dropped its last reference", name,
                   released ? " twice" : "", what, record->ended_by);
  else
    (void)snprintf(text, size_bytes,
                   "`%s` is not valid any more: it is %s, and its lender has ended", name, what);
}

/* Writes the fault of a handle, or "" when it has none. Requires the lock. */
static void find_fault(const char* name, const void* handle, const char* type, bool released,
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
  if (strcmp(record->type, type) != 0)
    (void)snprintf(text, size_bytes, "`%s` must be %s%s; it is %s%s", name, article_of(type), type,
                   what, is_valid(record) ? "" : ", and released");
  else if (!is_valid(record) || (released && record->references == 0 && record->ended_by != NULL))
    find_end(name, record, what, released, text, size_bytes);
  else if (released && record->references == 0)
    (void)snprintf(text, size_bytes, "`%s` is lent and must not be released: it is %s", name, what);
}

static void change_references(record_t* record, const char* function, accsv_handle_use_t use) {
  ACCRT_ASSERT_HELD(&lock);
  if (use == ACCSV_HANDLE_RETAIN)
    ++record->references;
  else if (use != ACCSV_HANDLE_USE && record->references > 0)
    --record->references;
  if (use != ACCSV_HANDLE_USE)
    record->ended_by = record->references == 0 ? function : NULL;
}

/* Returns the next handle after `number` that is not released; of `server` alone, the jobs that are
 * not answered. Requires the lock. */
static const record_t* next_held(uint64_t number, const void* server) {
  ACCRT_ASSERT_HELD(&lock);
  const record_t* found = NULL;
  for (uint32_t i = 0; i < BUCKETS; ++i) {
    for (const record_t* record = buckets[i]; record != NULL; record = record->next) {
      if (record->type == NULL || record->references == 0 || record->number <= number ||
          (found != NULL && record->number > found->number))
        continue;
      if (server == NULL || (record->gift == ACCSV_HANDLE_DUE && record->lender == server))
        found = record;
    }
  }
  return found;
}

/* Reports what is not released at the end, or (`server`) not answered when that was released. */
static void report_held(const void* server) {
  uint64_t number = 0;
  for (;;) {
    char what[160];
    uint32_t references = 0;
    bool due = false;
    accsv_lock(&lock);
    const record_t* record = next_held(number, server);
    if (record != NULL) {
      describe(record, what, sizeof what);
      number = record->number;
      references = record->references;
      due = record->gift == ACCSV_HANDLE_DUE;
    }
    accsv_unlock(&lock);
    if (record == NULL)
      return;
    if (due)
      (void)fprintf(stderr, "accrt: handles: not answered %s: %s\n",
                    server != NULL ? "when its server was released" : "at the end", what);
    else
      (void)fprintf(stderr,
                    "accrt: handles: not released at the end: %s (%" PRIu32 " reference%s)\n", what,
                    references, references == 1 ? "" : "s");
  }
}

__attribute__((destructor)) static void report_at_the_end(void) {
  if (process == getpid())
    report_held(NULL);
}

/* ---- For the entry points ---- */

static void before_fork(void) {
  accsv_lock(&lock);
}

static void after_fork(void) {
  accsv_unlock(&lock);
}

/* The threads of the parent's handles are not here, and may hold locks. */
static void after_fork_in_child(void) {
  if (atomic_load_explicit(&held, memory_order_relaxed) != 0)
    atomic_fetch_or_explicit(&accsv_handles_flag, ACCSV_HANDLES_FORKED, memory_order_relaxed);
  accsv_unlock(&lock);
}

static bool has_flag(uint32_t flag) {
  return (atomic_load_explicit(&accsv_handles_flag, memory_order_relaxed) & flag) != 0;
}

static accrt_status_t refuse_fork(const char* function) {
  return accsv_fail(ACCRT_ERROR_FORKED, function, __FILE__, __LINE__,
                    "the process was forked: handles belong to the parent, and new ones can be "
                    "made after exec");
}

accsv_ask_t accsv_handle_asked_by_flags(const void* options, uint32_t flags) {
  struct {
    uint32_t struct_size, flags;
  } head = {0, 0};
  if (options != NULL)
    memcpy(&head.struct_size, options, sizeof head.struct_size);
  if (head.struct_size >= sizeof head)
    memcpy(&head, options, sizeof head);
  return ((head.flags | flags) & ACCRT_SERVE_VALIDATE) != 0 ? ACCSV_ASK_ON : ACCSV_ASK_ENVIRONMENT;
}

accsv_ask_t accsv_handle_asked(const void* options) {
  return accsv_handle_asked_by_flags(options, 0);
}

accsv_ask_t accsv_handle_asked_by_device(const void* options, accrt_device_t* device) {
  const accsv_ask_t ask = accsv_handle_asked(options);
  if (ask == ACCSV_ASK_ON || device == NULL)
    return ask;
  const char* value = accrt_instance_option(accrt_device_instance(device), "validate.handles");
  if (value == NULL)
    return ACCSV_ASK_ENVIRONMENT;
  return strcmp(value, "1") == 0 ? ACCSV_ASK_ON : ACCSV_ASK_OFF;
}

/* From here on handles are validated, or some of them are not in the register. */
static void set_wanted(bool wanted) {
  accsv_lock(&lock);
  const bool first = !watches_forks;
  watches_forks = true;
  if (wanted && process == 0)
    process = getpid();
  if (wanted)
    atomic_fetch_or_explicit(&accsv_handles_flag, ACCSV_HANDLES_VALIDATED, memory_order_relaxed);
  else
    has_unregistered = true;
  accsv_unlock(&lock);
  if (first)
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

accrt_status_t accsv_handle_begin(const char* function, accsv_ask_t ask, bool* out_wanted) {
  *out_wanted = ask == ACCSV_ASK_ON;
  if (has_flag(ACCSV_HANDLES_FORKED))
    return refuse_fork(function);
  if (ask == ACCSV_ASK_ENVIRONMENT) {
    const char* list = secure_getenv("ACCRT_VALIDATE");
    *out_wanted = list != NULL && list[0] != '\0';
    if (*out_wanted && strcmp(list, "handles") != 0)
      return accsv_fail(ACCRT_ERROR_INVALID_ARGUMENT, function, __FILE__, __LINE__,
                        "ACCRT_VALIDATE is '%.80s': expected 'handles' or nothing", list);
  }
  set_wanted(*out_wanted);
  return ACCRT_OK;
}

bool accsv_handle_wanted(accsv_ask_t ask) {
  if (ask != ACCSV_ASK_ON)
    return false;
  set_wanted(true);
  return true;
}

bool accsv_handle_is_validated(const void* handle) {
  if (!has_flag(ACCSV_HANDLES_VALIDATED))
    return false;
  accsv_lock(&lock);
  const record_t* record = find_handle(handle);
  const bool validated = record != NULL && !record->freed;
  accsv_unlock(&lock);
  return validated;
}

accrt_status_t accsv_handle_check(const char* function, const char* name, const void* handle,
                                  const char* type, accsv_handle_use_t use) {
  if (has_flag(ACCSV_HANDLES_FORKED))
    return refuse_fork(function);
  if (handle == NULL)
    return ACCRT_OK;
  char message[400];
  accsv_lock(&lock);
  record_t* record = find_handle(handle);
  find_fault(name, handle, type, use == ACCSV_HANDLE_RELEASE, record, message, sizeof message);
  if (message[0] == '\0' && record != NULL)
    change_references(record, function, use);
  const bool ends = message[0] == '\0' && record != NULL && use == ACCSV_HANDLE_RELEASE &&
                    record->references == 0;
  accsv_unlock(&lock);
  if (ends)
    report_held(handle);
  if (message[0] == '\0')
    return ACCRT_OK;
  (void)fprintf(stderr, "accrt: handles: %s: %s\n", function, message);
  return accsv_fail(ACCRT_ERROR_INVALID_ARGUMENT, function, __FILE__, __LINE__, "%s", message);
}

void accsv_handle_give(const char* function, const char* type, const void* handle, const void* from,
                       accsv_handle_gift_t gift) {
  if (handle == NULL)
    return;
  accsv_lock(&lock);
  record_t* lender = from != NULL ? find_handle(from) : NULL;
  record_t* record = from == NULL || lender != NULL ? find(handle) : NULL;
  if (record != NULL && record->type == NULL) {
    record->type = type;
    record->made_by = function;
    record->gift = gift;
    record->number = ++last_number;
    record->references = gift == ACCSV_HANDLE_LENT ? 0 : 1;
  }
  if (record != NULL && gift != ACCSV_HANDLE_OWNED && lender != NULL) {
    record->lender = from;
    record->lender_number = lender->number;
  }
  accsv_unlock(&lock);
}

void accsv_handle_unanswered(const void* handle) {
  accsv_lock(&lock);
  record_t* record = find_handle(handle);
  if (record != NULL && record->gift == ACCSV_HANDLE_DUE && !record->freed) {
    record->references = 1;
    record->ended_by = NULL;
  }
  accsv_unlock(&lock);
}

/* ---- Memory of handles ---- */

accrt_status_t accsv_handle_new_at(const accrt_allocator_t* allocator, size_t size_bytes,
                                   void* place) {
  const bool validated = has_flag(ACCSV_HANDLES_VALIDATED);
  ACCRT_TRY(accsv_new_at(validated ? &accsv_allocator_system : allocator, 1, size_bytes, place));
  atomic_fetch_add_explicit(&held, 1, memory_order_relaxed);
  if (!validated)
    return ACCRT_OK;
  void* handle;
  memcpy(&handle, place, sizeof handle);
  accsv_lock(&lock);
  const record_t* record = add_record(handle);
  accsv_unlock(&lock);
  if (record != NULL)
    return ACCRT_OK;
  atomic_fetch_sub_explicit(&held, 1, memory_order_relaxed);
  accsv_free(&accsv_allocator_system, handle, 1, size_bytes);
  memset(place, 0, sizeof handle);
  return ACCSV_FAIL(OUT_OF_MEMORY, "could not register a handle");
}

void accsv_handle_free_at(const accrt_allocator_t* allocator, void* handle, size_t size_bytes) {
  if (handle == NULL)
    return;
  atomic_fetch_sub_explicit(&held, 1, memory_order_relaxed);
  if (!has_flag(ACCSV_HANDLES_VALIDATED)) {
    accsv_free(allocator, handle, 1, size_bytes);
    return;
  }
  record_t* removed = NULL;
  accsv_lock(&lock);
  record_t* record = find(handle);
  if (record != NULL && record->type != NULL) {
    removed = add_freed(record);
  } else if (record != NULL) {
    unlink_record(record);
    removed = record;
  }
  accsv_unlock(&lock);
  if (record == NULL)
    accsv_free(allocator, handle, 1, size_bytes);
  if (removed != NULL) {
    accsv_free(&accsv_allocator_system, removed->address, 1, 0);
    free(removed);
  }
}
