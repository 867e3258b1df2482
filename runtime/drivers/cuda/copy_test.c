/* Which form a strided copy takes, and that every form touches the same bytes as the plain
 * loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/drivers/cuda/cuda.h"
#include "tests/random.h"

#define MAX_PITCH UINT64_C(4096)
#define ARENA_BYTES 65536u

static cuda_copy_t copy_of(uint64_t bytes, uint64_t rows, uint64_t planes, uint64_t source_row,
                           uint64_t source_plane, uint64_t target_row, uint64_t target_plane) {
  return (cuda_copy_t){.extent = {bytes, rows, planes},
                       .source_stride = {source_row, source_plane},
                       .target_stride = {target_row, target_plane}};
}

static uint32_t shape(cuda_copy_t copy) {
  return accrt_cuda_copy_shape(&copy, MAX_PITCH);
}

static void test_nothing(void** state) {
  (void)state;
  assert_int_equal(shape(copy_of(0, 3, 3, 8, 24, 8, 24)), CUDA_COPY_NOTHING);
  assert_int_equal(shape(copy_of(8, 0, 3, 8, 24, 8, 24)), CUDA_COPY_NOTHING);
  assert_int_equal(shape(copy_of(8, 3, 0, 8, 24, 8, 24)), CUDA_COPY_NOTHING);
}

static void test_contiguous_is_linear(void** state) {
  (void)state;
  cuda_copy_t copy = copy_of(8, 3, 5, 8, 24, 8, 24);
  assert_int_equal(accrt_cuda_copy_shape(&copy, MAX_PITCH), CUDA_COPY_LINEAR);
  assert_int_equal(copy.extent[0], 120);
  /* Strides of what there is one of do not count. */
  assert_int_equal(shape(copy_of(8, 1, 1, 99, 77, 55, 33)), CUDA_COPY_LINEAR);
}

static void test_rows(void** state) {
  (void)state;
  assert_int_equal(shape(copy_of(8, 3, 1, 16, 0, 8, 0)), CUDA_COPY_2D);
  /* Planes of one row are rows. */
  cuda_copy_t copy = copy_of(8, 1, 3, 0, 16, 0, 32);
  assert_int_equal(accrt_cuda_copy_shape(&copy, MAX_PITCH), CUDA_COPY_2D);
  assert_int_equal(copy.extent[1], 3);
  assert_int_equal(copy.source_stride[0], 16);
  /* Planes that follow one another are more rows. */
  copy = copy_of(8, 3, 4, 16, 48, 32, 96);
  assert_int_equal(accrt_cuda_copy_shape(&copy, MAX_PITCH), CUDA_COPY_2D);
  assert_int_equal(copy.extent[1], 12);
}

static void test_what_cuda_cannot_say(void** state) {
  (void)state;
  assert_int_equal(shape(copy_of(8, 3, 1, 0, 0, 8, 0)), CUDA_COPY_ROWS); /* repeats */
  assert_int_equal(shape(copy_of(8, 3, 1, 4, 0, 8, 0)), CUDA_COPY_ROWS); /* overlaps */
  assert_int_equal(shape(copy_of(8, 3, 1, MAX_PITCH + 8, 0, 8, 0)), CUDA_COPY_ROWS);
  assert_int_equal(shape(copy_of(8, 3, 2, 16, 0, 16, 48)), CUDA_COPY_PLANES);  /* repeats */
  assert_int_equal(shape(copy_of(8, 3, 2, 16, 50, 16, 48)), CUDA_COPY_PLANES); /* no pitches */
  assert_int_equal(shape(copy_of(8, 3, 2, 16, 16, 16, 48)), CUDA_COPY_PLANES); /* overlaps */
}

static void test_planes(void** state) {
  (void)state;
  assert_int_equal(shape(copy_of(8, 3, 2, 16, 64, 8, 24)), CUDA_COPY_3D);
  assert_int_equal(shape(copy_of(8, 3, 2, 16, 48, 8, 32)), CUDA_COPY_3D);
}

/* Sizes whose products do not fit are left apart, not wrapped. */
static void test_overflow_does_not_merge(void** state) {
  (void)state;
  const uint64_t half = UINT64_C(1) << 63;
  cuda_copy_t copy = copy_of(half, 4, 1, half, 0, half, 0);
  assert_int_equal(accrt_cuda_copy_shape(&copy, MAX_PITCH), CUDA_COPY_ROWS);
  assert_int_equal(copy.extent[0], half);
}

