/* tests/cts/direct_groups.c - the part `direct`: what needs work that is still running (order, copies
 * of what was handed over, cancelling), and two optional groups of the table (prepared launches,
 * queue_run). A group that a driver does not have is skipped, and so is what needs a kernel to be
 * held up where work runs on the thread that enqueues it.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

/* ---- Order ---- */

#define CELLS 6u
#define CELL_BYTES 32u
#define COMMANDS 24u
typedef struct random_list {
  accrt_driver_command_t commands[COMMANDS];
  uint32_t before[COMMANDS][COMMANDS];
  uint32_t reads[COMMANDS], writes[COMMANDS]; /* sets of cells */
  unsigned char wanted[CELLS * CELL_BYTES];
} random_list_t;

/* Adds a fill of a cell, or a copy of one to another, and does the same to what is wanted. */
static void add_random(random_list_t* list, uint32_t at, uint64_t* random) {
  const uint64_t target = cts_random(random) % CELLS;
  const uint64_t source = (target + 1 + cts_random(random) % (CELLS - 1)) % CELLS;
  accrt_driver_command_t* command = &list->commands[at];
  list->writes[at] = 1u << target;
  if (cts_random(random) % 3 == 0) {
    *command = fill_command(target * CELL_BYTES, CELL_BYTES, at + 1);
    memset(list->wanted + target * CELL_BYTES, (int)at + 1, CELL_BYTES);
    return;
  }
  list->reads[at] = 1u << source;
  command->opcode = ACCRT_DRIVER_COMMAND_COPY;
  accrt_driver_copy_t* copy = &command->as.copy;
  copy->source = direct_range(0, direct_constant(source * CELL_BYTES), direct_constant(CELL_BYTES));
  copy->target = direct_range(0, direct_constant(target * CELL_BYTES), direct_constant(CELL_BYTES));
  copy->extent[0] = direct_constant(CELL_BYTES);
  copy->extent[1] = copy->extent[2] = direct_constant(1);
  for (int k = 0; k < 2; ++k)
    copy->source_stride_bytes[k] = copy->target_stride_bytes[k] = direct_constant(0);
  memcpy(list->wanted + target * CELL_BYTES, list->wanted + source * CELL_BYTES, CELL_BYTES);
}

/* Commands that touch the same cell, one of them writing it, are ordered by naming or by a barrier;
 * nothing else is. */
static void make_random(random_list_t* list, uint64_t* random, bool barriers_only) {
  memset(list, 0, sizeof *list);
  for (uint32_t i = 0; i < CELLS * CELL_BYTES; ++i)
    list->wanted[i] = (unsigned char)(0x80 + i / CELL_BYTES);
  uint32_t barrier = 0; /* all before it are ordered */
  for (uint32_t i = 0; i < COMMANDS; ++i) {
    unsigned char kept[sizeof list->wanted];
    memcpy(kept, list->wanted, sizeof kept);
    add_random(list, i, random);
    uint32_t count = 0;
    for (uint32_t k = barrier; k < i; ++k) {
      if (((list->reads[i] | list->writes[i]) & list->writes[k]) != 0 ||
          (list->writes[i] & list->reads[k]) != 0)
        list->before[i][count++] = k;
    }
    if (count != 0 && (barriers_only || cts_random(random) % 3 == 0)) {
      memset(&list->commands[i], 0, sizeof list->commands[i]);
      list->commands[i].opcode = ACCRT_DRIVER_COMMAND_BARRIER;
      list->reads[i] = list->writes[i] = 0;
      memcpy(list->wanted, kept, sizeof kept);
      barrier = i + 1;
      continue;
    }
    list->commands[i].predecessors = list->before[i];
    list->commands[i].predecessor_count = count;
  }
}

