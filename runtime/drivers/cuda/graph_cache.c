/* runtime/drivers/cuda/graph_cache.c - chooses a list's instance for a submission, and limits the
 * number of instances of a device.
 *
 * A queue has its own instances. A submission uses one that has its inputs, or one with at most
 * CUDA_LIST_CHEAP_PATCHES nodes to patch. Without such an instance, another one is patched. Inputs
 * that are patched in for the second time (such as two alternating sets of buffers) get a new
 * instance.
 *
 * runtime/core/lock_order.h has the order of locks. A thread that holds the device's graph mutex
 * only tries to lock an instance.
 */
#include "runtime/drivers/cuda/graph.h"

/* ---- The instances of a device ---- */

/* Locks and returns the least recently used instance that no thread holds; NULL when there is none.
 * Newer ones are earlier in the list. */
static cuda_instance_t* oldest_idle(cuda_graphs_t* graphs, const cuda_instance_t* excluded) {
  ACCRT_ASSERT_HELD(&graphs->mutex);
  const unsigned now = atomic_load_explicit(&graphs->epoch, memory_order_relaxed);
  cuda_instance_t* oldest = NULL;
  unsigned oldest_age = 0;
  for (cuda_instance_t* i = graphs->instances; i != NULL; i = i->next) {
    const unsigned age = now - atomic_load_explicit(&i->last_use, memory_order_relaxed);
    if (i == excluded || (oldest != NULL && age < oldest_age) || !accrt_mutex_try_lock(&i->mutex))
      continue;
    if (oldest != NULL)
      accrt_mutex_unlock(&oldest->mutex);
    oldest = i;
    oldest_age = age;
  }
  return oldest;
}

static void unlink_instance(cuda_graphs_t* graphs, cuda_instance_t* instance) {
  if (!instance->counted)
    return;
  if (instance->previous != NULL)
    instance->previous->next = instance->next;
  else
    graphs->instances = instance->next;
  if (instance->next != NULL)
    instance->next->previous = instance->previous;
  instance->counted = false;
  instance->previous = instance->next = NULL;
  ACCRT_ASSERT(graphs->count > 0);
  graphs->count -= 1;
}

void accrt_cuda_graphs_admit(cuda_device_t* device, cuda_instance_t* instance) {
  cuda_graphs_t* graphs = &device->graphs;
  accrt_mutex_lock(&graphs->mutex);
  if (!instance->counted) {
    while (graphs->count >= device->driver->options.max_graphs) {
      cuda_instance_t* oldest = oldest_idle(graphs, instance);
      if (oldest == NULL)
        break; /* all are in use: exceed the limit by one for now */
      unlink_instance(graphs, oldest);
      accrt_cuda_instance_clear(oldest);
      accrt_mutex_unlock(&oldest->mutex);
    }
    instance->next = graphs->instances;
    instance->previous = NULL;
    if (instance->next != NULL)
      instance->next->previous = instance;
    graphs->instances = instance;
    graphs->count += 1;
    instance->counted = true;
  }
  /* Relaxed is enough: only ages are compared. */
  const unsigned epoch = atomic_fetch_add_explicit(&graphs->epoch, 1, memory_order_relaxed);
  atomic_store_explicit(&instance->last_use, epoch + 1, memory_order_relaxed);
  accrt_mutex_unlock(&graphs->mutex);
}

void accrt_cuda_graphs_forget(cuda_device_t* device, cuda_instance_t* instance) {
  accrt_mutex_lock(&device->graphs.mutex);
  unlink_instance(&device->graphs, instance);
  accrt_mutex_unlock(&device->graphs.mutex);
}

/* ---- The instances of a list ---- */

static cuda_instance_t* instance_at(cuda_list_t* list, uint32_t index) {
  /* Acquire pairs with the release in add_instance. */
  return atomic_load_explicit(&list->instances[index], memory_order_acquire);
}

static bool belongs_to(cuda_instance_t* instance, const cuda_queue_t* queue) {
  /* Relaxed is enough: the queue is checked again under the mutex. */
  return atomic_load_explicit(&instance->queue, memory_order_relaxed) == queue;
}

/* Locks and returns the queue's instance that has these inputs or few nodes to patch. Otherwise
 * *out_nearest gets an instance, not locked, that the queue may patch. */
static cuda_instance_t* find_near(cuda_list_t* list, const cuda_queue_t* queue,
                                  const accrt_driver_submission_t* submission,
                                  cuda_instance_t** out_nearest, bool* out_equal) {
  *out_nearest = NULL;
  for (uint32_t i = 0; i < CUDA_LIST_INSTANCES; ++i) {
    cuda_instance_t* instance = instance_at(list, i);
    if (instance == NULL)
      break;
    if (!belongs_to(instance, queue))
      continue;
    accrt_mutex_lock(&instance->mutex);
    if (belongs_to(instance, queue) && instance->ready) {
      *out_equal = accrt_cuda_inputs_equal(instance->inputs, submission);
      if (*out_equal || accrt_cuda_plan_changed(&list->plan, instance->inputs, submission) <=
                            CUDA_LIST_CHEAP_PATCHES)
        return instance;
    }
    accrt_mutex_unlock(&instance->mutex);
    if (*out_nearest == NULL)
      *out_nearest = instance;
  }
  *out_equal = false;
  return NULL;
}

