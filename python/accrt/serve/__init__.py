"""Serving models: the engine, the server in front of it, and `accrt-serve`. docs/server.md describes it.

    accrt-serve ./Qwen2.5-0.5B-Instruct

Needs libaccrt_serve.so, and libaccrt_http.so for the server; texts and chats need `pip install 'accrt[serve]'`.
"""

from __future__ import annotations

from .engine import Engine, Event, Hub, Model
from .loading import Loaded, load, simulated
from .parameters import PARAMETERS, BadParameter, Request
from .server import Server
from .text import Bytes, ChatTemplate, Text, Tokenizer

__all__ = ["BadParameter", "Bytes", "ChatTemplate", "Engine", "Event", "Hub", "Loaded", "Model", "PARAMETERS", "Request", "Server", "Text",
           "Tokenizer", "load", "simulated"]  # fmt: skip
