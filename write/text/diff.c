/* write/text/diff.c - describes the differences of two bundles, by comparing their texts (bytes by
 * digest) as trees. Parts are compared by name, and commands and variants by their content, so that
 * an addition or removal does not change what follows. It knows the keys of the text form, and
 * nothing else of it. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/format.h"
#include "write/text/names.h"
#include "write/text/show.h"
#include "write/text/tree.h"
#include "write/text/values.h"

#define MAX_WHERE_BYTES 1500u
#define MAX_VALUE_BYTES 300u
#define INLINE_BYTES 32u
#define MAX_PAIRS ((uint64_t)4 << 20) /* limit for the search of common parts of lists */
#define NONE UINT32_MAX

typedef struct differ {
  FILE* out;
  uint64_t count;
  bool failed; /* out of memory */
  /* The meaning of numbers. lets: for B's names in `let` of the current function, A's number or
   * NONE. places: the locations. */
  const uint32_t* lets;
  uint32_t let_count;
  const accx_node_t **places_a, **places_b;
  uint32_t place_count_a, place_count_b;
  /* Sources of the bytes, to find the values that differ. */
  accrt_weights_t *a, *b; /* NULL: unknown */
  const char* constant;
  uint64_t role;
} differ_t;

static void compare(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                    const accx_node_t* b);

static void* take(differ_t* differ, size_t count, size_t size) {
  void* memory = calloc(count > 0 ? count : 1, size);
  differ->failed = differ->failed || memory == NULL;
  return memory;
}

/* ---- Lines of the result ---- */

