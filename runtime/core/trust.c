/* runtime/core/trust.c - reading what an instance is to trust from its options and the environment, and looking it up. Nothing of a
 * home directory is read. */
#define _GNU_SOURCE
#include "runtime/core/trust.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/key.h"
#include "runtime/core/memory.h"

#define MAX_PATH_BYTES 4096u
#define MAX_KEYS 4096u /* of one folder */

static const char* const option_names[] = {"trust.policy", "trust.keys", "trust.weights",
                                           "crypto.library"};

bool accrt_trust_option_known(const char* key, accrt_near_t* near) {
  for (size_t i = 0; i < sizeof option_names / sizeof option_names[0]; ++i) {
    if (strcmp(option_names[i], key) == 0)
      return true;
    accrt_near_add(near, option_names[i]);
  }
  return false;
}

/* ---- Lists ---- */

static bool contains(const accrt_key_list_t* list, const accrt_key_t* key) {
  for (size_t i = 0; i < list->count; ++i) {
    if (memcmp(&list->keys[i], key, sizeof *key) == 0)
      return true;
  }
  return false;
}

static bool look_up(accrt_trust_t* trust, const accrt_key_list_t* list, const accrt_key_t* key) {
  accrt_mutex_lock(&trust->lock);
  const bool found = contains(list, key);
  accrt_mutex_unlock(&trust->lock);
  return found;
}

bool accrt_trust_has_key(accrt_instance_t* instance, const accrt_key_t* key) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  return look_up(trust, &trust->keys, key);
}

bool accrt_trust_has_root(accrt_instance_t* instance, const accrt_key_t* root) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  return look_up(trust, &trust->roots, root);
}

/* The allocator runs outside of the lock: the new array is made first, and made again where another thread was faster. */
static accrt_status_t add(accrt_instance_t* instance, accrt_key_list_t* list,
                          const accrt_key_t* key) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  for (;;) {
    accrt_mutex_lock(&trust->lock);
    const size_t capacity = list->capacity;
    const bool there = contains(list, key);
    const bool fits = list->count < capacity;
    if (!there && fits)
      list->keys[list->count++] = *key;
    accrt_mutex_unlock(&trust->lock);
    if (there || fits)
      return ACCRT_OK;
    void* grown;
    const size_t more = capacity < 8 ? 8 : 2 * capacity;
    const accrt_status_t status = accrt_alloc_array(allocator, more, sizeof *key, &grown);
    if (status != ACCRT_OK)
      return status;
    void* old = grown;
    size_t old_capacity = more;
    accrt_mutex_lock(&trust->lock);
    if (list->capacity == capacity) {
      if (list->count > 0)
        memcpy(grown, list->keys, list->count * sizeof *key);
      old = list->keys, old_capacity = capacity;
      list->keys = grown, list->capacity = more;
    }
    accrt_mutex_unlock(&trust->lock);
    accrt_free_array(allocator, old, old_capacity, sizeof *key);
  }
}

static accrt_status_t check_arguments(const char* operation, const void* instance,
                                      const void* key) {
  const accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  if (instance != NULL && key != NULL)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", instance == NULL ? "instance" : "the key");
}

accrt_status_t accrt_instance_trust_key(accrt_instance_t* instance, const accrt_key_t* public_key) {
  const accrt_status_t status = check_arguments(__func__, instance, public_key);
  return status == ACCRT_OK ? add(instance, &accrt_instance_trust_store(instance)->keys, public_key)
                            : status;
}

accrt_status_t accrt_instance_trust_code(accrt_instance_t* instance, const accrt_key_t* code_root) {
  const accrt_status_t status = check_arguments(__func__, instance, code_root);
  return status == ACCRT_OK ? add(instance, &accrt_instance_trust_store(instance)->roots, code_root)
                            : status;
}

/* ---- Keys from files and folders ---- */

static accrt_status_t add_file(accrt_instance_t* instance, const char* path) {
  accrt_key_t key;
  const accrt_status_t status = accrt_key_load(path, ACCRT_KEY_PUBLIC, &key);
  return status == ACCRT_OK ? add(instance, &accrt_instance_trust_store(instance)->keys, &key)
                            : status;
}

