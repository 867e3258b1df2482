/* tests/fuzz/oracle_programs.h - random bundles whose programs the verifier and the plans accept, for
 * oracle_fuzz.c, which includes it once.
 *
 * The input is a list of choices. They make a bundle with the library's own writer: symbols of all
 * classes, functions with arguments, states, weights, an arena, dispatches with views of any strides,
 * copies, fills, loops, branches and calls, whose offsets, sizes, shapes and strides are random
 * expressions. A bundle may then be changed in a field of its expressions, views or commands. */
#ifndef ACCRT_TESTS_FUZZ_ORACLE_PROGRAMS_H_
#define ACCRT_TESTS_FUZZ_ORACLE_PROGRAMS_H_

#if __has_include("accrt/write.h")
#include "accrt/write.h"
#endif
#include "loader/test_support.h"
#include "tests/fuzz/oracle_driver.h"

#define MOST_NODES 96
#define MOST_SYMBOLS 4
#define MOST_SLOTS 12

typedef accrt_writer_id_t id_t_;
typedef struct slot {
  id_t_ id;
  id_t_ size; /* bytes */
  bool writable;
  bool arena;
} slot_t;

typedef struct gen {
  fuzz_input_t in;
  accrt_bundle_writer_t* writer;
  bool failed;
  id_t_ symbols[MOST_SYMBOLS];
  uint32_t classes[MOST_SYMBOLS];
  uint32_t symbol_count;
  id_t_ nodes[MOST_NODES]; /* expressions that may stand anywhere */
  uint32_t node_count;
  id_t_ kernels[3];
  id_t_ states[2];
  id_t_ state_bytes[2];
  uint32_t state_count;
  id_t_ constant;
  id_t_ callee; /* an internal function of (buffer, scalar), or 0 */
  bool callee_writes;
  /* Of the function that is being made. */
  id_t_ function;
  slot_t slots[MOST_SLOTS];
  uint32_t slot_count;
  uint32_t repeat_depth;
  uint32_t commands_left;
} gen_t;

static uint32_t below(gen_t* gen, uint32_t limit) {
  return (uint32_t)(fuzz_take(&gen->in, 2) % limit);
}

static void try_(gen_t* gen, accrt_status_t status) {
  gen->failed = gen->failed || status != ACCRT_OK;
}

static id_t_ number(gen_t* gen, int64_t value) {
  id_t_ id = 0;
  try_(gen, accrt_bundle_writer_integer(gen->writer, value, &id));
  return id;
}

static id_t_ make(gen_t* gen, uint32_t op, id_t_ a, id_t_ b, id_t_ c) {
  id_t_ id = 0;
  if (!gen->failed)
    try_(gen, accrt_bundle_writer_expression(gen->writer, op, a, b, c, &id));
  return id;
}

static int64_t some_number(gen_t* gen) {
  static const int64_t values[] = {
      0,         1,         2,  3,       4,       5,         7,
      8,         15,        16, 17,      31,      32,        64,
      -1,        -2,        -4, -8,      -16,     100,       255,
      256,       -3,        12, 1 << 16, 1 << 20, 1LL << 31, 1 << 12,
      1LL << 40, -64,       6,  24,      -256,    1000,      -(1LL << 40),
      INT64_MAX, INT64_MIN, 9,  10,      48};
  const uint32_t count = sizeof values / sizeof values[0];
  return values[below(gen, 4) == 0 ? below(gen, count) : below(gen, 16)];
}

static id_t_ leaf(gen_t* gen) {
  const uint32_t which = below(gen, 8);
  if (which < 4 && gen->symbol_count > 0)
    return gen->symbols[below(gen, gen->symbol_count)];
  if (which == 4 && gen->repeat_depth > 0) {
    id_t_ id = 0;
    try_(gen, accrt_bundle_writer_induction(gen->writer, below(gen, gen->repeat_depth), &id));
    return id;
  }
  if (which == 5 && gen->node_count > 0)
    return gen->nodes[below(gen, gen->node_count)];
  return number(gen, some_number(gen));
}

static void remember(gen_t* gen, id_t_ id) {
  if (gen->repeat_depth == 0)
    gen->nodes[gen->node_count < MOST_NODES ? gen->node_count++ : below(gen, MOST_NODES)] = id;
}

