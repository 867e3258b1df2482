/* tests/cts/copy.c - copies and fills between buffers and host memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fileno */
#endif
#include "cts.h"

#include <unistd.h>

#define AREA 20000

static void copy_plainly(unsigned char* target, const unsigned char* source,
                         const accrt_copy_region_t* region) {
  for (uint64_t z = 0; z < region->extent[2]; ++z) {
    for (uint64_t y = 0; y < region->extent[1]; ++y) {
      memcpy(target + y * region->target_stride_bytes[0] + z * region->target_stride_bytes[1],
             source + y * region->source_stride_bytes[0] + z * region->source_stride_bytes[1],
             region->extent[0]);
    }
  }
}

/* ---- What must work ---- */

static void test_host_and_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 1000);
  unsigned char out[1000];
  unsigned char in[1000];
  for (int i = 0; i < 1000; ++i)
    out[i] = (unsigned char)(i * 7);
  cts_upload(cts, buffer, 0, out, 1000);
  cts_download(cts, buffer, 0, in, 1000);
  assert_memory_equal(in, out, 1000);
  cts_download(cts, buffer, 500, in, 17);
  assert_memory_equal(in, out + 500, 17);
  accrt_buffer_release(buffer);
}

static void test_host_offsets(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 64);
  char text[32] = "0123456789abcdef";
  const accrt_place_t source = {.pointer = text, .offset_bytes = 10};
  const accrt_place_t target = cts_at(buffer, 3);
  OK(accrt_stream_copy(cts->stream, &source, &target, 6));
  char read[7] = {0};
  cts_download(cts, buffer, 3, read, 6);
  assert_string_equal(read, "abcdef");
  accrt_buffer_release(buffer);
}

static void test_buffer_to_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* first = cts_buffer(cts, 4096);
  accrt_buffer_t* second = cts_buffer(cts, 4096);
  uint32_t words[1024];
  for (uint32_t i = 0; i < 1024; ++i)
    words[i] = i * 2654435761u;
  cts_upload(cts, first, 0, words, sizeof words);
  const accrt_place_t source = cts_at(first, 1024);
  const accrt_place_t target = cts_at(second, 100);
  OK(accrt_stream_copy(cts->stream, &source, &target, 2048));
  uint32_t read[512];
  cts_download(cts, second, 100, read, sizeof read);
  assert_memory_equal(read, words + 256, sizeof read);
  accrt_buffer_release(first);
  accrt_buffer_release(second);
}

static void test_within_one_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 200);
  const accrt_place_t low = cts_at(buffer, 0);
  const accrt_place_t high = cts_at(buffer, 100);
  OK(accrt_stream_fill(cts->stream, &low, 100, 9, 1));
  OK(accrt_stream_copy(cts->stream, &low, &high, 100)); /* they touch, and do not overlap */
  unsigned char byte = 0;
  cts_download(cts, buffer, 199, &byte, 1);
  assert_int_equal(byte, 9);
  accrt_buffer_release(buffer);
}

static void test_large(void** state) {
  cts_t* cts = *state;
  const uint64_t size_bytes = (UINT64_C(9) << 20) + 13;
  accrt_buffer_t* first = cts_buffer(cts, size_bytes);
  accrt_buffer_t* second = cts_buffer(cts, size_bytes);
  unsigned char* memory = malloc(size_bytes);
  assert_non_null(memory);
  for (uint64_t i = 0; i < size_bytes; ++i)
    memory[i] = (unsigned char)(i * 31 + (i >> 13));
  cts_upload(cts, first, 0, memory, size_bytes);
  const accrt_place_t source = cts_at(first, 0);
  const accrt_place_t target = cts_at(second, 0);
  OK(accrt_stream_copy(cts->stream, &source, &target, size_bytes));
  unsigned char* read = malloc(size_bytes);
  assert_non_null(read);
  cts_download(cts, second, 0, read, size_bytes);
  assert_memory_equal(read, memory, size_bytes);
  free(read);
  free(memory);
  accrt_buffer_release(first);
  accrt_buffer_release(second);
}

