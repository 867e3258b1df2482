/* serve/http/metrics_test.c - the text of metrics: whether it has all that an engine counts. */
#include "serve/http/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static char* metrics_of(const accrt_serve_stats_t* stats) {
  http_text_t text;
  http_metrics_t metrics;
  accrt_http_text_init(&text, &accrt_http_allocator_system);
  accrt_http_metrics_init(&metrics);
  accrt_http_put_metrics(&text, &metrics, stats, "m");
  char* copy = calloc(text.size + 1, 1);
  assert_non_null(copy);
  memcpy(copy, text.data, text.size);
  accrt_http_text_deinit(&text);
  return copy;
}

static bool is_word_of(uint64_t at, uint64_t offset, uint64_t size) {
  return at >= offset && at < offset + size;
}

/* All that an engine counts: each word of it changes the page. What is left out are what all
 * structs have, the status beside `healthy`, and counts that are those of the buckets. */
static void test_metrics_have_all_figures(void** state) {
  (void)state;
  static const uint64_t histograms[] = {
      offsetof(accrt_serve_stats_t, queue_time), offsetof(accrt_serve_stats_t, first_token),
      offsetof(accrt_serve_stats_t, next_token), offsetof(accrt_serve_stats_t, total_time)};
  accrt_serve_stats_t stats = {0};
  char* before = metrics_of(&stats);
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
    char* after = metrics_of(&stats);
    if (strcmp(before, after) == 0)
      fail_msg("byte %d of accrt_serve_stats_t is in no metric", (int)at);
    free(after);
    memset(&stats, 0, sizeof stats);
  }
  free(before);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_metrics_have_all_figures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
