"""What passes make of operations, for kernels that do more than one; no function is written with
them."""

from __future__ import annotations

from .. import expr as ex
from ..declared import TensorType
from ..ir import IRError, Op, Value
from .indexing import check_index
from .schema import broadcast, define, need_same, OPS, Types


@define("accrt.elementwise(Tensor[] inputs, program, symbols)")
def _infer_elementwise(op: Op) -> Types:
    """A fused chain: `program` (kernels/elementwise.py) over inputs that broadcast to `shape`.
    Those that it takes do so with 1 for the axes along which they are taken."""
    program, shape = op.attrs["program"], op.attrs["shape"]
    takes = program.takes()
    for index, value in enumerate(op.operands):
        own = tuple(1 if axis in takes.get(index, ()) else size for axis, size in enumerate(value.shape))
        for a, b in zip(broadcast([own, shape]), shape):
            need_same(a, b, "element-wise input")
    return [TensorType(program.nodes[index].dtype, shape) for index in program.outputs]


@define("accrt.staged(Tensor[] inputs, core, core_attrs, before, before_symbols, after, after_symbols, shape, count)")
def _infer_staged(op: Op) -> Types:
    """A reduction or running sum `core` of what the program `before` makes of the first `count`
    inputs, which broadcast to `shape`; and the program `after`, whose input 0 is the result, and
    whose others are the other inputs."""
    at = op.attrs
    for value in op.operands[: at["count"]]:
        for a, b in zip(broadcast([value.shape, at["shape"]]), at["shape"]):
            need_same(a, b, "input of a reduction")
    core = core_type(op)
    for value in op.operands[at["count"] :]:
        for a, b in zip(broadcast([value.shape, core.shape]), core.shape):
            need_same(a, b, "input behind a reduction")
    return [TensorType(at["after"].nodes[at["after"].outputs[0]].dtype, core.shape)]


def core_type(op: Op) -> TensorType:
    """Of the result between the two programs of an accrt.staged."""
    at = op.attrs
    made = Value(op.block.function, TensorType(at["before"].nodes[at["before"].outputs[0]].dtype, at["shape"]))
    return OPS[at["core"]].infer(Op(at["core"], [made], at["core_attrs"], op.block))[0]


@define("accrt.pack(Tensor self)")
def _infer_pack(op: Op) -> Types:
    """[k, n] as panels for accrt.matmul_packed."""
    from ..kernels import matmul

    k, n = op.operands[0].shape
    spec = matmul.packed_spec(n, k, op.operands[0].dtype)
    return [TensorType(spec.dtype, spec.shape, "opaque")]


@define("accrt.matmul_packed(Tensor self, Tensor packed, Tensor? bias, Tensor? residual, columns, activation, dtype)")
def _infer_matmul_packed(op: Op) -> Types:
    return [TensorType(op.attrs["dtype"], op.operands[0].shape[:-1] + (op.attrs["columns"],))]


@define("accrt.product(Tensor self, Tensor other, Tensor? bias, Tensor? residual, columns, activation, dtype)")
def _infer_product(op: Op) -> Types:
    """activation(self @ other + bias) + residual, where other is [k, n] as it lies (a transposed
    view of a weight, mostly), bias [n] and residual of the result's type."""
    x, weight, bias, residual = op.operands
    need_same(x.shape[-1], weight.shape[0], "inner dimension of a product")
    need_same(weight.shape[1], op.attrs["columns"], "columns of a product")
    result = TensorType(op.attrs["dtype"], x.shape[:-1] + (op.attrs["columns"],))
    if (bias is not None and not ex.same_shape(bias.shape, result.shape[-1:])) or (
        residual is not None and not residual.type.same(result)
    ):
        raise IRError(f"product of {result} with another bias or residual")
    return [result]


