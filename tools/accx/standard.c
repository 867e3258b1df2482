/* tools/accx/standard.c - `-` as a file name. Verbs and the library need paths of regular files. So
 * input from standard input is copied to memory with a path, and output for standard output is
 * first written to a temporary folder. */
#define _GNU_SOURCE
#include "standard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char* input_path;
static int input = -1;
static const char *output_folder, *output_path;

const char* accx_standard_path(void) {
  return input_path;
}

const char* accx_standard_output_path(void) {
  return output_path;
}

static bool write_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t put = write(fd, bytes, size);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return false;
    bytes += put, size -= (size_t)put;
  }
  return true;
}

static bool copy_all(int from, int to) {
  char bytes[1 << 16];
  for (;;) {
    const ssize_t got = read(from, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 || !write_all(to, bytes, (size_t)(got > 0 ? got : 0)))
      return false;
    if (got == 0)
      return true;
  }
}

/* Copies standard input once, so that every read gets the same bytes. */
static int take_input(const char** out_path) {
  if (!input_path) {
    input = memfd_create("standard input", MFD_CLOEXEC);
    if (input < 0 || !copy_all(STDIN_FILENO, input) || lseek(input, 0, SEEK_SET) != 0)
      return accx_fail(ACCX_FAILED, "standard input: %s", strerror(errno));
    const char* path = accx_text("/proc/self/fd/%d", input);
    if (access(path, R_OK) != 0)
      return accx_fail(ACCX_FAILED,
                       "standard input: '-' needs /proc, which is not here; name a file");
    input_path = path;
  }
  *out_path = input_path;
  return ACCX_OK;
}

bool accx_standard_is_zip(const char* path) {
  char magic[4];
  return input_path && strcmp(path, input_path) == 0 &&
         pread(input, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
         memcmp(magic, "PK\3\4", sizeof magic) == 0;
}

static int take_output(const char** out_path) {
  const char* base = getenv("TMPDIR");
  if (output_path)
    return accx_fail(ACCX_USAGE, "'-' is given twice for what is written");
  char* folder = strdup(accx_text("%s/accx.XXXXXX", base && base[0] ? base : "/tmp"));
  if (!folder || !mkdtemp(folder)) {
    const int code = accx_fail(ACCX_FAILED, "standard output: no temporary folder in %s: %s",
                               base && base[0] ? base : "/tmp", strerror(errno));
    free(folder);
    return code;
  }
  output_folder = accx_text("%s", folder);
  *out_path = output_path = accx_text("%s/standard-output.accx", folder);
  free(folder);
  return ACCX_OK;
}

/* Replaces "-", or "NAME=-" where a name may precede a file. */
static int take_value(const accx_option_t* option, accx_given_t* given) {
  const char* value = given->value;
  if (!value || !option->value)
    return ACCX_OK;
  const bool named = strstr(option->value, "NAME=") != NULL;
  const char* equals = named ? strrchr(value, '=') : NULL;
  const char* last = equals ? equals + 1 : value;
  if (strcmp(last, "-") != 0 ||
      (!strstr(option->value, "FILE") && !strstr(option->value, "PATH") && !named))
    return ACCX_OK;
  const char* path = NULL;
  const int code = strcmp(option->name, "output") == 0 ? take_output(&path) : take_input(&path);
  if (!code)
    given->value = accx_text("%.*s%s", (int)(last - value), value, path);
  return code;
}

int accx_standard_take(accx_args_t* args) {
  const accx_operand_kind_t kind = args->verb->operand_kind;
  int code = ACCX_OK;
  for (size_t i = 0; i < args->given_count && !code; ++i)
    code = take_value(args->given[i].option, &args->given[i]);
  for (size_t i = 0; i < args->operand_count && !code && kind != ACCX_WORDS; ++i) {
    if (strcmp(args->operands[i], "-") != 0)
      continue;
    const bool writes = kind == ACCX_READS_THEN_WRITES && i + 1 == args->operand_count;
    code = writes ? take_output(&args->operands[i]) : take_input(&args->operands[i]);
  }
  return code;
}

int accx_standard_deliver(int code, bool* out_delivered) {
  *out_delivered = false;
  if (!output_path)
    return code;
  const int fd = code == ACCX_OK ? open(output_path, O_RDONLY | O_CLOEXEC) : -1;
  if (code == ACCX_OK && (fd < 0 || !copy_all(fd, STDOUT_FILENO)))
    code = accx_fail(ACCX_FAILED, "cannot write standard output: %s", strerror(errno));
  if (fd >= 0)
    close(fd);
  (void)unlink(output_path);
  (void)rmdir(output_folder);
  output_path = output_folder = NULL;
  *out_delivered = true;
  return code;
}
