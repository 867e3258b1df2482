/* runtime/drivers/host/host.h - the host (CPU) driver's own structures.
 *
 * How work runs. A list is compiled once into *waves*: groups of commands that do not depend on one
 * another. One thread, the *coordinator* (the caller of queue_run or device_progress, or a worker
 * that took a ready queue), goes through the waves in order. A wave that is one unit of work, or
 * known to be tiny, it runs alone, touching nothing shared: a chain of small kernels costs a loop
 * iteration each. Any other wave it offers on the device's *board*: a ticket packs the wave's
 * sequence number and how many units are not claimed; idle workers (*helpers*) claim units from
 * it with one compare and swap, and the coordinator claims like everyone else. It then waits only
 * for units that a thread has claimed, so an idle or sleeping helper never delays the end. Helpers
 * that find nothing spin for a while, then park; they are woken only when the work that is learned
 * to be there is worth a system call.
 *
 * It may not mention bundles, programs or public handles, and uses of the library only
 * runtime/core.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_HOST_HOST_H_
#define ACCRT_RUNTIME_DRIVERS_HOST_HOST_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/sys/driver.h"
#include "runtime/core/sync.h"

#define HOST_MAX_THREADS 1024u
#define HOST_MAX_DEVICES 64u
#define HOST_CACHE_LINE 64u
/* Runs that can offer waves at the same time; further ones run unaided. One bit each in
 * board_mask. */
#define HOST_BOARD_ENTRIES 32u
#define HOST_MESSAGE_BYTES 256u
/* Units of one command and commands of one wave are bounded so that a wave's units fit the ticket's
 * 32 bits. */
#define HOST_MAX_COMMAND_UNITS (UINT32_C(1) << 20)
#define HOST_MAX_WAVE_COMMANDS 2048u
/* One unit of a large copy or fill: long enough to hide a claim, short enough to share. */
#define HOST_COPY_UNIT_BYTES (UINT64_C(256) << 10)
/* A wave that takes less in all is not worth offering: one claim by another core costs about a
 * tenth of it. */
#define HOST_OFFER_NS 2000u
/* Shared work that must be there before a parked helper is woken, beside what waking it costs the
 * caller. */
#define HOST_WAKE_NS 20000u
/* Longest wake-up that is believed: beyond it the waker was preempted. */
#define HOST_MAX_WAKE_NS 200000u
/* Wave costs are learned in 1/16 ns per unit, 0 meaning unknown, and learned anew every so many
 * runs of an instance. */
#define HOST_COST_SHIFT 4
#define HOST_COST_CELLS 1024u
#define HOST_RELEARN_RUNS 64u

typedef struct host_device host_device_t;
typedef struct host_queue host_queue_t;
typedef struct host_list host_list_t;

/* ---- Options (options.c) ---- */

typedef struct host_options {
  uint32_t thread_count; /* per device; 0: the caller runs everything */
  uint32_t device_count;
  uint32_t spin_us;
  uint32_t cpu_count; /* 0: no affinity */
  uint16_t cpus[HOST_MAX_THREADS];
} host_options_t;

/* Reads and checks the driver's options; fails naming key and value. */
accrt_status_t accrt_host_options_read(const accrt_driver_environment_t* environment,
                                       host_options_t* out_options);
/* Processors that this process may use: its affinity mask, cut to the control group's quota. */
uint32_t accrt_host_usable_cores(void);

typedef struct host_driver {
  const accrt_driver_environment_t* environment;
  host_options_t options;
} host_driver_t;

/* ---- Commands, ready to run ---- */

typedef struct host_dispatch {
  accrt_kernel_workgroup_fn_t entry;
  const accrt_kernel_environment_t* environment;
  uint32_t local_bytes;
  uint32_t traits;
  accrt_kernel_dispatch_t view; /* what the kernel sees */
} host_dispatch_t;

typedef struct host_copy {
  uint64_t source;
  uint64_t target;
  uint64_t extent[3];
  uint64_t source_stride[2];
  uint64_t target_stride[2];
} host_copy_t;

typedef struct host_fill {
  uint64_t target;
  uint64_t size_bytes;
  uint64_t pattern; /* repeated to 8 bytes */
} host_fill_t;

