/* examples/guide/commands.c - a command list with a kernel of the program, submitted twice. */
#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

/* A kernel: multiplies count floats by a factor. One workgroup does all. */
typedef struct scale_params {
  float* x;
  int64_t count;
  float factor;
} scale_params_t;

static int32_t scale(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  (void)environment, (void)workgroup;
  const scale_params_t* p = dispatch->params;
  for (int64_t i = 0; i < p->count; ++i)
    p->x[i] *= p->factor;
  return 0;
}

static const accrt_kernel_param_t scale_parameters[] = {
    ACCRT_KERNEL_PARAM(scale_params_t, x, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(scale_params_t, count, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(scale_params_t, factor, SCALAR, NONE)};
static const accrt_kernel_def_t kernels[] = {{.struct_size = sizeof(accrt_kernel_def_t),
                                              .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC,
                                              .name = "scale",
                                              .entry = scale,
                                              .params = scale_parameters,
                                              .param_count = 3,
                                              .params_size_bytes = sizeof(scale_params_t)}};
static const accrt_kernel_pack_table_t table = {.struct_size = sizeof(accrt_kernel_pack_table_t),
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "guide",
                                                .kernels = kernels,
                                                .kernel_count = 1,
                                                .kernel_size_bytes = sizeof kernels[0]};
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)environment;
  return max_abi >= table.abi_version ? &table : NULL;
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* kernel;
  accrt_commands_t* commands;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_stream_create(device, NULL, &stream));
  check(accrt_kernel_pack_register(instance, query, &pack));
  check(accrt_kernel_pack_find(pack, "scale", &kernel));

  /* Recorded once. Binding 0 stands for memory that each submission names. */
  accrt_kernel_argument_t arguments[3] = {ACCRT_KERNEL_ARGUMENT_INIT, ACCRT_KERNEL_ARGUMENT_INIT,
                                          ACCRT_KERNEL_ARGUMENT_SCALAR(0x40000000u)}; /* 2.0f */
  arguments[0].kind = ACCRT_KERNEL_PARAM_BUFFER;
  arguments[0].binding = 0;
  arguments[1].kind = ACCRT_KERNEL_PARAM_SYMBOL;
  arguments[1].value = 4;
  const uint32_t grid[3] = {1, 1, 1};
  const accrt_binding_place_t everything = {.binding = 0};
  check(accrt_commands_create(device, 1, &commands));
  check(accrt_commands_fill(commands, &everything, 16, 0x3F800000u, 4, NULL, NULL)); /* 1.0f */
  check(accrt_commands_dispatch(commands, kernel, grid, arguments, 3, sizeof arguments[0], NULL,
                                NULL)); /* NULL: after the previous command */
  check(accrt_commands_finalize(commands));

  float a[4] = {0}, b[4] = {0};
  const accrt_binding_t in_a = {.pointer = a, .size_bytes = sizeof a};
  const accrt_binding_t in_b = {.pointer = b, .size_bytes = sizeof b};
  check(accrt_stream_submit(stream, commands, &in_a, 1, sizeof in_a));
  check(accrt_stream_submit(stream, commands, &in_b, 1, sizeof in_b));
  check(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  printf("a[3] is %.1f, b[3] is %.1f\n", (double)a[3], (double)b[3]);

  /* Each submission is checked: this binding is too small for the fill. */
  const accrt_binding_t small = {.pointer = a, .size_bytes = 8};
  printf("8 bytes: %s\n",
         accrt_status_name(accrt_stream_submit(stream, commands, &small, 1, sizeof small)));

  accrt_commands_release(commands);
  accrt_kernel_pack_release(pack);
  accrt_stream_release(stream);
  accrt_instance_release(instance);
  return 0;
}
