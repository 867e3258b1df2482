/* serve/grammars_test.c - grammars, over a stand-in for llguidance: where it is opened from, and
 * which models' requests may have their constraints. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "accrt/serve.h"

#define OK(expression) assert_int_equal((expression), ACCRT_OK)

static void fails(accrt_status_t status, accrt_status_t wanted, const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_last_error(&error));
  if (status != wanted || strstr(error.message, text) == NULL)
    fail_msg("%s, expected %s with '%s': %s", accrt_status_name(status), accrt_status_name(wanted),
             text, error.message);
}

static accrt_serve_model_t* simulated(void) {
  accrt_serve_simulation_t options = ACCRT_SERVE_SIMULATION_INIT;
  accrt_serve_model_t* model;
  OK(accrt_serve_model_create_simulated(&options, &model));
  return model;
}

static void opened_where_others_may_not_write(void** state) {
  (void)state;
  accrt_serve_model_t* model = simulated();
  accrt_serve_grammars_t* grammars = (void*)model;
  char folder[] = "/tmp/accrt-grammars-XXXXXX", path[256], command[1024];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/lib.so", folder);
  snprintf(command, sizeof command, "cp %s %s && chmod 755 %s", ACCRT_TEST_GRAMMARS, path, path);
  assert_int_equal(system(command), 0);
  assert_int_equal(chdir(folder), 0);
  static const char* const relative[] = {"./lib.so", "../x/lib.so", "", "$ORIGIN/lib.so"};
  for (size_t i = 0; i < sizeof relative / sizeof *relative; ++i) {
    fails(accrt_serve_grammars_open(model, relative[i], &grammars), ACCRT_ERROR_INVALID_ARGUMENT,
          "grammars need llguidance");
    assert_null(grammars);
  }
  fails(accrt_serve_grammars_open(model, "lib.so", &grammars), ACCRT_ERROR_UNSUPPORTED, "lib.so");
  OK(chmod(folder, 0777));
  fails(accrt_serve_grammars_open(model, path, &grammars), ACCRT_ERROR_PERMISSION_DENIED,
        "others may write to");
  OK(setenv("LD_LIBRARY_PATH", folder, 1));
  fails(accrt_serve_grammars_open(model, "lib.so", &grammars), ACCRT_ERROR_PERMISSION_DENIED,
        "others may write to");
  OK(setenv("LD_LIBRARY_PATH", ".", 1));
  fails(accrt_serve_grammars_open(model, "lib.so", &grammars), ACCRT_ERROR_PERMISSION_DENIED,
        "no absolute path");
  OK(unsetenv("LD_LIBRARY_PATH"));
  OK(chmod(folder, 0755));
  fails(accrt_serve_grammars_open(model, "/nowhere/lib.so", &grammars), ACCRT_ERROR_UNSUPPORTED,
        "no such file");
  OK(accrt_serve_grammars_open(model, path, &grammars));
  accrt_serve_grammars_release(grammars);
  accrt_serve_model_release(model);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

static accrt_status_t submit(accrt_serve_engine_t* engine, accrt_serve_constraint_t* constraint) {
  static const int32_t prompt[] = {1, 2};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 2;
  request.max_new_tokens = 4;
  request.constraint = constraint;
  return accrt_serve_engine_submit(engine, &request, NULL);
}

static accrt_status_t start(void* self, void** out_state) {
  *out_state = self;
  return ACCRT_OK;
}
static accrt_status_t mask(void* state, uint32_t* out_mask, uint32_t words, uint32_t* out_may_end) {
  (void)state;
  memset(out_mask, 0xFF, words * sizeof *out_mask);
  *out_may_end = 1;
  return ACCRT_OK;
}
static accrt_status_t advance(void* state, int32_t token, uint32_t* out_ended) {
  (void)state;
  (void)token;
  *out_ended = 0;
  return ACCRT_OK;
}
static void stop(void* state) {
  (void)state;
}

static void constraints_are_of_the_engines_model(void** state) {
  (void)state;
  accrt_serve_model_t* models[] = {simulated(), simulated()};
  accrt_serve_engine_t* engines[2];
  accrt_serve_grammars_t* grammars;
  accrt_serve_constraint_t *constraint, *own;
  for (int i = 0; i < 2; ++i)
    OK(accrt_serve_engine_create(models[i], NULL, &engines[i]));
  OK(accrt_serve_grammars_open(models[0], ACCRT_TEST_GRAMMARS, &grammars));
  fails(accrt_serve_grammars_constraint(grammars, ACCRT_SERVE_GRAMMAR_REGEX, "error", &constraint),
        ACCRT_ERROR_INVALID_FORMAT, "regex: it is an error");
  OK(accrt_serve_grammars_constraint(grammars, ACCRT_SERVE_GRAMMAR_REGEX, "a+", &constraint));
  char* large = calloc((256 << 10) + 2, 1);
  accrt_serve_constraint_t* refused;
  memset(large, 'a', (256 << 10) + 1);
  fails(accrt_serve_grammars_constraint(grammars, ACCRT_SERVE_GRAMMAR_REGEX, large, &refused),
        ACCRT_ERROR_INVALID_FORMAT, "a text of more than 262144 bytes");
  assert_null(refused);
  large[256 << 10] = 0;
  OK(accrt_serve_grammars_constraint(grammars, ACCRT_SERVE_GRAMMAR_REGEX, large, &refused));
  accrt_serve_constraint_release(refused);
  free(large);
  accrt_serve_grammars_release(grammars);
  OK(submit(engines[0], constraint));
  fails(submit(engines[1], constraint), ACCRT_ERROR_INVALID_ARGUMENT, "of another model");
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.self = &functions;
  functions.start = start;
  functions.mask = mask;
  functions.advance = advance;
  functions.stop = stop;
  OK(accrt_serve_constraint_create(&functions, &own));
  OK(submit(engines[1], own));
  accrt_serve_constraint_release(constraint);
  accrt_serve_constraint_release(own);
  for (int i = 0; i < 2; ++i) {
    accrt_serve_engine_release(engines[i]);
    accrt_serve_model_release(models[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(opened_where_others_may_not_write),
                                     cmocka_unit_test(constraints_are_of_the_engines_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
