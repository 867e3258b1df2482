"""The rules of the IR: `verify` checks all of a module, and is run after every pass."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..bundle_writer import SymbolClass
from . import expr as ex
from .arguments import IRError
from .declared import State, same_types
from .expr import Size
from .ir import Block, Function, Input, Module, Op, Result, Value


def verify(module: Module) -> None:
    """Raises IRError unless the whole module keeps every rule."""
    for function in module.functions.values():
        verify_function(function)


def verify_function(function: Function) -> None:
    known = {id(i.value) for i in function.inputs if i.value is not None}
    known |= {id(value) for value in function.constants.values()}
    for value in function.constants.values():
        if function.module.constants.get(value.constant.name) is not value.constant:
            raise IRError(f"function {function.name!r}: constant {value.constant.name!r} is not in the module")
    _verify_block(function.body, known)
    _verify_decisions(function)
    for result in function.results:
        if id(result.value) not in known:
            raise IRError(f"function {function.name!r}: result {result.name!r} is not defined in its body")
        _verify_alias(function, result)
    _verify_symbols(function)


def _verify_alias(function: Function, result: Result) -> None:
    if not result.alias:
        return
    found = [i for i in function.inputs if i.name == result.alias and i.access in ("donated", "read_write")]
    if not found or not found[0].value.type.same(result.value.type):
        raise IRError(
            f"function {function.name!r}, result {result.name!r}: {result.alias!r} is no donated or read_write input of type "
            f"{result.value.type}"
        )


def _verify_block(block: Block, known: set) -> None:
    for op in block.ops:
        if op.block is not block:
            raise IRError(f"{op.where}: it stands in another block than it says")
        for operand in op.operands:
            if operand is not None and id(operand) not in known:
                raise IRError(f"{op.where}: operand {operand!r} is not defined before it")
        verify_op(op)
        for region in op.regions:
            inner = known | {id(value) for value in region.args}
            _verify_block(region, inner)
            for value in region.yields:
                if id(value) not in inner:
                    raise IRError(f"{op.where}: it yields {value!r}, which its body does not define")
        for result in op.results:
            if result.op is not op or id(result) in known:
                raise IRError(f"{op.where}: result {result!r} is defined twice")
            known.add(id(result))


def verify_op(op: Op) -> None:
    from . import ops

    if op.name in ("accrt.repeat", "accrt.cond"):
        _verify_decision(op, {})
        wanted = [[r.type for r in op.results]] * len(op.regions)
        found = [[v.type for v in region.yields] for region in op.regions]
        if not all(map(same_types, wanted, found)):
            raise IRError(f"{op.where}: its bodies yield {[[str(t) for t in f] for f in found]}, not {[str(t) for t in wanted[0]]}")
        return
    facts = None if op.name not in ops.OPS or ops.OPS[op.name].effect else _facts(op)
    if facts and op.verified and len(facts) == len(op.verified) and all(map(operator.is_, facts, op.verified)):
        return
    types = ops.infer(op)
    if not same_types([r.type for r in op.results], types):
        raise IRError(f"{op.where}: results of types {[str(t) for t in types]} follow, it has {[str(r.type) for r in op.results]}")
    op.verified = facts


def _facts(op: Op) -> Optional[List[Any]]:
    """What the types of an operation without effects follow from, and they: as long as these are
    the same objects, they need not be inferred again. None where an object may change in place, or
    where a state is looked for in the module."""
    if any(isinstance(value, (State, list, dict, set)) for value in op.attrs.values()):
        return None
    operands = [None if v is None else v.type for v in op.operands]
    return [op.name, *operands, op.results, *[r.type for r in op.results], *op.attrs, *op.attrs.values()]


_LATE = (SymbolClass.BUCKET, SymbolClass.RUNTIME)


def late_symbols(function: Function, below: Tuple[str, ...] = ()) -> Dict[str, str]:
    """Symbols whose value comes with each call, after the plan is made, with the reason: their
    class, or for a scalar of a function that others call, what one of them gives. `below`:
    functions that are looked at already."""
    found = {s.name: f"is {s.symbol_class.name}" for s in function.module.symbols.values() if s.symbol_class in _LATE}
    scalars = {i.name: i.symbol for i in function.inputs if i.symbol}
    for caller in function.module.functions.values() if scalars else ():
        calls = [op for op in caller.body.walk() if op.name == "accrt.call" and op.attrs["callee"] == function.name]
        late = late_symbols(caller, (*below, function.name)) if calls and caller.name not in (*below, function.name) else {}
        for op in calls:
            for name, size in op.attrs["scalars"].items():
                for used in ex.symbols_of(size):
                    if used in late and name in scalars:
                        found.setdefault(scalars[name], f"is given {ex.size_text(size)} by function {caller.name!r}, where {used!r} {late[used]}")
    return found


def _verify_decision(op: Op, late: Mapping[str, str]) -> None:
    """Plans decide conditions and counts: no symbol in them may have its value later."""
    size = op.attrs["condition" if op.name == "accrt.cond" else "count"]
    symbols = op.block.function.module.symbols
    for name in ex.symbols_of(size):
        of_class = name in symbols and symbols[name].symbol_class in _LATE
        if of_class or name in late:
            why = late.get(name) or f"is {symbols[name].symbol_class.name}"
            raise IRError(
                f"{op.where}: its {'condition' if op.name == 'accrt.cond' else 'count'} is {ex.size_text(size)}, and symbol {name!r} {why}: "
                "what a plan decides has SPECIALIZE and SESSION symbols alone"
            )


def _verify_decisions(function: Function) -> None:
    decisions = [op for op in function.body.walk() if op.name in ("accrt.repeat", "accrt.cond")]
    late = late_symbols(function) if decisions else {}
    for op in decisions:
        _verify_decision(op, late)


def verify_optional(function: Function) -> None:
    """Optional inputs stand only where a condition says that they are there: a call without one has
    nothing to read."""
    missing = {id(i.value): (index, i.name) for index, i in enumerate(function.inputs) if i.optional}
    if missing:
        _verify_optional(function, function.body, missing)
        for result in function.results:
            _refuse_optional(function, result.value, missing, f"result {result.name!r}")


def _refuse_optional(function: Function, value: Optional[Value], missing: Mapping[int, Tuple[int, str]], what: str) -> None:
    if id(value) in missing:
        name = missing[id(value)][1]
        raise IRError(
            f"function {function.name!r}: the optional input {name!r} is used by {what}, outside of cond(f.present({name}), ...): "
            "a call without it has no value there"
        )


def _verify_optional(function: Function, block: Block, missing: Mapping[int, Tuple[int, str]]) -> None:
    for op in block.ops:
        what = f"operation {op.name}" + (f" ({op.label})" if op.label else "")
        for operand in op.operands:
            _refuse_optional(function, operand, missing, what)
        for region, taken in zip(op.regions, (True, False)):
            inner = missing
            if op.name == "accrt.cond":
                inner = {key: at for key, at in missing.items() if not _says_present(op.attrs["condition"], at[0], taken)}
            _verify_optional(function, region, inner)
            for value in region.yields:
                _refuse_optional(function, value, inner, f"what {what} yields")


def _says_present(condition: Size, index: int, taken: bool) -> bool:
    """Whether the branch is one that no call without the input takes."""
    value = ex.known(condition, index, 0)
    return value is not None and bool(value) != taken


def verify_adapters(module: Module) -> None:
    """Slots are the bundle's: an input's name means one tensor in all functions, a tensor is one
    input's, and of a pair both have a slot."""
    inputs: Dict[str, Input] = {}
    slots: Dict[str, str] = {}
    for function, i in ((function, i) for function in module.functions.values() for i in function.inputs):
        first, where = inputs.setdefault(i.name, i), f"function {function.name!r}, input {i.name!r}"
        if (i.adapter, i.scaled) != (first.adapter, first.scaled):
            raise IRError(f"{where}: another function's input of this name has another adapter tensor, or none")
        if i.adapter and slots.setdefault(i.adapter, i.name) != i.name:
            raise IRError(f"{where}: the adapter tensor {i.adapter!r} is that of input {slots[i.adapter]!r}")
    for slot in slots:
        at = slot.rfind("lora_") + len("lora_")
        other = slot[:at] + slot[at : at + 1].translate(str.maketrans("ABab", "BAba")) + slot[at + 1 :] if at >= len("lora_") else slot
        if other not in slots:
            raise IRError(f"adapter tensor {slot!r} is of a pair, and {other!r} is no input's")


def _verify_symbols(function: Function) -> None:
    known = function.module.symbols
    for op in function.body.walk():
        for value in op.results:
            for size in value.shape:
                for name in ex.symbols_of(size):
                    if name not in known:
                        raise IRError(f"{op.where}: symbol {name!r} is not in the module")
