/* loader/trust_test.c - trees, signatures and policies: what is made is right, what was changed is
 * refused, and who may run. */
#include "loader/trust_test.h"

/* ---- Signing ---- */

static void signs_both_roots(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, BOTH);
  accrt_bundle_t* bundle = open_with(instance, &file);
  use_bundle(bundle);
  OK(accrt_bundle_verify(bundle));
  accrt_bundle_trust_t trust = trust_of(bundle);
  assert_int_equal(trust.signature_count, 2);
  assert_true(trust.has_code_root && trust.has_weight_root && trust.has_host_code);
  assert_false(trust.code_trusted || trust.weights_trusted || trust.encrypted);
  for (uint32_t i = 0; i < 2; ++i) {
    accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
    OK(accrt_bundle_signature(bundle, i, &info));
    assert_int_equal(info.scope, i == 0 ? ACCRT_SCOPE_CODE : ACCRT_SCOPE_WEIGHTS);
    assert_memory_equal(&info.key, &alice_public, sizeof info.key);
    assert_true(info.valid);
    assert_false(info.trusted);
  }
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  FAILS(OUT_OF_RANGE, "2 of 2", accrt_bundle_signature(bundle, 2, &info));
  /* The unsigned file has the same roots to compute. */
  accrt_bundle_t* plain = open_with(instance, &golden);
  const accrt_bundle_trust_t before = trust_of(plain);
  assert_memory_equal(&before.code_root, &trust.code_root, sizeof trust.code_root);
  assert_false(before.has_code_root || before.has_weight_root || before.signature_count);
  accrt_bundle_release(plain);
  accrt_bundle_release(bundle);
  free(file.data);
}

static void keeps_other_signatures(void** state) {
  NEEDS_CRYPTO();
  bytes_t one = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  bytes_t two = sign(&one, &bob, BOTH);
  bytes_t again = sign(&two, &alice, ACCRT_SCOPE_CODE); /* the same once more */
  assert_int_equal(again.size, two.size);
  assert_memory_equal(again.data, two.data, two.size);
  bytes_t other_way = sign(&golden, &bob, BOTH);
  bytes_t same = sign(&other_way, &alice, ACCRT_SCOPE_CODE);
  assert_int_equal(same.size, two.size);
  assert_memory_equal(same.data, two.data, two.size);
  accrt_bundle_t* bundle = open_with(instance, &two);
  assert_int_equal(trust_of(bundle).signature_count, 3);
  OK(accrt_bundle_verify(bundle));
  accrt_bundle_release(bundle);
  free(one.data), free(two.data), free(again.data), free(other_way.data), free(same.data);
}

static void signing_code_wants_a_word(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  accrt_bundle_t* bundle = open_with(instance, &file);
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = BOTH;
  options.private_key = &bob;
  FAILS(PERMISSION_DENIED, "vouch", accrt_bundle_sign(bundle, &options, path));
  options.scopes = ACCRT_SCOPE_WEIGHTS; /* are no code */
  OK(accrt_bundle_sign(bundle, &options, path));
  options.scopes = BOTH;
  options.private_key = &alice; /* has signed it before */
  OK(accrt_bundle_sign(bundle, &options, path));
  options.scopes = 4;
  FAILS(INVALID_ARGUMENT, "scopes 0x4", accrt_bundle_sign(bundle, &options, path));
  options.scopes = 0;
  FAILS(INVALID_ARGUMENT, "scopes 0x0", accrt_bundle_sign(bundle, &options, path));
  options.scopes = BOTH;
  options.flags = 2;
  FAILS(INVALID_ARGUMENT, "flags 0x2", accrt_bundle_sign(bundle, &options, path));
  options.flags = 0;
  options.private_key = NULL;
  FAILS(INVALID_ARGUMENT, "no key", accrt_bundle_sign(bundle, &options, path));
  options.private_key = &alice;
  FAILS(IO, "/no/such", accrt_bundle_sign(bundle, &options, "/no/such/folder/x.accx"));
  FAILS(INVALID_ARGUMENT, "NULL", accrt_bundle_sign(bundle, &options, NULL));
  accrt_bundle_release(bundle);
  free(file.data);
}

