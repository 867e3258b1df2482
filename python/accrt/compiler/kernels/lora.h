/* lora.h - what both halves of low-rank products share: the tokens of each adapter, and vectors of
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

/* Tokens of a workgroup, at most. */
#define LORA_TOKENS 64

/* The tokens of a workgroup, and those of them that have one adapter. */
typedef struct {
  const int32_t* index;
  int64_t step, adapters, first, end, next;
  uint64_t done; /* a bit for each token */
  int64_t adapter, count;
  int64_t list[LORA_TOKENS];
} lora_tokens_t;

ALWAYS_INLINE int64_t lora_adapter(const lora_tokens_t* t, int64_t token) {
  return (int64_t)t->index[token * t->step];
}

/* Finds the tokens of the next adapter, wherever they stand. 0: there is none. */
static inline int32_t lora_next(lora_tokens_t* t) {
  while (t->next < t->end && (t->done >> (t->next - t->first) & 1) != 0)
    t->next++;
  if (t->next == t->end)
    return 0;
  t->adapter = lora_adapter(t, t->next);
  t->count = 0;
  for (int64_t token = t->next; token < t->end; token++) {
    if (lora_adapter(t, token) != t->adapter)
      continue;
    t->list[t->count++] = token;
    t->done |= UINT64_C(1) << (token - t->first);
  }
  return 1;
}

/* Of several parts (three at most), which lie side by side, part `k` has factors of its own. */
#define LORA_PARTS 3
#define LORA_FACTORS(p, k) ((k) == 0 ? (p)->factors : (k) == 1 ? (p)->factors1 : (p)->factors2)
#define LORA_SIZE(p, k) ((k) == 0 ? (p)->size : (k) == 1 ? (p)->size1 : (p)->size2)

/* The tokens of this workgroup, whose adapters are checked. */
static inline int32_t lora_begin(lora_tokens_t* t, const int32_t* index, int64_t step,
                                 int64_t tokens, int64_t adapters,
                                 const accrt_kernel_dispatch_t* dispatch,
                                 const accrt_kernel_workgroup_t* workgroup) {
  int64_t block = workgroup->workgroup_id[0], blocks = dispatch->workgroup_count[0];
  t->index = index;
  t->step = step;
  t->adapters = adapters;
  t->next = t->first = part_begin(tokens, block, blocks);
  t->end = part_begin(tokens, block + 1, blocks);
  t->done = 0;
  for (int64_t i = t->first; i < t->end; i++) {
    int64_t adapter = lora_adapter(t, i);
    if (UNLIKELY(adapter < -1 || adapter >= adapters)) {
      fail_message(workgroup, "adapter % of %", adapter, adapters);
      return KERNEL_ERROR_INDEX;
    }
  }
  return KERNEL_OK;
}

#endif /* ACCRT_KERNELS_LORA_H_ */
