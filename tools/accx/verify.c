/* tools/accx/verify.c - accx verify: checks bundles without running their code. */
#include <stdlib.h>

#include "accx.h"
#include "deprecated.h"
#include "json_out.h"
#include "keys.h"
#include "open.h"
#include "term.h"

#define MAX_SHOWN 16u /* limit of signatures */

typedef struct verified {
  accrt_bundle_trust_t trust;
  accrt_signature_info_t signatures[MAX_SHOWN];
  uint32_t signature_count;
  uint64_t size_bytes;
  uint64_t data_size_bytes;
  uint64_t time_ns;
  bool* deprecated; /* by index in the table */
} verified_t;

/* Finds the signers of code and weights. */
static accrt_status_t read_trust(accrt_bundle_t* bundle, verified_t* verified) {
  verified->trust = (accrt_bundle_trust_t)ACCRT_BUNDLE_TRUST_INIT;
  accrt_status_t status = accrt_bundle_trust(bundle, &verified->trust);
  for (uint32_t i = 0; status == ACCRT_OK && i < verified->trust.signature_count && i < MAX_SHOWN;
       ++i) {
    verified->signatures[i] = (accrt_signature_info_t)ACCRT_SIGNATURE_INFO_INIT;
    status = accrt_bundle_signature(bundle, i, &verified->signatures[i]);
    ++verified->signature_count;
  }
  return status;
}

static int verify_one(accrt_instance_t* instance, const char* path, bool full,
                      verified_t* out_verified) {
  accrt_bundle_t* bundle = NULL;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  const uint64_t begin_ns = accx_now_ns();
  int code =
      accx_open_bundle(instance, path, full ? ACCRT_VERIFY_FULL : ACCRT_VERIFY_NO_DATA, &bundle);
  if (code)
    goto out;
  accrt_status_t status = accrt_bundle_info(bundle, &info);
  out_verified->deprecated = accx_alloc(accx_deprecated_count + 1, sizeof(bool));
  if (status == ACCRT_OK)
    status = accx_deprecated_find(bundle, accx_deprecated, accx_deprecated_count,
                                  out_verified->deprecated);
  if (status == ACCRT_OK && full)
    status = read_trust(bundle, out_verified);
  if (status != ACCRT_OK)
    code = accx_fail_status(status, "%s", path);
  out_verified->size_bytes = info.size_bytes;
  out_verified->data_size_bytes = info.data_size_bytes;
  out_verified->time_ns = accx_now_ns() - begin_ns;
out:
  accrt_bundle_release(bundle);
  return code;
}

static const char* scope_name(uint32_t scope) {
  return scope == ACCRT_SCOPE_CODE ? "code" : "weights";
}

static void report_trust_json(const verified_t* verified, struct json_object* object) {
  const accrt_bundle_trust_t* trust = &verified->trust;
  accx_json_text(object, "code_root", accx_key_hex(&trust->code_root));
  accx_json_text(object, "weight_root",
                 trust->has_weight_root ? accx_key_hex(&trust->weight_root) : NULL);
  accx_json_bool(object, "code_trusted", trust->code_trusted != 0);
  accx_json_bool(object, "weights_trusted", trust->weights_trusted != 0);
  accx_json_bool(object, "encrypted", trust->encrypted != 0);
  struct json_object* array = accx_json_array(object, "signatures");
  for (uint32_t i = 0; i < verified->signature_count; ++i) {
    struct json_object* one = accx_json_append(array);
    accx_json_text(one, "scope", scope_name(verified->signatures[i].scope));
    accx_json_text(one, "key", accx_key_hex(&verified->signatures[i].key));
    accx_json_bool(one, "trusted", verified->signatures[i].trusted != 0);
  }
}

static void report_trust(const verified_t* verified) {
  for (uint32_t scope = ACCRT_SCOPE_CODE; scope <= ACCRT_SCOPE_WEIGHTS; ++scope) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < verified->signature_count; ++i) {
      const accrt_signature_info_t* signature = &verified->signatures[i];
      if (signature->scope != scope)
        continue;
      fprintf(accx_out, "  %-8s signed by %s: %s\n", scope_name(scope),
              accx_key_name(&signature->key), signature->trusted ? "trusted" : "not trusted");
      ++count;
    }
    if (count == 0 && (scope == ACCRT_SCOPE_CODE || verified->data_size_bytes))
      fprintf(
          accx_out,
          "  %-8s not signed: its fast digests match, which finds damage and proves nothing of who "
          "wrote it\n",
          scope_name(scope));
  }
  if (verified->trust.encrypted)
    fputs("  weights  encrypted\n", accx_out);
  if (verified->trust.signature_count > verified->signature_count)
    fprintf(accx_out, "  and %u signatures more\n",
            verified->trust.signature_count - verified->signature_count);
}

