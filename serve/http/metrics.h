/* serve/http/metrics.h - what the front itself counts, as a group of the registry of the engine's
 * instance, and the Prometheus text of that registry. Names are vLLM's where it has one. */
#ifndef ACCRT_SERVE_HTTP_METRICS_H_
#define ACCRT_SERVE_HTTP_METRICS_H_

#include "accrt/counters.h"
#include "accrt/serve.h"
#include "serve/http/text.h"

enum { HTTP_BUCKETS = 17, HTTP_STATUSES = 6 };

typedef struct http_histogram {
  uint64_t counts[HTTP_BUCKETS]; /* of each bucket alone; the last has no bound */
  double sum;
} http_histogram_t;

/* How a choice ended. */
enum { HTTP_ENDED_STOP, HTTP_ENDED_LENGTH, HTTP_ENDED_ABORT, HTTP_ENDED_ERROR, HTTP_ENDED_COUNT };

typedef struct http_metrics {
  http_histogram_t prompt_tokens, output_tokens;
  uint64_t ended[HTTP_ENDED_COUNT];
  uint64_t answers[HTTP_STATUSES]; /* by the status' first digit */
  uint64_t refused;                /* 429 and 503 */
  uint64_t left;                   /* clients that left before their answer was whole */
  uint64_t stalled;                /* of those: they took nothing for too long, or too little */
} http_metrics_t;

void accrt_http_observe(http_histogram_t* histogram, double value);

/* The name of a server's group. Its `self` is the server. */
#define HTTP_GROUP_NAME "accrt_http_server"
/* A group of such metrics, without `self` and `read`. */
void accrt_http_metrics_group(accrt_counter_group_t* out_group);
/* The values of that group. */
void accrt_http_metrics_values(const http_metrics_t* metrics, double* values);

/* A text of metrics: of one engine, its server, and all that is no engine's and no server's. */
typedef struct http_page {
  http_text_t* text;
  const void* engine;
  const void* server;
  const char* model; /* its name, for the counters of both */
} http_page_t;
/* Adds all groups of the instance to the page. */
void accrt_http_put_metrics(const http_page_t* page, accrt_instance_t* instance);

#endif
