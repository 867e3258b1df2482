/* tools/accx/open.h - instances and bundles, opened as the verbs need them. */
#ifndef ACCX_OPEN_H_
#define ACCX_OPEN_H_

#include "accx.h"

#include "accrt/weights.h"

/* Makes an instance with --threads, --option, --driver, --trust, --trust-keys and --allow-host-code where the verb has them. On failure
 * *out_instance may hold one all the same, for the caller to release. */
int accx_open_instance(const accx_args_t* args, accrt_instance_t** out_instance);
/* Opens a bundle with --secret-key, where the verb has that; `verify` is ACCRT_VERIFY_*. */
int accx_open_keyed_bundle(const accx_args_t* args, accrt_instance_t* instance, const char* path,
                           uint32_t verify, accrt_bundle_t** out_bundle);
/* The same without a key. */
int accx_open_bundle(accrt_instance_t* instance, const char* path, uint32_t verify,
                     accrt_bundle_t** out_bundle);
/* Opens weights that the user names. The further files of a set may be symbolic links, as download caches have them: their names come
 * from a file, but the folder is the user's. */
accrt_status_t accx_open_weights(accrt_instance_t* instance, const char* path,
                                 accrt_weights_t** out_weights);
/* Whether both are names of one file that is there. */
bool accx_same_file(const char* one, const char* other);
/* Fails when `output` is a file that one of these weights is read from: it would be lost. */
int accx_check_output(const char* output, accrt_weights_t* weights);

#endif /* ACCX_OPEN_H_ */
