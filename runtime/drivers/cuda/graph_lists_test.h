/* runtime/drivers/cuda/graph_lists_test.h - random lists and launches for a CUDA device, with a
 * model of them on the CPU. Drives the driver's table alone. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_LISTS_TEST_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_LISTS_TEST_H_

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/stream.h"
#include "runtime/core/error.h"
#include "runtime/drivers/cuda/graph.h"

#define KERNELS "tests/fakecuda/transcript_kernels.ptx"
#define WINDOWS 6u  /* of each worker's memory */
#define WORDS 1024u /* of each window */
#define MAX_COMMANDS 40u
#define MAX_BINDINGS 5u
#define MAX_SCALARS 6u
#define MAX_PATCHES 4u
#define LISTS 6u
#define MAX_WORKERS 4u
#define BLOCK 64u    /* threads of tx_add */
#define IMAGE_PTX 3u /* accrt_driver_image_t.kind */
#define NONE ACCRT_DRIVER_NONE

/* Worker threads have no test to fail: they end the program. */
#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      const accrt_error_t* require_error = accrt_error_current();                                  \
      fprintf(stderr, "%s:%d: %s; last error: %s: %s\n", __FILE__, __LINE__, #condition,           \
              require_error->operation, require_error->message);                                   \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* ---- Random numbers ---- */

typedef struct random_source {
  uint64_t state;
} random_source_t;

static inline uint32_t below(random_source_t* source, uint32_t bound) { /* xorshift */
  source->state ^= source->state << 13;
  source->state ^= source->state >> 7;
  source->state ^= source->state << 17;
  return (uint32_t)((source->state >> 11) % bound);
}

static inline random_source_t seeded(uint64_t seed) {
  random_source_t source = {seed * UINT64_C(0x9E3779B97F4A7C15) | 1};
  for (int i = 0; i < 10; ++i)
    (void)below(&source, 2);
  return source;
}

/* ---- The driver ---- */

static const accrt_driver_table_t* table;
static accrt_driver_t* driver;
static accrt_driver_device_t* opened;
static cuda_device_t* device;
static accrt_driver_module_t* module;
static accrt_driver_kernel_t add_kernel, mix_kernel;

typedef struct add_params {
  uint64_t target;
  uint32_t value, count;
} add_params_t;
typedef struct mix_params {
  uint64_t cell, source;
  uint32_t number;
} mix_params_t;

static inline const char* option(const accrt_driver_environment_t* environment, const char* key) {
  (void)environment;
  return strcmp(key, "cuda.graphs") == 0 ? getenv("ACCRT_TEST_GRAPHS") : NULL;
}

static inline void log_line(const accrt_driver_environment_t* environment, uint32_t level,
                            const char* line) {
  (void)environment;
  fprintf(stderr, "log %u: %s\n", (unsigned)level, line);
}

static inline accrt_status_t record(const accrt_driver_environment_t* environment,
                                    accrt_status_t status, int32_t code, const char* name,
                                    const char* operation, const char* message) {
  (void)environment;
  return accrt_error_record_driver(status, code, name, operation, __FILE__, (uint32_t)__LINE__,
                                   "%s", message);
}

static inline void trace(const accrt_driver_environment_t* environment,
                         const accrt_trace_event_t* event) {
  (void)environment;
  (void)event;
}

static inline char* read_kernels(size_t* out_size_bytes) {
  static char text[65536];
  FILE* file = fopen(KERNELS, "r");
  REQUIRE(file != NULL);
  *out_size_bytes = fread(text, 1, sizeof text - 1, file) + 1;
  (void)fclose(file);
  return text;
}

