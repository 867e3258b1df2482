/* tools/accx/symbols.c - values of shape symbols: from --symbol, --scalar, and sizes of the inputs'
 * arrays. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "signature.h"
#include "size_text.h"

int accx_job_read_symbols(accx_job_t* job) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_status_t status = accrt_bundle_info(job->bundle, &info);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", job->path);
  job->symbols = accx_alloc(info.symbol_count, sizeof *job->symbols);
  for (; job->symbol_count < info.symbol_count; ++job->symbol_count) {
    accx_symbol_t* symbol = &job->symbols[job->symbol_count];
    symbol->info = (accrt_symbol_info_t)ACCRT_SYMBOL_INFO_INIT;
    status = accrt_bundle_symbol(job->bundle, job->symbol_count, &symbol->info);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", job->path);
    if (symbol->info.minimum == symbol->info.maximum)
      *symbol = (accx_symbol_t){symbol->info, true, symbol->info.minimum, "its range"};
  }
  return ACCX_OK;
}

static int bind_symbol(accx_symbol_t* symbol, int64_t value, const char* from) {
  const accrt_symbol_info_t* info = &symbol->info;
  if (value < info->minimum || value > info->maximum || value % info->divisor != 0)
    return accx_fail(ACCX_USAGE, "symbol '%s' is %" PRId64 " by %s; allowed: %s", info->name, value,
                     from, accx_symbol_text(info));
  if (symbol->known && symbol->value != value)
    return accx_fail(ACCX_USAGE, "symbol '%s' is %" PRId64 " by %s and %" PRId64 " by %s",
                     info->name, symbol->value, symbol->from, value, from);
  if (!symbol->known)
    *symbol = (accx_symbol_t){*info, true, value, from};
  return ACCX_OK;
}

/* ---- The command line ---- */

static int split_value(const char* option, const char* text, const char** out_name,
                       int64_t* out_value) {
  const char* equals = strrchr(text, '=');
  if (!equals || equals == text || !accx_parse_i64(equals + 1, out_value))
    return accx_fail(ACCX_USAGE, "--%s is '%s'; it must be NAME=WHOLE NUMBER", option, text);
  *out_name = accx_text("%.*s", (int)(equals - text), text);
  return ACCX_OK;
}

static int bind_named_symbol(accx_job_t* job, const char* text) {
  const char* name = "";
  int64_t value = 0;
  const int code = split_value("symbol", text, &name, &value);
  if (code)
    return code;
  const char** names = accx_alloc(job->symbol_count, sizeof *names);
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    names[i] = job->symbols[i].info.name;
    if (strcmp(names[i], name) != 0)
      continue;
    free(names);
    return bind_symbol(&job->symbols[i], value, accx_text("--symbol %s", text));
  }
  const char* near = accx_near(name, names, job->symbol_count);
  const char* all = "none";
  for (uint32_t i = 0; i < job->symbol_count; ++i)
    all = i > 0 ? accx_text("%s, %s", all, names[i]) : names[i];
  free(names);
  return accx_fail(ACCX_USAGE, "%s has no symbol '%s'%s (symbols: %s)", job->path, name, near, all);
}

static int bind_named_scalar(accx_job_t* job, const char* text) {
  const char* name = "";
  int64_t value = 0;
  const int code = split_value("scalar", text, &name, &value);
  if (code)
    return code;
  const char** names = accx_alloc(job->argument_count, sizeof *names);
  size_t count = 0;
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (argument->info.kind != ACCRT_ARGUMENT_SCALAR)
      continue;
    names[count++] = argument->info.name;
    if (strcmp(argument->info.name, name) != 0)
      continue;
    free(names);
    argument->given = true;
    argument->scalar = value;
    argument->source = accx_text("--scalar %s", text);
    return bind_symbol(&job->symbols[argument->info.symbol], value, argument->source);
  }
  const char* near = accx_near(name, names, count);
  free(names);
  return accx_fail(ACCX_USAGE, "function '%s' has no scalar input '%s'%s", job->function_info.name,
                   name, near);
}

