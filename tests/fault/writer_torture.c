/* tests/fault/writer_torture.c - every allocation of a bundle writer fails in turn: once, and the same call then succeeds and the bundle is
 * the same, byte for byte; and for ever. Nothing is lost. */
#include <elf.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "accrt/accrt.h"
#include "accrt/write.h"
#include "runtime/core/test_allocator.h"

#define F32 ACCRT_DTYPE_F32
#define MOST_ALLOCATIONS 2000

/* One making of the bundle. */
typedef struct making {
  test_allocator_t allocator;
  accrt_allocator_t interface;
  accrt_bundle_writer_t* writer;
  int again;   /* a call that failed for want of memory is made once more */
  long failed; /* calls that did */
  accrt_status_t status;
  uint64_t hash; /* of what was written */
  uint64_t size_bytes;
} making_t;

/* Makes a call, unless one before it failed for good. */
#define CALL(m, call)                                                                              \
  do {                                                                                             \
    if ((m)->status == ACCRT_OK)                                                                   \
      (m)->status = (call);                                                                        \
    if ((m)->status == ACCRT_ERROR_OUT_OF_MEMORY && (m)->again) {                                  \
      ++(m)->failed;                                                                               \
      (m)->status = (call);                                                                        \
    }                                                                                              \
  } while (0)

static int32_t take(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  making_t* m = self;
  const unsigned char* bytes = data;
  /* Of where each byte is: the order of pieces does not matter. */
  for (uint64_t i = 0; i < size_bytes; ++i)
    m->hash += (bytes[i] + 1u) * (offset + i + 1) * UINT64_C(0x9E3779B97F4A7C15);
  if (offset + size_bytes > m->size_bytes)
    m->size_bytes = offset + size_bytes;
  return 0;
}

static const void* elf_image(void) {
  static struct {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
  } image;
  memcpy(image.header.e_ident, ELFMAG, SELFMAG);
  image.header.e_ident[EI_CLASS] = ELFCLASS64;
  image.header.e_ident[EI_DATA] = ELFDATA2LSB;
  image.header.e_ident[EI_VERSION] = EV_CURRENT;
  image.header.e_type = ET_DYN;
  image.header.e_ehsize = sizeof image.header;
  image.header.e_phentsize = sizeof image.segment;
  image.header.e_phnum = 1;
  image.header.e_phoff = sizeof image.header;
  return &image;
}

static accrt_writer_bytes_t memory(const void* data, uint64_t size_bytes) {
  return (accrt_writer_bytes_t){.size_bytes = size_bytes, .data = data};
}

static accrt_writer_id_t number(making_t* m, int64_t value) {
  accrt_writer_id_t id = 0;
  CALL(m, accrt_bundle_writer_integer(m->writer, value, &id));
  return id;
}

static accrt_writer_id_t binary(making_t* m, uint32_t op, accrt_writer_id_t a,
                                accrt_writer_id_t b) {
  accrt_writer_id_t id = 0;
  CALL(m, accrt_bundle_writer_expression(m->writer, op, a, b, 0, &id));
  return id;
}

static accrt_writer_id_t symbol(making_t* m, const char* name, uint32_t symbol_class) {
  static const int64_t buckets[] = {4, 64};
  accrt_writer_symbol_t symbol = ACCRT_WRITER_SYMBOL_INIT;
  accrt_writer_id_t id = 0;
  symbol.name = name;
  symbol.symbol_class = symbol_class;
  symbol.maximum = 64;
  symbol.buckets = buckets;
  symbol.bucket_count = symbol_class == ACCRT_SYMBOL_BUCKET ? 2 : 0;
  CALL(m, accrt_bundle_writer_add_symbol(m->writer, &symbol, &id));
  return id;
}

static accrt_writer_id_t constant(making_t* m, const char* name, uint32_t source,
                                  accrt_writer_id_t file) {
  static const float data[4] = {1, 2, 3, 4};
  const accrt_writer_component_t component = {0, 0, memory(data, sizeof data)};
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  accrt_writer_id_t id = 0;
  constant.name = name;
  constant.source = source;
  constant.dtype = F32;
  constant.rank = 1;
  constant.shape[0] = 4;
  constant.components = &component;
  constant.component_count = 1;
  constant.file = file;
  constant.binding_flags = source == ACCRT_CONSTANT_EXTERNAL ? ACCRT_BINDING_BY_NAME : 0;
  CALL(m, accrt_bundle_writer_add_constant(m->writer, &constant, &id));
  return id;
}

