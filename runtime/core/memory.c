/* runtime/core/memory.c - host allocation. The only file that calls malloc and free. */
#include "runtime/core/memory.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/meter.h"

#define DEFAULT_ALIGNMENT 16u

static void* system_allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  if (alignment <= DEFAULT_ALIGNMENT)
    return malloc(size_bytes);
  void* pointer = NULL;
  return posix_memalign(&pointer, alignment, size_bytes) == 0 ? pointer : NULL;
}

static void system_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  free(pointer);
}

const accrt_allocator_t accrt_allocator_system = {NULL, system_allocate, system_deallocate};

void* accrt_allocate(const accrt_allocator_t* allocator, size_t size_bytes, size_t alignment) {
  void* pointer;
  ACCRT_CALL_USER(pointer = allocator->allocate(allocator->self, size_bytes, alignment));
  return pointer;
}

accrt_status_t accrt_alloc_unset(const accrt_allocator_t* allocator, size_t size_bytes,
                                 size_t alignment, void** out_pointer) {
  *out_pointer = NULL;
  if (size_bytes == 0)
    return ACCRT_OK;
  accrt_meter_t* const meter = accrt_meter_current;
  if (meter != NULL) {
    ACCRT_TRY(accrt_meter_take(meter, size_bytes));
  }
  *out_pointer = accrt_allocate(allocator, size_bytes, alignment);
  if (*out_pointer != NULL)
    return ACCRT_OK;
  accrt_meter_give_back(size_bytes);
  return ACCRT_FAIL(OUT_OF_MEMORY, "could not allocate %zu bytes of host memory", size_bytes);
}

accrt_status_t accrt_alloc_aligned(const accrt_allocator_t* allocator, size_t size_bytes,
                                   size_t alignment, void** out_pointer) {
  const accrt_status_t status = accrt_alloc_unset(allocator, size_bytes, alignment, out_pointer);
  if (*out_pointer != NULL)
    memset(*out_pointer, 0, size_bytes);
  return status;
}

void accrt_free_aligned(const accrt_allocator_t* allocator, void* pointer, size_t size_bytes,
                        size_t alignment) {
  if (pointer == NULL)
    return;
  accrt_meter_give_back(size_bytes);
  ACCRT_CALL_USER(allocator->deallocate(allocator->self, pointer, size_bytes, alignment));
}

accrt_status_t accrt_alloc(const accrt_allocator_t* allocator, size_t size_bytes,
                           void** out_pointer) {
  return accrt_alloc_aligned(allocator, size_bytes, DEFAULT_ALIGNMENT, out_pointer);
}

void accrt_free(const accrt_allocator_t* allocator, void* pointer, size_t size_bytes) {
  accrt_free_aligned(allocator, pointer, size_bytes, DEFAULT_ALIGNMENT);
}

accrt_status_t accrt_alloc_array(const accrt_allocator_t* allocator, size_t count,
                                 size_t element_bytes, void** out_pointer) {
  *out_pointer = NULL;
  size_t size_bytes;
  if (__builtin_mul_overflow(count, element_bytes, &size_bytes)) {
    return ACCRT_FAIL(OVERFLOW, "%zu elements of %zu bytes do not fit", count, element_bytes);
  }
  return accrt_alloc(allocator, size_bytes, out_pointer);
}

void accrt_free_array(const accrt_allocator_t* allocator, void* pointer, size_t count,
                      size_t element_bytes) {
  accrt_free(allocator, pointer, count * element_bytes);
}

accrt_status_t accrt_grow_array(const accrt_allocator_t* allocator, size_t needed,
                                size_t element_bytes, size_t* capacity, void** pointer) {
  if (needed <= *capacity)
    return ACCRT_OK;
  size_t wanted = *capacity > SIZE_MAX / 2 ? needed : *capacity * 2;
  if (wanted < 8)
    wanted = 8;
  if (wanted < needed)
    wanted = needed;
  void* grown;
  ACCRT_TRY(accrt_alloc_array(allocator, wanted, element_bytes, &grown));
  if (*pointer != NULL)
    memcpy(grown, *pointer, *capacity * element_bytes);
  accrt_free_array(allocator, *pointer, *capacity, element_bytes);
  *pointer = grown;
  *capacity = wanted;
  return ACCRT_OK;
}

accrt_status_t accrt_new_at(const accrt_allocator_t* allocator, size_t count, size_t element_bytes,
                            void* place) {
  void* memory = NULL;
  const accrt_status_t status = accrt_alloc_array(allocator, count, element_bytes, &memory);
  memcpy(place, &memory, sizeof memory);
  return status;
}

accrt_status_t accrt_grow_at(const accrt_allocator_t* allocator, size_t needed,
                             size_t element_bytes, size_t* capacity, void* place) {
  void* memory;
  memcpy(&memory, place, sizeof memory);
  const accrt_status_t status =
      accrt_grow_array(allocator, needed, element_bytes, capacity, &memory);
  memcpy(place, &memory, sizeof memory);
  return status;
}

accrt_status_t accrt_copy_string(const accrt_allocator_t* allocator, const char* text,
                                 char** out_text) {
  *out_text = NULL;
  if (text == NULL)
    return ACCRT_OK;
  const size_t size_bytes = strlen(text) + 1;
  void* copy;
  ACCRT_TRY(accrt_alloc(allocator, size_bytes, &copy));
  memcpy(copy, text, size_bytes);
  *out_text = copy;
  return ACCRT_OK;
}

void accrt_free_string(const accrt_allocator_t* allocator, char* text) {
  if (text != NULL)
    accrt_free(allocator, text, strlen(text) + 1);
}
