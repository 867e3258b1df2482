/* A compiler's use of the bundle writer, from accrt/write/bundle_writer.h alone: a program of
 * two functions with a kernel, loops, weights that are plain, quantized, prepared, sharded and
 * in other files, an adapter, an asset and places in a source. What was written is read back,
 * signed, and written again for a reader that is older. Public headers only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/write.h"

#define ROWS 4
#define COLUMNS 64

static accrt_bundle_writer_t* writer;

static void ok(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  fail_msg("%s: %s: %s", error.operation, accrt_status_name(status), error.message);
}

/* ---- A back end in few words ---- */

static accrt_writer_id_t number(int64_t value) {
  accrt_writer_id_t id;
  ok(accrt_bundle_writer_integer(writer, value, &id));
  return id;
}

static accrt_writer_id_t times(accrt_writer_id_t a, int64_t b) {
  accrt_writer_id_t id;
  ok(accrt_bundle_writer_expression(writer, ACCRT_EXPR_MUL, a, number(b), 0, &id));
  return id;
}

static accrt_writer_id_t symbol(const char* name, int64_t maximum) {
  accrt_writer_symbol_t made = ACCRT_WRITER_SYMBOL_INIT;
  accrt_writer_id_t id;
  made.name = name;
  made.maximum = maximum;
  ok(accrt_bundle_writer_add_symbol(writer, &made, &id));
  return id;
}

static accrt_writer_type_t matrix(accrt_writer_id_t rows, accrt_writer_id_t columns) {
  return (accrt_writer_type_t){
      .dtype = ACCRT_DTYPE_F32, .rank = columns != 0 ? 2 : 1, .dims = {rows, columns}};
}

static accrt_writer_id_t argument(accrt_writer_id_t function, uint32_t kind, const char* name,
                                  const accrt_writer_type_t* type, uint32_t optional,
                                  accrt_writer_id_t what) {
  accrt_writer_argument_t made = ACCRT_WRITER_ARGUMENT_INIT;
  accrt_writer_id_t slot;
  made.kind = kind;
  made.name = name;
  made.optional = optional;
  if (type != NULL)
    made.type = *type;
  if (kind == ACCRT_ARGUMENT_SCALAR)
    made.symbol = what;
  else
    made.constant = what;
  ok(accrt_bundle_writer_add_argument(writer, function, &made, &slot));
  return slot;
}

static accrt_writer_id_t function(const char* name, uint32_t flags, accrt_writer_id_t* out_body) {
  accrt_writer_function_t made = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_id_t id;
  made.name = name;
  made.flags = flags;
  ok(accrt_bundle_writer_add_function(writer, &made, &id, out_body));
  return id;
}

static accrt_writer_id_t slot(accrt_writer_id_t of, accrt_writer_id_t target, uint32_t component) {
  accrt_writer_id_t id;
  ok(accrt_bundle_writer_slot(writer, of, target, component, &id));
  return id;
}

static accrt_writer_id_t command(accrt_writer_id_t block, const accrt_writer_command_t* made) {
  accrt_writer_id_t id;
  ok(accrt_bundle_writer_add_command(writer, block, made, &id));
  return id;
}

static accrt_writer_id_t copy(accrt_writer_id_t block, accrt_writer_id_t from, accrt_writer_id_t to,
                              accrt_writer_id_t bytes) {
  accrt_writer_command_t made = ACCRT_WRITER_COMMAND_INIT;
  made.opcode = ACCRT_OPCODE_COPY;
  made.source.slot = from;
  made.destination.slot = to;
  made.extent[0] = bytes;
  return command(block, &made);
}

/* ---- Weights ---- */

static float plain[ROWS];
static unsigned char blocks[ROWS * COLUMNS / 32 * 34];
/* A size as the registry has it. */
static uint64_t size_of(uint32_t layout, const int64_t* shape, uint32_t role, accrt_dtype_t dtype) {
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  uint64_t size = 0;
  tensor.layout = layout;
  tensor.dtype = ACCRT_DTYPE_F32;
  tensor.rank = 2;
  tensor.shape = shape;
  tensor.components[role].dtype = dtype;
  ok(accrt_layout_component_size(&tensor, role, &size));
  return size;
}

