/* runtime/drivers/common/driver.c - opening drivers and devices. It may not know what a driver
 * does. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/core/safe_open.h"
#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/staging.h"

#define MAX_DEVICES_PER_DRIVER 4096u
#define MAX_DRIVER_TABLE_BYTES 65536u
#define DLPACK_CPU 1u

/* ---- What a driver is lent ---- */

static const char* environment_option(const accrt_driver_environment_t* environment,
                                      const char* key) {
  const accrt_open_driver_t* driver = environment->runtime;
  return accrt_instance_option(driver->instance, key);
}

static void environment_log(const accrt_driver_environment_t* environment, uint32_t level,
                            const char* line) {
  const accrt_open_driver_t* driver = environment->runtime;
  accrt_instance_log(driver->instance, level, driver->name, "%s", line);
}

static accrt_status_t environment_fail(const accrt_driver_environment_t* environment,
                                       accrt_status_t status, int32_t driver_code,
                                       const char* driver_name, const char* operation,
                                       const char* message) {
  const accrt_open_driver_t* driver = environment->runtime;
  return accrt_error_record_driver(status, driver_code, driver_name, operation, driver->name, 0,
                                   "%s", message != NULL ? message : "");
}

static void environment_trace(const accrt_driver_environment_t* environment,
                              const accrt_trace_event_t* event) {
  const accrt_open_driver_t* driver = environment->runtime;
  accrt_instance_trace(driver->instance, event);
}

static void* environment_allocate(void* self, size_t size_bytes, size_t alignment) {
  return accrt_allocate(self, size_bytes, alignment);
}

static void environment_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  const accrt_allocator_t* allocator = self;
  ACCRT_CALL_USER(allocator->deallocate(allocator->self, pointer, size_bytes, alignment));
}

static void fill_environment(accrt_open_driver_t* driver) {
  accrt_instance_t* instance = driver->instance;
  driver->allocator =
      (accrt_allocator_t){&instance->allocator, environment_allocate, environment_deallocate};
  driver->environment = (accrt_driver_environment_t){
      .struct_size = (uint32_t)sizeof driver->environment,
      .abi_version = ACCRT_DRIVER_ABI_VERSION,
      .allocator = &driver->allocator,
      .executor = instance->executor.submit != NULL ? &instance->executor : NULL,
      .runtime = driver,
      .option = environment_option,
      .log = environment_log,
      .fail = environment_fail,
      .trace = environment_trace,
      .tracing = accrt_instance_tracing(instance),
  };
}

/* ---- Options ---- */

static const accrt_open_driver_t* next_driver(accrt_instance_t* instance,
                                              const accrt_open_driver_t* driver) {
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  const accrt_open_driver_t* next = driver == NULL ? accrt_upper(instance)->drivers : driver->next;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return next;
}

static bool knows(const accrt_driver_table_t* table, const char* key, accrt_near_t* near) {
  for (const char* const* known = table->option_keys; known != NULL && *known != NULL; ++known) {
    if (strcmp(*known, key) == 0)
      return true;
    accrt_near_add(near, *known);
  }
  return false;
}

static bool has_prefix(const char* key, const char* name) {
  const size_t length = strlen(name);
  return strncmp(key, name, length) == 0 && key[length] == '.';
}

accrt_status_t accrt_options_check(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < instance->option_count; ++i) {
    const char* key = instance->options[i].key;
    if (key[0] == '+')
      continue;
    accrt_near_t near;
    accrt_near_init(&near, key);
    bool known = accrt_runtime_option_known(key, &near);
    for (const accrt_open_driver_t* driver = next_driver(instance, NULL); driver != NULL && !known;
         driver = next_driver(instance, driver)) {
      known = knows(&driver->table, key, &near);
    }
    if (!known)
      return ACCRT_FAIL(NOT_FOUND, "no driver knows the option '%s'%s", key,
                        accrt_near_text(&near));
  }
  return ACCRT_OK;
}

/* Options with this driver's prefix, whenever it comes. */
static accrt_status_t check_own_options(const accrt_open_driver_t* driver) {
  const accrt_instance_t* instance = driver->instance;
  for (uint32_t i = 0; i < instance->option_count; ++i) {
    const char* key = instance->options[i].key;
    if (key[0] == '+')
      key += 1;
    if (!has_prefix(key, driver->name))
      continue;
    accrt_near_t near;
    accrt_near_init(&near, key);
    if (!knows(&driver->table, key, &near)) {
      return ACCRT_FAIL(NOT_FOUND, "driver '%s' does not know the option '%s'%s", driver->name, key,
                        accrt_near_text(&near));
    }
  }
  return ACCRT_OK;
}

