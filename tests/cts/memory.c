/* tests/cts/memory.c - pools, buffers, statistics, imports, mapping, release in stream order. */
#include "cts.h"

static accrt_pool_statistics_t statistics(accrt_pool_t* pool) {
  accrt_pool_statistics_t result = ACCRT_POOL_STATISTICS_INIT;
  OK(accrt_pool_statistics(pool, &result));
  assert_int_equal(result.reserved_bytes,
                   result.used_bytes + result.retiring_bytes + result.free_bytes);
  assert_true(result.high_water_used_bytes >= result.used_bytes);
  assert_true(result.high_water_reserved_bytes >= result.reserved_bytes);
  assert_true(result.largest_free_bytes <= result.free_bytes);
  assert_true(result.requested_bytes <= result.used_bytes);
  return result;
}

static accrt_pool_t* limited_pool(cts_t* cts, uint64_t limit_bytes) {
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.limit_bytes = limit_bytes;
  options.label = "limited";
  accrt_pool_t* pool = NULL;
  OK(accrt_pool_create(cts->device, &options, &pool));
  return pool;
}

static accrt_buffer_t* labelled(accrt_pool_t* pool, uint64_t size_bytes, const char* label) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.label = label;
  accrt_buffer_t* buffer = NULL;
  OK(accrt_buffer_create(pool, size_bytes, &options, &buffer));
  return buffer;
}

/* ---- What must work ---- */

static void test_kinds(void** state) {
  cts_t* cts = *state;
  const uint32_t kinds[] = {ACCRT_MEMORY_DEVICE, ACCRT_MEMORY_PINNED, ACCRT_MEMORY_HOST};
  for (int i = 0; i < 3; ++i) {
    accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
    options.kind = kinds[i];
    accrt_pool_t* pool = NULL;
    const accrt_status_t status = accrt_pool_create(cts->device, &options, &pool);
    if (status == ACCRT_ERROR_UNSUPPORTED && kinds[i] != ACCRT_MEMORY_DEVICE)
      continue;
    OK(status);
    accrt_buffer_t* buffer = labelled(pool, 1000, "kind");
    accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
    OK(accrt_buffer_info(buffer, &info));
    assert_int_equal(info.kind, kinds[i]);
    assert_int_equal(info.size_bytes, 1000);
    assert_true(info.device_address != 0);
    accrt_buffer_release(buffer);
    accrt_pool_release(pool);
  }
}

static void test_sizes_and_alignment(void** state) {
  cts_t* cts = *state;
  const uint64_t sizes[] = {0, 1, 255, 256, 257, 4096, 100000, UINT64_C(5) << 20};
  const uint64_t alignments[] = {0, 16, 256, 4096, 65536};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
    for (size_t a = 0; a < sizeof alignments / sizeof alignments[0]; ++a) {
      accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
      options.alignment_bytes = alignments[a];
      accrt_buffer_t* buffer = NULL;
      OK(accrt_buffer_create(cts->pool, sizes[s], &options, &buffer));
      accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
      OK(accrt_buffer_info(buffer, &info));
      assert_int_equal(info.size_bytes, sizes[s]);
      const uint64_t least = alignments[a] != 0 ? alignments[a] : cts->info.min_alignment_bytes;
      if (sizes[s] != 0)
        assert_int_equal(info.device_address % least, 0);
      accrt_buffer_release(buffer);
    }
  }
}

static void test_buffers_do_not_overlap(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 64 };
  accrt_buffer_t* buffers[COUNT];
  for (uint32_t i = 0; i < COUNT; ++i) {
    buffers[i] = cts_buffer(cts, 100 + 37 * i);
    const accrt_place_t target = cts_at(buffers[i], 0);
    OK(accrt_stream_fill(cts->stream, &target, 100 + 37 * i, i, 1));
  }
  cts_sync(cts->stream);
  for (uint32_t i = 0; i < COUNT; ++i) {
    unsigned char bytes[100 + 37 * COUNT];
    cts_download(cts, buffers[i], 0, bytes, 100 + 37 * i);
    for (uint32_t k = 0; k < 100 + 37 * i; ++k)
      assert_int_equal(bytes[k], i);
    accrt_buffer_release(buffers[i]);
  }
}

