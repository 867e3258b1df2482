/* serve/http/tools_test.c - calls of tools: what is written of each text, wherever it is cut.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include "serve/http/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "accrt/http.h"
#include "tests/random.h"

enum { HERMES = ACCRT_HTTP_TOOLS_HERMES, LLAMA = ACCRT_HTTP_TOOLS_LLAMA };
enum { MISTRAL = ACCRT_HTTP_TOOLS_MISTRAL };
enum { QWEN = ACCRT_HTTP_TOOLS_QWEN_CODER, GLM = ACCRT_HTTP_TOOLS_GLM };
enum { GRANITE = ACCRT_HTTP_TOOLS_GRANITE, KIMI = ACCRT_HTTP_TOOLS_KIMI };

enum { SEED = ACCRT_HTTP_TOOLS_SEED, MINIMAX = ACCRT_HTTP_TOOLS_MINIMAX };
enum { DEEPSEEK = ACCRT_HTTP_TOOLS_DEEPSEEK, PYTHONIC = ACCRT_HTTP_TOOLS_PYTHONIC };
enum { COMMAND = ACCRT_HTTP_TOOLS_COMMAND };

/* Parameters of these tests that are strings, one of which may be null. */
static const char text_parameters[] = "f zip\nf code\n?f note\ng zip";

typedef struct trial {
  uint32_t form;
  const char* text;
  const char* content;
  const char* calls; /* name and arguments, escaped as in the answer */
} trial_t;

#define KIMI_CALL(id, arguments)                                                                   \
  "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" arguments "<|tool_call_end|>"
#define KIMI_SECTION(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
#define LONGEST_NAME /* of 128 bytes */                                                            \
  "a234567890b234567890c234567890d234567890e234567890f234567890g234567890h234567890i234567890"     \
  "j234567890k234567890l234567890m2345678"
#define DEEPSEEK_CALL(head, rest)                                                                  \
  "<｜tool▁call▁begin｜>" head "<｜tool▁sep｜>" rest "<｜tool▁call▁end｜>"
