"""POST /v1/responses: OpenAI's newer form of a chat. What a request says becomes a chat, and what
is refused is named as the request has it. Answers are not stored.

Output items and the events of streams are made in C (serve/http/response.c).
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import requests
from .parameters import BadParameter, Grammar, flag, shown, text, whole
from .text import Text

#: What belongs to answers that are stored, or to tools and models that are not here: only what asks
#: for nothing passes.
_MISSING: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "previous_response_id": ((), "responses are not stored here: send the whole conversation as input"),
    "conversation": ((), "conversations are not stored here: send the whole conversation as input"),
    "prompt": ((), "prompts are not stored here: send input and instructions"),
    "background": ((False,), "a response is made while its client waits"),
    "truncation": (("disabled",), "an input that is too long is refused"),
    "n": ((1,), "a response has one output"),
    "prompt_logprobs": ((), "they are for /v1/chat/completions"),
    "context_management": (([],), "an input is used as it is"),
}
#: Without effect: they are about tools that are not here.
_IGNORED = ("max_tool_calls",)
#: What `include` may ask for. But for the first, what it adds is not there.
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (_LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
             "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs")  # fmt: skip
#: A chat's names of parameters, and those of a response.
_NAMES = (("response_format.json_schema", "text.format"), ("response_format", "text.format"), ("max_completion_tokens", "max_output_tokens"),
          ("reasoning_effort", "reasoning.effort"))  # fmt: skip
_TOOL_NAMES = re.compile(r"(tools\[\d+\])\.function\.")
_MESSAGE = re.compile(r"messages\[(\d+)\]")

Items = List[Dict[str, Any]]


def response(given: Dict[str, Any], model_text: Text, models: Sequence[str], now_ns: int, constrain: requests.Constrain = requests.no_constraint) -> requests.Work:
    """The chat that a request asks for, in the form of a response."""
    for name, (neutral, why) in _MISSING.items():
        if given.get(name) is not None and not any(type(one) is type(given[name]) and one == given[name] for one in neutral):
            raise BadParameter(name, f"{name} is {shown(given[name])}, which is not supported: {why}", "unsupported")
    if "messages" in given:
        raise BadParameter("messages", "messages is for /v1/chat/completions; here there is input", "unknown_parameter")
    if given.get("store") is not None:
        flag("store", given["store"])
    messages, places = _conversation(given)
    asked = {name: value for name, value in given.items() if name not in _OWN and name not in _MISSING and name not in _IGNORED}
    asked.update(messages=messages, max_completion_tokens=given.get("max_output_tokens"), response_format=_format(given.get("text")), tools=_tools(given.get("tools")),
                 tool_choice=_choice(given.get("tool_choice")), reasoning_effort=_effort(given.get("reasoning")), **_logprobs(given))  # fmt: skip

    def constrain_as_response(grammar: Optional[Grammar]) -> Any:
        return constrain(grammar and grammar._replace(parameter=_as_response(grammar.parameter, places)))

    try:
        work = requests.chat(asked, model_text, models, now_ns, constrain_as_response)
    except BadParameter as error:
        raise _renamed(error, lambda words: _as_response(words, places)) from None
    return work._replace(members=_members(given))


_OWN = ("input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "reasoning", "include", "top_logprobs")


def _as_response(words: str, places: List[str]) -> str:
    """A message, or the name of a parameter, with a response's names in place of a chat's."""
    for name, own in _NAMES:
        words = words.replace(name, own)
    words = _TOOL_NAMES.sub(r"\1.", words)
    words = _MESSAGE.sub(lambda found: places[int(found[1])] if int(found[1]) < len(places) else found[0], words)
    return re.sub(r"^messages\b", "input", words)


def _renamed(error: BadParameter, name: Callable[[str], str]) -> BadParameter:
    return BadParameter(error.parameter and name(error.parameter), name(error.message), error.code)


# ---- input ----


def _conversation(given: Dict[str, Any]) -> Tuple[Items, List[str]]:
    """Messages, and where in the request each of them stands."""
    said = given.get("input")
    if said is None:
        raise BadParameter("input", "input is missing", "missing_parameter")
    if not isinstance(said, (str, list)) or not said:
        raise BadParameter("input", f"input is {shown(said)}, expected a text or a list of at least one item", "invalid_type")
    messages: Items = []
    places: List[str] = []
    if given.get("instructions") is not None:
        messages.append({"role": "system", "content": text("instructions", given["instructions"])})
        places.append("instructions")
    if isinstance(said, str):
        return [*messages, {"role": "user", "content": said}], [*places, "input"]
    goes_on = False  # whether items belong to the assistant's message that comes last
    for i, item in enumerate(said):
        where = f"input[{i}]"
        made = _message(where, item)
        if goes_on and made["role"] == "assistant" and _joins(messages[-1], made):
            continue
        messages.append(made)
        places.append(where)
        goes_on = made["role"] == "assistant"
    return messages, places


def _joins(message: Dict[str, Any], more: Dict[str, Any]) -> bool:
    """Adds what follows in the same turn: reasoning comes before text, and text before calls."""
    order = ("reasoning_content", "content", "tool_calls")
    last = max(order.index(name) for name in message if name in order)
    (name,) = [name for name in more if name in order]
    if name == "tool_calls" and "tool_calls" in message:
        message["tool_calls"].extend(more["tool_calls"])
    elif order.index(name) > last:
        message[name] = more[name]
    else:
        return False
    return True


def _message(where: str, item: Any) -> Dict[str, Any]:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    make = _ITEMS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise BadParameter(where, f"{where} is {shown(item)}, expected an object whose type is one of {', '.join(_ITEMS)}", "unsupported")
    return make(where, item)


def _said(where: str, item: Dict[str, Any]) -> Dict[str, Any]:
    content = item.get("content")
    if isinstance(content, list):
        content = [{**part, "type": "text"} if isinstance(part, dict) and part.get("type") in ("input_text", "output_text") else part for part in content]
    return {"role": item.get("role"), "content": content}


def _call(where: str, item: Dict[str, Any]) -> Dict[str, Any]:
    for name in ("call_id", "name", "arguments"):
        text(f"{where}.{name}", item.get(name))
    return {"role": "assistant", "tool_calls": [{"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}]}


def _result(where: str, item: Dict[str, Any]) -> Dict[str, Any]:
    output = item.get("output")
    if not isinstance(output, (str, list)):
        raise BadParameter(f"{where}.output", f"{where}.output is {shown(output)}, expected a text or a list of parts", "invalid_type")
    return {**_said(where, {"role": "tool", "content": output}), "tool_call_id": text(f"{where}.call_id", item.get("call_id"))}


def _thought(where: str, item: Dict[str, Any]) -> Dict[str, Any]:
    """Its text, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            raise BadParameter(f"{where}.{name}", f"{where}.{name} is {shown(parts)}, expected a list of objects with a text", "invalid_type")
        if parts:
            return {"role": "assistant", "reasoning_content": text(f"{where}.{name}", "".join(part["text"] for part in parts))}
    return {"role": "assistant", "reasoning_content": ""}


