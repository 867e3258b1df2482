/* format/known.h - what this library knows of the format, as masks: bit n stands for number n. It
 * may include format/format.h alone. */
#ifndef ACCRT_FORMAT_KNOWN_H_
#define ACCRT_FORMAT_KNOWN_H_

#include <stdbool.h>

#include "format/format.h"

/* clang-format off */
static inline uint64_t accx_commands_known(void) {
  return 0
#define DEF_COMMAND(number, ...) | UINT64_C(1) << number
#include "format/format.def"
  ;
}
static inline bool accx_opcode_known(uint32_t opcode) {
  return opcode < ACCX_COMMAND_END && (accx_commands_known() >> opcode & 1) != 0;
}
/* Those that a device runs itself. */
static inline uint64_t accx_commands_of_devices(void) {
  return 0
#define DEF_COMMAND(number, name, word, bytes, operands, required, since, leaf, ...) | UINT64_C(leaf) << number
#include "format/format.def"
  ;
}
static inline uint64_t accx_expressions_known(void) {
  return 0
#define DEF_EXPRESSION(number, ...) | UINT64_C(1) << number
#include "format/format.def"
  ;
}
static inline uint64_t accx_sections_known(void) {
  return 0
#define DEF_SECTION(number, ...) | UINT64_C(1) << number
#include "format/format.def"
  ;
}
static inline uint64_t accx_layouts_known(void) {
  return 0
#define DEF_LAYOUT(number, ...) | UINT64_C(1) << number
#include "format/format.def"
  ;
}
static inline uint64_t accx_dtypes_known(void) {
  return 0
#define DEF_DTYPE(number, ...) | UINT64_C(1) << number
#include "format/format.def"
  ;
}
/* Images that a container of this minor version, or an earlier one, may have. */
static inline uint64_t accx_images_known(uint32_t minor) {
  return 0
#define DEF_IMAGE(number, name, word, shown, device, since, ...) | (uint64_t)(since <= minor) << number
#include "format/format.def"
  ;
}
/* Device code: a variant with it has a launch. */
static inline bool accx_image_is_device(uint32_t kind) {
  const uint32_t device_kinds = 0
#define DEF_IMAGE(number, name, word, shown, device, ...) | (uint32_t)device << number
#include "format/format.def"
  ;
  return kind < ACCX_IMAGE_END && (device_kinds >> kind & 1) != 0;
}
/* How many of a, b and c an operation has. 3 for none that is known. */
static inline uint32_t accx_expression_operands(uint32_t op) {
  const uint64_t counts = 0
#define DEF_EXPRESSION(number, name, word, operands, ...) | (uint64_t)operands << (2 * number)
#include "format/format.def"
  ;
  return op < ACCX_EXPR_END ? (uint32_t)(counts >> (2 * op)) & 3 : 3;
}
_Static_assert(ACCX_EXPR_END <= 32 && ACCX_IMAGE_END <= 32, "two bits an operation, one a kind");
/* clang-format on */

#endif /* ACCRT_FORMAT_KNOWN_H_ */
