"""Bamba: layers with attention among others with mixers of Mamba 2, and an MLP behind both."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import FULL
from ._scans import LINEAR, WithMamba2


class Bamba(WithMamba2):
    types = ("bamba",)
    turns_part = True
    final_norm = "final_layernorm"
    defaults = {"num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "intermediate_size": 14336}

    def setup(self) -> None:
        # half of each head is turned, whatever a configuration says
        self.config.values["partial_rotary_factor"] = 0.5
        rope = self.config.values.get("rope_parameters")
        if isinstance(rope, dict):
            self.config.values["rope_parameters"] = {**rope, "partial_rotary_factor": 0.5}
        super().setup()
        config = self.config
        attends = config.get("attn_layer_indices") or []
        if not isinstance(attends, list) or any(not isinstance(layer, int) or not 0 <= layer < self.layers for layer in attends):
            config.refuse(f"config: attn_layer_indices is {attends!r}, expected a list of layers")
            attends = []
        self.kinds = [FULL if layer in attends else LINEAR for layer in range(self.layers)]
        config.get("layer_types")  # what these say again
        self.setup_mamba()

    def layer(self, x: Value, name: str, index: int) -> Value:
        normed = self.norm(x, f"{name}.input_layernorm")
        mixed = self.mamba(normed, f"{name}.mamba", index) if self.scans(index) else self.attention(normed, f"{name}.{self.attention_name}", index)
        x = x + mixed
        return x + self.mlp(self.norm(x, f"{name}.pre_ff_layernorm"), f"{name}.feed_forward")
