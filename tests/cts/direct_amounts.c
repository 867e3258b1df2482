/* tests/cts/direct_amounts.c - the part `direct`: how large, how small and how often work may be,
 * and what failures say of a workgroup among many.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

/* ---- Large, small, often ---- */

#define LARGE_PATCHES 512u
#define LARGE_COMMANDS 600u
/* The largest block, full of patches; many bindings and scalars; a long name; many commands with
 * many predecessors. */
static void test_work_may_be_large(void** state) {
  direct_t* d = *state;
  static unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES], wanted[sizeof block];
  static accrt_driver_patch_t patches[LARGE_PATCHES];
  static accrt_driver_binding_t bindings[LARGE_PATCHES];
  static uint64_t scalars[LARGE_PATCHES];
  static accrt_driver_command_t commands[LARGE_COMMANDS];
  static uint32_t all[LARGE_COMMANDS];
  static char name[400];
  memset(name, 'a', sizeof name - 1);
  memory_t memory = direct_memory(d, 8 * LARGE_COMMANDS);
  for (uint32_t i = 0; i < LARGE_PATCHES; ++i) {
    bindings[i] = (accrt_driver_binding_t){memory.own.device_address + i, 8};
    scalars[i] = UINT64_C(0x0101010101010101) * i;
    patches[i] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                                        .offset_bytes = 8 * i,
                                        .size_bytes = i % 2 != 0 ? 8 : 1,
                                        .value = direct_scalar(1, i)};
    if (i % 4 == 3) {
      patches[i].kind = ACCRT_DRIVER_PATCH_ADDRESS;
      patches[i].range = direct_range(i, direct_scalar(3, i), direct_constant(1));
    }
  }
  accrt_driver_command_t command = direct_dispatch(d, &direct_keep_large, block, sizeof block);
  command.name = name;
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = LARGE_PATCHES;
  accrt_driver_list_t* list = direct_list(d, &command, 1, LARGE_PATCHES, LARGE_PATCHES);
  for (int turn = 0; turn < 4; ++turn) {
    for (uint32_t i = 0; i < LARGE_PATCHES; ++i)
      scalars[i] += 7;
    memset(block, turn % 2 == 0 ? 0x77 : 0x66, sizeof block);
    memset(wanted, turn % 2 == 0 ? 0x77 : 0x66, sizeof wanted);
    if (turn % 2 != 0) /* the list has the template of when it was made, or of now */
      memcpy(block, wanted, sizeof block);
    for (uint32_t i = 0; i < LARGE_PATCHES; ++i) {
      const uint64_t value = i % 4 == 3 ? bindings[i].address + 3 + scalars[i] : 1 + scalars[i];
      memcpy(wanted + 8 * i, &value, patches[i].size_bytes);
    }
    direct_forget_calls();
    outcome_t outcome;
    if (turn < 2) {
      direct_enqueue(d, d->queue, &command, bindings, LARGE_PATCHES, scalars, LARGE_PATCHES,
                     &outcome);
    } else {
      d->table->list_destroy(list);
      list = direct_list(d, &command, 1, LARGE_PATCHES, LARGE_PATCHES);
      direct_submit(d, d->queue, list, bindings, LARGE_PATCHES, scalars, LARGE_PATCHES, &outcome);
    }
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_int_equal(direct_seen.params_size, sizeof block);
    assert_memory_equal(direct_seen_large, wanted, sizeof wanted);
  }
  d->table->list_destroy(list);
  /* Each but the first copies what the one before has filled; the last names all. */
  for (uint32_t i = 0; i < LARGE_COMMANDS; ++i) {
    all[i] = i;
    commands[i] = i == 0 ? fill_command(0, 8, 0x3C) : copy_command(0, 8 * (i - 1), 0, 8 * i, 8);
    commands[i].predecessors = i + 1 == LARGE_COMMANDS ? all : &all[i == 0 ? 0 : i - 1];
    commands[i].predecessor_count = i + 1 == LARGE_COMMANDS ? i : i != 0;
  }
  list = direct_list(d, commands, LARGE_COMMANDS, 1, 0);
  memset(memory.host, 0, 8 * LARGE_COMMANDS);
  bindings[0] = direct_binding(&memory);
  direct_execute(d, list, bindings, 1, NULL, 0);
  for (uint32_t i = 0; i < 8 * LARGE_COMMANDS; ++i)
    assert_int_equal(memory.host[i], 0x3C);
  d->table->list_destroy(list);
}

