/* runtime/drivers/common/staging.c - the engine behind large transfers: jobs, threads, ring
 * entries. It may not know streams (staging_stream.c does) nor call other code under its lock. */
#define _GNU_SOURCE
#include "runtime/drivers/common/staging.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/value.h"

#define MAX_RING_ENTRIES 16u
#define MIN_RING_ENTRIES 2u
#define MAX_COPY_QUEUES 8u
/* Pieces of a small transfer, so that several threads share it; of a large one they are ring
 * entries. */
#define MIN_PIECE_BYTES (UINT64_C(512) << 10)
#define PIECES_PER_TRANSFER 64u
/* Less is not worth a thread's waking up. */
#define BYTES_PER_THREAD (UINT64_C(1) << 20)
/* Of what the processors allow: some are left to the program, and a dozen fill any bus. */
#define DEFAULT_THREADS 12u
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define PAGE_BYTES 4096u
/* A waiting thread that also keeps its device going looks again after this long. */
#define PROGRESS_PAUSE_NS UINT64_C(50000)

/* A piece of pinned memory of the ring. */
typedef struct ring_entry {
  unsigned char* memory;
  uint64_t address; /* for the driver */
  /* of the copy in flight */
  accrt_staging_job_t* job;
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint32_t copies;     /* that the driver has taken */
  atomic_uint pending; /* copies without their completion; and 1 while more are to come */
  atomic_int failure;  /* status of a copy that failed */
  accrt_staging_t* staging;
} ring_entry_t;

/* A queue of the device, which several threads give copies to: one copy engine works through one
 * queue without a pause, and through many with one at each change. The lock is held around the
 * driver's calls alone, which are to be made one at a time; completions never take it. */
typedef struct copy_queue {
  accrt_mutex_t lock;
  accrt_driver_queue_t* queue; /* NULL until it is needed */
  uint64_t last_number;
  uint32_t in_flight; /* ring entries with copies that are not retired */
  bool failed;        /* skips all until it is reset, which needs it empty */
  accrt_error_t error;
} copy_queue_t;

typedef struct stager {
  accrt_staging_t* staging;
  pthread_t thread;
  bool ready; /* ring entries are there */
  copy_queue_t* copy_queue;
  ring_entry_t entries[MAX_RING_ENTRIES];
  uint32_t first; /* oldest in flight */
  uint32_t in_flight;
  unsigned char* memory; /* of all ring entries */
  uint64_t memory_bytes;
  accrt_driver_memory_t pinned; /* as the driver knows it */
  enum { NOT_PINNED, PINNED_BY_IMPORT, PINNED_BY_DRIVER } pinning;
} stager_t;

struct accrt_staging {
  accrt_device_t* device;
  uint64_t entry_bytes;
  uint32_t entry_count; /* of each thread */
  uint32_t most_threads;
  uint32_t copy_queue_count;
  copy_queue_t copy_queues[MAX_COPY_QUEUES];
  accrt_monitor_t monitor;
  /* under its lock */
  accrt_staging_job_t* head; /* with pieces that no thread has claimed */
  accrt_staging_job_t** tail;
  bool stopping;
  uint32_t thread_count; /* grows with what is asked for */
  stager_t stagers[];
};

static const accrt_allocator_t* allocator_of(const accrt_staging_t* staging) {
  return &staging->device->instance->allocator;
}

static const accrt_driver_table_t* table_of(const accrt_staging_t* staging) {
  return staging->device->table;
}

/* ---- Jobs ---- */

/* Under the lock. */
static void pop_job(accrt_staging_t* staging) {
  ACCRT_ASSERT_HELD(&staging->monitor);
  staging->head = staging->head->next;
  if (staging->head == NULL)
    staging->tail = &staging->head;
}

/* Whether a record says more than the one that the job has: the one that lies first is kept, so
 * that the same fault gives the same message, and any before one of a piece that was skipped
 * because of another. */
