/* runtime/core/hash128_test.c - the digest beside the reference implementation in one piece: every
 * short length, long ones, and any cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/core/hash128.h"

#define MOST 5000u

static unsigned char bytes[MOST];

static int fill(void** state) {
  (void)state;
  for (size_t i = 0; i < MOST; ++i)
    bytes[i] = (unsigned char)(i * 131 + (i >> 7));
  return 0;
}

static void reference(size_t size_bytes, unsigned char out_digest[ACCRT_HASH128_BYTES]) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size_bytes));
  memcpy(out_digest, canonical.digest, ACCRT_HASH128_BYTES);
}

static void every_length(void** state) {
  (void)state;
  unsigned char found[ACCRT_HASH128_BYTES], wanted[ACCRT_HASH128_BYTES];
  for (size_t size = 0; size <= MOST; size += size < 1200 ? 1 : 97) {
    accrt_hash128_of(bytes, size, found);
    reference(size, wanted);
    assert_memory_equal(found, wanted, sizeof found);
  }
}

static void any_cut(void** state) {
  (void)state;
  unsigned char found[ACCRT_HASH128_BYTES], wanted[ACCRT_HASH128_BYTES];
  for (size_t piece = 1; piece <= 1100; piece += piece < 10 ? 1 : 109) {
    accrt_hash128_t hash;
    accrt_hash128_init(&hash);
    for (size_t at = 0; at < MOST; at += piece) {
      accrt_hash128_finish(&hash, found);
      reference(at, wanted);
      assert_memory_equal(found, wanted, sizeof found);
      accrt_hash128_update(&hash, bytes + at, MOST - at < piece ? MOST - at : piece);
    }
    accrt_hash128_finish(&hash, found);
    reference(MOST, wanted);
    assert_memory_equal(found, wanted, sizeof found);
  }
}

static void hexadecimal(void** state) {
  (void)state;
  static const unsigned char some[] = {0x00, 0x9A, 0xF0, 0x0F, 0xFF};
  char text[2 * sizeof some + 1];
  assert_string_equal(accrt_hex(some, sizeof some, text), "009af00fff");
  assert_string_equal(accrt_hex(some, 0, text), "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_length),
      cmocka_unit_test(any_cut),
      cmocka_unit_test(hexadecimal),
  };
  return cmocka_run_group_tests(tests, fill, NULL);
}
