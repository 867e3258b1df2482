/* runtime/core/error_fill.c - makes error records and fills them. Where a record goes is one
 * function of each library, accrt_error_put: this thread's record (error.c), a record of the
 * library below (write/shared.c), or a pack's own message (packs/cublaslt/failure.c). It may not
 * allocate and has no state. */
#define _GNU_SOURCE
#include "runtime/core/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Copies at most capacity-1 bytes and terminates. */
static void copy_text(char* target, size_t capacity, const char* text) {
  if (text == NULL)
    text = "";
  const size_t length = strnlen(text, capacity - 1);
  memcpy(target, text, length);
  target[length] = '\0';
}

static bool is_control(unsigned char byte) {
  return byte < 0x20 || byte == 0x7F;
}

/* True for the control characters above ASCII, in UTF-8. Terminals treat some of them like ESC. */
static bool is_high_control(const unsigned char* text) {
  return text[0] == 0xC2 && text[1] >= 0x80 && text[1] < 0xA0;
}

void accrt_text_one_line(char* text) {
  for (unsigned char* c = (unsigned char*)text; *c != '\0'; ++c) {
    if (is_high_control(c))
      *c++ = ' ';
    else if (!is_control(*c))
      continue;
    *c = ' ';
  }
}

static void clean_text(char* text, size_t capacity) {
  text[capacity - 1] = '\0';
  accrt_text_one_line(text);
}

void accrt_error_clean(accrt_error_t* error) {
  clean_text(error->driver_name, sizeof error->driver_name);
  clean_text(error->operation, sizeof error->operation);
  clean_text(error->source_file, sizeof error->source_file);
  clean_text(error->message, sizeof error->message);
}

void accrt_error_fill(accrt_error_t* error, const accrt_error_origin_t* origin, const char* format,
                      va_list arguments) {
  /* Format the message first, because its arguments may point into the record that is replaced. */
  char message[sizeof error->message];
  if (vsnprintf(message, sizeof message, format, arguments) < 0)
    message[0] = '\0';
  memset(error, 0, offsetof(accrt_error_t, message));
  error->struct_size = (uint32_t)sizeof *error;
  error->status = origin->status;
  error->driver_code = origin->driver_code;
  error->source_line = origin->line;
  copy_text(error->driver_name, sizeof error->driver_name, origin->driver_name);
  copy_text(error->operation, sizeof error->operation, origin->operation);
  const char* file = origin->file;
  const size_t file_length = file != NULL ? strlen(file) : 0;
  const size_t keep = sizeof error->source_file - 1;
  copy_text(error->source_file, sizeof error->source_file,
            file_length > keep ? file + (file_length - keep) : file);
  memcpy(error->message, message, sizeof message);
  accrt_error_clean(error);
}

void accrt_error_origin_at(accrt_error_place_t place, accrt_error_origin_t* out_origin,
                           char* file) {
  out_origin->status = (accrt_status_t)accrt_place_status(place);
  out_origin->line = place & 0xFFFu;
  out_origin->file = file;
  file[0] = '\0';
  const char* folder = "";
  const char* name = accrt_error_files;
  uint32_t left = place >> 12 & 0x3FFu;
  for (; left != 0 && name[0] != '\0'; name += strlen(name) + 1) {
    if (name[strlen(name) - 1] == '/')
      folder = name;
    else if (--left == 0)
      (void)snprintf(file, sizeof(((accrt_error_t*)NULL)->source_file), "%s%s.c", folder, name);
  }
}

/* Names by number, because glibc has strerrorname_np only since 2.32. First 1 to 40, which are the
 * same on every architecture, then others that calls of the library can fail with. */
