/* runtime/drivers/cuda/poller.c - the thread that calls completion callbacks. It checks the marks
 * of queues with tickets.
 *
 * It polls, without pause at first and then at growing intervals. It does not block on one event,
 * because work of other queues may end first and new work must not wait behind old work. Without
 * tickets it sleeps. CUDA's own callbacks would delay their stream, and may not call CUDA.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/prctl.h>
#include <stdio.h>

#include "runtime/drivers/cuda/cuda.h"

#define STACK_BYTES ((size_t)1 << 20)
#define NAP_FREE_NS UINT64_C(50000)
#define NAP_MAX_NS UINT64_C(100000)
/* CUDA gives times as a float of milliseconds since a base event. A base younger than this keeps
 * them exact to 100 ns. */
#define BASE_LIFE_NS UINT64_C(500000000)

struct cuda_poller {
  cuda_device_t* device;
  pthread_t thread;
  atomic_uint wake;   /* counts wake-ups; the thread sleeps on this word */
  atomic_uint asleep; /* the thread sleeps or is about to */
  atomic_uint stopping;
  accrt_mutex_t mutex; /* guards incoming */
  cuda_queue_t* incoming;
  /* Used by the poller's thread alone. */
  cuda_queue_t* active;
  CUstream base_stream; /* for traces; NULL until the first one */
  CUevent base_event;   /* the base moment as an event ... */
  uint64_t base_ns;     /* ... and on the monotonic clock; 0: none yet */
};

static void wake(cuda_poller_t* poller) {
  /* Sequentially consistent with the thread's store of `asleep` and load of `wake`: either the
   * thread sees the new count, or this function sees that the thread sleeps. */
  atomic_fetch_add_explicit(&poller->wake, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&poller->asleep, memory_order_seq_cst) != 0)
    accrt_futex_wake(&poller->wake, 1);
}

void accrt_cuda_poller_watch(cuda_queue_t* queue) {
  cuda_poller_t* poller = queue->device->poller;
  accrt_mutex_lock(&queue->mutex);
  const bool new = !queue->watched;
  queue->watched = true;
  accrt_mutex_unlock(&queue->mutex);
  if (!new)
    return;
  /* Relaxed: the caller holds a reference. */
  atomic_fetch_add_explicit(&queue->references, 1, memory_order_relaxed);
  queue->head_number = UINT64_MAX;
  accrt_mutex_lock(&poller->mutex);
  queue->poller_next = poller->incoming;
  poller->incoming = queue;
  accrt_mutex_unlock(&poller->mutex);
  wake(poller);
}

/* ---- Traces ---- */

