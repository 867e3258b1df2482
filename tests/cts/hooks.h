/* tests/cts/hooks.h - what a driver may tell the suite, so that groups are tested which no call of
 * the table can bring into their states: images of kernels for modules, captures of native queues,
 * the device's context, device work that an operator enqueues. A driver exports it beside
 * accrt_driver_query, in builds for the suite. All of it is optional: tests that need what is not
 * there are skipped.
 *
 * It may include public headers only. */
#ifndef ACCRT_CTS_HOOKS_H_
#define ACCRT_CTS_HOOKS_H_

#include <stdint.h>

#include "accrt/sys/driver.h"

#define CTS_HOOKS_SYMBOL "accrt_cts_hooks"

/* The block of the images' kernel: each workgroup adds `amount` to the word at the address. */
typedef struct cts_add_params {
  uint64_t address;
  uint32_t amount;
  uint32_t pad;
} cts_add_params_t;

typedef struct cts_hooks {
  uint32_t struct_size;
  uint32_t images_have_blocks; /* 1: an image says which block (kernel_def.block) a kernel has */

  /* Modules. Both images have one kernel of this name, as it is declared here, with two parameters:
   * the address and the amount. The second's adds twice the amount. The third image is whole, and
   * for another device. NULL: no modules. */
  const accrt_driver_image_t* images[3];
  const accrt_kernel_def_t* declared;

  /* Captures of a native queue (queue_native), as its owner makes them. */
  void (*capture_begin)(void* native);
  /* Ends it. Returns how many commands it holds. */
  uint32_t (*capture_end)(void* native);
  /* Runs what was captured last, and waits for it. */
  accrt_status_t (*capture_replay)(void* native);
  /* Forgets what was captured last. */
  void (*capture_forget)(void* native);

  /* The device whose context is current on this thread, or NULL. */
  const accrt_driver_device_t* (*current_device)(void);
  /* What a library called by an operator does: fills memory, as device work, in the order of
   * accrt_operator_call_t.stream. 0: it is enqueued. */
  int32_t (*enqueue_fill)(void* stream, uint64_t address, uint64_t size_bytes, unsigned char byte);

  /* 1: an image says where in its block each parameter of a kernel lies, and its size */
  uint32_t images_have_parameters;
  uint32_t reserved; /* 0 */
} cts_hooks_t;

typedef const cts_hooks_t* (*cts_hooks_fn_t)(void);

#endif /* ACCRT_CTS_HOOKS_H_ */
