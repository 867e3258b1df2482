/* accrt/kernel.h - the custom-kernel ABI: all that a kernel author needs.
 *
 * Freestanding: it needs only <stddef.h> and <stdint.h>, compiles alone as C11 and as C++11, and
 * includes no other header of the library. Nothing here depends on the runtime's handles.
 *
 * A *kernel pack* is a set of kernels behind one exported function:
 *
 *   const accrt_kernel_pack_table_t* accrt_kernel_pack_query(
 *       uint32_t max_abi, const accrt_kernel_environment_t* environment);
 *
 * The runtime calls it once per load with the newest ABI version that it speaks. The pack returns a
 * read-only table that lives as long as the image, with its own `abi_version` <= max_abi. Or it
 * returns NULL to refuse: the runtime is too old, or a CPU feature is missing. The query may store
 * `environment`, which outlives the pack. It must do nothing else: no allocation, no thread, no
 * I/O.
 *
 * A kernel pack reaches the runtime in one of three ways, with the same contract:
 *   1. Inside a bundle, as a freestanding ELF image (ET_DYN): no needed libraries, no undefined
 *      symbols, no constructors or destructors, no thread-local storage, no IFUNC. Compile it with
 *      gcc or clang: -ffreestanding -fPIC -shared -nostdlib -fvisibility=hidden. memcpy and libm
 *      come as imports (ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS below).
 *   2. As a .so that is opened by path (accrt_kernel_pack_open): an ordinary shared object, which
 *      may use libc.
 *   3. As a function pointer that a program registers (accrt_kernel_pack_register).
 *
 * If a bundle may choose the arguments, they are hostile: see ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL
 * and docs/kernel-abi.md.
 *
 * The contract of a kernel, for every level of this ABI:
 *   - Its arguments are complete before it starts. Its results are visible after it ends, in stream
 *     order.
 *   - It never synchronizes, allocates, blocks, creates threads or switches the device.
 *   - It writes only through parameters with write access, and reads only its arguments.
 *   - It is re-entrant: many workgroups of one or several dispatches run at the same time.
 *   - It reports an error by a non-zero code, with an optional message in a buffer of the caller.
 *
 * Determinism: a kernel gives the same bytes for the same arguments and grid, unless it lacks
 * ACCRT_KERNEL_TRAIT_DETERMINISTIC. Random numbers come from a counter-based generator whose seed
 * and offset are scalar parameters; a kernel keeps no state of its own. The runtime calls host
 * kernels with round-to-nearest-even, all exceptions masked and denormals kept (no flush to zero);
 * a kernel leaves that environment as it was. NaN propagates: the documentation of a kernel says so
 * if it ignores NaN (a max that skips it).
 */
#ifndef ACCRT_KERNEL_H_
#define ACCRT_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define ACCRT_KERNEL_STATIC_ASSERT(condition, message) static_assert(condition, message)
#else
#define ACCRT_KERNEL_STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif

/** Version of this ABI: major << 16 | minor. A runtime loads kernel packs of its own major version
 * and any minor version up to its own. */
#define ACCRT_KERNEL_ABI_MAJOR 0
#define ACCRT_KERNEL_ABI_MINOR 3
#define ACCRT_KERNEL_ABI_VERSION                                                                   \
  ((uint32_t)((ACCRT_KERNEL_ABI_MAJOR << 16) | ACCRT_KERNEL_ABI_MINOR))

/** Name of the one symbol that a kernel pack exports. */
#define ACCRT_KERNEL_PACK_SYMBOL "accrt_kernel_pack_query"

#if defined(__GNUC__)
#define ACCRT_KERNEL_EXPORT __attribute__((visibility("default")))
#else
#define ACCRT_KERNEL_EXPORT
#endif

/* ---- Data types ----
 * Ids are frozen: bundles store them and kernels receive them. Types under 8 bits are packed
 * little-endian, element 0 in the low bits. */
