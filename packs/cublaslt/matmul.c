/* matmul.c - matrix products by cuBLASLt: descriptors and a choice of algorithm for each shape,
 * which is kept for the process.
 *
 * cuBLASLt thinks in columns: it is asked for the transposed product, c^T = b^T a^T, whose matrices
 * lie as ours do. Products accumulate in float; f32 operands are multiplied as f32, never as tf32.
 */
#include "matmul.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#define WORKSPACE_LIMIT_BYTES ((uint64_t)32 << 20)
#define INVARIANT_ROWS 256 /* rows whose algorithm batch-invariant products take, however many */
#define WIDE_BYTES                                                                                 \
  16u /* alignment that the fast algorithms want; the others make do with an element's */

/** What decides over an algorithm. Plain data without holes: compared and kept as bytes. */
typedef struct shape {
  int64_t m, n, k, lda, ldb, ldc, ld_residual;
  int64_t batch, a_step, b_step, c_step;
  int64_t form;
  int64_t device_id;
} shape_t;

/** Index 0: arguments aligned to WIDE_BYTES; 1: to their elements. */
typedef struct choice {
  lt_algo_t algo[2];
  uint64_t workspace_size_bytes;
} choice_t;

typedef struct known_choice {
  struct known_choice* next;
  shape_t shape;
  choice_t choice;
} known_choice_t;

/** What a product reads and writes from each address on, in bytes. */
typedef struct reach {
  int64_t a, b, bias, residual, c;
} reach_t;

/** Descriptors of one product: of b^T, a^T, residual^T and c^T. */
typedef struct plan {
  lt_matmul_desc_t desc;
  lt_layout_t b, a, residual, c;
} plan_t;

typedef struct state {
  const lt_functions_t* lt;
  lt_handle_t handle;
  shape_t shape;
  reach_t reach;
  plan_t plan;
  choice_t choice;
} state_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known_choice_t* known; /* under `lock`; only grows */

static int32_t refuse(const accrt_operator_call_t* call, int32_t code, const char* text,
                      long long value) {
  if (call->message_capacity_bytes > 0) {
    snprintf(call->message, call->message_capacity_bytes, "matmul: %s (%lld)", text, value);
  }
  return code;
}

static int32_t check(const accrt_operator_call_t* call, const lt_functions_t* lt,
                     lt_status_t status, const char* function) {
  if (status == 0)
    return 0;
  if (call->message_capacity_bytes > 0) {
    snprintf(call->message, call->message_capacity_bytes, "matmul: %s: %s", function,
             lt->status_name(status));
  }
  return MATMUL_ERROR_CALL;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static int type_of(accrt_dtype_t dtype) {
  switch (dtype) {
  case ACCRT_DTYPE_F32:
    return LT_R_32F;
  case ACCRT_DTYPE_F16:
    return LT_R_16F;
  case ACCRT_DTYPE_BF16:
    return LT_R_16BF;
  default:
    return -1;
  }
}

static uint32_t element_bytes(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F32 ? 4 : 2;
}

/** cuBLASLt adds the residual before the activation, we after it: both at once is not for it. */
static int32_t check_form(const accrt_operator_call_t* call, int64_t form) {
  const accrt_dtype_t a = MATMUL_FORM_A(form), c = MATMUL_FORM_C(form);
  const accrt_dtype_t bias = MATMUL_FORM_BIAS(form);
  const int activation = MATMUL_FORM_ACTIVATION(form);
  if (type_of(a) < 0 || type_of(c) < 0 || (c != a && c != ACCRT_DTYPE_F32))
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "types of a and c are not supported", form);
  if (bias != ACCRT_DTYPE_NONE && bias != c)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "the bias has another type than c", bias);
  if (activation != MATMUL_NONE && activation != MATMUL_RELU && activation != MATMUL_GELU_TANH)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "activation is not supported", activation);
  if (activation != MATMUL_NONE && (form & MATMUL_FORM_RESIDUAL))
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "activation with residual is not supported",
                  activation);
  return 0;
}

/** One step for all batch entries, or -1: outer and inner steps must walk as one. */
static int64_t joined_step(const matmul_params_t* p, int64_t outer, int64_t inner) {
  int64_t step;
  if (p->batch1 == 1)
    return p->batch0 == 1 ? 0 : outer;
  if (p->batch0 == 1)
    return inner;
  return !__builtin_mul_overflow(inner, p->batch1, &step) && outer == step ? inner : -1;
}

