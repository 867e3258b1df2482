/* runtime/core/trust_test.c - key files, valid and invalid, and an instance's trust from options
 * and the environment. */
#define _GNU_SOURCE
#include "runtime/core/trust.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "runtime/core/instance.h"

static accrt_instance_t* instance;
static char folder[64];

static int setup(void** state) {
  (void)state;
  unsetenv("ACCRT_TRUST");
  unsetenv("ACCRT_TRUST_KEYS");
  umask(022);
  strcpy(folder, "/tmp/accrt-trust-test-XXXXXX");
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  return mkdtemp(folder) == NULL || accrt_instance_create(&options, &instance) != ACCRT_OK;
}

static int teardown(void** state) {
  (void)state;
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  accrt_instance_release(instance);
  return system(command);
}

/* The path of a file in the folder; one at a time for each of four. */
static const char* at(const char* name) {
  static char paths[4][512];
  static unsigned next;
  char* path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static const char* put(const char* name, const char* text, mode_t mode) {
  const char* path = at(name);
  (void)unlink(path);
  FILE* file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  assert_int_equal(chmod(path, mode), 0);
  return path;
}

static void expect(accrt_status_t status, accrt_status_t wanted, const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status != wanted || strstr(error.message, text) == NULL ||
      strchr(error.message, '\n') != NULL)
    fail_msg("%s, expected %s with '%s': %s", accrt_status_name(status), accrt_status_name(wanted),
             text, error.message);
}

/* The key of RFC 8032's first test, as OpenSSL 3 writes it. */
#define PRIVATE                                                                                    \
  "-----BEGIN PRIVATE KEY-----\n"                                                                  \
  "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"                             \
  "-----END PRIVATE KEY-----\n"
#define PUBLIC                                                                                     \
  "-----BEGIN PUBLIC KEY-----\n"                                                                   \
  "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"                                 \
  "-----END PUBLIC KEY-----\n"
static const unsigned char private_bytes[4] = {0x9d, 0x61, 0xb1, 0x9d};
static const unsigned char public_bytes[4] = {0xd7, 0x5a, 0x98, 0x01};

/* ---- Files ---- */

static void reads_what_openssl_writes(void** state) {
  (void)state;
  accrt_key_t key;
  assert_int_equal(
      accrt_key_read(instance, put("private.pem", PRIVATE, 0600), ACCRT_KEY_PRIVATE, &key),
      ACCRT_OK);
  assert_memory_equal(key.bytes, private_bytes, 4);
  accrt_key_t derived;
  if (accrt_key_public(instance, &key, &derived) == ACCRT_OK)
    assert_memory_equal(derived.bytes, public_bytes, 4);
  assert_int_equal(
      accrt_key_read(instance, put("public.pem", PUBLIC, 0644), ACCRT_KEY_PUBLIC, &key), ACCRT_OK);
  assert_memory_equal(key.bytes, public_bytes, 4);
  /* Text around it, other line ends. */
  const char* text =
      "# a comment\r\n-----BEGIN PUBLIC KEY-----\r\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7T\r\n"
      "yWQHOg7hcvPapiMlrwIaaPcHURo=\r\n-----END PUBLIC KEY-----\r\n";
  assert_int_equal(accrt_key_read(instance, put("public.pem", text, 0644), ACCRT_KEY_PUBLIC, &key),
                   ACCRT_OK);
  assert_memory_equal(key.bytes, public_bytes, 4);
}

