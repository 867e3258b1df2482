/* write/text/names.c - words for the numbers of the format. See names.h. */
#include "write/text/names.h"

#include <stddef.h>
#include <string.h>

#include "accrt/write/bundle_writer.h"

#define WORDS(name, text)                                                                          \
  const accx_words_t accx_words_##name = {text, name##_list,                                       \
                                          (uint32_t)(sizeof name##_list / sizeof name##_list[0])}

static const accx_word_t symbol_class_list[] = {
#define DEF_SYMBOL(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(symbol_class, "class");

static const accx_word_t source_list[] = {
#define DEF_SOURCE(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(source, "source");

static const accx_word_t argument_list[] = {
#define DEF_ARGUMENT(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(argument, "kind");

static const accx_word_t access_list[] = {
#define DEF_ACCESS(number, name, word) {number, word},
#include "format/format.def"
};
WORDS(access, "access");

static const accx_word_t parameter_list[] = {
#define DEF_PARAMETER(number, name, word) {number, word},
#include "format/format.def"
};
WORDS(parameter, "kind");

static const accx_word_t arch_kind_list[] = {
#define DEF_ARCH(number, name, word) {number, word},
#include "format/format.def"
};
WORDS(arch_kind, "arch_kind");

static const accx_word_t image_list[] = {
#define DEF_IMAGE(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(image, "kind");

static const accx_word_t file_list[] = {
#define DEF_FILE(number, name, word) {number, word},
#include "format/format.def"
};
WORDS(file, "kind");

static const accx_word_t role_list[] = {
#define DEF_ROLE(number, name, word) {number, word},
#include "format/format.def"
};
WORDS(role, "component");

static const accx_word_t predicate_list[] = {
#define DEF_PREDICATE(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(predicate, "condition");

static const accx_word_t dtype_list[] = {
#define DEF_DTYPE(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(dtype, "dtype");

static const accx_word_t opcode_list[] = {
#define DEF_COMMAND(number, name, word, ...) {number, word},
#include "format/format.def"
};
WORDS(opcode, "command");

static const accx_word_t traits_list[] = {
#define DEF_TRAIT(bit, name, word, ...) {UINT64_C(1) << bit, word},
#include "format/format.def"
};
WORDS(traits, "trait");

static const accx_word_t cpu_list[] = {
#define DEF_CPU(bit, name, word, ...) {UINT64_C(1) << bit, word},
#include "format/format.def"
};
WORDS(cpu, "CPU feature");

#define MEMBER(member)                                                                             \
  (offsetof(accrt_writer_command_t, member) == offsetof(accrt_writer_command_t, opcode)            \
       ? 0                                                                                         \
       : offsetof(accrt_writer_command_t, member))
const accx_text_field_t accx_text_fields[] = {
#define DEF_FIELD(command, struct, field, count, kind, member, meaning)                            \
  {ACCX_COMMAND_##command, ACCX_FIELD_##kind, offsetof(struct, field), count, MEMBER(member), NULL},
#define DEF_KEYED(command, struct, field, count, kind, member, key, meaning)                       \
  {ACCX_COMMAND_##command, ACCX_FIELD_##kind, offsetof(struct, field), count, MEMBER(member), key},
#include "format/format.def"
    {0, 0, 0, 0, 0, NULL}};

const accx_text_field_t* accx_text_head(uint64_t opcode) {
  for (const accx_text_field_t* field = accx_text_fields; field->opcode != 0; ++field) {
    if (field->opcode == opcode && field->key == NULL && field->member != 0)
      return field;
  }
  return NULL;
}

const char* accx_word_of(const accx_words_t* words, uint64_t value) {
  for (uint32_t i = 0; i < words->count; ++i) {
    if (words->words[i].value == value)
      return words->words[i].word;
  }
  return NULL;
}

bool accx_word_find(const accx_words_t* words, const char* word, uint64_t* out_value) {
  for (uint32_t i = 0; i < words->count; ++i) {
    if (strcmp(words->words[i].word, word) != 0)
      continue;
    *out_value = words->words[i].value;
    return true;
  }
  return false;
}
