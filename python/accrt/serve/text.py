"""From text to token ids, once a request: tokenizers and chat templates."""

from __future__ import annotations

import collections
import copy
import functools
import importlib.util
import json
import numbers
import secrets
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _limited
from . import reasoning, tools
from .embedding import Pooling
from .parameters import MOST_TOKENS, BadParameter, Grammar, flag, shown, unicode


class Bytes:
    """Token ids are the text's UTF-8 bytes."""

    def encode(self, text: str, special: bool = True) -> List[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones too."""
        return bytes(ids).decode(errors="replace")

    def special(self, text: str) -> Optional[int]:
        """The id of a special token; None: there is none of this name."""
        return None

    def has(self, text: str) -> bool:
        """Whether a text is one token."""
        return False


class TokenizerError(RuntimeError):
    """The tokenizer of a model failed at a text: its file is wrong."""


def one_line(said: str) -> str:
    """What a file of a model says of itself, for a message: its control characters are shown."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in said)


#: Bytes that a tokenizer may make of a text, beside its tokens. Honest ones make at most some bytes
#: of a character, and the package aborts the process where memory ends.
MOST_NORMALIZED = 64 << 20
#: Larger factors become this one: the product of many would be a number of many digits.
_MOST_GROWTH = 10**12


#: How many times as long a text may become, in bytes of UTF-8, by a part of this type. The figures
#: of Unicode's forms are Unicode's. `BertNormalizer` puts spaces about letters, takes NFD and
#: lowers; `ByteLevel` writes each byte as a letter, of two bytes at most. Decoders put a space
#: before a token, or before and behind each letter of it.
_TIMES = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2, "BertNormalizer": 12, "ByteLevel": 2}
_TIMES_DECODED = {"WordPiece": 2, "BPEDecoder": 3, "CTC": 3}
#: A token that a template adds, and one that becomes text, counts as so many bytes: its entry in
#: the package's lists is larger.
_TOKEN_BYTES = 64


class Growth(NamedTuple):
    """A text of n bytes becomes at most n * times + plus."""

    times: int = 1
    plus: int = 0

    def then(self, other: "Growth") -> "Growth":
        return Growth(min(self.times * other.times, _MOST_GROWTH), min(self.plus * other.times + other.plus, _MOST_GROWTH))

    def of(self, size_bytes: int) -> int:
        return size_bytes * self.times + self.plus


def _size(said: Any) -> int:
    return len(said.encode(errors="surrogatepass")) if isinstance(said, str) else 0


