/* loader/text/values.h - where the values of two weights differ, in words. It reads bundles through the library and knows no text form. */
#ifndef ACCRT_LOADER_TEXT_VALUES_H_
#define ACCRT_LOADER_TEXT_VALUES_H_

#include <stdbool.h>

#include "accrt/accrt.h"

/* Compares a component of constants of the same name, "3 of 1000 values differ, the first at [2, 5]: 0.5 in A, 0.75 in B". False when that
 * cannot be said: they are of different types or sizes, encrypted, or not in the bundle. */
bool accx_values_text(accrt_bundle_t* a, accrt_bundle_t* b, const char* constant, uint32_t role,
                      char* out, size_t capacity);

#endif /* ACCRT_LOADER_TEXT_VALUES_H_ */
