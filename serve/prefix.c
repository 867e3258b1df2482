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

/* Where a hash is looked for first. */
static accsv_slot_t* home_of(const accsv_prefix_t* prefix, uint32_t hash) {
  return &prefix->slots[hash & (prefix->slot_count - 1)];
}

static uint32_t slot_after(const accsv_prefix_t* prefix, uint32_t slot) {
  return (slot + 1) & (prefix->slot_count - 1);
}

void accsv_prefix_fetch_free(const accsv_prefix_t* prefix, uint32_t count) {
  const accsv_pool_t* pool = prefix->pool;
  int32_t block = pool->free.head;
  for (; count > 0 && block != ACCSV_NO_BLOCK; --count) {
    __builtin_prefetch(home_of(prefix, pool->blocks[block].hash), 1);
    block = pool->blocks[block].next;
  }
}

/* Those behind it that may stand nearer to their homes move up, so that no search ends too
 * early. */
static void empty_slot(accsv_prefix_t* prefix, uint32_t empty) {
  const uint32_t mask = prefix->slot_count - 1;
  uint32_t slot = slot_after(prefix, empty);
  for (; prefix->slots[slot].block != ACCSV_NO_BLOCK; slot = slot_after(prefix, slot)) {
    if (((slot - prefix->slots[slot].hash) & mask) < ((slot - empty) & mask))
      continue;
    prefix->slots[empty] = prefix->slots[slot];
    empty = slot;
  }
  prefix->slots[empty].block = ACCSV_NO_BLOCK;
}

static void empty_slot_of(accsv_prefix_t* prefix, int32_t block) {
  accsv_block_t* entry = &prefix->pool->blocks[block];
  uint32_t slot = entry->hash & (prefix->slot_count - 1);
  while (prefix->slots[slot].block != block) {
    ACCRT_ASSERT(prefix->slots[slot].block != ACCSV_NO_BLOCK);
    slot = slot_after(prefix, slot);
  }
  empty_slot(prefix, slot);
  accsv_prefix_drop_salt(prefix, entry->text);
  entry->text = NULL;
}

void accsv_prefix_tidy(accsv_prefix_t* prefix) {
  for (uint32_t i = 0; i < prefix->forgotten_count; ++i)
    empty_slot_of(prefix, prefix->forgotten[i]);
  prefix->forgotten_count = 0;
}

/* A block that is taken: its slot is emptied later, no search takes it until then. */
static void forget(void* self, int32_t block) {
  accsv_prefix_t* prefix = self;
  if (prefix->forgotten_count == ACCSV_FORGOTTEN)
    accsv_prefix_tidy(prefix);
  prefix->forgotten[prefix->forgotten_count++] = block;
}

static size_t list_count(const accsv_prefix_t* prefix) {
  return (size_t)prefix->pool->count + ACCSV_FIRST_LISTS;
}

static accrt_status_t make_followers(accsv_prefix_t* prefix) {
  const size_t count = list_count(prefix);
  ACCRT_TRY(ACCSV_NEW_UNSET(prefix->pool->allocator, count, &prefix->followers));
  memset(prefix->followers, 0xFF, count * sizeof *prefix->followers); /* ACCSV_NO_BLOCK */
  return ACCRT_OK;
}

accrt_status_t accsv_prefix_init(accsv_prefix_t* prefix, accsv_pool_t* pool, uint32_t page_size,
                                 uint64_t seed, bool finds_parts) {
  *prefix = (accsv_prefix_t){.pool = pool, .page_size = page_size, .seed = seed};
  pool->forget = forget;
  pool->self = prefix;
  uint32_t slots = 16;
  while (slots < 2 * (uint64_t)pool->count)
    slots *= 2;
  prefix->slot_count = slots;
  accrt_status_t status =
      ACCSV_NEW(pool->allocator, (size_t)pool->count * page_size, &prefix->tokens);
  if (status == ACCRT_OK)
    status = ACCSV_NEW_UNSET(pool->allocator, slots, &prefix->slots);
  if (status == ACCRT_OK && finds_parts)
    status = make_followers(prefix);
  if (status != ACCRT_OK) {
    accsv_prefix_deinit(prefix);
    return status;
  }
  for (uint32_t i = 0; i < slots; ++i)
    prefix->slots[i] = (accsv_slot_t){0, ACCSV_NO_BLOCK};
  return ACCRT_OK;
}

