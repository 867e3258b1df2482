/* accrt/http.h - libaccrt_http: an OpenAI-compatible HTTP server in front of an engine of
 * libaccrt_serve.
 *
 * The library owns sockets, HTTP, JSON output, server-sent events, limits and metrics. *Workers*,
 * which are threads of the caller, do the work that needs a tokenizer, once for each request:
 * accrt_http_next gives a worker the body of a request, and accrt_http_start gives the worker's
 * token ids to the engine. No code of the caller runs between a new token and its socket.
 *
 * Link `-laccrt_http -laccrt_serve -laccrt`. The rules of accrt/base.h hold here too.
 * docs/server.md describes the answers, the limits and the metrics. Handles are validated as in
 * accrt/serve.h. A server is validated if its options, its engine or the environment ask for it. A
 * job that is answered twice, or not at all, is then reported, too. An accrt_http_calls_t is
 * validated only if the environment asks for it.
 */
#ifndef ACCRT_HTTP_H_
#define ACCRT_HTTP_H_

#include "accrt/serve.h"

ACCRT_BEGIN

typedef struct accrt_http_server accrt_http_server_t;
typedef struct accrt_http_job accrt_http_job_t;

/** How a server is made. 0 and NULL stand for defaults. Since: 0.4 */
typedef struct accrt_http_options {
  uint32_t struct_size;
  uint32_t flags; /**< 0 or ACCRT_SERVE_VALIDATE */
  const accrt_chain_t* next;
  const accrt_allocator_t* allocator; /**< copied; NULL: the C library's */
  const char* host;                   /**< a name or address to listen at; NULL: "127.0.0.1" */
  uint32_t port;                      /**< 0: a free one (accrt_http_server_port tells it) */
  int32_t log_fd;    /**< gets a line for each request; -1: none. The library does not close it */
  const char* model; /**< the model's name in answers. Required */
  /** the key that /v1/..., /tokenize and /detokenize need as `Authorization: Bearer`; NULL: none */
  const char* api_key;
  /** the origin that may call from a browser, or "*"; NULL: only this server's page */
  const char* cors_origin;
  const char* page; /**< HTML for `/`, of page_bytes bytes; NULL: none */
  uint64_t page_bytes;
  uint32_t max_model_tokens; /**< shown by /v1/models; 0: not shown */
  uint32_t max_connections;  /**< 1,024. More get 503 and are closed */
  uint32_t max_jobs;         /**< 256: requests that wait for a worker; more get 429 */
  /** 1: least seconds in `Retry-After` of 429 and 503; up to 600 while the queue is longer */
  uint32_t retry_after_s;
  uint64_t max_header_bytes; /**< 65,536: path and headers; more get 431 */
  uint64_t max_body_bytes;   /**< 16 MiB: one request's body; more get 413 */
  /** 256 MiB: bodies of all requests; more get 503. All answers that are not sent yet have the same
   * limit: beyond it the largest one ends, with 400 or 503, or is cut off if its head is sent */
  uint64_t max_held_bytes;
  /** 1 MiB: unread output of a stream; beyond it, the connection is closed */
  uint64_t max_output_bytes;
  uint64_t request_timeout_ns; /**< 30 s: from a request's first byte to its last; then 408 */
  uint64_t idle_timeout_ns;    /**< 75 s: a connection without a request is then closed */
  /** 30 s: if a client takes nothing of its answer, its connection is then closed */
  uint64_t stall_timeout_ns;
  /** 30 s: /health fails when work waits and the engine made no step for so long */
  uint64_t health_timeout_ns;
} accrt_http_options_t;
ACCRT_ASSERT_LAYOUT(accrt_http_options_t, health_timeout_ns, 160);
#define ACCRT_HTTP_OPTIONS_INIT                                                                    \
  { .struct_size = (uint32_t)sizeof(accrt_http_options_t), .log_fd = -1 }

/** Listens, and starts the thread that serves.
 * @param engine retained. It must have a thread of its own (ACCRT_SERVE_ENGINE_THREAD), and only
 *   this server may take its events.
 * @return ACCRT_OK, ACCRT_ERROR_IO (the address is not available, or no descriptor is left);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_server_create(accrt_serve_engine_t* engine,
                                                  const accrt_http_options_t* options,
                                                  accrt_http_server_t** out_server);
/** Adds a reference; returns its argument. Since: 0.4 */
ACCRT_API accrt_http_server_t* accrt_http_server_retain(accrt_http_server_t* server);
/** Drops a reference. The last one closes every connection, and ends the thread and waits for it.
 * Jobs from accrt_http_next must have been answered before. Since: 0.4 */
