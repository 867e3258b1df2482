/* serve/http/forms.c - see serve/http/forms.h. */
#include "serve/http/forms.h"

#include <stddef.h>

#include "accrt/http.h"

const http_section_t* accrt_http_section_of(uint32_t form) {
  static const http_section_t kimi = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                      "<|tool_call_end|>"};
  static const http_section_t deepseek = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                          "<｜tool▁call▁end｜>"};
  static const http_section_t minimax = {"<invoke name=\"", "", ""};
  return form == ACCRT_HTTP_TOOLS_KIMI       ? &kimi
         : form == ACCRT_HTTP_TOOLS_DEEPSEEK ? &deepseek
         : form == ACCRT_HTTP_TOOLS_MINIMAX  ? &minimax
                                             : NULL;
}

const http_markup_t* accrt_http_markup_of(uint32_t form) {
  static const http_markup_t qwen = {"<function=",  ">", "<parameter=", ">", "", "</parameter>",
                                     "</function>", 1};
  static const http_markup_t glm = {
      "", "\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", 0};
  static const http_markup_t minimax = {"", "\">",          "<parameter name=\"", "\">",
                                        "", "</parameter>", "</invoke>",          0};
  return form == ACCRT_HTTP_TOOLS_QWEN_CODER || form == ACCRT_HTTP_TOOLS_SEED ? &qwen
         : form == ACCRT_HTTP_TOOLS_GLM                                       ? &glm
         : form == ACCRT_HTTP_TOOLS_MINIMAX                                   ? &minimax
                                                                              : NULL;
}

const http_marks_t* accrt_http_marks_of(uint32_t form) {
  static const http_marks_t marks[] = {
      {"", ""},
      {"<tool_call>", "</tool_call>"},
      {"<|python_tag|>", ""},
      {"[TOOL_CALLS]", ""},
      {"<tool_call>", "</tool_call>"},
      {"<tool_call>", "</tool_call>"},
      {"<|tool_call|>", "<|/tool_call|>"}, /* which leaves the second mark out */
      {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
      {"", ""}, /* messages */
      {"<seed:tool_call>", "</seed:tool_call>"},
      {"<minimax:tool_call>", "</minimax:tool_call>"},
      {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
      {"<|python_start|>", "<|python_end|>"}, /* which may both be missing */
      {"<|START_ACTION|>", "<|END_ACTION|>"},
  };
  return &marks[form];
}
