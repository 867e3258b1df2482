/* runtime/core/pack_test.c - kernel packs from images, shared objects and functions: contents,
 * policies, tables that break the rules, failing allocations. Runs from the root of the source
 * tree. */
#include "runtime/core/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/error.h"
#include "runtime/core/test_allocator.h"
#include "runtime/core/test_image.h"
#include "runtime/core/instance.h"

static accrt_instance_t* instance; /* allows host code */
static accrt_instance_t* strict;   /* does not */
static test_allocator_t allocator;
static unsigned char* image;
static size_t image_size;

static accrt_instance_t* make_instance(uint32_t policy) {
  const accrt_allocator_t interface = test_allocator_interface(&allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.host_code_policy = policy;
  options.allocator = &interface;
  accrt_instance_t* made = NULL;
  return accrt_instance_create(&options, &made) == ACCRT_OK ? made : NULL;
}

static int setup(void** state) {
  (void)state;
  instance = make_instance(ACCRT_HOST_CODE_ALL);
  strict = make_instance(ACCRT_HOST_CODE_NONE);
  if (instance == NULL || strict == NULL)
    return 1;
  image = test_image(instance, TEST_IMAGE_OWN, &image_size);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  free(image);
  accrt_instance_release(instance);
  accrt_instance_release(strict);
  assert_int_equal(atomic_load(&allocator.live_count), 0);
  assert_int_equal(atomic_load(&allocator.wrong_count), 0);
  return 0;
}

static void expect_message(const char* text) {
  const char* message = accrt_error_current()->message;
  if (strstr(message, text) == NULL)
    fail_msg("'%s' lacks '%s'", message, text);
}

/* ---- Good packs ---- */

typedef struct axpb_params {
  const float* x;
  const float* bias;
  float* y;
  float alpha;
  int64_t n;
} axpb_params_t;

static void run_axpb(accrt_kernel_t* kernel) {
  float x[300], y[300], bias[300];
  for (int i = 0; i < 300; ++i)
    x[i] = (float)i, bias[i] = 0.5f, y[i] = -1;
  const axpb_params_t params = {x, bias, y, 2.0f, 300};
  accrt_kernel_dispatch_t dispatch = {.struct_size = sizeof dispatch,
                                      .workgroup_count = {2, 1, 1},
                                      .params = &params,
                                      .params_size_bytes = sizeof params,
                                      .worker_count = 1};
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  for (uint32_t i = 0; i < 2; ++i) {
    const accrt_kernel_workgroup_t workgroup = {.struct_size = sizeof workgroup,
                                                .workgroup_id = {i, 0, 0}};
    assert_int_equal(view->definition->entry(view->environment, &dispatch, &workgroup), 0);
  }
  for (int i = 0; i < 300; ++i)
    assert_true(y[i] == 2.0f * x[i] + 0.5f);
}

static void check_golden(accrt_kernel_pack_t* pack) {
  uint32_t count;
  assert_int_equal(accrt_kernel_pack_kernel_count(pack, &count), ACCRT_OK);
  assert_int_equal(count, 3);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "axpb", &kernel), ACCRT_OK);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_string_equal(info.name, "axpb");
  assert_string_equal(info.pack_name, "golden");
  assert_int_equal(info.param_count, 5);
  assert_int_equal(info.params_size_bytes, sizeof(axpb_params_t));
  assert_string_equal(info.params[1].name, "bias");
  assert_int_equal(info.params[1].flags, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL);
  assert_int_equal(info.traits, ACCRT_KERNEL_TRAIT_DETERMINISTIC);
  run_axpb(kernel);
  for (uint32_t i = 0; i < count; ++i)
    assert_int_equal(accrt_kernel_pack_kernel(pack, i, &kernel), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_kernel(pack, 3, &kernel), ACCRT_ERROR_OUT_OF_RANGE);
  assert_null(kernel);
  assert_int_equal(accrt_kernel_pack_find(pack, "axpy", &kernel), ACCRT_ERROR_NOT_FOUND);
  expect_message("did you mean 'axpb'?");
}

