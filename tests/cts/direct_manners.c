/* tests/cts/direct_manners.c - more of the part `direct`: where a driver's memory comes from, what
 * one piece of it has to do with another, and cases that mutants of sentences drawn by lot found
 * untested.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Host memory ---- */

static bool allocates(const char* name) {
  static const char* const functions[] = {
      "malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "memalign",
      "valloc", "strdup", "strndup", "asprintf",     "vasprintf",      "_Znwm",         "_Znam"};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    if (strcmp(name, functions[i]) == 0)
      return true;
  }
  return false;
}

/* The first allocating function that the library imports, or NULL. */
static const char* find_import(const unsigned char* image, size_t size_bytes) {
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)(const void*)image;
  if (size_bytes < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64)
    return NULL;
  const Elf64_Shdr* sections = (const Elf64_Shdr*)(const void*)(image + header->e_shoff);
  for (uint32_t i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM)
      continue;
    const Elf64_Sym* symbols = (const Elf64_Sym*)(const void*)(image + sections[i].sh_offset);
    const char* names = (const char*)image + sections[sections[i].sh_link].sh_offset;
    for (uint64_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k) {
      if (symbols[k].st_shndx == SHN_UNDEF && allocates(names + symbols[k].st_name))
        return names + symbols[k].st_name;
    }
  }
  return NULL;
}

/* A driver that is a file of its own imports no function that allocates: all memory comes from the
 * environment. */
static void test_all_memory_is_the_environment_s(void** state) {
  direct_t* d = *state;
  const int fd = d->library == NULL || strchr(cts_settings.driver, '/') == NULL
                     ? -1
                     : open(cts_settings.driver, O_RDONLY | O_CLOEXEC);
  struct stat about;
  d->is_skipped = fd < 0;
  if (d->is_skipped)
    return;
  assert_int_equal(fstat(fd, &about), 0);
  void* image = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  assert_true(image != MAP_FAILED);
  char found[64] = "";
  const char* name = find_import(image, (size_t)about.st_size);
  if (name != NULL)
    snprintf(found, sizeof found, "%s", name);
  munmap(image, (size_t)about.st_size);
  assert_string_equal(found, "");
}

/* ---- Memory for other processes ---- */

static void fill(direct_t* d, const accrt_driver_memory_t* memory, uint64_t byte) {
  const accrt_driver_binding_t binding = {memory->device_address, memory->size_bytes};
  const accrt_driver_command_t command = fill_command(0, memory->size_bytes, byte);
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, &binding, 1, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_OK);
}

static void check_bytes(direct_t* d, const accrt_driver_memory_t* memory, uint64_t byte) {
  memory_t seen = d->memories[0];
  const accrt_driver_binding_t bindings[2] = {{memory->device_address, memory->size_bytes},
                                              direct_binding(&seen)};
  const accrt_driver_command_t command = copy_command(0, 0, 1, 0, memory->size_bytes);
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, bindings, 2, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_OK);
  for (uint64_t i = 0; i < memory->size_bytes; ++i)
    assert_int_equal(seen.host[i], byte);
}

/* Whoever gets a handle of one piece reaches that piece, and nothing of the others. */
static void test_exported_memory_is_its_own(void** state) {
  direct_t* d = *state;
  enum { COUNT = 3, SIZE = 1 << 16 };
  accrt_driver_memory_t made[COUNT], opened[COUNT];
  if (!HAS(d, memory_allocate_exportable)) {
    d->is_skipped = true;
    return;
  }
  for (int i = 0; i < COUNT; ++i) {
    accrt_driver_handle_t handle;
    const accrt_status_t status =
        d->table->memory_allocate_exportable(d->device, SIZE, ACCRT_DRIVER_HANDLE_FD, &made[i]);
    if (i == 0 && status == ACCRT_ERROR_UNSUPPORTED) {
      d->is_skipped = true;
      return;
    }
    assert_int_equal(status, ACCRT_OK);
    assert_int_equal(d->table->memory_export(d->device, &made[i], ACCRT_DRIVER_HANDLE_FD, &handle),
                     ACCRT_OK);
    assert_int_equal(d->table->memory_import_handle(d->device, &handle, &opened[i]), ACCRT_OK);
    close(handle.fd);
  }
  (void)direct_memory(d, made[0].size_bytes);
  for (uint64_t i = 0; i < COUNT; ++i)
    fill(d, &made[i], 0x61 + i);
  for (uint64_t i = 0; i < COUNT; ++i) {
    check_bytes(d, &made[i], 0x61 + i);
    check_bytes(d, &opened[i], 0x61 + i);
  }
  fill(d, &opened[1], 0x77);
  check_bytes(d, &made[0], 0x61);
  check_bytes(d, &made[1], 0x77);
  check_bytes(d, &made[2], 0x63);
  for (int i = 0; i < COUNT; ++i) {
    d->table->memory_unimport(d->device, &opened[i]);
    d->table->memory_free(d->device, &made[i]);
  }
}

