/* lora.h - what both halves of low-rank products share: which adapter a token has, and vectors of
 * factors by type. */
#ifndef ACCRT_KERNELS_LORA_H_
#define ACCRT_KERNELS_LORA_H_

#include "simd.h"
#include "types.h"

#define VECTOR(tag) CONCAT(vector_, tag)
ALWAYS_INLINE vf vector_f32(const float* p) {
  return v_load(p);
}
ALWAYS_INLINE vf vector_f16(const f16_t* p) {
  return v_load_f16(p);
}
ALWAYS_INLINE vf vector_bf16(const bf16_t* p) {
  return v_load_bf16(p);
}

/* The adapter of each token; none below 0. Tokens of a workgroup: */
typedef struct {
  const int32_t* index;
  int64_t step, adapters, first, end;
} lora_tokens_t;

ALWAYS_INLINE int64_t lora_adapter(const lora_tokens_t* t, int64_t token) {
  return (int64_t)t->index[token * t->step];
}

/* How many tokens from `token` on have its adapter. */
ALWAYS_INLINE int64_t lora_run(const lora_tokens_t* t, int64_t token) {
  int64_t end = token + 1;
  while (end < t->end && lora_adapter(t, end) == lora_adapter(t, token))
    end++;
  return end - token;
}

/* Of several parts (three at most), which lie side by side, part `k` has factors of its own. */
#define LORA_PARTS 3
#define LORA_FACTORS(p, k) ((k) == 0 ? (p)->factors : (k) == 1 ? (p)->factors1 : (p)->factors2)
#define LORA_SIZE(p, k) ((k) == 0 ? (p)->size : (k) == 1 ? (p)->size1 : (p)->size2)

ALWAYS_INLINE int32_t lora_check(const lora_tokens_t* t,
                                 const accrt_kernel_workgroup_t* workgroup) {
  for (int64_t i = t->first; i < t->end; i++) {
    int64_t adapter = lora_adapter(t, i);
    if (UNLIKELY(adapter < -1 || adapter >= t->adapters)) {
      fail_message(workgroup, "adapter % of %", adapter, t->adapters);
      return KERNEL_ERROR_INDEX;
    }
  }
  return KERNEL_OK;
}

#endif /* ACCRT_KERNELS_LORA_H_ */
