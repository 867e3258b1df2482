/* tests/fakecuda/paths.c - tests of manners.c for two devices without a path between them, and for
 * events and memory of others. */
#include "manners.h"

typedef struct pair {
  work_t work;
  accrt_device_t* other;
  accrt_stream_t* stream; /* of the other */
  accrt_pool_t* pool;
  accrt_buffer_t* there;
} pair_t;

static pair_t start_pair(uint64_t size_bytes) {
  pair_t pair = {.work = start()};
  OK(accrt_instance_device_by_name(pair.work.instance, "cuda:1", &pair.other));
  OK(accrt_stream_create(pair.other, NULL, &pair.stream));
  OK(accrt_device_pool(pair.other, ACCRT_MEMORY_DEVICE, &pair.pool));
  OK(accrt_buffer_create(pair.pool, size_bytes, NULL, &pair.there));
  return pair;
}

static void finish_pair(pair_t* pair) {
  accrt_buffer_release(pair->there);
  accrt_stream_release(pair->stream);
  finish(&pair->work);
}

void test_memory_out_of_reach(void** state) {
  (void)state;
  pair_t pair = start_pair(LOG_BYTES);
  work_t* work = &pair.work;
  accrt_launch_t* prepared = NULL;
  accrt_commands_t *list = record(work, 1, NULL), *fixed = NULL;
  OK(accrt_commands_finalize(list));
  OK(accrt_commands_create(work->device, 0, &fixed));
  OK(accrt_launch_create(work->device, work->append, &prepared));
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(pair.there), scalar_argument(1)};
  const char* const words = "memory of cuda:1 is out of reach of cuda:0";
  FAILS(UNSUPPORTED, words, launch(work, work->stream, pair.there));
  FAILS(UNSUPPORTED, words, accrt_launch_set(prepared, 0, &arguments[0], ARGUMENT_SIZE));
  FAILS(UNSUPPORTED, words, submit(work, work->stream, list, &pair.there, 1));
  FAILS(UNSUPPORTED, words, clear(work->stream, pair.there));
  FAILS(UNSUPPORTED, words,
        accrt_commands_dispatch(fixed, work->append, one, arguments, 2, ARGUMENT_SIZE, NULL, NULL));
  const accrt_binding_place_t there = {.binding = ACCRT_BINDING_NONE, .place = at(pair.there)};
  FAILS(UNSUPPORTED, words, accrt_commands_fill(fixed, &there, 4, 0, 4, NULL, NULL));
  if (control != NULL) {
    demand("peers=0");
    FAILS(UNSUPPORTED, "no path", accrt_device_enable_peer(work->device, pair.other));
    FAILS(UNSUPPORTED, words, launch(work, work->stream, pair.there));
    demand("peers=1");
  }
  if (accrt_device_enable_peer(work->device, pair.other) == ACCRT_OK) {
    OK(clear(work->stream, pair.there));
    OK(launch(work, work->stream, pair.there));
    OK(submit(work, work->stream, list, &pair.there, 1));
    OK(synchronize(work->stream));
    uint32_t length = 0;
    const accrt_place_t log = at(pair.there), out = host(&length);
    OK(accrt_stream_copy(pair.stream, &log, &out, 4));
    OK(synchronize(pair.stream));
    assert_int_equal(length, 2);
  }
  /* One way: the other still does not reach this one's. */
  FAILS(UNSUPPORTED, "memory of cuda:0 is out of reach of cuda:1", clear(pair.stream, work->log));
  accrt_commands_release(list);
  accrt_commands_release(fixed);
  accrt_launch_release(prepared);
  finish_pair(&pair);
}

/* Memory of the host device: kernels are refused it, copies and fills are not; nor is anybody what the driver has pinned. */
void test_memory_of_the_host(void** state) {
  (void)state;
  work_t work = start();
  accrt_device_t* host_device = NULL;
  accrt_pool_t *host_pool = NULL, *pinned_pool = NULL;
  accrt_buffer_t *plain = NULL, *pinned = NULL;
  accrt_launch_t* prepared = NULL;
  accrt_commands_t *list = record(&work, 1, NULL), *fixed = NULL;
  uint32_t length = 7;
  OK(accrt_commands_finalize(list));
  OK(accrt_instance_device_by_name(work.instance, "host", &host_device));
  OK(accrt_device_pool(host_device, ACCRT_MEMORY_DEVICE, &host_pool));
  OK(accrt_device_pool(work.device, ACCRT_MEMORY_PINNED, &pinned_pool));
  OK(accrt_buffer_create(host_pool, LOG_BYTES, NULL, &plain));
  OK(accrt_buffer_create(pinned_pool, LOG_BYTES, NULL, &pinned));
  OK(accrt_commands_create(work.device, 0, &fixed));
  OK(accrt_launch_create(work.device, work.append, &prepared));
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(plain), scalar_argument(1)};
  const char* const words = "memory of host:0 is out of reach of cuda:0";
  FAILS(UNSUPPORTED, words, launch(&work, work.stream, plain));
  FAILS(UNSUPPORTED, words, accrt_launch_set(prepared, 0, &arguments[0], ARGUMENT_SIZE));
  FAILS(UNSUPPORTED, words, submit(&work, work.stream, list, &plain, 1));
  FAILS(UNSUPPORTED, words,
        accrt_commands_dispatch(fixed, work.append, one, arguments, 2, ARGUMENT_SIZE, NULL, NULL));
  OK(clear(work.stream, plain));
  OK(clear(work.stream, pinned));
  OK(launch(&work, work.stream, pinned));
  OK(submit(&work, work.stream, list, &pinned, 1));
  const accrt_place_t log = at(pinned), there = at(plain), out = host(&length);
  OK(accrt_stream_copy(work.stream, &log, &there, LOG_BYTES));
  OK(accrt_stream_copy(work.stream, &there, &out, 4));
  OK(synchronize(work.stream));
  assert_int_equal(length, 2);
  accrt_commands_release(list);
  accrt_commands_release(fixed);
  accrt_launch_release(prepared);
  accrt_buffer_release(plain);
  accrt_buffer_release(pinned);
  finish(&work);
}