#define DEEPSEEK_CALLS(calls) "<｜tool▁calls▁begin｜>" calls "<｜tool▁calls▁end｜>"
#define MINIMAX_CALLS(calls) "<minimax:tool_call>\n" calls "</minimax:tool_call>"
#define INVOKE(name, parameters) "<invoke name=\"" name "\">\n" parameters "</invoke>\n"
#define PARAMETER(name, value) "<parameter name=\"" name "\">" value "</parameter>\n"
#define CALL(name, arguments) "{" name ":" arguments "}"
static const trial_t trials[] = {
    /* Text that is none. */
    {HERMES, "Hello, world. \n", "Hello, world. \n", ""},
    {HERMES, "a < b, <tool, <tool_cal, <<tool_call", "a < b, <tool, <tool_cal, <<tool_call", ""},
    {HERMES, "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}", ""},
    {LLAMA, "", "", ""},
    {MISTRAL, " [TOOL_CALL] [x]", " [TOOL_CALL] [x]", ""},
    /* One call. */
    {HERMES,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
     "", CALL("f", "{\\\"a\\\": [1, {\\\"b\\\": \\\"}\\\"}]}")},
    {HERMES, "I look.\n\n<tool_call>{\"name\":\"get_x\",\"arguments\":{}}</tool_call>\n", "I look.",
     CALL("get_x", "{}")},
    {HERMES,
     "<tool_call>{\"arguments\": {\"q\": \"\xC3\xA9\\\"\\\\\"}, \"name\": \"f\"}</tool_call>", "",
     CALL("f", "{\\\"q\\\": \\\"\xC3\xA9\\\\\\\"\\\\\\\\\\\"}")},
    {HERMES, "<tool_call>{\"name\": \"none\"}</tool_call>", "", CALL("none", "{}")},
    {HERMES,
     "<tool_call>{\"id\": 7, \"x\": [\"}\"], \"name\": \"f\", \"parameters\": {}, \"t\": "
     "null}</tool_call>",
     "", CALL("f", "{}")},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}}</tool_call> done", " done",
     CALL("f", "{}")},
    {LLAMA, " {\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", CALL("f", "{\\\"a\\\": 1}")},
    {LLAMA, "Well <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "Well", CALL("f", "{}")},
    {MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]", "",
     CALL("f", "{\\\"a\\\": \\\"]\\\"}")},
    {MISTRAL, "[TOOL_CALLS]f{\"a\": 1}", "", CALL("f", "{\\\"a\\\": 1}")},
    {MISTRAL, "Yes. [TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{}", "Yes.", CALL("f", "{}")},
    /* Several. */
    {HERMES,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
     "\"g\", "
     "\"arguments\": {\"x\": 1}}\n</tool_call>",
     "", CALL("f", "{}") CALL("g", "{\\\"x\\\": 1}")},
    {HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}{\"name\": \"g\", \"arguments\": "
     "{}}</tool_call>",
     "", CALL("f", "{}") CALL("g", "{}")},
    {LLAMA, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "",
     CALL("f", "{}") CALL("g", "{}")},
    {MISTRAL,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]", "",
     CALL("f", "{}") CALL("g", "{}")},
    {MISTRAL, "[TOOL_CALLS]f{}[TOOL_CALLS]g{\"b\": {}}", "",
     CALL("f", "{}") CALL("g", "{\\\"b\\\": {}}")},
    /* The last mark is left out before another call. */
    {HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\"}</tool_call>",
     "", CALL("f", "{}") CALL("g", "{}")},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_x> <", "<tool_x> <",
     CALL("f", "{}")},
    {GRANITE, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|tool_call|>[{\"name\": \"g\"}]",
     "", CALL("f", "{}") CALL("g", "{}")},
    {KIMI,
     "<|tool_calls_section_begin|>" KIMI_CALL("f:0", "{}") KIMI_SECTION(KIMI_CALL("g:1", "{}")), "",
     CALL("f", "{}") CALL("g", "{}")},
    {DEEPSEEK,
     "<｜tool▁calls▁begin｜>" DEEPSEEK_CALL("f", "{}") DEEPSEEK_CALLS(DEEPSEEK_CALL("g", "{}")), "",
     CALL("f", "{}") CALL("g", "{}")},
    /* What is no call is text as it was written. */
    {HERMES, "x <tool_call>\n[1, 2]</tool_call>", "x <tool_call>\n[1, 2]</tool_call>", ""},
    {HERMES, "<tool_call>{\"name\": 3}", "<tool_call>{\"name\": 3}", ""},
    {HERMES, "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
     "<tool_call>{\"name\": \"a b\", \"arguments\": {}}", ""},
    {HERMES, "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>",
     "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>", ""},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": 1}",
     "<tool_call>{\"name\": \"f\", \"arguments\": 1}", ""},
    {HERMES, "<tool_call>{]}<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "<tool_call>{]}", CALL("f", "{}")},
    {LLAMA, "{\"answer\": 42}", "{\"answer\": 42}", ""},
    {LLAMA, "{\"name\": \"Ada\", \"age\": 3}", "{\"name\": \"Ada\", \"age\": 3}", ""},
    {LLAMA, "Look: {\"name\": \"f\", \"parameters\": {}}",
     "Look: {\"name\": \"f\", \"parameters\": {}}", ""},
    {LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", ""},
    {MISTRAL, "[TOOL_CALLS] what", "[TOOL_CALLS] what", ""},
    /* Texts that end too soon. */
    {HERMES, "hm <tool_ca", "hm <tool_ca", ""},
    {HERMES, "hm <tool_call>{\"name\": \"f\"", "hm <tool_call>{\"name\": \"f\"", ""},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "", CALL("f", "{\\\"a")},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool", "", CALL("f", "{}")},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool x", "</tool x",
     CALL("f", "{}")},
    /* Markup. */
    {QWEN,
     "I "
     "look.\n<tool_call>\n<function=f>\n<parameter=zip>\n01234\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>",
     "I look.", CALL("f", "{\\\"zip\\\": \\\"01234\\\", \\\"days\\\": 3}")},
    {QWEN,
     "<tool_call>\n<function=f>\n<parameter=code>\n\nif a < b:\n  "
     "\"x\"\n\n</parameter>\n</function>\n"
     "</tool_call>\n<tool_call><function=g></function></tool_call> ok",
     " ok",
     CALL("f", "{\\\"code\\\": \\\"\\\\nif a < b:\\\\n  \\\\\\\"x\\\\\\\"\\\\n\\\"}")
         CALL("g", "{}")},
    {QWEN,
     "<tool_call><function=f><parameter=a>{\"b\": [1, "
     "null]}</parameter><parameter=c>True</parameter>"
     "<parameter=d>two words</parameter></function></tool_call>",
     "",
     CALL("f",
          "{\\\"a\\\": {\\\"b\\\": [1, null]}, \\\"c\\\": true, \\\"d\\\": \\\"two words\\\"}")},
    {QWEN,
     "<tool_call>\n<function=f>\n<parameter=note>\nnull\n</parameter>\n<parameter=zip>\nnull\n"
     "</parameter>\n</function>\n</tool_call>",
     "", CALL("f", "{\\\"note\\\": null, \\\"zip\\\": \\\"null\\\"}")},
    {QWEN, "<tool_call><function=f><parameter=note>7</parameter></function></tool_call>", "",
     CALL("f", "{\\\"note\\\": \\\"7\\\"}")},
    /* A value without its last tag ends before the next tag that begins a line. */
    {QWEN,
     "<tool_call>\n<function=f>\n<parameter=a>\n5\n<parameter=b>\n6\n</parameter>\n</function>\n"
     "</tool_call>",
     "", CALL("f", "{\\\"a\\\": 5, \\\"b\\\": 6}")},
    {QWEN,
     "<tool_call>\n<function=f>\n<parameter=zip>\n<parameter=code>\n\n<parameter=a>x\n"
     "</function>\n</tool_call> ok",
     " ok", CALL("f", "{\\\"zip\\\": \\\"\\\", \\\"code\\\": \\\"\\\", \\\"a\\\": \\\"x\\\"}")},
    {QWEN,
     "<tool_call>\n<function=f>\n<parameter=code>\na </function> <parameter=b>\n<parameter =\n"
     "</functions>\n</parameter>\n</function></tool_call>",
     "",
     CALL("f", "{\\\"code\\\": \\\"a </function> <parameter=b>\\\\n<parameter =\\\\n</functions>"
               "\\\"}")},
    {QWEN,
     "<tool_call><function=f><parameter=a>\n1\n</function></tool_call><tool_call><function=g>"
     "<parameter=zip>\n2\n</function>\n</tool_call>",
     "", CALL("f", "{\\\"a\\\": 1}") CALL("g", "{\\\"zip\\\": \\\"2\\\"}")},
    {GLM,
     "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>\n<parameter=a>\n<arg_key>\n</"
     "arg_value>\n</tool_call>",
     "", CALL("f", "{\\\"code\\\": \\\"<parameter=a>\\\\n<arg_key>\\\"}")},
    {QWEN, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "", CALL("f", "{}")},
    {QWEN, "<tool_call><functions=f>", "<tool_call><functions=f>", ""},
    {QWEN, "<tool_call><function=a b>", "<tool_call><function=a b>", ""},
    {QWEN, "<tool_call><function=>", "<tool_call><function=>", ""},
    {QWEN, "<tool_call><function=f><parameter=a>1</parameter><parameter=b>2</para", "",
     CALL("f", "{\\\"a\\\": 1")},
    {QWEN, "<tool_call><function=f><parameter=a>1</parameter>\n</tool_call> ok", " ok",
     CALL("f", "{\\\"a\\\": 1}")},
    {QWEN,
     "<tool_call><function=f><parameter=a>1</parameter>\n<tool_call><function=g></function>"
     "</tool_call>",
     "", CALL("f", "{\\\"a\\\": 1}") CALL("g", "{}")},
    {QWEN, "<tool_call><function=f><parameter=a>1</parameter></tool> ok", "</tool> ok",
     CALL("f", "{\\\"a\\\": 1}")},
    {QWEN, "<tool_call><function=f><parameter=a>1</parameter> no", "no",
     CALL("f", "{\\\"a\\\": 1}")},
    {GLM,
     "<tool_call>f\n<arg_key>zip</arg_key>\n<arg_value>01234</arg_value>\n<arg_key>a</arg_key>\n"
     "<arg_value>[1]</arg_value>\n</tool_call>",
     "", CALL("f", "{\\\"zip\\\": \\\"01234\\\", \\\"a\\\": [1]}")},
    {GLM,
     "<tool_call>g<arg_key>a</arg_key><arg_value>x</arg_value></tool_call><tool_call>f\n</"
     "tool_call>",
     "", CALL("g", "{\\\"a\\\": \\\"x\\\"}") CALL("f", "{}")},
    {GLM,
     "<tool_call>f\n<arg_key>note</arg_key>\n<arg_value>None</arg_value>\n<arg_key>code</arg_key>"
     "<arg_value>None</arg_value></tool_call>",
     "", CALL("f", "{\\\"note\\\": null, \\\"code\\\": \\\"None\\\"}")},
    {GLM, "<tool_call>two words</tool_call>", "<tool_call>two words</tool_call>", ""},
    {GLM, "<tool_call>f\n<arg_key>a</arg_key>I see", "I see", CALL("f", "{}")},
    {GLM, "<tool_call>f\n<arg_key>a</arg_key>what", "what", CALL("f", "{}")},
    /* Lists between marks, of which the second one may be missing. */
    {GRANITE,
     "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]",
     "", CALL("f", "{\\\"a\\\": 1}") CALL("g", "{}")},
    {GRANITE, "Yes. <|tool_call|> [{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|> ok",
     "Yes. ok", CALL("f", "{}")},
    {GRANITE, "<|tool_call|>{\"name\": \"f\", \"arguments\": {}}\n", "", CALL("f", "{}")},
    {GRANITE, "<|tool_call|>f{}", "<|tool_call|>f{}", ""},
    {GRANITE, "<|tool_call|>[]", "<|tool_call|>[]", ""},
    /* Ids with names, in a section. */
    {KIMI,
     "I look. " KIMI_SECTION(KIMI_CALL("functions.f:0", "{\"a\": \"<|tool_call_end|>\"}")
                                 KIMI_CALL("functions.a:b.c:12", "{}")) " ok",
     "I look. ok", CALL("f", "{\\\"a\\\": \\\"<|tool_call_end|>\\\"}") CALL("a:b.c", "{}")},
    {KIMI, KIMI_SECTION("\n" KIMI_CALL(" f:0 ", "\n{\"a\": [1]}\n") "\n"), "",
     CALL("f", "{\\\"a\\\": [1]}")},
    {KIMI, KIMI_SECTION(KIMI_CALL("g", "{}")) KIMI_SECTION(KIMI_CALL("functions.f:1", "{}")), "",
     CALL("g", "{}") CALL("f", "{}")},
    {KIMI, KIMI_SECTION("\n{\"name\": \"f\", \"arguments\": {}}\n"), "", CALL("f", "{}")},
    {KIMI, KIMI_SECTION(KIMI_CALL("functions." LONGEST_NAME ":12", "{}")), "",
     CALL(LONGEST_NAME, "{}")},
    {KIMI, KIMI_SECTION(KIMI_CALL("functions." LONGEST_NAME "n:12", "{}")),
     KIMI_SECTION(KIMI_CALL("functions." LONGEST_NAME "n:12", "{}")), ""},
    {KIMI, KIMI_SECTION("what"), KIMI_SECTION("what"), ""},
    {KIMI, KIMI_SECTION(KIMI_CALL("a b:0", "{}")), KIMI_SECTION(KIMI_CALL("a b:0", "{}")), ""},
    {KIMI, KIMI_SECTION(KIMI_CALL(":0", "{}")), KIMI_SECTION(KIMI_CALL(":0", "{}")), ""},
    {KIMI, KIMI_SECTION(KIMI_CALL("f:0", "[]")), KIMI_SECTION(KIMI_CALL("f:0", "[]")), ""},
    {KIMI, KIMI_SECTION(KIMI_CALL("f:0", "{}") "<|tool_call_x"),
     "<|tool_call_x<|tool_calls_section_end|>", CALL("f", "{}")},
    {KIMI, KIMI_SECTION(KIMI_CALL("f:0", "{}") KIMI_CALL("", "{}")),
     KIMI_CALL("", "{}") "<|tool_calls_section_end|>", CALL("f", "{}")},
    {KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.f",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f", ""},
    {KIMI, "<|tool_calls_section_begin|>" KIMI_CALL("functions.f:0", "{\"a"), "",
     CALL("f", "{\\\"a<|tool_call_end|>")},
    /* Seed-OSS has Qwen's markup between marks of its own. */
    {SEED,
     "I look.\n<seed:tool_call>\n<function=f>\n<parameter=zip>01234</parameter>\n<parameter=a>[1]"
     "</parameter>\n</function>\n</seed:tool_call> ok",
     "I look. ok", CALL("f", "{\\\"zip\\\": \\\"01234\\\", \\\"a\\\": [1]}")},
    {SEED, "<tool_call><function=f></function></tool_call>",
     "<tool_call><function=f></function></tool_call>", ""},
    {SEED, "<seed:tool_call>{\"name\": \"f\", \"arguments\": {}}</seed:tool_call>", "",
     CALL("f", "{}")},
    /* Several in a section, with attributes. */
    {MINIMAX,
     "Hm.\n" MINIMAX_CALLS(INVOKE("f", PARAMETER("zip", "01234") PARAMETER("code", "\n a\n\n"))
                               INVOKE("g", PARAMETER("a", "{\"b\": 1}"))) " ok",
     "Hm. ok",
     CALL("f", "{\\\"zip\\\": \\\"01234\\\", \\\"code\\\": \\\" a\\\\n\\\"}")
         CALL("g", "{\\\"a\\\": {\\\"b\\\": 1}}")},
    {MINIMAX, MINIMAX_CALLS(INVOKE("f", "")) MINIMAX_CALLS(INVOKE("g", "")), "",
     CALL("f", "{}") CALL("g", "{}")},
    {MINIMAX, MINIMAX_CALLS("{\"name\": \"f\", \"arguments\": {}}\n"), "", CALL("f", "{}")},
    {MINIMAX, MINIMAX_CALLS(INVOKE("f", "") "what"), "what</minimax:tool_call>", CALL("f", "{}")},
    {MINIMAX, MINIMAX_CALLS("<invoke name=\"f\" >"), MINIMAX_CALLS("<invoke name=\"f\" >"), ""},
    {MINIMAX, MINIMAX_CALLS(INVOKE("", "")), MINIMAX_CALLS(INVOKE("", "")), ""},
    {MINIMAX, MINIMAX_CALLS("what"), MINIMAX_CALLS("what"), ""},
    {MINIMAX, "<minimax:tool_call>" INVOKE("f", "<parameter name=\"a\">1"), "", CALL("f", "{")},
    /* A name and JSON, in two forms. */
    {DEEPSEEK,
     "I look. " DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "{\"a\": \"`<｜\"}")
                                   DEEPSEEK_CALL("g", "\n{}\n")) " ok",
     "I look. ok", CALL("f", "{\\\"a\\\": \\\"`<｜\\\"}") CALL("g", "{}")},
    {DEEPSEEK,
     DEEPSEEK_CALLS(DEEPSEEK_CALL("function", "f\n```json\n{\"a\": 1}\n```") "\n" DEEPSEEK_CALL(
         "function", "g\n```json\n{}\n```")),
     "", CALL("f", "{\\\"a\\\": 1}") CALL("g", "{}")},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("function", "{}")), "", CALL("function", "{}")},
    {DEEPSEEK, DEEPSEEK_CALLS("\n{\"name\": \"f\", \"arguments\": {}}\n"), "", CALL("f", "{}")},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "g\n{}")),
     DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "g\n{}")), ""},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("function", "a b\n{}")),
     DEEPSEEK_CALLS(DEEPSEEK_CALL("function", "a b\n{}")), ""},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("é", "{}")), DEEPSEEK_CALLS(DEEPSEEK_CALL("é", "{}")),
     ""},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "[]")), DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "[]")),
     ""},
    {DEEPSEEK, DEEPSEEK_CALLS(DEEPSEEK_CALL("f", "{}") "<｜}"), "<｜}<｜tool▁calls▁end｜>",
     CALL("f", "{}")},
    {DEEPSEEK, "a <｜tool▁calls▁｝ <｜tool", "a <｜tool▁calls▁｝ <｜tool", ""},
    {DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f", ""},
    {DEEPSEEK, "<｜tool▁calls▁begin｜>" DEEPSEEK_CALL("f", "{\"a"), "",
     CALL("f", "{\\\"a<｜tool▁call▁end｜>")},
    /* Lists as Python writes them, or Llama's JSON. */
    {PYTHONIC, " [f(a=1, b='x(]\\'\\n', c=[True, None]), g()]\n", "",
     CALL("f", "{\\\"a\\\": 1, \\\"b\\\": \\\"x(]'\\\\n\\\", \\\"c\\\": [true, null]}")
         CALL("g", "{}")},
    {PYTHONIC, "I look. <|python_start|>[ a.b ( ), f(d={\"k\": (1, 2)})\n]<|python_end|> ok",
     "I look. <|python_start|>[ a.b ( ), f(d={\"k\": (1, 2)})\n]<|python_end|> ok", ""},
    {PYTHONIC, "I look. <|python_start|>[a.b( ) ,\n f(d={\"k\": (1, 2)})\n]<|python_end|> ok",
     "I look. ok", CALL("a.b", "{}") CALL("f", "{\\\"d\\\": {\\\"k\\\": [1, 2]}}")},
    {PYTHONIC, "[f(a='\xC3\xA9')] ok", "ok", CALL("f", "{\\\"a\\\": \\\"\xC3\xA9\\\"}")},
    {PYTHONIC, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "",
     CALL("f", "{}") CALL("g", "{}")},
    {PYTHONIC, "<|python_start|>{\"name\": \"f\", \"parameters\": {}}<|python_end|>", "",
     CALL("f", "{}")},
    {PYTHONIC, "[link](http://x)", "[link](http://x)", ""},
    {PYTHONIC, "[1, 2]", "[1, 2]", ""},
    {PYTHONIC, "{\"name\": \"Ada\"}", "{\"name\": \"Ada\"}", ""},
    {PYTHONIC, "Look: [f(a=1)]", "Look: [f(a=1)]", ""},
    {PYTHONIC, "[f(1)]", "[f(1)]", ""},
    {PYTHONIC, "[f(a=g(1))]", "[f(a=g(1))]", ""},
    {PYTHONIC, "[f(a=1]", "[f(a=1]", ""},
    {PYTHONIC, "[f(a=[1)]", "[f(a=[1)]", ""},
    {PYTHONIC, "[f(), g(1)]", " g(1)]", CALL("f", "{}")},
    {PYTHONIC, "[f(a='x", "[f(a='x", ""},
    {PYTHONIC, "[f(a=1)", "", CALL("f", "{\\\"a\\\": 1}")},
    {PYTHONIC, "[f(a=1)]<|python", "", CALL("f", "{\\\"a\\\": 1}")},
    {PYTHONIC, "<|python_start|>print(1)<|python_end|>", "<|python_start|>print(1)<|python_end|>",
     ""},
    /* Names of their own for the members. */
    {COMMAND,
     "I look. <|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
     "\"parameters\": "
     "{\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]"
     "<|END_ACTION|> ok",
     "I look. ok", CALL("f", "{\\\"a\\\": 1}") CALL("g", "{}")},
    {COMMAND, "<|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]", "", CALL("f", "{}")},
    {COMMAND, "<|START_ACTION|>[]<|END_ACTION|>", "<|START_ACTION|>[]<|END_ACTION|>", ""},
    {HERMES, "<tool_call>{\"tool_name\": \"f\", \"parameters\": {}}</tool_call>",
     "<tool_call>{\"tool_name\": \"f\", \"parameters\": {}}</tool_call>", ""},
};

