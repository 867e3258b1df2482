/* examples/emit/main.c - a compiler in 200 lines: takes steps such as "*2" and "+1", writes a
 * bundle whose function applies them to a vector, one after another, and runs it.
 * docs/bundle-writer.md explains.
 *
 *   ./emit steps.accx affine.so '*2' '+1'                  for processors
 *   ./emit steps.accx affine.so affine.ptx '*2' '+1'       for GPUs too (affine.cu) */
#include <accrt/accrt.h>
#include <accrt/write.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARE 256 /* elements of a workgroup: as in affine.c */

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

/* ---- What the compiler's back end is made of: ids of one writer ---- */

static accrt_bundle_writer_t* writer;

static accrt_writer_id_t number(int64_t value) {
  accrt_writer_id_t id;
  check(accrt_bundle_writer_integer(writer, value, &id));
  return id;
}

static accrt_writer_id_t binary(uint32_t op, accrt_writer_id_t a, accrt_writer_id_t b) {
  accrt_writer_id_t id;
  check(accrt_bundle_writer_expression(writer, op, a, b, 0, &id));
  return id;
}

/* Fills exactly size_bytes at `offset`: of a file, for the writer to pull from. 0, or an errno
 * value. */
static int32_t read_file(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  if (fseek(self, (long)offset, SEEK_SET) != 0)
    return 5;                    /* EIO */
  memset(target, 0, size_bytes); /* PTX ends with a NUL, which its file lacks */
  return fread(target, 1, size_bytes, self) + 1 >= size_bytes ? 0 : 5;
}

/* Code from a file, which is read when the bundle is written. */
static accrt_writer_id_t image(const char* path, uint32_t kind) {
  accrt_writer_id_t id;
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0)
    perror(path), exit(1);
  accrt_writer_bytes_t bytes = {.kind = ACCRT_WRITER_BYTES_READER, .read = read_file, .self = file};
  bytes.size_bytes = (uint64_t)ftell(file) + (kind == ACCRT_IMAGE_PTX);
  check(accrt_bundle_writer_add_image(writer, path, kind, &bytes, &id));
  return id;
}

static accrt_writer_id_t kernel(const char* host, const char* ptx) {
  static const accrt_writer_parameter_t parameters[] = {
      {.name = "x", .kind = ACCRT_KERNEL_PARAM_BUFFER, .access = ACCRT_KERNEL_ACCESS_READ},
      {.name = "y", .kind = ACCRT_KERNEL_PARAM_BUFFER, .access = ACCRT_KERNEL_ACCESS_WRITE},
      {.name = "n", .kind = ACCRT_KERNEL_PARAM_SYMBOL},
      {.name = "a", .kind = ACCRT_KERNEL_PARAM_SCALAR, .size_bytes = 4},
      {.name = "b", .kind = ACCRT_KERNEL_PARAM_SCALAR, .size_bytes = 4}};
  accrt_writer_kernel_t declared = ACCRT_WRITER_KERNEL_INIT;
  accrt_writer_id_t id;
  declared.name = "affine";
  declared.traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC;
  declared.parameters = parameters;
  declared.parameter_count = 5;
  check(accrt_bundle_writer_add_kernel(writer, &declared, &id));

  accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
  variant.arch_kind =
      ACCRT_ARCH_PORTABLE; /* among hosts: it was compiled for this kind of machine */
  variant.image = image(host, ACCRT_IMAGE_HOST_ELF);
  check(accrt_bundle_writer_add_variant(writer, id, &variant));
  if (ptx != NULL) {
    variant.driver = "cuda";
    variant.arch = "sm_80"; /* from there up */
    variant.image = image(ptx, ACCRT_IMAGE_PTX);
    variant.block[0] = SHARE;
    check(accrt_bundle_writer_add_variant(writer, id, &variant));
  }
  return id;
}

/* ---- The compiler ---- */

static accrt_writer_id_t argument(accrt_writer_id_t function, uint32_t kind, const char* name,
                                  accrt_writer_id_t size) {
  accrt_writer_argument_t declared = ACCRT_WRITER_ARGUMENT_INIT;
  accrt_writer_id_t slot;
  declared.name = name;
  declared.kind = kind;
  declared.type = (accrt_writer_type_t){.dtype = ACCRT_DTYPE_F32, .rank = 1, .dims = {size}};
  check(accrt_bundle_writer_add_argument(writer, function, &declared, &slot));
  return slot;
}

static uint64_t bits(float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  return word;
}

/* apply(x: f32[n]) -> y: f32[n], a dispatch for each step; between them the two halves of the
 * arena, in turn. */