/* Takes a moment on both clocks: records an event on the idle base stream and waits for it. */
static bool make_base(cuda_poller_t* poller) {
  const cuda_api_t* api = poller->device->api;
  const uint64_t now_ns = accrt_clock_ns();
  if (poller->base_ns != 0 && now_ns - poller->base_ns < BASE_LIFE_NS)
    return true;
  if (poller->base_stream == NULL &&
      api->cuStreamCreateWithPriority(&poller->base_stream, CU_STREAM_NON_BLOCKING, 0) !=
          CUDA_SUCCESS) {
    return false;
  }
  if (poller->base_event == NULL &&
      api->cuEventCreate(&poller->base_event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
    return false;
  }
  poller->base_ns = 0;
  const uint64_t before_ns = accrt_clock_ns();
  if (api->cuEventRecord(poller->base_event, poller->base_stream) != CUDA_SUCCESS ||
      api->cuEventSynchronize(poller->base_event) != CUDA_SUCCESS) {
    return false;
  }
  poller->base_ns = before_ns + (accrt_clock_ns() - before_ns) / 2;
  return true;
}

static bool moment_ns(const cuda_poller_t* poller, CUevent event, uint64_t* out_ns) {
  float milliseconds = 0;
  if (poller->device->api->cuEventElapsedTime(&milliseconds, poller->base_event, event) !=
      CUDA_SUCCESS) {
    return false;
  }
  *out_ns = poller->base_ns + (uint64_t)(int64_t)((double)milliseconds * 1e6);
  return true;
}

static void trace(cuda_poller_t* poller, const cuda_ticket_t* ticket, accrt_status_t status) {
  const accrt_driver_environment_t* environment = poller->device->environment;
  accrt_trace_event_t event = {.kind = ACCRT_TRACE_COMMAND,
                               .status = status,
                               .stream_id = ticket->stream_id,
                               .submission = ticket->number,
                               .name = ticket->name};
  if (status == ACCRT_OK && make_base(poller) &&
      moment_ns(poller, ticket->begin, &event.begin_ns) &&
      moment_ns(poller, ticket->end, &event.end_ns)) {
    environment->trace(environment, &event);
    return;
  }
  event.begin_ns = event.end_ns = accrt_clock_ns();
  environment->trace(environment, &event);
}

/* ---- Completions ---- */

/* Fills the error record for a ticket's completion; ACCRT_OK when the work succeeded. */
static void ticket_outcome(cuda_queue_t* queue, const cuda_ticket_t* ticket, bool broken,
                           accrt_error_t* out_error) {
  out_error->status = ACCRT_OK;
  accrt_mutex_lock(&queue->mutex);
  const bool failed = atomic_load_explicit(&queue->failed, memory_order_relaxed) != 0 &&
                      (ticket->is_notification || ticket->number >= queue->failure.submission);
  if (failed)
    *out_error = queue->failure;
  if (broken && !failed) {
    /* `lost` was seen as set, so the record is complete. */
    *out_error = queue->device->failure;
    out_error->submission = ticket->number;
  }
  if ((failed || broken) && !ticket->is_notification) {
    if (queue->failure_reported)
      out_error->status = ACCRT_ERROR_POISONED;
    queue->failure_reported = true;
  }
  accrt_mutex_unlock(&queue->mutex);
}

static void finish(cuda_poller_t* poller, cuda_queue_t* queue, cuda_ticket_t* ticket, bool broken) {
  accrt_error_t error;
  ticket_outcome(queue, ticket, broken, &error);
  if (ticket->is_traced)
    trace(poller, ticket, error.status);
  const accrt_driver_completion_t completion = ticket->completion;
  accrt_cuda_ticket_return(queue, ticket);
  if (completion.done != NULL) {
    completion.done(completion.user, error.status, error.status != ACCRT_OK ? &error : NULL,
                    accrt_clock_ns());
  }
}

/* Returns the first ticket. NULL when there is none; the poller then stops watching the queue. */
static cuda_ticket_t* first_ticket(cuda_queue_t* queue) {
  accrt_mutex_lock(&queue->mutex);
  cuda_ticket_t* ticket = queue->first_ticket;
  if (ticket == NULL)
    queue->watched = false;
  accrt_mutex_unlock(&queue->mutex);
  return ticket;
}

static void pop_ticket(cuda_queue_t* queue) {
  accrt_mutex_lock(&queue->mutex);
  queue->first_ticket = queue->first_ticket->next;
  accrt_mutex_unlock(&queue->mutex);
}

/* A wait for an event has no number: the mark of a notification behind it says when it is over. */
static CUresult look_at_waits(cuda_queue_t* queue, const cuda_ticket_t* ticket) {
  if (accrt_cuda_queue_waits_over(queue, ticket->event_waits) || ticket->mark == NULL)
    return CUDA_SUCCESS;
  const CUresult result = queue->device->api->cuEventQuery(ticket->mark->event);
  if (result == CUDA_SUCCESS)
    atomic_store_explicit(&queue->event_waits_over, ticket->event_waits, memory_order_relaxed);
  return result;
}

static bool has_ended(cuda_queue_t* queue, const cuda_ticket_t* ticket) {
  /* Acquire pairs with the release in raise_completed(). */
  return atomic_load_explicit(&queue->completed, memory_order_acquire) >= ticket->number &&
         accrt_cuda_queue_waits_over(queue, ticket->event_waits);
}

/* True when the ticket's work has ended; `*out_broken` when the reason is a lost device. */
static bool is_over(cuda_queue_t* queue, const cuda_ticket_t* ticket, bool* out_broken) {
  cuda_device_t* device = queue->device;
  *out_broken = false;
  if (has_ended(queue, ticket))
    return true;
  if (!cuda_device_is_lost(device)) {
    CUresult result = accrt_cuda_queue_advance(queue);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) /* later work may go on */
      result = look_at_waits(queue, ticket);
    if (accrt_cuda_is_fatal(result))
      accrt_cuda_device_lose(device, result, "cuEventQuery", "its work failed");
  }
  if (has_ended(queue, ticket))
    return true;
  *out_broken = cuda_device_is_lost(device);
  return *out_broken;
}

/* Completes the tickets whose work has ended. False when the queue has no tickets left. */
static bool serve(cuda_poller_t* poller, cuda_queue_t* queue) {
  for (;;) {
    cuda_ticket_t* ticket = first_ticket(queue);
    if (ticket == NULL)
      return false;
    bool broken;
    if (!is_over(queue, ticket, &broken)) {
      if (queue->head_number != ticket->number) {
        queue->head_number = ticket->number;
        queue->head_ns = accrt_clock_ns();
      }
      return true;
    }
    pop_ticket(queue);
    queue->head_number = UINT64_MAX; /* the next ticket may have the same number */
    finish(poller, queue, ticket, broken);
  }
}

