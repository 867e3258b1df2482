/* write/text/build.c - builds a bundle from text: the order of its parts, bytes and files, and the
 * parts that are not program. See build.h. */
#include "write/text/build.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Files ---- */

void accx_text_files_free(accx_text_files_t* files) {
  if (files == NULL)
    return;
  for (uint32_t i = 0; i < files->fd_count; ++i)
    (void)close(files->fds[i]);
  for (uint32_t i = 0; i < files->memory_count; ++i)
    free(files->memory[i]);
  free(files->fds);
  free(files->memory);
  free(files);
}

static bool keep_fd(accx_builder_t* builder, int fd) {
  accx_text_files_t* files = builder->files;
  int* grown = realloc(files->fds, (files->fd_count + (size_t)1) * sizeof *grown);
  if (grown == NULL) {
    (void)close(fd);
    return accx_text_fail(builder->error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to read the text");
  }
  files->fds = grown;
  files->fds[files->fd_count++] = fd;
  return true;
}

/* Opens each part of the path within the folder before it, and refuses links. So a text can only
 * name files beside it. */
static int open_beneath(int folder, const char* path) {
  int at = dup(folder);
  const char* part = path;
  while (at >= 0) {
    char name[256];
    const size_t length = strcspn(part, "/");
    const bool last = part[length] == '\0';
    if (length == 0 || length >= sizeof name ||
        (part[0] == '.' && (length == 1 || (length == 2 && part[1] == '.')))) {
      (void)close(at);
      errno = EINVAL;
      return -1;
    }
    memcpy(name, part, length);
    name[length] = '\0';
    const int next =
        openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (last ? 0 : O_DIRECTORY));
    const int error = errno;
    (void)close(at);
    errno = error;
    if (last || next < 0)
      return next;
    at = next;
    part += length + 1;
  }
  return -1;
}

static bool read_file_part(accx_builder_t* builder, accx_node_t* map, const char* path,
                           accrt_writer_bytes_t* out) {
  const accx_node_t* node = accx_node_peek(map, "file");
  if (builder->folder < 0)
    return accx_node_fail(node, builder->error, "files cannot be named here");
  const int fd = open_beneath(builder->folder, path);
  struct stat info;
  if (fd < 0)
    return accx_node_fail(
        node, builder->error,
        errno == EINVAL || errno == ELOOP
            ? "%s is not a plain path beneath the folder of the text: %s"
            : "%s: %s",
        ACCX_SHOW(path), errno == EINVAL || errno == ELOOP ? "no '..', no links" : strerror(errno));
  if (!keep_fd(builder, fd))
    return false;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    return accx_node_fail(node, builder->error, "%s is not a regular file", ACCX_SHOW(path));
  uint64_t offset = 0, size = 0;
  const bool to_end = accx_node_peek(map, "size") == NULL;
  const uint64_t file_bytes = (uint64_t)info.st_size;
  if (!accx_key_u64(builder, map, "offset", NULL, &offset) ||
      !accx_key_u64(builder, map, "size", NULL, &size))
    return false;
  if (offset > file_bytes || size > file_bytes - offset)
    return accx_node_fail(node, builder->error,
                          "%s has %" PRIu64 " bytes, too few for offset %" PRIu64
                          " and size %" PRIu64,
                          ACCX_SHOW(path), file_bytes, offset, size);
  *out = (accrt_writer_bytes_t){.size_bytes = to_end ? file_bytes - offset : size,
                                .kind = ACCRT_WRITER_BYTES_FILE,
                                .fd = fd,
                                .offset = offset};
  return true;
}

