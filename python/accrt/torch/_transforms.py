"""Gradients of an operator that Python calls: plain ones, torch.func's transforms, forward mode.

Under a transform, Python calls an operator as a torch.autograd.Function, which torch.func knows how
to differentiate and to map; torch refuses what `torch.library.register_autograd` makes there. A
derivative in forward mode has no function in the bundle and is refused: torch's kernels would take
it for zero.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from ._operator import Operator

#: Whether a transform of torch.func is under way.
is_transformed: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", bool)


def _refuse_forward_mode(where: str) -> None:
    raise RuntimeError(f"{where} has no derivative in forward mode (torch.func.jvp, jacfwd, hessian, torch.autograd.forward_ad): take it in reverse, "
                       "by torch.func.vjp, jacrev or backward()")


def _has_tangent(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_tangent(one) for one in value)
    return isinstance(value, torch.Tensor) and value.is_floating_point() and forward_ad.unpack_dual(value).tangent is not None


def watched(operator: "Operator", inner: Callable[..., Any], plan: Optional[Any]) -> Callable[..., Any]:
    """What is called in place of `inner`, torch's own, under a transform and where there are
    forward-mode gradients.

    plan: the operator's _Backward; None: it has none.
    """
    writes = any(kind == "read_write" for _name, kind, *_ in operator.inputs)
    function = None if writes else _function(operator, inner, plan)
    names = [name for name, *_ in operator.inputs] + (["weights"] if operator.weights is not None else [])

    def call(*given: Any, **named: Any) -> Any:
        # A Function says it of what is mapped, too.
        if forward_ad._current_level >= 0 and (function is None or not is_transformed()) and _has_tangent((*given, *named.values())):
            _refuse_forward_mode(operator.where)
        whole = _in_order(names, given, named)
        if function is None or whole is None or not is_transformed() or _is_functionalizing():
            return inner(*given, **named)
        return function.apply(*whole) if operator.weights is None else function.apply(*whole[:-1], *whole[-1])

    return call


def graded(operator: "Operator", call: Callable[..., Any], plan: Optional[Any]) -> Optional[Callable[..., Any]]:
    """What is called where a gradient is wanted and nothing else looks into calls: what
    `torch.library.register_autograd` does, without the dispatcher in between. None: it has to be
    torch's.

    call: the operator, which leaves out gradients where they are off.
    """
    if plan is None or operator.weights is not None:
        return None
    names = [name for name, *_ in operator.inputs]

    # Without setup_context: torch binds arguments by a signature there, as slow as all the rest.
    def forward(ctx: Any, *given: Any) -> Any:
        made = call(*given)
        plan.save(ctx, given, made if isinstance(made, tuple) else (made,))
        return made

    def backward(ctx: Any, *grads: Any) -> Any:
        found = plan.run(ctx, grads)
        return tuple([found.get(name) for name in names])

    return _class("Graded", operator, forward=forward, backward=backward).apply


def _class(word: str, operator: "Operator", **methods: Callable[..., Any]) -> Any:
    name = "_".join([word, *operator.name.split("::")])
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in methods.items()})


def _in_order(names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> Optional[tuple[Any, ...]]:
    """All arguments; None: torch says what is wrong with them."""
    if len(given) > len(names) or set(named) & set(names[:len(given)]) or not set(named) <= set(names):
        return None
    rest = names[len(given):]
    if any(name not in named for name in rest):
        return None
    return (*given, *(named[name] for name in rest))


def _is_functionalizing() -> bool:
    """Whether the next transform is torch.func.functionalize, which maps no Function."""
    functorch = torch._C._functorch
    return is_transformed() and functorch.peek_interpreter_stack().key() == functorch.TransformType.Functionalize


def _function(operator: "Operator", inner: Callable[..., Any], plan: Optional[Any]) -> Any:
    count, weighted = len(operator.inputs), operator.weights is not None

    def grouped(given: Sequence[Any]) -> tuple[Any, ...]:
        """As the operator takes them: its weights are a list."""
        return (*given[:count], list(given[count:])) if weighted else tuple(given)

    def forward(*given: Any) -> Any:
        return inner(*grouped(given))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if plan is not None:
            plan.save(ctx, grouped(inputs), output if isinstance(output, tuple) else (output,))

    def backward(ctx: Any, *grads: Any) -> Any:
        if plan is None:
            operator.refuse_backward()
        found = plan.run(ctx, grads)
        weights = operator.weights.names if weighted else ()
        return tuple(found.get(name) for name in (*(name for name, *_ in operator.inputs), *weights))

    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return operator.vmap(info, grouped(in_dims), *grouped(given))

    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_forward_mode(operator.where)

    return _class("Transformed", operator, forward=forward, setup_context=setup_context, backward=backward, vmap=vmap, jvp=jvp)
