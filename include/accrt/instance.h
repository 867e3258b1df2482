/* accrt/instance.h - instances, devices, error records, host allocation, logging, tracing, capabilities.
 *
 * It may not mention streams, programs or files: what is here is what everything else is made through.
 */
#ifndef ACCRT_INSTANCE_H_
#define ACCRT_INSTANCE_H_

#include "accrt/base.h"

ACCRT_BEGIN

/* ---- Errors ----------------------------------------------------------------------------------------------------------- */

/** The full record of one failure. Filled by accrt_last_error and by the _error functions of streams, events, semaphores
 * and sessions. Strings are inside the struct, so that the record can be kept. */
typedef struct accrt_error {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  accrt_status_t status;
  int32_t
      driver_code; /**< the driver's or the kernel's own code; errno for ACCRT_ERROR_IO; else 0 */
  uint64_t submission;  /**< number of the submission that failed; 0 when none did */
  char driver_name[32]; /**< the driver's own name for driver_code, or "" */
  char operation[64];   /**< the function or operation that failed, e.g. "accrt_buffer_create" */
  char source_file[64]; /**< where in the library the error was made; the file's last 63 bytes */
  uint32_t source_line;
  uint32_t reserved2; /**< 0 */
  char message[512];  /**< one line with the offending values; "" when there is no error */
} accrt_error_t;
ACCRT_ASSERT_LAYOUT(accrt_error_t, message, 712);
#define ACCRT_ERROR_INIT ACCRT_STRUCT_INIT(accrt_error_t)

/** Copies this thread's record of the last failed call into `out_error` (all zero but the size when none failed yet).
 * A successful call leaves the record alone. Thread-safe, never blocks, never allocates.
 * @return ACCRT_OK, or ACCRT_ERROR_INVALID_ARGUMENT (the record is then unchanged). Since: 0.1 */
ACCRT_API accrt_status_t accrt_last_error(accrt_error_t* out_error);

/** Forgets this thread's record. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API void accrt_clear_error(void);

/** Name of a status, e.g. "ACCRT_ERROR_TIMEOUT"; "ACCRT_ERROR_UNKNOWN" for numbers this library does not know. Static
 * string. Thread-safe. Since: 0.1 */
ACCRT_API const char* accrt_status_name(accrt_status_t status);

/** What a status means, in one sentence. Static string. Thread-safe. Since: 0.1 */
ACCRT_API const char* accrt_status_text(accrt_status_t status);

/** Version of the library that is running, as ACCRT_MAKE_VERSION. Thread-safe. Since: 0.1 */
ACCRT_API uint32_t accrt_version(void);

/* ---- What a caller may inject ----------------------------------------------------------------------------------------- */

/** Frozen. Host allocator. Called from any thread, never under a lock of the library. `alignment` is a power of two of at least 8. */
typedef struct accrt_allocator {
  void* self;
  void* (*allocate)(void* self, size_t size_bytes, size_t alignment); /**< NULL when it cannot */
  void (*deallocate)(void* self, void* pointer, size_t size_bytes,
                     size_t alignment); /**< pointer not NULL */
} accrt_allocator_t;
ACCRT_ASSERT_LAYOUT(accrt_allocator_t, deallocate, 24);

#define ACCRT_LOG_ERROR 1u
#define ACCRT_LOG_WARNING 2u
#define ACCRT_LOG_INFO 3u
#define ACCRT_LOG_DEBUG 4u
/** Frozen. Log sink: receives one line without newline, up to `level`. Called from any thread, never under a lock. */
typedef struct accrt_log_sink {
  void* self;
  void (*write)(void* self, uint32_t level, const char* component, const char* line);
  uint32_t level;    /**< highest level wanted */
  uint32_t reserved; /**< 0 */
} accrt_log_sink_t;
ACCRT_ASSERT_LAYOUT(accrt_log_sink_t, reserved, 24);

#define ACCRT_TRACE_SUBMIT 1u   /**< work was given to a stream */
#define ACCRT_TRACE_COMPLETE 2u /**< that work ended (status says how) */
#define ACCRT_TRACE_COMMAND                                                                        \
  3u                        /**< one command ran, with begin and end time (drivers that can tell) */
