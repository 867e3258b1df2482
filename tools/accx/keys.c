/* tools/accx/keys.c - the user's folder of keys. keygen.c creates keys. */
#include "keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ${XDG_CONFIG_HOME:-~/.config}/accrt, or NULL when there is no home folder. */
static const char* config_folder(void) {
  const char* config = getenv("XDG_CONFIG_HOME");
  const char* home = getenv("HOME");
  if (config && config[0] == '/')
    return accx_text("%s/accrt", config);
  return home && home[0] == '/' ? accx_text("%s/.config/accrt", home) : NULL;
}

static const char* in_config(const char* name) {
  const char* folder = config_folder();
  return folder ? accx_text("%s/%s", folder, name) : NULL;
}

const char* accx_signing_key_path(void) {
  return in_config("signing-key.pem");
}

const char* accx_trusted_folder(void) {
  return in_config("trusted");
}

const char* accx_trusted_paths(const accx_args_t* args) {
  const char* given = accx_args_value(args, "trust-keys");
  if (given)
    return given;
  const char* folder = accx_trusted_folder();
  const char* variable = getenv("ACCRT_TRUST_KEYS");
  struct stat facts;
  if (!folder || stat(folder, &facts) != 0)
    return variable;
  return variable && variable[0] ? accx_text("%s:%s", variable, folder) : folder;
}

static int make_folder(const char* path) {
  if (mkdir(path, 0700) == 0 || errno == EEXIST)
    return ACCX_OK;
  return accx_fail(ACCX_FAILED, "%s cannot be made: %s", path, strerror(errno));
}

int accx_make_config(void) {
  const char* folder = config_folder();
  if (!folder)
    return accx_fail(ACCX_FAILED,
                     "there is no place for keys: neither XDG_CONFIG_HOME nor HOME is a path");
  /* A new home folder may lack ~/.config. */
  const char* parent = accx_text("%.*s", (int)(strrchr(folder, '/') - folder), folder);
  int code = make_folder(parent);
  if (!code)
    code = make_folder(folder);
  return code ? code : make_folder(accx_trusted_folder());
}

int accx_read_signing_key(accrt_instance_t* instance, const accx_args_t* args,
                          accrt_key_t* out_key) {
  const char* given = accx_args_value(args, "key");
  const char* path = given ? given : accx_signing_key_path();
  if (!path)
    return accx_fail(ACCX_FAILED, "there is no key to sign with: give one with --key");
  const accrt_status_t status = accrt_key_read(instance, path, ACCRT_KEY_PRIVATE, out_key);
  if (status == ACCRT_ERROR_NOT_FOUND && !given)
    return accx_fail(ACCX_FAILED, "there is no key to sign with in %s: accx keygen makes one",
                     path);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", path);
}

const char* accx_key_hex(const accrt_key_t* key) {
  char text[65];
  for (size_t i = 0; i < sizeof key->bytes; ++i)
    sprintf(text + 2 * i, "%02x", key->bytes[i]);
  return accx_text("%s", text);
}

const char* accx_key_name(const accrt_key_t* key) {
  return accx_text("ed25519:%.16s", accx_key_hex(key));
}

accrt_status_t accx_write_key(accrt_instance_t* instance, const char* path, uint32_t kind,
                              const accrt_key_t* key) {
  return accrt_key_write(instance, path, kind, key);
}
