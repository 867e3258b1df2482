"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers that are one thing each, a mixer of Mamba 2,
attention, an MLP without a gate or a mixture of such MLPs; no rotary embeddings."""

from __future__ import annotations

import math
from typing import List

from ..compiler.ir import Value
from ._blocks import ACTIVATIONS, FULL
from ._mixtures import WithGroups
from ._scans import LINEAR, WithMamba2

_MLP, _EXPERTS = "mlp", "moe"
_LETTERS = {"M": LINEAR, "*": FULL, "-": _MLP, "E": _EXPERTS}
_OLDER = {"mamba": LINEAR, "attention": FULL}


class NemotronH(WithMamba2, WithGroups):
    types = ("nemotron_h",)
    embedding_name, final_norm = "embeddings", "norm_f"
    keys = {"hidden_act": ("mamba_hidden_act",), "layers_block_type": ("layer_types",), "n_groups": ("mamba_n_groups",), "conv_kernel": ("mamba_d_conv",), "expand": ("mamba_expand",),
            "use_conv_bias": ("mamba_conv_bias",), "time_step_min": ("mamba_dt_min",)}  # fmt: skip
    mamba_keys = {"heads": "mamba_num_heads", "head_size": "mamba_head_dim", "groups": "n_groups", "state_size": "ssm_state_size", "taps": "conv_kernel", "expand": "expand",
                  "conv_bias": "use_conv_bias", "bias": "use_bias"}  # fmt: skip
    defaults = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "max_position_embeddings": 4096, "layer_norm_epsilon": 1e-5,
                "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
                "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "norm_topk_prob": True, "time_step_min": 0.001}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        if any(name.startswith("backbone.") for name in self.checkpoint.tensors):
            self.prefix = "backbone."  # as they are published
        config.values["rms_norm_eps"] = config.get("layer_norm_epsilon")
        kinds = self._listed()
        config.values["num_hidden_layers"] = len(kinds)
        super().setup()
        self.kinds = self.kinds_of("layers_block_type", {kind: kind for kind in (_MLP, _EXPERTS)}, [FULL] * self.layers)
        self.mlp_act = config.choice("mlp_hidden_act", ACTIVATIONS, "relu2")
        self.setup_mamba(config.integer("mamba_num_heads") * config.integer("mamba_head_dim"))
        self.latent = 0
        for key in ("n_routed_experts", "routed_scaling_factor"):
            config.get(key)
        if _EXPERTS in self.kinds:
            self.latent = config.integer("moe_latent_size", 0, minimum=0)
            self.setup_groups()
            self.shared = config.integer("moe_shared_expert_intermediate_size")
        config.get("num_nextn_predict_layers")
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith("mtp."))

    def _listed(self) -> List[str]:
        """What each layer is, also where a configuration has it as letters."""
        config = self.config
        given, letters = config.get("layers_block_type"), config.get("hybrid_override_pattern")
        if given is None and isinstance(letters, str) and letters and set(letters) <= set(_LETTERS):
            given = [_LETTERS[letter] for letter in letters]
        elif given is None and letters is not None:
            config.refuse(f"config: hybrid_override_pattern is {letters!r}, expected letters of {' '.join(_LETTERS)}")
        elif isinstance(given, list):
            given = [_OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in given]
        config.values["layers_block_type"] = given = given or [LINEAR, _EXPERTS, FULL, _MLP]
        return given if isinstance(given, list) else [""]

    def setup_rope(self) -> None:
        """There are none."""

    def setup_step_limits(self) -> None:
        """Steps are not shorter than one of the configuration; its other limits are not used."""
        self.config.get("time_step_limit")
        self.step_limits = [self.config.number("time_step_min"), math.inf]

    def attends(self, layer: int) -> bool:
        return self.kinds[layer] == FULL

    def turned(self, x: Value, name: str) -> Value:
        return x

    def layer(self, x: Value, name: str, index: int) -> Value:
        kind, taken, name = self.kinds[index], self.norm(x, f"{name}.norm"), f"{name}.mixer"
        if kind == LINEAR:
            return x + self.mamba(taken, name, index)
        if kind == FULL:
            return x + self.attention(taken, name, index)
        return x + (self.mixture(taken, name) if kind == _EXPERTS else self.without_gate(taken, name, self.intermediate))

    def without_gate(self, x: Value, name: str, size: int) -> Value:
        return self.linear(ACTIVATIONS[self.mlp_act](self.linear(x, f"{name}.up_proj", size)), f"{name}.down_proj", self.hidden)

    # -- experts

    @property
    def expert_width(self) -> int:
        return self.latent or self.hidden

    def mixture(self, x: Value, name: str) -> Value:
        shares, chosen = self.routed(x, f"{name}.{self.router_name}")
        taken = self.linear(x, f"{name}.fc1_latent_proj", self.latent) if self.latent else x
        made = self._in_groups(taken, f"{name}.{self.experts_name}", shares, chosen)
        made = self.linear(made, f"{name}.fc2_latent_proj", self.hidden) if self.latent else made
        return made + self.without_gate(x, f"{name}.{self.shared_name}", self.shared)

    def through(self, rows: Value, name: str, ids: Value, ends: Value) -> Value:
        up, down = (self._all(name, part) for part in self.parts[1:])
        return ACTIVATIONS[self.mlp_act](rows.grouped_linear(up, ends)).grouped_linear(down, ends)