static void test_statistics(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  const accrt_pool_statistics_t before = statistics(pool);
  assert_int_equal(before.used_bytes, 0);
  accrt_buffer_t* first = labelled(pool, 1000, "first");
  accrt_buffer_t* second = labelled(pool, 5000, "second");
  const accrt_pool_statistics_t during = statistics(pool);
  assert_int_equal(during.requested_bytes, 6000);
  assert_int_equal(during.live_count, 2);
  assert_int_equal(during.allocation_count, 2);
  assert_true(during.mapping_count >= 1);
  accrt_buffer_release(first);
  accrt_buffer_release(second);
  const accrt_pool_statistics_t after = statistics(pool);
  assert_int_equal(after.used_bytes, 0);
  assert_int_equal(after.live_count, 0);
  assert_int_equal(after.high_water_used_bytes, during.used_bytes);
  accrt_pool_release(pool);
}

static void test_memory_is_kept_and_reused(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  accrt_buffer_release(labelled(pool, 100000, "once"));
  const uint64_t reserved = statistics(pool).reserved_bytes;
  for (int i = 0; i < 100; ++i)
    accrt_buffer_release(labelled(pool, 100000, "again"));
#ifndef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
  assert_int_equal(statistics(pool).reserved_bytes, reserved);
#else
  (void)reserved;
#endif
  accrt_pool_release(pool);
}

static void test_trim(void** state) {
  cts_t* cts = *state;
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  /* Not what the driver prefers: the large buffer shall have a mapping of its own. */
  options.granularity_bytes = 65536;
  accrt_pool_t* pool = NULL;
  OK(accrt_pool_create(cts->device, &options, &pool));
  accrt_buffer_t* kept = labelled(pool, 1000, "kept");
  /* More than any driver maps at once for small buffers: it has a block of its own. */
  const uint64_t large_bytes = UINT64_C(256) << 20;
  accrt_buffer_release(labelled(pool, large_bytes, "large"));
  OK(accrt_pool_trim(pool, 0));
  const accrt_pool_statistics_t after = statistics(pool);
  assert_int_equal(after.live_count, 1);
  assert_true(after.reserved_bytes < large_bytes);
  accrt_buffer_release(kept);
  OK(accrt_pool_trim(pool, 0));
  assert_int_equal(statistics(pool).reserved_bytes, 0);
  /* And grows again. */
  accrt_buffer_release(labelled(pool, 1000, "later"));
  accrt_pool_release(pool);
}

static void test_snapshot_names_owners(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  accrt_buffer_t* weights = labelled(pool, 3000, "weights");
  accrt_buffer_t* cache = labelled(pool, 2000, "cache");
  uint32_t count = 0;
  OK(accrt_pool_snapshot(pool, NULL, 0, sizeof(accrt_pool_entry_t), &count));
  assert_int_equal(count, 2);
  accrt_pool_entry_t entries[2];
  OK(accrt_pool_snapshot(pool, entries, 2, sizeof(accrt_pool_entry_t), &count));
  uint32_t found = 0;
  for (int i = 0; i < 2; ++i) {
    if (strcmp(entries[i].label, "weights") == 0)
      found |= 1;
    if (strcmp(entries[i].label, "cache") == 0)
      found |= 2;
    assert_int_equal(entries[i].retiring, 0);
    assert_true(entries[i].buffer_id != 0);
  }
  assert_int_equal(found, 3);
  accrt_buffer_release(weights);
  accrt_buffer_release(cache);
  accrt_pool_release(pool);
}

static void test_limit_and_recovery(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, UINT64_C(4) << 20);
  accrt_buffer_t* holder = labelled(pool, UINT64_C(3) << 20, "holder");
  accrt_buffer_t* more = NULL;
  const accrt_status_t status = accrt_buffer_create(pool, UINT64_C(3) << 20, NULL, &more);
  assert_int_equal(status, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  accrt_buffer_release(holder);
  OK(accrt_buffer_create(pool, UINT64_C(3) << 20, NULL, &more));
  accrt_buffer_release(more);
  accrt_pool_release(pool);
}

static void test_pool_outlives_its_reference(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  accrt_buffer_t* buffer = labelled(pool, 64, "left");
  accrt_pool_release(pool);
  const uint32_t value = 42;
  uint32_t read = 0;
  cts_upload(cts, buffer, 0, &value, sizeof value);
  cts_download(cts, buffer, 0, &read, sizeof read);
  assert_int_equal(read, 42);
  accrt_buffer_release(buffer);
}

