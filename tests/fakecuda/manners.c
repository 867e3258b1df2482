/* tests/fakecuda/manners.c - how the library behaves towards those who share CUDA with it, and what it
 * asks of the driver, through the public API: the current context, other people's captures, lost
 * devices, devices without a path (paths.c), and how often graphs are made, patched and uploaded.
 * What needs no counts and no faults of the stand-in runs on a GPU as well.
 *
 * Usage: manners KERNELS.ptx TRAITS.ptx (of tests/cts). */
#include "manners.h"

/* ---- The current context ---- */

static void check_context(CUcontext expected, const char* expression, int line) {
  CUcontext current = (CUcontext)(uintptr_t)1;
  CUDA(cuCtxGetCurrent(&current));
  if (current != expected)
    fail_msg("line %d: %s left context %p current, not %p", line, expression, (void*)current,
             (void*)expected);
}
/* The call is made, and leaves the context that was current. */
#define KEEPS(expression)                                                                          \
  do {                                                                                             \
    expression;                                                                                    \
    check_context(current, #expression, __LINE__);                                                 \
  } while (0)

static void use_objects(work_t* work, CUcontext current) {
  accrt_stream_t *stream = NULL, *wrapped = NULL;
  accrt_event_t* event = NULL;
  accrt_buffer_t *buffer = NULL, *exported = NULL;
  accrt_kernel_pack_t* pack = NULL;
  accrt_launch_t* prepared = NULL;
  void* native = NULL;
  KEEPS(OK(accrt_stream_create(work->device, NULL, &stream)));
  KEEPS(OK(accrt_buffer_create(work->pool, 100 * MIB, NULL, &buffer)));
  KEEPS(OK(load_text(work->device, kernels_text, &append_definition, &pack)));
  KEEPS(OK(clear(stream, work->log)));
  for (int i = 0; i < 6; ++i) /* the fourth is prepared */
    KEEPS(OK(launch(work, stream, work->log)));
  KEEPS(OK(accrt_launch_create(work->device, work->append, &prepared)));
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(work->log), scalar_argument(6)};
  for (uint32_t i = 0; i < 2; ++i)
    KEEPS(OK(accrt_launch_set(prepared, i, &arguments[i], ARGUMENT_SIZE)));
  KEEPS(OK(accrt_stream_launch_prepared(stream, prepared, one)));
  KEEPS(OK(accrt_event_create(work->device, ACCRT_EVENT_FLAG_TIMING, &event)));
  KEEPS(OK(accrt_stream_record(stream, event)));
  KEEPS(OK(accrt_stream_wait_event(work->stream, event)));
  KEEPS(OK(accrt_event_synchronize(event, PATIENCE, ACCRT_WAIT_BLOCK)));
  KEEPS(OK(synchronize(stream)));
  KEEPS(OK(accrt_stream_native(stream, &native)));
  KEEPS(OK(accrt_stream_wrap(work->device, native, &wrapped)));
  KEEPS(OK(launch(work, wrapped, work->log)));
  KEEPS(OK(synchronize(wrapped)));
  KEEPS(accrt_stream_release(wrapped));
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  options.flags = ACCRT_BUFFER_FLAG_EXPORT_FD;
  KEEPS(OK(accrt_buffer_create(work->pool, MIB, &options, &exported)));
  KEEPS(OK(accrt_buffer_export(exported, ACCRT_HANDLE_FD, &handle)));
  accrt_buffer_t* opened = NULL;
  KEEPS(OK(accrt_buffer_import_handle(work->device, &handle, &opened)));
  close(handle.fd);
  KEEPS(accrt_buffer_release(opened));
  KEEPS(accrt_buffer_release(exported));
  KEEPS(accrt_launch_release(prepared));
  KEEPS(accrt_kernel_pack_release(pack));
  KEEPS(accrt_event_release(event));
  KEEPS(accrt_buffer_release(buffer));
  KEEPS(OK(accrt_pool_trim(work->pool, 0)));
  KEEPS(accrt_stream_release(stream));
}

static void use_lists(work_t* work, CUcontext current, const char* operator_name) {
  for (int mode = OPERATOR_WORKS; mode <= OPERATOR_PUSHES; ++mode) {
    accrt_commands_t* commands = NULL;
    operator_mode = mode;
    operator_calls = 0;
    KEEPS(commands = record(work, 1, operator_name));
    KEEPS(OK(accrt_commands_finalize(commands)));
    for (int i = 0; i < 3; ++i)
      KEEPS(OK(submit(work, work->stream, commands, &work->log, 1)));
    KEEPS(OK(synchronize(work->stream)));
    uint32_t last = 0;
    const accrt_place_t source = {.buffer = work->log, .offset_bytes = LOG_BYTES - 4};
    const accrt_place_t target = host(&last);
    KEEPS(OK(accrt_stream_copy(work->stream, &source, &target, 4)));
    KEEPS(OK(synchronize(work->stream)));
    if (operator_name != NULL) {
      assert_int_equal(last, 77);
      assert_true(operator_calls >= 3); /* asked, prepared, executed */
    }
    KEEPS(accrt_commands_release(commands));
  }
}

