/* loader/text/tree.h - YAML, read into a tree of maps, lists and words that know their line and column. Words are text: what they
 * mean depends on the key. No anchors, aliases, tags, second documents, equal keys; bounded depth. It knows nothing of bundles. */
#ifndef ACCRT_LOADER_TEXT_TREE_H_
#define ACCRT_LOADER_TEXT_TREE_H_

#include "loader/text/show.h"
#include "loader/text/text.h"

typedef enum { ACCX_NODE_WORD, ACCX_NODE_MAP, ACCX_NODE_LIST } accx_node_kind_t;

typedef struct accx_node accx_node_t;
struct accx_node {
  accx_node_kind_t kind;
  uint32_t line, column; /* from 1 */
  const char* text;      /* WORD: NUL-terminated, without NUL inside */
  accx_node_t* first;    /* LIST: elements; MAP: keys, each followed by its value */
  accx_node_t* next;
  uint32_t count; /* LIST: elements; MAP: entries */
  bool used;      /* MAP keys: something has asked for it */
};

typedef struct accx_tree accx_tree_t;
/* *out_root is NULL for a text without content. */
bool accx_tree_read(const char* text, size_t size_bytes, accx_tree_t** out_tree,
                    accx_node_t** out_root, accx_text_error_t* error);
void accx_tree_free(accx_tree_t* tree);

/* Sets *error about a place in the text, and is false. */
bool accx_node_fail(const accx_node_t* node, accx_text_error_t* error, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
/* The value of a key, which is then used; NULL when there is none. `map` may be NULL. */
accx_node_t* accx_node_get(accx_node_t* map, const char* key);
/* The same without using it. */
accx_node_t* accx_node_peek(const accx_node_t* map, const char* key);
/* The same of a word; NULL when there is none. */
const char* accx_node_word(const accx_node_t* map, const char* key);
/* The first key that nothing has asked for and that is near one of some words (which end with NULL); NULL: there is none. */
const accx_node_t* accx_node_meant(const accx_node_t* map, const char* const* words,
                                   accx_near_t* out_near);
/* The same about a map that has not what it needs, or about the key that may be meant to be that. */
bool accx_node_fail_missing(const accx_node_t* map, accx_text_error_t* error, const char* what,
                            const char* key);
/* False when a key was not used, with the name of a near one of `known` (ends with NULL) in the message. */
bool accx_node_all_used(const accx_node_t* map, const char* what, const char* const* known,
                        accx_text_error_t* error);
/* The same before anything is read: keys that are in `known` may still be. */
bool accx_node_all_known(const accx_node_t* map, const char* what, const char* const* known,
                         accx_text_error_t* error);

#endif /* ACCRT_LOADER_TEXT_TREE_H_ */
