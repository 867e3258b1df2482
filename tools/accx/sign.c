/* tools/accx/sign.c - accx sign, encrypt and decrypt: write a bundle again with another signature,
 * or with encrypted or decrypted weights. */
#include <stdlib.h>
#include <string.h>

#include "accrt/write.h"
#include "accx.h"
#include "json_out.h"
#include "keys.h"
#include "open.h"
#include "term.h"

/* The path to write: --output, or with --in-place the file itself. */
static int find_output(const accx_args_t* args, const char** out_path) {
  const char* output = accx_args_value(args, "output");
  const bool in_place = accx_args_has(args, "in-place");
  *out_path = in_place ? args->operands[0] : output;
  /* A link stays a link; its target is replaced. */
  char* real = in_place ? realpath(args->operands[0], NULL) : NULL;
  if (real)
    *out_path = accx_text("%s", real);
  free(real);
  if (output != NULL && !in_place && accx_same_file(output, args->operands[0]))
    return accx_fail(
        ACCX_USAGE,
        "%s is read from, and would be replaced: name another output, or say --in-place", output);
  if ((output != NULL) != in_place)
    return ACCX_OK;
  return accx_fail(ACCX_USAGE, "%s needs one of --output FILE and --in-place", args->verb->name);
}

static void report(const accx_args_t* args, const char* path, const char* key, const char* what) {
  if (!accx_args_has(args, "json")) {
    fprintf(accx_out, "%s: %s%s%s\n", accx_safe(path), what, key ? " by " : "", key ? key : "");
    return;
  }
  struct json_object* root = accx_json_object(NULL, NULL);
  accx_json_text(root, "file", path);
  accx_json_text(root, "done", what);
  accx_json_text(root, "key", key);
  accx_json_print(root);
}

/* ---- sign ---- */

static int read_scopes(const accx_args_t* args, uint32_t* out_scopes) {
  static const struct {
    const char* name;
    uint32_t scopes;
  } scopes[] = {{"both", ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS},
                {"code", ACCRT_SCOPE_CODE},
                {"weights", ACCRT_SCOPE_WEIGHTS}};
  const char* name = accx_args_value(args, "scope");
  for (size_t i = 0; i < 3; ++i) {
    *out_scopes = scopes[i].scopes;
    if (!name || strcmp(scopes[i].name, name) == 0)
      return ACCX_OK;
  }
  return accx_fail(ACCX_USAGE, "--scope is '%s'; it must be code, weights or both", name);
}

/* Prints on standard error what a signature of the code covers, before the bundle is signed. */
static void say_what_is_signed(accrt_bundle_t* bundle, const char* path) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_bundle_trust_t trust = ACCRT_BUNDLE_TRUST_INIT;
  if (accrt_bundle_info(bundle, &info) != ACCRT_OK ||
      accrt_bundle_trust(bundle, &trust) != ACCRT_OK)
    return;
  accx_note("%s: code of %u functions, %u kernels, %u images%s; code root %s", path,
            info.function_count, info.kernel_count, info.image_count,
            trust.has_host_code ? ", machine code for this kind of processor among them" : "",
            accx_key_hex(&trust.code_root));
  for (uint32_t i = 0; i < trust.signature_count; ++i) {
    accrt_signature_info_t signature = ACCRT_SIGNATURE_INFO_INIT;
    if (accrt_bundle_signature(bundle, i, &signature) == ACCRT_OK &&
        signature.scope == ACCRT_SCOPE_CODE)
      accx_note("%s: its code is signed by %s%s", path, accx_key_name(&signature.key),
                signature.valid ? "" : ", and that signature does not fit");
  }
}

static int sign_bundle(const accx_args_t* args, accrt_instance_t* instance, accrt_bundle_t* bundle,
                       const char* output) {
  accrt_key_t key, public_key;
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  int code = read_scopes(args, &options.scopes);
  if (!code)
    code = accx_read_signing_key(instance, args, &key);
  if (code)
    return code;
  options.private_key = &key;
  options.flags = accx_args_has(args, "vouch") ? ACCRT_SIGN_VOUCH : 0;
  if (options.scopes & ACCRT_SCOPE_CODE)
    say_what_is_signed(bundle, args->operands[0]);
  accx_progress("signing %s ...", args->operands[0]);
  accrt_status_t status = accrt_bundle_sign(bundle, &options, output);
  if (status == ACCRT_OK)
    status = accrt_key_public(instance, &key, &public_key);
  explicit_bzero(&key, sizeof key);
  accx_progress_clear();
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", args->operands[0]);
  report(args, output, accx_key_name(&public_key),
         options.scopes == ACCRT_SCOPE_CODE      ? "code signed"
         : options.scopes == ACCRT_SCOPE_WEIGHTS ? "weights signed"
                                                 : "code and weights signed");
  return ACCX_OK;
}

