/* tools/accx/outputs.h - results of a run: into .npy files, and as a summary for people or as JSON. */
#ifndef ACCX_OUTPUTS_H_
#define ACCX_OUTPUTS_H_

#include "job.h"
#include "json_out.h"

/* Where results go, from --output and --out-dir; one path (NULL: nowhere) for each argument. */
typedef struct accx_outputs {
  const char** paths;
  const char** notes; /* what .npy could not hold, once written */
} accx_outputs_t;

/* Before anything runs, so that a wrong name shows at once. */
int accx_outputs_plan(const accx_job_t* job, accx_outputs_t* out_outputs);
int accx_outputs_write(const accx_job_t* job, accx_outputs_t* outputs);
void accx_outputs_print(const accx_job_t* job, const accx_outputs_t* outputs);
void accx_outputs_json(const accx_job_t* job, const accx_outputs_t* outputs,
                       struct json_object* root);
void accx_outputs_free(accx_outputs_t* outputs);
/* File, function, device, symbols and inputs: the head of what run and bench print as JSON. */
void accx_job_json(const accx_job_t* job, struct json_object* root);
/* A line for people: "batch=2 seq=8 ids=ids.npy mask=ones". */
void accx_job_print_inputs(const accx_job_t* job);

#endif /* ACCX_OUTPUTS_H_ */
