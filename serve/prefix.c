/* serve/prefix.c - see serve/prefix.h. */
#include "serve/prefix.h"

#include <string.h>

#define MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)

static uint64_t fold(uint64_t a, uint64_t b) {
  const __uint128_t product = (__uint128_t)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Two tokens at a time, as wyhash and XXH3 do. The seed is random, so that no
 * prompt can be made that fills one bucket. */
static uint32_t hash_of(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                        const int32_t* tokens) {
  uint64_t hash = prefix->seed ^ fold(salt + MULTIPLIER,
                                      (uint64_t)(uint32_t)parent.block << 32 | parent.generation);
  uint32_t i = 0;
  for (; i + 2 <= prefix->page_size; i += 2) {
    uint64_t pair;
    memcpy(&pair, tokens + i, sizeof pair);
    hash = fold(hash ^ pair, MULTIPLIER);
  }
  if (i < prefix->page_size)
    hash = fold(hash ^ (uint32_t)tokens[i], MULTIPLIER);
  return (uint32_t)accsv_mix(hash);
}

static int32_t* bucket_of(const accsv_prefix_t* prefix, uint32_t hash) {
  return &prefix->buckets[hash & (prefix->bucket_count - 1)];
}

/* Blocks are taken in the order of the free list: what the next ones need is
 * fetched meanwhile. */
static void fetch_next(const accsv_prefix_t* prefix) {
  const accsv_pool_t* pool = prefix->pool;
  const int32_t next = pool->free.head;
  if (next == ACCSV_NO_BLOCK)
    return;
  __builtin_prefetch(bucket_of(prefix, prefix->entries[next].hash), 1);
  const int32_t later = pool->blocks[next].next;
  if (later == ACCSV_NO_BLOCK)
    return;
  __builtin_prefetch(&prefix->entries[later], 1);
  __builtin_prefetch(&pool->blocks[later], 1);
}

static void forget(void* self, int32_t block) {
  accsv_prefix_t* prefix = self;
  accsv_entry_t* entry = &prefix->entries[block];
  fetch_next(prefix);
  int32_t* place = bucket_of(prefix, entry->hash);
  while (*place != block) {
    ACCSV_ASSERT(*place != ACCSV_NO_BLOCK);
    place = &prefix->entries[*place].next;
  }
  *place = entry->next;
  accsv_prefix_drop_salt(prefix, entry->text);
  entry->text = NULL;
}

accrt_status_t accsv_prefix_init(accsv_prefix_t* prefix, accsv_pool_t* pool, uint32_t page_size,
                                 uint64_t seed) {
  *prefix = (accsv_prefix_t){.pool = pool, .page_size = page_size, .seed = seed};
  pool->forget = forget;
  pool->self = prefix;
  uint32_t buckets = 16;
  while (buckets < pool->count && buckets < UINT32_C(1) << 30)
    buckets *= 2;
  prefix->bucket_count = buckets;
  accrt_status_t status = ACCSV_NEW(pool->allocator, pool->count, &prefix->entries);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(pool->allocator, (size_t)pool->count * page_size, &prefix->tokens);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(pool->allocator, buckets, &prefix->buckets);
  if (status != ACCRT_OK) {
    accsv_prefix_deinit(prefix);
    return status;
  }
  memset(prefix->buckets, 0xFF, (size_t)buckets * sizeof *prefix->buckets);
  return ACCRT_OK;
}

void accsv_prefix_deinit(accsv_prefix_t* prefix) {
  const accrt_allocator_t* allocator = prefix->pool->allocator;
  if (prefix->buckets != NULL)
    accsv_prefix_clear(prefix);
  ACCSV_FREE(allocator, prefix->entries, prefix->pool->count);
  ACCSV_FREE(allocator, prefix->tokens, (size_t)prefix->pool->count * prefix->page_size);
  ACCSV_FREE(allocator, prefix->buckets, prefix->bucket_count);
  prefix->entries = NULL;
  prefix->tokens = NULL;
  prefix->buckets = NULL;
}

static int32_t find_hashed(const accsv_prefix_t* prefix, uint32_t hash, accsv_chain_t parent,
                           uint64_t salt, const int32_t* tokens) {
  const size_t bytes = prefix->page_size * sizeof *tokens;
  int32_t block = *bucket_of(prefix, hash);
  for (; block != ACCSV_NO_BLOCK; block = prefix->entries[block].next) {
    const accsv_entry_t* entry = &prefix->entries[block];
    if (entry->hash == hash && entry->parent.block == parent.block &&
        entry->parent.generation == parent.generation && entry->salt == salt &&
        memcmp(prefix->tokens + (size_t)block * prefix->page_size, tokens, bytes) == 0)
      break;
  }
  return block;
}

/* The salt is part of the first block alone: the others follow from it. */
static uint64_t salt_after(accsv_chain_t parent, uint64_t salt) {
  return parent.block == ACCSV_NO_BLOCK ? salt : 0;
}

int32_t accsv_prefix_find(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                          const int32_t* tokens) {
  salt = salt_after(parent, salt);
  return find_hashed(prefix, hash_of(prefix, parent, salt, tokens), parent, salt, tokens);
}

accsv_chain_t accsv_prefix_insert(accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                                  accsv_salt_t* text, const int32_t* tokens, int32_t block) {
  accsv_pool_t* pool = prefix->pool;
  if (parent.block != ACCSV_NO_BLOCK &&
      (pool->blocks[parent.block].generation != parent.generation ||
       !pool->blocks[parent.block].keyed))
    return ACCSV_CHAIN_EMPTY;
  salt = salt_after(parent, salt);
  const uint32_t hash = hash_of(prefix, parent, salt, tokens);
  const int32_t other = find_hashed(prefix, hash, parent, salt, tokens);
  if (other != ACCSV_NO_BLOCK)
    return accsv_prefix_chain(prefix, other);
  ACCSV_ASSERT(!pool->blocks[block].keyed && pool->blocks[block].refs > 0);
  accsv_entry_t* entry = &prefix->entries[block];
  int32_t* place = bucket_of(prefix, hash);
  *entry = (accsv_entry_t){.hash = hash, .salt = salt, .parent = parent, .next = *place};
  if (parent.block == ACCSV_NO_BLOCK && text != NULL) {
    entry->text = text;
    ++text->refs;
  }
  *place = block;
  memcpy(prefix->tokens + (size_t)block * prefix->page_size, tokens,
         prefix->page_size * sizeof *tokens);
  pool->blocks[block].keyed = true;
  return accsv_prefix_chain(prefix, block);
}

void accsv_prefix_clear(accsv_prefix_t* prefix) {
  for (uint32_t i = 0; i < prefix->pool->count; ++i) {
    if (prefix->pool->blocks[i].keyed) {
      forget(prefix, (int32_t)i);
      accsv_pool_unkey(prefix->pool, (int32_t)i);
    }
  }
}

static accsv_salt_t** salt_bucket(accsv_prefix_t* prefix, const accsv_salt_t* salt) {
  uint64_t hash = prefix->seed;
  for (uint32_t i = 0; i < salt->size_bytes; ++i)
    hash = fold(hash ^ (unsigned char)salt->text[i], MULTIPLIER);
  return &prefix->salts[accsv_mix(hash) % ACCSV_SALT_BUCKETS];
}

accsv_salt_t* accsv_prefix_intern(accsv_prefix_t* prefix, accsv_salt_t* own) {
  accsv_salt_t** bucket = salt_bucket(prefix, own);
  for (accsv_salt_t* salt = *bucket; salt != NULL; salt = salt->next) {
    if (salt->size_bytes == own->size_bytes &&
        memcmp(salt->text, own->text, own->size_bytes) == 0) {
      ++salt->refs;
      return salt;
    }
  }
  own->id = accsv_prefix_fresh_salt(prefix);
  own->refs = 1;
  own->next = *bucket;
  *bucket = own;
  return own;
}

void accsv_prefix_drop_salt(accsv_prefix_t* prefix, accsv_salt_t* salt) {
  if (salt == NULL || --salt->refs > 0)
    return;
  accsv_salt_t** place = salt_bucket(prefix, salt);
  while (*place != salt)
    place = &(*place)->next;
  *place = salt->next;
  accsv_salt_free(prefix->pool->allocator, salt);
}

accsv_salt_t* accsv_salt_new(const accrt_allocator_t* allocator, const char* text) {
  const size_t size_bytes = strlen(text);
  char* memory;
  if (size_bytes > UINT32_MAX / 2 ||
      ACCSV_NEW(allocator, sizeof(accsv_salt_t) + size_bytes, &memory) != ACCRT_OK)
    return NULL;
  accsv_salt_t* salt = (accsv_salt_t*)(void*)memory;
  salt->size_bytes = (uint32_t)size_bytes;
  memcpy(salt->text, text, size_bytes);
  return salt;
}

void accsv_salt_free(const accrt_allocator_t* allocator, accsv_salt_t* salt) {
  if (salt != NULL)
    accsv_free(allocator, salt, sizeof *salt + salt->size_bytes, 1);
}

const char* accsv_prefix_check(const accsv_prefix_t* prefix) {
  uint32_t found = 0, keyed = 0;
  for (uint32_t i = 0; i < prefix->bucket_count; ++i) {
    int32_t block = prefix->buckets[i];
    for (; block != ACCSV_NO_BLOCK; block = prefix->entries[block].next) {
      const accsv_entry_t* entry = &prefix->entries[block];
      const int32_t* tokens = prefix->tokens + (size_t)block * prefix->page_size;
      if (!prefix->pool->blocks[block].keyed)
        return "an entry's block has no contents";
      if (entry->hash != hash_of(prefix, entry->parent, entry->salt, tokens))
        return "an entry's hash is not that of its tokens";
      if (++found > prefix->pool->count)
        return "a bucket has a circle";
    }
  }
  for (uint32_t i = 0; i < prefix->pool->count; ++i)
    keyed += prefix->pool->blocks[i].keyed;
  return found != keyed ? "a block with contents is in no bucket" : NULL;
}
