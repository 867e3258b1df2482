/* format/sort.h - one sort for all of the loader: of indices, in place. It does not know what they
 * index. */
#ifndef ACCRT_FORMAT_SORT_H_
#define ACCRT_FORMAT_SORT_H_

#include <stdbool.h>
#include <stdint.h>

/* `less` returns whether the element of index `a` comes before that of `b`. Not stable. */
void accx_sort(uint32_t* indices, uint32_t count,
               bool (*less)(const void* context, uint32_t a, uint32_t b), const void* context);

#endif /* ACCRT_FORMAT_SORT_H_ */
