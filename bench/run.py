"""Runs the benchmarks: `./dev bench [NAME ...]`. Without names all of them. Results as tables, and
as JSON in build/bench/.

A benchmark is bench/bench_NAME.py, or a C program bench/bench_NAME.c, which the build puts into
build/bench/.
"""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import common

# What a Python benchmark needs beside numpy, installed into the virtual environment when it can be
# had.
PEERS = {"python": ("onnxruntime", "onnx"), "minilm": ("onnxruntime", "onnx", "sympy"), "gemm": ("onnxruntime", "onnx"), "packed": ("pywhispercpp",), "torch_operators": ("matplotlib",)}


def benchmarks() -> dict[str, list[str]]:
    folder = common.ROOT / "bench"
    found = {}
    for path in sorted(folder.glob("bench_*.c")):
        name = path.stem[len("bench_"):]
        binary = common.ROOT / "build" / "bench" / path.stem
        found[name] = [str(binary)]
    for path in sorted(folder.glob("bench_*.py")):
        found[path.stem[len("bench_"):]] = [sys.executable, str(path)]
    return found


def install_peers(name: str) -> None:
    missing = [p for p in PEERS.get(name, ()) if importlib.util.find_spec(p) is None]
    if not missing or sys.prefix == sys.base_prefix:
        return
    print(f"installing {', '.join(missing)} (the peers of {name})", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing]
    if subprocess.run(command).returncode != 0:
        print(f"  could not be had: {name} is measured without them, or not at all")


def main() -> int:
    known = benchmarks()
    wanted = sys.argv[1:] or list(known)
    unknown = [n for n in wanted if n not in known]
    if unknown:
        print(f"bench: no benchmark {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    common.RESULTS.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, ACCRT_BENCH_RESULTS=str(common.RESULTS))
    failed = []
    for name in wanted:
        print(f"\n=== {name}", flush=True)
        install_peers(name)
        begin = time.monotonic()
        if subprocess.run(known[name], env=environment).returncode != 0:
            failed.append(name)
        print(f"  ({time.monotonic() - begin:.0f} s)", flush=True)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
