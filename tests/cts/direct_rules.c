/* tests/cts/direct_rules.c - the third file of the part `direct`: rules that hold for each function
 * in each state. What a list keeps from one execution to the next, what is left after a function
 * has returned an error, when commands begin and end.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <unistd.h>

/* ---- What a list keeps ---- */

#define KEPT_WAYS 3 /* enqueued on one queue, on another, and run by the caller */

static void execute_in_a_way(direct_t* d, int way, accrt_driver_queue_t* other,
                             accrt_driver_list_t* list, const accrt_driver_binding_t* bindings,
                             uint32_t binding_count, const uint64_t* scalars,
                             uint32_t scalar_count) {
  outcome_t outcome;
  if (way == 2 && HAS(d, queue_run)) {
    const accrt_driver_submission_t submission =
        direct_submission(d, bindings, binding_count, scalars, scalar_count, &outcome);
    assert_int_equal(d->table->queue_run(d->queue, list, &submission), ACCRT_OK);
    return;
  }
  direct_submit(d, way == 1 ? other : d->queue, list, bindings, binding_count, scalars,
                scalar_count, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_OK);
}

/* A list of a kernel, a fill and a copy whose bindings and scalars are those of this execution,
 * whatever those of the last one were: also where the flags say that they seldom change. */
static void test_bindings_that_seldom_change_do_change(void** state) {
  direct_t* d = *state;
  const memory_t memories[3] = {direct_memory(d, 256), direct_memory(d, 256),
                                direct_memory(d, 256)};
  accrt_driver_queue_t* other = make_queue(d);
  const uint64_t template[8] = {0, 0, 7, 7, 7, 7, 7, 7};
  accrt_driver_patch_t patches[2] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(16), direct_constant(8))},
      {.kind = ACCRT_DRIVER_PATCH_VALUE,
       .offset_bytes = 8,
       .size_bytes = 8,
       .value = direct_scalar(0, 0)}};
  uint32_t before[3] = {0, 0, 1};
  accrt_driver_command_t commands[3] = {direct_dispatch(d, &direct_keep_block, template, 64),
                                        fill_command(0, 64, 0x5A), copy_command(0, 0, 1, 64, 64)};
  commands[0].as.dispatch.patches = patches;
  commands[0].as.dispatch.patch_count = 2;
  commands[1].as.fill.target.offset = direct_scalar(0, 1);
  for (uint32_t i = 1; i < 3; ++i) {
    commands[i].predecessors = &before[i];
    commands[i].predecessor_count = 1;
  }
  commands[2].as.copy.source.offset = direct_scalar(0, 1);
  for (uint32_t stable = 0; stable < 4; ++stable) {
    uint32_t flags[2] = {stable & 1 ? ACCRT_DRIVER_BINDING_STABLE : 0,
                         stable & 2 ? ACCRT_DRIVER_BINDING_STABLE : 0};
    char name[16] = "seldom";
    accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                     .command_count = 3,
                                     .commands = commands,
                                     .binding_count = 2,
                                     .scalar_count = 2,
                                     .binding_flags = flags,
                                     .name = name};
    accrt_driver_list_t* list = NULL;
    assert_int_equal(d->table->list_create(d->device, &info, &list), ACCRT_OK);
    memset(&info, 0xFF, sizeof info);
    memset(flags, stable & 1 ? 0 : 0xFF, sizeof flags);
    /* Each time another: the first, the second, both, none, only a scalar. */
    static const uint32_t turns[][3] = {{0, 1, 0}, {2, 1, 0}, {2, 0, 0}, {0, 1, 0}, {0, 1, 0},
                                        {0, 1, 1}, {1, 2, 1}, {1, 0, 0}, {2, 0, 1}};
    for (size_t turn = 0; turn < KEPT_WAYS * (sizeof turns / sizeof *turns); ++turn) {
      const uint32_t* now = turns[turn / KEPT_WAYS];
      const uint64_t scalars[2] = {100 + turn, (uint64_t)now[2] * 64};
      const accrt_driver_binding_t bindings[2] = {direct_binding(&memories[now[0]]),
                                                  direct_binding(&memories[now[1]])};
      for (int i = 0; i < 3; ++i)
        memset(memories[i].host, 0xEE, 256);
      direct_forget_calls();
      execute_in_a_way(d, (int)(turn % KEPT_WAYS), other, list, bindings, 2, scalars, 2);
      const uint64_t* block = (const uint64_t*)(const void*)direct_seen.block;
      assert_int_equal(block[0], bindings[0].address + 16);
      assert_int_equal(block[1], scalars[0]);
      assert_int_equal(block[7], 7);
      for (uint32_t i = 0; i < 3; ++i) {
        for (uint32_t at = 0; at < 256; ++at) {
          const bool filled = i == now[0] && at >= scalars[1] && at < scalars[1] + 64;
          const bool copied = i == now[1] && at >= 64 && at < 128;
          assert_int_equal(memories[i].host[at], filled || copied ? 0x5A : 0xEE);
        }
      }
    }
    d->table->list_destroy(list);
  }
  d->table->queue_destroy(other);
}

