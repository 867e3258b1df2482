/* runtime/core/elf_check.h - the first checks of any ELF file from outside: that it is ELF, and
 * that the tables of its header lie inside the file. For images of the host and of devices. It
 * loads nothing.
 */
#ifndef ACCRT_RUNTIME_CORE_ELF_CHECK_H_
#define ACCRT_RUNTIME_CORE_ELF_CHECK_H_

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/core/error.h"

#if defined(__x86_64__)
#define ACCRT_ELF_OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define ACCRT_ELF_OWN_MACHINE EM_AARCH64
#endif

/* Why an image was refused, with the values that are wrong. */
typedef struct accrt_image_fault {
  char text[200];
} accrt_image_fault_t;

/* Sets the reason and returns false. */
bool accrt_image_fault(accrt_image_fault_t* out_fault, const char* format, ...) ACCRT_PRINTF(2, 3);

/* Copies the header of a 64-bit little-endian ELF file of `size_bytes` whose program and section
 * headers lie inside it. Only the first 64 bytes are read. If false, out_fault has the reason. */
bool accrt_elf_read_header(const void* bytes, uint64_t size_bytes, Elf64_Ehdr* out_header,
                           accrt_image_fault_t* out_fault);

/* Whether the system's loader may map this file of `size_bytes`: it would end the process with
 * SIGBUS where a segment lies behind the file's end, and call a file of another machine "not
 * found". If false, out_fault has the reason. */
bool accrt_elf_check_file(int fd, uint64_t size_bytes, accrt_image_fault_t* out_fault);

#endif /* ACCRT_RUNTIME_CORE_ELF_CHECK_H_ */
