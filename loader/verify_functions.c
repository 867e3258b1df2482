/* loader/verify_functions.c - functions: records, signatures, slots, prepare functions, symbols
 * (rules 60 to 74). */
#include "loader/internal.h"

#include "accrt/tensor.h"

static const accx_argument_t* argument_of(const accrt_bundle_tables_t* tables, uint32_t function,
                                          uint32_t index) {
  return &tables->arguments[tables->functions[function].argument_first + index];
}

static uint32_t argument_count(const accx_function_t* function) {
  return function->input_count + function->result_count;
}

/* ---- Records ---- */

static accrt_status_t check_function_fields(const accx_verifier_t* verifier,
                                            const accx_function_t* function, uint32_t index) {
  const uint32_t known = ACCX_FUNCTION_PREPARE | ACCX_FUNCTION_INTERNAL;
  if ((function->flags & ~known) != 0 || function->flags == known) {
    return ACCX_REJECT(verifier, FUNCTION_FIELDS, "functions", index, "flags", "0x%" PRIx32,
                       function->flags);
  }
  if (!accrt_is_power_of_two(function->transient_align) ||
      function->transient_align > ACCX_DATA_ALIGN) {
    return ACCX_REJECT(verifier, FUNCTION_FIELDS, "functions", index, "transient_align",
                       "%" PRIu32 " is not a power of two up to %u", function->transient_align,
                       ACCX_DATA_ALIGN);
  }
  return accx_check_string(verifier, function->doc, "functions", index, "doc");
}

static accrt_status_t check_target(const accx_verifier_t* verifier, const accx_function_t* function,
                                   uint32_t index) {
  if (function->target != 0)
    ACCRT_TRY(accx_check_name(verifier, function->target, "functions", index, "target"));
  const bool has_feature = (function->required_features & ACCX_FEATURE_FUNCTION_TARGET) != 0;
  if (has_feature == (function->target != 0))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, FUNCTION_TARGET, "functions", index, "required_features",
                     "0x%" PRIx64 " with target '%.64s' of '%.64s'", function->required_features,
                     accx_verifier_text(verifier, function->target),
                     accx_verifier_text(verifier, function->name));
}

/* Appends a function to the list of its name (`function_next`) and to `named_functions`. */
static accrt_status_t add_version(accx_verifier_t* verifier, uint32_t index) {
  accrt_bundle_tables_t* tables = verifier->tables;
  accrt_bundle_t* bundle = verifier->bundle;
  const accx_function_t* function = &tables->functions[index];
  bundle->function_next[index] = ACCX_NONE;
  bundle->function_first[index] = index;
  const uint32_t place = *accx_set_value(verifier, function->name, tables->named_function_count);
  if (place == tables->named_function_count) {
    bundle->named_functions[tables->named_function_count++] = index;
    return ACCRT_OK;
  }
  uint32_t count = 1;
  uint32_t last = bundle->named_functions[place];
  bundle->function_first[index] = last;
  for (uint32_t at = last; at != ACCX_NONE; at = bundle->function_next[at], ++count) {
    last = at;
    if (tables->functions[at].target == function->target || count == ACCX_MAX_FUNCTION_TARGETS) {
      return ACCX_REJECT(verifier, FUNCTION_NAME, "functions", index, "name",
                         "function %" PRIu32
                         " is '%.64s' for '%.64s' too, or they are more than %u",
                         at, accx_verifier_text(verifier, function->name),
                         accx_verifier_text(verifier, function->target), ACCX_MAX_FUNCTION_TARGETS);
    }
  }
  bundle->function_next[last] = index;
  return ACCRT_OK;
}

/* Chooses the function that reflection shows for a name: the version for any device, if there is
 * one. */
static void prefer_untargeted(accx_verifier_t* verifier) {
  accrt_bundle_t* bundle = verifier->bundle;
  for (uint32_t i = 0; i < verifier->tables->named_function_count; ++i) {
    uint32_t at = bundle->named_functions[i];
    while (at != ACCX_NONE && verifier->tables->functions[at].target != 0)
      at = bundle->function_next[at];
    if (at != ACCX_NONE)
      bundle->named_functions[i] = at;
  }
}