/* ---- Negotiation ---- */

static accrt_status_t check_version(const accrt_driver_table_t* table, const char* where) {
  const uint32_t major = table->abi_version >> 16, minor = table->abi_version & 0xFFFFu;
  if (major == ACCRT_DRIVER_ABI_MAJOR && minor >= ACCRT_DRIVER_ABI_MINOR_LEAST &&
      minor <= ACCRT_DRIVER_ABI_MINOR)
    return ACCRT_OK;
  return ACCRT_FAIL(VERSION_MISMATCH,
                    "%s was built for driver ABI %" PRIu32 ".%" PRIu32
                    "; this runtime speaks %d.%d to %d.%d",
                    where, major, minor, ACCRT_DRIVER_ABI_MAJOR, ACCRT_DRIVER_ABI_MINOR_LEAST,
                    ACCRT_DRIVER_ABI_MAJOR, ACCRT_DRIVER_ABI_MINOR);
}

/* Optional functions come in groups: all of one, or none. The first that is missing of a group that
 * is there, or NULL. */
static const char* missing_of_groups(const accrt_driver_table_t* table) {
#define NEEDS(function, other)                                                                     \
  if (table->function != NULL && table->other == NULL)                                             \
  return #other
#define PAIR(function, other)                                                                      \
  NEEDS(function, other);                                                                          \
  NEEDS(other, function)
  NEEDS(memory_import, memory_unimport);
  PAIR(module_load, module_unload);
  PAIR(module_load, module_find);
  PAIR(queue_progress, queue_wait);
  PAIR(event_create, event_destroy);
  PAIR(event_create, event_record);
  PAIR(event_create, event_wait);
  PAIR(event_create, event_query);
  PAIR(event_create, event_synchronize);
  PAIR(event_create, event_elapsed);
  NEEDS(event_create, queue_progress);
  PAIR(launch_create, launch_destroy);
  PAIR(launch_create, queue_launch);
  NEEDS(launch_create, queue_progress);
  PAIR(queue_wrap, queue_native);
  PAIR(memory_allocate_exportable, memory_export);
  PAIR(memory_allocate_exportable, memory_import_handle);
  NEEDS(memory_import_handle, memory_unimport);
#undef PAIR
#undef NEEDS
  return NULL;
}

static const char* missing_function(const accrt_driver_table_t* table) {
#define MANDATORY(function)                                                                        \
  if (table->function == NULL)                                                                     \
  return #function
  MANDATORY(open);
  MANDATORY(close);
  MANDATORY(device_count);
  MANDATORY(device_open);
  MANDATORY(device_close);
  MANDATORY(device_info);
  MANDATORY(memory_info);
  MANDATORY(memory_allocate);
  MANDATORY(memory_free);
  MANDATORY(queue_create);
  MANDATORY(queue_destroy);
  MANDATORY(queue_enqueue);
  MANDATORY(queue_execute);
  MANDATORY(queue_notify);
  MANDATORY(queue_reset);
  MANDATORY(list_create);
  MANDATORY(list_destroy);
#undef MANDATORY
  return missing_of_groups(table);
}

static bool good_name(const char* name) {
  size_t length = 0;
  for (; name[length] != '\0'; ++length) {
    const char c = name[length];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
      return false;
  }
  return length > 0 && length < sizeof((accrt_open_driver_t*)NULL)->name;
}

/* The driver's table as one of this library's size: what an older driver lacks is NULL. */
static accrt_status_t copy_table(const accrt_driver_table_t* table, const char* where,
                                 accrt_driver_table_t* out_table) {
  const size_t head_bytes = offsetof(accrt_driver_table_t, name);
  if (table->struct_size < head_bytes || table->struct_size > MAX_DRIVER_TABLE_BYTES ||
      table->struct_size % 8 != 0) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: a driver table of %" PRIu32 " bytes; this runtime's has %zu", where,
                      table->struct_size, sizeof *out_table);
  }
  memset(out_table, 0, sizeof *out_table);
  memcpy(out_table, table,
         table->struct_size < sizeof *out_table ? table->struct_size : sizeof *out_table);
  ACCRT_TRY(check_version(out_table, where));
  if (out_table->name == NULL || !good_name(out_table->name)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: a driver's name has 1 to 31 letters, digits and '_', not '%s'", where,
                      out_table->name != NULL ? out_table->name : "(null)");
  }
  const char* missing = missing_function(out_table);
  if (missing != NULL)
    return ACCRT_FAIL(INVALID_FORMAT, "%s: driver '%s' lacks the function %s", where,
                      out_table->name, missing);
  return ACCRT_OK;
}

