"""What Gemma 3n and Gemma 4 have beside Gemma 3: embeddings in every layer; last layers that see
keys and values of earlier ones; norms without Gemma's 1, also of values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder
from .gemma3 import Gemma3

_KEYS_AND_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")


class WithOwnEmbeddings(Gemma3):
    """`setup_sharing` reads which layers share keys, `setup_own` the sizes of the embeddings."""

    types = architectures = ()
    #: Elements of a layer's embedding of a token; 0: there are none.
    own_size = 0

    def setup_sharing(self) -> None:
        config = self.config
        shared = config.integer("num_kv_shared_layers", 0, minimum=0)
        self.first_shared = max(self.layers - shared, 0)
        kinds = [window is None for window in self.windows]
        if set(kinds[self.first_shared :]) - set(kinds[: self.first_shared]):
            config.refuse(f"config: num_kv_shared_layers is {shared}: no layer of a kind is before all that share its keys and values")
            self.first_shared = self.layers
        # Published folders have what these layers would make keys and values with.
        names = tuple(f"{self.prefix}{self.layer_name.format(layer)}.self_attn.{part}." for layer in range(self.first_shared, self.layers) for part in _KEYS_AND_VALUES)
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if names and name.startswith(names))

    def setup_own(self, least: int = 1) -> None:
        self.own_rows, self.own_size = self.config.integer("vocab_size_per_layer_input"), self.config.integer("hidden_size_per_layer_input", minimum=least)

    def kept_by(self, layer: int) -> int:
        """The last layer of the same kind before those that share."""
        if layer < self.first_shared:
            return layer
        has_window = self.windows[layer] is not None
        return max(before for before in range(self.first_shared) if (self.windows[before] is not None) == has_window)

    # -- norms

    def rms_norm(self, x: Value, name: str) -> Value:
        """Without Gemma's 1."""
        return Decoder.rms_norm(self, x, name)

    def without_weight(self, x: Value) -> Value:
        """A norm that has none."""
        size = int(x.shape[-1])
        return x.rms_norm(self.step.f.constant(self.constant(f"ones.{size}", np.ones(size, np.float32))), self.eps)

    # -- a layer's embeddings

    def own_embeddings(self, ids: Value, x: Value) -> Value:
        """Of each token, an embedding for each layer, [tokens, layers, size]."""
        size, f = self.own_size, self.step.f
        table = self.weight("embed_tokens_per_layer.weight", [self.own_rows, self.layers * size])
        found = f.constant(table).embedding(ids.lt(self.own_rows).where(ids, 0))
        found = (found if found.dtype == "f32" else found.to_copy("f32")) * math.sqrt(size)
        made = self.linear(x, "per_layer_model_projection", self.layers * size, False) * (1 / math.sqrt(self.hidden))
        shape = [x.shape[0], self.layers, size]
        return (self.norm(made.view(shape), "per_layer_projection_norm") + found.view(shape)) * math.sqrt(0.5)

    def of_own(self, x: Value, name: str, index: int) -> Value:
        """What a layer makes of its embeddings."""
        gate = self.activation(self.linear(x, f"{name}.per_layer_input_gate", self.own_size, False))
        made = self.linear(gate * self.step.shared["own"].select(1, index), f"{name}.per_layer_projection", self.hidden, False)
        return self.norm(made, f"{name}.post_per_layer_input_norm")

    # -- attention

    def attention(self, x: Value, name: str, layer: int) -> Value:
        if self.kept_by(layer) == layer:
            return super().attention(x, name, layer)
        q = self.turned(self.split_heads(self.projected(x, f"{name}.q", self.heads * self.head_size), self.heads), f"{name}.q")
        return self.linear(self.attend(q, None, None, layer), f"{name}.{self.output_name}", self.hidden)

    def attend(self, q: Value, k: Any, v: Any, layer: int) -> Value:
        return super().attend(q, k, None if v is None else self.without_weight(v), layer)
