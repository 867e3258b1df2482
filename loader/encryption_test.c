/* loader/encryption_test.c - encrypted weights: made, read, changed, without the right key; secrets
 * that are left nowhere; and what signatures and encryption do without libcrypto. */
#include "loader/trust_test.h"

/* ---- Encryption ---- */

typedef struct key_ring {
  accrt_key_t key;
  uint32_t asked;
  bool empty;
} key_ring_t;

static int32_t give_key(void* user, const uint8_t* id, uint8_t* out_key) {
  key_ring_t* ring = user;
  assert_non_null(id);
  ++ring->asked;
  memcpy(out_key, ring->key.bytes, sizeof ring->key.bytes);
  return ring->empty;
}

static accrt_status_t open_encrypted(const bytes_t* file, key_ring_t* ring,
                                     accrt_bundle_t** out_bundle) {
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.secret_key = ring != NULL ? give_key : NULL;
  options.secret_key_user = ring;
  return accrt_bundle_open_memory(instance, file->data, file->size, NULL, NULL, &options,
                                  out_bundle);
}

static bytes_t encrypt(const bytes_t* file, const accrt_key_t* key) {
  accrt_bundle_t* bundle = open_with(instance, file);
  OK(accrt_bundle_encrypt(bundle, key, path));
  accrt_bundle_release(bundle);
  return read_file(path);
}

static const void* weight_of(accrt_bundle_t* bundle, uint64_t* out_size) {
  uint32_t index;
  const void* bytes;
  OK(accrt_bundle_find_constant(bundle, "weight", &index));
  OK(accrt_bundle_constant_data(bundle, index, &bytes, out_size));
  return bytes;
}

static void encrypts_and_decrypts(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  bytes_t both = sign(&golden, &alice, BOTH);
  bytes_t file = encrypt(&both, &ring.key);
  accrt_bundle_t* plain = open_with(instance, &golden);
  accrt_bundle_t* bundle;
  OK(open_encrypted(&file, &ring, &bundle));
  assert_int_equal(ring.asked, 1);
  uint64_t size, plain_size;
  const void* wanted = weight_of(plain, &plain_size);
  assert_memory_equal(weight_of(bundle, &size), wanted, plain_size);
  assert_int_equal(size, plain_size);
  use_bundle(bundle);
  OK(accrt_bundle_verify(bundle));
  assert_null(memmem(file.data, file.size, wanted, plain_size)); /* none of it in the file */
  /* By way of the staging ring. */
  const uint64_t data_size = accrt_bundle_tables(bundle)->data_size_bytes;
  unsigned char* target = must_alloc((size_t)data_size);
  unsigned char* other = must_alloc((size_t)data_size);
  OK(accrt_bundle_data_read(bundle, 0, target, data_size));
  OK(accrt_bundle_data_read(plain, 0, other, data_size));
  assert_memory_equal(target, other, (size_t)data_size);
  free(target), free(other);
  /* The code's signature stays, the weights' was of other bytes. */
  accrt_bundle_trust_t trust = trust_of(bundle);
  assert_true(trust.encrypted && trust.has_weight_root);
  assert_int_equal(trust.signature_count, 1);
  FAILS(INVALID_STATE, "encrypted already", accrt_bundle_encrypt(bundle, &ring.key, path));
  OK(accrt_bundle_decrypt(bundle, path));
  bytes_t back = read_file(path);
  bytes_t code = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  assert_int_equal(back.size, code.size);
  assert_memory_equal(back.data, code.data, code.size);
  FAILS(INVALID_STATE, "not encrypted", accrt_bundle_decrypt(plain, path));
  accrt_bundle_release(bundle);
  accrt_bundle_release(plain);
  /* Twice gives other bytes: each file has a salt. */
  bytes_t twice = encrypt(&both, &ring.key);
  assert_memory_not_equal(twice.data, file.data, file.size);
  /* Signed once more, then the weights must be what was signed. */
  bytes_t sealed = sign(&file, &bob, BOTH);
  OK(open_encrypted(&sealed, &ring, &bundle));
  OK(accrt_bundle_verify(bundle));
  accrt_bundle_release(bundle);
  free(both.data), free(file.data), free(back.data), free(code.data), free(twice.data);
  free(sealed.data);
}

/* A section behind DATA that is unknown here keeps its digest. DATA gets the digest of its new
 * bytes. */
