/* The cache on disk: valid entries are returned, damaged ones are not, and many writers do not
 * disturb each other. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/memory.h"
#include "runtime/core/disk_cache.h"

#define NO_LIMIT (UINT64_C(1) << 40)
static const accrt_allocator_t* const allocator = &accrt_allocator_system;

typedef struct folder {
  char path[256];
} folder_t;

static int set_up(void** state) {
  folder_t* folder = calloc(1, sizeof *folder);
  strcpy(folder->path, "/tmp/accrt-cache-XXXXXX");
  *state = folder;
  return mkdtemp(folder->path) == NULL;
}

/* Calls `visit` for each entry; returns how many there are. */
static int each(const folder_t* folder, void (*visit)(const char* path)) {
  DIR* entries = opendir(folder->path);
  int count = 0;
  for (struct dirent* entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
    char path[512];
    if (entry->d_name[0] == '.' && entry->d_name[1] != 'a')
      continue;
    snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
    if (visit != NULL)
      visit(path);
    ++count;
  }
  closedir(entries);
  return count;
}

static void remove_one(const char* path) {
  unlink(path);
}

static int tear_down(void** state) {
  folder_t* folder = *state;
  each(folder, remove_one);
  rmdir(folder->path);
  free(folder);
  return 0;
}

static accrt_cache_key_t key_of(const char* source) {
  return accrt_disk_cache_key(source, strlen(source), "sm_90", 13000, "O4");
}

static bool has(const folder_t* folder, const accrt_cache_key_t* key, const char* expected) {
  void* data;
  size_t size_bytes;
  if (!accrt_disk_cache_get(allocator, folder->path, key, &data, &size_bytes))
    return false;
  const bool same = size_bytes == strlen(expected) && memcmp(data, expected, size_bytes) == 0;
  accrt_free(allocator, data, size_bytes);
  return same;
}

static bool put(const folder_t* folder, const accrt_cache_key_t* key, const char* text,
                uint64_t limit_bytes) {
  return accrt_disk_cache_put(folder->path, key, text, strlen(text), limit_bytes);
}

static void test_keeps(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t a = key_of("a"), b = key_of("b");
  assert_false(has(folder, &a, "machine code"));
  assert_true(put(folder, &a, "machine code", NO_LIMIT));
  assert_true(has(folder, &a, "machine code"));
  assert_false(has(folder, &b, "machine code"));
  assert_true(put(folder, &a, "machine code", NO_LIMIT));
  assert_int_equal(each(folder, NULL), 1);
}

static void test_key_has_all_that_matters(void** state) {
  (void)state;
  const accrt_cache_key_t keys[] = {
      accrt_disk_cache_key("source", 6, "sm_90", 13000, "O4"),
      accrt_disk_cache_key("sourcf", 6, "sm_90", 13000, "O4"),
      accrt_disk_cache_key("source", 5, "sm_90", 13000, "O4"),
      accrt_disk_cache_key("source", 6, "sm_80", 13000, "O4"),
      accrt_disk_cache_key("source", 6, "sm_90", 12080, "O4"),
      accrt_disk_cache_key("source", 6, "sm_90", 13000, "O3"),
  };
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    for (size_t k = 0; k < i; ++k)
      assert_memory_not_equal(keys[i].bytes, keys[k].bytes, sizeof keys[i].bytes);
  }
}

static void flip_last_byte(const char* path) {
  FILE* file = fopen(path, "r+b");
  fseek(file, -1, SEEK_END);
  const int byte = fgetc(file);
  fseek(file, -1, SEEK_END);
  fputc(byte ^ 1, file);
  fclose(file);
}
static void cut(const char* path) {
  assert_int_equal(truncate(path, 50), 0);
}
static void empty(const char* path) {
  assert_int_equal(truncate(path, 0), 0);
}
static void grow(const char* path) {
  FILE* file = fopen(path, "ab");
  fputc(0, file);
  fclose(file);
}
/* A header that claims far more bytes than the file has. */
static void boast(const char* path) {
  FILE* file = fopen(path, "r+b");
  const uint64_t size_bytes = UINT64_C(1) << 40;
  fseek(file, 8, SEEK_SET);
  fwrite(&size_bytes, sizeof size_bytes, 1, file);
  fclose(file);
}