/* Any expression of up to `depth` operations. */
static id_t_ any(gen_t* gen, uint32_t depth) {
  if (depth == 0 || below(gen, 4) == 0)
    return leaf(gen);
  static const uint32_t ops[] = {
      ACCRT_EXPR_ADD,      ACCRT_EXPR_ADD,     ACCRT_EXPR_SUB, ACCRT_EXPR_MUL, ACCRT_EXPR_MUL,
      ACCRT_EXPR_FLOORDIV, ACCRT_EXPR_CEILDIV, ACCRT_EXPR_MOD, ACCRT_EXPR_MIN, ACCRT_EXPR_MAX,
      ACCRT_EXPR_SELECT,   ACCRT_EXPR_EQ,      ACCRT_EXPR_NE,  ACCRT_EXPR_LT,  ACCRT_EXPR_LE,
      ACCRT_EXPR_AND,      ACCRT_EXPR_OR,      ACCRT_EXPR_NOT};
  const uint32_t op = ops[below(gen, sizeof ops / sizeof ops[0])];
  const id_t_ a = any(gen, depth - 1);
  const id_t_ b = op == ACCRT_EXPR_NOT ? 0 : any(gen, depth - 1);
  const id_t_ c = op == ACCRT_EXPR_SELECT ? any(gen, depth - 1) : 0;
  const id_t_ made = make(gen, op, a, b, c);
  if (below(gen, 3) == 0)
    remember(gen, made);
  return made;
}

/* A symbol with a factor and an offset: most of what compilers write. */
static id_t_ plain(gen_t* gen) {
  id_t_ value = leaf(gen);
  if (below(gen, 2) == 0)
    value = make(gen, ACCRT_EXPR_MUL, value, number(gen, 1 + below(gen, 8)), 0);
  if (below(gen, 2) == 0)
    value = make(gen, ACCRT_EXPR_ADD, value, number(gen, (int64_t)below(gen, 12) - 4), 0);
  return value;
}

static id_t_ some(gen_t* gen) {
  return below(gen, 2) == 0 ? plain(gen) : any(gen, 3);
}

/* `value` within [0, limit], mostly: sometimes one more. */
static id_t_ clamp(gen_t* gen, id_t_ value, id_t_ limit) {
  const uint32_t which = below(gen, 16);
  if (which == 0)
    limit = make(gen, ACCRT_EXPR_ADD, limit, number(gen, 1), 0);
  const id_t_ low = number(gen, which == 1 ? -1 : 0);
  return make(gen, ACCRT_EXPR_MAX, make(gen, ACCRT_EXPR_MIN, value, limit, 0), low, 0);
}

/* The same number, which nothing proves. */
static id_t_ hidden(gen_t* gen, id_t_ value) {
  if (gen->symbol_count == 0)
    return value;
  const id_t_ n =
      make(gen, ACCRT_EXPR_ADD, gen->symbols[below(gen, gen->symbol_count)], number(gen, 1), 0);
  switch (below(gen, 3)) {
  case 0:
    return make(gen, ACCRT_EXPR_MUL, make(gen, ACCRT_EXPR_FLOORDIV, n, n, 0), value, 0);
  case 1:
    return make(gen, ACCRT_EXPR_ADD, value, make(gen, ACCRT_EXPR_MOD, n, n, 0), 0);
  default:
    return make(gen, ACCRT_EXPR_SELECT, make(gen, ACCRT_EXPR_SUB, n, number(gen, 1), 0), value,
                value);
  }
}

