/* tests/cts/direct_states.c - the part `direct`: what a driver's functions are called from
 * (completions, other threads, the environment's own functions), and which queue, device or driver
 * they are called for.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <unistd.h>

/* ---- Called from a completion ---- */

#define FAREWELL_WAYS 3 /* a command, a list, a notification */
/* The completion of the last work of a queue, which gives back all that there is. */
typedef struct farewell {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  accrt_driver_list_t* list;
  accrt_driver_event_t* event;
  accrt_driver_memory_t memory;
  accrt_status_t statuses[4];
  outcome_t outcome;
} farewell_t;

static void say_farewell(void* user, accrt_status_t status, const accrt_error_t* error,
                         uint64_t time_ns) {
  farewell_t* self = user;
  const accrt_driver_table_t* table = self->bench->table;
  accrt_driver_queue_t* made = NULL;
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info};
  accrt_driver_list_t* made_list = NULL;
  self->statuses[0] = table->queue_create(self->bench->device, 0, &made);
  self->statuses[1] = table->list_create(self->bench->device, &info, &made_list);
  if (made_list != NULL)
    table->list_destroy(made_list);
  if (made != NULL)
    table->queue_destroy(made);
  if (HAS(self->bench, queue_progress)) {
    uint64_t number = 0;
    self->statuses[2] = table->queue_progress(self->queue, &number);
  }
  if (HAS(self->bench, event_create)) {
    self->statuses[3] = table->event_record(self->bench->queue, self->event);
    table->event_destroy(self->event);
  }
  table->list_destroy(self->list);
  table->memory_free(self->bench->device, &self->memory);
  table->queue_destroy(self->queue);
  const accrt_driver_completion_t completion = direct_completion(&self->outcome);
  completion.done(completion.user, status, error, time_ns);
}

static void test_completions_may_give_back_all(void** state) {
  direct_t* d = *state;
  const accrt_driver_command_t fill = fill_command(0, 64, 5);
  for (int turn = 0; turn < 4 * FAREWELL_WAYS; ++turn) {
    farewell_t self = {.bench = d, .queue = make_queue(d)};
    self.list = direct_list(d, &fill, 1, 1, 0);
    if (HAS(d, event_create))
      self.event = make_event(d, 0);
    assert_int_equal(d->table->memory_allocate(d->device, d->memory_kind,
                                               direct_whole_size(d, d->memory_kind, 64),
                                               &self.memory),
                     ACCRT_OK);
    const accrt_driver_binding_t binding = {self.memory.device_address, self.memory.size_bytes};
    const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                  .binding_count = 1,
                                                  .bindings = &binding,
                                                  .number = next_number(d),
                                                  .completion = {say_farewell, &self}};
    accrt_status_t status = ACCRT_OK;
    if (turn % FAREWELL_WAYS == 0)
      status = d->table->queue_enqueue(self.queue, &fill, &submission);
    else if (turn % FAREWELL_WAYS == 1)
      status = d->table->queue_execute(self.queue, self.list, &submission);
    else
      status = d->table->queue_notify(self.queue, submission.completion);
    assert_int_equal(status, ACCRT_OK);
    direct_await(d, &self.outcome);
    assert_int_equal(self.outcome.status, ACCRT_OK);
    for (int i = 0; i < 4; ++i)
      assert_int_equal(self.statuses[i], ACCRT_OK);
    assert_int_equal(atomic_load(&self.outcome.times), 1);
  }
  cts_sleep_ms(5); /* what is behind the last completion */
}

/* ---- Called from the allocator and the trace function ---- */

static pthread_mutex_t side_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  accrt_driver_queue_t* queue;
  accrt_driver_event_t* event;
  accrt_driver_list_t* list;
  atomic_uint calls;
} side;

/* Functions of the driver for another queue; one thread at a time. */
static void do_on_the_side(direct_t* d) {
  if (pthread_mutex_trylock(&side_lock) != 0)
    return;
  atomic_fetch_add(&side.calls, 1);
  (void)d->table->queue_notify(side.queue, (accrt_driver_completion_t){NULL, NULL});
  if (HAS(d, queue_progress)) {
    uint64_t number = 0;
    (void)d->table->queue_progress(side.queue, &number);
  }
  if (HAS(d, event_create))
    (void)d->table->event_query(side.event);
  accrt_device_info_t info = {.struct_size = (uint32_t)sizeof info};
  d->table->device_info(d->device, &info);
  pthread_mutex_unlock(&side_lock);
}