/* ---- What an error leaves ---- */

#define REFUSED_VALUES 24u
/* One call whose allocations fail, one after another. */
typedef struct attempt {
  direct_t* bench;
  accrt_driver_queue_t* queue;
  memory_t memory;
  accrt_driver_binding_t bindings[REFUSED_VALUES];
  uint64_t scalars[REFUSED_VALUES];
  accrt_driver_patch_t patches[REFUSED_VALUES];
  accrt_driver_command_t command, commands[4];
  uint32_t before[4];
  unsigned char template[512];
  char name[512];
  accrt_driver_list_t* list;
  accrt_driver_event_t* event;
  accrt_driver_launch_t* launch;
  accrt_driver_memory_t exportable;
  outcome_t outcome;
  uint64_t number;
  void* made; /* not NULL: what the call has left in its output */
  accrt_driver_memory_t out_memory;
  accrt_driver_handle_t out_handle;
} attempt_t;

#define SOME_POINTER ((void*)(uintptr_t)0x5A5A5A50u)

static accrt_status_t try_enqueue(attempt_t* a) {
  const accrt_driver_submission_t submission = direct_submission(
      a->bench, a->bindings, REFUSED_VALUES, a->scalars, REFUSED_VALUES, &a->outcome);
  a->number = submission.number;
  return a->bench->table->queue_enqueue(a->queue, &a->command, &submission);
}

static accrt_status_t try_enqueue_quietly(attempt_t* a) {
  accrt_driver_submission_t submission = direct_submission(a->bench, a->bindings, REFUSED_VALUES,
                                                           a->scalars, REFUSED_VALUES, &a->outcome);
  a->number = submission.number;
  submission.completion = (accrt_driver_completion_t){NULL, NULL};
  return a->bench->table->queue_enqueue(a->queue, &a->command, &submission);
}

static accrt_status_t try_execute(attempt_t* a) {
  const accrt_driver_submission_t submission = direct_submission(
      a->bench, a->bindings, REFUSED_VALUES, a->scalars, REFUSED_VALUES, &a->outcome);
  a->number = submission.number;
  return a->bench->table->queue_execute(a->queue, a->list, &submission);
}

static accrt_status_t try_run(attempt_t* a) {
  const accrt_driver_submission_t submission = direct_submission(
      a->bench, a->bindings, REFUSED_VALUES, a->scalars, REFUSED_VALUES, &a->outcome);
  return a->bench->table->queue_run(a->queue, a->list, &submission);
}

static accrt_status_t try_notify(attempt_t* a) {
  return a->bench->table->queue_notify(a->queue, direct_completion(&a->outcome));
}

static accrt_status_t try_launch(attempt_t* a) {
  static const uint32_t grid[3] = {1, 1, 1};
  _Alignas(16) unsigned char block[64] = {0};
  a->number = next_number(a->bench);
  return a->bench->table->queue_launch(a->queue, a->launch, grid, block, a->number);
}

/* The first record of an event. */
static accrt_status_t try_record(attempt_t* a) {
  const accrt_driver_table_t* table = a->bench->table;
  const long allowed = atomic_exchange(&a->bench->allowed, LONG_MAX);
  accrt_driver_event_t* event = make_event(a->bench, 0);
  atomic_store(&a->bench->allowed, allowed);
  const accrt_status_t status = table->event_record(a->queue, event);
  atomic_store(&a->bench->allowed, LONG_MAX);
  assert_int_equal(status == ACCRT_OK ? reach(a->bench, event) : table->event_query(event),
                   ACCRT_OK);
  table->event_destroy(event);
  return status;
}

