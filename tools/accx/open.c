/* tools/accx/open.c - opens instances from the command line's options, and bundles from paths. */
#include "open.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "keys.h"
#include "term.h"

static int add_option(accrt_option_t* option, const char* text) {
  const char* equals = strchr(text, '=');
  if (!equals || equals == text)
    return accx_fail(ACCX_USAGE,
                     "--option is '%s'; it must be key=value, for instance host.devices=2", text);
  option->key = accx_text("%.*s", (int)(equals - text), text);
  option->value = equals + 1;
  return ACCX_OK;
}

/* Sets the folder of a cache unless --option does. The library itself never uses a home folder. */
static void add_cache_folder(accrt_option_t* options, uint32_t* count, const char* key,
                             const char* name) {
  const char* cache = getenv("XDG_CACHE_HOME");
  const char* home = getenv("HOME");
  const char* folder = NULL;
  if (cache && cache[0] == '/') {
    folder = accx_text("%s/accrt/%s", cache, name);
  } else if (home && home[0] == '/') {
    folder = accx_text("%s/.cache/accrt/%s", home, name);
  }
  if (folder)
    options[(*count)++] = (accrt_option_t){key, folder};
}

static int collect_options(const accx_args_t* args, accrt_option_t* options, uint32_t* out_count) {
  *out_count = 0;
  /* With a plus sign, a library that was built without that driver ignores the unknown key. */
  add_cache_folder(options, out_count, "+cuda.cache", "ptx");
  add_cache_folder(options, out_count, "prepare.cache", "prepared");
  int64_t threads = -1;
  int code = accx_args_integer(args, "threads", 0, 1024, &threads); /* as host.threads */
  if (code)
    return code;
  if (threads >= 0)
    options[(*out_count)++] =
        (accrt_option_t){"host.threads", accx_text("%lld", (long long)threads)};
  const char* policy = accx_args_value(args, "trust");
  if (policy && strcmp(policy, "no-host-code") == 0 && accx_args_has(args, "allow-host-code"))
    return accx_fail(ACCX_USAGE,
                     "--trust no-host-code and --allow-host-code contradict each other");
  if (policy)
    options[(*out_count)++] = (accrt_option_t){"trust.policy", policy};
  const char* keys = accx_trusted_paths(args);
  if (keys)
    options[(*out_count)++] = (accrt_option_t){"trust.keys", keys};
  size_t cursor = 0;
  for (const char* text; (text = accx_args_next(args, "option", &cursor));) {
    code = add_option(&options[*out_count], text);
    if (code)
      return code;
    ++*out_count;
  }
  return ACCX_OK;
}

static int load_drivers(const accx_args_t* args, accrt_instance_t* instance) {
  size_t cursor = 0;
  for (const char* path; (path = accx_args_next(args, "driver", &cursor));) {
    /* The library refuses relative paths, but users type them. */
    char whole[PATH_MAX];
    const bool found = strchr(path, '/') != NULL && realpath(path, whole) != NULL;
    FILE* file = NULL;
    const int code = found ? accx_open_regular(path, 0, &file) : ACCX_OK;
    if (code)
      return code; /* the system's loader waits at a FIFO */
    if (file)
      (void)fclose(file);
    const accrt_status_t status = accrt_instance_load_driver(instance, found ? whole : path);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "--driver");
  }
  return ACCX_OK;
}

int accx_open_instance(const accx_args_t* args, accrt_instance_t** out_instance) {
  *out_instance = NULL;
  accrt_instance_options_t wanted = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_option_t* options = accx_alloc(args->given_count + 4, sizeof *options);
  int code = collect_options(args, options, &wanted.option_count);
  if (code)
    goto out;
  wanted.options = wanted.option_count ? options : NULL;
  wanted.option_size_bytes = (uint32_t)sizeof *options;
  wanted.host_code_policy =
      accx_args_has(args, "allow-host-code") ? ACCRT_HOST_CODE_ALL : ACCRT_HOST_CODE_DEFAULT;
  const accrt_status_t status = accrt_instance_create(&wanted, out_instance);
  code = status == ACCRT_OK ? load_drivers(args, *out_instance)
                            : accx_fail(ACCX_FAILED, "cannot start the runtime: %s (%s)",
                                        accx_last_message(), accrt_status_name(status));
out:
  free(options);
  return code;
}

typedef struct key_file {
  accrt_instance_t* instance;
  const char* path;
} key_file_t;

accrt_budget_t accx_budget = ACCRT_BUDGET_INIT;

static int32_t read_secret_key(void* user, const uint8_t* id, uint8_t* out_key) {
  const key_file_t* file = user;
  accrt_key_t key;
  (void)id; /* the library reports a key that does not fit */
  if (accrt_key_read(file->instance, file->path, ACCRT_KEY_SECRET, &key) != ACCRT_OK)
    return 1;
  memcpy(out_key, key.bytes, sizeof key.bytes);
  explicit_bzero(&key, sizeof key);
  return 0;
}

int accx_open_keyed_bundle(const accx_args_t* args, accrt_instance_t* instance, const char* path,
                           uint32_t verify, accrt_bundle_t** out_bundle) {
  key_file_t file = {instance, accx_args_value(args, "secret-key")};
  accrt_key_t key;
  if (file.path) {
    const accrt_status_t status = accrt_key_read(instance, file.path, ACCRT_KEY_SECRET, &key);
    explicit_bzero(&key, sizeof key);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", file.path);
  }
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = verify;
  options.budget = &accx_budget;
  options.secret_key = file.path ? read_secret_key : NULL;
  options.secret_key_user = &file;
  accx_progress("opening %s ...", path);
  const accrt_status_t status = accrt_bundle_open_path(instance, path, &options, out_bundle);
  accx_progress_clear();
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", path);
}

int accx_open_bundle(accrt_instance_t* instance, const char* path, uint32_t verify,
                     accrt_bundle_t** out_bundle) {
  const accx_args_t none = {0};
  return accx_open_keyed_bundle(&none, instance, path, verify, out_bundle);
}

accrt_status_t accx_open_weights(accrt_instance_t* instance, const char* path,
                                 accrt_weights_t** out_weights) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS;
  options.budget = &accx_budget;
  return accrt_weights_open_path(instance, path, &options, out_weights);
}

bool accx_same_file(const char* one, const char* other) {
  struct stat a, b;
  return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int accx_check_output(const char* output, accrt_weights_t* weights) {
  struct stat facts;
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  if (accrt_weights_info(weights, &info) != ACCRT_OK)
    return ACCX_OK;
  for (uint32_t i = 0; i < info.file_count; ++i) {
    const char* name;
    if (accrt_weights_file(weights, i, &name) != ACCRT_OK)
      continue;
    if (stat(name, &facts) == 0 && S_ISDIR(facts.st_mode))
      name = accx_text("%s/model.safetensors", name);
    if (accx_same_file(output, name))
      return accx_fail(ACCX_USAGE, "%s is read from, and would be replaced: name another output",
                       output);
  }
  return ACCX_OK;
}
