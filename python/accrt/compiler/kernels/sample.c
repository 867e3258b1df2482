/* sample.c - the next token of each row of logits, and what is said of it.
 *
 * Instantiated with ENTRY. For each row, in this order: edits (logit > 0 ? logit / multiply :
 * logit * multiply, then + add), the mask, and then either the largest (temperature 0) or:
 * division by the temperature, top-k, top-p, min-p, and the largest of what is left plus Gumbel
 * noise. NaN counts as -inf. All that is cut off is the end of one order: larger first, then lower
 * id; so the cuts are one key (largest.h) and nothing is sorted. Of a row where every token is -inf
 * the token is -1.
 *
 * Noise: -log(-log1p(-v)) with v = word * 2^-32 + 2^-33 of Philox4x32-10 (Salmon et al., Parallel
 * random numbers: as easy as 1, 2, 3; constants as published), key = the row's seed, counter = (id
 * / 4, position, 0, 0), word = id % 4.
 *
 * Logits are read and not written. log-probabilities, rank and the largest are of the logits as
 * they came. x of the grid walks groups of rows; each group has a part of the workspace. */
#define NAN_BITS 0xFF800000u
#include "largest.h"

typedef struct {
  const float* logits;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const uint32_t* seed;
  const int32_t* position;
  const int32_t* edit_starts;
  const int32_t* edit_tokens;
  const float* edit_multiply;
  const float* edit_add;
  const int32_t* mask_rows;
  const uint32_t* mask_bits;
  int32_t* token;
  float* logprob;
  int32_t* top_ids;
  float* top_logprobs;
  int32_t* rank;
  uint8_t* work;
  int64_t samples, vocab, row_step, edits, masks, top;
} sample_params_t;

#define NOISE_LIMIT 23.0f /* no noise is larger: v is at least 2^-33 */
#define INFINITY_ORDER 0xFF800000u
#define MINUS_INFINITY_ORDER 0x007FFFFFu

typedef struct {
  const sample_params_t* p;
  const accrt_kernel_workgroup_t* workgroup;
  int64_t row;
  const float* raw;
  float* wide;          /* the edited row; later divided by the temperature, the largest at 0 */
  uint32_t* raw_maxima; /* of each block */
  uint32_t* maxima;
  uint64_t* keys;
  double* mass;
} row_t;

/* ---- The row as it came ---- */

static float log_of_sum(const row_t* r, float top) {
  double sum = 0.0;
  for (int64_t at = 0; at < r->p->vocab; at += BLOCK) {
    int64_t count = min_i64(BLOCK, r->p->vocab - at);
    float e[BLOCK], lanes[16] = {0};
    for (int64_t i = count; i < BLOCK; i++)
      e[i] = 0.0f;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
      float x = r->raw[at + i] - top;
      e[i] = x != x ? 0.0f : m_exp_nonpositive(x);
    }
    for (int i = 0; i < BLOCK; i += 16) {
      for (int j = 0; j < 16; j++)
        lanes[j] += e[i + j];
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int j = 0; j < width; j++)
        lanes[j] += lanes[j + width];
    }
    sum += (double)lanes[0];
  }
  return sum > 0.0 ? m_log((float)sum) : 0.0f;
}

static int64_t count_at_least(const row_t* r, uint32_t least) {
  int64_t count = 0;
  for (int64_t at = 0; at < r->p->vocab; at += BLOCK) {
    if (r->raw_maxima[at / BLOCK] < least)
      continue;
    int64_t end = min_i64(r->p->vocab, at + BLOCK);
    int32_t some = 0;
    for (int64_t i = at; i < end; i++)
      some += order_f32(r->raw[i]) >= least;
    count += some;
  }
  return count;
}

/* What is said of the row as it came, and of the token in it. */
static void report(const row_t* r, int64_t token, uint32_t top) {
  const sample_params_t* p = r->p;
  float largest = unorder_f32(top), below = log_of_sum(r, largest);
  p->token[r->row] = (int32_t)token;
  p->logprob[r->row] = token < 0 ? NEGATIVE_INFINITY : r->raw[token] - largest - below;
  p->rank[r->row] = token < 0 ? -1 : (int32_t)count_at_least(r, order_f32(r->raw[token]));
  int64_t count = min_i64(p->top, p->vocab);
  if (count > 0)
    top_keys(r->raw, p->vocab, count, r->raw_maxima, r->keys, r->mass);
  for (int64_t i = 0; i < p->top; i++) {
    float x = i < count ? unorder_f32(order_of(r->keys[i])) : NEGATIVE_INFINITY;
    p->top_ids[r->row * p->top + i] = i < count ? (int32_t)id_of(r->keys[i]) : -1;
    p->top_logprobs[r->row * p->top + i] = x == NEGATIVE_INFINITY ? x : x - largest - below;
  }
}