static accrt_status_t try_wait(attempt_t* a) {
  return a->bench->table->event_wait(a->queue, a->event);
}

static accrt_status_t try_create_queue(attempt_t* a) {
  accrt_driver_queue_t* made = SOME_POINTER;
  const accrt_status_t status = a->bench->table->queue_create(a->bench->device, 0, &made);
  if (status == ACCRT_OK)
    a->bench->table->queue_destroy(made);
  a->made = made;
  return status;
}

static accrt_status_t try_create_list(attempt_t* a) {
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = 4,
                                         .commands = a->commands,
                                         .binding_count = REFUSED_VALUES,
                                         .scalar_count = REFUSED_VALUES,
                                         .name = a->name};
  accrt_driver_list_t* made = SOME_POINTER;
  const accrt_status_t status = a->bench->table->list_create(a->bench->device, &info, &made);
  if (status == ACCRT_OK)
    a->bench->table->list_destroy(made);
  a->made = made;
  return status;
}

static accrt_status_t try_create_event(attempt_t* a) {
  accrt_driver_event_t* made = SOME_POINTER;
  const accrt_status_t status = a->bench->table->event_create(a->bench->device, 0, &made);
  if (status == ACCRT_OK)
    a->bench->table->event_destroy(made);
  a->made = made;
  return status;
}

static accrt_status_t try_create_launch(attempt_t* a) {
  accrt_driver_launch_t* made = SOME_POINTER;
  const accrt_status_t status =
      a->bench->table->launch_create(a->bench->device, &direct_count, &made);
  if (status == ACCRT_OK)
    a->bench->table->launch_destroy(made);
  a->made = made;
  return status;
}

static accrt_status_t try_open(attempt_t* a) {
  accrt_driver_t* made = SOME_POINTER;
  const accrt_status_t status = a->bench->table->open(&a->bench->environment, &made);
  if (status == ACCRT_OK)
    a->bench->table->close(made);
  a->made = made;
  return status;
}

/* Of a driver that is opened with all it needs. */
static accrt_status_t try_open_device(attempt_t* a) {
  const accrt_driver_table_t* table = a->bench->table;
  const long allowed = atomic_exchange(&a->bench->allowed, LONG_MAX);
  accrt_driver_t* driver = NULL;
  accrt_driver_device_t* made = SOME_POINTER;
  assert_int_equal(table->open(&a->bench->environment, &driver), ACCRT_OK);
  assert_true(table->device_count(driver) != 0);
  atomic_store(&a->bench->allowed, allowed);
  const accrt_status_t status = table->device_open(driver, a->bench->index, &made);
  atomic_store(&a->bench->allowed, LONG_MAX);
  if (status == ACCRT_OK)
    table->device_close(made);
  table->close(driver);
  a->made = made;
  return status;
}

static accrt_status_t try_allocate(attempt_t* a) {
  direct_t* d = a->bench;
  const accrt_status_t status =
      d->table->memory_allocate(d->device, d->memory_kind, 1 << 16, &a->out_memory);
  if (status == ACCRT_OK)
    d->table->memory_free(d->device, &a->out_memory);
  return status;
}

static accrt_status_t try_import(attempt_t* a) {
  static unsigned char mine[1 << 16];
  direct_t* d = a->bench;
  const accrt_status_t status =
      d->table->memory_import(d->device, mine, sizeof mine, &a->out_memory);
  if (status == ACCRT_OK)
    d->table->memory_unimport(d->device, &a->out_memory);
  return status;
}

static accrt_status_t try_allocate_exportable(attempt_t* a) {
  direct_t* d = a->bench;
  const accrt_status_t status = d->table->memory_allocate_exportable(
      d->device, 1 << 16, ACCRT_DRIVER_HANDLE_FD, &a->out_memory);
  if (status == ACCRT_OK)
    d->table->memory_free(d->device, &a->out_memory);
  return status;
}

static accrt_status_t try_export(attempt_t* a) {
  direct_t* d = a->bench;
  const accrt_status_t status =
      d->table->memory_export(d->device, &a->exportable, ACCRT_DRIVER_HANDLE_FD, &a->out_handle);
  if (status == ACCRT_OK)
    close(a->out_handle.fd);
  return status;
}

