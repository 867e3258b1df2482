/* serve/adapters.h - the LoRA adapters of an engine: which name has which place of the model, and
 * how many requests use it. The stepping thread puts them into the model, between steps.
 *
 * A request holds its adapter until no step in flight has it: so a place is free when no request
 * uses it. Each load has a number of its own, which is part of the prefix cache's salt.
 */
#ifndef ACCRT_SERVE_ADAPTERS_H_
#define ACCRT_SERVE_ADAPTERS_H_

#include <stdatomic.h>

#include "accrt/serve.h"
#include "serve/base.h"

typedef struct accsv_adapter {
  uint32_t place;
  atomic_uint users; /* requests; grows under the lock alone, while `ready` */
  /* Under the engine's lock, but for who has it as a user. */
  char* name; /* NULL: the place is free */
  size_t name_bytes;
  uint64_t number; /* of the load; never used again */
  bool ready;      /* requests may name it */
  bool leaving;    /* a thread waits to remove it */
} accsv_adapter_t;

/* What the stepping thread is to put into the model; it lies with who waits for it. */
typedef struct accsv_order {
  uint32_t place;
  const accrt_serve_adapter_tensor_t* tensors;
  uint32_t tensor_count;
  bool done;
  accrt_status_t status;
  char message[512]; /* of a failure */
  struct accsv_order* next;
} accsv_order_t;

typedef struct accsv_adapters {
  accsv_adapter_t* places; /* `count` of them */
  uint32_t count;
  /* Under the engine's lock. */
  uint32_t loaded;  /* ready ones */
  uint32_t waiting; /* threads that wait until an adapter is not used */
  uint64_t numbers; /* that were given to loads */
  uint64_t loads;   /* that succeeded */
  accsv_order_t* orders;
} accsv_adapters_t;

accrt_status_t accsv_adapters_init(accsv_adapters_t* adapters, const accrt_allocator_t* allocator,
                                   uint32_t count);
void accsv_adapters_deinit(accsv_adapters_t* adapters, const accrt_allocator_t* allocator);

struct accrt_serve_engine;
/* The adapter of that name, held for a request; NULL: there is none. Takes the lock. */
accsv_adapter_t* accsv_adapter_hold(struct accrt_serve_engine* engine, const char* name);
/* NULL is allowed. */
void accsv_adapter_drop(accsv_adapter_t* adapter);
/* Wakes those who wait until an adapter is not used. Takes the lock. */
void accsv_adapters_notify(struct accrt_serve_engine* engine);
/* Executes what was taken from `orders`. Of the stepping thread; whether there was anything. */
bool accsv_adapters_step(struct accrt_serve_engine* engine, accsv_order_t* orders);

#endif /* ACCRT_SERVE_ADAPTERS_H_ */
