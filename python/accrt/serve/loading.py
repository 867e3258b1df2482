"""From what people have to what is served: a model of the engine's with its tokenizer and its chat template."""

from __future__ import annotations

import ctypes
import json
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from .._files import read_small
from .._library import check, created, lib, shown, struct
from .._waits import apart
from ..errors import Error, NoVariantError
from ..instance import default_instance
from . import adapters as lora
from . import options as given_options
from .embedding import pooling_of
from .engine import Model
from .text import Bytes, ChatTemplate, Text, Tokenizer
from .tools import FORMS

#: How a model is loaded: names, defaults and helps are those of `accrt.LLM` and of accrt-serve.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "device": ("auto", "where it runs: host, cuda, cuda:1; auto: a GPU if there is one and the model has kernels for it, else the host"),
    "kv_bytes": (0, "memory for keys and values; 0: what a GPU has left; of a host a quarter, at most 1 GiB"),
    "max_rows": (0, "sequences that the model computes at once; 0: what the bundle can"),
    "max_length": (0, "tokens of a sequence, prompt and new ones; 0: what the bundle can"),
    "weights": (None, "files that a bundle (.accx) takes its weights from, separated by commas"),
    "chat_template": (None, "a file with a Jinja template, in place of the model's own"),
    "prepare": (1, "on a GPU, 1: graphs of all sizes of steps are made before the first request; 0: when they are needed"),
    **lora.OPTIONS,
    "tool_parser": (None, "how the model writes calls of tools: hermes, llama3_json or mistral; default: as its chat template says"),
}
_TEMPLATE_BYTES = 1 << 20  # models' own have some KiB
Progress = Optional[Callable[[str, float], None]]


class Loaded(NamedTuple):
    """A model that can be served."""

    model: Model
    text: Text
    name: str
    #: what the bundle says of its places for LoRA adapters
    layout: Optional[bytes] = None


def text_of(assets: Dict[str, bytes], template: Optional[str] = None, tool_parser: Optional[str] = None) -> Text:
    """The tokenizer and the chat template that a bundle has as assets. Without a tokenizer, tokens are bytes."""
    config = _object(assets, "tokenizer_config.json")
    tokenizer: Any = Tokenizer(assets["tokenizer.json"]) if "tokenizer.json" in assets else Bytes()
    source = template if template is not None else _decoded(assets["chat_template.jinja"], "chat_template.jinja") if "chat_template.jinja" in assets else None
    return Text(tokenizer, ChatTemplate(source, config) if source is not None else None, tool_parser, pooling_of(assets))


def _object(assets: Dict[str, bytes], name: str) -> Dict[str, Any]:
    if name not in assets:
        return {}
    try:
        found = json.loads(assets[name])
    except ValueError as error:
        raise ValueError(f"{name}: it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: it is {shown(found)}, expected an object")
    return found


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: byte {error.start} is no UTF-8") from None


def _template(path: str) -> str:
    """A template that is given beside the model, tried before anything else is done."""
    try:
        source = _decoded(read_small(path, _TEMPLATE_BYTES), path)
        ChatTemplate(source)
    except OSError:
        raise
    except ValueError as error:
        raise ValueError(str(error) if path in str(error) else f"chat_template {path}: {error}") from None
    return source


def simulated(name: str = "simulated", chat_template: Optional[str] = None, tool_parser: Optional[str] = None, **options: int) -> Loaded:
    """A model that computes nothing and whose tokens are bytes: to try a server and its clients."""
    return Loaded(Model.simulated(**{"embedding_size": 64, **options}), text_of({}, chat_template, tool_parser), name)


