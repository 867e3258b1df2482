/* tests/fakecuda/cancel.c - what cancelling promises on CUDA (docs/decisions/safe-in-every-hand.md): what the runtime still holds is
 * dropped, what the device has runs to its end, all of it is told as cancelled, and a reset waits for the device. Under the stand-in.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "stand_in.h"

enum { FILLS = 12, LISTS = 4, WORDS = 64 };

#define OK(expression) assert_int_equal((expression), ACCRT_OK)

typedef struct place {
  accrt_instance_t* instance;
  accrt_stream_t* stream;
  accrt_buffer_t* filled[FILLS + LISTS];
  accrt_buffer_t* held;
  accrt_commands_t* commands;
} place_t;

static int set_up_group(void** state) {
  (void)state;
  find_stand_in();
  return 0;
}

static void fill(accrt_stream_t* stream, accrt_buffer_t* buffer, uint32_t word) {
  const accrt_place_t target = {.buffer = buffer};
  OK(accrt_stream_fill(stream, &target, WORDS * sizeof word, word, sizeof word));
}

static uint32_t word_of(accrt_stream_t* stream, accrt_buffer_t* buffer) {
  uint32_t words[WORDS];
  const accrt_place_t source = {.buffer = buffer};
  const accrt_place_t target = {.pointer = words};
  OK(accrt_stream_copy(stream, &source, &target, sizeof words));
  OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
  for (int i = 1; i < WORDS; ++i)
    assert_int_equal(words[i], words[0]);
  return words[0];
}

/* A list of two fills: the last one holds. */
static void record(place_t* p, accrt_device_t* device) {
  const accrt_binding_place_t target = {.binding = 0};
  OK(accrt_commands_create(device, 1, &p->commands));
  OK(accrt_commands_fill(p->commands, &target, WORDS * 4, 1, 4, NULL, NULL));
  OK(accrt_commands_fill(p->commands, &target, WORDS * 4, 2, 4, NULL, NULL));
  OK(accrt_commands_finalize(p->commands));
}

static void open_place(place_t* p) {
  accrt_device_t* device;
  accrt_pool_t* pool;
  p->instance = instance_with(NULL, NULL);
  OK(accrt_instance_device_by_name(p->instance, "cuda:0", &device));
  OK(accrt_stream_create(device, NULL, &p->stream));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  for (int i = 0; i < FILLS + LISTS; ++i) {
    OK(accrt_buffer_create(pool, WORDS * 4, NULL, &p->filled[i]));
    fill(p->stream, p->filled[i], 0);
  }
  OK(accrt_buffer_create(pool, WORDS * 4, NULL, &p->held));
  fill(p->stream, p->held, 4711);
  record(p, device);
  OK(accrt_stream_synchronize(p->stream, PATIENCE, ACCRT_WAIT_BLOCK));
}

static void close_place(place_t* p) {
  for (int i = 0; i < FILLS + LISTS; ++i)
    accrt_buffer_release(p->filled[i]);
  accrt_buffer_release(p->held);
  accrt_commands_release(p->commands);
  accrt_stream_release(p->stream);
  accrt_instance_release(p->instance);
  assert_int_equal(atomic_load(&live_allocations), 0);
}

/* Work for the device, and behind it work that waits for the host. */
static void enqueue(place_t* p, accrt_semaphore_t* gate, accrt_semaphore_t* after) {
  for (int i = 0; i < FILLS; ++i)
    fill(p->stream, p->filled[i], 100 + (uint32_t)i);
  for (int i = FILLS; i < FILLS + LISTS; ++i) {
    const accrt_binding_t binding = {.buffer = p->filled[i], .size_bytes = ACCRT_TO_END};
    OK(accrt_stream_submit(p->stream, p->commands, &binding, 1, (uint32_t)sizeof binding));
  }
  OK(accrt_stream_wait(p->stream, gate, 1));
  fill(p->stream, p->held, 1);
  OK(accrt_stream_signal(p->stream, after, 1));
}

