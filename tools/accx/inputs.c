/* tools/accx/inputs.c - a function's inputs from --input: files and generated arrays. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "npy.h"
#include "term.h"
#include "standard.h"

/* ---- Values: a pattern or a file ---- */

static const char* const patterns[] = {"zeros", "ones", "arange", "random"};
#define PATTERN_COUNT (sizeof patterns / sizeof *patterns)

/* Reads "zeros", "ones", "arange", "random" or "random:7". *out_pattern is NULL for anything
 * else. */
static int read_pattern(const char* value, const char** out_pattern, uint64_t* out_seed) {
  *out_pattern = NULL;
  *out_seed = 0;
  for (size_t i = 0; i < PATTERN_COUNT; ++i) {
    if (strcmp(value, patterns[i]) == 0)
      *out_pattern = patterns[i];
  }
  int64_t seed = 0;
  if (strncmp(value, "random:", 7) != 0)
    return ACCX_OK;
  if (!accx_parse_i64(value + 7, &seed) || seed < 0)
    return accx_fail(ACCX_USAGE, "the seed in '%s' must be a whole number from 0", value);
  *out_pattern = "random";
  *out_seed = (uint64_t)seed;
  return ACCX_OK;
}

/* For "FILE.npz" or "FILE.npz:KEY" the path without the key; otherwise NULL. */
static const char* npz_path(const char* value, const char** out_key) {
  const size_t length = strlen(value);
  *out_key = NULL;
  if (accx_standard_is_zip(value))
    return value;
  if (length >= 4 && strcmp(value + length - 4, ".npz") == 0)
    return value;
  const char* colon = strstr(value, ".npz:");
  if (!colon)
    return NULL;
  *out_key = colon + 5;
  return accx_text("%.*s", (int)(colon + 4 - value), value);
}

/* .npy has no 8-bit floats and no bf16. Their bits come as unsigned integers. */
static void take_bits_for_type(accx_argument_t* argument) {
  const accrt_dtype_t wanted = argument->info.dtype;
  accx_array_t* array = &argument->array;
  if (array->dtype == ACCRT_DTYPE_U16 && wanted == ACCRT_DTYPE_BF16)
    array->dtype = wanted;
  if (array->dtype == ACCRT_DTYPE_U8 && wanted >= ACCRT_DTYPE_F8E4M3FN &&
      wanted <= ACCRT_DTYPE_F8E8M0)
    array->dtype = wanted;
}

static int read_array(const char* value, const char* default_key, accx_array_t* out_array) {
  const char* key = NULL;
  const char* archive = npz_path(value, &key);
  accx_progress("reading %s ...", value);
  if (!archive)
    return accx_npy_read(value, out_array);
  accx_npz_t* npz = NULL;
  int code = accx_npz_open(archive, &npz);
  if (!code)
    code = accx_npz_read(npz, key ? key : default_key, out_array);
  accx_npz_close(npz);
  return code;
}

static int set_input(accx_job_t* job, accx_argument_t* argument, const char* value) {
  if (argument->info.kind == ACCRT_ARGUMENT_SCALAR)
    return accx_fail(ACCX_USAGE, "input '%s' is a scalar: give --scalar %s=VALUE",
                     argument->info.name, argument->info.name);
  if (argument->given)
    return accx_fail(ACCX_USAGE, "input '%s' is given twice", argument->info.name);
  argument->given = true;
  argument->source = value;
  int code = read_pattern(value, &argument->pattern, &argument->seed);
  if (code || argument->pattern)
    return code;
  const char* near = accx_near(value, patterns, PATTERN_COUNT);
  if (*near && access(value, F_OK) != 0)
    return accx_fail(ACCX_USAGE, "input '%s': there is no file '%s'%s", argument->info.name, value,
                     near);
  code = read_array(value, argument->info.name, &argument->array);
  accx_progress_clear();
  if (code)
    return code;
  take_bits_for_type(argument);
  if (argument->array.dtype != argument->info.dtype)
    return accx_fail(ACCX_FAILED, "input '%s' is %s; %s holds %s", argument->info.name,
                     argument->type, value, accrt_dtype_name(argument->array.dtype));
  return accx_job_bind_sizes(job, argument);
}

/* ---- The command line ---- */