static void add_symbols(gen_t* gen) {
  static const char* const names[MOST_SYMBOLS] = {"a", "b", "c", "d"};
  static const int64_t maxima[] = {1,   4,   8,    16,      63,        64,
                                   100, 256, 4096, 1 << 20, 1LL << 31, 1LL << 48};
  gen->symbol_count = below(gen, MOST_SYMBOLS + 1);
  for (uint32_t i = 0; i < gen->symbol_count; ++i) {
    accrt_writer_symbol_t symbol = ACCRT_WRITER_SYMBOL_INIT;
    int64_t bounds[3];
    symbol.name = names[i];
    symbol.symbol_class = gen->classes[i] =
        below(gen, 8) < 4 ? ACCRT_SYMBOL_RUNTIME : below(gen, 4);
    symbol.maximum = maxima[below(gen, 3) == 0 ? below(gen, 12) : below(gen, 8)];
    symbol.minimum =
        below(gen, 3) == 0
            ? (int64_t)below(gen, (uint32_t)(symbol.maximum < 99 ? symbol.maximum : 99))
            : 0;
    symbol.divisor = below(gen, 4) == 0
                         ? 1 + below(gen, (uint32_t)(symbol.maximum < 8 ? symbol.maximum : 8))
                         : 1;
    if (symbol.symbol_class == ACCRT_SYMBOL_BUCKET) {
      bounds[0] = symbol.maximum / 4 + 1;
      bounds[1] = bounds[0] + symbol.maximum / 2;
      bounds[2] = bounds[1] + symbol.maximum;
      symbol.buckets = bounds;
      symbol.bucket_count = 3;
    }
    try_(gen, accrt_bundle_writer_add_symbol(gen->writer, &symbol, &gen->symbols[i]));
  }
}

static accrt_writer_parameter_t parameter(const char* name, uint32_t kind, uint32_t access,
                                          uint32_t flags) {
  const accrt_writer_parameter_t made = {
      name, kind, access, flags, kind == ACCRT_KERNEL_PARAM_SCALAR ? 4u : 0, 0, 0};
  return made;
}

#define READ ACCRT_KERNEL_ACCESS_READ
#define WRITE ACCRT_KERNEL_ACCESS_WRITE
#define UPDATE ACCRT_KERNEL_ACCESS_READ_WRITE

static void add_kernels(gen_t* gen) {
  static const char code[] = "oracle";
  const accrt_writer_bytes_t bytes = {sizeof code, ACCRT_WRITER_BYTES_MEMORY, -1, 0, code, NULL,
                                      NULL};
  id_t_ image = 0;
  try_(gen, accrt_bundle_writer_add_image(gen->writer, "image", ACCRT_IMAGE_PTX, &bytes, &image));
  const accrt_writer_parameter_t lists[3][3] = {
      {parameter("x", ACCRT_KERNEL_PARAM_BUFFER, READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL),
       parameter("y", ACCRT_KERNEL_PARAM_BUFFER, WRITE, 0),
       parameter("n", ACCRT_KERNEL_PARAM_SYMBOL, 0, 0)},
      {parameter("x", ACCRT_KERNEL_PARAM_TENSOR, READ, 0),
       parameter("y", ACCRT_KERNEL_PARAM_TENSOR, WRITE, 0),
       parameter("s", ACCRT_KERNEL_PARAM_SCALAR, 0, 0)},
      {parameter("x", ACCRT_KERNEL_PARAM_TENSOR, UPDATE, 0),
       parameter("w", ACCRT_KERNEL_PARAM_WORKSPACE, UPDATE, 0),
       parameter("n", ACCRT_KERNEL_PARAM_SYMBOL, 0, 0)}};
  static const char* const names[3] = {"buffers", "tensors", "update"};
  for (int i = 0; i < 3; ++i) {
    accrt_writer_kernel_t kernel = ACCRT_WRITER_KERNEL_INIT;
    kernel.name = names[i];
    kernel.parameters = lists[i];
    kernel.parameter_count = 3;
    kernel.traits = i == 2 && below(gen, 2) == 0 ? ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE : 0;
    try_(gen, accrt_bundle_writer_add_kernel(gen->writer, &kernel, &gen->kernels[i]));
    accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
    variant.driver = "oracle";
    variant.image = image;
    variant.block[0] = 1;
    if (!gen->failed)
      try_(gen, accrt_bundle_writer_add_variant(gen->writer, gen->kernels[i], &variant));
  }
}

static const accrt_dtype_t dtypes[] = {12 /* f32 */, 6 /* u8 */, 5 /* i64 */, 10 /* f16 */,
                                       19 /* u4 */};