static accrt_status_t try_import_handle(attempt_t* a) {
  direct_t* d = a->bench;
  accrt_driver_handle_t handle;
  const long allowed = atomic_exchange(&d->allowed, LONG_MAX);
  assert_int_equal(
      d->table->memory_export(d->device, &a->exportable, ACCRT_DRIVER_HANDLE_FD, &handle),
      ACCRT_OK);
  atomic_store(&d->allowed, allowed);
  const accrt_status_t status = d->table->memory_import_handle(d->device, &handle, &a->out_memory);
  atomic_store(&d->allowed, LONG_MAX);
  if (status == ACCRT_OK)
    d->table->memory_unimport(d->device, &a->out_memory);
  close(handle.fd);
  return status;
}

#define OUTPUT_POINTER 1u /* the call writes `made` */
#define OUTPUT_MEMORY 2u
#define OUTPUT_HANDLE 4u
#define IS_WORK 8u /* of a queue, with a completion */
#define NEEDS(slot) offsetof(accrt_driver_table_t, slot)
static const struct attempt_kind {
  const char* name;
  accrt_status_t (*call)(attempt_t* attempt);
  uint32_t traits;
  size_t slot;
} attempt_kinds[] = {
    {"queue_enqueue", try_enqueue, IS_WORK, NEEDS(queue_enqueue)},
    {"queue_enqueue without a completion", try_enqueue_quietly, 0, NEEDS(queue_progress)},
    {"queue_execute", try_execute, IS_WORK, NEEDS(queue_execute)},
    {"queue_run", try_run, 0, NEEDS(queue_run)},
    {"queue_notify", try_notify, IS_WORK, NEEDS(queue_notify)},
    {"queue_launch", try_launch, 0, NEEDS(queue_launch)},
    {"event_record", try_record, 0, NEEDS(event_record)},
    {"event_wait", try_wait, 0, NEEDS(event_wait)},
    {"queue_create", try_create_queue, OUTPUT_POINTER, NEEDS(queue_create)},
    {"list_create", try_create_list, OUTPUT_POINTER, NEEDS(list_create)},
    {"event_create", try_create_event, OUTPUT_POINTER, NEEDS(event_create)},
    {"launch_create", try_create_launch, OUTPUT_POINTER, NEEDS(launch_create)},
    {"open", try_open, OUTPUT_POINTER, NEEDS(open)},
    {"device_open", try_open_device, OUTPUT_POINTER, NEEDS(device_open)},
    {"memory_allocate", try_allocate, OUTPUT_MEMORY, NEEDS(memory_allocate)},
    {"memory_import", try_import, OUTPUT_MEMORY, NEEDS(memory_import)},
    {"memory_allocate_exportable", try_allocate_exportable, OUTPUT_MEMORY,
     NEEDS(memory_allocate_exportable)},
    {"memory_export", try_export, OUTPUT_HANDLE, NEEDS(memory_export)},
    {"memory_import_handle", try_import_handle, OUTPUT_MEMORY, NEEDS(memory_import_handle)},
};
#define ATTEMPT_KINDS (sizeof attempt_kinds / sizeof *attempt_kinds)

static bool has_slot(const direct_t* d, size_t slot) {
  void (*function)(void) = NULL;
  if (d->table->struct_size >= slot + sizeof function)
    memcpy(&function, (const char*)d->table + slot, sizeof function);
  return function != NULL;
}

/* Large, so that no storage of smaller work will do: a block, patches, a name, bindings, scalars. */
static void prepare_attempts(attempt_t* a, direct_t* d) {
  a->bench = d;
  a->memory = direct_memory(d, 256);
  memset(a->name, 'n', sizeof a->name - 1);
  for (uint32_t i = 0; i < REFUSED_VALUES; ++i) {
    a->bindings[i] = direct_binding(&a->memory);
    a->scalars[i] = i;
    a->patches[i] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                                           .offset_bytes = 8 * i,
                                           .size_bytes = 8,
                                           .value = direct_scalar(1, i)};
  }
  a->command = direct_dispatch(d, &direct_count, a->template, sizeof a->template);
  a->command.name = a->name;
  a->command.as.dispatch.patches = a->patches;
  a->command.as.dispatch.patch_count = REFUSED_VALUES;
  a->commands[0] = a->commands[3] = a->command;
  a->commands[1] = fill_command(0, 64, 1);
  a->commands[2].opcode = ACCRT_DRIVER_COMMAND_BARRIER;
  a->commands[1].predecessors = &a->before[0];
  a->commands[1].predecessor_count = 1;
  a->list = direct_list(d, a->commands, 4, REFUSED_VALUES, REFUSED_VALUES);
  if (HAS(d, event_create))
    a->event = make_event(d, 0);
  if (a->event != NULL) {
    record_event(d, d->queue, a->event);
    assert_int_equal(reach(d, a->event), ACCRT_OK);
  }
  if (HAS(d, launch_create))
    a->launch = make_launch(d, &direct_count);
  if (HAS(d, memory_allocate_exportable) &&
      d->table->memory_allocate_exportable(d->device, 1 << 16, ACCRT_DRIVER_HANDLE_FD,
                                           &a->exportable) != ACCRT_OK)
    memset(&a->exportable, 0, sizeof a->exportable);
}

