/* tests/cts/direct_captures.c - more of the part `direct`: queues of other libraries, which are
 * wrapped, and which their owner may capture (hooks.h). The owner here is another queue of the
 * driver, whose native queue is wrapped.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

typedef struct wrapped {
  void* native;
  accrt_driver_queue_t* queue;
} wrapped_t;

/* False: the driver wraps no queues. */
static bool wrap(direct_t* d, wrapped_t* out_wrapped) {
  d->is_skipped = !HAS(d, queue_wrap);
  if (d->is_skipped)
    return false;
  out_wrapped->native = d->table->queue_native(d->queue);
  assert_non_null(out_wrapped->native);
  assert_int_equal(d->table->queue_wrap(d->device, out_wrapped->native, &out_wrapped->queue),
                   ACCRT_OK);
  assert_non_null(out_wrapped->queue);
  return true;
}

/* A queue that can be captured, and memory for its work. */
static bool set_up_capture(direct_t* d, wrapped_t* out_wrapped, memory_t* out_memory,
                           accrt_driver_binding_t* out_binding) {
  d->is_skipped = d->hooks.capture_begin == NULL;
  if (d->is_skipped || !wrap(d, out_wrapped))
    return false;
  *out_memory = direct_memory(d, 64);
  *out_binding = direct_binding(out_memory);
  return true;
}

/* The test needs more than there is. */
static void skip_wrapped(direct_t* d, const wrapped_t* wrapped) {
  d->table->queue_destroy(wrapped->queue);
  d->is_skipped = true;
}

static outcome_t* finish(direct_t* d, outcome_t* outcome) {
  direct_await(d, outcome);
  assert_int_equal(outcome->status, ACCRT_OK);
  return outcome;
}

/* ---- Wrapped queues ---- */

/* Both queues are one: work comes in the order of the calls. */
static void test_wrapped_queues_have_one_order(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  if (!wrap(d, &wrapped))
    return;
  memory_t memory = direct_memory(d, 4096);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  outcome_t outcomes[64];
  memset(memory.host, 0, 4096);
  memory.host[0] = 7;
  for (uint64_t i = 0; i < 64; ++i) {
    const accrt_driver_command_t copy = copy_command(0, 16 * i, 0, 16 * (i + 1), 16);
    const accrt_driver_binding_t bindings[1] = {binding};
    direct_enqueue(d, i % 3 == 0 ? d->queue : wrapped.queue, &copy, bindings, 1, NULL, 0,
                   &outcomes[i]);
  }
  for (int i = 0; i < 64; ++i) {
    finish(d, &outcomes[i]);
    assert_int_equal(memory.host[16 * (i + 1)], 7);
  }
  d->table->queue_destroy(wrapped.queue);
}

/* What one of the two is given waits for what the other has. */
static void test_wrapped_queues_wait_for_one_another(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  if (!wrap(d, &wrapped))
    return;
  if (!runs_beside(d)) {
    skip_wrapped(d, &wrapped);
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 5);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 0);
  for (int way = 0; way < 2; ++way) {
    accrt_driver_queue_t* const first = way == 0 ? d->queue : wrapped.queue;
    accrt_driver_queue_t* const second = way == 0 ? wrapped.queue : d->queue;
    gate_t gate = {0};
    outcome_t held, filled, notice;
    memset(memory.host, 0, 64);
    hold_up(d, first, &gate, &held);
    accrt_status_t ran = ACCRT_ERROR_NOT_READY, waited = ACCRT_ERROR_TIMEOUT;
    const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                  .binding_count = 1,
                                                  .bindings = &binding,
                                                  .number = next_number(d)};
    if (d->table->queue_run != NULL) /* the second has nothing of its own yet */
      ran = d->table->queue_run(second, list, &submission);
    direct_enqueue(d, second, &fill, &binding, 1, NULL, 0, &filled);
    direct_notify(d, second, &notice);
    uint64_t known = 0;
    if (HAS(d, queue_progress)) {
      known = ask(d, second);
      waited = d->table->queue_wait(second, filled.number, 5 * MILLISECOND, ACCRT_WAIT_BLOCK);
    }
    const bool early = has_ended(&filled) || has_ended(&notice) || memory.host[0] != 0;
    let_go(&gate);
    finish(d, &held);
    finish(d, &filled);
    finish(d, &notice);
    assert_false(early);
    assert_true(known < filled.number);
    assert_int_equal(waited, ACCRT_ERROR_TIMEOUT);
    assert_int_equal(ran, ACCRT_ERROR_NOT_READY);
    if (HAS(d, queue_progress)) {
      wait_for(d, second, filled.number);
      assert_int_equal(ask(d, second), filled.number);
      wait_for(d, first, held.number);
      assert_int_equal(ask(d, first), held.number);
    }
  }
  d->table->list_destroy(list);
  d->table->queue_destroy(wrapped.queue);
}