static void test_damage_is_found_and_removed(void** state) {
  const folder_t* folder = *state;
  void (*const damages[])(const char*) = {flip_last_byte, cut, empty, grow, boast};
  const accrt_cache_key_t key = key_of("a");
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; ++i) {
    assert_true(put(folder, &key, "machine code", NO_LIMIT));
    each(folder, damages[i]);
    assert_false(has(folder, &key, "machine code"));
    assert_int_equal(each(folder, NULL), 0);
    assert_true(put(folder, &key, "machine code", NO_LIMIT));
    assert_true(has(folder, &key, "machine code"));
  }
}

static const accrt_cache_key_t* other_key;
static void rename_to_other(const char* path) {
  char name[512];
  const char* slash = strrchr(path, '/');
  int length = snprintf(name, sizeof name, "%.*s/", (int)(slash - path), path);
  for (int i = 0; i < 32; ++i)
    length += snprintf(name + length, sizeof name - (size_t)length, "%02x", other_key->bytes[i]);
  snprintf(name + length, sizeof name - (size_t)length, ".entry");
  assert_int_equal(rename(path, name), 0);
}

/* A file under another's name is not believed. */
static void test_key_is_checked(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t a = key_of("a"), b = key_of("b");
  assert_true(put(folder, &a, "machine code", NO_LIMIT));
  other_key = &b;
  each(folder, rename_to_other);
  assert_false(has(folder, &b, "machine code"));
}

static void set_time(const folder_t* folder, const accrt_cache_key_t* key, time_t seconds) {
  char path[512];
  int length = snprintf(path, sizeof path, "%s/", folder->path);
  for (int i = 0; i < 32; ++i)
    length += snprintf(path + length, sizeof path - (size_t)length, "%02x", key->bytes[i]);
  snprintf(path + length, sizeof path - (size_t)length, ".entry");
  const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_bounded_by_use(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t a = key_of("a"), b = key_of("b"), c = key_of("c");
  /* Each entry is 64 bytes of header and 12 more. */
  assert_true(put(folder, &a, "machine code", 152));
  set_time(folder, &a, 1000);
  assert_true(put(folder, &b, "machine code", 152));
  set_time(folder, &b, 2000);
  assert_true(has(folder, &a, "machine code")); /* used now */
  assert_true(put(folder, &c, "machine code", 152));
  assert_true(has(folder, &a, "machine code"));
  assert_false(has(folder, &b, "machine code"));
  assert_true(has(folder, &c, "machine code"));
}

/* The clock was ahead for a while: entries of that time are not the last that were used. */
static void test_times_that_are_to_come(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t a = key_of("a"), b = key_of("b"), c = key_of("c"), d = key_of("d");
  assert_true(put(folder, &a, "machine code", 152));
  assert_true(put(folder, &b, "machine code", 152));
  set_time(folder, &a, time(NULL) + 400 * 86400);
  set_time(folder, &b, time(NULL) + 300 * 86400);
  assert_true(put(folder, &c, "machine code", 152));
  assert_true(has(folder, &c, "machine code"));
  assert_true(put(folder, &d, "machine code", 152));
  assert_true(has(folder, &c, "machine code"));
  assert_true(has(folder, &d, "machine code"));
  assert_int_equal(each(folder, NULL), 2);
}

/* What the folder can never hold drives nothing else out. */
static void test_entries_beyond_the_limit(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t a = key_of("a"), b = key_of("b");
  assert_true(put(folder, &a, "machine code", 152));
  char large[100];
  memset(large, 'l', sizeof large - 1);
  large[sizeof large - 1] = '\0';
  assert_false(put(folder, &b, large, 152));
  assert_false(put(folder, &b, large, 0));
  assert_true(has(folder, &a, "machine code"));
  assert_int_equal(each(folder, NULL), 1);
}

static void fill(const folder_t* folder, unsigned count) {
  char path[512];
  for (unsigned i = 0; i < count; ++i) {
    snprintf(path, sizeof path, "%s/%064x.entry", folder->path, i);
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "machine code", 12), 12);
    close(fd);
  }
}

/* A large entry may drive out many small ones: each is looked at once. */
static void test_many_entries_are_removed(void** state) {
  const folder_t* folder = *state;
  enum { COUNT = 4000 };
  fill(folder, COUNT);
  const accrt_cache_key_t key = key_of("a");
  const clock_t begin = clock();
  assert_true(put(folder, &key, "machine code", 80));
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  printf("%d entries were removed in %.3f s of processor time\n", COUNT, seconds);
  assert_true(seconds < 1);
  assert_int_equal(each(folder, NULL), 1);
}

