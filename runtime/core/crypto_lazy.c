/* runtime/core/crypto_lazy.c - an instance's libcrypto, opened when it is first needed. */
#include "runtime/core/crypto.h"

#include "runtime/core/error.h"
#include "runtime/core/instance.h"

enum { NOT_TRIED, THERE, NOT_THERE };

const accrt_crypto_t* accrt_instance_crypto_if(accrt_instance_t* instance) {
  accrt_lazy_crypto_t* lazy = accrt_instance_lazy_crypto(instance);
  /* Acquire pairs with the release below: a thread that reads THERE also sees the table. */
  unsigned state = atomic_load_explicit(&lazy->state, memory_order_acquire);
  if (state == NOT_TRIED) {
    accrt_mutex_lock(&lazy->lock);
    state = atomic_load_explicit(&lazy->state, memory_order_relaxed);
    if (state == NOT_TRIED) {
      const char* name = accrt_instance_option(instance, "crypto.library");
      state = accrt_crypto_open(&lazy->crypto, name, &lazy->reason) ? THERE : NOT_THERE;
      atomic_store_explicit(&lazy->state, state, memory_order_release);
    }
    accrt_mutex_unlock(&lazy->lock);
  }
  return state == THERE ? &lazy->crypto : NULL;
}

accrt_status_t accrt_instance_crypto(accrt_instance_t* instance,
                                     const accrt_crypto_t** out_crypto) {
  *out_crypto = accrt_instance_crypto_if(instance);
  if (*out_crypto != NULL)
    return ACCRT_OK;
  return accrt_crypto_fail(&accrt_instance_lazy_crypto(instance)->reason);
}
