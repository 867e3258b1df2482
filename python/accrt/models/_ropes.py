"""Layers with a window that have rotary embeddings of their own; factors of LongRoPE in GGUF files;
queries that grow with the positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional

import numpy as np

from ..compiler.ir import Value
from . import _rope
from ._blocks import FULL, SLIDING, Decoder


class TwoRopes(Decoder):
    """A decoder of layers with a window and of others, whose rotary embeddings alone are scaled."""

    #: What configurations mean that do not say it.
    theta = local_theta = 10000.0
    windows: List[Optional[int]]

    def setup_rope(self) -> None:
        config = self.config
        given = config.get("rope_parameters") or {}
        both = {kind: given.get(kind) or {} for kind in (FULL, SLIDING)} if isinstance(given, dict) and (FULL in given or SLIDING in given) else {}
        base = config.number("rope_local_base_freq", self.local_theta, minimum=1e-6)
        full, local = config.changed(rope_parameters=both.get(FULL, given)), config.changed(rope_parameters=both.get(SLIDING), rope_scaling=None, rope_theta=base)
        full.values.setdefault("rope_theta", self.theta)
        self.rotation, self.local = self.rope_of(full, self.head_size), self.rope_of(local, self.head_size)

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def has_own_rope(self, layer: int) -> bool:
        return self.windows[layer] is not None

    def rope(self, x: Value) -> Value:
        if not self.has_own_rope(self.step.layer):
            return super().rope(x)
        return x.rope_at(self.step.positions, self.constant("rope.local_frequencies", self.local.frequencies.astype("f4")), self.local.scale, self.interleaved)


class TurnedInWindows(Decoder):
    """A decoder with norms of queries and keys, which rotary embeddings turn in layers with a
    window alone."""

    windows: List[Optional[int]]

    def turned(self, x: Value, name: str) -> Value:
        x = self.rms_norm(x, f"{name}_norm")
        return x if self.windows[self.step.layer] is None else self.rope(x)


class FactorsInFiles(Decoder):
    """A decoder whose frequencies may be divided by the factors of LongRoPE."""

    ignored = (*Decoder.ignored, "rope_factors_long.weight", "rope_factors_short.weight")
    factors = ""

    def setup_rope(self) -> None:
        """GGUF files have the factors of LongRoPE as tensors, and what cos and sin are multiplied
        by."""
        super().setup_rope()
        if "rope_factors_short.weight" in self.checkpoint.tensors:
            original = self.config.integer("original_max_position_embeddings", self.trained)
            is_long = self.options.max_position > original
            self.factors = f"rope_factors_{'long' if is_long else 'short'}.weight"
            self.trained = self.trained if is_long else min(self.trained, original)
            self.rotation = replace(self.rotation, scale=self.config.number("rope_attention_factor", 1.0))

    def frequencies(self) -> Any:
        if not self.factors:
            return super().frequencies()
        plain = self.constant("rope.frequencies", self.rotation.frequencies.astype("f4"))
        return self.step.f.constant(plain) / self.float(self.weight(self.factors, [len(self.rotation.frequencies)]))

    def _key(self, name: str) -> str:
        return name if name == self.factors else super()._key(name)


class Growing(Decoder):
    """Queries may be multiplied by more, the farther they are from the beginning."""

    def setup_growing(self) -> None:
        """By how much they grow, and from where on, where rotary embeddings say it."""
        given: Any = _rope.settings(self.config)[1]
        found = [given.get("llama_4_scaling_beta") or 0.0, given.get("original_max_position_embeddings") or self.trained]
        if any(isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e30 for number in found):
            self.config.refuse(f"config: llama_4_scaling_beta is {found[0]!r}, and original_max_position_embeddings {found[1]!r}, expected numbers")
            found = [0.0, 1.0]
        self.beta, self.original = float(found[0]), max(float(found[1]), 1.0)

    def growing(self, positions: Value, original: float, beta: float) -> Value:
        """1 up to `original` positions, then more with each time that many, [tokens, 1, 1]."""
        f = self.step.f
        step, by = (f.constant(self.constant(f"growing.{name}", np.array([number], np.float32))) for name, number in (("step", original), ("by", beta)))
        return ((positions.to_copy("f32") / step).floor() + 1.0).log().view([positions.shape[0], 1, 1]) * by + 1.0
