/* tests/fuzz/replay.c - runs a fuzz target over files: every corpus in each test run, without libFuzzer.
 *
 *   NAME FILE-OR-FOLDER...
 *
 * Each file is also tried with its end cut off at many places: what a fuzzer finds first. It knows no target.
 */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static int run_file(const char* path) {
  FILE* file = fopen(path, "rb");
  struct stat info;
  if (file == NULL || fstat(fileno(file), &info) != 0) {
    perror(path);
    return 1;
  }
  const size_t size = (size_t)info.st_size;
  uint8_t* data = malloc(size > 0 ? size : 1);
  if (data == NULL || fread(data, 1, size, file) != size)
    abort();
  (void)fclose(file);
  (void)LLVMFuzzerTestOneInput(data, size);
  const size_t step = size / 64 + 1;
  for (size_t cut = 0; cut < size; cut += step)
    (void)LLVMFuzzerTestOneInput(data, cut);
  free(data);
  return 0;
}

static int run_path(const char* path);

static int run_folder(const char* path) {
  struct dirent** names = NULL;
  const int count = scandir(path, &names, NULL, alphasort);
  int failed = count < 0;
  if (failed)
    perror(path);
  for (int i = 0; i < count; ++i) {
    char file[4096];
    const int length = snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
    if (names[i]->d_name[0] != '.' && length > 0 && (size_t)length < sizeof file)
      failed |= run_path(file);
    free(names[i]);
  }
  free(names);
  return failed;
}

static int run_path(const char* path) {
  struct stat info;
  if (stat(path, &info) != 0) {
    perror(path);
    return 1;
  }
  return S_ISDIR(info.st_mode) ? run_folder(path) : run_file(path);
}

int main(int argc, char** argv) {
  int failed = argc < 2;
  for (int i = 1; i < argc; ++i)
    failed |= run_path(argv[i]);
  if (fuzz_inputs == 0) {
    fprintf(stderr, "nothing was tried\n");
    return 1;
  }
  return failed;
}
