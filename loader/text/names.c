/* loader/text/names.c - words for the numbers of the format. See names.h. */
#include "loader/text/names.h"

#include <string.h>

#include "accrt/kernel.h"

#define WORDS(name, text, ...)                                                                     \
  static const accx_word_t name##_list[] = {__VA_ARGS__};                                          \
  const accx_words_t accx_words_##name = {text, name##_list,                                       \
                                          (uint32_t)(sizeof name##_list / sizeof name##_list[0])}

WORDS(symbol_class, "class", {0, "specialize"}, {1, "bucket"}, {2, "runtime"}, {3, "session"});
WORDS(source, "source", {0, "inline"}, {1, "prepared"}, {2, "external"});
WORDS(argument, "kind", {0, "read"}, {1, "read_write"}, {2, "donated"}, {3, "result"},
      {4, "scalar"});
WORDS(access, "access", {0, "none"}, {1, "read"}, {2, "write"}, {3, "read_write"});
WORDS(parameter, "kind", {1, "buffer"}, {2, "tensor"}, {3, "scalar"}, {4, "symbol"},
      {5, "workspace"});
WORDS(arch_kind, "arch_kind", {0, "portable"}, {1, "family"}, {2, "exact"});
WORDS(image, "kind", {1, "host_elf"}, {2, "cubin"}, {3, "ptx"}, {4, "fatbin"}, {5, "pack"});
WORDS(file, "kind", {1, "accx"}, {2, "safetensors"}, {3, "gguf"});
WORDS(role, "component", {0, "data"}, {1, "scales"}, {2, "zeros"}, {3, "group_index"},
      {4, "global_scale"});
WORDS(predicate, "condition", {1, "divisible"}, {2, "aligned"}, {3, "equal"}, {4, "at_most"},
      {5, "at_least"});
WORDS(dtype, "dtype", {ACCRT_DTYPE_BOOL, "bool"}, {ACCRT_DTYPE_I8, "i8"}, {ACCRT_DTYPE_I16, "i16"},
      {ACCRT_DTYPE_I32, "i32"}, {ACCRT_DTYPE_I64, "i64"}, {ACCRT_DTYPE_U8, "u8"},
      {ACCRT_DTYPE_U16, "u16"}, {ACCRT_DTYPE_U32, "u32"}, {ACCRT_DTYPE_U64, "u64"},
      {ACCRT_DTYPE_F16, "f16"}, {ACCRT_DTYPE_BF16, "bf16"}, {ACCRT_DTYPE_F32, "f32"},
      {ACCRT_DTYPE_F64, "f64"}, {ACCRT_DTYPE_F8E4M3FN, "f8e4m3fn"}, {ACCRT_DTYPE_F8E5M2, "f8e5m2"},
      {ACCRT_DTYPE_F8E8M0, "f8e8m0"}, {ACCRT_DTYPE_F4E2M1, "f4e2m1"}, {ACCRT_DTYPE_I4, "i4"},
      {ACCRT_DTYPE_U4, "u4"});
WORDS(opcode, "command", {1, "dispatch"}, {2, "copy"}, {3, "fill"}, {4, "barrier"}, {5, "call"},
      {6, "repeat"}, {7, "branch"}, {8, "marker"});
WORDS(traits, "trait", {ACCRT_KERNEL_TRAIT_DETERMINISTIC, "deterministic"},
      {ACCRT_KERNEL_TRAIT_CAPTURABLE, "capturable"},
      {ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE, "zeroed_workspace"},
      {ACCRT_KERNEL_TRAIT_READS_HOST_METADATA, "reads_host_metadata"},
      {ACCRT_KERNEL_TRAIT_SERIAL, "serial"}, {ACCRT_KERNEL_TRAIT_COOPERATIVE, "cooperative"},
      {ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS, "overlaps_previous"});
WORDS(cpu, "CPU feature", {ACCRT_CPU_X86_64_V2, "x86_64_v2"}, {ACCRT_CPU_X86_64_V3, "x86_64_v3"},
      {ACCRT_CPU_X86_64_V4, "x86_64_v4"}, {ACCRT_CPU_AVX512_VNNI, "avx512_vnni"},
      {ACCRT_CPU_AVX512_BF16, "avx512_bf16"}, {ACCRT_CPU_AVX512_FP16, "avx512_fp16"},
      {ACCRT_CPU_AVX_VNNI, "avx_vnni"}, {ACCRT_CPU_AMX_BF16, "amx_bf16"},
      {ACCRT_CPU_AMX_INT8, "amx_int8"}, {ACCRT_CPU_AVX512_VBMI, "avx512_vbmi"},
      {ACCRT_CPU_ARM_NEON, "arm_neon"}, {ACCRT_CPU_ARM_FP16, "arm_fp16"},
      {ACCRT_CPU_ARM_DOTPROD, "arm_dotprod"}, {ACCRT_CPU_ARM_BF16, "arm_bf16"},
      {ACCRT_CPU_ARM_I8MM, "arm_i8mm"}, {ACCRT_CPU_ARM_SVE, "arm_sve"});

const char* accx_word_of(const accx_words_t* words, uint64_t value) {
  for (uint32_t i = 0; i < words->count; ++i) {
    if (words->words[i].value == value)
      return words->words[i].word;
  }
  return NULL;
}

bool accx_word_find(const accx_words_t* words, const char* word, uint64_t* out_value) {
  for (uint32_t i = 0; i < words->count; ++i) {
    if (strcmp(words->words[i].word, word) != 0)
      continue;
    *out_value = words->words[i].value;
    return true;
  }
  return false;
}
