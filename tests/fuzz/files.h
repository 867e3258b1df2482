/* tests/fuzz/files.h - for targets that need real files: a folder in memory where there is one, gone when the process ends. */
#ifndef ACCRT_TESTS_FUZZ_FILES_H_
#define ACCRT_TESTS_FUZZ_FILES_H_

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

static char fuzz_folder_path[64];

static inline void fuzz_remove_folder(void) {
  DIR* folder = opendir(fuzz_folder_path);
  if (folder == NULL)
    return;
  for (const struct dirent* entry; (entry = readdir(folder)) != NULL;)
    (void)unlinkat(dirfd(folder), entry->d_name, 0);
  (void)closedir(folder);
  (void)rmdir(fuzz_folder_path);
}

static inline const char* fuzz_folder(void) {
  if (fuzz_folder_path[0] != '\0')
    return fuzz_folder_path;
  const int in_memory = access("/dev/shm", W_OK) == 0;
  snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/accrt-fuzz-XXXXXX",
           in_memory ? "/dev/shm" : "/tmp");
  fuzz_require(mkdtemp(fuzz_folder_path) != NULL && atexit(fuzz_remove_folder) == 0);
  return fuzz_folder_path;
}

/* The path of a file there; valid until the fourth next call. */
static inline const char* fuzz_path(const char* name) {
  static char paths[4][128];
  static unsigned next;
  char* path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
  return path;
}

static inline void fuzz_write_file(const char* path, const void* data, size_t size) {
  FILE* file = fopen(path, "wb");
  fuzz_require(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

/* To be freed; ends where its memory does. */
static inline uint8_t* fuzz_read_file(const char* path, size_t* out_size) {
  FILE* file = fopen(path, "rb");
  struct stat info;
  fuzz_require(file != NULL && fstat(fileno(file), &info) == 0);
  *out_size = (size_t)info.st_size;
  uint8_t* data = malloc(*out_size > 0 ? *out_size : 1);
  fuzz_require(data != NULL && fread(data, 1, *out_size, file) == *out_size && fclose(file) == 0);
  return data;
}

#endif /* ACCRT_TESTS_FUZZ_FILES_H_ */
