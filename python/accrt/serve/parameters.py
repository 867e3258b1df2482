"""What a request may ask for: one table of names for `accrt.LLM` and for the server, and how it is
checked and given to the engine.

Names are OpenAI's where it has one, else vLLM's. What is wrong raises BadParameter, which names the
parameter and shows its value.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import ctypes
import hashlib
import itertools
import json
import math
import numbers
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from .._library import close, MOST_COMPARED
from ..errors import InvalidArgumentError
from .adapters import name_of

#: Most sequences of one request, most stop strings, most alternatives of a token.
MOST_SEQUENCES, MOST_STOPS, MOST_LOGPROBS = 128, 16, _ffi.ACCRT_SERVE_MAX_LOGPROBS

#: Most tokens in `stop_token_ids`, and in `logit_bias`. The engine looks at them for each new
#: token, and others wait meanwhile.
MOST_TOKENS = 1024


class BadParameter(InvalidArgumentError):
    """A parameter that is refused: an accrt.Error and a ValueError.

    Attributes:
        parameter (str, None): its name. code (str): what is wrong with it, for programs. message
            (str): one line with its value.
    """

    def __init__(self, parameter: Optional[str], message: str, code: str = "invalid_value") -> None:
        super().__init__(message, name="ACCRT_ERROR_INVALID_ARGUMENT")
        if parameter is not None and len(parameter) > 80:  # an unknown one has any name
            parameter = parameter[:77] + "..."
        self.parameter, self.code = parameter, code

    def __reduce__(self) -> Any:
        return BadParameter, (self.parameter, self.message, self.code)


_SHOWN = 80


def _begin(value: Any, left: List[int]) -> Any:
    """As much of JSON as its first 80 letters need: a body may be one list of a million numbers."""
    left[0] -= 1
    if type(value) is str:
        return value[:_SHOWN]
    if type(value) in (list, tuple):
        return type(value)([_begin(one, left) for one in itertools.takewhile(lambda _: left[0] > 0, value)])
    if type(value) is dict:
        return {_begin(key, left): _begin(value[key], left) for key in itertools.takewhile(lambda _: left[0] > 0, value)}
    return value


#: Whether values in messages are written as JSON has them: for clients of the server. Others see
#: Python's.
_AS_JSON: "contextvars.ContextVar[bool]" = contextvars.ContextVar("as_json", default=False)


@contextlib.contextmanager
def json_words() -> Iterator[None]:
    """Messages that are made meanwhile are for who sent JSON: null, true, object."""
    token = _AS_JSON.set(True)
    try:
        yield
    finally:
        _AS_JSON.reset(token)


_JSON_KINDS = {dict: "object", list: "array", tuple: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _json_shown(value: Any) -> str:
    """A string stands in single quotes, as OpenAI's messages have it: in an answer, double ones
    would be escaped."""
    text = json.dumps(value, ensure_ascii=False)
    text = "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
    return "'" + text[1:-1].replace('\\"', '"') + "'" if isinstance(value, str) else text


def shown(value: Any) -> str:
    """A value in a message: short."""
    as_json = _AS_JSON.get()
    try:
        begun = _begin(value, [_SHOWN])
        text = _json_shown(begun) if as_json else repr(begun)
    except (RecursionError, ValueError, TypeError):  # too deep; an integer of too many digits
        kind = type(value).__name__
        return f"a value of type {_JSON_KINDS.get(type(value), kind) if as_json else kind}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


#: What other programs call our parameters.
_ALIASES = {"max_new_tokens": "max_tokens", "max_output_tokens": "max_tokens", "max_length": "max_tokens", "max_completion_tokens": "max_tokens",
            "min_new_tokens": "min_tokens", "num_return_sequences": "n", "num_predict": "max_tokens", "n_predict": "max_tokens", "n_probs": "logprobs", "stop_sequences": "stop",
            "repeat_penalty": "repetition_penalty", "random_seed": "seed", "do_sample": "temperature", "temp": "temperature", "json_schema": "guided_json", "thinking": "chat_template_kwargs"}  # fmt: skip


def near(name: str, known: Sequence[str]) -> Optional[str]:
    """The name that was probably meant."""
    if len(name) > MOST_COMPARED:
        return None
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).replace("-", "_").lstrip("_")
    for one in (name, snake):
        if one != name and one in known:
            return one
        if _ALIASES.get(one) in known:
            return _ALIASES[one]
    found = close(snake, known) or [one for one in known if len(snake) > 3 and (snake in one or one in snake and len(one) > 3)]
    return found[0] if found else None


def whole(least: Optional[int] = None, most: Optional[int] = None) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise BadParameter(name, f"{name} is {shown(value)}, expected an integer", "invalid_type")
        return int(_within(name, value, least, most))

    return check


def real(least: Optional[float] = None, most: Optional[float] = None, above: Optional[float] = None) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise BadParameter(name, f"{name} is {shown(value)}, expected a number", "invalid_type")
        try:
            finite = math.isfinite(value)
        except OverflowError:
            finite = False
        if not finite:
            raise BadParameter(name, f"{name} is {shown(value)}, expected a finite number")
        if above is not None and not value > above:
            raise BadParameter(name, f"{name} is {shown(value)}, expected a number above {above}")
        return float(_within(name, value, least, most))

    return check


def _within(name: str, value: Any, least: Any, most: Any) -> Any:
    if (least is not None and value < least) or (most is not None and value > most):
        limits = f"from {least} to {most}" if most is not None and least is not None else f"at least {least}" if most is None else f"at most {most}"
        raise BadParameter(name, f"{name} is {shown(value)}, expected a number {limits}")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadParameter(name, f"{name} is {shown(value)}, expected true or false", "invalid_type")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadParameter(name, f"{name} is {shown(value)}, expected a string", "invalid_type")
    return unicode(name, value)


def unicode(name: str, value: str) -> str:
    """The string, which must have UTF-8 bytes: half of a surrogate pair, as cut emojis leave it,
    has none."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadParameter(name, f"{name} has half of a surrogate pair at character {error.start}, which is no text") from None
    return value


