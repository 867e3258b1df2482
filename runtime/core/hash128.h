/* runtime/core/hash128.h - XXH3-128, the fast digest of bundles and of cache entries. The only
 * place that knows which hash it is. It may not allocate. */
#ifndef ACCRT_RUNTIME_CORE_HASH128_H_
#define ACCRT_RUNTIME_CORE_HASH128_H_

#include <stddef.h>

#define ACCRT_HASH128_BYTES 16u

/* State of a digest. It lives on the caller's stack. */
typedef struct accrt_hash128 {
  _Alignas(64) unsigned char state[640];
} accrt_hash128_t;

void accrt_hash128_init(accrt_hash128_t* hash);
void accrt_hash128_update(accrt_hash128_t* hash, const void* bytes, size_t size_bytes);
/* Does not change the state: more bytes may follow. */
void accrt_hash128_finish(const accrt_hash128_t* hash,
                          unsigned char out_digest[ACCRT_HASH128_BYTES]);
void accrt_hash128_of(const void* bytes, size_t size_bytes,
                      unsigned char out_digest[ACCRT_HASH128_BYTES]);

/* Two hexadecimal digits for each byte, and a NUL. Returns `text`. */
const char* accrt_hex(const unsigned char* bytes, size_t size_bytes, char* text);

#endif /* ACCRT_RUNTIME_CORE_HASH128_H_ */
