/* runtime/core/trust.c - an instance's trust: reads it from options and the environment, and
 * answers queries. It reads nothing from a home directory. */
#define _GNU_SOURCE
#include "runtime/core/trust.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/key.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"
#include "runtime/core/safe_open.h"

#define MAX_PATH_BYTES 4096u
#define MAX_KEYS 4096u /* of one folder */

#define RULES_NAME "trust.rules"

static const char option_names[][17] = {"trust.policy",  "trust.keys",  "trust.weights",
                                        "trust.floors",  "trust.clock", "trust.encryption",
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

static bool contains(const accrt_trust_list_t* list, const void* item, size_t item_bytes) {
  for (size_t i = 0; i < list->count; ++i) {
    if (memcmp((const char*)list->items + i * item_bytes, item, item_bytes) == 0)
      return true;
  }
  return false;
}

static bool look_up(accrt_trust_t* trust, const accrt_trust_list_t* list, const accrt_key_t* key) {
  accrt_mutex_lock(&trust->lock);
  const bool found = contains(list, key, sizeof *key);
  accrt_mutex_unlock(&trust->lock);
  return found;
}

bool accrt_trust_has_root(accrt_instance_t* instance, const accrt_key_t* root) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  return look_up(trust, &trust->roots, root);
}

/* Adds an item. The allocator is called outside the lock: the new array is allocated first, and
 * again if another thread was faster. */
static accrt_status_t add(accrt_instance_t* instance, accrt_trust_list_t* list, const void* item,
                          size_t item_bytes) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  for (;;) {
    accrt_mutex_lock(&trust->lock);
    const size_t capacity = list->capacity;
    const bool there = contains(list, item, item_bytes);
    const bool fits = list->count < capacity;
    if (!there && fits)
      memcpy((char*)list->items + list->count++ * item_bytes, item, item_bytes);
    accrt_mutex_unlock(&trust->lock);
    if (there || fits)
      return ACCRT_OK;
    void* grown;
    const size_t more = capacity < 8 ? 8 : 2 * capacity;
    ACCRT_TRY(accrt_alloc_array(allocator, more, item_bytes, &grown));
    void* old = grown;
    size_t old_capacity = more;
    accrt_mutex_lock(&trust->lock);
    if (list->capacity == capacity) {
      if (list->count > 0)
        memcpy(grown, list->items, list->count * item_bytes);
      old = list->items, old_capacity = capacity;
      list->items = grown, list->capacity = more;
    }
    accrt_mutex_unlock(&trust->lock);
    accrt_free_array(allocator, old, old_capacity, item_bytes);
  }
}

static accrt_status_t add_key(accrt_instance_t* instance, const accrt_key_t* key) {
  if (accrt_key_is_weak(key))
    return ACCRT_FAIL(INVALID_ARGUMENT, ACCRT_KEY_WEAK);
  return add(instance, &accrt_instance_trust_store(instance)->keys, key, sizeof *key);
}

accrt_status_t accrt_trust_add_fact(accrt_instance_t* instance, const accrt_trust_fact_t* fact) {
  return add(instance, &accrt_instance_trust_store(instance)->facts, fact, sizeof *fact);
}

/* ---- Queries ---- */

static int64_t now_s(const accrt_trust_t* trust) {
  struct timespec now = {0};
  if (trust->clock_s >= 0)
    return trust->clock_s;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec;
}

static bool is_against(const accrt_trust_fact_t* fact, uint32_t scope, int64_t time_s) {
  if (fact->kind == ACCRT_FACT_ROLE)
    return (fact->roles & scope) == 0;
  return fact->kind == ACCRT_FACT_NOT_AFTER ? time_s > fact->time_s
                                            : fact->kind == ACCRT_FACT_REVOKED;
}

