/* tests/cts/direct_large.c - more of the part `direct`: copies and fills beyond 4 GiB, where numbers
 * of 32 bits end. They need address space, not memory: a file of some MiB without a name is mapped
 * again and again behind itself, and where it matters another part of it lies in between.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <sys/mman.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)
#define PIECE_BYTES (UINT64_C(1) << 21)
/* The first, the middle and the last piece are themselves; all others are one. */
enum { PIECE_SHARED, PIECE_FIRST, PIECE_MIDDLE, PIECE_LAST, PIECES };

typedef struct large {
  unsigned char* at;
  uint64_t size_bytes; /* a multiple of PIECE_BYTES */
  accrt_driver_memory_t imported;
  bool is_imported;
} large_t;

static uint32_t piece_at(const large_t* large, uint64_t index) {
  const uint64_t count = large->size_bytes / PIECE_BYTES;
  if (index == 0)
    return PIECE_FIRST;
  if (index == count / 2)
    return PIECE_MIDDLE;
  return index == count - 1 ? PIECE_LAST : PIECE_SHARED;
}

static bool map_pieces(const large_t* large) {
  const int fd = memfd_create("accrt-cts", MFD_CLOEXEC);
  bool is_mapped = fd >= 0 && ftruncate(fd, (off_t)(PIECES * PIECE_BYTES)) == 0;
  for (uint64_t i = 0; is_mapped && i < large->size_bytes / PIECE_BYTES; ++i)
    is_mapped =
        mmap(large->at + i * PIECE_BYTES, PIECE_BYTES, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, fd, (off_t)(piece_at(large, i) * PIECE_BYTES)) != MAP_FAILED;
  if (fd >= 0)
    close(fd);
  return is_mapped;
}

static void large_end(direct_t* d, large_t* large) {
  if (large->is_imported)
    d->table->memory_unimport(d->device, &large->imported);
  munmap(large->at, large->size_bytes);
}

/* False, with the reason printed, where there is no address space, or too little for the shadow
 * that a sanitizer keeps of it. */
static bool large_begin(direct_t* d, uint64_t size_bytes, large_t* out_large) {
  *out_large = (large_t){.size_bytes = size_bytes};
  const char* reason = NULL;
#if defined(__SANITIZE_THREAD__)
  reason = "a sanitizer keeps more memory for these addresses than there is";
#endif
  void* at = MAP_FAILED;
  if (reason == NULL)
    at = mmap(NULL, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reason == NULL && at == MAP_FAILED)
    reason = "the system gives no address space of this size";
  out_large->at = at;
  if (reason == NULL && !map_pieces(out_large)) {
    reason = "the system maps no file so often";
    munmap(at, size_bytes);
  }
  if (reason != NULL) {
    print_message("  %" PRIu64 " MiB of addresses: %s\n", size_bytes >> 20, reason);
    d->is_skipped = true;
    return false;
  }
  if (d->table->memory_import == NULL)
    return true;
  out_large->is_imported =
      d->table->memory_import(d->device, at, size_bytes, &out_large->imported) == ACCRT_OK;
  return true;
}

/* Clears what there is, and brings in all pages: reads bring some at a time, writes one. */
static void clear(const large_t* large) {
  const uint64_t count = large->size_bytes / PIECE_BYTES;
  const uint64_t pieces[PIECES] = {1, 0, count / 2, count - 1};
  for (int i = 0; i < PIECES; ++i)
    memset(large->at + pieces[i] * PIECE_BYTES, 0xEE, PIECE_BYTES);
  const volatile unsigned char* bytes = large->at;
  for (uint64_t i = 0; i < large->size_bytes; i += 65536)
    (void)bytes[i];
}

static accrt_driver_binding_t binding_of(const large_t* large) {
  const uint64_t address = (uint64_t)(uintptr_t)large->at;
  return (accrt_driver_binding_t){large->is_imported ? large->imported.device_address : address,
                                  large->size_bytes};
}

/* Alone and in a list. */
static void run_both_ways(direct_t* d, const accrt_driver_command_t* command,
                          const accrt_driver_binding_t* bindings, uint32_t count, int way) {
  outcome_t outcome;
  accrt_driver_list_t* list = direct_list(d, command, 1, count, 0);
  if (way == 0)
    direct_enqueue(d, d->queue, command, bindings, count, NULL, 0, &outcome);
  else
    direct_submit(d, d->queue, list, bindings, count, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_OK);
  d->table->list_destroy(list);
}

/* ---- Fills ---- */

