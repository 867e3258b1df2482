/* loader/trust.h - what a bundle's tree and signatures mean for this instance: may its host code run, may its weights be used. It writes
 * nothing (sign.c does). */
#ifndef ACCRT_LOADER_TRUST_H_
#define ACCRT_LOADER_TRUST_H_

#include <stdbool.h>

#include "accrt/bundle.h"
#include "accrt/trust.h"

/* ACCRT_OK when the instance's policy lets image `image`, whose bytes these are, run on the host. Else ACCRT_ERROR_UNTRUSTED, with what
 * to do about it; ACCRT_ERROR_DATA_CORRUPT when the file is not what was signed. Thread-safe; may block on the file. */
accrt_status_t accrt_bundle_allow_image(accrt_bundle_t* bundle, uint32_t image, const void* bytes);

/* ---- For loader/ ---- */

/* When the bundle is opened: weights that must be signed are, and from now on each chunk is checked against its leaf. */
accrt_status_t accx_trust_open(accrt_bundle_t* bundle);
void accx_trust_close(accrt_bundle_t* bundle);
/* The code root, computed once. ACCRT_ERROR_DATA_CORRUPT when the file's tree has another. */
accrt_status_t accx_trust_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root);
/* Roots and all signatures. */
accrt_status_t accx_trust_verify(accrt_bundle_t* bundle);
/* A chunk of DATA against its leaf (rule 144); fine where there are no leaves. */
accrt_status_t accx_trust_check_leaf(const accrt_bundle_t* bundle, uint32_t chunk,
                                     const void* bytes, size_t size_bytes);
/* Whether one signature is its key's. ACCRT_ERROR_UNSUPPORTED without libcrypto. */
accrt_status_t accx_trust_check_signature(accrt_bundle_t* bundle, uint32_t index, bool* out_valid);

#endif /* ACCRT_LOADER_TRUST_H_ */
