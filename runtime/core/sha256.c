/* runtime/core/sha256.c - SHA-256 (FIPS 180-4), and HMAC and HKDF with it. libcrypto uses the
 * processor's instructions. The code here is for machines without libcrypto, so that unsigned
 * bundles and trees can be checked everywhere. */
#include "runtime/core/sha256.h"

#include <stdbool.h>
#include <string.h>

#include "runtime/core/crypto.h"

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static uint32_t big_endian(const unsigned char* bytes) {
  return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void compress(uint32_t state[8], const unsigned char block[64]) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i)
    w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
    const uint32_t t = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[i] + w[i];
    const uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
    const uint32_t m = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += t;
    s[0] = t + a + m;
  }
  for (int i = 0; i < 8; ++i)
    state[i] += s[i];
}

void accrt_sha256_init(accrt_sha256_t* hash, const accrt_crypto_t* crypto) {
  static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  hash->crypto = crypto;
  hash->context = accrt_crypto_digest_begin(crypto);
  hash->size_bytes = 0;
  memcpy(hash->state, initial, sizeof initial);
}

void accrt_sha256_update(accrt_sha256_t* hash, const void* bytes, size_t size_bytes) {
  if (hash->context != NULL) {
    accrt_crypto_digest_update(hash->crypto, hash->context, bytes, size_bytes);
    return;
  }
  const unsigned char* at = bytes;
  size_t filled = (size_t)(hash->size_bytes % 64);
  hash->size_bytes += size_bytes;
  while (size_bytes > 0) {
    if (filled == 0 && size_bytes >= 64) {
      compress(hash->state, at);
      at += 64, size_bytes -= 64;
      continue;
    }
    const size_t part = size_bytes < 64 - filled ? size_bytes : 64 - filled;
    memcpy(hash->block + filled, at, part);
    at += part, size_bytes -= part, filled += part;
    if (filled == 64)
      compress(hash->state, hash->block), filled = 0;
  }
}

void accrt_sha256_update_u64(accrt_sha256_t* hash, uint64_t value) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i)
    bytes[i] = (unsigned char)(value >> 8 * i);
  accrt_sha256_update(hash, bytes, sizeof bytes);
}

void accrt_sha256_update_u32(accrt_sha256_t* hash, uint32_t value) {
  const unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                                  (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
  accrt_sha256_update(hash, bytes, sizeof bytes);
}

void accrt_sha256_finish(accrt_sha256_t* hash, unsigned char out_digest[ACCRT_SHA256_BYTES]) {
  if (hash->context != NULL) {
    accrt_crypto_digest_end(hash->crypto, hash->context, out_digest);
    hash->context = NULL;
    return;
  }
  static const unsigned char padding[64] = {0x80};
  const uint64_t bits = hash->size_bytes * 8;
  unsigned char length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = (unsigned char)(bits >> (56 - 8 * i));
  const size_t filled = (size_t)(hash->size_bytes % 64);
  accrt_sha256_update(hash, padding, filled < 56 ? 56 - filled : 120 - filled);
  accrt_sha256_update(hash, length, sizeof length);
  for (int i = 0; i < 32; ++i)
    out_digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- HMAC, HKDF ---- */

static void keyed(const accrt_crypto_t* crypto, const unsigned char key[32], unsigned char pad,
                  const void* bytes, size_t size_bytes, unsigned char out_digest[32]) {
  unsigned char block[64];
  for (size_t i = 0; i < sizeof block; ++i)
    block[i] = (unsigned char)((i < 32 ? key[i] : 0) ^ pad);
  accrt_sha256_t hash;
  accrt_sha256_init(&hash, crypto);
  accrt_sha256_update(&hash, block, sizeof block);
  accrt_sha256_update(&hash, bytes, size_bytes);
  accrt_sha256_finish(&hash, out_digest);
  accrt_wipe(block, sizeof block);
  accrt_wipe(&hash, sizeof hash);
}

void accrt_hmac_sha256(const accrt_crypto_t* crypto, const unsigned char key[32], const void* bytes,
                       size_t size_bytes, unsigned char out_mac[32]) {
  unsigned char inner[32];
  keyed(crypto, key, 0x36, bytes, size_bytes, inner);
  keyed(crypto, key, 0x5c, inner, sizeof inner, out_mac);
}

void accrt_hkdf_sha256(const accrt_crypto_t* crypto, const unsigned char key[32],
                       const unsigned char salt[32], const char* info, unsigned char out_key[32]) {
  unsigned char extracted[32], text[64];
  accrt_hmac_sha256(crypto, salt, key, 32, extracted);
  const size_t length = strlen(info) < sizeof text - 1 ? strlen(info) : sizeof text - 1;
  memcpy(text, info, length);
  text[length] = 1;
  accrt_hmac_sha256(crypto, extracted, text, length + 1, out_key);
  accrt_wipe(extracted, sizeof extracted);
}
