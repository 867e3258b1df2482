"""Generated kernels for fused element-wise work: a small DAG of scalar operations becomes one
vectorizable C loop.

Semantics, the same fused or alone: every f32 and f64 operation rounds once (units are compiled
without contraction); f16 and bf16 values are computed in f32 and rounded where they are stored or
cast; integers wrap around; an integer division truncates and gives 0 for a divisor of 0; min, max
and clamp propagate NaN; a cast from float to integer truncates, saturates, and gives 0 for NaN; a
cast between integers wraps; a cast to bool is `!= 0`.
"""

from __future__ import annotations

import hashlib
import math
import struct as _struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set, Tuple

from . import expr as ex
from .kerneldef import BufferArg, CSource, KernelDef, Launch, Param, TensorSpec, launch, layout, reads, scalar, symbol, writes

FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
DTYPES = FLOATS + INTEGERS + ("bool",)

# Storage type in memory, and the type that expressions are computed in.
STORAGE = {
    "f16": "f16_t", "bf16": "bf16_t", "f32": "float", "f64": "double", "i8": "int8_t", "u8": "uint8_t",
    "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t", "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "bool": "uint8_t",
}  # fmt: skip
COMPUTE = dict(STORAGE, f16="float", bf16="float")
_UNSIGNED_OF = {dtype: "uint64_t" if dtype in ("i64", "u64") else "uint32_t" for dtype in INTEGERS}
#: Least and greatest integers of each type.
RANGES = {
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}, **{f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}  # fmt: skip

MAX_PARAMS = 64


