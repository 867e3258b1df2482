/* tests/fakecuda/programs.c - a program of a bundle on the CUDA driver while the driver fails: each of its calls fails once, while the
 * program is created, called, given other weights and released. Every failure is a status with one line of text; afterwards nothing is
 * left, neither on the host nor on the device, and the same works. Through the public API, under the stand-in.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>

#include "stand_in.h"

#define ELEMENTS 100
#define WEIGHTS 8
/* Failures that a device survives; what becomes of one that is lost is in faults.c. */
#define INVALID_HANDLE 400
#define OUT_OF_MEMORY 2

static const char* const entries[] = {
#define CUDA_SYMBOL(name, version) #name,
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
};
#define ENTRY_COUNT (sizeof entries / sizeof entries[0])

/* ---- The stand-in ---- */

static int set_up_group(void** state) {
  (void)state;
  find_stand_in();
  return 0;
}

/* Bytes of the first device that nobody has, asked of the driver itself in a context that is otherwise gone. */
static uint64_t free_bytes(void) {
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*get_info)(size_t*, size_t*);
  int (*release)(int);
  void* address = symbol("cuDevicePrimaryCtxRetain");
  memcpy(&retain, &address, sizeof retain);
  address = symbol("cuCtxSetCurrent");
  memcpy(&set_current, &address, sizeof set_current);
  address = symbol("cuMemGetInfo_v2");
  memcpy(&get_info, &address, sizeof get_info);
  address = symbol("cuDevicePrimaryCtxRelease_v2");
  memcpy(&release, &address, sizeof release);
  void* context = NULL;
  size_t free_now = 0;
  size_t total = 0;
  assert_int_equal(retain(&context, 0), 0);
  assert_int_equal(set_current(context), 0);
  assert_int_equal(get_info(&free_now, &total), 0);
  assert_int_equal(set_current(NULL), 0);
  assert_int_equal(release(0), 0);
  return free_now;
}

/* ---- What is done ---- */

#define TRY(expression)                                                                            \
  do {                                                                                             \
    status = (expression);                                                                         \
    if (status != ACCRT_OK)                                                                        \
      goto out;                                                                                    \
  } while (0)

typedef struct work {
  accrt_instance_t* instance;
  accrt_bundle_t* bundle;
  accrt_device_t* device;
  accrt_program_t* program;
  accrt_session_t* session;
} work_t;

static accrt_tensor_t floats(float* data, const int64_t* shape, uint32_t rank) {
  return (accrt_tensor_t){.data = data, .dtype = ACCRT_DTYPE_F32, .rank = rank, .shape = shape};
}

/* Kernel, operator with workspace, kernel; arguments in the host's memory. */
static accrt_status_t call_operator(work_t* work, float first) {
  static const int64_t shape[] = {2, ELEMENTS};
  float x[ELEMENTS];
  float y[2 * ELEMENTS] = {0};
  accrt_call_t* call = NULL;
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < ELEMENTS; ++i)
    x[i] = first + (float)i;
  const accrt_tensor_t input = floats(x, &shape[1], 1);
  const accrt_tensor_t output = floats(y, shape, 2);
  TRY(accrt_call_create(work->session, "operator", &call));
  TRY(accrt_call_set_tensor(call, 0, &input));
  TRY(accrt_call_set_tensor(call, 1, &output));
  for (int turn = 0; turn < 3; ++turn) {
    x[0] += 1;
    TRY(accrt_call_run(call, PATIENCE));
    for (int i = 0; i < 2 * ELEMENTS; ++i)
      assert_true(y[i] == 2 * x[i % ELEMENTS] + 2);
  }
out:
  if (status != ACCRT_OK && work->session != NULL) /* x and y go: nothing may be in flight */
    (void)accrt_stream_synchronize(accrt_session_stream(work->session), PATIENCE, ACCRT_WAIT_BLOCK);
  accrt_call_release(call);
  return status;
}

/* A weight, that weight as a prepare function reversed it, and out of two weights. Results in memory of the session's. */
static accrt_status_t call_weights(work_t* work, const float* weight) {
  accrt_call_t* call = NULL;
  accrt_status_t status = ACCRT_OK;
  float got[3][WEIGHTS];
  TRY(accrt_call_create(work->session, "weights", &call));
  TRY(accrt_call_run(call, PATIENCE));
  for (uint32_t i = 0; i < 3; ++i) {
    accrt_tensor_t result;
    int64_t shape[ACCRT_MAX_RANK];
    int64_t strides[ACCRT_MAX_RANK];
    TRY(accrt_call_result(call, i, &result, shape, strides));
    const accrt_place_t from = {.buffer = result.buffer, .offset_bytes = result.offset_bytes};
    const accrt_place_t to = {.pointer = got[i]};
    TRY(accrt_stream_copy(accrt_session_stream(work->session), &from, &to, sizeof got[i]));
  }
  TRY(accrt_stream_synchronize(accrt_session_stream(work->session), PATIENCE, ACCRT_WAIT_BLOCK));
  for (int i = 0; i < WEIGHTS; ++i) {
    assert_true(got[0][i] == weight[i] + 10);
    assert_true(got[1][i] == weight[WEIGHTS - 1 - i]);
    assert_true(got[2][i] == 2 * weight[i] + 0.5f);
  }
out:
  if (status != ACCRT_OK)
    (void)accrt_stream_synchronize(accrt_session_stream(work->session), PATIENCE, ACCRT_WAIT_BLOCK);
  accrt_call_release(call);
  return status;
}

