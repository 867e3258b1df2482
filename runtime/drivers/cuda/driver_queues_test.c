/* runtime/drivers/cuda/driver_queues_test.c - the CUDA driver's queues: progress, waits, events,
 * streams of others, failed queues, a lost device; every call of CUDA failing once. Needs the
 * stand-in of tests/fakecuda; without it all is skipped. */
#include "runtime/drivers/cuda/driver_test.h"

/* ---- Queues ---- */

/* What a foreign library may put on the stream: work that waits for a thread of the host. */
static void hold_stream(void* user) {
  const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS);
  while (!atomic_load((atomic_bool*)user) && accrt_deadline_left_ns(deadline_ns) > 0)
    usleep(100);
}

/* What is submitted next does not begin before the gate is opened. A kernel that takes some time
 * would not do: on a busy machine this thread may not run for longer than that. */
static void hold(const fixture_t* f, accrt_driver_queue_t* queue, atomic_bool* gate) {
  atomic_store(gate, false);
  assert_int_equal(api_of(f)->cuLaunchHostFunc(((cuda_queue_t*)queue)->stream, hold_stream, gate),
                   CUDA_SUCCESS);
}

static void test_progress_and_waits(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};
  const uint64_t timeouts[] = {PATIENCE_NS, ACCRT_TIMEOUT_INFINITE};
  for (int p = 0; p < 3; ++p) {
    for (int t = 0; t < 2; ++t) {
      for (int i = 0; i < 10; ++i)
        assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
      /* An earlier one, then the last. */
      assert_int_equal(f->table->queue_wait(f->queue, f->number - 5, timeouts[t], policies[p]),
                       ACCRT_OK);
      assert_int_equal(f->table->queue_wait(f->queue, f->number, timeouts[t], policies[p]),
                       ACCRT_OK);
      uint64_t number;
      assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
      assert_int_equal(number, f->number);
    }
  }
  /* Numbers that were never submitted to the queue. */
  assert_int_equal(f->table->queue_wait(f->queue, f->number + 100, PATIENCE_NS, ACCRT_WAIT_SPIN),
                   ACCRT_OK);
  atomic_bool gate;
  hold(f, f->queue, &gate);
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  for (int p = 0; p < 3; ++p) {
    assert_error(f->table->queue_wait(f->queue, f->number, 1000, policies[p]), ACCRT_ERROR_TIMEOUT,
                 "within 1000 ns");
  }
  atomic_store(&gate, true);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
}

typedef struct number_wait {
  fixture_t* f;
  uint64_t number;
  accrt_status_t status;
  atomic_bool over;
} number_wait_t;

static void* wait_for_number(void* argument) {
  number_wait_t* self = argument;
  self->status = self->f->table->queue_wait(self->f->queue, self->number, ACCRT_TIMEOUT_INFINITE,
                                            ACCRT_WAIT_BLOCK);
  atomic_store(&self->over, true);
  return NULL;
}

/* A wait for an earlier submission ends at the nearest event behind it: here there is one, which a
 * query of the progress has left. Without one it may wait for more, but not beyond its limit. */
static void test_waits_for_earlier_numbers(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  for (int is_known = 0; is_known < 2; ++is_known) {
    atomic_bool earlier, gate;
    number_wait_t wait = {.f = f};
    pthread_t thread;
    uint64_t before = 0;
    hold(f, f->queue, &earlier);
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
    wait.number = f->number;
    if (is_known != 0) {
      assert_int_equal(f->table->queue_progress(f->queue, &before), ACCRT_OK);
      assert_true(before < wait.number);
    }
    hold(f, f->queue, &gate);
    atomic_store(&earlier, true);
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
    if (is_known == 0) {
      const accrt_status_t status =
          f->table->queue_wait(f->queue, wait.number, 1000, ACCRT_WAIT_BLOCK);
      assert_int_equal(status, ACCRT_ERROR_TIMEOUT);
      atomic_store(&gate, true);
    }
    assert_int_equal(pthread_create(&thread, NULL, wait_for_number, &wait), 0);
    const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS / 2);
    while (!atomic_load(&wait.over) && accrt_deadline_left_ns(deadline_ns) > 0)
      usleep(100);
    const bool in_time = atomic_load(&wait.over);
    if (is_known != 0) {
      assert_error(f->table->queue_wait(f->queue, f->number, 1000, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_TIMEOUT, "within 1000 ns");
    }
    atomic_store(&gate, true);
    pthread_join(thread, NULL);
    assert_true(in_time);
    assert_int_equal(wait.status, ACCRT_OK);
    assert_int_equal(wait_all(f), ACCRT_OK);
  }
  f->table->memory_free(f->device, &memory);
}

