/* Every extensible struct, offered by callers that are older and newer than the library.
 * Public headers only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "accrt/write.h"

#define GOLDEN "tests/golden/0.3/everything.accx"
/* Room for the largest struct and the tail of a newer one. */
#define ROOM_BYTES 1024u
#define TAIL_BYTES 24u
/* struct_size, four bytes, next: what the oldest caller has. */
#define HEAD_BYTES 16u

typedef struct world {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  accrt_stream_t* stream;
  accrt_event_t* event;
  accrt_semaphore_t* semaphore;
  accrt_bundle_t* bundle;
  accrt_program_t* program; /* NULL where the golden bundle has no code for this machine */
  accrt_session_t* session;
  accrt_kernel_pack_t* pack;
} world_t;

/* ---- A kernel, so that there is one to ask about ---- */

static int32_t do_nothing(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  static const accrt_kernel_def_t kernel = {
      .struct_size = sizeof kernel, .name = "nothing", .entry = do_nothing};
  static const accrt_kernel_pack_table_t table = {.struct_size = sizeof table,
                                                  .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                  .name = "nothing",
                                                  .kernels = &kernel,
                                                  .kernel_count = 1,
                                                  .kernel_size_bytes = sizeof kernel};
  return &table;
}

static int open_world(void** state) {
  world_t* world = calloc(1, sizeof *world);
  assert_non_null(world);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  assert_int_equal(accrt_instance_create(&options, &world->instance), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world->instance, "host", &world->device),
                   ACCRT_OK);
  assert_int_equal(accrt_pool_create(world->device, NULL, &world->pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(world->pool, 64, NULL, &world->buffer), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world->device, NULL, &world->stream), ACCRT_OK);
  assert_int_equal(accrt_event_create(world->device, 0, &world->event), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &world->semaphore), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_register(world->instance, query_pack, &world->pack), ACCRT_OK);
  assert_int_equal(accrt_bundle_open_path(world->instance, GOLDEN, NULL, &world->bundle), ACCRT_OK);
  const accrt_status_t status =
      accrt_program_create(world->device, world->bundle, NULL, &world->program);
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_NO_VARIANT);
  if (world->program != NULL)
    assert_int_equal(accrt_session_create(world->program, NULL, &world->session), ACCRT_OK);
  *state = world;
  return 0;
}

static int close_world(void** state) {
  world_t* world = *state;
  accrt_session_release(world->session);
  accrt_program_release(world->program);
  accrt_bundle_release(world->bundle);
  accrt_kernel_pack_release(world->pack);
  accrt_semaphore_release(world->semaphore);
  accrt_event_release(world->event);
  accrt_stream_release(world->stream);
  accrt_buffer_release(world->buffer);
  accrt_pool_release(world->pool);
  accrt_instance_release(world->instance);
  free(world);
  return 0;
}

/* ---- Structs that the library reads ---- */

/* Makes something with the options, which are a caller's bytes, and lets go of it. */
typedef accrt_status_t (*give_fn_t)(world_t* world, const void* options);

#define GIVE(noun, ...)                                                                            \
  static accrt_status_t give_##noun(world_t* world, const void* options) {                         \
    accrt_##noun##_t* made = NULL;                                                                 \
    (void)world;                                                                                   \
    const accrt_status_t status = accrt_##noun##_##__VA_ARGS__;                                    \
    assert_int_equal(made != NULL, status == ACCRT_OK);                                            \
    accrt_##noun##_release(made);                                                                  \
    return status;                                                                                 \
  }
GIVE(instance, create(options, &made))
GIVE(pool, create(world->device, options, &made))
GIVE(buffer, create(world->pool, 64, options, &made))
GIVE(stream, create(world->device, options, &made))
GIVE(bundle, open_path(world->instance, GOLDEN, options, &made))
GIVE(program, create(world->device, world->bundle, options, &made))
GIVE(session, create(world->program, options, &made))

static accrt_status_t give_clone(world_t* world, const void* options) {
  accrt_session_t* made = NULL;
  const accrt_status_t status = accrt_session_clone(world->session, options, &made);
  assert_int_equal(made != NULL, status == ACCRT_OK);
  accrt_session_release(made);
  return status;
}

