/* runtime/drivers/common/objects.h - what is behind instances, devices, streams, events, semaphores
 * and commands. Private to runtime/drivers/common and its tests.
 *
 * References. A public reference of any object also holds one of its instance. Internal references
 * (of an operation in flight on a semaphore, say) do not: the instance ends when no user holds
 * anything, drops what still waits, and waits for what runs. The order of locks is in
 * runtime/core/lock_order.h; drivers, user code and the allocator are called under none.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_OBJECTS_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_OBJECTS_H_

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/guard.h"
#include "runtime/core/instance_parts.h"
#include "runtime/core/memory.h"
#include "runtime/core/pack.h"
#include "runtime/core/context.h"
#include "runtime/drivers/common/internal.h"
#include "runtime/drivers/common/timeline.h"
#include "runtime/drivers/common/worker.h"
#include "runtime/memory/pool.h"

typedef struct accrt_point accrt_point_t;

/* Something to be destroyed outside of completions. */
typedef struct accrt_zombie {
  struct accrt_zombie* next;
  void (*destroy)(struct accrt_zombie* zombie);
} accrt_zombie_t;

/* One open driver. */
typedef struct accrt_open_driver {
  struct accrt_open_driver* next;
  accrt_instance_t* instance;
  accrt_driver_table_t table;  /* the driver's, cut or extended with NULL to our size */
  accrt_driver_t* self;        /* what the driver returned when it was opened */
  accrt_allocator_t allocator; /* the caller's: a call of it keeps the outer call's name */
  accrt_driver_environment_t environment;
  char name[32];
  uint32_t device_count; /* valid when counted; then never changes */
  atomic_uint counted;   /* ACCRT_DEVICES_* */
  /* Why there are none, when there are none. */
  accrt_status_t absent_status;
  int32_t absent_code;
  char absent_name[32];
  char absent[512];
} accrt_open_driver_t;
#define ACCRT_DEVICES_UNKNOWN 0u
#define ACCRT_DEVICES_COUNTING 1u
#define ACCRT_DEVICES_COUNTED 2u

#define ACCRT_RUNTIME_COUNTERS 6u

/* An instance whole: the lower half is runtime/core's. */
typedef struct accrt_upper {
  accrt_instance_t instance;
  atomic_uint caller_runs; /* opened devices that need callers to progress */
  atomic_uint opened;      /* opened devices */
  atomic_uint watched;     /* retiring imports: completions kick the worker */
  accrt_worker_t worker;
  /* Runs what limited waits may not run themselves: devices without threads, enqueuing that runs
   * the work. */
  accrt_worker_t runner;
  accrt_job_t progress_job;   /* of the runner */
  atomic_uint progress_asked; /* it is queued */
  accrt_mutex_t lock;
  /* under the lock */
  accrt_open_driver_t* drivers; /* in the order they were opened; append only */
  accrt_device_t** devices;     /* append only */
  uint32_t device_count;
  size_t device_capacity;
  accrt_stream_t* streams; /* all that are not freed */
  accrt_zombie_t* zombies;
  atomic_uint has_zombies;
  accrt_counter_t counters[ACCRT_RUNTIME_COUNTERS]; /* constant: counters.c */
} accrt_upper_t;
static inline accrt_upper_t* accrt_upper(const accrt_instance_t* instance) {
  return (accrt_upper_t*)(uintptr_t)instance;
}

/* A device whole: the lower half is runtime/memory's. */
typedef struct accrt_upper_device {
  accrt_device_t device;
  accrt_open_driver_t* driver;
  uint32_t index;       /* within its driver */
  atomic_uint state;    /* ACCRT_DEVICE_CLOSED, _OPENING, _OPEN */
  atomic_uint retained; /* references that accrt_device_retain gave: each is one of the instance */
  atomic_uint_least64_t peers; /* devices of the driver, by index, whose memory work here reaches */
  uint32_t caller_runs;
  uint32_t enqueue_runs;  /* enqueuing may run the work on the calling thread */
  uint32_t native_events; /* the driver has events of its own, and streams may use them */
  _Atomic(struct accrt_staging*) staging; /* NULL until it is needed: staging.h */
  /* Points: see point.c */
  accrt_mutex_t point_lock;
  accrt_point_t* spare_points; /* under point_lock */
  accrt_mutex_t observer_lock; /* held while the driver is called with the observer */
  /* a queue for waiting on events beside the streams; made when first needed */
  accrt_driver_queue_t* observer;
  atomic_uint armed; /* completions that the observer or a stream owes for points */
} accrt_upper_device_t;
static inline accrt_upper_device_t* accrt_upper_device(const accrt_device_t* device) {
  return (accrt_upper_device_t*)(uintptr_t)device;
}
#define ACCRT_DEVICE_CLOSED 0u
#define ACCRT_DEVICE_OPENING 1u
#define ACCRT_DEVICE_OPEN 2u
static inline bool accrt_device_is_open(const accrt_device_t* device) {
  /* Acquire pairs with the release in accrt_instance_device's opening. */
  return atomic_load_explicit(&accrt_upper_device(device)->state, memory_order_acquire) ==
         ACCRT_DEVICE_OPEN;
}
/* The device of that index, which may not be open; NULL: there are no more. */
accrt_device_t* accrt_instance_device_at(accrt_instance_t* instance, uint32_t index);

