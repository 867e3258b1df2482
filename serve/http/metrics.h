/* serve/http/metrics.h - what the front itself measures, and the Prometheus text of it and of the
 * engine's counts. Names are vLLM's where it has one. */
#ifndef ACCRT_SERVE_HTTP_METRICS_H_
#define ACCRT_SERVE_HTTP_METRICS_H_

#include "accrt/serve.h"
#include "serve/http/text.h"

enum { HTTP_BUCKETS = 20 };

typedef struct http_histogram {
  const double* bounds; /* ascending */
  uint32_t bound_count;
  uint64_t counts[HTTP_BUCKETS + 1]; /* of each bucket alone; the last has no bound */
  double sum;
} http_histogram_t;

enum { HTTP_ENDED_STOP, HTTP_ENDED_LENGTH, HTTP_ENDED_ABORT, HTTP_ENDED_ERROR, HTTP_ENDED_COUNT };

typedef struct http_metrics {
  http_histogram_t prompt_tokens, output_tokens;
  uint64_t ended[HTTP_ENDED_COUNT];
  uint64_t answers[6]; /* by the status' first digit */
  uint64_t refused;    /* 429 and 503 */
  uint64_t left;       /* clients that left before their answer was whole */
  uint64_t stalled;    /* of those: they took nothing for too long, or too little */
} http_metrics_t;

/* How an engine's stream ended, by the reason that its answer gives. */
uint32_t accrt_http_ended(const char* finish_reason);

void accrt_http_metrics_init(http_metrics_t* metrics);
void accrt_http_observe(http_histogram_t* histogram, double value);
void accrt_http_put_metrics(http_text_t* text, const http_metrics_t* metrics,
                            const accrt_serve_stats_t* stats, const char* model);

#endif