/* ---- Edits and masks ---- */

static int32_t edit(const row_t* r, int64_t first, int64_t end) {
  const sample_params_t* p = r->p;
  for (int64_t e = first; e < end; e++) {
    int64_t id = p->edit_tokens[e];
    if (UNLIKELY(id < 0 || id >= p->vocab)) {
      fail_message(r->workgroup, "an edit of token %, which is outside a vocabulary of %", id,
                   p->vocab);
      return KERNEL_ERROR_INDEX;
    }
    float x = r->wide[id], by = p->edit_multiply[e];
    r->wide[id] = (x > 0.0f ? x / by : x * by) + p->edit_add[e];
  }
  return KERNEL_OK;
}

static void mask(const row_t* r, const uint32_t* bits) {
  for (int64_t at = 0; at < r->p->vocab; at += 32) {
    uint32_t word = bits[at / 32];
    if (word == 0xFFFFFFFFu)
      continue;
    int64_t count = min_i64(32, r->p->vocab - at);
    for (int64_t i = 0; i < count; i++)
      r->wide[at + i] = (word >> i & 1u) ? r->wide[at + i] : NEGATIVE_INFINITY;
  }
}

/* The row to choose from, with its maxima; `*changed` 0: it is the one that came. */
static int32_t prepare(row_t* r, uint32_t* top, int* changed) {
  const sample_params_t* p = r->p;
  int64_t first = p->edit_starts[r->row], end = p->edit_starts[r->row + 1];
  int64_t masked = p->mask_rows[r->row];
  if (UNLIKELY(first < 0 || end < first || end > p->edits)) {
    fail_message(r->workgroup, "edits of a row begin at % and end at %: edit_starts must ascend",
                 first, end);
    return KERNEL_ERROR_INDEX;
  }
  if (UNLIKELY(masked < -1 || masked >= p->masks)) {
    fail_message(r->workgroup, "mask % is outside of % masks", masked, p->masks);
    return KERNEL_ERROR_INDEX;
  }
  *changed = first < end || masked >= 0;
  if (!*changed)
    return KERNEL_OK;
  __builtin_memcpy(r->wide, r->raw, (size_t)p->vocab * 4);
  int32_t code = edit(r, first, end);
  if (masked >= 0)
    mask(r, p->mask_bits + masked * ceildiv_i64(p->vocab, 32));
  *top = block_maxima(r->wide, p->vocab, r->maxima);
  return code;
}

/* ---- Choosing ---- */

static int64_t first_of(const float* x, const uint32_t* maxima, uint32_t order) {
  int64_t b = 0;
  while (maxima[b] != order)
    b++;
  int64_t i = b * BLOCK;
  while (order_f32(x[i]) != order)
    i++;
  return i;
}

/* (x - largest) / temperature: 0 and less, so that nothing overflows but to -inf. */
static void heat(const row_t* r, const float* from, const uint32_t* maxima, uint32_t top,
                 float temperature) {
  float largest = unorder_f32(top);
  int infinite = top == INFINITY_ORDER;
  INDEPENDENT for (int64_t i = 0; i < r->p->vocab; i++) {
    float x = (from[i] - largest) / temperature;
    x = x != x ? NEGATIVE_INFINITY : x;
    r->wide[i] = infinite && from[i] == largest ? 0.0f : x;
  }
  if (infinite) {
    block_maxima(r->wide, r->p->vocab, r->maxima);
    return;
  }
  for (int64_t b = 0; b * BLOCK < r->p->vocab; b++) {
    float x = (unorder_f32(maxima[b]) - largest) / temperature;
    r->maxima[b] = order_f32(x);
  }
}

/* Sums of exp of all, and of those that are at least some bounds. */
#define STEPS 10
#define SUM_LANES 16
static const float sum_bounds[STEPS] = {-1, -2, -3, -4, -6, -8, -10, -12, -16, -24};

static void flush_sums(float (*lanes)[SUM_LANES], double* sums) {
  for (int s = 0; s <= STEPS; s++) {
    for (int j = 0; j < SUM_LANES; j++) {
      sums[s] += (double)lanes[s][j];
      lanes[s][j] = 0.0f;
    }
  }
}