/* ---- Opening ---- */

static const accrt_open_driver_t* find_driver(accrt_instance_t* instance, const char* name) {
  const accrt_open_driver_t* driver = next_driver(instance, NULL);
  while (driver != NULL && strcmp(driver->name, name) != 0)
    driver = next_driver(instance, driver);
  return driver;
}

static void free_devices(accrt_instance_t* instance, accrt_device_t** devices, uint32_t count) {
  if (devices == NULL)
    return;
  for (uint32_t i = 0; i < count; ++i)
    accrt_free(&instance->allocator, devices[i], sizeof(accrt_upper_device_t));
  accrt_free_array(&instance->allocator, devices, count, sizeof *devices);
}

static accrt_status_t make_devices(accrt_open_driver_t* driver, accrt_device_t*** out_devices) {
  accrt_instance_t* instance = driver->instance;
  void* memory;
  *out_devices = NULL;
  accrt_status_t status = accrt_alloc_array(&instance->allocator, driver->device_count,
                                            sizeof(accrt_device_t*), &memory);
  if (status != ACCRT_OK || memory == NULL)
    return status;
  accrt_device_t** devices = memory;
  for (uint32_t i = 0; i < driver->device_count && status == ACCRT_OK; ++i) {
    status = accrt_alloc(&instance->allocator, sizeof(accrt_upper_device_t), &memory);
    if (status != ACCRT_OK)
      break;
    accrt_upper_device_t* upper = memory;
    accrt_device_t* device = &upper->device;
    devices[i] = device;
    device->instance = instance;
    device->above = &accrt_memory_above;
    device->table = &driver->table;
    upper->driver = driver;
    upper->index = i;
    accrt_mutex_init(&upper->point_lock, ACCRT_LOCK_SPARE_POINTS);
    accrt_mutex_init(&upper->observer_lock, ACCRT_LOCK_OBSERVER);
    accrt_pool_set_init(&device->pools);
  }
  if (status == ACCRT_OK) {
    *out_devices = devices;
  } else {
    free_devices(instance, devices, driver->device_count);
  }
  return status;
}

/* Adds `count` devices: `bigger`, which has room for them, replaces the instance's array. Under the
 * instance's lock. */
static void append_devices(accrt_instance_t* instance, accrt_device_t** bigger, size_t capacity,
                           accrt_device_t** devices, uint32_t count) {
  ACCRT_ASSERT_HELD(&accrt_upper(instance)->lock);
  if (accrt_upper(instance)->device_count > 0)
    memcpy(bigger, accrt_upper(instance)->devices,
           accrt_upper(instance)->device_count * sizeof *bigger);
  if (count > 0)
    memcpy(bigger + accrt_upper(instance)->device_count, devices, count * sizeof *bigger);
  accrt_upper(instance)->devices = bigger;
  accrt_upper(instance)->device_capacity = capacity;
  accrt_upper(instance)->device_count += count;
}

/* Under the instance's lock. */
static void append_driver(accrt_instance_t* instance, accrt_open_driver_t* driver) {
  ACCRT_ASSERT_HELD(&accrt_upper(instance)->lock);
  accrt_open_driver_t** link = &accrt_upper(instance)->drivers;
  while (*link != NULL)
    link = &(*link)->next;
  *link = driver;
}

/* Publishes devices, and the driver when it is `new`. Another thread may have opened one of the
 * same name meanwhile. */
