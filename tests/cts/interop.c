/* tests/cts/interop.c - what a device shares with others: native queues, other devices, facts for DLPack, priorities. */
#include "cts.h"

/* A stream whose native queue another stream wraps: as if it were somebody else's. */
typedef struct wrapped {
  accrt_stream_t* owner;
  accrt_stream_t* stream;
  void* native;
} wrapped_t;

static wrapped_t wrap(cts_t* cts) {
  wrapped_t wrapped = {.owner = cts_stream(cts)};
  OK(accrt_stream_native(wrapped.owner, &wrapped.native));
  OK(accrt_stream_wrap(cts->device, wrapped.native, &wrapped.stream));
  assert_non_null(wrapped.stream);
  return wrapped;
}

static void unwrap(wrapped_t* wrapped) {
  accrt_stream_release(wrapped->stream);
  accrt_stream_release(wrapped->owner);
}

static void append(cts_t* cts, accrt_stream_t* stream, accrt_buffer_t* log, uint32_t number) {
  const uint32_t grid[3] = {1, 1, 1};
  const accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(log, 0), cts_arg_scalar(number)};
  OK(accrt_stream_launch(stream, cts_kernel(cts, "append"), grid, arguments, 2, CTS_ARGUMENT_SIZE));
}

static accrt_buffer_t* zeroed(cts_t* cts, uint64_t size_bytes) {
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, 0, 1));
  cts_sync(cts->stream);
  return buffer;
}

/* ---- What must work ---- */

/* Both streams are one queue: work comes in the order of the calls. */
static void test_wrapped_queue_keeps_order(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 100 };
  wrapped_t wrapped = wrap(cts);
  accrt_buffer_t* log = zeroed(cts, 4 * (COUNT + 1));
  for (uint32_t i = 0; i < COUNT; ++i)
    append(cts, i % 3 == 0 ? wrapped.owner : wrapped.stream, log, i);
  cts_sync(wrapped.owner);
  cts_sync(wrapped.stream);
  uint32_t words[COUNT + 1];
  cts_download(cts, log, 0, words, sizeof words);
  assert_int_equal(words[0], COUNT);
  for (uint32_t i = 0; i < COUNT; ++i)
    assert_int_equal(words[1 + i], i);
  accrt_buffer_release(log);
  unwrap(&wrapped);
}

static void test_wrapped_queue_signals(void** state) {
  cts_t* cts = *state;
  wrapped_t wrapped = wrap(cts);
  accrt_buffer_t* cell = cts_buffer(cts, 4);
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  const accrt_place_t at = cts_at(cell, 0);
  uint32_t seen = 0;
  const accrt_place_t out = cts_host(&seen);
  for (uint32_t i = 1; i <= 20; ++i) {
    OK(accrt_stream_fill(wrapped.stream, &at, 4, i, 4));
    OK(accrt_stream_signal(wrapped.stream, semaphore, i));
    OK(accrt_stream_wait(cts->stream, semaphore, i));
    OK(accrt_stream_copy(cts->stream, &at, &out, 4));
    cts_sync(cts->stream);
    assert_int_equal(seen, i);
  }
  accrt_semaphore_release(semaphore);
  accrt_buffer_release(cell);
  unwrap(&wrapped);
}

static void test_wrapped_queue_waits_for_what_came(void** state) {
  cts_t* cts = *state;
  wrapped_t wrapped = wrap(cts);
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 7);
  OK(accrt_stream_wait(wrapped.stream, semaphore, 7));
  accrt_event_t* event = NULL;
  OK(accrt_event_create(cts->device, 0, &event));
  OK(accrt_stream_record(cts->stream, event));
  OK(accrt_stream_wait_event(wrapped.stream, event));
  cts_sync(wrapped.stream);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
  unwrap(&wrapped);
}

/* The queue is its owner's: it lives on. */
static void test_wrapper_goes_first(void** state) {
  cts_t* cts = *state;
  wrapped_t wrapped = wrap(cts);
  accrt_buffer_t* log = zeroed(cts, 64);
  append(cts, wrapped.stream, log, 1);
  accrt_stream_release(wrapped.stream);
  append(cts, wrapped.owner, log, 2);
  cts_sync(wrapped.owner);
  uint32_t words[3];
  cts_download(cts, log, 0, words, sizeof words);
  assert_int_equal(words[0], 2);
  assert_int_equal(words[2], 2);
  accrt_buffer_release(log);
  accrt_stream_release(wrapped.owner);
}

