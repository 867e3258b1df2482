/* runtime/core/disk_cache.c - a folder of results that are expensive to make: compiled PTX, and the
 * output of prepare functions.
 *
 * Each entry is one file, named by its key. It is written under another name, synced and renamed,
 * and the folder is synced too. So readers see it whole or not at all, even after a crash. Two
 * processes that write the same entry write the same bytes. A reader checks the entry's own digest
 * and deletes the entry when it does not match. An entry's modification time is the time of its
 * last use.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/disk_cache.h"
#include "runtime/core/error.h"
#include "runtime/core/file_io.h"
#include "runtime/core/hash128.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"
#include "runtime/core/put_file.h"
#include "runtime/core/safe_open.h"
#include "runtime/core/sha256.h"

#define MAGIC "ACCACHE2"
#define SUFFIX ".entry"
#define KEY_DIGITS 64
/* of ACCACHE1, which is not read any more; such files are removed as unused */
#define OLD_KEY_DIGITS 32
#define NAME_BYTES (KEY_DIGITS + sizeof SUFFIX)
#define PATH_BYTES 4096
#define MAX_ENTRY_BYTES (UINT64_C(1) << 34)
/* Age of files that a process left behind when it died during a write. */
#define STALE_SECONDS 3600

typedef struct entry_header {
  char magic[8];
  uint64_t size_bytes;
  unsigned char key[32];
  unsigned char digest[16]; /* XXH3, against damage: no other user can write here */
} entry_header_t;
_Static_assert(sizeof(entry_header_t) == 64, "as it is in files");

static void digest_of(const void* bytes, size_t size_bytes,
                      unsigned char out_digest[ACCRT_SHA256_BYTES]) {
  accrt_sha256_t hash;
  accrt_sha256_init(&hash, NULL);
  accrt_sha256_update(&hash, bytes, size_bytes);
  accrt_sha256_finish(&hash, out_digest);
}

accrt_cache_key_t accrt_disk_cache_key(const void* source, uint64_t size_bytes, const char* arch,
                                       int version, const char* options) {
  /* The digest covers the lengths of the texts, so no two lists of parts give the same bytes. */
  struct {
    unsigned char source[ACCRT_SHA256_BYTES];
    uint64_t size_bytes;
    int64_t version;
    char arch[32];
    char options[64];
  } parts;
  memset(&parts, 0, sizeof parts);
  digest_of(source, (size_t)size_bytes, parts.source);
  parts.size_bytes = size_bytes;
  parts.version = version;
  (void)snprintf(parts.arch, sizeof parts.arch, "%s", arch);
  (void)snprintf(parts.options, sizeof parts.options, "%s", options);
  accrt_cache_key_t key;
  digest_of(&parts, sizeof parts, key.bytes);
  return key;
}

static bool entry_path(const char* folder, const accrt_cache_key_t* key, char path[PATH_BYTES]) {
  char name[NAME_BYTES];
  (void)accrt_hex(key->bytes, sizeof key->bytes, name);
  memcpy(name + KEY_DIGITS, SUFFIX, sizeof SUFFIX);
  const int written = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
  return written > 0 && written < PATH_BYTES;
}

/* ---- Reading ---- */

static bool read_whole(int file, uint64_t offset, void* target, uint64_t size_bytes) {
  uint64_t done;
  return accrt_file_read(file, -1, offset, target, size_bytes, &done) == 0 && done == size_bytes;
}

/* The header's size must match the file's, so that a header alone cannot cause a large
 * allocation. */
static bool read_header(int file, const struct stat* facts, const accrt_cache_key_t* key,
                        entry_header_t* out_header) {
  return accrt_strict_facts(facts) && read_whole(file, 0, out_header, sizeof *out_header) &&
         memcmp(out_header->magic, MAGIC, sizeof out_header->magic) == 0 &&
         memcmp(out_header->key, key->bytes, sizeof key->bytes) == 0 &&
         out_header->size_bytes > 0 && out_header->size_bytes <= MAX_ENTRY_BYTES &&
         (uint64_t)facts->st_size == sizeof *out_header + out_header->size_bytes;
}

