/* format/names.h - the names, in the specification, of the numbers of opcodes, operations, layouts
 * and so on: for messages, and for reading what `accx caps` prints. It may not allocate. */
#ifndef ACCRT_FORMAT_NAMES_H_
#define ACCRT_FORMAT_NAMES_H_

#include <stdint.h>

typedef enum accx_numbers {
  ACCX_NUMBERS_OPCODE,
  ACCX_NUMBERS_OPERATION, /* of expressions */
  ACCX_NUMBERS_IMAGE_KIND,
  ACCX_NUMBERS_SECTION,
  ACCX_NUMBERS_DTYPE,
  ACCX_NUMBERS_LAYOUT,
  ACCX_NUMBERS_FILE_FEATURE,     /* bits */
  ACCX_NUMBERS_FUNCTION_FEATURE, /* likewise */
  ACCX_NUMBERS_VARIANT_FEATURE,  /* likewise */
  ACCX_NUMBERS_CPU_FEATURE,      /* likewise */
} accx_numbers_t;

/* Static string; "" for a number that this library has no name for. */
const char* accx_number_name(accx_numbers_t numbers, uint32_t number);

#endif /* ACCRT_FORMAT_NAMES_H_ */
