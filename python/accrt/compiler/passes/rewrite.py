"""What passes share: rewriting operations in order, uses of values, which operations may move."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence

from .. import ops
from ..ir import Block, Function, Op, Value

Visit = Callable[[Op], Optional[Sequence[Value]]]


def rewrite(function: Function, visit: Visit) -> None:
    """Rebuilds the function: `visit(op)` sees operations in order with operands already replaced.
    None keeps the operation; otherwise what it returns takes the place of its results, and what it
    built stands where the operation stood."""
    replaced: Dict[int, Value] = {}

    def now(value: Optional[Value]) -> Optional[Value]:
        return None if value is None else replaced.get(id(value), value)

    def block(target: Block) -> None:
        pending, target.ops = target.ops, []
        for op in pending:
            op.operands = [now(value) for value in op.operands]
            for region in op.regions:
                block(region)
            before, function._label = function._label, op.label
            with function.inside(target):
                made = visit(op)
            function._label = before
            if made is None:
                target.ops.append(op)
                continue
            for old, new in zip(op.results, made):
                replaced[id(old)] = new
                keep.append(old)
        target.yields = [now(value) for value in target.yields]

    keep: List[Value] = []  # ids stay those of living objects
    block(function.body)
    for result in function.results:
        result.value = now(result.value)


def uses(function: Function) -> Dict[int, List[Op]]:
    """Operations that use each value, one entry for each operand; a yield counts for the operation
    that holds the block, a result as a use by None."""
    found: Dict[int, List[Optional[Op]]] = {}
    for block in function.body.blocks():
        for op in block.ops:
            for value in op.operands:
                if value is not None:
                    found.setdefault(id(value), []).append(op)
        for value in block.yields:
            found.setdefault(id(value), []).append(block.parent)
    for result in function.results:
        found.setdefault(id(result.value), []).append(None)
    return found


def mutable_root(value: Optional[Value]) -> Optional[Value]:
    """The read_write input that a value is, or is a view of: its content may change."""
    from ..ops import OPS

    while value is not None and value.op is not None and OPS.get(value.op.name) is not None and OPS[value.op.name].view:
        value = value.op.operands[0]
    if value is None or value.op is not None or value.constant is not None:
        return None
    return value if any(i.value is value and i.access == "read_write" for i in value.function.inputs) else None


def constant_derived(function: Function) -> Dict[int, List[str]]:
    """Values that follow from constants alone, with the names of those constants. Views of them
    count too."""
    from ..ops import OPS

    found: Dict[int, List[str]] = {id(v): [v.constant.name] for v in function.constants.values()}
    for op in function.body.walk():
        if op.name in ("accrt.repeat", "accrt.cond") or OPS[op.name].effect or OPS[op.name].states:
            continue
        operands = [v for v in op.operands if v is not None]
        if not op.results or (operands and not all(id(v) in found for v in operands)):
            continue
        if any(not isinstance(size, int) for v in op.results for size in v.shape) or _uses_symbols(op):
            continue
        names = [name for v in operands for name in found[id(v)]]
        for value in op.results:
            found[id(value)] = list(dict.fromkeys(names))
    return found


def _uses_symbols(op: Op) -> bool:
    from ..expr import Expr

    def symbolic(item: object) -> bool:
        if isinstance(item, Expr):
            return True
        return isinstance(item, (list, tuple)) and any(symbolic(i) for i in item)

    return any(symbolic(item) for item in op.attrs.values())


def moves_past_write(producer: Op, consumer: Op, ops_in_order: Sequence[Op]) -> bool:
    """Whether something between them in their block may change what the producer reads."""
    if not producer.operands:
        return False
    if producer not in ops_in_order or consumer not in ops_in_order:
        return True
    between = ops_in_order[ops_in_order.index(producer) + 1 : ops_in_order.index(consumer)]
    return any(op.regions or ops.OPS[op.name].effect for op in between)


def is_plain_work(op: Optional[Op]) -> bool:
    """Whether it is element-wise work with one result that does not depend on places."""
    if op is None or op.name != "accrt.elementwise" or len(op.results) != 1 or not op.operands:
        return False
    return not any(node.op in ("index", "take") for node in op.attrs["program"].nodes)