bool accx_read_bytes(accx_builder_t* builder, accx_node_t* map, accrt_writer_bytes_t* out) {
  static const char* const keys[] = {"file", "offset", "size", "text", NULL};
  accx_node_t* data = accx_node_get(map, "data");
  const char *path = NULL, *text = NULL;
  memset(out, 0, sizeof *out);
  if (data == NULL)
    return accx_node_fail(map, builder->error, "'data' is needed: hexadecimal digits, or a file");
  if (data->kind == ACCX_NODE_WORD) {
    unsigned char* bytes;
    if (!accx_word_digits(builder, data, &bytes, &out->size_bytes))
      return false;
    out->data = bytes;
    return true;
  }
  if (!accx_want(builder, data, ACCX_NODE_MAP, "'data'") ||
      !accx_key_text(builder, data, "file", NULL, &path) ||
      !accx_key_text(builder, data, "text", NULL, &text))
    return false;
  if (accx_node_peek(data, "digest") != NULL)
    return accx_node_fail(data, builder->error,
                          "these bytes were left out of the text: only their digest is here");
  if ((path != NULL) == (text != NULL))
    return accx_node_fail(data, builder->error, "'data' needs 'file' or 'text'");
  if (path != NULL) {
    if (!read_file_part(builder, data, path, out))
      return false;
  } else {
    out->size_bytes = strlen(text);
    char* copy = accx_build_memory(builder, out->size_bytes + 1);
    if (copy == NULL)
      return false;
    memcpy(copy, text, (size_t)out->size_bytes);
    out->data = copy;
  }
  return accx_node_all_used(data, "'data'", keys, builder->error);
}

/* ---- Sections ---- */

static bool each(accx_builder_t* builder, accx_node_t* root, const char* key,
                 bool (*build)(accx_builder_t* builder, accx_node_t* node)) {
  accx_node_t* list = accx_node_get(root, key);
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, key))
    return false;
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!accx_want(builder, node, ACCX_NODE_MAP, key) || !build(builder, node))
      return false;
  }
  return true;
}

static bool build_metadata(accx_builder_t* builder, accx_node_t* root) {
  accx_node_t* map = accx_node_get(root, "metadata");
  if (map == NULL)
    return true;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "metadata"))
    return false;
  for (const accx_node_t* key = map->first; key != NULL; key = key->next->next) {
    if (!accx_want(builder, key->next, ACCX_NODE_WORD, "the value of metadata"))
      return false;
    const accrt_status_t status =
        accrt_bundle_writer_add_metadata(builder->writer, key->text, key->next->text);
    if (status != ACCRT_OK)
      return accx_node_fail_call(builder, key, status);
  }
  return true;
}

static bool build_strings(accx_builder_t* builder, accx_node_t* root) {
  accx_node_t* list = accx_node_get(root, "strings");
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, "strings"))
    return false;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!accx_want(builder, node, ACCX_NODE_WORD, "a string"))
      return false;
    const accrt_status_t status = accrt_bundle_writer_add_string(builder->writer, node->text);
    if (status != ACCRT_OK)
      return accx_node_fail_call(builder, node, status);
  }
  return true;
}

static bool read_buckets(accx_builder_t* builder, accx_node_t* map, int64_t** out,
                         uint32_t* out_count) {
  accx_node_t* list = accx_node_get(map, "buckets");
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, "buckets"))
    return false;
  *out = accx_build_memory(builder, list->count * sizeof **out);
  if (*out == NULL)
    return false;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!accx_word_i64(builder, node, &(*out)[(*out_count)++]))
      return false;
  }
  return true;
}