static accrt_writer_id_t kernel(making_t* m) {
  static const accrt_writer_parameter_t parameters[] = {
      {.name = "x", .kind = ACCRT_KERNEL_PARAM_TENSOR, .access = ACCRT_KERNEL_ACCESS_READ},
      {.name = "y", .kind = ACCRT_KERNEL_PARAM_BUFFER, .access = ACCRT_KERNEL_ACCESS_WRITE},
      {.name = "scratch", .kind = ACCRT_KERNEL_PARAM_WORKSPACE},
      {.name = "n", .kind = ACCRT_KERNEL_PARAM_SYMBOL},
      {.name = "a", .kind = ACCRT_KERNEL_PARAM_SCALAR, .size_bytes = 4}};
  static const accrt_writer_predicate_t predicates[] = {{"n", ACCRT_PREDICATE_DIVISIBLE, 0, 4},
                                                        {"y", ACCRT_PREDICATE_ALIGNED, 0, 64}};
  const accrt_writer_bytes_t elf = memory(elf_image(), sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr));
  const accrt_writer_bytes_t ptx = memory("code", 5);
  accrt_writer_kernel_t kernel = ACCRT_WRITER_KERNEL_INIT;
  accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
  accrt_writer_id_t id = 0, device = 0;
  kernel.name = "step";
  kernel.parameters = parameters;
  kernel.parameter_count = 5;
  CALL(m, accrt_bundle_writer_add_kernel(m->writer, &kernel, &id));
  CALL(m, accrt_bundle_writer_add_image(m->writer, "host", ACCRT_IMAGE_HOST_ELF, &elf,
                                        &variant.image));
  CALL(m, accrt_bundle_writer_add_image(m->writer, "ptx", ACCRT_IMAGE_PTX, &ptx, &device));
  variant.predicates = predicates;
  variant.predicate_count = 2;
  CALL(m, accrt_bundle_writer_add_variant(m->writer, id, &variant));
  variant.driver = "cuda";
  variant.image = device;
  variant.block[0] = 32;
  CALL(m, accrt_bundle_writer_add_variant(m->writer, id, &variant));
  return id;
}

static accrt_writer_id_t argument(making_t* m, accrt_writer_id_t function, uint32_t kind,
                                  const char* name, accrt_writer_id_t size,
                                  accrt_writer_id_t constant_id) {
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  accrt_writer_id_t slot = 0;
  argument.name = name;
  argument.kind = kind;
  argument.constant = constant_id;
  if (constant_id == 0)
    argument.type = (accrt_writer_type_t){.dtype = F32, .rank = 1, .dims = {size}};
  argument.optional = strcmp(name, "maybe") == 0;
  CALL(m, accrt_bundle_writer_add_argument(m->writer, function, &argument, &slot));
  return slot;
}

static accrt_writer_id_t command(making_t* m, accrt_writer_id_t block,
                                 accrt_writer_command_t given) {
  accrt_writer_id_t id = 0;
  given.struct_size = (uint32_t)sizeof given;
  CALL(m, accrt_bundle_writer_add_command(m->writer, block, &given, &id));
  return id;
}

static void prepare(making_t* m, accrt_writer_id_t stored, accrt_writer_id_t made) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_id_t id = 0, body = 0;
  function.name = "prepare";
  function.flags = ACCRT_FUNCTION_PREPARE;
  CALL(m, accrt_bundle_writer_add_function(m->writer, &function, &id, &body));
  const accrt_writer_id_t from = argument(m, id, ACCRT_ARGUMENT_READ, "from", 0, stored);
  const accrt_writer_id_t to = argument(m, id, ACCRT_ARGUMENT_RESULT, "to", 0, made);
  (void)command(m, body,
                (accrt_writer_command_t){.opcode = ACCRT_OPCODE_COPY,
                                         .source = {.slot = from},
                                         .destination = {.slot = to},
                                         .extent = {number(m, 16)}});
}

/* What the function's body does. */
typedef struct body {
  accrt_writer_id_t function, block, n, x, y, maybe, kernel, weight, cache, session;
} body_t;

