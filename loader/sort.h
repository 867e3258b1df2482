/* loader/sort.h - one sort for all of the loader: of indices, in place. It knows nothing of what they stand for. */
#ifndef ACCRT_LOADER_SORT_H_
#define ACCRT_LOADER_SORT_H_

#include <stdbool.h>
#include <stdint.h>

/* `less` says whether what `a` stands for comes before what `b` stands for. Not stable. */
void accx_sort(uint32_t* indices, uint32_t count,
               bool (*less)(const void* context, uint32_t a, uint32_t b), const void* context);

#endif /* ACCRT_LOADER_SORT_H_ */
