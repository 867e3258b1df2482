/* runtime/core/key.c - keys: making them, and their files. A file is believed after its size, kind and mode have been looked at.
 *
 * PEM is read and written here: the DER inside has a fixed beginning for each kind, so nothing is parsed that is not compared.
 */
#define _GNU_SOURCE
#include "runtime/core/key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/crypto.h"
#include "runtime/core/error.h"
#include "runtime/core/file_io.h"
#include "runtime/core/fork.h"
#include "runtime/core/hash128.h"

#define MAX_FILE_BYTES 4096u
#define MAX_DER_BYTES 64u

typedef struct key_kind {
  const char* label;
  const char* what;
  unsigned char prefix[16];
  uint32_t prefix_bytes;
  mode_t mode;
  mode_t refused; /* bits that the file may not have */
} key_kind_t;

static const key_kind_t kinds[] = {
    [ACCRT_KEY_PRIVATE] = {"PRIVATE KEY", "a private Ed25519 key",
                           "\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20", 16,
                           0600, 077},
    [ACCRT_KEY_PUBLIC] = {"PUBLIC KEY", "a public Ed25519 key",
                          "\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12, 0644, 002},
    [ACCRT_KEY_SECRET] = {"ACCRT SECRET KEY", "a key for encryption", "", 0, 0600, 077},
};

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* ---- Text ---- */

static bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Base64 of at most MAX_DER_BYTES up to `end`, white space left out. Returns the number of bytes, or 0. */
static size_t decode(const char* text, const char* end, unsigned char* out_bytes) {
  uint32_t bits = 0;
  size_t count = 0, padding = 0, size = 0;
  for (; text < end; ++text) {
    if (is_space(*text))
      continue;
    const char* digit = *text != '\0' ? strchr(digits, *text) : NULL;
    if (*text == '=')
      ++padding;
    else if (digit == NULL || padding > 0)
      return 0;
    bits = bits << 6 | (digit != NULL ? (uint32_t)(digit - digits) : 0);
    if (++count % 4 != 0)
      continue;
    if (size + 3 > MAX_DER_BYTES || padding > 2)
      return 0;
    for (int shift = 16; shift >= 0; shift -= 8)
      out_bytes[size++] = (unsigned char)(bits >> shift);
    size -= padding;
    bits = 0;
  }
  return count % 4 == 0 ? size : 0;
}

static size_t encode(const unsigned char* bytes, size_t size_bytes, char* out_text) {
  size_t length = 0;
  for (size_t i = 0; i < size_bytes; i += 3) {
    const size_t left = size_bytes - i;
    const uint32_t bits = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                          (left > 2 ? (uint32_t)bytes[i + 2] : 0);
    out_text[length++] = digits[bits >> 18];
    out_text[length++] = digits[bits >> 12 & 63];
    out_text[length++] = left > 1 ? digits[bits >> 6 & 63] : '=';
    out_text[length++] = left > 2 ? digits[bits & 63] : '=';
  }
  return length;
}

static bool parse(const key_kind_t* kind, const char* text, accrt_key_t* out_key) {
  char line[64];
  unsigned char der[MAX_DER_BYTES];
  (void)snprintf(line, sizeof line, "-----BEGIN %s-----", kind->label);
  const char* begin = strstr(text, line);
  if (begin == NULL)
    return false;
  begin += strlen(line);
  (void)snprintf(line, sizeof line, "-----END %s-----", kind->label);
  const char* end = strstr(begin, line);
  const size_t size = end != NULL ? decode(begin, end, der) : 0;
  const bool good = size == kind->prefix_bytes + sizeof out_key->bytes &&
                    memcmp(der, kind->prefix, kind->prefix_bytes) == 0;
  if (good)
    memcpy(out_key->bytes, der + kind->prefix_bytes, sizeof out_key->bytes);
  accrt_wipe(der, sizeof der);
  return good;
}

/* ---- Files ---- */

static accrt_status_t check_file(const char* path, const key_kind_t* kind, int fd) {
  struct stat facts;
  if (fstat(fd, &facts) != 0)
    return ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", path, strerror(errno));
  if (!S_ISREG(facts.st_mode) || facts.st_size > (off_t)MAX_FILE_BYTES) {
    return ACCRT_FAIL(
        INVALID_FORMAT, "%s: not %s: mode %o, %lld bytes; a regular file of at most %u is expected",
        path, kind->what, (unsigned)facts.st_mode, (long long)facts.st_size, MAX_FILE_BYTES);
  }
  if ((facts.st_mode & kind->refused) == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(PERMISSION_DENIED, "%s: others may %s it (mode %03o); chmod %03o it first",
                    path, kind->refused == 002 ? "write" : "read", (unsigned)(facts.st_mode & 0777),
                    (unsigned)kind->mode);
}

static accrt_status_t read_text(const char* path, const key_kind_t* kind, char* text) {
  /* Not blocking: the path may be a FIFO, which check_file then refuses. */
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR)
      return ACCRT_FAIL_ERRNO(NOT_FOUND, error, "%s: no such file", path);
    return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be opened: %s", path, strerror(error));
  }
  accrt_status_t status = check_file(path, kind, fd);
  uint64_t size = 0;
  const int error =
      status == ACCRT_OK ? accrt_file_read(fd, -1, 0, text, MAX_FILE_BYTES, &size) : 0;
  if (error != 0)
    status = ACCRT_FAIL_ERRNO(IO, error, "%s: %s", path, strerror(error));
  text[size] = '\0';
  close(fd);
  return status;
}

