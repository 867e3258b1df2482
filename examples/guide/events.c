/* examples/guide/events.c - a stream waits for a point of another, and the time between two points.
 */
#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (1u << 20)

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
  accrt_buffer_t *first, *second;
  accrt_stream_t *maker, *reader;
  accrt_event_t *start, *end, *plain;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  check(accrt_buffer_create(pool, BYTES, NULL, &first));
  check(accrt_buffer_create(pool, BYTES, NULL, &second));
  check(accrt_stream_create(device, NULL, &maker));
  check(accrt_stream_create(device, NULL, &reader));
  check(accrt_event_create(device, ACCRT_EVENT_FLAG_TIMING, &start));
  check(accrt_event_create(device, ACCRT_EVENT_FLAG_TIMING, &end));
  check(accrt_event_create(device, 0, &plain));

  /* Record first: the wait is for the latest record at the time of the call. */
  const accrt_place_t from = {.buffer = first}, to = {.buffer = second};
  check(accrt_stream_record(maker, start));
  check(accrt_stream_fill(maker, &from, BYTES, 5, 1));
  check(accrt_stream_record(maker, end));
  check(accrt_stream_wait_event(reader, end));
  check(accrt_stream_copy(reader, &from, &to, BYTES));
  check(accrt_stream_synchronize(reader, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));

  unsigned char last;
  const accrt_place_t place = {.buffer = second, .offset_bytes = BYTES - 1},
                      host = {.pointer = &last};
  check(accrt_stream_copy(reader, &place, &host, 1));
  check(accrt_stream_synchronize(reader, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  printf("the last byte is %d\n", last);

  int64_t elapsed_ns;
  check(accrt_event_elapsed(start, end, &elapsed_ns));
  printf("the fill took time: %s\n", elapsed_ns > 0 ? "yes" : "no");

  /* An event without timing orders, but does not measure. */
  check(accrt_stream_record(maker, plain));
  check(accrt_event_synchronize(plain, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  printf("without timing: %s\n", accrt_status_name(accrt_event_elapsed(start, plain, &elapsed_ns)));

  accrt_event_release(plain);
  accrt_event_release(end);
  accrt_event_release(start);
  accrt_stream_release(reader);
  accrt_stream_release(maker);
  accrt_buffer_release(second);
  accrt_buffer_release(first);
  accrt_instance_release(instance);
  return 0;
}
