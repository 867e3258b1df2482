"""Planning: where transient memory lies in the arena, and which commands must wait for which.

Storages whose lives do not overlap share a place. Sizes are symbolic: a place is as large as the
largest of its tenants, and offsets are sums of places. Commands wait for what they truly depend on:
the ranges they read and write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Sequence, Tuple

from . import expr as ex
from .bufferize import Buffers, Command, Storage
from .expr import Size

ALIGN = 256


@dataclass(eq=False)
class _Bin:
    size: Size
    tenants: List[Storage] = field(default_factory=list)
    #: Those of its tenants, each once: a model of many layers has the same ones in each of them.
    sizes: List[Size] = field(default_factory=list)

    def free(self, storage: Storage) -> bool:
        return all(t.last < storage.first or storage.last < t.first for t in self.tenants)

    def take(self, storage: Storage) -> None:
        self.tenants.append(storage)
        size = ex.align_up(storage.size_bytes, ALIGN)
        if not any(ex.same(size, known) for known in self.sizes):
            self.sizes.append(size)
            self.size = ex.maximum(self.size, size)


@dataclass(eq=False)
class Plan:
    """Offsets of transient storages in the arena, and the arena's size."""

    offsets: Dict[int, Size]
    bins: Dict[int, int]
    size: Size


def plan(buffers: Buffers) -> Plan:
    """Places all transient storages, then sets every command's predecessors."""
    hints = _hints(buffers)
    storages = [s for s in buffers.storages if s.kind == "transient" and s.first >= 0]
    bins: List[_Bin] = []
    where: Dict[int, int] = {}
    for storage in sorted(storages, key=lambda s: (-ex.evaluate(s.size_bytes, hints), s.first)):
        chosen = next((i for i, b in enumerate(bins) if b.free(storage)), None)
        if chosen is None:
            chosen = len(bins)
            bins.append(_Bin(0))
        bins[chosen].take(storage)
        where[id(storage)] = chosen
    offsets: List[Size] = []
    total: Size = 0
    for b in bins:
        offsets.append(total)
        total = ex.simplify(ex.constant(total) + b.size)
    result = Plan({s: offsets[b] for s, b in where.items()}, where, total)
    _order(buffers, buffers.commands, result)
    return result


def _hints(buffers: Buffers) -> Dict[str, int]:
    """Typical values of symbols, for telling larger memory from smaller: 128, or the nearest that
    the range allows. Optional inputs are taken to be there."""
    function = buffers.function
    hints = {name: max(s.minimum, min(s.maximum, 128)) for name, s in function.module.symbols.items()}
    hints.update({f"present({index})": 1 for index in range(len(function.inputs))})
    return hints


# ---- Dependencies --------------------------------------------------------------------------------


@dataclass(eq=False)
class _Touch:
    key: Tuple[str, object]
    offset: Size
    end: Size
    writes: bool


def _order(buffers: Buffers, block: Sequence[Command], plan_: Plan) -> None:
    aliases = {("result", result): ("input", alias) for result, (alias, _must) in buffers.aliases.items()}
    touched = [_touches(command, plan_, aliases) for command in block]
    before: List[int] = []  # of each command, the set of those that are complete before it, as bits
    for index, command in enumerate(block):
        reached = 0
        for earlier in reversed(range(index)):
            if not reached >> earlier & 1 and any(_conflict(a, b) for a in touched[earlier] for b in touched[index]):
                command.predecessors.append(earlier)
                reached |= before[earlier] | 1 << earlier
        command.predecessors.sort()
        before.append(reached)
        for inner in command.blocks:
            _order(buffers, inner, plan_)


def _touches(command: Command, plan_: Plan, aliases: Mapping) -> List[_Touch]:
    found: Dict[Tuple, _Touch] = {}
    for access in command.touched():
        storage = access.storage
        if storage.kind == "constant":
            continue
        key = ("bin", plan_.bins[id(storage)]) if storage.kind == "transient" else (storage.kind, storage.target)
        key = aliases.get(key, key)
        writes = access.mode != "read"
        end = ex.simplify(ex.constant(access.offset) + access.size)
        found[(key, access.offset, end, writes)] = _Touch(key, access.offset, end, writes)
    return list(found.values())


def _conflict(a: _Touch, b: _Touch) -> bool:
    if a.key != b.key or not (a.writes or b.writes):
        return False
    return not (ex.proved_less_equal(a.end, b.offset) or ex.proved_less_equal(b.end, a.offset))