@define("accrt.step_product(Tensor self, Tensor other, Tensor? norm, Tensor? bias, columns, activation, dtype, eps, gated)")
def _infer_step_product(op: Op) -> Types:
    """A product with what stands before and after it in a step: activation(x @ other + bias), where
    x is the RMS norm of self with weights `norm` where `eps` is not None. `gated`: other has twice
    as many columns, and the result is activation(first half) * (second half)."""
    x, weight, _norm, bias = op.operands
    need_same(x.shape[-1], weight.shape[0], "inner dimension of a product")
    need_same(weight.shape[1], op.attrs["columns"] * (2 if op.attrs["gated"] else 1), "columns of a product")
    if bias is not None and op.attrs["gated"]:
        raise IRError("a gated product with a bias")
    return [TensorType(op.attrs["dtype"], x.shape[:-1] + (op.attrs["columns"],))]


@define(
    "accrt.rope_scatter(Tensor self, Tensor key, Tensor value, Tensor positions, Tensor frequencies, Tensor slots, State! keys, State! values, scale, interleaved)",
    effect=True,
)
def _infer_rope_scatter(op: Op) -> Types:
    """Queries as rope_at gives them; keys that it gives, and values, are written into states of the
    same type as state_scatter writes them."""
    q, k, v = op.operands[:3]
    for value, state in ((k, op.attrs["keys"]), (v, op.attrs["values"])):
        if not value.dtype == state.type.dtype == q.dtype:
            raise IRError(f"queries of {q.type}, and {value.type} into state {state.name!r} of {state.type}; one type is needed")
    return [q.type]


@define(
    "accrt.turned_product(Tensor self, Tensor other, Tensor? norm, Tensor? bias, Tensor positions, Tensor frequencies, Tensor slots, State! keys, State! values, heads, dtype, eps, scale, interleaved)",
    effect=True,
)
def _infer_turned_product(op: Op) -> Types:
    """rope_scatter of the columns of a step_product: queries, then keys, then values."""
    x, weight = op.operands[:2]
    (kv_heads, size), (value_heads, value_size) = (op.attrs[name].type.shape[-2:] for name in ("keys", "values"))
    need_same(x.shape[-1], weight.shape[0], "inner dimension of a product")
    need_same(weight.shape[1], (op.attrs["heads"] + kv_heads) * size + value_heads * value_size, "columns of a product")
    return [TensorType(op.attrs["dtype"], x.shape[:-1] + (op.attrs["heads"], size))]


@define(
    "accrt.step_tokens(Tensor self, Tensor other, Tensor rows, Tensor row_ids, Tensor pages, Tensor slots, Tensor row_starts, Tensor kv_lengths, State last, State! page_table)",
    effect=True,
)
def _infer_step_tokens(op: Op) -> Types:
    """Rows of a weight `other` by ids; an id below 0 is last[row_ids[rows]], and others than those
    of the weight become its first or its last. Before that, `pages` are written into the page table
    at `slots`, as state_scatter writes them. And an order of the tokens for walked_attention: rows
    of many keys first."""
    given, weight, rows, row_ids, pages, slots, _row_starts, kv_lengths = op.operands
    need_same(given.shape[0], rows.shape[0], "rows of tokens")
    need_same(pages.shape[0], slots.shape[0], "slots of pages")
    need_same(row_ids.shape[0], kv_lengths.shape[0], "lengths of rows")
    if any(value.dtype != "i32" or value.rank != 1 for value in op.operands if value is not weight):
        raise IRError(f"tokens of a step: ids of {given.type}, rows of {rows.type} and {row_ids.type}, {pages.type} at {slots.type}; i32 of one axis are needed")
    return [TensorType(weight.dtype, (given.shape[0], weight.shape[1])), TensorType("i32", (given.shape[0],))]


