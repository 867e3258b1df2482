/* runtime/program/model_test.c - a compiled model (bytelm.accx, if it was built): prefill and
 * decode give the same numbers, clones continue where the original was, and a decoding step
 * allocates nothing. */
#include "runtime/program/testing.h"

#define LENGTH 40
#define VOCABULARY 256

typedef struct model {
  watch_t watch;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
} model_t;

static const char* model_path(void) {
  const char* folder = getenv("ACCRT_TEST_BUNDLES");
  static char path[512];
  (void)snprintf(path, sizeof path, "%s/bytelm.accx", folder != NULL ? folder : ACCRT_TEST_BUNDLES);
  return path;
}

static int open_model(void** state) {
  *state = NULL;
  if (access(model_path(), R_OK) != 0)
    return 0;
  model_t* m = calloc(1, sizeof *m);
  assert_non_null(m);
  m->instance = open_instance(&m->watch, "2", ACCRT_HOST_CODE_ALL);
  OK(accrt_instance_device_by_name(m->instance, "host", &m->device));
  OK(accrt_bundle_open_path(m->instance, model_path(), NULL, &m->bundle));
  OK(accrt_program_create(m->device, m->bundle, NULL, &m->program));
  *state = m;
  return 0;
}

static int close_model(void** state) {
  model_t* m = *state;
  if (m == NULL)
    return 0;
  accrt_program_release(m->program);
  accrt_bundle_release(m->bundle);
  accrt_device_release(m->device);
  accrt_instance_release(m->instance);
  for (int i = 0; i < 5000 && atomic_load(&m->watch.live) != 0; ++i)
    usleep(1000);
  assert_int_equal(atomic_load(&m->watch.live), 0);
  free(m);
  return 0;
}
#define MODEL(m)                                                                                   \
  if (*state == NULL)                                                                              \
    skip();                                                                                        \
  model_t* m = *state

static _Alignas(16) uint8_t text[] = "In the beginning God created the heaven and the earth.";

static void prefill(accrt_session_t* session, int64_t length, float* logits) {
  accrt_call_t* call = make_call(session, "prefill");
  OK(set_vector(call, "tokens", text, ACCRT_DTYPE_U8, length));
  OK(set_number(call, "position", 0));
  OK(set_matrix(call, "logits", logits, ACCRT_DTYPE_F32, length, VOCABULARY));
  OK(run(call));
  accrt_call_release(call);
}

static void expect_near(const float* a, const float* b) {
  for (int i = 0; i < VOCABULARY; ++i) {
    const float difference = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
    /* The same sums in another order: rounding errors of logits around 10 in f32, through four
     * layers. */
    assert_true(difference < 1e-4f);
  }
}

/* Decodes from `first` on with one call, and compares with rows of the prefill. */
static void decode(accrt_call_t* call, int64_t first, int64_t end, const float* expected) {
  _Alignas(16) float logits[VOCABULARY];
  for (int64_t i = first; i < end; ++i) {
    OK(set_vector(call, "tokens", text + i, ACCRT_DTYPE_U8, 1));
    OK(set_number(call, "position", i));
    OK(set_matrix(call, "logits", logits, ACCRT_DTYPE_F32, 1, VOCABULARY));
    OK(run(call));
    expect_near(logits, expected + i * VOCABULARY);
  }
}

static void decodes_what_it_prefills(void** state) {
  MODEL(m);
  static _Alignas(16) float logits[LENGTH * VOCABULARY];
  accrt_session_t* session;
  OK(accrt_session_create(m->program, NULL, &session));
  prefill(session, LENGTH, logits);
  OK(accrt_session_reset(session));
  accrt_call_t* call = make_call(session, "decode");
  decode(call, 0, 4, logits);
  const long long before = atomic_load(&m->watch.count);
  const uint32_t plans = session->plan_count;
  decode(call, 4, LENGTH, logits);
  assert_int_equal(atomic_load(&m->watch.count),
                   before); /* the position changes no plan and no memory */
  assert_int_equal(session->plan_count, plans);
  accrt_call_release(call);
  accrt_session_release(session);
}

static void clones_go_on(void** state) {
  MODEL(m);
  static _Alignas(16) float logits[LENGTH * VOCABULARY];
  static _Alignas(16) float scratch[LENGTH * VOCABULARY];
  accrt_session_t* session;
  accrt_session_t* clone;
  OK(accrt_session_create(m->program, NULL, &session));
  prefill(session, LENGTH, logits);
  OK(accrt_session_reset(session));
  prefill(session, 10, scratch);
  OK(accrt_session_clone(session, NULL, &clone));
  accrt_call_t* call = make_call(clone, "decode");
  accrt_call_t* original = make_call(session, "decode");
  decode(original, 10, 20, logits); /* alternately: neither sees the other's cache */
  decode(call, 10, 30, logits);
  decode(original, 20, LENGTH, logits);
  decode(call, 30, LENGTH, logits);
  accrt_call_release(original);
  accrt_call_release(call);
  accrt_session_release(clone);
  accrt_session_release(session);
}

static void says_what_it_needs(void** state) {
  MODEL(m);
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  const accrt_symbol_value_t symbols[] = {{"capacity", 128}};
  OK(accrt_program_estimate(m->program, "decode", symbols, 1, sizeof *symbols, &estimate));
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = symbols;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof *symbols;
  accrt_session_t* session;
  OK(accrt_session_create(m->program, &options, &session));
  uint64_t state_bytes = 0;
  for (uint32_t i = 0; i < m->program->tables->state_count; ++i)
    state_bytes += session->states[i].size_bytes;
  assert_int_equal(estimate.state_bytes, state_bytes);
  OK(accrt_session_warmup(session, "decode", NULL, 0, sizeof *symbols));
  assert_int_equal(session->arena_bytes, estimate.transient_bytes);
  accrt_call_t* call = make_call(session, "decode");
  OK(set_vector(call, "tokens", text, ACCRT_DTYPE_U8, 1));
  OK(set_number(call, "position", 127));
  OK(run(call));
  OK(set_number(call, "position", 128)); /* past the capacity of this session */
  FAILS(run(call), OUT_OF_RANGE, "function 'decode'");
  accrt_call_release(call);
  accrt_session_release(session);
}

#define MODEL_TEST(name) cmocka_unit_test_setup_teardown(name, open_model, close_model)
int main(void) {
  const struct CMUnitTest tests[] = {
      MODEL_TEST(decodes_what_it_prefills),
      MODEL_TEST(clones_go_on),
      MODEL_TEST(says_what_it_needs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
