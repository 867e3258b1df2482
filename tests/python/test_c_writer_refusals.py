"""What the C bundle writer refuses: NULL, ids of other kinds, structs of impossible sizes, values
that do not exist, what does not belong to a kind of thing. Each is refused with a message of its
own, and the writer goes on as if it had not been asked."""

from __future__ import annotations

import ctypes
import re

import pytest

import accrt
import random_bundles
from accrt import _ffi
from accrt._library import check, lib, struct
from test_c_writer import Writer

NAMES = [
    "add_metadata", "add_string", "set_optional_features", "add_symbol", "integer", "expression", "induction", "present", "add_constant",
    "add_file", "add_shard", "add_adapter", "add_state", "add_image", "add_kernel", "add_variant", "add_function", "add_argument", "slot",
    "arena", "add_command", "block", "add_location", "add_asset", "add_section", "check", "write_path", "write_fd", "write_callback",
]  # fmt: skip
#: Functions that check what they are about before where the id goes, if one is to be had.
WITH_ID = sorted(set(NAMES) - {"add_metadata", "add_string", "set_optional_features", "add_shard", "add_adapter", "add_variant",
                               "add_asset", "add_section", "check", "write_path", "write_fd", "write_callback"})  # fmt: skip
OP = {"dispatch": 1, "copy": 2, "fill": 3, "barrier": 4, "call": 5, "repeat": 6, "branch": 7, "marker": 8}


def nothing(name):
    """NULL and 0 for every argument but the writer."""
    types = getattr(lib, "accrt_bundle_writer_" + name).argtypes[1:]
    return [0 if kind in (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64) else None for kind in types]


def span(slot=0, access=0, offset=0, size=0):
    return _ffi.accrt_writer_range(slot, access, offset, size)


def ids(*given):
    return (ctypes.c_uint32 * 3)(*given)


def output(reserved):
    return _ffi.accrt_writer_output(None, dict(_ffi.accrt_writer_output._fields_)["write"](lambda *_: 0), 0, reserved)


@pytest.mark.parametrize("name", NAMES)
def test_no_writer(name):
    with pytest.raises(accrt.InvalidArgumentError, match="writer is NULL"):
        check(getattr(lib, "accrt_bundle_writer_" + name)(None, *nothing(name)))


def test_release_of_nothing_and_create_into_nothing():
    lib.accrt_bundle_writer_release(None)
    with pytest.raises(accrt.InvalidArgumentError, match="out_writer is NULL"):
        check(lib.accrt_bundle_writer_create(None, None))


def test_create_with_reserved_fields():
    made, caps = _ffi.accrt_bundle_writer_p(), struct(_ffi.accrt_caps, reserved=1)
    with pytest.raises(accrt.InvalidArgumentError, match="reserved is 0x9, not 0"):
        check(lib.accrt_bundle_writer_create(ctypes.byref(struct(_ffi.accrt_bundle_writer_options, reserved=9)), ctypes.byref(made)))
    options = struct(_ffi.accrt_bundle_writer_options, target=ctypes.pointer(caps))
    with pytest.raises(accrt.InvalidArgumentError, match="reserved is 0x1, not 0"):
        check(lib.accrt_bundle_writer_create(ctypes.byref(options), ctypes.byref(made)))
    assert not made


@pytest.mark.parametrize("name", WITH_ID)
def test_no_place_for_the_id(name):
    with Writer() as w, pytest.raises(accrt.InvalidArgumentError, match="out_id is NULL"):
        w.call(name, *nothing(name))


def test_no_place_for_the_body():
    with Writer() as w, pytest.raises(accrt.InvalidArgumentError, match="out_id is NULL"):
        made, out = struct(_ffi.accrt_writer_function, name=b"f"), ctypes.c_uint32()
        w.call("add_function", ctypes.byref(made), ctypes.byref(out), None)


STRUCTS = ["symbol", "constant", "state", "kernel", "variant", "function", "argument", "command", "section"]


@pytest.mark.parametrize("what", STRUCTS)
def test_sizes_of_structs(what):
    kind = getattr(_ffi, f"accrt_writer_{what}")
    outs = {"function": 2, "variant": 0, "section": 0}.get(what, 1)
    with Writer() as w:
        kernel, (_n, function, body, _x, _y) = w.kernel(), w.function()
        before = {"variant": [kernel], "argument": [function], "command": [body]}.get(what, [])
        size = ctypes.sizeof(kind)
        memory = ctypes.create_string_buffer(size + 16)
        given = kind.from_buffer(memory)
        summary = w.summary().size_bytes
        for told, tail, message in [(0, 0, "struct_size 0 is not between"), (4, 0, "struct_size 4 is not between"),
                                    (1 << 30, 0, "is not between"), (size + 16, 1, "unknown tail is not zero")]:  # fmt: skip
            given.struct_size = told
            memory[size + 15] = tail
            with pytest.raises(accrt.InvalidArgumentError, match=f"accrt_writer_{what}_t: .*{message}"):
                w.call(
                    f"add_{what}", *before, ctypes.byref(given), *(ctypes.byref(ctypes.c_uint32()) for _ in range(outs))
                )
        assert w.summary().size_bytes == summary