accrt_status_t accx_verify_function_table(accx_verifier_t* verifier) {
  accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t next_argument = 0, next_slot = 0;
  tables->named_function_count = 0;
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const accx_function_t* function = &tables->functions[i];
    ACCRT_TRY(accx_check_name(verifier, function->name, "functions", i, "name"));
    ACCRT_TRY(check_function_fields(verifier, function, i));
    ACCRT_TRY(check_target(verifier, function, i));
    ACCRT_TRY(add_version(verifier, i));
    const uint64_t arguments = (uint64_t)function->input_count + function->result_count;
    if (function->argument_first != next_argument || arguments > ACCX_MAX_ARGUMENTS ||
        !accrt_range_fits(next_argument, arguments, tables->argument_count)) {
      return ACCX_REJECT(verifier, FUNCTION_TILING, "functions", i, "argument_first",
                         "%" PRIu64 " arguments from %" PRIu32 ", expected at most %u from %" PRIu32
                         " of %" PRIu32,
                         arguments, function->argument_first, ACCX_MAX_ARGUMENTS, next_argument,
                         tables->argument_count);
    }
    if (function->slot_first != next_slot ||
        !accrt_range_fits(next_slot, function->slot_count, tables->slot_count)) {
      return ACCX_REJECT(verifier, FUNCTION_TILING, "functions", i, "slot_first",
                         "%" PRIu32 " slots from %" PRIu32 ", expected from %" PRIu32
                         " of %" PRIu32,
                         function->slot_count, function->slot_first, next_slot, tables->slot_count);
    }
    next_argument += (uint32_t)arguments;
    next_slot += function->slot_count;
  }
  prefer_untargeted(verifier);
  if (next_argument == tables->argument_count && next_slot == tables->slot_count)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, FUNCTION_TILING, "functions", ACCX_NONE, NULL,
                     "functions name %" PRIu32 " of %" PRIu32 " arguments and %" PRIu32
                     " of %" PRIu32 " slots",
                     next_argument, tables->argument_count, next_slot, tables->slot_count);
}

/* ---- Arguments ---- */

static accrt_status_t check_argument_kind(const accx_verifier_t* verifier,
                                          const accx_argument_t* argument, uint32_t record,
                                          bool is_result) {
  const bool fits =
      is_result ? argument->kind == ACCX_ARGUMENT_RESULT
                : argument->kind <= ACCX_ARGUMENT_SCALAR && argument->kind != ACCX_ARGUMENT_RESULT;
  const uint32_t flags = is_result ? 0 : ACCX_ARGUMENT_FLAG_OPTIONAL;
  if (fits && (argument->flags & ~flags) == 0)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, ARGUMENT_KIND, "arguments", record, "kind",
                     "kind %" PRIu32 " with flags 0x%" PRIx32 " of %s '%.64s'", argument->kind,
                     argument->flags, is_result ? "result" : "input",
                     accx_verifier_text(verifier, argument->name));
}

static accrt_status_t check_argument_scalar(const accx_verifier_t* verifier,
                                            const accx_argument_t* argument, uint32_t record) {
  const accx_type_t* type = &argument->type;
  const bool scalar = argument->kind == ACCX_ARGUMENT_SCALAR;
  const bool good = scalar ? argument->symbol < verifier->tables->symbol_count &&
                                 type->dtype == ACCRT_DTYPE_I64 &&
                                 type->encoding == ACCX_ENCODING_PLAIN && type->rank == 0
                           : argument->symbol == ACCX_NONE;
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, ARGUMENT_SCALAR, "arguments", record, "symbol",
                     "symbol %" PRIu32 " of '%.64s' (kind %" PRIu32 ", data type %" PRIu32
                     ", rank %" PRIu32 ")",
                     argument->symbol, accx_verifier_text(verifier, argument->name), argument->kind,
                     type->dtype, type->rank);
}

