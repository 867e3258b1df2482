/* runtime/drivers/common/transfer.c - copies and fills: checking places and ranges, making driver
 * commands. It may not know how streams work. */
#include <string.h>

#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/value.h"
#include "runtime/drivers/common/staging.h"

uint64_t accrt_place_size(const accrt_place_t* place, uint64_t size_bytes) {
  uint64_t address, buffer_bytes;
  if (size_bytes != ACCRT_TO_END || place->buffer == NULL)
    return size_bytes;
  accrt_buffer_range(place->buffer, &address, &buffer_bytes);
  return place->offset_bytes <= buffer_bytes ? buffer_bytes - place->offset_bytes : size_bytes;
}

/* An address of the buffer then says nothing to the device: only host memory has one that does. */
static bool is_of_other_driver(const accrt_device_t* device, const accrt_buffer_t* buffer) {
  return accrt_upper_device(accrt_buffer_device(buffer))->driver !=
         accrt_upper_device(device)->driver;
}

static accrt_status_t fail_reach(const accrt_device_t* device, const accrt_buffer_t* buffer,
                                 const char* what) {
  return ACCRT_FAIL(UNSUPPORTED, "%s: memory of %s is out of reach of %s%s", what,
                    accrt_device_facts(accrt_buffer_device(buffer))->name, device->info.name,
                    is_of_other_driver(device, buffer)
                        ? ""
                        : ": accrt_device_enable_peer was not called, or found no path");
}

accrt_status_t accrt_place_resolve(accrt_device_t* device, const accrt_place_t* place,
                                   uint64_t size_bytes, const char* what, uint64_t* out_address) {
  if (place->buffer != NULL) {
    uint64_t address, buffer_bytes;
    accrt_buffer_range(place->buffer, &address, &buffer_bytes);
    if (accrt_device_instance(accrt_buffer_device(place->buffer)) != device->instance) {
      return ACCRT_FAIL(
          INVALID_ARGUMENT, "%s: the buffer is of another instance's %s, the work of %s", what,
          accrt_device_facts(accrt_buffer_device(place->buffer))->name, device->info.name);
    }
    if (!accrt_range_fits(place->offset_bytes, size_bytes, buffer_bytes)) {
      return ACCRT_FAIL(
          OUT_OF_RANGE,
          "%s: offset %" PRIu64 " + size %" PRIu64 " is past the buffer's %" PRIu64 " bytes", what,
          place->offset_bytes, size_bytes != ACCRT_TO_END ? size_bytes : 0, buffer_bytes);
    }
    if (is_of_other_driver(device, place->buffer)) {
      address = (uint64_t)(uintptr_t)accrt_buffer_host_pointer(place->buffer);
      if (address == 0 && size_bytes > 0)
        return fail_reach(device, place->buffer, what);
    }
    *out_address = address + place->offset_bytes;
    return ACCRT_OK;
  }
  if (place->pointer == NULL && size_bytes > 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: neither a buffer nor a pointer", what);
  if (size_bytes == ACCRT_TO_END)
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: ACCRT_TO_END, and host memory has no known end", what);
  uint64_t end;
  const uint64_t base = (uint64_t)(uintptr_t)place->pointer;
  if (!accrt_add_u64(base, place->offset_bytes, out_address) ||
      !accrt_add_u64(*out_address, size_bytes, &end)) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s: offset %" PRIu64 " + size %" PRIu64 " from %p wraps around", what,
                      place->offset_bytes, size_bytes, place->pointer);
  }
  return ACCRT_OK;
}

static bool reaches(const accrt_device_t* device, const accrt_device_t* owner) {
  if (accrt_upper_device(device)->driver != accrt_upper_device(owner)->driver)
    return false;
  if (device->table->device_enable_peer == NULL)
    return true;
  const uint64_t peers =
      atomic_load_explicit(&accrt_upper_device(device)->peers, memory_order_relaxed);
  return accrt_upper_device(owner)->index < 64 &&
         (peers >> accrt_upper_device(owner)->index & 1) != 0;
}

/* Copies and fills of every device reach host memory. Kernels reach it on devices that reach all of
 * it, or whose driver it is from. */
