/* runtime/program/upload_in_place_test.c - weights that the host uses where they lie, checked by as
 * many threads as the device has: what is looked at, what is not, and that a fault gives the same
 * words whoever finds it; and weights of sources that lie where they cannot be used. */
#include "runtime/program/testing.h"

#include <fcntl.h>
#include <pthread.h>

#include "accrt/write.h"
#include "accrt/trust.h"
#include "accrt/weights.h"
#include "loader/data.h"
#include "loader/internal.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

static const void* query(uint32_t max_abi) {
  return accrt_driver_host_query(max_abi);
}

#define MIB (UINT64_C(1) << 20)

/* In the order of the file, which is that of names. `large` and `source` are worth threads of their
 * own. */
static const struct {
  const char* name;
  uint64_t size_bytes;
} weights[] = {{"a", 3 * MIB + 5},
               {"large", 36 * MIB},
               {"left_out", 4 * MIB},
               {"small", 2 * MIB},
               {"source", 34 * MIB}};
enum { A, LARGE, LEFT_OUT, SMALL, SOURCE, WEIGHTS };

static char path[64], sealed_path[80];

/* ---- The bundle ---- */

/* A function reads all but what is left out and what the prepare function reads. */

static int32_t pattern(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const uint64_t seed = (uint64_t)(uintptr_t)self;
  unsigned char* bytes = target;
  for (uint64_t i = 0; i < size_bytes; ++i)
    bytes[i] = (unsigned char)((offset + i) / 4096 + (offset + i) + seed);
  return 0;
}

static accrt_writer_id_t add_constant(accrt_bundle_writer_t* writer, const char* name,
                                      uint64_t size_bytes, unsigned index, uint32_t source) {
  accrt_writer_component_t component;
  memset(&component, 0, sizeof component);
  component.bytes.kind = ACCRT_WRITER_BYTES_READER;
  component.bytes.read = pattern;
  component.bytes.self = (void*)(uintptr_t)(index + 1);
  component.bytes.size_bytes = size_bytes;
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  constant.name = name;
  constant.source = source;
  constant.dtype = ACCRT_DTYPE_U8;
  constant.rank = 1;
  constant.shape[0] = (int64_t)size_bytes;
  constant.components = &component;
  constant.component_count = 1;
  accrt_writer_id_t id;
  OK(accrt_bundle_writer_add_constant(writer, &constant, &id));
  return id;
}

static accrt_writer_id_t add_function(accrt_bundle_writer_t* writer, const char* name,
                                      uint32_t flags, accrt_writer_id_t* out_body) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_id_t id;
  function.name = name;
  function.flags = flags;
  OK(accrt_bundle_writer_add_function(writer, &function, &id, out_body));
  return id;
}

static accrt_writer_id_t add_argument(accrt_bundle_writer_t* writer, accrt_writer_id_t function,
                                      uint32_t kind, accrt_writer_id_t constant, int64_t bytes) {
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  accrt_writer_id_t slot;
  argument.name = kind == ACCRT_ARGUMENT_RESULT ? "to" : "from";
  argument.kind = kind;
  argument.constant = constant;
  if (constant == 0) {
    argument.type.dtype = ACCRT_DTYPE_U8;
    argument.type.rank = 1;
    OK(accrt_bundle_writer_integer(writer, bytes, &argument.type.dims[0]));
  }
  OK(accrt_bundle_writer_add_argument(writer, function, &argument, &slot));
  return slot;
}

static void add_copy(accrt_bundle_writer_t* writer, accrt_writer_id_t body, accrt_writer_id_t from,
                     accrt_writer_id_t to, int64_t place, accrt_writer_id_t* last) {
  accrt_writer_command_t copy = ACCRT_WRITER_COMMAND_INIT;
  copy.opcode = ACCRT_OPCODE_COPY;
  copy.source.slot = from;
  copy.destination.slot = to;
  copy.after = last;
  copy.after_count = *last != 0;
  OK(accrt_bundle_writer_integer(writer, place, &copy.destination.offset));
  OK(accrt_bundle_writer_integer(writer, 1, &copy.extent[0]));
  OK(accrt_bundle_writer_add_command(writer, body, &copy, last));
}

