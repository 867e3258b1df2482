/* tools/accx/keygen.c - accx keygen: creates keys. */
#include <string.h>

#include "accx.h"
#include "json_out.h"
#include "keys.h"
#include "open.h"

typedef struct made {
  const char* private_path;
  const char* public_path; /* NULL: a secret key has no public one */
  accrt_key_t key;         /* the public key, or zeros */
} made_t;

static int write_one(accrt_instance_t* instance, const char* path, uint32_t kind,
                     const accrt_key_t* key) {
  const accrt_status_t status = accx_write_key(instance, path, kind, key);
  if (status == ACCRT_ERROR_ALREADY_EXISTS)
    return accx_fail(ACCX_FAILED, "%s exists already and is not replaced", path);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", path);
}

/* Adds the user's public key to the trusted ones. The file own.pem may be there, and be another
 * user's key. */
static int trust_own(accrt_instance_t* instance, made_t* made) {
  made->public_path = accx_text("%s/own.pem", accx_trusted_folder());
  const accrt_status_t status =
      accx_write_key(instance, made->public_path, ACCRT_KEY_PUBLIC, &made->key);
  if (status == ACCRT_OK)
    return ACCX_OK;
  if (status != ACCRT_ERROR_ALREADY_EXISTS)
    return accx_fail_status(status, "%s", made->public_path);
  made->public_path =
      accx_text("%s/own-%.16s.pem", accx_trusted_folder(), accx_key_hex(&made->key));
  return write_one(instance, made->public_path, ACCRT_KEY_PUBLIC, &made->key);
}

static int make_pair(accrt_instance_t* instance, const accx_args_t* args, made_t* made) {
  accrt_key_t key;
  const char* output = accx_args_value(args, "output");
  int code = output ? ACCX_OK : accx_make_config();
  if (code)
    return code;
  accrt_status_t status = accrt_key_generate(instance, &key);
  if (status == ACCRT_OK)
    status = accrt_key_public(instance, &key, &made->key);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "keygen");
  made->private_path = output ? output : accx_signing_key_path();
  code = write_one(instance, made->private_path, ACCRT_KEY_PRIVATE, &key);
  explicit_bzero(&key, sizeof key);
  if (code)
    return code;
  if (!output)
    return trust_own(instance, made);
  made->public_path = accx_text("%s.pub", output);
  return write_one(instance, made->public_path, ACCRT_KEY_PUBLIC, &made->key);
}

static int make_secret(accrt_instance_t* instance, const accx_args_t* args, made_t* made) {
  accrt_key_t key;
  made->private_path = accx_args_value(args, "output");
  if (!made->private_path)
    return accx_fail(ACCX_USAGE, "keygen --secret needs --output FILE");
  const accrt_status_t status = accrt_key_generate(instance, &key);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "keygen");
  const int code = write_one(instance, made->private_path, ACCRT_KEY_SECRET, &key);
  explicit_bzero(&key, sizeof key);
  return code;
}

static void report(const made_t* made, bool json) {
  if (json) {
    struct json_object* root = accx_json_object(NULL, NULL);
    accx_json_text(root, "private", made->private_path);
    accx_json_text(root, "public", made->public_path);
    accx_json_text(root, "key", made->public_path ? accx_key_hex(&made->key) : NULL);
    accx_json_print(root);
    return;
  }
  if (!made->public_path) {
    fprintf(accx_out, "secret key   %s (keep it)\n", accx_safe(made->private_path));
    return;
  }
  fprintf(accx_out, "private key  %s (keep it)\n", accx_safe(made->private_path));
  fprintf(accx_out, "public key   %s (%s)\n", accx_safe(made->public_path),
          accx_key_name(&made->key));
}

static int run_keygen(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  made_t made = {0};
  int code = accx_open_instance(args, &instance);
  if (!code)
    code = accx_args_has(args, "secret") ? make_secret(instance, args, &made)
                                         : make_pair(instance, args, &made);
  if (!code)
    report(&made, accx_args_has(args, "json"));
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"output", "FILE", false, "the private key's file; the public one is FILE.pub"},
    {"secret", NULL, false, "a key for encryption (accx encrypt)"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_keygen = {
    .name = "keygen",
    .operands = "",
    .min_operands = 0,
    .max_operands = 0,
    .summary = "makes a key to sign bundles with, or one to encrypt weights with",
    .details = "Without --output the key is the user's: signing-key.pem in "
               "${XDG_CONFIG_HOME:-~/.config}/accrt,\n"
               "with which `accx sign` and the Python compiler sign, its public half among the "
               "trusted ones\n"
               "(accx trust list). Files are PEM: openssl reads and writes the same. Nothing is "
               "replaced.\n"
               "\n"
               "Examples:\n"
               "  accx keygen\n"
               "  accx keygen --output release.pem\n"
               "  accx keygen --secret --output weights.key\n",
    .options = options,
    .run = run_keygen,
};
