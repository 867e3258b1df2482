/* tests/cts/commands.c - recorded command lists: graphs, binding tables, many submissions at once,
 * failures. */
#include "cts.h"

static accrt_commands_t* begin(cts_t* cts, uint32_t binding_count) {
  accrt_commands_t* commands = NULL;
  OK(accrt_commands_create(cts->device, binding_count, &commands));
  return commands;
}

static accrt_status_t dispatch(cts_t* cts, accrt_commands_t* commands, const char* name, uint32_t x,
                               const accrt_kernel_argument_t* arguments, uint32_t count,
                               const accrt_predecessors_t* after, uint32_t* out_index) {
  const uint32_t grid[3] = {x, 1, 1};
  return accrt_commands_dispatch(commands, cts_kernel(cts, name), grid, arguments, count,
                                 CTS_ARGUMENT_SIZE, after, out_index);
}

static void record_append(cts_t* cts, accrt_commands_t* commands, uint32_t binding,
                          uint32_t number) {
  const accrt_kernel_argument_t arguments[2] = {cts_arg_binding(binding, 0, UINT64_MAX),
                                                cts_arg_scalar(number)};
  OK(dispatch(cts, commands, "append", 1, arguments, 2, NULL, NULL));
}

static accrt_binding_t bind(accrt_buffer_t* buffer) {
  return (accrt_binding_t){.buffer = buffer, .size_bytes = UINT64_MAX};
}

static accrt_status_t submit(accrt_stream_t* stream, accrt_commands_t* commands,
                             const accrt_binding_t* bindings, uint32_t count) {
  return accrt_stream_submit(stream, commands, bindings, count, CTS_BINDING_SIZE);
}

static accrt_status_t run(accrt_stream_t* stream, accrt_commands_t* commands,
                          const accrt_binding_t* bindings, uint32_t count) {
  return accrt_stream_run(stream, commands, bindings, count, CTS_BINDING_SIZE, CTS_PATIENCE);
}

static accrt_buffer_t* zeroed(cts_t* cts, uint64_t size_bytes) {
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, 0, 1));
  cts_sync(cts->stream);
  return buffer;
}

/* A finalized list that appends `count` numbers to binding 0. */
static accrt_commands_t* append_list(cts_t* cts, uint32_t count) {
  accrt_commands_t* commands = begin(cts, 1);
  for (uint32_t i = 0; i < count; ++i)
    record_append(cts, commands, 0, i);
  OK(accrt_commands_finalize(commands));
  return commands;
}

static void check_log(cts_t* cts, accrt_buffer_t* log, uint32_t count, uint32_t repeats) {
  uint32_t* words = malloc(4 * ((size_t)count * repeats + 1));
  assert_non_null(words);
  cts_download(cts, log, 0, words, 4 * ((uint64_t)count * repeats + 1));
  assert_int_equal(words[0], count * repeats);
  for (uint32_t i = 0; i < count * repeats; ++i)
    assert_int_equal(words[1 + i], i % count);
  free(words);
}

/* ---- What must work ---- */

static void test_chain(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 1000);
  uint32_t count = 0;
  OK(accrt_commands_count(commands, &count));
  assert_int_equal(count, 1000);
  accrt_buffer_t* log = zeroed(cts, 4 * 3001);
  const accrt_binding_t binding = bind(log);
  OK(submit(cts->stream, commands, &binding, 1));
  cts_sync(cts->stream);
  OK(run(cts->stream, commands, &binding, 1)); /* on an idle stream */
  OK(submit(cts->stream, commands, &binding, 1));
  check_log(cts, log, 1000, 3);
  accrt_buffer_release(log);
  accrt_commands_release(commands);
}

static accrt_stream_t* dividing_stream(cts_t* cts, uint64_t ahead, uint64_t commands_per_piece) {
  accrt_stream_t* stream = NULL;
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.ahead = ahead;
  options.commands_per_piece = commands_per_piece;
  OK(accrt_stream_create(cts->device, &options, &stream));
  return stream;
}