bool accrt_trust_allows(accrt_instance_t* instance, const accrt_key_t* key, uint32_t scope,
                        accrt_trust_fact_t* out_against) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const int64_t time_s = now_s(trust);
  memset(out_against, 0, sizeof *out_against);
  accrt_mutex_lock(&trust->lock);
  const bool known = contains(&trust->keys, key, sizeof *key);
  const accrt_trust_fact_t* facts = trust->facts.items;
  for (size_t i = 0; i < trust->facts.count; ++i) {
    if (memcmp(&facts[i].key, key, sizeof *key) == 0 &&
        (known || facts[i].kind == ACCRT_FACT_REVOKED) && is_against(&facts[i], scope, time_s) &&
        facts[i].kind > out_against->kind)
      *out_against = facts[i];
  }
  accrt_mutex_unlock(&trust->lock);
  return known && out_against->kind == ACCRT_FACT_NONE;
}

bool accrt_trust_floor(accrt_instance_t* instance, const char* name,
                       accrt_trust_fact_t* out_floor) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  memset(out_floor, 0, sizeof *out_floor);
  accrt_mutex_lock(&trust->lock);
  const accrt_trust_fact_t* facts = trust->facts.items;
  for (size_t i = 0; i < trust->facts.count; ++i) {
    if (facts[i].kind == ACCRT_FACT_FLOOR && strcmp(facts[i].text, name) == 0 &&
        (out_floor->kind == ACCRT_FACT_NONE || facts[i].version > out_floor->version))
      *out_floor = facts[i];
  }
  accrt_mutex_unlock(&trust->lock);
  return out_floor->kind != ACCRT_FACT_NONE;
}

bool accrt_trust_is_name(const char* name) {
  size_t length = 0;
  while (name[length] != '\0' && (unsigned char)name[length] > ' ' && name[length] != 127)
    ++length;
  return name[length] == '\0' && length > 0 && length < ACCRT_TRUST_NAME_BYTES;
}

/* ---- The public functions ---- */

accrt_status_t accrt_instance_trust_key(accrt_instance_t* instance, const accrt_key_t* public_key) {
  ACCRT_ENTER(instance, public_key);
  return add_key(instance, public_key);
}

accrt_status_t accrt_instance_trust_code(accrt_instance_t* instance, const accrt_key_t* code_root) {
  ACCRT_ENTER(instance, code_root);
  return add(instance, &accrt_instance_trust_store(instance)->roots, code_root, sizeof *code_root);
}

/* Adds a fact from a call. Its source is the function's name. */
static accrt_status_t add_called(accrt_instance_t* instance, const char* function,
                                 const accrt_key_t* key, const char* text,
                                 accrt_trust_fact_t* fact) {
  (void)snprintf(fact->source, sizeof fact->source, "%s", function);
  if (text != NULL)
    (void)snprintf(fact->text, sizeof fact->text, "%s", text);
  if (key != NULL)
    fact->key = *key;
  accrt_text_one_line(fact->text);
  return accrt_trust_add_fact(instance, fact);
}

accrt_status_t accrt_instance_trust_key_with(accrt_instance_t* instance,
                                             const accrt_key_t* public_key,
                                             const accrt_trust_key_options_t* options) {
  accrt_trust_key_options_t own;
  ACCRT_ENTER(instance, public_key);
  ACCRT_TRY(accrt_struct_read("accrt_trust_key_options_t", options, &own, sizeof own));
  const uint32_t both = ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS;
  if ((own.roles & ~both) != 0 || own.not_after_s < 0 || own.not_after_s > ACCRT_TRUST_MAX_TIME_S) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "accrt_trust_key_options_t: roles 0x%" PRIx32 ", not_after_s %" PRId64
                      "; expected ACCRT_SCOPE_* and 0 to %" PRId64,
                      own.roles, own.not_after_s, ACCRT_TRUST_MAX_TIME_S);
  }
  accrt_trust_fact_t role = {.kind = ACCRT_FACT_ROLE, .roles = own.roles};
  accrt_trust_fact_t end = {.kind = ACCRT_FACT_NOT_AFTER, .time_s = own.not_after_s};
  /* Add the restriction first, so that the key is never trusted without it. */
  accrt_status_t status = ACCRT_OK;
  if (own.roles != 0 && own.roles != both)
    status = add_called(instance, ACCRT_THIS_FUNCTION, public_key, NULL, &role);
  if (status == ACCRT_OK && own.not_after_s != 0)
    status = add_called(instance, ACCRT_THIS_FUNCTION, public_key, NULL, &end);
  return status == ACCRT_OK ? add_key(instance, public_key) : status;
}