static const char first_errno_names[] = "EPERM\0"
                                        "ENOENT\0"
                                        "ESRCH\0"
                                        "EINTR\0"
                                        "EIO\0"
                                        "ENXIO\0"
                                        "E2BIG\0"
                                        "ENOEXEC\0"
                                        "EBADF\0"
                                        "ECHILD\0"
                                        "EAGAIN\0"
                                        "ENOMEM\0"
                                        "EACCES\0"
                                        "EFAULT\0"
                                        "ENOTBLK\0"
                                        "EBUSY\0"
                                        "EEXIST\0"
                                        "EXDEV\0"
                                        "ENODEV\0"
                                        "ENOTDIR\0"
                                        "EISDIR\0"
                                        "EINVAL\0"
                                        "ENFILE\0"
                                        "EMFILE\0"
                                        "ENOTTY\0"
                                        "ETXTBSY\0"
                                        "EFBIG\0"
                                        "ENOSPC\0"
                                        "ESPIPE\0"
                                        "EROFS\0"
                                        "EMLINK\0"
                                        "EPIPE\0"
                                        "EDOM\0"
                                        "ERANGE\0"
                                        "EDEADLK\0"
                                        "ENAMETOOLONG\0"
                                        "ENOLCK\0"
                                        "ENOSYS\0"
                                        "ENOTEMPTY\0"
                                        "ELOOP\0";
enum { FIRST_ERRNO_NAMES = 40 };
static const struct {
  unsigned char number;
  char name[16];
} other_errno_names[] = {
    {71, "EPROTO"},      {75, "EOVERFLOW"},       {80, "ELIBBAD"},          {90, "EMSGSIZE"},
    {92, "ENOPROTOOPT"}, {93, "EPROTONOSUPPORT"}, {95, "EOPNOTSUPP"},       {97, "EAFNOSUPPORT"},
    {98, "EADDRINUSE"},  {99, "EADDRNOTAVAIL"},   {104, "ECONNRESET"},      {105, "ENOBUFS"},
    {107, "ENOTCONN"},   {110, "ETIMEDOUT"},      {111, "ECONNREFUSED"},    {113, "EHOSTUNREACH"},
    {116, "ESTALE"},     {121, "EREMOTEIO"},      {122, "EDQUOT"},          {123, "ENOMEDIUM"},
    {125, "ECANCELED"},  {130, "EOWNERDEAD"},     {131, "ENOTRECOVERABLE"}, {133, "EHWPOISON"}};

const char* accrt_errno_name(int error_number) {
  if (error_number >= 1 && error_number <= FIRST_ERRNO_NAMES)
    return accrt_nth_text(first_errno_names, (uint32_t)error_number - 1);
  for (size_t i = 0; i < sizeof other_errno_names / sizeof other_errno_names[0]; ++i) {
    if (other_errno_names[i].number == error_number)
      return other_errno_names[i].name;
  }
  return "errno";
}

accrt_status_t accrt_error_fail_at(accrt_error_place_t place, int error_number, const char* format,
                                   va_list arguments) {
  char file[sizeof(((accrt_error_t*)NULL)->source_file)];
  accrt_error_origin_t origin = {0};
  accrt_error_origin_at(place, &origin, file);
  origin.operation = accrt_error_operation();
  origin.driver_code = error_number;
  origin.driver_name = error_number != 0 ? accrt_errno_name(error_number) : NULL;
  accrt_error_put(&origin, format, arguments);
  return origin.status;
}

accrt_status_t accrt_error_fail(accrt_error_place_t place, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = accrt_error_fail_at(place, 0, format, arguments);
  va_end(arguments);
  return status;
}

accrt_status_t accrt_error_fail_errno(accrt_error_place_t place, int error_number,
                                      const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = accrt_error_fail_at(place, error_number, format, arguments);
  va_end(arguments);
  return status;
}

accrt_status_t accrt_error_fail_null(accrt_error_place_t place, const char* names,
                                     const void* const* arguments) {
  size_t length = strcspn(names, ",");
  for (; *arguments != NULL && names[length] != '\0'; ++arguments) {
    names += length + 2;
    length = strcspn(names, ",");
  }
  return accrt_error_fail(place, "%.*s is NULL", (int)length, names);
}

const char* accrt_number_text(const char* name, uint64_t number, const char* what, char* text) {
  if (name != NULL)
    return name;
  (void)snprintf(text, ACCRT_NUMBER_TEXT_BYTES, "%" PRIu64 " (no %s of this version)", number,
                 what);
  return text;
}

const char* accrt_nth_text(const char* texts, uint32_t index) {
  while (index-- > 0)
    texts += strlen(texts) + 1;
  return texts;
}