static accrt_writer_id_t weight(const char* name, uint32_t source, uint32_t encoding, uint32_t rank,
                                const accrt_writer_component_t* components, uint32_t count,
                                accrt_writer_id_t file) {
  accrt_writer_constant_t made = ACCRT_WRITER_CONSTANT_INIT;
  accrt_writer_id_t id;
  made.name = name;
  made.source = source;
  made.dtype = ACCRT_DTYPE_F32;
  made.encoding = encoding;
  made.rank = rank;
  made.shape[0] = ROWS;
  made.shape[1] = rank == 2 ? COLUMNS : 0;
  made.components = components;
  made.component_count = count;
  made.file = file;
  if (source == ACCRT_CONSTANT_EXTERNAL) {
    made.tensor = "blk.0.weight";
    memset(made.digest, 7, sizeof made.digest);
  }
  ok(accrt_bundle_writer_add_constant(writer, &made, &id));
  return id;
}

typedef struct weights {
  accrt_writer_id_t plain, quantized, external, prepared;
} weights_t;

static weights_t add_weights(void) {
  const int64_t shape[] = {ROWS, COLUMNS};
  const accrt_writer_component_t in_memory = {.bytes = {.size_bytes = sizeof plain, .data = plain}};
  const accrt_writer_component_t quantized = {
      .role = ACCRT_LAYOUT_ROLE_DATA,
      .dtype = ACCRT_DTYPE_U8,
      .bytes = {.size_bytes = sizeof blocks, .data = blocks}};
  assert_int_equal(size_of(ACCRT_LAYOUT_Q8_0, shape, ACCRT_LAYOUT_ROLE_DATA, ACCRT_DTYPE_U8),
                   sizeof blocks);
  const accrt_writer_component_t outside[] = {
      {ACCRT_LAYOUT_ROLE_DATA,
       ACCRT_DTYPE_F8E4M3FN,
       {.size_bytes = size_of(ACCRT_LAYOUT_F8_CHANNEL, shape, 0, ACCRT_DTYPE_F8E4M3FN)}},
      {ACCRT_LAYOUT_ROLE_SCALES, ACCRT_DTYPE_F32, {.size_bytes = ROWS * sizeof(float)}}};
  const accrt_writer_component_t made = {.bytes = {.size_bytes = sizeof plain}};
  accrt_writer_id_t file;
  ok(accrt_bundle_writer_add_file(writer, "model.safetensors", ACCRT_FILE_SAFETENSORS, 1 << 20,
                                  NULL, &file));
  const weights_t weights = {
      weight("plain", ACCRT_CONSTANT_INLINE, ACCRT_LAYOUT_PLAIN, 1, &in_memory, 1, 0),
      weight("quantized", ACCRT_CONSTANT_INLINE, ACCRT_LAYOUT_Q8_0, 2, &quantized, 1, 0),
      weight("external", ACCRT_CONSTANT_EXTERNAL, ACCRT_LAYOUT_F8_CHANNEL, 2, outside, 2, file),
      weight("prepared", ACCRT_CONSTANT_PREPARED, ACCRT_LAYOUT_PLAIN, 1, &made, 1, 0)};
  const accrt_writer_segment_t segments[] = {{0, 2, 1, 0}, {2, 8, 1, 0}};
  ok(accrt_bundle_writer_add_shard(writer, weights.external, ACCRT_SHARD_SPLIT, 0, 2, 2 * ROWS,
                                   segments, 2));
  return weights;
}

/* ---- Code ---- */

static accrt_writer_id_t add_kernel(void) {
  static const char ptx[] = ".version 7.0\n";
  static const accrt_writer_parameter_t parameters[] = {
      {.name = "x", .kind = ACCRT_KERNEL_PARAM_TENSOR, .access = ACCRT_KERNEL_ACCESS_READ},
      {.name = "w", .kind = ACCRT_KERNEL_PARAM_BUFFER, .access = ACCRT_KERNEL_ACCESS_READ},
      {.name = "y", .kind = ACCRT_KERNEL_PARAM_BUFFER, .access = ACCRT_KERNEL_ACCESS_WRITE},
      {.name = "lora",
       .kind = ACCRT_KERNEL_PARAM_BUFFER,
       .access = ACCRT_KERNEL_ACCESS_READ,
       .flags = ACCRT_KERNEL_PARAM_FLAG_OPTIONAL},
      {.name = "scratch", .kind = ACCRT_KERNEL_PARAM_WORKSPACE},
      {.name = "n", .kind = ACCRT_KERNEL_PARAM_SYMBOL},
      {.name = "scale", .kind = ACCRT_KERNEL_PARAM_SCALAR, .size_bytes = 4}};
  static const accrt_writer_predicate_t predicates[] = {
      {.parameter = "n", .kind = ACCRT_PREDICATE_DIVISIBLE, .value = 8}};
  accrt_writer_kernel_t kernel = ACCRT_WRITER_KERNEL_INIT;
  accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
  accrt_writer_id_t id, pack, image;
  kernel.name = "project";
  kernel.traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC;
  kernel.parameters = parameters;
  kernel.parameter_count = sizeof parameters / sizeof *parameters;
  ok(accrt_bundle_writer_add_kernel(writer, &kernel, &id));
  ok(accrt_bundle_writer_add_image(writer, "acme.kernels", ACCRT_IMAGE_PACK, NULL, &pack));
  const accrt_writer_bytes_t code = {.size_bytes = sizeof ptx, .data = ptx};
  ok(accrt_bundle_writer_add_image(writer, "project.ptx", ACCRT_IMAGE_PTX, &code, &image));
  variant.arch_kind = ACCRT_ARCH_PORTABLE;
  variant.image = pack;
  ok(accrt_bundle_writer_add_variant(writer, id, &variant));
  variant.driver = "cuda";
  variant.arch = "sm_80";
  variant.image = image;
  variant.priority = 1;
  variant.block[0] = 128;
  variant.predicates = predicates;
  variant.predicate_count = 1;
  ok(accrt_bundle_writer_add_variant(writer, id, &variant));
  return id;
}