static const struct {
  const char* name;
  size_t size_bytes;
  give_fn_t give;
  int needs_program;
} given_structs[] = {
    {"accrt_instance_options_t", sizeof(accrt_instance_options_t), give_instance, 0},
    {"accrt_pool_options_t", sizeof(accrt_pool_options_t), give_pool, 0},
    {"accrt_buffer_options_t", sizeof(accrt_buffer_options_t), give_buffer, 0},
    {"accrt_stream_options_t", sizeof(accrt_stream_options_t), give_stream, 0},
    {"accrt_bundle_options_t", sizeof(accrt_bundle_options_t), give_bundle, 0},
    {"accrt_program_options_t", sizeof(accrt_program_options_t), give_program, 1},
    {"accrt_session_options_t", sizeof(accrt_session_options_t), give_session, 1},
    {"accrt_session_options_t", sizeof(accrt_session_options_t), give_clone, 1},
};
#define GIVEN_COUNT (sizeof given_structs / sizeof given_structs[0])

typedef union caller_struct {
  _Alignas(16) unsigned char bytes[ROOM_BYTES];
  struct {
    uint32_t struct_size;
    uint32_t second;
    const accrt_chain_t* next;
  } head;
} caller_struct_t;

static void expect_given(world_t* world, size_t i, const caller_struct_t* options,
                         accrt_status_t wanted, const char* case_name) {
  const accrt_status_t status = given_structs[i].give(world, options);
  if (status == wanted)
    return;
  fail_msg("%s, %s: got %s, not %s", given_structs[i].name, case_name, accrt_status_name(status),
           accrt_status_name(wanted));
}

/* `byte` of the tail that a newer caller's struct has. */
static void offer_newer(world_t* world, size_t i, unsigned char byte, accrt_status_t wanted) {
  caller_struct_t options = {.head = {.struct_size = 0}};
  options.head.struct_size = (uint32_t)(given_structs[i].size_bytes + TAIL_BYTES);
  options.bytes[given_structs[i].size_bytes + TAIL_BYTES - 1] = byte;
  expect_given(world, i, &options, wanted, byte == 0 ? "newer, tail of zeros" : "newer, tail set");
}

static void offer_chain(world_t* world, size_t i, uint32_t type, accrt_status_t wanted) {
  const accrt_chain_t unknown = {.struct_size = sizeof unknown, .struct_type = type};
  caller_struct_t options = {.head = {.struct_size = (uint32_t)given_structs[i].size_bytes}};
  options.head.next = &unknown;
  expect_given(world, i, &options, wanted, "unknown chain member");
}

static void options_of_every_age(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < GIVEN_COUNT; ++i) {
    if (given_structs[i].needs_program && world->program == NULL)
      continue;
    caller_struct_t options = {.head = {.struct_size = 0}};
    expect_given(world, i, &options, ACCRT_ERROR_INVALID_ARGUMENT, "size 0");
    options.head.struct_size = HEAD_BYTES - 1;
    expect_given(world, i, &options, ACCRT_ERROR_INVALID_ARGUMENT, "smaller than any version");
    options.head.struct_size = 1u << 20;
    expect_given(world, i, &options, ACCRT_ERROR_INVALID_ARGUMENT, "absurd size");
    /* What lies past an older caller's struct is not looked at. */
    memset(options.bytes + HEAD_BYTES, 0xEE, sizeof options.bytes - HEAD_BYTES);
    options.head.struct_size = HEAD_BYTES;
    expect_given(world, i, &options, ACCRT_OK, "the oldest");
    offer_newer(world, i, 0, ACCRT_OK);
    offer_newer(world, i, 1, ACCRT_ERROR_INVALID_ARGUMENT);
    offer_chain(world, i, 0x7777, ACCRT_ERROR_INVALID_ARGUMENT);
    offer_chain(world, i, 0x7777 | ACCRT_STRUCT_IGNORABLE, ACCRT_OK);
  }
}

/* ---- Structs that the library fills ---- */

typedef accrt_status_t (*take_fn_t)(world_t* world, void* out);

#define TAKE(name, ...)                                                                            \
  static accrt_status_t take_##name(world_t* world, void* out) {                                   \
    (void)world;                                                                                   \
    return __VA_ARGS__;                                                                            \
  }
