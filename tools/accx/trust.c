/* tools/accx/trust.c - accx trust: the public keys whose signatures this user's tool and Python trust. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accx.h"
#include "json_out.h"
#include "keys.h"
#include "open.h"
#include "term.h"

/* Names are files: letters, digits, '.', '_' and '-', not beginning with '.'. */
static int check_name(const char* name) {
  const size_t length = strlen(name);
  const bool good = length > 0 && length < 128 && name[0] != '.' &&
                    strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                 "0123456789._-") == length;
  return good ? ACCX_OK
              : accx_fail(ACCX_USAGE, "'%s' is no name for a key: letters, digits, '.', '_', '-'",
                          name);
}

/* "alice" of "keys/alice.pem", "release" of "release.pem.pub". */
static const char* name_of_file(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* base = slash ? slash + 1 : path;
  return accx_text("%.*s", (int)strcspn(base, "."), base);
}

static const char* path_of(const char* name) {
  return accx_text("%s/%s.pem", accx_trusted_folder(), name);
}

static int add(accrt_instance_t* instance, const accx_args_t* args) {
  accrt_key_t key;
  if (args->operand_count != 2)
    return accx_fail(ACCX_USAGE, "say whose key: accx trust add FILE");
  const char* file = args->operands[1];
  const char* given = accx_args_value(args, "name");
  const char* name = given ? given : name_of_file(file);
  int code = check_name(name);
  if (!code)
    code = accx_make_config();
  if (code)
    return code;
  accrt_status_t status = accrt_key_read(instance, file, ACCRT_KEY_PUBLIC, &key);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", file);
  status = accx_write_key(instance, path_of(name), ACCRT_KEY_PUBLIC, &key);
  if (status == ACCRT_ERROR_ALREADY_EXISTS)
    return accx_fail(ACCX_FAILED, "there is a key '%s' already: give another --name", name);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", path_of(name));
  fprintf(accx_out, "%s is trusted as '%s': machine code that it has signed runs\n",
          accx_key_name(&key), accx_safe(name));
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

static int compare_names(const void* a, const void* b) {
  return strcmp(*(const char* const*)a, *(const char* const*)b);
}

/* Names of the keys' files without ".pem", sorted; free() the array. */
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

static void list_one(accrt_instance_t* instance, const char* name, struct json_object* array,
                     accx_table_t* table) {
  accrt_key_t key;
  accrt_error_t error = ACCRT_ERROR_INIT;
  const bool good = accrt_key_read(instance, path_of(name), ACCRT_KEY_PUBLIC, &key) == ACCRT_OK;
  if (!good)
    accrt_last_error(&error);
  if (array) {
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", name);
    accx_json_text(object, "key", good ? accx_key_hex(&key) : NULL);
    accx_json_text(object, "problem", good ? NULL : error.message);
    return;
  }
  accx_table_cell(table, ACCX_NAME, "%s", accx_safe(name));
  accx_table_cell(table, ACCX_PLAIN, "%s",
                  good ? accx_key_name(&key)
                       : accx_text("not trusted: %s", accx_safe(error.message)));
}

static int list(accrt_instance_t* instance, const accx_args_t* args) {
  size_t count;
  const char** names = list_names(&count);
  const bool json = accx_args_has(args, "json");
  struct json_object* root = json ? accx_json_object(NULL, NULL) : NULL;
  struct json_object* array = json ? accx_json_array(root, "keys") : NULL;
  accx_table_t* table = json ? NULL : accx_table_create(2);
  for (size_t i = 0; i < count; ++i)
    list_one(instance, names[i], array, table);
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

static int run_trust(const accx_args_t* args) {
  static const char* const words[] = {"add", "list", "remove", "path"};
  const char* word = args->operands[0];
  if (strcmp(word, "path") == 0)
    return print_path();
  accrt_instance_t* instance = NULL;
  int code = accx_open_instance(args, &instance);
  if (code)
    goto out;
  if (strcmp(word, "add") == 0)
    code = add(instance, args);
  else if (strcmp(word, "list") == 0)
    code = list(instance, args);
  else if (strcmp(word, "remove") == 0)
    code = remove_key(args);
  else
    code = accx_fail(ACCX_USAGE, "trust has no '%s'%s (accx help trust)", word,
                     accx_near(word, words, 4));
out:
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"name", "NAME", false, "add: what the key is called; without it the file's name"},
    {"json", NULL, false, "print JSON (list)"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_trust = {
    .name = "trust",
    .operands = "add FILE | list | remove NAME | path",
    .min_operands = 1,
    .max_operands = 2,
    .summary = "the keys whose signatures this user trusts",
    .details = "Machine code that a trusted key has signed runs, with accx and in Python. They are "
               "public keys in\n"
               "${XDG_CONFIG_HOME:-~/.config}/accrt/trusted; `path` prints that folder, for "
               "programs in C: they get\n"
               "it by option trust.keys or by ACCRT_TRUST_KEYS.\n"
               "\n"
               "Examples:\n"
               "  accx trust add release.pem.pub --name acme\n"
               "  accx trust list\n"
               "  ACCRT_TRUST_KEYS=$(accx trust path) ./embed model.accx\n",
    .options = options,
    .run = run_trust,
};