/* sums[STEPS] is that of all. */
static void sum_above(const row_t* r, double* sums) {
  float lanes[STEPS + 1][SUM_LANES] = {{0}};
  for (int s = 0; s <= STEPS; s++)
    sums[s] = 0.0;
  for (int64_t at = 0; at < r->p->vocab; at += BLOCK) {
    int64_t count = min_i64(BLOCK, r->p->vocab - at);
    float x[BLOCK], e[BLOCK], top = unorder_f32(r->maxima[at / BLOCK]);
    for (int64_t i = count; i < BLOCK; i++)
      x[i] = NEGATIVE_INFINITY;
    __builtin_memcpy(x, r->wide + at, (size_t)count * 4);
    INDEPENDENT for (int i = 0; i < BLOCK; i++) e[i] = m_exp_nonpositive(x[i]);
    for (int i = 0; i < BLOCK; i += SUM_LANES) {
      for (int j = 0; j < SUM_LANES; j++)
        lanes[STEPS][j] += e[i + j];
    }
    for (int s = STEPS - 1; s >= 0 && top >= sum_bounds[s]; s--) {
      for (int i = 0; i < BLOCK; i += SUM_LANES) {
        for (int j = 0; j < SUM_LANES; j++)
          lanes[s][j] += x[i + j] >= sum_bounds[s] ? e[i + j] : 0.0f;
      }
    }
    if (at % (16 * BLOCK) == 15 * BLOCK) /* short sums of floats, long ones of doubles */
      flush_sums(lanes, sums);
  }
  flush_sums(lanes, sums);
}

/* The least key that top-p of all tokens keeps. */
static uint64_t cut_top_p(const row_t* r, float top_p) {
  double sums[STEPS + 1];
  sum_above(r, sums);
  double target = (double)top_p * sums[STEPS];
  uint32_t least = MINUS_INFINITY_ORDER + 1;
  for (int s = STEPS - 1; s >= 0; s--) /* a little more, as these sums are rounded otherwise */
    least = sums[s] > target * 1.0001 ? order_f32(sum_bounds[s]) : least;
  int64_t count = collect(r->wide, r->p->vocab, r->maxima, least, r->keys);
  return cut(r->keys, count, target, 1, r->mass);
}

/* The same of the tokens down to key `least`. */
static uint64_t cut_some(const row_t* r, uint64_t least, float top_p) {
  int64_t count = collect(r->wide, r->p->vocab, r->maxima, order_of(least), r->keys), kept = 0;
  double total = 0.0;
  for (int64_t i = 0; i < count; i++) {
    uint64_t key = r->keys[i];
    r->keys[kept] = key;
    kept += key >= least;
    total += key >= least ? (double)m_exp_nonpositive(unorder_f32(order_of(key))) : 0.0;
  }
  return cut(r->keys, kept, (double)top_p * total, 1, r->mass);
}

/* The least key that may be chosen; -inf never may. */
static uint64_t least_key(const row_t* r) {
  const sample_params_t* p = r->p;
  int64_t top_k = p->top_k[r->row];
  float top_p = p->top_p[r->row], min_p = p->min_p[r->row];
  uint64_t least = (uint64_t)(MINUS_INFINITY_ORDER + 1) << 32;
  int few = top_k > 0 && top_k < p->vocab;
  if (few) {
    uint64_t key = kth_largest(r->wide, p->vocab, top_k, r->maxima, r->keys, r->mass);
    least = key > least ? key : least;
  }
  if (top_p < 1.0f) {
    uint64_t key = few ? cut_some(r, least, top_p) : cut_top_p(r, top_p);
    least = key > least ? key : least;
  }
  if (min_p > 0.0f) {
    float bound = m_log(min_p < 1.0f ? min_p : 1.0f);
    uint64_t key = (uint64_t)order_f32(bound) << 32;
    least = key > least ? key : least;
  }
  return least;
}