/* ---- Functions ---- */

static void add_prepare(const weights_t* weights) {
  accrt_writer_id_t body;
  const accrt_writer_id_t prepare = function("prepare", ACCRT_FUNCTION_PREPARE, &body);
  const accrt_writer_id_t from =
      argument(prepare, ACCRT_ARGUMENT_READ, "plain", NULL, 0, weights->plain);
  const accrt_writer_id_t to =
      argument(prepare, ACCRT_ARGUMENT_RESULT, "prepared", NULL, 0, weights->prepared);
  (void)copy(body, from, to, number(sizeof plain));
}

/* y = project(x, w): what `main` calls. */
static accrt_writer_id_t add_layer(accrt_writer_id_t kernel, const weights_t* weights,
                                   accrt_writer_id_t n) {
  const accrt_writer_type_t in = matrix(n, number(COLUMNS)), out = matrix(n, 0);
  accrt_writer_id_t body, arena, here;
  const accrt_writer_id_t layer = function("layer", ACCRT_FUNCTION_INTERNAL, &body);
  const accrt_writer_id_t x = argument(layer, ACCRT_ARGUMENT_READ, "x", &in, 0, 0);
  const accrt_writer_id_t lora = argument(layer, ACCRT_ARGUMENT_READ, "lora", &out, 1, 0);
  const accrt_writer_id_t y = argument(layer, ACCRT_ARGUMENT_RESULT, "y", &out, 0, 0);
  ok(accrt_bundle_writer_arena(writer, layer, times(n, 4), 64, &arena));
  ok(accrt_bundle_writer_add_location(writer, "model.py", 12, 5, "linear", &here));
  const float scale = 0.5f;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  const accrt_writer_operand_t operands[] = {
      {.name = "n", .kind = ACCRT_OPERAND_SYMBOL, .value = n},
      {.name = "x",
       .kind = ACCRT_OPERAND_TENSOR,
       .range = {.slot = x},
       .dtype = ACCRT_DTYPE_F32,
       .rank = 2,
       .shape = {n, number(COLUMNS)}},
      {.name = "w",
       .kind = ACCRT_OPERAND_BUFFER,
       .range = {.slot = slot(layer, weights->quantized, 0)}},
      {.name = "y", .kind = ACCRT_OPERAND_BUFFER, .range = {.slot = y}},
      {.name = "lora", .kind = ACCRT_OPERAND_BUFFER, .range = {.slot = lora}},
      {.name = "scratch",
       .kind = ACCRT_OPERAND_WORKSPACE,
       .range = {.slot = arena, .size = times(n, 4)}},
      {.name = "scale", .kind = ACCRT_OPERAND_SCALAR, .bits = bits}};
  accrt_writer_command_t dispatch = ACCRT_WRITER_COMMAND_INIT;
  dispatch.opcode = ACCRT_OPCODE_DISPATCH;
  dispatch.target = kernel;
  dispatch.grid[0] = n;
  dispatch.operands = operands;
  dispatch.operand_count = sizeof operands / sizeof *operands;
  dispatch.location = here;
  (void)command(body, &dispatch);
  return layer;
}

