/* runtime/program/device_test.c - programs on devices that differ from the built-in one: with their
 * own memory, with modules, without runs on the calling thread, lost, out of memory; and in a
 * forked child. The test wraps the host driver's table for them. */
#include "runtime/program/testing.h"
#include "runtime/program/unnumbered_host.h"

#include <sys/wait.h>

#define F32 ACCRT_DTYPE_F32

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

/* ---- A driver around the host driver ---- */

static struct {
  bool own_memory; /* claims to have its own memory */
  bool no_caller;  /* cannot run work on the calling thread */
  bool lost;       /* every execution reports a lost device */
  bool refuses_modules;
  int64_t memory_left;         /* successful allocations left; negative: no limit */
  uint32_t module_count;       /* loaded and not unloaded */
  accrt_kernel_def_t declared; /* of the last kernel that was searched */
} shim;

static const accrt_driver_table_t* host(void) {
  return accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
}

static const accrt_driver_environment_t* shim_environment;

static accrt_status_t shim_open(const accrt_driver_environment_t* environment,
                                accrt_driver_t** out_driver) {
  shim_environment = environment;
  return host()->open(environment, out_driver);
}

static void shim_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  host()->device_info(device, out_info);
  if (shim.own_memory)
    out_info->flags &= ~ACCRT_DEVICE_FLAG_HOST_MEMORY;
  (void)snprintf(out_info->arch, sizeof out_info->arch, "sm_test");
}

static accrt_status_t shim_status(accrt_driver_device_t* device) {
  (void)device;
  return shim.lost ? ACCRT_ERROR_DEVICE_LOST : ACCRT_OK;
}

static accrt_status_t shim_allocate(accrt_driver_device_t* device, uint32_t kind,
                                    uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  if (shim.memory_left == 0) {
    return (shim_environment->fail)(shim_environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 77, "SHIM",
                                    "allocate", "the test has none left");
  }
  --shim.memory_left;
  return host()->memory_allocate(device, kind, size_bytes, out_memory);
}

static accrt_status_t lost(const char* operation) {
  return (shim_environment->fail)(shim_environment, ACCRT_ERROR_DEVICE_LOST, 9, "SHIM_GONE",
                                  operation, "the device fell off the bus");
}

static accrt_status_t shim_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                               const accrt_driver_submission_t* submission) {
  if (shim.lost)
    return lost("run");
  return shim.no_caller ? ACCRT_ERROR_NOT_READY : host()->queue_run(queue, list, submission);
}

static accrt_status_t shim_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                   const accrt_driver_submission_t* submission) {
  return shim.lost ? lost("execute") : host()->queue_execute(queue, list, submission);
}

/* ---- Its modules: one kernel, which is a function of the test ---- */

typedef struct iota_params {
  int64_t* y;
  int64_t first;
  int64_t count;
} iota_params_t;

static int32_t device_iota(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const iota_params_t* p = dispatch->params;
  for (int64_t i = 0; i < p->count; ++i)
    p->y[i] = p->first + i;
  return 0;
}

static accrt_kernel_def_t module_definition;
static accrt_driver_kernel_t module_view;

static accrt_status_t shim_module_load(accrt_driver_device_t* device,
                                       const accrt_driver_image_t* image,
                                       accrt_driver_module_t** out_module) {
  (void)device;
  *out_module = NULL;
  if (strcmp(image->data, "refused") == 0) {
    return (shim_environment->fail)(shim_environment, ACCRT_ERROR_NO_VARIANT, 0, NULL, "load",
                                    "its code is too new for this driver");
  }
  if (shim.refuses_modules || strcmp(image->data, "module of the test") != 0 ||
      strcmp(image->name, "module") != 0) {
    return (shim_environment->fail)(shim_environment, ACCRT_ERROR_DRIVER, 3, "SHIM_IMAGE", "load",
                                    "not a module of the test");
  }
  ++shim.module_count;
  *out_module = (accrt_driver_module_t*)(void*)&shim;
  return ACCRT_OK;
}

static void shim_module_unload(accrt_driver_module_t* module) {
  (void)module;
  --shim.module_count;
}