typedef struct busy_thread {
  direct_t* bench;
  pthread_t thread;
  atomic_bool has_ended;
  bool is_right;
} busy_thread_t;

/* A bit of everything that allocates or traces. */
static void* keep_busy(void* user) {
  busy_thread_t* self = user;
  direct_t* d = self->bench;
  const accrt_driver_command_t commands[2] = {
      direct_dispatch(d, &direct_look_around, NULL, 0),
      {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"}};
  const accrt_driver_list_info_t info = {
      .struct_size = (uint32_t)sizeof info, .command_count = 2, .commands = commands};
  for (int turn = 0; turn < 4; ++turn) {
    accrt_driver_queue_t* queue = NULL;
    accrt_driver_list_t* list = NULL;
    bool is_right = d->table->queue_create(d->device, 0, &queue) == ACCRT_OK &&
                    d->table->list_create(d->device, &info, &list) == ACCRT_OK;
    outcome_t first, second, notice;
    const accrt_driver_submission_t submissions[2] = {
        direct_submission(d, NULL, 0, NULL, 0, &first),
        direct_submission(d, NULL, 0, NULL, 0, &second)};
    is_right &= is_right &&
                d->table->queue_enqueue(queue, &commands[0], &submissions[0]) == ACCRT_OK &&
                d->table->queue_execute(queue, list, &submissions[1]) == ACCRT_OK;
    if (HAS(d, event_create)) {
      accrt_driver_event_t* event = NULL;
      is_right &= d->table->event_create(d->device, 0, &event) == ACCRT_OK &&
                  d->table->event_record(queue, event) == ACCRT_OK &&
                  d->table->event_wait(queue, event) == ACCRT_OK;
      d->table->event_destroy(event);
    }
    memset(&notice, 0, sizeof notice);
    is_right &= d->table->queue_notify(queue, direct_completion(&notice)) == ACCRT_OK;
    self->is_right &= is_right;
    if (!is_right)
      break;
    direct_await(d, &notice);
    self->is_right &= first.status == ACCRT_OK && second.status == ACCRT_OK;
    d->table->list_destroy(list);
    d->table->queue_destroy(queue);
  }
  atomic_store(&self->has_ended, true);
  return NULL;
}

/* While the driver calls the environment it holds no lock: whoever is called may call it. */
static void test_no_lock_is_held_in_calls_of_the_environment(void** state) {
  direct_t* d = *state;
  memset(&side, 0, sizeof side);
  side.queue = make_queue(d);
  if (HAS(d, event_create)) {
    side.event = make_event(d, 0);
    record_event(d, side.queue, side.event);
  }
  static busy_thread_t busy; /* it is left where it is, should it hang */
  memset(&busy, 0, sizeof busy);
  busy.bench = d;
  busy.is_right = true;
  atomic_store(&d->on_call, do_on_the_side);
  assert_int_equal(pthread_create(&busy.thread, NULL, keep_busy, &busy), 0);
  const uint64_t deadline = cts_now_ns() + direct_patience_ns();
  while (!atomic_load(&busy.has_ended)) {
    if (cts_now_ns() > deadline)
      fail_msg("the driver holds a lock that its other functions need while it calls the "
               "allocator or the trace function");
    cts_sleep_ms(1);
  }
  pthread_join(busy.thread, NULL);
  atomic_store(&d->on_call, NULL);
  assert_true(busy.is_right);
  assert_true(atomic_load(&side.calls) != 0);
  outcome_t last;
  direct_notify(d, side.queue, &last);
  direct_await(d, &last);
  if (side.event != NULL)
    d->table->event_destroy(side.event);
  d->table->queue_destroy(side.queue);
}

/* ---- Called from several threads ---- */

#define MAKERS 4u
typedef struct maker {
  direct_t* bench;
  uint32_t seed;
  pthread_t thread;
  bool is_right;
} maker_t;

/* Makes, uses and destroys objects of each kind. */
static void* make_things(void* user) {
  maker_t* self = user;
  direct_t* d = self->bench;
  self->is_right = true;
  for (uint32_t turn = 0; turn < 25; ++turn) {
    accrt_driver_memory_t memory;
    accrt_driver_queue_t* queue = NULL;
    accrt_driver_list_t* list = NULL;
    const unsigned char byte = (unsigned char)(self->seed * 25 + turn);
    const accrt_driver_command_t fill = fill_command(0, 64, byte);
    const accrt_driver_list_info_t made = {.struct_size = (uint32_t)sizeof made,
                                           .command_count = 1,
                                           .commands = &fill,
                                           .binding_count = 1};
    bool is_right =
        d->table->memory_allocate(d->device, d->memory_kind,
                                  direct_whole_size(d, d->memory_kind, 64), &memory) == ACCRT_OK &&
        d->table->queue_create(d->device, (int32_t)turn % 3 - 1, &queue) == ACCRT_OK &&
        d->table->list_create(d->device, &made, &list) == ACCRT_OK;
    self->is_right &= is_right;
    if (!is_right)
      break;
    const accrt_driver_binding_t binding = {memory.device_address, memory.size_bytes};
    outcome_t outcome;
    const accrt_driver_submission_t submission =
        direct_submission(d, &binding, 1, NULL, 0, &outcome);
    is_right = d->table->queue_execute(queue, list, &submission) == ACCRT_OK;
    self->is_right &= is_right;
    if (is_right)
      direct_await(d, &outcome);
    self->is_right &=
        memory.host_pointer == NULL || ((unsigned char*)memory.host_pointer)[63] == byte;
    if (HAS(d, event_create)) {
      accrt_driver_event_t* event = NULL;
      self->is_right &= d->table->event_create(d->device, 0, &event) == ACCRT_OK &&
                        d->table->event_record(queue, event) == ACCRT_OK &&
                        reach(d, event) == ACCRT_OK;
      d->table->event_destroy(event);
    }
    d->table->list_destroy(list);
    d->table->queue_destroy(queue);
    d->table->memory_free(d->device, &memory);
  }
  return NULL;
}

static void test_threads_make_and_destroy_side_by_side(void** state) {
  direct_t* d = *state;
  maker_t makers[MAKERS];
  for (uint32_t i = 0; i < MAKERS; ++i) {
    makers[i] = (maker_t){.bench = d, .seed = i};
    assert_int_equal(pthread_create(&makers[i].thread, NULL, make_things, &makers[i]), 0);
  }
  for (uint32_t i = 0; i < MAKERS; ++i)
    pthread_join(makers[i].thread, NULL);
  for (uint32_t i = 0; i < MAKERS; ++i)
    assert_true(makers[i].is_right);
}

/* A thread that waits for a number of a queue. */
typedef struct waiter {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  uint64_t number;
  uint32_t policy;
  accrt_status_t status;
  atomic_bool has_begun, has_ended;
  pthread_t thread;
} waiter_t;

static void* wait_on_a_thread(void* user) {
  waiter_t* self = user;
  atomic_store(&self->has_begun, true);
  self->status = self->bench->table->queue_wait(self->queue, self->number, ACCRT_TIMEOUT_INFINITE,
                                                self->policy);
  atomic_store(&self->has_ended, true);
  return NULL;
}

static void begin_wait(waiter_t* self, direct_t* d, uint64_t number, uint32_t policy) {
  memset(self, 0, sizeof *self);
  self->bench = d;
  self->queue = d->queue;
  self->number = number;
  self->policy = policy;
  assert_int_equal(pthread_create(&self->thread, NULL, wait_on_a_thread, self), 0);
  while (!atomic_load(&self->has_begun))
    cts_sleep_ms(0);
  cts_sleep_ms(2);
}

static void await_flag(const atomic_bool* flag, const char* what) {
  const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 4;
  while (!atomic_load((atomic_bool*)(uintptr_t)flag)) {
    if (cts_now_ns() > deadline)
      fail_msg("%s", what);
    cts_sleep_ms(0);
  }
}

static void enqueue_gate(direct_t* d, gate_t* gate, outcome_t* outcome) {
  const uint64_t block[8] = {(uint64_t)(uintptr_t)gate};
  const accrt_driver_command_t command = direct_dispatch(d, &direct_gate, block, sizeof block);
  direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, outcome);
}

/* Several threads wait at once, each until its own number; what is enqueued behind the call is
 * nothing to it. */
static void test_waits_are_for_what_was_enqueued_before(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_wait) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  static waiter_t waiters[4];
  static gate_t gates[2];
  static outcome_t outcomes[2];
  memset(gates, 0, sizeof gates);
  hold_up(d, d->queue, &gates[0], &outcomes[0]);
  begin_wait(&waiters[0], d, UINT64_MAX, ACCRT_WAIT_BLOCK);
  begin_wait(&waiters[1], d, outcomes[0].number, ACCRT_WAIT_YIELD);
  begin_wait(&waiters[2], d, UINT64_MAX, ACCRT_WAIT_SPIN);
  cts_sleep_ms(20);
  enqueue_gate(d, &gates[1], &outcomes[1]);
  begin_wait(&waiters[3], d, UINT64_MAX, ACCRT_WAIT_BLOCK);
  bool early = false;
  for (int i = 0; i < 4; ++i)
    early |= atomic_load(&waiters[i].has_ended);
  let_go(&gates[0]);
  direct_await(d, &outcomes[0]);
  await_flag(&waiters[1].has_ended, "a wait for work that has ended goes on");
  await_flag(&waiters[0].has_ended, "a wait is for work that was enqueued behind it");
  await_flag(&waiters[2].has_ended, "a wait is for work that was enqueued behind it");
  early |= atomic_load(&waiters[3].has_ended);
  let_go(&gates[1]);
  direct_await(d, &outcomes[1]);
  for (int i = 0; i < 4; ++i) {
    pthread_join(waiters[i].thread, NULL);
    assert_int_equal(waiters[i].status, ACCRT_OK);
  }
  assert_false(early);
  assert_false(atomic_load(&gates[0].gave_up) || atomic_load(&gates[1].gave_up));
}

