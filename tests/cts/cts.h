/* tests/cts/cts.h - what the parts of the conformance suite share: the fixture, checks,
 * registration.
 *
 * The suite uses public headers and CMocka only. Each part exports an array of tests; each test has
 * a fixture of its own (instance, device, stream) and is checked for what it leaves behind: host
 * memory, file descriptors, threads.
 */
#ifndef ACCRT_CTS_H_
#define ACCRT_CTS_H_

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"
#include "accrt/sys/driver.h"

/* ---- Tests ---- */

#define CTS_POSITIVE 0u /* what must work */
#define CTS_NEGATIVE                                                                               \
  1u /* what must be refused or fail, with the right status and record, and lose nothing */
#define CTS_OBLIGATION 2u /* what accrt/sys/driver.h asks of a driver, through its table */

/* What a test needs of the device; it is skipped, and counted as such, where that is missing. */
#define CTS_NEEDS_KERNELS 1u /* runs the suite's kernels: on the host, or from its device module */
#define CTS_NEEDS_TIMESTAMPS 2u  /* events can time */
#define CTS_NEEDS_HOST_MEMORY 4u /* plain pointers are used in place */
#define CTS_NEEDS_THREADS 8u     /* progresses without the caller */
#define CTS_NEEDS_TWO_DEVICES 16u
#define CTS_NEEDS_HOST_KERNELS 32u /* runs host workgroup kernels */
#define CTS_NEEDS_MODULES 64u      /* loads the suite's device module */
#define CTS_NEEDS_NATIVE 128u      /* has native queues */
#define CTS_NEEDS_TRAITS 256u      /* loads traits.ptx: clusters, cooperative grids, overlap */
#define CTS_NEEDS_TABLE 512u    /* the driver's table itself: its state is a direct_t (direct.h) */
#define CTS_NEEDS_TRACING 1024u /* with CTS_NEEDS_TABLE: an environment that traces */

typedef struct cts_test {
  const char* name;
  void (*body)(void** state);
  uint32_t kind;
  uint32_t needs;
} cts_test_t;

