/* tests/cts/direct_modules.c - more of the part `direct`: modules, for drivers that bring images of
 * their own (hooks.h).
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

static bool has_modules(direct_t* d) {
  d->is_skipped = !HAS(d, module_load) || d->hooks.declared == NULL;
  if (!d->is_skipped) /* as hooks.h says */
    assert_int_equal(d->hooks.declared->param_count, 2);
  return !d->is_skipped;
}

static accrt_driver_module_t* load(direct_t* d, accrt_driver_device_t* device, int image) {
  accrt_driver_module_t* module = NULL;
  assert_int_equal(d->table->module_load(device, d->hooks.images[image], &module), ACCRT_OK);
  assert_non_null(module);
  return module;
}

static accrt_driver_kernel_t find(direct_t* d, accrt_driver_module_t* module) {
  accrt_driver_kernel_t kernel = {.definition = d->hooks.declared};
  assert_int_equal(d->table->module_find(module, d->hooks.declared->name, d->hooks.declared,
                                         &kernel.module_kernel),
                   ACCRT_OK);
  assert_non_null(kernel.module_kernel);
  return kernel;
}

/* Adds `amount` at the beginning of the memory, `groups` times. */
static void add(direct_t* d, accrt_driver_queue_t* queue, const accrt_driver_kernel_t* kernel,
                const memory_t* memory, uint32_t amount, uint32_t groups) {
  const cts_add_params_t params = {.address = memory->own.device_address, .amount = amount};
  accrt_driver_command_t command = direct_dispatch(d, kernel, &params, sizeof params);
  command.as.dispatch.grid[0] = direct_constant(groups);
  outcome_t outcome;
  direct_enqueue(d, queue, &command, NULL, 0, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_OK);
}

static uint32_t word(const memory_t* memory) {
  uint32_t value;
  memcpy(&value, memory->host, sizeof value);
  return value;
}

/* ---- What must work ---- */

/* Alone, in a list with patches, as a prepared launch; the image is read during the call. */
static void test_kernels_of_modules_run(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  memory_t memory = direct_memory(d, 64);
  accrt_driver_image_t image = *d->hooks.images[0];
  void* bytes = malloc(image.size_bytes);
  char name[32] = "mine";
  assert_non_null(bytes);
  memcpy(bytes, image.data, image.size_bytes);
  image.data = bytes;
  image.name = name;
  accrt_driver_module_t* module = NULL;
  assert_int_equal(d->table->module_load(d->device, &image, &module), ACCRT_OK);
  memset(bytes, 0xFF, image.size_bytes);
  memset(name, 'x', sizeof name - 1);
  const accrt_driver_kernel_t kernel = find(d, module);
  add(d, d->queue, &kernel, &memory, 5, 1);
  assert_int_equal(word(&memory), 5);
  add(d, d->queue, &kernel, &memory, 2, 7);
  assert_int_equal(word(&memory), 19);
  add(d, d->queue, &kernel, &memory, 100, 0);
  assert_int_equal(word(&memory), 19);
  const cts_add_params_t template = {.amount = 1};
  const accrt_driver_patch_t patches[2] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .offset_bytes = offsetof(cts_add_params_t, address),
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(0), direct_constant(4))},
      {.kind = ACCRT_DRIVER_PATCH_VALUE,
       .offset_bytes = offsetof(cts_add_params_t, amount),
       .size_bytes = 4,
       .value = direct_scalar(10, 0)}};
  accrt_driver_command_t command = direct_dispatch(d, &kernel, &template, sizeof template);
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = 2;
  accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 1);
  const accrt_driver_binding_t binding = direct_binding(&memory);
  for (uint64_t run = 0; run < 3; ++run)
    direct_execute(d, list, &binding, 1, &run, 1);
  assert_int_equal(word(&memory), 19 + 33);
  d->table->list_destroy(list);
  if (HAS(d, launch_create)) {
    _Alignas(16) cts_add_params_t params = {.address = memory.own.device_address, .amount = 1000};
    accrt_driver_launch_t* launch = make_launch(d, &kernel);
    const uint32_t grid[3] = {2, 1, 1};
    const uint64_t number = next_number(d);
    assert_int_equal(d->table->queue_launch(d->queue, launch, grid, &params, number), ACCRT_OK);
    wait_for(d, d->queue, number);
    assert_int_equal(word(&memory), 2052);
    d->table->launch_destroy(launch);
  }
  d->table->module_unload(module);
  free(bytes);
}

