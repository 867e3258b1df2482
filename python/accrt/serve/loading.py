"""From what people have to what is served: a model of the engine's with its tokenizer and its chat
template."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _ffi
from .._files import read_small
from .._library import check, created, lib, shown, struct
from .._progress import Clock, Progress
from .._waits import apart
from ..bundle import Bundle
from ..errors import Error, NoVariantError
from ..instance import default_instance
from ..models._options import KV_BYTES
from . import adapters as lora
from . import fitting
from . import options as given_options
from . import reasoning
from .embedding import pooling_of
from .engine import Model
from .text import Bytes, ChatTemplate, Text, Tokenizer
from .tools import FORMS

#: How a model is loaded: names, defaults and helps are those of `accrt.LLM` and of accrt-serve.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "device": ("auto", "the device that runs the model: host, cuda, cuda:1; auto: a GPU if there is one and the model has kernels for it, else the host"),
    "kv_bytes": (0, "memory for keys and values; 0: on a GPU 4 times the size of the weights, at least 1 GiB, as far as there is room; on a host a quarter of its memory, at most 1 GiB"),
    "kv_dtype": (None, "type of keys and values: f32, f16, bf16 or fp8 (e4m3, half the memory of 16 bits); default: 16 bits if the weights have 16 bits"),
    "max_rows": (0, "most sequences in a step; 0: as many as the bundle can compute"),
    "max_length": (0, "most tokens of a sequence, with its prompt; 0: as many as the bundle can compute"),
    "weights": (None, "files that a bundle (.accx) takes its weights from, separated by commas"),
    "chat_template": (None, "a file with a Jinja template, in place of the model's own"),
    "prepare": (1, "on a GPU, 1: the graphs for all sizes of steps are made before the first request; 0: each is made when it is needed"),
    **lora.OPTIONS,
    "tool_parser": (None, "how the model writes calls of tools: hermes, llama3_json, mistral, qwen3_coder, glm45, granite, kimi_k2, seed_oss, minimax_m2, deepseek, pythonic, command or harmony; default: as its chat template says"),
    "reasoning_parser": (None, "between which marks the model reasons: think (<think>), mistral ([THINK]), seed_oss (<seed:think>), command (<|START_THINKING|>) or harmony (messages with channels); none: reasoning stays text; default: as the chat template or the tokenizer has them"),
}
_TEMPLATE_BYTES = 1 << 20  # models' own have some KiB


class Loaded(NamedTuple):
    """A model that can be served."""

    model: Model
    text: Text
    name: str
    #: what the bundle says of its places for LoRA adapters
    layout: Optional[bytes] = None


def text_of(assets: Dict[str, bytes], template: Optional[str] = None, tool_parser: Optional[str] = None, reasoning_parser: Optional[str] = None) -> Text:
    """The tokenizer and the chat template that a bundle has as assets. Without a tokenizer, tokens
    are bytes."""
    config = _object(assets, "tokenizer_config.json")
    tokenizer: Any = Tokenizer(assets["tokenizer.json"]) if "tokenizer.json" in assets else Bytes()
    source = template if template is not None else _decoded(assets["chat_template.jinja"], "chat_template.jinja") if "chat_template.jinja" in assets else None
    return Text(tokenizer, ChatTemplate(source, config) if source is not None else None, tool_parser, pooling_of(assets), reasoning_parser)


def _object(assets: Dict[str, bytes], name: str) -> Dict[str, Any]:
    if name not in assets:
        return {}
    try:
        found = json.loads(assets[name])
    except (ValueError, RecursionError) as error:
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


def simulated(
    name: str = "simulated", chat_template: Optional[str] = None, tool_parser: Optional[str] = None, reasoning_parser: Optional[str] = None, **options: int
) -> Loaded:
    """A model that computes nothing and whose tokens are bytes: to try a server and its clients."""
    return Loaded(Model.simulated(**{"embedding_size": 64, **options}), text_of({}, chat_template, tool_parser, reasoning_parser), name)


def load(
    model: Any, *, progress: Progress = None, device: str = "auto", kv_bytes: int = 0, max_rows: int = 0, max_length: int = 0,
    weights: Any = None, chat_template: Any = None, prepare: int = 1, kv_dtype: Optional[str] = None, adapters: int = 0, max_rank: int = 16,
    adapter_targets: Optional[str] = None, tool_parser: Optional[str] = None,
    reasoning_parser: Optional[str] = None, wanted: fitting.Wanted = fitting.Wanted(),
) -> Loaded:  # fmt: skip
    """A model that can be served. All options are checked before anything is compiled or loaded.

    Args:
        model (str, os.PathLike): a folder with config.json, a .gguf file, or a bundle (.accx) with
            a step program; `simulated:` computes nothing.
        progress: called with what was done (str), and how many seconds it took (float). If it has
            methods `begins` and `goes_on`, these get (str) what begins that may take long, and how
            far it is.
        kv_dtype (str): not for a bundle, which has its own.
        device (str), kv_bytes (int), max_rows (int), max_length (int), weights (str, or a list of
            paths), chat_template (path), tool_parser (str), reasoning_parser (str), prepare (int): as for accrt-serve.
        adapters (int), max_rank (int), adapter_targets (str): places for LoRA adapters; a bundle
        has its own.
        wanted: what the model is for; anything that cannot work is refused equally early.
    Raises:
        TypeError, ValueError, OverflowError: an option. OSError: a file. accrt.models.Refused: the
            model. accrt.Error: what the library says.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model is {shown(model)}, expected the path of a folder, of a .gguf file or of a bundle (.accx)")
    path = os.fspath(model)
    chosen = given_options.checked({"device": device, "kv_bytes": kv_bytes, "max_rows": max_rows, "max_length": max_length, "weights": weights,
                                    "chat_template": chat_template, "prepare": prepare, "kv_dtype": kv_dtype, "adapters": adapters, "max_rank": max_rank,
                                    "adapter_targets": adapter_targets, "tool_parser": tool_parser, "reasoning_parser": reasoning_parser}, OPTIONS)  # fmt: skip
    if tool_parser is not None and tool_parser not in FORMS:
        raise ValueError(f"tool_parser is {shown(tool_parser)}, expected one of {', '.join(FORMS)}")
    if reasoning_parser is not None and reasoning_parser not in (*reasoning.FORMS, reasoning.NONE):
        raise ValueError(f"reasoning_parser is {shown(reasoning_parser)}, expected one of {', '.join(reasoning.FORMS)}, {reasoning.NONE}")
    if kv_dtype is not None and kv_dtype not in KV_BYTES:
        raise ValueError(f"kv_dtype is {shown(kv_dtype)}, expected one of {', '.join(KV_BYTES)}")
    template = None if chat_template is None else _template(chosen["chat_template"])
    if path == "simulated:":
        return simulated(chat_template=template, tool_parser=tool_parser, reasoning_parser=reasoning_parser, adapter_count=chosen["adapters"])
    place = _place(chosen["device"])
    files = chosen["weights"].split(",") if isinstance(chosen["weights"], str) else chosen["weights"] or []
    opener = _Opener(chosen, template, wanted)
    bundle, sources, place = opener.find(path, files, place, progress)
    say = Clock(progress)
    size = sum(one.info.data_size_bytes for one in sources)
    say.begins(f"binding {fitting.size_text(size)} of weights on {place.name}" if size else f"binding the weights on {place.name}")
    program = _program(bundle, sources, place, chosen["device"] == "auto")
    say.done(f"bound the weights on {program.device.name}")
    options = struct(_ffi.accrt_serve_program_options, **{name: chosen[name] for name in ("kv_bytes", "max_rows", "max_length")})
    made = _model(program, options, say)
    if chosen["prepare"]:
        _prepare(made, say)
    assets = bundle.assets
    layout = bytes(assets["serve.adapters"].data) if "serve.adapters" in assets else None
    name = bundle.metadata.get("serve.name") or name_of(path)
    return Loaded(made, opener.text, name, layout)


