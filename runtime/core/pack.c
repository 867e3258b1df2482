/* runtime/core/pack.c - kernel packs (from shared objects, functions of the program, and
 * freestanding images), and the handles of their kernels and host operators.
 *
 * A pack's table is read once. It is checked and copied to one block of the library's own memory,
 * in the library's own struct version. For images, every pointer of the table must also point into
 * the image.
 */
#define _GNU_SOURCE
#include "runtime/core/pack.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/elf_image.h"
#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/jit_names.h"
#include "runtime/core/memory.h"
#include "runtime/core/near_name.h"
#include "runtime/core/pack_set.h"
#include "runtime/core/safe_open.h"
#include "runtime/core/struct.h"

#define MAX_KERNELS 65536u
#define ABI_0_2 2u           /* the first with host operators */
#define MAX_TEXT_BYTES 4096u /* of a pack's name or a source file's name */
#define NO_KERNEL UINT32_MAX
/* Size of a definition in packs of kernel ABI 0.1. */
#define DEFINITION_0_1_BYTES offsetof(accrt_kernel_def_t, block)

/* The block has the kernels in the pack's order, then the operators. Kernels that this machine's
 * CPU cannot run have no handle. An operator's definition has the fields that it shares with
 * kernels: name, parameters, traits. */
struct accrt_kernel_pack {
  accrt_object_t object;
  accrt_pack_entry_t entry;   /* in the instance's set, if bundles may name the pack */
  accrt_instance_t* instance; /* each public reference also retains the instance */
  const accrt_allocator_t* allocator;
  const char* name; /* in the block */
  accrt_kernel_def_t* definitions;
  uint32_t definition_count;
  accrt_operator_def_t* operators;
  uint32_t operator_count;
  accrt_kernel_t* kernels;
  uint32_t kernel_count;
  uint32_t* handles; /* per definition: index into kernels, or NO_KERNEL */
  uint32_t* table;   /* hash table: definition + 1, or 0 */
  uint32_t table_size;
  unsigned char* block;
  size_t block_size_bytes;
  accrt_elf_image_t image; /* of a pack that was loaded from memory */
  accrt_jit_entry_t* jit_entry;
  accrt_pack_module_t module; /* of a pack around a device module: unload is not NULL */
};

/* ---- Kernel handles ---- */

void accrt_kernel_init(accrt_kernel_t* kernel, const accrt_kernel_def_t* definition,
                       void* module_kernel, const char* pack_name) {
  memset(kernel, 0, sizeof *kernel);
  kernel->view.definition = definition;
  kernel->view.environment = accrt_kernel_environment();
  kernel->view.module_kernel = module_kernel;
  kernel->pack_name = pack_name;
}

const accrt_driver_kernel_t* accrt_kernel_driver_view(const accrt_kernel_t* kernel) {
  return &kernel->view;
}

const accrt_driver_operator_t* accrt_kernel_operator_view(const accrt_kernel_t* kernel) {
  return kernel->operation.definition != NULL ? &kernel->operation : NULL;
}

accrt_status_t accrt_kernel_info(accrt_kernel_t* kernel, accrt_kernel_info_t* out_info) {
  ACCRT_ENTER(kernel);
  const accrt_kernel_def_t* definition = kernel->view.definition;
  const accrt_kernel_info_t info = {
      .traits = definition->traits,
      .name = definition->name,
      .pack_name = kernel->pack_name,
      .params = definition->params,
      .param_count = definition->param_count,
      .params_size_bytes = definition->params_size_bytes,
      .local_memory_size_bytes = definition->local_memory_size_bytes,
      .kind = kernel->operation.definition != NULL ? ACCRT_KERNEL_KIND_OPERATOR
                                                   : ACCRT_KERNEL_KIND_WORKGROUPS,
      .block = {definition->block[0], definition->block[1], definition->block[2]},
      .cluster = {definition->cluster[0], definition->cluster[1], definition->cluster[2]},
  };
  return accrt_struct_write("accrt_kernel_info_t", out_info, &info, sizeof info);
}

/* ---- Reading a pack's table ---- */

typedef struct reader {
  const char* what;               /* name for messages until the pack's own name is known */
  const accrt_elf_image_t* image; /* NULL: the pointers are the program's own and need no check */
  const accrt_kernel_pack_table_t* table;
  size_t text_bytes; /* of all strings with their NULs */
  size_t param_count;
} reader_t;

static bool readable(const reader_t* reader, const void* pointer, uint64_t size_bytes) {
  if (pointer == NULL)
    return false;
  return reader->image == NULL || accrt_elf_image_contains(reader->image, pointer, size_bytes);
}

