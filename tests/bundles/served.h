/* tests/bundles/served.h - a step program (docs/serving-model.md) that attends with a hash: kernels of served.cu on GPUs, and their
 * twins on the CPU (tests/fakecuda/served_twins.c). What comes of a token depends on every token before it, through the page table, and
 * on each of its sampling parameters, so a step that gets the wrong memory gives another token.
 */
#ifndef TESTS_BUNDLES_SERVED_H_
#define TESTS_BUNDLES_SERVED_H_

#include <stdint.h>

#ifndef SERVED_FUNCTION
#define SERVED_FUNCTION static
#endif

#define SERVED_VOCAB 64
#define SERVED_PAGE 16
#define SERVED_TOP 20

typedef struct served_update {
  const int32_t *change_slots, *change_pages;
  int32_t* page_table;
  int64_t changes;
} served_update_t;

typedef struct served_copy {
  const int32_t *copy_from, *copy_to;
  int32_t* keys;
  int64_t changes;
} served_copy_t;

typedef struct served_step {
  const int32_t *token_ids, *positions, *slots, *token_rows, *row_starts, *row_ids, *kv_lengths,
      *change_slots, *change_pages, *sample_tokens;
  float* logits;
  int32_t *keys, *page_table;
  const int32_t* last_token;
  int64_t tokens, rows, samples, changes, table_pages;
} served_step_t;

typedef struct served_greedy {
  const float* logits;
  const int32_t* sample_rows;
  int32_t *token, *last_token;
  int64_t samples;
} served_greedy_t;

typedef struct served_sample {
  const float* logits;
  const int32_t* sample_rows;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const uint32_t* seed;
  const int32_t *position, *edit_starts, *edit_tokens;
  const float *edit_multiply, *edit_add;
  const int32_t* mask_rows;
  const uint32_t* mask_bits;
  int32_t* token;
  float* logprob;
  int32_t* top_ids;
  float* top_logprobs;
  int32_t *rank, *last_token;
  int64_t samples;
} served_sample_t;

SERVED_FUNCTION uint32_t served_mix(uint32_t x) {
  x ^= x >> 15;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ x >> 16;
}

SERVED_FUNCTION int32_t served_update_pages(served_update_t p) {
  for (int64_t i = 0; i < p.changes; ++i) {
    if (p.change_slots[i] >= 0)
      p.page_table[p.change_slots[i]] = p.change_pages[i];
  }
  return 0;
}

SERVED_FUNCTION int32_t served_copy_rows(served_copy_t p) {
  for (int64_t i = 0; i < p.changes; ++i) {
    if (p.copy_to[i] >= 0)
      p.keys[p.copy_to[i]] = p.keys[p.copy_from[i]];
  }
  return 0;
}

SERVED_FUNCTION uint32_t served_history(const served_step_t* p, int32_t token) {
  const int32_t* pages = p->page_table + p->row_ids[p->token_rows[token]] * p->table_pages;
  uint32_t hash = 17;
  for (int32_t i = 0; i <= p->positions[token]; ++i)
    hash =
        hash * 31u + (uint32_t)p->keys[pages[i / SERVED_PAGE] * SERVED_PAGE + i % SERVED_PAGE] + 1u;
  return served_mix(hash);
}

/* Not 0: what the step says of its rows does not fit together. */
SERVED_FUNCTION int32_t served_forward(served_step_t p) {
  const served_update_t update = {p.change_slots, p.change_pages, p.page_table, p.changes};
  served_update_pages(update);
  for (int64_t t = 0; t < p.row_starts[p.rows]; ++t) {
    const int32_t row = p.token_rows[t];
    if (t < p.row_starts[row] || t >= p.row_starts[row + 1] ||
        p.positions[t] != p.kv_lengths[row] - (p.row_starts[row + 1] - t))
      return 1;
    const int32_t last = p.last_token[p.row_ids[row]];
    p.keys[p.slots[t]] = p.token_ids[t] < 0 ? last : p.token_ids[t];
  }
  for (int64_t t = p.row_starts[p.rows]; t < p.tokens; ++t) {
    if (p.slots[t] != -1)
      return 1;
  }
  for (int64_t s = 0; s < p.samples; ++s) {
    const uint32_t hash = served_history(&p, p.sample_tokens[s]);
    for (uint32_t v = 0; v < SERVED_VOCAB; ++v)
      p.logits[s * SERVED_VOCAB + v] = (float)(served_mix(hash ^ v * 2654435761u) & 255u) / 16.0f;
  }
  return 0;
}