typedef uint32_t accrt_dtype_t;
#define ACCRT_DTYPE_NONE ((accrt_dtype_t)0)
/* data types: made of format/format.def */
#define ACCRT_DTYPE_BOOL ((accrt_dtype_t)1) /* 1 byte, 0 or 1 */
#define ACCRT_DTYPE_I8 ((accrt_dtype_t)2)
#define ACCRT_DTYPE_I16 ((accrt_dtype_t)3)
#define ACCRT_DTYPE_I32 ((accrt_dtype_t)4)
#define ACCRT_DTYPE_I64 ((accrt_dtype_t)5)
#define ACCRT_DTYPE_U8 ((accrt_dtype_t)6)
#define ACCRT_DTYPE_U16 ((accrt_dtype_t)7)
#define ACCRT_DTYPE_U32 ((accrt_dtype_t)8)
#define ACCRT_DTYPE_U64 ((accrt_dtype_t)9)
#define ACCRT_DTYPE_F16 ((accrt_dtype_t)10)  /* IEEE 754 binary16 */
#define ACCRT_DTYPE_BF16 ((accrt_dtype_t)11) /* upper half of binary32 */
#define ACCRT_DTYPE_F32 ((accrt_dtype_t)12)
#define ACCRT_DTYPE_F64 ((accrt_dtype_t)13)
#define ACCRT_DTYPE_F8E4M3FN ((accrt_dtype_t)14) /* OCP FP8, finite and NaN */
#define ACCRT_DTYPE_F8E5M2 ((accrt_dtype_t)15)
#define ACCRT_DTYPE_F8E8M0 ((accrt_dtype_t)16) /* scale: 2^(x-127), 0xFF is NaN */
#define ACCRT_DTYPE_F4E2M1 ((accrt_dtype_t)17) /* two per byte */
#define ACCRT_DTYPE_I4 ((accrt_dtype_t)18)     /* two per byte */
#define ACCRT_DTYPE_U4 ((accrt_dtype_t)19)     /* two per byte */
/* data types: end */

#define ACCRT_KERNEL_MAX_RANK 8

/* ---- Parameters ----
 * A kernel's arguments are one packed block of bytes. The pack describes each parameter: {kind,
 * offset, size, align}. The author declares a C struct with the same layout and casts
 * `dispatch->params` to it. */
/* 8 bytes: address of the first byte; NULL: an optional buffer is absent */
#define ACCRT_KERNEL_PARAM_BUFFER 1u
#define ACCRT_KERNEL_PARAM_TENSOR 2u /* accrt_kernel_tensor_t: address, shape and strides */
#define ACCRT_KERNEL_PARAM_SCALAR 3u /* 1, 2, 4 or 8 bytes, by value */
/* 8 bytes: a shape symbol or an expression of symbols, int64_t */
#define ACCRT_KERNEL_PARAM_SYMBOL 4u
/* 8 bytes: address of scratch memory, valid until the dispatch ends */
#define ACCRT_KERNEL_PARAM_WORKSPACE 5u
#define ACCRT_KERNEL_PARAM_SEMAPHORE 6u /* 8 bytes: reserved for devices that signal from kernels */
/* reserved for values that the runtime fills; no pack can declare it yet */
#define ACCRT_KERNEL_PARAM_HIDDEN 7u

#define ACCRT_KERNEL_ACCESS_NONE 0u
#define ACCRT_KERNEL_ACCESS_READ 1u
#define ACCRT_KERNEL_ACCESS_WRITE 2u
#define ACCRT_KERNEL_ACCESS_READ_WRITE 3u

/* a BUFFER that may be absent: the address is then NULL */
#define ACCRT_KERNEL_PARAM_FLAG_OPTIONAL 1u
/* operators: a SYMBOL or SCALAR that may change between executions of a state; all others, like
 * shapes, stay the same. Since 0.2 */
