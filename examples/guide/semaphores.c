/* examples/guide/semaphores.c - one stream waits for another, and the host for both. */
#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  accrt_stream_t *maker, *reader;
  accrt_semaphore_t* steps;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  check(accrt_buffer_create(pool, 4, NULL, &buffer));
  check(accrt_stream_create(device, NULL, &maker));
  check(accrt_stream_create(device, NULL, &reader));
  check(accrt_semaphore_create(instance, 0, &steps));

  /* The reader waits for step 1 before anyone signals it. Its work is held back until then. */
  unsigned char copy[4] = {0};
  const accrt_place_t memory = {.buffer = buffer}, host = {.pointer = copy};
  check(accrt_stream_wait(reader, steps, 1));
  check(accrt_stream_copy(reader, &memory, &host, sizeof copy));
  check(accrt_stream_signal(reader, steps, 2));

  check(accrt_stream_fill(maker, &memory, sizeof copy, 7, 1));
  check(accrt_stream_signal(maker, steps, 1));

  check(accrt_semaphore_wait(steps, 2, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  printf("the reader got %d %d %d %d\n", copy[0], copy[1], copy[2], copy[3]);

  /* A wait of at most a millisecond, for a value that is never signalled. */
  accrt_status_t status = accrt_semaphore_wait(steps, 3, 1000000, ACCRT_WAIT_BLOCK);
  printf("waiting for 3: %s\n", accrt_status_name(status));

  /* Cancelled: all waits for values that were not reached end. */
  check(accrt_semaphore_fail(steps, ACCRT_ERROR_CANCELLED, "no more steps"));
  status = accrt_semaphore_wait(steps, 3, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  accrt_error_t error = ACCRT_ERROR_INIT;
  check(accrt_semaphore_error(steps, &error));
  printf("after the failure: %s, because %s: %s\n", accrt_status_name(status),
         accrt_status_name(error.status), error.message);

  accrt_semaphore_release(steps);
  accrt_stream_release(reader);
  accrt_stream_release(maker);
  accrt_buffer_release(buffer);
  accrt_instance_release(instance);
  return 0;
}