/* Work of the other that comes later has numbers of its own: nobody waits for it. */
static void test_numbers_are_each_wrapped_queue_s_own(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  if (!wrap(d, &wrapped))
    return;
  if (!runs_beside(d) || !HAS(d, queue_progress)) {
    skip_wrapped(d, &wrapped);
    return;
  }
  gate_t gate = {0};
  outcome_t first, held, between, last;
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "here"};
  direct_enqueue(d, wrapped.queue, &marker, NULL, 0, NULL, 0, &first);
  hold_up(d, d->queue, &gate, &held);
  direct_enqueue(d, d->queue, &marker, NULL, 0, NULL, 0, &between);
  direct_enqueue(d, wrapped.queue, &marker, NULL, 0, NULL, 0, &last);
  /* Of the wrapped queue's own, nothing up to that number is left. */
  const accrt_status_t waited = d->table->queue_wait(wrapped.queue, between.number,
                                                     direct_patience_ns() / 4, ACCRT_WAIT_BLOCK);
  const uint64_t known = ask(d, wrapped.queue);
  let_go(&gate);
  finish(d, &first);
  finish(d, &held);
  finish(d, &between);
  finish(d, &last);
  assert_int_equal(waited, ACCRT_OK);
  assert_int_equal(known, first.number);
  assert_false(atomic_load(&gate.gave_up));
  wait_for(d, wrapped.queue, last.number);
  assert_int_equal(ask(d, wrapped.queue), last.number);
  wait_for(d, d->queue, between.number);
  assert_int_equal(ask(d, d->queue), between.number);
  d->table->queue_destroy(wrapped.queue);
}

/* A wrapper goes, and the queue is its owner's as before; it may be wrapped again, also twice. */
static void test_wrapped_queues_are_lent(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped[2];
  for (int turn = 0; turn < 3; ++turn) {
    if (!wrap(d, &wrapped[0]) || !wrap(d, &wrapped[1]))
      return;
    const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "here"};
    outcome_t outcomes[3];
    assert_ptr_equal(d->table->queue_native(d->queue), wrapped[0].native);
    for (int i = 0; i < 2; ++i) {
      assert_ptr_equal(d->table->queue_native(wrapped[i].queue), wrapped[0].native);
      direct_enqueue(d, wrapped[i].queue, &marker, NULL, 0, NULL, 0, &outcomes[i]);
      finish(d, &outcomes[i]);
      d->table->queue_destroy(wrapped[i].queue);
    }
    direct_enqueue(d, d->queue, &marker, NULL, 0, NULL, 0, &outcomes[2]);
    finish(d, &outcomes[2]);
  }
}

