/* tests/cts/direct_operators.c - more of the part `direct`: host operators, which a driver prepares
 * with a list, executes at their place in it, and destroys with it. A driver that runs none refuses
 * such lists; then the tests are skipped.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#define WORKSPACE_BYTES 512u
#define MOST_STATES 16u

typedef struct block {
  uint64_t* target;
  uint64_t amount;
} block_t;

/* What the functions of the operators below have seen, and how they are to end. */
static struct {
  direct_t* bench;
  pthread_mutex_t lock;
  char wrong[128];
  uint32_t queries, prepares, executions, destructions;
  uint32_t alive[MOST_STATES]; /* states */
  atomic_uint inside;
  int32_t query_code, prepare_code, execute_code;
  uint32_t prepares_before_failure;
  block_t asked, prepared;
  accrt_operator_call_t execute;
  block_t executed;
  uint64_t state;
  bool is_slow;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void forget(direct_t* d) {
  memset(seen.wrong, 0, sizeof seen.wrong);
  memset(seen.alive, 0, sizeof seen.alive);
  seen.bench = d;
  seen.queries = seen.prepares = seen.executions = seen.destructions = 0;
  seen.query_code = seen.prepare_code = seen.execute_code = 0;
  seen.prepares_before_failure = 0;
  seen.is_slow = false;
}

static void object(bool is_right, const char* what) {
  if (!is_right && seen.wrong[0] == '\0')
    snprintf(seen.wrong, sizeof seen.wrong, "%s", what);
}

static void check_context(const accrt_kernel_environment_t* environment) {
  object(environment == &direct_environment, "another environment than the operator's");
  if (seen.bench->hooks.current_device != NULL)
    object(seen.bench->hooks.current_device() == seen.bench->device,
           "the device's context is not current");
}

static void check_call(const accrt_operator_call_t* call) {
  object(call->struct_size >= sizeof *call, "a call without its size");
  object(call->device_type == seen.bench->info.dlpack_device_type, "another type of device");
  object(call->device_id == seen.bench->info.dlpack_device_id, "another device");
  object(call->params_size_bytes == sizeof(block_t), "a block of another size");
  object(call->params != NULL, "no block");
  object(call->reserved == 0, "reserved is not 0");
  object(call->message != NULL && call->message_capacity_bytes >= 64, "no room for a message");
  object(call->message != NULL && call->message[0] == '\0', "a message from before");
}

static void check_before(const accrt_operator_call_t* call, uint64_t workspace_size_bytes) {
  check_call(call);
  object(call->stream == NULL && call->workspace == NULL && call->submission == 0,
         "a stream, a workspace or a number before execute");
  object(call->workspace_size_bytes == workspace_size_bytes, "a workspace of another size");
}

static int32_t fail_with(const accrt_operator_call_t* call, int32_t code) {
  if (code != 0)
    snprintf(call->message, call->message_capacity_bytes, "100%% on purpose");
  return code;
}

static int32_t query(const accrt_kernel_environment_t* environment,
                     const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  pthread_mutex_lock(&seen.lock);
  check_context(environment);
  check_before(call, 0);
  ++seen.queries;
  memcpy(&seen.asked, call->params, sizeof seen.asked);
  *out_size_bytes = WORKSPACE_BYTES;
  const int32_t code = seen.query_code;
  pthread_mutex_unlock(&seen.lock);
  return fail_with(call, code);
}

static int32_t prepare(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void** out_state) {
  pthread_mutex_lock(&seen.lock);
  check_context(environment);
  check_before(call, WORKSPACE_BYTES);
  memcpy(&seen.prepared, call->params, sizeof seen.prepared);
  const uint32_t state = seen.prepares++;
  const int32_t code = state < seen.prepares_before_failure ? 0 : seen.prepare_code;
  if (code == 0 && state < MOST_STATES) {
    seen.alive[state] = 1;
    *out_state = &seen.alive[state];
  }
  pthread_mutex_unlock(&seen.lock);
  return fail_with(call, code);
}

/* The first two executions stay for as long as a busy machine needs to begin another, and end at
 * once where another one is inside. The others stay for a moment. */
static void stay_inside(uint32_t execution) {
  if (!seen.is_slow)
    return;
  const uint64_t deadline = cts_now_ns() + (execution <= 2 ? CTS_SECOND / 2 : CTS_SECOND / 500);
  while (atomic_load(&seen.inside) == 1 && cts_now_ns() < deadline)
    cts_sleep_ms(1);
}

static int32_t execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* state) {
  const bool is_alone = atomic_fetch_add(&seen.inside, 1) == 0;
  pthread_mutex_lock(&seen.lock);
  object(is_alone, "two calls at once with one state");
  check_context(environment);
  check_call(call);
  object(((uintptr_t)call->params & 15) == 0, "a block that is not aligned to 16 bytes");
  object(((uintptr_t)call->workspace & 255) == 0, "a workspace that is not aligned");
  const uint32_t execution = ++seen.executions;
  seen.execute = *call;
  memcpy(&seen.executed, call->params, sizeof seen.executed);
  seen.state = (uint64_t)(uintptr_t)state;
  const int32_t code = seen.execute_code;
  pthread_mutex_unlock(&seen.lock);
  stay_inside(execution);
  const block_t* block = call->params;
  if (code == 0 && block->target != NULL)
    *block->target += block->amount;
  atomic_fetch_sub(&seen.inside, 1);
  return fail_with(call, code);
}

