/* tests/fuzz/oracle_fuzz.c - programs that the verifier and the plans accept (oracle_programs.h),
 * against an oracle of every driver command.
 *
 * What opens is called many times, with symbols at the ends of their ranges and between, on the
 * driver of oracle_driver.h, which aborts at the first command that leaves its object.
 * `fuzz_accepted` counts executed lists, `fuzz_inputs` calls. */
#include "tests/fuzz/oracle_programs.h"

#define CALLS_OF_A_BUNDLE 400
#define CALLS_TO_GIVE_UP 16 /* in a row that are refused */

static int64_t draw_symbol(choices_t* choices, const accrt_bundle_tables_t* tables,
                           uint32_t index) {
  const accx_symbol_t* symbol = &tables->symbols[index];
  const int64_t first = (symbol->minimum + symbol->divisor - 1) / symbol->divisor;
  const int64_t last = symbol->maximum / symbol->divisor;
  int64_t number = first;
  switch (draw_below(choices, 8)) {
  case 0:
    break;
  case 1:
    number = last;
    break;
  case 2:
    number = last - (int64_t)draw_below(choices, 3);
    break;
  case 3:
    if (symbol->bucket_count != 0)
      number = tables->buckets[symbol->bucket_first + draw_below(choices, symbol->bucket_count)] /
                   symbol->divisor +
               (int64_t)draw_below(choices, 3) - 1;
    break;
  default:
    number = first + (int64_t)draw_below(choices, 24);
    break;
  }
  number = number > last ? last : number;
  return (number < first ? first : number) * symbol->divisor;
}

/* Values of a scope in 128 bits, as the specification has them; false: none. */
typedef struct known {
  int64_t value;
  bool good;
} known_t;

static known_t known_of(const accx_expression_t* node, const known_t* values,
                        const int64_t* symbols, const uint8_t* present) {
  known_t none = {0, false};
  if (node->op == ACCX_EXPR_CONSTANT)
    return (known_t){node->immediate, true};
  if (node->op == ACCX_EXPR_SYMBOL)
    return (known_t){symbols[node->immediate], true};
  if (node->op == ACCX_EXPR_PRESENT)
    return (known_t){present[node->immediate], true};
  if (node->op == ACCX_EXPR_INDUCTION)
    return none;
  const known_t a = values[node->a];
  if (!a.good)
    return none;
  if (node->op == ACCX_EXPR_NOT)
    return (known_t){a.value == 0, true};
  if (node->op == ACCX_EXPR_SELECT)
    return values[a.value != 0 ? node->b : node->c];
  if (node->op == ACCX_EXPR_AND && a.value == 0)
    return (known_t){0, true};
  if (node->op == ACCX_EXPR_OR && a.value != 0)
    return (known_t){1, true};
  const known_t b = values[node->b];
  if (!b.good)
    return none;
  const oracle_wide_t x = a.value;
  const oracle_wide_t y = b.value;
  oracle_wide_t result = 0;
  switch (node->op) {
  case ACCX_EXPR_ADD:
    result = x + y;
    break;
  case ACCX_EXPR_SUB:
    result = x - y;
    break;
  case ACCX_EXPR_MUL:
    result = x * y;
    break;
  case ACCX_EXPR_FLOORDIV:
  case ACCX_EXPR_CEILDIV:
  case ACCX_EXPR_MOD: {
    if (y == 0)
      return none;
    oracle_wide_t quotient = x / y;
    if (quotient * y != x && (x < 0) != (y < 0))
      --quotient;
    const bool whole = quotient * y == x;
    result = node->op == ACCX_EXPR_MOD ? x - quotient * y
                                       : quotient + (node->op == ACCX_EXPR_CEILDIV && !whole);
    break;
  }
  case ACCX_EXPR_MIN:
    result = x < y ? x : y;
    break;
  case ACCX_EXPR_MAX:
    result = x > y ? x : y;
    break;
  case ACCX_EXPR_EQ:
    result = x == y;
    break;
  case ACCX_EXPR_NE:
    result = x != y;
    break;
  case ACCX_EXPR_LT:
    result = x < y;
    break;
  case ACCX_EXPR_LE:
    result = x <= y;
    break;
  default:
    result = y != 0;
    break; /* AND, OR */
  }
  if (result > INT64_MAX || result < INT64_MIN)
    return none;
  return (known_t){(int64_t)result, true};
}

#define MOST_SCOPE 4096u
/* All arguments lie in one buffer, apart. */
#define ARGUMENT_BYTES (UINT64_C(1) << 45)

