/* tools/accx/trust.c - accx trust: the public keys that this user's tool and Python trust. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "accx.h"
#include "json_out.h"
#include "keys.h"
#include "open.h"
#include "term.h"
#include "trust_rules.h"

/* Checks a name. It becomes a file name: letters, digits, '.', '_' and '-', not beginning with
 * '.'. */
static int check_name(const char* name) {
  const size_t length = strlen(name);
  const bool good = length > 0 && length < 128 && name[0] != '.' &&
                    strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                 "0123456789._-") == length;
  return good ? ACCX_OK
              : accx_fail(ACCX_USAGE, "'%s' is no name for a key: letters, digits, '.', '_', '-'",
                          name);
}

/* "alice" for "keys/alice.pem", "release" for "release.pem.pub". */
static const char* name_of_file(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* base = slash ? slash + 1 : path;
  return accx_text("%.*s", (int)strcspn(base, "."), base);
}

static const char* path_of(const char* name) {
  return accx_text("%s/%s.pem", accx_trusted_folder(), name);
}

/* The line "key HEX WORD" of a rules file. */
static const char* rule(const accrt_key_t* key, const char* word) {
  return accx_text("key %s %s", accx_key_hex(key), word);
}

static int set_role(const accrt_key_t* key, const char* role) {
  if (strcmp(role, "code") != 0 && strcmp(role, "weights") != 0 && strcmp(role, "both") != 0)
    return accx_fail(ACCX_USAGE, "the role is '%s'; it must be code, weights or both", role);
  return accx_rules_change(
      rule(key, "role "), strcmp(role, "both") == 0 ? NULL : rule(key, accx_text("role %s", role)));
}

static int set_end(const accrt_key_t* key, const char* when) {
  const bool never = strcmp(when, "never") == 0;
  const char* time = never ? NULL : accx_rules_time(when);
  if (!never && !time)
    return accx_fail(ACCX_USAGE,
                     "the end is '%s'; it must be a day (2027-01-31), a time "
                     "(2027-01-31T12:00:00Z), days from now (90d) or never",
                     when);
  return accx_rules_change(rule(key, "not-after "),
                           never ? NULL : rule(key, accx_text("not-after %s", time)));
}

static int add(accrt_instance_t* instance, const accx_args_t* args) {
  accrt_key_t key;
  if (args->operand_count != 2)
    return accx_fail(ACCX_USAGE, "say whose key: accx trust add FILE");
  const char* file = args->operands[1];
  const char* given = accx_args_value(args, "name");
  const char* role = accx_args_value(args, "role");
  const char* until = accx_args_value(args, "until");
  const char* name = given ? given : name_of_file(file);
  int code = check_name(name);
  if (!code && !given && strcmp(name, "own") == 0)
    code = accx_fail(ACCX_FAILED, "'own' is the name of your own key: give another --name");
  if (!code)
    code = accx_make_config();
  if (code)
    return code;
  accrt_status_t status = accrt_key_read(instance, file, ACCRT_KEY_PUBLIC, &key);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", file);
  accrt_key_trust_t trust = ACCRT_KEY_TRUST_INIT;
  if (accrt_instance_key_trust(instance, &key, &trust) == ACCRT_OK && trust.revoked)
    return accx_fail(ACCX_FAILED, "%s was revoked at %s%s%s: it is not trusted again",
                     accx_key_name(&key), accx_rules_time_text(trust.revoked_s),
                     trust.reason[0] ? ", " : "", trust.reason);
  if (access(path_of(name), F_OK) == 0)
    return accx_fail(ACCX_FAILED, "there is a key '%s' already: give another --name", name);
  /* Add the restriction first, so that the key is never trusted without it. */
  if (role)
    code = set_role(&key, role);
  if (!code && until)
    code = set_end(&key, until);
  if (code)
    return code;
  status = accx_write_key(instance, path_of(name), ACCRT_KEY_PUBLIC, &key);
  if (status == ACCRT_ERROR_ALREADY_EXISTS)
    return accx_fail(ACCX_FAILED, "there is a key '%s' already: give another --name", name);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", path_of(name));
  fprintf(accx_out, "%s is trusted as '%s': %s\n", accx_key_name(&key), accx_safe(name),
          role && strcmp(role, "weights") == 0 ? "its signatures of weights count"
                                               : "machine code that it has signed runs");
  return ACCX_OK;
}