/* The function's set collects aliased inputs, so that none is aliased twice. */
static accrt_status_t check_argument_alias(accx_verifier_t* verifier, uint32_t function,
                                           const accx_argument_t* argument, uint32_t record) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  bool good = argument->alias_kind <= ACCX_ALIAS_MUST;
  if (argument->alias_kind == ACCX_ALIAS_NONE) {
    good = argument->alias_input == ACCX_NONE;
  } else if (good) {
    good = argument->kind == ACCX_ARGUMENT_RESULT &&
           argument->alias_input < tables->functions[function].input_count;
    if (good) {
      const uint32_t kind = argument_of(tables, function, argument->alias_input)->kind;
      good = (kind == ACCX_ARGUMENT_READ_WRITE || kind == ACCX_ARGUMENT_DONATED) &&
             accx_set_add(verifier, argument->alias_input);
    }
  }
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, ARGUMENT_ALIAS, "arguments", record, "alias_input",
                     "alias kind %" PRIu32 " with input %" PRIu32 " of '%.64s' (kind %" PRIu32 ")",
                     argument->alias_kind, argument->alias_input,
                     accx_verifier_text(verifier, argument->name), argument->kind);
}

static accrt_status_t check_argument(accx_verifier_t* verifier, uint32_t function, uint32_t index,
                                     const accx_scope_t* scope) {
  const accx_function_t* owner = &verifier->tables->functions[function];
  const accx_argument_t* argument = argument_of(verifier->tables, function, index);
  const uint32_t record = owner->argument_first + index;
  const bool is_result = index >= owner->input_count;
  if (index == owner->input_count)
    accx_set_clear(verifier);
  ACCRT_TRY(accx_check_name(verifier, argument->name, "arguments", record, "name"));
  if (!accx_set_add(verifier, argument->name)) {
    return ACCX_REJECT(verifier, ARGUMENT_NAME, "arguments", record, "name",
                       "function '%.64s' has two %s '%.64s'",
                       accx_verifier_text(verifier, owner->name), is_result ? "results" : "inputs",
                       accx_verifier_text(verifier, argument->name));
  }
  ACCRT_TRY(accx_check_string(verifier, argument->doc, "arguments", record, "doc"));
  ACCRT_TRY(check_argument_kind(verifier, argument, record, is_result));
  ACCRT_TRY(accx_check_type(verifier, scope, &argument->type, "arguments", record));
  if (argument->type.encoding > ACCX_ENCODING_OPAQUE &&
      (owner->flags & ACCX_FUNCTION_PREPARE) == 0) {
    return ACCX_REJECT(verifier, LAYOUT_TYPE, "arguments", record, "encoding",
                       "'%.64s' of '%.64s' is quantized, which only constants and arguments of "
                       "prepare functions are",
                       accx_verifier_text(verifier, argument->name),
                       accx_verifier_text(verifier, owner->name));
  }
  return check_argument_scalar(verifier, argument, record);
}

static accrt_status_t check_arguments(accx_verifier_t* verifier, uint32_t function,
                                      const accx_scope_t* scope) {
  const accx_function_t* owner = &verifier->tables->functions[function];
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < argument_count(owner); ++i)
    ACCRT_TRY(check_argument(verifier, function, i, scope));
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < argument_count(owner); ++i) {
    ACCRT_TRY(check_argument_alias(verifier, function, argument_of(verifier->tables, function, i),
                                   owner->argument_first + i));
  }
  return ACCRT_OK;
}

/* ---- Versions of a function for different targets ---- */

static bool same_argument(const accx_argument_t* a, const accx_argument_t* b) {
  return a->name == b->name && a->kind == b->kind && a->flags == b->flags &&
         a->symbol == b->symbol && a->alias_kind == b->alias_kind &&
         a->alias_input == b->alias_input && a->constant == b->constant &&
         memcmp(&a->type, &b->type, sizeof a->type) == 0;
}