/* A bundle may replace itself with another signature added, and the file keeps its mode. */
static void signs_in_place(void** state) {
  NEEDS_CRYPTO();
  FILE* out = fopen(path, "wb");
  assert_non_null(out);
  assert_int_equal(fwrite(golden.data, 1, golden.size, out), golden.size);
  fclose(out);
  assert_int_equal(chmod(path, 0640), 0);
  accrt_bundle_t* bundle;
  OK(accrt_bundle_open_path(instance, path, NULL, &bundle));
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = BOTH;
  options.private_key = &alice;
  options.flags = ACCRT_SIGN_VOUCH;
  OK(accrt_bundle_sign(bundle, &options, path));
  use_bundle(bundle); /* the old file */
  accrt_bundle_release(bundle);
  struct stat facts;
  assert_int_equal(stat(path, &facts), 0);
  assert_int_equal(facts.st_mode & 0777, 0640);
  OK(accrt_bundle_open_path(instance, path, NULL, &bundle));
  OK(accrt_bundle_verify(bundle));
  accrt_bundle_release(bundle);
}

/* ---- What fails while signing leaves nothing behind ---- */

typedef struct failing {
  long count;
  long fail_at; /* 0: never */
  long live;
} failing_t;

static void* failing_allocate(void* self, size_t size, size_t alignment) {
  failing_t* failing = self;
  void* memory = NULL;
  if (++failing->count == failing->fail_at || posix_memalign(&memory, alignment, size) != 0)
    return NULL;
  ++failing->live;
  return memory;
}

static void failing_deallocate(void* self, void* pointer, size_t size, size_t alignment) {
  failing_t* failing = self;
  (void)size;
  (void)alignment;
  --failing->live;
  free(pointer);
}

/* How many files in /tmp begin with the name of `path`. */
static uint32_t count_files(void) {
  uint32_t count = 0;
  DIR* folder = opendir("/tmp");
  assert_non_null(folder);
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;)
    count += strncmp(entry->d_name, path + 5, strlen(path + 5)) == 0;
  closedir(folder);
  return count;
}

static accrt_status_t sign_or_encrypt(accrt_bundle_t* bundle, int which) {
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = BOTH;
  options.private_key = &alice;
  options.flags = ACCRT_SIGN_VOUCH;
  return which == 0 ? accrt_bundle_sign(bundle, &options, path)
                    : accrt_bundle_encrypt(bundle, &bob, path);
}

static void signing_without_memory(void** state) {
  NEEDS_CRYPTO();
  failing_t failing = {0};
  const accrt_allocator_t allocator = {&failing, failing_allocate, failing_deallocate};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  accrt_instance_t* poor;
  OK(accrt_instance_create(&options, &poor));
  for (int which = 0; which < 2; ++which) {
    accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
    (void)unlink(path);
    for (long n = 1; status != ACCRT_OK; ++n) {
      accrt_bundle_t* bundle = open_with(poor, &golden);
      failing.fail_at = failing.count + n;
      status = sign_or_encrypt(bundle, which);
      failing.fail_at = 0;
      assert_true(status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY);
      assert_int_equal(count_files(), status == ACCRT_OK);
      accrt_bundle_release(bundle);
      assert_true(n < 100);
    }
  }
  accrt_instance_release(poor);
  assert_int_equal(failing.live, 0);
}

/* A disk that is full: here, a file that may not grow. */
static void signing_without_room(void** state) {
  NEEDS_CRYPTO();
  struct rlimit limit, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
  (void)unlink(path);
  accrt_bundle_t* bundle = open_with(instance, &golden);
  for (rlim_t bytes = 0; bytes < golden.size; bytes += golden.size / 3) {
    small = (struct rlimit){bytes, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const accrt_status_t status = sign_or_encrypt(bundle, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    FAILS(IO, path, status);
    assert_int_equal(count_files(), 0);
  }
  (void)signal(SIGXFSZ, before);
  accrt_bundle_release(bundle);
}

/* ---- What was changed ---- */

static void refuses_changes(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, BOTH);
  parts_t parts = take_apart(&file);
  accx_tree_t* tree = record_of(&parts, ACCX_SECTION_TREE, sizeof *tree, 0);
  accx_signature_t* signature = record_of(&parts, ACCX_SECTION_SIGNATURES, sizeof *signature, 1);
  accx_leaf_t* leaf = record_of(&parts, ACCX_SECTION_LEAVES, sizeof *leaf, 0);
  tree->code_root[31] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 142)");
  tree->code_root[31] ^= 1;
  tree->weight_root[0] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 143)");
  tree->weight_root[0] ^= 1;
  leaf->bytes[5] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 144)");
  leaf->bytes[5] ^= 1;
  signature->signature[63] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 145)");
  signature->signature[63] ^= 1;
  signature->key[0] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 145)");
  signature->key[0] ^= 1;
  /* A signature of one scope is none of the other. */
  accx_signature_t both[2] = {signature[-1], signature[0]};
  memcpy(signature[-1].signature, both[1].signature, sizeof both[1].signature);
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 145)");
  signature[-1] = both[0];
  /* Weights with right fast digests. */
  part_t* data = find_part(&parts, ACCX_SECTION_DATA);
  data->bytes[0] ^= 1;
  EXPECT_RULE(&parts, DATA_CORRUPT, "(rule 144)");
  data->bytes[0] ^= 1;
  free_parts(&parts);
  free(file.data);
}

