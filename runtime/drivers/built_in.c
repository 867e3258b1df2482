/* runtime/drivers/built_in.c - which drivers are inside the library, and the function that makes
 * instances with them. The only file that names drivers. */
#include "runtime/drivers/common/objects.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);
#ifdef ACCRT_CUDA
extern const accrt_driver_table_t* accrt_driver_cuda_query(uint32_t max_abi);
#endif

static const accrt_built_in_t built_in[] = {
    {accrt_driver_host_query, "built-in host driver", false},
#ifdef ACCRT_CUDA
    {accrt_driver_cuda_query, "built-in CUDA driver", true},
#endif
};

accrt_status_t accrt_instance_create(const accrt_instance_options_t* options,
                                     accrt_instance_t** out_instance) {
  if (out_instance != NULL)
    *out_instance = NULL;
  ACCRT_ENTER(out_instance);
  return accrt_instance_make(options, built_in, sizeof built_in / sizeof built_in[0], out_instance);
}
