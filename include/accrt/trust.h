/* accrt/trust.h - keys, signatures of bundles, which machine code may run, and encrypted weights.
 *
 * docs/trust.md explains. Signatures and encryption use OpenSSL's libcrypto, which is opened when
 * it is first needed. Without it, the functions that need it return ACCRT_ERROR_UNSUPPORTED, and
 * everything else works. The library makes no keys unless you call it to, and reads no home
 * directory: the accx tool and the Python package do.
 */
#ifndef ACCRT_TRUST_H_
#define ACCRT_TRUST_H_

#include "accrt/bundle.h"

ACCRT_BEGIN

/** 32 bytes: a private or public Ed25519 key, an encryption key, or a root of a bundle's tree.
 * Frozen. */
typedef struct accrt_key {
  uint8_t bytes[32];
} accrt_key_t;
ACCRT_ASSERT_LAYOUT(accrt_key_t, bytes, 32);

/* ---- Keys and their files ---- */

/** Ed25519, PEM of PKCS #8, as `openssl genpkey -algorithm ed25519` writes it */
#define ACCRT_KEY_PRIVATE 1u
/** Ed25519, PEM of SubjectPublicKeyInfo, as `openssl pkey -pubout` writes it */
#define ACCRT_KEY_PUBLIC 2u
#define ACCRT_KEY_SECRET 3u /**< encryption; PEM of the 32 bytes, "ACCRT SECRET KEY" */

/** Makes 32 random bytes: a new private key or a new encryption key.
 * @return ACCRT_OK; ACCRT_ERROR_IO (no random source). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_generate(accrt_instance_t* instance, accrt_key_t* out_key);
/** The public key of a private one.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_public(accrt_instance_t* instance,
                                          const accrt_key_t* private_key, accrt_key_t* out_public);
/** Reads a key file of at most 4096 bytes. It follows links. The file, and every folder above it,
 * must belong to root, this user or the owner of the library's own file. Others may not write to
 * any of them (folders may be sticky, as /tmp is), and may not read a private or secret key.
 * @param kind ACCRT_KEY_*.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_IO; ACCRT_ERROR_INVALID_FORMAT (not a key of
 *   that kind, or not a regular file); ACCRT_ERROR_PERMISSION_DENIED (the message says whose owner
 *   or mode is wrong). Blocks on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_read(accrt_instance_t* instance, const char* path, uint32_t kind,
                                        accrt_key_t* out_key);
/** Writes a key to a new file, of mode 0600, or 0644 for a public key. It never replaces a file.
 * @return ACCRT_OK; ACCRT_ERROR_ALREADY_EXISTS; ACCRT_ERROR_IO. Blocks on the file. Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_write(accrt_instance_t* instance, const char* path,
                                         uint32_t kind, const accrt_key_t* key);
/** Signs any bytes with Ed25519, for writers that sign what they write.
 * @param out_signature 64 bytes.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_sign(accrt_instance_t* instance, const accrt_key_t* private_key,
                                        const void* data, uint64_t size_bytes,
                                        uint8_t* out_signature);

/* ---- What an instance trusts ---- */

/** Trusts the signatures of this public key from now on, beside the keys of the option trust.keys
 * (or of ACCRT_TRUST_KEYS). A repeated call does no harm. Thread-safe.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_instance_trust_key(accrt_instance_t* instance,
                                                  const accrt_key_t* public_key);
/** Trusts the code of bundles with this code root, signed or not. Use it for bundles that the
 * caller has just made. Thread-safe.
 * @return as accrt_instance_trust_key. Since: 0.3 */
ACCRT_API accrt_status_t accrt_instance_trust_code(accrt_instance_t* instance,
                                                   const accrt_key_t* code_root);

/** How far a key is trusted. */
typedef struct accrt_trust_key_options {
  uint32_t struct_size;
  uint32_t roles; /**< ACCRT_SCOPE_*: what it may sign; 0: both */
  const accrt_chain_t* next;
  int64_t not_after_s; /**< seconds since 1970, UTC; its signatures do not count later. 0: no end */
} accrt_trust_key_options_t;
ACCRT_ASSERT_LAYOUT(accrt_trust_key_options_t, not_after_s, 24);
#define ACCRT_TRUST_KEY_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_trust_key_options_t)
/** As accrt_instance_trust_key, for one role or up to a time. If a key is restricted several times,
 * here or in files, all restrictions hold: the roles that all of them allow, and the earliest end.
 * Thread-safe.
 * @param options NULL: as accrt_instance_trust_key.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT; ACCRT_ERROR_OUT_OF_MEMORY. A failure does not add
 *   trust. Since: 0.4 */
ACCRT_API accrt_status_t accrt_instance_trust_key_with(accrt_instance_t* instance,
                                                       const accrt_key_t* public_key,
                                                       const accrt_trust_key_options_t* options);
