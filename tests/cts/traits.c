/* tests/cts/traits.c - kernels of device modules that are launched in a special way: clusters, cooperative grids, overlap with the
 * kernel ahead, more than 48 KiB of shared memory. Each by every way to launch: at once, prepared, in a list. */
#include "cts.h"

#define LARGE_SHARED_BYTES 98304u
#define CLUSTER 4u
#define GROUPS 16u
#define ROUNDS                                                                                     \
  6u /* the fourth launch of a kernel on a stream may take another way than the first */

static const unsigned char image[] = {
#include "traits_ptx.h"
    , 0};

typedef struct one_buffer {
  uint32_t* out;
} one_buffer_t;
typedef struct two_buffers {
  uint32_t* cells;
  uint32_t* sums;
} two_buffers_t;

static const accrt_kernel_param_t one_params[] = {
    ACCRT_KERNEL_PARAM(one_buffer_t, out, BUFFER, READ_WRITE)};
static const accrt_kernel_param_t two_params[] = {
    ACCRT_KERNEL_PARAM(two_buffers_t, cells, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(two_buffers_t, sums, BUFFER, READ_WRITE)};
static const accrt_kernel_param_t append_params[] = {
    ACCRT_KERNEL_PARAM(cts_append_params_t, log, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(cts_append_params_t, number, SCALAR, NONE)};

#define DEFINITION(name_, params_, type, ...)                                                      \
  {                                                                                                \
    .struct_size = sizeof(accrt_kernel_def_t), .name = (name_), .params = (params_),               \
    .param_count = sizeof(params_) / sizeof((params_)[0]), .params_size_bytes = sizeof(type),      \
    __VA_ARGS__                                                                                    \
  }
static const accrt_kernel_def_t definitions[] = {
    DEFINITION("in_cluster", one_params, one_buffer_t, .block = {32, 1, 1},
               .cluster = {CLUSTER, 1, 1}),
    DEFINITION("over_grid", two_params, two_buffers_t, .block = {64, 1, 1},
               .traits = ACCRT_KERNEL_TRAIT_COOPERATIVE),
    DEFINITION("overlapping", append_params, cts_append_params_t, .block = {1, 1, 1},
               .traits = ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS),
    DEFINITION("much_shared", one_params, one_buffer_t, .block = {128, 1, 1},
               .local_memory_size_bytes = LARGE_SHARED_BYTES),
};

static accrt_status_t load(cts_t* cts, const accrt_kernel_def_t* kernels, uint32_t count,
                           accrt_kernel_pack_t** out_pack) {
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.kind = ACCRT_MODULE_PTX;
  options.image = image;
  options.size_bytes = sizeof image;
  options.name = "traits";
  options.kernels = kernels;
  options.kernel_count = count;
  options.kernel_size_bytes = (uint32_t)sizeof(accrt_kernel_def_t);
  return accrt_kernel_module_load(cts->device, &options, out_pack);
}

/* ---- One kernel, by every way ---- */

typedef struct job {
  cts_t* cts;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* kernel;
  uint32_t groups;
  uint32_t argument_count;
  accrt_buffer_t* buffers[2];
  uint32_t words[2 * GROUPS + 2]; /* of the last buffer, after a launch */
} job_t;

static job_t start(cts_t* cts, const char* name, uint32_t groups) {
  job_t job = {.cts = cts, .groups = groups, .argument_count = 1};
  OK(load(cts, definitions, 4, &job.pack));
  OK(accrt_kernel_pack_find(job.pack, name, &job.kernel));
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  OK(accrt_kernel_info(job.kernel, &info));
  job.argument_count = info.param_count;
  for (int i = 0; i < 2; ++i)
    job.buffers[i] = cts_buffer(cts, sizeof job.words);
  return job;
}

static void end(job_t* job) {
  for (int i = 0; i < 2; ++i)
    accrt_buffer_release(job->buffers[i]);
  accrt_kernel_pack_release(job->pack);
}

static void clear(job_t* job) {
  for (int i = 0; i < 2; ++i) {
    const accrt_place_t at = cts_at(job->buffers[i], 0);
    OK(accrt_stream_fill(job->cts->stream, &at, sizeof job->words, 0, 4));
  }
}

static void read_words(job_t* job) {
  cts_download(job->cts, job->buffers[job->argument_count - 1], 0, job->words, sizeof job->words);
}

static void launch_now(job_t* job) {
  const uint32_t grid[3] = {job->groups, 1, 1};
  accrt_kernel_argument_t arguments[2];
  for (int i = 0; i < 2; ++i)
    arguments[i] = cts_arg_buffer(job->buffers[i], 0);
  OK(accrt_stream_launch(job->cts->stream, job->kernel, grid, arguments, job->argument_count,
                         CTS_ARGUMENT_SIZE));
}

static void launch_prepared(job_t* job) {
  const uint32_t grid[3] = {job->groups, 1, 1};
  accrt_launch_t* launch = NULL;
  OK(accrt_launch_create(job->cts->device, job->kernel, &launch));
  for (uint32_t i = 0; i < job->argument_count; ++i) {
    const accrt_kernel_argument_t argument = cts_arg_buffer(job->buffers[i], 0);
    OK(accrt_launch_set(launch, i, &argument, CTS_ARGUMENT_SIZE));
  }
  for (uint32_t i = 0; i < ROUNDS; ++i)
    OK(accrt_stream_launch_prepared(job->cts->stream, launch, grid));
  accrt_launch_release(launch);
}

static void launch_listed(job_t* job) {
  const uint32_t grid[3] = {job->groups, 1, 1};
  accrt_commands_t* commands = NULL;
  accrt_binding_t bindings[2];
  accrt_kernel_argument_t arguments[2];
  OK(accrt_commands_create(job->cts->device, 2, &commands));
  for (uint32_t i = 0; i < 2; ++i) {
    bindings[i] = (accrt_binding_t){.buffer = job->buffers[i], .size_bytes = UINT64_MAX};
    arguments[i] = cts_arg_binding(i, 0, sizeof job->words);
  }
  for (uint32_t i = 0; i < ROUNDS; ++i)
    OK(accrt_commands_dispatch(commands, job->kernel, grid, arguments, job->argument_count,
                               CTS_ARGUMENT_SIZE, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  OK(accrt_stream_submit(job->cts->stream, commands, bindings, 2, CTS_BINDING_SIZE));
  cts_sync(job->cts->stream);
  accrt_commands_release(commands);
}

static void by_every_way(job_t* job, void (*check)(const job_t* job)) {
  void (*const ways[])(job_t*) = {launch_now, launch_now, launch_now,      launch_now,
                                  launch_now, launch_now, launch_prepared, launch_listed};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
    clear(job);
    ways[i](job);
    read_words(job);
    check(job);
  }
}

/* ---- What must work ---- */

static void check_clusters(const job_t* job) {
  for (uint32_t i = 0; i < GROUPS / CLUSTER; ++i) {
    const uint32_t first = i * CLUSTER + 1;
    assert_int_equal(job->words[2 * i], CLUSTER * first + CLUSTER * (CLUSTER - 1) / 2);
    assert_int_equal(job->words[2 * i + 1], CLUSTER);
  }
}

static void test_clusters(void** state) {
  job_t job = start(*state, "in_cluster", GROUPS);
  by_every_way(&job, check_clusters);
  end(&job);
}

/* A grid with a zero runs nothing; one that is no whole number of clusters is refused. */
static void test_grids_of_clusters(void** state) {
  cts_t* cts = *state;
  job_t job = start(cts, "in_cluster", 0);
  clear(&job);
  launch_now(&job);
  launch_prepared(&job);
  launch_listed(&job);
  read_words(&job);
  for (uint32_t i = 0; i < 2 * GROUPS; ++i)
    assert_int_equal(job.words[i], 0);
  const uint32_t grid[3] = {CLUSTER + 1, 1, 1};
  const accrt_kernel_argument_t argument = cts_arg_buffer(job.buffers[0], 0);
  FAILS(INVALID_ARGUMENT,
        accrt_stream_launch(cts->stream, job.kernel, grid, &argument, 1, CTS_ARGUMENT_SIZE));
  accrt_launch_t* launch = NULL;
  OK(accrt_launch_create(cts->device, job.kernel, &launch));
  OK(accrt_launch_set(launch, 0, &argument, CTS_ARGUMENT_SIZE));
  FAILS(INVALID_ARGUMENT, accrt_stream_launch_prepared(cts->stream, launch, grid));
  accrt_launch_release(launch);
  job.groups = GROUPS;
  by_every_way(&job, check_clusters);
  end(&job);
}

static void check_sums(const job_t* job) {
  for (uint32_t i = 0; i < GROUPS; ++i)
    assert_int_equal(job->words[i], GROUPS * (GROUPS + 1) / 2);
}

static void test_cooperative_grid(void** state) {
  job_t job = start(*state, "over_grid", GROUPS);
  by_every_way(&job, check_sums);
  end(&job);
}

static void check_shared(const job_t* job) {
  for (uint32_t i = 0; i < GROUPS; ++i) {
    assert_int_equal(job->words[2 * i], LARGE_SHARED_BYTES);
    assert_int_equal(job->words[2 * i + 1], 0);
  }
}

static void test_large_shared_memory(void** state) {
  job_t job = start(*state, "much_shared", GROUPS);
  by_every_way(&job, check_shared);
  end(&job);
}

/* Kernels that may start before the one ahead has ended, and wait for it themselves: at once, prepared, and in a list between
 * kernels that do not overlap. Only order keeps the log right. */
static void test_overlap_keeps_order(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 24 };
  uint32_t log[1 + 3 * COUNT] = {0};
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* overlapping = NULL;
  accrt_launch_t* launch = NULL;
  accrt_commands_t* commands = NULL;
  OK(load(cts, definitions, 4, &pack));
  OK(accrt_kernel_pack_find(pack, "overlapping", &overlapping));
  accrt_buffer_t* buffer = cts_buffer(cts, sizeof log);
  cts_upload(cts, buffer, 0, log, sizeof log);
  const uint32_t grid[3] = {1, 1, 1};
  accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(buffer, 0), cts_arg_scalar(0)};
  OK(accrt_launch_create(cts->device, overlapping, &launch));
  OK(accrt_launch_set(launch, 0, &arguments[0], CTS_ARGUMENT_SIZE));
  OK(accrt_commands_create(cts->device, 0, &commands));
  for (uint32_t i = 0; i < COUNT; ++i) {
    arguments[1] = cts_arg_scalar(i);
    OK(accrt_stream_launch(cts->stream, overlapping, grid, arguments, 2, CTS_ARGUMENT_SIZE));
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    arguments[1] = cts_arg_scalar(COUNT + i);
    OK(accrt_launch_set(launch, 1, &arguments[1], CTS_ARGUMENT_SIZE));
    OK(accrt_stream_launch_prepared(cts->stream, launch, grid));
    arguments[1] = cts_arg_scalar(2 * COUNT + i);
    OK(accrt_commands_dispatch(commands, i % 3 == 0 ? cts_kernel(cts, "append") : overlapping, grid,
                               arguments, 2, CTS_ARGUMENT_SIZE, NULL, NULL));
    OK(accrt_commands_barrier(commands, NULL));
  }
  OK(accrt_commands_finalize(commands));
  OK(accrt_stream_submit(cts->stream, commands, NULL, 0, CTS_BINDING_SIZE));
  cts_download(cts, buffer, 0, log, sizeof log);
  assert_int_equal(log[0], 3 * COUNT);
  for (uint32_t i = 0; i < 3 * COUNT; ++i)
    assert_int_equal(log[1 + i], i);
  accrt_commands_release(commands);
  accrt_launch_release(launch);
  accrt_kernel_pack_release(pack);
  accrt_buffer_release(buffer);
}

/* ---- What must be refused ---- */

static void test_too_much_shared_memory(void** state) {
  cts_t* cts = *state;
  accrt_kernel_def_t declared = definitions[3];
  accrt_kernel_pack_t* pack = NULL;
  declared.local_memory_size_bytes = 16u << 20;
  FAILS(UNSUPPORTED, load(cts, &declared, 1, &pack));
  MESSAGE_HAS("16777216");
  assert_null(pack);
}

static void test_grid_that_does_not_fit(void** state) {
  cts_t* cts = *state;
  job_t job = start(cts, "over_grid", 65535);
  const accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(job.buffers[0], 0),
                                                cts_arg_buffer(job.buffers[1], 0)};
  const uint32_t grid[3] = {65535, 1, 1};
  FAILS(INVALID_ARGUMENT,
        accrt_stream_launch(cts->stream, job.kernel, grid, arguments, 2, CTS_ARGUMENT_SIZE));
  MESSAGE_HAS("65535");
  /* The stream is as good as before. */
  job.groups = GROUPS;
  by_every_way(&job, check_sums);
  end(&job);
}

const cts_test_t cts_traits_tests[] = {
    CTS_P(test_clusters, CTS_NEEDS_TRAITS),
    CTS_P(test_cooperative_grid, CTS_NEEDS_TRAITS),
    CTS_P(test_large_shared_memory, CTS_NEEDS_TRAITS),
    CTS_P(test_overlap_keeps_order, CTS_NEEDS_TRAITS | CTS_NEEDS_KERNELS),
    CTS_N(test_grids_of_clusters, CTS_NEEDS_TRAITS),
    CTS_N(test_too_much_shared_memory, CTS_NEEDS_TRAITS),
    CTS_N(test_grid_that_does_not_fit, CTS_NEEDS_TRAITS),
    CTS_END,
};