/* Number of nodes of the argument types: up to the last one that a type refers to. */
static uint32_t signature_nodes(const accrt_bundle_tables_t* tables,
                                const accx_function_t* function) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < argument_count(function); ++i) {
    const accx_type_t* type = &tables->arguments[function->argument_first + i].type;
    for (uint32_t d = 0; d < type->rank; ++d)
      count = type->dims[d] >= count ? type->dims[d] + 1 : count;
  }
  return count;
}

/* `first` has been checked. A canonical scope begins with the nodes of the signature, so equal
 * types are equal nodes at equal indices. */
static accrt_status_t check_version(const accx_verifier_t* verifier, uint32_t function,
                                    uint32_t first) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_function_t* a = &tables->functions[first];
  const accx_function_t* b = &tables->functions[function];
  const char* what = NULL;
  uint32_t which = 0;
  if (a->flags != b->flags || a->input_count != b->input_count ||
      a->result_count != b->result_count)
    what = "flags or number of arguments";
  for (uint32_t i = 0; what == NULL && i < argument_count(a); ++i) {
    if (!same_argument(argument_of(tables, first, i), argument_of(tables, function, i)))
      what = "argument", which = i;
  }
  const uint32_t nodes = what == NULL ? signature_nodes(tables, a) : 0;
  if (nodes > b->expression_count)
    what = "number of expressions", which = b->expression_count;
  if (what == NULL && nodes != 0 &&
      memcmp(&tables->expressions[a->expression_first], &tables->expressions[b->expression_first],
             nodes * sizeof *tables->expressions) != 0)
    what = "dimensions";
  if (what == NULL)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, FUNCTION_VERSIONS, "functions", function, NULL,
                     "'%.64s' for '%.64s' differs from function %" PRIu32
                     " for '%.64s': %s %" PRIu32,
                     accx_verifier_text(verifier, b->name), accx_verifier_text(verifier, b->target),
                     first, accx_verifier_text(verifier, a->target), what, which);
}

/* ---- Slots ---- */

static bool slot_target_exists(const accrt_bundle_tables_t* tables, const accx_slot_t* slot) {
  if (slot->kind != ACCX_SLOT_CONSTANT && slot->component != 0)
    return false;
  switch (slot->kind) {
  case ACCX_SLOT_CONSTANT:
    return slot->index < tables->constant_count &&
           slot->component < tables->constants[slot->index].component_count;
  case ACCX_SLOT_STATE:
    return slot->index < tables->state_count;
  case ACCX_SLOT_TRANSIENT:
    return slot->index == 0;
  default:
    return false;
  }
}

static bool slot_follows(const accx_slot_t* before, const accx_slot_t* slot) {
  if (slot->kind != before->kind)
    return slot->kind > before->kind;
  if (slot->index != before->index)
    return slot->index > before->index;
  return slot->component > before->component;
}

/* True for the further components of a prepare function's inputs. It may use those beside the first
 * ones. */
static bool slot_is_of_input(const accx_verifier_t* verifier, const accx_function_t* owner,
                             const accx_slot_t* slot) {
  return (owner->flags & ACCX_FUNCTION_PREPARE) != 0 && slot->kind == ACCX_SLOT_CONSTANT &&
         slot->component > 0 && accx_set_find(verifier, slot->index) != NULL;
}

static accrt_status_t check_slots(accx_verifier_t* verifier, uint32_t function) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_function_t* owner = &tables->functions[function];
  const uint32_t arguments = argument_count(owner);
  if (owner->slot_count < arguments) {
    return ACCX_REJECT(verifier, SLOT, "functions", function, "slot_count",
                       "%" PRIu32 " slots for %" PRIu32 " arguments", owner->slot_count, arguments);
  }
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < owner->input_count; ++i)
    (void)accx_set_add(verifier, argument_of(tables, function, i)->constant);
  for (uint32_t i = 0; i < owner->slot_count; ++i) {
    const accx_slot_t* slot = &tables->slots[owner->slot_first + i];
    bool good = slot->reserved == 0;
    if (i < arguments) {
      good = good && slot->kind == ACCX_SLOT_ARGUMENT && slot->index == i && slot->component == 0;
    } else {
      good = good && slot_target_exists(tables, slot) && (i == 0 || slot_follows(slot - 1, slot));
      verifier->facts[function].impure |=
          slot->kind != ACCX_SLOT_TRANSIENT && !slot_is_of_input(verifier, owner, slot);
    }
    if (good)
      continue;
    return ACCX_REJECT(verifier, SLOT, "slots", owner->slot_first + i, NULL,
                       "kind %" PRIu32 ", index %" PRIu32 ", component %" PRIu32
                       " is no slot %" PRIu32 " of function '%.64s' with %" PRIu32 " arguments",
                       slot->kind, slot->index, slot->component, i,
                       accx_verifier_text(verifier, owner->name), arguments);
  }
  return ACCRT_OK;
}

