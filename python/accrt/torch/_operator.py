"""A function of a bundle as a PyTorch operator."""
from __future__ import annotations

import ast
import collections
import contextlib
import functools
import os
import re
import threading
import time
from typing import Any, Mapping, Optional, Sequence

import torch

from .. import _backward, _ffi
from .._library import describe, filled, lib
from ..bundle import Bundle
from ..program import Program
from ..session import Session
from . import _rules, _shapes, _shim
from ._cuda import _maker, OnGpu, spec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED = {"self", "out", "int", "float", "bool", "str", "Tensor", "None", "True", "False"}
_ALIGNED = 16  # bytes: of an argument's address
_SHAPES = 4096  # sets of shapes that an operator remembers
NOT_PICKLED = ("an accrt.torch.Module cannot be pickled: save its state_dict(), make it anew of its bundle by accrt.torch.Module(path), "
               "and load_state_dict()")
# with their libraries, for as long as the process: graphs name operators
_registered: dict[str, "Operator"] = {}
_registering = threading.RLock()


class Runner:
    """A program, and sessions of it for as many threads as call at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._idle: list[Session] = []

    def __call__(self, function: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        try:
            session = self._idle.pop()
        except IndexError:
            session = self.program.session()
        out = tuple(outputs)
        session.function(function)(*inputs, **({"out": out if len(out) > 1 else out[0]} if out else {}))
        self._idle.append(session)  # not after a failure: the next call begins anew


class Programs:
    """A bundle's programs, one for each device that its functions are called on, made when the
    first call needs them.

    source: a path, a Bundle, or the one Program that there is.
    """

    def __init__(self, source: Any) -> None:
        self._making = threading.RLock()
        self._gpus: dict[int, OnGpu] = {}
        self._host: Optional[Runner] = None
        self._given = source if isinstance(source, Program) else None
        self.bundle = source.bundle if isinstance(source, Program) else source if isinstance(source, Bundle) else Bundle(source)
        if not torch.cuda.is_available():
            self.host()  # what is wrong with it is said at once

    def __deepcopy__(self, memo: Any) -> "Programs":
        return self  # a copied module calls the same

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(NOT_PICKLED)

    def _program(self, kind: int, index: int) -> Program:
        """On DLPack's device."""
        if self._given is None:
            return Program(self.bundle, self.bundle.instance.device("host" if kind == 1 else f"cuda:{index}"))
        if self._given.device.info.dlpack_device != (kind, index):
            raise ValueError(f"the program is on {self._given.device.name}, and was called with tensors on {'the host' if kind == 1 else f'cuda:{index}'}: "
                             "give the bundle instead, to have one on each device")
        return self._given

    def host(self) -> Runner:
        if self._host is None:
            with self._making:
                self._host = self._host or Runner(self._program(1, 0))
        return self._host

    def gpu(self, index: int) -> OnGpu:
        found = self._gpus.get(index)
        if found is None:
            with self._making:
                found = self._gpus[index] = self._gpus.get(index) or OnGpu(self._program(2, index), index)
        return found


