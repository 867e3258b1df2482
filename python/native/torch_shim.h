/* python/native/torch_shim.h - an operator of torch's in C, as torch_shim.c makes it and
 * torch_direct.c calls it.
 */
#ifndef ACCRT_PYTHON_NATIVE_TORCH_SHIM_H_
#define ACCRT_PYTHON_NATIVE_TORCH_SHIM_H_

#include "python/native/native.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST_INPUTS = 16, MOST_RESULTS = 8, MOST_KNOWN = 16, MOST_LANES = 64 };
enum { NO_TENSOR = 254, NOTHING = 255 }; /* as ranks: a number; nothing is given */
enum { KIND_TENSOR = 0, KIND_SCALAR = 1, KIND_OPTIONAL = 2 };

/* What an argument is declared as. */
typedef struct declared {
  int kind;
  int32_t type; /* torch's number */
  accrt_dtype_t dtype;
} declared_t;

/* A shape; a number has it in shape[0]. */
typedef struct sizes {
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
} sizes_t;

/* Shapes of inputs that were seen, and those of the results. `specs`: what the maker is called with
 * for each result, a tuple of tuples; or NULL. `check`: says whether tensors are as those of a call
 * were, in all that torch's dispatcher looks at; NULL: there was no such call; None: nothing
 * does. `misses`: calls with these shapes, one behind the other, that it said no to or that it was
 * not there for; after `patience` of them it is made again. */
typedef struct known_shapes {
  sizes_t inputs[MOST_INPUTS];
  sizes_t results[MOST_RESULTS];
  PyObject* specs;
  PyObject* check;
  uint32_t misses, patience;
} known_shapes_t;

/* A tensor that an input of a call is bound to. */
typedef struct bound {
  bool is_bound;
  const void* data;
  const accrt_buffer_t* buffer;
  uint64_t base;
  sizes_t sizes;
} bound_t;

/* A call of a session of its own. One thread has it at a time. */
typedef struct lane {
  accrt_call_t* call; /* NULL: it failed, and is used no more */
  bound_t* bound;     /* of each input */
  void* stream;
  atomic_bool is_taken;
} lane_t;

/* An operator on one kind of device. torch keeps its kernel for ever, so it is never freed. */
typedef struct shim {
  char* name;
  char* fallback;
  int32_t device; /* torch's number */
  bool is_gpu;
  size_t inputs_count, results_count;
  declared_t inputs[MOST_INPUTS], results[MOST_RESULTS];
  PyObject* maker;        /* makes a result for Python callers, on the current device; or NULL */
  PyObject* checker;      /* of arguments that are plain tensors: what is in `check`; or NULL */
  known_shapes_t* latest; /* of a call of Python's; under the interpreter's lock, as what learns */
  int (*is_capturing)(void* stream, int* out_status); /* cuStreamIsCapturing */

  pthread_mutex_t mutex;        /* of what follows */
  _Atomic int32_t device_index; /* -1: none is known */
  accrt_buffer_t* buffer;
  uint64_t base; /* of the buffer */
  size_t known_count, next_known, lanes_count;
  known_shapes_t* known[MOST_KNOWN];
  lane_t lanes[MOST_LANES];
} shim_t;

/* An input of a call. */
typedef struct given {
  void* tensor; /* NULL: there is none */
  void* data;
  sizes_t sizes;
} given_t;

/* What a call on a GPU is bound to. */
typedef struct place {
  void* stream;
  accrt_buffer_t* buffer;
  uint64_t base;
} place_t;

/** The operator of an object of the class Shim; NULL: the object is none. */
shim_t* accrt_native_shim_of(PyObject* object);

/** Row after row, without gaps: strides of dimensions of one element may be anything. */
bool accrt_native_is_contiguous(const sizes_t* sizes, const int64_t* strides);
/** The current stream, of the shim's device alone; false: it is captured, or another is current. */
bool accrt_native_shim_stream(const shim_t* shim, void** out_stream);
/** The results' shapes, and a lane that is the caller's until it is given back. NULL: these shapes
 * are new, or there is no lane.
 * @param known    the shapes, for who knows them and has the interpreter's lock; or NULL.
 * @param out_specs a new reference or NULL, for who has the interpreter's lock; others give NULL.
 */
lane_t* accrt_native_take_lane(shim_t* shim, const known_shapes_t* known, const given_t* given,
                               place_t* place, sizes_t* results, PyObject** out_specs);
/** The shapes of a call; NULL: they are new. For who has the interpreter's lock. */
known_shapes_t* accrt_native_find_known(shim_t* shim, const given_t* given);
void accrt_native_give_lane(lane_t* lane, bool has_failed);
/** Binds an argument. False: the library does not take it. */
bool accrt_native_bind_tensor(const shim_t* shim, const place_t* place, accrt_call_t* call,
                              size_t index, const given_t* given, accrt_dtype_t dtype);
/** Binds the inputs; those that are bound to the same memory already stay so. */
bool accrt_native_bind_inputs(const shim_t* shim, const place_t* place, const lane_t* lane,
                              const given_t* given);
/** Runs what is bound, on a processor to its end. */
bool accrt_native_run_bound(const shim_t* shim, accrt_call_t* call);

#endif /* ACCRT_PYTHON_NATIVE_TORCH_SHIM_H_ */
