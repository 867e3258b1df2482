/* runtime/program/threads_test.c - one program, many threads: sessions run at once, weights are
 * swapped meanwhile, every call sees one complete set, and asynchronous calls in a steady state
 * allocate nothing. */
#include "runtime/program/testing.h"

#include <pthread.h>

#define F32 ACCRT_DTYPE_F32
#define THREADS 4
#define ROUNDS 200

typedef struct job {
  fixture_t* f;
  int number;
  atomic_int* stop;
  int64_t failures; /* counted, because cmocka's asserts work only on the main thread */
  int64_t runs;
} job_t;

#define EXPECT(job, condition) ((job)->failures += !(condition))

/* Checks a sum of weights: all must be from one set, no matter which. */
static void* run_and_compare(void* argument) {
  job_t* job = argument;
  accrt_session_t* session = NULL;
  accrt_call_t* call = NULL;
  _Alignas(16) float y[24];
  EXPECT(job, accrt_session_create(job->f->program, NULL, &session) == ACCRT_OK);
  EXPECT(job, accrt_call_create(session, "weights", &call) == ACCRT_OK);
  for (uint32_t i = 0; i < 3; ++i) {
    const int64_t n = 8;
    const accrt_tensor_t tensor = tensor_of(y + 8 * i, F32, 1, &n);
    EXPECT(job, accrt_call_set_tensor(call, i, &tensor) == ACCRT_OK);
  }
  do {
    EXPECT(job, accrt_call_run(call, ACCRT_TIMEOUT_INFINITE) == ACCRT_OK);
    const float version = y[0] - 10.0f; /* all weights of a set are the same number */
    for (int i = 0; i < 8; ++i) {
      EXPECT(job, y[i] == version + 10.0f);
      EXPECT(job, y[8 + i] == version);
      EXPECT(job, y[16 + i] == 2.0f * version + 0.5f);
    }
    ++job->runs;
  } while (atomic_load(job->stop) == 0);
  accrt_call_release(call);
  accrt_session_release(session);
  return NULL;
}

static void start(job_t* jobs, pthread_t* threads, fixture_t* f, atomic_int* stop,
                  void* (*function)(void*)) {
  for (int i = 0; i < THREADS; ++i) {
    jobs[i] = (job_t){f, i, stop, 0, 0};
    assert_int_equal(pthread_create(&threads[i], NULL, function, &jobs[i]), 0);
  }
}

static void join(job_t* jobs, pthread_t* threads) {
  for (int i = 0; i < THREADS; ++i) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(jobs[i].failures, 0);
    assert_true(jobs[i].runs > 0);
  }
}

static void swaps_while_others_run(void** state) {
  FIXTURE(f);
  float fresh[8];
  const int64_t n = 8;
  const accrt_weight_t weight = {"weight", tensor_of(fresh, F32, 1, &n)};
  for (int i = 0; i < 8; ++i)
    fresh[i] = 1.0f;
  OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
  job_t jobs[THREADS];
  pthread_t threads[THREADS];
  atomic_int stop = 0;
  start(jobs, threads, f, &stop, run_and_compare);
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < 8; ++i)
      fresh[i] = (float)round;
    OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
  }
  atomic_store(&stop, 1);
  join(jobs, threads);
}

/* Two threads swap at once. Each swap is atomic, and the later one of them stays. */
static void* swap_bias(void* argument) {
  job_t* job = argument;
  float fresh[8];
  const int64_t n = 8;
  const accrt_weight_t weight = {job->number % 2 == 0 ? "bias" : "weight",
                                 tensor_of(fresh, F32, 1, &n)};
  for (int round = 1; round <= 40; ++round) {
    for (int i = 0; i < 8; ++i)
      fresh[i] = (float)round;
    EXPECT(job, accrt_program_swap_weights(job->f->program, &weight, 1, sizeof weight) == ACCRT_OK);
    ++job->runs;
  }
  return NULL;
}

static void swaps_of_many_threads_are_whole(void** state) {
  FIXTURE(f);
  job_t jobs[THREADS];
  pthread_t threads[THREADS];
  atomic_int stop = 0;
  start(jobs, threads, f, &stop, swap_bias);
  join(jobs, threads);
  accrt_call_t* call = make_call(f->session, "weights");
  OK(run(call));
  const float* w = result_data(call, 0);
  const float* d = result_data(call, 2);
  for (int i = 0; i < 8; ++i) {
    assert_true(w[i] == 40.0f + 10.0f);
    assert_true(d[i] == 2.0f * 40.0f + 40.0f);
  }
  accrt_call_release(call);
}

/* Creates and ends sessions on all threads, with calls in flight at their end. */
static void* come_and_go(void* argument) {
  job_t* job = argument;
  for (int round = 0; round < 30; ++round) {
    accrt_session_t* session = NULL;
    accrt_call_t* call = NULL;
    EXPECT(job, accrt_session_create(job->f->program, NULL, &session) == ACCRT_OK);
    EXPECT(job, accrt_call_create(session, "count", &call) == ACCRT_OK);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT(job, accrt_call_set_scalar(call, 0, i) == ACCRT_OK);
      EXPECT(job, accrt_call_submit(call, NULL, 0, NULL, 0) == ACCRT_OK);
    }
    if (round % 2 == 0) {
      EXPECT(job, accrt_call_run(call, ACCRT_TIMEOUT_INFINITE) == ACCRT_OK);
      EXPECT(job, *(const int64_t*)result_data(call, 0) == 701233);
    }
    accrt_call_release(call);
    accrt_session_release(session);
    ++job->runs;
  }
  return NULL;
}

static void sessions_come_and_go(void** state) {
  FIXTURE(f);
  job_t jobs[THREADS];
  pthread_t threads[THREADS];
  atomic_int stop = 0;
  start(jobs, threads, f, &stop, come_and_go);
  join(jobs, threads);
}

static void submits_without_allocation(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* done;
  OK(accrt_semaphore_create(f->instance, 0, &done));
  accrt_call_t* call = make_call(f->session, "iota");
  int64_t y[4];
  OK(set_vector(call, "y", y, ACCRT_DTYPE_I64, 4));
  long long before = 0;
  for (uint64_t i = 1; i <= 300; ++i) {
    const accrt_timepoint_t signal = {done, i};
    if (i == 100)
      before = atomic_load(&f->watch.count);
    OK(set_number(call, "position", (int64_t)(i % 64)));
    OK(accrt_call_submit(call, NULL, 0, &signal, 1));
    OK(accrt_semaphore_wait(done, i, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
    assert_int_equal(y[3], i % 64 + 3);
  }
  assert_int_equal(atomic_load(&f->watch.count) - before, 0);
  accrt_call_release(call);
  accrt_semaphore_release(done);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(swaps_while_others_run),
      FIXTURE_TEST(swaps_of_many_threads_are_whole),
      FIXTURE_TEST(sessions_come_and_go),
      FIXTURE_TEST(submits_without_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
