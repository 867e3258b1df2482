/* examples/serve_embed/main.c - text of a served model in a C program: opens a bundle, submits two
 * prompts and prints both answers as they come, line by line. Build: docs/serving.md. Run:
 * ACCRT_TRUST_KEYS=$(accx trust path) ./serve_embed bytelm.accx weights.safetensors [PROMPT PROMPT]
 * The tokens of bytelm are bytes; for other models, let a tokenizer make the token ids. */
#include <accrt/accrt.h>
#include <accrt/serve.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 72

/* Ends the program with the library's own one-line message. */
static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", error.operation, accrt_status_name(status), error.message);
  exit(1);
}

typedef struct answer {
  int number;
  int size;
  char line[LINE];
} answer_t;

static void print_line(answer_t* answer) {
  printf("%d | %.*s\n", answer->number, answer->size, answer->line);
  fflush(stdout);
  answer->size = 0;
}

static void print_event(const accrt_serve_event_t* event) {
  answer_t* answer = event->user_data;
  for (uint32_t i = 0; i < event->text_size_bytes; ++i) {
    if (event->text[i] != '\n')
      answer->line[answer->size++] = event->text[i];
    if (event->text[i] == '\n' || answer->size == LINE)
      print_line(answer);
  }
  if (event->kind == ACCRT_SERVE_EVENT_FAILED)
    fprintf(stderr, "%d failed: %s\n", answer->number, accrt_status_text(event->status));
  if (event->finish_reason != 0 && answer->size > 0)
    print_line(answer);
}

static void submit(accrt_serve_engine_t* engine, const char* prompt, answer_t* answer) {
  int32_t tokens[1024];
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = tokens;
  while (request.prompt_count < 1024 && *prompt != 0)
    tokens[request.prompt_count++] = (unsigned char)*prompt++;
  request.max_new_tokens = 200;
  request.user_data = answer;
  check(accrt_serve_engine_submit(engine, &request, NULL));
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 5)
    return fprintf(stderr, "usage: %s model.accx weights [PROMPT PROMPT]\n", argv[0]), 2;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_weights_t* weights;
  accrt_program_t* program;
  check(accrt_instance_create(NULL, &instance));
  check(accrt_instance_device_by_name(instance, "host", &device));
  check(accrt_bundle_open_path(instance, argv[1], NULL, &bundle));
  check(accrt_weights_open_path(instance, argv[2], NULL, &weights));
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.weights = &weights;
  options.weight_count = 1;
  check(accrt_program_create(device, bundle, &options, &program));

  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  check(accrt_serve_model_open_program(device, program, NULL, &model));
  check(accrt_serve_engine_create(model, NULL, &engine));
  answer_t answers[2] = {{.number = 1}, {.number = 2}};
  submit(engine, argc == 5 ? argv[3] : "And it came to pass, that ", &answers[0]);
  submit(engine, argc == 5 ? argv[4] : "The king said unto ", &answers[1]);

  accrt_status_t status;
  while ((status = accrt_serve_engine_step(engine)) == ACCRT_OK) {
    accrt_serve_event_t events[16];
    uint32_t count;
    while (accrt_serve_engine_poll(engine, events, sizeof *events, 16, &count) == ACCRT_OK)
      for (uint32_t i = 0; i < count; ++i)
        print_event(&events[i]);
  }
  if (status != ACCRT_ERROR_NOT_READY) /* which says that nothing is left to do */
    check(status);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  accrt_program_release(program);
  accrt_weights_release(weights);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  return 0;
}
