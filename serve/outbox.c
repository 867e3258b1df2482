/* serve/outbox.c - see serve/outbox.h. */
#include "serve/outbox.h"

accrt_status_t accsv_node_new(const accrt_allocator_t* allocator, uint32_t capacity,
                              accsv_node_t** out_node) {
  *out_node = NULL;
  unsigned char* memory;
  ACCRT_TRY(ACCSV_NEW_UNSET(allocator, sizeof(accsv_node_t) + capacity, &memory));
  accsv_node_t* node = (accsv_node_t*)(void*)memory;
  node->next = NULL;
  node->capacity = capacity;
  *out_node = node;
  return ACCRT_OK;
}

void accsv_node_free(const accrt_allocator_t* allocator, accsv_node_t* node) {
  if (node != NULL)
    accsv_free(allocator, node, sizeof *node + node->capacity, 1);
}

void accsv_nodes_free(const accrt_allocator_t* allocator, accsv_nodes_t* nodes) {
  for (accsv_node_t* node = accsv_nodes_take(nodes); node != NULL; node = accsv_nodes_take(nodes))
    accsv_node_free(allocator, node);
}
