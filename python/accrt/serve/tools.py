"""Tools: what a request says of them, for the chat template, for the grammar of forced calls, and
for the messages of earlier calls.

Calls in a model's text are found in C (serve/http/tools.c). Here is which form a model writes them
in, and what that form looks like.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import _ffi
from . import reasoning
from .parameters import WHITESPACE, BadParameter, Grammar, expressions, flag, limited, shown


class Form(NamedTuple):
    """How a family of models writes calls: an object with a name and arguments, between marks."""

    number: int
    open: str
    close: str
    between: str
    arguments: str
    array: bool
    marked: bool  # whether `open` must come before a call
    tags: Tuple[str, ...] = ()  # of free calls; forced ones are JSON


FORMS: Dict[str, Form] = {
    "hermes": Form(_ffi.ACCRT_HTTP_TOOLS_HERMES, "<tool_call>", "</tool_call>", "\n", "arguments", False, True),
    "llama3_json": Form(_ffi.ACCRT_HTTP_TOOLS_LLAMA, "<|python_tag|>", "", "; ", "parameters", False, False),
    "mistral": Form(_ffi.ACCRT_HTTP_TOOLS_MISTRAL, "[TOOL_CALLS]", "", ", ", "arguments", True, True),
    "qwen3_coder": Form(_ffi.ACCRT_HTTP_TOOLS_QWEN_CODER, "<tool_call>", "</tool_call>", "\n", "arguments", False, True, ("<function=", "</function>", "<parameter=", "</parameter>")),
    "glm45": Form(_ffi.ACCRT_HTTP_TOOLS_GLM, "<tool_call>", "</tool_call>", "\n", "arguments", False, True, ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "granite": Form(_ffi.ACCRT_HTTP_TOOLS_GRANITE, "<|tool_call|>", "", ", ", "arguments", True, True),
    "kimi_k2": Form(_ffi.ACCRT_HTTP_TOOLS_KIMI, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "\n", "arguments", False, True, ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")),
    "seed_oss": Form(_ffi.ACCRT_HTTP_TOOLS_SEED, "<seed:tool_call>", "</seed:tool_call>", "\n", "arguments", False, True, ("<function=", "</function>", "<parameter=", "</parameter>")),
    "minimax_m2": Form(_ffi.ACCRT_HTTP_TOOLS_MINIMAX, "<minimax:tool_call>", "</minimax:tool_call>", "\n", "arguments", False, True, ("<invoke name=", "</invoke>", "<parameter name=", "</parameter>")),
    "deepseek": Form(_ffi.ACCRT_HTTP_TOOLS_DEEPSEEK, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n", "arguments", False, True, ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")),
    "pythonic": Form(_ffi.ACCRT_HTTP_TOOLS_PYTHONIC, "<|python_start|>", "<|python_end|>", "\n", "parameters", False, True),
    "command": Form(_ffi.ACCRT_HTTP_TOOLS_COMMAND, "<|START_ACTION|>", "", ", ", "parameters", True, True),
    # a message with a recipient: serve/http/harmony.c
    "harmony": Form(_ffi.ACCRT_HTTP_TOOLS_HARMONY, "<|channel|>", "", "", "", False, True, ("<|message|>", "<|call|>")),
}
MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")


def detect(template: str) -> Optional[str]:
    """The form that a chat template teaches its model; None: none, or one that is not known."""
    tagged = [(name, form) for name, form in FORMS.items() if form.tags and form.tags[0] in template]
    if tagged:  # markup may stand between Hermes' marks
        return next((name for name, form in tagged if form.open in template and form.tags[-1] in template), None)
    found = next((name for name, form in FORMS.items() if not form.tags and form.open in template), None)
    said = {"[func_name1(": "pythonic", '"parameters": dictionary': "llama3_json"}  # in words
    return found or next((name for words, name in said.items() if words in template), None)


class Asked(NamedTuple):
    """What a request says of tools."""

    tools: List[Dict[str, Any]]
    form: Form
    one: bool  # calls after the first are dropped
    forced: bool  # the answer is a call
    choices: List[Dict[str, Any]]  # functions that may be called

    def skip_special(self, wanted: bool, special: Any) -> bool:
        """Whether special tokens are left out of the text: not where one is a mark of calls."""
        return wanted and all(special(mark) is None for mark in (self.form.open, self.form.close, *self.form.tags) if mark)

    @property
    def text_parameters(self) -> Optional[bytes]:
        """For C: parameters that are strings whatever they look like, with `?` those that may be
        null."""
        if not self.form.tags:
            return None
        return "".join(_text_lines(function) for function in self.choices).encode(errors="replace")

    def grammar(self, special: Any, other: Optional[Grammar]) -> Optional[Grammar]:
        """What the text must be: calls if they are forced; calls or what another grammar says.
        `special` gives the number of a special token."""
        if not self.forced and other is None:
            return None
        if other is not None and (self.forced or other.kind != "json"):
            raise BadParameter(other.parameter, f"{other.parameter} and tools with tool_choice {'required' if self.forced else 'auto'} are not supported together",
                               "unsupported")  # fmt: skip
        expressions("tools", [function.get("parameters") for function in self.choices])
        if self.form is FORMS[reasoning.HARMONY]:
            return limited(Grammar("tools", "lark", "\n".join(self._messages(special, other))), "json")
        lines = [f"start: calls | %json {other.text}" if other is not None else "start: calls", *self._calls(special)]
        return limited(Grammar("tools", "lark", "\n".join(lines)), "json")

    def _messages(self, special: Any, other: Optional[Grammar]) -> List[str]:
        """A message to one of the functions, behind which the model ends its turn; or an answer."""
        channel, constrain, message = (reasoning.mark(one, special) for one in (self.form.open, reasoning.CONSTRAIN, self.form.tags[0]))
        heads = [json.dumps(f"commentary to=functions.{function['name']} ") for function in self.choices]
        calls = [f'call{i}: {channel} {head} {constrain} "json" {message} arguments{i}' for i, head in enumerate(heads)]
        schemas = [f"arguments{i}: %json {_parameters(function)}" for i, function in enumerate(self.choices)]
        answer = [f"answer_text: {reasoning.final('json', special)}", f"json: %json {other.text}"] if other is not None else []
        start = " | ".join([*(f"call{i}" for i in range(len(calls))), *(["answer_text"] if answer else [])])
        return [f"start: {start}", *calls, *schemas, *answer]

    def _calls(self, special: Any) -> List[str]:
        form = self.form
        call = " | ".join(f"call{i}" for i in range(len(self.choices)))
        lines = [f"call: {call}", *(f"call{i}: %json {_schema(function, form)}" for i, function in enumerate(self.choices))]
        if form.close:
            lines.append(f'one: {reasoning.mark(form.open, special)} "\\n" call "\\n" {reasoning.mark(form.close, special)}')
        else:
            lines.append("one: call")
        many = "one" if self.one else f"one ({json.dumps(form.between)} one)*"
        if form.array:
            return [f'calls: {reasoning.mark(form.open, special)} "[" {many} "]"', *lines]
        return [f"calls: {many}", *lines]


def _text_lines(function: Dict[str, Any]) -> str:
    """A line for each of a function's parameters that may be a string."""
    properties = (function.get("parameters") or {}).get("properties")
    lines = []
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        kinds = _kinds(schema)
        if str in kinds and not {"\n", "\0"} & set(name):
            lines.append(f"{'?' if type(None) in kinds else ''}{function['name']} {name}\n")
    return "".join(lines)