/* Every byte of every section that says what runs is under the code root: of each some, with right
 * fast digests. */
static void code_root_covers_sections(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  parts_t parts = take_apart(&file);
  (void)add_part(&parts, ACCX_SECTION_VENDOR_FIRST, 0, "acme.more", 0, 5);
  bytes_t more = put_together(&parts);
  accrt_bundle_t* bundle = open_with(instance, &more);
  FAILS(DATA_CORRUPT, "(rule 142)", accrt_bundle_verify(bundle)); /* a section more */
  accrt_bundle_release(bundle);
  free(more.data);
  remove_part(&parts, ACCX_SECTION_VENDOR_FIRST);
  uint32_t refused = 0;
  for (uint32_t i = 0; i < parts.count; ++i) {
    part_t* part = &parts.parts[i];
    if (!accx_tree_covers(part->section.type))
      continue;
    for (size_t at = 0; at < part->size_bytes; at += part->size_bytes / 13 + 1) {
      part->bytes[at] ^= 0x20;
      bytes_t changed = put_together(&parts);
      accrt_bundle_t* opened;
      if (accrt_bundle_open_memory(instance, changed.data, changed.size, NULL, NULL, NULL,
                                   &opened) == ACCRT_OK) {
        FAILS(DATA_CORRUPT, "(rule 142)", accrt_bundle_verify(opened));
        accrt_bundle_release(opened);
        ++refused;
      }
      free(changed.data);
      part->bytes[at] ^= 0x20;
    }
  }
  assert_true(refused >= 10); /* names, texts, code: what no other rule refuses */
  free_parts(&parts);
  free(file.data);
}

/* ---- Policies ---- */

static void host_code_needs_trust(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  accrt_instance_t* strict = make_instance("trust.policy", "signed");
  accrt_bundle_t* plain = open_with(strict, &golden);
  accrt_bundle_t* bundle = open_with(strict, &file);
  FAILS(UNTRUSTED, "signed by no key", allow(plain, NULL));
  FAILS(UNTRUSTED, "signed by ed25519:8a88e3dd7409f195, and", allow(bundle, NULL));
  FAILS(UNTRUSTED, "(rule 146)", allow(bundle, NULL));
  OK(accrt_instance_trust_key(strict, &alice_public));
  OK(allow(bundle, NULL));
  assert_true(trust_of(bundle).code_trusted);
  FAILS(UNTRUSTED, "no key", allow(plain, NULL));
  const uint32_t bit = 12345;
  FAILS(DATA_CORRUPT, "(rule 113)", allow(bundle, &bit));
  /* By its root: the signed file has the same. */
  const accrt_bundle_trust_t trust = trust_of(plain);
  accrt_instance_t* other = make_instance(NULL, NULL);
  accrt_bundle_t* by_root = open_with(other, &golden);
  FAILS(UNTRUSTED, "no key", allow(by_root, NULL));
  OK(accrt_instance_trust_code(other, &trust.code_root));
  OK(allow(by_root, NULL));
  accrt_bundle_release(by_root);
  accrt_instance_release(other);
  accrt_bundle_release(plain);
  accrt_bundle_release(bundle);
  accrt_instance_release(strict);
  /* None at all, and all. */
  accrt_instance_t* none = make_instance("trust.policy", "no-host-code");
  OK(accrt_instance_trust_key(none, &alice_public));
  bundle = open_with(none, &file);
  FAILS(UNTRUSTED, "'no-host-code'", allow(bundle, NULL));
  accrt_bundle_release(bundle);
  accrt_instance_release(none);
  accrt_instance_t* all = make_instance("trust.policy", "all");
  bundle = open_with(all, &golden);
  OK(allow(bundle, NULL));
  accrt_bundle_release(bundle);
  accrt_instance_release(all);
  free(file.data);
}