/* A tensor's type, and its bytes as an expression. `leaves` are symbols that a dimension may have. */
static accrt_writer_type_t type_of(gen_t* gen, uint32_t class_mask, id_t_* out_bytes) {
  accrt_writer_type_t type;
  memset(&type, 0, sizeof type);
  type.dtype = dtypes[below(gen, 5)];
  type.rank = below(gen, 4);
  id_t_ count = number(gen, 1);
  for (uint32_t i = 0; i < type.rank; ++i) {
    type.dims[i] = number(gen, (int64_t[]){0, 1, 2, 3, 4, 8, 16, 33}[below(gen, 8)]);
    const uint32_t which = gen->symbol_count > 0 ? below(gen, gen->symbol_count) : 0;
    if (gen->symbol_count > 0 && below(gen, 2) == 0 &&
        (class_mask >> gen->classes[which] & 1) != 0) {
      type.dims[i] = gen->symbols[which];
      if (below(gen, 3) == 0)
        type.dims[i] = make(gen, ACCRT_EXPR_ADD, type.dims[i], number(gen, below(gen, 3)), 0);
    }
    count = make(gen, ACCRT_EXPR_MUL, count, type.dims[i], 0);
  }
  count = make(gen, ACCRT_EXPR_MUL, count, number(gen, accrt_dtype_bits(type.dtype)), 0);
  *out_bytes = make(gen, ACCRT_EXPR_CEILDIV, count, number(gen, 8), 0);
  return type;
}

static void add_slot(gen_t* gen, id_t_ id, id_t_ size, bool writable, bool arena) {
  if (gen->slot_count < MOST_SLOTS)
    gen->slots[gen->slot_count++] = (slot_t){id, size, writable, arena};
}

static const slot_t* pick_slot(gen_t* gen, bool writable, bool arena) {
  const uint32_t first = below(gen, MOST_SLOTS);
  for (uint32_t i = 0; i < gen->slot_count; ++i) {
    const slot_t* slot = &gen->slots[(first + i) % gen->slot_count];
    if ((slot->writable || !writable) && (slot->arena || !arena))
      return slot;
  }
  return NULL;
}

static accrt_writer_range_t range_in(gen_t* gen, const slot_t* slot, bool sized) {
  accrt_writer_range_t range = {slot->id, 0, 0, 0};
  const id_t_ zero = number(gen, 0);
  switch (below(gen, 8)) {
  case 0:
    return range;
  case 1:
    range.offset = some(gen);
    range.size = sized && below(gen, 2) == 0 ? some(gen) : 0;
    return range;
  case 2:
    range.offset = clamp(gen, some(gen), slot->size);
    return range;
  case 3:
    range.offset = plain(gen);
    range.size = sized ? number(gen, 1 << below(gen, 7)) : 0;
    return range;
  default: {
    const id_t_ size = make(gen, ACCRT_EXPR_MAX, clamp(gen, some(gen), slot->size), zero, 0);
    range.offset = clamp(gen, some(gen), make(gen, ACCRT_EXPR_SUB, slot->size, size, 0));
    range.size = sized ? size : 0;
    return range;
  }
  }
}

static id_t_ stride_of(gen_t* gen) {
  switch (below(gen, 6)) {
  case 0:
    return number(gen, (int64_t)below(gen, 16) - 8);
  case 1:
    return hidden(gen, number(gen, (int64_t)below(gen, 40) - 20));
  case 2:
    return make(gen, ACCRT_EXPR_MUL,
                make(gen, ACCRT_EXPR_SUB, leaf(gen), number(gen, below(gen, 12)), 0),
                number(gen, 1 + below(gen, 4)), 0);
  case 3:
    return some(gen);
  default:
    return number(gen, 1 + below(gen, 6));
  }
}

static accrt_writer_operand_t tensor_in(gen_t* gen, const char* name, const slot_t* slot) {
  accrt_writer_operand_t operand;
  memset(&operand, 0, sizeof operand);
  operand.name = name;
  operand.kind = ACCRT_OPERAND_TENSOR;
  operand.range = range_in(gen, slot, true);
  operand.dtype = dtypes[below(gen, 5)];
  operand.rank = below(gen, 4);
  const bool contiguous = below(gen, 4) == 0;
  for (uint32_t i = 0; i < operand.rank; ++i) {
    operand.shape[i] = below(gen, 3) == 0 ? clamp(gen, some(gen), number(gen, 1 + below(gen, 8)))
                                          : number(gen, below(gen, 6));
    operand.strides[i] = contiguous ? 0 : stride_of(gen);
  }
  return operand;
}

static accrt_writer_operand_t value_operand(const char* name, uint32_t kind, id_t_ value,
                                            uint64_t bits) {
  accrt_writer_operand_t operand;
  memset(&operand, 0, sizeof operand);
  operand.name = name;
  operand.kind = kind;
  operand.value = value;
  operand.bits = bits;
  return operand;
}

