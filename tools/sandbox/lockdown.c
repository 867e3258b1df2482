/* tools/sandbox/lockdown.c - resource limits, Landlock and seccomp by raw system calls: no library
 * of them is needed. What is on the list below is what the host driver needs once the instance is
 * made; all else ends the process, after a report of what was asked for. */
#define _GNU_SOURCE
#include "lockdown.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "wire.h"

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#define RESULT_OF(context) ((context)->uc_mcontext.gregs[REG_RAX])
#define ARGUMENT_OF(context, n)                                                                    \
  ((unsigned long)(context)->uc_mcontext.gregs[(n) == 0 ? REG_RDI : (n) == 1 ? REG_RSI : REG_RDX])
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#define RESULT_OF(context) ((context)->uc_mcontext.regs[0])
#define ARGUMENT_OF(context, n) ((unsigned long)(context)->uc_mcontext.regs[n])
#else
#error "accrt-sandbox knows the system calls of x86-64 and aarch64"
#endif

/* ---- The report of a refused call ---- */

static const struct {
  long number;
  const char* what;
} classes[] = {
#ifdef SYS_open
    {SYS_open, "files: open"},
    {SYS_creat, "files: creat"},
    {SYS_stat, "files: stat"},
    {SYS_lstat, "files: lstat"},
    {SYS_access, "files: access"},
    {SYS_unlink, "files: unlink"},
    {SYS_rename, "files: rename"},
    {SYS_mkdir, "files: mkdir"},
    {SYS_readlink, "files: readlink"},
    {SYS_fork, "programs: fork"},
    {SYS_vfork, "programs: vfork"},
#endif
    {SYS_openat, "files: openat"},
#ifdef SYS_openat2
    {SYS_openat2, "files: openat2"},
#endif
    {SYS_newfstatat, "files: newfstatat"},
    {SYS_statx, "files: statx"},
    {SYS_unlinkat, "files: unlinkat"},
    {SYS_renameat2, "files: renameat2"},
    {SYS_mkdirat, "files: mkdirat"},
    {SYS_linkat, "files: linkat"},
    {SYS_symlinkat, "files: symlinkat"},
    {SYS_readlinkat, "files: readlinkat"},
    {SYS_mount, "files: mount"},
    {SYS_chdir, "files: chdir"},
    {SYS_socket, "the network: socket"},
    {SYS_socketpair, "the network: socketpair"},
    {SYS_connect, "the network: connect"},
    {SYS_bind, "the network: bind"},
    {SYS_sendto, "the network: sendto"},
    {SYS_sendmsg, "the network: sendmsg"},
    {SYS_recvmsg, "the network: recvmsg"},
    {SYS_execve, "other programs: execve"},
    {SYS_execveat, "other programs: execveat"},
    {SYS_clone, "other programs: clone"},
    {SYS_kill, "signals: kill"},
    {SYS_tkill, "signals: tkill"},
    {SYS_tgkill, "signals: tgkill"},
    {SYS_rt_sigqueueinfo, "signals: rt_sigqueueinfo"},
    {SYS_ptrace, "other processes: ptrace"},
    {SYS_process_vm_readv, "other processes: process_vm_readv"},
    {SYS_process_vm_writev, "other processes: process_vm_writev"},
    {SYS_memfd_create, "memory past its limit: memfd_create"},
    {SYS_ftruncate, "files: ftruncate"},
    {SYS_ioctl, "devices: ioctl"},
    {SYS_bpf, "the kernel: bpf"},
    {SYS_prctl, "the kernel: prctl"},
#ifdef SYS_io_uring_setup
    {SYS_io_uring_setup, "the kernel: io_uring_setup"},
#endif
};

/* In a signal handler: nothing but this stack and write. */
static void report(int number) {
  char text[96];
  const char* what = "a system call";
  for (size_t i = 0; i < sizeof classes / sizeof classes[0]; ++i)
    what = classes[i].number == number ? classes[i].what : what;
  size_t length = strlen(what);
  memcpy(text, what, length);
  memcpy(text + length, " (", 2);
  length += 2;
  char digits[12];
  size_t count = 0;
  for (unsigned left = (unsigned)number; count == 0 || left != 0; left /= 10)
    digits[count++] = (char)('0' + left % 10);
  while (count > 0)
    text[length++] = digits[--count];
  text[length++] = ')';
  (void)!write(WIRE_REPORT_FD, text, length);
}