static void use_failing_calls(work_t* work, CUcontext current) {
  accrt_buffer_t* buffer = NULL;
  accrt_kernel_pack_t* pack = NULL;
  accrt_stream_t* stream = NULL;
  accrt_kernel_def_t wrong = append_definition;
  KEEPS(FAILS(OUT_OF_DEVICE_MEMORY, "bytes are free",
              accrt_buffer_create(work->pool, UINT64_C(1) << 44, NULL, &buffer)));
  wrong.name = "nobody";
  KEEPS(FAILS(NOT_FOUND, "nobody", load_text(work->device, kernels_text, &wrong, &pack)));
  KEEPS(assert_int_not_equal(
      load_text(work->device, ".version 7.0\nrubbish", &append_definition, &pack), ACCRT_OK));
  CUcontext other = NULL;
  CUstream foreign = NULL;
  /* Of a context that is not the device's own. */
  CUDA(cuCtxPushCurrent(operator_context));
  CUDA(cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
  CUDA(cuCtxPopCurrent(&other));
  KEEPS(FAILS(INVALID_ARGUMENT, "cuda:0", accrt_stream_wrap(work->device, foreign, &stream)));
  CUDA(cuCtxPushCurrent(operator_context));
  CUDA(cuStreamDestroy(foreign));
  CUDA(cuCtxPopCurrent(&other));
  operator_mode = OPERATOR_FAILS;
  accrt_commands_t* commands = record(work, 1, "direct");
  KEEPS(OK(accrt_commands_finalize(commands)));
  KEEPS((void)submit(work, work->stream, commands, &work->log, 1));
  KEEPS(assert_int_not_equal(synchronize(work->stream), ACCRT_OK));
  KEEPS(OK(accrt_stream_reset(work->stream)));
  KEEPS(accrt_commands_release(commands));
  operator_mode = OPERATOR_WORKS;
}

/* Every call, with nothing current, with somebody else's context, and with the device's own. */
static void test_current_context(void** state) {
  (void)state;
  CUdevice device;
  CUcontext primary = NULL;
  CUDA(cuInit(0));
  CUDA(cuDeviceGet(&device, 0));
  CUDA(cuDevicePrimaryCtxRetain(&primary, device));
#if CUDA_VERSION >= 13000
  CUDA(cuCtxCreate(&operator_context, NULL, 0, device));
#else
  CUDA(cuCtxCreate(&operator_context, 0, device));
#endif
  const CUcontext contexts[] = {NULL, operator_context, primary};
  for (int i = 0; i < 3; ++i) {
    const CUcontext current = contexts[i];
    CUDA(cuCtxSetCurrent(current));
    work_t work;
    KEEPS(work = start());
    use_objects(&work, current);
    use_lists(&work, current, NULL);
    use_lists(&work, current, "captured");
    use_lists(&work, current, "direct");
    use_failing_calls(&work, current);
    accrt_device_t* second = NULL;
    if (accrt_instance_device_by_name(work.instance, "cuda:1", &second) == ACCRT_OK) {
      KEEPS((void)accrt_device_enable_peer(work.device, second));
    }
    KEEPS(finish(&work));
  }
  CUDA(cuCtxSetCurrent(NULL));
  CUDA(cuCtxDestroy(operator_context));
  CUDA(cuDevicePrimaryCtxRelease(device));
}

/* ---- Captures of others ---- */

/* Everything but a list that can be captured is refused, and says why. `direct` has an operator
 * that cannot be captured. */
static void refuse_all(work_t* work, accrt_stream_t* wrapped, accrt_commands_t* direct,
                       accrt_launch_t* prepared, accrt_event_t* event,
                       accrt_semaphore_t* semaphore) {
  const accrt_place_t log = at(work->log), far = {.buffer = work->log, .offset_bytes = 2048};
  FAILS(INVALID_STATE, "being captured", launch(work, wrapped, work->log));
  FAILS(INVALID_STATE, "being captured", accrt_stream_launch_prepared(wrapped, prepared, one));
  FAILS(INVALID_STATE, "being captured", submit(work, wrapped, direct, &work->log, 1));
  FAILS(INVALID_STATE, "being captured", accrt_stream_fill(wrapped, &log, 64, 1, 4));
  FAILS(INVALID_STATE, "being captured", accrt_stream_copy(wrapped, &log, &far, 64));
  FAILS(INVALID_STATE, "being captured", accrt_stream_record(wrapped, event));
  FAILS(INVALID_STATE, "being captured", accrt_stream_wait_event(wrapped, event));
  FAILS(INVALID_STATE, "being captured", accrt_stream_signal(wrapped, semaphore, 99));
}

/* What happens beside it does not disturb it. */
static void work_beside(work_t* work, accrt_commands_t* list, accrt_launch_t* prepared) {
  accrt_buffer_t* buffer = NULL;
  accrt_stream_t* stream = NULL;
  OK(accrt_stream_create(work->device, NULL, &stream));
  OK(accrt_buffer_create(work->pool, 70 * MIB, NULL, &buffer));
  OK(clear(work->stream, work->log));
  for (int i = 0; i < 6; ++i)
    OK(launch(work, work->stream, work->log));
  OK(accrt_stream_launch_prepared(stream, prepared, one));
  OK(submit(work, work->stream, list, &work->log, 1));
  OK(synchronize(work->stream));
  OK(synchronize(stream));
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
}

static void test_captured_stream(void** state) {
  (void)state;
  work_t work = start();
  CUdevice device;
  CUcontext primary = NULL;
  CUstream stream = NULL;
  CUDA(cuDeviceGet(&device, 0));
  CUDA(cuDevicePrimaryCtxRetain(&primary, device));
  CUDA(cuCtxSetCurrent(primary));
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  accrt_stream_t* wrapped = NULL;
  accrt_event_t* event = NULL;
  accrt_semaphore_t* semaphore = NULL;
  accrt_launch_t* prepared = NULL;
  accrt_commands_t *list = record(&work, 1, "captured"), *fresh = record(&work, 1, "captured");
  accrt_commands_t* direct = record(&work, 1, "direct");
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(work.log), scalar_argument(6)};
  OK(accrt_stream_wrap(work.device, stream, &wrapped));
  OK(accrt_event_create(work.device, 0, &event));
  OK(accrt_semaphore_create(work.instance, 0, &semaphore));
  OK(accrt_commands_finalize(list));
  OK(accrt_commands_finalize(direct));
  OK(accrt_launch_create(work.device, work.append, &prepared));
  for (uint32_t i = 0; i < 2; ++i)
    OK(accrt_launch_set(prepared, i, &arguments[i], ARGUMENT_SIZE));
  OK(clear(wrapped, work.log));
  OK(launch(&work, wrapped, work.log));
  OK(synchronize(wrapped));
  OK(accrt_stream_record(work.stream, event));
  for (int mode = 0; mode < 3; ++mode) {
    CUgraph graph = NULL;
    size_t nodes = 9;
    accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
    OK(accrt_buffer_info(work.log, &info));
    OK(launch(&work, wrapped, work.log)); /* in flight, and nobody has asked for its end yet */
    CUDA(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
    CUDA(cuMemsetD32Async(info.device_address, 1, 1, stream));
    refuse_all(&work, wrapped, direct, prepared, event, semaphore);
    FAILS(INVALID_STATE, "being captured", synchronize(wrapped));
    OK(submit(&work, wrapped, list, &work.log, 1)); /* becomes part of the graph */
    FAILS(INVALID_STATE, "being captured", synchronize(wrapped));
    work_beside(&work, list, prepared);
    if (mode == 0)
      OK(accrt_commands_finalize(fresh)); /* made while somebody captures */
    CUDA(cuStreamEndCapture(stream, &graph));
    CUDA(cuGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 3); /* the owner's fill, the list's kernel and its operator's fill */
    CUDA(cuGraphDestroy(graph));
    /* As good as before. */
    OK(submit(&work, wrapped, fresh, &work.log, 1));
    OK(accrt_stream_launch_prepared(wrapped, prepared, one));
    OK(synchronize(wrapped));
  }
  accrt_commands_release(list);
  accrt_commands_release(fresh);
  accrt_commands_release(direct);
  accrt_launch_release(prepared);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(wrapped);
  finish(&work);
  CUDA(cuStreamDestroy(stream));
  CUDA(cuCtxSetCurrent(NULL));
  CUDA(cuDevicePrimaryCtxRelease(device));
}

/* The legacy stream waits for all blocking streams: it may not be touched while one of those is captured. */
static void test_legacy_stream(void** state) {
  (void)state;
  work_t work = start();
  CUdevice device;
  CUcontext primary = NULL;
  CUstream blocking = NULL;
  CUDA(cuDeviceGet(&device, 0));
  CUDA(cuDevicePrimaryCtxRetain(&primary, device));
  CUDA(cuCtxSetCurrent(primary));
  CUDA(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  accrt_stream_t* legacy = NULL;
  OK(accrt_stream_wrap(work.device, NULL, &legacy));
  uint32_t words[2] = {0, 0};
  const accrt_place_t log = at(work.log), out = host(words);
  OK(clear(legacy, work.log));
  OK(launch(&work, legacy, work.log));
  OK(accrt_stream_copy(legacy, &log, &out, 8));
  OK(synchronize(legacy));
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 5);
  CUgraph graph = NULL;
  CUDA(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(INVALID_STATE, "being captured", launch(&work, legacy, work.log));
  FAILS(INVALID_STATE, "being captured", clear(legacy, work.log));
  OK(launch(&work, work.stream, work.log)); /* the library's own do not wait for it */
  OK(synchronize(work.stream));
  CUDA(cuStreamEndCapture(blocking, &graph));
  CUDA(cuGraphDestroy(graph));
  OK(launch(&work, legacy, work.log));
  OK(synchronize(legacy));
  accrt_stream_release(legacy);
  CUDA(cuStreamDestroy(blocking));
  finish(&work);
  CUDA(cuCtxSetCurrent(NULL));
  CUDA(cuDevicePrimaryCtxRelease(device));
}

/* ---- What is asked of the driver ---- */

static uint64_t counted(const char* name, uint64_t* last) {
  const uint64_t now = count_of(name), since = now - *last;
  *last = now;
  return since;
}

/* Instantiated and uploaded once, ahead of the first launch; then one patch for each slot that changed, and none for those that did
 * not. */
static void test_list_calls(void** state) {
  (void)state;
  enum { COUNT = 6 };
  work_t work = start();
  accrt_buffer_t *logs[COUNT], *spare = NULL;
  uint64_t instantiated = 0, uploaded = 0, launched = 0, patched = 0;
  for (int i = 0; i < COUNT; ++i) {
    OK(accrt_buffer_create(work.pool, LOG_BYTES, NULL, &logs[i]));
    OK(clear(work.stream, logs[i]));
  }
  OK(accrt_buffer_create(work.pool, LOG_BYTES, NULL, &spare));
  OK(clear(work.stream, spare));
  OK(synchronize(work.stream));
#define COUNTED(name, variable) counted(name, &(variable))
#define INSTANTIATED COUNTED("cuGraphInstantiateWithFlags", instantiated)
#define UPLOADED COUNTED("cuGraphUpload", uploaded)
#define LAUNCHED COUNTED("cuGraphLaunch", launched)
#define PATCHED COUNTED("cuGraphExecKernelNodeSetParams", patched)
  (void)INSTANTIATED, (void)UPLOADED, (void)LAUNCHED, (void)PATCHED;
  accrt_commands_t* list = record(&work, COUNT, NULL);
  OK(accrt_commands_finalize(list));
  assert_int_equal(INSTANTIATED, 1);
  assert_int_equal(UPLOADED, 1);
  assert_int_equal(LAUNCHED, 0);
  OK(submit(&work, work.stream, list, logs, COUNT));
  assert_int_equal(PATCHED, COUNT); /* all addresses are new */
  assert_int_equal(LAUNCHED, 1);
  for (int i = 0; i < 50; ++i)
    OK(submit(&work, work.stream, list, logs, COUNT));
  assert_int_equal(PATCHED, 0);
  assert_int_equal(LAUNCHED, 50);
  for (int i = 0; i < COUNT; ++i) {
    accrt_buffer_t* kept = logs[i];
    logs[i] = spare;
    OK(submit(&work, work.stream, list, logs, COUNT));
    assert_int_equal(PATCHED, 1);
    logs[i] = kept;
    OK(submit(&work, work.stream, list, logs, COUNT));
    assert_int_equal(PATCHED, 1);
  }
  assert_int_equal(LAUNCHED, 2 * COUNT);
  assert_int_equal(INSTANTIATED, 0);
  assert_int_equal(UPLOADED, 0);
  uint32_t words[2] = {0, 0};
  for (int i = 0; i < COUNT; ++i) {
    const accrt_place_t log = at(logs[i]), out = host(words);
    OK(accrt_stream_copy(work.stream, &log, &out, 8));
    OK(synchronize(work.stream));
    assert_int_equal(words[0], 1 + 50 + 2 * COUNT - 1);
    assert_int_equal(words[1], i);
    accrt_buffer_release(logs[i]);
  }
  accrt_buffer_release(spare);
  accrt_commands_release(list);
  finish(&work);
}

/* Copies and fills between places that do not change are built and uploaded with their list; those of bindings at their first
 * submission. */
static void test_copies_are_uploaded_ahead(void** state) {
  (void)state;
  work_t work = start();
  for (int bound = 0; bound < 2; ++bound) {
    accrt_commands_t* list = NULL;
    uint64_t instantiated = count_of("cuGraphInstantiateWithFlags"),
             uploaded = count_of("cuGraphUpload");
    const accrt_binding_place_t from = {.place = {.buffer = work.log},
                                        .binding = ACCRT_BINDING_NONE},
                                fixed = {.place = {.buffer = work.log, .offset_bytes = 1024},
                                         .binding = ACCRT_BINDING_NONE},
                                open = {.place = {.offset_bytes = 1024}, .binding = 0};
    const accrt_copy_region_t region = {.extent = {512, 1, 1}};
    OK(accrt_commands_create(work.device, 1, &list));
    OK(accrt_commands_fill(list, &from, 512, 9, 4, NULL, NULL));
    OK(accrt_commands_barrier(list, NULL));
    OK(accrt_commands_copy(list, &from, bound != 0 ? &open : &fixed, &region, NULL, NULL));
    OK(accrt_commands_finalize(list));
    assert_int_equal(INSTANTIATED, bound == 0);
    assert_int_equal(UPLOADED, bound == 0);
    uint32_t word = 0;
    const accrt_place_t source = {.buffer = work.log, .offset_bytes = 1024 + 508};
    const accrt_place_t target = host(&word);
    OK(clear(work.stream, work.log));
    OK(submit(&work, work.stream, list, &work.log, 1));
    assert_int_equal(INSTANTIATED, bound == 1);
    OK(accrt_stream_copy(work.stream, &source, &target, 4));
    OK(synchronize(work.stream));
    assert_int_equal(word, 9);
    accrt_commands_release(list);
  }
  finish(&work);
}

/* An operator is captured once, and again when one of its arguments changes. */
static void test_operators_are_captured_once(void** state) {
  (void)state;
  work_t work = start();
  accrt_buffer_t* other = NULL;
  OK(accrt_buffer_create(work.pool, LOG_BYTES, NULL, &other));
  OK(clear(work.stream, work.log));
  OK(clear(work.stream, other));
  accrt_commands_t* list = record(&work, 1, "captured");
  OK(accrt_commands_finalize(list));
  uint64_t captured = count_of("cuStreamBeginCapture"), instantiated = 0;
  (void)INSTANTIATED;
  for (int i = 0; i < 10; ++i)
    OK(submit(&work, work.stream, list, &work.log, 1));
  assert_int_equal(COUNTED("cuStreamBeginCapture", captured), 1);
  OK(submit(&work, work.stream, list, &other, 1));
  assert_int_equal(COUNTED("cuStreamBeginCapture", captured), 1);
  assert_int_equal(INSTANTIATED, 1);
  OK(synchronize(work.stream));
  accrt_buffer_release(other);
  accrt_commands_release(list);
  finish(&work);
}

/* No more graphs than the option says: those not used for longest are destroyed, and made again when their list comes again. */
static void test_graphs_are_bounded(void** state) {
  (void)state;
  enum { LISTS = 6, BOUND = 2 };
  work_t work = start_with("cuda.graphs", "2");
  accrt_commands_t* lists[LISTS];
  OK(clear(work.stream, work.log));
  OK(synchronize(work.stream));
  uint64_t instantiated = count_of("cuGraphInstantiateWithFlags"),
           destroyed = count_of("cuGraphExecDestroy");
  for (int i = 0; i < LISTS; ++i) {
    lists[i] = record(&work, 1, NULL);
    OK(accrt_commands_finalize(lists[i]));
  }
  assert_int_equal(INSTANTIATED, LISTS);
  assert_int_equal(COUNTED("cuGraphExecDestroy", destroyed), LISTS - BOUND);
  /* The two that are left go round and round without another. */
  for (int i = 0; i < 10; ++i)
    OK(submit(&work, work.stream, lists[LISTS - 1 - i % BOUND], &work.log, 1));
  assert_int_equal(INSTANTIATED, 0);
  /* One that went comes again; the one not used for longest goes. */
  OK(submit(&work, work.stream, lists[0], &work.log, 1));
  assert_int_equal(INSTANTIATED, 1);
  assert_int_equal(COUNTED("cuGraphExecDestroy", destroyed), 1);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < LISTS; ++i)
      OK(submit(&work, work.stream, lists[i], &work.log, 1));
  }
  uint32_t length = 0;
  const accrt_place_t log = at(work.log), out = host(&length);
  OK(accrt_stream_copy(work.stream, &log, &out, 4));
  OK(synchronize(work.stream));
  assert_int_equal(length, 10 + 1 + 3 * LISTS);
  for (int i = 0; i < LISTS; ++i)
    accrt_commands_release(lists[i]);
  finish(&work);
}

