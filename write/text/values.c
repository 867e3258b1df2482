/* write/text/values.c - finds differences of two weights' values. See values.h. */
#include "write/text/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/layout.h"

/* A copy of one component of a constant. */
typedef struct values {
  accrt_weights_tensor_t constant;
  accrt_dtype_t dtype;
  unsigned char* data;
  uint64_t size_bytes;
} values_t;

/* Reads the file and does not map it: if another process truncates a mapped file, this process
 * ends. */
static bool read_values(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                        values_t* out) {
  out->data = malloc(out->size_bytes > 0 ? (size_t)out->size_bytes : 1);
  return out->data != NULL &&
         accrt_weights_read(weights, tensor, component, 0, out->data, out->size_bytes) == ACCRT_OK;
}

static bool find_values(accrt_weights_t* weights, const char* name, uint32_t role, values_t* out) {
  uint32_t index;
  *out = (values_t){.constant = ACCRT_WEIGHTS_TENSOR_INIT};
  if (accrt_weights_find(weights, name, &index) != ACCRT_OK ||
      accrt_weights_tensor(weights, index, &out->constant) != ACCRT_OK)
    return false;
  for (uint32_t i = 0; i < out->constant.component_count; ++i) {
    accrt_weights_component_t component = ACCRT_WEIGHTS_COMPONENT_INIT;
    if (accrt_weights_component(weights, index, i, &component) != ACCRT_OK)
      return false;
    if (component.role != role)
      continue;
    out->dtype = component.dtype;
    out->size_bytes = component.size_bytes;
    return read_values(weights, index, i, out);
  }
  return false;
}

/* Writes one value as a number, or as its bytes if its type is not numeric. */
static void put_one(const values_t* values, uint64_t index, uint32_t bytes, char out[40]) {
  const unsigned char* at = values->data + index * bytes;
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  const int64_t one = 1;
  uint64_t bits = 0;
  double wide;
  float narrow;
  memcpy(&bits, at, bytes);
  tensor.dtype = values->dtype;
  tensor.rank = 1;
  tensor.shape = &one;
  tensor.components[0] = (accrt_layout_component_t){
      .data = (void*)(uintptr_t)at, .size_bytes = bytes, .dtype = values->dtype};
  if (values->dtype == ACCRT_DTYPE_F64) {
    memcpy(&wide, at, sizeof wide);
    (void)snprintf(out, 40, "%.17g", wide);
  } else if (values->dtype >= ACCRT_DTYPE_BOOL && values->dtype <= ACCRT_DTYPE_U64) {
    const bool negative = values->dtype >= ACCRT_DTYPE_I8 && values->dtype <= ACCRT_DTYPE_I64 &&
                          bits >> (8 * bytes - 1) != 0;
    if (negative)
      bits |= bytes < 8 ? UINT64_MAX << (8 * bytes) : 0;
    if (negative)
      (void)snprintf(out, 40, "%" PRId64, (int64_t)bits);
    else
      (void)snprintf(out, 40, "%" PRIu64, bits);
  } else if (accrt_layout_dequantize(&tensor, 0, 1, &narrow) == ACCRT_OK) {
    (void)snprintf(out, 40, "%.9g", (double)narrow);
  } else {
    (void)snprintf(out, 40, "0x%" PRIx64, bits);
  }
}

/* Writes [2, 5] for a plain constant, otherwise the index of the value in its component. */
static void put_place(const values_t* values, uint64_t index, char out[200]) {
  const accrt_weights_tensor_t* constant = &values->constant;
  int64_t places[8] = {0};
  size_t length = 0;
  if (constant->encoding != ACCRT_LAYOUT_PLAIN) {
    (void)snprintf(out, 200, "%" PRIu64, index);
    return;
  }
  for (uint32_t i = constant->rank; i-- > 0;) {
    places[i] = (int64_t)(index % (uint64_t)constant->shape[i]);
    index /= (uint64_t)constant->shape[i];
  }
  out[length++] = '[';
  for (uint32_t i = 0; i < constant->rank; ++i)
    length +=
        (size_t)snprintf(out + length, 200 - length, "%s%" PRId64, i > 0 ? ", " : "", places[i]);
  (void)snprintf(out + length, 200 - length, "]");
}

static bool are_alike(const values_t* one, const values_t* two) {
  return one->dtype == two->dtype && one->size_bytes == two->size_bytes &&
         one->constant.encoding == two->constant.encoding &&
         one->constant.rank == two->constant.rank &&
         (one->constant.rank == 0 || memcmp(one->constant.shape, two->constant.shape,
                                            one->constant.rank * sizeof(int64_t)) == 0);
}

static bool compare(values_t* one, values_t* two, char* out, size_t capacity) {
  const uint32_t bits = accrt_dtype_bits(one->dtype);
  const bool whole = bits >= 8 && one->constant.encoding != ACCRT_LAYOUT_OPAQUE;
  const uint32_t bytes = whole ? bits / 8 : 1;
  const uint64_t count = one->size_bytes / bytes;
  uint64_t differ = 0, first = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (memcmp(one->data + i * bytes, two->data + i * bytes, bytes) == 0)
      continue;
    if (differ++ == 0)
      first = i;
  }
  if (differ == 0)
    return false;
  char place[200], value_a[40], value_b[40];
  if (!whole)
    one->dtype = two->dtype = ACCRT_DTYPE_U8;
  if (!whole)
    (void)snprintf(place, sizeof place, "%" PRIu64, first);
  else
    put_place(one, first, place);
  put_one(one, first, bytes, value_a);
  put_one(two, first, bytes, value_b);
  (void)snprintf(out, capacity,
                 "%" PRIu64 " of %" PRIu64 " %s differ, the first at %s: %s in A, %s in B", differ,
                 count, whole ? "values" : "bytes", place, value_a, value_b);
  return true;
}

bool accx_values_text(accrt_weights_t* a, accrt_weights_t* b, const char* constant, uint32_t role,
                      char* out, size_t capacity) {
  values_t one, two = {.data = NULL};
  const bool found = find_values(a, constant, role, &one) && find_values(b, constant, role, &two) &&
                     are_alike(&one, &two) && compare(&one, &two, out, capacity);
  free(one.data);
  free(two.data);
  return found;
}
