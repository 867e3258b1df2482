/* write/text/dump.c - writes a bundle as text: all parts except kernels and functions, and
 * functions that those files share (dump.h). */
#include "write/text/dump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "accrt/layout.h"
#include "runtime/core/put_file.h"

#define PIECE_BYTES ((uint64_t)ACCX_CHUNK_BYTES)
#define MAX_PATH_BYTES 4096

/* ---- Shared by all parts ---- */

void accx_dump_fail_memory(accx_dumper_t* dumper) {
  if (!dumper->failed)
    (void)accx_text_fail(dumper->error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to write the text");
  dumper->failed = true;
}

const char* accx_dump_string(accx_dumper_t* dumper, uint32_t offset) {
  dumper->mentioned[offset] = 1;
  return accx_file_string(&dumper->file, offset);
}

void accx_dump_key_string(accx_dumper_t* dumper, const char* key, uint32_t offset) {
  accx_out_key_text(&dumper->out, key, accx_dump_string(dumper, offset));
}

void accx_dump_key_word(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t value) {
  const char* word = accx_word_of(words, value);
  if (word != NULL)
    accx_out_key_text(&dumper->out, key, word);
  else
    accx_out_key_u64(&dumper->out, key, value);
}

void accx_dump_key_bits(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t bits) {
  if (bits == 0)
    return;
  accx_out_text(&dumper->out, key);
  accx_out_list(&dumper->out, true);
  for (uint32_t i = 0; i < words->count; ++i) {
    if ((bits & words->words[i].value) == 0)
      continue;
    accx_out_text(&dumper->out, words->words[i].word);
    bits &= ~words->words[i].value;
  }
  if (bits != 0)
    accx_out_hex(&dumper->out, bits);
  accx_out_list_end(&dumper->out);
}

void accx_dump_expression(accx_dumper_t* dumper, uint32_t node) {
  char* text = accx_expression_text(&dumper->scope, node, false);
  if (text == NULL) {
    accx_dump_fail_memory(dumper);
    return;
  }
  const accx_expression_t* expression = &dumper->scope.nodes[node];
  if (expression->op == ACCX_EXPR_CONSTANT)
    accx_out_i64(&dumper->out, expression->immediate);
  else
    accx_out_text(&dumper->out, text);
  free(text);
}

void accx_dump_key_expression(accx_dumper_t* dumper, const char* key, uint32_t node) {
  accx_out_text(&dumper->out, key);
  accx_dump_expression(dumper, node);
}

static void dump_encoding(accx_dumper_t* dumper, uint32_t encoding, uint32_t group_elements) {
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  if (encoding == ACCX_ENCODING_PLAIN)
    return;
  if (accrt_layout_info(encoding, &info) == ACCRT_OK)
    accx_out_key_text(&dumper->out, "encoding", info.name);
  else
    accx_out_key_u64(&dumper->out, "encoding", encoding);
  if (group_elements != 0)
    accx_out_key_u64(&dumper->out, "group", group_elements);
}

void accx_dump_type(accx_dumper_t* dumper, const accx_type_t* type) {
  accx_dump_key_word(dumper, "dtype", &accx_words_dtype, type->dtype);
  dump_encoding(dumper, type->encoding, type->group_elements);
  accx_out_text(&dumper->out, "shape");
  accx_out_list(&dumper->out, true);
  for (uint32_t i = 0; i < type->rank; ++i)
    accx_dump_expression(dumper, type->dims[i]);
  accx_out_list_end(&dumper->out);
}

/* ---- Scopes ---- */

static const char* symbol_name(void* self, uint32_t index) {
  accx_dumper_t* dumper = self;
  const accx_symbol_t* symbol = accx_file_record(&dumper->file, ACCX_SECTION_SYMBOLS, index);
  return accx_dump_string(dumper, symbol->name);
}

static const char* input_name(void* self, uint32_t index) {
  accx_dumper_t* dumper = self;
  const accx_argument_t* argument = accx_file_record(&dumper->file, ACCX_SECTION_ARGUMENTS,
                                                     dumper->function->argument_first + index);
  return accx_dump_string(dumper, argument->name);
}

static void dump_let(accx_dumper_t* dumper) {
  char name[16];
  if (dumper->scope.named == 0)
    return;
  accx_out_text(&dumper->out, dumper->function != NULL ? "let" : "let_of_states");
  accx_out_map(&dumper->out, false);
  for (uint32_t i = 0; i < dumper->scope.count; ++i) {
    if (dumper->scope.names[i] == ACCX_NONE)
      continue;
    char* text = accx_expression_text(&dumper->scope, i, true);
    if (text == NULL) {
      accx_dump_fail_memory(dumper);
      return;
    }
    (void)snprintf(name, sizeof name, "e%u", dumper->scope.names[i]);
    accx_out_key_text(&dumper->out, name, text);
    free(text);
  }
  accx_out_map_end(&dumper->out);
}

bool accx_dump_scope_begin(accx_dumper_t* dumper, const accx_function_t* function, uint32_t first,
                           uint32_t count) {
  const accx_expression_t* nodes =
      count > 0 ? accx_file_record(&dumper->file, ACCX_SECTION_EXPRESSIONS, first) : NULL;
  dumper->scope.symbol = symbol_name;
  dumper->scope.input = input_name;
  dumper->scope.self = dumper;
  dumper->function = function;
  if (!accx_scope_begin(&dumper->scope, nodes, count)) {
    accx_dump_fail_memory(dumper);
    return false;
  }
  dump_let(dumper);
  return true;
}

void accx_dump_scope_end(accx_dumper_t* dumper) {
  accx_scope_end(&dumper->scope);
}

/* ---- Bytes ---- */

static bool read_piece(accx_dumper_t* dumper, uint32_t section, uint64_t offset, void* target,
                       uint64_t size_bytes) {
  if (section == ACCX_SECTION_CODE || section == ACCX_SECTION_DATA)
    return accx_file_read(&dumper->file, section, offset, target, size_bytes, dumper->error);
  const unsigned char* bytes = accx_file_find(&dumper->file, section)->bytes;
  memcpy(target, bytes + offset, (size_t)size_bytes);
  return true;
}

static void side_name(uint32_t section, char name[32]) {
  if (section == ACCX_SECTION_DATA)
    (void)snprintf(name, 32, "data.bin");
  else if (section == ACCX_SECTION_CODE)
    (void)snprintf(name, 32, "code.bin");
  else
    (void)snprintf(name, 32, "section-%u.bin", section);
}

static bool write_all(int fd, const unsigned char* at, size_t size) {
  while (size > 0) {
    const ssize_t done = write(fd, at, size);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return false;
    at += done;
    size -= (size_t)done;
  }
  return true;
}

static bool copy_to(accx_dumper_t* dumper, int fd, const char* path, uint32_t section) {
  const uint64_t size = accx_file_find(&dumper->file, section)->record.size_bytes;
  unsigned char* piece = malloc((size_t)PIECE_BYTES);
  bool good = piece != NULL;
  if (!good)
    accx_dump_fail_memory(dumper);
  for (uint64_t at = 0; good && at < size;) {
    const uint64_t bytes = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;
    good = read_piece(dumper, section, at, piece, bytes);
    if (good && !write_all(fd, piece, (size_t)bytes))
      good = accx_text_fail(dumper->error, ACCRT_ERROR_IO, "%s: %s", path, strerror(errno));
    at += bytes;
  }
  free(piece);
  return good;
}

static bool side_path(const accx_dumper_t* dumper, uint32_t section, char path[MAX_PATH_BYTES]) {
  char name[32];
  side_name(section, name);
  const int length = snprintf(path, MAX_PATH_BYTES, "%s/%s", dumper->job->folder, name);
  return length > 0 && length < MAX_PATH_BYTES;
}

static bool fail_file(accx_dumper_t* dumper, const char* path, int error) {
  return accx_text_fail(dumper->error, ACCRT_ERROR_IO, "%s: %s", path, accrt_put_text(error));
}

/* Copies a whole section to the folder, once. */
static bool copy_section(accx_dumper_t* dumper, uint32_t section) {
  char path[MAX_PATH_BYTES];
  accrt_put_t put;
  if (section < 64 && dumper->copied[section])
    return true;
  if (!side_path(dumper, section, path))
    return accx_text_fail(dumper->error, ACCRT_ERROR_INVALID_ARGUMENT, "%s: the path is too long",
                          dumper->job->folder);
  if (mkdir(dumper->job->folder, 0777) == 0)
    dumper->made_folder = true;
  else if (errno != EEXIST)
    return fail_file(dumper, dumper->job->folder, errno);
  int error = accrt_put_begin(&put, path, "", 0666, ACCRT_PUT_OF_NAME);
  if (error != 0)
    return fail_file(dumper, path, error);
  bool good = copy_to(dumper, put.fd, path, section);
  error = good ? accrt_put_end(&put, false) : 0;
  accrt_put_drop(&put);
  if (error != 0)
    good = fail_file(dumper, path, error);
  if (section < 64)
    dumper->copied[section] = good;
  return good;
}

/* Removes the folder if it was made for a text that failed. */
static void remove_folder(accx_dumper_t* dumper) {
  char path[MAX_PATH_BYTES];
  for (uint32_t i = 0; i < dumper->file.section_count && dumper->made_folder; ++i) {
    if (side_path(dumper, dumper->file.sections[i].record.type, path))
      (void)unlink(path);
  }
  if (dumper->made_folder)
    (void)rmdir(dumper->job->folder);
}

static bool dump_in_file(accx_dumper_t* dumper, uint32_t section, uint64_t offset,
                         uint64_t size_bytes) {
  char name[32], path[MAX_PATH_BYTES];
  if (!copy_section(dumper, section))
    return false;
  side_name(section, name);
  (void)snprintf(path, sizeof path, "%s/%s", dumper->job->folder_name, name);
  accx_out_map(&dumper->out, true);
  accx_out_key_text(&dumper->out, "file", path);
  accx_out_key_u64(&dumper->out, "offset", offset);
  accx_out_key_u64(&dumper->out, "size", size_bytes);
  accx_out_map_end(&dumper->out);
  return true;
}

static bool dump_inline(accx_dumper_t* dumper, uint32_t section, uint64_t offset,
                        uint64_t size_bytes) {
  unsigned char* bytes = malloc((size_t)size_bytes + 1);
  if (bytes == NULL) {
    accx_dump_fail_memory(dumper);
    return false;
  }
  const bool good = read_piece(dumper, section, offset, bytes, size_bytes);
  if (good)
    accx_out_digits(&dumper->out, bytes, size_bytes);
  free(bytes);
  return good;
}

static bool dump_digest(accx_dumper_t* dumper, uint32_t section, uint64_t offset,
                        uint64_t size_bytes) {
  unsigned char* piece = malloc((size_t)PIECE_BYTES);
  XXH3_state_t* state = XXH3_createState();
  bool good = piece != NULL && state != NULL && XXH3_128bits_reset(state) == XXH_OK;
  if (!good)
    accx_dump_fail_memory(dumper);
  for (uint64_t at = 0; good && at < size_bytes;) {
    const uint64_t bytes = size_bytes - at < PIECE_BYTES ? size_bytes - at : PIECE_BYTES;
    good = read_piece(dumper, section, offset + at, piece, bytes);
    if (good)
      (void)XXH3_128bits_update(state, piece, (size_t)bytes);
    at += bytes;
  }
  if (good) {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state));
    accx_out_map(&dumper->out, true);
    accx_out_key_u64(&dumper->out, "size", size_bytes);
    accx_out_text(&dumper->out, "digest");
    accx_out_digits(&dumper->out, digest.digest, sizeof digest.digest);
    accx_out_map_end(&dumper->out);
  }
  (void)XXH3_freeState(state);
  free(piece);
  return good;
}