static void writes_what_it_reads(void** state) {
  (void)state;
  for (uint32_t kind = ACCRT_KEY_PRIVATE; kind <= ACCRT_KEY_SECRET; ++kind) {
    accrt_key_t key, again;
    struct stat facts;
    assert_int_equal(accrt_key_generate(instance, &key), ACCRT_OK);
    const char* path = at("new.pem");
    (void)unlink(path);
    assert_int_equal(accrt_key_write(instance, path, kind, &key), ACCRT_OK);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, kind == ACCRT_KEY_PUBLIC ? 0644 : 0600);
    assert_int_equal(accrt_key_read(instance, path, kind, &again), ACCRT_OK);
    assert_memory_equal(&key, &again, sizeof key);
    expect(accrt_key_write(instance, path, kind, &key), ACCRT_ERROR_ALREADY_EXISTS, "already");
    /* A link is not followed to write. */
    (void)unlink(at("link.pem"));
    assert_int_equal(symlink(at("elsewhere.pem"), at("link.pem")), 0);
    expect(accrt_key_write(instance, at("link.pem"), kind, &key), ACCRT_ERROR_ALREADY_EXISTS, "");
    assert_int_not_equal(access(at("elsewhere.pem"), F_OK), 0);
  }
  accrt_key_t key = {{0}};
  expect(accrt_key_write(instance, at("none/new.pem"), ACCRT_KEY_PUBLIC, &key), ACCRT_ERROR_IO,
         "none/new.pem");
  expect(accrt_key_write(instance, at("new.pem"), 0, &key), ACCRT_ERROR_INVALID_ARGUMENT, "kind");
  expect(accrt_key_read(instance, at("new.pem"), 4, &key), ACCRT_ERROR_INVALID_ARGUMENT, "kind");
}

static void refuses_malformed_files(void** state) {
  (void)state;
  static const char* const texts[] = {
      "", "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n",
      "-----BEGIN PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n",
      /* another algorithm (X25519), one byte less, one more, one not base64, padding inside, no
       * padding */
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYDK2VuAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHUQ==\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURoA\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS*7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYD=2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC "
      "KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo\n-----END "
      "PUBLIC KEY-----\n",
      "-----BEGIN PUBLIC KEY-----\n=====\n-----END PUBLIC KEY-----\n",
      "-----BEGIN EC PRIVATE KEY-----\nMCowBQYDK2VwAyEA\n-----END EC PRIVATE KEY-----\n",
      PRIVATE, /* a private one where a public one is wanted */
  };
  accrt_key_t key;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i)
    expect(accrt_key_read(instance, put("bad.pem", texts[i], 0644), ACCRT_KEY_PUBLIC, &key),
           ACCRT_ERROR_INVALID_FORMAT, "does not hold a public Ed25519 key");
  /* Far more base64 than a key has, in a file that is not too large. */
  char text[3000] = "-----BEGIN PUBLIC KEY-----\n";
  const size_t head = strlen(text);
  memset(text + head, 'A', 2000);
  strcpy(text + head + 2000, "\n-----END PUBLIC KEY-----\n");
  expect(accrt_key_read(instance, put("bad.pem", text, 0644), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_INVALID_FORMAT, "does not hold");
}

