/* accrt/trust.h - keys, signatures of bundles, whose machine code may run, and weights encrypted at rest. docs/trust.md explains.
 *
 * Signatures and encryption are done by OpenSSL's libcrypto, opened when it is first needed: where it is missing, the functions
 * that need it return ACCRT_ERROR_UNSUPPORTED, and everything else works. The library makes no key by itself and looks for none
 * in a home directory: the accx tool and the Python package do.
 */
#ifndef ACCRT_TRUST_H_
#define ACCRT_TRUST_H_

#include "accrt/bundle.h"

ACCRT_BEGIN

/** 32 bytes: a private or public Ed25519 key, a key for encryption, or a root of a bundle's tree. Frozen. */
typedef struct accrt_key {
  uint8_t bytes[32];
} accrt_key_t;
ACCRT_ASSERT_LAYOUT(accrt_key_t, bytes, 32);

/* ---- Keys and their files ------------------------------------------------------------------------------------------------ */

#define ACCRT_KEY_PRIVATE                                                                          \
  1u /**< Ed25519, PEM of PKCS #8, as `openssl genpkey -algorithm ed25519` writes it */
#define ACCRT_KEY_PUBLIC                                                                           \
  2u /**< Ed25519, PEM of SubjectPublicKeyInfo, as `openssl pkey -pubout` writes it */
#define ACCRT_KEY_SECRET 3u /**< for encryption; PEM of the 32 bytes, "ACCRT SECRET KEY" */

/** 32 random bytes: a new private key or a new key for encryption. @return ACCRT_OK; ACCRT_ERROR_IO (no random source). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_generate(accrt_instance_t* instance, accrt_key_t* out_key);
/** The public key of a private one. @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_public(accrt_instance_t* instance,
                                          const accrt_key_t* private_key, accrt_key_t* out_public);
/** Reads a key's file, at most 4096 bytes. Links are followed; a file that others may read (private, secret) or write (public) is refused.
 * @param kind ACCRT_KEY_*.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_IO; ACCRT_ERROR_INVALID_FORMAT (no key of that kind, or no regular file);
 *   ACCRT_ERROR_PERMISSION_DENIED (the file's mode). Blocks on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_read(accrt_instance_t* instance, const char* path, uint32_t kind,
                                        accrt_key_t* out_key);
/** Writes a key's new file: mode 0600, a public key's 0644. It replaces nothing.
 * @return ACCRT_OK; ACCRT_ERROR_ALREADY_EXISTS; ACCRT_ERROR_IO. Blocks on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_write(accrt_instance_t* instance, const char* path,
                                         uint32_t kind, const accrt_key_t* key);
/** An Ed25519 signature, of 64 bytes, over any bytes: for writers that sign what they write.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_sign(accrt_instance_t* instance, const accrt_key_t* private_key,
                                        const void* data, uint64_t size_bytes,
                                        uint8_t* out_signature);

/* ---- What an instance trusts --------------------------------------------------------------------------------------------- */

/** Trusts what this public key has signed, from now on, beside the keys of option trust.keys (or of ACCRT_TRUST_KEYS). Repeating
 * it is fine. Thread-safe. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_instance_trust_key(accrt_instance_t* instance,
                                                  const accrt_key_t* public_key);
/** Trusts the code of bundles with this code root, signed or not: what the caller has just made itself. As above. Since: 0.3 */
ACCRT_API accrt_status_t accrt_instance_trust_code(accrt_instance_t* instance,
                                                   const accrt_key_t* code_root);

/* ---- Signatures of a bundle ---------------------------------------------------------------------------------------------- */

#define ACCRT_SCOPE_CODE 1u    /**< everything that says what runs: all sections but the weights */
#define ACCRT_SCOPE_WEIGHTS 2u /**< the bytes of the weights in the file */