/* Calls the layer twice, in a loop; keeps its result in the session; adds the prepared weight where there is no adapter. */
static void add_main(accrt_writer_id_t layer, const weights_t* weights, accrt_writer_id_t n) {
  const accrt_writer_type_t in = matrix(n, number(COLUMNS)), out = matrix(n, 0);
  accrt_writer_state_t kept = ACCRT_WRITER_STATE_INIT;
  accrt_writer_id_t body, state, given, block;
  const accrt_writer_id_t main = function("main", 0, &body);
  const accrt_writer_id_t x = argument(main, ACCRT_ARGUMENT_READ, "x", &in, 0, 0);
  const accrt_writer_id_t lora = argument(main, ACCRT_ARGUMENT_READ, "lora", &out, 1, 0);
  const accrt_writer_id_t y = argument(main, ACCRT_ARGUMENT_RESULT, "y", &out, 0, 0);
  kept.name = "kept";
  kept.type = matrix(number(ROWS), 0);
  ok(accrt_bundle_writer_add_state(writer, &kept, &state));
  ok(accrt_bundle_writer_add_adapter(writer, "lora_A", "lora", ACCRT_ADAPTER_SCALED));
  ok(accrt_bundle_writer_present(writer, lora, &given));

  accrt_writer_command_t repeat = ACCRT_WRITER_COMMAND_INIT;
  repeat.opcode = ACCRT_OPCODE_REPEAT;
  repeat.value = number(2);
  const accrt_writer_id_t loop = command(body, &repeat);
  ok(accrt_bundle_writer_block(writer, loop, 0, &block));
  const accrt_writer_operand_t operands[] = {
      {.name = "x", .kind = ACCRT_OPERAND_BUFFER, .range = {.slot = x}},
      {.name = "y", .kind = ACCRT_OPERAND_BUFFER, .range = {.slot = y}}};
  accrt_writer_command_t call = ACCRT_WRITER_COMMAND_INIT;
  call.opcode = ACCRT_OPCODE_CALL;
  call.target = layer;
  call.operands = operands;
  call.operand_count = 2; /* without `lora`, which is optional */
  (void)command(block, &call);

  accrt_writer_command_t branch = ACCRT_WRITER_COMMAND_INIT;
  branch.opcode = ACCRT_OPCODE_BRANCH;
  branch.value = given;
  branch.after = &loop;
  branch.after_count = 1;
  const accrt_writer_id_t choice = command(body, &branch);
  ok(accrt_bundle_writer_block(writer, choice, 1, &block));
  (void)copy(block, slot(main, weights->prepared, 0), y, number(4));
  accrt_writer_command_t barrier = ACCRT_WRITER_COMMAND_INIT;
  barrier.opcode = ACCRT_OPCODE_BARRIER;
  (void)command(body, &barrier);
  (void)copy(body, y, slot(main, state, 0), number(4));
}

static void make(const accrt_caps_t* target) {
  accrt_bundle_writer_options_t options = ACCRT_BUNDLE_WRITER_OPTIONS_INIT;
  options.target = target;
  ok(accrt_bundle_writer_create(&options, &writer));
  const accrt_writer_bytes_t license = {.size_bytes = 5, .data = "free\n"};
  ok(accrt_bundle_writer_add_metadata(writer, "license", "free"));
  ok(accrt_bundle_writer_add_asset(writer, "LICENSE", "text/plain", &license));
  const accrt_writer_id_t n = symbol("n", 1 << 20);
  const weights_t weights = add_weights();
  const accrt_writer_id_t kernel = add_kernel();
  add_prepare(&weights);
  add_main(add_layer(kernel, &weights, n), &weights, n);
}

/* ---- What became of it ---- */

static accrt_instance_t* instance;
static char path[64], signed_path[80];

static int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  (void)snprintf(path, sizeof path, "/tmp/bundle_writer_test.%d.accx", (int)getpid());
  (void)snprintf(signed_path, sizeof signed_path, "%s.signed", path);
  return accrt_instance_create(&options, &instance) == ACCRT_OK ? 0 : 1;
}

static int teardown(void** state) {
  (void)state;
  (void)unlink(path);
  (void)unlink(signed_path);
  accrt_instance_release(instance);
  return 0;
}

static accrt_bundle_t* open_bundle(const char* from) {
  accrt_bundle_t* bundle;
  ok(accrt_bundle_open_path(instance, from, NULL, &bundle));
  return bundle;
}

