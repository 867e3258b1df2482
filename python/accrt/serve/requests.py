"""From the body of a request, as OpenAI has it, to what the engine is asked. Pure: no sockets, no
engine."""

from __future__ import annotations

import collections
import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from . import embedding, tools
from .parameters import BadParameter, MOST_LOGPROBS, MOST_SEQUENCES, Limits, Request, Grammar, adapter, checked, flag, grammar_of, known_tokens, real, shown, text, whole
from .text import Text, find_reasoning, find_stops, generation_prompt, template_names


class Work(NamedTuple):
    """What a request asks: requests of the engine, and the form of the answer."""

    requests: List[Request]
    flags: int
    top_logprobs: int
    model: Optional[str]
    prefixes: Optional[List[Optional[bytes]]]
    tools: int = 0  # the form of calls
    prompt_top_logprobs: int = 0
    reasoning: int = 0  # its form
    text_parameters: Optional[bytes] = None  # of tools
    members: Optional[bytes] = None  # of a response


#: Accepted and without effect: what they ask for is what happens, or nothing is lost.
_IGNORED = {"store", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "verbosity", "prediction"}


def _only(*values: Any, hint: str = "") -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise BadParameter(name, f"{name} is {shown(value)}, which is not supported{hint}", "unsupported")

    return check


#: Features that are not there: only what asks for nothing passes.
_MISSING = {
    "functions": _only([], hint=": tools are"), "function_call": _only("none", "auto", hint=": tool_choice is"),
    "modalities": _only(["text"]), "audio": _only(),
    "web_search_options": _only(), "suffix": _only(""),
}  # fmt: skip
_SHARED = ("model", "stream", "stream_options", "add_special_tokens")
_OF_TEMPLATE = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message")
_TOKENIZE = ("prompt", "messages", "model", "add_special_tokens", *_OF_TEMPLATE)
_CHAT = ("messages", "max_completion_tokens", "top_logprobs", "separate_reasoning", "include_reasoning", *_OF_TEMPLATE)
_COMPLETION = ("prompt", "echo", "best_of")


#: Letters of a word such as medium.
MOST_EFFORT = 64
#: Lists and objects of a body, and names in its objects; or as many brackets or colons in its
#: texts. Three bytes of a body can become a list that takes some hundred bytes of memory, and six a
#: name. A text of so many brackets or colons fits no model.
MOST_BRACKETS = MOST_NAMES = 1 << 19


#: What some clients begin UTF-8 with. (Python's codec for it is a module, that is a descriptor.)
_MARK = b"\xef\xbb\xbf"