static accrt_status_t shim_module_find(accrt_driver_module_t* module, const char* entry,
                                       const accrt_kernel_def_t* declared,
                                       void** out_module_kernel) {
  (void)module;
  *out_module_kernel = NULL;
  if (strcmp(entry, "too_large") == 0) {
    return (shim_environment->fail)(shim_environment, ACCRT_ERROR_NO_VARIANT, 0, NULL, "find",
                                    "1024 threads are more than it has registers for");
  }
  if (strcmp(entry, "device_iota") != 0) {
    return (shim_environment->fail)(shim_environment, ACCRT_ERROR_INVALID_FORMAT, 0, NULL, "find",
                                    "no such entry");
  }
  module_definition = *declared;
  shim.declared = *declared;
  module_definition.entry = device_iota;
  module_view.definition = &module_definition;
  module_view.environment = accrt_kernel_environment();
  *out_module_kernel = &module_view;
  return ACCRT_OK;
}

/* Where the list has the module's kernel, the host driver runs a function of the test. */
static accrt_status_t shim_list(accrt_driver_device_t* device, const accrt_driver_list_info_t* info,
                                accrt_driver_list_t** out_list) {
  accrt_driver_command_t own[64];
  assert_true(info->command_count <= 64);
  for (uint32_t i = 0; i < info->command_count; ++i) {
    own[i] = info->commands[i];
    if (own[i].opcode == ACCRT_DRIVER_COMMAND_DISPATCH &&
        own[i].as.dispatch.kernel->module_kernel != NULL)
      own[i].as.dispatch.kernel = own[i].as.dispatch.kernel->module_kernel;
  }
  accrt_driver_list_info_t changed = *info;
  changed.commands = own;
  return host()->list_create(device, &changed, out_list);
}

static accrt_driver_table_t make_table(const char* name) {
  accrt_driver_table_t table = *host();
  table.name = name;
  table.open = shim_open;
  table.device_info = shim_info;
  table.device_status = shim_status;
  table.memory_allocate = shim_allocate;
  table.queue_run = shim_run;
  table.queue_execute = shim_execute;
  table.module_load = shim_module_load;
  table.module_unload = shim_module_unload;
  table.module_find = shim_module_find;
  table.list_create = shim_list;
  return table;
}

static const void* query_host(uint32_t max_abi) {
  (void)max_abi;
  static accrt_driver_table_t table;
  table = make_table("host");
  return &table;
}
static const void* query_other(uint32_t max_abi) {
  (void)max_abi;
  static accrt_driver_table_t table;
  table = make_table("other");
  return &table;
}

static const void* query_cuda(uint32_t max_abi) {
  (void)max_abi;
  static accrt_driver_table_t table;
  table = make_table("cuda");
  return &table;
}

/* ---- Fixture ---- */

static fixture_t* open_shim(const void* (*query)(uint32_t max_abi), const char* name) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  OK(accrt_instance_create(&options, &f->instance));
  OK(accrt_instance_register_driver(f->instance, query));
  OK(accrt_instance_device_by_name(f->instance, name, &f->device));
  return f;
}

static void open_rest(fixture_t* f, const char* bundle) {
  f->bundle = open_bundle(f->instance, bundle);
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  OK(accrt_session_create(f->program, NULL, &f->session));
}

static int reset_shim(void** state) {
  (void)state;
  memset(&shim, 0, sizeof shim);
  shim.memory_left = -1;
  return 0;
}
#define SHIM_TEST(name) cmocka_unit_test_setup(name, reset_shim)
#define NEED_BUNDLES()                                                                             \
  if (!have_bundles())                                                                             \
    skip();                                                                                        \
  (void)state

/* ---- Tests ---- */

static void copies_weights_to_the_device(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "program");
  const uint32_t weight = accrt_bundle_lookup_constant(f->bundle, "weight");
  const void* data;
  uint64_t size;
  OK(accrt_bundle_constant_data(f->bundle, weight, &data, &size));
  const uint32_t component = f->program->tables->constants[weight].component_first;
  assert_non_null(f->session->weights->components[component].buffer);
  assert_int_not_equal(f->session->weights->components[component].address, (uintptr_t)data);
  accrt_call_t* call = make_call(f->session, "weights");
  OK(run(call));
  const float* w = result_data(call, 0);
  const float* r = result_data(call, 1);
  for (int i = 0; i < 8; ++i) {
    assert_true(w[i] == (float)i + 10.0f);
    assert_true(r[i] == (float)(7 - i));
  }
  accrt_call_release(call);
  close_fixture(f);
}