static void destroy(const accrt_kernel_environment_t* environment, void* state) {
  pthread_mutex_lock(&seen.lock);
  check_context(environment);
  uint32_t* alive = state;
  const bool is_mine = alive >= seen.alive && alive < seen.alive + MOST_STATES;
  object(is_mine && *alive == 1, "a state that is destroyed and was not made, or twice");
  if (is_mine)
    *alive = 0;
  ++seen.destructions;
  pthread_mutex_unlock(&seen.lock);
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(block_t, target, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(block_t, amount, SCALAR, NONE),
};
static const accrt_operator_def_t whole_def = {.struct_size = (uint32_t)sizeof whole_def,
                                               .name = "direct.whole",
                                               .params = params,
                                               .param_count = 2,
                                               .params_size_bytes = sizeof(block_t),
                                               .query_workspace = query,
                                               .prepare = prepare,
                                               .execute = execute,
                                               .destroy = destroy};
static const accrt_operator_def_t plain_def = {.struct_size = (uint32_t)sizeof plain_def,
                                               .name = "direct.plain",
                                               .params = params,
                                               .param_count = 2,
                                               .params_size_bytes = sizeof(block_t),
                                               .execute = execute,
                                               .destroy = destroy};
static const accrt_driver_operator_t whole = {&whole_def, &direct_environment};
static const accrt_driver_operator_t plain = {&plain_def, &direct_environment};

/* One operator on binding 0, its workspace in binding 1, the amount a scalar. */
typedef struct call {
  block_t template;
  accrt_driver_patch_t patches[2];
  accrt_driver_command_t command;
} call_t;

static void make_call(call_t* call, const accrt_driver_operator_t* operation) {
  memset(call, 0, sizeof *call);
  call->template.amount = 9;
  call->patches[0] =
      (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_ADDRESS,
                             .size_bytes = 8,
                             .range = direct_range(0, direct_constant(8), direct_constant(8))};
  call->patches[1] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                                            .offset_bytes = 8,
                                            .size_bytes = 8,
                                            .value = direct_scalar(100, 0)};
  call->command.opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  call->command.as.invoke = (accrt_driver_invoke_t){
      .operation = operation,
      .params = &call->template,
      .params_size_bytes = sizeof call->template,
      .patch_count = 2,
      .patches = call->patches,
      .workspace = direct_range(1, direct_constant(256), direct_constant(WORKSPACE_BYTES))};
  if (operation->definition->query_workspace == NULL)
    call->command.as.invoke.workspace =
        direct_range(ACCRT_DRIVER_NONE, direct_constant(0), direct_constant(0));
}