static void end_attempts(attempt_t* a) {
  direct_t* d = a->bench;
  d->table->list_destroy(a->list);
  if (a->event != NULL)
    d->table->event_destroy(a->event);
  if (a->launch != NULL)
    d->table->launch_destroy(a->launch);
  if (a->exportable.size_bytes != 0)
    d->table->memory_free(d->device, &a->exportable);
}

/* The queue is as it was: idle, healthy, at the same number; and the next work is done. */
static void check_untouched(attempt_t* a, uint64_t number) {
  direct_t* d = a->bench;
  if (HAS(d, queue_progress)) {
    assert_int_equal(ask(d, a->queue), number);
    static const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};
    for (int i = 0; i < 3; ++i) {
      assert_int_equal(d->table->queue_wait(a->queue, UINT64_MAX, i == 0 ? 0 : direct_patience_ns(),
                                            policies[i]),
                       ACCRT_OK);
    }
    assert_int_equal(
        d->table->queue_wait(a->queue, a->number, direct_patience_ns(), ACCRT_WAIT_BLOCK),
        ACCRT_OK);
  }
  if (a->event != NULL)
    assert_int_equal(d->table->event_query(a->event), ACCRT_OK);
  assert_int_equal(direct_seen.calls, 0);
  const accrt_driver_command_t fill = fill_command(0, 64, 0x33);
  outcome_t outcome, notice;
  memset(a->memory.host, 0, 64);
  direct_enqueue(d, a->queue, &fill, a->bindings, 1, NULL, 0, &outcome);
  direct_notify(d, a->queue, &notice);
  direct_await(d, &outcome);
  direct_await(d, &notice);
  assert_int_equal(outcome.status, ACCRT_OK);
  assert_int_equal(notice.status, ACCRT_OK);
  assert_int_equal(a->memory.host[63], 0x33);
  assert_int_equal(atomic_load(&a->outcome.times), 0);
  if (HAS(d, queue_progress)) {
    assert_int_equal(
        d->table->queue_wait(a->queue, UINT64_MAX, direct_patience_ns(), ACCRT_WAIT_BLOCK),
        ACCRT_OK);
    assert_true(ask(d, a->queue) >= outcome.number);
  }
}

