/* runtime/core/key.c - keys and their files. Before a file is used, its size, kind, owner and mode
 * are checked, and the folders above it.
 *
 * PEM is read and written here. The DER inside has a fixed beginning for each kind, so it is
 * compared and not parsed.
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
#include "runtime/core/put_file.h"
#include "runtime/core/fork.h"
#include "runtime/core/hash128.h"
#include "runtime/core/safe_open.h"

#define MAX_FILE_BYTES 4096u
#define MAX_DER_BYTES 64u

typedef struct key_kind {
  char label[17];
  char what[22];
  unsigned char prefix[16];
  uint32_t prefix_bytes;
  mode_t mode;
  mode_t refused; /* mode bits that the file may not have */
} key_kind_t;

static const key_kind_t kinds[] = {
    [ACCRT_KEY_PRIVATE] = {"PRIVATE KEY", "a private Ed25519 key",
                           "\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20", 16,
                           0600, 077},
    [ACCRT_KEY_PUBLIC] = {"PUBLIC KEY", "a public Ed25519 key",
                          "\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12, 0644, 022},
    [ACCRT_KEY_SECRET] = {"ACCRT SECRET KEY", "a key for encryption", "", 0, 0600, 077},
};

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* ---- Text ---- */

static bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Decodes Base64 of at most MAX_DER_BYTES up to `end`, ignoring white space. Returns the number of
 * bytes, or 0. */
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
    return accrt_strict_path(path, ACCRT_STRICT_FILE, NULL);
  return ACCRT_FAIL(PERMISSION_DENIED, "%s: others may %s it (mode %03o); chmod %03o it first",
                    path, kind->refused == 022 ? "write" : "read", (unsigned)(facts.st_mode & 0777),
                    (unsigned)kind->mode);
}

static accrt_status_t read_text(const char* path, const key_kind_t* kind, char* text) {
  /* Non-blocking: the path may be a FIFO, which check_file() then refuses. */
  const int fd = accrt_open_at(AT_FDCWD, path, O_RDONLY, 0);
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

bool accrt_key_is_weak(const accrt_key_t* key) {
  /* The y coordinates of the points of order 8; those of the others are 0, 1 and -1. Numbers are
   * modulo p = 2^255 - 19, so that 0 and 1 are also written as p and p + 1. The highest bit is the
   * sign of x. */
  static const uint8_t eight[2][32] = {
      {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
       0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
       0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
      {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b,
       0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39,
       0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a},
  };
  accrt_key_t y = *key;
  y.bytes[31] &= 0x7f;
  uint8_t all = 0xff, any = 0;
  for (size_t i = 1; i < 31; ++i)
    all &= y.bytes[i], any |= y.bytes[i];
  return memcmp(y.bytes, eight[0], 32) == 0 || memcmp(y.bytes, eight[1], 32) == 0 ||
         (any == 0 && y.bytes[31] == 0 && y.bytes[0] <= 1) ||
         (all == 0xff && y.bytes[31] == 0x7f && y.bytes[0] >= 0xec && y.bytes[0] <= 0xee);
}

accrt_status_t accrt_key_load(const char* path, uint32_t kind, accrt_key_t* out_key) {
  char text[MAX_FILE_BYTES + 1];
  accrt_status_t status = read_text(path, &kinds[kind], text);
  if (status == ACCRT_OK && !parse(&kinds[kind], text, out_key)) {
    status = ACCRT_FAIL(INVALID_FORMAT, "%s: it does not hold %s (PEM, '%s')", path,
                        kinds[kind].what, kinds[kind].label);
  }
  if (status == ACCRT_OK && kind == ACCRT_KEY_PUBLIC && accrt_key_is_weak(out_key))
    status = ACCRT_FAIL(INVALID_FORMAT, "%s: " ACCRT_KEY_WEAK, path);
  accrt_wipe(text, sizeof text);
  return status;
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

/* `names`: names of the other three arguments. */
accrt_status_t accrt_key_generate(accrt_instance_t* instance, accrt_key_t* out_key) {
  ACCRT_ENTER(instance, out_key);
  return accrt_random(out_key->bytes, sizeof out_key->bytes);
}

accrt_status_t accrt_key_public(accrt_instance_t* instance, const accrt_key_t* private_key,
                                accrt_key_t* out_public) {
  const accrt_crypto_t* crypto;
  ACCRT_ENTER(instance, private_key, out_public);
  ACCRT_TRY(accrt_instance_crypto(instance, &crypto));
  return accrt_crypto_public_key(crypto, private_key, out_public)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses Ed25519 keys");
}

accrt_status_t accrt_key_read(accrt_instance_t* instance, const char* path, uint32_t kind,
                              accrt_key_t* out_key) {
  ACCRT_ENTER(instance, path, out_key);
  ACCRT_TRY(check_kind(kind));
  return accrt_key_load(path, kind, out_key);
}

accrt_status_t accrt_key_write(accrt_instance_t* instance, const char* path, uint32_t kind,
                               const accrt_key_t* key) {
  ACCRT_ENTER(instance, path, key);
  ACCRT_TRY(check_kind(kind));
  accrt_put_t put;
  char text[256];
  int error = accrt_put_begin(&put, path, "", kinds[kind].mode, ACCRT_PUT_OF_NAME);
  if (error == 0) {
    const size_t size = make_text(&kinds[kind], key, text, sizeof text);
    error = accrt_file_write(put.fd, -1, text, size);
    accrt_wipe(text, sizeof text);
    if (error == 0)
      error = accrt_put_end(&put, true);
    accrt_put_drop(&put);
  }
  if (error == EEXIST)
    return ACCRT_FAIL_ERRNO(ALREADY_EXISTS, error, "%s: it exists already", path);
  return error == 0
             ? ACCRT_OK
             : ACCRT_FAIL_ERRNO(IO, error, "%s: could not be written: %s", path, strerror(error));
}

accrt_status_t accrt_key_sign(accrt_instance_t* instance, const accrt_key_t* private_key,
                              const void* data, uint64_t size_bytes, uint8_t* out_signature) {
  const accrt_crypto_t* crypto;
  ACCRT_ENTER(instance, private_key, out_signature);
  if (data == NULL && size_bytes != 0)
    ACCRT_TRY(ACCRT_FAIL(INVALID_ARGUMENT, "data is NULL"));
  ACCRT_TRY(accrt_instance_crypto(instance, &crypto));
  return accrt_crypto_sign(crypto, private_key, data, (size_t)size_bytes, out_signature)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses to sign with Ed25519");
}
