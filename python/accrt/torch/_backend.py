"""torch.compile(model, backend="accrt"): graphs of torch become bundles through accrt.from_torch's
table, and run on torch's own memory."""
from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

import torch

from ..bundle import Bundle
from ..errors import Error
from ._operator import Operator, Programs
from ._shapes import meet, meets, span
from ._weights import mark, same, Weights

_log = logging.getLogger("accrt.torch")
_F = torch.nn.functional
_DROPOUTS = {_F.dropout, _F.alpha_dropout, _F.feature_alpha_dropout, _F.dropout1d, _F.dropout2d, _F.dropout3d}
_PLANS = 64  # of one graph: one for each set of shapes


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend, as torch.compile calls it.

    A graph is compiled when it is first called with arguments of these shapes. Operations without a
    lowering run in torch, the rest in bundles. It is for inference alone: a call that would need
    gradients is a RuntimeError. The logger "accrt.torch" says (INFO) what runs in torch, and why.
    """
    if options:
        raise ValueError(f"the backend accrt has no options, {', '.join(options)} was given")
    return _Graph(graph)


#: torch.autocast: on which kinds of devices, to which type.
_Casts = Sequence[Tuple[str, Optional[torch.dtype]]]


def _casts() -> _Casts:
    """How torch.autocast is set here."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))


@contextlib.contextmanager
def _casting(casts: _Casts) -> Iterator[None]:
    """torch.autocast set like this; off where the type is None."""
    with contextlib.ExitStack() as stack:
        for kind, dtype in casts:
            stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False))
        yield


class _Stale(Exception):
    """A plan was made of parameters that have changed since, in a way that it cannot follow."""


class _Graph:
    """A graph of torch, and what runs it, by the shapes of its arguments."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph, self.plans = _without_idle_dropouts(graph), {}
        self._making = threading.RLock()

    def __call__(self, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            raise RuntimeError("torch.compile(backend='accrt') runs inference alone, and arguments or parameters require grad: call the model under "
                               "torch.no_grad(). For training there is accrt.torch.operator with a backward")
        casts = _casts()
        # numbers by their bits: 0.0 is -0.0, and nan is not nan
        key = casts, *((tuple(a.shape), a.stride(), a.dtype, a.device.type, isinstance(a, torch.nn.Parameter)) if isinstance(a, torch.Tensor)
                    else (type(a), a.hex() if isinstance(a, float) else a) for a in args)
        plan = self.plans.get(key)
        while True:
            if plan is None:
                with self._making:
                    plan = self.plans.get(key) or self._made(args, casts)
                    if len(self.plans) < _PLANS:
                        self.plans[key] = plan
            try:
                return plan(*args)
            except _Stale:
                with self._making:
                    if self.plans.get(key) is plan:
                        del self.plans[key]
                plan = None

    def _made(self, args: Sequence[Any], casts: _Casts) -> Callable[..., Any]:
        if len(self.plans) >= _PLANS:
            _log.warning("a graph has been called with %d sets of shapes: further ones run in torch", _PLANS)
            return self.graph
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        # numbers of the host may stand beside a GPU's tensors
        devices = {a.device for a in tensors if a.dim() or a.device.type != "cpu"}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        if devices or device.type not in ("cpu", "cuda") or any(a.layout != torch.strided or a.device != device for a in tensors):
            _log.info("a graph runs in torch: its arguments are not all on the host, or all on one GPU")
            return self.graph
        target, why_not = _target(device)
        if why_not:
            _log.warning("a graph runs in torch: %s", why_not)
            return self.graph
        try:
            with torch.no_grad(), _casting([(kind, None) for kind, _dtype in casts]):
                # torch.export writes to its arguments, and torch refuses that of inference tensors
                # outside of their mode
                return _lowered(self.graph, _apart(args) if _overlap(args) or any(a.is_inference() for a in tensors) else args, casts, target)
        except Exception as error:
            # of torch.export, of many kinds: what is not covered runs in torch
            _log.warning("a graph runs in torch: %s: %s", type(error).__name__, str(error).partition("\n")[0])
            return self.graph


def _without_idle_dropouts(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph without dropouts that are off. With dynamic=True their probabilities are tensors,
    whose range torch.export would check."""
    idle = [node for node in graph.graph.nodes if node.op == "call_function" and node.target in _DROPOUTS
            and (node.args[2:3] or (node.kwargs.get("training"),))[0] is False]
    for node in idle:
        used = node.all_input_nodes
        node.replace_all_uses_with(used[0])
        graph.graph.erase_node(node)
        for number in used[1:]:
            if not number.users and (number.op, number.target) == ("call_method", "item"):
                graph.graph.erase_node(number)
    if idle:
        graph.recompile()
    return graph


