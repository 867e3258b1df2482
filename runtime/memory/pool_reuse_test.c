/* Memory that pools hand out again: random use against a model, threads, stream order, and repeated
 * use that allocates nothing. */
#include "runtime/memory/pool_test.h"
#include "tests/random.h"

/* ---- A model ---- */

#define MODEL_LIVE 64
static uint64_t random_state;
static uint64_t next_random(void) {
  return test_random(&random_state);
}

typedef struct model {
  accrt_buffer_t* buffer;
  uint64_t size_bytes;
  unsigned char mark;
} model_t;

/* Every live buffer keeps its own bytes, whatever other buffers do. */
static void check_model(const model_t* entry) {
  const unsigned char* bytes = pointer_of(entry->buffer);
  assert_int_equal(bytes[0], entry->mark);
  assert_int_equal(bytes[entry->size_bytes - 1], entry->mark);
}

static void test_random_against_a_model(void** state) {
  (void)state;
  random_state = test_seed();
  for (uint32_t one_mapping = 0; one_mapping < 2; ++one_mapping) {
    open_world(TEST_DRIVER_THREAD);
    accrt_pool_t* pool = make_pool(one_mapping, 0, "model");
    accrt_stream_t* streams[3];
    for (int i = 0; i < 3; ++i)
      assert_int_equal(accrt_stream_create(world.device, NULL, &streams[i]), ACCRT_OK);
    model_t live[MODEL_LIVE];
    size_t count = 0;
    uint64_t requested = 0;
    for (int step = 0; step < 4000; ++step) {
      const uint64_t choice = next_random() % 10;
      if (count == 0 || (choice < 5 && count < MODEL_LIVE)) {
        model_t* entry = &live[count];
        entry->size_bytes = next_random() % (next_random() % 10 == 0 ? 300 * KIB : 4 * KIB) + 1;
        entry->mark = (unsigned char)step;
        accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
        options.alignment_bytes = next_random() % 4 == 0 ? UINT64_C(1) << next_random() % 14 : 0;
        assert_int_equal(accrt_buffer_create(pool, entry->size_bytes, &options, &entry->buffer),
                         ACCRT_OK);
        if (options.alignment_bytes != 0)
          assert_int_equal((uintptr_t)pointer_of(entry->buffer) % options.alignment_bytes, 0);
        memset(pointer_of(entry->buffer), entry->mark, entry->size_bytes);
        requested += entry->size_bytes;
        count += 1;
      } else if (choice < 9) {
        const size_t victim = next_random() % count;
        check_model(&live[victim]);
        const accrt_place_t place = {live[victim].buffer, NULL, 0};
        const uint64_t uses = next_random() % 3;
        for (uint64_t use = 0; use < uses; ++use) {
          assert_int_equal(accrt_stream_fill(streams[next_random() % 3], &place,
                                             live[victim].size_bytes, 0xEE, 1),
                           ACCRT_OK);
        }
        requested -= live[victim].size_bytes;
        accrt_buffer_release(live[victim].buffer);
        live[victim] = live[--count];
      } else {
        assert_int_equal(accrt_pool_trim(pool, next_random() % MIB), ACCRT_OK);
      }
      if (step % 64 != 0)
        continue;
      const accrt_pool_statistics_t statistics = statistics_of(pool);
      assert_int_equal(statistics.live_count, count);
      assert_int_equal(statistics.requested_bytes, requested);
      assert_null(accrt_heap_check(&pool->heap));
      for (size_t i = 0; i < count; ++i)
        check_model(&live[i]);
    }
    while (count > 0)
      accrt_buffer_release(live[--count].buffer);
    for (int i = 0; i < 3; ++i) {
      assert_int_equal(accrt_stream_synchronize(streams[i], FOREVER, 0), ACCRT_OK);
      accrt_stream_release(streams[i]);
    }
    assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
    assert_int_equal(statistics_of(pool).reserved_bytes, 0);
    accrt_pool_release(pool);
    close_world();
  }
}

typedef struct racer {
  accrt_pool_t* pool;
  uint64_t seed;
  int failed;
} racer_t;