static const void* query_unnumbered(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table = *(const accrt_driver_table_t*)unnumbered_host_query(max_abi);
  table.open = shim_open;
  table.device_info = shim_info;
  return &table;
}

/* Arguments in plain host memory on a device that cannot access it: each run copies them in and
 * out. */
static void check_staging(const void* (*query)(uint32_t max_abi)) {
  shim.own_memory = true;
  shim.no_caller = true;
  fixture_t* f = open_shim(query, "host");
  open_rest(f, "program");
  float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8];
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_vector(call, "y", y, F32, 8));
  for (int round = 0; round < 3; ++round) {
    x[3] = (float)round;
    memset(y, 0xff, sizeof y);
    OK(run(call));
    for (int i = 0; i < 8; ++i)
      assert_true(y[i] == 2.0f * x[i] + 1.0f);
  }
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  OK(set_vector(call, "y", x + 1, F32, 7)); /* another size, so another buffer */
  OK(set_vector(call, "x", x, F32, 7));
  FAILS(run(call), ALIASED, "overlap");
  accrt_call_release(call);
  close_fixture(f);
}

static void stages_plain_memory(void** state) {
  NEED_BUNDLES();
  check_staging(query_host);
}

static void stages_plain_memory_with_listeners(void** state) {
  NEED_BUNDLES();
  check_staging(query_unnumbered);
}

static void stages_memory_updated_in_place(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  shim.no_caller = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "program");
  float x[4] = {1, 2, 3, 4}, apart[4];
  accrt_call_t* call = make_call(f->session, "inplace");
  OK(set_vector(call, "x", x, F32, 4));
  OK(run(call));
  assert_true(x[0] == 3.0f && x[3] == 9.0f);
  OK(set_vector(call, "y", x, F32, 4)); /* the result in the input's memory */
  OK(run(call));
  assert_true(x[0] == 7.0f && x[3] == 19.0f);
  OK(set_vector(call, "y", apart, F32, 4));
  FAILS(run(call), ALIASED, "it must have the storage of input 'x'");
  accrt_call_release(call);
  close_fixture(f);
}

static void loads_modules(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_cuda, "cuda");
  open_rest(f, "module");
  assert_int_equal(shim.module_count, 1);
  accrt_call_t* call = make_call(f->session, "count");
  for (int64_t i = 0; i < 5; ++i) {
    OK(set_number(call, "position", i));
    OK(run(call));
    assert_int_equal(((const int64_t*)result_data(call, 0))[3], i + 3);
    assert_int_equal(((const int64_t*)result_data(call, 1))[0], 5);
  }
  accrt_call_release(call);
  close_fixture(f);
  assert_int_equal(shim.module_count, 0);
}

/* ---- One bundle for two kinds of device ---- */

static bool is_placed(const fixture_t* f, const char* constant) {
  const uint32_t index = accrt_bundle_lookup_constant(f->bundle, constant);
  const uint32_t component = f->program->tables->constants[index].component_first;
  return f->program->weights->components[component].ready;
}

static void expect_counts(fixture_t* f, int64_t y, int64_t shared) {
  accrt_call_t* call = make_call(f->session, "count");
  OK(run(call));
  for (int i = 0; i < 4; ++i) {
    assert_int_equal(((const int64_t*)result_data(call, 0))[i], y + i);
    assert_int_equal(((const int64_t*)result_data(call, 1))[i], 1 + i);
    assert_int_equal(((const int64_t*)result_data(call, 2))[i], shared + i);
  }
  accrt_call_release(call);
}

/* Components for other devices, unused ones, and those that only prepare functions read get no
 * memory on the device. */
