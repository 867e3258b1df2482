/* serve/queue.c - see serve/queue.h. */
#include "serve/queue.h"

static accsv_flow_t** bucket_of(const accsv_queue_t* queue, uint64_t tenant, uint8_t level) {
  return &queue->buckets[accsv_mix(tenant * ACCSV_LEVELS + level) & (queue->bucket_count - 1)];
}

static uint8_t level_of(const accsv_sequence_t* sequence) {
  return (uint8_t)(sequence->priority + (int)ACCSV_LEVELS / 2);
}

accrt_status_t accsv_queue_init(accsv_queue_t* queue, const accrt_allocator_t* allocator,
                                uint32_t flows, uint32_t quantum) {
  *queue = (accsv_queue_t){.allocator = allocator, .flow_count = flows, .quantum = quantum};
  queue->bucket_count = 16;
  while (queue->bucket_count < flows && queue->bucket_count < UINT32_C(1) << 30)
    queue->bucket_count *= 2;
  accrt_status_t status = ACCSV_NEW(allocator, flows, &queue->flows);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, queue->bucket_count, &queue->buckets);
  if (status != ACCRT_OK) {
    accsv_queue_deinit(queue);
    return status;
  }
  for (uint32_t i = flows; i-- > 0;) {
    queue->flows[i].other = queue->unused;
    queue->unused = &queue->flows[i];
  }
  return ACCRT_OK;
}

void accsv_queue_deinit(accsv_queue_t* queue) {
  ACCSV_FREE(queue->allocator, queue->flows, queue->flow_count);
  ACCSV_FREE(queue->allocator, queue->buckets, queue->bucket_count);
  queue->flows = NULL;
  queue->buckets = NULL;
}

void accsv_queue_join(accsv_queue_t* queue, accsv_sequence_t* sequence, uint64_t tenant) {
  const uint8_t level = level_of(sequence);
  accsv_flow_t** bucket = bucket_of(queue, tenant, level);
  accsv_flow_t* flow = *bucket;
  while (flow != NULL && (flow->tenant != tenant || flow->level != level))
    flow = flow->other;
  if (flow == NULL) {
    flow = queue->unused;
    ACCRT_ASSERT(flow != NULL);
    queue->unused = flow->other;
    *flow = (accsv_flow_t){.tenant = tenant, .level = level, .other = *bucket};
    *bucket = flow;
  }
  ++flow->live;
  sequence->flow = flow;
}

void accsv_queue_leave(accsv_queue_t* queue, accsv_sequence_t* sequence) {
  accsv_flow_t* flow = sequence->flow;
  sequence->flow = NULL;
  if (--flow->live > 0)
    return;
  ACCRT_ASSERT(!flow->active);
  accsv_flow_t** place = bucket_of(queue, flow->tenant, flow->level);
  while (*place != flow)
    place = &(*place)->other;
  *place = flow->other;
  flow->other = queue->unused;
  queue->unused = flow;
}

/* At the end of the round: before the flow whose turn it is. */
static void activate(accsv_level_t* level, accsv_flow_t* flow) {
  flow->active = true;
  if (level->current == NULL) {
    flow->next = flow->previous = flow;
    level->current = flow;
    return;
  }
  flow->next = level->current;
  flow->previous = level->current->previous;
  flow->previous->next = flow;
  flow->next->previous = flow;
}

/* What is left of a turn is lost with the last sequence; what was taken too much is not. */
static void deactivate(accsv_queue_t* queue, accsv_level_t* level, accsv_flow_t* flow) {
  flow->active = false;
  if (flow->deficit > 0)
    flow->deficit = 0;
  if (flow->next == flow) {
    level->current = NULL;
    return;
  }
  flow->previous->next = flow->next;
  flow->next->previous = flow->previous;
  if (level->current == flow) {
    level->current = flow->next;
    level->current->deficit += queue->quantum;
  }
}

void accsv_queue_push(accsv_queue_t* queue, accsv_sequence_t* sequence) {
  accsv_flow_t* flow = sequence->flow;
  sequence->state = ACCSV_QUEUED;
  sequence->next = NULL;
  sequence->previous = flow->tail;
  if (flow->tail != NULL)
    flow->tail->next = sequence;
  else
    flow->head = sequence;
  flow->tail = sequence;
  ++queue->queued;
  if (!flow->active)
    activate(&queue->levels[flow->level], flow);
}

void accsv_queue_push_preempted(accsv_queue_t* queue, accsv_sequence_t* sequence, bool first) {
  accsv_level_t* level = &queue->levels[level_of(sequence)];
  sequence->state = ACCSV_PREEMPTED;
  sequence->previous = first ? NULL : level->tail;
  sequence->next = first ? level->head : NULL;
  if (sequence->previous != NULL)
    sequence->previous->next = sequence;
  else
    level->head = sequence;
  if (sequence->next != NULL)
    sequence->next->previous = sequence;
  else
    level->tail = sequence;
  ++queue->preempted;
}

accsv_sequence_t* accsv_queue_peek(accsv_queue_t* queue) {
  for (uint32_t i = 0; i < ACCSV_LEVELS; ++i) {
    accsv_level_t* level = &queue->levels[i];
    accsv_sequence_t* sequence = level->head;
    /* A token of it is still in flight: it can start at the next step. */
    while (sequence != NULL && sequence->pending > 0)
      sequence = sequence->next;
    if (sequence != NULL)
      return sequence;
    if (level->current == NULL)
      continue;
    while (level->current->deficit <= 0) {
      level->current = level->current->next;
      level->current->deficit += queue->quantum;
    }
    return level->current->head;
  }
  return NULL;
}

void accsv_queue_remove(accsv_queue_t* queue, accsv_sequence_t* sequence) {
  accsv_level_t* level = &queue->levels[level_of(sequence)];
  const bool queued = sequence->state == ACCSV_QUEUED;
  accsv_sequence_t** head = queued ? &sequence->flow->head : &level->head;
  accsv_sequence_t** tail = queued ? &sequence->flow->tail : &level->tail;
  if (sequence->previous != NULL)
    sequence->previous->next = sequence->next;
  else
    *head = sequence->next;
  if (sequence->next != NULL)
    sequence->next->previous = sequence->previous;
  else
    *tail = sequence->previous;
  sequence->next = sequence->previous = NULL;
  sequence->state = ACCSV_NEW_SEQUENCE;
  if (!queued) {
    --queue->preempted;
    return;
  }
  --queue->queued;
  if (sequence->flow->head == NULL)
    deactivate(queue, level, sequence->flow);
}

const char* accsv_queue_check(const accsv_queue_t* queue) {
  uint32_t queued = 0, preempted = 0;
  for (uint32_t i = 0; i < queue->flow_count; ++i) {
    const accsv_flow_t* flow = &queue->flows[i];
    if (flow->active != (flow->head != NULL) && flow->live > 0)
      return "a flow is active without sequences, or the reverse";
    for (const accsv_sequence_t* one = flow->live > 0 ? flow->head : NULL; one; one = one->next) {
      if (one->state != ACCSV_QUEUED || one->flow != flow)
        return "a queued sequence is in another state";
      ++queued;
    }
  }
  for (uint32_t i = 0; i < ACCSV_LEVELS; ++i) {
    for (const accsv_sequence_t* one = queue->levels[i].head; one != NULL; one = one->next) {
      if (one->state != ACCSV_PREEMPTED)
        return "a preempted sequence is in another state";
      ++preempted;
    }
  }
  return queued != queue->queued || preempted != queue->preempted ? "the queue's counts are wrong"
                                                                  : NULL;
}
