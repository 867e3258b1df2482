/* serve/model.h - a model's handle: the functions that compute steps, and what it said of itself.
 */
#ifndef ACCRT_SERVE_MODEL_H_
#define ACCRT_SERVE_MODEL_H_

#include <stdatomic.h>

#include "accrt/serve.h"
#include "serve/base.h"

struct accrt_serve_model {
  atomic_uint refs;
  atomic_bool taken; /* by an engine */
  accrt_serve_model_functions_t functions;
  accrt_serve_model_info_t info;
  accrt_instance_t* instance; /* of its program, which keeps it; NULL: it has none */
};

#endif /* ACCRT_SERVE_MODEL_H_ */
