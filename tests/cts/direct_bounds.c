/* tests/cts/direct_bounds.c - more of the part `direct`: sizes, counts and numbers beyond those of
 * small integers, long queues and names, pointers with any alignment, and what a record has for
 * everybody who gets it.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

/* ---- Sizes ---- */

static int32_t count_only(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  atomic_uint_least64_t* sums = *(atomic_uint_least64_t* const*)dispatch->params;
  const uint32_t* id = workgroup->workgroup_id;
  atomic_fetch_add_explicit(&sums[0], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&sums[1], (uint64_t)id[0] + id[1] + id[2], memory_order_relaxed);
  return 0;
}
static const accrt_kernel_def_t count_only_def = {.struct_size = (uint32_t)sizeof count_only_def,
                                                  .name = "direct.count_only",
                                                  .entry = count_only,
                                                  .params_size_bytes = 8};
static const accrt_driver_kernel_t count_only_kernel = {&count_only_def, &direct_environment, NULL};

/* Each side of a grid may have more than 16 bits, and so may all together. */
static void test_grids_may_be_large(void** state) {
  direct_t* d = *state;
  static const uint32_t grids[][3] = {
      {65537, 1, 1}, {1, 65537, 1}, {1, 1, 65537}, {300, 300, 1}, {1, 257, 258}};
  for (size_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
    for (int way = 0; way < 2; ++way) {
      atomic_uint_least64_t sums[2] = {0, 0};
      const uint64_t block = (uint64_t)(uintptr_t)sums;
      accrt_driver_command_t command = direct_dispatch(d, &count_only_kernel, &block, 8);
      for (uint32_t k = 0; k < 3; ++k)
        command.as.dispatch.grid[k] = direct_constant(grids[i][k]);
      accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
      outcome_t outcome;
      if (way == 0)
        direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
      else
        direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
      direct_await(d, &outcome);
      const uint64_t all = (uint64_t)grids[i][0] * grids[i][1] * grids[i][2];
      const uint64_t sides = (uint64_t)grids[i][0] + grids[i][1] + grids[i][2];
      assert_int_equal(outcome.status, ACCRT_OK);
      assert_int_equal(atomic_load(&sums[0]), all);
      assert_int_equal(atomic_load(&sums[1]), all * (sides - 3) / 2);
      d->table->list_destroy(list);
    }
  }
}

#define LARGE_BYTES (UINT64_C(3) << 20)
typedef struct large_copy {
  uint64_t extent[3], from[2], to[2];
} large_copy_t;