static int remove_key(const accx_args_t* args) {
  if (args->operand_count != 2)
    return accx_fail(ACCX_USAGE, "say which: accx trust remove NAME (accx trust list)");
  const int code = check_name(args->operands[1]);
  if (code || !accx_trusted_folder())
    return code ? code : accx_fail(ACCX_FAILED, "there is no folder of trusted keys");
  if (unlink(path_of(args->operands[1])) == 0) {
    fprintf(accx_out, "'%s' is trusted no more\n", accx_safe(args->operands[1]));
    return ACCX_OK;
  }
  return accx_fail(ACCX_FAILED, "no key '%s' can be removed: %s (accx trust list)",
                   args->operands[1], strerror(errno));
}

/* ---- Roles, ends, revocations, floors ---- */

/* Finds a key by its name in the folder, by 64 hexadecimal digits, or by a file. */
static int find_key(accrt_instance_t* instance, const char* text, accrt_key_t* out_key) {
  const bool is_hex = strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
  for (size_t i = 0; is_hex && i < 32; ++i) {
    const char two[3] = {text[2 * i], text[2 * i + 1], '\0'};
    out_key->bytes[i] = (uint8_t)strtoul(two, NULL, 16);
  }
  if (is_hex)
    return ACCX_OK;
  const bool is_path = strchr(text, '/') != NULL || strstr(text, ".pem") != NULL;
  if (!is_path && (check_name(text) || !accx_trusted_folder()))
    return ACCX_USAGE;
  const accrt_status_t status =
      accrt_key_read(instance, is_path ? text : path_of(text), ACCRT_KEY_PUBLIC, out_key);
  if (status == ACCRT_ERROR_NOT_FOUND && !is_path)
    return accx_fail(ACCX_FAILED, "there is no key '%s' (accx trust list)", text);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", text);
}

static int change_role(accrt_instance_t* instance, const accx_args_t* args) {
  accrt_key_t key;
  if (args->operand_count != 3)
    return accx_fail(ACCX_USAGE, "say whose and which: accx trust role NAME code|weights|both");
  int code = find_key(instance, args->operands[1], &key);
  if (!code)
    code = set_role(&key, args->operands[2]);
  if (!code)
    fprintf(accx_out, "%s: its signatures of %s count\n", accx_key_name(&key),
            strcmp(args->operands[2], "both") == 0 ? "code and of weights" : args->operands[2]);
  return code;
}

static int expire(accrt_instance_t* instance, const accx_args_t* args) {
  accrt_key_t key;
  if (args->operand_count != 3)
    return accx_fail(ACCX_USAGE, "say whose and when: accx trust expire NAME 2027-01-31");
  const char* when = args->operands[2];
  int code = find_key(instance, args->operands[1], &key);
  if (!code)
    code = set_end(&key, when);
  if (!code && strcmp(when, "never") == 0)
    fprintf(accx_out, "%s: its signatures count without an end\n", accx_key_name(&key));
  else if (!code)
    fprintf(accx_out, "%s: its signatures count until %s\n", accx_key_name(&key),
            accx_rules_time(when));
  return code;
}

static int revoke_key(accrt_instance_t* instance, const accx_args_t* args) {
  accrt_key_t key;
  const char* reason = accx_args_value(args, "reason");
  if (args->operand_count != 2)
    return accx_fail(ACCX_USAGE, "say whose: accx trust revoke NAME (or 64 digits, or a file)");
  int code = find_key(instance, args->operands[1], &key);
  if (code)
    return code;
  accrt_key_trust_t trust = ACCRT_KEY_TRUST_INIT;
  if (accrt_instance_key_trust(instance, &key, &trust) == ACCRT_OK && trust.revoked)
    return accx_fail(ACCX_FAILED, "%s was revoked at %s", accx_key_name(&key),
                     accx_rules_time_text(trust.revoked_s));
  code = accx_rules_change(
      NULL, rule(&key, accx_text("revoked %s%s%s", accx_rules_time_text((int64_t)time(NULL)),
                                 reason ? " " : "", reason ? reason : "")));
  if (!code)
    fprintf(accx_out, "%s is revoked: signatures by it are not valid any more\n",
            accx_key_name(&key));
  return code;
}

static int set_floor(const accx_args_t* args) {
  int64_t wanted, old = -1;
  if (args->operand_count != 3)
    return accx_fail(ACCX_USAGE, "say what and which: accx trust floor NAME VERSION");
  const char *name = args->operands[1], *version = args->operands[2];
  const char* there = accx_rules_floor(name);
  if (!accx_parse_i64(version, &wanted) || wanted < 0)
    return accx_fail(ACCX_USAGE, "the version is '%s'; it must be a whole number from 0", version);
  if (there && !accx_parse_i64(there, &old))
    old = INT64_MAX;
  if (wanted < old && !accx_args_has(args, "lower"))
    return accx_fail(ACCX_FAILED,
                     "the floor of '%s' is %s: lowering it lets older bundles run again (--lower)",
                     name, there);
  const int code = accx_rules_change(accx_text("floor %s ", name),
                                     accx_text("floor %s %lld", name, (long long)wanted));
  if (!code)
    fprintf(accx_out, "bundles named '%s' run from version %lld on\n", accx_safe(name),
            (long long)wanted);
  return code;
}

