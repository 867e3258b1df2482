/* write/text/build_place.c - finds the place of a text for a message of the library. Messages refer
 * to parts in words ("function 'f', command 2 (copy 'c')", "images[0]: 'code'"), and a text has a
 * place for each name. See build.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "write/text/build.h"

#define MAX_NAMED_BYTES 64 /* of a name, in messages */

/* ---- Names in messages ---- */

/* Finds "KIND 'NAME'" in a message; NULL when it is missing. */
static const char* find_named(const char* message, const char* kind, const char* name) {
  char wanted[MAX_NAMED_BYTES + 40];
  (void)snprintf(wanted, sizeof wanted, "%.30s%s'%.*s'", kind, kind[0] != '\0' ? " " : "",
                 MAX_NAMED_BYTES, name);
  return strstr(message, wanted);
}

/* The element of a list of maps, or the key of a map, that a message names. */
static const accx_node_t* find_part(const accx_node_t* parts, const char* kind, const char* key,
                                    const char* message) {
  const bool is_map = parts != NULL && parts->kind == ACCX_NODE_MAP;
  for (const accx_node_t* at = parts != NULL ? parts->first : NULL; at != NULL;
       at = is_map ? at->next->next : at->next) {
    const char* name = is_map ? at->text : accx_node_word(at, key);
    if (name != NULL && find_named(message, kind, name) != NULL)
      return at;
  }
  return NULL;
}

bool accx_node_fail_part(accx_builder_t* builder, const accx_node_t* node, const char* kind,
                         const accx_node_t* parts, accrt_status_t status) {
  (void)accx_text_fail_call(builder->error, status, NULL);
  const accx_node_t* part = find_part(parts, kind, "name", builder->error->message);
  const accx_node_t* place = part != NULL ? part : node;
  builder->error->line = place->line;
  builder->error->column = place->column;
  return false;
}

/* ---- The whole text ---- */

/* The part of a text for each kind of section. */
typedef struct about {
  const char* section;
  accx_name_kind_t kind;
  const char* word; /* in the writer's messages; NULL: belongs to another part */
} about_t;

static const about_t abouts[] = {{"functions", ACCX_NAME_FUNCTION, "function"},
                                 {"arguments", ACCX_NAME_FUNCTION, NULL},
                                 {"slots", ACCX_NAME_FUNCTION, NULL},
                                 {"commands", ACCX_NAME_FUNCTION, NULL},
                                 {"kernels", ACCX_NAME_KERNEL, "kernel"},
                                 {"parameters", ACCX_NAME_KERNEL, NULL},
                                 {"variants", ACCX_NAME_KERNEL, NULL},
                                 {"predicates", ACCX_NAME_KERNEL, NULL},
                                 {"images", ACCX_NAME_IMAGE, "image"},
                                 {"constants", ACCX_NAME_CONSTANT, "constant"},
                                 {"components", ACCX_NAME_CONSTANT, NULL},
                                 {"shards", ACCX_NAME_CONSTANT, NULL},
                                 {"states", ACCX_NAME_STATE, "state"},
                                 {"symbols", ACCX_NAME_SYMBOL, "symbol"},
                                 {"files", ACCX_NAME_FILE, "file"}};
#define ABOUT_COUNT (sizeof abouts / sizeof abouts[0])

/* The name of a kind that comes first in a message. Of two at one place, the longer one. */
static const accx_name_t* find_name(const accx_builder_t* builder, accx_name_kind_t kind,
                                    const char* word, const char* message, const char** out_at) {
  const accx_name_t* found = NULL;
  const char* first = NULL;
  for (uint32_t i = 0; i < builder->name_capacity; ++i) {
    const accx_name_t* name = builder->names[i];
    if (name == NULL || name->kind != kind)
      continue;
    const char* at = find_named(message, word, name->name);
    if (at == NULL || (first != NULL && at > first) ||
        (at == first && strlen(name->name) < strlen(found->name)))
      continue;
    /* Of several versions of a function, use the one whose target the message has as well. */
    if (at == first && strcmp(name->name, found->name) == 0 && name->target[0] != '\0' &&
        find_named(message, "for", name->target) == NULL)
      continue;
    found = name;
    first = at;
  }
  *out_at = first;
  return found;
}

