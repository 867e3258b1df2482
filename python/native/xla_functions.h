/* python/native/xla_functions.h - what XLA's calls of foreign functions look like in C: our own
 * declarations of a published ABI (XLA's FFI, version 0), of which only what is used has a name.
 * tests/python/test_jax.py compares every size, offset and number with the header that jaxlib
 * ships. Members are only added at the end of a struct, whose size says how far it goes.
 */
#ifndef ACCRT_PYTHON_NATIVE_XLA_FUNCTIONS_H_
#define ACCRT_PYTHON_NATIVE_XLA_FUNCTIONS_H_

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0 };
enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_BUFFER = 1 };     /* of an argument or a result */
enum { XLA_ATTR_ARRAY = 1 }; /* of an attribute */

/** Numbers of what can go wrong. */
enum {
  XLA_CANCELLED = 1,
  XLA_INVALID_ARGUMENT = 3,
  XLA_NOT_FOUND = 5,
  XLA_PERMISSION_DENIED = 7,
  XLA_RESOURCE_EXHAUSTED = 8,
  XLA_FAILED_PRECONDITION = 9,
  XLA_UNIMPLEMENTED = 12,
  XLA_INTERNAL = 13,
};

/** X(XLA's name of a type, its number, ours) */
#define XLA_TYPES(X)                                                                               \
  X(PRED, 1, BOOL)                                                                                 \
  X(S8, 2, I8)                                                                                     \
  X(S16, 3, I16)                                                                                   \
  X(S32, 4, I32)                                                                                   \
  X(S64, 5, I64)                                                                                   \
  X(U8, 6, U8)                                                                                     \
  X(U16, 7, U16)                                                                                   \
  X(U32, 8, U32)                                                                                   \
  X(U64, 9, U64)                                                                                   \
  X(F16, 10, F16)                                                                                  \
  X(F32, 11, F32)                                                                                  \
  X(F64, 12, F64)                                                                                  \
  X(BF16, 16, BF16)                                                                                \
  X(F8E5M2, 19, F8E5M2)                                                                            \
  X(F8E4M3FN, 20, F8E4M3FN)                                                                        \
  X(F8E8M0FNU, 33, F8E8M0)
#define XLA_TYPE_NUMBER(name, number, ours) XLA_##name = number,
enum { XLA_TYPES(XLA_TYPE_NUMBER) };
#undef XLA_TYPE_NUMBER

typedef struct xla_extension {
  size_t struct_size;
  int32_t type;
  struct xla_extension* next;
} xla_extension_t;

typedef struct xla_version {
  size_t struct_size;
  xla_extension_t* extensions;
  int major;
  int minor;
} xla_version_t;

typedef struct xla_error xla_error_t;
typedef struct xla_context xla_context_t;

typedef struct xla_error_args {
  size_t struct_size;
  xla_extension_t* extensions;
  const char* message;
  int32_t code;
} xla_error_args_t;

typedef struct xla_stream_args {
  size_t struct_size;
  xla_extension_t* extensions;
  xla_context_t* context;
  void* stream; /* is filled */
} xla_stream_args_t;

typedef struct xla_ordinal_args {
  size_t struct_size;
  xla_extension_t* extensions;
  xla_context_t* context;
  int32_t ordinal; /* is filled */
} xla_ordinal_args_t;

/** XLA's functions. */
typedef struct xla_api {
  size_t struct_size;
  xla_extension_t* extensions;
  xla_version_t version;
  const void* internal;
  xla_error_t* (*error_create)(xla_error_args_t* args);
  void* error_get_message;
  void (*error_destroy)(void* args);
  void* handler_register;
  xla_error_t* (*stream_get)(xla_stream_args_t* args);
  void* others[12];
  xla_error_t* (*ordinal_get)(xla_ordinal_args_t* args);
} xla_api_t;

typedef struct xla_error_destroy_args {
  size_t struct_size;
  xla_extension_t* extensions;
  xla_error_t* error;
} xla_error_destroy_args_t;

typedef struct xla_buffer {
  size_t struct_size;
  xla_extension_t* extensions;
  int32_t type;
  void* data;
  int64_t rank;
  int64_t* dims;
} xla_buffer_t;

typedef struct xla_array {
  int32_t type;
  size_t count;
  void* data;
} xla_array_t;

/** Arguments; and results in the same way. */
typedef struct xla_values {
  size_t struct_size;
  xla_extension_t* extensions;
  int64_t count;
  int32_t* kinds;
  void** values;
} xla_values_t;

typedef struct xla_attributes {
  size_t struct_size;
  xla_extension_t* extensions;
  int64_t count;
  int32_t* kinds;
  void** names;
  void** values;
} xla_attributes_t;

typedef struct xla_frame {
  size_t struct_size;
  xla_extension_t* extensions;
  const xla_api_t* api;
  xla_context_t* context;
  int32_t stage;
  xla_values_t arguments;
  xla_values_t results;
  xla_attributes_t attributes;
} xla_frame_t;

/** What a handler is asked for when it is registered. */
typedef struct xla_metadata {
  size_t struct_size;
  xla_version_t version; /* is filled */
} xla_metadata_t;

typedef struct xla_metadata_extension {
  xla_extension_t base;
  xla_metadata_t* metadata;
} xla_metadata_extension_t;

typedef xla_error_t* xla_handler_t(xla_frame_t* frame);

#endif /* ACCRT_PYTHON_NATIVE_XLA_FUNCTIONS_H_ */
