/* write/writer_encode.c - encodes a bundle's metadata in canonical order (docs/accx-format.md). It
 * writes no file and reads no sources of bytes. */
#include "format/sort.h"
#include "write/writer.h"

/* ---- Order ---- */

/* Kinds that are sorted by a name, and the offset of the name in the item. */
static const struct {
  uint8_t kind;
  uint8_t name_offset;
} named_kinds[] = {
    {WRITER_METADATA, 0}, {WRITER_SYMBOL, 0},  {WRITER_CONSTANT, 0},
    {WRITER_STATE, 0},    {WRITER_KERNEL, 0},  {WRITER_IMAGE, offsetof(accx_image_t, name)},
    {WRITER_FILE, 0},     {WRITER_ADAPTER, 0}, {WRITER_ASSET, 0}};
#define NAMED_KINDS (sizeof named_kinds / sizeof *named_kinds)

typedef struct by_name {
  const accrt_bundle_writer_t* writer;
  uint32_t kind;
  uint32_t name_offset;
} by_name_t;

static int compare_text(const accrt_bundle_writer_t* writer, uint32_t a, uint32_t b) {
  return a == b ? 0 : strcmp(accx_writer_text(writer, a), accx_writer_text(writer, b));
}

static bool less_name(const void* context, uint32_t a, uint32_t b) {
  const by_name_t* by = context;
  uint32_t names[2];
  memcpy(&names[0], (const char*)accx_writer_item(by->writer, by->kind, a) + by->name_offset, 4);
  memcpy(&names[1], (const char*)accx_writer_item(by->writer, by->kind, b) + by->name_offset, 4);
  return compare_text(by->writer, names[0], names[1]) < 0;
}

static bool less_function(const void* context, uint32_t a, uint32_t b) {
  const accrt_bundle_writer_t* writer = context;
  const writer_function_t* x = WRITER_ITEM(writer, function, WRITER_FUNCTION, a);
  const writer_function_t* y = WRITER_ITEM(writer, function, WRITER_FUNCTION, b);
  if (x->depth != y->depth)
    return x->depth < y->depth;
  const int order = compare_text(writer, x->record.name, y->record.name);
  return order != 0 ? order < 0 : compare_text(writer, x->record.target, y->record.target) < 0;
}

static bool less_location(const void* context, uint32_t a, uint32_t b) {
  const accrt_bundle_writer_t* writer = context;
  const accx_location_t* x = accx_writer_item(writer, WRITER_LOCATION, a);
  const accx_location_t* y = accx_writer_item(writer, WRITER_LOCATION, b);
  const int order = compare_text(writer, x->file, y->file);
  if (order != 0)
    return order < 0;
  if (x->line != y->line)
    return x->line < y->line;
  if (x->column != y->column)
    return x->column < y->column;
  return compare_text(writer, x->name, y->name) < 0;
}

static bool less_shard(const void* context, uint32_t a, uint32_t b) {
  const writer_encoder_t* encoder = context;
  const accrt_bundle_writer_t* writer = encoder->writer;
  const uint32_t* rank = encoder->rank[WRITER_CONSTANT];
  return rank[WRITER_INDEX(WRITER_ITEM(writer, shard, WRITER_SHARD, a)->record.constant)] <
         rank[WRITER_INDEX(WRITER_ITEM(writer, shard, WRITER_SHARD, b)->record.constant)];
}

static bool less_section(const void* context, uint32_t a, uint32_t b) {
  const accrt_bundle_writer_t* writer = context;
  return WRITER_ITEM(writer, section, WRITER_SECTION, a)->type <
         WRITER_ITEM(writer, section, WRITER_SECTION, b)->type;
}

/* Sorts the items of a kind that are in the file. */
static void order_kind(writer_encoder_t* encoder, uint32_t kind,
                       bool (*less)(const void*, uint32_t, uint32_t), const void* context) {
  uint32_t* order = encoder->order[kind];
  uint32_t* rank = encoder->rank[kind];
  uint32_t count = 0;
  for (uint32_t i = 0; i < encoder->writer->items[kind].count; ++i) {
    if (rank[i] != WRITER_NO)
      order[count++] = i;
  }
  accx_sort(order, count, less, context);
  for (uint32_t i = 0; i < count; ++i)
    rank[order[i]] = i;
  encoder->order_count[kind] = count;
}

#define DEPTH_UNKNOWN WRITER_NO
#define DEPTH_OPEN (WRITER_NO - 1)

/* Computes the depth of the calls below a function. */
static accrt_status_t find_depth(writer_encoder_t* encoder, uint32_t function, uint32_t above) {
  accrt_bundle_writer_t* writer = encoder->writer;
  writer_function_t* item = WRITER_ITEM(writer, function, WRITER_FUNCTION, function);
  if (item->depth != DEPTH_UNKNOWN && item->depth != DEPTH_OPEN)
    return ACCRT_OK;
  writer->where.function = function;
  if (item->depth == DEPTH_OPEN)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "it calls itself, directly or through others");
  if (above == ACCX_MAX_CALL_DEPTH)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "calls nest more than %u deep", ACCX_MAX_CALL_DEPTH);
  item->depth = DEPTH_OPEN;
  uint32_t depth = 0;
  for (uint32_t at = item->first_call; at != WRITER_NO;) {
    const writer_command_t* call = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
    const uint32_t callee = WRITER_INDEX(((const accx_call_t*)call->body)->function);
    ACCRT_TRY(find_depth(encoder, callee, above + 1));
    const uint32_t below = WRITER_ITEM(writer, function, WRITER_FUNCTION, callee)->depth;
    depth = below + 1 > depth ? below + 1 : depth;
    at = call->next_call;
  }
  item->depth = depth;
  return ACCRT_OK;
}

