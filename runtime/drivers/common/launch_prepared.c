/* runtime/drivers/common/launch_prepared.c - prepared launches: one kernel with a block of its own,
 * launched again and again. It may not know how kernels run.
 *
 * A launch keeps its buffers, so a use needs no note while the buffer is in the launch: the launch
 * itself remembers on which streams it was last launched, and notes that in a buffer which leaves.
 */
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

#define INLINE_USES 4u
#define POLL_NS UINT64_C(20000)

typedef struct launch_use {
  accrt_fence_t* fence; /* one reference */
  uint64_t submission;
} launch_use_t;

struct accrt_launch {
  accrt_zombie_t zombie; /* first: see accrt_dispose */
  accrt_object_t object;
  accrt_guard_t guard;
  accrt_device_t* device;
  accrt_kernel_t* kernel;
  const accrt_driver_kernel_t* view;
  accrt_kernel_pack_t* pack;            /* internal reference */
  accrt_driver_launch_t* driver_launch; /* NULL: the driver has none */
  unsigned char* block;                 /* behind the buffers */
  size_t size_bytes;                    /* of this record with buffers and block */
  bool direct;    /* the caller writes into the block: what was given is not known */
  uint64_t given; /* by parameter: a bit for each that has a value */
  uint64_t required;
  uint32_t use_count;
  size_t use_capacity; /* of more_uses */
  launch_use_t uses[INLINE_USES];
  launch_use_t* more_uses;   /* holds all of them once it is there */
  accrt_buffer_t* buffers[]; /* by parameter: internal references, or NULL */
};

_Static_assert(ACCRT_KERNEL_MAX_PARAMS <= 64, "a bit for each parameter");

static const accrt_kernel_def_t* definition_of(const accrt_launch_t* launch) {
  return launch->view->definition;
}

/* ---- Uses ---- */

static launch_use_t* uses_of(accrt_launch_t* launch) {
  return launch->more_uses != NULL ? launch->more_uses : launch->uses;
}

/* The entry of this fence, or one that has passed. */
static launch_use_t* find_use(accrt_launch_t* launch, const accrt_fence_t* fence) {
  launch_use_t* uses = uses_of(launch);
  for (uint32_t i = 0; i < launch->use_count; ++i) {
    if (uses[i].fence == fence)
      return &uses[i];
  }
  for (uint32_t i = 0; i < launch->use_count; ++i) {
    if (accrt_fence_passed(uses[i].fence, uses[i].submission))
      return &uses[i];
  }
  return NULL;
}

static accrt_status_t grow_uses(accrt_launch_t* launch) {
  const size_t capacity = launch->more_uses != NULL ? launch->use_capacity : INLINE_USES;
  if (launch->use_count < capacity)
    return ACCRT_OK;
  const accrt_allocator_t* allocator = &launch->device->instance->allocator;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(allocator, capacity * 2, sizeof(launch_use_t), &memory));
  memcpy(memory, uses_of(launch), launch->use_count * sizeof(launch_use_t));
  accrt_free_array(allocator, launch->more_uses, launch->use_capacity, sizeof(launch_use_t));
  launch->more_uses = memory;
  launch->use_capacity = capacity * 2;
  return ACCRT_OK;
}

/* Makes room for a use of this stream. */
static accrt_status_t prepare_use(accrt_launch_t* launch, accrt_fence_t* fence) {
  launch_use_t* use = find_use(launch, fence);
  if (use != NULL && use->fence == fence)
    return ACCRT_OK;
  if (use == NULL) {
    ACCRT_TRY(grow_uses(launch));
    use = &uses_of(launch)[launch->use_count++];
    use->fence = NULL;
  }
  accrt_fence_retain(fence);
  accrt_fence_release(use->fence);
  *use = (launch_use_t){fence, 0};
  return ACCRT_OK;
}

/* For want of memory for a note: the use is over before another owner can have the buffer. */
static void wait_for(accrt_fence_t* fence, uint64_t submission) {
  atomic_uint unshared;
  atomic_init(&unshared, 0);
  for (;;) {
    accrt_fence_refresh(fence);
    if (accrt_fence_passed(fence, submission))
      return;
    accrt_futex_wait(&unshared, 0, POLL_NS);
  }
}

/* A buffer leaves: from now on it has to note its uses itself. */
static void let_go(accrt_launch_t* launch, accrt_buffer_t* buffer) {
  if (buffer == NULL)
    return;
  const launch_use_t* uses = uses_of(launch);
  for (uint32_t i = 0; i < launch->use_count; ++i) {
    if (accrt_fence_passed(uses[i].fence, uses[i].submission))
      continue;
    const accrt_error_t saved = *accrt_error_current();
    if (accrt_buffer_note_fence(buffer, uses[i].fence, uses[i].submission) == ACCRT_OK)
      continue;
    (void)accrt_error_restore(&saved);
    wait_for(uses[i].fence, uses[i].submission);
  }
  accrt_buffer_unref(buffer);
}