/* Length of a string of at most `limit` bytes that ends inside the image; otherwise false. */
static bool text_length(const reader_t* reader, const char* text, size_t limit,
                        size_t* out_length) {
  for (size_t length = 0; length <= limit; ++length) {
    if (!readable(reader, length == 0 ? text : text + length, 1))
      return false;
    if (text[length] == '\0') {
      *out_length = length;
      return true;
    }
  }
  return false;
}

static accrt_status_t count_text(reader_t* reader, const char* owner, const char* field,
                                 const char* text) {
  size_t length;
  if (!text_length(reader, text, MAX_TEXT_BYTES, &length)) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: %s: its %s is %s", reader->what, owner, field,
                      text == NULL ? "NULL" : "longer than 4096 bytes, or leaves the image");
  }
  reader->text_bytes += length + 1;
  return ACCRT_OK;
}

/* The struct may be of a later version: fields that this version does not know must be zero. */
static bool tail_is_zero(const void* object, size_t known_bytes, size_t size_bytes) {
  const unsigned char* bytes = object;
  for (size_t i = known_bytes; i < size_bytes; ++i) {
    if (bytes[i] != 0)
      return false;
  }
  return true;
}

/* Checks an array of a pack's definitions. An empty one needs no check. */
static accrt_status_t check_array(const reader_t* reader, const char* what, const void* array,
                                  uint32_t count, uint32_t element_bytes, size_t least_bytes) {
  if (count == 0)
    return ACCRT_OK;
  if (count <= MAX_KERNELS && element_bytes >= least_bytes &&
      element_bytes <= ACCRT_STRUCT_MAX_BYTES && element_bytes % 8 == 0 &&
      readable(reader, array, (uint64_t)count * element_bytes)) {
    return ACCRT_OK;
  }
  return ACCRT_FAIL(INVALID_FORMAT,
                    "%s: %" PRIu32 " %s of %" PRIu32
                    " bytes at %p; at most %u of %zu bytes or more, inside the image",
                    reader->what, count, what, element_bytes, array, MAX_KERNELS, least_bytes);
}

static accrt_status_t check_table(reader_t* reader) {
  const accrt_kernel_pack_table_t* table = reader->table;
  if (!readable(reader, table, sizeof table->struct_size) ||
      !readable(reader, table, table->struct_size) || table->struct_size < sizeof *table ||
      table->struct_size > ACCRT_STRUCT_MAX_BYTES) {
    return ACCRT_FAIL(
        INVALID_FORMAT,
        "%s: the table's struct_size is not %zu or more, or it lies outside the image",
        reader->what, sizeof *table);
  }
  const uint32_t abi = table->abi_version;
  if (abi >> 16 != ACCRT_KERNEL_ABI_MAJOR || abi > ACCRT_KERNEL_ABI_VERSION) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "%s: built for kernel ABI %" PRIu32 ".%" PRIu32
                      ", this library speaks %d.0 to %d.%d",
                      reader->what, abi >> 16, abi & 0xFFFF, ACCRT_KERNEL_ABI_MAJOR,
                      ACCRT_KERNEL_ABI_MAJOR, ACCRT_KERNEL_ABI_MINOR);
  }
  if (!tail_is_zero(table, sizeof *table, table->struct_size)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: the table's struct_size is %" PRIu32
                      " and the bytes behind %zu are not zero",
                      reader->what, table->struct_size, sizeof *table);
  }
  ACCRT_TRY(count_text(reader, "table", "name", table->name));
  ACCRT_TRY(check_array(reader, "kernels", table->kernels, table->kernel_count,
                        table->kernel_size_bytes, DEFINITION_0_1_BYTES));
  if (abi < ABI_0_2 && (table->host_operators != NULL || table->host_operator_count != 0)) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "%s: it has %" PRIu32 " host operators, which kernel ABI %" PRIu32 ".%" PRIu32
                      " does not define",
                      reader->what, table->host_operator_count, abi >> 16, abi & 0xFFFF);
  }
  return check_array(reader, "host operators", table->host_operators, table->host_operator_count,
                     table->host_operator_size_bytes, sizeof(accrt_operator_def_t));
}

static const accrt_kernel_def_t* definition_at(const reader_t* reader, uint32_t index) {
  const char* first = (const char*)(const void*)reader->table->kernels;
  return (const accrt_kernel_def_t*)(const void*)(first +
                                                  (size_t)index * reader->table->kernel_size_bytes);
}

static accrt_status_t check_param_texts(reader_t* reader, const accrt_kernel_def_t* definition) {
  for (uint32_t i = 0; i < definition->param_count; ++i) {
    ACCRT_TRY(count_text(reader, definition->name, "parameter's name", definition->params[i].name));
  }
  reader->param_count += definition->param_count;
  return ACCRT_OK;
}

