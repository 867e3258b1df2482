/* tools/accx/kernel.c - accx kernel check: whether the kernels of a pack keep what they declare.
 * Starts a process for each kernel, reads its notes, limits its time, and reports. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json_out.h"
#include "kernel.h"
#include "term.h"

#define DEFAULT_SECONDS 10
#define MOST_FINDINGS 32 /* of one kernel */

typedef struct checked {
  const char* name; /* NULL: the pack crashed before it said its kernels */
  const char* not_checked;
  bool loose; /* its results differ, as it declares */
  uint32_t cases;
  uint32_t finding_count;
  accx_kernel_note_t findings[MOST_FINDINGS];
} checked_t;

typedef struct checking {
  const accx_args_t* args;
  int64_t seconds; /* of one run; 0: no limit */
  uint32_t kernel_count;
  checked_t** kernels; /* one for each that was begun */
  uint32_t begun;
} checking_t;

/* ---- Notes ---- */

static bool is_finding(const accx_kernel_note_t* note) {
  return note->what > ACCX_KERNEL_ENDED && note->what <= ACCX_KERNEL_SPOILS;
}

static bool same_side(const accx_kernel_note_t* a, const accx_kernel_note_t* b) {
  return (a->byte < 0) == (b->byte < 0);
}

/* Keeps a finding, unless the kernel has it already with other sizes. */
static void keep(checked_t* kernel, const accx_kernel_note_t* note) {
  const char* word = accx_kernel_word(note->what);
  for (uint32_t i = 0; i < kernel->finding_count; ++i) {
    const accx_kernel_note_t* known = &kernel->findings[i];
    if (strcmp(accx_kernel_word(known->what), word) == 0 && same_side(known, note) &&
        strcmp(known->name, note->name) == 0)
      return;
  }
  if (kernel->finding_count < MOST_FINDINGS)
    kernel->findings[kernel->finding_count++] = *note;
}

/* One process: what its notes said so far. */
typedef struct child {
  pid_t id;
  int pipe, process;       /* -1: this system has no descriptors of processes */
  accx_kernel_note_t last; /* the run that began last */
  uint32_t first_case;     /* from which it was started */
  bool ran, done, ended, late;
  bool spoiled; /* the kernel wrote to the pipe */
} child_t;

/* What the process said of its failure, in lines. */
static bool print_failures(const char* text) {
  for (size_t length; *text; text += length) {
    length = strcspn(text, "\n");
    (void)accx_fail(ACCX_FAILED, "%.*s", (int)length, text);
    length += text[length] != '\0';
  }
  return true;
}

static void take_note(checking_t* checking, checked_t* kernel, child_t* child,
                      accx_kernel_note_t* note) {
  note->name[sizeof note->name - 1] = note->with[sizeof note->with - 1] = '\0';
  note->text[sizeof note->text - 1] = '\0'; /* the kernel could have written it */
  if (note->what == ACCX_KERNEL_COUNT)
    checking->kernel_count = note->number;
  else if (note->what == ACCX_KERNEL_NAME)
    kernel->name = accx_text("%s", note->name);
  else if (note->what == ACCX_KERNEL_NOT_CHECKED)
    kernel->not_checked = accx_text("%s", note->text);
  else if (note->what == ACCX_KERNEL_LOOSE)
    kernel->loose = true;
  else if (note->what == ACCX_KERNEL_DONE)
    child->done = true;
  else if (note->what == ACCX_KERNEL_ENDED && !child->ended)
    child->ended = print_failures(note->text);
  else if (is_finding(note))
    keep(kernel, note);
  if (note->what != ACCX_KERNEL_RUN)
    return;
  if (note->number + 1 > kernel->cases)
    kernel->cases = note->number + 1;
  child->last = *note;
  child->ran = true;
}

/* A pack is opened within the limit of a run. What a device's driver needs for its first work is
 * not the pack's. */
static bool is_limited(const checking_t* checking, const child_t* child) {
  return checking->seconds > 0 && (child->ran || !accx_args_has(checking->args, "device"));
}

/* Reads the next note. False: there are no more, one is not of this program, or the run takes too
 * long. Processes that the kernel left behind have the pipe, too, so its end is not waited for. */
