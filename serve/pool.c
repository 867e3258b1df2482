/* serve/pool.c - see serve/pool.h. */
#include "serve/pool.h"

static void put_back(accsv_pool_t* pool, accsv_list_t* list, uint8_t name, int32_t block) {
  accsv_block_t* one = &pool->blocks[block];
  one->list = name;
  one->next = ACCSV_NO_BLOCK;
  one->previous = list->tail;
  if (list->tail != ACCSV_NO_BLOCK)
    pool->blocks[list->tail].next = block;
  else
    list->head = block;
  list->tail = block;
  ++list->count;
}

static void put_front(accsv_pool_t* pool, accsv_list_t* list, uint8_t name, int32_t block) {
  accsv_block_t* one = &pool->blocks[block];
  one->list = name;
  one->previous = ACCSV_NO_BLOCK;
  one->next = list->head;
  if (list->head != ACCSV_NO_BLOCK)
    pool->blocks[list->head].previous = block;
  else
    list->tail = block;
  list->head = block;
  ++list->count;
}

static void unlink_block(accsv_pool_t* pool, int32_t block) {
  accsv_block_t* one = &pool->blocks[block];
  accsv_list_t* list = one->list == ACCSV_LIST_FREE ? &pool->free : &pool->pending;
  ACCRT_ASSERT(one->list != ACCSV_LIST_NONE && list->count > 0);
  if (one->previous != ACCSV_NO_BLOCK)
    pool->blocks[one->previous].next = one->next;
  else
    list->head = one->next;
  if (one->next != ACCSV_NO_BLOCK)
    pool->blocks[one->next].previous = one->previous;
  else
    list->tail = one->previous;
  if (one->list == ACCSV_LIST_FREE && one->keyed)
    --pool->cached;
  --list->count;
  one->list = ACCSV_LIST_NONE;
}

/* What has contents goes last; what has none is of no use and goes first. */
static void make_free(accsv_pool_t* pool, int32_t block) {
  if (!pool->blocks[block].keyed) {
    put_front(pool, &pool->free, ACCSV_LIST_FREE, block);
    return;
  }
  put_back(pool, &pool->free, ACCSV_LIST_FREE, block);
  ++pool->cached;
}

accrt_status_t accsv_pool_init(accsv_pool_t* pool, const accrt_allocator_t* allocator,
                               uint32_t count) {
  *pool = (accsv_pool_t){.allocator = allocator, .count = count};
  pool->free.head = pool->free.tail = ACCSV_NO_BLOCK;
  pool->pending = pool->free;
  ACCRT_TRY(ACCSV_NEW(allocator, count, &pool->blocks));
  for (uint32_t i = 0; i < count; ++i)
    put_back(pool, &pool->free, ACCSV_LIST_FREE, (int32_t)i);
  return ACCRT_OK;
}

void accsv_pool_deinit(accsv_pool_t* pool) {
  ACCSV_FREE(pool->allocator, pool->blocks, pool->count);
  pool->blocks = NULL;
}

void accsv_pool_unkey(accsv_pool_t* pool, int32_t block) {
  accsv_block_t* one = &pool->blocks[block];
  if (!one->keyed)
    return;
  if (one->list == ACCSV_LIST_FREE)
    --pool->cached;
  one->keyed = false;
  ++one->generation;
}

int32_t accsv_pool_take(accsv_pool_t* pool) {
  const int32_t block = pool->free.head;
  ACCRT_ASSERT(block != ACCSV_NO_BLOCK);
  accsv_block_t* one = &pool->blocks[block];
  unlink_block(pool, block);
  if (one->keyed) {
    pool->forget(pool->self, block);
    one->keyed = false;
  }
  ++one->generation;
  one->refs = 1;
  return block;
}

void accsv_pool_touch(accsv_pool_t* pool, int32_t block) {
  accsv_block_t* one = &pool->blocks[block];
  if (one->refs++ == 0)
    unlink_block(pool, block);
}

void accsv_pool_drop(accsv_pool_t* pool, int32_t block, uint64_t step) {
  accsv_block_t* one = &pool->blocks[block];
  ACCRT_ASSERT(one->refs > 0);
  if (step > one->step)
    one->step = step;
  if (--one->refs > 0)
    return;
  if (one->step <= pool->ended) {
    make_free(pool, block);
    return;
  }
  put_back(pool, &pool->pending, ACCSV_LIST_PENDING, block);
}

void accsv_pool_end_step(accsv_pool_t* pool, uint64_t step) {
  pool->ended = step;
  /* Steps count up, but a block may have been dropped by an earlier step's holder after a later
   * one's: the list is nearly in order, and what is not waits a step longer. */
  while (pool->pending.head != ACCSV_NO_BLOCK && pool->blocks[pool->pending.head].step <= step) {
    const int32_t block = pool->pending.head;
    unlink_block(pool, block);
    make_free(pool, block);
  }
}

static const char* check_list(const accsv_pool_t* pool, const accsv_list_t* list, uint8_t name,
                              uint32_t* out_keyed) {
  uint32_t count = 0, keyed = 0;
  int32_t previous = ACCSV_NO_BLOCK;
  for (int32_t block = list->head; block != ACCSV_NO_BLOCK; block = pool->blocks[block].next) {
    const accsv_block_t* one = &pool->blocks[block];
    if (one->previous != previous || one->list != name)
      return "a list's links do not agree";
    if (one->refs != 0)
      return "a block in a list is held";
    if (++count > pool->count)
      return "a list has a circle";
    keyed += one->keyed;
    previous = block;
  }
  *out_keyed = keyed;
  return count != list->count || list->tail != previous ? "a list's count is wrong" : NULL;
}

const char* accsv_pool_check(const accsv_pool_t* pool) {
  uint32_t keyed = 0, pending_keyed = 0, held = 0;
  const char* wrong = check_list(pool, &pool->free, ACCSV_LIST_FREE, &keyed);
  if (wrong == NULL)
    wrong = check_list(pool, &pool->pending, ACCSV_LIST_PENDING, &pending_keyed);
  if (wrong != NULL)
    return wrong;
  for (uint32_t i = 0; i < pool->count; ++i) {
    held += pool->blocks[i].refs > 0;
    if ((pool->blocks[i].refs > 0) != (pool->blocks[i].list == ACCSV_LIST_NONE))
      return "a block is neither held nor in a list";
  }
  if (keyed != pool->cached)
    return "the count of cached blocks is wrong";
  return held + pool->free.count + pool->pending.count != pool->count
             ? "free + pending + held is not all"
             : NULL;
}
