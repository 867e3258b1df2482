/* serve/http/server.h - what the files of the HTTP front share.
 *
 * One thread, the loop's, owns every connection. Workers (threads of the caller) take jobs and
 * answer them: what they answer goes through `inbox` to the loop. A job belongs to the loop until
 * accrt_http_next hands it out, to its worker until it is answered, and then to the loop again.
 * `lock` guards the two lists and their counts; nothing is sent, and no user code runs, under it.
 * `submitting` is held by a worker while it gives a job's requests to the engine, so that the loop
 * sees events of all of them or of none. runtime/core/lock_order.h has the order of both.
 */
#ifndef ACCRT_SERVE_HTTP_SERVER_H_
#define ACCRT_SERVE_HTTP_SERVER_H_

#include "accrt/http.h"
#include "serve/http/metrics.h"
#include "serve/http/text.h"
#include "serve/http/thoughts.h"
#include "serve/http/tools.h"
#include "serve/lock.h"

#include <llhttp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define HTTP_SECOND_NS UINT64_C(1000000000)

typedef struct accrt_http_server http_server_t;
typedef struct http_connection http_connection_t;

/* ---- Failures ---- */

/* Records a failure of the public function `operation` and returns its status. */
accrt_status_t accrt_http_failed(const char* operation, const char* file, uint32_t line,
                                 accrt_status_t status, int error_number, const char* format, ...)
    __attribute__((format(printf, 6, 7)));