static void check_filled(const large_t* large, uint64_t begin, uint64_t end, uint64_t pattern) {
  static const uint64_t none = UINT64_C(0xEEEEEEEEEEEEEEEE);
  const uint64_t count = large->size_bytes / PIECE_BYTES;
  const uint64_t looked_at[4] = {0, 1, count / 2, count - 1};
  for (int i = 0; i < 4; ++i) {
    for (uint64_t at = 0; at < PIECE_BYTES; at += 8) {
      const uint64_t place = looked_at[i] * PIECE_BYTES + at;
      uint64_t word;
      memcpy(&word, large->at + place, 8);
      if (word != (place >= begin && place < end ? pattern : none))
        fail_msg("the word at %" PRIu64 " of %" PRIu64 " is %" PRIx64, place, large->size_bytes,
                 word);
    }
  }
}

/* A size beyond 4 GiB, whose low half is small. */
static void test_fills_beyond_4_gib(void** state) {
  direct_t* d = *state;
  large_t large;
  if (!large_begin(d, 4 * GIB + 2 * PIECE_BYTES, &large))
    return;
  clear(&large);
  const uint64_t begin = PIECE_BYTES - 32, size_bytes = 4 * GIB + 72;
  const accrt_driver_binding_t binding = binding_of(&large);
  accrt_driver_command_t command = fill_command(begin, size_bytes, 0);
  command.as.fill.pattern = UINT64_C(0x1122334455667788);
  command.as.fill.pattern_bytes = 8;
  run_both_ways(d, &command, &binding, 1, 0);
  check_filled(&large, begin, begin + size_bytes, command.as.fill.pattern);
  large_end(d, &large);
}

/* ---- Copies ---- */

typedef struct far_copy {
  uint64_t from_offset, to_offset;
  uint64_t extent[3];
  uint64_t from_stride[2], to_stride[2];
} far_copy_t;

/* Marks what the copy reads, clears what it writes; or checks that it is there. */
static void walk(const large_t* large, const far_copy_t* copy, unsigned char* other,
                 bool reads_large, bool checks) {
  for (uint64_t plane = 0; plane < copy->extent[2]; ++plane) {
    for (uint64_t row = 0; row < copy->extent[1]; ++row) {
      unsigned char* from = (reads_large ? large->at : other) + copy->from_offset +
                            row * copy->from_stride[0] + plane * copy->from_stride[1];
      unsigned char* to = (reads_large ? other : large->at) + copy->to_offset +
                          row * copy->to_stride[0] + plane * copy->to_stride[1];
      for (uint64_t i = 0; i < copy->extent[0]; ++i) {
        const unsigned char mark = (unsigned char)(1 + i + 31 * row + 101 * plane);
        if (checks && to[i] != mark)
          fail_msg("byte %" PRIu64 " of row %" PRIu64 " of plane %" PRIu64 " is not there", i, row,
                   plane);
        if (!checks) {
          from[i] = mark;
          to[i] = 0xEE;
        }
      }
    }
  }
}

/* Offsets, strides and planes beyond 4 GiB, of either side. Few bytes are copied: one row or plane
 * lies in the first piece, the others in those that are themselves. */
static void test_copies_reach_beyond_4_gib(void** state) {
  direct_t* d = *state;
  large_t large;
  if (!large_begin(d, 9 * GIB, &large))
    return;
  memory_t near = direct_memory(d, 4096);
  const uint64_t middle = large.size_bytes / PIECE_BYTES / 2 * PIECE_BYTES; /* 4.5 GiB */
  const uint64_t last = large.size_bytes - PIECE_BYTES;
  const far_copy_t copies[] = {
      {middle + 8, 0, {100, 1, 1}, {0, 0}, {0, 0}},                /* an offset */
      {16, 0, {100, 2, 1}, {middle, 0}, {100, 0}},                 /* a row */
      {24, 0, {100, 1, 2}, {0, middle}, {0, 100}},                 /* a plane */
      {32, 0, {100, 2, 2}, {200, last}, {100, 200}},               /* a plane, with rows */
      {40, 0, {50, 3, 1}, {middle - PIECE_BYTES / 4, 0}, {50, 0}}, /* a product beyond 8 GiB */
      {48, 0, {50, 1, 3}, {0, middle - PIECE_BYTES / 4}, {0, 50}},
      {middle, 0, {1, 300, 1}, {3, 0}, {1, 0}},
  };
  for (size_t i = 0; i < sizeof copies / sizeof *copies; ++i) {
    for (int way = 0; way < 4; ++way) {
      far_copy_t copy = copies[i];
      const bool reads_large = way < 2;
      if (!reads_large)
        copy = (far_copy_t){.from_offset = copies[i].to_offset,
                            .to_offset = copies[i].from_offset,
                            .extent = {copy.extent[0], copy.extent[1], copy.extent[2]},
                            .from_stride = {copies[i].to_stride[0], copies[i].to_stride[1]},
                            .to_stride = {copies[i].from_stride[0], copies[i].from_stride[1]}};
      accrt_driver_command_t command = copy_command(0, copy.from_offset, 1, copy.to_offset, 0);
      for (int k = 0; k < 3; ++k)
        command.as.copy.extent[k] = direct_constant(copy.extent[k]);
      for (int k = 0; k < 2; ++k) {
        command.as.copy.source_stride_bytes[k] = direct_constant(copy.from_stride[k]);
        command.as.copy.target_stride_bytes[k] = direct_constant(copy.to_stride[k]);
      }
      const uint64_t far_bytes = large.size_bytes - copies[i].from_offset;
      command.as.copy.source.size_bytes = direct_constant(reads_large ? far_bytes : 4096);
      command.as.copy.target.size_bytes = direct_constant(reads_large ? 4096 : far_bytes);
      const accrt_driver_binding_t far_one = binding_of(&large), near_one = direct_binding(&near);
      const accrt_driver_binding_t bindings[2] = {reads_large ? far_one : near_one,
                                                  reads_large ? near_one : far_one};
      walk(&large, &copy, near.host, reads_large, false);
      run_both_ways(d, &command, bindings, 2, way % 2);
      walk(&large, &copy, near.host, reads_large, true);
    }
  }
  large_end(d, &large);
}

