/* Pools and buffers: accounting, growing, keeping, trimming, limits, retiring, imports, exports,
 * running out of memory. */
#include "runtime/memory/pool_test.h"

static void test_keeps_memory_until_trimmed(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, "kept");
  accrt_buffer_t* buffer = make_buffer(pool, 1000, "a");
  accrt_pool_statistics_t statistics = statistics_of(pool);
  assert_int_equal(statistics.reserved_bytes, 64 * KIB);
  assert_int_equal(statistics.used_bytes, 1024);
  assert_int_equal(statistics.requested_bytes, 1000);
  assert_int_equal(statistics.live_count, 1);
  assert_int_equal(statistics.mapping_count, 1);
  void* first = pointer_of(buffer);
  accrt_buffer_release(buffer);
  statistics = statistics_of(pool);
  assert_int_equal(statistics.used_bytes, 0);
  assert_int_equal(statistics.reserved_bytes, 64 * KIB);
  assert_int_equal(statistics.largest_free_bytes, 64 * KIB);
  assert_int_equal(statistics.high_water_used_bytes, 1024);
  buffer = make_buffer(pool, 1000, "b");
  assert_ptr_equal(pointer_of(buffer), first);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK); /* memory in use stays */
  assert_int_equal(statistics_of(pool).reserved_bytes, 64 * KIB);
  accrt_buffer_release(buffer);
  assert_int_equal(accrt_pool_trim(pool, 64 * KIB), ACCRT_OK);
  assert_int_equal(statistics_of(pool).reserved_bytes, 64 * KIB);
  assert_int_equal(accrt_pool_trim(pool, 64 * KIB - 1), ACCRT_OK);
  statistics = statistics_of(pool);
  assert_int_equal(statistics.reserved_bytes, 0);
  assert_int_equal(statistics.high_water_reserved_bytes, 64 * KIB);
  assert_int_equal(statistics.allocation_count, 2);
  assert_int_equal(atomic_load(&test_driver.mappings), 0);
  accrt_pool_release(pool);
  close_world();
}

static bool begins_zeroed(accrt_pool_t* pool, uint64_t size_bytes, accrt_buffer_t** out_buffer) {
  *out_buffer = make_buffer(pool, size_bytes, "");
  return accrt_buffer_began_zeroed(*out_buffer);
}

/* Zeros are what nobody has had, of a driver that says so. */
static void test_zeroed(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_buffer_t* buffers[3];
  accrt_pool_t* pool = make_pool(0, 0, "unknown");
  assert_false(begins_zeroed(pool, 1000, &buffers[0]));
  accrt_buffer_release(buffers[0]);
  accrt_pool_release(pool);

  test_driver.zeroed = 1;
  pool = make_pool(0, 0, "zeros");
  assert_true(begins_zeroed(pool, 1000, &buffers[0]));
  assert_true(begins_zeroed(pool, 3000, &buffers[1]));
  accrt_buffer_release(buffers[0]);
  assert_false(begins_zeroed(pool, 1000, &buffers[0])); /* the place of the first one */
  accrt_buffer_release(buffers[1]);
  assert_false(begins_zeroed(pool, 8000, &buffers[1])); /* partly the second one's place */
  assert_true(begins_zeroed(pool, 1000, &buffers[2]));
  assert_true(accrt_buffer_began_zeroed(buffers[2]));
  for (int i = 0; i < 3; ++i)
    accrt_buffer_release(buffers[i]);
  assert_false(begins_zeroed(pool, 64 * KIB, &buffers[0])); /* all of the mapping */
  accrt_buffer_release(buffers[0]);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
  assert_true(begins_zeroed(pool, 64 * KIB, &buffers[0])); /* a new one */
  accrt_buffer_release(buffers[0]);
  accrt_pool_release(pool);
  close_world();
}