static bool is_shared(const accrt_device_t* device, const accrt_buffer_t* buffer, bool by_kernel) {
  if (accrt_buffer_host_pointer(buffer) == NULL)
    return false;
  return !by_kernel || (device->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0 ||
         !is_of_other_driver(device, buffer);
}

accrt_status_t accrt_buffer_check_reach(const accrt_device_t* device, const accrt_buffer_t* buffer,
                                        bool by_kernel, const char* what) {
  const accrt_device_t* owner = accrt_buffer_device(buffer);
  if (owner == device || is_shared(device, buffer, by_kernel) || reaches(device, owner))
    return ACCRT_OK;
  return fail_reach(device, buffer, what);
}

static bool region_span(const uint64_t extent[3], const uint64_t stride_bytes[2],
                        uint64_t* out_size_bytes) {
  *out_size_bytes = 0;
  if (extent[0] == 0 || extent[1] == 0 || extent[2] == 0)
    return true;
  uint64_t span = extent[0];
  for (int i = 0; i < 2; ++i) {
    uint64_t reach = 0;
    if (extent[i + 1] > 1 && !accrt_mul_u64(extent[i + 1] - 1, stride_bytes[i], &reach))
      return false;
    if (!accrt_add_u64(span, reach, &span))
      return false;
  }
  *out_size_bytes = span;
  return true;
}

/* `count` things of size_bytes each, `stride_bytes` apart, have no byte in common. */
static bool apart(uint64_t size_bytes, uint64_t count, uint64_t stride_bytes) {
  return count <= 1 || stride_bytes >= size_bytes;
}

/* Things `inner` apart, repeated at `outer`. Their span fits: see region_span. */
static bool nested(const uint64_t extent[3], const uint64_t stride_bytes[2], int inner, int outer) {
  const uint64_t count = extent[1 + inner];
  const uint64_t span = extent[0] + (count > 1 ? (count - 1) * stride_bytes[inner] : 0);
  return apart(extent[0], count, stride_bytes[inner]) &&
         apart(span, extent[1 + outer], stride_bytes[outer]);
}

/* ACCRT_TO_END of one row: to the end of `end`. */
static accrt_status_t resolve_row(uint64_t extent[3], const accrt_place_t* end) {
  if (extent[1] != 1 || extent[2] != 1) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "extent[0] is ACCRT_TO_END, which is for one row, not for %" PRIu64
                      " x %" PRIu64,
                      extent[1], extent[2]);
  }
  if (end == NULL) {
    return ACCRT_FAIL(
        OUT_OF_RANGE,
        "extent[0] is ACCRT_TO_END, and where a binding ends is not known while the list is "
        "recorded");
  }
  extent[0] = accrt_place_size(end, extent[0]);
  return ACCRT_OK;
}

accrt_status_t accrt_region_check(accrt_copy_region_t* region, const accrt_place_t* end,
                                  uint64_t* out_source_bytes, uint64_t* out_target_bytes) {
  uint64_t* extent = region->extent;
  const uint64_t* stride = region->target_stride_bytes;
  if (extent[0] == ACCRT_TO_END && extent[1] != 0 && extent[2] != 0)
    ACCRT_TRY(resolve_row(extent, end));
  if (!region_span(extent, region->source_stride_bytes, out_source_bytes) ||
      !region_span(extent, stride, out_target_bytes)) {
    return ACCRT_FAIL(OVERFLOW,
                      "extents %" PRIu64 " x %" PRIu64 " x %" PRIu64
                      " with their strides do not fit 64 bits",
                      extent[0], extent[1], extent[2]);
  }
  /* Rows onto rows have no order, and would take a device as long as their number says. */
  if (*out_target_bytes == 0 || nested(extent, stride, 0, 1) || nested(extent, stride, 1, 0))
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "the target's rows overlap: extents %" PRIu64 " x %" PRIu64 " x %" PRIu64
                    ", strides %" PRIu64 " and %" PRIu64 " bytes",
                    extent[0], extent[1], extent[2], stride[0], stride[1]);
}

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

void accrt_buffer_note_or_wait(accrt_buffer_t* buffer, accrt_stream_t* stream, uint64_t number) {
  if (accrt_buffer_note_use(buffer, stream, number) == ACCRT_OK)
    return;
  (void)accrt_stream_wait_number(stream, number, ACCRT_TIMEOUT_INFINITE, ACCRT_TIMEOUT_INFINITE,
                                 ACCRT_WAIT_BLOCK);
}

static void note(const accrt_place_t* place, accrt_stream_t* stream, uint64_t number) {
  if (place->buffer != NULL)
    accrt_buffer_note_or_wait(place->buffer, stream, number);
}

