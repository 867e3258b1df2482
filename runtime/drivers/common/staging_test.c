/* Staging: large copies of plain memory, files and uploads through the ring, in stream order, with
 * everything that can fail. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/drivers/common/internal.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/staging.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define FOREVER ACCRT_TIMEOUT_INFINITE
#define SIZE (5 * MIB + 123)

static test_world_t world;
static accrt_pool_t* pool;
static accrt_stream_t* stream;

static const char* queues = "1";
static const char* direct_reads = "0";

/* A device that does not reach host memory, with an engine of few threads. */
static accrt_status_t try_world(int mode, const char* threads) {
  memset(&world, 0, sizeof world);
  test_driver_reset(mode);
  test_driver.device_flags = ACCRT_DEVICE_FLAG_TIMESTAMPS;
  const accrt_allocator_t interface = test_allocator_interface(&world.allocator);
  const accrt_option_t list[] = {{"staging.threads", threads},
                                 {"staging.ring_bytes", "8388608"},
                                 {"staging.slot_bytes", "1048576"},
                                 {"staging.queues", queues},
                                 {"staging.direct_reads", direct_reads}};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &interface;
  options.options = list;
  options.option_count = 5;
  options.option_size_bytes = sizeof list[0];
  accrt_status_t status = accrt_instance_create(&options, &world.instance);
  if (status == ACCRT_OK)
    status = accrt_instance_register_driver(world.instance, test_driver_query);
  if (status == ACCRT_OK)
    status = accrt_instance_device_by_name(world.instance, "test", &world.device);
  return status;
}

static void open_world(int mode) {
  assert_int_equal(try_world(mode, "3"), ACCRT_OK);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
}

static void close_world(void) {
  accrt_stream_release(stream);
  assert_int_equal(test_world_close(&world), 0);
}

static accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static unsigned char byte_at(uint64_t i, unsigned seed) {
  return (unsigned char)(i * 31 + (i >> 9) + seed);
}

static unsigned char* make_bytes(uint64_t size_bytes, unsigned seed) {
  unsigned char* bytes = malloc(size_bytes);
  assert_non_null(bytes);
  for (uint64_t i = 0; i < size_bytes; ++i)
    bytes[i] = byte_at(i, seed);
  return bytes;
}

static void check_bytes(const unsigned char* bytes, uint64_t size_bytes, uint64_t first,
                        unsigned seed) {
  for (uint64_t i = 0; i < size_bytes; ++i) {
    if (bytes[i] != byte_at(first + i, seed))
      fail_msg("byte %llu is %u", (unsigned long long)i, bytes[i]);
  }
}

static accrt_place_t at_memory(const void* pointer, uint64_t offset) {
  return (accrt_place_t){NULL, (void*)(uintptr_t)pointer, offset};
}
static accrt_place_t at_buffer(accrt_buffer_t* buffer, uint64_t offset) {
  return (accrt_place_t){buffer, NULL, offset};
}

static void copy(const accrt_place_t source, const accrt_place_t target, uint64_t size_bytes) {
  assert_int_equal(accrt_stream_copy(stream, &source, &target, size_bytes), ACCRT_OK);
}

static accrt_status_t synchronize(void) {
  return accrt_stream_synchronize(stream, FOREVER, ACCRT_WAIT_BLOCK);
}

/* The stream has failed, and its record says so. */
static void assert_failed(accrt_status_t status, const char* text) {
  assert_int_equal(synchronize(), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, status);
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in '%s'", text, error.message);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
}

static const int modes[] = {TEST_DRIVER_SYNCHRONOUS, TEST_DRIVER_THREAD, TEST_DRIVER_CALLER};
enum { MODES = sizeof modes / sizeof *modes };

/* ---- Copies ---- */