static accrt_writer_operand_t buffer_operand(gen_t* gen, const char* name, uint32_t kind,
                                             const slot_t* slot) {
  accrt_writer_operand_t operand = value_operand(name, kind, 0, 0);
  operand.range = range_in(gen, slot, true);
  return operand;
}

/* A number that a plan can decide. */
static id_t_ decision(gen_t* gen) {
  for (uint32_t i = 0; i < gen->symbol_count; ++i) {
    const bool early =
        gen->classes[i] == ACCRT_SYMBOL_SPECIALIZE || gen->classes[i] == ACCRT_SYMBOL_SESSION;
    if (early && below(gen, 2) == 0)
      return make(gen, ACCRT_EXPR_MIN, gen->symbols[i], number(gen, below(gen, 4)), 0);
  }
  return number(gen, below(gen, 4));
}

static void fill_block(gen_t* gen, id_t_ block, uint32_t depth);

static void add_dispatch(gen_t* gen, accrt_writer_command_t* command,
                         accrt_writer_operand_t operands[3]) {
  const slot_t* source = pick_slot(gen, false, false);
  const slot_t* target = pick_slot(gen, true, false);
  const slot_t* arena = pick_slot(gen, true, true);
  uint32_t kernel = below(gen, 3);
  if (kernel == 2 && arena == NULL)
    kernel = 1;
  if (source == NULL || target == NULL) {
    gen->failed = true;
    return;
  }
  command->opcode = ACCRT_OPCODE_DISPATCH;
  command->target = gen->kernels[kernel];
  command->operands = operands;
  command->operand_count = 3;
  for (int i = 0; i < 3; ++i)
    command->grid[i] = below(gen, 3) == 0 ? clamp(gen, some(gen), number(gen, 9)) : 0;
  if (kernel == 0) {
    operands[0] = buffer_operand(gen, "x", ACCRT_OPERAND_BUFFER, source);
    operands[1] = buffer_operand(gen, "y", ACCRT_OPERAND_BUFFER, target);
    operands[2] = value_operand("n", ACCRT_OPERAND_SYMBOL, some(gen), 0);
  } else if (kernel == 1) {
    operands[0] = tensor_in(gen, "x", source);
    operands[1] = tensor_in(gen, "y", target);
    operands[2] = value_operand("s", ACCRT_OPERAND_SCALAR, 0, below(gen, 100));
  } else {
    operands[0] = tensor_in(gen, "x", target);
    operands[1] = buffer_operand(gen, "w", ACCRT_OPERAND_WORKSPACE, arena);
    operands[2] = value_operand("n", ACCRT_OPERAND_SYMBOL, some(gen), 0);
  }
}

static void add_copy(gen_t* gen, accrt_writer_command_t* command) {
  const slot_t* source = pick_slot(gen, false, false);
  const slot_t* target = pick_slot(gen, true, false);
  if (source == NULL || target == NULL) {
    gen->failed = true;
    return;
  }
  command->opcode = ACCRT_OPCODE_COPY;
  command->source = range_in(gen, source, false);
  command->destination = range_in(gen, target, false);
  command->extent[0] = below(gen, 2) == 0 ? clamp(gen, some(gen), number(gen, 1 + below(gen, 40)))
                                          : number(gen, below(gen, 20));
  for (int i = 0; i < 2; ++i) {
    if (below(gen, 2) == 0)
      command->extent[1 + i] =
          below(gen, 2) == 0 ? clamp(gen, some(gen), number(gen, 4)) : number(gen, below(gen, 4));
    command->source_stride[i] = below(gen, 2) == 0 ? clamp(gen, stride_of(gen), number(gen, 99))
                                                   : number(gen, below(gen, 40));
    command->destination_stride[i] = below(gen, 2) == 0
                                         ? clamp(gen, stride_of(gen), number(gen, 99))
                                         : number(gen, 8 + below(gen, 40));
  }
}