/* Whatever a driver makes of a list, what it says about order holds. */
static void test_lists_are_ordered_as_they_say(void** state) {
  direct_t* d = *state;
  uint64_t random = cts_seed();
  memory_t memory = direct_memory(d, CELLS * CELL_BYTES);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  random_list_t* list = malloc(sizeof *list);
  assert_non_null(list);
  for (int turn = 0; turn < 60; ++turn) {
    make_random(list, &random, turn % 2 == 0);
    accrt_driver_list_t* made = direct_list(d, list->commands, COMMANDS, 1, 0);
    for (int run = 0; run < 2; ++run) {
      for (uint32_t i = 0; i < CELLS * CELL_BYTES; ++i)
        memory.host[i] = (unsigned char)(0x80 + i / CELL_BYTES);
      direct_execute(d, made, &binding, 1, NULL, 0);
      assert_memory_equal(memory.host, list->wanted, sizeof list->wanted);
    }
    d->table->list_destroy(made);
  }
  free(list);
}

/* While a kernel runs, nothing behind it on its queue begins, ends or is told of. */
static void test_nothing_overtakes_what_runs(void** state) {
  direct_t* d = *state;
  if (!runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 32, 7), more = fill_command(32, 32, 8);
  accrt_driver_list_t* list = direct_list(d, &more, 1, 1, 0);
  for (int turn = 0; turn < 2; ++turn) {
    gate_t gate = {0};
    outcome_t held, notice, filled, listed, last;
    memset(memory.host, 0, 64);
    hold_up(d, d->queue, &gate, &held);
    /* First in the queue, which has nothing that waits: only what runs. */
    direct_notify(d, d->queue, &notice);
    direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &filled);
    direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &listed);
    direct_notify(d, d->queue, &last);
    cts_sleep_ms(20);
    const bool early = has_ended(&held) || has_ended(&notice) || has_ended(&filled) ||
                       has_ended(&listed) || has_ended(&last) || memory.host[0] != 0 ||
                       memory.host[32] != 0;
    let_go(&gate);
    outcome_t* const all[] = {&held, &notice, &filled, &listed, &last};
    for (int i = 0; i < 5; ++i) {
      direct_await(d, all[i]);
      assert_int_equal(all[i]->status, ACCRT_OK);
      assert_true(i == 0 || all[i]->order > all[i - 1]->order);
      assert_int_equal(atomic_load(&all[i]->times), 1);
    }
    assert_false(early);
    assert_false(atomic_load(&gate.gave_up));
    assert_int_equal(memory.host[31], 7);
    assert_int_equal(memory.host[63], 8);
  }
  d->table->list_destroy(list);
}

/* Everything that queue_enqueue and queue_execute are given is valid during the call only, but for
 * the list. */
static void test_what_is_handed_over_is_copied(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const bool held_up = runs_beside(d);
  for (int way = 0; way < 2; ++way) {
    gate_t gate = {0};
    outcome_t held, outcome;
    uint64_t template[8], scalars[2] = {5, 6};
    char name[32] = "handed over";
    for (uint64_t i = 0; i < 8; ++i)
      template[i] = 100 + i;
    accrt_driver_patch_t patches[2] = {
        {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
         .size_bytes = 8,
         .range = direct_range(0, direct_scalar(8, 0), direct_constant(8))},
        {.kind = ACCRT_DRIVER_PATCH_VALUE,
         .offset_bytes = 8,
         .size_bytes = 8,
         .value = direct_scalar(1000, 1)}};
    accrt_driver_kernel_t kernel = direct_keep_block;
    accrt_driver_command_t command = direct_dispatch(d, &kernel, template, sizeof template);
    command.name = name;
    command.as.dispatch.patches = patches;
    command.as.dispatch.patch_count = 2;
    accrt_driver_binding_t binding = direct_binding(&memory);
    accrt_driver_list_t* list = way == 0 ? NULL : direct_list(d, &command, 1, 1, 2);
    direct_forget_calls();
    atomic_store(&d->trace_count, 0);
    if (held_up)
      hold_up(d, d->queue, &gate, &held);
    if (way == 0) {
      direct_enqueue(d, d->queue, &command, &binding, 1, scalars, 2, &outcome);
      memset(template, 0xFF, sizeof template);
      memset(patches, 0xFF, sizeof patches);
      memset(&kernel, 0xFF, sizeof kernel);
      memset(&command, 0xFF, sizeof command);
      memset(name, 'x', sizeof name - 1);
    } else {
      direct_submit(d, d->queue, list, &binding, 1, scalars, 2, &outcome);
    }
    memset(&binding, 0xFF, sizeof binding);
    memset(scalars, 0xFF, sizeof scalars);
    let_go(&gate);
    direct_await(d, &outcome);
    if (held_up)
      direct_await(d, &held);
    assert_int_equal(outcome.status, ACCRT_OK);
    uint64_t wanted[8] = {memory.own.device_address + 13, 1006};
    for (uint64_t i = 2; i < 8; ++i)
      wanted[i] = 100 + i;
    assert_int_equal(direct_seen.calls, 1);
    assert_memory_equal(direct_seen.block, wanted, sizeof wanted);
    assert_string_equal(d->traces[held_up ? 1 : 0].name, "handed over");
    if (list != NULL)
      d->table->list_destroy(list);
  }
}

