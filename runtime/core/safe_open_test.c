/* runtime/core/safe_open_test.c - FIFOs, links, folders and owners that a file's name may lead to,
 * at every level of a path; and where libraries are never opened from. */
#define _GNU_SOURCE
#include "runtime/core/safe_open.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/error.h"
#include "runtime/core/pack.h"

static char folder[ACCRT_PATH_BYTES];
static const char* program;

static const char* at(const char* name) {
  static char paths[4][ACCRT_PATH_BYTES + 64];
  static unsigned next;
  char* path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static const char* put(const char* name) {
  const char* path = at(name);
  FILE* file = fopen(path, "w");
  assert_non_null(file);
  fputs("text", file);
  assert_int_equal(fclose(file), 0);
  return path;
}

static void expect(accrt_status_t status, accrt_status_t wanted, const char* text) {
  const char* message = accrt_error_current()->message;
  if (status != wanted || strstr(message, text) == NULL || strchr(message, '\n') != NULL)
    fail_msg("%s, expected %s with '%s': %s", accrt_status_name(status), accrt_status_name(wanted),
             text, message);
}

static int setup(void** state) {
  (void)state;
  umask(022);
  strcpy(folder, "/tmp/accrt-open-test-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int teardown(void** state) {
  (void)state;
  char command[ACCRT_PATH_BYTES + 16];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void files(void** state) {
  (void)state;
  struct stat facts;
  int fd = accrt_open_file(AT_FDCWD, put("plain"), O_NOFOLLOW, &facts);
  assert_true(fd >= 0);
  assert_int_equal(facts.st_size, 4);
  assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  close(fd);
  assert_int_equal(mkfifo(at("fifo"), 0600), 0);
  alarm(20); /* an open that waits for a FIFO's other end never comes back */
  assert_int_equal(accrt_open_file(AT_FDCWD, at("fifo"), 0, NULL), -1);
  assert_int_equal(errno, EINVAL);
  assert_int_equal(accrt_open_file(AT_FDCWD, "/dev/zero", 0, NULL), -1);
  assert_int_equal(errno, EINVAL);
  assert_int_equal(accrt_open_file(AT_FDCWD, folder, 0, NULL), -1);
  assert_int_equal(errno, EISDIR);
  assert_int_equal(accrt_open_file(AT_FDCWD, at("none"), 0, NULL), -1);
  assert_int_equal(errno, ENOENT);
  assert_int_equal(symlink(at("plain"), at("link")), 0);
  assert_int_equal(accrt_open_file(AT_FDCWD, at("link"), O_NOFOLLOW, NULL), -1);
  assert_int_equal(errno, ELOOP);
  fd = accrt_open_file(AT_FDCWD, at("link"), 0, NULL);
  assert_true(fd >= 0);
  close(fd);
  alarm(0);
}

/* Every part of a path that others may write, or own, is reported. */
static void every_level(void** state) {
  (void)state;
  static const char* const parts[] = {"a", "a/b", "a/b/c", "a/b/c/key"};
  for (int i = 0; i < 3; ++i)
    assert_int_equal(mkdir(at(parts[i]), 0755), 0);
  const char* path = put("a/b/c/key");
  char whole[ACCRT_PATH_BYTES], resolved[ACCRT_PATH_BYTES];
  snprintf(whole, sizeof whole, "%s", path);
  assert_int_equal(accrt_strict_path(whole, ACCRT_STRICT_FILE, resolved), ACCRT_OK);
  assert_string_equal(resolved, whole);
  for (int i = 0; i < 4; ++i) {
    static const mode_t modes[] = {0775, 0757, 0777, 01777};
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; ++m) {
      assert_int_equal(chmod(at(parts[i]), modes[m]), 0);
      const accrt_status_t status = accrt_strict_path(whole, ACCRT_STRICT_FILE, NULL);
      if (i < 3 && modes[m] == 01777)
        assert_int_equal(status, ACCRT_OK); /* as /tmp */
      else
        expect(status, ACCRT_ERROR_PERMISSION_DENIED, at(parts[i]));
    }
    assert_int_equal(chmod(at(parts[i]), i < 3 ? 0755 : 0644), 0);
    if (geteuid() != 0)
      continue;
    assert_int_equal(chown(at(parts[i]), 12345, 0), 0);
    expect(accrt_strict_path(whole, ACCRT_STRICT_FILE, NULL), ACCRT_ERROR_PERMISSION_DENIED,
           "belongs to user 12345");
    assert_int_equal(chown(at(parts[i]), 0, 0), 0);
  }
  /* Names may be made in a sticky folder by everybody. */
  assert_int_equal(chmod(at("a/b"), 01777), 0);
  expect(accrt_strict_path(at("a/b"), ACCRT_STRICT_FOLDER, NULL), ACCRT_ERROR_PERMISSION_DENIED,
         "others may write");
  assert_int_equal(accrt_strict_path(at("a/b/c"), ACCRT_STRICT_FOLDER, NULL), ACCRT_OK);
  assert_int_equal(chmod(at("a/b"), 0755), 0);
  expect(accrt_strict_path(at("a/none"), ACCRT_STRICT_FILE, NULL), ACCRT_ERROR_NOT_FOUND, "none");
  expect(accrt_strict_path(at("a/b/c/key/x"), ACCRT_STRICT_FILE, NULL), ACCRT_ERROR_NOT_FOUND, "x");
}

/* The folder of a link decides what is found, and so does the folder of its target. */
static void links(void** state) {
  (void)state;
  assert_int_equal(mkdir(at("open"), 0755), 0);
  assert_int_equal(chmod(at("open"), 0777), 0);
  assert_int_equal(mkdir(at("closed"), 0755), 0);
  (void)put("open/there");
  (void)put("closed/there");
  assert_int_equal(symlink(at("closed/there"), at("open/link")), 0);
  assert_int_equal(symlink(at("open/there"), at("closed/bad")), 0);
  assert_int_equal(symlink(at("closed/there"), at("closed/good")), 0);
  assert_int_equal(symlink(at("closed"), at("open/folder")), 0);
  char resolved[ACCRT_PATH_BYTES];
  assert_int_equal(accrt_strict_path(at("closed/good"), ACCRT_STRICT_FILE, resolved), ACCRT_OK);
  assert_string_equal(resolved, at("closed/there"));
  static const char* const bad[] = {"open/link", "closed/bad", "open/folder/there", "open/there"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    expect(accrt_strict_path(at(bad[i]), ACCRT_STRICT_FILE, NULL), ACCRT_ERROR_PERMISSION_DENIED,
           "others may write to");
  }
  if (geteuid() == 0) {
    assert_int_equal(chmod(at("open"), 01777), 0);
    assert_int_equal(lchown(at("open/link"), 12345, 0), 0);
    expect(accrt_strict_path(at("open/link"), ACCRT_STRICT_FILE, NULL),
           ACCRT_ERROR_PERMISSION_DENIED, "belongs to user 12345");
  }
}

static bool is_loaded(const char* path) {
  void* found = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  return found != NULL;
}

/* A copy of a library of the system, under a path that nothing else has loaded. */
static const char* put_library(const char* name) {
  void* mathematics = dlopen("libm.so.6", RTLD_LAZY);
  Dl_info info;
  assert_non_null(mathematics);
  assert_true(dladdr(dlsym(mathematics, "cbrt"), &info) != 0);
  const char* path = at(name);
  char command[3 * ACCRT_PATH_BYTES];
  snprintf(command, sizeof command, "cp -L %s %s && chmod 755 %s", info.dli_fname, path, path);
  assert_int_equal(system(command), 0);
  return path;
}

/* Copies the first bytes of a library, and sets one of them to 8 (`changed`; 0: none). */
static const char* put_part(const char* from, const char* name, long size_bytes, long changed) {
  const char* path = at(name);
  FILE* in = fopen(from, "rb");
  FILE* out = fopen(path, "wb");
  assert_non_null(in);
  assert_non_null(out);
  for (long i = 0; i < size_bytes; ++i) {
    const int byte = fgetc(in);
    fputc(i == changed && changed != 0 ? 8 : byte, out);
  }
  fclose(in);
  assert_int_equal(fclose(out), 0);
  return path;
}

/* The loader would end the process for the second of these files, and call the last "not found". */
static void libraries_that_cannot_be_mapped(void** state) {
  (void)state;
  void* library = NULL;
  char whole[ACCRT_PATH_BYTES];
  assert_int_equal(mkdir(at("cut"), 0755), 0);
  snprintf(whole, sizeof whole, "%s", put_library("cut/whole.so"));
  struct stat facts;
  assert_int_equal(stat(whole, &facts), 0);
  const long size_bytes = (long)facts.st_size;
  expect(accrt_library_open(put_part(whole, "cut/4.so", 4, 0), ACCRT_LIBRARY_PATH, &library),
         ACCRT_ERROR_INVALID_FORMAT, "too few for an ELF header");
  expect(accrt_library_open(put_part(whole, "cut/half.so", size_bytes / 2, 0), ACCRT_LIBRARY_PATH,
                            &library),
         ACCRT_ERROR_INVALID_FORMAT, "the file is cut");
  expect(accrt_library_open(put_part(whole, "cut/text.so", size_bytes, 1), ACCRT_LIBRARY_PATH,
                            &library),
         ACCRT_ERROR_INVALID_FORMAT, "not an ELF file");
  const long machine = (long)offsetof(Elf64_Ehdr, e_machine);
  expect(accrt_library_open(put_part(whole, "cut/machine.so", size_bytes, machine),
                            ACCRT_LIBRARY_PATH, &library),
         ACCRT_ERROR_INVALID_FORMAT, "ELF machine 8"); /* EM_MIPS */
  const long type = (long)offsetof(Elf64_Ehdr, e_type);
  expect(accrt_library_open(put_part(whole, "cut/type.so", size_bytes, type), ACCRT_LIBRARY_PATH,
                            &library),
         ACCRT_ERROR_INVALID_FORMAT, "ELF type 8");
  assert_null(library);
}

/* Writes another header, and another first segment without bytes of the file, over those there. */
static void change_elf(const char* path, const Elf64_Ehdr* header, const Elf64_Phdr* segment) {
  FILE* file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fwrite(header, sizeof *header, 1, file), 1);
  for (long i = 0; segment != NULL && i < header->e_phnum; ++i) {
    Elf64_Phdr there;
    const long at_bytes = (long)header->e_phoff + i * (long)sizeof there;
    assert_int_equal(fseek(file, at_bytes, SEEK_SET), 0);
    assert_int_equal(fread(&there, sizeof there, 1, file), 1);
    if (there.p_type != PT_NOTE)
      continue; /* the loader can do without notes */
    assert_int_equal(fseek(file, at_bytes, SEEK_SET), 0);
    assert_int_equal(fwrite(segment, sizeof *segment, 1, file), 1);
    break;
  }
  assert_int_equal(fclose(file), 0);
}

/* What the system's loader does not read may lie behind the end: section headers, and where a
 * segment without bytes begins. */
static void what_is_not_mapped_may_lie_behind_the_end(void** state) {
  (void)state;
  void* library = NULL;
  char path[ACCRT_PATH_BYTES];
  snprintf(path, sizeof path, "%s", put_library("sections.so"));
  Elf64_Ehdr header;
  FILE* file = fopen(path, "rb");
  assert_non_null(file);
  assert_int_equal(fread(&header, sizeof header, 1, file), 1);
  assert_int_equal(fclose(file), 0);
  header.e_shoff = UINT64_C(1) << 40;
  const uint64_t far = UINT64_C(1) << 24; /* behind all other segments */
  const Elf64_Phdr empty = {PT_LOAD, PF_R | PF_W, far, far, far, 0, 4096, 4096};
  change_elf(path, &header, &empty);
  assert_int_equal(accrt_library_open(path, ACCRT_LIBRARY_PATH, &library), ACCRT_OK);
  assert_int_equal(dlclose(library), 0);
  const Elf64_Phdr uneven = {PT_LOAD, PF_R | PF_W, far + 8, far + 8, far + 8, 0, 4096, 4096};
  snprintf(path, sizeof path, "%s", put_library("uneven.so"));
  change_elf(path, &header, &uneven);
  expect(accrt_library_open(path, ACCRT_LIBRARY_PATH, &library), ACCRT_ERROR_INVALID_FORMAT,
         "the file is cut");
}

static void libraries(void** state) {
  (void)state;
  void* library;
  assert_int_equal(mkdir(at("libraries"), 0755), 0);
  char path[ACCRT_PATH_BYTES];
  snprintf(path, sizeof path, "%s", put_library("libraries/libours.so"));
  assert_int_equal(chdir(at("libraries")), 0);
  static const char* const relative[] = {"./libours.so", "../libraries/libours.so", "",
                                         "libraries/libours.so", "$ORIGIN/libours.so"};
  for (size_t i = 0; i < sizeof relative / sizeof relative[0]; ++i) {
    expect(accrt_library_open(relative[i], ACCRT_LIBRARY_PATH_OR_SONAME, &library),
           ACCRT_ERROR_INVALID_ARGUMENT, "absolute path");
    expect(accrt_library_open(relative[i], ACCRT_LIBRARY_PATH, &library),
           ACCRT_ERROR_INVALID_ARGUMENT, "absolute path");
  }
  expect(accrt_library_open("libours.so", ACCRT_LIBRARY_PATH, &library),
         ACCRT_ERROR_INVALID_ARGUMENT, "absolute path");
  expect(accrt_library_open("libours.so", ACCRT_LIBRARY_PATH_OR_SONAME, &library),
         ACCRT_ERROR_NOT_FOUND, "libours.so"); /* the system does not look here */
  assert_int_equal(chmod(at("libraries"), 0777), 0);
  expect(accrt_library_open(path, ACCRT_LIBRARY_PATH, &library), ACCRT_ERROR_PERMISSION_DENIED,
         "others may write");
  assert_int_equal(chmod(at("libraries"), 0755), 0);
  assert_int_equal(chmod(path, 0775), 0);
  expect(accrt_library_open(path, ACCRT_LIBRARY_PATH_OR_SONAME, &library),
         ACCRT_ERROR_PERMISSION_DENIED, "others may write");
  assert_int_equal(chmod(path, 0755), 0);
  assert_false(is_loaded(path));
  assert_null(library);
  assert_int_equal(mkfifo(at("libraries/fifo.so"), 0600), 0);
  alarm(20);
  expect(accrt_library_open(at("libraries/fifo.so"), ACCRT_LIBRARY_PATH, &library),
         ACCRT_ERROR_NOT_FOUND, "not a regular file");
  expect(accrt_library_open(at("libraries"), ACCRT_LIBRARY_PATH, &library), ACCRT_ERROR_NOT_FOUND,
         "not a regular file");
  alarm(0);
  assert_int_equal(accrt_library_open(path, ACCRT_LIBRARY_PATH, &library), ACCRT_OK);
  assert_true(is_loaded(path));
  assert_int_equal(accrt_library_open("libm.so.6", ACCRT_LIBRARY_PATH_OR_SONAME, &library),
                   ACCRT_OK);
}

/* ---- A program that the library is linked into, started under names that are not its path ---- */

/* Requests pack `evil` as a bundle would. 0: nothing was opened. */
static int obtain(const char* path) {
  accrt_instance_t* instance;
  accrt_kernel_pack_t* pack;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 2;
  const accrt_status_t status = accrt_kernel_pack_obtain(instance, "evil", &pack);
  accrt_instance_release(instance);
  if (status != ACCRT_ERROR_NOT_FOUND)
    return 3;
  return is_loaded(path) ? 1 : 0;
}

static int run_as(const char* name, const char* path) {
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder) == 0)
      (void)execl(program, name, "--obtain", path, (char*)NULL);
    _exit(4);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}

static void names_of_programs(void** state) {
  (void)state;
  assert_int_equal(mkdir(at("accrt"), 0755), 0);
  assert_int_equal(mkdir(at("accrt/packs"), 0755), 0);
  char path[ACCRT_PATH_BYTES], lie[ACCRT_PATH_BYTES];
  snprintf(path, sizeof path, "%s", put_library("accrt/packs/evil.so"));
  snprintf(lie, sizeof lie, "%s", at("program"));
  const char* const names[] = {"program", "./program", lie, ""};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    assert_int_equal(run_as(names[i], path), 0);
  char own[ACCRT_PATH_BYTES];
  assert_true(accrt_own_path(own));
  assert_string_equal(own, program);
}

int main(int argc, char** argv) {
  static char self[ACCRT_PATH_BYTES];
  if (argc == 3 && strcmp(argv[1], "--obtain") == 0)
    return obtain(argv[2]);
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
    return 1;
  program = self;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files),
      cmocka_unit_test(every_level),
      cmocka_unit_test(links),
      cmocka_unit_test(libraries),
      cmocka_unit_test(libraries_that_cannot_be_mapped),
      cmocka_unit_test(what_is_not_mapped_may_lie_behind_the_end),
      cmocka_unit_test(names_of_programs),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
