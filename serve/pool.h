/* serve/pool.h - the pages of the KV cache: who holds them, and which goes next. All O(1).
 *
 * A page (block) is in one of these states:
 *   held     `refs` sequences have it in their block lists
 *   pending  given back, but a step in flight may still use it: it waits for that step's end
 *   free     in the list of free blocks; with contents (keyed) if the prefix cache knows it
 * The free list is in the order in which blocks are taken: those without contents first, then the
 * least recently used. A block that is taken loses its contents, and its generation counts up, so
 * that (block, generation) names contents once and for all.
 *
 * It allocates when it is made and never again. Externally synchronized.
 */
#ifndef ACCRT_SERVE_POOL_H_
#define ACCRT_SERVE_POOL_H_

#include "serve/base.h"

#define ACCSV_NO_BLOCK (-1)

/* The end of a chain of blocks with contents; block ACCSV_NO_BLOCK: the chain is empty. */
typedef struct accsv_chain {
  int32_t block;
  uint32_t generation;
} accsv_chain_t;
#define ACCSV_CHAIN_EMPTY ((accsv_chain_t){ACCSV_NO_BLOCK, 0})

struct accsv_salt;

/* A line of the processor's cache: with the prefix cache's entry, since who takes a block forgets
 * its contents. */
typedef struct accsv_block {
  _Alignas(64) int32_t next;
  int32_t previous; /* both in the free or the pending list; ACCSV_NO_BLOCK at its ends */
  uint32_t refs;
  uint32_t generation;
  uint64_t step; /* the last step that uses it; it is pending until that has ended */
  uint8_t list;  /* ACCSV_LIST_* */
  bool keyed;    /* the prefix cache knows its contents */
  /* Of the prefix cache (serve/prefix.h). */
  uint32_t hash;
  accsv_chain_t parent;
  uint64_t salt; /* of a first block; else 0 */
  struct accsv_salt* text;
  uint64_t written; /* the step that writes its contents */
} accsv_block_t;
_Static_assert(sizeof(accsv_block_t) == 64, "a block is a line");

enum { ACCSV_LIST_NONE, ACCSV_LIST_FREE, ACCSV_LIST_PENDING };

typedef struct accsv_list {
  int32_t head, tail;
  uint32_t count;
} accsv_list_t;

typedef struct accsv_pool {
  const accrt_allocator_t* allocator;
  accsv_block_t* blocks;
  uint32_t count;
  accsv_list_t free, pending;
  uint32_t cached; /* of the free ones: with contents */
  uint64_t ended;  /* the last step that has ended */
  /* Called when a keyed block is taken: the cache forgets it. */
  void (*forget)(void* self, int32_t block);
  void* self;
} accsv_pool_t;

accrt_status_t accsv_pool_init(accsv_pool_t* pool, const accrt_allocator_t* allocator,
                               uint32_t count);
void accsv_pool_deinit(accsv_pool_t* pool);

static inline uint32_t accsv_pool_available(const accsv_pool_t* pool) {
  return pool->free.count;
}
/* Takes a block: its contents are forgotten and it is held once. There must be one. */
int32_t accsv_pool_take(accsv_pool_t* pool);
/* Holds a block with contents once more, wherever it is. */
void accsv_pool_touch(accsv_pool_t* pool, int32_t block);
/* Drops one hold. The last one gives the block back once `step` has ended. */
void accsv_pool_drop(accsv_pool_t* pool, int32_t block, uint64_t step);
/* Steps up to `step` have ended: blocks that waited for them are free. */
void accsv_pool_end_step(accsv_pool_t* pool, uint64_t step);
/* The contents are gone: the block may stay where it is. */
void accsv_pool_unkey(accsv_pool_t* pool, int32_t block);
/* NULL, or what is wrong: free + pending + held is all, and lists and counts agree. O(blocks). */
const char* accsv_pool_check(const accsv_pool_t* pool);

#endif /* ACCRT_SERVE_POOL_H_ */
