/* tools/accx/job_weights.c - weights outside the bundle, a rank's part of them, and adapters, for
 * `run` and `bench`. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Checks that tensors have the rank of the config: A is [rank, in], B is [out, rank]. */
static int check_rank(const char* path, accrt_weights_t* weights, int64_t rank) {
  accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
  for (uint32_t i = 0; accrt_weights_tensor(weights, i, &tensor) == ACCRT_OK; ++i) {
    const char* which = NULL;
    for (const char* at = tensor.name; (at = strstr(at, "lora_")) != NULL;) {
      at += strlen("lora_");
      at += strncmp(at, "embedding_", 10) == 0 ? 10 : 0;
      which = *at && strchr("ABab", *at) ? at : which;
    }
    const uint32_t dimension = which && strchr("Bb", *which) ? 1 : 0;
    if (which && tensor.rank > 1 && tensor.shape[dimension] != rank)
      return accx_fail(ACCX_FAILED, "%s: r is %" PRId64 ", but '%s' is of rank %" PRId64, path,
                       rank, tensor.name, tensor.shape[dimension]);
  }
  return ACCX_OK;
}

#define MAX_ALPHA 0x1p53
#define MAX_RANK UINT32_MAX

/* Checks that a value is a number of at most `limit`, of any sign. json-c turns a number with too
 * many digits into the largest one, so numbers near that are refused. Reports what is wrong. */
static int check_number(const char* path, const char* name, struct json_object* value, double limit,
                        const char* limit_text, const char* what) {
  const bool is_number =
      json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
  if (is_number && fabs(json_object_get_double(value)) <= limit)
    return ACCX_OK;
  if (is_number && !isnan(json_object_get_double(value)))
    return accx_fail(ACCX_FAILED, "%s: %s is beyond %s, which is no %s", path, name, limit_text,
                     what);
  return accx_fail(ACCX_FAILED, "%s: %s is %.80s, which is no %s", path, name,
                   accx_safe(json_object_to_json_string(value)), what);
}

static int read_factors(const char* path, struct json_object* root, accrt_weights_t* weights,
                        accrt_adapter_options_t* options) {
  static const char* const others[] = {"rank_pattern", "alpha_pattern", "use_dora"};
  struct json_object *value, *alpha = NULL, *r = NULL;
  if (!json_object_is_type(root, json_type_object))
    return accx_fail(ACCX_FAILED, "%s is no JSON object", path);
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (!json_object_object_get_ex(root, others[i], &value))
      continue;
    const bool is_object = json_object_is_type(value, json_type_object);
    if (is_object ? json_object_object_length(value) > 0 : json_object_get_boolean(value))
      return accx_fail(ACCX_FAILED,
                       "%s has %s, which one factor for all adapter tensors does not express", path,
                       others[i]);
  }
  int code = ACCX_OK;
  if (json_object_object_get_ex(root, "lora_alpha", &alpha))
    code = check_number(path, "lora_alpha", alpha, MAX_ALPHA, "2^53", "number");
  if (!code && json_object_object_get_ex(root, "r", &r) && r)
    code = check_number(path, "r", r, MAX_RANK, "2^32 - 1", "rank");
  if (!code && r && (!json_object_is_type(r, json_type_int) || json_object_get_int64(r) < 1))
    code = accx_fail(ACCX_FAILED, "%s: r is %s, which is no rank", path,
                     json_object_to_json_string(r));
  if (code)
    return code;
  const int64_t rank = json_object_get_int64(r);
  code = rank ? check_rank(path, weights, rank) : ACCX_OK;
  options->alpha = json_object_get_double(alpha);
  if (code || !json_object_object_get_ex(root, "use_rslora", &value) ||
      !json_object_get_boolean(value))
    return code;
  if (!rank)
    return accx_fail(ACCX_FAILED,
                     "%s: use_rslora divides alpha by the square root of r, and r is not there",
                     path);
  options->scale = options->alpha / sqrt((double)rank);
  return ACCX_OK;
}

#define MAX_CONFIG_BYTES (1 << 20) /* PEFT's own files have some hundred bytes */

/* Reads PEFT's adapter_config.json beside the file: alpha, or the factor when it is not alpha /
 * rank. */
static int read_config(const char* folder, accrt_weights_t* weights,
                       accrt_adapter_options_t* options) {
  const char* path = accx_text("%sadapter_config.json", folder);
  /* The file comes with the adapter of another author: it may be a FIFO, a device, or endless. */
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat facts;
  if (fd < 0)
    return errno == ENOENT ? ACCX_OK : accx_fail(ACCX_FAILED, "%s: %s", path, strerror(errno));
  const bool good =
      fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size <= MAX_CONFIG_BYTES;
  struct json_object* root = good ? json_object_from_fd(fd) : NULL;
  close(fd);
  if (!good)
    return accx_fail(ACCX_FAILED, "%s: not a regular file of at most %d bytes", path,
                     MAX_CONFIG_BYTES);
  if (!root)
    return accx_fail(ACCX_FAILED, "%s: not JSON", path);
  const int code = read_factors(path, root, weights, options);
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
  const char* file = is_folder ? accx_text("%sadapter_model.safetensors", folder) : path;
  accrt_status_t status = accx_open_weights(job->instance, file, &weights);
  const int code = status == ACCRT_OK ? read_config(folder, weights, &options) : ACCX_OK;
  if (status == ACCRT_OK && !code)
    status = accrt_adapter_load(job->program, weights, &options, &adapter);
  if (status == ACCRT_OK && !code)
    status = accrt_session_set_adapter(job->session, adapter);
  accrt_adapter_release(adapter);
  accrt_weights_release(weights);
  return status == ACCRT_OK ? code : accx_fail_status(status, "--adapter %s", path);
}