/* Does what the request says to CUDA. */
static void run_3d(const unsigned char* source, unsigned char* target, const CUDA_MEMCPY3D* r) {
  for (size_t z = 0; z < r->Depth; ++z) {
    for (size_t y = 0; y < r->Height; ++y) {
      memcpy(target + r->dstDevice + (z * r->dstHeight + y) * r->dstPitch,
             source + r->srcDevice + (z * r->srcHeight + y) * r->srcPitch, r->WidthInBytes);
    }
  }
}

static void run_shape(const unsigned char* source, unsigned char* target, cuda_copy_t copy) {
  const uint32_t form = accrt_cuda_copy_shape(&copy, MAX_PITCH);
  CUDA_MEMCPY2D flat;
  CUDA_MEMCPY3D solid;
  switch (form) {
  case CUDA_COPY_LINEAR:
    memcpy(target + copy.target, source + copy.source, copy.extent[0]);
    break;
  case CUDA_COPY_2D:
    accrt_cuda_copy_2d(&copy, &flat);
    assert_true(flat.srcPitch >= flat.WidthInBytes && flat.dstPitch >= flat.WidthInBytes);
    for (size_t y = 0; y < flat.Height; ++y) {
      memcpy(target + flat.dstDevice + y * flat.dstPitch,
             source + flat.srcDevice + y * flat.srcPitch, flat.WidthInBytes);
    }
    break;
  case CUDA_COPY_3D:
    accrt_cuda_copy_3d(&copy, &solid);
    assert_true(solid.srcHeight >= solid.Height && solid.dstHeight >= solid.Height);
    run_3d(source, target, &solid);
    break;
  case CUDA_COPY_ROWS:
    for (uint64_t y = 0; y < copy.extent[1]; ++y) {
      memcpy(target + copy.target + y * copy.target_stride[0],
             source + copy.source + y * copy.source_stride[0], copy.extent[0]);
    }
    break;
  case CUDA_COPY_PLANES:
    for (uint64_t z = 0; z < copy.extent[2]; ++z) {
      cuda_copy_t one = copy;
      one.source += z * copy.source_stride[1];
      one.target += z * copy.target_stride[1];
      one.extent[2] = 1;
      run_shape(source, target, one);
    }
    break;
  default:
    break;
  }
}

static void test_every_form_copies_the_same(void** state) {
  (void)state;
  uint64_t seed = test_seed();
  unsigned char* source = malloc(ARENA_BYTES);
  unsigned char* target = malloc(ARENA_BYTES);
  unsigned char* expected = malloc(ARENA_BYTES);
  assert_true(source != NULL && target != NULL && expected != NULL);
  for (size_t i = 0; i < ARENA_BYTES; ++i)
    source[i] = (unsigned char)test_below(&seed, 256);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t bytes = test_below(&seed, 20), rows = test_below(&seed, 7),
                   planes = test_below(&seed, 5);
    const uint64_t target_row = bytes + (test_below(&seed, 2) ? test_below(&seed, 20) : 0);
    const uint64_t target_plane = target_row * rows + test_below(&seed, 2) * test_below(&seed, 60);
    const uint64_t source_row = test_below(&seed, 2) ? bytes : test_below(&seed, 40);
    const uint64_t source_plane = test_below(&seed, 2) ? source_row * rows : test_below(&seed, 300);
    const cuda_copy_t copy =
        copy_of(bytes, rows, planes, source_row, source_plane, target_row, target_plane);
    memset(target, 0, 8192);
    memset(expected, 0, 8192);
    for (uint64_t z = 0; z < planes; ++z) {
      for (uint64_t y = 0; y < rows; ++y) {
        memcpy(expected + z * target_plane + y * target_row,
               source + z * source_plane + y * source_row, bytes);
      }
    }
    run_shape(source, target, copy);
    assert_memory_equal(target, expected, 8192);
  }
  free(source);
  free(target);
  free(expected);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_contiguous_is_linear),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_what_cuda_cannot_say),
      cmocka_unit_test(test_planes),
      cmocka_unit_test(test_overflow_does_not_merge),
      cmocka_unit_test(test_every_form_copies_the_same),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