#define HTTP_FAIL(status, ...)                                                                     \
  accrt_http_failed(__func__, __FILE__, __LINE__, ACCRT_ERROR_##status, 0, __VA_ARGS__)
#define HTTP_FAIL_ERRNO(number, ...)                                                               \
  accrt_http_failed(__func__, __FILE__, __LINE__, ACCRT_ERROR_IO, number, __VA_ARGS__)

/* An answer that is no success, in OpenAI's form. Texts may be NULL. */
typedef struct http_failure {
  uint32_t status;
  const char* type;
  const char* parameter;
  const char* code;
  const char* message;
} http_failure_t;

/* What /health says. */
typedef enum http_health {
  HTTP_HEALTHY,
  HTTP_ENGINE_FAILED, /* for good */
  HTTP_ENGINE_STUCK,
  HTTP_WORKERS_STUCK,
} http_health_t;

/* ---- Connections ---- */

typedef enum http_phase {
  HTTP_READING,  /* a request, or the first byte of one */
  HTTP_WAITING,  /* a job has it: nothing is read */
  HTTP_SENDING,  /* the answer is complete, and leaves */
  HTTP_LINGERING /* the answer has left: what still comes is dropped, so that it is not lost */
} http_phase_t;

typedef enum http_header {
  HEADER_OTHER,
  HEADER_AUTHORIZATION,
  HEADER_EXPECT,
  HEADER_HOST,
  HEADER_TRANSFER_ENCODING,
  HEADER_REQUEST_HEADERS,
  HEADER_CONTENT_ENCODING,
  HEADER_COUNT
} http_header_t;

/* Where in the lines of a head its reader is. */
typedef struct http_line {
  uint64_t number; /* of those that ended; 0: the first one */
  uint64_t size;   /* of this one, as far as it is there */
  uint64_t spaces; /* of the first one */
  char end[8];     /* of the first one: its last bytes */
  uint32_t is_over;
} http_line_t;

struct http_connection {
  http_server_t* server;
  http_connection_t* previous;
  http_connection_t* next;
  http_connection_t* next_dirty; /* those with something to send at the end of this turn */
  uint32_t dirty;
  int32_t fd;
  uint32_t interest; /* what epoll watches */
  http_phase_t phase;
  uint64_t deadline_ns; /* of the phase; UINT64_MAX: none */
  uint64_t stalled_ns;  /* since when the client takes nothing of what waits; 0: it does */
  char peer[64];

  llhttp_t parser;
  http_text_t target;
  http_text_t body;
  http_text_t values[HEADER_COUNT];
  http_text_t early; /* bytes after the request: the next one's */
  char field[32];
  uint32_t field_size;
  http_header_t header;
  uint32_t seen; /* bits of the headers that have come */
  http_line_t line;
  uint64_t header_bytes;
  uint32_t begun;       /* the first byte of a request has come */
  uint32_t has_head;    /* the headers are there: what follows are a body and trailers */
  uint32_t complete;    /* a whole request is there */
  uint32_t keep;        /* another request may follow */
  uint32_t old_version; /* HTTP/1.0 */
  uint32_t head_only;   /* HEAD */
  const struct http_route* route;
  http_failure_t refusal; /* status 0: none */

  http_text_t out;
  size_t sent;
  uint64_t answer_bytes; /* of the server's, those of this answer */
  struct accrt_http_job* job;

  /* For the log and the measures. */
  uint64_t arrived_ns;
  uint32_t status;
  uint64_t sent_bytes;
};

/* ---- Routes ---- */

typedef struct http_route {
  const char* path;
  const char* methods; /* for the header Allow */
  uint32_t method_bits;
  uint32_t needs_key;
  uint32_t job_kind; /* 0: answered by `answer` */
  void (*answer)(http_connection_t* connection);
} http_route_t;

#define HTTP_BIT_GET 1u
#define HTTP_BIT_POST 2u

/* The route of a path; NULL where there is none. */
const http_route_t* accrt_http_route(const char* path, size_t size);
extern const http_route_t accrt_http_no_route;

/* ---- Jobs ---- */

/* Lists of log probabilities: chat has one of objects, completions have four side by side. */
enum { HTTP_LISTS = 4 };

/* What came of a choice and has not been written: all of it for a whole answer; for a stream, what
 * waits while the client is slow. */
typedef struct http_choice {
  http_text_t text;
  http_text_t reasoning;
  http_text_t calls;  /* of tools: entries of tool_calls */
  http_text_t prompt; /* of the first choice of a request: entries of prompt_logprobs */
  http_text_t lists[HTTP_LISTS];
  http_text_t waiting; /* of a stream: log probabilities as numbers, which take less than as JSON */
  size_t written;      /* bytes of `waiting` */
  uint32_t tokens;
  uint64_t offset;           /* characters before the next token (text_offset of completions) */
  uint64_t prefix;           /* characters of what was put before it */
  uint32_t begun;            /* its first chunk, with the role, has been written */
  uint32_t ended;            /* its last chunk has been written */
  const char* finish_reason; /* NULL: it goes on */
} http_choice_t;

/* What finds the reasoning of a choice: in its text, and, to count them, in its tokens, which may
 * come before their text. */
typedef struct http_readers {
  http_thoughts_t text, tokens;
  /* Where the reasoning is left out, log probabilities of tokens that may begin the answer or the
   * first mark: numbers. */
  http_text_t undecided;
  uint32_t top_count; /* alternatives of each of them */
} http_readers_t;

static inline size_t accrt_http_choice_bytes(const http_choice_t* choice) {
  size_t bytes = choice->text.size + choice->reasoning.size + choice->calls.size +
                 choice->waiting.size - choice->written;
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    bytes += choice->lists[list].size;
  return bytes;
}

/* What the output of a response has: one after the other. */
typedef enum http_item {
  HTTP_ITEM_NONE,
  HTTP_ITEM_REASONING,
  HTTP_ITEM_MESSAGE,
  HTTP_ITEM_CALL
} http_item_t;

enum { HTTP_ID_DIGITS = 24 };

/* What a job of ACCRT_HTTP_RESPONSE keeps of its answer, all of which comes again at the end of a
 * stream. */
typedef struct http_response {
  char id[HTTP_ID_DIGITS + 1]; /* in the ids of its items */
  http_item_t open;            /* the item that goes on */
  uint32_t item_count;         /* before that one */
  uint64_t event_count;
  uint64_t burst_bytes; /* of events that repeat what other events have */
  http_text_t items;    /* those that are complete */
  /* Of the open item: its text, as in a JSON string; log probabilities; a call's id and name. */
  http_text_t text, logprobs, call;
  http_text_t early; /* log probabilities of tokens whose text has not come */
} http_response_t;

/* One request of the engine's; its user_data. */
typedef struct http_part {
  struct http_flight* flight;
  uint64_t id;
  uint32_t index;
  uint32_t ended;
  uint32_t prompt_tokens, cached_tokens;
} http_part_t;

/* All requests of a job. Lives until each has had its last event, whatever became of the job. */
typedef struct http_flight {
  struct accrt_http_job* job; /* NULL: the events are not wanted */
  uint32_t count;
  uint32_t open;
  http_part_t parts[];
} http_flight_t;

struct accrt_http_job {
  http_server_t* server;
  struct accrt_http_job* next;   /* of the list it is in */
  http_connection_t* connection; /* the loop's; NULL once the client has left */
  _Atomic uint32_t left;         /* the client has */
  uint32_t taken;                /* a worker has it; under the lock */
  uint32_t settled;              /* it came back from the worker; the loop's */
  uint32_t kind;
  uint64_t number;
  uint64_t held_bytes; /* of the request's body */
  http_text_t body;

  /* What a worker made: the engine's requests, or an answer. */
  http_flight_t* flight;
  http_text_t ready;
  uint32_t ready_status;
  char ready_type[64];

  /* The form of what the engine makes. */
  uint32_t flags;
  uint32_t top_logprobs;
  uint32_t prompt_top_logprobs;
  uint32_t choices_per_part;
  uint32_t constrained; /* 1: the text has to be one of a grammar's */
  uint32_t choice_count;
  uint32_t choices_open;
  http_choice_t* choices;
  http_tools_t* tools;         /* of each choice; NULL: calls are text */
  http_text_t text_parameters; /* that they look at */
  http_readers_t* readers;     /* of each choice; NULL: reasoning is text */
  uint32_t next_choice;        /* whose turn it is to be written */
  http_text_t before;          /* of each chunk: up to the list of choices */
  http_response_t response;    /* of ACCRT_HTTP_RESPONSE */

  size_t unsent_bytes; /* of the choices, of a whole answer as JSON; the worker's until the engine
                          * has the requests */
  /* Of that and of what was written, at most: what comes all at once, however fast the client
   * reads, such as log probabilities of prompts. */
  uint64_t burst_bytes;
  uint32_t head_sent;
  uint32_t done; /* nothing more will be sent */
  uint64_t arrived_ns;
  uint64_t first_ns;     /* of the first token; 0: none yet */
  uint64_t given_tokens; /* of the prompts, before their sequences say so */
  uint64_t prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
};

/* ---- The server ---- */

struct accrt_http_server {
  _Atomic uint32_t references;
  int32_t process;
  accrt_allocator_t allocator;
  accrt_serve_engine_t* engine;

  /* Options, with their defaults filled in. Texts are copies. */
  char* host;
  char* model;
  char* api_key;
  char* cors_origin;
  char* page;
  uint64_t page_bytes;
  int32_t log_fd;
  uint32_t max_connections, max_jobs, retry_after_s, max_model_tokens;
  uint64_t max_header_bytes, max_body_bytes, max_held_bytes, max_output_bytes;
  uint64_t request_timeout_ns, idle_timeout_ns, stall_timeout_ns, health_timeout_ns;

  /* Of the loop. */
  pthread_t thread;
  uint32_t has_thread;
  int32_t epoll, listener, wake;
  int32_t spare; /* kept for refusing a client when there is no other; -1: that one was gone, too */
  int32_t incoming;           /* a client's, until it is a connection's; else -1 */
  http_server_t* next_server; /* forks.c */
  uint32_t port;
  http_connection_t* connections;
  _Atomic uint32_t connection_count;
  http_connection_t* dirty;
  uint64_t now_ns;
  uint64_t next_deadline_ns;
  uint64_t accept_again_ns; /* no descriptors were left; 0: accepting */
  uint64_t jobs_made;
  uint64_t started_at; /* seconds since 1970 */
  char date[32];
  uint64_t date_of;
  uint64_t seen_steps, seen_steps_ns; /* for /health */
  uint32_t seen_busy;
  uint64_t end_by_ns; /* the end waits for the engine no longer than this */
  char* input;
  accrt_serve_event_t* events;
  const unsigned char* token_bytes; /* docs/serving.md; NULL: unknown */
  uint32_t token_count;
  http_text_t scratch;
  http_connection_t* dead; /* closed in this turn */
  http_metrics_t metrics;  /* of the loop's thread */
  uint64_t counters_id;    /* of their group; 0: it was not added */

  accsv_lock_t lock;
  http_metrics_t shown; /* under the lock: `metrics` at the end of the last turn */
  pthread_cond_t changed;
  struct accrt_http_job* queue_first;
  struct accrt_http_job* queue_last;
  struct accrt_http_job* inbox_first;
  struct accrt_http_job* inbox_last;
  uint32_t queued;
  uint32_t jobs_alive;
  uint64_t taken_ns;         /* when a worker last took a request */
  _Atomic uint32_t draining; /* no new requests */
  _Atomic uint32_t cutting;  /* nor the rest of those that are there */
  _Atomic uint32_t stopping; /* and then the thread ends */
  uint32_t ended;            /* nothing comes any more */
  _Atomic uint32_t flights;
  _Atomic uint64_t held_bytes;
  uint64_t counted_bytes;        /* of all connections' answers; the loop's */
  _Atomic uint64_t answer_bytes; /* the same, for others to read */
  accsv_lock_t submitting;
};

/* ---- forks.c ---- */

/* Its descriptors, and those of its connections, are closed in children. */
void accrt_http_forks_join(http_server_t* server);
void accrt_http_forks_leave(http_server_t* server);
/* In between no other thread forks. Descriptors that children close are opened, listed and closed
 * then; nothing else is done. */
void accrt_http_forks_hold(void);
void accrt_http_forks_let(void);
/* Asserts that this thread is between the two. */
void accrt_http_forks_assert_held(void);
/* Closes one of them, and makes it -1. */
void accrt_http_forks_close(int32_t* fd);

/* ---- connection.c ---- */

/* While less than this waits to be sent, a stream's chunks are written; what comes beyond is kept
 * as text, and written as fewer chunks later. */
#define HTTP_RESUME_BYTES 32768u
/* Log probabilities beyond this go into another chunk. */
#define HTTP_CHUNK_BYTES 16384u

/* What waits to be sent. */
static inline size_t accrt_http_backlog(const http_connection_t* connection) {
  return connection->out.size - connection->sent;
}
/* Takes over the server's `incoming`, which is closed where there is no memory. */
void accrt_http_connection_open(http_server_t* server, const char* peer);
/* Closes it; its job is cancelled. It is freed at the end of the turn. */
void accrt_http_connection_close(http_connection_t* connection);
void accrt_http_connection_free(http_connection_t* connection);
/* What epoll says of it. */
void accrt_http_connection_ready(http_connection_t* connection, uint32_t events);
/* Its deadline has passed. */
void accrt_http_connection_late(http_connection_t* connection);
/* Something was put into `out`, or the phase has changed: looked at at the end of the turn. */
void accrt_http_connection_touch(http_connection_t* connection);
/* Sends what can be sent, and goes on to the next request where this one is answered. */
void accrt_http_connection_settle(http_connection_t* connection);
/* Closes it so that the client learns that its answer is not whole. */
void accrt_http_connection_abort(http_connection_t* connection);
/* Its answer has grown. If all answers take more than they may, the largest ones end, which may be
 * this one: its job is gone then. */
void accrt_http_connection_grew(http_connection_t* connection);

/* ---- request.c: from bytes to a request ---- */

void accrt_http_request_init(http_connection_t* connection);
void accrt_http_request_deinit(http_connection_t* connection);
/* Gives back the body's memory. */
void accrt_http_request_drop(http_connection_t* connection);
/* Gives bytes to the parser. Afterwards `complete` or `refusal` may be set; what was not read yet
 * is in `early`. */
void accrt_http_request_feed(http_connection_t* connection, const char* bytes, size_t size);
void accrt_http_refuse(http_connection_t* connection, uint32_t status, const char* code,
                       const char* message);

/* ---- routes.c ---- */

/* Answers the request that is complete or refused, or makes a job of it. */
void accrt_http_dispatch(http_connection_t* connection);

/* ---- answer.c ---- */

#define HTTP_NO_SIZE UINT64_MAX
/* The head of an answer. HTTP_NO_SIZE: in chunks, or up to the end of the connection. */
void accrt_http_answer_head(http_connection_t* connection, uint32_t status,
                            const char* content_type, uint64_t size, const char* extra);
/* A whole answer; the connection sends it. It must be complete or refused. */
void accrt_http_answer_whole(http_connection_t* connection, uint32_t status,
                             const char* content_type, const void* body, size_t size,
                             const char* extra);
void accrt_http_answer_failure(http_connection_t* connection, const http_failure_t* failure);
/* The same, with the JSON made before. */
void accrt_http_answer_refusal(http_connection_t* connection, uint32_t status,
                               const http_text_t* body);
/* Seconds after which a client that was refused may find room. */
uint32_t accrt_http_retry_after(const http_server_t* server);
/* The JSON of a failure. */
void accrt_http_put_failure(http_text_t* text, const http_failure_t* failure);
/* The connection's answer is whole. */
void accrt_http_answer_done(http_connection_t* connection);

/* ---- jobs.c: between the loop and the workers ---- */

/* Makes a job of the complete request and queues it; else answers why not. */
void accrt_http_job_make(http_connection_t* connection);
/* The client has left. */
void accrt_http_job_leave(struct accrt_http_job* job);
/* The answer is whole: the job is freed with its last owner. */
void accrt_http_job_finish(struct accrt_http_job* job);
/* Takes what workers have answered. */
void accrt_http_inbox(http_server_t* server);
/* Frees it if none of its requests is open. */
void accrt_http_flight_end(http_server_t* server, http_flight_t* flight);
/* Cancels the engine's requests that have not ended, and wants no more of them. */
void accrt_http_flight_drop(http_server_t* server, http_flight_t* flight);

/* ---- stream.c: from events of the engine to answers ---- */

void accrt_http_events(http_server_t* server);
/* The client has taken enough of what waited: what was held back is written, a part at a time.
 * 0: there is nothing. */
uint32_t accrt_http_stream_resume(struct accrt_http_job* job);

/* ---- chunk.c: OpenAI's JSON ---- */

/* {"id":...,"model":... up to and without the choices. */
void accrt_http_put_before(struct accrt_http_job* job, const accrt_http_format_t* format);
/* Adds the event's log probabilities to the choice: as JSON, or for a stream as numbers. */
void accrt_http_put_logprobs(struct accrt_http_job* job, http_choice_t* choice,
                             const accrt_serve_event_t* event, size_t text_bytes);
/* The same of the prompt's tokens, whose text is all that the choice has. */
void accrt_http_put_prompt_logprobs(struct accrt_http_job* job, http_choice_t* choice,
                                    const accrt_serve_event_t* event);
/* Entries of prompt_logprobs, as vLLM has them. */
void accrt_http_put_vllm_logprobs(const struct accrt_http_job* job, http_text_t* text,
                                  const accrt_serve_event_t* event);
/* A token's bytes, from the table that docs/serving.md describes; NULL: it is not there. */
const char* accrt_http_token(const http_server_t* server, int32_t token, size_t* out_size);
/* The text of a prompt's tokens. */
void accrt_http_put_prompt(const http_server_t* server, http_text_t* text, const int32_t* tokens,
                           uint32_t count);
/* Writes what a stream's choice has into the connection; of many log probabilities, some. */
void accrt_http_put_chunks(struct accrt_http_job* job, uint32_t index);
/* The end of a stream: usage if asked for, [DONE], the last chunk of HTTP. */
void accrt_http_put_end(struct accrt_http_job* job);
/* A server-sent event with a failure, for a stream that has begun. */
void accrt_http_put_stream_failure(struct accrt_http_job* job, const http_failure_t* failure);
/* The body of a whole answer. */
void accrt_http_put_whole(struct accrt_http_job* job, http_text_t* body);

/* One server-sent event. `type`: its name; NULL: none. */
void accrt_http_put_event(http_connection_t* connection, const char* type, const char* data,
                          size_t size);
/* Turns events of `waiting` into lists, until those are as large as a chunk should be. Returns the
 * bytes of their text. */
size_t accrt_http_take_waiting(const struct accrt_http_job* job, http_choice_t* choice);

/* ---- response.c: OpenAI's responses ---- */

void accrt_http_response_init(http_response_t* response, const accrt_allocator_t* allocator);
void accrt_http_response_deinit(http_response_t* response);
/* The memory of what it keeps ran out. */
uint32_t accrt_http_response_failed(const http_response_t* response);
/* Takes what the choice has into items; of a stream, writes their events. */
void accrt_http_response_take(struct accrt_http_job* job);
/* The same of a stream, with the events that begin it. */
void accrt_http_response_put(struct accrt_http_job* job);
/* The last events of a stream: of one that has ended, or has failed. */
void accrt_http_response_end(struct accrt_http_job* job);
void accrt_http_response_fail(struct accrt_http_job* job, const http_failure_t* failure);
/* The body of a whole answer. */
void accrt_http_response_whole(struct accrt_http_job* job, http_text_t* body);

/* ---- embedding.c ---- */

/* The event's embedding, as JSON. */
void accrt_http_put_embedding(http_text_t* text, const accrt_serve_event_t* event, uint32_t flags);
/* The body of an answer whose choices are embeddings. */
void accrt_http_put_embeddings(const struct accrt_http_job* job, http_text_t* body);

/* ---- loop.c ---- */

void* accrt_http_loop(void* server);
void accrt_http_wake(http_server_t* server);
/* Sees to it that there is a spare descriptor, if one can be had. */
void accrt_http_keep_spare(http_server_t* server);
/* epoll watches the connection for this. */
void accrt_http_watch(http_connection_t* connection, uint32_t interest);
/* The connection's deadline is this. */
void accrt_http_deadline(http_connection_t* connection, uint64_t deadline_ns);
/* Shows the metrics to other threads, if they have changed. The loop's thread alone calls it. */
void accrt_http_show_metrics(http_server_t* server);
/* A line of the log for the answer, and its part of the metrics. */
void accrt_http_log(http_connection_t* connection);
/* Whether the engine lives and moves, and workers take requests. */
http_health_t accrt_http_health(http_server_t* server, accrt_serve_stats_t* out_stats);

/* ---- fail.c ---- */

/* ACCRT_ERROR_FORKED in a process that the server was not made in; NULL is refused by `name`. */
accrt_status_t accrt_http_same_process(const http_server_t* server, const char* name,
                                       const char* operation);
#define HTTP_ENTER_AS(name, server)                                                                \
  do {                                                                                             \
    const accrt_status_t entered_ = accrt_http_same_process(server, name, __func__);               \
    if (entered_ != ACCRT_OK)                                                                      \
      return entered_;                                                                             \
  } while (0)
#define HTTP_ENTER(server) HTTP_ENTER_AS("server", server)
#define HTTP_ENTER_JOB(job) HTTP_ENTER_AS("job", (job) == NULL ? NULL : (job)->server)
/* Copies a struct of a caller into one of `size` bytes, by the rules of accrt/base.h. `name`: the
 * argument's. */
accrt_status_t accrt_http_take_struct(void* to, size_t size, const void* from, const char* name,
                                      const char* operation);

/* ---- allocation ---- */

void* accrt_http_new(const accrt_allocator_t* allocator, size_t size);
void accrt_http_free(const accrt_allocator_t* allocator, void* pointer, size_t size);

#endif
