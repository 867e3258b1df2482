/* runtime/drivers/cuda/graph_lists_test.c - random lists and launches on a CUDA device, against a
 * model on the CPU; every call of CUDA failing once. Runs on a GPU and on the stand-in of
 * tests/fakecuda; without either it is skipped. Failing calls need the stand-in.
 *
 * Usage: [seed [rounds [threads]]]; without arguments, some seeds and everything else.
 */
#include "runtime/drivers/cuda/graph_lists_test.h"

/* ---- Workers ---- */

/* No two bindings share a window, because lists do not know aliases. */
static uint32_t free_window(worker_t* w, const inputs_t* inputs, uint32_t count) {
  for (;;) {
    const uint32_t window = below(&w->random, WINDOWS);
    bool taken = false;
    for (uint32_t i = 0; i < count; ++i)
      taken = taken || inputs->window[i] == window;
    if (!taken)
      return window;
  }
}

static void change_inputs(worker_t* w, const list_t* list, inputs_t* inputs) {
  random_source_t* r = &w->random;
  const bool all = !inputs->used || below(r, 4) == 0;
  for (uint32_t i = 0; i < list->binding_count; ++i) {
    if (all || below(r, 3) == 0)
      inputs->window[i] = WINDOWS;
  }
  for (uint32_t i = 0; i < list->binding_count; ++i) {
    if (inputs->window[i] == WINDOWS)
      inputs->window[i] = free_window(w, inputs, list->binding_count);
    inputs->bindings[i] =
        (accrt_driver_binding_t){w->windows[inputs->window[i]], sizeof w->model[0]};
  }
  for (uint32_t i = 0; i < list->scalar_count; ++i) {
    if (all || below(r, 2) == 0)
      inputs->scalars[i] = below(r, 3) == 0 ? 0 : below(r, 201);
  }
  inputs->used = true;
}

/* The same inputs again, those before, or others. */
static const inputs_t* choose_inputs(worker_t* w, uint32_t which) {
  const uint32_t how = below(&w->random, 6);
  inputs_t* last = &w->last[which];
  if (last->used && how == 0)
    return last;
  const inputs_t before = w->before[which];
  w->before[which] = *last;
  if (before.used && how == 1)
    *last = before;
  else
    change_inputs(w, &w->lists[which], last);
  return last;
}

static void execute_list(worker_t* w) {
  const uint32_t which = below(&w->random, LISTS);
  const list_t* list = &w->lists[which];
  const inputs_t* inputs = choose_inputs(w, which);
  const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                .binding_count = list->binding_count,
                                                .bindings = inputs->bindings,
                                                .scalars = inputs->scalars,
                                                .scalar_count = list->scalar_count,
                                                .number = ++w->number};
  REQUIRE(table->queue_execute(w->queue, list->handle, &submission) == ACCRT_OK);
  for (uint32_t i = 0; i < list->command_count; ++i)
    model_command(w, list, i, inputs);
  w->executed += 1;
}

/* With a prepared launch or without. The queue prepares repeated kernels automatically. */
static void launch_add(worker_t* w) {
  random_source_t* r = &w->random;
  const uint32_t window = below(r, WINDOWS);
  const add_params_t params = {w->windows[window], below(r, 1000), below(r, WORDS)};
  const uint32_t grid[3] = {1 + below(r, 20), 1, 1};
  if (below(r, 2) == 0) {
    REQUIRE(table->queue_launch(w->queue, w->launch, grid, &params, ++w->number) == ACCRT_OK);
  } else {
    const accrt_driver_command_t command = {
        .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
        .as.dispatch = {.kernel = &add_kernel,
                        .grid = {constant(grid[0]), constant(1), constant(1)},
                        .params = &params,
                        .params_size_bytes = sizeof params}};
    const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                  .number = ++w->number};
    REQUIRE(table->queue_enqueue(w->queue, &command, &submission) == ACCRT_OK);
  }
  model_add(w->model[window], params.value, params.count, grid[0]);
}

