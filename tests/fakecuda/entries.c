/* tests/fakecuda/entries.c - cuGetProcAddress, and the names of results. */
#include "fake.h"

typedef void (*function_t)(void);

/* What cuda.h gives other names is wanted by its own here. */
extern CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev);
extern CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                          const CUgraphNode**, size_t*);
extern CUresult cuStreamGetCaptureInfo_v3(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                          const CUgraphNode**, const CUgraphEdgeData**, size_t*);
#undef cuGraphAddDependencies
extern CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t);

static const struct {
  const char* name;
  int version;
  function_t function;
} entries[] = {
#define ENTRY(name) {#name, 0, (function_t)name},
#define VERSIONED(name, version, symbol) {#name, version, (function_t)symbol},
#include "entries.def"
#undef ENTRY
#undef VERSIONED
};

EXPORT CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult* symbolStatus) {
  ENTER(0);
  (void)flags;
  if (symbol == NULL || pfn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pfn = NULL;
  bool is_known = false;
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i) {
    if (strcmp(entries[i].name, symbol) != 0)
      continue;
    is_known = true;
    if (entries[i].version <= cudaVersion && entries[i].version <= fake.settings.driver_version)
      memcpy(pfn, &entries[i].function, sizeof *pfn); /* later ones are newer */
  }
  if (symbolStatus != NULL)
    *symbolStatus = *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                    : is_known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS; /* also when there is none: the address tells */
}

static const struct {
  CUresult result;
  const char* name;
} errors[] = {
#define ERROR(name) {name, #name},
#include "errors.def"
#undef ERROR
};

static const char* error_name(CUresult error) {
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; ++i) {
    if (errors[i].result == error)
      return errors[i].name;
  }
  return NULL;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pStr = error_name(error);
  return *pStr == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pStr = error_name(error) == NULL ? NULL : "said by the stand-in for the driver";
  return *pStr == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