static void make_bundle(void) {
  accrt_bundle_writer_t* writer;
  accrt_writer_id_t ids[WEIGHTS], body, last = 0, slot;
  OK(accrt_bundle_writer_create(NULL, &writer));
  for (unsigned i = 0; i < WEIGHTS; ++i)
    ids[i] = add_constant(writer, weights[i].name, weights[i].size_bytes, i, ACCRT_CONSTANT_INLINE);
  const accrt_writer_id_t made = add_constant(writer, "z", 8, 0, ACCRT_CONSTANT_PREPARED);
  accrt_writer_id_t function = add_function(writer, "make", ACCRT_FUNCTION_PREPARE, &body);
  const accrt_writer_id_t from =
      add_argument(writer, function, ACCRT_ARGUMENT_READ, ids[SOURCE], 0);
  add_copy(writer, body, from, add_argument(writer, function, ACCRT_ARGUMENT_RESULT, made, 0), 0,
           &last);
  last = 0;
  function = add_function(writer, "use", 0, &body);
  const accrt_writer_id_t to = add_argument(writer, function, ACCRT_ARGUMENT_RESULT, 0, WEIGHTS);
  for (unsigned i = 0; i < WEIGHTS; ++i) {
    if (i == LEFT_OUT)
      continue;
    OK(accrt_bundle_writer_slot(writer, function, i == SOURCE ? made : ids[i], 0, &slot));
    add_copy(writer, body, slot, to, i, &last);
  }
  snprintf(path, sizeof path, "/tmp/accrt-in-place-%d.accx", (int)getpid());
  snprintf(sealed_path, sizeof sealed_path, "%s.sealed", path);
  OK(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
}

/* ---- Devices ---- */

/* Where the bundle comes from. Memory that is not aligned, and what is encrypted, is not used in
 * place. */
enum { FROM_FILE, FROM_ODD_MEMORY, ENCRYPTED, SOURCES };
static const accrt_key_t secret = {{1, 2, 3}};

static int32_t give_key(void* user, const uint8_t* id, uint8_t* out_key) {
  (void)user;
  (void)id;
  memcpy(out_key, secret.bytes, sizeof secret.bytes);
  return 0;
}

static void open_memory(fixture_t* f) {
  const int fd = open(path, O_RDONLY);
  const size_t size_bytes = (size_t)lseek(fd, 0, SEEK_END);
  unsigned char* memory = malloc(size_bytes + 1);
  assert_non_null(memory);
  assert_int_equal(pread(fd, memory + 1, size_bytes, 0), size_bytes);
  (void)close(fd);
  OK(accrt_bundle_open_memory(f->instance, memory + 1, size_bytes, free, memory, NULL, &f->bundle));
}

static void open_sealed(fixture_t* f) {
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.secret_key = give_key;
  OK(accrt_bundle_open_path(f->instance, sealed_path, &options, &f->bundle));
}

static fixture_t* open_host(const char* threads) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  const accrt_option_t option = {"host.threads", threads};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = sizeof option;
  OK(accrt_instance_create(&options, &f->instance));
  OK(accrt_instance_register_driver(f->instance, query));
  OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
  return f;
}

static fixture_t* open_from(int source, const char* threads) {
  fixture_t* f = open_host(threads);
  if (source == FROM_FILE)
    OK(accrt_bundle_open_path(f->instance, path, NULL, &f->bundle));
  else if (source == FROM_ODD_MEMORY)
    open_memory(f);
  else
    open_sealed(f);
  return f;
}

static int sources;