/* Fills in missing values: a scalar gets its symbol's value, a SESSION symbol its maximum. */
int accx_job_bind_defaults(accx_job_t* job) {
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    accx_argument_t* argument = &job->arguments[i];
    if (argument->info.kind != ACCRT_ARGUMENT_SCALAR || argument->given)
      continue;
    const accx_symbol_t* symbol = &job->symbols[argument->info.symbol];
    argument->given = symbol->known;
    argument->scalar = symbol->value;
    argument->source = symbol->from;
  }
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    accx_symbol_t* symbol = &job->symbols[i];
    if (symbol->info.symbol_class == ACCRT_SYMBOL_SESSION && !symbol->known)
      *symbol = (accx_symbol_t){symbol->info, true,
                                symbol->info.maximum / symbol->info.divisor * symbol->info.divisor,
                                "its maximum"};
  }
  return ACCX_OK;
}

int accx_job_bind_values(accx_job_t* job) {
  int code = ACCX_OK;
  size_t cursor = 0;
  for (const char* text; !code && (text = accx_args_next(job->args, "symbol", &cursor));)
    code = bind_named_symbol(job, text);
  cursor = 0;
  for (const char* text; !code && (text = accx_args_next(job->args, "scalar", &cursor));)
    code = bind_named_scalar(job, text);
  return code;
}

/* ---- Sizes ---- */

int accx_job_bind_sizes(accx_job_t* job, const accx_argument_t* argument) {
  const accrt_argument_info_t* info = &argument->info;
  if (argument->array.rank != info->rank)
    return accx_fail(ACCX_FAILED, "input '%s' is %s; %s has %u dimension%s", info->name,
                     argument->type, argument->source, argument->array.rank,
                     argument->array.rank == 1 ? "" : "s");
  for (uint32_t i = 0; i < info->rank; ++i) {
    if (info->dims[i].kind != ACCRT_DIM_SYMBOL)
      continue;
    const char* from = accx_text("input '%s' (%s)", info->name, argument->source);
    const int code =
        bind_symbol(&job->symbols[info->dims[i].value], argument->array.shape[i], from);
    if (code)
      return code == ACCX_USAGE ? ACCX_FAILED : code;
  }
  return ACCX_OK;
}

static bool lookup_symbol(void* self, const char* name, size_t length, int64_t* out_value) {
  const accx_job_t* job = self;
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    const accx_symbol_t* symbol = &job->symbols[i];
    if (strlen(symbol->info.name) != length || memcmp(symbol->info.name, name, length) != 0)
      continue;
    *out_value = symbol->value;
    return symbol->known;
  }
  return false;
}

static bool is_present(void* self, int64_t input) {
  const accx_job_t* job = self;
  const bool named = input >= 0 && input < (int64_t)job->argument_count;
  return named && (job->arguments[input].given || input >= (int64_t)job->function_info.input_count);
}

int accx_job_shape(accx_job_t* job, const accx_argument_t* argument, int64_t* out_shape) {
  const accx_size_text_t names = {job, lookup_symbol, is_present};
  for (uint32_t i = 0; i < argument->info.rank; ++i) {
    const accrt_dim_t* dim = &argument->info.dims[i];
    out_shape[i] = dim->kind == ACCRT_DIM_SYMBOL ? job->symbols[dim->value].value : dim->value;
    if (dim->kind == ACCRT_DIM_EXPRESSION &&
        !accx_size_in_type(&names, argument->type, i, &out_shape[i]))
      return accx_fail(
          ACCX_USAGE,
          "dimension %u of input '%s' (%s) cannot be computed here; give a file instead: "
          "--input %s=FILE.npy",
          i, argument->info.name, argument->type, argument->info.name);
  }
  return ACCX_OK;
}