void accsv_prefix_deinit(accsv_prefix_t* prefix) {
  const accrt_allocator_t* allocator = prefix->pool->allocator;
  if (prefix->slots != NULL)
    accsv_prefix_clear(prefix);
  ACCSV_FREE(allocator, prefix->tokens, (size_t)prefix->pool->count * prefix->page_size);
  ACCSV_FREE(allocator, prefix->slots, prefix->slot_count);
  ACCSV_FREE(allocator, prefix->followers, list_count(prefix));
  prefix->tokens = NULL;
  prefix->slots = NULL;
  prefix->followers = NULL;
}

static int32_t find_hashed(const accsv_prefix_t* prefix, uint32_t hash, accsv_chain_t parent,
                           uint64_t salt, const int32_t* tokens) {
  const size_t bytes = prefix->page_size * sizeof *tokens;
  uint32_t slot = hash & (prefix->slot_count - 1);
  for (; prefix->slots[slot].block != ACCSV_NO_BLOCK; slot = slot_after(prefix, slot)) {
    if (prefix->slots[slot].hash != hash)
      continue;
    const int32_t block = prefix->slots[slot].block;
    const accsv_block_t* entry = &prefix->pool->blocks[block];
    if (entry->keyed && entry->parent.block == parent.block &&
        entry->parent.generation == parent.generation && entry->salt == salt &&
        memcmp(prefix->tokens + (size_t)block * prefix->page_size, tokens, bytes) == 0)
      return block;
  }
  return ACCSV_NO_BLOCK;
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

/* ---- Blocks that fit in part ---- */

static accsv_followers_t* followers_of(const accsv_prefix_t* prefix, accsv_chain_t parent,
                                       uint64_t salt) {
  return &prefix->followers[parent.block != ACCSV_NO_BLOCK
                                ? (uint32_t)parent.block
                                : prefix->pool->count + (uint32_t)(salt % ACCSV_FIRST_LISTS)];
}

/* `block` is an entry now: it comes first in the list of those behind its parent, and no other
 * comes behind it yet. */
static void follow(accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt, int32_t block) {
  int32_t* list = followers_of(prefix, parent, salt)->blocks;
  memmove(list + 1, list, (ACCSV_FOLLOWERS - 1) * sizeof *list);
  list[0] = block;
  memset(&prefix->followers[block], 0xFF, sizeof *prefix->followers); /* ACCSV_NO_BLOCK */
}

static bool comes_after(const accsv_prefix_t* prefix, int32_t block, accsv_chain_t parent,
                        uint64_t salt) {
  const accsv_block_t* entry = &prefix->pool->blocks[block];
  return entry->keyed && entry->parent.block == parent.block &&
         entry->parent.generation == parent.generation && entry->salt == salt &&
         entry->written < prefix->step;
}

int32_t accsv_prefix_find_part(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                               const int32_t* tokens, uint32_t count, uint32_t* out_shared) {
  int32_t best = ACCSV_NO_BLOCK;
  *out_shared = 0;
  salt = salt_after(parent, salt);
  const int32_t* list = followers_of(prefix, parent, salt)->blocks;
  for (uint32_t i = 0; i < ACCSV_FOLLOWERS && list[i] != ACCSV_NO_BLOCK; ++i) {
    if (!comes_after(prefix, list[i], parent, salt))
      continue;
    const int32_t* own = prefix->tokens + (size_t)list[i] * prefix->page_size;
    uint32_t shared = 0;
    while (shared < count && own[shared] == tokens[shared])
      ++shared;
    if (shared > *out_shared) {
      *out_shared = shared;
      best = list[i];
    }
  }
  return best;
}

/* ---- Entries ---- */

uint32_t accsv_prefix_fetch(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                            const int32_t* tokens, int32_t block) {
  const uint32_t hash = hash_of(prefix, parent, salt_after(parent, salt), tokens);
  __builtin_prefetch(home_of(prefix, hash), 1);
  __builtin_prefetch(prefix->tokens + (size_t)block * prefix->page_size, 1);
  __builtin_prefetch(&prefix->pool->blocks[block], 1);
  if (parent.block != ACCSV_NO_BLOCK)
    __builtin_prefetch(&prefix->pool->blocks[parent.block], 1);
  if (prefix->followers != NULL) {
    __builtin_prefetch(followers_of(prefix, parent, salt), 1);
    __builtin_prefetch(&prefix->followers[block], 1);
  }
  return hash;
}

accsv_chain_t accsv_prefix_insert(accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                                  accsv_salt_t* text, const int32_t* tokens, uint32_t hash,
                                  int32_t block) {
  accsv_pool_t* pool = prefix->pool;
  accsv_prefix_tidy(prefix);
  if (parent.block != ACCSV_NO_BLOCK &&
      (pool->blocks[parent.block].generation != parent.generation ||
       !pool->blocks[parent.block].keyed))
    return ACCSV_CHAIN_EMPTY;
  salt = salt_after(parent, salt);
  if (hash == 0)
    hash = hash_of(prefix, parent, salt, tokens);
  const int32_t other = find_hashed(prefix, hash, parent, salt, tokens);
  if (other != ACCSV_NO_BLOCK)
    return accsv_prefix_chain(prefix, other);
  ACCRT_ASSERT(!pool->blocks[block].keyed && pool->blocks[block].refs > 0);
  accsv_block_t* entry = &prefix->pool->blocks[block];
  uint32_t slot = hash & (prefix->slot_count - 1);
  while (prefix->slots[slot].block != ACCSV_NO_BLOCK)
    slot = slot_after(prefix, slot);
  prefix->slots[slot] = (accsv_slot_t){hash, block};
  entry->hash = hash;
  entry->salt = salt;
  entry->parent = parent;
  entry->text = NULL;
  if (parent.block == ACCSV_NO_BLOCK && text != NULL) {
    entry->text = text;
    ++text->refs;
  }
  memcpy(prefix->tokens + (size_t)block * prefix->page_size, tokens,
         prefix->page_size * sizeof *tokens);
  entry->keyed = true;
  entry->written = prefix->step;
  if (prefix->followers != NULL)
    follow(prefix, parent, salt, block);
  return accsv_prefix_chain(prefix, block);
}

void accsv_prefix_clear(accsv_prefix_t* prefix) {
  accsv_prefix_tidy(prefix);
  for (uint32_t i = 0; i < prefix->pool->count; ++i) {
    if (prefix->pool->blocks[i].keyed) {
      empty_slot_of(prefix, (int32_t)i);
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

/* An adapter's number stands behind a NUL, which no text has. */
accsv_salt_t* accsv_salt_new(const accrt_allocator_t* allocator, uint64_t adapter,
                             const char* text) {
  const size_t text_bytes = text != NULL ? strlen(text) : 0;
  const size_t size_bytes = text_bytes + (adapter != 0 ? 1 + sizeof adapter : 0);
  char* memory;
  if (size_bytes > UINT32_MAX / 2 ||
      ACCSV_NEW(allocator, sizeof(accsv_salt_t) + size_bytes, &memory) != ACCRT_OK)
    return NULL;
  accsv_salt_t* salt = (accsv_salt_t*)(void*)memory;
  salt->size_bytes = (uint32_t)size_bytes;
  if (text_bytes > 0)
    memcpy(salt->text, text, text_bytes);
  if (adapter != 0) {
    salt->text[text_bytes] = 0;
    memcpy(salt->text + text_bytes + 1, &adapter, sizeof adapter);
  }
  return salt;
}

void accsv_salt_free(const accrt_allocator_t* allocator, accsv_salt_t* salt) {
  if (salt != NULL)
    accsv_free(allocator, salt, sizeof *salt + salt->size_bytes, 1);
}

const char* accsv_prefix_check(const accsv_prefix_t* prefix) {
  uint32_t found = 0, keyed = 0, forgotten = 0;
  for (uint32_t i = 0; i < prefix->slot_count; ++i) {
    const int32_t block = prefix->slots[i].block;
    if (block == ACCSV_NO_BLOCK)
      continue;
    const accsv_block_t* entry = &prefix->pool->blocks[block];
    const int32_t* tokens = prefix->tokens + (size_t)block * prefix->page_size;
    if (!entry->keyed) {
      ++forgotten;
      continue;
    }
    ++found;
    if (entry->hash != hash_of(prefix, entry->parent, entry->salt, tokens) ||
        entry->hash != prefix->slots[i].hash)
      return "an entry's hash is not that of its tokens";
    for (uint32_t slot = entry->hash & (prefix->slot_count - 1); slot != i;
         slot = slot_after(prefix, slot)) {
      if (prefix->slots[slot].block == ACCSV_NO_BLOCK)
        return "a search would not find an entry";
    }
  }
  if (forgotten != prefix->forgotten_count)
    return "an entry's block has no contents";
  for (uint32_t i = 0; i < prefix->pool->count; ++i)
    keyed += prefix->pool->blocks[i].keyed;
  for (size_t i = 0; prefix->followers != NULL && i < list_count(prefix); ++i) {
    for (uint32_t k = 0; k < ACCSV_FOLLOWERS; ++k) {
      const int32_t block = prefix->followers[i].blocks[k];
      if (block < ACCSV_NO_BLOCK || block >= (int32_t)prefix->pool->count)
        return "a list of followers names no block";
    }
  }
  return found != keyed ? "a block with contents is in no slot" : NULL;
}
