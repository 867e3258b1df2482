/* tools/accx/open.h - opens instances and bundles for the verbs. */
#ifndef ACCX_OPEN_H_
#define ACCX_OPEN_H_

#include "accx.h"

#include "accrt/weights.h"

/* Limits for work on a file: --time-limit, which precedes the verb. */
extern accrt_budget_t accx_budget;
/* Creates an instance with those of --threads, --option, --driver, --trust, --trust-keys and
 * --allow-host-code that the verb has. Even after a failure *out_instance may be an instance, which
 * the caller releases. */
int accx_open_instance(const accx_args_t* args, accrt_instance_t** out_instance);
/* Opens a bundle, with --secret-key if the verb has it. `verify` is ACCRT_VERIFY_*. */
int accx_open_keyed_bundle(const accx_args_t* args, accrt_instance_t* instance, const char* path,
                           uint32_t verify, accrt_bundle_t** out_bundle);
/* The same without a key. */
int accx_open_bundle(accrt_instance_t* instance, const char* path, uint32_t verify,
                     accrt_bundle_t** out_bundle);
/* Opens weights from a user's path. The further files of a set may be symbolic links, as in
 * download caches. Their names come from a file, but the user chose the folder. */
accrt_status_t accx_open_weights(accrt_instance_t* instance, const char* path,
                                 accrt_weights_t** out_weights);
/* True when both paths name the same existing file. */
bool accx_same_file(const char* one, const char* other);
/* Fails when `output` is a file from which these weights are read, because writing would destroy
 * it. */
int accx_check_output(const char* output, accrt_weights_t* weights);

#endif /* ACCX_OPEN_H_ */
