/* serve/queue.h - who is next: priorities, and within one the tenants in turn.
 *
 * Within a priority each tenant has a flow. Flows take turns (deficit round robin): a turn brings
 * `quantum` tokens, each token that a step computes for the tenant takes one, and a flow is served
 * while it has some left. So tenants with long prompts, long answers or many requests get no more
 * tokens than others that wait. Sequences that were preempted go before all of their priority.
 *
 * It allocates when it is made and never again. Externally synchronized.
 */
#ifndef ACCRT_SERVE_QUEUE_H_
#define ACCRT_SERVE_QUEUE_H_

#include "serve/sequence.h"

#define ACCSV_LEVELS 16u /* ACCRT_SERVE_PRIORITY_FIRST to _LAST */

typedef struct accsv_flow {
  uint64_t tenant;
  int64_t deficit; /* tokens left of its turn */
  uint32_t live;   /* sequences that use it, queued or running */
  uint8_t level;
  bool active;                        /* in its level's ring: sequences of it are queued */
  accsv_sequence_t *head, *tail;      /* queued */
  struct accsv_flow *next, *previous; /* ring */
  struct accsv_flow* other;           /* in its bucket, or of the unused ones */
} accsv_flow_t;

typedef struct accsv_level {
  accsv_sequence_t *head, *tail; /* preempted */
  accsv_flow_t* current;         /* whose turn it is; NULL: no flow is active */
} accsv_level_t;

typedef struct accsv_queue {
  const accrt_allocator_t* allocator;
  accsv_level_t levels[ACCSV_LEVELS];
  accsv_flow_t* flows;
  uint32_t flow_count;
  accsv_flow_t* unused;
  accsv_flow_t** buckets;
  uint32_t bucket_count; /* a power of two */
  uint32_t quantum;
  uint32_t queued, preempted; /* sequences */
} accsv_queue_t;

/* `flows` is the most sequences that there are at once. */
accrt_status_t accsv_queue_init(accsv_queue_t* queue, const accrt_allocator_t* allocator,
                                uint32_t flows, uint32_t quantum);
void accsv_queue_deinit(accsv_queue_t* queue);

/* A sequence comes into being, and goes: its flow lives as long as its sequences. */
void accsv_queue_join(accsv_queue_t* queue, accsv_sequence_t* sequence, uint64_t tenant);
void accsv_queue_leave(accsv_queue_t* queue, accsv_sequence_t* sequence);

/* At the end of its flow. */
void accsv_queue_push(accsv_queue_t* queue, accsv_sequence_t* sequence);
/* Before all of its priority, or after those that were preempted. */
void accsv_queue_push_preempted(accsv_queue_t* queue, accsv_sequence_t* sequence, bool first);
/* The next one; NULL: none that can start now. It stays in the queue. */
accsv_sequence_t* accsv_queue_peek(accsv_queue_t* queue);
/* Takes one out that is queued or preempted. */
void accsv_queue_remove(accsv_queue_t* queue, accsv_sequence_t* sequence);
/* NULL, or what is wrong. */
const char* accsv_queue_check(const accsv_queue_t* queue);

#endif /* ACCRT_SERVE_QUEUE_H_ */