static bool is_better_record(const accrt_staging_job_t* job, uint64_t offset_bytes,
                             const accrt_error_t* error) {
  const bool skipped = error->status == ACCRT_ERROR_POISONED;
  const bool had_skipped = job->error.status == ACCRT_ERROR_POISONED;
  if (!job->failed || skipped != had_skipped)
    return !job->failed || had_skipped;
  return offset_bytes < job->failed_offset;
}

/* A piece failed with this record. */
static void fail_piece(accrt_staging_t* staging, accrt_staging_job_t* job, uint64_t offset_bytes,
                       const accrt_error_t* error) {
  accrt_monitor_lock(&staging->monitor);
  if (is_better_record(job, offset_bytes, error)) {
    job->error = *error;
    job->failed_offset = offset_bytes;
  }
  job->failed = true;
  accrt_monitor_unlock(&staging->monitor);
}

/* A piece is over, well or not. */
static void end_piece(accrt_staging_t* staging, accrt_staging_job_t* job, uint64_t size_bytes) {
  accrt_monitor_lock(&staging->monitor);
  job->left_bytes -= size_bytes;
  const bool over = job->left_bytes == 0;
  accrt_monitor_unlock(&staging->monitor);
  if (over)
    job->done(job);
}

typedef struct piece {
  accrt_staging_job_t* job;
  uint64_t offset_bytes;
  uint64_t size_bytes;
  bool dropped; /* the rest of a job that has failed: it is not moved */
} piece_t;

/* The next piece. Under the lock. */
static bool claim(accrt_staging_t* staging, piece_t* out_piece) {
  ACCRT_ASSERT_HELD(&staging->monitor);
  accrt_staging_job_t* job = staging->head;
  if (job == NULL)
    return false;
  const uint64_t left_bytes = job->size_bytes - job->claimed_bytes;
  *out_piece = (piece_t){.job = job,
                         .offset_bytes = job->claimed_bytes,
                         .size_bytes = left_bytes,
                         .dropped = job->failed};
  if (!job->failed && left_bytes > job->piece_bytes)
    out_piece->size_bytes = job->piece_bytes;
  job->claimed_bytes += out_piece->size_bytes;
  if (job->claimed_bytes == job->size_bytes)
    pop_job(staging);
  return true;
}

/* ---- A thread's ring entries ---- */

/* Memory in large pages where they can be had, and there before the driver is asked to pin it: that
 * is much faster than what drivers allocate. */
static unsigned char* take_memory(const accrt_staging_t* staging, uint64_t size_bytes) {
  unsigned char* memory =
      accrt_allocate(allocator_of(staging), (size_t)size_bytes, HUGE_PAGE_BYTES);
  if (memory == NULL)
    return NULL;
  (void)madvise(memory, (size_t)(size_bytes & ~(HUGE_PAGE_BYTES - 1)), MADV_HUGEPAGE);
  for (uint64_t at = 0; at < size_bytes; at += PAGE_BYTES)
    *(volatile unsigned char*)(memory + at) = 0;
  return memory;
}

static void put_memory(const accrt_staging_t* staging, unsigned char* memory, uint64_t size_bytes) {
  accrt_free_aligned(allocator_of(staging), memory, (size_t)size_bytes, HUGE_PAGE_BYTES);
}

/* Pinned memory of the driver's own kind, where it does not take ours. */
static bool allocate_pinned(stager_t* stager) {
  const accrt_staging_t* staging = stager->staging;
  const accrt_driver_table_t* table = table_of(staging);
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  table->memory_info(staging->device->driver_device, ACCRT_MEMORY_PINNED, &info);
  uint64_t size_bytes;
  if (!info.supported ||
      !accrt_align_u64(stager->memory_bytes,
                       info.granularity_bytes == 0 ? 1 : info.granularity_bytes, &size_bytes))
    return false;
  if (table->memory_allocate(staging->device->driver_device, ACCRT_MEMORY_PINNED, size_bytes,
                             &stager->pinned) != ACCRT_OK)
    return false;
  stager->pinning = PINNED_BY_DRIVER;
  return stager->pinned.host_pointer != NULL;
}

