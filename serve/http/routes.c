/* serve/http/routes.c - which path is answered how, and the answers that need no worker. */
#include "serve/http/server.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char json_type[] = "application/json";

static void answer_page(http_connection_t* c) {
  const http_server_t* server = c->server;
  if (server->page == NULL) {
    const http_failure_t failure = {
        .status = 404, .code = "unknown_path", .message = "There is no page here; see /v1/models."};
    accrt_http_answer_failure(c, &failure);
    return;
  }
  /* It runs what is in it, and asks this server alone. */
  accrt_http_answer_whole(c, 200, "text/html; charset=utf-8", server->page,
                          (size_t)server->page_bytes,
                          "Content-Security-Policy: default-src 'none'; script-src "
                          "'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
                          "frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n");
}

static void answer_health(http_connection_t* c) {
  accrt_serve_stats_t stats;
  const http_health_t health = accrt_http_health(c->server, &stats);
  http_failure_t failure = {.status = 503, .code = "draining", .message = "The server is ending."};
  char message[160];
  if (health == HTTP_HEALTHY && c->server->draining == 0) {
    accrt_http_answer_whole(c, 200, json_type, "{\"status\":\"ok\"}", 15, NULL);
    return;
  }
  if (health == HTTP_ENGINE_FAILED) {
    snprintf(message, sizeof message, "The engine has failed for good: %s.",
             accrt_status_text(stats.failure));
    failure.code = "engine_failed";
    failure.message = message;
  } else if (health == HTTP_ENGINE_STUCK) {
    failure.code = "engine_stuck";
    failure.message = "Work waits, and the engine makes no steps.";
  } else if (health == HTTP_WORKERS_STUCK) {
    failure.code = "workers_stuck";
    failure.message = "Requests wait, and no worker takes them.";
  }
  accrt_http_answer_failure(c, &failure);
}

/* Finishes with a body that was put together here. */
static void answer_text(http_connection_t* c, const char* type, http_text_t* body) {
  if (body->failed != 0)
    accrt_http_connection_abort(c);
  else
    accrt_http_answer_whole(c, 200, type, body->data, body->size, NULL);
  accrt_http_text_deinit(body);
}

static void answer_metrics(http_connection_t* c) {
  http_server_t* server = c->server;
  accrt_http_show_metrics(server);
  http_text_t body;
  accrt_http_text_init(&body, &server->allocator);
  const http_page_t page = {&body, server->engine, server, server->model};
  accrt_http_put_metrics(&page, accrt_serve_engine_instance(server->engine));
  answer_text(c, "text/plain; version=0.0.4; charset=utf-8", &body);
}

/* The model, or one of its adapters. */
static void put_model(const http_server_t* server, const char* name, http_text_t* body) {
  accrt_http_put_text(body, "{\"id\":");
  accrt_http_put_string(body, name);
  accrt_http_put_format(body, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"accrt\"",
                        (unsigned long long)server->started_at);
  if (server->max_model_tokens != 0)
    accrt_http_put_format(body, ",\"max_model_len\":%u", server->max_model_tokens);
  if (name != server->model) {
    accrt_http_put_text(body, ",\"parent\":");
    accrt_http_put_string(body, server->model);
  }
  accrt_http_put_text(body, "}");
}

/* Names of the adapters that are there now, one after the other. Returns how many bytes. */
static size_t adapter_names(const http_server_t* server, http_text_t* out) {
  uint64_t size = 0, room = 0;
  uint32_t count;
  accrt_http_text_init(out, &server->allocator);
  do { /* others may come meanwhile */
    for (; room < size && out->failed == 0; ++room)
      accrt_http_put(out, "", 1);
    if (out->failed != 0 ||
        accrt_serve_engine_adapters(server->engine, out->data, room, &size, &count) != ACCRT_OK)
      return 0;
  } while (size > room);
  return (size_t)size;
}

static void answer_models(http_connection_t* c) {
  http_text_t body, names;
  accrt_http_text_init(&body, &c->server->allocator);
  accrt_http_put_text(&body, "{\"object\":\"list\",\"data\":[");
  put_model(c->server, c->server->model, &body);
  const size_t size = adapter_names(c->server, &names);
  for (size_t at = 0; at < size; at += strlen(names.data + at) + 1) {
    accrt_http_put_text(&body, ",");
    put_model(c->server, names.data + at, &body);
  }
  accrt_http_text_deinit(&names);
  accrt_http_put_text(&body, "]}");
  answer_text(c, json_type, &body);
}

