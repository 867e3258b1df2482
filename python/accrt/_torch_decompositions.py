"""torch's own decompositions of single operations, for accrt.from_torch: the graph of one where the
operation stood. Nothing else of the model is traced again, which torch's run_decompositions does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Dict, Iterable, Iterator, Tuple

_SIZED = "its size is known to the call alone: calculate it in your program"
_RANDOM = "random numbers: make them in your program, and pass them in"
#: What to do instead of an operation that neither torch nor a lowering takes apart.
INSTEAD: Dict[str, str] = {
    **dict.fromkeys(("nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim", "unique_dim_consecutive"), _SIZED),
    **dict.fromkeys(("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial", "normal", "uniform", "exponential"), _RANDOM),
    "linalg_ldl_factor_ex": "torch.linalg.solve, inv, det, slogdet, cholesky and lu are there",
    **dict.fromkeys(("geqrf", "linalg_householder_product", "ormqr"), "torch.linalg.qr is there"),
    "bincount": "its size is known to the call alone: torch.zeros(n, dtype=torch.long).scatter_add(0, x, torch.ones_like(x)) has n places",
    "repeat_interleave": "its size is known to the call alone: "
                         "x[torch.searchsorted(repeats.cumsum(0), torch.arange(n), right=True)] has n places",
    "linalg_eig": "eigenvalues of matrices that are not symmetric: calculate them in your program; torch.linalg.eigh of symmetric ones is there",
    "linalg_lstsq": "torch.linalg.pinv(a) @ b is there",
    **dict.fromkeys(("_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "_sparse_mm_reduce_impl", "sparse_coo_tensor",
                     "_sparse_coo_tensor_unsafe", "_sparse_compressed_tensor_unsafe", "sparse_compressed_tensor"),
                    "sparse tensors: keep it dense, or give indices and values, and sum products by index_add or scatter_add"),
    **dict.fromkeys(("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"), "torch.histc is there, and torch.bucketize with scatter_add"),
    "put": "x.flatten().scatter(0, index, values).view_as(x) is there",
    "tensor_split": "sizes of parts are numbers: give the places as a list",
    "_ctc_loss": "losses of sequences are for training: calculate it in your program",
    **dict.fromkeys(("igamma", "igammac", "special_airy_ai"),
                    "no kernel has it: calculate it in your program, and pass it in; or bring a kernel of your own (docs/missing-operations.md)"),
}
#: Of a node: the tensor that it is, which a decomposition made.
CONTENT = "accrt.content"
#: By operation of torch: what takes it apart. By a graph and its node: what the node became.
Table = Dict[Any, Any]
#: Held while torch's oneDNN is off: of two threads that turn it off, the second would keep it so.
_ONEDNN = threading.RLock()


def found(missing: Iterable[str]) -> Table:
    """The decompositions that torch has of operations by name; one in place is the other one and a
    copy."""
    table = {}
    for target in (target for target in missing if target.startswith("aten.")):
        packet, _, overload = target[len("aten.") :].rpartition(".")
        operation, part = _part(packet, overload)
        if part is None and packet.endswith("_"):
            _plain, whole = _part(packet[:-1], overload)
            part = whole and functools.partial(_in_place, whole)
        if part is not None:
            table[operation] = part
    return table


def _part(packet: str, overload: str) -> Tuple[Any, Any]:
    """An operation and its decomposition, or None."""
    import torch
    from torch._decomp import decomposition_table as others, decompositions

    operation = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if operation in _known():
        return operation, _known()[operation]
    part = others.get(operation)
    # torch's references would give operations that are not aten's
    return operation, part if part is not None and part.__module__ == decompositions.__name__ else None


@functools.lru_cache(maxsize=None)
def _known() -> Any:
    """What torch takes apart in its exports. To make it takes a second."""
    import torch

    return torch.export.default_decompositions()


def _in_place(whole: Any, x: Any, *rest: Any, **named: Any) -> Any:
    return x.copy_(whole(x, *rest, **named))


def traced(node: Any, apart: Table) -> Any:
    """The graph module of what an operation is made of: its inputs are the node's, in order, and it
    gives a list. None where it stays whole, or torch cannot take it apart."""
    if node.target not in apart:
        return None
    key = (node.graph, node)
    if key not in apart:
        apart[key] = _traced(node, apart[node.target])
    return apart[key]


def _traced(node: Any, decomposition: Any) -> Any:
    import torch
    from torch._guards import detect_fake_mode
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.node import map_arg

    inputs = node.all_input_nodes
    values = [item.meta.get("val") for item in inputs]
    mode = detect_fake_mode([node.meta.get("val"), *values])

    def calculate(*given: Any) -> Any:
        by_node = dict(zip(inputs, given))
        made = decomposition(*map_arg(node.args, by_node.__getitem__), **map_arg(node.kwargs, by_node.__getitem__))
        return list(made) if isinstance(made, (list, tuple)) else [made]

    if mode is None or any(value is None for value in values):
        return None
    with mode, torch.no_grad(), _without_onednn(), enable_python_dispatcher():
        for whole in (True, False):  # the other one takes apart what torch composes of others
            try:
                module = make_fx(calculate, pre_dispatch=whole)(*values)
            except Exception:  # of many kinds: the list says what is missing
                continue
            if all(part.target is not node.target for part in module.graph.nodes):
                return _with_places(module, node)
    return None


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Within, torch takes no layer of oneDNN for a decomposition. Its own switch warns of more than
    that."""
    import torch

    with _ONEDNN:
        enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(enabled)


def _with_places(module: Any, node: Any) -> Any:
    for part in module.graph.nodes:
        if "stack_trace" in node.meta:
            part.meta["stack_trace"] = node.meta["stack_trace"]
        if part.op == "get_attr":
            tensor = getattr(module, part.target)
            part.meta[CONTENT] = getattr(tensor, "constant", None) if hasattr(tensor, "fake_mode") else tensor
    return module
