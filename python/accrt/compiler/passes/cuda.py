"""Passes of CUDA functions alone: a lower precision where the module asks for one, and products
with weights as they lie."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .. import ops
from ..declared import FLOATS
from ..ir import Block, Function, Module, Op, Value
from ..ops.lora import FACTORS, RECORD_ADAPTERS, SECOND_FACTORS
from .fuse import activation_of
from .rewrite import constant_derived, rewrite, uses
from .tidy import rewrite_tidily

#: Calculated in the lower type whatever their operands are: their kernels add up in f32.
_LOWERED = (
    "aten.linear", "aten.matmul", "aten.mm", "aten.bmm", "aten.addmm", "aten.scaled_dot_product_attention",
    "aten.layer_norm", "aten.rms_norm", "aten.softmax", "aten.embedding", "aten.conv2d", "aten.group_norm", "accrt.rope", "accrt.rope_at", "accrt.paged_attention", "accrt.grouped_matmul",
    *(f"accrt.lora_{half}{parts}" for half in ("shrink", "expand") for parts in ("", 2, 3)),
)  # fmt: skip
#: Calculated in the lower type where an operand has it already.
_FOLLOWING = ("aten.add", "aten.gelu", "aten.silu", "aten.relu", "aten.tanh", "aten.sigmoid", "aten.cat", "aten.index_select", "aten.max_pool2d", "aten.avg_pool2d")
#: Ranks, rounded up to 16, of the parts that a block of the second half of an adapter's product
#: has: two with a gate, else one. As lora_tiles.cuh has it.
MOST_RANKS = 256
#: Types of 16 bits.
LOW = ("f16", "bf16")
#: Operands that stay as they are: masks, indices, weights of norms, sums of low-rank products.
_KEPT = {"aten.scaled_dot_product_attention": (3,), "aten.layer_norm": (1, 2), "aten.group_norm": (1, 2), "aten.rms_norm": (1,), "accrt.rope_at": (2,), "accrt.paged_attention": (4,), **{f"accrt.lora_expand{parts}": (1,) for parts in ("", 2, 3)}}


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


# ---- Products with what stands beside them -------------------------------------------------------


def join_products(module: Module) -> None:
    """The norm before a product and the gate after it go to the product: with few rows, one kernel
    makes all three. Not where a row's bits may not depend on the number of rows."""
    if module.batch_invariant:
        return
    for function in module.functions.values():
        if function.prepare:
            continue
        for join in (_with_gate, _with_norm, _with_cast):
            used = uses(function)
            rewrite_tidily(function, lambda op, join=join, used=used: join(op, used))