/* What comes before lands before, what comes after lands after. */
static void test_there_and_back(void** state) {
  (void)state;
  for (int mode = 0; mode < MODES; ++mode) {
    open_world(modes[mode]);
    unsigned char* from = make_bytes(SIZE, 1);
    unsigned char* to = calloc(1, SIZE);
    accrt_buffer_t *a = make_buffer(SIZE), *b = make_buffer(SIZE);
    for (int round = 0; round < 3; ++round) {
      memset(to, 0, SIZE);
      const accrt_place_t all = at_buffer(a, 0);
      assert_int_equal(accrt_stream_fill(stream, &all, SIZE, 0xEE, 1), ACCRT_OK);
      copy(at_memory(from, 0), at_buffer(a, 0), SIZE);
      copy(at_buffer(a, 0), at_buffer(b, 0), SIZE);
      assert_int_equal(accrt_stream_fill(stream, &all, SIZE, 0xDD, 1), ACCRT_OK);
      copy(at_buffer(b, 0), at_memory(to, 0), SIZE);
      assert_int_equal(synchronize(), ACCRT_OK);
      check_bytes(to, SIZE, 0, 1);
    }
    /* Parts, at offsets. */
    memset(to, 0, SIZE);
    copy(at_memory(from, 1000), at_buffer(b, 77), 2 * MIB + 1);
    copy(at_buffer(b, 77), at_memory(to, 55), 2 * MIB + 1);
    assert_int_equal(synchronize(), ACCRT_OK);
    check_bytes(to + 55, 2 * MIB + 1, 1000, 1);
    assert_int_equal(to[54], 0);
    assert_int_equal(to[55 + 2 * MIB + 1], 0);
    assert_true(atomic_load(&test_driver.imports) > 0); /* the ring is pinned */
    accrt_buffer_release(a);
    accrt_buffer_release(b);
    free(from);
    free(to);
    close_world();
  }
}

static void test_plain_buffers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  close_world();
  test_driver_reset(TEST_DRIVER_THREAD);
  assert_int_equal(try_world(TEST_DRIVER_THREAD, "2"), ACCRT_OK);
  test_driver.no_host_memory_kind = 1;
  accrt_pool_t* host;
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_HOST, &host), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  accrt_buffer_t *plain, *device = make_buffer(SIZE);
  assert_int_equal(accrt_buffer_create(host, SIZE, NULL, &plain), ACCRT_OK);
  void* memory;
  assert_int_equal(accrt_buffer_map(plain, 0, SIZE, &memory), ACCRT_OK);
  for (uint64_t i = 0; i < SIZE; ++i)
    ((unsigned char*)memory)[i] = byte_at(i, 3);
  copy(at_buffer(plain, 0), at_buffer(device, 0), SIZE);
  const accrt_place_t all = at_buffer(plain, 0);
  copy(at_buffer(device, 10), at_buffer(plain, 0), SIZE - 10);
  (void)all;
  accrt_buffer_t* kept = plain;
  assert_int_equal(accrt_buffer_unmap(plain), ACCRT_OK);
  accrt_buffer_retain(kept);
  accrt_buffer_release(plain); /* in use: it stays until the copies are over */
  accrt_buffer_release(device);
  assert_int_equal(synchronize(), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(kept, 0, SIZE, &memory), ACCRT_OK);
  check_bytes(memory, SIZE - 10, 10, 3);
  accrt_buffer_release(kept);
  close_world();
}

/* The caller never waits, and nothing moves before the stream has come that far. */
static void test_waits_for_its_turn(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  unsigned char* from = calloc(1, SIZE);
  unsigned char* to = calloc(1, SIZE);
  accrt_buffer_t* buffer = make_buffer(SIZE);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  copy(at_memory(from, 0), at_buffer(buffer, 0), SIZE);
  copy(at_buffer(buffer, 0), at_memory(to, 0), SIZE);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  (void)usleep(20000);
  assert_int_equal(atomic_load(&test_driver.runs), 0);
  for (uint64_t i = 0; i < SIZE; ++i)
    from[i] = byte_at(i, 9); /* read only now */
  accrt_buffer_release(buffer);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(synchronize(), ACCRT_OK);
  check_bytes(to, SIZE, 0, 9);
  accrt_semaphore_release(gate);
  free(from);
  free(to);
  close_world();
}