@define(
    "accrt.walked_attention(Tensor query, State keys, State values, State page_table, Tensor row_ids, Tensor row_starts, Tensor kv_lengths, "
    "Tensor? sinks, Tensor order, scale, window, soft_cap, chunk)"
)
def _infer_walked_attention(op: Op) -> Types:
    """paged_attention; where each row has one token, tokens are taken in an order, on which the
    result does not depend."""
    q, order = op.operands[0], op.operands[5]
    need_same(q.shape[0], order.shape[0], "order of tokens")
    return [TensorType(q.dtype, (q.shape[0], q.shape[1], op.attrs["values"].type.shape[3]))]


@define("accrt.greedy(Tensor self, Tensor slots, State! last)", effect=True)
def _infer_greedy(op: Op) -> Types:
    """The place of the largest of each row, i32, which is written into a state at `slots`, as
    state_scatter writes it."""
    x, slots = op.operands
    need_same(x.shape[0], slots.shape[0], "slots of tokens")
    return [TensorType("i32", x.shape[:1])]


# ---- Quantized weights: what passes/quantized.py makes of operations on them ---------------------


@define("accrt.component(Tensor self, role)", view=True)
def _infer_component(op: Op) -> Types:
    """The bytes of one component of a quantized constant."""
    constant = op.operands[0].constant
    if constant is None or op.attrs["role"] not in getattr(constant.data, "components", {}):
        raise IRError(f"{op.operands[0].type} has no component {op.attrs['role']!r}")
    return [TensorType("u8", (constant.data.size_bytes(op.attrs["role"]),))]


@define("accrt.pack_quantized(Tensor[] components, form, family)")
def _infer_pack_quantized(op: Op) -> Types:
    """A quantized weight as the family's kernels read it; `form`: a packing.Form, whose components
    are the operands in order."""
    from ..packing import packed_bytes

    size = packed_bytes(op.attrs["form"], op.attrs["family"])
    if size is None or len(op.operands) != len(op.attrs["form"].roles):
        raise IRError(f"no packed form of {op.attrs['form'].name} for {op.attrs['family']}")
    return [TensorType("u8", (size,), "opaque")]


@define("accrt.linear_quantized(Tensor self, Tensor packed, Tensor? bias, Tensor? residual, form, columns, activation, dtype)")
def _infer_linear_quantized(op: Op) -> Types:
    """activation(self @ weight^T + bias) + residual."""
    x, form = op.operands[0], op.attrs["form"]
    need_same(x.shape[-1], form.k, "inner dimension of a product")
    need_same(op.attrs["columns"], form.n, "columns of a product")
    return [TensorType(op.attrs["dtype"], x.shape[:-1] + (form.n,))]


@define("accrt.grouped_quantized(Tensor self, Tensor packed, Tensor ends, form, matrices, as_one, dtype)")
def _infer_grouped_quantized(op: Op) -> Types:
    """grouped_linear with matrices as `form` says, packed as one or one after the other."""
    x, form = op.operands[0], op.attrs["form"]
    need_same(x.shape[-1], form.k, "inner dimension of a product")
    need_same(op.operands[2].shape[0], op.attrs["matrices"], "ends of grouped_linear")
    return [TensorType(op.attrs["dtype"], (x.shape[0], form.n))]


@define("accrt.dequantize(Tensor[] components, form)")
def _infer_dequantize(op: Op) -> Types:
    form = op.attrs["form"]
    return [TensorType(form.dtype, form.shape)]


@define("accrt.embedding_quantized(Tensor[] operands, form)")
def _infer_embedding_quantized(op: Op) -> Types:
    """Rows of a quantized weight; the operands are its components, then the indices."""
    form, indices = op.attrs["form"], op.operands[-1]
    check_index(indices)
    return [TensorType(form.dtype, indices.shape + (form.k,))]


@define("accrt.embedding_packed(Tensor packed, Tensor indices, form)")
def _infer_embedding_packed(op: Op) -> Types:
    """Rows of a quantized weight that is packed for products, too."""
    form, indices = op.attrs["form"], op.operands[1]
    check_index(indices)
    return [TensorType(form.dtype, indices.shape + (form.k,))]
