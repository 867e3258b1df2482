/* tests/fakecuda/selftest.c - what the stand-in promises beyond the driver's own rules: work is late and comes in other orders, the
 * host cannot touch device memory, misuse is seen, faults come when they are asked for.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cuda.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fakecuda.h"

static CUcontext context;

static int set_up(void** state) {
  (void)state;
  assert_int_equal(cuInit(0), CUDA_SUCCESS);
  assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  assert_int_equal(cuCtxSetCurrent(context), CUDA_SUCCESS);
  return 0;
}

static int tear_down(void** state) {
  (void)state;
  assert_int_equal(fakecuda_control("reset"), 0);
  assert_int_equal(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  return 0;
}

static CUstream stream_of(void) {
  CUstream stream = NULL;
  assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  return stream;
}

static CUdeviceptr memory_of(size_t size_bytes) {
  CUdeviceptr memory = 0;
  assert_int_equal(cuMemAlloc(&memory, size_bytes), CUDA_SUCCESS);
  return memory;
}

/* How many steps of `count` had not run when their call returned. */
static uint32_t count_late(CUstream stream, CUdeviceptr memory, uint32_t count) {
  uint32_t late = 0;
  for (uint32_t i = 0; i < count; ++i) {
    assert_int_equal(cuMemsetD32Async(memory, i, 1, stream), CUDA_SUCCESS);
    late += cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    assert_int_equal(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  return late;
}

static void test_work_is_late(void** state) {
  (void)state;
  CUstream stream = stream_of();
  CUdeviceptr memory = memory_of(64);
  assert_int_equal(fakecuda_control("delay_us=500"), 0);
  assert_true(count_late(stream, memory, 100) > 10);
  assert_int_equal(fakecuda_control("delay_us=50"), 0);
  assert_int_equal(cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
}

static void CUDA_CB set_after_a_while(void* word) {
  const struct timespec pause = {0, 20000000};
  nanosleep(&pause, NULL);
  atomic_store((atomic_int*)word, 1);
}

/* As the real one: cuStreamDestroy returns at once, and the context is not at rest before the stream's work is done. */
static void test_work_outlives_its_stream(void** state) {
  (void)state;
  static atomic_int done[2];
  for (int i = 0; i < 2; ++i) {
    CUstream stream = stream_of();
    assert_int_equal(cuLaunchHostFunc(stream, set_after_a_while, (void*)&done[i]), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
  assert_int_equal(atomic_load(&done[0]), 1);
  assert_int_equal(atomic_load(&done[1]), 1);
}

/* Two streams that nothing orders: what the last of both writes must not always be the same. */
static void test_order_is_not_the_calls(void** state) {
  (void)state;
  CUstream streams[2] = {stream_of(), stream_of()};
  CUdeviceptr memory = memory_of(64);
  uint32_t first_won = 0;
  for (int round = 0; round < 200; ++round) {
    uint32_t word = 9;
    assert_int_equal(cuMemsetD32Async(memory, 0, 1, streams[0]), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD32Async(memory, 1, 1, streams[1]), CUDA_SUCCESS);
    assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoH(&word, memory, 4), CUDA_SUCCESS);
    first_won += word == 0;
  }
  assert_true(first_won > 5 && first_won < 195);
  for (int i = 0; i < 2; ++i)
    assert_int_equal(cuStreamDestroy(streams[i]), CUDA_SUCCESS);
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
}

static void test_host_cannot_touch_device_memory(void** state) {
  (void)state;
  CUdeviceptr memory = memory_of(64);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*(volatile char*)(uintptr_t)memory == 0 ? 1 : 2);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
#if !defined(__SANITIZE_ADDRESS__)
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#else
  assert_true(!WIFEXITED(status) || (WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 2));
#endif
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
}

static void test_memory_is_poisoned(void** state) {
  (void)state;
  CUdeviceptr memory = memory_of(1000);
  unsigned char bytes[1000] = {0};
  assert_int_equal(cuMemcpyDtoH(bytes, memory, sizeof bytes), CUDA_SUCCESS);
  assert_true(bytes[0] == 0xC3 && bytes[999] == 0xC3);
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
}

/* Addresses are not used again, so what went stays gone. */
static void test_use_after_free(void** state) {
  (void)state;
  CUdeviceptr memory = memory_of(4096);
  CUdeviceptr later = 0;
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
  later = memory_of(4096);
  assert_true(later != memory);
  assert_int_equal(cuMemsetD8(memory, 0, 4), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuMemFree(later), CUDA_SUCCESS);
}

static void test_destroyed_handles(void** state) {
  (void)state;
  const uint64_t before = fakecuda_complaints();
  CUstream stream = stream_of();
  CUevent event = NULL;
  assert_int_equal(cuEventCreate(&event, 0), CUDA_SUCCESS);
  assert_int_equal(cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(cuEventDestroy(event), CUDA_SUCCESS);
  assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(fakecuda_complaints(), before + 2);
}

static void test_faults_on_demand(void** state) {
  (void)state;
  CUdeviceptr memory = 0;
  assert_int_equal(fakecuda_control("nonsense=1"), -1);
  assert_int_equal(fakecuda_control("fail=cuMemAlloc"), -1);
  const uint64_t before = fakecuda_count("cuMemAlloc");
  assert_int_equal(fakecuda_control("fail=cuMemAlloc:2=2,cuMemFree:1=999"), 0);
  memory = memory_of(64);
  assert_int_equal(cuMemAlloc(&memory, 64), CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(cuMemFree(memory), CUDA_ERROR_UNKNOWN);
  assert_int_equal(cuMemFree(memory), CUDA_SUCCESS);
  assert_int_equal(fakecuda_count("cuMemAlloc"), before + 2);
  assert_int_equal(fakecuda_control("fail=cuMemAlloc:1+=2"), 0);
  for (int i = 0; i < 3; ++i)
    assert_int_equal(cuMemAlloc(&memory, 64), CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(fakecuda_control("reset"), 0);
  assert_int_equal(cuMemFree(memory_of(64)), CUDA_SUCCESS);
}

/* The context stays lost for everybody until it goes. */
static void test_asynchronous_fault(void** state) {
  (void)state;
  CUstream stream = stream_of();
  CUdeviceptr memory = memory_of(64);
  assert_int_equal(fakecuda_control("async=2:700"), 0);
  for (int i = 0; i < 3; ++i)
    (void)cuMemsetD8Async(memory, 1, 4, stream);
  assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(cuMemsetD8Async(memory, 1, 4, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(cuMemAlloc(&memory, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void test_child_of_a_fork(void** state) {
  (void)state;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    int count = 0;
    _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_work_is_late, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_work_outlives_its_stream, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_order_is_not_the_calls, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_host_cannot_touch_device_memory, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_memory_is_poisoned, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_use_after_free, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_destroyed_handles, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_faults_on_demand, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_asynchronous_fault, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_child_of_a_fork, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
