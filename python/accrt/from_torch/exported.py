"""From an ExportedProgram to a module of the reference compiler: inputs, symbols, weights, states,
results."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from .. import _pt2, _torch_core  # noqa: F401  - it fills the table
from .._exporting import advice, example_inputs, export
from .._torch_decompositions import found, Table
from .._torch_sizes import dim_name, holds
from ..compiler import Expr, Function, IRError, Module, State
from ..compiler import expr as ex
from . import ops_complex, ops_math, ops_more, ops_nn, ops_views  # noqa: F401  - they fill the table
from .aliasing import flat, touched
from .lowering import Failures, Lowering
from .sizes import Bound, size_of, solved
from .values import array_of, dtype_of, free_name, Known, MISSING, plain, short, Unsupported, UnsupportedOperations

#: Kinds of inputs of a program whose content it has.
KEPT = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


@dataclass
class Method:
    """A function of a bundle that is made of several: what is exported, and its example inputs."""

    model: Any
    args: Any = ()
    kwargs: Optional[Mapping[str, Any]] = None
    dynamic_shapes: Any = None


def exported(model: Any, args: Any = (), kwargs: Optional[Mapping[str, Any]] = None, dynamic_shapes: Any = None) -> Any:
    """The ExportedProgram of a module, of a path, or what it was given."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("from_torch needs torch: pip install torch") from error
    args = example_inputs(model, args)
    if isinstance(model, torch.export.ExportedProgram):
        return model
    if _is_path(model):
        return _pt2.loaded(os.fspath(model))
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}, expected a torch.nn.Module, an ExportedProgram or the path of a .pt2 file{advice(model)}")
    if isinstance(args, Mapping):
        args, kwargs = (), {**args, **(kwargs or {})}
    given = _without_cache(model, args, dict(kwargs or {}))
    if isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = {**dict.fromkeys(name for name in given if name not in (kwargs or {})), **dynamic_shapes}
    elif isinstance(dynamic_shapes, (list, tuple)) and len(given) > len(kwargs or {}):
        dynamic_shapes = (*dynamic_shapes, None)
    return export(model, args, given, dynamic_shapes)


