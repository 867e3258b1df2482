/* DLPack: round trips, strides, every data type, refusals, and deleters that wait for the last
 * use. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <unistd.h>

#include "runtime/core/dlpack.h"
#include "runtime/drivers/common/objects.h"

#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static int set_up(void** state) {
  (void)state;
  return (int)test_world_open(&world, TEST_DRIVER_STEPPED);
}

static int tear_down(void** state) {
  (void)state;
  return (int)test_world_close(&world);
}

typedef struct producer {
  accrt_dl_managed_t managed;
  int64_t shape[8], strides[8];
  float data[64];
  atomic_int deleted;
} producer_t;

static void delete_producer(accrt_dl_managed_t* managed) {
  atomic_fetch_add(&((producer_t*)managed->manager_context)->deleted, 1);
}

static void make_producer(producer_t* producer) {
  memset(producer, 0, sizeof *producer);
  producer->shape[0] = 3;
  producer->shape[1] = 5;
  producer->managed = (accrt_dl_managed_t){.major = 1,
                                           .minor = 0,
                                           .manager_context = producer,
                                           .deleter = delete_producer,
                                           .tensor = {.data = producer->data,
                                                      .device_type = ACCRT_DL_CPU,
                                                      .ndim = 2,
                                                      .dtype = {ACCRT_DL_FLOAT, 32, 1},
                                                      .shape = producer->shape}};
}

static accrt_status_t import(producer_t* producer, accrt_tensor_t* tensor, int64_t* shape,
                             int64_t* strides, uint32_t* read_only) {
  return accrt_dlpack_import(world.device, &producer->managed, tensor, shape, strides, read_only);
}

static void test_import(void** state) {
  (void)state;
  producer_t producer;
  make_producer(&producer);
  accrt_tensor_t tensor;
  int64_t shape[8], strides[8];
  uint32_t read_only = 9;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_OK);
  assert_int_equal(read_only, 0);
  assert_int_equal(tensor.rank, 2);
  assert_int_equal(tensor.dtype, ACCRT_DTYPE_F32);
  assert_int_equal(tensor.shape[0], 3);
  assert_int_equal(tensor.strides[0], 5);
  assert_int_equal(tensor.strides[1], 1);
  assert_int_equal(tensor.offset_bytes, 0);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(tensor.buffer, &info), ACCRT_OK);
  assert_int_equal(info.size_bytes, 60);
  assert_ptr_equal(info.host_pointer, producer.data);
  accrt_buffer_release(tensor.buffer);
  assert_int_equal(atomic_load(&producer.deleted), 1);
}

static void test_import_strided(void** state) {
  (void)state;
  producer_t producer;
  make_producer(&producer);
  producer.managed.flags = ACCRT_DL_FLAG_READ_ONLY;
  producer.managed.tensor.strides = producer.strides;
  producer.managed.tensor.byte_offset = 80;
  producer.strides[0] = -6;
  producer.strides[1] = 2;
  accrt_tensor_t tensor;
  int64_t shape[8], strides[8];
  uint32_t read_only;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_OK);
  assert_int_equal(read_only, 1);
  assert_int_equal(tensor.strides[0], -6);
  assert_int_equal(tensor.offset_bytes,
                   48); /* element 0 lies behind those that the negative stride reaches */
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(tensor.buffer, &info), ACCRT_OK);
  assert_ptr_equal((char*)info.host_pointer + tensor.offset_bytes, (char*)producer.data + 80);
  assert_int_equal(info.size_bytes, 48 + 36);
  accrt_buffer_release(tensor.buffer);
  /* No elements: no memory is needed. */
  make_producer(&producer);
  producer.shape[1] = 0;
  producer.managed.tensor.data = NULL;
  producer.managed.deleter = NULL;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_OK);
  accrt_buffer_release(tensor.buffer);
}