/* Workgroups of one launch that run at the same time have different worker ids. */
static void test_worker_ids_differ(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = direct_dispatch(d, &direct_share_no_id, NULL, 0);
  command.as.dispatch.grid[0] = direct_constant(64);
  command.as.dispatch.grid[1] = direct_constant(2);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  for (int turn = 0; turn < 6; ++turn) {
    outcome_t outcome;
    direct_forget_calls();
    if (turn % 2 == 0)
      direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 128);
    assert_string_equal(direct_seen.wrong, "");
  }
  d->table->list_destroy(list);
}

/* Names and blocks of each size, each on a queue that has no storage yet. */
static void test_work_has_any_size(void** state) {
  direct_t* d = *state;
  char name[64];
  unsigned char block[64];
  memset(name, 'n', sizeof name);
  memset(block, 0x5C, sizeof block);
  for (uint32_t size = 0; size < 40; ++size) {
    accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = name};
    accrt_driver_command_t dispatch = direct_dispatch(d, &direct_keep_block, block, size);
    name[size] = '\0';
    for (int way = 0; way < 2; ++way) {
      accrt_driver_queue_t* queue = make_queue(d);
      outcome_t outcome;
      direct_forget_calls();
      direct_enqueue(d, queue, way == 0 ? &marker : &dispatch, NULL, 0, NULL, 0, &outcome);
      direct_await(d, &outcome);
      assert_int_equal(outcome.status, ACCRT_OK);
      assert_int_equal(direct_seen.params_size, way == 0 ? 0 : size);
      if (way == 1)
        assert_memory_equal(direct_seen.block, block, size);
      d->table->queue_destroy(queue);
    }
    name[size] = 'n';
  }
}

/* In a row: storage is found by what happens to be free, until all of it is large. */
#define QUIET_TURNS 16u
#define MOST_TURNS 500u
/* What was done before is done again without an allocation, whatever it is. */
static void test_repetition_of_anything_allocates_nothing(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 256);
  const accrt_driver_binding_t bindings[2] = {direct_binding(&memory), direct_binding(&memory)};
  uint64_t block[8] = {0};
  accrt_driver_patch_t patch = {
      .kind = ACCRT_DRIVER_PATCH_VALUE, .size_bytes = 8, .value = direct_scalar(0, 0)};
  accrt_driver_command_t dispatch = direct_dispatch(d, &direct_keep_block, block, sizeof block);
  dispatch.as.dispatch.patches = &patch;
  dispatch.as.dispatch.patch_count = 1;
  dispatch.name = "again";
  const accrt_driver_command_t commands[3] = {dispatch, fill_command(0, 8, 1),
                                              copy_command(0, 64, 1, 128, 8)};
  accrt_driver_list_t* list = direct_list(d, commands, 3, 2, 1);
  accrt_driver_event_t* event = HAS(d, event_create) ? make_event(d, 0) : NULL;
  accrt_driver_launch_t* launch = HAS(d, launch_create) ? make_launch(d, &direct_count) : NULL;
  static const uint32_t grid[3] = {1, 1, 1};
  _Alignas(16) unsigned char params[64] = {0};
  uint32_t quiet = 0;
  for (uint64_t turn = 0; turn < MOST_TURNS && quiet < QUIET_TURNS; ++turn) {
    outcome_t outcomes[3], notice;
    const long before = atomic_load(&d->allocations);
    direct_submit(d, d->queue, list, bindings, 2, &turn, 1, &outcomes[0]);
    direct_enqueue(d, d->queue, &dispatch, bindings, 2, &turn, 1, &outcomes[1]);
    direct_enqueue(d, d->queue, &commands[2], bindings, 2, &turn, 1, &outcomes[2]);
    if (event != NULL) {
      record_event(d, d->queue, event);
      wait_event(d, d->queue, event);
    }
    if (launch != NULL)
      assert_int_equal(d->table->queue_launch(d->queue, launch, grid, params, next_number(d)),
                       ACCRT_OK);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    if (event != NULL) {
      assert_int_equal(reach(d, event), ACCRT_OK);
      wait_for(d, d->queue, UINT64_MAX);
    }
    if (HAS(d, queue_run)) {
      outcome_t unused;
      const accrt_driver_submission_t submission =
          direct_submission(d, bindings, 2, &turn, 1, &unused);
      const accrt_status_t status = d->table->queue_run(d->queue, list, &submission);
      assert_true(status == ACCRT_OK || status == ACCRT_ERROR_NOT_READY); /* of the last event */
    }
    quiet = atomic_load(&d->allocations) == before ? quiet + 1 : 0;
  }
  assert_int_equal(quiet, QUIET_TURNS);
  if (event != NULL)
    d->table->event_destroy(event);
  if (launch != NULL)
    d->table->launch_destroy(launch);
  d->table->list_destroy(list);
}