/* With so many allocations. True: it was done. */
static bool attempt(attempt_t* a, const struct attempt_kind* kind, long allowed, bool warm) {
  direct_t* d = a->bench;
  const bool from_outside = d->library != NULL; /* built-in ones record it as the library does */
  a->queue = make_queue(d);
  if (warm) { /* it has storage of what came before */
    const accrt_driver_command_t marker = {.opcode = ACCRT_DRIVER_COMMAND_MARKER};
    outcome_t first;
    direct_enqueue(d, a->queue, &marker, NULL, 0, NULL, 0, &first);
    direct_await(d, &first);
  }
  direct_forget_calls();
  memset(&a->outcome, 0, sizeof a->outcome);
  memset(&a->out_memory, 0xFF, sizeof a->out_memory);
  memset(&a->out_handle, 0xFF, sizeof a->out_handle);
  a->number = 0;
  const uint64_t number = HAS(d, queue_progress) ? ask(d, a->queue) : 0;
  direct_forget_failure();
  atomic_store(&d->allowed, allowed);
  const accrt_status_t status = kind->call(a);
  if (status == ACCRT_OK && (kind->traits & IS_WORK) != 0)
    direct_await(d, &a->outcome);
  atomic_store(&d->allowed, LONG_MAX);
  if (status == ACCRT_OK) {
    if ((kind->traits & IS_WORK) != 0 && a->outcome.status != ACCRT_OK) {
      /* It found out later. */
      assert_int_equal(a->outcome.status, ACCRT_ERROR_OUT_OF_MEMORY);
      d->table->queue_destroy(a->queue);
      return false;
    }
    if (HAS(d, queue_progress))
      wait_for(d, a->queue, UINT64_MAX);
    outcome_t last;
    direct_notify(d, a->queue, &last);
    direct_await(d, &last);
    d->table->queue_destroy(a->queue);
    return true;
  }
  if (status != ACCRT_ERROR_OUT_OF_MEMORY &&
      !((kind->traits & OUTPUT_MEMORY) != 0 && status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY))
    fail_msg("%s without memory: status %u", kind->name, (unsigned)status);
  if (from_outside && direct_failure.status != status)
    fail_msg("%s without memory: no record", kind->name);
  if ((kind->traits & OUTPUT_POINTER) != 0)
    assert_null(a->made);
  const accrt_driver_memory_t no_memory = {0};
  if ((kind->traits & OUTPUT_MEMORY) != 0)
    assert_memory_equal(&a->out_memory, &no_memory, sizeof no_memory);
  if ((kind->traits & OUTPUT_HANDLE) != 0)
    assert_true(a->out_handle.kind == 0 && a->out_handle.fd <= 0);
  check_untouched(a, number);
  d->table->queue_destroy(a->queue);
  return false;
}

/* Each allocation of each function fails in turn: it returns the error, and has changed nothing. */
static void test_what_is_refused_changes_nothing(void** state) {
  direct_t* d = *state;
  attempt_t* a = calloc(1, sizeof *a);
  assert_non_null(a);
  prepare_attempts(a, d);
  for (size_t i = 0; i < ATTEMPT_KINDS; ++i) {
    const struct attempt_kind* kind = &attempt_kinds[i];
    if (!has_slot(d, kind->slot) ||
        (kind->slot >= NEEDS(memory_allocate_exportable) && a->exportable.size_bytes == 0))
      continue;
    for (int warm = 0; warm < 2; ++warm) {
      long allowed = 0;
      while (allowed < 64 && !attempt(a, kind, allowed, warm != 0))
        ++allowed;
      if (allowed == 64)
        fail_msg("%s: 64 allocations are not enough", kind->name);
    }
  }
  end_attempts(a);
  free(a);
}

/* Local memory that is not to be had: the launch is refused, or completes with that failure; no
 * kernel runs without. */
