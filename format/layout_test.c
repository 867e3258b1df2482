/* format/layout_test.c - the layout registry: what each layout holds, exact sizes, and shapes that
 * nobody should send. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "format/layout.h"

static const uint32_t ids[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 16, 17,
                               18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static uint64_t size_of(uint32_t layout, int64_t n, int64_t k, uint32_t group, uint32_t role,
                        accrt_dtype_t dtype) {
  const int64_t shape[2] = {n, k};
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  tensor.layout = layout;
  tensor.dtype = layout == ACCRT_LAYOUT_PLAIN ? dtype : ACCRT_DTYPE_F16;
  tensor.rank = 2;
  tensor.shape = shape;
  tensor.group_elements = group;
  tensor.components[role].dtype = dtype;
  uint64_t size = 0;
  const accrt_status_t status = accrt_layout_component_size(&tensor, role, &size);
  return status == ACCRT_OK ? size : UINT64_MAX - (uint64_t)status;
}
#define REFUSED(name) (UINT64_MAX - (uint64_t)ACCRT_ERROR_##name)

static void test_ids_and_names_are_frozen(void** state) {
  (void)state;
  for (uint32_t i = 0; i < sizeof ids / sizeof *ids; ++i) {
    accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
    assert_int_equal(accrt_layout_info(ids[i], &info), ACCRT_OK);
    assert_int_equal(info.id, ids[i]);
    assert_int_equal(accx_layout_at(i)->id, ids[i]);
    assert_int_equal(accx_layout_at(i)->since_minor, ids[i] <= ACCRT_LAYOUT_OPAQUE ? 1
                                                     : ids[i] < ACCRT_LAYOUT_Q5_0  ? 2
                                                                                   : 3);
    uint32_t found;
    assert_int_equal(accrt_layout_find(info.name, &found), ACCRT_OK);
    assert_int_equal(found, ids[i]);
  }
  assert_null(accx_layout_at(sizeof ids / sizeof *ids));
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  assert_int_equal(accrt_layout_info(12, &info), ACCRT_ERROR_NOT_FOUND);
  uint32_t found = 9;
  assert_int_equal(accrt_layout_find("q4_k_m", &found), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(found, 0);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "nvfp4"));
}

static void test_sizes(void** state) {
  (void)state;
  enum { F32 = ACCRT_DTYPE_F32, F16 = ACCRT_DTYPE_F16, U8 = ACCRT_DTYPE_U8, U4 = ACCRT_DTYPE_U4 };
  const uint32_t e4m3 = ACCRT_DTYPE_F8E4M3FN, i32 = ACCRT_DTYPE_I32;
  assert_int_equal(size_of(ACCRT_LAYOUT_PLAIN, 3, 5, 0, 0, U4), 8);
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_TENSOR, 3, 5, 0, 1, F32), 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_CHANNEL, 3, 5, 0, 0, e4m3), 15);
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_CHANNEL, 3, 5, 0, 1, F16), 6);
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_BLOCK128, 129, 257, 0, 1, F32), 2 * 3 * 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_I8_GROUP, 7, 33, 32, 1, F16), 7 * 2 * 2);
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 7, 34, 32, 0, U4), 7 * 17);
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 7, 34, 32, 3, i32), 34 * 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 7, 34, 32, 3, ACCRT_DTYPE_NONE), 0);
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP_ASYM, 7, 66, 32, 2, U4), 7 * 2);
  assert_int_equal(size_of(ACCRT_LAYOUT_GPTQ_V1, 16, 64, 32, 0, i32), 64 / 8 * 16 * 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_GPTQ_V1, 16, 72, 32, 2, i32), 3 * 16 / 8 * 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_AWQ, 16, 64, 32, 1, F16), 2 * 16 * 2);
  assert_int_equal(size_of(ACCRT_LAYOUT_Q4_K, 3, 512, 0, 0, U8), 3 * 2 * 144);
  assert_int_equal(size_of(ACCRT_LAYOUT_Q6_K, 3, 512, 0, 0, U8), 3 * 2 * 210);
  assert_int_equal(size_of(ACCRT_LAYOUT_MXFP4, 3, 64, 0, 0, ACCRT_DTYPE_F4E2M1), 96);
  assert_int_equal(size_of(ACCRT_LAYOUT_MXFP4, 3, 64, 0, 1, ACCRT_DTYPE_F8E8M0), 6);
  assert_int_equal(size_of(ACCRT_LAYOUT_NVFP4, 3, 48, 0, 1, e4m3), 9);
  assert_int_equal(size_of(ACCRT_LAYOUT_NVFP4, 3, 48, 0, 4, F32), 4);
  assert_int_equal(size_of(ACCRT_LAYOUT_Q8_0, 0, 32, 0, 0, U8), 0);
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_CHANNEL, 4, 0, 0, 1, F32), 16);
}

static void test_what_does_not_fit_is_refused(void** state) {
  (void)state;
  enum { F32 = ACCRT_DTYPE_F32, F16 = ACCRT_DTYPE_F16, U8 = ACCRT_DTYPE_U8, U4 = ACCRT_DTYPE_U4 };
  const int64_t huge = INT64_MAX;
  assert_int_equal(size_of(ACCRT_LAYOUT_Q4_K, 1, 128, 0, 0, U8), REFUSED(SHAPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_Q4_K, -1, 256, 0, 0, U8), REFUSED(SHAPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_Q4_K, 1, 256, 32, 0, U8), REFUSED(INVALID_ARGUMENT));
  assert_int_equal(size_of(ACCRT_LAYOUT_Q4_K, 1, 256, 0, 0, F16), REFUSED(TYPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 1, 31, 32, 0, U4), REFUSED(SHAPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 1, 32, 0, 0, U4), REFUSED(INVALID_ARGUMENT));
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 1, 32, 12, 0, U4), REFUSED(INVALID_ARGUMENT));
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 1, 32, 1u << 31, 0, U4),
                   REFUSED(INVALID_ARGUMENT));
  assert_int_equal(size_of(ACCRT_LAYOUT_GPTQ_V2, 12, 64, 32, 0, ACCRT_DTYPE_I32),
                   REFUSED(SHAPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_TENSOR, 1, 32, 0, 4, F32), REFUSED(TYPE_MISMATCH));
  assert_int_equal(size_of(ACCRT_LAYOUT_OPAQUE, 1, 32, 0, 0, F16), REFUSED(INVALID_ARGUMENT));
  assert_int_equal(size_of(12, 1, 32, 0, 0, F16), REFUSED(NOT_FOUND));
  /* Products that wrap: 2^32 by 2^32, and what becomes small again after its bits are counted. */
  assert_int_equal(size_of(ACCRT_LAYOUT_PLAIN, 1ll << 32, 1ll << 32, 0, 0, F32), REFUSED(OVERFLOW));
  assert_int_equal(size_of(ACCRT_LAYOUT_PLAIN, huge, 2, 0, 0, ACCRT_DTYPE_I8), REFUSED(OVERFLOW));
  assert_int_equal(size_of(ACCRT_LAYOUT_Q8_0, huge / 2, 32, 0, 0, U8), REFUSED(OVERFLOW));
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_CHANNEL, huge, 1, 0, 1, F32), REFUSED(OVERFLOW));
  assert_int_equal(size_of(ACCRT_LAYOUT_F8_CHANNEL, huge, 0, 0, 1, F32), REFUSED(OVERFLOW));
  assert_int_equal(size_of(ACCRT_LAYOUT_I4_GROUP, 1, huge - 1, 32, 3, ACCRT_DTYPE_I32),
                   REFUSED(OVERFLOW));
}

