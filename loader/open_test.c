/* loader/open_test.c - opening from every kind of source, weights in place and read on demand,
 * reflection, failing allocations and reads, many threads.
 *
 * Runs from the root of the source tree (tests/golden).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "loader/internal.h"
#include "loader/test_support.h"
#include "runtime/core/test_allocator.h"

#define GOLDEN "tests/golden/0.1/everything.accx"
#define MINIMAL "tests/golden/0.1/minimal.accx"
#define BIG_CONSTANTS 20u

typedef struct fixture {
  accrt_instance_t* instance;
  test_allocator_t allocator;
  bytes_t golden;
  bytes_t big; /* BIG_CONSTANTS constants over four chunks */
} fixture_t;

static fixture_t* fixture;

/* ---- A bundle with more than one chunk ---- */

static uint64_t big_size(uint32_t index) {
  return index == 3 ? 2 * ACCX_CHUNK_BYTES : 40000 + index;
}
static unsigned char big_byte(uint32_t index, uint64_t at) {
  return (unsigned char)(index * 7 + at * 13 + at / 4096);
}

static bytes_t make_big(void) {
  parts_t parts = {.count = 0};
  memcpy(parts.header.magic, ACCX_MAGIC, 8);
  parts.header.container = parts.header.commands = parts.header.kernel_abi = parts.header.layouts =
      (accx_version_t){0, 1};
  parts.header.section_record_bytes = sizeof(accx_section_t);
  parts.header.section_table_offset = sizeof(accx_header_t);
  part_t* strings = add_part(&parts, ACCX_SECTION_STRINGS, 1, "strings", 0, 1 + 4 * BIG_CONSTANTS);
  strings->section.record_count = 1 + BIG_CONSTANTS;
  part_t* constants = add_part(&parts, ACCX_SECTION_CONSTANTS, 1, "constants",
                               ACCX_CONSTANT_BYTES_0_1, BIG_CONSTANTS * ACCX_CONSTANT_BYTES_0_1);
  part_t* components = add_part(&parts, ACCX_SECTION_COMPONENTS, 1, "components",
                                sizeof(accx_component_t), BIG_CONSTANTS * sizeof(accx_component_t));
  uint64_t end = 0;
  for (uint32_t i = 0; i < BIG_CONSTANTS; ++i) {
    snprintf((char*)strings->bytes + 1 + 4 * i, 4, "c%02u", i);
    const uint64_t offset = (end + 255) & ~UINT64_C(255);
    const accx_constant_t constant = {.name = 1 + 4 * i,
                                      .dtype = ACCRT_DTYPE_U8,
                                      .rank = 1,
                                      .component_first = i,
                                      .component_count = 1,
                                      .shape = {(int64_t)big_size(i)}};
    const accx_component_t component = {ACCX_ROLE_DATA, ACCRT_DTYPE_U8, offset, big_size(i)};
    memcpy(constants->bytes + i * ACCX_CONSTANT_BYTES_0_1, &constant, ACCX_CONSTANT_BYTES_0_1);
    memcpy(components->bytes + i * sizeof component, &component, sizeof component);
    end = offset + big_size(i);
  }
  const size_t chunks = (size_t)((end + ACCX_CHUNK_BYTES - 1) / ACCX_CHUNK_BYTES);
  add_part(&parts, ACCX_SECTION_CHUNK_DIGESTS, 1, "chunk_digests", sizeof(accx_digest_t),
           chunks * sizeof(accx_digest_t));
  part_t* data = add_part(&parts, ACCX_SECTION_DATA, 1, "data", 0, (size_t)end);
  for (uint32_t i = 0; i < BIG_CONSTANTS; ++i) {
    const accx_component_t* component =
        record_of(&parts, ACCX_SECTION_COMPONENTS, sizeof *component, i);
    for (uint64_t at = 0; at < component->size_bytes; ++at)
      data->bytes[component->offset_bytes + at] = big_byte(i, at);
  }
  bytes_t file = put_together(&parts);
  free_parts(&parts);
  return file;
}

