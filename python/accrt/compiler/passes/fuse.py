"""Fusion: bias, activation and residual into matrix products; chains of element-wise operations
into one kernel."""

from __future__ import annotations

import bisect
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import expr as ex
from .. import ops
from ..ir import Function, Module, Op, Value
from ..kernels import elementwise as ew
from ..select import PRODUCTS
from . import lookups
from .parts import work_in_parts
from .rewrite import constant_derived, moves_past_write, rewrite, uses
from .tidy import remove_unused, rewrite_tidily

MAX_INPUTS = 8
MAX_NODES = 48
MAX_OUTPUTS = 4
# So cheap that doing it again for each element of a larger shape costs less than a kernel of its
# own.
CHEAP = ("input", "const", "symbol", "cast", "neg", "abs", "add", "sub", "mul", "div", "max", "min", "sqrt", "rsqrt", "reciprocal")

#: Operation of the IR for each operation of an element-wise program.
ATEN_OF = {d.scalar_op: name for name, d in ops.OPS.items() if d.scalar_op and d.scalar_op not in ("cast", "const", "index", "clamp")}
ATEN_OF["gelu_tanh"] = "aten.gelu"

ACTIVATION_OF = {"aten.relu": "relu", "aten.silu": "silu", "aten.tanh": "tanh", "aten.sigmoid": "sigmoid"}


# ---- Epilogues -----------------------------------------------------------------------------------


def fuse_epilogues(module: Module) -> None:
    for function in module.functions.values():
        while _fuse_one_round(function):
            pass


def _fuse_one_round(function: Function) -> bool:
    used, derived = uses(function), constant_derived(function)
    changed: List[Op] = []

    def visit(op: Op) -> Optional[Sequence[Value]]:
        for position, value in enumerate(op.operands):
            product = value.op if value is not None else None
            if product is None or product.name not in PRODUCTS or len(used.get(id(value), ())) != 1:
                continue
            if product.block is not op.block or id(value) in taken or moves_past_write(product, op, pending[id(op.block)]):
                continue
            made = _epilogue(function, product, op, position, derived)
            if made is not None:
                taken.add(id(value))
                changed.append(op)
                return [made]
        return None

    taken: set = set()
    pending = {id(block): list(block.ops) for block in function.body.blocks()}
    rewrite_tidily(function, visit)
    return bool(changed)


def _epilogue(function: Function, product: Op, op: Op, position: int, derived: Dict[int, List[str]]) -> Optional[Value]:
    x, packed, bias, residual = product.operands
    attrs = dict(product.attrs)
    activation = activation_of(op)
    if activation is not None:
        after = residual is not None or attrs["activation"] != "none"
        if attrs.get("last" if after else "activation") != "none":
            return None
        attrs["last" if after else "activation"] = activation
    elif op.name == "aten.add":
        other = op.operands[1 - position]
        if _is_bias(other, product, derived) and bias is None and residual is None and attrs["activation"] == "none":
            bias = other if other.rank == 1 else other.view([-1])
            if product.name != "accrt.product" and bias.dtype != "f32":
                bias = bias.to_copy("f32")
        elif residual is None and attrs.get("last", "none") == "none" and other is not product.result and all(v.type.same(product.result.type) for v in (other, op.result)):
            residual = other
        else:
            return None
    else:
        return None
    return function.add(product.name, [x, packed, bias, residual], attrs).result


def activation_of(op: Op) -> Optional[str]:
    """The name that kernels of products have for an operation; None: it is no activation."""
    if op.name == "aten.gelu":
        return "gelu" if op.attrs["approximate"] == "none" else "gelu_tanh"
    return ACTIVATION_OF.get(op.name)


def _is_bias(value: Value, product: Op, derived: Dict[int, List[str]]) -> bool:
    columns = product.attrs["columns"]
    lead = value.shape[:-1]
    return id(value) in derived and value.rank >= 1 and ex.same(value.shape[-1], columns) and all(ex.same(size, 1) for size in lead)


# ---- Element-wise chains -------------------------------------------------------------------------


