/* runtime/program/upload_mixed_test.c - weights of the bundle, of packs and of safetensors files
 * together, on a device with memory of its own: one buffer, every byte in its place, and what is
 * wrong in a pack refused in the words of its constant. The program wants a pack's tensors in
 * another order than the pack has them, and one of them twice. */
#include "runtime/program/own_memory_host.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "accrt/weights.h"
#include "accrt/write.h"
#include "format/digest.h"

#define MIB (UINT64_C(1) << 20)

/* `wNN` is tensor `tMM` of the pack, of the bundle itself, or of a safetensors file. */
enum { TENSORS = 30, WEIGHTS = TENSORS + 1 };
enum { IN_PACK, STORED, OUTSIDE, KINDS };

static uint64_t bytes_of(unsigned tensor) {
  static const uint64_t sizes[] = {100, 3 * MIB + 5, 700000, 0, 1, MIB, 2 * MIB - 256, 4096};
  return sizes[tensor % 8] + tensor * (tensor % 8 != 3);
}

static unsigned char byte_of(unsigned tensor, uint64_t k) {
  return (unsigned char)(k * 5 + (k >> 11) + tensor * 17);
}

static unsigned tensor_in(unsigned weight) {
  return weight == TENSORS ? 1 : (weight * 7 + 3) % TENSORS;
}
static unsigned kind_of(unsigned weight) {
  return weight == TENSORS ? IN_PACK : tensor_in(weight) / 2 % KINDS;
}

/* Of the tensor before `self`; one of another pack, behind all, has its first byte wrong. */
static int32_t read_bytes(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const unsigned tensor = (unsigned)(uintptr_t)self - 1;
  for (uint64_t k = 0; k < size_bytes; ++k)
    ((unsigned char*)target)[k] = byte_of(tensor % TENSORS, offset + k);
  if (tensor >= TENSORS && offset == 0)
    *(unsigned char*)target ^= 1;
  return 0;
}

static unsigned char* make_bytes(unsigned tensor) {
  const uint64_t size_bytes = bytes_of(tensor);
  unsigned char* bytes = malloc((size_t)size_bytes + 1);
  assert_non_null(bytes);
  for (uint64_t k = 0; k < size_bytes; ++k)
    bytes[k] = byte_of(tensor, k);
  return bytes;
}

/* ---- Files ---- */

static char folder[64];