/* A list in pieces does what the whole list does, whatever the size of the pieces. */
static void test_lists_in_pieces(void** state) {
  cts_t* cts = *state;
  static const uint64_t sizes[] = {1, 3, 50, 99, 100, UINT64_MAX};
  accrt_commands_t* commands = append_list(cts, 100);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    accrt_stream_t* stream = dividing_stream(cts, 1 + i % 3, sizes[i]);
    accrt_buffer_t* log = zeroed(cts, 4 * 301);
    const accrt_binding_t binding = bind(log);
    OK(submit(stream, commands, &binding, 1));
    OK(run(stream, commands, &binding, 1));
    OK(submit(stream, commands, &binding, 1));
    cts_sync(stream);
    check_log(cts, log, 100, 3);
    accrt_buffer_release(log);
    accrt_stream_release(stream);
  }
  accrt_commands_release(commands);
}

enum { SHARERS = 3, SHARED_LISTS = 200, SHARED_COMMANDS = 7 };

typedef struct sharer {
  accrt_stream_t* stream;
  accrt_commands_t* commands;
  accrt_buffer_t* log;
} sharer_t;

static void* submit_often(void* user) {
  const sharer_t* own = user;
  const accrt_binding_t binding = bind(own->log);
  for (int i = 0; i < SHARED_LISTS; ++i)
    assert_int_equal(submit(own->stream, own->commands, &binding, 1), ACCRT_OK);
  return NULL;
}

/* Threads divide one list on one stream, at first at the same time: each thread's work stays in
 * order. */
static void test_threads_divide_a_list(void** state) {
  cts_t* cts = *state;
  pthread_t threads[SHARERS];
  sharer_t own[SHARERS];
  accrt_stream_t* stream = dividing_stream(cts, 2, 2);
  accrt_commands_t* commands = append_list(cts, SHARED_COMMANDS);
  for (int i = 0; i < SHARERS; ++i)
    own[i] = (sharer_t){stream, commands, zeroed(cts, 4 * (SHARED_LISTS * SHARED_COMMANDS + 1))};
  for (int i = 0; i < SHARERS; ++i)
    assert_int_equal(pthread_create(&threads[i], NULL, submit_often, &own[i]), 0);
  for (int i = 0; i < SHARERS; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  cts_sync(stream);
  for (int i = 0; i < SHARERS; ++i) {
    check_log(cts, own[i].log, SHARED_COMMANDS, SHARED_LISTS);
    accrt_buffer_release(own[i].log);
  }
  accrt_commands_release(commands);
  accrt_stream_release(stream);
}

typedef struct canceller {
  accrt_stream_t* stream;
  atomic_bool is_over;
} canceller_t;

static void* cancel_often(void* user) {
  canceller_t* own = user;
  while (!atomic_load(&own->is_over)) {
    OK(accrt_stream_cancel(own->stream));
    OK(accrt_stream_reset(own->stream));
  }
  return NULL;
}

/* A list of which a cancel drops pieces while others are enqueued: what ran are its first commands,
 * or the submission says that it failed. */
static void test_lists_are_cancelled_while_they_are_enqueued(void** state) {
  cts_t* cts = *state;
  enum { COMMANDS = 60, ROUNDS = 40 };
  pthread_t thread;
  uint32_t words[COMMANDS + 1];
  canceller_t own = {.stream = dividing_stream(cts, 2, 1)};
  accrt_commands_t* commands = append_list(cts, COMMANDS);
  accrt_buffer_t* log = zeroed(cts, sizeof words);
  const accrt_binding_t binding = bind(log);
  for (int round = 0; round < ROUNDS; ++round) {
    const accrt_place_t at = cts_at(log, 0);
    OK(accrt_stream_fill(cts->stream, &at, sizeof words, 0, 1));
    cts_sync(cts->stream);
    atomic_store(&own.is_over, false);
    assert_int_equal(pthread_create(&thread, NULL, cancel_often, &own), 0);
    const accrt_status_t status = submit(own.stream, commands, &binding, 1);
    atomic_store(&own.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    OK(accrt_stream_reset(own.stream));
    cts_sync(own.stream);
    cts_download(cts, log, 0, words, sizeof words);
    bool in_order = true;
    for (uint32_t i = 0; i < words[0]; ++i)
      in_order = in_order && words[1 + i] == i;
    assert_true(status == ACCRT_ERROR_POISONED || (status == ACCRT_OK && in_order));
  }
  accrt_buffer_release(log);
  accrt_commands_release(commands);
  accrt_stream_release(own.stream);
}

/* Pieces need `ahead`: without it, the device would get all of them at once. */
static void test_pieces_need_ahead(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* stream;
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.commands_per_piece = 4;
  FAILS(INVALID_ARGUMENT, accrt_stream_create(cts->device, &options, &stream));
}

static void test_run_behind_other_work(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 10);
  accrt_buffer_t* log = zeroed(cts, 4 * 1000);
  const accrt_binding_t binding = bind(log);
  for (int i = 0; i < 20; ++i) {
    OK(submit(cts->stream, commands, &binding, 1));
    OK(run(cts->stream, commands, &binding, 1)); /* the stream is likely busy */
  }
  check_log(cts, log, 10, 40);
  accrt_buffer_release(log);
  accrt_commands_release(commands);
}

static void test_empty_list(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 0);
  OK(accrt_commands_finalize(commands));
  OK(submit(cts->stream, commands, NULL, 0));
  OK(run(cts->stream, commands, NULL, 0));
  cts_sync(cts->stream);
  accrt_commands_release(commands);
}

