/* format/common.c - the known sections, and the allowed values of single fields. See
 * format/common.h. It may not allocate. */
#include "format/common.h"

#include <string.h>

/* ---- Sections ---- */

static const accx_section_kind_t section_kinds[] = {
#define DEF_SECTION(number, name, word, bytes, alignment, required, since, meaning)                \
  {number, bytes, alignment, required, since, word},
#include "format/format.def"
};

const accx_section_kind_t* accx_section_kind(uint32_t type) {
  for (size_t i = 0; i < sizeof section_kinds / sizeof section_kinds[0]; ++i) {
    if (section_kinds[i].type == type)
      return &section_kinds[i];
  }
  return NULL;
}

/* ---- Names and sizes ---- */

#define MAX_FILE_NAME_BYTES 255u

/* One component of a path, and neither this folder nor the one above. */
bool accx_file_name_good(const char* name) {
  const size_t length = strlen(name);
  if (length > MAX_FILE_NAME_BYTES || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
    return false;
  for (size_t i = 0; i < length; ++i) {
    if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7F)
      return false;
  }
  return true;
}

bool accx_pack_name_good(const char* name) {
  for (const char* at = name; *at != '\0'; ++at) {
    const bool is_alnum =
        (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9');
    const bool is_mark = *at == '.' || *at == '_' || *at == '-';
    if (!is_alnum && (!is_mark || at == name))
      return false;
  }
  return name[0] != '\0' && strlen(name) <= ACCX_MAX_PACK_NAME_BYTES;
}

uint64_t accx_volume(const uint32_t sizes[3], uint32_t limit) {
  uint64_t product = 1;
  for (int i = 0; i < 3; ++i)
    product = sizes[i] <= limit ? product * sizes[i] : 0;
  return product;
}
