/* tests/cts/direct.h - a driver's table under test: opened by hand, with an environment that
 * counts, records and traces.
 *
 * It may include public headers only, and use no instance. */
#ifndef ACCRT_CTS_DIRECT_H_
#define ACCRT_CTS_DIRECT_H_

#include "cts.h"
#include "hooks.h"

#include <limits.h>

#define DIRECT_STREAM_ID UINT64_C(0x57EA400057EA4)
/* Submissions are counted from here: their numbers have more than 32 bits. */
#define DIRECT_FIRST_NUMBER (UINT64_C(3) << 33)
#define DIRECT_MAX_MEMORY 8
#define DIRECT_MAX_TRACES 64

/* Memory that the host reaches too. */
typedef struct memory {
  accrt_driver_memory_t own;
  unsigned char* host;
} memory_t;

typedef struct trace {
  accrt_trace_event_t event;
  char name[64];
  size_t name_length; /* of all of it */
} trace_t;

/* One driver and one of its devices, with one queue. */
typedef struct direct {
  void* library;
  accrt_driver_query_fn_t query;
  const accrt_driver_table_t* table;
  cts_hooks_t hooks; /* zeros: the driver has none */
  accrt_driver_environment_t environment;
  accrt_allocator_t allocator;
  accrt_driver_t* driver;
  uint32_t index; /* of the device: as --device says */
  accrt_driver_device_t* device;
  accrt_driver_queue_t* queue;
  accrt_device_info_t info;
  uint32_t memory_kind;
  memory_t memories[DIRECT_MAX_MEMORY];
  bool imports; /* they are the host's, imported */
  uint32_t memory_count;
  atomic_long live;        /* allocations */
  atomic_long allocations; /* so far */
  atomic_long allowed;     /* before they fail */
  /* Called by the allocator and the trace function, when they are called; NULL: nothing */
  void (*_Atomic on_call)(struct direct*);
  trace_t traces[DIRECT_MAX_TRACES];
  atomic_uint trace_count;
  atomic_uint_least64_t number; /* of submissions */
  bool is_skipped;              /* the test found that it needs more than there is */
} direct_t;

/* How something that was enqueued ended. It may not move meanwhile. */
typedef struct outcome {
  uint64_t number;
  atomic_uint times; /* the completion was called */
  accrt_status_t status;
  bool had_error;
  accrt_error_t error;
  uint64_t time_ns;
  uint32_t order; /* among all outcomes */
} outcome_t;

/* False where there is no table to be had: a built-in driver in the shared library. */
bool direct_set_up(direct_t* bench, uint32_t needs);
/* Closes all, and fails when something was not given back. */
void direct_tear_down(direct_t* bench);

/* A device of the driver beside the bench's own, where there are several. */
static inline uint32_t direct_other_index(const direct_t* bench) {
  return bench->index == 0 ? 1 : 0;
}

/* What a test needs that runs a kernel. */
#define KERNELS (CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS)

/* The least that may be asked for of this kind of memory, and holds so many bytes. */
static inline uint64_t direct_whole_size(direct_t* d, uint32_t kind, uint64_t size_bytes) {
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  d->table->memory_info(d->device, kind, &info);
  return (size_bytes + info.granularity_bytes - 1) / info.granularity_bytes *
         info.granularity_bytes;
}

/* ---- What is enqueued ---- */

static inline accrt_driver_value_t direct_constant(uint64_t value) {
  return (accrt_driver_value_t){.constant = value, .scalar = ACCRT_DRIVER_NONE};
}
static inline accrt_driver_value_t direct_scalar(uint64_t constant, uint32_t scalar) {
  return (accrt_driver_value_t){.constant = constant, .scalar = scalar};
}
static inline accrt_driver_range_t direct_range(uint32_t binding, accrt_driver_value_t offset,
                                                accrt_driver_value_t size_bytes) {
  return (accrt_driver_range_t){.binding = binding,
                                .access = ACCRT_KERNEL_ACCESS_READ_WRITE,
                                .offset = offset,
                                .size_bytes = size_bytes};
}
static inline accrt_driver_binding_t direct_binding(const memory_t* memory) {
  return (accrt_driver_binding_t){memory->own.device_address, memory->own.size_bytes};
}
/* Zeroed; given back with the bench. */
memory_t direct_memory(direct_t* bench, uint64_t size_bytes);
accrt_driver_command_t direct_dispatch(direct_t* bench, const accrt_driver_kernel_t* kernel,
                                       const void* params, uint32_t params_size_bytes);
accrt_driver_list_t* direct_list(direct_t* bench, const accrt_driver_command_t* commands,
                                 uint32_t count, uint32_t binding_count, uint32_t scalar_count);
accrt_driver_submission_t direct_submission(direct_t* bench, const accrt_driver_binding_t* bindings,
                                            uint32_t binding_count, const uint64_t* scalars,
                                            uint32_t scalar_count, outcome_t* outcome);
void direct_enqueue(direct_t* bench, accrt_driver_queue_t* queue,
                    const accrt_driver_command_t* command, const accrt_driver_binding_t* bindings,
                    uint32_t binding_count, const uint64_t* scalars, uint32_t scalar_count,
                    outcome_t* outcome);
