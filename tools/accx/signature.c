/* tools/accx/signature.c - types, signatures and symbol ranges as text, from the library's
 * reflection. */
#include "signature.h"

#include <inttypes.h>
#include <stdlib.h>

#include "names.h"

#define MOST_BUCKETS 16u /* in one line; JSON has all */

const char* accx_type_text(accrt_bundle_t* bundle, uint32_t function, uint32_t index) {
  char small[512];
  uint64_t needed_bytes = 0;
  accrt_status_t status =
      accrt_bundle_argument_type_text(bundle, function, index, small, sizeof small, &needed_bytes);
  if (status == ACCRT_OK)
    return accx_text("%s", small);
  if (needed_bytes <= sizeof small || needed_bytes > (1u << 20))
    return "?";
  char* large = accx_alloc((size_t)needed_bytes, 1);
  status =
      accrt_bundle_argument_type_text(bundle, function, index, large, needed_bytes, &needed_bytes);
  const char* text = status == ACCRT_OK ? accx_text("%s", large) : "?";
  free(large);
  return text;
}

static const char* dim_text(accrt_bundle_t* bundle, const accrt_dim_t* dim) {
  accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
  if (dim->kind == ACCRT_DIM_CONSTANT)
    return accx_text("%" PRId64, dim->value);
  if (dim->kind == ACCRT_DIM_SYMBOL &&
      accrt_bundle_symbol(bundle, (uint32_t)dim->value, &symbol) == ACCRT_OK)
    return symbol.name;
  return "...";
}

const char* accx_state_type_text(accrt_bundle_t* bundle, const accrt_state_info_t* state) {
  const char* text = accx_text("%s[", accrt_dtype_name(state->dtype));
  for (uint32_t i = 0; i < state->rank && i < ACCRT_MAX_RANK; ++i)
    text = accx_text("%s%s%s", text, i ? ", " : "", dim_text(bundle, &state->dims[i]));
  return accx_text("%s]", text);
}

const char* accx_shape_text(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape) {
  const char* text = accx_text("%s[", accrt_dtype_name(dtype));
  for (uint32_t i = 0; i < rank && i < ACCRT_MAX_RANK; ++i)
    text = accx_text("%s%s%" PRId64, text, i ? ", " : "", shape[i]);
  return accx_text("%s]", text);
}

const char* accx_symbol_text(const accrt_symbol_info_t* symbol) {
  const char* text =
      accx_text("%s, %" PRId64 " to %" PRId64, accx_symbol_class_name(symbol->symbol_class),
                symbol->minimum, symbol->maximum);
  if (symbol->divisor > 1)
    text = accx_text("%s, multiple of %" PRId64, text, symbol->divisor);
  const uint32_t shown = symbol->bucket_count < MOST_BUCKETS ? symbol->bucket_count : MOST_BUCKETS;
  for (uint32_t i = 0; i < shown; ++i)
    text = accx_text("%s%s%" PRId64, text, i ? " " : ", buckets ", symbol->buckets[i]);
  return shown < symbol->bucket_count ? accx_text("%s ...", text) : text;
}