/* Each function of facts fills all that is its to fill: with whatever the struct begins, the same
 * comes out. */
static void test_facts_leave_nothing_unfilled(void** state) {
  direct_t* d = *state;
  accrt_device_info_t infos[2];
  for (int i = 0; i < 2; ++i) {
    memset(&infos[i], i == 0 ? 0x5A : 0xA5, sizeof infos[i]);
    infos[i].struct_size = (uint32_t)sizeof infos[i];
    d->table->device_info(d->device, &infos[i]);
  }
  assert_string_equal(infos[0].description, infos[1].description);
  assert_string_equal(infos[0].arch, infos[1].arch);
  const accrt_device_info_t *a = &infos[0], *b = &infos[1];
  assert_true(a->flags == b->flags && a->cpu_features == b->cpu_features);
  assert_true(a->memory_total_bytes == b->memory_total_bytes && a->concurrency == b->concurrency);
  assert_true(a->min_alignment_bytes == b->min_alignment_bytes);
  assert_true(a->queue_count == b->queue_count && a->dlpack_device_id == b->dlpack_device_id);
  assert_true(a->dlpack_device_type == b->dlpack_device_type && a->dlpack_device_type != 0);
  assert_true(a->priority_least == b->priority_least &&
              a->priority_greatest == b->priority_greatest);
  assert_memory_equal(a->uuid, b->uuid, sizeof a->uuid);
  for (uint32_t kind = 0; kind < 4; ++kind) {
    accrt_driver_memory_info_t kinds[2];
    for (int i = 0; i < 2; ++i) {
      memset(&kinds[i], i == 0 ? 0x5A : 0xA5, sizeof kinds[i]);
      kinds[i].struct_size = (uint32_t)sizeof kinds[i];
      d->table->memory_info(d->device, kind, &kinds[i]);
    }
    /* Drivers older than `zeroed` leave it as it is. */
    assert_memory_equal(&kinds[0], &kinds[1], offsetof(accrt_driver_memory_info_t, zeroed));
    assert_true(kinds[0].supported <= 1);
    if (kinds[0].supported) {
      assert_int_equal(kinds[0].alignment_bytes % a->min_alignment_bytes, 0);
      assert_int_equal(kinds[0].default_grow_bytes % kinds[0].granularity_bytes, 0);
    }
  }
}

/* A stride counts only where there is more than one row or plane. */
static void test_strides_of_one_row_do_not_count(void** state) {
  direct_t* d = *state;
  memory_t from = direct_memory(d, 256), to = direct_memory(d, 256);
  const accrt_driver_binding_t bindings[2] = {direct_binding(&from), direct_binding(&to)};
  for (uint32_t i = 0; i < 256; ++i)
    from.host[i] = (unsigned char)(i + 1);
  for (uint32_t turn = 0; turn < 8; ++turn) {
    const uint64_t rows = turn & 1 ? 3 : 1, planes = turn & 2 ? 2 : 1;
    accrt_driver_command_t command = copy_command(0, 8, 1, 16, 5);
    accrt_driver_copy_t* copy = &command.as.copy;
    copy->extent[1] = direct_constant(rows);
    copy->extent[2] = direct_constant(planes);
    copy->source_stride_bytes[0] = direct_constant(rows == 1 ? UINT64_MAX : 20);
    copy->target_stride_bytes[0] = direct_constant(rows == 1 ? UINT64_MAX / 3 : 7);
    copy->source_stride_bytes[1] = direct_constant(planes == 1 ? UINT64_MAX / 5 : 80);
    copy->target_stride_bytes[1] = direct_constant(planes == 1 ? 3 : 90);
    accrt_driver_list_t* list = direct_list(d, &command, 1, 2, 0);
    memset(to.host, 0, 256);
    unsigned char wanted[256] = {0};
    for (uint64_t plane = 0; plane < planes; ++plane) {
      for (uint64_t row = 0; row < rows; ++row)
        memcpy(wanted + 16 + row * 7 + plane * 90, from.host + 8 + row * 20 + plane * 80, 5);
    }
    if (turn < 4) {
      direct_execute(d, list, bindings, 2, NULL, 0);
    } else {
      outcome_t outcome;
      direct_enqueue(d, d->queue, &command, bindings, 2, NULL, 0, &outcome);
      direct_await(d, &outcome);
    }
    assert_memory_equal(to.host, wanted, sizeof wanted);
    d->table->list_destroy(list);
  }
}

/* ---- What failures say ---- */