/* ---- counters.c ---- */

/* Adds the runtime's own group of counters. */
accrt_status_t accrt_instance_count(accrt_instance_t* instance);

struct accrt_semaphore {
  accrt_object_t object; /* of those that can raise it */
  atomic_uint waits; /* that hold the memory: one for each in a stream, one for all the others */
  accrt_instance_t* instance;
  uint64_t id;
  accrt_timeline_t timeline;
  atomic_uint on_caller; /* a device that runs on the caller has been asked to signal it */
  accrt_error_t error;   /* once the timeline has failed */
  atomic_uint has_points;
  accrt_mutex_t point_lock;
  /* under point_lock: values that a device will reach, ascending, each certain to be reached after
   * the one before */
  accrt_point_t* first_point;
  accrt_point_t* last_point;
  uint32_t point_count;
  uint32_t point_limit; /* when the oldest are looked at again */
};

/* ---- Streams ---- */

enum {
  ACCRT_OP_NONE = 0, /* nothing left to do: it was refused by the driver */
  ACCRT_OP_COMMAND,
  ACCRT_OP_LIST,
  ACCRT_OP_WAIT,
  ACCRT_OP_SIGNAL,
  ACCRT_OP_RECORD,
  ACCRT_OP_NOTIFY,
  ACCRT_OP_MARK, /* asks the driver to report when all before has ended */
};

enum { ACCRT_WAITING_NEW = 0, ACCRT_WAITING_WATCHED, ACCRT_WAITING_FIRED };

/* One operation of a stream. Lives in the stream's free list, its deferred list or its list in
 * flight. */
typedef struct accrt_op {
  struct accrt_op* next;
  accrt_stream_t* stream;
  uint64_t number;
  const char* name;
  uint32_t kind;
  bool done;     /* under the stream's lock: it has ended, or never needed the driver */
  bool reported; /* the driver reports its end: all before it on the queue has ended then too */
  /* before it there may be work whose end the driver does not report; without such work all before
   * it has ended once it is settled in its place in the list */
  bool after_unreported;
  /* under the stream's lock: a wait that was dropped while its watch was firing; the watch's task
   * frees it */
  bool abandoned;
  uint32_t waiting;
  accrt_status_t status; /* of the driver's completion, or of what made it end */
  uint64_t time_ns;      /* 0: as the operation before */
  /* WAIT, SIGNAL, RECORD */
  accrt_semaphore_t* semaphore; /* internal reference */
  uint64_t value;
  accrt_watch_t watch;
  accrt_task_t task;
  accrt_event_t* event; /* RECORD: internal reference */
  uint64_t generation;
  /* NOTIFY */
  void (*notify)(void* user, accrt_status_t status);
  void* notify_user;
  accrt_job_t job;
  /* LIST, COMMAND: what is deferred, or the listener of a number that the driver has */
  accrt_driver_list_t* list;
  accrt_driver_command_t command;
  accrt_driver_completion_t completion;
  const accrt_retained_class_t* retained_class; /* of `retained`: one reference */
  void* retained;
  uint32_t binding_count;
  uint32_t scalar_count;
  void* storage; /* what was copied to defer: bindings, scalars, parameter block */
  size_t storage_bytes;
} accrt_op_t;

typedef struct accrt_op_list {
  accrt_op_t* head;
  accrt_op_t** tail;
} accrt_op_list_t;

/* Something that work without a listener uses, and the last number that does. */
typedef struct accrt_retained {
  void* object; /* one reference */
  const accrt_retained_class_t* retained_class;
  uint64_t number;
} accrt_retained_t;

#define ACCRT_STREAM_INLINE_RETAINED 16u

