/* runtime/program/upload_test.c - all weights of a bundle at once, on a device with memory of its
 * own: the host driver's behind a table that says so. From files, memory and callbacks; what is
 * damaged is refused before anything can be called. */
#include "runtime/program/own_memory_host.h"

#include <fcntl.h>

static const char* direct_reads = "0";

static fixture_t* open_device(void) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  const accrt_option_t list[] = {{"staging.threads", "3"},
                                 {"staging.ring_bytes", "6291456"},
                                 {"staging.direct_reads", direct_reads}};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = list;
  options.option_count = 3;
  options.option_size_bytes = sizeof list[0];
  OK(accrt_instance_create(&options, &f->instance));
  own_memory = true;
  open_own_memory_device(f);
  return f;
}

#define NEED_BUNDLES()                                                                             \
  if (!have_bundles())                                                                             \
    skip();                                                                                        \
  (void)state

/* ---- What is where ---- */

typedef struct weight {
  const char* name;
  uint64_t size_bytes;
} weight_t;
/* As tests/bundles/make.py has them. */
static const weight_t weights[] = {{"a", 1500000},     {"b", 100},         {"c", 1},
                                   {"large", 2800000}, {"spare", 2300000}, {"tail", 1234}};
enum { WEIGHTS = sizeof weights / sizeof *weights, SPARE = 4 };

static unsigned char byte_of(unsigned weight, uint64_t k) {
  return (unsigned char)(k * 7 + (k >> 10) + weight);
}

static const accrt_weight_component_t* component_of(const fixture_t* f, const char* name) {
  const uint32_t constant = accrt_bundle_lookup_constant(f->bundle, name);
  const uint32_t component = f->program->tables->constants[constant].component_first;
  return &f->program->weights->components[component];
}

/* The device's memory is the host's here. */
static void check_weights(fixture_t* f) {
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  for (unsigned i = 0; i < WEIGHTS; ++i) {
    const accrt_weight_component_t* component = component_of(f, weights[i].name);
    assert_int_equal(component->ready, i != SPARE);
    if (i == SPARE)
      continue;
    assert_int_equal(component->size_bytes, weights[i].size_bytes);
    assert_int_equal(component->address % ACCRT_STORAGE_ALIGN, 0);
    const unsigned char* bytes = (const unsigned char*)(uintptr_t)component->address;
    for (uint64_t k = 0; k < component->size_bytes; ++k) {
      if (bytes[k] != byte_of(i, k))
        fail_msg("%s[%llu] is %u", weights[i].name, (unsigned long long)k, bytes[k]);
    }
  }
}

static void check_results(fixture_t* f) {
  OK(accrt_session_create(f->program, NULL, &f->session));
  accrt_call_t* call = make_call(f->session, "ends");
  OK(run(call));
  const unsigned char* y = result_data(call, 0);
  for (unsigned i = 0; i < WEIGHTS; ++i) {
    if (i == SPARE)
      continue;
    assert_int_equal(y[2 * i], byte_of(i, 0));
    assert_int_equal(y[2 * i + 1], byte_of(i, weights[i].size_bytes - 1));
  }
  accrt_call_release(call);
}

/* One buffer for all: label and size say so. */
static void check_account(const fixture_t* f) {
  accrt_pool_t* pool;
  OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_pool_entry_t entry;
  uint32_t count;
  OK(accrt_pool_snapshot(pool, &entry, 1, sizeof entry, &count));
  assert_int_equal(count, 1);
  assert_true(entry.size_bytes >= 4301335 && entry.size_bytes < 4301335 + 6 * 256);
  assert_memory_equal(entry.label, "weights of ", 11);
}

/* ---- Sources ---- */

typedef struct bytes {
  unsigned char* data;
  size_t size_bytes;
} bytes_t;

static bytes_t read_bundle(void) {
  const int fd = open(ACCRT_TEST_DATA "/large.accx", O_RDONLY);
  assert_true(fd >= 0);
  bytes_t bytes = {NULL, (size_t)lseek(fd, 0, SEEK_END)};
  bytes.data = malloc(bytes.size_bytes + 1);
  assert_int_equal(pread(fd, bytes.data, bytes.size_bytes, 0), bytes.size_bytes);
  (void)close(fd);
  return bytes;
}

static int make_file(const bytes_t* bytes) {
  char path[] = "/tmp/accrt-upload-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)unlink(path);
  assert_int_equal(write(fd, bytes->data, bytes->size_bytes), bytes->size_bytes);
  return fd;
}

static int32_t read_from(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const bytes_t* bytes = self;
  memcpy(target, bytes->data + offset, size_bytes);
  return 0;
}

enum { FROM_PATH, FROM_FD, FROM_MEMORY, FROM_ODD_MEMORY, FROM_CALLBACKS, SOURCES };

static void open_from(fixture_t* f, int source, bytes_t* bytes) {
  const accrt_reader_t reader = {.self = bytes, .size_bytes = bytes->size_bytes, .read = read_from};
  if (source == FROM_PATH)
    f->bundle = open_bundle(f->instance, "large");
  if (source == FROM_FD) {
    const int fd = make_file(bytes);
    OK(accrt_bundle_open_fd(f->instance, fd, NULL, &f->bundle));
    (void)close(fd);
  }
  if (source == FROM_ODD_MEMORY)
    memmove(bytes->data + 1, bytes->data, bytes->size_bytes);
  if (source == FROM_MEMORY || source == FROM_ODD_MEMORY) {
    OK(accrt_bundle_open_memory(f->instance, bytes->data + (source == FROM_ODD_MEMORY),
                                bytes->size_bytes, NULL, NULL, NULL, &f->bundle));
  }
  if (source == FROM_CALLBACKS)
    OK(accrt_bundle_open_callbacks(f->instance, &reader, NULL, &f->bundle));
}