void accx_dump_bytes(accx_dumper_t* dumper, const char* key, uint32_t section, uint64_t offset,
                     uint64_t size_bytes) {
  if (dumper->failed)
    return;
  if (key != NULL)
    accx_out_text(&dumper->out, key);
  bool good;
  if (size_bytes <= dumper->job->inline_bytes)
    good = dump_inline(dumper, section, offset, size_bytes);
  else if (dumper->job->folder != NULL)
    good = dump_in_file(dumper, section, offset, size_bytes);
  else
    good = dump_digest(dumper, section, offset, size_bytes);
  dumper->failed = dumper->failed || !good;
}

/* ---- Sections ---- */

static void dump_metadata(accx_dumper_t* dumper) {
  const uint32_t count = accx_file_count(&dumper->file, ACCX_SECTION_METADATA);
  if (count == 0)
    return;
  accx_out_text(&dumper->out, "metadata");
  accx_out_map(&dumper->out, false);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_metadata_t* entry = accx_file_record(&dumper->file, ACCX_SECTION_METADATA, i);
    accx_out_key_text(&dumper->out, accx_dump_string(dumper, entry->key),
                      accx_dump_string(dumper, entry->value));
  }
  accx_out_map_end(&dumper->out);
}

uint32_t accx_dump_begin_list(accx_dumper_t* dumper, const char* key, uint32_t section) {
  const uint32_t count = accx_file_count(&dumper->file, section);
  if (count > 0) {
    accx_out_text(&dumper->out, key);
    accx_out_list(&dumper->out, false);
  }
  return count;
}

