/* serve/http/embedding.c - answers with embeddings, in OpenAI's form: numbers, or the bytes of
 * little-endian floats in base64. */
#include "serve/http/server.h"

static void put_base64(http_text_t* text, const float* numbers, uint32_t count) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const unsigned char* bytes = (const unsigned char*)numbers; /* hosts are little-endian */
  const size_t size = count * sizeof *numbers;
  char out[256];
  size_t used = 0;
  for (size_t i = 0; i < size; i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < size ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) /* n bytes have n + 1 digits */
      out[used++] = i + k <= size ? digits[group >> (18 - 6 * k) & 63] : '=';
    if (used == sizeof out) {
      accrt_http_put(text, out, used);
      used = 0;
    }
  }
  accrt_http_put(text, out, used);
}

static void put_numbers(http_text_t* text, const float* numbers, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0)
      accrt_http_put_text(text, ",");
    accrt_http_put_number(text, numbers[i]);
  }
}

void accrt_http_put_embedding(http_text_t* text, const accrt_serve_event_t* event, uint32_t flags) {
  if ((flags & ACCRT_HTTP_BASE64) != 0) {
    accrt_http_put_text(text, "\"");
    put_base64(text, event->embedding, event->embedding_size);
    accrt_http_put_text(text, "\"");
  } else {
    accrt_http_put_text(text, "[");
    put_numbers(text, event->embedding, event->embedding_size);
    accrt_http_put_text(text, "]");
  }
}

void accrt_http_put_embeddings(const struct accrt_http_job* job, http_text_t* body) {
  accrt_http_put(body, job->before.data, job->before.size);
  accrt_http_put_text(body, ",\"data\":[");
  for (uint32_t i = 0; i < job->choice_count; ++i) {
    const http_text_t* one = &job->choices[i].text;
    accrt_http_put_format(
        body, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i == 0 ? "" : ",", i);
    accrt_http_put(body, one->data, one->size);
    accrt_http_put_text(body, "}");
  }
  const unsigned long long tokens = job->prompt_tokens;
  accrt_http_put_format(body, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", tokens,
                        tokens);
}