static bool build_symbol(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name",    "class",   "minimum", "maximum",
                                     "divisor", "buckets", NULL};
  accrt_writer_symbol_t symbol = ACCRT_WRITER_SYMBOL_INIT;
  int64_t* buckets = NULL;
  symbol.maximum = -1;
  symbol.divisor = 1;
  if (!accx_key_text(builder, map, "name", "a symbol", &symbol.name) ||
      !accx_key_word(builder, map, "class", NULL, &accx_words_symbol_class, &symbol.symbol_class) ||
      !accx_key_i64(builder, map, "minimum", NULL, &symbol.minimum) ||
      !accx_key_i64(builder, map, "maximum", NULL, &symbol.maximum) ||
      !accx_key_i64(builder, map, "divisor", NULL, &symbol.divisor) ||
      !read_buckets(builder, map, &buckets, &symbol.bucket_count) ||
      !accx_node_all_used(map, "a symbol", keys, builder->error))
    return false;
  symbol.buckets = buckets;
  if (symbol.maximum == 0)
    symbol.flags = ACCRT_WRITER_SYMBOL_ZERO_MAXIMUM;
  if (accx_node_peek(map, "maximum") == NULL)
    symbol.maximum = 0;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_SYMBOL, symbol.name, map);
  if (name == NULL)
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_symbol(builder->writer, &symbol, &name->id);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_file(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name", "kind", "size", "digest", NULL};
  const char* text = NULL;
  uint32_t kind = 0;
  uint64_t size_bytes = 0, digest_bytes = 16;
  unsigned char* digest = NULL;
  if (!accx_key_text(builder, map, "name", "a file", &text) ||
      !accx_key_word(builder, map, "kind", "a file", &accx_words_file, &kind) ||
      !accx_key_u64(builder, map, "size", NULL, &size_bytes))
    return false;
  const accx_node_t* node = accx_node_get(map, "digest");
  if (node != NULL && !accx_word_digits(builder, node, &digest, &digest_bytes))
    return false;
  if (digest_bytes != 16)
    return accx_node_fail(node, builder->error, "a digest has 16 bytes, not %" PRIu64,
                          digest_bytes);
  if (!accx_node_all_used(map, "a file", keys, builder->error))
    return false;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_FILE, text, map);
  if (name == NULL)
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_add_file(builder->writer, text, kind, size_bytes, digest, &name->id);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_state(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name", "dtype", "encoding", "group", "shape", "fill", NULL};
  accrt_writer_state_t state = ACCRT_WRITER_STATE_INIT;
  if (!accx_key_text(builder, map, "name", "a state", &state.name) ||
      !accx_read_type(builder, map, &state.type) ||
      !accx_key_u64(builder, map, "fill", NULL, &state.fill_pattern) ||
      !accx_node_all_used(map, "a state", keys, builder->error))
    return false;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_STATE, state.name, map);
  if (name == NULL)
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_state(builder->writer, &state, &name->id);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_adapter(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"slot", "input", "scaled", NULL};
  const char *slot = NULL, *input = NULL;
  bool scaled = false;
  if (!accx_key_text(builder, map, "slot", "an adapter", &slot) ||
      !accx_key_text(builder, map, "input", "an adapter", &input) ||
      !accx_key_flag(builder, map, "scaled", &scaled) ||
      !accx_node_all_used(map, "an adapter", keys, builder->error))
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_adapter(builder->writer, slot, input,
                                                                scaled ? ACCRT_ADAPTER_SCALED : 0);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_location(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"file", "line", "column", "name", NULL};
  const char *file = NULL, *name = NULL;
  uint32_t line = 0, column = 0;
  if (!accx_key_text(builder, map, "file", "a location", &file) ||
      !accx_key_u32(builder, map, "line", NULL, &line) ||
      !accx_key_u32(builder, map, "column", NULL, &column) ||
      !accx_key_text(builder, map, "name", NULL, &name) ||
      !accx_node_all_used(map, "a location", keys, builder->error))
    return false;
  accrt_writer_id_t* id = &builder->locations[builder->location_count++];
  const accrt_status_t status =
      accrt_bundle_writer_add_location(builder->writer, file, line, column, name, id);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_locations(accx_builder_t* builder, accx_node_t* root) {
  const accx_node_t* list = accx_node_peek(root, "locations");
  if (list == NULL)
    return true;
  builder->locations = accx_build_memory(builder, list->count * sizeof *builder->locations);
  return builder->locations != NULL && each(builder, root, "locations", build_location);
}