/* ---- Prepare functions ---- */

static bool type_equals_constant(const accrt_bundle_tables_t* tables, const accx_function_t* owner,
                                 const accx_type_t* type, const accx_constant_t* constant) {
  if (type->dtype != constant->dtype || type->encoding != constant->encoding ||
      type->rank != constant->rank || type->group_elements != constant->group_elements)
    return false;
  for (uint32_t i = 0; i < type->rank; ++i) {
    const accx_expression_t* node = &tables->expressions[owner->expression_first + type->dims[i]];
    if (node->op != ACCX_EXPR_CONSTANT || node->immediate != constant->shape[i])
      return false;
  }
  return true;
}

static accrt_status_t check_prepare_argument(accx_verifier_t* verifier, uint32_t function,
                                             uint32_t index) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_function_t* owner = &tables->functions[function];
  const accx_argument_t* argument = argument_of(tables, function, index);
  const bool is_result = index >= owner->input_count;
  const bool prepare = (owner->flags & ACCX_FUNCTION_PREPARE) != 0;
  bool good = argument->constant == ACCX_NONE;
  if (prepare) {
    good = argument->constant < tables->constant_count &&
           argument->kind == (is_result ? ACCX_ARGUMENT_RESULT : ACCX_ARGUMENT_READ) &&
           argument->flags == 0 && argument->alias_kind == ACCX_ALIAS_NONE &&
           (tables->constants[argument->constant].source == ACCX_CONSTANT_PREPARED) == is_result &&
           type_equals_constant(tables, owner, &argument->type,
                                &tables->constants[argument->constant]);
  }
  if (!good) {
    return ACCX_REJECT(
        verifier, PREPARE, "arguments", owner->argument_first + index, "constant",
        "constant %" PRIu32 " for '%.64s' of %s '%.64s': its source, type or kind does not fit",
        argument->constant, accx_verifier_text(verifier, argument->name),
        prepare ? "prepare function" : "function", accx_verifier_text(verifier, owner->name));
  }
  if (!prepare || !is_result)
    return ACCRT_OK;
  uint32_t* maker = &verifier->prepared_by[argument->constant];
  if (*maker != 0 && tables->functions[*maker - 1].name != owner->name) {
    return ACCX_REJECT(verifier, PREPARE_ONCE, "arguments", owner->argument_first + index,
                       "constant", "'%.64s' is made by '%.64s' and by '%.64s'",
                       accx_verifier_text(verifier, tables->constants[argument->constant].name),
                       accx_verifier_text(verifier, tables->functions[*maker - 1].name),
                       accx_verifier_text(verifier, owner->name));
  }
  *maker = function + 1;
  return ACCRT_OK;
}

static accrt_status_t check_prepare(accx_verifier_t* verifier, uint32_t function) {
  const accx_function_t* owner = &verifier->tables->functions[function];
  for (uint32_t i = 0; i < argument_count(owner); ++i)
    ACCRT_TRY(check_prepare_argument(verifier, function, i));
  const bool prepare = (owner->flags & ACCX_FUNCTION_PREPARE) != 0;
  const bool uses_symbols = verifier->facts[function].needed_count > 0;
  if (!prepare || (!verifier->facts[function].impure && !uses_symbols && owner->result_count > 0))
    return ACCRT_OK;
  return ACCX_REJECT(
      verifier, PREPARE, "functions", function, NULL, "prepare function '%.64s' %s",
      accx_verifier_text(verifier, owner->name),
      owner->result_count == 0 ? "makes nothing"
      : uses_symbols           ? "needs a symbol"
                     : "touches a constant, a state or a session's symbol, itself or in a call");
}