static inline void load_kernels(void) {
#define PARAM(T, field, kind) ACCRT_KERNEL_PARAM(T, field, kind, NONE)
  static const accrt_kernel_param_t add[] = {PARAM(add_params_t, target, BUFFER),
                                             PARAM(add_params_t, value, SCALAR),
                                             PARAM(add_params_t, count, SCALAR)};
  static const accrt_kernel_param_t mix[] = {PARAM(mix_params_t, cell, BUFFER),
                                             PARAM(mix_params_t, source, BUFFER),
                                             PARAM(mix_params_t, number, SCALAR)};
  static const accrt_kernel_def_t definitions[] = {{.struct_size = sizeof definitions[0],
                                                    .name = "tx_add",
                                                    .params = add,
                                                    .param_count = 3,
                                                    .params_size_bytes = 16,
                                                    .block = {BLOCK, 1, 1}},
                                                   {.struct_size = sizeof definitions[0],
                                                    .name = "tx_mix",
                                                    .params = mix,
                                                    .param_count = 3,
                                                    .params_size_bytes = 20,
                                                    .block = {1, 1, 1}}};
  accrt_driver_image_t image = {.kind = IMAGE_PTX, .name = KERNELS};
  image.data = read_kernels(&image.size_bytes);
  REQUIRE(table->module_load(opened, &image, &module) == ACCRT_OK);
  add_kernel.definition = &definitions[0];
  mix_kernel.definition = &definitions[1];
  REQUIRE(table->module_find(module, "tx_add", &definitions[0], &add_kernel.module_kernel) ==
          ACCRT_OK);
  REQUIRE(table->module_find(module, "tx_mix", &definitions[1], &mix_kernel.module_kernel) ==
          ACCRT_OK);
}

/* False: there is no device. */
static inline bool open_device(void) {
  static const accrt_driver_environment_t environment = {.struct_size = sizeof environment,
                                                         .abi_version = ACCRT_DRIVER_ABI_VERSION,
                                                         .allocator = &accrt_allocator_system,
                                                         .option = option,
                                                         .log = log_line,
                                                         .fail = record,
                                                         .trace = trace};
  table = accrt_driver_cuda_query(ACCRT_DRIVER_ABI_VERSION);
  if (table->open(&environment, &driver) != ACCRT_OK || table->device_count(driver) == 0)
    return false;
  REQUIRE(table->device_open(driver, 0, &opened) == ACCRT_OK);
  device = (cuda_device_t*)opened;
  load_kernels();
  return true;
}

static inline void close_device(void) {
  REQUIRE(device->graphs.count == 0);
  table->module_unload(module);
  table->device_close(opened);
  table->close(driver);
}

static inline CUdeviceptr allocate(uint64_t size_bytes) {
  CUdeviceptr address = 0;
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result = device->api->cuMemAlloc(&address, size_bytes);
  cuda_leave(device, scope);
  REQUIRE(result == CUDA_SUCCESS);
  return address;
}

static inline void release(CUdeviceptr address) {
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuMemFree(address) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

static inline void copy_and_wait(accrt_driver_queue_t* queue, CUdeviceptr target,
                                 CUdeviceptr source, size_t size_bytes) {
  const CUstream stream = table->queue_native(queue);
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuMemcpyAsync(target, source, size_bytes, stream) == CUDA_SUCCESS);
  REQUIRE(device->api->cuStreamSynchronize(stream) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

/* Past what the driver says. */
static inline void wait_for_stream(accrt_driver_queue_t* queue) {
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuStreamSynchronize(table->queue_native(queue)) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

/* ---- Operators: tx_mix twice ---- */

static atomic_uint operator_states;
static atomic_bool operator_fails;

static inline int32_t operator_prepare(const accrt_kernel_environment_t* environment,
                                       const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  (void)call;
  atomic_fetch_add_explicit(&operator_states, 1, memory_order_relaxed);
  *out_state = calloc(1, sizeof(uint32_t));
  return 0;
}

static inline void operator_destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  atomic_fetch_sub_explicit(&operator_states, 1, memory_order_relaxed);
  free(state);
}

static inline int32_t operator_execute(const accrt_kernel_environment_t* environment,
                                       const accrt_operator_call_t* call, void* state) {
  (void)environment;
  mix_params_t params;
  memcpy(&params, call->params, sizeof params);
  if (atomic_load_explicit(&operator_fails, memory_order_relaxed)) {
    snprintf(call->message, call->message_capacity_bytes, "no luck today");
    return 77;
  }
  *(uint32_t*)state += 1; /* one thread at a time: the thread sanitizer looks */
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t grid[3] = {1, 1, 1};
    params.number += i;
    const CUresult result =
        accrt_cuda_kernel_launch(mix_kernel.module_kernel, call->stream, grid, &params);
    if (result == CUDA_SUCCESS)
      continue;
    snprintf(call->message, call->message_capacity_bytes, "launch %u failed", (unsigned)i);
    return (int32_t)result;
  }
  return 0;
}

static const accrt_operator_def_t operator_definitions[2] = {
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_CAPTURABLE,
     .name = "captured",
     .params_size_bytes = sizeof(mix_params_t),
     .prepare = operator_prepare,
     .execute = operator_execute,
     .destroy = operator_destroy},
    {.struct_size = sizeof(accrt_operator_def_t),
     .name = "direct",
     .params_size_bytes = sizeof(mix_params_t),
     .prepare = operator_prepare,
     .execute = operator_execute,
     .destroy = operator_destroy}};