static int unknown_input(const accx_job_t* job, const char* name) {
  const uint32_t count = job->function_info.input_count;
  const char** names = accx_alloc(count, sizeof *names);
  for (uint32_t i = 0; i < count; ++i)
    names[i] = job->arguments[i].info.name;
  const char* near = accx_near(name, names, count);
  const char* list = "";
  for (uint32_t i = 0; i < count && i < 16; ++i)
    list = accx_text("%s%s%s", list, i ? ", " : "", names[i]);
  free(names);
  return accx_fail(ACCX_USAGE, "function '%s' has no input '%s'%s (inputs: %s)",
                   job->function_info.name, name, near, count ? list : "none");
}

static int set_named_input(accx_job_t* job, const char* text, const char* equals) {
  const size_t length = (size_t)(equals - text);
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (strlen(argument->info.name) == length && memcmp(argument->info.name, text, length) == 0)
      return set_input(job, argument, equals + 1);
  }
  return unknown_input(job, accx_text("%.*s", (int)length, text));
}

static bool archive_has(const accx_npz_t* npz, const char* name) {
  for (size_t i = 0; i < accx_npz_count(npz); ++i) {
    const char* entry = accx_npz_name(npz, i);
    if (entry && strcmp(entry, name) == 0)
      return true;
  }
  return false;
}

/* Takes each array of an archive that has the name of an input without a value. */
static int set_from_archive(accx_job_t* job, const char* path) {
  accx_npz_t* npz = NULL;
  int code = accx_npz_open(path, &npz);
  uint32_t used = 0;
  for (uint32_t i = 0; i < job->function_info.input_count && !code; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (argument->given || argument->info.kind == ACCRT_ARGUMENT_SCALAR ||
        !archive_has(npz, argument->info.name))
      continue;
    code = set_input(job, argument, path);
    ++used;
  }
  accx_npz_close(npz);
  if (!code && used == 0)
    return accx_fail(ACCX_USAGE, "%s has no array with the name of an input of '%s'", path,
                     job->function_info.name);
  return code;
}

static int set_all(accx_job_t* job, const char* value) {
  const char *pattern = NULL, *key = NULL;
  uint64_t seed = 0;
  int code = read_pattern(value, &pattern, &seed);
  if (code)
    return code;
  if (!pattern && npz_path(value, &key) && !key)
    return set_from_archive(job, value);
  if (!pattern)
    return accx_fail(
        ACCX_USAGE,
        "--input '%s' says no input: give NAME=%s, or one of zeros, ones, arange, random", value,
        value);
  for (uint32_t i = 0; i < job->function_info.input_count && !code; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (!argument->given && !argument->info.optional &&
        argument->info.kind != ACCRT_ARGUMENT_SCALAR)
      code = set_input(job, argument, value);
  }
  return code;
}

static bool wants_tensors(const accx_job_t* job) {
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    const accrt_argument_info_t* info = &job->arguments[i].info;
    if (info->kind != ACCRT_ARGUMENT_SCALAR && !info->optional)
      return true;
  }
  return false;
}

/* Named inputs first; values for all inputs fill the rest. If the user gives none at all, all are
 * random, so that a first try needs no files. If the user gives some, a missing one is an error. */
int accx_job_read_inputs(accx_job_t* job) {
  int code = ACCX_OK;
  if (!accx_args_has(job->args, "input") && wants_tensors(job)) {
    job->all_random = true;
    return set_all(job, "random");
  }
  for (int pass = 0; pass < 2; ++pass) {
    size_t cursor = 0;
    for (const char* text; !code && (text = accx_args_next(job->args, "input", &cursor));) {
      const char* equals = strchr(text, '=');
      if (pass == 0 && equals)
        code = set_named_input(job, text, equals);
      if (pass == 1 && !equals)
        code = set_all(job, text);
    }
  }
  return code;
}

int accx_job_generate_inputs(accx_job_t* job) {
  int code = ACCX_OK;
  for (uint32_t i = 0; i < job->function_info.input_count && !code; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (!argument->pattern)
      continue;
    const char* what = accx_text("input '%s'", argument->info.name);
    int64_t shape[ACCRT_MAX_RANK] = {0};
    code = accx_job_shape(job, argument, shape);
    if (!code)
      code = accx_array_create(argument->info.dtype, argument->info.rank, shape, what,
                               &argument->array);
    /* The input's index is part of the seed, so that inputs of one shape differ. */
    if (!code)
      code = accx_array_generate(&argument->array, argument->pattern,
                                 argument->seed + UINT64_C(0x5851F42D4C957F2D) * (i + 1), what);
  }
  return code;
}
