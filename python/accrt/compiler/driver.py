"""The compiler's entry point: all passes in order, from a module to a bundle."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from .. import bundle_writer as bw
from ..errors import need_folder
from . import arguments, passes, progress
from .bufferize import Buffers, bufferize
from .cuda import nvcc
from .emit import Emitter, Version, used_kernels
from .ir import Function, IRError, Module
from .kernels import image, prebuilt
from .kernels.kerneldef import KernelDef
from .plan import Plan, plan

HOST_TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64")
CUDA_TARGETS = tuple(nvcc.TARGETS)
DEFAULT_TARGETS = HOST_TARGETS + CUDA_TARGETS


def available_targets(wanted: Sequence[str] = DEFAULT_TARGETS) -> List[str]:
    """Those of the targets that can be built here: for hosts with a C compiler, for CUDA with nvcc
    or NVRTC. "cuda" stands for all of CUDA's, "hosts" for all of hosts, "host" for this machine's
    own."""
    names = _expanded(wanted)
    good = image.available_targets()[0] + (nvcc.available_targets()[0] if set(names) & set(CUDA_TARGETS) else [])
    return [name for name in names if name in good]


def default_targets() -> List[str]:
    """All that can be built here, or else what comes with the package. Raises ImageError: there is
    nothing."""
    found = available_targets() or prebuilt.available_targets(HOST_TARGETS)
    if not found:
        image.need_compiler(own_target())
    return found


def kernels_of(module: Module, family: str) -> List[KernelDef]:
    """The kernels that a module's functions use on a family of targets."""
    return used_kernels(_planned(module, family, True)[1])


def _expanded(targets: Sequence[str]) -> List[str]:
    known = (*DEFAULT_TARGETS, "cuda", "host", "hosts")
    if isinstance(targets, str):
        more = f": [{targets!r}] is one" if targets in known else arguments.near(targets, known)
        raise image.ImageError(f"targets is {targets!r}, a str, expected a list of names{more}")
    if not hasattr(targets, "__iter__"):
        raise image.ImageError(f"targets is {arguments.described(targets)}, expected a list of names; there are {', '.join(known)}")
    found: List[str] = []
    for name in targets:
        if name not in known:
            near = arguments.near(name, known)
            there = f"{', '.join(DEFAULT_TARGETS)}, cuda (all of CUDA's), host (this machine's) and hosts (all of hosts)"
            raise image.ImageError(f"no target {name!r}" + (f"; there are {there}" if "there are" in near else f"{near} There are {there}"))
        found += CUDA_TARGETS if name == "cuda" else HOST_TARGETS if name == "hosts" else [own_target() if name == "host" else name]
    return list(dict.fromkeys(found))


def own_target() -> str:
    """The best target for this machine's processor, as the library knows it. Raises ImageError:
    there is none."""
    try:
        from ..instance import caps
    except ImportError as problem:
        raise image.ImageError(f"target 'host': the library, which knows this machine, cannot be loaded: {problem}") from problem
    arch = str(caps()["cpu_arch"])
    if arch not in HOST_TARGETS:
        raise image.ImageError(f"target 'host': this machine is {arch or 'unknown'}, and there are {', '.join(HOST_TARGETS)}")
    return arch


def compile_writer(module: Module, targets: Optional[Sequence[str]] = None, target_caps: Any = None) -> bw.BundleWriter:
    """Compiles a module into a bundle that is not yet written. `targets` None: all that can be
    built here; those named are demanded. A function has one version for hosts and one for CUDA;
    where not all targets are demanded by name, a function that no CUDA kernels do has the one for
    hosts alone. `target_caps`: what the readers can do, as BundleWriter takes it; where it says
    what their devices are, these are what is compiled for, and targets that none of them runs are
    an error."""
    _need_module(module)
    demanded = targets is not None
    caps = None if target_caps is None else bw.TargetCaps.of(target_caps)
    names = _for_readers(default_targets() if targets is None else _expanded(targets), caps, demanded)
    if caps is None and not demanded and not set(names) & set(HOST_TARGETS):
        warnings.warn('there is no C compiler, so the bundle is for CUDA alone and runs on no host; targets=["cuda"] says that it shall be', stacklevel=3)
    if demanded and not names:
        raise image.ImageError(f"targets is an empty list; there are {', '.join(DEFAULT_TARGETS)} and cuda, and None is all that can be built here")
    module_targets = {"host": [n for n in names if n in HOST_TARGETS], "cuda": [n for n in names if n in CUDA_TARGETS]}
    versions = []
    for family, wanted in module_targets.items():
        if wanted:
            strict = demanded or family == "host" or not module_targets["host"]
            versions.append(Version(family, wanted, *_planned(module, family, strict, wanted)))
    return Emitter(module, versions, caps).run()


def _for_readers(names: List[str], caps: Optional[bw.TargetCaps], demanded: bool) -> List[str]:
    if caps is None or caps.architectures is None or not names:
        return names
    there = caps.architectures
    good = [name for name in names if any(_runs(name, arch) for archs in there.values() for arch in archs)]
    if not good:
        devices = "; ".join(f"{driver}: {', '.join(archs) or 'no device'}" for driver, archs in there.items())
        raise bw.TargetError(f"no target of {', '.join(names)} is for the devices of target_caps ({devices})")
    return names if demanded else good


