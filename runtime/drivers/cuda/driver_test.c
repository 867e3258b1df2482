/* runtime/drivers/cuda/driver_test.c - the CUDA driver's table: starting, memory, several
 * devices, copies and fills, machine code. Needs the stand-in of tests/fakecuda; without it
 * all is skipped. */
#include "runtime/drivers/cuda/driver_test.h"

/* ---- Starting ---- */

/* Checks the result and the record of device_count, with a setting of the stand-in. */
static void check_start(const char* setting, accrt_status_t expected, const char* part) {
  fixture_t f = {.number = 0};
  assert_int_equal(control(setting), 0);
  open_driver(&f);
  accrt_clear_error();
  assert_int_equal(f.table->device_count(f.driver), 0);
  assert_error(accrt_error_current()->status, expected, part);
  f.table->close(f.driver);
  assert_int_equal(control("reset"), 0);
  assert_int_equal(control("init=0"), 0);
  assert_int_equal(live_allocations, 0);
}

static void test_start_failures(void** state) {
  (void)state;
  check_start("init=100", ACCRT_ERROR_NOT_FOUND, "CUDA_ERROR_NO_DEVICE");
  check_start("init=34", ACCRT_ERROR_NOT_FOUND, "stub");
  check_start("init=803", ACCRT_ERROR_VERSION_MISMATCH, "kernel module");
  check_start("init=804", ACCRT_ERROR_VERSION_MISMATCH, "forward compatibility");
  check_start("init=802", ACCRT_ERROR_INVALID_STATE, "fabric manager");
  check_start("init=999", ACCRT_ERROR_DRIVER, "kernel module");
  check_start("fail=cuDeviceGetCount:1=2", ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, "counted");
}

static void test_old_driver(void** state) {
  (void)state;
  assert_int_equal(control("version=12020"), 0);
  fixture_t f = {.number = 0};
  open_driver(&f);
  assert_int_equal(f.table->device_count(f.driver), 0);
  assert_error(accrt_error_current()->status, ACCRT_ERROR_VERSION_MISMATCH, "12.2");
  assert_error(accrt_error_current()->status, ACCRT_ERROR_VERSION_MISMATCH, "12.4");
  f.table->close(f.driver);
  assert_int_equal(control("version=13000"), 0);
}

static void test_no_driver(void** state) {
  (void)state;
  const char* const libraries[] = {"libnot-there.so.1", "libc.so.6"};
  const char* const parts[] = {"libnot-there.so.1", "not a CUDA driver"};
  for (int i = 0; i < 2; ++i) {
    options[0][0] = "cuda.library";
    options[0][1] = libraries[i];
    fixture_t f = {.number = 0};
    open_driver(&f);
    assert_int_equal(f.table->device_count(f.driver), 0);
    assert_error(accrt_error_current()->status, ACCRT_ERROR_NOT_FOUND, parts[i]);
    f.table->close(f.driver);
  }
  memset(options, 0, sizeof options);
}

static void test_exclusive(void** state) {
  (void)state;
  fixture_t f = {.number = 0};
  open_driver(&f);
  assert_true(f.table->device_count(f.driver) > 0);
  assert_int_equal(control("exclusive=1"), 0);
  accrt_driver_device_t* device;
  assert_error(f.table->device_open(f.driver, 0, &device), ACCRT_ERROR_PERMISSION_DENIED,
               "CUDA_ERROR_DEVICE_UNAVAILABLE");
  assert_null(device);
  assert_int_equal(control("exclusive=0"), 0);
  f.table->close(f.driver);
  assert_int_equal(live_allocations, 0);
}

static void check_option(const char* key, const char* text) {
  options[0][0] = key;
  options[0][1] = text;
  fixture_t f = {.number = 0};
  f.environment = (accrt_driver_environment_t){.struct_size = sizeof f.environment,
                                               .allocator = &allocator,
                                               .option = option,
                                               .log = log_line,
                                               .fail = record};
  f.table = accrt_driver_cuda_query(ACCRT_DRIVER_ABI_VERSION);
  assert_error(f.table->open(&f.environment, &f.driver), ACCRT_ERROR_INVALID_ARGUMENT, key);
  assert_null(f.driver);
  assert_int_equal(live_allocations, 0);
  memset(options, 0, sizeof options);
}

