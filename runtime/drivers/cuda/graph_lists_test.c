/* runtime/drivers/cuda/graph_lists_test.c - random lists and launches on a CUDA device, against a
 * model on the CPU; every call of CUDA failing once. Drives the driver's table alone. Runs on a GPU
 * and on the stand-in of tests/fakecuda; without either it is skipped. Failing calls need the
 * stand-in.
 *
 * Usage: [seed [rounds [threads]]]; without arguments, some seeds and everything else.
 */
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

static uint32_t below(random_source_t* source, uint32_t bound) { /* xorshift */
  source->state ^= source->state << 13;
  source->state ^= source->state >> 7;
  source->state ^= source->state << 17;
  return (uint32_t)((source->state >> 11) % bound);
}

static random_source_t seeded(uint64_t seed) {
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

static const char* option(const accrt_driver_environment_t* environment, const char* key) {
  (void)environment;
  return strcmp(key, "cuda.graphs") == 0 ? getenv("ACCRT_TEST_GRAPHS") : NULL;
}

static void log_line(const accrt_driver_environment_t* environment, uint32_t level,
                     const char* line) {
  (void)environment;
  fprintf(stderr, "log %u: %s\n", (unsigned)level, line);
}

static accrt_status_t record(const accrt_driver_environment_t* environment, accrt_status_t status,
                             int32_t code, const char* name, const char* operation,
                             const char* message) {
  (void)environment;
  return accrt_error_record_driver(status, code, name, operation, __FILE__, (uint32_t)__LINE__,
                                   "%s", message);
}

static void trace(const accrt_driver_environment_t* environment, const accrt_trace_event_t* event) {
  (void)environment;
  (void)event;
}

static char* read_kernels(size_t* out_size_bytes) {
  static char text[65536];
  FILE* file = fopen(KERNELS, "r");
  REQUIRE(file != NULL);
  *out_size_bytes = fread(text, 1, sizeof text - 1, file) + 1;
  (void)fclose(file);
  return text;
}

static void load_kernels(void) {
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
static bool open_device(void) {
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

static void close_device(void) {
  REQUIRE(device->graphs.count == 0);
  table->module_unload(module);
  table->device_close(opened);
  table->close(driver);
}

static CUdeviceptr allocate(uint64_t size_bytes) {
  CUdeviceptr address = 0;
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result = device->api->cuMemAlloc(&address, size_bytes);
  cuda_leave(device, scope);
  REQUIRE(result == CUDA_SUCCESS);
  return address;
}

static void release(CUdeviceptr address) {
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuMemFree(address) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

static void copy_and_wait(accrt_driver_queue_t* queue, CUdeviceptr target, CUdeviceptr source,
                          size_t size_bytes) {
  const CUstream stream = table->queue_native(queue);
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuMemcpyAsync(target, source, size_bytes, stream) == CUDA_SUCCESS);
  REQUIRE(device->api->cuStreamSynchronize(stream) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

/* Past what the driver says. */
static void wait_for_stream(accrt_driver_queue_t* queue) {
  const cuda_scope_t scope = cuda_enter(device);
  REQUIRE(device->api->cuStreamSynchronize(table->queue_native(queue)) == CUDA_SUCCESS);
  cuda_leave(device, scope);
}

/* ---- Operators: tx_mix twice ---- */

static atomic_uint operator_states;
static atomic_bool operator_fails;

static int32_t operator_prepare(const accrt_kernel_environment_t* environment,
                                const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  (void)call;
  atomic_fetch_add_explicit(&operator_states, 1, memory_order_relaxed);
  *out_state = calloc(1, sizeof(uint32_t));
  return 0;
}

static void operator_destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  atomic_fetch_sub_explicit(&operator_states, 1, memory_order_relaxed);
  free(state);
}

static int32_t operator_execute(const accrt_kernel_environment_t* environment,
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

static accrt_driver_value_t constant(uint64_t number) {
  return (accrt_driver_value_t){number, NONE, 0};
}

/* Scalars are 0 to 200. */
static accrt_driver_value_t maybe_scalar(random_source_t* r, const list_t* list, uint64_t number) {
  accrt_driver_value_t value = constant(number);
  if (list->scalar_count > 0 && below(r, 3) == 0)
    value.scalar = below(r, list->scalar_count);
  return value;
}

static accrt_driver_patch_t address_patch(uint32_t offset_bytes, uint32_t binding,
                                          accrt_driver_value_t offset) {
  return (accrt_driver_patch_t){
      .kind = ACCRT_DRIVER_PATCH_ADDRESS,
      .offset_bytes = offset_bytes,
      .size_bytes = 8,
      .range = {.binding = binding, .offset = offset, .size_bytes = constant(0)},
      .value = constant(0)};
}

static accrt_driver_patch_t value_patch(uint32_t offset_bytes, accrt_driver_value_t value) {
  return (accrt_driver_patch_t){
      .kind = ACCRT_DRIVER_PATCH_VALUE,
      .offset_bytes = offset_bytes,
      .size_bytes = 4,
      .range = {.binding = NONE, .offset = constant(0), .size_bytes = constant(0)},
      .value = value};
}

static uint32_t any_binding(random_source_t* r, const list_t* list) {
  return below(r, list->binding_count);
}

static void make_add(random_source_t* r, list_t* list, uint32_t i) {
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

static uint32_t mix_patches(random_source_t* r, list_t* list, uint32_t i) {
  const uint32_t cell = any_binding(r, list), source = any_binding(r, list);
  list->params[i].mix = (mix_params_t){0, 0, 0};
  list->patches[i][0] = address_patch(0, cell, constant(4u * below(r, 200)));
  list->patches[i][1] = address_patch(8, source, constant(4u * below(r, 200)));
  list->patches[i][2] = value_patch(16, maybe_scalar(r, list, below(r, 1000)));
  list->reads[i] = 1u << source;
  list->writes[i] = 1u << cell;
  return 3;
}

static void make_mix(random_source_t* r, list_t* list, uint32_t i) {
  list->commands[i].opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  list->commands[i].as.dispatch =
      (accrt_driver_dispatch_t){.kernel = &mix_kernel,
                                .grid = {constant(1), constant(1), constant(1)},
                                .params = &list->params[i],
                                .params_size_bytes = 20,
                                .patches = list->patches[i],
                                .patch_count = mix_patches(r, list, i)};
}

static void make_operator(random_source_t* r, list_t* list, uint32_t i, uint32_t which) {
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
static void make_copy(random_source_t* r, list_t* list, uint32_t i) {
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

static void make_fill(random_source_t* r, list_t* list, uint32_t i) {
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

static void make_command(random_source_t* r, list_t* list, uint32_t i, uint32_t kind) {
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
static void order_command(random_source_t* r, list_t* list, uint32_t i) {
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

static accrt_status_t create_list(list_t* list, bool with_flags) {
  const accrt_driver_list_info_t info = {.struct_size = sizeof info,
                                         .command_count = list->command_count,
                                         .commands = list->commands,
                                         .binding_count = list->binding_count,
                                         .scalar_count = list->scalar_count,
                                         .binding_flags = with_flags ? list->flags : NULL,
                                         .name = "random"};
  return table->list_create(opened, &info, &list->handle);
}

static void make_list(random_source_t* r, list_t* list) {
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

static uint64_t value_of(const accrt_driver_value_t* value, const inputs_t* inputs) {
  return value->constant + (value->scalar == NONE ? 0 : inputs->scalars[value->scalar]);
}

static unsigned char* place_of(worker_t* w, const accrt_driver_range_t* range,
                               const inputs_t* inputs) {
  return (unsigned char*)w->model[inputs->window[range->binding]] +
         value_of(&range->offset, inputs);
}

static void model_add(uint32_t* target, uint32_t value, uint64_t count, uint64_t grid) {
  for (uint64_t i = 0; i < count && i < grid * BLOCK; ++i)
    target[i] += value;
}

static void model_mix(worker_t* w, const accrt_driver_patch_t* patches, const inputs_t* inputs,
                      uint32_t more) {
  uint32_t* cell = (uint32_t*)(void*)place_of(w, &patches[0].range, inputs);
  const uint32_t* source = (const uint32_t*)(const void*)place_of(w, &patches[1].range, inputs);
  *cell = *cell * 31u + *source + (uint32_t)value_of(&patches[2].value, inputs) + more;
}

static void model_copy(worker_t* w, const accrt_driver_copy_t* copy, const inputs_t* inputs) {
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

static void model_fill(worker_t* w, const accrt_driver_fill_t* fill, const inputs_t* inputs) {
  unsigned char* target = place_of(w, &fill->target, inputs);
  const uint64_t size_bytes = value_of(&fill->target.size_bytes, inputs);
  for (uint64_t i = 0; i < size_bytes; ++i)
    target[i] = (unsigned char)(fill->pattern >> 8 * (i % fill->pattern_bytes));
}

static void model_command(worker_t* w, const list_t* list, uint32_t i, const inputs_t* inputs) {
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

static void verify(worker_t* w) {
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

/* ---- Workers ---- */

/* No two bindings share a window, because lists do not know aliases. */
static uint32_t free_window(worker_t* w, const inputs_t* inputs, uint32_t count) {
  for (;;) {
    const uint32_t window = below(&w->random, WINDOWS);
    bool taken = false;
    for (uint32_t i = 0; i < count; ++i)
      taken = taken || inputs->window[i] == window;
    if (!taken)
      return window;
  }
}

static void change_inputs(worker_t* w, const list_t* list, inputs_t* inputs) {
  random_source_t* r = &w->random;
  const bool all = !inputs->used || below(r, 4) == 0;
  for (uint32_t i = 0; i < list->binding_count; ++i) {
    if (all || below(r, 3) == 0)
      inputs->window[i] = WINDOWS;
  }
  for (uint32_t i = 0; i < list->binding_count; ++i) {
    if (inputs->window[i] == WINDOWS)
      inputs->window[i] = free_window(w, inputs, list->binding_count);
    inputs->bindings[i] =
        (accrt_driver_binding_t){w->windows[inputs->window[i]], sizeof w->model[0]};
  }
  for (uint32_t i = 0; i < list->scalar_count; ++i) {
    if (all || below(r, 2) == 0)
      inputs->scalars[i] = below(r, 3) == 0 ? 0 : below(r, 201);
  }
  inputs->used = true;
}

/* The same inputs again, those before, or others. */
static const inputs_t* choose_inputs(worker_t* w, uint32_t which) {
  const uint32_t how = below(&w->random, 6);
  inputs_t* last = &w->last[which];
  if (last->used && how == 0)
    return last;
  const inputs_t before = w->before[which];
  w->before[which] = *last;
  if (before.used && how == 1)
    *last = before;
  else
    change_inputs(w, &w->lists[which], last);
  return last;
}

static void execute_list(worker_t* w) {
  const uint32_t which = below(&w->random, LISTS);
  const list_t* list = &w->lists[which];
  const inputs_t* inputs = choose_inputs(w, which);
  const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                .binding_count = list->binding_count,
                                                .bindings = inputs->bindings,
                                                .scalars = inputs->scalars,
                                                .scalar_count = list->scalar_count,
                                                .number = ++w->number};
  REQUIRE(table->queue_execute(w->queue, list->handle, &submission) == ACCRT_OK);
  for (uint32_t i = 0; i < list->command_count; ++i)
    model_command(w, list, i, inputs);
  w->executed += 1;
}

/* With a prepared launch or without. The queue prepares repeated kernels automatically. */
static void launch_add(worker_t* w) {
  random_source_t* r = &w->random;
  const uint32_t window = below(r, WINDOWS);
  const add_params_t params = {w->windows[window], below(r, 1000), below(r, WORDS)};
  const uint32_t grid[3] = {1 + below(r, 20), 1, 1};
  if (below(r, 2) == 0) {
    REQUIRE(table->queue_launch(w->queue, w->launch, grid, &params, ++w->number) == ACCRT_OK);
  } else {
    const accrt_driver_command_t command = {
        .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
        .as.dispatch = {.kernel = &add_kernel,
                        .grid = {constant(grid[0]), constant(1), constant(1)},
                        .params = &params,
                        .params_size_bytes = sizeof params}};
    const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                  .number = ++w->number};
    REQUIRE(table->queue_enqueue(w->queue, &command, &submission) == ACCRT_OK);
  }
  model_add(w->model[window], params.value, params.count, grid[0]);
}

static void* run_worker(void* opaque) {
  worker_t* w = opaque;
  for (uint32_t i = 0; i < w->rounds; ++i) {
    if (below(&w->random, 3) == 0)
      launch_add(w);
    else
      execute_list(w);
    if (below(&w->random, 40) == 0)
      verify(w);
    if (below(&w->random, 200) == 0) { /* with executions in flight */
      table->launch_destroy(w->launch);
      REQUIRE(table->launch_create(opened, &add_kernel, &w->launch) == ACCRT_OK);
    }
  }
  verify(w);
  return NULL;
}

static void start_worker(worker_t* w, uint32_t index, uint64_t seed, uint32_t rounds,
                         list_t* lists) {
  *w = (worker_t){
      .random = seeded(seed * 31 + index + 1), .index = index, .rounds = rounds, .lists = lists};
  REQUIRE(table->queue_create(opened, 0, &w->queue) == ACCRT_OK);
  REQUIRE(table->launch_create(opened, &add_kernel, &w->launch) == ACCRT_OK);
  for (uint32_t i = 0; i < WINDOWS; ++i) {
    for (uint32_t k = 0; k < WORDS; ++k)
      w->model[i][k] = below(&w->random, UINT32_MAX);
    w->windows[i] = allocate(sizeof w->model[i]);
    copy_and_wait(w->queue, w->windows[i], (CUdeviceptr)(uintptr_t)w->model[i], sizeof w->model[i]);
  }
}

static void end_worker(worker_t* w) {
  table->launch_destroy(w->launch);
  table->queue_destroy(w->queue);
  for (uint32_t i = 0; i < WINDOWS; ++i)
    release(w->windows[i]);
}

/* Lists are shared by the workers, memory is not. */
static void run_random(uint64_t seed, uint32_t rounds, uint32_t worker_count) {
  static list_t lists[LISTS];
  static worker_t workers[MAX_WORKERS];
  random_source_t random = seeded(seed);
  printf("seed %llu, %u rounds, %u threads\n", (unsigned long long)seed, (unsigned)rounds,
         (unsigned)worker_count);
  for (uint32_t i = 0; i < LISTS; ++i)
    make_list(&random, &lists[i]);
  for (uint32_t i = 0; i < worker_count; ++i)
    start_worker(&workers[i], i, seed, rounds, lists);
  for (uint32_t i = 0; i < worker_count; ++i)
    REQUIRE(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0);
  for (uint32_t i = 0; i < worker_count; ++i) {
    REQUIRE(pthread_join(workers[i].thread, NULL) == 0);
    end_worker(&workers[i]);
  }
  for (uint32_t i = 0; i < LISTS; ++i)
    table->list_destroy(lists[i].handle);
  REQUIRE(device->graphs.count == 0);
  REQUIRE(atomic_load_explicit(&operator_states, memory_order_relaxed) == 0);
}

/* ---- Tests ---- */

static void test_random(void** state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 6; ++seed)
    run_random(seed, 150, 1);
  run_random(7, 100, 3);
}

/* A node cannot use host memory that CUDA does not know. The list still fills such memory. */
static void test_plain_memory(void** state) {
  (void)state;
  static uint32_t words[64];
  list_t list = {.binding_count = 2, .command_count = 2};
  for (uint32_t i = 0; i < 2; ++i) {
    list.commands[i].opcode = ACCRT_DRIVER_COMMAND_FILL;
    list.commands[i].as.fill =
        (accrt_driver_fill_t){.target = {i, 0, constant(0), constant(sizeof words)},
                              .pattern = 7 + i,
                              .pattern_bytes = 4};
  }
  /* The first turn has both in one place. */
  list.commands[1].predecessors = list.predecessors[1];
  list.commands[1].predecessor_count = 1;
  const CUdeviceptr memory = allocate(sizeof words);
  accrt_driver_queue_t* queue;
  assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
  assert_int_equal(create_list(&list, false), ACCRT_OK);
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    const accrt_driver_binding_t bindings[2] = {
        {turn == 1 ? memory : (uintptr_t)words, sizeof words}, {memory, sizeof words}};
    const accrt_driver_submission_t submission = {
        .struct_size = sizeof submission, .binding_count = 2, .bindings = bindings, .number = turn};
    memset(words, 0, sizeof words);
    assert_int_equal(table->queue_execute(queue, list.handle, &submission), ACCRT_OK);
    assert_int_equal(table->queue_wait(queue, turn, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    assert_int_equal(words[63], turn == 1 ? 0 : 7);
    copy_and_wait(queue, (CUdeviceptr)(uintptr_t)words, memory, sizeof words);
    assert_int_equal(words[63], 8);
  }
  table->list_destroy(list.handle);
  table->queue_destroy(queue);
  release(memory);
}

static void enqueue_add(accrt_driver_queue_t* queue, const accrt_driver_kernel_t* kernel,
                        CUdeviceptr target, uint64_t number) {
  const add_params_t params = {target, 1, 1};
  const accrt_driver_command_t command = {
      .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
      .as.dispatch = {.kernel = kernel,
                      .grid = {constant(1), constant(1), constant(1)},
                      .params = &params,
                      .params_size_bytes = sizeof params}};
  const accrt_driver_submission_t submission = {.struct_size = sizeof submission, .number = number};
  assert_int_equal(table->queue_enqueue(queue, &command, &submission), ACCRT_OK);
}

/* A queue drops its prepared launches of kernels whose module was unloaded, and never confuses a
 * new kernel with an old one. */
static void test_unloaded_modules(void** state) {
  (void)state;
  accrt_driver_image_t image = {.kind = IMAGE_PTX, .name = KERNELS};
  accrt_driver_queue_t* queue;
  uint32_t words[2] = {0, 0};
  uint64_t number = 0;
  image.data = read_kernels(&image.size_bytes);
  const CUdeviceptr memory = allocate(sizeof words);
  assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
  copy_and_wait(queue, memory, (CUdeviceptr)(uintptr_t)words, sizeof words);
  for (uint32_t turn = 0; turn < 20; ++turn) {
    accrt_driver_module_t* again;
    accrt_driver_kernel_t kernel = add_kernel;
    assert_int_equal(table->module_load(opened, &image, &again), ACCRT_OK);
    assert_int_equal(table->module_find(again, "tx_add", kernel.definition, &kernel.module_kernel),
                     ACCRT_OK);
    for (uint32_t i = 0; i < 10; ++i)
      enqueue_add(queue, &kernel, memory + turn % 2 * 4, ++number);
    assert_int_equal(table->queue_wait(queue, number, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    table->module_unload(again);
  }
  copy_and_wait(queue, (CUdeviceptr)(uintptr_t)words, memory, sizeof words);
  assert_int_equal(words[0], 100);
  assert_int_equal(words[1], 100);
  table->queue_destroy(queue);
  release(memory);
}

/* A captured operator that fails does so before any work is submitted. Another operator's failure
 * fails the queue, because a part of the list was submitted. */
static void test_failing_operators(void** state) {
  (void)state;
  random_source_t random = seeded(3);
  const CUdeviceptr memory = allocate(WORDS * 4);
  const accrt_driver_binding_t binding = {memory, WORDS * 4};
  accrt_driver_submission_t submission = {
      .struct_size = sizeof submission, .binding_count = 1, .bindings = &binding};
  for (uint32_t which = 0; which < 2; ++which) {
    list_t list = {.binding_count = 1, .command_count = 2};
    accrt_driver_queue_t* queue;
    make_add(&random, &list, 0);
    make_operator(&random, &list, 1, which);
    list.predecessors[1][0] = 0;
    list.commands[1].predecessors = list.predecessors[1];
    list.commands[1].predecessor_count = 1;
    assert_int_equal(create_list(&list, false), ACCRT_OK);
    assert_int_equal(table->queue_create(opened, 0, &queue), ACCRT_OK);
    atomic_store_explicit(&operator_fails, true, memory_order_relaxed);
    submission.number = 1;
    const accrt_status_t executed = table->queue_execute(queue, list.handle, &submission);
    atomic_store_explicit(&operator_fails, false, memory_order_relaxed);
    assert_int_equal(executed, which == 0 ? ACCRT_ERROR_KERNEL : ACCRT_OK);
    const accrt_status_t waited =
        which == 0 ? executed : table->queue_wait(queue, 1, UINT64_MAX, ACCRT_WAIT_BLOCK);
    assert_int_equal(waited, ACCRT_ERROR_KERNEL);
    assert_int_equal(accrt_error_current()->driver_code, 77);
    assert_non_null(strstr(accrt_error_current()->message, "no luck today"));
    assert_non_null(strstr(accrt_error_current()->message, operator_definitions[which].name));
    wait_for_stream(queue);
    assert_int_equal(table->queue_reset(queue), ACCRT_OK);
    submission.number = 2;
    assert_int_equal(table->queue_execute(queue, list.handle, &submission), ACCRT_OK);
    assert_int_equal(table->queue_wait(queue, 2, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
    table->list_destroy(list.handle);
    table->queue_destroy(queue);
  }
  release(memory);
}

static void ignore_end(void* user, accrt_status_t status, const accrt_error_t* error,
                       uint64_t time_ns) {
  (void)user, (void)status, (void)error, (void)time_ns;
}

/* On a stream that its owner captures, a list becomes part of the owner's graph, and runs when that
 * is launched. A list with an operator that cannot be captured is refused, and the capture stays
 * valid. */
static void test_captured(void** state) {
  (void)state;
  const cuda_api_t* api = device->api;
  random_source_t random = seeded(9);
  static uint32_t words[2][WORDS];
  const CUdeviceptr memory[2] = {allocate(sizeof words[0]), allocate(sizeof words[0])};
  list_t lists[2] = {{.binding_count = 1, .command_count = 3},
                     {.binding_count = 1, .command_count = 3}};
  for (uint32_t which = 0; which < 2; ++which) {
    make_add(&random, &lists[which], 0);
    make_operator(&random, &lists[which], 1, which);
    make_fill(&random, &lists[which], 2);
    for (uint32_t i = 1; i < 3; ++i) {
      lists[which].predecessors[i][0] = i - 1;
      lists[which].commands[i].predecessors = lists[which].predecessors[i];
      lists[which].commands[i].predecessor_count = 1;
    }
    assert_int_equal(create_list(&lists[which], false), ACCRT_OK);
  }
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  accrt_driver_queue_t *queue, *own;
  assert_int_equal(api->cuCtxSetCurrent(device->context), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  assert_int_equal(table->queue_wrap(opened, stream, &queue), ACCRT_OK);
  assert_int_equal(table->queue_create(opened, 0, &own), ACCRT_OK);
  for (uint32_t i = 0; i < 2; ++i) {
    memset(words[i], 0, sizeof words[i]);
    copy_and_wait(own, memory[i], (CUdeviceptr)(uintptr_t)words[i], sizeof words[i]);
  }
  accrt_driver_binding_t binding = {memory[0], sizeof words[0]};
  accrt_driver_submission_t submission = {
      .struct_size = sizeof submission, .binding_count = 1, .bindings = &binding, .number = 1};
  uint64_t ended = 0;
  assert_int_equal(api->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  assert_int_equal(table->queue_execute(queue, lists[1].handle, &submission),
                   ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(table->queue_execute(queue, lists[0].handle, &submission), ACCRT_OK);
  assert_int_equal(table->queue_progress(queue, &ended), ACCRT_OK);
  assert_int_equal(ended, 1); /* nothing of it runs now */
  assert_int_equal(table->queue_wait(queue, 1, 0, ACCRT_WAIT_SPIN), ACCRT_ERROR_INVALID_STATE);
  submission.number = 2;
  submission.completion = (accrt_driver_completion_t){ignore_end, NULL};
  assert_int_equal(table->queue_execute(queue, lists[0].handle, &submission),
                   ACCRT_ERROR_INVALID_STATE);
  submission.completion = (accrt_driver_completion_t){NULL, NULL};
  assert_int_equal(api->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  assert_int_equal(api->cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  assert_int_equal(api->cuGraphDestroy(graph), CUDA_SUCCESS);
  binding.address = memory[1];
  for (uint64_t turn = 0; turn < 2; ++turn) {
    assert_int_equal(api->cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    submission.number = 100 + turn; /* behind the copies above */
    assert_int_equal(table->queue_execute(own, lists[0].handle, &submission), ACCRT_OK);
  }
  assert_int_equal(table->queue_wait(own, 101, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  assert_int_equal(api->cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 2; ++i)
    copy_and_wait(own, (CUdeviceptr)(uintptr_t)words[i], memory[i], sizeof words[i]);
  assert_memory_equal(words[0], words[1], sizeof words[0]);
  assert_int_equal(api->cuGraphExecDestroy(exec), CUDA_SUCCESS);
  /* Its owner goes on with the stream, and so does the queue. */
  assert_int_equal(table->queue_wait(queue, 1, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  submission.number = 2;
  assert_int_equal(table->queue_execute(queue, lists[1].handle, &submission), ACCRT_OK);
  assert_int_equal(table->queue_wait(queue, 2, UINT64_MAX, ACCRT_WAIT_BLOCK), ACCRT_OK);
  table->queue_destroy(queue);
  table->queue_destroy(own);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  for (uint32_t i = 0; i < 2; ++i) {
    table->list_destroy(lists[i].handle);
    release(memory[i]);
  }
}

/* One of everything, executed with changing inputs; also launches. Returns how many calls
 * failed. */
static uint32_t run_all(void) {
  static list_t list;
  static const uint32_t kinds[] = {0, 14, 4, 8, 9, 10, 11, 12, 13, 15, 1};
  random_source_t random = seeded(42);
  worker_t w = {.number = 0};
  uint32_t failed = 0;
  memset(&list, 0, sizeof list);
  list.binding_count = 3;
  list.scalar_count = 2;
  list.command_count = sizeof kinds / sizeof kinds[0];
  for (uint32_t i = 0; i < list.command_count; ++i) {
    make_command(&random, &list, i, kinds[i]);
    order_command(&random, &list, i);
  }
  /* 0 in the first turn, and again in the last. */
  list.commands[0].as.dispatch.grid[0] = (accrt_driver_value_t){0, 0, 0};
  CUdeviceptr windows[3];
  for (uint32_t i = 0; i < 3; ++i)
    windows[i] = allocate(WORDS * 4);
  REQUIRE(table->queue_create(opened, 0, &w.queue) == ACCRT_OK);
  const accrt_status_t created = create_list(&list, false);
  REQUIRE((created == ACCRT_OK) == (list.handle != NULL));
  failed += created != ACCRT_OK;
  for (uint64_t turn = 0; turn < 5 && list.handle != NULL; ++turn) {
    const accrt_driver_binding_t bindings[3] = {{windows[turn & 1], WORDS * 4},
                                                {windows[1 - (turn & 1)], WORDS * 4},
                                                {windows[2], WORDS * 4}};
    const uint64_t scalars[2] = {turn * 3 % 4, 5 - turn};
    const accrt_driver_submission_t submission = {.struct_size = sizeof submission,
                                                  .binding_count = 3,
                                                  .bindings = bindings,
                                                  .scalars = scalars,
                                                  .scalar_count = 2,
                                                  .number = ++w.number};
    if (table->queue_execute(w.queue, list.handle, &submission) == ACCRT_OK)
      continue;
    failed += 1;
    w.number -= 1; /* nothing was enqueued */
    REQUIRE(accrt_error_current()->message[0] != '\0');
  }
  const uint32_t grid[3] = {1, 1, 1};
  const add_params_t params = {windows[0], 1, 10};
  failed += table->launch_create(opened, &add_kernel, &w.launch) != ACCRT_OK;
  for (uint32_t i = 0; i < 2 && w.launch != NULL; ++i)
    failed += table->queue_launch(w.queue, w.launch, grid, &params, w.number + 1 + i) != ACCRT_OK;
  w.number += w.launch != NULL ? 2 : 0;
  failed += table->queue_wait(w.queue, w.number, UINT64_MAX, ACCRT_WAIT_BLOCK) != ACCRT_OK;
  if (w.launch != NULL)
    table->launch_destroy(w.launch);
  wait_for_stream(w.queue);
  if (list.handle != NULL)
    table->list_destroy(list.handle);
  table->queue_destroy(w.queue);
  for (uint32_t i = 0; i < 3; ++i)
    release(windows[i]);
  REQUIRE(device->graphs.count == 0);
  REQUIRE(atomic_load_explicit(&operator_states, memory_order_relaxed) == 0);
  return failed;
}

typedef int (*control_fn_t)(const char* setting);
typedef uint64_t (*count_fn_t)(const char* entry_point);

/* A function of the stand-in; NULL with a real driver. */
static void* stand_in_function(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != NULL ? dlsym(library, name) : NULL;
}

/* Every call fails once. Nothing may leak, hang or break, and some failures are made good: a patch
 * that is refused is built. */
static void test_failing_calls(void** state) {
  (void)state;
  static const char* const names[] = {"cuGraphCreate",
                                      "cuGraphAddKernelNode",
                                      "cuGraphAddMemcpyNode",
                                      "cuGraphAddMemsetNode",
                                      "cuGraphAddEmptyNode",
                                      "cuGraphAddChildGraphNode",
                                      "cuGraphAddDependencies",
                                      "cuGraphInstantiateWithFlags",
                                      "cuGraphLaunch",
                                      "cuGraphExecKernelNodeSetParams",
                                      "cuGraphExecMemcpyNodeSetParams",
                                      "cuGraphExecMemsetNodeSetParams",
                                      "cuGraphExecChildGraphNodeSetParams",
                                      "cuGraphNodeSetEnabled",
                                      "cuStreamBeginCapture",
                                      "cuStreamEndCapture",
                                      "cuLaunchKernel"};
  void* symbols[2] = {stand_in_function("fakecuda_control"), stand_in_function("fakecuda_count")};
  control_fn_t control;
  count_fn_t count;
  if (symbols[0] == NULL)
    skip();
  memcpy(&control, &symbols[0], sizeof control);
  memcpy(&count, &symbols[1], sizeof count);
  assert_int_equal(run_all(), 0);
  for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n) {
    const uint64_t before = count(names[n]);
    assert_int_equal(run_all(), 0);
    const uint64_t calls = count(names[n]) - before;
    uint32_t failing = 0;
    for (uint64_t k = 1; k <= calls; ++k) {
      char setting[100];
      const CUresult result = k % 2 == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
      snprintf(setting, sizeof setting, "fail=%s:%llu=%d", names[n], (unsigned long long)k,
               (int)result);
      assert_int_equal(control(setting), 0);
      failing += run_all() > 0;
      assert_int_equal(control("reset"), 0);
    }
    printf("%s: called %llu times, %u failures were seen\n", names[n], (unsigned long long)calls,
           (unsigned)failing);
    assert_true(strcmp(names[n], "cuGraphAddEmptyNode") == 0 || calls > 0);
  }
}

int main(int argc, char** argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),
                                     cmocka_unit_test(test_plain_memory),
                                     cmocka_unit_test(test_failing_operators),
                                     cmocka_unit_test(test_unloaded_modules),
                                     cmocka_unit_test(test_captured),
                                     cmocka_unit_test(test_failing_calls)};
  if (!open_device()) {
    printf("skipped: %s\n", accrt_error_current()->message);
    return 0;
  }
  int status = 0;
  if (argc > 1)
    run_random(strtoull(argv[1], NULL, 10), argc > 2 ? (uint32_t)atoi(argv[2]) : 400,
               argc > 3 ? (uint32_t)atoi(argv[3]) : 1);
  else
    status = cmocka_run_group_tests(tests, NULL, NULL);
  close_device();
  return status;
}