/* What fails in the middle of a list is its end: nothing behind it runs. */
static void test_a_list_ends_at_its_failure(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  for (uint32_t bad = 0; bad < 5; ++bad) {
    accrt_driver_command_t commands[5];
    uint32_t before[5] = {0, 0, 1, 2, 3};
    for (uint32_t i = 0; i < 5; ++i) {
      commands[i] = i == bad ? direct_dispatch(d, &direct_fail, NULL, 0)
                             : fill_command((uint64_t)8 * i, 8, i + 1);
      commands[i].predecessors = &before[i];
      commands[i].predecessor_count = i != 0;
    }
    accrt_driver_list_t* list = direct_list(d, commands, 5, 1, 0);
    memset(memory.host, 0, 64);
    outcome_t outcome;
    direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(outcome.error.driver_code, 77);
    for (uint32_t i = 0; i < 5; ++i)
      assert_int_equal(memory.host[8 * i], i < bad ? i + 1 : 0);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    d->table->list_destroy(list);
  }
}

/* ---- Prepared launches ---- */

/* Each launch has a block, a grid and a number of its own, whatever becomes of what it was given.
 * */
static void test_launches_bring_their_own(void** state) {
  direct_t* d = *state;
  if (!HAS(d, launch_create)) {
    d->is_skipped = true;
    return;
  }
  for (int turn = 0; turn < 4; ++turn) {
    gate_t gate = {0};
    outcome_t held;
    accrt_driver_kernel_t kernel = direct_keep_block;
    accrt_driver_launch_t* launch = make_launch(d, &kernel);
    accrt_driver_launch_t* twin = make_launch(d, &direct_count);
    memset(&kernel, 0xFF, sizeof kernel);
    direct_forget_calls();
    _Alignas(16) unsigned char block[64], wanted[64];
    for (size_t i = 0; i < sizeof block; ++i)
      wanted[i] = block[i] = (unsigned char)(i * 3 + (size_t)turn);
    uint32_t grid[3] = {2 + (uint32_t)turn, 3, 4};
    const uint32_t calls = grid[0] * 12;
    if (runs_beside(d))
      hold_up(d, d->queue, &gate, &held);
    const uint64_t number = next_number(d);
    assert_int_equal(d->table->queue_launch(d->queue, launch, grid, block, number), ACCRT_OK);
    memset(block, 0xFF, sizeof block);
    memset(grid, 0xFF, sizeof grid);
    d->table->launch_destroy(launch); /* in flight */
    let_go(&gate);
    wait_for(d, d->queue, number);
    assert_true(ask(d, d->queue) >= number);
    assert_int_equal(direct_seen.calls, calls);
    assert_int_equal(direct_seen.submission, number);
    assert_int_equal(direct_seen.params_size, sizeof wanted);
    assert_memory_equal(direct_seen.block, wanted, sizeof wanted);
    static const uint32_t sides[3] = {5, 1, 2};
    assert_int_equal(direct_seen.count[0], (uint32_t)turn + 2);
    assert_int_equal(direct_seen.count[1], 3);
    assert_int_equal(direct_seen.count[2], 4);
    memset(block, 0, sizeof block);
    direct_forget_calls();
    const uint64_t next = next_number(d);
    assert_int_equal(d->table->queue_launch(d->queue, twin, sides, block, next), ACCRT_OK);
    wait_for(d, d->queue, next);
    assert_int_equal(direct_seen.calls, 10);
    d->table->launch_destroy(twin);
    if (runs_beside(d))
      direct_await(d, &held);
  }
}

