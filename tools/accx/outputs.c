/* tools/accx/outputs.c - results of a run: files, a summary, JSON. */
#include "outputs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "npy.h"
#include "signature.h"
#include "term.h"
#include "write/text/show.h"

#define FIRST_VALUES 8

/* ---- Where results go ---- */

static bool path_is_taken(const accx_job_t* job, const accx_outputs_t* outputs, const char* path) {
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    if (outputs->paths[i] && strcmp(outputs->paths[i], path) == 0)
      return true;
  }
  return false;
}

static int plan_named(const accx_job_t* job, accx_outputs_t* outputs, const char* text) {
  const char* equals = strchr(text, '=');
  if (!equals || equals == text || !equals[1])
    return accx_fail(ACCX_USAGE, "--output is '%s'; it must be NAME=FILE.npy", text);
  const char* name = accx_text("%.*s", (int)(equals - text), text);
  const char** names = accx_alloc(job->argument_count, sizeof *names);
  size_t count = 0;
  /* Results first: an input that is updated in place may have the same name. */
  for (uint32_t n = 0; n < job->argument_count; ++n) {
    const uint32_t i = (n + job->function_info.input_count) % job->argument_count;
    if (!accx_argument_is_output(&job->arguments[i]))
      continue;
    names[count++] = job->arguments[i].info.name;
    if (strcmp(names[count - 1], name) != 0)
      continue;
    free(names);
    if (outputs->paths[i] && strcmp(outputs->paths[i], equals + 1) != 0)
      return accx_fail(ACCX_USAGE, "--output names two files for result '%s'", name);
    outputs->paths[i] = NULL;
    if (path_is_taken(job, outputs, equals + 1))
      return accx_fail(ACCX_USAGE, "--output names %s for two results", equals + 1);
    outputs->paths[i] = equals + 1;
    return ACCX_OK;
  }
  const int code = accx_fail(ACCX_USAGE, "function '%s' has no result '%s'%s",
                             job->function_info.name, name, accx_near(name, names, count));
  free(names);
  return code;
}

/* A name from the bundle as a file name that stays in the folder, is not hidden and is safe for a
 * shell. */
static const char* file_name(const char* name) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
  char* copy = strdup(name);
  if (!copy)
    return "result";
  for (char* at = copy; *at; ++at) {
    const unsigned char c = (unsigned char)*at;
    const size_t unsafe = accx_unsafe_bytes(at);
    if (unsafe > 0) {
      memset(at, '_', unsafe);
      at += unsafe - 1;
    } else if (c < 0x80 && !strchr(plain, c)) {
      *at = '_';
    }
  }
  if (copy[0] == '.' || copy[0] == '-')
    copy[0] = '_';
  size_t length = strnlen(copy, 200);
  while (((unsigned char)copy[length] & 0xC0) == 0x80)
    --length; /* no part of a character */
  const char* text = accx_text("%.*s", (int)length, copy);
  free(copy);
  return text;
}

static int plan_folder(const accx_job_t* job, accx_outputs_t* outputs, const char* folder) {
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return accx_fail(ACCX_FAILED, "cannot make the folder %s: %s", folder, strerror(errno));
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    if (outputs->paths[i] || !accx_argument_is_output(&job->arguments[i]))
      continue;
    const char* name = file_name(job->arguments[i].info.name);
    const char* path = accx_text("%s/%s.npy", folder, name);
    for (uint32_t n = i; path_is_taken(job, outputs, path); ++n)
      path = accx_text("%s/%s.%u.npy", folder, name, n);
    outputs->paths[i] = path;
  }
  return ACCX_OK;
}

int accx_outputs_plan(const accx_job_t* job, accx_outputs_t* out_outputs) {
  out_outputs->paths = accx_alloc(job->argument_count, sizeof *out_outputs->paths);
  out_outputs->notes = accx_alloc(job->argument_count, sizeof *out_outputs->notes);
  int code = ACCX_OK;
  size_t cursor = 0;
  for (const char* text; !code && (text = accx_args_next(job->args, "output", &cursor));)
    code = plan_named(job, out_outputs, text);
  const char* folder = accx_args_value(job->args, "out-dir");
  return !code && folder ? plan_folder(job, out_outputs, folder) : code;
}

int accx_outputs_write(const accx_job_t* job, accx_outputs_t* outputs) {
  int code = ACCX_OK;
  for (uint32_t i = 0; i < job->argument_count && !code; ++i) {
    if (outputs->paths[i])
      code = accx_npy_write(outputs->paths[i], &job->arguments[i].array, &outputs->notes[i]);
  }
  return code;
}

void accx_outputs_free(accx_outputs_t* outputs) {
  free(outputs->paths);
  free(outputs->notes);
  memset(outputs, 0, sizeof *outputs);
}

/* ---- For people ---- */

static const char* first_values(const accx_array_t* array) {
  const char* text = "";
  const uint64_t count = array->element_count < FIRST_VALUES ? array->element_count : FIRST_VALUES;
  for (uint64_t i = 0; i < count; ++i)
    text =
        accx_text("%s%s%s", text, i ? " " : "", accx_value_text(array, accx_array_value(array, i)));
  return count < array->element_count ? accx_text("%s ...", text) : text;
}