/* Makes room for the note before anything is enqueued, where a lack of memory is still a plain
 * error. */
static accrt_status_t prepare_note(const accrt_place_t* place, accrt_stream_t* stream) {
  return place->buffer != NULL ? accrt_buffer_note_use(place->buffer, stream, 0) : ACCRT_OK;
}

/* `names` are those of the stream and of the two that follow. */
/* ---- Large copies of plain host memory ---- */

/* The place's address when it is plain host memory that the device does not reach as it is, else
 * NULL. */
static unsigned char* plain_memory(const accrt_stream_t* stream, const accrt_place_t* place) {
  if ((stream->device->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
    return NULL;
  unsigned char* memory =
      place->buffer != NULL ? accrt_buffer_plain_pointer(place->buffer) : place->pointer;
  return memory != NULL ? memory + place->offset_bytes : NULL;
}

static accrt_status_t move_up(void* user, uint64_t offset_bytes, void* memory,
                              uint64_t size_bytes) {
  memcpy(memory, (const unsigned char*)user + offset_bytes, (size_t)size_bytes);
  return ACCRT_OK;
}

static accrt_status_t move_down(void* user, uint64_t offset_bytes, void* memory,
                                uint64_t size_bytes) {
  memcpy((unsigned char*)user + offset_bytes, memory, (size_t)size_bytes);
  return ACCRT_OK;
}

/* Whether the engine does it: one end is plain host memory, there is enough of it, and the stream
 * can wait for it. */
static bool is_staged(const accrt_stream_t* stream, const accrt_place_t* source,
                      const accrt_place_t* target, const accrt_copy_region_t* region) {
  return !stream->foreign && region->extent[0] >= ACCRT_STAGING_MIN_BYTES &&
         region->extent[1] == 1 && region->extent[2] == 1 &&
         (plain_memory(stream, source) == NULL) != (plain_memory(stream, target) == NULL);
}

static accrt_status_t enqueue_staged(accrt_stream_t* stream, const accrt_place_t* source,
                                     const accrt_place_t* target, uint64_t size_bytes,
                                     const char* name, uint64_t* out_number) {
  unsigned char* from = plain_memory(stream, source);
  const accrt_place_t* device_place = from != NULL ? target : source;
  accrt_staged_t staged = {.direction =
                               from != NULL ? ACCRT_STAGING_TO_DEVICE : ACCRT_STAGING_FROM_DEVICE,
                           .name = name,
                           .move = from != NULL ? move_up : move_down,
                           .user = from != NULL ? from : plain_memory(stream, target),
                           .size_bytes = size_bytes,
                           .buffers = {source->buffer, target->buffer}};
  const accrt_status_t status =
      accrt_place_resolve(stream->device, device_place, size_bytes,
                          from != NULL ? "target" : "source", &staged.address);
  return status == ACCRT_OK ? accrt_stream_enqueue_staged(stream, &staged, out_number) : status;
}

static accrt_status_t enqueue_direct(accrt_stream_t* stream, const accrt_driver_command_t* command,
                                     const char* name, uint64_t* out_number) {
  const accrt_stream_work_t work = {.name = name};
  return accrt_stream_enqueue_work(stream, command, &work, out_number);
}

static accrt_status_t enqueue_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                   const accrt_place_t* target, accrt_copy_region_t* region,
                                   const char* name) {
  uint64_t source_bytes, target_bytes, from, to, number;
  ACCRT_TRY(accrt_region_check(region, source->buffer != NULL ? source : target, &source_bytes,
                               &target_bytes));
  ACCRT_TRY(accrt_place_resolve(stream->device, source, source_bytes, "source", &from));
  ACCRT_TRY(accrt_place_resolve(stream->device, target, target_bytes, "target", &to));
  if (overlap(from, source_bytes, to, target_bytes)) {
    return ACCRT_FAIL(ALIASED,
                      "source [0x%" PRIx64 ", +%" PRIu64 ") and target [0x%" PRIx64 ", +%" PRIu64
                      ") overlap",
                      from, source_bytes, to, target_bytes);
  }
  if (source_bytes == 0)
    return accrt_stream_check(stream);
  ACCRT_TRY(prepare_note(source, stream));
  ACCRT_TRY(prepare_note(target, stream));
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY, .name = name};
  command.as.copy = (accrt_driver_copy_t){
      .source = range_at(from, source_bytes, ACCRT_KERNEL_ACCESS_READ),
      .target = range_at(to, target_bytes, ACCRT_KERNEL_ACCESS_WRITE),
      .extent = {VALUE(region->extent[0]), VALUE(region->extent[1]), VALUE(region->extent[2])},
      .source_stride_bytes = {VALUE(region->source_stride_bytes[0]),
                              VALUE(region->source_stride_bytes[1])},
      .target_stride_bytes = {VALUE(region->target_stride_bytes[0]),
                              VALUE(region->target_stride_bytes[1])}};
  ACCRT_TRY(is_staged(stream, source, target, region)
                ? enqueue_staged(stream, source, target, region->extent[0], name, &number)
                : enqueue_direct(stream, &command, name, &number));
  note(source, stream, number);
  note(target, stream, number);
  return ACCRT_OK;
}

