/* tests/fakecuda/engine.c - tasks, and the one thread that runs them: late, and in any order that their dependencies allow.
 *
 * A task is one thing for the device to do. It becomes ready when all that it follows has ended; the engine then picks among
 * the ready ones at random (FAKECUDA_SEED) and holds some back for a while, so that work which only happens to come in the
 * right order is found out. Everything here is called under the lock.
 */
#include "fake.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

struct task {
  uint32_t references;
  uint32_t blockers; /* what it follows and has not ended, and one until it is submitted */
  bool is_done;
  CUcontext context;
  op_t op;
  uint64_t not_before_ns;
  uint64_t done_ns;
  task_t** followers;
  uint32_t follower_count;
  uint32_t follower_capacity;
};

static task_t** ready;
static uint32_t ready_count;
static uint32_t ready_capacity;

static void* grow(void* array, uint32_t* capacity, size_t element_bytes) {
  *capacity = *capacity == 0 ? 8 : *capacity * 2;
  void* larger = realloc(array, *capacity * element_bytes);
  if (larger == NULL)
    abort();
  return larger;
}

/* ---- Operations ---- */

void op_clone(op_t* target, const op_t* source) {
  *target = *source;
  if (source->kind == OP_KERNEL && source->as.kernel.params != NULL) {
    const size_t size_bytes = function_image(source->as.kernel.function)->params_size;
    target->as.kernel.params = fake_allocate(size_bytes);
    memcpy(target->as.kernel.params, source->as.kernel.params, size_bytes);
  }
  if (source->kind == OP_COPY && source->as.copy.staged != NULL) {
    const uint64_t* extent = source->as.copy.extent;
    target->as.copy.staged = fake_allocate(extent[0] * extent[1] * extent[2]);
    memcpy(target->as.copy.staged, source->as.copy.staged, extent[0] * extent[1] * extent[2]);
  }
}

void op_free(op_t* op) {
  if (op->kind == OP_KERNEL)
    free(op->as.kernel.params);
  if (op->kind == OP_COPY)
    free(op->as.copy.staged);
  op->kind = OP_EMPTY;
}

/* ---- Faults of the device ---- */

static _Thread_local sigjmp_buf fault_exit;
static _Thread_local volatile sig_atomic_t is_guarded;
static struct sigaction previous_action[2];

static void on_fault(int number, siginfo_t* info, void* where) {
  (void)where;
  (void)info;
  if (is_guarded)
    siglongjmp(fault_exit, 1);
  sigaction(number, &previous_action[number == SIGBUS],
            NULL); /* the program's own: it faults again */
}

static void catch_fault(int number, struct sigaction* previous) {
  struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
  struct sigaction before;
  action.sa_sigaction = on_fault;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, &before);
  if (before.sa_sigaction != on_fault)
    *previous = before;
}

/* Again and again: test frameworks set handlers of their own for each test. */
static void catch_faults(void) {
  catch_fault(SIGSEGV, &previous_action[0]);
  catch_fault(SIGBUS, &previous_action[1]);
}

