/* examples/guide/threads.c - four threads share a device; each has its own stream. */
#include <accrt/accrt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define WORKERS 4u
#define BYTES 4096u

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

struct worker {
  accrt_device_t* device; /* shared: devices, pools and semaphores are thread-safe */
  accrt_buffer_t* buffer; /* shared: each thread writes its own quarter */
  accrt_semaphore_t* done;
  unsigned index;
};

static void* work(void* argument) {
  struct worker* worker = argument;
  accrt_stream_t* stream;
  check(accrt_stream_create(worker->device, NULL, &stream));
  const uint64_t part = BYTES / WORKERS;
  const accrt_place_t place = {.buffer = worker->buffer, .offset_bytes = worker->index * part};
  check(accrt_stream_fill(stream, &place, part, worker->index + 1, 1));
  check(accrt_stream_signal(stream, worker->done, 1));
  accrt_stream_release(stream); /* the work still runs */
  return NULL;
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  check(accrt_buffer_create(pool, BYTES, NULL, &buffer));

  struct worker workers[WORKERS];
  accrt_timepoint_t all[WORKERS];
  pthread_t threads[WORKERS];
  for (unsigned i = 0; i < WORKERS; ++i) {
    workers[i] = (struct worker){.device = device, .buffer = buffer, .index = i};
    check(accrt_semaphore_create(instance, 0, &workers[i].done));
    all[i] = (accrt_timepoint_t){workers[i].done, 1};
    if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
      return 1;
  }
  check(accrt_semaphore_wait_many(all, WORKERS, 0, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK, NULL));

  void* memory;
  check(accrt_buffer_map(buffer, 0, ACCRT_TO_END, &memory));
  const unsigned char* bytes = memory;
  for (unsigned i = 0; i < WORKERS; ++i)
    printf("thread %u wrote %d\n", i, bytes[i * BYTES / WORKERS]);
  check(accrt_buffer_unmap(buffer));

  for (unsigned i = 0; i < WORKERS; ++i) {
    pthread_join(threads[i], NULL);
    accrt_semaphore_release(workers[i].done);
  }
  accrt_buffer_release(buffer);
  accrt_instance_release(instance);
  return 0;
}
