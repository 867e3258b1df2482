"""What a call of a bundle's function costs inside of JAX, on the host: a jitted accrt.jax.function
beside a jitted addition of JAX's own, on the same small array, in turns in one process.

    PYTHONPATH=python python bench/bench_jax_calls.py       needs JAX and xxhash
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time

import jax
from jax import numpy as jnp

import accrt
import accrt.jax
from accrt.compiler import compile, Module

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--calls", type=int, default=1000)


def made(folder: pathlib.Path):
    m = Module("calls")
    f = m.function("add")
    f.result("z", f.input("x", "f32", [64]) + f.input("y", "f32", [64]))
    path = folder / "calls.accx"
    compile(m, path, targets=["host"])
    return accrt.Bundle(path, accrt.Instance(host_code="all"))


def microseconds(function, x, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        x = function(x, x)
    jax.block_until_ready(x)
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = made(pathlib.Path(folder))
        bound = accrt.Program(bundle).session().add.bind(*[memoryview(bytearray(256)).cast("f")] * 2, out=memoryview(bytearray(256)).cast("f"))
        x = jnp.zeros(64, jnp.float32)
        ways = {"accrt.jax.function under jax.jit": jax.jit(accrt.jax.function(bundle, "add")), "JAX's own addition under jax.jit": jax.jit(jnp.add)}
        for function in ways.values():
            microseconds(function, x, 100)
        found: dict[str, list[float]] = {name: [] for name in (*ways, "the function itself, bound")}
        for _ in range(args.rounds):
            for name, function in ways.items():
                found[name].append(microseconds(function, x, args.calls))
            begin = time.perf_counter()
            for _ in range(args.calls):
                bound()
            found["the function itself, bound"].append((time.perf_counter() - begin) / args.calls * 1e6)
    for name, values in found.items():
        print(f"{name:36} {statistics.median(values):6.2f} us, the best {min(values):6.2f}")


if __name__ == "__main__":
    main()
