/* examples/torch/diffusion.c - a diffusion transformer turns noise into a picture: the program has
 * the loop, the model says in each step where to go. Made by export.py; docs/torch-to-c.md goes
 * through it. */
#include "model.h"

enum { CHANNELS = 4, SIDE = 16, COUNT = CHANNELS * SIDE * SIDE, STEPS = 20 };

int main(int argc, char** argv) {
  model_t model = model_open(argc, argv);
  accrt_call_t* call;
  check(accrt_call_create(model.session, "forward", &call));

  static float picture[COUNT], velocity[COUNT];
  for (int i = 0; i < COUNT; ++i) /* export.py makes the same "noise" */
    picture[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
  float time = 1;
  int64_t label = 7;

  /* The arguments are bound once: each run reads what lies there then. */
  set(call, 0, ACCRT_DTYPE_F32, picture, 4, (int64_t[]){1, CHANNELS, SIDE, SIDE});
  set(call, 1, ACCRT_DTYPE_F32, &time, 1, (int64_t[]){1});
  set(call, 2, ACCRT_DTYPE_I64, &label, 1, (int64_t[]){1});
  set(call, 3, ACCRT_DTYPE_F32, velocity, 4, (int64_t[]){1, CHANNELS, SIDE, SIDE});
  for (int step = 0; step < STEPS; ++step) {
    time = 1 - (float)step / STEPS;
    check(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));
    for (int i = 0; i < COUNT; ++i)
      picture[i] -= velocity[i] / STEPS;
  }
  for (int i = 0; i < COUNT; i += 64)
    printf("%.6f\n", (double)picture[i]);
  accrt_call_release(call);
  model_close(&model);
  return 0;
}
