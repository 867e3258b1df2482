/* copy.c - strided copies of up to eight axes: transpose, permute, slice, concat, expand.
 *
 * Instantiated with BYTES (1, 2, 4 or 8: the element) and ENTRY. Axes come in an order that
 * selection chose: the last one is contiguous in the output if any is, the one before it in the
 * input if the last one is not. Such a pair is copied in square tiles, so that both sides use whole
 * cache lines. x of the grid walks pieces of the first seven axes. */
#include "common.h"

#if BYTES == 1
typedef uint8_t element_t;
#elif BYTES == 2
typedef uint16_t element_t;
#elif BYTES == 4
typedef uint32_t element_t;
#else
typedef uint64_t element_t;
#endif

typedef struct {
  const element_t* x;
  element_t* out;
  int64_t d0, d1, d2, d3, d4, d5, d6, d7;
  int64_t x0, x1, x2, x3, x4, x5, x6, x7;
  int64_t y0, y1, y2, y3, y4, y5, y6, y7;
} copy_params_t;

#define TILE 16

static void copy_line(const copy_params_t* p, const element_t* x, element_t* out) {
  int64_t n = p->d7, x_step = p->x7, out_step = p->y7;
  if (x_step == 1 && out_step == 1) {
    __builtin_memcpy(out, x, (size_t)n * sizeof(element_t));
  } else if (out_step == 1) {
    INDEPENDENT for (int64_t i = 0; i < n; i++) out[i] = x[i * x_step];
  } else {
    INDEPENDENT for (int64_t i = 0; i < n; i++) out[i * out_step] = x[i * x_step];
  }
}

/* `rows` lines whose elements lie side by side in the input across lines. */
static void copy_tiles(const copy_params_t* p, const element_t* x, element_t* out, int64_t rows) {
  int64_t columns = p->d7, x_step = p->x7, out_row = p->y6;
  for (int64_t c = 0; c < columns; c += TILE) {
    int64_t wide = min_i64(TILE, columns - c);
    if (rows == TILE && wide == TILE) {
      for (int64_t r = 0; r < TILE; r++) {
        for (int64_t i = 0; i < TILE; i++)
          out[r * out_row + c + i] = x[(c + i) * x_step + r];
      }
      continue;
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t i = 0; i < wide; i++)
        out[r * out_row + c + i] = x[(c + i) * x_step + r];
    }
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const copy_params_t* p = (const copy_params_t*)dispatch->params;
  int tiles = p->x7 != 1 && p->x6 == 1 && p->y7 == 1 && p->d6 > 1;
  int64_t step = tiles ? TILE : 1, lines = ceildiv_i64(p->d6, step);
  int64_t total = p->d0 * p->d1 * p->d2 * p->d3 * p->d4 * p->d5 * lines;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  if (p->d7 <= 0)
    return KERNEL_OK;
  for (int64_t at = first; at < end; at++) {
    int64_t rest = at, i6 = rest % lines * step, x_at = i6 * p->x6, out_at = i6 * p->y6;
    rest /= lines;
#define WALK(AXIS)                                                                                 \
  if (p->d##AXIS != 1) {                                                                           \
    int64_t i = rest % p->d##AXIS;                                                                 \
    rest /= p->d##AXIS;                                                                            \
    x_at += i * p->x##AXIS;                                                                        \
    out_at += i * p->y##AXIS;                                                                      \
  }
    WALK(5) WALK(4) WALK(3) WALK(2) WALK(1) WALK(0) if (tiles) {
      copy_tiles(p, p->x + x_at, p->out + out_at, min_i64(TILE, p->d6 - i6));
    }
    else {
      copy_line(p, p->x + x_at, p->out + out_at);
    }
  }
  return KERNEL_OK;
}