static accrt_status_t check_definition(reader_t* reader, uint32_t index) {
  const accrt_kernel_def_t* definition = definition_at(reader, index);
  if (definition->struct_size < DEFINITION_0_1_BYTES ||
      definition->struct_size > reader->table->kernel_size_bytes ||
      accrt_struct_is_cut("accrt_kernel_def_t", definition->struct_size) ||
      !tail_is_zero(definition, sizeof *definition, definition->struct_size)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: kernel %" PRIu32 ": struct_size %" PRIu32
                      " is not between %zu and %" PRIu32
                      ", cuts a field, or its unknown tail is not zero",
                      reader->what, index, definition->struct_size, DEFINITION_0_1_BYTES,
                      reader->table->kernel_size_bytes);
  }
  char owner[32] = "kernel";
  (void)snprintf(owner, sizeof owner, "kernel %" PRIu32, index);
  ACCRT_TRY(count_text(reader, owner, "name", definition->name));
  if (definition->source_file != NULL)
    ACCRT_TRY(count_text(reader, owner, "source file", definition->source_file));
  if (reader->image != NULL &&
      !accrt_elf_image_is_code(reader->image, (const void*)(uintptr_t)definition->entry)) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: kernel '%.128s': its entry is not code of the image",
                      reader->what, definition->name);
  }
  if (definition->param_count > ACCRT_KERNEL_MAX_PARAMS ||
      (definition->param_count > 0 &&
       !readable(reader, definition->params,
                 (uint64_t)definition->param_count * sizeof *definition->params))) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: kernel '%.128s': %" PRIu32
                      " parameters at %p; at most %d, inside the image",
                      reader->what, definition->name, definition->param_count,
                      (const void*)definition->params, ACCRT_KERNEL_MAX_PARAMS);
  }
  ACCRT_TRY(check_param_texts(reader, definition));
  return accrt_kernel_check_definition(reader->what, definition);
}

/* ---- Host operators ---- */

static const accrt_operator_def_t* operator_at(const reader_t* reader, uint32_t index) {
  const char* first = (const char*)(const void*)reader->table->host_operators;
  return (const accrt_operator_def_t*)(const void*)(first +
                                                    (size_t)index *
                                                        reader->table->host_operator_size_bytes);
}

/* The fields that an operator has in common with a kernel. */
static accrt_kernel_def_t definition_of_operator(const accrt_operator_def_t* source) {
  const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                         .traits = source->traits,
                                         .name = source->name,
                                         .params = source->params,
                                         .param_count = source->param_count,
                                         .params_size_bytes = source->params_size_bytes};
  return definition;
}

static accrt_status_t check_operator_code(const reader_t* reader,
                                          const accrt_operator_def_t* source, const char* owner) {
  const struct {
    const char* what;
    uintptr_t address;
  } functions[] = {{"execute", (uintptr_t)source->execute},
                   {"query_workspace", (uintptr_t)source->query_workspace},
                   {"prepare", (uintptr_t)source->prepare},
                   {"destroy", (uintptr_t)source->destroy}};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i) {
    if (functions[i].address == 0 || reader->image == NULL ||
        accrt_elf_image_is_code(reader->image, (const void*)functions[i].address))
      continue;
    return ACCRT_FAIL(INVALID_FORMAT, "%s: %s: its %s is not code of the image", reader->what,
                      owner, functions[i].what);
  }
  return ACCRT_OK;
}

static accrt_status_t check_operator(reader_t* reader, uint32_t index) {
  const accrt_operator_def_t* source = operator_at(reader, index);
  if (source->struct_size < sizeof *source ||
      source->struct_size > reader->table->host_operator_size_bytes ||
      !tail_is_zero(source, sizeof *source, source->struct_size)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: host operator %" PRIu32 ": struct_size %" PRIu32
                      " is not between %zu and %" PRIu32 ", or its unknown tail is not zero",
                      reader->what, index, source->struct_size, sizeof *source,
                      reader->table->host_operator_size_bytes);
  }
  char owner[32];
  (void)snprintf(owner, sizeof owner, "host operator %" PRIu32, index);
  ACCRT_TRY(count_text(reader, owner, "name", source->name));
  ACCRT_TRY(check_operator_code(reader, source, owner));
  if (source->param_count > ACCRT_KERNEL_MAX_PARAMS ||
      (source->param_count > 0 &&
       !readable(reader, source->params, (uint64_t)source->param_count * sizeof *source->params))) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: host operator '%.128s': %" PRIu32
                      " parameters at %p; at most %d, inside the image",
                      reader->what, source->name, source->param_count, (const void*)source->params,
                      ACCRT_KERNEL_MAX_PARAMS);
  }
  const accrt_kernel_def_t definition = definition_of_operator(source);
  ACCRT_TRY(check_param_texts(reader, &definition));
  return accrt_operator_check_definition(reader->what, source);
}