static accrt_status_t check_all_prepared(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const uint32_t count = verifier->prepared_count > 0 ? tables->constant_count : 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (tables->constants[i].source != ACCX_CONSTANT_PREPARED || verifier->prepared_by[i] != 0)
      continue;
    return ACCX_REJECT(verifier, PREPARE_ONCE, "constants", i, NULL,
                       "no prepare function makes '%.64s'",
                       accx_verifier_text(verifier, tables->constants[i].name));
  }
  return ACCRT_OK;
}

/* ---- Symbols ---- */

static accrt_status_t note_needed(accx_verifier_t* verifier, uint32_t function, uint32_t symbol) {
  const accx_symbol_t* record = &verifier->tables->symbols[symbol];
  if (verifier->symbol_needed[symbol] == function + 1 ||
      verifier->symbol_scalar[symbol] == function + 1)
    return ACCRT_OK;
  if (record->symbol_class == ACCX_SYMBOL_SESSION) {
    verifier->facts[function].impure =
        true; /* the session has it, so callers do not bind it; a prepare function has no session */
    return ACCRT_OK;
  }
  verifier->symbol_needed[symbol] = function + 1;
  if (verifier->needed_count == ACCX_MAX_NEEDED_SYMBOLS) {
    return ACCX_REJECT(verifier, SECTION_LIMITS, "functions", function, NULL,
                       "functions need more than %u symbols together", ACCX_MAX_NEEDED_SYMBOLS);
  }
  void* needed = verifier->needed;
  ACCRT_TRY(accrt_grow_array(verifier->bundle->allocator, verifier->needed_count + 1,
                             sizeof(uint32_t), &verifier->needed_capacity, &needed));
  verifier->needed = needed;
  verifier->needed[verifier->needed_count++] = symbol;
  ++verifier->facts[function].needed_count;
  return ACCRT_OK;
}

/* Collects the symbols that the signature binds, and those that the function's expressions need. */
static accrt_status_t collect_symbols(accx_verifier_t* verifier, uint32_t function) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_function_t* owner = &tables->functions[function];
  const accx_expression_t* nodes = tables->expressions + owner->expression_first;
  for (uint32_t i = 0; i < owner->input_count; ++i) {
    const accx_argument_t* input = argument_of(tables, function, i);
    if (input->kind == ACCX_ARGUMENT_SCALAR)
      verifier->symbol_scalar[input->symbol] = function + 1;
    for (uint32_t k = 0; k < input->type.rank; ++k) {
      const accx_expression_t* node = &nodes[input->type.dims[k]];
      if (node->op == ACCX_EXPR_SYMBOL)
        verifier->symbol_bound[node->immediate] = function + 1;
    }
  }
  verifier->facts[function].needed_first = verifier->needed_count;
  for (uint32_t i = 0; i < owner->expression_count; ++i) {
    if (nodes[i].op == ACCX_EXPR_SYMBOL)
      ACCRT_TRY(note_needed(verifier, function, (uint32_t)nodes[i].immediate));
  }
  return ACCRT_OK;
}

/* Called once for each callee. A union of sets along a call graph cannot be linear in the file's
 * size. So its cost is charged, and the budget is proportional to the file. */
accrt_status_t accx_need_symbols_of(accx_verifier_t* verifier, uint32_t function, uint32_t callee) {
  const accx_function_facts_t facts = verifier->facts[callee];
  if (verifier->merged[callee] == function + 1)
    return ACCRT_OK;
  verifier->merged[callee] = function + 1;
  ACCRT_TRY(accrt_charge(facts.needed_count));
  for (uint32_t i = 0; i < facts.needed_count; ++i) {
    ACCRT_TRY(note_needed(verifier, function, verifier->needed[facts.needed_first + i]));
  }
  return ACCRT_OK;
}