static void test_bad_options(void** state) {
  (void)state;
  check_option("cuda.cache_mib", "0");
  check_option("cuda.cache_mib", "-1");
  check_option("cuda.cache_mib", "12x");
  check_option("cuda.graphs", "");
  check_option("cuda.graphs", "99999999999999999999");
  check_option("cuda.virtual_memory", "maybe");
  check_option("cuda.ptx", "");
}

static void test_versions(void** state) {
  (void)state;
  assert_null(accrt_driver_cuda_query((ACCRT_DRIVER_ABI_MAJOR + 1u) << 16));
  assert_non_null(accrt_driver_cuda_query(ACCRT_DRIVER_ABI_MAJOR << 16));
}

static void test_info(void** state) {
  const fixture_t* f = *state;
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  f->table->device_info(f->device, &info);
  assert_string_equal(info.arch, "sm_90");
  assert_int_equal(info.flags, ACCRT_DEVICE_FLAG_TIMESTAMPS);
  assert_int_equal(info.dlpack_device_type, 2);
  assert_int_equal(info.dlpack_device_id, 0);
  assert_true(info.priority_least < info.priority_greatest);
  assert_true(info.memory_total_bytes > 0 && info.concurrency > 0);
  assert_int_equal(info.min_alignment_bytes, 256);
  const unsigned char none[16] = {0};
  assert_memory_not_equal(info.uuid, none, sizeof none);
  assert_non_null(strstr(info.description, "CUDA 13.0"));
}

/* ---- Contexts ---- */