static void from_image(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack;
  unsigned char* bytes = malloc(image_size);
  memcpy(bytes, image, image_size);
  assert_int_equal(accrt_kernel_pack_load(instance, bytes, image_size, "golden image", &pack),
                   ACCRT_OK);
  memset(bytes, 0xCC, image_size); /* it was copied */
  free(bytes);
  check_golden(pack);
  assert_ptr_equal(accrt_kernel_pack_retain(pack), pack);
  accrt_kernel_pack_release(pack);
  check_golden(pack);
  accrt_kernel_pack_release(pack);
  assert_int_equal(accrt_kernel_pack_load(instance, image, image_size, NULL, &pack), ACCRT_OK);
  accrt_kernel_pack_release(pack);
}

static void from_shared_object(void** state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "/tmp/accrt-pack-test-%ld.so", (long)getpid());
  FILE* file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(image, 1, image_size, file), image_size);
  fclose(file);
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_pack_open(strict, path, &pack), ACCRT_ERROR_UNTRUSTED);
  expect_message("no-host-code");
  assert_int_equal(accrt_kernel_pack_open(instance, path, &pack), ACCRT_OK);
  unlink(path);
  check_golden(pack);
  accrt_kernel_pack_release(pack);
  assert_int_equal(accrt_kernel_pack_open(instance, "/no/such/pack.so", &pack),
                   ACCRT_ERROR_NOT_FOUND);
  assert_null(pack);
  assert_int_equal(accrt_kernel_pack_open(instance, "libm.so.6", &pack),
                   ACCRT_ERROR_INVALID_ARGUMENT); /* a path, not a name */
  char* long_path = malloc(5000);
  memset(long_path, 'x', 4999);
  long_path[4999] = '\0';
  assert_int_equal(accrt_kernel_pack_open(instance, long_path, &pack),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  long_path[0] = '/';
  assert_int_equal(accrt_kernel_pack_open(instance, long_path, &pack), ACCRT_ERROR_IO);
  free(long_path);
}

static void policy(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_pack_load(strict, image, image_size, "x", &pack),
                   ACCRT_ERROR_UNTRUSTED);
  assert_null(pack);
  accrt_instance_t* signed_only = make_instance(ACCRT_HOST_CODE_SIGNED);
  assert_int_equal(accrt_kernel_pack_load(signed_only, image, image_size, "x", &pack), ACCRT_OK);
  accrt_kernel_pack_release(pack);
  accrt_instance_release(signed_only);
  /* The program layer has checked the policy already. This function checks CPU features. */
  assert_int_equal(accrt_kernel_pack_load_checked(strict, image, image_size, "x", 0, &pack),
                   ACCRT_OK);
  accrt_kernel_pack_release(pack);
  assert_int_equal(
      accrt_kernel_pack_load_checked(strict, image, image_size, "x", UINT64_C(1) << 63, &pack),
      ACCRT_ERROR_UNSUPPORTED);
}

/* ---- Tables ---- */

static int32_t nothing(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)dispatch;
  (void)workgroup;
  return environment->imports->expf(0) == 1.0f ? 0 : 1;
}

/* A table to be broken; make_table makes it good. */
static accrt_kernel_param_t params[3];
static accrt_kernel_def_t definitions[2];
static accrt_kernel_pack_table_t table;

static void make_table(void) {
  const accrt_kernel_param_t good[3] = {
      {"x", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, 0, 3, 0, 8, 0},
      {"scale", ACCRT_KERNEL_PARAM_SCALAR, ACCRT_KERNEL_ACCESS_NONE, 0, 2, 8, 4, 0},
      {"n", ACCRT_KERNEL_PARAM_SYMBOL, ACCRT_KERNEL_ACCESS_NONE, 0, 3, 16, 8, 0},
  };
  memcpy(params, good, sizeof params);
  const accrt_kernel_def_t definition = {.struct_size = sizeof definition,
                                         .name = "first",
                                         .entry = nothing,
                                         .params = params,
                                         .param_count = 3,
                                         .params_size_bytes = 24};
  definitions[0] = definition;
  definitions[1] = definition;
  definitions[1].name = "second.kernel-2";
  definitions[1].source_file = "pack_test.c";
  const accrt_kernel_pack_table_t good_table = {sizeof good_table,
                                                ACCRT_KERNEL_ABI_VERSION,
                                                "test pack",
                                                definitions,
                                                2,
                                                sizeof(accrt_kernel_def_t),
                                                NULL,
                                                0,
                                                0};
  table = good_table;
}

