/* tools/accx/deprecated.c - content of bundles that readers still read and the next major drops. */
#include "deprecated.h"

#define SECTION_COMMANDS 14u

/* Add a line here and to docs/contract.md in the minor that deprecates something. Lines stay for
 * the whole major. The last one ends the table. */
const accx_deprecated_t accx_deprecated[] = {{0, 0, NULL, NULL, NULL}};
const size_t accx_deprecated_count = sizeof accx_deprecated / sizeof *accx_deprecated - 1;

const char* accx_deprecated_kind(const accx_deprecated_t* entry) {
  static const char* const names[] = {"section", "opcode", "layout"};
  return names[entry->kind];
}

static void note(const accx_deprecated_t* list, size_t count, uint32_t kind, uint32_t number,
                 bool* held) {
  for (size_t i = 0; i < count; ++i)
    held[i] = held[i] || (list[i].kind == kind && list[i].number == number);
}

/* Every command begins with opcode (u16), flags (u16) and size (u32). The bundle is verified, so
 * the sizes add up. */
static accrt_status_t note_commands(accrt_bundle_t* bundle, uint32_t section, uint64_t size_bytes,
                                    const accx_deprecated_t* list, size_t count, bool* held) {
  for (uint64_t at = 0; at + 8 <= size_bytes;) {
    unsigned char head[8];
    const accrt_status_t status = accrt_bundle_section_read(bundle, section, at, head, sizeof head);
    if (status != ACCRT_OK)
      return status;
    note(list, count, ACCX_DEPRECATED_OPCODE, head[0] | (uint32_t)head[1] << 8, held);
    const uint32_t command_bytes =
        head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24;
    at += command_bytes < sizeof head ? sizeof head : command_bytes;
  }
  return ACCRT_OK;
}

static accrt_status_t note_sections(accrt_bundle_t* bundle, uint32_t sections,
                                    const accx_deprecated_t* list, size_t count, bool* held) {
  bool opcodes = false;
  for (size_t i = 0; i < count; ++i)
    opcodes = opcodes || list[i].kind == ACCX_DEPRECATED_OPCODE;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < sections && status == ACCRT_OK; ++i) {
    accrt_section_info_t info = ACCRT_SECTION_INFO_INIT;
    status = accrt_bundle_section(bundle, i, &info);
    note(list, count, ACCX_DEPRECATED_SECTION, info.type, held);
    if (status == ACCRT_OK && info.type == SECTION_COMMANDS && opcodes)
      status = note_commands(bundle, i, info.size_bytes, list, count, held);
  }
  return status;
}

accrt_status_t accx_deprecated_find(accrt_bundle_t* bundle, const accx_deprecated_t* list,
                                    size_t count, bool* out_held) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  for (size_t i = 0; i < count; ++i)
    out_held[i] = false;
  accrt_status_t status = accrt_bundle_info(bundle, &info);
  if (status == ACCRT_OK)
    status = note_sections(bundle, info.section_count, list, count, out_held);
  for (uint32_t i = 0; i < info.constant_count && status == ACCRT_OK; ++i) {
    accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
    status = accrt_bundle_constant(bundle, i, &constant);
    note(list, count, ACCX_DEPRECATED_LAYOUT, constant.encoding, out_held);
  }
  return status;
}