static void test_current_context_is_kept(void** state) {
  fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  CUcontext current = (CUcontext)(uintptr_t)1;
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_null(current);
  /* Another device's. */
  CUcontext other;
  assert_int_equal(api->cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(other), CUDA_SUCCESS);
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_ptr_equal(current, other);
  /* The device's own. */
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_ptr_equal(current, device_of(f)->context);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  assert_int_equal(api->cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

/* ---- Memory ---- */

static void test_memory_kinds(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_info_t info = {.struct_size = sizeof info};
  f->table->memory_info(f->device, ACCRT_MEMORY_DEVICE, &info);
  assert_true(info.supported && accrt_is_power_of_two(info.granularity_bytes));
  f->table->memory_info(f->device, ACCRT_MEMORY_HOST, &info);
  assert_false(info.supported);
  accrt_driver_memory_t memory;
  assert_error(f->table->memory_allocate(f->device, ACCRT_MEMORY_HOST, MIB, &memory),
               ACCRT_ERROR_UNSUPPORTED, "kind 3");
  assert_null(memory.handle);
  memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_null(memory.host_pointer);
  assert_int_equal(memory.device_address % 256, 0);
  f->table->memory_free(f->device, &memory);
  memory = memory_of(f, ACCRT_MEMORY_PINNED);
  assert_non_null(memory.host_pointer);
  memset(memory.host_pointer, 1, memory.size_bytes);
  f->table->memory_free(f->device, &memory);
}

static void test_out_of_memory(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory;
  assert_error(
      f->table->memory_allocate(f->device, ACCRT_MEMORY_DEVICE, UINT64_C(1) << 40, &memory),
      ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, "1099511627776 bytes of device memory on cuda:0");
  assert_int_equal(accrt_error_current()->driver_code, CUDA_ERROR_OUT_OF_MEMORY);
  assert_string_equal(accrt_error_current()->driver_name, "CUDA_ERROR_OUT_OF_MEMORY");
  memory = memory_of(f, ACCRT_MEMORY_DEVICE); /* nothing is broken */
  f->table->memory_free(f->device, &memory);
}

static void test_plain_memory(void** state) {
  (void)state;
  options[0][0] = "cuda.virtual_memory";
  options[0][1] = "off";
  void* inner;
  set_up(&inner);
  fixture_t* f = inner;
  const uint64_t before = count("cuMemCreate");
  use_everything(f);
  assert_int_equal(count("cuMemCreate"), before);
  accrt_driver_memory_t memory;
  assert_error(f->table->memory_allocate_exportable(f->device, 1, ACCRT_DRIVER_HANDLE_FD, &memory),
               ACCRT_ERROR_UNSUPPORTED, "switched off");
  tear_down(&inner);
}

static void test_import_host_memory(void** state) {
  fixture_t* f = *state;
  char* pages = aligned_alloc(4096, MIB);
  memset(pages, 5, MIB);
  accrt_driver_memory_t outer, inner, target = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_int_equal(f->table->memory_import(f->device, pages, MIB, &outer), ACCRT_OK);
  assert_ptr_equal(outer.host_pointer, pages);
  /* A part of it, which outlives the whole. */
  assert_int_equal(f->table->memory_import(f->device, pages + 4096, 100, &inner), ACCRT_OK);
  f->table->memory_unimport(f->device, &outer);
  assert_int_equal(copy(f, target.device_address, inner.device_address, 100), ACCRT_OK);
  char back[100];
  assert_int_equal(copy(f, address_of(back), target.device_address, 100), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_memory_equal(back, pages + 4096, 100);
  f->table->memory_unimport(f->device, &inner);
  /* Registered by other code: used, and not unregistered. */
  const cuda_api_t* api = api_of(f);
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  assert_int_equal(api->cuMemHostRegister(pages, MIB, 0), CUDA_SUCCESS);
  assert_int_equal(f->table->memory_import(f->device, pages, 4096, &outer), ACCRT_OK);
  f->table->memory_unimport(f->device, &outer);
  assert_int_equal(api->cuMemHostUnregister(pages), CUDA_SUCCESS);
  /* Only a part is registered: the device could not access the rest. */
  assert_int_equal(api->cuMemHostRegister(pages, 4096, 0), CUDA_SUCCESS);
  assert_error(f->table->memory_import(f->device, pages, MIB, &outer), ACCRT_ERROR_UNSUPPORTED,
               "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
  assert_int_equal(api->cuMemHostUnregister(pages), CUDA_SUCCESS);
  /* Allocated by other code as pinned memory: used, and not freed. */
  void* pinned;
  assert_int_equal(api->cuMemHostAlloc(&pinned, MIB, 0), CUDA_SUCCESS);
  assert_int_equal(f->table->memory_import(f->device, (char*)pinned + 512, 4096, &outer), ACCRT_OK);
  assert_ptr_equal(outer.host_pointer, (char*)pinned + 512);
  assert_int_equal(copy(f, outer.device_address, target.device_address, 4096), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_memory_equal((char*)pinned + 512, back, sizeof back);
  f->table->memory_unimport(f->device, &outer);
  assert_int_equal(api->cuMemFreeHost(pinned), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  f->table->memory_free(f->device, &target);
  free(pages);
}

static void test_import_device_memory(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE), imported;
  assert_int_equal(
      f->table->memory_import(f->device, (void*)(uintptr_t)memory.device_address, 4096, &imported),
      ACCRT_OK);
  assert_int_equal(imported.device_address, memory.device_address);
  assert_null(imported.host_pointer);
  f->table->memory_unimport(f->device, &imported);
  f->table->memory_free(f->device, &memory);
}

static void test_export_by_descriptor(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory, opened;
  accrt_driver_handle_t handle;
  assert_int_equal(
      f->table->memory_allocate_exportable(f->device, 1000, ACCRT_DRIVER_HANDLE_FD, &memory),
      ACCRT_OK);
  assert_true(memory.size_bytes >= 2 * MIB);
  assert_error(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_IPC, &handle),
               ACCRT_ERROR_UNSUPPORTED, "kind 2");
  assert_int_equal(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
                   ACCRT_OK);
  assert_true(handle.fd >= 0);
  assert_int_equal(handle.size_bytes, memory.size_bytes);
  assert_int_equal(f->table->memory_import_handle(f->device, &handle, &opened), ACCRT_OK);
  const uint32_t word = 42;
  uint32_t back = 0;
  assert_int_equal(copy(f, memory.device_address, address_of(&word), 4), ACCRT_OK);
  assert_int_equal(copy(f, address_of(&back), opened.device_address, 4), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back, 42);
  f->table->memory_unimport(f->device, &opened);
  close(handle.fd);
  f->table->memory_free(f->device, &memory);
}

static void test_export_refused(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory;
  accrt_driver_handle_t handle = {.kind = 9, .fd = -1};
  assert_error(f->table->memory_allocate_exportable(f->device, 1, 9, &memory),
               ACCRT_ERROR_UNSUPPORTED, "kind 9");
  assert_error(
      f->table->memory_allocate_exportable(f->device, UINT64_MAX, ACCRT_DRIVER_HANDLE_IPC, &memory),
      ACCRT_ERROR_OVERFLOW, "rounded up");
  assert_error(f->table->memory_import_handle(f->device, &handle, &memory), ACCRT_ERROR_UNSUPPORTED,
               "kind 9");
  memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_error(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
               ACCRT_ERROR_UNSUPPORTED, "not allocated for export");
  f->table->memory_free(f->device, &memory);
}

/* ---- Several devices ---- */

static void test_peers(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, f->device), ACCRT_OK);
  accrt_driver_memory_t before, after;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &before),
                   ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, second), ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, second), ACCRT_OK);
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &after),
                   ACCRT_OK);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(fill(f, before.device_address, 4096, 3, 1, nobody), ACCRT_OK);
  assert_int_equal(copy(f, after.device_address, before.device_address, 4096), ACCRT_OK);
  unsigned char back[4096];
  assert_int_equal(copy(f, address_of(back), after.device_address, 4096), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back[4095], 3);
  f->table->memory_free(second, &before);
  f->table->memory_free(second, &after);
  f->table->device_close(second);
}

