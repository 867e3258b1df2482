/* write/text/tree.c - reads YAML into a tree. See tree.h. */
#include "write/text/tree.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_DEPTH 64u
#define BLOCK_BYTES (64u * 1024u)

/* Memory of a tree: blocks that are freed together. */
typedef struct block {
  struct block* next;
  size_t used, size;
  char bytes[];
} block_t;
struct accx_tree {
  block_t* blocks;
};

static void* take(accx_tree_t* tree, size_t size) {
  size = (size + 15) & ~(size_t)15;
  block_t* block = tree->blocks;
  if (block == NULL || block->size - block->used < size) {
    const size_t bytes = size > BLOCK_BYTES ? size : BLOCK_BYTES;
    block = malloc(sizeof *block + bytes);
    if (block == NULL)
      return NULL;
    *block = (block_t){tree->blocks, 0, bytes};
    tree->blocks = block;
  }
  void* memory = block->bytes + block->used;
  block->used += size;
  memset(memory, 0, size);
  return memory;
}

void accx_tree_free(accx_tree_t* tree) {
  if (tree == NULL)
    return;
  for (block_t *block = tree->blocks, *next; block != NULL; block = next) {
    next = block->next;
    free(block);
  }
  free(tree);
}

/* ---- Failures ---- */

bool accx_text_fail(accx_text_error_t* error, accrt_status_t status, const char* format, ...) {
  va_list arguments;
  error->status = status;
  error->line = error->column = 0;
  va_start(arguments, format);
  (void)vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return false;
}

bool accx_text_fail_call(accx_text_error_t* error, accrt_status_t status, const char* what) {
  accrt_error_t record = ACCRT_ERROR_INIT;
  const bool known = accrt_last_error(&record) == ACCRT_OK && record.status == status;
  return accx_text_fail(error, status, "%.200s%s%s", what != NULL ? what : "",
                        what != NULL ? ": " : "",
                        known ? record.message : accrt_status_name(status));
}

bool accx_node_fail(const accx_node_t* node, accx_text_error_t* error, const char* format, ...) {
  va_list arguments;
  error->status = ACCRT_ERROR_INVALID_ARGUMENT;
  error->line = node->line;
  error->column = node->column;
  va_start(arguments, format);
  (void)vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return false;
}

static bool fail_memory(accx_text_error_t* error) {
  return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to read YAML");
}

static bool fail_mark(accx_text_error_t* error, const yaml_mark_t* mark, const char* what) {
  (void)accx_text_fail(error, ACCRT_ERROR_INVALID_ARGUMENT, "%s", what);
  error->line = (uint32_t)mark->line + 1;
  error->column = (uint32_t)mark->column + 1;
  return false;
}

/* ---- Reading ---- */

typedef struct reader {
  yaml_parser_t parser;
  accx_tree_t* tree;
  accx_text_error_t* error;
} reader_t;

static bool next_event(reader_t* reader, yaml_event_t* event) {
  if (yaml_parser_parse(&reader->parser, event))
    return true;
  const char* problem = reader->parser.problem != NULL ? reader->parser.problem : "it is not YAML";
  if (reader->parser.error == YAML_MEMORY_ERROR)
    return fail_memory(reader->error);
  return fail_mark(reader->error, &reader->parser.problem_mark, problem);
}

static bool has_anchor_or_tag(const yaml_event_t* event) {
  switch (event->type) {
  case YAML_SCALAR_EVENT:
    return event->data.scalar.anchor != NULL || event->data.scalar.tag != NULL;
  case YAML_SEQUENCE_START_EVENT:
    return event->data.sequence_start.anchor != NULL || event->data.sequence_start.tag != NULL;
  case YAML_MAPPING_START_EVENT:
    return event->data.mapping_start.anchor != NULL || event->data.mapping_start.tag != NULL;
  default:
    return event->type == YAML_ALIAS_EVENT;
  }
}

static bool read_word(reader_t* reader, const yaml_event_t* event, accx_node_t* node) {
  const size_t length = event->data.scalar.length;
  char* text = take(reader->tree, length + 1);
  if (text == NULL)
    return fail_memory(reader->error);
  memcpy(text, event->data.scalar.value, length);
  if (strlen(text) != length)
    return fail_mark(reader->error, &event->start_mark, "a word may not contain NUL");
  node->text = text;
  return true;
}

/* Each key is a word, and occurs once. A map with many entries is checked by sorting, because
 * comparing all pairs would take quadratic time. */
