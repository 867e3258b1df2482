/* runtime/program/external_test.c - constants outside the bundle: bound to sources that are given
 * and to files that the bundle names, on the host and on a device with memory of its own; swapped
 * while calls run; refused with one line that says what does not fit. */
#define _GNU_SOURCE
#include "runtime/program/own_memory_host.h"

#include <pthread.h>
#include <sys/stat.h>

#include "loader/weights.h"

/* A folder with the bundle, and an instance. */
typedef struct world {
  fixture_t f;
  char folder[64];
} world_t;

static void path_in(const world_t* w, const char* name, char path[256]) {
  (void)snprintf(path, 256, "%s/%s", w->folder, name);
}

static void copy_file(const char* from, const char* to) {
  char command[1024];
  (void)snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
  assert_int_equal(system(command), 0);
}

static atomic_uint prepared;
static void count_prepared(void* self, const accrt_trace_event_t* event) {
  (void)self;
  if (event->kind == ACCRT_TRACE_COMPLETE && event->name != NULL &&
      strcmp(event->name, "make_reversed") == 0)
    atomic_fetch_add(&prepared, 1);
}

static world_t* open_world(void) {
  world_t* w = calloc(1, sizeof *w);
  assert_non_null(w);
  const accrt_allocator_t allocator = {&w->f.watch, watch_allocate, watch_deallocate};
  (void)snprintf(w->folder, sizeof w->folder, "/tmp/accrt-external-XXXXXX");
  assert_non_null(mkdtemp(w->folder));
  char kept[256];
  path_in(w, "prepared", kept);
  const accrt_option_t list[] = {
      {"staging.threads", "3"}, {"staging.ring_bytes", "6291456"}, {"prepare.cache", kept}};
  const accrt_trace_sink_t sink = {NULL, count_prepared};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = list;
  options.option_count = 3;
  options.option_size_bytes = sizeof list[0];
  options.trace_sink = &sink;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  OK(accrt_instance_create(&options, &w->f.instance));
  open_own_memory_device(&w->f);
  char path[256];
  path_in(w, "external.accx", path);
  copy_file(ACCRT_TEST_DATA "/external.accx", path);
  OK(accrt_bundle_open_path(w->f.instance, path, NULL, &w->f.bundle));
  return w;
}

static int set_up(void** state) {
  own_memory = false;
  *state = have_bundles() ? open_world() : NULL;
  return 0;
}
static int set_up_own_memory(void** state) {
  own_memory = true;
  *state = have_bundles() ? open_world() : NULL;
  return 0;
}
static int tear_down(void** state) {
  world_t* w = *state;
  if (w == NULL)
    return 0;
  char command[128];
  (void)snprintf(command, sizeof command, "rm -rf '%s'", w->folder);
  assert_int_equal(system(command), 0);
  accrt_session_release(w->f.session);
  accrt_program_release(w->f.program);
  accrt_bundle_release(w->f.bundle);
  accrt_device_release(w->f.device);
  accrt_instance_release(w->f.instance);
  assert_int_equal(atomic_load(&w->f.watch.live), 0);
  free(w);
  return 0;
}
#define WORLD(w)                                                                                   \
  if (*state == NULL)                                                                              \
    skip();                                                                                        \
  world_t* w = *state

/* ---- Sources ---- */

#define LARGE_BYTES 2800000u
static unsigned char large_byte(uint64_t i) {
  return (unsigned char)(i * 7 + (i >> 10));
}

/* A safetensors file with the tensors of a header that is padded to `header_bytes`, so that data
 * begins where the caller wants. */
typedef struct image {
  unsigned char* data;
  size_t size_bytes;
  size_t at;
} image_t;

static image_t make_image(const char* header, size_t header_bytes, size_t data_bytes) {
  const uint64_t size = header_bytes;
  image_t image = {NULL, 8 + header_bytes + data_bytes, 8 + header_bytes};
  assert_true(strlen(header) <= header_bytes);
  assert_int_equal(posix_memalign((void**)&image.data, 4096, image.size_bytes), 0);
  memset(image.data, ' ', image.size_bytes);
  memcpy(image.data, &size, 8);
  memcpy(image.data + 8, header, strlen(header));
  return image;
}
static void add(image_t* image, const void* data, size_t size_bytes) {
  memcpy(image->data + image->at, data, size_bytes);
  image->at += size_bytes;
}