static void test_import_refuses(void** state) {
  (void)state;
  producer_t producer;
  accrt_tensor_t tensor;
  int64_t shape[8], strides[8];
  uint32_t read_only;
  make_producer(&producer);
  assert_int_equal(
      accrt_dlpack_import(NULL, &producer.managed, &tensor, shape, strides, &read_only),
      ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_dlpack_import(world.device, NULL, &tensor, shape, strides, &read_only),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(
      accrt_dlpack_import(world.device, &producer.managed, &tensor, NULL, strides, &read_only),
      ACCRT_ERROR_INVALID_ARGUMENT);
  producer.managed.major = 2;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only),
                   ACCRT_ERROR_VERSION_MISMATCH);
  /* Offsets that wrap, to bytes before the memory, or that no address has. */
  const uint64_t offsets[] = {UINT64_MAX, UINT64_MAX - 79, UINT64_C(1) << 63};
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; ++i) {
    make_producer(&producer);
    producer.managed.tensor.byte_offset = offsets[i];
    assert_int_equal(import(&producer, &tensor, shape, strides, &read_only),
                     ACCRT_ERROR_UNSUPPORTED);
  }
  make_producer(&producer);
  producer.managed.tensor.device_type = ACCRT_DL_CUDA;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  make_producer(&producer);
  producer.managed.tensor.ndim = 9;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  make_producer(&producer);
  producer.managed.tensor.dtype = (accrt_dl_type_t){5, 64, 1}; /* complex */
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  producer.managed.tensor.dtype = (accrt_dl_type_t){ACCRT_DL_FLOAT, 32, 4};
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  make_producer(&producer);
  producer.shape[0] = -1;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  make_producer(&producer);
  producer.shape[0] = INT64_MAX;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  make_producer(&producer);
  producer.managed.tensor.data = NULL;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(tensor.buffer);
  assert_int_equal(atomic_load(&producer.deleted), 0); /* on failure it stays the caller's */
}

