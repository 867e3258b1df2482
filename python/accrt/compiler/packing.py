"""What kernels make of quantized weights: for each layout and family of targets the packed form
that its kernels read, if there is one.

A Form is all that is known of a quantized weight when a program is compiled; it is an attribute of
the operations on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from .encodings import LAYOUTS, Quantized

#: For each layout with kernels: meaning of the codes, the scales (types of their component,
#: "power", "e4m3" with a factor of each row, or a k layout's), and whether groups have minima
#: beside them.
_KERNELS = {
    "f8_tensor": ("f8", ""), "f8_channel": ("f8", ""), "f8_block128": ("f8", ""), "i8_channel": ("s8", ""), "i8_group": ("s8", ""),
    "i4_group": ("u4", ""), "i4_group_asym": ("u4", ""), "q8_0": ("s8", "f16"), "q4_0": ("u4", "f16"), "q4_1": ("q4", "f16", "minima"),
    "q5_0": ("u5", "f16"), "q5_1": ("q5", "f16", "minima"), "iq4_nl": ("iq4", "f16"), "q2_k": ("q2", "q2k"), "q3_k": ("u3", "q6k"),
    "q4_k": ("q4", "q4k"), "q5_k": ("q5", "q4k"), "q6_k": ("u6", "q6k"), "gptq_v1": ("u4", ""), "gptq_v2": ("u4", ""), "awq": ("u4", ""),
    "mxfp4": ("e2m1", "power"), "ggml_mxfp4": ("e2m1", "power"), "mxfp8": ("f8", "power"),
    "ct_i4_asym": ("u4", ""), "ct_i8": ("s8", ""), "ct_i8_asym": ("s8", ""), "i8_asym": ("s8", ""),
    "nvfp4": ("e2m1", "e4m3"), "ct_nvfp4": ("e2m1", "e4m3"), "ggml_nvfp4": ("e2m1", "e4m3"),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A quantized weight [*lead, n, k]. `roles`: its components and their types, ascending;
    `group`: elements of a row that share a scale; `tiles`: of rows, in a block of a CUDA kernel,
    where they are not those that n alone asks for."""

    layout: str
    n: int
    k: int
    group: int
    dtype: str
    roles: Tuple[Tuple[str, str], ...]
    lead: Tuple[int, ...] = ()
    tiles: int = 0

    @property
    def shape(self) -> Tuple[int, ...]:
        return (*self.lead, self.n, self.k)

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def name(self) -> str:
        """For texts: different forms have different names."""
        return f"{self.layout}{list(self.shape)}/{self.group}{f' in blocks of {self.tiles}' if self.tiles else ''} {self.dtype} " + " ".join(f"{role}:{type_}" for role, type_ in self.roles)

    @property
    def groups(self) -> int:
        return -(-self.k // self.group)

    def type_of(self, role: str) -> str:
        return dict(self.roles).get(role, "")

    def has(self, role: str) -> bool:
        return role in dict(self.roles)

    @property
    def is_e5m2(self) -> bool:
        return self.type_of("data") == "f8e5m2"

    @property
    def codes(self) -> str:
        """u4, u5, u6, u3 (numbers less 8 or a zero, 16, 32, 4), q4, q5, q2 (numbers), s8, e2m1, iq4
        (values by a table), e4m3, e5m2; none: no kernel reads it packed."""
        kind = _KERNELS.get(self.layout, ("", ""))[0]
        if kind == "f8":
            kind = "e5m2" if self.is_e5m2 else "e4m3"
        return "" if self.has("group_index") or self.lead else kind

    @property
    def scales(self) -> str:
        """f32, f16 or bf16, power, e4m3 with a factor of each row, or q4k, q2k, q6k: small scales
        of groups, and factors of these."""
        return _KERNELS[self.layout][1] or self.type_of("scales")

    @property
    def has_minima(self) -> bool:
        """A number beside each group's scale that is added to what the scale multiplies."""
        return "minima" in _KERNELS.get(self.layout, ())

    @property
    def layout_id(self) -> int:
        return LAYOUTS[self.layout].id


def form_of(q: Quantized) -> Form:
    roles = tuple((role, q.component_type(role)) for role in LAYOUTS[q.layout].roles if role in q.components)
    return Form(q.layout, *q.shape[-2:], q.effective_group, q.dtype, roles, tuple(q.shape[:-2]))


def packed_bytes(form: Form, family: str) -> Optional[int]:
    """Bytes of the packed form that the family's kernels read; None where there is none."""
    if not form.codes or form.n == 0 or form.k == 0:
        return None
    if family == "host":
        from .kernels import packed

        return packed.packed_bytes(form)
    from .cuda import packed as cuda_packed

    return cuda_packed.packed_bytes(form)


def grouped_form(form: Form, matrices: int, family: str) -> Form:
    """The form of each of many matrices that a grouped product reads packed."""
    if family == "host":
        return form
    from .cuda import packed as cuda_packed

    return cuda_packed.grouped_form(form, matrices)


def packs_as_one(form: Form, family: str) -> bool:
    """Whether the matrices of a weight of rank 3, each of which is as `form` says, are packed as
    one: their rows one after the other."""
    if family == "host":
        from .kernels import packed

        return packed.packs_as_one(form)
    from .cuda import packed as cuda_packed

    return cuda_packed.packs_as_one(form)


def has_rows(form: Form, family: str) -> bool:
    """Whether the family's kernels look rows up in the packed form."""
    if packed_bytes(form, family) is None:
        return False
    if family == "host":
        from .kernels import packed

        return packed.has_rows(form)
    from .cuda import packed as cuda_packed

    return cuda_packed.has_rows(form)


def activations(form: Form, family: str) -> Tuple[Any, ...]:
    """Types of x that the family's kernels multiply with the packed form."""
    return ("f32", "f16", "bf16") if family == "host" else ("f16", "bf16")