ACCRT_API void accrt_http_server_release(accrt_http_server_t* server);
/** The port that the server listens at; 0 for NULL. Never blocks. Since: 0.4 */
ACCRT_API uint32_t accrt_http_server_port(const accrt_http_server_t* server);

/** Ends the server gracefully: it stops listening, closes idle connections, refuses new requests
 * with 503, and waits until unfinished answers have been sent. At the end of the timeout it cancels
 * and closes the rest. accrt_http_next then returns ACCRT_ERROR_CANCELLED. Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT (some answers were cut off). Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_server_drain(accrt_http_server_t* server, uint64_t timeout_ns);

/** What a server holds. Frozen. Since: 0.4 */
typedef struct accrt_http_counts {
  uint32_t connections;
  uint32_t queued; /**< requests that wait for a worker */
  uint32_t jobs;   /**< requests that are not answered yet, with those that wait for a worker */
  uint32_t draining;
  uint64_t held_bytes; /**< of bodies, and of answers that are not sent yet */
} accrt_http_counts_t;
ACCRT_ASSERT_LAYOUT(accrt_http_counts_t, held_bytes, 24);

/** Fills `out_counts`. It may wait for a lock for a short time. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_server_counts(accrt_http_server_t* server,
                                                  accrt_http_counts_t* out_counts);

/* ---- Jobs: requests whose body a worker reads ---- */

#define ACCRT_HTTP_CHAT 1u           /**< POST /v1/chat/completions */
#define ACCRT_HTTP_COMPLETION 2u     /**< POST /v1/completions */
#define ACCRT_HTTP_EMBEDDING 3u      /**< POST /v1/embeddings */
#define ACCRT_HTTP_TOKENIZE 4u       /**< POST /tokenize */
#define ACCRT_HTTP_LOAD_ADAPTER 5u   /**< POST /v1/load_lora_adapter */
#define ACCRT_HTTP_UNLOAD_ADAPTER 6u /**< POST /v1/unload_lora_adapter */
#define ACCRT_HTTP_DETOKENIZE 7u     /**< POST /detokenize */
#define ACCRT_HTTP_RESPONSE 8u       /**< POST /v1/responses */

/** Waits for a request. Any number of threads may wait.
 * @param out_job lent until it is answered by accrt_http_start, _fail or _answer. You must answer
 *   every job, even if its client has left.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_CANCELLED (the server has ended: there will be
 *   no more). Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_next(accrt_http_server_t* server, uint64_t timeout_ns,
                                         accrt_http_job_t** out_job);

/** A job's request. Frozen. Since: 0.4 */
typedef struct accrt_http_job_info {
  uint32_t kind; /**< ACCRT_HTTP_CHAT and so on */
  uint32_t left; /**< 1: the client has left */
  uint64_t number;
  uint64_t body_bytes;
  const void* body; /**< lent until the job is answered */
} accrt_http_job_info_t;
ACCRT_ASSERT_LAYOUT(accrt_http_job_info_t, body, 32);

/** Never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_job_info(accrt_http_job_t* job,
                                             accrt_http_job_info_t* out_info);

#define ACCRT_HTTP_STREAM 1u   /**< server-sent events */
#define ACCRT_HTTP_USAGE 2u    /**< a last chunk of a stream has the usage */
#define ACCRT_HTTP_LOGPROBS 4u /**< the answer has log probabilities */
#define ACCRT_HTTP_ONE_CALL 8u /**< calls of tools after the first one are dropped */
/** completions: log probabilities of the prompt come before those of the choice */
#define ACCRT_HTTP_ECHO_LOGPROBS 16u
#define ACCRT_HTTP_PROMPT_LOGPROBS 32u /**< the answer has `prompt_logprobs`; not for streams */
#define ACCRT_HTTP_BASE64 64u /**< embeddings are the bytes of floats in base64, not numbers */
#define ACCRT_HTTP_NO_REASONING 128u /**< a chat's reasoning is left out of the answer */

/** How a family of models writes calls of tools; docs/server.md describes the forms. */
#define ACCRT_HTTP_TOOLS_HERMES 1u  /**< `<tool_call>` and JSON: Hermes, Qwen */
#define ACCRT_HTTP_TOOLS_LLAMA 2u   /**< JSON as the whole answer, or after `<|python_tag|>` */
#define ACCRT_HTTP_TOOLS_MISTRAL 3u /**< `[TOOL_CALLS]` and JSON */
/** `<tool_call>`, `<function=...>` and `<parameter=...>`: Qwen 3 Coder */
#define ACCRT_HTTP_TOOLS_QWEN_CODER 4u
/** `<tool_call>`, a name, `<arg_key>` and `<arg_value>`: GLM-4.5 */
#define ACCRT_HTTP_TOOLS_GLM 5u
#define ACCRT_HTTP_TOOLS_GRANITE                                                                   \
  6u /**< `<|tool_call|>` and a list of JSON: Granite 3, Phi-4 mini */
