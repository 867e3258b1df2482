/* tests/cts/interop.c - what a device shares with others: native queues, other devices, facts for DLPack, priorities. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fileno */
#endif
#include "cts.h"

#include <unistd.h>

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

/* Much plain memory goes as the driver can: the queue cannot wait for anybody. Nor for a file, which is said. */
static void test_wrapped_queue_and_much_memory(void** state) {
  cts_t* cts = *state;
  const uint64_t size_bytes = (UINT64_C(3) << 20) + 1;
  wrapped_t wrapped = wrap(cts);
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  unsigned char* memory = calloc(2, size_bytes);
  assert_non_null(memory);
  for (uint64_t i = 0; i < size_bytes; ++i)
    memory[i] = (unsigned char)(i * 3 + (i >> 12));
  const accrt_place_t at = cts_at(buffer, 0), source = cts_host(memory),
                      target = cts_host(memory + size_bytes);
  OK(accrt_stream_copy(wrapped.stream, &source, &at, size_bytes));
  OK(accrt_stream_copy(wrapped.stream, &at, &target, size_bytes));
  cts_sync(wrapped.stream);
  assert_memory_equal(memory + size_bytes, memory, size_bytes);
  FILE* file = tmpfile();
  assert_non_null(file);
  FAILS(NOT_READY, accrt_stream_read_file(wrapped.stream, fileno(file), 0, &at, 1, 0));
  (void)fclose(file);
  free(memory);
  accrt_buffer_release(buffer);
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

static void count_call(void* user, accrt_status_t status) {
  (void)status;
  atomic_fetch_add((atomic_uint*)user, 1);
}

/* The owner may destroy its queue when the release has returned: all work is over then, with a
 * listener or without one. */
static void test_release_waits_for_the_work(void** state) {
  cts_t* cts = *state;
  enum { WORDS = 1 << 19, ROUNDS = 8 };
  accrt_buffer_t* buffer = cts_buffer(cts, 4 * WORDS);
  uint32_t* words = calloc(WORDS, 4);
  assert_non_null(words);
  const accrt_place_t at = cts_at(buffer, 0), out = cts_host(words);
  atomic_uint calls;
  atomic_init(&calls, 0);
  for (uint32_t round = 1; round <= ROUNDS; ++round) {
    wrapped_t wrapped = wrap(cts);
    for (uint32_t i = 0; i < 4; ++i)
      OK(accrt_stream_fill(wrapped.stream, &at, 4 * WORDS, round * 16 + i, 4));
    OK(accrt_stream_copy(wrapped.stream, &at, &out, 4 * WORDS));
    if (round % 2 == 0)
      OK(accrt_stream_notify(wrapped.stream, count_call, &calls));
    if (round % 4 < 2) { /* the last release counts, not the first */
      (void)accrt_stream_retain(wrapped.stream);
      accrt_stream_release(wrapped.stream);
    }
    accrt_stream_release(wrapped.stream);
    assert_int_equal(words[WORDS - 1], round * 16 + 3);
    accrt_stream_release(wrapped.owner);
  }
  for (int i = 0; i < 5000 && atomic_load(&calls) != ROUNDS / 2; ++i)
    cts_sleep_ms(1);
  assert_int_equal(atomic_load(&calls), ROUNDS / 2);
  free(words);
  accrt_buffer_release(buffer);
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

/* A buffer that others may open, filled with a number; NULL when the device has none of that kind. */
static accrt_buffer_t* exportable(cts_t* cts, uint32_t flag, uint64_t size_bytes) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.flags = flag;
  accrt_buffer_t* buffer = NULL;
  const accrt_status_t status = accrt_buffer_create(cts->pool, size_bytes, &options, &buffer);
  if (status == ACCRT_ERROR_UNSUPPORTED) {
    assert_null(buffer);
    print_message("  the device exports no memory in this way\n");
    return NULL;
  }
  OK(status);
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, CTS_OPENED_BEFORE, 4));
  cts_sync(cts->stream);
  return buffer;
}

/* Another process of this program opens it, checks what is in it, and writes. */
static void check_in_another_process(cts_t* cts, uint32_t flag, uint32_t kind) {
  accrt_buffer_t* buffer = exportable(cts, flag, 5000 * 4);
  if (buffer == NULL)
    return;
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  OK(accrt_buffer_export(buffer, kind, &handle));
  assert_int_equal(handle.kind, kind);
  assert_true(handle.size_bytes >= 5000 * 4);
  assert_int_equal(handle.fd >= 0, kind == ACCRT_HANDLE_FD);
  const int status = cts_open_elsewhere(&handle);
  if (handle.fd >= 0)
    close(handle.fd);
  assert_int_equal(status, 0);
  uint32_t words[5000];
  cts_download(cts, buffer, 0, words, sizeof words);
  assert_int_equal(words[0], CTS_OPENED_AFTER);
  assert_int_equal(words[4999], CTS_OPENED_AFTER);
  accrt_buffer_release(buffer);
}

static void test_descriptor_in_another_process(void** state) {
  check_in_another_process(*state, ACCRT_BUFFER_FLAG_EXPORT_FD, ACCRT_HANDLE_FD);
}

static void test_bytes_in_another_process(void** state) {
  check_in_another_process(*state, ACCRT_BUFFER_FLAG_EXPORT_IPC, ACCRT_HANDLE_IPC);
}

