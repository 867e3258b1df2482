/* loader/trust.h - applies an instance's trust to a bundle: may its host code run, may its weights
 * be used. It writes nothing (sign.c does). */
#ifndef ACCRT_LOADER_TRUST_H_
#define ACCRT_LOADER_TRUST_H_

#include <stdbool.h>

#include "accrt/bundle.h"
#include "accrt/trust.h"

/* ACCRT_OK when the instance's policy allows image `image`, whose bytes are `bytes`, to run on the
 * host. Otherwise ACCRT_ERROR_UNTRUSTED, with a hint for the user; ACCRT_ERROR_DATA_CORRUPT when
 * the file differs from the signed one. Thread-safe; may block on the file. */
accrt_status_t accrt_bundle_allow_image(accrt_bundle_t* bundle, uint32_t image, const void* bytes);

/* ACCRT_OK when the bundle's version is not below the floor of its name. Otherwise
 * ACCRT_ERROR_UNTRUSTED. Thread-safe. */
accrt_status_t accrt_bundle_allow_version(const accrt_bundle_t* bundle);
/* The same for the pack outside the bundle that image `image` names. It is called before the search
 * for the pack, so that no file is opened. */
accrt_status_t accrt_bundle_allow_pack(accrt_bundle_t* bundle, uint32_t image);

/* Returns the bundle's SHA-256 identity: its code root, and the weight root of its leaves. Without
 * leaves *out_has_leaves is false and there is no weight root. The leaves are not compared with the
 * bytes here (accrt_bundle_check_leaves does). Thread-safe; may block. */
accrt_status_t accrt_bundle_roots(accrt_bundle_t* bundle, accrt_key_t* out_code,
                                  accrt_key_t* out_weights, bool* out_has_leaves);
/* Compares the chunks of an inline constant's component, as they are in the file, with their
 * leaves. `scratch` has room for a chunk. ACCRT_ERROR_DATA_CORRUPT (rule 144); ACCRT_ERROR_IO. */
accrt_status_t accrt_bundle_check_leaves(accrt_bundle_t* bundle, uint32_t component, void* scratch);

/* ---- For loader/ ---- */

/* Called at open. Checks that weights are signed if they must be. Then each chunk is checked
 * against its leaf as well. */
accrt_status_t accx_trust_open(accrt_bundle_t* bundle);
void accx_trust_close(accrt_bundle_t* bundle);
/* Computes the code root once. ACCRT_ERROR_DATA_CORRUPT when the file's tree has another one. */
accrt_status_t accx_trust_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root);
/* Checks the roots and all signatures. */
accrt_status_t accx_trust_verify(accrt_bundle_t* bundle);
/* Compares a chunk of DATA with its leaf (rule 144); ACCRT_OK without leaves. */
accrt_status_t accx_trust_check_leaf(const accrt_bundle_t* bundle, uint32_t chunk,
                                     const void* bytes, size_t size_bytes);
/* Checks one signature with its key. ACCRT_ERROR_UNSUPPORTED without libcrypto. */
accrt_status_t accx_trust_check_signature(accrt_bundle_t* bundle, uint32_t index, bool* out_valid);

#endif /* ACCRT_LOADER_TRUST_H_ */
