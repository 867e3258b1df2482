"""Compiles modules and compares what they calculate with the float64 reference, through the Python
executor.

With ACCRT_TEST_DEVICE=cuda modules are compiled for the GPU of this machine and run there
(tests/gpu/cuda_exec.py).
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

import accx_exec
import kernel_harness as kh
from accrt.compiler import Interpreter, Module, compile

#: Relative error of one rounding to each type, and how many roundings a short chain of kernels may
#: add up.
EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}


ON_CUDA = os.environ.get("ACCRT_TEST_DEVICE") == "cuda"


def _cuda_exec() -> Any:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "gpu"))
    try:
        import cuda_exec
    finally:
        sys.path.pop(0)
    return cuda_exec


def target() -> str:
    """The best target of this machine that can be built here."""
    return _cuda_exec().driver().arch if ON_CUDA else kh.host_targets()[-1]


def session(running: accx_exec.Program, **symbols: int) -> accx_exec.Session:
    return (_cuda_exec() if ON_CUDA else accx_exec).Session(running, **symbols)


def program(module: Module, on: str = "", seed: int = kh.SEED) -> accx_exec.Program:
    on = on or target()
    return load(compile(module, targets=[on]), on, seed)


def load(data: bytes, on: str, seed: int = kh.SEED) -> accx_exec.Program:
    return _cuda_exec().Program(data, on, seed) if ON_CUDA else accx_exec.Program(data, on, seed)


@functools.lru_cache(maxsize=2)
def runtime_program(data: bytes, variant: str, device: str = "cuda:0" if ON_CUDA else "host") -> Any:
    """The bundle loaded by the runtime, or None where the library is not built or has no such
    device."""
    if device != "host":
        variant = ""
    try:
        import accrt

        instance = accrt.default_instance("all")
    except (ImportError, OSError):
        return None
    if device != "host" and device not in [d.name for d in instance.devices()]:
        return None
    handle, path = tempfile.mkstemp(suffix=".accx")
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    try:
        return accrt.Program(accrt.Bundle(path, instance), instance.device(device), variant=variant)
    finally:
        os.unlink(path)


def run_in_runtime(
    session: Any, module: Module, name: str, inputs: Sequence[Any], scalars: Mapping[str, int], results: Sequence[np.ndarray]
) -> List[np.ndarray]:
    """Results of a call of the runtime, into arrays like `results`; tensor inputs in order, updated
    in place."""
    from accrt import Call

    function, tensors = module.functions[name], list(inputs)
    call = Call(session, session.function(name)._prepared)
    for index, i in enumerate(function.inputs):
        value = scalars[i.name] if i.symbol else tensors.pop(0)
        call.set(index, value, None if i.symbol or value is None else i.value.dtype)
    made = [np.empty_like(r) for r in results]
    for index, (result, array) in enumerate(zip(function.results, made)):
        call.set(len(function.inputs) + index, array, result.value.dtype)
    call()
    return made


def both_agree(
    module: Module, data: bytes, name: str, inputs: Sequence[np.ndarray], scalars: Mapping[str, int], results: Sequence[np.ndarray],
    on_cuda: bool = ON_CUDA, same_kernels: bool = True,
) -> List[np.ndarray]:  # fmt: skip
    """The runtime, where it is built, gives the very bytes that the executor gave: the kernels are
    the same. What it gave; nothing where it is not built."""
    loaded = runtime_program(data, "", "cuda:0") if on_cuda else runtime_program(data, target())
    if loaded is None:
        return []
    made = run_in_runtime(loaded.session(), module, name, [x.copy() for x in inputs], scalars, results)
    for have, want in zip(made, results):
        assert not same_kernels or have.tobytes() == want.tobytes(), f"{name}: the runtime and the executor differ in {_different(have, want)}"
    return made


def _different(have: np.ndarray, want: np.ndarray) -> str:
    bits = [np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.itemsize) for array in (have, want)]
    places = np.argwhere((bits[0] != bits[1]).any(-1)).tolist()
    first = tuple(places[0])
    return f"{len(places)} of {have.size} elements, {places[0]} to {places[-1]}, first {have[first]} and {want[first]}"


def values(random: np.random.Generator, dtype: str, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Numbers in a type, as the bundle takes them (bf16 as bits)."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in EPSILON:
        return kh.encode(random.uniform(low, high, shape), dtype)
    info = np.iinfo(kh.NUMPY[dtype])
    return random.integers(max(low, info.min), min(high, info.max), shape, endpoint=True).astype(kh.NUMPY[dtype])


def assert_close(
    got: np.ndarray, expected: np.ndarray, dtype: str, roundings: float, scale: float = 1.0, where: str = ""
) -> None:
    """Floats: |got - expected| <= roundings * epsilon * max(|expected|, scale), NaN and infinities
    at the same places; all else exactly. `scale` is the size of what was added up on the way, where
    terms may cancel."""
    assert got.shape == expected.shape, f"{where}shape {got.shape}, expected {expected.shape}"
    if dtype not in EPSILON:
        np.testing.assert_array_equal(got, expected)
        return
    have = kh.decode(got, dtype)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(have), np.isnan(expected))
    np.testing.assert_array_equal(have[np.isinf(expected)], expected[np.isinf(expected)])
    error = np.abs(have[finite] - expected[finite]) / np.maximum(np.abs(expected[finite]), scale)
    limit = roundings * EPSILON[dtype]
    assert error.size == 0 or error.max() <= limit, f"{where}relative error {error.max():.3g}, allowed {limit:.3g}"


def compare(
    module: Module, running: accx_exec.Program, name: str, inputs: Sequence[np.ndarray], scalars: Optional[Dict[str, int]] = None,
    roundings: float = 16, scale: float = 1.0,
) -> List[Any]:  # fmt: skip
    """Runs one function both ways and compares every result."""
    scalars = scalars or {}
    got = session(running).run(name, *[x.copy() for x in inputs], **scalars)
    if running.target == target():
        both_agree(module, running.bundle.data, name, inputs, scalars, got)
    expected = Interpreter(module).run(name, *inputs, **scalars)
    for result, have, want in zip(module.functions[name].results, got, expected):
        assert_close(have, want, result.value.dtype, roundings, scale)
    return got
