/* Files that appear whole: the old one or the new one, whenever the writer is killed, and
 * nothing of what was left stays. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/core/file_io.h"
#include "runtime/core/put_file.h"
#include "tests/random.h"

#define LARGE ((size_t)1 << 16)

static char folder[64];

static int set_up(void** state) {
  (void)state;
  strcpy(folder, "/tmp/accrt-put-XXXXXX");
  return mkdtemp(folder) == NULL;
}

/* Names in the folder, sorted, with blanks between. */
static const char* names(void) {
  static char text[2048];
  struct dirent** entries;
  const int count = scandir(folder, &entries, NULL, alphasort);
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < count; ++i) {
    if (strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0)
      used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? " " : "",
                               entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  return text;
}

static const char* path_of(const char* name) {
  static char paths[4][512];
  static unsigned turn;
  char* path = paths[turn++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static int tear_down(void** state) {
  (void)state;
  DIR* entries = opendir(folder);
  for (struct dirent* entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
    if (unlinkat(dirfd(entries), entry->d_name, 0) != 0)
      (void)unlinkat(dirfd(entries), entry->d_name, AT_REMOVEDIR);
  }
  closedir(entries);
  return rmdir(folder);
}

static void make(const char* name, const char* text) {
  const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(accrt_file_write(fd, -1, text, strlen(text)), 0);
  close(fd);
}

static void assert_text(const char* name, const char* wanted) {
  char text[64] = "";
  const int fd = open(path_of(name), O_RDONLY);
  assert_true(fd >= 0);
  assert_true(read(fd, text, sizeof text - 1) >= 0);
  close(fd);
  assert_string_equal(text, wanted);
}

static int put(const char* name, const char* text, bool new_only) {
  accrt_put_t file;
  const int error = accrt_put_begin(&file, path_of(name), "", 0640, ACCRT_PUT_OF_NAME);
  if (error != 0)
    return error;
  assert_int_equal(accrt_file_write(file.fd, -1, text, strlen(text)), 0);
  return accrt_put_end(&file, new_only);
}

static void replaces(void** state) {
  (void)state;
  struct stat facts;
  const mode_t mask = umask(027);
  assert_int_equal(put("a", "old", false), 0);
  assert_int_equal(put("a", "new", false), 0);
  umask(mask);
  assert_text("a", "new");
  assert_int_equal(stat(path_of("a"), &facts), 0);
  assert_int_equal(facts.st_mode & 0777, 0640);
  assert_string_equal(names(), "a");
  /* A link is replaced, not followed. */
  assert_int_equal(symlink("a", path_of("b")), 0);
  assert_int_equal(put("b", "other", false), 0);
  assert_text("a", "new");
  assert_text("b", "other");
}

static void replaces_nothing(void** state) {
  (void)state;
  assert_int_equal(put("a", "old", true), 0);
  assert_int_equal(put("a", "new", true), EEXIST);
  assert_text("a", "old");
  assert_int_equal(symlink("nowhere", path_of("b")), 0);
  assert_int_equal(put("b", "new", true), EEXIST);
  assert_string_equal(names(), "a b");
}

static void is_not_there_before_it_is_whole(void** state) {
  (void)state;
  accrt_put_t file;
  make("a", "old");
  assert_int_equal(accrt_put_begin(&file, path_of("a"), ".rules", 0600, ACCRT_PUT_OF_NAME), 0);
  assert_int_equal(accrt_file_write(file.fd, -1, "new", 3), 0);
  assert_text("a", "old");
  assert_string_equal(file.part + strlen(file.part) - 11, ".part.rules");
  assert_text(file.part, "new");
  accrt_put_drop(&file);
  accrt_put_drop(&file);
  assert_text("a", "old");
  assert_string_equal(names(), "a");
}

static void failures_leave_nothing(void** state) {
  (void)state;
  char name[300];
  assert_int_equal(mkdir(path_of("folder"), 0700), 0);
  assert_int_equal(put("folder", "new", false), EISDIR);
  assert_int_equal(put("folder/", "new", false), EISDIR);
  assert_int_equal(put("nowhere/a", "new", false), ENOENT);
  memset(name, 'n', sizeof name);
  name[250] = '\0';
  assert_int_equal(put(name, "new", false), ENAMETOOLONG);
  assert_string_equal(names(), "folder");
}

/* Of the machine or of another program: each stays what it is, also behind a link. */
static void what_is_no_file_stays(void** state) {
  (void)state;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat facts;
  const int end = socket(AF_UNIX, SOCK_STREAM, 0);
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("socket"));
  assert_int_equal(bind(end, (const struct sockaddr*)&address, sizeof address), 0);
  (void)close(end);
  assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
  assert_int_equal(mkdir(path_of("folder"), 0700), 0);
  assert_int_equal(symlink("pipe", path_of("link")), 0);
  assert_int_equal(symlink("/dev/null", path_of("null")), 0);
  assert_int_equal(symlink("folder", path_of("to_folder")), 0);
  char open_file[32];
  const int fd = open(path_of("file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  (void)snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", fd);
  assert_int_equal(symlink(open_file, path_of("stdout")), 0); /* as /dev/stdout */
  /* Through links of any form, whether the descriptor is open or not. */
  assert_int_equal(symlink("stdout", path_of("to_link")), 0);
  (void)snprintf(open_file, sizeof open_file, "/dev/fd/%d", fd);
  assert_int_equal(symlink(open_file, path_of("dev_fd")), 0);
  assert_int_equal(symlink("/proc/self/fd", path_of("fds")), 0);
  (void)snprintf(open_file, sizeof open_file, "fds/%d", fd);
  assert_int_equal(symlink(open_file, path_of("relative")), 0);
  assert_int_equal(symlink("/proc/self/fd/1000000", path_of("closed")), 0);
  assert_int_equal(accrt_put_descriptor(path_of("to_link")), fd);
  assert_int_equal(accrt_put_descriptor(path_of(open_file)), fd);
  assert_int_equal(accrt_put_descriptor(path_of("closed")), 1000000);
  assert_int_equal(accrt_put_descriptor(path_of("file")), -1);
  assert_int_equal(accrt_put_descriptor(path_of("nowhere")), -1);
  const char* all[] = {"socket",  "pipe",   "link",     "null",  "stdout",
                       "to_link", "dev_fd", "relative", "closed"};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    accrt_put_t file;
    assert_int_equal(accrt_put_begin(&file, path_of(all[i]), "", 0600, ACCRT_PUT_OF_NAME), EEXIST);
    assert_int_equal(put(all[i], "new", false), EEXIST);
    assert_int_equal(put(all[i], "new", true), EEXIST);
    assert_int_equal(lstat(path_of(all[i]), &facts), 0);
    assert_false(S_ISREG(facts.st_mode));
  }
  assert_int_equal(close(fd), 0);
  for (size_t i = 4; i < sizeof all / sizeof *all; ++i)
    assert_int_equal(unlink(path_of(all[i])), 0);
  assert_int_equal(put("to_folder", "new", false), EISDIR);
  assert_non_null(strstr(accrt_put_text(EEXIST), "a device, a pipe, a socket or an open file"));
  assert_string_equal(accrt_put_text(ENOENT), strerror(ENOENT));
  /* Where a link leads to a file, or nowhere, the file takes the link's place. */
  assert_int_equal(symlink("nowhere", path_of("dangling")), 0);
  assert_int_equal(put("dangling", "new", false), 0);
  assert_text("dangling", "new");
}

/* Links through /proc may lead to other files, and links to themselves. */
static void other_links_are_replaced(void** state) {
  (void)state;
  char text[4096];
  struct stat facts;
  assert_true(snprintf(text, sizeof text, "/proc/self/root%s", path_of("new")) < (int)sizeof text);
  assert_int_equal(symlink(text, path_of("through")), 0);
  assert_int_equal(symlink("/proc/self/exe", path_of("exe")), 0);
  assert_int_equal(symlink("circle", path_of("circle")), 0);
  const char* all[] = {"through", "exe", "circle"};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    assert_int_equal(put(all[i], "new", false), 0);
    assert_int_equal(lstat(path_of(all[i]), &facts), 0);
    assert_true(S_ISREG(facts.st_mode));
  }
  assert_string_equal(names(), "circle exe through");
}