static void* run_worker(void* opaque) {
  worker_t* w = opaque;
  for (uint32_t i = 0; i < w->rounds; ++i) {
    if (below(&w->random, 3) == 0)
      launch_add(w);
    else
      execute_list(w);
    if (below(&w->random, 40) == 0)
      verify(w);
    if (below(&w->random, 200) == 0) { /* with executions in flight */
      table->launch_destroy(w->launch);
      REQUIRE(table->launch_create(opened, &add_kernel, &w->launch) == ACCRT_OK);
    }
  }
  verify(w);
  return NULL;
}

static void start_worker(worker_t* w, uint32_t index, uint64_t seed, uint32_t rounds,
                         list_t* lists) {
  *w = (worker_t){
      .random = seeded(seed * 31 + index + 1), .index = index, .rounds = rounds, .lists = lists};
  REQUIRE(table->queue_create(opened, 0, &w->queue) == ACCRT_OK);
  REQUIRE(table->launch_create(opened, &add_kernel, &w->launch) == ACCRT_OK);
  for (uint32_t i = 0; i < WINDOWS; ++i) {
    for (uint32_t k = 0; k < WORDS; ++k)
      w->model[i][k] = below(&w->random, UINT32_MAX);
    w->windows[i] = allocate(sizeof w->model[i]);
    copy_and_wait(w->queue, w->windows[i], (CUdeviceptr)(uintptr_t)w->model[i], sizeof w->model[i]);
  }
}

static void end_worker(worker_t* w) {
  table->launch_destroy(w->launch);
  table->queue_destroy(w->queue);
  for (uint32_t i = 0; i < WINDOWS; ++i)
    release(w->windows[i]);
}

/* Lists are shared by the workers, memory is not. */
static void run_random(uint64_t seed, uint32_t rounds, uint32_t worker_count) {
  static list_t lists[LISTS];
  static worker_t workers[MAX_WORKERS];
  random_source_t random = seeded(seed);
  printf("seed %llu, %u rounds, %u threads\n", (unsigned long long)seed, (unsigned)rounds,
         (unsigned)worker_count);
  for (uint32_t i = 0; i < LISTS; ++i)
    make_list(&random, &lists[i]);
  for (uint32_t i = 0; i < worker_count; ++i)
    start_worker(&workers[i], i, seed, rounds, lists);
  for (uint32_t i = 0; i < worker_count; ++i)
    REQUIRE(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0);
  for (uint32_t i = 0; i < worker_count; ++i) {
    REQUIRE(pthread_join(workers[i].thread, NULL) == 0);
    end_worker(&workers[i]);
  }
  for (uint32_t i = 0; i < LISTS; ++i)
    table->list_destroy(lists[i].handle);
  REQUIRE(device->graphs.count == 0);
  REQUIRE(atomic_load_explicit(&operator_states, memory_order_relaxed) == 0);
}

/* ---- Tests ---- */

static void test_random(void** state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; ++seed)
    run_random(seed, 150, 1);
  run_random(7, 100, 3);
}