def stops(name: str, value: Any) -> Tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise BadParameter(name, f"{name} is {shown(value)}, expected a string or a list of strings", "invalid_type")
    if len(found) > MOST_STOPS or not all(found) or any("\0" in one for one in found):
        raise BadParameter(name, f"{name} is {shown(value)}, expected at most {MOST_STOPS} strings, none of them empty or with a NUL in it")
    for i, one in enumerate(found):
        size = len(unicode(f"{name}[{i}]" if found is value else name, one).encode())
        if size > _ffi.ACCRT_SERVE_MAX_STOP_BYTES:
            raise BadParameter(name, f"{name}[{i}] has {size} bytes, expected at most {_ffi.ACCRT_SERVE_MAX_STOP_BYTES}")
    return tuple(found)


def _few(name: str, value: Any) -> None:
    """Refuses more tokens than the engine may look at, before anything looks at them."""
    if isinstance(value, (list, tuple, dict)) and len(value) > MOST_TOKENS:
        raise BadParameter(name, f"{name} has {len(value)} tokens, expected at most {MOST_TOKENS}")


def token_ids(name: str, value: Any) -> Tuple[int, ...]:
    _few(name, value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise BadParameter(name, f"{name} is {shown(value)}, expected a list of token ids", "invalid_type")
    if any(not 0 <= one < 1 << 31 for one in value):
        raise BadParameter(name, f"{name} is {shown(value)}, expected token ids of 0 or more")
    return tuple(value)


#: A number as JSON has it, in the one way that it can be written.
_DECIMAL = re.compile("0|-?[1-9][0-9]{0,18}")


def biases(name: str, value: Any) -> Dict[int, float]:
    if not isinstance(value, dict):
        raise BadParameter(name, f"{name} is {shown(value)}, expected an object of token ids and numbers", "invalid_type")
    _few(name, value)
    found: Dict[int, float] = {}
    for key, number in value.items():
        # int() takes "+1", " 1", "1_0", 1.5 and True too, of which two would be one token
        is_token = _DECIMAL.fullmatch(key) if isinstance(key, str) else isinstance(key, numbers.Integral) and not isinstance(key, bool)
        if not is_token:
            raise BadParameter(name, f"{name} has the key {shown(key)}, expected a token id")
        token = int(key)
        if not 0 <= token < 1 << 31:
            raise BadParameter(name, f"{name} has the key {shown(key)}, expected a token id of 0 or more")
        found[token] = real(-100, 100)(f"{name}[{token}]", number)
    return found


def adapter(name: str, value: Any) -> str:
    checked_text = text(name, value)
    try:
        name_of(checked_text)
    except ValueError as error:
        raise BadParameter(name, f"{name}: {error}") from None
    return checked_text


# ---- grammars ----


class Grammar(NamedTuple):
    """What the text must be. `kind` is json (a schema), regex or lark."""

    parameter: str
    kind: str
    text: str


#: Whitespace between the parts of JSON, unless a schema says otherwise: bounded, so that no model
#: goes on with it for ever.
WHITESPACE = "[ \\t\\n\\r]{0,20}"


#: Bytes of a request's grammar. Compiling one takes time with the square of the length of its
#: expressions. Those of a schema have together the limit of one expression.
_MOST_BYTES = {"json": 256 << 10, "regex": 16 << 10, "lark": 64 << 10}


def limited(grammar: Grammar, kind: str) -> Grammar:
    """The grammar, if it is not too large to be compiled for a request, by the limit of this
    kind."""
    size, most = len(grammar.text.encode(errors="surrogatepass")), _MOST_BYTES[kind]
    if size > most:
        raise BadParameter(grammar.parameter, f"{grammar.parameter} makes a grammar of {size} bytes, expected at most {most}")
    return grammar


def expressions(name: str, schema: Any) -> None:
    """Expressions in a schema, together. Its depth is bounded: it was JSON."""
    size, rest = 0, [schema]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            size += sum(map(len, one["patternProperties"])) if isinstance(one.get("patternProperties"), dict) else 0
            size += sum(len(value) for key, value in one.items() if isinstance(value, str) and key.endswith(("pattern", "separator")))
            rest.extend(one.values())
        elif isinstance(one, list):
            rest.extend(one)
    if size > _MOST_BYTES["regex"]:
        raise BadParameter(name, f"{name} has expressions of {size} characters, expected at most {_MOST_BYTES['regex']}")


def _json_text(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadParameter(name, f"{name} is no JSON: {error}") from None


def json_schema(name: str, value: Any) -> Grammar:
    """A schema: an object, true, or the text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadParameter(name, f"{name} is no JSON: {error}") from None
    elif hasattr(value, "model_json_schema"):  # a class of pydantic's
        value = value.model_json_schema()
    if not isinstance(value, (dict, bool)):
        raise BadParameter(name, f"{name} is {shown(value)}, expected a JSON schema: an object", "invalid_type")
    if isinstance(value, dict) and "x-guidance" not in value:
        value = {**value, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    grammar = limited(Grammar(name, "json", unicode(name, _json_text(name, value))), "json")
    expressions(name, value)
    return grammar


_DIGITS = {"\\d": "[0-9]", "\\D": "[^0-9]"}


def _ascii_digits(expression: str) -> str:
    """With `\\d` as in a schema's patterns: Unicode's other digits are no number to most who read
    the text. Classes may be nested, so this holds within one, too."""
    return re.sub(r"\\.", lambda found: _DIGITS.get(found[0], found[0]), expression, flags=re.DOTALL)


def _pattern(kind: str) -> Callable[[str, Any], Grammar]:
    def check(name: str, value: Any) -> Grammar:
        if "\0" in text(name, value):
            raise BadParameter(name, f"{name} has a NUL in it")
        grammar = limited(Grammar(name, kind, value), kind)
        return grammar._replace(text=_ascii_digits(value)) if kind == "regex" else grammar

    return check


def choices(name: str, value: Any) -> Grammar:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) and one for one in value):
        raise BadParameter(name, f"{name} is {shown(value)}, expected a list of texts, none of them empty", "invalid_type")
    return limited(Grammar(name, "lark", "start: " + " | ".join(_json_text(name, unicode(name, one)) for one in value)), "lark")


_FORMS: Dict[str, Callable[[str, Any], Grammar]] = {"json": json_schema, "regex": _pattern("regex"), "choice": choices, "grammar": _pattern("lark")}


def structured_outputs(name: str, value: Any) -> Grammar:
    """As vLLM has it: an object with one of json, json_object, regex, choice and grammar."""
    given = {key: one for key, one in value.items() if one is not None and one is not False} if isinstance(value, dict) else {}
    if len(given) != 1 or not set(given) <= {*_FORMS, "json_object"}:
        raise BadParameter(name, f"{name} is {shown(value)}, expected an object with one of json, json_object, regex, choice and grammar")
    ((form, one),) = given.items()
    return json_schema(name, {"type": "object"}) if form == "json_object" else _FORMS[form](f"{name}.{form}", one)


def response_format(name: str, value: Any) -> Optional[Grammar]:
    """As OpenAI has it: of type text, json_object or json_schema."""
    if not isinstance(value, dict):
        raise BadParameter(name, f"{name} is {shown(value)}, expected an object", "invalid_type")
    kind = value.get("type")
    if kind == "text":
        return None
    schema = value.get("schema")  # as llama.cpp has it
    if kind == "json_object":
        return json_schema(name, {"type": "object"}) if schema is None else json_schema(f"{name}.schema", schema)
    if kind == "json_schema" and schema is not None and value.get("json_schema") is None:
        return json_schema(f"{name}.schema", schema)
    if kind != "json_schema":
        raise BadParameter(f"{name}.type", f"{name}.type is {shown(kind)}, expected text, json_object or json_schema")
    form = value.get("json_schema")
    if not isinstance(form, dict) or form.get("schema", {}) is None:
        raise BadParameter(f"{name}.json_schema", f"{name}.json_schema is {shown(form)}, expected an object with a schema", "invalid_type")
    return json_schema(f"{name}.json_schema.schema", form.get("schema", {}))


#: Longer limits of time are none.
_MOST_SECONDS = 1e9


class Parameter(NamedTuple):
    default: Any
    check: Callable[[str, Any], Any]
    help: str


PARAMETERS: Dict[str, Parameter] = {
    "max_tokens": Parameter(None, whole(0), "most tokens to generate; without it, as many as the model's length allows; 0: none, with prompt_logprobs"),
    "min_tokens": Parameter(0, whole(0), "the text does not end before so many tokens"),
    "n": Parameter(1, whole(1, MOST_SEQUENCES), "how many continuations"),
    "temperature": Parameter(1.0, real(0, 100), "0: always the most probable token"),
    "top_p": Parameter(1.0, real(most=1, above=0), "draws from the most probable tokens that together have this probability"),
    "top_k": Parameter(0, whole(-1), "draws from the k most probable tokens; 0 or -1: off"),
    "min_p": Parameter(0.0, real(0, 1), "leaves out tokens below this part of the most probable one"),
    "repetition_penalty": Parameter(1.0, real(above=0), "logits of tokens that occurred are divided or multiplied by it"),
    "presence_penalty": Parameter(0.0, real(-2, 2), "subtracted from the logits of tokens that were generated"),
    "frequency_penalty": Parameter(0.0, real(-2, 2), "the same for each time that a token was generated"),
    "logit_bias": Parameter({}, biases, "added to logits, by token id"),
    "seed": Parameter(None, whole(-(1 << 63), (1 << 64) - 1), "the same seed gives the same tokens"),
    "stop": Parameter((), stops, "strings that end the text before them"),
    "stop_token_ids": Parameter((), token_ids, "tokens that end the text"),
    "include_stop_str_in_output": Parameter(False, flag, "the stop string is part of the text"),
    "skip_special_tokens": Parameter(True, flag, "special tokens are not part of the text"),
    "ignore_eos": Parameter(False, flag, "the model's end tokens do not end the text"),
    "logprobs": Parameter(None, whole(0, MOST_LOGPROBS), "log probabilities, of this many alternatives for each token"),
    "prompt_logprobs": Parameter(None, whole(0, MOST_LOGPROBS), "log probabilities of the prompt's own tokens, with this many alternatives for each"),
    "num_speculative_tokens": Parameter(None, whole(0, _ffi.ACCRT_SERVE_MAX_DRAFTS), "tokens of a step that are guessed from the text so far; the text does not change"),
    "priority": Parameter(0, whole(_ffi.ACCRT_SERVE_PRIORITY_FIRST, _ffi.ACCRT_SERVE_PRIORITY_LAST), "lower numbers are served first"),
    "user": Parameter(None, text, "the user that the request is for; users share the engine fairly"),
    "timeout": Parameter(None, real(above=0), "seconds after which the request ends"),
    "response_format": Parameter(None, response_format, "what the text must be: text, json_object, or json_schema with a schema"),
    "structured_outputs": Parameter(None, structured_outputs, "the same, as vLLM has it: an object with json, regex, choice or grammar"),
    "guided_json": Parameter(None, json_schema, "a JSON schema that the text must fit"),
    "guided_regex": Parameter(None, _pattern("regex"), "a regular expression that the whole text must match"),
    "guided_choice": Parameter(None, choices, "a list of texts; the generated text is one of them"),
    "guided_grammar": Parameter(None, _pattern("lark"), "a grammar in llguidance's variant of Lark"),
    "cache_salt": Parameter(None, text, "shares cached prompts only with requests of the same salt"),
    "adapter": Parameter(None, adapter, "a LoRA adapter that is loaded, by its name"),
}  # fmt: skip


def checked(given: Dict[str, Any], also: Sequence[str] = ()) -> Dict[str, Any]:
    """All parameters, with defaults for those that are missing or None. Names in `also` are the
    caller's own."""
    for name in given:
        if name not in PARAMETERS and name not in also:
            meant = near(name, [*also, *PARAMETERS])
            raise BadParameter(name, f"unknown parameter {shown(name)}" + (f"; did you mean {meant}?" if meant else ""), "unknown_parameter")
    values = {name: parameter.default if given.get(name) is None else parameter.check(name, given[name]) for name, parameter in PARAMETERS.items()}
    asked = [name for name in _GRAMMARS if values[name] is not None]
    if len(asked) > 1:
        raise BadParameter(asked[1], f"{asked[1]} and {asked[0]} both say what the text must be")
    if values["max_tokens"] == 0 and values["prompt_logprobs"] is None and "echo" not in also:
        raise BadParameter("max_tokens", "max_tokens is 0, expected a number at least 1: 0 is for prompts alone, with prompt_logprobs")
    return values


_GRAMMARS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def grammar_of(parameters: Dict[str, Any]) -> Optional[Grammar]:
    """What the text must be; None: anything."""
    return next((parameters[name] for name in _GRAMMARS if parameters[name] is not None), None)


class Limits(NamedTuple):
    """What a model can: ids of tokens below `vocab_size`, and `longest` tokens of a prompt with its
    answer."""

    vocab_size: int
    longest: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Limits":
        """Of what a Model says of itself."""
        return cls(info["vocab_size"], min(info["max_length"], info["page_count"] * info["page_size"]))


def _int32s(numbers: Sequence[int]) -> "array.array[int]":
    """What does not fit is as large as possible: no model has such a token, and what names it looks
    at the numbers themselves."""
    try:
        return array.array("i", numbers)
    except OverflowError:
        return array.array("i", [min(max(one, -1), 0x7FFFFFFF) for one in numbers])


class Request:
    """A request of the engine in C's memory, which it owns."""

    __slots__ = ("struct", "_kept", "_prompt", "_parameters")

    def __init__(self, prompt: Sequence[int], parameters: Dict[str, Any], now_ns: int = 0, constraint: Any = None) -> None:
        p = parameters
        self._prompt, self._parameters = prompt, parameters
        try:
            # four times as fast as from a list
            ids = (ctypes.c_int32 * len(prompt)).from_buffer(_int32s(prompt))
        except TypeError:
            raise BadParameter("prompt", f"the prompt has the token {shown(prompt)}, which is no token id") from None
        stop_ids = (ctypes.c_int32 * len(p["stop_token_ids"]))(*p["stop_token_ids"])
        strings = (ctypes.c_char_p * len(p["stop"]))(*[one.encode() for one in p["stop"]])
        pairs = (_ffi.accrt_serve_bias * len(p["logit_bias"]))(*p["logit_bias"].items())
        salt = None if p["cache_salt"] is None else p["cache_salt"].encode().replace(b"\0", b"\xff")
        lora = None if p["adapter"] is None else p["adapter"].encode()
        self._kept = (ids, stop_ids, strings, pairs, salt, constraint, lora)
        self.struct = _ffi.accrt_serve_request(
            struct_size=ctypes.sizeof(_ffi.accrt_serve_request), flags=_flags(p), prompt=ids, prompt_count=len(prompt),
            max_new_tokens=p["max_tokens"] or 0, min_new_tokens=p["min_tokens"], n=p["n"], stop_tokens=stop_ids,
            stop_token_count=len(stop_ids), stop_string_count=len(strings), stop_strings=strings, temperature=p["temperature"],
            top_p=p["top_p"], min_p=p["min_p"], top_k=min(max(p["top_k"], 0), (1 << 31) - 1), repetition_penalty=p["repetition_penalty"],
            presence_penalty=p["presence_penalty"], frequency_penalty=p["frequency_penalty"], bias_count=len(pairs), biases=pairs,
            seed=(p["seed"] or 0) & (1 << 64) - 1, top_logprobs=p["logprobs"] or 0, priority=p["priority"], tenant=tenant(p["user"]),
            deadline_ns=now_ns + int(min(p["timeout"], _MOST_SECONDS) * 1e9) if p["timeout"] is not None else 0, cache_salt=salt,
            constraint=constraint.handle if constraint is not None else None, adapter=lora,
            prompt_top_logprobs=p["prompt_logprobs"] or 0, num_speculative_tokens=p["num_speculative_tokens"] or 0)  # fmt: skip
        embed = p.get("embed")
        if embed is not None:
            self.struct.embed, self.struct.embed_dimensions = embed.kind, embed.dimensions
            self.struct.flags |= embed.flags

    @property
    def adapter(self) -> Optional[str]:
        """The name of the LoRA adapter that it asks for."""
        return self._parameters["adapter"]

    def check(self, limits: Limits, prompt: str = "prompt", max_tokens: str = "max_tokens") -> None:
        """Raises BadParameter for what the model cannot do. `prompt` and `max_tokens`: what the
        caller calls them."""
        p, ids = self._parameters, self._prompt
        known_tokens(prompt, ids, limits)
        known_tokens("stop_token_ids", p["stop_token_ids"], limits)
        known_tokens("logit_bias", list(p["logit_bias"]), limits, "the token ")
        room = limits.longest - len(ids)
        if p.get("embed") is not None:
            if room < 0:
                raise BadParameter(prompt, f"{prompt} has {len(ids)} tokens, and the model takes {limits.longest}", "context_length_exceeded")
            return
        if room < 1:
            raise BadParameter(prompt, f"{prompt} has {len(ids)} tokens, and with a new one at most {limits.longest} fit", "context_length_exceeded")
        most = p["max_tokens"]
        if most is not None and most > room:
            raise BadParameter(max_tokens, f"{max_tokens} is {shown(most)}: after a prompt of {len(ids)} tokens at most {room} fit, as the model takes "
                               f"{limits.longest}", "context_length_exceeded")  # fmt: skip
        if p["min_tokens"] > (room if most is None else most):
            raise BadParameter("min_tokens", f"min_tokens is {shown(p['min_tokens'])}, above {max_tokens}, which is {room if most is None else most}")


def constrain(request: Request, constraint: Any) -> None:
    """The text has to be what a Constraint lets through; None: anything may come."""
    request._kept = (*request._kept, constraint)
    request.struct.constraint = constraint.handle if constraint is not None else None


def known_tokens(name: str, ids: Sequence[int], limits: Limits, what: str = "") -> None:
    """Raises BadParameter for a token that the model does not have."""
    if not ids or (min(ids) >= 0 and max(ids) < limits.vocab_size):
        return
    at = next(i for i, one in enumerate(ids) if not 0 <= one < limits.vocab_size)
    where = f"{name} has {what}{shown(ids[at])}" if what else f"{name}[{at}] is {shown(ids[at])}"
    raise BadParameter(name, f"{where}; the model's tokens are 0 to {limits.vocab_size - 1}")


def _flags(p: Dict[str, Any]) -> int:
    chosen: List[Tuple[bool, int]] = [
        (p["ignore_eos"], _ffi.ACCRT_SERVE_IGNORE_EOS),
        (p["seed"] is not None, _ffi.ACCRT_SERVE_SEED),
        (p["logprobs"] is not None, _ffi.ACCRT_SERVE_LOGPROBS),
        (p["include_stop_str_in_output"], _ffi.ACCRT_SERVE_KEEP_STOP),
        (not p["skip_special_tokens"], _ffi.ACCRT_SERVE_SPECIAL),
        (p["prompt_logprobs"] is not None, _ffi.ACCRT_SERVE_PROMPT_LOGPROBS),
        (p["max_tokens"] == 0, _ffi.ACCRT_SERVE_SCORE_ONLY),
        (p["num_speculative_tokens"] == 0, _ffi.ACCRT_SERVE_NO_SPECULATION),
    ]
    return sum(bit for wanted, bit in chosen if wanted)


def tenant(user: Optional[str]) -> int:
    """The engine's number of a user; 0 for no user in particular."""
    return 0 if not user else int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little") or 1
