/* runtime/core/cpu.c - processor features. It may not allocate, and reads no file: CPUID on x86,
 * the auxiliary vector on ARM. */
#include "runtime/core/cpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "accrt/kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(n) (1u << (n))

/* CPUID leaf 1 */
#define L1C_V2                                                                                     \
  (BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) |                                                 \
   BIT(23))                                            /* SSE3 SSSE3 CX16 SSE4.1 SSE4.2 POPCNT */
#define L1C_V3 (BIT(12) | BIT(22) | BIT(28) | BIT(29)) /* FMA MOVBE AVX F16C */
#define L1C_OSXSAVE BIT(27)
/* leaf 7.0 */
#define L7B_V3 (BIT(3) | BIT(5) | BIT(8))                        /* BMI1 AVX2 BMI2 */
#define L7B_V4 (BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31)) /* AVX512 F DQ CD BW VL */
#define L7C_VBMI BIT(1)
#define L7C_VNNI BIT(11)
#define L7D_AMX_BF16 BIT(22)
#define L7D_FP16 BIT(23)
#define L7D_AMX_TILE BIT(24)
#define L7D_AMX_INT8 BIT(25)
/* leaf 7.1 */
#define L71A_AVX_VNNI BIT(4)
#define L71A_BF16 BIT(5)
/* leaf 0x80000001 */
#define LEC_LAHF BIT(0)
#define LEC_LZCNT BIT(5)
/* XCR0 */
#define XCR0_AVX 0x6u
#define XCR0_AVX512 0xE6u
#define XCR0_AMX 0x60000u
/* Linux gives a process the AMX tile state on request only. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

typedef struct registers {
  unsigned a, b, c, d;
} registers_t;

static registers_t cpuid(unsigned leaf, unsigned subleaf) {
  registers_t r = {0, 0, 0, 0};
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d))
    memset(&r, 0, sizeof r);
  return r;
}

/* The register files that the operating system saves. */
static uint64_t enabled_state(const registers_t* leaf1) {
  if ((leaf1->c & L1C_OSXSAVE) == 0)
    return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

static bool has(uint64_t word, uint64_t bits) {
  return (word & bits) == bits;
}

static uint64_t detect_avx512(const registers_t* leaf7, const registers_t* leaf71) {
  uint64_t features = ACCRT_CPU_X86_64_V4;
  if (has(leaf7->c, L7C_VNNI))
    features |= ACCRT_CPU_AVX512_VNNI;
  if (has(leaf7->c, L7C_VBMI))
    features |= ACCRT_CPU_AVX512_VBMI;
  if (has(leaf71->a, L71A_BF16))
    features |= ACCRT_CPU_AVX512_BF16;
  if (has(leaf7->d, L7D_FP16))
    features |= ACCRT_CPU_AVX512_FP16;
  return features;
}

static uint64_t detect_amx(uint64_t state, const registers_t* leaf7) {
  if (!has(state, XCR0_AMX) || !has(leaf7->d, L7D_AMX_TILE))
    return 0;
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0)
    return 0;
  uint64_t features = 0;
  if (has(leaf7->d, L7D_AMX_BF16))
    features |= ACCRT_CPU_AMX_BF16;
  if (has(leaf7->d, L7D_AMX_INT8))
    features |= ACCRT_CPU_AMX_INT8;
  return features;
}

static uint64_t detect(void) {
  const registers_t leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf71 = cpuid(7, 1);
  const registers_t extended = cpuid(0x80000001u, 0);
  const uint64_t state = enabled_state(&leaf1);
  if (!has(leaf1.c, L1C_V2) || !has(extended.c, LEC_LAHF))
    return 0;
  uint64_t features = ACCRT_CPU_X86_64_V2;
  if (!has(leaf1.c, L1C_V3) || !has(leaf7.b, L7B_V3) || !has(extended.c, LEC_LZCNT) ||
      !has(state, XCR0_AVX)) {
    return features;
  }
  features |= ACCRT_CPU_X86_64_V3;
  if (has(leaf71.a, L71A_AVX_VNNI))
    features |= ACCRT_CPU_AVX_VNNI;
  if (!has(leaf7.b, L7B_V4) || !has(state, XCR0_AVX512))
    return features;
  return features | detect_avx512(&leaf7, &leaf71) | detect_amx(state, &leaf7);
}

const char* accrt_cpu_arch(void) {
  const uint64_t features = accrt_cpu_features();
  if (features & ACCRT_CPU_X86_64_V4)
    return "x86-64-v4";
  if (features & ACCRT_CPU_X86_64_V3)
    return "x86-64-v3";
  if (features & ACCRT_CPU_X86_64_V2)
    return "x86-64-v2";
  return "x86-64";
}

void accrt_cpu_name(char* out_name, size_t capacity_bytes) {
  char text[49] = {0};
  for (unsigned i = 0; i < 3; ++i) {
    const registers_t r = cpuid(0x80000002u + i, 0);
    memcpy(text + 16 * i, &r, sizeof r);
  }
  const char* begin = text + strspn(text, " ");
  (void)snprintf(out_name, capacity_bytes, "%s", *begin != '\0' ? begin : accrt_cpu_arch());
}

#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1 << 13)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif

static uint64_t detect(void) {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  uint64_t features = 0;
  if (first & HWCAP_ASIMD)
    features |= ACCRT_CPU_ARM_NEON;
  if ((first & HWCAP_FPHP) && (first & HWCAP_ASIMDHP))
    features |= ACCRT_CPU_ARM_FP16;
  if (first & HWCAP_ASIMDDP)
    features |= ACCRT_CPU_ARM_DOTPROD;
  if (first & HWCAP_SVE)
    features |= ACCRT_CPU_ARM_SVE;
  if (second & HWCAP2_BF16)
    features |= ACCRT_CPU_ARM_BF16;
  if (second & HWCAP2_I8MM)
    features |= ACCRT_CPU_ARM_I8MM;
  return features;
}

const char* accrt_cpu_arch(void) {
  return "aarch64";
}

void accrt_cpu_name(char* out_name, size_t capacity_bytes) {
  (void)snprintf(out_name, capacity_bytes, "%s", accrt_cpu_arch());
}

#else
#error "accrt runs on x86-64 and aarch64"
#endif

static pthread_once_t found = PTHREAD_ONCE_INIT;
static uint64_t found_features;
static void find(void) {
  found_features = detect();
}

uint64_t accrt_cpu_features(void) {
  (void)pthread_once(&found, find);
  return found_features;
}

/* ---- Names ---- */

typedef struct cpu_name {
  uint8_t bit;
  /* in place, because a pointer would need a relocation when the library is loaded */
  char name[12];
} cpu_name_t;
static const cpu_name_t names[] = {
#define DEF_CPU(bit, name, word, shown, note) {bit, shown},
#include "format/format.def"
};

const char* accrt_cpu_feature_name(uint32_t bit) {
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (names[i].bit == bit)
      return names[i].name;
  }
  return "";
}
