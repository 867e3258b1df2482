"""Attention with linear biases (ALiBi): scores grow with the position of the key, by a slope of the
head's own.

Softmax sees differences of scores alone, so a bias by the key's position is as good as one by its
distance. A key is kept with its position beside it, in two digits that 16 bits hold exactly, and a
query has its head's slope there: their product is the bias, and attention needs nothing else.
"""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from ..compiler import _bf16
from ._blocks import Decoder

#: Elements beside a key, of which four are used: kernels take keys in such portions.
MORE = 16
#: What a digit counts to. Floats of 16 bits hold whole numbers up to this.
BASE = 256


def slopes(heads: int, most: float = 8.0) -> np.ndarray:
    """Of each head, as BLOOM has them: those of the next smaller power of two, then every second
    one of the next larger."""
    near = 1 << int(math.log2(heads))
    first = 2.0 ** (-most / near * np.arange(1, near + 1))
    between = 2.0 ** (-most / (2 * near) * np.arange(1, 2 * (heads - near) + 1, 2))
    return np.concatenate([first, between])


class WithAlibi(Decoder):
    """`setup_alibi` takes what the bias of a position is, for each head."""

    slopes: "Sequence[float] | None" = None

    def setup_alibi(self, of_heads: np.ndarray) -> None:
        """Also where scores are multiplied by `scale` first: the slopes are of the results."""
        self.slopes = list(of_heads)
        if self.options.kv_type == "fp8":
            self.config.refuse("kv_type is 'fp8'; keys have their positions beside them (ALiBi), which 8 bits do not hold")
        if self.trained > BASE * BASE:
            self.config.refuse(f"config: {self.trained} positions; with ALiBi there may be {BASE * BASE}")

    @property
    def key_size(self) -> int:
        return self.head_size + (MORE if self.slopes else 0)

    def attend(self, q: Value, k: Value, v: Value, layer: int) -> Value:
        if not self.slopes:
            return super().attend(q, k, v, layer)
        scale = self.head_size**-0.5 if self.scale is None else self.scale
        steep = np.asarray(self.slopes, np.float64) / scale
        rough = _bf16.rounded(steep)
        of_head = np.zeros((1, self.heads, MORE), np.float32)
        for at, part in enumerate((rough, steep - rough)):
            of_head[0, :, at], of_head[0, :, 2 + at] = part * BASE, part
        f, tokens = self.step.f, q.shape[0]
        positions = self.step.positions.view([tokens, 1, 1])
        base = f.constant(self.constant("alibi.base", np.array([BASE], np.int32)))
        high = positions.div(base, rounding_mode="floor")
        digits = [f.constant(self.constant(f"alibi.{name}", np.eye(MORE, dtype=np.float32)[first : first + 2].sum(0))) for name, first in (("high", 0), ("low", 2))]
        place = high.to_copy("f32") * digits[0] + (positions - high * base).to_copy("f32") * digits[1]
        turned = f.constant(self.constant("alibi.slopes", of_head)).expand([tokens, self.heads, MORE])
        was, self.scale = self.scale, scale
        try:
            return super().attend(cat([q, turned], -1), cat([k, place.expand([tokens, self.kv_heads, MORE])], -1), v, layer)
        finally:
            self.scale = was
