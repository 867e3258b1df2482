/* examples/guide/import.c - memory of the program as a buffer, without a copy, and when it may go.
 */
#include <accrt/accrt.h>
#include <stdatomic.h>
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

/* Any thread may call it, once: when the last reference and the last use are gone. */
static void released(void* user) {
  atomic_store_explicit((atomic_int*)user, 1, memory_order_release);
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_semaphore_t* go;
  accrt_buffer_t* buffer;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_stream_create(device, NULL, &stream));
  check(accrt_semaphore_create(instance, 0, &go));

  unsigned char* mine = calloc(1, 4096);
  if (mine == NULL)
    return 1;
  atomic_int gone = 0;
  check(accrt_buffer_import(device, mine, 4096, released, &gone, &buffer));

  /* Enqueued work keeps the memory, even after the handle is released. */
  const accrt_place_t place = {.buffer = buffer};
  check(accrt_stream_wait(stream, go, 1));
  check(accrt_stream_fill(stream, &place, ACCRT_TO_END, 9, 1));
  accrt_buffer_release(buffer);
  printf("released while work waits: %s\n", atomic_load(&gone) ? "gone" : "kept");

  check(accrt_semaphore_signal(go, 1));
  check(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  accrt_stream_release(stream);
  accrt_semaphore_release(go);
  accrt_instance_release(instance);
  printf("the work is complete: %s, the first byte is %d\n",
         atomic_load_explicit(&gone, memory_order_acquire) ? "gone" : "kept", mine[0]);
  free(mine);
  return 0;
}