static void test_several_streams(void** state) {
  (void)state;
  enum { STREAMS = 4, ROUNDS = 3 };
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* streams[STREAMS];
  accrt_buffer_t* buffers[STREAMS];
  unsigned char *from[STREAMS], *to[STREAMS];
  for (unsigned i = 0; i < STREAMS; ++i) {
    assert_int_equal(accrt_stream_create(world.device, NULL, &streams[i]), ACCRT_OK);
    buffers[i] = make_buffer(3 * MIB);
    from[i] = make_bytes(3 * MIB, i);
    to[i] = calloc(1, 3 * MIB);
  }
  for (int round = 0; round < ROUNDS; ++round) {
    for (unsigned i = 0; i < STREAMS; ++i) {
      const accrt_place_t a = at_memory(from[i], 0), b = at_buffer(buffers[i], 0),
                          c = at_memory(to[i], 0);
      assert_int_equal(accrt_stream_copy(streams[i], &a, &b, 3 * MIB), ACCRT_OK);
      assert_int_equal(accrt_stream_copy(streams[i], &b, &c, 3 * MIB), ACCRT_OK);
    }
  }
  for (unsigned i = 0; i < STREAMS; ++i) {
    assert_int_equal(accrt_stream_synchronize(streams[i], FOREVER, 0), ACCRT_OK);
    check_bytes(to[i], 3 * MIB, 0, i);
    accrt_stream_release(streams[i]);
    accrt_buffer_release(buffers[i]);
    free(from[i]);
    free(to[i]);
  }
  close_world();
}

/* ---- What fails ---- */

static void test_failures_of_the_driver(void** state) {
  (void)state;
  for (int turn = 0; turn < 4; ++turn) {
    const int direction = turn % 2;
    queues = turn < 2 ? "1" : "2";
    open_world(TEST_DRIVER_THREAD);
    queues = "1";
    unsigned char* memory = make_bytes(SIZE, 1);
    accrt_buffer_t* buffer = make_buffer(SIZE);
    const accrt_place_t host = at_memory(memory, 0), device = at_buffer(buffer, 0);
    const accrt_place_t* ends[2] = {&host, &device};
    /* No queue. */
    test_driver_fail(TEST_FUNCTION_QUEUE_CREATE, 1, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_int_equal(accrt_stream_copy(stream, ends[direction], ends[1 - direction], SIZE),
                     ACCRT_OK);
    assert_failed(ACCRT_ERROR_OUT_OF_MEMORY, "injected fault");
    /* A copy that is refused, and one that fails while it runs. */
    for (int n = 1; n <= 6; ++n) {
      test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, n, ACCRT_ERROR_DRIVER);
      assert_int_equal(accrt_stream_copy(stream, ends[direction], ends[1 - direction], SIZE),
                       ACCRT_OK);
      assert_failed(ACCRT_ERROR_DRIVER, "injected fault");
      test_driver_fail(TEST_FUNCTION_RUN, n, ACCRT_ERROR_DRIVER);
      assert_int_equal(accrt_stream_copy(stream, ends[direction], ends[1 - direction], SIZE),
                       ACCRT_OK);
      assert_int_equal(synchronize(), ACCRT_ERROR_POISONED);
      assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
    }
    /* And then it works again. */
    copy(host, device, SIZE);
    assert_int_equal(synchronize(), ACCRT_OK);
    memset(memory, 0, SIZE);
    copy(device, host, SIZE);
    assert_int_equal(synchronize(), ACCRT_OK);
    accrt_buffer_release(buffer);
    free(memory);
    close_world();
  }
}

/* A driver that pins nothing: slower, and right. */
static void test_without_pinning(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  unsigned char* from = make_bytes(SIZE, 5);
  unsigned char* to = calloc(1, SIZE);
  accrt_buffer_t* buffer = make_buffer(SIZE);
  test_driver_fail(TEST_FUNCTION_MEMORY_IMPORT, 1, ACCRT_ERROR_UNSUPPORTED);
  copy(at_memory(from, 0), at_buffer(buffer, 0), SIZE);
  copy(at_buffer(buffer, 0), at_memory(to, 0), SIZE);
  assert_int_equal(synchronize(), ACCRT_OK);
  check_bytes(to, SIZE, 0, 5);
  accrt_buffer_release(buffer);
  free(from);
  free(to);
  close_world();
}

