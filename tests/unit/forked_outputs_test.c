/* In a forked child, functions that make something set their output to NULL before they
 * refuse. Public headers only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"

#define CHILD_LIMIT_S 20
/* Something that is not NULL, and was there before. */
#define STALE(type) ((type*)(uintptr_t)64)
/* A child ends with the number of the line that failed, modulo 251, plus 1. */
#define CHILD_MAKES_NOTHING(type, ...)                                                             \
  do {                                                                                             \
    type* out = STALE(type);                                                                       \
    if ((__VA_ARGS__) != ACCRT_ERROR_FORKED || out != NULL)                                        \
      _exit(__LINE__ % 251 + 1);                                                                   \
  } while (0)

static void makers(void** state) {
  (void)state;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_instance_create(NULL, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(instance, "host", &device), ACCRT_OK);
  assert_int_equal(
      accrt_bundle_open_path(instance, "tests/golden/0.1/everything.accx", NULL, &bundle),
      ACCRT_OK);
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S);
    /* None of these looks at its object: the child has no use for any. */
    accrt_program_t* program = STALE(accrt_program_t);
    accrt_session_t* session = STALE(accrt_session_t);
    CHILD_MAKES_NOTHING(accrt_instance_t, accrt_instance_create(NULL, &out));
    CHILD_MAKES_NOTHING(accrt_device_t, accrt_instance_device(instance, 0, &out));
    CHILD_MAKES_NOTHING(accrt_pool_t, accrt_pool_create(device, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_stream_t, accrt_stream_create(device, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_event_t, accrt_event_create(device, 0, &out));
    CHILD_MAKES_NOTHING(accrt_semaphore_t, accrt_semaphore_create(instance, 0, &out));
    CHILD_MAKES_NOTHING(accrt_commands_t, accrt_commands_create(device, 0, &out));
    CHILD_MAKES_NOTHING(accrt_bundle_t, accrt_bundle_open_fd(instance, 0, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_kernel_pack_t, accrt_kernel_pack_open(instance, "x", &out));
    CHILD_MAKES_NOTHING(accrt_program_t, accrt_program_create(device, bundle, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_session_t, accrt_session_create(program, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_session_t, accrt_session_clone(session, NULL, &out));
    CHILD_MAKES_NOTHING(accrt_call_t, accrt_call_create(session, "main", &out));
    _exit(0);
  }
  int status = 0;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail_msg("the child's status is 0x%x", (unsigned)status);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(makers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
