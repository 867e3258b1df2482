/* serve/http/request.c - from bytes to a request, by llhttp. Strict: whatever servers along the way
 * might read in two ways is refused. It sends nothing. */
#include "serve/http/server.h"

#include <string.h>
#include <strings.h>

enum { FIELD_BYTES = 4 /* what a header costs beside its name and value */ };
/* A proxy may have looked at the other one. */
enum {
  SINGLE_HEADERS = 1u << HEADER_AUTHORIZATION | 1u << HEADER_CONTENT_ENCODING | 1u << HEADER_HOST |
                   1u << HEADER_TRANSFER_ENCODING
};

void accrt_http_refuse(http_connection_t* c, uint32_t status, const char* code,
                       const char* message) {
  if (c->refusal.status == 0)
    c->refusal = (http_failure_t){.status = status, .code = code, .message = message};
}

static http_connection_t* of(llhttp_t* parser) {
  return parser->data;
}

/* Counts bytes of the path and the headers. */
static int count(http_connection_t* c, size_t size) {
  c->header_bytes += size;
  if (c->header_bytes <= c->server->max_header_bytes)
    return 0;
  accrt_http_refuse(c, 431, "headers_too_large", "The path and the headers are too large.");
  return HPE_USER;
}

static int on_url(llhttp_t* parser, const char* at, size_t size) {
  http_connection_t* c = of(parser);
  accrt_http_put(&c->target, at, size);
  return count(c, size);
}

static int on_field(llhttp_t* parser, const char* at, size_t size) {
  http_connection_t* c = of(parser);
  if (c->has_head != 0) /* a trailer is no header: no proxy takes its Authorization for one */
    return count(c, size);
  for (size_t i = 0; i < size && c->field_size < sizeof c->field; ++i)
    c->field[c->field_size++] = at[i];
  return count(c, size);
}

static int on_field_end(llhttp_t* parser) {
  static const char* const names[HEADER_COUNT] = {[HEADER_AUTHORIZATION] = "authorization",
                                                  [HEADER_EXPECT] = "expect",
                                                  [HEADER_HOST] = "host",
                                                  [HEADER_TRANSFER_ENCODING] = "transfer-encoding",
                                                  [HEADER_REQUEST_HEADERS] =
                                                      "access-control-request-headers",
                                                  [HEADER_CONTENT_ENCODING] = "content-encoding"};
  http_connection_t* c = of(parser);
  c->header = HEADER_OTHER;
  if (c->has_head != 0)
    return count(c, FIELD_BYTES);
  for (uint32_t i = HEADER_OTHER + 1; i < HEADER_COUNT; ++i)
    if (strlen(names[i]) == c->field_size && strncasecmp(names[i], c->field, c->field_size) == 0)
      c->header = (http_header_t)i;
  c->field_size = 0;
  const uint32_t bit = 1u << c->header;
  if ((SINGLE_HEADERS & c->seen & bit) != 0) {
    accrt_http_refuse(c, 400, "invalid_request",
                      "Host, Authorization, Content-Encoding and Transfer-Encoding may be there "
                      "once.");
    return HPE_USER;
  }
  c->seen |= bit;
  if (c->header != HEADER_OTHER) /* the last one of a name counts */
    c->values[c->header].size = 0;
  return count(c, FIELD_BYTES);
}

static int on_value(llhttp_t* parser, const char* at, size_t size) {
  http_connection_t* c = of(parser);
  if (c->header != HEADER_OTHER)
    accrt_http_put(&c->values[c->header], at, size);
  return count(c, size);
}

static size_t size_before(const char* text, size_t size, char end) {
  const char* at = size == 0 ? NULL : memchr(text, end, size);
  return at == NULL ? size : (size_t)(at - text);
}

/* The path alone: without scheme and host, which a proxy's client sends, and without the query. */
static void find_route(http_connection_t* c) {
  const char* path = c->target.data;
  size_t size = size_before(path, c->target.size, '?');
  if (size > 7 && strncasecmp(path, "http://", 7) == 0) {
    const size_t authority = 7 + size_before(path + 7, size - 7, '/');
    path += authority;
    size -= authority;
    if (size == 0) { /* a host alone means its first page */
      path = "/";
      size = 1;
    }
  }
  c->route = size == 0 ? &accrt_http_no_route : accrt_http_route(path, size);
}

