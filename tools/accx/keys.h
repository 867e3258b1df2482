/* tools/accx/keys.h - where a user's keys are, and reading them. The library knows no home: the tool and the Python package do. */
#ifndef ACCX_KEYS_H_
#define ACCX_KEYS_H_

#include "accx.h"

/* The user's private key, and the folder of the public keys that are trusted, in ${XDG_CONFIG_HOME:-~/.config}/accrt; NULL when there
 * is no home. */
const char* accx_signing_key_path(void);
const char* accx_trusted_folder(void);
/* What instances of the tool trust: --trust-keys, or else ACCRT_TRUST_KEYS and the trusted folder. NULL: nothing. */
const char* accx_trusted_paths(const accx_args_t* args);

/* Makes the folders, for the user alone. */
int accx_make_config(void);
/* Reads --key, or else the user's private key. */
int accx_read_signing_key(accrt_instance_t* instance, const accx_args_t* args,
                          accrt_key_t* out_key);
/* 64 hexadecimal digits, or "ed25519:" and the first 16. Live until exit. */
const char* accx_key_hex(const accrt_key_t* key);
const char* accx_key_name(const accrt_key_t* key);
/* Writes a file that appears when it is whole; ACCRT_ERROR_ALREADY_EXISTS where there is one. */
accrt_status_t accx_write_key(accrt_instance_t* instance, const char* path, uint32_t kind,
                              const accrt_key_t* key);

#endif /* ACCX_KEYS_H_ */
