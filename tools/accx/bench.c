/* tools/accx/bench.c - accx bench: measures the time and memory of a function's calls. Results go
 * to storage of the tool, so that timed calls allocate nothing. */
#include <stdlib.h>

#include "outputs.h"
#include "term.h"
#include "timing.h"

#define DEFAULT_WARMUP 3
#define DEFAULT_SECONDS 2
#define MOST_RUNS 100000 /* without --repeat */
#define MOST_REPEATS 10000000

typedef struct bench {
  int64_t warmup;
  int64_t repeat;  /* 0: as many as fit into `seconds` */
  int64_t seconds; /* 0: no limit */
  double first_ns; /* the very first call, which makes plans */
  accx_times_t times;
  accrt_memory_estimate_t memory;
} bench_t;

static int read_options(const accx_args_t* args, bench_t* bench) {
  *bench = (bench_t){.warmup = DEFAULT_WARMUP, .seconds = DEFAULT_SECONDS};
  bench->memory = (accrt_memory_estimate_t)ACCRT_MEMORY_ESTIMATE_INIT;
  int code = accx_args_integer(args, "warmup", 0, MOST_RUNS, &bench->warmup);
  if (!code)
    code = accx_args_integer(args, "repeat", 1, MOST_REPEATS, &bench->repeat);
  if (!code)
    code = accx_args_seconds(args, "seconds", 86400, &bench->seconds);
  if (!code && accx_args_has(args, "repeat") && accx_args_has(args, "seconds"))
    return accx_fail(ACCX_USAGE, "--repeat and --seconds exclude one another");
  return code;
}

static int estimate(accx_job_t* job, bench_t* bench) {
  uint32_t count = 0;
  accrt_symbol_value_t* values = accx_job_symbol_values(job, UINT32_MAX, &count);
  const accrt_status_t status =
      accrt_program_estimate(job->program, job->function_info.name, values, count,
                             (uint32_t)sizeof *values, &bench->memory);
  free(values);
  return status == ACCRT_OK
             ? ACCX_OK
             : accx_fail_status(status, "%s: memory of '%s'", job->path, job->function_info.name);
}

static int measure(accx_job_t* job, bench_t* bench) {
  accx_times_t ignored;
  int code = accx_time_runs(job, "first call", 1, 0, &ignored);
  bench->first_ns = code ? 0 : ignored.first_ns;
  if (!code)
    code = accx_job_keep_results(job);
  /* Run once more: the first call with the results' new storage. */
  if (!code)
    code =
        accx_time_runs(job, "warming up", bench->warmup ? (uint64_t)bench->warmup : 1, 0, &ignored);
  const uint64_t count = bench->repeat ? (uint64_t)bench->repeat : MOST_RUNS;
  const uint64_t limit_ns = bench->repeat ? 0 : (uint64_t)bench->seconds * UINT64_C(1000000000);
  return code ? code : accx_time_runs(job, "measuring", count, limit_ns, &bench->times);
}

static void add_row(accx_table_t* table, const char* name, const char* value, const char* remark) {
  accx_table_cell(table, ACCX_NAME, "%s", name);
  accx_table_cell(table, ACCX_PLAIN, "%s", value);
  accx_table_cell(table, ACCX_DIM, "%s", remark);
}

static void print_human(const accx_job_t* job, const bench_t* bench) {
  const accx_times_t* t = &bench->times;
  accx_heading("%s on %s, %u thread%s: median %s", accx_safe(job->function_info.name),
               job->device_info.name, job->device_info.concurrency,
               job->device_info.concurrency == 1 ? "" : "s", accx_time(t->median_ns).text);
  accx_job_print_inputs(job);
  accx_table_t* table = accx_table_create(3);
  accx_table_align_right(table, 1);
  add_row(table, "open", accx_time((double)job->open_ns).text, "the file, its structure checked");
  add_row(table, "load", accx_time((double)job->load_ns).text,
          "code, weights, prepare functions, session");
  add_row(table, "first call", accx_time(bench->first_ns).text, "makes the plan");
  add_row(table, "median", accx_time(t->median_ns).text,
          accx_text("of %llu calls", (unsigned long long)t->count));
  add_row(table, "min", accx_time(t->minimum_ns).text, "");
  add_row(table, "mean", accx_time(t->mean_ns).text, "");
  add_row(table, "p90", accx_time(t->p90_ns).text, "");
  add_row(table, "max", accx_time(t->maximum_ns).text, "");
  add_row(table, "weights", accx_bytes(bench->memory.weight_bytes).text, "shared by all sessions");
  add_row(table, "state", accx_bytes(bench->memory.state_bytes).text, "of each session");
  add_row(table, "transient", accx_bytes(bench->memory.transient_bytes).text, "while a call runs");
  add_row(table, "results", accx_bytes(bench->memory.result_bytes).text, "");
  accx_table_print(table);
}

static void print_json(const accx_job_t* job, const bench_t* bench) {
  struct json_object* root = accx_json_object(NULL, NULL);
  accx_job_json(job, root);
  accx_json_u64(root, "open_ns", job->open_ns);
  accx_json_u64(root, "load_ns", job->load_ns);
  json_object_object_add(root, "first_call_ns", accx_json_real(bench->first_ns, 12));
  accx_json_u64(root, "warmup", bench->warmup ? (uint64_t)bench->warmup : 1);
  accx_times_json(root, "call_ns", &bench->times);
  struct json_object* memory = accx_json_object(root, "memory");
  accx_json_u64(memory, "weight_bytes", bench->memory.weight_bytes);
  accx_json_u64(memory, "state_bytes", bench->memory.state_bytes);
  accx_json_u64(memory, "transient_bytes", bench->memory.transient_bytes);
  accx_json_u64(memory, "result_bytes", bench->memory.result_bytes);
  accx_json_print(root);
}

static int run_bench(const accx_args_t* args) {
  accx_job_t job;
  bench_t bench;
  int code = read_options(args, &bench);
  if (code)
    return code;
  code = accx_job_prepare(args, &job);
  if (!code)
    code = estimate(&job, &bench);
  if (!code)
    code = measure(&job, &bench);
  if (!code && accx_args_has(args, "json"))
    print_json(&job, &bench);
  else if (!code)
    print_human(&job, &bench);
  if (!code)
    accx_job_note_defaults(&job);
  accx_job_free(&job);
  return code;
}

static const accx_option_t options[] = {
    ACCX_JOB_OPTIONS,
    {"warmup", "N", false, "calls before the measured ones (3)"},
    {"repeat", "N", false, "measure N calls"},
    {"seconds", "SECONDS", false, "measure for about this time (2), or for the most calls: inf"},
    {"json", NULL, false, "print JSON, with times in nanoseconds"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_bench = {
    .name = "bench",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "times the calls of a function: median, min, p90, max, and its memory",
    .details = "Inputs are given as for accx run (accx help run). Calls are blocking and one at a "
               "time, with results\n"
               "in storage of the caller.\n"
               "\n"
               "Examples:\n"
               "  accx bench model.accx --symbol batch=1 --symbol "
               "seq=32\n"
               "  accx bench model.accx --input x=x.npy --threads 1 --repeat 200 "
               "--json\n",
    .options = options,
    .run = run_bench,
    .operand_kind = ACCX_READS,
};
