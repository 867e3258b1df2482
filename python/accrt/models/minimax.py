"""MiniMax Text 01 and M1: layers with lightning attention, a scan whose decays are fixed, among
others with attention; experts in all layers; what goes around a layer is its normed input, times a
factor."""

from __future__ import annotations

import numpy as np

from ..compiler.ir import Value
from ._blocks import FULL
from ._config import part_of
from ._scans import LINEAR, WithScans
from .mixtral import Mixtral

#: What is summed, by what the models' own code calls it.
_KINDS = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}


class MiniMax(WithScans, Mixtral):
    types = ("minimax", "minimax_m1", "minimax_text_01")
    architectures = ()
    defaults = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131072, "num_local_experts": 8, "num_experts_per_tok": 2}
    #: As the models' own code calls them.
    keys = {f"{kind}_{part}_factor": (f"layernorm_{theirs}_{part}",) for kind, theirs in _KINDS.items() for part in ("alpha", "beta")}
    #: What follows from the configuration.
    ignored = (*Mixtral.ignored, ".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")

    def setup(self) -> None:
        super().setup()
        config = self.config
        for key in ("attn_type_list", "decoder_attention_types"):
            self._take_types(key)
        # The code of models with their own keys takes false where there is nothing.
        if config.get("postnorm", config.get("model_type") == "minimax") is not True:
            config.refuse(f"config: postnorm is {config.get('postnorm')!r}, which this family does not do; it does true")
        if config.get("shared_intermediate_size", 0) != 0:
            config.refuse(f"config: shared_intermediate_size is {config.get('shared_intermediate_size')!r}, which this family does not do")
        self.kinds = self.kinds_of("layer_types", {}, [LINEAR if layer % 2 else FULL for layer in range(self.layers)])
        self.setup_scans(self.heads, self.head_size, self.head_size, 0, 1)
        self.factors = {key: config.number(key, 1.0) for key in self.keys}

    def _take_types(self, key: str) -> None:
        """Kinds of layers as the models' own code has them: 0 or 1."""
        types = self.config.get(key)
        if types is None:
            return
        if not isinstance(types, list) or len(types) != self.layers or any(type(one) is not int or one not in (0, 1) for one in types):
            self.config.refuse(f"config: {key} is {types!r:.120}, expected 0 (lightning attention) or 1 for each of {self.layers} layers")
        elif self.config.get("layer_types") is None:
            self.config.values["layer_types"] = [FULL if one else LINEAR for one in types]

    def setup_rope(self) -> None:
        """Published models say how many elements of a head are turned; transformers turns all."""
        config = self.config
        if config.get("rotary_dim") is not None:
            self.turns_part = True
            self.config = config.changed(partial_rotary_factor=part_of(config.integer("rotary_dim", maximum=self.head_size), self.head_size))
        super().setup_rope()

    def summed(self, around: Value, made: Value, kind: str) -> Value:
        alpha, beta = (self.number(f"{kind}_{name}", self.factors[f"{kind}_{name}_factor"], np.float32) for name in ("alpha", "beta"))
        return around * alpha + made * beta

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.norm(x, f"{name}.input_layernorm")
        attend, kind = (self.lightning, "linear_attn") if self.scans(index) else (self.attention, "full_attn")
        x = self.norm(self.summed(x, attend(x, f"{name}.self_attn", index), kind), f"{name}.post_attention_layernorm")
        return self.summed(x, self.mlp(x, f"{name}.mlp"), "mlp")

    def decays(self, layer: int) -> np.ndarray:
        """Of each head: slopes as ALiBi has them, smaller from layer to layer."""
        slopes = 2.0 ** (-8 / self.heads * np.arange(1, self.heads + 1))
        return np.exp(-slopes * (1 - layer / (self.layers - 1 + 1e-5) + 1e-5))

    def lightning(self, x: Value, name: str, layer: int) -> Value:
        tokens, heads, size = x.shape[0], self.heads, self.head_size
        q, k, v = self.activation(self.linear(x, f"{name}.qkv_proj", 3 * heads * size, False)).view([tokens, heads, 3 * size]).split([size] * 3, -1)
        decay = self.step.f.constant(self.constant(f"decays.{layer}", self.decays(layer).astype(np.float32).reshape(1, heads, 1))).expand([tokens, heads, 1])
        made = self.scan(q, k, v, decay, layer).view([tokens, heads * size])
        weight = self.float(self.weight(f"{name}.norm.weight", [heads * size]))
        made = self.linear(x, f"{name}.output_gate", heads * size, False).sigmoid() * made.rms_norm(weight, 1e-6)
        return self.linear(made, f"{name}.out_proj", self.hidden, False)