/* The four words of BLOCK / 4 counters from `first` on: words[4 * i + w]. */
static __attribute__((noinline)) void philox(uint32_t seed0, uint32_t seed1, uint32_t first,
                                             uint32_t position, uint32_t* words) {
  INDEPENDENT for (uint32_t i = 0; i < BLOCK / 4; i++) {
    uint32_t a = first + i, b = position, c = 0, d = 0, k0 = seed0, k1 = seed1;
    UNROLL_FULLY for (int round = 0; round < 10; round++) {
      uint64_t x = (uint64_t)0xD2511F53u * a, y = (uint64_t)0xCD9E8D57u * c;
      a = (uint32_t)(y >> 32) ^ b ^ k0;
      b = (uint32_t)y;
      c = (uint32_t)(x >> 32) ^ d ^ k1;
      d = (uint32_t)x;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    words[4 * i] = a;
    words[4 * i + 1] = b;
    words[4 * i + 2] = c;
    words[4 * i + 3] = d;
  }
}

/* -log(-log(1 - v)). What 1 - v loses is made good by a quotient: log(u) * v / (1 - u). Loops of
 * one logarithm each, so that compilers make vectors of them. */
static __attribute__((noinline)) void noise(const uint32_t* words, float* out) {
  float v[BLOCK], u[BLOCK];
  INDEPENDENT for (int i = 0; i < BLOCK; i++) {
    float x = (float)words[i] * 0x1p-32f + 0x1p-33f;
    v[i] = x > 0x1.fffffep-1f ? 0x1.fffffep-1f : x;
    u[i] = 1.0f - v[i];
  }
  INDEPENDENT for (int i = 0; i < BLOCK; i++) out[i] = m_log(u[i]);
  INDEPENDENT for (int i = 0; i < BLOCK; i++) {
    float lost = 1.0f - u[i];
    float wide = -out[i] * (v[i] / select_f32(lost == 0.0f, 1.0f, lost));
    u[i] = select_f32(lost == 0.0f, v[i], wide);
  }
  INDEPENDENT for (int i = 0; i < BLOCK; i++) out[i] = m_log(u[i]);
  for (int i = 0; i < BLOCK; i++)
    out[i] = -out[i];
}

static int64_t choose(const row_t* r, uint64_t least) {
  const sample_params_t* p = r->p;
  float best = NEGATIVE_INFINITY, out[BLOCK];
  uint32_t words[BLOCK], seed0 = p->seed[2 * r->row], seed1 = p->seed[2 * r->row + 1];
  uint32_t position = (uint32_t)p->position[r->row], order = order_of(least);
  int64_t token = -1;
  for (int64_t at = 0; at < p->vocab; at += BLOCK) {
    uint32_t top = r->maxima[at / BLOCK];
    if (top < order || unorder_f32(top) + NOISE_LIMIT < best)
      continue;
    philox(seed0, seed1, (uint32_t)(at / 4), position, words);
    noise(words, out);
    int64_t count = min_i64(BLOCK, p->vocab - at);
    const float* wide = r->wide + at;
    float highest = NEGATIVE_INFINITY;
    INDEPENDENT for (int64_t i = 0; i < count; i++) {
      float score = wide[i] + out[i];
      out[i] = order_f32(wide[i]) >= order ? score : NEGATIVE_INFINITY;
    }
    for (int64_t i = 0; i < count; i++)
      highest = out[i] > highest ? out[i] : highest;
    for (int64_t i = 0; i < count && (highest > best || token < 0); i++) {
      if ((out[i] > best || token < 0) && key_of(order_f32(wide[i]), at + i) >= least) {
        best = out[i];
        token = at + i;
      }
    }
  }
  return token;
}

static int32_t sample_row(row_t* r) {
  const sample_params_t* p = r->p;
  uint32_t raw_top = block_maxima(r->raw, p->vocab, r->raw_maxima), top = raw_top;
  int changed;
  int32_t code = prepare(r, &top, &changed);
  if (code != KERNEL_OK)
    return code;
  const float* from = changed ? r->wide : r->raw;
  const uint32_t* maxima = changed ? r->maxima : r->raw_maxima;
  float temperature = p->temperature[r->row];
  int64_t token = -1;
  if (top > MINUS_INFINITY_ORDER && !(temperature > 0.0f)) {
    token = first_of(from, maxima, top);
  } else if (top > MINUS_INFINITY_ORDER) {
    heat(r, from, maxima, top, temperature);
    token = choose(r, least_key(r));
  }
  report(r, token, raw_top);
  return KERNEL_OK;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const sample_params_t* p = (const sample_params_t*)dispatch->params;
  int64_t own = workgroup->workgroup_id[0], groups = dispatch->workgroup_count[0];
  int64_t first = part_begin(p->samples, own, groups),
          end = part_begin(p->samples, own + 1, groups);
  int64_t room = ceildiv_i64(p->vocab, BLOCK) * BLOCK;
  double mass[DIGIT_COUNT];
  row_t r = {.p = p, .workgroup = workgroup, .mass = mass};
  r.keys = (uint64_t*)(p->work + own * room * 16);
  r.wide = (float*)(r.keys + room);
  r.maxima = (uint32_t*)(r.wide + room);
  r.raw_maxima = r.maxima + room / BLOCK;
  for (r.row = first; r.row < end; r.row++) {
    r.raw = p->logits + r.row * p->row_step;
    int32_t code = sample_row(&r);
    if (code != KERNEL_OK)
      return code;
  }
  return KERNEL_OK;
}