/* Much plain memory, in the order of the stream: what came before is overwritten, what comes after overwrites. */
static void test_large_in_order(void** state) {
  cts_t* cts = *state;
  const uint64_t size_bytes = (UINT64_C(6) << 20) + 5;
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  unsigned char* memory = calloc(3, size_bytes);
  assert_non_null(memory);
  const accrt_place_t at = cts_at(buffer, 0), source = cts_host(memory),
                      first = cts_host(memory + size_bytes),
                      second = cts_host(memory + 2 * size_bytes);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, 1, 1));
  OK(accrt_stream_copy(cts->stream, &source, &at, size_bytes));
  OK(accrt_stream_copy(cts->stream, &at, &first, size_bytes));
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, 2, 1));
  OK(accrt_stream_copy(cts->stream, &at, &second, size_bytes));
  for (uint64_t i = 0; i < size_bytes; ++i)
    memory[i] = (unsigned char)(i * 13 + (i >> 11)); /* nothing was read yet */
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  assert_memory_equal(memory + size_bytes, memory, size_bytes);
  for (uint64_t i = 0; i < size_bytes; ++i)
    assert_int_equal(memory[2 * size_bytes + i], 2);
  free(memory);
  accrt_semaphore_release(gate);
  accrt_buffer_release(buffer);
}

/* A file of size_bytes, each byte by its place; its name is gone already. */
static int make_file(uint64_t size_bytes) {
  FILE* file = tmpfile();
  assert_non_null(file);
  for (uint64_t i = 0; i < size_bytes; ++i)
    (void)fputc((unsigned char)(i * 5 + (i >> 12)), file);
  assert_int_equal(fflush(file), 0);
  const int fd = dup(fileno(file));
  (void)fclose(file);
  return fd;
}

static void test_read_file(void** state) {
  cts_t* cts = *state;
  const uint64_t size_bytes = (UINT64_C(5) << 20) + 77;
  const int fd = make_file(size_bytes);
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  const accrt_place_t at = cts_at(buffer, 3);
  OK(accrt_stream_fill(cts->stream, &at, 10, 0, 1));
  OK(accrt_stream_read_file(cts->stream, fd, 1001, &at, size_bytes - 1001, 0));
  (void)close(fd);
  unsigned char* read = malloc(size_bytes);
  assert_non_null(read);
  cts_download(cts, buffer, 3, read, size_bytes - 1001);
  for (uint64_t i = 1001; i < size_bytes; ++i)
    assert_int_equal(read[i - 1001], (unsigned char)(i * 5 + (i >> 12)));
  free(read);
  accrt_buffer_release(buffer);
}

static void test_file_ends_early(void** state) {
  cts_t* cts = *state;
  const int fd = make_file(1000);
  accrt_buffer_t* buffer = cts_buffer(cts, 2000);
  const accrt_place_t at = cts_at(buffer, 0);
  accrt_stream_t* stream = cts_stream(cts);
  OK(accrt_stream_read_file(stream, fd, 500, &at, 501, 0));
  assert_int_equal(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_IO);
  OK(accrt_stream_reset(stream));
  OK(accrt_stream_read_file(stream, fd, 500, &at, 500, 0));
  cts_sync(stream);
  (void)close(fd);
  accrt_stream_release(stream);
  accrt_buffer_release(buffer);
}

static void test_not_a_file(void** state) {
  cts_t* cts = *state;
  const int fd = make_file(10);
  accrt_buffer_t* buffer = cts_buffer(cts, 100);
  const accrt_place_t at = cts_at(buffer, 0);
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  FAILS(IO, accrt_stream_read_file(cts->stream, -1, 0, &at, 1, 0));
  FAILS(IO, accrt_stream_read_file(cts->stream, ends[0], 0, &at, 1, 0));
  FAILS(OUT_OF_RANGE, accrt_stream_read_file(cts->stream, fd, 0, &at, 101, 0));
  FAILS(INVALID_ARGUMENT, accrt_stream_read_file(cts->stream, fd, 0, &at, 1, 4));
  FAILS(INVALID_ARGUMENT, accrt_stream_read_file(cts->stream, fd, 0, NULL, 1, 0));
  for (int i = 0; i < 2; ++i)
    (void)close(ends[i]);
  (void)close(fd);
  accrt_buffer_release(buffer);
}

