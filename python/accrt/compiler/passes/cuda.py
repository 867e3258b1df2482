"""Passes of CUDA functions alone: a lower precision where the module asks for one, and products
with weights as they lie."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from .. import ops
from ..declared import FLOATS
from ..ir import Function, Module, Op, Value
from .rewrite import constant_derived, rewrite

#: Calculated in the lower type whatever their operands are: their kernels add up in f32.
_LOWERED = (
    "aten.linear", "aten.matmul", "aten.mm", "aten.bmm", "aten.addmm", "aten.scaled_dot_product_attention",
    "aten.layer_norm", "aten.rms_norm", "aten.softmax", "aten.embedding", "accrt.rope", "accrt.rope_at", "accrt.paged_attention", "accrt.grouped_matmul",
    *(f"accrt.lora_{half}{parts}" for half in ("shrink", "expand") for parts in ("", 2, 3)),
)  # fmt: skip
#: Calculated in the lower type where an operand has it already.
_FOLLOWING = ("aten.add", "aten.gelu", "aten.silu", "aten.relu", "aten.tanh", "aten.sigmoid", "aten.cat")
#: Operands that stay as they are: masks, indices, weights of norms, sums of low-rank products.
_KEPT = {"aten.scaled_dot_product_attention": (3,), "aten.layer_norm": (1, 2), "aten.rms_norm": (1,), "accrt.rope_at": (2,), **{f"accrt.lora_expand{parts}": (1,) for parts in ("", 2, 3)}}


def lower_precision(module: Module) -> None:
    """f32 values become values of the type that `module.compute["cuda"]` names, between the
    operations that gain by it; what a function takes and gives, states and all else keep their
    types."""
    dtype = module.compute.get("cuda", "")
    if dtype:
        for function in [f for f in module.functions.values() if not f.prepare]:
            _lower(function, dtype)


def _lower(function: Function, dtype: str) -> None:
    derived = constant_derived(function)

    def low(value: Value) -> Value:
        """The value in the lower type; what was only raised from it is taken as it was."""
        source = _raised_from(value, dtype)
        return source if source is not None else value.to_copy(dtype)

    def visit(op: Op) -> Optional[Sequence[Value]]:
        if op.name == "aten._to_copy" and op.result.dtype == dtype:
            # there and back is where it was
            source = _raised_from(op.operands[0], dtype)
            return None if source is None else [source]
        if len(op.results) != 1 or op.result.dtype != "f32" or not op.operands or id(op.result) in derived:
            return None
        raised = [v is not None and _raised_from(v, dtype) is not None for v in op.operands]
        if ops.OPS.get(op.name) is not None and ops.OPS[op.name].view:
            if not raised[0]:
                return None
        elif op.name not in _LOWERED and not (op.name in _FOLLOWING and any(raised)):
            return None
        kept = _KEPT.get(op.name, ())
        operands = [v if v is None or v.dtype != "f32" or i in kept else low(v) for i, v in enumerate(op.operands)]
        made = function.add(op.name, operands, op.attrs).result
        return [made if made.dtype == "f32" else made.to_copy("f32")]

    rewrite(function, visit)


def _raised_from(value: Value, dtype: str) -> Optional[Value]:
    if value.op is None or value.op.name != "aten._to_copy" or value.dtype != "f32":
        return None
    source = value.op.operands[0]
    return source if source.dtype == dtype else None


def form_products(module: Module) -> None:
    """x @ w with a weight w becomes a product that takes bias, activation and residual."""
    for function in module.functions.values():
        if function.prepare:
            continue
        derived: Dict[int, List[str]] = constant_derived(function)

        def visit(op: Op) -> Optional[Sequence[Value]]:
            if op.name != "aten.matmul":
                return None
            x, weight = op.operands
            if id(weight) not in derived or id(x) in derived or weight.rank != 2 or x.dtype not in FLOATS or weight.dtype not in FLOATS:
                return None
            if not all(isinstance(size, int) and size > 0 for size in weight.shape):
                return None
            attrs = {"columns": weight.shape[1], "activation": "none", "dtype": op.result.dtype}
            return [function.add("accrt.product", [x, weight, None, None], attrs).result]

        rewrite(function, visit)
