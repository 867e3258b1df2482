"""Where a model does something else for a size of 1 than torch's export of it does, for
accrt.from_torch.

torch's trace takes a size that varies for 2 or more. So it notes nothing where a line of the model
asks whether the size is 1, and `squeeze` keeps the dimension. Here such lines and operations are
found. Most of them change nothing: a mask is left out that would be true everywhere. So the model
and its export are both run with a size of 1 of the example inputs, and only a size for which they
differ is refused at the call.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import sys
import threading
import warnings
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, cast

from . import _torch_state

#: Parts of torch whose lines ask about sizes for what they calculate; others ask to infer shapes.
_ASKING = ("nn" + os.sep, "functional.py", "distributions" + os.sep)
#: What a symbol may be that is not 1, and how many such cases are tried of several symbols.
_LARGER, _CASES = (2, 3, 7, 64, 1000), 256
#: Of so many symbols in one condition all combinations are tried.
_SYMBOLS = 4
#: So many different sets of sizes that are 1 are tried.
_SETS = 16
_UNTRIED = "1 was not tried of so many sizes that are asked for"
_SEED = 20261131


class Asked(NamedTuple):
    """Sizes of the export, by the names of their symbols, that a line asks about: for 1 of all of
    them it goes another way."""

    symbols: FrozenSet[str]
    place: str
    #: Why 1 is refused.
    why: str = "the model does something else for 1"


@contextlib.contextmanager
def asking() -> Iterator[List[Asked]]:
    """Within, notes the conditions of sizes that this thread's lines of Python ask for, and that
    are otherwise for 1 than for all larger sizes."""
    import torch

    noted: Dict[Asked, None] = {}
    answers: List[Asked] = []
    thread, before = threading.get_ident(), cast(Any, torch.SymBool.__bool__)

    def answer(self: Any) -> bool:
        made = before(self)
        if threading.get_ident() == thread:
            with contextlib.suppress(Exception):  # what torch has here is not promised
                place = _place(sys._getframe(1), os.path.dirname(torch.__file__) + os.sep)
                if place:
                    noted.update(dict.fromkeys(Asked(symbols, place) for symbols in _of_ones(self.node, made)))
        return made

    # a guard has the line that asks for it: the first outside of files that torch knows as its own
    answer.__code__ = answer.__code__.replace(co_filename=before.__code__.co_filename)
    torch.SymBool.__bool__ = answer  # type: ignore[method-assign]
    try:
        yield answers
    finally:
        torch.SymBool.__bool__ = before  # type: ignore[method-assign]
        answers += noted


def _place(frame: Any, torch_folder: str) -> str:
    """The line that asks, as "folder/file:12, in forward (its text)". Empty: torch's own."""
    while frame.f_code.co_filename == torch_folder + "__init__.py":  # SymInt.__bool__
        frame = frame.f_back
    path = frame.f_code.co_filename
    if path.startswith(torch_folder) and not path[len(torch_folder) :].startswith(_ASKING):
        return ""
    line = linecache.getline(path, frame.f_lineno).strip()
    return f"{'/'.join(path.split(os.sep)[-2:])}:{frame.f_lineno}, in {frame.f_code.co_name}" + (f" ({line[:100]})" if line else "")


def _of_ones(node: Any, made: bool) -> List[FrozenSet[str]]:
    """The least sets of symbols for whose 1 a condition is not what it is for all larger sizes."""
    expression = node._expr
    symbols = sorted(getattr(expression, "free_symbols", ()), key=str)
    given = _given(node.shape_env)
    if not symbols or any(symbol not in given for symbol in symbols):
        return []

    def differs(values: Mapping[Any, int]) -> bool:
        import sympy

        value = expression.xreplace({symbol: sympy.Integer(number) for symbol, number in values.items()})
        return value in (True, False) and bool(value) != made

    cases = itertools.islice(itertools.product(_LARGER, repeat=len(symbols)), _CASES)
    if any(differs(dict(zip(symbols, case))) for case in cases):
        return []  # a condition of the trace, which torch notes
    counts = range(1, len(symbols) + 1) if len(symbols) <= _SYMBOLS else (1, len(symbols))
    found: List[FrozenSet[str]] = []
    for ones in (set(part) for count in counts for part in itertools.combinations(symbols, count)):
        names = frozenset(map(str, ones))
        if not any(less <= names for less in found) and differs({s: 1 if s in ones else int(given[s]) for s in symbols}):
            found.append(names)
    return found


def _given(environment: Any) -> Mapping[Any, Any]:
    """The sizes of the example, by symbol."""
    return getattr(environment, "backed_var_to_val", None) or getattr(environment, "var_to_val", None) or {}


def squeezed(program: Any) -> List[Asked]:
    """The dimensions that `squeeze` would remove if they were 1, and that the export keeps."""
    from .from_torch.lowering import source_of

    found: Dict[Asked, None] = {}
    for node in program.graph.nodes:
        for size in _kept(node):
            expression = size.node.expr
            ones = {symbol: 1 for symbol in expression.free_symbols}
            if expression.subs(ones) == 1:
                place = source_of(node)
                found[Asked(frozenset(map(str, ones)), f"{place} (squeeze)" if place else "squeeze")] = None
    return list(found)