static void say(differ_t* differ, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void say(differ_t* differ, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vfprintf(differ->out, format, arguments);
  va_end(arguments);
  (void)fputc('\n', differ->out);
  ++differ->count;
}

typedef struct value {
  char text[MAX_VALUE_BYTES];
  size_t length;
} value_t;

static void put(value_t* value, const char* text) {
  const size_t left = sizeof value->text - value->length;
  const int written = snprintf(value->text + value->length, left, "%s", text);
  if (written >= 0 && (size_t)written < left) {
    value->length += (size_t)written;
    return;
  }
  value->length = sizeof value->text - 1;
  memcpy(value->text + sizeof value->text - 4, "...", 4);
}

/* True for a word that needs no quotes. */
static bool is_plain(const char* word) {
  const size_t length = strlen(word);
  bool plain = length > 0 && length < 100 && word[0] != ' ' && word[length - 1] != ' ';
  for (const char* at = word; plain && *at != '\0'; ++at)
    plain = *at >= ' ' && *at < 0x7F && *at != '\'' && *at != '\\';
  return plain;
}

static void put_value(value_t* value, const accx_node_t* node) {
  const bool is_map = node->kind == ACCX_NODE_MAP;
  if (node->kind == ACCX_NODE_WORD) {
    put(value, is_plain(node->text) ? node->text : ACCX_SHOW(node->text));
    return;
  }
  put(value, is_map ? "{" : "[");
  for (const accx_node_t* at = node->first; at != NULL; at = at->next) {
    if (is_map) {
      put_value(value, at);
      put(value, ": ");
      at = at->next;
    }
    put_value(value, at);
    put(value, at->next != NULL ? ", " : "");
  }
  put(value, is_map ? "}" : "]");
}

/* Writes bytes as digits, or as a size and a digest. */
static void put_bytes(value_t* value, const accx_node_t* node) {
  char text[100];
  const char* size = accx_node_word(node, "size");
  const char* digest = accx_node_word(node, "digest");
  if (node->kind == ACCX_NODE_WORD)
    (void)snprintf(text, sizeof text, "%zu bytes %.64s", strlen(node->text) / 2, node->text);
  else
    (void)snprintf(text, sizeof text, "%.24s bytes with digest %.32s", size != NULL ? size : "?",
                   digest != NULL ? digest : "?");
  put(value, text);
}

/* True for bytes; false for a component of that name, which is a map with bytes. */
static bool is_bytes(const char* key, const accx_node_t* node) {
  return (strcmp(key, "data") == 0 || strcmp(key, "raw") == 0) &&
         (node->kind == ACCX_NODE_WORD || accx_node_word(node, "digest") != NULL);
}

/* Writes the bits of a scalar, with their value as a float. */
static void put_bits(value_t* value, const accx_node_t* node) {
  const uint64_t bits = strtoull(node->text, NULL, 16);
  char text[80] = "";
  float narrow;
  double wide;
  memcpy(&narrow, &bits, sizeof narrow);
  memcpy(&wide, &bits, sizeof wide);
  if (bits >> 32 != 0)
    (void)snprintf(text, sizeof text, " (f64: %.17g)", wide);
  else if (bits >> 16 != 0)
    (void)snprintf(text, sizeof text, " (f32: %.9g)", (double)narrow);
  put(value, node->text);
  put(value, text);
}

static void put_of_key(value_t* value, const char* key, const accx_node_t* node) {
  if (is_bytes(key, node))
    put_bytes(value, node);
  else if (strcmp(key, "bits") == 0 && node->kind == ACCX_NODE_WORD)
    put_bits(value, node);
  else
    put_value(value, node);
}

/* The place that a location number stands for. */
static const accx_node_t* place_of(const accx_node_t** places, uint32_t count,
                                   const accx_node_t* number) {
  const uint64_t index = strtoull(number->text, NULL, 10);
  return index < count ? places[index] : number;
}

static void say_values(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                       const accx_node_t* b) {
  value_t one = {"", 0}, two = {"", 0};
  if (strcmp(key, "location") == 0) {
    a = place_of(differ->places_a, differ->place_count_a, a);
    b = place_of(differ->places_b, differ->place_count_b, b);
  }
  char values[MAX_VALUE_BYTES];
  if (is_bytes(key, a) && differ->constant != NULL && differ->a != NULL && differ->b != NULL &&
      accx_values_text(differ->a, differ->b, differ->constant, (uint32_t)differ->role, values,
                       sizeof values)) {
    say(differ, "%s: %s", where, values);
    return;
  }
  put_of_key(&one, key, a);
  put_of_key(&two, key, b);
  say(differ, "%s: %s in A, %s in B", where, one.text, two.text);
}

static const char* element_name(const char* key);

static void say_only(differ_t* differ, char which, const char* where, const char* key,
                     const accx_node_t* node) {
  value_t value = {"", 0};
  if (strcmp(key, "location") == 0)
    node = which == 'A' ? place_of(differ->places_a, differ->place_count_a, node)
                        : place_of(differ->places_b, differ->place_count_b, node);
  if (element_name(key) == NULL)
    put_of_key(&value, key, node);
  say(differ, "only in %c: %s%s%s", which, where, value.length > 0 ? ": " : "", value.text);
}

/* ---- Positions in words ---- */

/* The word for one element of a list. */
static const char* element_name(const char* key) {
  static const char* const names[][2] = {
      {"symbols", "symbol"},    {"files", "file"},           {"constants", "constant"},
      {"states", "state"},      {"images", "image"},         {"kernels", "kernel"},
      {"variants", "variant"},  {"parameters", "parameter"}, {"functions", "function"},
      {"inputs", "input"},      {"results", "result"},       {"commands", "command"},
      {"then", "then command"}, {"else", "else command"},    {"adapters", "adapter"},
      {"assets", "asset"},      {"sections", "section"},     {"strings", "string"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (strcmp(key, names[i][0]) == 0)
      return names[i][1];
  }
  return NULL;
}

static bool is_commands(const char* key) {
  return strcmp(key, "commands") == 0 || strcmp(key, "then") == 0 || strcmp(key, "else") == 0;
}

/* The name of an element among its siblings, or NULL. */
static const char* title_of(const accx_node_t* node) {
  const char* name = node->kind == ACCX_NODE_WORD ? node->text : accx_node_word(node, "name");
  return name != NULL ? name : accx_node_word(node, "slot");
}

static const struct {
  const char* word;
  bool has_callee; /* the word's value is the name of a kernel or function */
} heads[] = {
#define DEF_COMMAND(number, name, word, bytes, operands, ...) {word, operands},
#include "format/format.def"
    {"opcode", false}};
#define HEAD_COUNT (sizeof heads / sizeof heads[0])

/* The kind of a command, and its kernel or function. */
static size_t head_of(const accx_node_t* map, const char** out_of) {
  size_t i = 0;
  while (i < HEAD_COUNT && accx_node_peek(map, heads[i].word) == NULL)
    ++i;
  *out_of = i < HEAD_COUNT && heads[i].has_callee ? accx_node_word(map, heads[i].word) : NULL;
  return i;
}

/* Writes " (dispatch 'k')" for a command, " (cuda sm_90)" for a variant. */
static void put_kind(char* kind, size_t capacity, const char* key, const accx_node_t* node) {
  const char* of;
  kind[0] = '\0';
  if (is_commands(key)) {
    const size_t head = head_of(node, &of);
    const char* name = accx_node_word(node, "name");
    (void)snprintf(kind, capacity, " (%s%s%s%s%s)", head < HEAD_COUNT ? heads[head].word : "?",
                   of != NULL ? " " : "", of != NULL ? ACCX_SHOW(of) : "", name != NULL ? " " : "",
                   name != NULL ? ACCX_SHOW(name) : "");
  } else if (strcmp(key, "variants") == 0) {
    const char* driver = accx_node_word(node, "driver");
    const char* arch = accx_node_word(node, "arch");
    value_t value = {"", 0};
    put(&value, driver != NULL && is_plain(driver) ? driver : "?");
    put(&value, arch != NULL ? " " : "");
    put(&value, arch != NULL ? (is_plain(arch) ? arch : ACCX_SHOW(arch)) : "");
    (void)snprintf(kind, capacity, " (%.300s)", value.text);
  }
}

static void put_element(char where[MAX_WHERE_BYTES], const char* outer, const char* key,
                        const accx_node_t* node, uint32_t index, uint32_t index_in_b) {
  const char* name = element_name(key) != NULL ? element_name(key) : key;
  const char* title = is_commands(key) ? NULL : title_of(node);
  const char* target = accx_node_word(node, "target");
  const char* comma = outer[0] != '\0' ? ", " : "";
  char kind[2 * ACCX_SHOWN_BYTES + 40], other[32] = "";
  put_kind(kind, sizeof kind, key, node);
  if (index_in_b != NONE && index_in_b != index)
    (void)snprintf(other, sizeof other, " (%" PRIu32 " in B)", index_in_b);
  if (title != NULL)
    (void)snprintf(where, MAX_WHERE_BYTES, "%s%s%s %s%s%s", outer, comma, name, ACCX_SHOW(title),
                   target != NULL ? " for " : "", target != NULL ? ACCX_SHOW(target) : "");
  else
    (void)snprintf(where, MAX_WHERE_BYTES, "%s%s%s %" PRIu32 "%s%s", outer, comma, name, index,
                   kind, other);
}

static void put_key(char where[MAX_WHERE_BYTES], const char* outer, const char* key) {
  (void)snprintf(where, MAX_WHERE_BYTES, "%s%s%s", outer, outer[0] != '\0' ? ", " : "",
                 is_plain(key) ? key : ACCX_SHOW(key));
}

/* ---- Equality: the first argument is of A, the second of B ---- */

static bool is_text_key(const char* key) {
  static const char* const keys[] = {"name",  "doc",    "marker",   "dispatch", "call",
                                     "input", "result", "constant", "state",    "media_type"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    if (strcmp(key, keys[i]) == 0)
      return true;
  }
  return false;
}

/* Compares expressions. Their names (`$e0`) are numbers that change when a name is added before. */
static bool equal_expression(const differ_t* differ, const char* a, const char* b) {
  bool quoted = false;
  for (; *a != '\0' && *a == *b; ++a, ++b) {
    quoted = quoted != (*a == '`');
    if (quoted || a[0] != '$' || a[1] != 'e' || b[1] != 'e')
      continue;
    char *end_a, *end_b;
    const unsigned long one = strtoul(a + 2, &end_a, 10), two = strtoul(b + 2, &end_b, 10);
    if (two >= differ->let_count || differ->lets[two] != one)
      return false;
    a = end_a - 1;
    b = end_b - 1;
  }
  return *a == *b;
}

/* `key`: key of the compared values; `without`: a key that may differ, or NULL. */
static bool equal_but(const differ_t* differ, const char* key, const accx_node_t* a,
                      const accx_node_t* b, const char* without) {
  if (a->kind == ACCX_NODE_WORD && b->kind == ACCX_NODE_WORD && strcmp(key, "location") == 0) {
    const accx_node_t* one = place_of(differ->places_a, differ->place_count_a, a);
    const accx_node_t* two = place_of(differ->places_b, differ->place_count_b, b);
    return one != a && two != b && equal_but(differ, "", one, two, NULL);
  }
  if (a->kind != b->kind || a->count != b->count)
    return false;
  if (a->kind == ACCX_NODE_WORD)
    return is_text_key(key) || differ->lets == NULL ? strcmp(a->text, b->text) == 0
                                                    : equal_expression(differ, a->text, b->text);
  const accx_node_t* other = b->first;
  for (const accx_node_t* node = a->first; node != NULL; node = node->next, other = other->next) {
    if (a->kind == ACCX_NODE_LIST && !equal_but(differ, key, node, other, NULL))
      return false;
    if (a->kind == ACCX_NODE_LIST)
      continue;
    if (strcmp(node->text, other->text) != 0 ||
        (!(without != NULL && strcmp(node->text, without) == 0) &&
         !equal_but(differ, node->text, node->next, other->next, NULL)))
      return false;
    node = node->next;
    other = other->next;
  }
  return true;
}

static bool equal(const differ_t* differ, const char* key, const accx_node_t* a,
                  const accx_node_t* b) {
  return equal_but(differ, key, a, b, NULL);
}

static bool same_word(const char* a, const char* b) {
  return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* ---- Equality of elements ---- */

typedef bool (*same_t)(const differ_t* differ, const accx_node_t* a, const accx_node_t* b);

static bool same_all(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  return equal(differ, "", a, b);
}

/* Compares all keys but `after`, whose numbers change when a command is added before. Only one of
 * the commands may have it. */
static bool same_command(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  const accx_node_t *one = a->first, *two = b->first;
  for (;;) {
    while (one != NULL && strcmp(one->text, "after") == 0)
      one = one->next->next;
    while (two != NULL && strcmp(two->text, "after") == 0)
      two = two->next->next;
    if (one == NULL || two == NULL)
      return one == two;
    if (strcmp(one->text, two->text) != 0 || !equal(differ, one->text, one->next, two->next))
      return false;
    one = one->next->next;
    two = two->next->next;
  }
}

static bool same_opcode(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  const char *of_a, *of_b;
  (void)differ;
  return head_of(a, &of_a) == head_of(b, &of_b);
}

static bool same_head(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  const char *of_a, *of_b;
  (void)head_of(a, &of_a);
  (void)head_of(b, &of_b);
  return same_opcode(differ, a, b) && same_word(of_a, of_b) &&
         same_word(accx_node_word(a, "name"), accx_node_word(b, "name"));
}

static bool same_variant(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  (void)differ;
  return same_word(accx_node_word(a, "driver"), accx_node_word(b, "driver")) &&
         same_word(accx_node_word(a, "arch"), accx_node_word(b, "arch"));
}

static bool same_place(const differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  return differ != NULL && a->kind == b->kind;
}

/* ---- Elements without names ---- */

/* Two lists, and for each element of A its counterpart in B. */
typedef struct sequence {
  const accx_node_t **a, **b;
  uint32_t count_a, count_b;
  uint32_t* of_a; /* index in B, or NONE */
} sequence_t;

static void fill(const accx_node_t* list, const accx_node_t** out) {
  for (const accx_node_t* node = list->first; node != NULL; node = node->next)
    *out++ = node;
}

/* Pairs the longest common subsequence of a range of both lists. A range that is too long for that
 * gets pairs of equal elements at equal positions. */
static void pair_range(differ_t* differ, sequence_t* sequence, uint32_t a, uint32_t end_a,
                       uint32_t b, uint32_t end_b, same_t same) {
  while (a < end_a && b < end_b && same(differ, sequence->a[a], sequence->b[b]))
    sequence->of_a[a++] = b++;
  while (a < end_a && b < end_b && same(differ, sequence->a[end_a - 1], sequence->b[end_b - 1]))
    sequence->of_a[--end_a] = --end_b;
  const uint32_t n = end_a - a, m = end_b - b;
  if (n == 0 || m == 0)
    return;
  if ((uint64_t)n * m > MAX_PAIRS) {
    for (uint32_t i = 0; i < n && i < m; ++i) {
      if (same(differ, sequence->a[a + i], sequence->b[b + i]))
        sequence->of_a[a + i] = b + i;
    }
    return;
  }
  /* longest[i][j]: length for the ranges that begin at i and j. */
  uint32_t* longest = take(differ, (size_t)(n + 1) * (m + 1), sizeof *longest);
  if (longest == NULL)
    return;
  for (uint32_t i = n; i-- > 0;) {
    for (uint32_t j = m; j-- > 0;) {
      const uint32_t down = longest[(i + 1) * (m + 1) + j], right = longest[i * (m + 1) + j + 1];
      longest[i * (m + 1) + j] = same(differ, sequence->a[a + i], sequence->b[b + j])
                                     ? longest[(i + 1) * (m + 1) + j + 1] + 1
                                 : down > right ? down
                                                : right;
    }
  }
  for (uint32_t i = 0, j = 0; i < n && j < m;) {
    if (same(differ, sequence->a[a + i], sequence->b[b + j]))
      sequence->of_a[a + i++] = b + j++;
    else if (longest[(i + 1) * (m + 1) + j] >= longest[i * (m + 1) + j + 1])
      ++i;
    else
      ++j;
  }
  free(longest);
}

/* Pairs the elements between the existing pairs. */
static void pair_rest(differ_t* differ, sequence_t* sequence, same_t same) {
  uint32_t b = 0;
  for (uint32_t a = 0; a < sequence->count_a;) {
    uint32_t end = a;
    while (end < sequence->count_a && sequence->of_a[end] == NONE)
      ++end;
    const uint32_t end_b = end < sequence->count_a ? sequence->of_a[end] : sequence->count_b;
    pair_range(differ, sequence, a, end, b, end_b, same);
    b = end_b + 1;
    a = end + 1;
  }
}

/* Writes the numbers in `after` as B's numbers, without commands that B does not have. */
static void put_after(value_t* value, const sequence_t* sequence, const accx_node_t* after,
                      bool in_b) {
  const char* comma = "";
  put(value, "[");
  for (const accx_node_t* node = after != NULL ? after->first : NULL; node != NULL;
       node = node->next) {
    char text[16];
    uint32_t index = (uint32_t)strtoul(node->text, NULL, 10);
    if (!in_b)
      index = index < sequence->count_a ? sequence->of_a[index] : NONE;
    if (index == NONE)
      continue;
    (void)snprintf(text, sizeof text, "%s%" PRIu32, comma, index);
    put(value, text);
    comma = ", ";
  }
  put(value, "]");
}

static void compare_after(differ_t* differ, const char* where, const sequence_t* sequence,
                          const accx_node_t* a, const accx_node_t* b) {
  value_t one = {"", 0}, two = {"", 0};
  put_after(&one, sequence, accx_node_peek(a, "after"), false);
  put_after(&two, sequence, accx_node_peek(b, "after"), true);
  if (strcmp(one.text, two.text) != 0)
    say(differ, "%s, after: %s in A, %s in B (as B numbers commands)", where, one.text, two.text);
}

static void compare_maps(differ_t* differ, const char* where, const accx_node_t* a,
                         const accx_node_t* b, const char* without);

static void compare_pairs(differ_t* differ, const char* where, const char* key,
                          const sequence_t* sequence) {
  char inner[MAX_WHERE_BYTES];
  uint32_t b = 0;
  for (uint32_t a = 0; a <= sequence->count_a; ++a) {
    const uint32_t other = a < sequence->count_a ? sequence->of_a[a] : sequence->count_b;
    if (other == NONE) {
      put_element(inner, where, key, sequence->a[a], a, NONE);
      say_only(differ, 'A', inner, key, sequence->a[a]);
      continue;
    }
    for (; b < other; ++b) {
      put_element(inner, where, key, sequence->b[b], b, NONE);
      say_only(differ, 'B', inner, key, sequence->b[b]);
    }
    if (a == sequence->count_a)
      break;
    b = other + 1;
    put_element(inner, where, key, sequence->a[a], a, other);
    if (is_commands(key)) {
      compare_maps(differ, inner, sequence->a[a], sequence->b[other], "after");
      compare_after(differ, inner, sequence, sequence->a[a], sequence->b[other]);
    } else {
      compare(differ, inner, key, sequence->a[a], sequence->b[other]);
    }
  }
}

static void compare_in_order(differ_t* differ, const char* where, const char* key,
                             const accx_node_t* a, const accx_node_t* b) {
  sequence_t sequence = {take(differ, a->count, sizeof *sequence.a),
                         take(differ, b->count, sizeof *sequence.b), a->count, b->count,
                         take(differ, a->count, sizeof *sequence.of_a)};
  if (!differ->failed) {
    fill(a, sequence.a);
    fill(b, sequence.b);
    memset(sequence.of_a, 0xFF, a->count * sizeof *sequence.of_a);
    if (is_commands(key)) {
      pair_range(differ, &sequence, 0, a->count, 0, b->count, same_command);
      pair_rest(differ, &sequence, same_head);
      pair_rest(differ, &sequence, same_opcode);
    } else {
      pair_range(differ, &sequence, 0, a->count, 0, b->count, same_all);
      if (strcmp(key, "strings") != 0)
        pair_rest(differ, &sequence, strcmp(key, "variants") == 0 ? same_variant : same_place);
    }
    compare_pairs(differ, where, key, &sequence);
  }
  free(sequence.a);
  free(sequence.b);
  free(sequence.of_a);
}

/* ---- Elements with names ---- */

typedef struct named {
  const accx_node_t* node;
  struct named* like; /* counterpart in the other list */
  uint32_t index;
} named_t;

static int by_name(const void* a, const void* b) {
  const named_t *one = *(named_t*const*)a, *two = *(named_t*const*)b;
  int order = strcmp(title_of(one->node), title_of(two->node));
  if (order == 0) {
    const char *target = accx_node_word(one->node, "target"),
               *other = accx_node_word(two->node, "target");
    order = strcmp(target != NULL ? target : "", other != NULL ? other : "");
  }
  return order;
}

static int by_name_in_order(const void* a, const void* b) {
  const named_t *one = *(named_t*const*)a, *two = *(named_t*const*)b;
  const int order = by_name(a, b);
  return order != 0 ? order : one->index < two->index ? -1 : 1;
}

/* `elements` gets the list's elements, `sorted` the same by name. */
static void list_named(const accx_node_t* list, named_t* elements, named_t** sorted) {
  uint32_t i = 0;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next, ++i) {
    elements[i] = (named_t){node, NULL, i};
    sorted[i] = &elements[i];
  }
  if (i > 0)
    qsort(sorted, i, sizeof *sorted, by_name_in_order);
}

static void pair_named(named_t** a, uint32_t count_a, named_t** b, uint32_t count_b) {
  for (uint32_t i = 0, j = 0; i < count_a && j < count_b;) {
    const int order = by_name(&a[i], &b[j]);
    if (order == 0) {
      a[i]->like = b[j];
      b[j]->like = a[i];
    }
    i += order <= 0;
    j += order >= 0;
  }
}

/* Reports elements that differ only in their names. */
static void say_renamed(differ_t* differ, const char* where, const char* key, named_t* a,
                        uint32_t count_a, named_t* b, uint32_t count_b) {
  char inner[MAX_WHERE_BYTES];
  uint64_t left = MAX_PAIRS;
  for (uint32_t i = 0; i < count_a; ++i) {
    for (uint32_t j = 0; j < count_b && a[i].like == NULL && left > 0; ++j, --left) {
      if (b[j].like != NULL || !equal_but(differ, "", a[i].node, b[j].node, "name"))
        continue;
      a[i].like = &b[j];
      b[j].like = &a[i];
      put_element(inner, where, key, a[i].node, i, NONE);
      say(differ, "%s is named %s in B", inner, ACCX_SHOW(title_of(b[j].node)));
    }
  }
}

static void put_order(value_t* value, const named_t* elements, uint32_t count) {
  const char* comma = "";
  for (uint32_t i = 0; i < count; ++i) {
    if (elements[i].like == NULL)
      continue;
    put(value, comma);
    put(value, ACCX_SHOW(title_of(elements[i].node)));
    comma = ", ";
  }
}

/* Reports a different order, which matters where callers refer to elements by number. */
static void compare_order(differ_t* differ, const char* where, const char* key, const named_t* a,
                          uint32_t count_a, const named_t* b, uint32_t count_b) {
  uint32_t last = 0;
  bool ascending = true;
  for (uint32_t i = 0; i < count_a; ++i) {
    if (a[i].like == NULL)
      continue;
    ascending = ascending && a[i].like->index >= last;
    last = a[i].like->index;
  }
  if (ascending)
    return;
  value_t one = {"", 0}, two = {"", 0};
  put_order(&one, a, count_a);
  put_order(&two, b, count_b);
  say(differ, "%s%s%s, order: %s in A, %s in B", where, where[0] != '\0' ? ", " : "", key, one.text,
      two.text);
}

static void say_named(differ_t* differ, const char* where, const char* key, named_t* a,
                      uint32_t count_a, named_t* b, uint32_t count_b) {
  char inner[MAX_WHERE_BYTES];
  say_renamed(differ, where, key, a, count_a, b, count_b);
  for (uint32_t i = 0; i < count_a; ++i) {
    put_element(inner, where, key, a[i].node, i, NONE);
    if (a[i].like == NULL)
      say_only(differ, 'A', inner, key, a[i].node);
    else if (same_word(title_of(a[i].node), title_of(a[i].like->node))) {
      differ->constant = strcmp(key, "constants") == 0 ? title_of(a[i].node) : NULL;
      compare(differ, inner, key, a[i].node, a[i].like->node);
      differ->constant = NULL;
    }
  }
  for (uint32_t i = 0; i < count_b; ++i) {
    put_element(inner, where, key, b[i].node, i, NONE);
    if (b[i].like == NULL)
      say_only(differ, 'B', inner, key, b[i].node);
  }
  compare_order(differ, where, key, a, count_a, b, count_b);
}

static void compare_named(differ_t* differ, const char* where, const char* key,
                          const accx_node_t* a, const accx_node_t* b) {
  named_t* one = take(differ, a->count, sizeof *one);
  named_t* two = take(differ, b->count, sizeof *two);
  named_t** sorted_a = take(differ, a->count, sizeof *sorted_a);
  named_t** sorted_b = take(differ, b->count, sizeof *sorted_b);
  if (!differ->failed) {
    list_named(a, one, sorted_a);
    list_named(b, two, sorted_b);
    pair_named(sorted_a, a->count, sorted_b, b->count);
    say_named(differ, where, key, one, a->count, two, b->count);
  }
  free(one);
  free(two);
  free(sorted_a);
  free(sorted_b);
}

/* ---- Nodes ---- */

static bool all_named(const accx_node_t* list) {
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (node->kind != ACCX_NODE_MAP || title_of(node) == NULL)
      return false;
  }
  return true;
}

/* Compares the values of a key. If one map lacks the key, its list of elements counts as empty. */
static void compare_key(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                        const accx_node_t* b) {
  static const accx_node_t no_list = {.kind = ACCX_NODE_LIST}, no_map = {.kind = ACCX_NODE_MAP};
  char inner[MAX_WHERE_BYTES];
  put_key(inner, where, key);
  const bool is_component =
      a != NULL && a->kind == ACCX_NODE_MAP && accx_word_find(&accx_words_role, key, &differ->role);
  if (element_name(key) != NULL)
    compare(differ, where, key, a != NULL ? a : &no_list, b != NULL ? b : &no_list);
  else if (strcmp(key, "metadata") == 0)
    compare(differ, inner, key, a != NULL ? a : &no_map, b != NULL ? b : &no_map);
  else if (a != NULL && b != NULL)
    compare(differ, inner, key, a, b);
  else
    say_only(differ, a != NULL ? 'A' : 'B', inner, key, a != NULL ? a : b);
  if (is_component)
    differ->role = 0;
}

static void compare_maps(differ_t* differ, const char* where, const accx_node_t* a,
                         const accx_node_t* b, const char* without) {
  for (const accx_node_t* key = a->first; key != NULL; key = key->next->next) {
    if (without == NULL || strcmp(key->text, without) != 0)
      compare_key(differ, where, key->text, key->next, accx_node_peek(b, key->text));
  }
  for (const accx_node_t* key = b->first; key != NULL; key = key->next->next) {
    if (accx_node_peek(a, key->text) == NULL &&
        (without == NULL || strcmp(key->text, without) != 0))
      compare_key(differ, where, key->text, NULL, key->next);
  }
}

/* ---- Functions ---- */

/* Finds A's counterpart for each of B's names in `let`: a name for the same expression, or else the
 * name at the same position if both have as many names. A name depends only on those before it. */
static void pair_lets(differ_t* differ, const char* where, const accx_node_t* a,
                      const accx_node_t* b, uint32_t* lets) {
  char inner[MAX_WHERE_BYTES];
  const accx_node_t* same = a != NULL ? a->first : NULL;
  differ->lets = lets;
  for (const accx_node_t* key = b != NULL ? b->first : NULL; key != NULL; key = key->next->next) {
    const uint32_t number = differ->let_count;
    const accx_node_t* like = a != NULL ? a->first : NULL;
    while (like != NULL && !equal(differ, "", like->next, key->next))
      like = like->next->next;
    const bool changed = like == NULL && same != NULL && a->count == b->count;
    if (changed)
      like = same;
    lets[number] = like != NULL ? (uint32_t)strtoul(like->text + 1, NULL, 10) : NONE;
    ++differ->let_count;
    if (changed) {
      put_key(inner, where, like->text);
      say_values(differ, inner, "let", like->next, key->next);
    }
    if (same != NULL)
      same = same->next->next;
  }
}

static void compare_functions(differ_t* differ, const char* where, const accx_node_t* a,
                              const accx_node_t* b) {
  const accx_node_t *one = accx_node_peek(a, "let"), *two = accx_node_peek(b, "let");
  uint32_t* lets = take(differ, two != NULL ? two->count : 0, sizeof *lets);
  if (lets != NULL) {
    pair_lets(differ, where, one, two, lets);
    compare_maps(differ, where, a, b, "let");
  }
  differ->lets = NULL;
  differ->let_count = 0;
  free(lets);
}

/* Compares texts without looking up the names in them. */
static bool same_text(const accx_node_t* a, const accx_node_t* b) {
  static const differ_t nothing;
  return equal(&nothing, "", a, b);
}

static void compare(differ_t* differ, const char* where, const char* key, const accx_node_t* a,
                    const accx_node_t* b) {
  const bool lists = a->kind == ACCX_NODE_LIST && b->kind == ACCX_NODE_LIST;
  if (differ->failed ||
      (differ->lets == NULL && strcmp(key, "functions") == 0 && !lists ? same_text(a, b)
                                                                       : equal(differ, key, a, b)))
    return;
  if (strcmp(key, "functions") == 0 && !lists)
    compare_functions(differ, where, a, b);
  else if (is_bytes(key, a) && is_bytes(key, b))
    say_values(differ, where, key, a, b);
  else if (a->kind == ACCX_NODE_MAP && b->kind == ACCX_NODE_MAP)
    compare_maps(differ, where, a, b, NULL);
  else if (lists && element_name(key) != NULL && !is_commands(key) && all_named(a) && all_named(b))
    compare_named(differ, where, key, a, b);
  else if (lists && element_name(key) != NULL)
    compare_in_order(differ, where, key, a, b);
  else
    say_values(differ, where, key, a, b);
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

/* Compares the headers, whose digest covers all other digests. */
static bool same_bytes(const char* path_a, const char* path_b) {
  const char* const paths[2] = {path_a, path_b};
  accx_header_t headers[2];
  for (int i = 0; i < 2; ++i) {
    const int fd = open(paths[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const bool good = fd >= 0 && pread(fd, &headers[i], sizeof headers[i], 0) == sizeof headers[i];
    if (fd >= 0)
      (void)close(fd);
    if (!good)
      return true; /* the file vanished: compare what was read */
  }
  return memcmp(&headers[0], &headers[1], sizeof headers[0]) == 0;
}

static const accx_node_t** places_of(differ_t* differ, const accx_node_t* root,
                                     uint32_t* out_count) {
  const accx_node_t* list = accx_node_peek(root, "locations");
  const accx_node_t** places = take(differ, list != NULL ? list->count : 0, sizeof *places);
  *out_count = list != NULL && places != NULL ? list->count : 0;
  if (*out_count > 0)
    fill(list, places);
  return places;
}

static void compare_roots(differ_t* differ, const accx_node_t* a, const accx_node_t* b) {
  differ->places_a = places_of(differ, a, &differ->place_count_a);
  differ->places_b = places_of(differ, b, &differ->place_count_b);
  if (!differ->failed)
    compare_maps(differ, "", a, b, "locations");
  if (differ->place_count_a != differ->place_count_b)
    say(differ, "locations: %" PRIu32 " in A, %" PRIu32 " in B", differ->place_count_a,
        differ->place_count_b);
  free(differ->places_a);
  free(differ->places_b);
}

bool accx_text_compare(accrt_instance_t* instance, const char* path_a, const char* path_b,
                       FILE* out, uint64_t* out_count, accx_text_error_t* error) {
  accx_tree_t *tree_a = NULL, *tree_b = NULL;
  accx_node_t *a = NULL, *b = NULL;
  differ_t differ = {.out = out};
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.verify = ACCRT_VERIFY_NO_DATA;
  bool good = read_tree(instance, path_a, &tree_a, &a, error) &&
              read_tree(instance, path_b, &tree_b, &b, error);
  if (good && accrt_weights_open_path(instance, path_a, &options, &differ.a) == ACCRT_OK &&
      accrt_weights_open_path(instance, path_b, &options, &differ.b) != ACCRT_OK)
    differ.b = NULL;
  if (good)
    compare_roots(&differ, a, b);
  if (good && differ.failed)
    good = accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to compare");
  if (good && differ.count == 0 && !same_bytes(path_a, path_b))
    say(&differ, "the same, but in another order or with places that no command has");
  *out_count = differ.count;
  accrt_weights_release(differ.a);
  accrt_weights_release(differ.b);
  accx_tree_free(tree_a);
  accx_tree_free(tree_b);
  return good;
}