_DEEPEST = 16  # of schemas within schemas that are looked at
_KINDS: Dict[str, type] = {"string": str, "null": type(None)}


def _kinds(schema: Any, depth: int = 0) -> Set[type]:
    """Whether a schema names strings, and whether it names null. Parts of allOf that name neither
    only limit the value."""
    if not isinstance(schema, dict) or depth == _DEEPEST:
        return set()
    named, values = schema.get("type"), [schema["const"]] if "const" in schema else schema.get("enum")
    if named is not None:
        named = named if isinstance(named, list) else [named]
        return {kind for name, kind in _KINDS.items() if name in named or (name == "null" and schema.get("nullable") is True)}
    if isinstance(values, list):
        return {kind for kind in _KINDS.values() if any(isinstance(one, kind) for one in values)}
    listed = {key: schema[key] if isinstance(schema.get(key), list) else [] for key in ("anyOf", "oneOf", "allOf")}
    one_of = [_kinds(one, depth + 1) for one in listed["anyOf"] + listed["oneOf"]]
    all_of = [kinds for kinds in (_kinds(one, depth + 1) for one in listed["allOf"]) if kinds]
    found: Set[type] = set.intersection(*all_of) if all_of else set()
    return found.union(*one_of)


def _schema(function: Dict[str, Any], form: Form) -> str:
    """The schema of a call. Definitions that parameters refer to are found at its root."""
    parameters = dict(function.get("parameters") or {"type": "object", "properties": {}})
    parameters.pop("$schema", None)
    whole: Dict[str, Any] = {name: parameters.pop(name) for name in ("$defs", "definitions") if name in parameters}
    whole.update({"type": "object", "properties": {"name": {"const": function["name"]}, form.arguments: parameters}, "required": ["name", form.arguments],
                  "additionalProperties": False, "x-guidance": {"whitespace_pattern": WHITESPACE}})  # fmt: skip
    return _json(whole, function)