/* ---- Copying a table ---- */

/* The memory of a block. It was allocated large enough, so taking from it cannot fail. */
typedef struct arena {
  unsigned char* at;
} arena_t;

static void* take(arena_t* arena, size_t size_bytes) {
  void* result = arena->at;
  arena->at += (size_bytes + 15) & ~(size_t)15;
  return result;
}

static const char* copy_text(char** at, const char* text) {
  const size_t size = strlen(text) + 1;
  char* copy = *at;
  memcpy(copy, text, size);
  *at += size;
  return copy;
}

static uint32_t hash_name(const char* name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name)
    hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash;
}

/* Returns the definition with this name, or NO_KERNEL. `out_index` gets the entry where it is or
 * belongs. */
static uint32_t find_definition(const accrt_kernel_pack_t* pack, const char* name,
                                uint32_t* out_index) {
  const uint32_t mask = pack->table_size - 1;
  uint32_t at = hash_name(name) & mask;
  for (; pack->table[at] != 0; at = (at + 1) & mask) {
    if (strcmp(pack->definitions[pack->table[at] - 1].name, name) == 0)
      break;
  }
  if (out_index != NULL)
    *out_index = at;
  return pack->table[at] - 1; /* an empty entry returns NO_KERNEL */
}

static void copy_definition(accrt_kernel_pack_t* pack, const accrt_kernel_def_t* source,
                            accrt_kernel_param_t** params, char** text) {
  accrt_kernel_def_t* target = &pack->definitions[pack->definition_count++];
  const size_t known = source->struct_size < sizeof *target ? source->struct_size : sizeof *target;
  memset(target, 0, sizeof *target);
  memcpy(target, source, known);
  target->struct_size = (uint32_t)sizeof *target;
  target->name = copy_text(text, source->name);
  if (source->source_file != NULL)
    target->source_file = copy_text(text, source->source_file);
  target->params = source->param_count > 0 ? *params : NULL;
  for (uint32_t i = 0; i < source->param_count; ++i) {
    **params = source->params[i];
    (*params)->name = copy_text(text, source->params[i].name);
    ++*params;
  }
}

/* Copies the operator whose definition was copied just before. */
static void copy_operator(accrt_kernel_pack_t* pack, const accrt_operator_def_t* source) {
  const accrt_kernel_def_t* definition = &pack->definitions[pack->definition_count - 1];
  accrt_operator_def_t* target = &pack->operators[pack->operator_count++];
  *target = *source;
  target->struct_size = (uint32_t)sizeof *target;
  target->name = definition->name;
  target->params = definition->params;
}

static accrt_status_t add_kernel(accrt_kernel_pack_t* pack, uint32_t index) {
  const accrt_kernel_def_t* definition = &pack->definitions[index];
  uint32_t at;
  if (find_definition(pack, definition->name, &at) != NO_KERNEL) {
    return ACCRT_FAIL(INVALID_FORMAT, "pack '%s': there are two kernels or operators '%s'",
                      pack->name, definition->name);
  }
  pack->table[at] = index + 1;
  pack->handles[index] = NO_KERNEL;
  if ((definition->required_cpu_features & ~accrt_kernel_environment()->cpu_features) != 0)
    return ACCRT_OK;
  pack->handles[index] = pack->kernel_count;
  accrt_kernel_t* kernel = &pack->kernels[pack->kernel_count++];
  accrt_kernel_init(kernel, definition, NULL, pack->name);
  kernel->pack = pack;
  kernel->instance = pack->instance;
  const uint32_t kernels = pack->definition_count - pack->operator_count;
  if (index >= kernels) {
    kernel->operation.definition = &pack->operators[index - kernels];
    kernel->operation.environment = accrt_kernel_environment();
  }
  return ACCRT_OK;
}

static size_t rounded(size_t size_bytes) {
  return (size_bytes + 15) & ~(size_t)15;
}