def fuse_elementwise(module: Module, family: str = "host") -> None:
    for function in module.functions.values():
        _as_programs(function)
        if family == "host":
            work_in_parts(function)
        _merge(function, family)
        _join_all(function)
        remove_unused(function)


def _as_programs(function: Function) -> None:
    """Every element-wise operation becomes an accrt.elementwise of its own."""

    def visit(op: Op) -> Optional[Sequence[Value]]:
        definition = ops.OPS.get(op.name)
        if definition is None or not definition.scalar_op:
            return None
        program, symbols = _program(op, definition.scalar_op)
        attrs = {"program": program, "symbols": symbols, "shape": op.result.shape}
        return [function.add("accrt.elementwise", op.operands, attrs).result]

    rewrite(function, visit)


def _program(op: Op, scalar_op: str) -> Tuple[ew.Program, Tuple[Any, ...]]:
    dtype = op.result.dtype
    nodes = [ew.Node("input", value.dtype, (), index) for index, value in enumerate(op.operands)]
    symbols: Tuple[Any, ...] = ()
    if scalar_op == "const":
        value = op.attrs["fill_value"]
        if isinstance(value, ex.Expr):
            nodes, symbols = _cast_to(dtype, [ew.Node("symbol", "i64", (), 0)]), (value,)
        else:
            nodes = [ew.Node("const", dtype, (), value)]
    elif scalar_op == "index":
        nodes = [ew.Node("index", "i64", (), -1), ew.Node("symbol", "i64", (), 0), ew.Node("symbol", "i64", (), 1)]
        nodes += [ew.Node("mul", "i64", (0, 2)), ew.Node("add", "i64", (3, 1))]
        nodes, symbols = _cast_to(dtype, nodes), (op.attrs["start"], op.attrs["step"])
    elif scalar_op == "clamp":
        nodes = _clamp(op, nodes)
    elif op.name == "aten.gelu" and op.attrs["approximate"] == "tanh":
        nodes.append(ew.Node("gelu_tanh", dtype, (0,)))
    else:
        nodes.append(ew.Node(scalar_op, dtype, tuple(range(len(op.operands)))))
    return ew.Program(tuple(nodes), (len(nodes) - 1,)), symbols


def _cast_to(dtype: str, nodes: List[ew.Node]) -> List[ew.Node]:
    return nodes if nodes[-1].dtype == dtype else nodes + [ew.Node("cast", dtype, (len(nodes) - 1,))]


def _clamp(op: Op, nodes: List[ew.Node]) -> List[ew.Node]:
    at = 0
    for name, bound in (("max", op.attrs["min"]), ("min", op.attrs["max"])):
        if bound is not None:
            nodes += [ew.Node("const", op.result.dtype, (), bound), ew.Node(name, op.result.dtype, (at, len(nodes)))]
            at = len(nodes) - 1
    return nodes if at else nodes + [ew.Node("cast", op.result.dtype, (0,))]


def _merge(function: Function, family: str = "host") -> None:
    """Producers move into their only consumer; what needs no input (numbers, positions) into every
    one. On hosts lookups are read through: they count as element-wise work."""
    used = uses(function)
    pending = {id(block): list(block.ops) for block in function.body.blocks()}
    gone: Dict[int, Op] = {}  # operations that moved into another one, and which

    def visit(op: Op) -> Optional[Sequence[Value]]:
        is_lookup = family == "host" and op.name in lookups.LOOKUPS
        if is_lookup and _reads_work(op, used):
            operands, program, symbols = lookups.parts_of(op)
            op.name, op.operands, op.attrs = "accrt.elementwise", operands, {"program": program, "symbols": symbols, "shape": op.result.shape}
        if op.name != "accrt.elementwise":
            return None
        for _round in range(MAX_NODES):
            tries = (_try(op, i, used, pending[id(op.block)], family, gone) for i in range(len(op.operands)))
            merged = next((m for m in tries if m), None)
            if merged is None:
                break
            producer, (op.operands, op.attrs["program"], op.attrs["symbols"]) = merged
            gone[id(producer)] = op
        return None

    rewrite(function, visit)


