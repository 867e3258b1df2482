"""LoRA adapters on a program's device, and what PEFT's config says of them."""
from __future__ import annotations

import ctypes
import json
import math
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Iterator

from . import _ffi
from ._files import read_small
from ._library import Handle, created, lib, need, struct
from ._waits import apart

if TYPE_CHECKING:
    from .program import Program


#: PEFT's own have some hundred bytes.
_CONFIG_BYTES = 1 << 20


def _peft_config(path: str) -> dict:
    """PEFT's config; empty where there is none."""
    try:
        # Numbers of many digits are refused by value, below: Python has a limit of its own, and
        # another message.
        config = json.loads(read_small(path, _CONFIG_BYTES), parse_int=lambda text: int(text) if len(text) < 100 else float(text))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no JSON object")
    return config


def _peft_factors(path: str, weights: Mapping) -> tuple[float, float]:
    """alpha and scale as PEFT's config has them, whose rank must be that of the file's tensors;
    zeros where there is none."""
    config = _peft_config(path)
    for key in ("rank_pattern", "alpha_pattern", "use_dora"):
        if config.get(key):
            raise ValueError(f"{path} has {key}, which one factor for all adapter tensors does not express; give scale=")
    alpha, rank = config.get("lora_alpha", 0), config.get("r")
    _peft_number(path, "lora_alpha", alpha, 2**53, "2^53", "number")
    if rank is not None:
        _peft_number(path, "r", rank, 2**32 - 1, "2^32 - 1", "rank")
        if type(rank) is not int or rank < 1:
            raise ValueError(f"{path}: r is {json.dumps(rank)}, which is no rank")
    for name, found in _peft_ranks(weights) if rank else ():
        if found != rank:
            raise ValueError(f"{path}: r is {rank}, but {name!r} is of rank {found}")
    if not config.get("use_rslora"):
        return alpha, 0
    if not rank:
        raise ValueError(f"{path}: use_rslora divides alpha by the square root of r, and r is not there")
    return 0, alpha / math.sqrt(rank)


def _peft_number(path: str, name: str, value, limit: int, limit_text: str, what: str) -> None:
    """As tools/accx/job_weights.c has it (check_number)."""
    if type(value) in (int, float) and value == value:
        if abs(value) > limit:
            raise ValueError(f"{path}: {name} is beyond {limit_text}, which is no {what}")
    else:
        raise ValueError(f"{path}: {name} is {json.dumps(value):.80}, which is no {what}")


def _peft_ranks(weights: Mapping) -> Iterator[tuple[str, int]]:
    """The rank of each tensor whose name says which of a pair it is: A is [rank, in], B is [out,
    rank]."""
    for name, tensor in weights.items():
        which = re.findall("lora_(?:embedding_)?([ABab])", name)
        if which and len(tensor.shape) > 1:
            yield name, tensor.shape[0 if which[-1] in "Aa" else 1]


class Adapter(Handle):
    """Tensors of a LoRA adapter on a program's device. Made by `Program.load_adapter`; any sessions
    of the program may have it."""

    __slots__ = ("program",)
    _kind = "accrt_adapter"

    def __init__(self, program: Program, source, alpha: float = 0, scale: float = 0, partial: bool = False) -> None:
        from .program import Program
        from .weights import Weights
        need(program, Program)
        folder = None
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            if os.path.isdir(path) and os.path.exists(os.path.join(path, "adapter_model.safetensors")):
                source = os.path.join(path, "adapter_model.safetensors")
        if not isinstance(source, Weights):
            source = Weights(source, program.bundle.instance)
        if folder is not None and not alpha and not scale:
            alpha, scale = _peft_factors(os.path.join(folder, "adapter_config.json"), source)
        options = struct(_ffi.accrt_adapter_options, alpha=alpha, scale=scale, flags=_ffi.ACCRT_ADAPTER_PARTIAL if partial else 0)
        handles = (need(program, Program), source.handle, ctypes.byref(options))
        super().__init__(apart(lambda: created(lib.accrt_adapter_load, *handles)))
        self.program = program
