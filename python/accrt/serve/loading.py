"""From what people have to what is served: a model of the engine's with its tokenizer and its chat template."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .engine import Model
from .text import Bytes, ChatTemplate, Text, Tokenizer

#: How a model is loaded: names, defaults and helps are those of `accrt.LLM` and of accrt-serve.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "chat_template": (None, "a file with a Jinja template, in place of the model's own"),
}
Progress = Optional[Callable[[str, float], None]]


class Loaded(NamedTuple):
    """A model that can be served."""

    model: Model
    text: Text
    name: str


def text_of(assets: Dict[str, bytes], template: Optional[str] = None) -> Text:
    """The tokenizer and the chat template that a bundle has as assets. Without a tokenizer, tokens are bytes."""
    config = json.loads(assets["tokenizer_config.json"]) if "tokenizer_config.json" in assets else {}
    tokenizer: Any = Tokenizer(assets["tokenizer.json"]) if "tokenizer.json" in assets else Bytes()
    source = template if template is not None else assets["chat_template.jinja"].decode() if "chat_template.jinja" in assets else None
    return Text(tokenizer, ChatTemplate(source, config) if source is not None else None)


def simulated(name: str = "simulated", chat_template: Optional[str] = None, **options: int) -> Loaded:
    """A model that computes nothing and whose tokens are bytes: to try a server and its clients."""
    return Loaded(Model.simulated(**options), text_of({}, chat_template), name)


def load(model: Any, *, progress: Progress = None, chat_template: Optional[str] = None) -> Loaded:
    """A model that can be served.

    Args:
        model: `simulated:`, a model that computes nothing.
        progress: called with what was done, and how many seconds it took.
    """
    template = None
    if chat_template is not None:
        with open(chat_template, encoding="utf-8") as file:
            template = file.read()
    if os.fspath(model) == "simulated:":
        return simulated(chat_template=template)
    raise ValueError(f"{os.fspath(model)!r}: only the model `simulated:` is served so far")