static accrt_status_t make_memory(stager_t* stager) {
  const accrt_staging_t* staging = stager->staging;
  const accrt_driver_table_t* table = table_of(staging);
  stager->memory_bytes = staging->entry_bytes * staging->entry_count;
  stager->memory = take_memory(staging, stager->memory_bytes);
  if (stager->memory == NULL) {
    return ACCRT_FAIL(OUT_OF_MEMORY, "could not allocate %" PRIu64 " bytes for staging",
                      stager->memory_bytes);
  }
  uint64_t address = (uint64_t)(uintptr_t)stager->memory;
  unsigned char* memory = stager->memory;
  if (table->memory_import != NULL &&
      table->memory_import(staging->device->driver_device, stager->memory, stager->memory_bytes,
                           &stager->pinned) == ACCRT_OK) {
    stager->pinning = PINNED_BY_IMPORT;
    address = stager->pinned.device_address;
  } else if (allocate_pinned(stager)) {
    put_memory(staging, stager->memory, stager->memory_bytes);
    stager->memory = NULL;
    memory = stager->pinned.host_pointer;
    address = stager->pinned.device_address;
  }
  /* Else it is not pinned: slower, and right. */
  for (uint32_t i = 0; i < staging->entry_count; ++i) {
    stager->entries[i].memory = memory + i * staging->entry_bytes;
    stager->entries[i].address = address + i * staging->entry_bytes;
    stager->entries[i].staging = stager->staging;
  }
  return ACCRT_OK;
}

static void drop_memory(stager_t* stager) {
  const accrt_staging_t* staging = stager->staging;
  const accrt_driver_table_t* table = table_of(staging);
  if (stager->pinning == PINNED_BY_IMPORT && table->memory_unimport != NULL)
    table->memory_unimport(staging->device->driver_device, &stager->pinned);
  if (stager->pinning == PINNED_BY_DRIVER)
    table->memory_free(staging->device->driver_device, &stager->pinned);
  if (stager->memory != NULL)
    put_memory(staging, stager->memory, stager->memory_bytes);
  stager->pinning = NOT_PINNED;
  stager->memory = NULL;
}

static accrt_status_t make_ready(stager_t* stager) {
  if (stager->ready)
    return ACCRT_OK;
  const accrt_status_t status = make_memory(stager);
  stager->ready = status == ACCRT_OK;
  return status;
}

/* ---- Copies in flight ---- */

static void land(ring_entry_t* entry) {
  /* Release pairs with the acquire in await_landing. */
  if (atomic_fetch_sub_explicit(&entry->pending, 1, memory_order_acq_rel) == 1)
    accrt_futex_wake(&entry->pending, 1);
}

/* A driver that gives no record: one is made, without touching this thread's. */
static void fail_silently(ring_entry_t* entry, accrt_status_t status) {
  const accrt_error_t saved = *accrt_error_current();
  (void)ACCRT_FAIL_STATUS(status, "a copy failed, and the driver gave no record");
  fail_piece(entry->staging, entry->job, entry->offset_bytes, accrt_error_current());
  (void)accrt_error_restore(&saved);
}

static void landed(void* user, accrt_status_t status, const accrt_error_t* error,
                   uint64_t time_ns) {
  ring_entry_t* entry = user;
  (void)time_ns;
  if (status != ACCRT_OK) {
    atomic_store_explicit(&entry->failure, status, memory_order_relaxed);
    if (error != NULL)
      fail_piece(entry->staging, entry->job, entry->offset_bytes, error);
    else
      fail_silently(entry, status);
  }
  land(entry);
}

/* Waits for a entry's copies. A failure is in the job then. By completion, and not by the driver's
 * number: a dozen threads that ask a driver how far it is keep it from its work. */