static const accrt_driver_operator_t operators[2] = {{.definition = &operator_definitions[0]},
                                                     {.definition = &operator_definitions[1]}};

/* ---- Lists ---- */

typedef union params {
  add_params_t add;
  mix_params_t mix;
} params_t;

typedef struct list {
  accrt_driver_list_t* handle;
  uint32_t binding_count, scalar_count, command_count;
  uint32_t flags[MAX_BINDINGS];
  accrt_driver_command_t commands[MAX_COMMANDS];
  accrt_driver_patch_t patches[MAX_COMMANDS][MAX_PATCHES];
  uint32_t predecessors[MAX_COMMANDS][MAX_COMMANDS + 1];
  uint32_t reads[MAX_COMMANDS], writes[MAX_COMMANDS]; /* bindings, as bits */
  params_t params[MAX_COMMANDS];
} list_t;

static inline accrt_driver_value_t constant(uint64_t number) {
  return (accrt_driver_value_t){number, NONE, 0};
}

/* Scalars are 0 to 200. */
static inline accrt_driver_value_t maybe_scalar(random_source_t* r, const list_t* list,
                                                uint64_t number) {
  accrt_driver_value_t value = constant(number);
  if (list->scalar_count > 0 && below(r, 3) == 0)
    value.scalar = below(r, list->scalar_count);
  return value;
}

static inline accrt_driver_patch_t address_patch(uint32_t offset_bytes, uint32_t binding,
                                                 accrt_driver_value_t offset) {
  return (accrt_driver_patch_t){
      .kind = ACCRT_DRIVER_PATCH_ADDRESS,
      .offset_bytes = offset_bytes,
      .size_bytes = 8,
      .range = {.binding = binding, .offset = offset, .size_bytes = constant(0)},
      .value = constant(0)};
}

static inline accrt_driver_patch_t value_patch(uint32_t offset_bytes, accrt_driver_value_t value) {
  return (accrt_driver_patch_t){
      .kind = ACCRT_DRIVER_PATCH_VALUE,
      .offset_bytes = offset_bytes,
      .size_bytes = 4,
      .range = {.binding = NONE, .offset = constant(0), .size_bytes = constant(0)},
      .value = value};
}

static inline uint32_t any_binding(random_source_t* r, const list_t* list) {
  return below(r, list->binding_count);
}

static inline void make_add(random_source_t* r, list_t* list, uint32_t i) {
  const uint32_t binding = any_binding(r, list);
  list->params[i].add = (add_params_t){0, below(r, 1000), 0};
  list->patches[i][0] = address_patch(0, binding, constant(4u * below(r, 50)));
  list->patches[i][1] = value_patch(12, maybe_scalar(r, list, below(r, 600)));
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  list->commands[i].as.dispatch =
      (accrt_driver_dispatch_t){.kernel = &add_kernel,
                                .grid = {constant(1 + below(r, 8)), constant(1), constant(1)},
                                .params = &list->params[i],
                                .params_size_bytes = 16,
                                .patches = list->patches[i],
                                .patch_count = 2};
  if (list->scalar_count > 0 && below(r, 4) == 0) /* may be 0 */
    list->commands[i].as.dispatch.grid[0] =
        (accrt_driver_value_t){0, below(r, list->scalar_count), 0};
  list->writes[i] = 1u << binding;
}

