/* serve/outbox.h - events on their way to the caller. An event has its tokens, log probabilities
 * and text in one piece of memory; pieces of the usual size are kept and used again.
 */
#ifndef ACCRT_SERVE_OUTBOX_H_
#define ACCRT_SERVE_OUTBOX_H_

#include "accrt/serve.h"
#include "serve/base.h"

typedef struct accsv_node {
  struct accsv_node* next;
  uint32_t capacity; /* bytes of `storage` */
  accrt_serve_event_t event;
  _Alignas(8) unsigned char storage[];
} accsv_node_t;

typedef struct accsv_nodes {
  accsv_node_t *head, *tail;
  uint32_t count;
} accsv_nodes_t;

/* Bytes of storage that a usual event needs: a token, six log probabilities and some text. */
#define ACCSV_NODE_USUAL 120u

static inline void accsv_nodes_put(accsv_nodes_t* nodes, accsv_node_t* node) {
  node->next = NULL;
  if (nodes->tail != NULL)
    nodes->tail->next = node;
  else
    nodes->head = node;
  nodes->tail = node;
  ++nodes->count;
}
static inline accsv_node_t* accsv_nodes_take(accsv_nodes_t* nodes) {
  accsv_node_t* node = nodes->head;
  if (node == NULL)
    return NULL;
  nodes->head = node->next;
  if (nodes->head == NULL)
    nodes->tail = NULL;
  --nodes->count;
  return node;
}
/* Moves all of `from` to the end of `to`. */
static inline void accsv_nodes_append(accsv_nodes_t* to, accsv_nodes_t* from) {
  if (from->head == NULL)
    return;
  if (to->tail != NULL)
    to->tail->next = from->head;
  else
    to->head = from->head;
  to->tail = from->tail;
  to->count += from->count;
  *from = (accsv_nodes_t){0};
}

accrt_status_t accsv_node_new(const accrt_allocator_t* allocator, uint32_t capacity,
                              accsv_node_t** out_node);
void accsv_node_free(const accrt_allocator_t* allocator, accsv_node_t* node);
void accsv_nodes_free(const accrt_allocator_t* allocator, accsv_nodes_t* nodes);

#endif /* ACCRT_SERVE_OUTBOX_H_ */
