/* tests/cts/direct_events.c - the part `direct`: progress by number, and events. A group that a
 * driver does not have is skipped, and so is what needs a kernel to be held up where work runs on
 * the thread that enqueues it.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

/* ---- Progress by number ---- */

static void test_progress_counts_what_has_ended(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_progress)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 9);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 0);
  assert_int_equal(ask(d, d->queue), 0);
  uint64_t last = 0;
  for (int turn = 0; turn < 8; ++turn) {
    gate_t gate = {0};
    outcome_t held;
    memset(memory.host, 0, 64);
    if (runs_beside(d))
      hold_up(d, d->queue, &gate, &held);
    atomic_fetch_add(&d->number, 3); /* numbers of other queues */
    uint64_t number = submit_quietly(d, d->queue, &fill, &binding);
    if (turn % 2 != 0) {
      accrt_driver_submission_t quiet = {.struct_size = (uint32_t)sizeof quiet,
                                         .binding_count = 1,
                                         .bindings = &binding,
                                         .number = number = next_number(d)};
      assert_int_equal(d->table->queue_execute(d->queue, list, &quiet), ACCRT_OK);
    }
    const uint64_t early = ask(d, d->queue);
    let_go(&gate);
    if (runs_beside(d)) {
      assert_true(early >= last && early < held.number);
      direct_await(d, &held);
    }
    wait_for(d, d->queue, number);
    assert_int_equal(memory.host[63], 9);
    assert_true(ask(d, d->queue) >= number && ask(d, d->queue) <= atomic_load(&d->number));
    last = number;
  }
  d->table->list_destroy(list);
}

/* Others that make the driver's threads and waiters wake up. */
typedef struct bustle {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  atomic_bool stop;
  pthread_t thread;
} bustle_t;

static void* bustle(void* user) {
  bustle_t* self = user;
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "bustle"};
  accrt_driver_submission_t quiet = {.struct_size = (uint32_t)sizeof quiet};
  while (!atomic_load(&self->stop)) {
    ++quiet.number; /* its queue's own: those of the other queue stay without gaps */
    if (self->bench->table->queue_enqueue(self->queue, &marker, &quiet) == ACCRT_OK)
      (void)self->bench->table->queue_wait(self->queue, quiet.number, direct_patience_ns(),
                                           ACCRT_WAIT_BLOCK);
  }
  return NULL;
}

static void begin_bustle(direct_t* d, bustle_t* self) {
  *self = (bustle_t){.bench = d, .queue = make_queue(d)};
  assert_int_equal(pthread_create(&self->thread, NULL, bustle, self), 0);
}

static void end_bustle(bustle_t* self) {
  atomic_store(&self->stop, true);
  pthread_join(self->thread, NULL);
  self->bench->table->queue_destroy(self->queue);
}

/* Opens a gate after a while. */
typedef struct porter {
  gate_t* gate;
  uint64_t opened_ns;
  pthread_t thread;
} porter_t;

static void* open_later(void* user) {
  porter_t* porter = user;
  cts_sleep_ms(30);
  porter->opened_ns = cts_now_ns();
  let_go(porter->gate);
  return NULL;
}

static void send_porter(porter_t* porter, gate_t* gate) {
  *porter = (porter_t){.gate = gate};
  assert_int_equal(pthread_create(&porter->thread, NULL, open_later, porter), 0);
}

/* A wait ends when its work has ended or its time is over, not before, whatever else happens
 * meanwhile. */