int accx_job_result_shape(accx_job_t* job, const accx_argument_t* argument, int64_t* out_shape) {
  const accx_size_text_t names = {job, lookup_symbol, is_present};
  for (uint32_t i = 0; i < argument->info.rank; ++i) {
    const accrt_dim_t* dim = &argument->info.dims[i];
    bool known = true;
    if (dim->kind == ACCRT_DIM_CONSTANT)
      out_shape[i] = dim->value;
    else if (dim->kind == ACCRT_DIM_SYMBOL)
      known = job->symbols[dim->value].known, out_shape[i] = job->symbols[dim->value].value;
    else
      known = accx_size_in_type(&names, argument->type, i, &out_shape[i]);
    if (!known || out_shape[i] < 0)
      return accx_fail(ACCX_FAILED,
                       "dimension %u of result '%s' (%s) cannot be computed here, and a sandbox "
                       "accepts no size from the code",
                       i, argument->info.name, argument->type);
  }
  return ACCX_OK;
}

/* ---- What is missing ---- */

static bool dims_need(const accx_job_t* job, const accx_argument_t* argument, uint32_t symbol) {
  for (uint32_t i = 0; i < argument->info.rank; ++i) {
    const accrt_dim_t* dim = &argument->info.dims[i];
    if (dim->kind == ACCRT_DIM_SYMBOL && (uint32_t)dim->value == symbol)
      return true;
    if (dim->kind == ACCRT_DIM_EXPRESSION &&
        accx_size_mentions(argument->type, i, job->symbols[symbol].info.name))
      return true;
  }
  return false;
}

static int check_symbols(const accx_job_t* job) {
  const char* list = "";
  for (uint32_t s = 0; s < job->symbol_count; ++s) {
    bool needed = false;
    for (uint32_t i = 0; i < job->function_info.input_count && !job->symbols[s].known; ++i)
      needed = needed || (job->arguments[i].pattern && dims_need(job, &job->arguments[i], s));
    if (needed)
      list = accx_text("%s%s%s (%s)", list, list[0] ? "; " : "", job->symbols[s].info.name,
                       accx_symbol_text(&job->symbols[s].info));
  }
  if (list[0])
    return accx_fail(ACCX_USAGE,
                     "generated inputs need the value of each symbol: %s: give --symbol NAME=VALUE",
                     list);
  return ACCX_OK;
}

int accx_job_check_values(accx_job_t* job) {
  const char *scalars = "", *tensors = "";
  for (uint32_t i = 0; i < job->function_info.input_count; ++i) {
    const accx_argument_t* argument = &job->arguments[i];
    if (argument->given || argument->info.optional)
      continue;
    if (argument->info.kind == ACCRT_ARGUMENT_SCALAR)
      scalars = accx_text("%s%s%s (%s)", scalars, scalars[0] ? "; " : "", argument->info.name,
                          accx_symbol_text(&job->symbols[argument->info.symbol].info));
    else
      tensors = accx_text("%s%s%s: %s", tensors, tensors[0] ? "; " : "", argument->info.name,
                          argument->type);
  }
  if (tensors[0])
    return accx_fail(
        ACCX_USAGE,
        "function '%s' needs more inputs: %s: give --input NAME=FILE.npy, or --input random",
        job->function_info.name, tensors);
  const int code = check_symbols(job);
  if (!code && scalars[0])
    return accx_fail(ACCX_USAGE, "function '%s' needs scalars: %s: give --scalar NAME=VALUE",
                     job->function_info.name, scalars);
  return code;
}

accrt_symbol_value_t* accx_job_symbol_values(const accx_job_t* job, uint32_t symbol_class,
                                             uint32_t* out_count) {
  accrt_symbol_value_t* values = accx_alloc(job->symbol_count, sizeof *values);
  *out_count = 0;
  for (uint32_t i = 0; i < job->symbol_count; ++i) {
    const accx_symbol_t* symbol = &job->symbols[i];
    if (symbol->known && (symbol_class == UINT32_MAX || symbol->info.symbol_class == symbol_class))
      values[(*out_count)++] = (accrt_symbol_value_t){symbol->info.name, symbol->value};
  }
  return values;
}