/* One file of a folder: what is wrong with it is logged, and it trusts nobody. */
static accrt_status_t add_entry(accrt_instance_t* instance, const char* folder, const char* name) {
  char path[MAX_PATH_BYTES];
  const size_t length = strlen(name);
  if (name[0] == '.' || length < 5 || strcmp(name + length - 4, ".pem") != 0 ||
      (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
    return ACCRT_OK;
  const accrt_error_t saved = *accrt_error_current();
  const accrt_status_t status = add_file(instance, path);
  if (status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY)
    return status;
  accrt_instance_log(instance, ACCRT_LOG_WARNING, "trust", "passed over: %s",
                     accrt_error_current()->message);
  (void)accrt_error_restore(&saved);
  return ACCRT_OK;
}

static accrt_status_t add_folder(accrt_instance_t* instance, const char* path,
                                 const struct stat* facts) {
  if ((facts->st_mode & 002) != 0) {
    return ACCRT_FAIL(PERMISSION_DENIED, "%s: others may write to this folder of keys (mode %03o)",
                      path, (unsigned)(facts->st_mode & 0777));
  }
  DIR* folder = opendir(path);
  if (folder == NULL)
    return ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", path, strerror(errno));
  accrt_status_t status = ACCRT_OK;
  uint32_t count = 0;
  for (struct dirent* entry; status == ACCRT_OK && (entry = readdir(folder)) != NULL;) {
    status = ++count > MAX_KEYS
                 ? ACCRT_FAIL(INVALID_ARGUMENT, "%s: more than %u files", path, MAX_KEYS)
                 : add_entry(instance, path, entry->d_name);
  }
  closedir(folder);
  return status;
}

static accrt_status_t add_path(accrt_instance_t* instance, const char* path) {
  struct stat facts;
  if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
    return add_folder(instance, path, &facts);
  return add_file(instance, path);
}

/* Paths with colons between them. `from` says where they are from. */
static accrt_status_t add_paths(accrt_instance_t* instance, const char* from, const char* paths) {
  while (*paths != '\0') {
    char path[MAX_PATH_BYTES];
    const size_t length = strcspn(paths, ":");
    if (length >= sizeof path)
      return ACCRT_FAIL(INVALID_ARGUMENT, "%s: a path of %zu bytes is too long", from, length);
    memcpy(path, paths, length);
    path[length] = '\0';
    const accrt_status_t status = length > 0 ? add_path(instance, path) : ACCRT_OK;
    if (status != ACCRT_OK) {
      accrt_error_prefix("%s", from);
      return status;
    }
    paths += length + (paths[length] == ':');
  }
  return ACCRT_OK;
}

/* ---- Options ---- */

/* An option's value, or else the environment's; `out_from` is which. Not in programs that run with somebody else's rights. */
static const char* setting(const accrt_instance_t* instance, const char* option,
                           const char* variable, const char** out_from) {
  const char* value = accrt_instance_option(instance, option);
  *out_from = option;
  if (value != NULL || variable == NULL)
    return value;
  *out_from = variable;
  return secure_getenv(variable);
}

static accrt_status_t choose(const char* from, const char* value, const char* const* names,
                             uint32_t count, uint32_t* out_index) {
  for (uint32_t i = 0; i < count; ++i) {
    if (strcmp(names[i], value) == 0) {
      *out_index = i;
      return ACCRT_OK;
    }
  }
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s is '%s': expected %s%s%s or %s", from, value, names[0],
                    count > 2 ? ", " : "", count > 2 ? names[1] : "", names[count - 1]);
}

accrt_status_t accrt_trust_read(accrt_instance_t* instance, uint32_t policy) {
  static const char* const policies[] = {"signed", "all", "no-host-code"};
  static const char* const weights[] = {"any", "signed"};
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const char* from;
  const char* value = setting(instance, "trust.policy", "ACCRT_TRUST", &from);
  uint32_t index = 0;
  accrt_status_t status =
      value != NULL && value[0] != '\0' ? choose(from, value, policies, 3, &index) : ACCRT_OK;
  trust->policy = policy != ACCRT_HOST_CODE_DEFAULT ? policy : ACCRT_HOST_CODE_SIGNED + index;
  value = setting(instance, "trust.weights", NULL, &from);
  if (status == ACCRT_OK && value != NULL)
    status = choose(from, value, weights, 2, &trust->signed_weights);
  value = setting(instance, "trust.keys", "ACCRT_TRUST_KEYS", &from);
  return status == ACCRT_OK && value != NULL ? add_paths(instance, from, value) : status;
}

void accrt_trust_free(accrt_instance_t* instance) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  accrt_free_array(allocator, trust->keys.keys, trust->keys.capacity, sizeof(accrt_key_t));
  accrt_free_array(allocator, trust->roots.keys, trust->roots.capacity, sizeof(accrt_key_t));
}
