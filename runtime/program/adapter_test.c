/* runtime/program/adapter_test.c - adapters on the host and on a device with its own memory: bound,
 * exchanged while runs are in flight, released before the runs end; refused with one line; every
 * failed allocation. tests/python/test_adapters.py compares numbers. */
#define _GNU_SOURCE
#include "runtime/program/own_memory_host.h"

#include <math.h>

#include "accrt/weights.h"

static fixture_t* open_world(void) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  OK(accrt_instance_create(&options, &f->instance));
  open_own_memory_device(f);
  OK(accrt_bundle_open_path(f->instance, ACCRT_TEST_DATA "/adapter.accx", NULL, &f->bundle));
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  OK(accrt_session_create(f->program, NULL, &f->session));
  return f;
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

/* A pair of rank 2: A begins with `first`, B with 3. */
static accrt_weights_t* make_pair_with(const fixture_t* f, float first, const char* metadata) {
  static unsigned char images[16][512];
  static unsigned next;
  unsigned char* image = images[next++ % 16];
  char header[384];
  const uint64_t header_bytes = (uint64_t)snprintf(
      header, sizeof header,
      "{%s\"m.lora_A\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]},"
      "\"m.lora_B\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[32,64]}}",
      metadata);
  const float values[16] = {first, 1, 2, 3, 4, 5, 6, 7, 3};
  memcpy(image, &header_bytes, 8);
  memcpy(image + 8, header, header_bytes);
  memcpy(image + 8 + header_bytes, values, sizeof values);
  accrt_weights_t* weights;
  OK(accrt_weights_open_memory(f->instance, image, 8 + header_bytes + sizeof values, NULL, NULL,
                               NULL, &weights));
  return weights;
}

static accrt_weights_t* make_pair(const fixture_t* f, float first) {
  return make_pair_with(f, first, "");
}

static accrt_adapter_t* make_adapter(const fixture_t* f, float first, double alpha) {
  accrt_weights_t* weights = make_pair(f, first);
  accrt_adapter_options_t options = ACCRT_ADAPTER_OPTIONS_INIT;
  options.alpha = alpha;
  accrt_adapter_t* adapter;
  OK(accrt_adapter_load(f->program, weights, &options, &adapter));
  accrt_weights_release(weights);
  return adapter;
}

static void check_look(accrt_call_t* call, float a, float b) {
  const float* got = result_data(call, 0);
  assert_true(got[0] == a);
  assert_true(got[4] == b);
}

/* No adapter, one, another, none. Each adapter is released as soon as the session has it. */
static void sets(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "look");
  OK(run(call));
  check_look(call, 0, 0);
  for (int i = 1; i < 5; ++i) {
    accrt_adapter_t* adapter = make_adapter(f, (float)i, 2 * i);
    OK(accrt_session_set_adapter(f->session, adapter));
    accrt_adapter_release(adapter);
    OK(run(call));
    check_look(call, (float)i, 3.0f * (float)i);
    OK(run(call));
    check_look(call, (float)i, 3.0f * (float)i);
  }
  accrt_session_t* clone;
  OK(accrt_session_clone(f->session, NULL, &clone));
  OK(accrt_session_set_adapter(f->session, NULL));
  OK(run(call));
  check_look(call, 0, 0);
  accrt_call_release(call);
  call = make_call(clone, "look");
  OK(run(call));
  check_look(call, 4, 12);
  accrt_call_release(call);
  accrt_session_release(clone);
}

/* Runs are submitted with one adapter after another. Only the runs retain them. */
static void in_flight(void** state) {
  FIXTURE(f);
  accrt_call_t* calls[8];
  for (int i = 0; i < 8; ++i) {
    accrt_adapter_t* adapter = make_adapter(f, (float)i + 1, 2);
    OK(accrt_session_set_adapter(f->session, adapter));
    accrt_adapter_release(adapter);
    calls[i] = make_call(f->session, "look");
    OK(accrt_call_submit(calls[i], NULL, 0, NULL, 0));
  }
  OK(accrt_session_set_adapter(f->session, NULL));
  OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  for (int i = 0; i < 8; ++i) {
    check_look(calls[i], (float)i + 1, 3);
    accrt_call_release(calls[i]);
  }
}