/* Every allocation fails once: an error, or success, and nothing is lost. */
static void test_out_of_host_memory(void** state) {
  (void)state;
  unsigned char* from = make_bytes(SIZE, 5);
  for (int n = 1; n < 30; ++n) {
    open_world(TEST_DRIVER_THREAD);
    accrt_buffer_t* buffer = make_buffer(SIZE);
    const accrt_place_t a = at_memory(from, 0), b = at_buffer(buffer, 0);
    atomic_store(&world.allocator.fail_at, n);
    const accrt_status_t status = accrt_stream_copy(stream, &a, &b, SIZE);
    if (status == ACCRT_OK) {
      (void)synchronize();
    } else {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    }
    atomic_store(&world.allocator.fail_at, 0);
    (void)accrt_stream_reset(stream);
    copy(a, b, SIZE);
    assert_int_equal(synchronize(), ACCRT_OK);
    accrt_buffer_release(buffer);
    close_world();
  }
  free(from);
}

/* The instance goes while transfers wait, and while they run. */
static void test_teardown(void** state) {
  (void)state;
  unsigned char* memory = make_bytes(SIZE, 5);
  for (int gated = 0; gated < 2; ++gated) {
    open_world(TEST_DRIVER_THREAD);
    accrt_semaphore_t* gate;
    assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
    accrt_buffer_t* buffer = make_buffer(SIZE);
    if (gated)
      assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    for (int i = 0; i < 5; ++i) {
      copy(at_memory(memory, 0), at_buffer(buffer, 0), SIZE);
      copy(at_buffer(buffer, 0), at_memory(memory, 0), SIZE);
    }
    accrt_buffer_release(buffer);
    accrt_semaphore_release(gate);
    close_world();
  }
  free(memory);
}

/* A reset waits for what is being moved: the memory is the caller's again. */
static void test_reset_in_flight(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_buffer_t* buffer = make_buffer(SIZE);
  for (int i = 0; i < 10; ++i) {
    unsigned char* memory = make_bytes(SIZE, 5);
    copy(at_memory(memory, 0), at_buffer(buffer, 0), SIZE);
    copy(at_buffer(buffer, 0), at_memory(memory, 0), SIZE);
    copy(at_memory(memory, 0), at_buffer(buffer, 0), SIZE);
    if (i % 2 != 0)
      (void)usleep(300);
    assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
    memset(memory, 0, SIZE);
    free(memory);
  }
  accrt_buffer_release(buffer);
  close_world();
}

/* ---- Files ---- */

static int make_file(uint64_t size_bytes, unsigned seed) {
  char path[] = "/tmp/accrt-staging-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)unlink(path);
  unsigned char* bytes = make_bytes(size_bytes, seed);
  assert_int_equal(write(fd, bytes, size_bytes), size_bytes);
  free(bytes);
  return fd;
}

static void test_read_file(void** state) {
  (void)state;
  for (int turn = 0; turn < 2 * MODES; ++turn) {
    const int mode = turn % MODES;
    direct_reads = turn < MODES ? "0" : "1";
    open_world(modes[mode]);
    direct_reads = "0";
    int fd = make_file(SIZE, 7);
    unsigned char* to = calloc(1, SIZE);
    accrt_buffer_t* buffer = make_buffer(SIZE);
    const accrt_place_t device = at_buffer(buffer, 5), host = at_memory(to, 0);
    assert_int_equal(accrt_stream_read_file(stream, fd, 100, &device, SIZE - 100, 0), ACCRT_OK);
    assert_int_equal(close(fd), 0); /* at once */
    copy(device, host, SIZE - 100);
    assert_int_equal(synchronize(), ACCRT_OK);
    check_bytes(to, SIZE - 100, 100, 7);
    /* Where past the page cache can be read too. */
    fd = make_file(SIZE, 9);
    const accrt_place_t begin = at_buffer(buffer, 0);
    (void)fsync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    assert_int_equal(accrt_stream_read_file(stream, fd, 0, &begin, SIZE, 0), ACCRT_OK);
    assert_int_equal(close(fd), 0);
    copy(begin, host, SIZE);
    assert_int_equal(synchronize(), ACCRT_OK);
    check_bytes(to, SIZE, 0, 9);
    /* Into plain memory, and nothing. */
    fd = make_file(2 * MIB, 8);
    assert_int_equal(accrt_stream_read_file(stream, fd, MIB, &host, MIB, 0), ACCRT_OK);
    assert_int_equal(accrt_stream_read_file(stream, fd, 0, &host, 0, 0), ACCRT_OK);
    assert_int_equal(synchronize(), ACCRT_OK);
    check_bytes(to, MIB, MIB, 8);
    /* It ends early: at the begin, in the middle. */
    assert_int_equal(accrt_stream_read_file(stream, fd, 2 * MIB, &device, 1, 0), ACCRT_OK);
    assert_failed(ACCRT_ERROR_IO, "ended at offset 2097152");
    assert_int_equal(accrt_stream_read_file(stream, fd, 1000, &device, 4 * MIB, 0), ACCRT_OK);
    assert_failed(ACCRT_ERROR_IO, "ended at offset 2097152");
    assert_int_equal(accrt_stream_read_file(stream, fd, 1000, &host, 4 * MIB, 0), ACCRT_OK);
    assert_failed(ACCRT_ERROR_IO, "ended at offset 2097152");
    assert_int_equal(close(fd), 0);
    accrt_buffer_release(buffer);
    free(to);
    close_world();
  }
}