static accrt_status_t copy_table(accrt_kernel_pack_t* pack, const reader_t* reader) {
  const uint32_t kernel_count = reader->table->kernel_count;
  const uint32_t operator_count = reader->table->host_operator_count;
  const uint32_t count = kernel_count + operator_count;
  uint32_t table_size = 2;
  while (table_size < 2 * count)
    table_size *= 2;
  /* Cannot overflow 64 bits: MAX_KERNELS, MAX_PARAMS and MAX_TEXT_BYTES bound every factor. */
  pack->block_size_bytes =
      rounded(count * sizeof(accrt_kernel_def_t)) + rounded(count * sizeof(accrt_kernel_t)) +
      rounded(count * sizeof(uint32_t)) + rounded(table_size * sizeof(uint32_t)) +
      rounded(operator_count * sizeof(accrt_operator_def_t)) +
      rounded(reader->param_count * sizeof(accrt_kernel_param_t)) + rounded(reader->text_bytes);
  void* block;
  ACCRT_TRY(accrt_alloc(pack->allocator, pack->block_size_bytes, &block));
  pack->block = block;
  arena_t arena = {block};
  pack->definitions = take(&arena, count * sizeof(accrt_kernel_def_t));
  pack->kernels = take(&arena, count * sizeof(accrt_kernel_t));
  pack->handles = take(&arena, count * sizeof(uint32_t));
  pack->table = take(&arena, table_size * sizeof(uint32_t));
  pack->table_size = table_size;
  pack->operators = take(&arena, operator_count * sizeof(accrt_operator_def_t));
  accrt_kernel_param_t* params = take(&arena, reader->param_count * sizeof(accrt_kernel_param_t));
  char* text = take(&arena, reader->text_bytes);
  pack->name = copy_text(&text, reader->table->name);
  for (uint32_t i = 0; i < kernel_count; ++i)
    copy_definition(pack, definition_at(reader, i), &params, &text);
  for (uint32_t i = 0; i < operator_count; ++i) {
    const accrt_kernel_def_t definition = definition_of_operator(operator_at(reader, i));
    copy_definition(pack, &definition, &params, &text);
    copy_operator(pack, operator_at(reader, i));
  }
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(add_kernel(pack, i));
  return ACCRT_OK;
}

/* ---- Creating packs ---- */

static void pack_free(accrt_kernel_pack_t* pack) {
  accrt_pack_set_remove(accrt_instance_packs(pack->instance), &pack->entry);
  if (pack->module.unload != NULL)
    pack->module.unload(pack->module.user);
  accrt_jit_unregister(pack->allocator, pack->jit_entry);
  accrt_elf_image_unload(&pack->image);
  accrt_free(pack->allocator, pack->block, pack->block_size_bytes);
  const accrt_allocator_t* allocator = pack->allocator;
  accrt_free(allocator, pack, sizeof *pack);
}

static accrt_status_t pack_create(accrt_instance_t* instance, accrt_kernel_pack_t** out_pack) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  accrt_kernel_pack_t* pack;
  ACCRT_TRY(ACCRT_NEW(allocator, &pack));
  accrt_object_init(&pack->object);
  pack->allocator = allocator;
  pack->instance = accrt_instance_retain(instance);
  *out_pack = pack;
  return ACCRT_OK;
}

/* Calls the pack's query function and copies its table. */
static accrt_status_t pack_read(accrt_kernel_pack_t* pack, accrt_kernel_pack_query_fn_t query,
                                const char* what) {
  reader_t reader = {.what = what, .image = pack->image.mapping != NULL ? &pack->image : NULL};
  reader.table = query(ACCRT_KERNEL_ABI_VERSION, accrt_kernel_environment());
  if (reader.table == NULL) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "%s: it refused kernel ABI %d.%d on a processor with features 0x%" PRIx64
                      ": it needs a newer runtime or other features",
                      what, ACCRT_KERNEL_ABI_MAJOR, ACCRT_KERNEL_ABI_MINOR,
                      accrt_kernel_environment()->cpu_features);
  }
  ACCRT_TRY(check_table(&reader));
  for (uint32_t i = 0; i < reader.table->kernel_count; ++i)
    ACCRT_TRY(check_definition(&reader, i));
  for (uint32_t i = 0; i < reader.table->host_operator_count; ++i)
    ACCRT_TRY(check_operator(&reader, i));
  return copy_table(pack, &reader);
}

/* On success passes `pack` to the caller, otherwise frees it. */
static accrt_status_t finish(accrt_kernel_pack_t* pack, accrt_status_t status,
                             accrt_kernel_pack_t** out_pack) {
  if (status != ACCRT_OK) {
    accrt_kernel_pack_release(pack);
    return status;
  }
  *out_pack = pack;
  return ACCRT_OK;
}

static void clear_pack(accrt_kernel_pack_t** out_pack) {
  if (out_pack != NULL)
    *out_pack = NULL;
}

/* Code that a program loads is trusted like the program itself, except under the policy that
 * forbids all host code. */
static accrt_status_t check_policy(const accrt_instance_t* instance, const char* what) {
  if (accrt_instance_host_code_policy(instance) != ACCRT_HOST_CODE_NONE)
    return ACCRT_OK;
  return ACCRT_FAIL(UNTRUSTED,
                    "%s: it is machine code for the host, and the instance's policy is "
                    "'no-host-code' (trust.policy, ACCRT_TRUST, host_code_policy)",
                    what);
}

