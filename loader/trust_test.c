/* loader/trust_test.c - trees, signatures, policies and encryption: what is made is right, what was
 * changed is refused (rules 142 to 149, 151, 152), and what all of it does without libcrypto.
 *
 * Runs from the root of the source tree (tests/golden). Bundles that are to be signed are written
 * to /tmp.
 */
#define _GNU_SOURCE
#include "loader/trust.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "accrt/write.h"
#include "loader/data.h"
#include "loader/encryption.h"
#include "loader/internal.h"
#include "loader/test_support.h"
#include "loader/tree.h"
#include "runtime/core/trust.h"

#define GOLDEN "tests/golden/0.2/everything.accx"
#define BOTH (ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS)

static accrt_instance_t* instance; /* trusts no key, with libcrypto */
static accrt_instance_t* without;  /* without libcrypto */
static accrt_key_t alice, bob;     /* private */
static accrt_key_t alice_public;
static char path[64];
static bytes_t golden;
static unsigned char seen_rules[256];
static bool have_crypto;

static accrt_instance_t* make_instance(const char* key, const char* value) {
  const accrt_option_t option = {key, value};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = &option;
  options.option_count = key != NULL;
  options.option_size_bytes = sizeof option;
  accrt_instance_t* made;
  assert_int_equal(accrt_instance_create(&options, &made), ACCRT_OK);
  return made;
}

static int setup(void** state) {
  (void)state;
  unsetenv("ACCRT_TRUST");
  unsetenv("ACCRT_TRUST_KEYS");
  instance = make_instance(NULL, NULL);
  without = make_instance("crypto.library", "");
  have_crypto = accrt_instance_crypto_if(instance) != NULL;
  memset(&alice, 1, sizeof alice);
  memset(&bob, 2, sizeof bob);
  if (have_crypto && accrt_key_public(instance, &alice, &alice_public) != ACCRT_OK)
    return 1;
  golden = read_file(GOLDEN);
  snprintf(path, sizeof path, "/tmp/accrt-trust-test-%ld.accx", (long)getpid());
  return 0;
}

static int teardown(void** state) {
  (void)state;
  free(golden.data);
  (void)unlink(path);
  accrt_instance_release(without);
  accrt_instance_release(instance);
  return 0;
}

#define NEEDS_CRYPTO()                                                                             \
  do {                                                                                             \
    (void)state;                                                                                   \
    if (!have_crypto) {                                                                            \
      print_message("skipped: no libcrypto\n");                                                    \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)

/* ---- Help ---- */

static void check(accrt_status_t status, accrt_status_t wanted, const char* text, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  const char* rule = strstr(error.message, "(rule ");
  const unsigned long number = rule != NULL ? strtoul(rule + 6, NULL, 10) : 0;
  if (status != ACCRT_OK && number < sizeof seen_rules)
    seen_rules[number] = 1;
  if (status == wanted && (status == ACCRT_OK || strstr(error.message, text) != NULL) &&
      strchr(error.message, '\n') == NULL)
    return;
  fail_msg("line %d: %s, expected %s with '%s': %s", line, accrt_status_name(status),
           accrt_status_name(wanted), text, error.message);
}
#define OK(call) check((call), ACCRT_OK, "", __LINE__)
#define FAILS(name, text, call) check((call), ACCRT_ERROR_##name, (text), __LINE__)

static accrt_bundle_t* open_with(accrt_instance_t* where, const bytes_t* file) {
  accrt_bundle_t* bundle;
  OK(accrt_bundle_open_memory(where, file->data, file->size, NULL, NULL, NULL, &bundle));
  return bundle;
}

/* `file` with a signature of `key`. */
static bytes_t sign(const bytes_t* file, const accrt_key_t* key, uint32_t scopes) {
  accrt_bundle_t* bundle = open_with(instance, file);
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = scopes;
  options.private_key = key;
  options.flags = ACCRT_SIGN_VOUCH;
  OK(accrt_bundle_sign(bundle, &options, path));
  accrt_bundle_release(bundle);
  return read_file(path);
}

/* Puts the parts together, opens and verifies all, and expects that to fail. */
static void expect_rule(parts_t* parts, accrt_status_t status, const char* rule, int line) {
  bytes_t file = put_together(parts);
  accrt_bundle_t* bundle = open_with(instance, &file);
  check(accrt_bundle_verify(bundle), status, rule, line);
  accrt_bundle_release(bundle);
  free(file.data);
}
#define EXPECT_RULE(parts, status, rule) expect_rule((parts), ACCRT_ERROR_##status, rule, __LINE__)

static accrt_bundle_trust_t trust_of(accrt_bundle_t* bundle) {
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  OK(accrt_bundle_trust(bundle, &trust));
  return trust;
}

static uint32_t host_image(const accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (tables->images[i].kind == ACCX_IMAGE_HOST_ELF)
      return i;
  }
  fail();
  return 0;
}

/* Whether the first host image may run; with `bit` flipped in it when that is not NULL. */
static accrt_status_t allow(accrt_bundle_t* bundle, const uint32_t* bit) {
  const uint32_t image = host_image(bundle);
  const size_t size = (size_t)accrt_bundle_tables(bundle)->images[image].size_bytes;
  unsigned char* bytes = must_alloc(size);
  OK(accrt_bundle_image_copy(bundle, image, bytes));
  if (bit != NULL)
    bytes[*bit / 8 % size] ^= (unsigned char)(1u << *bit % 8);
  const accrt_status_t status = accrt_bundle_allow_image(bundle, image, bytes);
  free(bytes);
  return status;
}

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

static bytes_t make_named(const char* name, const char* version) {
  accrt_bundle_writer_t* writer;
  OK(accrt_bundle_writer_create(NULL, &writer));
  if (name != NULL)
    OK(accrt_bundle_writer_add_metadata(writer, "name", name));
  if (version != NULL)
    OK(accrt_bundle_writer_add_metadata(writer, "version", version));
  OK(accrt_bundle_writer_write_path(writer, path));
  accrt_bundle_writer_release(writer);
  return read_file(path);
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
  static const uint32_t rules[] = {
      ACCX_RULE_CODE_ROOT,  ACCX_RULE_WEIGHT_ROOT,  ACCX_RULE_LEAF,           ACCX_RULE_SIGNED,
      ACCX_RULE_CODE_TRUST, ACCX_RULE_WEIGHT_TRUST, ACCX_RULE_ENCRYPTION_KEY, ACCX_RULE_TAG,
      ACCX_RULE_FLOOR,      ACCX_RULE_ENCRYPTED};
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
