/* tests/bounded/count.c - what work on a file costs, counted and not timed: the library is compiled in once more with a call at each
 * basic block (-fsanitize-coverage=trace-pc), so that every loop counts, whoever wrote it.
 *
 * usage: bounded.count WORK [FUNCTION] FILE...; WORK is open, weights, program, find, estimate or warmup. A line for each file:
 * blocks, steps charged to the budget, status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "runtime/core/meter.h"

/* Of the thread that opens files: what idle workers do until they sleep is nobody's cost. */
static _Thread_local uint64_t blocks;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  ++blocks;
}

static accrt_instance_t* instance;

static accrt_status_t work_on_weights(const char* path) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  accrt_weights_t* weights;
  const accrt_status_t status = accrt_weights_open_path(instance, path, &options, &weights);
  accrt_weights_release(weights);
  return status;
}

/* Every function by name. */
static accrt_status_t find_all(accrt_bundle_t* bundle) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_status_t status = accrt_bundle_info(bundle, &info);
  for (uint32_t i = 0; i < info.function_count && status == ACCRT_OK; ++i) {
    accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
    uint32_t index;
    status = accrt_bundle_function(bundle, i, &function);
    if (status == ACCRT_OK)
      status = accrt_bundle_find_function(bundle, function.name, &index);
  }
  return status;
}

static accrt_status_t plan(accrt_program_t* program, const char* work, const char* function) {
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  if (strcmp(work, "estimate") == 0)
    return accrt_program_estimate(program, function, NULL, 0, 0, &estimate);
  accrt_session_t* session;
  accrt_status_t status = accrt_session_create(program, NULL, &session);
  blocks = 0;
  if (status == ACCRT_OK)
    status = accrt_session_warmup(session, function, NULL, 0, 0);
  accrt_session_release(session);
  return status;
}

static accrt_status_t work_on(const char* work, const char* function, const char* path) {
  if (strcmp(work, "weights") == 0)
    return work_on_weights(path);
  accrt_bundle_t* bundle;
  accrt_status_t status = accrt_bundle_open_path(instance, path, NULL, &bundle);
  if (status != ACCRT_OK || strcmp(work, "open") == 0)
    goto out;
  blocks = 0;
  if (strcmp(work, "find") == 0) {
    status = find_all(bundle);
    goto out;
  }
  accrt_device_t* device;
  accrt_program_t* program = NULL;
  status = accrt_instance_device_by_name(instance, "host", &device);
  if (status == ACCRT_OK)
    status = accrt_program_create(device, bundle, NULL, &program);
  if (status == ACCRT_OK && strcmp(work, "program") != 0) {
    blocks = 0;
    status = plan(program, work, function);
  }
  accrt_program_release(program);
out:
  accrt_bundle_release(bundle);
  return status;
}

int main(int argc, char** argv) {
  const char* work = argc > 2 ? argv[1] : "";
  const int plans = strcmp(work, "estimate") == 0 || strcmp(work, "warmup") == 0;
  const int first = plans ? 3 : 2;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  if (argc <= first || accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 2;
  /* An outer meter without limits sees what the inner ones were charged. */
  accrt_budget_t none = ACCRT_BUDGET_INIT;
  none.max_steps = none.max_memory_bytes = UINT64_MAX;
  for (int i = first; i < argc; ++i) {
    accrt_meter_t meter;
    accrt_meter_begin(&meter, &none, "counting", argv[i], 0, 0);
    blocks = 0;
    const accrt_status_t status = work_on(work, plans ? argv[2] : NULL, argv[i]);
    accrt_meter_end(&meter);
    accrt_error_t error = ACCRT_ERROR_INIT;
    accrt_last_error(&error);
    printf("%llu %llu %d %s\n", (unsigned long long)blocks, (unsigned long long)meter.steps, status,
           status != ACCRT_OK ? error.message : "");
  }
  accrt_instance_release(instance);
  return 0;
}