static inline uint32_t mix_patches(random_source_t* r, list_t* list, uint32_t i) {
  const uint32_t cell = any_binding(r, list), source = any_binding(r, list);
  list->params[i].mix = (mix_params_t){0, 0, 0};
  list->patches[i][0] = address_patch(0, cell, constant(4u * below(r, 200)));
  list->patches[i][1] = address_patch(8, source, constant(4u * below(r, 200)));
  list->patches[i][2] = value_patch(16, maybe_scalar(r, list, below(r, 1000)));
  list->reads[i] = 1u << source;
  list->writes[i] = 1u << cell;
  return 3;
}

static inline void make_mix(random_source_t* r, list_t* list, uint32_t i) {
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  list->commands[i].as.dispatch =
      (accrt_driver_dispatch_t){.kernel = &mix_kernel,
                                .grid = {constant(1), constant(1), constant(1)},
                                .params = &list->params[i],
                                .params_size_bytes = 20,
                                .patches = list->patches[i],
                                .patch_count = mix_patches(r, list, i)};
}

static inline void make_operator(random_source_t* r, list_t* list, uint32_t i, uint32_t which) {
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  list->commands[i].as.invoke = (accrt_driver_invoke_t){
      .operation = &operators[which],
      .params = &list->params[i],
      .params_size_bytes = 20,
      .patches = list->patches[i],
      .patch_count = mix_patches(r, list, i),
      .workspace = {.binding = NONE, .offset = constant(0), .size_bytes = constant(0)}};
}

/* A linear copy may have a size from the submission, which may be 0. A strided one has rows of up
 * to 67 bytes. */
static inline void make_copy(random_source_t* r, list_t* list, uint32_t i) {
  const uint32_t form = below(r, 4);
  const uint32_t source = any_binding(r, list);
  const uint32_t target = (source + 1 + below(r, list->binding_count - 1)) % list->binding_count;
  accrt_driver_copy_t* copy = &list->commands[i].as.copy;
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_COPY;
  copy->source =
      (accrt_driver_range_t){source, 0, maybe_scalar(r, list, below(r, 64)), constant(0)};
  copy->target =
      (accrt_driver_range_t){target, 0, maybe_scalar(r, list, below(r, 64)), constant(0)};
  copy->extent[0] = constant(8 + below(r, 60));
  if (form == 0 && list->scalar_count > 0)
    copy->extent[0] = (accrt_driver_value_t){0, below(r, list->scalar_count), 0};
  if (form == 1)
    copy->extent[0] = maybe_scalar(r, list, 100 + below(r, 1000));
  copy->extent[1] = constant(form >= 2 ? 2 + below(r, 5) : 1);
  copy->extent[2] = constant(form == 3 ? 2 + below(r, 3) : 1);
  const uint64_t row = below(r, 2) == 0 ? 80 : 80 + below(r, 16);
  copy->source_stride_bytes[0] = constant(row);
  copy->source_stride_bytes[1] = constant(below(r, 2) ? 800 : row * 8);
  const uint64_t packed = below(r, 2) == 0 ? copy->extent[0].constant : 100;
  copy->target_stride_bytes[0] = constant(form >= 2 ? packed : 100);
  copy->target_stride_bytes[1] = constant(below(r, 2) ? 1000 : packed * 8);
  list->reads[i] = 1u << source;
  list->writes[i] = 1u << target;
}

static inline void make_fill(random_source_t* r, list_t* list, uint32_t i) {
  const uint32_t binding = any_binding(r, list), log2_bytes = below(r, 4);
  accrt_driver_fill_t* fill = &list->commands[i].as.fill;
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_FILL;
  fill->pattern_bytes = 1u << log2_bytes;
  fill->pattern = (uint64_t)below(r, 1u << 30) * 77777;
  if (below(r, 2) == 0) /* both halves the same */
    fill->pattern = (fill->pattern & UINT32_MAX) | fill->pattern << 32;
  fill->target =
      (accrt_driver_range_t){binding, 0, constant(8u * below(r, 50)), constant(8u * below(r, 300))};
  if (log2_bytes == 0)
    fill->target.size_bytes = maybe_scalar(r, list, below(r, 2) * 300);
  list->writes[i] = 1u << binding;
}