def _runs(target: str, arch: str) -> bool:
    """Whether a device of an architecture runs what is made for a target."""
    for prefix in ("x86-64-v", "sm_"):
        if arch.startswith(prefix):
            level = arch[len(prefix) :].rstrip("abf")
            if not (level.isascii() and level.isdigit()):
                return False
            if prefix == "sm_" and target == "ptx":
                return int(level) >= 80
            same_family = prefix == "x86-64-v" or target[len(prefix) : -1] == level[:-1]
            return target.startswith(prefix) and same_family and int(target[len(prefix) :]) <= int(level)
    return target == arch


def _planned(module: Module, family: str, strict: bool, targets: Sequence[str] = ()) -> Tuple[Module, List[Tuple[Buffers, Plan]]]:
    """The module after the family's passes, and its functions planned, callees before callers. Not
    strict: functions that have no kernels, and those that call them, are left out. `targets`: what
    it is compiled for, for choices that do well on some targets alone."""
    with progress.part("functions", family), _without_collections():
        return _planned_functions(module, family, strict, targets)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Nearly all objects that passes make stay until the bundle is made: Python's collector would
    go through them again and again, an eighth of the time of planning."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _planned_functions(module: Module, family: str, strict: bool, targets: Sequence[str]) -> Tuple[Module, List[Tuple[Buffers, Plan]]]:
    count = len(module.functions)
    progress.report(0, count)
    try:
        work = passes.run(module, passes.PIPELINES[family])
    except (IRError, ValueError):
        if strict:
            raise
        return module, []
    work.targets = tuple(targets)
    planned: List[Tuple[Buffers, Plan]] = []
    touched: Dict[str, Mapping[str, str]] = {}
    for function in _callees_first(work):
        if not function.prepare:
            progress.report(sum(not b.function.prepare for b, _ in planned), count, function.name)
        called = [op.attrs["callee"] for op in function.body.walk() if op.name == "accrt.call"]
        if not all(name in touched for name in called):
            continue
        try:
            buffers = bufferize(function, touched, family)
        except (IRError, ValueError):
            if strict:
                raise
            continue
        planned.append((buffers, plan(buffers)))
        touched[function.name] = _touched_states(buffers)
    progress.report(count, count)
    return work, planned


def compile(
    module: Module,
    path: Union[None, str, "os.PathLike[str]"] = None,
    *,
    targets: Optional[Sequence[str]] = None,
    target_caps: Any = None,
    quantize: Optional[Mapping[str, Any]] = None,
    external: Optional[Mapping[str, Any]] = None,
    assets: Optional[Mapping[str, Tuple[bytes, str]]] = None,
    signer: Optional[bw.Signer] = None,
) -> Optional[bytes]:
    """Compiles a module and writes the bundle to `path`, or returns its bytes where no path is
    given. `target_caps`: the JSON of `accx caps` where the bundle will run (a path, say); what that
    cannot do is written in an older way, or is an error here. `quantize`: layouts of plain matrices
    by patterns of their names ({"layers.*": "q4_k"}), as passes.quantize_weights has it.
    `external`: weights that the bundle does not hold, by patterns of their names ({"layers.*":
    "model.safetensors"}), as passes.leave_out has it. `assets`: what comes along, by name: bytes
    and what they are ({"LICENSE": (text, "text/plain")}).

    The bundle is signed by `signer`, or else by the user's own key (accrt.trust.signing_key), which
    is made when there is none: this user's programs then run its machine code, and others refuse it
    until they trust the key. Where no key can be had, it is not signed, and its code runs in this
    process alone."""
    _need_module(module)
    for what, given, example in (("quantize", quantize, '{"layers.*": "q4_k"}'), ("external", external, '{"layers.*": "model.safetensors"}')):
        if given is not None and not isinstance(given, Mapping):
            raise IRError(f"{what} is {arguments.described(given)}, expected a dict by patterns of names, as {example}")
    if signer is not None and not hasattr(signer, "public_key"):
        raise IRError(f"signer is {arguments.described(signer)}, expected an accrt.trust.SigningKey: SigningKey.read(path) gives one")
    if isinstance(path, (str, os.PathLike)):  # said before hours of compiling
        need_folder(path)
    if quantize:
        module, _changed = passes.quantize_weights(module, dict(quantize))
    if external:
        module = passes.leave_out(module, external)
    bundle = compile_writer(module, targets, target_caps)
    for name, (content, media_type) in (assets or {}).items():
        bundle.asset(name, content, media_type=media_type)
    trust, signer = _trust(signer)
    with progress.part("bundle", ""):
        progress.report(0, 1)
        content = bundle.to_bytes(signer) if path is None else bundle.write(path, signer)
        progress.report(1, 1)
    if trust is not None and bundle.code_root is not None:
        trust.trust_code(bundle.code_root)
    return content


def _need_module(module: Any) -> None:
    if not isinstance(module, Module):
        more = f": the module of {module!r} is its .module" if isinstance(module, Function) else ""
        raise IRError(f"{arguments.described(module)} is compiled, expected a Module{more}")


def _trust(signer: Optional[bw.Signer]) -> Tuple[Any, Optional[bw.Signer]]:
    """accrt.trust, where the library can be loaded, and who signs: without one there is a warning
    that says why."""
    try:
        from .. import trust
    except ImportError as problem:
        trust, reason = None, str(problem)
    else:
        own, reason = trust.signer_or_reason() if signer is None else (None, "")
        signer = signer or own
    if signer is None:
        warnings.warn(f"the bundle is not signed, so its machine code runs in this process alone: {reason}", stacklevel=3)
    return trust, signer


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