static accrt_status_t publish(accrt_instance_t* instance, accrt_open_driver_t* driver,
                              accrt_device_t** devices, bool new) {
  for (;;) {
    accrt_mutex_lock(&accrt_upper(instance)->lock);
    const uint32_t seen = accrt_upper(instance)->device_count;
    accrt_mutex_unlock(&accrt_upper(instance)->lock);
    const size_t capacity = (size_t)seen + driver->device_count;
    void* bigger;
    ACCRT_TRY(accrt_alloc_array(&instance->allocator, capacity, sizeof(accrt_device_t*), &bigger));
    accrt_device_t** old = bigger;
    size_t old_capacity = capacity;
    bool exists = false, done = false;
    accrt_mutex_lock(&accrt_upper(instance)->lock);
    for (const accrt_open_driver_t* other = accrt_upper(instance)->drivers; other != NULL && new;
         other = other->next) {
      exists |= strcmp(other->name, driver->name) == 0;
    }
    if (!exists && accrt_upper(instance)->device_count == seen) {
      old = accrt_upper(instance)->devices;
      old_capacity = accrt_upper(instance)->device_capacity;
      append_devices(instance, bigger, capacity, devices, driver->device_count);
      if (new)
        append_driver(instance, driver);
      done = true;
    }
    accrt_mutex_unlock(&accrt_upper(instance)->lock);
    accrt_free_array(&instance->allocator, old, old_capacity, sizeof(accrt_device_t*));
    if (done)
      return ACCRT_OK;
    if (exists)
      return ACCRT_FAIL(ALREADY_EXISTS, "a driver of the name '%s' is open already", driver->name);
  }
}

/* Asks the driver for its devices. When there are none, its reason is kept. */
static accrt_status_t count_devices(accrt_open_driver_t* driver, accrt_device_t*** out_devices) {
  const accrt_error_t saved = *accrt_error_current();
  accrt_clear_error();
  driver->device_count = driver->table.device_count(driver->self);
  const accrt_error_t* error = accrt_error_current();
  if (driver->device_count == 0 && error->status != ACCRT_OK) {
    driver->absent_status = error->status;
    driver->absent_code = error->driver_code;
    (void)snprintf(driver->absent_name, sizeof driver->absent_name, "%s", error->driver_name);
    (void)snprintf(driver->absent, sizeof driver->absent, "%s", error->message);
  }
  (void)accrt_error_restore(&saved);
  if (driver->device_count > MAX_DEVICES_PER_DRIVER) {
    return ACCRT_FAIL(DRIVER, "driver '%s' claims %" PRIu32 " devices", driver->name,
                      driver->device_count);
  }
  return make_devices(driver, out_devices);
}

static accrt_status_t open_driver(accrt_open_driver_t* driver, bool lazy,
                                  accrt_device_t*** out_devices) {
  accrt_status_t status = driver->table.open(&driver->environment, &driver->self);
  if (status != ACCRT_OK) {
    driver->self = NULL;
    accrt_error_prefix("driver '%s'", driver->name);
    return status;
  }
  if (lazy)
    return ACCRT_OK;
  atomic_init(&driver->counted, ACCRT_DEVICES_COUNTED);
  return count_devices(driver, out_devices);
}

static void log_absent(const accrt_open_driver_t* driver) {
  /* A machine without such devices is not worth a warning; one whose driver does not work is. */
  const uint32_t level =
      driver->absent_status == ACCRT_ERROR_NOT_FOUND ? ACCRT_LOG_INFO : ACCRT_LOG_WARNING;
  if (driver->absent_status != ACCRT_OK)
    accrt_instance_log(driver->instance, level, driver->name, "no devices: %s", driver->absent);
}

/* Counts the devices of a lazy driver. One thread does, the others wait for it: the driver is
 * called under no lock. */
static accrt_status_t ensure_counted(accrt_open_driver_t* driver) {
  for (;;) {
    unsigned state = ACCRT_DEVICES_UNKNOWN;
    /* Acquire pairs with the release below. */
    if (atomic_compare_exchange_strong_explicit(&driver->counted, &state, ACCRT_DEVICES_COUNTING,
                                                memory_order_acquire, memory_order_acquire)) {
      accrt_device_t** devices = NULL;
      accrt_status_t status = count_devices(driver, &devices);
      if (status == ACCRT_OK)
        status = publish(driver->instance, driver, devices, false);
      if (status == ACCRT_OK) {
        accrt_free_array(&driver->instance->allocator, devices, driver->device_count,
                         sizeof *devices);
      } else {
        free_devices(driver->instance, devices, driver->device_count);
      }
      /* Release pairs with the acquires of threads that find them counted. */
      atomic_store_explicit(&driver->counted,
                            status == ACCRT_OK ? ACCRT_DEVICES_COUNTED : ACCRT_DEVICES_UNKNOWN,
                            memory_order_release);
      accrt_futex_wake(&driver->counted, INT32_MAX);
      log_absent(driver);
      return status;
    }
    if (state == ACCRT_DEVICES_COUNTED)
      return ACCRT_OK;
    accrt_futex_wait(&driver->counted, ACCRT_DEVICES_COUNTING, UINT64_MAX);
  }
}