/* Everything that the bundle wants, but the file beside it. `first` is the first element of
 * "weight", and of "model.free". */
static image_t good_image(size_t header_bytes, float first, const char* data_name, bool with_free) {
  char header[1024];
  (void)snprintf(
      header, sizeof header,
      "{\"weight\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
      "\"%s\":{\"dtype\":\"I8\",\"shape\":[4,8],\"data_offsets\":[32,64]},"
      "\"packed%s\":{\"dtype\":\"F32\",\"shape\":[4,1],\"data_offsets\":[64,80]},"
      "\"large\":{\"dtype\":\"U8\",\"shape\":[2800000],\"data_offsets\":[80,2800080]}%s}",
      data_name, strcmp(data_name, "packed") == 0 ? "_scale" : ".scales",
      with_free
          ? ",\"model.free\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[2800080,2800112]}"
          : "");
  image_t image = make_image(header, header_bytes, 80 + LARGE_BYTES + (with_free ? 32 : 0));
  float values[8];
  for (int i = 0; i < 8; ++i)
    values[i] = i == 0 ? first : (float)i;
  add(&image, values, 32);
  for (unsigned char i = 0; i < 32; ++i)
    add(&image, &i, 1);
  add(&image, (const float[]){0.5f, 1.0f, 1.5f, 2.0f}, 16);
  for (uint64_t i = 0; i < LARGE_BYTES; ++i)
    image.data[image.at++] = large_byte(i);
  if (with_free)
    add(&image, values, 32);
  return image;
}

static image_t block_image(void) {
  static const unsigned char head[] =
      "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
      "\5\0\0\0\0\0\0\0block\2\0\0\0\x20\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
      "\10\0\0\0\0\0\0\0\0\0\0\0";
  const size_t head_bytes = sizeof head - 1;
  const size_t begin = (head_bytes + 31) / 32 * 32;
  image_t image = {calloc(1, begin + 68), begin + 68, begin};
  assert_non_null(image.data);
  memcpy(image.data, head, head_bytes);
  for (unsigned char i = 0; i < 68; ++i)
    add(&image, &i, 1);
  return image;
}

static void drop_image(void* user) {
  free(user);
}

static accrt_weights_t* open_image(const world_t* w, image_t image, const char* name) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.name = name;
  accrt_weights_t* weights;
  OK(accrt_weights_open_memory(w->f.instance, image.data, image.size_bytes, drop_image, image.data,
                               &options, &weights));
  return weights;
}

static void save_image(const world_t* w, image_t image, const char* name) {
  char path[256];
  path_in(w, name, path);
  FILE* file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(image.data, 1, image.size_bytes, file), image.size_bytes);
  assert_int_equal(fclose(file), 0);
  free(image.data);
}

static image_t side_image(float first) {
  image_t image = make_image(
      "{\"model.free\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", 120, 32);
  float values[8] = {first, 1, 2, 3, 4, 5, 6, 7};
  add(&image, values, 32);
  return image;
}

static accrt_status_t create(world_t* w, accrt_weights_t* const* list, uint32_t count,
                             uint32_t flags) {
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.weights = list;
  options.weight_count = count;
  options.flags = flags;
  accrt_program_release(w->f.program);
  w->f.program = NULL;
  return accrt_program_create(w->f.device, w->f.bundle, &options, &w->f.program);
}

/* ---- What a program sees ---- */

static void check_look(accrt_call_t* call, float last, float first, float stored) {
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[7] == last);
  assert_true(((const float*)result_data(call, 1))[0] == first);
  assert_true(((const float*)result_data(call, 2))[0] == stored);
  const unsigned char* bytes = result_data(call, 3);
  for (unsigned i = 0; i < 32; ++i)
    assert_int_equal(bytes[i], i);
  assert_memory_equal(bytes + 32, ((const float[]){0.5f, 1.0f, 1.5f, 2.0f}), 16);
  for (unsigned i = 0; i < 68; ++i)
    assert_int_equal(bytes[48 + i], i);
  assert_int_equal(bytes[116], large_byte(0));
  assert_int_equal(bytes[117], large_byte(LARGE_BYTES - 1));
}