/* True when the message calls the command "OPCODE 'NAME'". */
static bool is_command(const accx_node_t* map, const char* message) {
  for (uint32_t i = 0; i < accx_words_opcode.count; ++i) {
    const char* word = accx_words_opcode.words[i].word;
    const accx_node_t* head = accx_node_peek(map, word);
    if (head == NULL)
      continue;
    const char* name = accx_node_word(map, "name");
    const bool named = strcmp(word, "dispatch") == 0 || strcmp(word, "call") == 0;
    return find_named(message, word, name != NULL ? name : named ? head->text : "") != NULL;
  }
  return false;
}

/* Searches a list of commands, and the lists in it, for the command that a message names. *out is
 * the last match, and *out_count the number of matches. */
static void find_commands(const accx_node_t* list, const char* message, const accx_node_t** out,
                          uint32_t* out_count) {
  static const char* const inner[] = {"commands", "then", "else"};
  for (const accx_node_t* at = list != NULL && list->kind == ACCX_NODE_LIST ? list->first : NULL;
       at != NULL; at = at->next) {
    if (is_command(at, message)) {
      *out = at;
      ++*out_count;
    }
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; ++i)
      find_commands(accx_node_peek(at, inner[i]), message, out, out_count);
  }
}

static const accx_node_t* within_function(const accx_node_t* map, const char* message) {
  const accx_node_t* command = NULL;
  uint32_t count = 0;
  const accx_node_t* part = find_part(accx_node_peek(map, "inputs"), "", "name", message);
  if (strncmp(message, "arguments", 9) == 0 && part == NULL)
    part = find_part(accx_node_peek(map, "results"), "", "name", message);
  if (strncmp(message, "arguments", 9) == 0 && part != NULL)
    return part;
  find_commands(accx_node_peek(map, "commands"), message, &command, &count);
  return count == 1 ? command : map;
}

static const accx_node_t* within(const accx_name_t* name, const char* message) {
  if (name->kind == ACCX_NAME_FUNCTION)
    return within_function(name->node, message);
  const accx_node_t* part =
      strncmp(message, "parameters", 10) == 0
          ? find_part(accx_node_peek(name->node, "parameters"), "", "name", message)
          : NULL;
  return part != NULL ? part : name->node;
}

/* ---- By number ---- */

/* A message without a name has the number of a record. The bundle sorts records by name. */
static int by_name(const void* a, const void* b) {
  return strcmp((*(const accx_name_t* const*)a)->name, (*(const accx_name_t* const*)b)->name);
}

/* The owner of part `index`, when the parts of all names of a kind are numbered in sequence.
 * `parts_of` gives the number of parts of a name. */
static const accx_name_t* owner_of(const accx_builder_t* builder, accx_name_kind_t kind,
                                   uint32_t (*parts_of)(const accx_node_t* map), uint32_t index) {
  const accx_name_t** names = malloc((builder->name_count + (size_t)1) * sizeof *names);
  const accx_name_t* owner = NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; names != NULL && i < builder->name_capacity; ++i) {
    if (builder->names[i] != NULL && builder->names[i]->kind == kind)
      names[count++] = builder->names[i];
  }
  if (count > 0)
    qsort(names, count, sizeof(const accx_name_t*), by_name);
  for (uint32_t i = 0; i < count && owner == NULL; ++i) {
    const uint32_t parts = parts_of(names[i]->node);
    if (index < parts)
      owner = names[i];
    index -= parts;
  }
  free(names);
  return owner;
}