static void test_it_is_what_was_said(void** state) {
  (void)state;
  accrt_writer_summary_t summary = ACCRT_WRITER_SUMMARY_INIT;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
  make(NULL);
  ok(accrt_bundle_writer_check(writer, &summary));
  ok(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
  accrt_bundle_t* bundle = open_bundle(path);
  ok(accrt_bundle_verify(bundle));
  ok(accrt_bundle_info(bundle, &info));
  assert_int_equal(info.size_bytes, summary.size_bytes);
  assert_int_equal(info.section_count, summary.section_count);
  assert_int_equal(info.data_size_bytes, summary.data_size_bytes);
  assert_int_equal(info.container_minor, 3);
  assert_int_equal(info.layouts_minor, 2);
  assert_int_equal(info.function_count, 3);
  assert_int_equal(info.constant_count, 4);
  assert_int_equal(info.shard_count, 1);
  assert_int_equal(info.adapter_count, 1);
  assert_int_equal(info.asset_count, 1);
  assert_int_equal(info.location_count, 1);
  ok(accrt_bundle_constant(bundle, 0, &constant));
  assert_string_equal(constant.name, "external");
  assert_string_equal(constant.tensor, "blk.0.weight");
  assert_int_equal(constant.encoding, ACCRT_LAYOUT_F8_CHANNEL);
  accrt_bundle_release(bundle);
}

static void test_signing_comes_after(void** state) {
  (void)state;
  accrt_key_t key;
  memset(&key, 1, sizeof key);
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  options.private_key = &key;
  options.scopes = ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS;
  options.flags = ACCRT_SIGN_VOUCH;
  accrt_bundle_t* bundle = open_bundle(path);
  const accrt_status_t status = accrt_bundle_sign(bundle, &options, signed_path);
  accrt_bundle_release(bundle);
  if (status == ACCRT_ERROR_UNSUPPORTED)
    skip(); /* no libcrypto */
  ok(status);
  bundle = open_bundle(signed_path);
  ok(accrt_bundle_verify(bundle));
  ok(accrt_bundle_info(bundle, &info));
  assert_int_equal(info.signature_count, 2);
  accrt_bundle_release(bundle);
}

/* ---- Signed while it is written ---- */

typedef struct signer {
  accrt_key_t key;
  uint32_t calls;
  int32_t error; /* that the next call gives */
} signer_t;

static int32_t sign(void* self, const void* message, uint64_t size_bytes,
                    unsigned char* out_signature) {
  signer_t* signer = self;
  ++signer->calls;
  if (signer->error != 0)
    return signer->error;
  return accrt_key_sign(instance, &signer->key, message, (size_t)size_bytes, out_signature) ==
                 ACCRT_OK
             ? 0
             : 5;
}

static unsigned char* read_file(const char* from, size_t* out_size_bytes) {
  FILE* file = fopen(from, "rb");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  const long end = ftell(file);
  assert_true(end > 0);
  rewind(file);
  *out_size_bytes = (size_t)end;
  unsigned char* bytes = malloc(*out_size_bytes);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *out_size_bytes, file), *out_size_bytes);
  (void)fclose(file);
  return bytes;
}

