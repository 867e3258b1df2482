"""Ministral 3: Mistral whose queries grow with the positions behind those of its training."""

from __future__ import annotations

from ..compiler.ir import Value
from ._ropes import Growing
from .mistral import Mistral


class Ministral3(Growing, Mistral):
    types, architectures = ("ministral3",), ("mistral3",)
    gguf_keys = {"attention.temperature_scale": "temperature_scale", "rope.scaling.yarn_log_multiplier": "yarn_log_multiplier"}
    defaults = {"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 262144,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
                                    "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        scaling, by = config.get("rope_scaling"), config.get("yarn_log_multiplier")
        if self.is_gguf and isinstance(scaling, dict):
            both = {"mscale": 1.0, "mscale_all_dim": by} if by else {}
            config.values["rope_scaling"] = {**scaling, **both, "llama_4_scaling_beta": config.get("temperature_scale", 0.0)}
        super().setup()
        self.setup_growing()
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs

    def turned(self, x: Value, name: str) -> Value:
        turned = super().turned(x, name)
        return turned * self.growing(self.step.positions, self.original, self.beta) if self.beta and name.endswith(".q") else turned