class Operator:
    """What is registered for one function. Not for users: `operator` gives torch's own object."""

    def __init__(self, programs: Programs, function: str, name: str, weights: Optional[Any] = None) -> None:
        bundle = programs.bundle
        self.programs, self.function, self.name, self.weights = programs, function, name, weights
        self.signature = bundle.signature(function)
        self.where = f"{name} (function {function!r} of {bundle.info['name']!r})"
        self.scalars: dict[str, str] = {}  # the symbol that each binds
        self._refuse(bundle)
        self.inputs = [self._input(a) for a in self.signature.inputs]
        self.results = [(a.name, _shapes.parsed(f"{self.where}: result {a.name}", a.type)) for a in self.signature.results]
        self.tensors = [(n, t) for n, kind, t, _o in self.inputs if kind != "scalar"]
        #: Symbols that a session fixes have their maximum there.
        self.fixed = {s.name: s.maximum for s in bundle.symbols if s.symbol_class == "session"}
        self._refuse_unbound()
        self.schema = self._schema()
        #: Nothing is written but results, so that tensors go in as they are.
        self.only_reads = all(kind in ("read", "scalar") for _n, kind, _t, _o in self.inputs)
        self._first = next((at for at, (_n, kind, _t, optional) in enumerate(self.inputs) if kind != "scalar" and not optional), -1)
        # of results, by the types and shapes of arguments on the host
        self._sizes: dict[Any, Any] = {}
        self._specs: dict[Any, Any] = {}  # of results, by the GPU and shapes of arguments
        self._quick: Any = None  # accrt._native.Quick of the first GPU that it was called on
        self._quick_of: Optional[OnGpu] = None
        self._kernels: Optional[_shim.Kernels] = None
        self.library: Any = None
        self.overload: Any = None

    def _refuse(self, bundle: Bundle) -> None:
        if self.signature.internal or self.signature.prepare:
            raise ValueError(f"{self.where}: it is a function of the bundle's own")
        if bundle.info["state_count"]:
            raise ValueError(f"{self.where}: the bundle has states, which an operator cannot have: make what is kept inputs and results")
        index, symbols = bundle.function_names(internal=True).index(self.function), bundle.symbols
        for argument in (*self.signature.inputs, *self.signature.results):
            raw = filled(_ffi.accrt_argument_info, lib.accrt_bundle_argument, bundle.handle, index, argument.index)
            if raw.alias_kind == _ffi.ACCRT_ALIAS_MUST:
                raise ValueError(f"{self.where}: its result {argument.name} shares the memory of an input, which an operator's may not")
            if argument.kind == "scalar":
                self.scalars[argument.name] = symbols[raw.symbol].name
        for argument in self.signature.inputs:
            if not _NAME.match(argument.name) or argument.name in _RESERVED:
                raise ValueError(f"{self.where}: an operator's argument cannot be named {argument.name!r}")

    def _refuse_unbound(self) -> None:
        bound = {*self.fixed, *self.scalars.values(), *(d.id for _n, t in self.tensors for d in t.dims if isinstance(d, ast.Name))}
        for name, type_ in self.results:
            for part in (part for dim in type_.dims if not isinstance(dim, int) for part in ast.walk(dim)):
                called = isinstance(part, ast.Name) and part.id.lstrip("_") in ("ceildiv", "min", "max", "select", "not", "present")
                if isinstance(part, ast.Name) and part.id not in bound and not called:
                    raise ValueError(f"{self.where}: result {name} is {type_.text}, and no input binds {part.id}")

    def _input(self, argument: Any) -> tuple[str, str, Any, bool]:
        if argument.kind == "scalar":
            return argument.name, "scalar", None, argument.optional
        type_ = _shapes.parsed(f"{self.where}: {argument.name}", argument.type)
        return argument.name, argument.kind, type_._replace(kind=argument.kind), argument.optional

    def _schema(self) -> str:
        parts, marks = [], iter("abcdefghijklmnopqrstuvwxyz" * 4)
        for name, kind, _type, optional in self.inputs:
            word = "SymInt" if kind == "scalar" else f"Tensor({next(marks)}!)" if kind == "read_write" else "Tensor"
            parts.append(f"{word}{'?' if optional else ''} {name}")
        if self.weights is not None:
            parts.append("Tensor[] weights")
        results = ", ".join("Tensor" for _ in self.results)
        return f"{self.name.partition('::')[2]}({', '.join(parts)}) -> {f'({results})' if len(self.results) != 1 else results}"

    # -- what torch calls

    def sizes(self, given: Sequence[Any]) -> list[list[Any]]:
        """Shapes of the results; what is given is checked."""
        for (name, _kind, _type, optional), value in zip(self.inputs, given):
            if value is None and not optional:  # which torch takes for a tensor
                raise TypeError(f"{self.where}: {name} is None, and is not optional")
        # what only an optional input binds is 0 without it
        symbols: dict[str, Any] = collections.defaultdict(int, self.fixed)
        symbols.update({self.scalars[n]: value for (n, kind, _t, _o), value in zip(self.inputs, given) if kind == "scalar"})
        tensors = [value for (_n, kind, _t, _o), value in zip(self.inputs, given) if kind != "scalar"]
        _shapes.bind(self.where, self.tensors, tensors, symbols)
        present = [value is not None for value in given]
        return [[_shapes.size_of(node, symbols, present) for node in t.dims] for _name, t in self.results]

    def _seen_sizes(self, given: Sequence[Any]) -> list[list[Any]]:
        """The same of host tensors, without the checks where types and shapes were right before."""
        key = tuple((v.dtype, v.shape) if isinstance(v, torch.Tensor) else v for v in given)
        found = self._sizes.get(key)
        if found is None:
            found = self.sizes(given)
            if len(self._sizes) >= _SHAPES:
                self._sizes.clear()
            self._sizes[key] = found
        return found

    def fake(self, *given: Any) -> Any:
        if self.weights is not None:
            self.weights.check(self.where, given[-1])
        tensors = [t for t in (*given[:len(self.inputs)], *(given[-1] if self.weights is not None else ())) if isinstance(t, torch.Tensor)]
        given = given[:len(self.inputs)]
        device = tensors[0].device if tensors else torch.device("cpu")
        if any(t.device != device for t in tensors):
            # torch gives meta tensors among others to this, and takes what it makes for the result
            raise ValueError(f"{self.where}: its tensors are on {device} and on {next(t.device for t in tensors if t.device != device)}")
        made = [torch.empty(shape, dtype=t.dtype, device=device) for (_n, t), shape in zip(self.results, self.sizes(given))]
        return _one(made)

    def run(self, *given: Any) -> Any:
        """The kernel for CPU tensors: on their own memory, and done when it returns."""
        weights = given[-1] if self.weights is not None else None
        if self.weights is not None:
            self.weights.check(self.where, weights)
        given = given[:len(self.inputs)]
        outputs = [torch.empty(shape, dtype=t.dtype) for (_n, t), shape in zip(self.results, self._seen_sizes(given))]
        if self.only_reads and all(_lies_well(v) for v in given):
            passed, back = list(given), []
        else:
            passed, back = self._passed(given, torch.device("cpu"))
        runner, begin = self.programs.host(), time.perf_counter()
        if self.weights is not None:
            self.weights.run(runner.program, weights, lambda: runner(self.function, passed, outputs))
        else:
            runner(self.function, passed, outputs)
            if self._kernels is not None:
                self._kernels.learn(runner.program, given, outputs, time.perf_counter() - begin)
        self._write_back(back)
        return _one(outputs)

    def run_on_gpu(self, *given: Any) -> Any:
        """The kernel for CUDA tensors: enqueued on torch's current stream when it returns, as
        torch's own are."""
        quick = self._quick
        if quick is not None:
            made = quick(*given)
            if made is NotImplemented and not all(map(_is_plain, given)) and not torch.cuda.is_current_stream_capturing():
                made = quick(*(_plain(v, False) if isinstance(v, torch.Tensor) else v for v in given))
            if made is not NotImplemented:
                return made
        weights = given[-1] if self.weights is not None else None
        if self.weights is not None:
            self.weights.check(self.where, weights)
            given = given[:len(self.inputs)]
        index = self._index(given)
        runner = self.programs.gpu(index)
        outputs, specs = self._outputs(given, index)
        if self.only_reads:
            device, back = _gpu(index), []

            def call() -> None:
                runner(self.function, (*given, *outputs), lambda: (*self._checked(given, device), *outputs))
        else:
            self.sizes(given)
            passed, back = self._passed(given, _gpu(index))

            def call() -> None:
                runner(self.function, (*passed, *outputs))
        if weights is not None:
            self.weights.run(runner.program, weights, call, index)
        else:
            call()
            if self._kernels is not None:
                self._kernels.learn_on_gpu(runner, given, outputs)
            self._learn(runner, given, specs)
        self._write_back(back)
        return _one(outputs)

    def _learn(self, runner: OnGpu, given: tuple[Any, ...], specs: tuple[Any, ...]) -> None:
        """The next call on this GPU with these shapes is one step."""
        if not self.only_reads:
            return
        if self._quick is None and self._quick_of is None:
            self._quick_of, self._quick = runner, runner.quick(self.function, len(self.inputs))
        if self._quick is not None and self._quick_of is runner:
            self._quick.learn(given, specs)

    def _index(self, given: Sequence[Any]) -> int:
        """Of the GPU: that of the first tensor. -1 of a tensor elsewhere, which _checked
        refuses."""
        first = given[self._first] if self._first >= 0 else next((v for v in given if isinstance(v, torch.Tensor)), None)
        index = first.get_device() if first is not None else torch.cuda.current_device()
        return index if index >= 0 else next(v.get_device() for v in given if isinstance(v, torch.Tensor) and v.is_cuda)

    def _outputs(self, given: Sequence[Any], index: int) -> tuple[list[Any], tuple[Any, ...]]:
        """New results, and what they are made with."""
        key = (index, *[v.shape if isinstance(v, torch.Tensor) else v for v in given])
        specs = self._specs.get(key)
        if specs is None:
            if len(self._specs) >= _SHAPES:
                self._specs.clear()
            specs = self._specs[key] = tuple(spec(shape, t.dtype, index) for (_n, t), shape in zip(self.results, self.sizes(given)))
        with torch.cuda.device(index) if torch._C._cuda_getDevice() != index else contextlib.nullcontext():
            return [_maker()(*args, **(named or {})) for args, named in specs], specs

    def _checked(self, given: Sequence[Any], device: torch.device) -> list[Any]:
        self.sizes(given)
        return self._passed(given, device)[0]

    def _passed(self, given: Sequence[Any], device: torch.device) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """What the function gets: contiguous and aligned; and what was written elsewhere than it
        lies, with where it was."""
        passed, back = [], []
        written = [_shapes.span(v) for (_n, kind, _t, _o), v in zip(self.inputs, given) if kind == "read_write" and v is not None and v.numel()]
        if _shapes.meet(written):
            raise ValueError(f"{self.where}: two arguments that are written share their memory")
        for (name, kind, _type, _optional), value in zip(self.inputs, given):
            if not isinstance(value, torch.Tensor):
                passed.append(value)
                continue
            if value.device != device or value.layout != torch.strided:
                needed = "the host" if device.type == "cpu" else device
                raise ValueError(f"{self.where}: {name} is a {value.layout} tensor on {value.device}, and one on {needed} is needed")
            plain = _plain(value, kind == "donated")
            if kind == "read_write":
                self._may_write(name, value)
                back.append((value, plain))
            elif written and _shapes.meets(_shapes.span(value), written):
                # what is read stays as it was before the call
                plain = plain.clone() if plain.data_ptr() == value.data_ptr() else plain
            passed.append(plain)
        return passed, back

    def _write_back(self, back: Sequence[tuple[Any, Any]]) -> None:
        for value, plain in back:
            if plain.data_ptr() != value.data_ptr():
                value.copy_(plain)
            elif not value.is_inference():
                torch.autograd.graph.increment_version(value)

    def _may_write(self, name: str, value: Any) -> None:
        if value.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{self.where} writes {name}, which requires grad: call it under torch.no_grad()")

    # -- registration

    def register(self, backward: Optional["Operator"]) -> Any:
        name = self.name
        library = self.library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
        library.define(self.schema, tags=_rules.tags())
        self._kernels = _shim.kernels(self, library)
        if self._kernels is None:
            library.impl(name.partition("::")[2], self.run, "CPU")
            library.impl(name.partition("::")[2], self.run_on_gpu, "CUDA")
        torch.library.register_fake(name, self.fake, lib=library)
        plan = None
        writes = any(kind == "read_write" for _n, kind, _t, _o in self.inputs)
        if writes:
            # torch's own way with negated views takes it that an operator returns what it writes
            library.impl(name.partition("::")[2], torch.library.fallthrough_kernel, "Negative")
            _rules.refuse_vmap(self, library)
        else:
            plan = _Backward(self, backward) if backward is not None else None
            self._register_autograd(plan)
            torch.library.register_vmap(name, self.vmap, lib=library)
        _rules.register_autocast(self, library)
        _rules.refuse_layouts(self, library)
        self.overload = getattr(getattr(torch.ops, name.partition("::")[0]), name.partition("::")[2]).default
        _shim.enter(self.overload, not writes, self._kernels, self, plan)
        return self.overload

    def refuse_backward(self, *_ignored: Any) -> None:
        raise RuntimeError(f"{self.where} has no backward: name the bundle's function that is it, as backward=")

    def _register_autograd(self, plan: Optional["_Backward"]) -> None:
        names = [name for name, *_ in self.inputs]
        if plan is None:
            torch.library.register_autograd(self.name, self.refuse_backward, lib=self.library)
            return

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            plan.save(ctx, inputs, output if isinstance(output, tuple) else (output,))

        def run(ctx: Any, *grads: Any) -> Any:
            found = plan.run(ctx, grads)
            lists = [[found.get(name) for name in self.weights.names]] if self.weights is not None else []
            return (*(found.get(name) for name in names), *lists)

        torch.library.register_autograd(self.name, run, setup_context=setup, lib=self.library)

    def vmap(self, info: Any, in_dims: Any, *given: Any) -> Any:
        """One call for each element of the batch: the bundle's function has no dimension for it."""
        def part(value: Any, dim: Any, at: int) -> Any:
            if isinstance(dim, (list, tuple)):
                return [part(v, d, at) for v, d in zip(value, dim)]
            return value if dim is None else value.select(dim, at)

        rows = [self.overload(*[part(v, d, at) for v, d in zip(given, in_dims)]) for at in range(info.batch_size)]
        if not rows:
            return self._of_no_rows(in_dims, given)
        if not self.results:
            return (), ()
        if len(self.results) == 1:
            return torch.stack(rows), 0
        return tuple(torch.stack(column) for column in zip(*rows)), (0,) * len(self.results)

    def _of_no_rows(self, in_dims: Any, given: Sequence[Any]) -> Any:
        """Results of a batch of 0: of the shapes that those of an element have."""
        def part(value: Any, dim: Any) -> Any:
            if isinstance(dim, (list, tuple)):
                return [part(v, d) for v, d in zip(value, dim)]
            return value if dim is None else value.new_empty(value.movedim(dim, 0).shape[1:])

        made = self.fake(*[part(v, d) for v, d in zip(given, in_dims)])
        if isinstance(made, torch.Tensor):
            return made.new_empty((0, *made.shape)), 0
        return tuple(one.new_empty((0, *one.shape)) for one in made or ()), (0,) * len(self.results)