static int32_t read_shape(const accrt_operator_call_t* call, shape_t* out) {
  const matmul_params_t* p = call->params;
  memset(out, 0, sizeof *out);
  if (call->params_size_bytes < sizeof *p)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "the parameter block is too small",
                  call->params_size_bytes);
  const int32_t code = check_form(call, p->form);
  if (code != 0)
    return code;
  if (p->m < 0 || p->n < 0 || p->k < 1 || p->batch0 < 0 || p->batch1 < 1)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "a size is out of range", p->k);
  int64_t batch;
  if (__builtin_mul_overflow(p->batch0, p->batch1, &batch))
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "too large a batch", p->batch0);
  *out = (shape_t){
      .m = p->m,
      .n = p->n,
      .k = p->k,
      .lda = p->lda,
      .ldb = p->ldb,
      .ldc = p->ldc,
      .ld_residual = p->form & MATMUL_FORM_RESIDUAL ? p->ld_residual : p->ldc,
      .batch = batch,
      .a_step = joined_step(p, p->a0, p->a1),
      .b_step = joined_step(p, p->b0, p->b1),
      .c_step = joined_step(p, p->c0, p->c1),
      .form = p->form,
      .device_id = call->device_id,
  };
  if (out->a_step < 0 || out->b_step < 0 || out->c_step < 0)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "batch steps are not walked as one", p->batch1);
  return 0;
}

static int is_empty(const shape_t* s) {
  return s->m == 0 || s->n == 0 || s->batch == 0;
}

/** Bytes of `batch` matrices, `step` elements apart, of rows `ld` apart; false where they have no
 * such number. No size is 0. */
static int reach_of(const shape_t* s, accrt_dtype_t dtype, int64_t rows, int64_t columns,
                    int64_t ld, int64_t step, int64_t* out_bytes) {
  int64_t batches, lines;
  return ld >= 0 && step >= 0 && !__builtin_mul_overflow(s->batch - 1, step, &batches) &&
         !__builtin_mul_overflow(rows - 1, ld, &lines) &&
         !__builtin_add_overflow(batches, lines, out_bytes) &&
         !__builtin_add_overflow(*out_bytes, columns, out_bytes) &&
         !__builtin_mul_overflow(*out_bytes, (int64_t)element_bytes(dtype), out_bytes);
}

/** The arguments may be chosen by an attacker who made the bundle: what will be touched is known
 * before anything is. */
