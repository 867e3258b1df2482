/* runtime/core/pack_set.h - the packs of an instance that bundles may name. The references are
 * weak: a pack removes itself when it ends.
 *
 * The instance holds it, and only pack.c uses it.
 */
#ifndef ACCRT_RUNTIME_CORE_PACK_SET_H_
#define ACCRT_RUNTIME_CORE_PACK_SET_H_

#include "accrt/base.h"
#include "runtime/core/sync.h"

/* A pack's entry in the set. */
typedef struct accrt_pack_entry {
  struct accrt_pack_entry* next;
  struct accrt_pack_entry** link; /* the pointer to this entry; NULL when it is in no set */
} accrt_pack_entry_t;

typedef struct accrt_pack_set {
  accrt_mutex_t lock;
  accrt_pack_entry_t* first; /* the latest one */
} accrt_pack_set_t;

static inline void accrt_pack_set_init(accrt_pack_set_t* set) {
  accrt_mutex_init(&set->lock, ACCRT_LOCK_PACKS);
  set->first = NULL;
}

static inline void accrt_pack_set_add(accrt_pack_set_t* set, accrt_pack_entry_t* entry) {
  accrt_mutex_lock(&set->lock);
  entry->next = set->first;
  entry->link = &set->first;
  if (entry->next != NULL)
    entry->next->link = &entry->next;
  set->first = entry;
  accrt_mutex_unlock(&set->lock);
}

/* Does nothing for a pack that is in no set. */
static inline void accrt_pack_set_remove(accrt_pack_set_t* set, accrt_pack_entry_t* entry) {
  if (entry->link == NULL)
    return;
  accrt_mutex_lock(&set->lock);
  *entry->link = entry->next;
  if (entry->next != NULL)
    entry->next->link = entry->link;
  accrt_mutex_unlock(&set->lock);
}

#endif /* ACCRT_RUNTIME_CORE_PACK_SET_H_ */