static void functions_for_hosts(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "targets");
  expect_counts(f, 150, 50);
  assert_true(is_placed(f, "packed.host") && is_placed(f, "shared"));
  assert_false(is_placed(f, "packed.cuda") || is_placed(f, "unused") || is_placed(f, "source"));
  accrt_call_t* call = NULL;
  FAILS(accrt_call_create(f->session, "only_cuda", &call), NO_VARIANT,
        "function 'only_cuda' is for devices of cuda, this is host:0");
  assert_null(call);
  FAILS(accrt_call_create(f->session, "only_hots", &call), NOT_FOUND, "did you mean 'only_host'?");
  call = make_call(f->session, "only_host");
  OK(run(call));
  accrt_call_release(call);
  uint32_t chosen;
  const uint32_t kernel = accrt_bundle_lookup_kernel(f->bundle, "device_iota");
  FAILS(accrt_program_variant(f->program, kernel, &chosen, NULL, 0, NULL), NO_VARIANT,
        "kernel 'device_iota': no function for host:0 uses it");
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  OK(accrt_program_estimate(f->program, "count", NULL, 0, (uint32_t)sizeof(accrt_symbol_value_t),
                            &estimate));
  assert_int_equal(estimate.weight_bytes, 64);
  close_fixture(f);
}

static void functions_for_other_devices(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_cuda, "cuda");
  open_rest(f, "targets");
  expect_counts(f, 160, 60);
  assert_true(is_placed(f, "packed.cuda"));
  assert_false(is_placed(f, "packed.host") || is_placed(f, "source"));
  assert_int_equal(shim.module_count, 1);
  assert_int_equal(shim.declared.block[0], 32);
  assert_int_equal(shim.declared.local_memory_size_bytes, 4096);
  uint32_t chosen;
  char text[1024];
  const uint32_t kernel = accrt_bundle_lookup_kernel(f->bundle, "device_iota");
  OK(accrt_program_variant(f->program, kernel, &chosen, text, sizeof text, NULL));
  assert_int_equal(chosen, 4);
  assert_non_null(strstr(text, "variant 0 (cuda sm_90): the device is sm_test"));
  assert_non_null(strstr(text, "its code is too new for this driver"));
  assert_non_null(strstr(text, "pack 'no.such.pack': "));
  assert_non_null(strstr(text, "1024 threads are more than it has registers for"));
  close_fixture(f);
  assert_int_equal(shim.module_count, 0);
}

/* A function with several versions has several records, but one type. Messages show that type. */
static void shows_its_own_types(void** state) {
  NEED_BUNDLES();
  static const char* const names[3][2] = {
      {"shows_a", "f32[3]"}, {"shows_b", "i8[5]"}, {"shows_c", "u16[7]"}};
  for (int device = 0; device < 2; ++device) {
    shim.own_memory = true;
    fixture_t* f = device == 0 ? open_shim(query_host, "host") : open_shim(query_cuda, "cuda");
    open_rest(f, "targets");
    for (int i = 0; i < 3; ++i) {
      char text[64];
      _Alignas(16) int64_t data[4];
      const int64_t shape[1] = {4};
      accrt_call_t* call = make_call(f->session, names[i][0]);
      const accrt_tensor_t wrong = tensor_of(data, ACCRT_DTYPE_I64, 1, shape);
      (void)snprintf(text, sizeof text, "function '%s', input 'x' (%s): ", names[i][0],
                     names[i][1]);
      FAILS(accrt_call_set_tensor(call, 0, &wrong), TYPE_MISMATCH, text);
      FAILS(run(call), INVALID_ARGUMENT, text);
      (void)snprintf(text, sizeof text, "result 'y' (%s): ", names[i][1]);
      FAILS(accrt_call_set_tensor(call, 1, &wrong), TYPE_MISMATCH, text);
      accrt_call_release(call);
    }
    close_fixture(f);
  }
}

/* A weight that only a prepare function reads can be swapped, and the prepare function runs
 * again. */
static void swaps_what_prepare_functions_read(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "targets");
  int64_t values[4] = {11, 12, 13, 14};
  const int64_t shape[1] = {4};
  const accrt_weight_t weight = {"source", tensor_of(values, ACCRT_DTYPE_I64, 1, shape)};
  OK(accrt_program_swap_weights(f->program, &weight, 1, (uint32_t)sizeof weight));
  accrt_call_t* call = make_call(f->session, "count");
  OK(run(call));
  assert_int_equal(((const int64_t*)result_data(call, 1))[2], 13);
  assert_int_equal(((const int64_t*)result_data(call, 2))[2], 52);
  accrt_call_release(call);
  close_fixture(f);
}