static accrt_status_t look(uint32_t layout, accrt_dtype_t dtype, uint32_t rank,
                           const int64_t* shape) {
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  tensor.layout = layout;
  tensor.dtype = dtype;
  tensor.rank = rank;
  tensor.shape = shape;
  tensor.group_elements = layout == ACCRT_LAYOUT_AWQ ? 64 : 0;
  tensor.components[0].dtype = layout == ACCRT_LAYOUT_AWQ ? ACCRT_DTYPE_I32 : ACCRT_DTYPE_U8;
  uint64_t size;
  return accrt_layout_component_size(&tensor, 0, &size);
}

static void test_types_that_no_weight_has(void** state) {
  (void)state;
  const int64_t shape[8] = {1, 8, 256, 0}, batches[3] = {INT64_MAX, INT64_MAX, 256};
  const int64_t overflow[4] = {INT64_MAX, INT64_MAX, 1, 256};
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_BF16, 3, shape), ACCRT_OK);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_I32, 3, shape), ACCRT_ERROR_TYPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, 99, 3, shape), ACCRT_ERROR_TYPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_PLAIN, 0, 3, shape), ACCRT_ERROR_TYPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_F32, 0, NULL), ACCRT_ERROR_SHAPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_F32, 9, shape), ACCRT_ERROR_SHAPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_F32, 2, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(look(ACCRT_LAYOUT_AWQ, ACCRT_DTYPE_F32, 3, shape), ACCRT_ERROR_SHAPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_AWQ, ACCRT_DTYPE_F32, 1, shape), ACCRT_ERROR_SHAPE_MISMATCH);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_F32, 3, batches), ACCRT_ERROR_OVERFLOW);
  assert_int_equal(look(ACCRT_LAYOUT_Q8_0, ACCRT_DTYPE_F32, 4, overflow), ACCRT_ERROR_OVERFLOW);
}