static void nested(making_t* m, const body_t* b, accrt_writer_id_t after, accrt_writer_id_t place) {
  accrt_writer_id_t present = 0, inside = 0, turn = 0;
  const accrt_writer_id_t repeat = command(m, b->block,
                                           (accrt_writer_command_t){.opcode = ACCRT_OPCODE_REPEAT,
                                                                    .value = b->session,
                                                                    .after = &after,
                                                                    .after_count = 1,
                                                                    .location = place});
  CALL(m, accrt_bundle_writer_block(m->writer, repeat, 0, &inside));
  CALL(m, accrt_bundle_writer_present(m->writer, b->maybe, &present));
  CALL(m, accrt_bundle_writer_induction(m->writer, 0, &turn));
  const accrt_writer_id_t branch =
      command(m, inside, (accrt_writer_command_t){.opcode = ACCRT_OPCODE_BRANCH, .value = present});
  CALL(m, accrt_bundle_writer_block(m->writer, branch, 1, &inside));
  (void)command(m, inside,
                (accrt_writer_command_t){
                    .opcode = ACCRT_OPCODE_FILL, .destination = {b->y, 0, turn, 0}, .pattern = 1});
}

static void body(making_t* m, const body_t* b) {
  accrt_writer_id_t arena = 0, weight = 0, cache = 0, place = 0;
  CALL(m, accrt_bundle_writer_arena(m->writer, b->function,
                                    binary(m, ACCRT_EXPR_MUL, b->n, number(m, 4)), 0, &arena));
  CALL(m, accrt_bundle_writer_slot(m->writer, b->function, b->weight, 0, &weight));
  CALL(m, accrt_bundle_writer_slot(m->writer, b->function, b->cache, 0, &cache));
  CALL(m, accrt_bundle_writer_add_location(m->writer, "model.py", 3, 1, "step", &place));
  const accrt_writer_operand_t operands[] = {
      {.name = "n", .kind = ACCRT_OPERAND_SYMBOL, .value = b->n},
      {.name = "a", .kind = ACCRT_OPERAND_SCALAR, .bits = 7},
      {.name = "scratch", .kind = ACCRT_OPERAND_WORKSPACE, .range = {.slot = arena}},
      {.name = "y", .kind = ACCRT_OPERAND_BUFFER, .range = {.slot = b->y}},
      {.name = "x",
       .kind = ACCRT_OPERAND_TENSOR,
       .range = {.slot = b->x},
       .dtype = F32,
       .rank = 2,
       .shape = {number(m, 2), b->n}}};
  const accrt_writer_id_t first = command(m, b->block,
                                          (accrt_writer_command_t){.opcode = ACCRT_OPCODE_DISPATCH,
                                                                   .target = b->kernel,
                                                                   .operands = operands,
                                                                   .operand_count = 5});
  const accrt_writer_id_t second =
      command(m, b->block,
              (accrt_writer_command_t){.opcode = ACCRT_OPCODE_COPY,
                                       .source = {.slot = weight},
                                       .destination = {.slot = cache},
                                       .extent = {number(m, 8), number(m, 2)},
                                       .after = &first,
                                       .after_count = 1});
  (void)command(m, b->block, (accrt_writer_command_t){.opcode = ACCRT_OPCODE_MARKER, .text = "."});
  (void)command(m, b->block,
                (accrt_writer_command_t){.opcode = 0x8001, .raw = "12345678", .raw_size_bytes = 8});
  nested(m, b, second, place);
}

static void beside(making_t* m) {
  static const accrt_writer_segment_t segment = {0, 8, 1, 0};
  const accrt_writer_bytes_t text = memory("words", 5);
  accrt_writer_section_t section = ACCRT_WRITER_SECTION_INIT;
  accrt_writer_id_t file = 0;
  CALL(m, accrt_bundle_writer_add_metadata(m->writer, "license", "none"));
  CALL(m, accrt_bundle_writer_add_string(m->writer, "kept"));
  CALL(m, accrt_bundle_writer_add_asset(m->writer, "tokenizer", "text/plain", &text));
  CALL(m, accrt_bundle_writer_add_adapter(m->writer, "lora", "maybe", 0));
  CALL(m, accrt_bundle_writer_add_file(m->writer, "w.safetensors", ACCRT_FILE_SAFETENSORS, 0, NULL,
                                       &file));
  const accrt_writer_id_t outside = constant(m, "outside", ACCRT_CONSTANT_EXTERNAL, file);
  CALL(m,
       accrt_bundle_writer_add_shard(m->writer, outside, ACCRT_SHARD_SPLIT, 0, 2, 8, &segment, 1));
  section.type = 0x10001;
  section.name = "acme.tuning";
  section.bytes = text;
  CALL(m, accrt_bundle_writer_add_section(m->writer, &section));
}