/* Without libcrypto nothing can be encrypted. */
static int make_bundles(void** state) {
  (void)state;
  make_bundle();
  fixture_t* f = open_from(FROM_FILE, "1");
  const accrt_status_t status = accrt_bundle_encrypt(f->bundle, &secret, sealed_path);
  if (status != ACCRT_ERROR_UNSUPPORTED)
    OK(status);
  close_fixture(f);
  sources = status == ACCRT_OK ? SOURCES : ENCRYPTED;
  return 0;
}

static int remove_bundles(void** state) {
  (void)state;
  (void)unlink(sealed_path);
  return unlink(path);
}

static uint64_t place_of(const fixture_t* f, unsigned weight) {
  const uint32_t constant = accrt_bundle_lookup_constant(f->bundle, weights[weight].name);
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(f->bundle);
  return tables->components[tables->constants[constant].component_first].offset_bytes;
}

/* Chunks that nobody has looked at (the loader's CHUNK_UNKNOWN). */
static uint32_t unknown_chunks(const fixture_t* f, uint64_t begin, uint64_t end) {
  uint32_t count = 0;
  for (uint64_t chunk = begin / ACCX_CHUNK_BYTES; chunk < end / ACCX_CHUNK_BYTES; ++chunk)
    count += atomic_load(&f->bundle->chunks[chunk]) == 0;
  return count;
}

/* ---- Tests ---- */

static const char* const thread_counts[] = {"1", "4", "0", "2", "7"};
enum { THREAD_COUNTS = sizeof thread_counts / sizeof *thread_counts };

/* What is left out is not looked at, all else is, and its values come out. */
static void look_from(int source, const char* threads) {
  fixture_t* f = open_from(source, threads);
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  const uint64_t left_out = place_of(f, LEFT_OUT) + ACCX_CHUNK_BYTES;
  const uint64_t after = place_of(f, SMALL);
  assert_int_equal(unknown_chunks(f, 0, left_out), 0);
  assert_true(unknown_chunks(f, left_out, after) >= 2);
  assert_int_equal(unknown_chunks(f, after, accrt_bundle_tables(f->bundle)->data_size_bytes), 0);
  OK(accrt_session_create(f->program, NULL, &f->session));
  accrt_call_t* call = make_call(f->session, "use");
  OK(run(call));
  const unsigned char* y = result_data(call, 0);
  for (unsigned i = 0; i < WEIGHTS; ++i) {
    if (i != LEFT_OUT)
      assert_int_equal(y[i], i + 1);
  }
  accrt_call_release(call);
  close_fixture(f);
}

static void looks_at_what_is_used(void** state) {
  (void)state;
  for (unsigned t = 0; t < THREAD_COUNTS; ++t) {
    for (int source = 0; source < sources; ++source)
      look_from(source, thread_counts[t]);
  }
}

static void flip(const fixture_t* f, const char* name, uint64_t at) {
  unsigned char byte;
  const int fd = open(name, O_RDWR);
  const off_t place = (off_t)(accrt_bundle_data_offset(f->bundle) + at);
  assert_int_equal(pread(fd, &byte, 1, place), 1);
  byte ^= 16;
  assert_int_equal(pwrite(fd, &byte, 1, place), 1);
  (void)close(fd);
}

/* Where bytes are wrong, by weight and offset in it, and which of them is named: prepare functions
 * come first. */
static const struct {
  struct {
    unsigned weight;
    uint64_t offset;
  } wrong[4];
  unsigned count;
  unsigned named;
} faults[] = {
    {{{A, 0}}, 1, 0},
    {{{LARGE, 30 * MIB}}, 1, 0},
    {{{SMALL, MIB}}, 1, 0},
    {{{LARGE, 35 * MIB}, {LARGE, 20 * MIB}, {SMALL, MIB}, {LARGE, 21 * MIB}}, 4, 1},
    {{{LARGE, 5 * MIB}, {A, 2 * MIB}}, 2, 1},
    {{{LARGE, 5 * MIB}, {SOURCE, 33 * MIB}, {SOURCE, 17 * MIB}}, 3, 2},
};