TAKE(last_error, accrt_last_error(out))
TAKE(stream_error, accrt_stream_error(world->stream, out))
TAKE(event_error, accrt_event_error(world->event, out))
TAKE(semaphore_error, accrt_semaphore_error(world->semaphore, out))
TAKE(session_error, accrt_session_error(world->session, out))
TAKE(caps, accrt_query_caps(out))
TAKE(device_info, accrt_device_info(world->device, out))
TAKE(pool_statistics, accrt_pool_statistics(world->pool, out))
TAKE(buffer_info, accrt_buffer_info(world->buffer, out))
TAKE(bundle_info, accrt_bundle_info(world->bundle, out))
TAKE(section, accrt_bundle_section(world->bundle, 0, out))
TAKE(symbol, accrt_bundle_symbol(world->bundle, 0, out))
TAKE(constant, accrt_bundle_constant(world->bundle, 0, out))
TAKE(component, accrt_bundle_component(world->bundle, 0, 0, out))
TAKE(file, accrt_bundle_file(world->bundle, 0, out))
TAKE(shard, accrt_bundle_shard(world->bundle, 0, out))
TAKE(adapter, accrt_bundle_adapter(world->bundle, 0, out))
TAKE(asset, accrt_bundle_asset(world->bundle, 0, out))
TAKE(location, accrt_bundle_location(world->bundle, 0, out))
TAKE(function, accrt_bundle_function(world->bundle, 0, out))
TAKE(argument, accrt_bundle_argument(world->bundle, 0, 0, out))
TAKE(state, accrt_bundle_state(world->bundle, 0, out))
TAKE(bundle_kernel, accrt_bundle_kernel(world->bundle, 0, out))
TAKE(variant, accrt_bundle_variant(world->bundle, 0, 0, out))
TAKE(estimate,
     accrt_program_estimate(world->program, "main", NULL, 0, sizeof(accrt_symbol_value_t), out))

static accrt_status_t take_kernel(world_t* world, void* out) {
  accrt_kernel_t* kernel = NULL;
  assert_int_equal(accrt_kernel_pack_kernel(world->pack, 0, &kernel), ACCRT_OK);
  return accrt_kernel_info(kernel, out);
}