static void test_read_file_refuses(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  const int fd = make_file(100, 7), folder = open("/tmp", O_RDONLY);
  const int blind = open("/dev/null", O_WRONLY);
  accrt_buffer_t* buffer = make_buffer(1000);
  const accrt_place_t device = at_buffer(buffer, 0), nowhere = {NULL, NULL, 0};
  assert_int_equal(accrt_stream_read_file(NULL, fd, 0, &device, 1, 0),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_read_file(stream, fd, 0, NULL, 1, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_read_file(stream, fd, 0, &nowhere, 1, 0),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_read_file(stream, fd, 0, &device, 1, 1),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_read_file(stream, fd, 0, &device, 1001, 0),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_stream_read_file(stream, fd, UINT64_MAX, &device, 1, 0),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_stream_read_file(stream, -1, 0, &device, 1, 0), ACCRT_ERROR_IO);
  assert_int_equal(accrt_stream_read_file(stream, folder, 0, &device, 1, 0), ACCRT_ERROR_IO);
  assert_int_equal(accrt_stream_read_file(stream, blind, 0, &device, 1, 0), ACCRT_ERROR_IO);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  (void)close(fd);
  (void)close(folder);
  (void)close(blind);
  accrt_buffer_release(buffer);
  close_world();
}

/* Files on devices that reach host memory: no ring. */
static void test_read_file_in_place(void** state) {
  (void)state;
  assert_int_equal(test_world_open(&world, TEST_DRIVER_THREAD), ACCRT_OK);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  const int fd = make_file(SIZE, 4);
  accrt_buffer_t* buffer = make_buffer(SIZE);
  const accrt_place_t place = at_buffer(buffer, 0);
  assert_int_equal(accrt_stream_read_file(stream, fd, 0, &place, SIZE, 0), ACCRT_OK);
  assert_int_equal(synchronize(), ACCRT_OK);
  void* memory;
  assert_int_equal(accrt_buffer_map(buffer, 0, SIZE, &memory), ACCRT_OK);
  check_bytes(memory, SIZE, 0, 4);
  assert_int_equal(atomic_load(&test_driver.imports), 0);
  (void)close(fd);
  accrt_buffer_release(buffer);
  close_world();
}

/* ---- Uploads ---- */

typedef struct supply {
  uint64_t bad_first; /* pieces from here on fail */
  uint64_t untouched; /* this piece may not be asked for */
  atomic_uint pieces;
} supply_t;

static accrt_status_t supply(void* user, uint64_t offset_bytes, void* memory, uint64_t size_bytes) {
  supply_t* self = user;
  atomic_fetch_add(&self->pieces, 1);
  if (offset_bytes == self->untouched)
    return ACCRT_FAIL(INTERNAL, "nobody needs the piece at %" PRIu64, offset_bytes);
  if (offset_bytes >= self->bad_first)
    return ACCRT_FAIL(DATA_CORRUPT, "the piece at %" PRIu64 " is bad", offset_bytes);
  for (uint64_t i = 0; i < size_bytes; ++i)
    ((unsigned char*)memory)[i] = byte_at(offset_bytes + i, 2);
  return ACCRT_OK;
}

static void test_upload(void** state) {
  (void)state;
  for (int mode = 0; mode < MODES; ++mode) {
    open_world(modes[mode]);
    accrt_buffer_t* buffer = make_buffer(SIZE);
    uint64_t address, capacity;
    accrt_buffer_range(buffer, &address, &capacity);
    /* Within a piece, over two, over many; pieces without any. */
    const accrt_extent_t extents[] = {{10, 100, address},
                                      {200, 1, address + 128},
                                      {MIB - 50, 100, address + 1000},
                                      {3 * MIB + 7, SIZE - 3 * MIB - 7, address + 4096}};
    supply_t source = {.bad_first = UINT64_MAX, .untouched = 2 * MIB};
    accrt_upload_t upload = {.name = "accrt_program_create",
                             .size_bytes = SIZE,
                             .extents = extents,
                             .extent_count = 4,
                             .fill = supply,
                             .user = &source};
    assert_int_equal(accrt_device_upload(world.device, &upload), ACCRT_OK);
    assert_int_equal(atomic_load(&source.pieces), 5);
    unsigned char* to = malloc(SIZE);
    copy(at_buffer(buffer, 0), at_memory(to, 0), SIZE);
    assert_int_equal(synchronize(), ACCRT_OK);
    for (int i = 0; i < 4; ++i)
      check_bytes(to + (extents[i].address - address), extents[i].size_bytes,
                  extents[i].offset_bytes, 2);
    /* The first of the pieces that fail is told of. */
    for (int i = 0; i < 10; ++i) {
      source.bad_first = 3 * MIB;
      assert_int_equal(accrt_device_upload(world.device, &upload), ACCRT_ERROR_DATA_CORRUPT);
      accrt_error_t error = ACCRT_ERROR_INIT;
      assert_int_equal(accrt_last_error(&error), ACCRT_OK);
      assert_string_equal(error.message, "the piece at 3145728 is bad");
      assert_string_equal(error.operation, "accrt_program_create");
    }
    for (int n = 1; n < 8; ++n) {
      source.bad_first = UINT64_MAX;
      test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, n, ACCRT_ERROR_DRIVER);
      assert_int_equal(accrt_device_upload(world.device, &upload), ACCRT_ERROR_DRIVER);
    }
    atomic_store(&test_driver.fail_at[TEST_FUNCTION_QUEUE_ENQUEUE], 0);
    assert_int_equal(accrt_device_upload(world.device, &upload), ACCRT_OK);
    free(to);
    accrt_buffer_release(buffer);
    close_world();
  }
}

