/* tools/accx/names.h - words for the numbers in public structs. Unknown numbers get a text as
 * well. */
#ifndef ACCX_NAMES_H_
#define ACCX_NAMES_H_

#include "accx.h"

const char* accx_symbol_class_name(uint32_t symbol_class);
const char* accx_argument_kind_name(uint32_t kind);
const char* accx_alias_name(uint32_t alias_kind);
const char* accx_arch_kind_name(uint32_t arch_kind);
const char* accx_image_kind_name(uint32_t image_kind);
const char* accx_encoding_name(uint32_t encoding);
const char* accx_constant_source_name(uint32_t source);
const char* accx_file_kind_name(uint32_t kind);
const char* accx_role_name(uint32_t role);

/* Names of the set bits, from a table; a bit without a name is "bit N". */
typedef struct accx_bit_names {
  const char* const* names; /* an entry may be NULL */
  size_t count;
} accx_bit_names_t;
extern const accx_bit_names_t accx_cpu_bits, accx_trait_bits, accx_device_bits, accx_opcode_bits,
    accx_expression_bits, accx_section_bits, accx_file_feature_bits, accx_variant_feature_bits,
    accx_function_feature_bits, accx_function_bits, accx_image_kind_bits;
/* The name of bit `bit`; NULL if `mask` does not have the bit. */
const char* accx_bit_name(const accx_bit_names_t* table, uint64_t mask, unsigned bit);
/* The names of the set bits with a separator; `none` if no bit is set. */
const char* accx_bits_text(const accx_bit_names_t* table, uint64_t mask, const char* separator,
                           const char* none);

#endif /* ACCX_NAMES_H_ */
