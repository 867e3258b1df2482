/* The locks of libaccrt_serve and libaccrt_http keep the order of all locks, whatever the build:
 * assertion.c is compiled into this test with assertions on. What fails does so in a child. */
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
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/assertion.c"
#include "serve/base.h"
#include "serve/lock.h"
#include "tests/aborts.h"

static accsv_lock_t submitting, server, engine, masks;
static accsv_lock_t handles = ACCSV_LOCK_STATIC(ACCRT_LOCK_SERVE_HANDLES);
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int set_up(void** state) {
  (void)state;
  const int failed = accsv_lock_init(&submitting, ACCRT_LOCK_HTTP_SUBMITTING) +
                     accsv_lock_init(&server, ACCRT_LOCK_HTTP_SERVER) +
                     accsv_lock_init(&engine, ACCRT_LOCK_SERVE_ENGINE) +
                     accsv_lock_init(&masks, ACCRT_LOCK_SERVE_MASKS);
  return failed;
}

static void in_order(void) {
  accsv_lock(&submitting);
  ACCSV_ASSERT_CALLS_OUT();
  accsv_lock(&server);
  accsv_unlock(&server);
  accsv_lock(&engine);
  const struct timespec past = {0};
  if (!accsv_wait_until(&changed, &engine, &past))
    abort();
  ACCRT_ASSERT_HELD(&engine);
  accsv_lock(&masks);
  accsv_lock(&handles);
  accsv_unlock(&handles);
  accsv_unlock(&masks);
  accsv_unlock(&engine);
  accsv_unlock(&submitting);
}
static void engine_under_masks(void) {
  accsv_lock(&masks);
  accsv_lock(&engine);
}
static void submitting_under_server(void) {
  accsv_lock(&server);
  accsv_lock(&submitting);
}
static void engine_under_handles(void) {
  accsv_lock(&handles);
  accsv_lock(&engine);
}
static void waits_without(void) {
  const struct timespec past = {0};
  (void)accsv_wait_until(&changed, &engine, &past);
}
static void calls_out_under_engine(void) {
  accsv_lock(&engine);
  ACCSV_ASSERT_CALLS_OUT();
}
static void without_class(void) {
  accsv_lock_t zeroed = {0};
  accsv_lock(&zeroed);
}

static void test_what_keeps_the_order_passes(void** state) {
  (void)state;
  char text[512];
  assert_false(aborts(in_order, text, sizeof text));
  assert_string_equal(text, "");
}

static void test_what_does_not_aborts(void** state) {
  (void)state;
  char text[512];
  assert_true(aborts(engine_under_masks, text, sizeof text));
  assert_non_null(strstr(text, "'what the threads of an engine share'"));
  assert_non_null(strstr(text, "while 'the masks of a step'"));
  assert_true(aborts(submitting_under_server, text, sizeof text));
  assert_non_null(strstr(text, "while 'an HTTP server's jobs'"));
  assert_true(aborts(engine_under_handles, text, sizeof text));
  assert_true(aborts(waits_without, text, sizeof text));
  assert_non_null(strstr(text, "lock is held"));
  assert_true(aborts(calls_out_under_engine, text, sizeof text));
  assert_non_null(strstr(text, "no lock below ACCRT_LOCK_HTTP_SUBMITTING is held"));
  assert_true(aborts(without_class, text, sizeof text));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_what_keeps_the_order_passes, set_up),
      cmocka_unit_test_setup(test_what_does_not_aborts, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
