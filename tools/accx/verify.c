/* tools/accx/verify.c - accx verify: checks bundles without running anything of them. */
#include "accx.h"
#include "json_out.h"
#include "open.h"
#include "term.h"

typedef struct verified {
  uint64_t size_bytes;
  uint64_t data_size_bytes;
  uint64_t time_ns;
} verified_t;

static int verify_one(accrt_instance_t* instance, const char* path, bool full,
                      verified_t* out_verified) {
  accrt_bundle_t* bundle = NULL;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  const uint64_t begin_ns = accx_now_ns();
  int code =
      accx_open_bundle(instance, path, full ? ACCRT_VERIFY_FULL : ACCRT_VERIFY_NO_DATA, &bundle);
  if (code)
    goto out;
  const accrt_status_t status = accrt_bundle_info(bundle, &info);
  if (status != ACCRT_OK)
    code = accx_fail_status(status, "%s", path);
  *out_verified = (verified_t){info.size_bytes, info.data_size_bytes, accx_now_ns() - begin_ns};
out:
  accrt_bundle_release(bundle);
  return code;
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
    return;
  }
  fprintf(accx_out, "%s%s%s: ok, %s", accx_style(ACCX_NAME), accx_safe(path),
          accx_style(ACCX_PLAIN), accx_bytes(verified->size_bytes).text);
  if (!full && verified->data_size_bytes)
    fprintf(accx_out, " (weights, %s, not read: --full)",
            accx_bytes(verified->data_size_bytes).text);
  fputc('\n', accx_out);
}

/* Every file is checked even after one failed; the first failure gives the exit code. */
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
  }
  if (root)
    accx_json_print(root);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"full", NULL, false,
     "check the weights' digests too, not only the structure's and the code's"},
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
               "\n"
               "Examples:\n"
               "  accx verify model.accx\n"
               "  accx verify --full build/models/*.accx && echo all good\n",
    .options = options,
    .run = run_verify,
};