/* Launches come in the order of their queue, count in its progress, and fail as other work does. */
static void test_launches_are_work_of_their_queue(void** state) {
  direct_t* d = *state;
  if (!HAS(d, launch_create)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_launch_t* good = make_launch(d, &direct_count);
  accrt_driver_launch_t* bad = make_launch(d, &direct_fail);
  static const uint32_t grid[3] = {1, 1, 1};
  _Alignas(16) unsigned char block[64] = {0};
  gate_t gate = {0};
  outcome_t held;
  direct_forget_calls();
  if (runs_beside(d))
    hold_up(d, d->queue, &gate, &held);
  const uint64_t first = next_number(d);
  assert_int_equal(d->table->queue_launch(d->queue, good, grid, block, first), ACCRT_OK);
  if (runs_beside(d)) {
    assert_true(ask(d, d->queue) < first);
    assert_int_equal(d->table->queue_wait(d->queue, first, 0, ACCRT_WAIT_BLOCK),
                     ACCRT_ERROR_TIMEOUT);
    assert_int_equal(direct_seen.calls, 0);
  }
  let_go(&gate);
  wait_for(d, d->queue, first);
  const uint64_t failed = next_number(d);
  assert_int_equal(d->table->queue_launch(d->queue, bad, grid, block, failed), ACCRT_OK);
  const uint64_t behind = next_number(d);
  const accrt_status_t status = d->table->queue_launch(d->queue, good, grid, block, behind);
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_POISONED || status == ACCRT_ERROR_KERNEL);
  assert_int_equal(d->table->queue_wait(d->queue, behind, direct_patience_ns(), ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_KERNEL);
  assert_non_null(strstr(direct_failure.message, "on purpose"));
  uint64_t number = UINT64_MAX;
  assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_KERNEL);
  assert_true(number < failed);
  assert_int_equal(direct_seen.calls, 1);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  const uint64_t last = next_number(d);
  assert_int_equal(d->table->queue_launch(d->queue, good, grid, block, last), ACCRT_OK);
  wait_for(d, d->queue, last);
  assert_int_equal(direct_seen.calls, 2);
  d->table->launch_destroy(good);
  d->table->launch_destroy(bad);
  if (runs_beside(d))
    direct_await(d, &held);
}

/* ---- Cancelling from outside ---- */

static void check_cancelled(direct_t* d, outcome_t* outcome) {
  direct_await(d, outcome);
  assert_int_equal(outcome->status, ACCRT_ERROR_CANCELLED);
  assert_true(outcome->had_error);
  assert_int_equal(outcome->error.status, ACCRT_ERROR_CANCELLED);
  assert_true(outcome->error.message[0] != '\0');
}

/* All that the queue has, whatever it is, completes as cancelled, and so does what comes until it
 * is reset; no other queue notices. */
