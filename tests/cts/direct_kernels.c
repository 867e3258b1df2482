/* tests/cts/direct_kernels.c - the kernels and operators that direct.c runs on a driver, and what
 * they see.
 *
 * It may include public headers only, and use no instance. */
#include "direct.h"

#include <fenv.h>
#include <float.h>

/* ---- Kernels ---- */

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

void direct_forget_calls(void) {
  memset(&direct_seen, 0, sizeof direct_seen);
}

/* Under the lock. */
static void object(bool is_right, const char* what) {
  if (!is_right && direct_seen.wrong[0] == '\0')
    snprintf(direct_seen.wrong, sizeof direct_seen.wrong, "%s", what);
}

const accrt_kernel_environment_t direct_environment = {
    .struct_size = (uint32_t)sizeof direct_environment, .abi_version = ACCRT_KERNEL_ABI_VERSION};

static int32_t count(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  pthread_mutex_lock(&seen_lock);
  ++direct_seen.calls;
  direct_seen.submission = dispatch->submission;
  for (int i = 0; i < 3; ++i) {
    direct_seen.count[i] = dispatch->workgroup_count[i];
    if (workgroup->workgroup_id[i] > direct_seen.highest[i])
      direct_seen.highest[i] = workgroup->workgroup_id[i];
  }
  pthread_mutex_unlock(&seen_lock);
  return 0;
}

static int32_t keep_block(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  direct_seen.params_size = dispatch->params_size_bytes;
  const size_t most = sizeof direct_seen.block, size = dispatch->params_size_bytes;
  if (size != 0)
    memcpy(direct_seen.block, dispatch->params, size < most ? size : most);
  return count(environment, dispatch, workgroup);
}

static int32_t fail_on_purpose(const accrt_kernel_environment_t* environment,
                               const accrt_kernel_dispatch_t* dispatch,
                               const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  if (workgroup->message != NULL && workgroup->message_capacity_bytes > 10)
    snprintf(workgroup->message, workgroup->message_capacity_bytes, "on purpose");
  return 77;
}

unsigned char direct_seen_large[ACCRT_KERNEL_MAX_PARAMS_BYTES];
static int32_t keep_large(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  direct_seen.params_size = dispatch->params_size_bytes;
  if (dispatch->params_size_bytes <= sizeof direct_seen_large)
    memcpy(direct_seen_large, dispatch->params, dispatch->params_size_bytes);
  return count(environment, dispatch, workgroup);
}

/* Its block: the code, the workgroup that fails, and whether it has words for it. */
static int32_t fail_somewhere(const accrt_kernel_environment_t* environment,
                              const accrt_kernel_dispatch_t* dispatch,
                              const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const int32_t* block = dispatch->params;
  for (int i = 0; i < 3; ++i) {
    if (workgroup->workgroup_id[i] != (uint32_t)block[1 + i])
      return 0;
  }
  if (block[4] != 0)
    snprintf(workgroup->message, workgroup->message_capacity_bytes, "over here");
  return block[0];
}

#define LOCAL_BYTES 4096u
static int32_t look_around(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  unsigned char* local = workgroup->local_memory;
  bool is_mine = local != NULL;
  if (is_mine) {
    const unsigned char mine =
        (unsigned char)(1 + workgroup->workgroup_id[0] + 5 * workgroup->workgroup_id[1] +
                        15 * workgroup->workgroup_id[2]);
    memset(local, mine, LOCAL_BYTES);
    for (int turn = 0; turn < 20; ++turn) {
      for (uint32_t i = 0; i < LOCAL_BYTES; i += 64)
        is_mine &= ((volatile unsigned char*)local)[i] == mine;
    }
  }
  volatile unsigned char stack[ACCRT_KERNEL_STACK_BYTES - 8192];
  for (size_t i = 0; i < sizeof stack; i += 1024)
    stack[i] = 1;
  (void)count(environment, dispatch, workgroup);
  pthread_mutex_lock(&seen_lock);
  object(environment == &direct_environment, "another environment than the kernel's");
  object(dispatch->struct_size >= 40 && workgroup->struct_size >= 48, "a struct without its size");
  object(((uintptr_t)dispatch->params & 15) == 0, "a block that is not aligned to 16 bytes");
  object(is_mine, "local memory that is missing or shared");
  object(((uintptr_t)local & 63) == 0, "local memory that is not aligned to 64 bytes");
  object(workgroup->local_memory_size_bytes == LOCAL_BYTES, "local memory of another size");
  object(workgroup->worker_id < dispatch->worker_count, "a worker id that is not below the count");
  object(workgroup->message != NULL && workgroup->message_capacity_bytes >= 64,
         "no room for a message");
  object(workgroup->message != NULL && workgroup->message[0] == '\0', "a message from before");
  object(dispatch->submission != 0, "no submission number");
  for (int i = 0; i < 3; ++i)
    object(workgroup->workgroup_id[i] < dispatch->workgroup_count[i], "an id outside of the grid");
  pthread_mutex_unlock(&seen_lock);
  if (workgroup->message != NULL && workgroup->message_capacity_bytes > 4)
    memcpy(workgroup->message, "old", 4);
  return 0;
}