static int32_t measure(const accrt_operator_call_t* call, const shape_t* s, reach_t* out) {
  const accrt_dtype_t a = MATMUL_FORM_A(s->form), c = MATMUL_FORM_C(s->form);
  const int nk = (s->form & MATMUL_FORM_B_IS_NK) != 0;
  *out = (reach_t){0};
  if (is_empty(s))
    return 0;
  if (reach_of(s, a, s->m, s->k, s->lda, s->a_step, &out->a) &&
      reach_of(s, a, nk ? s->n : s->k, nk ? s->k : s->n, s->ldb, s->b_step, &out->b) &&
      reach_of(s, c, s->m, s->n, s->ldc, s->c_step, &out->c) &&
      reach_of(s, c, s->m, s->n, s->ld_residual, s->c_step, &out->residual) &&
      !__builtin_mul_overflow(s->n, (int64_t)element_bytes(c), &out->bias))
    return 0;
  return refuse(call, MATMUL_ERROR_UNSUPPORTED, "a step is negative, or sizes overflow", s->lda);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

static uint32_t epilogue_of(int64_t form) {
  uint32_t epilogue = MATMUL_FORM_BIAS(form) != ACCRT_DTYPE_NONE ? LT_EPILOGUE_BIAS : 0;
  if (MATMUL_FORM_ACTIVATION(form) == MATMUL_RELU)
    epilogue |= LT_EPILOGUE_RELU;
  if (MATMUL_FORM_ACTIVATION(form) == MATMUL_GELU_TANH)
    epilogue |= LT_EPILOGUE_GELU;
  return epilogue ? epilogue : LT_EPILOGUE_DEFAULT;
}

static int32_t make_desc(const accrt_operator_call_t* call, const lt_functions_t* lt,
                         const shape_t* s, lt_matmul_desc_t* out) {
  int32_t code = check(call, lt, lt->desc_create(out, LT_COMPUTE_32F, LT_R_32F), "desc create");
  if (code != 0)
    return code;
  const int32_t first = s->form & MATMUL_FORM_B_IS_NK ? LT_OP_T : LT_OP_N, second = LT_OP_N;
  const uint32_t epilogue = epilogue_of(s->form);
  const int32_t bias = type_of(MATMUL_FORM_C(s->form));
  lt_status_t status = lt->desc_set(*out, LT_DESC_TRANSA, &first, sizeof first);
  if (status == 0)
    status = lt->desc_set(*out, LT_DESC_TRANSB, &second, sizeof second);
  if (status == 0)
    status = lt->desc_set(*out, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (status == 0 && MATMUL_FORM_BIAS(s->form) != ACCRT_DTYPE_NONE)
    status = lt->desc_set(*out, LT_DESC_BIAS_DATA_TYPE, &bias, sizeof bias);
  return check(call, lt, status, "cublasLtMatmulDescSetAttribute");
}

/** Rows of ours are columns of theirs. */
static int32_t make_layout(const accrt_operator_call_t* call, const lt_functions_t* lt,
                           accrt_dtype_t dtype, int64_t rows, int64_t columns, int64_t ld,
                           int64_t batch, int64_t step, lt_layout_t* out) {
  lt_status_t status =
      lt->layout_create(out, type_of(dtype), (uint64_t)columns, (uint64_t)rows, ld);
  const int32_t count = (int32_t)batch;
  if (status == 0 && batch > 1)
    status = lt->layout_set(*out, LT_LAYOUT_BATCH_COUNT, &count, sizeof count);
  if (status == 0 && batch > 1)
    status = lt->layout_set(*out, LT_LAYOUT_BATCH_STRIDE, &step, sizeof step);
  return check(call, lt, status, "cublasLtMatrixLayoutCreate");
}

static void free_plan(const lt_functions_t* lt, plan_t* plan) {
  lt_layout_t layouts[] = {plan->b, plan->a, plan->residual, plan->c};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
    if (layouts[i] != NULL)
      lt->layout_destroy(layouts[i]);
  }
  if (plan->desc != NULL)
    lt->desc_destroy(plan->desc);
}

static int32_t make_plan(const accrt_operator_call_t* call, const lt_functions_t* lt,
                         const shape_t* s, plan_t* out) {
  const accrt_dtype_t a = MATMUL_FORM_A(s->form), c = MATMUL_FORM_C(s->form);
  const int nk = (s->form & MATMUL_FORM_B_IS_NK) != 0;
  *out = (plan_t){0};
  int32_t code = s->batch > INT32_MAX
                     ? refuse(call, MATMUL_ERROR_UNSUPPORTED, "too large a batch", s->batch)
                     : make_desc(call, lt, s, &out->desc);
  if (code == 0)
    code = make_layout(call, lt, a, nk ? s->n : s->k, nk ? s->k : s->n, s->ldb, s->batch, s->b_step,
                       &out->b);
  if (code == 0)
    code = make_layout(call, lt, a, s->m, s->k, s->lda, s->batch, s->a_step, &out->a);
  if (code == 0)
    code =
        make_layout(call, lt, c, s->m, s->n, s->ld_residual, s->batch, s->c_step, &out->residual);
  if (code == 0)
    code = make_layout(call, lt, c, s->m, s->n, s->ldc, s->batch, s->c_step, &out->c);
  if (code != 0)
    free_plan(lt, out);
  return code;
}

/* ---- The choice of an algorithm -------------------------------------------------------------- */

/** What an algorithm is chosen by. */
static shape_t deciding_shape(const shape_t* s) {
  shape_t decides = *s;
  if (s->form & MATMUL_FORM_BATCH_INVARIANT)
    decides.m = INVARIANT_ROWS;
  return decides;
}

/** Parts of k meet in float, not in c. How many there are depends on m, so batch-invariant products
 * have none. */
static lt_status_t set_preference(const lt_functions_t* lt, lt_preference_t preference,
                                  int64_t form, uint32_t alignment_bytes) {
  const uint64_t limit = WORKSPACE_LIMIT_BYTES;
  const uint32_t reduction =
      form & MATMUL_FORM_BATCH_INVARIANT ? LT_REDUCTION_NONE : LT_REDUCTION_COMPUTE_TYPE;
  lt_status_t status =
      lt->preference_set(preference, LT_PREFERENCE_WORKSPACE, &limit, sizeof limit);
  if (status == 0)
    status = lt->preference_set(preference, LT_PREFERENCE_REDUCTION, &reduction, sizeof reduction);
  for (int i = 0; i < 4 && status == 0; ++i) {
    status = lt->preference_set(preference, LT_PREFERENCE_ALIGNMENT_A + i, &alignment_bytes,
                                sizeof alignment_bytes);
  }
  return status;
}

static int32_t ask(const accrt_operator_call_t* call, const lt_functions_t* lt, lt_handle_t handle,
                   const plan_t* plan, int64_t form, uint32_t alignment_bytes,
                   lt_heuristic_t* out) {
  lt_preference_t preference = NULL;
  int found = 0;
  lt_status_t status = lt->preference_create(&preference);
  if (status == 0)
    status = set_preference(lt, preference, form, alignment_bytes);
  if (status == 0)
    status = lt->heuristic(handle, plan->desc, plan->b, plan->a, plan->residual, plan->c,
                           preference, 1, out, &found);
  if (preference != NULL)
    lt->preference_destroy(preference);
  if (status == 0 && found == 1)
    status = out->state;
  if (status == 0 && found != 1)
    return refuse(call, MATMUL_ERROR_UNSUPPORTED, "no algorithm for arguments aligned to",
                  alignment_bytes);
  return check(call, lt, status, "cublasLtMatmulAlgoGetHeuristic");
}

static int32_t choose(const accrt_operator_call_t* call, const lt_functions_t* lt,
                      lt_handle_t handle, const shape_t* s, choice_t* out) {
  const uint32_t alignments[2] = {WIDE_BYTES, element_bytes(MATMUL_FORM_A(s->form))};
  out->workspace_size_bytes = 0;
  plan_t plan;
  int32_t code = make_plan(call, lt, s, &plan);
  if (code != 0)
    return code;
  for (int i = 0; i < 2 && code == 0; ++i) {
    lt_heuristic_t best;
    code = ask(call, lt, handle, &plan, s->form, alignments[i], &best);
    if (code != 0)
      break;
    out->algo[i] = best.algo;
    if (best.workspace_size_bytes > out->workspace_size_bytes)
      out->workspace_size_bytes = best.workspace_size_bytes;
  }
  free_plan(lt, &plan);
  return code;
}

/** Whether algorithms that were chosen for other sizes do these. */
static int32_t check_choice(const accrt_operator_call_t* call, state_t* state) {
  const plan_t* plan = &state->plan;
  for (int i = 0; i < 2; ++i) {
    lt_heuristic_t found;
    const lt_status_t status =
        state->lt->algo_check(state->handle, plan->desc, plan->b, plan->a, plan->residual, plan->c,
                              &state->choice.algo[i], &found);
    if (status != 0)
      return refuse(call, MATMUL_ERROR_UNSUPPORTED,
                    "the algorithm of batch-invariant products does not do rows", state->shape.m);
    if (found.workspace_size_bytes > state->choice.workspace_size_bytes)
      state->choice.workspace_size_bytes = found.workspace_size_bytes;
  }
  return 0;
}

static int find_choice(const shape_t* shape, choice_t* out) {
  pthread_mutex_lock(&lock);
  const known_choice_t* entry = known;
  while (entry != NULL && memcmp(&entry->shape, shape, sizeof *shape) != 0)
    entry = entry->next;
  if (entry != NULL)
    *out = entry->choice;
  pthread_mutex_unlock(&lock);
  return entry != NULL;
}

/** Without memory it is chosen again next time. */
static void keep_choice(const shape_t* shape, const choice_t* choice) {
  known_choice_t* entry = malloc(sizeof *entry);
  if (entry == NULL)
    return;
  entry->shape = *shape;
  entry->choice = *choice;
  pthread_mutex_lock(&lock);
  entry->next = known;
  known = entry;
  pthread_mutex_unlock(&lock);
}

static int32_t open_library(const accrt_operator_call_t* call, const lt_functions_t** out_lt,
                            lt_handle_t* out_handle) {
  *out_lt = library_open(call->message, call->message_capacity_bytes);
  if (*out_lt == NULL)
    return MATMUL_ERROR_LIBRARY;
  *out_handle =
      library_handle(*out_lt, call->device_id, call->message, call->message_capacity_bytes);
  return *out_handle == NULL ? MATMUL_ERROR_LIBRARY : 0;
}

/** Everything of a state; on failure nothing is left. */
static int32_t fill_state(const accrt_operator_call_t* call, state_t* state) {
  int32_t code = read_shape(call, &state->shape);
  if (code == 0)
    code = measure(call, &state->shape, &state->reach);
  if (code != 0 || is_empty(&state->shape))
    return code;
  code = open_library(call, &state->lt, &state->handle);
  if (code == 0)
    code = make_plan(call, state->lt, &state->shape, &state->plan);
  if (code != 0)
    return code;
  const shape_t decides = deciding_shape(&state->shape);
  if (!find_choice(&decides, &state->choice)) {
    code = choose(call, state->lt, state->handle, &decides, &state->choice);
    if (code == 0)
      keep_choice(&decides, &state->choice);
  }
  if (code == 0 && decides.m != state->shape.m)
    code = check_choice(call, state);
  if (code != 0)
    free_plan(state->lt, &state->plan);
  return code;
}

/* ---- The operator ---------------------------------------------------------------------------- */

int32_t matmul_query_workspace(const accrt_kernel_environment_t* environment,
                               const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  *out_size_bytes = 0;
  state_t state = {0};
  const int32_t code = fill_state(call, &state);
  if (code != 0 || is_empty(&state.shape))
    return code;
  *out_size_bytes = state.choice.workspace_size_bytes;
  free_plan(state.lt, &state.plan);
  return 0;
}

int32_t matmul_prepare(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  *out_state = NULL;
  state_t* state = calloc(1, sizeof *state);
  if (state == NULL)
    return refuse(call, MATMUL_ERROR_MEMORY, "no memory for a state of bytes", sizeof *state);
  const int32_t code = fill_state(call, state);
  if (code != 0) {
    free(state);
    return code;
  }
  *out_state = state;
  return 0;
}

static int is_wide(const void* address) {
  return (uintptr_t)address % WIDE_BYTES == 0;
}

int32_t matmul_execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* opaque) {
  (void)environment;
  const state_t* state = opaque;
  const matmul_params_t* p = call->params;
  const int64_t form = state->shape.form;
  if (is_empty(&state->shape))
    return 0;
  const int biased = MATMUL_FORM_BIAS(form) != ACCRT_DTYPE_NONE;
  const int residual = (form & MATMUL_FORM_RESIDUAL) != 0;
  if ((biased && p->bias == NULL) || (residual && p->residual == NULL))
    return refuse(call, MATMUL_ERROR_ARGUMENT, "bias or residual is missing", form);
  const reach_t* reach = &state->reach;
  if (p->a_bytes < reach->a || p->b_bytes < reach->b || p->c_bytes < reach->c ||
      (biased && p->bias_bytes < reach->bias) || (residual && p->residual_bytes < reach->residual))
    return refuse(call, MATMUL_ERROR_ARGUMENT, "a matrix is longer than its buffer", p->m);
  if (call->workspace_size_bytes < state->choice.workspace_size_bytes)
    return refuse(call, MATMUL_ERROR_ARGUMENT, "too little workspace",
                  (long long)call->workspace_size_bytes);
  if (biased) {
    const int32_t code =
        check(call, state->lt,
              state->lt->desc_set(state->plan.desc, LT_DESC_BIAS_POINTER, &p->bias, sizeof p->bias),
              "cublasLtMatmulDescSetAttribute");
    if (code != 0)
      return code;
  }
  const void* added = residual ? p->residual : p->c;
  const int narrow = !(is_wide(p->a) && is_wide(p->b) && is_wide(p->c) && is_wide(added));
  const float beta = residual ? 1.0f : 0.0f;
  return check(call, state->lt,
               state->lt->matmul(state->handle, state->plan.desc, &p->scale, p->b, state->plan.b,
                                 p->a, state->plan.a, &beta, added, state->plan.residual, p->c,
                                 state->plan.c, &state->choice.algo[narrow], call->workspace,
                                 call->workspace_size_bytes, call->stream),
               "cublasLtMatmul");
}

void matmul_destroy(const accrt_kernel_environment_t* environment, void* opaque) {
  (void)environment;
  state_t* state = opaque;
  if (state == NULL)
    return;
  if (state->lt != NULL)
    free_plan(state->lt, &state->plan);
  free(state);
}