static void test_cancelled_queues_drop_what_they_have(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 7);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  accrt_driver_queue_t* other = make_queue(d);
  gate_t gate = {0};
  const uint64_t block[8] = {(uint64_t)(uintptr_t)&gate};
  accrt_driver_command_t commands[2] = {direct_dispatch(d, &direct_gate, block, sizeof block),
                                        fill};
  uint32_t first = 0;
  commands[1].predecessors = &first;
  commands[1].predecessor_count = 1;
  accrt_driver_list_t* list = direct_list(d, commands, 2, 1, 0);
  accrt_driver_list_t* empty = direct_list(d, NULL, 0, 0, 0);
  for (int turn = 0; turn < 2; ++turn) {
    direct_forget_calls();
    memset(memory.host, 0, 64);
    atomic_store(&gate.is_open, false);
    atomic_store(&gate.inside, 0);
    outcome_t running, waiting, behind, notice, late, nothing, notice_late, healthy, again;
    direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &running);
    await_inside(&gate);
    direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &waiting);
    direct_submit(d, d->queue, empty, NULL, 0, NULL, 0, &behind);
    direct_notify(d, d->queue, &notice);
    const uint64_t begin = cts_now_ns();
    d->table->queue_cancel(d->queue);
    const uint64_t took = cts_now_ns() - begin;
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &late);
    const bool was_inside = !has_ended(&running);
    let_go(&gate);
    assert_true(took < 10 * CTS_SECOND && was_inside);
    check_cancelled(d, &running);
    assert_int_equal(running.error.submission, running.number);
    assert_non_null(strchr(running.error.message, '1')); /* how far it got */
    check_cancelled(d, &waiting);
    check_cancelled(d, &behind);
    check_cancelled(d, &notice);
    check_cancelled(d, &late);
    direct_submit(d, d->queue, empty, NULL, 0, NULL, 0, &nothing);
    check_cancelled(d, &nothing);
    direct_notify(d, d->queue, &notice_late);
    check_cancelled(d, &notice_late);
    assert_int_equal(memory.host[0], 0);
    if (HAS(d, queue_progress)) {
      uint64_t number = UINT64_MAX;
      assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_CANCELLED);
      assert_true(number < running.number);
      const uint64_t quiet = submit_quietly(d, d->queue, &good, NULL);
      assert_int_equal(
          d->table->queue_wait(d->queue, quiet, direct_patience_ns(), ACCRT_WAIT_BLOCK),
          ACCRT_ERROR_CANCELLED);
    }
    if (HAS(d, queue_run)) {
      outcome_t unused;
      const accrt_driver_submission_t submission =
          direct_submission(d, &binding, 1, NULL, 0, &unused);
      assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_ERROR_CANCELLED);
    }
    direct_enqueue(d, other, &good, NULL, 0, NULL, 0, &healthy);
    direct_await(d, &healthy);
    assert_int_equal(healthy.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 1);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &again);
    direct_await(d, &again);
    assert_int_equal(again.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 2);
    assert_false(atomic_load(&gate.gave_up));
  }
  d->table->list_destroy(list);
  d->table->list_destroy(empty);
  d->table->queue_destroy(other);
}

/* A queue that is cancelled before it has anything drops what comes, empty work as all else. */
/* Another queue goes on, and its reset ends nothing of this one's. */
static void check_other_queue(direct_t* d, accrt_driver_queue_t* other,
                              const accrt_driver_command_t* marker) {
  outcome_t work, notice, late;
  direct_enqueue(d, other, marker, NULL, 0, NULL, 0, &work);
  direct_notify(d, other, &notice);
  direct_await(d, &work);
  direct_await(d, &notice);
  assert_int_equal(work.status, ACCRT_OK);
  assert_int_equal(notice.status, ACCRT_OK);
  assert_int_equal(d->table->queue_reset(other), ACCRT_OK);
  direct_enqueue(d, d->queue, marker, NULL, 0, NULL, 0, &late);
  check_cancelled(d, &late);
}

static void test_idle_queues_are_cancelled_too(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_list_t* empty = direct_list(d, NULL, 0, 0, 0);
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  accrt_driver_queue_t* other = make_queue(d);
  for (int turn = 0; turn < 2; ++turn) {
    outcome_t outcomes[4], notice, again;
    d->table->queue_cancel(d->queue);
    direct_notify(d, d->queue, &notice);
    check_cancelled(d, &notice);
    for (int i = 0; i < 4; ++i) {
      if (i % 2 == 0)
        direct_submit(d, d->queue, empty, NULL, 0, NULL, 0, &outcomes[i]);
      else
        direct_enqueue(d, d->queue, &marker, NULL, 0, NULL, 0, &outcomes[i]);
    }
    for (int i = 0; i < 4; ++i)
      check_cancelled(d, &outcomes[i]);
    assert_int_equal(outcomes[0].error.submission, outcomes[0].number);
    check_other_queue(d, other, &marker);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_enqueue(d, d->queue, &marker, NULL, 0, NULL, 0, &again);
    direct_await(d, &again);
    assert_int_equal(again.status, ACCRT_OK);
  }
  d->table->queue_destroy(other);
  d->table->list_destroy(empty);
}