/* A copy enables peer access automatically. */
static void test_copy_between_devices(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  accrt_driver_memory_t here = memory_of(f, ACCRT_MEMORY_DEVICE), there;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &there),
                   ACCRT_OK);
  const char sent[8] = "between";
  char back[8] = "";
  assert_int_equal(copy(f, here.device_address, address_of(sent), 8), ACCRT_OK);
  assert_int_equal(copy(f, there.device_address, here.device_address, 8), ACCRT_OK);
  assert_int_equal(copy(f, address_of(back), there.device_address, 8), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_string_equal(back, sent);
  f->table->memory_free(second, &there);
  f->table->memory_free(f->device, &here);
  f->table->device_close(second);
}

/* A list's copy does too. */
static void test_list_between_devices(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  accrt_driver_memory_t here = memory_of(f, ACCRT_MEMORY_DEVICE), there;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &there),
                   ACCRT_OK);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  command.as.copy.source = range_of(0, 8);
  command.as.copy.source.binding = 0;
  command.as.copy.target = range_of(0, 8);
  command.as.copy.target.binding = 1;
  command.as.copy.extent[0] = value_of(8);
  command.as.copy.extent[1] = command.as.copy.extent[2] = value_of(1);
  for (int i = 0; i < 2; ++i)
    command.as.copy.source_stride_bytes[i] = command.as.copy.target_stride_bytes[i] = value_of(0);
  const accrt_driver_list_info_t info = {
      .struct_size = sizeof info, .command_count = 1, .commands = &command, .binding_count = 2};
  accrt_driver_list_t* list;
  assert_int_equal(f->table->list_create(f->device, &info, &list), ACCRT_OK);
  const accrt_driver_binding_t bindings[] = {{here.device_address, 8}, {there.device_address, 8}};
  const char sent[8] = "listed";
  char back[8] = "";
  assert_int_equal(copy(f, here.device_address, address_of(sent), 8), ACCRT_OK);
  accrt_driver_submission_t submission = submission_of(f);
  submission.binding_count = 2;
  submission.bindings = bindings;
  assert_int_equal(f->table->queue_execute(f->queue, list, &submission), ACCRT_OK);
  assert_int_equal(copy(f, address_of(back), there.device_address, 8), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_string_equal(back, sent);
  f->table->list_destroy(list);
  f->table->memory_free(second, &there);
  f->table->memory_free(f->device, &here);
  f->table->device_close(second);
}

/* ---- Copies and fills ---- */

static void test_fills(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t device = memory_of(f, ACCRT_MEMORY_DEVICE);
  accrt_driver_memory_t pinned = memory_of(f, ACCRT_MEMORY_PINNED);
  const uint64_t size_bytes = 300 * 1024 + 8;
  unsigned char* host = malloc(size_bytes);
  unsigned char* back = malloc(size_bytes);
  const uint64_t patterns[] = {UINT64_C(0x1122334455667788), UINT64_C(0x1111111111111111)};
  const uint64_t targets[] = {device.device_address, pinned.device_address, address_of(host)};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  for (int p = 0; p < 2; ++p) {
    for (int t = 0; t < 3; ++t) {
      for (uint32_t bytes = 1; bytes <= 8; bytes *= 2) {
        assert_int_equal(fill(f, targets[t], size_bytes, patterns[p], bytes, nobody), ACCRT_OK);
        assert_int_equal(copy(f, address_of(back), targets[t], size_bytes), ACCRT_OK);
        assert_int_equal(wait_all(f), ACCRT_OK);
        const unsigned char* expected = (const unsigned char*)&patterns[p];
        for (uint64_t i = 0; i < size_bytes; ++i)
          assert_int_equal(back[i], expected[i % bytes]);
      }
    }
  }
  free(host);
  free(back);
  f->table->memory_free(f->device, &device);
  f->table->memory_free(f->device, &pinned);
}