static int by_text(const void* a, const void* b) {
  return strcmp((*(accx_node_t* const*)a)->text, (*(accx_node_t* const*)b)->text);
}

static bool is_later(const accx_node_t* a, const accx_node_t* b) {
  return a->line != b->line ? a->line > b->line : a->column > b->column;
}

static bool keys_differ(reader_t* reader, const accx_node_t* map) {
  accx_node_t** keys = malloc((map->count > 0 ? map->count : 1) * sizeof(accx_node_t*));
  if (keys == NULL)
    return fail_memory(reader->error);
  uint32_t count = 0;
  bool good = true;
  for (accx_node_t* key = map->first; key != NULL; key = key->next->next)
    keys[count++] = key;
  qsort(keys, count, sizeof(accx_node_t*), by_text);
  for (uint32_t i = 1; i < count && good; ++i) {
    if (strcmp(keys[i]->text, keys[i - 1]->text) == 0)
      good = accx_node_fail(is_later(keys[i], keys[i - 1]) ? keys[i] : keys[i - 1], reader->error,
                            "the key %s is there twice", ACCX_SHOW(keys[i]->text));
  }
  free(keys);
  return good;
}

static bool read_children(reader_t* reader, accx_node_t* parent, yaml_event_type_t end,
                          uint32_t depth);

static bool read_node(reader_t* reader, const yaml_event_t* event, uint32_t depth,
                      accx_node_t** out) {
  accx_node_t* node = take(reader->tree, sizeof *node);
  if (node == NULL)
    return fail_memory(reader->error);
  node->line = (uint32_t)event->start_mark.line + 1;
  node->column = (uint32_t)event->start_mark.column + 1;
  *out = node;
  if (has_anchor_or_tag(event))
    return fail_mark(reader->error, &event->start_mark, "anchors, aliases and tags are not used");
  if (depth > MAX_DEPTH)
    return fail_mark(reader->error, &event->start_mark, "maps and lists nest more than 64 deep");
  switch (event->type) {
  case YAML_SCALAR_EVENT:
    node->kind = ACCX_NODE_WORD;
    return read_word(reader, event, node);
  case YAML_SEQUENCE_START_EVENT:
    node->kind = ACCX_NODE_LIST;
    return read_children(reader, node, YAML_SEQUENCE_END_EVENT, depth);
  case YAML_MAPPING_START_EVENT:
    node->kind = ACCX_NODE_MAP;
    return read_children(reader, node, YAML_MAPPING_END_EVENT, depth) && keys_differ(reader, node);
  default:
    return fail_mark(reader->error, &event->start_mark, "a word, a list or a map is expected");
  }
}

static bool read_children(reader_t* reader, accx_node_t* parent, yaml_event_type_t end,
                          uint32_t depth) {
  accx_node_t** last = &parent->first;
  for (uint32_t i = 0;; ++i) {
    yaml_event_t event;
    if (!next_event(reader, &event))
      return false;
    if (event.type == end) {
      yaml_event_delete(&event);
      parent->count = parent->kind == ACCX_NODE_MAP ? i / 2 : i;
      return true;
    }
    bool good = read_node(reader, &event, depth + 1, last);
    if (good && parent->kind == ACCX_NODE_MAP && i % 2 == 0 && (*last)->kind != ACCX_NODE_WORD)
      good = fail_mark(reader->error, &event.start_mark, "a key is a word");
    yaml_event_delete(&event);
    if (!good)
      return false;
    last = &(*last)->next;
  }
}

/* Reads the start of stream and document, one node, and their end. */
static bool read_document(reader_t* reader, accx_node_t** out_root) {
  bool good = true, ended = false;
  while (good && !ended) {
    yaml_event_t event;
    if (!next_event(reader, &event))
      return false;
    switch (event.type) {
    case YAML_STREAM_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
      break;
    case YAML_DOCUMENT_START_EVENT:
      if (*out_root != NULL)
        good = fail_mark(reader->error, &event.start_mark, "there is a second document");
      break;
    case YAML_STREAM_END_EVENT:
      ended = true;
      break;
    default:
      good = read_node(reader, &event, 0, out_root);
      break;
    }
    yaml_event_delete(&event);
  }
  return good;
}

/* Refuses %TAG lines. libyaml compares each one with all before it, so many of them take quadratic
 * time before this code sees them. */
