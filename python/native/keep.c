/* python/native/keep.c - Python objects whose memory the library has imported. The library may let
 * go of one on any thread, without the interpreter's lock and while the interpreter ends: so the
 * function that it calls takes no lock of Python's, and what was let go is dropped by the
 * interpreter's main thread, or by the next import.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "python/native/native.h"

typedef struct kept {
  PyObject* object;
  struct kept* next;
} kept_t;

static _Atomic(kept_t*) gone; /* a stack, which is only ever taken as a whole */
static atomic_bool has_ended;

void accrt_native_keep_end(void) {
  has_ended = true;
}

/* With the interpreter's lock. */
static int drop_gone(void* unused) {
  (void)unused;
  kept_t* kept = atomic_exchange(&gone, NULL);
  while (kept != NULL) {
    kept_t* next = kept->next;
    Py_DECREF(kept->object);
    free(kept);
    kept = next;
  }
  return 0;
}

/* What the library calls. */
static void let_go(void* user) {
  kept_t* kept = user;
  kept_t* first = atomic_load(&gone);
  if (has_ended)
    return;
  do {
    kept->next = first;
  } while (!atomic_compare_exchange_weak(&gone, &first, kept));
  if (first == NULL)
    (void)Py_AddPendingCall(drop_gone, NULL); /* if there is no place: the next import does it */
}

/* keep(object): the addresses of what lets go of it, and of what that is called with. */
PyObject* accrt_native_keep(PyObject* module, PyObject* object) {
  (void)module;
  (void)drop_gone(NULL);
  kept_t* kept = calloc(1, sizeof *kept);
  if (kept == NULL)
    return PyErr_NoMemory();
  Py_INCREF(object);
  kept->object = object;
  return Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)let_go,
                       (unsigned long long)(uintptr_t)kept);
}