class _Fixed(torch.nn.Module):
    """A graph whose parameters stand in it, so that they become weights of the bundle."""

    def __init__(self, graph: torch.nn.Module, args: Sequence[Any], casts: _Casts) -> None:
        super().__init__()
        self.graph, self.casts, self.fixed = graph, casts, [isinstance(a, torch.nn.Parameter) for a in args]
        for at, value in enumerate(args):
            if self.fixed[at]:
                self.register_parameter(f"argument{at}", torch.nn.Parameter(value.detach(), requires_grad=False))

    def forward(self, *rest: Any) -> Any:
        given = iter(rest)
        with _casting(self.casts):
            return self.graph(*[getattr(self, f"argument{at}") if fixed else next(given) for at, fixed in enumerate(self.fixed)])


def _overlap(args: Sequence[Any], written: Optional[Sequence[int]] = None) -> bool:
    """Whether two arguments have memory in common, as far as their first and last bytes say; of
    which one is among those that are written, if they are given by their places. Tensors of several
    others (torchao's) have no address."""
    spans = {at: span(a) for at, a in enumerate(args) if isinstance(a, torch.Tensor) and a.numel() and a.data_ptr()}
    if written is None:
        return meet(spans.values())
    return any(meets(spans[at], [one for other, one in spans.items() if other != at]) for at in written if at in spans)


