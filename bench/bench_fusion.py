"""What small graphs of hosts take: an operation that is no work by element alone (a lookup, a
padding, a sum, ...) between work by element.

    python bench/bench_fusion.py [NAME...] [--threads 2]

Commands of one call, bytes of the values between them, milliseconds (median), and seconds to build.
For a comparison run it in two trees, in turn. Needs numpy alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Tuple

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
sys.path.insert(0, os.path.join(ROOT, "python"))

import numpy as np  # noqa: E402

import accrt  # noqa: E402
import common  # noqa: E402
from accrt.compiler import Module, bufferize, compile, passes  # noqa: E402
from accrt.compiler.ops import windows  # noqa: E402


def _roll(x: Any, shift: int, dim: int) -> Any:
    size = x.shape[dim]
    return x.function.cat([x.slice(dim, size - shift, size), x.slice(dim, 0, size - shift)], dim)


def _before(x: Any) -> Any:
    return (x * 1.5 + 0.25).tanh()


IMAGE = (8, 32, 64, 64)
#: By name: the shapes of f32 inputs, the shape of an index (into the first dimension), and what is
#: made of them.
GRAPHS: Dict[str, Tuple[Tuple[Tuple[int, ...], ...], Tuple[int, ...], Callable[..., Any]]] = {
    "index": (((4096, 256), (2048, 256)), (2048,), lambda x, y, i: (_before(x).index_select(0, i) + y).relu()),
    "gather": (((1024, 1024), (512, 1024)), (512, 1024), lambda x, y, i: _before(x).gather(0, i) * y),
    "nearest": ((IMAGE,), (), lambda x: (x * 0.5 + 1.0).upsample_nearest(scale_factors=[2.0, 2.0]).silu()),
    "pad": ((IMAGE,), (), lambda x: windows.padded(_before(x), [(1, 1), (1, 1)]).relu() * 2.0),
    "roll": (((64, 128, 256),), (), lambda x: (_roll(_before(x), 5, 1) * 3.0).relu()),
    "mean": (((2048, 1024),), (), lambda x: ((x * x + 1.0).mean(-1) + 1e-5).rsqrt()),
    "argmax": (((2048, 1024), (1024,)), (), lambda x, y: (x * 2.0 + y).argmax(-1) * 2 + 1),
    "cumsum": (((2048, 1024),), (), lambda x: _before(x).cumsum(-1) * 0.5 - 1.0),
}


def module(name: str) -> Module:
    shapes, index, function = GRAPHS[name]
    made = Module(name)
    f = made.function("run")
    given = [f.input(f"x{i}", "f32", list(shape)) for i, shape in enumerate(shapes)]
    given += [f.input("index", "i64", list(index))] if index else []
    f.result("y", function(*given))
    return made


def commands(made: Module) -> Tuple[int, int]:
    """How many a call has, and the bytes of the memory that they hand on."""
    buffers = bufferize.bufferize(passes.run(made).functions["run"], {})
    return len(buffers.commands), sum(s.size_bytes for s in buffers.storages if s.kind == "transient")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *GRAPHS])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    instance = accrt.Instance(host_code="all", options={"host.threads": arguments.threads})
    random, results = np.random.default_rng(0), {}
    print(f"{'':10} commands   between        ms   built")
    for name in arguments.names or GRAPHS:
        shapes, index, _function = GRAPHS[name]
        made = module(name)
        count, between = commands(made)
        inputs = [random.standard_normal(shape, np.float32) for shape in shapes]
        inputs += [random.integers(0, shapes[0][0], index)] if index else []
        with tempfile.TemporaryDirectory() as folder:
            path, begin = os.path.join(folder, "graph.accx"), time.perf_counter()
            compile(made, path, targets=["host"])
            built = time.perf_counter() - begin
            run = accrt.Program(accrt.Bundle(path, instance), instance.device("host")).session().function("run")
            times = common.summary(common.interleaved({name: lambda: run(*inputs)}, 2.0)[name])
        results[name] = {"commands": count, "bytes": between, "built_s": built, **times}
        print(f"{name:10} {count:8} {between / 1e6:6.2f} MB {times['median_s'] * 1e3:9.3f} {built:6.2f} s", flush=True)
    common.save("fusion", results)


if __name__ == "__main__":
    main()