/* Kernels of one name in several modules, of which some are gone; host kernels are beside them. */
static void test_modules_live_apart(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  memory_t memory = direct_memory(d, 64);
  accrt_driver_module_t* modules[3];
  accrt_driver_kernel_t kernels[3];
  for (int i = 0; i < 3; ++i) {
    modules[i] = load(d, d->device, i % 2);
    kernels[i] = find(d, modules[i]);
  }
  uint32_t wanted = 0;
  for (int left = 3; left > 0; --left) {
    for (int i = 3 - left; i < 3; ++i) {
      add(d, d->queue, &kernels[i], &memory, 3, 1);
      wanted += i % 2 == 0 ? 3 : 6;
      assert_int_equal(word(&memory), wanted);
    }
    if ((d->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0) {
      const accrt_driver_command_t command = direct_dispatch(d, &direct_count, NULL, 0);
      outcome_t outcome;
      direct_forget_calls();
      direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
      direct_await(d, &outcome);
      assert_int_equal(direct_seen.calls, 1);
    }
    d->table->module_unload(modules[3 - left]);
  }
}

/* One place holds one image after another: a module has what was there when it was loaded. */
static void test_images_may_share_a_place(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  memory_t memory = direct_memory(d, 64);
  const uint64_t sizes[2] = {d->hooks.images[0]->size_bytes, d->hooks.images[1]->size_bytes};
  void* place = malloc(sizes[0] > sizes[1] ? sizes[0] : sizes[1]);
  assert_non_null(place);
  accrt_driver_module_t* modules[4];
  for (int i = 0; i < 4; ++i) {
    accrt_driver_image_t image = *d->hooks.images[i % 2];
    memcpy(place, image.data, image.size_bytes);
    image.data = place;
    assert_int_equal(d->table->module_load(d->device, &image, &modules[i]), ACCRT_OK);
  }
  uint32_t wanted = 0;
  for (int i = 0; i < 4; ++i) {
    const accrt_driver_kernel_t kernel = find(d, modules[i]);
    add(d, d->queue, &kernel, &memory, 7, 1);
    wanted += i % 2 == 0 ? 7 : 14;
    assert_int_equal(word(&memory), wanted);
    d->table->module_unload(modules[i]);
  }
  free(place);
}

static void test_modules_are_of_their_device(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  if (d->table->device_count(d->driver) < 2 ||
      (d->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0) {
    d->is_skipped = true;
    return;
  }
  memory_t memory = direct_memory(d, 64);
  accrt_driver_device_t* other = NULL;
  accrt_driver_queue_t* queue = NULL;
  assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &other), ACCRT_OK);
  assert_int_equal(d->table->queue_create(other, 0, &queue), ACCRT_OK);
  accrt_driver_module_t* there = load(d, other, 0);
  accrt_driver_module_t* here = load(d, d->device, 0);
  const accrt_driver_kernel_t kernel = find(d, there);
  d->table->module_unload(here);
  add(d, queue, &kernel, &memory, 4, 1);
  assert_int_equal(word(&memory), 4);
  d->table->module_unload(there);
  d->table->queue_destroy(queue);
  d->table->device_close(other);
}

/* ---- What must be refused ---- */