static void refused(int signal_number, siginfo_t* info, void* user) {
  ucontext_t* context = user;
  (void)signal_number;
  /* glibc asks for the facts of an open file by an empty path: answered here by the call that takes
   * no path. */
  if (info->si_syscall == SYS_newfstatat && ARGUMENT_OF(context, 1) != 0 &&
      *(const char*)ARGUMENT_OF(context, 1) == '\0') {
    const long result = syscall(SYS_fstat, ARGUMENT_OF(context, 0), ARGUMENT_OF(context, 2));
    RESULT_OF(context) = result == 0 ? 0 : -errno;
    return;
  }
  report(info->si_syscall);
  _exit(159); /* 128 + SIGSYS */
}

static int catch_refused(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = refused;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGSYS, &action, NULL);
}

/* The library's threads keep all signals out. This one they shall get: the kernel kills without a
 * report where it is blocked. The executable's function goes before libc's. */
int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  sigset_t mine;
  if (set != NULL) {
    mine = *set;
    if (how != SIG_UNBLOCK)
      (void)sigdelset(&mine, SIGSYS);
  }
  return syscall(SYS_rt_sigprocmask, how, set != NULL ? &mine : NULL, old, 8) == 0 ? 0 : errno;
}

/* ---- The list of system calls ---- */

static const int allowed[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_lseek,
    SYS_fstat,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_mincore,
    SYS_brk,
    SYS_futex,
    SYS_sched_yield,
    SYS_membarrier,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_getcpu,
    SYS_getrandom,
    SYS_getrusage,
    SYS_uname,
    SYS_sysinfo,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_exit,
    SYS_exit_group,
    SYS_ppoll,
    SYS_restart_syscall,
    SYS_eventfd2,
    SYS_set_robust_list,
    SYS_set_tid_address,
#ifdef SYS_poll
    SYS_poll,
    SYS_time,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
};

/* One argument must be one of these values for the call to be allowed (low half; the high one is
 * 0). */
static const struct {
  int number, argument;
  uint32_t value;
} allowed_with[] = {
    {SYS_fcntl, 1, F_GETFD},     {SYS_fcntl, 1, F_SETFD},
    {SYS_fcntl, 1, F_GETFL},     {SYS_fcntl, 1, F_DUPFD_CLOEXEC},
    {SYS_prctl, 0, PR_SET_NAME}, {SYS_prctl, 0, 0x53564d41 /* PR_SET_VMA */},
};

#define MAX_STEPS 512
typedef struct list {
  struct sock_filter steps[MAX_STEPS];
  unsigned short count;
} list_t;

static void add(list_t* list, uint16_t code, uint32_t value, uint8_t if_true, uint8_t if_false) {
  if (list->count < MAX_STEPS)
    list->steps[list->count++] = (struct sock_filter){code, if_true, if_false, value};
}

#define LOAD (BPF_LD | BPF_W | BPF_ABS)
#define IS (BPF_JMP | BPF_JEQ | BPF_K)
#define HAS (BPF_JMP | BPF_JSET | BPF_K)
#define AT_LEAST (BPF_JMP | BPF_JGE | BPF_K)
#define RETURN (BPF_RET | BPF_K)
#define PART(n, half)                                                                              \
  ((uint32_t)(offsetof(struct seccomp_data, args) + 8u * (uint32_t)(n) + 4u * (half)))

/* Some calls take another process by its number. Code in here must learn nothing about other
 * processes. */