accrt_status_t accrt_driver_add(accrt_instance_t* instance, accrt_driver_query_fn_t query,
                                const char* where, bool lazy) {
  const accrt_driver_table_t* table = query(ACCRT_DRIVER_ABI_VERSION);
  if (table == NULL) {
    return ACCRT_FAIL(
        VERSION_MISMATCH,
        "%s: the driver refuses this runtime, which speaks driver ABI %d.%d to %d.%d; "
        "it needs another",
        where, ACCRT_DRIVER_ABI_MAJOR, ACCRT_DRIVER_ABI_MINOR_LEAST, ACCRT_DRIVER_ABI_MAJOR,
        ACCRT_DRIVER_ABI_MINOR);
  }
  accrt_driver_table_t local;
  ACCRT_TRY(copy_table(table, where, &local));
  if (find_driver(instance, local.name) != NULL) {
    return ACCRT_FAIL(ALREADY_EXISTS, "a driver of the name '%s' is open already", local.name);
  }
  accrt_open_driver_t* driver;
  ACCRT_TRY(ACCRT_NEW(&instance->allocator, &driver));
  accrt_device_t** devices = NULL;
  driver->instance = instance;
  driver->table = local;
  (void)snprintf(driver->name, sizeof driver->name, "%s", local.name);
  fill_environment(driver);
  accrt_status_t status = check_own_options(driver);
  if (status == ACCRT_OK)
    status = open_driver(driver, lazy, &devices);
  if (status == ACCRT_OK)
    status = publish(instance, driver, devices, true);
  if (status != ACCRT_OK) {
    free_devices(instance, devices, driver->device_count);
    if (driver->self != NULL)
      local.close(driver->self);
    accrt_free(&instance->allocator, driver, sizeof *driver);
    return status;
  }
  accrt_free_array(&instance->allocator, devices, driver->device_count, sizeof *devices);
  return ACCRT_OK;
}

accrt_status_t accrt_instance_register_driver(accrt_instance_t* instance,
                                              const void* (*query)(uint32_t max_abi)) {
  ACCRT_ENTER(instance);
  if (query == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "query is NULL");
  return accrt_driver_add(instance, (accrt_driver_query_fn_t)query, "registered driver", false);
}

accrt_status_t accrt_instance_load_driver(accrt_instance_t* instance, const char* path) {
  ACCRT_ENTER(instance, path);
  /* Never closed: threads and callbacks of a driver may outlive any point where that would be
   * safe. */
  void* library;
  ACCRT_TRY(accrt_library_open(path, ACCRT_LIBRARY_PATH_OR_SONAME, &library));
  void* symbol = dlsym(library, ACCRT_DRIVER_SYMBOL);
  if (symbol == NULL)
    return ACCRT_FAIL(
        NOT_FOUND, "%s: it does not export " ACCRT_DRIVER_SYMBOL " (C++ needs extern \"C\")", path);
  accrt_driver_query_fn_t query;
  memcpy(&query, &symbol, sizeof query);
  return accrt_driver_add(instance, query, path, false);
}

/* ---- Devices ---- */

/* Of all drivers. */
static accrt_status_t ensure_all_counted(accrt_instance_t* instance) {
  accrt_status_t status = ACCRT_OK;
  for (const accrt_open_driver_t* driver = next_driver(instance, NULL);
       driver != NULL && status == ACCRT_OK; driver = next_driver(instance, driver)) {
    status = ensure_counted((accrt_open_driver_t*)(uintptr_t)driver);
  }
  return status;
}

accrt_status_t accrt_instance_device_count(accrt_instance_t* instance, uint32_t* out_count) {
  if (out_count != NULL)
    *out_count = 0;
  ACCRT_ENTER(out_count, instance);
  ACCRT_TRY(ensure_all_counted(instance));
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  *out_count = accrt_upper(instance)->device_count;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return ACCRT_OK;
}

