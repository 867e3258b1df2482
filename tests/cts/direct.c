/* tests/cts/direct.c - the driver's table, called as the runtime calls it: what programs need of a
 * driver and what no public function leads to (absent buffers, operators, traces, the floating-point
 * environment), and what common code would hide (a completion too many, an allocation lost). Other
 * files of the part have names that begin with direct_.
 *
 * It runs for drivers in a file of their own (--driver /path/libaccrt_NAME.so), for the null driver,
 * and for the built-in ones where the suite is linked with the static library. It may include public
 * headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <fenv.h>

/* ---- Order ---- */

static void test_commands_follow_what_they_name(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 16 * 32);
  accrt_driver_command_t commands[32];
  uint32_t before[32];
  memset(commands, 0, sizeof commands);
  for (uint32_t i = 0; i < 31; ++i) {
    commands[i].opcode = i % 8 == 7 ? ACCRT_DRIVER_COMMAND_BARRIER : ACCRT_DRIVER_COMMAND_COPY;
    before[i] = i - 1;
    if (i > 0 && i % 8 != 7) {
      commands[i].predecessors = &before[i];
      commands[i].predecessor_count = 1;
    }
    accrt_driver_copy_t* copy = &commands[i].as.copy;
    const uint64_t at = i % 8 == 7 ? 0 : i - i / 8;
    copy->source = direct_range(0, direct_constant(16 * at), direct_constant(16));
    copy->target = direct_range(0, direct_constant(16 * (at + 1)), direct_constant(16));
    copy->extent[0] = direct_constant(16);
    copy->extent[1] = copy->extent[2] = direct_constant(1);
    for (int k = 0; k < 2; ++k)
      copy->source_stride_bytes[k] = copy->target_stride_bytes[k] = direct_constant(0);
  }
  commands[31].opcode = ACCRT_DRIVER_COMMAND_MARKER;
  commands[31].name = "the end";
  accrt_driver_list_t* list = direct_list(d, commands, 32, 1, 0);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  for (unsigned run = 1; run < 4; ++run) {
    memset(memory.host, 0, 16 * 32);
    memset(memory.host, (int)(0x30 + run), 16);
    direct_execute(d, list, &binding, 1, NULL, 0);
    for (size_t i = 0; i < 16 * 28; ++i)
      assert_int_equal(memory.host[i], 0x30 + run);
  }
  d->table->list_destroy(list);
}

/* A list is what it was when it was made, whatever becomes of the struct that described it. */
static void test_lists_keep_no_description(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_constant(0), direct_constant(64)),
                            .pattern = 0x77,
                            .pattern_bytes = 1};
  uint32_t flags[1] = {ACCRT_DRIVER_BINDING_STABLE};
  accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                   .command_count = 1,
                                   .commands = &command,
                                   .binding_count = 1,
                                   .binding_flags = flags,
                                   .name = "described"};
  accrt_driver_list_t* list = NULL;
  assert_int_equal(d->table->list_create(d->device, &info, &list), ACCRT_OK);
  memset(&info, 0xFF, sizeof info);
  flags[0] = UINT32_MAX;
  memset(to.host, 0, 64);
  const accrt_driver_binding_t binding = direct_binding(&to);
  direct_execute(d, list, &binding, 1, NULL, 0);
  for (size_t i = 0; i < 64; ++i)
    assert_int_equal(to.host[i], 0x77);
  d->table->list_destroy(list);
}

static void test_empty_lists(void** state) {
  direct_t* d = *state;
  accrt_driver_list_t* list = direct_list(d, NULL, 0, 0, 0);
  direct_execute(d, list, NULL, 0, NULL, 0);
  d->table->list_destroy(list);
}

/* ---- Completions ---- */

static void test_completions_come_once_in_order_with_a_time(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_constant(0), direct_constant(64)), .pattern_bytes = 1};
  const accrt_driver_binding_t binding = direct_binding(&to);
  outcome_t outcomes[16];
  const uint64_t begin = cts_now_ns();
  for (size_t i = 0; i < 16; ++i)
    direct_enqueue(d, d->queue, &command, &binding, 1, NULL, 0, &outcomes[i]);
  for (size_t i = 0; i < 16; ++i)
    direct_await(d, &outcomes[i]);
  cts_sleep_ms(5);
  const uint64_t end = cts_now_ns();
  for (size_t i = 0; i < 16; ++i) {
    assert_int_equal(atomic_load(&outcomes[i].times), 1);
    assert_int_equal(outcomes[i].status, ACCRT_OK);
    assert_false(outcomes[i].had_error);
    assert_true(outcomes[i].time_ns >= begin && outcomes[i].time_ns <= end);
    assert_true(i == 0 || outcomes[i].order > outcomes[i - 1].order);
    assert_true(i == 0 || outcomes[i].time_ns >= outcomes[i - 1].time_ns);
  }
}

