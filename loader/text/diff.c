/* loader/text/diff.c - how two bundles differ, in words: their texts (bytes by digest) as trees, compared by name. It knows keys of the
 * text form that name things, and nothing else of it. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "loader/text/tree.h"

#define MAX_WHERE_BYTES 600u
#define INLINE_BYTES 32u

typedef struct differ {
  FILE* out;
  uint64_t count;
} differ_t;

/* ---- Where something is, in words ---- */

/* What one element of a list is called. */
static const char* element_name(const char* key) {
  static const char* const names[][2] = {
      {"symbols", "symbol"},    {"files", "file"},           {"constants", "constant"},
      {"states", "state"},      {"images", "image"},         {"kernels", "kernel"},
      {"variants", "variant"},  {"parameters", "parameter"}, {"functions", "function"},
      {"inputs", "input"},      {"results", "result"},       {"commands", "command"},
      {"then", "then command"}, {"else", "else command"},    {"adapters", "adapter"},
      {"assets", "asset"},      {"locations", "location"},   {"sections", "section"},
      {"segments", "segment"},  {"strings", "string"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (strcmp(key, names[i][0]) == 0)
      return names[i][1];
  }
  return NULL;
}

static const char* word_of(const accx_node_t* map, const char* key) {
  const accx_node_t* node = accx_node_peek(map, key);
  return node != NULL && node->kind == ACCX_NODE_WORD ? node->text : NULL;
}

/* What names an element among its like, or NULL. */
static const char* title_of(const accx_node_t* node) {
  static const char* const keys[] = {"name", "slot"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    const char* word = word_of(node, keys[i]);
    if (word != NULL)
      return word;
  }
  return NULL;
}

static bool same_word(const char* a, const char* b) {
  return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Whether two elements are versions of the same thing. */
static bool same_thing(const accx_node_t* a, const accx_node_t* b) {
  return same_word(title_of(a), title_of(b)) &&
         same_word(word_of(a, "target"), word_of(b, "target"));
}

/* " (dispatch 'k')" for a command. */
static void put_opcode(char* where, size_t capacity, const accx_node_t* node) {
  static const char* const keys[] = {"dispatch", "call",   "copy",   "fill",  "barrier",
                                     "repeat",   "branch", "marker", "opcode"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    const char* word = word_of(node, keys[i]);
    if (word == NULL)
      continue;
    const bool named = i < 2;
    (void)snprintf(where, capacity, named ? " (%s '%.60s')" : " (%s)", keys[i], word);
    return;
  }
}

static void put_element(char* where, size_t capacity, const char* outer, const char* key,
                        const accx_node_t* node, uint32_t index) {
  const char* name = element_name(key);
  const char* title = title_of(node);
  const char* target = word_of(node, "target");
  const bool is_command = name != NULL && strstr(name, "command") != NULL;
  char opcode[100] = "";
  if (is_command)
    put_opcode(opcode, sizeof opcode, node);
  const char* comma = outer[0] != '\0' ? ", " : "";
  if (title != NULL && !is_command)
    (void)snprintf(where, capacity, "%s%s%s '%.100s'%s%.40s", outer, comma,
                   name != NULL ? name : key, title, target != NULL ? " for " : "",
                   target != NULL ? target : "");
  else
    (void)snprintf(where, capacity, "%s%s%s %" PRIu32 "%s", outer, comma, name != NULL ? name : key,
                   index, opcode);
}

static void say(differ_t* differ, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void say(differ_t* differ, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vfprintf(differ->out, format, arguments);
  va_end(arguments);
  (void)fputc('\n', differ->out);
  ++differ->count;
}

/* ---- Comparing ---- */

static bool equal(const accx_node_t* a, const accx_node_t* b) {
  if (a->kind != b->kind || a->count != b->count)
    return false;
  if (a->kind == ACCX_NODE_WORD)
    return strcmp(a->text, b->text) == 0;
  const accx_node_t* other = b->first;
  for (const accx_node_t* node = a->first; node != NULL; node = node->next, other = other->next) {
    if (!equal(node, other))
      return false;
  }
  return true;
}

static void compare(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                    const accx_node_t* b);

static void only_in(differ_t* differ, const char* which, const char* where) {
  say(differ, "only in %s: %s", which, where);
}

/* Elements with names: by name, in A's order and then B's. */
static void compare_named(differ_t* differ, const char* where, const char* key,
                          const accx_node_t* a, const accx_node_t* b) {
  char inner[MAX_WHERE_BYTES];
  const accx_node_t* other = b->first;
  for (const accx_node_t* node = a->first; node != NULL; node = node->next) {
    /* Lists are sorted by name, so the match is mostly the next one. */
    const accx_node_t* match = other;
    while (match != NULL && !same_thing(node, match))
      match = match->next;
    if (match == NULL) {
      for (match = b->first; match != NULL && !same_thing(node, match);)
        match = match->next;
    }
    put_element(inner, sizeof inner, where, key, node, 0);
    if (match == NULL) {
      only_in(differ, "A", inner);
      continue;
    }
    other = match->next;
    compare(differ, inner, key, node, match);
  }
  for (const accx_node_t* node = b->first; node != NULL; node = node->next) {
    const accx_node_t* match = a->first;
    while (match != NULL && !same_thing(node, match))
      match = match->next;
    put_element(inner, sizeof inner, where, key, node, 0);
    if (match == NULL)
      only_in(differ, "B", inner);
  }
}

/* Elements without: what is equal at the begin and at the end is left out, the rest is compared in order. */
static void compare_in_order(differ_t* differ, const char* where, const char* key,
                             const accx_node_t* a, const accx_node_t* b) {
  char inner[MAX_WHERE_BYTES];
  const accx_node_t *one = a->first, *two = b->first;
  uint32_t index = 0;
  while (one != NULL && two != NULL && equal(one, two)) {
    one = one->next;
    two = two->next;
    ++index;
  }
  uint32_t left_a = a->count - index, left_b = b->count - index;
  for (; one != NULL && two != NULL; one = one->next, two = two->next, ++index) {
    /* The longer list has something more here, when what follows it is equal. */
    if (left_a > left_b && one->next != NULL && equal(one->next, two)) {
      put_element(inner, sizeof inner, where, key, one, index);
      only_in(differ, "A", inner);
      one = one->next;
      --left_a;
    } else if (left_b > left_a && two->next != NULL && equal(one, two->next)) {
      put_element(inner, sizeof inner, where, key, two, index);
      only_in(differ, "B", inner);
      two = two->next;
      --left_b;
    }
    put_element(inner, sizeof inner, where, key, one, index);
    compare(differ, inner, key, one, two);
  }
  for (; one != NULL; one = one->next, ++index) {
    put_element(inner, sizeof inner, where, key, one, index);
    only_in(differ, "A", inner);
  }
  for (; two != NULL; two = two->next, ++index) {
    put_element(inner, sizeof inner, where, key, two, index);
    only_in(differ, "B", inner);
  }
}

static bool all_named(const accx_node_t* list) {
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (node->kind != ACCX_NODE_MAP || title_of(node) == NULL)
      return false;
  }
  return true;
}

static void compare_lists(differ_t* differ, const char* where, const char* key,
                          const accx_node_t* a, const accx_node_t* b) {
  const bool commands = element_name(key) != NULL && strstr(element_name(key), "command") != NULL;
  const bool words = (a->first != NULL && a->first->kind == ACCX_NODE_WORD) ||
                     (b->first != NULL && b->first->kind == ACCX_NODE_WORD);
  if (words && a->count != b->count)
    say(differ, "%s, %s: %" PRIu32 " entries in A, %" PRIu32 " in B", where, key, a->count,
        b->count);
  else if (!commands && all_named(a) && all_named(b))
    compare_named(differ, where, key, a, b);
  else
    compare_in_order(differ, where, key, a, b);
}

static bool is_bytes(const accx_node_t* node) {
  return word_of(node, "digest") != NULL && word_of(node, "size") != NULL &&
         word_of(node, "name") == NULL;
}

static void compare_maps(differ_t* differ, const char* where, const accx_node_t* a,
                         const accx_node_t* b) {
  char inner[MAX_WHERE_BYTES];
  if (is_bytes(a) && is_bytes(b)) {
    if (strcmp(word_of(a, "size"), word_of(b, "size")) != 0)
      say(differ, "%s: %s bytes in A, %s in B", where, word_of(a, "size"), word_of(b, "size"));
    else if (!equal(a, b))
      say(differ, "%s: other bytes (%s of them)", where, word_of(a, "size"));
    return;
  }
  for (const accx_node_t* key = a->first; key != NULL; key = key->next->next) {
    const accx_node_t* other = accx_node_peek(b, key->text);
    (void)snprintf(inner, sizeof inner, "%s%s%s", where, where[0] != '\0' ? ", " : "", key->text);
    if (other == NULL)
      only_in(differ, "A", inner);
    else
      compare(differ, key->next->kind == ACCX_NODE_LIST ? where : inner, key->text, key->next,
              other);
  }
  for (const accx_node_t* key = b->first; key != NULL; key = key->next->next) {
    if (accx_node_peek(a, key->text) != NULL)
      continue;
    (void)snprintf(inner, sizeof inner, "%s%s%s", where, where[0] != '\0' ? ", " : "", key->text);
    only_in(differ, "B", inner);
  }
}

static void compare(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                    const accx_node_t* b) {
  if (a->kind != b->kind) {
    say(differ, "%s: given in another way", where);
  } else if (a->kind == ACCX_NODE_WORD) {
    if (strcmp(a->text, b->text) != 0)
      say(differ, "%s: %.100s in A, %.100s in B", where, a->text, b->text);
  } else if (a->kind == ACCX_NODE_LIST) {
    compare_lists(differ, where, key, a, b);
  } else {
    compare_maps(differ, where, a, b);
  }
}

/* ---- Texts ---- */

static bool read_tree(accrt_instance_t* instance, const char* path, accx_tree_t** out_tree,
                      accx_node_t** out_root, accx_text_error_t* error) {
  char* text = NULL;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  if (out == NULL)
    return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory for the text of %s", path);
  const accx_text_dump_t dump = {
      .instance = instance, .path = path, .out = out, .inline_bytes = INLINE_BYTES};
  bool good = accx_text_write(&dump, error);
  if (fclose(out) != 0 && good)
    good = accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory for the text of %s", path);
  good = good && accx_tree_read(text, size, out_tree, out_root, error);
  free(text);
  return good;
}

bool accx_text_compare(accrt_instance_t* instance, const char* path_a, const char* path_b,
                       FILE* out, uint64_t* out_count, accx_text_error_t* error) {
  accx_tree_t *tree_a = NULL, *tree_b = NULL;
  accx_node_t *a = NULL, *b = NULL;
  differ_t differ = {out, 0};
  const bool good = read_tree(instance, path_a, &tree_a, &a, error) &&
                    read_tree(instance, path_b, &tree_b, &b, error);
  if (good)
    compare_maps(&differ, "", a, b);
  *out_count = differ.count;
  accx_tree_free(tree_a);
  accx_tree_free(tree_b);
  return good;
}