static void leftovers_go(void** state) {
  (void)state;
  make("a.1.0.part", "left");
  make("a.4194999.17.part.rules", "left");
  make("a.1.1.part", "held");
  const int held = open(path_of("a.1.1.part"), O_RDONLY);
  assert_int_equal(flock(held, LOCK_SH), 0);
  /* Not what this makes, or not of this name. */
  make("a.part", "");
  make("a.1.part", "");
  make("a.1.x.part", "");
  make("aa.1.0.part", "");
  make("b.1.0.part", "");
  assert_int_equal(symlink("a.1.1.part", path_of("a.2.0.part")), 0);
  assert_int_equal(mkfifo(path_of("a.2.1.part"), 0600), 0);
  assert_int_equal(put("a", "new", false), 0);
  assert_string_equal(names(), "a a.1.1.part a.1.part a.1.x.part a.2.0.part a.2.1.part a.part "
                               "aa.1.0.part b.1.0.part");
  accrt_put_t file;
  assert_int_equal(accrt_put_begin(&file, path_of("c"), "", 0600, ACCRT_PUT_OF_ALL), 0);
  assert_int_equal(accrt_put_end(&file, false), 0);
  assert_string_equal(names(), "a a.1.1.part a.1.part a.1.x.part a.2.0.part a.2.1.part a.part c");
  close(held);
  assert_int_equal(put("a", "new", false), 0);
  assert_string_equal(names(), "a a.1.part a.1.x.part a.2.0.part a.2.1.part a.part c");
}