SERVED_FUNCTION int32_t served_argmax(const float* x) {
  int32_t best = 0;
  for (int32_t v = 1; v < SERVED_VOCAB; ++v) {
    if (x[v] > x[best])
      best = v;
  }
  return best;
}

SERVED_FUNCTION int32_t served_take_greedy(served_greedy_t p) {
  for (int64_t s = 0; s < p.samples; ++s) {
    p.token[s] = served_argmax(p.logits + s * SERVED_VOCAB);
    if (p.sample_rows[s] >= 0)
      p.last_token[p.sample_rows[s]] = p.token[s];
  }
  return 0;
}

/* Scores after edits and mask, and noise that every parameter has a part in. */
SERVED_FUNCTION void served_scores(const served_sample_t* p, int64_t s, float* scores) {
  for (int32_t v = 0; v < SERVED_VOCAB; ++v)
    scores[v] = p->logits[s * SERVED_VOCAB + v];
  for (int32_t e = p->edit_starts[s]; e < p->edit_starts[s + 1]; ++e) {
    float* x = scores + p->edit_tokens[e];
    *x = (*x > 0 ? *x / p->edit_multiply[e] : *x * p->edit_multiply[e]) + p->edit_add[e];
  }
  for (int32_t v = 0; v < SERVED_VOCAB; ++v) {
    const int32_t mask = p->mask_rows[s];
    if (mask >= 0 && (p->mask_bits[mask * (SERVED_VOCAB / 32) + v / 32] >> v % 32 & 1u) == 0)
      scores[v] = -1e30f;
    if (p->temperature[s] == 0)
      continue;
    const uint32_t settings = (uint32_t)p->top_k[s] + 1000u * (uint32_t)(p->top_p[s] * 100) +
                              7000u * (uint32_t)(p->min_p[s] * 100);
    const uint32_t noise = served_mix(p->seed[2 * s] + 7u * p->seed[2 * s + 1] +
                                      13u * (uint32_t)p->position[s] + settings);
    scores[v] = scores[v] / p->temperature[s] +
                (float)(served_mix(noise ^ (uint32_t)v * 2654435761u) & 255u) / 16.0f;
  }
}

SERVED_FUNCTION int32_t served_take_sample(served_sample_t p, float (*exponential)(float),
                                           float (*logarithm)(float)) {
  for (int64_t s = 0; s < p.samples; ++s) {
    const float* row = p.logits + s * SERVED_VOCAB;
    float scores[SERVED_VOCAB], sum = 0;
    served_scores(&p, s, scores);
    const int32_t token = served_argmax(scores);
    for (int32_t v = 0; v < SERVED_VOCAB; ++v)
      sum += exponential(row[v]);
    const float log_sum = logarithm(sum);
    p.token[s] = token;
    p.logprob[s] = row[token] - log_sum;
    p.rank[s] = 1;
    if (p.sample_rows[s] >= 0)
      p.last_token[p.sample_rows[s]] = token;
    for (int32_t v = 0; v < SERVED_VOCAB; ++v) {
      int32_t before = 0;
      for (int32_t w = 0; w < SERVED_VOCAB; ++w)
        before += row[w] > row[v] || (row[w] == row[v] && w < v);
      p.rank[s] += row[v] > row[token];
      if (before >= SERVED_TOP)
        continue;
      p.top_ids[s * SERVED_TOP + before] = v;
      p.top_logprobs[s * SERVED_TOP + before] = row[v] - log_sum;
    }
  }
  return 0;
}

#endif /* TESTS_BUNDLES_SERVED_H_ */
