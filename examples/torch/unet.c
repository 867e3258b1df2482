/* examples/torch/unet.c - a small UNet says for each pixel of a picture which of two classes it is
 * of. Made by export.py; docs/torch-to-c.md goes through it. */
#include "model.h"

enum { CHANNELS = 3, SIDE = 32, CLASSES = 2 };

int main(int argc, char** argv) {
  model_t model = model_open(argc, argv);
  accrt_call_t* call;
  check(accrt_call_create(model.session, "forward", &call));

  static float picture[CHANNELS * SIDE * SIDE], scores[CLASSES][SIDE][SIDE];
  for (int i = 0; i < CHANNELS * SIDE * SIDE; ++i) /* export.py makes the same picture */
    picture[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
  set(call, 0, ACCRT_DTYPE_F32, picture, 4, (int64_t[]){1, CHANNELS, SIDE, SIDE});
  set(call, 1, ACCRT_DTYPE_F32, scores, 4, (int64_t[]){1, CLASSES, SIDE, SIDE});
  check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));

  for (int y = 0; y < SIDE; ++y) {
    for (int x = 0; x < SIDE; ++x)
      putchar(scores[1][y][x] > scores[0][y][x] ? '#' : '.');
    printf(" %.6f\n", (double)scores[1][y][y]);
  }
  accrt_call_release(call);
  model_close(&model);
  return 0;
}