static void* race(void* argument) {
  racer_t* racer = argument;
  accrt_buffer_t* held[8] = {NULL};
  for (int i = 0; i < 2000; ++i) {
    racer->seed = racer->seed * 6364136223846793005u + 1442695040888963407u;
    accrt_buffer_t** slot = &held[racer->seed >> 61];
    accrt_buffer_release(*slot);
    racer->failed |=
        accrt_buffer_create(racer->pool, (racer->seed >> 40) % 8192, NULL, slot) != ACCRT_OK;
    if (i % 100 == 0)
      racer->failed |= accrt_pool_trim(racer->pool, 0) != ACCRT_OK;
  }
  for (int i = 0; i < 8; ++i)
    accrt_buffer_release(held[i]);
  return NULL;
}

static void test_threads(void** state) {
  (void)state;
  for (uint32_t one_mapping = 0; one_mapping < 2; ++one_mapping) {
    open_world(TEST_DRIVER_SYNCHRONOUS);
    accrt_pool_t* pool = make_pool(one_mapping, 0, NULL);
    racer_t racers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; ++i) {
      racers[i] = (racer_t){pool, (uint64_t)i * 77 + 1, 0};
      assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 4; ++i) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
      assert_int_equal(racers[i].failed, 0);
    }
    assert_null(accrt_heap_check(&pool->heap));
    assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
    assert_int_equal(statistics_of(pool).reserved_bytes, 0);
    accrt_pool_release(pool);
    close_world();
  }
}

/* Repeated use of a warm pool allocates nothing. */
static void test_repeated_use_allocates_nothing(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_buffer_t* held[4];
  long before = 0;
  for (int round = 0; round < 20; ++round) {
    if (round == 2)
      before = atomic_load(&world.allocator.total_count);
    for (int i = 0; i < 4; ++i)
      held[i] = make_buffer(pool, 1000 + 500 * (uint64_t)i, "x");
    for (int i = 0; i < 4; ++i)
      accrt_buffer_release(held[i]);
  }
  assert_int_equal(atomic_load(&world.allocator.total_count), before);
  assert_int_equal(atomic_load(&test_driver.mappings), 1);
  accrt_pool_release(pool);
  close_world();
}

/* ---- Stream order ---- */

static accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

static accrt_buffer_t* make_in_order(accrt_pool_t* pool, accrt_stream_t* stream,
                                     uint64_t size_bytes) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.stream = stream;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, &options, &buffer), ACCRT_OK);
  return buffer;
}

static void fill(accrt_stream_t* stream, accrt_buffer_t* buffer, uint64_t size_bytes,
                 unsigned char mark) {
  const accrt_place_t place = {buffer, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, size_bytes, mark, 1), ACCRT_OK);
}

/* What one stream frees is its own at once, and everybody's when it has passed. */
static void test_stream_caches(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_stream_t *stream = make_stream(), *other = make_stream();
  static const uint64_t sizes[] = {1, 257, 4000, 5000, 9 * KIB, 30 * KIB};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  void* places[SIZES];
  for (int round = 0; round < 3; ++round) {
    accrt_buffer_t* held[SIZES];
    uint64_t last_id = 0;
    for (int i = 0; i < SIZES; ++i) {
      held[i] = make_in_order(pool, stream, sizes[i]);
      if (round == 0)
        places[i] = pointer_of(held[i]);
      assert_ptr_equal(pointer_of(held[i]), places[i]);
      fill(stream, held[i], sizes[i], 1);
      accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
      assert_int_equal(accrt_buffer_info(held[i], &info), ACCRT_OK);
      assert_int_equal(info.size_bytes, sizes[i]);
      assert_true(info.id > last_id); /* a record that is used again is another buffer */
      last_id = info.id;
    }
    assert_int_equal(statistics_of(pool).live_count, SIZES);
    for (int i = 0; i < SIZES; ++i)
      assert_int_equal(accrt_stream_free(stream, held[i]), ACCRT_OK);
    accrt_pool_statistics_t statistics = statistics_of(pool);
    assert_int_equal(statistics.live_count, 0);
    assert_int_equal(statistics.used_bytes, 0);
    assert_int_equal(statistics.requested_bytes, 0);
    assert_true(statistics.retiring_bytes > 0);
    uint32_t count;
    assert_int_equal(accrt_pool_snapshot(pool, NULL, 0, sizeof(accrt_pool_entry_t), &count),
                     ACCRT_OK);
    assert_int_equal(count, SIZES);
  }
  /* Not another stream's buffer, and not one that is much too large or misaligned. */
  accrt_buffer_t* elsewhere = make_in_order(pool, other, 30 * KIB);
  assert_ptr_not_equal(pointer_of(elsewhere), places[SIZES - 1]);
  accrt_buffer_t* small = make_in_order(pool, stream, 13 * KIB);
  assert_ptr_not_equal(pointer_of(small), places[SIZES - 1]);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK); /* nothing of it has passed */
  assert_true(statistics_of(pool).retiring_bytes > 0);
  while (test_driver_step() != 0)
    continue;
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  assert_null(accrt_heap_check(&pool->heap));
  accrt_buffer_release(elsewhere);
  accrt_buffer_release(small);
  assert_int_equal(accrt_pool_trim(pool, 0), ACCRT_OK);
  assert_int_equal(statistics_of(pool).reserved_bytes, 0);
  accrt_stream_release(stream);
  accrt_stream_release(other);
  accrt_pool_release(pool);
  close_world();
}

