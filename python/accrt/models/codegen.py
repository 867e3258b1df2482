"""CodeGen: GPT-J with one product for queries, values and keys, whose rows are in the order of the
four machines that it was trained on."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from .gptj import GPTJ

_MACHINES = 4


class CodeGen(GPTJ):
    types = ("codegen",)

    def setup(self) -> None:
        super().setup()
        self.config.get("n_ctx")  # n_positions says it
        if self.heads % _MACHINES:
            self.config.refuse(f"config: n_head is {self.heads}; in this family it is a multiple of {_MACHINES}")

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        part = self.heads * self.head_size // _MACHINES
        joined = self.linear(x, f"{name}.qkv_proj", 3 * self.heads * self.head_size).view([x.shape[0], _MACHINES, 3 * part])
        q, v, k = (piece.clone().view([x.shape[0], self.heads, self.head_size]) for piece in joined.split([part] * 3, -1))
        return self.rope(q), self.rope(k), v