accrt_status_t accrt_inner_stream_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                       const accrt_place_t* target, uint64_t size_bytes) {
  ACCRT_CHECK(stream, source, target);
  accrt_copy_region_t region = {.extent = {size_bytes, 1, 1}};
  return enqueue_copy(stream, source, target, &region, "accrt_stream_copy");
}

accrt_status_t accrt_stream_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                 const accrt_place_t* target, uint64_t size_bytes) {
  ACCRT_ENTER_INNER(accrt_inner_stream_copy(stream, source, target, size_bytes));
}

accrt_status_t accrt_stream_copy_strided(accrt_stream_t* stream, const accrt_place_t* source,
                                         const accrt_place_t* target,
                                         const accrt_copy_region_t* region) {
  ACCRT_ENTER(stream, source, target, region);
  accrt_copy_region_t own = *region;
  return enqueue_copy(stream, source, target, &own, ACCRT_THIS_FUNCTION);
}

accrt_status_t accrt_fill_check(uint64_t offset_bytes, uint64_t size_bytes,
                                uint32_t pattern_bytes) {
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4 && pattern_bytes != 8) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "pattern_bytes %" PRIu32 " is not 1, 2, 4 or 8",
                      pattern_bytes);
  }
  /* ACCRT_TO_END is left where the end is not known: it is refused as a size that does not fit. */
  if (offset_bytes % pattern_bytes == 0 &&
      (size_bytes % pattern_bytes == 0 || size_bytes == ACCRT_TO_END))
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "offset %" PRIu64 " and size %" PRIu64
                    " are not both multiples of the pattern's %" PRIu32 " bytes",
                    offset_bytes, size_bytes, pattern_bytes);
}

accrt_status_t accrt_inner_stream_fill(accrt_stream_t* stream, const accrt_place_t* target,
                                       uint64_t size_bytes, uint64_t pattern,
                                       uint32_t pattern_bytes) {
  ACCRT_CHECK(stream, target);
  size_bytes = accrt_place_size(target, size_bytes);
  accrt_status_t status = accrt_fill_check(target->offset_bytes, size_bytes, pattern_bytes);
  uint64_t to = 0, number;
  if (status == ACCRT_OK)
    status = accrt_place_resolve(stream->device, target, size_bytes, "target", &to);
  if (status == ACCRT_OK && target->buffer != NULL)
    status = accrt_buffer_check_reach(stream->device, target->buffer, false, "target");
  if (status != ACCRT_OK)
    return status;
  if (to % pattern_bytes != 0 && size_bytes > 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "address 0x%" PRIx64 " is not aligned to the pattern's %" PRIu32 " bytes", to,
                      pattern_bytes);
  }
  if (size_bytes == 0)
    return accrt_stream_check(stream);
  ACCRT_TRY(prepare_note(target, stream));
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL,
                                    .name = "accrt_stream_fill"};
  command.as.fill =
      (accrt_driver_fill_t){.target = range_at(to, size_bytes, ACCRT_KERNEL_ACCESS_WRITE),
                            .pattern = pattern,
                            .pattern_bytes = pattern_bytes};
  status = enqueue_direct(stream, &command, "accrt_stream_fill", &number);
  if (status == ACCRT_OK)
    note(target, stream, number);
  return status;
}

accrt_status_t accrt_stream_fill(accrt_stream_t* stream, const accrt_place_t* target,
                                 uint64_t size_bytes, uint64_t pattern, uint32_t pattern_bytes) {
  ACCRT_ENTER_INNER(accrt_inner_stream_fill(stream, target, size_bytes, pattern, pattern_bytes));
}