/* A released buffer that one stream alone uses is that stream's too, and references that were noted
 * stay. */
static void test_release_into_a_stream_cache(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_stream_t *stream = make_stream(), *other = make_stream();
  accrt_buffer_t* first = make_in_order(pool, stream, 2 * KIB);
  fill(stream, first, 2 * KIB, 1);
  assert_int_equal(accrt_stream_free(stream, first), ACCRT_OK); /* the stream has a cache now */
  accrt_buffer_t* second = make_in_order(pool, stream, 8 * KIB);
  const void* memory = pointer_of(second);
  fill(stream, second, 8 * KIB, 2);
  accrt_buffer_release(second);
  second = make_in_order(pool, stream, 8 * KIB);
  assert_ptr_equal(pointer_of(second), memory);
  /* Used on two streams it waits for both. */
  fill(other, second, 8 * KIB, 3);
  accrt_buffer_release(second);
  second = make_in_order(pool, stream, 8 * KIB);
  assert_ptr_not_equal(pointer_of(second), memory);
  accrt_buffer_release(second);
  while (test_driver_step() != 0)
    continue;
  assert_int_equal(statistics_of(pool).retiring_bytes, 0);
  accrt_stream_release(stream);
  accrt_stream_release(other);
  accrt_pool_release(pool);
  close_world();
}

/* A pool without owners ends with its last buffer, however that was freed. */
static void test_abandoned_pools_go(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t* buffer = make_in_order(pool, stream, 1000);
  fill(stream, buffer, 1000, 1);
  assert_int_equal(accrt_stream_free(stream, buffer), ACCRT_OK);
  accrt_pool_release(pool);
  assert_int_equal(atomic_load(&test_driver.mappings), 0);
  pool = make_pool(0, 0, NULL);
  buffer = make_in_order(pool, stream, 1000);
  accrt_pool_release(pool);
  assert_int_equal(atomic_load(&test_driver.mappings), 1);
  assert_int_equal(accrt_stream_free(stream, buffer), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.mappings), 0);
  accrt_stream_release(stream);
  close_world();
}

/* Streams come and go. Others can use the memory that they freed, and the pool frees their stream
 * caches. */
static void test_lanes_of_streams_that_are_gone(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  for (int i = 0; i < 100; ++i) {
    accrt_stream_t* stream = make_stream();
    accrt_buffer_t* buffer = make_in_order(pool, stream, 30 * KIB);
    fill(stream, buffer, 30 * KIB, 1);
    assert_int_equal(accrt_stream_free(stream, buffer), ACCRT_OK);
    accrt_stream_release(stream);
  }
  assert_int_equal(atomic_load(&test_driver.mappings), 1);
  assert_int_equal(statistics_of(pool).free_bytes, 64 * KIB);
  for (uint32_t i = 0; i < ACCRT_STREAM_CACHE_LISTS; ++i)
    assert_null(pool->stream_caches[i]);
  accrt_pool_release(pool);
  close_world();
}

typedef struct orderly {
  accrt_pool_t* pool;
  accrt_stream_t* stream;
  uint64_t seed;
  unsigned char marks[1024];
  unsigned char read[1024][2];
  int failed;
} orderly_t;

