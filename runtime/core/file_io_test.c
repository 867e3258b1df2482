/* Reading files: parts, ends, past the page cache, descriptors that cannot be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/core/file_io.h"

#define SIZE ((UINT64_C(1) << 20) + 12345)

static unsigned char byte_at(uint64_t i) {
  return (unsigned char)(i * 17 + (i >> 9));
}

/* In the working directory: temporary folders may be memory. */
static int make_file(void) {
  char path[] = "./accrt-file-read-XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0) {
    char elsewhere[] = "/tmp/accrt-file-read-XXXXXX";
    fd = mkstemp(elsewhere);
    (void)unlink(elsewhere);
  } else {
    (void)unlink(path);
  }
  assert_true(fd >= 0);
  unsigned char* bytes = malloc(SIZE);
  assert_non_null(bytes);
  for (uint64_t i = 0; i < SIZE; ++i)
    bytes[i] = byte_at(i);
  assert_int_equal(write(fd, bytes, SIZE), SIZE);
  free(bytes);
  (void)fsync(fd);
  return fd;
}

static void check(const unsigned char* bytes, uint64_t offset, uint64_t size_bytes) {
  for (uint64_t i = 0; i < size_bytes; ++i) {
    if (bytes[i] != byte_at(offset + i))
      fail_msg("byte %llu of the part at %llu", (unsigned long long)i, (unsigned long long)offset);
  }
}

static void reads_parts(void** state) {
  (void)state;
  static const uint64_t parts[][2] = {{0, SIZE},        {0, 4096}, {4096, 8192},
                                      {8192, 5000},     {1, 4096}, {SIZE - 1, 1},
                                      {1 << 20, 12345}, {0, 0},    {4096, SIZE - 4096}};
  const int fd = make_file();
  const int direct = accrt_file_open_direct(fd);
  unsigned char* memory = NULL;
  assert_int_equal(posix_memalign((void**)&memory, 4096, SIZE + 4096), 0);
  for (int turn = 0; turn < 4; ++turn) {
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
      unsigned char* target = memory + (turn == 3 ? 8 : 0);
      uint64_t done;
      if (turn == 2) /* removes it from the page cache, if the system obeys */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      memset(memory, 0, SIZE + 4096);
      assert_int_equal(
          accrt_file_read(fd, turn == 0 ? -1 : direct, parts[i][0], target, parts[i][1], &done), 0);
      assert_int_equal(done, parts[i][1]);
      check(target, parts[i][0], parts[i][1]);
      assert_int_equal(target[parts[i][1]], 0);
    }
  }
  free(memory);
  if (direct >= 0)
    (void)close(direct);
  (void)close(fd);
}

static void says_where_it_ended(void** state) {
  (void)state;
  const int fd = make_file();
  const int direct = accrt_file_open_direct(fd);
  unsigned char* memory = NULL;
  assert_int_equal(posix_memalign((void**)&memory, 4096, SIZE + 8192), 0);
  for (int turn = 0; turn < 2; ++turn) {
    uint64_t done;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    assert_int_equal(accrt_file_read(fd, turn ? direct : -1, 4096, memory, SIZE, &done), 0);
    assert_int_equal(done, SIZE - 4096);
    check(memory, 4096, done);
    assert_int_equal(accrt_file_read(fd, turn ? direct : -1, SIZE + 4096, memory, 10, &done), 0);
    assert_int_equal(done, 0);
  }
  free(memory);
  if (direct >= 0)
    (void)close(direct);
  (void)close(fd);
}

static void what_cannot_be_read(void** state) {
  (void)state;
  uint64_t done;
  unsigned char byte;
  assert_int_equal(accrt_file_read(-1, -1, 0, &byte, 1, &done), EBADF);
  const int blind = open("/dev/null", O_WRONLY);
  assert_int_equal(accrt_file_read(blind, -1, 0, &byte, 1, &done), EBADF);
  (void)close(blind);
  assert_int_equal(accrt_file_open_direct(-1), -1);
}

static void writes_at_a_place_or_in_order(void** state) {
  (void)state;
  char path[] = "/tmp/accrt-file-XXXXXX", got[8] = {0};
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)unlink(path);
  uint64_t done;
  assert_int_equal(accrt_file_write(fd, 3, "def", 3), 0); /* does not move it */
  assert_int_equal(accrt_file_write(fd, -1, "ab", 2), 0);
  assert_int_equal(accrt_file_write(fd, -1, "c", 1), 0);
  assert_int_equal(accrt_file_write(fd, -1, "", 0), 0);
  assert_int_equal(accrt_file_read(fd, -1, 0, got, sizeof got, &done), 0);
  assert_int_equal(done, 6);
  assert_string_equal(got, "abcdef");
  (void)close(fd);
  int pipe_ends[2];
  assert_int_equal(pipe(pipe_ends), 0);
  assert_int_equal(accrt_file_write(pipe_ends[1], -1, "ab", 2), 0);
  assert_int_equal(accrt_file_write(pipe_ends[1], 0, "ab", 2), ESPIPE);
  (void)close(pipe_ends[0]);
  (void)close(pipe_ends[1]);
}

static void what_cannot_be_written(void** state) {
  (void)state;
  assert_int_equal(accrt_file_write(-1, -1, "x", 1), EBADF);
  const int full = open("/dev/full", O_WRONLY);
  assert_true(full >= 0);
  assert_int_equal(accrt_file_write(full, -1, "x", 1), ENOSPC);
  (void)close(full);
}

/* Passing the system's limit of file sizes would end the process (SIGXFSZ). */
static void limits_of_file_sizes(void** state) {
  (void)state;
  const pid_t child = fork();
  if (child == 0) {
    char path[] = "/tmp/accrt-file-XXXXXX";
    const struct rlimit limit = {8, 8};
    const int fd = mkstemp(path), null = open("/dev/null", O_WRONLY);
    int pipe_ends[2];
    if (fd < 0 || null < 0 || unlink(path) != 0 || pipe(pipe_ends) != 0)
      _exit(1);
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    if (accrt_file_write(fd, -1, "abcdefgh", 8) != 0 || accrt_file_write(fd, -1, "", 0) != 0)
      _exit(2);
    if (accrt_file_write(fd, -1, "i", 1) != EFBIG || accrt_file_write(fd, 7, "hi", 2) != EFBIG)
      _exit(3);
    if (accrt_file_write(fd, INT64_MAX, "i", 1) != EFBIG || accrt_file_write(fd, 0, "A", 1) != 0)
      _exit(4);
    if (accrt_file_write(null, -1, "0123456789", 10) != 0 ||
        accrt_file_write(pipe_ends[1], -1, "0123456789", 10) != 0)
      _exit(5);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_parts),
      cmocka_unit_test(says_where_it_ended),
      cmocka_unit_test(what_cannot_be_read),
      cmocka_unit_test(writes_at_a_place_or_in_order),
      cmocka_unit_test(what_cannot_be_written),
      cmocka_unit_test(limits_of_file_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