/* Copies and fills of more bytes, rows and planes, further apart, than small integers hold. */
static void test_copies_and_fills_may_be_large(void** state) {
  direct_t* d = *state;
  memory_t from = direct_memory(d, LARGE_BYTES), to = direct_memory(d, LARGE_BYTES);
  const accrt_driver_binding_t bindings[2] = {direct_binding(&from), direct_binding(&to)};
  unsigned char* model = malloc(LARGE_BYTES);
  assert_non_null(model);
  for (uint64_t i = 0; i < LARGE_BYTES; ++i)
    from.host[i] = (unsigned char)(i * 7 + (i >> 8) + (i >> 17));
  static const large_copy_t copies[] = {{{LARGE_BYTES, 1, 1}, {0, 0}, {0, 0}},
                                        {{(1 << 20) + 3, 2, 1}, {1 << 20, 0}, {(1 << 20) + 9, 0}},
                                        {{5, 70000, 1}, {7, 0}, {6, 0}},
                                        {{5, 1, 70000}, {0, 6}, {0, 7}},
                                        {{3, 300, 290}, {4, 1300}, {1000, 3}},
                                        {{100, 20, 2}, {70001, 1400001}, {140001, 70000}}};
  for (size_t i = 0; i < sizeof copies / sizeof *copies; ++i) {
    const large_copy_t* wanted = &copies[i];
    accrt_driver_command_t command = copy_command(0, 0, 1, 0, LARGE_BYTES);
    for (int k = 0; k < 3; ++k)
      command.as.copy.extent[k] = direct_constant(wanted->extent[k]);
    for (int k = 0; k < 2; ++k) {
      command.as.copy.source_stride_bytes[k] = direct_constant(wanted->from[k]);
      command.as.copy.target_stride_bytes[k] = direct_constant(wanted->to[k]);
    }
    memset(to.host, 0xEE, LARGE_BYTES);
    memset(model, 0xEE, LARGE_BYTES);
    for (uint64_t plane = 0; plane < wanted->extent[2]; ++plane) {
      for (uint64_t row = 0; row < wanted->extent[1]; ++row)
        memcpy(model + row * wanted->to[0] + plane * wanted->to[1],
               from.host + row * wanted->from[0] + plane * wanted->from[1], wanted->extent[0]);
    }
    outcome_t outcome;
    direct_enqueue(d, d->queue, &command, bindings, 2, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_memory_equal(to.host, model, LARGE_BYTES);
  }
  static const uint64_t sizes[] = {65536, 65544, (1 << 20) + 8, LARGE_BYTES - 24};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    accrt_driver_command_t command = fill_command(16, sizes[i], 0);
    command.as.fill.pattern_bytes = 8;
    command.as.fill.pattern = UINT64_C(0x0102030405060708) + i;
    memset(to.host, 0xEE, LARGE_BYTES);
    memset(model, 0xEE, LARGE_BYTES);
    for (uint64_t k = 0; k < sizes[i]; ++k)
      model[16 + k] = (unsigned char)(command.as.fill.pattern >> (8 * (k % 8)));
    outcome_t outcome;
    direct_enqueue(d, d->queue, &command, &bindings[1], 1, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_memory_equal(to.host, model, LARGE_BYTES);
  }
  free(model);
}

/* Its block: where to say that something is wrong, and how much local memory there is. */
static int32_t use_local(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const uint64_t* block = dispatch->params;
  atomic_uint* wrong = (atomic_uint*)(uintptr_t)block[0];
  unsigned char* local = workgroup->local_memory;
  if (workgroup->local_memory_size_bytes != block[1] || local == NULL ||
      ((uintptr_t)local & 63) != 0) {
    atomic_fetch_add(wrong, 1);
    return 0;
  }
  memset(local, (int)workgroup->workgroup_id[0] + 1, block[1]);
  for (uint64_t i = 0; i < block[1]; i += 61) {
    if (((volatile unsigned char*)local)[i] != (unsigned char)(workgroup->workgroup_id[0] + 1))
      atomic_fetch_add(wrong, 1);
  }
  return 0;
}

/* Kernels have all the local memory that they declare, also if the kernel before it had less, or
 * more. */
static void test_local_memory_has_any_size(void** state) {
  direct_t* d = *state;
  static const uint32_t sizes[] = {1,     63,     65,      4097, 65535, 65536,
                                   65537, 200001, 1 << 20, 3,    64,    (9 << 20) + 5};
  accrt_driver_queue_t* other = make_queue(d);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                           .name = "direct.use_local",
                                           .entry = use_local,
                                           .params_size_bytes = 16,
                                           .local_memory_size_bytes = sizes[i]};
    const accrt_driver_kernel_t kernel = {&definition, &direct_environment, NULL};
    atomic_uint wrong = 0;
    const uint64_t block[2] = {(uint64_t)(uintptr_t)&wrong, sizes[i]};
    accrt_driver_command_t command = direct_dispatch(d, &kernel, block, sizeof block);
    command.as.dispatch.grid[0] = direct_constant(sizes[i] > 65536 ? 3 : 40);
    accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
    outcome_t alone, listed, unused;
    direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &alone);
    direct_submit(d, other, list, NULL, 0, NULL, 0, &listed);
    direct_await(d, &alone);
    direct_await(d, &listed);
    assert_int_equal(alone.status, ACCRT_OK);
    assert_int_equal(listed.status, ACCRT_OK);
    if (HAS(d, queue_run)) {
      accrt_driver_queue_t* idle = make_queue(d);
      const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &unused);
      assert_int_equal(d->table->queue_run(idle, list, &submission), ACCRT_OK);
      d->table->queue_destroy(idle);
    }
    assert_int_equal(atomic_load(&wrong), 0);
    d->table->list_destroy(list);
  }
  d->table->queue_destroy(other);
}