static void test_completions_in_order(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK); /* idle: at once */
  assert_int_equal(atomic_load(&told.count), 1);
  for (int i = 0; i < 20; ++i)
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 22);
  for (int i = 0; i < 22; ++i)
    assert_int_equal(told.statuses[i], ACCRT_OK);
  uint64_t number;
  assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
  assert_int_equal(number, f->number);
  f->table->memory_free(f->device, &memory);
}

static void test_traces(void** state) {
  (void)state;
  fixture_t* f = calloc(1, sizeof *f);
  f->environment.tracing = 1;
  f->complaint_count = complaints();
  open_driver(f);
  assert_true(f->table->device_count(f->driver) > 0);
  assert_int_equal(f->table->device_open(f->driver, 0, &f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_create(f->device, 3, &f->queue), ACCRT_OK);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  atomic_store(&traced, 0);
  const uint64_t before_ns = accrt_clock_ns();
  assert_int_equal(copy(f, memory.device_address, memory.device_address + MIB, 64), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  while (atomic_load(&traced) == 0)
    usleep(100);
  assert_int_equal(last_trace.kind, ACCRT_TRACE_COMMAND);
  assert_int_equal(last_trace.status, ACCRT_OK);
  assert_int_equal(last_trace.submission, 1);
  assert_int_equal(last_trace.stream_id, 9);
  assert_true(last_trace.begin_ns <= last_trace.end_ns);
  /* The stand-in's clock is the host's. A busy machine may keep the driver's thread from running
   * while it compares the two, but for no longer than all of this took. */
  const uint64_t after_ns = accrt_clock_ns(), slack_ns = after_ns - before_ns;
  assert_true(last_trace.end_ns + slack_ns >= before_ns);
  assert_true(last_trace.begin_ns <= after_ns + slack_ns);
  f->table->memory_free(f->device, &memory);
  void* held = f;
  tear_down(&held);
}

/* ---- Events ---- */

static void test_events(void** state) {
  fixture_t* f = *state;
  accrt_driver_queue_t* other;
  accrt_driver_event_t *begin, *end;
  assert_int_equal(f->table->queue_create(f->device, -7, &other), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, ACCRT_EVENT_FLAG_TIMING, &begin), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, ACCRT_EVENT_FLAG_TIMING, &end), ACCRT_OK);
  accrt_driver_module_t* module = load_kernels(f);
  atomic_bool gate;
  assert_int_equal(f->table->event_record(f->queue, begin), ACCRT_OK);
  be_late(f, module, LATE_NS);
  hold(f, f->queue, &gate);
  assert_int_equal(f->table->event_record(f->queue, end), ACCRT_OK);
  assert_int_equal(f->table->event_wait(other, end), ACCRT_OK);
  assert_error(f->table->event_synchronize(end, 1000, ACCRT_WAIT_BLOCK), ACCRT_ERROR_TIMEOUT,
               "1000 ns");
  atomic_store(&gate, true);
  int64_t elapsed_ns = -1;
  assert_int_equal(f->table->event_synchronize(end, PATIENCE_NS, ACCRT_WAIT_YIELD), ACCRT_OK);
  assert_int_equal(f->table->event_query(end), ACCRT_OK);
  assert_int_equal(f->table->event_elapsed(begin, end, &elapsed_ns), ACCRT_OK);
  assert_true(elapsed_ns >= (int64_t)LATE_NS / 2);
  f->table->module_unload(module);
  f->table->event_destroy(begin);
  f->table->event_destroy(end);
  f->table->queue_destroy(other);
}

