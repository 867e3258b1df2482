"""Phi-4 multimodal: of a model that sees and hears, the part that reads text, which is Phi-4 mini.
Its own folders have adapters for the other parts beside each product."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Tuple

from ._checkpoint import Checkpoint, twice
from ._options import Options
from ._parts import text_part
from .phi3 import Phi3


_OTHERS = (".lora_A.", ".lora_B.", "model.embed_tokens_extend.")
_BASE = ".base_layer."


class Phi4Multimodal(Phi3):
    types = ("phi4_multimodal", "phi4mm")
    architectures: Tuple[str, ...] = ()
    defaults = {**Phi3.defaults, "num_key_value_heads": 8, "max_position_embeddings": 131072}

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(_of_text(text_part(checkpoint)), options)


def _of_text(found: Checkpoint) -> Checkpoint:
    """Without the adapters, and with plain names. One without adapters stays as it is."""
    if not any(part in name for part in (*_OTHERS, _BASE) for name in (*found.tensors, *found.unread)):
        return found
    names = {name: name.replace(_BASE, ".") for name in found.tensors if not any(part in name for part in _OTHERS)}
    unread = {name: point for name, point in found.unread.items() if not any(part in name for part in _OTHERS)}
    points = [*found.points, *(twice(name) for name, count in Counter(names.values()).items() if count > 1)]
    return replace(found, tensors={new: found.tensors[old] for old, new in names.items()}, unread=unread, points=points)
