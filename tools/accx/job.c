/* tools/accx/job.c - from a command line to a call that can run, and to its results. */
#include "job.h"

#include <stdlib.h>
#include <string.h>

#include "keys.h"
#include "open.h"
#include "signature.h"
#include "term.h"

/* ---- The function ---- */

static const char** public_names(accx_job_t* job, uint32_t count, size_t* out_count,
                                 uint32_t* out_last) {
  const char** names = accx_alloc(count, sizeof *names);
  *out_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    accrt_function_info_t info = ACCRT_FUNCTION_INFO_INIT;
    if (accrt_bundle_function(job->bundle, i, &info) != ACCRT_OK || info.flags != 0)
      continue;
    names[(*out_count)++] = info.name;
    *out_last = i;
  }
  return names;
}

static const char* join(const char* const* names, size_t count) {
  const char* text = "";
  for (size_t i = 0; i < count && i < 16; ++i)
    text = accx_text("%s%s%s", text, i ? ", " : "", names[i]);
  return count > 16 ? accx_text("%s, ...", text) : text;
}

static int choose_function(accx_job_t* job, const char* wanted, const char* const* names,
                           size_t count, uint32_t only) {
  if (count == 0)
    return accx_fail(ACCX_FAILED, "%s has no function that can be called", job->path);
  if (!wanted && count > 1)
    return accx_fail(ACCX_USAGE, "%s has %zu functions; choose one with --function: %s", job->path,
                     count, join(names, count));
  for (size_t i = 0; i < count && wanted; ++i) {
    if (strcmp(names[i], wanted) == 0)
      return accrt_bundle_find_function(job->bundle, wanted, &job->function) == ACCRT_OK
                 ? ACCX_OK
                 : ACCX_FAILED;
  }
  if (wanted)
    return accx_fail(ACCX_USAGE, "%s has no function '%s' to call%s (functions: %s)", job->path,
                     wanted, accx_near(wanted, names, count), join(names, count));
  job->function = only;
  return ACCX_OK;
}

static int find_function(accx_job_t* job) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_status_t status = accrt_bundle_info(job->bundle, &info);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", job->path);
  size_t count = 0;
  uint32_t only = 0;
  const char** names = public_names(job, info.function_count, &count, &only);
  const int code = choose_function(job, accx_args_value(job->args, "function"), names, count, only);
  free(names);
  if (code)
    return code;
  job->function_info = (accrt_function_info_t)ACCRT_FUNCTION_INFO_INIT;
  status = accrt_bundle_function(job->bundle, job->function, &job->function_info);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", job->path);
}

static int read_arguments(accx_job_t* job) {
  const uint32_t count = job->function_info.input_count + job->function_info.result_count;
  job->arguments = accx_alloc(count, sizeof *job->arguments);
  for (; job->argument_count < count; ++job->argument_count) {
    accx_argument_t* argument = &job->arguments[job->argument_count];
    argument->info = (accrt_argument_info_t)ACCRT_ARGUMENT_INFO_INIT;
    const accrt_status_t status =
        accrt_bundle_argument(job->bundle, job->function, job->argument_count, &argument->info);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", job->path);
    argument->type = accx_type_text(job->bundle, job->function, job->argument_count);
  }
  return ACCX_OK;
}

/* ---- Program and session ---- */

/* The signers of the bundle's code, for the message; NULL where there are none. */
static const char* signers(accrt_bundle_t* bundle) {
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  const char* text = NULL;
  if (accrt_bundle_trust(bundle, &trust) != ACCRT_OK)
    return NULL;
  for (uint32_t i = 0; i < trust.signature_count && i < 4; ++i) {
    if (accrt_bundle_signature(bundle, i, &info) == ACCRT_OK && info.scope == ACCRT_SCOPE_CODE)
      text = accx_text("%s%s%s", text ? text : "", text ? ", " : "", accx_key_name(&info.key));
  }
  return text;
}

/* True when the library's message is more specific than the tool's: it names a signer or a
 * floor. */
