/* Error records: contents, threads, truncation; and recording never allocates. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"

static accrt_error_t last(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error;
}

static accrt_status_t failing_function(int value) {
  return ACCRT_FAIL(TIMEOUT, "value %d\nis too late", value);
}

/* An internal function with the prefix of public ones. */
static accrt_status_t accrt_of_the_library(void) {
  return ACCRT_FAIL(TIMEOUT, "late");
}

/* A record names the public function that was called, whatever function failed: callers do not know
 * the others. */
static void test_operations(void** state) {
  (void)state;
  accrt_error_enter("accrt_entered");
  (void)failing_function(1);
  assert_string_equal(last().operation, "accrt_entered");
  (void)accrt_of_the_library();
  assert_string_equal(last().operation, "accrt_entered");
  (void)ACCRT_FAIL_ERRNO(IO, ENOENT, "gone");
  assert_string_equal(last().operation, "accrt_entered");
  assert_string_equal(last().driver_name, "ENOENT");
  accrt_error_enter(NULL);
  (void)failing_function(1);
  assert_string_equal(last().operation, "");
}

static void test_record(void** state) {
  (void)state;
  accrt_clear_error();
  accrt_error_enter("accrt_entered");
  assert_int_equal(last().status, ACCRT_OK);
  assert_int_equal(failing_function(7), ACCRT_ERROR_TIMEOUT);
  const accrt_error_t error = last();
  assert_int_equal(error.status, ACCRT_ERROR_TIMEOUT);
  assert_string_equal(error.message, "value 7 is too late"); /* one line */
  assert_string_equal(error.operation, "accrt_entered");
  assert_string_equal(error.source_file, ""); /* tests have no number */
  assert_true(error.source_line > 0);
  assert_int_equal(error.struct_size, sizeof error);
  accrt_clear_error();
  assert_string_equal(last().message, "");
}

/* Names and messages may come from drivers, kernels and files. */
static void test_control_characters(void** state) {
  (void)state;
  accrt_error_t error;
  (void)ACCRT_FAIL(TIMEOUT, "a\r\nb\x1b[31mc\x7f\td\xc2\x9b"
                            "e \xc3\xa9 \xc2\xa0 \xc2");
  assert_string_equal(last().message, "a  b [31mc  d  e \xc3\xa9 \xc2\xa0 \xc2");
  accrt_error_prefix("x\x1by");
  assert_int_equal(strncmp(last().message, "x y: a  b", 9), 0);
  (void)accrt_error_record_driver(ACCRT_ERROR_DRIVER, 1, "D\n", "o\x01p", "f\x02", 1, "m");
  assert_string_equal(last().driver_name, "D ");
  assert_string_equal(last().operation, "o p");
  assert_string_equal(last().source_file, "f ");
  /* Texts without an end get one. */
  memset(&error, 7, sizeof error);
  memset(error.message, 'm', sizeof error.message);
  accrt_error_clean(&error);
  assert_int_equal(strlen(error.message), sizeof error.message - 1);
  assert_int_equal(strspn(error.operation, " "), sizeof error.operation - 1);
}

static void test_system_errors(void** state) {
  (void)state;
  assert_int_equal(ACCRT_FAIL_ERRNO(IO, ENOENT, "%s", "gone"), ACCRT_ERROR_IO);
  assert_int_equal(last().driver_code, ENOENT);
  assert_string_equal(last().driver_name, "ENOENT");
  assert_string_equal(accrt_errno_name(-5), "errno");
  int named = 0;
  for (int number = 0; number < 300; ++number) {
    const char* name = accrt_errno_name(number);
    if (strcmp(name, "errno") == 0)
      continue;
    assert_string_equal(name, strerrorname_np(number));
    ++named;
  }
  assert_true(named >= 60);
  for (int number = 1; number <= 40; ++number)
    assert_string_not_equal(accrt_errno_name(number), "errno");
}

static void test_truncation(void** state) {
  (void)state;
  char longer[2000];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  (void)accrt_error_record_driver(ACCRT_ERROR_DRIVER, 3, longer, longer, longer, 9, "%s", longer);
  const accrt_error_t error = last();
  assert_int_equal(strlen(error.message), sizeof error.message - 1);
  assert_int_equal(strlen(error.operation), sizeof error.operation - 1);
  assert_int_equal(strlen(error.driver_name), sizeof error.driver_name - 1);
  assert_int_equal(strlen(error.source_file), sizeof error.source_file - 1);
  accrt_error_prefix("%s", "in front");
  assert_int_equal(strncmp(last().message, "in front: xxx", 13), 0);
  accrt_error_prefix("%s", longer); /* no room: the message is worth more than its prefix */
  assert_int_equal(strncmp(last().message, "in front: xxx", 13), 0);
}

static void test_prefix_and_restore(void** state) {
  (void)state;
  (void)ACCRT_FAIL(IO, "inner");
  const accrt_error_t kept = last();
  accrt_error_prefix("bundle '%s'", "a.accx");
  assert_string_equal(last().message, "bundle 'a.accx': inner");
  assert_int_equal(accrt_error_restore(&kept), ACCRT_ERROR_IO);
  assert_string_equal(last().message, "inner");
  /* A message made of the record that it replaces. */
  (void)ACCRT_FAIL(DRIVER, "again: %s", accrt_error_current()->message);
  assert_string_equal(last().message, "again: inner");
}