static bool build_asset(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name", "media_type", "data", NULL};
  const char *name = NULL, *media_type = NULL;
  accrt_writer_bytes_t bytes;
  if (!accx_key_text(builder, map, "name", "an asset", &name) ||
      !accx_key_text(builder, map, "media_type", NULL, &media_type) ||
      !accx_read_bytes(builder, map, &bytes) ||
      !accx_node_all_used(map, "an asset", keys, builder->error))
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_add_asset(builder->writer, name, media_type, &bytes);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_section(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"type", "name", "record_bytes", "record_count", "data", NULL};
  accrt_writer_section_t section = ACCRT_WRITER_SECTION_INIT;
  if (!accx_key_u32(builder, map, "type", "a section", &section.type) ||
      !accx_key_text(builder, map, "name", "a section", &section.name) ||
      !accx_key_u32(builder, map, "record_bytes", NULL, &section.record_bytes) ||
      !accx_key_u32(builder, map, "record_count", NULL, &section.record_count) ||
      !accx_read_bytes(builder, map, &section.bytes) ||
      !accx_node_all_used(map, "a section", keys, builder->error))
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_section(builder->writer, &section);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

/* ---- The whole text ---- */

static bool build_list(accx_builder_t* builder, accx_node_t* root, const char* key,
                       bool (*build)(accx_builder_t* builder, accx_node_t* list)) {
  accx_node_t* list = accx_node_get(root, key);
  return list == NULL || (accx_want(builder, list, ACCX_NODE_LIST, key) && build(builder, list));
}

/* `let_of_states`: names for common parts of the states' dimensions. */
static bool build_state_lets(accx_builder_t* builder, accx_node_t* root) {
  accx_node_t* lets = accx_node_get(root, "let_of_states");
  if (lets == NULL)
    return true;
  if (!accx_want(builder, lets, ACCX_NODE_MAP, "let_of_states"))
    return false;
  for (accx_node_t* key = lets->first; key != NULL; key = key->next->next) {
    accrt_writer_id_t id;
    if (!accx_read_expression(builder, key->next, &id))
      return false;
    accx_name_t* name = accx_name_add(builder, ACCX_NAME_LET, key->text, key);
    if (name == NULL)
      return false;
    name->id = id;
  }
  return true;
}

static bool build_root(accx_builder_t* builder, accx_node_t* root) {
  static const char* const keys[] = {"accx",      "optional_features",
                                     "metadata",  "symbols",
                                     "files",     "constants",
                                     "states",    "let_of_states",
                                     "images",    "kernels",
                                     "locations", "functions",
                                     "adapters",  "assets",
                                     "sections",  "strings",
                                     NULL};
  uint64_t version = 0, features = 0;
  if (!accx_key_u64(builder, root, "accx", "the text", &version) ||
      !accx_key_u64(builder, root, "optional_features", NULL, &features))
    return false;
  if (version != 1)
    return accx_node_fail(accx_node_peek(root, "accx"), builder->error,
                          "text form %" PRIu64 "; this tool reads form 1", version);
  if (!accx_node_all_known(root, "the text", keys, builder->error) ||
      !build_metadata(builder, root) || !each(builder, root, "symbols", build_symbol) ||
      !each(builder, root, "files", build_file) ||
      !build_list(builder, root, "constants", accx_build_constants) ||
      !build_state_lets(builder, root) || !each(builder, root, "states", build_state) ||
      !build_list(builder, root, "images", accx_build_images) ||
      !build_list(builder, root, "kernels", accx_build_kernels) ||
      !build_locations(builder, root) ||
      !build_list(builder, root, "functions", accx_build_functions) ||
      !each(builder, root, "adapters", build_adapter) ||
      !each(builder, root, "assets", build_asset) ||
      !each(builder, root, "sections", build_section) || !build_strings(builder, root))
    return false;
  accrt_status_t status = accrt_bundle_writer_set_optional_features(builder->writer, features);
  if (status != ACCRT_OK)
    return accx_node_fail_call(builder, root, status);
  status = accrt_bundle_writer_check(builder->writer, NULL);
  return status == ACCRT_OK || accx_node_fail_whole(builder, root, status);
}

bool accx_text_read(const char* text, size_t size_bytes, const char* folder,
                    accrt_bundle_writer_t* writer, accx_text_files_t** out_files,
                    accx_text_error_t* error) {
  accx_tree_t* tree = NULL;
  accx_node_t* root = NULL;
  accx_builder_t builder = {.writer = writer, .error = error, .folder = -1};
  *out_files = builder.files = calloc(1, sizeof *builder.files);
  if (builder.files == NULL)
    return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to read the text");
  bool good = accx_tree_read(text, size_bytes, &tree, &root, error);
  if (good && root == NULL)
    good = accx_text_fail(error, ACCRT_ERROR_INVALID_ARGUMENT, "the text is empty");
  if (good && folder != NULL) {
    builder.folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (builder.folder < 0)
      good = accx_text_fail(error, ACCRT_ERROR_IO, "%s: %s", folder, strerror(errno));
  }
  if (good)
    good = accx_want(&builder, root, ACCX_NODE_MAP, "the text") && build_root(&builder, root);
  if (builder.folder >= 0)
    (void)close(builder.folder);
  free(builder.names);
  accx_tree_free(tree);
  if (good)
    return true;
  accx_text_files_free(builder.files);
  *out_files = NULL;
  return false;
}