static bool is_known(const accx_job_t* job) {
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  accrt_key_trust_t key = ACCRT_KEY_TRUST_INIT;
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  if (accrt_bundle_trust(job->bundle, &trust) != ACCRT_OK)
    return false;
  for (uint32_t i = 0; i < trust.signature_count; ++i) {
    if (accrt_bundle_signature(job->bundle, i, &info) == ACCRT_OK &&
        info.scope == ACCRT_SCOPE_CODE &&
        accrt_instance_key_trust(job->instance, &info.key, &key) == ACCRT_OK && key.trusted != 0 &&
        info.trusted == 0)
      return true;
  }
  return false;
}

static int refuse_code(const accx_job_t* job) {
  const char* message = accx_text("%s", accx_last_message());
  if (strstr(message, "(rule 148)") != NULL || is_known(job))
    return accx_fail(ACCX_REFUSED, "%s (%s)", message, accrt_status_name(ACCRT_ERROR_UNTRUSTED));
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  if (accrt_bundle_trust(job->bundle, &trust) == ACCRT_OK && trust.code_trusted != 0) {
    return accx_fail(ACCX_REFUSED,
                     "%s holds machine code for this processor; the policy no-host-code (--trust, "
                     "ACCRT_TRUST) runs none, even if it is signed (%s)",
                     job->path, accrt_status_name(ACCRT_ERROR_UNTRUSTED));
  }
  const char* keys = signers(job->bundle);
  const char* whose =
      keys != NULL ? accx_text("is signed by %s, which you do not trust", keys) : "is not signed";
  return accx_fail(ACCX_REFUSED,
                   "%s contains machine code for this processor, which can do whatever you can, "
                   "and %s. %saccx sign --vouch signs it with your key; --allow-host-code runs it "
                   "this once (%s)",
                   job->path, whose, keys != NULL ? "accx trust add KEY.pem trusts its key; " : "",
                   accrt_status_name(ACCRT_ERROR_UNTRUSTED));
}

/* The missing option that would fix a failure, if there is one. */
static const char* cure(const accx_job_t* job, accrt_status_t status) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  if (status == ACCRT_ERROR_NOT_FOUND && job->weight_count == 0)
    return "; --weights PATH says where they are";
  if (status == ACCRT_ERROR_PERMISSION_DENIED && !accx_args_has(job->args, "secret-key") &&
      accrt_bundle_trust(job->bundle, &trust) == ACCRT_OK && trust.encrypted != 0)
    return "; --secret-key FILE gives it";
  if (status == ACCRT_ERROR_INVALID_ARGUMENT && !accx_args_has(job->args, "rank") &&
      accrt_bundle_info(job->bundle, &info) == ACCRT_OK && info.shard_count != 0)
    return "; --rank N --degree N say which it is";
  return "";
}

static int fail_program(const accx_job_t* job, accrt_status_t status) {
  const char* way = cure(job, status);
  if (*way == '\0')
    return accx_fail_status(status, "%s", job->path);
  return accx_fail(accx_exit_code(status), "%s: %s%s (%s)", job->path, accx_last_message(), way,
                   accrt_status_name(status));
}

static int make_program(accx_job_t* job) {
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.variant_override = accx_args_value(job->args, "variant");
  options.budget = &accx_budget;
  const char* name = accx_args_value(job->args, "device");
  const int code = accx_job_open_weights(job, &options);
  if (code)
    return code;
  job->device_info = (accrt_device_info_t)ACCRT_DEVICE_INFO_INIT;
  accrt_status_t status =
      accrt_instance_device_by_name(job->instance, name ? name : "host", &job->device);
  if (status == ACCRT_OK)
    status = accrt_device_info(job->device, &job->device_info);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "device %s", name ? name : "host");
  accx_progress("loading %s onto %s ...", job->path, job->device_info.name);
  status = accrt_program_create(job->device, job->bundle, &options, &job->program);
  accx_progress_clear();
  if (status == ACCRT_ERROR_UNTRUSTED && !accx_args_has(job->args, "allow-host-code"))
    return refuse_code(job);
  return status == ACCRT_OK ? ACCX_OK : fail_program(job, status);
}

