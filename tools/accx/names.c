/* tools/accx/names.c - words for the numbers in the public structs. */
#include "names.h"

#include "write/text/names.h"

#define NAME(table, index) name_of(table, sizeof(table) / sizeof *(table), index)

static const char* name_of(const char* const* names, size_t count, uint32_t index) {
  return index < count && names[index] ? names[index] : accx_text("unknown %u", index);
}

/* The word in the text form. */
static const char* word_of(const accx_words_t* words, uint32_t value) {
  const char* word = accx_word_of(words, value);
  return word ? word : accx_text("unknown %u", value);
}

const char* accx_symbol_class_name(uint32_t symbol_class) {
  return word_of(&accx_words_symbol_class, symbol_class);
}

const char* accx_argument_kind_name(uint32_t kind) {
  static const char* const names[] = {
#define DEF_ARGUMENT(number, name, word, shown, ...) [number] = shown,
#include "format/format.def"
  };
  return NAME(names, kind);
}

const char* accx_alias_name(uint32_t alias_kind) {
  static const char* const names[] = {
#define DEF_ALIAS(number, name, word) [number] = word,
#include "format/format.def"
  };
  return NAME(names, alias_kind);
}

const char* accx_arch_kind_name(uint32_t arch_kind) {
  return word_of(&accx_words_arch_kind, arch_kind);
}

static const char* const image_kind_names[] = {
#define DEF_IMAGE(number, name, word, shown, ...) [number] = shown,
#include "format/format.def"
};

const char* accx_image_kind_name(uint32_t image_kind) {
  return NAME(image_kind_names, image_kind);
}

/* Asks the library's registry. An unknown number is from a newer version. */
const char* accx_encoding_name(uint32_t encoding) {
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  return accrt_layout_info(encoding, &info) == ACCRT_OK ? info.name
                                                        : accx_text("unknown %u", encoding);
}

const char* accx_constant_source_name(uint32_t source) {
  static const char* const names[] = {
#define DEF_SOURCE(number, name, word, shown, ...) [number] = shown,
#include "format/format.def"
  };
  return NAME(names, source);
}

const char* accx_file_kind_name(uint32_t kind) {
  return word_of(&accx_words_file, kind);
}

const char* accx_role_name(uint32_t role) {
  return word_of(&accx_words_role, role);
}

#define BITS(variable, table)                                                                      \
  const accx_bit_names_t variable = {table, sizeof(table) / sizeof *(table)}

static const char* const cpu_names[] = {
#define DEF_CPU(bit, name, word, shown, ...) [bit] = shown,
#include "format/format.def"
};
BITS(accx_cpu_bits, cpu_names);

static const char* const trait_names[] = {
#define DEF_TRAIT(bit, name, word, shown) [bit] = shown,
#include "format/format.def"
};
BITS(accx_trait_bits, trait_names);

static const char* const device_names[] = {"host-memory", "timestamps", "host-kernels",
                                           "caller-runs"};
BITS(accx_device_bits, device_names);

static const char* const opcode_names[] = {
#define DEF_COMMAND(number, name, word, ...) [number] = word,
#include "format/format.def"
};
BITS(accx_opcode_bits, opcode_names);

static const char* const expression_names[] = {
#define DEF_EXPRESSION(number, name, word, ...) [number] = word,
#include "format/format.def"
};
BITS(accx_expression_bits, expression_names);

static const char* const section_names[] = {
#define DEF_SECTION(number, name, word, ...) [number] = word,
#include "format/format.def"
};
BITS(accx_section_bits, section_names);

BITS(accx_image_kind_bits, image_kind_names);

static const char* const file_feature_names[] = {
#define DEF_FILE_FEATURE(bit, name, shown) [bit] = shown,
#include "format/format.def"
};
BITS(accx_file_feature_bits, file_feature_names);

/* No features of variants are defined yet. */
const accx_bit_names_t accx_variant_feature_bits = {NULL, 0};

static const char* const function_feature_names[] = {
#define DEF_FUNCTION_FEATURE(bit, name, shown) [bit] = shown,
#include "format/format.def"
};
BITS(accx_function_feature_bits, function_feature_names);

static const char* const function_names[] = {
#define DEF_FUNCTION_FLAG(bit, name, word, ...) [bit] = word,
#include "format/format.def"
};
BITS(accx_function_bits, function_names);

const char* accx_bit_name(const accx_bit_names_t* table, uint64_t mask, unsigned bit) {
  if (bit > 63 || !(mask >> bit & 1))
    return NULL;
  return bit < table->count && table->names[bit] ? table->names[bit] : accx_text("bit %u", bit);
}

const char* accx_bits_text(const accx_bit_names_t* table, uint64_t mask, const char* separator,
                           const char* none) {
  const char* text = "";
  for (unsigned bit = 0; bit < 64; ++bit) {
    const char* name = accx_bit_name(table, mask, bit);
    if (name)
      text = accx_text("%s%s%s", text, text[0] ? separator : "", name);
  }
  return text[0] ? text : none;
}