/* A completion may enqueue more: the driver holds no lock then. */
static void test_completions_may_enqueue(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  chain_t chain = {.bench = d, .left = 8, .binding = direct_binding(&to)};
  memset(to.host, 0, 64);
  direct_chain(&chain);
  direct_await(d, &chain.last);
  assert_int_equal(to.host[0], 1);
  assert_int_equal(atomic_load(&chain.ended), 8);
}

static void test_notices_come_behind_all_before(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 1 << 16);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_constant(0), direct_constant(1 << 16)),
                            .pattern = 3,
                            .pattern_bytes = 1};
  const accrt_driver_binding_t binding = direct_binding(&to);
  outcome_t work, notice;
  direct_enqueue(d, d->queue, &command, &binding, 1, NULL, 0, &work);
  direct_notify(d, d->queue, &notice);
  direct_await(d, &notice);
  assert_int_equal(notice.status, ACCRT_OK);
  assert_int_equal(to.host[(1 << 16) - 1], 3);
  direct_await(d, &work);
  assert_true(work.order < notice.order);
}

/* Nothing that may block is done while work is handed over: what the kernel waits for comes after the call has returned. */
static void test_enqueuing_does_not_block(void** state) {
  direct_t* d = *state;
  if ((d->info.flags & ACCRT_DEVICE_FLAG_ENQUEUE_RUNS) != 0) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_command_t command = direct_dispatch(d, &direct_wait_for_the_host, NULL, 0);
  for (uint32_t i = 0; i < 3; ++i)
    command.as.dispatch.grid[i] = direct_constant(1);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  for (int way = 0; way < 2; ++way) {
    direct_close_gate();
    outcome_t outcome;
    if (way == 0)
      direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
    const bool returned_first = direct_open_gate();
    direct_await(d, &outcome);
    assert_true(returned_first);
  }
  d->table->list_destroy(list);
}

/* ---- Failures ---- */

static void test_failures_have_a_record_and_stay(void** state) {
  direct_t* d = *state;
  accrt_driver_queue_t* other = NULL;
  assert_int_equal(d->table->queue_create(d->device, 0, &other), ACCRT_OK);
  accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  for (uint32_t i = 0; i < 3; ++i)
    bad.as.dispatch.grid[i] = good.as.dispatch.grid[i] = direct_constant(1);
  accrt_driver_list_t* list = direct_list(d, &bad, 1, 0, 0);
  for (int way = 0; way < 2; ++way) {
    direct_forget_calls();
    outcome_t first, skipped, notice, healthy, again;
    if (way == 0)
      direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &first);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &first);
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &skipped);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &first);
    direct_await(d, &skipped);
    direct_await(d, &notice);
    assert_int_equal(first.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(first.error.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(first.error.driver_code, 77);
    assert_int_equal(first.error.submission, first.number);
    assert_true(first.error.operation[0] != '\0');
    assert_non_null(strstr(first.error.message, "direct.fail"));
    assert_non_null(strstr(first.error.message, "on purpose"));
    assert_null(strchr(first.error.message, '\n'));
    assert_int_equal(skipped.status, ACCRT_ERROR_POISONED);
    assert_int_equal(direct_seen.calls, 0);
    assert_true(notice.status == ACCRT_ERROR_KERNEL || notice.status == ACCRT_ERROR_POISONED);
    assert_true(notice.had_error && strstr(notice.error.message, "direct.fail") != NULL);
    direct_enqueue(d, other, &good, NULL, 0, NULL, 0, &healthy);
    direct_await(d, &healthy);
    assert_int_equal(healthy.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 1);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &again);
    direct_await(d, &again);
    assert_int_equal(again.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 2);
  }
  d->table->list_destroy(list);
  d->table->queue_destroy(other);
}

