"""Llama 4, the part that reads text: layers whose attention sees chunks, and others without rotary
embeddings, whose queries grow with the positions; experts that take what the router multiplies,
beside one that takes every token."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ..compiler.ir import Value
from ._blocks import FULL
from ._checkpoint import Checkpoint
from ._experts import WithExperts
from ._options import Options
from ._parts import text_part
from ._ropes import Growing

_CHUNKED = "chunked_attention"
#: So many experts has the model whose queries and keys have no norms (Maverick).
_WITHOUT_NORMS = 128


class Llama4(Growing, WithExperts):
    types, architectures = ("llama4_text", "llama4"), ("llama4",)
    gguf_names = {"ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj", "ffn_gate_inp": "feed_forward.router",
                  **{f"ffn_{part}_exps": f"feed_forward.experts.{part}_proj" for part in ("gate", "up", "down")},
                  **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")}}  # fmt: skip
    gguf_keys = {"feed_forward_length": "intermediate_size_mlp", "expert_feed_forward_length": "intermediate_size", "interleave_moe_layer_step": "interleave_moe_layer_step"}
    defaults = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 131072, "num_experts_per_tok": 1,
                "num_local_experts": 16, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}  # fmt: skip
    count_key, router_name = "num_local_experts", "router"
    interleaved = shares_of_inputs = True

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(text_part(checkpoint), options)

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts()
        if self.is_gguf:
            self._setup_file()
        self.dense_size = config.integer("intermediate_size_mlp")
        self.qk_normed = config.flag("use_qk_norm", True)
        self.is_growing = config.flag("attn_temperature_tuning", True)
        self.growing_step, self.growing_by = config.number("floor_scale", minimum=1), config.number("attn_scale")
        every = config.integer("no_rope_layer_interval", 4)
        # 1: the layer turns queries and keys
        self.turns = self.of_layers("no_rope_layers", (0, 1), [int((layer + 1) % every != 0) for layer in range(self.layers)], may_be_longer=True)
        width = config.integer("attention_chunk_size", 0, minimum=0)
        kinds = self.of_layers("layer_types", (_CHUNKED, FULL), [_CHUNKED if turn else FULL for turn in self.turns], may_be_longer=True)
        self.chunks = [width or None if kind == _CHUNKED else None for kind in kinds]
        step = config.integer("interleave_moe_layer_step", 1)
        found: Any = config.get("moe_layers", list(range(step - 1, self.layers, step)))
        if not isinstance(found, list) or not all(isinstance(layer, int) and 0 <= layer < self.layers for layer in found):
            config.refuse(f"config: moe_layers is {found!r}, expected a list of layers")
            found = []
        self.with_experts = frozenset(found)

    def _setup_file(self) -> None:
        """What files do not say, and all published models have."""
        config = self.config
        config.values.update(attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1, use_qk_norm=self.experts != _WITHOUT_NORMS)
        if config.get("sliding_window") is not None:
            config.refuse(f"metadata: attention.sliding_window is {config.get('sliding_window')}, which is not known of Llama 4")

    def chunk(self, layer: int) -> Optional[int]:
        return self.chunks[layer]

    def turned(self, x: Value, name: str) -> Value:
        if self.turns[self.step.layer]:
            x = self.rope(x)
            return x.rms_norm(None, self.eps) if self.qk_normed else x
        if not self.is_growing or not name.endswith(".q"):
            return x
        return x * self.growing(self.step.positions + 1, self.growing_step, self.growing_by)

    def mlp(self, x: Value, name: str) -> Value:
        name = name.replace(".mlp", ".feed_forward")
        if self.step.layer not in self.with_experts:
            return self.gated(x, name, self.dense_size)
        return self.expert_mlp(x, name) + self.gated(x, f"{name}.shared_expert", self.expert_size)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        best, chosen = self.linear(x, name, self.experts, bias=False).topk(self.chosen, -1)
        return best.sigmoid(), chosen
