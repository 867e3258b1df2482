/* tools/accx/trust_rules.c - see trust_rules.h. */
#define _GNU_SOURCE
#include "trust_rules.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/utf8.h"
#include "keys.h"
#include "runtime/core/put_file.h"

#define FIRST_LINE "accrt trust 1\n"
#define MAX_BYTES (256u << 10) /* the library's own limit */

static const char* rules_path(void) {
  const char* folder = accx_trusted_folder();
  return folder ? accx_text("%s/trust.rules", folder) : NULL;
}

/* The file's text, or "" when it does not exist or (*out_code) cannot be read. The caller frees
 * it. */
static char* read_rules(int* out_code) {
  char* text = accx_alloc(MAX_BYTES + 1, 1);
  const char* path = rules_path();
  FILE* file;
  *out_code = ACCX_OK;
  if (!path || (access(path, F_OK) != 0 && errno == ENOENT))
    return text;
  *out_code = accx_open_regular(path, O_NOFOLLOW, &file);
  if (*out_code)
    return text;
  text[fread(text, 1, MAX_BYTES, file)] = '\0';
  fclose(file);
  return text;
}

/* Checks a temporary rules file with the library, so that an invalid one never replaces the old
 * one. */
static int check_part(const char* part) {
  const accrt_option_t options[] = {{"trust.keys", part}};
  accrt_instance_options_t wanted = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_instance_t* instance = NULL;
  wanted.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  wanted.options = options;
  wanted.option_count = 1;
  wanted.option_size_bytes = (uint32_t)sizeof options[0];
  const accrt_status_t status = accrt_instance_create(&wanted, &instance);
  accrt_instance_release(instance);
  if (status == ACCRT_OK)
    return ACCX_OK;
  return accx_fail_status(status, "the rules of trusted keys stay as they were");
}

static const char* changed(const char* old, const char* without, const char* line) {
  const char* text = strncmp(old, FIRST_LINE, strlen(FIRST_LINE)) == 0 ? "" : FIRST_LINE;
  while (*old) {
    const size_t length = strcspn(old, "\n") + (strchr(old, '\n') != NULL);
    if (!without || strncmp(old, without, strlen(without)) != 0)
      text = accx_text("%s%.*s", text, (int)length, old);
    old += length;
  }
  return line ? accx_text("%s%s\n", text, line) : text;
}

static int write_all(int fd, const char* text) {
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t put = write(fd, text, left);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0)
      return errno;
    text += put, left -= (size_t)put;
  }
  return fchmod(fd, 0644) == 0 ? 0 : errno;
}

static int put_rules(const char* text) {
  accrt_put_t put;
  const char* path = rules_path();
  int error = accrt_put_begin(&put, path, ".rules", 0644, ACCRT_PUT_OF_NAME);
  int code = ACCX_OK;
  if (!error) {
    error = write_all(put.fd, text);
    if (!error)
      code = check_part(accx_text("%s/%s", accx_trusted_folder(), put.part));
    if (!error && !code)
      error = accrt_put_end(&put, false);
    accrt_put_drop(&put);
  }
  return error ? accx_fail(ACCX_FAILED, "%s: %s", accx_safe(path), accrt_put_text(error)) : code;
}

int accx_rules_change(const char* without, const char* line) {
  const char* wrong = line ? accrt_utf8_check_line(line) : NULL;
  if (wrong)
    return accx_fail(ACCX_USAGE, "'%s' cannot be a rule: %s", accx_safe(line), wrong);
  int code = accx_make_config();
  if (code)
    return code;
  /* A process that changes the file locks the folder, so changes are made one at a time. */
  const int folder = open(accx_trusted_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0)
    (void)flock(folder, LOCK_EX);
  char* old = read_rules(&code);
  if (!code)
    code = put_rules(changed(old, without, line));
  free(old);
  if (folder >= 0)
    (void)close(folder);
  return code;
}

/* ---- Floors ---- */

static int compare_numbers(const char* a, const char* b) {
  a += strspn(a, "0"), b += strspn(b, "0");
  const size_t la = strlen(a), lb = strlen(b);
  return la != lb ? (la < lb ? -1 : 1) : strcmp(a, b);
}

/* Finds the next line "floor NAME VERSION"; false at the end. */
static bool next_floor(const char** at, const char** name, const char** version) {
  while (**at) {
    const char* line = *at;
    const size_t length = strcspn(line, "\n");
    *at = line + length + (line[length] == '\n');
    const char* text = accx_text("%.*s", (int)length, line);
    const char* space = strncmp(text, "floor ", 6) == 0 ? strchr(text + 6, ' ') : NULL;
    if (!space)
      continue;
    *name = accx_text("%.*s", (int)(space - text - 6), text + 6);
    *version = space + 1;
    return true;
  }
  return false;
}

const char* accx_rules_floor(const char* wanted) {
  int code;
  char* rules = read_rules(&code);
  const char *name, *version, *found = NULL;
  for (const char* at = rules; next_floor(&at, &name, &version);) {
    if (strcmp(name, wanted) == 0 && (!found || compare_numbers(version, found) > 0))
      found = version;
  }
  free(rules);
  return found;
}

void accx_rules_floors(void (*each)(void* user, const char* name, const char* version),
                       void* user) {
  int code;
  char* rules = read_rules(&code);
  const char *name, *version;
  for (const char* at = rules; next_floor(&at, &name, &version);) {
    if (version == NULL || strcmp(accx_rules_floor(name), version) == 0)
      each(user, name, version);
  }
  free(rules);
}

/* ---- Times ---- */

const char* accx_rules_time_text(int64_t time_s) {
  const time_t time = (time_t)time_s;
  struct tm parts;
  char text[32];
  if (!gmtime_r(&time, &parts) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
    return accx_text("%lld", (long long)time_s);
  return accx_text("%s", text);
}

const char* accx_rules_time(const char* text) {
  int64_t days;
  const size_t length = strlen(text);
  if (length > 1 && text[length - 1] == 'd') {
    if (!accx_parse_i64(accx_text("%.*s", (int)length - 1, text), &days) || days < 0 ||
        days > 365250)
      return NULL;
    return accx_rules_time_text((int64_t)time(NULL) + days * 86400);
  }
  if (length == 10)
    return accx_text("%sT23:59:59Z", text);
  return length == 20 ? text : NULL;
}