def _kept(node: Any) -> List[Any]:
    """The sizes that vary among those that a squeeze is asked to remove."""
    shape = _shape(node.args[0]) if _is_squeeze(node) and node.args else ()
    return [shape[d] for d in _dims(node.args, len(shape)) if not isinstance(shape[d], int)]


def _is_squeeze(node: Any) -> bool:
    return str(node.target).startswith(("aten.squeeze.", "aten.squeeze_.", "aten.squeeze_copy."))


def _shape(node: Any) -> Sequence[Any]:
    return tuple(getattr(getattr(node, "meta", {}).get("val"), "shape", ()))


def _dims(args: Sequence[Any], rank: int) -> List[int]:
    given = range(rank) if len(args) < 2 else [args[1]] if isinstance(args[1], int) else args[1]
    return sorted({d % rank for d in given}) if rank else []


def differing(program: Any, asked: Sequence[Asked], args: Tuple[Any, ...], kwargs: Mapping[str, Any], model: Any, restore: Callable[[], None]) -> List[Asked]:
    """Of what lines and operations ask, that for which the model and its export differ where these
    sizes are 1. What cannot be tried counts as differing."""
    from .from_torch.aliasing import touched

    names, places = {str(symbol): symbol for symbol in _symbols(program)}, frozenset(touched(program.graph))
    least = {str(symbol): str(getattr(bounds, "lower", "")) for symbol, bounds in program.range_constraints.items()}
    sets: Dict[FrozenSet[str], str] = {}
    for one in asked:
        if all(name in names and least.get(name, "") in ("", "0", "1", "2") for name in one.symbols):
            sets.setdefault(one.symbols, one.place)
    together = frozenset(name for symbols in sets for name in symbols)
    tried = sorted(sets, key=lambda s: (len(s), sorted(s))) + ([together] if len(sets) > 1 and together not in sets else [])
    wrong: List[Asked] = []
    count = 0
    for symbols in tried:
        if any(less.symbols <= symbols for less in wrong):
            continue
        place = sets.get(symbols) or " and ".join(dict.fromkeys(sets.values()))
        count += 1
        if count > _SETS:
            wrong.append(Asked(symbols, place, _UNTRIED))
        elif not _agree(program, places, {names[name] for name in symbols}, args, kwargs, model, restore):
            wrong.append(Asked(symbols, place))
    return wrong


def _symbols(program: Any) -> FrozenSet[Any]:
    sizes = [size for node in program.graph.nodes if node.op == "placeholder" for size in _shape(node) if not isinstance(size, int)]
    return frozenset(symbol for size in sizes for symbol in size.node.expr.free_symbols)


def _agree(
    program: Any, places: FrozenSet[Any], ones: Any, args: Tuple[Any, ...], kwargs: Mapping[str, Any], model: Any, restore: Callable[[], None],
) -> bool:  # fmt: skip
    """Whether a model and its export give the same where these symbols are 1: of the beginning of
    the example and of its end, with other floats if the model takes them. `places`: which inputs
    the export writes."""
    import torch
    from torch.utils import _pytree as pytree

    spec = program.call_spec.in_spec
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        # of many kinds, where the export refuses this size, say
        warnings.simplefilter("ignore")
        order = spec.children()[1].context if hasattr(spec, "children") else spec.children_specs[1].context
        leaves = pytree.tree_leaves((args, {name: kwargs[name] for name in order}))
        shapes = [_sizes(node, ones) for node, given in _inputs(program) if given.kind.name == "USER_INPUT"]

        def same(at_end: bool, others: bool) -> Optional[bool]:
            given = [_cut(leaf, shape, at_end, generator if others else None) for leaf, shape in zip(leaves, shapes)]
            return _same(program, places, given, model, restore)

        generator = torch.Generator().manual_seed(_SEED)
        if not same(False, False):
            return False
        at_end = same(True, True)
        at_end = same(True, False) if at_end is None else at_end
        return at_end is not False
    return False


def _same(program: Any, places: FrozenSet[Any], given: Sequence[Any], model: Any, restore: Callable[[], None]) -> Optional[bool]:
    """Whether a model and its export give the same for these inputs. None: the model fails."""
    import torch
    from torch.utils import _pytree as pytree

    own = [item.clone() if isinstance(item, torch.Tensor) else item for item in given]
    named = pytree.tree_unflatten(own, program.call_spec.in_spec)
    restore()
    before = _written(program, places, model)
    with _torch_state.kept_content({id(tensor): tensor for tensor in before.values()}.values()):
        try:
            made = pytree.tree_leaves(model(*named[0], **named[1]))
        except Exception:  # of many kinds
            return None
        made = [item.clone() if isinstance(item, torch.Tensor) else item for item in made]
        # a buffer that the model puts in another's place is one that torch's export may not write
        now = _written(program, places, model)
        left = {name: tensor.detach().clone() for name, tensor in before.items() if now.get(name) is tensor}
    restore()
    exported, written = _run(program, places, given)
    pairs = [*itertools.zip_longest(made, exported), *zip(own, given), *((left[name], new) for name, new in written.items() if name in left)]
    return all(_close(a, b) for a, b in pairs)