/* Host memory of others begins anywhere and has any size; several pieces are imported at once. */
static void test_imported_memory_begins_anywhere(void** state) {
  direct_t* d = *state;
  if (!HAS(d, memory_import)) {
    d->is_skipped = true;
    return;
  }
  static unsigned char mine[40000];
  static const struct {
    uint32_t offset, size_bytes;
  } pieces[] = {{1, 1}, {3, 16}, {100, 4097}, {4999, 8192}, {20001, 19999}};
  const size_t count = sizeof pieces / sizeof *pieces;
  for (int turn = 0; turn < 2; ++turn) { /* imported again after it was given back */
    accrt_driver_memory_t imported[sizeof pieces / sizeof *pieces];
    memset(mine, 0, sizeof mine);
    for (size_t i = 0; i < count; ++i) {
      memset(&imported[i], 0xFF, sizeof imported[i]);
      unsigned char* const pointer = mine + pieces[i].offset;
      assert_int_equal(
          d->table->memory_import(d->device, pointer, pieces[i].size_bytes, &imported[i]),
          ACCRT_OK);
      assert_ptr_equal(imported[i].host_pointer, pointer);
      assert_int_equal(imported[i].size_bytes, pieces[i].size_bytes);
    }
    for (size_t i = 0; i < count; ++i) {
      const accrt_driver_binding_t binding = {imported[i].device_address, imported[i].size_bytes};
      const accrt_driver_command_t fill = fill_command(0, pieces[i].size_bytes, i + 1);
      outcome_t outcome;
      direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &outcome);
      direct_await(d, &outcome);
      assert_int_equal(outcome.status, ACCRT_OK);
    }
    for (size_t i = count; i-- > 0;)
      d->table->memory_unimport(d->device, &imported[i]);
    size_t piece = 0;
    for (uint32_t i = 0; i < sizeof mine; ++i) {
      while (piece < count && i >= pieces[piece].offset + pieces[piece].size_bytes)
        ++piece;
      const bool inside = piece < count && i >= pieces[piece].offset;
      assert_int_equal(mine[i], inside ? piece + 1 : 0);
    }
  }
}

/* ---- Long queues, many who wait ---- */

#define LONG 6000u
/* Thousands of submissions are in flight on one queue, each with scalars of its own; those that
 * listen hear of the end in order. */
static void test_queues_may_be_long(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, LONG);
  static outcome_t outcomes[LONG];
  accrt_driver_command_t fill = fill_command(0, 1, 0);
  fill.as.fill.target.offset = direct_scalar(0, 0);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 1);
  gate_t gate = {0};
  outcome_t held;
  if (runs_beside(d))
    hold_up(d, d->queue, &gate, &held);
  for (uint64_t i = 0; i < LONG; ++i) {
    accrt_driver_binding_t binding = direct_binding(&memory);
    uint64_t scalar = i;
    accrt_driver_command_t alone = fill;
    alone.as.fill.pattern = i;
    if (i % 3 == 0)
      direct_submit(d, d->queue, list, &binding, 1, &scalar, 1, &outcomes[i]);
    else if (i % 3 == 1)
      direct_enqueue(d, d->queue, &alone, &binding, 1, &scalar, 1, &outcomes[i]);
    else
      direct_notify(d, d->queue, &outcomes[i]);
    memset(&binding, 0xFF, sizeof binding);
    memset(&alone, 0xFF, sizeof alone);
    scalar = UINT64_MAX;
  }
  memset(memory.host, 0xEE, LONG); /* nothing has run where the queue is held up */
  let_go(&gate);
  for (uint64_t i = 0; i < LONG; ++i) {
    direct_await(d, &outcomes[i]);
    assert_int_equal(outcomes[i].status, ACCRT_OK);
    assert_true(i == 0 || outcomes[i].order > outcomes[i - 1].order);
    assert_true(i == 0 || outcomes[i].time_ns >= outcomes[i - 1].time_ns);
    if (!runs_beside(d))
      continue;
    assert_int_equal(memory.host[i], i % 3 == 0 ? 0 : i % 3 == 1 ? i & 0xFF : 0xEE);
  }
  if (runs_beside(d))
    direct_await(d, &held);
  d->table->list_destroy(list);
}

#define WAITERS 8u
/* A thread that waits for an event, or for a number. */
typedef struct host_waiter {
  direct_t* bench;
  accrt_driver_event_t* event; /* NULL: waits for the number */
  uint64_t number;
  uint32_t policy;
  accrt_status_t status;
  atomic_bool has_ended;
  pthread_t thread;
} host_waiter_t;

static void* wait_on_the_host(void* user) {
  host_waiter_t* self = user;
  direct_t* d = self->bench;
  self->status =
      self->event != NULL
          ? d->table->event_synchronize(self->event, ACCRT_TIMEOUT_INFINITE, self->policy)
          : d->table->queue_wait(d->queue, self->number, direct_patience_ns(), self->policy);
  atomic_store(&self->has_ended, true);
  return NULL;
}