/* By digest from memory, data in the file's own place or anywhere; by name from the file beside the
 * bundle. */
static void binds(void** state) {
  WORLD(w);
  save_image(w, side_image(42), "side.safetensors");
  static const size_t headers[] = {504, 500, 503};
  for (size_t i = 0; i < 3; ++i) {
    accrt_weights_t* list[] = {
        open_image(w, good_image(headers[i], 0, i == 1 ? "packed" : "packed", false), "one"),
        open_image(w, block_image(), "two")};
    OK(create(w, list, 2, 0));
    accrt_weights_release(list[0]);
    accrt_weights_release(list[1]);
    OK(accrt_session_create(w->f.program, NULL, &w->f.session));
    accrt_call_t* call = make_call(w->f.session, "look");
    check_look(call, 0, 42, 3);
    accrt_call_release(call);
    accrt_session_release(w->f.session);
    w->f.session = NULL;
  }
}

static const accrt_weight_component_t* component_of(const world_t* w, const char* name) {
  const uint32_t constant = accrt_bundle_lookup_constant(w->f.bundle, name);
  return &w->f.program->weights
              ->components[w->f.program->tables->constants[constant].component_first];
}

/* On the host the bytes stay where they are, if they lie well enough. */
static void in_place(void** state) {
  WORLD(w);
  save_image(w, side_image(42), "side.safetensors");
  for (size_t i = 0; i < 2; ++i) {
    image_t image = good_image(i == 0 ? 504 : 500, 0, "packed", false);
    accrt_weights_t* list[] = {open_image(w, image, "one"), open_image(w, block_image(), "two")};
    OK(create(w, list, 2, 0));
    const uint64_t address = component_of(w, "large")->address;
    assert_int_equal(address % ACCRT_ARGUMENT_ALIGN, 0);
    if (i == 0)
      assert_int_equal(address, (uintptr_t)image.data + 8 + 504 + 80);
    else
      assert_true(address < (uintptr_t)image.data ||
                  address >= (uintptr_t)image.data + image.size_bytes);
    assert_false(component_of(w, "unused")->ready);
    accrt_weights_release(list[0]);
    accrt_weights_release(list[1]);
  }
}

/* What prepare functions made of other bytes is not found; bound by name, the bytes are looked
 * at. A device with its own memory makes it each time. */
static void keeps_prepared(void** state) {
  WORLD(w);
  static const struct {
    float first;
    uint32_t flags;
    unsigned runs;
  } rounds[] = {{0, 0, 1},
                {0, 0, 0},
                {5, ACCRT_BIND_BY_NAME, 1},
                {6, ACCRT_BIND_BY_NAME, 1},
                {5, ACCRT_BIND_BY_NAME, 0},
                {0, 0, 0}};
  for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; ++i) {
    accrt_weights_t* list[] = {
        open_image(w, good_image(504, rounds[i].first, "packed", true), "one"),
        open_image(w, block_image(), "two")};
    atomic_store(&prepared, 0);
    OK(create(w, list, 2, rounds[i].flags));
    assert_int_equal(atomic_load(&prepared), own_memory ? 1 : rounds[i].runs);
    accrt_weights_release(list[0]);
    accrt_weights_release(list[1]);
    OK(accrt_session_create(w->f.program, NULL, &w->f.session));
    accrt_call_t* call = make_call(w->f.session, "look");
    check_look(call, rounds[i].first, rounds[i].first, 3);
    accrt_call_release(call);
    accrt_session_release(w->f.session);
    w->f.session = NULL;
  }
}

/* ---- Refusals ---- */

