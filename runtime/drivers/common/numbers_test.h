/* runtime/drivers/common/numbers_test.h - what the tests on a driver with the slots of 0.2 share.
 * The order in which queues go on is chosen at random from a fixed seed. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_NUMBERS_TEST_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_NUMBERS_TEST_H_

#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

#include "runtime/drivers/common/internal.h"

#define MS UINT64_C(1000000)
#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static inline void open_world(int mode) {
  assert_int_equal(test_world_open(&world, mode), ACCRT_OK);
}

static inline void close_world(void) {
  assert_int_equal(test_world_close(&world), 0);
}

static inline accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

static inline accrt_semaphore_t* make_semaphore(void) {
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  return semaphore;
}

static inline accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static inline uint32_t* words_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 4, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

static inline accrt_status_t try_fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  const accrt_place_t place = {NULL, word, 0};
  return accrt_stream_fill(stream, &place, 4, value, 4);
}

static inline void fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  assert_int_equal(try_fill(stream, word, value), ACCRT_OK);
}

static inline void copy(accrt_stream_t* stream, uint32_t* from, uint32_t* to) {
  const accrt_place_t source = {NULL, from, 0}, target = {NULL, to, 0};
  assert_int_equal(accrt_stream_copy(stream, &source, &target, 4), ACCRT_OK);
}

static inline void run_all(void) {
  while (test_driver_step())
    continue;
}

static inline uint64_t value_of(accrt_semaphore_t* semaphore) {
  uint64_t value;
  (void)accrt_semaphore_query(semaphore, &value);
  return value;
}

static inline void assert_says(const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in '%s'", text, error.message);
}
static inline accrt_kernel_pack_t* load_module(accrt_kernel_t** out_kernel) {
  static const accrt_kernel_param_t params[] = {
      {"target", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 0, 8, 0},
      {"value", ACCRT_KERNEL_PARAM_SCALAR, 0, 0, 2, 8, 4, 0}};
  const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                         .name = "add",
                                         .params = params,
                                         .param_count = 2,
                                         .params_size_bytes = 16,
                                         .block = {32, 1, 1}};
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.image = "test module";
  options.size_bytes = 11;
  options.name = "adder";
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "add", out_kernel), ACCRT_OK);
  return pack;
}

static inline accrt_launch_t* make_launch(accrt_kernel_t* kernel, accrt_buffer_t* buffer,
                                          uint32_t value) {
  accrt_launch_t* launch;
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_OK);
  const accrt_kernel_argument_t target = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                          .binding = ACCRT_BINDING_NONE,
                                          .buffer = buffer,
                                          .size_bytes = 4};
  const accrt_kernel_argument_t scalar = {
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = value};
  assert_int_equal(accrt_launch_set(launch, 0, &target, sizeof target), ACCRT_OK);
  assert_int_equal(accrt_launch_set(launch, 1, &scalar, sizeof scalar), ACCRT_OK);
  return launch;
}

static const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};

typedef struct heard {
  atomic_int count;
  atomic_int status;
  uint32_t* word;
  uint32_t seen;
} heard_t;

static inline void hear(void* user, accrt_status_t status) {
  heard_t* heard = user;
  heard->seen = *heard->word;
  atomic_store(&heard->status, status);
  atomic_fetch_add(&heard->count, 1);
}

static inline void wait_for(atomic_int* count, int wanted) {
  for (int i = 0; i < 5000 && atomic_load(count) < wanted; ++i)
    (void)usleep(1000);
  assert_int_equal(atomic_load(count), wanted);
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_NUMBERS_TEST_H_ */
