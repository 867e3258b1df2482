"""Serving models: the engine, the server in front of it, and `accrt-serve`. docs/server.md
describes it.

    accrt-serve ./Qwen2.5-0.5B-Instruct

Needs libaccrt_serve.so, and libaccrt_http.so for the server; texts and chats need `pip install
'accrt[serve]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, Event, Hub, Model
    from .loading import Loaded, load, simulated
    from .parameters import PARAMETERS, BadParameter, Request
    from .server import Server
    from .text import Bytes, ChatTemplate, Text, Tokenizer

#: Modules by what they have. They are imported when it is first named: until then `accrt-serve` can
#: be ended in one line.
_HOMES = {"engine": ("Engine", "Event", "Hub", "Model"), "loading": ("Loaded", "load", "simulated"),
          "parameters": ("PARAMETERS", "BadParameter", "Request"), "server": ("Server",),
          "text": ("Bytes", "ChatTemplate", "Text", "Tokenizer")}  # fmt: skip


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name == module or name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module("." + home, __name__)
    return module if name == home else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["BadParameter", "Bytes", "ChatTemplate", "Engine", "Event", "Hub", "Loaded", "Model", "PARAMETERS", "Request", "Server", "Text",
           "Tokenizer", "load", "simulated"]  # fmt: skip