static accrt_status_t order_all(writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t i = 0; i < NAMED_KINDS; ++i) {
    const by_name_t by = {writer, named_kinds[i].kind, named_kinds[i].name_offset};
    order_kind(encoder, by.kind, less_name, &by);
  }
  const uint32_t functions = writer->items[WRITER_FUNCTION].count;
  for (uint32_t i = 0; i < functions; ++i)
    WRITER_ITEM(writer, function, WRITER_FUNCTION, i)->depth = DEPTH_UNKNOWN;
  for (uint32_t i = 0; i < functions; ++i) {
    if (encoder->rank[WRITER_FUNCTION][i] != WRITER_NO)
      ACCRT_TRY(find_depth(encoder, i, 0));
  }
  writer->where.function = WRITER_NO;
  order_kind(encoder, WRITER_FUNCTION, less_function, writer);
  order_kind(encoder, WRITER_LOCATION, less_location, writer);
  order_kind(encoder, WRITER_SHARD, less_shard, encoder);
  order_kind(encoder, WRITER_SECTION, less_section, writer);
  return ACCRT_OK;
}

/* ---- Records ---- */

static accrt_status_t append(writer_encoder_t* encoder, writer_items_t* items, const void* records,
                             uint32_t count) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (count > ACCX_MAX_METADATA_BYTES - items->count)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "the metadata has more than %" PRIu64 " bytes",
                       (uint64_t)ACCX_MAX_METADATA_BYTES);
  void* data = items->data;
  ACCRT_TRY(accrt_grow_array(&writer->allocator, items->count + count, items->item_bytes,
                             &items->capacity, &data));
  items->data = data;
  if (count != 0)
    memcpy(items->data + (size_t)items->count * items->item_bytes, records,
           (size_t)count * items->item_bytes);
  items->count += count;
  return ACCRT_OK;
}

static accrt_status_t put(writer_encoder_t* encoder, uint32_t section, const void* record) {
  return append(encoder, &encoder->sections[section], record, 1);
}

static uint32_t count_of(const writer_encoder_t* encoder, uint32_t section) {
  return encoder->sections[section].count;
}

/* The position of an id's item in the file; NONE for 0. */
static uint32_t place_of(const writer_encoder_t* encoder, accrt_writer_id_t id) {
  return id == 0 ? ACCX_NONE : encoder->rank[id >> WRITER_INDEX_BITS][WRITER_INDEX(id)];
}

/* ---- Expressions ---- */

static void begin_scope(writer_encoder_t* encoder, uint32_t function) {
  ++encoder->epoch;
  encoder->function = function;
  encoder->scope_first = count_of(encoder, ACCX_SECTION_EXPRESSIONS);
  encoder->writer->where.function = function;
}

/* Encodes a node whose operands are in the scope already. */
static accrt_status_t put_node(writer_encoder_t* encoder, uint32_t index) {
  accrt_bundle_writer_t* writer = encoder->writer;
  accx_expression_t node = WRITER_ITEM(writer, expression, WRITER_EXPRESSION, index)->node;
  ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_OPERATION, node.op));
  uint32_t* operands[] = {&node.a, &node.b, &node.c};
  for (uint32_t i = 0; i < 3; ++i)
    *operands[i] = *operands[i] == WRITER_NO ? ACCX_NONE : encoder->scope_nodes[*operands[i]];
  if (node.op == ACCX_EXPR_SYMBOL)
    node.immediate = encoder->rank[WRITER_SYMBOL][node.immediate];
  if (node.op == ACCX_EXPR_PRESENT) {
    const writer_argument_t* input =
        WRITER_ITEM(writer, argument, WRITER_ARGUMENT, (uint32_t)node.immediate);
    if (input->function != encoder->function)
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "an expression depends on whether input '%.64s' of another function is "
                         "present",
                         accx_writer_text(writer, input->record.name));
    node.immediate = input->index;
  }
  encoder->scope_epochs[index] = encoder->epoch;
  encoder->scope_nodes[index] = count_of(encoder, ACCX_SECTION_EXPRESSIONS) - encoder->scope_first;
  return put(encoder, ACCX_SECTION_EXPRESSIONS, &node);
}

/* Puts an expression into the scope, operands first, if it is not there. Replaces its id by its
 * node. 0 becomes NONE. */
static accrt_status_t put_expression(writer_encoder_t* encoder, uint32_t* expression) {
  const accrt_writer_id_t id = *expression;
  *expression = ACCX_NONE;
  if (id == 0)
    return ACCRT_OK;
  const uint32_t wanted = WRITER_INDEX(id);
  writer_items_t* stack = &encoder->stack;
  stack->count = 0;
  ACCRT_TRY(append(encoder, stack, &wanted, 1));
  while (stack->count != 0) {
    uint32_t index;
    memcpy(&index, stack->data + (stack->count - 1) * sizeof index, sizeof index);
    const accx_expression_t* node =
        &WRITER_ITEM(encoder->writer, expression, WRITER_EXPRESSION, index)->node;
    const uint32_t operands[] = {node->c, node->b, node->a};
    const uint32_t before = stack->count;
    const bool there = encoder->scope_epochs[index] == encoder->epoch;
    for (uint32_t i = 0; i < 3 && !there; ++i) {
      if (operands[i] != WRITER_NO && encoder->scope_epochs[operands[i]] != encoder->epoch)
        ACCRT_TRY(append(encoder, stack, &operands[i], 1));
    }
    if (stack->count != before)
      continue;
    --stack->count;
    if (!there)
      ACCRT_TRY(put_node(encoder, index));
  }
  *expression = encoder->scope_nodes[wanted];
  return ACCRT_OK;
}

static accrt_status_t put_expressions(writer_encoder_t* encoder, uint32_t* expressions,
                                      uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(put_expression(encoder, &expressions[i]));
  return ACCRT_OK;
}