/* Without the spaces at its end. */
static size_t trimmed(const http_text_t* value) {
  size_t size = value->size;
  while (size > 0 && (value->data[size - 1] == ' ' || value->data[size - 1] == '\t'))
    --size;
  return size;
}

static uint32_t is_value(const http_text_t* value, const char* wanted) {
  const size_t size = trimmed(value);
  return size == strlen(wanted) && (size == 0 || strncasecmp(value->data, wanted, size) == 0);
}

static uint32_t is_host(const http_text_t* value) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-._~%!$&'()*+,;=:[]";
  for (size_t i = 0, size = trimmed(value); i < size; ++i)
    if (memchr(letters, value->data[i], sizeof letters - 1) == NULL)
      return 0;
  return 1;
}

/* What RFC 9112 has a server refuse of a head, beyond what the parser does. */
static void check_head(http_connection_t* c) {
  const llhttp_t* parser = &c->parser;
  const uint32_t has_coding = c->seen & 1u << HEADER_TRANSFER_ENCODING;
  if (parser->http_major != 1 || parser->http_minor > 1)
    accrt_http_refuse(c, 505, "unknown_version", "HTTP/1.1 and HTTP/1.0 are spoken here.");
  else if (c->old_version == 0 && (c->seen & 1u << HEADER_HOST) == 0)
    accrt_http_refuse(c, 400, "invalid_request", "A request of HTTP/1.1 has the header Host.");
  else if (!is_host(&c->values[HEADER_HOST]))
    accrt_http_refuse(c, 400, "invalid_request", "The header Host is no name of a host.");
  else if (has_coding && c->old_version != 0)
    accrt_http_refuse(c, 400, "invalid_request", "HTTP/1.0 has no Transfer-Encoding.");
  else if (has_coding && !is_value(&c->values[HEADER_TRANSFER_ENCODING], "chunked"))
    accrt_http_refuse(c, 501, "unsupported_encoding",
                      "Of Transfer-Encoding, `chunked` alone is supported.");
}

