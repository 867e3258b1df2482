/* loader/names.c - the names of numbers. They lie in arrays of characters: a pointer to each would be relocated when the library is
 * loaded. */
#include "loader/names.h"

#include "accrt/tensor.h"
#include "loader/internal.h"
#include "loader/layout.h"
#include "runtime/core/cpu.h"

#define NAME_BYTES 10

/* Opcodes, operations of expressions, kinds of images: one after another. */
static const char names[][NAME_BYTES] = {
    "",        "dispatch", "copy",     "fill",   "barrier",   "call",   "repeat",
    "branch",  "marker",   "constant", "symbol", "induction", "add",    "sub",
    "mul",     "floordiv", "ceildiv",  "mod",    "min",       "max",    "eq",
    "ne",      "lt",       "le",       "and",    "or",        "not",    "select",
    "present", "",         "host ELF", "cubin",  "PTX",       "fatbin", "pack",
};
static const struct {
  uint8_t first, count;
} runs[] = {{0, ACCX_COMMAND_MARKER + 1},
            {ACCX_COMMAND_MARKER + 1, ACCX_EXPR_PRESENT + 1},
            {ACCX_COMMAND_MARKER + ACCX_EXPR_PRESENT + 2, ACCX_IMAGE_PACK + 1}};
_Static_assert(sizeof names / NAME_BYTES ==
                   ACCX_COMMAND_MARKER + ACCX_EXPR_PRESENT + ACCX_IMAGE_PACK + 3,
               "one entry a number");

const char* accx_number_name(accx_numbers_t numbers, uint32_t number) {
  switch (numbers) {
  case ACCX_NUMBERS_OPCODE:
  case ACCX_NUMBERS_OPERATION:
  case ACCX_NUMBERS_IMAGE_KIND:
    return number < runs[numbers].count ? names[runs[numbers].first + number] : "";
  case ACCX_NUMBERS_SECTION:
    return accx_section_kind(number) != NULL ? accx_section_kind(number)->name : "";
  case ACCX_NUMBERS_DTYPE:
    return accrt_dtype_bits(number) != 0 ? accrt_dtype_name(number) : "";
  case ACCX_NUMBERS_LAYOUT:
    return accx_layout_find(number) != NULL ? accx_layout_find(number)->name : "";
  case ACCX_NUMBERS_FILE_FEATURE:
    return number == 0 ? "encrypted-data" : "";
  case ACCX_NUMBERS_FUNCTION_FEATURE:
    return number == 0 ? "target" : "";
  case ACCX_NUMBERS_CPU_FEATURE:
    return accrt_cpu_feature_name(number);
  default:
    return "";
  }
}
