/* tests/cts/device.c - instances as drivers see them, devices and their facts, opening drivers. */
#include "cts.h"

/* ---- What must work ---- */

static void test_info_is_complete(void** state) {
  cts_t* cts = *state;
  const accrt_device_info_t* info = &cts->info;
  assert_int_equal(info->struct_size, sizeof *info);
  assert_string_equal(info->driver, cts_settings.driver_name);
  assert_non_null(strchr(info->name, ':'));
  assert_true(strlen(info->description) > 0 &&
              strlen(info->description) < sizeof info->description);
  assert_true(strlen(info->arch) > 0 && strlen(info->arch) < sizeof info->arch);
  assert_true(info->concurrency >= 1);
  assert_true(info->min_alignment_bytes != 0 &&
              (info->min_alignment_bytes & (info->min_alignment_bytes - 1)) == 0);
}

static void test_names_lead_to_devices(void** state) {
  cts_t* cts = *state;
  uint32_t count = 0;
  OK(accrt_instance_device_count(cts->instance, &count));
  assert_true(count >= 1);
  for (uint32_t i = 0; i < count; ++i) {
    accrt_device_t* by_index = NULL;
    OK(accrt_instance_device(cts->instance, i, &by_index));
    accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
    OK(accrt_device_info(by_index, &info));
    accrt_device_t* by_name = NULL;
    OK(accrt_instance_device_by_name(cts->instance, info.name, &by_name));
    assert_ptr_equal(by_index, by_name);
  }
}

static void test_driver_name_is_first_device(void** state) {
  cts_t* cts = *state;
  accrt_device_t* device = NULL;
  OK(accrt_instance_device_by_name(cts->instance, cts->info.driver, &device));
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  OK(accrt_device_info(device, &info));
  assert_int_equal(info.index, 0);
}

static void test_status_is_ok(void** state) {
  cts_t* cts = *state;
  OK(accrt_device_status(cts->device));
  assert_ptr_equal(accrt_device_instance(cts->device), cts->instance);
}

static void test_smaller_info_struct(void** state) {
  cts_t* cts = *state;
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  memset(&info, 0xAA, sizeof info);
  info.struct_size = offsetof(accrt_device_info_t, arch);
  info.next = NULL;
  OK(accrt_device_info(cts->device, &info));
  assert_int_equal(info.struct_size, offsetof(accrt_device_info_t, arch));
  assert_string_equal(info.name, cts->info.name);
  assert_int_equal((unsigned char)info.arch[0], 0xAA); /* beyond what was asked for */
}

