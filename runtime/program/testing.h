/* runtime/program/testing.h - shared by the tests of programs: an instance with a counting
 * allocator, a device, and bundles from tests/bundles/make.py. Header only, for *_test.c files and
 * tests/fault.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_TESTING_H_
#define ACCRT_RUNTIME_PROGRAM_TESTING_H_

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program/internal.h"
#include "tests/cts/operation.h"

/* ---- An allocator that counts and can fail on demand ---- */

typedef struct watch {
  atomic_llong live;          /* allocations that are not freed yet */
  atomic_llong count;         /* all allocations so far */
  atomic_llong fail_at;       /* number of the allocation that fails; 0: none */
  atomic_int fail_on;         /* 1: all later ones fail too */
  void (*before)(void* user); /* called before each allocation of the thread `caller`; or NULL */
  void* before_user;
  pthread_t caller;
} watch_t;

static inline void* watch_allocate(void* self, size_t size_bytes, size_t alignment) {
  watch_t* watch = self;
  const long long number = atomic_fetch_add(&watch->count, 1) + 1;
  const long long fail_at = atomic_load(&watch->fail_at);
  if (watch->before != NULL && pthread_equal(watch->caller, pthread_self()))
    watch->before(watch->before_user);
  if (fail_at != 0 && (number == fail_at || (number > fail_at && atomic_load(&watch->fail_on))))
    return NULL;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < sizeof(void*) ? sizeof(void*) : alignment, size_bytes) !=
      0)
    return NULL;
  atomic_fetch_add(&watch->live, 1);
  return pointer;
}

static inline void watch_deallocate(void* self, void* pointer, size_t size_bytes,
                                    size_t alignment) {
  (void)size_bytes;
  (void)alignment;
  watch_t* watch = self;
  atomic_fetch_sub(&watch->live, 1);
  free(pointer);
}

/* ---- Fixture ---- */

typedef struct fixture {
  watch_t watch;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
} fixture_t;

static inline void require_ok(accrt_status_t status, const char* what, int line) {
  if (status == ACCRT_OK)
    return;
  print_error("line %d: %s: %s: %s\n", line, what, accrt_status_name(status),
              accrt_error_current()->message);
  fail();
}
#define OK(call) require_ok((call), #call, __LINE__)

static inline void require_status(accrt_status_t status, accrt_status_t wanted, const char* text,
                                  const char* what, int line) {
  if (status != wanted) {
    print_error("line %d: %s gave %s (%s), wanted %s\n", line, what, accrt_status_name(status),
                accrt_error_current()->message, accrt_status_name(wanted));
    fail();
  }
  if (text != NULL && strstr(accrt_error_current()->message, text) == NULL) {
    print_error("line %d: %s: the message lacks '%s': %s\n", line, what, text,
                accrt_error_current()->message);
    fail();
  }
}
static inline void require_failure(accrt_status_t status, accrt_status_t wanted, const char* text,
                                   const char* call, int line) {
  require_status(status, wanted, text, call, line);
  /* A failure of work that was submitted before names the function that submitted it. */
  if (accrt_error_current()->submission == 0 &&
      !operation_fits(call, accrt_error_current()->operation)) {
    print_error("line %d: the record of %s names %s\n", line, call,
                accrt_error_current()->operation);
    fail();
  }
}
/* Checks that the call fails with status `wanted`, that the message contains `text`, and that the
 * record names the function. */