/* ---- The memory of weights ---- */

static void weights_are_written_in_place(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_cuda, "cuda");
  open_rest(f, "module");
  accrt_tensor_t lent = {0};
  OK(accrt_program_weight(f->program, "weight", &lent));
  assert_true(lent.data == NULL && lent.strides == NULL);
  assert_true(lent.dtype == ACCRT_DTYPE_I64 && lent.rank == 1 && lent.shape[0] == 4);
  accrt_buffer_t* kept = accrt_buffer_retain(lent.buffer);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  OK(accrt_buffer_info(kept, &info));
  int64_t* memory = (int64_t*)(uintptr_t)(info.device_address + lent.offset_bytes);
  assert_true(memory[0] == 5);
  for (int64_t value = 40; value < 43; ++value) {
    memory[0] = value;
    accrt_call_t* call = make_call(f->session, "count");
    OK(set_number(call, "position", 1));
    OK(run(call));
    assert_int_equal(((const int64_t*)result_data(call, 1))[0], value);
    accrt_call_release(call);
  }
  const int64_t four = 4;
  int64_t fresh[4] = {9, 8, 7, 6};
  const accrt_weight_t weight = {"weight", tensor_of(fresh, ACCRT_DTYPE_I64, 1, &four)};
  OK(accrt_program_swap_weights(f->program, &weight, 1, (uint32_t)sizeof weight));
  assert_int_equal(memory[0], 42); /* kept, and read by nobody */
  OK(accrt_program_weight(f->program, "weight", &lent));
  assert_ptr_not_equal(lent.buffer, kept);
  accrt_session_release(f->session);
  accrt_program_release(f->program);
  f->session = NULL;
  f->program = NULL;
  assert_int_equal(memory[0], 42);
  accrt_buffer_release(kept);
  close_fixture(f);
}

static void weights_that_are_not_lent(void** state) {
  NEED_BUNDLES();
  shim.own_memory = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "targets");
  accrt_tensor_t lent = {.rank = 77};
  FAILS(accrt_program_weight(NULL, "source", &lent), INVALID_ARGUMENT, "program is NULL");
  FAILS(accrt_program_weight(f->program, "source", NULL), INVALID_ARGUMENT, "out_tensor is NULL");
  FAILS(accrt_program_weight(f->program, NULL, &lent), INVALID_ARGUMENT, "a weight is NULL");
  FAILS(accrt_program_weight(f->program, "sauce", &lent), NOT_FOUND, "did you mean 'source'?");
  FAILS(accrt_program_weight(f->program, "shared", &lent), NOT_FOUND, "made by a prepare function");
  FAILS(accrt_program_weight(f->program, "source", &lent), UNSUPPORTED, "weight 'source' has no");
  FAILS(accrt_program_weight(f->program, "unused", &lent), UNSUPPORTED, "weight 'unused' has no");
  assert_int_equal(lent.rank, 77);
  close_fixture(f);
}

/* They lie in the bundle's own memory, which may not be written. */
static void weights_of_processors_are_not_lent(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_fixture("2");
  accrt_tensor_t lent;
  FAILS(accrt_program_weight(f->program, "weight", &lent), UNSUPPORTED, "may be written");
  close_fixture(f);
}

static void neither_kind(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_other, "other");
  f->bundle = open_bundle(f->instance, "targets");
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), NO_VARIANT,
        "constant 'packed.host' is made by no prepare function that runs on other:0");
  close_fixture(f);
}

static void tells_why_a_module_does_not_load(void** state) {
  NEED_BUNDLES();
  shim.refuses_modules = true;
  fixture_t* f = open_shim(query_cuda, "cuda");
  f->bundle = open_bundle(f->instance, "module");
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), DRIVER,
        "not a module of the test");
  assert_int_equal(accrt_error_current()->driver_code, 3);
  accrt_bundle_release(f->bundle);
  f->bundle = open_bundle(f->instance, "program"); /* host code only */
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), NO_VARIANT,
        "it is for driver host, the device is cuda:0");
  close_fixture(f);
}