static accrt_status_t await_landing(stager_t* stager, ring_entry_t* entry) {
  accrt_device_t* device = stager->staging->device;
  const accrt_driver_table_t* table = table_of(stager->staging);
  unsigned pending;
  /* Acquire pairs with the release in land. */
  while ((pending = atomic_load_explicit(&entry->pending, memory_order_acquire)) != 0) {
    if (!accrt_upper_device(device)->caller_runs || table->device_progress == NULL) {
      accrt_futex_wait(&entry->pending, pending, UINT64_MAX);
    } else if (table->device_progress(device->driver_device) == 0) {
      accrt_futex_wait(&entry->pending, pending, PROGRESS_PAUSE_NS);
    }
  }
  const accrt_status_t status = atomic_load_explicit(&entry->failure, memory_order_relaxed);
  accrt_device_note_status(device, status);
  return status;
}

/* ---- Copy queues ---- */

/* Never asleep: what is done under the lock takes some microseconds, less than a sleeper's waking
 * up, and a dozen threads that wake one another in turn would keep the device waiting. */
static void lock_copy_queue(copy_queue_t* copy_queue) {
  while (!accrt_mutex_try_lock(&copy_queue->lock))
    (void)sched_yield();
}

/* Under the copy queue's lock. */
static accrt_status_t open_copy_queue(accrt_staging_t* staging, copy_queue_t* copy_queue) {
  ACCRT_ASSERT_HELD(&copy_queue->lock);
  if (copy_queue->failed)
    return accrt_error_restore(&copy_queue->error);
  if (copy_queue->queue != NULL)
    return ACCRT_OK;
  accrt_device_t* device = staging->device;
  const accrt_status_t status =
      table_of(staging)->queue_create(device->driver_device, 0, &copy_queue->queue);
  accrt_device_note_status(device, status);
  return status;
}

static void copy_error(accrt_staging_t* staging, const accrt_staging_job_t* job,
                       accrt_error_t* out_error) {
  accrt_monitor_lock(&staging->monitor);
  *out_error = job->error;
  accrt_monitor_unlock(&staging->monitor);
}

/* A entry's copies are over: the last one out resets a copy queue that has failed. */
static void leave_copy_queue(accrt_staging_t* staging, copy_queue_t* copy_queue,
                             accrt_status_t status, const accrt_staging_job_t* job) {
  lock_copy_queue(copy_queue);
  ACCRT_ASSERT(copy_queue->in_flight > 0);
  copy_queue->in_flight -= 1;
  if (status != ACCRT_OK && !copy_queue->failed) {
    copy_queue->failed = true;
    copy_error(staging, job, &copy_queue->error);
  }
  if (copy_queue->failed && copy_queue->in_flight == 0) {
    const accrt_status_t reset = table_of(staging)->queue_reset(copy_queue->queue);
    accrt_device_note_status(staging->device, reset);
    copy_queue->failed = reset != ACCRT_OK;
  }
  accrt_mutex_unlock(&copy_queue->lock);
}

/* Ends the oldest copy in flight. */
static void retire_oldest(stager_t* stager) {
  accrt_staging_t* staging = stager->staging;
  ring_entry_t* entry = &stager->entries[stager->first];
  accrt_staging_job_t* job = entry->job;
  accrt_error_enter(job->name);
  accrt_status_t status = await_landing(stager, entry);
  stager->first = (stager->first + 1) % staging->entry_count;
  ACCRT_ASSERT(stager->in_flight > 0);
  stager->in_flight -= 1;
  leave_copy_queue(staging, stager->copy_queue, status, job);
  if (status == ACCRT_OK && job->direction == ACCRT_STAGING_FROM_DEVICE) {
    status = job->move(job->user, entry->offset_bytes, entry->memory, entry->size_bytes);
    if (status != ACCRT_OK)
      fail_piece(staging, job, entry->offset_bytes, accrt_error_current());
  }
  end_piece(staging, job, entry->size_bytes);
}

