/* runtime/core/trust_rules.c - the rules file of a folder of keys: one fact per line. It refuses
 * unknown lines, so that no restriction is missed. It may not write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/utf8.h"
#include "runtime/core/error.h"
#include "runtime/core/file_io.h"
#include "runtime/core/instance.h"
#include "runtime/core/memory.h"
#include "runtime/core/trust.h"
#include "runtime/core/safe_open.h"

#define MAX_RULES_BYTES (256u << 10)
#define FIRST_LINE "accrt trust 1"

/* ---- Numbers and times ---- */

bool accrt_trust_number(const char* text, uint64_t* out_number) {
  uint64_t number = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9' && at - text < 20; ++at) {
    if (__builtin_mul_overflow(number, 10u, &number) ||
        __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number))
      return false;
  }
  *out_number = number;
  return at > text && *at == '\0';
}

/* Days since 1970 of a date of the Gregorian calendar, years counted from March. */
static int64_t days_of(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return 365 * year + year / 4 - year / 100 + year / 400 + of_year - 719468;
}

const char* accrt_trust_time_text(int64_t time_s, char text[ACCRT_TRUST_TIME_BYTES]) {
  const int64_t days = time_s / 86400, seconds = time_s % 86400;
  int64_t year = 1970 + days / 366, month = 12;
  while (days_of(year + 1, 1, 1) <= days)
    ++year;
  while (days_of(year, month, 1) > days)
    --month;
  (void)snprintf(
      text, ACCRT_TRUST_TIME_BYTES, "%04u-%02u-%02uT%02u:%02u:%02uZ", (unsigned)year % 10000,
      (unsigned)month % 100, (unsigned)(days - days_of(year, month, 1) + 1) % 100,
      (unsigned)(seconds / 3600) % 100, (unsigned)(seconds / 60 % 60), (unsigned)(seconds % 60));
  return text;
}

/* The value of `count` digits at `text`. */
static int64_t digits_of(const char* text, size_t count) {
  int64_t number = 0;
  for (size_t i = 0; i < count; ++i)
    number = number * 10 + (text[i] - '0');
  return number;
}

/* Reads a time. The text must not change when it is written again, which refuses dates such as the
 * 31st of February. */
static bool parse_time(const char* text, int64_t* out_time_s) {
  static const char form[] = "0000-00-00T00:00:00Z";
  char again[ACCRT_TRUST_TIME_BYTES];
  for (size_t i = 0; i < sizeof form; ++i) {
    if (form[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != form[i])
      return false;
  }
  const int64_t year = digits_of(text, 4);
  if (year < 1970)
    return false;
  *out_time_s = 86400 * days_of(year, digits_of(text + 5, 2), digits_of(text + 8, 2)) +
                3600 * digits_of(text + 11, 2) + 60 * digits_of(text + 14, 2) +
                digits_of(text + 17, 2);
  return *out_time_s >= 0 && *out_time_s <= ACCRT_TRUST_MAX_TIME_S &&
         strcmp(accrt_trust_time_text(*out_time_s, again), text) == 0;
}

/* ---- Lines ---- */

/* Cuts off the next word; "" at the end. */
static char* next_word(char** rest) {
  char* word = *rest;
  const size_t length = strcspn(word, " ");
  *rest = word + length;
  if (**rest != '\0')
    *(*rest)++ = '\0';
  return word;
}

static bool parse_key(const char* text, accrt_key_t* out_key) {
  for (size_t i = 0; i < 64; ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0)
      return false;
    uint8_t* byte = &out_key->bytes[i / 2];
    *byte = (uint8_t)(*byte << 4 | digit);
  }
  return text[64] == '\0';
}

/* Reads a line "key ID ..." or "floor NAME VERSION". Returns NULL, or what is wrong with it. */
static const char* parse_line(char* line, accrt_trust_fact_t* fact) {
  static const char roles[][8] = {"code", "weights", "both"};
  const char* word = next_word(&line);
  const char* subject = next_word(&line);
  if (strcmp(word, "floor") == 0) {
    fact->kind = ACCRT_FACT_FLOOR;
    if (!accrt_trust_is_name(subject))
      return "the name is none";
    memcpy(fact->text, subject, strlen(subject) + 1);
    return accrt_trust_number(line, &fact->version) ? NULL : "the version is not a decimal number";
  }
  if (strcmp(word, "key") != 0)
    return "expected 'key' or 'floor'";
  if (!parse_key(subject, &fact->key))
    return "the key is not 64 hexadecimal digits (0-9, a-f)";
  word = next_word(&line);
  if (strcmp(word, "role") == 0) {
    fact->kind = ACCRT_FACT_ROLE;
    for (uint32_t i = 0; i < 3; ++i)
      fact->roles = strcmp(line, roles[i]) == 0 ? i + 1 : fact->roles;
    return fact->roles != 0 ? NULL : "the role is not code, weights or both";
  }
  if (strcmp(word, "not-after") == 0)
    fact->kind = ACCRT_FACT_NOT_AFTER;
  else if (strcmp(word, "revoked") == 0)
    fact->kind = ACCRT_FACT_REVOKED;
  else
    return "expected 'role', 'not-after' or 'revoked' after the key";
  const char* time = next_word(&line);
  if (!parse_time(time, &fact->time_s))
    return "the time is not of the form 2027-01-31T00:00:00Z";
  if (fact->kind == ACCRT_FACT_REVOKED)
    (void)snprintf(fact->text, sizeof fact->text, "%s", line);
  else if (*line != '\0')
    return "something follows the time";
  return NULL;
}

