/* gemm.c - C = activation(A * B + bias) + residual, with B packed into panels by gemm_pack.c.
 *
 * Instantiated with A_TAG, B_TAG, C_TAG (f32, f16 or bf16) and ENTRY; computes in f32. A workgroup
 * makes up to GROUP_ROWS rows by `panels_per_group` panels. The grid is panels by rows; rows are
 * walked first where that is less to read, so that a thread, which takes workgroups one after
 * another, finds the panels in its cache. Writes nothing but C. */
#include "activate.h"
#include "gemm_core.h"
#include "types.h"

typedef TYPE(A_TAG) a_t;
typedef TYPE(B_TAG) b_t;
typedef TYPE(C_TAG) c_t;

typedef struct {
  const a_t* a;
  const b_t* b;
  const float* bias;
  const c_t* residual;
  c_t* c;
  int64_t m, n, k, lda, ldc, ld_residual;
  int64_t panels_per_group;
  int64_t activation;
} gemm_params_t;

#define MAX_PANELS 8
#define IS_F32_f32 1
#define IS_F32_f16 0
#define IS_F32_bf16 0
#define A_IS_F32 CONCAT(IS_F32_, A_TAG)

DEFINE_ROW_BLOCK(b_t, CONCAT(load_b_, B_TAG))
DEFINE_MULTIPLY_PANEL(b_t)
DEFINE_STAGE_ROWS(a_t, LOAD(A_TAG))

static void add_bias(float* tile, int64_t rows, int64_t width, const float* bias, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    float* row = tile + r * width;
    INDEPENDENT for (int64_t j = 0; j < columns; j++) row[j] += bias[j];
  }
}

static void store_rows(const gemm_params_t* p, const float* tile, int64_t width, int64_t row,
                       int64_t rows, int64_t column, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    const float* from = tile + r * width;
    c_t* to = p->c + (row + r) * p->ldc + column;
    if (p->residual) {
      const c_t* add = p->residual + (row + r) * p->ld_residual + column;
      INDEPENDENT for (int64_t j = 0; j < columns; j++) to[j] =
          STORE(C_TAG)(from[j] + LOAD(C_TAG)(add[j]));
    } else {
      INDEPENDENT for (int64_t j = 0; j < columns; j++) to[j] = STORE(C_TAG)(from[j]);
    }
  }
}

/* Rows [row, row + rows) times the group's panels into `tile`, slice by slice of k. */
static void multiply(const gemm_params_t* p, float* tile, float* staged, int64_t row, int64_t rows,
                     int64_t panel, int64_t panels, int64_t distance) {
  int64_t slice = A_IS_F32 ? max_i64(p->k, 1) : SLICE_K;
  int64_t begin = 0;
  do {
    int64_t count = min_i64(slice, p->k - begin), lda = p->lda;
    const a_t* from = p->a + row * p->lda + begin;
    const float* a = (const float*)(const void*)from;
    if (!A_IS_F32) {
      stage_rows(staged, from, p->lda, 1, rows, count);
      a = staged;
      lda = STAGED_STEP;
    }
    for (int64_t j = 0; j < panels; j++) {
      const b_t* b = p->b + ((panel + j) * p->k + begin) * PANEL;
      const b_t* ahead = b + (j + 1 < panels ? 1 : distance) * p->k * PANEL;
      multiply_panel(rows, count, a, lda, b, tile + j * PANEL, panels * PANEL,
                     begin > 0 ? ADD_TO_TILE : WRITE_TILE, ahead);
    }
    begin += slice;
  } while (begin < p->k);
}

#define CACHE_FLOATS (1 << 18) /* of the second-level cache, for A */

/* Which panels and which rows a workgroup makes. With rows first, all of A passes for each group of
 * panels, which costs nothing where it stays in the cache; else all of B for each group of rows. */
static void find_place(const gemm_params_t* p, const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup, int64_t* group, int64_t* rows) {
  int64_t groups = dispatch->workgroup_count[0], parts = dispatch->workgroup_count[1];
  *group = workgroup->workgroup_id[0];
  *rows = workgroup->workgroup_id[1];
  if (p->m * p->k > CACHE_FLOATS && groups * p->m > parts * p->n)
    return;
  int64_t number = *rows * groups + *group;
  *group = number / parts;
  *rows = number % parts;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const gemm_params_t* p = (const gemm_params_t*)dispatch->params;
  float* tile = (float*)workgroup->local_memory;
  float* staged = tile + GROUP_ROWS * MAX_PANELS * PANEL;
  int64_t group, part;
  find_place(p, dispatch, workgroup, &group, &part);
  int64_t panel = group * p->panels_per_group;
  int64_t panels = min_i64(p->panels_per_group, ceildiv_i64(p->n, PANEL) - panel);
  int64_t row = part_begin(p->m, part, dispatch->workgroup_count[1]);
  int64_t rows = part_begin(p->m, part + 1, dispatch->workgroup_count[1]) - row;
  if (panels <= 0 || rows <= 0)
    return KERNEL_OK;

  int64_t width = panels * PANEL, column = panel * PANEL, columns = min_i64(width, p->n - column);
  /* The next group that this thread will get, when all threads take their turns. */
  int64_t distance = 1 + (dispatch->worker_count - 1) * p->panels_per_group;
  multiply(p, tile, staged, row, rows, panel, panels, distance);
  if (p->bias)
    add_bias(tile, rows, width, p->bias + column, columns);
  activate(tile, rows * width, p->activation);
  store_rows(p, tile, width, row, rows, column, columns);
  return KERNEL_OK;
}