#define ACCRT_KERNEL_PARAM_FLAG_VARIES 2u
/** A SYMBOL that holds how many bytes a BUFFER or WORKSPACE has from its address on. These are the
 * last parameters: one for each BUFFER and WORKSPACE, in the same order (0 if an OPTIONAL one is
 * absent). A bundle does not declare them: the runtime fills them. A program that launches the
 * kernel itself passes them like other symbols. Since 0.3 */
#define ACCRT_KERNEL_PARAM_FLAG_LENGTH 4u

/** One parameter. Frozen, 24 bytes on 64-bit targets. */
typedef struct accrt_kernel_param {
  const char* name;      /**< for messages and reflection; not NULL */
  uint8_t kind;          /**< ACCRT_KERNEL_PARAM_* */
  uint8_t access;        /**< ACCRT_KERNEL_ACCESS_*: NONE for scalars and symbols */
  uint8_t flags;         /**< ACCRT_KERNEL_PARAM_FLAG_* */
  uint8_t align_log2;    /**< alignment of the offset within the block, log2 bytes */
  uint32_t offset_bytes; /**< from the start of the block; ascending, not overlapping */
  uint32_t size_bytes;
  uint32_t reserved; /**< 0 */
} accrt_kernel_param_t;
ACCRT_KERNEL_STATIC_ASSERT(offsetof(accrt_kernel_param_t, reserved) == sizeof(void*) + 12,
                           "frozen");

/** A tensor argument (ACCRT_KERNEL_PARAM_TENSOR). Frozen. Strides are in elements; entries past
 * `rank` are unspecified. */
typedef struct accrt_kernel_tensor {
  void* data;
  accrt_dtype_t dtype;
  uint32_t rank;
  int64_t shape[ACCRT_KERNEL_MAX_RANK];
  int64_t strides[ACCRT_KERNEL_MAX_RANK];
} accrt_kernel_tensor_t;
ACCRT_KERNEL_STATIC_ASSERT(offsetof(accrt_kernel_tensor_t, strides) ==
                               sizeof(void*) + 8 + 8 * ACCRT_KERNEL_MAX_RANK,
                           "frozen");

/* ---- Environment ----
 * Functions of the runtime that a pack may call. Append-only: compare `struct_size` before you use
 * a member that is newer than your ABI version. Members of your ABI version are never NULL. */
typedef struct accrt_kernel_imports {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* (*memcpy)(void* destination, const void* source, size_t size_bytes);
  void* (*memmove)(void* destination, const void* source, size_t size_bytes);
  void* (*memset)(void* destination, int value, size_t size_bytes);
  int (*memcmp)(const void* a, const void* b, size_t size_bytes);
  float (*expf)(float x);
  float (*exp2f)(float x);
  float (*expm1f)(float x);
  float (*logf)(float x);
  float (*log2f)(float x);
  float (*log1pf)(float x);
  float (*powf)(float x, float y);
  float (*sinf)(float x);
  float (*cosf)(float x);
  float (*tanhf)(float x);
  float (*erff)(float x);
  float (*fmodf)(float x, float y);
  double (*exp)(double x);
  double (*expm1)(double x);
  double (*log)(double x);
  double (*log1p)(double x);
  double (*pow)(double x, double y);
  double (*sin)(double x);
  double (*cos)(double x);
  double (*tanh)(double x);
  double (*erf)(double x);
  double (*fmod)(double x, double y);
} accrt_kernel_imports_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_kernel_imports_t) == 216 &&
                                offsetof(accrt_kernel_imports_t, fmod) +
                                        sizeof(((accrt_kernel_imports_t*)0)->fmod) + 8 >
                                    216),
                           "append only");

/* CPU feature bits, as the runtime found them and the operating system allows them. Frozen
 * numbers. */
