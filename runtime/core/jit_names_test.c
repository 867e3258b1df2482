/* runtime/core/jit_names_test.c - gdb finds kernels loaded from memory by name (in a gdb of its
 * own, when one is installed and may trace), and perf's map file has them. Runs from the root of
 * the source tree.
 *
 * With the argument "child" it is what gdb runs: it loads an image and calls a kernel.
 */
#define _GNU_SOURCE
#include "runtime/core/jit_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/pack.h"
#include "runtime/core/test_image.h"
#include "runtime/core/instance.h"

static char log_line[512];
static void keep_log(void* self, uint32_t level, const char* component, const char* line) {
  (void)self;
  (void)level;
  (void)component;
  snprintf(log_line, sizeof log_line, "%s", line);
}

static accrt_instance_t* make_instance(uint32_t flags) {
  const accrt_log_sink_t sink = {NULL, keep_log, ACCRT_LOG_WARNING, 0};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS | flags;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  options.log_sink = &sink;
  accrt_instance_t* instance = NULL;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    abort();
  return instance;
}

static accrt_kernel_pack_t* load_pack(accrt_instance_t* instance, const char* name) {
  size_t size;
  unsigned char* image = test_image(instance, TEST_IMAGE_OWN, &size);
  accrt_kernel_pack_t* pack = NULL;
  if (accrt_kernel_pack_load(instance, image, size, name, &pack) != ACCRT_OK)
    abort();
  free(image);
  return pack;
}

/* Calls the kernel "reverse" on four floats. */
static int run_reverse(accrt_kernel_pack_t* pack) {
  accrt_kernel_t* kernel;
  if (accrt_kernel_pack_find(pack, "reverse", &kernel) != ACCRT_OK)
    abort();
  const float source[4] = {1, 2, 3, 4};
  float target[4] = {0};
  const struct {
    const float* source;
    float* target;
    int64_t n;
  } params = {source, target, 4};
  const accrt_kernel_dispatch_t dispatch = {.struct_size = sizeof dispatch,
                                            .workgroup_count = {1, 1, 1},
                                            .params = &params,
                                            .params_size_bytes = sizeof params};
  const accrt_kernel_workgroup_t workgroup = {.struct_size = sizeof workgroup};
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  return view->definition->entry(view->environment, &dispatch, &workgroup) == 0 && target[0] == 4 &&
         target[3] == 1;
}

static int child(void) {
  accrt_instance_t* instance = make_instance(0);
  accrt_kernel_pack_t* first = load_pack(instance, "first");
  accrt_kernel_pack_t* second = load_pack(instance, "second");
  accrt_kernel_pack_release(first); /* gdb must forget its names */
  const int good = run_reverse(second);
  accrt_kernel_pack_release(second);
  accrt_instance_release(instance);
  printf("child ends %s\n", good ? "well" : "badly");
  return good ? 0 : 1;
}

/* ---- gdb ---- */

static void gdb_sees_names(void** state) {
  (void)state;
#if defined(__SANITIZE_THREAD__)
  skip(); /* it starts itself again, which gdb does not follow */
#endif
  if (system("gdb --version >/dev/null 2>&1") != 0) {
    print_message("gdb is not installed\n");
    skip();
  }
  char self[512];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(length > 0);
  self[length] = '\0';
  char command[1400];
  snprintf(command, sizeof command,
           "ASAN_OPTIONS=detect_leaks=0 DEBUGINFOD_URLS= gdb -nx -batch -iex 'set auto-load off' "
           "-ex 'set breakpoint pending on' "
           "-ex 'break reverse' -ex 'run child' -ex 'backtrace 2' -ex 'continue' -ex 'info "
           "breakpoints' '%s' </dev/null 2>&1",
           self);
  FILE* gdb = popen(command, "r");
  assert_non_null(gdb);
  static char output[65536];
  const size_t size = fread(output, 1, sizeof output - 1, gdb);
  output[size] = '\0';
  (void)pclose(gdb);
  if (strstr(output, "ptrace") != NULL || strstr(output, "child ends well") == NULL) {
    print_message("gdb could not run the program here:\n%s\n", output);
    skip();
  }
  if (strstr(output, "in reverse ()") == NULL || strstr(output, "run_reverse") == NULL)
    fail_msg("gdb said:\n%s", output);
}

/* ---- perf ---- */

static void map_path(char* path, size_t size) {
  snprintf(path, size, "/tmp/perf-%ld.map", (long)getpid());
}

static void perf_map(void** state) {
  (void)state;
  char path[64];
  map_path(path, sizeof path);
  unlink(path);
  accrt_instance_t* instance = make_instance(0);
  accrt_kernel_pack_release(load_pack(instance, "unasked"));
  accrt_instance_release(instance);
  assert_int_not_equal(access(path, F_OK), 0); /* the option is off */

  instance = make_instance(ACCRT_INSTANCE_FLAG_PERF_MAP);
  accrt_kernel_pack_t* pack = load_pack(instance, "my\nimage");
  assert_true(run_reverse(pack));
  accrt_kernel_t* kernel;
  assert_int_equal(accrt_kernel_pack_find(pack, "reverse", &kernel), ACCRT_OK);
  const unsigned long long entry =
      (unsigned long long)(uintptr_t)accrt_kernel_driver_view(kernel)->definition->entry;
  struct stat facts;
  assert_int_equal(stat(path, &facts), 0);
  assert_int_equal(facts.st_mode & 0777, 0600);
  FILE* map = fopen(path, "r");
  assert_non_null(map);
  char line[512];
  int lines = 0, found = 0;
  while (fgets(line, sizeof line, map) != NULL) {
    unsigned long long address, size;
    char name[256];
    assert_int_equal(sscanf(line, "%llx %llx %255[^\n]", &address, &size, name), 3);
    assert_true(size > 0);
    assert_int_equal(strncmp(name, "my_image:", 9), 0);
    if (strcmp(name, "my_image:reverse") == 0)
      found = address == entry;
    ++lines;
  }
  fclose(map);
  assert_true(found);
  assert_true(lines >= 4);
  accrt_kernel_pack_release(pack);

  /* A second image is appended. */
  accrt_kernel_pack_release(load_pack(instance, "second"));
  struct stat later;
  assert_int_equal(stat(path, &later), 0);
  assert_true(later.st_size > facts.st_size);
  unlink(path);

  /* Another user put a link there. It is not followed, the pack works, and the log reports it. */
  char target[80];
  snprintf(target, sizeof target, "/tmp/accrt-perf-target-%ld", (long)getpid());
  FILE* victim = fopen(target, "w");
  assert_non_null(victim);
  fclose(victim);
  assert_int_equal(symlink(target, path), 0);
  log_line[0] = '\0';
  pack = load_pack(instance, "third");
  assert_true(run_reverse(pack));
  accrt_kernel_pack_release(pack);
  assert_non_null(strstr(log_line, "perf's map"));
  assert_int_equal(stat(target, &facts), 0);
  assert_int_equal(facts.st_size, 0);
  unlink(path);
  /* So does a file with another name. */
  assert_int_equal(link(target, path), 0);
  log_line[0] = '\0';
  accrt_kernel_pack_release(load_pack(instance, "fourth"));
  assert_non_null(strstr(log_line, "perf's map"));
  unlink(path);
  unlink(target);
  accrt_instance_release(instance);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "child") == 0)
    return child();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(perf_map),
      cmocka_unit_test(gdb_sees_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