static inline void make_command(random_source_t* r, list_t* list, uint32_t i, uint32_t kind) {
  memset(&list->commands[i], 0, sizeof list->commands[i]);
  list->reads[i] = list->writes[i] = 0;
  if (kind < 4)
    make_add(r, list, i);
  else if (kind < 7)
    make_mix(r, list, i);
  else if (kind == 7)
    list->commands[i].opcode =
        below(r, 2) == 0 ? ACCRT_DRIVER_COMMAND_BARRIER : ACCRT_DRIVER_COMMAND_MARKER;
  else if (kind < 12 && list->binding_count > 1)
    make_copy(r, list, i);
  else if (kind < 14)
    make_fill(r, list, i);
  else
    make_operator(r, list, i, kind - 14);
}

/* Every command that conflicts with an earlier one names it; some name others, or the same
 * twice. */
static inline void order_command(random_source_t* r, list_t* list, uint32_t i) {
  accrt_driver_command_t* command = &list->commands[i];
  if (command->opcode == ACCRT_DRIVER_COMMAND_BARRIER)
    return;
  command->predecessors = list->predecessors[i];
  for (uint32_t k = 0; k < i; ++k) {
    const bool conflict = (list->writes[k] & (list->reads[i] | list->writes[i])) != 0 ||
                          (list->reads[k] & list->writes[i]) != 0;
    if (conflict || below(r, 12) == 0)
      list->predecessors[i][command->predecessor_count++] = k;
  }
  if (command->predecessor_count > 0 && below(r, 4) == 0) {
    list->predecessors[i][command->predecessor_count] = list->predecessors[i][0];
    command->predecessor_count += 1;
  }
}

static inline accrt_status_t create_list(list_t* list, bool with_flags) {
  const accrt_driver_list_info_t info = {.struct_size = sizeof info,
                                         .command_count = list->command_count,
                                         .commands = list->commands,
                                         .binding_count = list->binding_count,
                                         .scalar_count = list->scalar_count,
                                         .binding_flags = with_flags ? list->flags : NULL,
                                         .name = "random"};
  return table->list_create(opened, &info, &list->handle);
}

static inline void make_list(random_source_t* r, list_t* list) {
  memset(list, 0, sizeof *list);
  list->binding_count = 1 + below(r, MAX_BINDINGS);
  list->scalar_count = below(r, MAX_SCALARS + 1);
  list->command_count = 1 + below(r, below(r, 3) == 0 ? MAX_COMMANDS : 8);
  const bool kernels_alone = below(r, 3) == 0;
  for (uint32_t i = 0; i < list->binding_count; ++i)
    list->flags[i] = below(r, 2) * ACCRT_DRIVER_BINDING_STABLE;
  for (uint32_t i = 0; i < list->command_count; ++i) {
    make_command(r, list, i, below(r, kernels_alone ? 8 : 16));
    order_command(r, list, i);
  }
  REQUIRE(create_list(list, below(r, 3) > 0) == ACCRT_OK);
}

/* ---- The model ---- */

/* The inputs of one submission of a list. */
typedef struct inputs {
  bool used;
  uint32_t window[MAX_BINDINGS];
  accrt_driver_binding_t bindings[MAX_BINDINGS];
  uint64_t scalars[MAX_SCALARS];
} inputs_t;

typedef struct worker {
  pthread_t thread;
  random_source_t random;
  uint32_t index, rounds;
  accrt_driver_queue_t* queue;
  uint64_t number;
  list_t* lists;
  accrt_driver_launch_t* launch;
  inputs_t last[LISTS], before[LISTS];
  uint32_t executed;
  CUdeviceptr windows[WINDOWS];
  uint32_t model[WINDOWS][WORDS];
} worker_t;

static inline uint64_t value_of(const accrt_driver_value_t* value, const inputs_t* inputs) {
  return value->constant + (value->scalar == NONE ? 0 : inputs->scalars[value->scalar]);
}