static accrt_status_t find_query(const char* path, accrt_kernel_pack_query_fn_t* out_query) {
  void* library;
  ACCRT_TRY(accrt_library_open(path, ACCRT_LIBRARY_PATH, &library));
  void* symbol = dlsym(library, ACCRT_KERNEL_PACK_SYMBOL);
  if (symbol == NULL)
    return ACCRT_FAIL(
        NOT_FOUND, "%s: it does not export " ACCRT_KERNEL_PACK_SYMBOL " (C++ needs extern \"C\")",
        path);
  memcpy(out_query, &symbol, sizeof symbol);
  return ACCRT_OK;
}

/* Adds the pack to the instance's set. Bundles can find it by name from now on. */
static void add_to_set(accrt_kernel_pack_t* pack) {
  accrt_pack_set_add(accrt_instance_packs(pack->instance), &pack->entry);
}

accrt_status_t accrt_kernel_pack_open(accrt_instance_t* instance, const char* path,
                                      accrt_kernel_pack_t** out_pack) {
  clear_pack(out_pack);
  ACCRT_ENTER(out_pack, instance, path);
  ACCRT_TRY(check_policy(instance, path));
  accrt_kernel_pack_t* pack;
  ACCRT_TRY(pack_create(instance, &pack));
  accrt_kernel_pack_query_fn_t query = NULL;
  accrt_status_t status = find_query(path, &query);
  if (status == ACCRT_OK)
    status = pack_read(pack, query, path);
  if (status == ACCRT_OK)
    add_to_set(pack);
  return finish(pack, status, out_pack);
}

accrt_status_t accrt_kernel_pack_register(accrt_instance_t* instance,
                                          accrt_kernel_pack_query_fn_t query,
                                          accrt_kernel_pack_t** out_pack) {
  clear_pack(out_pack);
  ACCRT_ENTER(out_pack, instance);
  if (query == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "query is NULL");
  accrt_kernel_pack_t* pack;
  ACCRT_TRY(pack_create(instance, &pack));
  const accrt_status_t status = pack_read(pack, query, "registered pack");
  if (status == ACCRT_OK)
    add_to_set(pack);
  return finish(pack, status, out_pack);
}

/* ---- Packs that bundles name ---- */

accrt_kernel_pack_t* accrt_pack_of_entry(accrt_pack_entry_t* entry) {
  return (accrt_kernel_pack_t*)(void*)((char*)entry - offsetof(accrt_kernel_pack_t, entry));
}

/* Returns an open pack of that name with an internal reference, or NULL. */
static accrt_kernel_pack_t* find_listed(accrt_instance_t* instance, const char* name) {
  accrt_pack_set_t* packs = accrt_instance_packs(instance);
  accrt_kernel_pack_t* found = NULL;
  accrt_mutex_lock(&packs->lock);
  for (accrt_pack_entry_t* at = packs->first; at != NULL && found == NULL; at = at->next) {
    accrt_kernel_pack_t* pack = accrt_pack_of_entry(at);
    if (strcmp(pack->name, name) == 0 && accrt_object_try_retain(&pack->object))
      found = pack;
  }
  accrt_mutex_unlock(&packs->lock);
  return found;
}

/* The path of an installed pack: in the folder of the option, or in accrt/packs beside the
 * library. */
static accrt_status_t installed_path(accrt_instance_t* instance, const char* name, char* path,
                                     size_t capacity_bytes) {
  const char* folder = accrt_instance_option(instance, "packs.path");
  char own[ACCRT_PATH_BYTES];
  if (folder != NULL && folder[0] == '\0')
    return ACCRT_FAIL(NOT_FOUND, "packs.path is empty: there are no installed packs");
  if (folder != NULL && folder[0] != '/') {
    return ACCRT_FAIL(INVALID_ARGUMENT, "packs.path is '%.256s': an absolute path is expected",
                      folder);
  }
  if (folder == NULL && !accrt_own_path(own)) {
    return ACCRT_FAIL(NOT_FOUND, "this library was not opened by an absolute path: packs beside it "
                                 "cannot be found; set packs.path");
  }
  if (folder == NULL)
    strrchr(own, '/')[0] = '\0';
  const int written = snprintf(path, capacity_bytes, "%s%s/%s.so", folder != NULL ? folder : own,
                               folder != NULL ? "" : "/accrt/packs", name);
  if (written > 0 && (size_t)written < capacity_bytes)
    return ACCRT_OK;
  return ACCRT_FAIL(NOT_FOUND, "the path of pack '%s' is too long", name);
}

