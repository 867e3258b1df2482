/* What a driver is asked to do for a stream that traces, beside what it is asked to do without a
 * trace: the same work in the same order. The numbers are the same too, but for waits, which take
 * none if the semaphore is seen to have its value already, and on drivers with events of their own,
 * where signals take none either. */
#include "runtime/drivers/common/numbers_test.h"
#include "runtime/drivers/common/objects.h"
#include "tests/random.h"

#define STEPS 400
#define WORDS 16

/* A call of the driver that gives it work. */
typedef struct asked {
  uint64_t number;
  uint32_t opcode; /* 0: a command list */
  bool has_completion;
  bool is_launch; /* by queue_launch */
} asked_t;

typedef struct record {
  asked_t calls[STEPS];
  uint32_t count;
  int marks; /* calls of queue_notify */
  uint32_t words[WORDS];
} record_t;

static record_t* record;
static accrt_driver_table_t recorded;
static const accrt_driver_table_t* real;

static void note(const asked_t* asked) {
  assert_true(record->count < STEPS);
  record->calls[record->count++] = *asked;
}

static accrt_status_t note_enqueue(accrt_driver_queue_t* queue,
                                   const accrt_driver_command_t* command,
                                   const accrt_driver_submission_t* submission) {
  note(&(asked_t){submission->number, command->opcode, submission->completion.done != NULL, false});
  return real->queue_enqueue(queue, command, submission);
}

static accrt_status_t note_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                   const accrt_driver_submission_t* submission) {
  note(&(asked_t){submission->number, 0, submission->completion.done != NULL, false});
  return real->queue_execute(queue, list, submission);
}

static accrt_status_t note_launch(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                  const uint32_t grid[3], const void* params, uint64_t number) {
  note(&(asked_t){number, ACCRT_DRIVER_COMMAND_DISPATCH, false, true});
  return real->queue_launch(queue, launch, grid, params, number);
}

static void ignore_event(void* self, const accrt_trace_event_t* event) {
  (void)self;
  (void)event;
}

/* As test_world_open, with a trace where one is asked for, and with a driver that notes its calls.
 */