/* What waits for an event has not begun: it is dropped, though the event is not reached. */
static void test_cancelled_queues_wait_for_no_event(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel) || !HAS(d, event_create) || !runs_beside(d)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_queue_t* other = make_queue(d);
  accrt_driver_event_t* event = make_event(d, 0);
  const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "marker"};
  gate_t gate = {0};
  outcome_t held, waiting;
  hold_up(d, d->queue, &gate, &held);
  record_event(d, d->queue, event);
  wait_event(d, other, event);
  direct_enqueue(d, other, &marker, NULL, 0, NULL, 0, &waiting);
  cts_sleep_ms(5);
  d->table->queue_cancel(other);
  check_cancelled(d, &waiting);
  assert_false(has_ended(&held));
  let_go(&gate);
  direct_await(d, &held);
  assert_int_equal(held.status, ACCRT_OK);
  assert_false(atomic_load(&gate.gave_up));
  assert_int_equal(reach(d, event), ACCRT_OK);
  d->table->event_destroy(event);
  d->table->queue_destroy(other);
}

/* ---- Lists that run on the caller ---- */

/* Only on an idle queue that has not failed; the submission's completion is never called. */
static void test_lists_run_on_the_caller_of_idle_queues(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_run)) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 3);
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 0);
  accrt_driver_list_t* failing = direct_list(d, &bad, 1, 0, 0);
  outcome_t held, unused, failed, again;
  const accrt_driver_submission_t submission = direct_submission(d, &binding, 1, NULL, 0, &unused);
  gate_t gate = {0};
  if (runs_beside(d)) {
    hold_up(d, d->queue, &gate, &held);
    const accrt_status_t status = d->table->queue_run(d->queue, list, &submission);
    const unsigned char found = memory.host[0];
    let_go(&gate);
    direct_await(d, &held);
    assert_int_equal(status, ACCRT_ERROR_NOT_READY);
    assert_int_equal(found, 0);
  }
  assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_OK);
  assert_int_equal(memory.host[63], 3);
  direct_forget_failure();
  assert_int_equal(d->table->queue_run(d->queue, failing, &submission), ACCRT_ERROR_KERNEL);
  assert_non_null(strstr(direct_failure.message, "on purpose"));
  /* The queue is not poisoned by it. */
  direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &again);
  direct_await(d, &again);
  assert_int_equal(again.status, ACCRT_OK);
  /* But what was enqueued has failed it. */
  direct_enqueue(d, d->queue, &bad, NULL, 0, NULL, 0, &failed);
  direct_await(d, &failed);
  memset(memory.host, 0, 64);
  assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_ERROR_POISONED);
  assert_int_equal(memory.host[0], 0);
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_OK);
  assert_int_equal(memory.host[0], 3);
  assert_int_equal(atomic_load(&unused.times), 0);
  d->table->list_destroy(list);
  d->table->list_destroy(failing);
}

const cts_test_t cts_direct_group_tests[] = {
    CTS_O(test_lists_are_ordered_as_they_say, CTS_NEEDS_TABLE),
    CTS_O(test_nothing_overtakes_what_runs, KERNELS),
    CTS_O(test_what_is_handed_over_is_copied, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_a_list_ends_at_its_failure, KERNELS),
    CTS_O(test_launches_bring_their_own, KERNELS),
    CTS_O(test_launches_are_work_of_their_queue, KERNELS),
    CTS_O(test_cancelled_queues_drop_what_they_have, KERNELS),
    CTS_O(test_idle_queues_are_cancelled_too, CTS_NEEDS_TABLE),
    CTS_O(test_cancelled_queues_wait_for_no_event, KERNELS),
    CTS_O(test_lists_run_on_the_caller_of_idle_queues, KERNELS),
    CTS_END};
