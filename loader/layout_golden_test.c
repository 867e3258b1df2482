/* loader/layout_golden_test.c - every layout's formula against its golden vector
 * (tests/golden/layouts), whole and row by row, at odd addresses; and weights that lie about
 * themselves.
 *
 * Runs from the root of the source tree.
 */
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/accrt.h"

#define FOLDER "tests/golden/layouts/"

typedef struct vector {
  char name[64];
  accrt_layout_tensor_t tensor;
  int64_t shape[2];
  unsigned char* bytes; /* components begin at odd addresses */
  float* expected;
  uint64_t values;
} vector_t;

static unsigned char* read_part(FILE* file, uint64_t size, uint64_t offset) {
  unsigned char* memory = malloc(size + offset + 1);
  assert_non_null(memory);
  assert_int_equal(fread(memory + offset, 1, size, file), size);
  return memory;
}

/* False at the end of the manifest. */
static bool next_vector(FILE* manifest, vector_t* out) {
  char line[512];
  memset(out, 0, sizeof *out);
  out->tensor.struct_size = sizeof out->tensor;
  if (fgets(line, sizeof line, manifest) == NULL)
    return false;
  int used = 0;
  assert_int_equal(sscanf(line, "%63s %u %u %u %ld %ld%n", out->name, &out->tensor.layout,
                          &out->tensor.dtype, &out->tensor.group_elements, &out->shape[0],
                          &out->shape[1], &used),
                   6);
  out->tensor.rank = 2;
  out->tensor.shape = out->shape;
  uint64_t total = 0;
  unsigned role, dtype;
  unsigned long size;
  for (int at = used, n; sscanf(line + at, " %u:%u:%lu%n", &role, &dtype, &size, &n) == 3;
       at += n) {
    assert_true(role < ACCRT_LAYOUT_ROLE_COUNT);
    out->tensor.components[role].dtype = dtype;
    out->tensor.components[role].size_bytes = size;
    total += size;
  }
  char path[128];
  (void)snprintf(path, sizeof path, FOLDER "%s.bin", out->name);
  FILE* file = fopen(path, "rb");
  assert_non_null(file);
  out->bytes = read_part(file, total, 1);
  uint64_t at = 1;
  for (role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    if (out->tensor.components[role].dtype != ACCRT_DTYPE_NONE)
      out->tensor.components[role].data = out->bytes + at;
    at += out->tensor.components[role].size_bytes;
  }
  out->values = (uint64_t)(out->shape[0] * out->shape[1]);
  out->expected = (float*)(void*)read_part(file, 4 * out->values, 0);
  assert_int_equal(fgetc(file), EOF);
  fclose(file);
  return true;
}

static void free_vector(vector_t* vector) {
  free(vector->bytes);
  free(vector->expected);
}

static void check_values(const vector_t* vector, const float* got, uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t a, b;
    memcpy(&a, got + i, 4);
    memcpy(&b, vector->expected + first + i, 4);
    if (a != b && !(got[i] != got[i] && b == 0x7FC00000))
      fail_msg("%s: value %llu is 0x%08x, expected 0x%08x", vector->name,
               (unsigned long long)(first + i), a, b);
  }
}

/* Returns the layouts in a manifest, by bit. */
static uint32_t check_manifest(const char* path, uint32_t* count) {
  FILE* manifest = fopen(path, "r");
  assert_non_null(manifest);
  vector_t vector;
  uint32_t seen = 0;
  for (; next_vector(manifest, &vector); ++*count) {
    const uint64_t columns = (uint64_t)vector.shape[1];
    float* out = malloc(4 * (vector.values + 1));
    assert_non_null(out);
    out[vector.values] = 42.0f;
    assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, (uint64_t)vector.shape[0], out),
                     ACCRT_OK);
    check_values(&vector, out, 0, vector.values);
    for (uint64_t row = 0; row < (uint64_t)vector.shape[0]; ++row) {
      assert_int_equal(accrt_layout_dequantize(&vector.tensor, row, 1, out), ACCRT_OK);
      check_values(&vector, out, row * columns, columns);
    }
    assert_true(out[vector.values] == 42.0f);
    seen |= 1u << vector.tensor.layout;
    free(out);
    free_vector(&vector);
  }
  fclose(manifest);
  return seen;
}