def _with_gate(op: Op, used: Dict[int, List[Any]]) -> Optional[Sequence[Value]]:
    """A gate of a product's columns."""
    for product, activation in _gates(op, used, "accrt.product"):
        if any(v is not None for v in product.operands[2:]) or product.attrs["activation"] != "none":
            continue
        attrs = {**product.attrs, "columns": product.attrs["columns"] // 2, "activation": activation, "eps": None, "gated": True}
        return [op.block.function.add("accrt.step_product", [*product.operands[:2], None, None], attrs).result]
    return None


def join_adapter_halves(module: Module) -> None:
    """Both halves of what adapters add to a product become one operation behind it, with the gate
    that follows: a kernel beside the product takes multiprocessors from it. Tokens are sorted by
    adapter once for all of them."""
    for function in [f for f in module.functions.values() if not f.prepare]:
        groups: Groups = {}
        for join in (_adapted_gate, _adapted):
            used = uses(function)
            rewrite_tidily(function, lambda op, join=join, used=used: join(op, used, groups))
        for value in groups.values():
            _as_early_as_possible(value.op)


def _as_early_as_possible(op: Op) -> None:
    """Behind what makes its operand; first where that stands outside the block."""
    others = [other for other in op.block.ops if other is not op]
    source = op.operands[0].op
    place = others.index(source) + 1 if source in others else 0
    op.block.ops = [*others[:place], op, *others[place:]]


Groups = Dict[Tuple[int, int, int], Value]


def _adapted_gate(op: Op, used: Dict[int, List[Any]], groups: Groups) -> Optional[Sequence[Value]]:
    for expand, activation in _gates(op, used, "accrt.lora_expand2"):
        if expand.attrs["factors"].type.shape[2] == expand.attrs["factors1"].type.shape[2]:
            return _both_halves(op, expand, used, activation, groups)
    return None


def _adapted(op: Op, used: Dict[int, List[Any]], groups: Groups) -> Optional[Sequence[Value]]:
    return _both_halves(op, op, used, None, groups) if op.name.startswith("accrt.lora_expand") else None


def _both_halves(op: Op, expand: Op, used: Dict[int, List[Any]], gate: Optional[str], groups: Groups) -> Optional[Sequence[Value]]:
    """Where a block holds what is between them."""
    y, shrunk, index = expand.operands
    shrink, parts = shrunk.op, expand.name[len("accrt.lora_expand") :]
    if shrink is None or shrink.name != "accrt.lora_shrink" + parts or shrink.block is not op.block or len(used[id(shrunk)]) != 1:
        return None
    x = shrink.operands[0]
    first, second = ([o.attrs[name] for name in FACTORS if name in o.attrs] for o in (shrink, expand))
    kinds = {x.dtype, y.dtype, *(state.type.dtype for state in (*first, *second))}
    ranks = {state.type.shape[1] for state in (*first, *second)}
    if shrink.operands[1] is not index or len(kinds) != 1 or not kinds <= set(LOW) or len(ranks) != 1:
        return None
    counts = {state.type.shape[0] for state in (*first, *second)}
    adapters = min((count for count in counts if isinstance(count, int)), default=0)
    if len(counts) != 1 or not 0 < adapters <= RECORD_ADAPTERS or (2 if gate else 1) * -(-min(ranks) // 16) * 16 > MOST_RANKS:
        return None
    function, key = op.block.function, (id(op.block), id(index), adapters)
    if key not in groups:
        groups[key] = function.add("accrt.token_groups", [index], {"adapters": adapters}).result
    attrs = {"gate": gate, **dict(zip(FACTORS, first)), **dict(zip(SECOND_FACTORS, second))}
    return [function.add("accrt.lora_pair" + parts, [y, x, index, groups[key]], attrs).result]


def _gates(op: Op, used: Dict[int, List[Any]], name: str) -> Iterator[Tuple[Op, str]]:
    """Operations `name` of whose columns the value is activation(first half) * (second half), used
    for nothing else, and the activation."""
    times = op.operands[0].op if op.name == "aten._to_copy" and op.result.dtype in LOW else op
    if times is None or times.name != "aten.mul" or op.result.dtype not in LOW or (times is not op and len(used[id(times.result)]) != 1):
        return
    for gate, up in (times.operands, times.operands[::-1]):
        gate, up = _lowered(gate), _lowered(up)
        active = gate.op
        activation = None if active is None else activation_of(active)
        if active is None or activation is None or up.op is None:
            continue
        halves = active.operands[0].op, up.op
        source = halves[0].operands[0].op if halves[0] is not None and halves[0].name == "aten.slice" else None
        if source is None or source.name != name or source.block is not op.block or op.result.dtype != source.result.dtype:
            continue
        if len(used[id(source.result)]) == 2 and all(len(used[id(half.result)]) == 1 for half in halves) and _are_halves(source, halves):
            yield source, activation


def _lowered(value: Value) -> Value:
    """What a value was raised to f32 from."""
    raised = value.op is not None and value.op.name == "aten._to_copy" and value.dtype == "f32" and value.op.operands[0].dtype in LOW
    return value.op.operands[0] if raised else value


def _are_halves(product: Op, halves: Sequence[Op]) -> bool:
    columns = product.result.shape[-1]
    for half, bounds in zip(halves, ((0, columns // 2), (columns // 2, columns))):
        if half.name != "aten.slice" or half.operands[0] is not product.result or half.attrs["step"] != 1 or columns % 2:
            return False
        if ops.axis_of(half.attrs["dim"], product.result.rank) != product.result.rank - 1 or tuple(ops.slice_bounds(half)) != bounds:
            return False
    return True


def _with_norm(op: Op, used: Dict[int, List[Any]]) -> Optional[Sequence[Value]]:
    if op.name not in ("accrt.product", "accrt.step_product"):
        return None
    norm = op.operands[0].op
    if norm is None or norm.name != "aten.rms_norm" or norm.block is not op.block or len(used[id(norm.result)]) != 1:
        return None
    x, weight = norm.operands
    residual = op.operands[3] if op.name == "accrt.product" else None
    if x.dtype not in LOW or weight is None or weight.dtype != "f32" or residual is not None:
        return None
    bias = op.operands[2] if op.name == "accrt.product" else op.operands[3]
    attrs = {"gated": False, **op.attrs, "eps": norm.attrs["eps"]}
    return [op.block.function.add("accrt.step_product", [x, op.operands[1], weight, bias], attrs).result]


def _with_cast(op: Op, used: Dict[int, List[Any]]) -> Optional[Sequence[Value]]:
    """Results of a function in f32 come so from the product's sums."""
    product = op.operands[0].op if op.name == "aten._to_copy" and op.result.dtype == "f32" else None
    if product is None or product.name not in ("accrt.product", "accrt.step_product") or product.block is not op.block:
        return None
    if product.result.dtype not in LOW or product.attrs.get("gated") or len(used.get(id(product.result), ())) != 1:
        return None
    if any(user is not None for user in used.get(id(op.result), ())) or (product.name == "accrt.product" and product.operands[3] is not None):
        return None
    return [op.block.function.add(product.name, product.operands, {**product.attrs, "dtype": "f32"}).result]


# ---- Rotations and what is written of them -------------------------------------------------------


def join_rotations(module: Module) -> None:
    """Queries and keys that are turned by the same angles, and keys and values that are written to
    the same slots, become one operation: a step of few rows is a chain of small kernels."""
    for function in module.functions.values():
        for block in function.body.blocks():
            while True:
                used = uses(function)
                found = next((f for f in (_rotation_of(block, at, used) for at in range(len(block.ops))) if f), None)
                if found is None:
                    break
                _join_rotation(function, block, *found)


def join_turned_products(module: Module) -> None:
    """A product of few rows whose columns are queries, keys and values, and their rotation: one row
    has one kernel for both. Not where a row's bits may not depend on the number of rows."""
    if module.batch_invariant:
        return
    for function in [f for f in module.functions.values() if not f.prepare]:
        used = uses(function)
        rewrite_tidily(function, lambda op, used=used: _turned(op, used))


def _turned(op: Op, used: Dict[int, List[Any]]) -> Optional[Sequence[Value]]:
    if op.name != "accrt.rope_scatter":
        return None
    slices = [_sliced(value, used) for value in op.operands[:3]]
    product = slices[0].operands[0].op if slices[0] is not None else None
    if product is None or product.name not in ("accrt.product", "accrt.step_product") or product.block is not op.block or len(used[id(product.result)]) != 3:
        return None
    if product.attrs["activation"] != "none" or product.attrs.get("gated") or product.result.dtype != op.result.dtype or product.result.rank != 2:
        return None
    if product.name == "accrt.product" and product.operands[3] is not None:
        return None
    if any(value.dtype not in LOW for value in (*product.operands[:2], product.result)):
        return None
    end = 0
    for part, value in zip(slices, op.operands[:3]):
        width = value.shape[1] * value.shape[2]
        if part is None or part.operands[0] is not product.result or part.attrs["step"] != 1 or ops.axis_of(part.attrs["dim"], 2) != 1:
            return None
        if tuple(ops.slice_bounds(part)) != (end, end + width):
            return None
        end += width
    if end != product.attrs["columns"]:
        return None
    normed = product.name == "accrt.step_product"
    norm, bias = (product.operands[2], product.operands[3]) if normed else (None, product.operands[2])
    attrs = {"heads": op.operands[0].shape[1], "dtype": op.result.dtype, "eps": product.attrs["eps"] if normed else None}
    attrs.update({name: op.attrs[name] for name in ("keys", "values", "scale", "interleaved")})
    return [op.block.function.add("accrt.turned_product", [*product.operands[:2], norm, bias, *op.operands[3:]], attrs).result]


def _sliced(value: Value, used: Dict[int, List[Any]]) -> Optional[Op]:
    """The slice that a value of three axes is a view of, where nothing else uses either."""
    view = value.op
    if view is None or view.name != "aten.view" or len(used[id(value)]) != 1 or any(not isinstance(size, int) for size in value.shape[1:]):
        return None
    part = view.operands[0].op
    return part if part is not None and part.name == "aten.slice" and part.result.rank == 2 and len(used[id(part.result)]) == 1 else None


Rotation = Tuple[Op, Op, Op, Op]


def _rotation_of(block: Block, at: int, used: Dict[int, List[Any]]) -> Optional[Rotation]:
    """The rotation of queries, that of keys, and both writes, where the operation at this place is
    the one that writes keys."""
    write_k = block.ops[at]
    turn_k = write_k.operands[0].op if write_k.name == "accrt.state_scatter" else None
    if turn_k is None or turn_k.name != "accrt.rope_at" or turn_k.block is not block or len(used[id(turn_k.result)]) != 1:
        return None
    write_v = next((op for op in block.ops[at + 1 :] if op.name == "accrt.state_scatter"), None)
    turn_q = next((op for op in reversed(block.ops[:at]) if op.name == "accrt.rope_at" and op is not turn_k), None)
    if write_v is None or turn_q is None or not _fit(turn_q, turn_k, write_k, write_v):
        return None
    members = (turn_q, turn_k, write_k, write_v)
    places = [block.ops.index(op) for op in members]
    between = [op for op in block.ops[min(places) : max(places)] if op not in members]
    late = [op for op in block.ops[: places[3]] if any(v is turn_q.result for v in op.operands)]
    if late or any(op.regions or ops.OPS[op.name].effect or ops.OPS[op.name].states for op in between):
        return None
    return members


def _fit(turn_q: Op, turn_k: Op, write_k: Op, write_v: Op) -> bool:
    q, k, v = turn_q.operands[0], turn_k.operands[0], write_v.operands[0]
    states = write_k.attrs["state"], write_v.attrs["state"]
    same = all(a is b for a, b in zip(turn_q.operands[1:], turn_k.operands[1:])) and write_k.operands[1] is write_v.operands[1]
    same = same and dict(turn_q.attrs) == dict(turn_k.attrs) and states[0] is not states[1]
    if not same or v.rank != 3 or len({q.dtype, k.dtype, v.dtype, *(s.type.dtype for s in states)}) != 1:
        return False
    leads = [tuple(map(str, s.type.shape[: s.type.rank - 2])) for s in states]
    return leads[0] == leads[1] and k.shape[1] == v.shape[1] and q.shape[2] == k.shape[2] and q.dtype in ("f32", "f16", "bf16")


def _join_rotation(function: Function, block: Block, turn_q: Op, turn_k: Op, write_k: Op, write_v: Op) -> None:
    """Where the last write stood."""
    operands = [turn_q.operands[0], turn_k.operands[0], write_v.operands[0], *turn_q.operands[1:], write_k.operands[1]]
    before, function._label = function._label, write_v.label
    with function.inside(block):
        made = function.add("accrt.rope_scatter", operands, {"keys": write_k.attrs["state"], "values": write_v.attrs["state"], **turn_q.attrs})
    function._label = before
    block.ops.remove(made)
    block.ops[block.ops.index(write_v)] = made
    block.ops = [op for op in block.ops if op not in (turn_q, turn_k, write_k)]
    for op in function.body.walk():
        op.operands = [made.result if v is turn_q.result else v for v in op.operands]
    for inner in function.body.blocks():
        inner.yields = [made.result if v is turn_q.result else v for v in inner.yields]
    for result in function.results:
        result.value = made.result if result.value is turn_q.result else result.value
