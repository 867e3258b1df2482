/* runtime/core/lock_order.h - the order of all locks, in one place.
 *
 * A thread that holds a lock may only take locks of classes further down, never one of the same
 * class. Builds with ACCRT_ASSERTIONS check it (assertion.h).
 */
#ifndef ACCRT_RUNTIME_CORE_LOCK_ORDER_H_
#define ACCRT_RUNTIME_CORE_LOCK_ORDER_H_

/* X(class, what it guards), from the outermost to the innermost. Those of the libraries above come
 * first: they may call libaccrt under a lock, and it never calls them under one of its own. */
#define ACCRT_LOCK_ORDER(X)                                                                        \
  X(HTTP_SUBMITTING, "the requests of a job, while a server's engine gets them")                   \
  X(HTTP_SERVER, "an HTTP server's jobs")                                                          \
  X(SERVE_ENGINE, "what the threads of an engine share")                                           \
  X(SERVE_MASKS, "the masks of a step")                                                            \
  X(WEIGHTS, "a program's weights")                                                                \
  X(COPYING, "pieces of weights that are copied")                                                  \
  X(CHUNK, "a chunk of a bundle while it is read")                                                 \
  X(SWEEP, "chunks that are checked ahead")                                                        \
  X(BUNDLE_TRUST, "a bundle's code root")                                                          \
  X(DIGEST, "the digest of a constant")                                                            \
  X(SOURCE, "the reader of a source")                                                              \
  X(INSTANCE, "an instance's drivers, devices and streams")                                        \
  X(PACKS, "an instance's kernel packs")                                                           \
  X(COUNTERS, "an instance's groups of counters")                                                  \
  X(TRUST, "what an instance trusts")                                                              \
  X(CRYPTO, "an instance's libcrypto")                                                             \
  X(EVENT_RECORD, "records of a driver's event, with the call of the driver")                      \
  X(EVENT, "an event")                                                                             \
  X(STREAM, "a stream")                                                                            \
  X(OBSERVER, "a device's observer")                                                               \
  X(POINT, "points of a semaphore")                                                                \
  X(SPARE_POINTS, "points that a device keeps")                                                    \
  X(STAGING_QUEUE, "a copy queue of the staging ring")                                             \
  X(STAGING, "the staging ring")                                                                   \
  X(TIMELINE, "a timeline")                                                                        \
  X(POOL_SET, "a device's pools")                                                                  \
  X(POOL, "a pool")                                                                                \
  X(BUFFER_USES, "uses of a buffer")                                                               \
  X(FENCE_OWNER, "the stream of a fence")                                                          \
  X(WORKER, "a thread of an instance")                                                             \
  X(HOST_OPERATOR, "an operator's state on a host")                                                \
  X(HOST_LIST, "a host's command list")                                                            \
  X(HOST_QUEUE, "a host's queue")                                                                  \
  X(HOST_DEVICE, "a host's scratch memory and ready list")                                         \
  X(CUDA_LIST, "a CUDA list")                                                                      \
  X(CUDA_GRAPH, "an instance of a CUDA list")                                                      \
  X(CUDA_OPERATOR, "an operator's state on CUDA")                                                  \
  X(CUDA_GRAPHS, "what CUDA lists share")                                                          \
  X(CUDA_QUEUES, "a CUDA device's queues")                                                         \
  X(CUDA_QUEUE, "a CUDA queue")                                                                    \
  X(CUDA_DETOUR, "copies of CUDA devices without a path")                                          \
  X(CUDA_IMPORTS, "host memory that CUDA knows")                                                   \
  X(CUDA_DRIVER, "open CUDA devices")                                                              \
  X(CUDA_DEVICE, "a CUDA device")                                                                  \
  X(CUDA_MODULE, "kernels of a CUDA module")                                                       \
  X(CUDA_POLLER, "what a CUDA device polls")                                                       \
  X(JIT_NAMES, "code that debuggers know")                                                         \
  X(SERVE_HANDLES, "the register of handles of the libraries above")                               \
  X(HANDLES, "the register of handles")                                                            \
  X(HTTP_FORKS, "the sockets of HTTP servers, while one is made or closed")

typedef enum accrt_lock_class {
  ACCRT_LOCK_NONE = 0, /* never initialised */
#define ACCRT_LOCK_ENTRY(name, what) ACCRT_LOCK_##name,
  ACCRT_LOCK_ORDER(ACCRT_LOCK_ENTRY)
#undef ACCRT_LOCK_ENTRY
} accrt_lock_class_t;

#endif /* ACCRT_RUNTIME_CORE_LOCK_ORDER_H_ */
