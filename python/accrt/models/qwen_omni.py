"""Qwen 2.5 Omni and Qwen 3 Omni, which see, hear and speak: of the part that thinks the one that
reads text, which is a Qwen 2 or a Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Tuple

from ._checkpoint import Checkpoint
from ._options import Options
from .qwen2_vl import Qwen2VL
from .qwen3_vl_moe import Qwen3VLMoe

_THINKER = "thinker."


def _thinker(checkpoint: Checkpoint) -> Checkpoint:
    """What thinks, without what speaks. A folder of that part alone stays as it is."""
    config = checkpoint.config
    if not isinstance(config.get("thinker_config"), dict):
        return checkpoint
    kept: Any = {field: {name[len(_THINKER) :]: item for name, item in getattr(checkpoint, field).items() if name.startswith(_THINKER)} for field in ("tensors", "unread", "kv_scales")}
    outer = {key: value for key, value in config.items() if not key.endswith("_config") or key == "quantization_config"}
    return replace(checkpoint, config={**outer, **config["thinker_config"], "model_type": config.get("model_type")}, **kept)


class Qwen2Omni(Qwen2VL):
    types: Tuple[str, ...] = ("qwen2_5_omni", "qwen2_5_omni_thinker")
    tied = True
    defaults = {**Qwen2VL.defaults, "max_window_layers": 28, "sliding_window": 32768, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(_thinker(checkpoint), options)


class Qwen3OmniMoe(Qwen3VLMoe):
    types: Tuple[str, ...] = ("qwen3_omni_moe", "qwen3_omni_moe_thinker")
    defaults = {"num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "max_position_embeddings": 32768, "rope_theta": 1e6,
                "norm_topk_prob": True}  # fmt: skip

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(_thinker(checkpoint), options)
