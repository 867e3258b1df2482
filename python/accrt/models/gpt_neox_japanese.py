"""GPT-NeoX for Japanese: GPT-NeoX with the MLP behind attention, without biases but for one, behind
the attention of the last layer."""

from __future__ import annotations

from ..compiler.ir import Value
from .gpt_neox import GPTNeoX


class GPTNeoXJapanese(GPTNeoX):
    types, architectures = ("gpt_neox_japanese",), ()
    defaults = {"layer_norm_eps": 1e-5, "rotary_pct": 1.0, "use_parallel_residual": False, "intermediate_multiple_size": 4}
    prefix = "gpt_neox_japanese."
    tied = True

    def setup(self) -> None:
        config = self.config
        config.values["intermediate_size"] = int(config.integer("hidden_size") * config.number("intermediate_multiple_size", 4.0))
        super().setup()
        if self.is_parallel:
            config.refuse("config: use_parallel_residual is true, which this family does not do")

    def attention(self, x: Value, name: str, layer: int) -> Value:
        made = super().attention(x, name, layer)
        return made + self.float(self.weight(f"{name}.dense_bias", [self.hidden])) if layer == self.layers - 1 else made