/* A write does not remove another writer's file in progress, even for the same name. */
static void two_at_once(void** state) {
  (void)state;
  accrt_put_t one, two;
  assert_int_equal(accrt_put_begin(&one, path_of("a"), "", 0600, ACCRT_PUT_OF_NAME), 0);
  assert_int_equal(accrt_put_begin(&two, path_of("a"), "", 0600, ACCRT_PUT_OF_ALL), 0);
  assert_int_equal(accrt_file_write(one.fd, -1, "one", 3), 0);
  assert_int_equal(accrt_file_write(two.fd, -1, "two", 3), 0);
  assert_int_equal(accrt_put_end(&two, false), 0);
  assert_text("a", "two");
  assert_int_equal(accrt_put_end(&one, false), 0);
  assert_text("a", "one");
  assert_string_equal(names(), "a");
}

static void fill(accrt_put_t* file, int letter) {
  static char bytes[LARGE];
  memset(bytes, letter, sizeof bytes);
  for (size_t at = 0; at < sizeof bytes; at += 4096)
    (void)accrt_file_write(file->fd, -1, bytes + at, 4096);
}

/* Writes one content after the other until it is killed. */
static _Noreturn void write_for_ever(void) {
  for (int letter = 'a';; letter = letter == 'a' ? 'b' : 'a') {
    accrt_put_t file;
    if (accrt_put_begin(&file, path_of("x"), "", 0600, ACCRT_PUT_OF_NAME) != 0)
      _exit(1);
    fill(&file, letter);
    if (accrt_put_end(&file, false) != 0)
      _exit(2);
  }
}

static void assert_whole(void) {
  static char bytes[LARGE + 1];
  const int fd = open(path_of("x"), O_RDONLY);
  if (fd < 0)
    return; /* killed before the first one */
  assert_int_equal(read(fd, bytes, sizeof bytes), LARGE);
  close(fd);
  assert_true(bytes[0] == 'a' || bytes[0] == 'b');
  for (size_t i = 1; i < LARGE; ++i)
    assert_int_equal(bytes[i], bytes[0]);
}

static void killed_at_any_moment(void** state) {
  (void)state;
  uint64_t random = test_seed();
  for (int i = 0; i < 60; ++i) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
      write_for_ever();
    int status;
    (void)usleep((useconds_t)test_below(&random, 4000));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_whole();
  }
  assert_int_equal(put("x", "last", false), 0);
  assert_string_equal(names(), "x");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_FOLDER(replaces),
      IN_FOLDER(replaces_nothing),
      IN_FOLDER(is_not_there_before_it_is_whole),
      IN_FOLDER(failures_leave_nothing),
      IN_FOLDER(what_is_no_file_stays),
      IN_FOLDER(other_links_are_replaced),
      IN_FOLDER(leftovers_go),
      IN_FOLDER(two_at_once),
      IN_FOLDER(killed_at_any_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