/* Numbers that ended in failure before a reset. */
typedef struct accrt_dropped {
  uint64_t first;
  uint64_t last;
  accrt_status_t status; /* of the failure */
} accrt_dropped_t;

#define ACCRT_STREAM_DROPPED 8u

/* The submission lock, one word: the last number, and flags. The thread that sets OWNED calls the
 * driver's queue until it clears it. Locking and taking a number are one step, so numbers are in
 * the queue's order. BLOCKED: only threads that hold the stream's mutex may lock it (something is
 * deferred, or the stream has failed). EVENT: behind the last number the queue has a record of an
 * event or a wait for one, which have no number; EVENT_WAIT: a wait. */
#define ACCRT_SUBMIT_OWNED UINT64_C(1)
#define ACCRT_SUBMIT_BLOCKED UINT64_C(2)
#define ACCRT_SUBMIT_EVENT UINT64_C(4)
#define ACCRT_SUBMIT_EVENT_WAIT UINT64_C(8)
#define ACCRT_SUBMIT_EVENT_MASK (ACCRT_SUBMIT_EVENT | ACCRT_SUBMIT_EVENT_WAIT)
#define ACCRT_SUBMIT_SHIFT 4
#define ACCRT_SUBMIT_ONE (UINT64_C(1) << ACCRT_SUBMIT_SHIFT)

struct accrt_stream {
  accrt_zombie_t zombie; /* first: see accrt_dispose */
  accrt_object_t object;
  accrt_device_t* device;
  accrt_instance_t* instance;
  const accrt_driver_table_t* table;
  accrt_driver_queue_t* queue;
  accrt_fence_t* fence;
  bool foreign;         /* a queue of the caller: work cannot be held back */
  bool traces;          /* every number has a listener: its end is traced */
  bool listens;         /* the same, or the driver reports no numbers, or work is held back */
  bool outside;         /* threads that wait may not do so in the driver: see stream_wait.c */
  bool native;          /* the driver's own events may be used */
  atomic_uint poisoned; /* as `failed`, to be read without the lock */
  atomic_uint failures; /* how often it has failed */
  /* a foreign one that its user has released: its queue may be gone, only the mark reports */
  atomic_bool left;
  atomic_uint handles;     /* references of the user, without the first: see accrt_stream_release */
  atomic_uint staged;      /* transfers of this stream that the staging engine has not ended */
  atomic_uint reset_holds; /* see accrt_stream_hold_reset */
  _Alignas(64) atomic_uint_least64_t submit_lock;
  /* Written by the owner of the submission lock; markers that need no driver raise `issued` under
   * the mutex. */
  atomic_uint_least64_t issued_work; /* the last number that the driver has seen */
  atomic_uint_least64_t issued;      /* all up to this one went to the driver, or need it no more */
  atomic_uint_least64_t
      reported_number;        /* the last number up to which the driver will report the end */
  atomic_uint retained_count; /* written by the owner of the submission lock */
  /* Of the owner of the submission lock alone. */
  accrt_retained_t* retained; /* hash table by object, open addresses */
  uint32_t retained_capacity; /* a power of two */
  atomic_uint event_count;    /* counts records and waits without a number */
  accrt_retained_t inline_retained[ACCRT_STREAM_INLINE_RETAINED];
  _Alignas(64) accrt_mutex_t lock;
  /* under the lock */
  accrt_op_list_t deferred;  /* not issued to the driver yet */
  accrt_op_list_t in_flight; /* at the driver, or done and not settled yet */
  accrt_op_t* spares;
  uint32_t spare_count;
  /* allocated with the stream, since a mark may not fail for want of memory; NULL while it is in
   * use */
  accrt_op_t* mark;
  bool mark_wanted;
  /* an event behind the last record or wait; valid while `submit_lock` and `event_count` are as
   * they were */
  accrt_point_t* sync_point;
  uint64_t sync_word;
  uint64_t sync_issued;
  uint32_t sync_count;
  bool busy; /* the owner of the submission lock took it under the mutex, and looks for more work
                before it unlocks */
  bool settling;            /* a thread is settling ended operations, in order */
  uint64_t settling_number; /* the one that it is at */
  bool failed;
  bool resetting;
  uint32_t cancelling;    /* threads that are about to cancel the driver's queue */
  uint64_t inline_number; /* what runs on its caller's thread now; 0: nothing */
  /* What the runner gives to the driver waits for `way`: made once, an internal reference. */
  accrt_semaphore_t* way;
  uint64_t way_next; /* the last value that something waits for */
  uint64_t way_open; /* the value that the job raises it to */
  bool way_asked;    /* the job is queued, and holds the stream */
  accrt_job_t way_job;
  /* Streams with `ahead`: the number of their submissions that ended; an internal reference. NULL:
   * the device gets all work at once. */
  accrt_semaphore_t* ahead_semaphore;
  uint64_t ahead;
  atomic_uint_least64_t ahead_count; /* of submissions whose end raises the semaphore */
  uint32_t commands_per_piece;       /* 0: lists are not divided */
  atomic_bool active;     /* there are operations: an internal reference is held for them */
  uint64_t failed_number; /* the first operation that failed; all from it on are poisoned */
  uint64_t last_time_ns;  /* when the last settled operation ended */
  accrt_error_t error;
  accrt_timeline_t timeline; /* value: all operations up to this number have been settled */
  uint64_t id;
  accrt_stream_t* previous; /* in the instance's list */
  accrt_stream_t* next;
  char label[ACCRT_LABEL_BYTES];
  accrt_dropped_t dropped[ACCRT_STREAM_DROPPED]; /* one range a reset, the oldest first */
  uint32_t dropped_count;
  accrt_error_t dropped_error; /* of the last range */
};