static void declare(making_t* m) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_state_t state = ACCRT_WRITER_STATE_INIT;
  body_t b = {.n = symbol(m, "n", ACCRT_SYMBOL_BUCKET)};
  b.session = symbol(m, "length", ACCRT_SYMBOL_SESSION);
  b.weight = constant(m, "weight", ACCRT_CONSTANT_INLINE, 0);
  prepare(m, b.weight, constant(m, "packed", ACCRT_CONSTANT_PREPARED, 0));
  b.kernel = kernel(m);
  state.name = "cache";
  state.type = (accrt_writer_type_t){.dtype = F32, .rank = 1, .dims = {b.session}};
  CALL(m, accrt_bundle_writer_add_state(m->writer, &state, &b.cache));
  function.name = "main";
  function.doc = "one of everything";
  CALL(m, accrt_bundle_writer_add_function(m->writer, &function, &b.function, &b.block));
  b.x = argument(m, b.function, ACCRT_ARGUMENT_READ, "x", b.n, 0);
  b.maybe = argument(m, b.function, ACCRT_ARGUMENT_READ, "maybe", b.n, 0);
  b.y = argument(m, b.function, ACCRT_ARGUMENT_RESULT, "y", b.n, 0);
  body(m, &b);
  beside(m);
}

static accrt_status_t write_out(making_t* m) {
  const accrt_writer_output_t output = {m, take, 0, 0};
  m->hash = 0;
  m->size_bytes = 0;
  return accrt_bundle_writer_write_callback(m->writer, &output);
}

/* The whole life of a writer, with its n-th allocation failing. */
static making_t make(long fail_at, int for_ever) {
  making_t m = {.again = !for_ever};
  m.interface = (accrt_allocator_t){&m.allocator, test_allocate, test_deallocate};
  atomic_store(&m.allocator.fail_for_ever, for_ever);
  atomic_store(&m.allocator.fail_at, fail_at);
  accrt_bundle_writer_options_t options = ACCRT_BUNDLE_WRITER_OPTIONS_INIT;
  options.allocator = &m.interface;
  accrt_caps_t target = ACCRT_CAPS_INIT; /* this library's, on some machine */
  (void)accrt_query_caps(&target);
  (void)snprintf(target.devices, sizeof target.devices, "other:thing host:x86-64-v4 host:aarch64");
  options.target = &target;
  CALL(&m, accrt_bundle_writer_create(&options, &m.writer));
  declare(&m);
  CALL(&m, write_out(&m));
  if (m.status != ACCRT_OK && m.status != ACCRT_ERROR_OUT_OF_MEMORY) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    print_error("allocation %ld: %s: %s\n", fail_at, error.operation, error.message);
  }
  if (for_ever)
    atomic_store(&m.allocator.fail_at, 0);
  accrt_bundle_writer_release(m.writer);
  assert_int_equal(atomic_load(&m.allocator.live_count), 0);
  assert_int_equal(atomic_load(&m.allocator.wrong_count), 0);
  return m;
}

static void every_allocation_fails_once(void** state) {
  (void)state;
  const making_t good = make(0, 0);
  assert_int_equal(good.status, ACCRT_OK);
  long number = 1;
  for (; number < MOST_ALLOCATIONS; ++number) {
    const making_t m = make(number, 0);
    assert_int_equal(m.status, ACCRT_OK);
    assert_true(m.hash == good.hash && m.size_bytes == good.size_bytes);
    if (atomic_load(&m.allocator.failed_count) == 0)
      break;
    assert_int_equal(m.failed, 1);
  }
  assert_in_range(number, 30, MOST_ALLOCATIONS - 1);
  print_message("%ld allocations failed in turn; %" PRIu64 " bytes\n", number - 1, good.size_bytes);
}

static void all_allocations_from_one_on_fail(void** state) {
  (void)state;
  for (long number = 1;; ++number) {
    const making_t m = make(number, 1);
    if (m.status == ACCRT_OK)
      return;
    assert_int_equal(m.status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_true(number < MOST_ALLOCATIONS);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_allocation_fails_once),
      cmocka_unit_test(all_allocations_from_one_on_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