/* Under the copy queue's lock. */
static accrt_status_t enqueue_copy(stager_t* stager, ring_entry_t* entry, uint64_t from,
                                   uint64_t to, uint64_t size_bytes) {
  ACCRT_ASSERT_HELD(&stager->copy_queue->lock);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY, .name = entry->job->name};
  command.as.copy =
      (accrt_driver_copy_t){.source = range_at(from, size_bytes, ACCRT_KERNEL_ACCESS_READ),
                            .target = range_at(to, size_bytes, ACCRT_KERNEL_ACCESS_WRITE),
                            .extent = {VALUE(size_bytes), VALUE(1), VALUE(1)},
                            .source_stride_bytes = {VALUE(0), VALUE(0)},
                            .target_stride_bytes = {VALUE(0), VALUE(0)}};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = stager->copy_queue->last_number + 1,
                                                .completion = {landed, entry}};
  /* Relaxed: the enqueue publishes it to the thread that calls the completion. */
  atomic_fetch_add_explicit(&entry->pending, 1, memory_order_relaxed);
  const accrt_status_t status =
      table_of(stager->staging)->queue_enqueue(stager->copy_queue->queue, &command, &submission);
  if (status != ACCRT_OK) {
    atomic_fetch_sub_explicit(&entry->pending, 1, memory_order_relaxed);
    return status;
  }
  stager->copy_queue->last_number += 1;
  entry->copies += 1;
  return ACCRT_OK;
}

uint32_t accrt_extent_find(const accrt_extent_t* extents, uint32_t count, uint64_t offset_bytes) {
  uint32_t low = 0, end = count;
  while (low < end) {
    const uint32_t middle = low + (end - low) / 2;
    if (extents[middle].offset_bytes + extents[middle].size_bytes <= offset_bytes)
      low = middle + 1;
    else
      end = middle;
  }
  return low;
}

static bool has_extent(const accrt_staging_job_t* job, uint32_t extent, uint64_t end_bytes) {
  return extent < job->extent_count && job->extents[extent].offset_bytes < end_bytes;
}

/* The parts of a entry that extents lie in. */
static accrt_status_t enqueue_extents(stager_t* stager, ring_entry_t* entry) {
  ACCRT_ASSERT_HELD(&stager->copy_queue->lock);
  const accrt_staging_job_t* job = entry->job;
  const uint64_t entry_end = entry->offset_bytes + entry->size_bytes;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = accrt_extent_find(job->extents, job->extent_count, entry->offset_bytes);
       has_extent(job, i, entry_end) && status == ACCRT_OK; ++i) {
    const accrt_extent_t* extent = &job->extents[i];
    const uint64_t extent_end = extent->offset_bytes + extent->size_bytes;
    const uint64_t begin =
        extent->offset_bytes > entry->offset_bytes ? extent->offset_bytes : entry->offset_bytes;
    const uint64_t end = extent_end < entry_end ? extent_end : entry_end;
    status = enqueue_copy(stager, entry, entry->address + (begin - entry->offset_bytes),
                          extent->address + (begin - extent->offset_bytes), end - begin);
  }
  return status;
}

/* Gives the driver a entry's copies. On failure some may be in flight all the same. */
static accrt_status_t enqueue_entry(stager_t* stager, ring_entry_t* entry) {
  copy_queue_t* copy_queue = stager->copy_queue;
  const accrt_staging_job_t* job = entry->job;
  const uint64_t device_address = job->address + entry->offset_bytes;
  const bool up = job->direction == ACCRT_STAGING_TO_DEVICE;
  atomic_store_explicit(&entry->pending, 1, memory_order_relaxed);
  atomic_store_explicit(&entry->failure, ACCRT_OK, memory_order_relaxed);
  entry->copies = 0;
  lock_copy_queue(copy_queue);
  accrt_status_t status = open_copy_queue(stager->staging, copy_queue);
  if (status == ACCRT_OK)
    status = job->extents != NULL
                 ? enqueue_extents(stager, entry)
                 : enqueue_copy(stager, entry, up ? entry->address : device_address,
                                up ? device_address : entry->address, entry->size_bytes);
  copy_queue->in_flight += entry->copies > 0;
  accrt_mutex_unlock(&copy_queue->lock);
  land(entry);
  return status;
}

