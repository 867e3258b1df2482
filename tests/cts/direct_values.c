/* tests/cts/direct_values.c - the part `direct`: values that are patched at each submission
 * (scalars, addresses, grids, patterns), and what is copied of the arrays that a submission is given.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

/* ---- Values that are patched at each submission ---- */

/* Copies 3 bytes by 2 rows by 2 planes with every number a scalar, twice with other scalars. */
static void test_copies_take_scalars(void** state) {
  direct_t* d = *state;
  memory_t from = direct_memory(d, 4096), to = direct_memory(d, 4096);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  accrt_driver_copy_t* copy = &command.as.copy;
  copy->source = direct_range(0, direct_scalar(5, 0), direct_scalar(0, 9));
  copy->target = direct_range(1, direct_scalar(7, 1), direct_scalar(0, 9));
  for (uint32_t i = 0; i < 3; ++i)
    copy->extent[i] = direct_scalar(1, 2 + i);
  for (uint32_t i = 0; i < 2; ++i) {
    copy->source_stride_bytes[i] = direct_scalar(2, 5 + i);
    copy->target_stride_bytes[i] = direct_scalar(1, 7 + i);
  }
  accrt_driver_list_t* list = direct_list(d, &command, 1, 2, 10);
  for (uint64_t run = 0; run < 2; ++run) {
    const uint64_t scalars[10] = {run * 3, run * 5,  2 + run, 1 + run,  1,
                                  6 + run, 20 + run, 8 + run, 30 + run, 512};
    for (size_t i = 0; i < 4096; ++i) {
      from.host[i] = (unsigned char)(i * 7 + run);
      to.host[i] = 0xEE;
    }
    const accrt_driver_binding_t bindings[2] = {direct_binding(&from), direct_binding(&to)};
    direct_execute(d, list, bindings, 2, scalars, 10);
    unsigned char wanted[4096];
    memset(wanted, 0xEE, sizeof wanted);
    for (uint64_t plane = 0; plane < scalars[4] + 1; ++plane) {
      for (uint64_t row = 0; row < scalars[3] + 1; ++row) {
        memcpy(wanted + 7 + scalars[1] + row * (scalars[7] + 1) + plane * (scalars[8] + 1),
               from.host + 5 + scalars[0] + row * (scalars[5] + 2) + plane * (scalars[6] + 2),
               scalars[2] + 1);
      }
    }
    assert_memory_equal(to.host, wanted, sizeof wanted);
  }
  d->table->list_destroy(list);
}

static void test_extents_of_zero_copy_nothing(void** state) {
  direct_t* d = *state;
  memory_t from = direct_memory(d, 256), to = direct_memory(d, 256);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  accrt_driver_copy_t* copy = &command.as.copy;
  copy->source = direct_range(0, direct_constant(0), direct_constant(64));
  copy->target = direct_range(1, direct_constant(0), direct_constant(64));
  for (uint32_t i = 0; i < 3; ++i)
    copy->extent[i] = direct_scalar(0, i);
  for (uint32_t i = 0; i < 2; ++i)
    copy->source_stride_bytes[i] = copy->target_stride_bytes[i] = direct_constant(8u << i);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 2, 3);
  const accrt_driver_binding_t bindings[2] = {direct_binding(&from), direct_binding(&to)};
  memset(from.host, 0x11, 256);
  memset(to.host, 0xEE, 256);
  for (uint64_t run = 0; run < 7; ++run) {
    const uint64_t scalars[3] = {run & 1 ? 4 : 0, run & 2 ? 2 : 0, run & 4 ? 2 : 0};
    direct_execute(d, list, bindings, 2, scalars, 3);
    for (size_t i = 0; i < 256; ++i)
      assert_int_equal(to.host[i], 0xEE);
  }
  d->table->list_destroy(list);
}