/** `<|tool_call_begin|>`, an id with the name, and JSON: Kimi K2 */
#define ACCRT_HTTP_TOOLS_KIMI 7u
/** messages to `functions.NAME`: GPT-OSS. Only with ACCRT_HTTP_REASONING_HARMONY */
#define ACCRT_HTTP_TOOLS_HARMONY 8u
/** `<seed:tool_call>`, `<function=...>` and `<parameter=...>`: Seed-OSS */
#define ACCRT_HTTP_TOOLS_SEED 9u
/** `<minimax:tool_call>`, `<invoke name="...">` and `<parameter name="...">`: MiniMax M2 */
#define ACCRT_HTTP_TOOLS_MINIMAX 10u
/** `<｜tool▁calls▁begin｜>`, a name, and JSON: DeepSeek R1, V3 and V3.1 */
#define ACCRT_HTTP_TOOLS_DEEPSEEK 11u
/** a list of calls as Python writes them, or as ACCRT_HTTP_TOOLS_LLAMA: Llama 4 */
#define ACCRT_HTTP_TOOLS_PYTHONIC 12u
/** `<|START_ACTION|>` and a list of JSON: Command R7B, Command A */
#define ACCRT_HTTP_TOOLS_COMMAND 13u

/** Marks between which a model reasons before it answers; docs/server.md describes the forms. */
#define ACCRT_HTTP_REASONING_THINK 1u    /**< `<think>` and `</think>` */
#define ACCRT_HTTP_REASONING_BRACKETS 2u /**< `[THINK]` and `[/THINK]`: Mistral */
#define ACCRT_HTTP_REASONING_SEED 3u     /**< `<seed:think>` and `</seed:think>` */
/** messages of the channel `analysis`: GPT-OSS. Neither of the next two is added to it */
#define ACCRT_HTTP_REASONING_HARMONY 4u
/** `<|START_THINKING|>` and `<|END_THINKING|>`; `<|START_RESPONSE|>` and `<|END_RESPONSE|>` around
 * the answer are left out: Command R7B, Command A */
#define ACCRT_HTTP_REASONING_COMMAND 5u
/** added to a form: the prompt ends with the first mark, so the text begins with reasoning */
#define ACCRT_HTTP_REASONING_OPEN 256u
/** added to a form and ACCRT_HTTP_REASONING_OPEN: the prompt ends within the reasoning, so white
 * space at the beginning of the text belongs to it */
#define ACCRT_HTTP_REASONING_BEGUN 512u

/** The form of an answer that the engine makes. Since: 0.4 */
typedef struct accrt_http_format {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_HTTP_STREAM and so on */
  const accrt_chain_t* next;
  const char* id;        /**< NULL: one is made */
  const char* model;     /**< NULL: the server's */
  uint64_t created;      /**< seconds since 1970; 0: now */
  uint32_t top_logprobs; /**< alternatives shown for each token */
  /** ACCRT_HTTP_TOOLS_*: calls in the text of a chat become tool_calls, and those of a response
   * items of its output; 0: they stay text */
  uint32_t tools;
  /** text put before each choice of a completion (`echo`), one for each request: NULL there is the
   * text of the prompt's tokens. NULL: none */
  const char* const* prefixes;
  uint32_t prompt_top_logprobs; /**< alternatives shown in `prompt_logprobs` */
  /** ACCRT_HTTP_REASONING_*: a chat's reasoning becomes `reasoning_content`, and that of a response
   * an item of its output; 0: it stays text */
  uint32_t reasoning;
  /** for forms that write arguments as plain text: lines of a function's name, a space and the name
   * of a parameter that is a string; `?` before the function's name: or null, which `null` and
   * `None` are then. Other arguments are JSON if they look so. NULL: none */
  const char* text_parameters;
  /** of ACCRT_HTTP_RESPONSE: members of the response that repeat the request, as JSON with a comma
   * before each of them. NULL: none */
  const char* members;
} accrt_http_format_t;
ACCRT_ASSERT_LAYOUT(accrt_http_format_t, members, 80);
#define ACCRT_HTTP_FORMAT_INIT ACCRT_STRUCT_INIT(accrt_http_format_t)

