/* loader/layout_public.c - the public functions for the registry of layouts (format/layout.c). It
 * may not allocate. */
#include "format/layout.h"

#include <string.h>

#include "accrt/tensor.h"
#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"

accrt_status_t accrt_layout_info(uint32_t layout, accrt_layout_info_t* out_info) {
  ACCRT_ENTER(out_info);
  const accx_layout_t* found = accx_layout_find(layout);
  if (found == NULL)
    return ACCRT_FAIL(NOT_FOUND, "no layout %" PRIu32 "; docs/layouts.md lists them", layout);
  accrt_layout_info_t info = {.id = found->id,
                              .name = found->name,
                              .flags = found->flags,
                              .block_elements = found->block_elements,
                              .block_bytes = found->block_bytes,
                              .row_multiple = found->row_multiple,
                              .tile_rows = found->tile_rows,
                              .group_elements = found->group_elements,
                              .required_roles = found->required_roles};
  memcpy(info.dtypes, found->dtypes, sizeof info.dtypes);
  return accrt_struct_write("accrt_layout_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_layout_find(const char* name, uint32_t* out_layout) {
  if (out_layout != NULL)
    *out_layout = 0;
  ACCRT_ENTER(out_layout, name);
  char all[320];
  size_t at = 0;
  const accx_layout_t* layout;
  for (uint32_t i = 0; (layout = accx_layout_at(i)) != NULL; ++i) {
    const size_t length = strlen(layout->name);
    if (strcmp(layout->name, name) == 0) {
      *out_layout = layout->id;
      return ACCRT_OK;
    }
    memcpy(all + at, layout->name, length);
    all[at + length] = ' ';
    at += length + 1;
  }
  all[at - 1] = '\0';
  return ACCRT_FAIL(NOT_FOUND, "no layout is named '%.32s'; there are: %s", name, all);
}

accrt_status_t accrt_layout_component_size(const accrt_layout_tensor_t* tensor, uint32_t role,
                                           uint64_t* out_size_bytes) {
  if (out_size_bytes != NULL)
    *out_size_bytes = 0;
  ACCRT_ENTER(out_size_bytes);
  accrt_layout_tensor_t own;
  accx_layout_view_t view;
  ACCRT_TRY(accx_layout_read(tensor, &own, &view));
  if (role >= ACCRT_LAYOUT_ROLE_COUNT || own.layout == ACCRT_LAYOUT_OPAQUE)
    return ACCRT_FAIL(INVALID_ARGUMENT, "role %" PRIu32 " of layout %s has no size of its own",
                      role, view.layout->name);
  const accrt_dtype_t dtype = own.components[role].dtype;
  if (dtype == ACCRT_DTYPE_NONE && (view.layout->required_roles & 1u << role) == 0)
    return ACCRT_OK;
  if (!accx_layout_takes(view.layout, own.dtype, role, dtype))
    return ACCRT_FAIL(TYPE_MISMATCH, "layout %s takes no %s for role %" PRIu32, view.layout->name,
                      ACCRT_DTYPE_TEXT(dtype), role);
  return accx_layout_size(&view, role, dtype, out_size_bytes)
             ? ACCRT_OK
             : ACCRT_FAIL(OVERFLOW, "the size of role %" PRIu32 " does not fit", role);
}