static void test_device_outlives_first_reference(void** state) {
  cts_t* cts = *state;
  accrt_instance_t* instance = NULL;
  OK(cts_instance_create(cts, &instance));
  accrt_device_t* device = NULL;
  OK(accrt_instance_device_by_name(instance, cts_settings.device, &device));
  (void)accrt_device_retain(device);
  accrt_instance_release(instance); /* the reference of the device holds it */
  accrt_stream_t* stream = NULL;
  OK(accrt_stream_create(device, NULL, &stream));
  accrt_device_release(device);
  OK(accrt_stream_synchronize(stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_stream_release(stream);
}

static void test_two_instances(void** state) {
  cts_t* cts = *state;
  accrt_instance_t* other = NULL;
  OK(cts_instance_create(cts, &other));
  accrt_device_t* device = NULL;
  OK(accrt_instance_device_by_name(other, cts_settings.device, &device));
  assert_ptr_not_equal(device, cts->device);
  accrt_instance_release(other);
}

static void test_second_device(void** state) {
  cts_t* cts = *state;
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  OK(accrt_device_info(cts->second, &info));
  assert_int_not_equal(info.index, cts->info.index);
  assert_string_not_equal(info.name, cts->info.name);
}

/* ---- What must be refused ---- */

static void test_unknown_device_name(void** state) {
  cts_t* cts = *state;
  accrt_device_t* device = cts->device;
  FAILS(NOT_FOUND, accrt_instance_device_by_name(cts->instance, "no_such_device:0", &device));
  assert_null(device);
  MESSAGE_HAS("no_such_device");
  MESSAGE_HAS(cts->info.driver); /* lists what there is */
}

static void test_device_index_beyond_count(void** state) {
  cts_t* cts = *state;
  uint32_t count = 0;
  OK(accrt_instance_device_count(cts->instance, &count));
  accrt_device_t* device = cts->device;
  FAILS(OUT_OF_RANGE, accrt_instance_device(cts->instance, count, &device));
  assert_null(device);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_device_t* device = NULL;
  FAILS(INVALID_ARGUMENT, accrt_instance_device_by_name(cts->instance, NULL, &device));
  FAILS(INVALID_ARGUMENT, accrt_instance_device_by_name(cts->instance, cts->info.name, NULL));
  FAILS(INVALID_ARGUMENT, accrt_instance_device_count(cts->instance, NULL));
  FAILS(INVALID_ARGUMENT, accrt_device_info(cts->device, NULL));
  FAILS(INVALID_ARGUMENT, accrt_device_info(NULL, &cts->info));
  FAILS(INVALID_ARGUMENT, accrt_device_status(NULL));
  accrt_device_release(NULL);
}

static void test_info_struct_without_size(void** state) {
  cts_t* cts = *state;
  accrt_device_info_t info;
  memset(&info, 0, sizeof info);
  FAILS(INVALID_ARGUMENT, accrt_device_info(cts->device, &info));
}

static void test_unknown_option(void** state) {
  (void)state;
  const accrt_option_t option = {"host.no_such_option", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  accrt_instance_t* instance = (accrt_instance_t*)&options;
  FAILS(NOT_FOUND, accrt_instance_create(&options, &instance));
  assert_null(instance);
  MESSAGE_HAS("host.no_such_option");
}

static void test_bad_option_value(void** state) {
  (void)state;
  const accrt_option_t option = {"host.threads", "many"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  accrt_instance_t* instance = NULL;
  FAILS(INVALID_ARGUMENT, accrt_instance_create(&options, &instance));
  assert_null(instance);
  MESSAGE_HAS("host.threads");
  MESSAGE_HAS("many");
}

static void test_driver_file_is_missing(void** state) {
  cts_t* cts = *state;
  FAILS(NOT_FOUND, accrt_instance_load_driver(cts->instance, "/nonexistent/libaccrt_none.so"));
  MESSAGE_HAS("/nonexistent/libaccrt_none.so");
}

static void test_driver_symbol_is_missing(void** state) {
  cts_t* cts = *state;
  FAILS(NOT_FOUND, accrt_instance_load_driver(cts->instance, "libm.so.6"));
  MESSAGE_HAS(ACCRT_DRIVER_SYMBOL);
  MESSAGE_HAS("extern \"C\""); /* what C++ needs */
}

static const void* refuse_version(uint32_t max_abi) {
  (void)max_abi;
  return NULL;
}

static void test_driver_refuses_version(void** state) {
  cts_t* cts = *state;
  FAILS(VERSION_MISMATCH, accrt_instance_register_driver(cts->instance, refuse_version));
}

static const void* other_major(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table.struct_size = (uint32_t)sizeof table;
  table.abi_version = ((max_abi >> 16) + 1) << 16;
  table.name = "future";
  return &table;
}

static void test_driver_of_other_major_version(void** state) {
  cts_t* cts = *state;
  FAILS(VERSION_MISMATCH, accrt_instance_register_driver(cts->instance, other_major));
}

static const void* empty_table(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table.struct_size = (uint32_t)sizeof table;
  table.abi_version = max_abi;
  table.name = "hollow";
  return &table;
}

static void test_driver_without_mandatory_functions(void** state) {
  cts_t* cts = *state;
  uint32_t before = 0;
  uint32_t after = 0;
  OK(accrt_instance_device_count(cts->instance, &before));
  const accrt_status_t status = accrt_instance_register_driver(cts->instance, empty_table);
  assert_int_not_equal(status, ACCRT_OK);
  OK(accrt_instance_device_count(cts->instance, &after));
  assert_int_equal(before, after);
}

static void test_same_driver_twice(void** state) {
  cts_t* cts = *state;
  if (!cts_driver_is_loaded())
    return; /* built in: cannot be named by a path */
  FAILS(ALREADY_EXISTS, accrt_instance_load_driver(cts->instance, cts_settings.driver));
  MESSAGE_HAS(cts->info.driver);
}

const cts_test_t cts_device_tests[] = {
    CTS_P(test_info_is_complete, 0),
    CTS_P(test_names_lead_to_devices, 0),
    CTS_P(test_driver_name_is_first_device, 0),
    CTS_P(test_status_is_ok, 0),
    CTS_P(test_smaller_info_struct, 0),
    CTS_P(test_device_outlives_first_reference, 0),
    CTS_P(test_two_instances, 0),
    CTS_P(test_second_device, CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_unknown_device_name, 0),
    CTS_N(test_device_index_beyond_count, 0),
    CTS_N(test_null_arguments, 0),
    CTS_N(test_info_struct_without_size, 0),
    CTS_N(test_unknown_option, 0),
    CTS_N(test_bad_option_value, 0),
    CTS_N(test_driver_file_is_missing, 0),
    CTS_N(test_driver_symbol_is_missing, 0),
    CTS_N(test_driver_refuses_version, 0),
    CTS_N(test_driver_of_other_major_version, 0),
    CTS_N(test_driver_without_mandatory_functions, 0),
    CTS_N(test_same_driver_twice, 0),
    CTS_END,
};
