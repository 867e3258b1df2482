/* runtime/core/dtype.c - the properties of data types. It may not allocate. */
#include <stddef.h>

#include "accrt/tensor.h"

typedef struct dtype_facts {
  char name[9]; /* in place, because a pointer would need a relocation when the library is loaded */
  uint8_t bits;
} dtype_facts_t;

static const dtype_facts_t facts[] = {
#define DEF_DTYPE(number, name, word, bits, note) [number] = {word, bits},
#include "format/format.def"
};

static const dtype_facts_t* find(accrt_dtype_t dtype) {
  return dtype < sizeof facts / sizeof *facts && facts[dtype].bits != 0 ? &facts[dtype] : NULL;
}

uint32_t accrt_dtype_bits(accrt_dtype_t dtype) {
  const dtype_facts_t* found = find(dtype);
  return found != NULL ? found->bits : 0;
}

const char* accrt_dtype_name(accrt_dtype_t dtype) {
  const dtype_facts_t* found = find(dtype);
  return found != NULL ? found->name : "?";
}
