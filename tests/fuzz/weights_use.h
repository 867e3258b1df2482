/* tests/fuzz/weights_use.h - everything that a source of weights can be asked, of one that was opened from an input. Aborts where the
 * answers contradict each other, or a tensor is not where its file could have it. */
#ifndef ACCRT_TESTS_FUZZ_WEIGHTS_USE_H_
#define ACCRT_TESTS_FUZZ_WEIGHTS_USE_H_

#include "tests/fuzz/fuzz.h"

static inline uint64_t fuzz_sum(const void* data, uint64_t size) {
  const volatile uint8_t* bytes = data;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < size; ++i)
    sum += bytes[i];
  return sum;
}

static inline void fuzz_use_tensor(accrt_weights_t* weights, uint32_t index, uint64_t file_bytes) {
  accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
  accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
  uint32_t found;
  const void* data;
  uint64_t size, elements = 1;
  fuzz_require(accrt_weights_tensor(weights, index, &tensor) == ACCRT_OK);
  fuzz_require(accrt_weights_find(weights, tensor.name, &found) == ACCRT_OK && found == index);
  fuzz_require(tensor.rank <= 8 && tensor.component_count == 1 && strlen(tensor.type_name) > 0);
  for (uint32_t i = 0; i < tensor.rank; ++i) {
    fuzz_require(tensor.shape[i] >= 0);
    if (tensor.shape[i] != 0)
      fuzz_require(!__builtin_mul_overflow(elements, (uint64_t)tensor.shape[i], &elements));
  }
  fuzz_require(accrt_weights_component(weights, index, 0, &place) == ACCRT_OK);
  fuzz_require(place.size_bytes == tensor.size_bytes && place.size_bytes <= file_bytes &&
               place.offset_bytes <= file_bytes - place.size_bytes);
  fuzz_require(accrt_weights_data(weights, index, 0, &data, &size) == ACCRT_OK &&
               size == tensor.size_bytes);
  (void)fuzz_sum(data, size);
  uint8_t last;
  if (size > 0)
    fuzz_require(accrt_weights_read(weights, index, 0, size - 1, &last, 1) == ACCRT_OK &&
                 last == ((const uint8_t*)data)[size - 1]);
  fuzz_require(accrt_weights_read(weights, index, 0, size, &last, 1) == ACCRT_ERROR_OUT_OF_RANGE);
}

static inline void fuzz_use_weights(accrt_weights_t* weights) {
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  fuzz_require(accrt_weights_info(weights, &info) == ACCRT_OK);
  fuzz_require(info.data_size_bytes <= info.size_bytes);
  for (uint32_t i = 0; i < info.tensor_count; ++i)
    fuzz_use_tensor(weights, i, info.size_bytes);
  for (uint32_t i = 0; i < info.metadata_count; ++i) {
    accrt_weights_metadata_t value = ACCRT_WEIGHTS_METADATA_INIT;
    uint32_t found;
    fuzz_require(accrt_weights_metadata(weights, i, &value) == ACCRT_OK);
    fuzz_require(accrt_weights_find_metadata(weights, value.key, &found) == ACCRT_OK && found == i);
    (void)fuzz_sum(value.data, value.size_bytes);
    if (value.text != NULL)
      fuzz_require(strlen(value.text) == value.size_bytes);
  }
}

static inline void fuzz_weights(const uint8_t* data, size_t size) {
  uint8_t* bytes = fuzz_copy(data, size, 16);
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = ACCRT_WEIGHTS_FLAG_ONE_FILE;
  options.budget = fuzz_budget(size);
  accrt_weights_t* weights;
  ++fuzz_inputs;
  if (fuzz_opened(accrt_weights_open_memory(fuzz_instance(), bytes, size, NULL, NULL, &options,
                                            &weights))) {
    ++fuzz_accepted;
    fuzz_use_weights(weights);
    accrt_weights_release(weights);
  }
  free(bytes);
}

#endif /* ACCRT_TESTS_FUZZ_WEIGHTS_USE_H_ */