/* Two elements of 4 bits as one, as torch has them: the last dimension holds the pairs. */
static void test_import_of_pairs(void** state) {
  (void)state;
  static const struct {
    int32_t rank;
    uint8_t code, bits, lanes;
    int64_t shape[2], strides[2];
    bool has_strides;
    accrt_dtype_t dtype; /* NONE: refused */
    int64_t out_shape[2], out_strides[2];
  } rows[] = {
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 5}, {0}, false, ACCRT_DTYPE_F4E2M1, {3, 10}, {10, 1}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 5}, {8, 1}, true, ACCRT_DTYPE_F4E2M1, {3, 10}, {16, 1}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 1}, {2, 7}, true, ACCRT_DTYPE_F4E2M1, {3, 2}, {4, 1}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 0}, {5, 9}, true, ACCRT_DTYPE_F4E2M1, {3, 0}, {10, 1}},
      {1, ACCRT_DL_INT, 4, 2, {6}, {0}, false, ACCRT_DTYPE_I4, {12}, {1}},
      {1, ACCRT_DL_UINT, 4, 2, {6}, {1}, true, ACCRT_DTYPE_U4, {12}, {1}},
      {1, ACCRT_DL_F4E2M1, 4, 2, {6}, {2}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 5}, {1, 3}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 5}, {-8, 1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {0, ACCRT_DL_F4E2M1, 4, 2, {0}, {0}, false, ACCRT_DTYPE_NONE, {0}, {0}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {0, INT64_MAX}, {0}, false, ACCRT_DTYPE_NONE, {0}, {0}},
      {2, ACCRT_DL_F4E2M1, 4, 2, {3, 1}, {INT64_MAX, 1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {1, ACCRT_DL_F4E2M1, 4, 4, {6}, {1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {1, ACCRT_DL_F4E2M1, 4, 0, {6}, {1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {1, ACCRT_DL_INT, 0, 1, {6}, {1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {1, ACCRT_DL_INT, 8, 2, {6}, {1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
      {1, ACCRT_DL_FLOAT, 32, 2, {6}, {1}, true, ACCRT_DTYPE_NONE, {0}, {0}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    producer_t producer;
    make_producer(&producer);
    accrt_dl_tensor_t* given = &producer.managed.tensor;
    given->ndim = rows[i].rank;
    given->dtype = (accrt_dl_type_t){rows[i].code, rows[i].bits, rows[i].lanes};
    given->byte_offset = 32;
    memcpy(producer.shape, rows[i].shape, sizeof rows[i].shape);
    memcpy(producer.strides, rows[i].strides, sizeof rows[i].strides);
    given->strides = rows[i].has_strides ? producer.strides : NULL;
    accrt_tensor_t tensor;
    int64_t shape[8], strides[8];
    uint32_t read_only;
    const accrt_status_t status = import(&producer, &tensor, shape, strides, &read_only);
    if (rows[i].dtype == ACCRT_DTYPE_NONE) {
      assert_int_equal(status, ACCRT_ERROR_UNSUPPORTED);
      continue;
    }
    assert_int_equal(status, ACCRT_OK);
    assert_int_equal(tensor.dtype, rows[i].dtype);
    assert_int_equal(tensor.rank, rows[i].rank);
    assert_memory_equal(shape, rows[i].out_shape, tensor.rank * sizeof *shape);
    assert_memory_equal(strides, rows[i].out_strides, tensor.rank * sizeof *strides);
    assert_int_equal(producer.shape[0], rows[i].shape[0]); /* the producer's own stay */
    accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
    assert_int_equal(accrt_buffer_info(tensor.buffer, &info), ACCRT_OK);
    if (info.size_bytes > 0)
      assert_ptr_equal((char*)info.host_pointer + tensor.offset_bytes, (char*)producer.data + 32);
    accrt_buffer_release(tensor.buffer);
  }
}

static void test_deleter_waits_for_the_last_use(void** state) {
  (void)state;
  producer_t producer;
  make_producer(&producer);
  accrt_tensor_t tensor;
  int64_t shape[8], strides[8];
  uint32_t read_only;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_OK);
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  const accrt_place_t place = {tensor.buffer, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 60, 0x3F800000, 4), ACCRT_OK);
  accrt_buffer_release(tensor.buffer);
  assert_int_equal(atomic_load(&producer.deleted), 0);
  assert_int_equal(test_driver_step(), 1);
  for (int i = 0; i < 5000 && atomic_load(&producer.deleted) == 0; ++i)
    (void)usleep(1000);
  assert_int_equal(atomic_load(&producer.deleted), 1);
  assert_true(producer.data[14] == 1.0f);
  accrt_stream_release(stream);
}

static accrt_buffer_t* device_buffer(uint64_t size_bytes) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static void test_round_trip_of_types(void** state) {
  (void)state;
  accrt_buffer_t* buffer = device_buffer(256);
  const int64_t shape[2] = {2, 4}, strides[2] = {6, 1};
  for (accrt_dtype_t dtype = ACCRT_DTYPE_BOOL; dtype <= ACCRT_DTYPE_U4; ++dtype) {
    assert_true(accrt_dtype_bits(dtype) > 0);
    const accrt_tensor_t tensor = {.buffer = buffer,
                                   .offset_bytes = 16,
                                   .dtype = dtype,
                                   .rank = 2,
                                   .shape = shape,
                                   .strides = strides};
    accrt_dl_managed_t* managed;
    assert_int_equal(accrt_dlpack_export(&tensor, dtype % 2, &managed), ACCRT_OK);
    accrt_tensor_t back;
    int64_t back_shape[8], back_strides[8];
    uint32_t read_only;
    assert_int_equal(
        accrt_dlpack_import(world.device, managed, &back, back_shape, back_strides, &read_only),
        ACCRT_OK);
    assert_int_equal(back.dtype, dtype);
    assert_int_equal(read_only, dtype % 2);
    assert_int_equal(back.shape[1], 4);
    assert_int_equal(back.strides[0], 6);
    accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT, whole = ACCRT_BUFFER_INFO_INIT;
    assert_int_equal(accrt_buffer_info(back.buffer, &info), ACCRT_OK);
    assert_int_equal(accrt_buffer_info(buffer, &whole), ACCRT_OK);
    assert_ptr_equal(info.host_pointer, (char*)whole.host_pointer + 16);
    assert_int_equal(info.size_bytes, (10 * accrt_dtype_bits(dtype) + 7) / 8);
    accrt_buffer_release(back.buffer); /* runs the exporter's deleter */
  }
  assert_string_equal(accrt_dtype_name(ACCRT_DTYPE_BF16), "bf16");
  assert_string_equal(accrt_dtype_name(99), "?");
  assert_int_equal(accrt_dtype_bits(99), 0);
  assert_int_equal(accrt_dtype_bits(ACCRT_DTYPE_NONE), 0);
  accrt_buffer_release(buffer);
}

/* By the standard the data pointer of a tensor without elements is NULL. */
static void test_export_without_elements(void** state) {
  (void)state;
  accrt_buffer_t* buffer = device_buffer(256);
  const int64_t shape[2] = {4, 0}, strides[2] = {6, 1};
  const accrt_tensor_t tensor = {.buffer = buffer,
                                 .offset_bytes = 16,
                                 .dtype = ACCRT_DTYPE_F32,
                                 .rank = 2,
                                 .shape = shape,
                                 .strides = strides};
  accrt_dl_managed_t* managed;
  accrt_dl_unversioned_t* old;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_OK);
  assert_int_equal(accrt_dlpack_export_unversioned(&tensor, &old), ACCRT_OK);
  const accrt_dl_tensor_t* both[2] = {&managed->tensor, &old->tensor};
  for (int i = 0; i < 2; ++i) {
    assert_null(both[i]->data);
    assert_int_equal(both[i]->byte_offset, 0);
    assert_int_equal(both[i]->shape[0], 4);
    assert_int_equal(both[i]->strides[0], 6);
  }
  old->deleter(old);
  accrt_tensor_t back;
  int64_t back_shape[8], back_strides[8];
  uint32_t read_only;
  assert_int_equal(
      accrt_dlpack_import(world.device, managed, &back, back_shape, back_strides, &read_only),
      ACCRT_OK);
  assert_int_equal(back_shape[0], 4);
  assert_int_equal(back_shape[1], 0);
  accrt_buffer_release(back.buffer);
  accrt_buffer_release(buffer);
}

/* A device whose memory DLPack names. */
static void test_memory_of_the_device(void** state) {
  (void)state;
  producer_t producer;
  make_producer(&producer);
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  uint32_t read_only;
  world.device->info.dlpack_device_type = ACCRT_DL_CUDA;
  world.device->info.dlpack_device_id = 3;
  const int32_t taken[][2] = {{ACCRT_DL_CUDA, 3},
                              {ACCRT_DL_CUDA_MANAGED, 0},
                              {ACCRT_DL_CPU, 0},
                              {ACCRT_DL_CUDA_HOST, 0},
                              {ACCRT_DL_ROCM_HOST, 0}};
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; ++i) {
    producer.managed.tensor.device_type = taken[i][0];
    producer.managed.tensor.device_id = taken[i][1];
    assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_OK);
    accrt_buffer_release(tensor.buffer);
  }
  assert_int_equal(atomic_load(&producer.deleted), 5);
  const int32_t refused[][2] = {{ACCRT_DL_CUDA, 2}, {7, 3}, {0, 3}};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    producer.managed.tensor.device_type = refused[i][0];
    producer.managed.tensor.device_id = refused[i][1];
    assert_int_equal(import(&producer, &tensor, shape, strides, &read_only),
                     ACCRT_ERROR_UNSUPPORTED);
  }
  world.device->info.dlpack_device_type = 0;
  producer.managed.tensor.device_type = 0;
  assert_int_equal(import(&producer, &tensor, shape, strides, &read_only), ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(atomic_load(&producer.deleted), 5);
}

static void test_export_refuses(void** state) {
  (void)state;
  accrt_buffer_t* buffer = device_buffer(64);
  const int64_t shape[1] = {16}, too_many[1] = {17}, back[1] = {-1};
  accrt_tensor_t tensor = {.buffer = buffer, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape};
  accrt_dl_managed_t* managed = (void*)&tensor;
  assert_int_equal(accrt_dlpack_export(NULL, 0, &managed), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(managed);
  assert_int_equal(accrt_dlpack_export(&tensor, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  tensor.dtype = 77;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_ERROR_UNSUPPORTED);
  tensor.dtype = ACCRT_DTYPE_F32;
  tensor.shape = too_many;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_ERROR_OUT_OF_RANGE);
  tensor.shape = shape;
  tensor.offset_bytes = 4;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_ERROR_OUT_OF_RANGE);
  tensor.offset_bytes = 0;
  tensor.strides = back;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_ERROR_OUT_OF_RANGE);
  tensor.offset_bytes = 60;
  assert_int_equal(accrt_dlpack_export(&tensor, 0, &managed), ACCRT_OK);
  accrt_buffer_release(buffer); /* the export keeps it */
  assert_int_equal(managed->major, 1);
  managed->deleter(managed);
}

/* ---- Before DLPack 1.0 ---- */

typedef struct old_producer {
  accrt_dl_unversioned_t managed;
  int64_t shape[2];
  float data[15];
  atomic_int deleted;
} old_producer_t;

static void delete_old_producer(accrt_dl_unversioned_t* managed) {
  atomic_fetch_add(&((old_producer_t*)managed->manager_context)->deleted, 1);
}

static void test_unversioned(void** state) {
  (void)state;
  old_producer_t producer = {.shape = {3, 5}};
  producer.managed = (accrt_dl_unversioned_t){.tensor = {.data = producer.data,
                                                         .device_type = ACCRT_DL_CPU,
                                                         .ndim = 2,
                                                         .dtype = {ACCRT_DL_FLOAT, 32, 1},
                                                         .shape = producer.shape},
                                              .manager_context = &producer,
                                              .deleter = delete_old_producer};
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  assert_int_equal(
      accrt_dlpack_import_unversioned(world.device, &producer.managed, &tensor, shape, NULL),
      ACCRT_ERROR_INVALID_ARGUMENT);
  producer.managed.tensor.ndim = 9;
  assert_int_equal(
      accrt_dlpack_import_unversioned(world.device, &producer.managed, &tensor, shape, strides),
      ACCRT_ERROR_UNSUPPORTED);
  assert_null(tensor.buffer);
  producer.managed.tensor.ndim = 2;
  assert_int_equal(
      accrt_dlpack_import_unversioned(world.device, &producer.managed, &tensor, shape, strides),
      ACCRT_OK);
  assert_int_equal(tensor.rank, 2);
  assert_int_equal(strides[0], 5);
  accrt_dl_unversioned_t* exported;
  assert_int_equal(accrt_dlpack_export_unversioned(&tensor, &exported), ACCRT_OK);
  accrt_dl_unversioned_t* old = exported;
  assert_ptr_equal(old->tensor.data, producer.data);
  assert_int_equal(old->tensor.shape[1], 5);
  accrt_buffer_release(tensor.buffer);
  assert_int_equal(atomic_load(&producer.deleted), 0);
  old->deleter(old);
  assert_int_equal(atomic_load(&producer.deleted), 1);
  assert_int_equal(accrt_dlpack_export_unversioned(NULL, &exported), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(exported);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_import, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_import_strided, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_import_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_import_of_pairs, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_deleter_waits_for_the_last_use, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_round_trip_of_types, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_export_without_elements, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_memory_of_the_device, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_export_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_unversioned, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