static uint64_t below(uint64_t* seed, uint64_t limit) {
  return cts_random(seed) % limit;
}

static accrt_copy_region_t random_region(uint64_t* seed) {
  accrt_copy_region_t region;
  region.extent[0] = below(seed, 40);
  region.extent[1] = below(seed, 8);
  region.extent[2] = below(seed, 8);
  for (int side = 0; side < 2; ++side) {
    uint64_t* stride = side == 0 ? region.source_stride_bytes : region.target_stride_bytes;
    stride[0] = region.extent[0] + (below(seed, 2) ? below(seed, 24) : 0);
    stride[1] = stride[0] * (region.extent[1] + 1) + (below(seed, 2) ? below(seed, 40) : 0);
  }
  return region;
}

static void test_strided(void** state) {
  cts_t* cts = *state;
  uint64_t seed = cts_seed();
  static unsigned char source[AREA];
  static unsigned char expected[AREA];
  static unsigned char actual[AREA];
  for (int i = 0; i < AREA; ++i)
    source[i] = (unsigned char)cts_random(&seed);
  accrt_buffer_t* from = cts_buffer(cts, AREA);
  accrt_buffer_t* to = cts_buffer(cts, AREA);
  cts_upload(cts, from, 0, source, AREA);
  for (int i = 0; i < 200; ++i) {
    const accrt_copy_region_t region = random_region(&seed);
    const uint64_t source_offset = below(&seed, 50);
    const uint64_t target_offset = below(&seed, 50);
    const uint32_t ends = (uint32_t)below(&seed, 3); /* buffer-buffer, host-buffer, buffer-host */
    const accrt_place_t whole = cts_at(to, 0);
    OK(accrt_stream_fill(cts->stream, &whole, AREA, 0xEE, 1));
    memset(expected, 0xEE, AREA);
    memset(actual, 0xEE, AREA);
    const accrt_place_t source_at =
        ends == 1 ? cts_host(source + source_offset) : cts_at(from, source_offset);
    const accrt_place_t target_at =
        ends == 2 ? cts_host(actual + target_offset) : cts_at(to, target_offset);
    OK(accrt_stream_copy_strided(cts->stream, &source_at, &target_at, &region));
    copy_plainly(expected + target_offset, source + source_offset, &region);
    if (ends == 2) {
      cts_sync(cts->stream);
    } else {
      cts_download(cts, to, 0, actual, AREA);
    }
    assert_memory_equal(actual, expected, AREA);
  }
  accrt_buffer_release(from);
  accrt_buffer_release(to);
}

/* How rows and planes of LAYOUT_BYTES by LAYOUT_ROWS by LAYOUT_PLANES lie: packed and padded, in
 * the four ways of each order. The sources after them repeat what they have, or overlap. */
#define LAYOUT_BYTES 6
#define LAYOUT_ROWS 3
#define LAYOUT_PLANES 4
#define TARGET_LAYOUTS 8
static const uint64_t layouts[][2] = {{6, 18}, {6, 29}, {9, 27}, {9, 40}, /* rows in planes */
                                      {24, 6}, {32, 6}, {36, 9}, {45, 9}, /* planes in rows */
                                      {0, 7},  {11, 0}, {0, 0},  {2, 5}};
#define SOURCE_LAYOUTS (sizeof layouts / sizeof *layouts)
#define LAYOUT_AREA 200

static accrt_copy_region_t layout_region(size_t source, size_t target) {
  return (accrt_copy_region_t){{LAYOUT_BYTES, LAYOUT_ROWS, LAYOUT_PLANES},
                               {layouts[source][0], layouts[source][1]},
                               {layouts[target][0], layouts[target][1]}};
}

/* Copies between the two buffers (0), from host memory (1), to host memory (2), or by a recorded
 * list (3). */