/* Work is counted in items (workgroups, bytes, rows), claimed in units of items_per_unit items. */
typedef struct host_command {
  uint32_t kind;
  uint32_t unit_begin; /* index of its first unit within the wave */
  uint32_t unit_count;
  uint32_t reserved;
  uint64_t item_count;
  uint64_t items_per_unit;
  const char* name;
  union {
    host_dispatch_t dispatch;
    host_copy_t copy;
    host_fill_t fill;
  } as;
} host_command_t;

typedef struct host_wave {
  uint32_t first_command;
  uint32_t command_count;
  uint32_t unit_count;
  uint32_t reserved;
} host_wave_t;

/* Learned time of one unit, in 1 / 2^HOST_COST_SHIFT ns. Only a hint: races lose an update, nothing
 * more. */
typedef atomic_uint_least32_t host_cost_t;

/* ---- Per-thread working memory (scratch.c) ---- */

/* What one thread needs to call kernels. `next` is guarded by the device's mutex; `spare` too: a
 * bigger local memory, put there by list_create so that running never allocates, adopted by the
 * owner when a run needs it. */
typedef struct host_scratch {
  struct host_scratch* next;
  void* local;
  void* spare;
  size_t local_bytes;
  size_t spare_bytes;
  accrt_kernel_workgroup_t workgroup;
  char message[HOST_MESSAGE_BYTES];
} host_scratch_t;

accrt_status_t accrt_host_scratch_open(host_device_t* device, uint32_t worker_id,
                                       host_scratch_t* scratch);
void accrt_host_scratch_close(host_device_t* device, host_scratch_t* scratch);
/* Makes sure that the scratch memory of every thread, present and future, can get `bytes` of local
 * memory. */
accrt_status_t accrt_host_scratch_reserve(host_device_t* device, size_t bytes);
/* The owner's side: local memory of at least `bytes`, reserved before. */
void accrt_host_scratch_adopt(host_device_t* device, host_scratch_t* scratch, size_t bytes);

/* ---- Lists (list.c, prepare.c) ---- */

/* A place in an instance that is filled at submission: constant + the binding's address + the
 * scalar. */
typedef struct host_patch {
  size_t target; /* byte offset within the instance */
  uint32_t size_bytes;
  uint32_t null_base; /* 1: 0 when the binding's address is 0 */
  uint32_t binding;   /* or ACCRT_DRIVER_NONE */
  uint32_t scalar;    /* or ACCRT_DRIVER_NONE */
  uint64_t constant;
} host_patch_t;

/* A command whose grid, extent or size depends on scalars: prepared anew at each submission. */
typedef struct host_dynamic {
  accrt_driver_command_t source;
  uint32_t command; /* its place in the instance */
  uint32_t wave;
} host_dynamic_t;

/* One execution's private copy of a list: commands, waves and parameter blocks in one block of
 * memory. It remembers the bindings that it was last patched with, so that the same submission
 * again patches nothing. */
typedef struct host_instance {
  struct host_instance* next; /* in the list's free chain */
  host_command_t* commands;
  host_wave_t* waves;
  accrt_driver_binding_t* bindings;
  uint64_t* scalars;
  unsigned char* params; /* of the template: the first parameter block */
  uint32_t patched;      /* bindings and scalars are valid */
  uint32_t run_count;
} host_instance_t;

/* ---- Host operators in lists (operator.c) ---- */

typedef struct host_operation host_operation_t;
/* The operators of a list, and its commands with dispatches in their place. */
typedef struct host_operators {
  accrt_driver_command_t* commands; /* NULL when there are no operators */
  host_operation_t* operations;
  uint32_t command_count;
  uint32_t count;
} host_operators_t;

/* Prepares the operators among the commands. On failure what was made is to be destroyed all the
 * same. */
accrt_status_t accrt_host_operators_create(const host_device_t* device,
                                           const accrt_driver_command_t* commands,
                                           uint32_t command_count, host_operators_t* out_operators);