/* A failure, and cancelling, are of the queue that they came to. */
static void test_wrapped_queues_fail_for_themselves(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  mishap_t mishap;
  if (!wrap(d, &wrapped))
    return;
  if (!direct_make_mishap(d, &mishap)) {
    skip_wrapped(d, &wrapped);
    return;
  }
  const uint32_t count = mishap.list != NULL;
  for (int way = 0; way < 2; ++way) {
    accrt_driver_queue_t* const bad = way == 0 ? wrapped.queue : d->queue;
    accrt_driver_queue_t* const good = way == 0 ? d->queue : wrapped.queue;
    outcome_t first, second, notice;
    if (mishap.list != NULL)
      direct_submit(d, bad, mishap.list, NULL, 0, NULL, 0, &first);
    else
      direct_enqueue(d, bad, &mishap.bad, NULL, 0, NULL, 0, &first);
    direct_enqueue(d, good, &mishap.good, &mishap.binding, count, NULL, 0, &second);
    direct_notify(d, bad, &notice);
    direct_await(d, &first);
    direct_await(d, &notice);
    finish(d, &second);
    assert_int_equal(first.status, ACCRT_ERROR_KERNEL);
    assert_int_not_equal(notice.status, ACCRT_OK);
    assert_int_equal(d->table->queue_reset(bad), ACCRT_OK);
    if (HAS(d, queue_cancel)) {
      d->table->queue_cancel(bad);
      direct_enqueue(d, bad, &mishap.good, &mishap.binding, count, NULL, 0, &first);
      direct_enqueue(d, good, &mishap.good, &mishap.binding, count, NULL, 0, &second);
      direct_await(d, &first);
      finish(d, &second);
      assert_int_equal(first.status, ACCRT_ERROR_CANCELLED);
      assert_int_equal(d->table->queue_reset(bad), ACCRT_OK);
    }
  }
  direct_end_mishap(d, &mishap);
  d->table->queue_destroy(wrapped.queue);
}

static void test_queues_of_other_devices_are_not_wrapped(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_wrap) || d->table->device_count(d->driver) < 2) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_device_t* other = NULL;
  assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &other), ACCRT_OK);
  accrt_driver_queue_t* queue = (accrt_driver_queue_t*)d;
  const long live = atomic_load(&d->live);
  direct_forget_failure();
  assert_int_equal(d->table->queue_wrap(other, d->table->queue_native(d->queue), &queue),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(queue);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(atomic_load(&d->live), live);
  d->table->device_close(other);
}

static void test_wrapping_without_host_memory(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_wrap)) {
    d->is_skipped = true;
    return;
  }
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long allowed = 0; allowed < 64 && status != ACCRT_OK; ++allowed) {
    const long live = atomic_load(&d->live);
    accrt_driver_queue_t* queue = (accrt_driver_queue_t*)d;
    void* native = d->table->queue_native(d->queue);
    direct_forget_failure();
    atomic_store(&d->allowed, allowed);
    status = d->table->queue_wrap(d->device, native, &queue);
    atomic_store(&d->allowed, LONG_MAX);
    if (status == ACCRT_OK) {
      d->table->queue_destroy(queue);
    } else {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_null(queue);
      if (d->library != NULL) /* built-in ones record it as the library does */
        assert_int_equal(direct_failure.status, ACCRT_ERROR_OUT_OF_MEMORY);
    }
    assert_int_equal(atomic_load(&d->live), live);
  }
  assert_int_equal(status, ACCRT_OK);
}

/* ---- Captures ---- */

static void check_refused(accrt_status_t status, const char* what) {
  if (status != ACCRT_ERROR_INVALID_STATE || direct_failure.status != status)
    fail_msg("%s on a captured queue gives %s, with a record of %s", what,
             accrt_status_name(status), accrt_status_name(direct_failure.status));
  direct_forget_failure();
}