def _try(
    op: Op, index: int, used: Dict[int, List[Op]], ops_before: Sequence[Op], family: str, gone: Dict[int, Op]
) -> Optional[Tuple[Op, lookups.Parts]]:  # fmt: skip
    value = op.operands[index]
    producer = value.op
    if producer is None or producer.block is not op.block:
        return None
    inner = _parts(producer, family)
    if inner is None:
        return None
    alone = all(user is op or inner[1].takes() and _is_now(user, op, gone) for user in used[id(value)])
    pays = _pays_through if index in op.attrs["program"].takes() else _pays
    if not pays(op, index, inner, alone):
        return None
    operands, program, symbols = _inlined(op, index, inner)
    if len(operands) > MAX_INPUTS or len(program.nodes) > MAX_NODES or moves_past_write(producer, op, ops_before):
        return None
    if program.takes() and not _has_room(operands, program, op):
        return None
    return producer, (operands, program, symbols)


def _parts(op: Optional[Op], family: str) -> Optional[lookups.Parts]:
    """What an operation calculates if it is work by element, as a lookup is on hosts."""
    if op is not None and op.name == "accrt.elementwise":
        return op.operands, op.attrs["program"], op.attrs["symbols"]
    return lookups.parts_of(op) if op is not None and family == "host" and op.name in lookups.LOOKUPS else None


def _is_now(user: Optional[Op], op: Op, gone: Dict[int, Op]) -> bool:
    """Whether a use is one by `op`, or by what moved into it."""
    while user is not op and user is not None:
        user = gone.get(id(user))
    return user is op


def _pays(op: Op, index: int, inner: lookups.Parts, alone: bool) -> bool:
    value = op.operands[index]
    positions = any(node.op == "index" for node in inner[1].nodes)
    same = ex.same_shape(value.shape, op.attrs["shape"])
    cheap = len(inner[0]) <= 2 and all(node.op in CHEAP for node in inner[1].nodes)
    if any(value is op.operands[taken] for taken in op.attrs["program"].takes()):
        return False  # it is needed whole all the same
    return not (positions and not same) and (not inner[0] or (alone and (same or cheap)))


def _pays_through(op: Op, index: int, inner: lookups.Parts, alone: bool) -> bool:
    """Whether what an operand is made by is better done at the places that are looked up: it is
    cheap, or they are no more than all places."""
    value, program = op.operands[index], op.attrs["program"]
    takes = [node for node in program.nodes if node.op == "take" and node.value[0] == index]
    if not alone or any(value is v for at, v in enumerate(op.operands) if at != index):
        return False
    if any(node.op == "index" for node in inner[1].nodes) or not lookups.is_varied(inner[0], takes[0].value[1], value.rank):
        return False
    if len(inner[0]) <= 3 and all(node.op in (*CHEAP, "take") for node in inner[1].nodes):
        return True
    needed = ex.simplify(ex.constant(ex.product(op.attrs["shape"])) * len(takes))
    return ex.proved_less_equal(needed, ex.product(value.shape))


def _reads_work(op: Op, used: Dict[int, List[Op]]) -> bool:
    """Whether a lookup is better read through what makes the values that it looks up."""
    source = op.operands[0]
    inner = _parts(source.op, "host")
    if inner is None or source.op.block is not op.block:
        return False
    operands, program, symbols = lookups.parts_of(op)
    trial = Op("accrt.elementwise", operands, {"program": program, "symbols": symbols, "shape": op.result.shape}, op.block)
    return _pays_through(trial, 0, inner, all(user is op for user in used[id(source)]))


def _has_room(operands: Sequence[Value], program: ew.Program, op: Op) -> bool:
    """Whether all parameters of a kernel fit, with a stride for each axis of each operand."""
    rank = len(op.attrs["shape"])
    tensors = len(operands) + len(program.outputs)
    places = 2 * sum(len(axes) for axes in program.takes().values())
    numbers = sum(node.op in ("const", "symbol", "scalar") for node in program.nodes)
    return tensors * (rank + 1) + rank + places + numbers <= ew.MAX_PARAMS