/* A dispatch that is an operator. */
bool accrt_host_is_operator(accrt_kernel_workgroup_fn_t entry);
void accrt_host_operators_destroy(const host_device_t* device, host_operators_t* operators);

struct host_list {
  host_operators_t operators;
  host_device_t* device;
  uint32_t command_count;
  uint32_t wave_count;
  uint32_t binding_count;
  uint32_t scalar_count;
  uint32_t patch_count;
  uint32_t dynamic_count;
  size_t patch_capacity;
  size_t dynamic_capacity;
  size_t local_bytes; /* most that a kernel in it needs */
  size_t instance_bytes;
  host_instance_t* template_instance;
  host_patch_t* patches;
  host_dynamic_t* dynamics;
  host_cost_t* costs;               /* one per wave */
  atomic_uint_least64_t shared_ns;  /* learned: work that helpers could share in one run */
  _Atomic(host_instance_t*) cached; /* the last one given back */
  accrt_mutex_t mutex;              /* guards free_instances */
  host_instance_t* free_instances;
};

/* False for kinds of commands of a later version. Operators are known, in lists alone. */
static inline bool host_is_known(uint32_t opcode) {
  return opcode >= ACCRT_DRIVER_COMMAND_DISPATCH && opcode <= ACCRT_DRIVER_COMMAND_OPERATOR;
}

accrt_status_t accrt_host_list_create(host_device_t* device, const accrt_driver_command_t* commands,
                                      uint32_t command_count, uint32_t binding_count,
                                      uint32_t scalar_count, host_list_t** out_list);
void accrt_host_list_destroy(host_list_t* list);
/* An instance patched for `submission`. It is the caller's until given back. */
accrt_status_t accrt_host_list_acquire(host_list_t* list,
                                       const accrt_driver_submission_t* submission,
                                       host_instance_t** out_instance);
void accrt_host_list_return(host_list_t* list, host_instance_t* instance);

/* Turns a driver command into one that is ready to run. `submission` may be NULL: values are then
 * their constants and addresses their offsets. `params` has room for the dispatch's block. Not for
 * barriers. */
void accrt_host_prepare(const host_device_t* device, const accrt_driver_command_t* command,
                        const accrt_driver_submission_t* submission, void* params,
                        host_command_t* out_command);
/* Counts items and units from the command's grid or extent. */
accrt_status_t accrt_host_measure(const host_device_t* device, host_command_t* command);
uint64_t accrt_host_value(const accrt_driver_value_t* value,
                          const accrt_driver_submission_t* submission);
/* Level of each command: 1 + the deepest of its predecessors, above every barrier before it.
 * Barriers get UINT32_MAX. */
void accrt_host_levels(const accrt_driver_command_t* commands, uint32_t command_count,
                       uint32_t* out_levels);

/* ---- Running (run.c, units.c) ---- */

#define HOST_RUN_SOUND 0u
#define HOST_RUN_FAILED 1u    /* a kernel */
#define HOST_RUN_CANCELLED 2u /* by queue_cancel: workgroups that have not begun do not begin */

/* One execution of an instance. Embedded in the queue; helpers touch it only between a claim and
 * its completion. */
typedef struct host_run {
  host_device_t* device;
  host_instance_t* instance;
  host_cost_t* costs; /* one per wave */
  uint32_t wave_count;
  uint32_t coordinator_id; /* worker id of the coordinating thread */
  size_t local_bytes;
  uint64_t submission;
  uint64_t stream_id;
  uint32_t external; /* the coordinator is not one of the device's workers */
  uint32_t relearn;
  /* Estimated work that helpers can share. In: as the last run found; out: as this one did. */
  uint64_t shared_ns;
  uint64_t unhelped_ns;           /* of this run, since helpers were woken */
  struct host_board_entry* board; /* entered at the first wave that is offered */
  /* HOST_RUN_*. The first failure wins the exchange and fills the rest; readers wait for the units
   * to be done. It stays until the queue is reset: what is enqueued until then is skipped. */
  atomic_uint_least32_t failed;
  uint32_t waves_done;
  int32_t code;
  uint32_t workgroup_id[3];
  const host_command_t* command;
  char message[HOST_MESSAGE_BYTES];
} host_run_t;

