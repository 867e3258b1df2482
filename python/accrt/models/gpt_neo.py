"""GPT-Neo (also TinyStories): learned positions, layer norms, windows in every second layer, scores
that are not scaled."""

from __future__ import annotations

from typing import Any, List, Optional

from ..compiler.ir import Value
from ._blocks import Decoder


class GPTNeo(Decoder):
    types = ("gpt_neo",)
    defaults = {"layer_norm_epsilon": 1e-5, "window_size": 256}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "num_hidden_layers": ("num_layers",), "num_attention_heads": ("num_heads",),
            "hidden_act": ("activation_function",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "wte", "ln_f", "h.{}", "attn.attention", "out_proj"
    ignored = (".attention.bias", ".attention.masked_bias")  # the causal mask
    tied = True
    act = "gelu_new"
    scale = 1.0

    def setup(self) -> None:
        super().setup()
        config = self.config
        width, kinds = config.integer("window_size", 256), self._kinds()
        self.windows = [width if kind == "local" else None for kind in kinds]

    def _kinds(self) -> List[str]:
        """Of each layer: attention_layers, or attention_types, which has a pattern and how often it
        comes."""
        config = self.config
        given: Any = config.get("attention_types", [[["global", "local"], -(-self.layers // 2)]])
        try:
            said = [kind for pattern, times in given for _ in range(min(times, self.layers)) for kind in pattern]
        except (TypeError, ValueError):
            said = []
        kinds: Any = config.get("attention_layers", said)
        if not isinstance(kinds, list) or len(kinds) < self.layers or any(kind not in ("global", "local") for kind in kinds):
            config.refuse(f"config: attention_types is {given!r:.60}; there are global and local, one for each layer")
            kinds = ["global"] * self.layers
        return kinds[: self.layers]

    def setup_rope(self) -> None:
        """Positions are embedded."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return x

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def embed(self, ids: Value) -> Value:
        return super().embed(ids) + self.embedding(self.step.positions, "wpe", self.trained)

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.ln_1"), f"{name}.{self.attention_name}", index) + x
        return self.in_two(self.norm(x, f"{name}.ln_2"), f"{name}.mlp", "c_fc", "c_proj") + x