/** Revokes a key: from now on none of its signatures counts, even if something trusts the key,
 * before or later. Existing programs stay. Thread-safe.
 * @param reason for messages; at most 127 bytes are kept; may be NULL.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_instance_revoke_key(accrt_instance_t* instance,
                                                   const accrt_key_t* public_key,
                                                   const char* reason);
/** Sets the lowest version of a named bundle. From now on no program can be made of a bundle whose
 * metadata `name` is this name, if its metadata `version` (a decimal number) is missing or lower. A
 * floor never goes down: the highest counts. Thread-safe.
 * @param name 1 to 127 bytes without spaces.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_instance_trust_floor(accrt_instance_t* instance, const char* name,
                                                    uint64_t version);

/** How far an instance trusts a key. */
typedef struct accrt_key_trust {
  uint32_t struct_size;
  uint32_t trusted; /**< 1: a file or call trusts it; see also the fields below */
  void* next;       /**< NULL */
  uint32_t roles;   /**< ACCRT_SCOPE_*: what it may sign */
  uint32_t revoked; /**< 1: since revoked_s */
  uint32_t expired; /**< 1: not_after_s is past, by the instance's clock */
  uint32_t reserved;
  int64_t not_after_s; /**< seconds since 1970, UTC; 0: no end */
  int64_t revoked_s;
  char reason[128]; /**< of the revocation; "": none */
  char source[128]; /**< the file or function that restricts it; "": none */
} accrt_key_trust_t;
ACCRT_ASSERT_LAYOUT(accrt_key_trust_t, source, 304);
#define ACCRT_KEY_TRUST_INIT ACCRT_STRUCT_INIT(accrt_key_trust_t)
/** Fills `out_trust`. Thread-safe. @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT. Since: 0.4 */
ACCRT_API accrt_status_t accrt_instance_key_trust(accrt_instance_t* instance,
                                                  const accrt_key_t* public_key,
                                                  accrt_key_trust_t* out_trust);

/* ---- Signatures of a bundle ---- */

#define ACCRT_SCOPE_CODE 1u    /**< all sections but the weights: they say what runs */
#define ACCRT_SCOPE_WEIGHTS 2u /**< the bytes of the weights in the file */

/** The two roots of a bundle, and which of them a trusted key signed. */
typedef struct accrt_bundle_trust {
  uint32_t struct_size;
  uint32_t signature_count;
  void* next;               /**< NULL */
  accrt_key_t code_root;    /**< computed from the file */
  accrt_key_t weight_root;  /**< zeros if the file has no tree of its weights */
  uint32_t has_code_root;   /**< 1: the file has a tree, with this root */
  uint32_t has_weight_root; /**< 1: the file has a tree of its weights */
  uint32_t code_trusted;    /**< 1: a trusted key signed it, or its root is trusted */
  uint32_t weights_trusted; /**< 1: a trusted key signed them */
  uint32_t has_host_code;   /**< 1: the bundle has machine code of the host CPU */
  uint32_t encrypted;       /**< 1: the weights are encrypted */
} accrt_bundle_trust_t;
ACCRT_ASSERT_LAYOUT(accrt_bundle_trust_t, encrypted, 104);
#define ACCRT_BUNDLE_TRUST_INIT ACCRT_STRUCT_INIT(accrt_bundle_trust_t)
/** Fills `out_trust`. It checks signatures but does not read the weights (accrt_bundle_verify
 * does). Blocks on the file.
 * @return ACCRT_OK; ACCRT_ERROR_DATA_CORRUPT (the code does not match the tree);
 *   ACCRT_ERROR_UNSUPPORTED (a trusted key signed it, and libcrypto is missing); ACCRT_ERROR_IO;
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_trust(accrt_bundle_t* bundle,
                                            accrt_bundle_trust_t* out_trust);

/** One signature in a bundle. */
typedef struct accrt_signature_info {
  uint32_t struct_size;
  uint32_t scope;   /**< ACCRT_SCOPE_CODE or ACCRT_SCOPE_WEIGHTS */
  void* next;       /**< NULL */
  accrt_key_t key;  /**< the key that it names */
  uint32_t valid;   /**< 1: that key made it, of the root in the file's tree */
  uint32_t trusted; /**< 1: the instance trusts that key now, for this scope */
} accrt_signature_info_t;
ACCRT_ASSERT_LAYOUT(accrt_signature_info_t, trusted, 56);
#define ACCRT_SIGNATURE_INFO_INIT ACCRT_STRUCT_INIT(accrt_signature_info_t)
/** A signature by index.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_UNSUPPORTED (no libcrypto). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_signature(accrt_bundle_t* bundle, uint32_t index,
                                                accrt_signature_info_t* out_info);

/* ---- Encrypted weights ---- */

/** The id of a secret key in encrypted bundles: 16 bytes, which do not reveal the key.
 * Since: 0.3 */
ACCRT_API accrt_status_t accrt_key_id(accrt_instance_t* instance, const accrt_key_t* secret_key,
                                      uint8_t* out_id);

ACCRT_END
#endif /* ACCRT_TRUST_H_ */
