"""What follows from weights alone is calculated once, at load: it moves into prepare functions that
make constants."""

from __future__ import annotations

import hashlib
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from .. import ops
from ..declared import Constant
from ..ir import Function, Module, Op, Value
from .rewrite import constant_derived, rewrite, uses


def hoist_constants(module: Module) -> None:
    for function in [f for f in module.functions.values() if not f.prepare]:
        _Hoist(module, function).run()


class _Hoist:
    def __init__(self, module: Module, function: Function):
        self.module, self.function = module, function
        self.derived = constant_derived(function)
        self.used = uses(function)
        self.origin: Dict[str, Op] = {}  # of constants made here: what they stand for

    def run(self) -> None:
        rewrite(self.function, self._visit)

    def _visit(self, op: Op) -> Optional[Sequence[Value]]:
        if len(op.results) != 1 or not self.derived.get(id(op.result)) or ops.OPS[op.name].view:
            return None
        if all(user is not None and self._stays_inside(user) for user in self.used.get(id(op.result), [None])):
            return None  # only a step on the way to something that is made at load
        return [self.function.constant(self._prepare(op))]

    def _stays_inside(self, user: Op) -> bool:
        """Whether what the user makes is made at load too. A view is what its users make of it."""
        if not user.results or user.regions or not all(self.derived.get(id(v)) for v in user.results):
            return False
        if not ops.OPS[user.name].view:
            return True
        return all(next_ is not None and self._stays_inside(next_) for next_ in self.used.get(id(user.result), [None]))

    def _prepare(self, op: Op) -> Constant:
        """The constant that stands for an operation's result, made by a prepare function of its
        own."""
        needed = self._needed(op)
        # What is made on the way has the name of its place: two steps of one type are two.
        places = {id(v): f"%{i}.{k}" for i, item in enumerate(needed) for k, v in enumerate(item.results)}
        text = "|".join(_text(item, lambda v: places.get(self._source(v))) for item in needed)
        sources = self.derived[id(op.result)]
        kind = op.name.rpartition(".")[2]
        name = f"{sources[0]}.{kind}.{hashlib.sha256((','.join(sources) + text).encode()).hexdigest()[:8]}"
        self.origin[name] = op  # also of what another function has made
        if name in self.module.constants:
            return self.module.constants[name]
        made = self.module.function(f"prepare.{name}", prepare=True)
        copies: Dict[int, Value] = {}
        for item in needed:
            operands = [v if v is None else self._copied(v, copies, made) for v in item.operands]
            copied = made.add(item.name, operands, item.attrs)
            copied.label = item.label
            copies.update({id(old): new for old, new in zip(item.results, copied.results)})
        made.result(name, copies[id(op.result)])
        constant = Constant(name, op.result.type, None)
        self.module.constants[name] = constant
        return constant

    def _made_by(self, value: Value) -> Optional[Op]:
        return self.origin.get(value.constant.name) if value.constant is not None else value.op

    def _copied(self, value: Value, copies: Mapping[int, Value], made: Function) -> Value:
        copy = copies.get(self._source(value))
        return made.constant(value.constant) if copy is None else copy

    def _source(self, value: Value) -> int:
        """Id of the value that `value` stands for: prepare functions read stored constants
        alone."""
        made_by = self._made_by(value)
        return id(value) if made_by is None or value.constant is None else id(made_by.result)

    def _needed(self, op: Op) -> List[Op]:
        """The operation and those that it follows from, in order."""
        found: List[Op] = []
        met, open_ = {id(op)}, [(op, iter(op.operands))]
        while open_:
            item, operands = open_[-1]
            made_by = next((by for by in (self._made_by(v) for v in operands if v is not None) if by is not None and id(by) not in met), None)
            if made_by is None:
                found.append(item)
                open_.pop()
            else:
                met.add(id(made_by))
                open_.append((made_by, iter(made_by.operands)))
        return found


def _text(op: Op, place: Callable[[Value], Optional[str]]) -> str:
    from ..printer import attribute_text

    operands = ",".join("none" if v is None else place(v) or (v.constant.name if v.constant else str(v.type)) for v in op.operands)
    return f"{op.name}({operands};{','.join(f'{k}={attribute_text(v)}' for k, v in op.attrs.items())})"