static bool next_note(const checking_t* checking, child_t* child, accx_kernel_note_t* note) {
  struct pollfd ready[] = {{.fd = child->pipe, .events = POLLIN},
                           {.fd = child->process, .events = POLLIN}};
  const uint64_t begin = accx_now_ns(), limit = (uint64_t)checking->seconds * 1000000000u;
  const bool limited = is_limited(checking, child);
  for (;;) {
    const uint64_t passed = accx_now_ns() - begin;
    child->late = limited && passed >= limit;
    if (child->late)
      return false;
    const int count = poll(ready, 2, limited ? (int)((limit - passed) / 1000000u) + 1 : -1);
    if (count < 0 && errno != EINTR)
      return false;
    if (count <= 0)
      continue;
    const ssize_t size = ready[0].revents != 0 ? read(child->pipe, note, sizeof *note) : 0;
    child->spoiled = size > 0 && size != (ssize_t)sizeof *note;
    return size == (ssize_t)sizeof *note;
  }
}

/* ---- Processes ---- */

/* What the kernel prints is no part of the report, and reaches no terminal. */
static void silence(void) {
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && nowhere >= 0; ++fd)
    (void)dup2(nowhere, fd);
}

static _Noreturn void run_child(const checking_t* checking, uint32_t index, uint32_t first_case,
                                int pipe) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)setpgid(0, 0);
  silence();
  _exit(accx_kernel_probe(checking->args, index, first_case, pipe));
}

static int start(const checking_t* checking, uint32_t index, child_t* child) {
  int ends[2];
  /* O_DIRECT: in packets, so that a note is not mixed with what a kernel writes. Some sandboxes
   * (gVisor) have no such pipes. */
  if (pipe2(ends, O_CLOEXEC | O_DIRECT) != 0 && (errno != EINVAL || pipe2(ends, O_CLOEXEC) != 0))
    return accx_fail(ACCX_FAILED, "pipe: %s", strerror(errno));
  accx_progress_clear();
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a kernel leaves behind becomes a child of ours */
  child->id = fork();
  if (child->id == 0) {
    (void)close(ends[0]);
    run_child(checking, index, child->first_case, ends[1]);
  }
  const int error = errno;
  (void)close(ends[1]);
  child->pipe = ends[0];
  child->process = child->id > 0 ? (int)syscall(SYS_pidfd_open, child->id, 0) : -1;
  if (child->id > 0)
    return ACCX_OK;
  (void)close(ends[0]);
  return accx_fail(ACCX_FAILED, "fork: %s", strerror(error));
}