static const char* path_of(const char* name) {
  static char path[128];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static accrt_writer_id_t add_constant(accrt_bundle_writer_t* writer, const char* name,
                                      unsigned tensor, uint32_t source, bool checked) {
  const uint64_t size_bytes = bytes_of(tensor % TENSORS);
  char outside[8];
  (void)snprintf(outside, sizeof outside, "t%02u", tensor % TENSORS);
  accrt_writer_component_t component;
  memset(&component, 0, sizeof component);
  component.bytes.size_bytes = size_bytes;
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  constant.name = name != NULL ? name : outside;
  constant.source = source;
  constant.dtype = ACCRT_DTYPE_U8;
  constant.rank = 1;
  constant.shape[0] = (int64_t)size_bytes;
  constant.components = &component;
  constant.component_count = 1;
  if (source == ACCRT_CONSTANT_INLINE) {
    component.bytes.kind = ACCRT_WRITER_BYTES_READER;
    component.bytes.read = read_bytes;
    component.bytes.self = (void*)(uintptr_t)(tensor + 1);
  } else {
    constant.tensor = outside;
    constant.binding_flags = checked ? 0 : ACCRT_BINDING_BY_NAME;
  }
  if (source == ACCRT_CONSTANT_EXTERNAL && checked) {
    unsigned char* bytes = make_bytes(tensor);
    const accx_digest_t digest = accx_digest_of(bytes, (size_t)size_bytes);
    memcpy(constant.digest, digest.bytes, sizeof constant.digest);
    free(bytes);
  }
  accrt_writer_id_t id;
  OK(accrt_bundle_writer_add_constant(writer, &constant, &id));
  return id;
}

static void write_to(accrt_bundle_writer_t* writer, const char* name) {
  OK(accrt_bundle_writer_write_path(writer, path_of(name)));
  accrt_bundle_writer_release(writer);
}

/* `wrong`: the tensor that has another byte; or none. */
static void save_pack(const char* file, unsigned wrong) {
  accrt_bundle_writer_t* writer;
  OK(accrt_bundle_writer_create(NULL, &writer));
  for (unsigned t = 0; t < TENSORS; ++t)
    (void)add_constant(writer, NULL, t == wrong ? TENSORS + t : t, ACCRT_CONSTANT_INLINE, false);
  write_to(writer, file);
}

/* Only what no pack has. */
static void save_outside(void) {
  char header[TENSORS * 96 + 64] = "{";
  size_t used = 1;
  uint64_t end = 0;
  for (unsigned w = 0; w < WEIGHTS; ++w) {
    if (kind_of(w) != OUTSIDE)
      continue;
    const uint64_t size_bytes = bytes_of(tensor_in(w));
    used += (size_t)snprintf(header + used, sizeof header - used,
                             "%s\"t%02u\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                             "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                             used > 1 ? "," : "", tensor_in(w), size_bytes, end, end + size_bytes);
    end += size_bytes;
  }
  header[used++] = '}';
  const uint64_t header_bytes = used;
  FILE* file = fopen(path_of("outside.safetensors"), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(&header_bytes, 8, 1, file), 1);
  assert_int_equal(fwrite(header, used, 1, file), 1);
  for (unsigned w = 0; w < WEIGHTS; ++w) {
    if (kind_of(w) != OUTSIDE)
      continue;
    unsigned char* bytes = make_bytes(tensor_in(w));
    assert_int_equal(fwrite(bytes, 1, (size_t)bytes_of(tensor_in(w)), file),
                     bytes_of(tensor_in(w)));
    free(bytes);
  }
  assert_int_equal(fclose(file), 0);
}

static void save_bundle(bool checked) {
  accrt_bundle_writer_t* writer;
  accrt_writer_id_t function, body, to, one, last = 0;
  OK(accrt_bundle_writer_create(NULL, &writer));
  accrt_writer_function_t record = ACCRT_WRITER_FUNCTION_INIT;
  record.name = "use";
  OK(accrt_bundle_writer_add_function(writer, &record, &function, &body));
  accrt_writer_argument_t result = ACCRT_WRITER_ARGUMENT_INIT;
  result.name = "to";
  result.kind = ACCRT_ARGUMENT_RESULT;
  result.type.dtype = ACCRT_DTYPE_U8;
  result.type.rank = 1;
  OK(accrt_bundle_writer_integer(writer, WEIGHTS, &result.type.dims[0]));
  OK(accrt_bundle_writer_integer(writer, 1, &one));
  OK(accrt_bundle_writer_add_argument(writer, function, &result, &to));
  for (unsigned w = 0; w < WEIGHTS; ++w) {
    char name[8];
    (void)snprintf(name, sizeof name, "w%02u", w);
    const accrt_writer_id_t id = add_constant(
        writer, name, tensor_in(w),
        kind_of(w) == STORED ? ACCRT_CONSTANT_INLINE : ACCRT_CONSTANT_EXTERNAL, checked);
    if (bytes_of(tensor_in(w)) == 0)
      continue;
    accrt_writer_command_t copy = ACCRT_WRITER_COMMAND_INIT;
    copy.opcode = ACCRT_OPCODE_COPY;
    OK(accrt_bundle_writer_slot(writer, function, id, 0, &copy.source.slot));
    copy.destination.slot = to;
    copy.after = &last;
    copy.after_count = last != 0;
    OK(accrt_bundle_writer_integer(writer, w, &copy.destination.offset));
    copy.extent[0] = one;
    OK(accrt_bundle_writer_add_command(writer, body, &copy, &last));
  }
  write_to(writer, checked ? "checked.accx" : "named.accx");
}

static int save_all(void** state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/accrt-mixed-XXXXXX");
  assert_non_null(mkdtemp(folder));
  save_pack("pack.accx", TENSORS);
  save_pack("other.accx", 25);
  save_outside();
  save_bundle(true);
  save_bundle(false);
  return 0;
}

static int remove_all(void** state) {
  (void)state;
  char command[128];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* ---- Programs ---- */

static fixture_t* open_device(bool has_own_memory, const char* bundle) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  const accrt_option_t list[] = {
      {"staging.threads", "3"}, {"staging.ring_bytes", "12582912"}, {"host.threads", "3"}};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = list;
  options.option_count = 3;
  options.option_size_bytes = sizeof list[0];
  OK(accrt_instance_create(&options, &f->instance));
  own_memory = has_own_memory;
  open_own_memory_device(f);
  OK(accrt_bundle_open_path(f->instance, path_of(bundle), NULL, &f->bundle));
  return f;
}

/* The allocation fails that is so many behind the opening of sources. */
static accrt_status_t create_from(fixture_t* f, const char* pack, long long fail_after) {
  accrt_weights_t* list[2];
  OK(accrt_weights_open_path(f->instance, path_of("outside.safetensors"), NULL, &list[0]));
  OK(accrt_weights_open_path(f->instance, path_of(pack), NULL, &list[1]));
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.weights = list;
  options.weight_count = 2;
  if (fail_after != 0)
    atomic_store(&f->watch.fail_at, atomic_load(&f->watch.count) + fail_after);
  const accrt_status_t status = accrt_program_create(f->device, f->bundle, &options, &f->program);
  atomic_store(&f->watch.fail_at, 0);
  accrt_weights_release(list[0]);
  accrt_weights_release(list[1]);
  return status;
}
static accrt_status_t create(fixture_t* f) {
  return create_from(f, "pack.accx", 0);
}

static void check_weights(const fixture_t* f) {
  for (unsigned w = 0; w < WEIGHTS; ++w) {
    char name[8];
    (void)snprintf(name, sizeof name, "w%02u", w);
    const uint32_t constant = accrt_bundle_lookup_constant(f->bundle, name);
    const accrt_weight_component_t* component =
        &f->program->weights->components[f->program->tables->constants[constant].component_first];
    if (bytes_of(tensor_in(w)) == 0)
      continue;
    assert_true(component->ready);
    assert_int_equal(component->size_bytes, bytes_of(tensor_in(w)));
    assert_int_equal(component->address % ACCRT_ARGUMENT_ALIGN, 0);
    unsigned char* bytes = make_bytes(tensor_in(w));
    assert_memory_equal((const void*)(uintptr_t)component->address, bytes,
                        (size_t)component->size_bytes);
    free(bytes);
  }
}

static void one_buffer(void** state) {
  (void)state;
  for (unsigned turn = 0; turn < 4; ++turn) {
    fixture_t* f = open_device(turn < 2, turn % 2 == 0 ? "checked.accx" : "named.accx");
    OK(create(f));
    check_weights(f);
    accrt_pool_t* pool;
    OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &pool));
    accrt_pool_entry_t entry;
    uint32_t count;
    OK(accrt_pool_snapshot(pool, &entry, 1, sizeof entry, &count));
    assert_int_equal(count, 1);
    assert_memory_equal(entry.label, "weights of ", 11);
    close_fixture(f);
  }
}