def parse(body: bytes) -> Dict[str, Any]:
    if not body.strip():
        raise BadParameter(None, "the body is empty, expected a JSON object", "invalid_json")
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MOST_BRACKETS:
        raise BadParameter(None, f"the body has {brackets} lists and objects, expected at most {MOST_BRACKETS}")
    names = body.count(b":")
    if names > MOST_NAMES:
        raise BadParameter(None, f"the body has {names} names, expected at most {MOST_NAMES}")
    try:
        given = json.loads(body[body.startswith(_MARK) and len(_MARK) :].decode(), parse_constant=_no_constant, object_pairs_hook=_object)
    except BadParameter:
        raise
    except RecursionError:
        raise BadParameter(None, "the body is no JSON that is read here: lists or objects are nested too deeply", "invalid_json") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise BadParameter(None, "the body is no JSON that is read here: a number has too many digits", "invalid_json") from None
        raise BadParameter(None, f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(given, dict):
        raise BadParameter(None, "the body is no JSON object", "invalid_json")
    return given


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Of two equal names a proxy may have looked at the other one."""
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = collections.Counter(name for name, _value in pairs).most_common(1)[0][0]
        raise BadParameter(None, f"an object of the body has the name {shown(twice)} twice", "invalid_json")
    return made


#: Parameters that belong to another path, and where that is.
_ELSEWHERE = {"prompt": "/v1/completions; here there are messages", "messages": "/v1/chat/completions; here there is a prompt",
              "tools": "/v1/chat/completions", "input": "/v1/responses and /v1/embeddings"}  # fmt: skip


def _of_this_path(given: Dict[str, Any], own: Sequence[str]) -> None:
    """Better than to name a parameter that is near."""
    for name, path in _ELSEWHERE.items():
        if name in given and name not in own:
            raise BadParameter(name, f"{name} is for {path}", "unknown_parameter")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _common(given: Dict[str, Any], own: Sequence[str], models: Sequence[str]) -> Tuple[Dict[str, Any], int]:
    """Parameters and flags that both kinds have. Removes what is no parameter of the engine."""
    for name, check in _MISSING.items():
        if given.get(name) is not None:
            check(name, given[name])
    _of_this_path(given, own)
    rest = {name: value for name, value in given.items() if name not in _IGNORED and name not in _MISSING}
    lora = model_of(rest.get("model"), models)
    flags = 0
    if rest.get("stream") is not None and flag("stream", rest["stream"]):
        flags |= _ffi.ACCRT_HTTP_STREAM
    flags |= _stream_options(rest.get("stream_options"), flags)
    known = (*_SHARED, *own)
    values = checked({k: v for k, v in rest.items() if k not in known or k == "logprobs"}, known)
    if values["prompt_logprobs"] is not None:
        if flags & _ffi.ACCRT_HTTP_STREAM:
            raise BadParameter("prompt_logprobs", "prompt_logprobs are not for streams: echo with logprobs is", "unsupported")
        flags |= _ffi.ACCRT_HTTP_PROMPT_LOGPROBS
    if lora is not None:
        if values["adapter"] not in (None, lora):
            raise BadParameter("adapter", f"adapter is {shown(values['adapter'])}, and the model {shown(lora)} is an adapter itself")
        values["adapter"] = lora
    return values, flags


def model_of(given: Any, models: Sequence[str]) -> Optional[str]:
    """The adapter that `model` names, as vLLM has it: an adapter is a model. None: the model
    itself."""
    if given is not None and text("model", given) not in models:
        raise BadParameter("model", f"model is {shown(given)}; here is {', '.join(map(shown, models))}", "model_not_found")
    return given if given is not None and given != models[0] else None


def _stream_options(given: Any, flags: int) -> int:
    if given is None:
        return 0
    if not isinstance(given, dict):
        raise BadParameter("stream_options", f"stream_options is {shown(given)}, expected an object", "invalid_type")
    if not flags & _ffi.ACCRT_HTTP_STREAM:
        raise BadParameter("stream_options", "stream_options are for streams: stream is not true")
    for name in given:
        if name not in ("include_usage", "include_obfuscation"):
            raise BadParameter("stream_options", f"unknown option {shown(name)} in stream_options", "unknown_parameter")
    usage = given.get("include_usage")
    return _ffi.ACCRT_HTTP_USAGE if usage is not None and flag("stream_options.include_usage", usage) else 0


Constrain = Callable[[Optional[Grammar]], Any]


def no_constraint(grammar: Optional[Grammar]) -> None:
    """Without an engine nothing is constrained."""


def _special(given: Dict[str, Any], default: bool) -> bool:
    """Whether the tokenizer adds its own special tokens, such as the one that begins a text."""
    value = given.get("add_special_tokens")
    return default if value is None else flag("add_special_tokens", value)


def _names_of(given: Dict[str, Any]) -> Tuple[Dict[str, Any], bool]:
    """What the chat template gets beside the messages and tools; and whether the last message goes
    on."""
    names, effort = template_names(given.get("chat_template_kwargs")), given.get("reasoning_effort")
    add, goes_on = generation_prompt(given)
    if add is not None:
        names["add_generation_prompt"] = add
    if effort is not None:
        if not text("reasoning_effort", effort) or len(effort) > MOST_EFFORT:
            raise BadParameter("reasoning_effort", f"reasoning_effort is {shown(effort)}, expected 1 to {MOST_EFFORT} characters, as the model's chat template has them")
        names.setdefault("reasoning_effort", effort)
    return names, goes_on


def chat(given: Dict[str, Any], model_text: Text, models: Sequence[str], now_ns: int, constrain: Constrain = no_constraint) -> Work:
    """POST /v1/chat/completions."""
    wanted = flag("logprobs", given["logprobs"]) if given.get("logprobs") is not None else False
    top = whole(0, MOST_LOGPROBS)("top_logprobs", given["top_logprobs"]) if given.get("top_logprobs") is not None else 0
    if top and not wanted:
        raise BadParameter("top_logprobs", "top_logprobs are wanted, but logprobs is not true")
    values, flags = _common({**given, "logprobs": top if wanted else None}, _CHAT, models)
    if given.get("max_completion_tokens") is not None:
        values["max_tokens"] = whole(1)("max_completion_tokens", given["max_completion_tokens"])
    extra, goes_on = _names_of(given)
    asked, grammar = tools.asked(given, model_text.tool_parser), grammar_of(values)
    if asked is not None:
        grammar = asked.grammar(model_text.tokenizer.special, grammar)
        values["skip_special_tokens"] = asked.skip_special(values["skip_special_tokens"], model_text.tokenizer.special)
        flags |= _ffi.ACCRT_HTTP_ONE_CALL if asked.one else 0
        extra["tools"] = asked.tools
    if given.get("messages") is None:
        raise BadParameter("messages", "messages is missing", "missing_parameter")
    conversation = model_text.chat(given["messages"], extra, _special(given, False), goes_on)
    thoughts, values["skip_special_tokens"], grammar = find_reasoning(model_text, given, conversation, values["skip_special_tokens"], grammar, asked)
    values["stop_token_ids"] = find_stops(model_text, values)
    if thoughts is not None and thoughts.left_out:
        flags |= _ffi.ACCRT_HTTP_NO_REASONING
    request = Request(conversation.ids, values, now_ns, constrain(grammar))
    return Work([request], flags | (_ffi.ACCRT_HTTP_LOGPROBS if wanted else 0), top, given.get("model"), None, asked.form.number if asked is not None else 0,
                values["prompt_logprobs"] or 0, thoughts.number if thoughts is not None else 0, asked.text_parameters if asked is not None else None)  # fmt: skip


def _prompts(given: Any) -> List[Any]:
    """One prompt or several: each is a text or a list of token ids."""
    if given is None:
        raise BadParameter("prompt", "prompt is missing", "missing_parameter")
    if isinstance(given, list) and given and all(isinstance(one, (str, list)) for one in given):
        if len(given) > MOST_SEQUENCES:
            raise BadParameter("prompt", f"prompt has {len(given)} prompts, expected at most {MOST_SEQUENCES}")
        return given
    return [given]


def completion(given: Dict[str, Any], model_text: Text, models: Sequence[str], now_ns: int, constrain: Constrain = no_constraint) -> Work:
    """POST /v1/completions."""
    model_text.need_head()
    values, flags = _common(given, _COMPLETION, models)
    if given.get("max_tokens") is None:
        values["max_tokens"] = 16  # OpenAI's
    if given.get("best_of") is not None and given["best_of"] != values["n"]:
        raise BadParameter("best_of", f"best_of is {shown(given['best_of'])}, which is not supported beside n = {values['n']}", "unsupported")
    echo = flag("echo", given["echo"]) if given.get("echo") is not None else False
    if echo and values["logprobs"] is not None:
        flags |= _ffi.ACCRT_HTTP_ECHO_LOGPROBS
        values["prompt_logprobs"] = max(values["logprobs"], values["prompt_logprobs"] or 0)
    if values["max_tokens"] == 0:
        if not echo:
            raise BadParameter("max_tokens", "max_tokens is 0, expected a number at least 1: 0 is for echo, which gives the prompt alone")
        values["prompt_logprobs"] = values["prompt_logprobs"] or 0
    prompts = _prompts(given.get("prompt"))
    constraint = constrain(grammar_of(values))
    several, special = len(prompts) > 1, _special(given, True)
    ids = [model_text.prompt(one, f"prompt[{i}]" if several else "prompt", special) for i, one in enumerate(prompts)]
    requests = [Request(one, values, now_ns, constraint) for one in ids]
    if values["logprobs"] is not None:
        flags |= _ffi.ACCRT_HTTP_LOGPROBS
    # Of token ids the engine's side knows the text.
    prefixes = [one.replace("\0", "\ufffd").encode(errors="replace") if isinstance(one, str) else None for one in prompts] if echo else None
    return Work(requests, flags, values["logprobs"] or 0, given.get("model"), prefixes, prompt_top_logprobs=given.get("prompt_logprobs") or 0)


_EMBEDDING = ("input", "model", "encoding_format")


def embed(given: Dict[str, Any], model_text: Text, models: Sequence[str], now_ns: int, size: int, most: int) -> Work:
    """POST /v1/embeddings, of at most so many texts."""
    form = given.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise BadParameter("encoding_format", f"encoding_format is {shown(form)}, expected float or base64")
    rest = {name: value for name, value in given.items() if name not in _EMBEDDING and name not in _IGNORED}
    lora = model_of(given.get("model"), models)
    if lora is not None and rest.get("adapter") not in (None, lora):
        raise BadParameter("adapter", f"adapter is {shown(rest['adapter'])}, and the model {shown(lora)} is an adapter itself")
    values = embedding.parameters({**rest, "adapter": lora or rest.get("adapter")}, model_text.pooling, size)
    if given.get("input") is None:
        raise BadParameter("input", "input is missing", "missing_parameter")
    several, listed = embedding.inputs("input", given["input"])
    if len(several) > most:  # before they become tokens
        raise BadParameter("input", f"input has {len(several)} prompts, and the queue takes {most} (--max-queued)")
    ids = [model_text.prompt(one, f"input[{i}]" if listed else "input") for i, one in enumerate(several)]
    flags = _ffi.ACCRT_HTTP_BASE64 if form == "base64" else 0
    return Work([Request(one, values, now_ns) for one in ids], flags, 0, given.get("model"), None)


def tokenize(given: Dict[str, Any], model_text: Text, models: Sequence[str]) -> Dict[str, Any]:
    """POST /tokenize: how many tokens something is, as a completion or a chat would have it."""
    _only_known(given, _TOKENIZE)
    model_of(given.get("model"), models)
    messages, prompt = given.get("messages"), given.get("prompt")
    if (messages is None) == (prompt is None):
        code = "missing_parameter" if prompt is None else "invalid_value"
        raise BadParameter("prompt", "prompt is missing, and so are messages" if prompt is None else "prompt and messages are both there, expected one of them", code)
    if messages is None:
        ids = model_text.prompt(prompt, special=_special(given, True))
    else:
        extra, goes_on = _names_of(given)
        asked = tools.asked(given, model_text.tool_parser)
        if asked is not None:
            extra["tools"] = asked.tools
        ids = model_text.chat(messages, extra, _special(given, False), goes_on).ids
    return {"count": len(ids), "tokens": ids}


def detokenize(given: Dict[str, Any], model_text: Text, models: Sequence[str], limits: Limits) -> Dict[str, Any]:
    """POST /detokenize: the text of token ids, special tokens too, as vLLM has it."""
    _only_known(given, ("tokens", "model"))
    model_of(given.get("model"), models)
    _need(given, "tokens")
    if not isinstance(given["tokens"], list):
        raise BadParameter("tokens", f"tokens is {shown(given['tokens'])}, expected a list of token ids", "invalid_type")
    ids = model_text.prompt(given["tokens"], "tokens") if given["tokens"] else []
    known_tokens("tokens", ids, limits)
    return {"prompt": model_text.tokenizer.decode(ids)}


def adapter_to_load(given: Dict[str, Any]) -> Tuple[str, str]:
    """POST /v1/load_lora_adapter, as vLLM has it: a name, and a folder of the server's machine."""
    _only_known(given, ("lora_name", "lora_path"))
    _need(given, "lora_name", "lora_path")
    return adapter("lora_name", given.get("lora_name")), text("lora_path", given.get("lora_path"))


def adapter_to_unload(given: Dict[str, Any]) -> Tuple[str, float]:
    """POST /v1/unload_lora_adapter: a name, and how many seconds the requests that use it may still
    have."""
    _only_known(given, ("lora_name", "lora_int_id", "timeout"))
    _need(given, "lora_name")
    seconds = 0.0 if given.get("timeout") is None else real(0, MOST_UNLOAD_SECONDS)("timeout", given["timeout"])
    return adapter("lora_name", given.get("lora_name")), seconds


#: A worker waits meanwhile.
MOST_UNLOAD_SECONDS = 60


def _only_known(given: Dict[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise BadParameter(name, f"unknown parameter {shown(name)}; there are {', '.join(known)}", "unknown_parameter")


def _need(given: Dict[str, Any], *names: str) -> None:
    for name in names:
        if given.get(name) is None:
            raise BadParameter(name, f"{name} is missing", "missing_parameter")