/* A node cannot use host memory that CUDA does not know. The list still fills such memory. */
static void test_plain_memory(void** state) {
  (void)state;
  static uint32_t words[64];
  list_t list = {.binding_count = 2, .command_count = 2};
  for (uint32_t i = 0; i < 2; ++i) {
    list.commands[i].opcode = ACCRT_DRIVER_COMMAND_FILL;
    list.commands[i].as.fill =
        (accrt_driver_fill_t){.target = {i, 0, constant(0), constant(sizeof words)},
                              .pattern = 7 + i,
                              .pattern_bytes = 4};
  }
  /* The first turn has both in one place. */
  list.commands[1].predecessors = list.predecessors[1];
  list.commands[1].predecessor_count = 1;
  const CUdeviceptr memory = allocate(sizeof words);
  accrt_driver_queue_t* queue;
  assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
  assert_int_equal(create_list(&list, false), ACCRT_OK);
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    const accrt_driver_binding_t bindings[2] = {
        {turn == 1 ? memory : (uintptr_t)words, sizeof words}, {memory, sizeof words}};
    const accrt_driver_submission_t submission = {
        .struct_size = sizeof submission, .binding_count = 2, .bindings = bindings, .number = turn};
    memset(words, 0, sizeof words);
    assert_int_equal(table->queue_execute(queue, list.handle, &submission), ACCRT_OK);
    assert_int_equal(table->queue_wait(queue, turn, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    assert_int_equal(words[63], turn == 1 ? 0 : 7);
    copy_and_wait(queue, (CUdeviceptr)(uintptr_t)words, memory, sizeof words);
    assert_int_equal(words[63], 8);
  }
  table->list_destroy(list.handle);
  table->queue_destroy(queue);
  release(memory);
}

static void enqueue_add(accrt_driver_queue_t* queue, const accrt_driver_kernel_t* kernel,
                        CUdeviceptr target, uint64_t number) {
  const add_params_t params = {target, 1, 1};
  const accrt_driver_command_t command = {
      .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
      .as.dispatch = {.kernel = kernel,
                      .grid = {constant(1), constant(1), constant(1)},
                      .params = &params,
                      .params_size_bytes = sizeof params}};
  const accrt_driver_submission_t submission = {.struct_size = sizeof submission, .number = number};
  assert_int_equal(table->queue_enqueue(queue, &command, &submission), ACCRT_OK);
}

/* A queue drops its prepared launches of kernels whose module was unloaded, and never confuses a
 * new kernel with an old one. */
static void test_unloaded_modules(void** state) {
  (void)state;
  accrt_driver_image_t image = {.kind = IMAGE_PTX, .name = KERNELS};
  accrt_driver_queue_t* queue;
  uint32_t words[2] = {0, 0};
  uint64_t number = 0;
  image.data = read_kernels(&image.size_bytes);
  const CUdeviceptr memory = allocate(sizeof words);
  assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
  copy_and_wait(queue, memory, (CUdeviceptr)(uintptr_t)words, sizeof words);
  for (uint32_t turn = 0; turn < 20; ++turn) {
    accrt_driver_module_t* again;
    accrt_driver_kernel_t kernel = add_kernel;
    assert_int_equal(table->module_load(opened, &image, &again), ACCRT_OK);
    assert_int_equal(table->module_find(again, "tx_add", kernel.definition, &kernel.module_kernel),
                     ACCRT_OK);
    for (uint32_t i = 0; i < 10; ++i)
      enqueue_add(queue, &kernel, memory + turn % 2 * 4, ++number);
    assert_int_equal(table->queue_wait(queue, number, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    table->module_unload(again);
  }
  copy_and_wait(queue, (CUdeviceptr)(uintptr_t)words, memory, sizeof words);
  assert_int_equal(words[0], 100);
  assert_int_equal(words[1], 100);
  table->queue_destroy(queue);
  release(memory);
}

/* A captured operator that fails does so before any work is submitted. Another operator's failure
 * fails the queue, because a part of the list was submitted. */
static void test_failing_operators(void** state) {
  (void)state;
  random_source_t random = seeded(3);
  const CUdeviceptr memory = allocate(WORDS * 4);
  const accrt_driver_binding_t binding = {memory, WORDS * 4};
  accrt_driver_submission_t submission = {
      .struct_size = sizeof submission, .binding_count = 1, .bindings = &binding};
  for (uint32_t which = 0; which < 2; ++which) {
    list_t list = {.binding_count = 1, .command_count = 2};
    accrt_driver_queue_t* queue;
    make_add(&random, &list, 0);
    make_operator(&random, &list, 1, which);
    list.predecessors[1][0] = 0;
    list.commands[1].predecessors = list.predecessors[1];
    list.commands[1].predecessor_count = 1;
    assert_int_equal(create_list(&list, false), ACCRT_OK);
    assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
    atomic_store_explicit(&operator_fails, true, memory_order_relaxed);
    submission.number = 1;
    const accrt_status_t executed = table->queue_execute(queue, list.handle, &submission);
    atomic_store_explicit(&operator_fails, false, memory_order_relaxed);
    assert_int_equal(executed, which == 0 ? ACCRT_ERROR_KERNEL : ACCRT_OK);
    const accrt_status_t waited =
        which == 0 ? executed : table->queue_wait(queue, 1, UINT64_MAX, ACCRT_WAIT_BLOCK);
    assert_int_equal(waited, ACCRT_ERROR_KERNEL);
    assert_int_equal(accrt_error_current()->driver_code, 77);
    assert_non_null(strstr(accrt_error_current()->message, "no luck today"));
    assert_non_null(strstr(accrt_error_current()->message, operator_definitions[which].name));
    wait_for_stream(queue);
    assert_int_equal(table->queue_reset(queue), ACCRT_OK);
    submission.number = 2;
    assert_int_equal(table->queue_execute(queue, list.handle, &submission), ACCRT_OK);
    assert_int_equal(table->queue_wait(queue, 2, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    table->list_destroy(list.handle);
    table->queue_destroy(queue);
  }
  release(memory);
}

static void ignore_end(void* user, accrt_status_t status, const accrt_error_t* error,
                       uint64_t time_ns) {
  (void)user, (void)status, (void)error, (void)time_ns;
}

/* On a stream that its owner captures, a list becomes part of the owner's graph, and runs when that
 * is launched. A list with an operator that cannot be captured is refused, and the capture stays
 * valid. */
static void test_captured(void** state) {
  (void)state;
  const cuda_api_t* api = device->api;
  random_source_t random = seeded(9);
  static uint32_t words[2][WORDS];
  const CUdeviceptr memory[2] = {allocate(sizeof words[0]), allocate(sizeof words[0])};
  list_t lists[2] = {{.binding_count = 1, .command_count = 3},
                     {.binding_count = 1, .command_count = 3}};
  for (uint32_t which = 0; which < 2; ++which) {
    make_add(&random, &lists[which], 0);
    make_operator(&random, &lists[which], 1, which);
    make_fill(&random, &lists[which], 2);
    for (uint32_t i = 1; i < 3; ++i) {
      lists[which].predecessors[i][0] = i - 1;
      lists[which].commands[i].predecessors = lists[which].predecessors[i];
      lists[which].commands[i].predecessor_count = 1;
    }
    assert_int_equal(create_list(&lists[which], false), ACCRT_OK);
  }
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  accrt_driver_queue_t *queue, *own;
  assert_int_equal(api->cuCtxSetCurrent(device->context), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  assert_int_equal(table->queue_wrap(opened, stream, &queue), ACCRT_OK);
  assert_int_equal(table->queue_create(opened, 0, &own), ACCRT_OK);
  for (uint32_t i = 0; i < 2; ++i) {
    memset(words[i], 0, sizeof words[i]);
    copy_and_wait(own, memory[i], (CUdeviceptr)(uintptr_t)words[i], sizeof words[i]);
  }
  accrt_driver_binding_t binding = {memory[0], sizeof words[0]};
  accrt_driver_submission_t submission = {
      .struct_size = sizeof submission, .binding_count = 1, .bindings = &binding, .number = 1};
  uint64_t ended = 0;
  assert_int_equal(api->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  assert_int_equal(table->queue_execute(queue, lists[1].handle, &submission),
                   ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(table->queue_execute(queue, lists[0].handle, &submission), ACCRT_OK);
  assert_int_equal(table->queue_progress(queue, &ended), ACCRT_OK);
  assert_int_equal(ended, 1); /* nothing of it runs now */
  assert_int_equal(table->queue_wait(queue, 1, 0, ACCRT_WAIT_SPIN), ACCRT_ERROR_INVALID_STATE);
  submission.number = 2;
  submission.completion = (accrt_driver_completion_t){ignore_end, NULL};
  assert_int_equal(table->queue_execute(queue, lists[0].handle, &submission),
                   ACCRT_ERROR_INVALID_STATE);
  submission.completion = (accrt_driver_completion_t){NULL, NULL};
  assert_int_equal(api->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  assert_int_equal(api->cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  assert_int_equal(api->cuGraphDestroy(graph), CUDA_SUCCESS);
  binding.address = memory[1];
  for (uint64_t turn = 0; turn < 2; ++turn) {
    assert_int_equal(api->cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    submission.number = 100 + turn; /* behind the copies above */
    assert_int_equal(table->queue_execute(own, lists[0].handle, &submission), ACCRT_OK);
  }
  assert_int_equal(table->queue_wait(own, 101, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  assert_int_equal(api->cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 2; ++i)
    copy_and_wait(own, (CUdeviceptr)(uintptr_t)words[i], memory[i], sizeof words[i]);
  assert_memory_equal(words[0], words[1], sizeof words[0]);
  assert_int_equal(api->cuGraphExecDestroy(exec), CUDA_SUCCESS);
  /* Its owner goes on with the stream, and so does the queue. */
  assert_int_equal(table->queue_wait(queue, 1, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  submission.number = 2;
  assert_int_equal(table->queue_execute(queue, lists[1].handle, &submission), ACCRT_OK);
  assert_int_equal(table->queue_wait(queue, 2, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  table->queue_destroy(queue);
  table->queue_destroy(own);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 2; ++i) {
    table->list_destroy(lists[i].handle);
    release(memory[i]);
  }
}

/* One of everything, executed with changing inputs; also launches. Returns how many calls
 * failed. */
static uint32_t run_all(void) {
  static list_t list;
  static const uint32_t kinds[] = {0, 14, 4, 8, 9, 10, 11, 12, 13, 15, 1};
  random_source_t random = seeded(42);
  worker_t w = {.number = 0};
  uint32_t failed = 0;
  memset(&list, 0, sizeof list);
  list.binding_count = 3;
  list.scalar_count = 2;
  list.command_count = sizeof kinds / sizeof kinds[0];
  for (uint32_t i = 0; i < list.command_count; ++i) {
    make_command(&random, &list, i, kinds[i]);
    order_command(&random, &list, i);
  }
  /* 0 in the first turn, and again in the last. */
  list.commands[0].as.dispatch.grid[0] = (accrt_driver_value_t){0, 0, 0};
  CUdeviceptr windows[3];
  for (uint32_t i = 0; i < 3; ++i)
    windows[i] = allocate(WORDS * 4);
  REQUIRE(table->queue_create(opened, 0, &w.queue) == ACCRT_OK);
  const accrt_status_t created = create_list(&list, false);
  REQUIRE((created == ACCRT_OK) == (list.handle != NULL));
  failed += created != ACCRT_OK;
  for (uint64_t turn = 0; turn < 5 && list.handle != NULL; ++turn) {
    const accrt_driver_binding_t bindings[3] = {{windows[turn & 1], WORDS * 4},
                                                {windows[1 - (turn & 1)], WORDS * 4},
                                                {windows[2], WORDS * 4}};
    const uint64_t scalars[2] = {turn * 3 % 4, 5 - turn};
    const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                  .binding_count = 3,
                                                  .bindings = bindings,
                                                  .scalars = scalars,
                                                  .scalar_count = 2,
                                                  .number = ++w.number};
    if (table->queue_execute(w.queue, list.handle, &submission) == ACCRT_OK)
      continue;
    failed += 1;
    w.number -= 1; /* nothing was enqueued */
    REQUIRE(accrt_error_current()->message[0] != '\0');
  }
  const uint32_t grid[3] = {1, 1, 1};
  const add_params_t params = {windows[0], 1, 10};
  failed += table->launch_create(opened, &add_kernel, &w.launch) != ACCRT_OK;
  for (uint32_t i = 0; i < 2 && w.launch != NULL; ++i)
    failed += table->queue_launch(w.queue, w.launch, grid, &params, w.number + 1 + i) != ACCRT_OK;
  w.number += w.launch != NULL ? 2 : 0;
  failed += table->queue_wait(w.queue, w.number, UINT64_MAX, ACCRT_WAIT_BLOCK) != ACCRT_OK;
  if (w.launch != NULL)
    table->launch_destroy(w.launch);
  wait_for_stream(w.queue);
  if (list.handle != NULL)
    table->list_destroy(list.handle);
  table->queue_destroy(w.queue);
  for (uint32_t i = 0; i < 3; ++i)
    release(windows[i]);
  REQUIRE(device->graphs.count == 0);
  REQUIRE(atomic_load_explicit(&operator_states, memory_order_relaxed) == 0);
  return failed;
}

typedef int (*control_fn_t)(const char* setting);
typedef uint64_t (*count_fn_t)(const char* entry_point);

/* A function of the stand-in; NULL with a real driver. */
static void* stand_in_function(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != NULL ? dlsym(library, name) : NULL;
}

/* Every call fails once. Nothing may leak, hang or break, and some failures are made good: a patch
 * that is refused is built. */
static void test_failing_calls(void** state) {
  (void)state;
  static const char* const names[] = {"cuGraphCreate",
                                      "cuGraphAddKernelNode",
                                      "cuGraphAddMemcpyNode",
                                      "cuGraphAddMemsetNode",
                                      "cuGraphAddEmptyNode",
                                      "cuGraphAddChildGraphNode",
                                      "cuGraphAddDependencies",
                                      "cuGraphInstantiateWithFlags",
                                      "cuGraphLaunch",
                                      "cuGraphExecKernelNodeSetParams",
                                      "cuGraphExecMemcpyNodeSetParams",
                                      "cuGraphExecMemsetNodeSetParams",
                                      "cuGraphExecChildGraphNodeSetParams",
                                      "cuGraphNodeSetEnabled",
                                      "cuStreamBeginCapture",
                                      "cuStreamEndCapture",
                                      "cuLaunchKernel"};
  void* symbols[2] = {stand_in_function("fakecuda_control"), stand_in_function("fakecuda_count")};
  control_fn_t control;
  count_fn_t count;
  if (symbols[0] == NULL)
    skip();
  memcpy(&control, &symbols[0], sizeof control);
  memcpy(&count, &symbols[1], sizeof count);
  assert_int_equal(run_all(), 0);
  for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n) {
    const uint64_t before = count(names[n]);
    assert_int_equal(run_all(), 0);
    const uint64_t calls = count(names[n]) - before;
    uint32_t failing = 0;
    for (uint64_t k = 1; k <= calls; ++k) {
      char setting[100];
      const CUresult result = k % 2 == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
      snprintf(setting, sizeof setting, "fail=%s:%llu=%d", names[n], (unsigned long long)k,
               (int)result);
      assert_int_equal(control(setting), 0);
      failing += run_all() > 0;
      assert_int_equal(control("reset"), 0);
    }
    printf("%s: called %llu times, %u failures were seen\n", names[n], (unsigned long long)calls,
           (unsigned)failing);
    assert_true(strcmp(names[n], "cuGraphAddEmptyNode") == 0 || calls > 0);
  }
}

int main(int argc, char** argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random),
      cmocka_unit_test(test_plain_memory),
      cmocka_unit_test(test_failing_operators),
      cmocka_unit_test(test_unloaded_modules),
      cmocka_unit_test(test_captured),
      cmocka_unit_test(test_failing_calls),
  };
  if (!open_device()) {
    printf("skipped: %s\n", accrt_error_current()->message);
    return 0;
  }
  int status = 0;
  if (argc > 1)
    run_random(strtoull(argv[1], NULL, 10), argc > 2 ? (uint32_t)atoi(argv[2]) : 400,
               argc > 3 ? (uint32_t)atoi(argv[3]) : 1);
  else
    status = cmocka_run_group_tests(tests, NULL, NULL);
  close_device();
  return status;
}