void direct_submit(direct_t* bench, accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                   const accrt_driver_binding_t* bindings, uint32_t binding_count,
                   const uint64_t* scalars, uint32_t scalar_count, outcome_t* outcome);
accrt_driver_completion_t direct_completion(outcome_t* outcome);
void direct_notify(direct_t* bench, accrt_driver_queue_t* queue, outcome_t* outcome);
/* Waits for the completion. */
void direct_await(direct_t* bench, const outcome_t* outcome);
/* Submits a list, waits for it, and fails unless it ended well. */
void direct_execute(direct_t* bench, accrt_driver_list_t* list,
                    const accrt_driver_binding_t* bindings, uint32_t binding_count,
                    const uint64_t* scalars, uint32_t scalar_count);

/* ---- What kernels and operators have seen ---- */

typedef struct direct_seen {
  uint32_t calls;
  uint32_t count[3], highest[3];
  uint32_t params_size;
  _Alignas(16) unsigned char block[64];
  char wrong[128]; /* the first thing that was not as it should be */
  uint32_t prepared, executed, destroyed;
  uint64_t submission; /* as the kernel was told */
  void* workspace;
  uint64_t ended_ns; /* of the kernel that takes long */
} direct_seen_t;
extern direct_seen_t direct_seen;
void direct_forget_calls(void);
/* This thread's last error that the driver recorded with environment->fail. */
extern _Thread_local accrt_error_t direct_failure;
void direct_forget_failure(void);

extern const accrt_kernel_environment_t direct_environment;
extern const accrt_driver_kernel_t direct_count, direct_keep_block, direct_fail, direct_look_around,
    direct_calculate, direct_in_order, direct_wait_for_the_host, direct_take_long, direct_cancel,
    direct_meet, direct_meet_with_more, direct_gate, direct_keep_large, direct_fail_somewhere,
    direct_share_no_id;
/* The block that direct_keep_large has seen. */
extern unsigned char direct_seen_large[ACCRT_KERNEL_MAX_PARAMS_BYTES];
extern const accrt_operator_def_t direct_operator;

/* Where the kernel `direct_gate`, whose block begins with its address, waits until it is opened;
 * not for ever. */
typedef struct gate {
  atomic_bool is_open, gave_up;
  atomic_uint inside; /* how many have come */
} gate_t;
/* How long something that must come is waited for: a minute, or ACCRT_CTS_PATIENCE_MS. */
uint64_t direct_patience_ns(void);

void direct_close_gate(void);
/* Lets the waiting kernel go on. True when it had not given up waiting. */
bool direct_open_gate(void);
/* Rounds upwards, flushes denormals and traps exceptions on this thread, where that is possible. */
void direct_spoil_floats(void);
bool direct_floats_are_spoilt(void);

/* Work that enqueues its successor from its completion. */
typedef struct chain {
  direct_t* bench;
  uint32_t left;
  accrt_driver_binding_t binding;
  atomic_uint ended;
  outcome_t last;
} chain_t;
void direct_chain(chain_t* chain);

/* A thread with a queue of its own. */
typedef struct worker {
  direct_t* bench;
  uint64_t seed;
  memory_t memory;
  accrt_driver_queue_t* queue;
  pthread_t thread;
  bool is_right;
} worker_t;
void* direct_work(void* worker);

/* Work whose completion enqueues a marker, of which `outcome` tells. */
typedef struct reaction {
  direct_t* bench;
  outcome_t outcome;
} reaction_t;
void direct_enqueue_with_reaction(reaction_t* reaction, const accrt_driver_command_t* command);

/* A thread that executes a list and waits for it. */
typedef struct meeting {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  accrt_driver_list_t* list;
  accrt_driver_binding_t binding;
  uint64_t scalar;
  pthread_t thread;
  accrt_status_t status;
} meeting_t;
void* direct_go_to_meeting(void* meeting);

/* Work that ends well, and work that fails with code 77 "on purpose": kernels, or, where there are
 * no host kernels, a fill, and a list whose operator fails. */
typedef struct mishap {
  accrt_driver_command_t good, bad;
  accrt_driver_binding_t binding;
  accrt_driver_list_t* list; /* NULL: `bad` */
} mishap_t;
/* False where the driver runs neither kernels nor operators of the host. */
bool direct_make_mishap(direct_t* bench, mishap_t* out_mishap);
void direct_end_mishap(const direct_t* bench, const mishap_t* mishap);
/* They return the number. No completion is told. */
uint64_t direct_do_well(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap);
uint64_t direct_do_badly(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap);
/* Work behind a failure: skipped, or refused at once because the failure is known. Then it returns
 * `before`. */
uint64_t direct_do_behind(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap,
                          uint64_t before);

/* ---- Conveniences ---- */

#define HAS(d, slot)                                                                               \
  ((d)->table->struct_size >= offsetof(accrt_driver_table_t, slot) + sizeof(void*) &&              \
   (d)->table->slot != NULL)
#define MILLISECOND UINT64_C(1000000)