static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  return max_abi >= ACCRT_KERNEL_ABI_VERSION && environment->struct_size >= sizeof *environment
             ? &table
             : NULL;
}
static const accrt_kernel_pack_table_t* refuse(uint32_t max_abi,
                                               const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return NULL;
}

static void registered(void** state) {
  (void)state;
  make_table();
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_pack_register(strict, query, &pack),
                   ACCRT_OK);          /* needs no policy */
  memset(params, 0xCC, sizeof params); /* all of it was copied */
  memset(definitions, 0xCC, sizeof definitions);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "second.kernel-2", &kernel), ACCRT_OK);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_int_equal(info.param_count, 3);
  assert_string_equal(info.params[2].name, "n");
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  assert_string_equal(view->definition->source_file, "pack_test.c");
  assert_int_equal(view->definition->entry(view->environment, NULL, NULL), 0);
  accrt_kernel_pack_release(pack);

  make_table();
  table.kernel_count = 0;
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "first", &kernel), ACCRT_ERROR_NOT_FOUND);
  expect_message("there is none");
  accrt_kernel_pack_release(pack);
}

static void missing_features(void** state) {
  (void)state;
  make_table();
  definitions[0].required_cpu_features = UINT64_C(1) << 62;
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  uint32_t count;
  assert_int_equal(accrt_kernel_pack_kernel_count(pack, &count), ACCRT_OK);
  assert_int_equal(count, 1);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "first", &kernel), ACCRT_ERROR_NOT_FOUND);
  expect_message("CPU features");
  assert_int_equal(accrt_kernel_pack_kernel(pack, 0, &kernel), ACCRT_OK);
  assert_string_equal(accrt_kernel_driver_view(kernel)->definition->name, "second.kernel-2");
  accrt_kernel_pack_release(pack);
}

/* Larger structs of a later minor version, and arrays of them. */
static void newer_structs(void** state) {
  (void)state;
  make_table();
  struct {
    accrt_kernel_def_t definition;
    uint64_t tail;
  } larger[2];
  memset(larger, 0, sizeof larger);
  for (int i = 0; i < 2; ++i) {
    larger[i].definition = definitions[i];
    larger[i].definition.struct_size = sizeof larger[i];
  }
  table.kernels = &larger[0].definition;
  table.kernel_size_bytes = sizeof larger[0];
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "second.kernel-2", &kernel), ACCRT_OK);
  accrt_kernel_pack_release(pack);
  larger[1].tail = 1;
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_ERROR_INVALID_FORMAT);
}

/* One operator beside the kernels. */
static accrt_operator_def_t operator_definition;
static accrt_kernel_param_t operator_param;

static int32_t execute_nothing(const accrt_kernel_environment_t* environment,
                               const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)call;
  (void)state;
  return 0;
}

static void add_operator(void) {
  operator_param = (accrt_kernel_param_t){.name = "x",
                                          .kind = ACCRT_KERNEL_PARAM_BUFFER,
                                          .access = ACCRT_KERNEL_ACCESS_READ,
                                          .align_log2 = 3,
                                          .size_bytes = 8};
  operator_definition = (accrt_operator_def_t){.struct_size = sizeof operator_definition,
                                               .traits = ACCRT_KERNEL_TRAIT_CAPTURABLE,
                                               .name = "operation",
                                               .params = &operator_param,
                                               .param_count = 1,
                                               .params_size_bytes = 8,
                                               .device_type = 1,
                                               .execute = execute_nothing};
  table.host_operators = &operator_definition;
  table.host_operator_count = 1;
  table.host_operator_size_bytes = sizeof operator_definition;
}
#define OPERATOR(change)                                                                           \
  do {                                                                                             \
    add_operator();                                                                                \
    operator_definition.change;                                                                    \
  } while (0)

static void operators_are_kernels_of_a_kind(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack;
  make_table();
  add_operator();
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  uint32_t count;
  assert_int_equal(accrt_kernel_pack_kernel_count(pack, &count), ACCRT_OK);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_kernel(pack, count - 1, &kernel), ACCRT_OK);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_string_equal(info.name, "operation");
  assert_int_equal(info.kind, ACCRT_KERNEL_KIND_OPERATOR);
  assert_int_equal(info.traits, ACCRT_KERNEL_TRAIT_CAPTURABLE);
  assert_int_equal(info.param_count, 1);
  assert_int_equal(accrt_kernel_pack_find(pack, "first", &kernel), ACCRT_OK);
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_int_equal(info.kind, ACCRT_KERNEL_KIND_WORKGROUPS);
  accrt_kernel_pack_release(pack);
}

