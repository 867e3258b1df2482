"""Goes through one graph of an ONNX model and lowers each node by the table.

What is made of weights and sizes alone is calculated now (folding.py), so the chains of Shape,
Gather, Concat and their like that decide shapes are gone before anything is compiled. An operation
without a lowering that ONNX itself defines by others is lowered as those.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ..compiler import Expr, Function, IRError, Module, Value
from ..compiler import affine
from ..from_torch.lowering import Failures, has_missing
from ..from_torch.lowering import Lowering as Common
from ..from_torch.values import free_name
from . import folding
from .table import TABLE
from .values import DTYPES, dtype_named, Known, listed, MISSING, number_of, Unsupported

#: The oldest version of the operations whose meaning is that of version 17.
OLDEST = 13

#: Nodes of a model, with those of functions as often as they are called. Functions in functions.
MOST_NODES, MOST_INSIDE = 1 << 18, 64
#: What Python raises where a node has not the inputs or attributes that its operation has.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class TooLarge(ValueError):
    """Lowering would not end in time."""


class Lowering(Common):
    """One function of the module, while it is made out of a graph. Lowerings get it as their first
    argument."""

    def __init__(self, module: Module, function: Function, failures: Failures, opsets: Dict[str, int], functions: Dict[Any, Any]) -> None:
        super().__init__(module, function, failures)
        self.opsets, self.functions = opsets, functions
        self.inside: List[str] = []  # operations that are lowered as others now
        self.bound: Dict[str, Any] = {}  # attributes of the function that is inlined now
        self.nodes = 0
        self.spare = folding.SPARE_BYTES  # what folding may still take

    def add_weight(self, weight: Any) -> None:
        """A weight of the model's, which folding may take more memory for."""
        if isinstance(weight, Known):
            self.spare += folding.SPARE_TIMES * weight.array.nbytes

    # -- the graph

    def run_graph(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            self._lower(node)

    def find(self, name: str) -> Any:
        if not name:
            return None
        if name not in self.env:
            raise Unsupported(f"the name {name!r}, which nothing defines")
        return self.env[name]

    def _lower(self, node: Any) -> None:
        self.node = node
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise TooLarge(f"the model has more than {MOST_NODES} nodes, with those of its functions as often as they are called")
        name = name_of(node)
        try:
            inputs = [self.find(i) for i in node.input]
            results = [MISSING] * len(node.output) if has_missing(inputs) else self._results(node, name, inputs)
        except Unsupported as error:
            self._fail(name, str(error), node)
            results = [MISSING] * len(node.output)
        except IRError as error:
            self._fail(name, str(error).partition(": ")[2] or str(error), node)
            results = [MISSING] * len(node.output)
        except TooLarge:
            raise
        except _MISFITS as error:
            self._fail(name, f"its inputs or attributes do not fit ({type(error).__name__}: {error})", node)
            results = [MISSING] * len(node.output)
        for output, result in zip(node.output, results):
            if output and output in self.env:
                self._fail(name, f"the name {output!r}, which is there already", node)
            if output:
                self.env[output] = result

    def _fail(self, name: str, why: str, node: Any) -> None:
        if self.inside:
            raise _Inside(f"{name}{': ' + why if why else ''}")
        self.failures.add(name, why)
        self.failures.where[name, why] = self.failures.where[name, why] or (node.name or next((o for o in node.output if o), ""))

    def _results(self, node: Any, name: str, inputs: List[Any]) -> List[Any]:
        own = self.functions.get((node.domain, node.op_type))
        if own is None:
            self._check_form(node)
        named = self._attributes(node)
        if name == "If":
            return self._branch(node, inputs[0], named)
        if name == "Constant":
            known = folding.constant(named)
            if not self.inside:  # a function has it once, however often it is called
                self.add_weight(known)
            return [known]
        if own is not None:
            return self._inlined(own, name, inputs, node, named)
        folded = folding.folded(self, node, name, inputs, named)
        if folded is not None:
            return folded
        made, unknown = NotImplemented, _not_taken(TABLE[name], named) if name in TABLE else ""
        if name in TABLE and not unknown:
            self._same_version(node)
            made = TABLE[name](self, *inputs, **named)
        if made is NotImplemented:
            body = self._definition(node, inputs)
            if body is None:
                raise Unsupported(f"with the attribute {unknown!r}" if unknown else "")
            return self._inlined(body, name, inputs, node, named)
        return list(made) if isinstance(made, (list, tuple)) and not isinstance(made, Sequenced) else [made]

    def _version(self, node: Any) -> int:
        return self.opsets.get("" if node.domain == "ai.onnx" else node.domain, OLDEST)

    def _check_form(self, node: Any) -> None:
        """Attributes have the types, and the inputs the number, that ONNX says."""
        schema = _schema(node, self._version(node)) or _schema(node, OLDEST)
        if schema is None:
            return
        if not len(node.input) <= schema.max_input:
            raise Unsupported(f"with {len(node.input)} inputs; it has at most {schema.max_input}")
        if len(node.input) < schema.min_input:
            raise Unsupported(f"with {len(node.input)} inputs; it has at least {schema.min_input}")
        for attribute in node.attribute:
            known = schema.attributes.get(attribute.name)
            if known is not None and known.type.value != attribute.type:
                raise Unsupported(f"its attribute {attribute.name!r} is of another type than {known.type.name}")

    def _same_version(self, node: Any) -> None:
        """An operation of an old model means what it means in the oldest version that is lowered,
        or is refused."""
        version = self._version(node)
        if node.domain not in ("", "ai.onnx") or version >= OLDEST:
            return
        then, now = (_schema(node, v) for v in (version, OLDEST))
        if then is None:
            raise Unsupported(f"which opset {version} does not have")
        if now is None or not _means_the_same(then, now, version):
            raise Unsupported(f"as opset {version} has it: onnx.version_converter makes a model of opset 17")

    def _attributes(self, node: Any) -> Dict[str, Any]:
        named = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in self.bound:
                    named[attribute.name] = self.bound[attribute.ref_attr_name]
                continue
            named[attribute.name] = _content(attribute)
        return named

    # -- graphs inside of nodes

    def _branch(self, node: Any, condition: Any, named: Dict[str, Any]) -> List[Any]:
        """The branch that is taken, where the condition is known."""
        chosen = number_of(condition)
        if chosen is None or isinstance(chosen, Expr):
            raise Unsupported("its condition is known to the call alone")
        graph = named["then_branch" if chosen else "else_branch"]
        before = dict(self.env)
        for tensor in graph.initializer:
            self.env[tensor.name] = folding.of_proto(tensor)
            if not self.inside:
                self.add_weight(self.env[tensor.name])
        self.run_graph(graph.node)
        results = [self.find(output.name) for output in graph.output]
        self.env, self.node = before, node
        return results

    def _inlined(self, body: Any, name: str, inputs: List[Any], node: Any, named: Dict[str, Any]) -> List[Any]:
        """The nodes of a function, of the model's own or of ONNX's definition, in the place of a
        node."""
        if len(self.inside) >= MOST_INSIDE:
            raise Unsupported(f"functions that call others more than {MOST_INSIDE} deep, or themselves")
        kept = self.env, self.bound, self.node, self.opsets
        self.env = dict(zip(body.input, [*inputs, *[None] * (len(body.input) - len(inputs))]))
        self.env.update({key: value for key, value in self.env.items() if key})
        self.bound = {**{a.name: _content(a) for a in body.attribute_proto}, **self._defaults(node), **named}
        self.opsets = {o.domain: o.version for o in body.opset_import} or self.opsets
        self.inside.append(name)
        try:
            self.run_graph(body.node)
            return [self.env.get(output) for output in body.output]
        except _Inside as error:
            if len(self.inside) > 1:
                raise
            raise Unsupported(f"by {error}") from None
        finally:
            self.inside.pop()
            self.env, self.bound, self.node, self.opsets = kept

    def _schema(self, node: Any) -> Any:
        import onnx

        try:
            return onnx.defs.get_schema(node.op_type, self.opsets.get(node.domain, OLDEST), "" if node.domain == "ai.onnx" else node.domain)
        except onnx.defs.SchemaError:
            return None

    def _defaults(self, node: Any) -> Dict[str, Any]:
        """Of an operation's attributes."""
        schema = self._schema(node)
        given = {} if schema is None else {name: a.default_value for name, a in schema.attributes.items()}
        return {name: _content(value) for name, value in given.items() if value is not None and value.type}

    def _definition(self, node: Any, inputs: List[Any]) -> Any:
        """ONNX's own definition of an operation by others, or None."""
        import onnx

        version, schema = self.opsets.get(node.domain, OLDEST), self._schema(node)
        if schema is None or len(self.inside) > 8:
            return None
        proto = onnx.FunctionProto()
        if schema.has_function:
            versions = [v for v in schema.function_opset_versions if v <= max(version, OLDEST)] or schema.function_opset_versions[:1]
            proto.ParseFromString(schema.get_function_with_opset_version(versions[-1]))
        elif schema.has_context_dependent_function:
            types = [self._type_proto(i).SerializeToString() for i in inputs]
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= max(version, OLDEST)]
            versions = versions or schema.context_dependent_function_opset_versions[:1]
            given = schema.get_context_dependent_function_with_opset_version(versions[-1], self._with_attributes(node).SerializeToString(), types)
            proto.ParseFromString(given)
        else:
            return None
        return proto if proto.node else None

    def _with_attributes(self, node: Any) -> Any:
        """The node with the content of attributes that refer to the function it stands in."""
        import onnx

        if not any(a.ref_attr_name for a in node.attribute):
            return node
        made = onnx.NodeProto()
        made.CopyFrom(node)
        del made.attribute[:]
        made.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in self._attributes(node).items() if v is not None)
        return made

    def _type_proto(self, item: Any) -> Any:
        import onnx

        made = onnx.TypeProto()
        if item is None or isinstance(item, (list, tuple)):
            return made
        code = next(c for c, ours in DTYPES.items() if ours == self.dtype(item))
        made.tensor_type.elem_type = onnx.TensorProto.DataType.Value(code)
        for size in self.shape(item):
            dim = made.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
        if not self.shape(item):
            made.tensor_type.shape.SetInParent()
        return made

    # -- what lowerings use

    def value(self, item: Any, dtype: str = "") -> Value:
        """A value of the function: of a Known tensor a constant, of a number a tensor without
        dimensions."""
        if item is None:
            raise Unsupported("an input that is left out")
        if isinstance(item, (list, tuple)):
            raise Unsupported("a sequence of tensors")
        if isinstance(item, Known):
            return self._of_sizes(item) if item.is_symbolic else self._constant(item)
        return super().value(item, dtype)

    def _of_sizes(self, item: Known) -> Value:
        """A tensor of sizes that only a call knows."""
        dtype = item.dtype
        parts = [self.function.full([1], e, dtype) for e in listed(item)]
        whole = self.function.cat(parts, 0) if len(parts) > 1 else parts[0]
        return whole.view(list(item.shape))

    def operand(self, item: Any) -> Any:
        """As value(), but tensors without dimensions that are known are numbers."""
        if isinstance(item, (int, float, Expr)):
            return item
        number = number_of(item) if isinstance(item, Known) and not item.shape else None
        return self.value(item) if number is None else number

    def _constant(self, item: Known) -> Value:
        array, dtype = item.array, item.dtype
        if not array.shape:
            return self.function.full([], array.item(), dtype)
        if not item.name:
            item.name = free_name(next((o for o in self.node.output if o), "constant") if self.node is not None else "constant", self.module.constants)
        if item.name not in self.module.constants:
            array = np.ascontiguousarray(array)
            self.module.constant(item.name, array.view(np.uint16) if dtype == "bf16" else array, dtype)
        return self.function.constant(self.module.constants[item.name])

    def shape(self, item: Any) -> Any:
        return tuple(item.shape)

    def dtype(self, item: Any) -> str:
        return item.dtype

    def sizes(self, item: Any, what: str) -> List[Any]:
        """The elements of an input that decides a shape."""
        if isinstance(item, (list, tuple)):
            return list(item)
        if not isinstance(item, Known):
            raise Unsupported(f"{what}, which only a call knows: constants= gives an input's content when the bundle is made")
        return listed(item)

    def integers(self, item: Any, what: str) -> List[int]:
        found = self.sizes(item, what)
        if any(isinstance(size, Expr) for size in found):
            raise Unsupported(f"{what}, which only a call knows")
        return [int(size) for size in found]

    def integer(self, item: Any, what: str) -> int:
        found = self.integers(item, what)
        if len(found) != 1:
            raise Unsupported(f"{what} of {len(found)} elements")
        return found[0]

    def pattern(self, item: Any) -> Optional[affine.Pattern]:
        if isinstance(item, Known):
            number = number_of(item)
            if isinstance(number, Expr):
                return affine.constant(len(item.shape), number)
            return None if item.is_symbolic else affine.pattern_of(item.array)
        return super().pattern(item)

    def dtype_named(self, code: int) -> str:
        return dtype_named(code)