static int32_t calculate(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  volatile double one = 1.0, tiny = DBL_EPSILON / 8, third = 3.0, zero = 0.0;
  volatile float least = FLT_MIN, half = 0.5f;
  const bool nearest = one + tiny == one && -one - tiny == -one;
  const bool denormal = least * half != 0.0f && (least * half) / half == least;
  const double infinite = one / zero; /* would trap */
  (void)count(environment, dispatch, workgroup);
  pthread_mutex_lock(&seen_lock);
  object(nearest, "another rounding than to nearest");
  object(denormal, "denormals that are flushed");
  object(workgroup->local_memory == NULL && workgroup->local_memory_size_bytes == 0,
         "local memory that nobody declared");
  object(infinite > DBL_MAX && one / third > 0.3, "a quotient that is wrong");
  pthread_mutex_unlock(&seen_lock);
  return 0;
}

static int32_t in_order(const accrt_kernel_environment_t* environment,
                        const accrt_kernel_dispatch_t* dispatch,
                        const accrt_kernel_workgroup_t* workgroup) {
  const uint32_t* id = workgroup->workgroup_id;
  const uint32_t wanted =
      id[0] + dispatch->workgroup_count[0] * (id[1] + dispatch->workgroup_count[1] * id[2]);
  pthread_mutex_lock(&seen_lock);
  object(direct_seen.calls == wanted, "workgroups of a serial kernel out of order");
  pthread_mutex_unlock(&seen_lock);
  return count(environment, dispatch, workgroup);
}

static atomic_bool gate_is_open, gave_up;
static int32_t wait_for_the_host(const accrt_kernel_environment_t* environment,
                                 const accrt_kernel_dispatch_t* dispatch,
                                 const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 4;
  while (!atomic_load(&gate_is_open)) {
    if (cts_now_ns() > deadline) {
      atomic_store(&gave_up, true);
      return 0;
    }
    cts_sleep_ms(1);
  }
  return 0;
}

void direct_close_gate(void) {
  atomic_store(&gave_up, false);
  atomic_store(&gate_is_open, false);
}

bool direct_open_gate(void) {
  atomic_store(&gate_is_open, true);
  return !atomic_load(&gave_up);
}

/* Its block has the gate. */
static int32_t wait_at_gate(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  gate_t* gate = *(gate_t* const*)dispatch->params;
  const uint64_t deadline = cts_now_ns() + direct_patience_ns() / 2;
  atomic_fetch_add(&gate->inside, 1);
  while (!atomic_load(&gate->is_open)) {
    if (cts_now_ns() > deadline) {
      atomic_store(&gate->gave_up, true);
      return 0;
    }
    cts_sleep_ms(1);
  }
  return 0;
}

static int32_t take_long(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  cts_sleep_ms(2);
  pthread_mutex_lock(&seen_lock);
  direct_seen.ended_ns = cts_now_ns();
  pthread_mutex_unlock(&seen_lock);
  return *(const int*)dispatch->params != 0 ? 5 : 0;
}

/* Its block has the bench. */
static int32_t cancel(const accrt_kernel_environment_t* environment,
                      const accrt_kernel_dispatch_t* dispatch,
                      const accrt_kernel_workgroup_t* workgroup) {
  direct_t* const* bench = dispatch->params;
  (*bench)->table->queue_cancel((*bench)->queue);
  return count(environment, dispatch, workgroup);
}

/* Waits for another execution to be inside too, but not for ever: a driver may run one after the other. */
static atomic_uint inside;
static void meet(void) {
  const uint64_t deadline = cts_now_ns() + CTS_SECOND / 50;
  atomic_fetch_add(&inside, 1);
  while (atomic_load(&inside) % 2 != 0 && cts_now_ns() < deadline)
    ;
}

static int32_t share_nothing(const accrt_kernel_environment_t* environment,
                             const accrt_kernel_dispatch_t* dispatch,
                             const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const volatile uint64_t* block = dispatch->params;
  const uint64_t address = block[0], number = block[1];
  volatile unsigned char* local = workgroup->local_memory;
  for (uint32_t i = 0; i < workgroup->local_memory_size_bytes; ++i)
    local[i] = (unsigned char)number;
  meet();
  bool is_mine = true;
  for (uint32_t i = 0; i < workgroup->local_memory_size_bytes; ++i)
    is_mine &= local[i] == (unsigned char)number;
  pthread_mutex_lock(&seen_lock);
  object(block[0] == address && block[1] == number, "a block that changes while a kernel runs");
  object(is_mine, "local memory that is another execution's too");
  pthread_mutex_unlock(&seen_lock);
  *(uint64_t*)(uintptr_t)block[0] = block[1];
  return 0;
}

