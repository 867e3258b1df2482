/* serve/http/metrics_test.c - the text of metrics: of its own engine and server, and of what else
 * an instance's registry has. */
#include "serve/http/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static const double bounds[] = {0.5, 2};
static const accrt_counter_t two_labels[] = {{.name = "test:by_side",
                                              .help = "Two.",
                                              .label = "side",
                                              .label_value = "l\"eft",
                                              .kind = ACCRT_COUNTER_TOTAL},
                                             {.name = "test:by_side",
                                              .help = "Two.",
                                              .label = "side",
                                              .label_value = "right",
                                              .kind = ACCRT_COUNTER_TOTAL}};
static const accrt_counter_t sizes[] = {
    {.name = "test:sizes",
     .help = "Sizes.",
     .bounds = bounds,
     .bound_count = 2,
     .kind = ACCRT_COUNTER_HISTOGRAM},
    {.name = "test:level", .help = "A level.", .kind = ACCRT_COUNTER_GAUGE}};

static void read_values(void* self, double* values) {
  (void)self;
  values[0] = 1;
  values[1] = 2.25;
}

static void read_sizes(void* self, double* values) {
  (void)self;
  const double all[] = {3, 0, 4, 60.5, -1.5};
  memcpy(values, all, sizeof all);
}

static uint64_t add(accrt_instance_t* instance, const char* name, void* self,
                    const accrt_counter_t* counters, void (*read)(void* self, double* values)) {
  accrt_counter_group_t group = ACCRT_COUNTER_GROUP_INIT;
  group.name = name;
  group.self = self;
  group.counters = counters;
  group.counter_count = 2;
  group.counter_size_bytes = (uint32_t)sizeof *counters;
  group.read = read;
  uint64_t id;
  assert_int_equal(accrt_counters_add(instance, &group, &id), ACCRT_OK);
  return id;
}

static char* text_of(accrt_instance_t* instance, const void* engine, const void* server) {
  http_text_t text;
  accrt_http_text_init(&text, &accrt_http_allocator_system);
  const http_page_t page = {&text, engine, server, "a\"b"};
  accrt_http_put_metrics(&page, instance);
  assert_int_equal(text.failed, 0);
  char* copy = calloc(text.size + 1, 1);
  assert_non_null(copy);
  memcpy(copy, text.data, text.size);
  accrt_http_text_deinit(&text);
  return copy;
}

static void assert_has(const char* text, const char* part) {
  if (strstr(text, part) == NULL)
    fail_msg("'%s' is not in '%s'", part, text);
}

static accrt_instance_t* make_instance(void) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  return instance;
}

static void test_groups_are_written(void** state) {
  (void)state;
  accrt_instance_t* instance = make_instance();
  int engine, other_engine, server, other_server;
  add(instance, "accrt_serve_engine", &engine, two_labels, read_values);
  add(instance, "test", NULL, sizes, read_sizes);
  char* text = text_of(instance, &engine, &server);
  assert_has(text, "# HELP test:by_side Two.\n# TYPE test:by_side counter\n"
                   "test:by_side{model_name=\"a\\\"b\",side=\"l\\\"eft\"} 1\n"
                   "test:by_side{model_name=\"a\\\"b\",side=\"right\"} 2.25\n"
                   "# HELP test:sizes Sizes.\n# TYPE test:sizes histogram\n"
                   "test:sizes_bucket{le=\"0.5\"} 3\n"
                   "test:sizes_bucket{le=\"2\"} 3\n"
                   "test:sizes_bucket{le=\"+Inf\"} 7\n"
                   "test:sizes_sum 60.5\n"
                   "test:sizes_count 7\n"
                   "# HELP test:level A level.\n# TYPE test:level gauge\n"
                   "test:level -1.5\n");
  assert_has(text, "accrt:buffers{memory=\"host\"} 0\n"); /* the runtime's */
  free(text);
  /* Those of other engines and servers of the instance are on their own pages. */
  text = text_of(instance, &other_engine, &server);
  assert_null(strstr(text, "test:by_side"));
  assert_has(text, "test:level -1.5\n");
  free(text);
  add(instance, HTTP_GROUP_NAME, &server, two_labels, read_values);
  text = text_of(instance, &other_engine, &other_server);
  assert_null(strstr(text, "test:by_side"));
  free(text);
  text = text_of(instance, &other_engine, &server);
  assert_has(text, "test:by_side{model_name=\"a\\\"b\",side=\"right\"} 2.25\n");
  free(text);
  accrt_instance_release(instance);
}