/* ---- Life ---- */

static uint64_t required_of(const accrt_kernel_def_t* definition) {
  uint64_t required = 0;
  for (uint32_t i = 0; i < definition->param_count; ++i) {
    if ((definition->params[i].flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) == 0)
      required |= UINT64_C(1) << i;
  }
  return required;
}

static accrt_status_t make_launch(accrt_device_t* device, accrt_kernel_t* kernel,
                                  accrt_launch_t** out_launch) {
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  const accrt_kernel_def_t* definition = view->definition;
  const size_t head_bytes =
      (sizeof(accrt_launch_t) + definition->param_count * sizeof(accrt_buffer_t*) + 15) &
      ~(size_t)15;
  /* A caller who asks for the block gets an address, also when the kernel has no parameters. */
  const size_t block_bytes = definition->params_size_bytes > 0 ? definition->params_size_bytes : 16;
  void* memory;
  ACCRT_TRY(accrt_alloc(&device->instance->allocator, head_bytes + block_bytes, &memory));
  accrt_launch_t* launch = memory;
  const accrt_driver_table_t* table = device->table;
  if (table->launch_create != NULL) {
    const accrt_status_t status =
        table->launch_create(device->driver_device, view, &launch->driver_launch);
    if (status != ACCRT_OK) {
      accrt_device_note_status(device, status);
      accrt_free(&device->instance->allocator, launch, head_bytes + block_bytes);
      return status;
    }
  }
  accrt_object_init(&launch->object);
  launch->device = accrt_device_ref(device);
  launch->kernel = kernel;
  launch->view = view;
  launch->pack = kernel->pack;
  accrt_kernel_pack_ref(launch->pack);
  launch->block = (unsigned char*)launch + head_bytes;
  launch->size_bytes = head_bytes + block_bytes;
  launch->required = required_of(definition);
  *out_launch = launch;
  return ACCRT_OK;
}

ACCRT_RARE accrt_status_t accrt_launch_create(accrt_device_t* device, accrt_kernel_t* kernel,
                                              accrt_launch_t** out_launch) {
  if (out_launch != NULL)
    *out_launch = NULL;
  ACCRT_ENTER(out_launch, device, kernel);
  accrt_status_t status = accrt_kernel_check_device(device, kernel);
  if (status == ACCRT_OK && accrt_device_is_lost(device))
    return accrt_device_fail_lost(device);
  return status == ACCRT_OK ? make_launch(device, kernel, out_launch) : status;
}

accrt_launch_t* accrt_launch_retain(accrt_launch_t* launch) {
  if (launch == NULL || accrt_forked())
    return launch;
  accrt_object_retain(&launch->object);
  (void)accrt_device_ref(launch->device);
  return launch;
}

/* What the driver has for it goes where a driver may be called. */
static void destroy(accrt_zombie_t* zombie) {
  accrt_launch_t* launch = (accrt_launch_t*)zombie;
  if (launch->driver_launch != NULL)
    launch->device->table->launch_destroy(launch->driver_launch);
  accrt_kernel_pack_unref(launch->pack);
  accrt_free(&launch->device->instance->allocator, launch, launch->size_bytes);
}

ACCRT_RARE void accrt_launch_release(accrt_launch_t* launch) {
  if (launch == NULL || accrt_forked())
    return;
  accrt_device_t* device = launch->device;
  if (accrt_object_release(&launch->object)) {
    for (uint32_t i = 0; i < definition_of(launch)->param_count; ++i)
      let_go(launch, launch->buffers[i]);
    launch_use_t* uses = uses_of(launch);
    for (uint32_t i = 0; i < launch->use_count; ++i)
      accrt_fence_release(uses[i].fence);
    accrt_free_array(&device->instance->allocator, launch->more_uses, launch->use_capacity,
                     sizeof(launch_use_t));
    launch->zombie.destroy = destroy;
    accrt_dispose(device->instance, &launch->zombie);
  }
  accrt_device_unref(device);
}

/* ---- Arguments ---- */

static accrt_status_t pack(accrt_launch_t* launch, uint32_t index,
                           const accrt_kernel_argument_t* argument) {
  const accrt_kernel_param_t* param = &definition_of(launch)->params[index];
  accrt_packing_t packing = {
      .device = launch->device, .kernel = launch->kernel, .block = launch->block};
  if (param->kind != ACCRT_KERNEL_PARAM_TENSOR)
    return accrt_launch_pack_argument(&packing, index, argument);
  unsigned char old[sizeof(accrt_kernel_tensor_t)];
  memcpy(old, launch->block + param->offset_bytes, sizeof old);
  const accrt_status_t status = accrt_launch_pack_argument(&packing, index, argument);
  if (status != ACCRT_OK)
    memcpy(launch->block + param->offset_bytes, old, sizeof old);
  return status;
}