static uint64_t random_state;
static uint64_t next_random(void) {
  return test_random(&random_state);
}

typedef struct reading {
  http_text_t content, calls;
  http_tools_t tools;
  char joined[2048]; /* "{name:arguments}" of each call */
  size_t joined_size;
  uint32_t entries;
} reading_t;

static void start(reading_t* r, uint32_t form) {
  memset(r, 0, sizeof *r);
  accrt_http_text_init(&r->content, &accrt_http_allocator_system);
  accrt_http_text_init(&r->calls, &accrt_http_allocator_system);
  accrt_http_tools_init(&r->tools, &accrt_http_allocator_system, form, &r->content, &r->calls);
  r->tools.text_parameters = text_parameters;
}
static void stop(reading_t* r) {
  accrt_http_tools_deinit(&r->tools);
  accrt_http_text_deinit(&r->content);
  accrt_http_text_deinit(&r->calls);
}

static void join(reading_t* r, const char* bytes, size_t size) {
  assert_true(r->joined_size + size < sizeof r->joined);
  memcpy(r->joined + r->joined_size, bytes, size);
  r->joined_size += size;
}

/* Reads the entries that are there, as a client puts them together. */
static void drain(reading_t* r) {
  accrt_http_tools_close(&r->tools);
  accrt_http_put(&r->calls, "", 1);
  for (const char* at = r->calls.data; at != NULL && *at != 0;) {
    at += *at == ',';
    unsigned index = 0;
    int used = 0;
    assert_int_equal(sscanf(at, "{\"index\":%u,%n", &index, &used), 1);
    at += used;
    static const char id[] = "\"id\":\"";
    if (strncmp(at, id, sizeof id - 1) == 0) {
      if (r->entries++ > 0)
        join(r, "}", 1);
      assert_int_equal(index + 1, r->entries);
      at += sizeof id - 1;
      const size_t id_size = strcspn(at, "\"");
      if (r->tools.form == KIMI)
        assert_in_range(id_size, 1, 18 + HTTP_CALL_NAME_BYTES);
      else
        assert_int_equal(id_size, r->tools.form == MISTRAL ? 9 : 29);
      static const char function[] = "\",\"type\":\"function\",\"function\":{\"name\":\"";
      at += id_size;
      assert_memory_equal(at, function, sizeof function - 1);
      at += sizeof function - 1;
      const size_t name_size = strcspn(at, "\"");
      join(r, "{", 1);
      join(r, at, name_size);
      join(r, ":", 1);
      at += name_size;
      static const char arguments[] = "\",\"arguments\":\"";
      assert_memory_equal(at, arguments, sizeof arguments - 1);
      at += sizeof arguments - 1;
    } else {
      static const char arguments[] = "\"function\":{\"arguments\":\"";
      assert_memory_equal(at, arguments, sizeof arguments - 1);
      assert_int_equal(index + 1, r->entries);
      at += sizeof arguments - 1;
    }
    const char* end = at;
    while (*end != '"')
      end += *end == '\\' ? 2 : 1;
    join(r, at, (size_t)(end - at));
    assert_memory_equal(end, "\"}}", 3);
    at = end + 3;
  }
  accrt_http_text_clear(&r->calls);
}

