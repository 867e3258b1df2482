/* tests/fuzz/layout_fuzz.c - weights that lie: any layout, types, shape and sizes with any bytes. What is accepted must be read from
 * exactly its components (each in memory of its own, of just its size), and its values quantized into every layout. */
#include <stdbool.h>

#include "accrt/write.h"

#include "tests/fuzz/fuzz.h"

#define MAX_COMPONENT_BYTES (1u << 16)
#define MAX_VALUES 4096u

/* Sizes that layouts like, and some that nobody does. */
static int64_t take_size(fuzz_input_t* input) {
  static const uint16_t blocks[] = {1, 2, 8, 16, 32, 64, 128, 256};
  const uint64_t kind = fuzz_take(input, 1);
  if (kind >= 250)
    return (int64_t)fuzz_take(input, 8);
  return (int64_t)(fuzz_take(input, 1) % 12 * blocks[kind % 8]);
}

static void take_tensor(fuzz_input_t* input, accrt_layout_tensor_t* tensor, int64_t* shape) {
  *tensor = (accrt_layout_tensor_t)ACCRT_LAYOUT_TENSOR_INIT;
  tensor->layout = (uint32_t)fuzz_take(input, 1) % 28;
  tensor->dtype = (accrt_dtype_t)fuzz_take(input, 1) % 21;
  const uint64_t group = fuzz_take(input, 1);
  tensor->group_elements = group == 255 ? (uint32_t)fuzz_take(input, 4) : (uint32_t)group % 10 * 8;
  tensor->rank = (uint32_t)fuzz_take(input, 1) % 5;
  tensor->shape = shape;
  for (uint32_t i = 0; i < tensor->rank; ++i)
    shape[i] = take_size(input);
  /* The types that a layout has, more often than others. */
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  const bool known = accrt_layout_info(tensor->layout, &info) == ACCRT_OK;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    const uint64_t pick = fuzz_take(input, 1);
    accrt_dtype_t dtype = (accrt_dtype_t)pick % 21;
    for (uint32_t k = 0; pick < 240 && known && k < 21; ++k, dtype = (dtype + 1) % 21) {
      if ((info.dtypes[role] >> dtype & 1) != 0)
        break;
    }
    tensor->components[role].dtype =
        known && (info.dtypes[role] == 0 || pick % 5 == 4) ? ACCRT_DTYPE_NONE : dtype;
  }
  if (tensor->layout == ACCRT_LAYOUT_PLAIN && tensor->components[0].dtype != ACCRT_DTYPE_NONE)
    tensor->dtype = tensor->components[0].dtype;
}

/* Memory of exactly the size of each component, filled from the input. */
static bool take_components(fuzz_input_t* input, accrt_layout_tensor_t* tensor) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    accrt_layout_component_t* component = &tensor->components[role];
    if (accrt_layout_component_size(tensor, role, &component->size_bytes) != ACCRT_OK ||
        component->size_bytes > MAX_COMPONENT_BYTES)
      return false;
  }
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    accrt_layout_component_t* component = &tensor->components[role];
    uint8_t* bytes = malloc(component->size_bytes != 0 ? component->size_bytes : 1);
    if (bytes == NULL)
      abort();
    for (uint64_t i = 0; i < component->size_bytes; ++i)
      bytes[i] = (uint8_t)fuzz_take(input, 1);
    component->data = bytes;
  }
  return true;
}

static void free_components(accrt_layout_tensor_t* tensor) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role)
    free(tensor->components[role].data);
}

/* Into the same layout again, where it can be written: what comes back has finite values. */
static void quantize_again(accrt_layout_tensor_t* tensor, float* values, uint64_t rows,
                           uint64_t count, uint32_t method) {
  for (uint64_t i = 0; i < count; ++i) {
    if (!(values[i] > -0x1p60f && values[i] < 0x1p60f))
      values[i] = 1.0f;
  }
  tensor->components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].dtype = ACCRT_DTYPE_NONE;
  accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
  options.method = method;
  if (accrt_layout_quantize(tensor, values, 0, rows, &options, NULL) != ACCRT_OK)
    return;
  if (accrt_layout_dequantize(tensor, 0, rows, values) != ACCRT_OK)
    abort();
  for (uint64_t i = 0; i < count; ++i) {
    if (!(values[i] - values[i] == 0))
      abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz_input_t input = {data, size};
  accrt_layout_tensor_t tensor;
  int64_t shape[8];
  ++fuzz_inputs;
  take_tensor(&input, &tensor, shape);
  if (!take_components(&input, &tensor))
    return 0;
  uint64_t columns = tensor.rank > 0 ? (uint64_t)shape[tensor.rank - 1] : 1, rows = 1;
  for (uint32_t i = 0; i + 1 < tensor.rank; ++i)
    rows *= (uint64_t)shape[i];
  if (columns <= MAX_VALUES && rows <= MAX_VALUES && rows * columns <= MAX_VALUES) {
    float* values = malloc(sizeof *values * (rows * columns + 1));
    if (values == NULL)
      abort();
    if (accrt_layout_dequantize(&tensor, 0, rows, values) == ACCRT_OK) {
      ++fuzz_accepted;
      quantize_again(&tensor, values, rows, rows * columns, size % 2);
    }
    free(values);
  }
  free_components(&tensor);
  return 0;
}