/* Packs in that folder are trusted like the library. The policy for host code does not apply. */
static accrt_status_t open_installed(accrt_instance_t* instance, const char* name,
                                     accrt_kernel_pack_t** out_pack) {
  char path[ACCRT_PATH_BYTES];
  ACCRT_TRY(installed_path(instance, name, path, sizeof path));
  accrt_kernel_pack_query_fn_t query = NULL;
  ACCRT_TRY(find_query(path, &query));
  accrt_kernel_pack_t* pack;
  ACCRT_TRY(pack_create(instance, &pack));
  accrt_status_t status = pack_read(pack, query, path);
  if (status == ACCRT_OK && strcmp(pack->name, name) != 0)
    status = ACCRT_FAIL(NOT_FOUND, "%s: the pack in it is called '%.128s'", path, pack->name);
  if (status == ACCRT_OK)
    add_to_set(pack);
  ACCRT_TRY(finish(pack, status, out_pack));
  /* Turns the caller's reference into an internal one. */
  accrt_instance_release(instance);
  return ACCRT_OK;
}

accrt_status_t accrt_kernel_pack_obtain(accrt_instance_t* instance, const char* name,
                                        accrt_kernel_pack_t** out_pack) {
  *out_pack = find_listed(instance, name);
  return *out_pack != NULL ? ACCRT_OK : open_installed(instance, name, out_pack);
}

/* Registers names with gdb and perf. A failure is only logged, because the pack works without
 * names. */
static void register_names(accrt_kernel_pack_t* pack, const void* image, size_t size_bytes,
                           const char* name) {
  const accrt_error_t saved = *accrt_error_current();
  pack->jit_entry = accrt_jit_register(pack->allocator, &pack->image, image, size_bytes);
  *accrt_error_current() = saved; /* a call that succeeds does not change the record */
  if ((accrt_instance_flags(pack->instance) & ACCRT_INSTANCE_FLAG_PERF_MAP) == 0)
    return;
  const int error = accrt_perf_map_append(&pack->image, image, size_bytes, name);
  if (error == 0)
    return;
  accrt_instance_log(pack->instance, ACCRT_LOG_WARNING, "pack",
                     "image '%s' is not in perf's map: %s", name, strerror(error));
}

static accrt_status_t load_image(accrt_kernel_pack_t* pack, const void* image, size_t size_bytes,
                                 const char* name) {
  ACCRT_TRY(accrt_elf_image_load(image, size_bytes, name, &pack->image));
  void* symbol = accrt_elf_image_find(&pack->image, ACCRT_KERNEL_PACK_SYMBOL);
  if (symbol == NULL) {
    return ACCRT_FAIL(NOT_FOUND, "image '%s': it does not export " ACCRT_KERNEL_PACK_SYMBOL, name);
  }
  accrt_kernel_pack_query_fn_t query;
  memcpy(&query, &symbol, sizeof query);
  /* before the query, so that a debugger can name it too */
  register_names(pack, image, size_bytes, name);
  return pack_read(pack, query, name);
}

accrt_status_t accrt_kernel_pack_load_checked(accrt_instance_t* instance, const void* image,
                                              uint64_t size_bytes, const char* name,
                                              uint64_t required_cpu_features,
                                              accrt_kernel_pack_t** out_pack) {
  if (name == NULL)
    name = "image";
  const uint64_t missing = required_cpu_features & ~accrt_kernel_environment()->cpu_features;
  if (missing != 0) {
    return ACCRT_FAIL(UNSUPPORTED,
                      "image '%s' needs CPU features 0x%" PRIx64
                      ", of which this processor lacks 0x%" PRIx64,
                      name, required_cpu_features, missing);
  }
  accrt_kernel_pack_t* pack;
  ACCRT_TRY(pack_create(instance, &pack));
  return finish(pack, load_image(pack, image, (size_t)size_bytes, name), out_pack);
}

accrt_status_t accrt_kernel_pack_load(accrt_instance_t* instance, const void* image,
                                      uint64_t size_bytes, const char* name,
                                      accrt_kernel_pack_t** out_pack) {
  clear_pack(out_pack);
  ACCRT_ENTER(out_pack, instance, image);
  ACCRT_TRY(check_policy(instance, name != NULL ? name : "image"));
  return accrt_kernel_pack_load_checked(instance, image, size_bytes, name, 0, out_pack);
}

/* ---- Packs around device modules ---- */

static accrt_status_t find_module_kernels(accrt_kernel_pack_t* pack) {
  for (uint32_t i = 0; i < pack->kernel_count; ++i) {
    accrt_kernel_t* kernel = &pack->kernels[i];
    kernel->device = pack->module.device;
    ACCRT_TRY(
        pack->module.find(pack->module.user, kernel->view.definition, &kernel->view.module_kernel));
  }
  return ACCRT_OK;
}