#define CELLS 8
#define GRAPH_MAX 80

/* A random graph over cells whose conflicts are all ordered, run beside a plain model. */
typedef struct graph {
  uint32_t count;
  uint32_t target[GRAPH_MAX];
  uint32_t source[GRAPH_MAX];
} graph_t;

/* The commands that number `next` must follow: the last writer of its source, and every later
 * reader and writer of its target. */
static uint32_t conflicts(const graph_t* graph, uint32_t next, uint32_t* out_indices) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < next; ++i) {
    if (graph->target[i] == graph->source[next] || graph->target[i] == graph->target[next] ||
        graph->source[i] == graph->target[next]) {
      out_indices[count++] = i;
    }
  }
  return count;
}

static void record_graph(cts_t* cts, accrt_commands_t* commands, graph_t* graph, uint64_t* seed) {
  graph->count = 1 + (uint32_t)(cts_random(seed) % GRAPH_MAX);
  for (uint32_t i = 0; i < graph->count; ++i) {
    graph->target[i] = (uint32_t)(cts_random(seed) % CELLS);
    graph->source[i] = (graph->target[i] + 1 + (uint32_t)(cts_random(seed) % (CELLS - 1))) % CELLS;
    uint32_t before[GRAPH_MAX];
    const accrt_predecessors_t after = {before, conflicts(graph, i, before), 0};
    const accrt_kernel_argument_t arguments[3] = {cts_arg_binding(0, 64 * graph->target[i], 4),
                                                  cts_arg_binding(0, 64 * graph->source[i], 4),
                                                  cts_arg_scalar(i)};
    uint32_t index = 999;
    OK(dispatch(cts, commands, "mix", 1, arguments, 3, &after, &index));
    assert_int_equal(index, i);
  }
}

static void test_random_graphs(void** state) {
  cts_t* cts = *state;
  uint64_t seed = cts_seed();
  for (int round = 0; round < 30; ++round) {
    accrt_commands_t* commands = begin(cts, 1);
    graph_t graph;
    record_graph(cts, commands, &graph, &seed);
    OK(accrt_commands_finalize(commands));
    accrt_buffer_t* cells = zeroed(cts, 64 * CELLS);
    uint32_t model[CELLS] = {0};
    const accrt_binding_t binding = bind(cells);
    for (int repeat = 0; repeat < 5; ++repeat) {
      OK(repeat % 2 == 0 ? submit(cts->stream, commands, &binding, 1)
                         : run(cts->stream, commands, &binding, 1));
      for (uint32_t i = 0; i < graph.count; ++i) {
        model[graph.target[i]] = model[graph.target[i]] * 31u + model[graph.source[i]] + i;
      }
    }
    uint32_t words[16 * CELLS];
    cts_download(cts, cells, 0, words, sizeof words);
    for (uint32_t i = 0; i < CELLS; ++i)
      assert_int_equal(words[16 * i], model[i]);
    accrt_buffer_release(cells);
    accrt_commands_release(commands);
  }
}

