"""Goes through one exported graph and lowers each node by the table.

What torch can calculate now, because it is made of weights and numbers alone, it calculates
(folding). Operations that write in place become new values, and the views of what was written are
made again from it.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .._torch_decompositions import CONTENT, INSTEAD
from .._torch_sizes import as_number, fraction
from ..compiler import Expr, Function, IRError, Module, Value
from ..compiler import expr as ex
from ..compiler.expr import Size
from ..compiler import affine
from .aliasing import first, whole_of, writes
from . import ops_complex
from .ops_views import VIEWS
from .packed import is_quantized, refuse_expanded
from .table import TABLE
from .values import array_of, dtype_of, free_name, Known, Missing, MISSING, no_type, number_of, short, Unsupported

#: What folding may make out of smaller things, in bytes: masks and tables of positions stay
#: operations when they are larger.
FOLDED_BYTES = 1 << 22
#: What a lowering, or torch, raises where arguments do not fit an operation.
_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)
#: Not the same each time, so never folded.
RANDOM = ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "multinomial", "dropout", "uniform")


@dataclass
class View:
    """How a node is a part of another one: `take` gives it out of the whole, `put` a whole with the
    part replaced (of a list of parts, that of a number)."""

    whole: Any
    take: Callable[[Any], Any]
    put: Callable[..., Any]


@dataclass
class Failures:
    """What could not be lowered, by operation, reason and place."""

    found: Counter = field(default_factory=Counter)
    where: Dict[Tuple[str, str], str] = field(default_factory=dict)

    def add(self, target: str, why: str, node: Any = None) -> None:
        self.found[target, why] += 1
        self.where.setdefault((target, why), source_of(node) if node is not None else "")

    def listed(self) -> List[Tuple[str, int, str, str]]:
        return [(target, count, self.where[target, why], why) for (target, why), count in sorted(self.found.items())]


def source_of(node: Any) -> str:
    """The line of the model's code that made a node, as "folder/file:12, in forward"."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    if not lines:
        return ""
    path, line, *inside = lines[-1][len("File ") :].split(", ")
    return f"{'/'.join(path.strip(chr(34)).split('/')[-2:])}:{line.replace('line ', '')}" + (f", {inside[0]}" if inside else "")


