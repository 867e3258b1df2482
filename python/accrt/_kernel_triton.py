"""Kernels of GPUs from Triton functions: compiled ahead of time by Triton's own compiler, which
needs no GPU."""
from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Callable, Sequence

from ._kernel_gpu import _checked_grid, _described, GpuKernel
from ._library import describe
from ._nvrtc import CompileError
from ._waits import apart
from .instance import Instance

_TYPES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bf16": "bf16", "i1": "bool",
          **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)}}
#: What Triton adds behind a function's own parameters, by the number of its metadata that says how
#: large it is.
_HIDDEN = ("global_scratch", "profile_scratch")
_ARCH = re.compile(r"sm_(\d+)[af]?\Z")


def _parameter(where: str, kind: str, is_written: bool | None) -> tuple[str, int]:
    """accrt's name of a type of Triton's, and the bytes that memory is a multiple of."""
    base, _, hint = kind.partition(":")
    pointer = base.startswith("*")
    dtype = _TYPES.get(base.lstrip("*"), "")
    if base.startswith("*k"):
        raise ValueError(f"{where} is {kind!r}, constant memory, which is not known here")
    if hint not in ("", "16") or hint and not pointer or not base.lstrip("*") or not pointer and not dtype:
        raise ValueError(f"{where} is {kind!r}, expected a type of Triton's: '*fp32' for memory ('*fp32:16' where it begins at multiples of 16 "
                         "bytes), 'fp32', 'i32', ... for a number, or a value for a constexpr")
    if not pointer:
        return dtype, 1
    access = "read_write" if is_written is None else "write" if is_written else "read"
    return f"{access} {dtype}".strip(), 16 if hint else 1


def _hidden(metadata: Any, version: str, text: str, entry: str, count: int) -> list[tuple[str, str]]:
    """The parameters that the code has beyond the function's own, all of them NULL. They are what
    the metadata names, or the version is unknown."""
    body = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", text, re.DOTALL)
    have = len(re.findall(r"\.param\b", body[1])) if body else -1
    named = [name for name in _HIDDEN if hasattr(metadata, f"{name}_size")]
    if have != count + len(named):
        raise CompileError(f"Triton {version} is not known here: its kernels have {have - count} hidden parameters, of which accrt knows {len(named)}")
    return [(f"hidden_{name}", "u64") for name in named]


def _unsupported(metadata: Any) -> str:
    for name in _HIDDEN:
        if getattr(metadata, f"{name}_size", 0):
            return f"{getattr(metadata, name + '_size')} bytes of {name.replace('_', ' ')} memory"
    if getattr(metadata, "num_ctas", 1) != 1:
        return "clusters of blocks (num_ctas)"
    return "tensor descriptors" if getattr(metadata, "tensordesc_meta", None) else ""


def _compile(function: Any, types: Mapping[str, str], constants: Mapping[str, Any], arch: str, options: Mapping[str, Any], what: str):
    known = _ARCH.match(arch)
    if not known:
        raise ValueError(f"{what}: target is {arch!r}, expected one as 'sm_90'")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    if "constexprs" not in inspect.signature(ASTSource).parameters:
        raise CompileError(f"{what}: Triton {triton.__version__} is not known here: 3.3 or later is needed")
    names = list(function.arg_names)
    signature = {name: types[name].partition(":")[0] if name in types else "constexpr" for name in names}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind.endswith(":16")}
    source = ASTSource(fn=function, signature=signature, constexprs={(names.index(name),): value for name, value in constants.items()}, attrs=attrs)
    try:
        return apart(lambda: triton.compile(source, target=GPUTarget("cuda", int(known[1]), 32), options=dict(options))), triton.__version__
    except Exception as error:
        raise CompileError(f"{str(error).strip()}\n({what}: Triton {triton.__version__} for {arch})") from error


def from_triton(function: Any, signature: Any, constexprs: Any, grid: Callable | None, num_warps: int, num_stages: int | None, target: Any,
                writes: Sequence[str] | None, options: Any, name: str, instance: Instance | None) -> GpuKernel:
    names = getattr(function, "arg_names", None)
    if not names or not callable(getattr(function, "fn", None)):
        raise TypeError(f"function is {describe(function)}, expected what triton.jit gives")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise CompileError(f"a Triton function needs Triton: {error}") from None
    name = name or function.fn.__name__
    what = f"kernel {name}"
    if not isinstance(signature, Mapping):
        raise TypeError(f"{what}: signature is {describe(signature)}, expected a dict as {{'x': '*fp32', 'n': 'i32', 'BLOCK': 1024}}")
    types = {one: kind for one, kind in signature.items() if isinstance(kind, str) and kind != "constexpr"}
    constants = {**{one: kind for one, kind in signature.items() if not isinstance(kind, str)}, **(constexprs or {})}
    listed = f"{what} takes {', '.join(names)}"
    for one in (*types, *constants, *(writes or ())):
        if one not in names:
            raise TypeError(f"{listed}, and none is named {one!r}")
    missing = [one for one in names if one not in types and one not in constants]
    if missing:
        raise TypeError(f"{listed}, {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} neither a type nor a value")
    types = {one: types[one] for one in names if one in types and one not in constants}
    found = {one: _parameter(f"{what}: {one}", kind, None if writes is None else one in writes) for one, kind in types.items()}
    described, known = _described(name, [(one, kind) for one, (kind, _align) in found.items()], 32 * num_warps, 0, (), False)
    _checked_grid(name, grid)
    more = {"num_warps": num_warps, **({"num_stages": num_stages} if num_stages is not None else {}), **(options or {})}

    def code(arch: str) -> tuple[bytes, str, str, dict[str, Any]]:
        made, version = _compile(function, types, constants, arch, more, what)
        facts = made.metadata
        lacking = _unsupported(facts)
        if lacking:
            raise CompileError(f"{what}: it needs {lacking}, which accrt does not give (Triton {version} for {arch})")
        hidden = _hidden(facts, version, made.asm["ptx"], facts.name, len(known))
        return bytes(made.asm["cubin"]), "cubin", facts.name, {
            "parameters": [*described.parameters, *hidden], "block": (32 * facts.num_warps,),
            "shared_bytes": facts.shared, "cooperative": bool(getattr(facts, "launch_cooperative_grid", False)),
            "overlaps_previous": bool(getattr(facts, "launch_pdl", False))}

    self = GpuKernel(code, described, known, grid, instance, [align for _kind, align in found.values()])
    self._images, self._exact = (target,) if isinstance(target, str) else tuple(target), True
    self._forms = self._images
    for wanted in self._images:
        self.image(wanted)
    return self
