/* tools/accx/inspect.c - accx inspect: reads the command line, opens the bundle, prints a form. */
#include "inspect.h"

#include <stdlib.h>
#include <string.h>

#include "open.h"

#define DEFAULT_TOP 20

static const char* const part_names[] = {"versions",  "metadata", "sections",  "symbols",
                                         "functions", "states",   "constants", "kernels",
                                         "files",     "adapters", "assets"};
#define PART_COUNT (sizeof part_names / sizeof *part_names)

static int add_part(const char* name, uint32_t* parts) {
  for (size_t i = 0; i < PART_COUNT; ++i) {
    if (strcmp(part_names[i], name) == 0) {
      *parts |= 1u << i;
      return ACCX_OK;
    }
  }
  return accx_fail(ACCX_USAGE,
                   "--section has no '%s'%s (versions, metadata, sections, symbols, functions, "
                   "states, constants, kernels)",
                   name, accx_near(name, part_names, PART_COUNT));
}

/* Reads "--section a,b --section c". */
static int read_parts(const accx_args_t* args, uint32_t* out_parts) {
  uint32_t parts = 0;
  size_t cursor = 0;
  for (const char* list; (list = accx_args_next(args, "section", &cursor));) {
    while (list) {
      const char* comma = strchr(list, ',');
      const size_t length = comma ? (size_t)(comma - list) : strlen(list);
      const int code = add_part(accx_text("%.*s", (int)length, list), &parts);
      if (code)
        return code;
      list = comma ? comma + 1 : NULL;
    }
  }
  *out_parts = parts ? parts : ACCX_PART_ALL;
  return ACCX_OK;
}

static int read_arguments(const accx_args_t* args, accx_inspection_t* inspection) {
  int64_t top = DEFAULT_TOP;
  int code = read_parts(args, &inspection->parts);
  if (!code)
    code = accx_args_integer(args, "top", 0, UINT32_MAX, &top);
  inspection->top = accx_args_has(args, "all") ? UINT32_MAX : (uint32_t)top;
  return code;
}

static int run_inspect(const accx_args_t* args) {
  accx_inspection_t inspection = {.info = ACCRT_BUNDLE_INFO_INIT};
  accrt_instance_t* instance = NULL;
  int code = read_arguments(args, &inspection);
  if (!code)
    code = accx_open_instance(args, &instance);
  if (!code)
    code = accx_open_bundle(instance, args->operands[0], ACCRT_VERIFY_NO_DATA, &inspection.bundle);
  if (code)
    goto out;
  const accrt_status_t status = accrt_bundle_info(inspection.bundle, &inspection.info);
  if (status != ACCRT_OK) {
    code = accx_fail_status(status, "%s", args->operands[0]);
    goto out;
  }
  if (accx_args_has(args, "json"))
    accx_inspect_json(&inspection);
  else
    accx_inspect_human(&inspection);
out:
  accrt_bundle_release(inspection.bundle);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"section", "LIST", true, "only these parts, with commas between them"},
    {"top", "N", false, "show the N largest constants (20)"},
    {"all", NULL, false, "show every constant, and internal functions"},
    {"json", NULL, false, "print JSON, with everything in the chosen parts"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_inspect = {
    .name = "inspect",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "shows what is in a bundle: functions with their types, symbols, weights, kernels",
    .details =
        "Parts: versions, metadata, sections, symbols, functions, states, constants, kernels,\n"
        "files (beside the bundle, and shards), adapters, assets.\n"
        "Nothing of the bundle runs, and its weights are not read.\n"
        "\n"
        "Examples:\n"
        "  accx inspect model.accx\n"
        "  accx inspect model.accx --section functions,symbols\n"
        "  accx inspect model.accx --section constants --all\n"
        "  accx inspect model.accx --json | jq '.functions[].name'\n",
    .options = options,
    .run = run_inspect,
    .operand_kind = ACCX_READS,
};