class _Backward:
    """What a backward function takes, from where, and what it gives: all by name. `grad_y` is the
    gradient of the result y, other names are the forward function's inputs and results; its result
    `grad_x` is the gradient of the input x."""

    def __init__(self, forward: Operator, backward: Operator) -> None:
        self.backward = backward
        inputs, results = [name for name, *_ in forward.inputs], [name for name, _t in forward.results]
        weights = forward.weights.names if forward.weights is not None else []
        self.weighted = forward.weights is not None
        takes = _backward.sources(backward.where, [name for name, *_ in backward.inputs], forward.function, inputs, results)
        self.sources = [(source, (inputs if source == "input" else results).index(name)) for source, name in takes]
        self.gives = _backward.given(backward.where, [name for name, _t in backward.results], forward.function, (*inputs, *weights))
        self.without_gradient = [at for at in range(len(results)) if ("grad", at) not in self.sources]

    def save(self, ctx: Any, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        saved, plain = [], []
        for source, at in self.sources:
            value = inputs[at] if source == "input" else results[at] if source == "result" else None
            if isinstance(value, torch.Tensor):
                saved.append(value)
                plain.append(None)
            else:
                plain.append((value,))
        ctx.accrt_count = len(saved)
        ctx.save_for_backward(*saved, *(inputs[-1] if self.weighted else ()))
        ctx.accrt_plain = plain
        # A gradient of these would be lost in silence: torch says that they have none.
        ctx.mark_non_differentiable(*[results[at] for at in self.without_gradient])

    def run(self, ctx: Any, grads: Sequence[Any]) -> Mapping[str, Any]:
        kept, given = ctx.saved_tensors, []
        saved = iter(kept)
        for (source, at), plain in zip(self.sources, ctx.accrt_plain):
            given.append(grads[at] if source == "grad" else next(saved) if plain is None else plain[0])
        made = self.backward.overload(*given, *([list(kept[ctx.accrt_count:])] if self.weighted else ()))
        return dict(zip(self.gives, made if isinstance(made, (tuple, list)) else (made,)))


def _lies_well(value: Any) -> bool:
    """Whether the function takes it as it is, on the host."""
    if type(value) is not torch.Tensor:
        return not isinstance(value, torch.Tensor)
    return value.layout == torch.strided and value.device.type == "cpu" and not value.requires_grad and _lies_whole(value)


def _lies_whole(value: Any) -> bool:
    """Whether a tensor's elements lie one after the other, as they are, from an aligned address."""
    return bool(value.is_contiguous() and value.data_ptr() % _ALIGNED == 0 and not value.is_neg())


def _plain(value: Any, copy: bool) -> Any:
    """The tensor without its history, contiguous; of memory of its own where that may be
    overwritten."""
    value = value.detach().resolve_conj().resolve_neg()
    if copy or value.data_ptr() % _ALIGNED:
        return value.clone(memory_format=torch.contiguous_format)
    return value.contiguous()


def _is_plain(value: Any) -> bool:
    """Whether an argument goes in as it is."""
    return not isinstance(value, torch.Tensor) or _lies_whole(value)


@functools.lru_cache(maxsize=None)
def _gpu(index: int) -> torch.device:
    return torch.device("cuda", index)


def _one(made: list) -> Any:
    return made[0] if len(made) == 1 else tuple(made) if made else None


def register(programs: Programs, function: str, backward: Optional[str], name: str, weights: Optional[Any] = None) -> Any:
    if not isinstance(name, str) or name.count("::") != 1 or not all(_NAME.match(part) for part in name.split("::")):
        raise ValueError(f"name is {name!r}, expected 'namespace::operator'")
    with _registering:
        for wanted in (name, f"{name}_backward")[:1 + (backward is not None)]:
            if wanted in _registered or _is_defined(wanted):
                raise ValueError(f"there is an operator {wanted} already: give another name=")
        reverse = None
        main = Operator(programs, function, name, weights)
        if backward is not None:
            reverse = Operator(programs, backward, f"{name}_backward", weights)
            _Backward(main, reverse)  # refused before anything is registered
            reverse.register(None)
            _registered[reverse.name] = reverse
        made = main.register(reverse)
        _registered[name] = main
        return made


def _is_defined(name: str) -> bool:
    space, _, short = name.partition("::")
    return hasattr(getattr(torch.ops, space), short)


def free_name(name: str) -> str:
    """The name, or with a number behind it if there is such an operator already."""
    with _registering:
        count, found = 1, name
        while any(wanted in _registered or _is_defined(wanted) for wanted in (found, f"{found}_backward")):
            count += 1
            found = f"{name}_{count}"
        return found


def default_name(bundle: Bundle, function: str) -> str:
    base = os.path.splitext(os.path.basename(str(bundle.info["name"])))[0]
    words = [re.sub(r"\W", "_", word) or "accrt" for word in (base, function)]
    return "::".join(f"_{word}" if word[0].isdigit() else word for word in words)


def operator(bundle: Any, function: str, *, backward: Optional[str] = None, name: str = "") -> Any:
    """Makes a function of a bundle a PyTorch operator, for CPU and CUDA tensors.

    Args:
        bundle: a path or an accrt.Bundle, of which a program is made on each device that the
            operator is called on; or an accrt.Program, for its device alone.
        function: its name. Its inputs are the operator's arguments, in order: tensors (those that
            are read_write are mutated), and SymInt for scalars. Results are new tensors.
        backward: the function that is its backward: it takes `grad_y` for a result y, and inputs
            and results of the forward function by their names, and gives `grad_x` for an input x.
            Without it, a backward through the operator is an error that says so.
        name: "namespace::operator"; default: the bundle's name and the function's.
    Returns:
        torch's operator (a torch._ops.OpOverload): call it, export it, compile it. It stays
            registered until the process ends.
    Raises:
        ValueError: the function cannot be an operator, or the name is taken. What accrt.Program
            raises.
    """
    for what, given in (("function", function), ("backward", backward)):
        if not isinstance(given, str) and not (what == "backward" and given is None):
            raise TypeError(f"{what} is {describe(given)}, expected the name of a function of the bundle")
    programs = Programs(bundle)
    return register(programs, function, backward, name or default_name(programs.bundle, function))


__all__ = ["operator"]