accrt_status_t accrt_launch_set(accrt_launch_t* launch, uint32_t index,
                                const accrt_kernel_argument_t* argument,
                                uint32_t argument_size_bytes) {
  ACCRT_ENTER(launch, argument);
  ACCRT_GUARD_LIGHT(&launch->guard, "launch");
  ACCRT_TRY(accrt_struct_check_element("accrt_kernel_argument_t", argument_size_bytes,
                                       sizeof(accrt_kernel_argument_t)));
  const accrt_kernel_def_t* definition = definition_of(launch);
  if (index >= definition->param_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "kernel '%s': parameter %" PRIu32 " of %" PRIu32,
                      definition->name, index, definition->param_count);
  }
  ACCRT_TRY(pack(launch, index, argument));
  launch->given |= UINT64_C(1) << index;
  const uint32_t kind = definition->params[index].kind;
  const bool scalar = kind == ACCRT_KERNEL_PARAM_SCALAR || kind == ACCRT_KERNEL_PARAM_SYMBOL;
  accrt_buffer_t* buffer = scalar ? NULL : argument->buffer;
  accrt_buffer_t* old = launch->buffers[index];
  if (buffer == old)
    return ACCRT_OK;
  if (buffer != NULL)
    accrt_buffer_ref(buffer);
  launch->buffers[index] = buffer;
  let_go(launch, old);
  return ACCRT_OK;
}

void* accrt_launch_params(accrt_launch_t* launch) {
  if (launch == NULL)
    return NULL;
  launch->direct = true;
  return launch->block;
}

/* ---- Launching ---- */

static accrt_status_t fail_missing(const accrt_launch_t* launch) {
  const accrt_kernel_def_t* definition = definition_of(launch);
  const uint32_t index = (uint32_t)__builtin_ctzll(launch->required & ~launch->given);
  return ACCRT_FAIL(INVALID_STATE, "kernel '%s': parameter '%s' was never given", definition->name,
                    definition->params[index].name);
}

static accrt_status_t check_launch(accrt_stream_t* stream, const accrt_launch_t* launch) {
  if (stream->device != launch->device)
    return accrt_device_check_same("launch", launch->device, "stream", stream->device);
  return launch->direct || (launch->required & ~launch->given) == 0 ? ACCRT_OK
                                                                    : fail_missing(launch);
}

/* The short way, without a listener. False: an operation has to be made. */
static bool pass(accrt_stream_t* stream, accrt_launch_t* launch, const uint32_t grid[3],
                 launch_use_t* use, accrt_status_t* out_status) {
  accrt_submit_held_t held;
  if (launch->driver_launch == NULL || stream->listens ||
      !accrt_submit_try_lock(stream, ACCRT_SUBMIT_ONE, &held))
    return false;
  const uint64_t number = accrt_submit_number(&held);
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  if (launch->pack == NULL ||
      accrt_stream_retain_object(stream, &accrt_retained_pack, launch->pack, number))
    status = stream->table->queue_launch(stream->queue, launch->driver_launch, grid, launch->block,
                                         number);
  accrt_submit_unlock_number(stream, &held, status);
  use->submission = number;
  if (status != ACCRT_OK)
    accrt_device_note_status(stream->device, status);
  *out_status = status;
  return true;
}

accrt_status_t accrt_stream_launch_prepared(accrt_stream_t* stream, accrt_launch_t* launch,
                                            const uint32_t grid[3]) {
  ACCRT_ENTER(stream, launch, grid);
  ACCRT_TRY(check_launch(stream, launch));
  ACCRT_GUARD_LIGHT(&launch->guard, "launch");
  if (uses_of(launch)[0].fence != stream->fence)
    ACCRT_TRY(prepare_use(launch, stream->fence));
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0)
    return accrt_stream_check(stream);
  if (accrt_device_is_lost(stream->device))
    return accrt_device_fail_lost(stream->device);
  launch_use_t* use = find_use(launch, stream->fence);
  accrt_status_t status;
  if (pass(stream, launch, grid, use, &status))
    return status;
  uint64_t number;
  /* Through the stream's operations: it defers, or needs a listener. */
  status = accrt_stream_dispatch(stream, launch->kernel, grid, launch->block, &number);
  if (status == ACCRT_OK)
    use->submission = number;
  return status;
}