static void refuses_strange_files(void** state) {
  (void)state;
  accrt_key_t key;
  expect(accrt_key_read(instance, at("nothing.pem"), ACCRT_KEY_PUBLIC, &key), ACCRT_ERROR_NOT_FOUND,
         "nothing.pem");
  expect(accrt_key_read(instance, folder, ACCRT_KEY_PUBLIC, &key), ACCRT_ERROR_INVALID_FORMAT,
         "regular file");
  expect(accrt_key_read(instance, "/dev/zero", ACCRT_KEY_PUBLIC, &key), ACCRT_ERROR_INVALID_FORMAT,
         "regular file");
  assert_int_equal(mkfifo(at("fifo.pem"), 0600), 0);
  expect(accrt_key_read(instance, at("fifo.pem"), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_INVALID_FORMAT, "regular file");
  (void)put("huge.pem", PUBLIC, 0644);
  assert_int_equal(truncate(at("huge.pem"), (off_t)1 << 40), 0);
  expect(accrt_key_read(instance, at("huge.pem"), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_INVALID_FORMAT, "at most 4096");
  /* A link's target is checked. */
  (void)put("real.pem", PUBLIC, 0644);
  assert_int_equal(symlink("real.pem", at("good-link.pem")), 0);
  assert_int_equal(accrt_key_read(instance, at("good-link.pem"), ACCRT_KEY_PUBLIC, &key), ACCRT_OK);
  assert_int_equal(symlink("no-such.pem", at("broken-link.pem")), 0);
  expect(accrt_key_read(instance, at("broken-link.pem"), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_NOT_FOUND, "broken-link");
  assert_int_equal(symlink("loop.pem", at("loop.pem")), 0);
  expect(accrt_key_read(instance, at("loop.pem"), ACCRT_KEY_PUBLIC, &key), ACCRT_ERROR_IO, "loop");
  assert_int_equal(symlink("/dev/zero", at("zero-link.pem")), 0);
  expect(accrt_key_read(instance, at("zero-link.pem"), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_INVALID_FORMAT, "regular file");
  /* Modes. */
  expect(accrt_key_read(instance, put("open.pem", PRIVATE, 0640), ACCRT_KEY_PRIVATE, &key),
         ACCRT_ERROR_PERMISSION_DENIED, "chmod 600");
  expect(accrt_key_read(instance, put("open.pem", PUBLIC, 0666), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_PERMISSION_DENIED, "chmod 644");
}

/* ---- Options and the environment ---- */

static bool allows(accrt_instance_t* where, const accrt_key_t* key, uint32_t scope) {
  accrt_trust_fact_t against;
  return accrt_trust_allows(where, key, scope, &against);
}

static bool trusts(accrt_instance_t* where, const accrt_key_t* key) {
  return allows(where, key, ACCRT_SCOPE_CODE) && allows(where, key, ACCRT_SCOPE_WEIGHTS);
}

static accrt_status_t create(const accrt_option_t* options, uint32_t count, uint32_t policy,
                             accrt_instance_t** out_instance) {
  accrt_instance_options_t wanted = ACCRT_INSTANCE_OPTIONS_INIT;
  wanted.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  wanted.options = options;
  wanted.option_count = count;
  wanted.option_size_bytes = sizeof *options;
  wanted.host_code_policy = policy;
  return accrt_instance_create(&wanted, out_instance);
}

static uint32_t policy_of(const char* option, uint32_t field) {
  const accrt_option_t policy = {"trust.policy", option};
  accrt_instance_t* made;
  assert_int_equal(create(&policy, option != NULL, field, &made), ACCRT_OK);
  const uint32_t found = accrt_instance_host_code_policy(made);
  accrt_instance_release(made);
  return found;
}

static void policies(void** state) {
  (void)state;
  assert_int_equal(policy_of(NULL, 0), ACCRT_HOST_CODE_SIGNED);
  assert_int_equal(policy_of("all", 0), ACCRT_HOST_CODE_ALL);
  assert_int_equal(policy_of("signed", 0), ACCRT_HOST_CODE_SIGNED);
  assert_int_equal(policy_of("no-host-code", 0), ACCRT_HOST_CODE_NONE);
  assert_int_equal(policy_of("no-host-code", ACCRT_HOST_CODE_ALL), ACCRT_HOST_CODE_ALL);
  setenv("ACCRT_TRUST", "all", 1);
  assert_int_equal(policy_of(NULL, 0), ACCRT_HOST_CODE_ALL);
  assert_int_equal(policy_of("signed", 0), ACCRT_HOST_CODE_SIGNED); /* the option wins */
  assert_int_equal(policy_of(NULL, ACCRT_HOST_CODE_NONE), ACCRT_HOST_CODE_NONE);
  setenv("ACCRT_TRUST", "", 1);
  assert_int_equal(policy_of(NULL, 0), ACCRT_HOST_CODE_SIGNED);
  accrt_instance_t* made;
  setenv("ACCRT_TRUST", "everything", 1);
  expect(create(NULL, 0, 0, &made), ACCRT_ERROR_INVALID_ARGUMENT, "ACCRT_TRUST is 'everything'");
  unsetenv("ACCRT_TRUST");
  const accrt_option_t bad[] = {{"trust.policy", "some"}, {"trust.weights", "maybe"}};
  expect(create(&bad[0], 1, 0, &made), ACCRT_ERROR_INVALID_ARGUMENT, "trust.policy is 'some'");
  expect(create(&bad[1], 1, 0, &made), ACCRT_ERROR_INVALID_ARGUMENT, "trust.weights is 'maybe'");
  accrt_instance_options_t misspelt = ACCRT_INSTANCE_OPTIONS_INIT;
  const accrt_option_t option = {"trust.key", "x"};
  misspelt.options = &option;
  misspelt.option_count = 1;
  misspelt.option_size_bytes = sizeof option;
  expect(accrt_instance_create(&misspelt, &made), ACCRT_ERROR_NOT_FOUND, "trust.keys");
}

static accrt_key_t the_key(void) {
  accrt_key_t key;
  assert_int_equal(accrt_key_read(instance, put("k.pem", PUBLIC, 0644), ACCRT_KEY_PUBLIC, &key),
                   ACCRT_OK);
  return key;
}

static void keys_from_paths(void** state) {
  (void)state;
  const accrt_key_t key = the_key();
  accrt_instance_t* made;
  char list[1024];
  snprintf(list, sizeof list, ":%s::%s:", at("k.pem"), at("k.pem"));
  const accrt_option_t keys = {"trust.keys", list};
  assert_int_equal(create(&keys, 1, 0, &made), ACCRT_OK);
  assert_true(trusts(made, &key));
  assert_false(accrt_trust_has_root(made, &key));
  accrt_instance_release(made);
  setenv("ACCRT_TRUST_KEYS", at("k.pem"), 1);
  assert_int_equal(create(NULL, 0, 0, &made), ACCRT_OK);
  assert_true(trusts(made, &key));
  accrt_instance_release(made);
  const accrt_option_t none = {"trust.keys", ""};
  assert_int_equal(create(&none, 1, 0, &made), ACCRT_OK); /* the option wins */
  assert_false(trusts(made, &key));
  accrt_instance_release(made);
  setenv("ACCRT_TRUST_KEYS", at("nobody.pem"), 1);
  expect(create(NULL, 0, 0, &made), ACCRT_ERROR_NOT_FOUND, "ACCRT_TRUST_KEYS");
  unsetenv("ACCRT_TRUST_KEYS");
  char* long_path = malloc(5000);
  memset(long_path, 'x', 4999), long_path[4999] = '\0';
  const accrt_option_t too_long = {"trust.keys", long_path};
  expect(create(&too_long, 1, 0, &made), ACCRT_ERROR_INVALID_ARGUMENT, "too long");
  free(long_path);
}

static void keys_from_folders(void** state) {
  (void)state;
  const accrt_key_t key = the_key();
  accrt_instance_t* made;
  assert_int_equal(mkdir(at("keys"), 0755), 0);
  (void)put("keys/good.pem", PUBLIC, 0644);
  (void)put("keys/bad.pem", "nothing", 0644); /* ignored */
  (void)put("keys/writable.pem", PUBLIC, 0666);
  (void)put("keys/.hidden.pem", "nothing", 0644);
  (void)put("keys/README", "nothing", 0644);
  assert_int_equal(symlink("/dev/zero", at("keys/zero.pem")), 0);
  const accrt_option_t keys = {"trust.keys", at("keys")};
  assert_int_equal(create(&keys, 1, 0, &made), ACCRT_OK);
  assert_true(trusts(made, &key));
  accrt_instance_release(made);
  /* A user who can write to the folder, or to a folder above it, chooses the keys. */
  const accrt_option_t again = {"trust.keys", at("keys")};
  static const mode_t modes[] = {0777, 0775, 01777};
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; ++i) {
    assert_int_equal(chmod(at("keys"), modes[i]), 0);
    expect(create(&again, 1, 0, &made), ACCRT_ERROR_PERMISSION_DENIED, "others may write");
  }
  assert_int_equal(chmod(at("keys"), 0755), 0);
  assert_int_equal(chmod(folder, 0775), 0);
  expect(create(&again, 1, 0, &made), ACCRT_ERROR_PERMISSION_DENIED, "others may write");
  assert_int_equal(chmod(folder, 0700), 0);
}

/* A key's file in a folder that others may write is theirs to replace; of a key that others may
 * write, too. */
static void keys_in_open_folders(void** state) {
  (void)state;
  accrt_key_t key;
  assert_int_equal(mkdir(at("open"), 0755), 0);
  static const struct {
    uint32_t kind;
    const char* text;
    mode_t mode;
  } files[] = {{ACCRT_KEY_PUBLIC, PUBLIC, 0644}, {ACCRT_KEY_PRIVATE, PRIVATE, 0600}};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
    const char* path = put("open/k.pem", files[i].text, files[i].mode);
    assert_int_equal(accrt_key_read(instance, path, files[i].kind, &key), ACCRT_OK);
    assert_int_equal(chmod(at("open"), 0770), 0);
    expect(accrt_key_read(instance, path, files[i].kind, &key), ACCRT_ERROR_PERMISSION_DENIED,
           "others may write to");
    assert_int_equal(chmod(at("open"), 0755), 0);
    if (geteuid() == 0) { /* another user's file */
      assert_int_equal(chown(path, 12345, 12345), 0);
      expect(accrt_key_read(instance, path, files[i].kind, &key), ACCRT_ERROR_PERMISSION_DENIED,
             "belongs to user 12345");
    }
  }
  expect(accrt_key_read(instance, put("open/k.pem", PUBLIC, 0664), ACCRT_KEY_PUBLIC, &key),
         ACCRT_ERROR_PERMISSION_DENIED, "others may write it");
}

static void lists_grow(void** state) {
  (void)state;
  for (unsigned i = 0; i < 200; ++i) {
    const accrt_key_t key = {{(uint8_t)i, (uint8_t)(i >> 4), 1}};
    assert_false(trusts(instance, &key));
    for (int again = 0; again < 2; ++again) {
      assert_int_equal(accrt_instance_trust_key(instance, &key), ACCRT_OK);
      assert_int_equal(accrt_instance_trust_code(instance, &key), ACCRT_OK);
    }
    assert_true(trusts(instance, &key));
    assert_true(accrt_trust_has_root(instance, &key));
  }
  expect(accrt_instance_trust_key(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT, "key");
  const accrt_key_t key = {{0}};
  expect(accrt_instance_trust_code(NULL, &key), ACCRT_ERROR_INVALID_ARGUMENT, "instance");
}

/* ---- Roles, ends, revocations, floors ---- */

#define KEY_HEX "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
#define HEAD "accrt trust 1\n"
#define DAY_S INT64_C(86400)

/* An instance whose folder of keys has this rules file, at this time. */
static accrt_status_t create_with_rules(const char* rules, const char* clock,
                                        accrt_instance_t** out_instance) {
  (void)mkdir(at("store"), 0755);
  (void)put("store/k.pem", PUBLIC, 0644);
  if (rules != NULL)
    (void)put("store/trust.rules", rules, 0644);
  const accrt_option_t options[] = {{"trust.keys", at("store")}, {"trust.clock", clock}};
  return create(options, 2, 0, out_instance);
}

static void expect_trust(const char* rules, const char* clock, bool code, bool weights) {
  const accrt_key_t key = the_key();
  accrt_instance_t* made;
  const accrt_status_t status = create_with_rules(rules, clock, &made);
  expect(status, ACCRT_OK, "");
  if (allows(made, &key, ACCRT_SCOPE_CODE) != code ||
      allows(made, &key, ACCRT_SCOPE_WEIGHTS) != weights)
    fail_msg("'%s' at %s: expected code %d, weights %d", rules, clock, code, weights);
  accrt_instance_release(made);
}

static void rules_restrict_keys(void** state) {
  (void)state;
  expect_trust(HEAD, "0", true, true);
  expect_trust(HEAD "# key x\n\nkey " KEY_HEX " role both\n", "0", true, true);
  expect_trust(HEAD "key " KEY_HEX " role code\n", "0", true, false);
  expect_trust(HEAD "key " KEY_HEX " role weights\n", "0", false, true);
  expect_trust(HEAD "key " KEY_HEX " role weights\nkey " KEY_HEX " role code\n", "0", false, false);
  expect_trust(HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a lost laptop\n", "0", false,
               false);
  expect_trust(HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z\nkey " KEY_HEX " role both\n",
               "0", false, false);
  /* 2027-01-31T00:00:00Z is 1801353600. The second itself still counts. */
  expect_trust(HEAD "key " KEY_HEX " not-after 2027-01-31T00:00:00Z\n", "1801353600", true, true);
  expect_trust(HEAD "key " KEY_HEX " not-after 2027-01-31T00:00:00Z\n", "1801353601", false, false);
  expect_trust(HEAD "key " KEY_HEX " not-after 9999-12-31T23:59:59Z\n", "253402300799", true, true);
  /* The earliest end, whatever the order. */
  expect_trust(HEAD "key " KEY_HEX " not-after 2027-01-31T00:00:00Z\nkey " KEY_HEX
                    " not-after 2030-01-31T00:00:00Z\n",
               "1801353601", false, false);
  /* Another's. */
  expect_trust(HEAD "key a75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a revoked "
                    "2026-01-01T00:00:00Z x\n",
               "0", true, true);
}

/* A line that is not understood removes all trust of the folder, so that no restriction is
 * missed. */
static void rules_are_strict(void** state) {
  (void)state;
  static const char* const bad[] = {
      "",
      "accrt trust 2\n",
      "accrt trust 1",
      "accrt trust 1\r\n",
      "key " KEY_HEX " role code\n",
      HEAD "key " KEY_HEX " role code",
      HEAD "key " KEY_HEX " role\n",
      HEAD "key " KEY_HEX " role Code\n",
      HEAD "key " KEY_HEX " role code \n",
      HEAD "key  " KEY_HEX " role code\n",
      HEAD " key " KEY_HEX " role code\n",
      HEAD "key " KEY_HEX "\n",
      HEAD "key " KEY_HEX " Role code\n",
      HEAD "key " KEY_HEX "0 role code\n",
      HEAD "key d75a role code\n",
      HEAD "key D75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a role code\n",
      HEAD "KEY " KEY_HEX " role code\n",
      HEAD "key " KEY_HEX " revoked\n",
      HEAD "key " KEY_HEX " revoked yesterday\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z bell\a\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\tb\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\vb\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\fb\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\rb\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\x7f b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xc2\x85 b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xc2\x9f b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xe2\x80\xa8 b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xe2\x80\xa9 b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xff b\n",
      HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z a\xe2\x80\n",
      HEAD "key " KEY_HEX " not-after 2027-01-31\n",
      HEAD "key " KEY_HEX " not-after 2027-02-29T00:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-00-01T00:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-13-01T00:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-01-00T00:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-01-31T24:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-01-31T00:60:00Z\n",
      HEAD "key " KEY_HEX " not-after 1969-12-31T00:00:00Z\n",
      HEAD "key " KEY_HEX " not-after 2027-01-31T00:00:00Z later\n",
      HEAD "key " KEY_HEX " not-before 2027-01-31T00:00:00Z\n",
      HEAD "floor\n",
      HEAD "floor llama\n",
      HEAD "floor llama -1\n",
      HEAD "floor llama 0x1\n",
      HEAD "floor llama 1 2\n",
      HEAD "floor llama 18446744073709551616\n",
      HEAD "floor llama 000000000000000000001\n",
      HEAD "ceiling llama 1\n",
  };
  accrt_instance_t* made;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i)
    expect(create_with_rules(bad[i], "0", &made), ACCRT_ERROR_INVALID_FORMAT, "trust.rules: ");
  expect(create_with_rules(HEAD "# \t\xc2\x85\nkey " KEY_HEX
                                " revoked 2026-01-01T00:00:00Z laptop\xc2\x85lost\n",
                           "0", &made),
         ACCRT_ERROR_INVALID_FORMAT,
         "trust.rules: line 3: there is a control character or a separator of lines");
  expect(create_with_rules(HEAD "key " KEY_HEX " revoked 2026-01-01T00:00:00Z \xc3\n", "0", &made),
         ACCRT_ERROR_INVALID_FORMAT, "trust.rules: line 2: it is not UTF-8");
  /* Valid lines that resemble refused ones; and comments, which may contain anything. */
  assert_int_equal(create_with_rules(HEAD "# \t\v\xc2\x85\xff\nkey " KEY_HEX
                                          " revoked 2026-01-01T00:00:00Z \xc2\xa0\xe2\x80\xa7"
                                          "\xe2\x80\xaa\xc3\xa9~ !\n",
                                     "0", &made),
                   ACCRT_OK);
  accrt_instance_release(made);
  (void)create_with_rules(HEAD, "0", &made);
  accrt_instance_release(made);
  assert_int_equal(chmod(at("store/trust.rules"), 0664), 0);
  expect(create_with_rules(NULL, "0", &made), ACCRT_ERROR_PERMISSION_DENIED, "others may write");
  (void)put("store/trust.rules", HEAD, 0644);
  assert_int_equal(truncate(at("store/trust.rules"), 1 << 20), 0);
  expect(create_with_rules(NULL, "0", &made), ACCRT_ERROR_INVALID_FORMAT, "at most");
  assert_int_equal(truncate(at("store/trust.rules"), 100), 0);
  expect(create_with_rules(NULL, "0", &made), ACCRT_ERROR_INVALID_FORMAT, "zero");
  (void)unlink(at("store/trust.rules"));
  assert_int_equal(mkfifo(at("store/trust.rules"), 0600), 0);
  expect(create_with_rules(NULL, "0", &made), ACCRT_ERROR_INVALID_FORMAT, "regular file");
  (void)unlink(at("store/trust.rules"));
  assert_int_equal(symlink("/etc/passwd", at("store/trust.rules")), 0);
  expect(create_with_rules(NULL, "0", &made), ACCRT_ERROR_IO, "trust.rules");
  (void)unlink(at("store/trust.rules"));
  expect(create_with_rules(HEAD, "1e3", &made), ACCRT_ERROR_INVALID_ARGUMENT, "trust.clock");
  expect(create_with_rules(HEAD, "253402300800", &made), ACCRT_ERROR_INVALID_ARGUMENT,
         "trust.clock");
  const accrt_option_t floors = {"trust.floors", "some"};
  expect(create(&floors, 1, 0, &made), ACCRT_ERROR_INVALID_ARGUMENT, "trust.floors is 'some'");
  /* By its own path, whatever folder its keys are in; there it must exist. */
  const accrt_option_t alone = {"trust.keys", at("none.rules")};
  expect(create(&alone, 1, 0, &made), ACCRT_ERROR_NOT_FOUND, "none.rules");
}

static void times_are_written_as_they_are_read(void** state) {
  (void)state;
  char text[ACCRT_TRUST_TIME_BYTES];
  assert_string_equal(accrt_trust_time_text(0, text), "1970-01-01T00:00:00Z");
  assert_string_equal(accrt_trust_time_text(951782400, text), "2000-02-29T00:00:00Z");
  assert_string_equal(accrt_trust_time_text(ACCRT_TRUST_MAX_TIME_S, text), "9999-12-31T23:59:59Z");
  for (int64_t day = 0; day < 400 * 366; ++day) {
    const time_t time = (time_t)(day * DAY_S + day % DAY_S);
    struct tm parts;
    char wanted[32];
    assert_non_null(gmtime_r(&time, &parts));
    (void)strftime(wanted, sizeof wanted, "%Y-%m-%dT%H:%M:%SZ", &parts);
    assert_string_equal(accrt_trust_time_text((int64_t)time, text), wanted);
  }
}

static void restrictions_by_calls(void** state) {
  (void)state;
  accrt_instance_t* made;
  accrt_key_trust_t trust = ACCRT_KEY_TRUST_INIT;
  const accrt_option_t clock = {"trust.clock", "1000"};
  assert_int_equal(create(&clock, 1, 0, &made), ACCRT_OK);
  const accrt_key_t a = {{5}}, b = {{2}}, c = {{3}};
  accrt_trust_key_options_t options = ACCRT_TRUST_KEY_OPTIONS_INIT;
  options.roles = ACCRT_SCOPE_WEIGHTS;
  options.not_after_s = 1000;
  assert_int_equal(accrt_instance_trust_key_with(made, &a, &options), ACCRT_OK);
  assert_false(allows(made, &a, ACCRT_SCOPE_CODE));
  assert_true(allows(made, &a, ACCRT_SCOPE_WEIGHTS));
  assert_int_equal(accrt_instance_key_trust(made, &a, &trust), ACCRT_OK);
  assert_true(trust.trusted && !trust.revoked && !trust.expired && trust.not_after_s == 1000);
  assert_int_equal(trust.roles, ACCRT_SCOPE_WEIGHTS);
  assert_string_equal(trust.source, "accrt_instance_trust_key_with");
  options.not_after_s = 999;
  assert_int_equal(accrt_instance_trust_key_with(made, &b, &options), ACCRT_OK);
  assert_false(allows(made, &b, ACCRT_SCOPE_WEIGHTS));
  assert_int_equal(accrt_instance_trust_key_with(made, &c, NULL), ACCRT_OK);
  assert_true(trusts(made, &c));
  /* Before or after: a revoked key stays revoked. */
  assert_int_equal(accrt_instance_revoke_key(made, &c, "stolen\n"), ACCRT_OK);
  assert_int_equal(accrt_instance_trust_key(made, &c), ACCRT_OK);
  assert_false(trusts(made, &c));
  assert_int_equal(accrt_instance_key_trust(made, &c, &trust), ACCRT_OK);
  assert_true(trust.revoked && trust.revoked_s == 1000 && strcmp(trust.reason, "stolen ") == 0);
  const accrt_key_t d = {{4}};
  assert_int_equal(accrt_instance_key_trust(made, &d, &trust), ACCRT_OK);
  assert_true(!trust.trusted && trust.source[0] == '\0');
  options.roles = 4;
  expect(accrt_instance_trust_key_with(made, &d, &options), ACCRT_ERROR_INVALID_ARGUMENT, "0x4");
  options.roles = 0, options.not_after_s = -5;
  expect(accrt_instance_trust_key_with(made, &d, &options), ACCRT_ERROR_INVALID_ARGUMENT, "-5");
  assert_false(trusts(made, &d));
  expect(accrt_instance_revoke_key(made, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT, "key");
  expect(accrt_instance_key_trust(made, &d, NULL), ACCRT_ERROR_INVALID_ARGUMENT, "out_trust");
  static const char* const names[] = {
      "", "two words", "a\nb",
      "0123456789012345678901234567890123456789012345678901234567890"
      "123456789012345678901234567890123456789012345678901234567890"
      "1234567"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    expect(accrt_instance_trust_floor(made, names[i], 1), ACCRT_ERROR_INVALID_ARGUMENT, "name");
  accrt_trust_fact_t floor;
  assert_false(accrt_trust_floor(made, "llama", &floor));
  assert_int_equal(accrt_instance_trust_floor(made, "llama", 7), ACCRT_OK);
  assert_int_equal(accrt_instance_trust_floor(made, "llama", 3),
                   ACCRT_OK); /* it does not go down */
  assert_true(accrt_trust_floor(made, "llama", &floor) && floor.version == 7);
  assert_false(accrt_trust_floor(made, "llam", &floor));
  accrt_instance_release(made);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_what_openssl_writes),
      cmocka_unit_test(writes_what_it_reads),
      cmocka_unit_test(refuses_malformed_files),
      cmocka_unit_test(refuses_strange_files),
      cmocka_unit_test(policies),
      cmocka_unit_test(keys_from_paths),
      cmocka_unit_test(keys_from_folders),
      cmocka_unit_test(keys_in_open_folders),
      cmocka_unit_test(lists_grow),
      cmocka_unit_test(rules_restrict_keys),
      cmocka_unit_test(rules_are_strict),
      cmocka_unit_test(times_are_written_as_they_are_read),
      cmocka_unit_test(restrictions_by_calls),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