/* ---- What is empty, what is repeated ---- */

/* Absent is what has no address. What has one and no bytes is there. */
static void test_empty_buffers_are_not_absent(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 64);
  const uint64_t template[2] = {1, 2};
  const accrt_driver_patch_t patches[2] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(0), direct_constant(0))},
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .offset_bytes = 8,
       .size_bytes = 8,
       .range = direct_range(1, direct_constant(16), direct_scalar(0, 0))}};
  accrt_driver_command_t command =
      direct_dispatch(d, &direct_keep_block, template, sizeof template);
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = 2;
  accrt_driver_list_t* list = direct_list(d, &command, 1, 2, 1);
  const uint64_t address = memory.own.device_address, none = 0;
  for (int run = 0; run < 2; ++run) {
    const accrt_driver_binding_t bindings[2] = {{address, 0}, {address, run == 0 ? 64 : 16}};
    direct_forget_calls();
    direct_execute(d, list, bindings, 2, &none, 1);
    const uint64_t* got = (const uint64_t*)(const void*)direct_seen.block;
    assert_int_equal(got[0], address);
    assert_int_equal(got[1], address + 16);
  }
  d->table->list_destroy(list);
}

/* Neither work that failed before a reset nor work that was cancelled before one has succeeded. */
static void test_cancelled_numbers_have_not_succeeded(void** state) {
  direct_t* d = *state;
  mishap_t mishap;
  if (!HAS(d, queue_progress) || !HAS(d, queue_cancel) || !direct_make_mishap(d, &mishap)) {
    d->is_skipped = true;
    return;
  }
  const uint64_t good = direct_do_well(d, d->queue, &mishap);
  wait_for(d, d->queue, good);
  for (int turn = 0; turn < 2; ++turn) {
    outcome_t notice;
    d->table->queue_cancel(d->queue);
    (void)direct_do_behind(d, d->queue, &mishap, 0);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
    (void)direct_do_badly(d, d->queue, &mishap);
    direct_notify(d, d->queue, &notice);
    direct_await(d, &notice);
    for (int again = 0; again < 2; ++again) {
      uint64_t number = UINT64_MAX;
      assert_int_equal(d->table->queue_progress(d->queue, &number), ACCRT_ERROR_KERNEL);
      assert_int_equal(number, good);
    }
    assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
  }
  direct_end_mishap(d, &mishap);
}

/* The first workgroup of more than 32 bits can count cancels: the message has how many there are. */
static void test_cancelled_kernels_may_be_large(void** state) {
  direct_t* d = *state;
  if (!HAS(d, queue_cancel)) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_command_t command = direct_dispatch(d, &direct_cancel, &d, sizeof d);
  for (int i = 0; i < 2; ++i)
    command.as.dispatch.grid[i] = direct_constant(UINT64_C(65536) + (uint64_t)i);
  command.as.dispatch.grid[2] = direct_constant(3);
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcome);
  direct_await(d, &outcome);
  assert_int_equal(outcome.status, ACCRT_ERROR_CANCELLED);
  const char* message = outcome.error.message; /* the product, or its sides */
  assert_true(strstr(message, "12885098496") != NULL ||
              (strstr(message, "65536") != NULL && strstr(message, "65537") != NULL));
  assert_int_equal(d->table->queue_reset(d->queue), ACCRT_OK);
}