/* Many threads wait for one record and one number at the same time: all of them are told, of a
 * failure too, and a wait for what is over needs no time. */
static void test_all_who_wait_are_told(void** state) {
  direct_t* d = *state;
  if (!HAS(d, event_create) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  static host_waiter_t waiters[WAITERS];
  for (int fails = 0; fails < 2; ++fails) {
    const accrt_driver_command_t last =
        direct_dispatch(d, fails ? &direct_fail : &direct_count, NULL, 0);
    const accrt_status_t wanted = fails ? ACCRT_ERROR_KERNEL : ACCRT_OK;
    accrt_driver_event_t* event = make_event(d, 0);
    gate_t gate = {0};
    outcome_t held;
    hold_up(d, d->queue, &gate, &held);
    const uint64_t number = submit_quietly(d, d->queue, &last, NULL);
    record_event(d, d->queue, event);
    for (uint32_t i = 0; i < WAITERS; ++i) {
      waiters[i] = (host_waiter_t){.bench = d,
                                   .event = i % 2 == 0 ? event : NULL,
                                   .number = number,
                                   .policy = i == 5 ? ACCRT_WAIT_YIELD : ACCRT_WAIT_BLOCK};
      assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_on_the_host, &waiters[i]), 0);
    }
    cts_sleep_ms(3);
    bool early = false;
    for (uint32_t i = 0; i < WAITERS; ++i)
      early |= atomic_load(&waiters[i].has_ended);
    let_go(&gate);
    const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 4;
    for (uint32_t i = 0; i < WAITERS; ++i) {
      while (!atomic_load(&waiters[i].has_ended) && cts_now_ns() < deadline)
        cts_sleep_ms(0);
      if (!atomic_load(&waiters[i].has_ended))
        fail_msg("one of the threads that wait is not told");
      pthread_join(waiters[i].thread, NULL);
      assert_int_equal(waiters[i].status, wanted);
    }
    assert_false(early);
    direct_await(d, &held);
    for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
      assert_int_equal(d->table->event_synchronize(event, 0, policy), wanted);
      assert_int_equal(d->table->queue_wait(d->queue, number, 0, policy), wanted);
    }
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    d->table->event_destroy(event);
  }
}

/* ---- Records ---- */

static int32_t fail_at_once(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  snprintf(workgroup->message, workgroup->message_capacity_bytes, "on purpose");
  return 91;
}

/* Whoever is told of a failure is told all of it: whose it was, where, its code, its words. A long
 * name is whole. */
static void test_records_are_the_failing_ones(void** state) {
  direct_t* d = *state;
  static char name[201];
  memset(name, 'k', sizeof name - 1);
  memcpy(name + sizeof name - 5, ".end", 4);
  const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                         .name = name,
                                         .entry = fail_at_once,
                                         .params_size_bytes = 8};
  const accrt_driver_kernel_t kernel = {&definition, &direct_environment, NULL};
  const uint64_t block = 0;
  const accrt_driver_command_t bad = direct_dispatch(d, &kernel, &block, 8);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  accrt_driver_list_t* list = direct_list(d, &bad, 1, 0, 0);
  for (int turn = 0; turn < 4; ++turn) {
    outcome_t before, failed, others[4];
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &before);
    if (turn % 2 == 0)
      direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &failed);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &failed);
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &others[0]);
    direct_notify(d, d->queue, &others[1]);
    direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &others[2]);
    direct_notify(d, d->queue, &others[3]);
    direct_await(d, &before);
    assert_int_equal(before.status, ACCRT_OK);
    direct_await(d, &failed);
    assert_int_equal(failed.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(failed.error.submission, failed.number);
    assert_int_equal(failed.error.driver_code, 91);
    assert_non_null(strstr(failed.error.message, name));
    assert_non_null(strstr(failed.error.message, "on purpose"));
    for (int i = 0; i < 4; ++i) {
      direct_await(d, &others[i]);
      assert_int_equal(others[i].status, i % 2 == 0 ? ACCRT_ERROR_POISONED : ACCRT_ERROR_KERNEL);
      assert_int_equal(others[i].error.submission, failed.number);
      assert_int_equal(others[i].error.driver_code, 91);
      assert_string_equal(others[i].error.operation, failed.error.operation);
      assert_string_equal(others[i].error.message, failed.error.message);
    }
    if (HAS(d, queue_progress)) {
      uint64_t number = 0;
      direct_forget_failure();
      assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_KERNEL);
      assert_string_equal(direct_failure.message, failed.error.message);
      assert_string_equal(direct_failure.operation, failed.error.operation);
    }
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  d->table->list_destroy(list);
}