static void finish(reading_t* r, const trial_t* trial) {
  accrt_http_tools_end(&r->tools);
  drain(r);
  if (r->entries > 0)
    join(r, "}", 1);
  join(r, "", 1);
  accrt_http_put(&r->content, "", 1);
  assert_string_equal(r->content.data, trial->content);
  assert_string_equal(r->joined, trial->calls);
  assert_int_equal(r->tools.count, r->entries);
}

/* The end of the characters that begin before `at`. */
static size_t whole_characters(const char* text, size_t at) {
  while ((text[at] & 0xC0) == 0x80)
    ++at;
  return at;
}

static void test_texts_in_all_pieces(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    const trial_t* trial = &trials[i];
    const size_t size = strlen(trial->text);
    for (uint32_t round = 0; round < 300; ++round) {
      reading_t r;
      start(&r, trial->form);
      for (size_t at = 0; at < size;) {
        size_t end =
            round == 0 ? size : at + 1 + (round == 1 ? 0 : next_random() % (round % 23 + 1));
        end = whole_characters(trial->text, end < size ? end : size);
        accrt_http_tools_push(&r.tools, trial->text + at, end - at);
        if (next_random() % 3 == 0)
          drain(&r);
        at = end;
      }
      finish(&r, trial);
      stop(&r);
    }
  }
}

