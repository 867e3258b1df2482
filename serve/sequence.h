/* serve/sequence.h - what the scheduler knows of a sequence. Its tokens chase one another:
 *
 *   0 ... computed ... known ... known + pending
 *
 * `known` tokens have values. `pending` more were sampled by steps in flight. Keys and values of
 * the first `computed` are written, or will be by steps in flight. Behind the known ones there may
 * be `drafts`, guesses that a step in flight computes too: then `computed` is known + drafts, until
 * it is known how many of them were right.
 */
#ifndef ACCRT_SERVE_SEQUENCE_H_
#define ACCRT_SERVE_SEQUENCE_H_

#include "serve/guess.h"
#include "serve/prefix.h"

enum {
  ACCSV_NEW_SEQUENCE, /* not in the scheduler yet, or waiting for the prompt of its request */
  ACCSV_QUEUED,
  ACCSV_RUNNING,   /* has a row of the page table and pages */
  ACCSV_PREEMPTED, /* had them; waits before all that are queued */
  ACCSV_ENDED,
};

struct accsv_flow;

typedef struct accsv_sequence {
  /* What a step looks at while the sequence decodes: a line of the processor's cache. */
  uint32_t known, computed;
  uint32_t limit; /* most tokens, prompt and new ones */
  uint32_t n;     /* tokens in the step that is being scheduled */
  uint32_t blocks_held;
  uint32_t registered; /* blocks that are part of `chain` */
  uint8_t pending;
  uint8_t in_flight; /* steps in flight that it is in */
  bool scores;       /* tokens of its prompt are to be scored: asked < to_score */
  uint8_t drafts;    /* tokens behind the known ones that are guesses, in a step in flight */
  int32_t row;       /* of the page table; -1: none */
  uint8_t state;
  int8_t priority;
  bool history;        /* sampling needs all tokens known: it is not overlapped */
  bool unshared;       /* its chain has ended: no more blocks of it become entries */
  bool plain;          /* argmax without edits and without log probabilities */
  bool noted;          /* its request has started, and others of it may */
  bool unmapped : 1;   /* it has blocks that are not in the page table of the device yet */
  bool adapted : 1;    /* it has an adapter */
  bool embeds : 1;     /* it becomes an embedding: nothing of it is sampled */
  bool embeds_all : 1; /* and not the row of its last token alone is part of that */
  bool no_guess : 1;   /* its last tokens were nowhere before: there is nothing to guess */
  uint8_t guesses;     /* most drafts of a step; above 0 only with `history` and `lookback` */
  int32_t last_token;  /* tokens[known - 1] */
  int32_t last_block;  /* blocks[blocks_held - 1] */
  struct accsv_flow* flow;
  uint64_t key; /* names it in steps */

  int32_t* tokens;
  int32_t* blocks;
  accsv_chain_t chain;
  uint32_t place;         /* in the list of running ones */
  uint32_t blocks_mapped; /* in the page table of the device */
  uint32_t prompt_count;  /* tokens */
  /* Tokens of the prompt whose logits are samples, and how many of them steps have had. */
  uint32_t to_score, asked;
  accsv_lookback_t lookback;
  int32_t adapter; /* its place in the model, if it has one */
  uint64_t salt;
  accsv_salt_t* salt_text;
  uint64_t order;                         /* of its admission */
  struct accsv_sequence *next, *previous; /* in its flow, or among the preempted */
  uint32_t block_capacity;
  uint32_t preemptions, failures;
  uint64_t failed_step;   /* the last failure that it was charged for */
  uint32_t cached_tokens; /* of its first admission */
  bool admitted;          /* once at least */
} accsv_sequence_t;

static inline uint32_t accsv_pages(uint32_t tokens, uint32_t page_size) {
  return tokens / page_size + (tokens % page_size != 0);
}

#endif /* ACCRT_SERVE_SEQUENCE_H_ */
