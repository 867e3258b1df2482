/* examples/guide/notifications.c - a callback and a file descriptor that say when work is complete.
 */
#define _POSIX_C_SOURCE 200809L
#include <accrt/accrt.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

struct answer {
  sem_t ready;
  accrt_status_t status;
};

/* Runs on a thread of the runtime: pass the result on and return. */
static void complete(void* user, accrt_status_t status) {
  struct answer* answer = user;
  answer->status = status;
  sem_post(&answer->ready);
}

int main(void) {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_semaphore_t* done;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_stream_create(device, NULL, &stream));
  check(accrt_semaphore_create(instance, 0, &done));

  int values[256];
  const accrt_place_t place = {.pointer = values};
  struct answer answer = {.status = ACCRT_ERROR_NOT_READY};
  sem_init(&answer.ready, 0, 0);
  check(accrt_stream_fill(stream, &place, sizeof values, 3, 4));
  check(accrt_stream_notify(stream, complete, &answer));
  while (sem_wait(&answer.ready) != 0) {
  }
  printf("the callback got %s, values[255] is %d\n", accrt_status_name(answer.status), values[255]);

  /* For an event loop: a descriptor that becomes readable. */
  int32_t fd;
  check(accrt_stream_fill(stream, &place, sizeof values, 4, 4));
  check(accrt_stream_signal(stream, done, 1));
  check(accrt_semaphore_export_eventfd(done, 1, &fd));
  struct pollfd wait = {.fd = fd, .events = POLLIN};
  const int ready = poll(&wait, 1, -1);
  uint64_t value;
  const accrt_status_t reached = accrt_semaphore_query(done, &value); /* failed? */
  printf("%d descriptor is readable: %s, values[255] is %d\n", ready, accrt_status_name(reached),
         values[255]);
  close(fd);

  /* A failure is an outcome, too. */
  answer.status = ACCRT_OK;
  check(accrt_stream_wait(stream, done, 2));
  check(accrt_stream_notify(stream, complete, &answer));
  check(accrt_semaphore_fail(done, ACCRT_ERROR_CANCELLED, "not needed"));
  while (sem_wait(&answer.ready) != 0) {
  }
  printf("after a failure the callback got %s\n", accrt_status_name(answer.status));

  sem_destroy(&answer.ready);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  accrt_instance_release(instance);
  return 0;
}