/* Of libc's, so that a test sees how often entries are looked at. */
static atomic_uint looks;
int fstatat(int folder, const char* restrict name, struct stat* restrict out_facts, int flags) {
  atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
  return (int)syscall(SYS_newfstatat, folder, name, out_facts, flags);
}

/* The time of a small entry does not grow with the folder: most puts do not look through it. */
static void test_small_entries_in_a_large_folder(void** state) {
  const folder_t* folder = *state;
  enum { COUNT = 2000, PUTS = 320 };
  fill(folder, COUNT);
  const unsigned before = atomic_load(&looks);
  for (int i = 0; i < PUTS; ++i) {
    char text[16];
    snprintf(text, sizeof text, "%d", i);
    const accrt_cache_key_t key = key_of(text);
    assert_true(put(folder, &key, "machine code", NO_LIMIT));
  }
  const double share = (double)(atomic_load(&looks) - before) / COUNT / PUTS;
  printf("each of %d puts looked at %.3f of %d entries\n", PUTS, share, COUNT);
  assert_true(share < 0.125); /* 1/32; four times as many come once in 10^11 runs */
}

/* And the limit holds, but for a sixteenth; also where several processes write. */
static void test_small_entries_are_bounded(void** state) {
  const folder_t* folder = *state;
  enum { LIMIT = 64 * 1024, SIZE = 64, WRITERS = 2, PUTS = 600 };
  char text[SIZE + 1];
  memset(text, 's', SIZE);
  text[SIZE] = '\0';
  for (int i = 0; i < WRITERS; ++i) {
    if (fork() != 0)
      continue;
    for (int k = 0; k < PUTS; ++k) {
      char name[32];
      snprintf(name, sizeof name, "%d.%d", i, k);
      const accrt_cache_key_t key = key_of(name);
      (void)put(folder, &key, text, LIMIT);
    }
    _exit(0);
  }
  for (int i = 0; i < WRITERS; ++i)
    assert_true(wait(NULL) > 0);
  const int count = each(folder, NULL);
  printf("%d entries of %d bytes, limit %d\n", count, 64 + SIZE, LIMIT);
  assert_in_range(count * (64 + SIZE), LIMIT / 2, LIMIT + LIMIT / 16);
}

static void* no_memory(void* self, size_t size_bytes, size_t alignment) {
  (void)self, (void)size_bytes, (void)alignment;
  return NULL;
}

/* What is there and cannot be read now is not damaged. */
static void test_entries_stay_without_memory(void** state) {
  const folder_t* folder = *state;
  const accrt_allocator_t none = {NULL, no_memory, NULL};
  const accrt_cache_key_t key = key_of("a");
  void* data;
  size_t size_bytes;
  assert_true(put(folder, &key, "machine code", NO_LIMIT));
  assert_false(accrt_disk_cache_get(&none, folder->path, &key, &data, &size_bytes));
  assert_true(has(folder, &key, "machine code"));
}