static void compile(accrt_writer_id_t affine, char** steps, int count) {
  accrt_writer_symbol_t symbol = ACCRT_WRITER_SYMBOL_INIT;
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_id_t n, id, body, arena, before = 0;
  symbol.name = "n";
  symbol.maximum = 1 << 20;
  check(accrt_bundle_writer_add_symbol(writer, &symbol, &n));
  function.name = "apply";
  function.doc = "the steps, one after another";
  check(accrt_bundle_writer_add_function(writer, &function, &id, &body));
  const accrt_writer_id_t x = argument(id, ACCRT_ARGUMENT_READ, "x", n);
  const accrt_writer_id_t y = argument(id, ACCRT_ARGUMENT_RESULT, "y", n);
  const accrt_writer_id_t bytes = binary(ACCRT_EXPR_MUL, n, number(4));
  check(accrt_bundle_writer_arena(writer, id, binary(ACCRT_EXPR_MUL, bytes, number(2)), 0, &arena));

  accrt_writer_range_t value = {.slot = x, .size = bytes};
  for (int i = 0; i < count; ++i) {
    const float factor = steps[i][0] == '*' ? strtof(steps[i] + 1, NULL) : 1;
    const float term = steps[i][0] == '*' ? 0 : strtof(steps[i], NULL);
    accrt_writer_range_t made = {.slot = arena, .offset = i % 2 ? bytes : 0, .size = bytes};
    if (i + 1 == count)
      made = (accrt_writer_range_t){.slot = y, .size = bytes};
    const accrt_writer_operand_t operands[] = {
        {.name = "x", .kind = ACCRT_OPERAND_BUFFER, .range = value},
        {.name = "y", .kind = ACCRT_OPERAND_BUFFER, .range = made},
        {.name = "n", .kind = ACCRT_OPERAND_SYMBOL, .value = n},
        {.name = "a", .kind = ACCRT_OPERAND_SCALAR, .bits = bits(factor)},
        {.name = "b", .kind = ACCRT_OPERAND_SCALAR, .bits = bits(term)}};
    accrt_writer_command_t command = ACCRT_WRITER_COMMAND_INIT;
    command.opcode = ACCRT_OPCODE_DISPATCH;
    command.name = steps[i];
    command.target = affine;
    command.grid[0] = binary(ACCRT_EXPR_CEILDIV, n, number(SHARE));
    command.operands = operands;
    command.operand_count = 5;
    command.after = &before;
    command.after_count = i > 0;
    check(accrt_bundle_writer_add_command(writer, body, &command, &before));
    value = made;
  }
}

/* ---- Running what was written ---- */

static void run(const char* path) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.host_code_policy = ACCRT_HOST_CODE_ALL; /* it was written just now */
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
  check(accrt_instance_create(&options, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_bundle_open_path(instance, path, NULL, &bundle));
  check(accrt_program_create(device, bundle, NULL, &program));
  check(accrt_session_create(program, NULL, &session));
  check(accrt_call_create(session, "apply", &call));
  float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8];
  const int64_t shape[1] = {8};
  accrt_tensor_t in = {.data = x, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape};
  accrt_tensor_t out = {.data = y, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape};
  check(accrt_call_set_tensor(call, 0, &in));
  check(accrt_call_set_tensor(call, 1, &out));
  check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));
  for (int i = 0; i < 8; ++i)
    printf("%g -> %g\n", (double)x[i], (double)y[i]);
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
}

/* A step is '*' or '+' or '-', and a number. */
static int is_step(const char* text) {
  char* end = NULL;
  strtof(text + 1, &end);
  return strchr("*+-", text[0]) != NULL && text[0] != 0 && end != text + 1 && *end == 0;
}

int main(int argc, char** argv) {
  const char* ptx = argc > 3 && strstr(argv[3], ".ptx") != NULL ? argv[3] : NULL;
  const int first = ptx != NULL ? 4 : 3;
  if (argc <= first)
    return fprintf(stderr, "usage: %s steps.accx affine.so [affine.ptx] STEP...\n", argv[0]), 2;
  for (int i = first; i < argc; ++i)
    if (!is_step(argv[i]))
      return fprintf(stderr, "step '%s' must be such as '*2' or '+1'\n", argv[i]), 2;
  check(accrt_bundle_writer_create(NULL, &writer));
  check(accrt_bundle_writer_add_metadata(writer, "producer", "examples/emit"));
  compile(kernel(argv[2], ptx), argv + first, argc - first);
  check(accrt_bundle_writer_write_path(writer, argv[1]));
  accrt_bundle_writer_release(writer);
  run(argv[1]);
  return 0;
}