typedef struct traits_case {
  const char* kernel;
  uint32_t param_count, traits, cluster, shared_bytes;
  const char *launched, *node, *edge; /* what is counted */
} traits_case_t;

/* What a kernel declares reaches the driver by every way to launch. */
static void check_traits(work_t* work, const traits_case_t* wanted) {
  static const accrt_kernel_param_t params[] = {
      {"a", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 0, 8, 0},
      {"b", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 8, 8, 0}};
  const bool appends = wanted->launched != NULL && strcmp(wanted->kernel, "overlapping") == 0;
  const accrt_kernel_def_t definition = {
      .struct_size = sizeof definition,
      .name = wanted->kernel,
      .traits = wanted->traits,
      .params = appends ? append_params : params,
      .param_count = wanted->param_count,
      .params_size_bytes = 8 * wanted->param_count,
      .local_memory_size_bytes = wanted->shared_bytes,
      .block = {32, 1, 1},
      .cluster = {wanted->cluster, wanted->cluster != 0, wanted->cluster != 0}};
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* kernel = NULL;
  accrt_launch_t* prepared = NULL;
  accrt_commands_t* list = NULL;
  uint64_t large = count_of("cuFuncSetAttribute");
  OK(load_text(work->device, traits_text, &definition, &pack));
  const bool divides =
      wanted->shared_bytes > 0 && (wanted->traits & ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS) != 0;
  assert_int_equal(COUNTED("cuFuncSetAttribute", large),
                   (wanted->shared_bytes > 49152) + (divides ? 1 : 0));
  OK(accrt_kernel_pack_find(pack, wanted->kernel, &kernel));
  const uint32_t grid[3] = {8, 1, 1};
  const accrt_kernel_argument_t arguments[2] = {
      buffer_argument(work->log), appends ? scalar_argument(1) : buffer_argument(work->log)};
  uint64_t launched = wanted->launched != NULL ? count_of(wanted->launched) : 0, node = 0, edge = 0;
  OK(clear(work->stream, work->log));
  OK(accrt_stream_launch(work->stream, kernel, grid, arguments, wanted->param_count,
                         ARGUMENT_SIZE));
  if (wanted->launched != NULL)
    assert_true(COUNTED(wanted->launched, launched) >= 1);
  if (wanted->node != NULL)
    node = count_of(wanted->node);
  OK(accrt_launch_create(work->device, kernel, &prepared));
  for (uint32_t i = 0; i < wanted->param_count; ++i)
    OK(accrt_launch_set(prepared, i, &arguments[i], ARGUMENT_SIZE));
  OK(clear(work->stream, work->log));
  OK(accrt_stream_launch_prepared(work->stream, prepared, grid));
  if (wanted->node != NULL)
    assert_int_equal(COUNTED(wanted->node, node), 1);
  else if (wanted->launched != NULL) /* between graphs there is no overlap */
    assert_true(COUNTED(wanted->launched, launched) >= 1);
  OK(accrt_commands_create(work->device, 0, &list));
  for (uint32_t i = 0; i < 2; ++i) {
    const accrt_predecessors_t after = {.commands = &(uint32_t){0}, .count = i};
    OK(accrt_commands_dispatch(list, kernel, grid, arguments, wanted->param_count, ARGUMENT_SIZE,
                               &after, NULL));
  }
  if (wanted->edge != NULL)
    edge = count_of(wanted->edge);
  OK(accrt_commands_finalize(list));
  OK(clear(work->stream, work->log));
  OK(accrt_stream_submit(work->stream, list, NULL, 0, BINDING_SIZE));
  if (wanted->node != NULL)
    assert_int_equal(COUNTED(wanted->node, node), 2);
  if (wanted->edge != NULL)
    assert_int_equal(COUNTED(wanted->edge, edge), 1);
  OK(synchronize(work->stream));
  accrt_commands_release(list);
  accrt_launch_release(prepared);
  accrt_kernel_pack_release(pack);
}

