/* format/sort.c - heapsort: it takes no memory, does not recurse, and no input makes it slow. */
#include "format/sort.h"

static void sift(uint32_t* indices, uint32_t root, uint32_t count,
                 bool (*less)(const void*, uint32_t, uint32_t), const void* context) {
  const uint32_t value = indices[root];
  while (root < count / 2) {
    uint32_t child = 2 * root + 1;
    if (child + 1 < count && less(context, indices[child], indices[child + 1]))
      ++child;
    if (!less(context, value, indices[child]))
      break;
    indices[root] = indices[child];
    root = child;
  }
  indices[root] = value;
}

void accx_sort(uint32_t* indices, uint32_t count,
               bool (*less)(const void* context, uint32_t a, uint32_t b), const void* context) {
  for (uint32_t i = count / 2; i-- > 0;)
    sift(indices, i, count, less, context);
  for (uint32_t end = count; end-- > 1;) {
    const uint32_t largest = indices[0];
    indices[0] = indices[end];
    indices[end] = largest;
    sift(indices, 0, end, less, context);
  }
}
