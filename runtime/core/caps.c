/* runtime/core/caps.c - accrt_query_caps. It may not allocate and needs no instance.
 *
 * Of format/known.h it uses only numbers: the library reads what format/format.def describes.
 */
#include "format/known.h"
#include "runtime/core/cpu.h"
#include "runtime/core/error.h"
#include "runtime/core/struct.h"

#include <stdio.h>

accrt_status_t accrt_query_caps(accrt_caps_t* out_caps) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  caps.library_version = ACCRT_VERSION;
  caps.container_major = ACCX_CONTAINER_MAJOR;
  caps.container_minor = ACCX_CONTAINER_MINOR;
  caps.commands_major = ACCX_COMMANDS_MAJOR;
  caps.commands_minor = ACCX_COMMANDS_MINOR;
  caps.kernel_abi_major = ACCRT_KERNEL_ABI_MAJOR;
  caps.kernel_abi_minor = ACCRT_KERNEL_ABI_MINOR;
  caps.layouts_major = ACCX_LAYOUTS_MAJOR;
  caps.layouts_minor = ACCX_LAYOUTS_MINOR;
  caps.max_rank = ACCX_MAX_RANK;
  caps.file_features = ACCX_FILE_FEATURES_KNOWN;
  caps.function_features = ACCX_FUNCTION_FEATURES_KNOWN;
  caps.variant_features = ACCX_VARIANT_FEATURES_KNOWN;
  caps.command_mask = accx_commands_known();
  caps.dtype_mask = accx_dtypes_known();
  caps.encoding_mask = accx_layouts_known();
  caps.image_kind_mask = accx_images_known(ACCX_CONTAINER_MINOR);
  caps.section_mask = accx_sections_known();
  caps.expression_mask = accx_expressions_known();
  caps.cpu_features = accrt_cpu_features();
  (void)snprintf(caps.cpu_arch, sizeof caps.cpu_arch, "%s", accrt_cpu_arch());
  return accrt_struct_write("accrt_caps_t", out_caps, &caps, sizeof caps);
}
