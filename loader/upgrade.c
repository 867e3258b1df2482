/* loader/upgrade.c - the forms that a section's records have had, and the conversion of older ones
 * to the newest. See loader/upgrade.h. It uses only private memory. */
#include "loader/upgrade.h"

/* Sections whose records have had several forms, by type and then by minor version. */
static const struct {
  uint32_t type;
  uint32_t record_bytes;
  uint32_t minor;
} forms[] = {
    {ACCX_SECTION_CONSTANTS, ACCX_CONSTANT_BYTES_0_1, 1},
    {ACCX_SECTION_CONSTANTS, sizeof(accx_constant_t), 3},
};
#define FORM_COUNT (sizeof forms / sizeof forms[0])

/* Fields that older forms lack and that default to NONE. All others default to 0. */
static const struct {
  uint32_t type;
  uint32_t offset;
} none_fields[] = {
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, file)},
};
#define NONE_FIELD_COUNT (sizeof none_fields / sizeof none_fields[0])

/* By distance from this library's major version: one before, two before. There is no major before
 * 0. */
static const accx_upgrade_major_t older_majors[ACCX_OLDER_MAJORS] = {NULL, NULL};

accx_upgrade_major_t accx_upgrade_of_major(uint32_t major) {
  const uint32_t distance = ACCX_CONTAINER_MAJOR - major; /* wraps for newer ones */
  return distance - 1 < ACCX_OLDER_MAJORS ? older_majors[distance - 1] : NULL;
}

uint32_t accx_form_minor(const accx_section_kind_t* kind, uint32_t record_bytes) {
  for (size_t i = 0; i < FORM_COUNT; ++i) {
    if (forms[i].type == kind->type && forms[i].record_bytes == record_bytes)
      return forms[i].minor;
  }
  return kind->record_bytes == record_bytes ? kind->since_minor : 0;
}

/* Size of the previous form; 0 when there is none. */
static uint32_t bytes_before(const accx_section_kind_t* kind, uint32_t record_bytes) {
  uint32_t before = 0;
  for (size_t i = 0; i < FORM_COUNT; ++i) {
    if (forms[i].type == kind->type && forms[i].record_bytes < record_bytes)
      before = forms[i].record_bytes;
  }
  return before;
}

/* The default of the u32 at an offset that a record's form lacks. */
static uint32_t default_at(const accx_section_kind_t* kind, uint32_t offset) {
  for (size_t i = 0; i < NONE_FIELD_COUNT; ++i) {
    if (none_fields[i].type == kind->type && none_fields[i].offset == offset)
      return ACCX_NONE;
  }
  return 0;
}

/* Copies whole words; records consist of words. */
static void copy_words(unsigned char* target, const unsigned char* from, size_t size_bytes) {
  for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t))
    memcpy(target + at, from + at, sizeof(uint64_t));
}

void accx_form_widen(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                     uint32_t record_bytes, unsigned char* target) {
  const size_t wide = kind->record_bytes;
  for (uint32_t at = record_bytes; count > 0 && at < wide; at += (uint32_t)sizeof(uint32_t)) {
    const uint32_t value = default_at(kind, at);
    memcpy(target + at, &value, sizeof value);
  }
  for (uint32_t i = 0; i < count; ++i) {
    unsigned char* const record = target + i * wide;
    copy_words(record, records + (size_t)i * record_bytes, record_bytes);
    if (i > 0) /* fields that the form lacks have the same defaults in all records */
      copy_words(record + record_bytes, target + record_bytes, wide - record_bytes);
  }
}

bool accx_form_needed(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                      uint32_t record_bytes) {
  const uint32_t before = bytes_before(kind, record_bytes);
  if (before == 0)
    return true;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t at = before; at < record_bytes; at += (uint32_t)sizeof(uint32_t)) {
      uint32_t value;
      memcpy(&value, records + (size_t)i * kind->record_bytes + at, sizeof value);
      if (value != default_at(kind, at))
        return true;
    }
  }
  return false;
}