static void encrypts_beside_unknown_sections(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  bytes_t everything = read_file("tests/golden/0.3/everything.accx");
  bytes_t file = encrypt(&everything, &ring.key);
  accrt_bundle_t *bundle, *plain;
  OK(open_encrypted(&file, &ring, &bundle));
  OK(accrt_bundle_verify(bundle));
  OK(accrt_bundle_decrypt(bundle, path));
  OK(accrt_bundle_open_path(instance, path, NULL, &plain));
  OK(accrt_bundle_verify(plain));
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(plain);
  assert_true(tables->sections[tables->section_count - 1].type > ACCX_SECTION_DATA);
  accrt_bundle_release(plain);
  accrt_bundle_release(bundle);
  free(everything.data), free(file.data);
}

/* `file` with another code root: an optional feature more. */
static bytes_t with_other_code(const bytes_t* file) {
  parts_t parts = take_apart(file);
  parts.header.optional_features |= UINT64_C(1) << 40;
  bytes_t changed = put_together(&parts);
  free_parts(&parts);
  return changed;
}

/* Encrypted weights beside code that they were not encrypted for: bundles of before 0.4 took them,
 * those of today do not. */
static void weights_belong_to_their_program(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  key_ring_t old_ring;
  for (uint8_t i = 0; i < 32; ++i)
    old_ring.key.bytes[i] = i;
  old_ring.asked = 0, old_ring.empty = false;
  bytes_t file = encrypt(&golden, &ring.key);
  bytes_t old = read_file("tests/golden/0.3/encrypted.accx");
  accrt_bundle_t* bundle;
  for (int other = 0; other < 2; ++other) {
    for (int is_old = 0; is_old < 2; ++is_old) {
      bytes_t swapped = with_other_code(is_old ? &old : &file);
      const bytes_t* used = other ? &swapped : is_old ? &old : &file;
      OK(open_encrypted(used, is_old ? &old_ring : &ring, &bundle));
      const uint64_t size = accrt_bundle_tables(bundle)->data_size_bytes;
      assert_int_equal(accrt_bundle_tables(bundle)->encryption->algorithm, is_old ? 1 : 2);
      unsigned char* target = must_alloc((size_t)size);
      if (other && !is_old) {
        FAILS(DATA_CORRUPT, "another program", accrt_bundle_data_read(bundle, 0, target, size));
        FAILS(DATA_CORRUPT, "(rule 152)", accrt_bundle_data_read(bundle, 0, target, size));
      } else {
        OK(accrt_bundle_data_read(bundle, 0, target, size));
      }
      free(target);
      accrt_bundle_release(bundle);
      free(swapped.data);
    }
  }
  free(old.data), free(file.data);
}

static void weights_may_have_to_be_encrypted(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  bytes_t files[4] = {make_named(NULL, NULL), read_file(GOLDEN),
                      read_file("tests/golden/0.3/encrypted.accx"), encrypt(&golden, &ring.key)};
  static const char* const words[] = {"any", "required", "bound"};
  static const bool fits[3][4] = {
      {true, true, true, true}, {true, false, true, true}, {true, false, false, true}};
  for (size_t w = 0; w < 3; ++w) {
    accrt_instance_t* strict = make_instance("trust.encryption", words[w]);
    for (size_t f = 0; f < 4; ++f) {
      accrt_bundle_t* bundle;
      const accrt_status_t status =
          accrt_bundle_open_memory(strict, files[f].data, files[f].size, NULL, NULL, NULL, &bundle);
      if (fits[w][f])
        OK(status);
      else
        FAILS(UNTRUSTED, "(rule 149)", status);
      accrt_bundle_release(bundle);
    }
    accrt_instance_release(strict);
  }
  for (size_t f = 0; f < 4; ++f)
    free(files[f].data);
}

/* ---- Keys that are left nowhere ---- */

typedef struct watched {
  const unsigned char* secrets[2];
  unsigned found, freed;
} watched_t;

static void* watched_allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  void* memory = NULL;
  return posix_memalign(&memory, alignment < sizeof memory ? sizeof memory : alignment,
                        size_bytes) == 0
             ? memory
             : NULL;
}

/* Freed memory contains no secret. */
static void watched_free(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  watched_t* watched = self;
  (void)alignment;
  ++watched->freed;
  for (size_t i = 0; i < 2; ++i)
    watched->found += memmem(pointer, size_bytes, watched->secrets[i], 32) != NULL;
  free(pointer);
}

/* True when the stack below the caller contains a secret, left there by functions that have
 * returned. */