static accrt_status_t check_bound(const accx_verifier_t* verifier, uint32_t function) {
  const accx_function_t* owner = &verifier->tables->functions[function];
  const accx_function_facts_t* facts = &verifier->facts[function];
  if (owner->flags != 0)
    return ACCRT_OK; /* INTERNAL: the callers bind them; PREPARE: check_prepare() does the check */
  for (uint32_t i = 0; i < facts->needed_count; ++i) {
    const uint32_t symbol = verifier->needed[facts->needed_first + i];
    if (verifier->symbol_bound[symbol] == function + 1)
      continue;
    return ACCX_REJECT(
        verifier, SYMBOL_BOUND, "functions", function, NULL,
        "'%.64s' needs symbol '%.64s', but no input has it as a dimension and no scalar gives it",
        accx_verifier_text(verifier, owner->name),
        accx_verifier_text(verifier, verifier->tables->symbols[symbol].name));
  }
  return ACCRT_OK;
}

/* ---- All functions ---- */

static accrt_status_t check_order(const accx_verifier_t* verifier, uint32_t function) {
  if (function == 0)
    return ACCRT_OK;
  const accrt_bundle_tables_t* tables = verifier->tables;
  const uint32_t before = verifier->facts[function - 1].call_depth,
                 depth = verifier->facts[function].call_depth;
  const uint32_t before_name = tables->functions[function - 1].name,
                 name = tables->functions[function].name;
  const bool follows =
      before_name < name || (before_name == name && tables->functions[function - 1].target <
                                                        tables->functions[function].target);
  if (before < depth || (before == depth && follows))
    return ACCRT_OK;
  return ACCX_REJECT(
      verifier, FUNCTION_ORDER, "functions", function, NULL,
      "'%.64s' of call depth %" PRIu32 " does not come after '%.64s' of call depth %" PRIu32,
      accx_verifier_text(verifier, name), depth, accx_verifier_text(verifier, before_name), before);
}

static accrt_status_t verify_function(accx_verifier_t* verifier, uint32_t function) {
  const accx_function_t* owner = &verifier->tables->functions[function];
  const accx_scope_t scope = {owner->expression_first, owner->expression_count, ACCX_USES_SYMBOLS,
                              0};
  ACCRT_TRY(check_arguments(verifier, function, &scope));
  const uint32_t next = verifier->bundle->function_next[function];
  if (next != ACCX_NONE)
    ACCRT_TRY(check_version(verifier, next, function));
  ACCRT_TRY(check_slots(verifier, function));
  const accx_scope_t with_present = {scope.first, scope.count, ACCX_USES_ANY, 0};
  ACCRT_TRY(accx_check_expression(verifier, &with_present, owner->transient_size, "functions",
                                  function, "transient_size"));
  ACCRT_TRY(collect_symbols(verifier, function));
  ACCRT_TRY(accx_verify_body(verifier, function));
  ACCRT_TRY(check_order(verifier, function));
  ACCRT_TRY(check_prepare(verifier, function));
  return check_bound(verifier, function);
}

static void note_depths(accx_verifier_t* verifier) {
  accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t function = 0;
  for (uint32_t depth = 0; depth <= ACCX_MAX_CALL_DEPTH; ++depth) {
    while (function < tables->function_count && verifier->facts[function].call_depth < depth)
      ++function;
    tables->depth_first[depth] = function;
  }
}

accrt_status_t accx_verify_functions(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const accx_function_t* function = &tables->functions[i];
    ACCRT_TRY(accrt_charge(function->slot_count + (uint64_t)argument_count(function) + 1));
    ACCRT_TRY(verify_function(verifier, i));
  }
  note_depths(verifier);
  if (verifier->next_block != tables->block_count) {
    return ACCX_REJECT(verifier, BLOCK_USE, "blocks", verifier->next_block, NULL,
                       "no function and no command uses it");
  }
  if (verifier->next_view != tables->view_count) {
    return ACCX_REJECT(verifier, VIEW, "views", verifier->next_view, NULL, "no command uses it");
  }
  return check_all_prepared(verifier);
}