/* A list that a thread runs. */
typedef struct runner {
  direct_t* bench;
  accrt_driver_list_t* list;
  accrt_driver_binding_t binding;
  outcome_t outcome;
  accrt_status_t status;
  accrt_error_t failure;
  atomic_bool has_ended;
  pthread_t thread;
} runner_t;

static void* run_on_a_thread(void* user) {
  runner_t* self = user;
  const accrt_driver_submission_t submission =
      direct_submission(self->bench, &self->binding, 1, NULL, 0, &self->outcome);
  direct_forget_failure();
  self->status = self->bench->table->queue_run(self->bench->queue, self->list, &submission);
  self->failure = direct_failure;
  atomic_store(&self->has_ended, true);
  return NULL;
}

/* What another thread runs, or has launched, is cancelled like all else. */
static void test_work_of_other_threads_is_cancelled(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  gate_t gate = {0};
  const uint64_t block[8] = {(uint64_t)(uintptr_t)&gate};
  accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_gate, block, sizeof block),
                                        fill_command(0, 64, 7)};
  const uint32_t before = 0;
  commands[1].predecessors = &before;
  commands[1].predecessor_count = 1;
  accrt_driver_list_t* list = direct_list(d, commands, 2, 1, 0);
  for (int turn = 0; turn < 2 && HAS(d, queue_run); ++turn) {
    runner_t runner = {.bench = d, .list = list, .binding = direct_binding(&memory)};
    atomic_store(&gate.is_open, false);
    atomic_store(&gate.inside, 0);
    assert_int_equal(pthread_create(&runner.thread, NULL, run_on_a_thread, &runner), 0);
    const uint64_t deadline = cts_now_ns() + direct_patience_ns();
    while (atomic_load(&gate.inside) == 0 && !atomic_load(&runner.has_ended) &&
           cts_now_ns() < deadline)
      cts_sleep_ms(0);
    const bool was_inside = atomic_load(&gate.inside) != 0;
    d->table->queue_cancel(d->queue);
    let_go(&gate);
    pthread_join(runner.thread, NULL);
    if (!was_inside)
      fail_msg("the list did not run on the caller, but returned %d", (int)runner.status);
    assert_int_equal(runner.status, ACCRT_ERROR_CANCELLED);
    assert_int_equal(runner.failure.status, ACCRT_ERROR_CANCELLED);
    assert_non_null(strchr(runner.failure.message, '1'));
    assert_int_equal(memory.host[0], 0);
    assert_int_equal(atomic_load(&runner.outcome.times), 0);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  if (HAS(d, launch_create)) {
    accrt_driver_launch_t* launch = make_launch(d, &direct_count);
    static const uint32_t grid[3] = {1, 1, 1};
    _Alignas(16) unsigned char params[64] = {0};
    gate_t second = {0};
    outcome_t held;
    direct_forget_calls();
    hold_up(d, d->queue, &second, &held);
    const uint64_t number = next_number(d);
    assert_int_equal(d->table->queue_launch(d->queue, launch, grid, params, number), ACCRT_OK);
    accrt_driver_event_t* event = make_event(d, 0);
    record_event(d, d->queue, event);
    d->table->queue_cancel(d->queue);
    let_go(&second);
    direct_await(d, &held);
    assert_int_equal(d->table->queue_wait(d->queue, number, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                     ACCRT_ERROR_CANCELLED);
    assert_int_equal(reach(d, event), ACCRT_ERROR_CANCELLED); /* and not never */
    assert_int_equal(direct_seen.calls, 0);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    assert_true(ask(d, d->queue) >= number);
    record_event(d, d->queue, event);
    assert_int_equal(reach(d, event), ACCRT_OK);
    d->table->queue_cancel(d->queue); /* it is idle */
    record_event(d, d->queue, event);
    assert_int_equal(reach(d, event), ACCRT_ERROR_CANCELLED);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    d->table->event_destroy(event);
    d->table->launch_destroy(launch);
  }
  d->table->list_destroy(list);
}

/* ---- Many queues, other devices, other drivers ---- */

#define MANY_QUEUES 40u
static void test_there_are_as_many_queues_as_asked_for(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, MANY_QUEUES);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  accrt_driver_queue_t* queues[MANY_QUEUES];
  outcome_t outcomes[MANY_QUEUES], failed;
  static const int32_t priorities[] = {0, 1, -1, 7, -7, INT32_MAX, INT32_MIN};
  for (uint32_t i = 0; i < MANY_QUEUES; ++i)
    assert_int_equal(d->table->queue_create(d->device, priorities[i % 7], &queues[i]), ACCRT_OK);
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  direct_enqueue(d, queues[3], &bad, NULL, 0, NULL, 0, &failed);
  direct_await(d, &failed);
  for (uint32_t i = 0; i < MANY_QUEUES; ++i) {
    const accrt_driver_command_t fill = fill_command(i, 1, i + 1);
    direct_enqueue(d, queues[i], &fill, &binding, 1, NULL, 0, &outcomes[i]);
  }
  for (uint32_t i = 0; i < MANY_QUEUES; ++i) {
    direct_await(d, &outcomes[i]);
    assert_int_equal(outcomes[i].status, i == 3 ? ACCRT_ERROR_POISONED : ACCRT_OK);
    assert_int_equal(memory.host[i], i == 3 ? 0 : i + 1);
  }
  for (uint32_t i = 0; i < MANY_QUEUES; ++i) /* in another order */
    d->table->queue_destroy(queues[(i * 7 + 3) % MANY_QUEUES]);
}