CUresult guarded(CUresult (*body)(void* argument), void* argument) {
  catch_faults();
  if (sigsetjmp(fault_exit, 0) != 0) {
    is_guarded = 0;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  is_guarded = 1;
  const CUresult result = body(argument);
  is_guarded = 0;
  return result;
}

/* ---- Running one operation ---- */

typedef struct stretch {
  unsigned char* target;
  const unsigned char* source;
  uint64_t size_bytes;
} stretch_t;

/* The sanitizers would take these for races of the host's: what the device does, they cannot order. */
#if defined(__clang__) || defined(__GNUC__)
__attribute__((no_sanitize("thread"), no_sanitize("address")))
#endif
static CUresult
move_bytes(void* argument) {
  const stretch_t* stretch = argument;
  memmove(stretch->target, stretch->source, stretch->size_bytes);
  return CUDA_SUCCESS;
}

/* Copies between two device views, piece by piece as mappings come. */
static CUresult copy_row(CUcontext context, uint64_t target, uint64_t source,
                         const unsigned char* staged, uint64_t size_bytes) {
  for (uint64_t at = 0; at < size_bytes;) {
    uint64_t room = 0;
    uint64_t available = UINT64_MAX;
    unsigned char* to = memory_resolve(context, target + at, &room);
    const unsigned char* from =
        staged != NULL ? staged + at : memory_resolve(context, source + at, &available);
    if (to == NULL || from == NULL)
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t piece = size_bytes - at;
    piece = piece < room ? piece : room;
    piece = piece < available ? piece : available;
    stretch_t stretch = {to, from, piece};
    pthread_mutex_unlock(&fake.mutex);
    const CUresult result = guarded(move_bytes, &stretch);
    pthread_mutex_lock(&fake.mutex);
    if (result != CUDA_SUCCESS)
      return result;
    at += piece;
  }
  return CUDA_SUCCESS;
}

static CUresult run_copy(CUcontext context, const op_copy_t* copy) {
  const unsigned char* staged = copy->staged;
  if (copy->is_devices_own && (memory_type(copy->target) == MEMORY_PAGEABLE ||
                               memory_type(copy->source) == MEMORY_PAGEABLE))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (uint64_t plane = 0; plane < copy->extent[2]; ++plane) {
    for (uint64_t row = 0; row < copy->extent[1]; ++row) {
      const CUresult result =
          copy_row(copy->crosses ? NULL : context,
                   copy->target + row * copy->target_stride[0] + plane * copy->target_stride[1],
                   copy->source + row * copy->source_stride[0] + plane * copy->source_stride[1],
                   staged, copy->extent[0]);
      if (result != CUDA_SUCCESS)
        return result;
      if (staged != NULL)
        staged += copy->extent[0];
    }
  }
  return CUDA_SUCCESS;
}

static CUresult run_fill(CUcontext context, const op_fill_t* fill) {
  const uint64_t row_bytes = fill->width * fill->element_bytes;
  unsigned char* pattern = fake_allocate(row_bytes);
  for (uint64_t i = 0; i < row_bytes; i += fill->element_bytes)
    memcpy(pattern + i, &fill->value, fill->element_bytes);
  CUresult result = CUDA_SUCCESS;
  for (uint64_t row = 0; row < fill->height && result == CUDA_SUCCESS; ++row)
    result = copy_row(context, fill->target + row * fill->pitch, 0, pattern, row_bytes);
  free(pattern);
  return result;
}

static CUresult run_kernel(void* argument) {
  return (CUresult)kernel_run(argument);
}

static CUresult launch_fault(CUcontext context) {
  settings_t* settings = &fake.settings;
  if (settings->lose_after_launches < 0)
    return CUDA_SUCCESS;
  (void)context;
  return settings->lose_after_launches-- == 0 ? settings->lose_with : CUDA_SUCCESS;
}

static CUresult run_kernel_op(CUcontext context, const op_kernel_t* kernel) {
  CUresult result = launch_fault(context);
  if (result != CUDA_SUCCESS)
    return result;
  ++context->launch_count;
  memory_protect(true);
  pthread_mutex_unlock(&fake.mutex);
  result = guarded(run_kernel, (void*)(uintptr_t)kernel);
  pthread_mutex_lock(&fake.mutex);
  memory_protect(false);
  return result;
}

static void run_host_function(const op_t* op) {
  pthread_mutex_unlock(&fake.mutex);
  fake_thread.in_callback = true;
  op->as.host.function(op->as.host.user);
  fake_thread.in_callback = false;
  pthread_mutex_lock(&fake.mutex);
}

static CUresult run_op(task_t* task) {
  op_t* op = &task->op;
  switch (op->kind) {
  case OP_KERNEL:
    return run_kernel_op(task->context, &op->as.kernel);
  case OP_COPY:
    return run_copy(task->context, &op->as.copy);
  case OP_FILL:
    return run_fill(task->context, &op->as.fill);
  case OP_WRITE_VALUE:
    return copy_row(task->context, op->as.value.address, 0,
                    (const unsigned char*)&op->as.value.value, op->as.value.size_bytes);
  case OP_HOST:
    run_host_function(op);
    return CUDA_SUCCESS;
  default:
    return CUDA_SUCCESS;
  }
}

/* ---- Tasks ---- */

task_t* task_create(CUcontext context, const op_t* op) {
  task_t* task = fake_allocate(sizeof *task);
  task->references = 2; /* the creator's, and the engine's */
  task->blockers = 1;
  task->context = context;
  if (op != NULL)
    task->op = *op;
  return task;
}

void task_retain(task_t* task) {
  ++task->references;
}

void task_release(task_t* task) {
  if (task == NULL || --task->references != 0)
    return;
  op_free(&task->op);
  free(task->followers);
  free(task);
}

bool task_is_done(const task_t* task) {
  return task->is_done;
}

uint64_t task_done_ns(const task_t* task) {
  return task->done_ns;
}

CUcontext task_context(const task_t* task) {
  return task->context;
}

void task_follow(task_t* task, task_t* before) {
  if (before == NULL || before->is_done)
    return;
  if (before->follower_count == before->follower_capacity)
    before->followers = grow(before->followers, &before->follower_capacity, sizeof(task_t*));
  before->followers[before->follower_count++] = task;
  ++task->blockers;
}

static void unblock(task_t* task) {
  if (--task->blockers != 0)
    return;
  if (ready_count == ready_capacity)
    ready = grow(ready, &ready_capacity, sizeof(task_t*));
  ready[ready_count++] = task;
  const uint64_t delay_ns = fake.settings.delay_ns;
  const bool is_late = delay_ns != 0 && fake_random() % 4 == 0;
  task->not_before_ns = fake_now_ns() + (is_late ? fake_random() % delay_ns : 0);
  pthread_cond_signal(&fake.queued);
}

void task_submit(task_t* task) {
  unblock(task);
  task_release(task);
}

void task_wait(task_t* task) {
  task_retain(task);
  ++fake.waiter_count;
  pthread_cond_signal(&fake.queued);
  while (!task->is_done)
    pthread_cond_wait(&fake.done, &fake.mutex);
  --fake.waiter_count;
  task_release(task);
}

static CUresult planned_fault(void) {
  settings_t* settings = &fake.settings;
  if (settings->fail_task_after < 0)
    return CUDA_SUCCESS;
  return settings->fail_task_after-- == 0 ? settings->fail_task_with : CUDA_SUCCESS;
}

static void end_task(task_t* task) {
  task->is_done = true;
  task->done_ns = fake_now_ns();
  for (uint32_t i = 0; i < task->follower_count; ++i)
    unblock(task->followers[i]);
  task->follower_count = 0;
  task_release(task);
  pthread_cond_broadcast(&fake.done);
}

static void run_task(task_t* task) {
  if (task->context->lost == CUDA_SUCCESS) {
    CUresult result = task->op.kind == OP_EMPTY ? CUDA_SUCCESS : planned_fault();
    if (result == CUDA_SUCCESS)
      result = run_op(task);
    if (result != CUDA_SUCCESS && task->context->lost == CUDA_SUCCESS)
      fake.lost[task->context->device] = task->context->lost = result;
  }
  end_task(task);
}

/* ---- The thread ---- */

static bool value_is_reached(const task_t* task) {
  const op_t* op = &task->op;
  uint64_t available = 0;
  const unsigned char* at = memory_resolve(task->context, op->as.value.address, &available);
  if (at == NULL || available < op->as.value.size_bytes)
    return true; /* it will fault */
  uint64_t present = 0;
  memcpy(&present, at, op->as.value.size_bytes);
  const uint64_t wanted = op->as.value.value;
  switch (op->as.value.flags & 3u) {
  case CU_STREAM_WAIT_VALUE_EQ:
    return present == wanted;
  case CU_STREAM_WAIT_VALUE_AND:
    return (present & wanted) != 0;
  case CU_STREAM_WAIT_VALUE_NOR:
    return ~(present | wanted) != 0;
  default:
    return op->as.value.size_bytes == 4 ? (int32_t)((uint32_t)present - (uint32_t)wanted) >= 0
                                        : (int64_t)(present - wanted) >= 0;
  }
}

static bool may_run(const task_t* task, uint64_t now_ns) {
  if (task->op.kind == OP_WAIT_VALUE && task->context->lost == CUDA_SUCCESS &&
      !value_is_reached(task))
    return false;
  /* Nobody is kept waiting only to be late. */
  return fake.waiter_count != 0 || task->not_before_ns <= now_ns;
}

/* A ready task that may run now, chosen at random and taken out; NULL: none. */
static task_t* take(void) {
  if (ready_count == 0)
    return NULL;
  const uint64_t now_ns = fake_now_ns();
  const uint32_t first = (uint32_t)(fake_random() % ready_count);
  for (uint32_t i = 0; i < ready_count; ++i) {
    const uint32_t at = (first + i) % ready_count;
    task_t* task = ready[at];
    if (!may_run(task, now_ns))
      continue;
    ready[at] = ready[--ready_count];
    return task;
  }
  return NULL;
}

static void sleep_a_little(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 20000;
  if (until.tv_nsec >= (long)BILLION) {
    until.tv_nsec -= (long)BILLION;
    ++until.tv_sec;
  }
  pthread_cond_timedwait(&fake.queued, &fake.mutex, &until);
}

static void* run_engine(void* unused) {
  (void)unused;
  pthread_mutex_lock(&fake.mutex);
  for (;;) {
    task_t* task = take();
    if (task != NULL)
      run_task(task);
    else if (ready_count == 0)
      pthread_cond_wait(&fake.queued, &fake.mutex);
    else
      sleep_a_little();
  }
  return NULL;
}

void engine_start(void) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&thread, &attributes, run_engine, NULL) != 0)
    abort();
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void engine_orphan(CUcontext context, task_t* last) {
  if (last == NULL || last->is_done)
    return;
  task_t* both = task_create(context, NULL);
  task_follow(both, last);
  task_follow(both, context->orphaned);
  task_retain(both);
  task_submit(both);
  task_release(context->orphaned);
  context->orphaned = both;
}

void engine_drain(CUcontext context) {
  task_t* end = task_create(context, NULL);
  task_follow(end, context->orphaned);
  for (CUstream stream = context->streams; stream != NULL; stream = stream->next)
    task_follow(end, stream->last);
  task_retain(end);
  task_submit(end);
  task_wait(end);
  task_release(end);
}
