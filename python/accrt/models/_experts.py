"""Mixtures of experts: a token goes through few of many MLPs, which a router chooses, and takes the
sum of what they make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from ._blocks import Decoder

#: Experts of a layer that stay packed where their matrices are: each of them then takes every
#: token. Of more, the matrices are unpacked when a program is made.
MOST_PACKED = 16


class WithExperts(Decoder):
    """A decoder whose MLPs are experts. `setup_experts` reads how many there are."""

    #: What the configuration calls the number of experts.
    count_key = "num_experts"
    #: Names of the router, of the experts, and of an expert's matrices: gate, up, down.
    router_name, experts_name = "gate", "experts"
    parts: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    #: Whether the shares of the chosen experts are made to add up to 1.
    shares_normed = True
    gguf_names = {"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj"}

    def setup_experts(self, size_key: str = "intermediate_size") -> None:
        config = self.config
        self.experts = config.integer("num_experts" if self.is_gguf else self.count_key, maximum=1 << 12)
        self.chosen = config.integer("num_experts_per_tok")
        self.expert_size = config.integer(size_key, self.intermediate if self.is_gguf else None)
        if self.chosen > self.experts:
            config.refuse(f"config: num_experts_per_tok is {self.chosen}, and there are {self.experts} experts")
            self.chosen = self.experts
        if self.options.batch_invariant:
            config.refuse("batch_invariant: products of experts have not been proved to have the same bits on GPUs")

    def expert_mlp(self, x: Value, name: str) -> Value:
        """x [tokens, hidden] through the experts that the router chooses for each token."""
        shares, chosen = self.routed(x, f"{name}.{self.router_name}")
        name = f"{name}.{self.experts_name}"
        through = self._through_each if self._is_packed(name) and self.experts <= MOST_PACKED else self._in_groups
        return through(x, name, shares, chosen)

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
        gate, up, down = (self._all(name, part) for part in self.parts)
        made = self.activation(rows.grouped_matmul(gate, ends)) * rows.grouped_matmul(up, ends)
        made = made.grouped_matmul(down, ends).index_select(0, places.sort(0)[1])
        return (made.view([x.shape[0], self.chosen, self.hidden]) * shares.unsqueeze(-1)).sum(1)

    def _through_each(self, x: Value, name: str, shares: Value, chosen: Value) -> Value:
        """Every token through every expert, with a share of zero where it was not chosen: packed
        matrices stay packed so."""
        all_shares = self.step.f.full([x.shape[0], self.experts], 0.0, x.dtype).scatter(chosen, shares, 1)
        total: Optional[Value] = None
        for expert in range(self.experts):
            gate, up = (x.linear(self._one(name, expert, part)) for part in self.parts[:2])
            made = (self.activation(gate) * up).linear(self._one(name, expert, self.parts[2]))
            made = made * all_shares.slice(1, expert, expert + 1)
            total = made if total is None else total + made
        assert total is not None
        return total

    # -- their matrices

    def _shape(self, part: str) -> Sequence[int]:
        return [self.hidden, self.expert_size] if part == self.parts[2] else [self.expert_size, self.hidden]

    def _is_packed(self, name: str) -> bool:
        names = [f"{name}.{part}" if self.is_gguf else f"{name}.0.{part}" for part in self.parts]
        found: Any = [self.checkpoint.tensors.get(self._key(f"{one}.weight")) for one in names]
        return any(one is not None and one.layout != "plain" for one in found)

    def _one(self, name: str, expert: int, part: str) -> Value:
        f = self.step.f
        if self.is_gguf:
            return f.constant(self.weight(f"{name}.{part}.weight", [self.experts, *self._shape(part)])).select(0, expert)
        return f.constant(self.weight(f"{name}.{expert}.{part}.weight", self._shape(part)))

    def _all(self, name: str, part: str) -> Value:
        """[experts, inputs, outputs]."""
        f = self.step.f
        if self.is_gguf:
            key = self._key(f"{name}.{part}.weight")
            found: Any = self.checkpoint.tensors.get(key)
            if found is not None and found.layout != "plain":
                # what they become when they are unpacked
                self.checkpoint.tensors[key] = replace(found, dtype="bf16")
            return f.constant(self.weight(f"{name}.{part}.weight", [self.experts, *self._shape(part)])).transpose(1, 2)
        # of matrices, as a view of each would have to be looked at in every pass of the compiler
        joined = cat([self._one(name, expert, part) for expert in range(self.experts)], 0)
        return joined.view([self.experts, *self._shape(part)]).transpose(1, 2)