/* A list that runs on the caller (optional): its failure is the call's own, and its completion is not called. */
static void test_lists_run_on_the_caller(void** state) {
  direct_t* d = *state;
  if (d->table->queue_run == NULL) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  for (uint32_t i = 0; i < 3; ++i)
    bad.as.dispatch.grid[i] = good.as.dispatch.grid[i] = direct_constant(1);
  accrt_driver_list_t* lists[2] = {direct_list(d, &good, 1, 0, 0), direct_list(d, &bad, 1, 0, 0)};
  direct_forget_calls();
  outcome_t outcome;
  accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &outcome);
  assert_int_equal(d->table->queue_run(d->queue, lists[0], &submission), ACCRT_OK);
  assert_int_equal(d->table->queue_run(d->queue, lists[1], &submission), ACCRT_ERROR_KERNEL);
  assert_int_equal(direct_failure.driver_code, 77);
  assert_int_equal(d->table->queue_run(d->queue, lists[0], &submission), ACCRT_OK);
  assert_int_equal(atomic_load(&outcome.times), 0);
  assert_int_equal(direct_seen.calls, 2);
  for (int i = 0; i < 2; ++i)
    d->table->list_destroy(lists[i]);
}

/* ---- Kernels ---- */

static void test_what_kernels_find(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = direct_dispatch(d, &direct_look_around, NULL, 0);
  command.as.dispatch.grid[0] = direct_constant(5);
  command.as.dispatch.grid[1] = direct_constant(3);
  command.as.dispatch.grid[2] = direct_constant(2);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  direct_forget_calls();
  direct_execute(d, list, NULL, 0, NULL, 0);
  assert_int_equal(direct_seen.calls, 30);
  assert_string_equal(direct_seen.wrong, "");
  d->table->list_destroy(list);
}

/* Whatever the submitting thread has done to its own, before or after the queue was made, kernels
 * round to nearest, keep denormals and trap nothing; and the thread finds its own again. */
static void test_floating_point_environment(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = direct_dispatch(d, &direct_calculate, NULL, 0);
  for (uint32_t i = 0; i < 3; ++i)
    command.as.dispatch.grid[i] = direct_constant(1);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  fenv_t before;
  fegetenv(&before);
  for (int way = 0; way < 6; ++way) {
    direct_forget_calls();
    direct_spoil_floats();
    accrt_driver_queue_t* queue = d->queue;
    const bool is_new = way >= 3;
    if (is_new && d->table->queue_create(d->device, 0, &queue) != ACCRT_OK)
      queue = NULL;
    outcome_t outcome;
    bool ran = queue != NULL;
    if (ran && way % 3 == 0) {
      direct_enqueue(d, queue, &command, NULL, 0, NULL, 0, &outcome);
    } else if (ran && way % 3 == 1) {
      direct_submit(d, queue, list, NULL, 0, NULL, 0, &outcome);
    } else if (ran) {
      accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &outcome);
      ran = d->table->queue_run != NULL;
      if (ran)
        ran = d->table->queue_run(queue, list, &submission) == ACCRT_OK;
    }
    if (queue != NULL && way % 3 < 2)
      direct_await(d, &outcome);
    const bool kept = direct_floats_are_spoilt();
    fesetenv(&before);
    assert_non_null(queue);
    assert_true(kept);
    if (ran)
      assert_string_equal(direct_seen.wrong, "");
    assert_int_equal(direct_seen.calls, ran ? 1 : 0);
    if (is_new)
      d->table->queue_destroy(queue);
  }
  d->table->list_destroy(list);
}

static void test_serial_kernels_run_in_order(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = direct_dispatch(d, &direct_in_order, NULL, 0);
  command.as.dispatch.grid[0] = direct_constant(7);
  command.as.dispatch.grid[1] = direct_constant(5);
  command.as.dispatch.grid[2] = direct_constant(3);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  for (int run = 0; run < 3; ++run) {
    direct_forget_calls();
    direct_execute(d, list, NULL, 0, NULL, 0);
    assert_int_equal(direct_seen.calls, 105);
    assert_string_equal(direct_seen.wrong, "");
  }
  d->table->list_destroy(list);
}

/* ---- Operators ---- */