/* A pack of kernel ABI 0.1 alone: shorter definitions, no operators. */
static void older_packs(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack;
  make_table();
  unsigned char older[2][offsetof(accrt_kernel_def_t, block)];
  for (int i = 0; i < 2; ++i) {
    definitions[i].struct_size = sizeof older[i];
    memcpy(older[i], &definitions[i], sizeof older[i]);
  }
  table.abi_version = 1;
  table.kernels = (const accrt_kernel_def_t*)(const void*)older;
  table.kernel_count = 2;
  table.kernel_size_bytes = sizeof older[0];
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "first", &kernel), ACCRT_OK);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_int_equal(info.block[0], 0);
  assert_int_equal(info.cluster[2], 0);
  accrt_kernel_pack_release(pack);
}

/* Packs that bundles name: those that are open, the latest first, then those in the folder. */
static void obtained_by_name(void** state) {
  (void)state;
  char folder[] = "/tmp/accrt-packs-XXXXXX";
  assert_non_null(mkdtemp(folder));
  char path[64], other[64];
  snprintf(path, sizeof path, "%s/golden.so", folder);
  snprintf(other, sizeof other, "%s/other-name.so", folder);
  const char* const paths[2] = {path, other};
  for (int i = 0; i < 2; ++i) {
    FILE* file = fopen(paths[i], "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(image, 1, image_size, file), image_size);
    assert_int_equal(fclose(file), 0);
  }
  const accrt_option_t option = {"packs.path", folder};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  accrt_instance_t* own;
  assert_int_equal(accrt_instance_create(&options, &own), ACCRT_OK);
  accrt_kernel_pack_t *pack, *again, *registered;
  assert_int_equal(accrt_kernel_pack_obtain(own, "golden", &pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_obtain(own, "golden", &again), ACCRT_OK);
  assert_ptr_equal(pack, again);
  assert_non_null(accrt_kernel_pack_lookup(pack, "axpb", NULL));
  make_table();
  table.name = "golden";
  assert_int_equal(accrt_kernel_pack_register(own, query, &registered), ACCRT_OK);
  accrt_kernel_pack_unref(again);
  assert_int_equal(accrt_kernel_pack_obtain(own, "golden", &again), ACCRT_OK);
  assert_ptr_equal(again, registered);
  assert_int_equal(accrt_kernel_pack_obtain(own, "none", &pack), ACCRT_ERROR_NOT_FOUND);
  expect_message("none.so");
  assert_null(pack);
  assert_int_equal(accrt_kernel_pack_obtain(own, "other-name", &pack), ACCRT_ERROR_NOT_FOUND);
  expect_message("the pack in it is called 'golden'");
  accrt_kernel_pack_unref(again);
  accrt_kernel_pack_release(registered);
  assert_int_equal(accrt_kernel_pack_obtain(own, "golden", &again), ACCRT_OK);
  assert_non_null(accrt_kernel_pack_lookup(again, "axpb", NULL));
  accrt_kernel_pack_unref(again);
  accrt_kernel_pack_unref(again); /* and the first one, which is the same */
  accrt_instance_release(own);
  unlink(path);
  unlink(other);
  rmdir(folder);
}

#define BREAKERS(X)                                                                                \
  X(INVALID_FORMAT, "struct_size", table.struct_size = 8)                                          \
  X(VERSION_MISMATCH, "built for kernel ABI 1.0", table.abi_version = 1u << 16)                    \
  X(VERSION_MISMATCH, "this library speaks", table.abi_version = ACCRT_KERNEL_ABI_VERSION + 1)     \
  X(INVALID_FORMAT, "1 host operators of 0 bytes", table.host_operator_count = 1)                  \
  X(VERSION_MISMATCH, "1 host operators, which kernel ABI 0.1", {                                  \
    add_operator();                                                                                \
    table.abi_version = 1;                                                                         \
  })                                                                                               \
  X(INVALID_FORMAT, "host operators of 80", {                                                      \
    add_operator();                                                                                \
    table.host_operators = NULL;                                                                   \
    table.host_operator_size_bytes = 80;                                                           \
  })                                                                                               \
  X(INVALID_FORMAT, "host operator 0: struct_size 8", OPERATOR(struct_size = 8))                   \
  X(INVALID_FORMAT, "host operator 0: its name", OPERATOR(name = NULL))                            \
  X(INVALID_FORMAT, "letters, digits", OPERATOR(name = "a/b"))                                     \
  X(INVALID_FORMAT, "two kernels or operators 'first'", OPERATOR(name = "first"))                  \
  X(INVALID_FORMAT, "its execute is NULL", OPERATOR(execute = NULL))                               \
  X(INVALID_FORMAT, "unknown traits 0x10", OPERATOR(traits = ACCRT_KERNEL_TRAIT_SERIAL))           \
  X(INVALID_FORMAT, "its reserved is 1, not 0", OPERATOR(reserved = 1))                            \
  X(INVALID_FORMAT, "65 parameters", OPERATOR(param_count = 65))                                   \
  X(INVALID_FORMAT, "ends outside", OPERATOR(params_size_bytes = 4))                               \
  X(INVALID_FORMAT, "operators may not have a WORKSPACE", {                                        \
    add_operator();                                                                                \
    operator_param.kind = ACCRT_KERNEL_PARAM_WORKSPACE;                                            \
    operator_param.access = ACCRT_KERNEL_ACCESS_READ_WRITE;                                        \
  })                                                                                               \
  X(INVALID_FORMAT, "its name is NULL", table.name = NULL)                                         \
  X(INVALID_FORMAT, "kernels of", table.kernels = NULL)                                            \
  X(INVALID_FORMAT, "kernels of", table.kernel_count = 1u << 30)                                   \
  X(INVALID_FORMAT, "kernels of", table.kernel_size_bytes = 16)                                    \
  X(INVALID_FORMAT, "kernels of", table.kernel_size_bytes += 4)                                    \
  X(INVALID_FORMAT, "kernel 1: struct_size", definitions[1].struct_size = 8)                       \
  X(INVALID_FORMAT, "kernel 1: struct_size", definitions[1].struct_size = 4000)                    \
  X(INVALID_FORMAT, "kernel 1: struct_size 80 ", definitions[1].struct_size = 80)                  \
  X(INVALID_FORMAT, "kernel 1: its name", definitions[1].name = NULL)                              \
  X(INVALID_FORMAT, "letters, digits", definitions[1].name = "")                                   \
  X(INVALID_FORMAT, "letters, digits", definitions[1].name = "a b")                                \
  X(INVALID_FORMAT, "name is 'a\\x0ab\\x1b\\xc3': it must", definitions[1].name = "a\nb\x1b\xc3")  \
  X(INVALID_FORMAT, "two kernels or operators 'first'", definitions[1].name = "first")             \
  X(INVALID_FORMAT, "its entry is NULL", definitions[1].entry = NULL)                              \
  X(INVALID_FORMAT, "unknown traits 0x200", definitions[1].traits = 1u << 9)                       \
  X(INVALID_FORMAT, "local memory", definitions[1].local_memory_size_bytes = 1u << 30)             \
  X(INVALID_FORMAT, "reserved", definitions[1].reserved = 1)                                       \
  X(INVALID_FORMAT, "reserved", definitions[1].reserved2 = 1)                                      \
  X(INVALID_FORMAT, "parameters at", definitions[1].params = NULL)                                 \
  X(INVALID_FORMAT, "65 parameters", definitions[1].param_count = 65)                              \
  X(INVALID_FORMAT, "larger than 4096", definitions[0].params_size_bytes = 4104)                   \
  X(INVALID_FORMAT, "ends outside", definitions[0].params_size_bytes = 20)                         \
  X(INVALID_FORMAT, "parameter's name", params[1].name = NULL)                                     \
  X(INVALID_FORMAT, "name is empty", params[1].name = "")                                          \
  X(INVALID_FORMAT, "same name", params[1].name = "x")                                             \
  X(INVALID_FORMAT, "not known", params[1].kind = 9)                                               \
  X(INVALID_FORMAT, "reserved for a later version", params[1].kind = ACCRT_KERNEL_PARAM_SEMAPHORE) \
  X(INVALID_FORMAT, "a SCALAR has no access", params[1].access = 1)                                \
  X(INVALID_FORMAT, "a SYMBOL has no access", params[2].access = 1)                                \
  X(INVALID_FORMAT, "a SYMBOL has 8 bytes", params[2].size_bytes = 4)                              \
  X(INVALID_FORMAT, "a BUFFER is read", params[0].access = 0)                                      \
  X(INVALID_FORMAT, "a BUFFER has 8 bytes", params[0].size_bytes = 4)                              \
  X(INVALID_FORMAT, "1, 2, 4 or 8", params[1].size_bytes = 3)                                      \
  X(INVALID_FORMAT, "size of accrt_kernel_tensor_t", params[0].kind = ACCRT_KERNEL_PARAM_TENSOR)   \
  X(INVALID_FORMAT, "a WORKSPACE is read and written",                                             \
    params[0].kind = ACCRT_KERNEL_PARAM_WORKSPACE)                                                 \
  X(INVALID_FORMAT, "unknown flag", params[0].flags = 2)                                           \
  X(INVALID_FORMAT, "unknown flag", params[1].flags = ACCRT_KERNEL_PARAM_FLAG_OPTIONAL)            \
  X(INVALID_FORMAT, "not aligned", params[2].offset_bytes = 12)                                    \
  X(INVALID_FORMAT, "not aligned", params[2].align_log2 = 5)                                       \
  X(INVALID_FORMAT, "overlaps", params[2].offset_bytes = 8)                                        \
  X(INVALID_FORMAT, "parameter 1 'scale'", params[1].reserved = 1)

static void broken_tables(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack;
#define CASE(status, text, code)                                                                   \
  make_table();                                                                                    \
  code;                                                                                            \
  pack = (accrt_kernel_pack_t*)(uintptr_t)1;                                                       \
  if (accrt_kernel_pack_register(instance, query, &pack) != ACCRT_ERROR_##status ||                \
      pack != NULL || strstr(accrt_error_current()->message, text) == NULL) {                      \
    fail_msg("%s: '%s' lacks '%s'", #code, accrt_error_current()->message, text);                  \
  }
  BREAKERS(CASE)
#undef CASE
  assert_int_equal(accrt_kernel_pack_register(instance, refuse, &pack),
                   ACCRT_ERROR_VERSION_MISMATCH);
  expect_message("refused kernel ABI");
}

/* ---- Everything else ---- */

static void bad_arguments(void** state) {
  (void)state;
  accrt_kernel_pack_t* pack = NULL;
  accrt_kernel_t* kernel;
  uint32_t count;
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_pack_load(NULL, image, image_size, "x", &pack),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_load(instance, NULL, image_size, "x", &pack),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_load(instance, image, image_size, "x", NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_load(instance, image, 10, "x", &pack),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_int_equal(accrt_kernel_pack_open(instance, NULL, &pack), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_register(instance, NULL, &pack), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_kernel_count(NULL, &count), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_kernel(NULL, 0, &kernel), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_pack_find(NULL, "x", &kernel), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_kernel_info(NULL, &info), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(accrt_kernel_pack_retain(NULL));
  accrt_kernel_pack_release(NULL);
}

static void failing_allocations(void** state) {
  (void)state;
  for (int for_ever = 0; for_ever < 2; ++for_ever) {
    const long live = atomic_load(&allocator.live_count);
    accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
    long n = 0;
    while (status != ACCRT_OK) {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      accrt_kernel_pack_t* pack;
      test_allocator_fail(&allocator, ++n, for_ever);
      status = accrt_kernel_pack_load(instance, image, image_size, "golden", &pack);
      test_allocator_fail(&allocator, 0, 0);
      if (status == ACCRT_OK)
        check_golden(pack);
      accrt_kernel_pack_release(pack);
      assert_int_equal(atomic_load(&allocator.live_count), live);
      if (status == ACCRT_OK && n < 4)
        status = ACCRT_ERROR_OUT_OF_MEMORY; /* names for gdb are allowed to fail */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(from_image),       cmocka_unit_test(from_shared_object),
      cmocka_unit_test(policy),           cmocka_unit_test(registered),
      cmocka_unit_test(missing_features), cmocka_unit_test(newer_structs),
      cmocka_unit_test(broken_tables),    cmocka_unit_test(operators_are_kernels_of_a_kind),
      cmocka_unit_test(older_packs),      cmocka_unit_test(obtained_by_name),
      cmocka_unit_test(bad_arguments),    cmocka_unit_test(failing_allocations),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
