"""OPT: learned positions, which begin at the third row, layer norms, biases everywhere."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Opt(Decoder):
    types = ("opt",)
    defaults = {"ffn_dim": 3072, "activation_function": "relu"}
    keys = {"intermediate_size": ("ffn_dim",), "hidden_act": ("activation_function",)}
    prefix = "model.decoder."
    final_norm, output_name = "final_layer_norm", "out_proj"
    tied = True
    act = "relu"

    def setup(self) -> None:
        config = self.config
        config.values["rms_norm_eps"] = 1e-5  # no configuration has it
        super().setup()
        if not config.flag("do_layer_norm_before", True):
            config.refuse("config: do_layer_norm_before is false, which this family does not do")
        if config.get("word_embed_proj_dim", self.hidden) != self.hidden:
            config.refuse(f"config: word_embed_proj_dim is {config.get('word_embed_proj_dim')!r}; it is hidden_size, {self.hidden}")
        if config.flag("_remove_final_layer_norm") or not config.flag("layer_norm_elementwise_affine", True):
            config.refuse("config: _remove_final_layer_norm and layer norms without weights, which this family does not do")
        config.flag("enable_bias", True)  # the tensors say it

    def setup_rope(self) -> None:
        """Positions are embedded."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return x

    #: What embeddings of tokens are multiplied by.
    of_embedding = 1.0

    def embed(self, ids: Value) -> Value:
        x = super().embed(ids)
        return (x if self.of_embedding == 1 else x * self.of_embedding) + self.embedding(self.step.positions + 2, "embed_positions", self.trained + 2)

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.self_attn_layer_norm"), f"{name}.self_attn", index) + x
        return self.in_two(self.norm(x, f"{name}.final_layer_norm"), name, "fc1", "fc2") + x
