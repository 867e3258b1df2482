"""Llama 3.2 Vision, the part that reads text: a Llama, among whose layers others attend to images.
Without an image these do nothing."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..compiler.ir import Value
from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from .llama import Llama

#: Rows of the embedding behind those of the vocabulary: an image's place in a text.
_MORE = 8


class Mllama(Llama):
    types, architectures = ("mllama", "mllama_text_model"), ()
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 5e5, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(text_part(checkpoint), options)

    def setup(self) -> None:
        super().setup()
        given: Any = self.config.get("cross_attention_layers")
        if not isinstance(given, list) or any(isinstance(layer, bool) or not isinstance(layer, int) for layer in given):
            self.config.refuse(f"config: cross_attention_layers is {given!r:.80}, expected a list of layers")
            given = []
        self.of_images = frozenset(given)
        left = tuple(f"{self.prefix}{self.layer_name.format(layer)}." for layer in sorted(self.of_images))
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith(left)) if left else ()

    def kept(self, layer: int) -> Mapping[str, Sequence[int]]:
        return {} if layer in self.of_images else super().kept(layer)

    def embed(self, ids: Value) -> Value:
        return self.embedding(ids, self.embedding_name, self.vocabulary + _MORE)

    def layer(self, x: Value, name: str, index: int) -> Value:
        return x if index in self.of_images else super().layer(x, name, index)
