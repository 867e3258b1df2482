"""Granite with windows in three layers of four, a sink beside the keys of each head, and rotary
embeddings of another base, or none, in each layer."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np

from ..compiler.ir import Value
from . import _rope
from ._blocks import FULL, SLIDING, Decoder
from .granite import Granite
from .granitemoe import GraniteMoe


class WithSinksAndBases(Decoder):
    """What both families have beside Granite."""

    def setup(self) -> None:
        super().setup()
        self.windows = self.windows_of([SLIDING if layer % 4 else FULL for layer in range(self.layers)])

    def setup_rope(self) -> None:
        super().setup_rope()
        config, given = self.config, self.config.get("layer_rope_theta")
        self.bases: List[Optional[float]] = [None] * self.layers  # that of the configuration
        if given is not None:
            fits = isinstance(given, list) and len(given) == self.layers and all(
                isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one < 1e30 for one in given)  # fmt: skip
            if fits:
                self.bases = [float(one) for one in given]
            else:
                config.refuse(f"config: layer_rope_theta is {given!r:.80}, expected a number from 0 for each of {self.layers} layers")
        scaled: Dict[str, Any] = _rope.settings(config)[1]
        self.rotations = {
            base: self.rope_of(config.changed(rope_scaling=None, rope_parameters={**scaled, "rope_theta": base}), self.head_size) for base in self.bases if base
        }

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def sinks(self, layer: int) -> Optional[Value]:
        return self.float(self.weight(f"{self.layer_name.format(layer)}.{self.attention_name}.sinks", [self.heads]))

    def rope(self, x: Value) -> Value:
        base = self.bases[self.step.layer]
        if base is None:
            return super().rope(x)
        if not base:
            return x
        made = self.rotations[base]
        return x.rope_at(self.step.positions, self.constant(f"rope.frequencies.{base}", made.frequencies.astype(np.float32)), made.scale, self.interleaved)


class GraniteSwa(WithSinksAndBases, Granite):
    types = ("granite_swa",)
    architectures = ()
    tied = True
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 4, "max_position_embeddings": 8192, "sliding_window": 128}


class GraniteMoeSwa(WithSinksAndBases, GraniteMoe):
    types = ("granitemoe_swa",)
    architectures = ()
    defaults = {**GraniteMoe.defaults, "sliding_window": 128}
    router_name, experts_name = "router", "experts"
    may_join = False

    def _all(self, name: str, part: str) -> List[Value]:
        tensor = "down_proj" if part == self.parts[2] else "gate_up_proj"
        found = self.step.f.constant(self.weight(f"{name}.{tensor}", self._shape(part)))
        if part != self.parts[2]:
            first = 0 if part == "gate" else self.expert_size
            found = found.slice(1, first, first + self.expert_size)
        return [found]