/* A user or a driver may give a status that no list has. */
static void test_foreign_statuses(void** state) {
  (void)state;
  const accrt_status_t foreign[] = {ACCRT_ERROR_IO, 1024, 5000, INT32_MAX, -1, INT32_MIN};
  for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; ++i) {
    assert_int_equal(ACCRT_FAIL_STATUS(foreign[i], "foreign"), foreign[i]);
    assert_int_equal(last().status, foreign[i]);
  }
}

/* A place has the status, the line, and the number of a file of the library. */
static void test_places(void** state) {
  (void)state;
  char file[sizeof(((accrt_error_t*)NULL)->source_file)];
  accrt_error_origin_t origin = {0};
  uint32_t count = 0;
  bool own = false;
  for (uint32_t number = 1; number < 1024; ++number) {
    accrt_error_origin_at((uint32_t)ACCRT_ERROR_BUDGET << 22 | number << 12 | 4095, &origin, file);
    assert_int_equal(origin.status, ACCRT_ERROR_BUDGET);
    assert_int_equal(origin.line, 4095);
    if (file[0] == '\0')
      break;
    assert_non_null(strchr(file, '/'));
    assert_string_equal(file + strlen(file) - 2, ".c");
    own = own || strcmp(file, "runtime/core/error.c") == 0;
    ++count;
  }
  assert_true(own);
  assert_true(count > 100);
  (void)accrt_fail_forked();
  assert_string_equal(last().source_file, "runtime/core/fork.c");
  assert_int_equal(last().status, ACCRT_ERROR_FORKED);
}

static void* other_thread(void* unused) {
  (void)unused;
  const accrt_status_t before = last().status;
  (void)ACCRT_FAIL(ALIASED, "mine");
  return (void*)(intptr_t)before;
}

static void test_threads_have_their_own(void** state) {
  (void)state;
  (void)ACCRT_FAIL(IO, "of the main thread");
  pthread_t thread;
  void* before;
  assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
  assert_int_equal(pthread_join(thread, &before), 0);
  assert_null(before);
  assert_string_equal(last().message, "of the main thread");
}

static void test_reading_the_record(void** state) {
  (void)state;
  (void)ACCRT_FAIL(IO, "kept");
  assert_int_equal(accrt_last_error(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_error_t error = ACCRT_ERROR_INIT;
  error.struct_size = 4;
  assert_int_equal(accrt_last_error(&error), ACCRT_ERROR_INVALID_ARGUMENT);
  error.struct_size = 5000;
  assert_int_equal(accrt_last_error(&error), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(last().message, "kept"); /* a failed look-up does not replace it */
  /* A caller of an older version gets the fields that its struct has. */
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  error.struct_size = offsetof(accrt_error_t, submission);
  error.submission = 77;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_IO);
  assert_int_equal(error.submission, 77);
  assert_int_equal(error.struct_size, offsetof(accrt_error_t, submission));
}

static void test_names(void** state) {
  (void)state;
  assert_string_equal(accrt_status_name(ACCRT_OK), "ACCRT_OK");
  assert_string_equal(accrt_status_name(-1), "ACCRT_ERROR_UNKNOWN");
  assert_string_equal(accrt_status_name(9999), "ACCRT_ERROR_UNKNOWN");
  assert_true(strlen(accrt_status_text(9999)) > 0);
  assert_true(strlen(accrt_status_text(ACCRT_OK)) > 0);
  int count = 0;
#define CHECK(name, number, text)                                                                  \
  assert_int_equal(ACCRT_ERROR_##name, number);                                                    \
  assert_int_equal(number, ++count); /* frozen, dense, in order */                                 \
  assert_string_equal(accrt_status_name(number), "ACCRT_ERROR_" #name);                            \
  assert_string_equal(accrt_status_text(number), text);
  ACCRT_STATUS_LIST(CHECK)
#undef CHECK
}

/* ---- Nothing is allocated ---- */

/* The C library's allocator is counted by replacing it for this program. */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define SANITIZED 1
#endif

static _Atomic int counting;
static _Atomic int allocations;
#ifndef SANITIZED
extern void* __libc_malloc(size_t size_bytes);
void* malloc(size_t size_bytes) {
  if (counting)
    allocations += 1;
  return __libc_malloc(size_bytes);
}
#endif

/* The first records of a thread. */
static void* first_touch(void* unused) {
  (void)unused;
  counting = 1;
  for (int i = 0; i < 10; ++i)
    (void)failing_function(i);
  accrt_error_prefix("%d", 1);
  counting = 0;
  return NULL;
}

static void test_recording_does_not_allocate(void** state) {
  (void)state;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, first_touch, NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(allocations, 0);
#ifdef SANITIZED
  skip(); /* a sanitizer owns the allocator: nothing was counted */
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_operations),
      cmocka_unit_test(test_record),
      cmocka_unit_test(test_foreign_statuses),
      cmocka_unit_test(test_places),
      cmocka_unit_test(test_control_characters),
      cmocka_unit_test(test_system_errors),
      cmocka_unit_test(test_truncation),
      cmocka_unit_test(test_prefix_and_restore),
      cmocka_unit_test(test_threads_have_their_own),
      cmocka_unit_test(test_reading_the_record),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_recording_does_not_allocate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