void accx_dump_end_list(accx_dumper_t* dumper, uint32_t count) {
  if (count > 0)
    accx_out_list_end(&dumper->out);
}

static void dump_symbols(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "symbols", ACCX_SECTION_SYMBOLS);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_symbol_t* symbol = accx_file_record(&dumper->file, ACCX_SECTION_SYMBOLS, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "name", symbol->name);
    accx_dump_key_word(dumper, "class", &accx_words_symbol_class, symbol->symbol_class);
    accx_out_key_i64(&dumper->out, "minimum", symbol->minimum);
    accx_out_key_i64(&dumper->out, "maximum", symbol->maximum);
    if (symbol->divisor != 1)
      accx_out_key_i64(&dumper->out, "divisor", symbol->divisor);
    if (symbol->bucket_count > 0) {
      accx_out_text(&dumper->out, "buckets");
      accx_out_list(&dumper->out, true);
      for (uint32_t k = 0; k < symbol->bucket_count; ++k) {
        accx_out_i64(&dumper->out,
                     *(const int64_t*)accx_file_record(&dumper->file, ACCX_SECTION_BUCKETS,
                                                       symbol->bucket_first + k));
      }
      accx_out_list_end(&dumper->out);
    }
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

static bool is_zero(const accx_digest_t* digest) {
  static const accx_digest_t zero;
  return memcmp(digest, &zero, sizeof zero) == 0;
}