/* ---- list ---- */

static int compare_names(const void* a, const void* b) {
  return strcmp(*(const char* const*)a, *(const char* const*)b);
}

/* Names of the key files without ".pem", sorted. The caller frees the array. */
static const char** list_names(size_t* out_count) {
  const char* path = accx_trusted_folder();
  DIR* folder = path ? opendir(path) : NULL;
  const char** names = NULL;
  size_t count = 0;
  for (struct dirent* entry; folder && (entry = readdir(folder));) {
    const size_t length = strlen(entry->d_name);
    if (entry->d_name[0] == '.' || length < 5 || strcmp(entry->d_name + length - 4, ".pem") != 0)
      continue;
    if (count % 64 == 0) {
      const char** more = accx_alloc(count + 64, sizeof *names);
      if (count)
        memcpy(more, names, count * sizeof *names);
      free(names);
      names = more;
    }
    names[count++] = accx_text("%.*s", (int)(length - 4), entry->d_name);
  }
  if (folder)
    closedir(folder);
  if (count)
    qsort(names, count, sizeof *names, compare_names);
  *out_count = count;
  return names;
}

#define SOON_S (INT64_C(30) * 86400)

/* Such as "ends in 12 days", "revoked 2026-...: a reason", or "". */
static const char* state_of(const accrt_key_trust_t* trust) {
  const int64_t left_s = trust->not_after_s - (int64_t)time(NULL);
  if (trust->revoked)
    return accx_text("revoked %s%s%s", accx_rules_time_text(trust->revoked_s),
                     trust->reason[0] ? ": " : "", accx_safe(trust->reason));
  if (trust->expired)
    return "expired";
  if (trust->not_after_s != 0 && left_s <= SOON_S)
    return accx_text("ends soon: %lld days left", (long long)(left_s / 86400));
  return trust->trusted ? "" : "not trusted";
}

static const char* roles_text(uint32_t roles) {
  static const char* const names[] = {"none", "code", "weights", "both"};
  return names[roles & 3];
}

static void list_json(struct json_object* object, const accrt_key_t* key,
                      const accrt_key_trust_t* trust) {
  accx_json_text(object, "key", accx_key_hex(key));
  accx_json_text(object, "role", roles_text(trust->roles));
  accx_json_text(object, "not_after",
                 trust->not_after_s ? accx_rules_time_text(trust->not_after_s) : NULL);
  accx_json_text(object, "revoked", trust->revoked ? accx_rules_time_text(trust->revoked_s) : NULL);
  accx_json_text(object, "reason", trust->revoked ? trust->reason : NULL);
  accx_json_bool(object, "expired", trust->expired != 0);
  accx_json_text(object, "source", trust->source[0] ? trust->source : NULL);
}

static void list_one(accrt_instance_t* instance, const char* name, struct json_object* array,
                     accx_table_t* table) {
  accrt_key_t key;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_key_trust_t trust = ACCRT_KEY_TRUST_INIT;
  const bool good = accrt_key_read(instance, path_of(name), ACCRT_KEY_PUBLIC, &key) == ACCRT_OK &&
                    accrt_instance_key_trust(instance, &key, &trust) == ACCRT_OK;
  if (!good)
    accrt_last_error(&error);
  if (array) {
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", name);
    if (good)
      list_json(object, &key, &trust);
    else
      accx_json_text(object, "key", NULL);
    accx_json_text(object, "problem", good ? NULL : error.message);
    return;
  }
  accx_table_cell(table, ACCX_NAME, "%s", accx_safe(name));
  accx_table_cell(table, ACCX_PLAIN, "%s",
                  good ? accx_key_name(&key)
                       : accx_text("not trusted: %s", accx_safe(error.message)));
  accx_table_cell(table, ACCX_PLAIN, "%s", good ? roles_text(trust.roles) : "");
  accx_table_cell(table, ACCX_PLAIN, "%s",
                  good && trust.not_after_s ? accx_rules_time_text(trust.not_after_s) : "");
  accx_table_cell(table, ACCX_PLAIN, "%s", good ? state_of(&trust) : "");
}

