/* tests/cts/direct_memory.c - the part `direct`: memory of a device and of the host, memory that is
 * not there, and memory for other processes.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Memory ---- */

static void test_memory_is_what_was_asked_for(void** state) {
  direct_t* d = *state;
  for (uint32_t kind = 0; kind < 4; ++kind) {
    accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
    d->table->memory_info(d->device, kind, &info);
    assert_true(kind != ACCRT_MEMORY_DEVICE || info.supported == 1);
    if (!info.supported)
      continue;
    assert_true(info.granularity_bytes != 0);
    assert_true(info.alignment_bytes != 0 &&
                (info.alignment_bytes & (info.alignment_bytes - 1)) == 0);
    accrt_driver_memory_t pieces[8];
    for (uint64_t i = 0; i < 8; ++i) {
      const uint64_t size_bytes = info.granularity_bytes * (i + 1);
      memset(&pieces[i], 0xFF, sizeof pieces[i]);
      assert_int_equal(d->table->memory_allocate(d->device, kind, size_bytes, &pieces[i]),
                       ACCRT_OK);
      assert_true(pieces[i].size_bytes == size_bytes);
      assert_true(pieces[i].device_address != 0);
      assert_int_equal(pieces[i].device_address % info.alignment_bytes, 0);
      for (uint64_t k = 0; k < i; ++k)
        assert_true(pieces[i].device_address >= pieces[k].device_address + pieces[k].size_bytes ||
                    pieces[k].device_address >= pieces[i].device_address + size_bytes);
      if ((d->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
        assert_int_equal((uint64_t)(uintptr_t)pieces[i].host_pointer, pieces[i].device_address);
      if (pieces[i].host_pointer != NULL)
        memset(pieces[i].host_pointer, 0xCC, (size_t)size_bytes);
    }
    for (int i = 0; i < 8; ++i)
      d->table->memory_free(d->device, &pieces[i]);
    if (info.zeroed) {
      assert_int_equal(
          d->table->memory_allocate(d->device, kind, info.granularity_bytes, &pieces[0]), ACCRT_OK);
      for (uint64_t i = 0; pieces[0].host_pointer != NULL && i < info.granularity_bytes; ++i)
        assert_int_equal(((unsigned char*)pieces[0].host_pointer)[i], 0);
      d->table->memory_free(d->device, &pieces[0]);
    }
  }
}

static void test_memory_that_is_not_there(void** state) {
  direct_t* d = *state;
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  d->table->memory_info(d->device, ACCRT_MEMORY_DEVICE, &info);
  accrt_driver_memory_t memory;
  memset(&memory, 0xFF, sizeof memory);
  direct_failure.status = ACCRT_OK;
  const uint64_t size_bytes = (UINT64_C(1) << 60) / info.granularity_bytes * info.granularity_bytes;
  assert_int_equal(d->table->memory_allocate(d->device, ACCRT_MEMORY_DEVICE, size_bytes, &memory),
                   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
  const accrt_driver_memory_t nothing = {0};
  assert_memory_equal(&memory, &nothing, sizeof memory);
}

static void test_memory_of_others(void** state) {
  direct_t* d = *state;
  if (d->table->memory_import == NULL) {
    d->is_skipped = true;
    return;
  }
  static unsigned char mine[1 << 16];
  accrt_driver_memory_t memory;
  memset(&memory, 0, sizeof memory);
  assert_int_equal(d->table->memory_import(d->device, mine, sizeof mine, &memory), ACCRT_OK);
  assert_ptr_equal(memory.host_pointer, mine);
  assert_int_equal(memory.size_bytes, sizeof mine);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill = (accrt_driver_fill_t){
      .target = direct_range(ACCRT_DRIVER_NONE, direct_constant(memory.device_address + 100),
                             direct_constant(1000)),
      .pattern = 0x42,
      .pattern_bytes = 1};
  memset(mine, 0, sizeof mine);
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
  direct_await(d, &outcome);
  for (size_t i = 0; i < sizeof mine; ++i)
    assert_int_equal(mine[i], i >= 100 && i < 1100 ? 0x42 : 0);
  d->table->memory_unimport(d->device, &memory);
}

static void test_facts_are_filled(void** state) {
  direct_t* d = *state;
  accrt_device_info_t info;
  memset(&info, 0xFF, sizeof info);
  info.struct_size = (uint32_t)sizeof info;
  char left[sizeof info.name];
  memset(left, 0xFF, sizeof left);
  d->table->device_info(d->device, &info);
  assert_int_equal(info.struct_size, sizeof info);
  assert_int_equal((uintptr_t)info.next, UINTPTR_MAX);
  assert_memory_equal(info.name, left, sizeof info.name);
  assert_memory_equal(info.driver, left, sizeof info.driver);
  assert_int_equal(info.index, UINT32_MAX);
  assert_int_equal(info.flags & ~31u, 0);
  assert_true(memchr(info.description, '\0', sizeof info.description) != NULL);
  assert_true(info.description[0] != '\0' && info.description[0] != (char)0xFF);
  assert_true(memchr(info.arch, '\0', sizeof info.arch) != NULL && info.arch[0] != '\0');
  assert_true(info.concurrency >= 1 && info.concurrency != UINT32_MAX);
  assert_true(info.min_alignment_bytes != 0 && info.min_alignment_bytes != UINT32_MAX &&
              (info.min_alignment_bytes & (info.min_alignment_bytes - 1)) == 0);
  assert_true(info.memory_total_bytes != UINT64_MAX && info.queue_count != UINT32_MAX);
}

/* ---- Host memory ---- */

static void test_repeated_work_allocates_nothing(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill = (accrt_driver_fill_t){
      .target = direct_range(0, direct_scalar(0, 0), direct_constant(8)), .pattern_bytes = 1};
  accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 1);
  const accrt_driver_binding_t binding = direct_binding(&to);
  long before = 0;
  for (uint64_t i = 0; i < 72; ++i) {
    const uint64_t scalar = i % 8;
    if (i == 8)
      before = atomic_load(&d->allocations);
    direct_execute(d, list, &binding, 1, &scalar, 1);
  }
  assert_int_equal(atomic_load(&d->allocations), before);
  d->table->list_destroy(list);
}

/* Each allocation in turn fails: nothing is lost, outputs stay zero, and the record says so. */
static void test_without_host_memory(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "here"};
  accrt_driver_list_info_t info = {
      .struct_size = (uint32_t)sizeof info, .command_count = 1, .commands = &command};
  for (long allowed = 0; allowed < 64; ++allowed) {
    const long live = atomic_load(&d->live);
    accrt_driver_queue_t* queue = (accrt_driver_queue_t*)d;
    accrt_driver_list_t* list = (accrt_driver_list_t*)d;
    direct_failure.status = ACCRT_OK;
    atomic_store(&d->allowed, allowed);
    accrt_status_t status = d->table->queue_create(d->device, 0, &queue);
    const bool has_queue = status == ACCRT_OK;
    if (has_queue)
      status = d->table->list_create(d->device, &info, &list);
    atomic_store(&d->allowed, LONG_MAX);
    if (has_queue && status == ACCRT_OK) {
      d->table->list_destroy(list);
      d->table->queue_destroy(queue);
      assert_true(allowed > 0);
      return;
    }
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    if (d->library != NULL) /* built-in ones record it as the library does */
      assert_int_equal(direct_failure.status, ACCRT_ERROR_OUT_OF_MEMORY);
    if (has_queue) {
      assert_null(list);
      d->table->queue_destroy(queue);
    } else {
      assert_null(queue);
    }
    assert_int_equal(atomic_load(&d->live), live);
  }
  fail_msg("64 allocations are not enough for a queue and a list");
}

/* Memory of each kind is filled and copied to each other kind, and is freed by a description that
 * is equal to what was returned. */
static void test_memory_of_all_kinds_is_worked_on(void** state) {
  direct_t* d = *state;
  accrt_driver_memory_t memories[4];
  bool has[4];
  const uint64_t size_bytes = 4096;
  for (uint32_t kind = 0; kind < 4; ++kind) {
    accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
    d->table->memory_info(d->device, kind, &info);
    has[kind] = info.supported != 0;
  }
  memory_t seen = direct_memory(d, size_bytes);
  for (uint32_t kind = 0; kind < 4; ++kind) {
    if (has[kind])
      assert_int_equal(d->table->memory_allocate(d->device, kind,
                                                 direct_whole_size(d, kind, size_bytes),
                                                 &memories[kind]),
                       ACCRT_OK);
  }
  for (uint32_t from = 0; from < 4; ++from) {
    for (uint32_t to = 0; to < 4; ++to) {
      if (!has[from] || !has[to] || from == to)
        continue;
      const accrt_driver_binding_t bindings[3] = {{memories[from].device_address, size_bytes},
                                                  {memories[to].device_address, size_bytes},
                                                  direct_binding(&seen)};
      const accrt_driver_command_t commands[3] = {fill_command(0, size_bytes, 16 * from + to),
                                                  copy_command(0, 0, 1, 0, size_bytes),
                                                  copy_command(1, 0, 2, 0, size_bytes)};
      outcome_t outcomes[3];
      for (int i = 0; i < 3; ++i)
        direct_enqueue(d, d->queue, &commands[i], bindings, 3, NULL, 0, &outcomes[i]);
      for (int i = 0; i < 3; ++i)
        direct_await(d, &outcomes[i]);
      for (uint64_t i = 0; i < size_bytes; ++i)
        assert_int_equal(seen.host[i], 16 * from + to);
    }
  }
  for (uint32_t kind = 0; kind < 4; ++kind) {
    if (!has[kind])
      continue;
    const accrt_driver_memory_t same = memories[kind];
    memset(&memories[kind], 0xFF, sizeof memories[kind]);
    d->table->memory_free(d->device, &same);
  }
}

/* ---- Memory for other processes ---- */

/* Tells whether two pieces are one memory: what is written by either is read by the other, on the
 * device. */
static void check_same_memory(direct_t* d, const accrt_driver_memory_t* a,
                              const accrt_driver_memory_t* b, uint64_t byte) {
  memory_t seen = direct_memory(d, 256);
  for (int way = 0; way < 2; ++way) {
    const accrt_driver_memory_t* from = way == 0 ? a : b;
    const accrt_driver_memory_t* to = way == 0 ? b : a;
    const uint64_t value = byte + (uint64_t)way;
    const accrt_driver_binding_t bindings[2] = {{from->device_address, from->size_bytes},
                                                direct_binding(&seen)};
    const accrt_driver_command_t fill = fill_command(from->size_bytes - 256, 256, value);
    outcome_t filled, copied;
    direct_enqueue(d, d->queue, &fill, bindings, 1, NULL, 0, &filled);
    accrt_driver_command_t copy = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
    copy.as.copy = (accrt_driver_copy_t){
        .source = direct_range(0, direct_constant(to->size_bytes - 256), direct_constant(256)),
        .target = direct_range(1, direct_constant(0), direct_constant(256)),
        .extent = {direct_constant(256), direct_constant(1), direct_constant(1)},
        .source_stride_bytes = {direct_constant(0), direct_constant(0)},
        .target_stride_bytes = {direct_constant(0), direct_constant(0)}};
    const accrt_driver_binding_t others[2] = {{to->device_address, to->size_bytes},
                                              direct_binding(&seen)};
    direct_enqueue(d, d->queue, &copy, others, 2, NULL, 0, &copied);
    direct_await(d, &filled);
    direct_await(d, &copied);
    for (int i = 0; i < 256; ++i)
      assert_int_equal(seen.host[i], value);
  }
}

static bool is_zero(const void* data, size_t size_bytes) {
  const unsigned char* bytes = data;
  for (size_t i = 0; i < size_bytes; ++i) {
    if (bytes[i] != 0)
      return false;
  }
  return true;
}

/* A descriptor that was given is the receiver's, one that was lent stays the lender's, and memory
 * lives as long as anybody has it. */
static void test_memory_for_others(void** state) {
  direct_t* d = *state;
  if (!HAS(d, memory_allocate_exportable)) {
    d->is_skipped = true;
    return;
  }
  const uint32_t open_before = cts_count_entries("/proc/self/fd");
  accrt_driver_memory_t memory, opened[2];
  accrt_driver_handle_t handles[2];
  const accrt_status_t status =
      d->table->memory_allocate_exportable(d->device, 1 << 16, ACCRT_DRIVER_HANDLE_FD, &memory);
  if (status == ACCRT_ERROR_UNSUPPORTED) {
    d->is_skipped = true;
    return;
  }
  assert_int_equal(status, ACCRT_OK);
  assert_true(memory.size_bytes >= 1 << 16);
  if ((d->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
    assert_int_equal((uintptr_t)memory.host_pointer, memory.device_address);
  for (int i = 0; i < 2; ++i) {
    memset(&handles[i], 0xFF, sizeof handles[i]);
    assert_int_equal(
        d->table->memory_export(d->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handles[i]), ACCRT_OK);
    assert_int_equal(handles[i].kind, ACCRT_DRIVER_HANDLE_FD);
    assert_true(handles[i].fd >= 0);
    assert_int_equal(handles[i].size_bytes, memory.size_bytes);
  }
  assert_int_not_equal(handles[0].fd, handles[1].fd);
  assert_int_equal(close(handles[0].fd), 0); /* mine; the other one is not touched by it */
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(d->table->memory_import_handle(d->device, &handles[1], &opened[i]), ACCRT_OK);
    assert_int_not_equal(fcntl(handles[1].fd, F_GETFD), -1);
    assert_int_equal(opened[i].size_bytes, memory.size_bytes);
    if ((d->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
      assert_int_equal((uintptr_t)opened[i].host_pointer, opened[i].device_address);
  }
  assert_int_equal(close(handles[1].fd), 0);
  check_same_memory(d, &memory, &opened[0], 0x21);
  check_same_memory(d, &opened[0], &opened[1], 0x31);
  d->table->memory_free(d->device, &memory);
  check_same_memory(d, &opened[0], &opened[1], 0x41);
  d->table->memory_unimport(d->device, &opened[0]);
  check_same_memory(d, &opened[1], &opened[1], 0x51);
  d->table->memory_unimport(d->device, &opened[1]);
  assert_int_equal(cts_count_entries("/proc/self/fd"), open_before);
}

static uint32_t count_mappings(void) {
  FILE* file = fopen("/proc/self/maps", "r");
  assert_non_null(file);
  uint32_t count = 0;
  for (int character = fgetc(file); character != EOF; character = fgetc(file))
    count += character == '\n';
  fclose(file);
  return count;
}

#define OFTEN 100u
/* Memory that is freed, or closed, is no longer mapped. */
static void test_memory_for_others_leaves_nothing(void** state) {
  direct_t* d = *state;
  uint32_t before = 0;
  for (uint32_t turn = 0; HAS(d, memory_allocate_exportable) && turn <= OFTEN; ++turn) {
    accrt_driver_memory_t memory, opened;
    accrt_driver_handle_t handle;
    if (turn == 1)
      before = count_mappings();
    if (d->table->memory_allocate_exportable(d->device, 1 << 16, ACCRT_DRIVER_HANDLE_FD, &memory) !=
        ACCRT_OK)
      break;
    assert_int_equal(d->table->memory_export(d->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
                     ACCRT_OK);
    assert_int_equal(d->table->memory_import_handle(d->device, &handle, &opened), ACCRT_OK);
    close(handle.fd);
    if (turn % 2 == 0)
      d->table->memory_free(d->device, &memory);
    d->table->memory_unimport(d->device, &opened);
    if (turn % 2 != 0)
      d->table->memory_free(d->device, &memory);
  }
  d->is_skipped = before == 0;
  assert_true(before == 0 || count_mappings() < before + OFTEN / 2);
}

/* Memory of others that is given back may be imported again, as a whole and in part, and nothing
 * of the host's is kept for it. */
static void test_imported_memory_is_given_back(void** state) {
  direct_t* d = *state;
  enum { BYTES = 1 << 18 };
  if (d->table->memory_import == NULL) {
    d->is_skipped = true;
    return;
  }
  char* mine =
      mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  assert_true(mine != MAP_FAILED);
  uint32_t mappings = 0, open_before = 0;
  long live = 0;
  for (uint32_t turn = 0; turn <= OFTEN; ++turn) {
    if (turn == 2) { /* after the first time, when a driver may have set something up */
      mappings = count_mappings();
      open_before = cts_count_entries("/proc/self/fd");
      live = atomic_load(&d->live);
    }
    const uint64_t offset = turn % 2 == 0 ? 0 : BYTES / 4;
    const uint64_t size_bytes = turn % 2 == 0 ? BYTES : BYTES / 2;
    accrt_driver_memory_t memory;
    memset(&memory, 0, sizeof memory);
    assert_int_equal(d->table->memory_import(d->device, mine + offset, size_bytes, &memory),
                     ACCRT_OK);
    d->table->memory_unimport(d->device, &memory);
  }
  assert_true(count_mappings() < mappings + OFTEN / 2);
  assert_int_equal(cts_count_entries("/proc/self/fd"), open_before);
  assert_int_equal(atomic_load(&d->live), live);
  assert_int_equal(munmap(mine, BYTES), 0);
}

/* What cannot be exported, and kinds that nobody knows, are refused: outputs without anything, and
 * a record. */
static void test_memory_that_is_not_for_others(void** state) {
  direct_t* d = *state;
  if (!HAS(d, memory_allocate_exportable)) {
    d->is_skipped = true;
    return;
  }
  const uint32_t open_before = cts_count_entries("/proc/self/fd");
  memory_t plain = direct_memory(d, 256);
  accrt_driver_memory_t memory;
  accrt_driver_handle_t handle;
  memset(&memory, 0xFF, sizeof memory);
  direct_failure.status = ACCRT_OK;
  assert_int_equal(d->table->memory_allocate_exportable(d->device, 4096, 99, &memory),
                   ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_UNSUPPORTED);
  assert_true(is_zero(&memory, sizeof memory));
  memset(&handle, 0xFF, sizeof handle);
  direct_failure.status = ACCRT_OK;
  assert_int_equal(d->table->memory_export(d->device, &plain.own, ACCRT_DRIVER_HANDLE_FD, &handle),
                   ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(direct_failure.status, ACCRT_ERROR_UNSUPPORTED);
  assert_true(handle.kind == 0 && handle.fd <= 0 && handle.size_bytes == 0);
  handle = (accrt_driver_handle_t){.kind = 99, .fd = -1, .size_bytes = 4096};
  memset(&memory, 0xFF, sizeof memory);
  direct_failure.status = ACCRT_OK;
  assert_int_not_equal(d->table->memory_import_handle(d->device, &handle, &memory), ACCRT_OK);
  assert_int_not_equal(direct_failure.status, ACCRT_OK);
  assert_true(is_zero(&memory, sizeof memory));
  memset(&memory, 0xFF, sizeof memory);
  direct_failure.status = ACCRT_OK;
  const accrt_status_t huge = d->table->memory_allocate_exportable(d->device, UINT64_C(1) << 60,
                                                                   ACCRT_DRIVER_HANDLE_FD, &memory);
  assert_true(huge == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY || huge == ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(direct_failure.status, huge);
  assert_true(is_zero(&memory, sizeof memory));
  if (d->table->memory_allocate_exportable(d->device, 1 << 16, ACCRT_DRIVER_HANDLE_FD, &memory) ==
      ACCRT_OK) { /* a descriptor that is right, of a kind that is not */
    accrt_driver_memory_t opened;
    memset(&opened, 0xFF, sizeof opened);
    assert_int_equal(d->table->memory_export(d->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
                     ACCRT_OK);
    handle.kind = 99;
    assert_int_not_equal(d->table->memory_import_handle(d->device, &handle, &opened), ACCRT_OK);
    assert_true(is_zero(&opened, sizeof opened));
    assert_int_equal(close(handle.fd), 0);
    d->table->memory_free(d->device, &memory);
  }
  handle = (accrt_driver_handle_t){.kind = ACCRT_DRIVER_HANDLE_FD, .size_bytes = 4096};
  handle.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  assert_true(handle.fd >= 0);
  memset(&memory, 0xFF, sizeof memory);
  assert_int_not_equal(d->table->memory_import_handle(d->device, &handle, &memory), ACCRT_OK);
  assert_true(is_zero(&memory, sizeof memory));
  assert_int_equal(close(handle.fd), 0);
  assert_int_equal(cts_count_entries("/proc/self/fd"), open_before);
}

const cts_test_t cts_direct_memory_tests[] = {
    CTS_O(test_memory_is_what_was_asked_for, CTS_NEEDS_TABLE),
    CTS_O(test_memory_that_is_not_there, CTS_NEEDS_TABLE),
    CTS_O(test_memory_of_others, CTS_NEEDS_TABLE),
    CTS_O(test_facts_are_filled, CTS_NEEDS_TABLE),
    CTS_O(test_repeated_work_allocates_nothing, CTS_NEEDS_TABLE),
    CTS_O(test_without_host_memory, CTS_NEEDS_TABLE),
    CTS_O(test_memory_of_all_kinds_is_worked_on, CTS_NEEDS_TABLE),
    CTS_O(test_memory_for_others, CTS_NEEDS_TABLE),
    CTS_O(test_memory_for_others_leaves_nothing, CTS_NEEDS_TABLE),
    CTS_O(test_imported_memory_is_given_back, CTS_NEEDS_TABLE),
    CTS_O(test_memory_that_is_not_for_others, CTS_NEEDS_TABLE),
    CTS_END};
