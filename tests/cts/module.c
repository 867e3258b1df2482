/* tests/cts/module.c - kernels from machine code of the device. */
#include <elf.h>

#include "cts.h"

static accrt_module_options_t options_of_suite(void) {
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  cts_module_options(&options);
  return options;
}

static const accrt_kernel_def_t* definition(const accrt_module_options_t* options,
                                            const char* name) {
  for (uint32_t i = 0; i < options->kernel_count; ++i) {
    if (strcmp(options->kernels[i].name, name) == 0)
      return &options->kernels[i];
  }
  fail_msg("the suite's module has no kernel %s", name);
  return NULL;
}

/* Loads the suite's image with one kernel declared; what it gives. */
static accrt_status_t load_one(cts_t* cts, const accrt_kernel_def_t* declared) {
  accrt_module_options_t options = options_of_suite();
  options.kernels = declared;
  options.kernel_count = 1;
  accrt_kernel_pack_t* pack = (accrt_kernel_pack_t*)cts;
  const accrt_status_t status = accrt_kernel_module_load(cts->device, &options, &pack);
  if (status != ACCRT_OK)
    assert_null(pack);
  accrt_kernel_pack_release(pack);
  return status;
}

/* ---- What must work ---- */

static void test_kernels_tell_their_shape(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* kernel = NULL;
  OK(accrt_kernel_module_load(cts->device, &options, &pack));
  uint32_t count = 0;
  OK(accrt_kernel_pack_kernel_count(pack, &count));
  assert_int_equal(count, options.kernel_count);
  OK(accrt_kernel_pack_find(pack, "cover", &kernel));
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  OK(accrt_kernel_info(kernel, &info));
  assert_int_equal(info.block[0], 64);
  assert_int_equal(info.block[1], 1);
  assert_int_equal(info.cluster[0], 0);
  assert_int_equal(info.local_memory_size_bytes, 1024);
  accrt_kernel_pack_release(pack);
}

static void test_kind_is_told(void** state) {
  cts_t* cts = *state;
  accrt_module_options_t options = options_of_suite();
  options.kind = 0;
  options.name = NULL;
  accrt_kernel_pack_t* pack = NULL;
  OK(accrt_kernel_module_load(cts->device, &options, &pack));
  accrt_kernel_pack_release(pack);
}

static void test_two_loads_live_apart(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* packs[2];
  accrt_kernel_t* kernels[2];
  for (int i = 0; i < 2; ++i) {
    OK(accrt_kernel_module_load(cts->device, &options, &packs[i]));
    OK(accrt_kernel_pack_find(packs[i], "nothing", &kernels[i]));
  }
  assert_ptr_not_equal(kernels[0], kernels[1]);
  accrt_kernel_pack_release(packs[0]);
  const uint32_t grid[3] = {2, 1, 1};
  OK(accrt_stream_launch(cts->stream, kernels[1], grid, NULL, 0, CTS_ARGUMENT_SIZE));
  cts_sync(cts->stream);
  accrt_kernel_pack_release(packs[1]);
}

/* ---- What must be refused ---- */

static void test_no_such_kernel(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_def_t declared = *definition(&options, "nothing");
  declared.name = "nothing_at_all";
  FAILS(NOT_FOUND, load_one(cts, &declared));
  MESSAGE_HAS("nothing_at_all");
}

static void test_block_is_not_the_image_s(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_def_t declared = *definition(&options, "append");
  declared.param_count = 1; /* one parameter too few */
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
  MESSAGE_HAS("append");
  accrt_kernel_param_t params[3];
  memcpy(params, definition(&options, "append")->params, 2 * sizeof params[0]);
  params[1].size_bytes = 2; /* the image's number has 4 bytes */
  params[1].align_log2 = 1;
  declared.params = params;
  declared.param_count = 2;
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
  MESSAGE_HAS("number");
  params[1] = definition(&options, "append")->params[1];
  params[1].offset_bytes = 12; /* and lies at 8 */
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
  MESSAGE_HAS("number");
  params[1].offset_bytes = 8;
  params[2] = params[1]; /* one parameter too many */
  params[2].name = "extra";
  params[2].offset_bytes = 12;
  declared.param_count = 3;
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
}

static void test_no_image(void** state) {
  cts_t* cts = *state;
  accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = (accrt_kernel_pack_t*)cts;
  static const unsigned char bytes[64] = {1, 2, 3, 4};
  static const char text[] = "this is a text, and no assembly";
  options.image = bytes;
  options.size_bytes = sizeof bytes;
  options.kind = 0;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  assert_null(pack);
  options.image = text;
  options.size_bytes = sizeof text;
  options.kind = ACCRT_MODULE_PTX;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  options.kind = ACCRT_MODULE_CUBIN;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  options.kind = 77;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  options.image = NULL;
  FAILS(INVALID_ARGUMENT, accrt_kernel_module_load(cts->device, &options, &pack));
}