def _parameters(function: Dict[str, Any]) -> str:
    """The schema of a call's arguments alone."""
    given = {name: value for name, value in (function.get("parameters") or {}).items() if name != "$schema"}
    return _json({"x-guidance": {"whitespace_pattern": WHITESPACE}, **given, "type": "object"}, function)


def _json(schema: Dict[str, Any], function: Dict[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadParameter("tools", f"the parameters of {function['name']} are no JSON: {error}") from None


def _functions(given: Any) -> List[Dict[str, Any]]:
    if not isinstance(given, (list, tuple)) or len(given) > MOST_TOOLS:
        raise BadParameter("tools", f"tools is {shown(given)}, expected a list of at most {MOST_TOOLS} tools", "invalid_type")
    functions = []
    for i, tool in enumerate(given):
        where, function = f"tools[{i}]", tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise BadParameter(where, f"{where} is {shown(tool)}, expected an object of type function with a function", "invalid_type")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            raise BadParameter(f"{where}.function.name", f"{where}.function.name is {shown(name)}, expected letters, digits and any of _-.:/")
        if function.get("parameters") is not None and not isinstance(function["parameters"], dict):
            raise BadParameter(f"{where}.function.parameters", f"{where}.function.parameters is {shown(function['parameters'])}, expected a JSON schema",
                               "invalid_type")  # fmt: skip
        functions.append(function)
    return functions


class _Choice(NamedTuple):
    """What a request's tool_choice says."""

    mode: str  # auto, none or required
    names: Optional[List[str]] = None  # of the functions that may be called; None: all
    one: bool = False  # one call


def _name_in(where: str, choice: Any, functions: Sequence[Dict[str, Any]]) -> str:
    """The function that an object of type function names, in OpenAI's form of chats or in that of
    responses."""
    function = choice.get("function", choice) if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise BadParameter(where, f"{where} is {shown(choice)}, expected an object of type function with a function's name")
    if not any(one["name"] == name for one in functions):
        raise BadParameter(where, f"{where} names {shown(name)}, which is none of the tools")
    return name


def _allowed(choice: Dict[str, Any], functions: Sequence[Dict[str, Any]]) -> _Choice:
    """Some of the tools, as {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
    [...]}} says."""
    where, said = "tool_choice.allowed_tools", choice.get("allowed_tools")
    if not isinstance(said, dict):
        raise BadParameter(where, f"{where} is {shown(said)}, expected an object with mode and tools", "invalid_type")
    mode, listed = said.get("mode"), said.get("tools")
    if mode not in ("auto", "required"):
        raise BadParameter(f"{where}.mode", f"{where}.mode is {shown(mode)}, expected auto or required")
    if not isinstance(listed, (list, tuple)) or not 0 < len(listed) <= MOST_TOOLS:
        raise BadParameter(f"{where}.tools", f"{where}.tools is {shown(listed)}, expected a list of 1 to {MOST_TOOLS} tools", "invalid_type")
    return _Choice(mode, [_name_in(f"{where}.tools[{i}]", one, functions) for i, one in enumerate(listed)])


def _chosen(choice: Any, functions: Sequence[Dict[str, Any]]) -> _Choice:
    if isinstance(choice, str) and choice in ("auto", "none", "required"):
        return _Choice(choice)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "allowed_tools":
        return _allowed(choice, functions)
    if kind != "function":
        raise BadParameter("tool_choice", f"tool_choice is {shown(choice)}, expected none, auto, required or an object of type function or allowed_tools")
    return _Choice("required", [_name_in("tool_choice", choice, functions)], one=True)


def asked(given: Dict[str, Any], form: Optional[str]) -> Optional[Asked]:
    """What a request's tools, tool_choice and parallel_tool_calls say; None: there is nothing to
    call."""
    functions = _functions(given.get("tools") or [])
    choice = _chosen(given["tool_choice"], functions) if given.get("tool_choice") is not None else _Choice("auto")
    parallel = flag("parallel_tool_calls", given["parallel_tool_calls"]) if given.get("parallel_tool_calls") is not None else True
    if not functions:
        if choice.mode == "required":
            raise BadParameter("tool_choice", f"tool_choice is {shown(given['tool_choice'])}, but there are no tools")
        return None
    if choice.mode == "none":
        return None
    if form is None:
        raise BadParameter("tools", f"how this model writes calls of tools is not known: start with --tool-parser, one of {', '.join(FORMS)}", "unsupported")
    chosen = [i for i, one in enumerate(functions) if choice.names is None or one["name"] in choice.names]
    # A forced call is one of these by its grammar. A free one is to know no others.
    shown_tools = list(given["tools"]) if choice.mode == "required" else [given["tools"][i] for i in chosen]
    return Asked(shown_tools, FORMS[form], not parallel or choice.one, choice.mode == "required", [functions[i] for i in chosen])


def check_calls(where: str, given: Any) -> List[Dict[str, Any]]:
    """Calls in a message of the assistant's, as templates expect them: arguments as an object,
    where they are one."""
    if not isinstance(given, (list, tuple)):
        raise BadParameter(where, f"{where} is {shown(given)}, expected a list of calls", "invalid_type")
    out = []
    for i, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadParameter(f"{where}[{i}]", f"{where}[{i}] is {shown(call)}, expected an object with a function that has a name", "invalid_type")
        out.append({**call, "type": "function", "function": {**function, "arguments": _arguments(function.get("arguments"))}})
    return out


_AS_JSON = re.compile(r"arguments['\"]?\]?\s*\|\s*tojson")


def joins_arguments(form: Optional[str], template: str) -> bool:
    """Whether a template puts the arguments of earlier calls between texts, which only a text can
    be: those of DeepSeek's models do."""
    return form == "deepseek" and _AS_JSON.search(template) is None


def with_text_arguments(message: Dict[str, Any]) -> Dict[str, Any]:
    """A message whose calls have their arguments as text."""
    calls = [{**call, "function": {**call["function"], "arguments": _text(call["function"]["arguments"])}} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls} if calls else message


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _arguments(given: Any) -> Any:
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return given  # what a model wrote may be anything
    return found if isinstance(found, dict) else given