static void dump_key_digest(accx_dumper_t* dumper, const accx_digest_t* digest) {
  if (is_zero(digest))
    return;
  accx_out_text(&dumper->out, "digest");
  accx_out_digits(&dumper->out, digest, sizeof *digest);
}

static void dump_files(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "files", ACCX_SECTION_FILES);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_file_t* file = accx_file_record(&dumper->file, ACCX_SECTION_FILES, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "name", file->name);
    accx_dump_key_word(dumper, "kind", &accx_words_file, file->kind);
    if (file->size_bytes != 0)
      accx_out_key_u64(&dumper->out, "size", file->size_bytes);
    dump_key_digest(dumper, &file->digest);
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

/* ---- Constants ---- */

static void dump_component(accx_dumper_t* dumper, const accx_constant_t* constant,
                           const accx_component_t* component) {
  if (constant->source == ACCX_CONSTANT_INLINE)
    accx_dump_bytes(dumper, "data", ACCX_SECTION_DATA, component->offset_bytes,
                    component->size_bytes);
  else
    accx_out_key_u64(&dumper->out, "size", component->size_bytes);
}

static void dump_components(accx_dumper_t* dumper, const accx_constant_t* constant) {
  const accx_component_t* first =
      accx_file_record(&dumper->file, ACCX_SECTION_COMPONENTS, constant->component_first);
  if (constant->component_count == 1 && first->dtype == constant->dtype) {
    dump_component(dumper, constant, first);
    return;
  }
  accx_out_text(&dumper->out, "components");
  accx_out_map(&dumper->out, false);
  for (uint32_t i = 0; i < constant->component_count; ++i) {
    const accx_component_t* component = first + i;
    accx_out_text(&dumper->out, accx_word_of(&accx_words_role, component->role));
    accx_out_map(&dumper->out, true);
    accx_dump_key_word(dumper, "dtype", &accx_words_dtype, component->dtype);
    dump_component(dumper, constant, component);
    accx_out_map_end(&dumper->out);
  }
  accx_out_map_end(&dumper->out);
}