/* What a dimension of a call must hold, as compilers state it: a copy of nothing. */
static void add_condition(gen_t* gen, accrt_writer_command_t* command) {
  const slot_t* slot = pick_slot(gen, true, false);
  gen->failed = gen->failed || slot == NULL;
  if (slot == NULL)
    return;
  const id_t_ offset = some(gen);
  const id_t_ size = below(gen, 2) == 0 ? number(gen, below(gen, 4)) : some(gen);
  const id_t_ limit = below(gen, 2) == 0 ? number(gen, 8 << below(gen, 6)) : some(gen);
  command->opcode = ACCRT_OPCODE_COPY;
  command->name = "condition";
  command->source.slot = command->destination.slot = slot->id;
  command->extent[0] = number(gen, 0);
  command->extent[1] = offset;
  command->extent[2] =
      make(gen, ACCRT_EXPR_SUB, make(gen, ACCRT_EXPR_SUB, limit, offset, 0), size, 0);
  command->source_stride[0] = size;
  command->source_stride[1] = limit;
}

static void add_nested(gen_t* gen, id_t_ block, accrt_writer_command_t* command, uint32_t depth) {
  id_t_ id = 0;
  const bool repeats = below(gen, 2) == 0;
  command->opcode = repeats ? ACCRT_OPCODE_REPEAT : ACCRT_OPCODE_BRANCH;
  command->value = decision(gen);
  if (gen->failed)
    return;
  try_(gen, accrt_bundle_writer_add_command(gen->writer, block, command, &id));
  for (uint32_t i = 0; i < (repeats ? 1u : 2u) && !gen->failed; ++i) {
    id_t_ inner = 0;
    try_(gen, accrt_bundle_writer_block(gen->writer, id, i, &inner));
    gen->repeat_depth += repeats;
    fill_block(gen, inner, depth + 1);
    gen->repeat_depth -= repeats;
  }
}

static bool add_call(gen_t* gen, accrt_writer_command_t* command,
                     accrt_writer_operand_t operands[3]) {
  const slot_t* slot = pick_slot(gen, gen->callee_writes, false);
  if (gen->callee == 0 || slot == NULL)
    return false;
  command->opcode = ACCRT_OPCODE_CALL;
  command->target = gen->callee;
  command->operands = operands;
  command->operand_count = 2;
  operands[0] = buffer_operand(gen, "x", ACCRT_OPERAND_BUFFER, slot);
  operands[1] = value_operand("k", ACCRT_OPERAND_SYMBOL, some(gen), 0);
  return true;
}

static void fill_block(gen_t* gen, id_t_ block, uint32_t depth) {
  const uint32_t count = 1 + below(gen, 4);
  for (uint32_t i = 0; i < count && gen->commands_left > 0 && !gen->failed; ++i) {
    --gen->commands_left;
    accrt_writer_command_t command = ACCRT_WRITER_COMMAND_INIT;
    accrt_writer_operand_t operands[3];
    const uint32_t which = below(gen, 13);
    id_t_ id = 0;
    if (which == 12) {
      add_condition(gen, &command);
    } else if (which < 6) {
      add_dispatch(gen, &command, operands);
    } else if (which < 8) {
      add_copy(gen, &command);
    } else if (which == 8) {
      const slot_t* slot = pick_slot(gen, true, false);
      command.opcode = ACCRT_OPCODE_FILL;
      command.pattern_bytes = 1u << below(gen, 4);
      gen->failed = gen->failed || slot == NULL;
      if (slot != NULL)
        command.destination = range_in(gen, slot, true);
    } else if (which == 9) {
      command.opcode = ACCRT_OPCODE_BARRIER;
    } else if (which == 10 && depth < 3) {
      add_nested(gen, block, &command, depth);
      continue;
    } else if (!add_call(gen, &command, operands)) {
      continue;
    }
    if (!gen->failed)
      try_(gen, accrt_bundle_writer_add_command(gen->writer, block, &command, &id));
  }
}

static void add_argument(gen_t* gen, uint32_t index, bool result) {
  static const char* const names[] = {"x", "y", "z", "u", "v", "w"};
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  id_t_ bytes = 0;
  id_t_ slot = 0;
  argument.name = names[index % 6];
  argument.kind = result ? ACCRT_ARGUMENT_RESULT : below(gen, 3);
  argument.type = type_of(gen, 0xF, &bytes);
  argument.optional = !result && below(gen, 8) == 0;
  if (gen->failed)
    return;
  try_(gen, accrt_bundle_writer_add_argument(gen->writer, gen->function, &argument, &slot));
  add_slot(gen, slot, bytes, argument.kind != ACCRT_ARGUMENT_READ, false);
}

