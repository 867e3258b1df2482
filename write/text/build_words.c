/* write/text/build_words.c - words, names and expressions of a text. See build.h. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/layout.h"
#include "write/text/build.h"

/* ---- Words ---- */

static const char* const kind_names[] = {"a word", "a map", "a list"};

bool accx_want(accx_builder_t* builder, const accx_node_t* node, accx_node_kind_t kind,
               const char* what) {
  if (node->kind == kind)
    return true;
  return accx_node_fail(node, builder->error, "%s is %s, not %s", what, kind_names[kind],
                        kind_names[node->kind]);
}

bool accx_node_fail_call(accx_builder_t* builder, const accx_node_t* node, accrt_status_t status) {
  (void)accx_text_fail_call(builder->error, status, NULL);
  builder->error->line = node->line;
  builder->error->column = node->column;
  return false;
}

/* Returns the value of a key. *out is NULL when the key is missing and optional. */
static bool value_of(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                     accx_node_t** out) {
  *out = accx_node_get(map, key);
  if (*out == NULL)
    return what == NULL || accx_node_fail_missing(map, builder->error, what, key);
  return (*out)->kind == ACCX_NODE_WORD ||
         accx_node_fail(*out, builder->error, "'%s' is a word, not %s", key,
                        kind_names[(*out)->kind]);
}

bool accx_key_text(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                   const char** out) {
  accx_node_t* node;
  if (!value_of(builder, map, key, what, &node))
    return false;
  if (node != NULL)
    *out = node->text;
  return true;
}

bool accx_word_i64(accx_builder_t* builder, const accx_node_t* node, int64_t* out) {
  if (!accx_want(builder, node, ACCX_NODE_WORD, "a number"))
    return false;
  char* end;
  errno = 0;
  const bool hex = strncmp(node->text, "0x", 2) == 0;
  const long long value = strtoll(node->text, &end, hex ? 16 : 10);
  if (errno != 0 || end == node->text || *end != '\0')
    return accx_node_fail(node, builder->error, "%s is not a whole number of 64 bits",
                          ACCX_SHOW(node->text));
  *out = value;
  return true;
}

bool accx_word_u64(accx_builder_t* builder, const accx_node_t* node, uint64_t* out) {
  if (node->kind != ACCX_NODE_WORD)
    return accx_want(builder, node, ACCX_NODE_WORD, "a number");
  char* end;
  errno = 0;
  const bool hex = strncmp(node->text, "0x", 2) == 0;
  const unsigned long long value = strtoull(node->text, &end, hex ? 16 : 10);
  if (errno != 0 || end == node->text || *end != '\0' || strchr(node->text, '-') != NULL)
    return accx_node_fail(node, builder->error, "%s is not a whole number from 0 to 2^64 - 1",
                          ACCX_SHOW(node->text));
  *out = value;
  return true;
}

bool accx_word_u32(accx_builder_t* builder, const accx_node_t* node, uint32_t* out) {
  uint64_t value;
  if (!accx_word_u64(builder, node, &value))
    return false;
  if (value > UINT32_MAX)
    return accx_node_fail(node, builder->error, "%" PRIu64 " does not fit 32 bits", value);
  *out = (uint32_t)value;
  return true;
}

bool accx_word_float(accx_builder_t* builder, const accx_node_t* node, uint32_t dtype, void* out) {
  char* end;
  if (!accx_want(builder, node, ACCX_NODE_WORD, "a number"))
    return false;
  const double wide = strtod(node->text, &end);
  const float narrow = dtype == ACCRT_DTYPE_F32 ? strtof(node->text, &end) : 0;
  if (end == node->text || *end != '\0')
    return accx_node_fail(node, builder->error, "%s is not a number", ACCX_SHOW(node->text));
  /* Only a word that says so is infinite; other words were too large. */
  if ((isinf(wide) || isinf(narrow)) && strpbrk(node->text, "iI") == NULL)
    return accx_node_fail(node, builder->error, "%s is too large for %s", ACCX_SHOW(node->text),
                          accrt_dtype_name(dtype));
  if (dtype == ACCRT_DTYPE_F32)
    memcpy(out, &narrow, sizeof narrow);
  else
    memcpy(out, &wide, sizeof wide);
  return true;
}

bool accx_key_i64(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  int64_t* out) {
  accx_node_t* node;
  return value_of(builder, map, key, what, &node) &&
         (node == NULL || accx_word_i64(builder, node, out));
}

