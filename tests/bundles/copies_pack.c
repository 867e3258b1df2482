/* tests/bundles/copies_pack.c - a pack of host operators, "tests.copies", for hosts and CUDA: y is x twice, by way of the
 * workspace. On CUDA the copies are enqueued on the stream it is given; the driver's library is opened at run time.
 */
#include "accrt/kernel.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct twice_params {
  const void* x;
  char* y;
  int64_t size;
  int64_t x_bytes, y_bytes; /* lengths: the size is a bundle's choice */
} twice_params_t;

typedef struct twice_state {
  int64_t size;
} twice_state_t;

typedef int (*copy_fn_t)(uint64_t target, uint64_t source, size_t size_bytes, void* stream);

static int32_t refuse(const accrt_operator_call_t* call, int32_t code, const char* text) {
  if (call->message_capacity_bytes != 0) {
    strncpy(call->message, text, call->message_capacity_bytes - 1);
    call->message[call->message_capacity_bytes - 1] = '\0';
  }
  return code;
}

static copy_fn_t cuda_copy(void) {
  static copy_fn_t found;
  void* library = found == NULL ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
  void* address = library != NULL ? dlsym(library, "cuMemcpyAsync") : NULL;
  if (address != NULL)
    memcpy(&found, &address, sizeof found);
  return found;
}

static int32_t twice_query(const accrt_kernel_environment_t* environment,
                           const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  const twice_params_t* p = call->params;
  if (p->size < 0)
    return refuse(call, 4, "the size is negative");
  *out_size_bytes = (uint64_t)p->size;
  return 0;
}

static int32_t twice_prepare(const accrt_kernel_environment_t* environment,
                             const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  const twice_params_t* p = call->params;
  twice_state_t* state = malloc(sizeof *state);
  if (state == NULL)
    return refuse(call, 1, "no memory");
  state->size = p->size;
  *out_state = state;
  return 0;
}

static void twice_destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  free(state);
}

static int32_t on_host(const accrt_operator_call_t* call, const twice_params_t* p) {
  const size_t size = (size_t)p->size;
  memcpy(call->workspace, p->x, size);
  memcpy(p->y, call->workspace, size);
  memcpy(p->y + size, call->workspace, size);
  return 0;
}

static int32_t on_cuda(const accrt_operator_call_t* call, const twice_params_t* p) {
  const copy_fn_t copy = cuda_copy();
  const size_t size = (size_t)p->size;
  const uint64_t scratch = (uint64_t)(uintptr_t)call->workspace;
  const uint64_t y = (uint64_t)(uintptr_t)p->y;
  if (copy == NULL)
    return refuse(call, 2, "no cuMemcpyAsync");
  int code = copy(scratch, (uint64_t)(uintptr_t)p->x, size, call->stream);
  if (code == 0)
    code = copy(y, scratch, size, call->stream);
  if (code == 0)
    code = copy(y + size, scratch, size, call->stream);
  return code == 0 ? 0 : refuse(call, code, "cuMemcpyAsync failed");
}

static int32_t twice(const accrt_kernel_environment_t* environment,
                     const accrt_operator_call_t* call, void* state) {
  (void)environment;
  const twice_params_t* p = call->params;
  if (((const twice_state_t*)state)->size != p->size ||
      call->workspace_size_bytes < (uint64_t)p->size)
    return refuse(call, 3, "another size than was prepared for");
  if (p->x_bytes < p->size || p->y_bytes / 2 < p->size)
    return refuse(call, 4, "the size is beyond a buffer");
  return call->device_type == 2 ? on_cuda(call, p) : on_host(call, p);
}

/* Fails with a code, unless that is 0. */
typedef struct refuse_params {
  int64_t code;
} refuse_params_t;

static int32_t refuse_once(const accrt_kernel_environment_t* environment,
                           const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  const int32_t code = (int32_t)((const refuse_params_t*)call->params)->code;
  return code == 0 ? 0 : refuse(call, code, "asked to refuse");
}

static const accrt_kernel_param_t refuse_list[] = {
    ACCRT_KERNEL_PARAM(refuse_params_t, code, SYMBOL, NONE),
};

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(twice_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(twice_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(twice_params_t, size, SYMBOL, NONE),
    ACCRT_KERNEL_LENGTH(twice_params_t, x_bytes),
    ACCRT_KERNEL_LENGTH(twice_params_t, y_bytes),
};

#define OPERATOR(name_, traits_)                                                                   \
  {                                                                                                \
    .struct_size = sizeof(accrt_operator_def_t),                                                   \
    .traits = (traits_) | ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL, .name = (name_), .params = params,  \
    .param_count = sizeof params / sizeof params[0], .params_size_bytes = sizeof(twice_params_t),  \
    .query_workspace = twice_query, .prepare = twice_prepare, .execute = twice,                    \
    .destroy = twice_destroy,                                                                      \
  }
static const accrt_operator_def_t operators[] = {
    OPERATOR("twice", ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_CAPTURABLE),
    OPERATOR("twice_uncaptured", ACCRT_KERNEL_TRAIT_DETERMINISTIC),
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "refuse",
     .params = refuse_list,
     .param_count = 1,
     .params_size_bytes = sizeof(refuse_params_t),
     .execute = refuse_once},
};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof table,
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "tests.copies",
    .kernel_size_bytes = sizeof(accrt_kernel_def_t),
    .host_operators = operators,
    .host_operator_count = sizeof operators / sizeof operators[0],
    .host_operator_size_bytes = sizeof operators[0],
};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  (void)environment;
  return max_abi < table.abi_version ? NULL : &table;
}
