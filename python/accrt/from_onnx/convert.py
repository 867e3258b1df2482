"""From an ONNX model to a module of the reference compiler: inputs, symbols, weights, results."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, Union

import numpy as np

from ..compiler import Expr, Module
from ..compiler import expr as ex
from ..from_torch.lowering import Failures
from . import _external, folding, ops_image, ops_math, ops_nn, ops_shapes  # noqa: F401  - they fill the table
from .lowering import Lowering
from .values import dtype_named, Known, Missing, MISSING, Unsupported, UnsupportedOperations

#: What a dimension that varies may be: one size, or (least, most).
Range = Union[int, Tuple[int, int]]


def loaded(model: Any) -> Tuple[Any, str]:
    """The ModelProto, with external data, and where it lies."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("from_onnx needs onnx: pip install onnx") from error
    if isinstance(model, onnx.ModelProto):
        return model, ""
    if hasattr(model, "model_proto"):  # torch.onnx.ONNXProgram
        return model.model_proto, ""
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model is of type {type(model).__name__}, expected an onnx.ModelProto or the path of a .onnx file")
    path = os.fspath(model)
    try:
        found = _external.read(path)
    except (OSError, ValueError):
        raise
    except Exception as error:  # of protobuf's own kinds, and onnx's
        raise ValueError(f"{path} is no ONNX model: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
    if not found.graph.node and not found.graph.output:
        raise ValueError(f"{path} is no ONNX model: it has no graph")
    return found, path


@dataclass
class Method:
    """A function of a bundle that is made of several models: its model, and what from_onnx takes
    beside it."""

    model: Any
    sizes: Optional[Mapping[str, Range]] = None
    constants: Optional[Mapping[str, Any]] = None


def convert(
    model: Any, *, sizes: Optional[Mapping[str, Range]] = None, constants: Optional[Mapping[str, Any]] = None, name: str = "", maximum: int = 1 << 16
) -> Module:
    """The module of the reference compiler, before it is compiled: `accrt.compiler.compile(module,
    path)` does that. Arguments and errors as accrt.from_onnx."""
    methods = model if isinstance(model, Mapping) else {"forward": Method(model, sizes, constants)}
    if not methods:
        raise ValueError("a dict without functions")
    given = {function: method if isinstance(method, Method) else Method(method, sizes, constants) for function, method in methods.items()}
    protos = {function: loaded(method.model) for function, method in given.items()}
    first = next(iter(protos.values()))
    module, failures = Module(name or (_name_of(*first) if len(protos) == 1 else "model")), Failures()
    shared: Dict[str, Known] = {}
    for function, (proto, _path) in protos.items():
        _Graph(module, function, proto, failures, given[function], maximum, shared).lower()
    if failures.found:
        raise UnsupportedOperations(module.name, failures.listed())
    return module


def _name_of(proto: Any, path: str) -> str:
    if path:
        return os.path.basename(path).partition(".")[0] or "model"
    return re.sub(r"\W+", "_", proto.graph.name).strip("_") or "model"


class _Graph:
    """The graph of a model, while it becomes one function. `shared`: weights of all functions, by
    name."""

    def __init__(self, module: Module, name: str, proto: Any, failures: Failures, method: Method, maximum: int, shared: Dict[str, Known]) -> None:
        self.module, self.proto, self.failures, self.maximum, self.shared = module, proto, failures, maximum, shared
        self.sizes, self.constants = dict(method.sizes or {}), dict(method.constants or {})
        self.symbols: Dict[str, Union[int, Expr]] = {}
        functions = {(f.domain, f.name): f for f in proto.functions}
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
        self.lowering = Lowering(module, module.function(name), failures, opsets, functions)

    def lower(self) -> None:
        graph, env = self.proto.graph, self.lowering.env
        if graph.sparse_initializer:
            self.failures.add("sparse weights", "")
        for tensor in graph.initializer:
            env[tensor.name] = self._weight(tensor)
            self.lowering.add_weight(env[tensor.name])
        for given in graph.input:
            if given.name in self.constants:
                env[given.name] = Known(np.asarray(self.constants.pop(given.name)))
            elif given.name not in env:
                env[given.name] = self._input(given)
        if self.constants:
            raise ValueError(f"constants has {sorted(self.constants)[0]!r}, which is no input of the model")
        unused = sorted(set(self.sizes) - set(self.symbols))
        if unused:
            raise ValueError(f"sizes has {unused[0]!r}; the model's dimensions that vary are {', '.join(self.symbols) or 'none'}")
        self.lowering.run_graph(graph.node)
        if not self.failures.found:
            self._results()

    def _weight(self, tensor: Any) -> Any:
        """Weights of one name and content are one."""
        try:
            made = folding.of_proto(tensor, tensor.name)
        except Unsupported as error:
            self.failures.add(f"weight {tensor.name!r}", str(error))
            return MISSING
        known = self.shared.setdefault(tensor.name, made)
        if known is made or (known.array.dtype == made.array.dtype and np.array_equal(known.array, made.array)):
            return known
        made.name = f"{self.lowering.function.name}.{tensor.name}"
        return self.shared.setdefault(made.name, made)

    def _input(self, given: Any) -> Any:
        kind = given.type.WhichOneof("value")
        if kind != "tensor_type":
            self.failures.add(f"input {given.name!r}", f"it is an {kind.replace('_type', '')}" if kind else "it has no type")
            return MISSING
        own = given.type.tensor_type
        try:
            dtype = dtype_named(own.elem_type)
            if not own.HasField("shape"):
                raise Unsupported("its number of dimensions is not known")
            shape = [self._dimension(given.name, d, dim) for d, dim in enumerate(own.shape.dim)]
        except Unsupported as error:
            self.failures.add(f"input {given.name!r}", str(error))
            return MISSING
        return self.lowering.function.input(given.name, dtype, shape)

    def _dimension(self, name: str, at: int, dim: Any) -> Any:
        if dim.HasField("dim_value"):
            return dim.dim_value
        key = dim.dim_param or f"{name}_{at}"
        if key not in self.symbols:
            self.symbols[key] = self._symbol(key)
        return self.symbols[key]

    def _symbol(self, key: str) -> Any:
        given = self.sizes.get(key)
        if isinstance(given, int):
            return given
        least, most = (1, self.maximum) if given is None else given
        known = self.module.symbols.get(key)
        if known is not None and (known.minimum, known.maximum) == (least, most):
            return ex.symbol(key)
        plain = re.sub(r"\W+", "_", key).strip("_") or "size"
        free, count = plain, 1
        while free in self.module.symbols:
            count += 1
            free = f"{plain}_{count}"
        return self.module.symbol(free, minimum=least, maximum=most)

    def _results(self) -> None:
        lowering = self.lowering
        for output in self.proto.graph.output:
            try:
                item = lowering.find(output.name)
                lowering.node = None
                if isinstance(item, (Missing, list)):
                    raise Unsupported("it is a sequence")
                lowering.function.result(output.name, lowering.value(item))
            except Unsupported as error:
                self.failures.add(f"result {output.name!r}", str(error))