/* Without memory for it, an entry is neither read nor damaged. */
static bool read_entry(const accrt_allocator_t* allocator, int file, const struct stat* facts,
                       const accrt_cache_key_t* key, void** out_data, size_t* out_size_bytes,
                       bool* out_damaged) {
  entry_header_t header;
  *out_damaged = true;
  if (!read_header(file, facts, key, &header))
    return false;
  void* data = NULL;
  const size_t size_bytes = (size_t)header.size_bytes;
  if (accrt_alloc_unset(allocator, size_bytes, 16, &data) != ACCRT_OK) {
    *out_damaged = false;
    return false;
  }
  unsigned char digest[16];
  if (read_whole(file, sizeof header, data, size_bytes)) {
    accrt_hash128_of(data, size_bytes, digest);
    if (memcmp(digest, header.digest, sizeof digest) == 0) {
      *out_data = data;
      *out_size_bytes = size_bytes;
      return true;
    }
  }
  accrt_free(allocator, data, size_bytes);
  return false;
}

/* A user who may write to the folder, or to one above it, could replace entries. */
static bool is_private(const char* folder) {
  const accrt_error_t saved = *accrt_error_current();
  const bool good = accrt_strict_path(folder, ACCRT_STRICT_FOLDER, NULL) == ACCRT_OK;
  (void)accrt_error_restore(&saved);
  return good;
}

bool accrt_disk_cache_get(const accrt_allocator_t* allocator, const char* folder,
                          const accrt_cache_key_t* key, void** out_data, size_t* out_size_bytes) {
  char path[PATH_BYTES];
  *out_data = NULL;
  *out_size_bytes = 0;
  struct stat facts;
  if (!entry_path(folder, key, path) || !is_private(folder))
    return false;
  const int file = accrt_open_file(AT_FDCWD, path, O_NOFOLLOW, &facts);
  if (file < 0)
    return false;
  bool damaged;
  const bool good = read_entry(allocator, file, &facts, key, out_data, out_size_bytes, &damaged);
  if (good) {
    /* marks it as used; fails harmlessly in a folder without write access */
    (void)futimens(file, NULL);
  } else if (damaged) {
    (void)unlinkat(AT_FDCWD, path, 0);
  }
  close(file);
  return good;
}

/* ---- Writing ---- */

static bool write_entry(int file, const accrt_cache_key_t* key, const void* data,
                        size_t size_bytes) {
  entry_header_t header;
  memset(&header, 0, sizeof header);
  memcpy(header.magic, MAGIC, sizeof header.magic);
  memcpy(header.key, key->bytes, sizeof header.key);
  header.size_bytes = size_bytes;
  accrt_hash128_of(data, size_bytes, header.digest);
  return accrt_file_write(file, -1, &header, sizeof header) == 0 &&
         accrt_file_write(file, -1, data, size_bytes) == 0;
}

static bool is_ours(const char* name) {
  const size_t length = strspn(name, "0123456789abcdef");
  return (length == KEY_DIGITS || length == OLD_KEY_DIGITS) && strcmp(name + length, SUFFIX) == 0;
}

/* Temporary files of version 0.3, which had no locks. Old ones are removed. */
static bool is_leftover(const char* name) {
  return strncmp(name, ".accrt-", 7) == 0;
}

typedef struct entry {
  struct timespec used;
  uint64_t size_bytes;
  char name[NAME_BYTES];
} entry_t;

typedef struct survey {
  entry_t* entries;
  size_t count;
  size_t capacity;
  uint64_t total_bytes;
} survey_t;