/* A second device works as the first one does, and is a peer where there is a path. */
static void test_other_devices_work_too(void** state) {
  direct_t* d = *state;
  if (d->table->device_count(d->driver) < 2) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_device_t* second = NULL;
  accrt_driver_queue_t* queue = NULL;
  accrt_driver_memory_t there, later;
  assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &second), ACCRT_OK);
  assert_ptr_not_equal(second, d->device);
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  d->table->memory_info(second, d->memory_kind, &info);
  const uint64_t size_bytes =
      (4096 + info.granularity_bytes - 1) / info.granularity_bytes * info.granularity_bytes;
  assert_int_equal(d->table->queue_create(second, 0, &queue), ACCRT_OK);
  assert_int_equal(d->table->memory_allocate(second, d->memory_kind, size_bytes, &there), ACCRT_OK);
  bool is_peer = true; /* a driver without the function promises it */
  if (HAS(d, device_enable_peer)) {
    const accrt_status_t status = d->table->device_enable_peer(d->device, second);
    is_peer = status == ACCRT_OK;
    assert_true(is_peer || status == ACCRT_ERROR_UNSUPPORTED);
    for (int i = 0; i < 2; ++i) /* repeated, and the other way */
      assert_int_equal(d->table->device_enable_peer(d->device, second), status);
    assert_int_equal(d->table->device_enable_peer(second, d->device), status);
  }
  assert_int_equal(d->table->memory_allocate(second, d->memory_kind, size_bytes, &later), ACCRT_OK);
  memory_t here = direct_memory(d, 4096);
  for (int i = 0; i < 2; ++i) {
    const accrt_driver_memory_t* memory = i == 0 ? &there : &later;
    const accrt_driver_binding_t bindings[2] = {{memory->device_address, memory->size_bytes},
                                                direct_binding(&here)};
    const accrt_driver_command_t fill = fill_command(0, 4096, (uint64_t)i + 9);
    const accrt_driver_command_t copy = copy_command(0, 0, 1, 0, 4096);
    outcome_t filled, copied;
    direct_enqueue(d, queue, &fill, bindings, 1, NULL, 0, &filled);
    direct_await(d, &filled);
    assert_int_equal(filled.status, ACCRT_OK);
    if (!is_peer)
      continue;
    direct_enqueue(d, d->queue, &copy, bindings, 2, NULL, 0, &copied);
    direct_await(d, &copied);
    assert_int_equal(copied.status, ACCRT_OK);
    assert_int_equal(here.host[4095], i + 9);
  }
  /* What fails here is not there. */
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  outcome_t failed, healthy;
  accrt_device_info_t facts = {.struct_size = (uint32_t)sizeof facts};
  d->table->device_info(second, &facts);
  if ((facts.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0) {
    direct_enqueue(d, queue, &bad, NULL, 0, NULL, 0, &failed);
    direct_await(d, &failed);
    assert_int_equal(failed.status, ACCRT_ERROR_KERNEL);
  }
  direct_notify(d, d->queue, &healthy);
  direct_await(d, &healthy);
  assert_int_equal(healthy.status, ACCRT_OK);
  if (HAS(d, event_create)) { /* across devices, from the second to the first */
    accrt_driver_event_t* event = NULL;
    assert_int_equal(d->table->queue_reset(queue), ACCRT_OK);
    assert_int_equal(d->table->event_create(second, 0, &event), ACCRT_OK);
    record_event(d, queue, event);
    wait_event(d, d->queue, event);
    direct_notify(d, d->queue, &healthy);
    direct_await(d, &healthy);
    assert_int_equal(healthy.status, ACCRT_OK);
    d->table->event_destroy(event);
  }
  d->table->memory_free(second, &there);
  d->table->memory_free(second, &later);
  d->table->queue_destroy(queue);
  d->table->device_close(second);
}

