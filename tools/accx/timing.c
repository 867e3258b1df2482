/* tools/accx/timing.c - repeats runs and computes statistics of their times. */
#include "timing.h"

#include <inttypes.h>
#include <stdlib.h>

#include "json_out.h"
#include "term.h"

#define PROGRESS_NS UINT64_C(100000000)

static int compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

/* The smallest time that 90% of the runs did not exceed. */
static double at_nine_tenths(const double* sorted, uint64_t count) {
  return sorted[(count * 9 + 9) / 10 - 1];
}

static void summarize(double* times, uint64_t count, accx_times_t* out_times) {
  *out_times = (accx_times_t){.count = count, .first_ns = times[0]};
  for (uint64_t i = 0; i < count; ++i)
    out_times->mean_ns += times[i] / (double)count;
  qsort(times, (size_t)count, sizeof *times, compare);
  out_times->median_ns =
      count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
  out_times->minimum_ns = times[0];
  out_times->p90_ns = at_nine_tenths(times, count);
  out_times->maximum_ns = times[count - 1];
}

int accx_time_runs(accx_job_t* job, const char* what, uint64_t count, uint64_t limit_ns,
                   accx_times_t* out_times) {
  double* times = accx_alloc((size_t)count, sizeof *times);
  const uint64_t begin_ns = accx_now_ns();
  uint64_t shown_ns = begin_ns, done = 0;
  int code = ACCX_OK;
  while (done < count && !code) {
    const uint64_t start_ns = accx_now_ns();
    code = accx_job_run(job);
    const uint64_t end_ns = accx_now_ns();
    times[done++] = (double)(end_ns - start_ns);
    if (end_ns - shown_ns > PROGRESS_NS) {
      accx_progress("%s: %" PRIu64 " of %" PRIu64, what, done, count);
      shown_ns = end_ns;
    }
    if (limit_ns && end_ns - begin_ns >= limit_ns)
      break;
  }
  accx_progress_clear();
  if (!code)
    summarize(times, done, out_times);
  free(times);
  return code;
}

void accx_times_json(struct json_object* parent, const char* key, const accx_times_t* times) {
  struct json_object* object = accx_json_object(parent, key);
  accx_json_u64(object, "count", times->count);
  json_object_object_add(object, "median", accx_json_real(times->median_ns, 12));
  json_object_object_add(object, "minimum", accx_json_real(times->minimum_ns, 12));
  json_object_object_add(object, "mean", accx_json_real(times->mean_ns, 12));
  json_object_object_add(object, "p90", accx_json_real(times->p90_ns, 12));
  json_object_object_add(object, "maximum", accx_json_real(times->maximum_ns, 12));
}