static void test_device_pool_is_one(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* again = NULL;
  OK(accrt_device_pool(cts->device, ACCRT_MEMORY_DEVICE, &again));
  assert_ptr_equal(again, cts->pool);
}

/* A released buffer that a stream still uses is retiring, not free. */
static void test_release_waits_for_streams(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  accrt_buffer_t* buffer = labelled(pool, 4096, "in use");
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  uint32_t value = 0;
  OK(accrt_stream_wait(cts->stream, gate, 1));
  const accrt_place_t at = cts_at(buffer, 0);
  const accrt_place_t out = cts_host(&value);
  OK(accrt_stream_fill(cts->stream, &at, 4096, 7, 4));
  OK(accrt_stream_copy(cts->stream, &at, &out, 4));
  accrt_buffer_release(buffer);
  assert_int_equal(statistics(pool).live_count, 0);
  assert_true(statistics(pool).retiring_bytes >= 4096);
  /* What is allocated now is other memory. */
  accrt_buffer_t* other = labelled(pool, 4096, "other");
  const uint32_t nine = 9;
  accrt_stream_t* free_stream = cts_stream(cts);
  const accrt_place_t nine_at = cts_host((void*)(uintptr_t)&nine);
  const accrt_place_t other_at = cts_at(other, 0);
  OK(accrt_stream_copy(free_stream, &nine_at, &other_at, 4));
  cts_sync(free_stream);
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  assert_int_equal(value, 7);
  accrt_buffer_release(other);
  accrt_stream_release(free_stream);
  accrt_semaphore_release(gate);
  assert_int_equal(statistics(pool).retiring_bytes, 0);
  accrt_pool_release(pool);
}

static void test_free_in_stream_order(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = limited_pool(cts, 0);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  uint32_t results[8] = {0};
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.stream = cts->stream;
  for (uint32_t i = 0; i < 8; ++i) {
    accrt_buffer_t* buffer = NULL;
    OK(accrt_buffer_create(pool, 1 << 16, &options, &buffer));
    const accrt_place_t at = cts_at(buffer, 0);
    const accrt_place_t out = cts_host(&results[i]);
    OK(accrt_stream_fill(cts->stream, &at, 1 << 16, 100 + i, 4));
    OK(accrt_stream_copy(cts->stream, &at, &out, 4));
    OK(accrt_stream_free(cts->stream, buffer));
  }
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  for (uint32_t i = 0; i < 8; ++i)
    assert_int_equal(results[i], 100 + i);
#ifndef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
  /* One piece of memory did for all: nobody waited for the stream. */
  assert_true(statistics(pool).high_water_used_bytes < 8 << 16);
#endif
  accrt_semaphore_release(gate);
  accrt_pool_release(pool);
}

static atomic_uint release_count;

static void count_release(void* user) {
  (void)user;
  atomic_fetch_add(&release_count, 1);
}

static void test_import(void** state) {
  cts_t* cts = *state;
  _Alignas(64) uint32_t memory[64];
  for (uint32_t i = 0; i < 64; ++i)
    memory[i] = i;
  atomic_store(&release_count, 0);
  accrt_buffer_t* buffer = NULL;
  OK(accrt_buffer_import(cts->device, memory, sizeof memory, count_release, NULL, &buffer));
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  OK(accrt_buffer_info(buffer, &info));
  assert_int_equal(info.kind, ACCRT_MEMORY_IMPORTED);
  assert_int_equal(info.size_bytes, sizeof memory);
  uint32_t value = 0;
  cts_download(cts, buffer, 4 * 40, &value, 4);
  assert_int_equal(value, 40);
  value = 1234;
  cts_upload(cts, buffer, 4 * 41, &value, 4);
  assert_int_equal(memory[41], 1234);
  assert_int_equal(atomic_load(&release_count), 0);
  accrt_buffer_release(buffer);
  cts_sync(cts->stream);
  for (int i = 0; i < 500 && atomic_load(&release_count) == 0; ++i)
    cts_sleep_ms(5);
  assert_int_equal(atomic_load(&release_count), 1);
}

static void test_import_release_waits_for_use(void** state) {
  cts_t* cts = *state;
  static uint32_t memory[64];
  atomic_store(&release_count, 0);
  accrt_buffer_t* buffer = NULL;
  OK(accrt_buffer_import(cts->device, memory, sizeof memory, count_release, NULL, &buffer));
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, sizeof memory, 5, 4));
  accrt_buffer_release(buffer);
  cts_sleep_ms(20);
  assert_int_equal(atomic_load(&release_count), 0);
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  for (int i = 0; i < 500 && atomic_load(&release_count) == 0; ++i)
    cts_sleep_ms(5);
  assert_int_equal(atomic_load(&release_count), 1);
  assert_int_equal(memory[63], 5);
  accrt_semaphore_release(gate);
}

