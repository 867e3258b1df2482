/* tools/accx/job.h - one function of a bundle with its inputs, set up from the command line of
 * `run` or `bench`. */
#ifndef ACCX_JOB_H_
#define ACCX_JOB_H_

#include "accx.h"
#include "array.h"

#include "accrt/weights.h"

typedef struct accx_symbol {
  accrt_symbol_info_t info;
  bool known;
  int64_t value;
  const char* from; /* origin of the value, for messages */
} accx_symbol_t;

typedef struct accx_argument {
  accrt_argument_info_t info;
  const char* type; /* such as "f32[batch, 384]" */
  bool given;
  const char* source;     /* path or pattern as the user wrote it; NULL for results */
  const char* pattern;    /* for a generated input: "random", ...; otherwise NULL */
  uint64_t seed;          /* of "random" */
  int64_t scalar;         /* SCALAR inputs */
  accx_array_t array;     /* of tensor inputs; of results after accx_job_fetch */
  accrt_buffer_t* buffer; /* device memory if the device cannot use host memory */
} accx_argument_t;

typedef struct accx_job {
  const accx_args_t* args;
  const char* path;
  accrt_instance_t* instance;
  accrt_bundle_t* bundle;
  accrt_device_t* device;
  accrt_weights_t** weights; /* sources outside the bundle */
  uint32_t weight_count;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
  accrt_device_info_t device_info;
  uint32_t function;
  accrt_function_info_t function_info;
  accx_argument_t* arguments; /* inputs, then results */
  uint32_t argument_count;
  accx_symbol_t* symbols; /* all symbols of the bundle */
  uint32_t symbol_count;
  bool all_random;  /* the user gave no input, so all are random */
  uint64_t open_ns; /* time to open the bundle */
  uint64_t load_ns; /* time to create program and session */
} accx_job_t;

/* Prepares a call that can run. It checks the command line first, so that errors appear before code
 * is loaded. */
int accx_job_prepare(const accx_args_t* args, accx_job_t* out_job);
void accx_job_free(accx_job_t* job);
/* Prints notes about defaults that were used. Call it after a success. */
void accx_job_note_defaults(const accx_job_t* job);
/* Runs once and waits. */
int accx_job_run(accx_job_t* job);
/* Call it after a run. Gives the results storage of the tool, so that later runs allocate nothing.
 * Results cannot be fetched afterwards. */
int accx_job_keep_results(accx_job_t* job);
/* Call it after a run. Copies results and updated inputs to their arrays. */
int accx_job_fetch(accx_job_t* job);
bool accx_argument_is_output(const accx_argument_t* argument);

/* ---- symbols.c ---- */
int accx_job_read_symbols(accx_job_t* job);
/* --symbol and --scalar. */
int accx_job_bind_values(accx_job_t* job);
/* Sets the symbols that the sizes of a given array fix. */
int accx_job_bind_sizes(accx_job_t* job, const accx_argument_t* argument);
/* Fills in missing values: a scalar gets its symbol's value, a SESSION symbol its maximum. */
int accx_job_bind_defaults(accx_job_t* job);
/* Fails with a list of the values that are missing and needed. */
int accx_job_check_values(accx_job_t* job);
/* Sizes of a generated input. */
int accx_job_shape(accx_job_t* job, const accx_argument_t* argument, int64_t* out_shape);
/* Sizes of a result, without a run. */
int accx_job_result_shape(accx_job_t* job, const accx_argument_t* argument, int64_t* out_shape);
/* Symbols of one class, or (UINT32_MAX) all, that have a value. The caller frees the array. */
accrt_symbol_value_t* accx_job_symbol_values(const accx_job_t* job, uint32_t symbol_class,
                                             uint32_t* out_count);

/* ---- inputs.c ---- */
/* --input: finds the inputs, reads files. */
int accx_job_read_inputs(accx_job_t* job);
/* Makes the generated inputs. */
int accx_job_generate_inputs(accx_job_t* job);

/* ---- job_weights.c ---- */
/* --weights, --by-name, --rank, --degree. */
int accx_job_open_weights(accx_job_t* job, accrt_program_options_t* options);
/* --adapter. */
int accx_job_set_adapter(accx_job_t* job);

/* The options that run and bench have in common, for their tables. */
#define ACCX_JOB_OPTIONS                                                                           \
  {"function", "NAME", false, "the function to call; needed when the bundle has several"},         \
      {"input", "[NAME=]VALUE", true,                                                              \
       "FILE.npy, FILE.npz[:KEY], zeros, ones, arange or random[:SEED]"},                          \
      {"symbol", "NAME=VALUE", true, "a size, for generated inputs and for session memory"},       \
      {"scalar", "NAME=VALUE", true, "a scalar input"},                                            \
      {"device", "NAME", false, "the device (host; see accx devices)"},                            \
      {"threads", "N", false, "threads of the host driver (host.threads)"},                        \
      {"option", "KEY=VALUE", true, "a driver's option"},                                          \
      {"driver", "FILE.so", true, "load a driver from outside the library"},                       \
      {"variant", "ARCH", false, "use only kernel variants of this architecture"},                 \
      {"weights", "PATH", true,                                                                    \
       "a source of weights that the bundle does not contain, searched in order"},                 \
      {"by-name", NULL, false, "do not compare digests of these weights"},                         \
      {"rank", "N", false, "for a bundle with shards: the rank to run, below --degree"},           \
      {"degree", "N", false, "for a bundle with shards: the number of ranks"},                     \
      {"adapter", "PATH", false, "a LoRA adapter: a file, or PEFT's folder"},                      \
      {"trust", "signed|all|no-host-code", false,                                                  \
       "which machine code may run: signed by a trusted key (default), all, or none"},             \
      {"trust-keys", "PATHS", false, "public keys to trust instead of the user's (accx trust)"},   \
      {"secret-key", "FILE", false, "the key of encrypted weights"}, {                             \
    "allow-host-code", NULL, false, "the same as --trust all: trust the bundle like a program"     \
  }

#endif /* ACCX_JOB_H_ */