/* ---- The thread ---- */

static void take_incoming(cuda_poller_t* poller) {
  accrt_mutex_lock(&poller->mutex);
  cuda_queue_t* queue = poller->incoming;
  poller->incoming = NULL;
  accrt_mutex_unlock(&poller->mutex);
  while (queue != NULL) {
    cuda_queue_t* next = queue->poller_next;
    queue->poller_next = poller->active;
    poller->active = queue;
    queue = next;
  }
}

/* Serves all queues. Returns the time to sleep before the next round: 0 for none, UINT64_MAX when
 * there are no tickets. */
static uint64_t serve_all(cuda_poller_t* poller) {
  uint64_t nap_ns = UINT64_MAX;
  cuda_queue_t** link = &poller->active;
  while (*link != NULL) {
    cuda_queue_t* queue = *link;
    /* read first: once it has no tickets, another thread may link the queue again */
    cuda_queue_t* next = queue->poller_next;
    if (!serve(poller, queue)) {
      *link = next;
      accrt_cuda_queue_unref(queue);
      continue;
    }
    const uint64_t waited_ns = accrt_clock_ns() - queue->head_ns;
    uint64_t own_ns = waited_ns < NAP_FREE_NS ? 0 : waited_ns / 8;
    if (own_ns > NAP_MAX_NS)
      own_ns = NAP_MAX_NS;
    if (own_ns < nap_ns)
      nap_ns = own_ns;
    link = &queue->poller_next;
  }
  return nap_ns;
}

static void nap(cuda_poller_t* poller, unsigned seen, uint64_t nap_ns) {
  if (nap_ns == 0) {
    accrt_pause();
    return;
  }
  /* Sequentially consistent: pairs with wake(). */
  atomic_store_explicit(&poller->asleep, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&poller->wake, memory_order_seq_cst) == seen)
    accrt_futex_wait(&poller->wake, seen, nap_ns);
  atomic_store_explicit(&poller->asleep, 0, memory_order_relaxed);
}

static void* run(void* argument) {
  cuda_poller_t* poller = argument;
  cuda_device_t* device = poller->device;
  /* The kernel may add 50 us to each short sleep. This prevents it. */
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  bool has_context = false;
  (void)cuda_relax(device);
  for (;;) {
    /* Without a context no event ever looks complete, so a refused one is tried again. */
    if (!has_context)
      has_context = device->api->cuCtxSetCurrent(device->context) == CUDA_SUCCESS;
    /* Read it before the search for work, so that no wake-up is missed. */
    const unsigned seen = atomic_load_explicit(&poller->wake, memory_order_seq_cst);
    take_incoming(poller);
    const uint64_t nap_ns = serve_all(poller);
    /* Acquire pairs with the release in accrt_cuda_poller_stop. */
    if (nap_ns == UINT64_MAX &&
        atomic_load_explicit(&poller->stopping, memory_order_acquire) != 0) {
      break;
    }
    nap(poller, seen, nap_ns);
  }
  if (poller->base_event != NULL)
    (void)device->api->cuEventDestroy(poller->base_event);
  if (poller->base_stream != NULL)
    (void)device->api->cuStreamDestroy(poller->base_stream);
  return NULL;
}

accrt_status_t accrt_cuda_poller_start(cuda_device_t* device) {
  cuda_poller_t* poller;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &poller));
  poller->device = device;
  accrt_mutex_init(&poller->mutex, ACCRT_LOCK_CUDA_POLLER);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  const int error = accrt_thread_start(&poller->thread, &attributes, run, poller);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    accrt_free(device->allocator, poller, sizeof *poller);
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_DRIVER, "device_open",
                             "the completion thread of cuda:%u could not be started (errno %d)",
                             device->ordinal, error);
  }
  char name[16];
  snprintf(name, sizeof name, "accrt-cuda.%u", device->ordinal % 100);
  pthread_setname_np(poller->thread, name);
  device->poller = poller;
  return ACCRT_OK;
}

void accrt_cuda_poller_stop(cuda_device_t* device) {
  cuda_poller_t* poller = device->poller;
  if (poller == NULL)
    return;
  /* Release pairs with the acquire in run(). */
  atomic_store_explicit(&poller->stopping, 1, memory_order_release);
  wake(poller);
  pthread_join(poller->thread, NULL);
  accrt_free(device->allocator, poller, sizeof *poller);
  device->poller = NULL;
}
