/* runtime/core/disk_cache.c - a folder that keeps what was costly to make: what PTX was compiled to, what prepare functions made.
 *
 * One file an entry, named by its key. It is written under another name, forced to the disk and renamed, and the folder is forced
 * there too, so that readers and crashes see it whole or not at all; two processes that write the same entry write the same thing. What is read is checked by a
 * digest of its own, and thrown away when it does not fit. An entry's time of modification is when it was used last.
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
#include "runtime/core/file_io.h"
#include "runtime/core/hash128.h"
#include "runtime/core/memory.h"

#define MAGIC "ACCACHE1"
#define SUFFIX ".entry"
#define NAME_BYTES (32 + sizeof SUFFIX)
#define PATH_BYTES 4096
#define MAX_ENTRY_BYTES (UINT64_C(1) << 34)
/* Leftovers of processes that died while they wrote. */
#define STALE_SECONDS 3600

typedef struct entry_header {
  char magic[8];
  uint64_t size_bytes;
  unsigned char key[16];
  unsigned char digest[16];
} entry_header_t;
_Static_assert(sizeof(entry_header_t) == 48, "as it is in files");

accrt_cache_key_t accrt_disk_cache_key(const void* source, uint64_t size_bytes, const char* arch,
                                       int version, const char* options) {
  /* The texts' lengths are part of it: no two lists of parts give the same bytes. */
  struct {
    unsigned char source[16];
    uint64_t size_bytes;
    int64_t version;
    char arch[32];
    char options[64];
  } parts;
  memset(&parts, 0, sizeof parts);
  accrt_hash128_of(source, size_bytes, parts.source);
  parts.size_bytes = size_bytes;
  parts.version = version;
  (void)snprintf(parts.arch, sizeof parts.arch, "%s", arch);
  (void)snprintf(parts.options, sizeof parts.options, "%s", options);
  accrt_cache_key_t key;
  accrt_hash128_of(&parts, sizeof parts, key.bytes);
  return key;
}

static bool entry_path(const char* folder, const accrt_cache_key_t* key, char path[PATH_BYTES]) {
  char name[NAME_BYTES];
  (void)accrt_hex(key->bytes, sizeof key->bytes, name);
  memcpy(name + 32, SUFFIX, sizeof SUFFIX);
  const int written = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
  return written > 0 && written < PATH_BYTES;
}

/* ---- Reading ---- */

static bool read_whole(int file, uint64_t offset, void* target, uint64_t size_bytes) {
  uint64_t done;
  return accrt_file_read(file, -1, offset, target, size_bytes, &done) == 0 && done == size_bytes;
}

/* The size must be that of the file: a header is not believed to ask for memory. */
static bool read_header(int file, const accrt_cache_key_t* key, entry_header_t* out_header) {
  struct stat facts;
  return fstat(file, &facts) == 0 && read_whole(file, 0, out_header, sizeof *out_header) &&
         memcmp(out_header->magic, MAGIC, sizeof out_header->magic) == 0 &&
         memcmp(out_header->key, key->bytes, sizeof key->bytes) == 0 &&
         out_header->size_bytes > 0 && out_header->size_bytes <= MAX_ENTRY_BYTES &&
         (uint64_t)facts.st_size == sizeof *out_header + out_header->size_bytes;
}

static bool read_entry(const accrt_allocator_t* allocator, int file, const accrt_cache_key_t* key,
                       void** out_data, size_t* out_size_bytes) {
  entry_header_t header;
  if (!read_header(file, key, &header))
    return false;
  void* data = NULL;
  const size_t size_bytes = (size_t)header.size_bytes;
  if (accrt_alloc(allocator, size_bytes, &data) != ACCRT_OK)
    return false;
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

bool accrt_disk_cache_get(const accrt_allocator_t* allocator, const char* folder,
                          const accrt_cache_key_t* key, void** out_data, size_t* out_size_bytes) {
  char path[PATH_BYTES];
  *out_data = NULL;
  *out_size_bytes = 0;
  if (!entry_path(folder, key, path))
    return false;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  const bool good = read_entry(allocator, file, key, out_data, out_size_bytes);
  if (good) {
    (void)futimens(file, NULL); /* used now; a folder that may not be written stays as it is */
  } else {
    (void)unlink(path);
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
         accrt_file_write(file, -1, data, size_bytes) == 0 && fsync(file) == 0;
}

/* A name in a folder is on the disk when the folder is; a file system that cannot say so has its reasons. */
static void settle_folder(const char* folder) {
  const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0)
    return;
  (void)fsync(file);
  close(file);
}

static bool is_ours(const char* name) {
  const size_t length = strlen(name);
  return length == NAME_BYTES - 1 && strcmp(name + 32, SUFFIX) == 0;
}

static bool is_leftover(const char* name) {
  return strncmp(name, ".accrt-", 7) == 0;
}

/* The entry that was not used for the longest time, in `oldest` ("" for none); the folder's size in all. */
static uint64_t survey(DIR* entries, char oldest[NAME_BYTES]) {
  uint64_t total_bytes = 0;
  struct timespec oldest_time = {0, 0};
  struct timespec now = {0, 0};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  oldest[0] = '\0';
  rewinddir(entries);
  for (const struct dirent* entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
    struct stat facts;
    if ((!is_ours(entry->d_name) && !is_leftover(entry->d_name)) ||
        fstatat(dirfd(entries), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (is_leftover(entry->d_name)) {
      if (facts.st_mtim.tv_sec + STALE_SECONDS < now.tv_sec)
        (void)unlinkat(dirfd(entries), entry->d_name, 0);
      continue;
    }
    total_bytes += (uint64_t)facts.st_size;
    const struct timespec time = facts.st_mtim;
    if (oldest[0] == '\0' || time.tv_sec < oldest_time.tv_sec ||
        (time.tv_sec == oldest_time.tv_sec && time.tv_nsec < oldest_time.tv_nsec)) {
      oldest_time = time;
      memcpy(oldest, entry->d_name, NAME_BYTES);
    }
  }
  return total_bytes;
}

static void shrink(const char* folder, uint64_t limit_bytes) {
  DIR* entries = opendir(folder);
  if (entries == NULL)
    return;
  char oldest[NAME_BYTES];
  while (survey(entries, oldest) > limit_bytes && oldest[0] != '\0') {
    if (unlinkat(dirfd(entries), oldest, 0) != 0 && errno != ENOENT)
      break;
  }
  closedir(entries);
}

/* With what is above it. That it is there already is fine; other failures show when a file is made in it. */
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

bool accrt_disk_cache_put(const char* folder, const accrt_cache_key_t* key, const void* data,
                          size_t size_bytes, uint64_t limit_bytes) {
  char path[PATH_BYTES];
  char temporary[PATH_BYTES];
  if (!entry_path(folder, key, path) || size_bytes == 0 || size_bytes > MAX_ENTRY_BYTES)
    return false;
  const int written = snprintf(temporary, sizeof temporary, "%s/.accrt-XXXXXX", folder);
  if (written <= 0 || written >= PATH_BYTES)
    return false;
  make_folder(folder);
  const int file = mkostemp(temporary, O_CLOEXEC);
  if (file < 0)
    return false;
  const bool whole = write_entry(file, key, data, size_bytes);
  close(file);
  if (!whole || rename(temporary, path) != 0) {
    (void)unlink(temporary);
    return false;
  }
  settle_folder(folder);
  shrink(folder, limit_bytes);
  return true;
}
