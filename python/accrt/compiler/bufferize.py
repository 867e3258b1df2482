"""Bufferization: every value gets a place in memory, every operation becomes commands.

A place is a storage (an argument, a constant, a state, or transient memory), an offset in bytes,
and strides. Views only make places. A value whose end is known - a function's result, a part of a
concatenation, a state - is calculated right there where the kernel can write it so; else it is
copied. Results take the memory of an operand that dies, where the kernel allows. Nothing here
decides where in the arena transient memory lies: that is plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..bundle_writer import SymbolClass
from . import expr as ex
from . import ops, select
from .expr import Expr, Size
from .declared import DTYPE_BYTES, State, TensorType
from .ir import Block, Function, IRError, Op, Value
from .verifier import late_symbols
from .kernels.elementwise import Program
from .kernels.kerneldef import Launch, TensorSpec
from .passes.rewrite import uses


@dataclass(eq=False)
class Storage:
    """Memory of one function. `kind`: input, result, constant, state or transient; `target`: name
    of what it is of."""

    kind: str
    target: str
    size_bytes: Size
    first: int = -1  # transient: positions of the first and the last command that touch it
    last: int = -1
    workspace: bool = False
    role: str = ""  # constant: the component of a quantized one

    def touch(self, position: int) -> None:
        self.first = position if self.first < 0 else min(self.first, position)
        self.last = max(self.last, position)


@dataclass(frozen=True)
class Place:
    """Where a value lies; strides in elements."""

    storage: Storage
    offset_bytes: Size
    strides: Tuple[Size, ...]
    type: TensorType

    def spec(self) -> TensorSpec:
        return TensorSpec(self.type.dtype, self.type.shape, self.strides)

    def is_contiguous(self) -> bool:
        wanted = select.contiguous(self.type).strides
        return all(ex.same(size, 1) or ex.proved_equal(a, b) for size, a, b in zip(self.type.shape, self.strides, wanted))

    def range(self) -> Tuple[Size, Size]:
        """(offset, size) in bytes from the first to the last element; the size is 0 when there is
        none."""
        if self.is_contiguous():
            return self.offset_bytes, self.type.size_bytes
        last: Size = 1
        for size, stride in zip(self.type.shape, self.strides):
            last = ex.simplify((ex.constant(size) - 1) * stride + last)
        return self.offset_bytes, ex.maximum(ex.simplify(ex.constant(last) * DTYPE_BYTES[self.type.dtype]), 0)


@dataclass(eq=False)
class Access:
    """A command's use of memory: bytes [offset, offset + size) of a storage, read and or
    written."""

    storage: Storage
    offset: Size
    size: Size
    mode: str  # read, write or read_write


@dataclass(eq=False)
class Command:
    """dispatch, call, repeat, branch or check, with all that it touches."""

    kind: str
    name: str
    position: int
    accesses: Dict[str, Access] = field(default_factory=dict)
    launch: Optional[Launch] = None
    callee: str = ""
    scalars: Mapping[str, Size] = field(default_factory=dict)
    states: Tuple[Tuple[Storage, str], ...] = ()  # touched by a call, beside its arguments
    size: Size = 0  # repeat: count; branch: condition; check: the elements
    offset: Size = 0  # check: of the first element
    limit: Size = 0  # check: the dimension
    blocks: List[List["Command"]] = field(default_factory=list)
    predecessors: List[int] = field(default_factory=list)

    def touched(self) -> Iterable[Access]:
        yield from self.accesses.values()
        for storage, mode in self.states:
            yield Access(storage, 0, storage.size_bytes, mode)
        for block in self.blocks:
            for command in block:
                yield from command.touched()


@dataclass(eq=False)
class Buffers:
    """A function after bufferization."""

    function: Function
    commands: List[Command]
    storages: List[Storage]
    aliases: Dict[str, Tuple[str, bool]]  # result -> (input, must)


def bufferize(function: Function, touched_states: Mapping[str, Mapping[str, str]], family: str = "host") -> Buffers:
    """`touched_states`: for each function that this one may call, the states it touches and how."""
    return _Bufferizer(function, touched_states, family).run()


class _Bufferizer:
    def __init__(self, function: Function, touched_states: Mapping[str, Mapping[str, str]], family: str):
        self.function, self.touched_states, self.family = function, touched_states, family
        self.ranges = function.module.ranges()
        self.guards = _guards(function)
        self.late = late_symbols(function)
        self.storages: List[Storage] = []
        self.named: Dict[Tuple[str, str], Storage] = {}
        self.places: Dict[int, Place] = {}
        self.wanted: Dict[int, Place] = {}  # where a value should be calculated
        self.uses = uses(function)
        self.order: Dict[int, int] = {id(op): i for i, op in enumerate(function.body.walk())}
        self.last_use = self._last_uses()
        self.position = 0
        self.out: List[List[Command]] = []
        self.depth_of: Dict[int, int] = {}
        self.loops: List[Set[int]] = []  # transient storages made inside each open repeat

    # -- storages

    def storage(self, kind: str, target: str, size_bytes: Size) -> Storage:
        key = (kind, target)
        if key not in self.named:
            self.named[key] = Storage(kind, target, size_bytes)
            self.storages.append(self.named[key])
        return self.named[key]

    def transient(self, size_bytes: Size) -> Storage:
        made = Storage("transient", f"t{len(self.storages)}", self._guarded(ex.simplify(size_bytes)))
        self.storages.append(made)
        for loop in self.loops:
            loop.add(id(made))
        return made

    def _guarded(self, size: Size) -> Size:
        """The size where the optional inputs that give its symbols a value are there; else 0: a
        call without them must have an arena too."""
        conditions = list(dict.fromkeys(self.guards[name] for name in ex.symbols_of(size) if name in self.guards))
        for condition in conditions:
            size = ex.select(condition, size, 0)
        return size

    def fresh(self, type_: TensorType) -> Place:
        return self.whole(self.transient(type_.size_bytes), type_)

    @staticmethod
    def whole(storage: Storage, type_: TensorType) -> Place:
        return Place(storage, 0, select.contiguous(type_).strides, type_)

    def place(self, value: Value) -> Place:
        if id(value) not in self.places:
            if value.constant is None:
                raise IRError(f"function {self.function.name!r}: {value!r} has no place")
            self.places[id(value)] = self.whole(self.storage("constant", value.constant.name, value.type.size_bytes), value.type)
        return self.places[id(value)]

    # -- the function

    def run(self) -> Buffers:
        for i in self.function.inputs:
            if i.value is not None:
                self.places[id(i.value)] = self.whole(self.storage("input", i.name, i.value.type.size_bytes), i.value.type)
        for r in self.function.results:
            storage = self.storage("result", r.name, r.value.type.size_bytes)
            if not r.alias:
                self.want(r.value, self.whole(storage, r.value.type))
        required = [Command("check", what, 0, offset=ex.simplify(condition - 1), size=0, limit=0) for condition, what in self.function.required if not ex.same(ex.simplify(condition), 1)]
        commands = [*required, *self.block(self.function.body)]
        self.out.append(commands)
        for r in self.function.results:
            target = self.whole(self.storage("result", r.name, r.value.type.size_bytes), r.value.type)
            self.copy_unless_there(self.place(r.value), target, f"result {r.name}")
        self.out.pop()
        aliases = {r.name: (r.alias, r.alias_must) for r in self.function.results if r.alias}
        return Buffers(self.function, commands, self.storages, aliases)

    def block(self, block: Block) -> List[Command]:
        self.out.append([])
        for op in reversed(block.ops):  # a part may be a concatenation
            if op.name == "aten.cat":
                self._want_parts(op)
        for op in block.ops:
            if op.name in ("accrt.state_write", "accrt.write_input"):
                self._want_sink(op)
        for op in block.ops:
            if op.name == "aten.view":
                self._want_reshaped(op)
        for op in block.ops:
            self.op(op)
        return self.out.pop()

    def op(self, op: Op) -> None:
        special = getattr(self, "_" + op.name.replace(".", "_"), None)
        if special is not None:
            special(op)
        elif ops.OPS[op.name].view:
            self.places[id(op.result)] = self.view(op, self.place(op.operands[0]))
        else:
            self.compute(op)

    # -- where values should be calculated

    def want(self, value: Value, place: Place) -> None:
        """Asks for a value to be calculated at a place; through reshapes, which is the same
        memory."""
        if id(value) in self.wanted or value.op is None or value.constant is not None:
            return
        op = value.op
        if op.name == "aten.view":
            source = op.operands[0]
            if place.is_contiguous():
                self.wanted[id(value)] = place
                self.want(source, Place(place.storage, place.offset_bytes, select.contiguous(source.type).strides, source.type))
            return
        if op.name in ("aten.permute",):
            dims = [ops.axis_of(d, value.rank) for d in op.attrs["dims"]]
            strides: List[Size] = [0] * value.rank
            for axis, d in enumerate(dims):
                strides[d] = place.strides[axis]
            self.want(op.operands[0], Place(place.storage, place.offset_bytes, tuple(strides), op.operands[0].type))
            return
        if not ops.OPS.get(op.name) or not ops.OPS[op.name].view:
            self.wanted[id(value)] = place

    def _want_parts(self, op: Op) -> None:
        """Operands of a concatenation are calculated in it, where they are not wanted elsewhere."""
        whole = self.wanted.get(id(op.result))
        if whole is None:
            whole = self.fresh(op.result.type)
            self.wanted[id(op.result)] = whole
        for value, place in self._parts(op, whole):
            if value.op is not None and value.op.block is op.block:
                self.want(value, place)

    def _want_reshaped(self, op: Op) -> None:
        """What is transposed and then reshaped is calculated in the transposed order, so that the
        reshape is no copy."""
        source = op.operands[0]
        if id(op.result) in self.wanted or source.op is None or source.op.name != "aten.permute":
            return
        base = source.op.operands[0]
        if base.op is None or base.op.block is not op.block or not select.has_rule(base.op.name, self.family) or id(base) in self.wanted:
            return
        self.want(op.result, self.fresh(op.result.type))

    def _parts(self, op: Op, whole: Place) -> List[Tuple[Value, Place]]:
        axis = ops.axis_of(op.attrs["dim"], op.result.rank)
        step = ex.simplify(ex.constant(whole.strides[axis]) * DTYPE_BYTES[op.result.dtype])
        at: Size = 0
        parts = []
        for value in op.operands:
            offset = ex.simplify(ex.constant(at) * step + whole.offset_bytes)
            parts.append((value, Place(whole.storage, offset, whole.strides, value.type)))
            at = ex.simplify(ex.constant(at) + value.shape[axis])
        return parts

    def _sink(self, op: Op) -> Place:
        value = op.operands[0]
        if op.name == "accrt.write_input":
            found = next(i for i in self.function.inputs if i.name == op.attrs["name"])
            return self.whole(self.storage("input", found.name, found.value.type.size_bytes), value.type)
        state: State = op.attrs["state"]
        strides = select.contiguous(state.type).strides
        elements: Size = 0
        for offset, stride in zip(op.attrs["offsets"], strides):
            elements = ex.simplify(ex.constant(offset) * stride + elements)
        offset_bytes = ex.simplify(ex.constant(elements) * DTYPE_BYTES[state.type.dtype])
        return Place(self.storage("state", state.name, state.type.size_bytes), offset_bytes, strides, value.type)

    def _want_sink(self, op: Op) -> None:
        """What goes into a state or an input is calculated there, if nothing reads the old content
        in between."""
        value, target = op.operands[0], self._sink(op)
        base = self._base(value)
        if base is None or base.op is None or base.op.block is not op.block or self._chain_uses(value) != 1:
            return
        # An element-wise producer may read the very place that it writes; any other must be done
        # with reading it.
        begin = self.order[id(base.op)] + (1 if base.op.name == "accrt.elementwise" and op.name == "accrt.write_input" else 0)
        for other in op.block.walk():
            if begin <= self.order[id(other)] < self.order[id(op)] and other is not value.op:
                if self._touches(other, target.storage):
                    return
        self.want(value, target)

    def _base(self, value: Value) -> Optional[Value]:
        while value.op is not None and value.op.name in ("aten.view", "aten.permute"):
            value = value.op.operands[0]
        return value if value.op is not None else None

    def _chain_uses(self, value: Value) -> int:
        most = len(self.uses.get(id(value), ()))
        while value.op is not None and value.op.name in ("aten.view", "aten.permute"):
            value = value.op.operands[0]
            most = max(most, len(self.uses.get(id(value), ())))
        return most

    def _touches(self, op: Op, storage: Storage) -> bool:
        if op.regions or op.name == "accrt.call":
            return True
        if op.name == "accrt.write_input" and self._sink(op).storage is storage:
            return True
        if storage.kind == "state" and op.name != "accrt.state_read" and any(state.name == storage.target for state, _written in ops.states_of(op)):
            return True
        return any(v is not None and self._root(v) == (storage.kind, storage.target) for v in op.operands)

    def _root(self, value: Value) -> Optional[Tuple[str, str]]:
        """The state or input that a value is a view of."""
        while value.op is not None and ops.OPS.get(value.op.name) is not None and ops.OPS[value.op.name].view:
            value = value.op.operands[0]
        if value.op is not None and value.op.name == "accrt.state_read":
            return ("state", value.op.attrs["state"].name)
        if value.op is None and value.constant is None:
            found = [i.name for i in self.function.inputs if i.value is value]
            return ("input", found[0]) if found else None
        return None

    # -- views

    def view(self, op: Op, source: Place) -> Place:
        type_ = op.result.type
        if op.name == "aten.permute":
            dims = [ops.axis_of(d, type_.rank) for d in op.attrs["dims"]]
            return Place(source.storage, source.offset_bytes, tuple(source.strides[d] for d in dims), type_)
        if op.name == "aten.expand":
            lead = type_.rank - len(source.strides)
            strides: List[Size] = [0] * lead
            for size, wanted, stride in zip(source.type.shape, type_.shape[lead:], source.strides):
                strides.append(0 if ex.same(size, 1) and not ex.same(wanted, 1) else stride)
            return Place(source.storage, source.offset_bytes, tuple(strides), type_)
        if op.name in ("aten.slice", "aten.select"):
            return self._cut(op, source)
        strides = self._view_strides(source, type_.shape)
        if strides is None:
            source = self.contiguous(source, op)
            strides = select.contiguous(type_).strides
        return Place(source.storage, source.offset_bytes, strides, type_)

    def check(self, what: str, axis: int, type_: TensorType, offset: Size, size: Size) -> None:
        """Demands that elements from `offset` on lie in a dimension, unless ranges of symbols prove
        it."""
        limit = type_.shape[axis]
        sides = (ex.constant(offset), ex.constant(size), ex.constant(limit) - offset - size)
        if all((ex.bounds(side, self.ranges)[0] or 0) >= 0 and ex.bounds(side, self.ranges)[0] is not None for side in sides):
            return
        made = Command("check", f"{what}, dimension {axis} of {str(type_)[:500]}", self.position, offset=offset, size=size, limit=limit)
        # Before all else of the block: the error names the dimension that was exceeded, and not a
        # command's bytes.
        block = self.out[-1]
        block.insert(sum(command.kind == "check" for command in block), made)

    def _called(self, value: Value) -> str:
        """What a message calls a value: the name of what it is a view of."""
        while value.op is not None and not value.name and ops.OPS.get(value.op.name) is not None and ops.OPS[value.op.name].view:
            value = value.op.operands[0]
        if value.constant is not None:
            return f"constant {value.constant.name!r}"
        if value.op is not None and value.op.name == "accrt.state_read":
            return f"state {value.op.attrs['state'].name!r}"
        if value.op is None:
            found = [i.name for i in self.function.inputs if i.value is value]
            return repr(found[0]) if found else "a carried value"
        return repr(value.name) if value.name else f"the result of {self._name(value.op)}"

    def _cut(self, op: Op, source: Place) -> Place:
        axis = ops.axis_of(op.attrs["dim"], len(source.strides))
        step = source.strides[axis]
        label = f"{op.label}: " if op.label else ""
        what = f"{label}{op.name.rpartition('.')[2]} of {self._called(op.operands[0])}"
        if op.name == "aten.select":
            index, strides = op.attrs["index"], source.strides[:axis] + source.strides[axis + 1 :]
            if isinstance(index, int) and index < 0:
                index = ex.simplify(ex.constant(source.type.shape[axis]) + index)
            self.check(what, axis, source.type, index, 1)
        else:
            index, end = ops.slice_bounds(op)
            self.check(what, axis, source.type, index, ex.simplify(ex.constant(end) - index))
            scaled = ex.simplify(ex.constant(step) * op.attrs["step"])
            strides = source.strides[:axis] + (scaled,) + source.strides[axis + 1 :]
        offset = ex.simplify(ex.constant(index) * step * DTYPE_BYTES[source.type.dtype] + source.offset_bytes)
        return Place(source.storage, offset, strides, op.result.type)

    @staticmethod
    def _view_strides(source: Place, shape: Sequence[Size]) -> Optional[Tuple[Size, ...]]:
        """Strides of a reshape without a copy, or None: old axes are joined where they are walked
        as one, then split."""
        if source.is_contiguous():
            return select.contiguous(TensorType(source.type.dtype, tuple(shape))).strides
        old = [(size, stride) for size, stride in zip(source.type.shape, source.strides) if not ex.same(size, 1)]
        strides: List[Size] = []
        at = 0
        wanted = [size for size in shape]
        index = 0
        while index < len(wanted):
            if ex.same(wanted[index], 1):
                strides.append(0)
                index += 1
                continue
            if at >= len(old):
                return None
            group, total = [index], wanted[index]
            block_size, joined = old[at][0], [old[at]]
            at += 1
            for _step in range(16):
                if ex.proved_equal(total, block_size):
                    break
                if index + len(group) < len(wanted) and _divides_more(total, block_size):
                    group.append(index + len(group))
                    total = ex.simplify(ex.constant(total) * wanted[group[-1]])
                elif at < len(old):
                    size, stride = old[at]
                    if not ex.proved_equal(joined[-1][1], ex.constant(stride) * size):
                        return None
                    joined.append(old[at])
                    block_size = ex.simplify(ex.constant(block_size) * size)
                    at += 1
                else:
                    return None
            if not ex.proved_equal(total, block_size):
                return None
            step: Size = joined[-1][1]
            inner: List[Size] = []
            for member in reversed(group):
                inner.append(step)
                step = ex.simplify(ex.constant(step) * wanted[member])
            strides += reversed(inner)
            index += len(group)
        return tuple(strides) if at == len(old) else None

    def contiguous(self, source: Place, op: Op) -> Place:
        if source.is_contiguous():
            return source
        target = self.fresh(source.type)
        self.emit_copy(source, target, op.label or op.name)
        return target

    # -- operations with kernels

    def compute(self, op: Op) -> None:
        operands = [None if v is None else self.place(v) for v in op.operands]
        targets = [self._target(op, index, operands) for index in range(len(op.results))]
        lowering, operands, targets = self._lowered(op, operands, targets)
        states = [self.whole(self.storage("state", s.name, s.type.size_bytes), s.type) for s, _written in ops.states_of(op)]
        temporaries = [self.fresh(type_) for type_ in lowering.temporaries]
        places = {"in": operands, "out": targets, "temporary": temporaries, "state": states}
        self._steps(op, lowering, places, [a for a in lowering.alternatives if ex.is_known(a[0], self.late)])
        for value, place in zip(op.results, targets):
            self.places[id(value)] = place

    def _steps(self, op: Op, lowering: select.Lowering, places: Mapping[str, Sequence[Optional[Place]]], choices: Sequence) -> None:
        if not choices:
            for step in (*lowering.before, lowering):
                self._step(op, step, places)
            return
        (condition, chosen), *rest = choices
        command = self.command("branch", self._name(op))
        command.size = condition
        for made, left in ((chosen, ()), (lowering, rest)):
            self.out.append([])
            self._steps(op, made, places, left)
            command.blocks.append(self.out.pop())

    def _step(self, op: Op, step: select.Lowering, places: Mapping[str, Sequence[Optional[Place]]]) -> None:
        command = self.command("dispatch", self._name(op))
        command.launch = step.launch
        bound = step.launch.buffers
        modes = {bound[p.name].operand: p.access for p in step.launch.kernel.params if p.access != "none" and p.name in bound}
        for name, (side, index) in step.bindings.items():
            self.access(command, name, places[side][index], modes[name])
        if any(param.kind == "workspace" for param in step.launch.kernel.params):
            self._workspace(command, step.launch)

    def _workspace(self, command: Command, launch: Launch) -> None:
        param = next(p for p in launch.kernel.params if p.kind == "workspace")
        # of empty tensors: it is named all the same
        nothing = isinstance(launch.workspace_bytes, int) and launch.workspace_bytes == 0
        storage = self.transient(1 if nothing else launch.workspace_bytes)
        storage.workspace = True
        storage.touch(command.position)
        command.accesses[param.name] = Access(storage, 0, storage.size_bytes, "read_write")

    def _target(self, op: Op, index: int, operands: Sequence[Optional[Place]]) -> Place:
        value = op.results[index]
        wanted = self.wanted.get(id(value))
        if wanted is not None and not self._changes_what_it_reads(op, operands, wanted):
            return wanted
        self.wanted.pop(id(value), None)  # then the operation that wanted it copies
        shared = self._shared(op, value, operands)
        return shared if shared is not None else self.fresh(value.type)

    def _changes_what_it_reads(self, op: Op, operands: Sequence[Optional[Place]], target: Place) -> bool:
        """Whether an operation that writes into a state or an input would read elements that it has
        written."""
        if target.storage.kind not in ("state", "input"):
            return False
        if target.storage.kind == "state" and any(state.name == target.storage.target for state, _written in ops.states_of(op)):
            return True
        return any(
            place is not None and place.storage is target.storage and not (select.may_share(op, index) and _is_same(place, target)) and not _are_apart(place, target)
            for index, place in enumerate(operands)
        )

    def _shared(self, op: Op, value: Value, operands: Sequence[Optional[Place]]) -> Optional[Place]:
        """The place of an operand that dies here and that the kernel may overwrite."""
        if len(op.results) != 1:
            return None
        for index, place in enumerate(operands):
            if place is None or not select.may_share(op, index) or place.storage.kind != "transient" or place.storage.workspace:
                continue
            same = ex.same_shape(place.type.shape, value.shape) and DTYPE_BYTES[place.type.dtype] == DTYPE_BYTES[value.dtype]
            if not same or not place.is_contiguous() or self._lives_after(place.storage, op):
                continue
            # The same operand twice is read element by element where that is all that is read; a
            # product reads whole rows.
            elementwise = op.name == "accrt.elementwise"
            rest = [p for at, p in enumerate(operands) if p is not None and at != index and not (elementwise and p is place)]
            if any(other.storage is place.storage for other in rest):
                continue
            if self.loops and id(place.storage) not in self.loops[-1]:
                continue
            return Place(place.storage, place.offset_bytes, place.strides, value.type)
        return None

    def _last_uses(self) -> Dict[int, float]:
        """Order of the last operation that uses each value. A yield lives until the end of what
        holds the block, and what a loop uses from outside until the loop's end."""
        last: Dict[int, float] = {}
        blocks = self._defining_blocks()
        for value_id, users in self.uses.items():
            for user in users:
                order = len(self.order) + 1 if user is None else self._end_of_use(user, blocks.get(value_id))
                last[value_id] = max(last.get(value_id, -1), order)
        return last

    def _defining_blocks(self) -> Dict[int, Block]:
        found: Dict[int, Block] = {}
        for block in self.function.body.blocks():
            found.update({id(value): block for value in block.args})
            found.update({id(value): block for op in block.ops for value in op.results})
        return found

    def _end_of_use(self, user: Op, defined: Optional[Block]) -> float:
        """`defined` None: the function's own block."""
        end = self._end(user)
        block = user.block
        while block is not defined and block.parent is not None:
            end = max(end, self._end(block.parent))
            block = block.parent.block
        return end

    def _end(self, op: Op) -> float:
        inside = [self.order[id(inner)] for region in op.regions for inner in region.walk()]
        return max([self.order[id(op)], *inside]) + (0.5 if op.regions else 0)

    def _lives_after(self, storage: Storage, op: Op) -> bool:
        """Whether any value in the storage is used after `op`."""
        for value_id, place in self.places.items():
            if place.storage is storage and self.last_use.get(value_id, -1) > self.order[id(op)]:
                return True
        return any(place.storage is storage for value_id, place in self.wanted.items() if value_id not in self.places)

    def _lowered(self, op: Op, operands: List[Optional[Place]], targets: List[Place]):
        """The lowering for these places; with contiguous copies of operands, or a copy of the
        result, where it needs them."""

        def attempt(ins: Sequence[Optional[Place]], outs: Sequence[Place]):
            return select.lower(op, [None if p is None else p.spec() for p in ins], [p.spec() for p in outs], self.family)

        try:
            return attempt(operands, targets), operands, targets
        except ValueError as error:
            first_error = error
        plain = [self.whole(Storage("transient", "trial", v.type.size_bytes), v.type) for v in op.results]
        choices = [(False, True), (True, False), (True, True)]
        for copy_inputs, copy_results in choices:
            trial = [None if p is None else self._as_contiguous(p) for p in operands] if copy_inputs else operands
            try:
                attempt(trial, plain if copy_results else targets)
            except ValueError:
                continue
            ins = [None if p is None else self.contiguous(p, op) for p in operands] if copy_inputs else operands
            outs = targets
            if copy_results:
                # The wanted place cannot be written by this kernel: the operation that wanted it
                # copies.
                for value in op.results:
                    self.wanted.pop(id(value), None)
                outs = [self.fresh(value.type) for value in op.results]
            return attempt(ins, outs), list(ins), list(outs)
        raise select.explain(op, [None if p is None else p.spec() for p in operands], [p.spec() for p in targets], first_error)

    @staticmethod
    def _as_contiguous(place: Place) -> Place:
        return Place(place.storage, 0, select.contiguous(place.type).strides, place.type)

    def _name(self, op: Op) -> str:
        short = op.name.rpartition(".")[2]
        if op.name == "accrt.staged":
            short = "+".join([*_work_of(op.attrs["before"]), op.attrs["core"].rpartition(".")[2], *_work_of(op.attrs["after"])][:6])
        if op.name == "accrt.elementwise":
            short = "+".join(_work_of(op.attrs["program"])[:6]) or "fill"
        if op.name == "accrt.kernel":  # its user's
            kernel = op.attrs["kernel"]
            short = (kernel.cuda or kernel).name if self.family == "cuda" else kernel.name
        if op.name not in ("accrt.state_read", "accrt.state_write", "accrt.kernel"):
            # where an index fails, the message has the command's name
            short = " ".join([short, *(state.name for state, _written in ops.states_of(op))])
        return f"{op.label}/{short}" if op.label else short

    # -- commands

    def command(self, kind: str, name: str) -> Command:
        made = Command(kind, name, self.position)
        self.position += 1
        self.out[-1].append(made)
        return made

    def access(self, command: Command, name: str, place: Place, mode: str) -> None:
        offset, size = place.range()
        if not ex.same(offset, 0) and (ex.bounds(place.type.elements, self.ranges)[0] or 0) < 1:
            # where there is no element, stay inside all the same
            offset = ex.minimum(offset, place.storage.size_bytes)
        place.storage.touch(command.position)
        command.accesses[name] = Access(place.storage, offset, size, mode)

    def emit_copy(self, source: Place, target: Place, name: str) -> None:
        lowering = select.copy(source.spec(), target.spec(), self.family)
        command = self.command("dispatch", f"{name}/copy")
        command.launch = lowering.launch
        self.access(command, "x", source, "read")
        self.access(command, "out", target, "write")

    def copy_unless_there(self, source: Place, target: Place, name: str) -> None:
        there = source.storage is target.storage and ex.proved_equal(source.offset_bytes, target.offset_bytes)
        same = all(ex.same(size, 1) or ex.proved_equal(a, b) for size, a, b in zip(source.type.shape, source.strides, target.strides))
        if not (there and same):
            self.emit_copy(source, target, name)

    # -- operations without a kernel of their own

    def _accrt_component(self, op: Op) -> None:
        name, role = op.operands[0].constant.name, op.attrs["role"]
        storage = self.storage("constant", f"{name}\0{role}", op.result.type.size_bytes)
        storage.target, storage.role = name, role
        self.places[id(op.result)] = self.whole(storage, op.result.type)

    def _aten_cat(self, op: Op) -> None:
        whole = self.wanted[id(op.result)]
        self.places[id(op.result)] = whole
        for value, place in self._parts(op, whole):
            self.copy_unless_there(self.place(value), place, self._name(op))

    def _accrt_state_read(self, op: Op) -> None:
        state: State = op.attrs["state"]
        place = self.whole(self.storage("state", state.name, state.type.size_bytes), state.type)
        if self._changes_while_used(op):
            target = self.fresh(state.type)
            self.emit_copy(place, target, self._name(op))
            place = target
        self.places[id(op.result)] = place

    def _changes_while_used(self, op: Op) -> bool:
        """Whether the state is written after it was read and before the last use of what was
        read."""
        state, begin = op.attrs["state"], self.order[id(op)]
        users = [value for value in self._views_of(op.result)]
        end = max((self.last_use.get(id(value), -1) for value in users), default=-1)
        for other in self.function.body.walk():
            writes = any(written and touched is state for touched, written in ops.states_of(other))
            if other.name == "accrt.call":
                writes = "write" in self.touched_states[other.attrs["callee"]].get(state.name, "")
            if writes and begin < self.order[id(other)] < end:
                return True
        return False

    def _views_of(self, value: Value) -> Iterable[Value]:
        yield value
        for op in self.uses.get(id(value), ()):
            if op is not None and ops.OPS.get(op.name) is not None and ops.OPS[op.name].view:
                yield from self._views_of(op.result)

    def _accrt_state_write(self, op: Op) -> None:
        value, state = op.operands[0], op.attrs["state"]
        what = (f"{op.label}: " if op.label else "") + f"write of state {state.name!r}"
        for axis, (offset, size) in enumerate(zip(op.attrs["offsets"], value.shape)):
            self.check(what, axis, state.type, ex.simplify(offset), size)
        self._accrt_write_input(op)

    def _accrt_write_input(self, op: Op) -> None:
        self.copy_unless_there(self.place(op.operands[0]), self._sink(op), self._name(op))

    def _accrt_call(self, op: Op) -> None:
        callee = self.function.module.functions[op.attrs["callee"]]
        operands = [self.contiguous(self.place(v), op) for v in op.operands]
        changed = [i.name for i in callee.inputs if i.value is not None and i.access != "read"]
        inputs = [i for i in callee.inputs if i.value is not None]
        for index, i in enumerate(inputs):
            if i.name in changed:
                fresh = self.fresh(operands[index].type)
                self.emit_copy(operands[index], fresh, self._name(op))
                operands[index] = fresh
        targets = [self._target(op, index, []) for index in range(len(op.results))]
        targets = [t if t.is_contiguous() else self.fresh(t.type) for t in targets]
        command = self.command("call", op.label or callee.name)
        command.callee, command.scalars = callee.name, op.attrs["scalars"]
        for i, place in zip(inputs, operands):
            self.access(command, "in:" + i.name, place, "read_write" if i.name in changed else "read")
        for r, place in zip(callee.results, targets):
            self.access(command, "out:" + r.name, place, "write")
        states = []
        for name, mode in self.touched_states[callee.name].items():
            state = self.function.module.states[name]
            states.append((self.storage("state", name, state.type.size_bytes), mode))
        command.states = tuple(states)
        for value, place in zip(op.results, targets):
            self.places[id(value)] = place

    def _accrt_repeat(self, op: Op) -> None:
        region = op.regions[0]
        carried = [self.fresh(value.type) for value in op.results]
        for value, target in zip(op.operands, carried):
            self.emit_copy(self.place(value), target, self._name(op))
        for value, place in zip((*region.args, *op.results), (*carried, *carried)):
            self.places[id(value)] = place
        command = self.command("repeat", op.label or "repeat")
        command.size = op.attrs["count"]
        self.loops.append(set())
        body = self.block(region)
        self.out.append(body)
        self._carry(op, region, carried)
        self.out.pop()
        self.loops.pop()
        command.blocks = [body]
        self._span(command)

    def _carry(self, op: Op, region: Block, carried: Sequence[Place]) -> None:
        """What a run yields goes where the next one reads it; through copies aside where one target
        is another's source."""
        sources = [self.place(value) for value in region.yields]
        for index, source in enumerate(sources):
            if any(source.storage is c.storage for i, c in enumerate(carried) if i != index):
                aside = self.fresh(source.type)
                self.emit_copy(source, aside, self._name(op))
                sources[index] = aside
        for source, target in zip(sources, carried):
            self.copy_unless_there(source, target, self._name(op))

    def _span(self, command: Command) -> None:
        """Memory from outside that a loop uses lives through all of it."""
        inside = {a.position for a in _all(command.blocks)}
        if not inside:
            return
        first, last = command.position, max(inside)
        for access in command.touched():
            storage = access.storage
            if storage.kind == "transient" and (storage.first < first or storage.last > last):
                storage.touch(first)
                storage.touch(last)

    def _accrt_cond(self, op: Op) -> None:
        targets = [self._target(op, index, []) for index in range(len(op.results))]
        command = self.command("branch", op.label or "branch")
        command.size = op.attrs["condition"]
        for region in op.regions:
            body = self.block(region)
            self.out.append(body)
            for value, target in zip(region.yields, targets):
                self.copy_unless_there(self.place(value), target, self._name(op))
            self.out.pop()
            command.blocks.append(body)
        for value, place in zip(op.results, targets):
            self.places[id(value)] = place


