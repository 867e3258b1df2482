/* tools/accx/job_weights.c - weights from outside the bundle, a rank's part of them, and adapters, for `run` and `bench`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <json-c/json.h>

#include "job.h"
#include "open.h"

static size_t count_given(const accx_args_t* args, const char* name) {
  size_t cursor = 0, count = 0;
  while (accx_args_next(args, name, &cursor))
    ++count;
  return count;
}

int accx_job_open_weights(accx_job_t* job, accrt_program_options_t* options) {
  const accx_args_t* args = job->args;
  int64_t rank = -1, degree = 0;
  int code = accx_args_integer(args, "degree", 1, UINT32_MAX, &degree);
  if (!code)
    code = accx_args_integer(args, "rank", 0, UINT32_MAX - 1, &rank);
  if (!code && (rank >= 0) != (degree > 0))
    code = accx_fail(ACCX_USAGE, "--rank and --degree are given together");
  if (code)
    return code;
  options->rank = degree ? (uint32_t)rank : 0;
  options->degree = (uint32_t)degree;
  options->flags = accx_args_has(args, "by-name") ? ACCRT_BIND_BY_NAME : 0;
  job->weights = accx_alloc(count_given(args, "weights") + 1, sizeof *job->weights);
  size_t cursor = 0;
  for (const char* path; (path = accx_args_next(args, "weights", &cursor));) {
    const accrt_status_t status =
        accx_open_weights(job->instance, path, &job->weights[job->weight_count]);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "--weights %s", path);
    ++job->weight_count;
  }
  options->weights = job->weight_count ? job->weights : NULL;
  options->weight_count = job->weight_count;
  return ACCX_OK;
}

/* PEFT's adapter_config.json beside the file: alpha, or the factor where it is not alpha / rank. */
static int read_config(const char* folder, accrt_adapter_options_t* options) {
  const char* path = accx_text("%sadapter_config.json", folder);
  struct stat facts;
  if (stat(path, &facts) != 0)
    return ACCX_OK;
  struct json_object* root = json_object_from_file(path);
  if (!root)
    return accx_fail(ACCX_FAILED, "%s: not JSON", path);
  static const char* const others[] = {"rank_pattern", "alpha_pattern", "use_dora"};
  struct json_object* value;
  int code = ACCX_OK;
  for (size_t i = 0; i < sizeof others / sizeof *others && !code; ++i) {
    if (!json_object_object_get_ex(root, others[i], &value))
      continue;
    const bool is_object = json_object_is_type(value, json_type_object);
    if (is_object ? json_object_object_length(value) > 0 : json_object_get_boolean(value))
      code = accx_fail(ACCX_FAILED, "%s has %s, which slots with one factor do not express", path,
                       others[i]);
  }
  const double alpha =
      json_object_object_get_ex(root, "lora_alpha", &value) ? json_object_get_double(value) : 0;
  const int64_t rank =
      json_object_object_get_ex(root, "r", &value) ? json_object_get_int64(value) : 0;
  if (json_object_object_get_ex(root, "use_rslora", &value) && json_object_get_boolean(value) &&
      rank > 0)
    options->scale = alpha / sqrt((double)rank);
  else
    options->alpha = alpha;
  json_object_put(root);
  return code;
}

int accx_job_set_adapter(accx_job_t* job) {
  const char* path = accx_args_value(job->args, "adapter");
  accrt_adapter_options_t options = ACCRT_ADAPTER_OPTIONS_INIT;
  accrt_weights_t* weights = NULL;
  accrt_adapter_t* adapter = NULL;
  struct stat facts;
  if (!path)
    return ACCX_OK;
  const bool is_folder = stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
  const char* slash = strrchr(path, '/');
  const char* folder = is_folder ? accx_text("%s/", path)
                       : slash   ? accx_text("%.*s", (int)(slash - path) + 1, path)
                                 : "";
  const int code = read_config(folder, &options);
  if (code)
    return code;
  const char* file = is_folder ? accx_text("%sadapter_model.safetensors", folder) : path;
  accrt_status_t status = accx_open_weights(job->instance, file, &weights);
  if (status == ACCRT_OK)
    status = accrt_adapter_load(job->program, weights, &options, &adapter);
  if (status == ACCRT_OK)
    status = accrt_session_set_adapter(job->session, adapter);
  accrt_adapter_release(adapter);
  accrt_weights_release(weights);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "--adapter %s", path);
}