/* A wait for an event has no number. A notification comes behind it all the same, also on a queue
 * that has no other work. */
static void test_notifications_behind_waits(void** state) {
  fixture_t* f = *state;
  accrt_driver_queue_t* other;
  accrt_driver_event_t* end;
  assert_int_equal(f->table->queue_create(f->device, 0, &other), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, 0, &end), ACCRT_OK);
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  atomic_bool gate;
  for (unsigned turn = 0; turn < 3; ++turn) {
    hold(f, f->queue, &gate);
    assert_int_equal(f->table->event_record(f->queue, end), ACCRT_OK);
    assert_int_equal(f->table->event_wait(other, end), ACCRT_OK);
    assert_int_equal(f->table->queue_notify(other, completion), ACCRT_OK);
    usleep(LATE_NS / 1000); /* the driver's thread has time to call too early */
    assert_int_equal(atomic_load(&told.count), 2 * turn);
    atomic_store(&gate, true);
    wait_for(&told, 2 * turn + 1);
    assert_int_equal(f->table->event_query(end), ACCRT_OK);
    assert_int_equal(f->table->queue_notify(other, completion), ACCRT_OK);
    wait_for(&told, 2 * turn + 2);
  }
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->event_destroy(end);
  f->table->queue_destroy(other);
}

/* Work behind a notification does not hold it back, also where it stands behind a wait. */
static void test_notifications_before_later_work(void** state) {
  fixture_t* f = *state;
  accrt_driver_queue_t *own = f->queue, *other;
  accrt_driver_event_t* end;
  assert_int_equal(f->table->queue_create(f->device, 0, &other), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, 0, &end), ACCRT_OK);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told}, nobody = {NULL, NULL};
  atomic_bool earlier, gate;
  hold(f, own, &earlier);
  assert_int_equal(f->table->event_record(own, end), ACCRT_OK);
  assert_int_equal(f->table->event_wait(other, end), ACCRT_OK);
  assert_int_equal(f->table->queue_notify(other, completion), ACCRT_OK);
  hold(f, other, &gate);
  const uint64_t number = f->number;
  f->queue = other;
  f->number = 0;
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  atomic_store(&earlier, true);
  const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS / 2);
  while (atomic_load(&told.count) == 0 && accrt_deadline_left_ns(deadline_ns) > 0)
    usleep(100);
  const unsigned count = atomic_load(&told.count);
  atomic_store(&gate, true);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->queue = own;
  f->number = number;
  assert_int_equal(count, 1);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
  f->table->event_destroy(end);
  f->table->queue_destroy(other);
}

/* ---- Streams of others ---- */