/* Fills, reads back and frees in stream order without waiting. It reads what it wrote. */
static void* run_in_order(void* argument) {
  orderly_t* self = argument;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.stream = self->stream;
  for (uint32_t i = 0; i < 1024; ++i) {
    self->seed = self->seed * 6364136223846793005u + 1442695040888963407u;
    const uint64_t size_bytes = (self->seed >> 33) % (UINT64_C(1) << (self->seed >> 60)) + 1;
    accrt_buffer_t* buffer;
    if (accrt_buffer_create(self->pool, size_bytes, &options, &buffer) != ACCRT_OK) {
      self->failed = 1;
      return NULL;
    }
    self->marks[i] = (unsigned char)(self->seed >> 40);
    const accrt_place_t ends[2] = {{buffer, NULL, 0}, {buffer, NULL, size_bytes - 1}};
    self->failed |=
        accrt_stream_fill(self->stream, &ends[0], size_bytes, self->marks[i], 1) != ACCRT_OK;
    for (int end = 0; end < 2; ++end) {
      const accrt_place_t to = {NULL, &self->read[i][end], 0};
      self->failed |= accrt_stream_copy(self->stream, &ends[end], &to, 1) != ACCRT_OK;
    }
    if (self->seed >> 39 & 1)
      self->failed |= accrt_stream_free(self->stream, buffer) != ACCRT_OK;
    else
      accrt_buffer_release(buffer);
    if (i % 128 == 0)
      self->failed |= accrt_pool_trim(self->pool, 0) != ACCRT_OK;
  }
  self->failed |= accrt_stream_synchronize(self->stream, FOREVER, ACCRT_WAIT_BLOCK) != ACCRT_OK;
  return NULL;
}

static void test_streams_race(void** state) {
  (void)state;
  enum { STREAMS = 4 };
  static orderly_t runs[STREAMS];
  const uint64_t seed = test_seed();
  open_world(TEST_DRIVER_THREAD);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  pthread_t threads[STREAMS];
  for (int i = 0; i < STREAMS; ++i) {
    runs[i] = (orderly_t){.pool = pool, .stream = make_stream(), .seed = seed * 31 + (uint64_t)i};
    assert_int_equal(pthread_create(&threads[i], NULL, run_in_order, &runs[i]), 0);
  }
  for (int i = 0; i < STREAMS; ++i) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(runs[i].failed, 0);
    for (int k = 0; k < 1024; ++k) {
      assert_int_equal(runs[i].read[k][0], runs[i].marks[k]);
      assert_int_equal(runs[i].read[k][1], runs[i].marks[k]);
    }
    accrt_stream_release(runs[i].stream);
  }
  const accrt_pool_statistics_t statistics = statistics_of(pool);
  assert_int_equal(statistics.retiring_bytes, 0);
  assert_int_equal(statistics.allocation_count, STREAMS * 1024);
  assert_null(accrt_heap_check(&pool->heap));
  accrt_pool_release(pool);
  close_world();
}

/* The warm path allocates nothing in stream order either. */
static void test_stream_order_allocates_nothing(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_pool_t* pool = make_pool(0, 0, NULL);
  accrt_stream_t* stream = make_stream();
  long before = 0;
  for (int round = 0; round < 20; ++round) {
    if (round == 2)
      before = atomic_load(&world.allocator.total_count);
    accrt_buffer_t* held[4];
    for (int i = 0; i < 4; ++i)
      held[i] = make_in_order(pool, stream, 1000 + 500 * (uint64_t)i);
    for (int i = 0; i < 4; ++i)
      assert_int_equal(accrt_stream_free(stream, held[i]), ACCRT_OK);
  }
  assert_int_equal(atomic_load(&world.allocator.total_count), before);
  assert_int_equal(atomic_load(&test_driver.mappings), 1);
  accrt_stream_release(stream);
  accrt_pool_release(pool);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_against_a_model),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_repeated_use_allocates_nothing),
      cmocka_unit_test(test_stream_caches),
      cmocka_unit_test(test_release_into_a_stream_cache),
      cmocka_unit_test(test_abandoned_pools_go),
      cmocka_unit_test(test_lanes_of_streams_that_are_gone),
      cmocka_unit_test(test_streams_race),
      cmocka_unit_test(test_stream_order_allocates_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