class Sequenced(list):
    """A sequence of tensors, as one result."""


class _Inside(Exception):
    """An operation that another one is lowered as has no lowering."""


def _content(attribute: Any) -> Any:
    """What an attribute has; text as text."""
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _means_the_same(then: Any, now: Any, version: int) -> bool:
    """Whether an operation of an older opset differs from that of the oldest that is lowered by the
    types that it takes alone, and by attributes whose defaults are what it did then. Before opset
    11 some differ by their texts."""
    if then.since_version == now.since_version or then.name == "Dropout" and then.since_version >= 7:
        return True  # that of older opsets never trains
    if version < 11 or any([(i.name, i.option) for i in a] != [(i.name, i.option) for i in b] for a, b in ((then.inputs, now.inputs), (then.outputs, now.outputs))):
        return False
    old, new = ({n: (a.type, a.required, a.default_value.SerializeToString()) for n, a in s.attributes.items()} for s in (then, now))
    return old.items() <= new.items() and not any(new[name][1] for name in new.keys() - old.keys())


def _schema(node: Any, version: int) -> Any:
    """What ONNX says of an operation; None: nothing."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return None


def _not_taken(function: Any, named: Dict[str, Any]) -> str:
    """An attribute that a lowering does not take."""
    taken = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return ""
    return next((name for name in named if name not in taken), "")


def name_of(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
