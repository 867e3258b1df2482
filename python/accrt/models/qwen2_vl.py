"""Qwen 2 VL and 2.5 VL, which see images: the part that reads text, which is a Qwen 2. Of a text,
all three positions of a token are the same, as rotary embeddings of one position have it."""

from __future__ import annotations

from typing import Any

from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from .qwen2 import Qwen2


class OfText:
    """What the parts of Qwen's models have in common that read text."""

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        text = text_part(checkpoint)
        # the model says it, or its part does; a head of its own is read where there is one
        tied = [config.get("tie_word_embeddings") for config in (checkpoint.config, text.config)]
        has_head = "lm_head.weight" in text.tensors
        if all(one in (None, True, False) for one in tied) and (has_head or tied != [None, None]):
            text.config["tie_word_embeddings"] = any(tied) and not has_head
        text.config.update({name: _one_position(text.config[name]) for name in ("rope_scaling", "rope_parameters") if name in text.config})
        super().__init__(text, options)  # type: ignore[call-arg]


def _one_position(given: Any) -> Any:
    if not isinstance(given, dict) or given.get("rope_type", given.get("type")) != "mrope":
        return given
    return {**{key: value for key, value in given.items() if key != "type"}, "rope_type": "default"}


class Qwen2VL(OfText, Qwen2):
    types = ("qwen2_vl", "qwen2_5_vl")
    architectures = ()
    defaults = {"max_window_layers": 80, "sliding_window": 4096, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