static void add_storage(gen_t* gen) {
  id_t_ slot = 0;
  for (uint32_t i = 0; i < gen->state_count && !gen->failed; ++i) {
    try_(gen, accrt_bundle_writer_slot(gen->writer, gen->function, gen->states[i], 0, &slot));
    add_slot(gen, slot, gen->state_bytes[i], true, false);
  }
  if (gen->constant != 0 && !gen->failed) {
    try_(gen, accrt_bundle_writer_slot(gen->writer, gen->function, gen->constant, 0, &slot));
    add_slot(gen, slot, number(gen, 192), false, false);
  }
  if (below(gen, 3) == 0 || gen->failed)
    return;
  const id_t_ size = below(gen, 2) == 0 ? number(gen, 1 + below(gen, 512))
                                        : clamp(gen, some(gen), number(gen, 1 << 20));
  try_(gen,
       accrt_bundle_writer_arena(gen->writer, gen->function, size, 1u << below(gen, 9), &slot));
  add_slot(gen, slot, size, true, true);
}

static void begin_function(gen_t* gen, const char* name, uint32_t flags, id_t_* out_body) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  function.name = name;
  function.flags = flags;
  gen->slot_count = 0;
  gen->node_count = 0;
  gen->commands_left = 12;
  if (!gen->failed)
    try_(gen, accrt_bundle_writer_add_function(gen->writer, &function, &gen->function, out_body));
}

static void add_scalar(gen_t* gen, const char* name, id_t_ symbol) {
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  id_t_ slot = 0;
  argument.name = name;
  argument.kind = ACCRT_ARGUMENT_SCALAR;
  argument.symbol = symbol;
  if (!gen->failed)
    try_(gen, accrt_bundle_writer_add_argument(gen->writer, gen->function, &argument, &slot));
}

static void add_callee(gen_t* gen) {
  id_t_ body = 0;
  id_t_ bytes = 0;
  id_t_ slot = 0;
  if (gen->symbol_count == 0 || gen->classes[0] == ACCRT_SYMBOL_SESSION || below(gen, 2) == 0)
    return;
  begin_function(gen, "callee", ACCRT_FUNCTION_INTERNAL, &body);
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  gen->callee_writes = below(gen, 2) == 0;
  argument.name = "x";
  argument.kind = gen->callee_writes ? ACCRT_ARGUMENT_READ_WRITE : ACCRT_ARGUMENT_READ;
  argument.type = type_of(gen, 0xF, &bytes);
  if (gen->failed)
    return;
  try_(gen, accrt_bundle_writer_add_argument(gen->writer, gen->function, &argument, &slot));
  add_slot(gen, slot, bytes, gen->callee_writes, false);
  add_scalar(gen, "k", gen->symbols[0]);
  add_storage(gen);
  fill_block(gen, body, 1);
  gen->callee = gen->function;
}

static void add_main(gen_t* gen) {
  static const char* const names[MOST_SYMBOLS] = {"sa", "sb", "sc", "sd"};
  id_t_ body = 0;
  begin_function(gen, "main", 0, &body);
  const uint32_t inputs = below(gen, 4);
  const uint32_t results = below(gen, 3);
  for (uint32_t i = 0; i < gen->symbol_count; ++i) {
    if (gen->classes[i] != ACCRT_SYMBOL_SESSION)
      add_scalar(gen, names[i], gen->symbols[i]);
  }
  for (uint32_t i = 0; i < inputs; ++i)
    add_argument(gen, i, false);
  for (uint32_t i = 0; i < results; ++i)
    add_argument(gen, 3 + i, true);
  add_storage(gen);
  if (!gen->failed)
    fill_block(gen, body, 1);
}

static int32_t take_bytes(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  bytes_t* file = self;
  if (offset + size_bytes > file->size)
    return 27;
  memcpy(file->data + offset, data, size_bytes);
  return 0;
}