def _numbered(node: ew.Node, nodes: List[ew.Node], known: Dict[Any, int]) -> int:
    """The number of a node among `nodes`, where each stands once."""
    key = (node.op, node.dtype, node.args, repr(node.value))
    if key not in known:
        known[key] = len(nodes)
        nodes.append(node)
    return known[key]


def _inlined(op: Op, index: int, inner: lookups.Parts) -> lookups.Parts:
    """The program of `op` with what makes one operand in its place: at each element, or at the
    places that are looked up in it."""
    outer, (inner_operands, made, inner_symbols) = op.attrs["program"], inner
    gone, gone_axes = op.operands[index], outer.takes().get(index, ())
    operands: List[Value] = []
    read_by: List[Tuple[int, ...]] = []  # for each operand the axes along which it is taken
    symbols = list(op.attrs["symbols"]) + list(inner_symbols)
    nodes: List[ew.Node] = []
    known: Dict[Any, int] = {}

    def operand_index(value: Value, axes: Sequence[int] = ()) -> int:
        for at, have in enumerate(operands):
            if have is value and read_by[at] == tuple(axes):
                return at
        operands.append(value)
        read_by.append(tuple(axes))
        return len(operands) - 1

    def put(node: ew.Node) -> int:
        return _numbered(node, nodes, known)

    def copy(program: ew.Program, values: Sequence[Value], first_symbol: int, inner_at: Optional[int], read: Any) -> Dict[int, int]:
        places: Dict[int, int] = {}
        for at, node in enumerate(program.nodes):
            args = tuple(places[a] for a in node.args)
            if node.op == "input":
                value = values[node.value]
                replaced = inner_at is not None and value is gone
                places[at] = inner_at if replaced else read(value, node.dtype)
            elif node.op == "take":
                value, axes = values[node.value[0]], node.value[1]
                if program is outer and gone_axes and value is gone:
                    there = lookups.through(axes, args, gone.rank, put, operand_index)
                    places[at] = copy(made, inner_operands, len(op.attrs["symbols"]), None, there)[made.outputs[0]]
                else:
                    places[at] = read(value, node.dtype, axes, args)
            elif node.op == "symbol":
                places[at] = put(ew.Node("symbol", node.dtype, (), node.value + first_symbol))
            else:
                places[at] = put(ew.Node(node.op, node.dtype, args, node.value))
        return places

    whole = lookups.through((), (), 0, put, operand_index)
    inside = None if gone_axes else copy(made, inner_operands, len(op.attrs["symbols"]), None, whole)[made.outputs[0]]
    outside = copy(outer, op.operands, 0, inside, whole)
    return operands, ew.Program(tuple(nodes), tuple(outside[i] for i in outer.outputs)), tuple(symbols)


# ---- Chains that read the same -------------------------------------------------------------------


def _join_all(function: Function) -> None:
    """Makes one operation of two of one shape where one reads a result of the other, or both read a
    value whole: it is read once. The first then stands where the second stood."""
    used, derived = uses(function), constant_derived(function)
    for block in function.body.blocks():
        order = {id(op): at for at, op in enumerate(block.ops)}
        places = list(range(len(block.ops)))  # of block.ops, ascending
        at = 0
        while at < len(block.ops):
            second = block.ops[at]
            first = next((op for op in _neighbours(second, used) if _may_join(op, second, order, used, derived)), None)
            read_before = second.operands  # a join gives it another list
            if first is None or not _join(first, second, used):
                at += 1
                continue
            _moved(first, second, (*first.operands, *read_before), order, used)
            # Only operations behind the first one, or behind one that makes an operand of the
            # first one, may join now that could not before.
            changed = [order[id(first)], *(order[id(v.op)] for v in first.operands if v.op is not None and v.op.block is block)]
            del places[bisect.bisect_left(places, order[id(first)])]
            at = bisect.bisect_left(places, min(changed))


