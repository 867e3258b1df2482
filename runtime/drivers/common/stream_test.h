/* runtime/drivers/common/stream_test.h - what the tests of streams share: a world, its streams
 * and semaphores, each mode of the driver. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_TEST_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_TEST_H_

#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>
#include <unistd.h>

#include "runtime/core/context.h"
#include "runtime/drivers/common/internal.h"

#define MS UINT64_C(1000000)
#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static inline accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

static inline accrt_semaphore_t* make_semaphore(uint64_t value) {
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world.instance, value, &semaphore), ACCRT_OK);
  return semaphore;
}

static inline uint64_t value_of(accrt_semaphore_t* semaphore) {
  uint64_t value;
  (void)accrt_semaphore_query(semaphore, &value);
  return value;
}

static inline void fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  const accrt_place_t place = {NULL, word, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 4, value, 4), ACCRT_OK);
}

static inline void open_world(int mode) {
  assert_int_equal(test_world_open(&world, mode), ACCRT_OK);
}

static inline void close_world(void) {
  assert_int_equal(test_world_close(&world), 0);
}

static const int modes[] = {TEST_DRIVER_SYNCHRONOUS, TEST_DRIVER_THREAD, TEST_DRIVER_CALLER};
#define FOR_MODES for (size_t mode_ = 0; mode_ < sizeof modes / sizeof *modes; ++mode_)

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_TEST_H_ */
