/* sandbox_kernel.c - a kernel that does honest work for mode 0, and for others what hostile code
 * would try, by raw system calls. y[i] = x[i] + mode where a call came back; x[0] is the number of
 * another process. With AT_LOAD it tries as soon as it is loaded. */
#include "accrt/kernel.h"

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

typedef struct attack_params {
  const int64_t* x;
  int64_t* y;
  int64_t n;
  int64_t mode;
} attack_params_t;

static long call(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
#else
#error "x86-64 alone"
#endif
}

/* The kernel's, not libc's. */
typedef struct signal_action {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)(void);
  unsigned long mask;
} signal_action_t;

static void end_well(int number) {
  (void)number;
  call(231, 0, 0, 0, 0, 0);
}

/* What the limit of processor time sends first is taken for nothing, or for a good end. */
static void take_limit(void (*handler)(int)) {
  const signal_action_t action = {.handler = handler, .flags = 0x04000000ul /* SA_RESTORER */};
  call(13, 24, (long)&action, 0, 8, 0);
  for (;;) {
  }
}

#if defined(__x86_64__)
/* A thread that sleeps for ever and needs no stack; above 0 when it was made. */
static long make_thread(const long* time) {
  static char stack[64];
  long result;
  register long r10 __asm__("r10") = 0;
  register long r8 __asm__("r8") = 0;
  register const long* r12 __asm__("r12") = time;
  __asm__ volatile("syscall\n"
                   "test %%rax, %%rax\n"
                   "jnz 2f\n"
                   "1: mov $35, %%eax\n" /* nanosleep */
                   "mov %%r12, %%rdi\n"
                   "xor %%esi, %%esi\n"
                   "syscall\n"
                   "jmp 1b\n"
                   "2:"
                   : "=a"(result)
                   : "a"(56), "D"(0x50f00 /* as pthread_create */), "S"(stack + sizeof stack),
                     "d"(0), "r"(r10), "r"(r8), "r"(r12)
                   : "rcx", "r11", "memory");
  return result;
}

/* Makes every end of the process that libc's code has into a loop. The stack of this thread begins with an
 * address in libc. */
static void forget_how_to_end(void) {
  static unsigned char pages[4096];
  const unsigned char* self;
  __asm__("mov %%fs:0, %0" : "=r"(self));
  for (const unsigned long* at = (const unsigned long*)((unsigned long)self & ~7ul) - 1;
       (unsigned long)at > (unsigned long)__builtin_frame_address(0); --at) {
    unsigned char* page = (unsigned char*)(*at & ~4095ul);
    if (*at < 65536 || *at >> 47 != 0 || call(27, (long)page, 4096, (long)pages, 0, 0) != 0)
      continue; /* mincore: nothing there */
    while (call(27, (long)(page - 4096), 4096, (long)pages, 0, 0) == 0)
      page -= 4096;
    for (; call(27, (long)page, 4096, (long)pages, 0, 0) == 0; page += 4096) {
      if (call(10, (long)page, 4096, 7, 0, 0) != 0)
        continue; /* mprotect */
      for (unsigned i = 0; i + 80 < 4096; ++i) {
        if (page[i] != 0xe7 || page[i + 1] != 0 || page[i + 2] != 0 || page[i + 3] != 0)
          continue; /* the number of exit_group */
        for (unsigned k = i + 4; k < i + 80; ++k) {
          if (page[k] == 0x0f && page[k + 1] == 0x05)
            page[k] = 0xeb, page[k + 1] = 0xfe;
        }
      }
    }
    return;
  }
}
#endif