/* A trusted key's signature that does not fit is none; nor is a good one beside code that was
 * changed. */
static void bad_signatures_trust_nothing(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  accrt_instance_t* strict = make_instance(NULL, NULL);
  OK(accrt_instance_trust_key(strict, &alice_public));
  parts_t parts = take_apart(&file);
  accx_signature_t* signature = record_of(&parts, ACCX_SECTION_SIGNATURES, sizeof *signature, 0);
  signature->signature[0] ^= 1;
  bytes_t bad = put_together(&parts);
  accrt_bundle_t* bundle = open_with(strict, &bad);
  FAILS(UNTRUSTED, "(rule 146)", allow(bundle, NULL));
  accrt_bundle_release(bundle);
  free(bad.data);
  signature->signature[0] ^= 1;
  part_t* code = find_part(&parts, ACCX_SECTION_CODE);
  code->bytes[code->size_bytes - 1] ^= 1;
  bad = put_together(&parts);
  bundle = open_with(strict, &bad);
  FAILS(DATA_CORRUPT, "(rule 142)", allow(bundle, NULL));
  accrt_bundle_release(bundle);
  free(bad.data);
  free_parts(&parts);
  free(file.data);
  accrt_instance_release(strict);
}

/* Many threads query while keys are added. No query is refused after its key was added. */
typedef struct asker {
  accrt_bundle_t* bundle;
  accrt_instance_t* instance;
  uint8_t number;
  accrt_status_t status;
} asker_t;

static void* ask(void* user) {
  asker_t* asker = user;
  for (uint8_t i = 0; i < 20; ++i) {
    const accrt_key_t other = {{asker->number, i, 1}}; /* 0 and 1 are weak keys */
    if (accrt_instance_trust_key(asker->instance, &other) != ACCRT_OK)
      return NULL;
  }
  if (accrt_instance_trust_key(asker->instance, &alice_public) != ACCRT_OK)
    return NULL;
  asker->status = allow(asker->bundle, NULL);
  if (asker->status == ACCRT_OK)
    asker->status = accrt_bundle_verify(asker->bundle);
  return NULL;
}

static void threads_ask_at_once(void** state) {
  NEEDS_CRYPTO();
  bytes_t file = sign(&golden, &alice, BOTH);
  accrt_instance_t* strict = make_instance(NULL, NULL);
  accrt_bundle_t* bundle = open_with(strict, &file);
  asker_t askers[4];
  pthread_t threads[4];
  for (uint8_t i = 0; i < 4; ++i) {
    askers[i] = (asker_t){bundle, strict, i, ACCRT_ERROR_INTERNAL};
    assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    assert_int_equal(askers[i].status, ACCRT_OK);
  }
  accrt_bundle_release(bundle);
  accrt_instance_release(strict);
  free(file.data);
}

