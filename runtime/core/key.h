/* runtime/core/key.h - keys and their files, for use inside the library (include/accrt/trust.h has
 * the public functions). */
#ifndef ACCRT_RUNTIME_CORE_KEY_H_
#define ACCRT_RUNTIME_CORE_KEY_H_

#include <stdbool.h>
#include <string.h>

#include "accrt/trust.h"
#include "runtime/core/hash128.h"

/* As accrt_key_read, for a valid kind. */
accrt_status_t accrt_key_load(const char* path, uint32_t kind, accrt_key_t* out_key);

/* True for a public key that is a point of order 1, 2, 4 or 8, in any encoding: anyone could forge
 * signatures for it. */
#define ACCRT_KEY_WEAK "the public key is a point of low order: anyone can sign for it"
bool accrt_key_is_weak(const accrt_key_t* key);

#define ACCRT_KEY_TEXT_BYTES 25
/* Writes "ed25519:" and the first 16 hexadecimal digits, for messages. Returns `text`. */
static inline const char* accrt_key_text(const accrt_key_t* key, char text[ACCRT_KEY_TEXT_BYTES]) {
  memcpy(text, "ed25519:", 8);
  (void)accrt_hex(key->bytes, 8, text + 8);
  return text;
}

#endif /* ACCRT_RUNTIME_CORE_KEY_H_ */