#define MOST_WORKERS 4096u
static int32_t share_no_id(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  static atomic_bool is_in_use[MOST_WORKERS];
  const uint32_t id = workgroup->worker_id;
  bool is_mine = id < MOST_WORKERS && id < dispatch->worker_count;
  if (is_mine)
    is_mine = !atomic_exchange(&is_in_use[id], true);
  const uint64_t until = cts_now_ns() + 20000;
  while (cts_now_ns() < until)
    ;
  if (is_mine)
    atomic_store(&is_in_use[id], false);
  pthread_mutex_lock(&seen_lock);
  object(is_mine, "a worker id that another workgroup has at the same time");
  pthread_mutex_unlock(&seen_lock);
  return count(environment, dispatch, workgroup);
}

#define KERNEL(field, name_, function, traits_, local_)                                            \
  KERNEL_OF(field, name_, function, traits_, local_, 64)
#define KERNEL_OF(field, name_, function, traits_, local_, params_)                                \
  static const accrt_kernel_def_t field##_def = {.struct_size = (uint32_t)sizeof field##_def,      \
                                                 .traits = traits_,                                \
                                                 .name = "direct." name_,                          \
                                                 .entry = function,                                \
                                                 .params_size_bytes = params_,                     \
                                                 .local_memory_size_bytes = local_};               \
  const accrt_driver_kernel_t direct_##field = {&field##_def, &direct_environment, NULL};
KERNEL(count, "count", count, 0, 0)
KERNEL(share_no_id, "share_no_id", share_no_id, 0, 0)
KERNEL(keep_block, "keep_block", keep_block, 0, 0)
KERNEL(fail, "fail", fail_on_purpose, 0, 0)
KERNEL(fail_somewhere, "fail_somewhere", fail_somewhere, 0, 0)
KERNEL_OF(keep_large, "keep_large", keep_large, 0, 0, ACCRT_KERNEL_MAX_PARAMS_BYTES)
KERNEL(look_around, "look_around", look_around, 0, LOCAL_BYTES)
KERNEL(calculate, "calculate", calculate, 0, 0)
KERNEL(in_order, "in_order", in_order, ACCRT_KERNEL_TRAIT_SERIAL, 0)
KERNEL(wait_for_the_host, "wait_for_the_host", wait_for_the_host, 0, 0)
KERNEL(gate, "gate", wait_at_gate, 0, 0)
KERNEL(take_long, "take_long", take_long, 0, 0)
KERNEL(cancel, "cancel", cancel, ACCRT_KERNEL_TRAIT_SERIAL, 0)
KERNEL(meet, "meet", share_nothing, 0, 64)
KERNEL(meet_with_more, "meet_with_more", share_nothing, 0, 65536)

/* ---- Floats ---- */

#if defined(__x86_64__)
#define FLUSH 0x8040u /* flush to zero, denormals are zero */
#define MASKS 0x0600u /* of division by zero and of overflow: without them they trap */
void direct_spoil_floats(void) {
  fesetround(FE_UPWARD);
  __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() | FLUSH) & ~MASKS);
}
bool direct_floats_are_spoilt(void) {
  return fegetround() == FE_UPWARD && (__builtin_ia32_stmxcsr() & (FLUSH | MASKS)) == FLUSH;
}
#else
void direct_spoil_floats(void) {
  fesetround(FE_UPWARD);
}
bool direct_floats_are_spoilt(void) {
  return fegetround() == FE_UPWARD;
}
#endif

/* ---- An operator ---- */

typedef struct operator_block {
  uint64_t* target;
  uint64_t amount;
} operator_block_t;

static int operator_state;

static int32_t operator_prepare(const accrt_kernel_environment_t* environment,
                                const accrt_operator_call_t* call, void** out_state) {
  object(environment == &direct_environment, "prepare with another environment");
  object(call->params_size_bytes == sizeof(operator_block_t), "prepare with another block");
  ++direct_seen.prepared;
  *out_state = &operator_state;
  return 0;
}

static int32_t operator_execute(const accrt_kernel_environment_t* environment,
                                const accrt_operator_call_t* call, void* state) {
  const operator_block_t* block = call->params;
  object(environment == &direct_environment, "execute with another environment");
  object(state == &operator_state, "execute with another state");
  object(call->params_size_bytes == sizeof *block, "execute with another block");
  object(call->workspace_size_bytes == 256, "a workspace of another size");
  object(call->submission != 0, "execute without a number");
  ++direct_seen.executed;
  direct_seen.workspace = call->workspace;
  *block->target += block->amount;
  return 0;
}

static void operator_destroy(const accrt_kernel_environment_t* environment, void* state) {
  object(environment == &direct_environment && state == &operator_state,
         "destroy with another state");
  ++direct_seen.destroyed;
}

static const accrt_kernel_param_t operator_params[] = {
    ACCRT_KERNEL_PARAM(operator_block_t, target, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(operator_block_t, amount, SCALAR, NONE),
};

const accrt_operator_def_t direct_operator = {.struct_size = (uint32_t)sizeof direct_operator,
                                              .name = "direct.operator",
                                              .params = operator_params,
                                              .param_count = 2,
                                              .params_size_bytes = sizeof(operator_block_t),
                                              .prepare = operator_prepare,
                                              .execute = operator_execute,
                                              .destroy = operator_destroy};