/* Two drivers of one table are opened at once: each has its own environment, and knows nothing of
 * the other. */
static void test_drivers_know_nothing_of_one_another(void** state) {
  direct_t* d = *state;
  direct_t* other = calloc(1, sizeof *other);
  assert_non_null(other);
  assert_true(direct_set_up(other, CTS_NEEDS_HOST_KERNELS));
  direct_t* const both[2] = {d, other};
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_look_around, NULL, 0);
  for (int failing = 0; failing < 2; ++failing) {
    outcome_t failed, healthy;
    direct_t* ill = both[failing];
    direct_t* well = both[1 - failing];
    const uint32_t traced[2] = {atomic_load(&d->trace_count), atomic_load(&other->trace_count)};
    direct_enqueue(ill, ill->queue, &bad, NULL, 0, NULL, 0, &failed);
    direct_await(ill, &failed);
    assert_int_equal(failed.status, ACCRT_ERROR_KERNEL);
    direct_forget_calls();
    direct_enqueue(well, well->queue, &good, NULL, 0, NULL, 0, &healthy);
    direct_await(well, &healthy);
    assert_int_equal(healthy.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 1);
    assert_int_equal(ill->table->queue_reset(ill->queue), ACCRT_OK);
    assert_int_equal(atomic_load(&d->trace_count),
                     traced[0] + 1); /* it traces, the other one not */
    assert_int_equal(atomic_load(&other->trace_count), traced[1]);
    if (HAS(d, queue_cancel)) {
      outcome_t notice;
      ill->table->queue_cancel(ill->queue);
      direct_notify(well, well->queue, &notice);
      direct_await(well, &notice);
      assert_int_equal(notice.status, ACCRT_OK);
      assert_int_equal(ill->table->queue_reset(ill->queue), ACCRT_OK);
    }
  }
  const long before = atomic_load(&d->allocations);
  accrt_driver_queue_t* queue = make_queue(other);
  assert_int_equal(atomic_load(&d->allocations), before);
  other->table->queue_destroy(queue);
  direct_tear_down(other);
  free(other);
  outcome_t last;
  direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &last);
  direct_await(d, &last);
  assert_int_equal(last.status, ACCRT_OK);
}