static void floor_row(void* user, const char* name, const char* version) {
  accx_table_cell(user, ACCX_NAME, "%s", accx_safe(name));
  accx_table_cell(user, ACCX_PLAIN, "nothing below version %s", accx_safe(version));
}

static void floor_json(void* user, const char* name, const char* version) {
  struct json_object* object = accx_json_append(user);
  accx_json_text(object, "name", name);
  accx_json_text(object, "version", version);
}

static int list(accrt_instance_t* instance, const accx_args_t* args) {
  size_t count;
  const char** names = list_names(&count);
  const bool json = accx_args_has(args, "json");
  struct json_object* root = json ? accx_json_object(NULL, NULL) : NULL;
  struct json_object* array = json ? accx_json_array(root, "keys") : NULL;
  accx_table_t* table = json ? NULL : accx_table_create(5);
  for (size_t i = 0; i < count; ++i)
    list_one(instance, names[i], array, table);
  if (table)
    accx_table_print(table);
  table = json ? NULL : accx_table_create(2);
  if (json)
    accx_rules_floors(floor_json, accx_json_array(root, "floors"));
  else
    accx_rules_floors(floor_row, table);
  if (table)
    accx_table_print(table);
  if (root)
    accx_json_print(root);
  else if (count == 0)
    fputs("no key is trusted (accx keygen, accx trust add FILE)\n", accx_out);
  free(names);
  return ACCX_OK;
}

static int print_path(void) {
  const char* folder = accx_trusted_folder();
  if (!folder)
    return accx_fail(ACCX_FAILED, "neither XDG_CONFIG_HOME nor HOME is a path");
  fprintf(accx_out, "%s\n", folder);
  return ACCX_OK;
}

static int run_word(accrt_instance_t* instance, const accx_args_t* args) {
  static const char* const words[] = {"add",  "list",   "remove", "path",
                                      "role", "expire", "revoke", "floor"};
  const char* word = args->operands[0];
  if (strcmp(word, "add") == 0)
    return add(instance, args);
  if (strcmp(word, "list") == 0)
    return list(instance, args);
  if (strcmp(word, "remove") == 0)
    return remove_key(args);
  if (strcmp(word, "role") == 0)
    return change_role(instance, args);
  if (strcmp(word, "expire") == 0)
    return expire(instance, args);
  if (strcmp(word, "revoke") == 0)
    return revoke_key(instance, args);
  if (strcmp(word, "floor") == 0)
    return set_floor(args);
  return accx_fail(ACCX_USAGE, "trust has no '%s'%s (accx help trust)", word,
                   accx_near(word, words, sizeof words / sizeof *words));
}

static int run_trust(const accx_args_t* args) {
  if (strcmp(args->operands[0], "path") == 0)
    return print_path();
  accrt_instance_t* instance = NULL;
  int code = accx_open_instance(args, &instance);
  if (!code)
    code = run_word(instance, args);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"name", "NAME", false, "add: what the key is called; without it the file's name"},
    {"role", "code|weights|both", false,
     "add: what its signatures count for: code, weights or both"},
    {"until", "TIME", false, "add: when it ends, as expire takes it"},
    {"reason", "WORDS", false, "revoke: why, for messages and lists"},
    {"lower", NULL, false, "floor: let older versions run again"},
    {"json", NULL, false, "print JSON (list)"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_trust = {
    .name = "trust",
    .operands = "add FILE | list | remove NAME | role NAME ROLE | expire NAME TIME | revoke NAME | "
                "floor NAME VERSION | path",
    .min_operands = 1,
    .max_operands = 3,
    .summary = "the keys whose signatures this user trusts, for what, and how long",
    .details =
        "Machine code that a trusted key has signed runs, with accx and in Python. They are "
        "public keys in\n"
        "${XDG_CONFIG_HOME:-~/.config}/accrt/trusted; `path` prints that folder, for "
        "programs in C: they get\n"
        "it by option trust.keys or by ACCRT_TRUST_KEYS. `role`, `expire`, `revoke` and "
        "`floor` write its file\n"
        "trust.rules, which restricts them. A revoked key stays revoked. A floor is the lowest "
        "version of a\n"
        "bundle that runs: its metadata has name and version.\n"
        "\n"
        "Examples:\n"
        "  accx trust add release.pem.pub --name acme --role code --until 2027-01-31\n"
        "  accx trust list\n"
        "  accx trust revoke acme --reason 'lost laptop'\n"
        "  accx trust floor llama-8b 12\n"
        "  ACCRT_TRUST_KEYS=$(accx trust path) ./embed model.accx\n",
    .options = options,
    .run = run_trust,
    .operand_kind = ACCX_READS,
    .choices = "add list remove role expire revoke floor path",
};
