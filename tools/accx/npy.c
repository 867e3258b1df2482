/* tools/accx/npy.c - the .npy format. A file has a magic number, two version bytes, a header length
 * (2 bytes in version 1, 4 in 2 and 3), a header that is a Python dictionary of three keys, and the
 * bytes:
 *
 *   "\x93NUMPY" 1 0 LENGTH {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } spaces
 *   \n bytes
 *
 * The reader trusts nothing in a file: it limits the header, parses the dictionary strictly, and
 * checks sizes before it allocates.
 */
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/put_file.h"
#include "signature.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define MAX_HEADER_BYTES 4096
#define DATA_ALIGN 64

/* ---- Data types ---- */

typedef struct npy_type {
  const char* descr;
  accrt_dtype_t dtype;
} npy_type_t;

/* Of several entries for a data type, the first one is used for writing. */
static const npy_type_t types[] = {
    {"|b1", ACCRT_DTYPE_BOOL}, {"|i1", ACCRT_DTYPE_I8},   {"<i2", ACCRT_DTYPE_I16},
    {"<i4", ACCRT_DTYPE_I32},  {"<i8", ACCRT_DTYPE_I64},  {"|u1", ACCRT_DTYPE_U8},
    {"<u2", ACCRT_DTYPE_U16},  {"<u4", ACCRT_DTYPE_U32},  {"<u8", ACCRT_DTYPE_U64},
    {"<f2", ACCRT_DTYPE_F16},  {"<f4", ACCRT_DTYPE_F32},  {"<f8", ACCRT_DTYPE_F64},
    {"<V2", ACCRT_DTYPE_BF16}, {"|V2", ACCRT_DTYPE_BF16}, {"<i1", ACCRT_DTYPE_I8},
    {"<u1", ACCRT_DTYPE_U8},   {"<b1", ACCRT_DTYPE_BOOL}, {"|?", ACCRT_DTYPE_BOOL},
    {"?", ACCRT_DTYPE_BOOL},
};
#define TYPE_COUNT (sizeof types / sizeof *types)

static int find_type(const char* descr, const char* what, accrt_dtype_t* out_dtype) {
  for (size_t i = 0; i < TYPE_COUNT; ++i) {
    if (strcmp(types[i].descr, descr) == 0) {
      *out_dtype = types[i].dtype;
      return ACCX_OK;
    }
  }
  if (descr[0] == '>')
    return accx_fail(ACCX_FAILED,
                     "%s is big-endian ('%s'); save it with a.astype(a.dtype.newbyteorder('<'))",
                     what, descr);
  if (descr[0] == '|' && descr[1] == 'O')
    return accx_fail(ACCX_FAILED, "%s holds Python objects, not numbers", what);
  return accx_fail(ACCX_FAILED, "%s has the data type '%s', which bundles do not support", what,
                   descr);
}

/* ---- Header ---- */

typedef struct npy_header {
  char descr[16];
  bool has_descr, has_order, has_shape;
  bool fortran_order;
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
} npy_header_t;

typedef struct scanner {
  const char* at; /* NUL-terminated */
} scanner_t;

static void skip_space(scanner_t* scanner) {
  while (*scanner->at == ' ' || *scanner->at == '\n' || *scanner->at == '\t')
    ++scanner->at;
}

static bool take(scanner_t* scanner, char wanted) {
  skip_space(scanner);
  if (*scanner->at != wanted)
    return false;
  ++scanner->at;
  return true;
}

static bool take_word(scanner_t* scanner, const char* word) {
  skip_space(scanner);
  const size_t length = strlen(word);
  if (strncmp(scanner->at, word, length) != 0)
    return false;
  scanner->at += length;
  return true;
}

/* Reads a quoted string without escapes, as numpy writes them. */
static bool take_string(scanner_t* scanner, char* target, size_t capacity_bytes) {
  skip_space(scanner);
  const char quote = *scanner->at;
  if (quote != '\'' && quote != '"')
    return false;
  const char* begin = scanner->at + 1;
  const char* end = strchr(begin, quote);
  if (!end || memchr(begin, '\\', (size_t)(end - begin)) || (size_t)(end - begin) >= capacity_bytes)
    return false;
  memcpy(target, begin, (size_t)(end - begin));
  target[end - begin] = '\0';
  scanner->at = end + 1;
  return true;
}

