/* runtime/memory/pool_test.h - what the tests of pools share: a world, pools and buffers. */
#ifndef ACCRT_RUNTIME_MEMORY_POOL_TEST_H_
#define ACCRT_RUNTIME_MEMORY_POOL_TEST_H_

#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>
#include <unistd.h>

#include "runtime/memory/pool.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static inline void open_world(int mode) {
  assert_int_equal(test_world_open(&world, mode), ACCRT_OK);
}
static inline void close_world(void) {
  assert_int_equal(test_world_close(&world), 0);
}

/* Pools that share mappings also where the build gives every allocation its own. */
static inline accrt_pool_t* make_pool(uint32_t one_mapping, uint64_t limit_bytes,
                                      const char* label) {
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.kind = ACCRT_MEMORY_DEVICE;
  options.limit_bytes = limit_bytes;
  options.label = label;
  const accrt_pool_traits_t traits = {.one_mapping = one_mapping};
  accrt_pool_t* pool;
  assert_int_equal(accrt_pool_make(world.device, &options, &traits, &pool), ACCRT_OK);
  (void)accrt_instance_retain(world.instance);
  return pool;
}

static inline accrt_buffer_t* make_buffer(accrt_pool_t* pool, uint64_t size_bytes,
                                          const char* label) {
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.label = label;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, &options, &buffer), ACCRT_OK);
  return buffer;
}

static inline accrt_pool_statistics_t statistics_of(accrt_pool_t* pool) {
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  assert_int_equal(accrt_pool_statistics(pool, &statistics), ACCRT_OK);
  assert_int_equal(statistics.used_bytes + statistics.retiring_bytes + statistics.free_bytes,
                   statistics.reserved_bytes);
  return statistics;
}

static inline void* pointer_of(accrt_buffer_t* buffer) {
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(buffer, &info), ACCRT_OK);
  return info.host_pointer;
}

#endif /* ACCRT_RUNTIME_MEMORY_POOL_TEST_H_ */