static void runs_through_the_stream(void** state) {
  NEED_BUNDLES();
  shim.no_caller = true;
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "program");
  accrt_call_t* call = make_call(f->session, "count");
  OK(set_number(call, "digit", 1));
  for (int i = 0; i < 10; ++i)
    OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 71111111111);
  const long long before = atomic_load(&f->watch.count);
  int64_t y;
  OK(set_vector(call, "y", &y, ACCRT_DTYPE_I64, 1));
  for (int i = 0; i < 100; ++i)
    OK(run(call));
  assert_int_equal(atomic_load(&f->watch.count) - before, 0);
  accrt_call_release(call);
  call = make_call(f->session, "fail");
  OK(set_number(call, "code", 4));
  FAILS(run(call), KERNEL, "asked to fail");
  FAILS(run(call), POISONED, "asked to fail");
  OK(accrt_session_reset(f->session));
  OK(set_number(call, "code", 0));
  OK(run(call));
  accrt_call_release(call);
  close_fixture(f);
}

static void reports_a_lost_device(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "program");
  accrt_call_t* call = make_call(f->session, "empty");
  OK(run(call));
  shim.lost = true;
  FAILS(run(call), DEVICE_LOST, "fell off the bus");
  FAILS(run(call), POISONED, "fell off the bus");
  FAILS(accrt_session_reset(f->session), DEVICE_LOST, NULL);
  accrt_program_t* program;
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &program), DEVICE_LOST, NULL);
  accrt_call_release(call);
  close_fixture(f);
}

static void runs_out_of_device_memory(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_host, "host");
  open_rest(f, "program");
  shim.own_memory = true;
  shim.memory_left = 0;
  accrt_program_t* program;
  accrt_pool_t* device_pool;
  OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &device_pool));
  accrt_buffer_t* rest[64]; /* the rest of the device's pool */
  uint32_t count = 0;
  while (count < 64 && accrt_buffer_create(device_pool, 1 << 20, NULL, &rest[count]) == ACCRT_OK)
    ++count;
  for (uint64_t size = 1 << 19; size >= 256 && count < 64; size /= 2) {
    while (count < 64 && accrt_buffer_create(device_pool, size, NULL, &rest[count]) == ACCRT_OK)
      ++count;
  }
  assert_true(count < 64);
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &program), OUT_OF_DEVICE_MEMORY, NULL);
  FAILS(accrt_session_bind_state(f->session, "counter", NULL, 0), OUT_OF_DEVICE_MEMORY, NULL);
  FAILS(accrt_session_warmup(f->session, "bucket", NULL, 0, sizeof(accrt_symbol_value_t)),
        OUT_OF_DEVICE_MEMORY, "arena");
  accrt_session_t* session;
  FAILS(accrt_session_create(f->program, NULL, &session), OUT_OF_DEVICE_MEMORY, "state 'cache'");
  _Alignas(16) float x[16] = {0};
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, F32, 16));
  FAILS(run(call), OUT_OF_DEVICE_MEMORY, "function 'affine', result 'y' (f32[n])");
  _Alignas(16) float y[16];
  OK(set_vector(call, "y", y, F32, 16)); /* with the caller's storage it runs */
  OK(run(call));
  while (count > 0)
    accrt_buffer_release(rest[--count]);
  shim.memory_left = -1; /* sanitized builds return every buffer's memory to the driver */
  OK(accrt_call_set_tensor(call, 1, NULL));
  OK(run(call)); /* without it as well */
  accrt_call_release(call);
  close_fixture(f);
}

static void checks_weights_before_use(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_host, "host");
  f->bundle = open_bundle(f->instance, "damaged");
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), DATA_CORRUPT, NULL);
  assert_null(f->program);
  close_fixture(f);
}

static void refuses_states_that_do_not_fit(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_shim(query_host, "host");
  f->bundle = open_bundle(f->instance, "wide");
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  FAILS(accrt_session_create(f->program, NULL, &f->session), OVERFLOW, "state 'wide'");
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  FAILS(accrt_program_estimate(f->program, "nothing", NULL, 0, sizeof(accrt_symbol_value_t),
                               &estimate),
        OVERFLOW, "state 'wide'");
  const accrt_symbol_value_t cap = {"cap", 100};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = &cap;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof cap;
  OK(accrt_session_create(f->program, &options, &f->session));
  close_fixture(f);
}