/* As Prometheus reads texts: any other escape than these three makes it refuse the page. */
static void test_texts_are_escaped(void** state) {
  (void)state;
  static const accrt_counter_t odd[] = {
      {.name = "test:odd",
       .help = "Two\nlines, a \"quote\" and \\.",
       .label = "which",
       .label_value = "\"\\\n\t\x01\xE2\x80\xA8\xC2\x85\xFF\xC3\xA9",
       .kind = ACCRT_COUNTER_GAUGE},
      {.name = "test:empty",
       .help = "",
       .label = "which",
       .label_value = "",
       .kind = ACCRT_COUNTER_GAUGE}};
  accrt_instance_t* instance = make_instance();
  add(instance, "test", NULL, odd, read_values);
  char* text = text_of(instance, NULL, NULL);
  assert_has(text,
             "# HELP test:odd Two\\nlines, a \"quote\" and \\\\.\n# TYPE test:odd gauge\n"
             "test:odd{which=\"\\\"\\\\\\n\t\x01\xE2\x80\xA8\xC2\x85\xEF\xBF\xBD\xC3\xA9\"} 1\n"
             "# HELP test:empty \n# TYPE test:empty gauge\n"
             "test:empty{which=\"\"} 2.25\n");
  free(text);
  accrt_instance_release(instance);
}

/* ---- The server's own group ---- */

static void test_each_count_of_a_server_has_its_place(void** state) {
  (void)state;
  accrt_counter_group_t group;
  accrt_http_metrics_group(&group);
  uint32_t count = 0;
  for (uint32_t i = 0; i < group.counter_count; ++i)
    count += ACCRT_COUNTER_VALUES(&group.counters[i]);
  double* values = calloc(count + 1, sizeof *values);
  assert_non_null(values);
  values[count] = -7;
  http_metrics_t metrics = {0};
  accrt_http_observe(&metrics.prompt_tokens, 1);
  accrt_http_observe(&metrics.prompt_tokens, 100001);
  accrt_http_observe(&metrics.output_tokens, 3);
  for (uint32_t i = 0; i < HTTP_ENDED_COUNT; ++i)
    metrics.ended[i] = 10 + i;
  for (uint32_t i = 0; i < HTTP_STATUSES; ++i)
    metrics.answers[i] = 20 + i;
  metrics.refused = 30;
  metrics.left = 31;
  metrics.stalled = 32;
  accrt_http_metrics_values(&metrics, values);
  assert_true(values[0] == 1 && values[16] == 1 && values[17] == 100002);
  assert_true(values[18 + 2] == 1 && values[18 + 17] == 3);
  for (uint32_t i = 0; i < 4; ++i)
    assert_true(values[36 + i] == 10 + i && values[40 + i] == 22 + i);
  assert_true(values[44] == 30 && values[45] == 31 && values[46] == 32);
  assert_int_equal(count, 47);
  assert_true(values[count] == -7);
  free(values);
}

static void test_a_failed_reading_is_said(void** state) {
  (void)state;
  http_text_t text;
  accrt_http_text_init(&text, &accrt_http_allocator_system);
  const http_page_t page = {&text, NULL, NULL, "m"};
  accrt_http_put_metrics(&page, NULL);
  assert_int_equal(text.failed, 1);
  accrt_http_text_deinit(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups_are_written),
                                     cmocka_unit_test(test_texts_are_escaped),
                                     cmocka_unit_test(test_each_count_of_a_server_has_its_place),
                                     cmocka_unit_test(test_a_failed_reading_is_said)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