#define TAKEN(type, name, needs_program)                                                           \
  { #type " (" #name ")", sizeof(type), take_##name, needs_program }
static const struct {
  const char* name;
  size_t size_bytes;
  take_fn_t take;
  int needs_program;
} taken_structs[] = {
    TAKEN(accrt_error_t, last_error, 0),
    TAKEN(accrt_error_t, stream_error, 0),
    TAKEN(accrt_error_t, event_error, 0),
    TAKEN(accrt_error_t, semaphore_error, 0),
    TAKEN(accrt_error_t, session_error, 1),
    TAKEN(accrt_caps_t, caps, 0),
    TAKEN(accrt_device_info_t, device_info, 0),
    TAKEN(accrt_pool_statistics_t, pool_statistics, 0),
    TAKEN(accrt_buffer_info_t, buffer_info, 0),
    TAKEN(accrt_kernel_info_t, kernel, 0),
    TAKEN(accrt_bundle_info_t, bundle_info, 0),
    TAKEN(accrt_section_info_t, section, 0),
    TAKEN(accrt_symbol_info_t, symbol, 0),
    TAKEN(accrt_constant_info_t, constant, 0),
    TAKEN(accrt_function_info_t, function, 0),
    TAKEN(accrt_argument_info_t, argument, 0),
    TAKEN(accrt_state_info_t, state, 0),
    TAKEN(accrt_bundle_kernel_info_t, bundle_kernel, 0),
    TAKEN(accrt_component_info_t, component, 0),
    TAKEN(accrt_file_info_t, file, 0),
    TAKEN(accrt_shard_info_t, shard, 0),
    TAKEN(accrt_adapter_info_t, adapter, 0),
    TAKEN(accrt_asset_info_t, asset, 0),
    TAKEN(accrt_location_info_t, location, 0),
    TAKEN(accrt_variant_info_t, variant, 0),
    TAKEN(accrt_memory_estimate_t, estimate, 1),
};
#define TAKEN_COUNT (sizeof taken_structs / sizeof taken_structs[0])

/* A struct of `offered` bytes on a page of 0xEE: what is filled, what is zeroed, what is left alone. */
static void offer_size(world_t* world, size_t i, size_t offered) {
  caller_struct_t out;
  memset(out.bytes, 0xEE, sizeof out.bytes);
  out.head.struct_size = (uint32_t)offered;
  out.head.next = NULL;
  const size_t own = taken_structs[i].size_bytes;
  const accrt_status_t status = taken_structs[i].take(world, &out);
  if (status != ACCRT_OK || out.head.struct_size != (offered < own ? offered : own)) {
    fail_msg("%s of %zu bytes: %s, %u bytes filled", taken_structs[i].name, offered,
             accrt_status_name(status), (unsigned)out.head.struct_size);
  }
  for (size_t k = own; k < offered; ++k)
    assert_int_equal(out.bytes[k], 0);
  for (size_t k = offered; k < sizeof out.bytes; ++k)
    assert_int_equal(out.bytes[k], 0xEE);
}

static void refuse_size(world_t* world, size_t i, uint32_t offered) {
  caller_struct_t out;
  memset(out.bytes, 0xEE, sizeof out.bytes);
  out.head.struct_size = offered;
  caller_struct_t before = out;
  if (taken_structs[i].take(world, &out) != ACCRT_ERROR_INVALID_ARGUMENT)
    fail_msg("%s of %u bytes was taken", taken_structs[i].name, (unsigned)offered);
  assert_memory_equal(&out, &before, sizeof out);
}

static void offer_result_chain(world_t* world, size_t i, uint32_t type, accrt_status_t wanted) {
  const accrt_chain_t unknown = {.struct_size = sizeof unknown, .struct_type = type};
  caller_struct_t out = {.head = {.struct_size = (uint32_t)taken_structs[i].size_bytes}};
  out.head.next = &unknown;
  if (taken_structs[i].take(world, &out) != wanted)
    fail_msg("%s with a chain member 0x%x was not given %s", taken_structs[i].name, (unsigned)type,
             accrt_status_name(wanted));
  assert_ptr_equal(out.head.next, &unknown);
}

/* Does `size` end within a field of the struct, or in front of padding? */
static int cuts(const char* type, size_t size) {
  static const struct {
    const char* owner;
    size_t begin, end;
  } fields[] = {
#define SHORT(owner, field)                                                                        \
  {#owner, offsetof(owner, field), offsetof(owner, field) + sizeof(((owner*)0)->field)},
#define LONG SHORT
#include "../../runtime/core/struct_fields.inc"
  };
  int found = 0;
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    if (strncmp(type, fields[i].owner, strlen(fields[i].owner)) != 0)
      continue;
    found = 1;
    if (size > fields[i].begin && size < fields[i].end)
      return 1;
  }
  assert_true(found);
  return size % 8 != 0;
}

/* Every size from the oldest to a newer one: what cuts no field is filled, the rest is refused. */
static void every_size_of_a_result(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < TAKEN_COUNT; ++i) {
    if (taken_structs[i].needs_program && world->program == NULL)
      continue;
    for (size_t size = HEAD_BYTES; size <= taken_structs[i].size_bytes + TAIL_BYTES; ++size) {
      if (cuts(taken_structs[i].name, size))
        refuse_size(world, i, (uint32_t)size);
      else
        offer_size(world, i, size);
    }
  }
}

static void every_size_of_options(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < GIVEN_COUNT; ++i) {
    if (given_structs[i].needs_program && world->program == NULL)
      continue;
    for (size_t size = HEAD_BYTES; size <= given_structs[i].size_bytes + TAIL_BYTES; ++size) {
      caller_struct_t options = {.head = {.struct_size = (uint32_t)size}};
      expect_given(world, i, &options,
                   cuts(given_structs[i].name, size) ? ACCRT_ERROR_INVALID_ARGUMENT : ACCRT_OK,
                   "every size");
    }
  }
}

