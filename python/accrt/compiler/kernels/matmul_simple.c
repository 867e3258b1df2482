/* matmul_simple.c - C = A * B per batch entry for the types without a kernel of their own: f64 and
 * integers (which wrap).
 *
 * Instantiated with TAG (of A, B, C and all arithmetic), MULTIPLY_ADD and ENTRY. A workgroup makes
 * ROWS rows by COLUMNS columns, k by k, in ascending order. x of the grid walks columns, y rows, z
 * the batch (up to three axes). */
#include "types.h"

typedef TYPE(TAG) element_t;

typedef struct {
  const element_t* a;
  const element_t* b;
  element_t* c;
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column, c_row;
  int64_t batch0, batch1, batch2;
  int64_t a0, a1, a2, b0, b1, b2, c0, c1, c2;
} matmul_simple_params_t;

#define ROWS 16
#define COLUMNS 64
#define BLOCK 4

#define WRAP_f64(x) (x)
#define WRAP_i8(x) ((uint32_t)(x))
#define WRAP_u8(x) ((uint32_t)(x))
#define WRAP_i16(x) ((uint32_t)(x))
#define WRAP_u16(x) ((uint32_t)(x))
#define WRAP_i32(x) ((uint32_t)(x))
#define WRAP_u32(x) (x)
#define WRAP_i64(x) ((uint64_t)(x))
#define WRAP_u64(x) (x)
#define WRAP(x) CONCAT(WRAP_, TAG)(x)

static void multiply(const matmul_simple_params_t* p, const element_t* a, const element_t* b,
                     element_t* c, int64_t rows, int64_t columns) {
  element_t sum[BLOCK][COLUMNS] = {{0}}, row[COLUMNS];
  for (int64_t i = 0; i < p->k; i++) {
    const element_t* from = b + i * p->b_row;
    for (int64_t j = 0; j < columns; j++)
      row[j] = from[j * p->b_column];
    for (int64_t j = columns; j < COLUMNS; j++)
      row[j] = 0;
    for (int64_t r = 0; r < rows; r++) {
      element_t x = a[r * p->a_row + i * p->a_column];
      for (int64_t j = 0; j < COLUMNS; j++)
        sum[r][j] = (element_t)(WRAP(sum[r][j]) + WRAP(x) * WRAP(row[j]));
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t j = 0; j < columns; j++)
      c[r * p->c_row + j] = sum[r][j];
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const matmul_simple_params_t* p = (const matmul_simple_params_t*)dispatch->params;
  int64_t column = (int64_t)workgroup->workgroup_id[0] * COLUMNS,
          columns = min_i64(COLUMNS, p->n - column);
  int64_t first = (int64_t)workgroup->workgroup_id[1] * ROWS, end = min_i64(first + ROWS, p->m);
  int64_t at = workgroup->workgroup_id[2];
  if (columns <= 0 || at >= p->batch0 * p->batch1 * p->batch2)
    return KERNEL_OK;
  int64_t i2 = at % p->batch2, i1 = at / p->batch2 % p->batch1, i0 = at / p->batch2 / p->batch1;
  const element_t* a = p->a + i0 * p->a0 + i1 * p->a1 + i2 * p->a2;
  const element_t* b = p->b + i0 * p->b0 + i1 * p->b1 + i2 * p->b2 + column * p->b_column;
  element_t* c = p->c + i0 * p->c0 + i1 * p->c1 + i2 * p->c2 + column;
  for (int64_t row = first; row < end; row += BLOCK) {
    multiply(p, a + row * p->a_row, b, c + row * p->c_row, min_i64(BLOCK, end - row), columns);
  }
  return KERNEL_OK;
}