/* State: the counter begins at 7. */
static accrt_status_t call_count(work_t* work) {
  accrt_call_t* call = NULL;
  accrt_status_t status = ACCRT_OK;
  int64_t y = 0;
  const int64_t one = 1;
  const accrt_tensor_t output = {.data = &y, .dtype = ACCRT_DTYPE_I64, .rank = 1, .shape = &one};
  TRY(accrt_call_create(work->session, "count", &call));
  TRY(accrt_call_set_tensor(call, 1, &output));
  int64_t wanted = 7;
  for (int64_t digit = 1; digit < 4; ++digit) {
    wanted = wanted * 10 + digit;
    TRY(accrt_call_set_scalar(call, 0, digit));
    TRY(accrt_call_run(call, PATIENCE));
    assert_true(y == wanted);
  }
out:
  if (status != ACCRT_OK)
    (void)accrt_stream_synchronize(accrt_session_stream(work->session), PATIENCE, ACCRT_WAIT_BLOCK);
  accrt_call_release(call);
  return status;
}

static void end(work_t* work) {
  accrt_session_release(work->session);
  accrt_program_release(work->program);
  accrt_bundle_release(work->bundle);
  work->session = NULL;
  work->program = NULL;
  work->device = NULL;
  work->bundle = NULL;
}

static accrt_status_t do_everything(work_t* work) {
  static const int64_t eight = WEIGHTS;
  float old[WEIGHTS] = {0, 1, 2, 3, 4, 5, 6, 7};
  float fresh[WEIGHTS] = {5, 3, 1, 8, 9, 2, 4, 6};
  const accrt_weight_t weight = {"weight", floats(fresh, &eight, 1)};
  accrt_status_t status = ACCRT_OK;
  TRY(accrt_bundle_open_path(work->instance, ACCRT_TEST_DATA "/device.accx", NULL, &work->bundle));
  TRY(accrt_instance_device_by_name(work->instance, "cuda:0", &work->device));
  TRY(accrt_program_create(work->device, work->bundle, NULL, &work->program));
  TRY(accrt_session_create(work->program, NULL, &work->session));
  TRY(call_operator(work, 1));
  TRY(call_weights(work, old));
  TRY(accrt_program_swap_weights(work->program, &weight, 1, (uint32_t)sizeof weight));
  TRY(call_weights(work, fresh));
  TRY(call_count(work));
  TRY(call_operator(work, 50));
out:
  return status;
}

/* ---- Failures ---- */

static void check_message(const char* setting, accrt_status_t status) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (error.message[0] == '\0' || strchr(error.message, '\n') != NULL)
    fail_msg("%s: %s without one line of text", setting, accrt_status_name(status));
}

/* What could not be given back is lost: nobody can free what the driver does not free. */
static bool is_of_giving_back(const char* entry) {
  static const char* const words[] = {"Free", "Release", "Unmap", "Destroy", "Unload"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    if (strstr(entry, words[i]) != NULL)
      return true;
  }
  return false;
}

/* The nth call of one entry point fails, once. True when there was such a call. */
static bool fail_call(const char* entry, unsigned nth, unsigned code) {
  char setting[128];
  snprintf(setting, sizeof setting, "fail=%s:%u=%u", entry, nth, code);
  const uint64_t free_before = free_bytes();
  work_t work = {.instance = instance_with("packs.path", ACCRT_TEST_DATA)};
  const uint64_t before = count_of(entry);
  demand(setting);
  accrt_status_t status = do_everything(&work);
  if (status != ACCRT_OK)
    check_message(setting, status);
  const bool had_device = work.device != NULL;
  end(&work);
  const bool was_called = count_of(entry) - before >= nth;
  demand("reset");
  if (!had_device) { /* an instance asks once for its devices */
    accrt_instance_release(work.instance);
    work.instance = instance_with("packs.path", ACCRT_TEST_DATA);
  }
  if (was_called) { /* the same works */
    status = do_everything(&work);
    if (status != ACCRT_OK) {
      accrt_error_t error = ACCRT_ERROR_INIT;
      accrt_last_error(&error);
      fail_msg("after %s: %s: %s", setting, accrt_status_name(status), error.message);
    }
    end(&work);
  }
  accrt_instance_release(work.instance);
  if (atomic_load(&live_allocations) != 0)
    fail_msg("%s: %ld host allocations are left", setting, atomic_load(&live_allocations));
  const uint64_t free_after = free_bytes();
  if (free_after < free_before && !is_of_giving_back(entry))
    fail_msg("%s: %lld bytes of the device are left", setting,
             (long long)(free_before - free_after));
  return was_called;
}

static void fail_each_call(unsigned code, unsigned most) {
  uint32_t called = 0;
  for (size_t i = 0; i < ENTRY_COUNT; ++i) {
    for (unsigned nth = 1; nth <= most && fail_call(entries[i], nth, code); ++nth)
      ++called;
  }
  assert_true(called > 40);
}

static void test_everything_works(void** state) {
  (void)state;
  work_t work = {.instance = instance_with("packs.path", ACCRT_TEST_DATA)};
  const accrt_status_t status = do_everything(&work);
  if (status != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    accrt_last_error(&error);
    fail_msg("%s: %s", accrt_status_name(status), error.message);
  }
  end(&work);
  accrt_instance_release(work.instance);
  assert_int_equal(atomic_load(&live_allocations), 0);
}

static void test_each_call_is_refused_once(void** state) {
  (void)state;
  fail_each_call(INVALID_HANDLE, 2);
}

static void test_each_call_finds_no_memory_once(void** state) {
  (void)state;
  fail_each_call(OUT_OF_MEMORY, 1);
}

static int check_misuse(void** state) {
  (void)state;
  assert_int_equal(complaints(), 0);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_everything_works, check_misuse),
      cmocka_unit_test_teardown(test_each_call_is_refused_once, check_misuse),
      cmocka_unit_test_teardown(test_each_call_finds_no_memory_once, check_misuse),
  };
  return cmocka_run_group_tests(tests, set_up_group, NULL);
}