__attribute__((noinline, no_sanitize_address)) static bool stack_has(const unsigned char* secret) {
  volatile unsigned char here[1 << 15];
  const volatile unsigned char* bytes = here;
  for (size_t i = 0; i + 32 <= sizeof here; ++i) {
    size_t same = 0;
    while (same < 32 && bytes[i + same] == (unsigned char)(secret[same] ^ 0x5a))
      ++same;
    if (same == 32)
      return true;
  }
  return false;
}

static void secrets_are_wiped(void** state) {
  NEEDS_CRYPTO();
  /* The secrets are stored masked here, so that the search finds only plain copies by the
   * library. */
  static unsigned char turned[32];
  static key_ring_t ring;
  accrt_bundle_t* bundle;
  for (size_t i = 0; i < 32; ++i)
    ring.key.bytes[i] = (unsigned char)(0xc3 + 7 * i), turned[i] = ring.key.bytes[i] ^ 0x5a;
  watched_t watched = {.secrets = {ring.key.bytes, alice.bytes}};
  const accrt_allocator_t allocator = {&watched, watched_allocate, watched_free};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  accrt_instance_t* old = instance;
  OK(accrt_instance_create(&options, &instance));
  char key_path[96];
  snprintf(key_path, sizeof key_path, "%s.key", path);
  (void)unlink(key_path);
  OK(accrt_key_write(instance, key_path, ACCRT_KEY_SECRET, &ring.key));
  assert_false(stack_has(turned));
  static accrt_key_t again;
  OK(accrt_key_read(instance, key_path, ACCRT_KEY_SECRET, &again));
  assert_false(stack_has(turned));
  assert_memory_equal(&again, &ring.key, sizeof again);
  (void)unlink(key_path);
  bytes_t signed_file = sign(&golden, &alice, BOTH);
  bytes_t file = encrypt(&signed_file, &ring.key);
  OK(open_encrypted(&file, &ring, &bundle));
  assert_false(stack_has(turned));
  accx_chunk_key_t chunk_key;
  accx_encryption_derive(accrt_instance_crypto_if(instance), &ring.key,
                         accrt_bundle_tables(bundle)->encryption->salt, &chunk_key);
  watched.secrets[1] = chunk_key.bytes; /* the chunks' key leaves with the bundle */
  use_bundle(bundle);
  OK(accrt_bundle_decrypt(bundle, path));
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  instance = old;
  assert_true(watched.freed > 10);
  assert_int_equal(watched.found, 0);
  free(file.data), free(signed_file.data);
}

static void needs_the_right_key(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  bytes_t file = encrypt(&golden, &ring.key);
  accrt_bundle_t* bundle;
  /* Without a key: it opens, its ciphertext can be checked, its weights cannot be read. */
  OK(open_encrypted(&file, NULL, &bundle));
  OK(accrt_bundle_verify(bundle));
  uint32_t index;
  const void* bytes;
  uint64_t size;
  char byte[ACCX_CHUNK_BYTES];
  OK(accrt_bundle_find_constant(bundle, "weight", &index));
  FAILS(PERMISSION_DENIED, "(rule 151)", accrt_bundle_constant_data(bundle, index, &bytes, &size));
  FAILS(PERMISSION_DENIED, "no callback",
        accrt_bundle_data_read(bundle, 0, byte, accrt_bundle_tables(bundle)->data_size_bytes));
  FAILS(PERMISSION_DENIED, "no callback", accrt_bundle_decrypt(bundle, path));
  accrt_bundle_release(bundle);
  ring.empty = true;
  FAILS(PERMISSION_DENIED, "does not have it", open_encrypted(&file, &ring, &bundle));
  assert_null(bundle);
  ring.empty = false;
  ring.key.bytes[31] ^= 1;
  FAILS(PERMISSION_DENIED, "gave another", open_encrypted(&file, &ring, &bundle));
  free(file.data);
}