/* NULL: the driver runs no operators, which it has said. */
static accrt_driver_list_t* make_list(direct_t* d, const accrt_driver_command_t* commands,
                                      uint32_t count) {
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = count,
                                         .commands = commands,
                                         .binding_count = 2,
                                         .scalar_count = 1};
  accrt_driver_list_t* list = NULL;
  const accrt_status_t status = d->table->list_create(d->device, &info, &list);
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_UNSUPPORTED);
  d->is_skipped = status != ACCRT_OK;
  return list;
}

/* Memory in both bindings, and nothing seen yet. */
static void set_up(direct_t* d, accrt_driver_binding_t bindings[2], memory_t* out_memory) {
  *out_memory = direct_memory(d, 4096);
  bindings[0] = bindings[1] = direct_binding(out_memory);
  forget(d);
}

/* Calls of `whole`, as the first commands. */
static void make_calls(call_t* calls, accrt_driver_command_t* commands, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    make_call(&calls[i], &whole);
    commands[i] = calls[i].command;
  }
}

/* Each command follows the one before it. */
static void put_in_order(accrt_driver_command_t* commands, uint32_t count) {
  static const uint32_t before[] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (uint32_t i = 1; i < count; ++i) {
    commands[i].predecessors = &before[i - 1];
    commands[i].predecessor_count = 1;
  }
}

static uint64_t word_at(const memory_t* memory, uint64_t offset) {
  uint64_t word;
  memcpy(&word, memory->host + offset, 8);
  return word;
}

static void check_nothing_wrong(const direct_t* d) {
  assert_string_equal(seen.wrong, "");
  if (d->hooks.current_device != NULL) /* the caller's own is as it was */
    assert_null(d->hooks.current_device());
}

/* ---- What must work ---- */

