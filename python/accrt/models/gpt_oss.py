"""GPT-OSS: every second layer with a window, sinks beside the keys, and experts with biases, whose
matrices for gate and up have their rows in turn."""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._experts import WithExperts


class GptOss(WithExperts):
    types = ("gpt_oss",)
    architectures = ("gpt-oss",)
    defaults = {"head_dim": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": 128, "max_position_embeddings": 131072, "num_local_experts": 128,
                "num_experts_per_tok": 4, "intermediate_size": 2880,
                "rope_theta": 150000.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                    "original_max_position_embeddings": 4096}}  # fmt: skip
    count_key, router_name = "num_local_experts", "router"
    gguf_names = {**WithExperts.gguf_names, "ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm", "attn_sinks": "self_attn.sinks"}

    def setup(self) -> None:
        super().setup()
        self.setup_experts()
        self.limit, self.alpha = self.config.number("swiglu_limit", 7.0), self.config.number("swiglu_alpha", 1.702)
        self.is_turned = self.is_gguf or bool(self.config.get("quantization_config"))
        self.windows = self.windows_of([FULL if layer % 2 else SLIDING for layer in range(self.layers)])

    def setup_rope(self) -> None:
        # a GGUF file has no word for it
        if self.is_gguf and isinstance(self.config.get("rope_scaling"), dict):
            self.config.values["rope_scaling"]["truncate"] = False
        super().setup_rope()

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def sinks(self, layer: int) -> Optional[Value]:
        name = f"{self.layer_name.format(layer)}.{self.attention_name}.sinks"
        return self.float(self.weight(f"{name}.weight" if self.is_gguf else name, [self.heads]))

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        best, chosen = self.linear(x, name, self.experts, bias=True).topk(self.chosen, -1)
        return best.softmax(-1), chosen

    def through(self, rows: Value, name: str, ids: Value, ends: Value) -> Value:
        def product(x: Value, part: str, size: int) -> Value:
            weight, bias = (f"{name}.{part}.weight", f"{name}.{part}.bias") if self.is_gguf else (f"{name}.{part}", f"{name}.{part}_bias")
            return self._product(x, weight, size, ends) + self.float(self.weight(bias, [self.experts, size])).index_select(0, ids)

        size = self.expert_size
        if self.is_gguf:
            gate, up = (product(rows, part, size) for part in self.parts[:2])
        else:
            both = product(rows, "gate_up_proj", 2 * size).view([rows.shape[0], size, 2])
            gate, up = both.select(-1, 0), both.select(-1, 1)
        # tensors, so that kernels are the same for all numbers
        most, least, alpha = (
            self.step.f.constant(self.constant(f"swiglu.{name}", np.array([number], np.float32)))
            for name, number in (("most", self.limit), ("least", -self.limit), ("alpha", self.alpha))
        )
        gate, up = gate.minimum(most), up.minimum(most).maximum(least)
        return product((up + 1.0) * (gate * (gate * alpha).sigmoid()), "down_proj", self.hidden)

    def _product(self, x: Value, name: str, size: int, ends: Value) -> Value:
        """Packed matrices and those of GGUF files are [experts, outputs, inputs], plain ones of a
        folder [experts, inputs, outputs]."""
        f, inputs = self.step.f, int(x.shape[-1])
        if not self.is_turned:
            return x.grouped_matmul(f.constant(self.weight(name, [self.experts, inputs, size])), ends)
        self.as_unpacked(self._key(name))
        return x.grouped_linear([f.constant(self.weight(name, [self.experts, size, inputs]))], ends)