static void add_shared(gen_t* gen) {
  static const unsigned char weight[192] = {1, 2, 3};
  add_symbols(gen);
  add_kernels(gen);
  gen->state_count = below(gen, 3);
  for (uint32_t i = 0; i < gen->state_count && !gen->failed; ++i) {
    accrt_writer_state_t state = ACCRT_WRITER_STATE_INIT;
    state.name = i == 0 ? "s0" : "s1";
    state.type = type_of(gen, 1u << ACCRT_SYMBOL_SESSION, &gen->state_bytes[i]);
    try_(gen, accrt_bundle_writer_add_state(gen->writer, &state, &gen->states[i]));
  }
  if (below(gen, 2) == 0 && !gen->failed) {
    accrt_writer_component_t component;
    memset(&component, 0, sizeof component);
    component.bytes =
        (accrt_writer_bytes_t){192, ACCRT_WRITER_BYTES_MEMORY, -1, 0, weight, NULL, NULL};
    accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
    constant.name = "weight";
    constant.dtype = ACCRT_DTYPE_U8;
    constant.rank = 1;
    constant.shape[0] = 192;
    constant.components = &component;
    constant.component_count = 1;
    try_(gen, accrt_bundle_writer_add_constant(gen->writer, &constant, &gen->constant));
  }
}

/* The writer's large blocks, which would be most of the time: one is kept. */
static void* block_allocate(void* self, size_t size_bytes, size_t alignment) {
  static void* kept;
  bool* taken = self;
  if (size_bytes == (size_t)4 << 20 && !*taken) {
    if (kept == NULL && posix_memalign(&kept, 4096, size_bytes) != 0)
      return NULL;
    *taken = true;
    return kept;
  }
  void* pointer = NULL;
  return posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes) == 0 ? pointer
                                                                                    : NULL;
}
static void block_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  bool* taken = self;
  (void)alignment;
  if (size_bytes == (size_t)4 << 20 && *taken)
    *taken = false;
  else
    free(pointer);
}

/* A bundle, or nothing where the choices make none. */
static bytes_t generate(fuzz_input_t* in) {
  gen_t gen;
  bytes_t file = {NULL, 0};
  memset(&gen, 0, sizeof gen);
  gen.in = *in;
  static bool taken;
  const accrt_allocator_t allocator = {&taken, block_allocate, block_deallocate};
  accrt_bundle_writer_options_t options = ACCRT_BUNDLE_WRITER_OPTIONS_INIT;
  options.allocator = &allocator;
  fuzz_require(accrt_bundle_writer_create(&options, &gen.writer) == ACCRT_OK);
  add_shared(&gen);
  add_callee(&gen);
  add_main(&gen);
  accrt_writer_summary_t summary = ACCRT_WRITER_SUMMARY_INIT;
  if (!gen.failed && accrt_bundle_writer_check(gen.writer, &summary) == ACCRT_OK) {
    file.size = (size_t)summary.size_bytes;
    file.data = must_alloc_file(file.size);
    const accrt_writer_output_t output = {&file, take_bytes, 0, 0};
    fuzz_require(accrt_bundle_writer_write_callback(gen.writer, &output) == ACCRT_OK);
  }
  accrt_bundle_writer_release(gen.writer);
  *in = gen.in;
  return file;
}

/* Another number in a field of what is checked when plans are made. */
static void change(fuzz_input_t* in, bytes_t* file) {
  static const uint32_t types[] = {ACCX_SECTION_EXPRESSIONS, ACCX_SECTION_EXPRESSIONS,
                                   ACCX_SECTION_VIEWS, ACCX_SECTION_COMMANDS, ACCX_SECTION_SYMBOLS};
  choices_t choices = {fuzz_take(in, 8)};
  parts_t parts = take_apart(file);
  for (uint32_t i = 0; i < 1 + draw_below(&choices, 3); ++i) {
    part_t* part = find_part(&parts, types[draw_below(&choices, 5)]);
    if (part == NULL || part->size_bytes < 8)
      continue;
    /* Small indices and numbers, so that most of them stand for something. */
    const size_t at = draw_below(&choices, part->size_bytes / 4) * 4;
    const uint32_t value = draw_below(&choices, 2) == 0
                               ? draw_below(&choices, 24)
                               : (uint32_t)draw_value(&choices, part->bytes, part->size_bytes, 4);
    memcpy(part->bytes + at, &value, sizeof value);
  }
  free(file->data);
  *file = put_together(&parts);
  free_parts(&parts);
}

#endif /* ACCRT_TESTS_FUZZ_ORACLE_PROGRAMS_H_ */