/* CPU features: made of format/format.def */
#define ACCRT_CPU_X86_64_V2 (UINT64_C(1) << 0)
#define ACCRT_CPU_X86_64_V3 (UINT64_C(1) << 1) /* AVX2, FMA, BMI2, F16C, MOVBE */
#define ACCRT_CPU_X86_64_V4 (UINT64_C(1) << 2) /* AVX-512 F, BW, CD, DQ, VL */
#define ACCRT_CPU_AVX512_VNNI (UINT64_C(1) << 3)
#define ACCRT_CPU_AVX512_BF16 (UINT64_C(1) << 4)
#define ACCRT_CPU_AVX512_FP16 (UINT64_C(1) << 5)
#define ACCRT_CPU_AVX_VNNI (UINT64_C(1) << 6)
#define ACCRT_CPU_AMX_BF16 (UINT64_C(1) << 7)
#define ACCRT_CPU_AMX_INT8 (UINT64_C(1) << 8)
#define ACCRT_CPU_AVX512_VBMI (UINT64_C(1) << 9)
#define ACCRT_CPU_ARM_NEON (UINT64_C(1) << 32)
#define ACCRT_CPU_ARM_FP16 (UINT64_C(1) << 33)
#define ACCRT_CPU_ARM_DOTPROD (UINT64_C(1) << 34)
#define ACCRT_CPU_ARM_BF16 (UINT64_C(1) << 35)
#define ACCRT_CPU_ARM_I8MM (UINT64_C(1) << 36)
#define ACCRT_CPU_ARM_SVE (UINT64_C(1) << 37)
/* CPU features: end */

/** What a kernel pack may know of the runtime. Read-only; it outlives the pack. */
typedef struct accrt_kernel_environment {
  uint32_t struct_size;
  uint32_t abi_version; /**< the newest version that the runtime speaks */
  uint64_t cpu_features;
  const accrt_kernel_imports_t* imports;
} accrt_kernel_environment_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_kernel_environment_t) == 24 &&
                                offsetof(accrt_kernel_environment_t, imports) +
                                        sizeof(((accrt_kernel_environment_t*)0)->imports) + 8 >
                                    24),
                           "append only");

/* ---- Host workgroup kernels ---- */

/** What all workgroups of one dispatch share. Append-only; `struct_size` is the runtime's. */
typedef struct accrt_kernel_dispatch {
  uint32_t struct_size;
  uint32_t workgroup_count[3]; /**< x, y, z; each at least 1 */
  const void* params;          /**< the packed block, 16-byte aligned, read-only */
  uint32_t params_size_bytes;
  uint32_t worker_count; /**< every worker_id is below it */
  uint64_t submission;   /**< number of the submission, as in error records and traces */
} accrt_kernel_dispatch_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_kernel_dispatch_t) == 40 &&
                                offsetof(accrt_kernel_dispatch_t, submission) +
                                        sizeof(((accrt_kernel_dispatch_t*)0)->submission) + 8 >
                                    40),
                           "append only");

/** What belongs to one workgroup. Append-only; `struct_size` is the runtime's. */
typedef struct accrt_kernel_workgroup {
  uint32_t struct_size;
  uint32_t workgroup_id[3];
  uint32_t worker_id; /**< from 0, for memory per worker of one dispatch; no order */
  uint32_t local_memory_size_bytes;
  /** 64-byte aligned, uninitialised, private to this workgroup; NULL if the size is 0 */
  void* local_memory;
  char* message; /**< on failure: up to message_capacity_bytes, the NUL included */
  uint32_t message_capacity_bytes;
  uint32_t reserved; /**< 0 */
} accrt_kernel_workgroup_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_kernel_workgroup_t) == 48 &&
                                offsetof(accrt_kernel_workgroup_t, reserved) +
                                        sizeof(((accrt_kernel_workgroup_t*)0)->reserved) + 8 >
                                    48),
                           "append only");