/* Moves a piece through a entry of this thread. `out_flying`: it is in flight, and ends with its
 * entry. */
static accrt_status_t launch(stager_t* stager, const piece_t* piece, bool* out_flying) {
  accrt_staging_t* staging = stager->staging;
  accrt_staging_job_t* job = piece->job;
  ACCRT_TRY(make_ready(stager));
  if (stager->in_flight == staging->entry_count)
    retire_oldest(stager);
  accrt_error_enter(job->name);
  ring_entry_t* entry =
      &stager->entries[(stager->first + stager->in_flight) % staging->entry_count];
  entry->job = job;
  entry->offset_bytes = piece->offset_bytes;
  entry->size_bytes = piece->size_bytes;
  entry->copies = 0;
  accrt_status_t status = ACCRT_OK;
  if (job->direction == ACCRT_STAGING_TO_DEVICE)
    status = job->move(job->user, piece->offset_bytes, entry->memory, piece->size_bytes);
  if (status == ACCRT_OK)
    status = enqueue_entry(stager, entry);
  *out_flying = entry->copies > 0;
  stager->in_flight += *out_flying;
  return status;
}

static bool is_wanted(const piece_t* piece) {
  const accrt_staging_job_t* job = piece->job;
  return !piece->dropped &&
         (job->extents == NULL ||
          has_extent(job, accrt_extent_find(job->extents, job->extent_count, piece->offset_bytes),
                     piece->offset_bytes + piece->size_bytes));
}

static void move_piece(stager_t* stager, const piece_t* piece) {
  accrt_staging_job_t* job = piece->job;
  accrt_status_t status = ACCRT_OK;
  bool flying = false;
  accrt_error_enter(job->name);
  if (is_wanted(piece) && job->direct) {
    status = job->move(job->user, piece->offset_bytes,
                       (void*)(uintptr_t)(job->address + piece->offset_bytes), piece->size_bytes);
  } else if (is_wanted(piece)) {
    status = launch(stager, piece, &flying);
    accrt_device_note_status(stager->staging->device, status);
  }
  if (status != ACCRT_OK)
    fail_piece(stager->staging, job, piece->offset_bytes, accrt_error_current());
  if (!flying)
    end_piece(stager->staging, job, piece->size_bytes);
}

/* ---- Threads ---- */

/* The next piece for this thread. False when it has none and is to end. It sleeps only with nothing
 * in flight. */
static bool next_piece(stager_t* stager, piece_t* out_piece) {
  accrt_staging_t* staging = stager->staging;
  for (;;) {
    accrt_monitor_lock(&staging->monitor);
    bool claimed = claim(staging, out_piece);
    while (!claimed && stager->in_flight == 0 && !staging->stopping) {
      accrt_monitor_wait(&staging->monitor);
      claimed = claim(staging, out_piece);
    }
    accrt_monitor_unlock(&staging->monitor);
    if (claimed || stager->in_flight == 0)
      return claimed;
    retire_oldest(stager);
  }
}

static void* run_stager(void* argument) {
  stager_t* stager = argument;
  piece_t piece;
  accrt_context_set_runtime_thread(true);
  while (next_piece(stager, &piece))
    move_piece(stager, &piece);
  if (stager->ready)
    drop_memory(stager);
  return NULL;
}

static int start_thread(stager_t* stager) {
  const int error = accrt_thread_start(&stager->thread, NULL, run_stager, stager);
  if (error == 0)
    (void)pthread_setname_np(stager->thread, "accrt-stage");
  return error;
}

/* ---- The engine ---- */

static uint32_t default_threads(void) {
  cpu_set_t set;
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const uint32_t most = count < 4 ? 1 : (uint32_t)count * 3 / 4;
  return most < DEFAULT_THREADS ? most : DEFAULT_THREADS;
}

static size_t staging_bytes(uint32_t thread_count) {
  return sizeof(accrt_staging_t) + thread_count * sizeof(stager_t);
}