static accrt_status_t put_type(writer_encoder_t* encoder, accx_type_t* type) {
  ACCRT_TRY(accx_writer_need_type(encoder, type->dtype, type->encoding, type->rank,
                                  type->group_elements));
  return put_expressions(encoder, type->dims, ACCX_MAX_RANK);
}

/* ---- Symbols, constants, states, files ---- */

static accrt_status_t encode_symbols(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->order_count[WRITER_SYMBOL]; ++i) {
    const writer_symbol_t* item =
        WRITER_ITEM(encoder->writer, symbol, WRITER_SYMBOL, encoder->order[WRITER_SYMBOL][i]);
    accx_symbol_t record = item->record;
    if (record.bucket_count != 0)
      record.bucket_first = count_of(encoder, ACCX_SECTION_BUCKETS);
    ACCRT_TRY(put(encoder, ACCX_SECTION_SYMBOLS, &record));
    ACCRT_TRY(append(encoder, &encoder->sections[ACCX_SECTION_BUCKETS], item->buckets,
                     record.bucket_count));
  }
  return ACCRT_OK;
}

/* Places bytes from a source: aligned, behind the bytes before. */
static accrt_status_t put_piece(writer_encoder_t* encoder, uint32_t pulled, uint64_t alignment,
                                const writer_piece_t* piece, uint64_t* out_offset) {
  uint64_t* end = &encoder->pulled_bytes[pulled];
  writer_piece_t placed = *piece;
  if (!accrt_align_u64(*end, alignment, &placed.offset_bytes) ||
      !accrt_add_u64(placed.offset_bytes, piece->bytes->size_bytes, end) || *end > INT64_MAX)
    return WRITER_FAIL(encoder->writer, OUT_OF_RANGE, "weights or code do not fit 2^63 bytes");
  *out_offset = placed.offset_bytes;
  return append(encoder, &encoder->pieces[pulled], &placed, 1);
}

static accrt_status_t encode_components(writer_encoder_t* encoder, const writer_constant_t* item) {
  for (uint32_t i = 0; i < item->record.component_count; ++i) {
    accx_component_t component = item->components[i];
    ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_DTYPE, component.dtype));
    const writer_piece_t piece = {0, &item->bytes[i], WRITER_CONSTANT, item->record.name};
    if (item->record.source == ACCX_CONSTANT_INLINE)
      ACCRT_TRY(put_piece(encoder, WRITER_PULLED_DATA, ACCX_TENSOR_ALIGN, &piece,
                          &component.offset_bytes));
    ACCRT_TRY(put(encoder, ACCX_SECTION_COMPONENTS, &component));
  }
  return ACCRT_OK;
}

/* Records have their first form when no constant is EXTERNAL. */
static accrt_status_t encode_constants(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const uint32_t count = encoder->order_count[WRITER_CONSTANT];
  encoder->sections[ACCX_SECTION_CONSTANTS].item_bytes = ACCX_CONSTANT_BYTES_0_1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = encoder->order[WRITER_CONSTANT][i];
    if (WRITER_ITEM(writer, constant, WRITER_CONSTANT, index)->record.source ==
        ACCX_CONSTANT_EXTERNAL)
      encoder->sections[ACCX_SECTION_CONSTANTS].item_bytes = sizeof(accx_constant_t);
  }
  for (uint32_t i = 0; i < count; ++i) {
    const writer_constant_t* item =
        WRITER_ITEM(writer, constant, WRITER_CONSTANT, encoder->order[WRITER_CONSTANT][i]);
    accx_constant_t record = item->record;
    accx_writer_at(encoder->writer, WRITER_CONSTANT, record.name);
    if (record.source == ACCX_CONSTANT_EXTERNAL)
      ACCRT_TRY(accx_writer_need_container(encoder, 3, "EXTERNAL constants"));
    ACCRT_TRY(accx_writer_need_type(encoder, record.dtype, record.encoding, record.rank,
                                    record.group_elements));
    record.component_first = count_of(encoder, ACCX_SECTION_COMPONENTS);
    record.file = place_of(encoder, record.file);
    ACCRT_TRY(put(encoder, ACCX_SECTION_CONSTANTS, &record));
    ACCRT_TRY(encode_components(encoder, item));
  }
  accx_writer_at(encoder->writer, WRITER_NONE, 0);
  return ACCRT_OK;
}

static accrt_status_t encode_states(writer_encoder_t* encoder) {
  begin_scope(encoder, WRITER_NO);
  for (uint32_t i = 0; i < encoder->order_count[WRITER_STATE]; ++i) {
    accx_state_t record;
    memcpy(&record,
           accx_writer_item(encoder->writer, WRITER_STATE, encoder->order[WRITER_STATE][i]),
           sizeof record);
    accx_writer_at(encoder->writer, WRITER_STATE, record.name);
    ACCRT_TRY(put_type(encoder, &record.type));
    ACCRT_TRY(put(encoder, ACCX_SECTION_STATES, &record));
  }
  accx_writer_at(encoder->writer, WRITER_NONE, 0);
  return ACCRT_OK;
}

static accrt_status_t encode_shards(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->order_count[WRITER_SHARD]; ++i) {
    const writer_shard_t* item =
        WRITER_ITEM(encoder->writer, shard, WRITER_SHARD, encoder->order[WRITER_SHARD][i]);
    accx_shard_t record = item->record;
    record.constant = place_of(encoder, record.constant);
    if (record.segment_count != 0)
      record.segment_first = count_of(encoder, ACCX_SECTION_SEGMENTS);
    ACCRT_TRY(put(encoder, ACCX_SECTION_SHARDS, &record));
    ACCRT_TRY(append(encoder, &encoder->sections[ACCX_SECTION_SEGMENTS], item->segments,
                     record.segment_count));
  }
  return ACCRT_OK;
}