/** Runs one workgroup on one thread. It returns 0, or a code of its own. A code fails the dispatch
 * (its other workgroups may or may not run) and is reported as ACCRT_ERROR_KERNEL with that
 * `driver_code`. At least ACCRT_KERNEL_STACK_BYTES of stack are free at entry. There is no barrier
 * between or inside workgroups. */
typedef int32_t (*accrt_kernel_workgroup_fn_t)(const accrt_kernel_environment_t* environment,
                                               const accrt_kernel_dispatch_t* dispatch,
                                               const accrt_kernel_workgroup_t* workgroup);
#define ACCRT_KERNEL_STACK_BYTES (64u * 1024u)

#define ACCRT_KERNEL_TRAIT_DETERMINISTIC (1u << 0)
#define ACCRT_KERNEL_TRAIT_CAPTURABLE (1u << 1) /* host operators: may be captured into a graph */
#define ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE (1u << 2) /* the workspace must be zero at entry */
/* host operators: reads shapes on the host at execute */
#define ACCRT_KERNEL_TRAIT_READS_HOST_METADATA (1u << 3)
/* workgroups of one dispatch must run in order, one at a time */
#define ACCRT_KERNEL_TRAIT_SERIAL (1u << 4)
/* device kernels: all workgroups run at once and may wait for each other. Since 0.2 */
#define ACCRT_KERNEL_TRAIT_COOPERATIVE (1u << 5)
/* device kernels: may start before the previous kernel has ended, and itself waits for it (CUDA:
 * programmatic dependent launch, griddepcontrol.wait). Since 0.2 */
#define ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS (1u << 6)

/** Bundles may call it by the pack's name. The author of the bundle then chooses its arguments, so
 * the kernel checks every number before use, and stays within the lengths of its BUFFERs and
 * WORKSPACEs, which it must declare (ACCRT_KERNEL_PARAM_FLAG_LENGTH). The runtime checks views of
 * TENSORs. Only programs can call a kernel without this trait. The trait matters for kernels and
 * operators of packs that are registered or installed, not for images inside bundles. Since 0.3 */
#define ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL (1u << 7)

/** One kernel. Append-only; `struct_size` is the pack's. */
typedef struct accrt_kernel_def {
  uint32_t struct_size;
  uint32_t traits;  /**< ACCRT_KERNEL_TRAIT_* */
  const char* name; /**< unique in the pack; letters, digits, '_', '.', '-', at most 255 bytes */
  accrt_kernel_workgroup_fn_t entry;
  const accrt_kernel_param_t* params; /**< may be NULL when param_count is 0 */
  uint32_t param_count;
  uint32_t params_size_bytes; /**< of the packed block; at most 4096 */
  uint32_t local_memory_size_bytes;
  uint32_t reserved;              /**< 0 */
  uint64_t required_cpu_features; /**< the CPU needs all of these, or the kernel is not available */
  const char* source_file;        /**< for traces; may be NULL */
  uint32_t source_line;
  uint32_t reserved2; /**< 0 */
  /* Since 0.2. Device kernels: local_memory_size_bytes above is their dynamic shared memory. */
  uint32_t block[3];   /**< threads of a workgroup in x, y, z; zeros for host kernels */
  uint32_t cluster[3]; /**< workgroups of a cluster in x, y, z; zeros: no clusters */
} accrt_kernel_def_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_kernel_def_t) == 96 &&
                                offsetof(accrt_kernel_def_t, cluster) +
                                        sizeof(((accrt_kernel_def_t*)0)->cluster) + 8 >
                                    96),
                           "append only");
#define ACCRT_KERNEL_MAX_PARAMS 64
#define ACCRT_KERNEL_MAX_PARAMS_BYTES 4096