static void weights_may_have_to_be_signed(void** state) {
  NEEDS_CRYPTO();
  accrt_instance_t* strict = make_instance("trust.weights", "signed");
  accrt_bundle_t* bundle;
  bytes_t code = sign(&golden, &alice, ACCRT_SCOPE_CODE);
  bytes_t both = sign(&golden, &alice, BOTH);
  OK(accrt_instance_trust_key(strict, &alice_public));
  FAILS(UNTRUSTED, "signed by no key",
        accrt_bundle_open_memory(strict, golden.data, golden.size, NULL, NULL, NULL, &bundle));
  FAILS(UNTRUSTED, "(rule 147)",
        accrt_bundle_open_memory(strict, code.data, code.size, NULL, NULL, NULL, &bundle));
  bundle = open_with(strict, &both);
  use_bundle(bundle);
  assert_true(trust_of(bundle).weights_trusted);
  accrt_bundle_release(bundle);
  /* Changed weights with right fast digests, also for who does not want them checked. */
  parts_t parts = take_apart(&both);
  find_part(&parts, ACCX_SECTION_DATA)->bytes[0] ^= 1;
  bytes_t bad = put_together(&parts);
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  for (options.verify = ACCRT_VERIFY_DEFAULT; options.verify <= ACCRT_VERIFY_NO_DATA;
       options.verify += ACCRT_VERIFY_NO_DATA) {
    OK(accrt_bundle_open_memory(strict, bad.data, bad.size, NULL, NULL, &options, &bundle));
    unsigned char* target = must_alloc(ACCX_CHUNK_BYTES);
    FAILS(DATA_CORRUPT, "(rule 144)",
          accrt_bundle_data_read(bundle, 0, target, accrt_bundle_tables(bundle)->data_size_bytes));
    free(target);
    uint32_t index;
    const void* bytes;
    uint64_t size;
    OK(accrt_bundle_find_constant(bundle, "weight", &index));
    FAILS(DATA_CORRUPT, "(rule 144)", accrt_bundle_constant_data(bundle, index, &bytes, &size));
    accrt_bundle_release(bundle);
  }
  find_part(&parts, ACCX_SECTION_DATA)->bytes[0] ^= 1;
  ((accx_leaf_t*)record_of(&parts, ACCX_SECTION_LEAVES, 32, 0))->bytes[0] ^= 1;
  free(bad.data);
  bad = put_together(&parts);
  FAILS(DATA_CORRUPT, "(rule 143)",
        accrt_bundle_open_memory(strict, bad.data, bad.size, NULL, NULL, NULL, &bundle));
  free(bad.data);
  free_parts(&parts);
  free(code.data);
  free(both.data);
  accrt_instance_release(strict);
}

/* ---- Keys that end ---- */

static accrt_instance_t* make_at(const char* clock, const char* weights) {
  const accrt_option_t list[] = {{"trust.clock", clock}, {"trust.weights", weights}};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = list;
  options.option_count = 2;
  options.option_size_bytes = sizeof list[0];
  accrt_instance_t* made;
  OK(accrt_instance_create(&options, &made));
  return made;
}

static void trust(accrt_instance_t* where, uint32_t roles, int64_t not_after_s) {
  accrt_trust_key_options_t options = ACCRT_TRUST_KEY_OPTIONS_INIT;
  options.roles = roles;
  options.not_after_s = not_after_s;
  OK(accrt_instance_trust_key_with(where, &alice_public, &options));
}

/* A fact against a key is reported for code and for weights. A second signer may replace the
 * first. */
static void keys_end(void** state) {
  NEEDS_CRYPTO();
  static const struct {
    uint32_t roles;
    int64_t not_after_s;
    const char* revoked;
    bool code, weights;
    const char* text;
  } cases[] = {
      {BOTH, 0, NULL, true, true, ""},
      {0, 1000, NULL, true, true, ""},
      {0, 999, NULL, false, false, "expired at 1970-01-01T00:16:39Z (by accrt_instance_trust_key"},
      {ACCRT_SCOPE_CODE, 0, NULL, true, false, "trusted only for code"},
      {ACCRT_SCOPE_WEIGHTS, 0, NULL, false, true, "trusted only for weights"},
      {0, 0, "stolen", false, false, "revoked at 1970-01-01T00:16:40Z, stolen (by accrt_inst"},
      {ACCRT_SCOPE_CODE, 999, "stolen", false, false, "revoked at 1970-01-01T00:16:40Z, stolen"},
  };
  bytes_t file = sign(&golden, &alice, BOTH);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    accrt_instance_t* any = make_at("1000", "any");
    accrt_instance_t* strict = make_at("1000", "signed");
    accrt_bundle_t* bundle = open_with(any, &file);
    for (int both = 0; both < 2; ++both) {
      trust(both ? strict : any, cases[i].roles, cases[i].not_after_s);
      if (cases[i].revoked != NULL)
        OK(accrt_instance_revoke_key(both ? strict : any, &alice_public, cases[i].revoked));
    }
    if (cases[i].code)
      OK(allow(bundle, NULL));
    else
      FAILS(UNTRUSTED, cases[i].text, allow(bundle, NULL));
    const accrt_bundle_trust_t found = trust_of(bundle);
    assert_int_equal(found.code_trusted, cases[i].code);
    assert_int_equal(found.weights_trusted, cases[i].weights);
    for (uint32_t s = 0; s < found.signature_count; ++s) {
      accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
      OK(accrt_bundle_signature(bundle, s, &info));
      assert_int_equal(info.trusted,
                       info.scope == ACCRT_SCOPE_CODE ? cases[i].code : cases[i].weights);
    }
    accrt_bundle_release(bundle);
    if (cases[i].weights)
      bundle = open_with(strict, &file);
    else
      FAILS(UNTRUSTED, cases[i].text,
            accrt_bundle_open_memory(strict, file.data, file.size, NULL, NULL, NULL, &bundle));
    accrt_bundle_release(bundle);
    accrt_instance_release(strict);
    accrt_instance_release(any);
  }
  /* Bob's signature counts beside that of a key that was revoked. */
  bytes_t two = sign(&file, &bob, BOTH);
  accrt_instance_t* any = make_at("1000", "any");
  accrt_key_t bob_public;
  OK(accrt_key_public(any, &bob, &bob_public));
  trust(any, 0, 0);
  OK(accrt_instance_revoke_key(any, &alice_public, NULL));
  accrt_bundle_t* bundle = open_with(any, &two);
  FAILS(UNTRUSTED, "revoked at", allow(bundle, NULL));
  OK(accrt_instance_trust_key(any, &bob_public));
  OK(allow(bundle, NULL));
  accrt_bundle_release(bundle);
  accrt_instance_release(any);
  free(two.data);
  free(file.data);
}