/* An operator runs at its place in the list, with its block and workspace, as often as the list; or the list is refused by name. */
static void test_operators_run_or_are_refused(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 1024);
  uint64_t block[2] = {0, 5};
  accrt_driver_patch_t patches[2] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(32), direct_constant(8))},
      {.kind = ACCRT_DRIVER_PATCH_VALUE,
       .offset_bytes = 8,
       .size_bytes = 8,
       .value = direct_scalar(0, 0)}};
  static const accrt_driver_operator_t operation = {&direct_operator, &direct_environment};
  accrt_driver_command_t commands[3];
  uint32_t first = 0, second = 1;
  memset(commands, 0, sizeof commands);
  commands[0].opcode = commands[2].opcode = ACCRT_DRIVER_COMMAND_FILL;
  for (int i = 0; i < 3; i += 2) {
    commands[i].as.fill = (accrt_driver_fill_t){
        .target = direct_range(0, direct_constant(i == 0 ? 32 : 40), direct_constant(8)),
        .pattern = i == 0 ? 100 : 1,
        .pattern_bytes = 8};
  }
  commands[1].opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  commands[1].predecessors = &first;
  commands[2].predecessors = &second;
  commands[1].predecessor_count = commands[2].predecessor_count = 1;
  commands[1].as.invoke = (accrt_driver_invoke_t){
      .operation = &operation,
      .params = block,
      .params_size_bytes = sizeof block,
      .patch_count = 2,
      .patches = patches,
      .workspace = direct_range(1, direct_constant(256), direct_constant(256))};
  direct_forget_calls();
  accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                   .command_count = 3,
                                   .commands = commands,
                                   .binding_count = 2,
                                   .scalar_count = 1};
  accrt_driver_list_t* list = NULL;
  const accrt_status_t status = d->table->list_create(d->device, &info, &list);
  if (status == ACCRT_ERROR_UNSUPPORTED) {
    assert_null(list);
    assert_int_equal(direct_failure.status, ACCRT_ERROR_UNSUPPORTED);
    assert_non_null(strstr(direct_failure.message, "direct.operator"));
    assert_int_equal(direct_seen.prepared + direct_seen.executed + direct_seen.destroyed, 0);
    return;
  }
  assert_int_equal(status, ACCRT_OK);
  assert_int_equal(direct_seen.prepared, 1);
  assert_int_equal(direct_seen.executed, 0);
  for (uint64_t run = 1; run < 4; ++run) {
    const accrt_driver_binding_t bindings[2] = {direct_binding(&memory), direct_binding(&memory)};
    memset(memory.host, 0, 64);
    direct_execute(d, list, bindings, 2, &run, 1);
    assert_int_equal(direct_seen.executed, run);
    assert_string_equal(direct_seen.wrong, "");
    assert_ptr_equal(direct_seen.workspace, (void*)(uintptr_t)(memory.own.device_address + 256));
    /* 100 by the fill before it, and the scalar; what came behind it ran. */
    assert_int_equal(*(uint64_t*)(void*)(memory.host + 32), 100 + run);
    assert_int_equal(*(uint64_t*)(void*)(memory.host + 40), 1);
  }
  d->table->list_destroy(list);
  assert_int_equal(direct_seen.destroyed, 1);
}

/* ---- Traces ---- */

static void check_traces(direct_t* d, const char* const* names, uint32_t count, uint64_t number) {
  uint32_t found = 0;
  const uint64_t now = cts_now_ns();
  for (uint32_t i = 0; i < atomic_load(&d->trace_count); ++i) {
    const trace_t* trace = &d->traces[i];
    if (trace->event.submission != number)
      continue;
    assert_int_equal(trace->event.kind, ACCRT_TRACE_COMMAND);
    assert_int_equal(trace->event.status, ACCRT_OK);
    assert_int_equal(trace->event.stream_id, DIRECT_STREAM_ID);
    assert_true(trace->event.begin_ns <= trace->event.end_ns && trace->event.end_ns <= now);
    assert_true(trace->event.begin_ns != 0);
    bool is_known = false;
    for (uint32_t k = 0; k < count; ++k)
      is_known |= strcmp(trace->name, names[k]) == 0;
    if (!is_known)
      print_error("a trace is called '%s'\n", trace->name);
    assert_true(is_known);
    ++found;
  }
  assert_int_equal(found, count);
}