/* An allocator that gives memory so many times, and then none. */
static void* allocate_some(void* self, size_t size_bytes, size_t alignment) {
  uint32_t* left = self;
  if (*left == 0)
    return NULL;
  --*left;
  return accrt_http_allocator_system.allocate(NULL, size_bytes, alignment);
}
static void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  accrt_http_allocator_system.deallocate(NULL, pointer, size_bytes, alignment);
}

/* A text that lost bytes for want of memory says so: nobody takes it for all of an answer. */
static void test_memory_that_runs_out(void** state) {
  (void)state;
  uint32_t left;
  const accrt_allocator_t allocator = {
      .self = &left, .allocate = allocate_some, .deallocate = deallocate};
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    for (uint32_t given = 0; given < 12; ++given) {
      const trial_t* trial = &trials[i];
      reading_t r = {0};
      left = given;
      accrt_http_text_init(&r.content, &allocator);
      accrt_http_text_init(&r.calls, &allocator);
      accrt_http_tools_init(&r.tools, &allocator, trial->form, &r.content, &r.calls);
      r.tools.text_parameters = text_parameters;
      for (size_t at = 0, end; trial->text[at] != 0; at = end) {
        end = whole_characters(trial->text, at + 1);
        accrt_http_tools_push(&r.tools, trial->text + at, end - at);
      }
      accrt_http_tools_end(&r.tools);
      left = UINT32_MAX;
      if ((r.content.failed | r.calls.failed) == 0)
        finish(&r, trial);
      stop(&r);
    }
  }
}