/* A kernel can be held up: work goes on beside the thread that enqueues and the one that waits. */
static inline bool runs_beside(const direct_t* d) {
  const uint32_t asked = ACCRT_DEVICE_FLAG_HOST_KERNELS | ACCRT_DEVICE_FLAG_ENQUEUE_RUNS |
                         ACCRT_DEVICE_FLAG_CALLER_RUNS;
  return (d->info.flags & asked) == ACCRT_DEVICE_FLAG_HOST_KERNELS;
}

static inline accrt_driver_queue_t* make_queue(direct_t* d) {
  accrt_driver_queue_t* queue = NULL;
  assert_int_equal(d->table->queue_create(d->device, 0, &queue), ACCRT_OK);
  return queue;
}

static inline accrt_driver_command_t fill_command(uint64_t offset, uint64_t size_bytes,
                                                  uint64_t byte) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_constant(offset), direct_constant(size_bytes)),
      .pattern = byte,
      .pattern_bytes = 1};
  return command;
}

/* Bytes of one binding, in one row, to another. */
static inline accrt_driver_command_t copy_command(uint32_t from, uint64_t from_offset, uint32_t to,
                                                  uint64_t to_offset, uint64_t size_bytes) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  command.as.copy = (accrt_driver_copy_t){
      .source = direct_range(from, direct_constant(from_offset), direct_constant(size_bytes)),
      .target = direct_range(to, direct_constant(to_offset), direct_constant(size_bytes)),
      .extent = {direct_constant(size_bytes), direct_constant(1), direct_constant(1)},
      .source_stride_bytes = {direct_constant(0), direct_constant(0)},
      .target_stride_bytes = {direct_constant(0), direct_constant(0)}};
  return command;
}

static inline void await_inside(gate_t* gate) {
  const uint64_t deadline = cts_now_ns() + direct_patience_ns();
  while (atomic_load(&gate->inside) == 0) {
    if (cts_now_ns() > deadline)
      fail_msg("no kernel came to the gate");
    cts_sleep_ms(0);
  }
}

/* Enqueues a kernel that waits at the gate, and waits until it does. */
static inline void hold_up(direct_t* d, accrt_driver_queue_t* queue, gate_t* gate,
                           outcome_t* outcome) {
  const uint64_t block[8] = {(uint64_t)(uintptr_t)gate};
  const accrt_driver_command_t command = direct_dispatch(d, &direct_gate, block, sizeof block);
  direct_enqueue(d, queue, &command, NULL, 0, NULL, 0, outcome);
  await_inside(gate);
}

static inline void let_go(gate_t* gate) {
  atomic_store(&gate->is_open, true);
}

static inline bool has_ended(const outcome_t* outcome) {
  /* Acquire: pairs with the release in the completion. */
  return atomic_load_explicit(&((outcome_t*)(uintptr_t)outcome)->times, memory_order_acquire) != 0;
}

static inline uint64_t next_number(direct_t* d) {
  return atomic_fetch_add(&d->number, 1) + 1;
}

/* A submission of which nobody is told. */
static inline uint64_t submit_quietly(direct_t* d, accrt_driver_queue_t* queue,
                                      const accrt_driver_command_t* command,
                                      const accrt_driver_binding_t* binding) {
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .binding_count = binding != NULL,
                                                .bindings = binding,
                                                .number = next_number(d),
                                                .stream_id = DIRECT_STREAM_ID};
  assert_int_equal(d->table->queue_enqueue(queue, command, &submission), ACCRT_OK);
  return submission.number;
}

static inline uint64_t ask(direct_t* d, accrt_driver_queue_t* queue) {
  uint64_t number = UINT64_MAX;
  assert_int_equal(d->table->queue_progress(queue, &number), ACCRT_OK);
  return number;
}

static inline void wait_for(direct_t* d, accrt_driver_queue_t* queue, uint64_t number) {
  assert_int_equal(d->table->queue_wait(queue, number, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
}

static inline accrt_driver_event_t* make_event(direct_t* d, uint32_t flags) {
  accrt_driver_event_t* event = NULL;
  assert_int_equal(d->table->event_create(d->device, flags, &event), ACCRT_OK);
  return event;
}

static inline void record_event(direct_t* d, accrt_driver_queue_t* queue,
                                accrt_driver_event_t* event) {
  assert_int_equal(d->table->event_record(queue, event), ACCRT_OK);
}

static inline void wait_event(direct_t* d, accrt_driver_queue_t* queue,
                              accrt_driver_event_t* event) {
  assert_int_equal(d->table->event_wait(queue, event), ACCRT_OK);
}

static inline accrt_status_t reach(direct_t* d, accrt_driver_event_t* event) {
  return d->table->event_synchronize(event, direct_patience_ns(), ACCRT_WAIT_BLOCK);
}

static inline accrt_driver_launch_t* make_launch(direct_t* d, const accrt_driver_kernel_t* kernel) {
  accrt_driver_launch_t* launch = NULL;
  assert_int_equal(d->table->launch_create(d->device, kernel, &launch), ACCRT_OK);
  return launch;
}

#endif /* ACCRT_CTS_DIRECT_H_ */