/* Everything but lists; it changes nothing. */
static void check_all_refused(direct_t* d, const wrapped_t* wrapped, accrt_driver_event_t* event,
                              accrt_driver_event_t* recorded) {
  outcome_t outcomes[2];
  const accrt_driver_command_t fill = fill_command(0, 64, 0x77);
  const accrt_driver_binding_t binding = direct_binding(&d->memories[0]);
  const accrt_driver_table_t* table = d->table;
  const long live = atomic_load(&d->live);
  direct_forget_failure();
  accrt_driver_submission_t submission = direct_submission(d, &binding, 1, NULL, 0, &outcomes[0]);
  check_refused(table->queue_enqueue(wrapped->queue, &fill, &submission), "queue_enqueue");
  submission.completion = (accrt_driver_completion_t){NULL, NULL};
  check_refused(table->queue_enqueue(wrapped->queue, &fill, &submission), "queue_enqueue");
  memset(&outcomes[1], 0, sizeof outcomes[1]);
  check_refused(table->queue_notify(wrapped->queue, direct_completion(&outcomes[1])),
                "queue_notify");
  if (event != NULL) {
    check_refused(table->event_record(wrapped->queue, event), "event_record");
    check_refused(table->event_wait(wrapped->queue, recorded), "event_wait");
    check_refused(table->event_wait(wrapped->queue, event), "event_wait");
    assert_int_equal(table->event_query(event), ACCRT_OK); /* it was never recorded */
  }
  if (HAS(d, queue_launch) && (d->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0) {
    _Alignas(16) static const uint64_t params[8];
    const uint32_t grid[3] = {1, 1, 1};
    accrt_driver_launch_t* launch = make_launch(d, &direct_count);
    direct_forget_calls();
    check_refused(table->queue_launch(wrapped->queue, launch, grid, params, next_number(d)),
                  "queue_launch");
    d->table->launch_destroy(launch);
  }
  assert_false(has_ended(&outcomes[0]) || has_ended(&outcomes[1]));
  assert_int_equal(d->memories[0].host[0], 0);
  assert_int_equal(atomic_load(&d->live), live);
}

static void test_captured_queues_refuse_work(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  memory_t memory;
  accrt_driver_binding_t binding;
  if (!set_up_capture(d, &wrapped, &memory, &binding))
    return;
  const accrt_driver_command_t fill = fill_command(0, 64, 9);
  accrt_driver_event_t *event = NULL, *recorded = NULL;
  if (HAS(d, event_create)) {
    event = make_event(d, 0);
    recorded = make_event(d, 0);
    record_event(d, d->queue, recorded);
    assert_int_equal(reach(d, recorded), ACCRT_OK);
  }
  for (int turn = 0; turn < 3; ++turn) {
    outcome_t before, after, notice;
    direct_enqueue(d, wrapped.queue, &fill, &binding, 1, NULL, 0, &before);
    finish(d, &before);
    if (HAS(d, queue_progress))
      wait_for(d, wrapped.queue, before.number);
    memset(memory.host, 0, 64);
    d->hooks.capture_begin(wrapped.native);
    check_all_refused(d, &wrapped, event, recorded);
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), before.number); /* what it knows, and no failure */
    check_all_refused(d, &wrapped, event, recorded);
    assert_int_equal(d->hooks.capture_end(wrapped.native), 0);
    d->hooks.capture_forget(wrapped.native);
    /* As good as before: what was refused has not failed the queue, nor been counted. */
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), before.number);
    direct_enqueue(d, wrapped.queue, &fill, &binding, 1, NULL, 0, &after);
    direct_notify(d, wrapped.queue, &notice);
    finish(d, &after);
    finish(d, &notice);
    assert_int_equal(memory.host[63], 9);
    if (HAS(d, queue_progress))
      wait_for(d, wrapped.queue, after.number);
    if (event != NULL) {
      record_event(d, wrapped.queue, event);
      wait_event(d, wrapped.queue, event);
      assert_int_equal(reach(d, event), ACCRT_OK);
      d->table->event_destroy(event);
      event = make_event(d, 0);
    }
  }
  if (event != NULL) {
    d->table->event_destroy(event);
    d->table->event_destroy(recorded);
  }
  d->table->queue_destroy(wrapped.queue);
}

