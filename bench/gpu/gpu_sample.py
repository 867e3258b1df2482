"""The sampling pass of rows of 128,256 logits on a GPU, beside the time that reading the logits
once takes, and torch's ways to sample: topk, and a sort of the whole row.

    gpu_sample.py [--rounds R]

Runs the functions of tests/gpu/test_next_token.py (compiled there beforehand, or here by nvcc)
from a session. Checked: a few rows against the float64 reference, and each row alone against
itself among others, bit for bit. Medians of rounds in which all take turns. Text to the terminal,
JSON to gpu_sample.json in $ACCRT_BENCH_RESULTS.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, os.pardir, "tests", folder) for folder in ("gpu", "python")]

import interleaved  # noqa: E402
import test_next_token as tests  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import compile as build  # noqa: E402
from interleaved import Rows  # noqa: E402

VOCABULARY, CALLS, TOP = tests.VOCABULARY, 20, 40
#: What rows ask for; the second figure is what was asked of 256 rows, in us.
WAYS = {
    "greedy": (dict(temperature=0), None), "top-k 40": (dict(top_k=40), None), "top-k 40, top-p 0.9": (dict(top_k=40, top_p=0.9), 150),
    "min-p 0.1": (dict(min_p=0.1), None), "top-p 0.9": (dict(top_p=0.9), None), "temperature alone": (dict(), None),
    "a mask, top-k 40, top-p 0.9": (dict(top_k=40, top_p=0.9, mask_rows=0, mask_bits=np.full((1, -(-VOCABULARY // 32)), 0x55555555, np.uint32)), None),
}  # fmt: skip


def checked(running, given):
    """Some rows against the reference, and alone."""
    some = {name: array[:3] if name not in ("edit_starts", "mask_bits") and not name.startswith("edit_") else array for name, array in given.items()}
    some["edit_starts"] = given["edit_starts"][:4]
    tests.host.compare(list(some.values()), running.run("pick", *some.values()), running.oracle.run("pick", *some.values()))
    together = running.run("pick", *given.values())
    for i in (0, len(given["logits"]) - 1):
        one = {name: array[i : i + 1] if name not in ("edit_starts", "mask_bits") and not name.startswith("edit_") else array for name, array in given.items()}
        one["edit_starts"] = np.zeros(2, np.int32)
        assert tests.same(running.run("pick", *one.values()), [whole[i : i + 1] for whole in together]), f"row {i} alone gives something else"


def by_topk(torch, x):
    values, places = x.topk(TOP, -1)
    weights = values.softmax(-1)
    weights = weights.masked_fill(weights.cumsum(-1) - weights >= 0.9, 0.0)
    return places.gather(-1, torch.multinomial(weights, 1))


def by_sort(torch, x):
    values, places = x.sort(-1, descending=True)
    weights = values[:, :TOP].softmax(-1)
    weights = weights.masked_fill(weights.cumsum(-1) - weights >= 0.9, 0.0)
    return places.gather(-1, torch.multinomial(weights, 1))


def submitted(call):
    return lambda i: call.submit()


def main():
    import torch

    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 7
    seed = int(time.time())
    print(f"seed {seed}; logits of N(0, 3), {VOCABULARY} tokens, the {tests.TOPS} largest said with each; us")
    m = tests.measured_module()
    running = tests.Running(m, test_ops.prebuilt("next_token_measured") or build(m, targets=["sm_90"]))
    session, random, table = running.session, np.random.default_rng(seed), []
    for rows in (1, 8, 64, 256):
        logits = (random.standard_normal((rows, VOCABULARY), np.float32) * 3).astype(np.float32)
        on_gpu, tensor = torch.from_numpy(logits).cuda(), running.tensor(logits)
        target = torch.empty_like(on_gpu)
        runs = Rows(CALLS, done=True)
        runs.add("copy", lambda i: target.copy_(on_gpu), torch.cuda.synchronize)
        runs.add("torch: topk 40, top-p 0.9", lambda i: by_topk(torch, on_gpu), torch.cuda.synchronize)
        runs.add("torch: sort, top-k 40, top-p 0.9", lambda i: by_sort(torch, on_gpu), torch.cuda.synchronize)
        runs.add("sample_greedy", submitted(session.greedy.bind(tensor)), session.stream.synchronize)
        for name, (changed, _asked) in WAYS.items():
            given = dict(zip(tests.host.NAMES, tests.host.plain(logits, **changed)))
            if rows in (8, 256) and name in ("greedy", "top-k 40, top-p 0.9", "top-p 0.9"):
                checked(running, given)
            call = session.pick.bind(tensor, *(running.tensor(array) for what, array in given.items() if what != "logits"))
            runs.add(name, submitted(call), session.stream.synchronize)
        runs.run(rounds)
        found = runs.table()
        floor = found.pop(0)["median"] / 2  # a copy reads and writes
        print(f"{rows} rows: reading the logits takes {floor / 1e3:.1f} (half of a copy)")
        for row in found:
            asked = WAYS.get(row["name"], (None, None))[1] if rows == 256 else None
            print(f"  {row['name']:34s} {row['median'] / 1e3:8.1f}  ({row['p25'] / 1e3:.1f} to {row['p75'] / 1e3:.1f})  "
                  f"{row['median'] / floor:6.2f} x reading{f', asked {asked}' if asked else ''}", flush=True)  # fmt: skip
            table.append({**row, "name": f"{rows} rows, {row['name']}"})
    interleaved.save("gpu_sample.json", f"The sampling pass, {VOCABULARY} tokens", table)


if __name__ == "__main__":
    main()
