"""Selection: which kernel does an operation, and with what arguments.

`lower(op, operands, results)` gives a Lowering for operands and results of known types, shapes and
strides; a kernel that cannot take them says why by ValueError, and the caller gives it contiguous
ones, or decomposes the operation. Weights and plain tensors differ by their encoding alone, so
another layout is another entry here and no new operation.

Each family of targets ("host", "cuda") has rules of its own; here are those of the host, cuda/ has
the others. Several rules may stand for one operation: they are tried from the highest priority
down.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..bundle_writer.expressions import less_equal, logical_or
from . import arguments
from . import expr as ex
from . import ops
from .declared import TensorType
from .ir import IRError, Op
from .verifier import late_symbols
from .kernels import attention, conv, elementwise, fused, gradients, lora, matmul, ordering, packed, paged, sampling, scan, tensor_ops
from .kernels.kerneldef import FAMILIES, KernelDef, Launch, TensorSpec
from .kernels.kerneldef import launch as make_launch

#: A bound operand: ("in", index of the operand), ("out", index of the result), ("temporary", index
#: of the temporary) or ("state", index among the states that the operation touches, as
#: ops.states_of has them).
Binding = Tuple[str, int]


@dataclass(frozen=True)
class Lowering:
    """One launch, and which operand or result each of its operands is. `before`: launches that come
    first, in order; `temporaries`: memory that they hand on. `alternatives` are (condition,
    lowering): the first whose condition is not zero when a plan is made is done in its place, where
    that is known then; they have no temporaries."""

    launch: Launch
    bindings: Mapping[str, Binding]
    before: Tuple["Lowering", ...] = ()
    temporaries: Tuple[TensorType, ...] = ()
    alternatives: Tuple[Tuple[Any, "Lowering"], ...] = ()


Specs = Sequence[Optional[TensorSpec]]
Rule = Callable[[Op, Specs, Specs], Lowering]
_RULES: Dict[str, Dict[str, List[Tuple[int, Rule]]]] = {family: {} for family in FAMILIES}


def rule(name: str, family: str = "host", priority: int = 0) -> Callable[[Rule], Rule]:
    """Registers a function (operation, specs of operands, specs of results) -> Lowering."""

    def register(function: Rule) -> Rule:
        rules = _RULES[family].setdefault(name, [])
        rules.append((priority, function))
        rules.sort(key=lambda item: -item[0])
        return function

    return register


_rule = rule


def _rules(name: str, family: str) -> Sequence[Tuple[int, Rule]]:
    if family == "cuda":
        from . import cuda  # noqa: F401  - registers its rules when first asked for
    return _RULES[family].get(name, ())


def has_rule(name: str, family: str = "host") -> bool:
    return bool(_rules(name, family))


def lower(op: Op, operands: Specs, results: Specs, family: str = "host") -> Lowering:
    """The launch for an operation. Raises ValueError, saying why, where its kernels cannot take
    these operands."""
    reasons = []
    for _priority, attempt in _rules(op.name, family):
        try:
            return attempt(op, operands, results)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons) or f"no {family} kernel does {op.name}")


def has_clusters(op: Op) -> bool:
    """Whether all devices that it is compiled for have clusters of blocks."""
    targets = op.results[0].function.module.targets
    return bool(targets) and set(targets) <= {"sm_90"}


def is_batch_invariant(op: Op) -> bool:
    """Whether the module asks for products whose rows do not depend on how many there are."""
    return op.results[0].function.module.batch_invariant


def contiguous(type_: TensorType) -> TensorSpec:
    """The spec of a tensor that lies in memory row by row."""
    strides: List[Any] = []
    step: Any = 1
    for size in reversed(type_.shape):
        strides.append(step)
        step = ex.simplify(ex.constant(step) * size)
    return TensorSpec(type_.dtype, type_.shape, tuple(reversed(strides)))


def supported(op: Op, family: str = "host") -> bool:
    """Whether a kernel does the whole operation, at least on contiguous operands."""
    specs = [None if v is None else contiguous(v.type) for v in op.operands]
    try:
        lower(op, specs, [contiguous(v.type) for v in op.results], family)
    except ValueError:
        return False
    return True


def named(launch: Launch, **bindings: Optional[Binding]) -> Lowering:
    return Lowering(launch, {name: binding for name, binding in bindings.items() if binding is not None})


def _in(op: Op, index: int) -> Optional[Binding]:
    return ("in", index) if index < len(op.operands) and op.operands[index] is not None else None


OUT: Binding = ("out", 0)


@_rule("accrt.elementwise")
def _elementwise(op: Op, operands: Specs, results: Specs) -> Lowering:
    program, numbers = elementwise.with_arguments(op.attrs["program"])
    made = elementwise.lower(program, operands, results, symbols=op.attrs["symbols"], scalars=numbers)
    bindings: Dict[str, Binding] = {f"x{i}": ("in", i) for i in range(len(operands))}
    bindings.update({f"y{i}": ("out", i) for i in range(len(results))})
    return Lowering(made, bindings)


@_rule("accrt.pack")
def _pack(op: Op, operands: Specs, results: Specs) -> Lowering:
    return named(matmul.lower_pack(operands[0], results[0]), b=("in", 0), packed=OUT)


@_rule("accrt.matmul_packed")
def _matmul_packed(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, packed, bias, residual = operands
    made = matmul.lower_matmul_packed(x, packed, results[0], bias, residual, op.attrs["activation"])
    return named(made, a=("in", 0), b=("in", 1), bias=_in(op, 2), residual=_in(op, 3), out=OUT)


@_rule("accrt.conv_packed")
def _conv_packed(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    made = conv.lower_conv(x, weight, results[0], at["window"], at["groups"], bias, residual, at["activation"], at["last"])
    return named(made, x=("in", 0), w=("in", 1), bias=_in(op, 2), residual=_in(op, 3), out=OUT)


@_rule("accrt.window")
def _window(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    made = conv.lower_window(at["kind"], x, results[0], at["window"], weight, bias, residual, at["activation"], at["last"])
    return named(made, x=("in", 0), w=_in(op, 1), bias=_in(op, 2), residual=_in(op, 3), out=OUT)


@_rule("accrt.group_norm_last")
def _group_norm(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    made = conv.lower_group_norm(x, results[0], at["groups"], at["eps"], weight, bias, residual, at["activation"], at["last"])
    return named(made, x=("in", 0), weight=_in(op, 1), bias=_in(op, 2), residual=_in(op, 3), out=OUT)


@_rule("aten.matmul")
def _matmul(op: Op, operands: Specs, results: Specs) -> Lowering:
    return named(matmul.lower_matmul(operands[0], operands[1], results[0]), a=("in", 0), b=("in", 1), out=OUT)


@_rule("accrt.pack_quantized")
def _pack_quantized(op: Op, operands: Specs, results: Specs) -> Lowering:
    return named(packed.lower_prepare(op.attrs["form"]), **roles_of(op), out=OUT)


@_rule("accrt.linear_quantized")
def _linear_quantized(op: Op, operands: Specs, results: Specs) -> Lowering:
    """Rows of x in 8 bits first, where the codes are integers; 8-bit floats take x as it is."""
    x, _weight, bias, residual = operands
    form = op.attrs["form"]
    made = packed.lower_product(form, x, results[0], bias, residual, op.attrs["activation"])
    rest = {"w": ("in", 1), "bias": _in(op, 2), "residual": _in(op, 3), "out": OUT}
    if not packed.needs_codes(form):
        return named(made, x=("in", 0), **rest)
    return _with_codes(made, x, form, rest)


def _with_codes(made: Launch, x: TensorSpec, form: Any, rest: Dict[str, Optional[Binding]]) -> Lowering:
    """A product behind what makes the codes of x."""
    rows = matmul.collapse_rows(x, "x")[0]
    codes = TensorType("u8", (ex.simplify(ex.constant(rows) * packed.quantized_row_bytes(form.k)),))
    first = named(packed.lower_quantize(x, rows), x=("in", 0), out=("temporary", 0))
    product = named(made, x=("temporary", 0), **rest)
    return Lowering(product.launch, product.bindings, (first,), (codes,))


@_rule("accrt.grouped_quantized")
def _grouped_quantized(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, _weights, ends = operands
    form = op.attrs["form"]
    made = packed.lower_grouped(form, op.attrs["matrices"], op.attrs["as_one"], x, results[0], ends)
    rest = {"w": ("in", 1), "ends": ("in", 2), "out": OUT}
    if not packed.needs_codes(form):
        return named(made, x=("in", 0), **rest)
    return _with_codes(made, x, form, rest)


def roles_of(op: Op) -> Dict[str, Binding]:
    """Components of a quantized weight by role: the first operands, in the order of its form."""
    return {role: ("in", index) for index, (role, _type) in enumerate(op.attrs["form"].roles)}


def dequantize_rules(family: str, lower_rows: Callable[..., Launch]) -> None:
    """Registers what makes rows of quantized weights floats: all, and those that are looked up."""

    def dequantize(op: Op, operands: Specs, results: Specs) -> Lowering:
        require_plain(results[0])
        return named(lower_rows(op.attrs["form"], results[0]), **roles_of(op), out=OUT)

    def embedding(op: Op, operands: Specs, results: Specs) -> Lowering:
        index = operands[-1]
        if index.dtype not in packed.INDICES:
            raise ValueError(f"embedding: indices of {index.dtype}")
        for spec in (index, results[0]):
            require_plain(spec)
        made = lower_rows(op.attrs["form"], results[0], index)
        return named(made, **roles_of(op), index=("in", len(operands) - 1), out=OUT)

    rule("accrt.dequantize", family)(dequantize)
    rule("accrt.embedding_quantized", family)(embedding)


def rows_rule(family: str, lower_rows: Callable[..., Launch]) -> None:
    """Registers what looks rows up in packed weights."""

    def embedding(op: Op, operands: Specs, results: Specs) -> Lowering:
        _packed, index = operands
        if index.dtype not in packed.INDICES:
            raise ValueError(f"embedding: indices of {index.dtype}")
        for spec in (index, results[0]):
            require_plain(spec)
        return named(lower_rows(op.attrs["form"], index, results[0]), w=("in", 0), index=("in", 1), out=OUT)

    rule("accrt.embedding_packed", family)(embedding)


dequantize_rules("host", packed.lower_dequantize)
rows_rule("host", packed.lower_rows)


def require_plain(spec: TensorSpec) -> None:
    wanted = contiguous(TensorType(spec.dtype, spec.shape)).strides
    if not all(ex.proved_equal(a, b) for a, b in zip(spec.strides, wanted)):
        raise ValueError(f"strides {spec.strides} for shape {spec.shape}")


@_rule("aten.layer_norm")
def _layer_norm(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, weight, bias = operands
    made = tensor_ops.lower_norm("layer_norm", x, results[0], weight, bias, op.attrs["eps"])
    return named(made, x=("in", 0), weight=_in(op, 1), bias=_in(op, 2), out=OUT)


@_rule("aten.rms_norm")
def _rms_norm(op: Op, operands: Specs, results: Specs) -> Lowering:
    made = tensor_ops.lower_norm("rms_norm", operands[0], results[0], operands[1], None, op.attrs["eps"])
    return named(made, x=("in", 0), weight=_in(op, 1), out=OUT)


@_rule("aten.softmax")
def _softmax(op: Op, operands: Specs, results: Specs) -> Lowering:
    if operands[0].rank == 0 or ops.axis_of(op.attrs["dim"], operands[0].rank) != operands[0].rank - 1:
        raise ValueError("softmax: kernels take the last dimension")
    return named(tensor_ops.lower_softmax(operands[0], results[0]), x=("in", 0), out=OUT)


def _norm_backward(op: Op, operands: Specs, results: Specs) -> Lowering:
    """Groups of rows first, each with its sums for the weights; then those are added up."""
    grad, x, weight = operands
    kind = "rms_norm" if op.name == "accrt.rms_norm_backward" else "layer_norm"
    first, (groups, n) = gradients.lower_norm_backward(kind, grad, x, weight, results[0], op.attrs["eps"])
    sums = TensorType("f64" if x.dtype == "f64" else "f32", (groups, n))
    bindings: Dict[str, Binding] = {"grad": ("in", 0), "x": ("in", 1), "weight": ("in", 2), "out": OUT, "weight_sums": ("temporary", 0)}
    if len(results) == 3:
        bindings["bias_sums"] = ("temporary", 1)
    last = [
        Lowering(tensor_ops.lower_reduce("sum", contiguous(sums), spec, [0]), {"x": ("temporary", at), "out": ("out", at + 1)})
        for at, spec in enumerate(results[1:])
    ]
    return Lowering(last[-1].launch, last[-1].bindings, (Lowering(first, bindings), *last[:-1]), (sums,) * len(last))


_rule("accrt.rms_norm_backward")(_norm_backward)
_rule("accrt.layer_norm_backward")(_norm_backward)


@_rule("accrt.softmax_backward")
def _softmax_backward(op: Op, operands: Specs, results: Specs) -> Lowering:
    if ops.axis_of(op.attrs["dim"], operands[0].rank) != operands[0].rank - 1:
        raise ValueError("softmax_backward: kernels take the last dimension")
    return named(gradients.lower_softmax_backward(operands[0], operands[1], results[0], op.attrs["scale"]), grad=("in", 0), result=("in", 1), out=OUT)


def _reduce(kind: str) -> Rule:
    def lower_reduce(op: Op, operands: Specs, results: Specs) -> Lowering:
        x, out = operands[0], results[0]
        axes = ops.axes_of(op.attrs["dim"], x.rank)
        if op.attrs["keepdim"]:
            kept = [a for a in range(x.rank) if a not in axes]
            out = TensorSpec(out.dtype, tuple(out.shape[a] for a in kept), tuple(out.strides[a] for a in kept))
        if x.rank == 0:
            x, axes = TensorSpec(x.dtype, (1,), (1,)), [0]
        return named(tensor_ops.lower_reduce(kind, x, out, axes), x=("in", 0), out=OUT)

    return lower_reduce


#: What kernels call reductions.
REDUCTIONS = {"aten.sum": "sum", "aten.mean": "mean", "aten.amax": "max", "aten.amin": "min", "aten.argmax": "argmax"}
for _name, _kind in REDUCTIONS.items():
    if _kind != "argmax":
        _rule(_name)(_reduce(_kind))


@_rule("accrt.staged")
def _staged(op: Op, operands: Specs, results: Specs) -> Lowering:
    at, count = op.attrs, op.attrs["count"]
    shape, dim, core = at["shape"], at["core_attrs"]["dim"], ops.core_type(op).dtype
    inputs, more = operands[:count], operands[count:]
    work = fused.Work(at["before"], at["after"], tuple(s.dtype for s in inputs), tuple(s.dtype for s in more), at["before_symbols"], at["after_symbols"])
    if at["core"] == "aten.cumsum":
        made = fused.lower_cumsum(work, core, shape, ops.axis_of(dim, len(shape)), inputs, more, results[0])
    else:
        made = fused.lower_reduce(REDUCTIONS[at["core"]], work, core, shape, ops.axes_of(dim, len(shape)), inputs, more, results[0])
    bindings = {f"x{i}": ("in", i) for i in range(count)}
    bindings.update({f"z{i}": ("in", count + i) for i in range(len(more))})
    return Lowering(made, {**bindings, "out": OUT})


@_rule("aten.argmax")
def _argmax(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, dim = operands[0], op.attrs["dim"]
    if dim is None or op.attrs["keepdim"] or x.rank == 0 or ops.axis_of(dim, x.rank) != x.rank - 1:
        raise ValueError("argmax: kernels take the last dimension")
    return named(tensor_ops.lower_argmax(x, results[0]), x=("in", 0), out=OUT)


@_rule("aten.topk")
def _topk(op: Op, operands: Specs, results: Specs) -> Lowering:
    x = operands[0]
    if x.rank == 0 or ops.axis_of(op.attrs["dim"], x.rank) != x.rank - 1:
        raise ValueError("topk: kernels take the last dimension")
    made = tensor_ops.lower_topk(x, results[0], results[1])
    return named(made, x=("in", 0), values=OUT, indices=("out", 1))


@_rule("aten.cumsum")
def _cumsum(op: Op, operands: Specs, results: Specs) -> Lowering:
    x = operands[0]
    if x.rank == 0:
        raise ValueError("cumsum: kernels take an axis")
    return named(ordering.lower_cumsum(x, results[0], ops.axis_of(op.attrs["dim"], x.rank)), x=("in", 0), out=OUT)


@_rule("aten.sort")
def _sort(op: Op, operands: Specs, results: Specs) -> Lowering:
    x = operands[0]
    if x.rank == 0:
        raise ValueError("sort: kernels take an axis")
    made = ordering.lower_sort(x, results[0], results[1], ops.axis_of(op.attrs["dim"], x.rank), op.attrs["descending"])
    return named(made, x=("in", 0), values=OUT, places=("out", 1))


@_rule("accrt.scatter")
def _scatter(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, index, source = operands
    made = ordering.lower_scatter(x, index, source, results[0], ops.axis_of(op.attrs["dim"], x.rank), op.attrs["add"])
    return named(made, x=("in", 0), index=("in", 1), source=("in", 2), out=OUT)


@_rule("accrt.grouped_matmul")
def _grouped(op: Op, operands: Specs, results: Specs) -> Lowering:
    require_plain(operands[1])
    made = ordering.lower_grouped(*operands, results[0])
    return named(made, x=("in", 0), w=("in", 1), ends=("in", 2), out=OUT)


@_rule("aten.scaled_dot_product_attention")
def _attention(op: Op, operands: Specs, results: Specs) -> Lowering:
    q, k, v, mask = operands
    at = op.attrs
    wrong = [s.dtype for s in (q, k, v) if s.dtype not in ("f32", "f16", "bf16")]
    if wrong or (mask is not None and mask.dtype not in ("bool", "f32", "f16", "bf16")):
        raise ValueError(f"attention: kernels know f32, f16 and bf16, not {wrong or mask.dtype}")
    made = attention.lower_attention(
        q, k, v, results[0], mask, scale=at["scale"], causal=at["is_causal"], causal_offset=ops.causal_offset(op),
        first_offset=at["first_offset"],
    )  # fmt: skip
    return named(made, q=("in", 0), k=("in", 1), v=("in", 2), mask=_in(op, 3), out=OUT)


def _axes_moved(spec: TensorSpec, axes: Sequence[int]) -> TensorSpec:
    return TensorSpec(spec.dtype, tuple(spec.shape[a] for a in axes), tuple(spec.strides[a] for a in axes))


def four_axes(spec: TensorSpec) -> TensorSpec:
    """[..., length, size] as [batch, length, heads, size]: the axis before length is heads, what
    comes before is batch."""
    lead_shape, lead_strides = list(spec.shape[:-2]), list(spec.strides[:-2])
    while len(lead_shape) < 2:
        lead_shape.insert(0, 1)
        lead_strides.insert(0, 0)
    if len(lead_shape) > 2:
        raise ValueError(f"rotary embedding: rank {spec.rank}, at most 4 is possible")
    full = TensorSpec(spec.dtype, (*lead_shape, *spec.shape[-2:]), (*lead_strides, *spec.strides[-2:]))
    return _axes_moved(full, (0, 2, 1, 3))


@_rule("accrt.rope")
def _rope(op: Op, operands: Specs, results: Specs) -> Lowering:
    if operands[0].dtype == "f64":
        raise ValueError("rotary embedding: the kernel's sines are f32")
    x, out = four_axes(operands[0]), four_axes(results[0])
    made = tensor_ops.lower_rope(x, out, theta=op.attrs["theta"], start=op.attrs["position"])
    return named(made, x=("in", 0), out=OUT)


@_rule("accrt.rope_at")
def _rope_at(op: Op, operands: Specs, results: Specs) -> Lowering:
    x, positions, frequencies = operands
    if x.dtype == "f64":
        raise ValueError("rotary embedding: the kernel's sines are f32")
    require_plain(frequencies)
    at, turned = op.attrs, frequencies.shape[0]
    if not isinstance(turned, int):
        raise ValueError("rotary embedding: how much of a head turns must be known while compiling")
    ins, outs = (TensorSpec(s.dtype, (1, *s.shape), (0, *s.strides)) for s in (x, results[0]))
    made = tensor_ops.lower_rope(
        ins, outs, positions=positions, frequencies=frequencies, rotary=2 * turned, interleaved=at["interleaved"], scale=at["scale"]
    )
    return named(made, x=("in", 0), positions=("in", 1), frequencies=("in", 2), out=OUT)


@_rule("accrt.state_scatter")
def _state_scatter(op: Op, operands: Specs, results: Specs) -> Lowering:
    made = tensor_ops.lower_scatter(operands[0], operands[1], contiguous(op.attrs["state"].type))
    return named(made, x=("in", 0), slots=("in", 1), state=("state", 0))


@_rule("accrt.state_scatter_e4m3")
def _state_scatter_e4m3(op: Op, operands: Specs, results: Specs) -> Lowering:
    made = tensor_ops.lower_scatter_e4m3(operands[0], operands[1], contiguous(op.attrs["state"].type), op.attrs["scale"])
    return named(made, x=("in", 0), slots=("in", 1), state=("state", 0))


_PAGED_OPERANDS: Mapping[str, Binding] = {
    "q": ("in", 0), "row_ids": ("in", 1), "row_starts": ("in", 2), "kv_lengths": ("in", 3), "k": ("state", 0), "v": ("state", 1), "table": ("state", 2),
}  # fmt: skip


def paged_operands(operands: Specs) -> Mapping[str, Binding]:
    return {**_PAGED_OPERANDS, **({} if operands[4] is None else {"sinks": ("in", 4)})}


def paged_attention(
    op: Op, operands: Specs, lower: Callable[[bool], Tuple[Launch, ...]], most_tokens: int, unit: int = paged.UNIT, together: int = 1
) -> Lowering:
    """Up to `most_tokens` tokens, units of `unit` keys are shared out among workgroups, and joined;
    a workgroup takes `together` of them, and writes the result itself where those are all.
    `lower(shared)`: the launches."""
    at, (q, *given) = op.attrs, operands
    for spec in given:
        if spec is not None:
            require_plain(spec)
    v, table = at["values"].type, at["page_table"].type
    bound: Mapping[str, Binding] = {**paged_operands(operands), "out": OUT, "partial": ("temporary", 0)}

    def lowering(made: Launch, *more: Any) -> Lowering:
        return Lowering(made, {name: bound[name] for name in made.buffers}, *more)

    whole = lowering(lower(False)[0])
    units = ex.ceildiv(ex.constant(table.shape[1]) * v.shape[1], unit)
    parts = ex.simplify(ex.constant(q.shape[0]) * q.shape[1] * units * paged.part_floats(v.shape[3]))
    many = logical_or(less_equal(most_tokens + 1, q.shape[0]), less_equal(paged.PARTS + 1, parts))
    one = ex.simplify(logical_or(many, less_equal(units, together)))
    late = late_symbols(op.block.function)
    if any(name in late for name in ex.symbols_of(one)) or (isinstance(one, int) and one):
        return whole
    first, last = lower(True)
    joined = lowering(last, (lowering(first),), (TensorType("f32", (ex.select(one, 0, parts),)),))
    return joined if isinstance(one, int) else dataclasses.replace(joined, alternatives=((one, whole),))


@_rule("accrt.sample")
def _sample(op: Op, operands: Specs, results: Specs) -> Lowering:
    for spec in (*operands[1:], *results):
        require_plain(spec)
    bindings: Dict[str, Binding] = {name: ("in", index) for index, name in enumerate(sampling.READ)}
    bindings.update({name: ("out", index) for index, name in enumerate(sampling.WRITTEN)})
    return Lowering(sampling.lower_sample(operands, op.attrs["top"]), bindings)


@_rule("accrt.paged_attention")
def _paged_attention(op: Op, operands: Specs, results: Specs) -> Lowering:
    at, q = op.attrs, operands[0]
    k, v, table = (contiguous(at[name].type) for name in ("keys", "values", "page_table"))

    def lower(shared: bool) -> Tuple[Launch, ...]:
        return paged.lower_paged_attention(
            q, k, v, table, operands[1].shape[0], results[0], scale=at["scale"], window=at["window"], soft_cap=at["soft_cap"], shared=shared,
            sinks=operands[4] is not None, chunk=at["chunk"],
        )  # fmt: skip

    return paged_attention(op, operands, lower, paged.TOKENS)


@_rule("accrt.paged_scan")
def _paged_scan(op: Op, operands: Specs, results: Specs) -> Lowering:
    return paged_scan(op, operands, results, scan.scan_kernel)


def paged_scan(op: Op, operands: Specs, results: Specs, make_kernel: Callable[..., KernelDef]) -> Lowering:
    """`make_kernel`: the kernel of a size of keys."""
    for spec in operands[4:7]:
        require_plain(spec)
    states, table = (contiguous(op.attrs[name].type) for name in ("states", "page_table"))
    made = scan.lower_scan(operands, states, table, results[0], op.attrs["page_size"], make_kernel)
    bindings = {name: ("in", index) for index, name in enumerate(scan.READ) if name in made.buffers}
    return Lowering(made, {**bindings, "states": ("state", 0), "table": ("state", 1), "out": OUT})


def lora_states(op: Op) -> Tuple[List[TensorSpec], Dict[str, Binding]]:
    """The states of factors, one for each part, and where a launch finds them."""
    specs = [contiguous(state.type) for state, _written in ops.states_of(op)]
    return specs, {name: ("state", index) for index, name in enumerate(lora.FACTORS[: len(specs)])}


def _lora_shrink(op: Op, operands: Specs, results: Specs) -> Lowering:
    require_plain(results[0])
    factors, bound = lora_states(op)
    return named(lora.lower_shrink(operands[0], factors, operands[1]), x=("in", 0), index=("in", 1), out=OUT, **bound)


def _lora_expand(op: Op, operands: Specs, results: Specs) -> Lowering:
    y, shrunk, index = operands
    factors, bound = lora_states(op)
    return named(lora.lower_expand(y, shrunk, factors, index, results[0]), y=("in", 0), shrunk=("in", 1), index=("in", 2), out=OUT, **bound)


for _parts in ("", "2", "3"):
    _rule("accrt.lora_shrink" + _parts)(_lora_shrink)
    _rule("accrt.lora_expand" + _parts)(_lora_expand)


@_rule("aten.embedding")
def _embedding(op: Op, operands: Specs, results: Specs) -> Lowering:
    return named(tensor_ops.lower_gather(operands[0], operands[1], results[0], 0), x=("in", 0), index=("in", 1), out=OUT)


@_rule("aten.index_select")
def _index_select(op: Op, operands: Specs, results: Specs) -> Lowering:
    axis = ops.axis_of(op.attrs["dim"], op.operands[0].rank)
    made = tensor_ops.lower_gather(operands[0], operands[1], results[0], axis)
    return named(made, x=("in", 0), index=("in", 1), out=OUT)


@_rule("aten.clone")
def _clone(op: Op, operands: Specs, results: Specs) -> Lowering:
    return named(tensor_ops.lower_copy(operands[0], results[0]), x=("in", 0), out=OUT)


def copy(source: TensorSpec, target: TensorSpec, family: str = "host") -> Lowering:
    """The launch of a copy between two places; buffers are named x and out."""
    if family == "cuda":
        from . import cuda

        return cuda.copy(source, target)
    return named(tensor_ops.lower_copy(source, target), x=("in", 0), out=OUT)


@_rule("accrt.kernel")
def _users_kernel(op: Op, operands: Specs, results: Specs) -> Lowering:
    return users_kernel(op.attrs["kernel"], "host", op, operands, results)


@_rule("accrt.kernel", "cuda")
def _users_cuda_kernel(op: Op, operands: Specs, results: Specs) -> Lowering:
    kernel: KernelDef = op.attrs["kernel"]
    return users_kernel(kernel.cuda or kernel, "cuda", op, operands, results)


def users_kernel(kernel: KernelDef, family: str, op: Op, operands: Specs, results: Specs) -> Lowering:
    """A user's kernel takes contiguous tensors."""
    if kernel.family != family:
        more = ": give targets of CUDA's alone, or it as cuda= of a kernel from C source" if family == "host" else ""
        raise ValueError(f"kernel {kernel.name!r} is for {kernel.family}, not for {family}{more}")
    for spec in (*operands, *results):
        plain = contiguous(TensorType(spec.dtype, spec.shape))
        if not all(ex.proved_equal(a, b) for a, b in zip(spec.strides, plain.strides)):
            raise ValueError(f"kernel {kernel.name!r}: strides {spec.strides} for shape {spec.shape}")
    bindings: Dict[str, Binding] = {}
    # in the order of the parameters
    places = {index: ("state", number) for number, (index, _state) in enumerate(op.attrs["states"])}
    operand, result = itertools.count(), itertools.count()
    for index, param in enumerate(p for p in kernel.params if p.kind == "buffer" and p.access != "write"):
        bindings[param.name] = places.get(index) or ("in", next(operand))
    for param in kernel.params:
        if param.kind == "buffer" and param.access == "write":
            bindings[param.name] = ("out", next(result))
    try:
        # of a compiler's own (Triton)
        hidden = {p.name: 0 for p in kernel.params if p.name.startswith("hidden_")}
        made = make_launch(kernel, {name: name for name in bindings}, {**hidden, **op.attrs["values"]})
    except KeyError as error:
        raise ValueError(f"kernel {kernel.name!r}: its grid or workspace asks for {error}; the values are {list(op.attrs['values'])}") from None
    _check_grid(op, kernel, made.grid)
    return Lowering(made, bindings)


