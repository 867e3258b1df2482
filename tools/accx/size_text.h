/* tools/accx/size_text.h - computes sizes from type texts such as "f32[batch, seq + 1, max(n, 4)]"
 * and the symbols' values. The public headers give an expression's dimension only as text. */
#ifndef ACCX_SIZE_TEXT_H_
#define ACCX_SIZE_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct accx_size_text {
  void* self;
  bool (*lookup)(void* self, const char* name, size_t length,
                 int64_t* out_value);         /* false: no value */
  bool (*present)(void* self, int64_t input); /* true when that input has a value */
} accx_size_text_t;

/* Computes the index-th dimension. False for unknown syntax, a name without a value, overflow,
 * division by zero, or a negative size. */
bool accx_size_in_type(const accx_size_text_t* names, const char* type, uint32_t index,
                       int64_t* out_value);
/* True when the index-th dimension contains `name` as a word. */
bool accx_size_mentions(const char* type, uint32_t index, const char* name);

#endif /* ACCX_SIZE_TEXT_H_ */