/** Submits requests to the engine, and answers the job with their results. The choices of the
 * answer are numbered in one sequence: those of the first request, then those of the second, and so
 * on.
 * @param requests `count` pointers, at least 1; all have the same `n`; those of a job of
 *   ACCRT_HTTP_EMBEDDING have `embed`, others have not. Copied; user_data is the server's own.
 *   Together they have at most 65,536 choices, and those of a job of ACCRT_HTTP_RESPONSE one.
 * @return ACCRT_OK; ACCRT_ERROR_CANCELLED (the client has left: the job counts as answered);
 *   ACCRT_ERROR_BUDGET (the prefixes of all choices, or the members of a response, have more than
 *   half of max_held_bytes), or a status of accrt_serve_engine_submit: the job is then not
 *   answered, and nothing of it runs. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_start(accrt_http_job_t* job,
                                          const accrt_serve_request_t* const* requests,
                                          uint32_t count, const accrt_http_format_t* format);

/** Why a job is refused, in OpenAI's form. Texts may be NULL; they are copied. Since: 0.4 */
typedef struct accrt_http_failure {
  uint32_t struct_size;
  uint32_t status; /**< HTTP's, 400 to 599 */
  const accrt_chain_t* next;
  const char* message;
  const char* type;      /**< NULL: chosen by the status */
  const char* parameter; /**< the offending one */
  const char* code;
} accrt_http_failure_t;
ACCRT_ASSERT_LAYOUT(accrt_http_failure_t, code, 48);
#define ACCRT_HTTP_FAILURE_INIT ACCRT_STRUCT_INIT(accrt_http_failure_t)

/** Answers a job with a failure. 429 and 503 get `Retry-After`. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_fail(accrt_http_job_t* job,
                                         const accrt_http_failure_t* failure);

/** Answers a job with a body that the worker made. Copied. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_answer(accrt_http_job_t* job, uint32_t status,
                                           const char* content_type, const void* body,
                                           uint64_t body_bytes);

/* ---- Calls of tools and reasoning, without a server ---- */

/** Finds calls of tools and reasoning in one text, as a server does in its answers. Use it from one
 * thread at a time. */
typedef struct accrt_http_calls accrt_http_calls_t;

/** The result of a piece of text. Frozen. Since: 0.4 */
typedef struct accrt_http_call_news {
  /** text that is no call and no reasoning; not NUL-terminated. Lent until the next push */
  const char* content;
  uint64_t content_bytes;
  /** entries of OpenAI's `tool_calls` as a stream has them, divided by commas: JSON between
   * brackets. The first of a call has `index`, `id`, `type` and the function's name; all have a
   * piece of the arguments' text. Lent until the next push */
  const char* entries;
  uint64_t entries_bytes;
  uint32_t call_count;   /**< calls so far */
  uint32_t reserved;     /**< 0 */
  const char* reasoning; /**< not NUL-terminated. Lent until the next push */
  uint64_t reasoning_bytes;
} accrt_http_call_news_t;
ACCRT_ASSERT_LAYOUT(accrt_http_call_news_t, reasoning_bytes, 56);

/** Makes an object that finds calls of tools and reasoning in one text.
 * @param form ACCRT_HTTP_TOOLS_*; 0: calls stay text. @param most how many calls are kept; 0: all.
 * @param text_parameters as in accrt_http_format_t. Copied.
 * @param reasoning ACCRT_HTTP_REASONING_*; 0: reasoning stays text. At least one of both is not 0.
 * @param out_calls owned.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_calls_create(uint32_t form, uint32_t most,
                                                 const char* text_parameters, uint32_t reasoning,
                                                 accrt_http_calls_t** out_calls);
/** Returns `calls`. Since: 0.4 */
ACCRT_API accrt_http_calls_t* accrt_http_calls_retain(accrt_http_calls_t* calls);
/** NULL does nothing. Since: 0.4 */
ACCRT_API void accrt_http_calls_release(accrt_http_calls_t* calls);
/** Takes the next bytes of the text, which must be complete UTF-8 characters. The result does not
 * depend on where the text is divided.
 * @param text `text_bytes` bytes; may be NULL if there are none. @param last not 0: the text has
 *   ended; if a call is not complete then, its beginning is given as text. No push may follow.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT; ACCRT_ERROR_INVALID_STATE (the text has ended);
 *   ACCRT_ERROR_OUT_OF_MEMORY (the object then takes no more text). Since: 0.4 */
ACCRT_API accrt_status_t accrt_http_calls_push(accrt_http_calls_t* calls, const char* text,
                                               uint64_t text_bytes, uint32_t last,
                                               accrt_http_call_news_t* out_news);

/** Version of libaccrt_http, as ACCRT_MAKE_VERSION. Since: 0.4 */
ACCRT_API uint32_t accrt_http_version(void);

ACCRT_END
#endif /* ACCRT_HTTP_H_ */