def _frozen(args: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether torch refuses to write one of these arguments: an inference tensor, outside of its
    mode."""
    return not torch.is_inference_mode_enabled() and any(args[at].is_inference() for at in written)


def _written(program: Any, fixed: Sequence[bool]) -> list[int]:
    """The places of the arguments that a graph writes."""
    from ..from_torch.aliasing import flat, touched

    names = {node.name for node in touched(flat(program.graph_module, {}))}
    names |= {spec.target for spec in program.graph_signature.output_specs if spec.kind.name.endswith("_MUTATION")}
    rest = iter(at for at, one in enumerate(fixed) if not one)
    places = [(next(rest) if spec.kind.name == "USER_INPUT" else spec.target, spec) for spec in program.graph_signature.input_specs]
    return [at if isinstance(at, int) else int(at.removeprefix("argument")) for at, spec in places
            if (spec.arg.name in names or at in names) and (isinstance(at, int) or at.startswith("argument"))]


def _apart(args: Sequence[Any]) -> list[Any]:
    """Arguments of the same kinds, each in memory of its own, to make a plan of. Their values have
    no part in it."""
    return [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad)
            if isinstance(a, torch.Tensor) and not isinstance(a, torch.nn.Parameter) else a for a in args]


def _lowered(graph: torch.nn.Module, args: Sequence[Any], casts: _Casts, target: str) -> Callable[..., Any]:
    """A bundle for the whole graph, or bundles for its parts."""
    from ..from_torch import UnsupportedOperations

    module = _Fixed(graph, args, casts)
    rest = tuple(a for a, fixed in zip(args, module.fixed) if not fixed)
    program = torch.export.export(module, rest, strict=False)
    if not all(_is_operation(n) for n in program.graph.nodes):
        # a transformation of torch.func, as vmap, whose parts are no operations
        program = program.run_decompositions({})
    if any(fixed and a.is_inference() for a, fixed in zip(args, module.fixed)):
        _log.info("a graph runs in torch: it has parameters that were made under torch.inference_mode(), whose changes are not counted")
        return graph
    if _shared(program.graph, results_of(program)):
        return _parts(graph, program, args, module.fixed, set())
    try:
        return _Whole(graph, program, args, module.fixed, target)
    except UnsupportedOperations as error:
        return _parts(graph, program, args, module.fixed, {name for name, _count, _where, _why in error.operations})


def _is_operation(node: torch.fx.Node) -> bool:
    return node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload) or node.target.__module__ == "_operator"


def _writes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def results_of(program: Any) -> list[Any]:
    """The nodes of what the program gives, without what it writes."""
    written = len(program.graph_signature.buffers_to_mutate) + len(program.graph_signature.user_inputs_to_mutate)
    return [n for n in list(program.graph.nodes)[-1].args[0][written:] if isinstance(n, torch.fx.Node)]


def _shared(graph: torch.fx.Graph, results: Sequence[Any]) -> set[Any]:
    """The results that lie in the memory of an argument or of another result, as a bundle's never
    do."""
    given = {_storage(n.meta.get("val")) for n in graph.nodes if n.op in ("placeholder", "get_attr")}
    found: dict[Any, list[Any]] = {}
    for node in results:
        found.setdefault(_storage(node.meta.get("val")), []).append(node)
    return {node for one, nodes in found.items() if one is not None and (one in given or len(nodes) > 1) for node in nodes}


def _views(results: set[Any]) -> set[Any]:
    """These results, and what they are views of, as far as these are views themselves: with torch
    they share memory as they have to."""
    pending, found = list(results), set()
    while pending:
        node = pending.pop()
        base = [n for n in node.all_input_nodes if _storage(n.meta.get("val")) == _storage(node.meta.get("val"))]
        if node.op == "call_function" and base and node not in found:
            found.add(node)
            pending += base
    return found


def _storage(value: Any) -> Optional[int]:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _target(device: torch.device) -> tuple[str, str]:
    """What to compile for, to run on a device; and what is missing for that here, in one line."""
    from .._kernel_source import target_of
    from ..instance import default_instance

    if device.type == "cpu":
        return target_of(default_instance().device("host").info.arch), ""
    from ..compiler.cuda import nvcc

    try:
        arch = default_instance().device(f"cuda:{device.index}").info.arch
    except Error as error:
        return "", str(error)
    target = arch if arch in nvcc.TARGETS else "ptx"
    reason = nvcc.available_targets()[1].get(target, "")
    return target, reason and f"bundles for {device} are compiled by nvcc or NVRTC, and there is {reason}"


class _Whole:
    """One bundle that is the graph."""

    def __init__(self, graph: torch.nn.Module, program: Any, args: Sequence[Any], fixed: Sequence[bool], target: str) -> None:
        from ..compiler import compile
        from ..from_torch import convert

        # A bundle reads all that it reads as it was before the call. In torch, what is written is
        # seen through other arguments in the same memory.
        self.graph, self.written = graph, _written(program, fixed)
        content = compile(convert(program, name="graph"), targets=[target])
        made = Bundle(content)
        names = {f"argument{at}": at for at, one in enumerate(fixed) if one}
        weights = Weights(made, names)
        self.weights_at = [names[name] for name in weights.names]
        weights.remember([args[at] for at in self.weights_at])
        # Lowering calculates what is made of weights alone. For such constants it is not known here
        # what they were made of.
        derived = any(c.name not in names and not c.prepared for c in made.constants) or len(self.weights_at) < len(names)
        self.marks = [(at, mark(args[at])) for at in names.values()] if derived else []
        operator = Operator(Programs(made), "forward", "accrt::graph", weights)
        self.run = operator.run_on_gpu if any(isinstance(a, torch.Tensor) and a.is_cuda for a in args) else operator.run
        self.rest = [at for at, one in enumerate(fixed) if not one and isinstance(args[at], torch.Tensor)]
        self.strides = [_strides(node.meta["val"]) for node in results_of(program)]
        self.outputs = [getattr(spec.arg, "value", None) if not hasattr(spec.arg, "name") or type(spec.arg).__name__ == "ConstantArgument" else _Result
                        for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]

    def __call__(self, *args: Any) -> Any:
        if not all(same(one, args[at]) for at, one in self.marks):
            raise _Stale
        if self.written and (_overlap(args, self.written) or _frozen(args, self.written)):
            return self.graph(*args)
        made = self.run(*[args[at] for at in self.rest], [args[at] for at in self.weights_at])
        results = map(_laid, made if isinstance(made, tuple) else (made,), self.strides)
        return tuple(next(results) if one is _Result else one for one in self.outputs)


def _strides(value: Any) -> Optional[tuple[int, ...]]:
    """The strides that torch gives a result, None where they are a bundle's: row-major."""
    return None if value.is_contiguous() else value.stride()


def _laid(value: torch.Tensor, strides: Optional[tuple[int, ...]]) -> torch.Tensor:
    """A result with torch's strides: code behind it, and the caller, may depend on them."""
    if strides is None:
        return value
    once = [1 if stride == 0 else size for size, stride in zip(value.shape, strides)]
    made = torch.empty_strided(once, strides, dtype=value.dtype, device=value.device)
    made.copy_(value[tuple(slice(size) for size in once)])
    return made.expand(value.shape)


class _Result:
    """In the place of a tensor among what a graph gives."""


def _parts(graph: torch.nn.Module, program: Any, args: Sequence[Any], fixed: Sequence[bool], missing: set[str]) -> Callable[..., Any]:
    """The graph with bundles for what has lowerings. missing: what has none."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    from ..from_torch.table import TABLE

    if any(_writes(n) for n in program.graph.nodes):
        # what writes to values of its own alone does not write after that
        program = program.run_decompositions({})
    whole = program.module(check_guards=False)
    missing = missing | {str(n.target) for n in whole.graph.nodes if isinstance(n.target, torch._ops.OpOverload) and str(n.target) not in TABLE}
    if missing:
        _log.info("%s run%s in torch", ", ".join(sorted(missing)), "s" if len(missing) == 1 else "")
    if any(_writes(n) or not _is_operation(n) for n in whole.graph.nodes):
        _log.info("a graph runs in torch: it writes in place, or calls what is no operation")
        return graph

    output = next(n for n in whole.graph.nodes if n.op == "output")
    views = _views(_shared(whole.graph, output.all_input_nodes))
    if not views and _shared(program.graph, results_of(program)):
        _log.info("a graph runs in torch: a result is an argument or another result")
        return graph

    class Covered(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
            return node.op == "call_function" and str(node.target) in TABLE and str(node.target) not in missing and node not in views

    partitioner = CapabilityBasedPartitioner(whole, Covered(), allows_single_node_partition=False)
    divided = partitioner.partition_and_fuse()
    for node in divided.graph.nodes:
        if node.op == "call_module" and node.target.startswith("fused_"):
            setattr(divided, node.target, _Part(getattr(divided, node.target)))
    divided.recompile()
    rest = [at for at, one in enumerate(fixed) if not one]
    # What was fixed for the export is read as it is now: those buffers are the arguments' own
    # memory.
    tensors = [(f"argument{at}", at) for at, one in enumerate(fixed) if one]

    def run(*given: Any) -> Any:
        for name, at in tensors:
            if getattr(divided, name, None) is not None and getattr(divided, name).data_ptr() != given[at].data_ptr():
                return graph(*given)  # other parameters than those that the parts were made of
        with _casting([(kind, None) for kind, _dtype in _casts()]):  # its casts are operations
            made = divided(*[given[at] for at in rest])
        return tuple(made) if isinstance(made, (list, tuple)) else (made,)

    return run


class _Part(torch.nn.Module):
    """A part of a graph, which is compiled when it is first called."""

    def __init__(self, part: torch.fx.GraphModule) -> None:
        super().__init__()
        self.part, self.graph = part, _Graph(part)
        output = next(n for n in part.graph.nodes if n.op == "output")
        self.single = not isinstance(output.args[0], (list, tuple))

    def forward(self, *args: Any) -> Any:
        made = self.graph(*args)
        return made[0] if self.single and isinstance(made, (list, tuple)) else made


if "accrt" not in torch._dynamo.list_backends():  # an installed package says it to torch by itself
    torch._dynamo.register_backend(name="accrt")(backend)