static void test_one_call_at_most(void** state) {
  (void)state;
  static const trial_t two = {
      HERMES,
      "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>"
      "{\"name\": \"g\", \"arguments\": {\"a\": 1}}</tool_call>",
      "", CALL("f", "{}")};
  reading_t r;
  start(&r, two.form);
  r.tools.most = 1;
  accrt_http_tools_push(&r.tools, two.text, strlen(two.text));
  finish(&r, &two);
  stop(&r);
}

/* Its templates show the ids again. */
static void test_ids_of_kimi(void** state) {
  (void)state;
  static const char text[] = KIMI_SECTION(KIMI_CALL("functions.f:7", "{}") KIMI_CALL("g:8", "{}"))
      KIMI_SECTION("{\"name\": \"h\", \"arguments\": {}}");
  reading_t r;
  start(&r, KIMI);
  accrt_http_tools_push(&r.tools, text, sizeof text - 1);
  accrt_http_tools_end(&r.tools);
  accrt_http_put(&r.calls, "", 1);
  assert_non_null(strstr(r.calls.data, "\"id\":\"functions.f:7\""));
  assert_non_null(strstr(r.calls.data, "\"id\":\"g:8\""));
  assert_non_null(strstr(r.calls.data, "\"id\":\"functions.h:2\""));
  stop(&r);
}

