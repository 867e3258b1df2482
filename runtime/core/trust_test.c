/* runtime/core/trust_test.c - keys' files, good and bad, and what an instance reads from options and the environment. */
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
      /* another algorithm (X25519), one byte less, one more, one not base64, padding inside, no padding */
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
  /* Links lead to what is then looked at. */
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
  assert_true(accrt_trust_has_key(made, &key));
  assert_false(accrt_trust_has_root(made, &key));
  accrt_instance_release(made);
  setenv("ACCRT_TRUST_KEYS", at("k.pem"), 1);
  assert_int_equal(create(NULL, 0, 0, &made), ACCRT_OK);
  assert_true(accrt_trust_has_key(made, &key));
  accrt_instance_release(made);
  const accrt_option_t none = {"trust.keys", ""};
  assert_int_equal(create(&none, 1, 0, &made), ACCRT_OK); /* the option wins */
  assert_false(accrt_trust_has_key(made, &key));
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
  (void)put("keys/bad.pem", "nothing", 0644); /* passed over */
  (void)put("keys/writable.pem", PUBLIC, 0666);
  (void)put("keys/.hidden.pem", "nothing", 0644);
  (void)put("keys/README", "nothing", 0644);
  assert_int_equal(symlink("/dev/zero", at("keys/zero.pem")), 0);
  const accrt_option_t keys = {"trust.keys", at("keys")};
  assert_int_equal(create(&keys, 1, 0, &made), ACCRT_OK);
  assert_true(accrt_trust_has_key(made, &key));
  accrt_instance_release(made);
  assert_int_equal(chmod(at("keys"), 0777), 0);
  const accrt_option_t again = {"trust.keys", at("keys")};
  expect(create(&again, 1, 0, &made), ACCRT_ERROR_PERMISSION_DENIED, "others may write");
}

static void lists_grow(void** state) {
  (void)state;
  for (unsigned i = 0; i < 200; ++i) {
    const accrt_key_t key = {{(uint8_t)i, (uint8_t)(i >> 4)}};
    assert_false(accrt_trust_has_key(instance, &key));
    for (int again = 0; again < 2; ++again) {
      assert_int_equal(accrt_instance_trust_key(instance, &key), ACCRT_OK);
      assert_int_equal(accrt_instance_trust_code(instance, &key), ACCRT_OK);
    }
    assert_true(accrt_trust_has_key(instance, &key));
    assert_true(accrt_trust_has_root(instance, &key));
  }
  expect(accrt_instance_trust_key(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT, "key");
  const accrt_key_t key = {{0}};
  expect(accrt_instance_trust_code(NULL, &key), ACCRT_ERROR_INVALID_ARGUMENT, "instance");
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
      cmocka_unit_test(lists_grow),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
