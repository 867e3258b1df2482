/* tests/fakecuda/stand_in.h - for tests that make the stand-in fail: its controls, and instances whose memory is counted. A test file includes
 * it once, after cmocka. */
#ifndef FAKECUDA_STAND_IN_H_
#define FAKECUDA_STAND_IN_H_

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "fakecuda.h"

/* A wait that takes longer hangs. Tests with a thousand hand-overs share one processor at times. */
#define PATIENCE UINT64_C(240000000000)

static fakecuda_control_fn_t control;
static fakecuda_count_fn_t count_of;
static fakecuda_complaints_fn_t complaints;
static atomic_long live_allocations;

static void* symbol(const char* name) {
  static void* library;
  if (library == NULL)
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  assert_non_null(library);
  void* address = dlsym(library, name);
  assert_non_null(address); /* else this is a real driver */
  return address;
}

static void find_stand_in(void) {
  void* address = symbol("fakecuda_control");
  memcpy(&control, &address, sizeof control);
  address = symbol("fakecuda_count");
  memcpy(&count_of, &address, sizeof count_of);
  address = symbol("fakecuda_complaints");
  memcpy(&complaints, &address, sizeof complaints);
}

static void demand(const char* setting) {
  if (control(setting) != 0)
    fail_msg("the stand-in does not understand %s", setting);
}

static void* counted_allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes == 0 ? 1 : size_bytes))
    return NULL;
  atomic_fetch_add(&live_allocations, 1);
  return pointer;
}

static void counted_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  atomic_fetch_sub(&live_allocations, 1);
  free(pointer);
}

/* An instance that counts, with an option, or none where `key` is NULL. */
static accrt_instance_t* instance_with(const char* key, const char* value) {
  const accrt_allocator_t allocator = {NULL, counted_allocate, counted_deallocate};
  const accrt_option_t option = {key, value};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.options = &option;
  options.option_count = key != NULL ? 1 : 0;
  options.option_size_bytes = (uint32_t)sizeof option;
  options.host_code_policy = ACCRT_HOST_CODE_ALL; /* bundles that nobody has signed call a pack */
  accrt_instance_t* instance = NULL;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  return instance;
}

#endif /* FAKECUDA_STAND_IN_H_ */