static void test_operators_live_as_long_as_their_list(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t calls[2];
  accrt_driver_command_t commands[2];
  set_up(d, bindings, &memory);
  make_calls(calls, commands, 2);
  put_in_order(commands, 2);
  accrt_driver_list_t* first = make_list(d, commands, 2);
  if (first == NULL)
    return;
  assert_int_equal(seen.prepares, 2); /* one command, one state */
  accrt_driver_list_t* second = make_list(d, commands, 1);
  assert_int_equal(seen.prepares, 3);
  assert_int_equal(seen.prepared.amount, 9);
  assert_int_equal(seen.executions + seen.destructions + seen.queries, 0);
  for (uint64_t run = 0; run < 3; ++run) {
    outcome_t outcome;
    direct_submit(d, d->queue, second, bindings, 2, &run, 1, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_int_equal(seen.executions, run + 1);
    assert_int_equal(seen.execute.submission, outcome.number);
    assert_int_equal(seen.execute.workspace_size_bytes, WORKSPACE_BYTES);
    assert_ptr_equal(seen.execute.workspace, memory.host + 256);
    assert_int_equal(seen.state, (uint64_t)(uintptr_t)&seen.alive[2]);
    assert_int_equal(seen.executed.amount, 100 + run);
  }
  assert_int_equal(word_at(&memory, 8), 303);
  d->table->list_destroy(second);
  assert_int_equal(seen.destructions, 1);
  const uint64_t none = 0;
  direct_execute(d, first, bindings, 2, &none, 1);
  assert_int_equal(seen.executions, 5);
  assert_int_equal(seen.state, (uint64_t)(uintptr_t)&seen.alive[1]);
  assert_int_equal(word_at(&memory, 8), 503);
  d->table->list_destroy(first);
  assert_int_equal(seen.destructions, 3);
  check_nothing_wrong(d);
}

/* Without a workspace, without a state, with a buffer that is absent. */
static void test_operators_need_little(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  set_up(d, bindings, &memory);
  make_call(&call, &plain);
  accrt_driver_list_t* list = make_list(d, &call.command, 1);
  if (list == NULL)
    return;
  for (uint64_t run = 0; run < 2; ++run) {
    bindings[0] = run == 0 ? direct_binding(&memory) : (accrt_driver_binding_t){0, 0};
    direct_execute(d, list, bindings, 2, &run, 1);
    assert_null(seen.execute.workspace);
    assert_int_equal(seen.execute.workspace_size_bytes, 0);
    assert_int_equal(seen.state, 0);
    assert_ptr_equal(seen.executed.target, run == 0 ? memory.host + 8 : NULL);
  }
  d->table->list_destroy(list);
  assert_int_equal(seen.prepares + seen.destructions, 0);
  assert_int_equal(call.template.amount, 9);
  assert_null(call.template.target);
  check_nothing_wrong(d);
}

/* A workspace lies where the submission says. */
static void test_workspaces_take_scalars(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  set_up(d, bindings, &memory);
  make_call(&call, &whole);
  call.command.as.invoke.workspace.offset = direct_scalar(256, 0);
  accrt_driver_list_t* list = make_list(d, &call.command, 1);
  if (list == NULL)
    return;
  for (uint64_t run = 0; run < 3; ++run) {
    const uint64_t scalar = 1024 - 256 * run;
    bindings[1].address = bindings[0].address + 256 * (run % 2);
    direct_execute(d, list, bindings, 2, &scalar, 1);
    assert_ptr_equal(seen.execute.workspace, memory.host + 256 + scalar + 256 * (run % 2));
  }
  d->table->list_destroy(list);
  check_nothing_wrong(d);
}

static void test_workspaces_are_asked_for(void** state) {
  direct_t* d = *state;
  if (!HAS(d, operator_workspace)) {
    d->is_skipped = true;
    return;
  }
  const block_t block = {NULL, 12};
  uint64_t size_bytes = 77;
  forget(d);
  assert_int_equal(
      d->table->operator_workspace(d->device, &whole, &block, sizeof block, &size_bytes), ACCRT_OK);
  assert_int_equal(size_bytes, WORKSPACE_BYTES);
  assert_int_equal(seen.queries, 1);
  assert_null(seen.asked.target);
  assert_int_equal(seen.asked.amount, 12);
  assert_int_equal(seen.prepares + seen.executions + seen.destructions, 0);
  size_bytes = 77;
  assert_int_equal(
      d->table->operator_workspace(d->device, &plain, &block, sizeof block, &size_bytes), ACCRT_OK);
  assert_int_equal(size_bytes, 0); /* it has no such function */
  seen.query_code = 19;
  size_bytes = 77;
  direct_forget_failure();
  assert_int_equal(
      d->table->operator_workspace(d->device, &whole, &block, sizeof block, &size_bytes),
      ACCRT_ERROR_KERNEL);
  assert_int_equal(size_bytes, 0);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(direct_failure.driver_code, 19);
  assert_non_null(strstr(direct_failure.message, "direct.whole"));
  assert_non_null(strstr(direct_failure.message, "100% on purpose"));
  check_nothing_wrong(d);
}

/* A list that runs on the caller calls its operators too, and what is behind them. */
static void test_operators_run_on_the_caller(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  if (d->table->queue_run == NULL) {
    d->is_skipped = true;
    return;
  }
  set_up(d, bindings, &memory);
  make_call(&call, &whole);
  accrt_driver_command_t commands[2] = {call.command, copy_command(0, 8, 0, 16, 8)};
  put_in_order(commands, 2);
  accrt_driver_list_t* list = make_list(d, commands, 2);
  if (list == NULL)
    return;
  for (uint64_t run = 0; run < 2; ++run) {
    outcome_t outcome;
    const accrt_driver_submission_t submission =
        direct_submission(d, bindings, 2, &run, 1, &outcome);
    memset(memory.host, 0, 64);
    assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_OK);
    assert_int_equal(seen.executions, run + 1);
    assert_int_equal(seen.execute.submission, submission.number);
    assert_int_equal(word_at(&memory, 16), 100 + run);
  }
  outcome_t failed;
  const uint64_t none = 0;
  const accrt_driver_submission_t submission = direct_submission(d, bindings, 2, &none, 1, &failed);
  seen.execute_code = 31;
  direct_forget_failure();
  assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_ERROR_KERNEL);
  assert_int_equal(direct_failure.driver_code, 31);
  d->table->list_destroy(list);
  check_nothing_wrong(d);
}