#define FAILS(call, wanted, text)                                                                  \
  require_failure((call), ACCRT_ERROR_##wanted, (text), #call, __LINE__)
/* Checks that the last message contains this text too. */
#define ALSO(text)                                                                                 \
  require_status(accrt_error_current()->status, accrt_error_current()->status, (text),             \
                 "the message", __LINE__)

static inline bool have_bundles(void) {
  return access(ACCRT_TEST_DATA "/program.accx", R_OK) == 0;
}

static inline accrt_bundle_t* open_bundle(accrt_instance_t* instance, const char* name) {
  char path[512];
  accrt_bundle_t* bundle;
  (void)snprintf(path, sizeof path, "%s/%s.accx", ACCRT_TEST_DATA, name);
  OK(accrt_bundle_open_path(instance, path, NULL, &bundle));
  return bundle;
}

/* Tests of drivers that report no numbers set this and include the other tests. */
#ifdef TEST_UNNUMBERED_HOST
#include "runtime/program/unnumbered_host.h"
#endif

static inline accrt_instance_t* open_instance(watch_t* watch, const char* threads,
                                              uint32_t policy) {
  const accrt_allocator_t allocator = {watch, watch_allocate, watch_deallocate};
  const accrt_option_t option = {"host.threads", threads};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  options.host_code_policy = policy;
  accrt_instance_t* instance;
#ifdef TEST_UNNUMBERED_HOST
  const accrt_option_t later = {"+host.threads", threads};
  options.options = &later;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  OK(accrt_instance_create(&options, &instance));
  OK(accrt_instance_register_driver(instance, unnumbered_host_query));
#else
  OK(accrt_instance_create(&options, &instance));
#endif
  return instance;
}

/* Opens everything up to a session of program.accx, with a number of threads. */
static inline fixture_t* open_fixture(const char* threads) {
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->instance = open_instance(&f->watch, threads, ACCRT_HOST_CODE_ALL);
  OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
  f->bundle = open_bundle(f->instance, "program");
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  OK(accrt_session_create(f->program, NULL, &f->session));
  return f;
}

/* Releases everything. No allocation may be left. */
static inline void close_fixture(fixture_t* f) {
  accrt_session_release(f->session);
  accrt_program_release(f->program);
  accrt_bundle_release(f->bundle);
  accrt_device_release(f->device);
  accrt_instance_release(f->instance);
  assert_int_equal(atomic_load(&f->watch.live), 0);
  free(f);
}

static inline int setup_fixture(void** state) {
  *state = have_bundles() ? open_fixture("2") : NULL;
  return 0;
}
static inline int teardown_fixture(void** state) {
  if (*state != NULL)
    close_fixture(*state);
  return 0;
}
/* First line of a test. Skips it where there are no bundles. */
#define FIXTURE(f)                                                                                 \
  if (*state == NULL)                                                                              \
    skip();                                                                                        \
  fixture_t* f = *state
#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, setup_fixture, teardown_fixture)

/* ---- Calls ---- */

static inline accrt_tensor_t tensor_of(void* data, accrt_dtype_t dtype, uint32_t rank,
                                       const int64_t* shape) {
  accrt_tensor_t tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  tensor.shape = shape;
  return tensor;
}

static inline accrt_call_t* make_call(accrt_session_t* session, const char* function) {
  accrt_call_t* call;
  OK(accrt_call_create(session, function, &call));
  return call;
}

static inline uint32_t index_of(accrt_call_t* call, const char* name) {
  uint32_t index;
  OK(accrt_call_find(call, name, &index));
  return index;
}

static inline accrt_status_t set_vector(accrt_call_t* call, const char* name, void* data,
                                        accrt_dtype_t dtype, int64_t n) {
  const accrt_tensor_t tensor = tensor_of(data, dtype, 1, &n);
  return accrt_call_set_tensor(call, index_of(call, name), &tensor);
}

static inline accrt_status_t set_matrix(accrt_call_t* call, const char* name, void* data,
                                        accrt_dtype_t dtype, int64_t rows, int64_t columns) {
  const int64_t shape[2] = {rows, columns};
  const accrt_tensor_t tensor = tensor_of(data, dtype, 2, shape);
  return accrt_call_set_tensor(call, index_of(call, name), &tensor);
}

static inline accrt_status_t set_number(accrt_call_t* call, const char* name, int64_t value) {
  return accrt_call_set_scalar(call, index_of(call, name), value);
}

static inline accrt_status_t run(accrt_call_t* call) {
  return accrt_call_run(call, ACCRT_TIMEOUT_INFINITE);
}

/* The host address of a result of the last run. */
static inline void* result_data(accrt_call_t* call, uint32_t index) {
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK];
  accrt_tensor_t tensor;
  OK(accrt_call_result(call, index, &tensor, shape, strides));
  if (tensor.buffer == NULL)
    return (char*)tensor.data + tensor.offset_bytes;
  void* pointer;
  OK(accrt_buffer_map(tensor.buffer, tensor.offset_bytes, 0, &pointer));
  OK(accrt_buffer_unmap(tensor.buffer));
  return pointer;
}

#endif /* ACCRT_RUNTIME_PROGRAM_TESTING_H_ */