bool accx_key_u64(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  uint64_t* out) {
  accx_node_t* node;
  return value_of(builder, map, key, what, &node) &&
         (node == NULL || accx_word_u64(builder, node, out));
}

bool accx_key_u32(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                  uint32_t* out) {
  accx_node_t* node;
  return value_of(builder, map, key, what, &node) &&
         (node == NULL || accx_word_u32(builder, node, out));
}

bool accx_key_flag(accx_builder_t* builder, accx_node_t* map, const char* key, bool* out) {
  accx_node_t* node;
  if (!value_of(builder, map, key, NULL, &node))
    return false;
  if (node == NULL)
    return true;
  *out = strcmp(node->text, "true") == 0;
  return *out || strcmp(node->text, "false") == 0 ||
         accx_node_fail(node, builder->error, "'%s' is true or false, not %s", key,
                        ACCX_SHOW(node->text));
}

bool accx_word_named(accx_builder_t* builder, const accx_node_t* node, const accx_words_t* words,
                     uint64_t* out) {
  char all[400] = "";
  if (!accx_want(builder, node, ACCX_NODE_WORD, words->what))
    return false;
  if (accx_word_find(words, node->text, out))
    return true;
  if (node->text[0] >= '0' && node->text[0] <= '9')
    return accx_word_u64(builder, node, out);
  for (uint32_t i = 0; i < words->count && strlen(all) + 24 < sizeof all; ++i) {
    (void)strcat(all, i > 0 ? ", " : "");
    (void)strncat(all, words->words[i].word, 20);
  }
  accx_near_t near = {.wrong = node->text};
  for (uint32_t i = 0; i < words->count; ++i)
    accx_near_try(&near, words->words[i].word);
  return accx_node_fail(node, builder->error, "no %s %s%s (there are %s)", words->what,
                        ACCX_SHOW(node->text), ACCX_NEAR_TEXT(&near), all);
}

bool accx_key_word(accx_builder_t* builder, accx_node_t* map, const char* key, const char* what,
                   const accx_words_t* words, uint32_t* out) {
  accx_node_t* node;
  uint64_t value;
  if (!value_of(builder, map, key, what, &node))
    return false;
  if (node == NULL)
    return true;
  if (!accx_word_named(builder, node, words, &value))
    return false;
  if (value > UINT32_MAX)
    return accx_node_fail(node, builder->error, "%" PRIu64 " does not fit 32 bits", value);
  *out = (uint32_t)value;
  return true;
}

bool accx_key_bits(accx_builder_t* builder, accx_node_t* map, const char* key,
                   const accx_words_t* words, uint64_t* out) {
  accx_node_t* list = accx_node_get(map, key);
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, key))
    return false;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    uint64_t bits;
    if (!accx_word_named(builder, node, words, &bits))
      return false;
    *out |= bits;
  }
  return true;
}