static void copy_in_a_way(cts_t* cts, uint32_t way, accrt_buffer_t* buffers[2],
                          unsigned char* host[2], const accrt_copy_region_t* region) {
  accrt_place_t source = cts_at(buffers[0], 0), target = cts_at(buffers[1], 0);
  source.offset_bytes = 5;
  target.offset_bytes = 3;
  if (way < 3) {
    if (way == 1)
      source = cts_host(host[0] + source.offset_bytes);
    if (way == 2)
      target = cts_host(host[1] + target.offset_bytes);
    OK(accrt_stream_copy_strided(cts->stream, &source, &target, region));
    return;
  }
  accrt_commands_t* commands = NULL;
  const accrt_binding_place_t from = {.binding = 0, .place = {.offset_bytes = 5}};
  const accrt_binding_place_t to = {.binding = 1, .place = {.offset_bytes = 3}};
  const accrt_binding_t bindings[2] = {{.buffer = buffers[0], .size_bytes = ACCRT_TO_END},
                                       {.buffer = buffers[1], .size_bytes = ACCRT_TO_END}};
  OK(accrt_commands_create(cts->device, 2, &commands));
  OK(accrt_commands_copy(commands, &from, &to, region, NULL, NULL));
  OK(accrt_commands_finalize(commands));
  OK(accrt_stream_submit(cts->stream, commands, bindings, 2, CTS_BINDING_SIZE));
  accrt_commands_release(commands);
}

/* Every layout of a source to every one of a target: a driver may join packed rows or planes of a
 * side only if the other side has them packed, too. */
static void test_layouts(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffers[2] = {cts_buffer(cts, LAYOUT_AREA), cts_buffer(cts, LAYOUT_AREA)};
  unsigned char source[LAYOUT_AREA], expected[LAYOUT_AREA], actual[LAYOUT_AREA];
  for (uint32_t i = 0; i < LAYOUT_AREA; ++i)
    source[i] = (unsigned char)i;
  cts_upload(cts, buffers[0], 0, source, LAYOUT_AREA);
  unsigned char* host[2] = {source, actual};
  const accrt_place_t whole = cts_at(buffers[1], 0);
  for (size_t i = 0; i < SOURCE_LAYOUTS * TARGET_LAYOUTS * 4; ++i) {
    const size_t from = i / 4 / TARGET_LAYOUTS, to = i / 4 % TARGET_LAYOUTS;
    const uint32_t way = (uint32_t)(i % 4);
    const accrt_copy_region_t region = layout_region(from, to);
    memset(expected, 0xEE, LAYOUT_AREA);
    memset(actual, 0xEE, LAYOUT_AREA);
    copy_plainly(expected + 3, source + 5, &region);
    OK(accrt_stream_fill(cts->stream, &whole, LAYOUT_AREA, 0xEE, 1));
    copy_in_a_way(cts, way, buffers, host, &region);
    cts_sync(cts->stream);
    if (way != 2)
      cts_download(cts, buffers[1], 0, actual, LAYOUT_AREA);
    for (uint32_t at = 0; at < LAYOUT_AREA; ++at) {
      if (actual[at] != expected[at])
        fail_msg("strides %" PRIu64 ", %" PRIu64 " to %" PRIu64 ", %" PRIu64
                 ", way %u: byte %u is %u instead of %u",
                 region.source_stride_bytes[0], region.source_stride_bytes[1],
                 region.target_stride_bytes[0], region.target_stride_bytes[1], way, at, actual[at],
                 expected[at]);
    }
  }
  accrt_buffer_release(buffers[0]);
  accrt_buffer_release(buffers[1]);
}

