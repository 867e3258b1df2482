/* examples/torch/model.h - what the programs of this folder have in common: a bundle that is opened
 * for the host, and arguments of a call. */
#ifndef EXAMPLES_TORCH_MODEL_H_
#define EXAMPLES_TORCH_MODEL_H_

#include <accrt/accrt.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  accrt_instance_t* instance;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
} model_t;

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

static model_t model_open(int argc, char** argv) {
  model_t m;
  accrt_device_t* device;
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL.accx\n", argv[0]);
    exit(2);
  }
  check(accrt_instance_create(NULL, &m.instance));
  check(accrt_instance_device_by_name(m.instance, "host", &device));
  check(accrt_bundle_open_path(m.instance, argv[1], NULL, &m.bundle));
  check(accrt_program_create(device, m.bundle, NULL, &m.program));
  check(accrt_session_create(m.program, NULL, &m.session));
  return m;
}

static void model_close(model_t* m) {
  accrt_session_release(m->session);
  accrt_program_release(m->program);
  accrt_bundle_release(m->bundle);
  accrt_instance_release(m->instance);
}

/* Argument `index` of a call: inputs come first, then results, as `accx inspect` shows them. */
static void set(accrt_call_t* call, uint32_t index, accrt_dtype_t dtype, void* data, uint32_t rank,
                const int64_t* shape) {
  accrt_tensor_t tensor = {.data = data, .dtype = dtype, .rank = rank, .shape = shape};
  check(accrt_call_set_tensor(call, index, &tensor));
}

#endif /* EXAMPLES_TORCH_MODEL_H_ */