/* An operator's place: behind what comes before it, before what comes behind it. */
static void test_operators_have_a_place(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t calls[2];
  accrt_driver_command_t commands[5];
  set_up(d, bindings, &memory);
  memset(commands, 0, sizeof commands);
  commands[0] = fill_command(8, 8, 0);
  for (int i = 0; i < 2; ++i) {
    make_call(&calls[i], &whole);
    commands[1 + 2 * i] = calls[i].command;
  }
  commands[2] = copy_command(0, 8, 0, 16, 8);
  commands[4] = copy_command(0, 8, 0, 24, 8);
  put_in_order(commands, 5);
  accrt_driver_list_t* list = make_list(d, commands, 5);
  if (list == NULL)
    return;
  for (uint64_t run = 0; run < 3; ++run) {
    memset(memory.host, 0xEE, 64);
    direct_execute(d, list, bindings, 2, &run, 1);
    assert_int_equal(word_at(&memory, 16), 100 + run);
    assert_int_equal(word_at(&memory, 24), 2 * (100 + run));
    assert_int_equal(seen.executions, 2 * (run + 1));
  }
  d->table->list_destroy(list);
  check_nothing_wrong(d);
}

/* One list on two queues: one call at a time for each state. */
static void test_states_have_one_call_at_a_time(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  set_up(d, bindings, &memory);
  make_call(&call, &whole);
  accrt_driver_list_t* list = make_list(d, &call.command, 1);
  if (list == NULL)
    return;
  accrt_driver_queue_t* queues[2] = {make_queue(d), make_queue(d)};
  seen.is_slow = true;
  outcome_t outcomes[12];
  const uint64_t none = 0;
  for (int i = 0; i < 12; ++i)
    direct_submit(d, queues[i % 2], list, bindings, 2, &none, 1, &outcomes[i]);
  for (int i = 0; i < 12; ++i) {
    direct_await(d, &outcomes[i]);
    assert_int_equal(outcomes[i].status, ACCRT_OK);
  }
  assert_int_equal(word_at(&memory, 8), 1200);
  for (int i = 0; i < 2; ++i)
    d->table->queue_destroy(queues[i]);
  d->table->list_destroy(list);
  check_nothing_wrong(d);
}