class Program:
    """A writer with one thing of every kind."""

    def __init__(self, w):
        self.w = w
        self.n, self.function, self.body, self.x, self.y = w.function()
        self.constant = w.weight("w", b"1234")
        self.prepared = w.weight("p", b"1234", source=1)
        self.state = w.add("state", name="s", type=w.type(12, w.number(4)))
        self.image = self.add_image("code.so", 1, w.memory(random_bundles.elf()))
        self.cubin = self.add_image("code.cubin", 2, w.memory(random_bundles.elf()))
        self.kernel = w.kernel()
        self.command = self.do("barrier")
        self.file = self.out("add_file", b"f.accx", 1, 8, None)
        self.location = self.out("add_location", b"a.py", 1, 2, b"name")
        self.optional = self.argument(name="o", type=w.type(12, self.n), optional=1)
        self.scalar = self.argument(name="c", kind=4, symbol=self.n)
        self.both = self.argument(name="b", kind=1, type=w.type(12, self.n))
        self.arena = self.out("arena", self.function, 0, 0)
        self.late = w.add("symbol", name="late", symbol_class=2)

    def out(self, name, *arguments):
        made = ctypes.c_uint32()
        self.w.call(name, *arguments, ctypes.byref(made))
        return made.value

    def add_image(self, name, kind, data):
        return self.out("add_image", name.encode(), kind, data and ctypes.byref(data))

    def do(self, what, block=None, **fields):
        return self.w.add("command", self.body if block is None else block, opcode=OP.get(what, what), **fields)

    def argument(self, function=None, **fields):
        return self.w.add("argument", function or self.function, **fields)

    def constant_of(self, *components, **fields):
        made = [_ffi.accrt_writer_component(role=r, dtype=d, bytes=self.w.memory(b)) for r, d, b in components]
        fields = {"name": "c", "dtype": 12, "rank": 1, "shape": (ctypes.c_int64 * 8)(1), **fields}
        return self.w.add(
            "constant",
            **{"component_count": len(made), "components": self.w.array(_ffi.accrt_writer_component, *made), **fields},
        )

    def variant(self, **fields):
        return self.w.add("variant", self.kernel, **{"image": self.image, **fields})

    def parameter(self, *more, **fields):
        P = _ffi.accrt_writer_parameter
        made = [P(**{"name": b"p", **fields}), *(P(*m) for m in more)]
        return self.w.add("kernel", name="k", parameter_count=len(made), parameters=self.w.array(P, *made))

    def predicate(self, **fields):
        made = _ffi.accrt_writer_predicate(**fields)
        return self.variant(predicate_count=1, predicates=self.w.array(_ffi.accrt_writer_predicate, made))

    def symbol(self, buckets=(), **fields):
        made = self.w.array(ctypes.c_int64, *buckets) if buckets else None
        return self.w.add("symbol", **{"name": "q", "bucket_count": len(buckets), "buckets": made, **fields})

    def section(self, data=b"12345678", **fields):
        return self.w.add("section", **{"type": 0x10000, "name": "vendor", "bytes": self.w.memory(data), **fields})

    def operand(self, kernel_parameter, **fields):
        """A dispatch of a kernel with one parameter, `kernel_parameter`, given as `fields` say."""
        P, O = _ffi.accrt_writer_parameter, _ffi.accrt_writer_operand
        kernel = self.w.add(
            "kernel", name="one", parameter_count=1, parameters=self.w.array(P, P(b"p", *kernel_parameter))
        )
        return self.do("dispatch", target=kernel, operand_count=1, operands=self.w.array(O, O(**fields)))

    def nested(self, depth, what="repeat"):
        block = self.body
        for _ in range(depth):
            block = self.out("block", self.do(what, block, value=self.w.number(2)), 0)
        return block

    def call_of(self, operands=(), **fields):
        function, _body = self.w.add("function", name="callee", **fields)
        for kind in (1, 3):
            self.argument(function, name="same", kind=kind, type=self.w.type(12, self.n))
        O = _ffi.accrt_writer_operand
        return self.do(
            "call", target=function, operand_count=len(operands), operands=self.w.array(O, *(O(**o) for o in operands))
        )

    def prepare(self, **fields):
        function, _body = self.w.add("function", name="prepare", flags=1)
        return self.argument(function, **{"name": "a", **fields})

    def after(self, *commands, what="marker", **fields):
        return self.do(what, after_count=len(commands), after=self.w.array(ctypes.c_uint32, *commands), **fields)


I, R, E = "InvalidArgumentError", "OutOfRangeError", "AlreadyExistsError"  # fmt: skip
BUFFER, TENSOR, SCALAR, SYMBOL, WORKSPACE = (1, 1), (2, 1), (3, 0, 0, 4), (4,), (5,)

