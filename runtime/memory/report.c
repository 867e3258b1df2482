/* runtime/memory/report.c - reports about pools: statistics, snapshots, and the out-of-memory
 * error, which lists the owners of the memory. It changes no pool. */
#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"
#include "runtime/memory/pool.h"

#define MAX_HOLDERS 16
#define HOLDERS_SHOWN 4

/* ---- Out of memory: the owners of the memory ---- */

typedef struct holder {
  char label[ACCRT_LABEL_BYTES];
  uint64_t size_bytes;
} holder_t;

typedef struct holders {
  holder_t list[MAX_HOLDERS];
  uint32_t count;
  uint64_t others_bytes;
  uint64_t reserved_bytes;
} holders_t;

static const char* shown(const char* label) {
  return label[0] != '\0' ? label : "(unnamed)";
}

static void add_holder(holders_t* holders, const char* label, uint64_t size_bytes) {
  label = shown(label);
  for (uint32_t i = 0; i < holders->count; ++i) {
    if (strcmp(holders->list[i].label, label) != 0)
      continue;
    holders->list[i].size_bytes += size_bytes;
    return;
  }
  if (holders->count == MAX_HOLDERS) {
    holders->others_bytes += size_bytes;
    return;
  }
  holder_t* holder = &holders->list[holders->count++];
  (void)snprintf(holder->label, sizeof holder->label, "%s", label);
  holder->size_bytes = size_bytes;
}

static void add_pool_holders(holders_t* holders, accrt_pool_t* pool) {
  accrt_mutex_lock(&pool->lock);
  holders->reserved_bytes += pool->statistics.reserved_bytes;
  for (const accrt_buffer_t* buffer = pool->live; buffer != NULL; buffer = buffer->next) {
    if (buffer->block != NULL) {
      add_holder(holders, buffer->label[0] != '\0' ? buffer->label : pool->label,
                 buffer->block->size_bytes);
    }
  }
  accrt_mutex_unlock(&pool->lock);
}

static void sort_holders(holders_t* holders) {
  for (uint32_t i = 1; i < holders->count; ++i) {
    for (uint32_t j = i; j > 0 && holders->list[j].size_bytes > holders->list[j - 1].size_bytes;
         --j) {
      const holder_t swapped = holders->list[j];
      holders->list[j] = holders->list[j - 1];
      holders->list[j - 1] = swapped;
    }
  }
}

/* "a 12 bytes, b 3 bytes, others 1" */
static void print_holders(const holders_t* holders, char* text, size_t capacity) {
  size_t length = 0;
  text[0] = '\0';
  uint64_t others = holders->others_bytes;
  for (uint32_t i = 0; i < holders->count; ++i) {
    if (i >= HOLDERS_SHOWN) {
      others += holders->list[i].size_bytes;
      continue;
    }
    const int written =
        snprintf(text + length, capacity - length, "%s'%s' %" PRIu64, i > 0 ? ", " : "",
                 holders->list[i].label, holders->list[i].size_bytes);
    if (written < 0 || (size_t)written >= capacity - length)
      return;
    length += (size_t)written;
  }
  if (others > 0)
    (void)snprintf(text + length, capacity - length, ", others %" PRIu64, others);
}

static void visit_holders(accrt_pool_t* pool, void* user) {
  add_pool_holders(user, pool);
}