/* CUDA's loader takes no length: what the headers of machine code say has to be held against it before. */
static void test_headers_that_lie(void** state) {
  cts_t* cts = *state;
  accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = (accrt_kernel_pack_t*)cts;
  Elf64_Ehdr header = {.e_ident = {0x7F, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                       .e_type = ET_EXEC,
                       .e_machine = 190, /* CUDA */
                       .e_version = EV_CURRENT,
                       .e_shoff = UINT64_MAX - 63,
                       .e_ehsize = sizeof header,
                       .e_shentsize = sizeof(Elf64_Shdr),
                       .e_shnum = 4};
  options.image = &header;
  options.size_bytes = sizeof header;
  options.kind = ACCRT_MODULE_CUBIN;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  MESSAGE_HAS("4 section headers of 64 bytes at 18446744073709551552");
  /* magic, version, bytes of the header; bytes of entries; an entry of 4 GiB */
  static const uint32_t fatbin[20] = {0xBA55ED50, 0x00100001, 64, 0, 0x01010002, 64, 0, 1};
  options.image = fatbin;
  options.size_bytes = sizeof fatbin;
  options.kind = ACCRT_MODULE_FATBIN;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  MESSAGE_HAS("4294967296 bytes do not fit");
  /* What programs have in memory instead of a fatbin: a pointer, which is none here. */
  static const uint32_t wrapper[6] = {0x466243B1, 1, 0x41414141, 0x41414141, 0, 0};
  options.image = wrapper;
  options.size_bytes = sizeof wrapper;
  FAILS(INVALID_FORMAT, accrt_kernel_module_load(cts->device, &options, &pack));
  MESSAGE_HAS("not a fatbin");
  assert_null(pack);
}

static void test_broken_definitions(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_def_t declared = *definition(&options, "nothing");
  declared.block[1] = 0;
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
  MESSAGE_HAS("nothing");
  declared = *definition(&options, "nothing");
  declared.cluster[0] = 2; /* and no second dimension */
  FAILS(INVALID_FORMAT, load_one(cts, &declared));
  declared = *definition(&options, "nothing");
  declared.struct_size -= 8;
  FAILS(INVALID_ARGUMENT, load_one(cts, &declared));
  declared = *definition(&options, "nothing");
  declared.block[0] = 1025; /* more threads than any device's workgroup has */
  assert_int_not_equal(load_one(cts, &declared), ACCRT_OK);
}

static void test_kernel_of_another_device(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* kernel = NULL;
  accrt_stream_t* there = NULL;
  const uint32_t grid[3] = {1, 1, 1};
  OK(accrt_kernel_module_load(cts->second, &options, &pack));
  OK(accrt_kernel_pack_find(pack, "nothing", &kernel));
  FAILS(UNSUPPORTED, accrt_stream_launch(cts->stream, kernel, grid, NULL, 0, CTS_ARGUMENT_SIZE));
  OK(accrt_stream_create(cts->second, NULL, &there));
  OK(accrt_stream_launch(there, kernel, grid, NULL, 0, CTS_ARGUMENT_SIZE));
  cts_sync(there);
  accrt_stream_release(there);
  accrt_kernel_pack_release(pack);
}

static void test_host_kernel_on_the_device(void** state) {
  cts_t* cts = *state;
  if (cts_runs_host_kernels(cts))
    return;
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* kernel = NULL;
  accrt_launch_t* launch = NULL;
  const uint32_t grid[3] = {1, 1, 1};
  OK(accrt_kernel_pack_register(cts->instance, cts_pack_query, &pack));
  OK(accrt_kernel_pack_find(pack, "nothing", &kernel));
  FAILS(UNSUPPORTED, accrt_stream_launch(cts->stream, kernel, grid, NULL, 0, CTS_ARGUMENT_SIZE));
  MESSAGE_HAS("nothing");
  FAILS(UNSUPPORTED, accrt_launch_create(cts->device, kernel, &launch));
  assert_null(launch);
  accrt_kernel_pack_release(pack);
}

static void test_device_without_modules(void** state) {
  cts_t* cts = *state;
  if (cts_loads_modules(&cts->info))
    return;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = (accrt_kernel_pack_t*)cts;
  const accrt_status_t status = accrt_kernel_module_load(cts->device, &options, &pack);
  assert_int_not_equal(status, ACCRT_OK); /* no device but CUDA's takes PTX */
  assert_null(pack);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  const accrt_module_options_t options = options_of_suite();
  accrt_kernel_pack_t* pack = NULL;
  FAILS(INVALID_ARGUMENT, accrt_kernel_module_load(NULL, &options, &pack));
  FAILS(INVALID_ARGUMENT, accrt_kernel_module_load(cts->device, NULL, &pack));
  FAILS(INVALID_ARGUMENT, accrt_kernel_module_load(cts->device, &options, NULL));
}

const cts_test_t cts_module_tests[] = {
    CTS_P(test_kernels_tell_their_shape, CTS_NEEDS_MODULES),
    CTS_P(test_kind_is_told, CTS_NEEDS_MODULES),
    CTS_P(test_two_loads_live_apart, CTS_NEEDS_MODULES),
    CTS_N(test_no_such_kernel, CTS_NEEDS_MODULES),
    CTS_N(test_block_is_not_the_image_s, CTS_NEEDS_MODULES),
    CTS_N(test_no_image, CTS_NEEDS_MODULES),
    CTS_N(test_headers_that_lie, CTS_NEEDS_MODULES),
    CTS_N(test_broken_definitions, CTS_NEEDS_MODULES),
    CTS_N(test_kernel_of_another_device, CTS_NEEDS_MODULES | CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_host_kernel_on_the_device, CTS_NEEDS_MODULES),
    CTS_N(test_device_without_modules, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