/* What the failure says goes to `out_message`. */
static void meet_fault(int source, const char* threads, unsigned index, accrt_error_t* out_error) {
  const char* name = source == ENCRYPTED ? sealed_path : path;
  fixture_t* f = open_from(source, threads);
  for (unsigned k = 0; k < faults[index].count; ++k)
    flip(f, name, place_of(f, faults[index].wrong[k].weight) + faults[index].wrong[k].offset);
  if (source == FROM_ODD_MEMORY) {
    accrt_bundle_release(f->bundle);
    open_memory(f);
  }
  const unsigned weight = faults[index].wrong[faults[index].named].weight;
  const uint64_t at = place_of(f, weight) + faults[index].wrong[faults[index].named].offset;
  char text[64];
  snprintf(text, sizeof text, "data[%" PRIu64 "]", at / ACCX_CHUNK_BYTES);
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), DATA_CORRUPT, text);
  snprintf(text, sizeof text, "constant '%s'", weights[weight].name);
  ALSO(text);
  ALSO("(rule 111)");
  *out_error = *accrt_error_current();
  for (unsigned k = 0; k < faults[index].count; ++k)
    flip(f, name, place_of(f, faults[index].wrong[k].weight) + faults[index].wrong[k].offset);
  close_fixture(f);
}

static void names_the_first_fault(void** state) {
  (void)state;
  for (unsigned i = 0; i < sizeof faults / sizeof *faults; ++i) {
    for (int source = 0; source < sources; ++source) {
      accrt_error_t first, other;
      meet_fault(source, thread_counts[0], i, &first);
      for (unsigned t = 1; t < THREAD_COUNTS; t += source == FROM_FILE ? 1 : THREAD_COUNTS) {
        meet_fault(source, thread_counts[t], i, &other);
        assert_string_equal(other.message, first.message);
      }
    }
  }
}

/* Only where there are threads and enough is wanted; then all of it and nothing else. */
static void check_ahead_from(int source) {
  fixture_t* f = open_from(source, "1");
  const uint32_t count = accrt_bundle_tables(f->bundle)->chunk_count;
  const uint64_t end = (uint64_t)count * ACCX_CHUNK_BYTES;
  uint8_t* wanted = calloc(count, 1);
  assert_non_null(wanted);
  memset(wanted, 1, 16);
  accrt_bundle_check_ahead(f->bundle, wanted, 4);
  memset(wanted, 1, count);
  accrt_bundle_check_ahead(f->bundle, wanted, 1);
  accrt_bundle_check_ahead(f->bundle, wanted, 0);
  assert_int_equal(unknown_chunks(f, 0, end), count);
  uint32_t left = count;
  for (uint32_t i = 0; i < count; ++i) {
    wanted[i] = i % 2 == 1;
    left -= wanted[i];
  }
  accrt_bundle_check_ahead(f->bundle, wanted, 3);
  assert_int_equal(unknown_chunks(f, 0, end), left);
  for (uint32_t i = 0; i < count; ++i)
    assert_int_equal(unknown_chunks(f, i * ACCX_CHUNK_BYTES, (i + 1) * ACCX_CHUNK_BYTES),
                     i % 2 == 0);
  free(wanted);
  close_fixture(f);
}

static void checks_ahead(void** state) {
  (void)state;
  for (int source = 0; source < sources; ++source)
    check_ahead_from(source);
}

/* Threads that need the same chunks while others look at them ahead. */
static void* need_all(void* user) {
  accrt_bundle_t* bundle = user;
  const void* data;
  uint64_t size_bytes;
  for (uint32_t i = 0; i < WEIGHTS; ++i) {
    if (accrt_bundle_constant_data(bundle, i, &data, &size_bytes) != ACCRT_OK ||
        *(const unsigned char*)data != i + 1)
      return bundle;
  }
  return NULL;
}

