/* examples/custom_kernel/main.c - calls the bundle's function. Build and run:
 * docs/custom-kernels.md. */
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

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4)
    return fprintf(stderr, "usage: %s custom_kernel.accx [FUNCTION [DEVICE]]\n", argv[0]), 2;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, argc == 4 ? argv[3] : "host", &device));
  check(accrt_bundle_open_path(instance, argv[1], NULL, &bundle));
  check(accrt_program_create(device, bundle, NULL, &program));
  check(accrt_session_create(program, NULL, &session));
  check(accrt_call_create(session, argc >= 3 ? argv[2] : "activate", &call));

  const float x[8] = {-3, -2, -1, 0, 1, 2, 3, 4};
  float y[8];
  const int64_t shape[2] = {1, 8};
  accrt_tensor_t in = {.data = (void*)x, .dtype = ACCRT_DTYPE_F32, .rank = 2, .shape = shape};
  accrt_tensor_t out = {.data = y, .dtype = ACCRT_DTYPE_F32, .rank = 2, .shape = shape};
  check(accrt_call_set_tensor(call, 0, &in));
  check(accrt_call_set_tensor(call, 1, &out));
  check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));
  for (int i = 0; i < 8; ++i)
    printf("%g%c", (double)y[i], i == 7 ? '\n' : ' ');

  accrt_call_release(call);
  accrt_session_release(session);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  return 0;
}
