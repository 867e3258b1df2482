/* runtime/core/trust.h - what an instance trusts: its policy, public keys, code roots. It knows no bundle (loader/trust.c does). */
#ifndef ACCRT_RUNTIME_CORE_TRUST_H_
#define ACCRT_RUNTIME_CORE_TRUST_H_

#include <stdbool.h>

#include "accrt/trust.h"
#include "runtime/core/near_name.h"
#include "runtime/core/sync.h"

/* A growing array of keys or roots. */
typedef struct accrt_key_list {
  accrt_key_t* keys;
  size_t count;
  size_t capacity;
} accrt_key_list_t;

/* An instance's. Policies are set when it is made; lists only grow, under the lock. */
typedef struct accrt_trust {
  uint32_t policy;         /* ACCRT_HOST_CODE_SIGNED, _ALL or _NONE */
  uint32_t signed_weights; /* 1: weights must be signed */
  accrt_mutex_t lock;
  accrt_key_list_t keys;
  accrt_key_list_t roots;
} accrt_trust_t;

/* Reads options trust.* and, where they are not given, ACCRT_TRUST and ACCRT_TRUST_KEYS. `policy`: the options' host_code_policy. */
accrt_status_t accrt_trust_read(accrt_instance_t* instance, uint32_t policy);
void accrt_trust_free(accrt_instance_t* instance);
/* True for an option of this file or of crypto.c; the others are told to `near`. */
bool accrt_trust_option_known(const char* key, accrt_near_t* near);

bool accrt_trust_has_key(accrt_instance_t* instance, const accrt_key_t* key);
bool accrt_trust_has_root(accrt_instance_t* instance, const accrt_key_t* root);

#endif /* ACCRT_RUNTIME_CORE_TRUST_H_ */