static void test_operators_are_traced(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t calls[2];
  accrt_driver_command_t commands[2];
  set_up(d, bindings, &memory);
  make_calls(calls, commands, 2);
  commands[1].name = "the second";
  put_in_order(commands, 2);
  accrt_driver_list_t* list = make_list(d, commands, 2);
  if (list == NULL)
    return;
  const uint64_t none = 0;
  const uint64_t begin = cts_now_ns();
  outcome_t outcome;
  direct_submit(d, d->queue, list, bindings, 2, &none, 1, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(atomic_load(&d->trace_count), 2);
  assert_string_equal(d->traces[0].name, "direct.whole");
  assert_string_equal(d->traces[1].name, "the second");
  for (int i = 0; i < 2; ++i) {
    const accrt_trace_event_t* event = &d->traces[i].event;
    assert_int_equal(event->submission, outcome.number);
    assert_int_equal(event->stream_id, DIRECT_STREAM_ID);
    assert_int_equal(event->status, ACCRT_OK);
    assert_true(event->begin_ns >= begin && event->end_ns <= outcome.time_ns);
  }
  seen.execute_code = 5;
  direct_submit(d, d->queue, list, bindings, 2, &none, 1, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(atomic_load(&d->trace_count), 3);
  assert_int_equal(d->traces[2].event.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  d->table->list_destroy(list);
  check_nothing_wrong(d);
}

/* ---- Device work that an operator enqueues ---- */

static int32_t execute_on_stream(const accrt_kernel_environment_t* environment,
                                 const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  const block_t* block = call->params;
  const uint64_t address = (uint64_t)(uintptr_t)block->target;
  const int32_t code =
      seen.bench->hooks.enqueue_fill(call->stream, address, 8, (unsigned char)block->amount);
  ++seen.executions;
  return code;
}
static const accrt_operator_def_t on_stream_def = {.struct_size = (uint32_t)sizeof on_stream_def,
                                                   .name = "direct.on_stream",
                                                   .params = params,
                                                   .param_count = 2,
                                                   .params_size_bytes = sizeof(block_t),
                                                   .execute = execute_on_stream};
static const accrt_driver_operator_t on_stream = {&on_stream_def, &direct_environment};

/* What it enqueues onto its stream runs at the operator's place. */
static void test_operators_enqueue_at_their_place(void** state) {
  direct_t* d = *state;
  if (d->hooks.enqueue_fill == NULL) {
    d->is_skipped = true;
    return;
  }
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  set_up(d, bindings, &memory);
  make_call(&call, &on_stream);
  accrt_driver_command_t commands[3] = {fill_command(8, 8, 1), call.command,
                                        copy_command(0, 8, 0, 16, 8)};
  put_in_order(commands, 3);
  accrt_driver_list_t* list = make_list(d, commands, 3);
  if (list == NULL)
    return;
  for (uint64_t run = 0; run < 3; ++run) {
    memset(memory.host, 0, 64);
    direct_execute(d, list, bindings, 2, &run, 1);
    for (int i = 0; i < 8; ++i) {
      assert_int_equal(memory.host[8 + i], 100 + run);
      assert_int_equal(memory.host[16 + i], 100 + run);
    }
    assert_int_equal(memory.host[24], 0);
    assert_int_equal(seen.executions, run + 1);
  }
  d->table->list_destroy(list);
}

/* ---- What fails ---- */

/* A state that cannot be made: no list, and the states that were made before are destroyed. */
static void test_operators_that_cannot_be_prepared(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t calls[3];
  accrt_driver_command_t commands[3];
  set_up(d, bindings, &memory);
  make_calls(calls, commands, 3);
  for (uint32_t made = 0; made < 3; ++made) {
    forget(d);
    const long live = atomic_load(&d->live);
    seen.prepare_code = -41;
    seen.prepares_before_failure = made;
    accrt_driver_list_t* list = (accrt_driver_list_t*)d;
    const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                           .command_count = 3,
                                           .commands = commands,
                                           .binding_count = 2,
                                           .scalar_count = 1};
    direct_forget_failure();
    const accrt_status_t status = d->table->list_create(d->device, &info, &list);
    if (status == ACCRT_ERROR_UNSUPPORTED) {
      d->is_skipped = true;
      return;
    }
    assert_int_equal(status, ACCRT_ERROR_KERNEL);
    assert_null(list);
    assert_int_equal(direct_failure.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(direct_failure.driver_code, -41);
    assert_non_null(strstr(direct_failure.message, "direct.whole"));
    assert_non_null(strstr(direct_failure.message, "100% on purpose"));
    assert_int_equal(seen.prepares, made + 1);
    assert_int_equal(seen.destructions, made);
    assert_int_equal(atomic_load(&d->live), live);
    check_nothing_wrong(d);
  }
}

static void test_operators_that_fail(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  set_up(d, bindings, &memory);
  make_call(&call, &whole);
  accrt_driver_command_t commands[2] = {call.command, fill_command(64, 8, 3)};
  put_in_order(commands, 2);
  accrt_driver_list_t* list = make_list(d, commands, 2);
  if (list == NULL)
    return;
  const uint64_t none = 0;
  for (int turn = 0; turn < 2; ++turn) {
    outcome_t outcome, behind;
    seen.execute_code = 23;
    direct_submit(d, d->queue, list, bindings, 2, &none, 1, &outcome);
    direct_await(d, &outcome);
    seen.execute_code = 0;
    direct_submit(d, d->queue, list, bindings, 2, &none, 1, &behind);
    direct_await(d, &behind);
    assert_int_equal(outcome.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(outcome.error.driver_code, 23);
    assert_int_equal(outcome.error.submission, outcome.number);
    assert_non_null(strstr(outcome.error.message, "direct.whole"));
    assert_non_null(strstr(outcome.error.message, "100% on purpose"));
    assert_int_equal(behind.status, ACCRT_ERROR_POISONED);
    assert_int_equal(seen.executions, turn + 1);
    assert_int_equal(word_at(&memory, 64), 0);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  direct_execute(d, list, bindings, 2, &none, 1);
  assert_int_equal(memory.host[64], 3);
  d->table->list_destroy(list);
  assert_int_equal(seen.destructions, 1);
  check_nothing_wrong(d);
}

/* Each allocation of list_create fails once: states that were made are destroyed. */
static void test_operators_without_host_memory(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t calls[2];
  accrt_driver_command_t commands[2];
  set_up(d, bindings, &memory);
  make_calls(calls, commands, 2);
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = 2,
                                         .commands = commands,
                                         .binding_count = 2,
                                         .scalar_count = 1};
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long allowed = 0; allowed < 64 && status != ACCRT_OK; ++allowed) {
    forget(d);
    const long live = atomic_load(&d->live);
    accrt_driver_list_t* list = (accrt_driver_list_t*)d;
    atomic_store(&d->allowed, allowed);
    status = d->table->list_create(d->device, &info, &list);
    atomic_store(&d->allowed, LONG_MAX);
    if (status == ACCRT_ERROR_UNSUPPORTED) {
      d->is_skipped = true;
      return;
    }
    if (status == ACCRT_OK) {
      d->table->list_destroy(list);
    } else {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_null(list);
    }
    assert_int_equal(seen.destructions, seen.prepares);
    assert_int_equal(atomic_load(&d->live), live);
    check_nothing_wrong(d);
  }
  assert_int_equal(status, ACCRT_OK);
}

/* A cancelled queue calls no operator. */
static void test_cancelled_operators_are_not_called(void** state) {
  direct_t* d = *state;
  memory_t memory;
  accrt_driver_binding_t bindings[2];
  call_t call;
  if (!HAS(d, queue_cancel)) {
    d->is_skipped = true;
    return;
  }
  set_up(d, bindings, &memory);
  make_call(&call, &whole);
  accrt_driver_list_t* list = make_list(d, &call.command, 1);
  if (list == NULL)
    return;
  outcome_t outcome;
  const uint64_t none = 0;
  d->table->queue_cancel(d->queue);
  direct_submit(d, d->queue, list, bindings, 2, &none, 1, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_ERROR_CANCELLED);
  assert_int_equal(seen.executions, 0);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  direct_execute(d, list, bindings, 2, &none, 1);
  assert_int_equal(seen.executions, 1);
  d->table->list_destroy(list);
  if ((d->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0) { /* in the middle of a list */
    accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_cancel, &d, sizeof d),
                                          call.command};
    put_in_order(commands, 2);
    list = make_list(d, commands, 2);
    direct_submit(d, d->queue, list, bindings, 2, &none, 1, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_ERROR_CANCELLED);
    assert_int_equal(seen.executions, 1);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    d->table->list_destroy(list);
  }
  check_nothing_wrong(d);
}

#define NEEDS (CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY)
const cts_test_t cts_direct_operator_tests[] = {
    CTS_O(test_operators_live_as_long_as_their_list, NEEDS),
    CTS_O(test_operators_need_little, NEEDS),
    CTS_O(test_workspaces_take_scalars, NEEDS),
    CTS_O(test_workspaces_are_asked_for, CTS_NEEDS_TABLE),
    CTS_O(test_operators_run_on_the_caller, NEEDS),
    CTS_O(test_operators_have_a_place, NEEDS),
    CTS_O(test_states_have_one_call_at_a_time, NEEDS),
    CTS_O(test_operators_are_traced, NEEDS | CTS_NEEDS_TRACING),
    CTS_O(test_operators_enqueue_at_their_place, NEEDS),
    CTS_O(test_operators_that_cannot_be_prepared, NEEDS),
    CTS_O(test_operators_that_fail, NEEDS),
    CTS_O(test_operators_without_host_memory, NEEDS),
    CTS_O(test_cancelled_operators_are_not_called, NEEDS),
    CTS_END};
