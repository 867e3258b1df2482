"""What calls and their arguments cost from Python, beside a foreign call of a trivial function,
numpy's own, and onnxruntime and torch where they are installed: interleaved in one run.

    ./dev bench python

The bundle is the one that the C tests run, made here with the public writer: `empty` has one kernel
that does nothing, `affine` is y = 2 x + 1. The runtime runs both on the calling thread.
"""
from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
import tempfile
from typing import Callable

import numpy as np

import common

sys.path.insert(0, str(common.ROOT / "python"))
import accrt  # noqa: E402 - from the tree
from accrt import _fast  # noqa: E402
from accrt._library import lib  # noqa: E402

CALLS = 50  # in each sample: few, so that a busy machine interrupts few samples
ELEMENTS = 64


def many(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in itertools.repeat(None, CALLS):
            call()
    return run


def open_session(folder: str, threads: int):
    return accrt.load(pathlib.Path(folder, "program.accx"), host_code="all", options={"host.threads": threads})


def candidates(folder: str) -> dict[str, Callable[[], object]]:
    one, two = open_session(folder, 1), open_session(folder, 2)
    x = np.linspace(0, 1, ELEMENTS, dtype=np.float32)
    y, numpy_y = np.empty_like(x), np.empty_like(x)
    bound = one.affine.bind(x, out=y)
    bound()
    if not np.array_equal(y, 2 * x + 1):
        sys.exit("bench_python: affine gave a wrong result")
    in_python = without_native(lambda: open_session(folder, 1).affine, x)
    return {
        "floor: ctypes, accrt_version()": lib.accrt_version,
        "bound call, empty kernel": one.empty.bind(),
        "bound call, empty kernel, 2 threads": two.empty.bind(),
        f"bound call, {ELEMENTS} f32": bound,
        "bound call, result allocated": one.affine.bind(x),
        "unbound call, empty kernel": one.empty,
        f"unbound call, {ELEMENTS} f32, out=": lambda: one.affine(x, out=y),
        "unbound call, result allocated": lambda: one.affine(x),
        "the same without accrt._native": lambda: in_python(x),
        "argument of a bound call, numpy": lambda: bound.set("x", x),
        f"numpy.add, {ELEMENTS} f32, out=": lambda: np.add(x, x, out=numpy_y),
        **torchs(one.affine, bound),
        **onnxruntimes(x),
    }


def without_native(make: Callable[[], Callable], x) -> Callable:
    """A function whose calls are made by Python code alone."""
    native, _fast.native = _fast.native, None
    try:
        function = make()
        function(x)  # its call is made now, and kept
    finally:
        _fast.native = native
    return function


def torchs(affine, bound) -> dict[str, Callable[[], object]]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    t = torch.ones(ELEMENTS)
    array, out = np.ones(ELEMENTS, np.float32), torch.empty(ELEMENTS)
    return {
        "argument of a bound call, torch": lambda: bound.set("x", t),
        "unbound call of a torch tensor": lambda: affine(t),
        "torch: from_dlpack(array)": lambda: torch.from_dlpack(array),
        f"torch: add, {ELEMENTS} f32": lambda: torch.add(t, 1, alpha=1),
        f"torch: add, {ELEMENTS} f32, out=": lambda: torch.add(t, t, out=out),
    }


def onnxruntimes(x) -> dict[str, Callable[[], object]]:
    """y = 2 x + 1 there, on the calling thread."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return {}
    f32, make = onnx.TensorProto.FLOAT, onnx.helper
    graph = make.make_graph(
        [make.make_node("Mul", ["x", "two"], ["z"]), make.make_node("Add", ["z", "one"], ["y"])], "affine",
        [make.make_tensor_value_info("x", f32, [ELEMENTS])], [make.make_tensor_value_info("y", f32, [ELEMENTS])],
        [make.make_tensor("two", f32, [], [2.0]), make.make_tensor("one", f32, [], [1.0])])  # fmt: skip
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {f"onnxruntime: run, {ELEMENTS} f32": lambda: session.run(None, {"x": x})}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([sys.executable, str(common.ROOT / "tests/bundles/make.py"), folder, "cc"])
        if made.returncode != 0:
            sys.exit("bench_python: the bundle could not be made; it needs xxhash and a C compiler")
        runs = {name: many(call) for name, call in candidates(folder).items()}
        times = {name: [t / CALLS for t in samples] for name, samples in common.interleaved(runs).items()}
    rows = {name: common.summary(samples) for name, samples in times.items()}
    common.show("one call from Python (asked for: a bound call in at most 2 us, an unbound one in 3, an array in 0.5, a torch tensor in 1)", rows, "us")
    common.save("python", rows)


if __name__ == "__main__":
    main()