static accrt_status_t encode_assets(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->order_count[WRITER_ASSET]; ++i) {
    const writer_asset_t* item =
        WRITER_ITEM(encoder->writer, asset, WRITER_ASSET, encoder->order[WRITER_ASSET][i]);
    accx_asset_t record = item->record;
    const writer_piece_t piece = {0, &item->bytes, WRITER_ASSET, record.name};
    ACCRT_TRY(put_piece(encoder, WRITER_PULLED_ASSETS, 8, &piece, &record.offset_bytes));
    ACCRT_TRY(put(encoder, ACCX_SECTION_ASSETS, &record));
  }
  return ACCRT_OK;
}

/* Encodes kinds whose stored items are the records. */
static accrt_status_t encode_plain(writer_encoder_t* encoder) {
  static const struct {
    uint8_t kind, section;
  } plain[] = {{WRITER_METADATA, ACCX_SECTION_METADATA},
               {WRITER_FILE, ACCX_SECTION_FILES},
               {WRITER_ADAPTER, ACCX_SECTION_ADAPTERS},
               {WRITER_LOCATION, ACCX_SECTION_LOCATIONS}};
  for (uint32_t k = 0; k < sizeof plain / sizeof *plain; ++k) {
    const uint32_t kind = plain[k].kind;
    for (uint32_t i = 0; i < encoder->order_count[kind]; ++i)
      ACCRT_TRY(put(encoder, plain[k].section,
                    accx_writer_item(encoder->writer, kind, encoder->order[kind][i])));
  }
  return ACCRT_OK;
}

/* ---- Kernels and images ---- */

static accrt_status_t encode_variant(writer_encoder_t* encoder, const writer_variant_t* item) {
  accx_variant_t record = item->record;
  accx_launch_t launch = item->launch;
  record.image = place_of(encoder, record.image);
  record.predicate_first = count_of(encoder, ACCX_SECTION_PREDICATES);
  launch.variant = count_of(encoder, ACCX_SECTION_VARIANTS);
  ACCRT_TRY(append(encoder, &encoder->sections[ACCX_SECTION_PREDICATES], item->predicates,
                   record.predicate_count));
  if (item->has_launch)
    ACCRT_TRY(put(encoder, ACCX_SECTION_LAUNCHES, &launch));
  return put(encoder, ACCX_SECTION_VARIANTS, &record);
}

static accrt_status_t encode_kernels(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t i = 0; i < encoder->order_count[WRITER_KERNEL]; ++i) {
    const writer_kernel_t* item =
        WRITER_ITEM(writer, kernel, WRITER_KERNEL, encoder->order[WRITER_KERNEL][i]);
    accx_kernel_t record = item->record;
    record.parameter_first = count_of(encoder, ACCX_SECTION_PARAMETERS);
    record.variant_first = count_of(encoder, ACCX_SECTION_VARIANTS);
    ACCRT_TRY(append(encoder, &encoder->sections[ACCX_SECTION_PARAMETERS], item->parameters,
                     record.parameter_count));
    const writer_variant_t* variant;
    for (uint32_t at = item->first_variant; at != WRITER_NO; at = variant->next) {
      variant = WRITER_ITEM(writer, variant, WRITER_VARIANT, at);
      if (encoder->rank[WRITER_VARIANT][at] != WRITER_NO)
        ACCRT_TRY(encode_variant(encoder, variant));
    }
    record.variant_count = count_of(encoder, ACCX_SECTION_VARIANTS) - record.variant_first;
    ACCRT_TRY(put(encoder, ACCX_SECTION_KERNELS, &record));
  }
  return ACCRT_OK;
}

static accrt_status_t encode_images(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->order_count[WRITER_IMAGE]; ++i) {
    const writer_image_t* item =
        WRITER_ITEM(encoder->writer, image, WRITER_IMAGE, encoder->order[WRITER_IMAGE][i]);
    accx_image_t record = item->record;
    const writer_piece_t piece = {0, &item->bytes, WRITER_IMAGE, record.name};
    accx_writer_at(encoder->writer, WRITER_IMAGE, record.name);
    ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_IMAGE_KIND, record.kind));
    if (record.kind != ACCX_IMAGE_PACK)
      ACCRT_TRY(
          put_piece(encoder, WRITER_PULLED_CODE, ACCX_DATA_ALIGN, &piece, &record.offset_bytes));
    ACCRT_TRY(put(encoder, ACCX_SECTION_IMAGES, &record));
  }
  accx_writer_at(encoder->writer, WRITER_NONE, 0);
  return ACCRT_OK;
}

/* ---- Signatures and slots ---- */

static accrt_status_t encode_arguments(writer_encoder_t* encoder, uint32_t first) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const writer_argument_t* item;
  for (uint32_t at = first; at != WRITER_NO; at = item->next) {
    item = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, at);
    accx_argument_t record = item->record;
    if (record.symbol != 0) {
      const uint32_t node = WRITER_INDEX(record.symbol);
      record.symbol =
          encoder->rank[WRITER_SYMBOL]
                       [WRITER_ITEM(writer, expression, WRITER_EXPRESSION, node)->node.immediate];
    } else {
      record.symbol = ACCX_NONE;
    }
    record.constant = place_of(encoder, record.constant);
    accx_writer_at(encoder->writer, WRITER_ARGUMENT, record.name);
    encoder->writer->where.kind = record.kind == ACCX_ARGUMENT_RESULT ? "result" : "input";
    ACCRT_TRY(put_type(encoder, &record.type));
    ACCRT_TRY(put(encoder, ACCX_SECTION_ARGUMENTS, &record));
  }
  accx_writer_at(encoder->writer, WRITER_NONE, 0);
  return ACCRT_OK;
}

static uint32_t slot_place(const writer_encoder_t* encoder, const writer_slot_t* slot) {
  return slot->kind == ACCX_SLOT_TRANSIENT ? 0 : place_of(encoder, slot->target);
}