/* Executes without a listener. */
static accrt_status_t capture(direct_t* d, const wrapped_t* wrapped, accrt_driver_list_t* list,
                              const accrt_driver_binding_t* binding, uint64_t scalar,
                              uint64_t* out_number) {
  accrt_driver_binding_t bindings[2] = {*binding, *binding};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .binding_count = 2,
                                                .bindings = bindings,
                                                .scalars = &scalar,
                                                .scalar_count = 1,
                                                .number = next_number(d),
                                                .stream_id = DIRECT_STREAM_ID};
  *out_number = submission.number;
  direct_forget_failure();
  const accrt_status_t status = d->table->queue_execute(wrapped->queue, list, &submission);
  memset(bindings, 0xFF, sizeof bindings);
  scalar = UINT64_MAX;
  if (status != ACCRT_OK)
    check_refused(status, "queue_execute");
  return status;
}

/* A list becomes part of the capture and runs when that does; its number is over at once. */
static void test_captured_queues_take_lists(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  memory_t memory;
  accrt_driver_binding_t binding;
  if (!set_up_capture(d, &wrapped, &memory, &binding))
    return;
  const uint32_t before = 0;
  accrt_driver_command_t commands[2] = {fill_command(0, 8, 4), copy_command(0, 0, 0, 8, 8)};
  commands[0].as.fill.target.offset = direct_scalar(0, 0);
  commands[1].predecessors = &before;
  commands[1].predecessor_count = 1;
  accrt_driver_list_t* first = direct_list(d, commands, 2, 2, 1);
  commands[0].as.fill.pattern = 5;
  accrt_driver_list_t* second = direct_list(d, commands, 1, 2, 1);
  uint64_t numbers[2] = {0, 0};
  d->hooks.capture_begin(wrapped.native);
  accrt_status_t status = capture(d, &wrapped, first, &binding, 0, &numbers[0]);
  const bool is_taken = status == ACCRT_OK;
  if (is_taken) {
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), numbers[0]);
    assert_int_equal(capture(d, &wrapped, second, &binding, 32, &numbers[1]), ACCRT_OK);
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), numbers[1]);
  }
  cts_sleep_ms(5);
  for (int i = 0; i < 64; ++i)
    assert_int_equal(memory.host[i], 0);
  assert_int_equal(d->hooks.capture_end(wrapped.native), is_taken ? 3 : 0);
  for (int replay = 0; is_taken && replay < 2; ++replay) {
    memset(memory.host, 0, 64);
    assert_int_equal(d->hooks.capture_replay(wrapped.native), ACCRT_OK);
    assert_int_equal(memory.host[0], 4);
    assert_int_equal(memory.host[15], 4);
    assert_int_equal(memory.host[16], 0);
    assert_int_equal(memory.host[32], 5);
    assert_int_equal(memory.host[39], 5);
  }
  d->hooks.capture_forget(wrapped.native);
  /* Outside of captures it runs at once. */
  outcome_t outcome;
  const accrt_driver_binding_t bindings[2] = {binding, binding};
  const uint64_t place = 48;
  memset(memory.host, 0, 64);
  direct_submit(d, wrapped.queue, second, bindings, 2, &place, 1, &outcome);
  finish(d, &outcome);
  assert_int_equal(memory.host[48], 5);
  assert_int_equal(memory.host[32], 0);
  d->table->list_destroy(first);
  d->table->list_destroy(second);
  d->table->queue_destroy(wrapped.queue);
}