def _is_same(a: Place, b: Place) -> bool:
    """Whether each element of one lies where the other has it."""
    if not ex.same_shape(a.type.shape, b.type.shape) or DTYPE_BYTES[a.type.dtype] != DTYPE_BYTES[b.type.dtype]:
        return False
    strides = all(ex.same(size, 1) or ex.proved_equal(x, y) for size, x, y in zip(a.type.shape, a.strides, b.strides))
    return strides and ex.proved_equal(a.offset_bytes, b.offset_bytes)


def _are_apart(a: Place, b: Place) -> bool:
    """Whether one is proved to end before the other begins."""
    (first, size), (second, more) = a.range(), b.range()
    return ex.proved_less_equal(ex.simplify(ex.constant(first) + size), second) or ex.proved_less_equal(ex.simplify(ex.constant(second) + more), first)


def _work_of(program: Program) -> List[str]:
    """Names of what a program does."""
    return ["index_select" if n.op == "take" else n.op for n in program.nodes if n.op not in ("input", "const", "symbol", "index")]


def _guards(function: Function) -> Dict[str, Expr]:
    """For each symbol that optional inputs alone give a value: whether one of them is there. A
    session's have theirs anyway."""
    found: Dict[str, Expr] = {}
    always = {s.name for s in function.module.symbols.values() if s.symbol_class == SymbolClass.SESSION}
    always |= {i.symbol for i in function.inputs if i.symbol}
    for index, i in enumerate(function.inputs):
        shape = i.value.shape if i.value is not None else ()
        bound = {size.value for size in shape if isinstance(size, Expr) and size.op == "symbol"}
        if not i.optional:
            always |= bound
            continue
        for name in bound:
            found[name] = Expr("or", (found[name], ex.present(index))) if name in found else ex.present(index)
    return {name: condition for name, condition in found.items() if name not in always}


def _all(blocks: Sequence[Sequence[Command]]) -> Iterable[Command]:
    for block in blocks:
        for command in block:
            yield command
            yield from _all(command.blocks)


def _divides_more(total: Size, whole: Size) -> bool:
    """Whether `total` is a proper part of `whole`: more new axes are needed to fill the old one."""
    if isinstance(total, int) and isinstance(whole, int):
        return total < whole
    quotient = ex.simplify(ex.constant(whole) // ex.constant(total)) if not ex.same(total, 0) else 0
    return ex.proved_equal(ex.constant(quotient) * total, whole) and not ex.proved_equal(quotient, 1)
