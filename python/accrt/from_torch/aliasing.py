"""Which tensors of a graph are others' memory: views, what an operation writes, and operations that
give what they got.

torch's schemas say which results may be views. Where it depends on strides (reshape, contiguous,
to), the export's own decide.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Iterator, List, Optional

from .._torch_decompositions import Table, traced

#: These give the argument itself where there is nothing to do, which their schemas do not say.
SAME = ("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.type_as")
#: A view where the strides allow it, and a copy where not.
RESHAPES = ("aten.reshape", "aten.reshape_as", "aten.flatten", "aten.ravel")
#: The tensor itself, or a copy with another type or other strides.
CONVERTS = ("aten.contiguous", "aten.to", *SAME)
#: Graphs in the graph, which are run as they stand there.
INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def writes(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def first(node: Any) -> Any:
    """The node of the first argument, or None."""
    item = node.args[0] if node.args else node.kwargs.get("self", node.kwargs.get("input"))
    return item if hasattr(item, "op") else None


def whole_of(node: Any) -> Any:
    """The node whose memory this one's is, or None where it has its own. Of a list of views it is
    what they are views of."""
    source = _source(node)
    if source is None:
        return None
    if node.target is operator.getitem:
        return whole_of(source)
    name = _name(node)
    return None if name in RESHAPES + CONVERTS and not writes(node.target) and _copies(node, name) else source


def _name(node: Any) -> str:
    return str(node.target).rpartition(".")[0]


def _source(node: Any) -> Any:
    """The node whose memory this one's may be."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return first(node) if first(node) is not None and _source(first(node)) is not None else None
    schema = getattr(node.target, "_schema", None)
    shares = schema is not None and (_name(node) in SAME or writes(node.target) or any(result.alias_info is not None for result in schema.returns))
    if not shares or _name(node) != "aten.as_strided":
        return first(node) if shares else None
    return root_of(first(node))  # it goes through all of the memory


def _copies(node: Any, name: str) -> bool:
    before, after = _layout(first(node)), _layout(node)
    given = {a.name: value for a, value in zip(node.target._schema.arguments, node.args)} | dict(node.kwargs)
    if name in RESHAPES:
        return not _is_contiguous(before) and _is_contiguous(after)
    if given.get("copy") or before.dtype != after.dtype or (given.get("train") and given.get("p")):
        return True
    return _strides(before) != _strides(after)


def _strides(value: Any) -> List[str]:
    return [str(s) for s in value.stride()]


def _layout(node: Any) -> Any:
    """A tensor with the strides that the node's has. Those of the export are others behind what
    does nothing (dropout): it has copies there."""
    from torch.fx.node import map_arg

    key = "accrt.layout"
    if key not in node.meta:
        source = _source(node)
        before = _layout(source) if source is not None else None
        own = node.meta.get("val")
        if before is None or (before is source.meta.get("val") and _name(node) not in SAME):
            node.meta[key] = own
        elif writes(node.target) or (_name(node) in SAME and before.dtype == own.dtype):
            node.meta[key] = own if _strides(before) == _strides(own) else before
        else:
            node.meta[key] = node.target(before, *map_arg(node.args[1:], lambda n: n.meta.get("val")), **map_arg(node.kwargs, lambda n: n.meta.get("val")))
    return node.meta[key]


def _is_contiguous(value: Any) -> bool:
    """By texts: what is unknown while exporting is not asked for."""
    import torch

    wanted: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if str(size) == "1":
            continue
        if str(stride) != str(wanted):
            return False
        wanted = wanted * (max(size, 1) if isinstance(size, int) else torch.sym_max(size, 1))
    return True


def root_of(node: Any) -> Any:
    """The node that has the memory."""
    whole = whole_of(node)
    while whole is not None:
        node, whole = whole, whole_of(whole)
    return node


def touched(graph: Any) -> List[Any]:
    """Placeholders that an operation writes, or a view of them: an export that is not strict does
    not list them."""
    roots = [root_of(n) for n in graph.nodes if n.op == "call_function" and writes(n.target) and "detach_" not in str(n.target)]
    return [root for root in dict.fromkeys(roots) if root.op == "placeholder"]


def flat(graph_module: Any, apart: Table) -> Any:
    """The graph with the graphs in it where they are run, so that what they write is written, and
    with what operations are made of in the place of those that are taken apart."""
    from torch.fx import Graph

    graph = Graph()
    graph.output(tuple(_copied(graph, graph_module, "", None, apart)))
    for node in graph.nodes:  # in order, so that no chain is followed from its end
        _layout(node)
    return graph


def _copied(graph: Any, module: Any, prefix: str, given: Optional[Iterator[Any]], apart: Table) -> List[Any]:
    """The nodes of a module's graph, in another one; what it gives."""
    from torch.fx.node import map_arg

    made: Dict[Any, Any] = {}
    for node in module.graph.nodes:
        parts = traced(node, apart)
        if parts is not None:
            of = _copied(graph, parts, "", iter([made[item] for item in node.all_input_nodes]), apart)
            made[node] = of if isinstance(node.meta["val"], (list, tuple)) else of[0]
        elif node.op == "output":
            return [map_arg(item, made.__getitem__) for item in node.args[0]]
        elif node.op == "placeholder" and given is not None:
            made[node] = next(given)
        elif node.op == "call_function" and getattr(node.target, "__name__", "") in INLINED:
            at = next(i for i, a in enumerate(node.args) if getattr(a, "op", "") == "get_attr")
            rest = [map_arg(item, made.__getitem__) for item in node.args[at + 1 :]]
            made[node] = _copied(graph, getattr(module, node.args[at].target), f"{prefix}{node.args[at].target}.", iter(rest), apart)
        elif node.target is operator.getitem and isinstance(made.get(node.args[0]), list):
            made[node] = made[node.args[0]][node.args[1]]
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            if node.op == "get_attr":
                made[node].target = prefix + node.target
            elif node.op == "placeholder":
                made[node].name = node.name  # torch gives the copy of `input` another one
    raise AssertionError("a graph without an output")
