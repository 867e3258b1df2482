/* abi/api.c - accrt_get_api and accrt_version. It may not have state. */
#include "accrt/api.h"

#include <string.h>

#include "abi/api_fill.h"
#include "abi/watch.h"
#include "runtime/core/error.h"

uint32_t accrt_version(void) {
  return ACCRT_VERSION;
}

#ifdef ACCRT_WATCH_STUBS
/* How far each entry point of abi/entries.c is from the table; 0 for other functions. */
#define MEMBER(name) ".long 0\n"
#define ENTRY_MEMBER(name)                                                                         \
  ".hidden accrt_entry_" #name "\n"                                                                \
  ".long accrt_entry_" #name " - accrt_api_entries\n"
extern const int32_t accrt_api_entries[] __attribute__((visibility("hidden")));
/* One statement, which keeps the order; other compilers' limits for strings do not matter here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverlength-strings"
__asm__(".pushsection .rodata.accrt_api_entries,\"a\",@progbits\n"
        ".balign 4\n"
        ".globl accrt_api_entries\n"
        ".hidden accrt_api_entries\n"
        "accrt_api_entries:\n"
#include "abi/api_table.inc"
        ".popsection\n");
#pragma GCC diagnostic pop
#undef ENTRY_MEMBER
#undef MEMBER
#define ENTRY_MEMBER(name)

static void fill_entries(accrt_api_t* own) {
  unsigned char* member = (unsigned char*)own + ACCRT_API_HEAD_BYTES;
  for (size_t i = 0; i < (sizeof *own - ACCRT_API_HEAD_BYTES) / sizeof(void*); ++i) {
    const uintptr_t entry =
        (uintptr_t)accrt_api_entries + (uintptr_t)(intptr_t)accrt_api_entries[i];
    memcpy(member + i * sizeof entry, &entry, sizeof entry);
  }
}
#else
#define ENTRY_MEMBER(name) MEMBER(name)

static void fill_entries(accrt_api_t* own) {
  (void)own;
}
#endif

accrt_status_t accrt_get_api(uint32_t version, accrt_api_t* table, size_t size_bytes) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  accrt_api_t own;
  own.struct_size = (uint32_t)sizeof own;
  own.library_version = ACCRT_VERSION;
  fill_entries(&own);
  /* By code: a constant table would cost a relocation of 24 bytes for each pointer. */
#define MEMBER(name) own.name = accrt_##name;
#include "abi/api_table.inc"
#undef MEMBER
  return accrt_api_fill(&own, sizeof own, version, table, size_bytes);
}