static void test_barrier_and_marker(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  const accrt_predecessors_t at_once = {NULL, 0, 0};
  const accrt_kernel_argument_t cover = cts_arg_binding(0, 4, UINT64_MAX);
  /* Two at once would count wrong: cells are not atomic. Barriers keep them apart. */
  uint32_t index = 999;
  OK(dispatch(cts, commands, "cover", 200, &cover, 1, &at_once, NULL));
  OK(accrt_commands_barrier(commands, &index));
  assert_int_equal(index, 1);
  OK(dispatch(cts, commands, "cover", 200, &cover, 1, &at_once, NULL));
  OK(accrt_commands_marker(commands, "half way", NULL, &index));
  assert_int_equal(index, 3);
  OK(accrt_commands_barrier(commands, NULL));
  OK(dispatch(cts, commands, "cover", 200, &cover, 1, &at_once, NULL));
  OK(accrt_commands_finalize(commands));
  accrt_buffer_t* cells = zeroed(cts, 4 * 300);
  const accrt_binding_t binding = bind(cells);
  for (int i = 0; i < 50; ++i)
    OK(run(cts->stream, commands, &binding, 1));
  uint32_t counts[300];
  cts_download(cts, cells, 0, counts, sizeof counts);
  for (uint32_t i = 0; i < 300; ++i)
    assert_int_equal(counts[i], i >= 1 && i <= 200 ? 150 : 0);
  accrt_buffer_release(cells);
  accrt_commands_release(commands);
}

static accrt_binding_place_t binding_place(uint32_t binding, uint64_t offset_bytes) {
  return (accrt_binding_place_t){.binding = binding, .place = {.offset_bytes = offset_bytes}};
}

static void test_copies_and_fills(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 2);
  accrt_buffer_t* fixed = zeroed(cts, 256);
  const accrt_binding_place_t first = binding_place(0, 0);
  const accrt_binding_place_t second = binding_place(1, 32);
  const accrt_binding_place_t middle = {.binding = ACCRT_BINDING_NONE, .place = {.buffer = fixed}};
  const accrt_copy_region_t line = {{64, 1, 1}, {0, 0}, {0, 0}};
  const accrt_copy_region_t rows = {{4, 4, 1}, {8, 0}, {4, 0}};
  OK(accrt_commands_fill(commands, &first, 64, 0x0102030405060708, 8, NULL, NULL));
  OK(accrt_commands_copy(commands, &first, &middle, &line, NULL, NULL));
  OK(accrt_commands_copy(commands, &middle, &second, &rows, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  for (int i = 0; i < 3; ++i) {
    accrt_buffer_t* a = zeroed(cts, 64);
    accrt_buffer_t* b = zeroed(cts, 64);
    const accrt_binding_t bindings[2] = {bind(a), bind(b)};
    OK(submit(cts->stream, commands, bindings, 2));
    uint32_t words[16];
    cts_download(cts, b, 0, words, sizeof words);
    for (int k = 0; k < 16; ++k)
      assert_int_equal(words[k], k >= 8 && k < 12 ? 0x05060708 : 0);
    accrt_buffer_release(a);
    accrt_buffer_release(b);
  }
  accrt_buffer_release(fixed);
  accrt_commands_release(commands);
}

static void test_bindings_with_offsets(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 3);
  accrt_buffer_t* area = zeroed(cts, 4096);
  for (uint32_t i = 0; i < 10; ++i) {
    const accrt_binding_t binding = {.buffer = area, .offset_bytes = 256 * i, .size_bytes = 4 * 4};
    OK(submit(cts->stream, commands, &binding, 1));
  }
  for (uint32_t i = 0; i < 10; ++i) {
    uint32_t words[5];
    cts_download(cts, area, 256 * i, words, sizeof words);
    const uint32_t expected[5] = {3, 0, 1, 2, 0};
    assert_memory_equal(words, expected, sizeof words);
  }
  accrt_buffer_release(area);
  accrt_commands_release(commands);
}

static void test_bindings_of_host_memory(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 3);
  _Alignas(64) static uint32_t log[16];
  memset(log, 0, sizeof log);
  const accrt_binding_t binding = {.pointer = log, .size_bytes = sizeof log};
  OK(run(cts->stream, commands, &binding, 1));
  const uint32_t expected[4] = {3, 0, 1, 2};
  assert_memory_equal(log, expected, sizeof expected);
  accrt_commands_release(commands);
}

