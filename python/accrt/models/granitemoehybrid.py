"""Granite 4, the models whose layers all have attention: a Granite whose MLP is called the shared
one, with or without experts beside it, and with or without rotary embeddings."""

from __future__ import annotations

from typing import Any

from ..compiler.ir import Value
from .granitemoe import GraniteMoe


class GraniteMoeHybrid(GraniteMoe):
    types, architectures = ("granitemoehybrid",), ()
    defaults = {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024}

    def setup(self) -> None:
        config = self.config
        kinds: Any = config.get("layer_types", config.get("layers_block_type"))
        if not isinstance(kinds, list) or any(kind not in ("attention", "full_attention") for kind in kinds):
            config.refuse("config: layer_types has layers of Mamba 2, whose scan over a state no operation of the step does; all-attention models are served")
        self.turns = config.get("position_embedding_type") == "rope"
        super().setup()

    def setup_mixture(self) -> None:
        self.experts = self.config.integer("num_local_experts", 0, minimum=0, maximum=1 << 12)
        if self.experts:
            self.setup_experts()
        else:
            self.config.get("num_experts_per_tok")

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x) if self.turns else x

    def mixed(self, x: Value, name: str) -> Value:
        return super().mixed(x, name) if self.experts else self.shared(x, f"{name}.shared_mlp")
