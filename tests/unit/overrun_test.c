/* tests/unit/overrun_test.c - under the address sanitizer a write behind a buffer is seen:
 * every allocation of a pool then has a mapping of its own. In other builds there is nothing
 * to see, and the test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"

#if defined(__SANITIZE_ADDRESS__)
#define SEEN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEEN 1
#endif
#endif

#ifdef SEEN
/* A program of its own, since a forked child may not use the library: this one again, with an argument. */
static int run_self(const char* argument) {
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    (void)dup2(nowhere, STDERR_FILENO);
    execl("/proc/self/exe", "overrun_test", argument, (char*)NULL);
    _exit(99);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_write_behind_a_buffer_is_seen(void** state) {
  (void)state;
  assert_int_equal(run_self("inside"), 0);
  const int exit_code = run_self("behind");
  assert_int_not_equal(exit_code, 0);
  assert_int_not_equal(exit_code, 99);
}
#else
static void test_a_write_behind_a_buffer_is_seen(void** state) {
  (void)state;
  skip();
}
#endif

static int write_at(uint64_t offset) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  accrt_buffer_t* neighbour;
  void* memory;
  if (accrt_instance_create(NULL, &instance) ||
      accrt_instance_device_by_name(instance, "host", &device) ||
      accrt_pool_create(device, NULL, &pool) || accrt_buffer_create(pool, 4096, NULL, &buffer) ||
      accrt_buffer_create(pool, 4096, NULL, &neighbour) ||
      accrt_buffer_map(buffer, 0, 4096, &memory))
    return 98;
  ((volatile char*)memory)[offset] = 1;
  (void)accrt_buffer_unmap(buffer);
  accrt_buffer_release(neighbour);
  accrt_buffer_release(buffer);
  accrt_pool_release(pool);
  accrt_instance_release(instance);
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 1)
    return write_at(argv[1][0] == 'b' ? 4096 : 4095);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_write_behind_a_buffer_is_seen)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
