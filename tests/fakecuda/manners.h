/* tests/fakecuda/manners.h - a device at work, and checks, for the tests of manners.c and paths.c. */
#ifndef FAKECUDA_MANNERS_H_
#define FAKECUDA_MANNERS_H_

#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cuda.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "fakecuda.h"
#include "../cts/operation.h"

#define MIB (UINT64_C(1) << 20)
/* A wait that takes longer hangs. Tests with a thousand hand-overs share one processor at times. */
#define PATIENCE UINT64_C(240000000000)
#define ARGUMENT_SIZE ((uint32_t)sizeof(accrt_kernel_argument_t))
#define BINDING_SIZE ((uint32_t)sizeof(accrt_binding_t))
#define LOG_BYTES 4096u

/* The stand-in's functions; NULL on a GPU. */
extern fakecuda_control_fn_t control;
extern fakecuda_count_fn_t count_of;
extern fakecuda_complaints_fn_t complaints;
extern char kernels_text[1 << 16], traits_text[1 << 16];
extern int operator_mode;
extern CUcontext operator_context;
extern unsigned operator_calls;
extern const uint32_t one[3];
/* A kernel of kernels.ptx that appends a number to a log. */
extern const accrt_kernel_param_t append_params[2];
extern const accrt_kernel_def_t append_definition;

typedef struct work {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_pool_t* pool;
  accrt_kernel_pack_t *pack, *operators;
  accrt_kernel_t* append;
  accrt_buffer_t* log;
} work_t;

typedef struct append_block {
  uint64_t log;
  uint32_t number;
  uint32_t pad;
} append_block_t;

/* What the operator does beside its work. */
enum { OPERATOR_WORKS, OPERATOR_SETS, OPERATOR_PUSHES, OPERATOR_FAILS };

/* Gives the stand-in a setting. */
void demand(const char* setting);
void check_ok(accrt_status_t status, const char* expression, int line);
void check_fails(accrt_status_t status, accrt_status_t wanted, const char* words,
                 const char* expression, int line);
accrt_status_t load_text(accrt_device_t* device, const char* text, const accrt_kernel_def_t* kernel,
                         accrt_kernel_pack_t** out_pack);
/* With an option of the instance, or without. `finish` ends all of it. */
work_t start_with(const char* key, const char* value);
work_t start(void);
void finish(work_t* work);
accrt_place_t at(accrt_buffer_t* buffer);
accrt_place_t host(void* pointer);
accrt_kernel_argument_t buffer_argument(accrt_buffer_t* buffer);
accrt_kernel_argument_t scalar_argument(uint64_t value);
accrt_status_t launch(work_t* work, accrt_stream_t* stream, accrt_buffer_t* log);
accrt_status_t clear(accrt_stream_t* stream, accrt_buffer_t* log);
accrt_status_t synchronize(accrt_stream_t* stream);
/* A list of `count` appends, each to a binding of its own; behind them an operator of this name, if
 * any. */
accrt_commands_t* record(work_t* work, uint32_t count, const char* operator_name);
accrt_status_t submit(work_t* work, accrt_stream_t* stream, accrt_commands_t* commands,
                      accrt_buffer_t* const* logs, uint32_t count);

#define OK(expression) check_ok((expression), #expression, __LINE__)
#define FAILS(name, words, expression)                                                             \
  check_fails((expression), ACCRT_ERROR_##name, words, #expression, __LINE__)
#define CUDA(expression) assert_int_equal((expression), CUDA_SUCCESS)

/* paths.c */
void test_memory_out_of_reach(void** state);
void test_memory_of_the_host(void** state);
void test_copies_without_a_path(void** state);
void test_copies_without_a_path_share_chunks(void** state);
void test_event_of_another_device(void** state);
void test_event_of_another_driver(void** state);

#endif /* FAKECUDA_MANNERS_H_ */
