/* tests/cts/direct_models.c - the random tests of the part `direct`: much work at once, of all
 * kinds, whose results, ends and failures are those of a small model of the table. A seed is
 * printed; ACCRT_TEST_SEED repeats it.
 *
 * It may include public headers only, and use no instance. */
#define _GNU_SOURCE
#include "direct.h"

static uint64_t below(uint64_t* random, uint64_t limit) {
  return cts_random(random) % limit;
}

/* A number as a constant, as a scalar of this submission, or as a sum of both, modulo 2^64. */
#define MOST_SCALARS 64u
typedef struct scalars {
  uint64_t values[MOST_SCALARS];
  uint32_t count;
} scalars_t;

static accrt_driver_value_t value_in_a_way(scalars_t* scalars, uint64_t value, uint64_t* random) {
  const uint64_t way = below(random, 4);
  if (way == 0 || scalars->count == MOST_SCALARS)
    return direct_constant(value);
  const uint64_t part = way == 1 ? value : way == 2 ? below(random, value + 1) : cts_random(random);
  scalars->values[scalars->count] = part;
  return direct_scalar(value - part, scalars->count++);
}

/* Holds a queue up where that is possible, so that what follows is in flight at once. */
typedef struct holder {
  gate_t gate;
  outcome_t outcome;
  bool holds;
} holder_t;

static void begin_hold(direct_t* d, holder_t* self, accrt_driver_queue_t* queue, bool wanted) {
  memset(self, 0, sizeof *self);
  self->holds = wanted && runs_beside(d);
  if (self->holds)
    hold_up(d, queue, &self->gate, &self->outcome);
}

static void end_hold(direct_t* d, holder_t* self) {
  let_go(&self->gate);
  if (!self->holds)
    return;
  direct_await(d, &self->outcome);
  assert_int_equal(self->outcome.status, ACCRT_OK);
  assert_false(atomic_load(&self->gate.gave_up));
}

/* ---- Fills and copies ---- */

#define FIELD_BYTES 8192u
#define BATCH 24u

/* Patterns of which parts are alike. */
static uint64_t random_pattern(uint64_t* random) {
  const unsigned char bytes[4] = {0, 0xFF, (unsigned char)below(random, 256),
                                  (unsigned char)below(random, 256)};
  const uint64_t period = UINT64_C(1) << below(random, 4);
  const uint64_t odd = below(random, 16); /* 8 and above: none is */
  uint64_t pattern = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    uint64_t byte = i < period ? bytes[below(random, 4)] : pattern >> (8 * (i - period)) & 0xFF;
    pattern |= (i == odd ? byte ^ 1 : byte) << (8 * i);
  }
  return pattern;
}

static void add_fill(accrt_driver_command_t* command, scalars_t* scalars, uint64_t base,
                     unsigned char* model, uint64_t* random) {
  const uint32_t pattern_bytes = 1u << below(random, 4);
  const uint64_t pattern = random_pattern(random);
  const uint64_t most = below(random, 4) == 0 ? FIELD_BYTES / 2 : 200;
  const uint64_t size_bytes = below(random, most) / pattern_bytes * pattern_bytes;
  const uint64_t offset = below(random, FIELD_BYTES - size_bytes) / pattern_bytes * pattern_bytes;
  const bool absolute = below(random, 4) == 0;
  command->opcode = ACCRT_DRIVER_COMMAND_FILL;
  command->as.fill = (accrt_driver_fill_t){
      .target = direct_range(absolute ? ACCRT_DRIVER_NONE : 0,
                             value_in_a_way(scalars, absolute ? base + offset : offset, random),
                             value_in_a_way(scalars, size_bytes, random)),
      .pattern = pattern,
      .pattern_bytes = pattern_bytes};
  for (uint64_t i = 0; i < size_bytes; ++i)
    model[offset + i] = (unsigned char)(pattern >> (8 * (i % pattern_bytes)));
}

/* Strides of a target whose rows do not overlap: rows in planes, or planes in rows. */
static void target_strides(uint64_t strides[2], const uint64_t extent[3], uint64_t* random) {
  const int inner = (int)below(random, 2);
  strides[inner] = extent[0] + (below(random, 2) == 0 ? 0 : below(random, 9));
  const uint64_t count = extent[1 + inner] == 0 ? 1 : extent[1 + inner];
  strides[1 - inner] = count * strides[inner] + (below(random, 2) == 0 ? 0 : below(random, 9));
}

static uint64_t span(const uint64_t extent[3], const uint64_t strides[2]) {
  uint64_t bytes = extent[0];
  for (int i = 0; i < 2; ++i)
    bytes += extent[1 + i] > 1 ? (extent[1 + i] - 1) * strides[i] : 0;
  return bytes;
}