static bool less_slot(const void* context, uint32_t a, uint32_t b) {
  const writer_encoder_t* encoder = context;
  const writer_slot_t* x = WRITER_ITEM(encoder->writer, slot, WRITER_SLOT, a);
  const writer_slot_t* y = WRITER_ITEM(encoder->writer, slot, WRITER_SLOT, b);
  if (x->kind != y->kind)
    return x->kind < y->kind;
  const uint32_t x_place = slot_place(encoder, x), y_place = slot_place(encoder, y);
  return x_place != y_place ? x_place < y_place : x->component < y->component;
}

/* Encodes the slots: arguments, then the constants, states and arena that commands use. An arena
 * with a size always has a slot. */
static accrt_status_t encode_slots(writer_encoder_t* encoder, const writer_function_t* function) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const uint32_t arguments = function->record.input_count + function->record.result_count;
  for (uint32_t i = 0; i < arguments; ++i) {
    const accx_slot_t record = {ACCX_SLOT_ARGUMENT, i, 0, 0};
    ACCRT_TRY(put(encoder, ACCX_SECTION_SLOTS, &record));
  }
  const bool sized =
      function->record.transient_size != 0 && function->record.transient_size != encoder->zero;
  writer_items_t* slots = &encoder->slots;
  slots->count = 0;
  const writer_slot_t* slot;
  for (uint32_t at = function->first_slot; at != WRITER_NO; at = slot->next) {
    slot = WRITER_ITEM(writer, slot, WRITER_SLOT, at);
    if (slot->used || (sized && slot->kind == ACCX_SLOT_TRANSIENT))
      ACCRT_TRY(append(encoder, slots, &at, 1));
  }
  uint32_t* indices = (uint32_t*)(void*)slots->data;
  accx_sort(indices, slots->count, less_slot, encoder);
  for (uint32_t i = 0; i < slots->count; ++i) {
    writer_slot_t* used = WRITER_ITEM(writer, slot, WRITER_SLOT, indices[i]);
    const accx_slot_t record = {used->kind, slot_place(encoder, used), used->component, 0};
    used->number = arguments + i;
    ACCRT_TRY(put(encoder, ACCX_SECTION_SLOTS, &record));
  }
  return ACCRT_OK;
}

static uint32_t slot_number(const writer_encoder_t* encoder, accrt_writer_id_t id) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const writer_slot_t* slot = WRITER_ITEM(writer, slot, WRITER_SLOT, WRITER_INDEX(id));
  if (slot->kind != ACCX_SLOT_ARGUMENT)
    return slot->number;
  const writer_argument_t* argument = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, slot->target);
  const accx_function_t* function =
      &WRITER_ITEM(writer, function, WRITER_FUNCTION, slot->function)->record;
  return argument->index +
         (argument->record.kind == ACCX_ARGUMENT_RESULT ? function->input_count : 0);
}

/* ---- Commands ---- */

static accrt_status_t resolve_range(writer_encoder_t* encoder, accx_range_t* range) {
  if (range->slot == 0) {
    *range = (accx_range_t){ACCX_NONE, 0, ACCX_NONE, ACCX_NONE};
    return ACCRT_OK;
  }
  range->slot = slot_number(encoder, range->slot);
  ACCRT_TRY(put_expression(encoder, &range->offset));
  return put_expression(encoder, &range->size);
}

static uint32_t hash_view(const accx_view_t* view) {
  uint32_t hash = 0, words[sizeof *view / 4];
  memcpy(words, view, sizeof words);
  for (uint32_t i = 0; i < sizeof words / sizeof *words; ++i)
    hash = (hash ^ words[i]) * 0x9E3779B1u;
  return hash >> 8;
}

/* Encodes a view: an equal one of the function, or a new record. */
static accrt_status_t put_view(writer_encoder_t* encoder, uint32_t* view) {
  if (*view == ACCX_NONE)
    return ACCRT_OK;
  writer_items_t* views = &encoder->sections[ACCX_SECTION_VIEWS];
  accx_view_t record;
  memcpy(&record, accx_writer_item(encoder->writer, WRITER_VIEW, *view), sizeof record);
  ACCRT_TRY(accx_writer_need_type(encoder, record.dtype, ACCX_ENCODING_PLAIN, record.rank, 0));
  ACCRT_TRY(put_expressions(encoder, record.shape, ACCX_MAX_RANK));
  ACCRT_TRY(put_expressions(encoder, record.strides, ACCX_MAX_RANK));
  size_t at = hash_view(&record) & (encoder->view_capacity - 1);
  for (; encoder->view_epochs[at] == encoder->epoch; at = (at + 1) & (encoder->view_capacity - 1)) {
    *view = encoder->view_table[at];
    if (memcmp(views->data + *view * sizeof record, &record, sizeof record) == 0)
      return ACCRT_OK;
  }
  *view = views->count;
  encoder->view_epochs[at] = encoder->epoch;
  encoder->view_table[at] = *view;
  return put(encoder, ACCX_SECTION_VIEWS, &record);
}

/* `parameters` are the kernel's; NULL for a call. */
static accrt_status_t resolve_operands(writer_encoder_t* encoder, accx_operand_t* operands,
                                       uint32_t count, const accx_parameter_t* parameters) {
  writer_where_t* where = &encoder->writer->where;
  for (uint32_t i = 0; i < count; ++i) {
    if (parameters != NULL) {
      where->part_kind = "parameter";
      where->part = accx_writer_text(encoder->writer, parameters[i].name);
    }
    ACCRT_TRY(put_expression(encoder, &operands[i].expression));
    ACCRT_TRY(put_view(encoder, &operands[i].view));
    ACCRT_TRY(resolve_range(encoder, &operands[i].range));
  }
  where->part_kind = NULL;
  return ACCRT_OK;
}