static void check_big_constant(accrt_bundle_t* bundle, uint32_t index) {
  const void* data;
  uint64_t size;
  assert_int_equal(accrt_bundle_constant_data(bundle, index, &data, &size), ACCRT_OK);
  assert_int_equal(size, big_size(index));
  assert_int_equal((uintptr_t)data % ACCX_TENSOR_ALIGN, 0);
  for (uint64_t at = 0; at < size; ++at) {
    if (((const unsigned char*)data)[at] != big_byte(index, at))
      fail_msg("constant %u differs at %llu", index, (unsigned long long)at);
  }
}

static int setup(void** state) {
  (void)state;
  fixture = must_alloc(sizeof *fixture);
  const accrt_allocator_t interface = test_allocator_interface(&fixture->allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &interface;
  if (accrt_instance_create(&options, &fixture->instance) != ACCRT_OK)
    return 1;
  fixture->golden = read_file(GOLDEN);
  fixture->big = make_big();
  return 0;
}

static int teardown(void** state) {
  (void)state;
  accrt_instance_release(fixture->instance);
  assert_int_equal(atomic_load(&fixture->allocator.live_count), 0);
  assert_int_equal(atomic_load(&fixture->allocator.wrong_count), 0);
  free(fixture->golden.data);
  free(fixture->big.data);
  free(fixture);
  return 0;
}

static void last_message(const char** out_message, int32_t* out_code) {
  static accrt_error_t error;
  error.struct_size = sizeof error;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (out_message != NULL)
    *out_message = error.message;
  if (out_code != NULL)
    *out_code = error.driver_code;
}

static void write_file(const char* path, const bytes_t* bytes) {
  FILE* file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes->data, 1, bytes->size, file), bytes->size);
  assert_int_equal(fclose(file), 0);
}

/* ---- Paths and descriptors ---- */

static void from_path(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  use_bundle(bundle);
  assert_true(bundle->data_in_place);
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  assert_int_equal(accrt_bundle_info(bundle, &info), ACCRT_OK);
  assert_string_equal(info.name, GOLDEN);
  assert_ptr_equal(accrt_bundle_retain(bundle), bundle);
  accrt_bundle_release(bundle);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, MINIMAL, NULL, &bundle), ACCRT_OK);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
}

static void bad_paths(void** state) {
  (void)state;
  accrt_bundle_t* bundle = (accrt_bundle_t*)(uintptr_t)1;
  int32_t code;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, "/no/such/file.accx", NULL, &bundle),
                   ACCRT_ERROR_NOT_FOUND);
  assert_null(bundle);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, "", NULL, &bundle),
                   ACCRT_ERROR_NOT_FOUND);
  const char* message;
  last_message(&message, NULL);
  assert_string_equal(message, "an empty path: no such file");
  assert_int_equal(accrt_bundle_open_path(fixture->instance, "/tmp", NULL, &bundle),
                   ACCRT_ERROR_IO);
  char path[64];
  snprintf(path, sizeof path, "/tmp/accrt-open-test-%ld", (long)getpid());
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, path, NULL, &bundle),
                   ACCRT_ERROR_IO); /* and does not hang */
  unlink(path);
  assert_int_equal(symlink(path, path), 0);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, path, NULL, &bundle), ACCRT_ERROR_IO);
  last_message(NULL, &code);
  assert_int_equal(code, ELOOP);
  unlink(path);
  assert_int_equal(accrt_bundle_open_fd(fixture->instance, -1, NULL, &bundle), ACCRT_ERROR_IO);
  last_message(NULL, &code);
  assert_int_equal(code, EBADF);
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  assert_int_equal(accrt_bundle_open_fd(fixture->instance, pipes[0], NULL, &bundle),
                   ACCRT_ERROR_IO);
  close(pipes[0]);
  close(pipes[1]);
}