static bool take_size(scanner_t* scanner, int64_t* out_size) {
  skip_space(scanner);
  int64_t size = 0;
  const char* begin = scanner->at;
  for (; *scanner->at >= '0' && *scanner->at <= '9'; ++scanner->at) {
    if (__builtin_mul_overflow(size, 10, &size) ||
        __builtin_add_overflow(size, *scanner->at - '0', &size))
      return false;
  }
  *out_size = size;
  return scanner->at != begin;
}

static bool take_shape(scanner_t* scanner, npy_header_t* header) {
  if (!take(scanner, '('))
    return false;
  while (!take(scanner, ')')) {
    int64_t size = 0;
    if (!take_size(scanner, &size))
      return false;
    if (header->rank < ACCRT_MAX_RANK)
      header->shape[header->rank] = size;
    ++header->rank;
    if (take(scanner, ')'))
      return header->rank > 1; /* "(3)" is not a tuple */
    if (!take(scanner, ','))
      return false;
  }
  return true;
}

static bool take_entry(scanner_t* scanner, npy_header_t* header) {
  char key[16];
  if (!take_string(scanner, key, sizeof key) || !take(scanner, ':'))
    return false;
  if (strcmp(key, "descr") == 0 && !header->has_descr)
    return header->has_descr = take_string(scanner, header->descr, sizeof header->descr);
  if (strcmp(key, "shape") == 0 && !header->has_shape)
    return header->has_shape = take_shape(scanner, header);
  if (strcmp(key, "fortran_order") != 0 || header->has_order)
    return false;
  header->fortran_order = take_word(scanner, "True");
  return header->has_order = header->fortran_order || take_word(scanner, "False");
}

static bool parse_dictionary(const char* text, npy_header_t* out_header) {
  scanner_t scanner = {text};
  memset(out_header, 0, sizeof *out_header);
  if (!take(&scanner, '{'))
    return false;
  while (!take(&scanner, '}')) {
    if (!take_entry(&scanner, out_header))
      return false;
    if (!take(&scanner, ',') && *scanner.at != '}')
      return false;
  }
  skip_space(&scanner);
  return *scanner.at == '\0' && out_header->has_descr && out_header->has_order &&
         out_header->has_shape;
}

/* Reads up to the first byte of data. *out_bytes gets the number of bytes read. */
static int read_header(const accx_npy_source_t* source, const char* what, npy_header_t* out_header,
                       uint64_t* out_bytes) {
  uint8_t start[MAGIC_BYTES + 6] = {0};
  char text[MAX_HEADER_BYTES + 1];
  if (source->size_bytes < MAGIC_BYTES + 4 || !source->read(source->self, start, MAGIC_BYTES + 4) ||
      memcmp(start, MAGIC, MAGIC_BYTES) != 0)
    return accx_fail(ACCX_FAILED, "%s is not a .npy file (it does not begin with the magic number)",
                     what);
  const unsigned major = start[MAGIC_BYTES];
  if (major < 1 || major > 3)
    return accx_fail(ACCX_FAILED, "%s is of .npy version %u; 1, 2 and 3 are read", what, major);
  uint64_t length = (uint64_t)start[8] | (uint64_t)start[9] << 8;
  uint64_t before_bytes = MAGIC_BYTES + 4;
  if (major > 1) {
    if (!source->read(source->self, start + 10, 2))
      return accx_fail(ACCX_FAILED, "%s ends inside its header", what);
    length |= (uint64_t)start[10] << 16 | (uint64_t)start[11] << 24;
    before_bytes += 2;
  }
  if (length > MAX_HEADER_BYTES)
    return accx_fail(ACCX_FAILED, "%s has a header of %" PRIu64 " bytes; at most %d are read", what,
                     length, MAX_HEADER_BYTES);
  if (!source->read(source->self, text, (size_t)length))
    return accx_fail(ACCX_FAILED, "%s ends inside its header", what);
  text[length] = '\0';
  if (strlen(text) != length || !parse_dictionary(text, out_header))
    return accx_fail(
        ACCX_FAILED,
        "%s has a header that is not {'descr': a simple type, 'fortran_order': ..., 'shape': ...}",
        what);
  *out_bytes = before_bytes + length;
  return ACCX_OK;
}