/* The number of a block; NONE when it is left out. */
static uint32_t block_number(const writer_encoder_t* encoder, const writer_command_t* command,
                             uint32_t index) {
  if (command->blocks[index] == WRITER_NO)
    return ACCX_NONE;
  const writer_block_t* block =
      WRITER_ITEM(encoder->writer, block, WRITER_BLOCK, command->blocks[index]);
  return block->count == 0 && command->header.opcode == ACCX_COMMAND_BRANCH ? ACCX_NONE
                                                                            : block->number;
}

static accrt_status_t resolve_callee(writer_encoder_t* encoder, const writer_command_t* command,
                                     accx_operand_t* operands) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (command->header.opcode == ACCX_COMMAND_DISPATCH) {
    const accx_dispatch_t* given = command->body;
    const writer_kernel_t* kernel =
        WRITER_ITEM(writer, kernel, WRITER_KERNEL, WRITER_INDEX(given->kernel));
    return resolve_operands(encoder, operands, given->operand_count, kernel->parameters);
  }
  const accx_call_t* given = command->body;
  const accx_function_t* callee =
      &WRITER_ITEM(writer, function, WRITER_FUNCTION, WRITER_INDEX(given->function))->record;
  if (given->operand_count != callee->input_count + callee->result_count)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "function '%.64s' got more arguments after it was called",
                       accx_writer_text(writer, callee->name));
  return resolve_operands(encoder, operands, given->operand_count, NULL);
}

/* Replaces the ids in a command's own fields by the file's numbers. */
static accrt_status_t resolve_field(writer_encoder_t* encoder, const writer_command_t* command,
                                    const accx_field_t* field, uint32_t* at, uint32_t* next_block) {
  if (accx_field_is_range(field->kind))
    return resolve_range(encoder, (accx_range_t*)(void*)at);
  switch (field->kind) {
  case ACCX_FIELD_ITEM:
    *at = place_of(encoder, *at);
    return ACCRT_OK;
  case ACCX_FIELD_SIZE:
  case ACCX_FIELD_DECIDED:
  case ACCX_FIELD_DECIDED_SIZE:
    return put_expressions(encoder, at, field->count);
  case ACCX_FIELD_BLOCK:
  case ACCX_FIELD_MAYBE_BLOCK:
    *at = block_number(encoder, command, (*next_block)++);
    return ACCRT_OK;
  default:
    return ACCRT_OK;
  }
}

static accrt_status_t resolve(writer_encoder_t* encoder, const writer_command_t* command,
                              void* body) {
  const uint32_t opcode = command->header.opcode;
  uint32_t count, next_block = 0;
  const accx_field_t* fields = accx_fields_of(opcode, &count);
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(resolve_field(encoder, command, &fields[i], (uint32_t*)body + fields[i].offset / 4,
                            &next_block));
  if (opcode == ACCX_COMMAND_DISPATCH)
    return resolve_callee(encoder, command, (accx_operand_t*)(void*)((accx_dispatch_t*)body + 1));
  if (opcode == ACCX_COMMAND_CALL)
    return resolve_callee(encoder, command, (accx_operand_t*)(void*)((accx_call_t*)body + 1));
  return ACCRT_OK;
}

/* Encodes header, own fields, predecessors and padding. */
static accrt_status_t encode_command(writer_encoder_t* encoder, const writer_command_t* command) {
  static const uint32_t padding;
  writer_items_t* stream = &encoder->sections[ACCX_SECTION_COMMANDS];
  const uint32_t own = command->header.size_bytes;
  const uint32_t count = command->header.predecessor_count;
  accx_command_t header = command->header;
  header.size_bytes = (uint32_t)sizeof header + own + (count + count % 2) * 4;
  header.location = place_of(encoder, header.location);
  accx_writer_at(encoder->writer, WRITER_COMMAND, header.name);
  encoder->writer->where.command = command->index;
  encoder->writer->where.kind = accx_writer_opcode_name(header.opcode);
  if ((header.flags & ACCX_COMMAND_FLAG_REQUIRED) != 0)
    ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_OPCODE, header.opcode));
  ACCRT_TRY(append(encoder, stream, &header, sizeof header));
  const uint32_t at = stream->count;
  ACCRT_TRY(append(encoder, stream, command->body, own));
  ACCRT_TRY(append(encoder, stream, command->predecessors, count * 4));
  ACCRT_TRY(append(encoder, stream, &padding, count % 2 * 4));
  ++encoder->command_count;
  return resolve(encoder, command, stream->data + at);
}

/* Numbers a block and the blocks inside it, outer before inner. They nest at most
 * ACCX_MAX_BLOCK_DEPTH + 1 deep. */
static accrt_status_t number_blocks(writer_encoder_t* encoder, uint32_t index) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  writer_block_t* block = WRITER_ITEM(writer, block, WRITER_BLOCK, index);
  block->number = count_of(encoder, ACCX_SECTION_BLOCKS) + encoder->blocks.count;
  ACCRT_TRY(append(encoder, &encoder->blocks, &index, 1));
  const writer_command_t* command;
  for (uint32_t at = block->first; at != WRITER_NO; at = command->next) {
    command = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
    for (uint32_t i = 0; i < 2; ++i) {
      if (command->blocks[i] == WRITER_NO)
        continue;
      const bool empty = WRITER_ITEM(writer, block, WRITER_BLOCK, command->blocks[i])->count == 0;
      if (!empty || command->header.opcode == ACCX_COMMAND_REPEAT)
        ACCRT_TRY(number_blocks(encoder, command->blocks[i]));
    }
  }
  return ACCRT_OK;
}

static accrt_status_t encode_block(writer_encoder_t* encoder, uint32_t index) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const writer_block_t* block = WRITER_ITEM(writer, block, WRITER_BLOCK, index);
  const uint32_t first = count_of(encoder, ACCX_SECTION_COMMANDS);
  const writer_command_t* command;
  for (uint32_t at = block->first; at != WRITER_NO; at = command->next) {
    command = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
    ACCRT_TRY(encode_command(encoder, command));
  }
  const accx_block_t record = {first, count_of(encoder, ACCX_SECTION_COMMANDS) - first,
                               block->count};
  return put(encoder, ACCX_SECTION_BLOCKS, &record);
}