/* What is not run because the queue is busy has no number either. */
static void test_busy_queues_count_nothing(void** state) {
  direct_t* d = *state;
  if (!runs_beside(d) || !HAS(d, queue_progress) || d->table->queue_run == NULL) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_list_t* list = direct_list(d, NULL, 0, 0, 0);
  gate_t gate = {0};
  outcome_t held;
  hold_up(d, d->queue, &gate, &held);
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = next_number(d)};
  const accrt_status_t ran = d->table->queue_run(d->queue, list, &submission);
  let_go(&gate);
  direct_await(d, &held);
  assert_int_equal(ran, ACCRT_ERROR_NOT_READY);
  assert_int_equal(
      d->table->queue_wait(d->queue, submission.number, direct_patience_ns() / 4, ACCRT_WAIT_BLOCK),
      ACCRT_OK);
  assert_int_equal(ask(d, d->queue), held.number);
  d->table->list_destroy(list);
}

static void test_names_in_traces_are_whole(void** state) {
  direct_t* d = *state;
  static const size_t lengths[] = {63, 255, 256, 1000};
  for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    char name[1024];
    memset(name, 'n', lengths[i]);
    name[lengths[i]] = '\0';
    const accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = name};
    accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 0);
    outcome_t outcomes[2];
    direct_enqueue(d, d->queue, &command, NULL, 0, NULL, 0, &outcomes[0]);
    direct_submit(d, d->queue, list, NULL, 0, NULL, 0, &outcomes[1]);
    for (uint32_t way = 0; way < 2; ++way) {
      direct_await(d, &outcomes[way]);
      assert_int_equal(d->traces[2 * i + way].name_length, lengths[i]);
    }
    d->table->list_destroy(list);
  }
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

/* Memory of any size is closed. */
static void test_large_memory_for_others_leaves_nothing(void** state) {
  direct_t* d = *state;
  enum { TURNS = 60 };
  uint32_t before = 0;
  for (uint32_t turn = 0; HAS(d, memory_allocate_exportable) && turn <= TURNS; ++turn) {
    accrt_driver_memory_t memory, opened;
    accrt_driver_handle_t handle;
    if (turn == 1)
      before = count_mappings();
    if (d->table->memory_allocate_exportable(d->device, UINT64_C(4) << 20, ACCRT_DRIVER_HANDLE_FD,
                                             &memory) != ACCRT_OK)
      break;
    assert_int_equal(d->table->memory_export(d->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
                     ACCRT_OK);
    assert_int_equal(d->table->memory_import_handle(d->device, &handle, &opened), ACCRT_OK);
    close(handle.fd);
    d->table->memory_free(d->device, &memory);
    d->table->memory_unimport(d->device, &opened);
  }
  d->is_skipped = before == 0;
  assert_true(before == 0 || count_mappings() < before + TURNS / 2);
}

/* In both directions, often, and of a device with itself. */
static void test_peers_may_be_enabled_often(void** state) {
  direct_t* d = *state;
  if (!HAS(d, device_enable_peer) || d->table->device_count(d->driver) < 2) {
    d->is_skipped = true;
    return;
  }
  accrt_driver_device_t* other = NULL;
  assert_int_equal(d->table->device_open(d->driver, direct_other_index(d), &other), ACCRT_OK);
  for (int way = 0; way < 2; ++way) {
    accrt_driver_device_t* const device = way == 0 ? d->device : other;
    accrt_driver_device_t* const peer = way == 0 ? other : d->device;
    const accrt_status_t first = d->table->device_enable_peer(device, peer);
    assert_true(first == ACCRT_OK || first == ACCRT_ERROR_UNSUPPORTED);
    for (int turn = 0; turn < 20; ++turn)
      assert_int_equal(d->table->device_enable_peer(device, peer), first);
  }
  d->table->device_close(other);
}

const cts_test_t cts_direct_manner_tests[] = {
    CTS_O(test_all_memory_is_the_environment_s, CTS_NEEDS_TABLE),
    CTS_O(test_exported_memory_is_its_own, CTS_NEEDS_TABLE),
    CTS_O(test_empty_buffers_are_not_absent, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_cancelled_numbers_have_not_succeeded, CTS_NEEDS_TABLE),
    CTS_O(test_cancelled_kernels_may_be_large, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_busy_queues_count_nothing, CTS_NEEDS_TABLE),
    CTS_O(test_names_in_traces_are_whole,
          CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS | CTS_NEEDS_TRACING),
    CTS_O(test_large_memory_for_others_leaves_nothing, CTS_NEEDS_TABLE),
    CTS_O(test_peers_may_be_enabled_often, CTS_NEEDS_TABLE),
    CTS_END};