static void open_recorded(bool is_traced, bool has_events) {
  memset(&world, 0, sizeof world);
  test_driver_reset(TEST_DRIVER_STEPPED);
  const accrt_allocator_t allocator = test_allocator_interface(&world.allocator);
  static const accrt_trace_sink_t sink = {NULL, ignore_event};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  options.trace_sink = is_traced ? &sink : NULL;
  assert_int_equal(accrt_instance_create(&options, &world.instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(world.instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world.instance, "test", &world.device), ACCRT_OK);
  if (!has_events)
    accrt_upper_device(world.device)->native_events = 0;
  real = world.device->table;
  recorded = *real;
  recorded.queue_enqueue = note_enqueue;
  recorded.queue_execute = note_execute;
  recorded.queue_launch = note_launch;
  world.device->table = &recorded;
}

typedef struct used {
  accrt_stream_t* stream;
  accrt_buffer_t* buffer;
  accrt_launch_t* launch;
  accrt_commands_t* commands;
  accrt_semaphore_t* semaphore;
  uint64_t signalled;
  bool waits;
} used_t;

static void take_step(used_t* used, uint64_t* random) {
  static const uint32_t grid[3] = {1, 1, 1};
  const uint64_t at = test_random(random) % WORDS;
  uint32_t* word = &record->words[at];
  uint32_t* other = &record->words[(at + 1 + test_random(random) % (WORDS - 1)) % WORDS];
  const uint32_t value = (uint32_t)test_random(random);
  const accrt_binding_t binding = {NULL, word, 0, 4};
  switch (test_random(random) % 8) {
  case 0:
  case 1:
    fill(used->stream, word, value);
    break;
  case 2:
    copy(used->stream, word, other);
    break;
  case 3:
    assert_int_equal(accrt_stream_launch_prepared(used->stream, used->launch, grid), ACCRT_OK);
    break;
  case 4:
    assert_int_equal(accrt_stream_submit(used->stream, used->commands, &binding, 1, sizeof binding),
                     ACCRT_OK);
    break;
  case 5:
    assert_int_equal(accrt_stream_signal(used->stream, used->semaphore, ++used->signalled),
                     ACCRT_OK);
    break;
  case 6: /* often not reached yet: what follows is deferred */
    if (used->waits)
      assert_int_equal(accrt_stream_wait(used->stream, used->semaphore, used->signalled), ACCRT_OK);
    break;
  default:
    (void)test_driver_step();
    break;
  }
}

/* The same random work with and without a trace. */
static void run_recorded(record_t* into, bool is_traced, bool waits, uint64_t seed) {
  uint64_t random = seed;
  record = into;
  memset(record, 0, sizeof *record);
  open_recorded(is_traced, waits);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  used_t used = {.waits = waits,
                 .stream = make_stream(),
                 .buffer = make_buffer(64),
                 .semaphore = make_semaphore()};
  used.launch = make_launch(kernel, used.buffer, 1);
  assert_int_equal(accrt_stream_traces(used.stream), is_traced);
  assert_int_equal(accrt_commands_create(world.device, 1, &used.commands), ACCRT_OK);
  const accrt_binding_place_t bound = {0, 0, {NULL, NULL, 0}};
  assert_int_equal(accrt_commands_fill(used.commands, &bound, 4, 9, 4, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(used.commands), ACCRT_OK);
  *words_of(used.buffer) = 0;
  for (int i = 0; i < STEPS; ++i)
    take_step(&used, &random);
  run_all();
  assert_int_equal(accrt_stream_synchronize(used.stream, FOREVER, ACCRT_WAIT_BLOCK), ACCRT_OK);
  record->words[0] += *words_of(used.buffer);
  record->marks = (int)atomic_load(&test_driver.notifies);
  accrt_launch_release(used.launch);
  accrt_kernel_pack_release(pack);
  accrt_commands_release(used.commands);
  accrt_semaphore_release(used.semaphore);
  accrt_buffer_release(used.buffer);
  accrt_stream_release(used.stream);
  close_world();
}

static void compare(const record_t* plain, const record_t* traced, bool waits) {
  assert_true(plain->count > STEPS / 4);
  assert_int_equal(plain->count, traced->count);
  for (uint32_t i = 0; i < plain->count; ++i) {
    assert_int_equal(plain->calls[i].opcode, traced->calls[i].opcode);
    if (!waits)
      assert_int_equal(plain->calls[i].number, traced->calls[i].number);
    assert_true(i == 0 || traced->calls[i].number > traced->calls[i - 1].number);
    assert_true(traced->calls[i].has_completion);
    /* queue_launch has no place for a completion: with a trace the dispatch is enqueued. */
    assert_false(traced->calls[i].is_launch);
  }
  /* A signal asks the driver only behind work whose end the driver does not report. */
  assert_true(waits || plain->marks > 0);
  assert_int_equal(traced->marks, 0);
  assert_memory_equal(plain->words, traced->words, sizeof plain->words);
}

static void test_a_trace_changes_no_work(void** state) {
  (void)state;
  static record_t plain, traced;
  const uint64_t seed = test_seed();
  for (uint64_t i = 0; i < 40; ++i) {
    run_recorded(&plain, false, i % 2 == 0, seed + i);
    run_recorded(&traced, true, i % 2 == 0, seed + i);
    compare(&plain, &traced, i % 2 == 0);
  }
}

static void test_prepared_launches_need_no_completion(void** state) {
  (void)state;
  static record_t plain;
  run_recorded(&plain, false, true, test_seed());
  uint32_t launches = 0;
  for (uint32_t i = 0; i < plain.count; ++i)
    launches += plain.calls[i].is_launch;
  assert_true(launches > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_trace_changes_no_work),
      cmocka_unit_test(test_prepared_launches_need_no_completion),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