def growth(part: Any) -> Growth:
    """How much longer a text may become by a normalizer, a pre-tokenizer, a post-processor or a
    decoder. One without a type, or of a type that the package does not know, is what its keys say,
    so that of all that it may be counts which makes most."""
    if not isinstance(part, dict):
        return Growth()
    kind, found = str(part.get("type")), []
    for inner in ("normalizers", "pretokenizers", "processors", "decoders"):
        if isinstance(part.get(inner), list):
            found.append(functools.reduce(Growth.then, map(growth, part[inner]), Growth()))
    if "content" in part:  # Replace
        pattern = part.get("pattern")
        replaced = _size(pattern.get("String")) if isinstance(pattern, dict) else 0
        # an expression may match nothing between two characters
        found.append(Growth(max(1, -(-_size(part["content"]) // replaced)) if replaced else 1 + _size(part["content"])))
    if "prepend" in part:
        found.append(Growth(1, _size(part["prepend"])))
    if "replacement" in part:
        # Metaspace: for each space, and before each piece, which may be one letter
        found.append(Growth(1 + _size(part["replacement"])))
    if "single" in part:
        found.append(_template_growth(part))
    # a space before each piece, written as a letter of two bytes
    found.append(Growth(_times(kind, part) * (2 if kind == "ByteLevel" and part.get("add_prefix_space") else 1)))
    return Growth(*map(max, zip(*found)))


def _times(kind: str, part: Dict[str, Any]) -> int:
    """By the type and by the keys, because the package reads a part whose type it does not know as
    one without a type. ByteLevel must have its type; its keys are also a post-processor's."""
    keys = {"BertNormalizer": "handle_chinese_chars", "BPEDecoder": "suffix", "CTC": "word_delimiter_token", "WordPiece": "prefix"}
    if "type" not in part:
        keys["ByteLevel"] = "trim_offsets"
    times = {**_TIMES, **_TIMES_DECODED}
    return max([times.get(kind, 1), *(times[name] for name, key in keys.items() if key in part)])


def _template_growth(part: Dict[str, Any]) -> Growth:
    pieces, known = part.get("single"), part.get("special_tokens")
    said = [piece for piece in pieces if isinstance(piece, dict)] if isinstance(pieces, list) else []
    entries = {name: entry for name, entry in known.items() if isinstance(entry, dict)} if isinstance(known, dict) else {}
    sizes = {name: len(entry["ids"]) for name, entry in entries.items() if isinstance(entry.get("ids"), list)}
    added = [piece["SpecialToken"].get("id") for piece in said if isinstance(piece.get("SpecialToken"), dict)]
    tokens = sum(sizes.get(name, 0) for name in added if isinstance(name, str))
    return Growth(max(1, sum("Sequence" in piece for piece in said)), _TOKEN_BYTES * tokens)


#: A longer text is counted in pieces before all of it becomes tokens: the package `tokenizers`
#: takes up to 300 bytes of memory for each byte.
_LONG_BYTES = 1 << 20
_PIECE_LENGTH = 1 << 14
#: So many tokens more may come of a piece alone than of the same letters within the text.
_PIECE_TOKENS = 64


class Tokenizer:
    """A tokenizer.json, read by Hugging Face's `tokenizers`."""

    def __init__(self, content: bytes) -> None:
        try:
            import tokenizers
        except ImportError:
            raise ImportError("this model's text becomes tokens with the package `tokenizers`: pip install 'accrt[serve]'") from None
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(content)
            # A prompt is never cut without a word, nor filled up to a length that the file says.
            self._inner.no_truncation()
            self._inner.no_padding()
        except BaseException as error:  # noqa: BLE001 - it raises nothing more special; a panic of Rust is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            words = " ".join(str(error).split()).replace("Cannot instantiate Tokenizer from buffer: ", "")
            raise ValueError(f"tokenizer.json: {one_line(words)}") from None
        said = json.loads(content)  # which is JSON that is not deep: the package has read it
        self._growth = functools.reduce(Growth.then, (growth(said.get(part)) for part in ("normalizer", "pre_tokenizer", "post_processor")))
        self._decoded = growth(said.get("decoder"))

    def encode(self, text: str, special: bool = True) -> List[int]:
        size = self._growth.of(_size(text))
        if size > MOST_NORMALIZED:
            raise BadParameter(None, f"a text of {len(text)} characters is too long for this model's tokenizer, which can make {size} bytes of it", "context_length_exceeded")
        try:
            return self._inner.encode(text, add_special_tokens=special).ids
        except BaseException as error:  # noqa: BLE001 - as above
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise TokenizerError(f"the model's tokenizer failed at a text of {len(text)} characters: {one_line(str(error))}") from None

    def decode(self, ids: Sequence[int]) -> str:
        inner, listed = self._inner, list(ids)
        # with the space that may stand before each token
        text_bytes = sum((1 + _size(inner.id_to_token(one))) * count for one, count in collections.Counter(listed).items())
        size = self._decoded.of(text_bytes) + _TOKEN_BYTES * len(listed)
        if size > MOST_NORMALIZED:
            raise BadParameter("tokens", f"{len(listed)} tokens are too many for this model's tokenizer, which can make {size} bytes of them")
        try:
            return inner.decode(listed, skip_special_tokens=False)
        except BaseException as error:  # noqa: BLE001 - as above
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise TokenizerError(f"the model's tokenizer failed at {len(listed)} tokens: {one_line(str(error))}") from None

    def special(self, text: str) -> Optional[int]:
        number = self._inner.token_to_id(text)
        added = self._inner.get_added_tokens_decoder().get(number) if number is not None else None
        return number if added is not None and added.special else None

    def has(self, text: str) -> bool:
        return self._inner.token_to_id(text) is not None


def _name(entry: Any) -> str:
    """A special token in tokenizer_config.json: a string, or an object with its content."""
    return entry.get("content", "") if isinstance(entry, dict) else entry or ""


#: Most names that a request gives a chat template, beside those that it has already; and most that
#: it has by its model, which may be so large.
MOST_TEMPLATE_NAMES, MOST_NAMES_BYTES = 256, 64 << 10
#: Honest templates take some thousandths of a second, and less than a MiB.
RENDER_SECONDS, RENDER_BYTES, RENDERED_BYTES = 10.0, 512 << 20, 64 << 20


class ChatTemplate:
    """Jinja as Hugging Face has it, in a sandbox, in a process of its own: a template comes with
    the model, and is not trusted. It takes at most RENDER_SECONDS and RENDER_BYTES of memory."""

    def __init__(self, source: str, config: Optional[Dict[str, Any]] = None) -> None:
        if not isinstance(source, str):
            raise TypeError(f"a chat template is {shown(source)}, expected a string")
        if importlib.util.find_spec("jinja2") is None:
            raise ImportError("chat templates need the package `jinja2`: pip install 'accrt[serve]'")
        if not _limited.possible():
            raise RuntimeError("chat templates run in a process of their own, and this Python does not know its own program (sys.executable)")
        self._helper = _limited.Helper("accrt._template", RENDER_BYTES, RENDER_SECONDS)
        self.source = source
        self._names = {name: _name(value) for name, value in (config or {}).items() if name.endswith("_token")}
        try:
            size = len(json.dumps(self._names))
        except RecursionError:
            raise ValueError("tokenizer_config.json: a special token is nested too deeply") from None
        if len(self._names) > MOST_TEMPLATE_NAMES or size > MOST_NAMES_BYTES:  # of each chat
            raise ValueError(f"tokenizer_config.json has {len(self._names)} special tokens of {size} bytes as JSON, expected at most {MOST_TEMPLATE_NAMES} of {MOST_NAMES_BYTES}")
        kind, said = self._ask(None)
        if kind != "text":
            raise ValueError(f"the chat template cannot be read: {one_line(said if kind == 'unreadable' else 'it ' + said)}")

    def render(self, messages: Sequence[Dict[str, Any]], extra: Optional[Dict[str, Any]] = None) -> str:
        kind, said = self._ask({**self._names, "add_generation_prompt": True, **(extra or {}), "messages": list(messages)})
        if kind == "text":
            return said
        raise BadParameter("messages", f"the model's chat template {one_line(said)}", "chat_template")

    def close(self) -> None:
        """Ends its process. The template can be used again."""
        self._helper.close()

    def _ask(self, names: Optional[Dict[str, Any]]) -> Tuple[str, str]:
        """("text", what it makes), or another word and what is wrong."""
        try:
            question = json.dumps({"source": self.source, "names": names}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadParameter("messages", f"messages and names for the chat template are no JSON: {error}", "invalid_type") from None
        with_these = "" if names is None else " with these messages"
        try:
            (kind, said), = json.loads(self._helper.ask(question, RENDERED_BYTES, RENDER_SECONDS)).items()
        except _limited.Overdue:
            return "late", f"takes longer than {RENDER_SECONDS:g} seconds{with_these}"
        except _limited.Oversized:
            return "large", f"makes more than {RENDERED_BYTES >> 20} MiB{with_these}"
        except _limited.Ended as error:
            return "ended", f"ended the process that runs it{with_these}: {error}"
        if kind == "memory":
            return kind, f"takes more than {RENDER_BYTES >> 20} MiB of memory{with_these}"
        return kind, {"says": f"says: {said}", "refuses": f"refuses these messages: {said}", "fails": f"fails{with_these}: {said}"}.get(kind, said)


class Conversation(NamedTuple):
    """Messages as tokens."""

    ids: List[int]
    opened: bool  # the model goes on within its reasoning
    begun: bool = False  # of which the prompt has some


class Text:
    """A model's tokenizer and its chat template, where it has one."""

    def __init__(
        self, tokenizer: Any, template: Optional[ChatTemplate] = None, tool_parser: Optional[str] = None, pooling: Pooling = Pooling(),
        reasoning_parser: Optional[str] = None, longest: Optional[int] = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.template, self.pooling = tokenizer, template, pooling
        #: False: the model has no head, and gives embeddings alone
        self.generates = True
        #: a text of more tokens is refused; None: it is not
        self.longest = longest
        #: how the model writes calls of tools: one of tools.FORMS; None: that is not known
        self.tool_parser = tool_parser or (tools.detect(template.source) if template is not None else None)
        #: how the model marks its reasoning: one of reasoning.FORMS, or reasoning.NONE
        self.reasoning_parser = reasoning_parser or (reasoning.detect(template.source, tokenizer.has) if template is not None else reasoning.NONE)
        if self.tool_parser == reasoning.HARMONY and reasoning_parser is None:
            self.reasoning_parser = reasoning.HARMONY  # one reader finds both

    def close(self) -> None:
        """Ends the process of the chat template. The text can be used again."""
        if self.template is not None:
            self.template.close()

    def prompt(self, given: Any, name: str = "prompt", special: bool = True) -> List[int]:
        """Token ids of a prompt, which is a text or token ids already. `special`: with the special
        tokens that the tokenizer adds to a text."""
        if isinstance(given, str):
            ids = self._encode(name, given, special)
        elif isinstance(given, (list, tuple)) and (kinds := set(map(type, given))) <= {int}:
            ids = list(given)
        elif isinstance(given, (list, tuple)) and all(issubclass(kind, numbers.Integral) and kind is not bool for kind in kinds):
            ids = list(map(int, given))
        else:
            raise BadParameter(name, f"{name} is {shown(given)}, expected a string or a list of token ids", "invalid_type")
        if not ids:
            raise BadParameter(name, f"{name} has no tokens")
        return ids

    def _encode(self, name: str, text: str, special: bool) -> List[int]:
        size = _size(unicode(name, text))
        if self.longest is not None and size > _LONG_BYTES:
            self._count(name, text, self.longest)
        return self.tokenizer.encode(text, special)

    def _count(self, name: str, text: str, most: int) -> None:
        """Raises BadParameter for a text that has more tokens, and takes the memory of a piece."""
        count = 0
        for begin in range(0, len(text), _PIECE_LENGTH):
            piece = self.tokenizer.encode(text[begin : begin + _PIECE_LENGTH], False)
            count += max(len(piece) - _PIECE_TOKENS, 0)
            if count > most:
                raise BadParameter(name, f"{name} has more than {most} tokens, and the model takes {most}", "context_length_exceeded")

    def need_head(self) -> None:
        """Raises BadParameter where the model cannot generate."""
        if not self.generates:
            raise BadParameter(None, "this model has no head: it gives embeddings (/v1/embeddings, embed), and generates nothing", "unsupported")

    def chat(self, messages: Any, extra: Optional[Dict[str, Any]] = None, special: bool = False, goes_on: bool = False) -> Conversation:
        """Tokens of a conversation, up to where the model goes on: behind the head of a new
        message, or (`goes_on`) within the last one."""
        self.need_head()
        checked = check_messages(messages)
        if self.template is None:
            raise BadParameter("messages", "this model has no chat template: give it a prompt (/v1/completions, generate), or start with --chat-template", "no_chat_template")
        if "developer" not in self.template.source:
            for message in checked:
                message["role"] = "system" if message["role"] == "developer" else message["role"]
        if self.reasoning_parser == reasoning.HARMONY:
            checked = [_as_messages(message) for message in checked]
        if self.reasoning_parser == "command":  # its name for what stands before calls
            checked = [{"tool_plan": message["reasoning_content"], **message} if message.get("reasoning_content") else message for message in checked]
        if tools.joins_arguments(self.tool_parser, self.template.source):
            checked = [tools.with_text_arguments(message) for message in checked]
        made = self._continued(checked, extra) if goes_on else self.template.render(checked, extra)
        ids = self._encode("messages", made, special)
        if not ids:
            raise BadParameter("messages", "the chat template makes no tokens of these messages")
        continued = checked[-1]["content"] if goes_on else None
        return Conversation(ids, reasoning.opened(self.reasoning_parser, made, continued), reasoning.begun(self.reasoning_parser, continued))

    def _continued(self, messages: List[Dict[str, Any]], extra: Optional[Dict[str, Any]]) -> str:
        """What the template makes, up to the end of the last message's content. A mark behind the
        content says where that is."""
        last = messages[-1]
        if last["role"] != "assistant" or not last["content"]:
            raise BadParameter("messages", f"continue_final_message is for a conversation that ends with a message of the assistant, with content; the last one is {shown(last)}")
        mark = secrets.token_hex(16)
        made = self.template.render([*messages[:-1], {**last, "content": f"{last['content']}{mark} "}], {**(extra or {}), "add_generation_prompt": False})
        end = made.rfind(mark)
        if end < 0:
            raise BadParameter("continue_final_message", "the model's chat template leaves out the last message's content, so it cannot be continued", "unsupported")
        # a template that trims contents does so here, too
        return made[:end] if made.startswith(mark + " ", end) else made[:end].rstrip()


def limited(model_text: Text, longest: int) -> Text:
    """The same for a model that takes so many tokens. Both have one tokenizer and template."""
    made = copy.copy(model_text)
    made.longest = longest
    return made


def _as_messages(message: Dict[str, Any]) -> Dict[str, Any]:
    """A message as GPT-OSS's template has it: the reasoning is called `thinking`. With calls there
    is one text before them alone."""
    thoughts = message.get("reasoning_content")
    if message["role"] != "assistant" or not isinstance(thoughts, str) or not thoughts:
        return message
    if message.get("tool_calls") and message["content"]:
        return {**message, "thinking": f"{thoughts}\n{message['content']}", "content": ""}
    return {**message, "thinking": thoughts}


def find_reasoning(
    model_text: Text, given: Dict[str, Any], conversation: Conversation, skip_special: bool, grammar: Optional[Grammar], calls: Optional[tools.Asked]
) -> Tuple[Optional[reasoning.Asked], bool, Optional[Grammar]]:
    """How the reasoning of an answer is found, whether special tokens are left out of its text, and
    the grammar of the text. `calls`: what the request says of tools."""
    special = model_text.tokenizer.special
    found = reasoning.asked(given, model_text.reasoning_parser, conversation.opened, conversation.begun)
    if calls is not None and calls.form is tools.FORMS[reasoning.HARMONY] and (found is None or found.form is not reasoning.FORMS[reasoning.HARMONY]):
        raise BadParameter("tools", "calls of the form harmony are found with the reasoning alone: not with separate_reasoning false or another --reasoning-parser", "unsupported")
    if found is None:
        return None, _skip_special(model_text, skip_special), _behind_text(model_text, conversation, grammar)
    if grammar is not None and found.opened:
        grammar, inner = reasoning.behind(grammar, found, special), grammar
        if grammar is None:
            found, grammar = found._replace(opened=False), inner
    return found, found.skip_special(skip_special, special), grammar


def _skip_special(model_text: Text, wanted: bool) -> bool:
    """Whether special tokens are left out of a text that keeps its reasoning, and so its marks."""
    if model_text.reasoning_parser == reasoning.NONE:
        return wanted
    return reasoning.Asked(reasoning.FORMS[model_text.reasoning_parser], False, False).skip_special(wanted, model_text.tokenizer.special)


def _behind_text(model_text: Text, conversation: Conversation, grammar: Optional[Grammar]) -> Optional[Grammar]:
    """The grammar of a text that keeps its reasoning."""
    if grammar is None or not conversation.opened:
        return grammar
    if grammar.parameter == "tools" and model_text.tool_parser is not None and not tools.FORMS[model_text.tool_parser].marked:
        return grammar  # such calls are found at the beginning of the text alone
    thoughts = reasoning.Asked(reasoning.FORMS[model_text.reasoning_parser], True, False)
    return reasoning.behind(grammar, thoughts, model_text.tokenizer.special) or grammar


def find_stops(model_text: Text, values: Dict[str, Any]) -> List[int]:
    """The `stop_token_ids` of a chat: the request's, and tokens that a model's file may leave out
    of those that end its texts. BadParameter: together they are too many."""
    given = list(values["stop_token_ids"])
    ends = reasoning.ENDS if model_text.reasoning_parser == reasoning.HARMONY and not values["ignore_eos"] else ()
    found = [model_text.tokenizer.special(mark) for mark in ends]
    more = [number for number in found if number is not None and number not in given]
    if len(given) + len(more) > MOST_TOKENS:
        raise BadParameter("stop_token_ids", f"stop_token_ids has {len(given)} tokens, expected at most {MOST_TOKENS - len(more)}: {len(more)} more end the texts of this model")
    return given + more


def generation_prompt(given: Dict[str, Any]) -> Tuple[Optional[bool], bool]:
    """A request's add_generation_prompt (None: it does not say) and continue_final_message."""
    found = [None if given.get(name) is None else flag(name, given[name]) for name in ("add_generation_prompt", "continue_final_message")]
    if found[0] and found[1]:
        raise BadParameter("continue_final_message", "continue_final_message and add_generation_prompt are both true, expected one of them")
    return found[0], bool(found[1])


def template_names(given: Any) -> Dict[str, Any]:
    """Names for a chat template beside its own, as a request gives them."""
    if given is not None and not isinstance(given, dict):
        raise BadParameter("chat_template_kwargs", f"chat_template_kwargs is {shown(given)}, expected an object", "invalid_type")
    if given and len(given) > MOST_TEMPLATE_NAMES:
        raise BadParameter("chat_template_kwargs", f"chat_template_kwargs has {len(given)} names, expected at most {MOST_TEMPLATE_NAMES}")
    return dict(given or {})


_ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(given: Any) -> List[Dict[str, Any]]:
    """Messages whose contents are strings, as templates expect them."""
    if not isinstance(given, (list, tuple)) or not given:
        raise BadParameter("messages", f"messages is {shown(given)}, expected a list of at least one message", "invalid_type")
    out = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise BadParameter(where, f"{where} is {shown(message)}, expected an object", "invalid_type")
        role = message.get("role")
        if role not in _ROLES:
            raise BadParameter(f"{where}.role", f"{where}.role is {shown(role)}, expected one of {', '.join(_ROLES)}")
        if message.get("function_call"):
            raise BadParameter(f"{where}.function_call", "function_call is not supported: tool_calls are", "unsupported")
        made = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
        made["content"] = _content(f"{where}.content", message.get("content"), role)
        for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
            if isinstance(made.get(name), str):
                made.setdefault(other, made[name])  # templates read one of them
        if message.get("tool_calls"):
            made["tool_calls"] = tools.check_calls(f"{where}.tool_calls", message["tool_calls"])
        out.append(made)
    return out


def _content(where: str, given: Any, role: str) -> str:
    if isinstance(given, str):
        return given
    if given is None and role == "assistant":
        return ""
    if not isinstance(given, list):
        raise BadParameter(where, f"{where} is {shown(given)}, expected a string or a list of parts", "invalid_type")
    texts = []
    for i, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        said = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", *(("refusal",) if role == "assistant" else ())) or not isinstance(said, str):
            raise BadParameter(f"{where}[{i}]", f"{where}[{i}] is {shown(part)}: only parts of type text are supported", "unsupported")
        texts.append(said)
    return "".join(texts)
