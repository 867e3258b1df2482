/* tools/accx/confine.h - runs a job in a process without access to files and network: accrt-sandbox
 * (tools/sandbox). */
#ifndef ACCX_CONFINE_H_
#define ACCX_CONFINE_H_

#include "job.h"

/* Refuses options that a sandbox does not support. Call it before anything is opened. */
int accx_confine_check(const accx_args_t* args);
/* Runs the job's function on its inputs, and stores results in its arguments' arrays. The job has
 * no program and no session. `out_confinement` lives until exit. */
int accx_confine_run(accx_job_t* job, const char** out_confinement, uint64_t* out_time_ns);

#endif /* ACCX_CONFINE_H_ */
