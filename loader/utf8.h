/* loader/utf8.h - what UTF-8 is. It may not allocate. */
#ifndef ACCRT_LOADER_UTF8_H_
#define ACCRT_LOADER_UTF8_H_

#include <stdint.h>

/* Length of the UTF-8 sequence at `at`, or 0: overlong forms, surrogates and values past U+10FFFF are none. It reads no further than a
 * byte that continues none: behind the last byte there must be one. */
uint32_t accx_utf8_length(const unsigned char* at);

#endif /* ACCRT_LOADER_UTF8_H_ */