static accrt_status_t check_kind(uint32_t kind) {
  if (kind >= ACCRT_KEY_PRIVATE && kind <= ACCRT_KEY_SECRET)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "kind is %" PRIu32 ", not one of ACCRT_KEY_*", kind);
}

accrt_status_t accrt_key_load(const char* path, uint32_t kind, accrt_key_t* out_key) {
  char text[MAX_FILE_BYTES + 1];
  accrt_status_t status = read_text(path, &kinds[kind], text);
  if (status == ACCRT_OK && !parse(&kinds[kind], text, out_key)) {
    status = ACCRT_FAIL_INNER(INVALID_FORMAT, "%s: it does not hold %s (PEM, '%s')", path,
                              kinds[kind].what, kinds[kind].label);
  }
  accrt_wipe(text, sizeof text);
  return status;
}

/* Writes to a file that it has made, or takes it away again. */
static accrt_status_t write_text(const char* path, int fd, const char* text, size_t size) {
  int error = accrt_file_write(fd, -1, text, size);
  if (error == 0 && fsync(fd) != 0)
    error = errno;
  if (close(fd) != 0 && error == 0)
    error = errno;
  if (error == 0)
    return ACCRT_OK;
  (void)unlink(path);
  return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be written: %s", path, strerror(error));
}

static size_t make_text(const key_kind_t* kind, const accrt_key_t* key, char* text,
                        size_t capacity) {
  unsigned char der[MAX_DER_BYTES];
  char body[MAX_DER_BYTES * 2];
  memcpy(der, kind->prefix, kind->prefix_bytes);
  memcpy(der + kind->prefix_bytes, key->bytes, sizeof key->bytes);
  const size_t length = encode(der, kind->prefix_bytes + sizeof key->bytes, body);
  const int size = snprintf(text, capacity, "-----BEGIN %s-----\n%.*s\n-----END %s-----\n",
                            kind->label, (int)length, body, kind->label);
  accrt_wipe(der, sizeof der);
  accrt_wipe(body, sizeof body);
  return (size_t)size;
}

/* ---- The public functions ---- */

static accrt_status_t check_arguments(const char* operation, const void* instance, const void* a,
                                      const void* b) {
  const accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  return instance != NULL && a != NULL && b != NULL
             ? ACCRT_OK
             : ACCRT_FAIL(INVALID_ARGUMENT, "an argument is NULL");
}

accrt_status_t accrt_key_generate(accrt_instance_t* instance, accrt_key_t* out_key) {
  const accrt_status_t status = check_arguments(__func__, instance, out_key, out_key);
  return status == ACCRT_OK ? accrt_random(out_key->bytes, sizeof out_key->bytes) : status;
}

accrt_status_t accrt_key_public(accrt_instance_t* instance, const accrt_key_t* private_key,
                                accrt_key_t* out_public) {
  const accrt_crypto_t* crypto;
  accrt_status_t status = check_arguments(__func__, instance, private_key, out_public);
  if (status == ACCRT_OK)
    status = accrt_instance_crypto(instance, &crypto);
  if (status != ACCRT_OK)
    return status;
  return accrt_crypto_public_key(crypto, private_key, out_public)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses Ed25519 keys");
}

accrt_status_t accrt_key_read(accrt_instance_t* instance, const char* path, uint32_t kind,
                              accrt_key_t* out_key) {
  accrt_status_t status = check_arguments(__func__, instance, path, out_key);
  if (status == ACCRT_OK)
    status = check_kind(kind);
  return status == ACCRT_OK ? accrt_key_load(path, kind, out_key) : status;
}

accrt_status_t accrt_key_write(accrt_instance_t* instance, const char* path, uint32_t kind,
                               const accrt_key_t* key) {
  accrt_status_t status = check_arguments(__func__, instance, path, key);
  if (status == ACCRT_OK)
    status = check_kind(kind);
  if (status != ACCRT_OK)
    return status;
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kinds[kind].mode);
  if (fd < 0) {
    const int error = errno;
    if (error == EEXIST)
      return ACCRT_FAIL_ERRNO(ALREADY_EXISTS, error, "%s: it is there already", path);
    return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be made: %s", path, strerror(error));
  }
  char text[256];
  const size_t size = make_text(&kinds[kind], key, text, sizeof text);
  status = write_text(path, fd, text, size);
  accrt_wipe(text, sizeof text);
  return status;
}

accrt_status_t accrt_key_sign(accrt_instance_t* instance, const accrt_key_t* private_key,
                              const void* data, uint64_t size_bytes, uint8_t* out_signature) {
  const accrt_crypto_t* crypto;
  accrt_status_t status = check_arguments(__func__, instance, private_key, out_signature);
  if (status == ACCRT_OK && data == NULL && size_bytes != 0)
    status = ACCRT_FAIL(INVALID_ARGUMENT, "data is NULL");
  if (status == ACCRT_OK)
    status = accrt_instance_crypto(instance, &crypto);
  if (status != ACCRT_OK)
    return status;
  return accrt_crypto_sign(crypto, private_key, data, (size_t)size_bytes, out_signature)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses to sign with Ed25519");
}

const char* accrt_key_text(const accrt_key_t* key, char text[ACCRT_KEY_TEXT_BYTES]) {
  memcpy(text, "ed25519:", 8);
  (void)accrt_hex(key->bytes, 8, text + 8);
  return text;
}