static void refuses(void** state) {
  WORLD(w);
  accrt_weights_t* block = open_image(w, block_image(), "two");
  accrt_weights_t* good = open_image(w, good_image(504, 0, "packed", true), "one");
  accrt_weights_t* list[] = {good, block};
  FAILS(create(w, NULL, 0, 0), NOT_FOUND,
        "constant 'block' (q8_0[2, 32]) is not stored in the bundle");
  FAILS(create(w, list, 1, 0), NOT_FOUND,
        "constant 'block' (q8_0[2, 32]): no tensor 'block' in one");
  OK(create(w, list, 2, 0));
  accrt_weights_t* wrong = open_image(
      w,
      make_image("{\"block\":{\"dtype\":\"F32\",\"shape\":[0,32],\"data_offsets\":[0,0]}}", 96, 0),
      "wrong");
  list[0] = wrong;
  list[1] = good;
  FAILS(create(w, list, 2, 0), TYPE_MISMATCH, "is F32[0, 32] of 0");
  accrt_weights_release(wrong);
  wrong = open_image(
      w,
      make_image("{\"weight\":{\"dtype\":\"F32\",\"shape\":[0,8],\"data_offsets\":[0,0]}}", 96, 0),
      "wrong");
  list[0] = wrong;
  accrt_weights_t* three[] = {wrong, good, block};
  FAILS(create(w, three, 3, 0), SHAPE_MISMATCH,
        "constant 'weight' is f32[8], but 'weight' in wrong is f32[0, 8]");
  accrt_weights_release(wrong);
  wrong = open_image(
      w,
      make_image("{\"weight\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,16]}}", 96, 16),
      "wrong");
  three[0] = wrong;
  FAILS(create(w, three, 3, 0), TYPE_MISMATCH,
        "is bf16[8]; nothing is converted here, `accx pack --dtype` does that: f32");
  accrt_weights_release(wrong);
  wrong = open_image(
      w,
      make_image("{\"packed\":{\"dtype\":\"I8\",\"shape\":[32],\"data_offsets\":[0,32]}}", 96, 32),
      "wrong");
  three[0] = wrong;
  FAILS(create(w, three, 3, 0), NOT_FOUND, "wrong has 'packed' and no 'packed.scales'");
  accrt_weights_release(wrong);
  /* Other bytes: refused by digest, unless names are enough. */
  wrong = open_image(w, good_image(504, 5, "packed", true), "wrong");
  three[0] = wrong;
  FAILS(create(w, three, 3, 0), DATA_CORRUPT,
        "constant 'weight': 'weight' in wrong has the digest");
  OK(create(w, three, 3, ACCRT_BIND_BY_NAME));
  OK(accrt_session_create(w->f.program, NULL, &w->f.session));
  accrt_call_t* call = make_call(w->f.session, "look");
  check_look(call, 5, 5, 3);
  accrt_call_release(call);
  accrt_weights_release(wrong);
  image_t image = good_image(504, 0, "packed", true);
  image.data[8 + 504 + 80 + LARGE_BYTES - 1] ^= 1;
  wrong = open_image(w, image, "wrong");
  three[0] = wrong;
  FAILS(create(w, three, 3, 0), DATA_CORRUPT, "constant 'large'");
  accrt_weights_release(wrong);
  FAILS(create(w, three, 3, 6), INVALID_ARGUMENT, "flags");
  three[0] = NULL;
  FAILS(create(w, three, 3, 0), INVALID_ARGUMENT, "weights 0 is NULL");
  accrt_weights_release(good);
  accrt_weights_release(block);
}

