"""Mamba 2: mixers alone, without attention and without MLPs."""

from __future__ import annotations

from ..compiler.ir import Value
from ._scans import WithMamba2, keys_in_files, names_in_files


class Mamba2(WithMamba2):
    types = architectures = ("mamba2",)
    prefix, embedding_name, final_norm = "backbone.", "embeddings", "norm_f"
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "num_attention_heads": ("num_heads",)}
    mamba_keys = {"heads": "num_heads", "head_size": "head_dim", "groups": "n_groups", "state_size": "state_size", "taps": "conv_kernel", "expand": "expand",
                  "conv_bias": "use_conv_bias", "bias": "use_bias"}  # fmt: skip
    gguf_names = {"attn_norm": "norm", **names_in_files("mixer")}
    # of those, numbers of heads and sizes of MLPs are 0
    gguf_keys = {**keys_in_files("conv_kernel", "num_heads", "n_groups", "state_size"), "attention.head_count": "", "feed_forward_length": ""}
    defaults = {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 1 << 20}

    def setup(self) -> None:
        config = self.config
        super().setup()
        self.setup_mamba()
        if not config.flag("rms_norm", True):
            config.refuse("config: rms_norm is False, which this family does not do")

    def setup_rope(self) -> None:
        """There are none."""

    def layer(self, x: Value, name: str, index: int) -> Value:
        return x + self.mamba(self.norm(x, f"{name}.norm"), f"{name}.mixer", index)