/* A row of more than 4 GiB, whose low half is small. */
static void test_copies_beyond_4_gib(void** state) {
  direct_t* d = *state;
  large_t from, to;
  if (!large_begin(d, 4 * GIB + 2 * PIECE_BYTES, &from))
    return;
  if (!large_begin(d, 4 * GIB + 2 * PIECE_BYTES, &to)) {
    large_end(d, &from);
    return;
  }
  clear(&from);
  clear(&to);
  const uint64_t begin = PIECE_BYTES - 32, size_bytes = 4 * GIB + 72, end = begin + size_bytes;
  const uint64_t middle = from.size_bytes / PIECE_BYTES / 2 * PIECE_BYTES;
  const uint64_t places[3] = {begin, middle, end - 32};
  for (uint64_t i = 0; i < 3; ++i)
    memset(from.at + places[i], (int)(0x31 + i), 32);
  const accrt_driver_command_t command = copy_command(0, begin, 1, begin, size_bytes);
  const accrt_driver_binding_t bindings[2] = {binding_of(&from), binding_of(&to)};
  run_both_ways(d, &command, bindings, 2, 1);
  for (uint64_t i = 0; i < 3; ++i)
    assert_memory_equal(to.at + places[i], from.at + places[i], 32);
  for (uint64_t i = 0; i < 32; ++i)
    assert_true(to.at[end + i] == 0xEE && to.at[begin - 32 + i] == 0xEE);
  large_end(d, &from);
  large_end(d, &to);
}

/* Two bindings that seldom change, whose addresses differ by 4 GiB. */
static void test_stable_bindings_are_4_gib_apart(void** state) {
  direct_t* d = *state;
  large_t large;
  if (!large_begin(d, 9 * GIB, &large))
    return;
  const accrt_driver_command_t command = fill_command(0, 64, 0x66);
  const uint32_t flags[1] = {ACCRT_DRIVER_BINDING_STABLE};
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = 1,
                                         .commands = &command,
                                         .binding_count = 1,
                                         .binding_flags = flags};
  accrt_driver_list_t* list = NULL;
  assert_int_equal(d->table->list_create(d->device, &info, &list), ACCRT_OK);
  for (uint64_t run = 0; run < 4; ++run) {
    const uint64_t here = run % 2 * 4 * GIB, there = 4 * GIB - here;
    const accrt_driver_binding_t binding = {binding_of(&large).address + here, 64};
    memset(large.at + here, 0, 64);
    memset(large.at + there, 0, 64);
    direct_execute(d, list, &binding, 1, NULL, 0);
    assert_int_equal(large.at[here + 63], 0x66);
    assert_int_equal(large.at[there + 63], 0);
  }
  d->table->list_destroy(list);
  large_end(d, &large);
}

const cts_test_t cts_direct_large_tests[] = {
    CTS_O(test_fills_beyond_4_gib, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY),
    CTS_O(test_copies_reach_beyond_4_gib, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY),
    CTS_O(test_stable_bindings_are_4_gib_apart, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY),
    CTS_O(test_copies_beyond_4_gib, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_MEMORY), CTS_END};
