/* The library as part of a process: two copies of it side by side, a fork while its threads
 * run, an exit with work in flight. Public headers only; the host driver is real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/api.h"

#define WORDS 4096u
#define CHILD_LIMIT_S 20

/* ---- Two copies, each found with dlopen through its one symbol ---- */

static void copy_file(const char* from, const char* to) {
  FILE* source = fopen(from, "rb");
  FILE* target = fopen(to, "wb");
  assert_true(source != NULL && target != NULL);
  char block[65536];
  size_t size_bytes;
  while ((size_bytes = fread(block, 1, sizeof block, source)) > 0)
    assert_int_equal(fwrite(block, 1, size_bytes, target), size_bytes);
  assert_int_equal(fclose(target), 0);
  (void)fclose(source);
}

static void* open_copy(const char* original, char* path, accrt_api_t* out_api) {
  const int file = mkstemp(path);
  assert_true(file >= 0);
  (void)close(file);
  copy_file(original, path);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  (void)unlink(path);
  if (library == NULL)
    fail_msg("%s", dlerror());
  accrt_status_t (*get_api)(uint32_t version, accrt_api_t * table, size_t size_bytes);
  void* symbol = dlsym(library, "accrt_get_api");
  assert_non_null(symbol);
  memcpy(&get_api, &symbol, sizeof symbol);
  assert_int_equal(get_api(ACCRT_VERSION, out_api, sizeof *out_api), ACCRT_OK);
  return library;
}

typedef struct side {
  accrt_api_t api;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  uint32_t words[WORDS];
} side_t;

static void start_side(side_t* side, uint32_t pattern) {
  const accrt_api_t* api = &side->api;
  assert_int_equal(api->instance_create(NULL, &side->instance), ACCRT_OK);
  assert_int_equal(api->instance_device_by_name(side->instance, "host", &side->device), ACCRT_OK);
  assert_int_equal(api->stream_create(side->device, NULL, &side->stream), ACCRT_OK);
  const accrt_place_t place = {.pointer = side->words};
  assert_int_equal(api->stream_fill(side->stream, &place, sizeof side->words, pattern, 4),
                   ACCRT_OK);
}

static void finish_side(side_t* side, uint32_t pattern) {
  const accrt_api_t* api = &side->api;
  assert_int_equal(api->stream_synchronize(side->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i)
    assert_int_equal(side->words[i], pattern);
  api->stream_release(side->stream);
  api->device_release(side->device);
  api->instance_release(side->instance);
}

static void two_copies(void** state) {
  (void)state;
  Dl_info own;
  void* symbol;
  uint32_t (*version)(void) = accrt_version;
  memcpy(&symbol, &version, sizeof symbol);
  assert_int_not_equal(dladdr(symbol, &own), 0);
  char first[] = "/tmp/accrt-first-XXXXXX", second[] = "/tmp/accrt-second-XXXXXX";
  static side_t sides[2];
  void* libraries[2] = {open_copy(own.dli_fname, first, &sides[0].api),
                        open_copy(own.dli_fname, second, &sides[1].api)};
  assert_ptr_not_equal(libraries[0], libraries[1]);
  assert_true(sides[0].api.version != sides[1].api.version);
  start_side(&sides[0], 11);
  start_side(&sides[1], 22);
  /* An error of one is none of the other. */
  accrt_device_t* device = NULL;
  assert_int_equal(sides[0].api.instance_device_by_name(sides[0].instance, "nowhere", &device),
                   ACCRT_ERROR_NOT_FOUND);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(sides[1].api.last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_OK);
  finish_side(&sides[1], 22);
  finish_side(&sides[0], 11);
  /* Not closed: the library may be unloaded by nobody who has used it. */
}

/* ---- Fork and exit ---- */

typedef struct world {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
} world_t;

static int open_world(world_t* world) {
  const accrt_option_t threads = {"host.threads", "2"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &threads;
  options.option_count = 1;
  options.option_size_bytes = sizeof threads;
  return accrt_instance_create(&options, &world->instance) == ACCRT_OK &&
         accrt_instance_device_by_name(world->instance, "host", &world->device) == ACCRT_OK &&
         accrt_stream_create(world->device, NULL, &world->stream) == ACCRT_OK &&
         accrt_semaphore_create(world->instance, 0, &world->semaphore) == ACCRT_OK;
}

static void close_world(world_t* world) {
  accrt_semaphore_release(world->semaphore);
  accrt_stream_release(world->stream);
  accrt_instance_release(world->instance);
}

/* Many fills, the first half at once and the second once the semaphore is raised. */
static int enqueue(world_t* world, uint32_t* words) {
  for (uint32_t i = 0; i < WORDS; ++i) {
    const accrt_place_t place = {.pointer = &words[i]};
    if (i == WORDS / 2 && accrt_stream_wait(world->stream, world->semaphore, 1) != ACCRT_OK)
      return 0;
    if (accrt_stream_fill(world->stream, &place, 4, 7, 4) != ACCRT_OK)
      return 0;
  }
  return 1;
}

static void expect_child(pid_t child, int wanted) {
  int status = 0;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
    fail_msg("the child's status is 0x%x, not exit with %d", (unsigned)status, wanted);
}

/* Before any other test makes an instance: the child is the first to use the library. */
static void exit_with_work_in_flight(void** state) {
  (void)state;
  static uint32_t words[WORDS];
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S);
    static world_t world;
    if (!open_world(&world) || !enqueue(&world, words))
      _exit(1);
    exit(42);
  }
  expect_child(child, 42);
}

static void fork_while_threads_run(void** state) {
  (void)state;
  static uint32_t words[WORDS];
  world_t world;
  assert_true(open_world(&world));
  assert_true(enqueue(&world, words));
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S); /* a hang becomes a signal */
    accrt_instance_t* another = (accrt_instance_t*)&world;
    const int refused = accrt_stream_synchronize(world.stream, ACCRT_TIMEOUT_INFINITE,
                                                 ACCRT_WAIT_BLOCK) == ACCRT_ERROR_FORKED &&
                        accrt_semaphore_signal(world.semaphore, 1) == ACCRT_ERROR_FORKED &&
                        accrt_instance_create(NULL, &another) == ACCRT_ERROR_FORKED &&
                        another == NULL;
    close_world(&world);
    _exit(refused ? 42 : 1);
  }
  expect_child(child, 42);
  assert_int_equal(accrt_semaphore_signal(world.semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(world.stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i)
    assert_int_equal(words[i], 7);
  close_world(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exit_with_work_in_flight),
      cmocka_unit_test(fork_while_threads_run),
      cmocka_unit_test(two_copies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
