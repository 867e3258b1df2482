/* runtime/program/prepare_test.c - prepare functions with results on disk: computed once, found
 * by all programs, computed again after damage. A result that cannot be stored is computed each
 * time. */
#define _GNU_SOURCE
#include "runtime/program/own_memory_host.h"

#include <dirent.h>

static char folder[64];
static atomic_uint prepared;

static void count(void* self, const accrt_trace_event_t* event) {
  (void)self;
  if (event->kind == ACCRT_TRACE_COMPLETE && event->name != NULL &&
      strncmp(event->name, "make_", 5) == 0)
    atomic_fetch_add(&prepared, 1);
}

static fixture_t* open_kept(const char* path, uint32_t verify) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  const accrt_option_t list[] = {{"prepare.cache", path}, {"+host.threads", "1"}};
  const accrt_trace_sink_t sink = {NULL, count};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.trace_sink = &sink;
  options.options = list;
  options.option_count = 2;
  options.option_size_bytes = (uint32_t)sizeof list[0];
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  OK(accrt_instance_create(&options, &f->instance));
  open_own_memory_device(f);
  accrt_bundle_options_t bundle_options = ACCRT_BUNDLE_OPTIONS_INIT;
  bundle_options.verify = verify;
  OK(accrt_bundle_open_path(f->instance, ACCRT_TEST_DATA "/program.accx", &bundle_options,
                            &f->bundle));
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  OK(accrt_session_create(f->program, NULL, &f->session));
  return f;
}

/* Opens a program, checks the values of "reversed" and "doubled", and returns the number of prepare
 * functions that ran. */
static unsigned runs_with(const char* path, uint32_t verify) {
  atomic_store(&prepared, 0);
  fixture_t* f = open_kept(path, verify);
  const unsigned runs = atomic_load(&prepared);
  accrt_call_t* call = make_call(f->session, "weights");
  OK(run(call));
  const float* r = result_data(call, 1);
  const float* d = result_data(call, 2);
  for (int i = 0; i < 8; ++i) {
    assert_true(r[i] == (float)(7 - i));
    assert_true(d[i] == 2.0f * (float)i + 0.5f);
  }
  accrt_call_release(call);
  close_fixture(f);
  return runs;
}

/* Changes a byte in each entry (`at` from its start; negative: from its end), or cuts the entries
 * off. */
static int each_entry(long at, bool cut) {
  int entries = 0;
  DIR* list = opendir(folder);
  assert_non_null(list);
  for (struct dirent* entry = readdir(list); entry != NULL; entry = readdir(list)) {
    if (entry->d_name[0] == '.')
      continue;
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    ++entries;
    FILE* file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    if (cut)
      assert_int_equal(ftruncate(fileno(file), ftell(file)), 0);
    else
      assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
  }
  closedir(list);
  return entries;
}

static int set_up(void** state) {
  (void)state;
  own_memory = false;
  strcpy(folder, "/tmp/accrt-prepared-XXXXXX");
  return mkdtemp(folder) == NULL;
}
static int tear_down(void** state) {
  (void)state;
  char command[128];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}
#define BUNDLES                                                                                    \
  (void)state;                                                                                     \
  if (!have_bundles())                                                                             \
  skip()

static int count_entries(void) {
  int entries = 0;
  DIR* list = opendir(folder);
  assert_non_null(list);
  for (struct dirent* entry = readdir(list); entry != NULL; entry = readdir(list))
    entries += entry->d_name[0] != '.';
  closedir(list);
  return entries;
}

static void runs_once(void** state) {
  BUNDLES;
  assert_int_equal(runs_with(folder, 0), 2);
  assert_int_equal(runs_with(folder, 0), 0);
  assert_int_equal(count_entries(), 2);
  assert_int_equal(runs_with("", 0), 2);
}

/* A device with its own memory runs them faster than entries are found and copied to it. */
static void own_memory_makes_again(void** state) {
  BUNDLES;
  own_memory = true;
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(runs_with(folder, 0), 2);
    assert_int_equal(count_entries(), 0);
  }
  own_memory = false;
  assert_int_equal(runs_with(folder, 0), 2);
  assert_int_equal(runs_with(folder, 0), 0);
  own_memory = true; /* also if a host's results are there */
  assert_int_equal(runs_with(folder, 0), 2);
  assert_int_equal(count_entries(), 2);
}

static void damaged_is_made_again(void** state) {
  BUNDLES;
  assert_int_equal(runs_with(folder, 0), 2);
  static const long places[] = {0, 8, 20, 40, 48, -1};
  for (size_t i = 0; i < 2 * sizeof places / sizeof places[0]; ++i) {
    assert_int_equal(each_entry(places[i / 2], i % 2 == 1), 2);
    assert_int_equal(runs_with(folder, 0), 2);
    assert_int_equal(runs_with(folder, 0), 0);
  }
}

static void does_without(void** state) {
  BUNDLES;
  assert_int_equal(runs_with("/proc/accrt-no-such-folder", 0), 2);
  assert_int_equal(runs_with("/dev/null", 0), 2);
}

/* Bytes that are compared with no digest are not identified by the bundle's digests. */
static void unverified_is_not_kept(void** state) {
  BUNDLES;
  assert_int_equal(runs_with(folder, ACCRT_VERIFY_NO_DATA), 2);
  assert_int_equal(runs_with(folder, 0), 2);
  assert_int_equal(runs_with(folder, ACCRT_VERIFY_NO_DATA), 2);
}

/* Results of swapped weights are neither searched nor stored. */
static void swaps_are_made(void** state) {
  BUNDLES;
  assert_int_equal(runs_with(folder, 0), 2);
  fixture_t* f = open_kept(folder, 0);
  atomic_store(&prepared, 0);
  float fresh[8] = {9, 8, 7, 6, 5, 4, 3, 2};
  const int64_t n = 8;
  const accrt_weight_t weight = {"weight", tensor_of(fresh, ACCRT_DTYPE_F32, 1, &n)};
  OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
  assert_int_equal(atomic_load(&prepared), 2);
  accrt_call_t* call = make_call(f->session, "weights");
  OK(run(call));
  assert_true(((const float*)result_data(call, 1))[0] == 2.0f);
  accrt_call_release(call);
  close_fixture(f);
  assert_int_equal(runs_with(folder, 0), 0);
}

int main(void) {
#define KEPT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      KEPT_TEST(runs_once),    KEPT_TEST(own_memory_makes_again), KEPT_TEST(damaged_is_made_again),
      KEPT_TEST(does_without), KEPT_TEST(unverified_is_not_kept), KEPT_TEST(swaps_are_made),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
