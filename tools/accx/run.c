/* tools/accx/run.c - accx run: calls one function and shows or stores its results. */
#include "confine.h"
#include "outputs.h"
#include "term.h"
#include "timing.h"

static void print_human(const accx_job_t* job, const accx_outputs_t* outputs,
                        const accx_times_t* times) {
  accx_heading("%s on %s: %s", accx_safe(job->function_info.name), job->device_info.name,
               accx_time(times->median_ns).text);
  if (times->count > 1)
    fprintf(accx_out, "  %smedian of %llu runs; min %s, max %s%s\n", accx_style(ACCX_DIM),
            (unsigned long long)times->count, accx_time(times->minimum_ns).text,
            accx_time(times->maximum_ns).text, accx_style(ACCX_PLAIN));
  accx_job_print_inputs(job);
  accx_outputs_print(job, outputs);
}

static void print_json(const accx_job_t* job, const accx_outputs_t* outputs,
                       const accx_times_t* times, const char* sandbox) {
  struct json_object* root = accx_json_object(NULL, NULL);
  accx_job_json(job, root);
  if (sandbox)
    accx_json_text(root, "sandbox", sandbox);
  accx_times_json(root, "time_ns", times);
  accx_outputs_json(job, outputs, root);
  accx_json_print(root);
}

static int run_confined(accx_job_t* job, accx_times_t* times, const char** out_sandbox) {
  uint64_t time_ns = 0;
  const int code = accx_confine_run(job, out_sandbox, &time_ns);
  const double ns = (double)time_ns;
  *times = (accx_times_t){1, ns, ns, ns, ns, ns, ns};
  return code;
}

static int run_run(const accx_args_t* args) {
  accx_job_t job;
  accx_outputs_t outputs = {0};
  accx_times_t times;
  int64_t repeat = 1;
  int code = accx_args_integer(args, "repeat", 1, 10000000, &repeat);
  if (code)
    return code;
  const bool confined = accx_args_has(args, "sandbox");
  const char* sandbox = NULL;
  if (confined)
    code = accx_confine_check(args);
  if (code)
    return code;
  code = accx_job_prepare(args, &job);
  if (!code)
    code = accx_outputs_plan(&job, &outputs);
  if (!code && confined)
    code = run_confined(&job, &times, &sandbox);
  else if (!code)
    code = accx_time_runs(&job, "running", (uint64_t)repeat, 0, &times);
  if (!code && !confined)
    code = accx_job_fetch(&job);
  if (!code)
    code = accx_outputs_write(&job, &outputs);
  if (!code && accx_args_has(args, "json"))
    print_json(&job, &outputs, &times, sandbox);
  else if (!code)
    print_human(&job, &outputs, &times);
  if (!code)
    accx_job_note_defaults(&job);
  accx_outputs_free(&outputs);
  accx_job_free(&job);
  return code;
}

static const accx_option_t options[] = {
    ACCX_JOB_OPTIONS,
    {"output", "NAME=FILE.npy", true, "write a result, or an input that is updated in place"},
    {"out-dir", "DIR", false, "write every result to DIR/NAME.npy"},
    {"repeat", "N", false, "run N times; what is updated in place, and state, carries over"},
    {"sandbox", NULL, false,
     "run the function in a process without files and network (host device)"},
    {"sandbox-memory", "MIB", false, "limit of the sandbox's memory"},
    {"sandbox-cpu", "SECONDS", false, "limit of the sandbox's processor time; inf: no limit"},
    {"sandbox-weak", NULL, false, "allow a sandbox without Landlock, if Linux has none here"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_run = {
    .name = "run",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "calls a function of a bundle and shows its results, or writes them to .npy files",
    .details =
        "Inputs come from .npy and .npz files or are generated: 'random' gives reals in [-1, 1), "
        "whole\n"
        "numbers in 0..99, and the same values for the same seed (0 when none is said). Without "
        "any\n"
        "--input all are random. A .npz without a name gives every input that it has an array for. "
        "Sizes\n"
        "of generated inputs come from files given beside them and from --symbol. bf16 and 8-bit "
        "floats\n"
        "are read and written as their bits (uint16, uint8).\n"
        "\n"
        "A bundle with machine code for this processor is as powerful as a program: accx runs it "
        "when you\n"
        "have trusted who signed it (accx help trust); --allow-host-code runs it all the same. "
        "--sandbox runs\n"
        "it in a process that can open no file, reach no network, start and signal nothing, "
        "even unsigned.\n"
        "\n"
        "Examples:\n"
        "  accx run model.accx --symbol batch=2 --symbol seq=16\n"
        "  accx run model.accx --input ids=ids.npy --input mask=ones\n"
        "  accx run model.accx --function decode --input token=t.npy --scalar "
        "pos=7\n"
        "  accx run model.accx --input inputs.npz --out-dir results --threads "
        "2\n",
    .options = options,
    .run = run_run,
    .operand_kind = ACCX_READS,
};