/* Rows of the source may be repeated, planes may lie between rows, and nothing has no rows. */
static void test_unusual_regions(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* from = cts_buffer(cts, 64);
  accrt_buffer_t* to = cts_buffer(cts, 64);
  const accrt_place_t source = cts_at(from, 0);
  const accrt_place_t target = cts_at(to, 0);
  const accrt_copy_region_t regions[] = {
      {{8, 4, 2}, {0, 8}, {8, 32}},
      {{8, 2, 3}, {8, 16}, {24, 8}},
      {{0, UINT64_C(1) << 40, 1}, {0, 0}, {0, 0}},
      {{8, 0, UINT64_C(1) << 40}, {0, 0}, {0, 0}},
      {{8, 1, 1}, {0, 0}, {0, 0}},
  };
  unsigned char bytes[64];
  for (unsigned char i = 0; i < 64; ++i)
    bytes[i] = i;
  cts_upload(cts, from, 0, bytes, 64);
  for (size_t i = 0; i < sizeof regions / sizeof *regions; ++i) {
    unsigned char expected[64], read[64];
    memset(expected, 0xEE, sizeof expected);
    OK(accrt_stream_fill(cts->stream, &target, 64, 0xEE, 1));
    OK(accrt_stream_copy_strided(cts->stream, &source, &target, &regions[i]));
    if (regions[i].extent[0] != 0 && regions[i].extent[1] != 0)
      copy_plainly(expected, bytes, &regions[i]);
    cts_download(cts, to, 0, read, 64);
    assert_memory_equal(read, expected, 64);
  }
  accrt_buffer_release(to);
  accrt_buffer_release(from);
}

static void test_zero_extents(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* from = cts_buffer(cts, 64);
  accrt_buffer_t* to = cts_buffer(cts, 64);
  const accrt_place_t whole = cts_at(to, 0);
  OK(accrt_stream_fill(cts->stream, &whole, 64, 5, 1));
  for (int zero = 0; zero < 3; ++zero) {
    accrt_copy_region_t region = {{4, 3, 2}, {8, 24}, {8, 24}};
    region.extent[zero] = 0;
    const accrt_place_t source = cts_at(from, 64); /* at the end: nothing is read */
    const accrt_place_t target = cts_at(to, 64);
    OK(accrt_stream_copy_strided(cts->stream, &source, &target, &region));
  }
  const accrt_place_t end = cts_at(from, 64);
  const accrt_place_t to_end = cts_at(to, 64);
  OK(accrt_stream_copy(cts->stream, &end, &to_end, 0));
  OK(accrt_stream_fill(cts->stream, &to_end, 0, 0, 8));
  unsigned char bytes[64];
  cts_download(cts, to, 0, bytes, 64);
  for (int i = 0; i < 64; ++i)
    assert_int_equal(bytes[i], 5);
  accrt_buffer_release(from);
  accrt_buffer_release(to);
}

static void test_zero_size_buffers(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* empty = cts_buffer(cts, 0);
  const accrt_place_t at = cts_at(empty, 0);
  OK(accrt_stream_fill(cts->stream, &at, 0, 1, 1));
  cts_sync(cts->stream);
  accrt_buffer_release(empty);
}

static void test_fill_patterns(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = cts_buffer(cts, 4096);
  const uint64_t pattern = UINT64_C(0x8877665544332211);
  for (uint32_t bytes = 1; bytes <= 8; bytes *= 2) {
    const accrt_place_t whole = cts_at(buffer, 0);
    const accrt_place_t part = cts_at(buffer, 2 * bytes);
    OK(accrt_stream_fill(cts->stream, &whole, 4096, 0, 1));
    OK(accrt_stream_fill(cts->stream, &part, 400 * bytes, pattern, bytes));
    unsigned char read[4096];
    cts_download(cts, buffer, 0, read, 4096);
    for (uint64_t i = 0; i < 4096; ++i) {
      const bool inside = i >= 2 * bytes && i < 2 * bytes + 400 * bytes;
      const uint64_t shift = 8 * ((i - 2 * bytes) % bytes);
      assert_int_equal(read[i], inside ? (pattern >> shift) & 0xFF : 0);
    }
  }
  accrt_buffer_release(buffer);
}

static void test_fill_host_memory(void** state) {
  cts_t* cts = *state;
  static uint16_t words[50000];
  const accrt_place_t target = cts_host(words);
  OK(accrt_stream_fill(cts->stream, &target, sizeof words, 0xBEEF, 2));
  cts_sync(cts->stream);
  for (int i = 0; i < 50000; ++i)
    assert_int_equal(words[i], 0xBEEF);
}

