"""Gemma 3n: a token has several streams, of which a layer takes one and mends all (AltUp); each
layer has embeddings of its own and a second, low-rank way around attention (Laurel); the last
layers see keys and values of earlier ones; the MLPs of the first layers keep what is largest. Of
models that see and hear, the part that reads text."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Callable, List, Sequence

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import FULL, SLIDING
from ._config import MOST
from ._own_embeddings import WithOwnEmbeddings


#: Matrices that make the streams behind the first, and that make one of all.
_MADE, _JOINED = "altup_projections", "altup_unembed_projections"


def _is_size(one: Any) -> bool:
    return isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= MOST


def _is_part(one: Any) -> bool:
    """In f32 too, where a bound is computed from it: not so near to 0 or 1 that it becomes that."""
    return isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one < 1 and (one == 0 or 0 < np.float32(one) < 1)


def _is_cut(one: Any) -> bool:
    return isinstance(one, float) and (one == -math.inf or abs(one) < 100)


def _cut(part: float) -> float:
    """How many standard deviations above the mean a gate is kept, so that this part is not."""
    return float(np.float32(NormalDist().inv_cdf(float(np.float32(part))))) if part else -math.inf


_EXPECTED = {_is_cut: "-inf or a number of standard deviations", _is_size: f"an integer from 1 to {MOST}", _is_part: "a number from 0 to less than 1 in f32"}


class Gemma3n(WithOwnEmbeddings):
    types = ("gemma3n_text", "gemma3n")
    architectures = ("gemma3n",)
    gguf_names = {**WithOwnEmbeddings.gguf_names, "per_layer_token_embd": "embed_tokens_per_layer", "per_layer_model_proj": "per_layer_model_projection",
                  "per_layer_proj_norm": "per_layer_projection_norm", "altup_proj": _MADE, "altup_unembd_proj": _JOINED, "inp_gate": "per_layer_input_gate",
                  "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm", "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
                  "laurel_post_norm": "laurel.post_laurel_norm", "altup_correct_coef": "altup.correction_coefs", "altup_predict_coef": "altup.prediction_coefs",
                  "altup_correct_scale.weight": "altup.correct_output_scale", "altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm"}  # fmt: skip
    gguf_keys = {"altup.active_idx": "altup_active_idx", "altup.num_inputs": "altup_num_inputs", "embedding_length_per_layer_input": "hidden_size_per_layer_input",
                 "attention.shared_kv_layers": "num_kv_shared_layers", "activation_sparsity_scale": "activation_sparsity_scale"}  # fmt: skip
    gguf_of_layers = ("intermediate_size",)
    defaults = {"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2,
                "head_dim": 256, "max_position_embeddings": 32768, "sliding_window": 512, "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262144,
                "hidden_size_per_layer_input": 256, "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        if self.is_gguf:
            self._read_file()
        sizes = config.get("intermediate_size")
        if isinstance(sizes, list):
            config.values["intermediate_size"] = sizes[0] if sizes else None
        super().setup()
        self.scale, self.soft_cap = 1.0, None
        self.sizes_of_mlps = self._one_each("intermediate_size", sizes, self.intermediate, _is_size, 1)
        # by default the first ten layers of a model that has more
        sparse = [0.95 if layer < 10 < self.layers else 0.0 for layer in range(self.layers)]
        self.sparsity = self._one_each("activation_sparsity_pattern", config.get("activation_sparsity_pattern"), sparse, _is_part, 0.0)
        self.cuts = [_cut(part) for part in self.sparsity]
        if config.get("activation_sparsity_scale") is not None:
            self.cuts = self._one_each("activation_sparsity_scale", config.get("activation_sparsity_scale"), None, _is_cut, -math.inf)
        self.streams, self.active = config.integer("altup_num_inputs", maximum=64), config.integer("altup_active_idx", 0, minimum=0)
        self.corrects = config.flag("altup_correct_scale", True)
        self.setup_own()
        self.rank = config.integer("laurel_rank")
        if not self.corrects:
            self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.endswith(".altup.correct_output_scale"))
        if self.active >= self.streams:
            config.refuse(f"config: altup_active_idx is {self.active}, and altup_num_inputs {self.streams}")
        self.setup_sharing()

    def _read_file(self) -> None:
        """What files say by the shapes of tensors, or not at all: that is the same in all models
        that are published."""
        values = self.config.values
        values.setdefault("final_logit_softcapping", 30.0)
        for key, name in (("laurel_rank", f"{self.layer_name.format(0)}.laurel.linear_left"), ("vocab_size_per_layer_input", "embed_tokens_per_layer")):
            found = self.checkpoint.tensors.get(f"{self.prefix}{name}.weight")
            if found is not None and found.shape:
                values.setdefault(key, found.shape[0])

    def _one_each(self, name: str, given: Any, default: Any, fits: Callable[[Any], bool], neutral: Any) -> List[Any]:
        """Of a list, or of one number for all layers. `neutral`: instead of what is refused."""
        found = default if given is None else given
        found = found if isinstance(found, list) else [found] * self.layers
        if len(found) != self.layers or not all(map(fits, found)):
            self.config.refuse(f"config: {name} is {found!r:.120}, expected {_EXPECTED[fits]} for each of {self.layers} layers")
            return [neutral] * self.layers
        return found

    def layer_types(self) -> List[str]:
        return [SLIDING if (layer + 1) % 5 else FULL for layer in range(self.layers)]

    # -- streams, [tokens, streams, hidden]

    def embed(self, ids: Value) -> Value:
        x = super().embed(ids)
        self.step.shared["own"] = self.own_embeddings(ids, x)
        size = self._size(x)
        rest = [self._of_size(made, size) for made in self._each_by_its_own([x] * (self.streams - 1), _MADE)]
        return cat([one.unsqueeze(1) for one in (x, *rest)], 1)

    def joined(self, x: Value) -> Value:
        """One of all streams behind the last layer."""
        first = x.select(1, 0)
        size, made = self._size(first), first
        for one in self._each_by_its_own([x.select(1, at) for at in range(1, self.streams)], _JOINED):
            made = made + self._of_size(one, size)
        return made * (1 / self.streams)

    def _each_by_its_own(self, given: Sequence[Value], name: str) -> List[Value]:
        """Products with a matrix each. Files have these matrices in one tensor, as those of
        experts."""
        if not self.is_gguf or not given:
            return [self.linear(x, f"{name}.{at}", self.hidden, False) for at, x in enumerate(given)]
        f, tokens, many = self.step.f, given[0].shape[0], len(given)
        ends = (f.arange(many) + 1) * tokens
        made = cat(list(given), 0).grouped_linear([f.constant(self.weight(f"{name}.weight", [many, self.hidden, self.hidden]))], ends)
        return [made.narrow(0, tokens * at, tokens) for at in range(many)]

    def _size(self, x: Value) -> Value:
        return x.square().mean(-1, True)

    def _of_size(self, x: Value, size: Value) -> Value:
        """x, as large as what has such a mean of squares."""
        return x * (size.sqrt() / self._size(x).clamp(1e-5, None).sqrt())

    def _routed(self, x: Value, name: str) -> Value:
        """How much of each stream a layer takes, of the one that it computes with."""
        return self.linear(self.norm(x, f"{name}.router_norm") * (1 / self.hidden), f"{name}.modality_router", self.streams, False).tanh()

    def predicted(self, x: Value, name: str) -> Value:
        many = self.streams
        by = self.linear(self._routed(x.select(1, self.active), name), f"{name}.prediction_coefs", many * many, False).view([x.shape[0], many, many])
        made = x
        for at in range(many):
            made = made + by.narrow(2, at, 1) * x.narrow(1, at, 1)
        return made

    def corrected(self, x: Value, made: Value, name: str) -> Value:
        by = self.linear(self._routed(made, name), f"{name}.correction_coefs", self.streams, False) + 1.0
        return x + (made - x.select(1, self.active)).unsqueeze(1) * by.unsqueeze(-1)

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.predicted(x, f"{name}.altup")
        active, half = x.select(1, self.active), math.sqrt(0.5)
        taken = self.norm(active, f"{name}.input_layernorm")
        beside = self.linear(self.linear(taken, f"{name}.laurel.linear_left", self.rank, False), f"{name}.laurel.linear_right", self.hidden, False)
        beside = taken + self.norm(beside, f"{name}.laurel.post_laurel_norm")
        mixed = self.norm(self.attention(taken, f"{name}.self_attn", index), f"{name}.post_attention_layernorm")
        mixed = (active + mixed + beside) * half
        made = self.mlp(self.norm(mixed, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp")
        x = self.corrected(x, mixed + self.norm(made, f"{name}.post_feedforward_layernorm"), f"{name}.altup")
        x = x + self.of_own(x.select(1, self.active), name, index).unsqueeze(1) * self._rest()
        return self.joined(x) if index == self.layers - 1 else x

    def _rest(self) -> Value:
        """Which streams get what a layer makes of its embeddings: all but the first."""
        return self.step.f.constant(self.constant("rest", np.array([0] + [1] * (self.streams - 1), np.float32).reshape(self.streams, 1)))

    def of_own(self, x: Value, name: str, index: int) -> Value:
        if self.corrects:
            x = x * self.float(self.weight(f"{name}.altup.correct_output_scale", [self.hidden]))
        return super().of_own(x, name, index)

    def mlp(self, x: Value, name: str) -> Value:
        size, by = self.sizes_of_mlps[self.step.layer], self.cuts[self.step.layer]
        gate, up = (self.linear(x, f"{name}.{part}_proj", size) for part in ("gate", "up"))
        if by > -math.inf:
            mean = gate.mean(-1, True)
            gate = (gate - (mean + (gate - mean).square().mean(-1, True).sqrt() * by)).relu()
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)