static void test_bad_arguments(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = (accrt_pool_t*)1;
  assert_int_equal(accrt_pool_create(NULL, NULL, &pool), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(pool);
  assert_int_equal(accrt_pool_create(world.device, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_pool_options_t pool_options = ACCRT_POOL_OPTIONS_INIT;
  pool_options.kind = ACCRT_MEMORY_MAPPED;
  assert_int_equal(accrt_pool_create(world.device, &pool_options, &pool),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  pool_options.kind = ACCRT_MEMORY_PINNED;
  assert_int_equal(accrt_pool_create(world.device, &pool_options, &pool), ACCRT_ERROR_UNSUPPORTED);
  accrt_pool_t* own = NULL;
  assert_int_equal(accrt_device_pool(world.device, 0, &pool),
                   ACCRT_OK); /* as for accrt_pool_create */
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &own), ACCRT_OK);
  assert_ptr_equal(pool, own);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_MAPPED, &pool),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_PINNED, &pool),
                   ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_IMPORTED, &pool), ACCRT_OK);
  accrt_buffer_t* buffer = (accrt_buffer_t*)1;
  assert_int_equal(accrt_buffer_create(pool, 1, NULL, &buffer), ACCRT_ERROR_UNSUPPORTED);
  assert_null(buffer);
  pool = make_pool(0, 0, NULL);
  assert_int_equal(accrt_buffer_create(NULL, 1, NULL, &buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_create(pool, 1, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = 3;
  assert_int_equal(accrt_buffer_create(pool, 1, &options, &buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  options.alignment_bytes = 0;
  options.flags = 4;
  assert_int_equal(accrt_buffer_create(pool, 1, &options, &buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_create(pool, UINT64_MAX, NULL, &buffer), ACCRT_ERROR_OVERFLOW);
  assert_int_equal(accrt_buffer_create(pool, UINT64_MAX - 1000, NULL, &buffer),
                   ACCRT_ERROR_OVERFLOW);
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  uint32_t count;
  assert_int_equal(accrt_pool_statistics(NULL, &statistics), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_statistics(pool, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_trim(NULL, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_snapshot(NULL, NULL, 0, sizeof(accrt_pool_entry_t), &count),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_snapshot(pool, NULL, 1, sizeof(accrt_pool_entry_t), &count),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_snapshot(pool, NULL, 0, 8, &count), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_pool_snapshot(pool, NULL, 0, sizeof(accrt_pool_entry_t), NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_import(NULL, &count, 4, NULL, NULL, &buffer),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_import(world.device, NULL, 4, NULL, NULL, &buffer),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_import(world.device, &count, UINT64_MAX, NULL, NULL, &buffer),
                   ACCRT_ERROR_OVERFLOW);
  accrt_buffer_release(NULL);
  accrt_pool_release(NULL);
  assert_null(accrt_buffer_retain(NULL));
  assert_null(accrt_pool_retain(NULL));
  accrt_pool_release(accrt_pool_retain(pool));
  accrt_pool_release(pool);
  close_world();
}

static void test_mapping(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t* buffer = make_buffer(pool, 100, "m");
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(buffer, &info), ACCRT_OK);
  assert_int_equal(info.size_bytes, 100);
  assert_int_equal(info.kind, ACCRT_MEMORY_DEVICE);
  assert_true(info.id > 0);
  assert_true(info.device_address % 256 == 0);
  assert_int_equal(accrt_buffer_info(NULL, &info), ACCRT_ERROR_INVALID_ARGUMENT);
  void *a, *b;
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_buffer_map(buffer, 0, 100, &a), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(buffer, 60, 40, &b), ACCRT_OK);
  assert_ptr_equal(b, (char*)a + 60);
  assert_int_equal(accrt_buffer_map(buffer, 60, 41, &b), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_buffer_map(buffer, UINT64_MAX, 2, &b), ACCRT_ERROR_OUT_OF_RANGE);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "18446744073709551615"));
  assert_non_null(strstr(error.message, "100 bytes"));
  assert_int_equal(accrt_buffer_map(NULL, 0, 0, &b), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_map(buffer, 0, 1, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_buffer_unmap(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_buffer_t* empty = make_buffer(pool, 0, "empty");
  assert_int_equal(accrt_buffer_map(empty, 0, 0, &a), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(empty, 0, 1, &a), ACCRT_ERROR_OUT_OF_RANGE);
  accrt_buffer_release(empty);
  accrt_buffer_release(buffer);
  accrt_pool_release(pool);
  close_world();
}

static void test_memory_out_of_reach(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  close_world();
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.device_flags = ACCRT_DEVICE_FLAG_TIMESTAMPS;
  test_driver.no_import = 1;
  test_driver.no_host_memory_kind = 1;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  accrt_device_t* device;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &device), ACCRT_OK);
  accrt_pool_t* pool;
  accrt_buffer_t *buffer, *host;
  void* pointer;
  assert_int_equal(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, 64, NULL, &buffer), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(buffer, 0, 64, &pointer), ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(accrt_buffer_import(device, &pointer, 8, NULL, NULL, &host),
                   ACCRT_ERROR_UNSUPPORTED);
  /* Every device has host memory. */
  assert_int_equal(accrt_device_pool(device, ACCRT_MEMORY_HOST, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, 64, NULL, &host), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(host, 0, 64, &pointer), ACCRT_OK);
  memset(pointer, 1, 64);
  assert_int_equal(accrt_buffer_unmap(host), ACCRT_OK);
  accrt_buffer_release(host);
  accrt_buffer_release(buffer);
  accrt_device_release(device);
  accrt_instance_release(instance);
  assert_int_equal(atomic_load(&test_driver.memory_bytes), 0);
}

static void test_limit_and_message(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 128 * KIB, "small pool");
  accrt_buffer_t* a = make_buffer(pool, 60 * KIB, "weights");
  accrt_buffer_t* b = make_buffer(pool, 20 * KIB, "cache");
  accrt_buffer_t* c = make_buffer(pool, 30 * KIB, "weights");
  accrt_buffer_t* d;
  assert_int_equal(accrt_buffer_create(pool, 64 * KIB, NULL, &d), ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  assert_null(d);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "65536 bytes"));
  assert_non_null(strstr(error.message, "limit of 131072"));
  assert_non_null(strstr(error.message, "small pool"));
  assert_non_null(strstr(error.message, "buffer '(unnamed)' of"));
  assert_string_equal(error.operation, "accrt_buffer_create");
  assert_non_null(strstr(error.message, "'weights' 92160, 'cache' 20480"));
  /* Free memory is reused, and a release makes room. */
  accrt_buffer_release(b);
  d = make_buffer(pool, 16 * KIB, "more");
  accrt_buffer_release(d);
  accrt_buffer_release(a);
  accrt_buffer_release(c);
  d = make_buffer(pool, 128 * KIB, "all"); /* trims its own free mappings first */
  accrt_buffer_release(d);
  assert_int_equal(statistics_of(pool).high_water_reserved_bytes, 128 * KIB);
  accrt_pool_release(pool);
  close_world();
}

/* No message shows an empty name. */
static void test_message_without_names(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 128 * KIB, "");
  accrt_buffer_t *a = make_buffer(pool, 100 * KIB, ""), *b;
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_buffer_create(pool, 64 * KIB, NULL, &b), ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_null(strstr(error.message, "''"));
  assert_non_null(strstr(error.message, "pool '(unnamed)' holds"));
  assert_non_null(strstr(error.message, "held by: '(unnamed)' 102400"));
  accrt_buffer_release(a);
  accrt_pool_release(pool);
  close_world();
}

/* The device is full because another pool has reserved memory. That pool is trimmed, and the
 * allocation succeeds. */
static void test_other_pools_are_trimmed(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  test_driver.memory_limit_bytes = 256 * KIB;
  accrt_pool_t *keeper = make_pool(0, 0, "keeper"), *pool = make_pool(0, 0, "asker");
  accrt_buffer_t* big = make_buffer(keeper, 200 * KIB, "gone");
  accrt_buffer_t* small;
  assert_int_equal(accrt_buffer_create(pool, 100 * KIB, NULL, &small),
                   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "'gone' 204800"));
  accrt_buffer_release(big);
  assert_int_equal(accrt_buffer_create(pool, 100 * KIB, NULL, &small), ACCRT_OK);
  assert_int_equal(statistics_of(keeper).reserved_bytes, 0);
  accrt_buffer_release(small);
  accrt_pool_release(keeper);
  accrt_pool_release(pool);
  close_world();
}

static void test_snapshot(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t *a = make_buffer(pool, 100, "alpha"), *b = make_buffer(pool, 200, "beta");
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  const accrt_place_t place = {b, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 200, 0, 8), ACCRT_OK);
  accrt_buffer_release(b); /* retires: the fill has not run */
  accrt_pool_entry_t entries[2];
  uint32_t count;
  assert_int_equal(accrt_pool_snapshot(pool, NULL, 0, sizeof *entries, &count), ACCRT_OK);
  assert_int_equal(count, 2);
  assert_int_equal(accrt_pool_snapshot(pool, entries, 1, sizeof *entries, &count), ACCRT_OK);
  assert_int_equal(count, 2);
  assert_string_equal(entries[0].label, "alpha");
  assert_int_equal(accrt_pool_snapshot(pool, entries, 2, sizeof *entries, &count), ACCRT_OK);
  assert_string_equal(entries[1].label, "beta");
  assert_int_equal(entries[0].retiring, 0);
  assert_int_equal(entries[1].retiring, 1);
  assert_int_equal(entries[1].size_bytes, 200);
  assert_int_equal(statistics_of(pool).retiring_bytes, 256);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(accrt_pool_snapshot(pool, entries, 2, sizeof *entries, &count), ACCRT_OK);
  assert_int_equal(count, 1);
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  accrt_buffer_release(a);
  accrt_stream_release(stream);
  accrt_pool_release(pool);
  close_world();
}

