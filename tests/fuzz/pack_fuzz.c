/* tests/fuzz/pack_fuzz.c - tables of kernel packs, as a pack's query function may return them: sizes, counts, names and parameters
 * from the input, pointers that are NULL or good (a table in the process's own memory cannot lie about those). */
#include "accrt/kernel.h"
#include "tests/fuzz/fuzz.h"

#define MAX_KERNELS 4u
#define MAX_PARAMS 6u
#define MAX_OPERATORS 3u

static uint32_t take_u32(fuzz_input_t* input) {
  /* Small numbers fit more often than wide ones. */
  const uint64_t width = fuzz_take(input, 1);
  return (uint32_t)fuzz_take(input, width < 200 ? 1 : 4);
}

/* A name of up to 300 bytes, or NULL. */
typedef char name_t[304];
static const char* take_name(fuzz_input_t* input, name_t name) {
  const uint32_t length = take_u32(input);
  if (length == 255)
    return NULL;
  memset(name, 0, sizeof(name_t));
  if (length > 200) {
    memset(name, 'n', length < 300 ? length : 300);
    return name;
  }
  for (uint32_t i = 0; i < length % 6; ++i)
    name[i] = (char)fuzz_take(input, 1);
  return name;
}

static int32_t never_run(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  abort();
}
static int32_t never_executed(const accrt_kernel_environment_t* environment,
                              const accrt_operator_call_t* call, void* state) {
  (void)environment, (void)call, (void)state;
  abort();
}

typedef struct pack {
  accrt_kernel_pack_table_t table;
  accrt_kernel_def_t kernels[MAX_KERNELS];
  accrt_operator_def_t operators[MAX_OPERATORS];
  accrt_kernel_param_t params[MAX_KERNELS + MAX_OPERATORS][MAX_PARAMS];
  name_t names[1 + MAX_KERNELS + MAX_OPERATORS];
  name_t param_names[MAX_KERNELS + MAX_OPERATORS][MAX_PARAMS];
} pack_t;

static uint32_t take_params(fuzz_input_t* input, accrt_kernel_param_t* params, name_t* names) {
  const uint32_t count = take_u32(input) % (MAX_PARAMS + 1);
  uint32_t end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    params[i] = (accrt_kernel_param_t){.name = take_name(input, names[i]),
                                       .kind = (uint8_t)fuzz_take(input, 1),
                                       .access = (uint8_t)fuzz_take(input, 1),
                                       .flags = (uint8_t)fuzz_take(input, 1),
                                       .align_log2 = (uint8_t)fuzz_take(input, 1)};
    params[i].offset_bytes = end + take_u32(input);
    params[i].size_bytes = take_u32(input);
    params[i].reserved = (uint32_t)fuzz_take(input, 1) / 128;
    end = params[i].offset_bytes + params[i].size_bytes;
  }
  return count;
}

static void take_kernel(fuzz_input_t* input, pack_t* pack, uint32_t index) {
  accrt_kernel_def_t* kernel = &pack->kernels[index];
  *kernel = (accrt_kernel_def_t){.struct_size = fuzz_take(input, 1) < 200 ? (uint32_t)sizeof *kernel
                                                                          : take_u32(input),
                                 .traits = take_u32(input),
                                 .name = take_name(input, pack->names[1 + index]),
                                 .entry = fuzz_take(input, 1) < 240 ? never_run : NULL};
  kernel->param_count = take_params(input, pack->params[index], pack->param_names[index]);
  kernel->params = fuzz_take(input, 1) < 240 ? pack->params[index] : NULL;
  kernel->params_size_bytes = take_u32(input);
  kernel->local_memory_size_bytes = take_u32(input);
  kernel->reserved = (uint32_t)fuzz_take(input, 1) / 128;
  kernel->required_cpu_features = fuzz_take(input, 8);
  for (uint32_t i = 0; i < 3; ++i) {
    kernel->block[i] = (uint32_t)fuzz_take(input, 1) / 128;
    kernel->cluster[i] = (uint32_t)fuzz_take(input, 1) / 128;
  }
}

static void take_operator(fuzz_input_t* input, pack_t* pack, uint32_t index) {
  accrt_operator_def_t* op = &pack->operators[index];
  const uint32_t place = MAX_KERNELS + index;
  *op = (accrt_operator_def_t){.struct_size = fuzz_take(input, 1) < 200 ? (uint32_t)sizeof *op
                                                                        : take_u32(input),
                               .traits = take_u32(input),
                               .name = take_name(input, pack->names[1 + place]),
                               .execute = fuzz_take(input, 1) < 240 ? never_executed : NULL};
  op->param_count = take_params(input, pack->params[place], pack->param_names[place]);
  op->params = fuzz_take(input, 1) < 240 ? pack->params[place] : NULL;
  op->params_size_bytes = take_u32(input);
  op->device_type = take_u32(input);
  op->reserved = (uint32_t)fuzz_take(input, 1) / 128;
}

static pack_t* queried;
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi, (void)environment;
  return queried != NULL ? &queried->table : NULL;
}

static void take_table(fuzz_input_t* input, pack_t* pack) {
  accrt_kernel_pack_table_t* table = &pack->table;
  table->struct_size = fuzz_take(input, 1) < 220 ? (uint32_t)sizeof *table : take_u32(input);
  table->abi_version =
      fuzz_take(input, 1) < 220 ? ACCRT_KERNEL_ABI_VERSION : (uint32_t)fuzz_take(input, 4);
  table->name = take_name(input, pack->names[0]);
  table->kernels = fuzz_take(input, 1) < 240 ? pack->kernels : NULL;
  table->kernel_count = take_u32(input) % (MAX_KERNELS + 1);
  table->kernel_size_bytes = (uint32_t)sizeof *pack->kernels;
  table->host_operators = fuzz_take(input, 1) < 240 ? pack->operators : NULL;
  table->host_operator_count = take_u32(input) % (MAX_OPERATORS + 1);
  table->host_operator_size_bytes = (uint32_t)sizeof *pack->operators;
  for (uint32_t i = 0; i < table->kernel_count; ++i)
    take_kernel(input, pack, i);
  for (uint32_t i = 0; i < table->host_operator_count; ++i)
    take_operator(input, pack, i);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz_input_t input = {data, size};
  pack_t* pack = calloc(1, sizeof *pack);
  if (pack == NULL)
    abort();
  take_table(&input, pack);
  queried = pack;
  accrt_kernel_pack_t* registered;
  ++fuzz_inputs;
  if (accrt_kernel_pack_register(fuzz_instance(), query, &registered) == ACCRT_OK) {
    ++fuzz_accepted;
    accrt_kernel_pack_release(registered);
  }
  free(pack);
  return 0;
}
