/* runtime/core/pack_environment.c - the environment of kernels: memory and libm functions, CPU
 * features. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "runtime/core/cpu.h"
#include "runtime/core/pack.h"

static const accrt_kernel_imports_t imports = {
    .struct_size = (uint32_t)sizeof(accrt_kernel_imports_t),
    .memcpy = memcpy,
    .memmove = memmove,
    .memset = memset,
    .memcmp = memcmp,
    .expf = expf,
    .exp2f = exp2f,
    .expm1f = expm1f,
    .logf = logf,
    .log2f = log2f,
    .log1pf = log1pf,
    .powf = powf,
    .sinf = sinf,
    .cosf = cosf,
    .tanhf = tanhf,
    .erff = erff,
    .fmodf = fmodf,
    .exp = exp,
    .expm1 = expm1,
    .log = log,
    .log1p = log1p,
    .pow = pow,
    .sin = sin,
    .cos = cos,
    .tanh = tanh,
    .erf = erf,
    .fmod = fmod,
};

/* Written once; the same for every instance. It has the features of the processor. */
static accrt_kernel_environment_t environment;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static void fill_environment(void) {
  environment.struct_size = (uint32_t)sizeof environment;
  environment.abi_version = ACCRT_KERNEL_ABI_VERSION;
  environment.cpu_features = accrt_cpu_features();
  environment.imports = &imports;
}

const accrt_kernel_environment_t* accrt_kernel_environment(void) {
  (void)pthread_once(&environment_once, fill_environment);
  return &environment;
}
