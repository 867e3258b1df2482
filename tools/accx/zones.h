/* tools/accx/zones.h - memory of one argument of a kernel that is checked: between red zones, whose
 * bytes are known, or at the edge of pages that nothing may touch. It may not use the library. */
#ifndef ACCX_ZONES_H_
#define ACCX_ZONES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a red zone, and of the untouchable pages before and behind both. */
#define ACCX_ZONE_BYTES ((size_t)64 << 10)
#define ACCX_GUARD_BYTES ((size_t)16 << 20)

typedef enum accx_edge {
  ACCX_EDGE_NONE,   /* a red zone on both sides; 64-byte aligned */
  ACCX_EDGE_AFTER,  /* the first byte behind the argument is untouchable */
  ACCX_EDGE_BEFORE, /* the last byte before it is */
} accx_edge_t;

typedef struct accx_zones {
  char* base; /* of the whole reservation */
  size_t reserved_bytes;
  size_t size_bytes;       /* of the argument */
  char* data;              /* the argument, as it was laid last */
  char *readable, *end;    /* what may be touched: zones and argument */
  unsigned char zone_byte; /* what the zones hold */
} accx_zones_t;

/* Reserves memory for an argument. False: there is none to be had. */
bool accx_zones_create(size_t size_bytes, accx_zones_t* out_zones);
void accx_zones_free(accx_zones_t* zones);
/* Lays the argument out with this content (size_bytes), and its zones. With an edge, it can only be
 * read if `locked`. False: the pages could not be set. */
bool accx_zones_lay(accx_zones_t* zones, accx_edge_t edge, bool locked, unsigned char zone_byte,
                    const void* content);
/* True when a byte of the zones has changed. *out_byte counts from the argument's beginning: the
 * first one behind it, or else the nearest one before it (negative). */
bool accx_zones_changed(const accx_zones_t* zones, int64_t* out_byte);
/* True when an address lies in the reservation. Safe in a signal handler. */
bool accx_zones_hold(const accx_zones_t* zones, const void* address, int64_t* out_byte);

#endif /* ACCX_ZONES_H_ */