static int order_of_use(const void* a, const void* b) {
  const struct timespec* x = &((const entry_t*)a)->used;
  const struct timespec* y = &((const entry_t*)b)->used;
  if (x->tv_sec != y->tv_sec)
    return x->tv_sec < y->tv_sec ? -1 : 1;
  return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* Lists all entries that there is memory for. An entry that was used when the clock was ahead would
 * stay longer than any that is used from now on: its time is taken as unknown. */
static void take_survey(DIR* folder, survey_t* survey) {
  struct timespec now = {0, 0};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  for (const struct dirent* file = readdir(folder); file != NULL; file = readdir(folder)) {
    struct stat facts;
    if ((!is_ours(file->d_name) && !is_leftover(file->d_name)) ||
        fstatat(dirfd(folder), file->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (is_leftover(file->d_name)) {
      if (facts.st_mtim.tv_sec + STALE_SECONDS < now.tv_sec)
        (void)unlinkat(dirfd(folder), file->d_name, 0);
      continue;
    }
    survey->total_bytes += (uint64_t)facts.st_size;
    if (ACCRT_GROW(&accrt_allocator_system, survey->count + 1, &survey->entries,
                   &survey->capacity) != ACCRT_OK)
      continue;
    entry_t* entry = &survey->entries[survey->count++];
    entry->used = facts.st_mtim;
    if (facts.st_mtim.tv_sec > now.tv_sec + STALE_SECONDS)
      entry->used = (struct timespec){0, 0};
    entry->size_bytes = (uint64_t)facts.st_size;
    memcpy(entry->name, file->d_name, strlen(file->d_name) + 1);
  }
}

static void remove_oldest(int folder, survey_t* survey, uint64_t limit_bytes) {
  if (survey->total_bytes <= limit_bytes || survey->count == 0)
    return;
  qsort(survey->entries, survey->count, sizeof *survey->entries, order_of_use);
  for (size_t i = 0; i < survey->count && survey->total_bytes > limit_bytes; ++i) {
    if (unlinkat(folder, survey->entries[i].name, 0) != 0 && errno != ENOENT)
      break;
    survey->total_bytes -= survey->entries[i].size_bytes;
  }
}

static void shrink(const char* folder, uint64_t limit_bytes) {
  const int file = accrt_open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, 0);
  DIR* entries = file >= 0 ? fdopendir(file) : NULL;
  if (entries == NULL) {
    if (file >= 0)
      close(file);
    return;
  }
  const accrt_error_t saved = *accrt_error_current();
  survey_t survey = {NULL, 0, 0, 0};
  take_survey(entries, &survey);
  remove_oldest(dirfd(entries), &survey, limit_bytes);
  accrt_free_array(&accrt_allocator_system, survey.entries, survey.capacity,
                   sizeof *survey.entries);
  (void)accrt_error_restore(&saved);
  closedir(entries);
}

/* Makes the folder and its parents if they do not exist. Failures show up later, when a file is
 * created in the folder. */
static void make_folder(const char* folder) {
  char path[PATH_BYTES];
  const int written = snprintf(path, sizeof path, "%s", folder);
  if (written <= 0 || written >= PATH_BYTES)
    return;
  for (char* at = path + 1; *at != '\0'; ++at) {
    if (*at != '/')
      continue;
    *at = '\0';
    (void)mkdir(path, 0700);
    *at = '/';
  }
  (void)mkdir(path, 0700);
}

/* Whether this put looks through the folder, which takes a time that grows with the number of
 * entries. So small entries do it by chance: one in 32, or once in a 256th of the limit. Nothing is
 * counted, so there is no count that processes share, or that a crash makes wrong. */
static bool is_due(uint64_t size_bytes, uint64_t limit_bytes) {
  const uint64_t chance = accrt_hash_seed();
  return chance % 32 == 0 || (chance >> 5) % limit_bytes < size_bytes * 256;
}

bool accrt_disk_cache_put(const char* folder, const accrt_cache_key_t* key, const void* data,
                          size_t size_bytes, uint64_t limit_bytes) {
  char path[PATH_BYTES];
  accrt_put_t put;
  if (!entry_path(folder, key, path) || size_bytes == 0 || size_bytes > MAX_ENTRY_BYTES ||
      sizeof(entry_header_t) + size_bytes > limit_bytes)
    return false;
  make_folder(folder);
  const bool due = is_due(sizeof(entry_header_t) + size_bytes, limit_bytes);
  if (!is_private(folder) ||
      accrt_put_begin(&put, path, "", 0600, due ? ACCRT_PUT_OF_ALL : ACCRT_PUT_OF_NONE) != 0)
    return false;
  const bool whole = write_entry(put.fd, key, data, size_bytes) && accrt_put_end(&put, false) == 0;
  accrt_put_drop(&put);
  if (whole && due)
    shrink(folder, limit_bytes);
  return whole;
}