static void test_waits_end_with_the_work_or_the_time(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_wait) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  bustle_t others;
  begin_bustle(d, &others);
  assert_int_equal(d->table->queue_wait(d->queue, 0, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  assert_int_equal(d->table->queue_wait(d->queue, UINT64_MAX, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
    const uint64_t first = submit_quietly(d, d->queue, &marker, NULL);
    wait_for(d, d->queue, first);
    gate_t gate = {0};
    outcome_t held;
    hold_up(d, d->queue, &gate, &held);
    const uint64_t number = submit_quietly(d, d->queue, &marker, NULL);
    assert_int_equal(d->table->queue_wait(d->queue, first, 0, policy), ACCRT_OK);
    static const uint64_t timeouts[] = {0, MILLISECOND / 2, 20 * MILLISECOND};
    for (int i = 0; i < 6; ++i) {
      const uint64_t timeout_ns = timeouts[i / 2];
      direct_failure.status = ACCRT_OK;
      const uint64_t begin = cts_now_ns();
      assert_int_equal(
          d->table->queue_wait(d->queue, i % 2 == 0 ? held.number : number, timeout_ns, policy),
          ACCRT_ERROR_TIMEOUT);
      const uint64_t took = cts_now_ns() - begin;
      assert_true(took >= timeout_ns && took < timeout_ns + 10 * CTS_SECOND);
      assert_int_equal(direct_failure.status, ACCRT_ERROR_TIMEOUT);
    }
    porter_t porter;
    send_porter(&porter, &gate);
    /* A number that is not enqueued: what is enqueued is waited for. */
    const uint64_t asked = policy == ACCRT_WAIT_YIELD ? UINT64_MAX : number;
    const accrt_status_t status =
        d->table->queue_wait(d->queue, asked, ACCRT_TIMEOUT_INFINITE - (policy % 2), policy);
    const uint64_t ended_ns = cts_now_ns();
    pthread_join(porter.thread, NULL);
    assert_int_equal(status, ACCRT_OK);
    assert_true(ended_ns >= porter.opened_ns);
    assert_true(ask(d, d->queue) >= number);
    assert_false(atomic_load(&gate.gave_up));
    direct_await(d, &held);
  }
  end_bustle(&others);
}

/* A failure is returned with its record, again and again, until the queue is reset. */
static void test_progress_tells_failures_until_reset(void** state) {
  direct_t* d = *state;
  mishap_t mishap;
  if (!HAS(d, queue_progress) || !direct_make_mishap(d, &mishap)) {
    d->is_skipped = true;
    return;
  }
  const bool counts = mishap.list == NULL; /* its kernels */
  for (int turn = 0; turn < 2; ++turn) {
    direct_forget_calls();
    const uint64_t before = direct_do_well(d, d->queue, &mishap);
    wait_for(d, d->queue, before);
    const uint64_t failed = direct_do_badly(d, d->queue, &mishap);
    const uint64_t behind = direct_do_behind(d, d->queue, &mishap, failed);
    const uint64_t numbers[3] = {behind, failed, behind};
    for (int i = 0; i < 3; ++i) {
      direct_failure.status = ACCRT_OK;
      assert_int_equal(
          d->table->queue_wait(d->queue, numbers[i], direct_patience_ns(), ACCRT_WAIT_BLOCK),
          ACCRT_ERROR_KERNEL);
      assert_int_equal(direct_failure.status, ACCRT_ERROR_KERNEL);
      assert_non_null(strstr(direct_failure.message, "on purpose"));
      direct_forget_failure();
      uint64_t number = UINT64_MAX;
      assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_KERNEL);
      assert_true(number >= before && number < failed);
      assert_int_equal(direct_failure.driver_code, 77);
      assert_non_null(strstr(direct_failure.message, "on purpose"));
    }
    assert_int_equal(direct_seen.calls, counts);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    /* All have ended, and numbers only grow. */
    assert_true(ask(d, d->queue) >= behind);
    assert_int_equal(d->table->queue_wait(d->queue, behind, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
    const uint64_t after = direct_do_well(d, d->queue, &mishap);
    wait_for(d, d->queue, after);
    assert_true(ask(d, d->queue) >= after);
    assert_int_equal(direct_seen.calls, counts ? 2 : 0);
  }
  direct_end_mishap(d, &mishap);
}

/* ---- Events ---- */

static void test_events_are_reached_behind_what_is_before(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 128);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  accrt_driver_queue_t *other = make_queue(d), *only_waits = make_queue(d);
  accrt_driver_event_t* event = make_event(d, 0);
  const accrt_driver_command_t fill = fill_command(0, 64, 5);
  accrt_driver_command_t copy = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  copy.as.copy =
      (accrt_driver_copy_t){.source = direct_range(0, direct_constant(0), direct_constant(64)),
                            .target = direct_range(0, direct_constant(64), direct_constant(64)),
                            .extent = {direct_constant(64), direct_constant(1), direct_constant(1)},
                            .source_stride_bytes = {direct_constant(0), direct_constant(0)},
                            .target_stride_bytes = {direct_constant(0), direct_constant(0)}};
  /* Never recorded: there is nothing to wait for. */
  outcome_t outcome;
  wait_event(d, other, event);
  direct_enqueue(d, other, &fill, &binding, 1, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(d->table->event_query(event), ACCRT_OK);
  assert_int_equal(d->table->event_synchronize(event, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
    gate_t gate = {0};
    outcome_t held, copied, notice;
    bustle_t others;
    porter_t porter;
    memset(memory.host, 0, 128);
    if (runs_beside(d))
      hold_up(d, d->queue, &gate, &held);
    (void)submit_quietly(d, d->queue, &fill, &binding);
    record_event(d, d->queue, event);
    wait_event(d, other, event);
    direct_enqueue(d, other, &copy, &binding, 1, NULL, 0, &copied);
    wait_event(d, only_waits, event);
    direct_notify(d, only_waits, &notice);
    if (runs_beside(d)) {
      begin_bustle(d, &others);
      direct_failure.status = ACCRT_OK;
      assert_int_equal(d->table->event_query(event), ACCRT_ERROR_NOT_READY);
      assert_int_equal(direct_failure.status, ACCRT_OK);
      static const uint64_t timeouts[] = {0, MILLISECOND / 2, 20 * MILLISECOND};
      for (int i = 0; i < 3; ++i) {
        const uint64_t begin = cts_now_ns();
        assert_int_equal(d->table->event_synchronize(event, timeouts[i], policy),
                         ACCRT_ERROR_TIMEOUT);
        const uint64_t took = cts_now_ns() - begin;
        assert_true(took >= timeouts[i] && took < timeouts[i] + 10 * CTS_SECOND);
        assert_int_equal(direct_failure.status, ACCRT_ERROR_TIMEOUT);
      }
      assert_false(has_ended(&copied));
      assert_false(has_ended(&notice));
      send_porter(&porter, &gate);
    }
    assert_int_equal(
        d->table->event_synchronize(event, ACCRT_TIMEOUT_INFINITE - (policy % 2), policy),
        ACCRT_OK);
    if (runs_beside(d)) {
      pthread_join(porter.thread, NULL);
      end_bustle(&others);
      direct_await(d, &held);
      assert_false(atomic_load(&gate.gave_up));
    }
    assert_int_equal(d->table->event_query(event), ACCRT_OK);
    direct_await(d, &copied);
    assert_int_equal(copied.status, ACCRT_OK);
    direct_await(d, &notice);
    assert_int_equal(notice.status, ACCRT_OK);
    for (int i = 0; i < 128; ++i)
      assert_int_equal(memory.host[i], 5);
  }
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
  d->table->queue_destroy(only_waits);
}

/* A wait is for the latest record at the time of the call; what the event is used for later does
 * not touch it. */
static void test_waits_are_for_the_record_of_their_time(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  for (int destroyed = 0; destroyed < 2; ++destroyed) {
    accrt_driver_queue_t* other = make_queue(d);
    accrt_driver_event_t* event = make_event(d, 0);
    accrt_driver_event_t* start = make_event(d, 0);
    gate_t first = {0}, second = {0};
    outcome_t held, held_again, begun, passed;
    record_event(d, d->queue, event); /* reached before all else */
    assert_int_equal(reach(d, event), ACCRT_OK);
    hold_up(d, d->queue, &first, &held);
    record_event(d, d->queue, start);
    wait_event(d, other,
               start); /* so that the next wait has not begun when `event` is recorded again */
    wait_event(d, other, event); /* the record that is reached */
    direct_enqueue(d, other, &marker, NULL, 0, NULL, 0, &begun);
    record_event(d, d->queue, event); /* behind the first gate */
    wait_event(d, other, event);
    direct_enqueue(d, other, &marker, NULL, 0, NULL, 0, &passed);
    const uint64_t block[8] = {(uint64_t)(uintptr_t)&second};
    const accrt_driver_command_t wait = direct_dispatch(d, &direct_gate, block, sizeof block);
    direct_enqueue(d, d->queue, &wait, NULL, 0, NULL, 0, &held_again);
    record_event(d, d->queue, event); /* behind the second gate */
    if (destroyed)
      d->table->event_destroy(event);
    assert_false(has_ended(&begun) || has_ended(&passed));
    let_go(&first);
    direct_await(d, &held);
    direct_await(d, &begun);
    direct_await(d, &passed);
    assert_int_equal(passed.status, ACCRT_OK);
    assert_false(has_ended(&held_again));
    if (!destroyed)
      assert_int_equal(d->table->event_query(event), ACCRT_ERROR_NOT_READY);
    let_go(&second);
    direct_await(d, &held_again);
    if (!destroyed) {
      assert_int_equal(reach(d, event), ACCRT_OK);
      d->table->event_destroy(event);
    }
    assert_false(atomic_load(&first.gave_up) || atomic_load(&second.gave_up));
    d->table->event_destroy(start);
    d->table->queue_destroy(other);
  }
}

/* An event may go while a record of it is in flight: who waits for the record still does, and what
 * is made next is another's. */
static void test_events_may_be_destroyed_in_flight(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_queue_t* queues[2] = {make_queue(d), make_queue(d)};
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  gate_t gate = {0};
  outcome_t held, passed;
  hold_up(d, d->queue, &gate, &held);
  accrt_driver_event_t* event = make_event(d, 0);
  record_event(d, d->queue, event);
  wait_event(d, queues[0], event);
  direct_enqueue(d, queues[0], &marker, NULL, 0, NULL, 0, &passed);
  d->table->event_destroy(event);
  for (int i = 0; i < 4; ++i) {
    event = make_event(d, 0);
    record_event(d, queues[1], event);
    assert_int_equal(reach(d, event), ACCRT_OK);
    d->table->event_destroy(event);
  }
  cts_sleep_ms(5);
  const bool early = has_ended(&passed);
  let_go(&gate);
  direct_await(d, &held);
  direct_await(d, &passed);
  assert_false(early);
  assert_int_equal(passed.status, ACCRT_OK);
  for (int i = 0; i < 2; ++i)
    d->table->queue_destroy(queues[i]);
}

/* A record behind a failure carries it: to the host, and to the queues that wait for it. */
static void test_events_carry_failures(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_queue_t* other = make_queue(d);
  accrt_driver_event_t* before = make_event(d, 0);
  accrt_driver_event_t* event = make_event(d, 0);
  direct_forget_calls();
  record_event(d, d->queue, before);
  (void)submit_quietly(d, d->queue, &bad, NULL);
  record_event(d, d->queue, event);
  wait_event(d, other, before);
  const uint64_t healthy = submit_quietly(d, other, &good, NULL);
  wait_for(d, other, healthy);
  wait_event(d, other, event);
  const uint64_t skipped = submit_quietly(d, other, &good, NULL);
  for (int turn = 0; turn < 2; ++turn) {
    direct_forget_failure();
    assert_int_equal(reach(d, event), ACCRT_ERROR_KERNEL);
    assert_non_null(strstr(direct_failure.message, "on purpose"));
    direct_forget_failure();
    assert_int_equal(d->table->event_query(event), ACCRT_ERROR_KERNEL);
    assert_int_equal(direct_failure.driver_code, 77);
  }
  assert_int_equal(d->table->event_query(before), ACCRT_OK);
  direct_forget_failure();
  assert_int_not_equal(d->table->queue_wait(other, skipped, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                       ACCRT_OK);
  assert_non_null(strstr(direct_failure.message, "on purpose"));
  assert_int_equal(direct_seen.calls, 1);
  /* The record keeps what it carries when the queue is healthy again; the next one is well. */
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  assert_int_equal(d->table->queue_reset(other), ACCRT_OK);
  assert_int_equal(d->table->event_query(event), ACCRT_ERROR_KERNEL);
  record_event(d, d->queue, event);
  assert_int_equal(reach(d, event), ACCRT_OK);
  wait_event(d, other, event);
  wait_for(d, other, submit_quietly(d, other, &good, NULL));
  assert_int_equal(direct_seen.calls, 2);
  d->table->event_destroy(before);
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
}

/* The time between two records is that of the device reaching them, with its sign. */
static void test_events_tell_the_time_between(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || (d->info.flags & ACCRT_DEVICE_FLAG_TIMESTAMPS) == 0) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_event_t* start = make_event(d, ACCRT_EVENT_FLAG_TIMING);
  accrt_driver_event_t* end = make_event(d, ACCRT_EVENT_FLAG_TIMING);
  const uint64_t block[8] = {0};
  const accrt_driver_command_t slow = direct_dispatch(d, &direct_take_long, block, sizeof block);
  const uint64_t begin = cts_now_ns();
  record_event(d, d->queue, start);
  for (int i = 0; i < 4; ++i)
    (void)submit_quietly(d, d->queue, &slow, NULL);
  record_event(d, d->queue, end);
  assert_int_equal(reach(d, end), ACCRT_OK);
  const int64_t whole = (int64_t)(cts_now_ns() - begin);
  int64_t forward = 0, backward = 0;
  assert_int_equal(d->table->event_elapsed(start, end, &forward), ACCRT_OK);
  assert_int_equal(d->table->event_elapsed(end, start, &backward), ACCRT_OK);
  assert_true(forward >= (int64_t)(8 * MILLISECOND) && forward <= whole);
  assert_true(backward == -forward);
  d->table->event_destroy(start);
  d->table->event_destroy(end);
}

static void test_events_are_waited_for_on_other_devices(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || d->table->device_count(d->driver) < 2) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_device_t* second = NULL;
  accrt_driver_queue_t* other = NULL;
  assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &second), ACCRT_OK);
  assert_int_equal(d->table->queue_create(second, 0, &other), ACCRT_OK);
  accrt_driver_event_t* event = make_event(d, 0);
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  gate_t gate = {0};
  outcome_t held, passed;
  if (runs_beside(d))
    hold_up(d, d->queue, &gate, &held);
  record_event(d, d->queue, event);
  wait_event(d, other, event);
  direct_enqueue(d, other, &marker, NULL, 0, NULL, 0, &passed);
  cts_sleep_ms(5);
  const bool early = runs_beside(d) && has_ended(&passed);
  let_go(&gate);
  direct_await(d, &passed);
  assert_false(early);
  assert_int_equal(passed.status, ACCRT_OK);
  if (runs_beside(d))
    direct_await(d, &held);
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
  d->table->device_close(second);
}

/* ---- Progress and events, further on ---- */

/* After a failure the number is that of the last that succeeded: on a queue on which nothing did,
 * below all. */
static void test_progress_stays_at_what_succeeded(void** state) {
  direct_t* d = *state;
  mishap_t mishap;
  if (!HAS(d, queue_progress) || !direct_make_mishap(d, &mishap)) {
    d->is_skipped = true;
    return;
  }
  for (int before = 0; before < 3; ++before) {
    accrt_driver_queue_t* queue = make_queue(d);
    atomic_fetch_add(&d->number, 100);
    uint64_t succeeded = 0;
    for (int i = 0; i < before; ++i)
      succeeded = direct_do_well(d, queue, &mishap);
    const uint64_t failed = direct_do_badly(d, queue, &mishap);
    const uint64_t behind = direct_do_behind(d, queue, &mishap, failed);
    assert_int_equal(d->table->queue_wait(queue, behind, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                     ACCRT_ERROR_KERNEL);
    uint64_t number = UINT64_MAX;
    assert_int_equal(d->table->queue_progress(queue, &number), ACCRT_ERROR_KERNEL);
    assert_true(number >= succeeded && number < failed);
    assert_int_equal(d->table->queue_reset(queue), ACCRT_OK);
    assert_true(ask(d, queue) >= behind);
    d->table->queue_destroy(queue);
  }
  direct_end_mishap(d, &mishap);
}

/* Failures go from queue to queue through events; an event that is recorded again, on another queue,
 * is that queue's. */
static void test_events_pass_from_queue_to_queue(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  accrt_driver_queue_t* queues[3] = {make_queue(d), make_queue(d), make_queue(d)};
  accrt_driver_event_t* events[3] = {make_event(d, 0), make_event(d, ACCRT_EVENT_FLAG_TIMING),
                                     make_event(d, 0)};
  direct_forget_calls();
  (void)submit_quietly(d, queues[0], &bad, NULL);
  record_event(d, queues[0], events[0]);
  for (int i = 1; i < 3; ++i) {
    wait_event(d, queues[i], events[i - 1]);
    (void)submit_quietly(d, queues[i], &good, NULL);
    record_event(d, queues[i], events[i]);
  }
  assert_int_equal(reach(d, events[2]), ACCRT_ERROR_KERNEL);
  assert_non_null(strstr(direct_failure.message, "on purpose"));
  assert_int_equal(direct_seen.calls, 0);
  for (int i = 0; i < 3; ++i) {
    outcome_t skipped, notice;
    direct_enqueue(d, queues[i], &good, NULL, 0, NULL, 0, &skipped);
    direct_notify(d, queues[i], &notice);
    direct_await(d, &skipped);
    direct_await(d, &notice);
    assert_int_equal(skipped.status, ACCRT_ERROR_POISONED);
    assert_int_equal(notice.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(d->table->queue_reset(queues[i]), ACCRT_OK);
  }
  /* A wait for a record that was reached with a failure fails too. */
  wait_event(d, queues[1], events[0]);
  const uint64_t number = submit_quietly(d, queues[1], &good, NULL);
  assert_int_equal(d->table->queue_wait(queues[1], number, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_KERNEL);
  assert_int_equal(d->table->queue_reset(queues[1]), ACCRT_OK);
  /* A wait behind a failure is skipped, as all else; one for an event that was never recorded is
   * nothing, on a queue that has had work. */
  (void)submit_quietly(d, queues[1], &bad, NULL);
  accrt_driver_event_t* fresh = make_event(d, 0);
  for (int i = 0; i < 3; ++i) {
    record_event(d, queues[2], fresh);
    wait_event(d, queues[1], fresh);
  }
  outcome_t told;
  direct_notify(d, queues[1], &told);
  direct_await(d, &told);
  assert_int_equal(told.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(d->table->queue_reset(queues[1]), ACCRT_OK);
  d->table->event_destroy(fresh);
  fresh = make_event(d, 0);
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 3; ++k)
      (void)submit_quietly(d, queues[1], &marker, NULL);
    direct_notify(d, queues[1], &told);
    direct_await(d, &told);
    assert_int_equal(told.status, ACCRT_OK);
    wait_event(d, queues[1], fresh);
  }
  d->table->event_destroy(fresh);
  /* The same event, twice on two queues, and waited for where it is recorded. */
  if (runs_beside(d)) {
    gate_t gate = {0};
    outcome_t held;
    hold_up(d, queues[0], &gate, &held);
    record_event(d, queues[0], events[0]);
    record_event(d, queues[1], events[0]);
    wait_event(d, queues[1], events[0]);
    const uint64_t last = submit_quietly(d, queues[1], &marker, NULL);
    wait_for(d, queues[1], last);
    assert_int_equal(reach(d, events[0]), ACCRT_OK);
    assert_false(has_ended(&held));
    let_go(&gate);
    direct_await(d, &held);
    assert_false(atomic_load(&gate.gave_up));
  }
  for (int i = 0; i < 3; ++i) {
    d->table->event_destroy(events[i]);
    d->table->queue_destroy(queues[i]);
  }
}

/* The time between records of two queues; and none without a record, or without the flag. */
static void test_times_between_queues(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || (d->info.flags & ACCRT_DEVICE_FLAG_TIMESTAMPS) == 0) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_queue_t* other = make_queue(d);
  accrt_driver_event_t* start = make_event(d, ACCRT_EVENT_FLAG_TIMING);
  accrt_driver_event_t* end = make_event(d, ACCRT_EVENT_FLAG_TIMING);
  int64_t elapsed = -1;
  for (int turn = 0; turn < 2; ++turn) { /* the second time they are recorded again */
    record_event(d, d->queue, start);
    assert_int_equal(reach(d, start), ACCRT_OK);
    const uint64_t begin = cts_now_ns();
    cts_sleep_ms(3);
    const int64_t least = (int64_t)(cts_now_ns() - begin);
    record_event(d, other, end);
    assert_int_equal(reach(d, end), ACCRT_OK);
    assert_int_equal(d->table->event_elapsed(start, end, &elapsed), ACCRT_OK);
    assert_true(elapsed >= least);
    assert_int_equal(d->table->event_elapsed(end, end, &elapsed), ACCRT_OK);
    assert_int_equal(elapsed, 0);
  }
  d->table->event_destroy(end);
  end = make_event(d, ACCRT_EVENT_FLAG_TIMING);
  elapsed = -1;
  assert_int_not_equal(d->table->event_elapsed(start, end, &elapsed), ACCRT_OK);
  assert_int_equal(elapsed, 0);
  d->table->event_destroy(start);
  d->table->event_destroy(end);
  d->table->queue_destroy(other);
}

const cts_test_t cts_direct_event_tests[] = {
    CTS_O(test_progress_counts_what_has_ended, CTS_NEEDS_TABLE),
    CTS_O(test_waits_end_with_the_work_or_the_time, KERNELS),
    CTS_O(test_progress_tells_failures_until_reset, CTS_NEEDS_TABLE),
    CTS_O(test_events_are_reached_behind_what_is_before, KERNELS),
    CTS_O(test_waits_are_for_the_record_of_their_time, KERNELS),
    CTS_O(test_events_may_be_destroyed_in_flight, KERNELS),
    CTS_O(test_events_carry_failures, KERNELS),
    CTS_O(test_events_tell_the_time_between, KERNELS),
    CTS_O(test_events_are_waited_for_on_other_devices, KERNELS),
    CTS_O(test_progress_stays_at_what_succeeded, CTS_NEEDS_TABLE),
    CTS_O(test_events_pass_from_queue_to_queue, KERNELS),
    CTS_O(test_times_between_queues, CTS_NEEDS_TABLE),
    CTS_END};