/* What a driver has no business with: what is printed, which signals are handled, and threads before
 * a device is opened. */
static void test_drivers_keep_to_themselves(void** state) {
  direct_t* d = *state;
  fflush(NULL);
  FILE* file = tmpfile();
  assert_non_null(file);
  const int kept[2] = {dup(1), dup(2)};
  assert_true(kept[0] >= 0 && kept[1] >= 0);
  const uint32_t threads_before = cts_count_entries("/proc/self/task");
  dup2(fileno(file), 1);
  dup2(fileno(file), 2);
  accrt_driver_t* driver = NULL;
  const accrt_status_t status = d->table->open(&d->environment, &driver);
  const uint32_t device_count = status == ACCRT_OK ? d->table->device_count(driver) : 0;
  const uint32_t threads_after = cts_count_entries("/proc/self/task");
  if (status == ACCRT_OK)
    d->table->close(driver);
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  const accrt_driver_submission_t none = {.struct_size = (uint32_t)sizeof none, .number = 1};
  (void)d->table->queue_enqueue(d->queue, &good, &none);
  (void)d->table->queue_enqueue(d->queue, &bad, &none);
  outcome_t notice;
  memset(&notice, 0, sizeof notice);
  const accrt_status_t notified = d->table->queue_notify(d->queue, direct_completion(&notice));
  const uint64_t deadline = cts_now_ns() + direct_patience_ns();
  while (notified == ACCRT_OK && !has_ended(&notice) && cts_now_ns() < deadline) {
    if (d->table->device_progress == NULL || !d->table->device_progress(d->device))
      cts_sleep_ms(0);
  }
  fflush(NULL);
  for (int i = 0; i < 2; ++i) {
    dup2(kept[i], i + 1);
    close(kept[i]);
  }
  const off_t printed = lseek(fileno(file), 0, SEEK_END);
  fclose(file);
  assert_int_equal(status, ACCRT_OK);
  assert_true(device_count != 0);
  assert_int_equal(threads_after, threads_before);
  assert_int_equal(notice.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(printed, 0);
  assert_int_equal(cts_changed_signal(), 0);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
}

/* One launch on two queues, and many of it in flight, each with its own block. */
static void test_one_launch_on_two_queues(void** state) {
  direct_t* d = *state;
  if (!HAS(d, launch_create)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64 * 8);
  accrt_driver_queue_t* queues[2] = {make_queue(d), make_queue(d)};
  accrt_driver_launch_t* launch = make_launch(d, &direct_meet);
  static const uint32_t grid[3] = {1, 1, 1};
  _Alignas(16) uint64_t block[8] = {0};
  uint64_t numbers[2] = {0, 0};
  atomic_store(&d->trace_count, 0);
  direct_forget_calls();
  for (uint64_t i = 0; i < 32; ++i) {
    block[0] = memory.own.device_address + 8 * i;
    block[1] = i + 1;
    numbers[i % 2] = next_number(d);
    assert_int_equal(d->table->queue_launch(queues[i % 2], launch, grid, block, numbers[i % 2]),
                     ACCRT_OK);
  }
  memset(block, 0xFF, sizeof block);
  d->table->launch_destroy(launch);
  for (int i = 0; i < 2; ++i)
    wait_for(d, queues[i], numbers[i]);
  for (uint64_t i = 0; i < 32; ++i)
    assert_int_equal(((const uint64_t*)(const void*)memory.host)[i], i + 1);
  assert_string_equal(direct_seen.wrong, "");
  assert_int_equal(atomic_load(&d->trace_count), 32);
  bool is_traced = false;
  for (int i = 0; i < 32; ++i) {
    assert_string_equal(d->traces[i].name, "direct.meet");
    is_traced |= d->traces[i].event.submission == numbers[0];
  }
  assert_true(is_traced);
  for (int i = 0; i < 2; ++i)
    d->table->queue_destroy(queues[i]);
}

/* Behind work that is held up, commands of each kind are what they were when they were enqueued. */
static void test_commands_of_each_kind_are_copied(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 256);
  gate_t gate = {0};
  outcome_t held, filled, copied, marked, listed;
  char names[3][16] = {"a fill", "a copy", "a marker"};
  accrt_driver_command_t fill = fill_command(0, 64, 0x21), copy = copy_command(0, 0, 1, 128, 64),
                         marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER};
  fill.name = names[0];
  copy.name = names[1];
  marker.name = names[2];
  fill.as.fill.target.offset = direct_scalar(0, 0);
  copy.as.copy.source.offset = direct_scalar(0, 1);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 2, 2);
  accrt_driver_binding_t bindings[2] = {direct_binding(&memory), direct_binding(&memory)};
  uint64_t scalars[2] = {0, 32};
  if (runs_beside(d))
    hold_up(d, d->queue, &gate, &held);
  accrt_driver_submission_t submission = direct_submission(d, bindings, 2, scalars, 2, &filled);
  submission.stream_id = 1001;
  assert_int_equal(d->table->queue_enqueue(d->queue, &fill, &submission), ACCRT_OK);
  submission = direct_submission(d, bindings, 2, scalars, 2, &copied);
  submission.stream_id = 1002;
  assert_int_equal(d->table->queue_enqueue(d->queue, &copy, &submission), ACCRT_OK);
  submission = direct_submission(d, NULL, 0, NULL, 0, &marked);
  submission.stream_id = 1003;
  assert_int_equal(d->table->queue_enqueue(d->queue, &marker, &submission), ACCRT_OK);
  scalars[0] = 192;
  submission = direct_submission(d, bindings, 2, scalars, 2, &listed);
  submission.stream_id = 1004;
  assert_int_equal(d->table->queue_execute(d->queue, list, &submission), ACCRT_OK);
  memset(bindings, 0xFF, sizeof bindings);
  memset(scalars, 0xFF, sizeof scalars);
  memset(&submission, 0xFF, sizeof submission);
  memset(&marker, 0xFF, sizeof marker);
  memset(&copy, 0xFF, sizeof copy);
  char* const lent = names[1];
  memset(lent, 'x', 15);
  memset(names[2], 'x', 15);
  let_go(&gate);
  if (runs_beside(d))
    direct_await(d, &held);
  outcome_t* const all[] = {&filled, &copied, &marked, &listed};
  static const char* const wanted[] = {"a fill", "a copy", "a marker", "a fill"};
  for (uint32_t i = 0; i < 4; ++i) {
    direct_await(d, all[i]);
    assert_int_equal(all[i]->status, ACCRT_OK);
    const trace_t* trace = &d->traces[i + runs_beside(d)];
    assert_string_equal(trace->name, wanted[i]);
    assert_int_equal(trace->event.stream_id, 1001 + i);
    assert_int_equal(trace->event.submission, all[i]->number);
  }
  for (uint32_t i = 0; i < 256; ++i)
    assert_int_equal(memory.host[i], i < 64 || (i >= 128 && i < 160) || i >= 192 ? 0x21 : 0);
  d->table->list_destroy(list);
}