/* ---- Options ---- */

static void test_options(void** state) {
  (void)state;
  static const char* const bad[][2] = {
      {"staging.threads", "0"},          {"staging.threads", "65"},
      {"staging.threads", "two"},        {"staging.threads", ""},
      {"staging.threads", "-1"},         {"staging.ring_bytes", "1000"},
      {"staging.slot_bytes", "1048577"}, {"staging.slot_bytes", "99999999999999999999999"},
      {"staging.queues", "0"},           {"pool.one_mapping", "2"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    const accrt_option_t option = {bad[i][0], bad[i][1]};
    accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
    options.options = &option;
    options.option_count = 1;
    options.option_size_bytes = sizeof option;
    accrt_instance_t* instance;
    assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_non_null(strstr(error.message, bad[i][0]));
  }
  const accrt_option_t option = {"staging.thread", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = sizeof option;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_NOT_FOUND);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "staging.threads"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_there_and_back),
      cmocka_unit_test(test_plain_buffers),
      cmocka_unit_test(test_waits_for_its_turn),
      cmocka_unit_test(test_several_streams),
      cmocka_unit_test(test_failures_of_the_driver),
      cmocka_unit_test(test_without_pinning),
      cmocka_unit_test(test_out_of_host_memory),
      cmocka_unit_test(test_teardown),
      cmocka_unit_test(test_reset_in_flight),
      cmocka_unit_test(test_read_file),
      cmocka_unit_test(test_read_file_refuses),
      cmocka_unit_test(test_read_file_in_place),
      cmocka_unit_test(test_upload),
      cmocka_unit_test(test_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
