/* runtime/core/caps.c - accrt_query_caps. It may not allocate and needs no instance.
 *
 * Of loader/format.h it uses numbers alone: what this library reads is what that header describes.
 */
#include "loader/format.h"
#include "runtime/core/cpu.h"
#include "runtime/core/error.h"
#include "runtime/core/struct.h"

#include <stdio.h>

#define BIT(n) (UINT64_C(1) << (n))

/* All types that the headers name: NONE is no type. */
static uint64_t dtype_mask(void) {
  return (BIT(ACCRT_DTYPE_U4 + 1) - 1) & ~BIT(ACCRT_DTYPE_NONE);
}

static uint64_t command_mask(void) {
  return BIT(ACCX_COMMAND_DISPATCH) | BIT(ACCX_COMMAND_COPY) | BIT(ACCX_COMMAND_FILL) |
         BIT(ACCX_COMMAND_BARRIER) | BIT(ACCX_COMMAND_CALL) | BIT(ACCX_COMMAND_REPEAT) |
         BIT(ACCX_COMMAND_BRANCH) | BIT(ACCX_COMMAND_MARKER);
}

accrt_status_t accrt_query_caps(accrt_caps_t* out_caps) {
  accrt_error_enter(__func__);
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
  caps.command_mask = command_mask();
  caps.dtype_mask = dtype_mask();
  caps.encoding_mask = ACCX_ENCODINGS_KNOWN;
  caps.image_kind_mask = BIT(ACCX_IMAGE_HOST_ELF) | BIT(ACCX_IMAGE_CUBIN) | BIT(ACCX_IMAGE_PTX) |
                         BIT(ACCX_IMAGE_FATBIN) | BIT(ACCX_IMAGE_PACK);
  caps.section_mask = ACCX_SECTIONS_KNOWN;
  caps.expression_mask = BIT(ACCX_EXPR_PRESENT + 1) - 1;
  caps.cpu_features = accrt_cpu_features();
  (void)snprintf(caps.cpu_arch, sizeof caps.cpu_arch, "%s", accrt_cpu_arch());
  return accrt_struct_write("accrt_caps_t", out_caps, &caps, sizeof caps);
}