def _moved(first: Op, second: Op, values: Sequence[Value], order: Dict[int, int], used: Dict[int, List[Op]]) -> None:
    """Makes `used` right after a join: the second operation reads what both read, once. Operations
    of its block stay in their order."""
    for value in {id(v): v for v in values}.values():
        entries = [op for op in used[id(value)] if op is not first and op is not second]
        if any(v is value for v in second.operands):
            behind = (at for at, op in enumerate(entries) if op is not None and op.block is second.block and order[id(op)] > order[id(second)])
            entries.insert(next(behind, len(entries)), second)
        used[id(value)] = entries


def _neighbours(op: Op, used: Dict[int, List[Op]]) -> List[Op]:
    if op.name != "accrt.elementwise":
        return []
    found: Dict[int, Op] = {}
    for value in op.operands:
        if ex.same_shape(value.shape, op.attrs["shape"]):
            found.update({id(o): o for o in [value.op, *used.get(id(value), ())] if o is not None and o is not op})
    return [o for o in found.values() if o.name == "accrt.elementwise"]


def _may_join(first: Op, second: Op, order: Dict[int, int], used: Dict[int, List[Op]], derived: Dict[int, List[str]]) -> bool:
    if first.block is not second.block or order[id(first)] > order[id(second)] or not first.operands:
        return False
    if not ex.same_shape(first.attrs["shape"], second.attrs["shape"]) or first.attrs["program"].takes() or second.attrs["program"].takes():
        return False
    # What may be written meanwhile, or is calculated when the program is made, stays apart.
    if any(id(v) in derived for v in (*first.results, *second.results)) or any(_may_change(v) for v in (*first.operands, *second.operands)):
        return False
    users = [user for value in first.results for user in used.get(id(value), ()) if user is not None]
    return all(user.block is second.block and order[id(user)] >= order[id(second)] for user in users)


def _may_change(value: Value) -> bool:
    """Whether it is memory of the session, of an input that is written, or of what a loop
    carries."""
    root = value
    while root.op is not None and root.op.name in ops.OPS and ops.OPS[root.op.name].view:
        root = root.op.operands[0]
    if root.op is not None:
        return root.op.name in ops.OPS and bool(ops.OPS[root.op.name].states)
    return root.constant is None and all(i.value is not root or i.access == "read_write" for i in root.function.inputs)


def _join(first: Op, second: Op, used: Dict[int, List[Op]]) -> bool:
    operands: List[Value] = []
    nodes: List[ew.Node] = []
    known: Dict[Any, int] = {}
    made: Dict[int, int] = {}

    def put(node: ew.Node) -> int:
        return _numbered(node, nodes, known)

    def read(value: Value, dtype: str) -> int:
        if id(value) in made:
            return made[id(value)]
        at = next((at for at, have in enumerate(operands) if have is value), len(operands))
        operands.extend([value] if at == len(operands) else [])
        return put(ew.Node("input", dtype, (), at))

    for op, symbols in ((first, 0), (second, len(first.attrs["symbols"]))):
        places: List[int] = []
        for node in op.attrs["program"].nodes:
            if node.op == "input":
                places.append(read(op.operands[node.value], node.dtype))
            else:
                value = node.value + symbols if node.op == "symbol" else node.value
                places.append(put(ew.Node(node.op, node.dtype, tuple(places[a] for a in node.args), value)))
        made.update({id(value): places[at] for value, at in zip(op.results, op.attrs["program"].outputs)})
    results = [v for v in first.results if any(user is not second for user in used.get(id(v), ()))] + second.results
    outputs = tuple(made[id(v)] for v in results)
    if len(operands) > MAX_INPUTS or len(nodes) > MAX_NODES or len(results) > MAX_OUTPUTS or len(set(outputs)) < len(outputs):
        return False
    second.attrs = {**second.attrs, "program": ew.Program(tuple(nodes), outputs), "symbols": (*first.attrs["symbols"], *second.attrs["symbols"])}
    second.operands, second.results = operands, results
    for value in results:
        value.op = second
    first.block.ops.remove(first)
    return True
