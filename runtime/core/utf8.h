/* runtime/core/utf8.h - checks of UTF-8. It may not allocate. */
#ifndef ACCRT_RUNTIME_CORE_UTF8_H_
#define ACCRT_RUNTIME_CORE_UTF8_H_

#include <stddef.h>
#include <stdint.h>

/* Length of the UTF-8 sequence at `at`. 0 for an invalid one: overlong forms, surrogates and values
 * past U+10FFFF. It reads up to the first byte that is not a continuation byte, so the text must
 * end with such a byte. */
uint32_t accrt_utf8_length(const unsigned char* at);
/* Offset of the first invalid byte; the text's length when all is valid UTF-8. */
size_t accrt_utf8_check(const char* text);

/* Checks that all readers see the text as one line: UTF-8 without control characters (U+0000 to
 * U+001F, U+007F to U+009F) and without the separators U+2028 and U+2029, which some readers treat
 * as line ends. Returns NULL, or what is wrong. python/accrt/trust.py has the same rule. */
const char* accrt_utf8_check_line(const char* text);

#endif /* ACCRT_RUNTIME_CORE_UTF8_H_ */