static void test_fills_take_scalars(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 4096);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_scalar(4, 0), direct_scalar(2, 1)),
                            .pattern = UINT64_C(0xFFFFFFFFFFFF1122),
                            .pattern_bytes = 2};
  accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 2);
  const accrt_driver_binding_t binding = direct_binding(&to);
  for (uint64_t run = 0; run < 3; ++run) {
    const uint64_t scalars[2] = {run * 10, run * 4};
    memset(to.host, 0, 4096);
    direct_execute(d, list, &binding, 1, scalars, 2);
    for (uint64_t i = 0; i < 4096; ++i) {
      const bool inside = i >= 4 + scalars[0] && i < 4 + scalars[0] + 2 + scalars[1];
      const unsigned char byte = i % 2 == 0 ? 0x22 : 0x11;
      assert_int_equal(to.host[i], inside ? byte : 0);
    }
  }
  d->table->list_destroy(list);
}

static void test_grids_take_scalars(void** state) {
  direct_t* d = *state;
  accrt_driver_command_t command = direct_dispatch(d, &direct_count, NULL, 0);
  for (uint32_t i = 0; i < 3; ++i)
    command.as.dispatch.grid[i] = direct_scalar(0, i);
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 3);
  static const uint64_t grids[][3] = {{1, 1, 1}, {3, 2, 4}, {0, 5, 5},
                                      {5, 0, 5}, {5, 5, 0}, {7, 1, 1}};
  for (size_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
    direct_forget_calls();
    direct_execute(d, list, NULL, 0, grids[i], 3);
    assert_int_equal(direct_seen.calls, grids[i][0] * grids[i][1] * grids[i][2]);
    if (direct_seen.calls != 0) {
      for (uint32_t k = 0; k < 3; ++k) {
        assert_int_equal(direct_seen.count[k], grids[i][k]);
        assert_int_equal(direct_seen.highest[k], grids[i][k] - 1);
      }
    }
  }
  d->table->list_destroy(list);
}

/* The low 1, 2, 4 or 8 bytes of constant + scalar modulo 2^64, and nothing beside them. */
static void test_values_are_patched_into_blocks(void** state) {
  direct_t* d = *state;
  unsigned char block[64];
  memset(block, 0xA5, sizeof block);
  static const uint32_t offsets[4] = {9, 26, 36, 56};
  accrt_driver_patch_t patches[4];
  for (uint32_t i = 0; i < 4; ++i) {
    patches[i] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                                        .offset_bytes = offsets[i],
                                        .size_bytes = 1u << i,
                                        .value = direct_scalar(UINT64_MAX - 2, i)};
  }
  accrt_driver_command_t command = direct_dispatch(d, &direct_keep_block, block, sizeof block);
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = 4;
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 4);
  for (uint64_t run = 0; run < 3; ++run) {
    const uint64_t scalars[4] = {run + 1, run + 300, run * UINT64_C(0x123456789), run + 3};
    direct_forget_calls();
    direct_execute(d, list, NULL, 0, scalars, 4);
    unsigned char wanted[64];
    memset(wanted, 0xA5, sizeof wanted);
    for (uint32_t i = 0; i < 4; ++i) {
      const uint64_t value = UINT64_MAX - 2 + scalars[i];
      memcpy(wanted + patches[i].offset_bytes, &value, patches[i].size_bytes);
    }
    assert_int_equal(direct_seen.params_size, sizeof wanted);
    assert_memory_equal(direct_seen.block, wanted, sizeof wanted);
  }
  d->table->list_destroy(list);
}

