/* tools/accx/size_text.h - sizes out of type texts such as "f32[batch, seq + 1, max(n, 4)]", given the symbols' values.
 * The public headers give a dimension that is an expression as text only. */
#ifndef ACCX_SIZE_TEXT_H_
#define ACCX_SIZE_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct accx_size_text {
  void* self;
  bool (*lookup)(void* self, const char* name, size_t length,
                 int64_t* out_value); /* false: no value */
} accx_size_text_t;

/* Value of the index-th dimension. False: syntax that is not known here, a name without value, overflow, division by zero,
 * or a negative size. */
bool accx_size_in_type(const accx_size_text_t* names, const char* type, uint32_t index,
                       int64_t* out_value);
/* Whether the index-th dimension has `name` in it as a word. */
bool accx_size_mentions(const char* type, uint32_t index, const char* name);

#endif /* ACCX_SIZE_TEXT_H_ */