accrt_status_t accrt_pool_fail_out_of_memory(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                             uint64_t mapped_bytes) {
  char held[256], limit[64] = "";
  holders_t holders;
  memset(&holders, 0, sizeof holders);
  accrt_pools_visit(pool->device, visit_holders, &holders);
  sort_holders(&holders);
  print_holders(&holders, held, sizeof held);
  accrt_pool_statistics_t statistics;
  accrt_mutex_lock(&pool->lock);
  statistics = pool->statistics;
  accrt_mutex_unlock(&pool->lock);
  if (pool->limit_bytes != 0)
    (void)snprintf(limit, sizeof limit, " of a limit of %" PRIu64, pool->limit_bytes);
  /* If the driver ran out of memory, its own message follows, since only that shows the memory of
   * other processes. */
  const accrt_error_t cause = *accrt_error_current();
  const bool has_cause = cause.driver_code != 0;
  return accrt_error_record_driver(
      ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, cause.driver_code, cause.driver_name,
      accrt_error_operation(), __FILE__, (uint32_t)__LINE__,
      "%s: buffer '%s' of %" PRIu64 " bytes needs %" PRIu64 " more; pool '%s' holds %" PRIu64
      "%s, device %" PRIu64 "; held by: %s%s%s",
      accrt_device_facts(pool->device)->name, shown(buffer->label), buffer->size_bytes,
      mapped_bytes, shown(pool->label), statistics.reserved_bytes, limit, holders.reserved_bytes,
      held[0] != '\0' ? held : "nothing", has_cause ? "; " : "", has_cause ? cause.message : "");
}

/* ---- Statistics and snapshots ---- */

accrt_status_t accrt_pool_statistics(accrt_pool_t* pool, accrt_pool_statistics_t* out_statistics) {
  ACCRT_ENTER(pool);
  accrt_pool_reap(pool);
  accrt_pool_statistics_t statistics;
  accrt_mutex_lock(&pool->lock);
  statistics = pool->statistics;
  statistics.free_bytes = pool->heap.free_bytes;
  statistics.largest_free_bytes = accrt_heap_largest_free(&pool->heap);
  statistics.mapping_count = pool->heap.segment_count;
  /* A mapping that is being made or returned counts neither as free nor as used. */
  statistics.reserved_bytes =
      statistics.used_bytes + statistics.retiring_bytes + statistics.free_bytes;
  accrt_mutex_unlock(&pool->lock);
  return accrt_struct_write("accrt_pool_statistics_t", out_statistics, &statistics,
                            sizeof statistics);
}

static void fill_entry(accrt_pool_entry_t* entry, const accrt_buffer_t* buffer) {
  memset(entry, 0, sizeof *entry);
  entry->buffer_id = buffer->id;
  entry->address = buffer->address;
  entry->size_bytes = buffer->size_bytes;
  entry->retiring = buffer->retiring;
  (void)snprintf(entry->label, sizeof entry->label, "%s", buffer->label);
}

typedef struct listing {
  accrt_pool_entry_t* entries;
  uint32_t capacity;
  uint32_t count;
} listing_t;

static void list_entries(listing_t* listing, const accrt_buffer_t* buffer) {
  for (; buffer != NULL; buffer = buffer->next, ++listing->count) {
    if (listing->count < listing->capacity)
      fill_entry(&listing->entries[listing->count], buffer);
  }
}

accrt_status_t accrt_pool_snapshot(accrt_pool_t* pool, accrt_pool_entry_t* entries,
                                   uint32_t capacity, uint32_t entry_size_bytes,
                                   uint32_t* out_count) {
  if (out_count != NULL)
    *out_count = 0;
  ACCRT_ENTER(out_count, pool);
  if (entries == NULL && capacity > 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "entries is NULL with a capacity of %" PRIu32, capacity);
  ACCRT_TRY(accrt_struct_check_element("accrt_pool_entry_t", entry_size_bytes,
                                       sizeof(accrt_pool_entry_t)));
  accrt_pool_reap(pool);
  listing_t listing = {.entries = entries, .capacity = capacity};
  accrt_mutex_lock(&pool->lock);
  list_entries(&listing, pool->live);
  list_entries(&listing, pool->retiring);
  for (uint32_t i = 0; i < ACCRT_STREAM_CACHE_LISTS; ++i) {
    for (const accrt_stream_cache_t* cache = pool->stream_caches[i]; cache != NULL;
         cache = cache->next)
      list_entries(&listing, cache->oldest);
  }
  accrt_mutex_unlock(&pool->lock);
  *out_count = listing.count;
  return ACCRT_OK;
}
