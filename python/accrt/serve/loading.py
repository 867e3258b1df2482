"""From what people have to what is served: a model of the engine's with its tokenizer and its chat template."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from .._files import read_small
from .._library import check, created, lib, number, struct
from .._waits import apart
from .engine import Model
from .text import Bytes, ChatTemplate, Text, Tokenizer

#: How a model is loaded: names, defaults and helps are those of `accrt.LLM` and of accrt-serve.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "device": ("host", "where it runs"),
    "kv_bytes": (0, "memory for keys and values; 0: a quarter of the device's, at most 1 GiB"),
    "max_rows": (0, "sequences that the model computes at once; 0: what the bundle can"),
    "max_length": (0, "tokens of a sequence, prompt and new ones; 0: what the bundle can"),
    "weights": (None, "files that a bundle (.accx) takes its weights from, separated by commas"),
    "chat_template": (None, "a file with a Jinja template, in place of the model's own"),
}
_TEMPLATE_BYTES = 1 << 20  # models' own have some KiB
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


def load(
    model: Any, *, progress: Progress = None, device: str = "host", kv_bytes: int = 0, max_rows: int = 0, max_length: int = 0,
    weights: Optional[str] = None, chat_template: Optional[str] = None,
) -> Loaded:  # fmt: skip
    """A model that can be served.

    Args:
        model: a folder with config.json, a .gguf file, or a bundle (.accx) with a step program; `simulated:` computes nothing.
        progress: called with what was done, and how many seconds it took.
        others: those of accrt-serve.
    """
    template = None
    if chat_template is not None:
        template = read_small(chat_template, _TEMPLATE_BYTES).decode()
    path = os.fspath(model)
    if path == "simulated:":
        return simulated(chat_template=template)
    bundle, sources = _open(path, weights.split(",") if weights else [], device, progress)
    say = _Clock(progress)
    program = bundle.program(device=bundle.instance.device(device), weights=sources)
    say.done("bound the weights")
    options = struct(
        _ffi.accrt_serve_program_options, kv_bytes=number(kv_bytes, "kv_bytes"), max_rows=number(max_rows, "max_rows", 32),
        max_length=number(max_length, "max_length", 32))
    made = _model(program, options, say)
    metadata = bundle.metadata
    text = text_of({name: asset.data for name, asset in bundle.assets.items() if name != "serve.token_bytes"}, template)
    say.done("read the tokenizer")
    return Loaded(made, text, metadata.get("serve.name") or os.path.splitext(os.path.basename(os.path.normpath(path)))[0])


def _open(path: str, weights: Sequence[str], device: str, progress: Progress) -> Tuple[Any, List[Any]]:
    """The bundle, and what it takes its weights from."""
    from ..bundle import Bundle

    if path.endswith(".accx"):
        from ..weights import Weights

        return Bundle(path), [Weights(one) for one in weights]
    from .. import models

    opened = models.open(path, targets=_targets(device), progress=progress)
    return Bundle(opened.bundle), opened.sources()


def _targets(device: str) -> Optional[List[str]]:
    """What is compiled for a device: for a host, what its processors run; else all that can be built."""
    from ..compiler import available_targets

    if device != "host":
        return None
    return available_targets(["aarch64"] if platform.machine() == "aarch64" else ["x86-64-v3", "x86-64-v4"])


def _model(program: Any, options: Any, say: "_Clock") -> Model:
    """Says what it takes before it takes it."""
    device, handle = program.device.handle, program.handle
    memory = struct(_ffi.accrt_serve_memory)
    apart(lambda: check(lib.accrt_serve_program_memory(device, handle, ctypes.byref(options), ctypes.byref(memory))))
    say.done(f"weights take {_size(memory.weight_bytes)}, {memory.pages} pages of keys and values {_size(memory.kv_bytes)}, "
             f"a step {_size(memory.transient_bytes + memory.result_bytes)}")  # fmt: skip
    made = Model(apart(lambda: created(lib.accrt_serve_model_open_program, device, handle, ctypes.byref(options))))
    say.done("made the session")
    return made


def _size(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


class _Clock:
    def __init__(self, progress: Progress) -> None:
        self._progress, self._last = progress, time.monotonic()

    def done(self, what: str) -> None:
        now = time.monotonic()
        if self._progress is not None:
            self._progress(what, now - self._last)
        self._last = now