static void test_kernels_do_not_run_without_their_memory(void** state) {
  direct_t* d = *state;
  const accrt_driver_command_t command = direct_dispatch(d, &direct_look_around, NULL, 0);
  const accrt_driver_command_t good = direct_dispatch(d, &direct_count, NULL, 0);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
  for (int turn = 0; turn < 4; ++turn) {
    outcome_t outcome, behind, again;
    const accrt_driver_submission_t submission = direct_submission(d, NULL, 0, NULL, 0, &outcome);
    direct_forget_calls();
    atomic_store(&d->allowed, 0);
    const accrt_status_t status = turn % 2 == 0
                                      ? d->table->queue_enqueue(d->queue, &command, &submission)
                                      : d->table->queue_execute(d->queue, list, &submission);
    if (status == ACCRT_OK)
      direct_await(d, &outcome);
    atomic_store(&d->allowed, LONG_MAX);
    const bool failed = status == ACCRT_OK && outcome.status != ACCRT_OK;
    if (status != ACCRT_OK)
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    if (failed) {
      assert_int_equal(outcome.status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_int_equal(outcome.error.status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_int_equal(outcome.error.submission, outcome.number);
      assert_true(outcome.error.message[0] != '\0' && outcome.error.operation[0] != '\0');
    }
    const bool ran = status == ACCRT_OK && !failed;
    assert_int_equal(direct_seen.calls, ran ? 1 : 0);
    assert_string_equal(direct_seen.wrong, "");
    direct_enqueue(d, d->queue, &good, NULL, 0, NULL, 0, &behind);
    direct_await(d, &behind);
    assert_int_equal(behind.status, failed ? ACCRT_ERROR_POISONED : ACCRT_OK);
    if (failed)
      assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    direct_forget_calls();
    direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &again);
    direct_await(d, &again);
    assert_int_equal(again.status, ACCRT_OK);
    assert_int_equal(direct_seen.calls, 1);
    assert_string_equal(direct_seen.wrong, "");
  }
  d->table->list_destroy(list);
}

/* ---- When commands begin and end ---- */

/* NULL: it was not reported. */
static const trace_t* find_trace(direct_t* d, uint64_t number, const char* name) {
  const uint32_t count = atomic_load(&d->trace_count);
  const trace_t* found = NULL;
  for (uint32_t i = 0; i < count && i < DIRECT_MAX_TRACES; ++i) {
    if (d->traces[i].event.submission != number || strcmp(d->traces[i].name, name) != 0)
      continue;
    assert_null(found); /* once */
    found = &d->traces[i];
  }
  return found;
}

static const trace_t* need_trace(direct_t* d, uint64_t number, const char* name) {
  const trace_t* found = find_trace(d, number, name);
  if (found == NULL)
    fail_msg("'%s' is not traced", name);
  return found;
}

#define TIMED 9u
/* A kernel, a copy, a kernel, a barrier, two kernels of which neither names the other, a marker, a
 * grid of nothing, a fill: each begins when those before it have ended, and not before. */
static void test_commands_begin_when_others_have_ended(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 256);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  const int well = 0;
  static const char* const names[TIMED] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"};
  static const uint32_t before[TIMED][2] = {{0}, {0}, {1}, {0}, {0}, {0}, {4, 5}, {6}, {7}};
  static const uint32_t counts[TIMED] = {0, 1, 1, 0, 0, 0, 2, 1, 1};
  static const bool is_long[TIMED] = {true, false, true, false, true, true, false, false, false};
  accrt_driver_command_t commands[TIMED];
  memset(commands, 0, sizeof commands);
  for (uint32_t i = 0; i < TIMED; ++i) {
    if (is_long[i])
      commands[i] = direct_dispatch(d, &direct_take_long, &well, sizeof well);
    commands[i].predecessors = before[i];
    commands[i].predecessor_count = counts[i];
  }
  commands[1] = copy_command(0, 0, 0, 64, 64);
  commands[1].predecessors = before[1];
  commands[1].predecessor_count = 1;
  commands[3].opcode = ACCRT_DRIVER_COMMAND_BARRIER;
  commands[6].opcode = ACCRT_DRIVER_COMMAND_MARKER;
  commands[7] = direct_dispatch(d, &direct_count, NULL, 0);
  commands[7].as.dispatch.grid[1] = direct_constant(0);
  commands[7].predecessors = before[7];
  commands[7].predecessor_count = 1;
  commands[8] = fill_command(0, 64, 1);
  commands[8].predecessors = before[8];
  commands[8].predecessor_count = 1;
  for (uint32_t i = 0; i < TIMED; ++i)
    commands[i].name = names[i];
  accrt_driver_list_t* list = direct_list(d, commands, TIMED, 1, 0);
  uint64_t ended_ns = cts_now_ns(); /* of all before */
  for (int turn = 0; turn < 3; ++turn) {
    atomic_store(&d->trace_count, 0);
    outcome_t alone, whole, last;
    direct_enqueue(d, d->queue, &commands[0], NULL, 0, NULL, 0, &alone);
    direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &whole);
    direct_enqueue(d, d->queue, &commands[8], &binding, 1, NULL, 0, &last);
    direct_await(d, &alone);
    direct_await(d, &whole);
    direct_await(d, &last);
    const trace_t* first = need_trace(d, alone.number, names[0]);
    assert_true(first->event.begin_ns >= ended_ns);
    assert_true(first->event.end_ns >= first->event.begin_ns + 2 * MILLISECOND);
    assert_true(first->event.end_ns <= alone.time_ns);
    const trace_t* traces[TIMED];
    for (uint32_t i = 0; i < TIMED; ++i) {
      traces[i] = (i == 3 ? find_trace : need_trace)(d, whole.number, names[i]);
      if (traces[i] == NULL)
        continue; /* the barrier, which does nothing of its own */
      const accrt_trace_event_t* event = &traces[i]->event;
      assert_true(event->begin_ns >= first->event.end_ns);
      assert_true(event->end_ns >= event->begin_ns + (is_long[i] ? 2 * MILLISECOND : 0));
      assert_true(event->end_ns <= whole.time_ns);
      for (uint32_t k = 0; k < counts[i]; ++k)
        assert_true(event->begin_ns >= traces[before[i][k]]->event.end_ns);
      for (uint32_t k = 0; k < 3 && i >= 3; ++k)
        assert_true(event->begin_ns >= traces[k]->event.end_ns);
      if (i > 3 && traces[3] != NULL)
        assert_true(event->begin_ns >= traces[3]->event.end_ns);
    }
    const trace_t* end = need_trace(d, last.number, names[8]);
    assert_true(end->event.begin_ns >= traces[8]->event.end_ns);
    assert_true(end->event.end_ns <= last.time_ns);
    ended_ns = end->event.end_ns;
    assert_int_equal(atomic_load(&d->trace_count), TIMED + 1 + (traces[3] != NULL));
  }
  d->table->list_destroy(list);
}