/* What the caller runs itself changes nothing in what is known of the queue. */
static void test_lists_on_the_caller_leave_progress_alone(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_run) || !HAS(d, queue_progress)) {
    d->is_skipped = true;
    return;
  }
  const accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_count, NULL, 0),
                                              direct_dispatch(d, &direct_fail, NULL, 0)};
  accrt_driver_list_t* lists[2] = {direct_list(d, &commands[0], 1, 0, 0),
                                   direct_list(d, &commands[1], 1, 0, 0)};
  for (int turn = 0; turn < 6; ++turn) {
    const uint64_t last = submit_quietly(d, d->queue, &commands[0], NULL);
    wait_for(d, d->queue, last);
    assert_true(ask(d, d->queue) >= last);
    outcome_t unused;
    accrt_status_t status = ACCRT_ERROR_NOT_READY;
    const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &unused);
    const uint64_t deadline = cts_now_ns() + direct_patience_ns();
    while (status == ACCRT_ERROR_NOT_READY && cts_now_ns() < deadline)
      status = d->table->queue_run(d->queue, lists[turn % 2], &submission);
    assert_int_equal(status, turn % 2 == 0 ? ACCRT_OK : ACCRT_ERROR_KERNEL);
    assert_true(ask(d, d->queue) >= last);
    assert_int_equal(d->table->queue_wait(d->queue, last, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
    assert_int_equal(d->table->queue_wait(d->queue, submission.number, 0, ACCRT_WAIT_BLOCK),
                     ACCRT_OK);
  }
  for (int i = 0; i < 2; ++i)
    d->table->list_destroy(lists[i]);
}

/* An operator anywhere in a list is run or refused, with its name. */
static void test_operators_are_found_anywhere(void** state) {
  direct_t* d = *state;
  static const accrt_driver_operator_t operation = {&direct_operator, &direct_environment};
  memory_t memory = direct_memory(d, 512);
  for (uint32_t at = 0; at < 9; ++at) {
    uint64_t block[2] = {0, 5};
    accrt_driver_patch_t patch = {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
                                  .size_bytes = 8,
                                  .range = direct_range(0, direct_constant(0), direct_constant(8))};
    accrt_driver_command_t commands[9];
    memset(commands, 0, sizeof commands);
    for (uint32_t i = 0; i < 9; ++i)
      commands[i].opcode = ACCRT_DRIVER_COMMAND_BARRIER;
    commands[at].opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
    commands[at].as.invoke = (accrt_driver_invoke_t){
        .operation = &operation,
        .params = block,
        .params_size_bytes = sizeof block,
        .patch_count = 1,
        .patches = &patch,
        .workspace = direct_range(0, direct_constant(256), direct_constant(256))};
    const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                           .command_count = 9,
                                           .commands = commands,
                                           .binding_count = 1};
    accrt_driver_list_t* list = NULL;
    direct_forget_calls();
    direct_forget_failure();
    const accrt_status_t status = d->table->list_create(d->device, &info, &list);
    if (status == ACCRT_ERROR_UNSUPPORTED) {
      assert_null(list);
      assert_non_null(strstr(direct_failure.message, "direct.operator"));
      continue;
    }
    assert_int_equal(status, ACCRT_OK);
    const accrt_driver_binding_t binding = direct_binding(&memory);
    memset(memory.host, 0, 64);
    direct_execute(d, list, &binding, 1, NULL, 0);
    assert_int_equal(direct_seen.executed, 1);
    assert_int_equal(memory.host[0], 5);
    d->table->list_destroy(list);
    assert_int_equal(direct_seen.destroyed, 1);
  }
}

const cts_test_t cts_direct_bound_tests[] = {
    CTS_O(test_grids_may_be_large, KERNELS),
    CTS_O(test_copies_and_fills_may_be_large, CTS_NEEDS_TABLE),
    CTS_O(test_local_memory_has_any_size, KERNELS),
    CTS_O(test_imported_memory_begins_anywhere, CTS_NEEDS_TABLE),
    CTS_O(test_queues_may_be_long, KERNELS),
    CTS_O(test_all_who_wait_are_told, KERNELS),
    CTS_O(test_records_are_the_failing_ones, KERNELS),
    CTS_O(test_lists_on_the_caller_leave_progress_alone, KERNELS),
    CTS_O(test_operators_are_found_anywhere, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY),
    CTS_END};