def _check_grid(op: Op, kernel: KernelDef, grid: Any) -> None:
    """Three sizes, each 1 or more: a size of 0 launches nothing, which is right only where there is
    nothing to write."""
    where = f"the grid of kernel {kernel.name!r}"
    sizes = arguments.sizes(grid, where)
    nothing = bool(op.results) and all(any(ex.same(size, 0) for size in v.shape) for v in op.results)
    if len(sizes) != 3:
        raise IRError(f"{where} is {grid!r}, expected three sizes: x, y, z")
    if any(isinstance(size, int) and (size < 0 or (size == 0 and not nothing)) for size in sizes):
        raise IRError(f"{where} is ({', '.join(map(str, sizes))}), which launches nothing: each of x, y, z is 1 or more")


#: Operations whose result may take the memory of an operand: element i is read before element i is
#: written.
IN_PLACE = ("accrt.elementwise", "aten.layer_norm", "aten.rms_norm", "aten.softmax", "accrt.masked_softmax", "accrt.softmax_backward", "accrt.rope",
            "accrt.rope_at", "accrt.lora_expand", "accrt.lora_expand2", "accrt.lora_expand3", "accrt.lora_pair", "accrt.lora_pair2", "accrt.lora_pair3")  # fmt: skip
#: Products whose result may take the memory of the residual that they add.
PRODUCTS = ("accrt.matmul_packed", "accrt.product", "accrt.linear_quantized", "accrt.conv_packed", "accrt.window",
            "accrt.group_norm_last")  # fmt: skip


def may_share(op: Op, index: int) -> bool:
    """Whether the result may overwrite operand `index` where it lies (same type, same strides)."""
    if op.name in PRODUCTS:
        return index == 3
    if op.name == "accrt.elementwise":
        return not op.attrs["program"].takes()
    return op.name in IN_PLACE and index == 0


def explain(op: Op, operands: Specs, results: Specs, error: Exception) -> IRError:
    types = ", ".join("none" if s is None else f"{s.dtype}{list(map(str, s.shape))}" for s in (*operands, *results))
    return IRError(f"{op.where}: no kernel for {types}: {error}")