static void report_deprecated_json(const verified_t* verified, struct json_object* object) {
  struct json_object* array = accx_json_array(object, "deprecated");
  for (size_t i = 0; i < accx_deprecated_count; ++i) {
    if (!verified->deprecated[i])
      continue;
    const accx_deprecated_t* entry = &accx_deprecated[i];
    struct json_object* one = accx_json_append(array);
    accx_json_text(one, "kind", accx_deprecated_kind(entry));
    accx_json_u64(one, "number", entry->number);
    accx_json_text(one, "name", entry->name);
    accx_json_text(one, "since", entry->since);
    accx_json_text(one, "instead", entry->instead);
  }
}

/* Reports content that a later major will not read. */
static void report_deprecated(const char* path, const verified_t* verified) {
  for (size_t i = 0; i < accx_deprecated_count; ++i) {
    const accx_deprecated_t* entry = &accx_deprecated[i];
    if (verified->deprecated[i])
      accx_note("%s: %s %u (%s) is deprecated since %s; %s replaces it", path,
                accx_deprecated_kind(entry), entry->number, entry->name, entry->since,
                entry->instead);
  }
}

static void report(const char* path, const verified_t* verified, bool full,
                   struct json_object* array) {
  if (array) {
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "file", path);
    accx_json_bool(object, "ok", true);
    accx_json_u64(object, "size_bytes", verified->size_bytes);
    accx_json_u64(object, "data_size_bytes", verified->data_size_bytes);
    accx_json_bool(object, "data_checked", full);
    accx_json_u64(object, "time_ns", verified->time_ns);
    report_deprecated_json(verified, object);
    if (full)
      report_trust_json(verified, object);
    return;
  }
  fprintf(accx_out, "%s%s%s: ok, %s", accx_style(ACCX_NAME), accx_safe(path),
          accx_style(ACCX_PLAIN), accx_bytes(verified->size_bytes).text);
  if (!full && verified->data_size_bytes)
    fprintf(accx_out, " (weights, %s, not read: --full)",
            accx_bytes(verified->data_size_bytes).text);
  fputc('\n', accx_out);
  if (full)
    report_trust(verified);
  report_deprecated(path, verified);
}

/* All files are checked, even after a failure. The first failure gives the exit code. */
static int run_verify(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  const bool full = accx_args_has(args, "full");
  struct json_object* root = accx_args_has(args, "json") ? accx_json_object(NULL, NULL) : NULL;
  struct json_object* array = root ? accx_json_array(root, "files") : NULL;
  int code = accx_open_instance(args, &instance);
  for (size_t i = 0; i < args->operand_count && instance; ++i) {
    verified_t verified = {0};
    const int one = verify_one(instance, args->operands[i], full, &verified);
    if (one && !code)
      code = one;
    if (!one)
      report(args->operands[i], &verified, full, array);
    free(verified.deprecated);
  }
  if (root)
    accx_json_print(root);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"full", NULL, false,
     "check the weights too, and the cryptographic tree; say who has signed what"},
    {"trust-keys", "PATHS", false, "public keys to trust instead of the user's (accx trust)"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_verify = {
    .name = "verify",
    .operands = "FILE...",
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .summary = "checks bundles: structure, versions, digests; runs nothing",
    .details = "Every file is checked. When one fails, nothing is printed on standard output, each "
               "failure is\n"
               "one line on standard error, and the exit code is that of the first: 3 for a bundle "
               "that is\n"
               "malformed, damaged or needs another version, 1 for one that cannot be read.\n"
               "What a later major of the format drops is read, and noted on standard error.\n"
               "\n"
               "Examples:\n"
               "  accx verify model.accx\n"
               "  accx verify --full build/models/*.accx && echo all good\n",
    .options = options,
    .run = run_verify,
    .operand_kind = ACCX_READS,
};
