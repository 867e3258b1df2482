"""From text to token ids, once a request: tokenizers and chat templates."""

from __future__ import annotations

import ctypes
import datetime
import json
import numbers
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import tools
from .embedding import Pooling
from .parameters import BadParameter, shown, unicode


class Bytes:
    """Token ids are the text's UTF-8 bytes."""

    def encode(self, text: str, special: bool = True) -> List[int]:
        return list(text.encode())

    def special(self, text: str) -> Optional[int]:
        """The id of a special token; None: there is none of this name."""
        return None


class Tokenizer:
    """A tokenizer.json, read by Hugging Face's `tokenizers`."""

    def __init__(self, content: bytes) -> None:
        try:
            import tokenizers
        except ImportError:
            raise ImportError("this model's text becomes tokens with the package `tokenizers`: pip install 'accrt[serve]'") from None
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # noqa: BLE001 - it raises nothing more special
            words = " ".join(str(error).split()).replace("Cannot instantiate Tokenizer from buffer: ", "")
            raise ValueError(f"tokenizer.json: {words}") from None

    def encode(self, text: str, special: bool = True) -> List[int]:
        return self._inner.encode(text, add_special_tokens=special).ids

    def special(self, text: str) -> Optional[int]:
        number = self._inner.token_to_id(text)
        added = self._inner.get_added_tokens_decoder().get(number) if number is not None else None
        return number if added is not None and added.special else None


def _name(entry: Any) -> str:
    """A special token in tokenizer_config.json: a string, or an object with its content."""
    return entry.get("content", "") if isinstance(entry, dict) else entry or ""


#: Honest templates take some thousandths of a second.
RENDER_SECONDS = 10.0


class _Overdue(BaseException):
    """Raised in a thread by another one."""


def within(seconds: float, work: Callable[[], str]) -> str:
    """`work()`, or TimeoutError where it takes longer: it is ended. The exception comes between
    Python's own steps, so a single operation of Python runs to its end first."""
    guard, thread, facts = threading.Lock(), threading.get_ident(), {"over": False, "late": False}

    def end() -> None:
        with guard:
            if not facts["over"]:
                facts["late"] = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Overdue)) == 1

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    try:
        try:
            timer.start()
            return work()
        except _Overdue:
            raise
        finally:
            with guard:
                facts["over"] = True
            timer.cancel()
            for _ in range(1000):  # the exception comes here, and not later
                if not facts["late"] or isinstance(sys.exc_info()[1], _Overdue):
                    break
                time.sleep(0.001)
    except _Overdue:
        raise TimeoutError(f"it takes longer than {seconds:g} seconds") from None


class ChatTemplate:
    """Jinja as Hugging Face has it, in a sandbox: a template comes with the model, and is not
    trusted."""

    def __init__(self, source: str, config: Optional[Dict[str, Any]] = None) -> None:
        try:
            import jinja2
            import jinja2.ext
            import jinja2.sandbox
        except ImportError:
            raise ImportError("chat templates need the package `jinja2`: pip install 'accrt[serve]'") from None
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])  # fmt: skip
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._errors, self.source = jinja2.TemplateError, source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from None
        except (MemoryError, RecursionError, SyntaxError) as error:  # by Python's limits of depth
            raise ValueError(f"the chat template cannot be read: it is nested too deeply or too large ({type(error).__name__})") from None
        self._names = {name: _name(value) for name, value in (config or {}).items() if name.endswith("_token")}

    def render(self, messages: Sequence[Dict[str, Any]], extra: Optional[Dict[str, Any]] = None) -> str:
        names = {**self._names, "add_generation_prompt": True, **(extra or {}), "messages": list(messages)}
        try:
            return within(RENDER_SECONDS, lambda: self._template.render(**names))
        except TimeoutError:
            raise BadParameter("messages", f"the model's chat template takes longer than {RENDER_SECONDS:g} seconds with these messages", "chat_template") from None
        except MemoryError:
            raise BadParameter("messages", "the model's chat template takes more memory with these messages than there is", "chat_template") from None
        except self._errors as error:
            raise BadParameter("messages", f"the model's chat template refuses these messages: {error}", "chat_template") from None
        except BadParameter:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise BadParameter("messages", f"the model's chat template fails with these messages: {error}", "chat_template") from None


def _refuse(message: str) -> None:
    raise BadParameter("messages", f"the model's chat template says: {message}", "chat_template")


class Text:
    """A model's tokenizer and its chat template, where it has one."""

    def __init__(
        self, tokenizer: Any, template: Optional[ChatTemplate] = None, tool_parser: Optional[str] = None, pooling: Pooling = Pooling(),
    ) -> None:  # fmt: skip
        self.tokenizer, self.template, self.pooling = tokenizer, template, pooling
        #: False: the model has no head, and gives embeddings alone
        self.generates = True
        #: how the model writes calls of tools: one of tools.FORMS; None: that is not known
        self.tool_parser = tool_parser or (tools.detect(template.source) if template is not None else None)

    def prompt(self, given: Any, name: str = "prompt") -> List[int]:
        """Token ids of a prompt, which is a text or token ids already."""
        if isinstance(given, str):
            ids = self.tokenizer.encode(unicode(name, given))
        elif isinstance(given, (list, tuple)) and all(issubclass(kind, numbers.Integral) and kind is not bool for kind in set(map(type, given))):
            ids = list(map(int, given))
        else:
            raise BadParameter(name, f"{name} is {shown(given)}, expected a string or a list of token ids", "invalid_type")
        if not ids:
            raise BadParameter(name, f"{name} has no tokens")
        return ids

    def need_head(self) -> None:
        """Raises BadParameter where the model cannot generate."""
        if not self.generates:
            raise BadParameter(None, "this model has no head: it gives embeddings (/v1/embeddings, embed), and generates nothing", "unsupported")

    def chat(self, messages: Any, extra: Optional[Dict[str, Any]] = None) -> List[int]:
        """Token ids of a conversation, up to where the model goes on."""
        self.need_head()
        checked = check_messages(messages)
        if self.template is None:
            raise BadParameter("messages", "this model has no chat template: give it a prompt (/v1/completions, generate), or start with --chat-template", "no_chat_template")
        ids = self.tokenizer.encode(unicode("messages", self.template.render(checked, extra)), special=False)
        if not ids:
            raise BadParameter("messages", "the chat template makes no tokens of these messages")
        return ids


def template_names(given: Any) -> Dict[str, Any]:
    """Names for a chat template beside its own, as a request gives them."""
    if given is not None and not isinstance(given, dict):
        raise BadParameter("chat_template_kwargs", f"chat_template_kwargs is {shown(given)}, expected an object", "invalid_type")
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
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise BadParameter(f"{where}[{i}]", f"{where}[{i}] is {shown(part)}: only parts of type text are supported", "unsupported")
        texts.append(part["text"])
    return "".join(texts)
