"""A function of a bundle that JAX traces, compiles, batches and differentiates."""
from __future__ import annotations

import ast
import collections
import functools
from typing import Any, Mapping, Optional, Sequence

import jax
import numpy as np
from jax import numpy as jnp

from .. import _backward, _dimensions, _ffi
from .._library import filled, lib, never_raises, not_copied
from ..bundle import Bundle
from ..program import Program
from ..trust import apply as apply_trust
from . import _calls, _types


class Function:
    """A function of a bundle as one of JAX's. Made by `accrt.jax.function`, and called with arrays
    and with numbers for its scalars, by place or by name.

    Gives its results, then the new values of inputs that it writes: one array, a tuple of several,
    or None. Threads may call it at once.

    Attributes:
        signature (accrt.Signature): of the bundle's function.
    """

    def __init__(self, bundle: Any, function: str, *, backward: Optional[str] = None, rows: str = "") -> None:
        program = bundle if isinstance(bundle, Program) else None
        if program is not None:
            bundle = program.bundle
        elif not isinstance(bundle, Bundle):
            bundle = Bundle(bundle)
        apply_trust(bundle.instance)
        self.signature = bundle.signature(function)
        self.__name__, self.__doc__ = function, self.signature.doc or f"{function!r} of {bundle.info['name']!r}"
        self._where = f"{function!r} of {bundle.info['name']!r}"
        self._scalars: dict[str, str] = {}  # the symbol that each binds
        self._symbols = {s.name: s for s in bundle.symbols}
        #: Symbols that a session fixes have their maximum there.
        self._fixed = {s.name: s.maximum for s in bundle.symbols if s.symbol_class == "session"}
        self._refuse(bundle)
        self._inputs = list(self.signature.inputs)
        self._types = {a.name: _types.parsed(f"{self._where}: {a.name}", a.type) for a in self._inputs if a.kind != "scalar"}
        self._results = [(a.name, _types.parsed(f"{self._where}: result {a.name}", a.type)) for a in self.signature.results]
        self._refuse_unbound()
        self._rows = rows
        if rows:
            self._check_rows()
        kinds = [_calls.SCALAR if a.kind == "scalar" else _calls.READ if a.kind == "read" else _calls.WRITTEN for a in self._inputs]
        self._written = [a.name for a, kind in zip(self._inputs, kinds) if kind == _calls.WRITTEN]
        self._changed = [a.name for a in self._inputs if a.kind == "read_write"]
        self._backward = _Backward(self, Function(program or bundle, backward)) if backward is not None else None
        self._number = _calls.add(bundle, program, function, self._where, kinds)
        self._call = jax.custom_vjp(self._primal, nondiff_argnums=(0,))
        self._call.defvjp(self._forward, self._reverse, symbolic_zeros=True)
        self._batched = functools.lru_cache(maxsize=64)(self._with_rows)

    __reduce_ex__ = not_copied

    def __copy__(self) -> Function:
        return self  # it never changes

    def __deepcopy__(self, memo: Any) -> Function:
        return self

    def _refuse(self, bundle: Bundle) -> None:
        if self.signature.internal or self.signature.prepare:
            raise ValueError(f"{self._where}: it is a function of the bundle's own")
        if bundle.info["state_count"]:
            raise ValueError(f"{self._where}: the bundle has states, which JAX's functions cannot have: make what is kept inputs and results")
        index = bundle.function_names(internal=True).index(self.signature.name)
        symbols = bundle.symbols
        for argument in (*self.signature.inputs, *self.signature.results):
            raw = filled(_ffi.accrt_argument_info, lib.accrt_bundle_argument, bundle.handle, index, argument.index)
            if raw.alias_kind == _ffi.ACCRT_ALIAS_MUST:
                raise ValueError(f"{self._where}: its result {argument.name} shares the memory of an input, which an array of JAX's may not")
            if argument.kind == "scalar":
                self._scalars[argument.name] = symbols[raw.symbol].name

    def _refuse_unbound(self) -> None:
        bound = {*self._fixed, *self._scalars.values(), *(d.id for t in self._types.values() for d in t.dims if isinstance(d, ast.Name))}
        for name, type_ in self._results:
            for symbol in sorted(set().union(*map(_dimensions.names_of, type_.dims)) - bound):
                raise ValueError(f"{self._where}: result {name} is {type_.text}, and no input binds {symbol}")

    def _check_rows(self) -> None:
        """The symbol is a first dimension, and nothing else."""
        everything = [*self._types.items(), *self._results]
        leading = [name for name, t in everything if _leads(t, self._rows)]
        others = [name for name, t in everything for d in t.dims[_leads(t, self._rows):] if self._rows in _dimensions.names_of(d)]
        if not leading or others or self._rows in (*self._scalars.values(), *self._fixed):
            raise ValueError(f"{self._where}: rows is {self._rows!r}, expected a symbol that is the first dimension of arguments, and nothing else")

    # -- a call

    def __call__(self, *given: Any, **named: Any) -> Any:
        values = self._by_place(given, named)
        scalars, tensors, mask = [], [], 0
        for at, (argument, value) in enumerate(zip(self._inputs, values)):
            if value is None:
                if not argument.optional:
                    raise TypeError(f"{self._where}: {argument.name} is missing; it is {self.signature}")
                continue
            mask |= 1 << at
            if argument.kind == "scalar":
                scalars.append(self._number_of(argument.name, value))
            else:
                tensors.append(value)
        _types.need_wide(self._where, [*self._types.values(), *(t for _n, t in self._results)])
        out = self._call((mask, tuple(scalars)), *map(jnp.asarray, tensors))
        dropped = [len(self._results) + at for at, name in enumerate(n for n in self._written if self._is_given(n, mask)) if name not in self._changed]
        made = [one for at, one in enumerate(out) if at not in dropped]
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def _by_place(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        if len(given) > len(self._inputs):
            raise TypeError(f"{self._where}: {len(given)} arguments, and it takes {len(self._inputs)}; it is {self.signature}")
        values = [*given, *[None] * (len(self._inputs) - len(given))]
        names = [argument.name for argument in self._inputs]
        for name, value in named.items():
            if name not in names or names.index(name) < len(given):
                raise TypeError(f"{self._where}: argument {name!r} is {'given twice' if name in names else 'not one of its own'}; it is {self.signature}")
            values[names.index(name)] = value
        return values

    def _number_of(self, name: str, value: Any) -> int:
        if isinstance(value, jax.core.Tracer):
            raise TypeError(f"{self._where}: {name} is a scalar, on which shapes depend: inside of jax.jit name it in static_argnames")
        try:
            number = int(value.__index__())
        except (AttributeError, TypeError):
            raise TypeError(f"{self._where}: {name} is a scalar, and {value!r:.40} is no whole number") from None
        if not -(1 << 63) <= number < 1 << 63:
            raise OverflowError(f"{self._where}: {name} is {number}, which does not fit in 64 bits")
        return number

    def _is_given(self, name: str, mask: int) -> bool:
        return bool(mask >> next(at for at, a in enumerate(self._inputs) if a.name == name) & 1)

    def _tensor_names(self, mask: int) -> list[str]:
        return [a.name for at, a in enumerate(self._inputs) if a.kind != "scalar" and mask >> at & 1]

    def _shapes(self, static: tuple[int, tuple[int, ...]], tensors: Sequence[Any]) -> list[Any]:
        """What XLA makes the results with; what is given is checked."""
        mask = static[0]
        names = self._tensor_names(mask)
        present = [bool(mask >> at & 1) for at in range(len(self._inputs))]
        # what only an optional input binds is 0 without it
        symbols: dict[str, Any] = collections.defaultdict(int, self._fixed)
        symbols.update({self._scalars[name]: value for name, value in self._scalar_values(static).items()})
        _dimensions.bind(self._where, [(name, self._types[name]) for name in names], tensors, symbols, present)
        for name, value in symbols.items():
            known = self._symbols.get(name)
            if known is not None and isinstance(value, int) and value > known.maximum:
                raise ValueError(f"{self._where}: {name} is {value}, and the bundle's limit is {known.maximum}")
            if known is not None and isinstance(value, int) and value < min(known.minimum, 0):
                raise ValueError(f"{self._where}: {name} is {value}, expected a number from {known.minimum} on")
        results = [(t.dtype, [_dimensions.size_of(d, symbols, present) for d in t.dims]) for _n, t in self._results]
        written = [(tensor.dtype, tensor.shape) for name, tensor in zip(names, tensors) if name in self._written]
        return [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in (*results, *written)]

    def _plain(self, static: tuple[int, tuple[int, ...]], *tensors: Any) -> tuple[Any, ...]:
        mask, scalars = static
        made = self._shapes(static, tensors)
        written = [at for at, name in enumerate(self._tensor_names(mask)) if name in self._written]
        aliases = {at: len(self._results) + k for k, at in enumerate(written)}
        call = jax.ffi.ffi_call(_calls.TARGET, made, vmap_method="sequential", input_output_aliases=aliases)
        return tuple(call(*tensors, accrt=np.array([self._number, mask, *scalars], np.int64)))

    def _primal(self, static: tuple[int, tuple[int, ...]], *tensors: Any) -> tuple[Any, ...]:
        return self._batched(static)(*tensors) if self._rows else self._plain(static, *tensors)

    # -- vmap

    def _with_rows(self, static: tuple[int, tuple[int, ...]]) -> Any:
        """The function with a batching rule: one call for the whole batch, where that can be."""
        names = self._tensor_names(static[0])

        def plain(*tensors: Any) -> tuple[Any, ...]:
            return self._plain(static, *tensors)

        whole = jax.custom_batching.custom_vmap(plain)

        def rule(count: int, batched: Sequence[bool], *tensors: Any) -> Any:
            dims = [0 if is_batched else None for is_batched in batched]
            folds = [_leads(self._types[name], self._rows) for name in names]
            rows = next((t.shape[int(b)] for t, b, f in zip(tensors, batched, folds) if f), 0)
            fits = all(_leads(t, self._rows) for _n, t in self._results) and not self._written
            fits = fits and count * rows <= self._symbols[self._rows].maximum
            if not fits or any(b and not f for b, f in zip(batched, folds)):
                out = jax.vmap(plain, in_axes=dims, axis_size=count)(*tensors)
            else:
                # what has rows of its own for each element, as rows of one call
                flat = [_folded(t, b, count) if f else t for t, b, f in zip(tensors, batched, folds)]
                out = tuple(one.reshape(count, rows, *one.shape[1:]) for one in whole(*flat))
            return out, tuple(True for _ in out)

        whole.def_vmap(rule)
        return whole

    # -- gradients

    def _forward(self, static: tuple[int, tuple[int, ...]], *given: Any) -> tuple[Any, Any]:
        names = self._tensor_names(static[0])
        if self._backward is None:
            raise ValueError(f"{self._where} has no backward: name the bundle's function that is it, as backward=")
        for name, one in zip(names, given):
            if one.perturbed and name not in self._backward.gives:
                raise ValueError(f"{self._where}: its backward {self._backward.name} gives no grad_{name}: stop the gradient with "
                                 f"jax.lax.stop_gradient({name})")
        tensors = [one.value for one in given]
        results = self._call(static, *tensors)  # a gradient of the gradient finds the rule again
        return results, self._backward.kept(dict(zip(names, tensors)), results)

    def _reverse(self, static: tuple[int, tuple[int, ...]], kept: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
        assert self._backward is not None  # _forward has refused
        found = self._backward.run(self._scalar_values(static), kept, grads)
        return tuple(found.get(name) for name in self._tensor_names(static[0]))

    def _scalar_values(self, static: tuple[int, tuple[int, ...]]) -> dict[str, int]:
        given = iter(static[1])
        return {a.name: next(given) for at, a in enumerate(self._inputs) if a.kind == "scalar" and static[0] >> at & 1}

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.jax.Function {self.signature}>"


class _Backward:
    """What a backward function takes, from where, and what it gives: all by name. `grad_y` is the
    gradient of the result y, other names are the forward function's inputs and results; its result
    `grad_x` is the gradient of the input x."""

    def __init__(self, forward: Function, backward: Function) -> None:
        self.name, self._backward = repr(backward.__name__), backward
        if forward._written or backward._written:
            raise ValueError(f"{forward._where} and its backward {self.name}: one that writes an input has no gradient")
        results = dict(forward._results)
        self._results = list(results)
        self._sources = _backward.sources(backward._where, [a.name for a in backward._inputs], forward.__name__, [a.name for a in forward._inputs], results)
        self.gives = _backward.given(backward._where, [name for name, _t in backward._results], forward.__name__, forward._types)
        self._taken = [name for source, name in self._sources if source == "grad"]
        for name in self._taken:
            self._refuse_numbers(name, results[name])
        for name in self.gives:
            self._refuse_numbers(name, forward._types[name])

    def _refuse_numbers(self, name: str, type_: Any) -> None:
        if not jnp.issubdtype(type_.dtype, np.inexact):
            raise ValueError(f"backward {self.name}: {name} is {type_.text}, which has no gradient")

    def kept(self, inputs: Mapping[str, Any], results: Sequence[Any]) -> Any:
        """The arrays that a backward needs, by source; and what makes a gradient that is zero."""
        made = dict(zip(self._results, results))
        return ({name: inputs[name] for source, name in self._sources if source == "input" and name in inputs},
                {name: made[name] for source, name in self._sources if source == "result"})

    def run(self, scalars: Mapping[str, int], kept: Any, grads: Sequence[Any]) -> dict[str, Any]:
        inputs, results = kept
        for name, grad in zip(self._results, grads):
            if name not in self._taken and jnp.issubdtype(grad.dtype, np.inexact) and not isinstance(grad, _ZERO):
                raise ValueError(f"backward {self.name} takes no grad_{name}: stop the gradient of this result with jax.lax.stop_gradient({name})")
        by_name = dict(zip(self._results, map(_whole, grads)))
        places = {"grad": by_name, "input": {**scalars, **inputs}, "result": results}
        made = self._backward(*[places[source].get(name) for source, name in self._sources])
        return dict(zip(self.gives, made if isinstance(made, tuple) else (made,)))


#: What JAX gives in place of a gradient that it knows to be zero.
_ZERO = getattr(jax.custom_derivatives, "SymbolicZero", ())


def _whole(grad: Any) -> Any:
    """A gradient as an array, also one that JAX knows to be zero."""
    return jnp.zeros(grad.shape, grad.dtype) if isinstance(grad, _ZERO) else grad


def _leads(type_: _dimensions.Type, symbol: str) -> bool:
    """Whether the symbol is the first dimension."""
    return bool(type_.dims) and isinstance(type_.dims[0], ast.Name) and type_.dims[0].id == symbol


def _folded(tensor: Any, is_batched: bool, count: int) -> Any:
    """All elements' rows, one after the other."""
    if not is_batched:
        tensor = jnp.broadcast_to(tensor, (count, *tensor.shape))
    return tensor.reshape(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])


def function(bundle: Any, function: str, *, backward: Optional[str] = None, rows: str = "") -> Function:
    """Makes a function of a bundle one of JAX's: under jax.jit, jax.vmap and jax.grad, on the host
    and on CUDA.

    Args:
        bundle: a path or an accrt.Bundle, of which a program is made on each device when the
            function is first called there; or an accrt.Program, for its device alone.
        function: its name. Its inputs are the arguments, in order: arrays, and numbers for scalars,
            on which results' shapes may depend (static_argnames of jax.jit).
        backward: the function that is its backward: it takes `grad_y` for a result y, and inputs
            and results of the forward function by their names, and gives `grad_x` for an input x.
            Without it, a gradient through the function is an error that says so.
        rows: the symbol of first dimensions, if rows do not depend on each other: jax.vmap then
            makes one call with more rows. Without it, it makes one call for each element.
    Returns:
        what is called, and given to jax.jit and the others. What it stands on stays until the
            process ends.
    Raises:
        ValueError: the function cannot be one of JAX's. ImportError: there is no JAX, or no C part.
    """
    return Function(bundle, function, backward=backward, rows=rows)


__all__ = ["Function", "function"]