/* ---- Host operators: the second level of this ABI. Since 0.2 ----
 * Host code that enqueues device work (a BLAS call, a collective), or does the work itself on a
 * host device. Its arguments are a packed block like a kernel's. Order of calls: query_workspace
 * and prepare when a plan is made, for shapes that stay the same; execute any number of times, by
 * one thread at a time for each state; destroy. One operator may have several states.
 *
 * execute may only enqueue onto call->stream: it does not allocate, synchronize, create streams,
 * switch the device or read device memory. With ACCRT_KERNEL_TRAIT_CAPTURABLE it may be called
 * while the stream is being captured. Its work is then replayed later without a call of execute:
 * every address and scalar that it used is frozen into the capture, and the runtime captures again
 * when one of them changes. */

/** The arguments of an operator's functions. Append-only; `struct_size` is the runtime's. */
typedef struct accrt_operator_call {
  uint32_t struct_size;
  uint32_t device_type; /**< as DLPack numbers them: 1 CPU, 2 CUDA */
  int32_t device_id;
  uint32_t params_size_bytes;
  /** the packed block. In query_workspace and prepare, addresses are NULL or not those of execute;
   * shapes and values are valid, but values that vary are 0 */
  const void* params;
  void* stream;    /**< CUDA: CUstream; host: NULL. NULL in query_workspace and prepare */
  void* workspace; /**< execute: workspace_size_bytes, 256-byte aligned; else NULL */
  uint64_t workspace_size_bytes; /**< what query_workspace returned */
  uint64_t submission;           /**< execute: number, as in error records; else 0 */
  char* message;                 /**< on failure: up to message_capacity_bytes, the NUL included */
  uint32_t message_capacity_bytes;
  uint32_t reserved; /**< 0 */
} accrt_operator_call_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_operator_call_t) == 72 &&
                                offsetof(accrt_operator_call_t, reserved) +
                                        sizeof(((accrt_operator_call_t*)0)->reserved) + 8 >
                                    72),
                           "append only");

/** One operator. Append-only; `struct_size` is the pack's. Its functions return 0, or a code of
 * their own, which is reported as ACCRT_ERROR_KERNEL with that `driver_code`. The device's context
 * is current in each of them. */
typedef struct accrt_operator_def {
  uint32_t struct_size;
  uint32_t traits;  /**< ACCRT_KERNEL_TRAIT_* */
  const char* name; /**< unique in the pack among kernels and operators */
  /** BUFFER, TENSOR, SCALAR and SYMBOL; may be NULL when param_count is 0 */
  const accrt_kernel_param_t* params;
  uint32_t param_count;
  uint32_t params_size_bytes;
  uint32_t device_type; /**< the device that it runs on, as DLPack numbers them; 0: any */
  uint32_t reserved;    /**< 0 */
  /** Returns how much workspace execute needs for these shapes. NULL: none. */
  int32_t (*query_workspace)(const accrt_kernel_environment_t* environment,
                             const accrt_operator_call_t* call, uint64_t* out_size_bytes);
  /** Makes the state of execute: plans, descriptors, a choice of algorithm. It may allocate and may
   * be slow. NULL: no state. */
  int32_t (*prepare)(const accrt_kernel_environment_t* environment,
                     const accrt_operator_call_t* call, void** out_state);
  int32_t (*execute)(const accrt_kernel_environment_t* environment,
                     const accrt_operator_call_t* call, void* state);
  /** Frees a state. Called once for each state, when no execution of it runs. NULL: nothing to
   * free. */
  void (*destroy)(const accrt_kernel_environment_t* environment, void* state);
} accrt_operator_def_t;
ACCRT_KERNEL_STATIC_ASSERT(sizeof(void*) != 8 ||
                               (sizeof(accrt_operator_def_t) == 72 &&
                                offsetof(accrt_operator_def_t, destroy) +
                                        sizeof(((accrt_operator_def_t*)0)->destroy) + 8 >
                                    72),
                           "append only");

