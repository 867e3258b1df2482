/* python/native/exchange.h - DLPack 1.x and its C exchange API as they lie in memory: our own
 * declarations of a published ABI (github.com/dmlc/dlpack). tests/python/test_native.py holds
 * them against the headers that are installed.
 *
 * It may not include anything of the library.
 */
#ifndef ACCRT_PYTHON_NATIVE_EXCHANGE_H_
#define ACCRT_PYTHON_NATIVE_EXCHANGE_H_

#include <stddef.h>
#include <stdint.h>

#define EXCHANGE_MAJOR 1u
#define EXCHANGE_MINOR 3u
#define EXCHANGE_CAPSULE "dlpack_exchange_api"

enum { EXCHANGE_CPU = 1 };
enum {
  EXCHANGE_INT = 0,
  EXCHANGE_UINT = 1,
  EXCHANGE_FLOAT = 2,
  EXCHANGE_BFLOAT = 4,
  EXCHANGE_BOOL = 6,
  EXCHANGE_F8E4M3FN = 10,
  EXCHANGE_F8E5M2 = 12,
  EXCHANGE_F8E8M0 = 14,
  EXCHANGE_F4E2M1 = 17,
};
#define EXCHANGE_READ_ONLY UINT64_C(1)

typedef struct exchange_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: row-major */
  uint64_t byte_offset;
} exchange_tensor_t;

typedef struct exchange_managed {
  uint32_t major;
  uint32_t minor;
  void* manager_context;
  void (*deleter)(struct exchange_managed* self); /* may be NULL */
  uint64_t flags;
  exchange_tensor_t tensor;
} exchange_managed_t;

typedef struct exchange_header {
  uint32_t major;
  uint32_t minor;
  struct exchange_header* prev_api;
} exchange_header_t;

typedef void exchange_set_error_fn(void* context, const char* kind, const char* message);

/* Every function returns 0, or -1 with a Python exception (the first: as set_error got it). */
typedef struct exchange_api {
  exchange_header_t header;
  int (*allocate)(exchange_tensor_t* prototype, exchange_managed_t** out, void* error_context,
                  exchange_set_error_fn* set_error);
  int (*from_object)(void* object, exchange_managed_t** out);
  int (*to_object)(exchange_managed_t* managed, void** out_object);
  int (*borrow)(void* object, exchange_tensor_t* out); /* may be NULL */
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out_stream);
} exchange_api_t;

_Static_assert(sizeof(exchange_tensor_t) == 48 && offsetof(exchange_tensor_t, byte_offset) == 40,
               "DLTensor");
_Static_assert(sizeof(exchange_managed_t) == 80 && offsetof(exchange_managed_t, tensor) == 32,
               "DLManagedTensorVersioned");
_Static_assert(sizeof(exchange_api_t) == 56 && offsetof(exchange_api_t, current_stream) == 48,
               "DLPackExchangeAPI");

#endif /* ACCRT_PYTHON_NATIVE_EXCHANGE_H_ */