static accrt_status_t encode_function(writer_encoder_t* encoder, uint32_t index) {
  const writer_function_t* item = WRITER_ITEM(encoder->writer, function, WRITER_FUNCTION, index);
  accx_function_t record = item->record;
  begin_scope(encoder, index);
  record.argument_first = count_of(encoder, ACCX_SECTION_ARGUMENTS);
  ACCRT_TRY(encode_arguments(encoder, item->first_input));
  ACCRT_TRY(encode_arguments(encoder, item->first_result));
  if (record.transient_size == 0)
    record.transient_size = encoder->zero;
  ACCRT_TRY(put_expression(encoder, &record.transient_size));
  record.slot_first = count_of(encoder, ACCX_SECTION_SLOTS);
  ACCRT_TRY(encode_slots(encoder, item));
  record.slot_count = count_of(encoder, ACCX_SECTION_SLOTS) - record.slot_first;
  encoder->blocks.count = 0;
  record.body = count_of(encoder, ACCX_SECTION_BLOCKS);
  ACCRT_TRY(number_blocks(encoder, item->record.body));
  for (uint32_t i = 0; i < encoder->blocks.count; ++i)
    ACCRT_TRY(encode_block(encoder, ((const uint32_t*)(const void*)encoder->blocks.data)[i]));
  encoder->writer->where = (writer_where_t){NULL, NULL, WRITER_NO, WRITER_NO, NULL, NULL};
  record.expression_first = encoder->scope_first;
  record.expression_count = count_of(encoder, ACCX_SECTION_EXPRESSIONS) - record.expression_first;
  return put(encoder, ACCX_SECTION_FUNCTIONS, &record);
}

/* ---- Strings ---- */

/* The places of records' references to strings. */
static const struct {
  uint8_t section, offset;
} string_fields[] = {
    {ACCX_SECTION_METADATA, offsetof(accx_metadata_t, key)},
    {ACCX_SECTION_METADATA, offsetof(accx_metadata_t, value)},
    {ACCX_SECTION_SYMBOLS, offsetof(accx_symbol_t, name)},
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, name)},
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, tensor)},
    {ACCX_SECTION_STATES, offsetof(accx_state_t, name)},
    {ACCX_SECTION_FUNCTIONS, offsetof(accx_function_t, name)},
    {ACCX_SECTION_FUNCTIONS, offsetof(accx_function_t, doc)},
    {ACCX_SECTION_FUNCTIONS, offsetof(accx_function_t, target)},
    {ACCX_SECTION_ARGUMENTS, offsetof(accx_argument_t, name)},
    {ACCX_SECTION_ARGUMENTS, offsetof(accx_argument_t, doc)},
    {ACCX_SECTION_KERNELS, offsetof(accx_kernel_t, name)},
    {ACCX_SECTION_PARAMETERS, offsetof(accx_parameter_t, name)},
    {ACCX_SECTION_VARIANTS, offsetof(accx_variant_t, driver)},
    {ACCX_SECTION_VARIANTS, offsetof(accx_variant_t, arch)},
    {ACCX_SECTION_VARIANTS, offsetof(accx_variant_t, entry)},
    {ACCX_SECTION_IMAGES, offsetof(accx_image_t, name)},
    {ACCX_SECTION_ASSETS, offsetof(accx_asset_t, name)},
    {ACCX_SECTION_ASSETS, offsetof(accx_asset_t, media_type)},
    {ACCX_SECTION_LOCATIONS, offsetof(accx_location_t, file)},
    {ACCX_SECTION_LOCATIONS, offsetof(accx_location_t, name)},
    {ACCX_SECTION_FILES, offsetof(accx_file_t, name)},
    {ACCX_SECTION_ADAPTERS, offsetof(accx_adapter_t, slot)},
    {ACCX_SECTION_ADAPTERS, offsetof(accx_adapter_t, input)},
};

/* Calls `visit` for every reference to a string in all sections. */
static void visit_strings(writer_encoder_t* encoder,
                          void (*visit)(writer_encoder_t*, unsigned char* field)) {
  for (uint32_t f = 0; f < sizeof string_fields / sizeof *string_fields; ++f) {
    const writer_items_t* items = &encoder->sections[string_fields[f].section];
    if (string_fields[f].offset >= items->item_bytes)
      continue;
    for (uint32_t i = 0; i < items->count; ++i)
      visit(encoder, items->data + (size_t)i * items->item_bytes + string_fields[f].offset);
  }
  const writer_items_t* stream = &encoder->sections[ACCX_SECTION_COMMANDS];
  accx_command_t header;
  uint32_t count;
  for (uint32_t at = 0; at < stream->count; at += header.size_bytes) {
    memcpy(&header, stream->data + at, sizeof header);
    visit(encoder, stream->data + at + offsetof(accx_command_t, name));
    const accx_field_t* fields = accx_fields_of(header.opcode, &count);
    for (uint32_t i = 0; i < count; ++i) {
      if (fields[i].kind == ACCX_FIELD_STRING)
        visit(encoder, stream->data + at + sizeof header + fields[i].offset);
    }
  }
}

static void mark_string(writer_encoder_t* encoder, unsigned char* field) {
  uint32_t number;
  memcpy(&number, field, sizeof number);
  encoder->string_offsets[number] = 0;
}

static void resolve_string(writer_encoder_t* encoder, unsigned char* field) {
  uint32_t number;
  memcpy(&number, field, sizeof number);
  memcpy(field, &encoder->string_offsets[number], sizeof number);
}

static bool less_string(const void* context, uint32_t a, uint32_t b) {
  return compare_text(context, a, b) < 0;
}