static void test_each_command_is_traced(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  accrt_driver_command_t commands[3] = {direct_dispatch(d, &direct_count, NULL, 0),
                                        direct_dispatch(d, &direct_count, NULL, 0),
                                        {.opcode = ACCRT_DRIVER_COMMAND_FILL, .name = "clear"}};
  for (uint32_t i = 0; i < 3; ++i)
    commands[0].as.dispatch.grid[i] = commands[1].as.dispatch.grid[i] = direct_constant(1);
  commands[1].name = "the second";
  commands[2].as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_constant(0), direct_constant(64)), .pattern_bytes = 1};
  accrt_driver_list_t* list = direct_list(d, commands, 3, 1, 0);
  const accrt_driver_binding_t binding = direct_binding(&to);
  outcome_t whole, alone;
  direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &whole);
  direct_enqueue(d, d->queue, &commands[1], &binding, 1, NULL, 0, &alone);
  direct_await(d, &whole);
  direct_await(d, &alone);
  check_traces(d, (const char* const[]){"direct.count", "the second", "clear"}, 3, whole.number);
  check_traces(d, (const char* const[]){"the second"}, 1, alone.number);
  d->table->list_destroy(list);
}

static void test_nothing_is_traced_unasked(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_constant(0), direct_constant(64)), .pattern_bytes = 1};
  const accrt_driver_binding_t binding = direct_binding(&to);
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, &binding, 1, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(atomic_load(&d->trace_count), 0);
}

static void test_other_versions_are_refused(void** state) {
  direct_t* d = *state;
  assert_null(d->query((uint32_t)((ACCRT_DRIVER_ABI_MAJOR + 1) << 16)));
  const accrt_driver_table_t* table = d->query(ACCRT_DRIVER_ABI_VERSION + 1);
  assert_non_null(table);
  assert_int_equal(table->abi_version >> 16, ACCRT_DRIVER_ABI_MAJOR);
  assert_true(table->abi_version <= ACCRT_DRIVER_ABI_VERSION);
  assert_true(table->struct_size >= offsetof(accrt_driver_table_t, queue_progress) &&
              table->struct_size % 8 == 0);
}

/* Several queues at once, from several threads. */
static void test_queues_work_side_by_side(void** state) {
  direct_t* d = *state;
  worker_t workers[4];
  for (uint32_t i = 0; i < 4; ++i) {
    workers[i] = (worker_t){.bench = d, .seed = i + 1, .memory = direct_memory(d, 4096)};
    assert_int_equal(d->table->queue_create(d->device, 0, &workers[i].queue), ACCRT_OK);
    assert_int_equal(pthread_create(&workers[i].thread, NULL, direct_work, &workers[i]), 0);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    pthread_join(workers[i].thread, NULL);
    d->table->queue_destroy(workers[i].queue);
    assert_true(workers[i].is_right);
  }
}

/* ---- What two queues may not share, what is not usual ---- */

/* The time is the end's: not before the kernel's last act, not after the completion. */
static void test_times_are_of_the_end(void** state) {
  direct_t* d = *state;
  for (int fails = 0; fails < 2; ++fails) {
    accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_count, NULL, 0),
                                          direct_dispatch(d, &direct_take_long, &fails, 4)};
    accrt_driver_list_t* list = direct_list(d, commands, 2, 0, 0);
    for (int way = 0; way < 2; ++way) {
      outcome_t outcome, notice;
      if (way == 0)
        direct_enqueue(d, d->queue, &commands[1], NULL, 0, NULL, 0, &outcome);
      else
        direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
      direct_notify(d, d->queue, &notice);
      direct_await(d, &outcome);
      direct_await(d, &notice);
      assert_int_equal(outcome.status, fails ? ACCRT_ERROR_KERNEL : ACCRT_OK);
      assert_true(outcome.time_ns >= direct_seen.ended_ns && outcome.time_ns <= cts_now_ns());
      assert_true(notice.time_ns >= outcome.time_ns && notice.time_ns <= cts_now_ns());
      assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    }
    d->table->list_destroy(list);
  }
}

/* When the completion of what failed is called, the queue has failed: what it enqueues is skipped. */
static void test_a_failing_completion_finds_a_failed_queue(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  reaction_t reaction = {.bench = d};
  direct_forget_calls();
  direct_enqueue_with_reaction(&reaction, &bad);
  direct_await(d, &reaction.outcome);
  assert_int_equal(reaction.outcome.status, ACCRT_ERROR_POISONED);
  assert_int_equal(direct_seen.calls, 0);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
}

