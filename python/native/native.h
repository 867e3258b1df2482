/* python/native/native.h - what the files of accrt._native share: arguments taken apart, and the
 * few facts about Python's classes that this needs.
 *
 * Of CPython it may use the stable ABI of 3.9 alone, so that one file serves every version; of the
 * library the table of functions alone, so that nothing here is linked to it. Whatever it does not
 * know is left to the Python code, which does it all as well: no function here raises.
 */
#ifndef ACCRT_PYTHON_NATIVE_NATIVE_H_
#define ACCRT_PYTHON_NATIVE_NATIVE_H_

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "accrt/api.h"

/** A function as a slot of a class holds it. */
#define NATIVE_SLOT(function) ((void*)(uintptr_t)(function))

struct exchange_managed;
struct exchange_tensor;

/** The library's functions. */
extern accrt_api_t accrt_native_api;

/** Attributes that are asked for, interned. */
typedef struct native_names {
  PyObject* array_struct; /* __array_struct__ */
  PyObject* dtype;
  PyObject* requires_grad;
  PyObject* is_neg;
  PyObject* pointer; /* those of Tensor and Buffer */
  PyObject* handle;
  PyObject* owned;
  PyObject* offset_bytes;
  PyObject* tensor_dtype;
  PyObject* shape;
  PyObject* strides;
  PyObject* read_only;
  PyObject* external;
  PyObject* uses;
  PyObject* running;
  PyObject* submitted;
  PyObject* quick; /* of a lane of accrt.torch's */
  PyObject* in_flight;
  PyObject* keep;
  PyObject* cuda_array; /* __cuda_array_interface__, and what is in it */
  PyObject* array_shape;
  PyObject* array_strides;
  PyObject* typestr;
  PyObject* data;
  PyObject* version;
  PyObject* stream;
  PyObject* mask;
  PyObject* level; /* of torch.autograd.forward_ad */
} native_names_t;
extern native_names_t accrt_native_names;

/** An argument: a C tensor and what keeps its memory alive. `tensor` points into it. */
typedef struct native_view {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK];
  bool read_only;
  bool is_array;    /* numpy's: its numbers may be the bits of something else */
  bool is_external; /* a Tensor of another library's memory */
  PyObject* owner;  /* a new reference */
} native_view_t;

/** Takes a value apart, without a copy. On false there is nothing to give back, and no exception.
 * @param is_host the device's memory is the host's: tensors of other libraries may be used there.
 * @param gpu a Gpu, whose memory tensors of other libraries may be in; or NULL.
 */
bool accrt_native_take(PyObject* value, bool is_host, PyObject* gpu, native_view_t* out_view);

/** Numbers of a tuple, ACCRT_MAX_RANK at most; how many there are; -1: not that. */
Py_ssize_t accrt_native_numbers(PyObject* tuple, int64_t* out);

/** Learns a class: numpy's array, accrt's Tensor, or one with a table of DLPack's C exchange. They
 * are methods of the module. */
