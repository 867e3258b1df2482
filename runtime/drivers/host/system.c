/* runtime/drivers/host/system.c - what the host driver needs of the operating system: stack bounds,
 * usable processors. It may not know devices or queues.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/core/safe_open.h"
#include "runtime/drivers/host/host.h"

/* Beyond what a kernel is promised: the frames of this driver between its entry point and the
 * kernel. */
#define DRIVER_STACK_BYTES (16u * 1024u)

/* Lowest and highest address of this thread's stack; both 0 when they are not known. */
static void stack_bounds(uintptr_t* out_low, uintptr_t* out_high) {
  *out_low = *out_high = 0;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0)
    return;
  void* base = NULL;
  size_t size_bytes = 0;
  if (pthread_attr_getstack(&attributes, &base, &size_bytes) == 0) {
    *out_low = (uintptr_t)base;
    *out_high = *out_low + size_bytes;
  }
  pthread_attr_destroy(&attributes);
}

bool accrt_host_stack_suffices(void) {
  /* Asked once per thread: the answer costs system calls. Initial-exec: the first touch may not
   * allocate. */
  static __thread uintptr_t low __attribute__((tls_model("initial-exec")));
  static __thread uintptr_t high __attribute__((tls_model("initial-exec")));
  if (high == 0) {
    stack_bounds(&low, &high);
    if (high == 0)
      high = 1;
  }
  const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  /* Elsewhere is another stack (a coroutine's), whose size is not known. */
  if (here < low || here >= high)
    return false;
  return here - low >= ACCRT_KERNEL_STACK_BYTES + DRIVER_STACK_BYTES;
}

/* Processors that the control group's quota is worth, rounded up; UINT32_MAX without one. */
static uint32_t quota_cores(void) {
  char text[64];
  const int fd = accrt_open_at(AT_FDCWD, "/sys/fs/cgroup/cpu.max", O_RDONLY, 0);
  if (fd < 0)
    return UINT32_MAX;
  const ssize_t size = pread(fd, text, sizeof text - 1, 0);
  close(fd);
  if (size < 0)
    return UINT32_MAX;
  text[size] = '\0';
  char* rest;
  const uint64_t quota = strtoull(text, &rest, 10); /* "max 100000" gives 0 */
  const uint64_t period = strtoull(rest, NULL, 10);
  if (quota == 0 || period == 0)
    return UINT32_MAX;
  const uint64_t cores = quota / period + (quota % period != 0);
  return cores > HOST_MAX_THREADS ? HOST_MAX_THREADS : (uint32_t)cores;
}

uint32_t accrt_host_usable_cores(void) {
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  const long count = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
  const uint32_t cores = count < 1 ? 1 : (uint32_t)count;
  const uint32_t quota = quota_cores();
  return cores < quota ? cores : quota;
}

accrt_status_t accrt_host_fail(const accrt_driver_environment_t* environment, accrt_status_t status,
                               int32_t driver_code, const char* driver_name, const char* operation,
                               const char* format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return environment->fail(environment, status, driver_code, driver_name, operation, message);
}
