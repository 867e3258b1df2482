/* The mutex under contention, futexes, deadlines. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <unistd.h>

#include "runtime/core/sync.h"

#define THREADS 4
#define ROUNDS 20000

typedef struct shared {
  accrt_mutex_t mutex;
  /* guarded by the mutex: a race would be seen by a sanitizer, a lost update by the count */
  long plain;
} shared_t;

static void* count(void* argument) {
  shared_t* shared = argument;
  for (int i = 0; i < ROUNDS; ++i) {
    accrt_mutex_lock(&shared->mutex);
    shared->plain += 1;
    accrt_mutex_unlock(&shared->mutex);
  }
  return NULL;
}

static void test_mutex(void** state) {
  (void)state;
  shared_t shared = {.plain = 0};
  pthread_t threads[THREADS];
  accrt_mutex_init(&shared.mutex, ACCRT_LOCK_STREAM);
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_create(&threads[i], NULL, count, &shared), 0);
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(shared.plain, (long)THREADS * ROUNDS);
}

static void* hold_for_a_while(void* argument) {
  shared_t* shared = argument;
  accrt_mutex_lock(&shared->mutex);
  shared->plain = 1;
  (void)usleep(20000);
  shared->plain = 2;
  accrt_mutex_unlock(&shared->mutex);
  return NULL;
}

/* Long enough for the other to sleep in the kernel. */
static void test_mutex_sleeps_and_wakes(void** state) {
  (void)state;
  shared_t shared = {.plain = 0};
  accrt_mutex_init(&shared.mutex, ACCRT_LOCK_STREAM);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_create(&threads[i], NULL, hold_for_a_while, &shared), 0);
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  accrt_mutex_lock(&shared.mutex);
  assert_int_equal(shared.plain, 2);
  accrt_mutex_unlock(&shared.mutex);
}

static void test_futex_timeout(void** state) {
  (void)state;
  atomic_uint word;
  atomic_init(&word, 3);
  const uint64_t begin_ns = accrt_clock_ns();
  accrt_futex_wait(&word, 4, UINT64_MAX); /* another value: returns at once */
  accrt_futex_wait(&word, 3, 2000000);
  assert_true(accrt_clock_ns() - begin_ns >= 2000000);
  accrt_futex_wake(&word, 1);
}

static void test_deadlines(void** state) {
  (void)state;
  assert_true(accrt_deadline_ns(UINT64_MAX) == UINT64_MAX);
  assert_true(accrt_deadline_ns(UINT64_MAX - 1) ==
              UINT64_MAX); /* so far away that it means never */
  assert_true(accrt_deadline_left_ns(UINT64_MAX) == UINT64_MAX);
  assert_int_equal(accrt_deadline_left_ns(0), 0);
  const uint64_t left_ns = accrt_deadline_left_ns(accrt_deadline_ns(UINT64_C(60000000000)));
  assert_true(left_ns > UINT64_C(50000000000) && left_ns <= UINT64_C(60000000000));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_mutex),
      cmocka_unit_test(test_mutex_sleeps_and_wakes),
      cmocka_unit_test(test_futex_timeout),
      cmocka_unit_test(test_deadlines),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