static int on_headers(llhttp_t* parser) {
  http_connection_t* c = of(parser);
  parser->upgrade = 0; /* nothing else is spoken here: the request is served as it is */
  c->keep = llhttp_should_keep_alive(parser) != 0;
  c->old_version = parser->http_major < 1 || (parser->http_major == 1 && parser->http_minor == 0);
  c->head_only = parser->method == HTTP_HEAD;
  c->has_head = 1;
  find_route(c);
  check_head(c);
  if (c->refusal.status != 0)
    return -1;
  const int has_length = (parser->flags & F_CONTENT_LENGTH) != 0;
  if (has_length && parser->content_length > c->server->max_body_bytes) {
    accrt_http_refuse(c, 413, "body_too_large", "The body is too large.");
    return -1;
  }
  const int has_body = (has_length && parser->content_length > 0) || (parser->flags & F_CHUNKED);
  const http_text_t* encoding = &c->values[HEADER_CONTENT_ENCODING];
  if (has_body && !is_value(encoding, "") && !is_value(encoding, "identity")) {
    accrt_http_refuse(c, 415, "unsupported_encoding",
                      "The body is encoded (Content-Encoding), which is not supported.");
    return -1;
  }
  const http_text_t* expect = &c->values[HEADER_EXPECT];
  if (has_body && expect->size == 12 && strncasecmp(expect->data, "100-continue", 12) == 0) {
    accrt_http_put_text(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    accrt_http_connection_touch(c);
  }
  return 0;
}

static int on_body(llhttp_t* parser, const char* at, size_t size) {
  http_connection_t* c = of(parser);
  http_server_t* server = c->server;
  if (c->body.size + size > server->max_body_bytes) {
    accrt_http_refuse(c, 413, "body_too_large", "The body is too large.");
    return HPE_USER;
  }
  const uint64_t held = atomic_fetch_add(&server->held_bytes, size) + size;
  accrt_http_put(&c->body, at, size);
  if (c->body.failed != 0 || held > server->max_held_bytes) {
    if (c->body.failed != 0)
      atomic_fetch_sub(&server->held_bytes, size);
    accrt_http_refuse(c, 503, "overloaded", "The server holds as many requests as it may.");
    return HPE_USER;
  }
  return 0;
}

static int on_complete(llhttp_t* parser) {
  of(parser)->complete = 1;
  return HPE_PAUSED;
}

static const llhttp_settings_t* settings(void) {
  static const llhttp_settings_t functions = {.on_url = on_url,
                                              .on_header_field = on_field,
                                              .on_header_field_complete = on_field_end,
                                              .on_header_value = on_value,
                                              .on_headers_complete = on_headers,
                                              .on_body = on_body,
                                              .on_message_complete = on_complete};
  return &functions;
}

void accrt_http_request_drop(http_connection_t* c) {
  atomic_fetch_sub(&c->server->held_bytes, c->body.size);
  accrt_http_text_clear(&c->body);
}

/* Ready for the next request. */
void accrt_http_request_init(http_connection_t* c) {
  llhttp_init(&c->parser, HTTP_REQUEST, settings());
  c->parser.data = c;
  accrt_http_text_clear(&c->target);
  accrt_http_request_drop(c);
  for (uint32_t i = 0; i < HEADER_COUNT; ++i)
    accrt_http_text_clear(&c->values[i]);
  c->field_size = 0;
  c->seen = 0;
  c->header_bytes = 0;
  c->begun = c->complete = c->keep = c->old_version = c->head_only = c->has_head = 0;
  c->line = (http_line_t){0};
  c->route = NULL;
  c->refusal = (http_failure_t){0};
  c->status = 0;
  c->sent_bytes = 0;
}

void accrt_http_request_deinit(http_connection_t* c) {
  atomic_fetch_sub(&c->server->held_bytes, c->body.size);
  accrt_http_text_deinit(&c->target);
  accrt_http_text_deinit(&c->body);
  for (uint32_t i = 0; i < HEADER_COUNT; ++i)
    accrt_http_text_deinit(&c->values[i]);
}

/* Bytes that follow a complete request wait until it is answered. */
static void keep_rest(http_connection_t* c, const char* bytes, size_t size) {
  const char* end = llhttp_get_error_pos(&c->parser);
  if (end == NULL || end < bytes || end > bytes + size)
    return;
  accrt_http_put(&c->early, end, size - (size_t)(end - bytes));
}

/* Looks at a byte of the first line, which is three words of which the last one names HTTP. */
static const char* first_line(http_line_t* line, char byte) {
  if (byte == '\n')
    return line->spaces == 2 && memcmp(line->end, "HTTP/", 5) == 0
               ? NULL
               : "The first line is no METHOD TARGET HTTP/VERSION";
  line->spaces += byte == ' ';
  if (byte != '\r') {
    memmove(line->end, line->end + 1, sizeof line->end - 1);
    line->end[sizeof line->end - 1] = byte;
  }
  return NULL;
}

static const char* header_begin(char byte) {
  if (byte == ' ' || byte == '\t')
    return "A header is continued on a line that begins with a space";
  return byte == ':' ? "A header has no name" : NULL;
}

/* What the parser would let through of a head. NULL: nothing. */
static const char* check_lines(http_line_t* line, const char* bytes, size_t size) {
  for (size_t i = 0; i < size && line->is_over == 0; ++i) {
    const char byte = bytes[i];
    const char* fault = NULL;
    if (line->number == 0 && (line->size > 0 || (byte != '\n' && byte != '\r')))
      fault = first_line(line, byte);
    else if (line->number > 0 && line->size == 0)
      fault = header_begin(byte);
    if (fault != NULL)
      return fault;
    if (byte != '\n') {
      line->size += byte != '\r';
      continue;
    }
    line->is_over = line->number > 0 && line->size == 0; /* empty lines may precede the first */
    line->number += line->size > 0;
    line->size = 0;
  }
  return NULL;
}

void accrt_http_request_feed(http_connection_t* c, const char* bytes, size_t size) {
  if (c->begun == 0) {
    c->begun = 1;
    c->arrived_ns = c->server->now_ns;
  }
  const char* fault = check_lines(&c->line, bytes, size);
  if (fault != NULL) {
    c->keep = 0;
    accrt_http_refuse(c, 400, "malformed_request", fault);
    return;
  }
  const llhttp_errno_t result = llhttp_execute(&c->parser, bytes, size);
  if (result == HPE_OK)
    return;
  if (result == HPE_PAUSED && c->complete != 0) {
    keep_rest(c, bytes, size);
    return;
  }
  c->keep = 0;
  const char* reason = llhttp_get_error_reason(&c->parser);
  accrt_http_refuse(c, 400, "malformed_request",
                    reason != NULL && reason[0] != 0 ? reason : "This is no HTTP request.");
}