/* Any bytes: nothing is read or written outside, and what is no call is not lost. */
static void test_random_bytes(void** state) {
  (void)state;
  static const char* const pieces[] = {"<tool_call>",
                                       "</tool_call>",
                                       "[TOOL_CALLS]",
                                       "<|python_tag|>",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       "\"name\"",
                                       ":",
                                       "\"f\"",
                                       ",",
                                       "\"arguments\"",
                                       "\"parameters\"",
                                       "\\",
                                       " ",
                                       "\n",
                                       ";",
                                       "x",
                                       "7",
                                       "f",
                                       "[ARGS]",
                                       "<|tool_call|>",
                                       "<|/tool_call|>",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "<|tool_calls_section_end|>",
                                       "<function=f>",
                                       "</function>",
                                       "<parameter=a>",
                                       "</parameter>",
                                       "<arg_key>",
                                       "</arg_key>",
                                       "<arg_value>",
                                       "</arg_value>",
                                       "<seed:tool_call>",
                                       "</seed:tool_call>",
                                       "<minimax:tool_call>",
                                       "</minimax:tool_call>",
                                       "<invoke name=\"f\">",
                                       "<parameter name=\"a\">",
                                       "</invoke>",
                                       "<｜tool▁calls▁begin｜>",
                                       "<｜tool▁call▁begin｜>",
                                       "<｜tool▁sep｜>",
                                       "```json",
                                       "<｜tool▁call▁end｜>",
                                       "<｜tool▁calls▁end｜>",
                                       "<|python_start|>",
                                       "<|python_end|>",
                                       "f(",
                                       ")",
                                       "'",
                                       "a="};
  for (uint32_t round = 0; round < 40000; ++round) {
    reading_t r;
    char text[1024] = "";
    start(&r, 1 + round % ACCRT_HTTP_TOOLS_LAST);
    for (uint32_t i = 0; i < round % 24; ++i) {
      const char* piece = pieces[next_random() % (sizeof pieces / sizeof *pieces)];
      accrt_http_tools_push(&r.tools, piece, strlen(piece));
      strcat(text, piece);
    }
    accrt_http_tools_end(&r.tools);
    assert_int_equal(r.content.failed | r.calls.failed, 0);
    if (r.tools.count == 0) {
      assert_int_equal(r.calls.size, 0);
      accrt_http_put(&r.content, "", 1);
      assert_string_equal(r.content.data, text);
    }
    stop(&r);
  }
}

/* Of each form, texts of one piece many times, behind what begins a call: each byte is looked at a
 * few times, or this test would not end, and nothing is put twice. */
static void test_long_texts(void** state) {
  (void)state;
  static const char* const begins[] = {
      "",
      "<tool_call>",
      "<tool_call>{\"name\": \"f\", \"arguments\": {",
      "<tool_call><function=f><parameter=a>",
      "<tool_call>f\n<arg_key>a</arg_key><arg_value>",
      "[TOOL_CALLS]f",
      "<|tool_call|>[",
      "<|tool_calls_section_begin|><|tool_call_begin|>",
      "<minimax:tool_call><invoke name=\"f\"><parameter name=\"",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
      "[f(a=",
      "[f(a='"};
  static const char* const pieces[] = {"<", "<tool_call>",  "[",       "{", "\"", "\\", "f",
                                       " ", "</parameter>", "<｜tool", "(", "'"};
  enum { COUNT = 20000 };
  for (size_t i = 0; i < sizeof begins / sizeof *begins; ++i) {
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; ++k) {
      for (uint32_t form = 1; form <= ACCRT_HTTP_TOOLS_LAST; ++form) {
        reading_t r;
        start(&r, form);
        accrt_http_tools_push(&r.tools, begins[i], strlen(begins[i]));
        for (uint32_t n = 0; n < COUNT; ++n)
          accrt_http_tools_push(&r.tools, pieces[k], strlen(pieces[k]));
        accrt_http_tools_end(&r.tools);
        assert_int_equal(r.content.failed | r.calls.failed, 0);
        assert_true(r.content.size <= strlen(begins[i]) + COUNT * strlen(pieces[k]));
        stop(&r);
      }
    }
  }
}

/* Command's answers stand between marks, too. */
static void test_marks_of_responses(void** state) {
  (void)state;
  static const char* const trials[][3] = {
      {"<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>a < b<|END_RESPONSE|>", "Hm.",
       "a < b"},
      {"<|START_RESPONSE|> Yes.\n<|END_RESPONSE|>", "", " Yes.\n"},
      {"<|START_RESPONSE", "", "<|START_RESPONSE"},
      {"a <|END_RESPONSE|<|END_RESPONSE|>b<|", "", "a <|END_RESPONSE|b<|"},
      {"<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"f\", "
       "\"parameters\": {}}]<|END_ACTION|>",
       "I look.", ""},
  };
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    for (uint32_t step = 1; step < 90; step += 1 + step / 3) {
      accrt_http_calls_t* calls;
      accrt_http_call_news_t news;
      char content[96] = "", reasoning[96] = "";
      assert_int_equal(
          accrt_http_calls_create(COMMAND, 0, NULL, ACCRT_HTTP_REASONING_COMMAND, &calls),
          ACCRT_OK);
      const size_t size = strlen(trials[i][0]);
      for (size_t at = 0; at < size; at += step) {
        const size_t piece = step < size - at ? step : size - at;
        assert_int_equal(
            accrt_http_calls_push(calls, trials[i][0] + at, piece, at + piece == size, &news),
            ACCRT_OK);
        if (news.content_bytes > 0)
          strncat(content, news.content, (size_t)news.content_bytes);
        if (news.reasoning_bytes > 0)
          strncat(reasoning, news.reasoning, (size_t)news.reasoning_bytes);
      }
      assert_string_equal(reasoning, trials[i][1]);
      assert_string_equal(content, trials[i][2]);
      assert_int_equal(news.call_count, strstr(trials[i][0], "ACTION") != NULL);
      accrt_http_calls_release(calls);
    }
  }
}