/* From the second half of the field to the first, or the reverse. */
static void add_copy(accrt_driver_command_t* command, scalars_t* scalars, unsigned char* model,
                     uint64_t* random) {
  const uint64_t extent[3] = {below(random, 8) == 0 ? 0 : 1 + below(random, 40),
                              below(random, 10) == 0 ? 0 : 1 + below(random, 6),
                              below(random, 10) == 0 ? 0 : 1 + below(random, 4)};
  uint64_t to[2], from[2];
  target_strides(to, extent, random);
  if (below(random, 2) == 0) {
    target_strides(from, extent, random);
  } else { /* rows of the source may overlap */
    from[0] = below(random, 4) == 0 ? 0 : below(random, 60);
    from[1] = below(random, 200);
  }
  const uint64_t half = FIELD_BYTES / 2, way = below(random, 2) * half;
  const uint64_t source = way + below(random, half - span(extent, from));
  const uint64_t target = half - way + below(random, half - span(extent, to));
  for (uint64_t plane = 0; plane < extent[2]; ++plane) {
    for (uint64_t row = 0; row < extent[1]; ++row)
      memcpy(model + target + row * to[0] + plane * to[1],
             model + source + row * from[0] + plane * from[1], extent[0]);
  }
  command->opcode = ACCRT_DRIVER_COMMAND_COPY;
  accrt_driver_copy_t* copy = &command->as.copy;
  copy->source =
      direct_range(0, value_in_a_way(scalars, source, random), direct_constant(span(extent, from)));
  copy->target =
      direct_range(1, value_in_a_way(scalars, target, random), direct_constant(span(extent, to)));
  for (int i = 0; i < 3; ++i)
    copy->extent[i] = value_in_a_way(scalars, extent[i], random);
  for (int i = 0; i < 2; ++i) { /* what does not count may be anything */
    const bool counts = extent[1 + i] > 1;
    const uint64_t nothing = below(random, 2) == 0 ? 0 : cts_random(random);
    copy->source_stride_bytes[i] = value_in_a_way(scalars, counts ? from[i] : nothing, random);
    copy->target_stride_bytes[i] = value_in_a_way(scalars, counts ? to[i] : nothing, random);
  }
}

/* A batch of random fills and copies, alone and in lists, all in flight, does to the memory what it
 * does to the model. */
static void test_random_fills_and_copies(void** state) {
  direct_t* d = *state;
  uint64_t random = cts_seed();
  memory_t memory = direct_memory(d, FIELD_BYTES);
  static unsigned char model[FIELD_BYTES];
  for (int turn = 0; turn < 30; ++turn) {
    accrt_driver_list_t* lists[BATCH] = {NULL};
    static accrt_driver_command_t commands[BATCH];
    static outcome_t outcomes[BATCH];
    static holder_t holder;
    for (uint32_t i = 0; i < FIELD_BYTES; ++i)
      memory.host[i] = model[i] = (unsigned char)below(&random, 256);
    begin_hold(d, &holder, d->queue, turn % 2 == 0);
    for (uint32_t i = 0; i < BATCH; ++i) {
      scalars_t scalars = {.count = 0};
      accrt_driver_binding_t bindings[2] = {direct_binding(&memory), direct_binding(&memory)};
      memset(&commands[i], 0, sizeof commands[i]);
      if (below(&random, 2) == 0)
        add_fill(&commands[i], &scalars, memory.own.device_address, model, &random);
      else
        add_copy(&commands[i], &scalars, model, &random);
      if (below(&random, 2) == 0) {
        direct_enqueue(d, d->queue, &commands[i], bindings, 2, scalars.values, scalars.count,
                       &outcomes[i]);
        memset(&commands[i], 0xFF, sizeof commands[i]);
      } else {
        lists[i] = direct_list(d, &commands[i], 1, 2, scalars.count);
        direct_submit(d, d->queue, lists[i], bindings, 2, scalars.values, scalars.count,
                      &outcomes[i]);
      }
      memset(bindings, 0xFF, sizeof bindings);
      memset(&scalars, 0xFF, sizeof scalars);
    }
    end_hold(d, &holder);
    for (uint32_t i = 0; i < BATCH; ++i) {
      direct_await(d, &outcomes[i]);
      assert_int_equal(outcomes[i].status, ACCRT_OK);
      if (lists[i] != NULL)
        d->table->list_destroy(lists[i]);
    }
    assert_memory_equal(memory.host, model, FIELD_BYTES);
  }
}

/* ---- Kernels that tell what they were given ---- */

typedef struct digest {
  uint64_t hash, submission;
  uint32_t size_bytes, grid[3];
  atomic_uint calls;
} digest_t;

static uint64_t hash_bytes(const unsigned char* bytes, uint64_t size_bytes) {
  uint64_t hash = UINT64_C(0xCBF29CE484222325);
  for (uint64_t i = 0; i < size_bytes; ++i)
    hash = (hash ^ bytes[i]) * UINT64_C(0x100000001B3);
  return hash;
}

/* Its block begins with the address of a digest. */
static int32_t tell_digest(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  digest_t* digest = *(digest_t* const*)dispatch->params;
  atomic_fetch_add(&digest->calls, 1);
  if (workgroup->workgroup_id[0] + workgroup->workgroup_id[1] + workgroup->workgroup_id[2] != 0)
    return 0;
  digest->hash = hash_bytes(dispatch->params, dispatch->params_size_bytes);
  digest->submission = dispatch->submission;
  digest->size_bytes = dispatch->params_size_bytes;
  for (int i = 0; i < 3; ++i)
    digest->grid[i] = dispatch->workgroup_count[i];
  return 0;
}