static void together(void** state) {
  (void)state;
  for (int source = 0; source < sources; ++source) {
    fixture_t* f = open_from(source, "1");
    const uint32_t count = accrt_bundle_tables(f->bundle)->chunk_count;
    pthread_t threads[3];
    uint8_t* wanted = malloc(count);
    assert_non_null(wanted);
    memset(wanted, 1, count);
    for (unsigned i = 0; i < 3; ++i)
      assert_int_equal(pthread_create(&threads[i], NULL, need_all, f->bundle), 0);
    accrt_bundle_check_ahead(f->bundle, wanted, 4);
    for (unsigned i = 0; i < 3; ++i) {
      void* failed;
      assert_int_equal(pthread_join(threads[i], &failed), 0);
      assert_null(failed);
    }
    assert_int_equal(unknown_chunks(f, 0, (uint64_t)count * ACCX_CHUNK_BYTES), 0);
    free(wanted);
    close_fixture(f);
  }
}

/* ---- Weights of a safetensors file ---- */

/* Checked in place, or at odd addresses copied, by several threads. */

enum { OUTSIDE = 24 };

static uint64_t outside_bytes(unsigned i) {
  return i % 4 == 0 ? 6 * MIB + 16 * i : i == 7 ? 0 : 700000 + 336 * i;
}