/* The same without a server, as other languages call it. */
static void test_calls_alone(void** state) {
  (void)state;
  accrt_http_calls_t* calls;
  accrt_http_call_news_t news;
  assert_int_equal(accrt_http_calls_create(0, 0, NULL, 0, &calls), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(calls);
  assert_int_equal(accrt_http_calls_create(HERMES, 0, NULL, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_http_calls_release(NULL);
  for (uint32_t most = 0; most < 2; ++most) {
    assert_int_equal(accrt_http_calls_create(HERMES, most, NULL, 0, &calls), ACCRT_OK);
    static const char* const pieces[] = {"Hm <tool_call>{\"name\": \"f\", \"argum",
                                         "ents\": {\"a\": ", "1}}</tool_call>",
                                         "<tool_call>{\"name\": \"g\"}</tool_call> <too"};
    char content[64] = "", entries[512] = "";
    for (uint32_t i = 0; i < 5; ++i) {
      const char* piece = i < 4 ? pieces[i] : NULL;
      assert_int_equal(
          accrt_http_calls_push(calls, piece, i < 4 ? strlen(piece) : 0, i == 4, &news), ACCRT_OK);
      if (news.content_bytes > 0)
        strncat(content, news.content, (size_t)news.content_bytes);
      if (news.entries_bytes > 0)
        strncat(entries, news.entries, (size_t)news.entries_bytes);
      assert_int_equal(news.call_count, i == 0 ? 0 : i < 3 || most == 1 ? 1 : 2);
    }
    assert_string_equal(content, "Hm <too");
    assert_non_null(strstr(entries, "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \"}}"));
    assert_non_null(strstr(entries, "{\"index\":0,\"function\":{\"arguments\":\"1}\"}}"));
    assert_int_equal(strstr(entries, "\"name\":\"g\"") != NULL, most == 0);
    assert_int_equal(accrt_http_calls_push(calls, "x", 1, 0, &news), ACCRT_ERROR_INVALID_STATE);
    assert_int_equal(accrt_http_calls_push(calls, NULL, 1, 0, &news), ACCRT_ERROR_INVALID_ARGUMENT);
    assert_ptr_equal(accrt_http_calls_retain(calls), calls);
    accrt_http_calls_release(calls);
    accrt_http_calls_release(calls);
  }
}

/* Calls in the reasoning are none. */
static void test_calls_behind_reasoning(void** state) {
  (void)state;
  static const char text[] = "a <tool_call>{\"name\": \"f\"}</tool_call>\n</think>\nb"
                             "<tool_call>{\"name\": \"g\"}</tool_call>";
  accrt_http_calls_t* calls;
  accrt_http_call_news_t news;
  assert_int_equal(accrt_http_calls_create(HERMES, 0, NULL, 255, &calls),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  for (uint32_t form = 0; form < 2; ++form) {
    const uint32_t think = ACCRT_HTTP_REASONING_THINK | ACCRT_HTTP_REASONING_OPEN;
    assert_int_equal(accrt_http_calls_create(form == 0 ? 0 : HERMES, 0, NULL, think, &calls),
                     ACCRT_OK);
    char content[96] = "", reasoning[96] = "";
    for (size_t i = 0; i < sizeof text; ++i) {
      const uint32_t last = i + 1 == sizeof text;
      assert_int_equal(accrt_http_calls_push(calls, text + i, last == 0, last, &news), ACCRT_OK);
      strncat(content, news.content_bytes > 0 ? news.content : "", (size_t)news.content_bytes);
      strncat(reasoning, news.reasoning_bytes > 0 ? news.reasoning : "",
              (size_t)news.reasoning_bytes);
    }
    assert_string_equal(reasoning, "a <tool_call>{\"name\": \"f\"}</tool_call>");
    assert_string_equal(content, form == 0 ? "b<tool_call>{\"name\": \"g\"}</tool_call>" : "b");
    assert_int_equal(news.call_count, form == 0 ? 0 : 1);
    accrt_http_calls_release(calls);
  }
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts_in_all_pieces),  cmocka_unit_test(test_one_call_at_most),
      cmocka_unit_test(test_calls_alone),          cmocka_unit_test(test_calls_behind_reasoning),
      cmocka_unit_test(test_random_bytes),         cmocka_unit_test(test_ids_of_kimi),
      cmocka_unit_test(test_long_texts),           cmocka_unit_test(test_marks_of_responses),
      cmocka_unit_test(test_memory_that_runs_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