static void test_memory_used_on_a_wrapped_queue(void** state) {
  cts_t* cts = *state;
  wrapped_t wrapped = wrap(cts);
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  for (int i = 0; i < 200; ++i) {
    accrt_buffer_t* buffer = cts_buffer(cts, 1 << 16);
    const accrt_place_t at = cts_at(buffer, 0);
    OK(accrt_stream_fill(wrapped.stream, &at, 1 << 16, (uint64_t)i, 4));
    accrt_buffer_release(buffer); /* its memory comes back after the fill */
  }
  cts_sync(wrapped.stream);
  OK(accrt_pool_trim(cts->pool, 0));
  OK(accrt_pool_statistics(cts->pool, &statistics));
  assert_int_equal(statistics.live_count, 0);
  unwrap(&wrapped);
}

static void test_priorities(void** state) {
  cts_t* cts = *state;
  assert_true(cts->info.priority_least <= cts->info.priority_greatest);
  for (int32_t priority = -100; priority <= 100; priority += 25) {
    accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
    options.priority = priority; /* clamped */
    accrt_stream_t* stream = NULL;
    OK(accrt_stream_create(cts->device, &options, &stream));
    cts_sync(stream);
    accrt_stream_release(stream);
  }
}

static void test_facts_for_others(void** state) {
  cts_t* cts = *state;
  if (cts->info.dlpack_device_type != 0) { /* 0: a driver of before 0.2 */
    const bool is_host = cts->info.dlpack_device_type == 1;
    assert_true(cts->info.dlpack_device_id >= 0);
    assert_true(!is_host || (cts->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0);
  }
}

static void test_devices_differ(void** state) {
  cts_t* cts = *state;
  static const unsigned char none[16] = {0};
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  OK(accrt_device_info(cts->second, &info));
  assert_int_equal(info.dlpack_device_type, cts->info.dlpack_device_type);
  if (memcmp(info.uuid, none, sizeof none) != 0)
    assert_memory_not_equal(info.uuid, cts->info.uuid, sizeof info.uuid);
}

static void test_peer_is_repeatable(void** state) {
  cts_t* cts = *state;
  OK(accrt_device_enable_peer(cts->device, cts->device));
  OK(accrt_device_enable_peer(cts->device, cts->device));
}

/* A copy between devices is right with a path and without one. */
static void test_peer_copies(void** state) {
  cts_t* cts = *state;
  enum { SIZE = 300000 };
  static unsigned char sent[SIZE];
  static unsigned char received[SIZE];
  accrt_pool_t* pool = NULL;
  accrt_buffer_t* there = NULL;
  accrt_buffer_t* here = cts_buffer(cts, SIZE);
  accrt_buffer_t* back = cts_buffer(cts, SIZE);
  OK(accrt_device_pool(cts->second, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_buffer_create(pool, SIZE, NULL, &there));
  for (int round = 0; round < 2; ++round) {
    uint64_t seed = cts_seed();
    for (int i = 0; i < SIZE; ++i)
      sent[i] = (unsigned char)cts_random(&seed);
    cts_upload(cts, here, 0, sent, SIZE);
    const accrt_place_t here_at = cts_at(here, 0);
    const accrt_place_t there_at = cts_at(there, 0);
    const accrt_place_t back_at = cts_at(back, 0);
    OK(accrt_stream_copy(cts->stream, &here_at, &there_at, SIZE));
    OK(accrt_stream_copy(cts->stream, &there_at, &back_at, SIZE));
    cts_download(cts, back, 0, received, SIZE);
    assert_memory_equal(sent, received, SIZE);
    if (accrt_device_enable_peer(cts->device, cts->second) != ACCRT_OK)
      break;
  }
  accrt_buffer_release(here);
  accrt_buffer_release(back);
  accrt_buffer_release(there);
}

/* Kernels of one device on the other's memory, buffers of it that come later included. */
static void test_peer_kernels(void** state) {
  cts_t* cts = *state;
  const accrt_status_t status = accrt_device_enable_peer(cts->device, cts->second);
  if (status == ACCRT_ERROR_UNSUPPORTED)
    return;
  OK(status);
  accrt_pool_t* pool = NULL;
  accrt_buffer_t* there = NULL;
  accrt_stream_t* stream = NULL;
  OK(accrt_device_pool(cts->second, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_buffer_create(pool, 64, NULL, &there));
  OK(accrt_stream_create(cts->second, NULL, &stream));
  const accrt_place_t at = cts_at(there, 0);
  OK(accrt_stream_fill(stream, &at, 64, 0, 4));
  cts_sync(stream);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  OK(accrt_buffer_info(there, &info));
  accrt_launch_t* launch = NULL;
  OK(accrt_launch_create(cts->device, cts_kernel(cts, "append"), &launch));
  cts_append_params_t* params = accrt_launch_params(launch);
  *params = (cts_append_params_t){.log = (uint32_t*)(uintptr_t)info.device_address, .number = 44};
  const uint32_t grid[3] = {1, 1, 1};
  OK(accrt_stream_launch_prepared(cts->stream, launch, grid));
  cts_sync(cts->stream);
  uint32_t words[2] = {0, 0};
  const accrt_place_t out = cts_host(words);
  OK(accrt_stream_copy(stream, &at, &out, 8));
  cts_sync(stream);
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 44);
  accrt_launch_release(launch);
  accrt_stream_release(stream);
  accrt_buffer_release(there);
}

/* ---- What must be refused ---- */

static void test_wrapped_queue_cannot_defer(void** state) {
  cts_t* cts = *state;
  wrapped_t wrapped = wrap(cts);
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  FAILS(NOT_READY, accrt_stream_wait(wrapped.stream, semaphore, 1));
  cts_sync(wrapped.stream); /* it is as it was */
  OK(accrt_semaphore_signal(semaphore, 1));
  OK(accrt_stream_wait(wrapped.stream, semaphore, 1));
  cts_sync(wrapped.stream);
  accrt_semaphore_release(semaphore);
  unwrap(&wrapped);
}

static void test_native_of_a_deferring_stream(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  void* native = cts;
  OK(accrt_stream_wait(cts->stream, semaphore, 1));
  FAILS(NOT_READY, accrt_stream_native(cts->stream, &native));
  assert_null(native);
  OK(accrt_semaphore_signal(semaphore, 1));
  cts_sync(cts->stream);
  OK(accrt_stream_native(cts->stream, &native));
  accrt_semaphore_release(semaphore);
}

static void test_queue_of_another_device(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* there = NULL;
  accrt_stream_t* stream = (accrt_stream_t*)cts;
  void* native = NULL;
  OK(accrt_stream_create(cts->second, NULL, &there));
  OK(accrt_stream_native(there, &native));
  FAILS(INVALID_ARGUMENT, accrt_stream_wrap(cts->device, native, &stream));
  assert_null(stream);
  accrt_stream_release(there);
}

static void test_device_without_native_queues(void** state) {
  cts_t* cts = *state;
  void* native = cts;
  accrt_stream_t* stream = (accrt_stream_t*)cts;
  if (accrt_stream_native(cts->stream, &native) == ACCRT_OK)
    return;
  FAILS(UNSUPPORTED, accrt_stream_native(cts->stream, &native));
  assert_null(native);
  FAILS(UNSUPPORTED, accrt_stream_wrap(cts->device, cts, &stream));
  assert_null(stream);
}

static void test_peer_of_another_driver(void** state) {
  cts_t* cts = *state;
  accrt_device_t* host = NULL;
  if (strcmp(cts->info.driver, "host") == 0 ||
      accrt_instance_device_by_name(cts->instance, "host", &host) != ACCRT_OK)
    return;
  FAILS(UNSUPPORTED, accrt_device_enable_peer(cts->device, host));
  MESSAGE_HAS(cts->info.name);
  MESSAGE_HAS("host:0");
  FAILS(UNSUPPORTED, accrt_device_enable_peer(host, cts->device));
  accrt_device_release(host);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* stream = NULL;
  void* native = NULL;
  FAILS(INVALID_ARGUMENT, accrt_stream_wrap(NULL, NULL, &stream));
  FAILS(INVALID_ARGUMENT, accrt_stream_wrap(cts->device, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_native(NULL, &native));
  FAILS(INVALID_ARGUMENT, accrt_stream_native(cts->stream, NULL));
  FAILS(INVALID_ARGUMENT, accrt_device_enable_peer(NULL, cts->device));
  FAILS(INVALID_ARGUMENT, accrt_device_enable_peer(cts->device, NULL));
}

const cts_test_t cts_interop_tests[] = {
    CTS_P(test_wrapped_queue_keeps_order, CTS_NEEDS_NATIVE | CTS_NEEDS_KERNELS),
    CTS_P(test_wrapped_queue_signals, CTS_NEEDS_NATIVE),
    CTS_P(test_wrapped_queue_waits_for_what_came, CTS_NEEDS_NATIVE),
    CTS_P(test_wrapper_goes_first, CTS_NEEDS_NATIVE | CTS_NEEDS_KERNELS),
    CTS_P(test_memory_used_on_a_wrapped_queue, CTS_NEEDS_NATIVE),
    CTS_P(test_priorities, 0),
    CTS_P(test_facts_for_others, 0),
    CTS_P(test_devices_differ, CTS_NEEDS_TWO_DEVICES),
    CTS_P(test_peer_is_repeatable, 0),
    CTS_P(test_peer_copies, CTS_NEEDS_TWO_DEVICES),
    CTS_P(test_peer_kernels, CTS_NEEDS_TWO_DEVICES | CTS_NEEDS_KERNELS),
    CTS_N(test_wrapped_queue_cannot_defer, CTS_NEEDS_NATIVE),
    CTS_N(test_native_of_a_deferring_stream, CTS_NEEDS_NATIVE),
    CTS_N(test_queue_of_another_device, CTS_NEEDS_NATIVE | CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_device_without_native_queues, 0),
    CTS_N(test_peer_of_another_driver, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
