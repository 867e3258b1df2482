/* runtime/core/dtype.c - what the data types are. It may not allocate. */
#include <stddef.h>

#include "accrt/tensor.h"

typedef struct dtype_facts {
  char name[9]; /* in place: a pointer would be relocated when the library is loaded */
  uint8_t bits;
} dtype_facts_t;

static const dtype_facts_t facts[] = {
    [ACCRT_DTYPE_BOOL] = {"bool", 8},     [ACCRT_DTYPE_I8] = {"i8", 8},
    [ACCRT_DTYPE_I16] = {"i16", 16},      [ACCRT_DTYPE_I32] = {"i32", 32},
    [ACCRT_DTYPE_I64] = {"i64", 64},      [ACCRT_DTYPE_U8] = {"u8", 8},
    [ACCRT_DTYPE_U16] = {"u16", 16},      [ACCRT_DTYPE_U32] = {"u32", 32},
    [ACCRT_DTYPE_U64] = {"u64", 64},      [ACCRT_DTYPE_F16] = {"f16", 16},
    [ACCRT_DTYPE_BF16] = {"bf16", 16},    [ACCRT_DTYPE_F32] = {"f32", 32},
    [ACCRT_DTYPE_F64] = {"f64", 64},      [ACCRT_DTYPE_F8E4M3FN] = {"f8e4m3fn", 8},
    [ACCRT_DTYPE_F8E5M2] = {"f8e5m2", 8}, [ACCRT_DTYPE_F8E8M0] = {"f8e8m0", 8},
    [ACCRT_DTYPE_F4E2M1] = {"f4e2m1", 4}, [ACCRT_DTYPE_I4] = {"i4", 4},
    [ACCRT_DTYPE_U4] = {"u4", 4},
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
