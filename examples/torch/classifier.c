/* examples/torch/classifier.c - a text classifier of transformers (DistilBERT's shape), run on two
 * texts of different lengths. Made by export.py; docs/torch-to-c.md goes through it. */
#include "model.h"

#include <math.h>

enum { TEXTS = 2, TOKENS = 12, LABELS = 3 };

int main(int argc, char** argv) {
  model_t model = model_open(argc, argv);
  accrt_call_t* call;
  check(accrt_call_create(model.session, "forward", &call));

  /* What a tokenizer gives: ids of tokens, and a mask that is 0 where there is padding. */
  int64_t ids[TEXTS][TOKENS], mask[TEXTS][TOKENS];
  const int lengths[TEXTS] = {TOKENS, 7};
  for (int i = 0; i < TEXTS; ++i) {
    for (int j = 0; j < TOKENS; ++j) {
      mask[i][j] = j < lengths[i];
      ids[i][j] = mask[i][j] ? 3 + (i * 31 + j * 7) % 990 : 0;
    }
  }
  float logits[TEXTS][LABELS];

  /* The export lets both sizes vary: any number of texts, of any length up to 128. */
  set(call, 0, ACCRT_DTYPE_I64, ids, 2, (int64_t[]){TEXTS, TOKENS});
  set(call, 1, ACCRT_DTYPE_I64, mask, 2, (int64_t[]){TEXTS, TOKENS});
  set(call, 2, ACCRT_DTYPE_F32, logits, 2, (int64_t[]){TEXTS, LABELS});
  check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));

  for (int i = 0; i < TEXTS; ++i) {
    float total = 0;
    for (int k = 0; k < LABELS; ++k)
      total += expf(logits[i][k]);
    printf("text %d:", i);
    for (int k = 0; k < LABELS; ++k)
      printf(" %.6f", (double)(expf(logits[i][k]) / total));
    printf("\n");
  }
  accrt_call_release(call);
  model_close(&model);
  return 0;
}
