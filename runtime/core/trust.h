/* runtime/core/trust.h - what an instance trusts: its policy, public keys, code roots. It does not
 * know bundles (loader/trust.c does). */
#ifndef ACCRT_RUNTIME_CORE_TRUST_H_
#define ACCRT_RUNTIME_CORE_TRUST_H_

#include <stdbool.h>

#include "accrt/trust.h"
#include "runtime/core/near_name.h"
#include "runtime/core/sync.h"

/* A growing array of keys, roots or facts. */
typedef struct accrt_trust_list {
  void* items;
  size_t count;
  size_t capacity;
} accrt_trust_list_t;

#define ACCRT_TRUST_NAME_BYTES 128                   /* of a bundle's name, with its NUL */
#define ACCRT_TRUST_SOURCE_BYTES 128                 /* of a fact's source, with its NUL */
#define ACCRT_TRUST_MAX_TIME_S INT64_C(253402300799) /* the end of the year 9999 */
#define ACCRT_TRUST_TIME_BYTES 21                    /* "2027-01-31T00:00:00Z" */

enum {
  ACCRT_FACT_NONE,
  ACCRT_FACT_ROLE,      /* the key may sign only for `roles` */
  ACCRT_FACT_NOT_AFTER, /* the key is valid until `time_s` */
  ACCRT_FACT_REVOKED,   /* the key was revoked at `time_s`, because of `text` */
  ACCRT_FACT_FLOOR,     /* the lowest version of bundles named `text` is `version`; no key */
};

/* A restriction of trust. All facts about a key apply, wherever the key comes from. */
typedef struct accrt_trust_fact {
  uint32_t kind;
  uint32_t roles; /* ACCRT_SCOPE_* */
  accrt_key_t key;
  int64_t time_s; /* since 1970, UTC */
  uint64_t version;
  char text[ACCRT_TRUST_NAME_BYTES];
  char source[ACCRT_TRUST_SOURCE_BYTES]; /* the file, or the public function */
} accrt_trust_fact_t;

/* The trust of an instance. Policies and clock are set at its creation. The lists only grow, under
 * the lock. */
typedef struct accrt_trust {
  uint32_t policy;         /* ACCRT_HOST_CODE_SIGNED, _ALL or _NONE */
  uint32_t signed_weights; /* 1: weights must be signed */
  /* 1: weights must be encrypted; 2: and bound to the code */
  uint32_t encrypted_weights;
  uint32_t required_floors; /* 1: programs need a bundle whose name has a floor */
  int64_t clock_s;          /* option trust.clock; negative: the system's clock */
  accrt_mutex_t lock;
  accrt_trust_list_t keys;  /* accrt_key_t */
  accrt_trust_list_t roots; /* accrt_key_t */
  accrt_trust_list_t facts; /* accrt_trust_fact_t */
} accrt_trust_t;

/* Reads the options trust.* or, without them, ACCRT_TRUST and ACCRT_TRUST_KEYS. `policy` is the
 * host_code_policy of the instance's options. */
accrt_status_t accrt_trust_read(accrt_instance_t* instance, uint32_t policy);
void accrt_trust_free(accrt_instance_t* instance);
/* True for an option of this file or of crypto.c. Otherwise their names are added to `near`. */
bool accrt_trust_option_known(const char* key, accrt_near_t* near);

bool accrt_trust_has_root(accrt_instance_t* instance, const accrt_key_t* root);
/* True when a signature by this key for this scope is valid now. Otherwise `out_against` gets the
 * fact that speaks against a trusted key, or the revocation of the key; its kind is ACCRT_FACT_NONE
 * without such a fact. */
bool accrt_trust_allows(accrt_instance_t* instance, const accrt_key_t* key, uint32_t scope,
                        accrt_trust_fact_t* out_against);
/* True when bundles of this name have a floor; `out_floor` gets the highest. */
bool accrt_trust_floor(accrt_instance_t* instance, const char* name, accrt_trust_fact_t* out_floor);

/* ---- Within core ---- */

accrt_status_t accrt_trust_add_fact(accrt_instance_t* instance, const accrt_trust_fact_t* fact);
/* In trust_rules.c. Reads the facts of a rules file. ACCRT_ERROR_NOT_FOUND when there is no file;
 * ACCRT_ERROR_INVALID_FORMAT names the line. */
accrt_status_t accrt_trust_read_rules(accrt_instance_t* instance, const char* path);
/* Writes seconds since 1970 as "2027-01-31T00:00:00Z", up to the year 9999. */
const char* accrt_trust_time_text(int64_t time_s, char text[ACCRT_TRUST_TIME_BYTES]);
/* Reads a decimal number without sign, of 1 to 20 digits, that ends with the text. False for
 * anything else, and above 2^64 - 1. */
bool accrt_trust_number(const char* text, uint64_t* out_number);
/* True for a valid name of bundles: 1 to 127 bytes, no control characters and no spaces. */
bool accrt_trust_is_name(const char* name);

#endif /* ACCRT_RUNTIME_CORE_TRUST_H_ */