static int run_sign(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  accrt_bundle_t* bundle = NULL;
  const char* output;
  int code = find_output(args, &output);
  if (!code)
    code = accx_open_instance(args, &instance);
  if (!code)
    code = accx_open_keyed_bundle(args, instance, args->operands[0], ACCRT_VERIFY_DEFAULT, &bundle);
  if (!code)
    code = sign_bundle(args, instance, bundle, output);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  return code;
}

#define OUTPUT_OPTIONS                                                                             \
  {"output", "FILE", false, "the new file"}, {                                                     \
    "in-place", NULL, false, "replace the file by the new one, when that is complete"              \
  }

static const accx_option_t sign_options[] = {
    OUTPUT_OPTIONS,
    {"key", "FILE", false, "the private key; without it the user's (accx keygen)"},
    {"scope", "code|weights|both", false, "code, weights or both (the default)"},
    {"vouch", NULL, false, "sign code that this key has not signed before"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_sign = {
    .name = "sign",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "adds a signature to a bundle: of its code, of its weights, or of both",
    .details =
        "A user who trusts the key then runs the bundle's machine code. A signature of code that "
        "the "
        "key has\n"
        "not signed before needs --vouch: it says that the code is yours, or that you trust it as "
        "much.\n"
        "Code that the Python compiler has just compiled is signed by it. Other signatures stay.\n"
        "\n"
        "Examples:\n"
        "  accx sign model.accx --in-place --vouch\n"
        "  accx sign model.accx --output signed.accx --key release.pem --scope weights\n",
    .options = sign_options,
    .run = run_sign,
    .operand_kind = ACCX_READS,
};

/* ---- encrypt, decrypt ---- */

static int run_encryption(const accx_args_t* args) {
  const bool encrypts = args->verb == &accx_verb_encrypt;
  accrt_instance_t* instance = NULL;
  accrt_bundle_t* bundle = NULL;
  accrt_key_t key = {{0}};
  const char* output;
  const char* key_path = accx_args_value(args, "secret-key");
  int code = find_output(args, &output);
  if (!code && !key_path)
    code = accx_fail(ACCX_USAGE, "%s needs --secret-key FILE (accx keygen --secret --output FILE)",
                     args->verb->name);
  if (!code)
    code = accx_open_instance(args, &instance);
  if (!code)
    code = accx_open_keyed_bundle(args, instance, args->operands[0], ACCRT_VERIFY_DEFAULT, &bundle);
  if (code)
    goto out;
  accrt_status_t status = accrt_key_read(instance, key_path, ACCRT_KEY_SECRET, &key);
  if (status == ACCRT_OK) {
    accx_progress("writing %s ...", output);
    status = encrypts ? accrt_bundle_encrypt(bundle, &key, output)
                      : accrt_bundle_decrypt(bundle, output);
    accx_progress_clear();
  }
  explicit_bzero(&key, sizeof key);
  if (status != ACCRT_OK)
    code = accx_fail_status(status, "%s", args->operands[0]);
  else
    report(args, output, NULL, encrypts ? "weights encrypted" : "weights decrypted");
out:
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t encryption_options[] = {
    OUTPUT_OPTIONS,
    {"secret-key", "FILE", false, "the key (accx keygen --secret)"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_encrypt = {
    .name = "encrypt",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "writes a bundle with its weights encrypted (AES-256-GCM)",
    .details = "Code and all else stay readable. Signatures of the weights are left out, those of "
               "the code stay.\n"
               "The bundle then runs with --secret-key.\n"
               "\n"
               "Examples:\n"
               "  accx keygen --secret --output weights.key\n"
               "  accx encrypt model.accx --output sealed.accx --secret-key weights.key\n"
               "  accx run sealed.accx --secret-key weights.key\n",
    .options = encryption_options,
    .run = run_encryption,
    .operand_kind = ACCX_READS,
};

const accx_verb_t accx_verb_decrypt = {
    .name = "decrypt",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .summary = "writes a bundle with its weights decrypted",
    .details = "Examples:\n"
               "  accx decrypt sealed.accx --output model.accx --secret-key weights.key\n",
    .options = encryption_options,
    .run = run_encryption,
    .operand_kind = ACCX_READS,
};