/** The two roots of a bundle, and what of them is signed by a key that the instance trusts. */
typedef struct accrt_bundle_trust {
  uint32_t struct_size;
  uint32_t signature_count;
  void* next;               /**< NULL */
  accrt_key_t code_root;    /**< computed from the file */
  accrt_key_t weight_root;  /**< zeros where the file has no tree of its weights */
  uint32_t has_code_root;   /**< 1: the file has a tree, with this root */
  uint32_t has_weight_root; /**< 1: the file has a tree of its weights */
  uint32_t code_trusted;    /**< 1: signed by a trusted key, or trusted by its root */
  uint32_t weights_trusted; /**< 1: signed by a trusted key */
  uint32_t has_host_code;   /**< 1: it has machine code of the host CPU */
  uint32_t encrypted;       /**< 1: its weights are */
} accrt_bundle_trust_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_trust_t, encrypted, 104);
#define ACCRT_BUNDLE_TRUST_INIT ACCRT_STRUCT_INIT(accrt_bundle_trust_t)
/** Fills `out_trust`. Signatures are checked, weights are not read: accrt_bundle_verify does that. Blocks on the file.
 * @return ACCRT_OK; ACCRT_ERROR_DATA_CORRUPT (the code is not what the tree says); ACCRT_ERROR_UNSUPPORTED (a trusted key is among
 *   its signers', and there is no libcrypto); ACCRT_ERROR_IO; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_trust(accrt_bundle_t* bundle,
                                            accrt_bundle_trust_t* out_trust);

/** One signature in a bundle. */
typedef struct accrt_signature_info {
  uint32_t struct_size;
  uint32_t scope;   /**< ACCRT_SCOPE_CODE or ACCRT_SCOPE_WEIGHTS */
  void* next;       /**< NULL */
  accrt_key_t key;  /**< whose it says it is */
  uint32_t valid;   /**< 1: it is this key's, of the root that the file's tree has */
  uint32_t trusted; /**< 1: the instance trusts this key */
} accrt_signature_info_t;
ACCRT_ASSERT_LAYOUT(accrt_signature_info_t, trusted, 56);
#define ACCRT_SIGNATURE_INFO_INIT ACCRT_STRUCT_INIT(accrt_signature_info_t)
/** The index-th signature. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_signature(accrt_bundle_t* bundle, uint32_t index,
                                                accrt_signature_info_t* out_info);

#define ACCRT_SIGN_VOUCH 1u /**< sign machine code that this key has not signed before */
/** Options of accrt_bundle_sign. */
typedef struct accrt_sign_options {
  uint32_t struct_size;
  uint32_t scopes; /**< ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS */
  const accrt_chain_t* next;
  const accrt_key_t* private_key;
  uint32_t flags;    /**< ACCRT_SIGN_VOUCH */
  uint32_t reserved; /**< 0 */
} accrt_sign_options_t;
ACCRT_ASSERT_LAYOUT(accrt_sign_options_t, reserved, 32);
#define ACCRT_SIGN_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_sign_options_t)
/** Writes the bundle to `path` with a signature more; the others stay. All weights are read and checked on the way when they are signed.
 * The file appears under its name when it is whole, in place of one that was there (of the bundle itself, too).
 * @return ACCRT_OK; ACCRT_ERROR_PERMISSION_DENIED (machine code that this key has not signed before, without ACCRT_SIGN_VOUCH: a
 *   signature would say that the code is yours); ACCRT_ERROR_UNSUPPORTED (no libcrypto); ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO.
 *   Blocks. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_sign(accrt_bundle_t* bundle,
                                           const accrt_sign_options_t* options, const char* path);

/* ---- Weights encrypted at rest ------------------------------------------------------------------------------------------- */

/** Writes the bundle to `path` with its weights encrypted (AES-256-GCM), as accrt_bundle_sign does. Signatures of weights are left out:
 * they were of other bytes. @return as accrt_bundle_sign; ACCRT_ERROR_INVALID_STATE (encrypted already, or no weights). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_encrypt(accrt_bundle_t* bundle, const accrt_key_t* secret_key,
                                              const char* path);
/** The way back. @return as accrt_bundle_encrypt; ACCRT_ERROR_INVALID_STATE (not encrypted). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_decrypt(accrt_bundle_t* bundle, const char* path);
/** What names a secret key in encrypted bundles: 16 bytes made of it, which do not give it away. Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_id(accrt_instance_t* instance, const accrt_key_t* secret_key,
                                      uint8_t* out_id);

ACCRT_END
#endif /* ACCRT_TRUST_H_ */