def load(
    model: Any, *, progress: Progress = None, device: str = "auto", kv_bytes: int = 0, max_rows: int = 0, max_length: int = 0,
    weights: Any = None, chat_template: Any = None, prepare: int = 1, adapters: int = 0, max_rank: int = 16, adapter_targets: Optional[str] = None,
    tool_parser: Optional[str] = None,
) -> Loaded:  # fmt: skip
    """A model that can be served. What can be wrong with the options is looked at before anything is compiled.

    Args:
        model (str, os.PathLike): a folder with config.json, a .gguf file, or a bundle (.accx) with a step program; `simulated:` computes nothing.
        progress: called with what was done (str), and how many seconds it took (float).
        device (str), kv_bytes (int), max_rows (int), max_length (int), weights (str, or a list of paths), chat_template (path),
            tool_parser (str), prepare (int): as for accrt-serve.
        adapters (int), max_rank (int), adapter_targets (str): places for LoRA adapters; a bundle has its own.
    Raises:
        TypeError, ValueError, OverflowError: an option. OSError: a file. accrt.models.Refused: the model. accrt.Error: what the library says.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model is {shown(model)}, expected the path of a folder, of a .gguf file or of a bundle (.accx)")
    path = os.fspath(model)
    chosen = given_options.checked({"device": device, "kv_bytes": kv_bytes, "max_rows": max_rows, "max_length": max_length, "weights": weights,
                                    "chat_template": chat_template, "prepare": prepare, "adapters": adapters, "max_rank": max_rank,
                                    "adapter_targets": adapter_targets, "tool_parser": tool_parser}, OPTIONS)  # fmt: skip
    if tool_parser is not None and tool_parser not in FORMS:
        raise ValueError(f"tool_parser is {shown(tool_parser)}, expected one of {', '.join(FORMS)}")
    template = None if chat_template is None else _template(chosen["chat_template"])
    if path == "simulated:":
        return simulated(chat_template=template, tool_parser=tool_parser, adapter_count=chosen["adapters"])
    place = _place(chosen["device"])
    files = chosen["weights"].split(",") if isinstance(chosen["weights"], str) else chosen["weights"] or []
    bundle, sources, place = _open(path, files, chosen, place, template, progress)
    say = _Clock(progress)
    program = _program(bundle, sources, place, chosen["device"] == "auto")
    say.done(f"bound the weights on {program.device.name}")
    options = struct(_ffi.accrt_serve_program_options, **{name: chosen[name] for name in ("kv_bytes", "max_rows", "max_length")})
    made = _model(program, options, say)
    if chosen["prepare"]:
        _prepare(made, say)
    metadata = bundle.metadata
    assets = bundle.assets
    text = text_of({name: asset.data for name, asset in assets.items() if name != "serve.token_bytes"}, template, tool_parser)
    say.done("read the tokenizer")
    layout = bytes(assets["serve.adapters"].data) if "serve.adapters" in assets else None
    return Loaded(made, text, metadata.get("serve.name") or os.path.splitext(os.path.basename(os.path.normpath(path)))[0], layout)


def _place(name: str) -> Any:
    """The device: of "auto" the first GPU, or the host."""
    if name != "auto":
        return default_instance().device(name)
    try:
        return default_instance().device("cuda")
    except Error:
        return default_instance().device("host")


def _program(bundle: Any, sources: List[Any], place: Any, may_be_host: bool) -> Any:
    try:
        return bundle.program(device=bundle.instance.device(place.name), weights=sources)
    except NoVariantError:
        if not may_be_host or place.info.host_memory:
            raise
        return bundle.program(device=bundle.instance.device("host"), weights=sources)


def _open(
    path: str, weights: Sequence[str], options: Dict[str, Any], place: Any, template: Optional[str], progress: Progress,
) -> Tuple[Any, List[Any], Any]:  # fmt: skip
    """The bundle, what it takes its weights from, and the device."""
    from ..bundle import Bundle

    if path.endswith(".accx"):
        from ..weights import Weights

        bundle = Bundle(path)
        given_options.limits(options, {"adapters": int(bundle.metadata.get("serve.adapters", "0"))}, "the bundle")
        return bundle, [Weights(one) for one in weights], place
    if weights:
        raise ValueError(f"weights are {','.join(weights)}, but {path} has its own: they are given for a bundle (.accx), which has none")
    from .. import models

    def check(metadata: Dict[str, str], assets: Dict[str, Tuple[bytes, str]]) -> None:
        largest = {name: int(metadata[f"serve.{name}_buckets"].split(",")[-1]) for name in ("row", "sample", "token")}
        given_options.limits(options, {"max_rows": min(largest.values()), "max_length": int(metadata["serve.max_position"])}, "the model")
        text_of({name: content for name, (content, _type) in assets.items() if name != "serve.token_bytes"}, template)

    targets, place = _targets(place, options["device"] == "auto")
    places = models.Options(adapters=options["adapters"], max_rank=options["max_rank"], adapter_targets=_names(options["adapter_targets"]))
    opened = models.open(path, options=places, targets=targets, progress=progress, check=check)
    return Bundle(opened.bundle), opened.sources(), place


def _names(given: Optional[str]) -> Tuple[str, ...]:
    return tuple(filter(None, (given or "").split(",")))


def _targets(place: Any, may_be_host: bool) -> Tuple[List[str], Any]:
    """What is compiled for a device, and the device: for a GPU what it runs, for a host what its processor runs best."""
    if not place.info.host_memory:
        from ..compiler.driver import CUDA_TARGETS, available_targets

        arch = place.info.arch
        found = available_targets([arch if arch in CUDA_TARGETS else "ptx"])
        if found:
            return found, place
        if not may_be_host:
            raise ValueError(f"device is {place.name}, and nothing here compiles for it: it needs nvcc, or a bundle (.accx) that was compiled elsewhere")
        place = place.instance.device("host")
    return ["host"], place


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


def _prepare(made: Model, say: "_Clock") -> None:
    """Piece by piece, so that Ctrl-C ends it."""
    left, count = ctypes.c_uint32(1), 0
    handle = made.handle
    while left.value:
        apart(lambda: check(lib.accrt_serve_model_prepare(handle, ctypes.byref(left))))
        count += 1
    if count > 1:
        say.done(f"prepared {count} sizes of steps")


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