static void save_outside_bundle(void) {
  accrt_bundle_writer_t* writer;
  accrt_writer_id_t body, slot, last = 0, ids[OUTSIDE];
  OK(accrt_bundle_writer_create(NULL, &writer));
  for (unsigned i = 0; i < OUTSIDE; ++i) {
    char name[8];
    snprintf(name, sizeof name, "w%02u", i);
    unsigned char* bytes = malloc((size_t)outside_bytes(i) + 1);
    assert_non_null(bytes);
    (void)pattern((void*)(uintptr_t)(i + 1), 0, bytes, outside_bytes(i));
    const accx_digest_t digest = accx_digest_of(bytes, (size_t)outside_bytes(i));
    free(bytes);
    accrt_writer_component_t component;
    memset(&component, 0, sizeof component);
    component.bytes.size_bytes = outside_bytes(i);
    accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
    constant.name = name;
    constant.source = ACCRT_CONSTANT_EXTERNAL;
    constant.dtype = ACCRT_DTYPE_U8;
    constant.rank = 1;
    constant.shape[0] = (int64_t)outside_bytes(i);
    constant.components = &component;
    constant.component_count = 1;
    memcpy(constant.digest, digest.bytes, sizeof constant.digest);
    OK(accrt_bundle_writer_add_constant(writer, &constant, &ids[i]));
  }
  const accrt_writer_id_t function = add_function(writer, "use", 0, &body);
  const accrt_writer_id_t to = add_argument(writer, function, ACCRT_ARGUMENT_RESULT, 0, OUTSIDE);
  for (unsigned i = 0; i < OUTSIDE; ++i) {
    if (outside_bytes(i) == 0)
      continue;
    OK(accrt_bundle_writer_slot(writer, function, ids[i], 0, &slot));
    add_copy(writer, body, slot, to, i, &last);
  }
  OK(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
}

/* The file as memory; `at`: where each weight begins. */
static unsigned char* make_outside(unsigned skew, uint64_t at[OUTSIDE], size_t* out_bytes) {
  char header[OUTSIDE * 96 + 64] = "{";
  size_t used = 1;
  uint64_t end = 0;
  for (unsigned i = 0; i < OUTSIDE; ++i) {
    const uint64_t size_bytes = outside_bytes(i);
    used += (size_t)snprintf(header + used, sizeof header - used,
                             "%s\"w%02u\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                             "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                             i > 0 ? "," : "", i, size_bytes, end, end + size_bytes);
    at[i] = end;
    end += size_bytes;
  }
  header[used++] = '}';
  while ((8 + used) % 16 != skew)
    header[used++] = ' ';
  const uint64_t header_bytes = used;
  unsigned char* image = NULL;
  *out_bytes = 8 + used + (size_t)end;
  assert_int_equal(posix_memalign((void**)&image, 64, *out_bytes), 0);
  memcpy(image, &header_bytes, 8);
  memcpy(image + 8, header, used);
  for (unsigned i = 0; i < OUTSIDE; ++i) {
    at[i] += 8 + used;
    (void)pattern((void*)(uintptr_t)(i + 1), 0, image + at[i], outside_bytes(i));
  }
  return image;
}

static accrt_status_t create_from(fixture_t* f, const unsigned char* image, size_t size_bytes) {
  accrt_weights_t* source;
  OK(accrt_weights_open_memory(f->instance, image, size_bytes, NULL, NULL, NULL, &source));
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.weights = &source;
  options.weight_count = 1;
  const accrt_status_t status = accrt_program_create(f->device, f->bundle, &options, &f->program);
  accrt_weights_release(source);
  return status;
}

/* Two are wrong: the first in the order of placing is named, which puts small ones first where they
 * are copied. */
static void with_skew(unsigned skew, const char* named) {
  uint64_t at[OUTSIDE];
  size_t size_bytes;
  unsigned char* image = make_outside(skew, at, &size_bytes);
  char kept[sizeof path], first[sizeof(((accrt_error_t*)0)->message)] = "";
  memcpy(kept, path, sizeof path);
  snprintf(path, sizeof path, "/tmp/accrt-outside-%d.accx", (int)getpid());
  save_outside_bundle();
  for (unsigned t = 0; t < THREAD_COUNTS; ++t) {
    fixture_t* f = open_from(FROM_FILE, thread_counts[t]);
    image[at[8] + MIB] ^= 1;
    image[at[13] + 5] ^= 1;
    FAILS(create_from(f, image, size_bytes), DATA_CORRUPT, named);
    if (t == 0)
      memcpy(first, accrt_error_current()->message, sizeof first);
    assert_string_equal(accrt_error_current()->message, first);
    image[at[8] + MIB] ^= 1;
    image[at[13] + 5] ^= 1;
    OK(create_from(f, image, size_bytes));
    OK(accrt_session_create(f->program, NULL, &f->session));
    accrt_call_t* call = make_call(f->session, "use");
    OK(run(call));
    const unsigned char* y = result_data(call, 0);
    for (unsigned i = 0; i < OUTSIDE; ++i) {
      const uint32_t component =
          f->program->tables
              ->constants[accrt_bundle_lookup_constant(
                  f->bundle, (char[]){'w', (char)('0' + i / 10), (char)('0' + i % 10), 0})]
              .component_first;
      const accrt_weight_component_t* placed = &f->program->weights->components[component];
      if (outside_bytes(i) == 0)
        continue;
      assert_int_equal(y[i], i + 1);
      assert_int_equal(placed->address % ACCRT_ARGUMENT_ALIGN, 0);
      assert_int_equal(placed->address == (uint64_t)(uintptr_t)(image + at[i]), skew == 0);
      assert_memory_equal((const void*)(uintptr_t)placed->address, image + at[i], outside_bytes(i));
    }
    accrt_call_release(call);
    close_fixture(f);
  }
  (void)unlink(path);
  memcpy(path, kept, sizeof path);
  free(image);
}

static void copies_what_lies_badly(void** state) {
  (void)state;
  with_skew(3, "constant 'w13'");
}
static void uses_what_lies_well(void** state) {
  (void)state;
  with_skew(0, "constant 'w08'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(looks_at_what_is_used),  cmocka_unit_test(names_the_first_fault),
      cmocka_unit_test(checks_ahead),           cmocka_unit_test(together),
      cmocka_unit_test(copies_what_lies_badly), cmocka_unit_test(uses_what_lies_well),
  };
  return cmocka_run_group_tests(tests, make_bundles, remove_bundles);
}