static void test_map(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 256);
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, 256, 3, 1));
  cts_sync(cts->stream);
  void* pointer = NULL;
  const accrt_status_t status = accrt_buffer_map(buffer, 16, 100, &pointer);
  if (status == ACCRT_ERROR_UNSUPPORTED) {
    assert_int_equal(cts->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY, 0);
    accrt_buffer_release(buffer);
    return;
  }
  OK(status);
  assert_int_equal(((unsigned char*)pointer)[99], 3);
  ((unsigned char*)pointer)[0] = 77;
  void* nested = NULL;
  OK(accrt_buffer_map(buffer, 0, 256, &nested));
  assert_int_equal(((unsigned char*)nested)[16], 77);
  OK(accrt_buffer_unmap(buffer));
  OK(accrt_buffer_unmap(buffer));
  unsigned char byte = 0;
  cts_download(cts, buffer, 16, &byte, 1);
  assert_int_equal(byte, 77);
  accrt_buffer_release(buffer);
}

/* ---- What must be refused ---- */

static void test_unknown_kind(void** state) {
  cts_t* cts = *state;
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.kind = 99;
  accrt_pool_t* pool = cts->pool;
  const accrt_status_t status = accrt_pool_create(cts->device, &options, &pool);
  assert_true(status == ACCRT_ERROR_INVALID_ARGUMENT || status == ACCRT_ERROR_UNSUPPORTED);
  assert_null(pool);
  assert_int_not_equal(accrt_device_pool(cts->device, 99, &pool), ACCRT_OK);
  assert_null(pool);
}

static void test_over_the_limit(void** state) {
  cts_t* cts = *state;
  /* Room for one of them, whatever a device's granularity is. */
  accrt_pool_t* pool = limited_pool(cts, UINT64_C(64) << 20);
  accrt_buffer_t* holder = labelled(pool, 40000000, "holder of most");
  accrt_buffer_t* buffer = holder;
  FAILS(OUT_OF_DEVICE_MEMORY, accrt_buffer_create(pool, 40000000, NULL, &buffer));
  assert_null(buffer);
  MESSAGE_HAS("40000000");
  MESSAGE_HAS("holder of most"); /* who holds what */
  accrt_buffer_release(holder);
  accrt_pool_release(pool);
}

static void test_more_than_there_is(void** state) {
  cts_t* cts = *state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  (void)cts; /* their allocators end the program */
#else
  accrt_buffer_t* buffer = NULL;
  FAILS(OUT_OF_DEVICE_MEMORY, accrt_buffer_create(cts->pool, UINT64_C(1) << 56, NULL, &buffer));
  assert_null(buffer);
  accrt_buffer_release(cts_buffer(cts, 1000)); /* the pool still works */
#endif
}

static void test_size_overflow(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = NULL;
  const accrt_status_t status = accrt_buffer_create(cts->pool, UINT64_MAX - 5, NULL, &buffer);
  assert_true(status == ACCRT_ERROR_OVERFLOW || status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  assert_null(buffer);
}

static void test_odd_alignment(void** state) {
  cts_t* cts = *state;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = 48;
  accrt_buffer_t* buffer = NULL;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, &options, &buffer));
  assert_null(buffer);
  MESSAGE_HAS("48");
}

static void test_map_beyond_the_end(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 100);
  void* pointer = buffer;
  FAILS(OUT_OF_RANGE, accrt_buffer_map(buffer, 50, 51, &pointer));
  assert_null(pointer);
  FAILS(OUT_OF_RANGE, accrt_buffer_map(buffer, UINT64_MAX, 2, &pointer));
  accrt_buffer_release(buffer);
}

static void test_unmap_without_map(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 100);
  FAILS(INVALID_STATE, accrt_buffer_unmap(buffer));
  accrt_buffer_release(buffer);
}

static void test_import_of_nothing(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = NULL;
  atomic_store(&release_count, 0);
  FAILS(INVALID_ARGUMENT,
        accrt_buffer_import(cts->device, NULL, 100, count_release, NULL, &buffer));
  assert_null(buffer);
  assert_int_equal(atomic_load(&release_count), 0);
}

