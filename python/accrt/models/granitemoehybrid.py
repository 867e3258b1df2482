"""Granite 4: layers with attention among others with mixers of Mamba 2, a Granite whose MLP is
called the shared one, with or without experts beside it, and with or without rotary embeddings."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import FULL
from ._scans import LINEAR, WithMamba2, keys_in_files, names_in_files
from .granitemoe import GraniteMoe


class GraniteMoeHybrid(WithMamba2, GraniteMoe):
    types, architectures = ("granitemoehybrid",), ("granitehybrid",)
    gguf_names = {**GraniteMoe.gguf_names, **names_in_files("mamba"), "ffn_gate": "shared_mlp.gate", "ffn_up": "shared_mlp.up", "ffn_down": "shared_mlp.output_linear"}
    gguf_keys = {**keys_in_files("mamba_d_conv", "mamba_n_heads", "mamba_n_groups", "mamba_d_state"), "rope.scaling.finetuned": "rope_finetuned"}
    gguf_keyless = LINEAR
    defaults = {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024}

    def setup(self) -> None:
        config = self.config
        key = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
        self.turns = config.flag("rope_finetuned", True) if self.is_gguf else config.get("position_embedding_type") == "rope"
        super().setup()
        if self.is_gguf:
            self._setup_file()
        self.kinds = self.kinds_of(key, {"mamba": LINEAR, "attention": FULL}, [LINEAR] * self.layers)
        if LINEAR in self.kinds:
            self.setup_mamba()

    def _setup_file(self) -> None:
        if self.turns and self.config.get("partial_rotary_factor", 1) != 1:
            self.config.refuse("metadata: rope.dimension_count is a part of a head (Bamba), which files of this architecture have in an order that fits whole heads")
        if not self.experts and not self.shared_size:
            self.shared_size = self.intermediate

    def setup_mixture(self) -> None:
        self.experts = self.config.integer("num_experts" if self.is_gguf else "num_local_experts", 0, minimum=0, maximum=1 << 12)
        if self.experts:
            self.setup_experts()
        else:
            self.config.get("num_experts_per_tok")

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x) if self.turns else x

    def attention(self, x: Value, name: str, layer: int) -> Value:
        return self.mamba(x, f"{self.layer_name.format(layer)}.mamba", layer) if self.scans(layer) else super().attention(x, name, layer)

    def mixed(self, x: Value, name: str) -> Value:
        return super().mixed(x, name) if self.experts else self.shared(x, f"{name}.shared_mlp")