def name_of(path: "str | os.PathLike[str]") -> str:
    """A model's name where nothing else says it: that of its folder or file."""
    return os.path.splitext(os.path.basename(os.path.normpath(path)))[0]


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


class _Opener:
    """Opens a bundle, and looks at what it says of itself before anything is compiled or loaded."""

    def __init__(self, chosen: Dict[str, Any], template: Optional[str], wanted: fitting.Wanted) -> None:
        self._chosen, self._template, self._wanted = chosen, template, wanted
        self._found: Optional[Text] = None

    @property
    def text(self) -> Text:
        assert self._found is not None
        return self._found

    def find(self, path: str, weights: Sequence[str], place: Any, progress: Progress) -> Tuple[Any, List[Any], Any]:
        """The bundle, what it takes its weights from, and the device."""
        if path.endswith(".accx"):
            from ..weights import Weights

            bundle = Bundle(path)
            given_options.limits(self._chosen, {"adapters": int(bundle.metadata.get("serve.adapters", "0"))}, "the bundle")
            wanted, found = self._chosen["kv_dtype"], bundle.metadata.get("serve.kv_type")
            if wanted not in (None, found):
                raise ValueError(f"kv_dtype is {wanted}, and the keys and values of the bundle are of {found}")
            sources = [Weights(one) for one in weights]
        elif weights:
            raise ValueError(f"weights are {','.join(weights)}, but {path} has its own: they are given for a bundle (.accx), which has none")
        else:
            bundle, sources, place = self._made(path, place, progress)
        if self._found is None:
            say = Clock(progress)
            assets = {name: (asset.data, "") for name, asset in bundle.assets.items() if name != "serve.token_bytes"}
            self._check(bundle.metadata, assets, place, sources)
            say.done("read the tokenizer, and looked at the options")
        return bundle, sources, place

    def _made(self, path: str, place: Any, progress: Progress) -> Tuple[Any, List[Any], Any]:
        from .. import models

        def check(metadata: Dict[str, str], assets: Dict[str, Tuple[bytes, str]], weights: Sequence[str]) -> None:
            self._check(metadata, assets, place, [models.open_weights(one) for one in weights])

        options = self._chosen
        targets, place = _targets(place, options["device"] == "auto")
        places = models.Options(kv_type=options["kv_dtype"] or "", adapters=options["adapters"], max_rank=options["max_rank"],
                                adapter_targets=_names(options["adapter_targets"]),
                                batch_invariant=bool(self._wanted.engine.get("batch_invariant")) and not place.info.host_memory)  # fmt: skip
        opened = models.open(path, options=places, targets=targets, progress=progress, check=check)
        return Bundle(opened.bundle), opened.sources(), place

    def _check(self, metadata: Dict[str, str], assets: Dict[str, Tuple[Any, str]], place: Any, sources: Sequence[Any]) -> None:
        if "serve.version" not in metadata:
            return  # which the engine's model says better
        layout = bytes(assets["serve.adapters"][0]) if "serve.adapters" in assets else None
        info, weight_bytes = place.info, sum(one.info.data_size_bytes for one in sources)
        where = fitting.Place(place.name, info.host_memory, info.memory_total_bytes)
        fitting.check(metadata, layout, self._chosen, self._wanted, where, weight_bytes)
        files = {name: bytes(content) for name, (content, _type) in assets.items() if name != "serve.token_bytes"}
        self._found = text_of(files, self._template, self._chosen["tool_parser"], self._chosen["reasoning_parser"])
        self._found.generates = metadata.get("serve.generates") != "0"