static void test_free_of_a_shared_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 100);
  accrt_buffer_retain(buffer);
  FAILS(INVALID_STATE, accrt_stream_free(cts->stream, buffer));
  accrt_buffer_release(buffer);
  OK(accrt_stream_free(cts->stream, buffer));
}

static void test_free_while_used_elsewhere(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 100);
  accrt_stream_t* other = cts_stream(cts);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(other, gate, 1));
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(other, &at, 100, 1, 1));
  FAILS(INVALID_STATE, accrt_stream_free(cts->stream, buffer));
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(other);
  accrt_buffer_release(buffer);
  accrt_stream_release(other);
  accrt_semaphore_release(gate);
}

static void test_snapshot_element_size(void** state) {
  cts_t* cts = *state;
  uint32_t count = 0;
  FAILS(INVALID_ARGUMENT,
        accrt_pool_snapshot(cts->pool, NULL, 0, sizeof(accrt_pool_entry_t) + 8, &count));
}

static void test_unknown_chain_member(void** state) {
  cts_t* cts = *state;
  accrt_chain_t chain = {.struct_size = sizeof chain, .struct_type = 0x7777};
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.next = &chain;
  accrt_buffer_t* buffer = NULL;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, &options, &buffer));
  assert_null(buffer);
  chain.struct_type |= ACCRT_STRUCT_IGNORABLE;
  OK(accrt_buffer_create(cts->pool, 64, &options, &buffer));
  accrt_buffer_release(buffer);
}

static void test_unknown_tail(void** state) {
  cts_t* cts = *state;
  struct {
    accrt_buffer_options_t options;
    uint64_t later;
  } larger;
  memset(&larger, 0, sizeof larger);
  larger.options.struct_size = (uint32_t)sizeof larger;
  larger.later = 1;
  accrt_buffer_t* buffer = NULL;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, &larger.options, &buffer));
  larger.later = 0;
  OK(accrt_buffer_create(cts->pool, 64, &larger.options, &buffer));
  accrt_buffer_release(buffer);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = NULL;
  void* pointer = NULL;
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(NULL, 64, NULL, &buffer));
  FAILS(INVALID_ARGUMENT, accrt_buffer_create(cts->pool, 64, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_buffer_map(NULL, 0, 0, &pointer));
  FAILS(INVALID_ARGUMENT, accrt_buffer_info(NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_pool_statistics(cts->pool, NULL));
  FAILS(INVALID_ARGUMENT, accrt_pool_trim(NULL, 0));
  FAILS(INVALID_ARGUMENT, accrt_stream_free(cts->stream, NULL));
  accrt_buffer_release(NULL);
  accrt_pool_release(NULL);
}

const cts_test_t cts_memory_tests[] = {
    CTS_P(test_kinds, 0),
    CTS_P(test_sizes_and_alignment, 0),
    CTS_P(test_buffers_do_not_overlap, 0),
    CTS_P(test_statistics, 0),
    CTS_P(test_memory_is_kept_and_reused, 0),
    CTS_P(test_trim, 0),
    CTS_P(test_snapshot_names_owners, 0),
    CTS_P(test_limit_and_recovery, 0),
    CTS_P(test_pool_outlives_its_reference, 0),
    CTS_P(test_device_pool_is_one, 0),
    CTS_P(test_release_waits_for_streams, 0),
    CTS_P(test_free_in_stream_order, 0),
    CTS_P(test_import, CTS_NEEDS_HOST_MEMORY),
    CTS_P(test_import_release_waits_for_use, CTS_NEEDS_HOST_MEMORY),
    CTS_P(test_map, 0),
    CTS_N(test_unknown_kind, 0),
    CTS_N(test_over_the_limit, 0),
    CTS_N(test_more_than_there_is, 0),
    CTS_N(test_size_overflow, 0),
    CTS_N(test_odd_alignment, 0),
    CTS_N(test_map_beyond_the_end, 0),
    CTS_N(test_unmap_without_map, 0),
    CTS_N(test_import_of_nothing, 0),
    CTS_N(test_free_of_a_shared_buffer, 0),
    CTS_N(test_free_while_used_elsewhere, 0),
    CTS_N(test_snapshot_element_size, 0),
    CTS_N(test_unknown_chain_member, 0),
    CTS_N(test_unknown_tail, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