/* Runs all waves on the calling thread, with helpers. False when a kernel failed. */
bool accrt_host_run(host_run_t* run, host_scratch_t* scratch);
/* Runs units [begin, end) of one command. */
void accrt_host_run_units(host_run_t* run, host_scratch_t* scratch, const host_command_t* command,
                          uint32_t begin, uint32_t end);
/* Runs units [begin, end) of a wave. */
void accrt_host_run_wave_units(host_run_t* run, host_scratch_t* scratch, const host_wave_t* wave,
                               uint32_t begin, uint32_t end);
/* Fills the record of the run's failure. */
void accrt_host_run_error(const host_run_t* run, accrt_error_t* out_error);

/* The item is a byte when the copy is one row, else a row. */
/* What of a command changes with the submission: its sizes, and addresses in the command that is
 * ready to run. A dispatch's parameters are patched apart from this. */
typedef struct host_values {
  const accrt_driver_value_t* values;
  uint32_t count;
} host_values_t;
typedef struct host_address {
  const accrt_driver_range_t* range; /* NULL: no more */
  const uint64_t* place;
} host_address_t;
typedef struct host_moving {
  host_values_t values[3];
  host_address_t ranges[2];
} host_moving_t;
void accrt_host_moving(const accrt_driver_command_t* source, const host_command_t* command,
                       host_moving_t* out_moving);

void accrt_host_copy_items(const host_copy_t* copy, uint64_t begin, uint64_t end);
void accrt_host_fill_items(const host_fill_t* fill, uint64_t begin, uint64_t end);
/* Merges dimensions that are contiguous on both sides. */
void accrt_host_copy_simplify(host_copy_t* copy);

/* ---- The board ---- */

typedef struct host_board_entry {
  /* Sequence number of the wave in the high half, units that are not claimed in the low half. */
  _Alignas(HOST_CACHE_LINE) atomic_uint_least64_t ticket;
  /* Written before the ticket is published, read after a successful claim: stable in between. */
  host_run_t* run;
  const host_wave_t* wave;
  atomic_uint_least32_t external;
  uint32_t sequence; /* the coordinator's */
  /* Units that helpers have ended, ever; the coordinator knows what to expect. */
  _Alignas(HOST_CACHE_LINE) atomic_uint_least64_t done;
  atomic_uint_least32_t waiting; /* 1: the coordinator sleeps on this word */
} host_board_entry_t;

/* Claims and runs units of anything on the board, as worker `worker_index`. False when there was
 * nothing. */
bool accrt_host_board_help(host_device_t* device, host_scratch_t* scratch, uint32_t worker_index);
/* True when there may be something for this worker. */
bool accrt_host_board_has_work(host_device_t* device, uint32_t worker_index);

/* ---- Workers (workers.c) ---- */

#define HOST_AWAKE 0u
#define HOST_PARKED 1u

typedef struct host_worker {
  _Alignas(HOST_CACHE_LINE)
      atomic_uint_least32_t state; /* HOST_*, and the word that it sleeps on */
  uint32_t index;
  atomic_int busy_cpu; /* where the coordinator runs who woke it to help, or -1 */
  uint32_t opened;     /* has its scratch */
  uint32_t started;    /* has its thread */
  host_device_t* device;
  pthread_t thread;
  host_scratch_t scratch;
} host_worker_t;

accrt_status_t accrt_host_workers_start(host_device_t* device);
void accrt_host_workers_stop(host_device_t* device);
/* Wakes parked workers to help the calling thread: lowest index first, at most `count`, among the
 * first `limit`. Returns how many. */
uint32_t accrt_host_workers_wake(host_device_t* device, uint32_t count, uint32_t limit);
/* Puts a queue with work into the ready list, by priority. For a worker, which will look there
 * again. */
void accrt_host_queue_push(host_device_t* device, host_queue_t* queue);
/* The same, and ensures that a thread takes it: a worker or, when an embedder's executor
 * refuses, this thread. */
void accrt_host_queue_ready(host_device_t* device, host_queue_t* queue);
/* Takes the most urgent ready queue, or NULL. */
host_queue_t* accrt_host_queue_take(host_device_t* device);

