"""Apertus: norms of queries and keys, an MLP without a gate whose activation (xIELU) has numbers of
its own in every layer."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Apertus(Decoder):
    types = ("apertus",)
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 65536, "hidden_act": "xielu", "rope_theta": 12e6,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0}}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        given = self.checkpoint.config
        # either form, not both
        if given.get("rope_scaling") is not None or given.get("rope_theta") is not None:
            config.values["rope_parameters"] = given.get("rope_parameters")
        if config.choice("hidden_act", ("xielu",), "xielu") == "xielu":
            config.values["hidden_act"] = "silu"  # nothing uses it
        super().setup()
        if config.flag("post_norm") or not config.flag("qk_norm", True):
            config.refuse("config: post_norm, or no qk_norm, which this family does not do")

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))

    def mlp(self, x: Value, name: str) -> Value:
        return self.linear(self._xielu(self.linear(x, f"{name}.up_proj", self.intermediate), f"{name}.act_fn"), f"{name}.down_proj", self.hidden)

    def _xielu(self, x: Value, name: str) -> Value:
        """a x^2 + b x above 0, and (e^x - 1 - x) c + b x below."""
        above, below = (self.float(self.weight(f"{name}.{which}", [1])).softplus() for which in ("alpha_p", "alpha_n"))
        beta, most = (self.float(self.weight(f"{name}.{which}", [])) for which in ("beta", "eps"))
        small = x.minimum(most)
        return (x > 0).where(above * x * x, (small.expm1() - x) * (beta + below)) + beta * x

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.attention_layernorm"), f"{name}.self_attn", index) + x
        return self.mlp(self.norm(x, f"{name}.feedforward_layernorm"), f"{name}.mlp") + x