static void refuses(void** state) {
  FIXTURE(f);
  accrt_weights_t* weights = make_pair(f, 1);
  accrt_adapter_options_t options = ACCRT_ADAPTER_OPTIONS_INIT;
  accrt_adapter_t* adapter = NULL;
  FAILS(accrt_adapter_load(f->program, weights, NULL, NULL), INVALID_ARGUMENT, "out_adapter");
  FAILS(accrt_adapter_load(NULL, weights, NULL, &adapter), INVALID_ARGUMENT, "program is NULL");
  FAILS(accrt_adapter_load(f->program, NULL, NULL, &adapter), INVALID_ARGUMENT, "is NULL");
  FAILS(accrt_adapter_load(f->program, weights, NULL, &adapter), INVALID_ARGUMENT, "alpha is 0");
  /* Creating an adapter reads its metadata, and errors still name the caller's function. */
  accrt_weights_t* zero = make_pair_with(f, 1, "\"__metadata__\":{\"lora_alpha\":\"0\"},");
  FAILS(accrt_adapter_load(f->program, zero, NULL, &adapter), INVALID_ARGUMENT, "alpha is 0");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_last_error(&error));
  assert_string_equal(error.operation, "accrt_adapter_load");
  accrt_weights_release(zero);
  /* Factors that are not finite. */
  accrt_weights_t* endless = make_pair_with(f, 1, "\"__metadata__\":{\"lora_alpha\":\"1e999\"},");
  FAILS(accrt_adapter_load(f->program, endless, NULL, &adapter), INVALID_ARGUMENT, "alpha is inf");
  accrt_weights_release(endless);
  const double wrong[] = {HUGE_VAL, -HUGE_VAL, nan(""), 1e300};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    accrt_adapter_options_t one = ACCRT_ADAPTER_OPTIONS_INIT;
    one.alpha = wrong[i];
    FAILS(accrt_adapter_load(f->program, weights, &one, &adapter), INVALID_ARGUMENT,
          "alpha / rank, and alpha is ");
    one.scale = wrong[i];
    FAILS(accrt_adapter_load(f->program, weights, &one, &adapter), INVALID_ARGUMENT,
          "alpha / rank, and scale is ");
  }
  options.alpha = 1;
  options.flags = 2;
  FAILS(accrt_adapter_load(f->program, weights, &options, &adapter), INVALID_ARGUMENT, "flags");
  assert_null(adapter);
  FAILS(accrt_session_set_adapter(NULL, NULL), INVALID_ARGUMENT, "session is NULL");
  accrt_program_t* other;
  OK(accrt_program_create(f->device, f->bundle, NULL, &other));
  options.flags = 0;
  OK(accrt_adapter_load(other, weights, &options, &adapter));
  accrt_program_release(other);
  FAILS(accrt_session_set_adapter(f->session, adapter), INVALID_ARGUMENT, "another program");
  assert_ptr_equal(accrt_adapter_retain(adapter), adapter);
  accrt_adapter_release(adapter);
  accrt_adapter_release(adapter);
  accrt_adapter_release(NULL);
  assert_null(accrt_adapter_retain(NULL));
  accrt_weights_release(weights);
}

static void without_memory(void** state) {
  FIXTURE(f);
  accrt_weights_t* weights = make_pair(f, 1);
  accrt_adapter_options_t options = ACCRT_ADAPTER_OPTIONS_INIT;
  options.alpha = 2;
  /* Memory that a pool reserves for its first buffer is not a leak. */
  accrt_adapter_release(make_adapter(f, 1, 2));
  accrt_adapter_t* adapter = NULL;
  for (long long n = 1; adapter == NULL && n < 200; ++n) {
    const long long live = atomic_load(&f->watch.live);
    atomic_store(&f->watch.fail_at, atomic_load(&f->watch.count) + n);
    const accrt_status_t status = accrt_adapter_load(f->program, weights, &options, &adapter);
    atomic_store(&f->watch.fail_at, 0);
    if (status == ACCRT_OK)
      break;
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_int_equal(atomic_load(&f->watch.live), live);
  }
  assert_non_null(adapter);
  accrt_adapter_release(adapter);
  accrt_weights_release(weights);
}

int main(void) {
#define ON_BOTH(name)                                                                              \
  {#name, name, set_up, teardown_fixture, NULL}, {                                                 \
#name "_own_memory", name, set_up_own_memory, teardown_fixture, NULL                           \
  }
  const struct CMUnitTest tests[] = {ON_BOTH(sets), ON_BOTH(in_flight), ON_BOTH(refuses),
                                     ON_BOTH(without_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