static void versions_have_floors(void** state) {
  (void)state;
  static const struct {
    const char *name, *version;
    bool any, required;
    const char* text;
  } cases[] = {
      {"llama", "12", true, true, ""},
      {"llama", "13", true, true, ""},
      {"llama", "18446744073709551615", true, true, ""},
      {"llama", "11", false, false, "'llama' has version 11, and nothing below 12 is trusted (by"},
      {"llama", "0", false, false, "(rule 148)"},
      {"llama", NULL, false, false, "version (none)"},
      {"llama", "", false, false, "(rule 148)"},
      {"llama", "12.5", false, false, "version 12.5"},
      {"llama", "+12", false, false, "(rule 148)"},
      {"llama", "-1", false, false, "(rule 148)"},
      {"llama", "18446744073709551616", false, false, "(rule 148)"},
      {"llam", "1", true, false, "'llam', which has no floor"},
      {NULL, "99", true, false, "missing, which has no floor"},
  };
  accrt_instance_t* any = make_instance("trust.floors", "any");
  accrt_instance_t* required = make_instance("trust.floors", "required");
  for (int i = 0; i < 2; ++i) {
    OK(accrt_instance_trust_floor(i ? any : required, "llama", 12));
    OK(accrt_instance_trust_floor(i ? any : required, "llama", 3));
  }
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    bytes_t file = make_named(cases[i].name, cases[i].version);
    for (int strict = 0; strict < 2; ++strict) {
      accrt_bundle_t* bundle = open_with(strict ? required : any, &file);
      if (strict ? cases[i].required : cases[i].any)
        OK(accrt_bundle_allow_version(bundle));
      else
        FAILS(UNTRUSTED, cases[i].text, accrt_bundle_allow_version(bundle));
      accrt_bundle_release(bundle);
    }
    free(file.data);
  }
  accrt_instance_release(required);
  accrt_instance_release(any);
}

static void every_rule_was_provoked(void** state) {
  NEEDS_CRYPTO();
  static const uint32_t rules[] = {
      ACCX_RULE_CODE_ROOT,  ACCX_RULE_WEIGHT_ROOT,  ACCX_RULE_LEAF, ACCX_RULE_SIGNED,
      ACCX_RULE_CODE_TRUST, ACCX_RULE_WEIGHT_TRUST, ACCX_RULE_FLOOR};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i)
    assert_true(seen_rules[rules[i]]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(signs_both_roots),
      cmocka_unit_test(keeps_other_signatures),
      cmocka_unit_test(signing_code_wants_a_word),
      cmocka_unit_test(signs_in_place),
      cmocka_unit_test(signing_without_memory),
      cmocka_unit_test(signing_without_room),
      cmocka_unit_test(refuses_changes),
      cmocka_unit_test(code_root_covers_sections),
      cmocka_unit_test(host_code_needs_trust),
      cmocka_unit_test(bad_signatures_trust_nothing),
      cmocka_unit_test(threads_ask_at_once),
      cmocka_unit_test(weights_may_have_to_be_signed),
      cmocka_unit_test(keys_end),
      cmocka_unit_test(versions_have_floors),
      cmocka_unit_test(every_rule_was_provoked),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