static void check_load_fails(direct_t* d, const accrt_driver_image_t* image,
                             accrt_status_t wanted) {
  accrt_driver_module_t* module = (accrt_driver_module_t*)d;
  const long live = atomic_load(&d->live);
  direct_forget_failure();
  const accrt_status_t status = d->table->module_load(d->device, image, &module);
  assert_int_not_equal(status, ACCRT_OK);
  assert_true(wanted == ACCRT_OK || status == wanted);
  assert_int_equal(direct_failure.status, status);
  assert_null(module);
  assert_int_equal(atomic_load(&d->live), live);
}

static void test_what_is_no_image_is_refused(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  static const unsigned char bytes[64] = {1, 2, 3, 4};
  accrt_driver_image_t image = *d->hooks.images[0];
  image.data = bytes;
  image.size_bytes = sizeof bytes;
  check_load_fails(d, &image, ACCRT_ERROR_INVALID_FORMAT);
  unsigned char* other = malloc(d->hooks.images[0]->size_bytes);
  assert_non_null(other);
  memcpy(other, d->hooks.images[0]->data, d->hooks.images[0]->size_bytes);
  other[0] ^= 0xFF; /* where images say what they are */
  image.data = other;
  image.size_bytes = d->hooks.images[0]->size_bytes;
  check_load_fails(d, &image, ACCRT_ERROR_INVALID_FORMAT);
  free(other);
  image = *d->hooks.images[0];
  image.kind = 0x7FFFFFFF; /* a kind that a later version may bring */
  check_load_fails(d, &image, ACCRT_OK);
  image = *d->hooks.images[0];
  for (uint64_t size_bytes = 0; size_bytes < d->hooks.images[0]->size_bytes / 2; size_bytes += 5) {
    unsigned char* cut = malloc(size_bytes + 1); /* a sanitizer sees who reads behind it */
    assert_non_null(cut);
    memcpy(cut, d->hooks.images[0]->data, size_bytes);
    image.data = cut;
    image.size_bytes = size_bytes;
    check_load_fails(d, &image, ACCRT_ERROR_INVALID_FORMAT);
    free(cut);
  }
}

/* The runtime then tries the next variant. */
static void test_images_of_other_devices_are_no_variant(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  accrt_driver_module_t* module = NULL;
  direct_forget_failure();
  accrt_status_t status = d->table->module_load(d->device, d->hooks.images[2], &module);
  if (status == ACCRT_OK) { /* it may be found later */
    void* found = d;
    status = d->table->module_find(module, d->hooks.declared->name, d->hooks.declared, &found);
    assert_null(found);
    d->table->module_unload(module);
  } else {
    assert_null(module);
  }
  assert_int_equal(status, ACCRT_ERROR_NO_VARIANT);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_NO_VARIANT);
}

static void check_find_fails(direct_t* d, accrt_driver_module_t* module, const char* entry,
                             const accrt_kernel_def_t* declared, accrt_status_t wanted) {
  void* found = d;
  const long live = atomic_load(&d->live);
  direct_forget_failure();
  assert_int_equal(d->table->module_find(module, entry, declared, &found), wanted);
  assert_null(found);
  assert_int_equal(direct_failure.status, wanted);
  assert_int_equal(atomic_load(&d->live), live);
}