static int digit_of(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool accx_word_digits(accx_builder_t* builder, const accx_node_t* node, unsigned char** out,
                      uint64_t* out_size_bytes) {
  if (!accx_want(builder, node, ACCX_NODE_WORD, "hexadecimal digits"))
    return false;
  const size_t length = strlen(node->text);
  unsigned char* bytes = accx_build_memory(builder, length / 2 + 1);
  if (bytes == NULL)
    return false;
  for (size_t i = 0; i < length; ++i) {
    const int digit = digit_of(node->text[i]);
    if (digit < 0 || length % 2 != 0)
      return accx_node_fail(node, builder->error,
                            "bytes are an even number of hexadecimal digits; character %zu of %zu "
                            "is %s",
                            i + 1, length, ACCX_SHOW(((char[]){node->text[i], '\0'})));
    bytes[i / 2] = (unsigned char)(i % 2 == 0 ? digit << 4 : bytes[i / 2] | digit);
  }
  *out = bytes;
  *out_size_bytes = length / 2;
  return true;
}

/* ---- Names ---- */

static uint32_t hash_of(accx_name_kind_t kind, uint32_t scope, const char* name) {
  uint32_t hash = 2166136261u ^ ((uint32_t)kind * 31 + scope * 977);
  for (; *name != '\0'; ++name)
    hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash;
}

static uint32_t scope_of(const accx_builder_t* builder, accx_name_kind_t kind) {
  return kind >= ACCX_NAME_INPUT ? builder->scope : 0;
}

static accx_name_t** place_of(const accx_builder_t* builder, const accx_name_t* wanted) {
  uint32_t at = hash_of(wanted->kind, wanted->scope, wanted->name) & (builder->name_capacity - 1);
  for (;; at = (at + 1) & (builder->name_capacity - 1)) {
    accx_name_t* entry = builder->names[at];
    if (entry == NULL ||
        (entry->kind == wanted->kind && entry->scope == wanted->scope &&
         strcmp(entry->name, wanted->name) == 0 && strcmp(entry->target, wanted->target) == 0))
      return &builder->names[at];
  }
}

static bool grow_names(accx_builder_t* builder) {
  accx_builder_t grown = *builder;
  grown.name_capacity = builder->name_capacity > 0 ? builder->name_capacity * 2 : 256;
  grown.names = calloc(grown.name_capacity, sizeof(accx_name_t*));
  if (grown.names == NULL)
    return accx_text_fail(builder->error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory for names");
  for (uint32_t i = 0; i < builder->name_capacity; ++i) {
    if (builder->names[i] != NULL)
      *place_of(&grown, builder->names[i]) = builder->names[i];
  }
  free(builder->names);
  *builder = grown;
  return true;
}

accx_name_t* accx_name_find_target(const accx_builder_t* builder, accx_name_kind_t kind,
                                   const char* name, const char* target) {
  const accx_name_t wanted = {
      .kind = kind, .scope = scope_of(builder, kind), .name = name, .target = target};
  return builder->name_capacity == 0 ? NULL : *place_of(builder, &wanted);
}

accx_name_t* accx_name_find(const accx_builder_t* builder, accx_name_kind_t kind,
                            const char* name) {
  return accx_name_find_target(builder, kind, name, "");
}

accx_name_t* accx_name_add_target(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                                  const char* target, accx_node_t* node) {
  const accx_name_t wanted = {
      .kind = kind, .scope = scope_of(builder, kind), .name = name, .target = target, .node = node};
  if (2 * (builder->name_count + 1) > builder->name_capacity && !grow_names(builder))
    return NULL;
  accx_name_t** place = place_of(builder, &wanted);
  if (*place != NULL) {
    (void)accx_node_fail(node, builder->error, "%s%s%s is there already, in line %" PRIu32,
                         ACCX_SHOW(name), target[0] != '\0' ? " for " : "",
                         target[0] != '\0' ? ACCX_SHOW(target) : "", (*place)->node->line);
    return NULL;
  }
  accx_name_t* entry = accx_build_memory(builder, sizeof *entry);
  if (entry == NULL)
    return NULL;
  *entry = wanted;
  *place = entry;
  ++builder->name_count;
  return entry;
}

accx_name_t* accx_name_add(accx_builder_t* builder, accx_name_kind_t kind, const char* name,
                           accx_node_t* node) {
  return accx_name_add_target(builder, kind, name, "", node);
}

void accx_name_near(const accx_builder_t* builder, accx_name_kind_t kind, accx_near_t* near) {
  for (uint32_t i = 0; i < builder->name_capacity; ++i) {
    const accx_name_t* entry = builder->names[i];
    if (entry != NULL && entry->kind == kind && entry->scope == scope_of(builder, kind))
      accx_near_try(near, entry->name);
  }
}

static const char* near_name(const accx_builder_t* builder, accx_name_kind_t kind,
                             const char* wrong, char buffer[ACCX_SHOWN_BYTES + 32]) {
  accx_near_t near = {.wrong = wrong};
  accx_name_near(builder, kind, &near);
  return accx_near_text(buffer, &near);
}

bool accx_name_of(accx_builder_t* builder, const accx_node_t* node, accx_name_kind_t kind,
                  const char* what, accx_name_t** out) {
  if (!accx_want(builder, node, ACCX_NODE_WORD, what))
    return false;
  *out = accx_name_find(builder, kind, node->text);
  char near[ACCX_SHOWN_BYTES + 32];
  return *out != NULL ||
         accx_node_fail(node, builder->error, "no %s %s%s", what, ACCX_SHOW(node->text),
                        near_name(builder, kind, node->text, near));
}

void* accx_build_memory(accx_builder_t* builder, uint64_t size_bytes) {
  accx_text_files_t* files = builder->files;
  void* memory = calloc(1, size_bytes > 0 ? (size_t)size_bytes : 1);
  void** grown = realloc(files->memory, (files->memory_count + (size_t)1) * sizeof(void*));
  if (grown != NULL)
    files->memory = grown;
  if (memory == NULL || grown == NULL) {
    free(memory);
    (void)accx_text_fail(builder->error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to read the text");
    return NULL;
  }
  files->memory[files->memory_count++] = memory;
  return memory;
}

/* ---- Expressions and types ---- */

static bool find_name(const accx_builder_t* builder, accx_name_kind_t kind, const char* what,
                      const char* name, accrt_writer_id_t* out_id, accx_text_error_t* error) {
  char near[ACCX_SHOWN_BYTES + 32];
  const accx_name_t* found = accx_name_find(builder, kind, name);
  if (found == NULL)
    return accx_text_fail(error, ACCRT_ERROR_INVALID_ARGUMENT, "no %s %s%s", what, ACCX_SHOW(name),
                          near_name(builder, kind, name, near));
  *out_id = found->id;
  return true;
}

static bool find_symbol(void* self, const char* name, accrt_writer_id_t* out_id,
                        accx_text_error_t* error) {
  return find_name(self, ACCX_NAME_SYMBOL, "symbol", name, out_id, error);
}

static bool find_input(void* self, const char* name, accrt_writer_id_t* out_id,
                       accx_text_error_t* error) {
  return find_name(self, ACCX_NAME_INPUT, "input", name, out_id, error);
}

static bool find_let(void* self, const char* name, accrt_writer_id_t* out_id,
                     accx_text_error_t* error) {
  if (!find_name(self, ACCX_NAME_LET, "'let' name", name, out_id, error))
    return false;
  return *out_id != 0 || accx_text_fail(error, ACCRT_ERROR_INVALID_ARGUMENT,
                                        "%s is defined after this", ACCX_SHOW(name));
}

/* In braces a comma ends a word, which cuts a call in an expression. */
static bool is_cut(const char* text) {
  int32_t open = 0;
  for (; *text != '\0'; ++text)
    open += (*text == '(') - (*text == ')');
  return open > 0;
}

bool accx_read_expression(accx_builder_t* builder, const accx_node_t* node,
                          accrt_writer_id_t* out) {
  if (!accx_want(builder, node, ACCX_NODE_WORD, "an expression"))
    return false;
  const accx_expression_reader_t reader = {builder->writer, find_symbol, find_input, find_let,
                                           builder};
  if (accx_expression_read(&reader, node->text, out, builder->error))
    return true;
  const uint32_t column = builder->error->column;
  char* message = builder->error->message;
  if (is_cut(node->text))
    (void)strncat(message, "; within {} and [] an expression with a comma stands in quotes",
                  sizeof builder->error->message - strlen(message) - 1);
  builder->error->line = node->line;
  builder->error->column = node->column + (column > 0 ? column - 1 : 0);
  return false;
}

bool accx_read_encoding(accx_builder_t* builder, accx_node_t* map, uint32_t* out_encoding,
                        uint32_t* out_group_elements) {
  const char* name = NULL;
  if (!accx_key_text(builder, map, "encoding", NULL, &name) ||
      !accx_key_u32(builder, map, "group", NULL, out_group_elements))
    return false;
  if (name == NULL)
    return true;
  const accrt_status_t status = accrt_layout_find(name, out_encoding);
  return status == ACCRT_OK ||
         accx_node_fail_call(builder, accx_node_peek(map, "encoding"), status);
}

bool accx_read_type(accx_builder_t* builder, accx_node_t* map, accrt_writer_type_t* out) {
  uint32_t dtype = 0;
  memset(out, 0, sizeof *out);
  if (!accx_key_word(builder, map, "dtype", "a tensor", &accx_words_dtype, &dtype) ||
      !accx_read_encoding(builder, map, &out->encoding, &out->group_elements))
    return false;
  out->dtype = (accrt_dtype_t)dtype;
  accx_node_t* shape = accx_node_get(map, "shape");
  if (shape == NULL)
    return accx_node_fail(map, builder->error, "a tensor needs 'shape'");
  if (!accx_want(builder, shape, ACCX_NODE_LIST, "shape"))
    return false;
  if (shape->count > 8)
    return accx_node_fail(shape, builder->error, "%" PRIu32 " dimensions; 8 are possible",
                          shape->count);
  for (const accx_node_t* dim = shape->first; dim != NULL; dim = dim->next) {
    if (!accx_read_expression(builder, dim, &out->dims[out->rank++]))
      return false;
  }
  return true;
}