#define ACCRT_TRACE_CALL 4u /**< a session ran a function */
/** One trace event. Frozen. Pointers are valid during the call only. */
typedef struct accrt_trace_event {
  uint32_t kind;
  accrt_status_t status;
  uint64_t stream_id;
  uint64_t submission;
  uint64_t begin_ns; /**< monotonic clock */
  uint64_t end_ns;
  const char* name; /**< operation, kernel or function */
} accrt_trace_event_t;
ACCRT_ASSERT_LAYOUT(accrt_trace_event_t, name, 48);
/** Frozen. Trace sink: called from any thread, never under a lock; must be quick. */
typedef struct accrt_trace_sink {
  void* self;
  void (*event)(void* self, const accrt_trace_event_t* event);
} accrt_trace_sink_t;
ACCRT_ASSERT_LAYOUT(accrt_trace_sink_t, event, 16);

/** Frozen. An embedder's executor for the host driver: runs `task(argument)` once, soon, on one of its threads. The host driver then
 * makes no worker threads of its own. `submit` may not run the task before it returns. */
typedef struct accrt_executor {
  void* self;
  int32_t (*submit)(void* self, void (*task)(void* argument),
                    void* argument); /**< 0 when it will run */
  uint32_t concurrency;              /**< how many tasks may run at once; at least 1 */
  uint32_t reserved;                 /**< 0 */
} accrt_executor_t;
ACCRT_ASSERT_LAYOUT(accrt_executor_t, reserved, 24);

/** A named option for a driver, e.g. {"host.threads", "2"}. docs/options.md lists them. A key for a driver that is loaded later
 * has a '+' in front and is checked when that driver opens. Frozen. */
typedef struct accrt_option {
  const char* key;
  const char* value;
} accrt_option_t;
ACCRT_ASSERT_LAYOUT(accrt_option_t, value, 16);

/* Policy for machine code of the host CPU found in bundles: ACCRT_ERROR_UNTRUSTED where it does not allow it. docs/trust.md. */
#define ACCRT_HOST_CODE_DEFAULT                                                                    \
  0u /**< what option trust.policy says, or else the environment's ACCRT_TRUST, or else _SIGNED */
#define ACCRT_HOST_CODE_SIGNED 1u /**< run what is signed by a trusted key: accrt/trust.h */
#define ACCRT_HOST_CODE_ALL 2u    /**< run all: a bundle is as trusted as the program itself */
#define ACCRT_HOST_CODE_NONE                                                                       \
  3u /**< run none, signed or not; packs that a program loads by itself neither */

#define ACCRT_INSTANCE_FLAG_PERF_MAP                                                               \
  1u /**< append the names of loaded kernels to /tmp/perf-PID.map, for perf */
#define ACCRT_INSTANCE_FLAG_NO_DRIVERS 2u /**< open no built-in driver */

/** Options of accrt_instance_create. All zero but the size is a good default. */
typedef struct accrt_instance_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_INSTANCE_FLAG_* */
  const accrt_chain_t* next;
  const accrt_allocator_t* allocator;   /**< copied; NULL: the C library's */
  const accrt_log_sink_t* log_sink;     /**< copied; NULL: silent */
  const accrt_trace_sink_t* trace_sink; /**< copied; NULL: none */
  const accrt_executor_t* executor;     /**< copied; NULL: own threads */
  const accrt_option_t* options;        /**< copied; NULL when option_count is 0 */
  uint32_t option_count;
  uint32_t option_size_bytes; /**< sizeof(accrt_option_t) */
  uint32_t host_code_policy;  /**< ACCRT_HOST_CODE_* */
  uint32_t reserved;          /**< 0 */
} accrt_instance_options_t;
ACCRT_ASSERT_LAYOUT(accrt_instance_options_t, reserved, 72);
#define ACCRT_INSTANCE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_instance_options_t)

/* ---- Instance ----------------------------------------------------------------------------------------------------------- */