static void test_traits_reach_the_driver(void** state) {
  (void)state;
  static const traits_case_t cases[] = {
      {"in_cluster", 1, 0, 4, 0, "launch.cluster", "node.cluster", NULL},
      {"over_grid", 2, ACCRT_KERNEL_TRAIT_COOPERATIVE, 0, 0, "launch.cooperative",
       "node.cooperative", NULL},
      {"overlapping", 2, ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS, 0, 0, "launch.overlap", NULL,
       "edge.overlap"},
      {"overlapping", 2, ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS, 0, 1024, "launch.overlap", NULL,
       "edge.overlap"},
      {"much_shared", 1, 0, 0, 98304, NULL, NULL, NULL}};
  work_t work = start();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    check_traits(&work, &cases[i]);
  finish(&work);
}

/* ---- Messages ---- */

/* Values, limits and near names are in the message, nothing twice, and an operator is called one. */
static void test_messages(void** state) {
  (void)state;
  work_t work = start();
  accrt_kernel_pack_t* pack = NULL;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_kernel_def_t wrong = append_definition;
  wrong.name = "apend";
  FAILS(NOT_FOUND, "no kernel 'apend'; did you mean 'append'?",
        load_text(work.device, kernels_text, &wrong, &pack));
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.image = kernels_text;
  options.size_bytes = strlen(kernels_text) + 1;
  options.kernel_size_bytes = (uint32_t)sizeof(accrt_kernel_def_t);
  FAILS(INVALID_ARGUMENT, "0 kernels are declared",
        accrt_kernel_module_load(work.device, &options, &pack));
  options.kernel_count = 1;
  FAILS(INVALID_ARGUMENT, "kernels is NULL",
        accrt_kernel_module_load(work.device, &options, &pack));
  /* What the compiler says is there once, or not at all. */
  assert_int_not_equal(load_text(work.device, ".version 7.0\nrubbish", &append_definition, &pack),
                       ACCRT_OK);
  accrt_last_error(&error);
  assert_non_null(strstr(error.message, "could not be compiled for sm_"));
  assert_null(strstr(error.message, ": :"));
  assert_null(strstr(error.message, ": ,"));
  accrt_pool_t *pool = NULL, *same = NULL;
  OK(accrt_device_pool(work.device, 0, &pool));
  OK(accrt_device_pool(work.device, ACCRT_MEMORY_DEVICE, &same));
  assert_ptr_equal(pool, same);
  /* A grid that no device takes: at once, prepared, in a list. */
  const uint32_t grid[3] = {1, 70000, 1};
  const char* const words =
      "1 x 70000 x 1 workgroups (there are at most 2147483647 x 65535 x 65535)";
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(work.log), scalar_argument(5)};
  FAILS(INVALID_ARGUMENT, words,
        accrt_stream_launch(work.stream, work.append, grid, arguments, 2, ARGUMENT_SIZE));
  accrt_launch_t* prepared = NULL;
  accrt_commands_t* list = NULL;
  OK(accrt_launch_create(work.device, work.append, &prepared));
  for (uint32_t i = 0; i < 2; ++i)
    OK(accrt_launch_set(prepared, i, &arguments[i], ARGUMENT_SIZE));
  FAILS(INVALID_ARGUMENT, words, accrt_stream_launch_prepared(work.stream, prepared, grid));
  OK(accrt_commands_create(work.device, 0, &list));
  OK(accrt_commands_dispatch(list, work.append, grid, arguments, 2, ARGUMENT_SIZE, NULL, NULL));
  FAILS(INVALID_ARGUMENT, words, accrt_commands_finalize(list));
  accrt_commands_release(list);
  accrt_launch_release(prepared);
  /* A failing operator is no kernel. */
  const char* const operators[] = {"captured", "direct"};
  for (int i = 0; i < 2; ++i) {
    list = record(&work, 1, operators[i]);
    OK(clear(work.stream, work.log));
    OK(accrt_commands_finalize(list));
    operator_mode = OPERATOR_FAILS;
    accrt_status_t status = submit(&work, work.stream, list, &work.log, 1);
    if (status == ACCRT_OK)
      status = synchronize(work.stream);
    operator_mode = OPERATOR_WORKS;
    accrt_last_error(&error);
    assert_int_not_equal(status, ACCRT_OK);
    assert_int_equal(error.driver_code, 31);
    assert_non_null(strstr(error.message, operators[i]));
    assert_non_null(strstr(error.message, "': execute gave 31: it will not"));
    assert_null(strstr(error.message, "grid"));
    OK(accrt_stream_reset(work.stream));
    accrt_commands_release(list);
  }
  finish(&work);
}