static void from_every_source(void** state) {
  NEED_BUNDLES();
  for (int turn = 0; turn < 2 * SOURCES; ++turn) {
    const int source = turn % SOURCES;
    bytes_t bytes = read_bundle();
    direct_reads = turn < SOURCES ? "0" : "1";
    fixture_t* f = open_device();
    direct_reads = "0";
    open_from(f, source, &bytes);
    check_weights(f);
    check_account(f);
    check_results(f);
    close_fixture(f);
    free(bytes.data);
  }
}

/* What was read before by callbacks is not read again, and is the same. */
static void after_a_look_at_the_data(void** state) {
  NEED_BUNDLES();
  bytes_t bytes = read_bundle();
  fixture_t* f = open_device();
  open_from(f, FROM_CALLBACKS, &bytes);
  const void* data;
  uint64_t size_bytes;
  OK(accrt_bundle_constant_data(f->bundle, accrt_bundle_lookup_constant(f->bundle, "large"), &data,
                                &size_bytes));
  check_weights(f);
  close_fixture(f);
  free(bytes.data);
}

/* ---- Damage ---- */

static bool lies_at(const bytes_t* bytes, unsigned weight, uint64_t at) {
  const uint64_t size_bytes = weights[weight].size_bytes;
  bool same = at + size_bytes <= bytes->size_bytes;
  for (uint64_t k = 0; k < size_bytes && same; ++k)
    same = bytes->data[at + k] == byte_of(weight, k);
  return same;
}

/* Where a constant begins in the file; parts of larger ones, which lie before, look like small
 * ones. */
static uint64_t place_of(const bytes_t* bytes, unsigned weight) {
  uint64_t at = bytes->size_bytes / ACCRT_STORAGE_ALIGN * ACCRT_STORAGE_ALIGN;
  while (at > 0 && !lies_at(bytes, weight, at))
    at -= ACCRT_STORAGE_ALIGN;
  assert_true(at > 0);
  return at;
}

static accrt_status_t create_damaged(bytes_t* bytes, uint64_t at, uint32_t verify) {
  fixture_t* f = open_device();
  bytes->data[at] ^= 1;
  const int fd = make_file(bytes);
  bytes->data[at] ^= 1;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = verify;
  OK(accrt_bundle_open_fd(f->instance, fd, &options, &f->bundle));
  (void)close(fd);
  const accrt_status_t status = accrt_program_create(f->device, f->bundle, NULL, &f->program);
  const accrt_error_t error = *accrt_error_current();
  close_fixture(f);
  return status == ACCRT_OK ? status : accrt_error_restore(&error);
}

static void damage_is_refused(void** state) {
  NEED_BUNDLES();
  bytes_t bytes = read_bundle();
  const uint64_t large = place_of(&bytes, 3), tail = place_of(&bytes, 5),
                 spare = place_of(&bytes, 4);
  FAILS(create_damaged(&bytes, large + 1500000, ACCRT_VERIFY_DEFAULT), DATA_CORRUPT,
        "constant 'large'");
  ALSO("does not match");
  ALSO("data[");
  assert_string_equal(accrt_error_current()->operation, "accrt_program_create");
  FAILS(create_damaged(&bytes, tail + 1, ACCRT_VERIFY_DEFAULT), DATA_CORRUPT, "data[6]");
  OK(create_damaged(&bytes, large + 1500000, ACCRT_VERIFY_NO_DATA));
  /* A chunk that only an unused constant lies in is not read. */
  OK(create_damaged(&bytes, spare + 1100000, ACCRT_VERIFY_DEFAULT));
  free(bytes.data);
}

static void a_file_that_shrinks(void** state) {
  NEED_BUNDLES();
  bytes_t bytes = read_bundle();
  fixture_t* f = open_device();
  const int fd = make_file(&bytes);
  OK(accrt_bundle_open_fd(f->instance, fd, NULL, &f->bundle));
  assert_int_equal(ftruncate(fd, (off_t)bytes.size_bytes - 2000000), 0);
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), IO, "truncated");
  (void)close(fd);
  close_fixture(f);
  free(bytes.data);
}

static int32_t fail_to_read(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const bytes_t* bytes = self;
  (void)read_from(self, offset, target, size_bytes);
  return offset > bytes->size_bytes / 2 ? 7 : 0;
}

static void a_reader_that_fails(void** state) {
  NEED_BUNDLES();
  bytes_t bytes = read_bundle();
  fixture_t* f = open_device();
  const accrt_reader_t reader = {
      .self = &bytes, .size_bytes = bytes.size_bytes, .read = fail_to_read};
  OK(accrt_bundle_open_callbacks(f->instance, &reader, NULL, &f->bundle));
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), IO, "returned 7");
  close_fixture(f);
  free(bytes.data);
}

/* Every allocation fails once: a plain error, and all is given back. */
static void out_of_memory(void** state) {
  NEED_BUNDLES();
  for (int n = 1; n < 200; n += n < 60 ? 1 : 9) {
    fixture_t* f = open_device();
    f->bundle = open_bundle(f->instance, "large");
    atomic_store(&f->watch.fail_at, atomic_load(&f->watch.count) + n);
    const accrt_status_t status = accrt_program_create(f->device, f->bundle, NULL, &f->program);
    if (status != ACCRT_OK)
      assert_true(status == ACCRT_ERROR_OUT_OF_MEMORY ||
                  status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
    atomic_store(&f->watch.fail_at, 0);
    close_fixture(f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(from_every_source),   cmocka_unit_test(after_a_look_at_the_data),
      cmocka_unit_test(damage_is_refused),   cmocka_unit_test(a_file_that_shrinks),
      cmocka_unit_test(a_reader_that_fails), cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