static int digit_of(char c) {
  const char* at = c == 0 ? NULL : strchr("0123456789abcdef", c | 32);
  return at == NULL ? -1 : (int)(at - "0123456789abcdef");
}

/* 1 if the path's end, in which some bytes may stand as %XX, is this name. */
static uint32_t is_name(const char* at, size_t size, const char* name) {
  size_t i = 0;
  while (i < size && at[i] != '?' && *name != 0) {
    char byte = at[i];
    if (byte == '%' && i + 2 < size && digit_of(at[i + 1]) >= 0 && digit_of(at[i + 2]) >= 0) {
      byte = (char)(digit_of(at[i + 1]) * 16 + digit_of(at[i + 2]));
      i += 2;
    }
    if (byte != *name++)
      return 0;
    ++i;
  }
  return *name == 0 && (i == size || at[i] == '?');
}

/* The model or the adapter that the path's end names; NULL: there is none. */
static const char* named(const http_connection_t* c, const http_text_t* names, size_t names_size) {
  static const char prefix[] = "/v1/models/";
  const char* at = memmem(c->target.data, c->target.size, prefix, sizeof prefix - 1);
  if (at == NULL)
    return NULL;
  at += sizeof prefix - 1;
  const size_t size = c->target.size - (size_t)(at - c->target.data);
  if (is_name(at, size, c->server->model))
    return c->server->model;
  for (size_t i = 0; i < names_size; i += strlen(names->data + i) + 1)
    if (is_name(at, size, names->data + i))
      return names->data + i;
  return NULL;
}

static void answer_model(http_connection_t* c) {
  http_text_t names;
  const size_t size = adapter_names(c->server, &names);
  const char* name = named(c, &names, size);
  if (name == NULL) {
    accrt_http_text_deinit(&names);
    const http_failure_t failure = {.status = 404,
                                    .code = "model_not_found",
                                    .parameter = "model",
                                    .message = "There is no model of this name here."};
    accrt_http_answer_failure(c, &failure);
    return;
  }
  http_text_t body;
  accrt_http_text_init(&body, &c->server->allocator);
  put_model(c->server, name, &body);
  accrt_http_text_deinit(&names);
  answer_text(c, json_type, &body);
}

static void answer_version(http_connection_t* c) {
  http_text_t body;
  accrt_http_text_init(&body, &c->server->allocator);
  accrt_http_put_format(&body, "{\"version\":\"%d.%d.%d\"}", ACCRT_VERSION_MAJOR,
                        ACCRT_VERSION_MINOR, ACCRT_VERSION_PATCH);
  answer_text(c, json_type, &body);
}

#define ONLY_GET "GET, HEAD, OPTIONS", HTTP_BIT_GET
#define ONLY_POST "POST, OPTIONS", HTTP_BIT_POST

static const http_route_t routes[] = {
    {"/", ONLY_GET, 0, 0, answer_page},
    {"/health", ONLY_GET, 0, 0, answer_health},
    {"/metrics", ONLY_GET, 0, 0, answer_metrics},
    {"/version", ONLY_GET, 0, 0, answer_version},
    {"/v1/models", ONLY_GET, 1, 0, answer_models},
    {"/v1/chat/completions", ONLY_POST, 1, ACCRT_HTTP_CHAT, NULL},
    {"/v1/completions", ONLY_POST, 1, ACCRT_HTTP_COMPLETION, NULL},
    {"/v1/embeddings", ONLY_POST, 1, ACCRT_HTTP_EMBEDDING, NULL},
    {"/v1/responses", ONLY_POST, 1, ACCRT_HTTP_RESPONSE, NULL},
    {"/v1/load_lora_adapter", ONLY_POST, 1, ACCRT_HTTP_LOAD_ADAPTER, NULL},
    {"/v1/unload_lora_adapter", ONLY_POST, 1, ACCRT_HTTP_UNLOAD_ADAPTER, NULL},
    {"/tokenize", ONLY_POST, 1, ACCRT_HTTP_TOKENIZE, NULL},
    {"/detokenize", ONLY_POST, 1, ACCRT_HTTP_DETOKENIZE, NULL},
};
static const http_route_t one_model = {"/v1/models/", ONLY_GET, 1, 0, answer_model};
const http_route_t accrt_http_no_route = {NULL, "", 0, 0, 0, NULL};