static accrt_status_t read_module(accrt_kernel_pack_t* pack, const accrt_pack_module_t* module) {
  const accrt_kernel_pack_table_t table = {.struct_size = (uint32_t)sizeof table,
                                           .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                           .name = module->name,
                                           .kernels = module->kernels,
                                           .kernel_count = module->kernel_count,
                                           .kernel_size_bytes =
                                               (uint32_t)sizeof(accrt_kernel_def_t)};
  reader_t reader = {.what = module->name, .table = &table};
  ACCRT_TRY(count_text(&reader, "table", "name", table.name));
  for (uint32_t i = 0; i < table.kernel_count; ++i) {
    const accrt_kernel_def_t* definition = &module->kernels[i];
    ACCRT_TRY(count_text(&reader, "kernel", "name", definition->name));
    if (definition->source_file != NULL)
      ACCRT_TRY(count_text(&reader, definition->name, "source file", definition->source_file));
    ACCRT_TRY(check_param_texts(&reader, definition));
  }
  ACCRT_TRY(copy_table(pack, &reader));
  return find_module_kernels(pack);
}

accrt_status_t accrt_kernel_pack_make_module(accrt_instance_t* instance,
                                             const accrt_pack_module_t* module,
                                             accrt_kernel_pack_t** out_pack) {
  *out_pack = NULL;
  accrt_kernel_pack_t* pack;
  const accrt_status_t status = pack_create(instance, &pack);
  if (status != ACCRT_OK) {
    module->unload(module->user);
    return status;
  }
  pack->module = *module;
  return finish(pack, read_module(pack, module), out_pack);
}

void accrt_kernel_pack_ref(accrt_kernel_pack_t* pack) {
  if (pack != NULL)
    accrt_object_retain(&pack->object);
}

void accrt_kernel_pack_unref(accrt_kernel_pack_t* pack) {
  if (pack != NULL && accrt_object_release(&pack->object))
    pack_free(pack);
}

accrt_kernel_pack_t* accrt_kernel_pack_retain(accrt_kernel_pack_t* pack) {
  if (pack == NULL || accrt_forked())
    return pack;
  accrt_kernel_pack_ref(pack);
  (void)accrt_instance_retain(pack->instance);
  return pack;
}

void accrt_kernel_pack_release(accrt_kernel_pack_t* pack) {
  if (pack == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = pack->instance;
  accrt_kernel_pack_unref(pack);
  /* Release it last, because the allocator is in it. */
  accrt_instance_release(instance);
}

/* ---- Kernels of a pack ---- */

accrt_status_t accrt_kernel_pack_kernel_count(accrt_kernel_pack_t* pack, uint32_t* out_count) {
  if (out_count != NULL)
    *out_count = 0;
  ACCRT_ENTER(out_count, pack);
  *out_count = pack->kernel_count;
  return ACCRT_OK;
}

accrt_status_t accrt_kernel_pack_kernel(accrt_kernel_pack_t* pack, uint32_t index,
                                        accrt_kernel_t** out_kernel) {
  if (out_kernel != NULL)
    *out_kernel = NULL;
  ACCRT_ENTER(out_kernel, pack);
  if (index >= pack->kernel_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "pack '%s': kernel %" PRIu32 " of %" PRIu32, pack->name, index,
                      pack->kernel_count);
  }
  *out_kernel = &pack->kernels[index];
  return ACCRT_OK;
}

accrt_kernel_t* accrt_kernel_pack_lookup(accrt_kernel_pack_t* pack, const char* name,
                                         const char** why_not) {
  if (why_not != NULL)
    *why_not = NULL;
  const uint32_t found = find_definition(pack, name, NULL);
  if (found == NO_KERNEL)
    return NULL;
  if (pack->handles[found] != NO_KERNEL)
    return &pack->kernels[pack->handles[found]];
  if (why_not != NULL)
    *why_not = "it needs CPU features that this processor lacks";
  return NULL;
}

accrt_status_t accrt_kernel_pack_find(accrt_kernel_pack_t* pack, const char* name,
                                      accrt_kernel_t** out_kernel) {
  if (out_kernel != NULL)
    *out_kernel = NULL;
  ACCRT_ENTER(out_kernel, pack, name);
  const char* why_not;
  *out_kernel = accrt_kernel_pack_lookup(pack, name, &why_not);
  if (*out_kernel != NULL)
    return ACCRT_OK;
  if (why_not != NULL)
    return ACCRT_FAIL(NOT_FOUND, "pack '%s': kernel '%.128s': %s", pack->name, name, why_not);
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < pack->kernel_count; ++i)
    accrt_near_add(&near, pack->kernels[i].view.definition->name);
  return ACCRT_FAIL(NOT_FOUND, "pack '%s' has no kernel '%.128s'%s", pack->name, name,
                    accrt_near_text(&near));
}
