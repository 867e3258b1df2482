/* tests/fakecuda/places.c - tensors of other libraries by where they lie: pinned memory is the host's for every device, and goes in without
 * a copy; memory of another GPU is refused by one line, at the import and at the call. Through the public API, under the stand-in.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/core/dlpack.h"
#include "stand_in.h"

#define ELEMENTS 100

typedef struct world {
  accrt_instance_t* instance;
  accrt_device_t* host;
  accrt_device_t* gpus[2];
} world_t;

static world_t world;

static int set_up_group(void** state) {
  (void)state;
  find_stand_in();
  demand("devices=2");
  return 0;
}

static int set_up(void** state) {
  (void)state;
  world.instance = instance_with("packs.path", ACCRT_TEST_DATA);
  assert_int_equal(accrt_instance_device_by_name(world.instance, "host", &world.host), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world.instance, "cuda:0", &world.gpus[0]),
                   ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world.instance, "cuda:1", &world.gpus[1]),
                   ACCRT_OK);
  return 0;
}

static int tear_down(void** state) {
  (void)state;
  accrt_instance_release(world.instance);
  assert_int_equal(atomic_load(&live_allocations), 0);
  assert_int_equal(complaints(), 0);
  return 0;
}

/* ---- A producer ---- */

typedef struct producer {
  accrt_dl_managed_t managed;
  int64_t shape[1];
  atomic_int deleted;
} producer_t;

static void delete_producer(accrt_dl_managed_t* managed) {
  atomic_fetch_add(&((producer_t*)managed->manager_context)->deleted, 1);
}

static void lend(producer_t* producer, void* data, int32_t device_type, int32_t device_id) {
  *producer = (producer_t){.shape = {ELEMENTS}};
  producer->managed = (accrt_dl_managed_t){.major = 1,
                                           .manager_context = producer,
                                           .deleter = delete_producer,
                                           .tensor = {.data = data,
                                                      .device_type = device_type,
                                                      .device_id = device_id,
                                                      .ndim = 1,
                                                      .dtype = {ACCRT_DL_FLOAT, 32, 1},
                                                      .shape = producer->shape}};
}

static int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];

static accrt_status_t take(accrt_device_t* device, producer_t* producer, accrt_tensor_t* out) {
  uint32_t read_only;
  return accrt_dlpack_import(device, &producer->managed, out, shape, strides, &read_only);
}

static accrt_buffer_t* memory(accrt_device_t* device, uint32_t kind, void** out_address) {
  accrt_pool_t* pool = NULL;
  accrt_buffer_t* buffer = NULL;
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_device_pool(device, kind, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, ELEMENTS * sizeof(float), NULL, &buffer), ACCRT_OK);
  assert_int_equal(accrt_buffer_info(buffer, &info), ACCRT_OK);
  *out_address =
      info.host_pointer != NULL ? info.host_pointer : (void*)(uintptr_t)info.device_address;
  return buffer;
}

static void said_in_one_line(const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (strstr(error.message, text) == NULL || strchr(error.message, '\n') != NULL)
    fail_msg("'%s' without '%s' in one line", error.message, text);
}

/* ---- A program ---- */

static accrt_session_t* session_on(accrt_device_t* device) {
  accrt_bundle_t* bundle = NULL;
  accrt_program_t* program = NULL;
  accrt_session_t* session = NULL;
  assert_int_equal(
      accrt_bundle_open_path(world.instance, ACCRT_TEST_DATA "/device.accx", NULL, &bundle),
      ACCRT_OK);
  assert_int_equal(accrt_program_create(device, bundle, NULL, &program), ACCRT_OK);
  assert_int_equal(accrt_session_create(program, NULL, &session), ACCRT_OK);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  return session;
}

/* y = 2 * x + 1, into memory of the host. */
static accrt_status_t affine(accrt_session_t* session, const accrt_tensor_t* x, float* y) {
  static const int64_t size = ELEMENTS;
  const accrt_tensor_t output = {.data = y, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = &size};
  accrt_call_t* call = NULL;
  accrt_status_t status = accrt_call_create(session, "affine", &call);
  if (status == ACCRT_OK)
    status = accrt_call_set_tensor(call, 0, x);
  if (status == ACCRT_OK)
    status = accrt_call_set_tensor(call, 1, &output);
  if (status == ACCRT_OK)
    status = accrt_call_run(call, PATIENCE);
  if (status != ACCRT_OK)
    said_in_one_line("");
  accrt_call_release(call);
  return status;
}