/* Memory that is freed while the queue still uses it is unmapped when that work has ended. */
static void test_free_waits_for_work(void** state) {
  fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  be_late(f, module, LATE_NS);
  assert_int_equal(fill(f, memory.device_address, MIB, 7, 4, nobody), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->module_unload(module);
}

static void test_kernel(void** state) {
  fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  void* kernel;
  assert_int_equal(f->table->module_find(module, "tx_add", &add_definition, &kernel), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 4096, 1, 4, nobody), ACCRT_OK);
  const add_params_t params = {memory.device_address, 5, 1000};
  assert_int_equal(launch(f, kernel, &add_definition, 16, &params, nobody), ACCRT_OK);
  assert_int_equal(launch(f, kernel, &add_definition, 0, &params, nobody), ACCRT_OK);
  uint32_t back[1024];
  assert_int_equal(copy(f, address_of(back), memory.device_address, sizeof back), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back[999], 6);
  assert_int_equal(back[1000], 1);
  assert_error(launch(f, NULL, &add_definition, 1, &params, nobody), ACCRT_ERROR_UNSUPPORTED,
               "host kernel");
  f->table->module_unload(module);
  f->table->memory_free(f->device, &memory);
}

static void refuse_find(const fixture_t* f, accrt_driver_module_t* module, const char* entry,
                        const accrt_kernel_def_t* declared, accrt_status_t expected,
                        const char* part) {
  void* kernel = module;
  assert_error(f->table->module_find(module, entry, declared, &kernel), expected, part);
  assert_null(kernel);
}

static void test_declarations_are_checked(void** state) {
  const fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_kernel_param_t params[3];
  memcpy(params, add_list, sizeof params);
  accrt_kernel_def_t wrong = add_definition;
  wrong.params = params;
  refuse_find(f, module, "nothing", &wrong, ACCRT_ERROR_NOT_FOUND, "no kernel 'nothing'");
  params[2].size_bytes = 8;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT,
              "parameter 2 'count': declared at offset 12 with 8 bytes, in the image at offset 12 "
              "with 4 bytes");
  params[2].size_bytes = 4;
  wrong.param_count = 2;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT, "2 parameters");
  wrong = add_definition;
  wrong.block[1] = 0;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT, "64 x 0 x 1");
  wrong.block[1] = 17;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "1088");
  wrong = add_definition;
  wrong.local_memory_size_bytes = 1u << 20;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "dynamic shared memory");
  wrong = add_definition;
  wrong.cluster[0] = 17;
  wrong.cluster[1] = wrong.cluster[2] = 1;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "cluster");
  f->table->module_unload(module);
}