/** A kernel pack. Append-only; `struct_size` is the pack's. */
typedef struct accrt_kernel_pack_table {
  uint32_t struct_size;
  uint32_t abi_version; /**< the version that the pack was built for; <= max_abi */
  const char* name;     /**< of the pack, for messages */
  const accrt_kernel_def_t* kernels;
  uint32_t kernel_count;
  uint32_t kernel_size_bytes;                 /**< sizeof one element */
  const accrt_operator_def_t* host_operators; /**< NULL when there are none, and in 0.1 */
  uint32_t host_operator_count;
  uint32_t host_operator_size_bytes; /**< sizeof one element */
} accrt_kernel_pack_table_t;
ACCRT_KERNEL_STATIC_ASSERT(
    sizeof(void*) != 8 ||
        (sizeof(accrt_kernel_pack_table_t) == 48 &&
         offsetof(accrt_kernel_pack_table_t, host_operator_size_bytes) +
                 sizeof(((accrt_kernel_pack_table_t*)0)->host_operator_size_bytes) + 8 >
             48),
    "append only");

typedef const accrt_kernel_pack_table_t* (*accrt_kernel_pack_query_fn_t)(
    uint32_t max_abi, const accrt_kernel_environment_t* environment);

/* ---- Helpers for authors ---- */

/** Declares the length of a BUFFER or WORKSPACE, an int64_t member: ACCRT_KERNEL_LENGTH(my_params,
 * x_bytes). */
#define ACCRT_KERNEL_LENGTH(T, field)                                                              \
  {                                                                                                \
#field, (uint8_t)ACCRT_KERNEL_PARAM_SYMBOL, 0, (uint8_t)ACCRT_KERNEL_PARAM_FLAG_LENGTH, 3,     \
        (uint32_t)offsetof(T, field), (uint32_t)sizeof(((T*)0)->field), 0                          \
  }
/** Declares one parameter of struct type T: ACCRT_KERNEL_PARAM(my_params, x, BUFFER, READ). */
#define ACCRT_KERNEL_PARAM(T, field, kind_, access_)                                               \
  {                                                                                                \
#field, (uint8_t)ACCRT_KERNEL_PARAM_##kind_, (uint8_t)ACCRT_KERNEL_ACCESS_##access_, 0,        \
        (uint8_t)(sizeof(((T*)0)->field) >= 8   ? 3                                                \
                  : sizeof(((T*)0)->field) >= 4 ? 2                                                \
                  : sizeof(((T*)0)->field) >= 2 ? 1                                                \
                                                : 0),                                              \
        (uint32_t)offsetof(T, field), (uint32_t)sizeof(((T*)0)->field), 0                          \
  }

/** For freestanding images: compilers insert calls of memcpy, memmove, memset and memcmp. Put this
 * once into an image, and call accrt_kernel_bind with the environment in the query. */
#define ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()                                                     \
  static const accrt_kernel_imports_t* accrt_kernel_imports_bound;                                 \
  static void accrt_kernel_bind(const accrt_kernel_environment_t* environment) {                   \
    accrt_kernel_imports_bound = environment->imports;                                             \
  }                                                                                                \
  __attribute__((visibility("hidden"), used)) void* memcpy(void* d, const void* s, size_t n) {     \
    return accrt_kernel_imports_bound->memcpy(d, s, n);                                            \
  }                                                                                                \
  __attribute__((visibility("hidden"), used)) void* memmove(void* d, const void* s, size_t n) {    \
    return accrt_kernel_imports_bound->memmove(d, s, n);                                           \
  }                                                                                                \
  __attribute__((visibility("hidden"), used)) void* memset(void* d, int v, size_t n) {             \
    return accrt_kernel_imports_bound->memset(d, v, n);                                            \
  }                                                                                                \
  __attribute__((visibility("hidden"), used)) int memcmp(const void* a, const void* b, size_t n) { \
    return accrt_kernel_imports_bound->memcmp(a, b, n);                                            \
  }

#ifdef __cplusplus
}
#endif
#endif /* ACCRT_KERNEL_H_ */