static void refuses_what_is_of_another_device(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_fixture("1");
  OK(accrt_instance_register_driver(f->instance, query_other));
  accrt_device_t* other;
  OK(accrt_instance_device_by_name(f->instance, "other", &other));
  accrt_pool_t* pool;
  OK(accrt_device_pool(other, ACCRT_MEMORY_DEVICE, &pool));
  accrt_stream_t* stream;
  OK(accrt_stream_create(other, NULL, &stream));
  accrt_buffer_t* buffer;
  OK(accrt_buffer_create(pool, 4096, NULL, &buffer));
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.stream = stream;
  accrt_session_t* session;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT,
        "the stream is of other:0");
  options.stream = NULL;
  options.pool = pool;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT,
        "the pool is of other:0");
  FAILS(accrt_session_bind_state(f->session, "counter", buffer, 0), INVALID_ARGUMENT,
        "the buffer is of other:0");
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  accrt_device_release(other);
  close_fixture(f);
}

/* In a forked child every function fails with that status, and releases do nothing. */
static int forked_child(fixture_t* f, accrt_call_t* call) {
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* made;
  accrt_tensor_t tensor;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  int64_t shape[8];
  uint32_t index;
  uint64_t size;
  const uint32_t symbol = sizeof(accrt_symbol_value_t);
  const accrt_status_t statuses[] = {
      accrt_program_create(f->device, f->bundle, NULL, &program),
      accrt_program_variant(f->program, 0, &index, NULL, 0, &size),
      accrt_program_swap_weights(f->program, NULL, 0, sizeof(accrt_weight_t)),
      accrt_program_weight(f->program, "weight", &tensor),
      accrt_program_estimate(f->program, "empty", NULL, 0, symbol, &estimate),
      accrt_session_create(f->program, NULL, &session),
      accrt_session_clone(f->session, NULL, &session),
      accrt_session_reset(f->session),
      accrt_session_error(f->session, &error),
      accrt_session_state(f->session, "cache", &tensor, shape, shape),
      accrt_session_bind_state(f->session, "cache", NULL, 0),
      accrt_session_warmup(f->session, "empty", NULL, 0, symbol),
      accrt_call_create(f->session, "empty", &made),
      accrt_call_find(call, "x", &index),
      accrt_call_set_tensor(call, 0, NULL),
      accrt_call_set_scalar(call, 0, 0),
      accrt_call_run(call, 0),
      accrt_call_submit(call, NULL, 0, NULL, 0),
      accrt_call_result(call, 0, &tensor, shape, shape),
  };
  accrt_call_release(call);
  accrt_session_release(f->session);
  accrt_program_release(f->program);
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; ++i) {
    if (statuses[i] != ACCRT_ERROR_FORKED)
      return (int)i + 1;
  }
  return 0;
}

static void refuses_forked_children(void** state) {
  NEED_BUNDLES();
  fixture_t* f = open_fixture("2");
  accrt_call_t* call = make_call(f->session, "affine");
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    _exit(forked_child(f, call));
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  accrt_call_release(call);
  close_fixture(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      SHIM_TEST(copies_weights_to_the_device),
      SHIM_TEST(stages_plain_memory),
      SHIM_TEST(stages_plain_memory_with_listeners),
      SHIM_TEST(stages_memory_updated_in_place),
      SHIM_TEST(loads_modules),
      SHIM_TEST(tells_why_a_module_does_not_load),
      SHIM_TEST(functions_for_hosts),
      SHIM_TEST(functions_for_other_devices),
      SHIM_TEST(shows_its_own_types),
      SHIM_TEST(swaps_what_prepare_functions_read),
      SHIM_TEST(weights_are_written_in_place),
      SHIM_TEST(weights_that_are_not_lent),
      SHIM_TEST(weights_of_processors_are_not_lent),
      SHIM_TEST(neither_kind),
      SHIM_TEST(runs_through_the_stream),
      SHIM_TEST(reports_a_lost_device),
      SHIM_TEST(runs_out_of_device_memory),
      SHIM_TEST(checks_weights_before_use),
      SHIM_TEST(refuses_states_that_do_not_fit),
      SHIM_TEST(refuses_what_is_of_another_device),
      SHIM_TEST(refuses_forked_children),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