/* ---- Devices ---- */

struct host_device {
  host_driver_t* driver;
  const accrt_driver_environment_t* environment;
  const accrt_allocator_t* allocator;
  uint32_t index;
  uint32_t concurrency;  /* threads that run at once; at least 1 */
  uint32_t worker_count; /* 0: the caller runs */
  uint32_t tracing;
  uint64_t spin_ns;
  host_worker_t* workers;

  accrt_mutex_t
      mutex; /* guards the chain of scratch memory and its reservations, and the ready list */
  host_scratch_t* scratches;
  size_t local_bytes;
  host_queue_t* ready_first;

  _Alignas(HOST_CACHE_LINE) atomic_uint_least32_t ready_count;
  atomic_uint_least32_t spinning_count; /* workers that look for work */
  atomic_uint_least32_t parked_count;
  atomic_uint_least32_t task_count; /* tasks in the embedder's executor */
  atomic_uint_least32_t stopping;
  atomic_uint_least32_t wake_cost_ns; /* what waking one worker takes, smoothed */
  _Alignas(HOST_CACHE_LINE) atomic_uint_least32_t board_mask; /* entries in use */
  host_board_entry_t board[HOST_BOARD_ENTRIES];
  host_cost_t kernel_costs[HOST_COST_CELLS]; /* of single commands, by kernel */
};

/* ---- Queues (queue.c) ---- */

#define HOST_ENTRY_LIST 1u
#define HOST_ENTRY_COMMAND 2u
#define HOST_ENTRY_NOTIFY 3u

/* One thing enqueued. Kept by the queue for reuse. */
typedef struct host_entry {
  struct host_entry* next;
  uint32_t kind;
  uint32_t params_capacity;
  host_list_t* list;         /* LIST */
  host_instance_t* instance; /* LIST: patched at enqueue; COMMAND: &single */
  host_instance_t single;
  host_command_t command; /* COMMAND */
  host_wave_t wave;       /* COMMAND */
  size_t local_bytes;     /* COMMAND */
  void* params;           /* COMMAND: the block, params_capacity bytes */
  uint64_t number;
  uint64_t stream_id;
  accrt_driver_completion_t completion;
} host_entry_t;

/* How far a queue is, by number (progress.c). */
typedef struct host_progress {
  atomic_uint_least64_t enqueued;  /* the last number that the queue was given */
  atomic_uint_least64_t ended;     /* all up to this one have ended */
  atomic_uint_least64_t succeeded; /* the last that ended well */
  atomic_uint has_failed;          /* something has not since the last reset */
  atomic_uint sleepers;
  atomic_uint beat;   /* changes when there may be news for those who sleep */
  atomic_uint misses; /* waits in a row for which polling was not enough */
} host_progress_t;

struct host_queue {
  host_device_t* device;
  host_queue_t* ready_next; /* guarded by the device's mutex */
  int32_t priority;
  /* The owner and a thread that works on the queue hold one each. */
  atomic_uint_least32_t references;
  /* Enqueued and not ended. 0, read with acquire, says that run and scratch are free. */
  atomic_uint_least64_t pending;
  accrt_mutex_t mutex; /* guards the rest down to failure */
  uint32_t owned;      /* in the ready list, or being worked on */
  host_entry_t* first;
  host_entry_t* last;
  host_entry_t* free_entries;
  uint64_t working_number; /* of the submission that was taken last */
  accrt_error_t failure;   /* status ACCRT_OK: none */
  host_progress_t progress;
  host_run_t run;
  host_scratch_t scratch;
};

accrt_status_t accrt_host_queue_create(host_device_t* device, int32_t priority,
                                       host_queue_t** out_queue);
void accrt_host_queue_destroy(host_queue_t* queue);
accrt_status_t accrt_host_queue_enqueue(host_queue_t* queue, const accrt_driver_command_t* command,
                                        const accrt_driver_submission_t* submission);
accrt_status_t accrt_host_queue_execute(host_queue_t* queue, host_list_t* list,
                                        const accrt_driver_submission_t* submission);