/* ---- A lost device ---- */

#define REASON "CUDA_ERROR_ILLEGAL_ADDRESS (700)"

static void check_lost(accrt_status_t status, const char* expression, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status == ACCRT_ERROR_DEVICE_LOST && error.status == status && error.driver_code == 700 &&
      strcmp(error.driver_name, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0 &&
      strstr(error.message, REASON) != NULL)
    return;
  fail_msg("line %d: %s gave %s, code %d (%s), in %s: %s", line, expression,
           accrt_status_name(status), error.driver_code, error.driver_name, error.operation,
           error.message);
}
#define LOST(expression) check_lost((expression), #expression, __LINE__)

static void test_lost_device_says_why(void** state) {
  (void)state;
  work_t work = start();
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_stream_t *second = NULL, *other = NULL, *stream = NULL;
  accrt_event_t *event = NULL, *late = NULL;
  accrt_buffer_t* buffer = NULL;
  accrt_kernel_pack_t* pack = NULL;
  accrt_launch_t *prepared = NULL, *fresh = NULL;
  accrt_semaphore_t* semaphore = NULL;
  accrt_commands_t *list = record(&work, 1, NULL), *unmade = record(&work, 1, NULL);
  void* native = NULL;
  OK(accrt_stream_create(work.device, NULL, &second));
  OK(accrt_stream_native(second, &native));
  OK(accrt_stream_create(work.device, NULL, &other));
  OK(accrt_event_create(work.device, ACCRT_EVENT_FLAG_TIMING, &event));
  OK(accrt_semaphore_create(work.instance, 1, &semaphore));
  OK(accrt_commands_finalize(list));
  OK(accrt_launch_create(work.device, work.append, &prepared));
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(work.log), scalar_argument(6)};
  for (uint32_t i = 0; i < 2; ++i)
    OK(accrt_launch_set(prepared, i, &arguments[i], ARGUMENT_SIZE));
  OK(clear(work.stream, work.log)); /* submission 1 */
  OK(synchronize(work.stream));
  demand("async=1:700");
  OK(launch(&work, work.stream, work.log)); /* 2 ends well */
  OK(launch(&work, work.stream, work.log)); /* 3 does not */
  (void)launch(&work, work.stream, work.log);
  LOST(synchronize(work.stream));
  OK(accrt_stream_error(work.stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(error.driver_code, 700);
  assert_true(error.submission == 2 || error.submission == 3); /* the first that had not ended */
  /* Every call, on this stream and on others. */
  const accrt_place_t log = at(work.log), far = {.buffer = work.log, .offset_bytes = 2048};
  LOST(accrt_device_status(work.device));
  accrt_stream_t* const streams[] = {work.stream, other};
  for (int i = 0; i < 2; ++i) {
    LOST(launch(&work, streams[i], work.log));
    LOST(accrt_stream_launch_prepared(streams[i], prepared, one));
    LOST(submit(&work, streams[i], list, &work.log, 1));
    LOST(accrt_stream_copy(streams[i], &log, &far, 64));
    LOST(accrt_stream_fill(streams[i], &log, 64, 0, 4));
    LOST(accrt_stream_signal(streams[i], semaphore, 3 + (uint64_t)i));
    LOST(accrt_stream_wait(streams[i], semaphore, 2));
    LOST(accrt_stream_record(streams[i], event));
    LOST(accrt_stream_reset(streams[i]));
  }
  LOST(accrt_stream_create(work.device, NULL, &stream));
  LOST(accrt_stream_wrap(work.device, native, &stream));
  LOST(accrt_event_create(work.device, 0, &late));
  LOST(accrt_buffer_create(work.pool, 16, NULL, &buffer));
  LOST(accrt_buffer_create(work.pool, 512 * MIB, NULL, &buffer));
  LOST(load_text(work.device, kernels_text, &append_definition, &pack));
  LOST(accrt_launch_create(work.device, work.append, &fresh));
  LOST(accrt_commands_finalize(unmade));
  uint32_t word = 0;
  LOST(accrt_buffer_import(work.device, &word, sizeof word, NULL, NULL, &buffer));
  accrt_device_t* peer = NULL;
  OK(accrt_instance_device_by_name(work.instance, "cuda:1", &peer));
  LOST(accrt_device_enable_peer(work.device, peer));
  LOST(accrt_device_enable_peer(peer, work.device));
  OK(accrt_device_status(peer));
  accrt_semaphore_release(semaphore);
  accrt_commands_release(list);
  accrt_commands_release(unmade);
  accrt_launch_release(prepared);
  accrt_event_release(event);
  accrt_stream_release(second);
  accrt_stream_release(other);
  finish(&work);
}

/* ---- Which tests there are ---- */

static bool has_two_devices(void) {
  int count = 0;
  return cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS && count >= 2;
}

static int check_misuse(void** state) {
  (void)state;
  if (complaints != NULL)
    assert_int_equal(complaints(), 0);
  return 0;
}

static bool read_text(const char* path, char* text, size_t capacity) {
  FILE* file = fopen(path, "rb");
  if (file == NULL)
    return false;
  const bool whole = fread(text, 1, capacity - 1, file) > 0 && feof(file);
  (void)fclose(file);
  return whole;
}

static void find_stand_in(void) {
  void* functions[] = {dlsym(RTLD_DEFAULT, "fakecuda_control"),
                       dlsym(RTLD_DEFAULT, "fakecuda_count"),
                       dlsym(RTLD_DEFAULT, "fakecuda_complaints")};
  memcpy(&control, &functions[0], sizeof control);
  memcpy(&count_of, &functions[1], sizeof count_of);
  memcpy(&complaints, &functions[2], sizeof complaints);
}

#define ALWAYS 0
#define TWO 1
#define STAND_IN 2

int main(int argument_count, char** arguments) {
  static const struct {
    struct CMUnitTest test;
    int needs;
  } all[] = {
#define TEST(name, needs) {cmocka_unit_test_teardown(name, check_misuse), needs}
      TEST(test_current_context, ALWAYS),
      TEST(test_captured_stream, ALWAYS),
      TEST(test_legacy_stream, ALWAYS),
      TEST(test_event_of_another_driver, ALWAYS),
      TEST(test_messages, ALWAYS),
      TEST(test_memory_of_the_host, ALWAYS),
      TEST(test_memory_out_of_reach, TWO),
      TEST(test_event_of_another_device, TWO),
      TEST(test_list_calls, STAND_IN),
      TEST(test_copies_are_uploaded_ahead, STAND_IN),
      TEST(test_operators_are_captured_once, STAND_IN),
      TEST(test_graphs_are_bounded, STAND_IN),
      TEST(test_traits_reach_the_driver, STAND_IN),
      TEST(test_lost_device_says_why, STAND_IN),
      TEST(test_copies_without_a_path, STAND_IN),
      TEST(test_copies_without_a_path_share_chunks, STAND_IN),
  };
  if (argument_count != 3 || !read_text(arguments[1], kernels_text, sizeof kernels_text) ||
      !read_text(arguments[2], traits_text, sizeof traits_text)) {
    fprintf(stderr, "Usage: manners KERNELS.ptx TRAITS.ptx\n");
    return 2;
  }
  find_stand_in();
  struct CMUnitTest tests[sizeof all / sizeof all[0]];
  size_t count = 0;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if ((all[i].needs != TWO || has_two_devices()) && (all[i].needs != STAND_IN || control != NULL))
      tests[count++] = all[i].test;
  }
  return _cmocka_run_group_tests("manners", tests, count, NULL, NULL);
}