/* ---- Commands of a kind that the driver does not know ---- */

static void check_refusal(accrt_status_t status, uint32_t kind) {
  char number[16];
  snprintf(number, sizeof number, "kind %" PRIu32, kind);
  if (status != ACCRT_ERROR_UNSUPPORTED)
    fail_msg("a command of %s: status %u", number, (unsigned)status);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_UNSUPPORTED);
  const char* at = strstr(direct_failure.message, number);
  if (at == NULL || (at[strlen(number)] >= '0' && at[strlen(number)] <= '9'))
    fail_msg("a command of %s is refused with '%s'", number, direct_failure.message);
}

/* Alone, or in a list, behind a fill and before one. Nothing runs, and nobody hears of it later. */
static void refuse_one(direct_t* d, uint32_t kind, const memory_t* memory) {
  const accrt_driver_binding_t binding = direct_binding(memory);
  const accrt_driver_command_t fill = fill_command(0, 64, 0x55);
  const accrt_driver_command_t command = {.opcode = kind, .name = "of a later version"};
  const accrt_driver_command_t commands[3] = {fill, command, fill};
  outcome_t refused, behind;
  const accrt_driver_submission_t submission = direct_submission(d, &binding, 1, NULL, 0, &refused);
  direct_forget_failure();
  check_refusal(d->table->queue_enqueue(d->queue, &command, &submission), kind);
  if (kind != ACCRT_DRIVER_COMMAND_OPERATOR) {
    for (uint32_t first = 0; first < 2; ++first) {
      const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                             .command_count = 3 - first,
                                             .commands = commands + first,
                                             .binding_count = 1};
      accrt_driver_list_t* list = (accrt_driver_list_t*)(uintptr_t)0x10;
      direct_forget_failure();
      check_refusal(d->table->list_create(d->device, &info, &list), kind);
      assert_null(list);
    }
  }
  direct_notify(d, d->queue, &behind);
  direct_await(d, &behind);
  assert_int_equal(behind.status, ACCRT_OK);
  assert_false(has_ended(&refused));
  for (uint32_t i = 0; i < 64; ++i)
    assert_int_equal(memory->host[i], 0);
}

/* A driver that skips what it does not know, or that fails behind the commands before it, would
 * leave half of the work undone. */
static void test_unknown_commands_are_refused(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  static const uint32_t kinds[] = {ACCRT_DRIVER_COMMAND_OPERATOR + 1, 0,         99, 0x10001,
                                   ACCRT_DRIVER_COMMAND_OPERATOR,     UINT32_MAX};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    memset(memory.host, 0, 64);
    refuse_one(d, kinds[i], &memory);
    /* The queue goes on. */
    const accrt_driver_command_t fill = fill_command(0, 64, 0x21 + i);
    outcome_t outcome;
    direct_enqueue(d, d->queue, &fill, &binding, 1, NULL, 0, &outcome);
    direct_await(d, &outcome);
    assert_int_equal(outcome.status, ACCRT_OK);
    assert_int_equal(memory.host[63], 0x21 + i);
  }
}

const cts_test_t cts_direct_rule_tests[] = {
    CTS_O(test_bindings_that_seldom_change_do_change, KERNELS),
    CTS_O(test_what_is_refused_changes_nothing, KERNELS),
    CTS_O(test_kernels_do_not_run_without_their_memory, KERNELS),
    CTS_O(test_commands_begin_when_others_have_ended, KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_unknown_commands_are_refused, CTS_NEEDS_TABLE),
    CTS_END};