/* ---- Damage ---- */

static void flip(const char* name, uint64_t at) {
  FILE* file = fopen(path_of(name), "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
  const int byte = fgetc(file) ^ 4;
  assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
  assert_int_equal(fputc(byte, file), byte);
  assert_int_equal(fclose(file), 0);
}

static unsigned weight_for(unsigned tensor) {
  unsigned weight = 0;
  while (tensor_in(weight) != tensor)
    ++weight;
  return weight;
}

/* Where a pack's tensor lies in its file. */
static uint64_t place_in_pack(const fixture_t* f, unsigned tensor) {
  accrt_weights_t* pack;
  accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
  OK(accrt_weights_open_path(f->instance, path_of("pack.accx"), NULL, &pack));
  OK(accrt_weights_component(pack, tensor, 0, &place));
  accrt_weights_release(pack);
  return place.offset_bytes;
}

/* A chunk of the pack, and with it each constant in it. */
static void damage_is_named(void** state) {
  (void)state;
  for (unsigned turn = 0; turn < 4; ++turn) {
    fixture_t* f = open_device(turn < 2, turn % 2 == 0 ? "checked.accx" : "named.accx");
    const uint64_t at = place_in_pack(f, 18) + MIB / 4;
    assert_int_equal(kind_of(weight_for(18)), IN_PACK);
    char text[32];
    flip("pack.accx", at);
    FAILS(create(f), DATA_CORRUPT, "(rule 111)");
    (void)snprintf(text, sizeof text, "constant 'w%02u'", weight_for(18));
    if (turn < 2)
      ALSO(text);
    ALSO("pack.accx: data[");
    flip("pack.accx", at);
    OK(create(f));
    close_fixture(f);
  }
}

/* A pack that is whole, but has other bytes than the program was made for. */
static void another_pack(void** state) {
  (void)state;
  for (unsigned turn = 0; turn < 2; ++turn) {
    fixture_t* f = open_device(turn == 0, "checked.accx");
    char text[64];
    assert_int_equal(kind_of(weight_for(25)), IN_PACK);
    (void)snprintf(text, sizeof text, "constant 'w%02u': 't25'", weight_for(25));
    FAILS(create_from(f, "other.accx", 0), DATA_CORRUPT, text);
    ALSO("has the digest");
    close_fixture(f);
  }
}

/* Handlers of signals run on the program's threads, not on those that copy. */
static pthread_t caller;
static atomic_uint open_to_signals;

static int32_t read_slowly(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  sigset_t blocked;
  (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  if (!pthread_equal(pthread_self(), caller) && sigismember(&blocked, SIGUSR1) != 1)
    atomic_fetch_add(&open_to_signals, 1);
  (void)usleep(3000);
  return pread(*(const int*)self, target, size_bytes, (off_t)offset) == (ssize_t)size_bytes ? 0 : 5;
}

static void copiers_take_no_signals(void** state) {
  (void)state;
  fixture_t* f = open_device(false, "checked.accx");
  int fd = open(path_of("outside.safetensors"), O_RDONLY);
  const accrt_reader_t reader = {
      .self = &fd, .size_bytes = (uint64_t)lseek(fd, 0, SEEK_END), .read = read_slowly};
  accrt_weights_t* list[2];
  caller = pthread_self();
  OK(accrt_weights_open_callbacks(f->instance, &reader, NULL, &list[0]));
  OK(accrt_weights_open_path(f->instance, path_of("pack.accx"), NULL, &list[1]));
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.weights = list;
  options.weight_count = 2;
  OK(accrt_program_create(f->device, f->bundle, &options, &f->program));
  assert_int_equal(atomic_load(&open_to_signals), 0);
  check_weights(f);
  accrt_weights_release(list[0]);
  accrt_weights_release(list[1]);
  close_fixture(f);
  (void)close(fd);
}

/* Every allocation fails once. */
static void out_of_memory(void** state) {
  (void)state;
  for (int n = 1; n < 250; n += n < 100 ? 1 : 17) {
    fixture_t* f = open_device(n % 5 != 0, "checked.accx");
    const accrt_status_t status = create_from(f, "pack.accx", n);
    if (status != ACCRT_OK)
      assert_true(status == ACCRT_ERROR_OUT_OF_MEMORY ||
                  status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
    close_fixture(f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_buffer),    cmocka_unit_test(damage_is_named),
      cmocka_unit_test(another_pack),  cmocka_unit_test(copiers_take_no_signals),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, save_all, remove_all);
}