/* The same list many times at once, on several streams, each with its own memory. */
static void test_concurrent_submissions(void** state) {
  cts_t* cts = *state;
  enum { STREAMS = 5, TIMES = 30 };
  accrt_commands_t* commands = append_list(cts, 20);
  accrt_stream_t* streams[STREAMS];
  accrt_buffer_t* logs[STREAMS];
  for (int s = 0; s < STREAMS; ++s) {
    streams[s] = cts_stream(cts);
    logs[s] = zeroed(cts, 4 * (20 * TIMES + 1));
  }
  for (int i = 0; i < TIMES; ++i) {
    for (int s = 0; s < STREAMS; ++s) {
      const accrt_binding_t binding = bind(logs[s]);
      OK(submit(streams[s], commands, &binding, 1));
    }
  }
  for (int s = 0; s < STREAMS; ++s) {
    cts_sync(streams[s]);
    check_log(cts, logs[s], 20, TIMES);
    accrt_buffer_release(logs[s]);
    accrt_stream_release(streams[s]);
  }
  accrt_commands_release(commands);
}

typedef struct runner {
  cts_t* cts;
  accrt_commands_t* commands;
  accrt_stream_t* stream;
  accrt_buffer_t* log;
  accrt_status_t result;
} runner_t;

static void* run_in_thread(void* argument) {
  runner_t* runner = argument;
  const accrt_binding_t binding = bind(runner->log);
  for (int i = 0; i < 50 && runner->result == ACCRT_OK; ++i) {
    runner->result = run(runner->stream, runner->commands, &binding, 1);
  }
  return NULL;
}

static void test_runs_from_several_threads(void** state) {
  cts_t* cts = *state;
  enum { THREADS = 4 };
  accrt_commands_t* commands = append_list(cts, 20);
  runner_t runners[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    runners[i] = (runner_t){cts, commands, cts_stream(cts), zeroed(cts, 4 * 1001), ACCRT_OK};
  }
  for (int i = 0; i < THREADS; ++i) {
    assert_int_equal(pthread_create(&threads[i], NULL, run_in_thread, &runners[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(threads[i], NULL);
    OK(runners[i].result);
    check_log(cts, runners[i].log, 20, 50);
    accrt_stream_release(runners[i].stream);
    accrt_buffer_release(runners[i].log);
  }
  accrt_commands_release(commands);
}

static void test_released_in_flight(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  uint32_t words[4] = {0};
  accrt_commands_t* commands = append_list(cts, 3);
  accrt_buffer_t* log = zeroed(cts, 64);
  const accrt_binding_t binding = bind(log);
  const accrt_place_t at = cts_at(log, 0);
  const accrt_place_t out = cts_host(words);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(submit(cts->stream, commands, &binding, 1));
  OK(accrt_stream_copy(cts->stream, &at, &out, sizeof words));
  accrt_commands_release(commands);
  accrt_buffer_release(log);
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  const uint32_t expected[4] = {3, 0, 1, 2};
  assert_memory_equal(words, expected, sizeof expected);
  accrt_semaphore_release(gate);
}

/* A repeated run allocates nothing on the host. */
static void test_repeated_run_allocates_nothing(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 3);
  accrt_buffer_t* log = zeroed(cts, 20000);
  const accrt_binding_t binding = bind(log);
  for (int i = 0; i < 200; ++i) /* what is kept for later is got by then */
    OK(run(cts->stream, commands, &binding, 1));
  const long before = atomic_load(&cts->allocation_count);
  for (int i = 0; i < 1000; ++i)
    OK(run(cts->stream, commands, &binding, 1));
  assert_int_equal(atomic_load(&cts->allocation_count), before);
  accrt_buffer_release(log);
  accrt_commands_release(commands);
}

/* ---- What must be refused or fail ---- */

static void test_submit_while_recording(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 0);
  FAILS(INVALID_STATE, submit(cts->stream, commands, NULL, 0));
  FAILS(INVALID_STATE, run(cts->stream, commands, NULL, 0));
  OK(accrt_commands_finalize(commands));
  OK(run(cts->stream, commands, NULL, 0));
  accrt_commands_release(commands);
}

static void test_record_after_finalize(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  OK(accrt_commands_finalize(commands));
  FAILS(INVALID_STATE, accrt_commands_finalize(commands));
  FAILS(INVALID_STATE, dispatch(cts, commands, "nothing", 1, NULL, 0, NULL, NULL));
  FAILS(INVALID_STATE, accrt_commands_barrier(commands, NULL));
  FAILS(INVALID_STATE, accrt_commands_marker(commands, "late", NULL, NULL));
  const accrt_binding_place_t at = binding_place(0, 0);
  FAILS(INVALID_STATE, accrt_commands_fill(commands, &at, 4, 0, 4, NULL, NULL));
  accrt_commands_release(commands);
}

static void test_predecessor_that_is_not_there(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 0);
  const uint32_t later = 0; /* itself */
  const accrt_predecessors_t after = {&later, 1, 0};
  FAILS(OUT_OF_RANGE, dispatch(cts, commands, "nothing", 1, NULL, 0, &after, NULL));
  OK(dispatch(cts, commands, "nothing", 1, NULL, 0, NULL, NULL));
  OK(dispatch(cts, commands, "nothing", 1, NULL, 0, &after, NULL));
  const uint32_t beyond = 17;
  const accrt_predecessors_t after_beyond = {&beyond, 1, 0};
  FAILS(OUT_OF_RANGE, accrt_commands_marker(commands, "m", &after_beyond, NULL));
  uint32_t count = 0;
  OK(accrt_commands_count(commands, &count));
  assert_int_equal(count, 2); /* on failure nothing is recorded */
  accrt_commands_release(commands);
}