/* What is in flight when the capture begins ends first: numbers are over in their order. */
static void test_captured_numbers_wait_for_what_is_before(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  memory_t memory;
  accrt_driver_binding_t binding;
  if (!set_up_capture(d, &wrapped, &memory, &binding))
    return;
  if (!runs_beside(d) || !HAS(d, queue_progress)) {
    skip_wrapped(d, &wrapped);
    return;
  }
  const accrt_driver_command_t fill = fill_command(0, 64, 3);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 2, 1);
  for (int turn = 0; turn < 2; ++turn) {
    gate_t gate = {0};
    outcome_t held;
    uint64_t number = 0;
    hold_up(d, wrapped.queue, &gate, &held);
    d->hooks.capture_begin(wrapped.native);
    const accrt_status_t status = capture(d, &wrapped, list, &binding, 0, &number);
    const uint64_t known = ask(d, wrapped.queue);
    (void)d->hooks.capture_end(wrapped.native);
    d->hooks.capture_forget(wrapped.native);
    let_go(&gate);
    finish(d, &held);
    assert_true(known < held.number);
    const uint64_t last = status == ACCRT_OK ? number : held.number;
    wait_for(d, wrapped.queue, last);
    assert_int_equal(ask(d, wrapped.queue), last);
    assert_int_equal(memory.host[0], 0);
  }
  d->table->list_destroy(list);
  d->table->queue_destroy(wrapped.queue);
}

/* ---- Operators in captures ---- */

static uint32_t executions;
static const direct_t* bench;

static int32_t execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  ++executions;
  const uint64_t address = *(const uint64_t*)call->params;
  return bench->hooks.enqueue_fill(call->stream, address, 8, 0x44);
}

static const accrt_operator_def_t capturable_def = {.struct_size = (uint32_t)sizeof capturable_def,
                                                    .traits = ACCRT_KERNEL_TRAIT_CAPTURABLE,
                                                    .name = "direct.capturable",
                                                    .params_size_bytes = 8,
                                                    .execute = execute};
static const accrt_operator_def_t uncapturable_def = {.struct_size =
                                                          (uint32_t)sizeof uncapturable_def,
                                                      .name = "direct.uncapturable",
                                                      .params_size_bytes = 8,
                                                      .execute = execute};

/* An operator is called when it is captured, and not when the capture runs; one without the trait
 * is not called, and its list is refused. */
static void test_operators_are_called_to_be_captured(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  memory_t memory;
  accrt_driver_binding_t binding;
  if (d->hooks.enqueue_fill == NULL || !set_up_capture(d, &wrapped, &memory, &binding)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_operator_t operations[2] = {{&capturable_def, &direct_environment},
                                                 {&uncapturable_def, &direct_environment}};
  const accrt_driver_patch_t patch = {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
                                      .size_bytes = 8,
                                      .range =
                                          direct_range(0, direct_constant(8), direct_constant(8))};
  const uint64_t template = 0;
  const uint32_t before[3] = {0, 0, 1};
  bench = d;
  for (int can = 1; can >= 0; --can) {
    accrt_driver_command_t commands[3] = {fill_command(0, 8, 1),
                                          {.opcode = ACCRT_DRIVER_COMMAND_OPERATOR},
                                          copy_command(0, 8, 0, 16, 8)};
    commands[1].as.invoke = (accrt_driver_invoke_t){
        .operation = &operations[1 - can],
        .params = &template,
        .params_size_bytes = 8,
        .patch_count = 1,
        .patches = &patch,
        .workspace = direct_range(ACCRT_DRIVER_NONE, direct_constant(0), direct_constant(0))};
    for (int i = 1; i < 3; ++i) {
      commands[i].predecessors = &before[i];
      commands[i].predecessor_count = 1;
    }
    accrt_driver_list_t* list = direct_list(d, commands, 3, 2, 1);
    uint64_t number = 0;
    executions = 0;
    memset(memory.host, 0, 64);
    const uint64_t known = HAS(d, queue_progress) ? ask(d, wrapped.queue) : 0;
    d->hooks.capture_begin(wrapped.native);
    const bool is_taken = capture(d, &wrapped, list, &binding, 0, &number) == ACCRT_OK;
    assert_true(!is_taken || can);
    assert_int_equal(executions, is_taken);
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), is_taken ? number : known);
    assert_int_equal(memory.host[8], 0);
    assert_int_equal(d->hooks.capture_end(wrapped.native), is_taken ? 3 : 0);
    for (int replay = 0; is_taken && replay < 2; ++replay) {
      memset(memory.host, 0, 64);
      assert_int_equal(d->hooks.capture_replay(wrapped.native), ACCRT_OK);
      assert_int_equal(memory.host[7], 1);
      assert_int_equal(memory.host[15], 0x44);
      assert_int_equal(memory.host[23], 0x44);
      assert_int_equal(executions, 1);
    }
    d->hooks.capture_forget(wrapped.native);
    d->table->list_destroy(list);
  }
  d->table->queue_destroy(wrapped.queue);
}