/* The bundle's declaration is held against the image. */
static void test_declarations_that_differ_are_refused(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  accrt_driver_module_t* module = load(d, d->device, 0);
  accrt_kernel_def_t declared = *d->hooks.declared;
  check_find_fails(d, module, "there_is_none", &declared, ACCRT_ERROR_NOT_FOUND);
  char longer[300];
  snprintf(longer, sizeof longer, "%sx", declared.name);
  check_find_fails(d, module, longer, &declared, ACCRT_ERROR_NOT_FOUND);
  longer[strlen(declared.name) - 1] = '\0';
  check_find_fails(d, module, longer, &declared, ACCRT_ERROR_NOT_FOUND);
  declared.param_count = 1; /* one too few */
  declared.params_size_bytes = 8;
  check_find_fails(d, module, declared.name, &declared, ACCRT_ERROR_INVALID_FORMAT);
  accrt_kernel_param_t params[3];
  memcpy(params, d->hooks.declared->params, 2 * sizeof params[0]);
  params[2] = params[1];
  params[2].name = "extra";
  params[2].offset_bytes = 16;
  declared.params = params;
  declared.param_count = 3; /* one too many */
  declared.params_size_bytes = 24;
  check_find_fails(d, module, declared.name, &declared, ACCRT_ERROR_INVALID_FORMAT);
  for (int i = 0; i < 3 && d->hooks.images_have_blocks; ++i) {
    declared = *d->hooks.declared;
    ++declared.block[i];
    check_find_fails(d, module, declared.name, &declared, ACCRT_ERROR_INVALID_FORMAT);
  }
  (void)find(d, module); /* a refusal changes nothing */
  d->table->module_unload(module);
}

/* Each parameter is held against the image, where that knows them. */
static void test_parameters_lie_where_the_image_says(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  d->is_skipped = d->hooks.images_have_parameters == 0;
  if (d->is_skipped)
    return;
  static const struct {
    uint32_t offset_bytes[2];
    uint32_t size_bytes[2];
  } others[] = {{{0, 12}, {8, 4}}, {{0, 4}, {4, 4}}, {{4, 8}, {4, 4}}, {{0, 8}, {8, 8}}};
  accrt_driver_module_t* module = load(d, d->device, 0);
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    accrt_kernel_param_t params[2];
    accrt_kernel_def_t declared = *d->hooks.declared;
    memcpy(params, declared.params, sizeof params);
    for (int p = 0; p < 2; ++p) {
      params[p].offset_bytes = others[i].offset_bytes[p];
      params[p].size_bytes = others[i].size_bytes[p];
    }
    declared.params = params;
    check_find_fails(d, module, declared.name, &declared, ACCRT_ERROR_INVALID_FORMAT);
  }
  (void)find(d, module);
  d->table->module_unload(module);
}

static void test_modules_without_host_memory(void** state) {
  direct_t* d = *state;
  if (!has_modules(d))
    return;
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long allowed = 0; allowed < 64 && status != ACCRT_OK; ++allowed) {
    const long live = atomic_load(&d->live);
    accrt_driver_module_t* module = (accrt_driver_module_t*)d;
    void* found = d;
    direct_forget_failure();
    atomic_store(&d->allowed, allowed);
    status = d->table->module_load(d->device, d->hooks.images[0], &module);
    const bool is_loaded = status == ACCRT_OK;
    if (is_loaded)
      status = d->table->module_find(module, d->hooks.declared->name, d->hooks.declared, &found);
    atomic_store(&d->allowed, LONG_MAX);
    if (status != ACCRT_OK) {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_int_equal(direct_failure.status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_null(is_loaded ? found : (void*)module);
    }
    if (is_loaded)
      d->table->module_unload(module);
    assert_int_equal(atomic_load(&d->live), live);
  }
  assert_int_equal(status, ACCRT_OK);
}

const cts_test_t cts_direct_module_tests[] = {
    CTS_O(test_kernels_of_modules_run, CTS_NEEDS_TABLE),
    CTS_O(test_modules_live_apart, CTS_NEEDS_TABLE),
    CTS_O(test_images_may_share_a_place, CTS_NEEDS_TABLE),
    CTS_O(test_modules_are_of_their_device, CTS_NEEDS_TABLE),
    CTS_O(test_what_is_no_image_is_refused, CTS_NEEDS_TABLE),
    CTS_O(test_images_of_other_devices_are_no_variant, CTS_NEEDS_TABLE),
    CTS_O(test_declarations_that_differ_are_refused, CTS_NEEDS_TABLE),
    CTS_O(test_parameters_lie_where_the_image_says, CTS_NEEDS_TABLE),
    CTS_O(test_modules_without_host_memory, CTS_NEEDS_TABLE),
    CTS_END};