PyObject* accrt_native_learn_array(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_dtype(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_tensor(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_exchange(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_questions(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_cuda_array(PyObject* module, PyObject* arguments);
PyObject* accrt_native_learn_type_strings(PyObject* module, PyObject* arguments);
PyObject* accrt_native_connect_cuda(PyObject* module, PyObject* addresses);

/** What an array says of itself by the CUDA array interface. */
typedef struct native_cuda_array {
  uint64_t address;
  accrt_dtype_t dtype;
  uint32_t rank;
  int32_t device_id; /* of the GPU that has the memory; -1: none has */
  bool has_strides;
  bool has_stream;
  bool read_only;
  void* stream; /* whose work may still fill it */
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK]; /* in elements */
} native_cuda_array_t;

/** The same of a value of a class that is known for it. False, maybe with an exception: it is not,
 * or Python code has to say what is wrong. */
bool accrt_native_cuda_array(PyObject* value, native_cuda_array_t* out);
/** The same, whatever its class is. */
bool accrt_native_read_cuda_array(PyObject* value, native_cuda_array_t* out);
/** Whether two of CUDA's streams are one: 0 and 1 are both the legacy default stream. */
bool accrt_native_same_stream(const void* a, const void* b);

/** Adds the class Gpu. */
bool accrt_native_add_gpu(PyObject* module);
bool accrt_native_is_gpu(PyObject* object);
/** Puts a tensor's place in a Gpu's buffer into a view that has its shape; the Gpu's stream waits
 * for what the tensor's library has enqueued so far, if that is on another one: now, or for the
 * default stream when accrt_native_order is called. */
bool accrt_native_place_exchanged(PyObject* gpu, PyObject* value,
                                  const struct exchange_tensor* tensor, native_view_t* view);
bool accrt_native_place_array(PyObject* gpu, const native_cuda_array_t* array, native_view_t* view);
/** To be called before each submission of the session: has its stream wait for the default stream,
 * if a tensor of that was bound since the last one. False: Python code has to do it. */
bool accrt_native_order(PyObject* gpu);

/** What a call has given: the C tensor with a reference to its buffer, until Python code asks for
 * more. A Tensor made here has nothing else. */
typedef struct native_result {
  PyObject ob_base;
  PyObject* device;
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK];
} native_result_t;

/** A Tensor over what a call has given; NULL with an exception. */
PyObject* accrt_native_result(const accrt_tensor_t* tensor, PyObject* device);
/** The same of an object; NULL: it is none. */
const native_result_t* accrt_native_as_result(PyObject* object);
PyObject* accrt_native_learn_results(PyObject* module, PyObject* arguments);
PyObject* accrt_native_end(PyObject* module, PyObject* unused);
bool accrt_native_add_result(PyObject* module);

/** Adds the class Caller, and the class of what holds a tensor of another library. */
bool accrt_native_add_caller(PyObject* module);
bool accrt_native_add_held(PyObject* module);
/** Adds the classes Enqueuer and Quick. */
bool accrt_native_add_enqueuer(PyObject* module);
/** Adds the class Launcher. */
bool accrt_native_add_launcher(PyObject* module);
/** Adds the classes Entry and Shim, of torch's operators, and their functions. */
bool accrt_native_add_entry(PyObject* module);
bool accrt_native_add_shim(PyObject* module);
/** Adds what Python code says of torch's dispatcher. */
bool accrt_native_add_direct(PyObject* module);
/** Whether nothing is set up in this thread that torch's dispatcher would ask. */
bool accrt_native_is_quiet(void);
/** As above, and gradients are recorded where they are wanted: this thread has set up nothing. */
bool accrt_native_is_bare(void);
/** Calls an operator without the dispatcher: its result; NULL, maybe with an exception: nothing has
 * happened, and the dispatcher is to be asked.
 * @param shims for processors and for GPUs; others than objects of the class Shim: there is none.
 * @param values plain tensors that want no gradient, numbers, None.
 */
PyObject* accrt_native_call_directly(PyObject* const shims[2], PyObject* values);
/** The same of any values, if they are as those of the latest direct call were. */
PyObject* accrt_native_call_again(PyObject* const shims[2], PyObject* values);
/** Adds what XLA calls, and the functions that make it. */
bool accrt_native_add_xla(PyObject* module);

/** What this thread's latest error of Python's below a kernel in C says; "": there is none. */
const char* accrt_native_noted_text(void);
void accrt_native_forget_noted(void);

/** A new object that deletes a managed tensor with it; NULL with an exception, and then it is
 * deleted already. */
PyObject* accrt_native_hold(struct exchange_managed* managed);
/** Calls its deleter, which may be Python's: an exception that is on its way is put aside. */
void accrt_native_delete(struct exchange_managed* managed);
/** A host tensor of a class that offers DLPack's C exchange; NULL, without an exception: it is not
 * one. */
struct exchange_managed* accrt_native_exchanged(PyObject* value);

/** What a tensor of a class with DLPack's C exchange, or of a subclass of it, lends: good until the
 * tensor is changed. Its type; ACCRT_DTYPE_NONE, maybe with an exception: it lends nothing. */
accrt_dtype_t accrt_native_borrow(PyObject* value, struct exchange_tensor* out_tensor);

/** Whether a gradient of a tensor of torch's class, or of one that means the same, is wanted.
 * Unknown: maybe with an exception. */
typedef enum native_answer { ANSWER_NO, ANSWER_YES, ANSWER_UNKNOWN } native_answer_t;
native_answer_t accrt_native_wants_gradient(PyObject* value);
/** Whether the numbers of a tensor that lends are the negatives of what lies in its memory. */
bool accrt_native_is_negative(PyObject* value);
/** The current stream of the library that a tensor is of, on a device. False, maybe with an
 * exception: it says none. */
bool accrt_native_current_stream(PyObject* value, int32_t device_type, int32_t device_id,
                                 void** out_stream);

/** A method of the module: keeps an object until the library lets go of its memory. */
PyObject* accrt_native_keep(PyObject* module, PyObject* object);
/** The process ends: what the library lets go of stays. */
void accrt_native_keep_end(void);

/** Methods of the module: the table that accrt.Tensor offers; a capsule of a tensor of others. */
PyObject* accrt_native_offer(PyObject* module, PyObject* arguments);
PyObject* accrt_native_capsule(PyObject* module, PyObject* value);

#endif /* ACCRT_PYTHON_NATIVE_NATIVE_H_ */
