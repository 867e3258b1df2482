/* format/command_fields.c - the own fields of commands, from format/format.def. See
 * format/commands.h. */
#include "format/commands.h"

/* Where the fields of each opcode begin. */
enum {
#define DEF_COMMAND(number, name, ...) FIRST_##name, BEFORE_##name = FIRST_##name - 1,
#define DEF_RESERVED_COMMAND(number, ...) FIRST_##number, BEFORE_##number = FIRST_##number - 1,
#define DEF_FIELD(command, struct, field, ...) FIELD_##command##_##field,
#include "format/format.def"
  FIELD_COUNT
};

static const accx_field_t fields[] = {
#define DEF_FIELD(command, struct, field, count, kind, ...)                                        \
  {ACCX_FIELD_##kind, offsetof(struct, field), count, #field},
#include "format/format.def"
};
_Static_assert(sizeof fields / sizeof *fields == FIELD_COUNT, "in order of their opcodes");

static const uint8_t firsts[] = {0,
#define DEF_COMMAND(number, name, ...) FIRST_##name,
#define DEF_RESERVED_COMMAND(number, ...) FIRST_##number,
#include "format/format.def"
                                 FIELD_COUNT};

const accx_field_t* accx_fields_of(uint32_t opcode, uint32_t* out_count) {
  const uint32_t known = opcode < ACCX_COMMAND_END ? opcode : 0;
  *out_count = (uint32_t)firsts[known + 1] - firsts[known];
  return &fields[firsts[known]];
}
