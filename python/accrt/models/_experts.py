"""Mixtures of experts: a token goes through few of many MLPs, which a router chooses, and takes the
sum of what they make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence, Tuple

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder


class WithExperts(Decoder):
    """A decoder whose MLPs are experts. `setup_experts` reads how many there are."""

    #: What the configuration calls the number of experts.
    count_key = "num_experts"
    #: Names of the router, of the experts, and of an expert's matrices: gate, up, down.
    router_name, experts_name = "gate", "experts"
    parts: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    #: Whether the shares of the chosen experts are made to add up to 1.
    shares_normed = True
    #: Whether one tensor may have gates and what they multiply, of all experts.
    may_join = True
    #: Whether shares multiply what experts take, and not what they give.
    shares_of_inputs = False
    gguf_names = {"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj"}

    def setup_experts(self, size_key: str = "intermediate_size") -> None:
        config = self.config
        self.experts = config.integer("num_experts" if self.is_gguf else self.count_key, maximum=1 << 12)
        self.chosen = config.integer("num_experts_per_tok")
        self.expert_size = config.integer(size_key, self.intermediate if self.is_gguf else None)
        if self.chosen > self.experts:
            config.refuse(f"config: num_experts_per_tok is {self.chosen}, and there are {self.experts} experts")
            self.chosen = self.experts

    def expert_mlp(self, x: Value, name: str) -> Value:
        """x [tokens, hidden] through the experts that the router chooses for each token."""
        shares, chosen = self.routed(x, f"{name}.{self.router_name}")
        return self._in_groups(x, f"{name}.{self.experts_name}", shares, chosen)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        """Shares and numbers of the experts of each token, [tokens, chosen]."""
        shares, chosen = self.linear(x, name, self.experts, bias=False).softmax(-1).topk(self.chosen, -1)
        return (shares / shares.sum(-1, True) if self.shares_normed else shares), chosen

    def _in_groups(self, x: Value, name: str, shares: Value, chosen: Value) -> Value:
        """Rows in the order of their experts, so that each matrix is read once, and the matrices of
        experts without a row are not."""
        ids, places = chosen.view([-1]).sort(0)
        experts = self.step.f.arange(self.experts).unsqueeze(1)
        ends = ids.unsqueeze(0).le(experts).to_copy("i64").sum(1)
        # a tensor, so that kernels are the same for all numbers
        of_each = self.step.f.constant(self.constant("experts_of_each", np.array([self.chosen], np.int64)))
        rows = x.index_select(0, places.div(of_each, rounding_mode="floor"))
        if self.shares_of_inputs:
            rows = rows * shares.view([-1]).index_select(0, places).unsqueeze(-1)
        made = self.through(rows, name, ids, ends).index_select(0, places.sort(0)[1]).view([x.shape[0], self.chosen, self.expert_width])
        return (made if self.shares_of_inputs else made * shares.unsqueeze(-1)).sum(1)

    def through(self, rows: Value, name: str, ids: Value, ends: Value) -> Value:
        """Rows in the order of their experts `ids`, each of which ends at `ends`, through these."""
        if self.may_join and not self.is_gguf and self.has(f"{name}.gate_up_proj"):
            return self.through_joined(rows, name, ends)
        gate, up, down = (self._all(name, part) for part in self.parts)
        return (self.activation(rows.grouped_linear(gate, ends)) * rows.grouped_linear(up, ends)).grouped_linear(down, ends)

    def through_joined(self, rows: Value, name: str, ends: Value) -> Value:
        """The same, of matrices that are one tensor for all experts, also the other way round."""
        f, size, width = self.step.f, self.expert_size, self.expert_width
        shapes = {"gate_up_proj": [2 * size, width], "down_proj": [width, size]}
        found = [self.checkpoint.tensors.get(self._key(f"{name}.{part}")) for part in shapes]
        turned = [one is not None and list(one.shape) == [self.experts, *shape[::-1]] for one, shape in zip(found, shapes.values())]
        # of a square matrix the other one says it
        is_turned = all(turned) or (any(turned) and 2 * size != width != size)
        both, last = (f.constant(self.weight(f"{name}.{part}", [self.experts, *(shape[::-1] if is_turned else shape)])) for part, shape in shapes.items())
        gate, up = (rows.grouped_matmul(both, ends) if is_turned else rows.grouped_linear([both], ends)).split([size, size], -1)
        made = self.activation(gate) * up
        return made.grouped_matmul(last, ends) if is_turned else made.grouped_linear([last], ends)

    # -- their matrices

    def _shape(self, part: str) -> Sequence[int]:
        return [self.expert_width, self.expert_size] if part == self.parts[2] else [self.expert_size, self.expert_width]

    @property
    def expert_width(self) -> int:
        """Of what an expert takes and gives."""
        return self.hidden

    def as_unpacked(self, key: str) -> None:
        """Packed matrices have the type that they get where they are unpacked."""
        found = self.checkpoint.tensors.get(key)
        if found is not None and found.layout != "plain":
            self.checkpoint.tensors[key] = replace(found, dtype="bf16")

    def _all(self, name: str, part: str) -> List[Value]:
        """One weight [experts, outputs, inputs], or one for each expert."""
        f, shape = self.step.f, self._shape(part)
        if not self.is_gguf:
            return [f.constant(self.weight(f"{name}.{expert}.{part}.weight", shape)) for expert in range(self.experts)]
        self.as_unpacked(self._key(f"{name}.{part}.weight"))
        return [f.constant(self.weight(f"{name}.{part}.weight", [self.experts, *shape]))]