/** Makes an instance: the root of every other object. Several may live in one process.
 * Built-in drivers are opened at once; one that cannot be opened is passed over with a log line. Opening the CUDA driver
 * touches nothing of CUDA: see accrt_instance_device_count.
 * @param options NULL for the defaults.
 * @param out_instance Owned by the caller.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_NOT_FOUND (an unknown option key, named in the message);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a bad option value, named). May block (starts threads). Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_create(const accrt_instance_options_t* options,
                                               accrt_instance_t** out_instance);
/** Adds a reference; returns its argument. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API accrt_instance_t* accrt_instance_retain(accrt_instance_t* instance);
/** Drops a reference; NULL is allowed. The last one waits for work in flight, then frees. Since: 0.1 */
ACCRT_API void accrt_instance_release(accrt_instance_t* instance);

/** Opens a driver from a shared object that exports accrt_driver_query (accrt/sys/driver.h). Its devices are appended to
 * the instance's. It is never unloaded. May block.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (no such file or symbol); ACCRT_ERROR_VERSION_MISMATCH (the message has both
 *   ranges); ACCRT_ERROR_ALREADY_EXISTS (a driver of that name); what the driver's own open returns. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_load_driver(accrt_instance_t* instance, const char* path);

/** Like accrt_instance_load_driver for a driver linked into the program: `query` is its accrt_driver_query_fn_t.
 * Same statuses. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_register_driver(accrt_instance_t* instance,
                                                        const void* (*query)(uint32_t max_abi));

/** Number of devices of all open drivers. Drivers that take long to start (CUDA) start when it, or a device of theirs, is first
 * asked for. Thread-safe. May block. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device_count(accrt_instance_t* instance,
                                                     uint32_t* out_count);
/** The index-th device, opened on first use. Owned by the caller. May block.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_OUT_OF_MEMORY; what the driver returns. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device(accrt_instance_t* instance, uint32_t index,
                                               accrt_device_t** out_device);
/** A device by name: "host", "host:1", "cuda:0"; a driver's name alone means its first. Owned by the caller. May block.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message lists what there is); why its driver has no devices (NOT_FOUND,
 *   VERSION_MISMATCH, PERMISSION_DENIED, with the driver's own code and name); as accrt_instance_device. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device_by_name(accrt_instance_t* instance, const char* name,
                                                       accrt_device_t** out_device);

/** What this library can read and run: the capabilities that a compiler targets. */
typedef struct accrt_caps {
  uint32_t struct_size;
  uint32_t reserved;        /**< 0 */
  void* next;               /**< NULL */
  uint32_t library_version; /**< ACCRT_MAKE_VERSION */
  uint16_t container_major,
      container_minor; /**< newest .accx container read; minors from 0 up are read */
  uint16_t commands_major, commands_minor; /**< newest command set */
  uint16_t kernel_abi_major, kernel_abi_minor;
  uint16_t layouts_major, layouts_minor; /**< layout registry */
  uint32_t max_rank;
  uint64_t file_features;     /**< feature bits understood, at file scope */
  uint64_t function_features; /**< at function scope */
  uint64_t variant_features;  /**< at kernel-variant scope */
  uint64_t command_mask;      /**< bit n: opcode n is executed */
  uint64_t dtype_mask;        /**< bit n: accrt_dtype_t n is known */
  uint64_t encoding_mask;     /**< bit n: encoding id n is known */
  uint64_t cpu_features;      /**< ACCRT_CPU_* of this machine */
  char cpu_arch[32];          /**< "x86-64-v4", "aarch64": the best family variant that runs here */
  uint64_t image_kind_mask;   /**< bit n: images of kind n are known (accrt/bundle.h). Since 0.2 */
  uint64_t section_mask;      /**< bit n: section n is known. Since 0.3 */
  uint64_t expression_mask;   /**< bit n: operation n of expressions is known. Since 0.3 */
  /** Devices of that machine, "host:x86-64-v4 cuda:sm_90": from accrt_caps_parse. Empty: not known. Since 0.3 */
  char devices[232];
} accrt_caps_t;
ACCRT_ASSERT_LAYOUT(accrt_caps_t, devices, 384);
#define ACCRT_CAPS_INIT ACCRT_STRUCT_INIT(accrt_caps_t)
/** Fills `out_caps`. Thread-safe, never blocks, needs no instance. Since: 0.1 */
ACCRT_API accrt_status_t accrt_query_caps(accrt_caps_t* out_caps);
/** What another machine's library can read and run, from what `accx caps --json` prints there: for accrt_bundle_writer_options_t.target.
 * Names that this library does not know are of something newer, and are left out; members that it does not know are passed over. What
 * an older `accx caps` does not tell is 0 (image_kind_mask, section_mask, expression_mask: the writer takes it for what came with those
 * versions). Nothing is asked of this machine. Thread-safe, never blocks, needs no instance.
 * @param text the JSON, `size_bytes` of it, at most 1 MiB; a NUL behind it is not needed. Copied for the time of the call.
 * @param allocator what the copy is made with; NULL: the C library's.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_FORMAT (no JSON, or not what `accx caps` prints: the message has the place and what is wrong;
 *   a member that is there twice is); ACCRT_ERROR_OUT_OF_RANGE (more than 1 MiB); ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_caps_parse(const char* text, size_t size_bytes,
                                          const accrt_allocator_t* allocator,
                                          accrt_caps_t* out_caps);

/* ---- Devices ------------------------------------------------------------------------------------------------------------ */