#define CTS_P(function, needs)                                                                     \
  { #function, function, CTS_POSITIVE, needs }
#define CTS_N(function, needs)                                                                     \
  { #function, function, CTS_NEGATIVE, needs }
#define CTS_O(function, needs)                                                                     \
  { #function, function, CTS_OBLIGATION, needs }
#define CTS_END                                                                                    \
  { NULL, NULL, 0, 0 }

/* The parts. */
extern const cts_test_t cts_device_tests[];
extern const cts_test_t cts_memory_tests[];
extern const cts_test_t cts_copy_tests[];
extern const cts_test_t cts_stream_tests[];
extern const cts_test_t cts_semaphore_tests[];
extern const cts_test_t cts_launch_tests[];
extern const cts_test_t cts_command_tests[];
extern const cts_test_t cts_prepared_tests[];
extern const cts_test_t cts_module_tests[];
extern const cts_test_t cts_interop_tests[];
extern const cts_test_t cts_traits_tests[];
extern const cts_test_t cts_invoke_tests[];
extern const cts_test_t cts_direct_tests[];
extern const cts_test_t cts_direct_value_tests[];
extern const cts_test_t cts_direct_memory_tests[];
extern const cts_test_t cts_direct_event_tests[];
extern const cts_test_t cts_direct_amount_tests[];
extern const cts_test_t cts_direct_group_tests[];
extern const cts_test_t cts_direct_rule_tests[];
extern const cts_test_t cts_direct_state_tests[];
extern const cts_test_t cts_direct_corner_tests[];
extern const cts_test_t cts_direct_model_tests[];
extern const cts_test_t cts_direct_bound_tests[];
extern const cts_test_t cts_direct_large_tests[];
extern const cts_test_t cts_direct_module_tests[];
extern const cts_test_t cts_direct_capture_tests[];
extern const cts_test_t cts_direct_operator_tests[];
extern const cts_test_t cts_direct_manner_tests[];

/* ---- Fixture ---- */

typedef struct cts {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_device_t* second; /* with CTS_NEEDS_TWO_DEVICES */
  accrt_stream_t* stream;
  accrt_pool_t* pool; /* borrowed: the device's own */
  accrt_device_info_t info;
  accrt_kernel_pack_t* pack; /* with CTS_NEEDS_KERNELS: cts_pack_query, or the device module */
  uint32_t needs;
  /* Before the fixture was made. */
  uint32_t fd_count;
  uint32_t thread_count;
  atomic_long live_allocations;
  atomic_long allocation_count;
} cts_t;

/* How the suite was called. */
typedef struct cts_settings {
  const char* driver; /* a built-in driver's name, or a path */
  const char* driver_name;
  const char* device;
  accrt_option_t options[16];
  uint32_t option_count;
  uint32_t executor_threads; /* 0: none */
} cts_settings_t;
extern cts_settings_t cts_settings;

/* Makes an instance as the command line says, with the driver opened. */
accrt_status_t cts_instance_create(cts_t* cts, accrt_instance_t** out_instance);
bool cts_driver_is_loaded(void);

/* ---- Checks ---- */

void cts_check_ok(accrt_status_t status, const char* expression, const char* file, int line);
void cts_check_fails(accrt_status_t status, accrt_status_t expected, const char* expression,
                     const char* file, int line);
void cts_check_message(const char* part, const char* file, int line);
#define OK(expression) cts_check_ok((expression), #expression, __FILE__, __LINE__)
/* Fails with this status and a record that says so in one line. */
#define FAILS(name, expression)                                                                    \
  cts_check_fails((expression), ACCRT_ERROR_##name, #expression, __FILE__, __LINE__)
/* The record of the last failure has this in its message. */
#define MESSAGE_HAS(part) cts_check_message(part, __FILE__, __LINE__)

/* ---- Conveniences ---- */

accrt_buffer_t* cts_buffer(cts_t* cts, uint64_t size_bytes);
void cts_upload(cts_t* cts, accrt_buffer_t* buffer, uint64_t offset_bytes, const void* data,
                uint64_t size_bytes);
void cts_download(cts_t* cts, accrt_buffer_t* buffer, uint64_t offset_bytes, void* data,
                  uint64_t size_bytes);
void cts_sync(accrt_stream_t* stream);
accrt_stream_t* cts_stream(cts_t* cts);
accrt_semaphore_t* cts_semaphore(cts_t* cts, uint64_t value);
static inline accrt_place_t cts_at(accrt_buffer_t* buffer, uint64_t offset_bytes) {
  return (accrt_place_t){.buffer = buffer, .offset_bytes = offset_bytes};
}
static inline accrt_place_t cts_host(void* pointer) {
  return (accrt_place_t){.pointer = pointer};
}
/* A failing stream: its record is {status, message}; returns the semaphore that failed it. */
void cts_poison(cts_t* cts, accrt_stream_t* stream, accrt_status_t status, const char* message);
void cts_sleep_ms(uint32_t milliseconds);
uint64_t cts_now_ns(void);
/* Printed for every random test; ACCRT_TEST_SEED repeats it. */
uint64_t cts_seed(void);
uint64_t cts_random(uint64_t* state);
uint32_t cts_count_entries(const char* folder);
/* A signal whose handler is not that of the program's start; 0: none. Not of those that crash. */
int cts_changed_signal(void);
/* Another process of this program opens the memory, finds CTS_OPENED_BEFORE in all of its first 5000 words, and leaves
 * CTS_OPENED_AFTER there. 0: it did. */
#define CTS_OPENED_BEFORE 0x5A5A1234u
#define CTS_OPENED_AFTER 0x0BADCAFEu
int cts_open_elsewhere(const accrt_memory_handle_t* handle);

#define CTS_SECOND UINT64_C(1000000000)
/* Long enough for any machine, short enough to tell a hang. */
#define CTS_PATIENCE (60 * CTS_SECOND)
#define CTS_MOMENT (20 * UINT64_C(1000000))

/* ---- The suite's kernels (kernels.c) ---- */

const accrt_kernel_pack_table_t* cts_pack_query(uint32_t max_abi,
                                                const accrt_kernel_environment_t* environment);
accrt_kernel_t* cts_kernel(cts_t* cts, const char* name);
/* What the device module has; `options` then only needs an image. Its kernels are those of the pack that run anywhere. */
void cts_module_options(accrt_module_options_t* options);
/* True for devices that load the suite's module (kernels.ptx). */
bool cts_loads_modules(const accrt_device_info_t* info);
/* And traits.ptx: sm_90 and later. */
bool cts_has_traits(const accrt_device_info_t* info);
static inline bool cts_runs_host_kernels(const cts_t* cts) {
  return (cts->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0;
}

typedef struct cts_everything_params {
  float* buffer;                /* read and written */
  accrt_kernel_tensor_t tensor; /* read */
  uint8_t tiny;
  uint8_t pad;
  uint16_t narrow;
  uint32_t wide;
  int64_t symbol;
  uint64_t* workspace;
  const float* optional;
  double real;
} cts_everything_params_t;

typedef struct cts_append_params {
  uint32_t* log; /* log[0]: length */
  uint32_t number;
  uint32_t pad;
} cts_append_params_t;

typedef struct cts_fail_params {
  uint32_t code;
  uint32_t workgroup;
} cts_fail_params_t;

typedef struct cts_cover_params {
  uint32_t* cells;
} cts_cover_params_t;

typedef struct cts_mix_params {
  uint32_t* target; /* target[0] = target[0] * 31 + source[0] + number */
  const uint32_t* source;
  uint32_t number;
  uint32_t pad;
} cts_mix_params_t;

#define CTS_ARGUMENT_SIZE ((uint32_t)sizeof(accrt_kernel_argument_t))
#define CTS_BINDING_SIZE ((uint32_t)sizeof(accrt_binding_t))

static inline accrt_kernel_argument_t cts_arg_buffer(accrt_buffer_t* buffer,
                                                     uint64_t offset_bytes) {
  return (accrt_kernel_argument_t){.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                   .binding = ACCRT_BINDING_NONE,
                                   .buffer = buffer,
                                   .offset_bytes = offset_bytes,
                                   .size_bytes = UINT64_MAX};
}
static inline accrt_kernel_argument_t cts_arg_binding(uint32_t binding, uint64_t offset_bytes,
                                                      uint64_t size_bytes) {
  return (accrt_kernel_argument_t){.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                   .binding = binding,
                                   .offset_bytes = offset_bytes,
                                   .size_bytes = size_bytes};
}
static inline accrt_kernel_argument_t cts_arg_scalar(uint64_t bits) {
  return (accrt_kernel_argument_t){
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = bits};
}

#endif /* ACCRT_CTS_H_ */
