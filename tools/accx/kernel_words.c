/* tools/accx/kernel_words.c - findings of accx kernel check in words. accrt.Kernel.check has the
 * same. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>

#include "kernel.h"

const char* accx_kernel_word(uint32_t what) {
  switch (what) {
  case ACCX_KERNEL_WRITES_OUTSIDE:
    return "writes_outside";
  case ACCX_KERNEL_READS_OUTSIDE:
  case ACCX_KERNEL_DEPENDS_OUTSIDE:
    return "reads_outside";
  case ACCX_KERNEL_REACHES_OUTSIDE:
    return "reaches_outside";
  case ACCX_KERNEL_WRITES_READ:
    return "writes_read_argument";
  case ACCX_KERNEL_CHANGES:
    return "not_deterministic";
  case ACCX_KERNEL_CHANGES_RECORDED:
    return "not_capturable";
  case ACCX_KERNEL_LEAVES:
    return "leaves_unwritten";
  case ACCX_KERNEL_REFUSES:
    return "refuses";
  case ACCX_KERNEL_CRASHES:
    return "crashes";
  case ACCX_KERNEL_ENDLESS:
    return "too_long";
  case ACCX_KERNEL_EXITS:
    return "exits";
  case ACCX_KERNEL_STARTS:
    return "starts_processes";
  case ACCX_KERNEL_SPOILS:
    return "writes_files";
  default:
    return "";
  }
}

static const char* signal_text(uint32_t number) {
  switch (number) {
  case SIGSEGV:
    return " (SIGSEGV)";
  case SIGBUS:
    return " (SIGBUS)";
  case SIGILL:
    return " (SIGILL)";
  case SIGFPE:
    return " (SIGFPE)";
  case SIGABRT:
    return " (SIGABRT)";
  case SIGTRAP:
    return " (SIGTRAP)";
  default:
    return "";
  }
}

/* "byte 0 after its end", "byte 1 before its beginning". */
static const char* where(const accx_kernel_note_t* note) {
  if (note->byte < 0)
    return accx_text("byte %" PRId64 " before its beginning", -note->byte);
  if ((uint64_t)note->byte >= note->size_bytes)
    return accx_text("byte %" PRId64 " after its end", note->byte - (int64_t)note->size_bytes);
  return accx_text("byte %" PRId64, note->byte);
}

static const char* finding(const accx_kernel_note_t* note) {
  const char* name = note->name;
  switch (note->what) {
  case ACCX_KERNEL_WRITES_OUTSIDE:
    return accx_text("writes outside of %s: %s", name, where(note));
  case ACCX_KERNEL_READS_OUTSIDE:
    return accx_text("reads outside of %s: %s", name, where(note));
  case ACCX_KERNEL_REACHES_OUTSIDE:
    return accx_text("reads or writes outside of %s: %s", name, where(note));
  case ACCX_KERNEL_WRITES_READ:
    return accx_text("writes %s, which is declared as read: byte %" PRId64, name, note->byte);
  case ACCX_KERNEL_CHANGES:
    return accx_text("gives other bytes in %s when it runs again: from byte %" PRId64 " on", name,
                     note->byte);
  case ACCX_KERNEL_CHANGES_RECORDED:
    return accx_text("gives other bytes in %s from a recorded list: from byte %" PRId64 " on", name,
                     note->byte);
  case ACCX_KERNEL_DEPENDS_OUTSIDE:
    return accx_text("reads outside of its arguments: %s depends on what lies there, from byte "
                     "%" PRId64 " on",
                     name, note->byte);
  case ACCX_KERNEL_LEAVES:
    return accx_text("does not write all of %s, or reads it: byte %" PRId64
                     " depends on what was there before",
                     name, note->byte);
  case ACCX_KERNEL_REFUSES:
    return accx_text("refuses its arguments: %s", note->text);
  case ACCX_KERNEL_CRASHES:
    if (note->number == 0)
      return accx_text("crashed: %s", note->text);
    return accx_text("crashed with signal %" PRIu32 "%s", note->number, signal_text(note->number));
  case ACCX_KERNEL_EXITS:
    return accx_text("ends the process that runs it, or closes its files: exit code %" PRIu32,
                     note->number);
  case ACCX_KERNEL_STARTS:
    return "starts other processes, which were ended";
  case ACCX_KERNEL_SPOILS:
    return "writes to files of the process that runs it";
  default:
    return accx_text("runs longer than %" PRIu32 " second%s", note->number,
                     note->number == 1 ? "" : "s");
  }
}

const char* accx_kernel_line(const char* subject, const accx_kernel_note_t* note) {
  return accx_text("%s %s%s%s", subject, finding(note), note->with[0] ? ", with " : "", note->with);
}
