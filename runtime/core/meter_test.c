/* runtime/core/meter_test.c - budgets: each limit alone, nesting, freed memory, seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"

static const accrt_budget_t defaults = ACCRT_BUDGET_INIT;

static void expect(accrt_status_t status, accrt_status_t wanted, const char* text) {
  assert_int_equal(status, wanted);
  assert_non_null(strstr(accrt_error_current()->message, text));
}

static void steps_end_at_the_limit(void** state) {
  (void)state;
  accrt_meter_t meter;
  assert_int_equal(accrt_charge(UINT64_MAX / 2), ACCRT_OK); /* no meter is active */
  accrt_meter_begin(&meter, &defaults, "opening", "x.accx", 100, 1000);
  accrt_meter_at("strings");
  assert_int_equal(accrt_charge(100), ACCRT_OK);
  expect(accrt_charge(1), ACCRT_ERROR_BUDGET,
         "opening 'x.accx', strings: it takes more than 100 steps (the default of max_steps)");
  accrt_meter_allow(10);
  assert_int_equal(accrt_charge(0), ACCRT_OK);
  assert_int_equal(accrt_charge(159), ACCRT_OK);
  assert_int_equal(accrt_charge(1), ACCRT_ERROR_BUDGET);
  accrt_meter_end(&meter);
  assert_null(accrt_meter_current);
}

static void a_callers_limit_stays(void** state) {
  (void)state;
  accrt_budget_t budget = ACCRT_BUDGET_INIT, own;
  accrt_meter_t meter;
  budget.max_steps = 7;
  budget.max_memory_bytes = UINT64_MAX;
  assert_int_equal(accrt_budget_read(&budget, &own), ACCRT_OK);
  accrt_meter_begin(&meter, &own, "opening", "x", 100, 1);
  accrt_meter_allow(UINT64_MAX);
  assert_int_equal(accrt_charge(7), ACCRT_OK);
  expect(accrt_charge(1), ACCRT_ERROR_BUDGET, "more than 7 steps");
  accrt_meter_end(&meter);
  budget.reserved = 1;
  expect(accrt_budget_read(&budget, &own), ACCRT_ERROR_INVALID_ARGUMENT, "reserved is 1");
}

static void memory_is_taken_and_given_back(void** state) {
  (void)state;
  const accrt_allocator_t* const system = &accrt_allocator_system;
  accrt_meter_t meter;
  void *a, *b;
  accrt_meter_begin(&meter, &defaults, "planning", "main", 1, 1000);
  for (int i = 0; i < 10; ++i) {
    assert_int_equal(accrt_alloc(system, 600, &a), ACCRT_OK);
    expect(accrt_alloc(system, 401, &b), ACCRT_ERROR_BUDGET,
           "planning 'main': 401 bytes of host memory after 600 pass the limit of 1000");
    assert_null(b);
    accrt_free(system, a, 600);
  }
  assert_int_equal(meter.memory_bytes, 0);
  accrt_meter_end(&meter);
}

static void time_and_cancel_end_inner_work_too(void** state) {
  (void)state;
  uint32_t flag = 0;
  accrt_budget_t budget = ACCRT_BUDGET_INIT;
  accrt_meter_t outer, inner;
  budget.cancel = &flag;
  accrt_meter_begin(&outer, &budget, "making", "p", UINT64_MAX, UINT64_MAX);
  accrt_meter_begin(&inner, &defaults, "planning", "f", 1000000, 1000);
  assert_int_equal(accrt_charge(10), ACCRT_OK);
  flag = 1;
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 100000 && status == ACCRT_OK; ++i)
    status = accrt_charge(1);
  expect(status, ACCRT_ERROR_CANCELLED, "planning 'f': it was cancelled after");
  accrt_meter_end(&inner);
  assert_int_equal(outer.steps, inner.steps);
  assert_int_equal(accrt_checkpoint(), ACCRT_ERROR_CANCELLED);
  accrt_meter_end(&outer);
  budget.cancel = NULL;
  budget.timeout_ns = 1;
  accrt_meter_begin(&outer, &budget, "making", "p", UINT64_MAX, UINT64_MAX);
  accrt_meter_begin(&inner, &defaults, "planning", "f", UINT64_MAX, 1000);
  expect(accrt_checkpoint(), ACCRT_ERROR_TIMEOUT, "longer than its limit of 1 ns");
  accrt_meter_end(&inner);
  accrt_meter_end(&outer);
}

static void seeds_differ(void** state) {
  (void)state;
  const uint64_t seed = accrt_hash_seed();
  assert_true(seed != accrt_hash_seed());
  assert_true(accrt_hash_u64(1, seed) != accrt_hash_u64(2, seed));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_end_at_the_limit),
      cmocka_unit_test(a_callers_limit_stays),
      cmocka_unit_test(memory_is_taken_and_given_back),
      cmocka_unit_test(time_and_cancel_end_inner_work_too),
      cmocka_unit_test(seeds_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