/* An address is the binding's and the offset, the offset alone without a binding, and 0 where the binding's address is 0. */
static void test_addresses_are_patched_into_blocks(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 512);
  const uint64_t template[4] = {1, 2, 3, 4};
  accrt_driver_patch_t patches[4];
  for (uint32_t i = 0; i < 4; ++i) {
    patches[i] = (accrt_driver_patch_t){
        .kind = ACCRT_DRIVER_PATCH_ADDRESS, .offset_bytes = 8 * i, .size_bytes = 8};
    patches[i].range =
        direct_range(i < 3 ? i : ACCRT_DRIVER_NONE, direct_scalar(16, 0), direct_constant(4));
  }
  patches[1].range.offset = direct_constant(0);
  accrt_driver_command_t command =
      direct_dispatch(d, &direct_keep_block, template, sizeof template);
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = 4;
  accrt_driver_list_t* list = direct_list(d, &command, 1, 3, 1);
  for (uint64_t run = 0; run < 4; ++run) {
    /* Each binding is absent in one of the runs. */
    accrt_driver_binding_t bindings[3];
    for (uint32_t i = 0; i < 3; ++i)
      bindings[i] = run == i ? (accrt_driver_binding_t){0, 0} : direct_binding(&memory);
    const uint64_t scalar = 8 * run;
    direct_forget_calls();
    direct_execute(d, list, bindings, 3, &scalar, 1);
    const uint64_t* got = (const uint64_t*)(const void*)direct_seen.block;
    for (uint32_t i = 0; i < 3; ++i) {
      const uint64_t offset = i == 1 ? 0 : 16 + scalar;
      assert_int_equal(got[i], run == i ? 0 : memory.own.device_address + offset);
    }
    assert_int_equal(got[3], 16 + scalar);
  }
  d->table->list_destroy(list);
}

/* The same for one command that is enqueued alone. */
static void test_commands_alone_are_patched(void** state) {
  direct_t* d = *state;
  memory_t memory = direct_memory(d, 512);
  const uint64_t template[3] = {9, 9, 9};
  accrt_driver_patch_t patches[3] = {
      {.kind = ACCRT_DRIVER_PATCH_VALUE, .size_bytes = 8, .value = direct_scalar(40, 0)},
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .offset_bytes = 8,
       .size_bytes = 8,
       .range = direct_range(0, direct_constant(8), direct_constant(4))},
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS,
       .offset_bytes = 16,
       .size_bytes = 8,
       .range = direct_range(1, direct_constant(8), direct_constant(4))}};
  accrt_driver_command_t command =
      direct_dispatch(d, &direct_keep_block, template, sizeof template);
  command.as.dispatch.patches = patches;
  command.as.dispatch.patch_count = 3;
  const accrt_driver_binding_t bindings[2] = {direct_binding(&memory), {0, 0}};
  const uint64_t scalar = 2;
  direct_forget_calls();
  outcome_t outcome;
  direct_enqueue(d, d->queue, &command, bindings, 2, &scalar, 1, &outcome);
  direct_await(d, &outcome);
  const uint64_t* got = (const uint64_t*)(const void*)direct_seen.block;
  assert_int_equal(got[0], 42);
  assert_int_equal(got[1], memory.own.device_address + 8);
  assert_int_equal(got[2], 0);
}

/* ---- What a submission is given is copied ---- */

static void test_arrays_may_change_after_the_call(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 64 * 8);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_scalar(0, 0), direct_constant(8)),
                            .pattern = 0x5A,
                            .pattern_bytes = 1};
  accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 1);
  memset(to.host, 0, 64 * 8);
  outcome_t outcomes[64];
  for (uint64_t i = 0; i < 64; ++i) {
    accrt_driver_binding_t binding = direct_binding(&to);
    uint64_t scalar = 8 * i;
    if (i % 2 == 0) {
      direct_submit(d, d->queue, list, &binding, 1, &scalar, 1, &outcomes[i]);
    } else {
      accrt_driver_command_t alone = command;
      direct_enqueue(d, d->queue, &alone, &binding, 1, &scalar, 1, &outcomes[i]);
      memset(&alone, 0xFF, sizeof alone);
    }
    memset(&binding, 0xFF, sizeof binding);
    scalar = UINT64_MAX;
  }
  for (uint64_t i = 0; i < 64; ++i)
    direct_await(d, &outcomes[i]);
  for (size_t i = 0; i < 64 * 8; ++i)
    assert_int_equal(to.host[i], 0x5A);
  d->table->list_destroy(list);
}

