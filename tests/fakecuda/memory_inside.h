/* tests/fakecuda/memory_inside.h - what the two halves of the stand-in's memory share: stretches of
 * addresses (memory.c), and the reservations of virtual memory management (memory_virtual.c). */
#ifndef ACCRT_TESTS_FAKECUDA_MEMORY_INSIDE_H_
#define ACCRT_TESTS_FAKECUDA_MEMORY_INSIDE_H_

#include "fake.h"

#define GRANULARITY (UINT64_C(2) << 20)

typedef enum area_kind {
  AREA_DEVICE,
  AREA_MAPPED,
  AREA_PINNED,
  AREA_REGISTERED,
  AREA_IPC
} area_kind_t;

/* A stretch of addresses that leads somewhere. */
typedef struct area {
  area_kind_t kind;
  uint64_t base;
  uint64_t size_bytes; /* as asked for */
  uint64_t span_bytes; /* mapped */
  unsigned char* view; /* where copies reach it; host memory: itself */
  int device;
  uint32_t access; /* bit n: device n may */
  CUcontext context;
  uint64_t id;
  unsigned flags;
  int fd; /* IPC-capable: what others open; else -1 */
  struct physical* physical;
} area_t;

/* What cuMemCreate makes. */
typedef struct physical {
  struct physical* next;
  uint64_t size_bytes;
  int device;
  int fd;
  uint32_t references; /* the handle's owners and the mappings */
  uint32_t owners;
  uint64_t id;
  CUmemAllocationProp properties;
} physical_t;

typedef struct reservation {
  struct reservation* next;
  uint64_t base;
  uint64_t size_bytes;
} reservation_t;

extern area_t* areas; /* sorted by base */
extern uint32_t area_count;
extern reservation_t* reservations;

/* The first whose base is above. */
uint32_t area_index(uint64_t address);
area_t* area_find(uint64_t address);
area_t* area_add(const area_t* area);
void area_free(area_t* area);
/* Addresses that nobody had before, as long as there are any; 0: used up. */
uint64_t arena_take(uint64_t size_bytes, uint64_t alignment);

int pages_create(int device, uint64_t size_bytes);
/* Which device's pages these are, or -1: no pages of ours. */
int pages_device(int fd, uint64_t* out_size_bytes);
unsigned char* pages_view(int fd, uint64_t size_bytes);
void poison(unsigned char* view, uint64_t size_bytes);
bool charge(int device, uint64_t size_bytes);

reservation_t* reservation_find(uint64_t address, uint64_t size_bytes);
/* The first mapping that touches the range, or NULL. */
area_t* mapped_within(uint64_t address, uint64_t size_bytes);

#endif /* ACCRT_TESTS_FAKECUDA_MEMORY_INSIDE_H_ */