void accrt_staging_destroy(accrt_staging_t* staging) {
  if (staging == NULL)
    return;
  accrt_monitor_deinit(&staging->monitor);
  accrt_free(allocator_of(staging), staging, staging_bytes(staging->most_threads));
}

static accrt_status_t make_staging(accrt_device_t* device, accrt_staging_t** out_staging) {
  const accrt_runtime_options_t* options = &device->instance->runtime_options;
  const uint32_t threads =
      options->staging_threads != 0 ? options->staging_threads : default_threads();
  void* memory;
  ACCRT_TRY(accrt_alloc(&device->instance->allocator, staging_bytes(threads), &memory));
  accrt_staging_t* staging = memory;
  const uint64_t entries = options->staging_ring_bytes / options->staging_slot_bytes / threads;
  staging->device = device;
  staging->most_threads = threads;
  staging->entry_bytes = options->staging_slot_bytes;
  staging->entry_count = entries < MIN_RING_ENTRIES   ? MIN_RING_ENTRIES
                         : entries > MAX_RING_ENTRIES ? MAX_RING_ENTRIES
                                                      : (uint32_t)entries;
  staging->tail = &staging->head;
  accrt_monitor_init(&staging->monitor, ACCRT_LOCK_STAGING);
  staging->copy_queue_count = options->staging_queues;
  for (uint32_t i = 0; i < staging->copy_queue_count; ++i)
    accrt_mutex_init(&staging->copy_queues[i].lock, ACCRT_LOCK_STAGING_QUEUE);
  *out_staging = staging;
  return ACCRT_OK;
}

static uint32_t threads_for(const accrt_staging_t* staging, uint64_t size_bytes) {
  const uint64_t wanted = size_bytes / BYTES_PER_THREAD + 1;
  return wanted < staging->most_threads ? (uint32_t)wanted : staging->most_threads;
}

/* A system that gives fewer threads than are wanted is a slower one; it must give one. */
static accrt_status_t start_threads(accrt_staging_t* staging, uint64_t size_bytes) {
  const uint32_t wanted = threads_for(staging, size_bytes);
  int error = 0;
  accrt_monitor_lock(&staging->monitor);
  while (staging->thread_count < wanted && !staging->stopping && error == 0) {
    stager_t* stager = &staging->stagers[staging->thread_count];
    stager->staging = staging;
    stager->copy_queue = &staging->copy_queues[staging->thread_count % staging->copy_queue_count];
    error = start_thread(stager);
    if (error == 0)
      staging->thread_count += 1;
  }
  const bool any = staging->thread_count > 0 || staging->stopping;
  accrt_monitor_unlock(&staging->monitor);
  if (!any)
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, error, "could not start a staging thread");
  return ACCRT_OK;
}

accrt_status_t accrt_staging_get(accrt_device_t* device, uint64_t size_bytes,
                                 accrt_staging_t** out_staging) {
  /* Acquire pairs with the release below. */
  accrt_staging_t* present =
      atomic_load_explicit(&accrt_upper_device(device)->staging, memory_order_acquire);
  if (present == NULL) {
    accrt_staging_t* made;
    ACCRT_TRY(make_staging(device, &made));
    if (atomic_compare_exchange_strong_explicit(&accrt_upper_device(device)->staging, &present,
                                                made, memory_order_acq_rel, memory_order_acquire)) {
      present = made;
    } else {
      accrt_staging_destroy(made);
    }
  }
  *out_staging = present;
  return start_threads(present, size_bytes);
}

static void cancel(accrt_staging_job_t* job) {
  accrt_error_t* error = &job->error;
  memset(error, 0, sizeof *error);
  error->struct_size = (uint32_t)sizeof *error;
  error->status = ACCRT_ERROR_CANCELLED;
  (void)snprintf(error->operation, sizeof error->operation, "%s", job->name);
  (void)snprintf(error->message, sizeof error->message, "%s",
                 "dropped: the instance ended before it was moved");
  job->failed = true;
}

