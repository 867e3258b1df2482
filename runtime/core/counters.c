/* runtime/core/counters.c - the registry of counters. It counts nothing itself, and calls owners
 * and readers under no lock.
 *
 * An entry has one reference for its place in the list, and one for each call that goes on for it.
 * Who drops the last one unlinks and frees it. Ids ascend in the list, so a reader finds the next
 * entry by the id of the one before, which may be gone.
 */
#include "accrt/counters.h"

#include <limits.h>
#include <stddef.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance_parts.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

struct accrt_counters_entry {
  accrt_counters_entry_t* next;
  uint64_t id;
  accrt_counter_group_t group;
  size_t value_count;
  bool removed;           /* under the lock: no further calls */
  atomic_uint references; /* changed under the lock; a futex for who removes the entry */
};

/* The calls that this thread is in, from the innermost on. Initial-exec as for error records. */
typedef struct reading {
  const accrt_counters_entry_t* entry;
  const struct reading* outer;
} reading_t;
static _Thread_local const reading_t* innermost __attribute__((tls_model("initial-exec")));

/* Of a histogram; with more, ACCRT_COUNTER_VALUES has too many. */
#define MOST_BOUNDS (UINT32_MAX - 2)

/* Also counts their values. */
static accrt_status_t check_counters(const accrt_counter_group_t* group, size_t* out_value_count) {
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    const bool has_bounds = counter->kind == ACCRT_COUNTER_HISTOGRAM;
    if (counter->name == NULL || counter->help == NULL ||
        (counter->label == NULL) != (counter->label_value == NULL) ||
        counter->kind - 1 >= ACCRT_COUNTER_HISTOGRAM || (counter->bounds != NULL) != has_bounds ||
        (counter->bound_count != 0) != has_bounds || counter->bound_count > MOST_BOUNDS)
      return ACCRT_FAIL(INVALID_ARGUMENT, "counters[%" PRIu32 "] is not complete", i);
    *out_value_count += ACCRT_COUNTER_VALUES(counter);
  }
  return ACCRT_OK;
}

static accrt_status_t fill(accrt_counters_entry_t* entry, const accrt_counter_group_t* group) {
  accrt_counter_group_t* own = &entry->group;
  ACCRT_TRY(accrt_struct_read("accrt_counter_group_t", group, own, sizeof *own));
  ACCRT_TRY(accrt_struct_check_element("accrt_counter_t", own->counter_size_bytes,
                                       sizeof(accrt_counter_t)));
  if (own->name == NULL || own->read == NULL || own->counters == NULL || own->counter_count == 0 ||
      own->reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "the group is not complete");
  return check_counters(own, &entry->value_count);
}

accrt_status_t accrt_inner_counters_add(accrt_instance_t* instance,
                                        const accrt_counter_group_t* group, uint64_t* out_id) {
  accrt_counters_entry_t* entry;
  ACCRT_TRY(ACCRT_NEW(&instance->allocator, &entry));
  const accrt_status_t status = fill(entry, group);
  if (status != ACCRT_OK) {
    accrt_free(&instance->allocator, entry, sizeof *entry);
    return status;
  }
  atomic_init(&entry->references, 1);
  accrt_mutex_lock(&instance->counters.lock);
  entry->id = *out_id = accrt_instance_next_id(instance);
  accrt_counters_entry_t** end = &instance->counters.first;
  while (*end != NULL)
    end = &(*end)->next;
  *end = entry;
  accrt_mutex_unlock(&instance->counters.lock);
  return ACCRT_OK;
}

accrt_status_t accrt_counters_add(accrt_instance_t* instance, const accrt_counter_group_t* group,
                                  uint64_t* out_id) {
  if (out_id != NULL)
    *out_id = 0;
  ACCRT_ENTER(out_id, instance, group);
  return accrt_inner_counters_add(instance, group, out_id);
}

/* The first entry from an id on that is not removed; under the lock. */
static accrt_counters_entry_t* find(const accrt_instance_t* instance, uint64_t id) {
  ACCRT_ASSERT_HELD(&instance->counters.lock);
  accrt_counters_entry_t* entry = instance->counters.first;
  while (entry != NULL && (entry->id < id || entry->removed))
    entry = entry->next;
  return entry;
}

/* Drops a reference. */
static void leave(accrt_instance_t* instance, accrt_counters_entry_t* entry) {
  accrt_mutex_lock(&instance->counters.lock);
  /* Relaxed here and below: the lock orders it. */
  const bool last = atomic_fetch_sub_explicit(&entry->references, 1, memory_order_relaxed) == 1;
  if (last) {
    accrt_counters_entry_t** link = &instance->counters.first;
    while (*link != entry)
      link = &(*link)->next;
    *link = entry->next;
  }
  accrt_mutex_unlock(&instance->counters.lock);
  /* Who removes the entry may have freed it by now. */
  accrt_futex_wake(&entry->references, INT_MAX);
  if (last)
    accrt_free(&instance->allocator, entry, sizeof *entry);
}

accrt_status_t accrt_counters_remove(accrt_instance_t* instance, uint64_t id) {
  ACCRT_ENTER(instance);
  accrt_mutex_lock(&instance->counters.lock);
  accrt_counters_entry_t* entry = find(instance, id);
  if (entry == NULL || entry->id != id) {
    accrt_mutex_unlock(&instance->counters.lock);
    return ACCRT_FAIL(NOT_FOUND, "there is no group %" PRIu64, id);
  }
  entry->removed = true;
  unsigned own = 1; /* the list's reference, and those of the calls that this thread is in */
  for (const reading_t* reading = innermost; reading != NULL; reading = reading->outer)
    own += reading->entry == entry;
  unsigned now;
  while ((now = atomic_load_explicit(&entry->references, memory_order_relaxed)) != own) {
    accrt_mutex_unlock(&instance->counters.lock);
    accrt_futex_wait(&entry->references, now, UINT64_MAX);
    accrt_mutex_lock(&instance->counters.lock);
  }
  accrt_mutex_unlock(&instance->counters.lock);
  leave(instance, entry);
  return ACCRT_OK;
}

typedef void visit_fn_t(void* user, const accrt_counter_group_t* group, const double* values);

static accrt_status_t show(accrt_instance_t* instance, const accrt_counters_entry_t* entry,
                           visit_fn_t* visit, void* user) {
  double* values;
  ACCRT_TRY(ACCRT_NEW_ARRAY(&instance->allocator, entry->value_count, &values));
  const reading_t reading = {entry, innermost};
  innermost = &reading;
  ACCRT_CALL_USER(
      (entry->group.read(entry->group.self, values), visit(user, &entry->group, values)));
  innermost = reading.outer;
  accrt_free_array(&instance->allocator, values, entry->value_count, sizeof *values);
  return ACCRT_OK;
}

accrt_status_t accrt_counters_read(accrt_instance_t* instance, visit_fn_t* visit, void* user) {
  ACCRT_ENTER(instance, (const void*)(uintptr_t)visit);
  accrt_status_t status = ACCRT_OK;
  for (uint64_t id = 0; status == ACCRT_OK;) {
    accrt_mutex_lock(&instance->counters.lock);
    accrt_counters_entry_t* entry = find(instance, id);
    if (entry != NULL)
      (void)atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed);
    accrt_mutex_unlock(&instance->counters.lock);
    if (entry == NULL)
      break;
    id = entry->id + 1;
    status = show(instance, entry, visit, user);
    leave(instance, entry);
  }
  return status;
}

void accrt_counters_deinit(accrt_instance_t* instance) {
  while (instance->counters.first != NULL)
    leave(instance, instance->counters.first);
}