static int make_session(accx_job_t* job) {
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_symbol_value_t* values =
      accx_job_symbol_values(job, ACCRT_SYMBOL_SESSION, &options.symbol_count);
  options.symbols = values;
  options.symbol_size_bytes = (uint32_t)sizeof *values;
  options.label = "accx";
  options.budget = &accx_budget;
  accrt_status_t status = accrt_session_create(job->program, &options, &job->session);
  free(values);
  if (status == ACCRT_OK)
    status = accrt_call_create(job->session, job->function_info.name, &job->call);
  return status == ACCRT_OK
             ? ACCX_OK
             : accx_fail_status(status, "%s: function '%s'", job->path, job->function_info.name);
}

/* ---- Arguments ---- */

static bool uses_host_memory(const accx_job_t* job) {
  return (job->device_info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
}

/* Copies between an array and device memory, and waits. */
static accrt_status_t copy_array(accx_job_t* job, accx_array_t* array, accrt_buffer_t* buffer,
                                 uint64_t offset_bytes, bool to_device) {
  accrt_stream_t* stream = accrt_session_stream(job->session);
  const accrt_place_t host = {NULL, array->data, 0}, device = {buffer, NULL, offset_bytes};
  accrt_status_t status = array->size_bytes == 0
                              ? ACCRT_OK
                              : accrt_stream_copy(stream, to_device ? &host : &device,
                                                  to_device ? &device : &host, array->size_bytes);
  return status == ACCRT_OK
             ? accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK)
             : status;
}

static accrt_status_t place_array(accx_job_t* job, accx_argument_t* argument) {
  accrt_pool_t* pool = NULL;
  if (uses_host_memory(job))
    return ACCRT_OK;
  accrt_status_t status = accrt_device_pool(job->device, ACCRT_MEMORY_DEVICE, &pool);
  if (status == ACCRT_OK)
    status = accrt_buffer_create(pool, argument->array.size_bytes ? argument->array.size_bytes : 1,
                                 NULL, &argument->buffer);
  if (status == ACCRT_OK && argument->info.kind != ACCRT_ARGUMENT_RESULT)
    status = copy_array(job, &argument->array, argument->buffer, 0, true);
  return status;
}

static accrt_status_t bind_tensor(accx_job_t* job, uint32_t index) {
  accx_argument_t* argument = &job->arguments[index];
  const accrt_status_t status = place_array(job, argument);
  if (status != ACCRT_OK)
    return status;
  const accx_array_t* array = &argument->array;
  const accrt_tensor_t tensor = {.buffer = argument->buffer,
                                 .data = argument->buffer ? NULL : array->data,
                                 .dtype = array->dtype,
                                 .rank = array->rank,
                                 .shape = array->shape};
  return accrt_call_set_tensor(job->call, index, &tensor);
}

static int bind_inputs(accx_job_t* job) {
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    const accx_argument_t* argument = &job->arguments[i];
    if (!argument->given)
      continue;
    const accrt_status_t status = argument->info.kind == ACCRT_ARGUMENT_SCALAR
                                      ? accrt_call_set_scalar(job->call, i, argument->scalar)
                                      : bind_tensor(job, i);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s: input '%s'", job->path, argument->info.name);
  }
  return ACCX_OK;
}

/* ---- Preparing, running ---- */

/* Reads the command line, and checks it against the bundle alone. */
static int read_command_line(accx_job_t* job) {
  static int (*const steps[])(accx_job_t*) = {
      find_function,        read_arguments,         accx_job_read_symbols, accx_job_bind_values,
      accx_job_read_inputs, accx_job_bind_defaults, accx_job_check_values,
  };
  int code = ACCX_OK;
  for (size_t i = 0; i < sizeof steps / sizeof *steps && !code; ++i)
    code = steps[i](job);
  return code;
}

int accx_job_prepare(const accx_args_t* args, accx_job_t* out_job) {
  accx_job_t* job = out_job;
  memset(job, 0, sizeof *job);
  job->args = args;
  job->path = args->operands[0];
  int code = accx_open_instance(args, &job->instance);
  if (code)
    return code;
  const uint64_t begin_ns = accx_now_ns();
  code = accx_open_keyed_bundle(args, job->instance, job->path, ACCRT_VERIFY_DEFAULT, &job->bundle);
  job->open_ns = accx_now_ns() - begin_ns;
  if (!code)
    code = read_command_line(job);
  if (code)
    return code;
  if (accx_args_has(args, "sandbox")) { /* confine.c creates the program in another process */
    snprintf(job->device_info.name, sizeof job->device_info.name, "host:0 in a sandbox");
    return accx_job_generate_inputs(job);
  }
  const uint64_t load_ns = accx_now_ns();
  code = make_program(job);
  if (!code)
    code = make_session(job);
  if (!code)
    code = accx_job_set_adapter(job);
  job->load_ns = accx_now_ns() - load_ns;
  if (!code)
    code = accx_job_generate_inputs(job);
  return code ? code : bind_inputs(job);
}