/* ---- Pinned memory ---- */

static void test_pinned_memory_goes_in_everywhere(void** state) {
  (void)state;
  accrt_device_t* const devices[] = {world.host, world.gpus[0], world.gpus[1]};
  void* address = NULL;
  accrt_buffer_t* pinned = memory(world.gpus[0], ACCRT_MEMORY_PINNED, &address);
  float* x = address;
  for (int i = 0; i < ELEMENTS; ++i)
    x[i] = (float)i;
  for (int i = 0; i < 3; ++i) {
    producer_t producer;
    accrt_tensor_t tensor;
    accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
    lend(&producer, x, ACCRT_DL_CUDA_HOST, 0);
    assert_int_equal(take(devices[i], &producer, &tensor), ACCRT_OK);
    assert_int_equal(accrt_buffer_info(tensor.buffer, &info), ACCRT_OK);
    assert_ptr_equal(info.host_pointer, x); /* in place */
    float y[ELEMENTS] = {0};
    accrt_session_t* session = session_on(devices[i]);
    assert_int_equal(affine(session, &tensor, y), ACCRT_OK);
    for (int k = 0; k < ELEMENTS; ++k)
      assert_true(y[k] == 2 * x[k] + 1);
    accrt_session_release(session);
    assert_int_equal(atomic_load(&producer.deleted), 0);
    accrt_buffer_release(tensor.buffer);
    for (int wait = 0; wait < 5000 && atomic_load(&producer.deleted) == 0; ++wait)
      (void)usleep(1000);
    assert_int_equal(atomic_load(&producer.deleted), 1);
  }
  accrt_buffer_release(pinned);
}

/* ---- Another GPU ---- */

static void test_the_import_refuses_memory_of_others(void** state) {
  (void)state;
  static const struct {
    int device; /* -1: the host */
    int32_t type, id;
    const char* text;
  } rows[] = {
      {0, ACCRT_DL_CUDA, 1, "(2, 1)"},           {1, ACCRT_DL_CUDA, 0, "(2, 0)"},
      {0, ACCRT_DL_CUDA, 7, "(2, 7)"},           {-1, ACCRT_DL_CUDA, 0, "(2, 0)"},
      {-1, ACCRT_DL_CUDA_MANAGED, 0, "(13, 0)"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    void* address = NULL;
    accrt_buffer_t* there = memory(world.gpus[rows[i].id == 1], ACCRT_MEMORY_DEVICE, &address);
    producer_t producer;
    accrt_tensor_t tensor;
    lend(&producer, address, rows[i].type, rows[i].id);
    accrt_device_t* device = rows[i].device < 0 ? world.host : world.gpus[rows[i].device];
    assert_int_equal(take(device, &producer, &tensor), ACCRT_ERROR_UNSUPPORTED);
    said_in_one_line(rows[i].text);
    assert_null(tensor.buffer);
    assert_int_equal(atomic_load(&producer.deleted), 0); /* still the caller's */
    accrt_buffer_release(there);
  }
}

static void test_a_program_refuses_memory_of_another_gpu(void** state) {
  (void)state;
  void* address = NULL;
  accrt_buffer_t* there = memory(world.gpus[1], ACCRT_MEMORY_DEVICE, &address);
  producer_t producer;
  accrt_tensor_t tensor;
  lend(&producer, address, ACCRT_DL_CUDA, 1);
  assert_int_equal(take(world.gpus[1], &producer, &tensor), ACCRT_OK);
  float y[ELEMENTS] = {0};
  accrt_session_t* session = session_on(world.gpus[0]);
  assert_int_not_equal(affine(session, &tensor, y), ACCRT_OK);
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (strstr(error.message, "cuda:1") == NULL)
    fail_msg("'%s'", error.message);
  /* And the session goes on. */
  float plain[ELEMENTS] = {4};
  const accrt_tensor_t x = {
      .data = plain, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = tensor.shape};
  assert_int_equal(affine(session, &x, y), ACCRT_OK);
  assert_true(y[0] == 9 && y[1] == 1);
  accrt_session_release(session);
  accrt_buffer_release(tensor.buffer);
  assert_int_equal(atomic_load(&producer.deleted), 1);
  accrt_buffer_release(there);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_pinned_memory_goes_in_everywhere, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_import_refuses_memory_of_others, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_program_refuses_memory_of_another_gpu, set_up,
                                      tear_down),
  };
  return cmocka_run_group_tests(tests, set_up_group, NULL);
}