static void keep_to_itself(list_t* list) {
  static const int clocks[] = {SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep};
  const uint32_t number = offsetof(struct seccomp_data, nr);
  /* Clocks of processes are negative numbers: how much processor time one has used. */
  for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; ++i) {
    add(list, IS, (uint32_t)clocks[i], 0, 4);
    add(list, LOAD, PART(0, 0), 0, 0);
    add(list, AT_LEAST, 1u << 31, 0, 1);
    add(list, RETURN, SECCOMP_RET_ERRNO | EINVAL, 0, 0);
    add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  }
  /* Limits: to be read, of this process alone. The kernel takes the low half for the process. */
  add(list, IS, SYS_prlimit64, 0, 8);
  add(list, LOAD, PART(0, 0), 0, 0);
  add(list, IS, 0, 0, 5);
  add(list, LOAD, PART(2, 1), 0, 0);
  add(list, IS, 0, 0, 3);
  add(list, LOAD, PART(2, 0), 0, 0);
  add(list, IS, 0, 0, 1);
  add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  add(list, LOAD, number, 0, 0);
  /* Processors: of the thread that asks. pthread_getattr_np asks by number, and does without. */
  add(list, IS, SYS_sched_getaffinity, 0, 4);
  add(list, LOAD, PART(0, 0), 0, 0);
  add(list, IS, 0, 0, 1);
  add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  add(list, RETURN, SECCOMP_RET_ERRNO | ENOSYS, 0, 0);
  /* Pages that the kernel joins with equal ones of other processes tell what those have. */
  add(list, IS, SYS_madvise, 0, 4);
  add(list, LOAD, PART(2, 0), 0, 0);
  add(list, IS, MADV_MERGEABLE, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | EINVAL, 0, 0);
  add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
}

static void make_list(list_t* list) {
  const uint32_t number = offsetof(struct seccomp_data, nr);
  const uint32_t thread = 0x00010000u /* CLONE_THREAD */;
  list->count = 0;
  add(list, LOAD, offsetof(struct seccomp_data, arch), 0, 0);
  add(list, IS, THIS_ARCH, 1, 0);
  add(list, RETURN, SECCOMP_RET_KILL_PROCESS, 0, 0);
  add(list, LOAD, number, 0, 0);
  for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; ++i) {
    add(list, IS, (uint32_t)allowed[i], 0, 1);
    add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  }
  for (size_t i = 0; i < sizeof allowed_with / sizeof allowed_with[0]; ++i) {
    add(list, IS, (uint32_t)allowed_with[i].number, 0, 6);
    add(list, LOAD, PART(allowed_with[i].argument, 1), 0, 0);
    add(list, IS, 0, 0, 3);
    add(list, LOAD, PART(allowed_with[i].argument, 0), 0, 0);
    add(list, IS, allowed_with[i].value, 0, 1);
    add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    add(list, LOAD, number, 0, 0);
  }
  keep_to_itself(list);
  /* Its end is how the kernel learns that the owner is gone: see end_with_owner. Only the low half
   * counts. */
  add(list, IS, SYS_close, 0, 4);
  add(list, LOAD, PART(0, 0), 0, 0);
  add(list, IS, WIRE_REPORT_FD, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | EPERM, 0, 0);
  add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  /* The library's threads run by now, and it does without others. No limit counts the memory of the
   * kernel that a thread takes, nor its number, of which the machine has so many. glibc falls back
   * to clone where clone3, whose flags are in memory, is not there. */
  add(list, IS, SYS_clone3, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | ENOSYS, 0, 0);
  /* It could be another process's; threads that stay where they are work as well. */
  add(list, IS, SYS_sched_setaffinity, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | EPERM, 0, 0);
  /* What the limit of processor time sends ends the process: no code takes it for anything else. */
  add(list, IS, SYS_rt_sigaction, 0, 4);
  add(list, LOAD, PART(0, 0), 0, 0);
  add(list, IS, SIGXCPU, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | EPERM, 0, 0);
  add(list, RETURN, SECCOMP_RET_ALLOW, 0, 0);
  add(list, IS, SYS_clone, 0, 3);
  add(list, LOAD, PART(0, 0), 0, 0);
  add(list, HAS, thread, 0, 1);
  add(list, RETURN, SECCOMP_RET_ERRNO | EAGAIN, 0, 0);
  add(list, RETURN, SECCOMP_RET_TRAP, 0, 0);
}

/* ---- Landlock ---- */

