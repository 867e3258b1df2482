"""Qwen 2 and 2.5: Llama with biases of queries, keys and values, and with windows in the later layers where they are switched on."""

from __future__ import annotations

from typing import Optional, Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class Qwen2(Decoder):
    types = architectures = ("qwen2",)
    defaults = {"max_window_layers": 28, "sliding_window": 4096}

    def setup(self) -> None:
        super().setup()
        config = self.config
        width = config.integer("sliding_window", 0, minimum=0)
        width = width if config.flag("use_sliding_window") else 0
        first = config.integer("max_window_layers", self.layers, minimum=0)
        kinds = config.get("layer_types") or ["sliding_attention" if i >= first else "full_attention" for i in range(self.layers)]
        unknown = sorted({str(kind) for kind in kinds} - {"sliding_attention", "full_attention"})
        if unknown or len(kinds) != self.layers:
            config.refuse(f"config: layer_types has {', '.join(unknown) or len(kinds)}; there are full_attention and sliding_attention, one for each layer")
        self.windows = [width or None if kind == "sliding_attention" else None for kind in kinds]

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        sizes = (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))
        q, k, v = (self.split_heads(self.linear(x, f"{name}.{part}", n * self.head_size, bias=True), n) for part, n in sizes)
        return self.rope(q), self.rope(k), v
