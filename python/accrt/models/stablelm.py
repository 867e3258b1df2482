"""StableLM: Llama with layer norms, of which a part of each head is turned; in some, attention and
MLP are side by side, and queries and keys have norms of their own for each head."""

from __future__ import annotations

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from ._blocks import Decoder


class StableLM(Decoder):
    types = architectures = ("stablelm",)
    turns_part = True
    defaults = {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "max_position_embeddings": 4096}
    keys = {"rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon")}

    def setup(self) -> None:
        super().setup()
        config = self.config
        config.flag("use_qkv_bias")  # the tensors say it
        self.is_parallel, self.qk_normed = config.flag("use_parallel_residual"), config.flag("qk_layernorm")
        if self.is_gguf:  # where the tensors say it
            at = self.layer_name.format(0)
            self.is_parallel = not self.has(f"{at}.post_attention_layernorm.weight")
            self.qk_normed = self.has(f"{at}.self_attn.q_norm.weight")

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x.layer_norm(None, None, self.eps) * self._of_heads(x, name) if self.qk_normed else x)

    def _of_heads(self, x: Value, name: str) -> Value:
        shape = [int(size) for size in x.shape[1:]]
        if self.is_gguf:
            return self.float(self.weight(f"{name}_norm.weight", shape))
        return cat([self.float(self.weight(f"{name}_layernorm.norms.{head}.weight", shape[1:])) for head in range(shape[0])], 0).view(shape)

    def layer(self, x: Value, name: str, index: int) -> Value:
        return self.beside(x, name, index) if self.is_parallel else super().layer(x, name, index)
