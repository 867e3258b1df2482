"""What is checked of the commands of a function (rules 72 and 81 to 94). They are those of the
tables that verify.py makes."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import records as r
from .container import FormatError

# What an expression is made of: symbol classes in the low four bits, PRESENT; the depth of repeats
# apart.
SPECIALIZE, BUCKET, RUNTIME, SESSION, PRESENT = 1, 2, 4, 8, 16
SYMBOLS, ANY = 15, 31
NUMBERS = range(r.MAX_RANK)


class Scope(NamedTuple):
    """Nodes that may be referred to, and from where."""

    first: int
    count: int
    allowed: int
    depth: int = 0


class Command(NamedTuple):
    """A command: its header, and where its own fields begin in the stream."""

    header: Any
    fields: int
    end: int


class Walk:
    """The commands of one function."""

    def __init__(self, tables: Any, function: int, scope: Scope):
        self.tables = tables
        self.stream = tables.stream
        self.index = function
        self.function = tables.functions[function]
        self.facts = tables.facts[function]
        self.view_first = tables.next_view
        self.scope = scope
        self.place = 0
        self.where = ""

    def fail(self, rule: int, message: str) -> FormatError:
        return self.tables.fail(rule, f"{self.where}: {message}")

    def block(self, block: int, block_depth: int, scope: Scope) -> None:
        tables = self.tables
        record, first = tables.blocks[block], tables.block_first[block]
        tables.next_block += 1
        self.facts.commands += record.command_count
        for check in (self._command, self._nested):
            for place in range(record.command_count):
                self.where = f"commands[{first + place}]"
                self.scope, self.place = scope, place
                check(tables.commands[first + place], block_depth)

    def _enter(self, block: int, block_depth: int, scope: Scope) -> None:
        if block != self.tables.next_block or block >= len(self.tables.blocks):
            raise self.fail(81, f"block {block}, the next one is {self.tables.next_block}")
        if block_depth == r.MAX_BLOCK_DEPTH:
            raise self.fail(82, "blocks nest too deep")
        where = self.where
        self.block(block, block_depth + 1, scope)
        self.where = where

    def _command(self, command: Command, _block_depth: int) -> None:
        self._header(command)
        opcode = command.header.opcode
        if opcode == r.OP_DISPATCH:
            self._dispatch(command)
        elif opcode == r.OP_COPY:
            self._copy(command)
        elif opcode == r.OP_FILL:
            self._fill(command)
        elif opcode == r.OP_CALL:
            self._call(command)
        elif opcode == r.OP_REPEAT:
            self._repeat(command)
        elif opcode == r.OP_BRANCH:
            self._branch(command)
        elif opcode == r.OP_MARKER:
            self._marker(command)

    def _header(self, command: Command) -> None:
        header, tables = command.header, self.tables
        tables._string(header.name, self.where + ".name")
        known = header.opcode in r.COMMAND_KINDS
        wanted = r.COMMAND_KINDS[header.opcode][1] if known else 0
        if header.flags & ~1 or (known and header.flags != wanted):
            raise self.fail(84, f"flags 0x{header.flags:x} of opcode {header.opcode}")
        if not known and header.flags & 1 and not self.function.required_features & ~r.FUNCTION_FEATURES:
            raise self.fail(85, f"the file requires opcode {header.opcode}")
        if header.reserved or (header.location != r.NONE and header.location >= len(tables.locations)):
            raise self.fail(86, f"reserved {header.reserved}, location {header.location}")
        self._predecessors(command)

    def _predecessors(self, command: Command) -> None:
        count = command.header.predecessor_count
        first = command.end - (count * 4 + 7) // 8 * 8
        numbers = self.stream[first : command.end].cast("I") if count else ()
        previous = -1
        for index in range(count):
            if command.header.opcode == r.OP_BARRIER or not previous < numbers[index] < self.place:
                raise self.fail(87, f"predecessor {numbers[index]} of command {self.place}")
            previous = numbers[index]
        if count % 2 and numbers[count]:
            raise self.fail(86, "padding after predecessors is not 0")

    def _number(self, node: int, what: str) -> None:
        self.tables._expression(self.scope, node, f"{self.where}.{what}")

    def _size(self, node: int, what: str) -> None:
        self.tables._size(self.scope, node, f"{self.where}.{what}")

    # -- Ranges and operands --

    def _slot_access(self, slot: Any) -> int:
        if slot.kind == 1:
            return 1
        if slot.kind:
            return 3
        kind = self.tables.arguments[self.function.argument_first + slot.index].kind
        return 0 if kind == 4 else 1 if kind == 0 else 3

    def _range(self, slot: int, access: int, offset: int, size: int, wanted: int, what: str) -> None:
        tables, allowed = self.tables, 0
        if slot < self.function.slot_count:
            allowed = self._slot_access(tables.slots[self.function.slot_first + slot])
        if not allowed:
            raise self.fail(88, f"{what}: slot {slot} has no storage")
        if access != wanted or wanted & ~allowed:
            raise self.fail(89, f"{what}: access {access} to slot {slot}, wanted {wanted}, allowed {allowed}")
        self._size(offset, what)
        if size != r.NONE:
            self._size(size, what)

    def _view(self, index: int) -> None:
        tables = self.tables
        if not self.view_first <= index <= tables.next_view or index >= len(tables.views):
            raise self.fail(72, f"view {index}, the next one is {tables.next_view}")
        if index == tables.next_view:
            tables.next_view += 1
        view = tables.views[index]
        tables._dtype(view.dtype, f"views[{index}]")
        if view.rank > r.MAX_RANK:
            raise tables.fail(72, f"views[{index}]: rank {view.rank}")
        for place in NUMBERS:
            shape, stride = view[2 + place], view[10 + place]
            if place < view.rank:
                self._size(shape, "view.shape")
                self._number(stride, "view.strides")
            elif (shape, stride) != (r.NONE, r.NONE):
                raise tables.fail(72, f"views[{index}]: entry {place} past rank {view.rank}")

    def _operand(self, at: int, kind: int, access: int, size_bytes: int, optional: bool) -> None:
        operand = r.OPERAND.at(self.stream, at)
        if operand.kind != kind and not (operand.kind == 6 and optional):
            raise self.fail(91, f"an operand of kind {operand.kind}, declared is {kind}")
        kind = operand.kind
        span = (operand.slot, operand.access, operand.offset, operand.size)
        clean = (
            not operand.reserved
            and (kind == 4 or operand.expression == r.NONE)
            and (kind == 2 or operand.view == r.NONE)
            and (kind in (1, 2, 5) or span == (r.NONE, 0, r.NONE, r.NONE))
            and (kind == 3 or not operand.immediate)
        )
        if not clean:
            raise self.fail(86, f"an operand of kind {kind} with a field that its kind does not use")
        if kind == 3:
            if size_bytes < 8 and operand.immediate >> (8 * size_bytes):
                raise self.fail(91, f"0x{operand.immediate:x} in {size_bytes} bytes")
        elif kind == 4:
            self._number(operand.expression, "operands")
        elif kind != 6:
            if kind == 2:
                self._view(operand.view)
            if kind == 5 and not self._is_arena(operand.slot):
                raise self.fail(91, f"a workspace in slot {operand.slot}")
            self._range(*span, access, "operands")

    def _is_arena(self, slot: int) -> bool:
        if slot >= self.function.slot_count:
            return False
        return bool(self.tables.slots[self.function.slot_first + slot].kind == 3)

    # -- By opcode --

    def _dispatch(self, command: Command) -> None:
        tables, fields = self.tables, r.DISPATCH.at(self.stream, command.fields)
        kernel = tables.kernels[fields.kernel] if fields.kernel < len(tables.kernels) else None
        if kernel is None or fields.operand_count != kernel.parameter_count:
            raise self.fail(90, f"kernel {fields.kernel} with {fields.operand_count} operands")
        if fields.reserved:
            raise self.fail(86, f"reserved {fields.reserved}")
        for node in (fields.x, fields.y, fields.z):
            self._size(node, "grid")
        at = command.fields + r.DISPATCH.size_bytes
        for place in range(fields.operand_count):
            parameter = tables.parameters[kernel.parameter_first + place]
            self._operand(at, parameter.kind, parameter.access, parameter.size_bytes, bool(parameter.flags & 1))
            at += r.OPERAND.size_bytes

    def _copy(self, command: Command) -> None:
        fields = r.COPY.at(self.stream, command.fields)
        if fields.reserved or fields.s_size != r.NONE or fields.t_size != r.NONE:
            raise self.fail(86, "reserved or sizes of a copy")
        self._range(*fields[0:4], 1, "source")
        self._range(*fields[4:8], 2, "target")
        for node in fields[8:11]:
            self._size(node, "extent")
        for node in (fields.s_row, fields.t_row, fields.s_plane, fields.t_plane):
            self._size(node, "stride")

    def _fill(self, command: Command) -> None:
        fields = r.FILL.at(self.stream, command.fields)
        width = fields.pattern_bytes
        if width not in (1, 2, 4, 8) or fields.pattern >> (8 * width):
            raise self.fail(92, f"0x{fields.pattern:x} in {width} bytes")
        if fields.reserved:
            raise self.fail(86, f"reserved {fields.reserved}")
        self._range(*fields[0:4], 2, "target")

    def _call(self, command: Command) -> None:
        tables, fields = self.tables, r.CALL.at(self.stream, command.fields)
        if fields.function >= self.index or tables.functions[fields.function].flags & 1:
            raise self.fail(93, f"function {fields.function} from function {self.index}")
        callee = tables.functions[fields.function]
        if callee.target and callee.target != self.function.target:
            raise self.fail(75, f"function {fields.function} is for {tables.text(callee.target)!r}")
        arguments = tables._own_arguments(callee)
        if fields.operand_count != len(arguments):
            raise self.fail(91, f"{fields.operand_count} operands for {len(arguments)} arguments")
        at = command.fields + r.CALL.size_bytes
        for argument in arguments:
            access = {0: 1, 3: 2}.get(argument.kind, 3)
            self._operand(at, 4 if argument.kind == 4 else 1, access, 0, bool(argument.flags & 1))
            at += r.OPERAND.size_bytes
        self._add_callee(fields.function)

    def _add_callee(self, callee: int) -> None:
        facts, below = self.facts, self.tables.facts[callee]
        facts.impure |= below.impure
        facts.commands += below.commands
        facts.depth = max(facts.depth, below.depth + 1)
        if facts.depth >= r.MAX_CALL_DEPTH or facts.commands > r.MAX_EXPANDED_COMMANDS:
            raise self.fail(94, f"calls nest {facts.depth + 1} deep and expand to {facts.commands} commands")
        if callee in facts.merged:
            return
        facts.merged.add(callee)
        for symbol in below.needed:
            self.tables._need(self.index, symbol)

    def _decision(self, node: int, what: str) -> None:
        scope = self.scope._replace(allowed=SPECIALIZE | SESSION | PRESENT)
        self.tables._expression(scope, node, f"{self.where}.{what}")

    def _repeat(self, command: Command) -> None:
        fields = r.REPEAT.at(self.stream, command.fields)
        self._decision(fields.count, "count")
        self._size(fields.count, "count")

    def _branch(self, command: Command) -> None:
        fields = r.BRANCH.at(self.stream, command.fields)
        if fields.reserved:
            raise self.fail(86, f"reserved {fields.reserved}")
        self._decision(fields.condition, "condition")

    def _nested(self, command: Command, block_depth: int) -> None:
        """The blocks that it names, when all commands around it have been checked: the order of the
        stream."""
        scope = self.scope
        if command.header.opcode == r.OP_REPEAT:
            fields = r.REPEAT.at(self.stream, command.fields)
            self._enter(fields.block, block_depth, scope._replace(depth=scope.depth + 1))
        elif command.header.opcode == r.OP_BRANCH:
            fields = r.BRANCH.at(self.stream, command.fields)
            for block in (fields.then_block, fields.else_block):
                if block != r.NONE:
                    self._enter(block, block_depth, scope)

    def _marker(self, command: Command) -> None:
        fields = r.MARKER.at(self.stream, command.fields)
        if fields.reserved:
            raise self.fail(86, f"reserved {fields.reserved}")
        self.tables._string(fields.text, self.where + ".text")
