/* format/commands.h - reading the commands of a block whose bytes have been checked. */
#ifndef ACCRT_FORMAT_COMMANDS_H_
#define ACCRT_FORMAT_COMMANDS_H_

#include <stddef.h>

#include "format/known.h"

/* The opcode's own fields: an accx_dispatch_t, accx_copy_t, ... by opcode. */
static inline const void* accx_command_fields(const accx_command_t* command) {
  return command + 1;
}
static inline const accx_operand_t* accx_dispatch_operands(const accx_dispatch_t* dispatch) {
  return (const accx_operand_t*)(const void*)(dispatch + 1);
}
static inline const accx_operand_t* accx_call_operands(const accx_call_t* call) {
  return (const accx_operand_t*)(const void*)(call + 1);
}
/* Predecessors end the command, padded to 8 bytes: this holds for unknown opcodes too. */
static inline const uint32_t* accx_command_predecessors(const accx_command_t* command) {
  const size_t padded_bytes = ((size_t)command->predecessor_count * 4 + 7) & ~(size_t)7;
  return (const uint32_t*)(const void*)((const char*)(const void*)command + command->size_bytes -
                                        padded_bytes);
}
/* What a field of a command is: format/format.def says what each kind means. */
enum {
  ACCX_FIELD_ITEM,
  ACCX_FIELD_COUNT,
  ACCX_FIELD_PATTERN,
  ACCX_FIELD_ZERO,
  ACCX_FIELD_SIZE,
  ACCX_FIELD_STRING,
  ACCX_FIELD_DECIDED,
  ACCX_FIELD_DECIDED_SIZE,
  ACCX_FIELD_BLOCK,
  ACCX_FIELD_MAYBE_BLOCK,
  /* Ranges: the access in the low bits. */
  ACCX_FIELD_READ = 16 + 1,
  ACCX_FIELD_WRITE = 16 + 2,
  ACCX_FIELD_UPDATE = 16 + 3,
  ACCX_FIELD_READ_START = 32 + 1,
  ACCX_FIELD_WRITE_START = 32 + 2,
};
static inline bool accx_field_is_range(uint32_t kind) {
  return kind >= ACCX_FIELD_READ;
}
static inline uint32_t accx_field_access(uint32_t kind) {
  return kind & 3;
}
/* A range whose size follows from other fields, and is NONE. */
static inline bool accx_field_is_start(uint32_t kind) {
  return kind >= ACCX_FIELD_READ_START;
}
typedef struct accx_field {
  uint8_t kind;
  uint8_t offset; /* of the first, behind the command's header */
  uint8_t count;
  char name[16]; /* in place: a pointer would be relocated when the library is loaded */
} accx_field_t;
/* The own fields of an opcode, in order; none of one that is not known. */
const accx_field_t* accx_fields_of(uint32_t opcode, uint32_t* out_count);

/* False for an ignorable opcode of a later version: it runs as a no-op in its place in the
 * order. */
static inline int accx_command_known(const accx_command_t* command) {
  return accx_opcode_known(command->opcode);
}

#endif /* ACCRT_FORMAT_COMMANDS_H_ */