static void fill_words(uint32_t* words, uint64_t count, uint32_t seed) {
  for (uint64_t i = 0; i < count; ++i)
    words[i] = (uint32_t)i * 2654435761u + seed;
}

/* Copies there and back, at once, strided and in lists, in more pieces than there are chunks; each follows the last in order. */
void test_copies_without_a_path(void** state) {
  (void)state;
  const uint64_t size_bytes = 11 * MIB + 52, count = size_bytes / 4;
  demand("peers=0");
  pair_t pair = start_pair(size_bytes);
  work_t* work = &pair.work;
  accrt_buffer_t *here = NULL, *back = NULL;
  uint32_t *sent = malloc(size_bytes), *received = malloc(size_bytes);
  accrt_commands_t* list = NULL;
  OK(accrt_buffer_create(work->pool, size_bytes, NULL, &here));
  OK(accrt_buffer_create(work->pool, size_bytes, NULL, &back));
  OK(accrt_commands_create(work->device, 2, &list));
  const accrt_binding_place_t from = {.binding = 0}, to = {.binding = 1};
  const accrt_copy_region_t all = {.extent = {size_bytes, 1, 1}};
  OK(accrt_commands_copy(list, &from, &to, &all, NULL, NULL));
  OK(accrt_commands_finalize(list));
  const accrt_place_t here_at = at(here), there_at = at(pair.there), back_at = at(back),
                      sent_at = host(sent), received_at = host(received);
  /* Rows of 1000 bytes, 1024 apart on one side: as many as fit. */
  const accrt_copy_region_t rows = {{1000, size_bytes / 1024, 1}, {1024, 0}, {1000, 0}},
                            spread = {{1000, size_bytes / 1024, 1}, {1000, 0}, {1024, 0}};
  for (uint32_t round = 0; round < 3; ++round) {
    fill_words(sent, count, round);
    OK(accrt_stream_copy(work->stream, &sent_at, &here_at, size_bytes));
    if (round == 2) {
      OK(accrt_stream_copy(work->stream, &here_at, &back_at, size_bytes));
      OK(accrt_stream_copy_strided(work->stream, &here_at, &there_at, &rows));
      OK(accrt_stream_copy_strided(work->stream, &there_at, &back_at, &spread));
    } else if (round == 1) {
      accrt_buffer_t* out[] = {here, pair.there};
      accrt_buffer_t* in[] = {pair.there, back};
      OK(submit(work, work->stream, list, out, 2));
      OK(submit(work, work->stream, list, in, 2));
    } else {
      OK(accrt_stream_copy(work->stream, &here_at, &there_at, size_bytes));
      OK(accrt_stream_copy(work->stream, &there_at, &back_at, size_bytes));
    }
    OK(accrt_stream_copy(work->stream, &back_at, &received_at, size_bytes));
    OK(synchronize(work->stream));
    assert_memory_equal(sent, received, size_bytes);
  }
  /* On the other's stream, and between two others: neither end is the queue's own. */
  fill_words(sent, count, 7);
  OK(accrt_stream_copy(work->stream, &sent_at, &here_at, size_bytes));
  OK(synchronize(work->stream));
  OK(accrt_stream_copy(pair.stream, &here_at, &there_at, size_bytes));
  OK(accrt_stream_copy(pair.stream, &here_at, &back_at, size_bytes));
  OK(synchronize(pair.stream));
  OK(accrt_stream_copy(work->stream, &back_at, &received_at, size_bytes));
  OK(synchronize(work->stream));
  assert_memory_equal(sent, received, size_bytes);
  OK(accrt_stream_copy(pair.stream, &there_at, &received_at, size_bytes));
  OK(synchronize(pair.stream));
  assert_memory_equal(sent, received, size_bytes);
  accrt_commands_release(list);
  accrt_buffer_release(here);
  accrt_buffer_release(back);
  free(sent);
  free(received);
  finish_pair(&pair);
  demand("peers=1");
}