static void test_the_template_stays(void** state) {
  direct_t* d = *state;
  const uint64_t template[2] = {11, 22};
  uint64_t copy[2] = {11, 22};
  accrt_driver_patch_t patch = {
      .kind = ACCRT_DRIVER_PATCH_VALUE, .size_bytes = 8, .value = direct_scalar(0, 0)};
  accrt_driver_command_t command = direct_dispatch(d, &direct_keep_block, copy, sizeof copy);
  command.as.dispatch.patches = &patch;
  command.as.dispatch.patch_count = 1;
  accrt_driver_list_t* list = direct_list(d, &command, 1, 0, 1);
  for (uint64_t run = 0; run < 2; ++run) {
    direct_execute(d, list, NULL, 0, &run, 1);
    assert_memory_equal(copy, template, sizeof copy);
    assert_int_equal(((const uint64_t*)(const void*)direct_seen.block)[0], run);
  }
  d->table->list_destroy(list);
}

/* Patterns whose parts look like a smaller pattern. */
static void test_fills_repeat_every_byte_of_the_pattern(void** state) {
  direct_t* d = *state;
  memory_t to = direct_memory(d, 512);
  static const struct {
    uint64_t pattern;
    uint32_t bytes;
  } cases[] = {{UINT64_C(0x1122334400000000), 8},
               {UINT64_C(0x0000000011223344), 8},
               {UINT64_C(0xFFFFFFFF00000000), 8},
               {UINT64_C(0x00000000FFFFFFFF), 8},
               {UINT64_C(0x1111111122222222), 8},
               {UINT64_C(0x0101010101010102), 8},
               {0x11110000, 4},
               {0x00001111, 4},
               {0x01010102, 4},
               {0x0100, 2},
               {0x0001, 2},
               {0x7F, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const uint32_t counts[3] = {1, 2, 37};
    for (size_t k = 0; k < 3; ++k) {
      const uint64_t size_bytes = (uint64_t)counts[k] * cases[i].bytes;
      accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
      command.as.fill = (accrt_driver_fill_t){
          .target = direct_range(0, direct_constant(16), direct_constant(size_bytes)),
          .pattern = cases[i].pattern,
          .pattern_bytes = cases[i].bytes};
      const accrt_driver_binding_t binding = direct_binding(&to);
      accrt_driver_list_t* list = direct_list(d, &command, 1, 1, 0);
      for (int way = 0; way < 2; ++way) {
        memset(to.host, 0xEE, 512);
        outcome_t outcome;
        if (way == 0)
          direct_enqueue(d, d->queue, &command, &binding, 1, NULL, 0, &outcome);
        else
          direct_submit(d, d->queue, list, &binding, 1, NULL, 0, &outcome);
        direct_await(d, &outcome);
        for (uint64_t at = 0; at < 512; ++at) {
          const bool inside = at >= 16 && at < 16 + size_bytes;
          const uint64_t byte = cases[i].pattern >> (8 * ((at - 16) % cases[i].bytes)) & 0xFF;
          assert_int_equal(to.host[at], inside ? byte : 0xEE);
        }
      }
      d->table->list_destroy(list);
    }
  }
}

const cts_test_t cts_direct_value_tests[] = {
    CTS_O(test_copies_take_scalars, CTS_NEEDS_TABLE),
    CTS_O(test_extents_of_zero_copy_nothing, CTS_NEEDS_TABLE),
    CTS_O(test_fills_take_scalars, CTS_NEEDS_TABLE),
    CTS_O(test_grids_take_scalars, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_values_are_patched_into_blocks, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_addresses_are_patched_into_blocks, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_commands_alone_are_patched, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_arrays_may_change_after_the_call, CTS_NEEDS_TABLE),
    CTS_O(test_the_template_stays, CTS_NEEDS_TABLE | CTS_NEEDS_HOST_KERNELS),
    CTS_O(test_fills_repeat_every_byte_of_the_pattern, CTS_NEEDS_TABLE),
    CTS_END};
