"""Norms and softmax over 16384 rows of 8192 bf16 on a GPU, beside the measured bandwidth of a copy,
and torch.compile.

    gpu_rows.py [--rounds R]

Compiles three functions of one operation each (needs nvcc), runs them from a session on tensors in
GPU memory that are far larger than its cache, and compares with a float64 reference on some rows.
GB/s count one read and one write of each element. Text to the terminal, JSON to gpu_rows.json in
$ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import os
import statistics
import sys
import time

import accrt
import interleaved
from accrt.compiler import Module, compile
from interleaved import Rows

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
ROWS, COLUMNS, CALLS = 16384, 8192, 40
ASKED = 0.85


def module() -> Module:
    m = Module("rows")
    for name in ("layer_norm", "rms_norm", "softmax"):
        f = m.function(name)
        x = f.input("x", "bf16", [ROWS, COLUMNS])
        if name == "softmax":
            f.result("y", x.softmax(-1))
            continue
        w = f.input("w", "bf16", [COLUMNS])
        f.result("y", x.layer_norm(w, f.input("b", "bf16", [COLUMNS]), 1e-5) if name == "layer_norm" else x.rms_norm(w, 1e-5))
    return m


def reference(name: str, x, w, b):
    x = x.double()
    if name == "softmax":
        return x.softmax(-1)
    if name == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    scaled = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()
    return scaled + b.double() if name == "layer_norm" else scaled


def main() -> int:
    import torch
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 11
    device = accrt.default_instance().device(DEVICE)
    session = accrt.Program(accrt.Bundle(compile(module(), targets=[device.info.arch]), device.instance), device).session()
    seed = int(time.time())
    generator = torch.Generator("cuda").manual_seed(seed)
    print(f"seed {seed}")
    x = torch.randn(ROWS, COLUMNS, device="cuda", generator=generator).bfloat16()
    w, b = (torch.randn(COLUMNS, device="cuda", generator=generator).bfloat16() for _ in range(2))
    y = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    moved = 2 * x.numel() * x.element_size()
    peers = {"layer_norm": lambda: torch.nn.functional.layer_norm(x, (COLUMNS,), w, b, 1e-5),
             "rms_norm": lambda: torch.nn.functional.rms_norm(x, (COLUMNS,), w, 1e-5), "softmax": lambda: x.softmax(-1)}
    rows = Rows(CALLS, done=True)
    rows.add("copy (torch)", lambda i: y.copy_(x), torch.cuda.synchronize)
    keep = []
    for name, peer in peers.items():
        arguments = {"layer_norm": (x, w, b), "rms_norm": (x, w)}.get(name, (x,))
        call = getattr(session, name).bind(*arguments, out=y)
        y.fill_(float("nan"))
        torch.cuda.synchronize()
        call()
        picked = torch.arange(0, ROWS, 997, device="cuda")
        expected, got = reference(name, x[picked], w, b), y[picked].double()
        error = ((got - expected).norm() / expected.norm()).item()
        # bf16 keeps 8 bits: 2^-9 each
        assert not y.isnan().any() and error < 4e-3, f"{name}: relative error {error}"
        keep.append(call)
        rows.add(f"accrt {name}", lambda i, call=call: call.submit(), session.stream.synchronize)
        rows.add(f"torch.compile {name}", lambda i, run=torch.compile(peer): run(), torch.cuda.synchronize)
    rows.run(rounds)
    # Bytes for each nanosecond are GB/s.
    samples = {name: [moved / taken / 1e3 for taken in found] for name, found in rows.samples.items()}
    base, table = statistics.median(samples["copy (torch)"]), []
    for name, values in samples.items():
        median, (low, _, high) = statistics.median(values), statistics.quantiles(values, n=4)
        asked = f"   asked >= {ASKED}" if name.startswith("accrt") else ""
        print(f"  {name:28} {median:6.2f} TB/s   p25 {low:6.2f}  p75 {high:6.2f}   {median / base:5.2f} x copy{asked}")
        table.append({"name": name, "median": median, "p25": low, "p75": high, "unit": "TB/s", "ratio": median / base})
    interleaved.save("gpu_rows.json", "Norms and softmax, 16384 x 8192 bf16", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