static bool refuse_tag_lines(const char* text, size_t size_bytes, accx_text_error_t* error) {
  const char* const end = text + size_bytes;
  yaml_mark_t mark = {0};
  for (const char* line = text; line != NULL && end - line >= 4; ++mark.line) {
    if (memcmp(line, "%TAG", 4) == 0)
      return fail_mark(error, &mark, "anchors, aliases and tags are not used");
    line = memchr(line, '\n', (size_t)(end - line));
    line = line != NULL ? line + 1 : NULL;
  }
  return true;
}

bool accx_tree_read(const char* text, size_t size_bytes, accx_tree_t** out_tree,
                    accx_node_t** out_root, accx_text_error_t* error) {
  reader_t reader = {.error = error};
  *out_root = NULL;
  *out_tree = reader.tree = calloc(1, sizeof *reader.tree);
  if (reader.tree == NULL || !yaml_parser_initialize(&reader.parser)) {
    accx_tree_free(reader.tree);
    *out_tree = NULL;
    return fail_memory(error);
  }
  if (size_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
    text += 3; /* skip a byte order mark, which some editors write */
    size_bytes -= 3;
  }
  yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&reader.parser, (const unsigned char*)text, size_bytes);
  const bool good = refuse_tag_lines(text, size_bytes, error) && read_document(&reader, out_root);
  yaml_parser_delete(&reader.parser);
  if (good)
    return true;
  accx_tree_free(reader.tree);
  *out_tree = NULL;
  *out_root = NULL;
  return false;
}

/* ---- Keys ---- */

static accx_node_t* find_key(const accx_node_t* map, const char* key) {
  if (map == NULL || map->kind != ACCX_NODE_MAP)
    return NULL;
  for (accx_node_t* at = map->first; at != NULL; at = at->next->next) {
    if (strcmp(at->text, key) == 0)
      return at;
  }
  return NULL;
}

accx_node_t* accx_node_get(accx_node_t* map, const char* key) {
  accx_node_t* found = find_key(map, key);
  if (found == NULL)
    return NULL;
  found->used = true;
  return found->next;
}

accx_node_t* accx_node_peek(const accx_node_t* map, const char* key) {
  const accx_node_t* found = find_key(map, key);
  return found != NULL ? found->next : NULL;
}

const accx_node_t* accx_node_meant(const accx_node_t* map, const char* const* words,
                                   accx_near_t* out_near) {
  for (const accx_node_t* key = map->kind == ACCX_NODE_MAP ? map->first : NULL; key != NULL;
       key = key->next->next) {
    *out_near = (accx_near_t){.wrong = key->text};
    for (const char* const* word = words; *word != NULL && !key->used; ++word)
      accx_near_try(out_near, *word);
    if (out_near->best != NULL)
      return key;
  }
  *out_near = (accx_near_t){.wrong = ""};
  return NULL;
}

const char* accx_node_word(const accx_node_t* map, const char* key) {
  const accx_node_t* node = accx_node_peek(map, key);
  return node != NULL && node->kind == ACCX_NODE_WORD ? node->text : NULL;
}

bool accx_node_fail_missing(const accx_node_t* map, accx_text_error_t* error, const char* what,
                            const char* key) {
  accx_near_t near;
  const accx_node_t* meant = accx_node_meant(map, (const char* const[]){key, NULL}, &near);
  if (meant == NULL)
    return accx_node_fail(map, error, "%s needs '%s'", what, key);
  return accx_node_fail(meant, error, "%s needs '%s', which may be misspelled as %s", what, key,
                        ACCX_SHOW(meant->text));
}

/* Refuses the first key that is not in `known` or, with `all`, that was not read. */
static bool refuse_key(const accx_node_t* map, const char* what, const char* const* known, bool all,
                       accx_text_error_t* error) {
  for (const accx_node_t* key = map->first; key != NULL; key = key->next->next) {
    if (key->used)
      continue;
    bool elsewhere = false;
    accx_near_t near = {.wrong = key->text};
    for (const char* const* word = known; *word != NULL; ++word) {
      elsewhere = elsewhere || strcmp(*word, key->text) == 0;
      accx_near_try(&near, *word);
    }
    if (!elsewhere || all)
      return accx_node_fail(key, error, "%s has no %s%s", what, ACCX_SHOW(key->text),
                            elsewhere ? " beside the rest of this" : ACCX_NEAR_TEXT(&near));
  }
  return true;
}

bool accx_node_all_used(const accx_node_t* map, const char* what, const char* const* known,
                        accx_text_error_t* error) {
  return refuse_key(map, what, known, true, error);
}

bool accx_node_all_known(const accx_node_t* map, const char* what, const char* const* known,
                         accx_text_error_t* error) {
  return refuse_key(map, what, known, false, error);
}
