/* tools/accx/outputs.h - results of a run: .npy files, and a summary for people or as JSON. */
#ifndef ACCX_OUTPUTS_H_
#define ACCX_OUTPUTS_H_

#include "job.h"
#include "json_out.h"

/* Paths for results, from --output and --out-dir: one (NULL: none) for each argument. */
typedef struct accx_outputs {
  const char** paths;
  const char** notes; /* by argument, after writing: what .npy could not represent */
} accx_outputs_t;

/* Call it before the run, so that a wrong name is reported at once. */
int accx_outputs_plan(const accx_job_t* job, accx_outputs_t* out_outputs);
int accx_outputs_write(const accx_job_t* job, accx_outputs_t* outputs);
void accx_outputs_print(const accx_job_t* job, const accx_outputs_t* outputs);
void accx_outputs_json(const accx_job_t* job, const accx_outputs_t* outputs,
                       struct json_object* root);
void accx_outputs_free(accx_outputs_t* outputs);
/* Adds file, function, device, symbols and inputs: the first part of the JSON of run and bench. */
void accx_job_json(const accx_job_t* job, struct json_object* root);
/* Prints a line for people: "batch=2 seq=8 ids=ids.npy mask=ones". */
void accx_job_print_inputs(const accx_job_t* job);

#endif /* ACCX_OUTPUTS_H_ */
