/* runtime/core/elf_image.h - freestanding ELF images: machine code of kernel packs, loaded from
 * memory without the dynamic linker.
 *
 * Validates before it maps: the image names nothing outside itself, and none of its code runs while
 * it is loaded (no constructors, no resolvers). It knows no kernel ABI: it returns an address for a
 * name. Memory is never writable and executable at once.
 */
#ifndef ACCRT_RUNTIME_CORE_ELF_IMAGE_H_
#define ACCRT_RUNTIME_CORE_ELF_IMAGE_H_

#include <stdbool.h>

#include "accrt/instance.h"

/* Largest span of addresses of one image. */
#define ACCRT_ELF_MAX_SPAN_BYTES (UINT64_C(1) << 30)

/* A loaded image. */
typedef struct accrt_elf_image {
  unsigned char* base; /* address 0 of the image */
  size_t span_bytes;   /* [base, base + span_bytes) holds all of it */
  void* mapping;
  size_t mapping_size_bytes;
  uint64_t code_begin; /* executable addresses of the image */
  uint64_t code_end;
  /* Dynamic symbols, inside the mapping. */
  uint64_t symbols;
  uint64_t strings;
  uint64_t strings_size_bytes;
  uint32_t symbol_count;
} accrt_elf_image_t;

/* Loads `bytes`, which are read only during the call. `name` is for messages.
 * ACCRT_ERROR_INVALID_FORMAT names the fault. Other errors: ACCRT_ERROR_UNSUPPORTED (code of
 * another machine), ACCRT_ERROR_OUT_OF_MEMORY, ACCRT_ERROR_PERMISSION_DENIED (the system forbids
 * executable memory). */
accrt_status_t accrt_elf_image_load(const void* bytes, size_t size_bytes, const char* name,
                                    accrt_elf_image_t* out_image);
/* Unmaps the image. None of its code may be running. */
void accrt_elf_image_unload(accrt_elf_image_t* image);
/* Address of an exported function, or NULL when there is none or it is not code. */
void* accrt_elf_image_find(const accrt_elf_image_t* image, const char* symbol);
/* True when [pointer, pointer + size_bytes) lies in the loaded image. */
bool accrt_elf_image_contains(const accrt_elf_image_t* image, const void* pointer,
                              uint64_t size_bytes);
/* True when `pointer` lies in code of the image. */
bool accrt_elf_image_is_code(const accrt_elf_image_t* image, const void* pointer);

#endif /* ACCRT_RUNTIME_CORE_ELF_IMAGE_H_ */