/* Holds a stream of the second device back until the gate's word is 1. */
static void hold(accrt_stream_t* stream, accrt_buffer_t* gate) {
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  void* native = NULL;
  CUcontext context;
  OK(accrt_buffer_info(gate, &info));
  OK(accrt_stream_native(stream, &native));
  CUDA(cuDevicePrimaryCtxRetain(&context, 1));
  CUDA(cuCtxPushCurrent(context));
  CUDA(cuStreamWaitValue32((CUstream)native, info.device_address, 1, CU_STREAM_WAIT_VALUE_EQ));
  CUDA(cuCtxPopCurrent(&context));
  CUDA(cuDevicePrimaryCtxRelease(1));
}

/* Streams of both devices share chunks, and nobody fills one that another has not emptied: what the first stream sends is held back,
 * so that what the second sends waits in its chunk; fetches of the other device and the sends of the third and fourth follow, which
 * take the same chunks. */
void test_copies_without_a_path_share_chunks(void** state) {
  (void)state;
  enum { STREAMS = 4 };
  demand("peers=0");
  pair_t pair = start_pair(LOG_BYTES);
  work_t* work = &pair.work;
  accrt_stream_t* streams[STREAMS];
  accrt_buffer_t *here = NULL, *gate = NULL;
  uint32_t words[STREAMS], received[STREAMS] = {0};
  fill_words(words, STREAMS, 99);
  OK(accrt_buffer_create(pair.pool, 256, NULL, &gate));
  OK(accrt_buffer_create(work->pool, LOG_BYTES, NULL, &here));
  const accrt_place_t from = host(words), there_at = at(pair.there), here_at = at(here),
                      gate_at = at(gate), received_at = host(received);
  OK(accrt_stream_copy(pair.stream, &from, &there_at, sizeof words));
  OK(accrt_stream_fill(pair.stream, &gate_at, 4, 0, 4));
  OK(synchronize(pair.stream));
  for (uint32_t i = 0; i < STREAMS; ++i) {
    accrt_place_t source = there_at, target = here_at, aside = here_at;
    source.offset_bytes = target.offset_bytes = i * 4;
    aside.offset_bytes = 1024 + i * 4;
    OK(accrt_stream_create(pair.other, NULL, &streams[i]));
    if (i == 0)
      hold(streams[0], gate);
    OK(accrt_stream_copy(streams[i], &source, &target, 4));
    if (i > 0)
      OK(accrt_stream_copy(work->stream, &source, &aside, 4));
  }
  usleep(20000); /* whoever does not wait is done by now */
  OK(accrt_stream_fill(pair.stream, &gate_at, 4, 1, 4));
  for (int i = 0; i < STREAMS; ++i) {
    OK(synchronize(streams[i]));
    accrt_stream_release(streams[i]);
  }
  OK(accrt_stream_copy(work->stream, &here_at, &received_at, sizeof received));
  OK(synchronize(work->stream));
  assert_memory_equal(words, received, sizeof words);
  accrt_buffer_release(gate);
  accrt_buffer_release(here);
  finish_pair(&pair);
  demand("peers=1");
}

/* A stream waits for an event of another device of the driver; recording needs the event's own. */
void test_event_of_another_device(void** state) {
  (void)state;
  pair_t pair = start_pair(LOG_BYTES);
  accrt_event_t* event = NULL;
  uint32_t word = 0;
  const accrt_place_t there = at(pair.there), log = at(pair.work.log), out = host(&word);
  OK(accrt_event_create(pair.other, 0, &event));
  FAILS(INVALID_ARGUMENT, "the event is of cuda:1, the stream of cuda:0",
        accrt_stream_record(pair.work.stream, event));
  for (uint32_t i = 1; i < 20; ++i) {
    OK(accrt_stream_fill(pair.stream, &there, 4, i, 4));
    OK(accrt_stream_record(pair.stream, event));
    OK(accrt_stream_wait_event(pair.work.stream, event));
    OK(accrt_stream_copy(pair.work.stream, &there, &log, 4));
    OK(accrt_stream_copy(pair.work.stream, &log, &out, 4));
    OK(synchronize(pair.work.stream));
    assert_int_equal(word, i);
  }
  accrt_event_release(event);
  finish_pair(&pair);
}

/* Not across drivers. */
void test_event_of_another_driver(void** state) {
  (void)state;
  work_t work = start();
  accrt_device_t* host_device = NULL;
  accrt_event_t* event = NULL;
  OK(accrt_instance_device_by_name(work.instance, "host", &host_device));
  OK(accrt_event_create(host_device, 0, &event));
  FAILS(INVALID_ARGUMENT, "the event is of host", accrt_stream_wait_event(work.stream, event));
  accrt_event_release(event);
  finish(&work);
}