/* Commands without a name have one in traces all the same. */
static void test_commands_without_a_name_are_traced(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t commands[3] = {fill_command(0, 32, 1),
                                              copy_command(0, 0, 0, 32, 32),
                                              {.opcode = ACCRT_DRIVER_COMMAND_MARKER}};
  for (uint32_t i = 0; i < 3; ++i) {
    outcome_t outcome;
    atomic_store(&d->trace_count, 0);
    direct_enqueue(d, d->queue, &commands[i], &binding, 1, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(atomic_load(&d->trace_count), 1);
    assert_true(d->traces[0].name[0] != '\0' && strcmp(d->traces[0].name, "(null)") != 0);
  }
}

const cts_test_t cts_direct_state_tests[] = {
    CTS_O(test_completions_may_give_back_all, CTS_NEEDS_TABLE),
    CTS_O(test_no_lock_is_held_in_calls_of_the_environment, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_threads_make_and_destroy_side_by_side, CTS_NEEDS_TABLE),
    CTS_O(test_waits_are_for_what_was_enqueued_before, KERNELS),
    CTS_O(test_work_of_other_threads_is_cancelled, KERNELS),
    CTS_O(test_there_are_as_many_queues_as_asked_for, KERNELS),
    CTS_O(test_other_devices_work_too, KERNELS),
    CTS_O(test_drivers_know_nothing_of_one_another, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_drivers_keep_to_themselves, KERNELS),
    CTS_O(test_one_launch_on_two_queues, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_commands_of_each_kind_are_copied, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_commands_without_a_name_are_traced, CTS_NEEDS_TABLE | CTS_NEEDS_TRACING),
    CTS_END};