static void print_output(const accx_argument_t* argument, const char* path, const char* note) {
  const accx_array_t* array = &argument->array;
  fprintf(accx_out, "  %s%s%s: %s%s%s  %s%s\n", accx_style(ACCX_NAME),
          accx_safe(argument->info.name), accx_style(ACCX_PLAIN), accx_style(ACCX_TYPE),
          accx_shape_text(array->dtype, array->rank, array->shape), accx_style(ACCX_PLAIN),
          accx_bytes(array->size_bytes).text,
          argument->info.kind == ACCRT_ARGUMENT_RESULT ? "" : "  (updated in place)");
  const accx_statistics_t s = accx_array_statistics(array);
  if (s.counted)
    fprintf(accx_out, "    min %s  mean %.6g  max %s  NaN %" PRIu64 "\n",
            accx_value_text(array, s.minimum), s.mean, accx_value_text(array, s.maximum),
            s.nan_count);
  else if (s.nan_count)
    fprintf(accx_out, "    NaN %" PRIu64 ", all\n", s.nan_count);
  if (array->element_count)
    fprintf(accx_out, "    %s\n", first_values(array));
  if (path)
    fprintf(accx_out, "    %swritten to %s%s%s%s\n", accx_style(ACCX_DIM), accx_safe(path),
            note ? ": " : "", note ? note : "", accx_style(ACCX_PLAIN));
}

void accx_outputs_print(const accx_job_t* job, const accx_outputs_t* outputs) {
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    if (accx_argument_is_output(&job->arguments[i]))
      print_output(&job->arguments[i], outputs->paths[i], outputs->notes[i]);
  }
}

void accx_job_print_inputs(const accx_job_t* job) {
  const char* text = "";
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    const accx_symbol_t* symbol = &job->symbols[i];
    if (symbol->known)
      text = accx_text("%s %s=%" PRId64, text, symbol->info.name, symbol->value);
  }
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    const accx_argument_t* argument = &job->arguments[i];
    if (argument->given && argument->info.kind != ACCRT_ARGUMENT_SCALAR)
      text = accx_text("%s %s=%s", text, argument->info.name, argument->source);
  }
  if (text[0])
    fprintf(accx_out, "  %s%s%s\n", accx_style(ACCX_DIM), accx_safe(text + 1),
            accx_style(ACCX_PLAIN));
}

/* ---- JSON ---- */

static struct json_object* json_value(const accx_array_t* array, accx_value_t value) {
  if (array->dtype == ACCRT_DTYPE_BOOL)
    return json_object_new_boolean(value.natural != 0);
  if (value.kind == ACCX_SIGNED)
    return json_object_new_int64(value.whole);
  if (value.kind == ACCX_UNSIGNED)
    return json_object_new_uint64(value.natural);
  return accx_json_real(value.real, accx_dtype_digits(array->dtype));
}

static void add_type(struct json_object* object, const accx_argument_t* argument) {
  accx_json_text(object, "type", argument->type);
  accx_json_text(object, "dtype", accrt_dtype_name(argument->array.dtype));
  accx_json_shape(object, "shape", argument->array.rank, argument->array.shape);
  accx_json_u64(object, "size_bytes", argument->array.size_bytes);
}

static void add_input(struct json_object* array, const accx_argument_t* argument) {
  struct json_object* object = accx_json_append(array);
  accx_json_text(object, "name", argument->info.name);
  accx_json_text(object, "kind", accx_argument_kind_name(argument->info.kind));
  accx_json_text(object, "source", argument->source);
  if (argument->info.kind == ACCRT_ARGUMENT_SCALAR)
    accx_json_i64(object, "value", argument->scalar);
  else
    add_type(object, argument);
}

void accx_job_json(const accx_job_t* job, struct json_object* root) {
  accx_json_text(root, "file", job->path);
  accx_json_text(root, "function", job->function_info.name);
  accx_json_text(root, "device", job->device_info.name);
  accx_json_u64(root, "device_concurrency", job->device_info.concurrency);
  struct json_object* symbols = accx_json_object(root, "symbols");
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    if (job->symbols[i].known)
      accx_json_i64(symbols, job->symbols[i].info.name, job->symbols[i].value);
  }
  struct json_object* inputs = accx_json_array(root, "inputs");
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    if (job->arguments[i].given)
      add_input(inputs, &job->arguments[i]);
  }
}

static void add_output(struct json_object* array, const accx_argument_t* argument, const char* path,
                       const char* note) {
  struct json_object* object = accx_json_append(array);
  const accx_array_t* data = &argument->array;
  const accx_statistics_t s = accx_array_statistics(data);
  accx_json_text(object, "name", argument->info.name);
  accx_json_text(object, "kind", accx_argument_kind_name(argument->info.kind));
  add_type(object, argument);
  json_object_object_add(object, "min", s.counted ? json_value(data, s.minimum) : NULL);
  json_object_object_add(object, "mean", s.counted ? accx_json_real(s.mean, 12) : NULL);
  json_object_object_add(object, "max", s.counted ? json_value(data, s.maximum) : NULL);
  accx_json_u64(object, "nan_count", s.nan_count);
  struct json_object* first = accx_json_array(object, "first");
  for (uint64_t i = 0; i < data->element_count && i < FIRST_VALUES; ++i)
    json_object_array_add(first, json_value(data, accx_array_value(data, i)));
  accx_json_text(object, "path", path);
  accx_json_text(object, "note", note);
}

void accx_outputs_json(const accx_job_t* job, const accx_outputs_t* outputs,
                       struct json_object* root) {
  struct json_object* results = accx_json_array(root, "results");
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    if (accx_argument_is_output(&job->arguments[i]))
      add_output(results, &job->arguments[i], outputs->paths[i], outputs->notes[i]);
  }
}