/* What it gains is added to the results. */
static int64_t attack(int64_t mode, int64_t process) {
  int64_t gained = 0;
  static const char path[] = "/etc/passwd", program[] = "/bin/true";
  static const char* const argv[] = {program, 0};
  static char memory[256], pages[4096] __attribute__((aligned(4096)));
  static long vector[2] = {(long)memory, 8};
  static const long second[2] = {1, 0}, long_time[2] = {1000, 0};
  switch (mode) {
  case 1:
    call(2, (long)path, 0, 0, 0, 0);
    break; /* open */
  case 2:
    call(257, -100, (long)path, 0, 0, 0);
    break; /* openat */
  case 3:
    call(437, -100, (long)path, (long)memory, 24, 0);
    break; /* openat2 */
  case 4:
    call(41, 2, 1, 0, 0, 0);
    break; /* socket */
  case 5:
    call(59, (long)program, (long)argv, 0, 0, 0);
    break; /* execve */
  case 6:
    call(62, 1, 9, 0, 0, 0);
    break; /* kill */
  case 7:
    call(101, 16, 1, 0, 0, 0);
    break; /* ptrace */
  case 8:
    call(57, 0, 0, 0, 0, 0);
    break; /* fork */
  case 9:
    call(56, 17, 0, 0, 0, 0);
    break; /* clone of a process */
  case 10:
    call(425, 8, (long)memory, 0, 0, 0);
    break; /* io_uring_setup */
  case 11:
    call(310, 1, (long)vector, 1, (long)vector, 1);
    break; /* process_vm_readv */
  case 12:
    call(234, 1, 1, 9, 0, 0);
    break; /* tgkill */
  case 13:
    call(4, (long)path, (long)memory, 0, 0, 0);
    break; /* stat */
  case 14:
    call(262, -100, (long)path, (long)memory, 0, 0);
    break; /* newfstatat with a path */
  case 15:
    call(82, (long)path, (long)program, 0, 0, 0);
    break; /* rename */
  case 16:
    call(157, 4, 1, 0, 0, 0);
    break; /* prctl(PR_SET_DUMPABLE) */
  case 17:
    call(302, 0, 7, (long)vector, 0, 0);
    break; /* prlimit64 that sets */
  case 18:
    call(72, 3, 8, 1, 0, 0);
    break; /* fcntl(F_SETOWN) */
  case 19:
    call(16, 0, 0x5401, (long)memory, 0, 0);
    break; /* ioctl */
  case 20:
    call(0x40000000 + 2, (long)path, 0, 0, 0, 0);
    break; /* open, x32 */
  case 21:
    call(165, (long)path, (long)path, 0, 0, 0);
    break; /* mount */
  case 22:
    call(321, 0, (long)memory, 64, 0, 0);
    break; /* bpf */
  case 23:
    call(319, (long)program, 0, 0, 0, 0);
    break; /* memfd_create: memory that no limit of addresses sees */
  case 30:
    *(volatile int*)8 = 1;
    break; /* a crash */
  case 31:
    for (;;) {
    }
    break; /* no end */
  case 32:
    call(1, 3, (long)"garbage garbage garbage garbage garbage", 40, 0, 0);
    break; /* as if it answered */
  case 33:
    call(231, 0, 0, 0, 0, 0);
    break; /* an end that looks good */
  case 34:
    call(230, 1, 0, (long)second, 0, 0);
    break; /* slow */
  case 35:
    for (;;)
      call(230, 1, 0, (long)long_time, 0, 0);
    break; /* sleeps for ever */
  case 36:
    call(18, 5, (long)"EVIL", 4, 0, 0);
    break; /* pwrite to the bundle's file */
  case 38:
    call(8, 5, 0, 0, 0, 0);
    call(1, 5, (long)"EVIL", 4, 0, 0);
    break; /* write to it */
  case 37:
    call(3, 3, 0, 0, 0, 0);
    for (;;)
      call(230, 1, 0, (long)long_time, 0, 0);
    break; /* hangs up, and lives on */
  case 39:
    take_limit((void (*)(int))1);
    break; /* ignores SIGXCPU */
  case 40:
    take_limit(end_well);
    break; /* ends as if all were well */
  case 41:
    while (gained < 1000 && make_thread(long_time) > 0)
      ++gained;
    break; /* threads, which take memory and numbers of the whole machine */
  case 42:
    forget_how_to_end();
    for (;;)
      call(230, 1, 0, (long)long_time, 0, 0);
    break; /* outlives its owner */
  case 43:
    gained = call(228, (long)(int)(~(unsigned)process << 3 | 2), (long)memory, 0, 0, 0) == 0;
    break; /* clock_gettime: another process's processor time */
  case 44:
    gained = call(302, process, 7, 0, (long)memory, 0) == 0;
    break; /* prlimit64: another process's limits */
  case 45:
    gained = call(204, process, 128, (long)memory, 0, 0) > 0;
    break; /* sched_getaffinity: another process's processors */
  case 46:
    gained = call(28, (long)pages, 4096, 12 /* MADV_MERGEABLE */, 0, 0) == 0;
    break; /* its pages beside those of others */
  case 47:
    gained = call(228, 0, (long)memory, 0, 0, 0) == 0 && call(228, 2, (long)memory, 0, 0, 0) == 0 &&
             call(302, 0, 7, 0, (long)memory, 0) == 0 && call(204, 0, 128, (long)memory, 0, 0) > 0;
    break; /* the same of itself: that works */
  default:
    break;
  }
  return gained;
}

static int32_t attack_kernel(const accrt_kernel_environment_t* environment,
                             const accrt_kernel_dispatch_t* dispatch,
                             const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const attack_params_t* p = dispatch->params;
  const int64_t gained = attack(p->mode, p->n > 0 ? p->x[0] : 0);
  for (int64_t i = 0; i < p->n; i++)
    p->y[i] = p->x[i] + p->mode + gained;
  return 0;
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(attack_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(attack_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(attack_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(attack_params_t, mode, SYMBOL, NONE),
};

static const accrt_kernel_def_t kernels[] = {{
    .struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC,
    .name = "attack",
    .entry = attack_kernel,
    .params = params,
    .param_count = 4,
    .params_size_bytes = sizeof(attack_params_t),
}};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "attack",
    .kernels = kernels,
    .kernel_count = 1,
    .kernel_size_bytes = sizeof(accrt_kernel_def_t),
};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  if (max_abi < ACCRT_KERNEL_ABI_VERSION)
    return 0;
  accrt_kernel_bind(environment);
#ifdef AT_LOAD
  (void)attack(2, 0);
#endif
  return &table;
}