accrt_status_t accrt_host_queue_run(host_queue_t* queue, host_list_t* list,
                                    const accrt_driver_submission_t* submission);
accrt_status_t accrt_host_queue_notify(host_queue_t* queue, accrt_driver_completion_t completion);
accrt_status_t accrt_host_queue_reset(host_queue_t* queue);
void accrt_host_queue_cancel(host_queue_t* queue);
/* Works on a taken queue as worker `worker_id` until it is empty or another is waiting, and lets it
 * go. At most `entry_limit` entries. */
void accrt_host_queue_work(host_queue_t* queue, uint32_t worker_id, uint32_t external,
                           uint32_t entry_limit);

/* ---- Progress by number (progress.c) ---- */

/* A submission is in the queue. */
static inline void accrt_host_progress_enqueue(host_progress_t* progress, uint64_t number) {
  /* Release pairs with the acquire in accrt_host_queue_wait. */
  if (number > atomic_load_explicit(&progress->enqueued, memory_order_relaxed))
    atomic_store_explicit(&progress->enqueued, number, memory_order_release);
}
/* By who works on the queue: a submission has ended, well or with the queue's failure, which has
 * been recorded then. */
void accrt_host_progress_end(host_progress_t* progress, uint64_t number, bool well);
/* The queue is empty and sound again. Under the queue's mutex. */
void accrt_host_progress_reset(host_progress_t* progress);
/* Records a failure that was kept, and returns its status. */
accrt_status_t accrt_host_report(const host_device_t* device, const accrt_error_t* error);
accrt_status_t accrt_host_queue_progress(host_queue_t* queue, uint64_t* out_number);
accrt_status_t accrt_host_queue_wait(host_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                                     uint32_t policy);

/* ---- System (system.c): floating-point environment, stack ---- */

/* True when ACCRT_KERNEL_STACK_BYTES and some are free below the caller's frame. */
bool accrt_host_stack_suffices(void);

/* The control word of the floating-point unit: round to nearest, exceptions masked, denormals
 * kept. */
#if defined(__x86_64__)
#define HOST_FP_FLAGS 0x3Fu /* sticky exception flags: no part of the environment */
#define HOST_FP_DEFAULT 0x1F80u
static inline uint64_t host_fp_read(void) {
  return __builtin_ia32_stmxcsr() & ~HOST_FP_FLAGS;
}
static inline void host_fp_write(uint64_t control) {
  __builtin_ia32_ldmxcsr((unsigned)control);
}
#elif defined(__aarch64__)
#define HOST_FP_DEFAULT 0u
static inline uint64_t host_fp_read(void) {
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
static inline void host_fp_write(uint64_t control) {
  __asm__ volatile("msr fpcr, %0" ::"r"(control));
}
#else
#error "the host driver knows x86-64 and aarch64"
#endif

/* Enters the kernels' floating-point environment; gives what host_fp_leave restores. */
static inline uint64_t host_fp_enter(void) {
  const uint64_t control = host_fp_read();
  if (control != HOST_FP_DEFAULT)
    host_fp_write(HOST_FP_DEFAULT);
  return control;
}
static inline void host_fp_leave(uint64_t control) {
  if (control != HOST_FP_DEFAULT)
    host_fp_write(control);
}

/* ---- Memory (pages.c) ---- */
void accrt_host_memory_info(accrt_driver_device_t* device, uint32_t kind,
                            accrt_driver_memory_info_t* out_info);
accrt_status_t accrt_host_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                          uint64_t size_bytes, accrt_driver_memory_t* out_memory);
void accrt_host_memory_free(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);
accrt_status_t accrt_host_memory_import(accrt_driver_device_t* device, void* pointer,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory);
void accrt_host_memory_unimport(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);

/* Fails through the driver's environment with a formatted message. */
accrt_status_t accrt_host_fail(const accrt_driver_environment_t* environment, accrt_status_t status,
                               int32_t driver_code, const char* driver_name, const char* operation,
                               const char* format, ...) __attribute__((format(printf, 6, 7)));

/** The table of the built-in driver. */
const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

#endif /* ACCRT_RUNTIME_DRIVERS_HOST_HOST_H_ */
