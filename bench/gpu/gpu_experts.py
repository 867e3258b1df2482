"""Products of groups of bf16 rows with packed matrices of their own on a GPU, as a mixture of
experts has them (128 of 768 x 2048, eight for each token), beside plain matrices, torch's own
grouped product and the least time.

    gpu_experts.py [--rounds R] [--bundles FOLDER] [--layouts LAYOUT,...] [--tokens N,...]

Bundles are those of make_packed.py, weights random bytes. The least time is the longer one of two:
reading the matrices that have rows and x, and writing the result, at the speed of a device copy;
and the multiplications at the rate of torch's product of 8192 x 8192 matrices. Both are measured in
turn with the products, which are prepared calls between two events. Rows of some results are
compared with float64. Text to the terminal, JSON to gpu_experts.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import time

import accrt
import numpy as np
from accrt.compiler import encodings
from gpu_packed import COPIED, DEVICE, RESULTS, device_copy, option, safetensors, sampled
from make_packed import EXPERTS, EXPERT_K, EXPERT_LAYOUTS, EXPERT_N, weight

CHOSEN, SIDE = 8, 8192


def routed(random: np.random.Generator, tokens: int) -> np.ndarray:
    """Ends of the groups of a step: each token takes different experts."""
    taken = np.argsort(random.random((tokens, EXPERTS)), 1)[:, :CHOSEN]
    return np.bincount(taken.reshape(-1), minlength=EXPERTS).cumsum()


def check(name: str, x: np.ndarray, ends: np.ndarray, got: np.ndarray, packed: encodings.Quantized, random: np.random.Generator) -> None:
    """Some rows against float64: products summed in f32 of weights that may be rounded, and the
    rounding of y; minima count fourfold at most (docs/decisions/packed-kernels.md)."""
    for row in random.integers(0, len(x), 4):
        e = int(np.searchsorted(ends, row, "right"))
        one = encodings.Quantized(packed.layout, (EXPERT_N, EXPERT_K), {"data": packed.components["data"][e]}, packed.group, packed.dtype, packed.types)
        w, own = encodings.dequantize(one).astype(np.float64), x[row].astype(np.float64)
        exact, magnitude = w @ own, np.abs(w) @ np.abs(own)
        limit = (4 * (EXPERT_K + 64) * 2.0**-24 + 2.0**-9) * magnitude + 2.0**-8 * np.abs(exact)
        error = np.abs(got[row].astype(np.float64) - exact)
        assert (error <= limit).all(), f"{name}, row {row}: error {error.max():.3g} where {limit.min():.3g} may be"


def main() -> int:
    import torch
    rounds = option("--rounds", 11)
    folder = option("--bundles", os.path.join(os.environ.get("ACCRT_GPU_PACK", "."), "bundles"))
    wanted = option("--layouts", ",".join(EXPERT_LAYOUTS)).split(",")
    steps = [int(tokens) for tokens in option("--tokens", "1,16,64,150,300,768,2048,8192").split(",")]
    paths = {name: os.path.join(folder, f"experts_{name}.accx") for name in wanted}
    missing = [path for path in paths.values() if not os.path.exists(path)]
    if missing:
        print(f"skipped: no {missing[0]} (make_packed.py makes it where nvcc is)")
        return 0
    device, seed = accrt.default_instance().device(DEVICE), int(time.time())
    print(f"seed {seed}; {EXPERTS} matrices of {EXPERT_N} x {EXPERT_K}, {CHOSEN} for each token")
    random = np.random.default_rng(seed)
    theirs = torch.cuda.Stream()
    stream = accrt.Stream.wrap(device, theirs)
    copy = device_copy(torch, theirs)
    square = torch.randn(SIDE, SIDE, device="cuda").bfloat16()

    def product() -> None:
        with torch.cuda.stream(theirs):
            square @ square

    given = {}
    for tokens in steps:
        ends = routed(random, tokens)
        x = torch.from_numpy(random.standard_normal((tokens * CHOSEN, EXPERT_K), np.float32)).cuda().bfloat16()
        given[tokens] = ends, x, torch.from_numpy(ends).cuda(), torch.empty(tokens * CHOSEN, EXPERT_N, device="cuda", dtype=torch.bfloat16)
    entries, bytes_of, keep = {"copy": (copy, 4), "square": (product, 1)}, {}, []
    plain = torch.from_numpy(random.standard_normal((EXPERTS, EXPERT_N, EXPERT_K), np.float32)).cuda().bfloat16()

    def add(name: str, tokens: int, run, count: int, matrix_bytes: float) -> None:
        ends = given[tokens][0]
        used = np.count_nonzero(np.diff(ends, prepend=0))
        entries[f"{name}, {tokens} tokens"] = run, count
        bytes_of[f"{name}, {tokens} tokens"] = tokens, used * matrix_bytes + 2 * tokens * CHOSEN * (EXPERT_N + EXPERT_K)

    for at, (name, path) in enumerate(paths.items()):
        packed = weight(name, random, EXPERTS * EXPERT_N, EXPERT_K)
        data = packed.components["data"].reshape(EXPERTS, EXPERT_N, -1, packed.components["data"].shape[-1])
        packed = encodings.Quantized(name, (EXPERTS, EXPERT_N, EXPERT_K), {"data": data}, packed.group, "bf16")
        weights = accrt.Weights(safetensors({"w": packed}), device.instance)
        program = accrt.Program(accrt.Bundle(path, device.instance), device, weights=[weights], by_name=True)
        session = program.session(stream=stream)
        keep += [program, session]
        for tokens in steps:
            ends, x, on_device, y = given[tokens]
            torch.cuda.synchronize()
            call = session.function("packed").bind(x, on_device, out=y)
            call()
            check(f"{name}, {tokens} tokens", x.float().cpu().numpy(), ends, y.float().cpu().numpy(), packed, random)
            calls = 20 if tokens < 2000 else 6
            add(name, tokens, lambda submit=call.submit, calls=calls: [submit() for _ in range(calls)], calls, packed.components["data"].nbytes / EXPERTS)
            if at == 0:
                call = session.function("plain").bind(x, plain, on_device, out=y)
                call()
                add("plain bf16", tokens, lambda submit=call.submit, calls=calls: [submit() for _ in range(calls)], calls, 2 * EXPERT_N * EXPERT_K)
    print("results checked", flush=True)

    def grouped(tokens: int, calls: int) -> None:
        _ends, x, on_device, _y = given[tokens]
        with torch.cuda.stream(theirs):
            for _ in range(calls):
                torch._grouped_mm(x, plain.transpose(1, 2), offs=on_device.int())

    try:
        for tokens in steps:
            calls = 20 if tokens < 2000 else 6
            grouped(tokens, 1)
            add("torch._grouped_mm", tokens, lambda tokens=tokens, calls=calls: grouped(tokens, calls), calls, 2 * EXPERT_N * EXPERT_K)
    except Exception as error:  # noqa: BLE001 - a peer that is not there is no failure
        print(f"torch._grouped_mm: left out: {type(error).__name__}: {str(error)[:150]}")
    samples = sampled(torch, theirs, copy, entries, rounds)
    speed = 2 * COPIED / statistics.median(samples.pop("copy"))  # bytes in a microsecond
    rate = 2.0 * SIDE**3 / statistics.median(samples.pop("square"))
    print(f"  a device copy reads and writes {speed / 1e6:.2f} TB/s; a product of {SIDE} makes {rate / 1e6:.0f} TFLOP/s")
    rows = []
    for name, values in samples.items():
        tokens, size = bytes_of[name]
        least = max(size / speed, 2.0 * tokens * CHOSEN * EXPERT_N * EXPERT_K / rate)
        median = statistics.median(values)
        print(f"  {name:30} {median:8.1f} us  ({min(values):.1f} to {max(values):.1f})  {median / least:5.2f} x the least time of {least:.1f} us")
        rows.append({"name": name, "median": median, "p25": min(values), "p75": max(values), "unit": "us", "ratio": median / least, "against": "the least time"})
    with open(os.path.join(RESULTS, "gpu_experts.json"), "w") as file:
        json.dump({"title": f"Products of groups of rows, {EXPERTS} matrices of {EXPERT_N} x {EXPERT_K}, bf16", "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
