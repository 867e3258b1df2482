/* runtime/core/key.h - keys and their files, for the library's own use (include/accrt/trust.h has the public functions). */
#ifndef ACCRT_RUNTIME_CORE_KEY_H_
#define ACCRT_RUNTIME_CORE_KEY_H_

#include "accrt/trust.h"

/* As accrt_key_read, with a valid kind. */
accrt_status_t accrt_key_load(const char* path, uint32_t kind, accrt_key_t* out_key);

#define ACCRT_KEY_TEXT_BYTES 25
/* "ed25519:" and the first 16 hexadecimal digits, for messages. Returns `text`. */
const char* accrt_key_text(const accrt_key_t* key, char text[ACCRT_KEY_TEXT_BYTES]);

#endif /* ACCRT_RUNTIME_CORE_KEY_H_ */
