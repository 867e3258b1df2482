/* runtime/drivers/common/commands_test.h - what the tests of launches and of recorded commands
 * share: a pack of kernels, a stream, buffers and arguments. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_TEST_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_TEST_H_

#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>

#include "runtime/core/pack.h"

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define ARG_BYTES ((uint32_t)sizeof(accrt_kernel_argument_t))
#define BINDING_BYTES ((uint32_t)sizeof(accrt_binding_t))

/* ---- A pack ---- */

typedef struct everything {
  const uint32_t* in;
  uint32_t* out;
  accrt_kernel_tensor_t view;
  int64_t symbol;
  uint32_t count;
  uint16_t half;
  uint8_t byte;
  uint8_t padding;
  double real;
} everything_t;

/* out[i] = in[i] + symbol + half + byte + view.data[0] + real, one element for each workgroup in
 * x. */
static inline int32_t run_everything(const accrt_kernel_environment_t* environment,
                                     const accrt_kernel_dispatch_t* dispatch,
                                     const accrt_kernel_workgroup_t* group) {
  (void)environment;
  const everything_t* p = dispatch->params;
  const uint32_t i = group->workgroup_id[0];
  if (i >= p->count)
    return 0;
  if (p->view.rank != 2 || p->view.shape[1] != 3 || p->view.dtype != ACCRT_DTYPE_U32)
    return 5;
  p->out[i] = (p->in != NULL ? p->in[i] : 0) + (uint32_t)p->symbol + p->half + p->byte +
              *(uint32_t*)p->view.data + (uint32_t)p->real;
  return 0;
}

typedef struct add_params {
  uint32_t* data;
  uint32_t amount;
} add_params_t;

static inline int32_t run_add(const accrt_kernel_environment_t* environment,
                              const accrt_kernel_dispatch_t* dispatch,
                              const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)group;
  const add_params_t* p = dispatch->params;
  *p->data = *p->data * 3 + p->amount;
  return 0;
}

static inline int32_t run_fail(const accrt_kernel_environment_t* environment,
                               const accrt_kernel_dispatch_t* dispatch,
                               const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)dispatch;
  (void)snprintf(group->message, group->message_capacity_bytes,
                 "workgroup %u\ndoes not want to\x1b[0m", group->workgroup_id[0]);
  return -42;
}

static const accrt_kernel_param_t everything_params[] = {
    {"in", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, 3,
     offsetof(everything_t, in), 8, 0},
    ACCRT_KERNEL_PARAM(everything_t, out, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(everything_t, view, TENSOR, READ),
    ACCRT_KERNEL_PARAM(everything_t, symbol, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(everything_t, count, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, half, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, byte, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, real, SCALAR, NONE),
};
static const accrt_kernel_param_t add_param_list[] = {
    ACCRT_KERNEL_PARAM(add_params_t, data, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(add_params_t, amount, SCALAR, NONE),
};
typedef struct hidden_params {
  uint64_t hidden;
} hidden_params_t;
static const accrt_kernel_param_t hidden_param_list[] = {
    ACCRT_KERNEL_PARAM(hidden_params_t, hidden, HIDDEN, NONE)};

#define DEF(name_, entry_, params_, type_)                                                         \
  {                                                                                                \
    .struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = (name_), .entry = (entry_),       \
    .params = (params_), .param_count = (uint32_t)(sizeof(params_) / sizeof *(params_)),           \
    .params_size_bytes = (uint32_t)sizeof(type_)                                                   \
  }
static const accrt_kernel_def_t definitions[] = {
    DEF("everything", run_everything, everything_params, everything_t),
    DEF("add", run_add, add_param_list, add_params_t),
    {.struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = "fail", .entry = run_fail},
};
/* Packs may not have such a kernel; whoever makes kernels of device modules might. */
static const accrt_kernel_def_t hidden_definition =
    DEF("hidden", run_fail, hidden_param_list, hidden_params_t);
static const accrt_kernel_pack_table_t table = {.struct_size = (uint32_t)sizeof table,
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "commands_test",
                                                .kernels = definitions,
                                                .kernel_count = 3,
                                                .kernel_size_bytes =
                                                    (uint32_t)sizeof definitions[0]};
static inline const accrt_kernel_pack_table_t*
query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

/* ---- Surroundings ---- */

static test_world_t world;
static accrt_stream_t* stream;
static accrt_pool_t* pool;
static accrt_kernel_pack_t* pack;
static accrt_kernel_t *everything, *add, *fails;
static const uint32_t one[3] = {1, 1, 1};

static inline int open_all(int mode) {
  if (test_world_open(&world, mode) != ACCRT_OK)
    return 1;
  if (accrt_stream_create(world.device, NULL, &stream) != ACCRT_OK)
    return 1;
  if (accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool) != ACCRT_OK)
    return 1;
  if (accrt_kernel_pack_register(world.instance, query, &pack) != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    print_error("%s\n", error.message);
    return 1;
  }
  if (accrt_kernel_pack_find(pack, "everything", &everything) != ACCRT_OK)
    return 1;
  if (accrt_kernel_pack_find(pack, "add", &add) != ACCRT_OK)
    return 1;
  return accrt_kernel_pack_find(pack, "fail", &fails);
}

static inline int set_up(void** state) {
  (void)state;
  return open_all(TEST_DRIVER_SYNCHRONOUS);
}

static inline int set_up_thread(void** state) {
  (void)state;
  return open_all(TEST_DRIVER_THREAD);
}

static inline int tear_down(void** state) {
  (void)state;
  accrt_kernel_pack_release(pack);
  accrt_stream_release(stream);
  return (int)test_world_close(&world);
}

static inline accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static inline uint32_t* words_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 0, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

static inline accrt_error_t last_error(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error;
}

static inline void assert_says(const char* text) {
  const accrt_error_t error = last_error();
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in '%s'", text, error.message);
}

static inline accrt_kernel_argument_t buffer_argument(uint32_t kind, accrt_buffer_t* buffer,
                                                      uint64_t offset_bytes, uint64_t size_bytes) {
  const accrt_kernel_argument_t argument = {.kind = kind,
                                            .binding = ACCRT_BINDING_NONE,
                                            .buffer = buffer,
                                            .offset_bytes = offset_bytes,
                                            .size_bytes = size_bytes};
  return argument;
}

static inline accrt_kernel_argument_t bound_argument(uint32_t binding, uint64_t offset_bytes,
                                                     uint64_t size_bytes) {
  const accrt_kernel_argument_t argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                            .binding = binding,
                                            .offset_bytes = offset_bytes,
                                            .size_bytes = size_bytes};
  return argument;
}

static inline accrt_kernel_argument_t value_argument(uint32_t kind, uint64_t value) {
  const accrt_kernel_argument_t argument = {
      .kind = kind, .binding = ACCRT_BINDING_NONE, .value = value};
  return argument;
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_TEST_H_ */