/* What is asked of a stream. Nothing is owned; arrays are copied when the stream must defer. */
typedef struct accrt_request {
  uint32_t kind;
  const char* name;
  accrt_semaphore_t* semaphore;
  uint64_t value;
  accrt_event_t* event;
  uint64_t generation; /* of the event's record */
  void (*notify)(void* user, accrt_status_t status);
  void* notify_user;
  const accrt_driver_command_t* command;
  accrt_driver_list_t* list;
  const accrt_driver_binding_t* bindings;
  const uint64_t* scalars;
  uint32_t binding_count;
  uint32_t scalar_count;
  accrt_driver_completion_t completion;
  const accrt_retained_class_t*
      retained_class; /* of `retained`, which the work uses; NULL: nothing */
  void* retained;
} accrt_request_t;

/* Takes work: a command, or the list of `work` (`command` NULL). As below, without a request on the
 * short way. */
accrt_status_t accrt_stream_enqueue_work(accrt_stream_t* stream,
                                         const accrt_driver_command_t* command,
                                         const accrt_stream_work_t* work, uint64_t* out_number);
/* Takes a request that is no work, feeds the driver if nothing is before it, defers it
 * otherwise. */
accrt_status_t accrt_stream_enqueue(accrt_stream_t* stream, const accrt_request_t* request,
                                    uint64_t* out_number);
/* Packs and command lists that work uses. */
extern const accrt_retained_class_t accrt_retained_pack;
extern const accrt_retained_class_t accrt_retained_commands;

/* A dispatch with its parameters in a block. */
accrt_status_t accrt_stream_dispatch(accrt_stream_t* stream, accrt_kernel_t* kernel,
                                     const uint32_t grid[3], const void* block,
                                     uint64_t* out_number);

/* The submission lock as a thread holds it. */
typedef struct accrt_submit_held {
  uint64_t word;   /* the value of the lock word while it is held */
  uint64_t events; /* the bits of ACCRT_SUBMIT_EVENT_MASK before that */
} accrt_submit_held_t;

static inline uint64_t accrt_submit_number(const accrt_submit_held_t* held) {
  return held->word >> ACCRT_SUBMIT_SHIFT;
}
/* As below, when the lock was not free at first: spins for a short while. */
bool accrt_submit_try_lock_slow(accrt_stream_t* stream, uint64_t add,
                                accrt_submit_held_t* out_held);
void accrt_submit_unlock_slow(accrt_stream_t* stream, uint64_t events);
/* Locks the driver's queue, with the next number (add: ACCRT_SUBMIT_ONE) or without one (0). False:
 * the request has to become an operation. */
