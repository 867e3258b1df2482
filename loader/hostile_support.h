/* loader/hostile_support.h - for the two tests that provoke the verifier's rules: the rule that a
 * refusal names, the rules seen so far, and mutations with the rule that each must break. Not for
 * fuzzing, because it asserts with CMocka. */
#ifndef ACCRT_LOADER_HOSTILE_SUPPORT_H_
#define ACCRT_LOADER_HOSTILE_SUPPORT_H_

#include "loader/internal.h"
#include "loader/test_support.h"

typedef struct mutation_case {
  uint32_t rule;
  void (*mutate)(parts_t* parts);
  const char* name;
} mutation_case_t;

static unsigned char seen_rules[256];

/* The rule that the thread's error record names; 0 when it names none. */
static inline uint32_t rule_of_record(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_null(strchr(error.message, '\n'));
  const char* text = strstr(error.message, "(rule ");
  const uint32_t rule = text != NULL ? (uint32_t)strtoul(text + 6, NULL, 10) : 0;
  if (rule < sizeof seen_rules)
    seen_rules[rule] = 1;
  return rule;
}

#endif
