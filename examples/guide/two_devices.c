/* examples/guide/two_devices.c - work on one device feeds another. Both are host devices here. */
#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

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

int main(void) {
  const accrt_option_t two = {"host.devices", "2"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &two;
  options.option_count = 1;
  options.option_size_bytes = sizeof two;

  accrt_instance_t* instance;
  accrt_device_t* devices[2];
  accrt_pool_t* pools[2];
  accrt_buffer_t* buffers[2];
  accrt_stream_t* streams[2];
  accrt_semaphore_t* filled;
  check(accrt_instance_create(&options, &instance));
  check(accrt_semaphore_create(instance, 0, &filled));
  const char* const names[2] = {"host:0", "host:1"}; /* "cuda:0", "cuda:1" on two GPUs */
  for (int i = 0; i < 2; ++i) {
    check(accrt_instance_device_by_name(instance, names[i], &devices[i]));
    check(accrt_device_pool(devices[i], ACCRT_MEMORY_DEVICE, &pools[i]));
    check(accrt_buffer_create(pools[i], BYTES, NULL, &buffers[i]));
    check(accrt_stream_create(devices[i], NULL, &streams[i]));
  }

  /* Device 0 fills. Device 1 waits for the semaphore and copies from device 0's memory. */
  const accrt_place_t from = {.buffer = buffers[0]}, to = {.buffer = buffers[1]};
  check(accrt_stream_fill(streams[0], &from, BYTES, 6, 1));
  check(accrt_stream_signal(streams[0], filled, 1));
  check(accrt_stream_wait(streams[1], filled, 1));
  check(accrt_stream_copy(streams[1], &from, &to, BYTES));

  unsigned char last;
  const accrt_place_t end = {.buffer = buffers[1], .offset_bytes = BYTES - 1},
                      host = {.pointer = &last};
  check(accrt_stream_copy(streams[1], &end, &host, 1));
  check(accrt_stream_synchronize(streams[1], ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  printf("the last byte on %s is %d\n", names[1], last);

  accrt_device_t* third;
  printf("a third device: %s\n",
         accrt_status_name(accrt_instance_device_by_name(instance, "host:2", &third)));

  for (int i = 0; i < 2; ++i) {
    accrt_stream_release(streams[i]);
    accrt_buffer_release(buffers[i]);
  }
  accrt_semaphore_release(filled);
  accrt_instance_release(instance);
  return 0;
}