/* Memory that a stream still uses is not handed out again, by any path. */
static void test_retiring_is_not_reused(void** state) {
  (void)state;
  for (uint32_t one_mapping = 0; one_mapping < 2; ++one_mapping) {
    open_world(TEST_DRIVER_STEPPED);
    accrt_pool_t* pool = make_pool(one_mapping, 0, NULL);
    accrt_stream_t *first, *second;
    assert_int_equal(accrt_stream_create(world.device, NULL, &first), ACCRT_OK);
    assert_int_equal(accrt_stream_create(world.device, NULL, &second), ACCRT_OK);
    accrt_buffer_t* old = make_buffer(pool, 40 * KIB, "old");
    const void* memory = pointer_of(old);
    const accrt_place_t place = {old, NULL, 0};
    assert_int_equal(accrt_stream_fill(first, &place, 40 * KIB, 1, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_fill(second, &place, 40 * KIB, 2, 1), ACCRT_OK);
    accrt_buffer_release(old);
    accrt_buffer_t* new = make_buffer(pool, 40 * KIB, "new");
    assert_ptr_not_equal(pointer_of(new), memory);
    assert_int_equal(test_driver_step(), 1); /* one of two uses is over */
    accrt_buffer_t* third = make_buffer(pool, 40 * KIB, "third");
    assert_ptr_not_equal(pointer_of(third), memory);
    assert_int_equal(test_driver_step(), 1);
    assert_int_equal(statistics_of(pool).retiring_bytes, 0); /* looks after what has passed */
    accrt_buffer_t* fourth = make_buffer(pool, 40 * KIB, "fourth");
    if (!one_mapping)
      assert_ptr_equal(pointer_of(fourth), memory);
    accrt_buffer_release(new);
    accrt_buffer_release(third);
    accrt_buffer_release(fourth);
    accrt_stream_release(first);
    accrt_stream_release(second);
    if (one_mapping)
      assert_int_equal(statistics_of(pool).reserved_bytes, 0);
    accrt_pool_release(pool);
    close_world();
  }
}

static void test_stream_order(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_stream_t *stream, *other;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &other), ACCRT_OK);
  accrt_buffer_t* old = make_buffer(pool, 40 * KIB, "old");
  const accrt_place_t place = {old, NULL, 0};
  const void* memory = pointer_of(old);
  assert_int_equal(accrt_stream_fill(stream, &place, 40 * KIB, 1, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_free(other, old),
                   ACCRT_ERROR_INVALID_STATE); /* in use on another stream */
  assert_int_equal(accrt_stream_free(stream, accrt_buffer_retain(old)),
                   ACCRT_ERROR_INVALID_STATE); /* other references */
  accrt_buffer_release(old);
  assert_int_equal(accrt_stream_free(stream, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_free(NULL, old), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_free(stream, old), ACCRT_OK);
  /* For others it is not free; for this stream it is, without waiting. */
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.stream = other;
  accrt_buffer_t *elsewhere, *again;
  assert_int_equal(accrt_buffer_create(pool, 40 * KIB, &options, &elsewhere), ACCRT_OK);
  assert_ptr_not_equal(pointer_of(elsewhere), memory);
  options.stream = stream;
  assert_int_equal(accrt_buffer_create(pool, 39 * KIB, &options, &again), ACCRT_OK);
  assert_ptr_equal(pointer_of(again), memory);
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  /* It is released at once, but still waits for the stream's earlier work with that memory. */
  accrt_buffer_release(again);
  assert_int_equal(statistics_of(pool).retiring_bytes, 40 * KIB);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  accrt_buffer_release(elsewhere);
  accrt_stream_release(stream);
  accrt_stream_release(other);
  accrt_pool_release(pool);
  close_world();
}

/* A buffer used on more streams than fit its record, some of which end before it. */
static void test_many_streams(void** state) {
  (void)state;
  enum { STREAMS = 12 };
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t* buffer = make_buffer(pool, 256, "shared");
  const accrt_place_t place = {buffer, NULL, 0};
  accrt_stream_t* streams[STREAMS];
  for (int i = 0; i < STREAMS; ++i) {
    assert_int_equal(accrt_stream_create(world.device, NULL, &streams[i]), ACCRT_OK);
    assert_int_equal(accrt_stream_fill(streams[i], &place, 256, 0, 1), ACCRT_OK);
  }
  accrt_buffer_release(buffer);
  for (int i = 0; i < STREAMS; ++i) {
    assert_int_equal(statistics_of(pool).retiring_bytes, 256);
    assert_int_equal(test_driver_step(), 1);
    accrt_stream_release(streams[i]);
  }
  while (test_driver_step() != 0) /* queries of the driver when a stream ends */
    continue;
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  accrt_pool_release(pool);
  close_world();
}

/* ---- Imports ---- */

static void count_release(void* user) {
  atomic_fetch_add((atomic_int*)user, 1);
}

static void await(atomic_int* count, int wanted) {
  for (int i = 0; i < 5000 && atomic_load(count) != wanted; ++i)
    (void)usleep(1000);
  assert_int_equal(atomic_load(count), wanted);
}

static void test_import(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  atomic_int released = 0;
  uint32_t words[16] = {0};
  accrt_buffer_t* buffer;
  test_driver_fail(TEST_FUNCTION_MEMORY_IMPORT, 1, ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(
      accrt_buffer_import(world.device, words, sizeof words, count_release, &released, &buffer),
      ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(atomic_load(&released), 0);
  assert_int_equal(
      accrt_buffer_import(world.device, words, sizeof words, count_release, &released, &buffer),
      ACCRT_OK);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(buffer, &info), ACCRT_OK);
  assert_int_equal(info.kind, ACCRT_MEMORY_IMPORTED);
  assert_ptr_equal(info.host_pointer, words);
  accrt_buffer_release(buffer);
  assert_int_equal(atomic_load(&released), 1);
  /* In use: the callback comes when the stream has passed, without any further call. */
  assert_int_equal(
      accrt_buffer_import(world.device, words, sizeof words, count_release, &released, &buffer),
      ACCRT_OK);
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  const accrt_place_t place = {buffer, NULL, 4};
  assert_int_equal(accrt_stream_fill(stream, &place, 8, 0x01020304, 4), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_int_equal(atomic_load(&released), 1);
  while (test_driver_step() != 0) /* the fill, and a query of it */
    continue;
  await(&released, 2);
  assert_int_equal(words[0], 0);
  assert_int_equal(words[2], 0x01020304);
  /* In use at the end of the instance. */
  assert_int_equal(
      accrt_buffer_import(world.device, words, sizeof words, count_release, &released, &buffer),
      ACCRT_OK);
  const accrt_place_t again = {buffer, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &again, 4, 0, 4), ACCRT_OK);
  accrt_buffer_release(buffer);
  while (test_driver_step() != 0)
    continue;
  accrt_stream_release(stream);
  assert_int_equal(accrt_buffer_import(world.device, NULL, 0, count_release, &released, &buffer),
                   ACCRT_OK);
  accrt_buffer_release(buffer);
  close_world();
  assert_int_equal(atomic_load(&released), 4);
}

/* ---- Exports ---- */

static accrt_status_t try_exportable(accrt_pool_t* pool, uint64_t size_bytes, uint32_t flags,
                                     accrt_buffer_t** out_buffer) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.flags = flags;
  options.label = "shared";
  return accrt_buffer_create(pool, size_bytes, &options, out_buffer);
}

static accrt_buffer_t* make_exportable(accrt_pool_t* pool, uint64_t size_bytes, uint32_t flags) {
  accrt_buffer_t* buffer;
  assert_int_equal(try_exportable(pool, size_bytes, flags, &buffer), ACCRT_OK);
  return buffer;
}

/* In a mapping of its own, accounted for in the pool, and unmapped with its buffer. */
static void test_export(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t* plain = make_buffer(pool, 1000, "plain");
  accrt_buffer_t* ipc = make_exportable(pool, 5000, ACCRT_BUFFER_FLAG_EXPORT_IPC);
  accrt_buffer_t* fd = make_exportable(pool, 100, ACCRT_BUFFER_FLAG_EXPORT_FD);
  accrt_pool_statistics_t statistics = statistics_of(pool);
  assert_int_equal(statistics.mapping_count, 3);
  assert_int_equal(statistics.reserved_bytes, 64 * KIB + 8 * KIB + 4 * KIB);
  assert_int_equal(statistics.used_bytes, KIB + 8 * KIB + 4 * KIB);
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  assert_int_equal(accrt_buffer_export(plain, ACCRT_HANDLE_IPC, &handle),
                   ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_buffer_export(ipc, ACCRT_HANDLE_FD, &handle), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_buffer_export(ipc, 0, &handle), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_buffer_export(NULL, ACCRT_HANDLE_FD, &handle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_export(ipc, ACCRT_HANDLE_IPC, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_MEMORY_EXPORT, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_buffer_export(ipc, ACCRT_HANDLE_IPC, &handle), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_buffer_export(fd, ACCRT_HANDLE_FD, &handle), ACCRT_OK);
  assert_true(handle.fd >= 0);
  assert_int_equal(close(handle.fd), 0);
  handle.struct_size = 8; /* no room: the descriptor is not lost either */
  assert_int_equal(accrt_buffer_export(fd, ACCRT_HANDLE_FD, &handle), ACCRT_ERROR_INVALID_ARGUMENT);
  handle = (accrt_memory_handle_t)ACCRT_MEMORY_HANDLE_INIT;
  assert_int_equal(accrt_buffer_export(ipc, ACCRT_HANDLE_IPC, &handle), ACCRT_OK);
  assert_int_equal(handle.kind, ACCRT_HANDLE_IPC);
  assert_int_equal(handle.fd, -1);
  assert_int_equal(handle.size_bytes, 8 * KIB);
  /* Opened again. */
  accrt_buffer_t* opened;
  test_driver_fail(TEST_FUNCTION_MEMORY_IMPORT, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_buffer_import_handle(world.device, &handle, &opened), ACCRT_ERROR_DRIVER);
  assert_null(opened);
  assert_int_equal(accrt_buffer_import_handle(world.device, &handle, &opened), ACCRT_OK);
  assert_ptr_equal(pointer_of(opened), pointer_of(ipc));
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(opened, &info), ACCRT_OK);
  assert_int_equal(info.size_bytes, 8 * KIB);
  assert_int_equal(info.kind, ACCRT_MEMORY_IMPORTED);
  accrt_buffer_release(opened);
  assert_int_equal(atomic_load(&test_driver.imports), 0);
  assert_int_equal(accrt_buffer_import_handle(NULL, &handle, &opened),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_import_handle(world.device, NULL, &opened),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_buffer_import_handle(world.device, &handle, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  handle.kind = 3;
  assert_int_equal(accrt_buffer_import_handle(world.device, &handle, &opened),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  handle.kind = ACCRT_HANDLE_IPC;
  handle.size_bytes = 0;
  assert_int_equal(accrt_buffer_import_handle(world.device, &handle, &opened),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  /* Released: the memory is unmapped, at once or when its streams have passed. No other buffer gets
   * it. */
  accrt_buffer_release(fd);
  assert_int_equal(atomic_load(&test_driver.mappings), 2);
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  const accrt_place_t place = {ipc, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 5000, 1, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_free(stream, ipc), ACCRT_OK);
  assert_int_equal(statistics_of(pool).retiring_bytes, 8 * KIB);
  assert_int_equal(test_driver_step(), 1);
  statistics = statistics_of(pool);
  assert_int_equal(statistics.reserved_bytes, 64 * KIB);
  assert_int_equal(atomic_load(&test_driver.mappings), 1);
  assert_null(accrt_heap_check(&pool->heap));
  accrt_buffer_release(plain);
  accrt_stream_release(stream);
  accrt_pool_release(pool);
  close_world();
}

static void test_export_refuses(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 16 * KIB, NULL);
  accrt_pool_t* host;
  accrt_buffer_t* buffer;
  assert_int_equal(try_exportable(pool, 100, 3, &buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_HOST, &host), ACCRT_OK);
  assert_int_equal(try_exportable(host, 100, 1, &buffer), ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(try_exportable(pool, UINT64_MAX, 1, &buffer), ACCRT_ERROR_OVERFLOW);
  assert_int_equal(try_exportable(pool, 17 * KIB, 1, &buffer), ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  test_driver_fail(TEST_FUNCTION_MEMORY_ALLOCATE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(try_exportable(pool, 100, 1, &buffer), ACCRT_ERROR_DRIVER);
  assert_null(buffer);
  accrt_pool_release(pool);
  close_world();
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.no_export = 1;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  accrt_device_t* device;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &device), ACCRT_OK);
  assert_int_equal(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(try_exportable(pool, 100, 1, &buffer), ACCRT_ERROR_UNSUPPORTED);
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  handle.kind = ACCRT_HANDLE_IPC;
  handle.size_bytes = 100;
  assert_int_equal(accrt_buffer_import_handle(device, &handle, &buffer), ACCRT_ERROR_UNSUPPORTED);
  accrt_device_release(device);
  accrt_instance_release(instance);
}

/* ---- Growing ---- */

/* Mappings grow with the pool, so that they stay few; large requests get their own, and trimming
 * gives all back. */
static void test_growing(void** state) {
  (void)state;
  enum { COUNT = 2000 };
  open_world(TEST_DRIVER_SYNCHRONOUS);
  test_driver.granularity_bytes = 2 * MIB;
  test_driver.grow_bytes = 2 * MIB;
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  static accrt_buffer_t* held[COUNT];
  for (int i = 0; i < COUNT; ++i)
    held[i] = make_buffer(pool, 100 * KIB, "piece");
  accrt_pool_statistics_t statistics = statistics_of(pool);
  assert_true(statistics.mapping_count <= 9); /* 2, 2, 4, ... 128 MiB */
  assert_true(statistics.reserved_bytes < 2 * statistics.used_bytes);
  const uint64_t mappings = statistics.mapping_count, reserved_bytes = statistics.reserved_bytes;
  accrt_buffer_t* large = make_buffer(pool, 300 * MIB + 1, "large");
  statistics = statistics_of(pool);
  assert_int_equal(statistics.mapping_count, mappings + 1);
  assert_int_equal(statistics.reserved_bytes, reserved_bytes + 302 * MIB);
  accrt_buffer_release(large);
  /* Every second one is freed. The holes are reused, and requests that fit them map nothing. */
  for (int i = 0; i < COUNT; i += 2)
    accrt_buffer_release(held[i]);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
  const uint64_t kept = statistics_of(pool).reserved_bytes;
  assert_int_equal(kept, reserved_bytes);
  for (int i = 0; i < COUNT; i += 2)
    held[i] = make_buffer(pool, 100 * KIB, "again");
  assert_int_equal(statistics_of(pool).reserved_bytes, kept);
  assert_null(accrt_heap_check(&pool->heap));
  /* Only the last mapping's pieces stay: the others go back. */
  for (int i = 0; i < COUNT - 1; ++i)
    accrt_buffer_release(held[i]);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
  assert_int_equal(statistics_of(pool).mapping_count, 1);
  accrt_buffer_release(held[COUNT - 1]);
  accrt_pool_release(pool);
  close_world();
}

/* A generous mapping is only a wish: if only the needed size fits, that is mapped. */
static void test_growing_near_the_end(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  test_driver.memory_limit_bytes = 220 * KIB;
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t* held[10];
  int count = 0;
  while (count < 10 && accrt_buffer_create(pool, 40 * KIB, NULL, &held[count]) == ACCRT_OK)
    ++count;
  assert_int_equal(count, 4); /* mappings of 64, 64, 40 and 40 KiB */
  while (count > 0)
    accrt_buffer_release(held[--count]);
  /* Free in four mappings, and not in one piece: the retry gives them back first. */
  accrt_buffer_t* all = make_buffer(pool, 216 * KIB, "all");
  accrt_buffer_release(all);
  accrt_pool_release(pool);
  close_world();
}

static void test_one_mapping_by_option(void** state) {
  (void)state;
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  const accrt_option_t option = {"pool.one_mapping", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = sizeof option;
  accrt_instance_t* instance;
  accrt_device_t* device;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &device), ACCRT_OK);
  accrt_pool_t *own, *pool;
  assert_int_equal(accrt_pool_create(device, NULL, &own), ACCRT_OK);
  assert_int_equal(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  accrt_buffer_t *a = make_buffer(own, 100, "a"), *b = make_buffer(pool, 100, "b"),
                 *c = make_buffer(pool, 100, "c");
  assert_int_equal(atomic_load(&test_driver.mappings), 3);
  accrt_buffer_release(b);
  assert_int_equal(atomic_load(&test_driver.mappings), 2);
  accrt_buffer_release(a);
  accrt_buffer_release(c);
  assert_int_equal(atomic_load(&test_driver.mappings), 0);
  accrt_pool_release(own);
  accrt_device_release(device);
  accrt_instance_release(instance);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keeps_memory_until_trimmed),
      cmocka_unit_test(test_zeroed),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_mapping),
      cmocka_unit_test(test_memory_out_of_reach),
      cmocka_unit_test(test_limit_and_message),
      cmocka_unit_test(test_message_without_names),
      cmocka_unit_test(test_other_pools_are_trimmed),
      cmocka_unit_test(test_snapshot),
      cmocka_unit_test(test_retiring_is_not_reused),
      cmocka_unit_test(test_stream_order),
      cmocka_unit_test(test_many_streams),
      cmocka_unit_test(test_import),
      cmocka_unit_test(test_export),
      cmocka_unit_test(test_export_refuses),
      cmocka_unit_test(test_growing),
      cmocka_unit_test(test_growing_near_the_end),
      cmocka_unit_test(test_one_mapping_by_option),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