static accrt_buffer_t* argument_buffer(accrt_device_t* device, uint64_t* out_address) {
  static accrt_buffer_t* buffer;
  static uint64_t address;
  if (buffer == NULL) {
    accrt_pool_t* pool;
    accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
    fuzz_require(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool) == ACCRT_OK);
    fuzz_require(accrt_buffer_create(pool, ARGUMENT_BYTES, &options, &buffer) == ACCRT_OK);
    uint64_t size;
    accrt_buffer_range(buffer, &address, &size);
  }
  *out_address = address;
  return buffer;
}

/* Binds all arguments for values of symbols: false where they have no shape. */
static bool bind(accrt_call_t* call, accrt_device_t* device, const int64_t* symbols,
                 choices_t* choices) {
  static known_t values[MOST_SCOPE];
  uint8_t present[64];
  uint64_t base;
  accrt_buffer_t* buffer = argument_buffer(device, &base);
  const accrt_program_t* program = call->program;
  const accx_expression_t* scope = accrt_function_scope(program, call->function);
  const uint32_t node_count = program->tables->functions[call->function].expression_count;
  if (node_count > MOST_SCOPE || call->argument_count > 64)
    return false;
  for (uint32_t i = 0; i < call->argument_count; ++i) {
    const bool optional = (call->signature[i].flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0;
    present[i] = !optional || draw_below(choices, 2) == 0;
  }
  for (uint32_t i = 0; i < node_count; ++i)
    values[i] = known_of(&scope[i], values, symbols, present);
  uint64_t end = draw_below(choices, 4) * ACCRT_STORAGE_ALIGN;
  for (uint32_t i = 0; i < call->argument_count; ++i) {
    const accx_argument_t* record = &call->signature[i];
    oracle.arguments[i] = (oracle_object_t){0, 0, false};
    if (record->kind == ACCX_ARGUMENT_SCALAR) {
      if (accrt_call_set_scalar(call, i, symbols[record->symbol]) != ACCRT_OK)
        return false;
      continue;
    }
    const bool own = i >= call->input_count && draw_below(choices, 2) == 0;
    if (!present[i] || own) {
      if (accrt_call_set_tensor(call, i, NULL) != ACCRT_OK)
        return false;
      continue;
    }
    int64_t shape[ACCX_MAX_RANK];
    oracle_wide_t bits = accrt_dtype_bits(record->type.dtype);
    for (uint32_t d = 0; d < record->type.rank; ++d) {
      const known_t size = values[record->type.dims[d]];
      if (!size.good || size.value < 0)
        return false;
      shape[d] = size.value;
      bits *= size.value;
      if (bits > (oracle_wide_t)ARGUMENT_BYTES * 8)
        return false;
    }
    const uint64_t size_bytes = (uint64_t)((bits + 7) / 8);
    if (size_bytes > ARGUMENT_BYTES - end)
      return false;
    const accrt_tensor_t tensor = {buffer, NULL, end, record->type.dtype, record->type.rank,
                                   shape,  NULL};
    if (accrt_call_set_tensor(call, i, &tensor) != ACCRT_OK)
      return false;
    oracle.arguments[i] = (oracle_object_t){base + end, size_bytes, false};
    end = (end + size_bytes + ACCRT_STORAGE_ALIGN) & ~(uint64_t)(ACCRT_STORAGE_ALIGN - 1);
    if (end > ARGUMENT_BYTES)
      return false;
  }
  return true;
}

/* New values for the scalars that change nothing but patched values, and nothing else: the quick way of a run. */
static void change_scalars(accrt_call_t* call, int64_t* symbols, choices_t* choices) {
  const uint8_t* quick = call->program->functions[call->function].quick_scalars;
  for (uint32_t i = 0; i < call->input_count; ++i) {
    if (!quick[i])
      continue;
    const uint32_t symbol = call->signature[i].symbol;
    symbols[symbol] = draw_symbol(choices, call->program->tables, symbol);
    fuzz_require(accrt_call_set_scalar(call, i, symbols[symbol]) == ACCRT_OK);
  }
}

/* Conditions that stand in the function's own block held, by arithmetic of the oracle's: the call ran. */
static void check_conditions(const accrt_call_t* call, const int64_t* symbols) {
  static known_t values[MOST_SCOPE];
  const accrt_bundle_tables_t* tables = call->program->tables;
  const accx_function_t* function = &tables->functions[call->function];
  const accx_command_t* const* commands = accrt_bundle_block_commands(tables, function->body);
  const accx_expression_t* scope = accrt_function_scope(call->program, call->function);
  bool evaluated = false;
  for (uint32_t i = 0; i < tables->blocks[function->body].command_count; ++i) {
    const accx_copy_t* copy = accx_command_fields(commands[i]);
    if (commands[i]->opcode != ACCX_COMMAND_COPY ||
        scope[copy->extent[0]].op != ACCX_EXPR_CONSTANT || scope[copy->extent[0]].immediate != 0)
      continue;
    for (uint32_t n = 0; n < function->expression_count && !evaluated; ++n)
      values[n] = known_of(&scope[n], values, symbols, call->present);
    evaluated = true;
    const uint32_t nodes[4] = {copy->extent[1], copy->extent[2], copy->source_stride[0],
                               copy->source_stride[1]};
    for (int n = 0; n < 4; ++n) {
      /* What overflows and is proved all the same is true of the numbers that were meant. */
      ORACLE_REQUIRE(!values[nodes[n]].good || values[nodes[n]].value >= 0,
                     "command %u of a call that ran says %" PRId64, i, values[nodes[n]].value);
    }
    ++oracle_ranges;
  }
}

/* `idle` is 0 again when something ran. */
static void run_call(accrt_call_t* call, const char* name, const int64_t* symbols, int* idle) {
  ++fuzz_inputs;
  oracle.call = call;
  oracle.what = name;
  const uint64_t before = oracle_lists;
  const accrt_status_t status = accrt_call_run(call, ACCRT_TIMEOUT_INFINITE);
  fuzz_accepted += oracle_lists - before;
  *idle = oracle_lists != before ? 0 : *idle;
  /* What is refused is refused before the list runs, and leaves the session as it was. */
  fuzz_require(status == ACCRT_OK || oracle_lists == before);
  fuzz_require(status != ACCRT_ERROR_POISONED);
  if (status == ACCRT_OK)
    check_conditions(call, symbols);
  oracle.call = NULL;
}

static void call_function(accrt_session_t* session, accrt_device_t* device, const char* name,
                          const int64_t* fixed, choices_t* choices) {
  const accrt_bundle_tables_t* tables = session->program->tables;
  int64_t symbols[64];
  bool bound = false;
  accrt_call_t* call;
  if (tables->symbol_count > 64 || accrt_call_create(session, name, &call) != ACCRT_OK)
    return;
  for (int i = 0, idle = 0; i < CALLS_OF_A_BUNDLE && idle < CALLS_TO_GIVE_UP; ++i) {
    if (bound && draw_below(choices, 2) == 0) {
      change_scalars(call, symbols, choices);
      run_call(call, name, symbols, &idle);
      continue;
    }
    for (uint32_t s = 0; s < tables->symbol_count; ++s)
      symbols[s] = tables->symbols[s].symbol_class == ACCX_SYMBOL_SESSION
                       ? fixed[s]
                       : draw_symbol(choices, tables, s);
    bound = bind(call, device, symbols, choices);
    ++idle;
    if (bound)
      run_call(call, name, symbols, &idle);
  }
  accrt_call_release(call);
}

static void run_session(accrt_program_t* program, accrt_device_t* device, choices_t* choices) {
  const accrt_bundle_tables_t* tables = program->tables;
  accrt_symbol_value_t given[64];
  int64_t fixed[64] = {0};
  uint32_t count = 0;
  for (uint32_t s = 0; s < tables->symbol_count && s < 64; ++s) {
    if (tables->symbols[s].symbol_class != ACCX_SYMBOL_SESSION)
      continue;
    fixed[s] = draw_symbol(choices, tables, s);
    given[count++] =
        (accrt_symbol_value_t){accrt_bundle_string(tables, tables->symbols[s].name), fixed[s]};
  }
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = given;
  options.symbol_count = count;
  options.symbol_size_bytes = (uint32_t)sizeof *given;
  accrt_session_t* session;
  if (accrt_session_create(program, &options, &session) != ACCRT_OK)
    return;
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    if (tables->functions[i].flags == 0)
      call_function(session, device, accrt_bundle_string(tables, tables->functions[i].name), fixed,
                    choices);
  }
  accrt_session_release(session);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz_input_t in = {data, size};
  accrt_instance_t* instance;
  accrt_device_t* device = oracle_device(&instance);
  choices_t choices = {fuzz_take(&in, 8)};
  bytes_t file = generate(&in);
  if (file.data == NULL)
    return 0;
  if (fuzz_take(&in, 1) % 3 == 0)
    change(&in, &file);
  accrt_bundle_t* bundle;
  if (accrt_bundle_open_memory(instance, file.data, file.size, NULL, NULL, NULL, &bundle) ==
      ACCRT_OK) {
    accrt_program_t* program;
    oracle.file = file.data;
    oracle.file_bytes = file.size;
    if (accrt_program_create(device, bundle, NULL, &program) == ACCRT_OK) {
      run_session(program, device, &choices);
      accrt_program_release(program);
    }
    accrt_bundle_release(bundle);
  }
  free(file.data);
  return 0;
}
