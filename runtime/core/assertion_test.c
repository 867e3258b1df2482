/* Assertions and the order of locks, whatever the build: assertion.c is compiled into this test
 * with assertions on. What fails does so in a child process. */
#ifdef ACCRT_ASSERTIONS
#undef ACCRT_ASSERTIONS
#endif
#define ACCRT_ASSERTIONS 1

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/core/assertion.c"
#include "runtime/core/sync.h"
#include "tests/aborts.h"

static accrt_mutex_t stream, other_stream, pool;
static accrt_monitor_t staging;

static int set_up(void** state) {
  (void)state;
  accrt_mutex_init(&stream, ACCRT_LOCK_STREAM);
  accrt_mutex_init(&other_stream, ACCRT_LOCK_STREAM);
  accrt_mutex_init(&pool, ACCRT_LOCK_POOL);
  accrt_monitor_init(&staging, ACCRT_LOCK_STAGING);
  return 0;
}

static void in_order(void) {
  accrt_mutex_lock(&stream);
  accrt_monitor_lock(&staging);
  accrt_mutex_lock(&pool);
  ACCRT_ASSERT_HELD(&stream);
  /* Not in the order in which they were taken. */
  accrt_mutex_unlock(&stream);
  ACCRT_ASSERT_HELD(&staging);
  ACCRT_ASSERT_HELD(&pool);
  accrt_mutex_unlock(&pool);
  accrt_monitor_unlock(&staging);
  accrt_mutex_lock(&stream);
  accrt_mutex_unlock(&stream);
}
static void against_order(void) {
  accrt_mutex_lock(&pool);
  accrt_mutex_lock(&stream);
}
static void monitor_against_order(void) {
  accrt_mutex_lock(&pool);
  accrt_monitor_lock(&staging);
}
static void same_class(void) {
  accrt_mutex_lock(&stream);
  accrt_mutex_lock(&other_stream);
}
/* A try cannot wait, so it may be out of order. A lock that is taken after it can wait, so it must
 * follow the order. */
static void after_a_try(void) {
  if (accrt_mutex_try_lock(&pool))
    accrt_mutex_lock(&stream);
}
static void tried_against_order(void) {
  accrt_mutex_lock(&pool);
  if (accrt_mutex_try_lock(&stream))
    accrt_mutex_unlock(&stream);
  accrt_mutex_unlock(&pool);
}
static void not_held(void) {
  accrt_mutex_lock(&stream);
  ACCRT_ASSERT_HELD(&pool);
}
static void* hold_pool(void* user) {
  accrt_mutex_lock(&pool);
  return user;
}
static void held_by_another_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, hold_pool, NULL) == 0)
    (void)pthread_join(thread, NULL);
  ACCRT_ASSERT_HELD(&pool);
}
static void unlocked_twice(void) {
  accrt_mutex_lock(&pool);
  accrt_mutex_unlock(&pool);
  accrt_mutex_unlock(&pool);
}
static void without_class(void) {
  accrt_mutex_t zeroed = {0};
  accrt_mutex_lock(&zeroed);
}
static void broken(void) {
  const int two = 2;
  ACCRT_ASSERT(two == 3);
}

static void test_what_keeps_the_order_passes(void** state) {
  (void)state;
  char text[512];
  assert_false(aborts(in_order, text, sizeof text));
  assert_string_equal(text, "");
  assert_false(aborts(tried_against_order, text, sizeof text));
}

static void test_a_wrong_order_is_told_with_both_names(void** state) {
  (void)state;
  char text[512];
  assert_true(aborts(against_order, text, sizeof text));
  assert_non_null(strstr(text, "lock order: 'a stream'"));
  assert_non_null(strstr(text, "while 'a pool'"));
  assert_true(aborts(monitor_against_order, text, sizeof text));
  assert_non_null(strstr(text, "'the staging ring'"));
  assert_true(aborts(same_class, text, sizeof text));
  assert_true(aborts(after_a_try, text, sizeof text));
}

static void test_a_lock_that_is_not_held_is_told(void** state) {
  (void)state;
  char text[512];
  assert_true(aborts(not_held, text, sizeof text));
  assert_non_null(strstr(text, "&pool is held"));
  assert_true(aborts(held_by_another_thread, text, sizeof text));
  assert_true(aborts(unlocked_twice, text, sizeof text));
  assert_true(aborts(without_class, text, sizeof text));
}

static void test_a_failed_assertion_says_what_and_where(void** state) {
  (void)state;
  char text[512];
  assert_true(aborts(broken, text, sizeof text));
  assert_non_null(strstr(text, "two == 3"));
  assert_non_null(strstr(text, "assertion_test.c:"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_what_keeps_the_order_passes, set_up),
      cmocka_unit_test_setup(test_a_wrong_order_is_told_with_both_names, set_up),
      cmocka_unit_test_setup(test_a_lock_that_is_not_held_is_told, set_up),
      cmocka_unit_test_setup(test_a_failed_assertion_says_what_and_where, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