static uint32_t open_descriptors(void) {
  uint32_t count = 0;
  for (int fd = 0; fd < 256; ++fd)
    count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

static void from_descriptor(void** state) {
  (void)state;
  const uint32_t before = open_descriptors();
  const int fd = open(GOLDEN, O_RDONLY);
  assert_true(fd >= 0);
  assert_int_equal(lseek(fd, 100, SEEK_SET), 100); /* its position does not matter */
  accrt_bundle_t* bundle;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.name = "a name of my own";
  assert_int_equal(accrt_bundle_open_fd(fixture->instance, fd, &options, &bundle), ACCRT_OK);
  accrt_bundle_t* unnamed;
  options.name = ""; /* as NULL: no message shows an empty name */
  assert_int_equal(accrt_bundle_open_fd(fixture->instance, fd, &options, &unnamed), ACCRT_OK);
  assert_true(accrt_bundle_name(unnamed)[0] != '\0');
  accrt_bundle_release(unnamed);
  close(fd);
  use_bundle(bundle);
  assert_string_equal(accrt_bundle_name(bundle), "a name of my own");
  accrt_bundle_release(bundle);
  assert_int_equal(open_descriptors(), before);
}

/* Data that was read before stays valid. Reading other data is an error, not a crash. */
static void file_that_changes(void** state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "/tmp/accrt-open-test-%ld", (long)getpid());
  write_file(path, &fixture->golden);
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, path, NULL, &bundle), ACCRT_OK);
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  void* image = must_alloc((size_t)tables->images[0].size_bytes);
  assert_int_equal(truncate(path, 200), 0);
  assert_int_equal(accrt_bundle_image_copy(bundle, 0, image), ACCRT_ERROR_IO);
  assert_int_equal(tables->function_count, 3);
  assert_string_equal(accrt_bundle_string(tables, tables->functions[2].name), "main");
  accrt_bundle_release(bundle);
  free(image);
  unlink(path);
}

/* Weights are mapped. If the file is truncated before their first check, that is an error and does
 * not end the process. */
static void weights_that_are_gone(void** state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "/tmp/accrt-open-test-%ld", (long)getpid());
  write_file(path, &fixture->golden);
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, path, NULL, &bundle), ACCRT_OK);
  const uint64_t end = bundle->data_offset; /* of the remaining file */
  assert_int_equal(truncate(path, (off_t)end), 0);
  const void* data;
  uint64_t size;
  uint32_t index;
  assert_int_equal(accrt_bundle_find_constant(bundle, "weight", &index), ACCRT_OK);
  assert_int_equal(accrt_bundle_constant_data(bundle, index, &data, &size), ACCRT_ERROR_IO);
  assert_int_equal(accrt_bundle_verify(bundle), ACCRT_ERROR_IO);
  accrt_bundle_release(bundle);
  accrt_weights_t* weights;
  char file[82] = "\x40";
  snprintf(file + 8, sizeof file - 8, "%-64s%s",
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", "012345678");
  const bytes_t tensors = {(unsigned char*)file, sizeof file - 1};
  write_file(path, &tensors);
  assert_int_equal(accrt_weights_open_path(fixture->instance, path, NULL, &weights), ACCRT_OK);
  assert_int_equal(truncate(path, 72), 0);
  assert_int_equal(accrt_weights_data(weights, 0, 0, &data, &size), ACCRT_ERROR_IO);
  assert_null(data);
  char byte;
  assert_int_equal(accrt_weights_read(weights, 0, 0, 8, &byte, 1), ACCRT_ERROR_IO);
  accrt_weights_release(weights);
  unlink(path);
}

/* ---- Memory ---- */

static void count_release(void* user) {
  ++*(int*)user;
}