static void test_binding_outside_the_table(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 2);
  const accrt_kernel_argument_t arguments[2] = {cts_arg_binding(2, 0, 64), cts_arg_scalar(0)};
  FAILS(OUT_OF_RANGE, dispatch(cts, commands, "append", 1, arguments, 2, NULL, NULL));
  MESSAGE_HAS("2");
  const accrt_binding_place_t at = binding_place(5, 0);
  FAILS(OUT_OF_RANGE, accrt_commands_fill(commands, &at, 4, 0, 4, NULL, NULL));
  accrt_commands_release(commands);
}

/* A struct of zeros names binding 0: with memory of its own beside it, nobody can tell which is meant. */
static void test_binding_and_memory(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  accrt_kernel_argument_t arguments[2] = {cts_arg_binding(0, 0, 64), cts_arg_scalar(0)};
  arguments[0].buffer = zeroed(cts, 64);
  FAILS(INVALID_ARGUMENT, dispatch(cts, commands, "append", 1, arguments, 2, NULL, NULL));
  MESSAGE_HAS("binding 0");
  accrt_buffer_release(arguments[0].buffer);
  accrt_commands_release(commands);
}

static void test_binding_table_too_large(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = NULL;
  assert_int_not_equal(accrt_commands_create(cts->device, 65536, &commands), ACCRT_OK);
  assert_null(commands);
}