static inline unsigned char* place_of(worker_t* w, const accrt_driver_range_t* range,
                                      const inputs_t* inputs) {
  return (unsigned char*)w->model[inputs->window[range->binding]] +
         value_of(&range->offset, inputs);
}

static inline void model_add(uint32_t* target, uint32_t value, uint64_t count, uint64_t grid) {
  for (uint64_t i = 0; i < count && i < grid * BLOCK; ++i)
    target[i] += value;
}

static inline void model_mix(worker_t* w, const accrt_driver_patch_t* patches,
                             const inputs_t* inputs, uint32_t more) {
  uint32_t* cell = (uint32_t*)(void*)place_of(w, &patches[0].range, inputs);
  const uint32_t* source = (const uint32_t*)(const void*)place_of(w, &patches[1].range, inputs);
  *cell = *cell * 31u + *source + (uint32_t)value_of(&patches[2].value, inputs) + more;
}

static inline void model_copy(worker_t* w, const accrt_driver_copy_t* copy,
                              const inputs_t* inputs) {
  const unsigned char* source = place_of(w, &copy->source, inputs);
  unsigned char* target = place_of(w, &copy->target, inputs);
  for (uint64_t z = 0; z < copy->extent[2].constant; ++z) {
    for (uint64_t y = 0; y < copy->extent[1].constant; ++y) {
      memcpy(target + z * copy->target_stride_bytes[1].constant +
                 y * copy->target_stride_bytes[0].constant,
             source + z * copy->source_stride_bytes[1].constant +
                 y * copy->source_stride_bytes[0].constant,
             value_of(&copy->extent[0], inputs));
    }
  }
}

static inline void model_fill(worker_t* w, const accrt_driver_fill_t* fill,
                              const inputs_t* inputs) {
  unsigned char* target = place_of(w, &fill->target, inputs);
  const uint64_t size_bytes = value_of(&fill->target.size_bytes, inputs);
  for (uint64_t i = 0; i < size_bytes; ++i)
    target[i] = (unsigned char)(fill->pattern >> 8 * (i % fill->pattern_bytes));
}

static inline void model_command(worker_t* w, const list_t* list, uint32_t i,
                                 const inputs_t* inputs) {
  const accrt_driver_command_t* command = &list->commands[i];
  const accrt_driver_patch_t* patches = list->patches[i];
  switch (command->opcode) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    if (command->as.dispatch.kernel == &mix_kernel)
      model_mix(w, patches, inputs, 0);
    else
      model_add((uint32_t*)(void*)place_of(w, &patches[0].range, inputs), list->params[i].add.value,
                value_of(&patches[1].value, inputs),
                value_of(&command->as.dispatch.grid[0], inputs));
    break;
  case ACCRT_DRIVER_COMMAND_OPERATOR:
    model_mix(w, patches, inputs, 0);
    model_mix(w, patches, inputs, 1);
    break;
  case ACCRT_DRIVER_COMMAND_COPY:
    model_copy(w, &command->as.copy, inputs);
    break;
  case ACCRT_DRIVER_COMMAND_FILL:
    model_fill(w, &command->as.fill, inputs);
    break;
  default:
    break;
  }
}

static inline void verify(worker_t* w) {
  uint32_t seen[WORDS];
  REQUIRE(table->queue_wait(w->queue, w->number, UINT64_MAX, below(&w->random, 3)) == ACCRT_OK);
  for (uint32_t i = 0; i < WINDOWS; ++i) {
    copy_and_wait(w->queue, (CUdeviceptr)(uintptr_t)seen, w->windows[i], sizeof seen);
    for (uint32_t k = 0; k < WORDS; ++k) {
      if (seen[k] == w->model[i][k])
        continue;
      fprintf(stderr, "worker %u, window %u, word %u: %08x, expected %08x, after %u lists\n",
              (unsigned)w->index, (unsigned)i, (unsigned)k, (unsigned)seen[k],
              (unsigned)w->model[i][k], (unsigned)w->executed);
      exit(1);
    }
  }
}

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_LISTS_TEST_H_ */