/* ---- Reading ---- */

static int check_booleans(const accx_array_t* array, const char* what) {
  const uint8_t* bytes = array->data;
  for (uint64_t i = 0; i < array->size_bytes && array->dtype == ACCRT_DTYPE_BOOL; ++i) {
    if (bytes[i] > 1)
      return accx_fail(ACCX_FAILED, "%s holds %u as a boolean at element %" PRIu64, what, bytes[i],
                       i);
  }
  return ACCX_OK;
}

static int check_size(const accx_npy_source_t* source, const char* what, const npy_header_t* header,
                      accrt_dtype_t dtype, uint64_t before_bytes) {
  uint64_t size_bytes = accrt_dtype_bits(dtype) / 8;
  bool fits = true, empty = false;
  for (uint32_t i = 0; i < header->rank; ++i) {
    empty = empty || header->shape[i] == 0;
    fits = fits && !__builtin_mul_overflow(size_bytes, (uint64_t)header->shape[i], &size_bytes);
  }
  if (empty)
    size_bytes = 0;
  const uint64_t there_bytes = source->size_bytes - before_bytes;
  if ((!fits && !empty) || size_bytes != there_bytes)
    return accx_fail(ACCX_FAILED, "%s holds %" PRIu64 " bytes of data; %s needs %s", what,
                     there_bytes, accx_shape_text(dtype, header->rank, header->shape),
                     fits || empty ? accx_text("%" PRIu64, size_bytes)
                                   : "more than 64 bits can count");
  return ACCX_OK;
}

int accx_npy_parse(const accx_npy_source_t* source, const char* what, accx_array_t* out_array) {
  npy_header_t header = {.rank = 0};
  uint64_t before_bytes = 0;
  accrt_dtype_t dtype = ACCRT_DTYPE_NONE;
  memset(out_array, 0, sizeof *out_array);
  int code = read_header(source, what, &header, &before_bytes);
  if (!code)
    code = find_type(header.descr, what, &dtype);
  if (!code && header.rank > ACCRT_MAX_RANK)
    code = accx_fail(ACCX_FAILED, "%s has %u dimensions; at most %d are possible", what,
                     header.rank, ACCRT_MAX_RANK);
  if (!code && header.fortran_order && header.rank > 1)
    code = accx_fail(ACCX_FAILED, "%s is in Fortran order; save it with numpy.ascontiguousarray(a)",
                     what);
  if (!code)
    code = check_size(source, what, &header, dtype, before_bytes);
  if (!code)
    code = accx_array_create(dtype, header.rank, header.shape, what, out_array);
  if (!code && !source->read(source->self, out_array->data, (size_t)out_array->size_bytes))
    code = accx_fail(ACCX_FAILED, "%s cannot be read to its end", what);
  if (!code)
    code = check_booleans(out_array, what);
  if (code)
    accx_array_free(out_array);
  return code;
}

static bool read_file(void* self, void* target, size_t size_bytes) {
  return fread(target, 1, size_bytes, self) == size_bytes;
}

int accx_npy_read(const char* path, accx_array_t* out_array) {
  memset(out_array, 0, sizeof *out_array);
  FILE* file;
  struct stat facts;
  int code = accx_open_regular(path, 0, &file);
  if (code)
    return code;
  if (fstat(fileno(file), &facts) != 0)
    code = accx_fail(ACCX_FAILED, "cannot open %s: %s", path, strerror(errno));
  const accx_npy_source_t source = {file, code ? 0 : (uint64_t)facts.st_size, read_file};
  if (!code)
    code = accx_npy_parse(&source, path, out_array);
  fclose(file);
  return code;
}

/* ---- Writing ---- */

typedef struct written {
  const char* descr;
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
  const char* note;
} written_t;

static written_t written_form(const accx_array_t* array) {
  written_t form = {.descr = "|u1", .rank = array->rank};
  memcpy(form.shape, array->shape, sizeof form.shape);
  for (size_t i = 0; i < TYPE_COUNT && array->dtype != ACCRT_DTYPE_BF16; ++i) {
    if (types[i].dtype == array->dtype) {
      form.descr = types[i].descr;
      return form;
    }
  }
  const char* name = accrt_dtype_name(array->dtype);
  const uint32_t bits = accrt_dtype_bits(array->dtype);
  if (bits == 16) {
    form.descr = "<u2";
    form.note = accx_text("%s written as its bits, uint16", name);
  } else if (bits == 8) {
    form.note = accx_text("%s written as its bits, uint8", name);
  } else {
    form.rank = 1;
    form.shape[0] = (int64_t)array->size_bytes;
    form.note = accx_text("%s written as packed bytes, uint8, flat", name);
  }
  return form;
}