#define ACCRT_DEVICE_FLAG_HOST_MEMORY                                                              \
  1u /**< device memory is host memory: plain pointers are used in place */
#define ACCRT_DEVICE_FLAG_TIMESTAMPS 2u   /**< events can time */
#define ACCRT_DEVICE_FLAG_HOST_KERNELS 4u /**< runs host workgroup kernels */
#define ACCRT_DEVICE_FLAG_CALLER_RUNS 8u  /**< no threads: work progresses only inside waits */

/** Facts about a device. */
typedef struct accrt_device_info {
  uint32_t struct_size;
  uint32_t flags;        /**< ACCRT_DEVICE_FLAG_* */
  void* next;            /**< NULL */
  char name[64];         /**< "host:0": what accrt_instance_device_by_name takes */
  char driver[32];       /**< "host" */
  char description[128]; /**< e.g. the processor's name */
  char arch[32];         /**< "x86-64-v4": what kernel variants are matched with */
  uint64_t cpu_features;
  uint64_t memory_total_bytes;
  uint32_t index;               /**< within its driver */
  uint32_t concurrency;         /**< threads, multiprocessors: how many workgroups run at once */
  uint32_t min_alignment_bytes; /**< of every buffer */
  uint32_t queue_count;         /**< hardware queues; 0: no limit worth knowing */
  /* Since 0.2 */
  uint32_t dlpack_device_type; /**< of its memory, as DLPack numbers them: 1 CPU, 2 CUDA */
  int32_t dlpack_device_id;
  int32_t priority_least;    /**< accrt_stream_options_t.priority is clamped to least .. greatest */
  int32_t priority_greatest; /**< both 0: the device has no priorities */
  unsigned char uuid[16];    /**< of the hardware; zeros where it has none */
} accrt_device_info_t;
ACCRT_ASSERT_LAYOUT(accrt_device_info_t, uuid, 336);
#define ACCRT_DEVICE_INFO_INIT ACCRT_STRUCT_INIT(accrt_device_info_t)

/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_device_t* accrt_device_retain(accrt_device_t* device);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_device_release(accrt_device_t* device);
/** Fills `out_info`. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_device_info(accrt_device_t* device, accrt_device_info_t* out_info);
/** The device's instance, borrowed. NULL only for NULL. Since: 0.1 */
ACCRT_API accrt_instance_t* accrt_device_instance(accrt_device_t* device);
/** Lets work of `device` reach memory of `peer`: kernels by address, copies without a detour. One way; both ways take two calls.
 * Without it kernels, fills and lists are refused memory of other GPUs (ACCRT_ERROR_UNSUPPORTED, both names in the message); copies
 * always work, where there is no path through memory of the host.
 * Repeating it is fine. May block.
 * @return ACCRT_OK (also for a device and itself); ACCRT_ERROR_UNSUPPORTED (other drivers, or no path between them: both names in the message);
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.2 */
ACCRT_API accrt_status_t accrt_device_enable_peer(accrt_device_t* device, accrt_device_t* peer);
/** ACCRT_OK while the device works; ACCRT_ERROR_DEVICE_LOST for ever once it does not. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_device_status(accrt_device_t* device);

ACCRT_END
#endif /* ACCRT_INSTANCE_H_ */
