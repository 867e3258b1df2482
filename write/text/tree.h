/* write/text/tree.h - reads YAML into a tree of maps, lists and words with their line and column.
 * Words are text; the key decides their meaning. It refuses anchors, aliases, tags, further
 * documents, equal keys and deep nesting. It knows nothing of bundles. */
#ifndef ACCRT_WRITE_TEXT_TREE_H_
#define ACCRT_WRITE_TEXT_TREE_H_

#include "write/text/show.h"
#include "write/text/text.h"

typedef enum { ACCX_NODE_WORD, ACCX_NODE_MAP, ACCX_NODE_LIST } accx_node_kind_t;

typedef struct accx_node accx_node_t;
struct accx_node {
  accx_node_kind_t kind;
  uint32_t line, column; /* from 1 */
  const char* text;      /* WORD: ends with its only NUL */
  accx_node_t* first;    /* LIST: elements; MAP: keys, each followed by its value */
  accx_node_t* next;
  uint32_t count; /* LIST: elements; MAP: entries */
  bool used;      /* MAP keys: accx_node_get has returned it */
};

typedef struct accx_tree accx_tree_t;
/* *out_root is NULL for a text without content. */
bool accx_tree_read(const char* text, size_t size_bytes, accx_tree_t** out_tree,
                    accx_node_t** out_root, accx_text_error_t* error);
void accx_tree_free(accx_tree_t* tree);

/* Sets *error for a place in the text, and returns false. */
bool accx_node_fail(const accx_node_t* node, accx_text_error_t* error, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the value of a key, and marks the key as used; NULL when it is missing. `map` may be
 * NULL. */
accx_node_t* accx_node_get(accx_node_t* map, const char* key);
/* The same without marking the key. */
accx_node_t* accx_node_peek(const accx_node_t* map, const char* key);
/* The same for a word; NULL when there is none. */
const char* accx_node_word(const accx_node_t* map, const char* key);
/* The first unused key that is similar to one of some words (NULL ends the list); NULL without
 * one. */
const accx_node_t* accx_node_meant(const accx_node_t* map, const char* const* words,
                                   accx_near_t* out_near);
/* Sets *error for a map without a required key, at the map or at a key that may be a misspelling of
 * it, and returns false. */
bool accx_node_fail_missing(const accx_node_t* map, accx_text_error_t* error, const char* what,
                            const char* key);
/* False when a key was not used. The message has a similar name of `known` (NULL ends the list). */
bool accx_node_all_used(const accx_node_t* map, const char* what, const char* const* known,
                        accx_text_error_t* error);
/* The same before anything is read: keys in `known` may be unused. */
bool accx_node_all_known(const accx_node_t* map, const char* what, const char* const* known,
                         accx_text_error_t* error);

#endif /* ACCRT_WRITE_TEXT_TREE_H_ */