static accrt_status_t open_device(accrt_device_t* device) {
  accrt_open_driver_t* driver = accrt_upper_device(device)->driver;
  const accrt_status_t status = driver->table.device_open(
      driver->self, accrt_upper_device(device)->index, &device->driver_device);
  if (status != ACCRT_OK) {
    accrt_error_prefix("%s:%" PRIu32, driver->name, accrt_upper_device(device)->index);
    return status;
  }
  accrt_device_info_t* info = &device->info;
  *info = (accrt_device_info_t)ACCRT_DEVICE_INFO_INIT;
  driver->table.device_info(device->driver_device, info);
  info->struct_size = (uint32_t)sizeof *info;
  info->next = NULL;
  (void)snprintf(info->name, sizeof info->name, "%s:%" PRIu32, driver->name,
                 accrt_upper_device(device)->index);
  (void)snprintf(info->driver, sizeof info->driver, "%s", driver->name);
  info->index = accrt_upper_device(device)->index;
  /* Drivers of before 0.2 leave it open. */
  if (info->dlpack_device_type == 0 && (info->flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
    info->dlpack_device_type = DLPACK_CPU;
  if (!accrt_is_power_of_two(info->min_alignment_bytes))
    info->min_alignment_bytes = ACCRT_POOL_MIN_ALIGNMENT;
  accrt_upper_device(device)->caller_runs =
      (info->flags & ACCRT_DEVICE_FLAG_CALLER_RUNS) != 0 && driver->table.device_progress != NULL;
  /* A trace has the end of every operation. */
  accrt_upper_device(device)->native_events = driver->table.event_create != NULL &&
                                              !accrt_upper_device(device)->caller_runs &&
                                              accrt_instance_tracing(device->instance) == 0;
  accrt_upper_device(device)->enqueue_runs = (info->flags & ACCRT_DEVICE_FLAG_ENQUEUE_RUNS) != 0;
  if (accrt_upper_device(device)->caller_runs)
    atomic_fetch_add_explicit(&accrt_upper(device->instance)->caller_runs, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&accrt_upper(device->instance)->opened, 1, memory_order_relaxed);
  return ACCRT_OK;
}

/* One thread opens, the others wait for it: the driver is called under no lock. */
static accrt_status_t ensure_open(accrt_device_t* device) {
  for (;;) {
    unsigned state = ACCRT_DEVICE_CLOSED;
    /* Acquire pairs with the release below. */
    if (atomic_compare_exchange_strong_explicit(&accrt_upper_device(device)->state, &state,
                                                ACCRT_DEVICE_OPENING, memory_order_acquire,
                                                memory_order_acquire)) {
      const accrt_status_t status = open_device(device);
      /* Release pairs with the acquires of threads that find the device open. */
      atomic_store_explicit(&accrt_upper_device(device)->state,
                            status == ACCRT_OK ? ACCRT_DEVICE_OPEN : ACCRT_DEVICE_CLOSED,
                            memory_order_release);
      accrt_futex_wake(&accrt_upper_device(device)->state, INT32_MAX);
      return status;
    }
    if (state == ACCRT_DEVICE_OPEN)
      return ACCRT_OK;
    accrt_futex_wait(&accrt_upper_device(device)->state, ACCRT_DEVICE_OPENING, UINT64_MAX);
  }
}

static accrt_status_t give_device(accrt_device_t* device, accrt_device_t** out_device) {
  ACCRT_TRY(ensure_open(device));
  *out_device = device;
  return ACCRT_OK;
}

static accrt_device_t* device_of_index(accrt_instance_t* instance, uint32_t index,
                                       uint32_t* out_count) {
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  *out_count = accrt_upper(instance)->device_count;
  accrt_device_t* device = index < *out_count ? accrt_upper(instance)->devices[index] : NULL;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return device;
}

accrt_status_t accrt_instance_device(accrt_instance_t* instance, uint32_t index,
                                     accrt_device_t** out_device) {
  if (out_device != NULL)
    *out_device = NULL;
  ACCRT_ENTER(out_device, instance);
  uint32_t count;
  accrt_device_t* device = device_of_index(instance, index, &count);
  if (device == NULL) {
    /* It may be of a driver that has not counted its devices yet. */
    ACCRT_TRY(ensure_all_counted(instance));
    device = device_of_index(instance, index, &count);
  }
  if (device == NULL)
    return ACCRT_FAIL(OUT_OF_RANGE, "device %" PRIu32 " of %" PRIu32, index, count);
  return give_device(device, out_device);
}

/* "host" is "host:0". */
static bool is_named(const accrt_device_t* device, const char* name) {
  char full[48];
  (void)snprintf(full, sizeof full, "%s:%" PRIu32, accrt_upper_device(device)->driver->name,
                 accrt_upper_device(device)->index);
  return strcmp(full, name) == 0 || (accrt_upper_device(device)->index == 0 &&
                                     strcmp(accrt_upper_device(device)->driver->name, name) == 0);
}

/* The driver that a device's name is of: its own name, alone or with an index. */
static accrt_open_driver_t* driver_of_name(accrt_instance_t* instance, const char* name) {
  const accrt_open_driver_t* driver = next_driver(instance, NULL);
  for (; driver != NULL; driver = next_driver(instance, driver)) {
    const size_t length = strlen(driver->name);
    if (strncmp(driver->name, name, length) == 0 && (name[length] == '\0' || name[length] == ':'))
      break;
  }
  return (accrt_open_driver_t*)(uintptr_t)driver;
}

/* A driver without devices has a reason, and a status of its own for it. */
static accrt_status_t fail_absent(const accrt_open_driver_t* driver, const char* name) {
  return accrt_error_record_driver(driver->absent_status, driver->absent_code, driver->absent_name,
                                   accrt_error_operation(), __FILE__, (uint32_t)__LINE__,
                                   "no device '%.80s': %s", name, driver->absent);
}

static accrt_status_t fail_not_found(accrt_instance_t* instance, const char* name) {
  const accrt_open_driver_t* driver = driver_of_name(instance, name);
  if (driver != NULL && driver->device_count == 0 && driver->absent_status != ACCRT_OK)
    return fail_absent(driver, name);
  char text[256] = "";
  size_t length = 0;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  for (uint32_t i = 0; i < accrt_upper(instance)->device_count && length < sizeof text; ++i) {
    const accrt_device_t* device = accrt_upper(instance)->devices[i];
    const int written =
        snprintf(text + length, sizeof text - length, "%s%s:%" PRIu32, i > 0 ? ", " : "",
                 accrt_upper_device(device)->driver->name, accrt_upper_device(device)->index);
    length += written > 0 ? (size_t)written : 0;
  }
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return ACCRT_FAIL(NOT_FOUND, "no device '%.80s'; there is: %s", name,
                    text[0] != '\0' ? text : "none");
}

accrt_status_t accrt_instance_device_by_name(accrt_instance_t* instance, const char* name,
                                             accrt_device_t** out_device) {
  if (out_device != NULL)
    *out_device = NULL;
  ACCRT_ENTER(out_device, instance, name);
  accrt_open_driver_t* driver = driver_of_name(instance, name);
  ACCRT_TRY(driver != NULL ? ensure_counted(driver) : ACCRT_OK);
  accrt_device_t* found = NULL;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  for (uint32_t i = 0; i < accrt_upper(instance)->device_count && found == NULL; ++i) {
    if (is_named(accrt_upper(instance)->devices[i], name))
      found = accrt_upper(instance)->devices[i];
  }
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return found != NULL ? give_device(found, out_device) : fail_not_found(instance, name);
}

/* Devices live as long as their instance: a reference of one is a reference of the other. */
accrt_device_t* accrt_device_ref(accrt_device_t* device) {
  (void)accrt_instance_retain(device->instance);
  return device;
}

void accrt_device_unref(accrt_device_t* device) {
  accrt_instance_release(device->instance);
}

accrt_device_t* accrt_device_retain(accrt_device_t* device) {
  if (device == NULL || accrt_forked())
    return device;
  atomic_fetch_add_explicit(&accrt_upper_device(device)->retained, 1, memory_order_relaxed);
  return accrt_device_ref(device);
}

/* A caller that was lent a device has no reference to drop: its release does nothing. */
void accrt_device_release(accrt_device_t* device) {
  if (device == NULL || accrt_forked())
    return;
  unsigned retained =
      atomic_load_explicit(&accrt_upper_device(device)->retained, memory_order_relaxed);
  while (retained != 0) {
    /* Relaxed: the instance's count orders what was done with the device before its end. */
    if (atomic_compare_exchange_weak_explicit(&accrt_upper_device(device)->retained, &retained,
                                              retained - 1, memory_order_relaxed,
                                              memory_order_relaxed)) {
      accrt_device_unref(device);
      return;
    }
  }
}

accrt_status_t accrt_device_info(accrt_device_t* device, accrt_device_info_t* out_info) {
  ACCRT_ENTER(device);
  return accrt_struct_write("accrt_device_info_t", out_info, &device->info, sizeof device->info);
}

accrt_status_t accrt_device_enable_peer(accrt_device_t* device, accrt_device_t* peer) {
  ACCRT_ENTER(device, peer);
  if (device == peer)
    return ACCRT_OK;
  if (device->instance != peer->instance)
    return accrt_device_check_same("device", device, "peer", peer);
  if (accrt_device_is_lost(device) || accrt_device_is_lost(peer)) {
    return accrt_device_fail_lost(accrt_device_is_lost(device) ? device : peer);
  }
  const accrt_driver_table_t* table = device->table;
  if (accrt_upper_device(device)->driver != accrt_upper_device(peer)->driver ||
      table->device_enable_peer == NULL) {
    return ACCRT_FAIL(UNSUPPORTED, "%s cannot reach memory of %s", device->info.name,
                      peer->info.name);
  }
  accrt_status_t status = table->device_enable_peer(device->driver_device, peer->driver_device);
  accrt_device_note_status(device, status);
  if (status != ACCRT_OK) {
    accrt_error_prefix("%s to %s", device->info.name, peer->info.name);
  } else if (accrt_upper_device(peer)->index < 64) {
    /* Relaxed: the thread that enabled it has passed that on to those that launch. */
    atomic_fetch_or_explicit(&accrt_upper_device(device)->peers,
                             UINT64_C(1) << accrt_upper_device(peer)->index, memory_order_relaxed);
  }
  return status;
}

accrt_instance_t* accrt_device_instance(accrt_device_t* device) {
  return device != NULL ? device->instance : NULL;
}

accrt_status_t accrt_device_check_same(const char* what, const accrt_device_t* device,
                                       const char* other_what, const accrt_device_t* other) {
  if (device == other)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "the %s is of %s, the %s of %s%s", what, device->info.name,
                    other_what, other->info.name,
                    device->instance != other->instance ? " of another instance" : "");
}

void accrt_device_note_status(accrt_device_t* device, accrt_status_t status) {
  if (status == ACCRT_ERROR_DEVICE_LOST)
    atomic_store_explicit(&device->lost, 1, memory_order_relaxed);
}

accrt_status_t accrt_inner_device_status(accrt_device_t* device) {
  ACCRT_CHECK(device);
  if (accrt_device_is_lost(device))
    return accrt_device_fail_lost(device);
  if (device->table->device_status == NULL)
    return ACCRT_OK;
  accrt_clear_error();
  accrt_status_t status = device->table->device_status(device->driver_device);
  accrt_device_note_status(device, status);
  if (status == ACCRT_OK || accrt_error_current()->status == status)
    return status;
  return ACCRT_FAIL_STATUS(status, "%s is gone", device->info.name);
}

accrt_status_t accrt_device_status(accrt_device_t* device) {
  ACCRT_ENTER_INNER(accrt_inner_device_status(device));
}

accrt_status_t accrt_device_fail_lost(accrt_device_t* device) {
  accrt_clear_error();
  if (device->table->device_status != NULL)
    (void)device->table->device_status(device->driver_device);
  if (accrt_error_current()->status == ACCRT_ERROR_DEVICE_LOST)
    return ACCRT_ERROR_DEVICE_LOST;
  return ACCRT_FAIL(DEVICE_LOST, "%s is lost", device->info.name);
}

void accrt_instance_close_drivers(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < accrt_upper(instance)->device_count; ++i) {
    accrt_device_t* device = accrt_upper(instance)->devices[i];
    if (atomic_load_explicit(&accrt_upper_device(device)->state, memory_order_acquire) ==
        ACCRT_DEVICE_OPEN) {
      accrt_staging_destroy(
          atomic_load_explicit(&accrt_upper_device(device)->staging, memory_order_acquire));
      accrt_device_close_points(device);
      accrt_pool_set_deinit(&device->pools);
      device->table->device_close(device->driver_device);
    }
    accrt_free(&instance->allocator, device, sizeof(accrt_upper_device_t));
  }
  accrt_free_array(&instance->allocator, accrt_upper(instance)->devices,
                   accrt_upper(instance)->device_capacity, sizeof *accrt_upper(instance)->devices);
  accrt_open_driver_t* driver = accrt_upper(instance)->drivers;
  while (driver != NULL) {
    accrt_open_driver_t* next = driver->next;
    driver->table.close(driver->self);
    accrt_free(&instance->allocator, driver, sizeof *driver);
    driver = next;
  }
}
