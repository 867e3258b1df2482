/* tools/accx/timing.h - repeats runs, with statistics of their times. */
#ifndef ACCX_TIMING_H_
#define ACCX_TIMING_H_

#include "accx.h"
#include "job.h"

typedef struct accx_times {
  uint64_t count;
  double first_ns; /* time of the first timed run */
  double median_ns, mean_ns, minimum_ns, p90_ns, maximum_ns;
} accx_times_t;

/* Runs `count` times, at least once, for at most `limit_ns` unless that is 0. Progress shows
 * `what`. */
int accx_time_runs(accx_job_t* job, const char* what, uint64_t count, uint64_t limit_ns,
                   accx_times_t* out_times);
struct json_object;
void accx_times_json(struct json_object* parent, const char* key, const accx_times_t* times);

#endif /* ACCX_TIMING_H_ */
