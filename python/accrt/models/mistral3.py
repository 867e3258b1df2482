"""Mistral Small 3.1 and 3.2, which see images: the part that reads text, which is a Mistral."""

from __future__ import annotations

from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from .mistral import Mistral


class Mistral3(Mistral):
    types = ("mistral3",)
    defaults = {"num_key_value_heads": 8, "sliding_window": None, "max_position_embeddings": 131072}

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        text = text_part(checkpoint)
        kind = text.config.get("model_type")
        if kind not in ("mistral", "mistral3"):
            text.points.append(f"config: text_config.model_type is {kind!r}; there is mistral")
        # what configurations say differs
        text.config["tie_word_embeddings"] = "lm_head.weight" not in text.tensors
        super().__init__(text, options)