/* The file beside the bundle: nothing but a plain file of that name in that folder. */
static void beside(void** state) {
  WORLD(w);
  accrt_weights_t* list[] = {open_image(w, good_image(504, 0, "packed", false), "one"),
                             open_image(w, block_image(), "two")};
  char path[256], other[256];
  path_in(w, "side.safetensors", path);
  path_in(w, "other.safetensors", other);
  FAILS(create(w, list, 2, 0), NOT_FOUND, "constant 'free': side.safetensors: no such file");
  save_image(w, side_image(1), "other.safetensors");
  assert_int_equal(symlink("other.safetensors", path), 0);
  FAILS(create(w, list, 2, 0), PERMISSION_DENIED, "symbolic link");
  assert_int_equal(unlink(path), 0);
  assert_int_equal(link(other, path), 0);
  FAILS(create(w, list, 2, 0), PERMISSION_DENIED, "2 hard links");
  assert_int_equal(unlink(other), 0);
  OK(create(w, list, 2, 0));
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  FAILS(create(w, list, 2, 0), IO, "not a regular file");
  assert_int_equal(rmdir(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  FAILS(create(w, list, 2, 0), IO, "not a regular file");
  assert_int_equal(unlink(path), 0);
  save_image(w, block_image(), "side.safetensors");
  FAILS(create(w, list, 2, 0), INVALID_FORMAT, "of kind 3, not 2");
  save_image(
      w,
      make_image("{\"modl.free\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 96, 1),
      "side.safetensors");
  FAILS(create(w, list, 2, 0), NOT_FOUND, "did you mean 'modl.free'");
  save_image(
      w,
      make_image("{\"model.free\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,2]}}", 96, 2),
      "side.safetensors");
  FAILS(create(w, list, 2, 0), INVALID_FORMAT, "safetensors rule 9");
  /* What was not opened by a path has no folder. */
  accrt_bundle_t* kept = w->f.bundle;
  FILE* file = fopen(ACCRT_TEST_DATA "/external.accx", "rb");
  assert_non_null(file);
  OK(accrt_bundle_open_fd(w->f.instance, fileno(file), NULL, &w->f.bundle));
  (void)fclose(file);
  FAILS(create(w, list, 2, 0), NOT_FOUND, "was not opened by path");
  accrt_bundle_release(w->f.bundle);
  w->f.bundle = kept;
  accrt_weights_release(list[0]);
  accrt_weights_release(list[1]);
}

/* Failures of memory, each in turn: an error, and nothing left behind. */
static void without_memory(void** state) {
  WORLD(w);
  save_image(w, side_image(42), "side.safetensors");
  accrt_weights_t* list[] = {open_image(w, good_image(504, 0, "packed", false), "one"),
                             open_image(w, block_image(), "two")};
  for (long long n = 1; n < 1000; ++n) {
    const long long live = atomic_load(&w->f.watch.live);
    atomic_store(&w->f.watch.fail_at, atomic_load(&w->f.watch.count) + n);
    const accrt_status_t status = create(w, list, 2, 0);
    atomic_store(&w->f.watch.fail_at, 0);
    if (status == ACCRT_OK)
      break;
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_int_equal(atomic_load(&w->f.watch.live), live);
  }
  assert_non_null(w->f.program);
  accrt_weights_release(list[0]);
  accrt_weights_release(list[1]);
}

/* ---- Swapping ---- */

static void loads(void** state) {
  WORLD(w);
  save_image(w, side_image(42), "side.safetensors");
  accrt_weights_t* list[] = {open_image(w, good_image(504, 0, "packed", false), "one"),
                             open_image(w, block_image(), "two")};
  accrt_weights_t* other[] = {open_image(w, good_image(500, 9, "packed", true), "three"), list[1]};
  OK(create(w, list, 2, 0));
  OK(accrt_session_create(w->f.program, NULL, &w->f.session));
  accrt_call_t* call = make_call(w->f.session, "look");
  check_look(call, 0, 42, 3);
  /* One by name: nobody compares digests of what is bound by name. */
  static const char* const one[] = {"free"};
  OK(accrt_program_load_weights(w->f.program, other, 1, one, 1, 0));
  check_look(call, 0, 9, 3);
  /* All: this one's digest is not that of the bundle. */
  FAILS(accrt_program_load_weights(w->f.program, other, 2, NULL, 0, 0), DATA_CORRUPT, "'weight'");
  check_look(call, 0, 9, 3);
  OK(accrt_program_load_weights(w->f.program, other, 2, NULL, 0, ACCRT_BIND_BY_NAME));
  check_look(call, 9, 9, 3);
  /* What the bundle stores can be replaced too, and named in a source under its own name. */
  accrt_weights_t* stored = open_image(
      w,
      make_image("{\"stored\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", 72, 32),
      "stored");
  static const char* const name[] = {"stored"};
  OK(accrt_program_load_weights(w->f.program, &stored, 1, name, 1, 0));
  OK(run(call));
  assert_true(((const float*)result_data(call, 2))[0] != 3);
  static const char* const missing[] = {"fre"};
  FAILS(accrt_program_load_weights(w->f.program, other, 1, missing, 1, 0), NOT_FOUND,
        "did you mean 'free'");
  static const char* const made[] = {"reversed"};
  FAILS(accrt_program_load_weights(w->f.program, other, 1, made, 1, 0), NOT_FOUND,
        "prepare function");
  FAILS(accrt_program_load_weights(w->f.program, &stored, 1, one, 1, 0), NOT_FOUND,
        "no tensor 'model.free' in stored");
  FAILS(accrt_program_load_weights(w->f.program, other, 1, one, 1, 8), INVALID_ARGUMENT, "flags");
  FAILS(accrt_program_load_weights(NULL, other, 1, one, 1, 0), INVALID_ARGUMENT, "program");
  /* Back again. */
  OK(accrt_program_load_weights(w->f.program, list, 2, (const char* const[]){"weight"}, 1, 0));
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[7] == 0);
  accrt_call_release(call);
  accrt_weights_release(stored);
  accrt_weights_release(other[0]);
  accrt_weights_release(list[0]);
  accrt_weights_release(list[1]);
}

typedef struct racer {
  world_t* w;
  accrt_weights_t** first;
  accrt_weights_t** second;
  atomic_bool stop;
} racer_t;

static void* swap_over_and_over(void* user) {
  racer_t* racer = user;
  for (int i = 0; i < 60; ++i)
    OK(accrt_program_load_weights(racer->w->f.program, i % 2 == 0 ? racer->second : racer->first, 2,
                                  NULL, 0, ACCRT_BIND_BY_NAME));
  atomic_store(&racer->stop, true);
  return NULL;
}

/* A call sees one set of weights, whole: what is made of "weight" agrees with "free". */
static void* call_over_and_over(void* user) {
  racer_t* racer = user;
  accrt_session_t* session;
  OK(accrt_session_create(racer->w->f.program, NULL, &session));
  accrt_call_t* call = make_call(session, "look");
  while (!atomic_load(&racer->stop)) {
    OK(run(call));
    const float made = ((const float*)result_data(call, 0))[7];
    const float plain = ((const float*)result_data(call, 1))[0];
    if (made != plain || (made != 1 && made != 2))
      fail_msg("a call saw %g and %g", (double)made, (double)plain);
  }
  accrt_call_release(call);
  accrt_session_release(session);
  return NULL;
}

static void swaps_in_flight(void** state) {
  WORLD(w);
  accrt_weights_t* block = open_image(w, block_image(), "block");
  accrt_weights_t* first[] = {open_image(w, good_image(504, 1, "packed", true), "first"), block};
  accrt_weights_t* second[] = {open_image(w, good_image(500, 2, "packed", true), "second"), block};
  OK(create(w, first, 2, ACCRT_BIND_BY_NAME));
  racer_t racer = {w, first, second, false};
  pthread_t threads[5];
  for (int i = 0; i < 5; ++i)
    assert_int_equal(
        pthread_create(&threads[i], NULL, i == 0 ? swap_over_and_over : call_over_and_over, &racer),
        0);
  for (int i = 0; i < 5; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  accrt_weights_release(first[0]);
  accrt_weights_release(second[0]);
  accrt_weights_release(block);
}

int main(void) {
#define ON_HOST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define ON_DEVICE(name)                                                                            \
  { #name "_own_memory", name, set_up_own_memory, tear_down, NULL }
  const struct CMUnitTest tests[] = {
      ON_HOST(binds),          ON_DEVICE(binds),          ON_HOST(in_place),
      ON_HOST(refuses),        ON_DEVICE(refuses),        ON_HOST(beside),
      ON_HOST(without_memory), ON_DEVICE(without_memory), ON_HOST(loads),
      ON_DEVICE(loads),        ON_HOST(swaps_in_flight),  ON_DEVICE(swaps_in_flight),
      ON_HOST(keeps_prepared), ON_DEVICE(keeps_prepared),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