static void dump_binding(accx_dumper_t* dumper, const accx_constant_t* constant) {
  if (constant->source != ACCX_CONSTANT_EXTERNAL)
    return;
  if (constant->file != ACCX_NONE) {
    const accx_file_t* file = accx_file_record(&dumper->file, ACCX_SECTION_FILES, constant->file);
    accx_dump_key_string(dumper, "file", file->name);
  }
  if (constant->tensor != 0)
    accx_dump_key_string(dumper, "tensor", constant->tensor);
  dump_key_digest(dumper, &constant->digest);
}

static void dump_shard(accx_dumper_t* dumper, const accx_shard_t* shard) {
  accx_out_text(&dumper->out, "shard");
  accx_out_map(&dumper->out, true);
  accx_out_key_u64(&dumper->out, "degree", shard->degree);
  if (shard->kind == ACCX_SHARD_SPLIT) {
    accx_out_key_u64(&dumper->out, "axis", shard->axis);
    accx_out_key_i64(&dumper->out, "extent", shard->extent);
    accx_out_text(&dumper->out, "segments");
    accx_out_list(&dumper->out, true);
    for (uint32_t i = 0; i < shard->segment_count; ++i) {
      const accx_segment_t* segment =
          accx_file_record(&dumper->file, ACCX_SECTION_SEGMENTS, shard->segment_first + i);
      accx_out_list(&dumper->out, true);
      accx_out_i64(&dumper->out, segment->begin);
      accx_out_i64(&dumper->out, segment->end);
      accx_out_u64(&dumper->out, segment->replicas);
      accx_out_list_end(&dumper->out);
    }
    accx_out_list_end(&dumper->out);
  }
  accx_out_map_end(&dumper->out);
}

