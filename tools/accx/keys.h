/* tools/accx/keys.h - finds and reads a user's keys. Only the tool and the Python package use a
 * home folder; the library does not. */
#ifndef ACCX_KEYS_H_
#define ACCX_KEYS_H_

#include "accx.h"

/* The user's private key, and the folder of trusted public keys, in
 * ${XDG_CONFIG_HOME:-~/.config}/accrt; NULL when there is no home folder. */
const char* accx_signing_key_path(void);
const char* accx_trusted_folder(void);
/* The keys that the tool's instances trust: --trust-keys, or else ACCRT_TRUST_KEYS and the trusted
 * folder. NULL: none. */
const char* accx_trusted_paths(const accx_args_t* args);

/* Creates the folders, readable only by the user. */
int accx_make_config(void);
/* Reads --key, or else the user's private key. */
int accx_read_signing_key(accrt_instance_t* instance, const accx_args_t* args,
                          accrt_key_t* out_key);
/* 64 hexadecimal digits, or "ed25519:" and the first 16. They live until exit. */
const char* accx_key_hex(const accrt_key_t* key);
const char* accx_key_name(const accrt_key_t* key);
/* Writes a key file so that it appears whole. ACCRT_ERROR_ALREADY_EXISTS if the file exists. */
accrt_status_t accx_write_key(accrt_instance_t* instance, const char* path, uint32_t kind,
                              const accrt_key_t* key);

#endif /* ACCX_KEYS_H_ */