static bool note_inputs(cuda_list_t* list, uint64_t digest) {
  for (uint32_t i = 0; i < CUDA_LIST_HISTORY; ++i) {
    if (list->history[i] == digest)
      return true;
  }
  list->history[list->history_next++ % CUDA_LIST_HISTORY] = digest;
  return false;
}

/* Adds an instance if there is room; else *out_instance is NULL with ACCRT_OK. The caller holds the
 * list's mutex. */
static accrt_status_t add_instance(cuda_list_t* list, const cuda_queue_t* queue,
                                   cuda_instance_t** out_instance) {
  ACCRT_ASSERT_HELD(&list->mutex);
  *out_instance = NULL;
  for (uint32_t i = 0; i < CUDA_LIST_INSTANCES; ++i) {
    if (instance_at(list, i) != NULL)
      continue;
    cuda_instance_t* instance;
    ACCRT_TRY(accrt_cuda_instance_create(list->device, &list->plan, list->name, &instance));
    atomic_store_explicit(&instance->queue, queue, memory_order_relaxed);
    accrt_mutex_lock(&instance->mutex);
    /* Release pairs with the acquire in instance_at. */
    atomic_store_explicit(&list->instances[i], instance, memory_order_release);
    *out_instance = instance;
    return ACCRT_OK;
  }
  return ACCRT_OK;
}

/* The least recently used instance, of any queue. */
static cuda_instance_t* oldest_of(cuda_list_t* list) {
  const unsigned now = atomic_load_explicit(&list->device->graphs.epoch, memory_order_relaxed);
  cuda_instance_t* oldest = NULL;
  unsigned oldest_age = 0;
  for (uint32_t i = 0; i < CUDA_LIST_INSTANCES; ++i) {
    cuda_instance_t* instance = instance_at(list, i);
    if (instance == NULL)
      break;
    const unsigned age = now - atomic_load_explicit(&instance->last_use, memory_order_relaxed);
    if (oldest == NULL || age > oldest_age) {
      oldest = instance;
      oldest_age = age;
    }
  }
  return oldest;
}

/* Returns the instance that was built with the list, if no queue has it yet. The caller holds the
 * list's mutex. */
static cuda_instance_t* take_unowned(cuda_list_t* list, const cuda_queue_t* queue) {
  ACCRT_ASSERT_HELD(&list->mutex);
  cuda_instance_t* first = instance_at(list, 0);
  if (first == NULL || !belongs_to(first, NULL))
    return NULL;
  atomic_store_explicit(&first->queue, queue, memory_order_relaxed);
  return first;
}

/* Locks and returns an instance to patch or build when no instance fits. */
static accrt_status_t choose_other(cuda_list_t* list, const cuda_queue_t* queue,
                                   const accrt_driver_submission_t* submission,
                                   cuda_instance_t* nearest, cuda_instance_t** out_instance) {
  accrt_status_t status = ACCRT_OK;
  *out_instance = NULL;
  accrt_mutex_lock(&list->mutex);
  cuda_instance_t* unowned = nearest == NULL ? take_unowned(list, queue) : NULL;
  if (unowned != NULL)
    nearest = unowned;
  const bool wanted = unowned == NULL &&
                      (nearest == NULL || note_inputs(list, accrt_cuda_inputs_digest(submission)));
  if (wanted)
    status = add_instance(list, queue, out_instance);
  accrt_mutex_unlock(&list->mutex);
  if (status != ACCRT_OK || *out_instance != NULL)
    return status;
  cuda_instance_t* instance = wanted ? oldest_of(list) : nearest;
  accrt_mutex_lock(&instance->mutex);
  atomic_store_explicit(&instance->queue, queue, memory_order_relaxed);
  *out_instance = instance;
  return ACCRT_OK;
}

accrt_status_t accrt_cuda_list_acquire(cuda_list_t* list, const cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_instance_t** out_instance) {
  cuda_instance_t* nearest;
  bool equal;
  accrt_status_t status = ACCRT_OK;
  cuda_instance_t* instance = find_near(list, queue, submission, &nearest, &equal);
  if (instance == NULL) {
    status = choose_other(list, queue, submission, nearest, &instance);
    if (status == ACCRT_OK && !instance->counted)
      accrt_cuda_graphs_admit(list->device, instance);
  }
  if (status == ACCRT_OK && !equal)
    status = accrt_cuda_instance_update(instance, submission);
  if (status == ACCRT_OK) {
    const unsigned now = atomic_load_explicit(&list->device->graphs.epoch, memory_order_relaxed);
    atomic_store_explicit(&instance->last_use, now, memory_order_relaxed);
  } else if (instance != NULL) {
    accrt_mutex_unlock(&instance->mutex);
    instance = NULL;
  }
  *out_instance = instance;
  return status;
}