static void expect_message(const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in: %s", text, error.message);
}

/* Each mistake in its own words, with the layout's name. */
static void test_messages_name_the_mistake(void** state) {
  (void)state;
  enum { U8 = ACCRT_DTYPE_U8, I32 = ACCRT_DTYPE_I32 };
  (void)size_of(ACCRT_LAYOUT_Q4_K, 1, 100, 0, 0, U8);
  expect_message("layout 19 (q4_k) of f16, rank 2, rows 1, columns 100");
  expect_message("the columns are no multiple of the layout's block, 256");
  (void)size_of(ACCRT_LAYOUT_GPTQ_V2, 12, 64, 32, 0, I32);
  expect_message("the rows are no multiple of what the layout packs, 8");
  (void)size_of(ACCRT_LAYOUT_Q4_K, -1, 256, 0, 0, U8);
  expect_message("a dimension is negative");
  (void)size_of(ACCRT_LAYOUT_Q4_K, INT64_MAX, 256, 0, 0, U8);
  expect_message("a size does not fit");
  (void)size_of(12, 1, 32, 0, 0, U8);
  expect_message("layout 12 (?)");
}

static void test_pointers_and_structs(void** state) {
  (void)state;
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  uint64_t size;
  uint32_t layout;
  assert_int_equal(accrt_layout_component_size(NULL, 0, &size), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_component_size(&tensor, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  tensor.struct_size = 3;
  assert_int_equal(accrt_layout_component_size(&tensor, 0, &size), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_find(NULL, &layout), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_find("q4_k", NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_info(0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  tensor.struct_size = sizeof tensor;
  tensor.dtype = tensor.components[0].dtype = ACCRT_DTYPE_F32;
  assert_int_equal(accrt_layout_component_size(&tensor, 0, &size), ACCRT_OK);
  assert_int_equal(size, 4); /* of rank 0 */
  tensor.reserved = 1;
  assert_int_equal(accrt_layout_component_size(&tensor, 0, &size), ACCRT_ERROR_INVALID_ARGUMENT);
  tensor.reserved = 0;
  assert_int_equal(accrt_layout_component_size(&tensor, 5, &size), ACCRT_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ids_and_names_are_frozen),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_what_does_not_fit_is_refused),
      cmocka_unit_test(test_types_that_no_weight_has),
      cmocka_unit_test(test_messages_name_the_mistake),
      cmocka_unit_test(test_pointers_and_structs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