static void test_binding_too_small(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  const accrt_kernel_argument_t arguments[2] = {cts_arg_binding(0, 100, 64), cts_arg_scalar(0)};
  OK(dispatch(cts, commands, "append", 1, arguments, 2, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  accrt_buffer_t* small = zeroed(cts, 163);
  const accrt_binding_t binding = bind(small);
  FAILS(OUT_OF_RANGE, submit(cts->stream, commands, &binding, 1));
  MESSAGE_HAS("163");
  FAILS(OUT_OF_RANGE, run(cts->stream, commands, &binding, 1));
  accrt_buffer_t* enough = zeroed(cts, 164);
  const accrt_binding_t other = bind(enough);
  OK(run(cts->stream, commands, &other, 1));
  const accrt_binding_t shifted = {.buffer = enough, .offset_bytes = 4, .size_bytes = UINT64_MAX};
  FAILS(OUT_OF_RANGE, run(cts->stream, commands, &shifted, 1));
  const accrt_binding_t beyond = {.buffer = enough, .offset_bytes = 0, .size_bytes = 165};
  FAILS(OUT_OF_RANGE, run(cts->stream, commands, &beyond, 1));
  accrt_buffer_release(small);
  accrt_buffer_release(enough);
  accrt_commands_release(commands);
}

static void test_copy_beyond_a_binding(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 2);
  const accrt_binding_place_t first = binding_place(0, 0);
  const accrt_binding_place_t second = binding_place(1, 16);
  const accrt_copy_region_t region = {{16, 3, 1}, {16, 0}, {20, 0}};
  OK(accrt_commands_copy(commands, &first, &second, &region, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  accrt_buffer_t* a = zeroed(cts, 48);
  accrt_buffer_t* b = zeroed(cts, 71); /* 16 + 2 * 20 + 16 = 72 */
  const accrt_binding_t bindings[2] = {bind(a), bind(b)};
  FAILS(OUT_OF_RANGE, submit(cts->stream, commands, bindings, 2));
  accrt_buffer_release(a);
  accrt_buffer_release(b);
  accrt_commands_release(commands);
}

static void test_copy_within_one_binding(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 2);
  const accrt_binding_place_t first = binding_place(0, 0);
  const accrt_binding_place_t second = binding_place(1, 0);
  const accrt_copy_region_t line = {{16, 1, 1}, {0, 0}, {0, 0}};
  OK(accrt_commands_copy(commands, &first, &second, &line, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  accrt_buffer_t* a = zeroed(cts, 64);
  const accrt_binding_t bindings[2] = {bind(a), bind(a)};
  FAILS(ALIASED, submit(cts->stream, commands, bindings, 2));
  accrt_buffer_release(a);
  accrt_commands_release(commands);
}

static void test_binding_count(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 1);
  accrt_buffer_t* log = zeroed(cts, 64);
  const accrt_binding_t bindings[2] = {bind(log), bind(log)};
  assert_int_not_equal(submit(cts->stream, commands, bindings, 0), ACCRT_OK);
  assert_int_not_equal(submit(cts->stream, commands, bindings, 2), ACCRT_OK);
  FAILS(INVALID_ARGUMENT,
        accrt_stream_submit(cts->stream, commands, bindings, 1, CTS_BINDING_SIZE - 8));
  OK(submit(cts->stream, commands, bindings, 1));
  cts_sync(cts->stream);
  accrt_buffer_release(log);
  accrt_commands_release(commands);
}

static void test_dispatch_arguments_are_checked(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  const accrt_kernel_argument_t one = cts_arg_binding(0, 0, 64);
  FAILS(INVALID_ARGUMENT, dispatch(cts, commands, "append", 1, &one, 1, NULL, NULL));
  const accrt_kernel_argument_t swapped[2] = {cts_arg_scalar(1), cts_arg_binding(0, 0, 64)};
  FAILS(INVALID_ARGUMENT, dispatch(cts, commands, "append", 1, swapped, 2, NULL, NULL));
  MESSAGE_HAS("log");
  uint32_t count = 9;
  OK(accrt_commands_count(commands, &count));
  assert_int_equal(count, 0);
  accrt_commands_release(commands);
}

static void test_fill_arguments_are_checked(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = begin(cts, 1);
  const accrt_binding_place_t at = binding_place(0, 0);
  const accrt_binding_place_t odd = binding_place(0, 2);
  FAILS(INVALID_ARGUMENT, accrt_commands_fill(commands, &at, 8, 0, 3, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_commands_fill(commands, &at, 6, 0, 4, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_commands_fill(commands, &odd, 8, 0, 4, NULL, NULL));
  accrt_commands_release(commands);
}

static accrt_commands_t* failing_list(cts_t* cts) {
  accrt_commands_t* commands = begin(cts, 1);
  record_append(cts, commands, 0, 1);
  const accrt_kernel_argument_t fail[2] = {cts_arg_scalar(321), cts_arg_scalar(2)};
  OK(dispatch(cts, commands, "fail_at", 5, fail, 2, NULL, NULL));
  record_append(cts, commands, 0, 2);
  OK(accrt_commands_finalize(commands));
  return commands;
}

static void test_failing_submission(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* failing = failing_list(cts);
  accrt_commands_t* good = append_list(cts, 2);
  accrt_buffer_t* log = zeroed(cts, 64);
  const accrt_binding_t binding = bind(log);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(submit(cts->stream, failing, &binding, 1));
  OK(submit(cts->stream, good, &binding, 1)); /* skipped */
  OK(accrt_semaphore_signal(gate, 1));
  FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  FAILS(POISONED, submit(cts->stream, good, &binding, 1));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, 321);
  OK(accrt_stream_reset(cts->stream));
  uint32_t words[3];
  cts_download(cts, log, 0, words, sizeof words);
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 1); /* what came before ran, what came after did not */
  OK(run(cts->stream, good, &binding, 1));
  accrt_buffer_release(log);
  accrt_semaphore_release(gate);
  accrt_commands_release(failing);
  accrt_commands_release(good);
}

static void test_failing_run(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* failing = failing_list(cts);
  accrt_commands_t* good = append_list(cts, 2);
  accrt_buffer_t* log = zeroed(cts, 256);
  const accrt_binding_t binding = bind(log);
  for (int i = 0; i < 3; ++i) {
    const accrt_status_t status = run(cts->stream, failing, &binding, 1);
    assert_true(status == ACCRT_ERROR_KERNEL || status == ACCRT_ERROR_POISONED);
    MESSAGE_HAS("told to fail with 321");
    OK(accrt_stream_reset(cts->stream)); /* needed or not */
    OK(run(cts->stream, good, &binding, 1));
  }
  accrt_buffer_release(log);
  accrt_commands_release(failing);
  accrt_commands_release(good);
}

static void test_run_times_out(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = append_list(cts, 1);
  accrt_buffer_t* log = zeroed(cts, 64);
  const accrt_binding_t binding = bind(log);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  FAILS(TIMEOUT,
        accrt_stream_run(cts->stream, commands, &binding, 1, CTS_BINDING_SIZE, CTS_MOMENT));
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  check_log(cts, log, 1, 1); /* it was enqueued, and ran later */
  accrt_semaphore_release(gate);
  accrt_buffer_release(log);
  accrt_commands_release(commands);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_commands_t* commands = NULL;
  FAILS(INVALID_ARGUMENT, accrt_commands_create(NULL, 0, &commands));
  FAILS(INVALID_ARGUMENT, accrt_commands_create(cts->device, 0, NULL));
  FAILS(INVALID_ARGUMENT, accrt_commands_finalize(NULL));
  FAILS(INVALID_ARGUMENT, submit(cts->stream, NULL, NULL, 0));
  commands = append_list(cts, 1);
  FAILS(INVALID_ARGUMENT, submit(NULL, commands, NULL, 0));
  FAILS(INVALID_ARGUMENT, submit(cts->stream, commands, NULL, 1));
  accrt_commands_release(commands);
  accrt_commands_release(NULL);
}

const cts_test_t cts_command_tests[] = {
    CTS_P(test_chain, CTS_NEEDS_KERNELS),
    CTS_P(test_run_behind_other_work, CTS_NEEDS_KERNELS),
    CTS_P(test_lists_in_pieces, CTS_NEEDS_KERNELS),
    CTS_P(test_threads_divide_a_list, CTS_NEEDS_KERNELS),
    CTS_P(test_lists_are_cancelled_while_they_are_enqueued, CTS_NEEDS_KERNELS),
    CTS_N(test_pieces_need_ahead, 0),
    CTS_P(test_empty_list, 0),
    CTS_P(test_random_graphs, CTS_NEEDS_KERNELS),
    CTS_P(test_barrier_and_marker, CTS_NEEDS_KERNELS),
    CTS_P(test_copies_and_fills, 0),
    CTS_P(test_bindings_with_offsets, CTS_NEEDS_KERNELS),
    CTS_P(test_bindings_of_host_memory, CTS_NEEDS_HOST_KERNELS | CTS_NEEDS_HOST_MEMORY),
    CTS_P(test_concurrent_submissions, CTS_NEEDS_KERNELS),
    CTS_P(test_runs_from_several_threads, CTS_NEEDS_KERNELS),
    CTS_P(test_released_in_flight, CTS_NEEDS_KERNELS),
    CTS_P(test_repeated_run_allocates_nothing, CTS_NEEDS_KERNELS),
    CTS_N(test_submit_while_recording, 0),
    CTS_N(test_record_after_finalize, CTS_NEEDS_KERNELS),
    CTS_N(test_predecessor_that_is_not_there, CTS_NEEDS_KERNELS),
    CTS_N(test_binding_outside_the_table, CTS_NEEDS_KERNELS),
    CTS_N(test_binding_and_memory, CTS_NEEDS_KERNELS),
    CTS_N(test_binding_table_too_large, 0),
    CTS_N(test_binding_too_small, CTS_NEEDS_KERNELS),
    CTS_N(test_copy_beyond_a_binding, 0),
    CTS_N(test_copy_within_one_binding, 0),
    CTS_N(test_binding_count, CTS_NEEDS_KERNELS),
    CTS_N(test_dispatch_arguments_are_checked, CTS_NEEDS_KERNELS),
    CTS_N(test_fill_arguments_are_checked, 0),
    CTS_N(test_failing_submission, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_failing_run, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_run_times_out, CTS_NEEDS_KERNELS),
    CTS_N(test_null_arguments, CTS_NEEDS_KERNELS),
    CTS_END,
};