static void test_golden_vectors(void** state) {
  (void)state;
  uint32_t count = 0;
  const uint32_t seen = check_manifest(FOLDER "manifest.txt", &count);
  assert_true(count >= 39);
  assert_int_equal(seen, 0x7FF0FFD); /* every id but OPAQUE */
  count = 0;
  assert_int_equal(check_manifest(FOLDER "manifest_0_3.txt", &count), 0xF8000000);
  assert_int_equal(count, 5);
}

static void test_lies_are_refused(void** state) {
  (void)state;
  FILE* manifest = fopen(FOLDER "manifest.txt", "r");
  assert_non_null(manifest);
  vector_t vector;
  for (; next_vector(manifest, &vector);) {
    const uint64_t rows = (uint64_t)vector.shape[0];
    float* out = malloc(4 * vector.values + 4);
    assert_non_null(out);
    for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
      accrt_layout_component_t* component = &vector.tensor.components[role];
      const accrt_layout_component_t good = *component;
      if (good.dtype == ACCRT_DTYPE_NONE)
        continue;
      component->size_bytes = good.size_bytes - 1;
      assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, rows, out),
                       ACCRT_ERROR_INVALID_ARGUMENT);
      *component = good;
      component->data = NULL;
      assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, rows, out),
                       ACCRT_ERROR_INVALID_ARGUMENT);
      *component = good;
      component->dtype = ACCRT_DTYPE_I64;
      assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, rows, out),
                       ACCRT_ERROR_TYPE_MISMATCH);
      *component = good;
    }
    assert_int_equal(accrt_layout_dequantize(&vector.tensor, rows, 1, out),
                     ACCRT_ERROR_OUT_OF_RANGE);
    assert_int_equal(accrt_layout_dequantize(&vector.tensor, 1, UINT64_MAX, out),
                     ACCRT_ERROR_OUT_OF_RANGE);
    assert_int_equal(accrt_layout_dequantize(&vector.tensor, rows, 0, NULL), ACCRT_OK);
    assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, 1, NULL),
                     ACCRT_ERROR_INVALID_ARGUMENT);
    unsigned char* index = vector.tensor.components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].data;
    const int32_t bad[] = {-1, INT32_MAX, (int32_t)(vector.shape[1] / 32 + 1)};
    for (uint32_t i = 0; index != NULL && i < 3; ++i) {
      memcpy(index + 4 * 7, &bad[i], 4);
      assert_int_equal(accrt_layout_dequantize(&vector.tensor, 0, 1, out),
                       ACCRT_ERROR_OUT_OF_RANGE);
    }
    free(out);
    free_vector(&vector);
  }
  fclose(manifest);
}

static void test_no_f32_form(void** state) {
  (void)state;
  const int64_t shape[1] = {1};
  int64_t value = 1;
  float out;
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  tensor.dtype = ACCRT_DTYPE_I64;
  tensor.rank = 1;
  tensor.shape = shape;
  tensor.components[0] = (accrt_layout_component_t){&value, 8, ACCRT_DTYPE_I64, 0};
  assert_int_equal(accrt_layout_dequantize(&tensor, 0, 1, &out), ACCRT_ERROR_UNSUPPORTED);
  tensor.layout = ACCRT_LAYOUT_OPAQUE;
  assert_int_equal(accrt_layout_dequantize(&tensor, 0, 1, &out), ACCRT_ERROR_UNSUPPORTED);
  tensor.shape = NULL;
  assert_int_equal(accrt_layout_dequantize(&tensor, 0, 1, &out), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_dequantize(NULL, 0, 1, &out), ACCRT_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden_vectors),
      cmocka_unit_test(test_lies_are_refused),
      cmocka_unit_test(test_no_f32_form),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