static void dump_constants(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "constants", ACCX_SECTION_CONSTANTS);
  const uint32_t shards = accx_file_count(&dumper->file, ACCX_SECTION_SHARDS);
  uint32_t next = 0;
  for (uint32_t i = 0; i < count && !dumper->failed; ++i) {
    const accx_constant_t constant = accx_file_constant(&dumper->file, i);
    accx_out_map(&dumper->out, false);
    accx_dump_key_string(dumper, "name", constant.name);
    if (constant.source != ACCX_CONSTANT_INLINE)
      accx_dump_key_word(dumper, "source", &accx_words_source, constant.source);
    accx_dump_key_word(dumper, "dtype", &accx_words_dtype, constant.dtype);
    dump_encoding(dumper, constant.encoding, constant.group_elements);
    accx_out_text(&dumper->out, "shape");
    accx_out_list(&dumper->out, true);
    for (uint32_t k = 0; k < constant.rank; ++k)
      accx_out_i64(&dumper->out, constant.shape[k]);
    accx_out_list_end(&dumper->out);
    dump_components(dumper, &constant);
    dump_binding(dumper, &constant);
    const accx_shard_t* shard =
        next < shards ? accx_file_record(&dumper->file, ACCX_SECTION_SHARDS, next) : NULL;
    if (shard != NULL && shard->constant == i) {
      dump_shard(dumper, shard);
      ++next;
    }
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

static void dump_states(accx_dumper_t* dumper) {
  const uint32_t functions = accx_file_count(&dumper->file, ACCX_SECTION_FUNCTIONS);
  uint32_t nodes = accx_file_count(&dumper->file, ACCX_SECTION_EXPRESSIONS);
  if (functions > 0) {
    nodes = ((const accx_function_t*)accx_file_record(&dumper->file, ACCX_SECTION_FUNCTIONS, 0))
                ->expression_first;
  }
  if (!accx_dump_scope_begin(dumper, NULL, 0, nodes))
    return;
  const uint32_t count = accx_dump_begin_list(dumper, "states", ACCX_SECTION_STATES);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_state_t* state = accx_file_record(&dumper->file, ACCX_SECTION_STATES, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "name", state->name);
    accx_dump_type(dumper, &state->type);
    if (state->fill_pattern != 0)
      accx_out_key_hex(&dumper->out, "fill", state->fill_pattern);
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
  accx_dump_scope_end(dumper);
}

/* ---- Assets, locations and raw sections ---- */

static void dump_adapters(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "adapters", ACCX_SECTION_ADAPTERS);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_adapter_t* adapter = accx_file_record(&dumper->file, ACCX_SECTION_ADAPTERS, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "slot", adapter->slot);
    accx_dump_key_string(dumper, "input", adapter->input);
    if ((adapter->flags & ACCX_ADAPTER_SCALED) != 0)
      accx_out_key_flag(&dumper->out, "scaled");
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

static void dump_locations(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "locations", ACCX_SECTION_LOCATIONS);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_location_t* location = accx_file_record(&dumper->file, ACCX_SECTION_LOCATIONS, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "file", location->file);
    accx_out_key_u64(&dumper->out, "line", location->line);
    accx_out_key_u64(&dumper->out, "column", location->column);
    if (location->name != 0)
      accx_dump_key_string(dumper, "name", location->name);
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

static void dump_assets(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "assets", ACCX_SECTION_ASSETS);
  for (uint32_t i = 0; i < count; ++i) {
    const accx_asset_t* asset = accx_file_record(&dumper->file, ACCX_SECTION_ASSETS, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "name", asset->name);
    accx_dump_key_string(dumper, "media_type", asset->media_type);
    if (asset->size_bytes > 0)
      accx_dump_bytes(dumper, "data", ACCX_SECTION_ASSET_DATA, asset->offset_bytes,
                      asset->size_bytes);
    else
      accx_out_key_text(&dumper->out, "data", "");
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

/* True for sections that are copied byte for byte: those about the finished file, unknown ones, and
 * encrypted weights (gaps between constants are encrypted too). */
static bool is_kept(const accx_dumper_t* dumper, uint32_t type) {
  switch (type) {
  case ACCX_SECTION_DATA:
    return accx_file_find(&dumper->file, ACCX_SECTION_ENCRYPTION) != NULL;
  case ACCX_SECTION_TREE:
  case ACCX_SECTION_SIGNATURES:
  case ACCX_SECTION_LEAVES:
  case ACCX_SECTION_ENCRYPTION:
  case ACCX_SECTION_TAGS:
    return true;
  default:
    return type >= 64 || (accx_sections_known() >> type & 1) == 0;
  }
}

static void dump_kept_sections(accx_dumper_t* dumper) {
  bool any = false;
  for (uint32_t i = 0; i < dumper->file.section_count; ++i) {
    const accx_section_t* record = &dumper->file.sections[i].record;
    char name[17] = "";
    if (!is_kept(dumper, record->type))
      continue;
    if (!any) {
      accx_out_text(&dumper->out, "sections");
      accx_out_list(&dumper->out, false);
    }
    any = true;
    memcpy(name, record->name, 16);
    accx_out_map(&dumper->out, true);
    accx_out_key_u64(&dumper->out, "type", record->type);
    accx_out_key_text(&dumper->out, "name", name);
    if (record->record_bytes != 0)
      accx_out_key_u64(&dumper->out, "record_bytes", record->record_bytes);
    if (record->record_count != 0)
      accx_out_key_u64(&dumper->out, "record_count", record->record_count);
    accx_dump_bytes(dumper, "data", record->type, 0, record->size_bytes);
    accx_out_map_end(&dumper->out);
  }
  if (any)
    accx_out_list_end(&dumper->out);
}

/* Writes the strings that no other part has shown: copied sections may refer to them. */
static void dump_other_strings(accx_dumper_t* dumper) {
  bool any = false;
  for (uint64_t at = 1; at < dumper->file.strings_size_bytes;) {
    const char* text = accx_file_string(&dumper->file, (uint32_t)at);
    if (dumper->mentioned[at] == 0) {
      if (!any) {
        accx_out_text(&dumper->out, "strings");
        accx_out_list(&dumper->out, false);
      }
      any = true;
      accx_out_text(&dumper->out, text);
    }
    at += strlen(text) + 1;
  }
  if (any)
    accx_out_list_end(&dumper->out);
}

static void dump_all(accx_dumper_t* dumper) {
  accx_out_map(&dumper->out, false);
  accx_out_key_u64(&dumper->out, "accx", 1);
  if (dumper->file.header.optional_features != 0)
    accx_out_key_hex(&dumper->out, "optional_features", dumper->file.header.optional_features);
  dump_metadata(dumper);
  dump_symbols(dumper);
  dump_files(dumper);
  dump_constants(dumper);
  dump_states(dumper);
  accx_dump_kernels(dumper);
  dump_locations(dumper);
  accx_dump_functions(dumper);
  dump_adapters(dumper);
  dump_assets(dumper);
  dump_kept_sections(dumper);
  dump_other_strings(dumper);
  accx_out_map_end(&dumper->out);
}

/* Sections of a later version are copied, but the header's versions follow from known parts
 * only. */
static bool check_versions(const accx_dumper_t* dumper) {
  const accx_header_t* header = &dumper->file.header;
  if (dumper->job->folder == NULL || (header->container.minor <= ACCX_CONTAINER_MINOR &&
                                      header->commands.minor <= ACCX_COMMANDS_MINOR &&
                                      header->kernel_abi.minor <= ACCRT_KERNEL_ABI_MINOR &&
                                      header->layouts.minor <= ACCX_LAYOUTS_MINOR))
    return true;
  return accx_text_fail(
      dumper->error, ACCRT_ERROR_VERSION_MISMATCH,
      "%s needs newer versions (container 0.%u, this is 0.%d): text from which the "
      "same bytes are built cannot be made of it here",
      dumper->job->path, header->container.minor, ACCX_CONTAINER_MINOR);
}

bool accx_text_write(const accx_text_dump_t* dump, accx_text_error_t* error) {
  accx_dumper_t* dumper = calloc(1, sizeof *dumper);
  if (dumper == NULL)
    return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to write the text");
  dumper->job = dump;
  dumper->error = error;
  bool good = accx_bundle_file_open(&dumper->file, dump->instance, dump->path, error);
  good = good && check_versions(dumper);
  if (good) {
    dumper->mentioned = calloc(1, (size_t)dumper->file.strings_size_bytes);
    good = dumper->mentioned != NULL && accx_out_open(&dumper->out, dump->out);
    if (!good)
      accx_dump_fail_memory(dumper);
  }
  if (good) {
    dump_all(dumper);
    good = accx_out_close(&dumper->out) && !dumper->failed;
    if (!good && (dumper->out.no_memory || dumper->out.emitter.error == YAML_MEMORY_ERROR))
      accx_dump_fail_memory(dumper);
    else if (!good && !dumper->failed)
      (void)accx_text_fail(error, ACCRT_ERROR_IO, "writing the text: %s",
                           dumper->out.emitter.problem != NULL ? dumper->out.emitter.problem
                                                               : strerror(errno));
  }
  if (!good)
    remove_folder(dumper);
  free(dumper->mentioned);
  accx_bundle_file_close(&dumper->file);
  free(dumper);
  return good;
}
