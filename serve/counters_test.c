/* An engine's group of counters: whether it has all that an engine counts, and whose it is. */
#include "serve/counters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include "runtime/core/test_allocator.h"

static bool is_word_of(uint64_t at, uint64_t offset, uint64_t size) {
  return at >= offset && at < offset + size;
}

/* Each word of the statistics changes a value. What is left out are what all structs have, the
 * status beside `healthy`, and counts that are those of the buckets. */
static void test_counters_have_all_figures(void** state) {
  (void)state;
  static const uint64_t histograms[] = {
      offsetof(accrt_serve_stats_t, queue_time), offsetof(accrt_serve_stats_t, first_token),
      offsetof(accrt_serve_stats_t, next_token), offsetof(accrt_serve_stats_t, total_time)};
  accrt_serve_stats_t stats = {0};
  double before[ACCSV_COUNTER_VALUES], after[ACCSV_COUNTER_VALUES];
  accsv_counters_values(&stats, before);
  for (uint64_t at = 0; at < sizeof stats; at += sizeof(uint32_t)) {
    bool left_out = is_word_of(at, offsetof(accrt_serve_stats_t, struct_size), 4) ||
                    is_word_of(at, offsetof(accrt_serve_stats_t, next), sizeof stats.next) ||
                    is_word_of(at, offsetof(accrt_serve_stats_t, failure), 4);
    for (uint32_t i = 0; i < 4; ++i)
      left_out = left_out || is_word_of(at, histograms[i], sizeof stats.queue_time.count);
    if (left_out)
      continue;
    const uint32_t one = 1;
    memcpy((char*)&stats + at, &one, sizeof one);
    accsv_counters_values(&stats, after);
    if (memcmp(before, after, sizeof before) == 0)
      fail_msg("byte %d of accrt_serve_stats_t is in no counter", (int)at);
    memset(&stats, 0, sizeof stats);
  }
}

/* ---- The group of an engine ---- */

/* What a reading has of engines' groups. */
typedef struct seen {
  const accrt_serve_engine_t* engine;
  uint32_t groups, rows, values, running_limit;
} seen_t;

static void see(void* user, const accrt_counter_group_t* group, const double* values) {
  seen_t* seen = user;
  if (strcmp(group->name, "accrt_serve_engine") != 0)
    return;
  ++seen->groups;
  seen->engine = group->self;
  seen->rows = group->counter_count;
  seen->values = 0;
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    const bool is_ours =
        strncmp(counter->name, "accrt:", 6) == 0 || strncmp(counter->name, "vllm:", 5) == 0;
    const size_t length = strlen(counter->name);
    assert_true(is_ours && counter->help[strlen(counter->help) - 1] == '.');
    /* As Prometheus has it: what only grows ends with "_total". */
    assert_int_equal(counter->kind == ACCRT_COUNTER_TOTAL,
                     strcmp(counter->name + length - 6, "_total") == 0);
    for (uint32_t bound = 1; bound < counter->bound_count; ++bound)
      assert_true(counter->bounds[bound] == 2 * counter->bounds[bound - 1]);
    if (strcmp(counter->name, "accrt:max_running") == 0)
      seen->running_limit = (uint32_t)values[seen->values];
    seen->values += ACCRT_COUNTER_VALUES(counter);
  }
}

static accrt_serve_engine_t* make_engine(uint32_t max_running) {
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(NULL, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_running = max_running;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  return engine;
}

static seen_t look(accrt_instance_t* instance) {
  seen_t seen = {0};
  assert_int_equal(accrt_counters_read(instance, see, &seen), ACCRT_OK);
  return seen;
}

static void test_an_engine_has_a_group_while_it_lives(void** state) {
  (void)state;
  accrt_serve_engine_t* one = make_engine(3);
  accrt_serve_engine_t* two = make_engine(5);
  accrt_instance_t* instance = accrt_instance_retain(accrt_serve_engine_instance(one));
  assert_non_null(instance);
  /* Models without a program have no instance: each engine has its own. */
  assert_ptr_not_equal(instance, accrt_serve_engine_instance(two));
  assert_null(accrt_serve_engine_instance(NULL));
  seen_t seen = look(instance);
  assert_int_equal(seen.groups, 1);
  assert_ptr_equal(seen.engine, one);
  assert_int_equal(seen.running_limit, 3);
  assert_int_equal(seen.values, ACCSV_COUNTER_VALUES);
  seen = look(accrt_serve_engine_instance(two));
  assert_int_equal(seen.groups, 1);
  assert_int_equal(seen.running_limit, 5);
  accrt_serve_engine_release(one);
  seen = look(instance);
  assert_int_equal(seen.groups, 0);
  accrt_instance_release(instance);
  accrt_serve_engine_release(two);
}

/* A visitor that ends the engine whose group it is given. */
typedef struct ending {
  accrt_serve_engine_t* engine;
  bool ended;
} ending_t;

static void end_and_look(void* user, const accrt_counter_group_t* group, const double* values) {
  ending_t* ending = user;
  if (strcmp(group->name, "accrt_serve_engine") != 0)
    return;
  accrt_serve_engine_release(ending->engine);
  ending->ended = true;
  seen_t seen = {0};
  see(&seen, group, values);
  assert_int_equal(seen.running_limit, 3);
  assert_int_equal(seen.values, ACCSV_COUNTER_VALUES);
}

/* Python's collector may end an engine while a visitor copies its group. */
static void test_a_visitor_may_end_the_engine(void** state) {
  (void)state;
  test_allocator_t allocator = {0};
  const accrt_allocator_t interface = test_allocator_interface(&allocator);
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(NULL, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_running = 3;
  options.allocator = &interface;
  ending_t ending = {0};
  assert_int_equal(accrt_serve_engine_create(model, &options, &ending.engine), ACCRT_OK);
  accrt_serve_model_release(model);
  accrt_instance_t* instance = accrt_instance_retain(accrt_serve_engine_instance(ending.engine));
  assert_int_equal(accrt_counters_read(instance, end_and_look, &ending), ACCRT_OK);
  assert_true(ending.ended);
  assert_int_equal(look(instance).groups, 0);
  accrt_instance_release(instance);
  assert_int_equal(atomic_load(&allocator.live_count), 0);
  assert_int_equal(atomic_load(&allocator.wrong_count), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_counters_have_all_figures),
                                     cmocka_unit_test(test_an_engine_has_a_group_while_it_lives),
                                     cmocka_unit_test(test_a_visitor_may_end_the_engine)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
