/* tests/random.h - random numbers for tests in C. They follow from one seed, which is printed:
 * ACCRT_TEST_SEED repeats a run. It may not include anything of the library. */
#ifndef ACCRT_TESTS_RANDOM_H_
#define ACCRT_TESTS_RANDOM_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The seed of a run: ACCRT_TEST_SEED, or the clock. A test that aborts has printed it, too. */
static inline uint64_t test_seed(void) {
  const char* text = getenv("ACCRT_TEST_SEED");
  struct timespec now = {0};
  if (text == NULL)
    (void)timespec_get(&now, TIME_UTC);
  const uint64_t seed = text != NULL
                            ? strtoull(text, NULL, 0)
                            : (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
  printf("ACCRT_TEST_SEED=%llu\n", (unsigned long long)seed);
  (void)fflush(stdout);
  return seed;
}

/* Spreads a change of one bit over all 64. */
static inline uint64_t test_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* The next 64 bits (splitmix64). The state may begin with any seed, with 0 too. */
static inline uint64_t test_random(uint64_t* state) {
  return test_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

/* A random number below `limit`, which is not 0. */
static inline uint64_t test_below(uint64_t* state, uint64_t limit) {
  return test_random(state) % limit;
}

#endif /* ACCRT_TESTS_RANDOM_H_ */