def _without_cache(model: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Decoders of transformers give their keys and values as an object of their own, unless they
    are asked not to."""
    parameters = list(inspect.signature(model.forward).parameters)
    given = {*parameters[: len(args)], *kwargs}
    if not getattr(getattr(model, "config", None), "use_cache", False) or "use_cache" not in parameters or given & {"use_cache", "past_key_values"}:
        return kwargs
    warnings.warn(f"{type(model).__name__} is exported with use_cache=False, without a cache of keys; docs/from-torch.md says how it gets one", stacklevel=5)
    return {**kwargs, "use_cache": False}


def convert(
    model: Any, args: Any = (), *, kwargs: Optional[Mapping[str, Any]] = None, dynamic_shapes: Any = None, name: str = "", maximum: int = 1 << 16
) -> Module:
    """The module of the reference compiler, before it is compiled: `accrt.compiler.compile(module,
    path)` does that. Arguments and errors as accrt.from_torch."""
    methods = model if isinstance(model, Mapping) else {"forward": Method(model, args, kwargs, dynamic_shapes)}
    if not methods:
        raise ValueError("a dict without functions")
    given = {function: method if isinstance(method, Method) else Method(method) for function, method in methods.items()}
    programs = {function: exported(m.model, m.args, m.kwargs, m.dynamic_shapes) for function, m in given.items()}
    files = [os.fspath(getattr(m.model, "_accrt_file", m.model)) for m in given.values() if _is_doubted(m)]
    try:
        return _converted(name or _name_of(model), programs, given, maximum)
    except Exception as error:  # of any kind: what a file has need not fit together
        if not files or isinstance(error, (ImportError, IRError)):
            raise
        raise ValueError(plain(f"{', '.join(files)}: what it has does not fit together: {type(error).__name__}: {short(error)}")) from error


def _converted(name: str, programs: Mapping[str, Any], given: Mapping[str, Method], maximum: int) -> Module:
    """Where operations have no lowering, what torch has for them in their place: of a file only
    where all that are left have one or the other."""
    apart: Table = {}
    while True:
        module, failures = _lowered(name, programs, given, maximum, apart)
        missing = {target for target, why in failures.found if not why}
        more = {operation: part for operation, part in found(missing).items() if operation not in apart}
        if not failures.found:
            return module
        if not more or len(more) < len(missing) and any(_is_doubted(m) for m in given.values()):
            raise UnsupportedOperations(module.name, failures.listed())
        apart.update(more)


def _is_path(model: Any) -> bool:
    return isinstance(model, (str, os.PathLike))


def _is_doubted(method: Method) -> bool:
    """Whether a function is of a file, which may lie."""
    return _is_path(method.model) or hasattr(method.model, "_accrt_file")


def _lowered(name: str, programs: Mapping[str, Any], methods: Mapping[str, Method], maximum: int, apart: Table) -> Tuple[Module, Failures]:
    module, failures = Module(name), Failures()
    shared = _Shared(module, maximum)
    parts = [
        _Program(shared, program, module.function(function), failures, f"{function}." if len(programs) > 1 else "", methods[function], apart)
        for function, program in programs.items()
    ]
    for part in parts:  # what one function writes is a state of all
        shared.written |= set(part.names.values())
    for part in parts:
        part.lower()
    return module, failures


def _name_of(model: Any) -> str:
    if _is_path(model):
        return os.path.basename(os.fspath(model)).partition(".")[0] or "model"
    if isinstance(model, Mapping) or not hasattr(model, "named_parameters") or hasattr(model, "graph_signature"):
        return "model"
    return type(model).__name__


class _Shared:
    """What the functions of a module have in common: weights by content, states by name,
    symbols."""

    def __init__(self, module: Module, maximum: int) -> None:
        self.module, self.maximum = module, maximum
        self.weights: Dict[Any, Known] = {}  # by memory
        self.named: Dict[str, List[Known]] = {}  # by the program's own name
        self.states: Dict[str, State] = {}
        self.places: Dict[Any, str] = {}  # names of buffers and constants by memory
        self.written: Set[str] = set()

    def weight(self, name: str, tensor: Any) -> Known:
        """Tied weights are one, under the first name; so are those of several programs that have
        one name and content."""
        key = _memory(tensor) if tensor.numel() else (name,)
        if key not in self.weights:
            same = next((known for known in self.named.get(name, ()) if _is_same(known.tensor, tensor)), None)
            taken = {known.name for known in self.weights.values()}
            self.weights[key] = same or Known(tensor, free_name(name, taken))
            self.named.setdefault(name, []).append(self.weights[key])
        return self.weights[key]

    def place(self, name: str, tensor: Any) -> str:
        """A state's name: that of its memory. torch numbers constants anew in each program."""
        known = self.places.values() if re.match(r"lifted_tensor_\d+$", name) else ()
        return self.places.setdefault(_memory(tensor) if tensor.numel() else name, free_name(name, known))

    def state(self, name: str, tensor: Any) -> State:
        dtype, shape = dtype_of(tensor.dtype), list(tensor.shape)
        if name not in self.states:
            self.states[name] = self.module.state(name, dtype, shape, fill_pattern=_pattern_of(name, tensor))
        if (self.states[name].type.dtype, list(self.states[name].type.shape)) != (dtype, shape):
            raise Unsupported(f"another function has it as {self.states[name].type}")
        return self.states[name]


def _is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if hasattr(a, "__tensor_flatten__"):
        return all(_is_same(getattr(a, name), getattr(b, name)) for name in a.__tensor_flatten__()[0])
    return bool(a.detach().equal(b.detach()))


def _pattern_of(name: str, tensor: Any) -> int:
    """The fill pattern of a written buffer's first content."""
    data, _ = array_of(tensor)
    content, size = data.tobytes(), data.itemsize
    if content != content[:size] * data.size:
        raise Unsupported(f"the written buffer {name!r} does not begin with one value everywhere")
    return int.from_bytes(content[:size], "little")


class _Program:
    """One ExportedProgram, while it becomes one function."""

    def __init__(self, shared: _Shared, program: Any, function: Function, failures: Failures, prefix: str, method: Method, apart: Table) -> None:
        self.shared, self.program, self.function, self.failures, self.prefix = shared, program, function, failures, prefix
        self.graph, self.dim_names = flat(program.graph_module, apart), _dim_names(program, method.dynamic_shapes)
        self.touched: List[Any] = touched(self.graph)
        self.symbols: Bound = {}
        self.bound: Dict[Tuple[str, int], Expr] = {}  # dimensions of 2 * n
        self.lowering = Lowering(shared.module, function, failures, prefix, _is_doubted(method))
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.inputs = list(zip(placeholders, program.graph_signature.input_specs))
        self.buffers = {spec.target for _node, spec in self.inputs if spec.kind.name == "BUFFER"}
        self.leads = self._leads()
        self.names = {spec.target: self.leads[node][1] for node, spec in self.inputs if node in self.leads}

    def _leads(self) -> Dict[Any, Tuple[Any, str]]:
        """Of each input whose content is kept and written: the first one that has the same memory,
        and the buffer's name. torch gives the tensors of a cache once as buffers, and once as what
        the code uses."""
        groups: Dict[Any, List[Any]] = {}
        mutated = set(self.program.graph_signature.buffers_to_mutate.values())
        kept = [(node, spec, _memory(self._content(spec))) for node, spec in self.inputs if spec.kind.name in KEPT]
        for node, spec, memory in kept:
            groups.setdefault(memory if memory[1] > memory[0] else spec.target, []).append((node, spec))
        found = {}
        for members in groups.values():
            used = [node for node, spec in members if node.users or spec.target in mutated]
            if any(node in self.touched or spec.target in mutated for node, spec in members):
                spec = next((spec for _node, spec in members if spec.target in self.buffers), members[0][1])
                name = self.shared.place(spec.target, self._content(spec))
                found.update({node: (used[0], name) for node in used})
        for node, spec, (start, end, *_rest) in kept:
            for other, beside, (first, last, *_rest) in kept if node in found else ():
                same = found.get(other, (None,))[0] is found[node][0]
                if other.users and other is not node and start < last and first < end and (not same or spec.target in mutated):
                    self.failures.add(f"buffer {spec.target!r}", f"it is written, and shares memory with {beside.target!r}", node)
        return found

    def lower(self) -> None:
        from torch.export.graph_signature import InputKind

        written = self.program.graph_signature.user_inputs_to_mutate.values()
        values: List[Any] = []
        states: Dict[str, Any] = {}
        self._bind_symbols()
        for node, spec in self.inputs:
            if spec.kind == InputKind.USER_INPUT:
                values.append(self._input(node, spec, spec.arg.name in written))
            elif spec.kind.name not in KEPT:
                values.append(None)
            elif node in self.leads:
                lead, name = self.leads[node]
                states.setdefault(name, lead)
                values.append(self._state(name, self._content(spec), node) if lead is node else self.lowering.same(node, lead))
            elif spec.kind.name != "PARAMETER" and self.shared.place(spec.target, self._content(spec)) in self.shared.written:
                # another function's, read here
                values.append(self._state(self.shared.place(spec.target, self._content(spec)), self._content(spec), node))
            else:
                values.append(self.shared.weight(spec.target, self._content(spec)))
        outputs = self.lowering.run(self.graph, self.program.graph_module, values)
        if self.failures.found:
            return
        self._results(outputs, states)

    def _content(self, spec: Any) -> Any:
        program = self.program
        if spec.target in program.state_dict:
            return program.state_dict[spec.target]
        return program.constants[spec.target]

    # -- inputs

    def _input(self, node: Any, spec: Any, is_written: bool) -> Any:
        import torch

        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = [self._dimension(node.name, d, size) for d, size in enumerate(value.shape)]
            try:
                dtype = dtype_of(value.dtype)
            except Unsupported as error:
                self.failures.add(f"input {node.name!r}", str(error), node)
                return MISSING
            access = "read_write" if is_written or node in self.touched else "read"
            made = self.function.input(node.name, dtype, [self.bound.get((node.name, d), size) for d, size in enumerate(shape)], access=access)
            for d in (d for d in range(len(shape)) if (node.name, d) in self.bound):
                made = made.slice(d, 0, shape[d])  # all of it, as 2 * n
            return made
        return getattr(spec.arg, "value", None)

    def _dimension(self, name: str, dim: int, size: Any) -> Any:
        if isinstance(size, int):
            return size
        try:
            return size_of(size.node.expr, self.symbols)
        except Unsupported as error:
            self.failures.add(f"input {name!r}", f"dimension {dim} is {size.node.expr}: {error}", node=None)
            return 1

    def _bind_symbols(self) -> None:
        """Each symbol of the export gets its size from an input's dimension: one that is the
        symbol, else the first of which it follows (n + 1, 2 * n)."""
        found: Dict[str, List[Tuple[Tuple[int, int], str, int, Any]]] = {}
        for node, spec in self.inputs:
            for d, size in enumerate(getattr(node.meta.get("val"), "shape", ()) if spec.kind.name == "USER_INPUT" else ()):
                for symbol in [] if isinstance(size, int) else sorted(size.node.expr.free_symbols, key=str):
                    order = solved(size.node.expr, symbol)
                    if order is not None:
                        found.setdefault(str(symbol), []).append((order, node.name, d, symbol))
        shapes = {node.name: getattr(node.meta.get("val"), "shape", ()) for node, spec in self.inputs if spec.kind.name == "USER_INPUT"}
        limits, refused, checks = holds(self.program, shapes, [key for key in found], self.shared.maximum)
        for name, why in refused:
            self.failures.add(f"input {name!r}", why)
        for key, places in found.items():
            (factor, more), name, dim, _symbol = min(places, key=lambda place: (place[0][0], abs(place[0][1])))
            least, most, step = limits[key]
            if step > 1 and more:
                self.failures.add(f"input {name!r}", f"dimension {dim} less {more} must be a multiple of {step}: a bundle cannot say that")
            wanted, greatest = self.dim_names.get((name, dim)) or f"{name}_{dim}", min(factor * most + more, self.shared.maximum // factor * factor)
            made = self._symbol(wanted, factor * least + more, greatest, factor * step)
            self.symbols[key] = ex.product([ex.simplify((made - more) // (factor * step)), step])
            self.bound.update({(name, dim): made} if factor * step > 1 else {})
        for check in checks:
            self.function.require(*check(self.symbols))

    def _symbol(self, name: str, minimum: int, most: int, divisor: int) -> Expr:
        known = self.shared.module.symbols.get(name)
        if known is not None and (known.minimum, known.maximum, known.divisor) == (minimum, most, divisor):
            return ex.symbol(name)
        return self.shared.module.symbol(free_name(name, self.shared.module.symbols), minimum=minimum, maximum=most, divisor=divisor)

    def _state(self, name: str, tensor: Any, node: Any) -> Any:
        try:
            return self.function.state_read(self.shared.state(name, tensor))
        except Unsupported as error:
            self.failures.add(f"buffer {name!r}", str(error), node)
            return MISSING

    # -- results

    def _results(self, outputs: List[Any], states: Dict[str, Any]) -> None:
        from torch.export.graph_signature import OutputKind

        names = _result_names(self.program)
        lowering, own = self.lowering, iter(names)
        wrote = set()
        # a result that is what a written input had before is copied before the write
        written = {id(i.value) for i in self.function.inputs if i.access == "read_write" and i.value is not None}
        outputs = [value.clone() if id(value) in written else value for value in outputs]
        for spec, value in zip(self.program.graph_signature.output_specs, outputs):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                name = self.names[spec.target]
                wrote.add(name)
                lowering.value(value).state_write(self.shared.states[name], [0] * lowering.rank(value))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                lowering.value(value).write_input(spec.target)
            elif spec.kind == OutputKind.USER_OUTPUT:
                name = next(own)
                if value is None and type(spec.arg).__name__ == "TensorArgument":
                    self.failures.add(f"result {name!r}", "what the operation gives beside its first result has no lowering")
                if value is not None and not isinstance(value, (bool, int, float, str)):
                    try:
                        self.function.result(name, lowering.value(value))
                    except Unsupported as error:
                        self.failures.add(f"result {name!r}", str(error))
        for target, node in states.items():
            if target not in wrote:
                value = lowering.env[node]
                lowering.value(value).state_write(self.shared.states[target], [0] * lowering.rank(value))
        for node in self.touched:
            if any(i.name == node.name for i in self.function.inputs):
                lowering.value(lowering.env[node]).write_input(node.name)


def _memory(tensor: Any) -> Tuple[Any, ...]:
    """Where its elements begin, where they end, and how they lie."""
    if hasattr(tensor, "__tensor_flatten__"):  # of several: torchao's
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    end = tensor.data_ptr() + (last + 1) * tensor.element_size() if tensor.numel() else tensor.data_ptr()
    return tensor.data_ptr(), end, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _dim_names(program: Any, dynamic_shapes: Any) -> Dict[Tuple[str, int], str]:
    """Names of Dims by input and dimension: dynamic_shapes is a dict by input, or lies as the
    inputs do."""
    from torch.utils import _pytree as pytree

    found: Dict[Tuple[str, int], str] = {}

    def note(name: Any, dims: Any) -> None:
        if not isinstance(name, str):  # of several tensors: lists and dicts of their names
            for key, part in name.items() if isinstance(name, Mapping) else enumerate(name) if isinstance(name, (list, tuple)) else ():
                if isinstance(dims, Mapping) and key in dims or isinstance(dims, (list, tuple)) and isinstance(key, int) and key < len(dims):
                    note(part, dims[key])
            return
        for d, dim in dims.items() if isinstance(dims, Mapping) else enumerate(dims) if isinstance(dims, (list, tuple)) else ():
            own = dim_name(dim)
            if isinstance(d, int) and own:
                found[name, d] = own

    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    if program.call_spec.in_spec.num_leaves != len(inputs):
        return found
    args, _ = pytree.tree_unflatten(inputs, program.call_spec.in_spec)
    note(args if isinstance(dynamic_shapes, (list, tuple)) else {name: name for name in inputs}, dynamic_shapes)
    return found


def _result_names(program: Any) -> List[str]:
    """Names of the results, by their place in what the model returns: "logits", "output_1"."""
    from torch.utils import _pytree as pytree

    spec = program.call_spec.out_spec
    count = len(program.graph_signature.user_outputs)
    try:
        paths = [path for path, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))[0]]
    except Exception:
        paths = [()] * count
    names: List[str] = []
    for at, path in enumerate(paths):
        words = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        word = re.sub(r"\W+", "_", "_".join(words)).strip("_")
        word = f"output_{word}" if not word or word[0].isdigit() else word
        word = "output" if count == 1 and not path else word
        names.append(free_name(word if word != "output_" else f"output_{at}", names))
    return names