static void test_images_are_checked(void** state) {
  const fixture_t* f = *state;
  accrt_driver_module_t* module;
  test_cubin_t cubin = test_cubin(100);
  unsigned char fatbin[2048];
  size_t size = test_fatbin_add(fatbin, 0, 2, 80, 0, &cubin, sizeof cubin);
  assert_error(load(f, IMAGE_CUBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_NO_VARIANT,
               "is for sm_100; cuda:0 is sm_90");
  assert_null(module);
  assert_error(load(f, IMAGE_FATBIN, fatbin, size, &module), ACCRT_ERROR_NO_VARIANT,
               "is for sm_80; cuda:0 is sm_90");
  const uint64_t before = count("cuLibraryLoadData");
  assert_error(load(f, IMAGE_CUBIN, "no", 2, &module), ACCRT_ERROR_INVALID_FORMAT, "ELF header");
  assert_error(load(f, IMAGE_CUBIN, fatbin, size, &module), ACCRT_ERROR_INVALID_FORMAT,
               "not an ELF file");
  assert_error(load(f, IMAGE_FATBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_INVALID_FORMAT,
               "not a fatbin");
  assert_error(load(f, IMAGE_FATBIN, fatbin, size - 1, &module), ACCRT_ERROR_INVALID_FORMAT,
               "image 'image': fatbin of version 1: a header of 16 and entries of");
  cubin.header.e_shoff = UINT64_MAX - 63;
  assert_error(load(f, IMAGE_CUBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_INVALID_FORMAT,
               "section headers of 64 bytes at 18446744073709551552 do not fit");
  size = test_fatbin_add(fatbin, 0, 2, 90, 0, &cubin, sizeof cubin);
  assert_error(load(f, IMAGE_FATBIN, fatbin, size, &module), ACCRT_ERROR_INVALID_FORMAT,
               "fatbin entry at 16: 6 section headers");
  assert_int_equal(count("cuLibraryLoadData"), before); /* CUDA saw none of them */
  assert_error(load(f, 1, "", 0, &module), ACCRT_ERROR_UNSUPPORTED, "kind 1");
}

static void test_compiled_ptx_is_kept(void** state) {
  (void)state;
  char folder[] = "/tmp/accrt-cuda-XXXXXX", inner[64], command[128];
  assert_non_null(mkdtemp(folder));
  snprintf(inner, sizeof inner, "%s/ptx", folder);
  options[0][0] = "cuda.cache";
  options[0][1] = inner;
  void* held;
  set_up(&held);
  fixture_t* f = held;
  const uint64_t before = count("cuLinkCreate");
  f->table->module_unload(load_kernels(f));
  assert_int_equal(count("cuLinkCreate"), before + 1);
  f->table->module_unload(load_kernels(f));
  assert_int_equal(count("cuLinkCreate"), before + 1);
  tear_down(&held);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

/* What a driver with `ptx` says to the kernels' PTX, and how often CUDA compiled it. */
static accrt_status_t load_with(const char* ptx, const char* cache, uint64_t* out_compiled) {
  options[0][0] = "cuda.ptx";
  options[0][1] = ptx;
  options[1][0] = cache != NULL ? "cuda.cache" : NULL;
  options[1][1] = cache;
  void* held;
  set_up(&held);
  fixture_t* f = held;
  size_t size_bytes;
  void* text = read_file(KERNELS, &size_bytes);
  accrt_driver_module_t* module = NULL;
  const uint64_t before = count("cuLinkCreate");
  const accrt_status_t status = load(f, IMAGE_PTX, text, size_bytes, &module);
  *out_compiled = count("cuLinkCreate") - before;
  if (status == ACCRT_OK)
    f->table->module_unload(module);
  else
    assert_error(status, ACCRT_ERROR_UNTRUSTED, "cuda.ptx is '");
  free(text);
  tear_down(&held);
  return status;
}

/* A process that may not compile takes what another one has compiled. */
static void test_ptx_is_compiled_where_it_may_be(void** state) {
  (void)state;
  char folder[] = "/tmp/accrt-cuda-XXXXXX", inner[64], command[128];
  uint64_t compiled;
  assert_non_null(mkdtemp(folder));
  snprintf(inner, sizeof inner, "%s/ptx", folder);
  assert_int_equal(load_with("cached", NULL, &compiled), ACCRT_ERROR_UNTRUSTED);
  assert_int_equal(load_with("cached", inner, &compiled), ACCRT_ERROR_UNTRUSTED);
  assert_int_equal(compiled, 0);
  assert_int_equal(load_with("compile", inner, &compiled), ACCRT_OK);
  assert_int_equal(compiled, 1);
  assert_int_equal(load_with("cached", inner, &compiled), ACCRT_OK);
  assert_int_equal(load_with("off", inner, &compiled), ACCRT_ERROR_UNTRUSTED);
  assert_int_equal(compiled, 0);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  if (!find_stand_in()) {
    printf("skipped: libcuda.so.1 is not the stand-in\n");
    return 0;
  }
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_failures),
      cmocka_unit_test(test_old_driver),
      cmocka_unit_test(test_no_driver),
      cmocka_unit_test(test_exclusive),
      cmocka_unit_test(test_bad_options),
      cmocka_unit_test(test_versions),
      TEST(test_info),
      TEST(test_current_context_is_kept),
      TEST(test_memory_kinds),
      TEST(test_out_of_memory),
      cmocka_unit_test(test_plain_memory),
      TEST(test_free_waits_for_work),
      TEST(test_import_host_memory),
      TEST(test_import_device_memory),
      TEST(test_export_by_descriptor),
      TEST(test_export_refused),
      TEST(test_peers),
      TEST(test_copy_between_devices),
      TEST(test_list_between_devices),
      TEST(test_fills),
      TEST(test_kernel),
      TEST(test_declarations_are_checked),
      TEST(test_images_are_checked),
      cmocka_unit_test(test_compiled_ptx_is_kept),
      cmocka_unit_test(test_ptx_is_compiled_where_it_may_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