/* The system's limit of file sizes ends who passes it (SIGXFSZ). An entry is not worth that. */
static void test_limit_of_file_sizes(void** state) {
  const folder_t* folder = *state;
  const accrt_cache_key_t key = key_of("a");
  const pid_t child = fork();
  if (child == 0) {
    const struct rlimit limit = {40, 40};
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    _exit(put(folder, &key, "machine code", NO_LIMIT) ? 1 : 0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_int_equal(each(folder, NULL), 0);
}

static void test_strangers_are_left_alone(void** state) {
  const folder_t* folder = *state;
  char path[512];
  snprintf(path, sizeof path, "%s/notes.txt", folder->path);
  FILE* file = fopen(path, "w");
  fputs("not of the cache", file);
  fclose(file);
  const accrt_cache_key_t a = key_of("a"), b = key_of("b");
  assert_true(put(folder, &a, "machine code", 76));
  assert_true(put(folder, &b, "machine code", 76));
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(each(folder, NULL), 2);
}

/* The path of the only entry. */
static char found_path[512];
static void note_path(const char* path) {
  snprintf(found_path, sizeof found_path, "%s", path);
}

/* A user who can write to the folder, or to a folder above it, could choose its entries. A FIFO
 * must not block a run. */
static void test_others_are_not_believed(void** state) {
  const folder_t* folder = *state;
  folder_t inner;
  snprintf(inner.path, sizeof inner.path, "%.200s/inner", folder->path);
  const accrt_cache_key_t key = key_of("a");
  assert_true(put(&inner, &key, "machine code", NO_LIMIT));
  const char* const places[] = {inner.path, folder->path};
  static const mode_t modes[] = {0777, 0770, 0707, 01777};
  for (size_t p = 0; p < 2; ++p) {
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; ++m) {
      assert_int_equal(chmod(places[p], modes[m]), 0);
      const bool sticky_above = p == 1 && modes[m] == 01777;
      assert_int_equal(has(&inner, &key, "machine code"), sticky_above);
      assert_int_equal(put(&inner, &key, "machine code", NO_LIMIT), sticky_above);
    }
    assert_int_equal(chmod(places[p], 0700), 0);
  }
  assert_true(has(&inner, &key, "machine code"));
  (void)each(&inner, note_path);
  if (geteuid() == 0) {
    assert_int_equal(chown(inner.path, 12345, 0), 0);
    assert_false(has(&inner, &key, "machine code"));
    assert_int_equal(chown(inner.path, 0, 0), 0);
    assert_true(has(&inner, &key, "machine code"));
  }
  char elsewhere[512];
  snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder->path);
  assert_int_equal(rename(found_path, elsewhere), 0);
  assert_int_equal(symlink(elsewhere, found_path), 0);
  assert_false(has(&inner, &key, "machine code")); /* a link is not followed */
  assert_int_equal(unlink(found_path), 0);
  assert_int_equal(mkfifo(found_path, 0600), 0);
  alarm(20);
  assert_false(has(&inner, &key, "machine code"));
  assert_true(put(&inner, &key, "machine code", NO_LIMIT));
  assert_true(has(&inner, &key, "machine code"));
  alarm(0);
  assert_int_equal(chmod(found_path, 0666), 0); /* anybody may have changed it */
  assert_false(has(&inner, &key, "machine code"));
  assert_int_not_equal(access(found_path, F_OK), 0);
  each(&inner, remove_one);
  assert_int_equal(rmdir(inner.path), 0);
}

static void test_no_folder(void** state) {
  (void)state;
  const folder_t folder = {"/proc/accrt-none"};
  const accrt_cache_key_t key = key_of("a");
  assert_false(put(&folder, &key, "machine code", NO_LIMIT));
  assert_false(has(&folder, &key, "machine code"));
}

static void test_makes_its_folder(void** state) {
  const folder_t* outer = *state;
  folder_t folder;
  snprintf(folder.path, sizeof folder.path, "%.200s/some/inner", outer->path);
  const accrt_cache_key_t key = key_of("a");
  assert_true(put(&folder, &key, "machine code", NO_LIMIT));
  assert_true(has(&folder, &key, "machine code"));
  each(&folder, remove_one);
  rmdir(folder.path);
  *strrchr(folder.path, '/') = '\0';
  rmdir(folder.path);
}