static void check_told(place_t* p, accrt_semaphore_t* after) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(p->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_true(error.submission > 0);
  assert_non_null(strstr(error.message, "were not complete"));
  assert_int_equal(accrt_stream_synchronize(p->stream, PATIENCE, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_POISONED);
  const accrt_place_t target = {.buffer = p->held};
  assert_int_equal(accrt_stream_fill(p->stream, &target, WORDS * 4, 2, 4), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_wait(after, 1, PATIENCE, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_POISONED);
  OK(accrt_semaphore_error(after, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
}

static void test_what_the_device_has_runs_to_its_end(void** state) {
  (void)state;
  place_t p;
  accrt_semaphore_t *gate, *after;
  open_place(&p);
  OK(accrt_semaphore_create(p.instance, 0, &gate));
  OK(accrt_semaphore_create(p.instance, 0, &after));
  demand("delay_us=100000"); /* the device is behind */
  enqueue(&p, gate, after);
  OK(accrt_stream_cancel(p.stream));
  check_told(&p, after);
  OK(accrt_stream_reset(p.stream));
  demand("reset");
  OK(accrt_semaphore_signal(gate, 1)); /* too late */
  for (int i = 0; i < FILLS; ++i)
    assert_int_equal(word_of(p.stream, p.filled[i]), 100 + i);
  for (int i = FILLS; i < FILLS + LISTS; ++i)
    assert_int_equal(word_of(p.stream, p.filled[i]), 2);
  assert_int_equal(word_of(p.stream, p.held), 4711); /* it was dropped */
  accrt_semaphore_release(gate);
  accrt_semaphore_release(after);
  close_place(&p);
}

/* ---- Parts that wait for a gate ---- */

enum { PARTS = 200, AHEAD = 2 };

typedef struct gated {
  accrt_semaphore_t* gate;
  atomic_uint ended;
} gated_t;

static gated_t gated;

/* On a thread of the runtime. */
static void open_gate(void* number, accrt_status_t status) {
  if (status != ACCRT_OK)
    return;
  atomic_fetch_add(&gated.ended, 1);
  (void)accrt_semaphore_signal(gated.gate, (uint64_t)(uintptr_t)number);
}

static void enqueue_part(place_t* p, accrt_buffer_t* buffer, uint64_t number) {
  const accrt_binding_t binding = {.buffer = buffer, .size_bytes = ACCRT_TO_END};
  if (number > AHEAD)
    OK(accrt_stream_wait(p->stream, gated.gate, number - AHEAD));
  OK(accrt_stream_submit(p->stream, p->commands, &binding, 1, (uint32_t)sizeof binding));
  OK(accrt_stream_notify(p->stream, open_gate, (void*)(uintptr_t)number));
}

/* docs/programs.md: what the host has not let through yet is dropped, and the rest has run. */
static void test_parts_that_wait_for_a_gate_are_dropped(void** state) {
  (void)state;
  place_t p;
  accrt_pool_t* pool;
  accrt_device_t* device;
  accrt_buffer_t* buffers[PARTS];
  accrt_error_t error = ACCRT_ERROR_INIT;
  open_place(&p);
  OK(accrt_instance_device_by_name(p.instance, "cuda:0", &device));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_semaphore_create(p.instance, 0, &gated.gate));
  atomic_store(&gated.ended, 0);
  for (int i = 0; i < PARTS; ++i) {
    OK(accrt_buffer_create(pool, WORDS * 4, NULL, &buffers[i]));
    fill(p.stream, buffers[i], 0);
  }
  OK(accrt_stream_synchronize(p.stream, PATIENCE, ACCRT_WAIT_BLOCK));
  demand("delay_us=20000");
  for (int i = 0; i < PARTS; ++i)
    enqueue_part(&p, buffers[i], (uint64_t)i + 1);
  OK(accrt_semaphore_wait(gated.gate, 2, PATIENCE, ACCRT_WAIT_BLOCK));
  OK(accrt_stream_cancel(p.stream));
  const unsigned ended = atomic_load(&gated.ended);
  OK(accrt_stream_error(p.stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  OK(accrt_stream_reset(p.stream));
  demand("reset");
  unsigned ran = 0;
  for (unsigned i = 0; i < PARTS; ++i) {
    const uint32_t word = word_of(p.stream, buffers[i]);
    assert_true(word == 2 || word == 0); /* whole parts alone */
    assert_true(word == 0 || ran == i);  /* in order */
    ran += word == 2;
  }
  assert_true(ran >= 2 && ran <= ended + AHEAD + 1);
  for (int i = 0; i < PARTS; ++i)
    accrt_buffer_release(buffers[i]);
  accrt_semaphore_release(gated.gate);
  close_place(&p);
}

/* ---- Streams that hold work back ---- */

/* Cancels when some of the parts have ended; says how many ran. */
static unsigned cancel_some(place_t* p, accrt_stream_t* stream, accrt_buffer_t** buffers) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_semaphore_t* after;
  OK(accrt_semaphore_create(p->instance, 0, &after));
  for (int i = 0; i < PARTS; ++i)
    fill(stream, buffers[i], 0);
  OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
  demand("delay_us=20000");
  for (int i = 0; i < PARTS; ++i) {
    const accrt_binding_t binding = {.buffer = buffers[i], .size_bytes = ACCRT_TO_END};
    OK(accrt_stream_submit(stream, p->commands, &binding, 1, (uint32_t)sizeof binding));
    if (i == 1)
      OK(accrt_stream_signal(stream, after, 1));
  }
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  OK(accrt_semaphore_wait(after, 1, PATIENCE, ACCRT_WAIT_BLOCK));
  OK(accrt_stream_signal(stream, after, 2));
  OK(accrt_stream_cancel(stream));
  /* who waits is told at once */
  assert_int_equal(accrt_semaphore_wait(after, 2, PATIENCE, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_synchronize(stream, 0, ACCRT_WAIT_BLOCK), ACCRT_ERROR_POISONED);
  OK(accrt_stream_error(stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_true(error.submission > 0);
  OK(accrt_stream_reset(stream));
  demand("reset");
  unsigned ran = 0;
  for (unsigned i = 0; i < PARTS; ++i) {
    const uint32_t word = word_of(stream, buffers[i]);
    assert_true(word == 2 || word == 0); /* whole parts alone */
    assert_true(word == 0 || ran == i);  /* in order */
    ran += word == 2;
  }
  accrt_semaphore_release(after);
  return ran;
}

/* The same without a gate of the caller's; and the stream does as much after a reset. */
static void test_streams_hold_work_back(void** state) {
  (void)state;
  place_t p;
  accrt_pool_t* pool;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_buffer_t* buffers[PARTS];
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.ahead = AHEAD;
  open_place(&p);
  OK(accrt_instance_device_by_name(p.instance, "cuda:0", &device));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_stream_create(device, &options, &stream));
  for (int i = 0; i < PARTS; ++i)
    OK(accrt_buffer_create(pool, WORDS * 4, NULL, &buffers[i]));
  for (int round = 0; round < 3; ++round) {
    const unsigned ran = cancel_some(&p, stream, buffers);
    assert_true(ran >= 2 && ran < PARTS / 2);
  }
  for (int i = 0; i < PARTS; ++i)
    fill(stream, buffers[i], (uint32_t)i);
  for (int i = 0; i < PARTS; ++i) {
    assert_int_equal(word_of(stream, buffers[i]), i);
    accrt_buffer_release(buffers[i]);
  }
  accrt_stream_release(stream);
  close_place(&p);
}

/* One list of PARTS fills, each of one word, on a stream that divides lists. */
static void test_lists_end_between_pieces(void** state) {
  (void)state;
  place_t p;
  accrt_pool_t* pool;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_buffer_t* buffer;
  accrt_commands_t* commands;
  uint32_t words[PARTS];
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.ahead = AHEAD;
  options.commands_per_piece = 4;
  open_place(&p);
  OK(accrt_instance_device_by_name(p.instance, "cuda:0", &device));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_stream_create(device, &options, &stream));
  OK(accrt_buffer_create(pool, sizeof words, NULL, &buffer));
  OK(accrt_commands_create(device, 1, &commands));
  for (uint32_t i = 0; i < PARTS; ++i) {
    const accrt_binding_place_t target = {.binding = 0, .place.offset_bytes = 4 * i};
    OK(accrt_commands_fill(commands, &target, 4, 1 + i, 4, NULL, NULL));
  }
  OK(accrt_commands_finalize(commands));
  const accrt_binding_t binding = {.buffer = buffer, .size_bytes = ACCRT_TO_END};
  const accrt_place_t place = {.buffer = buffer}, host = {.pointer = words};
  for (int round = 0; round < 3; ++round) {
    OK(accrt_stream_fill(stream, &place, sizeof words, 0, 4));
    OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
    demand("delay_us=20000");
    OK(accrt_stream_submit(stream, commands, &binding, 1, (uint32_t)sizeof binding));
    OK(accrt_stream_cancel(stream));
    OK(accrt_stream_reset(stream));
    demand("reset");
    OK(accrt_stream_copy(stream, &place, &host, sizeof words));
    OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
    uint32_t ran = 0;
    while (ran < PARTS && words[ran] == 1 + ran)
      ++ran;
    assert_int_equal(ran % 4, 0);
    assert_true(ran > 0 && ran < PARTS / 2);
    for (uint32_t i = ran; i < PARTS; ++i)
      assert_int_equal(words[i], 0);
    OK(accrt_stream_submit(stream, commands, &binding, 1, (uint32_t)sizeof binding));
    OK(accrt_stream_copy(stream, &place, &host, sizeof words));
    OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
    for (uint32_t i = 0; i < PARTS; ++i)
      assert_int_equal(words[i], 1 + i);
  }
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  close_place(&p);
}

enum { THREADS = 4, EACH = 100 };

typedef struct filler {
  accrt_stream_t* stream;
  accrt_buffer_t* buffer;
} filler_t;

static void* fill_often(void* user) {
  const filler_t* own = user;
  const accrt_place_t target = {.buffer = own->buffer};
  for (uint32_t i = 1; i <= EACH; ++i)
    assert_int_equal(accrt_stream_fill(own->stream, &target, WORDS * 4, i, 4), ACCRT_OK);
  return NULL;
}

static void test_threads_share_a_stream_that_holds_back(void** state) {
  (void)state;
  place_t p;
  accrt_device_t* device;
  accrt_stream_t* stream;
  pthread_t threads[THREADS];
  filler_t fillers[THREADS];
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.ahead = 1;
  open_place(&p);
  OK(accrt_instance_device_by_name(p.instance, "cuda:0", &device));
  OK(accrt_stream_create(device, &options, &stream));
  for (int i = 0; i < THREADS; ++i) {
    fillers[i] = (filler_t){stream, p.filled[i]};
    assert_int_equal(pthread_create(&threads[i], NULL, fill_often, &fillers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(word_of(stream, p.filled[i]), EACH);
  accrt_stream_release(stream);
  close_place(&p);
}

static int check_misuse(void** state) {
  (void)state;
  assert_int_equal(complaints(), 0);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_what_the_device_has_runs_to_its_end, check_misuse),
      cmocka_unit_test_teardown(test_parts_that_wait_for_a_gate_are_dropped, check_misuse),
      cmocka_unit_test_teardown(test_streams_hold_work_back, check_misuse),
      cmocka_unit_test_teardown(test_lists_end_between_pieces, check_misuse),
      cmocka_unit_test_teardown(test_threads_share_a_stream_that_holds_back, check_misuse),
  };
  return cmocka_run_group_tests(tests, set_up_group, NULL);
}