static int wait_for(const child_t* child) {
  int status = 0;
  while (waitpid(child->id, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/* Kills one child of this process that is left. False: there is none. */
static bool end_a_child(void) {
  char path[64], text[32] = "";
  (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t size = file >= 0 ? read(file, text, sizeof text - 1) : 0;
  if (file >= 0)
    (void)close(file);
  const pid_t id = size > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
  if (id <= 0 || kill(id, SIGKILL) != 0)
    return false;
  while (waitpid(id, NULL, 0) < 0 && errno == EINTR) {
  }
  return true;
}

/* Ends what the kernel started. True: there was something. */
static bool end_others(const child_t* child) {
  bool found = kill(-child->id, SIGKILL) == 0;
  while (end_a_child())
    found = true;
  while (waitpid(-1, NULL, WNOHANG) > 0)
    found = true;
  return found;
}

/* How the process has ended, as a finding where the kernel did it; else its exit code. */
static int take_end(const checking_t* checking, checked_t* kernel, const child_t* child,
                    int status) {
  accx_kernel_note_t note = {.what = ACCX_KERNEL_CRASHES};
  memcpy(note.with, child->last.with, sizeof note.with);
  if (child->late) {
    note.what = ACCX_KERNEL_ENDLESS;
    note.number = (uint32_t)checking->seconds;
  } else if (child->spoiled) {
    note.what = ACCX_KERNEL_SPOILS;
  } else if (WIFSIGNALED(status)) {
    note.number = (uint32_t)WTERMSIG(status);
  } else if (!child->ended) {
    note.what = ACCX_KERNEL_EXITS;
    note.number = (uint32_t)WEXITSTATUS(status);
  } else {
    const int code = WEXITSTATUS(status);
    return child->done || code == ACCX_DIFFERENT ? ACCX_OK : code ? code : ACCX_FAILED;
  }
  keep(kernel, &note);
  return ACCX_OK;
}

/* Runs one process for a kernel, from a case on. */
static int watch(checking_t* checking, uint32_t index, child_t* child) {
  checked_t* kernel = checking->kernels[index];
  accx_kernel_note_t note;
  int code = start(checking, index, child);
  if (code)
    return code;
  while (next_note(checking, child, &note))
    take_note(checking, kernel, child, &note);
  if (child->late || child->spoiled)
    (void)kill(child->id, SIGKILL);
  (void)close(child->pipe);
  if (child->process >= 0)
    (void)close(child->process);
  code = take_end(checking, kernel, child, wait_for(child));
  if (end_others(child)) {
    note = (accx_kernel_note_t){.what = ACCX_KERNEL_STARTS};
    memcpy(note.with, child->last.with, sizeof note.with);
    keep(kernel, &note);
  }
  return code;
}

/* Checks one kernel. A process that a case has ended is followed by another for the next cases. */
static int check_kernel(checking_t* checking, uint32_t index) {
  child_t child = {.first_case = 0};
  checking->kernels = realloc(checking->kernels, (index + 1) * sizeof *checking->kernels);
  if (!checking->kernels)
    return accx_fail(ACCX_FAILED, "out of memory");
  checking->kernels[index] = accx_alloc(1, sizeof **checking->kernels);
  checking->begun = index + 1;
  for (;;) {
    const uint32_t from = child.first_case;
    const int code = watch(checking, index, &child);
    const uint32_t next = child.ran ? child.last.number + 1 : 0;
    if (code || child.done || !child.ran || next <= from)
      return code;
    child = (child_t){.first_case = next};
  }
}

/* ---- The report ---- */

static const char* summary(const checked_t* kernel) {
  if (kernel->not_checked)
    return accx_text("not checked: %s", kernel->not_checked);
  if (kernel->finding_count > 0)
    return accx_text("%u finding%s", kernel->finding_count, kernel->finding_count == 1 ? "" : "s");
  return accx_text("ok, %u case%s%s", kernel->cases, kernel->cases == 1 ? "" : "s",
                   kernel->loose ? ", not deterministic, as it declares" : "");
}

static const char* finding_line(const checking_t* checking, const checked_t* kernel,
                                const accx_kernel_note_t* note) {
  const char* subject = kernel->name ? accx_text("kernel %s", kernel->name)
                                     : accx_text("pack %s", checking->args->operands[1]);
  return accx_kernel_line(subject, note);
}

static void print_human(const checking_t* checking) {
  for (uint32_t i = 0; i < checking->begun; ++i) {
    const checked_t* kernel = checking->kernels[i];
    for (uint32_t f = 0; f < kernel->finding_count; ++f)
      fprintf(accx_out, "%s\n", accx_safe(finding_line(checking, kernel, &kernel->findings[f])));
    if (kernel->finding_count == 0)
      fprintf(accx_out, "kernel %s: %s\n", accx_safe(kernel->name), accx_safe(summary(kernel)));
  }
}

static void add_finding(struct json_object* array, const checking_t* checking,
                        const checked_t* kernel, const accx_kernel_note_t* note) {
  struct json_object* object = accx_json_append(array);
  accx_json_text(object, "what", accx_kernel_word(note->what));
  accx_json_text(object, "parameter", note->name[0] ? note->name : NULL);
  if (note->name[0]) {
    accx_json_i64(object, "byte", note->byte);
    accx_json_u64(object, "size_bytes", note->size_bytes);
  }
  if (note->what == ACCX_KERNEL_CRASHES && note->number > 0)
    accx_json_u64(object, "signal", note->number);
  accx_json_text(object, "with", note->with);
  accx_json_text(object, "text", finding_line(checking, kernel, note));
}

static void print_json(const checking_t* checking, bool good) {
  struct json_object* root = accx_json_object(NULL, NULL);
  accx_json_text(root, "pack", accx_safe(checking->args->operands[1]));
  accx_json_bool(root, "ok", good);
  struct json_object* array = accx_json_array(root, "kernels");
  for (uint32_t i = 0; i < checking->begun; ++i) {
    const checked_t* kernel = checking->kernels[i];
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", kernel->name);
    accx_json_bool(object, "checked", kernel->not_checked == NULL);
    accx_json_text(object, "needs", kernel->not_checked);
    accx_json_bool(object, "same_results", !kernel->loose);
    accx_json_u64(object, "cases", kernel->cases);
    struct json_object* findings = accx_json_array(object, "findings");
    for (uint32_t f = 0; f < kernel->finding_count; ++f)
      add_finding(findings, checking, kernel, &kernel->findings[f]);
  }
  accx_json_print(root);
}

/* ---- The verb ---- */

/* Nothing was checked: a mistake of the command line. */
static int nothing_checked(const checking_t* checking) {
  for (uint32_t i = 0; i < checking->begun; ++i) {
    if (!checking->kernels[i]->not_checked)
      return ACCX_OK;
  }
  return accx_fail(ACCX_USAGE, "kernel %s: %s", checking->kernels[0]->name,
                   checking->kernels[0]->not_checked);
}

static int report(const checking_t* checking) {
  bool good = true;
  for (uint32_t i = 0; i < checking->begun; ++i)
    good = good && !checking->kernels[i]->not_checked && checking->kernels[i]->finding_count == 0;
  if (accx_args_has(checking->args, "json"))
    print_json(checking, good);
  else
    print_human(checking);
  return good ? ACCX_OK : ACCX_DIFFERENT;
}

static int run_kernel(const accx_args_t* args) {
  checking_t checking = {.args = args, .seconds = DEFAULT_SECONDS, .kernel_count = 1};
  if (strcmp(args->operands[0], "check") != 0)
    return accx_fail(ACCX_USAGE, "'%s' cannot be done with kernels: accx kernel check PACK",
                     args->operands[0]);
  if (args->operand_count != 2)
    return accx_fail(ACCX_USAGE, "say of which pack: accx kernel check PACK");
  int code = accx_args_seconds(args, "seconds", 86400, &checking.seconds);
  for (uint32_t i = 0; i < checking.kernel_count && !code; ++i) {
    accx_progress("checking kernel %u of %u ...", i + 1, checking.kernel_count);
    code = check_kernel(&checking, i);
  }
  if (!code)
    code = nothing_checked(&checking);
  if (!code)
    code = report(&checking);
  for (uint32_t i = 0; i < checking.begun; ++i)
    free(checking.kernels[i]);
  free(checking.kernels);
  return code;
}

static const accx_option_t options[] = {
    {"kernel", "NAME", false, "check only this kernel"},
    {"type", "NAME=TYPE", true, "what a parameter holds: x=f32[rows, 4 * columns], scale=f32"},
    {"grid", "SIZES", false, "how many workgroups: 'ceildiv(n, 256)', 'rows, heads'"},
    {"set", "NAME=VALUES", true, "a size or number, or several, for one case each: n=1,37,4096"},
    {"input", "NAME=WORD", true, "contents: zeros, ones, arange or random[:SEED]"},
    {"seconds", "SECONDS", false, "end a run that takes longer (10); inf: no limit"},
    {"device", "NAME", false, "the device (host; see accx devices)"},
    {"param", "NAME=ACCESS TYPE", true, "a parameter of a GPU's kernel, in order: 'x=read f32[n]'"},
    {"block", "THREADS", false, "for a GPU: threads of a workgroup, 256 or 16,16"},
    {"shared", "BYTES", false, "for a GPU: dynamic shared memory of the kernel (0)"},
    {"threads", "N", false, "threads of the host driver (host.threads)"},
    {"option", "KEY=VALUE", true, "a driver's option"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_kernel = {
    .name = "kernel",
    .operands = "check PACK",
    .min_operands = 2,
    .max_operands = 2,
    .summary = "checks that the kernels of a pack keep what they declare",
    .details =
        "Runs each kernel in a process of its own, with arguments between red zones and at the "
        "edge of pages\n"
        "that nothing may touch: writes and reads outside of arguments, writes to an argument that "
        "is read,\n"
        "other results from a second run or from a recorded list, arguments that are not written "
        "as a whole,\n"
        "crashes, runs without an end. Sizes are 1, odd and large, then 0; --set chooses others. "
        "A pack does\n"
        "not say how large memory is and how many workgroups there are: --type and --grid do, in "
        "the names of\n"
        "the kernel's sizes (docs/custom-kernels.md). One line for each finding; with any, the "
        "exit code is 5.\n"
        "\n"
        "Examples:\n"
        "  accx kernel check relu.so --type 'x=f32[n]' --type 'y=f32[n]' --grid 'ceildiv(n, "
        "4096)'\n"
        "  accx kernel check pack.so --kernel gather --type 'index=i32[n]' --input index=zeros "
        "...\n"
        "  accx kernel check relu.cubin --device cuda:0 --kernel relu --block 256 --param 'x=read "
        "f32[n]' ...\n",
    .options = options,
    .run = run_kernel,
    .operand_kind = ACCX_READS,
    .choices = "check",
};