@dataclass(frozen=True)
class Node:
    """One value of a program. `args` are indices of earlier nodes.

    Sources: input (value: index of the input), const (value: a number), scalar (value: index of a
    run-time scalar of `dtype`), symbol (value: index of a run-time int64 expression; dtype i64),
    index (the linear index of the element, i64), take. All else is named in UNARY, BINARY, COMPARE,
    LOGICAL, BITWISE, SHIFTS, or is where, clamp or cast.

    take reads an input through an index map. Its value is (index of the input, axes), and its
    arguments are the places along these axes, integers. Along its other axes the input is read as
    it broadcasts to the shape. A place outside the axis fails the dispatch.
    """

    op: str
    dtype: str
    args: Tuple[int, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class Program:
    """A DAG in topological order, and which of its values are stored, each with the type of its
    node."""

    nodes: Tuple[Node, ...]
    outputs: Tuple[int, ...]

    def count(self, op: str) -> int:
        """Number of scalars or symbols."""
        return 1 + max((node.value for node in self.nodes if node.op == op), default=-1)

    def takes(self) -> Dict[int, Tuple[int, ...]]:
        """Inputs that are read through an index map, and the axes along which they are."""
        return dict(node.value for node in self.nodes if node.op == "take")


def _float_call(name: str) -> Callable[[str, str], str]:
    """A function of vmath.h for float; the import of the same name for double."""
    return lambda dtype, x: f"imports->{name}({x})" if dtype == "f64" else f"m_{name}({x})"


def _suffix(dtype: str) -> str:
    return "" if dtype == "f64" else "f"


def _neg(dtype: str, x: str) -> str:
    return f"-{x}" if dtype in FLOATS else _wrap(dtype, f"0u - ({_UNSIGNED_OF[dtype]}){x}")


def _abs(dtype: str, x: str) -> str:
    if dtype in FLOATS:
        return f"__builtin_fabs{_suffix(dtype)}({x})"
    return x if dtype in UNSIGNED else f"({x} < 0 ? {_neg(dtype, x)} : {x})"


def _wrap(dtype: str, text: str) -> str:
    return f"({COMPUTE[dtype]})({text})"


def _composite(single: str, double: str) -> Callable[[str, str], str]:
    return lambda dtype, x: double.replace("$", x) if dtype == "f64" else f"m_{single}({x})"


UNARY: Dict[str, Callable[[str, str], str]] = {
    "neg": _neg,
    "abs": _abs,
    "sqrt": lambda d, x: f"__builtin_sqrt{_suffix(d)}({x})",
    "rsqrt": lambda d, x: f"(1 / __builtin_sqrt{_suffix(d)}({x}))",
    "reciprocal": lambda d, x: f"(1 / {x})",
    "floor": lambda d, x: f"__builtin_floor{_suffix(d)}({x})",
    "ceil": lambda d, x: f"__builtin_ceil{_suffix(d)}({x})",
    "exp": _float_call("exp"),
    "expm1": _float_call("expm1"),
    "log": _float_call("log"),
    "log1p": _float_call("log1p"),
    "tanh": _float_call("tanh"),
    "erf": _float_call("erf"),
    "erfc": _float_call("erfc"),
    "atan": lambda d, x: f"{'d' if d == 'f64' else 'm'}_atan({x})",
    "sin": _float_call("sin"),
    "cos": _float_call("cos"),
    "relu": lambda d, x: f"({x} < 0 ? 0 : {x})",
    "sigmoid": _composite("sigmoid", "(1 / (1 + imports->exp(-$)))"),
    "silu": _composite("silu", "($ / (1 + imports->exp(-$)))"),
    "gelu": _composite("gelu", "(0.5 * $ * (1 + imports->erf($ * 0.70710678118654752440)))"),
    "gelu_tanh": _composite(
        "gelu_tanh",
        "($ / (1 + imports->exp(-1.5957691216057307 * ($ + 0.044715 * $ * $ * $))))",
    ),
}
_FLOAT_ONLY = set(UNARY) - {"neg", "abs", "relu"}

# Cost in units of a simple vector operation, for choosing how much one workgroup does.
_COST = {
    "exp": 16, "expm1": 20, "log": 18, "log1p": 26, "tanh": 24, "erf": 26, "erfc": 26, "atan": 40, "gelu": 30, "gelu_tanh": 24, "silu": 22, "sigmoid": 20, "sin": 40,
    "cos": 40, "pow": 90, "sqrt": 6, "rsqrt": 12, "div": 6, "reciprocal": 6, "take": 8,
}  # fmt: skip


def is_dear(node: Node) -> bool:
    """Whether it is a function, such as exp, and no arithmetic."""
    return _COST.get(node.op, 1) >= 16


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
SHIFTS = ("shift_left", "shift_right")
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
BINARY = ("add", "sub", "mul", "div", "min", "max", "pow")


def _divide(dtype: str, a: str, b: str) -> str:
    if dtype in FLOATS:
        return f"({a} / {b})"
    if dtype in UNSIGNED:
        return f"({b} == 0 ? 0 : ({COMPUTE[dtype]})({a} / ({b} == 0 ? 1 : {b})))"
    quotient = f"({COMPUTE[dtype]})({a} / (({b} == 0 || {b} == -1) ? 1 : {b}))"
    return f"({b} == 0 ? 0 : {b} == -1 ? {_neg(dtype, a)} : {quotient})"


def _binary(op: str, dtype: str, a: str, b: str) -> str:
    if op in _ARITHMETIC:
        if dtype in FLOATS:
            return f"({a} {_ARITHMETIC[op]} {b})"
        unsigned = _UNSIGNED_OF[dtype]
        return _wrap(dtype, f"({unsigned}){a} {_ARITHMETIC[op]} ({unsigned}){b}")
    if op == "div":
        return _divide(dtype, a, b)
    if op in ("min", "max"):
        sign = "<" if op == "min" else ">"
        keep = f" || {a} != {a}" if dtype in FLOATS else ""
        return f"(({a} {sign} {b}{keep}) ? {a} : {b})"
    if dtype == "f64":
        return f"imports->pow({a}, {b})"
    if dtype in FLOATS:
        return f"m_pow({a}, {b})"
    return f"pow_unsigned({a}, {b})" if dtype == "u64" else _wrap(dtype, f"pow_integer((int64_t){a}, (int64_t){b})")


def _shift(op: str, dtype: str, a: str, b: str) -> str:
    """By fewer than none or by all bits: nothing is left to the left, the sign to the right."""
    bits = RANGES[dtype][1].bit_length() + (dtype not in UNSIGNED)
    outside = f"({b} < 0 || {b} >= {bits})" if dtype not in UNSIGNED else f"({b} >= {bits})"
    if op == "shift_left":
        return f"({outside} ? 0 : {_wrap(dtype, f'({_UNSIGNED_OF[dtype]}){a} << ({outside} ? 0 : {b})')})"
    rest = "0" if dtype in UNSIGNED else f"({a} < 0 ? -1 : 0)"
    return f"({outside} ? {rest} : {_wrap(dtype, f'{a} >> ({outside} ? 0 : {b})')})"


def _to_integer(source: str, target: str, x: str) -> str:
    """Truncates and saturates without ever converting an unrepresentable value."""
    low, high = RANGES[target]
    s = _suffix(source)
    # The largest float of the source type that does not exceed the limit.
    largest = _struct.unpack("<f", _struct.pack("<f", high))[0] if source != "f64" else float(high)
    if largest > high:
        largest = math.nextafter(largest, 0) if source == "f64" else _previous_f32(largest)
    bounded = f"({x} > {low}.0{s} ? ({x} < {largest!r}{s} ? {x} : {largest!r}{s}) : ({x} != {x} ? 0 : {low}.0{s}))"
    if low == -(2**63):
        bounded = bounded.replace(f"{low}.0{s}", f"-9223372036854775808.0{s}")
    wide = "int32_t" if target in ("i8", "u8", "i16", "u16") else COMPUTE[target]
    converted = f"({COMPUTE[target]})({wide}){bounded}"
    if largest == high:
        return converted
    maximum = {"i32": "INT32_MAX", "u32": "UINT32_MAX", "i64": "INT64_MAX", "u64": "UINT64_MAX"}[target]
    return f"({x} > {largest!r}{s} ? {maximum} : {converted})"


def _previous_f32(x: float) -> float:
    bits = _struct.unpack("<I", _struct.pack("<f", x))[0] - 1
    return _struct.unpack("<f", _struct.pack("<I", bits))[0]


def _round_16(dtype: str, source: str, x: str) -> str:
    single = f"f32_from_f64_odd({x})" if source == "f64" else f"(float)({x})"
    return f"{dtype}_from_f32({single})"


def _cast(source: str, target: str, x: str) -> str:
    if source == target:
        return x
    if target == "bool":
        return f"(uint8_t)({x} != 0)"
    if target in ("f16", "bf16"):
        return f"f32_from_{target}({_round_16(target, source, x)})"
    if target in INTEGERS and source in FLOATS:
        return _to_integer(source, target, x)
    return f"({COMPUTE[target]})({x})"


def _literal(dtype: str, value: Any) -> str:
    if dtype in FLOATS:
        number, s = float(value), _suffix(dtype)
        if math.isnan(number):
            return f'__builtin_nan{s}("")'
        if math.isinf(number):
            return f"({'-' if number < 0 else ''}__builtin_inf{s}())"
        if dtype != "f64" and abs(number) > 3.4028235677973366e38:
            return f"({'-' if number < 0 else ''}__builtin_inff())"
        return f"({number.hex()}{s})"
    if dtype == "bool":
        return "1" if value else "0"
    low, high = RANGES[dtype]
    if not low <= int(value) <= high:
        raise ValueError(f"constant {value} does not fit {dtype}")
    if dtype in ("i64", "u64"):
        return f"(({COMPUTE[dtype]})UINT64_C({int(value) & (2**64 - 1)}))"
    return f"(({COMPUTE[dtype]}){int(value)}{'u' if dtype == 'u32' else ''})" if int(value) != -(2**31) else "INT32_MIN"


def _expression(program: Program, node: Node) -> str:
    """The C expression of a node that is no source, over the names v0, v1, ... of earlier nodes."""
    names = [f"v{index}" for index in node.args]
    first = program.nodes[node.args[0]].dtype
    if node.op in UNARY:
        return UNARY[node.op](node.dtype, names[0])
    if node.op in BINARY:
        return _binary(node.op, node.dtype, names[0], names[1])
    if node.op in COMPARE:
        return f"(uint8_t)({names[0]} {COMPARE[node.op]} {names[1]})"
    if node.op in LOGICAL:
        return f"(uint8_t)({names[0]} {LOGICAL[node.op]} {names[1]})"
    if node.op in BITWISE:
        return _wrap(node.dtype, f"{names[0]} {BITWISE[node.op]} {names[1]}")
    if node.op in SHIFTS:
        return _shift(node.op, node.dtype, names[0], names[1])
    if node.op == "logical_not":
        return f"(uint8_t)({names[0]} ^ 1)"
    if node.op == "where":
        return f"({names[0]} ? {names[1]} : {names[2]})"
    if node.op == "cast":
        return _cast(first, node.dtype, names[0])
    low = _binary("max", node.dtype, names[0], names[1])
    return f"clamp_{COMPUTE[node.dtype]}({low}, {names[2]})"


def verify(program: Program) -> None:
    """Raises ValueError, naming the node, where operations, types or arguments do not fit."""
    for at, node in enumerate(program.nodes):
        where = f"node {at} ({node.op}: {node.dtype})"
        if node.dtype not in DTYPES:
            raise ValueError(f"{where}: host kernels know {', '.join(DTYPES)}")
        if any(not 0 <= arg < at for arg in node.args):
            raise ValueError(f"{where}: arguments {node.args} are not earlier nodes")
        types = [program.nodes[arg].dtype for arg in node.args]
        if node.op == "take":
            _verify_take(where, node, types)
        else:
            _verify_types(where, node, types)
    for output in program.outputs:
        if not 0 <= output < len(program.nodes):
            raise ValueError(f"output {output} is no node")


def _verify_take(where: str, node: Node, types: List[str]) -> None:
    _input, axes = node.value
    if not axes or len(types) != len(axes):
        raise ValueError(f"{where}: {len(types)} places along axes {axes}")
    if any(dtype not in INTEGERS for dtype in types):
        raise ValueError(f"{where}: places of {types}, integers are needed")


def _verify_types(where: str, node: Node, types: List[str]) -> None:
    arity = {"input": 0, "const": 0, "scalar": 0, "symbol": 0, "index": 0, "where": 3, "clamp": 3, "cast": 1, "logical_not": 1}
    known = 1 if node.op in UNARY else 2 if node.op in (*BINARY, *COMPARE, *LOGICAL, *BITWISE, *SHIFTS) else arity.get(node.op)
    if known is None:
        raise ValueError(f"{where}: no such operation")
    if len(types) != known:
        raise ValueError(f"{where}: {known} arguments are needed, {len(types)} are given")
    if node.op in _FLOAT_ONLY and node.dtype not in FLOATS:
        raise ValueError(f"{where}: a float type is needed")
    if node.op in LOGICAL or node.op == "logical_not":
        wanted = ["bool"] * known
    elif node.op == "where":
        wanted = ["bool", node.dtype, node.dtype]
    elif node.op in COMPARE:
        wanted = [types[0]] * 2
    elif node.op == "cast":
        wanted = types
    else:
        wanted = [node.dtype] * known
    if types != wanted:
        raise ValueError(f"{where}: arguments of types {wanted} are needed, {types} are given")
    if (node.op in BINARY or node.op in UNARY) and node.dtype == "bool":
        raise ValueError(f"{where}: arithmetic on bool; cast first")


# ---- The kernel ----------------------------------------------------------------------------------


def _load(dtype: str, place: str) -> str:
    return f"f32_from_{dtype}({place})" if dtype in ("f16", "bf16") else place


def _store(dtype: str, value: str) -> str:
    return f"{dtype}_from_f32({value})" if dtype in ("f16", "bf16") else value


_PLACE = {"0": "{0}[0]", "1": "{0}[i]", "s": "{0}[i * {0}_step]"}


def _row_function(program: Program, classes: Sequence[str], input_dtypes: Sequence[str], name: str = "row") -> str:
    """The inner loop: `n` elements with known stride classes (0, 1 or s for any) of inputs, then
    outputs."""
    inputs, takes = len(input_dtypes), program.takes()
    output_dtypes = [program.nodes[index].dtype for index in program.outputs]
    args = ["int64_t n", "int64_t first", "const accrt_kernel_imports_t* imports"]
    args += [f"const {STORAGE[dtype]}* x{i}, int64_t x{i}_step" for i, dtype in enumerate(input_dtypes)]
    args += [f"{STORAGE[dtype]}* y{i}, int64_t y{i}_step" for i, dtype in enumerate(output_dtypes)]
    args += [f"{COMPUTE[dtype]} c{i}" for i, dtype in enumerate(_scalar_dtypes(program))]
    args += [f"int64_t n{i}" for i in range(program.count("symbol"))]
    args += [f"int64_t {name}" for i, axes in takes.items() for name in _take_names(i, axes)]
    args += ["const accrt_kernel_workgroup_t* workgroup"] if takes else []
    before, body, once, staged = [], [], set(), []
    for at, node in enumerate(program.nodes):
        target = body
        if node.op == "input":
            place = _PLACE[classes[node.value]].format(f"x{node.value}")
            text = _load(node.dtype, place)
            target = before if classes[node.value] == "0" else body
        elif node.op == "const":
            text, target = _literal(node.dtype, node.value), before
        elif node.op == "scalar":
            text, target = f"c{node.value}", before
        elif node.op == "symbol":
            text, target = f"n{node.value}", before
        elif node.op == "index":
            text = "first + i"
        elif node.op == "take" and once.issuperset(node.args):
            before += [*_checks(node), f"const __typeof__(x{node.value[0]}) t{at} = x{node.value[0]} + ({_offset(node)});"]
            text = _load(node.dtype, _PLACE[classes[node.value[0]]].format(f"t{at}").replace(f"t{at}_step", f"x{node.value[0]}_step"))
            target = before if classes[node.value[0]] == "0" else body
        elif node.op == "take":
            staged.append(at)
            text = _load(node.dtype, f"t{at}[i - block]")
        else:
            text = _expression(program, node)
            if takes and once.issuperset(node.args):
                target = before
        once |= {at} if target is before else set()
        target.append(f"const {COMPUTE[node.dtype]} v{at} = {text};")
    for i, index in enumerate(program.outputs):
        dtype = output_dtypes[i]
        body.append(f"{_PLACE[classes[inputs + i]].format(f'y{i}')} = {_store(dtype, f'v{_unrounded(program, index)}')};")
    lines = [f"static {'int32_t' if takes else 'void'} {name}(" + ", ".join(args) + ") {"]
    lines += [f"  {line}" for line in before]
    if staged:
        lines += _in_blocks(program, classes, body, staged)
    else:
        lines += ["  INDEPENDENT", "  for (int64_t i = 0; i < n; i++) {"]
        lines += [f"    {line}" for line in body]
        lines += ["  }"]
    return "\n".join(lines + (["  return KERNEL_OK;"] if takes else []) + ["}"])


def _in_blocks(program: Program, classes: Sequence[str], body: Sequence[str], staged: Sequence[int]) -> List[str]:
    """The loop of a row in blocks. What is looked up element by element is first collected, and
    checked, in a loop of its own; the loop behind it vectorizes."""
    needed = set(staged)
    for at in range(len(program.nodes) - 1, -1, -1):
        needed.update(program.nodes[at].args if at in needed else ())
    read = {arg for at in needed for arg in program.nodes[at].args}
    statement = {line.partition(" = ")[0]: line for line in body}
    behind = _used_behind(program, staged)
    idle = {f"const {COMPUTE[node.dtype]} v{at}" for at, node in enumerate(program.nodes) if at not in behind}
    body = [line for line in body if line.partition(" = ")[0] not in idle]
    lines = []
    for at in sorted(needed):
        node = program.nodes[at]
        name = f"const {COMPUTE[node.dtype]} v{at}"
        if at in staged:
            i = node.value[0]
            step = {"0": "", "1": " + i", "s": f" + i * x{i}_step"}[classes[i]]
            lines += [*_checks(node), f"t{at}[i - block] = x{i}[{_offset(node)}{step}];"]
        lines += [statement[name]] if name in statement and at in read else []
    return [
        *(f"  {STORAGE[program.nodes[at].dtype]} t{at}[{_BLOCK}];" for at in staged),
        f"  for (int64_t block = 0; block < n; block += {_BLOCK}) {{",
        f"    const int64_t end = min_i64(block + {_BLOCK}, n);",
        "    for (int64_t i = block; i < end; i++) {",
        *(f"      {line}" for line in lines),
        "    }",
        "    INDEPENDENT",
        "    for (int64_t i = block; i < end; i++) {",
        *(f"      {line}" for line in body),
        "    }",
        "  }",
    ]


def _used_behind(program: Program, staged: Sequence[int]) -> Set[int]:
    """Values that outputs need once what is looked up is there."""
    used = {_unrounded(program, index) for index in program.outputs}
    for at in range(len(program.nodes) - 1, -1, -1):
        used.update(program.nodes[at].args if at in used and at not in staged else ())
    return used


def _take_names(i: int, axes: Sequence[int]) -> List[str]:
    """Parameters of an input that is read through an index map: for each axis its stride and
    size."""
    return [f"x{i}_{kind}{axis}" for axis in axes for kind in "gm"]


#: Elements of a row that are looked up together.
_BLOCK = 256


def _checks(node: Node) -> List[str]:
    """Statements that leave the row where a place of a take is outside."""
    i, axes = node.value
    places = [(f"(int64_t)v{arg}", f"x{i}_m{axis}") for arg, axis in zip(node.args, axes)]
    return [f"if (UNLIKELY((uint64_t){place} >= (uint64_t){size})) return outside(workgroup, {place}, {size});" for place, size in places]


def _offset(node: Node) -> str:
    i, axes = node.value
    return " + ".join(f"(int64_t)v{arg} * x{i}_g{axis}" for arg, axis in zip(node.args, axes))


def _unrounded(program: Program, index: int) -> int:
    """What a result of 16 bits is stored from: a value that is cast to its type need not be rounded
    twice."""
    node = program.nodes[index]
    cast = node.op == "cast" and node.dtype in ("f16", "bf16") and COMPUTE[program.nodes[node.args[0]].dtype] == "float"
    return node.args[0] if cast and program.nodes[node.args[0]].dtype in (node.dtype, "f32") else index


def _scalar_dtypes(program: Program) -> List[str]:
    dtypes = {node.value: node.dtype for node in program.nodes if node.op == "scalar"}
    return [dtypes[i] for i in range(len(dtypes))]


_HELPERS = """
ALWAYS_INLINE int64_t pow_integer(int64_t base, int64_t power) {
  if (power < 0) return base == 1 ? 1 : base == -1 ? ((power & 1) ? -1 : 1) : 0;
  uint64_t result = 1, square = (uint64_t)base;
  for (uint64_t rest = (uint64_t)power; rest; rest >>= 1, square *= square)
    if (rest & 1) result *= square;
  return (int64_t)result;
}
#define CLAMP(T) ALWAYS_INLINE T clamp_##T(T x, T high) { return (x > high || high != high) ? high : x; }
CLAMP(float) CLAMP(double) CLAMP(int8_t) CLAMP(uint8_t) CLAMP(int32_t) CLAMP(uint32_t) CLAMP(int64_t)
"""
#: What is there where it is used alone: the text of other kernels, and so their names, stay.
_MORE_HELPERS = {
    "pow_unsigned": """
ALWAYS_INLINE uint64_t pow_unsigned(uint64_t base, uint64_t power) {
  uint64_t result = 1;
  for (; power; power >>= 1, base *= base)
    if (power & 1) result *= base;
  return result;
}""",
    **{f"clamp_{T}": f"CLAMP({T})" for T in ("int16_t", "uint16_t", "uint64_t")},
    "outside": """
static __attribute__((noinline)) int32_t outside(const accrt_kernel_workgroup_t* workgroup, int64_t place, int64_t size) {
  fail_message(workgroup, "index % is outside an axis of size %", place, size);
  return KERNEL_ERROR_INDEX;
}""",
}


def _helpers(rows: str) -> List[str]:
    return [_HELPERS, *(more for name, more in _MORE_HELPERS.items() if name + "(" in rows)]


def _params(program: Program, rank: int, input_dtypes: Sequence[str]) -> Tuple[Param, ...]:
    inputs, outputs = len(input_dtypes), len(program.outputs)
    params = [reads(f"x{i}") for i in range(inputs)] + [writes(f"y{i}") for i in range(outputs)]
    params += [symbol(f"d{axis}") for axis in range(rank)]
    if rank > 1:
        names = [f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(outputs)]
        params += [symbol(f"{name}_s{axis}") for name in names for axis in range(rank)]
    else:
        params += [symbol(f"x{i}_s0") for i in range(inputs)] + [symbol(f"y{i}_s0") for i in range(outputs)]
    params += [symbol(f"n{i}") for i in range(program.count("symbol"))]
    params += [symbol(name) for i, axes in program.takes().items() for name in _take_names(i, axes)]
    params += [scalar(f"c{i}", dtype) for i, dtype in enumerate(_scalar_dtypes(program))]
    return layout(params)


def _struct_text(params: Sequence[Param], types: Mapping[str, str], name: str = "row_params_t") -> str:
    members = []
    for param in params:
        if param.kind == "buffer":
            members.append(f"{'const ' if param.access == 'read' else ''}{types[param.name]}* {param.name};")
        else:
            members.append(f"{types.get(param.name, 'int64_t')} {param.name};")
    return "typedef struct {\n  " + "\n  ".join(members) + f"\n}} {name};"


def _entry_text(program: Program, rank: int, inputs: int, chunk: int) -> str:
    """The workgroup function: `chunk` elements of the row-major index space, row by row."""
    outputs = len(program.outputs)
    names = [f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(outputs)]
    lines = [
        "KERNEL_ENTRY(ENTRY) {",
        "  const row_params_t* p = (const row_params_t*)dispatch->params;",
        "  const accrt_kernel_imports_t* imports = environment->imports;",
        "  int64_t total = " + " * ".join(f"p->d{axis}" for axis in range(rank)) + ";",
        f"  int64_t begin = (int64_t)workgroup->workgroup_id[0] * {chunk};",
        f"  int64_t end = min_i64(begin + {chunk}, total), inner = p->d{rank - 1};",
        "  for (int64_t at = begin; at < end;) {",
    ]
    if rank == 1:
        lines += ["    int64_t column = at, count = end - at;", "    (void)inner;"]
    else:
        lines += ["    int64_t rest = at / inner, column = at - rest * inner;"]
        lines += ["    int64_t count = min_i64(inner - column, end - at);"]
        for axis in range(rank - 2, 0, -1):
            lines += [f"    int64_t i{axis} = rest % p->d{axis};", f"    rest /= p->d{axis};"]
        lines += ["    int64_t i0 = rest;"]
    call = ["count", "at", "imports"]
    for name in names:
        offset = " + ".join([f"i{axis} * p->{name}_s{axis}" for axis in range(rank - 1)] + [f"column * p->{name}_s{rank - 1}"])
        call += [f"p->{name} + ({offset})", f"p->{name}_s{rank - 1}"]
    call += [f"p->c{i}" for i in range(len(_scalar_dtypes(program)))]
    call += [f"p->n{i}" for i in range(program.count("symbol"))]
    call += [f"p->{name}" for i, axes in program.takes().items() for name in _take_names(i, axes)]
    if program.takes():
        lines += [f"    int32_t status = row({', '.join([*call, 'workgroup'])});", "    if (UNLIKELY(status)) return status;"]
    else:
        lines += [f"    row({', '.join(call)});"]
    lines += ["    at += count;", "  }", "  return KERNEL_OK;", "}"]
    return "\n".join(lines)


def chunk_elements(program: Program) -> int:
    """Elements of one workgroup: enough to be worth a dispatch (~5 us), little enough to share."""
    cost = 2 * len(program.outputs) + sum(_COST.get(node.op, 1) for node in program.nodes)
    return max(2048, min(32768, 262144 // cost // 1024 * 1024))


def make_kernel(program: Program, rank: int, input_dtypes: Sequence[str], classes: Sequence[str]) -> KernelDef:
    """The kernel of a program for a rank (after collapsing) and the stride class of each operand's
    last axis."""
    verify(program)
    params = _params(program, rank, input_dtypes)
    types = {f"x{i}": STORAGE[dtype] for i, dtype in enumerate(input_dtypes)}
    types.update({f"y{i}": STORAGE[program.nodes[index].dtype] for i, index in enumerate(program.outputs)})
    types.update({f"c{i}": COMPUTE[dtype] for i, dtype in enumerate(_scalar_dtypes(program))})
    chunk = chunk_elements(program)
    row = _row_function(program, classes, input_dtypes)
    text = "\n".join(
        ['#include "vmath.h"', *_helpers(row), _struct_text(params, types), row, _entry_text(program, rank, len(input_dtypes), chunk), ""]
    )  # fmt: skip
    ops = [node.op for node in program.nodes if node.op not in ("input", "const", "scalar", "symbol")]
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    name = "_".join(["ew", *ops[:5], *(["etc"] if len(ops) > 5 else []), digest])
    axes = range(rank)

    def grid(values: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        total = ex.product(values[f"d{axis}"] for axis in axes)
        return (ex.maximum(ex.ceildiv(total, chunk), 1), 1, 1)

    entry = "accrt_" + name
    producer = CSource(text=text, defines=(("ENTRY", entry),), struct="row_params_t")
    return KernelDef(name, "elementwise", producer, params, grid, entry=entry)


#: Constants of these types may become arguments.
_ARGUMENT_TYPES = ("f32", "f64", "i32", "u32", "i64")
_MOST_ARGUMENTS = 8


def with_arguments(program: Program) -> Tuple[Program, List[Any]]:
    """The program with its numbers as scalars, and their values: one kernel then serves every size
    of a vocabulary, every soft cap. Kept as they are: numbers that programs are full of, and those
    that a compiler does more with than with an argument (divisors, powers)."""
    fixed = {arg for node in program.nodes if node.op in ("div", "pow") and node.dtype not in FLOATS for arg in node.args}
    fixed |= {node.args[1] for node in program.nodes if node.op == "pow" or node.op == "div" and _is_power_of_two(program.nodes[node.args[1]])}
    nodes, values = list(program.nodes), []
    first = program.count("scalar")
    for at, node in enumerate(nodes):
        if node.op != "const" or at in fixed or node.dtype not in _ARGUMENT_TYPES or not math.isfinite(node.value) or node.value in (0, 1, -1, 2, -2, 0.5, -0.5):
            continue
        if len(values) < _MOST_ARGUMENTS:
            nodes[at] = Node("scalar", node.dtype, value=first + len(values))
            values.append(node.value)
    return Program(tuple(nodes), program.outputs), values


def _is_power_of_two(node: Node) -> bool:
    return node.op == "const" and math.frexp(node.value)[0] in (0.5, -0.5)


# ---- Lowering ------------------------------------------------------------------------------------


def broadcast_strides(spec: TensorSpec, shape: Sequence[Any]) -> List[Any]:
    """Strides of an operand read as if it had `shape`; an axis that it lacks, or has with size 1,
    gets 0."""
    lead = len(shape) - spec.rank
    if lead < 0:
        raise ValueError(f"shape {spec.shape} does not broadcast to {tuple(shape)}")
    strides: List[Any] = [0] * lead
    for size, stride, wanted in zip(spec.shape, spec.strides, shape[lead:]):
        if ex.is_static(size) and ex.is_static(wanted) and size not in (1, wanted):
            raise ValueError(f"shape {spec.shape} does not broadcast to {tuple(shape)}")
        strides.append(0 if ex.is_static(size) and size == 1 else stride)
    return strides


def collapse(shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> Tuple[List[Any], List[List[Any]]]:
    """Drops axes of size 1 and joins neighbours that every operand walks as one. At least one axis
    remains."""
    kept_shape: List[Any] = []
    kept: List[List[Any]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if ex.is_static(size) and size == 1:
            continue
        here = [operand[axis] for operand in strides]
        if kept_shape and all(ex.equal(operand[-1], _times(stride, size)) for operand, stride in zip(kept, here)):
            kept_shape[-1] = kept_shape[-1] * size
            for operand, stride in zip(kept, here):
                operand[-1] = stride
            continue
        kept_shape.append(size)
        for operand, stride in zip(kept, here):
            operand.append(stride)
    if not kept_shape:
        return [1], [[1] for _ in strides]
    return kept_shape, kept


def _times(stride: Any, size: Any) -> Any:
    return 0 if ex.is_static(stride) and stride == 0 else stride * size


def _without(spec: TensorSpec, axes: Sequence[int]) -> TensorSpec:
    """An operand as it is walked beside axes along which its places are looked up."""
    if not axes:
        return spec
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(spec.shape))
    return TensorSpec(spec.dtype, shape, tuple(0 if axis in axes else stride for axis, stride in enumerate(spec.strides)))


def stride_class(stride: Any) -> str:
    return str(stride) if ex.is_static(stride) and stride in (0, 1) else "s"


def lower(
    program: Program,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    symbols: Sequence[Any] = (),
    scalars: Sequence[Any] = (),
) -> Launch:
    """One launch of `program`. Operands are named x0, x1, ... and y0, y1, ...; all outputs have the
    same shape."""
    shape, takes = outputs[0].shape, program.takes()
    given = [_without(spec, takes.get(i, ())) for i, spec in enumerate(inputs)]
    walked = [broadcast_strides(spec, shape) for spec in given] + [list(spec.strides) for spec in outputs]
    joined_shape, joined = collapse(shape, walked)
    classes = [stride_class(strides[-1]) for strides in joined]
    kernel = make_kernel(program, len(joined_shape), [spec.dtype for spec in inputs], classes)
    names = [f"x{i}" for i in range(len(inputs))] + [f"y{i}" for i in range(len(outputs))]
    values: Dict[str, Any] = {f"d{axis}": size for axis, size in enumerate(joined_shape)}
    for name, strides in zip(names, joined):
        values.update({f"{name}_s{axis}": stride for axis, stride in enumerate(strides)})
    values.update({f"n{i}": value for i, value in enumerate(symbols)})
    values.update({f"c{i}": value for i, value in enumerate(scalars)})
    for i, axes in takes.items():
        values.update({f"x{i}_g{axis}": inputs[i].strides[axis] for axis in axes})
        values.update({f"x{i}_m{axis}": inputs[i].shape[axis] for axis in axes})
    return launch(kernel, {name: BufferArg(name) for name in names}, values)