_ITEMS: Dict[str, Callable[[str, Dict[str, Any]], Dict[str, Any]]] = {"message": _said, "function_call": _call, "function_call_output": _result, "reasoning": _thought}


# ---- what else it says ----


def _object(name: str, value: Any, known: Sequence[str]) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise BadParameter(name, f"{name} is {shown(value)}, expected an object", "invalid_type")
    for key in value:
        if key not in known:
            raise BadParameter(f"{name}.{key}", f"unknown parameter {shown(key)} in {name}; there are {', '.join(known)}", "unknown_parameter")
    return value


def _format(given: Any) -> Optional[Dict[str, Any]]:
    """A chat's response_format."""
    form = _object("text", given, ("format", "verbosity")).get("format") if given is not None else None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _effort(given: Any) -> Any:
    return None if given is None else _object("reasoning", given, ("effort", "summary", "generate_summary")).get("effort")


def _tools(given: Any) -> Any:
    """A chat's tools."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise BadParameter("tools", f"tools is {shown(given)}, expected a list", "invalid_type")
    for i, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise BadParameter(f"tools[{i}]", f"tools[{i}] is {shown(tool)}, expected an object of type function: other tools are not here", "unsupported")
    return [{"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}} for tool in given]


def _choice(given: Any) -> Any:
    """A chat's tool_choice, which has an object more."""
    if not isinstance(given, dict) or given.get("type") != "allowed_tools" or "allowed_tools" in given:
        return given
    return {"type": "allowed_tools", "allowed_tools": {name: value for name, value in given.items() if name != "type"}}


def _logprobs(given: Dict[str, Any]) -> Dict[str, Any]:
    include = given.get("include")
    if include is not None and (not isinstance(include, list) or any(one not in _INCLUDES for one in include)):
        raise BadParameter("include", f"include is {shown(include)}, expected a list of {', '.join(_INCLUDES)}", "invalid_value")
    top = given.get("top_logprobs")
    wanted = _LOGPROBS in (include or []) or (top is not None and whole(0)("top_logprobs", top) > 0)
    return {"logprobs": wanted, "top_logprobs": top}


def _members(given: Dict[str, Any]) -> bytes:
    """What a response repeats of its request, with OpenAI's defaults."""
    said = {name: value for name, value in given.items() if value is not None}
    form = {"format": {"type": "text"}, **{name: value for name, value in said.get("text", {}).items() if value is not None}}
    members = {
        "background": False, "instructions": said.get("instructions"), "max_output_tokens": said.get("max_output_tokens"), "max_tool_calls": said.get("max_tool_calls"),
        "metadata": said.get("metadata", {}), "parallel_tool_calls": said.get("parallel_tool_calls", True), "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **said.get("reasoning", {})}, "service_tier": "default", "store": False,
        "temperature": said.get("temperature", 1.0), "text": form, "tool_choice": said.get("tool_choice", "auto"), "tools": said.get("tools", []),
        "top_logprobs": said.get("top_logprobs", 0), "top_p": said.get("top_p", 1.0), "truncation": "disabled", "user": said.get("user"),
    }  # fmt: skip
    return "".join(f',"{name}":{_json(name, value)}' for name, value in members.items()).encode(errors="replace")


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # 1e999 is JSON, and becomes infinity
        raise BadParameter(name, f"{name} has a number that is too large to be repeated", "invalid_value") from None


__all__ = ["response"]