static void refuses_changed_ciphertext(void** state) {
  NEEDS_CRYPTO();
  key_ring_t ring = {.key = {{7}}};
  bytes_t file = encrypt(&golden, &ring.key);
  parts_t parts = take_apart(&file);
  unsigned char* const places[] = {find_part(&parts, ACCX_SECTION_DATA)->bytes,
                                   find_part(&parts, ACCX_SECTION_TAGS)->bytes,
                                   /* the salt: the key's name still fits */
                                   find_part(&parts, ACCX_SECTION_ENCRYPTION)->bytes + 24};
  for (size_t i = 0; i < 3; ++i) {
    *places[i] ^= 1;
    bytes_t bad = put_together(&parts);
    accrt_bundle_t* bundle;
    uint32_t index;
    const void* bytes;
    uint64_t size;
    OK(open_encrypted(&bad, &ring, &bundle));
    OK(accrt_bundle_find_constant(bundle, "weight", &index));
    FAILS(DATA_CORRUPT, "(rule 152)", accrt_bundle_constant_data(bundle, index, &bytes, &size));
    assert_null(bytes);
    unsigned char* target = must_alloc(ACCX_CHUNK_BYTES);
    const uint64_t data_bytes = accrt_bundle_tables(bundle)->data_size_bytes;
    FAILS(DATA_CORRUPT, "(rule 152)", accrt_bundle_data_read(bundle, 0, target, data_bytes));
    /* The output of the cipher was wiped. */
    for (uint64_t k = 0; k < data_bytes; ++k)
      assert_int_equal(target[k] | bundle->data[k], 0);
    free(target);
    FAILS(DATA_CORRUPT, "data[0]", accrt_bundle_verify(bundle));
    FAILS(DATA_CORRUPT, "(rule 152)", accrt_bundle_decrypt(bundle, path));
    accrt_bundle_release(bundle);
    free(bad.data);
    *places[i] ^= 1;
  }
  free_parts(&parts);
  free(file.data);
}

/* ---- Without libcrypto ---- */

static void does_without_libcrypto(void** state) {
  (void)state;
  accrt_bundle_t* bundle = open_with(without, &golden);
  use_bundle(bundle);
  OK(accrt_bundle_verify(bundle));
  const accrt_bundle_trust_t trust = trust_of(bundle);
  accrt_bundle_t* other = open_with(instance, &golden);
  const accrt_bundle_trust_t same = trust_of(other);
  assert_memory_equal(&trust.code_root, &same.code_root, sizeof same.code_root);
  accrt_bundle_release(other);
  FAILS(UNTRUSTED, "no key", allow(bundle, NULL));
  OK(accrt_instance_trust_code(without, &trust.code_root));
  OK(allow(bundle, NULL));
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = BOTH;
  options.private_key = &alice;
  FAILS(UNSUPPORTED, "libcrypto", accrt_bundle_sign(bundle, &options, path));
  FAILS(UNSUPPORTED, "libcrypto", accrt_bundle_encrypt(bundle, &alice, path));
  accrt_bundle_release(bundle);
}

static void signed_files_without_libcrypto(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, BOTH);
  accrt_instance_t* strict = make_instance("crypto.library", "");
  accrt_bundle_t* bundle = open_with(strict, &file);
  use_bundle(bundle);
  FAILS(UNTRUSTED, "ed25519:8a88e3dd7409f195", allow(bundle, NULL)); /* trusts no key yet */
  OK(accrt_instance_trust_key(strict, &alice_public));
  FAILS(UNSUPPORTED, "libcrypto.so.3", allow(bundle, NULL));
  FAILS(UNSUPPORTED, "libcrypto.so.3", accrt_bundle_verify(bundle));
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  FAILS(UNSUPPORTED, "libcrypto.so.3", accrt_bundle_signature(bundle, 0, &info));
  accrt_bundle_release(bundle);
  accrt_instance_release(strict);
  key_ring_t ring = {.key = {{7}}};
  bytes_t encrypted = encrypt(&golden, &ring.key);
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.secret_key = give_key;
  options.secret_key_user = &ring;
  FAILS(UNSUPPORTED, "libcrypto.so.3",
        accrt_bundle_open_memory(without, encrypted.data, encrypted.size, NULL, NULL, &options,
                                 &bundle));
  free(encrypted.data);
  free(file.data);
}

static void every_rule_was_provoked(void** state) {
  NEEDS_CRYPTO();
  static const uint32_t rules[] = {ACCX_RULE_ENCRYPTION_KEY, ACCX_RULE_TAG, ACCX_RULE_ENCRYPTED};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i)
    assert_true(seen_rules[rules[i]]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(encrypts_and_decrypts),
      cmocka_unit_test(encrypts_beside_unknown_sections),
      cmocka_unit_test(weights_belong_to_their_program),
      cmocka_unit_test(weights_may_have_to_be_encrypted),
      cmocka_unit_test(secrets_are_wiped),
      cmocka_unit_test(needs_the_right_key),
      cmocka_unit_test(refuses_changed_ciphertext),
      cmocka_unit_test(does_without_libcrypto),
      cmocka_unit_test(signed_files_without_libcrypto),
      cmocka_unit_test(every_rule_was_provoked),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