REFUSED = [
    # Ids
    ("slot of no function", lambda p: p.out("slot", p.body, p.constant, 0), I, "function is .*\\(block\\), not the id of a function"),
    ("slot of a kernel", lambda p: p.out("slot", p.function, p.kernel, 0), I, "target is .*\\(kernel\\), not the id of a constant"),
    ("slot of no component", lambda p: p.out("slot", p.function, p.constant, 1), R, "component 1 of 1"),
    ("slot of a state's component", lambda p: p.out("slot", p.function, p.state, 1), R, "component 1 of 1"),
    ("an index beyond the last", lambda p: p.out("slot", p.function, p.constant + 100, 0), I, "\\(constant\\), not the id of a constant"),
    ("arena of nothing", lambda p: p.out("arena", 0, 0, 0), I, "function is 0x0 \\(no id\\)"),
    ("arena with a size of no kind", lambda p: p.out("arena", p.function, p.kernel, 0), I, "the arena's size is .*\\(kernel\\)"),
    ("arena aligned to 3", lambda p: p.out("arena", p.function, 0, 3), I, "aligned to 3, no power of two"),
    ("arena aligned too much", lambda p: p.out("arena", p.function, 0, 8192), I, "aligned to 8192"),
    ("arena of negative size", lambda p: p.out("arena", p.function, p.w.number(-1), 0), I, "the arena's size is -1, which is negative"),
    ("present of a constant", lambda p: p.out("present", p.constant), I, "input is .*\\(constant\\), not the id of a slot"),
    ("present of what must be there", lambda p: p.out("present", p.x), I, "the slot of no optional input"),
    ("present of the arena", lambda p: p.out("present", p.arena), I, "the slot of no optional input"),
    ("block of a block", lambda p: p.out("block", p.body, 0), I, "command is .*\\(block\\)"),
    ("block of a barrier", lambda p: p.out("block", p.command, 0), R, "has no block 0"),
    ("second block of a repeat", lambda p: p.out("block", p.do("repeat", value=p.n and p.w.number(1)), 1), R, "has no block 1"),
    ("third block of a branch", lambda p: p.out("block", p.do("branch", value=p.w.number(1)), 2), R, "has no block 2"),
    ("variant of no kernel", lambda p: p.w.add("variant", p.image), I, "kernel is .*\\(image\\)"),
    ("shard of a state", lambda p: p.w.call("add_shard", p.state, 0, 0, 2, 0, None, 0), I, "constant is .*\\(state\\)"),
    # Text
    ("metadata twice", lambda p: [p.w.call("add_metadata", b"k", v) for v in (b"1", b"2")], E, "metadata key 'k': there is one"),
    ("metadata without a key", lambda p: p.w.call("add_metadata", None, b"v"), I, "the name is empty"),
    ("metadata that is no text", lambda p: p.w.call("add_metadata", b"k", b"\xc0"), I, "the value is not UTF-8: byte 0xc0 at 0"),
    ("string that is no text", lambda p: p.w.call("add_string", b"ab\xe2\x82"), I, "text is not UTF-8: byte 0xe2 at 2"),
    ("location with no text", lambda p: p.out("add_location", b"\x80", 0, 0, b""), I, "the file is not UTF-8"),
    ("location named by no text", lambda p: p.out("add_location", b"f", 0, 0, b"\x80"), I, "the name is not UTF-8"),
    # Symbols
    ("symbol of class 4", lambda p: p.symbol(symbol_class=4), I, "there is no class 4"),
    ("symbol with unknown flags", lambda p: p.symbol(flags=2), I, "flags 0x2 are not known"),
    ("symbol below 0", lambda p: p.symbol(minimum=-1), I, "range \\[-1, "),
    ("symbol above the limit", lambda p: p.symbol(maximum=(1 << 48) + 1), I, "maximum <= 2\\^48"),
    ("symbol of negative divisor", lambda p: p.symbol(divisor=-2), I, "in multiples of -2"),
    ("symbol without a multiple", lambda p: p.symbol(minimum=5, maximum=7, divisor=4), I, "in multiples of 4"),
    ("symbol with a range down to 0 only", lambda p: p.symbol(flags=1, minimum=1), I, "range \\[1, 0\\]"),
    ("buckets of another class", lambda p: p.symbol([1]), I, "BUCKET symbols have buckets, others have none"),
    ("buckets that are NULL", lambda p: p.symbol(symbol_class=1, bucket_count=2), I, "BUCKET symbols have buckets"),
    ("buckets that descend", lambda p: p.symbol([8, 4], symbol_class=1, maximum=4), I, "bucket 1 is 4 after 8"),
    ("buckets from 0", lambda p: p.symbol([0, 4], symbol_class=1, maximum=4), I, "bucket 0 is 0 after 0"),
    ("buckets that end early", lambda p: p.symbol([2, 4], symbol_class=1, maximum=5), I, "reach the maximum 5"),
    ("buckets above the limit", lambda p: p.symbol([(1 << 48) + 1], symbol_class=1), I, "bucket 0 is 281474976710657"),
    ("symbol twice", lambda p: p.symbol(name="late"), E, "symbol 'late': there is one"),
    ("symbol without a name", lambda p: p.symbol(name=None), I, "the name is empty"),
    # Expressions
    ("operation 2", lambda p: p.w.expression(2, p.n, p.n), I, "2 is not an operation"),
    ("operation 19", lambda p: p.w.expression(19, p.n, p.n), I, "19 is not an operation"),
    ("NOT of two", lambda p: p.w.expression(17, p.n, p.n), I, "operation 17 has 1 operands"),
    ("ADD of three", lambda p: p.w.expression(3, p.n, p.n, p.n), I, "operation 3 has 2 operands"),
    ("SELECT of two", lambda p: p.w.expression(18, p.n, p.n), I, "operand c is 0x0"),
    ("ADD of a slot", lambda p: p.w.expression(3, p.x, p.n), I, "operand a is .*\\(slot\\)"),
    ("induction too deep", lambda p: p.out("induction", 4096), R, "repeats nest at most"),
    # Constants
    ("source 3", lambda p: p.constant_of((0, 0, b"1234"), source=3), I, "there is no source 3"),
    ("data type 200", lambda p: p.constant_of((0, 0, b"1234"), dtype=200), I, "data type 200"),
    ("rank 9", lambda p: p.constant_of((0, 0, b"1234"), rank=9), I, "rank 9"),
    ("a negative size", lambda p: p.constant_of((0, 0, b"1234"), shape=(ctypes.c_int64 * 8)(-1)), I, "rank 1 \\[-1\\]"),
    ("groups without a layout of groups", lambda p: p.constant_of((0, 0, b"1234"), group_elements=32), I, "groups of 32"),
    ("no components", lambda p: p.constant_of(), I, "0 components"),
    ("too many components", lambda p: p.constant_of((0, 0, b"1234"), component_count=99), I, "99 components"),
    ("components that are NULL", lambda p: p.constant_of(component_count=1, components=None), I, "1 components"),
    ("a role that is not there", lambda p: p.constant_of((99, 0, b"1234")), I, "role 99 of component 0"),
    ("a role twice", lambda p: p.constant_of((0, 0, b"1234"), (0, 0, b"1234")), I, "role 0 of component 1: roles ascend"),
    ("a role of another layout", lambda p: p.constant_of((1, 0, b"1234")), I, "has no component of role 1"),
    ("another data type than the constant's", lambda p: p.constant_of((0, 1, b"1234")), I, "has no component of role 0 and data type"),
    ("memory that is NULL", lambda p: p.w.weight("c", _ffi.accrt_writer_bytes(size_bytes=4)), I, "4 bytes of kind 0: its data is NULL"),
    ("a file that is not open", lambda p: p.w.weight("c", _ffi.accrt_writer_bytes(size_bytes=4, kind=1, fd=-1)), I, "4 bytes of kind 1: its fd is negative"),
    ("a file's end beyond 2^63", lambda p: p.w.weight("c", _ffi.accrt_writer_bytes(size_bytes=4, kind=1, offset=(1 << 63) - 2)), I, "4 bytes of kind 1: they end beyond"),
    ("a reader that is NULL", lambda p: p.w.weight("c", _ffi.accrt_writer_bytes(size_bytes=4, kind=2)), I, "4 bytes of kind 2: its read is NULL"),
    ("bytes of kind 3", lambda p: p.w.weight("c", _ffi.accrt_writer_bytes(size_bytes=4, kind=3)), I, "4 bytes of kind 3: there is no such kind"),
    ("EXTERNAL without a digest", lambda p: p.constant_of((0, 0, b"1234"), source=2), I, "an EXTERNAL constant has a digest"),
    ("EXTERNAL by name with a digest", lambda p: p.constant_of((0, 0, b"1234"), source=2, binding_flags=1, digest=(ctypes.c_uint8 * 16)(1)), I, "EXTERNAL"),
    ("EXTERNAL with flag 2", lambda p: p.constant_of((0, 0, b"1234"), source=2, binding_flags=2, digest=(ctypes.c_uint8 * 16)(1)), I, "EXTERNAL"),
    ("INLINE with a digest", lambda p: p.constant_of((0, 0, b"1234"), digest=(ctypes.c_uint8 * 16)(1)), I, "only EXTERNAL constants have"),
    ("INLINE with a binding", lambda p: p.constant_of((0, 0, b"1234"), binding_flags=1), I, "only EXTERNAL constants have"),
    ("INLINE in a file", lambda p: p.constant_of((0, 0, b"1234"), file=p.file), I, "only EXTERNAL constants have"),
    ("INLINE with a tensor", lambda p: p.constant_of((0, 0, b"1234"), tensor="t"), I, "only EXTERNAL constants have"),
    ("EXTERNAL in a kernel", lambda p: p.constant_of((0, 0, b"1234"), source=2, file=p.kernel), I, "file is .*\\(kernel\\)"),
    ("EXTERNAL of no text", lambda p: p.constant_of((0, 0, b"1234"), source=2, tensor=b"\xff"), I, "tensor is not UTF-8"),
    # States
    ("state of data type 200", lambda p: p.w.add("state", name="t", type=p.w.type(200, p.n)), I, "data type 200"),
    ("state of a RUNTIME size", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.late)), I, "symbol 'late', which is of class RUNTIME"),
    ("state of a sum with a RUNTIME size", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.w.expression(3, p.w.number(1), p.late))), I, "symbol 'late'"),
    ("state of a negative size", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.w.number(-3))), I, "a dimension is -3, which is negative"),
    ("state above the limit", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.w.number((1 << 48) + 1))), R, "dimension 0 is .*the limit is 2\\^48"),
    ("state of no size", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.kernel)), I, "a dimension is .*\\(kernel\\)"),
    ("state with a pattern too wide", lambda p: p.w.add("state", name="t", type=p.w.type(12, p.w.number(1)), fill_pattern=1 << 32), I, "fits 32 bits"),
    ("state that is encoded", lambda p: p.w.add("state", name="t", type=_ffi.accrt_writer_type(12, 1, 0, 1, (ctypes.c_uint32 * 8)(p.w.number(64)))), I, "encoding 1"),
    ("state twice", lambda p: p.w.add("state", name="s", type=p.w.type(12, p.w.number(1))), E, "state 's': there is one"),
    # Files, shards, adapters
    ("file of kind 0", lambda p: p.out("add_file", b"g", 0, 0, None), I, "kind 0, or not the bare name"),
    ("file of kind 4", lambda p: p.out("add_file", b"g", 4, 0, None), I, "kind 4, or not the bare name"),
    ("file without a name", lambda p: p.out("add_file", None, 1, 0, None), I, "not the bare name"),
    ("file in a folder", lambda p: p.out("add_file", b"a/b", 1, 0, None), I, "not the bare name"),
    ("file that is the folder", lambda p: p.out("add_file", b"..", 1, 0, None), I, "not the bare name"),
    ("file twice", lambda p: p.out("add_file", b"f.accx", 1, 0, None), E, "file 'f.accx': there is one"),
    ("shard twice", lambda p: [p.w.call("add_shard", p.constant, 0, 0, 2, 0, None, 0) for _ in range(2)], E, "constant 'w': it has a shard already"),
    ("shard without segments", lambda p: p.w.call("add_shard", p.constant, 1, 0, 2, 8, None, 2), I, "segments is NULL"),
    ("adapter without an input", lambda p: p.w.call("add_adapter", b"slot", None, 0), I, "the input is empty"),
    ("adapter twice", lambda p: [p.w.call("add_adapter", b"slot", b"x", 0) for _ in range(2)], E, "adapter 'slot': there is one"),
    # Code
    ("image without a name", lambda p: p.add_image("", 1, p.w.memory(b"1")), I, "the name is empty"),
    ("image of kind 0", lambda p: p.add_image("i", 0, p.w.memory(b"1")), I, "kind 0"),
    ("image of kind 6", lambda p: p.add_image("i", 6, p.w.memory(b"1")), I, "kind 6"),
    ("image without bytes", lambda p: p.add_image("i", 1, None), I, "a pack has no bytes, any other image has some"),
    ("image with no bytes", lambda p: p.add_image("i", 1, p.w.memory(b"")), I, "any other image has some"),
    ("image of kind 9", lambda p: p.add_image("i", 9, p.w.memory(b"code")), I, "image 'i': there is no kind 9"),
    ("image whose bytes are NULL", lambda p: p.add_image("i", 1, _ffi.accrt_writer_bytes(size_bytes=4)), I, "4 bytes of kind 0"),
    ("pack with bytes", lambda p: p.add_image("i", 5, p.w.memory(b"1")), I, "a pack has no bytes"),
    ("pack with a name of a path", lambda p: p.add_image("../i", 5, None), I, "no name of a pack"),
    ("pack of an image's name", lambda p: p.add_image("code.so", 5, None), E, "image 'code.so': there is one"),
    ("image twice", lambda p: p.add_image("code.so", 1, p.w.memory(b"1")), E, "there is one"),
    # Kernels
    ("MUL of a kernel", lambda p: p.w.expression(5, p.n, p.kernel), I, "operand b is .*\\(kernel\\), not the id of an expression"),
    ("too many parameters", lambda p: p.w.add("kernel", name="k", parameter_count=65), I, "65 parameters; at most 64"),
    ("parameters that are NULL", lambda p: p.w.add("kernel", name="k", parameter_count=1), I, "kernel 'k': parameters is NULL with a count of 1"),
    ("parameter without a name", lambda p: p.parameter(name=None, kind=1, access=1), I, "the name is empty"),
    ("parameter of kind 300", lambda p: p.parameter(kind=300), I, "parameter 'p': kind 300"),
    ("parameter of kind 9", lambda p: p.parameter(kind=9), I, "parameter 'p'"),
    ("parameter of access 300", lambda p: p.parameter(kind=1, access=300), I, "access 300"),
    ("parameter with flags 300", lambda p: p.parameter(kind=1, access=1, flags=300), I, "flags 300"),
    ("parameter aligned to 3", lambda p: p.parameter(kind=1, access=1, align_bytes=3), I, "aligned to 3"),
    ("parameter aligned to 32", lambda p: p.parameter(kind=1, access=1, align_bytes=32), I, "aligned to 32"),
    ("parameter too far", lambda p: p.parameter(kind=1, access=1, offset_bytes=1 << 20), I, "at 1048576"),
    ("buffer of 4 bytes", lambda p: p.parameter(kind=1, access=1, size_bytes=4), I, "4 bytes"),
    ("scalar of 3 bytes", lambda p: p.parameter(kind=3, size_bytes=3), I, "parameter 'p'"),
    ("scalar of no bytes", lambda p: p.parameter(kind=3), I, "parameter 'p'"),
    ("parameter twice", lambda p: p.parameter((b"p", 1, 1), kind=1, access=1), I, "kernel 'k'"),
    ("kernel twice", lambda p: p.w.kernel(variant=False), E, "kernel 'scale': there is one"),
    # Variants
    ("variant without an architecture", lambda p: p.variant(arch_kind=1), I, "only a portable variant may name none"),
    ("variant of kind 3", lambda p: p.variant(arch_kind=3, arch="x86-64"), I, "of kind 3"),
    ("variant of no image", lambda p: p.variant(image=p.kernel), I, "image is .*\\(kernel\\)"),
    ("variant of driver ''", lambda p: p.variant(driver=""), I, "the driver is empty"),
    ("variant of entry ''", lambda p: p.variant(entry=""), I, "the entry is empty"),
    ("variant of no text", lambda p: p.variant(arch=b"\xff"), I, "the architecture is not UTF-8"),
    ("host code that is a cubin", lambda p: p.variant(image=p.cubin), I, "of kind 2; the host runs HOST_ELF and PACK"),
    ("host code with a block", lambda p: p.variant(block=ids(32)), I, "which only device code has"),
    ("host code with a cluster", lambda p: p.variant(cluster=ids(2)), I, "which only device code has"),
    ("host code with shared memory", lambda p: p.variant(dynamic_shared_bytes=4), I, "which only device code has"),
    ("variant with flag 2", lambda p: p.variant(flags=2), I, "flags 0x2"),
    ("device code without a block", lambda p: p.variant(driver="cuda", image=p.cubin), I, "a block of 1 to 1024 threads, not \\(0, 0, 0\\)"),
    ("device code of too many threads", lambda p: p.variant(driver="cuda", image=p.cubin, block=ids(64, 32)), I, "not \\(64, 32, 1\\)"),
    ("device code with a block and no launch", lambda p: p.variant(driver="cuda", image=p.cubin, block=ids(1), flags=1), I, "which only device code has"),
    ("predicate on nothing", lambda p: p.predicate(kind=1, value=4), I, "a predicate on parameter ''"),
    ("predicate on another name", lambda p: p.predicate(parameter=b"cuont", kind=1, value=4), I, "'cuont'.*did you mean 'count'"),
    ("predicates that are NULL", lambda p: p.variant(predicate_count=1), I, "1 predicates"),
    ("predicates without end", lambda p: p.variant(predicate_count=0xFFFFFFFF), I, "4294967295 predicates"),
    # Beside the program
    ("asset without bytes", lambda p: p.w.call("add_asset", b"a", b"t", None), I, "asset 'a': bytes is NULL"),
    ("asset of no memory", lambda p: p.w.call("add_asset", b"a", b"t", ctypes.byref(_ffi.accrt_writer_bytes(size_bytes=1))), I, "1 bytes of kind 0"),
    ("asset above the limit", lambda p: p.w.call("add_asset", b"a", b"t", ctypes.byref(_ffi.accrt_writer_bytes(size_bytes=1 << 63))), R, "9223372036854775808 bytes"),
    ("asset of no type", lambda p: p.w.call("add_asset", b"a", b"\xff", ctypes.byref(p.w.memory(b"1"))), I, "the media type is not UTF-8"),
    ("asset twice", lambda p: [p.w.call("add_asset", b"a", b"t", ctypes.byref(p.w.memory(b"1"))) for _ in range(2)], E, "asset 'a': there is one"),
    ("section 0", lambda p: p.section(type=0), I, "sections of type 0 itself"),
    ("section without a name", lambda p: p.section(name=None), I, "1 to 16 printable characters"),
    ("section with a long name", lambda p: p.section(name="n" * 17), I, "1 to 16 printable characters"),
    ("section with a space", lambda p: p.section(name="a b"), I, "without spaces"),
    ("section with a letter beyond ASCII", lambda p: p.section(name="\u00e9"), I, "printable characters"),
    ("section without bytes", lambda p: p.section(b""), I, "0 bytes in 0 records of 0"),
    ("section of other records", lambda p: p.section(record_bytes=4, record_count=3), I, "8 bytes in 3 records of 4"),
    ("section of memory that is NULL", lambda p: p.section(bytes=_ffi.accrt_writer_bytes(size_bytes=8)), I, "8 bytes of kind 0"),
    ("section twice", lambda p: [p.section() for _ in range(2)], E, "there is one"),
    # Functions and arguments
    ("function twice", lambda p: p.w.add("function", name="main"), E, "function 'main': there is one"),
    ("function with a doc of no text", lambda p: p.w.add("function", name="f", doc=b"\xff"), I, "doc is not UTF-8"),
    ("function for no text", lambda p: p.w.add("function", name="f", target=b"\xff"), I, "target is not UTF-8"),
    ("argument of kind 5", lambda p: p.argument(name="a", kind=5), I, "kind 5, optional 0"),
    ("argument with optional 2", lambda p: p.argument(name="a", optional=2), I, "kind 0, optional 2"),
    ("result that is optional", lambda p: p.argument(name="a", kind=3, optional=1), I, "kind 3, optional 1"),
    ("argument without a name", lambda p: p.argument(kind=0, type=p.w.type(12, p.n)), I, "the name is empty"),
    ("argument with a doc of no text", lambda p: p.argument(name="a", doc=b"\xff"), I, "doc is not UTF-8"),
    ("argument twice", lambda p: p.argument(name="x", type=p.w.type(12, p.n)), E, "input 'x': there is one"),
    ("argument of no type", lambda p: p.argument(name="a"), I, "data type 0"),
    ("scalar without a symbol", lambda p: p.argument(name="a", kind=4), I, "a SCALAR names a symbol"),
    ("scalar of a number", lambda p: p.argument(name="a", kind=4, symbol=p.w.number(1)), I, "a SCALAR names a symbol"),
    ("scalar of a slot", lambda p: p.argument(name="a", kind=4, symbol=p.x), I, "symbol is .*\\(slot\\)"),
    ("buffer with a symbol", lambda p: p.argument(name="a", symbol=p.n, type=p.w.type(12, p.n)), I, "others name none"),
    ("scalar with a type", lambda p: p.argument(name="a", kind=4, symbol=p.n, type=p.w.type(12, p.n)), I, "follows from the symbol"),
    ("constant that is a state", lambda p: p.argument(name="a", constant=p.state), I, "constant is .*\\(state\\)"),
    ("constant of a function that prepares nothing", lambda p: p.argument(name="a", constant=p.constant), I, "arguments of prepare functions, and no others"),
    ("prepare function with an input", lambda p: p.prepare(type=p.w.type(12, p.w.number(1))), I, "arguments of prepare functions, and no others"),
    ("constant with a type", lambda p: p.prepare(constant=p.constant, type=p.w.type(12, p.n)), I, "follows from the constant"),
    ("stored constant that is made", lambda p: p.prepare(constant=p.constant, kind=3), I, "constant 'w' is stored"),
    ("stored constant that is changed", lambda p: p.prepare(constant=p.constant, kind=1), I, "constant 'w' is stored"),
    ("stored constant that is optional", lambda p: p.prepare(constant=p.constant, optional=1), I, "constant 'w' is stored"),
    ("prepared constant that is read", lambda p: p.prepare(constant=p.prepared), I, "constant 'p' is made by a prepare function"),
    ("alias of nothing", lambda p: p.argument(name="r", kind=3, type=p.w.type(12, p.n), alias_kind=1), I, "alias_input is 0x0"),
    ("alias of what is read", lambda p: p.argument(name="r", kind=3, type=p.w.type(12, p.n), alias_kind=1, alias_input=p.x), I, "alias kind 1 with 'x'"),
    ("alias of the arena", lambda p: p.argument(name="r", kind=3, type=p.w.type(12, p.n), alias_kind=1, alias_input=p.arena), I, "with 'no input'"),
    ("alias of kind 3", lambda p: p.argument(name="r", kind=3, type=p.w.type(12, p.n), alias_kind=3, alias_input=p.both), I, "alias kind 3 with 'b'"),
    ("alias of no kind", lambda p: p.argument(name="r", kind=3, type=p.w.type(12, p.n), alias_input=p.both), I, "alias kind 0 with 'b'"),
    ("alias of an input", lambda p: p.argument(name="r", kind=1, type=p.w.type(12, p.n), alias_kind=1, alias_input=p.both), I, "alias kind 1 with 'b'"),
    ("alias twice", lambda p: [p.argument(name=r, kind=3, type=p.w.type(12, p.n), alias_kind=2, alias_input=p.both) for r in "rs"], I, "that no other result shares"),
    # Commands
    ("opcode 0", lambda p: p.do(0), I, "opcode 0, 0 raw bytes"),
    ("opcode 65536", lambda p: p.do(65536), I, "opcode 65536"),
    ("raw bytes that are no multiple of 8", lambda p: p.do(999, raw_size_bytes=4), I, "4 raw bytes"),
    ("raw bytes that are NULL", lambda p: p.do(999, raw_size_bytes=8), I, "8 raw bytes"),
    ("raw flags", lambda p: p.do(999, flags=4), I, "flags 0x4"),
    ("target of a copy", lambda p: p.do("copy", target=p.kernel, source=span(p.x), destination=span(p.both), extent=ids(p.n)), I, "byte 40 .*not of this opcode"),
    ("value of a dispatch", lambda p: p.do("dispatch", target=p.kernel, value=p.n), I, "not of this opcode, and not 0"),
    ("pattern of a copy", lambda p: p.do("copy", pattern=1 << 40), I, "not of this opcode"),
    ("source of a fill", lambda p: p.do("fill", source=span(p.x), destination=span(p.both)), I, "not of this opcode"),
    ("text of a barrier", lambda p: p.do("barrier", text=b"t"), I, "not of this opcode"),
    ("grid of a call", lambda p: p.do("call", target=p.w.add("function", name="f")[0], grid=ids(p.n)), I, "not of this opcode"),
    ("flags of a repeat", lambda p: p.do("repeat", value=p.w.number(1), flags=1), I, "not of this opcode"),
    ("raw bytes of a branch", lambda p: p.do("branch", value=p.w.number(1), raw_size_bytes=8), I, "not of this opcode"),
    ("value of a marker", lambda p: p.do("marker", value=p.n), I, "not of this opcode"),
    ("text of an unknown opcode", lambda p: p.do(999, text=b"t"), I, "not of this opcode"),
    # Reserved fields
    ("reserved of a constant", lambda p: p.constant_of((0, 0, b"1234"), reserved=1), I, "constant 'c': reserved is 0x1, not 0"),
    ("reserved of a state", lambda p: p.w.add("state", name="q", type=p.w.type(12), reserved=2), I, "state 'q': reserved is 0x2"),
    ("reserved of a kernel", lambda p: p.w.add("kernel", name="k", reserved=3), I, "kernel 'k': reserved is 0x3"),
    ("reserved of an argument", lambda p: p.argument(name="a", type=p.w.type(12, p.n), reserved=4), I, "input 'a': reserved is 0x4"),
    ("reserved of a segment", lambda p: p.w.call("add_shard", p.constant, 1, 0, 2, 4, ctypes.byref(_ffi.accrt_writer_segment(0, 4, 1, 5)), 1), I, "constant 'w': reserved is 0x5"),
    ("reserved of a predicate", lambda p: p.predicate(parameter=b"count", kind=1, value=4, reserved=6), I, "kernel 'scale', variant for 'host': reserved is 0x6"),
    ("reserved of an output", lambda p: p.w.call("write_callback", ctypes.byref(output(7))), I, "reserved is 0x7"),
    ("location of a file", lambda p: p.do("barrier", location=p.file), I, "location is .*\\(file\\)"),
    ("name of no text", lambda p: p.do("barrier", name=b"\xff"), I, "the name is not UTF-8"),
    ("text of no text", lambda p: p.do("marker", text=b"\xff"), I, "the text is not UTF-8"),
    ("dispatch of a function", lambda p: p.do("dispatch", target=p.function), I, "target is .*\\(function\\), not the id of a kernel"),
    ("dispatch of a function by name", lambda p: p.do("dispatch", target=p.function, name="d"), I, "not the id of a kernel"),
    ("call of a kernel", lambda p: p.do("call", target=p.kernel), I, "target is .*\\(kernel\\), not the id of a function"),
    ("call of a kernel by name", lambda p: p.do("call", target=p.kernel, name="d"), I, "not the id of a function"),
    ("call of a prepare function", lambda p: p.do("call", target=p.w.add("function", name="f", flags=1)[0]), I, "prepare functions are not called"),
    ("call of another device's function", lambda p: p.do("call", target=p.w.add("function", name="f", target="cuda")[0]), I, "the function is for 'cuda'"),
    ("grid of a slot", lambda p: p.do("dispatch", target=p.kernel, grid=ids(p.x)), I, "grid x is .*\\(slot\\)"),
    ("grid below 0", lambda p: p.do("dispatch", target=p.kernel, grid=ids(p.n, p.w.number(-1))), I, "grid y is -1"),
    ("operands that are NULL", lambda p: p.do("dispatch", target=p.kernel, operand_count=1), I, "operands is NULL"),
    ("operand 1 of 1", lambda p: p.call_of([{"kind": 6}] * 3), I, "it is not optional"),
    ("operand without a parameter", lambda p: p.do("dispatch", target=p.w.add("kernel", name="none"), operand_count=1, operands=p.w.array(_ffi.accrt_writer_operand, _ffi.accrt_writer_operand(kind=1))), I, "operand 0 of 0"),
    ("operand of an input and a result", lambda p: p.call_of([{"name": b"same", "kind": 1}]), I, "'same' is an input and a result"),
    ("operand of no argument", lambda p: p.call_of([{"name": b"smae", "kind": 1}]), I, "no argument 'smae'.*did you mean 'same'"),
    ("operand of no text", lambda p: p.call_of([{"name": b"\xff", "kind": 1}]), I, "an operand's name is not UTF-8"),
    ("buffer of kind 0", lambda p: p.operand(BUFFER), I, "a BUFFER is needed"),
    ("buffer that is absent", lambda p: p.operand(BUFFER, kind=6), I, "it is not optional, and must be given"),
    ("buffer without a slot", lambda p: p.operand(BUFFER, kind=1), I, "a range's slot is 0x0"),
    ("buffer with another access", lambda p: p.operand(BUFFER, kind=1, range=span(p.x, 2)), I, "'x' is for access 2, needed is 1"),
    ("buffer that is a scalar", lambda p: p.operand(BUFFER, kind=1, range=span(p.scalar)), I, "'c': a scalar has no storage"),
    ("buffer of a negative size", lambda p: p.operand(BUFFER, kind=1, range=span(p.x, size=p.w.number(-1))), I, "a range's size is -1"),
    ("buffer at a negative offset", lambda p: p.operand(BUFFER, kind=1, range=span(p.x, offset=p.w.number(-1))), I, "a range's offset is -1"),
    ("constant that is written", lambda p: p.operand((1, 2), kind=1, range=span(p.out("slot", p.function, p.constant, 0))), I, "'w': a constant is read only"),
    ("state with another access", lambda p: p.operand(BUFFER, kind=1, range=span(p.out("slot", p.function, p.state, 0), 3)), I, "'s' is for access 3"),
    ("arena with another access", lambda p: p.operand(BUFFER, kind=1, range=span(p.arena, 3)), I, "'the arena' is for access 3"),
    ("symbol of no value", lambda p: p.operand(SYMBOL, kind=4), I, "the value is 0x0"),
    ("symbol of another repeat", lambda p: p.operand(SYMBOL, kind=4, value=p.out("induction", 0)), I, "iteration of a repeat at depth 0; 0 are around it"),
    ("scalar that does not fit", lambda p: p.operand(SCALAR, kind=3, bits=1 << 32), I, "0x100000000 does not fit 4 bytes"),
    ("tensor of rank 9", lambda p: p.operand(TENSOR, kind=2, dtype=12, rank=9), I, "rank 9 of at most 8"),
    ("tensor of data type 200", lambda p: p.operand(TENSOR, kind=2, dtype=200), I, "data type 200"),
    ("tensor without a size", lambda p: p.operand(TENSOR, kind=2, dtype=12, rank=1), I, "a size of the tensor is 0x0"),
    ("tensor of half its strides", lambda p: p.operand(TENSOR, kind=2, dtype=12, rank=2, shape=(ctypes.c_uint32 * 8)(p.n, p.n), strides=(ctypes.c_uint32 * 8)(p.n)), I, "a stride of the tensor is 0x0"),
    ("tensor without a range", lambda p: p.operand(TENSOR, kind=2, dtype=12, rank=2, shape=(ctypes.c_uint32 * 8)(p.n, p.n)), I, "a range's slot is 0x0"),
    ("workspace that is no arena", lambda p: p.operand(WORKSPACE, kind=5, range=span(p.both)), I, "a workspace lies in the arena"),
    ("operand twice", lambda p: p.do("dispatch", target=p.kernel, **p.w.operands(("x", "slot", p.x), ("x", "slot", p.x))), I, "parameter 'x': it is given twice"),
    ("copy of a sized range", lambda p: p.do("copy", source=span(p.x, size=p.n)), I, "a copy's sizes are its extents"),
    ("copy with a stride of a slot", lambda p: p.do("copy", source=span(p.x), destination=span(p.y), extent=ids(p.n), source_stride=(ctypes.c_uint32 * 2)(p.x)), I, "a stride is .*\\(slot\\)"),
    ("copy with a negative stride", lambda p: p.do("copy", source=span(p.x), destination=span(p.y), extent=ids(p.n), destination_stride=(ctypes.c_uint32 * 2)(0, p.w.number(-1))), I, "a stride is -1"),
    ("copy over an input", lambda p: p.do("copy", source=span(p.x), destination=span(p.x), extent=ids(p.n)), I, "the input is read only"),
    ("fill with 3 bytes", lambda p: p.do("fill", pattern_bytes=3), I, "of 3 bytes; 1, 2, 4 or 8"),
    ("fill with 16 bytes", lambda p: p.do("fill", pattern_bytes=16), I, "of 16 bytes"),
    ("fill with a pattern too wide", lambda p: p.do("fill", pattern=256), I, "pattern 0x100 of 1 bytes"),
    ("fill of nothing", lambda p: p.do("fill", pattern=255), I, "a range's slot is 0x0"),
    ("repeat without a count", lambda p: p.do("repeat"), I, "the count is 0x0"),
    ("repeat less than never", lambda p: p.do("repeat", value=p.w.number(-1)), I, "the count is -1"),
    ("branch without a condition", lambda p: p.do("branch"), I, "the condition is 0x0"),
    ("branch by a RUNTIME symbol", lambda p: p.do("branch", value=p.late), I, "the condition depends on symbol 'late'"),
    ("repeats that nest without end", lambda p: p.nested(300), R, "blocks nest at most"),
    ("branches that nest without end", lambda p: p.do("barrier", p.nested(300, "branch")), R, "blocks nest at most"),
    ("barrier after a command", lambda p: p.after(p.command, what="barrier"), I, "1 predecessors; a barrier has none"),
    ("predecessors that are NULL", lambda p: p.do("marker", after_count=1), I, "1 predecessors"),
    ("predecessor of another kind", lambda p: p.after(p.body), I, "a predecessor is .*\\(block\\)"),
    ("predecessor of another block", lambda p: p.after(p.do("marker", p.nested(1), name="inner")), I, "predecessor 0 \\('inner'\\) is a command of another block"),
    # Outputs
    ("no path", lambda p: p.w.call("write_path", None), I, "path is NULL"),
    ("a path that is too long", lambda p: p.w.call("write_path", b"/tmp/" + b"p" * 9000), "IoError", "too long"),
    ("an output of no function", lambda p: p.w.call("write_callback", ctypes.byref(_ffi.accrt_writer_output())), I, "output has no function"),
    ("an output that is NULL", lambda p: p.w.call("write_callback", None), I, "output"),
]  # fmt: skip


