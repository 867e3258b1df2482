/* loader/trust_test.h - what the tests of signatures and of encryption share: keys, instances with
 * and without libcrypto, signed bundles, the rules that were seen.
 *
 * Runs from the root of the source tree (tests/golden). Bundles that are to be signed are written
 * to /tmp. */
#ifndef ACCRT_LOADER_TRUST_TEST_H_
#define ACCRT_LOADER_TRUST_TEST_H_

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

static inline accrt_instance_t* make_instance(const char* key, const char* value) {
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

static inline int setup(void** state) {
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

static inline int teardown(void** state) {
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

static inline void check(accrt_status_t status, accrt_status_t wanted, const char* text, int line) {
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

static inline accrt_bundle_t* open_with(accrt_instance_t* where, const bytes_t* file) {
  accrt_bundle_t* bundle;
  OK(accrt_bundle_open_memory(where, file->data, file->size, NULL, NULL, NULL, &bundle));
  return bundle;
}

/* `file` with a signature of `key`. */
static inline bytes_t sign(const bytes_t* file, const accrt_key_t* key, uint32_t scopes) {
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
static inline void expect_rule(parts_t* parts, accrt_status_t status, const char* rule, int line) {
  bytes_t file = put_together(parts);
  accrt_bundle_t* bundle = open_with(instance, &file);
  check(accrt_bundle_verify(bundle), status, rule, line);
  accrt_bundle_release(bundle);
  free(file.data);
}
#define EXPECT_RULE(parts, status, rule) expect_rule((parts), ACCRT_ERROR_##status, rule, __LINE__)

static inline accrt_bundle_trust_t trust_of(accrt_bundle_t* bundle) {
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  OK(accrt_bundle_trust(bundle, &trust));
  return trust;
}

static inline uint32_t host_image(const accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (tables->images[i].kind == ACCX_IMAGE_HOST_ELF)
      return i;
  }
  fail();
  return 0;
}

/* Whether the first host image may run; with `bit` flipped in it when that is not NULL. */
static inline accrt_status_t allow(accrt_bundle_t* bundle, const uint32_t* bit) {
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

static inline bytes_t make_named(const char* name, const char* version) {
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

#endif /* ACCRT_LOADER_TRUST_TEST_H_ */