/* What has nothing to do is skipped behind a failure like all else. */
static void test_empty_work_behind_a_failure_is_poisoned(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_command_t idle[5];
  memset(idle, 0, sizeof idle);
  idle[0].opcode = ACCRT_DRIVER_COMMAND_MARKER;
  idle[0].name = "nothing";
  idle[1].opcode = ACCRT_DRIVER_COMMAND_BARRIER;
  idle[2] = direct_dispatch(d, &direct_count, NULL, 0);
  idle[2].as.dispatch.grid[1] = direct_constant(0);
  idle[3].opcode = ACCRT_DRIVER_COMMAND_COPY;
  accrt_driver_copy_t* copy = &idle[3].as.copy;
  copy->source = copy->target = direct_range(0, direct_constant(0), direct_constant(0));
  for (int i = 0; i < 3; ++i)
    copy->extent[i] = direct_constant(i == 0 ? 0 : 1);
  for (int i = 0; i < 2; ++i)
    copy->source_stride_bytes[i] = copy->target_stride_bytes[i] = direct_constant(0);
  idle[4].opcode = ACCRT_DRIVER_COMMAND_FILL;
  idle[4].as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_constant(0), direct_constant(0)), .pattern_bytes = 1};
  accrt_driver_list_t* empty = direct_list(d, NULL, 0, 0, 0);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  for (int healthy = 0; healthy < 2; ++healthy) {
    outcome_t first, outcomes[6];
    if (!healthy)
      direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &first);
    for (int i = 0; i < 5; ++i)
      direct_enqueue(d, d->queue, &idle[i], &binding, 1, NULL, 0, &outcomes[i]);
    direct_submit(d, d->queue, empty, NULL, 0, NULL, 0, &outcomes[5]);
    for (int i = 0; i < 6; ++i) {
      direct_await(d, &outcomes[i]);
      assert_int_equal(outcomes[i].status, healthy ? ACCRT_OK : ACCRT_ERROR_POISONED);
    }
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  d->table->list_destroy(empty);
}

/* What failed is traced too, with its status; what is skipped is not. */
static void test_failed_commands_are_traced(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  outcome_t first, second;
  direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &first);
  direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &second);
  direct_await(d, &first);
  direct_await(d, &second);
  assert_int_equal(atomic_load(&d->trace_count), 1);
  assert_string_equal(d->traces[0].name, "direct.fail");
  assert_int_equal(d->traces[0].event.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(d->traces[0].event.submission, first.number);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
}

/* One list on two queues at once: each execution has a block and local memory of its own. Kernels wait for one another for a moment, so
 * that they are inside together where the driver lets them. */
static void test_executions_share_nothing(void** state) {
  direct_t* d = *state;
  memory_t memories[2] = {direct_memory(d, 4096), direct_memory(d, 4096)};
  accrt_driver_queue_t* queues[2];
  const uint64_t template[2] = {0, 0};
  accrt_driver_patch_t patches[2] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(0), direct_constant(4096))},
      {.kind = ACCRT_DRIVER_PATCH_VALUE,
       .offset_bytes = 8,
       .size_bytes = 8,
       .value = direct_scalar(0, 0)}};
  for (int i = 0; i < 2; ++i)
    assert_int_equal(d->table->queue_create(d->device, 0, &queues[i]), ACCRT_OK);
  for (int size = 0; size < 2; ++size) {
    accrt_driver_command_t command = direct_dispatch(
        d, size == 0 ? &direct_meet : &direct_meet_with_more, template, sizeof template);
    command.as.dispatch.patches = patches;
    command.as.dispatch.patch_count = 2;
    accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 1);
    for (uint64_t run = 0; run < 8; ++run) {
      direct_forget_calls();
      meeting_t meetings[2];
      for (uint64_t i = 0; i < 2; ++i) {
        memset(memories[i].host, 0, 4096);
        meetings[i] = (meeting_t){.bench = d,
                                  .queue = queues[i],
                                  .list = list,
                                  .binding = direct_binding(&memories[i]),
                                  .scalar = 16 * run + i + 1};
        assert_int_equal(
            pthread_create(&meetings[i].thread, NULL, direct_go_to_meeting, &meetings[i]), 0);
      }
      for (uint64_t i = 0; i < 2; ++i) {
        pthread_join(meetings[i].thread, NULL);
        assert_int_equal(meetings[i].status, ACCRT_OK);
        assert_int_equal(*(uint64_t*)(void*)memories[i].host, 16 * run + i + 1);
      }
      assert_string_equal(direct_seen.wrong, "");
    }
    d->table->list_destroy(list);
  }
  for (int i = 0; i < 2; ++i)
    d->table->queue_destroy(queues[i]);
}

