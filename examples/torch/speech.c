/* examples/torch/speech.c - a speech model of transformers (Whisper's shape): one function encodes
 * the sound, another gives the next token of what was said so far. Both share their weights. Made
 * by export.py; docs/torch-to-c.md goes through it. */
#include "model.h"

enum { BINS = 16, FRAMES = 100, PLACES = 50, WIDTH = 64, WORDS = 300, MOST = 24, START = 1 };

static int64_t largest(const float* x, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    best = x[i] > x[best] ? i : best;
  return best;
}

int main(int argc, char** argv) {
  model_t model = model_open(argc, argv);
  accrt_call_t *encode, *decode;
  check(accrt_call_create(model.session, "encode", &encode));
  check(accrt_call_create(model.session, "decode", &decode));

  /* In the place of a spectrogram: numbers that export.py makes the same way. */
  static float sound[BINS * FRAMES], heard[PLACES * WIDTH], scores[WORDS];
  for (int i = 0; i < BINS * FRAMES; ++i)
    sound[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;

  set(encode, 0, ACCRT_DTYPE_F32, sound, 3, (int64_t[]){1, BINS, FRAMES});
  set(encode, 1, ACCRT_DTYPE_F32, heard, 3, (int64_t[]){1, PLACES, WIDTH});
  check(accrt_call_run(encode, ACCRT_TIMEOUT_INFINITE));

  /* Each step reads all tokens so far: their number is a dimension that varies. */
  int64_t tokens[MOST] = {START};
  set(decode, 1, ACCRT_DTYPE_F32, heard, 3, (int64_t[]){1, PLACES, WIDTH});
  set(decode, 2, ACCRT_DTYPE_F32, scores, 2, (int64_t[]){1, WORDS});
  for (int64_t count = 1; count < MOST; ++count) {
    set(decode, 0, ACCRT_DTYPE_I64, tokens, 2, (int64_t[]){1, count});
    check(accrt_call_run(decode, ACCRT_TIMEOUT_INFINITE));
    tokens[count] = largest(scores, WORDS);
    printf("%s%lld", count > 1 ? " " : "", (long long)tokens[count]);
  }
  printf("\n");
  accrt_call_release(decode);
  accrt_call_release(encode);
  model_close(&model);
  return 0;
}