def _names(given: Optional[str]) -> Tuple[str, ...]:
    return tuple(filter(None, (given or "").split(",")))


def _targets(place: Any, may_be_host: bool) -> Tuple[List[str], Any]:
    """What is compiled for a device, and the device: for a GPU what it runs, for a host what its
    processor runs best."""
    if not place.info.host_memory:
        from ..compiler.driver import CUDA_TARGETS, available_targets

        arch = place.info.arch
        found = available_targets([arch if arch in CUDA_TARGETS else "ptx"])
        if found:
            return found, place
        if not may_be_host:
            raise ValueError(f"device is {place.name}, and nothing here compiles for it: it needs NVRTC (pip install 'accrt[cuda]') or nvcc, or a bundle (.accx) that was compiled elsewhere")
        place = place.instance.device("host")
    return ["host"], place


def _model(program: Any, options: Any, say: Clock) -> Model:
    """Says what it takes before it takes it."""
    device, handle = program.device.handle, program.handle
    memory = struct(_ffi.accrt_serve_memory)
    apart(lambda: check(lib.accrt_serve_program_memory(device, handle, ctypes.byref(options), ctypes.byref(memory))))
    say.done(f"weights take {fitting.size_text(memory.weight_bytes)}, {memory.pages} pages of keys and values {fitting.size_text(memory.kv_bytes)}, "
             f"a step {fitting.size_text(memory.transient_bytes + memory.result_bytes)}")  # fmt: skip
    say.begins("making the session, with its keys and values")
    made = Model(apart(lambda: created(lib.accrt_serve_model_open_program, device, handle, ctypes.byref(options))))
    say.done("made the session")
    return made


def _prepare(made: Model, say: Clock) -> None:
    """Piece by piece, so that Ctrl-C ends it."""
    left, count = ctypes.c_uint32(1), 0
    handle = made.handle
    say.begins("preparing sizes of steps")
    while left.value:
        apart(lambda: check(lib.accrt_serve_model_prepare(handle, ctypes.byref(left))))
        count += 1
        say.goes_on(f"preparing sizes of steps: {count} of {count + left.value}")
    if count > 1:
        say.done(f"prepared {count} sizes of steps")
