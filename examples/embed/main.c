/* examples/embed/main.c - embeds token ids with the MiniLM bundle: opens it, runs it, prints a
 * cosine. Build: docs/quick-start.md. Run: ACCRT_TRUST_KEYS=$(accx trust path) ./embed
 * build/models/minilm.accx [threads] The bundle's machine code runs because a key in that folder
 * has signed it: docs/trust.md. */
#include <accrt/accrt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WIDTH 384

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
  if (argc < 2)
    return fprintf(stderr, "usage: %s minilm.accx [threads]\n", argv[0]), 2;
  accrt_option_t threads = {"host.threads", argc > 2 ? argv[2] : "2"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &threads;
  options.option_count = 1;
  options.option_size_bytes = sizeof threads;

  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
  check(accrt_instance_create(&options, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_bundle_open_path(instance, argv[1], NULL, &bundle));
  check(accrt_program_create(device, bundle, NULL, &program));
  check(accrt_session_create(program, NULL, &session));
  check(accrt_call_create(session, "encode", &call));

  /* "a cat sits on the mat", "a kitten lies on the rug", "stocks fell on monday"; 0 pads. */
  int64_t ids[3][8] = {{101, 1037, 4937, 7719, 2006, 1996, 13523, 102},
                       {101, 1037, 18401, 3658, 2006, 1996, 20452, 102},
                       {101, 15768, 3062, 2006, 6928, 102, 0, 0}};
  int64_t mask[3][8];
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 8; ++j)
      mask[i][j] = ids[i][j] != 0;
  float vectors[3][WIDTH];

  const int64_t tokens[2] = {3, 8}, embedded[2] = {3, WIDTH};
  accrt_tensor_t in_ids = {.data = ids, .dtype = ACCRT_DTYPE_I64, .rank = 2, .shape = tokens};
  accrt_tensor_t in_mask = {.data = mask, .dtype = ACCRT_DTYPE_I64, .rank = 2, .shape = tokens};
  accrt_tensor_t out = {.data = vectors, .dtype = ACCRT_DTYPE_F32, .rank = 2, .shape = embedded};
  check(accrt_call_set_tensor(call, 0, &in_ids));
  check(accrt_call_set_tensor(call, 1, &in_mask));
  check(accrt_call_set_tensor(call, 2, &out));
  check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));

  for (int other = 1; other < 3; ++other) {
    double cosine = 0; /* embeddings have length 1 */
    for (int k = 0; k < WIDTH; ++k)
      cosine += (double)vectors[0][k] * (double)vectors[other][k];
    printf("cosine of sentence 0 and %d: %.4f\n", other, cosine);
    if (!isfinite(cosine))
      return 1;
  }
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  return 0;
}
