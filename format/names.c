/* format/names.c - the names of numbers. They lie in arrays of characters: a pointer to each would
 * be relocated when the library is loaded. */
#include "format/names.h"

#include <stddef.h>

#include "accrt/tensor.h"
#include "format/common.h"
#include "format/layout.h"
#include "runtime/core/cpu.h"

#define NAME_BYTES 10

/* Opcodes from 1, operations of expressions, kinds of images from 1: one after another. */
static const char names[][NAME_BYTES] = {
#define DEF_COMMAND(number, name, word, ...) word,
#define DEF_RESERVED_COMMAND(...) "",
#include "format/format.def"
#define DEF_EXPRESSION(number, name, word, ...) word,
#include "format/format.def"
#define DEF_IMAGE(number, name, word, shown, ...) shown,
#include "format/format.def"
};
static const struct {
  uint8_t least, first, count;
} runs[] = {{1, 0, ACCX_COMMAND_END - 1},
            {0, ACCX_COMMAND_END - 1, ACCX_EXPR_END},
            {1, ACCX_COMMAND_END - 1 + ACCX_EXPR_END, ACCX_IMAGE_END - 1}};
_Static_assert(sizeof names / NAME_BYTES == ACCX_COMMAND_END + ACCX_EXPR_END + ACCX_IMAGE_END - 2,
               "one entry a number");

/* Bits that have a name, of the features of files and of functions. */
static const struct {
  uint8_t numbers, bit;
  char name[16];
} features[] = {
#define DEF_FILE_FEATURE(bit, name, shown) {ACCX_NUMBERS_FILE_FEATURE, bit, shown},
#define DEF_FUNCTION_FEATURE(bit, name, shown) {ACCX_NUMBERS_FUNCTION_FEATURE, bit, shown},
#include "format/format.def"
};

static const char* feature_name(accx_numbers_t numbers, uint32_t bit) {
  for (size_t i = 0; i < sizeof features / sizeof *features; ++i) {
    if (features[i].numbers == (uint8_t)numbers && features[i].bit == bit)
      return features[i].name;
  }
  return "";
}

const char* accx_number_name(accx_numbers_t numbers, uint32_t number) {
  switch (numbers) {
  case ACCX_NUMBERS_OPCODE:
  case ACCX_NUMBERS_OPERATION:
  case ACCX_NUMBERS_IMAGE_KIND:
    number -= runs[numbers].least; /* wraps */
    return number < runs[numbers].count ? names[runs[numbers].first + number] : "";
  case ACCX_NUMBERS_SECTION:
    return accx_section_kind(number) != NULL ? accx_section_kind(number)->name : "";
  case ACCX_NUMBERS_DTYPE:
    return accrt_dtype_bits(number) != 0 ? accrt_dtype_name(number) : "";
  case ACCX_NUMBERS_LAYOUT:
    return accx_layout_find(number) != NULL ? accx_layout_find(number)->name : "";
  case ACCX_NUMBERS_FILE_FEATURE:
  case ACCX_NUMBERS_FUNCTION_FEATURE:
    return feature_name(numbers, number);
  case ACCX_NUMBERS_CPU_FEATURE:
    return accrt_cpu_feature_name(number);
  default:
    return "";
  }
}