class Lowering:
    """One function of the module, while it is made out of a graph. Lowerings get it as their first
    argument."""

    def __init__(self, module: Module, function: Function, failures: Failures, prefix: str = "", doubted: bool = False) -> None:
        self.module, self.function, self.failures, self.prefix = module, function, failures, prefix
        self.env: Dict[Any, Any] = {}
        self.views: Dict[Any, View] = {}
        self.parts: Dict[Any, List[Any]] = {}  # the views of a node, and theirs
        self.stale: Set[Any] = set()  # views that something was written to since they were made
        self.patterns: Dict[int, affine.Pattern] = {}  # by id of a value, which `values` keeps
        self.values: List[Value] = []
        self.node: Any = None
        self.doubted = doubted  # the graph is of a file, which may lie
        self.done: Set[Any] = set()  # multiplications that a product has done

    # -- the graph

    def run(self, graph: Any, graph_module: Any, values: List[Any]) -> List[Any]:
        """Lowers a graph, whose attributes are in the module, with these values of its
        placeholders; what it gives."""
        given = iter(values)
        for node in graph.nodes:
            if node.op == "placeholder":
                self.env[node] = next(given)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(graph_module, node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                return [self.read(item) for item in node.args[0]]
        raise AssertionError("a graph without an output")

    def _attribute(self, graph_module: Any, node: Any) -> Any:
        import torch

        item = node.meta[CONTENT] if CONTENT in node.meta else operator.attrgetter(node.target)(graph_module)
        return Known(item, "") if isinstance(item, torch.Tensor) else item

    def read(self, item: Any) -> Any:
        """A node's value; lists and numbers as they are."""
        import torch

        if isinstance(item, torch.fx.Node):
            return self._current(item)
        if isinstance(item, (list, tuple)):
            return type(item)(self.read(part) for part in item) if not hasattr(item, "_fields") else item
        if isinstance(item, slice):
            return slice(self.read(item.start), self.read(item.stop), self.read(item.step))
        return item

    def _call(self, node: Any) -> None:
        self.node = node
        name = str(node.target) if not callable(node.target) or hasattr(node.target, "_schema") else getattr(node.target, "__name__", str(node.target))
        try:
            args, kwargs = [self.read(a) for a in node.args], {k: self.read(v) for k, v in node.kwargs.items()}
            if has_missing(args) or has_missing(kwargs):
                self.env[node] = MISSING
            elif writes(node.target):
                self._written(node, name, args, kwargs)
            else:
                self.env[node] = self._lowered(node.target, name, args, kwargs)
                self._note_view(node, name, args, kwargs)
        except Unsupported as error:
            self.failures.add(name, str(error), node)
            self.env[node] = MISSING
        except IRError as error:
            self.failures.add(name, str(error).partition(": ")[2] or str(error), node)
            self.env[node] = MISSING
        except _MISFITS as error:
            if not self.doubted:
                raise
            self.failures.add(name, f"its arguments do not fit ({type(error).__name__}: {short(error)})", node)
            self.env[node] = MISSING

    def _lowered(self, target: Any, name: str, args: List[Any], kwargs: Dict[str, Any]) -> Any:
        # a part is taken out of all memory, which torch would take for the part
        in_part = "as_strided" in name and args[0] is not self.env.get(self.node.args[0])
        if _is_known(args) and _is_known(kwargs) and not in_part:
            kept = self._of_parameters(name, args, kwargs)
            folded = self._folded(target, name, args, kwargs) if kept is None else kept
            if folded is not None:
                return folded
        if target is operator.getitem:
            return args[0][args[1]]
        if ops_complex.is_complex([*args, *kwargs.values()]):
            return ops_complex.lower(self, name, args, kwargs)
        if name in TABLE:
            return TABLE[name](self, *args, **kwargs)
        if name in ("floor", "ceil", "trunc") and isinstance(args[0], Value) and isinstance(self.node.args[0], type(self.node)):
            return ex.rounded(name, *fraction(self.node.args[0].target, self.read(self.node.args[0].args)))
        if name in SIZES:
            return SIZES[name](*args) if not self._is_real(name, args) else as_number(REALS[name](*(self.value(a).to_copy("f64") for a in args)))
        raise Unsupported(INSTEAD.get("".join(name.split(".")[1:2]).rstrip("_"), ""))

    def _of_parameters(self, name: str, args: List[Any], kwargs: Dict[str, Any]) -> Any:
        """What is made of parameters is made when the bundle is loaded: they keep their names, and
        can be swapped. None: torch makes it now."""
        import torch

        knowns = _knowns([args, list(kwargs.values())])
        if name.startswith(("torchao.", "export.", "accrt.")) and name in TABLE:
            return TABLE[name](self, *args, **kwargs)
        parameters = any(known.name and isinstance(known.tensor, torch.nn.Parameter) for known in knowns)
        if name not in TABLE or not parameters or any(known.made_of or is_quantized(known) for known in knowns):
            return None
        try:
            return TABLE[name](self, *args, **kwargs)
        except (Unsupported, IRError):
            return None

    def _folded(self, target: Any, name: str, args: List[Any], kwargs: Dict[str, Any]) -> Any:
        """What torch gives for content that is known, or None where it is larger than it is
        worth."""
        import torch

        if any(f".{word}" in name for word in RANDOM) or name.startswith("aten.sym_") or not callable(target):
            return None
        most = max(FOLDED_BYTES, 2 * sum(k.tensor.numel() * k.tensor.element_size() for k in _knowns([args, list(kwargs.values())])))
        value = self._calculated(target, name, args, kwargs) if self.doubted else self.node.meta.get("val")
        sizes = [v.numel() * v.element_size() for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]
        if not sizes or any(not isinstance(s, int) or s > most for s in sizes):
            return None
        with torch.no_grad():
            given = target(*_unwrapped(args), **_unwrapped(kwargs))
        quantized = next((known.made_of or known.name for known in _knowns([args, list(kwargs.values())]) if known.made_of or is_quantized(known)), "")
        return _wrapped(given, quantized)

    @staticmethod
    def _calculated(target: Any, name: str, args: List[Any], kwargs: Dict[str, Any]) -> Any:
        """What an operation of a file gives, without its content: what the file says of it need not
        be true. None: torch may not do it for a file, as it could read memory or other files."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        if name not in TABLE and torch.Tag.core not in getattr(target, "tags", ()):
            return None
        try:
            with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
                return target(*_unwrapped(args), **_unwrapped(kwargs))
        except Exception:  # of many kinds: it is not done
            return None

    @staticmethod
    def _is_real(name: str, args: List[Any]) -> bool:
        """Whether arithmetic of sizes gives a number that is no expression: x.shape[0] ** 0.5. It
        is calculated by each call."""
        varies = any(isinstance(a, (Expr, Value)) for a in args)
        return name in REALS and varies and (name not in ("add", "sub", "mul", "neg") or any(isinstance(a, (float, Value)) for a in args))

    # -- writing in place

    def _note_view(self, node: Any, name: str, args: List[Any], kwargs: Dict[str, Any], target: Any = None) -> None:
        of_node = whole_of(node)
        if of_node is None:
            return
        if node.target is operator.getitem:
            of = self.views[node.args[0]]
            self._add_view(node, View(of.whole, lambda whole: of.take(whole)[args[1]], lambda whole, part: of.put(whole, part, args[1])))
            return
        if not node.args:
            raise Unsupported("a view of a tensor that is given by name")
        rest = tuple(args[1:])

        def take(whole: Any) -> Any:
            before, self.node = self.node, node
            try:
                return self._lowered(target or node.target, name, [whole, *rest], kwargs)
            finally:
                self.node = before

        def put(whole: Any, part: Any, *number: int) -> Any:
            return VIEWS[name](self, whole, part, *number, *rest, **kwargs) if name in VIEWS else self._scattered(take, whole, part, *number)

        self._add_view(node, View(of_node, take, ops_complex.complexes.PUTS.get(name, put)))

    def same(self, node: Any, other: Any) -> Any:
        """Makes a placeholder the tensor that another one is; its value, until it is read."""
        self._add_view(node, View(other, lambda whole: whole, lambda whole, part: part))
        self.stale.add(node)

    def _add_view(self, node: Any, view: View) -> None:
        self.views[node] = view
        self.parts.setdefault(view.whole, []).append(node)

    def _scattered(self, take: Callable[[Any], Any], whole: Any, part: Any, *number: int) -> Any:
        """The whole with the part at the places that the view itself takes out of all places."""
        import torch

        whole = self.value(whole)
        count = ex.product(whole.shape)
        small = isinstance(count, int) and count * 8 <= FOLDED_BYTES
        places = Known(torch.arange(count).view(list(whole.shape))) if small else self.function.arange(count).view(list(whole.shape))
        taken = take(places)
        taken = self.value(taken[number[0]] if number else taken)
        return whole.flatten().scatter(taken.flatten(), self.value(part).flatten(), 0, False).view(list(whole.shape))

    def _written(self, node: Any, name: str, args: List[Any], kwargs: Dict[str, Any]) -> None:
        """x.add_(y) is x = x.add(y), for x, for what x is a view of, and for the other views of
        that."""
        import torch

        packet, _, overload = name.rpartition(".")
        # aten.__iand__ as aten.and_
        packet = packet.replace("aten.__i", "aten.__", 1) + "_" if packet.startswith("aten.__i") else packet
        whole = getattr(torch.ops.aten, packet[len("aten.") : -1], None)
        # transpose_ and floor_divide_ have other overloads
        overload = next((name for name in (overload, "int", "default") if hasattr(whole, name)), overload)
        plain, target = f"{packet[:-1]}.{overload}", getattr(whole, overload, None)
        written = [at for at, argument in enumerate(node.target._schema.arguments) if argument.alias_info is not None and argument.alias_info.is_write]
        if not name.startswith("aten.") or (plain not in TABLE and target is None) or written != [0] or first(node) is None:
            raise Unsupported("it writes in place")
        if plain in VIEWS and torch.Tag.inplace_view in node.target.tags and plain != "aten.detach.default":
            self.env[node] = self._lowered(target, plain, args, kwargs)
            return self._note_view(node, plain, args, kwargs, target)
        if plain != "aten.detach.default" and torch.Tag.inplace_view in node.target.tags:
            raise Unsupported("it changes the shape of a tensor in place")
        result = args[0] if plain == "aten.detach.default" else self._lowered(target, plain, args, kwargs)
        self._add_view(node, View(first(node), lambda whole: whole, lambda whole, part: part))
        dtype = self.dtype(args[0])
        self.write(node, result if self.dtype(result) == dtype else self.value(result).to_copy(dtype))

    def write(self, node: Any, value: Any) -> None:
        """`node` has this content from now on."""
        self.env[node], written = value, {node}
        while node in self.views:
            view = self.views[node]
            both = [self._current(view.whole), self.env[node]]
            self.env[view.whole] = ops_complex.by_parts(self, lambda _lo, *parts: view.put(*parts), *both) if ops_complex.is_complex(both) and view.put not in ops_complex.complexes.PUTS.values() else view.put(*both)
            node = view.whole
            written.add(node)
        self._outdate(node)
        self.stale -= written

    def _outdate(self, node: Any) -> None:
        for part in self.parts.get(node, ()):
            self.stale.add(part)
            self._outdate(part)

    def _current(self, node: Any) -> Any:
        """The node's value, as all that was written so far has made it."""
        if node in self.stale:
            self.stale.remove(node)
            view = self.views[node]
            whole = self._current(view.whole)
            self.env[node] = MISSING if whole is MISSING else view.take(whole)
        return self.env[node]

    # -- what lowerings use

    def value(self, item: Any, dtype: str = "") -> Value:
        """A value of the function: of a Known tensor a constant, of a number a tensor without
        dimensions."""
        if isinstance(item, Value):
            return item
        if isinstance(item, Known) and not item.tensor.is_complex():
            return self._constant(item)
        if isinstance(item, bool):
            return self.function.full([], item, dtype or "bool")
        if isinstance(item, (int, Expr)):
            return self.function.full([], item, dtype or "i64")
        if isinstance(item, float):
            return self.function.full([], item, dtype or "f32")
        raise no_type("complex64", "return view_as_real") if ops_complex.is_complex(item) else Unsupported(f"an argument of type {type(item).__name__}")

    def optional(self, item: Any) -> Optional[Value]:
        return None if item is None else self.value(item)

    def operand(self, item: Any) -> Any:
        """As value(), but numbers stay numbers, also those of tensors without dimensions: they do
        not decide the result's type."""
        if isinstance(item, (int, float, Expr)):
            return item
        number = number_of(item)
        return self.value(item) if number is None else number

    def _constant(self, item: Known) -> Value:
        if not item.name:
            refuse_expanded(item)
            if item.tensor.dim() == 0:
                return self.function.full([], item.tensor.item(), self.dtype(item))
            item.name = free_name(f"{self.prefix}{self.node.name}", self.module.constants)
            self.module.constant(item.name, *array_of(item.tensor))
            return self.marked(self.function.constant(self.module.constants[item.name]), _pattern_of(item))
        elif item.name not in self.module.constants:
            self.module.constant(item.name, *array_of(item.tensor))
        return self.function.constant(self.module.constants[item.name])

    def shape(self, item: Any) -> Tuple[Size, ...]:
        return tuple(item.tensor.shape) if isinstance(item, Known) else tuple(item.shape)

    def dtype(self, item: Any) -> str:
        return item.dtype if not isinstance(item, Known) else "complex" if item.tensor.is_complex() else dtype_of(item.tensor.dtype)

    def rank(self, item: Any) -> int:
        return len(self.shape(item))

    def axis(self, item: Any, dim: int, more: int = 0) -> int:
        rank = self.rank(item) + more
        return dim + rank if dim < 0 else dim

    # -- patterns of integers and masks (affine.py)

    def pattern(self, item: Any) -> Optional[affine.Pattern]:
        if isinstance(item, bool):
            return affine.Truth(0) if item else None
        if isinstance(item, (int, Expr)):
            return affine.constant(0, item)
        if isinstance(item, Known):
            return _pattern_of(item)
        return self.patterns.get(id(item))

    def truth(self, item: Any) -> Optional[affine.Truth]:
        """Of truth what is known, which may be no more than that it is this tensor."""
        pattern = self.pattern(item)
        if isinstance(pattern, affine.Truth) or not isinstance(item, (Value, Known)) or self.dtype(item) != "bool":
            return pattern if isinstance(pattern, affine.Truth) else None
        return affine.factor(self.value(item))

    def marked(self, value: Any, pattern: Optional[affine.Pattern]) -> Any:
        """The value, of which this pattern is known."""
        if pattern is not None and isinstance(value, Value):
            self.patterns[id(value)] = pattern
            self.values.append(value)
        return value


def _pattern_of(item: Known) -> Optional[affine.Pattern]:
    tensor = item.tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return None
    return affine.pattern_of(tensor.detach().cpu().numpy())


def _parts(item: Any) -> List[Any]:
    """What is in lists and dicts."""
    if isinstance(item, dict):
        return _parts(list(item.values()))
    return [part for inner in item for part in _parts(inner)] if isinstance(item, (list, tuple)) else [item]


def has_missing(item: Any) -> bool:
    return any(isinstance(part, Missing) for part in _parts(item))


def _is_known(item: Any) -> bool:
    return not any(isinstance(part, (Value, Expr)) for part in _parts(item))


def _knowns(item: Any) -> List[Known]:
    return [part for part in _parts(item) if isinstance(part, Known)]


def _unwrapped(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_unwrapped(i) for i in item)
    if isinstance(item, dict):
        return {k: _unwrapped(v) for k, v in item.items()}
    return item.tensor if isinstance(item, Known) else item


def _wrapped(given: Any, made_of: str) -> Any:
    import torch

    if isinstance(given, (list, tuple)):
        return [_wrapped(g, made_of) for g in given]
    return Known(given, "", made_of) if isinstance(given, torch.Tensor) else given


def _floor(a: Any, b: Any) -> Any:
    return a // b if isinstance(a, int) and isinstance(b, int) else ex.simplify(ex.constant(a) // b)


def _size(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: method(a, b) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else ex.simplify(method(ex.constant(a), b))


#: Arithmetic of sizes: Python's own operators in the graph.
SIZES: Dict[str, Callable[..., Any]] = {
    "add": _size(operator.add), "sub": _size(operator.sub), "mul": _size(operator.mul), "floordiv": _floor, "mod": _size(operator.mod),
    "sym_max": lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else ex.maximum(a, b),
    "sym_min": lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else ex.minimum(a, b),
    "neg": lambda a: -a, "sym_float": lambda a: a, "sym_int": lambda a: a, "truediv": operator.truediv, "pow": operator.pow,
    "_sym_sqrt": math.sqrt, "sym_sqrt": math.sqrt,
}  # fmt: skip
#: Of these, and others, what is calculated in f64 where a size varies and the result is no integer.
REALS: Dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "truediv": lambda a, b: a / b, "pow": lambda a, b: a**b,
    "_sym_sqrt": lambda a: a.sqrt(), "sym_sqrt": lambda a: a.sqrt(), "neg": lambda a: a * -1.0,
}  # fmt: skip