static uint32_t count_of(const accx_node_t* map, const char* key) {
  const accx_node_t* list = accx_node_peek(map, key);
  return list != NULL ? list->count : 0;
}
static uint32_t variants_of(const accx_node_t* map) {
  return count_of(map, "variants");
}
static uint32_t shards_of(const accx_node_t* map) {
  return accx_node_peek(map, "shard") != NULL;
}
static uint32_t segments_of(const accx_node_t* map) {
  return count_of(accx_node_peek(map, "shard"), "segments");
}

static const accx_node_t* place_of_number(const accx_builder_t* builder, const char* section,
                                          const char* message) {
  const accx_name_t* owner = NULL;
  const accx_node_t* part;
  uint32_t index = 0;
  if (sscanf(message, "launches[%*u]%*[^:]: variant %" SCNu32, &index) == 1 ||
      sscanf(message, "launches[%*u]: variant %" SCNu32, &index) == 1)
    owner = owner_of(builder, ACCX_NAME_KERNEL, variants_of, index);
  else if (strcmp(section, "shards") == 0 && sscanf(message, "shards[%" SCNu32, &index) == 1)
    owner = owner_of(builder, ACCX_NAME_CONSTANT, shards_of, index);
  else if (strcmp(section, "segments") == 0 && sscanf(message, "segments[%" SCNu32, &index) == 1)
    owner = owner_of(builder, ACCX_NAME_CONSTANT, segments_of, index);
  if (owner == NULL)
    return NULL;
  part = accx_node_peek(owner->node, "shard");
  return owner->kind == ACCX_NAME_CONSTANT && part != NULL ? part : owner->node;
}

/* For a message "SECTION[INDEX].field: ..." of the verifier. */
static const accx_node_t* place_of_record(const accx_builder_t* builder, const accx_node_t* root,
                                          const char* section, const char* message) {
  static const char* const keys[] = {"name", "slot", "input"};
  const char* at;
  for (size_t i = 0; i < ABOUT_COUNT; ++i) {
    const accx_name_t* name = strcmp(section, abouts[i].section) == 0
                                  ? find_name(builder, abouts[i].kind, "", message, &at)
                                  : NULL;
    if (name != NULL)
      return within(name, message);
  }
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    const accx_node_t* list = accx_node_peek(root, section);
    const accx_node_t* part = find_part(list, "", keys[i], message);
    if (part != NULL)
      return part;
  }
  return place_of_number(builder, section, message);
}

/* For a message "KIND 'NAME', ..." of the writer: the place of the first name. */
static const accx_node_t* place_of_words(const accx_builder_t* builder, const char* message) {
  const accx_name_t* found = NULL;
  const char* first = NULL;
  for (size_t i = 0; i < ABOUT_COUNT; ++i) {
    const char* at = NULL;
    const accx_name_t* name = abouts[i].word != NULL
                                  ? find_name(builder, abouts[i].kind, abouts[i].word, message, &at)
                                  : NULL;
    if (name == NULL || (first != NULL && at > first))
      continue;
    found = name;
    first = at;
  }
  return found != NULL ? within(found, message) : NULL;
}

bool accx_node_fail_whole(accx_builder_t* builder, const accx_node_t* root, accrt_status_t status) {
  static const char prefix[] = "bundle: "; /* the verifier's name for a file in memory */
  accx_text_error_t* error = builder->error;
  char section[32];
  (void)accx_text_fail_call(error, status, NULL);
  if (status == ACCRT_ERROR_OUT_OF_MEMORY)
    return false;
  const size_t skipped =
      strncmp(error->message, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
  memmove(error->message, error->message + skipped, strlen(error->message) - skipped + 1);
  const bool is_record =
      sscanf(error->message, "%31[a-z_][", section) == 1 && error->message[strlen(section)] == '[';
  const accx_node_t* place =
      is_record ? place_of_record(builder, root, section, error->message) : NULL;
  if (place == NULL)
    place = place_of_words(builder, error->message);
  if (place == NULL)
    place = root;
  error->line = place->line;
  error->column = place->column;
  return false;
}
