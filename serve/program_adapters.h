/* serve/program_adapters.h - the places for LoRA adapters that a step program has: states whose
 * first dimension counts them (docs/serving-model.md).
 */
#ifndef ACCRT_SERVE_PROGRAM_ADAPTERS_H_
#define ACCRT_SERVE_PROGRAM_ADAPTERS_H_

#include "accrt/accrt.h"
#include "accrt/serve.h"
#include "serve/base.h"

typedef struct accsv_factors {
  const char* name;       /* the bundle's */
  accrt_buffer_t* buffer; /* held */
  uint64_t offset_bytes;
  uint64_t row_bytes; /* of one adapter */
  bool given;         /* while an adapter is put into its place */
} accsv_factors_t;

typedef struct accsv_program_adapters {
  uint32_t places;
  uint32_t count; /* states */
  accsv_factors_t* states;
} accsv_program_adapters_t;

/* Finds the states of a session with so many places; 0: there are none. */
accrt_status_t accsv_program_adapters_init(accsv_program_adapters_t* adapters,
                                           accrt_session_t* session, accrt_bundle_t* bundle,
                                           uint32_t places);
void accsv_program_adapters_deinit(accsv_program_adapters_t* adapters);
/* As accrt_serve_model_functions_t says of set_adapter. */
accrt_status_t accsv_program_adapters_set(accsv_program_adapters_t* adapters,
                                          accrt_stream_t* stream, uint32_t place,
                                          const accrt_serve_adapter_tensor_t* tensors,
                                          uint32_t tensor_count);
/* Resets the session, and keeps what the places have. */
accrt_status_t accsv_program_adapters_reset(accsv_program_adapters_t* adapters,
                                            accrt_device_t* device, accrt_session_t* session);

#endif /* ACCRT_SERVE_PROGRAM_ADAPTERS_H_ */
