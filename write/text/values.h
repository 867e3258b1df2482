/* write/text/values.h - describes where the values of two weights differ. It reads weights through
 * the library and does not know the text form. */
#ifndef ACCRT_WRITE_TEXT_VALUES_H_
#define ACCRT_WRITE_TEXT_VALUES_H_

#include <stdbool.h>

#include "accrt/accrt.h"

/* Compares a component of two constants with the same name: "3 of 1000 values differ, the first at
 * [2, 5]: 0.5 in A, 0.75 in B". False when the values cannot be compared: their types or sizes
 * differ, or they are encrypted or not in the bundle. */
bool accx_values_text(accrt_weights_t* a, accrt_weights_t* b, const char* constant, uint32_t role,
                      char* out, size_t capacity);

#endif /* ACCRT_WRITE_TEXT_VALUES_H_ */