#define DIGEST(field, params_)                                                                     \
  static const accrt_kernel_def_t field##_def = {.struct_size = (uint32_t)sizeof field##_def,      \
                                                 .name = "direct." #field,                         \
                                                 .entry = tell_digest,                             \
                                                 .params_size_bytes = params_};                    \
  static const accrt_driver_kernel_t field = {&field##_def, &direct_environment, NULL};
DIGEST(digest_8, 8)
DIGEST(digest_24, 24)
DIGEST(digest_104, 104)
DIGEST(digest_all, ACCRT_KERNEL_MAX_PARAMS_BYTES)
static const accrt_driver_kernel_t* const digest_kernels[] = {&digest_8, &digest_24, &digest_104,
                                                              &digest_all};

#define LAUNCHES 400u
#define PREPARED 4u
typedef struct expected {
  uint64_t hash, number;
  uint32_t size_bytes, grid[3];
  bool runs_nothing;
} expected_t;

static void check_digest(const digest_t* digest, const expected_t* expected) {
  if (expected->runs_nothing) {
    assert_int_equal(atomic_load((atomic_uint*)(uintptr_t)&digest->calls), 0);
    return;
  }
  const uint32_t* grid = expected->grid;
  assert_int_equal(atomic_load((atomic_uint*)(uintptr_t)&digest->calls),
                   grid[0] * grid[1] * grid[2]);
  assert_memory_equal(digest->grid, grid, sizeof digest->grid);
  assert_int_equal(digest->size_bytes, expected->size_bytes);
  assert_int_equal(digest->submission, expected->number);
  assert_int_equal(digest->hash, expected->hash);
}

static void fill_random(void* bytes, size_t size_bytes, uint64_t* random) {
  for (size_t i = 0; i < size_bytes; ++i)
    ((unsigned char*)bytes)[i] = (unsigned char)cts_random(random);
}

static void expect(expected_t* expected, const void* block, uint32_t size_bytes,
                   const uint32_t grid[3], uint64_t number) {
  expected->hash = hash_bytes(block, size_bytes);
  expected->size_bytes = size_bytes;
  expected->number = number;
  memcpy(expected->grid, grid, sizeof expected->grid);
  expected->runs_nothing = grid[0] == 0 || grid[1] == 0 || grid[2] == 0;
}

/* Hundreds of prepared launches are in flight, of several kernels on two queues: each has the block,
 * the grid and the number that it was given. */
static void test_random_launches(void** state) {
  direct_t* d = *state;
  if (!HAS(d, launch_create)) {
    d->is_skipped = true;
    return;
  }
  uint64_t random = cts_seed();
  static digest_t digests[LAUNCHES];
  static expected_t expected[LAUNCHES];
  static _Alignas(16) unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  static holder_t holders[2];
  for (int turn = 0; turn < 3; ++turn) {
    accrt_driver_queue_t* queues[2] = {make_queue(d), make_queue(d)};
    accrt_driver_launch_t* launches[PREPARED];
    uint64_t last[2] = {0, 0};
    memset(digests, 0, sizeof digests);
    for (uint32_t i = 0; i < PREPARED; ++i)
      launches[i] = make_launch(d, digest_kernels[i]);
    begin_hold(d, &holders[0], queues[0], turn != 2);
    if (turn == 1 && holders[0].holds && HAS(d, event_create)) { /* held up, but by no kernel */
      accrt_driver_event_t* event = make_event(d, 0);
      record_event(d, queues[0], event);
      wait_event(d, queues[1], event);
      d->table->event_destroy(event);
    }
    atomic_fetch_add(&d->number, turn == 2 ? UINT64_C(1) << 33 : 5);
    for (uint32_t i = 0; i < LAUNCHES; ++i) {
      const uint64_t which = below(&random, 8) == 0 ? 3 : below(&random, 3), at = below(&random, 2);
      const uint32_t size_bytes = digest_kernels[which]->definition->params_size_bytes;
      uint32_t grid[3] = {1 + (uint32_t)below(&random, 3), 1 + (uint32_t)below(&random, 3),
                          1 + (uint32_t)below(&random, 3)};
      fill_random(block, size_bytes, &random);
      const uint64_t address = (uint64_t)(uintptr_t)&digests[i];
      memcpy(block, &address, 8);
      last[at] = next_number(d);
      expect(&expected[i], block, size_bytes, grid, last[at]);
      assert_int_equal(d->table->queue_launch(queues[at], launches[which], grid, block, last[at]),
                       ACCRT_OK);
      memset(block, 0xFF, size_bytes);
      memset(grid, 0xFF, sizeof grid);
      if (i == LAUNCHES / 2) { /* one that is in flight goes, and another one comes */
        d->table->launch_destroy(launches[0]);
        launches[0] = make_launch(d, digest_kernels[0]);
      }
    }
    for (uint32_t i = 0; i < PREPARED; ++i)
      d->table->launch_destroy(launches[i]);
    end_hold(d, &holders[0]);
    for (int i = 0; i < 2; ++i)
      wait_for(d, queues[i], last[i]);
    for (uint32_t i = 0; i < LAUNCHES; ++i)
      check_digest(&digests[i], &expected[i]);
    for (int i = 0; i < 2; ++i)
      d->table->queue_destroy(queues[i]);
  }
}

#define DISPATCHES 300u
#define MOST_PATCHES 24u
/* One dispatch and how its block is filled. */
typedef struct dispatch {
  accrt_driver_command_t command;
  accrt_driver_patch_t patches[MOST_PATCHES];
  unsigned char template[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  accrt_driver_list_t* list;
} dispatch_t;

static void add_patches(dispatch_t* self, unsigned char* block, uint32_t size_bytes,
                        const accrt_driver_binding_t* bindings, uint32_t binding_count,
                        scalars_t* scalars, uint64_t* random) {
  accrt_driver_dispatch_t* dispatch = &self->command.as.dispatch;
  uint32_t cell = 1; /* the first has the digest's address */
  while (dispatch->patch_count < MOST_PATCHES) {
    cell += (uint32_t)below(random, size_bytes > 256 ? 40 : 3);
    if (8 * cell + 8 > size_bytes)
      break;
    accrt_driver_patch_t* patch = &self->patches[dispatch->patch_count++];
    memset(patch, 0, sizeof *patch);
    uint64_t bits = below(random, 3) == 0 ? below(random, 300) : cts_random(random);
    patch->offset_bytes = 8 * cell++;
    patch->kind = below(random, 2) == 0 ? ACCRT_DRIVER_PATCH_VALUE : ACCRT_DRIVER_PATCH_ADDRESS;
    patch->size_bytes = 8;
    if (patch->kind == ACCRT_DRIVER_PATCH_VALUE) {
      patch->size_bytes = 1u << below(random, 4);
      patch->offset_bytes += (uint32_t)below(random, 8 / patch->size_bytes) * patch->size_bytes;
      patch->value = value_in_a_way(scalars, bits, random);
    } else {
      const uint32_t binding = (uint32_t)below(random, binding_count + 1);
      patch->range = direct_range(binding == binding_count ? ACCRT_DRIVER_NONE : binding,
                                  value_in_a_way(scalars, bits, random), direct_constant(1));
      if (binding < binding_count)
        bits = bindings[binding].address == 0 ? 0 : bindings[binding].address + bits;
    }
    memcpy(block + patch->offset_bytes, &bits, patch->size_bytes);
  }
  dispatch->patches = self->patches;
}

/* Hundreds of dispatches, alone and as lists, whose blocks are patched at random: each finds its
 * own, though all are in flight, and nothing of what was handed over is there any more. */
static void test_random_dispatches(void** state) {
  direct_t* d = *state;
  uint64_t random = cts_seed();
  static digest_t digests[DISPATCHES];
  static expected_t expected[DISPATCHES];
  static outcome_t outcomes[DISPATCHES];
  static holder_t holder;
  static unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  dispatch_t* all = calloc(DISPATCHES, sizeof *all);
  assert_non_null(all);
  for (int turn = 0; turn < 2; ++turn) {
    memset(digests, 0, sizeof digests);
    begin_hold(d, &holder, d->queue, turn == 0);
    for (uint32_t i = 0; i < DISPATCHES; ++i) {
      dispatch_t* self = &all[i];
      memset(self, 0, sizeof *self);
      uint32_t size_bytes = 8 + (uint32_t)below(&random, 120);
      if (below(&random, 30) == 0)
        size_bytes = 4096 - (uint32_t)below(&random, 20);
      fill_random(self->template, size_bytes, &random);
      const uint64_t address = (uint64_t)(uintptr_t)&digests[i];
      memcpy(self->template, &address, 8);
      memcpy(block, self->template, size_bytes);
      accrt_driver_binding_t bindings[8];
      const uint32_t binding_count = (uint32_t)below(&random, 9);
      for (uint32_t k = 0; k < binding_count; ++k)
        bindings[k] =
            (accrt_driver_binding_t){below(&random, 4) == 0 ? 0 : cts_random(&random), 64};
      scalars_t scalars = {.count = 0};
      self->command = direct_dispatch(d, &digest_all, self->template, size_bytes);
      add_patches(self, block, size_bytes, bindings, binding_count, &scalars, &random);
      uint32_t grid[3];
      for (int k = 0; k < 3; ++k) {
        grid[k] = (uint32_t)below(&random, 20) == 0 ? 0 : 1 + (uint32_t)below(&random, 3);
        self->command.as.dispatch.grid[k] = value_in_a_way(&scalars, grid[k], &random);
      }
      if (below(&random, 2) == 0) {
        direct_enqueue(d, d->queue, &self->command, bindings, binding_count, scalars.values,
                       scalars.count, &outcomes[i]);
        memset(self, 0xFF, sizeof *self);
        self->list = NULL;
      } else {
        self->list = direct_list(d, &self->command, 1, binding_count, scalars.count);
        direct_submit(d, d->queue, self->list, bindings, binding_count, scalars.values,
                      scalars.count, &outcomes[i]);
      }
      expect(&expected[i], block, size_bytes, grid, outcomes[i].number);
      memset(bindings, 0xFF, sizeof bindings);
      memset(&scalars, 0xFF, sizeof scalars);
    }
    end_hold(d, &holder);
    for (uint32_t i = 0; i < DISPATCHES; ++i) {
      direct_await(d, &outcomes[i]);
      assert_int_equal(outcomes[i].status, ACCRT_OK);
      check_digest(&digests[i], &expected[i]);
      assert_true(i == 0 || outcomes[i].order > outcomes[i - 1].order);
      if (all[i].list != NULL)
        d->table->list_destroy(all[i].list);
    }
  }
  free(all);
}

/* ---- Lists ---- */

#define SLOTS 12u
#define SLOT_BYTES 192u
#define MOST_BINDINGS 6u
#define LIST_COMMANDS 14u
#define LIST_SCALARS 3u
#define EXECUTIONS 24u
/* A command of a list: what it does is told again by the model. */
typedef struct step {
  uint32_t kind; /* 0: fill, 1: copy, 2: a kernel that writes its block */
  uint32_t to, from;
  uint64_t to_offset, from_offset, size_bytes;
  uint32_t to_scalar, value_scalar; /* NONE: a constant */
  uint64_t pattern;
} step_t;

typedef struct list_case {
  uint32_t binding_count, command_count;
  step_t steps[LIST_COMMANDS];
  accrt_driver_command_t commands[LIST_COMMANDS];
  uint32_t before[LIST_COMMANDS][LIST_COMMANDS];
  accrt_driver_patch_t patches[LIST_COMMANDS][2];
  uint64_t templates[LIST_COMMANDS][3];
} list_case_t;

/* Its block: an address, a value, a constant; all three are written to the address. */
static int32_t write_block(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const uint64_t* block = dispatch->params;
  memcpy((void*)(uintptr_t)block[0], block + 1, 16);
  return 0;
}
static const accrt_kernel_def_t write_block_def = {.struct_size = (uint32_t)sizeof write_block_def,
                                                   .name = "direct.write_block",
                                                   .entry = write_block,
                                                   .params_size_bytes = 24};
static const accrt_driver_kernel_t write_block_kernel = {&write_block_def, &direct_environment,
                                                         NULL};

static accrt_driver_value_t constant_or_scalar(uint64_t constant, uint32_t scalar) {
  return scalar == ACCRT_DRIVER_NONE ? direct_constant(constant) : direct_scalar(constant, scalar);
}

static uint32_t maybe_scalar(uint64_t* random) {
  const uint64_t scalar = below(random, 2 * LIST_SCALARS);
  return scalar < LIST_SCALARS ? (uint32_t)scalar : ACCRT_DRIVER_NONE;
}

static void make_step(list_case_t* self, uint32_t at, uint64_t* random) {
  step_t* step = &self->steps[at];
  accrt_driver_command_t* command = &self->commands[at];
  step->kind = (uint32_t)below(random, 3);
  step->to = (uint32_t)below(random, self->binding_count);
  step->from = (uint32_t)below(random, self->binding_count);
  if (step->kind == 1 && step->from == step->to)
    step->kind = 0;
  step->to_offset = 8 * below(random, 8);
  step->from_offset = below(random, 64);
  step->size_bytes = step->kind == 2 ? 16 : 8 * (1 + below(random, 6));
  step->to_scalar = maybe_scalar(random); /* a scalar is at most 64 */
  step->value_scalar = maybe_scalar(random);
  step->pattern = cts_random(random);
  const accrt_driver_value_t offset = constant_or_scalar(step->to_offset, step->to_scalar);
  const accrt_driver_range_t to = direct_range(step->to, offset, direct_constant(step->size_bytes));
  if (step->kind == 0) {
    command->opcode = ACCRT_DRIVER_COMMAND_FILL;
    command->as.fill =
        (accrt_driver_fill_t){.target = to, .pattern = step->pattern, .pattern_bytes = 8};
  } else if (step->kind == 1) {
    *command = copy_command(step->from, step->from_offset, step->to, 0, step->size_bytes);
    command->as.copy.target.offset = offset;
  } else {
    *command = direct_dispatch(NULL, &write_block_kernel, self->templates[at], 24);
    self->templates[at][2] = step->pattern;
    self->patches[at][0] =
        (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_ADDRESS, .size_bytes = 8, .range = to};
    self->patches[at][1] =
        (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                               .offset_bytes = 8,
                               .size_bytes = 8,
                               .value = constant_or_scalar(step->pattern, step->value_scalar)};
    command->as.dispatch.patches = self->patches[at];
    command->as.dispatch.patch_count = 2;
  }
}

/* Two commands with a binding in common are ordered. */
static bool touch(const step_t* a, const step_t* b) {
  return a->to == b->to || (a->kind == 1 && a->from == b->to) || (b->kind == 1 && b->from == a->to);
}

static accrt_driver_list_t* make_list(direct_t* d, list_case_t* self, uint64_t* random) {
  memset(self, 0, sizeof *self);
  self->binding_count = 1 + (uint32_t)below(random, MOST_BINDINGS);
  self->command_count = 1 + (uint32_t)below(random, LIST_COMMANDS);
  uint32_t flags[MOST_BINDINGS];
  const uint64_t stable = cts_random(random);
  for (uint32_t i = 0; i < self->binding_count; ++i)
    flags[i] = (stable >> i & 1) != 0 ? ACCRT_DRIVER_BINDING_STABLE : 0;
  for (uint32_t i = 0; i < self->command_count; ++i) {
    make_step(self, i, random);
    accrt_driver_command_t* command = &self->commands[i];
    for (uint32_t k = 0; k < i; ++k) {
      if (touch(&self->steps[i], &self->steps[k]))
        self->before[i][command->predecessor_count++] = k;
    }
    command->predecessors = self->before[i];
  }
  const bool is_flagged = below(random, 5) != 0;
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = self->command_count,
                                         .commands = self->commands,
                                         .binding_count = self->binding_count,
                                         .scalar_count = LIST_SCALARS,
                                         .binding_flags = is_flagged ? flags : NULL,
                                         .name = below(random, 2) == 0 ? NULL : "random %s"};
  accrt_driver_list_t* list = NULL;
  assert_int_equal(d->table->list_create(d->device, &info, &list), ACCRT_OK);
  memset(flags, 0xFF, sizeof flags);
  return list;
}

static void model_list(const list_case_t* self, unsigned char (*slots)[SLOT_BYTES],
                       const uint32_t* places, const uint64_t* scalars) {
  for (uint32_t i = 0; i < self->command_count; ++i) {
    const step_t* step = &self->steps[i];
    const uint64_t more = step->to_scalar == ACCRT_DRIVER_NONE ? 0 : scalars[step->to_scalar];
    unsigned char* to = slots[places[step->to]] + step->to_offset + more;
    if (step->kind == 0) {
      for (uint64_t k = 0; k < step->size_bytes; ++k)
        to[k] = (unsigned char)(step->pattern >> (8 * (k % 8)));
    } else if (step->kind == 1) {
      memcpy(to, slots[places[step->from]] + step->from_offset, step->size_bytes);
    } else {
      const uint64_t extra =
          step->value_scalar == ACCRT_DRIVER_NONE ? 0 : scalars[step->value_scalar];
      const uint64_t values[2] = {step->pattern + extra, step->pattern};
      memcpy(to, values, sizeof values);
    }
  }
}

/* Changes some of what the last execution had; often nothing. */
static void change_some(uint32_t* places, uint64_t* scalars, uint64_t* random) {
  const uint64_t swaps = below(random, 4);
  for (uint64_t i = 0; i < swaps; ++i) {
    const uint64_t a = below(random, MOST_BINDINGS), b = below(random, SLOTS);
    const uint32_t kept = places[a];
    places[a] = places[b];
    places[b] = kept;
  }
  if (below(random, 2) == 0)
    scalars[below(random, LIST_SCALARS)] = 8 * below(random, 9);
}

/* Lists of random commands with random flags, each executed many times, in several ways, with other
 * bindings and scalars each time, or with some of them, or with the same. */
static void test_random_lists(void** state) {
  direct_t* d = *state;
  uint64_t random = cts_seed();
  memory_t memory = direct_memory(d, sizeof(unsigned char[SLOTS][SLOT_BYTES]));
  static unsigned char model[SLOTS][SLOT_BYTES];
  static outcome_t outcomes[EXECUTIONS];
  static holder_t holder;
  list_case_t* lists = calloc(2, sizeof *lists);
  assert_non_null(lists);
  accrt_driver_queue_t* queues[2] = {d->queue, make_queue(d)};
  for (int turn = 0; turn < 40; ++turn) {
    accrt_driver_list_t* made[2] = {make_list(d, &lists[0], &random),
                                    make_list(d, &lists[1], &random)};
    accrt_driver_queue_t* queue = queues[below(&random, 2)];
    uint32_t places[SLOTS];
    uint64_t scalars[LIST_SCALARS] = {0, 8, 64};
    for (uint32_t i = 0; i < SLOTS; ++i)
      places[i] = i;
    fill_random(model, sizeof model, &random);
    memcpy(memory.host, model, sizeof model);
    const bool on_caller = turn % 4 == 0 && HAS(d, queue_run);
    begin_hold(d, &holder, queue, turn % 4 == 1);
    for (uint32_t i = 0; i < EXECUTIONS; ++i) {
      const uint64_t which = below(&random, 2);
      change_some(places, scalars, &random);
      model_list(&lists[which], model, places, scalars);
      accrt_driver_binding_t bindings[MOST_BINDINGS];
      uint64_t lent[LIST_SCALARS];
      for (uint32_t k = 0; k < MOST_BINDINGS; ++k)
        bindings[k] = (accrt_driver_binding_t){
            memory.own.device_address + (uint64_t)places[k] * SLOT_BYTES, SLOT_BYTES};
      memcpy(lent, scalars, sizeof lent);
      const uint32_t binding_count = lists[which].binding_count;
      if (on_caller) {
        const accrt_driver_submission_t submission =
            direct_submission(d, bindings, binding_count, lent, LIST_SCALARS, &outcomes[i]);
        assert_int_equal(d->table->queue_run(queue, made[which], &submission), ACCRT_OK);
      } else {
        direct_submit(d, queue, made[which], bindings, binding_count, lent, LIST_SCALARS,
                      &outcomes[i]);
        if (turn % 4 == 2) {
          direct_await(d, &outcomes[i]);
          queue = queues[below(&random, 2)];
        }
      }
      memset(bindings, 0xFF, sizeof bindings);
      memset(lent, 0xFF, sizeof lent);
    }
    end_hold(d, &holder);
    for (uint32_t i = 0; i < EXECUTIONS && !on_caller; ++i) {
      direct_await(d, &outcomes[i]);
      assert_int_equal(outcomes[i].status, ACCRT_OK);
    }
    assert_memory_equal(memory.host, model, sizeof model);
    for (int i = 0; i < 2; ++i)
      d->table->list_destroy(made[i]);
  }
  d->table->queue_destroy(queues[1]);
  free(lists);
}

/* ---- Queues, events and failures ---- */

#define QUEUES 3u
#define EVENTS 4u
#define OPERATIONS 90u
/* What the model knows of a queue or of a record: which cells are written before it, and whether it
 * has failed. */
typedef struct knowledge {
  uint64_t cells[(OPERATIONS + 63) / 64];
  bool failed;
} knowledge_t;

typedef struct network {
  direct_t* bench;
  accrt_driver_queue_t* queues[QUEUES];
  accrt_driver_event_t* events[EVENTS];
  knowledge_t of_queues[QUEUES], of_events[EVENTS];
  bool is_recorded[EVENTS];
  outcome_t outcomes[OPERATIONS];
  bool has_outcome[OPERATIONS];
  uint32_t queue_of[OPERATIONS];
  accrt_status_t wanted[OPERATIONS];
  uint64_t values[OPERATIONS]; /* of cells; each is written once */
  uint64_t registers[QUEUES];
  uint64_t* cells; /* on the device */
  uint64_t* device_registers;
} network_t;

typedef struct mix_block {
  uint64_t* reg;
  const uint64_t* source;
  uint64_t* target;
  uint64_t number;
} mix_block_t;

/* *reg = *reg * 31 + *source + number; *target = *reg */
static int32_t mix(const accrt_kernel_environment_t* environment,
                   const accrt_kernel_dispatch_t* dispatch,
                   const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const mix_block_t* block = dispatch->params;
  *block->reg = *block->reg * 31 + *block->source + block->number;
  *block->target = *block->reg;
  return 0;
}
static const accrt_kernel_def_t mix_def = {.struct_size = (uint32_t)sizeof mix_def,
                                           .name = "direct.mix",
                                           .entry = mix,
                                           .params_size_bytes = sizeof(mix_block_t)};
static const accrt_driver_kernel_t mix_kernel = {&mix_def, &direct_environment, NULL};

/* One of the cells that are written before, or any cell that nobody writes: the last. */
static uint32_t known_cell(const knowledge_t* knowledge, uint64_t* random) {
  for (int tries = 0; tries < 20; ++tries) {
    const uint32_t cell = (uint32_t)below(random, OPERATIONS);
    if ((knowledge->cells[cell / 64] >> (cell % 64) & 1) != 0)
      return cell;
  }
  return OPERATIONS;
}

static void submit_mix(network_t* self, uint32_t at, uint32_t q, bool fails, uint64_t* random) {
  knowledge_t* knowledge = &self->of_queues[q];
  const uint32_t source = known_cell(knowledge, random);
  const mix_block_t block = {&self->device_registers[q], &self->cells[source], &self->cells[at],
                             cts_random(random)};
  const accrt_driver_command_t command =
      fails ? direct_dispatch(self->bench, &direct_fail, NULL, 0)
            : direct_dispatch(self->bench, &mix_kernel, &block, sizeof block);
  self->has_outcome[at] = true;
  self->wanted[at] = knowledge->failed ? ACCRT_ERROR_POISONED
                     : fails           ? ACCRT_ERROR_KERNEL
                                       : ACCRT_OK;
  direct_enqueue(self->bench, self->queues[q], &command, NULL, 0, NULL, 0, &self->outcomes[at]);
  if (!knowledge->failed && !fails) {
    const uint64_t value = source == OPERATIONS ? 0 : self->values[source];
    self->registers[q] = self->registers[q] * 31 + value + block.number;
    self->values[at] = self->registers[q];
    knowledge->cells[at / 64] |= UINT64_C(1) << (at % 64);
  }
  knowledge->failed |= fails;
}

static void use_event(network_t* self, uint32_t q, uint64_t* random) {
  direct_t* d = self->bench;
  const uint32_t e = (uint32_t)below(random, EVENTS);
  knowledge_t* queue = &self->of_queues[q];
  knowledge_t* event = &self->of_events[e];
  const uint64_t kind = below(random, 8);
  if (kind < 4) {
    record_event(d, self->queues[q], self->events[e]);
    *event = *queue;
    self->is_recorded[e] = true;
  } else if (kind < 7) {
    for (uint64_t i = below(random, 3); i < 3; ++i) /* once or several times */
      wait_event(d, self->queues[q], self->events[e]);
    if (!self->is_recorded[e] || queue->failed)
      return;
    queue->failed |= event->failed;
    for (size_t i = 0; i < sizeof queue->cells / sizeof *queue->cells; ++i)
      queue->cells[i] |= event->failed ? 0 : event->cells[i];
  } else { /* another one, while a record of it may be in flight */
    d->table->event_destroy(self->events[e]);
    self->events[e] = make_event(d, 0);
    self->is_recorded[e] = false;
  }
}

static void operate(network_t* self, uint32_t at, uint64_t* random) {
  const uint32_t q = (uint32_t)below(random, QUEUES);
  const uint64_t kind = below(random, 20);
  self->queue_of[at] = q;
  if (kind < 8 && HAS(self->bench, event_create)) {
    use_event(self, q, random);
  } else if (kind < 11) {
    self->has_outcome[at] = true;
    self->wanted[at] = self->of_queues[q].failed ? ACCRT_ERROR_KERNEL : ACCRT_OK;
    direct_notify(self->bench, self->queues[q], &self->outcomes[at]);
  } else {
    submit_mix(self, at, q, kind == 11 && below(random, 3) == 0, random);
  }
}

static void check_network(network_t* self) {
  direct_t* d = self->bench;
  outcome_t last[QUEUES];
  const outcome_t* before[QUEUES] = {NULL};
  for (uint32_t q = 0; q < QUEUES; ++q) {
    direct_notify(d, self->queues[q], &last[q]);
    direct_await(d, &last[q]);
    assert_int_equal(last[q].status, self->of_queues[q].failed ? ACCRT_ERROR_KERNEL : ACCRT_OK);
  }
  for (uint32_t i = 0; i < OPERATIONS; ++i) {
    if (!self->has_outcome[i])
      continue;
    const outcome_t* outcome = &self->outcomes[i];
    direct_await(d, outcome);
    assert_int_equal(outcome->status, self->wanted[i]);
    assert_int_equal(atomic_load(&self->outcomes[i].times), 1);
    const outcome_t* earlier = before[self->queue_of[i]];
    if (earlier != NULL)
      assert_true(outcome->order > earlier->order && outcome->time_ns >= earlier->time_ns);
    before[self->queue_of[i]] = outcome;
    if (self->wanted[i] != ACCRT_OK) /* whoever is told, is told of the kernel */
      assert_non_null(strstr(self->outcomes[i].error.message, "on purpose"));
  }
  for (uint32_t e = 0; e < EVENTS && HAS(d, event_create); ++e) {
    const bool failed = self->is_recorded[e] && self->of_events[e].failed;
    assert_int_equal(reach(d, self->events[e]), failed ? ACCRT_ERROR_KERNEL : ACCRT_OK);
    assert_int_equal(d->table->event_query(self->events[e]),
                     failed ? ACCRT_ERROR_KERNEL : ACCRT_OK);
    assert_int_equal(d->table->event_synchronize(self->events[e], 0, e % 3),
                     failed ? ACCRT_ERROR_KERNEL : ACCRT_OK);
  }
  for (uint32_t i = 0; i < OPERATIONS; ++i)
    assert_int_equal(self->cells[i], self->values[i]);
  assert_memory_equal(self->device_registers, self->registers, sizeof self->registers);
}

/* Random work on three queues, tied by events that are recorded again, waited for and destroyed
 * while all of it is in flight: what ends how, and what is computed, follows from the order of the
 * calls. */
static void test_random_networks(void** state) {
  direct_t* d = *state;
  uint64_t random = cts_seed();
  static network_t network;
  static holder_t holder;
  memset(&network, 0, sizeof network);
  network_t* self = &network;
  memory_t memory = direct_memory(d, (OPERATIONS + 1 + QUEUES) * 8);
  self->bench = d;
  self->cells = (uint64_t*)(void*)memory.host;
  self->device_registers = self->cells + OPERATIONS + 1;
  for (uint32_t q = 0; q < QUEUES; ++q)
    self->queues[q] = make_queue(d);
  for (uint32_t e = 0; e < EVENTS && HAS(d, event_create); ++e)
    self->events[e] = make_event(d, 0);
  for (int turn = 0; turn < 40; ++turn) {
    memset(self->has_outcome, 0, sizeof self->has_outcome);
    memset(self->values, 0, sizeof self->values);
    memset(self->cells, 0, OPERATIONS * 8);
    for (uint32_t e = 0; e < EVENTS; ++e)
      memset(self->of_events[e].cells, 0, sizeof self->of_events[e].cells);
    memset(self->of_queues, 0, sizeof self->of_queues);
    begin_hold(d, &holder, self->queues[below(&random, QUEUES)], turn % 3 != 0);
    for (uint32_t i = 0; i < OPERATIONS; ++i)
      operate(self, i, &random);
    end_hold(d, &holder);
    check_network(self);
    for (uint32_t q = 0; q < QUEUES; ++q)
      assert_int_equal(d->table->queue_reset(self->queues[q]), ACCRT_OK);
  }
  for (uint32_t e = 0; e < EVENTS && HAS(d, event_create); ++e)
    d->table->event_destroy(self->events[e]);
  for (uint32_t q = 0; q < QUEUES; ++q)
    d->table->queue_destroy(self->queues[q]);
}

const cts_test_t cts_direct_model_tests[] = {CTS_O(test_random_fills_and_copies, CTS_NEEDS_TABLE),
                                             CTS_O(test_random_launches, KERNELS),
                                             CTS_O(test_random_dispatches, KERNELS),
                                             CTS_O(test_random_lists, KERNELS),
                                             CTS_O(test_random_networks, KERNELS),
                                             CTS_END};
