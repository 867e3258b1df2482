/* runtime/memory/pool_life.c - pools as objects: options, creation, references, and the set of a
 * device's pools. It initialises a pool's heap. Only pool.c changes heap, lists and accounts
 * afterwards.
 */
#include "runtime/memory/pool.h"

#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"

/* First mapping of host memory from the instance's allocator. */
#define SYSTEM_GROW (UINT64_C(1) << 20)

/* ---- Pools ---- */

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static accrt_status_t configure(accrt_pool_t* pool, const accrt_pool_options_t* options) {
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  if (!pool->imports) {
    accrt_device_driver_table(pool->device)
        ->memory_info(accrt_device_driver_device(pool->device), pool->kind, &info);
  }
  if (!pool->imports && !info.supported) {
    if (pool->kind != ACCRT_MEMORY_HOST) {
      return ACCRT_FAIL(UNSUPPORTED, "%s has no memory of kind %" PRIu32,
                        accrt_device_facts(pool->device)->name, pool->kind);
    }
    pool->system_memory = 1;
    info.granularity_bytes = ACCRT_POOL_SYSTEM_GRANULARITY;
    info.default_grow_bytes = SYSTEM_GROW;
    info.alignment_bytes = ACCRT_POOL_SYSTEM_GRANULARITY;
  }
  pool->zeroed = info.zeroed != 0;
  const uint64_t driver_granularity = info.granularity_bytes == 0 ? 1 : info.granularity_bytes;
  uint64_t granularity = larger(driver_granularity, ACCRT_POOL_MIN_ALIGNMENT);
  if (!accrt_is_power_of_two(granularity)) {
    return ACCRT_FAIL(DRIVER, "the driver's granularity of %" PRIu64 " bytes is not a power of two",
                      granularity);
  }
  pool->granularity_bytes = granularity;
  const uint64_t wanted =
      options->granularity_bytes != 0 ? options->granularity_bytes : info.default_grow_bytes;
  if (!accrt_align_u64(wanted, granularity, &pool->grow_bytes)) {
    return ACCRT_FAIL(OVERFLOW, "granularity_bytes %" PRIu64 " does not fit 64 bits rounded up",
                      wanted);
  }
  pool->min_alignment_bytes =
      larger(accrt_device_facts(pool->device)->min_alignment_bytes, ACCRT_POOL_MIN_ALIGNMENT);
  accrt_heap_init(&pool->heap, ACCRT_POOL_MIN_ALIGNMENT);
  return ACCRT_OK;
}

accrt_status_t accrt_pool_make(accrt_device_t* device, const accrt_pool_options_t* options,
                               const accrt_pool_traits_t* traits, accrt_pool_t** out_pool) {
  *out_pool = NULL;
  accrt_instance_t* instance = device->instance;
  accrt_pool_t* pool;
  ACCRT_TRY(ACCRT_NEW(accrt_instance_allocator(instance), &pool));
  accrt_object_init(&pool->object);
  pool->device = device;
  pool->instance = instance;
  pool->kind = options->kind;
  pool->one_mapping = traits->one_mapping;
  pool->imports = traits->imports;
  pool->limit_bytes = options->limit_bytes;
  (void)snprintf(pool->label, sizeof pool->label, "%s",
                 options->label != NULL ? options->label : "");
  accrt_mutex_init(&pool->lock, ACCRT_LOCK_POOL);
  accrt_status_t status = configure(pool, options);
  if (status != ACCRT_OK) {
    accrt_free(accrt_instance_allocator(instance), pool, sizeof *pool);
    return status;
  }
  accrt_pool_set_t* set = &device->pools;
  accrt_mutex_lock(&set->lock);
  pool->next = set->head;
  if (set->head != NULL)
    set->head->previous = pool;
  set->head = pool;
  accrt_mutex_unlock(&set->lock);
  *out_pool = pool;
  return ACCRT_OK;
}

void accrt_pool_unref(accrt_pool_t* pool) {
  if (pool == NULL || !accrt_object_release(&pool->object))
    return;
  accrt_pool_set_t* set = &pool->device->pools;
  accrt_mutex_lock(&set->lock);
  if (pool->next != NULL)
    pool->next->previous = pool->previous;
  if (pool->previous != NULL) {
    pool->previous->next = pool->next;
  } else {
    set->head = pool->next;
  }
  accrt_mutex_unlock(&set->lock);
  accrt_pool_clear(pool);
  accrt_free(accrt_instance_allocator(pool->instance), pool, sizeof *pool);
}

static accrt_status_t check_options(const accrt_pool_options_t* options,
                                    accrt_pool_options_t* out_local) {
  ACCRT_TRY(accrt_struct_read("accrt_pool_options_t", options, out_local, sizeof *out_local));
  if (out_local->kind == 0)
    out_local->kind = ACCRT_MEMORY_DEVICE;
  if (out_local->kind <= ACCRT_MEMORY_HOST)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "kind %" PRIu32 " is not DEVICE, PINNED or HOST",
                    out_local->kind);
}