accrt_status_t accrt_instance_revoke_key(accrt_instance_t* instance, const accrt_key_t* public_key,
                                         const char* reason) {
  ACCRT_ENTER(instance, public_key);
  accrt_trust_fact_t fact = {.kind = ACCRT_FACT_REVOKED,
                             .time_s = now_s(accrt_instance_trust_store(instance))};
  return add_called(instance, ACCRT_THIS_FUNCTION, public_key, reason, &fact);
}

accrt_status_t accrt_instance_trust_floor(accrt_instance_t* instance, const char* name,
                                          uint64_t version) {
  ACCRT_ENTER(instance, name);
  accrt_trust_fact_t fact = {.kind = ACCRT_FACT_FLOOR, .version = version};
  if (accrt_trust_is_name(name))
    return add_called(instance, ACCRT_THIS_FUNCTION, NULL, name, &fact);
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "name is '%.140s': expected 1 to %u bytes, without spaces or controls", name,
                    ACCRT_TRUST_NAME_BYTES - 1);
}

accrt_status_t accrt_instance_key_trust(accrt_instance_t* instance, const accrt_key_t* public_key,
                                        accrt_key_trust_t* out_trust) {
  ACCRT_ENTER(instance, public_key, out_trust);
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  accrt_key_trust_t found = ACCRT_KEY_TRUST_INIT;
  const int64_t time_s = now_s(trust);
  found.roles = ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS;
  accrt_mutex_lock(&trust->lock);
  found.trusted = contains(&trust->keys, public_key, sizeof *public_key);
  const accrt_trust_fact_t* facts = trust->facts.items;
  for (size_t i = 0; i < trust->facts.count; ++i) {
    const accrt_trust_fact_t* fact = &facts[i];
    if (memcmp(&fact->key, public_key, sizeof *public_key) != 0 || fact->kind == ACCRT_FACT_FLOOR)
      continue;
    if (fact->kind == ACCRT_FACT_ROLE)
      found.roles &= fact->roles;
    if (fact->kind == ACCRT_FACT_NOT_AFTER &&
        (found.not_after_s == 0 || fact->time_s < found.not_after_s))
      found.not_after_s = fact->time_s;
    if (fact->kind == ACCRT_FACT_REVOKED && !found.revoked) {
      found.revoked = 1, found.revoked_s = fact->time_s;
      (void)snprintf(found.reason, sizeof found.reason, "%s", fact->text);
    }
    (void)snprintf(found.source, sizeof found.source, "%s", fact->source);
  }
  accrt_mutex_unlock(&trust->lock);
  found.expired = found.not_after_s != 0 && time_s > found.not_after_s;
  return accrt_struct_write("accrt_key_trust_t", out_trust, &found, sizeof found);
}

/* ---- Keys from files and folders ---- */

static accrt_status_t add_file(accrt_instance_t* instance, const char* path) {
  accrt_key_t key;
  const accrt_status_t status = accrt_key_load(path, ACCRT_KEY_PUBLIC, &key);
  return status == ACCRT_OK ? add_key(instance, &key) : status;
}

/* Adds one file of a folder. A faulty file is logged and adds no trust. */
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

/* Adds the folder's rules for its keys. If they cannot be read, no key of the folder is trusted. */
static accrt_status_t add_rules(accrt_instance_t* instance, const char* folder) {
  char path[MAX_PATH_BYTES];
  if ((size_t)snprintf(path, sizeof path, "%s/" RULES_NAME, folder) >= sizeof path)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%.80s...: the path is too long", folder);
  const accrt_error_t saved = *accrt_error_current();
  const accrt_status_t status = accrt_trust_read_rules(instance, path);
  if (status != ACCRT_ERROR_NOT_FOUND)
    return status;
  (void)accrt_error_restore(&saved);
  return ACCRT_OK;
}