static void wake_threads(accrt_staging_t* staging, uint64_t size_bytes) {
  for (uint32_t i = threads_for(staging, size_bytes); i > 0; --i)
    accrt_monitor_wake_one(&staging->monitor);
}

/* Whole ring entries, or less where that lets more threads take part. */
static uint64_t piece_bytes_of(const accrt_staging_t* staging, const accrt_staging_job_t* job) {
  const uint64_t least =
      job->extents != NULL ? (uint64_t)ACCRT_STAGING_CHUNK_BYTES : MIN_PIECE_BYTES;
  const uint64_t share = job->size_bytes / PIECES_PER_TRANSFER / least * least;
  if (share > staging->entry_bytes)
    return staging->entry_bytes;
  return share < least ? least : share;
}

void accrt_staging_post(accrt_staging_t* staging, accrt_staging_job_t* job) {
  job->next = NULL;
  job->piece_bytes = piece_bytes_of(staging, job);
  job->claimed_bytes = 0;
  job->left_bytes = job->size_bytes;
  job->failed = false;
  accrt_monitor_lock(&staging->monitor);
  const bool over = staging->stopping || job->size_bytes == 0;
  if (!over) {
    *staging->tail = job;
    staging->tail = &job->next;
    wake_threads(staging, job->size_bytes);
  } else if (staging->stopping) {
    cancel(job);
  }
  accrt_monitor_unlock(&staging->monitor);
  if (over)
    job->done(job);
}

/* A job that its caller waits for. */
typedef struct run {
  accrt_staging_job_t job; /* first: see run_done */
  atomic_uint over;
} run_t;

static void run_done(accrt_staging_job_t* job) {
  run_t* run = (run_t*)job;
  /* Release pairs with the acquire in accrt_staging_run. */
  atomic_store_explicit(&run->over, 1, memory_order_release);
  accrt_futex_wake(&run->over, 1);
}

accrt_status_t accrt_staging_run(accrt_staging_t* staging, const accrt_staging_job_t* job) {
  run_t run = {.job = *job};
  run.job.done = run_done;
  accrt_staging_post(staging, &run.job);
  /* Acquire pairs with the release in run_done. */
  while (atomic_load_explicit(&run.over, memory_order_acquire) == 0)
    accrt_futex_wait(&run.over, 0, UINT64_MAX);
  return run.job.failed ? accrt_error_restore(&run.job.error) : ACCRT_OK;
}

accrt_status_t accrt_device_upload(accrt_device_t* device, const accrt_upload_t* upload) {
  accrt_staging_t* staging;
  ACCRT_TRY(accrt_staging_get(device, upload->size_bytes, &staging));
  const accrt_staging_job_t job = {.direction = ACCRT_STAGING_TO_DEVICE,
                                   .name = upload->name,
                                   .move = upload->fill,
                                   .user = upload->user,
                                   .size_bytes = upload->size_bytes,
                                   .extents = upload->extents,
                                   .extent_count = upload->extent_count};
  return accrt_staging_run(staging, &job);
}

void accrt_staging_stop(accrt_staging_t* staging) {
  if (staging == NULL)
    return;
  accrt_monitor_lock(&staging->monitor);
  staging->stopping = true;
  for (accrt_staging_job_t* job = staging->head; job != NULL; job = job->next) {
    if (!job->failed)
      cancel(job);
  }
  accrt_monitor_wake_all(&staging->monitor);
  accrt_monitor_unlock(&staging->monitor);
  /* No thread starts any more. */
  for (uint32_t i = 0; i < staging->thread_count; ++i)
    (void)pthread_join(staging->stagers[i].thread, NULL);
  staging->thread_count = 0;
  for (uint32_t i = 0; i < staging->copy_queue_count; ++i) {
    if (staging->copy_queues[i].queue != NULL)
      table_of(staging)->queue_destroy(staging->copy_queues[i].queue);
    staging->copy_queues[i].queue = NULL;
  }
}
