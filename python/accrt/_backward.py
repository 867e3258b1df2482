"""Names of a backward function's arguments: `grad_y` is the gradient of the result y, other names
are the forward function's inputs and results; its result `grad_x` is the gradient of the input x.
Not for users: accrt.torch and accrt.jax stand on it."""
from __future__ import annotations

from typing import Container, Iterable


def sources(where: str, takes: Iterable[str], forward: str, inputs: Container[str], results: Container[str]) -> list[tuple[str, str]]:
    """Where each argument comes from: ("grad", a result's name), ("input", name) or ("result",
    name). where, forward: the two functions, as messages name them. ValueError: a name is none of
    these."""
    found = []
    for name in takes:
        if name.startswith("grad_") and name[5:] in results:
            found.append(("grad", name[5:]))
        elif name in inputs:
            found.append(("input", name))
        elif name in results:
            found.append(("result", name))
        else:
            raise ValueError(f"{where} takes {name!r}, which is no input or result of {forward!r}, and no 'grad_' of a result")
    return found


def given(where: str, gives: Iterable[str], forward: str, inputs: Container[str]) -> list[str]:
    """The inputs whose gradients the results are. ValueError: a result is no gradient of one."""
    found = []
    for name in gives:
        if not name.startswith("grad_") or name[5:] not in inputs:
            raise ValueError(f"{where} gives {name!r}, which is no 'grad_' of an input of {forward!r}")
        found.append(name[5:])
    return found