const http_route_t* accrt_http_route(const char* path, size_t size) {
  for (size_t i = 0; i < sizeof routes / sizeof routes[0]; ++i)
    if (strlen(routes[i].path) == size && memcmp(routes[i].path, path, size) == 0)
      return &routes[i];
  const size_t prefix = strlen(one_model.path);
  if (size > prefix && memcmp(path, one_model.path, prefix) == 0)
    return &one_model;
  return &accrt_http_no_route;
}

/* Takes as long for a wrong key as for one that is nearly right. */
static uint32_t has_key(const http_connection_t* c) {
  const char* key = c->server->api_key;
  const http_text_t* given = &c->values[HEADER_AUTHORIZATION];
  if (key == NULL)
    return 1;
  if (given->size < 7 || strncasecmp(given->data, "Bearer ", 7) != 0)
    return 0;
  const size_t length = strlen(key), got = given->size - 7;
  uint32_t difference = length != got;
  for (size_t i = 0; i < got; ++i)
    difference |= (uint32_t)(unsigned char)given->data[7 + i] ^
                  (uint32_t)(unsigned char)key[length == 0 ? 0 : i % length];
  return difference == 0;
}

/* A browser asks before it sends what is no form. */
static void answer_options(http_connection_t* c) {
  http_text_t extra;
  accrt_http_text_init(&extra, &c->server->allocator);
  accrt_http_put_format(&extra, "Allow: %s\r\n", c->route->methods);
  const http_text_t* wanted = &c->values[HEADER_REQUEST_HEADERS];
  if (c->server->cors_origin != NULL) {
    accrt_http_put_format(&extra, "Access-Control-Allow-Methods: %s\r\n", c->route->methods);
    accrt_http_put_text(&extra, "Access-Control-Allow-Headers: ");
    if (wanted->size > 0)
      accrt_http_put(&extra, wanted->data, wanted->size);
    else
      accrt_http_put_text(&extra, "Authorization, Content-Type");
    accrt_http_put_text(&extra, "\r\nAccess-Control-Max-Age: 600\r\n");
  }
  accrt_http_put(&extra, "", 1);
  if (extra.failed != 0)
    accrt_http_connection_abort(c);
  else
    accrt_http_answer_whole(c, 204, NULL, "", 0, extra.data);
  accrt_http_text_deinit(&extra);
}

static uint32_t is_allowed(const http_connection_t* c) {
  const uint8_t method = c->parser.method;
  const uint32_t bits = c->route->method_bits;
  return ((method == HTTP_GET || method == HTTP_HEAD) && (bits & HTTP_BIT_GET)) ||
         (method == HTTP_POST && (bits & HTTP_BIT_POST));
}

/* Why a request that was read is not served; status 0: it is. */
static http_failure_t fault_of(const http_connection_t* c) {
  if (c->route->path == NULL)
    return (http_failure_t){
        .status = 404,
        .code = "unknown_path",
        .message =
            "There is nothing at this path. Of OpenAI's API there are /v1/chat/completions, "
            "/v1/completions, /v1/responses (whose answers are not stored), /v1/embeddings and "
            "/v1/models; a client's base_url ends with /v1."};
  if (!is_allowed(c))
    return (http_failure_t){.status = 405,
                            .code = "unknown_method",
                            .message = (c->route->method_bits & HTTP_BIT_POST)
                                           ? "This path takes POST, with a body."
                                           : "This path takes GET, without a body."};
  if (c->route->needs_key != 0 && !has_key(c))
    return (http_failure_t){.status = 401,
                            .code = "invalid_api_key",
                            .message = "The API key is missing or wrong: it is sent as "
                                       "`Authorization: Bearer KEY`."};
  if (c->route->job_kind != 0 && c->server->draining != 0)
    return (http_failure_t){.status = 503, .code = "draining", .message = "The server is ending."};
  return (http_failure_t){0};
}

void accrt_http_dispatch(http_connection_t* c) {
  if (c->route == NULL)
    c->route = &accrt_http_no_route;
  if (c->refusal.status != 0) {
    accrt_http_request_drop(c);
    accrt_http_answer_failure(c, &c->refusal);
    return;
  }
  if (c->parser.method == HTTP_OPTIONS && c->route->path != NULL) {
    answer_options(c);
    return;
  }
  const http_failure_t fault = fault_of(c);
  if (fault.status != 0)
    accrt_http_answer_failure(c, &fault);
  else if (c->route->job_kind != 0)
    accrt_http_job_make(c);
  else
    c->route->answer(c);
}
