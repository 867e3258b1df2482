/* runtime/drivers/cuda/options.c - reads the options of the CUDA driver (docs/options.md). It does
 * not start CUDA. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/drivers/cuda/cuda.h"

#define OPERATION "cuda.open"
#define DEFAULT_LIBRARY "libcuda.so.1"
#define DEFAULT_CACHE_MIB 256u
#define MAX_CACHE_MIB 1048576u
#define DEFAULT_GRAPHS 256u
#define MAX_GRAPHS 65536u

const char* const accrt_cuda_option_keys[] = {
    "cuda.library", "cuda.cache", "cuda.cache_mib", "cuda.virtual_memory", "cuda.graphs",
    "cuda.ptx",     NULL};

static const char ptx_words[][8] = {"compile", "cached", "off"};

static accrt_status_t read_number(const accrt_driver_environment_t* environment, const char* key,
                                  uint32_t minimum, uint32_t maximum, uint32_t* value) {
  const char* text = environment->option(environment, key);
  if (text == NULL)
    return ACCRT_OK;
  char* end = NULL;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  if (text[0] >= '0' && text[0] <= '9' && errno == 0 && *end == '\0' && number >= minimum &&
      number <= maximum) {
    *value = (uint32_t)number;
    return ACCRT_OK;
  }
  return accrt_cuda_refuse(environment, ACCRT_ERROR_INVALID_ARGUMENT, OPERATION,
                           "option %s is '%s': expected a number from %u to %u", key, text, minimum,
                           maximum);
}

static accrt_status_t read_switch(const accrt_driver_environment_t* environment, const char* key,
                                  bool* value) {
  const char* text = environment->option(environment, key);
  if (text == NULL)
    return ACCRT_OK;
  if (strcmp(text, "on") == 0 || strcmp(text, "off") == 0) {
    *value = strcmp(text, "on") == 0;
    return ACCRT_OK;
  }
  return accrt_cuda_refuse(environment, ACCRT_ERROR_INVALID_ARGUMENT, OPERATION,
                           "option %s is '%s': expected on or off", key, text);
}

static accrt_status_t read_ptx(const accrt_driver_environment_t* environment, uint32_t* value) {
  const char* text = environment->option(environment, "cuda.ptx");
  *value = CUDA_PTX_COMPILE;
  if (text == NULL)
    return ACCRT_OK;
  for (uint32_t i = 0; i < sizeof ptx_words / sizeof ptx_words[0]; ++i) {
    if (strcmp(text, ptx_words[i]) != 0)
      continue;
    *value = i;
    return ACCRT_OK;
  }
  return accrt_cuda_refuse(environment, ACCRT_ERROR_INVALID_ARGUMENT, OPERATION,
                           "option cuda.ptx is '%s': expected compile, cached or off", text);
}

/* Treats "" as absent, because callers pass on environment variables. */
static const char* read_text(const accrt_driver_environment_t* environment, const char* key,
                             const char* otherwise) {
  const char* text = environment->option(environment, key);
  return text != NULL && text[0] != '\0' ? text : otherwise;
}

accrt_status_t accrt_cuda_options_read(const accrt_driver_environment_t* environment,
                                       cuda_options_t* out_options) {
  uint32_t cache_mib = DEFAULT_CACHE_MIB;
  out_options->max_graphs = DEFAULT_GRAPHS;
  out_options->virtual_memory = true;
  out_options->library_path = read_text(environment, "cuda.library", DEFAULT_LIBRARY);
  out_options->cache_path = read_text(environment, "cuda.cache", NULL);
  accrt_status_t status = read_number(environment, "cuda.cache_mib", 1, MAX_CACHE_MIB, &cache_mib);
  if (status == ACCRT_OK)
    status = read_number(environment, "cuda.graphs", 1, MAX_GRAPHS, &out_options->max_graphs);
  if (status == ACCRT_OK)
    status = read_switch(environment, "cuda.virtual_memory", &out_options->virtual_memory);
  if (status == ACCRT_OK)
    status = read_ptx(environment, &out_options->ptx);
  out_options->cache_limit_bytes = (uint64_t)cache_mib << 20;
  return status;
}
