"""Phi-3.5 MoE, Phi mini and tiny MoE: Mixtral with layer norms and biases, and with a router that
compares the two best experts with those near them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Tuple

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from . import _rope
from ._ropes import FactorsInFiles
from .mixtral import Mixtral

_NONE = -1e30


class Phimoe(FactorsInFiles, Mixtral):
    types = ("phimoe",)
    architectures = ("phimoe",)
    defaults = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131072, "num_local_experts": 16, "num_experts_per_tok": 2,
                "router_jitter_noise": 0.01}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.interleaved = False
        self.near = 2 * config.number("router_jitter_noise", 0.01)
        config.flag("lm_head_bias")  # the tensors say it
        config.get("input_jitter_noise")  # of training
        if self.chosen != 2:
            config.refuse(f"config: num_experts_per_tok is {self.chosen}; in this family it is 2")

    def setup_rope(self) -> None:
        """LongRoPE has numbers of its own that cosines are multiplied by."""
        super().setup_rope()
        given: Any = _rope.settings(self.config)[1]
        name = "short_mscale" if self.rotation.longest else "long_mscale"
        by = given.get(name)
        if given["rope_type"] == "default" or by is None:
            return
        if isinstance(by, bool) or not isinstance(by, (int, float)) or not 0 < by < 1e30:
            self.config.refuse(f"config: {name} is {by!r}, expected a number above 0")
            by = 1.0
        self.rotation = replace(self.rotation, scale=float(by))

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        """The share of each of the two is its softmax among those that are near to it."""
        scores = self.linear(x, name, self.experts, bias=False)
        best, chosen = scores.topk(2, -1)
        nothing = self.step.f.full([x.shape[0], 1], _NONE, scores.dtype)
        others, shares = scores, []
        for at in range(2):
            most = best.slice(1, at, at + 1)
            far = (most - scores) / scores.abs().maximum(most) > self.near
            shares.append(1.0 / far.where(nothing, others - most).exp().sum(-1, True))
            others = scores.scatter(chosen.slice(1, 0, 1), nothing, 1)
        return cat(shares, -1), chosen
