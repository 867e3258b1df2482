"""BioGPT: OPT by other names, with scaled embeddings."""

from __future__ import annotations

import math

from .opt import Opt


class BioGpt(Opt):
    types = ("biogpt",)
    defaults = {"max_position_embeddings": 1024}
    keys = {}
    prefix, final_norm, head_name = "biogpt.", "layer_norm", "output_projection"
    act = "gelu"
    # transformers does not use "layer_norm_eps": all norms have 1e-5, as those of OPT

    def setup(self) -> None:
        super().setup()
        self.of_embedding = math.sqrt(self.hidden) if self.config.flag("scale_embedding", True) else 1.0