/* Formats the header, padded so that the data starts at a multiple of 64 bytes. */
static size_t format_header(const written_t* form, uint8_t* target, size_t capacity_bytes) {
  const char* shape = "";
  for (uint32_t i = 0; i < form->rank; ++i)
    shape = accx_text("%s%" PRId64 "%s", shape, form->shape[i],
                      i + 1 < form->rank ? ", "
                      : form->rank == 1  ? ","
                                         : "");
  char* text = (char*)target + MAGIC_BYTES + 4;
  const size_t room = capacity_bytes - MAGIC_BYTES - 4;
  const int length = snprintf(
      text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", form->descr, shape);
  const size_t used = MAGIC_BYTES + 4 + (size_t)length + 1;
  const size_t total = (used + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
  memset(text + length, ' ', total - used);
  target[total - 1] = '\n';
  memcpy(target, MAGIC "\x01\x00", MAGIC_BYTES + 2);
  const size_t header_bytes = total - MAGIC_BYTES - 4;
  target[MAGIC_BYTES + 2] = (uint8_t)(header_bytes & 0xFF);
  target[MAGIC_BYTES + 3] = (uint8_t)(header_bytes >> 8);
  return total;
}

/* Returns 0 or an errno. */
static int write_all(int fd, const void* bytes, uint64_t size_bytes) {
  for (const char* at = bytes; size_bytes > 0;) {
    const ssize_t done = write(fd, at, (size_t)size_bytes);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return done < 0 ? errno : EIO;
    at += done;
    size_bytes -= (uint64_t)done;
  }
  return 0;
}

static int write_to(int fd, const accx_array_t* array, const written_t* form) {
  uint8_t header[512]; /* enough for 8 dimensions of 19 digits */
  const size_t header_bytes = format_header(form, header, sizeof header);
  (void)signal(SIGXFSZ, SIG_IGN); /* exceeding a size limit becomes a failed write */
  const int error = write_all(fd, header, header_bytes);
  return error ? error : write_all(fd, array->data, array->size_bytes);
}

/* The descriptor of this process that a path as /dev/stderr leads to; -1: none. */
static int own_descriptor(const char* path) {
  struct stat wanted, found;
  const int descriptor = accrt_put_descriptor(path);
  const bool is_own = descriptor >= 0 && stat(path, &wanted) == 0 &&
                      fstat(descriptor, &found) == 0 && wanted.st_dev == found.st_dev &&
                      wanted.st_ino == found.st_ino;
  return is_own ? descriptor : -1;
}

/* A device, a pipe or an open file, in whose place no file is put. A descriptor of this process is
 * used as it is: it knows where in the file the next byte goes. Returns 0 or an errno. */
static int write_through(const char* path, int descriptor, const accx_array_t* array,
                         const written_t* form) {
  const int fd = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
                                 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
  if (fd < 0)
    return errno;
  const int error = write_to(fd, array, form);
  return close(fd) != 0 && !error ? errno : error;
}

int accx_npy_write(const char* path, const accx_array_t* array, const char** out_note) {
  const written_t form = written_form(array);
  *out_note = form.note;
  accrt_put_t put;
  int error = accrt_put_begin(&put, path, "", 0666, ACCRT_PUT_OF_NAME);
  if (error == EEXIST) {
    const int descriptor = own_descriptor(path);
    if (descriptor == STDOUT_FILENO)
      return accx_fail(ACCX_FAILED,
                       "cannot write %s: the report goes to standard output; '-' as the file "
                       "writes the file there in its place",
                       path);
    error = write_through(path, descriptor, array, &form);
  } else if (!error) {
    error = write_to(put.fd, array, &form);
    if (!error)
      error = accrt_put_end(&put, false);
    accrt_put_drop(&put);
  }
  return error ? accx_fail(ACCX_FAILED, "cannot write %s: %s", path, strerror(error)) : ACCX_OK;
}
