/* tools/accx/kernel.h - accx kernel check, in parts: the plan of what a kernel is given, the
 * process that runs it, and what that process notes.
 *
 * Every kernel runs in a process of its own, which writes notes to a pipe. So a kernel that
 * crashes, never ends or ends its process is a finding like others. What it prints goes nowhere,
 * and what it starts is ended. */
#ifndef ACCX_KERNEL_H_
#define ACCX_KERNEL_H_

#include "accx.h"

/* ---- Notes ---- */

typedef enum accx_kernel_what {
  ACCX_KERNEL_COUNT,       /* number: kernels of the pack */
  ACCX_KERNEL_NAME,        /* name: of the kernel that is checked */
  ACCX_KERNEL_RUN,         /* number: of the case, with: a run begins */
  ACCX_KERNEL_NOT_CHECKED, /* text: what has to be said first */
  ACCX_KERNEL_LOOSE,       /* its results differ, as it declares */
  ACCX_KERNEL_DONE,
  ACCX_KERNEL_ENDED, /* the process ends by itself; text: why it fails, in lines */
  /* Findings */
  ACCX_KERNEL_WRITES_OUTSIDE,
  ACCX_KERNEL_READS_OUTSIDE,
  ACCX_KERNEL_REACHES_OUTSIDE, /* the machine does not say whether it reads or writes */
  ACCX_KERNEL_WRITES_READ,
  ACCX_KERNEL_CHANGES, /* another result for the same arguments */
  ACCX_KERNEL_CHANGES_RECORDED,
  ACCX_KERNEL_DEPENDS_OUTSIDE,
  ACCX_KERNEL_LEAVES,  /* does not write all of an argument that is written */
  ACCX_KERNEL_REFUSES, /* text: the error */
  ACCX_KERNEL_CRASHES, /* number: the signal; 0, and text: the error of a device */
  ACCX_KERNEL_ENDLESS, /* number: seconds */
  ACCX_KERNEL_EXITS,   /* number: the exit code */
  ACCX_KERNEL_STARTS,  /* other processes */
  ACCX_KERNEL_SPOILS,  /* files of the process that runs it */
} accx_kernel_what_t;

/* One packet of the pipe. */
typedef struct accx_kernel_note {
  uint32_t what, number;
  int64_t byte;        /* from the argument's beginning */
  uint64_t size_bytes; /* of the argument */
  char name[256];      /* of the parameter */
  char with[256];      /* the values of sizes: "n=37" */
  char text[1024];
} accx_kernel_note_t;

/* A word for JSON: "writes_outside". */
const char* accx_kernel_word(uint32_t what);
/* "kernel NAME writes outside of y: byte 0 after its end, with n=37", for the subject "kernel
 * NAME". Lives until exit. */
const char* accx_kernel_line(const char* subject, const accx_kernel_note_t* note);

/* ---- The plan ---- */

typedef struct accx_kernel_value {
  const accrt_kernel_param_t* param;
  const char* type; /* "f32[rows, 8]" of --type; NULL: nothing was said */
  accrt_dtype_t dtype;
  uint32_t rank;
  const char* pattern; /* of --input; "random" */
  uint64_t seed;
  const char* set; /* of --set; NULL: nothing was said */
  bool sizes;      /* the size of something depends on it */
  /* In a case: */
  int64_t number; /* SYMBOL and whole SCALAR */
  uint64_t bits;  /* of a SCALAR */
  int64_t shape[ACCRT_KERNEL_MAX_RANK];
  uint64_t size_bytes;
  bool absent;
} accx_kernel_value_t;

#define ACCX_KERNEL_MAX_EXTRAS 16u

typedef struct accx_kernel_plan {
  const accx_args_t* args;
  accrt_kernel_info_t info;
  accx_kernel_value_t values[ACCRT_KERNEL_MAX_PARAMS + ACCX_KERNEL_MAX_EXTRAS];
  uint32_t value_count; /* parameters, then sizes of --set that are none */
  accrt_kernel_param_t extras[ACCX_KERNEL_MAX_EXTRAS];
  const char* unknown;   /* a name in a size that nothing has */
  const char* grid_text; /* of --grid, as a type's text; NULL: nothing was said */
  uint32_t grid[3];
  const char* needs;   /* what is missing, for a message; NULL: nothing */
  uint32_t plain;      /* cases with sizes above 0 */
  uint32_t case_count; /* these, then sizes of 0, then hostile arguments */
  bool zero, hostile;  /* of this case */
  char with[256];
} accx_kernel_plan_t;

/* Reads --type, --set, --input and --grid for a kernel. If something is missing, `needs` says what,
 * and nothing else is valid. */
int accx_kernel_plan(const accx_args_t* args, const accrt_kernel_info_t* info,
                     accx_kernel_plan_t* out_plan);
/* Sets values, sizes and the grid of one case. */
int accx_kernel_plan_case(accx_kernel_plan_t* plan, uint32_t index);
/* True for BUFFER, TENSOR and WORKSPACE. */
bool accx_kernel_is_memory(const accx_kernel_value_t* value);
/* The type in "read f32[n]", "write", "f32", with its access (ACCRT_KERNEL_ACCESS_*); "": none. */
const char* accx_kernel_declared_type(const char* text, uint32_t* out_access);
accrt_dtype_t accx_kernel_dtype(const char* name, size_t length);
/* Fails when an option names a parameter that no kernel of the pack has. */
int accx_kernel_check_names(const accx_args_t* args, accrt_kernel_pack_t* pack);

/* ---- The process ---- */

/* Checks the index-th kernel of the pack (with --kernel that one), from a case on, and writes notes
 * to `pipe`. Returns the exit code of the process: findings are a success. */
int accx_kernel_probe(const accx_args_t* args, uint32_t index, uint32_t first_case, int pipe);

#endif /* ACCX_KERNEL_H_ */