/* Releases the call first, because it uses the other objects. */
void accx_job_free(accx_job_t* job) {
  accrt_call_release(job->call);
  accrt_session_release(job->session);
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    accrt_buffer_release(job->arguments[i].buffer);
    accx_array_free(&job->arguments[i].array);
  }
  free(job->arguments);
  free(job->symbols);
  accrt_program_release(job->program);
  for (uint32_t i = 0; i < job->weight_count; ++i)
    accrt_weights_release(job->weights[i]);
  free(job->weights);
  accrt_bundle_release(job->bundle);
  accrt_instance_release(job->instance);
  memset(job, 0, sizeof *job);
}

void accx_job_note_defaults(const accx_job_t* job) {
  if (job->all_random)
    accx_note("no --input is given, so inputs are random");
}

int accx_job_run(accx_job_t* job) {
  const accrt_status_t status = accrt_call_run(job->call, ACCRT_TIMEOUT_INFINITE);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", job->path);
}

/* ---- Results ---- */

bool accx_argument_is_output(const accx_argument_t* argument) {
  return argument->info.kind == ACCRT_ARGUMENT_RESULT ||
         (argument->info.kind == ACCRT_ARGUMENT_READ_WRITE && argument->given);
}

static int make_result_array(accx_job_t* job, uint32_t index, accrt_tensor_t* out_tensor) {
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  accx_argument_t* argument = &job->arguments[index];
  const accrt_status_t status = accrt_call_result(job->call, index - job->function_info.input_count,
                                                  out_tensor, shape, strides);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s: result '%s'", job->path, argument->info.name);
  accx_array_free(&argument->array);
  const int code =
      accx_array_create(out_tensor->dtype, out_tensor->rank, shape,
                        accx_text("result '%s'", argument->info.name), &argument->array);
  out_tensor->shape = argument->array.shape;
  out_tensor->strides = NULL;
  return code;
}

int accx_job_keep_results(accx_job_t* job) {
  for (uint32_t i = job->function_info.input_count; i < job->argument_count; ++i) {
    accrt_tensor_t tensor;
    if (job->arguments[i].info.alias_kind == ACCRT_ALIAS_MUST)
      continue;
    const int code = make_result_array(job, i, &tensor);
    if (code)
      return code;
    const accrt_status_t status = bind_tensor(job, i);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s: result '%s'", job->path, job->arguments[i].info.name);
  }
  return ACCX_OK;
}

static int fetch_array(accx_job_t* job, accx_argument_t* argument, accrt_buffer_t* buffer,
                       uint64_t offset_bytes) {
  const accrt_status_t status = copy_array(job, &argument->array, buffer, offset_bytes, false);
  return status == ACCRT_OK
             ? ACCX_OK
             : accx_fail_status(status, "%s: argument '%s'", job->path, argument->info.name);
}

static int fetch_result(accx_job_t* job, uint32_t index) {
  accrt_tensor_t tensor;
  accx_argument_t* argument = &job->arguments[index];
  const int code = make_result_array(job, index, &tensor);
  if (code)
    return code;
  if (!tensor.buffer) {
    if (argument->array.size_bytes)
      memcpy(argument->array.data, (const char*)tensor.data + tensor.offset_bytes,
             (size_t)argument->array.size_bytes);
    return ACCX_OK;
  }
  return fetch_array(job, argument, tensor.buffer, tensor.offset_bytes);
}

int accx_job_fetch(accx_job_t* job) {
  int code = ACCX_OK;
  for (uint32_t i = 0; i < job->argument_count && !code; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (argument->info.kind == ACCRT_ARGUMENT_RESULT)
      code = fetch_result(job, i);
    else if (accx_argument_is_output(argument) && argument->buffer)
      code = fetch_array(job, argument, argument->buffer, 0);
  }
  return code;
}