def _written(program: Any, places: FrozenSet[Any], model: Any) -> Dict[str, Any]:
    """What calls of a model may write, by name: its buffers, and the parameters that its export
    writes."""
    targets = {spec.target for node, spec in _inputs(program) if node in places and spec.kind.name == "PARAMETER"}
    parameters = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False) if name in targets}
    return {**dict(model.named_buffers(remove_duplicate=False)), **parameters}


def _inputs(program: Any) -> List[Tuple[Any, Any]]:
    return list(zip((node for node in program.graph.nodes if node.op == "placeholder"), program.graph_signature.input_specs))


def _sizes(node: Any, ones: Any) -> List[int]:
    """An input's shape where these symbols are 1 and the others what they are in the example."""
    made = []
    for size in _shape(node):
        if not isinstance(size, int):
            given = _given(size.node.shape_env)
            size = size.node.expr.subs({s: 1 if s in ones else int(given[s]) for s in size.node.expr.free_symbols})
        made.append(int(size))
    return made


def _cut(leaf: Any, shape: Sequence[int], at_end: bool, generator: Any) -> Any:
    """The beginning or the end of an example input, with a generator of other floats."""
    import torch

    if not isinstance(leaf, torch.Tensor):
        return leaf
    part = leaf.detach()
    for d, size in enumerate(shape):
        part = part.narrow(d, part.shape[d] - size if at_end else 0, size)
    part = part.clone()
    if generator is not None and part.is_floating_point():
        part += torch.randn(part.shape, generator=generator).to(part)
    return part


def _run(program: Any, places: FrozenSet[Any], given: Sequence[Any]) -> Tuple[List[Any], Dict[str, Any]]:
    """What the export gives for these inputs, as the compiler reads it: squeeze keeps what varies.
    And what the buffers and parameters that it writes are then, by name."""
    import torch

    class Keeping(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            if not _is_squeeze(node) or not _kept(node):
                return super().run_node(node)
            shape, whole = _shape(node.args[0]), self.env[node.args[0]]
            return whole.squeeze(tuple(d for d in _dims(node.args, len(shape)) if isinstance(shape[d], int)))

    values, written, rest = [], {}, iter(given)
    for node, spec in _inputs(program):
        if spec.kind.name == "USER_INPUT":
            values.append(next(rest))
            continue
        content = program.state_dict[spec.target] if spec.target in program.state_dict else program.constants[spec.target]
        is_written = spec.kind.name in ("BUFFER", "CONSTANT_TENSOR") or spec.kind.name == "PARAMETER" and node in places
        values.append(content.detach().clone() if is_written else content)
        if is_written and spec.kind.name != "CONSTANT_TENSOR":
            written[spec.target] = values[-1]
    outputs = Keeping(program.graph_module).run(*values, enable_io_processing=False)
    return [value for value, spec in zip(outputs, program.graph_signature.output_specs) if spec.kind.name == "USER_OUTPUT"], written


def _close(a: Any, b: Any) -> bool:
    """Whether two results are the same, but for the rounding of another order."""
    import torch

    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return bool(torch.equal(a, b))
    wanted, got = a.double(), b.double()
    finite = wanted[wanted.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    limit = max(1e-4, 32 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(got, wanted, rtol=limit, atol=limit * size, equal_nan=True))


def refused(program: Any, shapes: Mapping[str, Sequence[Any]], limits: Mapping[str, Tuple[int, int, int]]) -> List[Tuple[FrozenSet[str], str]]:
    """The sets of symbols that must not all be 1, and why, as a call and a warning say it."""
    given = getattr(program, "_accrt_ones", None)
    found = []
    for asked in squeezed(program) if given is None else given:
        if all(limits.get(name, (2,))[0] == 1 for name in asked.symbols):
            said = " or ".join(_larger(name, shapes) for name in sorted(asked.symbols))
            found.append((asked.symbols, f"torch's export holds only where {said}, because {asked.why} in {asked.place}"))
    return found


def _larger(symbol: str, shapes: Mapping[str, Sequence[Any]]) -> str:
    """That a symbol is more than 1, by a size that an input has."""
    sizes = [(size.node.expr, f"{name}.shape[{d}]") for name, shape in shapes.items() for d, size in enumerate(shape) if not isinstance(size, int)]
    own = [(expression, text) for expression, text in sizes if {str(s) for s in expression.free_symbols} == {symbol}]
    expression, text = min(own, key=lambda pair: not pair[0].is_Symbol)
    return f"{text} > {expression.subs({s: 1 for s in expression.free_symbols})}"
