/* serve/http/answer.c - heads and bodies of answers that are not streams. It sends nothing: it
 * writes into the connection. */
#include "serve/http/server.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MOST_RETRY_S 600u

static const char* words_of(uint32_t status) {
  switch (status) {
  case 200:
    return "OK";
  case 204:
    return "No Content";
  case 400:
    return "Bad Request";
  case 401:
    return "Unauthorized";
  case 404:
    return "Not Found";
  case 405:
    return "Method Not Allowed";
  case 408:
    return "Request Timeout";
  case 413:
    return "Content Too Large";
  case 415:
    return "Unsupported Media Type";
  case 422:
    return "Unprocessable Content";
  case 429:
    return "Too Many Requests";
  case 431:
    return "Request Header Fields Too Large";
  case 500:
    return "Internal Server Error";
  case 501:
    return "Not Implemented";
  case 503:
    return "Service Unavailable";
  case 504:
    return "Gateway Timeout";
  case 505:
    return "HTTP Version Not Supported";
  default:
    return status < 400 ? "OK" : status < 500 ? "Bad Request" : "Server Error";
  }
}

static const char* type_of(uint32_t status) {
  if (status == 401)
    return "authentication_error";
  if (status == 429)
    return "rate_limit_error";
  if (status == 503)
    return "overloaded_error";
  if (status == 408 || status == 504)
    return "timeout_error";
  return status < 500 || status == 501 || status == 505 ? "invalid_request_error" : "server_error";
}

/* The date as HTTP has it, made anew when the second changes. */
static const char* date(http_server_t* server) {
  static const char days[] = "SunMonTueWedThuFriSat";
  static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const time_t now = time(NULL);
  if ((uint64_t)now == server->date_of)
    return server->date;
  struct tm parts;
  if (gmtime_r(&now, &parts) == NULL)
    return server->date;
  server->date_of = (uint64_t)now;
  snprintf(server->date, sizeof server->date, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT",
           days + parts.tm_wday * 3, parts.tm_mday, months + parts.tm_mon * 3,
           (parts.tm_year + 1900) % 10000, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return server->date;
}

static void put_origin(http_connection_t* c) {
  const http_server_t* server = c->server;
  if (server->cors_origin == NULL)
    return;
  accrt_http_put_format(&c->out, "Access-Control-Allow-Origin: %s\r\n", server->cors_origin);
  if (strcmp(server->cors_origin, "*") != 0)
    accrt_http_put_text(&c->out, "Vary: Origin\r\n");
}

void accrt_http_answer_head(http_connection_t* c, uint32_t status, const char* content_type,
                            uint64_t size, const char* extra) {
  http_server_t* server = c->server;
  c->status = status;
  if (server->draining != 0 || (size == HTTP_NO_SIZE && c->old_version != 0))
    c->keep = 0;
  accrt_http_put_format(&c->out, "HTTP/1.1 %u %s\r\nDate: %s\r\nServer: accrt\r\n", status,
                        words_of(status), date(server));
  if (content_type != NULL)
    accrt_http_put_format(&c->out, "Content-Type: %s\r\n", content_type);
  if (size != HTTP_NO_SIZE && status != 204)
    accrt_http_put_format(&c->out, "Content-Length: %llu\r\n", (unsigned long long)size);
  if (size == HTTP_NO_SIZE && c->old_version == 0)
    accrt_http_put_text(&c->out, "Transfer-Encoding: chunked\r\n");
  if (c->keep == 0)
    accrt_http_put_text(&c->out, "Connection: close\r\n");
  else if (c->old_version != 0)
    accrt_http_put_text(&c->out, "Connection: keep-alive\r\n");
  put_origin(c);
  if (extra != NULL)
    accrt_http_put_text(&c->out, extra);
  accrt_http_put_text(&c->out, "\r\n");
}

void accrt_http_answer_done(http_connection_t* c) {
  c->phase = HTTP_SENDING;
  accrt_http_log(c);
  accrt_http_connection_touch(c);
}

void accrt_http_answer_whole(http_connection_t* c, uint32_t status, const char* content_type,
                             const void* body, size_t size, const char* extra) {
  accrt_http_answer_head(c, status, content_type, size, extra);
  if (c->head_only == 0)
    accrt_http_put(&c->out, body, size);
  accrt_http_answer_done(c);
}

void accrt_http_put_failure(http_text_t* text, const http_failure_t* failure) {
  accrt_http_put_text(text, "{\"error\":{\"message\":");
  accrt_http_put_string(text,
                        failure->message != NULL ? failure->message : words_of(failure->status));
  accrt_http_put_text(text, ",\"type\":");
  accrt_http_put_string(text, failure->type != NULL ? failure->type : type_of(failure->status));
  accrt_http_put_text(text, ",\"param\":");
  accrt_http_put_string(text, failure->parameter);
  accrt_http_put_text(text, ",\"code\":");
  accrt_http_put_string(text, failure->code);
  accrt_http_put_text(text, "}}");
}

/* When what waits will have begun, at the pace of late. */
uint32_t accrt_http_retry_after(const http_server_t* server) {
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  if (server->engine == NULL || accrt_serve_engine_stats(server->engine, &stats) != ACCRT_OK)
    return server->retry_after_s;
  const uint64_t seconds = (stats.queue_ns + 999999999) / 1000000000;
  if (seconds <= server->retry_after_s)
    return server->retry_after_s;
  return seconds < MOST_RETRY_S ? (uint32_t)seconds : MOST_RETRY_S;
}

void accrt_http_answer_refusal(http_connection_t* c, uint32_t status, const http_text_t* body) {
  char extra[80] = "";
  if (status == 429 || status == 503) {
    ++c->server->metrics.refused;
    snprintf(extra, sizeof extra, "Retry-After: %u\r\n", accrt_http_retry_after(c->server));
  }
  if (status == 401)
    snprintf(extra, sizeof extra, "WWW-Authenticate: Bearer\r\n");
  if (status == 405)
    snprintf(extra, sizeof extra, "Allow: %s\r\n", c->route->methods);
  if (body->failed != 0)
    accrt_http_connection_abort(c);
  else
    accrt_http_answer_whole(c, status, "application/json", body->data, body->size, extra);
}

void accrt_http_answer_failure(http_connection_t* c, const http_failure_t* failure) {
  http_text_t body;
  accrt_http_text_init(&body, &c->server->allocator);
  accrt_http_put_failure(&body, failure);
  accrt_http_answer_refusal(c, failure->status, &body);
  accrt_http_text_deinit(&body);
}
