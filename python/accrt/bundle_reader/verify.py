"""What is checked of a bundle's records (rules 30 to 157), in the order of docs/accx-format.md. It
reads sections that container.py found, and makes the tables that model.py shows."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

from . import extras, images, layouts
from . import records as r
from .commands import ANY, NUMBERS, PRESENT, SESSION, SYMBOLS, Command, Scope, Walk
from .container import Container, FormatError, form_minor


class _Facts:
    """What is known of a function once its commands were read."""

    def __init__(self) -> None:
        self.needed: Dict[int, None] = {}  # symbols, in the order in which they were found
        self.merged: Set[int] = set()  # callees whose symbols are among them
        self.depth = 0
        self.impure = False
        self.commands = 0
        self.scalars: Set[int] = set()
        self.bound: Set[int] = set()


class Tables:
    """Every record of a bundle, checked."""

    def __init__(self, container: Container):
        self.container = container
        for name, record in r.RECORDS.items():
            content = container.sections.get(name)
            setattr(self, name, record.all(content) if content is not None else [])
        self.strings: Dict[int, bytes] = {}
        self.stream = container.sections.get("commands", memoryview(b""))
        self.commands: List[Command] = []
        self.block_first: List[int] = []
        self.uses: List[tuple] = []
        self.facts = [_Facts() for _ in self.functions]
        self.prepared_by: Dict[int, int] = {}
        self.next_block = self.next_view = 0
        self.needed_total = 0
        self._strings()
        self._metadata()
        self._symbols()
        self._function_table()
        self._scopes()
        extras.check_files(self)
        self._constants()
        extras.check_shards(self)
        self._states()
        self._kernels()
        self._blocks()
        self._functions()
        images.check_images(self)
        extras.check_adapters(self)
        extras.check_assets(self)
        extras.check_locations(self)
        extras.check_trust(self)
        self._minimum()

    # -- Messages and strings --

    def fail(self, rule: int, message: str) -> FormatError:
        return self.container.fail(rule, message)

    def text(self, offset: int) -> str:
        return self.strings[offset].decode() if offset in self.strings else "?"

    def _string(self, offset: int, where: str) -> None:
        if offset not in self.strings:
            raise self.fail(33, f"{where}: {offset} is not the offset of a string")

    def _name(self, offset: int, where: str) -> None:
        self._string(offset, where)
        if not 1 <= len(self.strings[offset]) <= r.MAX_NAME_BYTES:
            raise self.fail(34, f"{where}: a name of {len(self.strings[offset])} bytes")

    def _ordered(self, offset: int, previous: int, where: str) -> None:
        self._name(offset, where)
        if offset <= previous:
            raise self.fail(35, f"{where}: {self.text(offset)!r} does not come after {self.text(previous)!r}")

    def _strings(self) -> None:
        data = bytes(self.container.sections["strings"])
        if data[0] or data[-1]:
            raise self.fail(30, "strings: the first or the last byte is not 0")
        at, previous = 0, None
        texts = data[:-1].split(b"\0")
        for index, text in enumerate(texts):
            if len(text) > r.MAX_STRING_BYTES:
                raise self.fail(32, f"strings[{index}]: {len(text)} bytes")
            if previous is not None and previous >= text:
                raise self.fail(31, f"strings[{index}]: {text!r} does not come after {previous!r}")
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as problem:
                raise self.fail(32, f"strings[{index}]: {problem.reason}") from None
            self.strings[at] = previous = text
            at += len(text) + 1
        count = self.container.by_type[1].record_count
        if len(texts) != count:
            raise self.fail(30, f"strings: {len(texts)} strings, record_count says {count}")

    def _metadata(self) -> None:
        previous = 0
        for index, entry in enumerate(self.metadata):
            self._ordered(entry.key, previous, f"metadata[{index}].key")
            self._string(entry.value, f"metadata[{index}].value")
            previous = entry.key

    # -- Symbols and expressions --

    def _symbols(self) -> None:
        previous = next_bucket = 0
        for index, symbol in enumerate(self.symbols):
            where = f"symbols[{index}]"
            self._ordered(symbol.name, previous, where + ".name")
            previous = symbol.name
            if symbol.symbol_class > 3:
                raise self.fail(40, f"{where}: class {symbol.symbol_class}")
            low, high, divisor = symbol.minimum, symbol.maximum, symbol.divisor
            if not (0 <= low <= high <= r.MAX_SYMBOL_VALUE and divisor >= 1 and high // divisor * divisor >= low):
                raise self.fail(41, f"{where}: [{low}, {high}] in multiples of {divisor}")
            self._buckets(symbol, next_bucket, where)
            next_bucket += symbol.bucket_count
        if next_bucket != len(self.buckets):
            raise self.fail(42, f"{len(self.buckets)} buckets, symbols name {next_bucket}")

    def _buckets(self, symbol: Any, following: int, where: str) -> None:
        wants = symbol.symbol_class == 1
        first, count = following if wants else 0, symbol.bucket_count
        if wants != (count > 0) or symbol.bucket_first != first or first + count > len(self.buckets):
            raise self.fail(42, f"{where}: {count} buckets from {symbol.bucket_first}")
        previous = 0
        for place, bucket in enumerate(self.buckets[first : first + count]):
            last = place + 1 == count
            if not previous < bucket.bound <= r.MAX_SYMBOL_VALUE or (last and bucket.bound < symbol.maximum):
                raise self.fail(42, f"{where}: bucket {bucket.bound} after {previous}")
            previous = bucket.bound

    def _scopes(self) -> None:
        total = len(self.expressions)
        following = self.functions[0].expression_first if self.functions else total
        for index, function in enumerate(self.functions):
            if function.expression_first != following or following + function.expression_count > total:
                raise self.fail(43, f"functions[{index}]: {function.expression_count} nodes from {function.expression_first}")
            following += function.expression_count
        if following != total:
            raise self.fail(43, f"{total} expressions, scopes end at {following}")
        self.module_nodes = self.functions[0].expression_first if self.functions else total
        self._scope(0, self.module_nodes, None)
        for index, function in enumerate(self.functions):
            self._scope(function.expression_first, function.expression_count, index)

    def _scope(self, first: int, count: int, function: Optional[int]) -> None:
        for index in range(first, first + count):
            node = self.expressions[index]
            if node.op > r.EXPR_PRESENT:
                raise self.fail(44, f"expressions[{index}]: op {node.op}")
            flags, depth = self._operands(node, index, first)
            leaf = self._leaf(node, index, function)
            self.uses.append(leaf or (flags, depth))

    def _operands(self, node: Any, index: int, first: int) -> tuple:
        wanted = r.EXPR_OPERANDS[node.op]
        flags = depth = 0
        for place, operand in enumerate((node.a, node.b, node.c)):
            if operand >= index - first if place < wanted else operand != r.NONE:
                raise self.fail(45, f"expressions[{index}]: operand {operand} of op {node.op}")
            if place < wanted:
                below = self.uses[first + operand]
                flags |= below[0]
                depth = max(depth, below[1])
        if wanted and node.immediate:
            raise self.fail(45, f"expressions[{index}]: immediate {node.immediate} of op {node.op}")
        return flags, depth

    def _leaf(self, node: Any, index: int, function: Optional[int]) -> Optional[tuple]:
        value = node.immediate
        if node.op == r.EXPR_SYMBOL and 0 <= value < len(self.symbols):
            return 1 << self.symbols[value].symbol_class, 0
        if node.op == r.EXPR_INDUCTION and function is not None and 0 <= value < r.MAX_BLOCK_DEPTH:
            return 0, value + 1
        if node.op == r.EXPR_PRESENT and self._optional_input(function, value):
            return PRESENT, 0
        if node.op in (r.EXPR_SYMBOL, r.EXPR_INDUCTION, r.EXPR_PRESENT):
            raise self.fail(46, f"expressions[{index}]: {value} of op {node.op} names nothing")
        return None

    def _optional_input(self, function: Optional[int], index: int) -> bool:
        if function is None or not 0 <= index < self.functions[function].input_count:
            return False
        return bool(self.arguments[self.functions[function].argument_first + index].flags & 1)

    def _expression(self, scope: Scope, node: int, where: str) -> Any:
        if node >= scope.count:
            raise self.fail(47, f"{where}: expression {node} of {scope.count}")
        flags, depth = self.uses[scope.first + node]
        if flags & ~scope.allowed or depth > scope.depth:
            raise self.fail(47, f"{where}: expression {node} uses what is not allowed here")
        return self.expressions[scope.first + node]

    def _size(self, scope: Scope, node: int, where: str) -> None:
        expression = self._expression(scope, node, where)
        if expression.op == r.EXPR_CONSTANT and expression.immediate < 0:
            raise self.fail(47, f"{where}: {expression.immediate} is negative")

    # -- Types, constants, states --

    def _dtype(self, dtype: int, where: str) -> None:
        if dtype not in r.DTYPE_BITS:
            raise self.fail(50, f"{where}: data type {dtype}")

    def _shape_of(self, item: Any, where: str) -> None:
        self._dtype(item.dtype, where)
        if item.encoding not in layouts.LAYOUTS:
            raise self.fail(50, f"{where}: encoding {item.encoding}")
        if item.rank > r.MAX_RANK:
            raise self.fail(50, f"{where}: rank {item.rank}")
        if not layouts.type_good(item.encoding, item.dtype, item.group_elements, item.rank):
            raise self.fail(57, f"{where}: {layouts.LAYOUTS[item.encoding].name}, group of {item.group_elements}, rank {item.rank}")

    def _type(self, scope: Scope, data: bytes, where: str) -> Any:
        kind = r.TYPE.at(data, 0)
        self._shape_of(kind, where)
        for place, node in enumerate(kind[4:]):
            if place >= kind.rank:
                if node != r.NONE:
                    raise self.fail(50, f"{where}: dims[{place}] past rank {kind.rank}")
                continue
            expression = self._expression(scope, node, where + ".dims")
            if expression.op == r.EXPR_CONSTANT and not 0 <= expression.immediate <= r.MAX_SYMBOL_VALUE:
                raise self.fail(50, f"{where}: dimension {expression.immediate}")
        return kind

    @staticmethod
    def shape(constant: Any) -> tuple:
        return constant[8 : 8 + constant.rank]

    def _constants(self) -> None:
        previous = end = following = 0
        for index, constant in enumerate(self.constants):
            where = f"constants[{index}]"
            self._ordered(constant.name, previous, where + ".name")
            previous = constant.name
            if constant.source > 2:
                raise self.fail(51, f"{where}: source {constant.source}")
            self._shape_of(constant, where)
            self._constant_shape(constant, where)
            extras.check_binding(self, constant, where)
            for component in self._components(constant, following, where):
                end = self._place(constant, component, end, where)
            following += constant.component_count
        if len(self.components) != following:
            raise self.fail(53, f"{len(self.components)} components, constants name {following}")
        size = len(self.container.sections.get("data", b""))
        if end != size:
            raise self.fail(55, f"{size} bytes of data, constants end at {end}")

    def _constant_shape(self, constant: Any, where: str) -> None:
        product = 1
        for place in NUMBERS:
            size = constant[8 + place]
            if size < 0 or (place >= constant.rank and size):
                raise self.fail(52, f"{where}: shape {constant[8:]} of rank {constant.rank}")
            product *= max(size, 1)
            if product >= 1 << 63:
                raise self.fail(52, f"{where}: shape {constant[8:]}")
        if not layouts.shape_good(constant.encoding, constant.dtype, self.shape(constant), constant.group_elements):
            raise self.fail(58, f"{where}: shape {self.shape(constant)} in {layouts.LAYOUTS[constant.encoding].name}")

    def _components(self, constant: Any, first: int, where: str) -> List[Any]:
        own = self.components[first : first + constant.component_count]
        roles = [component.role for component in own]
        good = constant.component_first == first and len(own) == constant.component_count <= 5
        good = good and (constant.source != 1 or len(own) == 1) and roles == sorted(set(roles))
        good = good and all(layouts.takes(constant.encoding, constant.dtype, c.role, c.dtype) for c in own)
        if not good or not set(layouts.LAYOUTS[constant.encoding].required) <= set(roles):
            raise self.fail(53, f"{where}: {constant.component_count} components from {constant.component_first}")
        return own

    def _place(self, constant: Any, component: Any, end: int, where: str) -> int:
        size = component.size_bytes
        if constant.encoding != 1:
            shape, group = self.shape(constant), constant.group_elements
            if size != layouts.size_of(constant.encoding, shape, group, component.role, component.dtype):
                raise self.fail(54, f"{where}: {size} bytes of role {component.role} for shape {shape}")
        stored = constant.source == 0
        place = -(-end // r.TENSOR_ALIGN) * r.TENSOR_ALIGN if stored else 0
        fits = not stored or place + size <= len(self.container.sections.get("data", b""))
        if not fits or component.offset_bytes != place or size >= 1 << 63:
            raise self.fail(55, f"{where}: {size} bytes at {component.offset_bytes}, expected at {place}")
        return place + size if stored else end

    def _states(self) -> None:
        scope = Scope(0, self.module_nodes, SESSION)
        previous = 0
        for index, state in enumerate(self.states):
            where = f"states[{index}]"
            self._ordered(state.name, previous, where + ".name")
            previous = state.name
            kind = self._type(scope, state.type, where)
            if state.flags or kind.encoding or state.fill_pattern >> r.DTYPE_BITS[kind.dtype]:
                raise self.fail(56, f"{where}: flags, encoding or pattern 0x{state.fill_pattern:x}")

    # -- Kernels --

    def _kernels(self) -> None:
        cursor = {"parameter": 0, "variant": 0, "predicate": 0}
        previous = 0
        for index, kernel in enumerate(self.kernels):
            where = f"kernels[{index}]"
            self._ordered(kernel.name, previous, where + ".name")
            previous = kernel.name
            self._kernel(kernel, cursor, where)
        for what, end in cursor.items():
            if end != len(getattr(self, what + "s")):
                raise self.fail(101, f"kernels name {end} of {len(getattr(self, what + 's'))} {what}s")

    def _kernel(self, kernel: Any, cursor: Dict[str, int], where: str) -> None:
        if kernel.traits & ~31 or kernel.local_memory_size_bytes > r.MAX_LOCAL_BYTES:
            raise self.fail(100, f"{where}: traits 0x{kernel.traits:x}, {kernel.local_memory_size_bytes} bytes of memory")
        first, count = cursor["parameter"], kernel.parameter_count
        if kernel.parameter_first != first or count > r.MAX_PARAMETERS or first + count > len(self.parameters):
            raise self.fail(101, f"{where}: {count} parameters from {kernel.parameter_first}")
        variant, variants = cursor["variant"], kernel.variant_count
        if kernel.variant_first != variant or variant + variants > len(self.variants):
            raise self.fail(101, f"{where}: {variants} variants from {kernel.variant_first}")
        if not variants:
            raise self.fail(104, f"{where}: no variant")
        self._parameters(kernel, where)
        for index in range(variant, variant + variants):
            self._variant(kernel, index, cursor["predicate"])
            cursor["predicate"] += self.variants[index].predicate_count
        cursor["parameter"] += count
        cursor["variant"] += variants

    def _parameters(self, kernel: Any, where: str) -> None:
        own = self.parameters[kernel.parameter_first : kernel.parameter_first + kernel.parameter_count]
        names = set()
        for index, parameter in enumerate(own):
            self._name(parameter.name, f"{where}.parameters[{index}].name")
            if parameter.name in names:
                raise self.fail(103, f"{where}: two parameters {self.text(parameter.name)!r}")
            names.add(parameter.name)
        if kernel.params_size_bytes > r.MAX_PARAMETER_BYTES:
            raise self.fail(102, f"{where}: a block of {kernel.params_size_bytes} bytes")
        end = 0
        for parameter in own:
            if not self._parameter_good(parameter, end, kernel.params_size_bytes):
                raise self.fail(102, f"{where}: parameter {self.text(parameter.name)!r}")
            end = parameter.offset_bytes + parameter.size_bytes

    def _parameter_good(self, parameter: Any, end: int, block_bytes: int) -> bool:
        sizes = {1: (8,), 2: (144,), 3: (1, 2, 4, 8), 4: (8,), 5: (8,)}
        accesses = {1: (1, 2, 3), 2: (1, 2, 3), 3: (0,), 4: (0,), 5: (3,)}
        kind, size, offset = parameter.kind, parameter.size_bytes, parameter.offset_bytes
        if len(self.strings[parameter.name]) > r.MAX_PARAMETER_NAME_BYTES or kind not in sizes:
            return False
        if size not in sizes[kind] or parameter.access not in accesses[kind]:
            return False
        if parameter.flags & ~(1 if kind == 1 else 0) or parameter.align_log2 > 4:
            return False
        if offset % (1 << parameter.align_log2) or offset % min(size, 8) or offset < end:
            return False
        return offset + size <= block_bytes

    def _variant(self, kernel: Any, index: int, next_predicate: int) -> None:
        variant, where = self.variants[index], f"variants[{index}]"
        self._name(variant.driver, where + ".driver")
        self._string(variant.arch, where + ".arch")
        self._name(variant.entry, where + ".entry")
        if variant.arch_kind > 2 or (variant.arch_kind and not variant.arch) or variant.image >= len(self.images):
            raise self.fail(104, f"{where}: architecture {self.text(variant.arch)!r}, image {variant.image}")
        end = next_predicate + variant.predicate_count
        if variant.predicate_first != next_predicate or end > len(self.predicates):
            raise self.fail(101, f"{where}: {variant.predicate_count} predicates from {variant.predicate_first}")
        if self.text(variant.driver) == "host" and self.images[variant.image].kind not in (1, 5):
            raise self.fail(107, f"{where}: an image of kind {self.images[variant.image].kind} for the host")
        before = None
        for place in range(next_predicate, end):
            predicate = self.predicates[place]
            if not self._predicate_fits(kernel, predicate) or (before is not None and tuple(predicate) <= tuple(before)):
                raise self.fail(105, f"predicates[{place}]: {tuple(predicate)}")
            before = predicate

    def _predicate_fits(self, kernel: Any, predicate: Any) -> bool:
        if predicate.parameter >= kernel.parameter_count or not 1 <= predicate.kind <= 5:
            return False
        kind = self.parameters[kernel.parameter_first + predicate.parameter].kind
        value = predicate.value
        if predicate.kind == 2:
            return kind in (1, 2) and 1 <= value <= 4096 and value & (value - 1) == 0
        return kind in (3, 4) and (predicate.kind != 1 or value >= 1)

    # -- Function records --

    def _function_table(self) -> None:
        argument = slot = 0
        self.versions: Dict[int, List[int]] = {}
        for index, function in enumerate(self.functions):
            where = f"functions[{index}]"
            self._name(function.name, where + ".name")
            align = function.transient_align
            if function.flags not in (0, 1, 2):
                raise self.fail(61, f"{where}: flags 0x{function.flags:x}")
            if not 1 <= align <= r.BIG_ALIGN or align & (align - 1):
                raise self.fail(61, f"{where}: alignment {align}")
            self._string(function.doc, where + ".doc")
            if function.target:
                self._name(function.target, where + ".target")
            if bool(function.required_features & r.FEATURE_FUNCTION_TARGET) != bool(function.target):
                raise self.fail(73, f"{where}: features 0x{function.required_features:x}")
            same = self.versions.setdefault(function.name, [])
            if len(same) >= r.MAX_FUNCTION_TARGETS or any(self.functions[i].target == function.target for i in same):
                raise self.fail(60, f"{where}: {self.text(function.name)!r} for {self.text(function.target)!r} again")
            same.append(index)
            count = function.input_count + function.result_count
            if function.argument_first != argument or count > r.MAX_ARGUMENTS or argument + count > len(self.arguments):
                raise self.fail(63, f"{where}: {count} arguments from {function.argument_first}")
            if function.slot_first != slot or slot + function.slot_count > len(self.slots):
                raise self.fail(63, f"{where}: {function.slot_count} slots from {function.slot_first}")
            argument += count
            slot += function.slot_count
        if argument != len(self.arguments) or slot != len(self.slots):
            raise self.fail(63, f"functions name {argument} arguments and {slot} slots")

    def _own_arguments(self, function: Any) -> List[Any]:
        first = function.argument_first
        return self.arguments[first : first + function.input_count + function.result_count]

    def _signature(self, function: Any) -> None:
        scope = Scope(function.expression_first, function.expression_count, SYMBOLS)
        names: Set[int] = set()
        own = self._own_arguments(function)
        for index, argument in enumerate(own):
            if index == function.input_count:
                names = set()
            self._argument(function, index, argument, names, scope)
        aliased: Set[int] = set()
        for index, argument in enumerate(own):
            if not self._alias_good(function, argument, aliased):
                raise self.fail(67, f"arguments[{function.argument_first + index}]: alias {argument.alias_kind}")

    def _argument(self, function: Any, index: int, argument: Any, names: Set[int], scope: Scope) -> None:
        where = f"arguments[{function.argument_first + index}]"
        self._name(argument.name, where + ".name")
        if argument.name in names:
            raise self.fail(65, f"{where}: two {self.text(argument.name)!r}")
        names.add(argument.name)
        self._string(argument.doc, where + ".doc")
        is_result = index >= function.input_count
        fits = argument.kind == 3 if is_result else argument.kind in (0, 1, 2, 4)
        if not fits or argument.flags & ~(0 if is_result else 1):
            raise self.fail(64, f"{where}: kind {argument.kind}, flags 0x{argument.flags:x}")
        kind = self._type(scope, argument.type, where)
        if kind.encoding > 1 and function.flags != 1:
            raise self.fail(57, f"{where}: quantized, outside of a prepare function")
        if argument.kind == 4:
            good = argument.symbol < len(self.symbols) and (kind.dtype, kind.encoding, kind.rank) == (r.DTYPE_I64, 0, 0)
        else:
            good = argument.symbol == r.NONE
        if not good:
            raise self.fail(66, f"{where}: symbol {argument.symbol}")

    def _alias_good(self, function: Any, argument: Any, aliased: Set[int]) -> bool:
        if argument.alias_kind == 0:
            return bool(argument.alias_input == r.NONE)
        source = argument.alias_input
        if argument.alias_kind > 2 or argument.kind != 3 or source >= function.input_count or source in aliased:
            return False
        if self.arguments[function.argument_first + source].kind not in (1, 2):
            return False
        aliased.add(source)
        return True

    def _same_signature(self, first: Any, other: Any) -> bool:
        if first[1] != other[1] or (first.input_count, first.result_count) != (other.input_count, other.result_count):
            return False
        nodes = 0
        for a, b in zip(self._own_arguments(first), self._own_arguments(other)):
            if a._replace(doc=0) != b._replace(doc=0):
                return False
            kind = r.TYPE.at(a.type, 0)
            nodes = max([nodes] + [node + 1 for node in kind[4 : 4 + kind.rank]])
        if nodes > other.expression_count:
            return False
        one, two = first.expression_first, other.expression_first
        return self.expressions[one : one + nodes] == self.expressions[two : two + nodes]

    def _check_slots(self, index: int) -> None:
        function = self.functions[index]
        arguments = function.input_count + function.result_count
        if function.slot_count < arguments:
            raise self.fail(70, f"functions[{index}]: {function.slot_count} slots for {arguments} arguments")
        own = self.slots[function.slot_first : function.slot_first + function.slot_count]
        # Beside its inputs' first components, a prepare function may touch their others.
        inputs = {argument.constant for argument in self._own_arguments(function)[: function.input_count]}
        sources = inputs if function.flags == 1 else set()
        for place, slot in enumerate(own):
            if place < arguments:
                good = slot[:3] == (0, place, 0)
            else:
                good = self._slot_exists(slot) and (place == 0 or slot[:3] > own[place - 1][:3])
                of_input = slot.kind == 1 and slot.component > 0 and slot.index in sources
                self.facts[index].impure |= slot.kind != 3 and not of_input
            if not good or slot.reserved:
                raise self.fail(70, f"slots[{function.slot_first + place}]: {tuple(slot)}")

    def _slot_exists(self, slot: Any) -> bool:
        if slot.kind == 1:
            return slot.index < len(self.constants) and slot.component < self.constants[slot.index].component_count
        limit = {2: len(self.states), 3: 1}.get(slot.kind, 0)
        return bool(slot.component == 0 and slot.index < limit)

    # -- Functions as a whole --

    def _functions(self) -> None:
        for index, function in enumerate(self.functions):
            self._function(index, function)
        if self.next_block != len(self.blocks):
            raise self.fail(81, f"blocks[{self.next_block}]: no function and no command uses it")
        if self.next_view != len(self.views):
            raise self.fail(72, f"views[{self.next_view}]: no command uses it")
        for index, constant in enumerate(self.constants):
            if constant.source == 1 and index not in self.prepared_by:
                raise self.fail(69, f"constants[{index}]: no prepare function makes it")

    def _function(self, index: int, function: Any) -> None:
        self._signature(function)
        same = self.versions[function.name]
        following = same[same.index(index) + 1 :]
        if following and not self._same_signature(function, self.functions[following[0]]):
            raise self.fail(74, f"functions[{following[0]}] differs from functions[{index}]")
        self._check_slots(index)
        scope = Scope(function.expression_first, function.expression_count, ANY)
        self._expression(scope, function.transient_size, f"functions[{index}].transient_size")
        self._collect_symbols(index, function)
        self._body(index, function, scope)
        self._check_order(index)
        self._check_prepare(index, function)
        facts = self.facts[index]
        unbound = [symbol for symbol in facts.needed if symbol not in facts.bound]
        if function.flags == 0 and unbound:
            raise self.fail(71, f"functions[{index}]: symbol {self.text(self.symbols[unbound[0]].name)!r} is not bound")

    def _need(self, index: int, symbol: int) -> None:
        facts = self.facts[index]
        if symbol in facts.needed or symbol in facts.scalars:
            return
        if self.symbols[symbol].symbol_class == 3:
            facts.impure = True
            return
        if self.needed_total == r.MAX_NEEDED_SYMBOLS:
            raise self.fail(17, f"functions[{index}]: too many symbols are needed")
        self.needed_total += 1
        facts.needed[symbol] = None

    def _collect_symbols(self, index: int, function: Any) -> None:
        facts, first = self.facts[index], function.expression_first
        for argument in self._own_arguments(function)[: function.input_count]:
            if argument.kind == 4:
                facts.scalars.add(argument.symbol)
            kind = r.TYPE.at(argument.type, 0)
            for node in kind[4 : 4 + kind.rank]:
                expression = self.expressions[first + node]
                if expression.op == r.EXPR_SYMBOL:
                    facts.bound.add(expression.immediate)
        for expression in self.expressions[first : first + function.expression_count]:
            if expression.op == r.EXPR_SYMBOL:
                self._need(index, expression.immediate)

    def _check_order(self, index: int) -> None:
        if index == 0:
            return
        keys = [(self.facts[i].depth, self.functions[i].name, self.functions[i].target) for i in (index - 1, index)]
        if keys[0] >= keys[1]:
            raise self.fail(62, f"functions[{index}]: {keys[1]} after {keys[0]}")

    def _check_prepare(self, index: int, function: Any) -> None:
        prepare = function.flags == 1
        for place, argument in enumerate(self._own_arguments(function)):
            where = f"arguments[{function.argument_first + place}]"
            is_result = place >= function.input_count
            if not prepare:
                if argument.constant != r.NONE:
                    raise self.fail(68, f"{where}: constant {argument.constant}")
                continue
            if not self._prepares(function, argument, is_result):
                raise self.fail(68, f"{where}: constant {argument.constant}")
            if not is_result:
                continue
            maker = self.prepared_by.setdefault(argument.constant, index)
            if self.functions[maker].name != function.name:
                raise self.fail(69, f"{where}: constant {argument.constant} is made twice")
        facts = self.facts[index]
        if prepare and (facts.impure or facts.needed or not function.result_count):
            raise self.fail(68, f"functions[{index}]: a prepare function that makes nothing, or touches something else")

    def _prepares(self, function: Any, argument: Any, is_result: bool) -> bool:
        if argument.constant >= len(self.constants) or argument.kind != (3 if is_result else 0):
            return False
        constant = self.constants[argument.constant]
        if argument.flags or argument.alias_kind or (constant.source == 1) != is_result:
            return False
        kind = r.TYPE.at(argument.type, 0)
        facts = (constant.dtype, constant.encoding, constant.rank, constant.group_elements)
        if kind[:4] != facts:
            return False
        nodes = [self.expressions[function.expression_first + node] for node in kind[4 : 4 + kind.rank]]
        return [(r.EXPR_CONSTANT, size) for size in self.shape(constant)] == [(n.op, n.immediate) for n in nodes]

    # -- Blocks and commands --

    def _blocks(self) -> None:
        following, total = 0, self.container.by_type[14].record_count if 14 in self.container.by_type else 0
        for index, block in enumerate(self.blocks):
            if block.offset_bytes != following or following + block.size_bytes > len(self.stream):
                raise self.fail(80, f"blocks[{index}]: {block.size_bytes} bytes at {block.offset_bytes}")
            self._block_commands(index, block, total)
            following += block.size_bytes
        if following != len(self.stream) or len(self.commands) != total:
            raise self.fail(80, f"blocks end at {following} with {len(self.commands)} of {total} commands")

    def _block_commands(self, index: int, block: Any, total: int) -> None:
        self.block_first.append(len(self.commands))
        if block.command_count > total - len(self.commands):
            raise self.fail(80, f"blocks[{index}]: {block.command_count} commands")
        at, end = block.offset_bytes, block.offset_bytes + block.size_bytes
        for _ in range(block.command_count):
            at = self._read_command(at, end)
        if at != end:
            raise self.fail(80, f"blocks[{index}]: {end - at} bytes are left")

    def _read_command(self, at: int, end: int) -> int:
        where = f"commands[{len(self.commands)}]"
        if end - at < r.COMMAND.size_bytes:
            raise self.fail(83, f"{where}: {end - at} bytes are left")
        header = r.COMMAND.at(self.stream, at)
        size = header.size_bytes
        if size < r.COMMAND.size_bytes or size % 8 or size > end - at:
            raise self.fail(83, f"{where}: {size} bytes")
        fields_bytes = r.COMMAND_KINDS.get(header.opcode, (0, 0))[0]
        needed = r.COMMAND.size_bytes + fields_bytes + (header.predecessor_count * 4 + 7) // 8 * 8
        fields = at + r.COMMAND.size_bytes
        if size >= r.COMMAND.size_bytes + fields_bytes:
            if header.opcode == r.OP_DISPATCH:
                needed += r.DISPATCH.at(self.stream, fields).operand_count * r.OPERAND.size_bytes
            if header.opcode == r.OP_CALL:
                needed += r.CALL.at(self.stream, fields).operand_count * r.OPERAND.size_bytes
        if size != needed if header.opcode in r.COMMAND_KINDS else size < needed:
            raise self.fail(83, f"{where}: {size} bytes, needs {needed}")
        self.commands.append(Command(header, fields, at + size))
        return at + int(size)

    def _body(self, index: int, function: Any, scope: Scope) -> None:
        if function.body != self.next_block or function.body >= len(self.blocks):
            raise self.fail(81, f"functions[{index}].body: {function.body}, the next one is {self.next_block}")
        Walk(self, index, scope).block(function.body, 1, scope)

    # -- The computed minimum --

    def _minimum(self) -> None:
        header = self.container.header
        packs = any(image.kind == 5 for image in self.images)
        targets = any(f.target for f in self.functions) or any(v.arch_kind == 0 and v.arch for v in self.variants)
        container = max(max(r.SECTION_KINDS[s.type].since_minor, form_minor(s)) for s in self.container.by_type.values())
        shapes = [*self.constants, *(r.TYPE.at(argument.type, 0) for argument in self.arguments)]
        grouped = any(shape.group_elements for shape in shapes)
        computed = {
            "container": max(container, 3 if grouped else 2 if packs or targets else 1),
            "commands": max((r.COMMAND_KINDS[c.header.opcode][2] for c in self.commands if c.header.opcode in r.COMMAND_KINDS), default=1),
            "kernel_abi": 2 if packs or self.launches else 1,
            "layouts": max((layouts.since(shape.encoding) for shape in shapes), default=1),
        }
        for what, minor in computed.items():
            stored = getattr(header, what + "_minor")
            if stored != minor and stored <= r.VERSIONS[what][1]:
                raise self.fail(110, f"header.{what}: 0.{stored} is stored, 0.{minor} is the computed minimum")