static void test_chain(void** state) {
  cts_t* cts = *state;
  enum { LENGTH = 40 };
  accrt_buffer_t* buffers[LENGTH];
  for (int i = 0; i < LENGTH; ++i)
    buffers[i] = cts_buffer(cts, 1 << 14);
  const accrt_place_t first = cts_at(buffers[0], 0);
  OK(accrt_stream_fill(cts->stream, &first, 1 << 14, 0xCAFED00D, 4));
  for (int i = 1; i < LENGTH; ++i) {
    const accrt_place_t source = cts_at(buffers[i - 1], 0);
    const accrt_place_t target = cts_at(buffers[i], 0);
    OK(accrt_stream_copy(cts->stream, &source, &target, 1 << 14));
  }
  uint32_t last = 0;
  cts_download(cts, buffers[LENGTH - 1], (1 << 14) - 4, &last, 4);
  assert_int_equal(last, 0xCAFED00D);
  for (int i = 0; i < LENGTH; ++i)
    accrt_buffer_release(buffers[i]);
}

static void test_between_devices(void** state) {
  cts_t* cts = *state;
  accrt_pool_t* pool = NULL;
  OK(accrt_device_pool(cts->second, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_t* there = NULL;
  OK(accrt_buffer_create(pool, 256, NULL, &there));
  accrt_stream_t* stream = NULL;
  OK(accrt_stream_create(cts->second, NULL, &stream));
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  static uint32_t middle[64];
  accrt_buffer_t* here = cts_buffer(cts, 256);
  const accrt_place_t here_at = cts_at(here, 0);
  const accrt_place_t there_at = cts_at(there, 0);
  const accrt_place_t middle_at = cts_host(middle);
  OK(accrt_stream_wait(stream, semaphore, 1));
  OK(accrt_stream_copy(stream, &middle_at, &there_at, 256));
  static uint32_t read[64];
  const accrt_place_t read_at = cts_host(read);
  OK(accrt_stream_copy(stream, &there_at, &read_at, 256));
  OK(accrt_stream_fill(cts->stream, &here_at, 256, 4711, 4));
  OK(accrt_stream_copy(cts->stream, &here_at, &middle_at, 256));
  OK(accrt_stream_signal(cts->stream, semaphore, 1));
  cts_sync(stream);
  assert_int_equal(read[63], 4711);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  accrt_buffer_release(there);
  accrt_buffer_release(here);
}

/* ---- What must be refused. After each, the stream works and nothing has been written. ---- */

typedef struct pair {
  accrt_buffer_t* first;
  accrt_buffer_t* second;
} pair_t;

static pair_t make_pair(cts_t* cts) {
  const pair_t pair = {cts_buffer(cts, 128), cts_buffer(cts, 128)};
  const accrt_place_t first = cts_at(pair.first, 0);
  const accrt_place_t second = cts_at(pair.second, 0);
  OK(accrt_stream_fill(cts->stream, &first, 128, 1, 1));
  OK(accrt_stream_fill(cts->stream, &second, 128, 2, 1));
  return pair;
}

static void end_pair(cts_t* cts, pair_t pair) {
  unsigned char bytes[128];
  cts_download(cts, pair.first, 0, bytes, 128);
  for (int i = 0; i < 128; ++i)
    assert_int_equal(bytes[i], 1);
  cts_download(cts, pair.second, 0, bytes, 128);
  for (int i = 0; i < 128; ++i)
    assert_int_equal(bytes[i], 2);
  accrt_buffer_release(pair.first);
  accrt_buffer_release(pair.second);
}

static void test_copy_beyond_the_end(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t source = cts_at(pair.first, 100);
  const accrt_place_t target = cts_at(pair.second, 0);
  FAILS(OUT_OF_RANGE, accrt_stream_copy(cts->stream, &source, &target, 29));
  MESSAGE_HAS("100");
  MESSAGE_HAS("29");
  MESSAGE_HAS("128");
  FAILS(OUT_OF_RANGE, accrt_stream_copy(cts->stream, &target, &source, 29));
  end_pair(cts, pair);
}

static void test_copy_offset_overflow(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t source = cts_at(pair.first, UINT64_MAX - 3);
  const accrt_place_t target = cts_at(pair.second, 0);
  FAILS(OUT_OF_RANGE, accrt_stream_copy(cts->stream, &source, &target, 8));
  FAILS(OUT_OF_RANGE, accrt_stream_copy(cts->stream, &target, &source, 8));
  FAILS(OUT_OF_RANGE, accrt_stream_copy(cts->stream, &target, &target, UINT64_MAX - 1));
  FAILS(ALIASED, accrt_stream_copy(cts->stream, &target, &target, ACCRT_TO_END));
  end_pair(cts, pair);
}

static void test_copy_onto_itself(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t low = cts_at(pair.first, 0);
  const accrt_place_t high = cts_at(pair.first, 10);
  FAILS(ALIASED, accrt_stream_copy(cts->stream, &low, &high, 11));
  FAILS(ALIASED, accrt_stream_copy(cts->stream, &high, &low, 11));
  FAILS(ALIASED, accrt_stream_copy(cts->stream, &low, &low, 1));
  end_pair(cts, pair);
}

static void test_strided_copy_onto_itself(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t low = cts_at(pair.first, 0);
  const accrt_place_t high = cts_at(pair.first, 8);
  /* Rows interleave without a common byte: judged on bounding ranges all the same. */
  const accrt_copy_region_t region = {{8, 4, 1}, {16, 0}, {16, 0}};
  FAILS(ALIASED, accrt_stream_copy_strided(cts->stream, &low, &high, &region));
  end_pair(cts, pair);
}

static void test_strided_rows_onto_rows(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t source = cts_at(pair.first, 0);
  const accrt_place_t target = cts_at(pair.second, 0);
  const accrt_copy_region_t bad[] = {
      {{8, UINT64_C(1) << 40, 1}, {0, 0}, {0, 0}},
      {{8, 2, 1}, {8, 0}, {7, 0}},
      {{8, 1, UINT64_C(1) << 40}, {0, 0}, {0, 0}},
      {{8, 2, 2}, {8, 16}, {8, 12}},
      {{8, 2, 2}, {8, 16}, {12, 8}},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    FAILS(INVALID_ARGUMENT, accrt_stream_copy_strided(cts->stream, &source, &target, &bad[i]));
  end_pair(cts, pair);
}

static void test_strided_beyond_the_end(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t source = cts_at(pair.first, 0);
  const accrt_place_t target = cts_at(pair.second, 0);
  const accrt_copy_region_t rows = {{8, 5, 1}, {8, 0}, {31, 0}}; /* 4 * 31 + 8 = 132 */
  FAILS(OUT_OF_RANGE, accrt_stream_copy_strided(cts->stream, &source, &target, &rows));
  const accrt_copy_region_t planes = {{1, 2, 3}, {1, 64}, {1, 64}}; /* 2 * 64 + 1 + 1 = 130 */
  FAILS(OUT_OF_RANGE, accrt_stream_copy_strided(cts->stream, &source, &target, &planes));
  end_pair(cts, pair);
}

static void test_strided_overflow(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t source = cts_at(pair.first, 0);
  const accrt_place_t target = cts_at(pair.second, 0);
  const accrt_copy_region_t region = {{8, 3, 1}, {UINT64_C(1) << 63, 0}, {8, 0}};
  const accrt_status_t status = accrt_stream_copy_strided(cts->stream, &source, &target, &region);
  assert_true(status == ACCRT_ERROR_OVERFLOW || status == ACCRT_ERROR_OUT_OF_RANGE);
  const accrt_copy_region_t wide = {{UINT64_MAX, UINT64_MAX, 2}, {1, 1}, {1, 1}};
  assert_int_not_equal(accrt_stream_copy_strided(cts->stream, &source, &target, &wide), ACCRT_OK);
  end_pair(cts, pair);
}

static void test_fill_beyond_the_end(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t at = cts_at(pair.first, 64);
  FAILS(OUT_OF_RANGE, accrt_stream_fill(cts->stream, &at, 65, 0, 1));
  FAILS(OUT_OF_RANGE, accrt_stream_fill(cts->stream, &at, UINT64_MAX & ~UINT64_C(7), 0, 8));
  end_pair(cts, pair);
}

static void test_fill_of_odd_size(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t at = cts_at(pair.first, 0);
  const accrt_place_t odd = cts_at(pair.first, 2);
  FAILS(INVALID_ARGUMENT, accrt_stream_fill(cts->stream, &at, 6, 0, 4));
  FAILS(INVALID_ARGUMENT, accrt_stream_fill(cts->stream, &odd, 8, 0, 4));
  end_pair(cts, pair);
}

static void test_fill_pattern_of_three(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t at = cts_at(pair.first, 0);
  const uint32_t bad[] = {0, 3, 5, 16};
  for (int i = 0; i < 4; ++i) {
    FAILS(INVALID_ARGUMENT, accrt_stream_fill(cts->stream, &at, 48, 0, bad[i]));
  }
  end_pair(cts, pair);
}

static void test_copy_from_nowhere(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t nowhere = cts_host(NULL);
  const accrt_place_t at = cts_at(pair.first, 0);
  FAILS(INVALID_ARGUMENT, accrt_stream_copy(cts->stream, &nowhere, &at, 8));
  FAILS(INVALID_ARGUMENT, accrt_stream_copy(cts->stream, &at, &nowhere, 8));
  FAILS(INVALID_ARGUMENT, accrt_stream_fill(cts->stream, &nowhere, 8, 0, 1));
  end_pair(cts, pair);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  const pair_t pair = make_pair(cts);
  const accrt_place_t at = cts_at(pair.first, 0);
  FAILS(INVALID_ARGUMENT, accrt_stream_copy(cts->stream, NULL, &at, 8));
  FAILS(INVALID_ARGUMENT, accrt_stream_copy(cts->stream, &at, NULL, 8));
  FAILS(INVALID_ARGUMENT, accrt_stream_copy(NULL, &at, &at, 8));
  FAILS(INVALID_ARGUMENT, accrt_stream_copy_strided(cts->stream, &at, &at, NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_fill(cts->stream, NULL, 8, 0, 1));
  end_pair(cts, pair);
}

const cts_test_t cts_copy_tests[] = {
    CTS_P(test_host_and_buffer, 0),
    CTS_P(test_host_offsets, 0),
    CTS_P(test_buffer_to_buffer, 0),
    CTS_P(test_within_one_buffer, 0),
    CTS_P(test_large, 0),
    CTS_P(test_large_in_order, 0),
    CTS_P(test_read_file, 0),
    CTS_P(test_file_ends_early, 0),
    CTS_P(test_strided, 0),
    CTS_P(test_layouts, 0),
    CTS_P(test_unusual_regions, 0),
    CTS_P(test_zero_extents, 0),
    CTS_P(test_zero_size_buffers, 0),
    CTS_P(test_fill_patterns, 0),
    CTS_P(test_fill_host_memory, CTS_NEEDS_HOST_MEMORY),
    CTS_P(test_chain, 0),
    CTS_P(test_between_devices, CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_copy_beyond_the_end, 0),
    CTS_N(test_copy_offset_overflow, 0),
    CTS_N(test_copy_onto_itself, 0),
    CTS_N(test_strided_copy_onto_itself, 0),
    CTS_N(test_strided_rows_onto_rows, 0),
    CTS_N(test_strided_beyond_the_end, 0),
    CTS_N(test_strided_overflow, 0),
    CTS_N(test_fill_beyond_the_end, 0),
    CTS_N(test_fill_of_odd_size, 0),
    CTS_N(test_fill_pattern_of_three, 0),
    CTS_N(test_copy_from_nowhere, 0),
    CTS_N(test_not_a_file, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
