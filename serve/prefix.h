/* serve/prefix.h - the prefix cache: which block has the keys and values of which tokens.
 *
 * An entry says: this block has these tokens, and the tokens before it are those of its parent
 * entry. A parent is named by block and generation, so that a name never means two contents, and a
 * lookup compares all tokens and the salt: no collision of hashes can give the contents of another
 * prompt. Only full blocks are entries. An entry whose parent was taken away can no longer be
 * found; it goes when its block is taken.
 *
 * Of each entry the last few blocks that came after it are listed, and so are first blocks: where
 * no whole block has the tokens that come next, one of these may begin with them. A block that is
 * listed may have other contents by now, which its entry shows.
 *
 * A salt is a number that stands for a text, for as long as a request or an entry uses that text.
 * It allocates when it is made; requests bring the memory of their salt. Externally synchronized.
 */
#ifndef ACCRT_SERVE_PREFIX_H_
#define ACCRT_SERVE_PREFIX_H_

#include "serve/pool.h"

/* A text of requests, and the number that stands for it. */
typedef struct accsv_salt {
  struct accsv_salt* next;
  uint64_t id;
  uint32_t refs;
  uint32_t size_bytes; /* of the text */
  char text[];
} accsv_salt_t;

/* Of a table with open addressing, so that a look at one line of memory finds a hash or says that
 * there is none. */
typedef struct accsv_slot {
  uint32_t hash;
  int32_t block; /* ACCSV_NO_BLOCK: empty */
} accsv_slot_t;

#define ACCSV_SALT_BUCKETS 256u
#define ACCSV_FOLLOWERS 4u
#define ACCSV_FORGOTTEN 64u
#define ACCSV_FIRST_LISTS 64u /* of first blocks, by their salt */

/* The blocks that were inserted last behind an entry, the newest first; ACCSV_NO_BLOCK: no more. */
typedef struct accsv_followers {
  int32_t blocks[ACCSV_FOLLOWERS];
} accsv_followers_t;

typedef struct accsv_prefix {
  accsv_pool_t* pool;
  int32_t* tokens; /* of each block */
  accsv_slot_t* slots;
  uint32_t slot_count; /* a power of two, at least two for each block */
  uint32_t page_size;
  uint64_t seed;
  uint64_t last_salt;
  uint64_t step;                /* that entries are made by now, and that looks for blocks */
  accsv_followers_t* followers; /* of each block, then of no block; NULL: parts are unused */
  accsv_salt_t* salts[ACCSV_SALT_BUCKETS];
  int32_t forgotten[ACCSV_FORGOTTEN]; /* blocks without contents whose slots are not emptied yet */
  uint32_t forgotten_count;
} accsv_prefix_t;

accrt_status_t accsv_prefix_init(accsv_prefix_t* prefix, accsv_pool_t* pool, uint32_t page_size,
                                 uint64_t seed, bool finds_parts);
void accsv_prefix_deinit(accsv_prefix_t* prefix);

/* The block that has `page_size` tokens after `parent`, or ACCSV_NO_BLOCK. */
int32_t accsv_prefix_find(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                          const int32_t* tokens);
/* The block after `parent` that begins with most of these `count` tokens, at most a page of them,
 * among those that were written by steps before this one. `*out_shared` of them. */
int32_t accsv_prefix_find_part(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                               const int32_t* tokens, uint32_t count, uint32_t* out_shared);
/* `block` has these tokens from now on. `hash` is 0 or theirs. Returns the chain that ends with
 * them: that of another block if one has them already. An empty chain if `parent` is gone. */
accsv_chain_t accsv_prefix_insert(accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                                  accsv_salt_t* text, const int32_t* tokens, uint32_t hash,
                                  int32_t block);
/* Empties the slots of blocks that were taken. Insertions do so too. */
void accsv_prefix_tidy(accsv_prefix_t* prefix);
/* So many blocks may be taken soon: fetches the memory that forgetting them needs. */
void accsv_prefix_fetch_free(const accsv_prefix_t* prefix, uint32_t count);
/* An insertion with these arguments comes soon: fetches the memory that it needs, and returns its
 * hash. */
uint32_t accsv_prefix_fetch(const accsv_prefix_t* prefix, accsv_chain_t parent, uint64_t salt,
                            const int32_t* tokens, int32_t block);
static inline accsv_chain_t accsv_prefix_chain(const accsv_prefix_t* prefix, int32_t block) {
  return (accsv_chain_t){block, prefix->pool->blocks[block].generation};
}
/* Forgets everything: keys and values are lost. */
void accsv_prefix_clear(accsv_prefix_t* prefix);

/* Makes a salt of a request known. Returns the one to use, held: `own`, or one of the same text
 * that was there (then the caller frees `own`). */
accsv_salt_t* accsv_prefix_intern(accsv_prefix_t* prefix, accsv_salt_t* own);
void accsv_prefix_drop_salt(accsv_prefix_t* prefix, accsv_salt_t* salt);
static inline uint64_t accsv_prefix_fresh_salt(accsv_prefix_t* prefix) {
  return ++prefix->last_salt;
}
/* A salt with this text (NULL: none), for one adapter (0: none), or NULL without memory. */
accsv_salt_t* accsv_salt_new(const accrt_allocator_t* allocator, uint64_t adapter,
                             const char* text);
void accsv_salt_free(const accrt_allocator_t* allocator, accsv_salt_t* salt);
/* NULL, or what is wrong. O(blocks). */
const char* accsv_prefix_check(const accsv_prefix_t* prefix);

#endif /* ACCRT_SERVE_PREFIX_H_ */