/* A capture that lacks host memory has all of a list or nothing. */
static void test_captures_without_host_memory(void** state) {
  direct_t* d = *state;
  wrapped_t wrapped;
  memory_t memory;
  accrt_driver_binding_t binding;
  if (!set_up_capture(d, &wrapped, &memory, &binding))
    return;
  const accrt_driver_command_t commands[2] = {fill_command(0, 8, 4), fill_command(8, 8, 4)};
  accrt_driver_list_t* list = direct_list(d, commands, 2, 2, 1);
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long allowed = 0; allowed < 64 && status == ACCRT_ERROR_OUT_OF_MEMORY; ++allowed) {
    const long live = atomic_load(&d->live);
    const uint64_t known = HAS(d, queue_progress) ? ask(d, wrapped.queue) : 0;
    const accrt_driver_binding_t bindings[2] = {binding, binding};
    const uint64_t none = 0;
    const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                  .binding_count = 2,
                                                  .bindings = bindings,
                                                  .scalars = &none,
                                                  .scalar_count = 1,
                                                  .number = next_number(d)};
    d->hooks.capture_begin(wrapped.native);
    atomic_store(&d->allowed, allowed);
    status = d->table->queue_execute(wrapped.queue, list, &submission);
    atomic_store(&d->allowed, LONG_MAX);
    if (HAS(d, queue_progress))
      assert_int_equal(ask(d, wrapped.queue), status == ACCRT_OK ? submission.number : known);
    assert_int_equal(d->hooks.capture_end(wrapped.native), status == ACCRT_OK ? 2 : 0);
    d->hooks.capture_forget(wrapped.native);
    assert_int_equal(atomic_load(&d->live), live);
  }
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_INVALID_STATE);
  d->table->list_destroy(list);
  d->table->queue_destroy(wrapped.queue);
}

#define NEEDS (CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY)
const cts_test_t cts_direct_capture_tests[] = {
    CTS_O(test_wrapped_queues_have_one_order, CTS_NEEDS_TABLE),
    CTS_O(test_wrapped_queues_wait_for_one_another, CTS_NEEDS_TABLE),
    CTS_O(test_numbers_are_each_wrapped_queue_s_own, CTS_NEEDS_TABLE),
    CTS_O(test_wrapped_queues_are_lent, CTS_NEEDS_TABLE),
    CTS_O(test_wrapped_queues_fail_for_themselves, CTS_NEEDS_TABLE),
    CTS_O(test_queues_of_other_devices_are_not_wrapped, CTS_NEEDS_TABLE),
    CTS_O(test_wrapping_without_host_memory, CTS_NEEDS_TABLE),
    CTS_O(test_captured_queues_refuse_work, NEEDS),
    CTS_O(test_captured_queues_take_lists, NEEDS),
    CTS_O(test_captured_numbers_wait_for_what_is_before, NEEDS),
    CTS_O(test_operators_are_called_to_be_captured, NEEDS),
    CTS_O(test_captures_without_host_memory, NEEDS),
    CTS_END};