/* Processes write, read and remove the same few entries. A reader never finds a partial entry. */
static void test_many_processes(void** state) {
  const folder_t* folder = *state;
  char text[3][4096];
  for (int k = 0; k < 3; ++k) {
    memset(text[k], 'a' + k, sizeof text[k] - 1);
    text[k][sizeof text[k] - 1] = '\0';
  }
  for (int i = 0; i < 4; ++i) {
    if (fork() != 0)
      continue;
    int wrong = 0;
    for (int round = 0; round < 100; ++round) {
      const int k = (round + i) % 3;
      const accrt_cache_key_t key = key_of(text[k]);
      put(folder, &key, text[k], 9000);
      void* data;
      size_t size_bytes;
      if (!accrt_disk_cache_get(allocator, folder->path, &key, &data, &size_bytes))
        continue;
      wrong += size_bytes != sizeof text[k] - 1 || memcmp(data, text[k], size_bytes) != 0;
      accrt_free(allocator, data, size_bytes);
    }
    _exit(wrong != 0);
  }
  for (int i = 0; i < 4; ++i) {
    int status = 0;
    assert_true(wait(&status) > 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* Temporary files that are in the folder. */
static int leftovers;
static void count_leftover(const char* path) {
  leftovers += strstr(path, ".part") != NULL || strstr(path, "/.accrt-") != NULL;
}
static int count_leftovers(const folder_t* folder) {
  leftovers = 0;
  each(folder, count_leftover);
  return leftovers;
}

static void age_leftover(const char* path) {
  const struct timespec times[2] = {{1000, 0}, {1000, 0}};
  if (strstr(path, "/.accrt-") != NULL)
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Puts of small entries, until they have left so many. By chance 1,000 of them miss in one of 10^13
 * runs. */
static void put_until_looked_through(const folder_t* folder, int expected) {
  const accrt_cache_key_t key = key_of("small");
  for (int i = 0; i < 1000 && count_leftovers(folder) != expected; ++i)
    assert_true(put(folder, &key, "machine code", NO_LIMIT));
  assert_int_equal(count_leftovers(folder), expected);
}

/* Writes one large entry again and again until it is killed, somewhere in the middle. */
static pid_t start_writer(const folder_t* folder, const accrt_cache_key_t* key, const char* text) {
  const pid_t child = fork();
  if (child != 0)
    return child;
  for (;;)
    (void)put(folder, key, text, NO_LIMIT);
}

/* A killed writer leaves its entry whole or not at all. Its temporary file is removed by the next
 * writes that look through the folder. */
static void test_killed_writer(void** state) {
  const folder_t* folder = *state;
  enum { SIZE = 8 << 20, MOST_ROUNDS = 200 };
  char* text = malloc(SIZE + 1);
  assert_non_null(text);
  memset(text, 'k', SIZE);
  text[SIZE] = '\0';
  const accrt_cache_key_t key = key_of("large"), small = key_of("small");
  int round = 0;
  for (; round < MOST_ROUNDS && count_leftovers(folder) == 0; ++round) {
    const pid_t child = start_writer(folder, &key, text);
    assert_true(child > 0);
    /* Longer and longer: under a sanitizer on a busy machine, a child takes its time to begin. */
    usleep((useconds_t)(1000 + round * 137 % 5000 + round * 500));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    void* data;
    size_t size_bytes;
    if (accrt_disk_cache_get(allocator, folder->path, &key, &data, &size_bytes)) {
      assert_int_equal(size_bytes, SIZE);
      assert_memory_equal(data, text, SIZE);
      accrt_free(allocator, data, size_bytes);
    }
  }
  assert_true(count_leftovers(folder) > 0); /* one was hit in the middle */
  assert_true(put(folder, &small, "machine code", NO_LIMIT));
  put_until_looked_through(folder, 0);
  assert_true(has(folder, &small, "machine code"));
  /* And the entry can be written still. */
  assert_true(put(folder, &key, text, NO_LIMIT));
  assert_true(has(folder, &key, text));
  free(text);
}

/* 0.3 left other names, and locked nothing: they go when they are old. */
static void test_leftovers_of_older_versions(void** state) {
  const folder_t* folder = *state;
  char path[512];
  const accrt_cache_key_t key = key_of("a");
  snprintf(path, sizeof path, "%s/.accrt-x1y2z3", folder->path);
  close(open(path, O_WRONLY | O_CREAT, 0600));
  assert_true(put(folder, &key, "machine code", 80)); /* which looks through the folder */
  assert_int_equal(count_leftovers(folder), 1);
  each(folder, age_leftover);
  put_until_looked_through(folder, 0);
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(test_keeps),
      IN_FOLDER(test_small_entries_in_a_large_folder),
      IN_FOLDER(test_small_entries_are_bounded),
      cmocka_unit_test(test_key_has_all_that_matters),
      IN_FOLDER(test_damage_is_found_and_removed),
      IN_FOLDER(test_key_is_checked),
      IN_FOLDER(test_bounded_by_use),
      IN_FOLDER(test_times_that_are_to_come),
      IN_FOLDER(test_entries_beyond_the_limit),
      IN_FOLDER(test_many_entries_are_removed),
      IN_FOLDER(test_entries_stay_without_memory),
      IN_FOLDER(test_limit_of_file_sizes),
      IN_FOLDER(test_strangers_are_left_alone),
      IN_FOLDER(test_others_are_not_believed),
      cmocka_unit_test(test_no_folder),
      IN_FOLDER(test_makes_its_folder),
      IN_FOLDER(test_many_processes),
      IN_FOLDER(test_killed_writer),
      IN_FOLDER(test_leftovers_of_older_versions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