/* Two buffers, one memory; it lives until both are gone. */
static void test_descriptor_in_this_process(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = exportable(cts, ACCRT_BUFFER_FLAG_EXPORT_FD, 4096);
  if (buffer == NULL)
    return;
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  accrt_buffer_t* opened = NULL;
  OK(accrt_buffer_export(buffer, ACCRT_HANDLE_FD, &handle));
  OK(accrt_buffer_import_handle(cts->device, &handle, &opened));
  close(handle.fd); /* stayed ours */
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, 4096, 1234, 4));
  cts_sync(cts->stream);
  accrt_buffer_release(buffer);
  uint32_t words[1024];
  cts_download(cts, opened, 0, words, sizeof words);
  assert_int_equal(words[1023], 1234);
  accrt_buffer_release(opened);
}

/* ---- What must be refused ---- */

static void test_export_of_a_plain_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* plain = cts_buffer(cts, 64);
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  FAILS(INVALID_STATE, accrt_buffer_export(plain, ACCRT_HANDLE_FD, &handle));
  FAILS(INVALID_STATE, accrt_buffer_export(plain, ACCRT_HANDLE_IPC, &handle));
  accrt_buffer_release(plain);
  accrt_buffer_t* buffer = exportable(cts, ACCRT_BUFFER_FLAG_EXPORT_FD, 64);
  if (buffer == NULL)
    return;
  FAILS(INVALID_STATE, accrt_buffer_export(buffer, ACCRT_HANDLE_IPC, &handle)); /* not its kind */
  accrt_buffer_release(buffer);
}

static void test_export_in_both_ways(void** state) {
  cts_t* cts = *state;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.flags = ACCRT_BUFFER_FLAG_EXPORT_FD | ACCRT_BUFFER_FLAG_EXPORT_IPC;
  accrt_buffer_t* buffer = (accrt_buffer_t*)cts;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, &options, &buffer));
  assert_null(buffer);
  options.flags = 0x80;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, &options, &buffer));
}

static void test_handle_that_leads_nowhere(void** state) {
  cts_t* cts = *state;
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  accrt_buffer_t* buffer = (accrt_buffer_t*)cts;
  handle.kind = 77;
  handle.fd = -1;
  handle.size_bytes = 4096;
  assert_int_not_equal(accrt_buffer_import_handle(cts->device, &handle, &buffer), ACCRT_OK);
  assert_null(buffer);
  handle.kind = ACCRT_HANDLE_FD;
  assert_int_not_equal(accrt_buffer_import_handle(cts->device, &handle, &buffer), ACCRT_OK);
  handle.fd = 0; /* a file, or a terminal */
  assert_int_not_equal(accrt_buffer_import_handle(cts->device, &handle, &buffer), ACCRT_OK);
  handle.kind = ACCRT_HANDLE_IPC;
  handle.fd = -1;
  assert_int_not_equal(accrt_buffer_import_handle(cts->device, &handle, &buffer), ACCRT_OK);
  assert_null(buffer);
}

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
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  accrt_buffer_t* buffer = NULL;
  FAILS(INVALID_ARGUMENT, accrt_buffer_export(NULL, ACCRT_HANDLE_FD, &handle));
  FAILS(INVALID_ARGUMENT, accrt_buffer_import_handle(NULL, &handle, &buffer));
  FAILS(INVALID_ARGUMENT, accrt_buffer_import_handle(cts->device, NULL, &buffer));
  FAILS(INVALID_ARGUMENT, accrt_buffer_import_handle(cts->device, &handle, NULL));
}

const cts_test_t cts_interop_tests[] = {
    CTS_P(test_wrapped_queue_keeps_order, CTS_NEEDS_NATIVE | CTS_NEEDS_KERNELS),
    CTS_P(test_wrapped_queue_signals, CTS_NEEDS_NATIVE),
    CTS_P(test_wrapped_queue_waits_for_what_came, CTS_NEEDS_NATIVE),
    CTS_P(test_wrapped_queue_and_much_memory, CTS_NEEDS_NATIVE),
    CTS_P(test_wrapper_goes_first, CTS_NEEDS_NATIVE | CTS_NEEDS_KERNELS),
    CTS_P(test_release_waits_for_the_work, CTS_NEEDS_NATIVE),
    CTS_P(test_memory_used_on_a_wrapped_queue, CTS_NEEDS_NATIVE),
    CTS_P(test_priorities, 0),
    CTS_P(test_facts_for_others, 0),
    CTS_P(test_devices_differ, CTS_NEEDS_TWO_DEVICES),
    CTS_P(test_peer_is_repeatable, 0),
    CTS_P(test_peer_copies, CTS_NEEDS_TWO_DEVICES),
    CTS_P(test_peer_kernels, CTS_NEEDS_TWO_DEVICES | CTS_NEEDS_KERNELS),
    CTS_P(test_descriptor_in_another_process, 0),
    CTS_P(test_bytes_in_another_process, 0),
    CTS_P(test_descriptor_in_this_process, 0),
    CTS_N(test_export_of_a_plain_buffer, 0),
    CTS_N(test_export_in_both_ways, 0),
    CTS_N(test_handle_that_leads_nowhere, 0),
    CTS_N(test_wrapped_queue_cannot_defer, CTS_NEEDS_NATIVE),
    CTS_N(test_native_of_a_deferring_stream, CTS_NEEDS_NATIVE),
    CTS_N(test_queue_of_another_device, CTS_NEEDS_NATIVE | CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_device_without_native_queues, 0),
    CTS_N(test_peer_of_another_driver, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