static accrt_status_t add_folder(accrt_instance_t* instance, const char* path) {
  ACCRT_TRY(accrt_strict_path(path, ACCRT_STRICT_FOLDER, NULL));
  ACCRT_TRY(add_rules(instance, path));
  const int fd = accrt_open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
  DIR* folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (folder == NULL) {
    const int error = errno;
    if (fd >= 0)
      close(fd);
    return ACCRT_FAIL_ERRNO(IO, error, "%s: %s", path, strerror(error));
  }
  uint32_t count = 0;
  accrt_status_t status = ACCRT_OK;
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
  if (fstatat(AT_FDCWD, path, &facts, 0) == 0 && S_ISDIR(facts.st_mode))
    return add_folder(instance, path);
  const size_t length = strlen(path), ending = strlen(".rules");
  if (length > ending && strcmp(path + length - ending, ".rules") == 0)
    return accrt_trust_read_rules(instance, path);
  return add_file(instance, path);
}

/* Adds paths separated by colons. `from` says where they come from. */
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

/* The value of an option or, without it, of the environment variable; `out_from` says which.
 * Programs that run with another user's rights (setuid) ignore the environment. */
static const char* setting(const accrt_instance_t* instance, const char* option,
                           const char* variable, const char** out_from) {
  const char* value = accrt_instance_option(instance, option);
  *out_from = option;
  if (value != NULL || variable == NULL)
    return value;
  *out_from = variable;
  return secure_getenv(variable);
}

typedef char choice_t[13];

static accrt_status_t choose(const char* from, const char* value, const choice_t* names,
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

static accrt_status_t read_clock(accrt_instance_t* instance) {
  uint64_t seconds = 0;
  const char* value = accrt_instance_option(instance, "trust.clock");
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  trust->clock_s = -1;
  if (value == NULL || value[0] == '\0')
    return ACCRT_OK;
  if (!accrt_trust_number(value, &seconds) || seconds > (uint64_t)ACCRT_TRUST_MAX_TIME_S)
    return ACCRT_FAIL(INVALID_ARGUMENT, "trust.clock is '%.40s': expected 0 to %" PRId64, value,
                      ACCRT_TRUST_MAX_TIME_S);
  trust->clock_s = (int64_t)seconds;
  return ACCRT_OK;
}

accrt_status_t accrt_trust_read(accrt_instance_t* instance, uint32_t policy) {
  static const choice_t policies[] = {"signed", "all", "no-host-code"};
  static const choice_t weights[] = {"any", "signed"};
  static const choice_t floors[] = {"any", "required"};
  static const choice_t encryption[] = {"any", "required", "bound"};
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
  value = setting(instance, "trust.floors", NULL, &from);
  if (status == ACCRT_OK && value != NULL)
    status = choose(from, value, floors, 2, &trust->required_floors);
  value = setting(instance, "trust.encryption", NULL, &from);
  if (status == ACCRT_OK && value != NULL)
    status = choose(from, value, encryption, 3, &trust->encrypted_weights);
  if (status == ACCRT_OK)
    status = read_clock(instance);
  value = setting(instance, "trust.keys", "ACCRT_TRUST_KEYS", &from);
  return status == ACCRT_OK && value != NULL ? add_paths(instance, from, value) : status;
}

void accrt_trust_free(accrt_instance_t* instance) {
  accrt_trust_t* trust = accrt_instance_trust_store(instance);
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  accrt_free_array(allocator, trust->keys.items, trust->keys.capacity, sizeof(accrt_key_t));
  accrt_free_array(allocator, trust->roots.items, trust->roots.capacity, sizeof(accrt_key_t));
  accrt_free_array(allocator, trust->facts.items, trust->facts.capacity,
                   sizeof(accrt_trust_fact_t));
}
