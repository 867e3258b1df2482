"""The compiler's front door: all passes in order, from a module to a bundle."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .. import bundle_writer as bw
from . import passes
from .bufferize import Buffers, bufferize
from .emit import Emitter
from .ir import Function, IRError, Module
from .kernels import image
from .plan import Plan, plan

DEFAULT_TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64")


def available_targets(wanted: Sequence[str] = DEFAULT_TARGETS) -> List[str]:
    """Those of the targets that a C compiler here can build for."""
    good, _reasons = image.available_targets()
    return [name for name in wanted if name in good]


def compile_writer(module: Module, targets: Optional[Sequence[str]] = None) -> bw.BundleWriter:
    """Compiles a module into a bundle that is not yet written. `targets` None: all that can be built here; those named are
    demanded."""
    if targets is None:
        targets = available_targets()
        if not targets:
            reasons = "; ".join(image.available_targets()[1].values())
            raise image.ImageError(f"no target can be built for: {reasons}")
    work = passes.run(module)
    planned: List[Tuple[Buffers, Plan]] = []
    touched: Dict[str, Mapping[str, str]] = {}
    for function in _callees_first(work):
        buffers = bufferize(function, touched)
        planned.append((buffers, plan(buffers)))
        touched[function.name] = _touched_states(buffers)
    work.metadata.setdefault("producer", "accrt reference compiler 0.1")
    return Emitter(work, planned, targets).run()


def compile(
    module: Module,
    path: Union[None, str, "os.PathLike[str]"] = None,
    *,
    targets: Optional[Sequence[str]] = None,
) -> Optional[bytes]:
    """Compiles a module and writes the bundle to `path`, or returns its bytes where no path is given."""
    bundle = compile_writer(module, targets)
    if path is None:
        return bundle.to_bytes()
    bundle.write(path)
    return None


def _touched_states(buffers: Buffers) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for command in buffers.commands:
        for access in command.touched():
            if access.storage.kind == "state":
                both = {found.get(access.storage.target, access.mode), access.mode}
                found[access.storage.target] = access.mode if len(both) == 1 else "read_write"
    return found


def _callees_first(module: Module) -> List[Function]:
    """Functions in an order in which each comes after those it calls."""
    done: List[Function] = []

    def visit(function: Function, path: Tuple[str, ...]) -> None:
        if function in done:
            return
        if function.name in path:
            raise IRError(f"function {function.name!r} calls itself, through {' -> '.join(path)}")
        for op in function.body.walk():
            if op.name == "accrt.call":
                visit(module.functions[op.attrs["callee"]], path + (function.name,))
        done.append(function)

    for function in module.functions.values():
        visit(function, ())
    return done