static accrt_status_t encode_strings(writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  writer_items_t* section = &encoder->sections[ACCX_SECTION_STRINGS];
  const uint32_t count = writer->items[WRITER_STRING].count;
  uint32_t* order = encoder->order[WRITER_STRING];
  for (uint32_t i = 0; i < count; ++i) {
    const bool kept = i == 0 || WRITER_ITEM(writer, string, WRITER_STRING, i)->kept != 0;
    encoder->string_offsets[i] = kept ? 0 : WRITER_NO;
  }
  visit_strings(encoder, mark_string);
  for (uint32_t i = 0; i < count; ++i) {
    if (encoder->string_offsets[i] != WRITER_NO)
      order[encoder->string_count++] = i;
  }
  accx_sort(order, encoder->string_count, less_string, writer);
  for (uint32_t i = 0; i < encoder->string_count; ++i) {
    const writer_string_t* string = WRITER_ITEM(writer, string, WRITER_STRING, order[i]);
    encoder->string_offsets[order[i]] = section->count;
    ACCRT_TRY(append(encoder, section, string->text, string->size_bytes + 1));
  }
  visit_strings(encoder, resolve_string);
  return ACCRT_OK;
}

/* ---- The whole file ---- */

static accrt_status_t alloc_u32(const writer_encoder_t* encoder, size_t count, uint32_t** out) {
  ACCRT_TRY(ACCRT_NEW_ARRAY(&encoder->writer->allocator, count, &*out));
  return ACCRT_OK;
}

static accrt_status_t alloc_tables(writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t kind = 1; kind < WRITER_KEY; ++kind) {
    ACCRT_TRY(alloc_u32(encoder, writer->items[kind].count, &encoder->order[kind]));
    ACCRT_TRY(alloc_u32(encoder, writer->items[kind].count, &encoder->rank[kind]));
  }
  encoder->string_offsets = encoder->rank[WRITER_STRING];
  encoder->scope_nodes = encoder->order[WRITER_EXPRESSION];
  encoder->scope_epochs = encoder->rank[WRITER_EXPRESSION];
  while (encoder->view_capacity < (size_t)writer->items[WRITER_VIEW].count * 2)
    encoder->view_capacity = encoder->view_capacity == 0 ? 2 : encoder->view_capacity * 2;
  ACCRT_TRY(alloc_u32(encoder, encoder->view_capacity, &encoder->view_table));
  return alloc_u32(encoder, encoder->view_capacity, &encoder->view_epochs);
}

static void set_sizes(writer_encoder_t* encoder) {
  for (uint32_t type = 0; type < ACCX_MAX_SECTIONS; ++type) {
    const accx_section_kind_t* kind = accx_section_kind(type);
    if (kind != NULL)
      encoder->sections[type].item_bytes = kind->record_bytes != 0 ? kind->record_bytes : 1;
  }
  for (uint32_t i = 0; i < 3; ++i)
    encoder->pieces[i].item_bytes = sizeof(writer_piece_t);
  encoder->stack.item_bytes = sizeof(uint32_t);
  encoder->blocks.item_bytes = sizeof(uint32_t);
  encoder->slots.item_bytes = sizeof(uint32_t);
}

accrt_status_t accx_writer_encode(writer_encoder_t* encoder) {
  set_sizes(encoder);
  ACCRT_TRY(accx_writer_number(encoder->writer, 0, &encoder->zero));
  ACCRT_TRY(alloc_tables(encoder));
  ACCRT_TRY(accx_writer_fit(encoder));
  ACCRT_TRY(order_all(encoder));
  ACCRT_TRY(accx_writer_check_devices(encoder));
  ACCRT_TRY(encode_plain(encoder));
  ACCRT_TRY(encode_symbols(encoder));
  ACCRT_TRY(encode_constants(encoder));
  ACCRT_TRY(encode_shards(encoder));
  ACCRT_TRY(encode_assets(encoder));
  ACCRT_TRY(encode_states(encoder));
  for (uint32_t i = 0; i < encoder->order_count[WRITER_FUNCTION]; ++i)
    ACCRT_TRY(encode_function(encoder, encoder->order[WRITER_FUNCTION][i]));
  ACCRT_TRY(encode_kernels(encoder));
  ACCRT_TRY(encode_images(encoder));
  return encode_strings(encoder);
}

static void free_items(const writer_encoder_t* encoder, writer_items_t* items) {
  accrt_free_array(&encoder->writer->allocator, items->data, items->capacity, items->item_bytes);
}

void accx_writer_encode_end(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const accrt_allocator_t* allocator = &writer->allocator;
  for (uint32_t type = 0; type < ACCX_MAX_SECTIONS; ++type)
    free_items(encoder, &encoder->sections[type]);
  for (uint32_t i = 0; i < 3; ++i)
    free_items(encoder, &encoder->pieces[i]);
  free_items(encoder, &encoder->stack);
  free_items(encoder, &encoder->blocks);
  free_items(encoder, &encoder->slots);
  for (uint32_t kind = 1; kind < WRITER_KEY; ++kind) {
    accrt_free_array(allocator, encoder->order[kind], writer->items[kind].count, sizeof(uint32_t));
    accrt_free_array(allocator, encoder->rank[kind], writer->items[kind].count, sizeof(uint32_t));
  }
  accrt_free_array(allocator, encoder->view_table, encoder->view_capacity, sizeof(uint32_t));
  accrt_free_array(allocator, encoder->view_epochs, encoder->view_capacity, sizeof(uint32_t));
  accrt_free_array(allocator, encoder->raw_pieces, encoder->order_count[WRITER_SECTION],
                   sizeof(writer_piece_t));
  accrt_free_aligned(allocator, encoder->buffer, WRITER_BUFFER_BYTES, ACCX_DATA_ALIGN);
}
