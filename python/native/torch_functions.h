/* python/native/torch_functions.h - torch's stable C functions that the shim calls, as pointers:
 * our own declarations of a published ABI (the C header of its AOTInductor). Python code looks the
 * addresses up in the libraries that torch has loaded; nothing here opens or links any.
 */
#ifndef ACCRT_PYTHON_NATIVE_TORCH_FUNCTIONS_H_
#define ACCRT_PYTHON_NATIVE_TORCH_FUNCTIONS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** An argument or a result on a kernel's stack: an owned handle of a tensor, an int64_t, or a
 * pointer to one of these for what is optional (0: it is not there). */
typedef uint64_t torch_value_t;
typedef void torch_kernel_fn_t(torch_value_t* stack, uint64_t inputs, uint64_t results);

/** F(name, needed, arguments): functions that give 0, or an error that is put down and not thrown.
 * A kernel that is not for GPUs does without what is not needed. */
#define TORCH_FUNCTIONS(F)                                                                         \
  F(aoti_torch_library_init_impl, 1,                                                               \
    (const char* space, const char* key, const char* file, uint32_t line, void** out_library))     \
  F(aoti_torch_library_impl, 1, (void* library, const char* name, torch_kernel_fn_t* kernel))      \
  F(aoti_torch_call_dispatcher, 1, (const char* name, const char* overload, torch_value_t* stack)) \
  F(aoti_torch_get_dim, 1, (void* tensor, int64_t* out_rank))                                      \
  F(aoti_torch_get_sizes, 1, (void* tensor, int64_t** out_sizes))                                  \
  F(aoti_torch_get_strides, 1, (void* tensor, int64_t** out_strides))                              \
  F(aoti_torch_get_dtype, 1, (void* tensor, int32_t* out_type))                                    \
  F(aoti_torch_get_device_type, 1, (void* tensor, int32_t* out_device))                            \
  F(aoti_torch_get_device_index, 1, (void* tensor, int32_t* out_index))                            \
  F(aoti_torch_get_data_ptr, 1, (void* tensor, void** out_data))                                   \
  F(aoti_torch_empty_strided, 1,                                                                   \
    (int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t type, int32_t device,     \
     int32_t index, void** out_tensor))                                                            \
  F(aoti_torch_delete_tensor_object, 1, (void* tensor))                                            \
  F(torch_get_const_data_ptr, 0, (void* tensor, const void** out_data))                            \
  F(torch_delete_stable_ivalue, 0, (torch_value_t * value))                                        \
  F(aoti_torch_get_current_device_index, 0, (int32_t * out_index))                                 \
  F(aoti_torch_get_current_cuda_stream, 0, (int32_t index, void** out_stream))

typedef struct torch_functions {
#define TORCH_MEMBER(name, needed, arguments) int32_t(*name) arguments;
  TORCH_FUNCTIONS(TORCH_MEMBER)
#undef TORCH_MEMBER
  /** Throws, unless the condition holds: the one function that does. */
  void (*aoti_torch_check)(bool condition, const char* function, const char* file, uint32_t line,
                           const char* message);
} torch_functions_t;

#endif /* ACCRT_PYTHON_NATIVE_TORCH_FUNCTIONS_H_ */
