/* tests/fuzz/soak.c - runs a fuzz target over inputs of its own making, from a seed, without libFuzzer: a long run that can be done again.
 *
 *   NAME --seed S --goal N [--seconds T]    until N inputs were accepted (fuzz_accepted), or T seconds have passed
 *   NAME --seed S --only I                  input I of that run alone
 *
 * Every 16384th of the goal a line says how far it is. It knows no target.
 */
#include <inttypes.h>
#include <time.h>

#include "tests/fuzz/fuzz.h"

#define MOST_BYTES 2048u

static double now(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void run(uint64_t seed, uint64_t index) {
  choices_t choices = {seed * UINT64_C(0x9E3779B97F4A7C15) + index * UINT64_C(0xD1342543DE82EF95)};
  uint8_t data[MOST_BYTES];
  const size_t size = 64 + draw_below(&choices, MOST_BYTES - 64);
  for (size_t i = 0; i < size; ++i)
    data[i] = (uint8_t)draw(&choices);
  (void)LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char** argv) {
  uint64_t seed = 1, goal = 1000, only = UINT64_MAX, seconds = UINT64_MAX;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--seed") == 0)
      seed = value;
    else if (strcmp(argv[i], "--goal") == 0)
      goal = value;
    else if (strcmp(argv[i], "--only") == 0)
      only = value;
    else if (strcmp(argv[i], "--seconds") == 0)
      seconds = value;
    else
      return fprintf(stderr, "what is %s?\n", argv[i]), 2;
  }
  const double begin = now();
  fuzz_index = only;
  if (only != UINT64_MAX) {
    run(seed, only);
    return 0;
  }
  uint64_t next = goal / 16;
  for (fuzz_index = 0; fuzz_accepted < goal && now() - begin < (double)seconds; ++fuzz_index) {
    run(seed, fuzz_index);
    if (fuzz_accepted < next)
      continue;
    next += goal / 16;
    printf("soak: seed %" PRIu64 ", %" PRIu64 " inputs, %" PRIu64 " of %" PRIu64
           " executions, %.0f s\n",
           seed, fuzz_index + 1, fuzz_accepted, goal, now() - begin);
    (void)fflush(stdout);
  }
  printf("soak: seed %" PRIu64 ": %" PRIu64 " executions of %" PRIu64
         " inputs in %.0f s, nothing found\n",
         seed, fuzz_accepted, fuzz_index, now() - begin);
  return fuzz_accepted < goal;
}