static bool has_number(const char* text, unsigned long number) {
  while (*text != '\0') {
    char* end = NULL;
    const bool is_digit = *text >= '0' && *text <= '9';
    if (is_digit && strtoul(text, &end, 10) == number)
      return true;
    text = is_digit ? end : text + 1;
  }
  return false;
}

/* Cancelling (optional): no further workgroup begins, and all completes as cancelled until the queue is reset. */
static void test_cancelled_work_stops(void** state) {
  direct_t* d = *state;
  if (d->table->struct_size < offsetof(accrt_driver_table_t, queue_cancel) + sizeof(void*) ||
      d->table->queue_cancel == NULL) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  accrt_driver_command_t fill = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  fill.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_constant(0), direct_constant(64)),
                            .pattern = 7,
                            .pattern_bytes = 1};
  accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_cancel, &d, sizeof d),
                                        direct_dispatch(d, &direct_count, NULL, 0)};
  commands[0].as.dispatch.grid[0] = direct_constant(64);
  /* In a list the second command follows the first: what is not ordered may run at once. */
  const uint32_t before = 0;
  accrt_driver_command_t ordered[2] = {commands[0], commands[1]};
  ordered[1].predecessors = &before;
  ordered[1].predecessor_count = 1;
  accrt_driver_list_t* list = direct_list(d, ordered, 2, 0, 0);
  for (int way = 0; way < 2; ++way) {
    outcome_t first, second, third;
    direct_forget_calls();
    if (way == 0)
      direct_enqueue(d, d->queue, &commands[0], NULL, 0, NULL, 0, &first);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &first);
    direct_await(d, &first);
    direct_enqueue(d, d->queue, &commands[1], NULL, 0, NULL, 0, &second);
    direct_await(d, &second);
    assert_int_equal(first.status, ACCRT_ERROR_CANCELLED);
    assert_int_equal(first.error.submission, first.number);
    assert_true(has_number(first.error.message, 1) && has_number(first.error.message, 64));
    assert_int_equal(second.status, ACCRT_ERROR_CANCELLED);
    assert_int_equal(direct_seen.calls, 1);
    direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &second);
    direct_await(d, &second);
    assert_int_equal(second.status, ACCRT_ERROR_CANCELLED);
    assert_int_equal(memory.host[0], 0);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_enqueue(d, d->queue, &commands[1], NULL, 0, NULL, 0, &third);
    direct_await(d, &third);
    assert_int_equal(third.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 2);
  }
  d->table->list_destroy(list);
  /* The only workgroup of a list's first command cancels: a fill behind it does not run. */
  accrt_driver_command_t mixed[2] = {direct_dispatch(d, &direct_cancel, &d, sizeof d), fill};
  mixed[1].predecessors = &before;
  mixed[1].predecessor_count = 1;
  list = direct_list(d, mixed, 2, 1, 0);
  outcome_t half;
  direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &half);
  direct_await(d, &half);
  assert_int_equal(half.status, ACCRT_ERROR_CANCELLED);
  assert_int_equal(memory.host[0], 0);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  d->table->list_destroy(list);
}

const cts_test_t cts_direct_tests[] = {
    CTS_O(test_commands_follow_what_they_name, CTS_NEEDS_TABLE),
    CTS_O(test_lists_keep_no_description, CTS_NEEDS_TABLE),
    CTS_O(test_empty_lists, CTS_NEEDS_TABLE),
    CTS_O(test_completions_come_once_in_order_with_a_time, CTS_NEEDS_TABLE),
    CTS_O(test_completions_may_enqueue, CTS_NEEDS_TABLE),
    CTS_O(test_notices_come_behind_all_before, CTS_NEEDS_TABLE),
    CTS_O(test_enqueuing_does_not_block, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_failures_have_a_record_and_stay, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_lists_run_on_the_caller, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_what_kernels_find, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_floating_point_environment, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_serial_kernels_run_in_order, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_operators_run_or_are_refused, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY),
    CTS_O(test_each_command_is_traced,
          CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_nothing_is_traced_unasked, CTS_NEEDS_TABLE),
    CTS_O(test_other_versions_are_refused, CTS_NEEDS_TABLE),
    CTS_O(test_queues_work_side_by_side, CTS_NEEDS_TABLE),
    CTS_O(test_times_are_of_the_end, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_a_failing_completion_finds_a_failed_queue, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_empty_work_behind_a_failure_is_poisoned, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_failed_commands_are_traced,
          CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_cancelled_work_stops, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_executions_share_nothing, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_END};
