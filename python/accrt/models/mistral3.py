"""Mistral Small 3.1 and 3.2 and Ministral 3, which see images: the part that reads text, which is a
Mistral or a Ministral 3."""

from __future__ import annotations

from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from .ministral3 import Ministral3


class Mistral3(Ministral3):
    types = ("mistral3",)
    defaults = {"num_key_value_heads": 8, "sliding_window": None, "max_position_embeddings": 131072}

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        text = text_part(checkpoint)
        kind = text.config.get("model_type")
        if kind == "ministral3":
            self.defaults = Ministral3.defaults
        elif kind not in ("mistral", "mistral3"):
            text.points.append(f"config: text_config.model_type is {kind!r}; there are mistral and ministral3")
        # what configurations say differs
        text.config["tie_word_embeddings"] = "lm_head.weight" not in text.tensors
        super().__init__(text, options)