/* It gives the bytes that signing afterwards gives. */
static void test_signing_while_writing(void** state) {
  (void)state;
  signer_t self = {.calls = 0};
  accrt_key_t public_key;
  accrt_writer_signer_t signer = {.self = &self, .sign = sign};
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  accrt_error_t error = ACCRT_ERROR_INIT;
  unsigned char root[32];
  memset(&self.key, 1, sizeof self.key);
  const accrt_status_t status = accrt_key_public(instance, &self.key, &public_key);
  if (status == ACCRT_ERROR_UNSUPPORTED)
    skip(); /* no libcrypto */
  ok(status);
  memcpy(signer.public_key, public_key.bytes, sizeof signer.public_key);
  make(NULL);
  assert_int_equal(accrt_bundle_writer_code_root(writer, root), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_bundle_writer_code_root(writer, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  ok(accrt_bundle_writer_set_signer(writer, &signer));
  assert_int_equal(accrt_bundle_writer_code_root(writer, root), ACCRT_ERROR_INVALID_STATE);
  self.error = 1;
  assert_int_equal(accrt_bundle_writer_write_path(writer, path), ACCRT_ERROR_IO);
  ok(accrt_last_error(&error));
  assert_int_equal(error.driver_code, 1);
  assert_non_null(strstr(error.message, "signing the code"));
  self = (signer_t){.key = self.key};
  ok(accrt_bundle_writer_write_path(writer, path));
  assert_int_equal(self.calls, 2);
  ok(accrt_bundle_writer_code_root(writer, root));
  size_t sizes[2];
  unsigned char* files[2] = {read_file(path, &sizes[0]), read_file(signed_path, &sizes[1])};
  assert_int_equal(sizes[0], sizes[1]);
  assert_memory_equal(files[0], files[1], sizes[0]);
  free(files[0]);
  free(files[1]);
  accrt_bundle_t* bundle = open_bundle(path);
  ok(accrt_bundle_verify(bundle));
  ok(accrt_bundle_trust(bundle, &trust));
  assert_memory_equal(trust.code_root.bytes, root, sizeof root);
  accrt_bundle_release(bundle);
  /* The root alone, then nothing. */
  signer.sign = NULL;
  ok(accrt_bundle_writer_set_signer(writer, &signer));
  ok(accrt_bundle_writer_check(writer, NULL));
  unsigned char again[32];
  ok(accrt_bundle_writer_code_root(writer, again));
  assert_memory_equal(again, root, sizeof root);
  assert_int_equal(self.calls, 2);
  ok(accrt_bundle_writer_set_signer(writer, NULL));
  assert_int_equal(accrt_bundle_writer_code_root(writer, root), ACCRT_ERROR_INVALID_STATE);
  accrt_bundle_writer_release(writer);
}

/* A reader without signatures gets none; what is given its signatures is not signed too. */
static void test_what_is_not_signed(void** state) {
  (void)state;
  signer_t self = {.calls = 0, .error = 1};
  const accrt_writer_signer_t signer = {.self = &self, .sign = sign};
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  accrt_error_t error = ACCRT_ERROR_INIT;
  ok(accrt_query_caps(&caps));
  caps.section_mask &= ~(UINT64_C(1) << 41);
  make(&caps);
  ok(accrt_bundle_writer_set_signer(writer, &signer));
  ok(accrt_bundle_writer_write_path(writer, path));
  assert_int_equal(self.calls, 0);
  accrt_bundle_writer_release(writer);
  make(NULL);
  accrt_writer_section_t section = ACCRT_WRITER_SECTION_INIT;
  unsigned char tree[80] = {0};
  section.type = 40;
  section.record_count = 1;
  section.bytes = (accrt_writer_bytes_t){.size_bytes = sizeof tree, .data = tree};
  ok(accrt_bundle_writer_add_section(writer, &section));
  ok(accrt_bundle_writer_set_signer(writer, &signer));
  assert_int_equal(accrt_bundle_writer_write_path(writer, path), ACCRT_ERROR_INVALID_ARGUMENT);
  ok(accrt_last_error(&error));
  assert_non_null(strstr(error.message, "is not signed too"));
  accrt_bundle_writer_release(writer);
}

/* A section that this library does not know, and that readers must know. */
static void test_required_sections(void** state) {
  (void)state;
  accrt_writer_section_t section = ACCRT_WRITER_SECTION_INIT;
  accrt_bundle_t* bundle;
  make(NULL);
  section.type = 0x10000;
  section.name = "acme.needed";
  section.bytes = (accrt_writer_bytes_t){.size_bytes = 1, .data = "x"};
  section.flags = 2;
  assert_int_equal(accrt_bundle_writer_add_section(writer, &section), ACCRT_ERROR_INVALID_ARGUMENT);
  section.flags = ACCRT_WRITER_SECTION_REQUIRED;
  section.reserved = 1;
  assert_int_equal(accrt_bundle_writer_add_section(writer, &section), ACCRT_ERROR_INVALID_ARGUMENT);
  section.reserved = 0;
  ok(accrt_bundle_writer_add_section(writer, &section));
  ok(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
  assert_int_equal(accrt_bundle_open_path(instance, path, NULL, &bundle),
                   ACCRT_ERROR_VERSION_MISMATCH);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  ok(accrt_query_caps(&caps));
  make(&caps);
  ok(accrt_bundle_writer_add_section(writer, &section));
  assert_int_equal(accrt_bundle_writer_check(writer, NULL), ACCRT_ERROR_UNSUPPORTED);
  accrt_bundle_writer_release(writer);
}

/* A reader without assets, which can be done without; one without a layout, which cannot. */
static void test_other_readers(void** state) {
  (void)state;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_error_t error = ACCRT_ERROR_INIT;
  ok(accrt_query_caps(&caps));
  caps.section_mask &= ~(UINT64_C(1) << 32);
  make(&caps);
  ok(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
  accrt_bundle_t* bundle = open_bundle(path);
  ok(accrt_bundle_info(bundle, &info));
  assert_int_equal(info.asset_count, 0);
  assert_int_equal(info.location_count, 1);
  accrt_bundle_release(bundle);
  (void)snprintf(caps.devices, sizeof caps.devices, "odd gpu:x  host");
  make(&caps); /* any host will do */
  ok(accrt_bundle_writer_check(writer, NULL));
  accrt_bundle_writer_release(writer);
  memset(caps.devices, 'x', sizeof caps.devices);
  (void)memcpy(caps.devices, "gpu:x ", 6);
  make(&caps);
  assert_int_equal(accrt_bundle_writer_check(writer, NULL), ACCRT_ERROR_UNSUPPORTED);
  ok(accrt_last_error(&error));
  assert_non_null(strstr(error.message, "function 'main': kernel 'project' has no variant for the "
                                        "devices of the target (gpu:x xxx"));
  accrt_bundle_writer_release(writer);
  caps.devices[0] = '\0';
  caps.encoding_mask &= ~(UINT64_C(1) << ACCRT_LAYOUT_Q8_0);
  make(&caps);
  assert_int_equal(accrt_bundle_writer_check(writer, NULL), ACCRT_ERROR_UNSUPPORTED);
  ok(accrt_last_error(&error));
  assert_string_equal(error.message,
                      "constant 'quantized': the target does not know layout 16 (q8_0)");
  accrt_bundle_writer_release(writer);
}

/* ---- One at a time ---- */

/* Every function with an id, whether the others come back or not: all are 0 afterwards. */
#define IDS 16
static void call_all(accrt_bundle_writer_t* used, accrt_writer_id_t* ids, accrt_status_t* statuses,
                     uint32_t* out_count) {
  const accrt_writer_bytes_t bytes = {.data = "text", .size_bytes = 4};
  const accrt_writer_symbol_t symbol = ACCRT_WRITER_SYMBOL_INIT;
  const accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  const accrt_writer_state_t held = ACCRT_WRITER_STATE_INIT;
  const accrt_writer_kernel_t kernel = ACCRT_WRITER_KERNEL_INIT;
  const accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
  const accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  const accrt_writer_argument_t made = ACCRT_WRITER_ARGUMENT_INIT;
  const accrt_writer_command_t command = ACCRT_WRITER_COMMAND_INIT;
  const accrt_writer_section_t section = ACCRT_WRITER_SECTION_INIT;
  const accrt_writer_output_t output = {NULL, NULL, 0, 0};
  accrt_writer_summary_t summary = ACCRT_WRITER_SUMMARY_INIT;
  static unsigned char root[32];
  memset(root, 0xff, sizeof root);
  accrt_writer_id_t* id = ids;
  accrt_status_t* status = statuses;
  *status++ = accrt_bundle_writer_add_symbol(used, &symbol, id++);
  *status++ = accrt_bundle_writer_integer(used, 1, id++);
  *status++ = accrt_bundle_writer_expression(used, ACCRT_EXPR_ADD, 0, 0, 0, id++);
  *status++ = accrt_bundle_writer_induction(used, 0, id++);
  *status++ = accrt_bundle_writer_present(used, 0, id++);
  *status++ = accrt_bundle_writer_add_constant(used, &constant, id++);
  *status++ = accrt_bundle_writer_add_file(used, "f", ACCRT_FILE_ACCX, 0, NULL, id++);
  *status++ = accrt_bundle_writer_add_state(used, &held, id++);
  *status++ = accrt_bundle_writer_add_image(used, "i", 0, &bytes, id++);
  *status++ = accrt_bundle_writer_add_kernel(used, &kernel, id++);
  *status++ = accrt_bundle_writer_add_function(used, &function, id, id + 1);
  id += 2;
  *status++ = accrt_bundle_writer_add_argument(used, 0, &made, id++);
  *status++ = accrt_bundle_writer_slot(used, 0, 0, 0, id++);
  *status++ = accrt_bundle_writer_arena(used, 0, 0, 0, id++);
  *status++ = accrt_bundle_writer_add_command(used, 0, &command, id++);
  assert_int_equal(id - ids, IDS);
  *status++ = accrt_bundle_writer_block(used, 0, 0, ids);
  *status++ = accrt_bundle_writer_add_location(used, "f", 1, 1, NULL, ids);
  *status++ = accrt_bundle_writer_add_metadata(used, "k", "v");
  *status++ = accrt_bundle_writer_add_string(used, "s");
  *status++ = accrt_bundle_writer_set_optional_features(used, 0);
  *status++ = accrt_bundle_writer_add_shard(used, 0, 0, 0, 0, 0, NULL, 0);
  *status++ = accrt_bundle_writer_add_adapter(used, "a", "i", 0);
  *status++ = accrt_bundle_writer_add_variant(used, 0, &variant);
  *status++ = accrt_bundle_writer_add_asset(used, "a", "text/plain", &bytes);
  *status++ = accrt_bundle_writer_add_section(used, &section);
  *status++ = accrt_bundle_writer_check(used, &summary);
  *status++ = accrt_bundle_writer_write_path(used, "/nowhere/at/all");
  *status++ = accrt_bundle_writer_write_fd(used, -1);
  *status++ = accrt_bundle_writer_write_callback(used, &output);
  *status++ = accrt_bundle_writer_set_signer(used, NULL);
  *status++ = accrt_bundle_writer_code_root(used, root);
  for (size_t i = 0; i < sizeof root; ++i)
    assert_int_equal(root[i], 0);
  *out_count = (uint32_t)(status - statuses);
}

static int entered;

static void all_are_refused(accrt_status_t expected, accrt_bundle_writer_t* used) {
  accrt_writer_id_t ids[IDS];
  accrt_status_t statuses[64];
  uint32_t count;
  memset(ids, 0xff, sizeof ids);
  call_all(used, ids, statuses, &count);
  assert_int_equal(count, 31); /* all but create and release */
  for (uint32_t i = 0; i < count; ++i)
    assert_int_equal(statuses[i], expected);
  for (uint32_t i = 0; i < IDS; ++i)
    assert_int_equal(ids[i], 0);
}

static int32_t write_and_call(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)self, (void)offset, (void)data, (void)size_bytes;
  all_are_refused(ACCRT_ERROR_INVALID_STATE, writer);
  ok(accrt_last_error(&error));
  assert_non_null(strstr(error.message, "accrt_bundle_writer_write_callback is inside"));
  accrt_clear_error();
  accrt_bundle_writer_release(writer);
  ok(accrt_last_error(&error));
  assert_int_equal(error.status, ACCRT_ERROR_INVALID_STATE);
  ++entered;
  return 0;
}

/* What holds on one thread, below a call, holds for two. */
static void test_one_function_at_a_time(void** state) {
  const accrt_writer_output_t output = {NULL, write_and_call, 0, 0};
  (void)state;
  make(NULL);
  ok(accrt_bundle_writer_write_callback(writer, &output));
  assert_true(entered > 0);
  ok(accrt_bundle_writer_check(writer, NULL));
  accrt_bundle_writer_release(writer);
  all_are_refused(ACCRT_ERROR_INVALID_ARGUMENT, NULL);
}

/* What is no writer, or not any more, is refused before it is looked at: also without an instance that validates handles. */
static void test_what_is_no_writer_is_refused(void** state) {
  enum { MANY = 300 };
  accrt_bundle_writer_t* many[MANY];
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_instance_t* instance;
  (void)state;
  make(NULL);
  accrt_bundle_writer_t* const released = writer;
  accrt_bundle_writer_release(released);
  all_are_refused(ACCRT_ERROR_INVALID_ARGUMENT, released);
  ok(accrt_last_error(&error));
  assert_non_null(strstr(error.message, "is no bundle writer, or was released"));
  accrt_clear_error();
  accrt_bundle_writer_release(released); /* once more */
  ok(accrt_last_error(&error));
  assert_int_equal(error.status, ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(error.operation, "accrt_bundle_writer_release");
  all_are_refused(ACCRT_ERROR_INVALID_ARGUMENT, (accrt_bundle_writer_t*)(uintptr_t)64);
  ok(accrt_instance_create(NULL, &instance));
  all_are_refused(ACCRT_ERROR_INVALID_ARGUMENT, (accrt_bundle_writer_t*)(void*)instance);
  accrt_instance_release(instance);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < MANY; ++i)
      ok(accrt_bundle_writer_create(NULL, &many[i]));
    for (int i = 0; i < MANY; ++i)
      ok(accrt_bundle_writer_add_string(many[i], "text"));
    for (int i = 0; i < MANY; ++i)
      accrt_bundle_writer_release(many[i]);
    for (int i = 0; i < MANY; ++i)
      assert_int_equal(accrt_bundle_writer_add_string(many[i], "text"),
                       ACCRT_ERROR_INVALID_ARGUMENT);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_is_what_was_said),
                                     cmocka_unit_test(test_signing_comes_after),
                                     cmocka_unit_test(test_signing_while_writing),
                                     cmocka_unit_test(test_what_is_not_signed),
                                     cmocka_unit_test(test_required_sections),
                                     cmocka_unit_test(test_other_readers),
                                     cmocka_unit_test(test_one_function_at_a_time),
                                     cmocka_unit_test(test_what_is_no_writer_is_refused)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