static void from_memory(void** state) {
  (void)state;
  void* aligned = NULL;
  assert_int_equal(posix_memalign(&aligned, 4096, fixture->big.size + 8), 0);
  for (uint32_t shift = 0; shift <= 8; shift += 8) {
    unsigned char* place = (unsigned char*)aligned + shift;
    memcpy(place, fixture->big.data, fixture->big.size);
    int released = 0;
    accrt_bundle_t* bundle;
    assert_int_equal(accrt_bundle_open_memory(fixture->instance, place, fixture->big.size,
                                              count_release, &released, NULL, &bundle),
                     ACCRT_OK);
    assert_int_equal(bundle->data_in_place, shift == 0);
    for (uint32_t i = 0; i < BIG_CONSTANTS; ++i)
      check_big_constant(bundle, i);
    const void* data;
    uint64_t size;
    assert_int_equal(accrt_bundle_constant_data(bundle, 5, &data, &size), ACCRT_OK);
    const bool inside = (const unsigned char*)data >= place &&
                        (const unsigned char*)data < place + fixture->big.size;
    assert_int_equal(inside, shift == 0);
    assert_int_equal(released, 0);
    accrt_bundle_release(bundle);
    assert_int_equal(released, 1);
  }
  int released = 0;
  accrt_bundle_t* bundle;
  ((unsigned char*)aligned)[0] = 0;
  assert_int_equal(accrt_bundle_open_memory(fixture->instance, aligned, fixture->big.size,
                                            count_release, &released, NULL, &bundle),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_int_equal(released, 0); /* on failure the memory is still the caller's */
  assert_int_equal(accrt_bundle_open_memory(fixture->instance, NULL, 5, NULL, NULL, NULL, &bundle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  free(aligned);
}

/* ---- Callbacks ---- */

typedef struct test_reader {
  const bytes_t* file;
  int fail_at; /* the n-th read fails; 0: none */
  int reads;
  int closed;
  int inside; /* more than one call at a time is wrong */
  uint64_t bytes_read;
} test_reader_t;

static int32_t test_read(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  test_reader_t* reader = self;
  if (++reader->inside != 1)
    abort();
  const bool fails = ++reader->reads == reader->fail_at;
  if (!fails)
    memcpy(target, reader->file->data + offset, (size_t)size_bytes);
  reader->bytes_read += size_bytes;
  --reader->inside;
  return fails ? EREMOTEIO : 0;
}

static void test_close(void* self) {
  ++((test_reader_t*)self)->closed;
}

static accrt_reader_t reader_for(test_reader_t* self) {
  const accrt_reader_t reader = {self, self->file->size, test_read, test_close};
  return reader;
}

static void from_callbacks(void** state) {
  (void)state;
  test_reader_t self = {.file = &fixture->big};
  const accrt_reader_t reader = reader_for(&self);
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_callbacks(fixture->instance, &reader, NULL, &bundle),
                   ACCRT_OK);
  assert_true(self.bytes_read < ACCX_CHUNK_BYTES); /* weights are not read at open */
  const uint64_t at_open = self.bytes_read;
  check_big_constant(bundle, 0);
  assert_int_equal(self.bytes_read, at_open + ACCX_CHUNK_BYTES);
  for (uint32_t i = 0; i < BIG_CONSTANTS; ++i)
    check_big_constant(bundle, i);
  const int reads = self.reads;
  for (uint32_t i = 0; i < BIG_CONSTANTS; ++i)
    check_big_constant(bundle, i);
  assert_int_equal(self.reads, reads);
  accrt_bundle_release(bundle);
  assert_int_equal(self.closed, 1);
}

static void failing_reads(void** state) {
  (void)state;
  test_reader_t self = {.file = &fixture->golden};
  accrt_status_t status = ACCRT_ERROR_IO;
  int n = 0;
  while (status != ACCRT_OK) {
    assert_int_equal(status, ACCRT_ERROR_IO);
    self.fail_at = ++n;
    self.reads = 0;
    const accrt_reader_t reader = reader_for(&self);
    accrt_bundle_t* bundle;
    status = accrt_bundle_open_callbacks(fixture->instance, &reader, NULL, &bundle);
    assert_int_equal(self.closed, 0);
    if (status != ACCRT_OK) {
      int32_t code;
      last_message(NULL, &code);
      assert_int_equal(code, EREMOTEIO);
      continue;
    }
    /* A read that fails later can be tried again. */
    self.fail_at = self.reads + 1;
    const void* data;
    uint64_t size;
    const uint32_t weight = accrt_bundle_lookup_constant(bundle, "weight");
    assert_int_equal(accrt_bundle_constant_data(bundle, weight, &data, &size), ACCRT_ERROR_IO);
    assert_int_equal(accrt_bundle_constant_data(bundle, weight, &data, &size), ACCRT_OK);
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  }
  assert_true(n > 20);
  assert_int_equal(self.closed, 1);
  accrt_bundle_t* bundle;
  accrt_reader_t reader = reader_for(&self);
  reader.read = NULL;
  assert_int_equal(accrt_bundle_open_callbacks(fixture->instance, &reader, NULL, &bundle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_open_callbacks(fixture->instance, NULL, NULL, &bundle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  reader = reader_for(&self);
  reader.size_bytes = UINT64_MAX;
  assert_int_equal(accrt_bundle_open_callbacks(fixture->instance, &reader, NULL, &bundle),
                   ACCRT_ERROR_INVALID_FORMAT);
}

/* ---- Many threads ---- */

static void* read_everything(void* argument) {
  accrt_bundle_t* bundle = argument;
  for (uint32_t i = 0; i < BIG_CONSTANTS; ++i) {
    const void* data;
    uint64_t size;
    const uint32_t index = (i * 7) % BIG_CONSTANTS;
    if (accrt_bundle_constant_data(bundle, index, &data, &size) != ACCRT_OK ||
        size != big_size(index))
      return bundle;
    for (uint64_t at = 0; at < size; at += 997) {
      if (((const unsigned char*)data)[at] != big_byte(index, at))
        return bundle;
    }
  }
  if (accrt_bundle_verify(bundle) != ACCRT_OK)
    return bundle;
  accrt_bundle_release(bundle);
  return NULL;
}

static void many_threads(void** state) {
  (void)state;
  test_reader_t self = {.file = &fixture->big};
  for (int round = 0; round < 4; ++round) {
    accrt_bundle_t* bundle;
    const accrt_reader_t reader = reader_for(&self);
    if (round % 2 == 0) {
      assert_int_equal(accrt_bundle_open_callbacks(fixture->instance, &reader, NULL, &bundle),
                       ACCRT_OK);
    } else {
      assert_int_equal(accrt_bundle_open_memory(fixture->instance, fixture->big.data,
                                                fixture->big.size, NULL, NULL, NULL, &bundle),
                       ACCRT_OK);
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; ++i) {
      assert_int_equal(
          pthread_create(&threads[i], NULL, read_everything, accrt_bundle_retain(bundle)), 0);
    }
    accrt_bundle_release(bundle);
    for (int i = 0; i < 4; ++i) {
      void* result;
      assert_int_equal(pthread_join(threads[i], &result), 0);
      assert_null(result);
    }
  }
  assert_int_equal(self.closed, 2);
}

/* ---- Allocations that fail ---- */

static void failing_allocations(void** state) {
  (void)state;
  for (int for_ever = 0; for_ever < 2; ++for_ever) {
    const long live = atomic_load(&fixture->allocator.live_count);
    accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
    long n = 0;
    while (status != ACCRT_OK) {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      accrt_bundle_t* bundle = (accrt_bundle_t*)(uintptr_t)1;
      test_allocator_fail(&fixture->allocator, ++n, for_ever);
      status = accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &bundle);
      test_allocator_fail(&fixture->allocator, 0, 0);
      if (status == ACCRT_OK)
        use_bundle(bundle);
      accrt_bundle_release(bundle);
      if (status != ACCRT_OK)
        assert_null(bundle);
      assert_int_equal(atomic_load(&fixture->allocator.live_count), live);
    }
    assert_true(n > 15);
  }
}

/* ---- Fork ---- */

static void after_fork(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
    accrt_bundle_t* other;
    const void* data;
    uint64_t size;
    const int good =
        accrt_bundle_info(bundle, &info) == ACCRT_ERROR_FORKED &&
        accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &other) == ACCRT_ERROR_FORKED &&
        accrt_bundle_constant_data(bundle, 0, &data, &size) == ACCRT_ERROR_FORKED &&
        accrt_bundle_verify(bundle) == ACCRT_ERROR_FORKED;
    accrt_bundle_release(bundle); /* does nothing */
    _exit(good ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
}

/* ---- Reflection ---- */

static void reflection(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  assert_int_equal(accrt_bundle_info(bundle, &info), ACCRT_OK);
  assert_int_equal(info.size_bytes, fixture->golden.size);
  assert_int_equal(info.symbol_count, 5);
  assert_int_equal(info.constant_count, 5);
  assert_int_equal(info.function_count, 3);
  assert_int_equal(info.kernel_count, 3);
  assert_int_equal(info.image_count, 3);
  assert_int_equal(info.container_minor, 1);

  const char *key, *value;
  assert_int_equal(accrt_bundle_metadata(bundle, 1, &key, &value), ACCRT_OK);
  assert_string_equal(key, "producer");
  assert_string_equal(value, "tests/golden/make.py");

  accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
  assert_int_equal(accrt_bundle_symbol(bundle, 3, &symbol), ACCRT_OK);
  assert_string_equal(symbol.name, "rows");
  assert_int_equal(symbol.symbol_class, ACCRT_SYMBOL_BUCKET);
  assert_int_equal(symbol.bucket_count, 3);
  assert_int_equal(symbol.buckets[2], 64);
  assert_int_equal(symbol.divisor, 2);

  uint32_t index;
  assert_int_equal(accrt_bundle_find_constant(bundle, "weight", &index), ACCRT_OK);
  accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
  assert_int_equal(accrt_bundle_constant(bundle, index, &constant), ACCRT_OK);
  assert_int_equal(constant.rank, 2);
  assert_int_equal(constant.shape[1], 4);
  assert_int_equal(constant.size_bytes, 32);
  const void* data;
  uint64_t size;
  assert_int_equal(accrt_bundle_constant_data(bundle, index, &data, &size), ACCRT_OK);
  for (int i = 0; i < 8; ++i)
    assert_true(((const float*)data)[i] == (float)i);
  assert_int_equal(accrt_bundle_find_constant(bundle, "packed", &index), ACCRT_OK);
  assert_int_equal(accrt_bundle_constant_data(bundle, index, &data, &size),
                   ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_bundle_find_constant(bundle, "empty", &index), ACCRT_OK);
  assert_int_equal(accrt_bundle_constant_data(bundle, index, &data, &size), ACCRT_OK);
  assert_non_null(data);
  assert_int_equal(size, 0);

  assert_int_equal(accrt_bundle_find_function(bundle, "main", &index), ACCRT_OK);
  accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
  assert_int_equal(accrt_bundle_function(bundle, index, &function), ACCRT_OK);
  assert_string_equal(function.doc, "one of everything");
  assert_int_equal(function.input_count, 5);
  assert_int_equal(function.result_count, 4);
  accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
  assert_int_equal(accrt_bundle_argument(bundle, index, 0, &argument), ACCRT_OK);
  assert_int_equal(argument.rank, 2);
  assert_int_equal(argument.dims[0].kind, ACCRT_DIM_SYMBOL);
  assert_int_equal(argument.dims[0].value, 3);
  assert_int_equal(accrt_bundle_argument(bundle, index, 7, &argument), ACCRT_OK);
  assert_int_equal(argument.alias_kind, ACCRT_ALIAS_MUST);
  assert_int_equal(argument.alias_input, 2);
  char text[64];
  assert_int_equal(accrt_bundle_argument_type_text(bundle, index, 0, text, sizeof text, &size),
                   ACCRT_OK);
  assert_string_equal(text, "f32[rows, n]");
  assert_int_equal(size, sizeof "f32[rows, n]");
  assert_int_equal(accrt_bundle_argument_type_text(bundle, index, 0, text, 5, &size),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_string_equal(text, "f32[");
  assert_int_equal(size, sizeof "f32[rows, n]");
  assert_int_equal(accrt_bundle_argument_type_text(bundle, index, 4, text, sizeof text, NULL),
                   ACCRT_OK);
  assert_string_equal(text, "i64");
  assert_int_equal(accrt_bundle_find_function(bundle, "pack", &index), ACCRT_OK);
  assert_int_equal(accrt_bundle_argument_type_text(bundle, index, 1, text, sizeof text, NULL),
                   ACCRT_OK);
  assert_string_equal(text, "u8 opaque[32]");

  accrt_state_info_t cache = ACCRT_STATE_INFO_INIT;
  assert_int_equal(accrt_bundle_state(bundle, 0, &cache), ACCRT_OK);
  assert_int_equal(cache.dims[0].kind, ACCRT_DIM_SYMBOL);
  assert_int_equal(cache.dims[1].kind, ACCRT_DIM_CONSTANT);
  assert_int_equal(cache.dims[1].value, 4);
  accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
  assert_int_equal(accrt_bundle_variant(bundle, 2, 2, &variant), ACCRT_OK);
  assert_string_equal(variant.driver, "cuda");
  assert_int_equal(variant.image_kind, ACCX_IMAGE_PTX);
  accrt_bundle_release(bundle);
}

static void reflection_errors(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
  accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
  accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
  accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
  accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
  accrt_state_info_t cache = ACCRT_STATE_INFO_INIT;
  accrt_bundle_kernel_info_t kernel = ACCRT_BUNDLE_KERNEL_INFO_INIT;
  accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
  const char *key, *value, *message;
  const void* data;
  uint64_t size;
  uint32_t index;
  assert_int_equal(accrt_bundle_section(bundle, 22, &section), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_metadata(bundle, 2, &key, &value), ACCRT_ERROR_OUT_OF_RANGE);
  assert_null(key);
  assert_int_equal(accrt_bundle_symbol(bundle, 5, &symbol), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_constant(bundle, 5, &constant), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_constant_data(bundle, 5, &data, &size), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_function(bundle, 3, &function), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_argument(bundle, 3, 0, &argument), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_argument(bundle, 2, 9, &argument), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_argument_type_text(bundle, 2, 9, NULL, 0, &size),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_state(bundle, 1, &cache), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_kernel(bundle, 3, &kernel), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_variant(bundle, 3, 0, &variant), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_variant(bundle, 0, 4, &variant), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_find_function(bundle, "mian", &index), ACCRT_ERROR_NOT_FOUND);
  last_message(&message, NULL);
  assert_non_null(strstr(message, "did you mean 'main'?"));
  assert_int_equal(accrt_bundle_find_function(bundle, "pakc", &index), ACCRT_ERROR_NOT_FOUND);
  last_message(&message, NULL);
  assert_null(strstr(message, "'pack'")); /* a prepare function: programs do not call it */
  assert_int_equal(accrt_bundle_find_constant(bundle, "wieght", &index), ACCRT_ERROR_NOT_FOUND);
  last_message(&message, NULL);
  assert_non_null(strstr(message, "did you mean 'weight'?"));
  assert_int_equal(accrt_bundle_info(bundle, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_find_function(bundle, NULL, &index), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_function(NULL, 0, &function), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_verify(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  function.struct_size = 3;
  assert_int_equal(accrt_bundle_function(bundle, 0, &function), ACCRT_ERROR_INVALID_ARGUMENT);
  function.struct_size = 24; /* an older, shorter struct */
  assert_int_equal(accrt_bundle_function(bundle, 0, &function), ACCRT_OK);
  assert_string_equal(function.name, "helper");
  accrt_bundle_release(bundle);
  accrt_bundle_release(NULL);
  assert_null(accrt_bundle_retain(NULL));
  assert_int_equal(accrt_bundle_open_path(NULL, GOLDEN, NULL, &bundle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, NULL, NULL, &bundle),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_open_path(fixture->instance, GOLDEN, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
}

/* A type whose expression shares nodes 60 times over would be 2^60 long. */
static void type_text_is_bounded(void** state) {
  (void)state;
  parts_t parts = take_apart(&fixture->golden);
  accx_function_t* function = record_of(&parts, ACCX_SECTION_FUNCTIONS, sizeof *function, 2);
  part_t* nodes = find_part(&parts, ACCX_SECTION_EXPRESSIONS);
  const uint32_t first = function->expression_count;
  resize_part(nodes, nodes->size_bytes + 60 * sizeof(accx_expression_t));
  function->expression_count += 60;
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t before = i == 0 ? 0 : first + i - 1;
    const accx_expression_t node = {ACCX_EXPR_ADD, before, before, ACCX_NONE, 0};
    memcpy(record_of(&parts, ACCX_SECTION_EXPRESSIONS, sizeof node,
                     function->expression_first + first + i),
           &node, sizeof node);
  }
  accx_argument_t* sums =
      record_of(&parts, ACCX_SECTION_ARGUMENTS, sizeof *sums, function->argument_first + 6);
  sums->type.dims[0] = first + 59;
  bytes_t file = put_together(&parts);
  accrt_bundle_t* bundle;
  assert_int_equal(
      accrt_bundle_open_memory(fixture->instance, file.data, file.size, NULL, NULL, NULL, &bundle),
      ACCRT_OK);
  uint64_t size = 0;
  assert_int_equal(accrt_bundle_argument_type_text(bundle, 2, 6, NULL, 0, &size), ACCRT_OK);
  assert_in_range(size, 10, 10000);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
  free(file.data);
  free_parts(&parts);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(from_path),
      cmocka_unit_test(bad_paths),
      cmocka_unit_test(from_descriptor),
      cmocka_unit_test(file_that_changes),
      cmocka_unit_test(weights_that_are_gone),
      cmocka_unit_test(from_memory),
      cmocka_unit_test(from_callbacks),
      cmocka_unit_test(failing_reads),
      cmocka_unit_test(many_threads),
      cmocka_unit_test(failing_allocations),
      cmocka_unit_test(reflection),
      cmocka_unit_test(reflection_errors),
      cmocka_unit_test(type_text_is_bounded),
      cmocka_unit_test(after_fork),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