static void test_wrapped_stream(void** state) {
  fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  CUstream stream;
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  accrt_driver_queue_t* own = f->queue;
  assert_int_equal(f->table->queue_wrap(f->device, stream, &f->queue), ACCRT_OK);
  assert_ptr_equal(f->table->queue_native(f->queue), stream);
  use_everything(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  accrt_driver_event_t* event;
  assert_int_equal(f->table->event_create(f->device, 0, &event), ACCRT_OK);
  for (int mode = 0; mode < 3; ++mode) {
    CUgraph graph = NULL;
    uint64_t number;
    told_t told = {.count = 0};
    assert_int_equal(api->cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode), CUDA_SUCCESS);
    assert_error(copy(f, memory.device_address, memory.device_address + MIB, 64),
                 ACCRT_ERROR_INVALID_STATE, "being captured");
    assert_error(f->table->event_record(f->queue, event), ACCRT_ERROR_INVALID_STATE, "captured");
    assert_error(f->table->event_wait(f->queue, event), ACCRT_ERROR_INVALID_STATE, "captured");
    assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
    assert_int_equal(number, f->number);
    /* Other work at the same time, on this thread and on the driver's own, does not affect the
     * capture. */
    accrt_driver_queue_t* wrapped = f->queue;
    const uint64_t numbers = f->number;
    f->queue = own;
    f->number += 1000 * (uint64_t)(mode + 1); /* a queue's numbers only grow */
    use_everything(f);
    const accrt_driver_completion_t completion = {tell, &told};
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
    wait_for(&told, 1);
    f->queue = wrapped;
    f->number = numbers;
    assert_int_equal(api->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    assert_int_equal(api->cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  f->table->event_destroy(event);
  f->table->memory_free(f->device, &memory);
  f->table->queue_destroy(f->queue);
  f->queue = own;
  /* The stream still belongs to its owner. */
  assert_int_equal(api->cuStreamQuery(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
}

static void test_wrapped_stream_of_another_device(void** state) {
  const fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  if (f->table->device_count(f->driver) < 2)
    skip();
  CUcontext other;
  CUstream stream;
  assert_int_equal(api->cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(other), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  accrt_driver_queue_t* queue;
  assert_error(f->table->queue_wrap(f->device, stream, &queue), ACCRT_ERROR_INVALID_ARGUMENT,
               "not of the primary context of cuda:0");
  assert_null(queue);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  assert_int_equal(api->cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

/* ---- A failure of the queue alone ---- */

static void test_failed_queue(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  accrt_error_t error = {.struct_size = sizeof error, .status = ACCRT_ERROR_KERNEL};
  error.driver_code = 77;
  strcpy(error.message, "an operator's failure");
  accrt_cuda_queue_fail((cuda_queue_t*)f->queue, ++f->number, &error);
  cuda_publish((cuda_queue_t*)f->queue, f->number);
  /* Work before it succeeded. */
  assert_int_equal(f->table->queue_wait(f->queue, f->number - 1, PATIENCE_NS, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  assert_error(wait_all(f), ACCRT_ERROR_KERNEL, "an operator's failure");
  for (int again = 0; again < 2; ++again) {
    uint64_t number = 99;
    assert_error(f->table->queue_progress(f->queue, &number), ACCRT_ERROR_KERNEL, "operator");
    assert_int_equal(number, f->number - 1);
  }
  assert_error(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_ERROR_POISONED, "operator");
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 1);
  assert_int_equal(told.statuses[0], ACCRT_ERROR_KERNEL);
  assert_int_equal(f->table->device_status(f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_reset(f->queue), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
}

/* ---- A lost device ---- */

static void test_lost_device(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE), refused;
  accrt_driver_queue_t* queue;
  accrt_driver_event_t* event;
  accrt_driver_module_t* module;
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  wait_for(&told, 1);
  accrt_driver_module_t* code = load_kernels(f);
  atomic_bool gate;
  assert_int_equal(control("async=2:700"), 0); /* CUDA_ERROR_ILLEGAL_ADDRESS, of the first fill */
  hold(f, f->queue, &gate);
  be_late(f, code, 1);
  for (int i = 0; i < 3; ++i)
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  atomic_store(&gate, true);
  assert_error(wait_all(f), ACCRT_ERROR_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS");
  assert_int_equal(accrt_error_current()->driver_code, 700);
  wait_for(&told, 4);
  assert_int_equal(told.statuses[0], ACCRT_OK);
  assert_int_equal(told.statuses[1], ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(told.submissions[1], 3);
  assert_int_equal(told.codes[1], 700);
  assert_int_equal(told.statuses[2], ACCRT_ERROR_POISONED);
  assert_int_equal(told.statuses[3], ACCRT_ERROR_POISONED);
  /* Every function now returns the first error. */
  uint64_t number = 0;
#define LOST(call) assert_error((call), ACCRT_ERROR_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS")
  LOST(f->table->queue_progress(f->queue, &number));
  assert_true(number >= 1 && number < 3); /* what ended well before */
  LOST(f->table->device_status(f->device));
  LOST(f->table->memory_allocate(f->device, ACCRT_MEMORY_DEVICE, 2 * MIB, &refused));
  LOST(f->table->memory_import(f->device, &number, 8, &refused));
  LOST(f->table->queue_create(f->device, 0, &queue));
  LOST(f->table->event_create(f->device, 0, &event));
  LOST(load(f, IMAGE_PTX, "", 0, &module));
  LOST(copy(f, memory.device_address, memory.device_address + MIB, 64));
  LOST(f->table->queue_reset(f->queue));
#undef LOST
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 5);
  assert_int_equal(told.statuses[4], ACCRT_ERROR_DEVICE_LOST);
  /* All objects can be released, and no call hangs. */
  f->table->module_unload(code);
  f->table->memory_free(f->device, &memory);
}

/* ---- Every call failing once ---- */

/* Returns the number of functions that failed. After a failure, everything that was acquired is
 * released. */
static uint32_t use_all_slots(void) {
  fixture_t f = {.number = 0};
  uint32_t failed = 0;
  open_driver(&f);
  if (f.table->device_count(f.driver) == 0 ||
      f.table->device_open(f.driver, 0, &f.device) != ACCRT_OK) {
    assert_true(accrt_error_current()->message[0] != '\0');
    f.table->close(f.driver);
    return 1;
  }
#define TRY(call) ((call) == ACCRT_OK ? true : (++failed, false))
  accrt_driver_memory_t device, pinned, imported, exported;
  accrt_driver_module_t* module = NULL;
  accrt_driver_event_t *begin = NULL, *end = NULL;
  accrt_driver_queue_t* other = NULL;
  void* kernel = NULL;
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told}, nobody = {NULL, NULL};
  static char pages[8192];
  unsigned expected = 0;
  const bool has_device =
      TRY(f.table->memory_allocate(f.device, ACCRT_MEMORY_DEVICE, 2 * MIB, &device));
  const bool has_pinned =
      TRY(f.table->memory_allocate(f.device, ACCRT_MEMORY_PINNED, 2 * MIB, &pinned));
  const bool has_import = TRY(f.table->memory_import(f.device, pages, sizeof pages, &imported));
  const bool has_export =
      TRY(f.table->memory_allocate_exportable(f.device, 1, ACCRT_DRIVER_HANDLE_FD, &exported));
  if (has_export) {
    accrt_driver_handle_t handle;
    accrt_driver_memory_t opened;
    if (TRY(f.table->memory_export(f.device, &exported, ACCRT_DRIVER_HANDLE_FD, &handle))) {
      if (TRY(f.table->memory_import_handle(f.device, &handle, &opened)))
        f.table->memory_unimport(f.device, &opened);
      close(handle.fd);
    }
  }
  size_t size_bytes;
  void* text = read_file(KERNELS, &size_bytes);
  if (TRY(load(&f, IMAGE_PTX, text, size_bytes, &module)))
    (void)TRY(f.table->module_find(module, "tx_add", &add_definition, &kernel));
  free(text);
  if (TRY(f.table->queue_create(f.device, 0, &f.queue)) && has_device) {
    (void)TRY(fill(&f, device.device_address, MIB, UINT64_C(0x100000002), 8, nobody));
    if (TRY(fill(&f, device.device_address, 4096, 1, 2, completion)))
      ++expected;
    const add_params_t params = {device.device_address, 1, 64};
    if (kernel != NULL)
      (void)TRY(launch(&f, kernel, &add_definition, 1, &params, nobody));
    if (has_import)
      (void)TRY(copy(&f, device.device_address, imported.device_address, 100));
    if (has_pinned)
      (void)TRY(copy(&f, pinned.device_address, device.device_address, 100));
    (void)TRY(fill(&f, address_of(pages), 64, 1, 1, nobody));
    uint64_t number;
    (void)TRY(f.table->queue_progress(f.queue, &number));
    if (TRY(f.table->queue_notify(f.queue, completion)))
      ++expected;
    (void)TRY(wait_all(&f));
    if (TRY(f.table->event_create(f.device, ACCRT_EVENT_FLAG_TIMING, &begin)) &&
        TRY(f.table->event_create(f.device, ACCRT_EVENT_FLAG_TIMING, &end)) &&
        TRY(f.table->queue_create(f.device, 5, &other))) {
      int64_t elapsed_ns;
      const bool recorded =
          TRY(f.table->event_record(f.queue, begin)) && TRY(f.table->event_record(f.queue, end));
      (void)TRY(f.table->event_wait(other, end));
      (void)TRY(f.table->event_synchronize(end, PATIENCE_NS, ACCRT_WAIT_BLOCK));
      if (recorded)
        (void)TRY(f.table->event_elapsed(begin, end, &elapsed_ns));
      accrt_driver_queue_t* wrapped;
      if (TRY(f.table->queue_wrap(f.device, f.table->queue_native(other), &wrapped)))
        f.table->queue_destroy(wrapped);
    }
    wait_for(&told, expected);
  }
#undef TRY
  if (begin != NULL)
    f.table->event_destroy(begin);
  if (end != NULL)
    f.table->event_destroy(end);
  if (other != NULL)
    f.table->queue_destroy(other);
  if (has_import)
    f.table->memory_unimport(f.device, &imported);
  if (has_export)
    f.table->memory_free(f.device, &exported);
  if (has_device)
    f.table->memory_free(f.device, &device);
  if (has_pinned)
    f.table->memory_free(f.device, &pinned);
  if (f.queue != NULL)
    f.table->queue_destroy(f.queue);
  if (module != NULL)
    f.table->module_unload(module);
  f.table->device_close(f.device);
  f.table->close(f.driver);
  assert_int_equal(live_allocations, 0);
  return failed;
}

static void test_every_call_fails_once(void** state) {
  (void)state;
  static const char* const names[] = {
#define CUDA_SYMBOL(name, version) #name,
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
  };
  assert_int_equal(use_all_slots(), 0);
  uint32_t called = 0, seen = 0;
  for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n) {
    const uint64_t before = count(names[n]);
    assert_int_equal(use_all_slots(), 0);
    uint64_t calls = count(names[n]) - before;
    called += calls > 0;
    /* The number of queries varies. A few of them are enough for the test. */
    calls = calls < 12 ? calls : 12;
    uint32_t failing = 0;
    for (uint64_t k = 1; k <= calls; ++k) {
      char setting[100];
      snprintf(setting, sizeof setting, "fail=%s:%llu=%d", names[n], (unsigned long long)k,
               k % 2 == 0 ? (int)CUDA_ERROR_INVALID_VALUE : (int)CUDA_ERROR_OUT_OF_MEMORY);
      assert_int_equal(control(setting), 0);
      failing += use_all_slots() > 0;
      assert_int_equal(control("reset"), 0);
    }
    seen += failing > 0;
  }
  print_message("%u entry points called, failures of %u seen by the caller\n", called, seen);
  assert_true(called > 40 && seen > 30);
}

int main(void) {
  if (!find_stand_in()) {
    printf("skipped: libcuda.so.1 is not the stand-in\n");
    return 0;
  }
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_progress_and_waits),
      TEST(test_waits_for_earlier_numbers),
      TEST(test_completions_in_order),
      cmocka_unit_test(test_traces),
      TEST(test_events),
      TEST(test_notifications_behind_waits),
      TEST(test_notifications_before_later_work),
      TEST(test_wrapped_stream),
      TEST(test_wrapped_stream_of_another_device),
      TEST(test_failed_queue),
      TEST(test_lost_device),
      cmocka_unit_test(test_every_call_fails_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