static void results_for_callers_of_every_age(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < TAKEN_COUNT; ++i) {
    if (taken_structs[i].needs_program && world->program == NULL)
      continue;
    assert_true(taken_structs[i].size_bytes + TAIL_BYTES <= ROOM_BYTES);
    offer_size(world, i, HEAD_BYTES);
    refuse_size(world, i,
                (uint32_t)taken_structs[i].size_bytes - 4); /* within a field, or padding */
    offer_size(world, i, taken_structs[i].size_bytes);
    offer_size(world, i, taken_structs[i].size_bytes + TAIL_BYTES);
    /* accrt_last_error looks at nothing but the size: it may not make a record of its own. */
    offer_result_chain(world, i, 0x7777,
                       taken_structs[i].take == take_last_error ? ACCRT_OK
                                                                : ACCRT_ERROR_INVALID_ARGUMENT);
    offer_result_chain(world, i, 0x7777 | ACCRT_STRUCT_IGNORABLE, ACCRT_OK);
    refuse_size(world, i, 0);
    refuse_size(world, i, HEAD_BYTES - 1);
    refuse_size(world, i, 1u << 20);
    assert_int_equal(taken_structs[i].take(world, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  }
}

/* ---- Arrays of structs carry the size of their elements ---- */

static void arrays_of_other_elements(void** state) {
  world_t* world = *state;
  const accrt_option_t option = {"host.threads", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = sizeof option + 8;
  assert_int_equal(give_instance(world, &options), ACCRT_ERROR_INVALID_ARGUMENT);
  uint32_t count = 0;
  assert_int_equal(
      accrt_pool_snapshot(world->pool, NULL, 0, sizeof(accrt_pool_entry_t) - 8, &count),
      ACCRT_ERROR_INVALID_ARGUMENT);
  if (world->program == NULL)
    return;
  const accrt_symbol_value_t value = {"length", 16};
  accrt_session_options_t session_options = ACCRT_SESSION_OPTIONS_INIT;
  session_options.symbols = &value;
  session_options.symbol_count = 1;
  session_options.symbol_size_bytes = sizeof value - 8;
  assert_int_equal(give_session(world, &session_options), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  assert_int_equal(
      accrt_program_estimate(world->program, "main", &value, 1, sizeof value + 8, &estimate),
      ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_session_warmup(world->session, "main", &value, 1, sizeof value + 8),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  const accrt_weight_t weight = {.name = "weight"};
  assert_int_equal(accrt_program_swap_weights(world->program, &weight, 1, sizeof weight + 8),
                   ACCRT_ERROR_INVALID_ARGUMENT);
}

/* ---- Reserved fields are zero, so that a later version may give them a meaning ---- */

static void no_log(void* self, uint32_t level, const char* component, const char* line) {
  (void)self;
  (void)level;
  (void)component;
  (void)line;
}

static void reserved_fields(void** state) {
  world_t* world = *state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.reserved = 1;
  assert_int_equal(give_instance(world, &options), ACCRT_ERROR_INVALID_ARGUMENT);
  options.reserved = 0;
  const accrt_log_sink_t sink = {.write = no_log, .reserved = 1};
  options.log_sink = &sink;
  assert_int_equal(give_instance(world, &options), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world->device, 1, &commands), ACCRT_OK);
  accrt_binding_place_t target = {.binding = 0, .reserved = 1};
  assert_int_equal(accrt_commands_fill(commands, &target, 4, 0, 4, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  target.reserved = 0;
  const accrt_predecessors_t predecessors = {.reserved = 1};
  assert_int_equal(accrt_commands_fill(commands, &target, 4, 0, 4, &predecessors, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_fill(commands, &target, 4, 0, 4, NULL, NULL), ACCRT_OK);
  accrt_commands_release(commands);
}

/* ---- References: what is retained lives on, whatever else is let go ---- */

static void references_are_counted(void** state) {
  (void)state;
  world_t* world;
  void* opened;
  (void)open_world(&opened);
  world = opened;
  assert_null(accrt_session_retain(NULL));
  accrt_session_t* session = accrt_session_retain(world->session);
  assert_ptr_equal(session, world->session);
  accrt_stream_t* stream = accrt_stream_retain(world->stream);
  accrt_kernel_pack_t* pack = accrt_kernel_pack_retain(world->pack);
  (void)close_world(&opened);
  /* Children retain their parents: each of these holds the instance up. */
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  uint32_t count = 0;
  assert_int_equal(accrt_kernel_pack_kernel_count(pack, &count), ACCRT_OK);
  assert_int_equal(count, 1);
  if (session != NULL) {
    assert_int_equal(accrt_session_reset(session), ACCRT_OK);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_session_error(session, &error), ACCRT_OK);
    assert_int_equal(error.status, ACCRT_OK);
  }
  accrt_session_release(session);
  accrt_kernel_pack_release(pack);
  accrt_stream_release(stream);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(options_of_every_age, open_world, close_world),
      cmocka_unit_test_setup_teardown(results_for_callers_of_every_age, open_world, close_world),
      cmocka_unit_test_setup_teardown(every_size_of_a_result, open_world, close_world),
      cmocka_unit_test_setup_teardown(every_size_of_options, open_world, close_world),
      cmocka_unit_test_setup_teardown(arrays_of_other_elements, open_world, close_world),
      cmocka_unit_test_setup_teardown(reserved_fields, open_world, close_world),
      cmocka_unit_test(references_are_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