@pytest.mark.parametrize("make, kind, message", [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(make, kind, message):
    with Writer() as w:
        program = Program(w)
        with pytest.raises(accrt.Error) as caught:
            make(program)
        text = f"{type(caught.value).__name__}: {caught.value.message}"
        assert re.match(f"{kind}: .*{message}", text), text
        assert program.do("marker", text="the writer goes on")


def test_texts_that_are_too_long():
    with Writer() as w:
        for size in (1 << 16, 1 << 20, 1 << 24):
            with pytest.raises(accrt.OutOfRangeError, match=f"the name has {size} bytes; a name has at most 1023"):
                w.call("add_metadata", b"k" * size, b"")
        with pytest.raises(accrt.OutOfRangeError, match="the value has .* bytes; the limit is"):
            w.call("add_metadata", b"k", b"v" * (1 << 26))


def test_a_function_has_so_many_arguments_and_no_more():
    with Writer() as w:
        n = w.add("symbol", name="n")
        function, _body = w.add("function", name="f")
        with pytest.raises(accrt.OutOfRangeError, match="a function has at most (\\d+) arguments") as caught:
            for i in range(1 << 14):
                w.add("argument", function, name=f"a{i}", kind=3 * (i % 2), type=w.type(12, n))
        assert int(re.search("at most (\\d+)", caught.value.message)[1]) == i