/* Sets the source. A path that is too long is cut at its start, because the file's name matters
 * most. */
static void set_source(accrt_trust_fact_t* fact, const char* path) {
  const size_t length = strlen(path), room = sizeof fact->source - 1;
  (void)snprintf(fact->source, sizeof fact->source, "%s",
                 length > room ? path + (length - room) : path);
}

static accrt_status_t parse_rules(accrt_instance_t* instance, const char* path, char* text) {
  accrt_status_t status = ACCRT_OK;
  uint32_t number = 0;
  for (char* line = text; status == ACCRT_OK && *line != '\0';) {
    char* const next = line + strcspn(line, "\n");
    const bool ends = *next == '\n';
    *next = '\0';
    accrt_trust_fact_t fact;
    memset(&fact, 0, sizeof fact);
    const char* wrong = NULL;
    if (++number == 1)
      wrong = strcmp(line, FIRST_LINE) == 0 ? NULL : "expected '" FIRST_LINE "'";
    else if (line[0] != '\0' && line[0] != '#')
      wrong = accrt_utf8_check_line(line);
    if (wrong == NULL && number > 1 && line[0] != '\0' && line[0] != '#')
      wrong = parse_line(line, &fact);
    set_source(&fact, path);
    if (wrong != NULL || !ends)
      status = ACCRT_FAIL(INVALID_FORMAT, "%s: line %" PRIu32 ": %s", path, number,
                          wrong != NULL ? wrong : "it does not end");
    else if (fact.kind != ACCRT_FACT_NONE)
      status = accrt_trust_add_fact(instance, &fact);
    line = next + ends;
  }
  if (status == ACCRT_OK && number == 0)
    status = ACCRT_FAIL(INVALID_FORMAT, "%s: it is empty: expected '" FIRST_LINE "'", path);
  return status;
}

/* ---- The file ---- */

static accrt_status_t check_file(const char* path, int fd, size_t* out_size_bytes) {
  struct stat facts;
  if (fstat(fd, &facts) != 0)
    return ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", path, strerror(errno));
  if (!S_ISREG(facts.st_mode) || facts.st_size > (off_t)MAX_RULES_BYTES)
    return ACCRT_FAIL(INVALID_FORMAT, "%s: a regular file of at most %u bytes is expected", path,
                      MAX_RULES_BYTES);
  if ((facts.st_mode & 022) != 0)
    return ACCRT_FAIL(PERMISSION_DENIED, "%s: others may write it (mode %03o); chmod 644 it first",
                      path, (unsigned)(facts.st_mode & 0777));
  *out_size_bytes = (size_t)facts.st_size;
  return accrt_strict_path(path, ACCRT_STRICT_FILE, NULL);
}

static accrt_status_t read_open(accrt_instance_t* instance, const char* path, int fd) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  size_t size = 0;
  uint64_t done = 0;
  void* text;
  ACCRT_TRY(check_file(path, fd, &size));
  ACCRT_TRY(accrt_alloc(allocator, size + 1, &text));
  const int error = accrt_file_read(fd, -1, 0, text, size, &done);
  ((char*)text)[done] = '\0';
  accrt_status_t status = ACCRT_OK;
  if (error != 0)
    status = ACCRT_FAIL_ERRNO(IO, error, "%s: %s", path, strerror(error));
  else if (strlen(text) != size)
    status = ACCRT_FAIL(INVALID_FORMAT, "%s: a byte of zero in it, or it changed", path);
  else
    status = parse_rules(instance, path, text);
  accrt_free(allocator, text, size + 1);
  return status;
}

accrt_status_t accrt_trust_read_rules(accrt_instance_t* instance, const char* path) {
  /* Non-blocking: the path may be a FIFO, which check_file() then refuses. */
  const int fd = accrt_open_at(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW, 0);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT)
      return ACCRT_FAIL_ERRNO(NOT_FOUND, error, "%s: no such file", path);
    return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be opened: %s", path, strerror(error));
  }
  const accrt_status_t status = read_open(instance, path, fd);
  (void)close(fd);
  return status;
}
