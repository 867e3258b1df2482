"""Falcon Mamba: Mamba 1 with norms, without weights, of what makes steps, keys and queries."""

from __future__ import annotations

import numpy as np

from ..compiler.ir import Value
from .mamba import Mamba


class FalconMamba(Mamba):
    types = ("falcon_mamba",)

    def setup(self) -> None:
        super().setup()
        self.part_eps = self.config.number("mixer_rms_eps", 1e-6)

    def normed_part(self, x: Value, name: str) -> Value:
        size = int(x.shape[-1])
        return x.rms_norm(self.step.f.constant(self.constant(f"ones.{size}", np.ones(size, np.float32))), self.part_eps)
