"""nanochat: Llama whose norms have no weights, one of them behind the embedding; queries and keys
are turned the other way round, then normed; an MLP without a gate, and a soft cap of logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder


class NanoChat(Decoder):
    types = ("nanochat",)
    defaults = {"final_logit_softcapping": 15.0, "intermediate_size": 8192}
    act = "relu2"

    def setup(self) -> None:
        super().setup()
        self.final_cap = self.config.number("final_logit_softcapping", 0.0)

    def frequencies(self) -> Any:
        return self.constant("rope.frequencies", -self.rotation.frequencies.astype(np.float32))

    def norm(self, x: Value, name: str) -> Value:
        return x.rms_norm(None, self.eps)

    def turned(self, x: Value, name: str) -> Value:
        return self.norm(self.rope(x), "")

    def embed(self, ids: Value) -> Value:
        return self.norm(super().embed(ids), "")

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "fc1", "fc2")

    def head(self, x: Value) -> Value:
        logits = super().head(x)
        return (logits / self.final_cap).tanh() * self.final_cap if self.final_cap else logits