/* The numbers of a text, one after another, have these three among them. */
static bool tells(const char* text, const long numbers[3]) {
  int matched = 0;
  for (const char* at = text; *at != '\0' && matched < 3;) {
    if (*at < '0' || *at > '9') {
      ++at;
      continue;
    }
    char* end = NULL;
    const long number = strtol(at, &end, 10);
    matched = number == numbers[matched] ? matched + 1 : number == numbers[0] ? 1 : 0;
    at = end;
  }
  return matched == 3;
}

/* The kernel's code, whatever its sign, its workgroup, its words. */
static void test_failures_name_the_workgroup(void** state) {
  direct_t* d = *state;
  static const int32_t codes[] = {1, -5, INT32_MIN, INT32_MAX, 3};
  for (int turn = 0; turn < 5; ++turn) {
    const int32_t block[16] = {codes[turn], 4, 3, 2, turn % 2};
    accrt_driver_command_t command =
        direct_dispatch(d, &direct_fail_somewhere, block, sizeof block);
    command.name = turn < 2 ? "a name" : NULL;
    command.as.dispatch.grid[0] = direct_constant(6);
    command.as.dispatch.grid[1] = direct_constant(5);
    command.as.dispatch.grid[2] = direct_constant(4);
    accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
    outcome_t outcome, behind, notices[2], again;
    if (turn % 2 == 0)
      direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
    else
      direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcome);
    direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &behind);
    for (int i = 0; i < 2; ++i)
      direct_notify(d, d->queue, &notices[i]);
    outcome_t* const all[] = {&outcome, &behind, &notices[0], &notices[1]};
    for (int i = 0; i < 4; ++i) {
      direct_await(d, all[i]);
      assert_true(i == 0 || all[i]->order > all[i - 1]->order);
    }
    assert_int_equal(outcome.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(outcome.error.driver_code, codes[turn]);
    assert_true(strstr(outcome.error.message, "direct.fail_somewhere") != NULL ||
                (command.name != NULL && strstr(outcome.error.message, command.name) != NULL));
    assert_true(tells(outcome.error.message, (const long[3]){4, 3, 2}));
    assert_true((strstr(outcome.error.message, "over here") != NULL) == (turn % 2 != 0));
    assert_int_equal(behind.status, ACCRT_ERROR_POISONED);
    for (int i = 0; i < 2; ++i) {
      assert_int_equal(notices[i].status, ACCRT_ERROR_KERNEL);
      assert_int_equal(notices[i].error.driver_code, codes[turn]);
      assert_string_equal(notices[i].error.message, outcome.error.message);
    }
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK); /* it is healthy */
    direct_notify(d, d->queue, &again);
    direct_await(d, &again);
    assert_int_equal(again.status, ACCRT_OK);
    d->table->list_destroy(list);
  }
}

/* Work without a listener is done, and fails its queue, like other work. */
static void test_work_needs_no_listener(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 6);
  const accrt_driver_command_t bad = direct_dispatch(d, &direct_fail, NULL, 0);
  accrt_driver_list_t* list = direct_list(d, &fill, 1, 1, 0);
  for (int turn = 0; turn < 2; ++turn) {
    memset(memory.host, 0, 64);
    accrt_driver_submission_t quiet = {.struct_size = (uint32_t)sizeof quiet,
                                       .binding_count = 1,
                                       .bindings = &binding,
                                       .number = next_number(d)};
    outcome_t notice, failed;
    assert_int_equal(turn == 0 ? d->table->queue_enqueue(d->queue, &fill, &quiet)
                               : d->table->queue_execute(d->queue, list, &quiet),
                     ACCRT_OK);
    assert_int_equal(d->table->queue_notify(d->queue, (accrt_driver_completion_t){NULL, NULL}),
                     ACCRT_OK);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    assert_int_equal(notice.status, ACCRT_OK);
    assert_int_equal(memory.host[63], 6);
    quiet.number = next_number(d);
    assert_int_equal(d->table->queue_enqueue(d->queue, &bad, &quiet), ACCRT_OK);
    direct_notify(d, d->queue, &failed);
    direct_await(d, &failed);
    assert_int_equal(failed.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  d->table->list_destroy(list);
}

const cts_test_t cts_direct_amount_tests[] = {
    CTS_O(test_work_may_be_large, KERNELS),
    CTS_O(test_worker_ids_differ, KERNELS),
    CTS_O(test_work_has_any_size, KERNELS),
    CTS_O(test_repetition_of_anything_allocates_nothing, KERNELS),
    CTS_O(test_facts_leave_nothing_unfilled, CTS_NEEDS_TABLE),
    CTS_O(test_strides_of_one_row_do_not_count, CTS_NEEDS_TABLE),
    CTS_O(test_failures_name_the_workgroup, KERNELS),
    CTS_O(test_work_needs_no_listener, KERNELS),
    CTS_END};