accrt_device_t* accrt_pool_device(const accrt_pool_t* pool) {
  return pool->device;
}

accrt_status_t accrt_pool_create(accrt_device_t* device, const accrt_pool_options_t* options,
                                 accrt_pool_t** out_pool) {
  if (out_pool != NULL)
    *out_pool = NULL;
  ACCRT_ENTER(out_pool, device);
  accrt_pool_options_t local;
  ACCRT_TRY(check_options(options, &local));
  const accrt_pool_traits_t traits = {.one_mapping = accrt_instance_one_mapping(device->instance)};
  accrt_status_t status = accrt_pool_make(device, &local, &traits, out_pool);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain((*out_pool)->instance);
  return status;
}

accrt_pool_t* accrt_pool_retain(accrt_pool_t* pool) {
  if (pool == NULL || accrt_forked())
    return pool;
  accrt_object_retain(&pool->object);
  (void)accrt_instance_retain(pool->instance);
  return pool;
}

void accrt_pool_release(accrt_pool_t* pool) {
  if (pool == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = pool->instance;
  /* Otherwise memory that streams freed would keep the pool alive. */
  accrt_pool_reap(pool);
  accrt_pool_unref(pool);
  accrt_instance_release(instance);
}

/* Returns the set's own pool of a kind. There is one for imports too. */
accrt_status_t accrt_pool_default(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool) {
  accrt_pool_set_t* set = &device->pools;
  accrt_mutex_lock(&set->lock);
  *out_pool = set->defaults[kind];
  accrt_mutex_unlock(&set->lock);
  if (*out_pool != NULL)
    return ACCRT_OK;
  static const char labels[][9] = {"", "device", "pinned", "host", "imported", "mapped"};
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.kind = kind;
  options.label = labels[kind];
  const accrt_pool_traits_t traits = {.one_mapping = accrt_instance_one_mapping(device->instance),
                                      .imports = kind == ACCRT_MEMORY_IMPORTED};
  accrt_pool_t* made;
  ACCRT_TRY(accrt_pool_make(device, &options, &traits, &made));
  accrt_mutex_lock(&set->lock);
  if (set->defaults[kind] == NULL) {
    set->defaults[kind] = made;
    made = NULL;
  }
  *out_pool = set->defaults[kind];
  accrt_mutex_unlock(&set->lock);
  accrt_pool_unref(made);
  return ACCRT_OK;
}

accrt_status_t accrt_device_pool(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool) {
  if (out_pool != NULL)
    *out_pool = NULL;
  ACCRT_ENTER(out_pool, device);
  if (kind == 0)
    kind = ACCRT_MEMORY_DEVICE; /* the same default as accrt_pool_create */
  if (kind > ACCRT_MEMORY_IMPORTED)
    return ACCRT_FAIL(INVALID_ARGUMENT, "kind %" PRIu32 " is not DEVICE, PINNED or HOST", kind);
  return accrt_pool_default(device, kind, out_pool);
}

/* ---- A device's pools ---- */

/* Retains and returns the first pool from `pool` on that is not ending. Requires the set's lock,
 * for which an ending pool waits. */
static accrt_pool_t* retain_from(accrt_pool_t* pool) {
  while (pool != NULL && !accrt_object_try_retain(&pool->object))
    pool = pool->next;
  return pool;
}

void accrt_pools_visit(accrt_device_t* device, void (*visit)(accrt_pool_t* pool, void* user),
                       void* user) {
  accrt_pool_set_t* set = &device->pools;
  accrt_mutex_lock(&set->lock);
  accrt_pool_t* pool = retain_from(set->head);
  accrt_mutex_unlock(&set->lock);
  while (pool != NULL) {
    visit(pool, user);
    /* `pool` stays in the list while this reference exists. */
    accrt_mutex_lock(&set->lock);
    accrt_pool_t* next = retain_from(pool->next);
    accrt_mutex_unlock(&set->lock);
    accrt_pool_unref(pool);
    pool = next;
  }
}

void accrt_pool_set_init(accrt_pool_set_t* set) {
  memset(set, 0, sizeof *set);
  accrt_mutex_init(&set->lock, ACCRT_LOCK_POOL_SET);
}

void accrt_pool_set_deinit(accrt_pool_set_t* set) {
  while (set->head != NULL) {
    accrt_pool_t* pool = set->head;
    accrt_object_retain(&pool->object);
    accrt_pool_reap(pool);
    for (uint32_t kind = 0; kind <= ACCRT_MEMORY_MAPPED; ++kind) {
      if (set->defaults[kind] != pool)
        continue;
      set->defaults[kind] = NULL;
      accrt_pool_unref(pool);
    }
    accrt_pool_unref(pool);
    /* Some buffers still exist: a caller broke the rules of references. Any further step would do
     * harm. */
    if (set->head == pool)
      return;
  }
}

static void visit_reap(accrt_pool_t* pool, void* user) {
  (void)user;
  accrt_pool_reap(pool);
}

void accrt_device_reap_pools(accrt_device_t* device) {
  accrt_pools_visit(device, visit_reap, NULL);
}
