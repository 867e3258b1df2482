/* The heap against a model: random takes and gives over several segments; every invariant after
 * every step. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/memory/heap.h"
#include "tests/random.h"

#define GRANULE 256u
#define SPARES 4096
#define SEGMENTS 6
#define MAX_LIVE 400

typedef struct fixture {
  accrt_heap_t heap;
  accrt_block_t spares[SPARES];
  accrt_segment_t segments[SEGMENTS];
} fixture_t;

static fixture_t* make(void) {
  fixture_t* fixture = calloc(1, sizeof *fixture);
  assert_non_null(fixture);
  accrt_heap_init(&fixture->heap, GRANULE);
  for (int i = 0; i < SPARES; ++i)
    accrt_heap_add_spare(&fixture->heap, &fixture->spares[i]);
  return fixture;
}

static void add_segment(fixture_t* fixture, int index, uint64_t address, uint64_t size_bytes) {
  fixture->segments[index].memory =
      (accrt_driver_memory_t){.device_address = address, .size_bytes = size_bytes};
  accrt_heap_add_segment(&fixture->heap, &fixture->segments[index]);
  assert_null(accrt_heap_check(&fixture->heap));
}

static uint64_t address_of(const accrt_block_t* block) {
  return block->segment->memory.device_address + block->offset_bytes;
}

static void test_empty(void** state) {
  (void)state;
  fixture_t* fixture = make();
  assert_null(accrt_heap_take(&fixture->heap, GRANULE, 1));
  assert_int_equal(accrt_heap_largest_free(&fixture->heap), 0);
  assert_null(accrt_heap_check(&fixture->heap));
  free(fixture);
}

static void test_exact_fit(void** state) {
  (void)state;
  fixture_t* fixture = make();
  add_segment(fixture, 0, 0x10000,
              17 * GRANULE * 16 + GRANULE); /* a size that rounds up to the next class */
  const uint64_t all = fixture->segments[0].memory.size_bytes;
  assert_int_equal(accrt_heap_largest_free(&fixture->heap), all);
  accrt_block_t* block = accrt_heap_take(&fixture->heap, all, GRANULE);
  assert_non_null(block);
  assert_int_equal(fixture->heap.free_bytes, 0);
  assert_false(accrt_heap_segment_is_free(&fixture->segments[0]));
  assert_null(accrt_heap_take(&fixture->heap, GRANULE, GRANULE));
  accrt_heap_give(&fixture->heap, block);
  assert_true(accrt_heap_segment_is_free(&fixture->segments[0]));
  accrt_heap_remove_segment(&fixture->heap, &fixture->segments[0]);
  assert_int_equal(fixture->heap.segment_count, 0);
  assert_int_equal(fixture->heap.spare_count, SPARES);
  assert_null(accrt_heap_check(&fixture->heap));
  free(fixture);
}

static void test_alignment(void** state) {
  (void)state;
  fixture_t* fixture = make();
  add_segment(fixture, 0, 0x1100, 64 * 1024);
  for (uint64_t alignment = GRANULE; alignment <= 16384; alignment *= 2) {
    accrt_block_t* block = accrt_heap_take(&fixture->heap, 3 * GRANULE, alignment);
    assert_non_null(block);
    assert_int_equal(address_of(block) % alignment, 0);
    assert_null(accrt_heap_check(&fixture->heap));
    accrt_heap_give(&fixture->heap, block);
  }
  assert_null(accrt_heap_take(&fixture->heap, GRANULE, UINT64_C(1) << 40));
  assert_null(accrt_heap_take(&fixture->heap, UINT64_MAX & ~(uint64_t)(GRANULE - 1), GRANULE));
  assert_true(accrt_heap_segment_is_free(&fixture->segments[0]));
  free(fixture);
}

/* A heap that is nearly full is used to the end, whatever the classes say. */
static void test_used_to_the_end(void** state) {
  (void)state;
  fixture_t* fixture = make();
  add_segment(fixture, 0, 0x100000, 1000 * GRANULE);
  uint64_t taken = 0;
  while (accrt_heap_take(&fixture->heap, 37 * GRANULE, GRANULE) != NULL)
    taken += 37;
  assert_int_equal(taken, 1000 / 37 * 37);
  assert_non_null(accrt_heap_take(&fixture->heap, (1000 - taken) * GRANULE, GRANULE));
  assert_int_equal(fixture->heap.free_bytes, 0);
  free(fixture);
}

typedef struct live {
  accrt_block_t* block;
  uint64_t begin, end;
} live_t;

static uint64_t random_state;
static uint64_t next_random(void) {
  return test_random(&random_state);
}

static uint64_t random_size(void) {
  const uint64_t units = next_random() % 4 == 0 ? next_random() % 300 + 1 : next_random() % 12 + 1;
  return units * GRANULE;
}

static void check_apart(const live_t* live, size_t count, const live_t* added) {
  for (size_t i = 0; i < count; ++i)
    assert_true(added->end <= live[i].begin || live[i].end <= added->begin);
}

static void test_random_against_a_model(void** state) {
  (void)state;
  random_state = test_seed();
  fixture_t* fixture = make();
  uint64_t total = 0;
  for (int i = 0; i < SEGMENTS; ++i) {
    const uint64_t size_bytes = (200 + (uint64_t)i * 131) * GRANULE;
    add_segment(fixture, i, ((uint64_t)i + 1) << 32, size_bytes);
    total += size_bytes;
  }
  static live_t live[MAX_LIVE];
  size_t count = 0;
  uint64_t used = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool take = count == 0 || (count < MAX_LIVE && next_random() % 5 < 3);
    if (take) {
      const uint64_t size_bytes = random_size();
      const uint64_t alignment =
          next_random() % 8 == 0 ? (uint64_t)GRANULE << next_random() % 6 : GRANULE;
      accrt_block_t* block = accrt_heap_take(&fixture->heap, size_bytes, alignment);
      if (block != NULL) {
        assert_int_equal(block->size_bytes, size_bytes);
        assert_int_equal(address_of(block) % alignment, 0);
        const live_t added = {block, address_of(block), address_of(block) + size_bytes};
        check_apart(live, count, &added);
        live[count++] = added;
        used += size_bytes;
      }
    } else {
      const size_t victim = next_random() % count;
      used -= live[victim].end - live[victim].begin;
      accrt_heap_give(&fixture->heap, live[victim].block);
      live[victim] = live[--count];
    }
    assert_int_equal(fixture->heap.free_bytes, total - used);
    if (step % 50 == 0)
      assert_null(accrt_heap_check(&fixture->heap));
  }
  while (count > 0)
    accrt_heap_give(&fixture->heap, live[--count].block);
  assert_null(accrt_heap_check(&fixture->heap));
  for (int i = 0; i < SEGMENTS; ++i) {
    assert_true(accrt_heap_segment_is_free(&fixture->segments[i]));
    accrt_heap_remove_segment(&fixture->heap, &fixture->segments[i]);
  }
  assert_int_equal(fixture->heap.spare_count, SPARES);
  assert_int_equal(fixture->heap.free_bytes, 0);
  free(fixture);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_exact_fit),
      cmocka_unit_test(test_alignment),
      cmocka_unit_test(test_used_to_the_end),
      cmocka_unit_test(test_random_against_a_model),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