/* <linux/landlock.h> is missing on older machines. */
typedef struct landlock_rules {
  uint64_t files;
  uint64_t network;
  uint64_t scoped;
} landlock_rules_t;

static int confine_files(void) {
  static const uint64_t rights[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};
  const long version = syscall(444 /* landlock_create_ruleset */, NULL, 0, 1u);
  if (version <= 0)
    return 0;
  landlock_rules_t rules = {.files = rights[version < 5 ? version : 5],
                            .network = version >= 4 ? 3 : 0,
                            .scoped = version >= 6 ? 3 : 0};
  const size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  const long fd = syscall(444, &rules, size, 0u);
  if (fd < 0)
    return 0;
  const long status = syscall(446 /* landlock_restrict_self */, fd, 0u);
  (void)close((int)fd);
  return status == 0 ? (int)version : 0;
}

/* ---- The two halves ---- */

static uint64_t lower(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Without privileges, a limit that the process already has cannot be raised. */
static int limit(int which, uint64_t soft, uint64_t hard) {
  struct rlimit now;
  if (getrlimit((__rlimit_resource_t)which, &now) != 0)
    return -1;
  const struct rlimit both = {lower(soft, now.rlim_max), lower(hard, now.rlim_max)};
  return setrlimit((__rlimit_resource_t)which, &both);
}

/* The process that started it holds the other end of the report's pipe. When that is gone, so is
 * this process, whatever its code has made of itself: the kernel sends the signal. */
static int end_with_owner(void) {
  const int flags = fcntl(WIRE_REPORT_FD, F_GETFL);
  if (flags < 0 || fcntl(WIRE_REPORT_FD, F_SETSIG, SIGKILL) != 0 ||
      fcntl(WIRE_REPORT_FD, F_SETOWN, getpid()) != 0 ||
      fcntl(WIRE_REPORT_FD, F_SETFL, flags | O_ASYNC) != 0)
    return errno;
  /* It may have gone before. */
  struct pollfd end = {.fd = WIRE_REPORT_FD};
  return poll(&end, 1, 0) == 1 ? EPIPE : 0;
}

/* What root may do to the machine and the kernel without opening a file (madvise can take pages out
 * of use): none of the user's privileges stay. */
static int drop_capabilities(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0, 0, 0}};
  return syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

int lockdown_begin(int last_fd, uint64_t memory_bytes, uint64_t cpu_s) {
  const int error = end_with_owner();
  if (error != 0)
    return error;
  if (prctl(PR_SET_DUMPABLE, 0) != 0)
    return errno;
  for (int fd = 0; fd <= 2; ++fd) {
    const int null = open("/dev/null", O_RDWR);
    if (null < 0 || (null != fd && dup2(null, fd) < 0))
      return errno;
    if (null > last_fd)
      (void)close(null);
  }
  if (syscall(SYS_close_range, last_fd + 1, ~0u, 0) != 0) {
    for (int fd = last_fd + 1; fd < 4096; ++fd)
      (void)close(fd);
  }
  if (limit(RLIMIT_CORE, 0, 0) != 0 ||
      limit(RLIMIT_NOFILE, (uint64_t)last_fd + 64, (uint64_t)last_fd + 64) != 0 ||
      (memory_bytes != 0 && limit(RLIMIT_AS, memory_bytes, memory_bytes) != 0) ||
      (cpu_s != 0 && limit(RLIMIT_CPU, cpu_s, cpu_s + 1) != 0))
    return errno;
  return drop_capabilities();
}

const char* lockdown_files(bool weak, int* out_landlock) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return "the kernel has no PR_SET_NO_NEW_PRIVS";
  *out_landlock = confine_files();
  return *out_landlock != 0 || weak
             ? NULL
             : "the kernel has no Landlock (since Linux 5.13), or it is switched off";
}

const char* lockdown_calls(void) {
  static list_t list;
  make_list(&list);
  const struct sock_fprog program = {list.count, list.steps};
  if (list.count >= MAX_STEPS || catch_refused() != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    return "the kernel has no seccomp filters, or they are switched off";
  return NULL;
}