static inline bool accrt_submit_try_lock(accrt_stream_t* stream, uint64_t add,
                                         accrt_submit_held_t* out_held) {
  uint_least64_t seen = atomic_load_explicit(&stream->submit_lock, memory_order_relaxed);
  if ((seen & (ACCRT_SUBMIT_OWNED | ACCRT_SUBMIT_BLOCKED)) == 0) {
    out_held->events = seen & ACCRT_SUBMIT_EVENT_MASK;
    /* A number is of work, which comes behind all else. */
    out_held->word =
        ((seen + add) | ACCRT_SUBMIT_OWNED) & ~(add != 0 ? ACCRT_SUBMIT_EVENT_MASK : UINT64_C(0));
    /* Acquire pairs with the release of the owner before. */
    if (atomic_compare_exchange_strong_explicit(&stream->submit_lock, &seen, out_held->word,
                                                memory_order_acquire, memory_order_relaxed))
      return true;
  }
  return accrt_submit_try_lock_slow(stream, add, out_held);
}
/* Unlocks. `events`: ACCRT_SUBMIT_EVENT if a record went to the driver, ACCRT_SUBMIT_EVENT_MASK for
 * a wait, else 0. */
static inline void accrt_submit_unlock(accrt_stream_t* stream, const accrt_submit_held_t* held,
                                       uint64_t events) {
  uint_least64_t expected = held->word;
  ACCRT_ASSERT((held->word & ACCRT_SUBMIT_OWNED) != 0);
  /* Release pairs with the acquire of the next owner. */
  if (!atomic_compare_exchange_strong_explicit(&stream->submit_lock, &expected,
                                               (held->word & ~ACCRT_SUBMIT_OWNED) | events,
                                               memory_order_release, memory_order_relaxed))
    accrt_submit_unlock_slow(stream, events);
}
/* Unlocks after a submission with a number, which the driver has accepted or not. */
static inline void accrt_submit_unlock_number(accrt_stream_t* stream,
                                              const accrt_submit_held_t* held,
                                              accrt_status_t status) {
  const uint64_t number = accrt_submit_number(held);
  if (status == ACCRT_OK) {
    /* Relaxed: ordered by the release of `issued`. */
    atomic_store_explicit(&stream->issued_work, number, memory_order_relaxed);
  }
  /* Release pairs with the acquire in accrt_stream_complete. */
  atomic_store_explicit(&stream->issued, number, memory_order_release);
  accrt_submit_unlock(stream, held, status == ACCRT_OK ? 0 : held->events);
}
/* Unlocks after a record of an event or a wait for one. */
static inline void accrt_submit_unlock_event(accrt_stream_t* stream,
                                             const accrt_submit_held_t* held, accrt_status_t status,
                                             uint64_t events) {
  if (status == ACCRT_OK)
    atomic_store_explicit(&stream->event_count,
                          atomic_load_explicit(&stream->event_count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
  accrt_submit_unlock(stream, held, status == ACCRT_OK ? events : 0);
}
/* Retains an object until `number` has ended. The caller owns the submission lock. False: there is
 * no memory for that. */
bool accrt_stream_retain_new(accrt_stream_t* stream, const accrt_retained_class_t* retained_class,
                             void* object, uint64_t number);
static inline uint32_t accrt_retained_index(const void* object, uint32_t capacity) {
  return (uint32_t)((uintptr_t)object >> 6) & (capacity - 1);
}
static inline bool accrt_stream_retain_object(accrt_stream_t* stream,
                                              const accrt_retained_class_t* retained_class,
                                              void* object, uint64_t number) {
  accrt_retained_t* entry =
      &stream->retained[accrt_retained_index(object, stream->retained_capacity)];
  if (entry->object != object)
    return accrt_stream_retain_new(stream, retained_class, object, number);
  entry->number = number;
  return true;
}
/* Asks the driver how far the queue is; a failure makes the stream fail. Never blocks. */
void accrt_stream_refresh(accrt_stream_t* stream);
/* Asks the driver to report when all that it has from this stream by now has ended; nothing happens
 * if it will report that already. */
void accrt_stream_ask(accrt_stream_t* stream);
/* The stream of a fence, retained; NULL when it is gone. */
accrt_stream_t* accrt_fence_stream(accrt_fence_t* fence);
/* False: no signal of the semaphore is among the operations that are not settled, as far as is
 * known. Always true while anything is deferred. */
bool accrt_stream_may_have_signal(accrt_stream_t* stream, const accrt_semaphore_t* semaphore);
/* Fails the stream from what is not complete. Inside a context. */
void accrt_stream_fail_now(accrt_stream_t* stream, const accrt_error_t* error);

/* Drops what is deferred and waits until nothing runs; for the end of the instance. */
void accrt_stream_abandon(accrt_stream_t* stream);
/* Records ACCRT_ERROR_POISONED (or DEVICE_LOST) for a stream that has failed. */
accrt_status_t accrt_stream_poisoned(accrt_stream_t* stream);
/* ACCRT_OK, or that. */
static inline accrt_status_t accrt_stream_check(accrt_stream_t* stream) {
  /* Acquire pairs with the release where a stream fails. */
  const bool failed = atomic_load_explicit(&stream->poisoned, memory_order_acquire) != 0;
  return failed ? accrt_stream_poisoned(stream) : ACCRT_OK;
}

/* ---- Semaphores ---- */
void accrt_semaphore_unref(accrt_semaphore_t* semaphore);
/* References of waits in streams. They hold the memory, and cannot raise the value: when nothing is
 * left that can, the waits fail. Taken by a caller that holds one of either kind. */
void accrt_semaphore_ref_wait(accrt_semaphore_t* semaphore);
void accrt_semaphore_unref_wait(accrt_semaphore_t* semaphore);
/* Fails it with a full record. Inside a context. */
void accrt_semaphore_fail_with(accrt_semaphore_t* semaphore, const accrt_error_t* error);
/* Records ACCRT_ERROR_POISONED with what made the semaphore fail. */
accrt_status_t accrt_semaphore_poisoned(accrt_semaphore_t* semaphore);
/* accrt_semaphore_wait_many without its checks. */
accrt_status_t accrt_semaphores_wait(const accrt_timepoint_t* timepoints, uint32_t count,
                                     uint32_t wait_any, uint64_t timeout_ns, uint32_t policy,
                                     uint32_t* out_index);
/* A semaphore without a public reference. */
accrt_status_t accrt_semaphore_make(accrt_instance_t* instance, uint64_t initial_value,
                                    accrt_semaphore_t** out_semaphore);
/* Records ACCRT_ERROR_POISONED for `what` (and its id, when not 0) with what made it fail. */
accrt_status_t accrt_record_poison(const char* what, uint64_t id, const accrt_error_t* origin);
/* As accrt_timeline_watch, for a semaphore: what devices will reach is asked for. */
accrt_reach_t accrt_semaphore_watch(accrt_semaphore_t* semaphore, accrt_watch_t* watch);

/* ---- Points: values of semaphores that a device's event will reach. See point.c ---- */
struct accrt_point {
  accrt_point_t* next;
  accrt_object_t object;
  accrt_device_t* device;
  accrt_driver_event_t* event;
  accrt_fence_t* fence; /* of the stream that signals; one reference */
  uint64_t number;      /* reached once the fence has passed it; UINT64_MAX: only the event says */
  uint64_t value;
  /* under the semaphore's point_lock: the last stream that waits for it on the device */
  uint64_t waiter_id;
  accrt_semaphore_t* semaphore; /* internal reference, while armed */
  bool armed; /* under the semaphore's point_lock: the driver will report when it is reached */
  accrt_task_t task; /* of the completion, which has filled `error` */
  accrt_error_t error;
};
void accrt_point_unref(accrt_point_t* point);
/* A point without a semaphore, for its event. */
accrt_status_t accrt_point_take(accrt_device_t* device, accrt_point_t** out_point);
/* Destroys a device's points and its observer; nothing is armed any more once this returns. May
 * block. */
void accrt_device_close_points(accrt_device_t* device);
/* Advances the semaphore to what devices have reached. Cheap when there is nothing to ask. Not
 * inside a driver's lock. */
void accrt_semaphore_resolve_slow(accrt_semaphore_t* semaphore);
static inline bool accrt_semaphore_has_points(accrt_semaphore_t* semaphore) {
  /* Acquire pairs with the release where a point is added. */
  return atomic_load_explicit(&semaphore->has_points, memory_order_acquire) != 0;
}
static inline void accrt_semaphore_resolve(accrt_semaphore_t* semaphore) {
  if (accrt_semaphore_has_points(semaphore))
    accrt_semaphore_resolve_slow(semaphore);
}
/* The point that covers a value, with a reference; NULL when there is none. */
accrt_point_t* accrt_semaphore_point(accrt_semaphore_t* semaphore, uint64_t value);
/* Signals through the driver's event. False: it must be done another way, and nothing has
 * happened. */
bool accrt_stream_signal_native(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                uint64_t value, accrt_status_t* out_status);
/* Waits through a point of the semaphore. False: as above. */
bool accrt_stream_wait_native(accrt_stream_t* stream, accrt_semaphore_t* semaphore, uint64_t value,
                              accrt_status_t* out_status);
/* Waits on the calling thread for a point, for a while. False when none covers the value. */
bool accrt_semaphore_wait_point(accrt_semaphore_t* semaphore, uint64_t value, uint64_t deadline_ns,
                                uint32_t policy);
/* Has the driver report when `value` is reached, for its watchers. */
void accrt_semaphore_arm(accrt_semaphore_t* semaphore, uint64_t value);
/* The same for the last point of a semaphore whose last reference is gone: until it is reached, the
 * point has one. False: no device will raise it. */
bool accrt_semaphore_arm_last(accrt_semaphore_t* semaphore);
/* A semaphore that reaches 1 when the event's latest record on the device is reached. */
accrt_status_t accrt_event_snapshot(accrt_device_t* device, accrt_driver_event_t* event,
                                    accrt_semaphore_t** out_semaphore);
/* Drops all points. */
void accrt_semaphore_drop_points(accrt_semaphore_t* semaphore);

/* ---- Events ---- */
struct accrt_event {
  accrt_zombie_t zombie; /* first: see accrt_dispose */
  accrt_object_t object;
  accrt_device_t* device;
  uint32_t flags;
  accrt_driver_event_t* native; /* NULL: the driver has none */
  accrt_mutex_t record_lock;    /* while the driver records it, and the event notes that */
  atomic_uint mode;             /* where the latest record is: written under the lock */
  accrt_mutex_t lock;
  /* under the lock */
  accrt_error_t error; /* of the latest record on the device, once it was seen to fail */
  accrt_semaphore_t*
      semaphore; /* what the latest record signals; internal reference; NULL: never recorded */
  uint64_t value;
  uint64_t generation; /* counts records */
  uint64_t stream_id;  /* of the latest record */
  bool reached;        /* the latest record was reached, at time_ns */
  uint64_t time_ns;
};
#define ACCRT_EVENT_NEVER 0u
#define ACCRT_EVENT_NATIVE 1u /* in the driver's event */
#define ACCRT_EVENT_EMULATED                                                                       \
  2u /* in the semaphore; the driver's event gets it after what is deferred before it */
void accrt_event_unref(accrt_event_t* event);
/* Issues a record that was deferred: the driver's event gets it, if no other record came since. The
 * caller owns the stream's submission lock. */
void accrt_event_record_late(accrt_event_t* event, uint64_t generation, accrt_stream_t* stream);
/* A record was reached: keeps the time if it is still the latest. */
void accrt_event_reached(accrt_event_t* event, uint64_t generation, uint64_t time_ns);

/* ---- Commands ---- */
void accrt_commands_ref(accrt_commands_t* commands);
void accrt_commands_unref(accrt_commands_t* commands);

/* ---- Instance ---- */
/* Calls zombie->destroy now, or, inside a completion, later. */
void accrt_dispose(accrt_instance_t* instance, accrt_zombie_t* zombie);
/* Destroys what was left for later, and takes back memory that streams have passed. Outside of
 * completions. */
void accrt_instance_reap(accrt_instance_t* instance);
/* The same for zombies alone, when there are any: cheap enough for waits. */
void accrt_instance_reap_zombies(accrt_instance_t* instance);
void accrt_instance_destroy(accrt_instance_t* instance);
/* For waits: a function that makes devices without threads run, or NULL when there are none. In a
 * wait without limit it runs them on the calling thread, else on a thread of the instance's own:
 * the caller may leave at its limit. */
accrt_wait_progress_fn_t accrt_instance_progress(accrt_instance_t* instance, uint64_t timeout_ns);
/* Closes what the teardown of the instance left: devices and drivers. */
void accrt_instance_close_drivers(accrt_instance_t* instance);
/* Opens a driver. ACCRT_ERROR_ALREADY_EXISTS and the others of accrt_instance_load_driver. `lazy`:
 * it takes long to find its devices, which are counted when a caller asks for them. */
accrt_status_t accrt_driver_add(accrt_instance_t* instance, accrt_driver_query_fn_t query,
                                const char* where, bool lazy);
/* A driver inside the library. */
typedef struct accrt_built_in {
  accrt_driver_query_fn_t query;
  const char* where; /* what messages call it */
  bool lazy;
} accrt_built_in_t;
/* accrt_instance_create, with drivers to begin with: runtime/drivers/built_in.c. */
accrt_status_t accrt_instance_make(const accrt_instance_options_t* options,
                                   const accrt_built_in_t* built_in, uint32_t built_in_count,
                                   accrt_instance_t** out_instance);
/* Checks the caller's option keys against what open drivers know. */
accrt_status_t accrt_options_check(accrt_instance_t* instance);
/* A device is gone for good when `status` says so. */
void accrt_device_note_status(accrt_device_t* device, accrt_status_t status);
/* The library's own references: for children. */
accrt_device_t* accrt_device_ref(accrt_device_t* device);
void accrt_device_unref(accrt_device_t* device);
/* The kernel's pack is of another instance than the device: ACCRT_ERROR_INVALID_ARGUMENT with both
 * names. */
accrt_status_t accrt_kernel_fail_instance(const accrt_device_t* device,
                                          const accrt_kernel_t* kernel);
/* Records why a lost device is, in the driver's own words, and returns ACCRT_ERROR_DEVICE_LOST. */
accrt_status_t accrt_device_fail_lost(accrt_device_t* device);
/* What memory needs from here: instance.c. */
extern const accrt_memory_above_t accrt_memory_above;

/* ---- Places and arguments ---- */
/* What a size is: ACCRT_TO_END in a buffer is what is left of it. Else, or where the offset is past
 * the end, the size itself. */
uint64_t accrt_place_size(const accrt_place_t* place, uint64_t size_bytes);
/* Checks a place for `size_bytes` on the device; `what` names it in messages. */
accrt_status_t accrt_place_resolve(accrt_device_t* device, const accrt_place_t* place,
                                   uint64_t size_bytes, const char* what, uint64_t* out_address);
/* Checks a region by itself, and gives the bytes from the first to the last one that it touches on
 * each side. ACCRT_TO_END becomes what is left of `end` (NULL: that is not known). */
accrt_status_t accrt_region_check(accrt_copy_region_t* region, const accrt_place_t* end,
                                  uint64_t* out_source_bytes, uint64_t* out_target_bytes);

/* A range of a buffer of the device's own, which all work there reaches: nearly all are. False: for
 * accrt_place_resolve and accrt_buffer_check_reach to take or to refuse. */
static inline bool accrt_buffer_is_own(const accrt_device_t* device, const accrt_buffer_t* buffer,
                                       uint64_t offset_bytes, uint64_t size_bytes) {
  return buffer->pool->device == device &&
         accrt_range_fits(offset_bytes, size_bytes, buffer->size_bytes);
}
/* Notes a use of which the number is known now; where that needs memory that cannot be had, waits
 * for the submission instead. */
void accrt_buffer_note_or_wait(accrt_buffer_t* buffer, accrt_stream_t* stream, uint64_t number);
/* Checks that a fill's pattern and size fit. */
accrt_status_t accrt_fill_check(uint64_t offset_bytes, uint64_t size_bytes, uint32_t pattern_bytes);

/* One launch's arguments, checked and packed. */
typedef struct accrt_packing {
  accrt_device_t* device;
  accrt_kernel_t* kernel;
  const accrt_kernel_argument_t* arguments;
  uint32_t argument_count;
  uint32_t binding_count;        /* 0: arguments may not name bindings */
  unsigned char* block;          /* out: room for params_size_bytes; zeroed by the packing */
  accrt_driver_patch_t* patches; /* out: room for argument_count; NULL without bindings */
  uint32_t patch_count;          /* out */
} accrt_packing_t;
accrt_status_t accrt_launch_check(accrt_device_t* device, accrt_kernel_t* kernel,
                                  const uint32_t grid[3], const accrt_kernel_argument_t* arguments,
                                  uint32_t argument_count, uint32_t argument_size_bytes);
/* Count and element size of arguments. */
accrt_status_t accrt_arguments_check(const accrt_kernel_t* kernel,
                                     const accrt_kernel_argument_t* arguments,
                                     uint32_t argument_count, uint32_t argument_size_bytes);
accrt_status_t accrt_launch_pack(accrt_packing_t* packing);
/* One argument alone. On failure the block is what it was, but for the place of a tensor. */
accrt_status_t accrt_launch_pack_argument(accrt_packing_t* packing, uint32_t index,
                                          const accrt_kernel_argument_t* argument);
/* The kernel can run on the device. */
accrt_status_t accrt_kernel_check_device(accrt_device_t* device, accrt_kernel_t* kernel);
/* The kernel is an operator, and for such devices. */
accrt_status_t accrt_operator_check_device(accrt_device_t* device, const accrt_kernel_t* kernel);
/* How many bytes a tensor argument reaches from its first element, for a view that the packing has
 * accepted. */
accrt_status_t accrt_launch_reach(const accrt_kernel_tensor_t* view, uint64_t* out_size_bytes);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_OBJECTS_H_ */
