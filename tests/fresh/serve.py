"""The installed wheel serves models on a machine without a compiler: small ones of every family,
packed ones and adapters, each in a process with an empty PATH. It compiles a model's bundle for
GPUs there, too. Without the kernels that come with it, one line says what is missing.

    ENV/bin/python tests/fresh/serve.py
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import numpy as np  # noqa: E402
import tiny_adapters  # noqa: E402
import tiny_models as tiny  # noqa: E402

import accrt  # noqa: E402
from accrt.compiler.quantizers import quantize  # noqa: E402

assert accrt.__file__.startswith(sys.prefix), accrt.__file__
BYTELM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "bytelm"
COMMAND = str(pathlib.Path(sys.prefix, "bin", "accrt-serve"))


def environment(home, **more):
    return {"PATH": "/nonexistent", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "", **more}


def models(work):
    """(what it is, its path, an adapter's folder): every family, packed types, places for
    adapters."""
    rng = np.random.default_rng(1)
    for name, config in tiny.CONFIGS.items():
        dtype = str(rng.choice(["F32", "BF16", "F16"]))
        yield f"{name} {dtype}", tiny.write_folder(work / name, config, tiny.tensors(config, 1), dtype), None
    yield "bytelm", BYTELM, None
    config = {**tiny.CONFIGS["llama"], "hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 256}
    arrays = tiny.gguf_tensors(config, tiny.tensors(config, 1, gain=1.0))
    for name, number, head in (("q8_0", 8, 8), ("q4_k", 12, 14)):
        types = {}
        for key, array in arrays.items():
            if array.ndim == 2:
                is_head = key in ("output.weight", "token_embd.weight")
                blocks = quantize(array, "q6_k" if is_head and head == 14 else name).components["data"].tobytes()
                types[key] = (head if is_head else number, blocks)
        tiny.write_gguf(work / f"{name}.gguf", tiny.gguf_metadata(config), arrays, types)
        yield f"GGUF {name}", work / f"{name}.gguf", None
    weights = tiny.tensors(tiny.CONFIGS["qwen3"], 1)
    adapter = tiny_adapters.write_adapter(work / "adapter", tiny_adapters.random_adapter(weights, 1))
    for dtype in ("F32", "BF16", "F16"):
        yield f"adapter, {dtype}", tiny.write_folder(work / f"adapted-{dtype}", tiny.CONFIGS["qwen3"], weights, dtype), adapter


GENERATE = """import sys, accrt
with accrt.LLM(sys.argv[1], kv_bytes=1 << 22, adapters=2 * len(sys.argv[2:])) as llm:
    for path in sys.argv[2:]:
        llm.load_adapter("other", path)
    print(llm.generate("the", max_tokens=4, ignore_eos=True, adapter="other" if sys.argv[2:] else None).token_ids)
"""


def generate(path, adapter, home):
    command = [sys.executable, "-c", GENERATE, str(path), *([str(adapter)] if adapter else [])]
    return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=300)


def serve(path, home):
    """The command, asked once."""
    server = subprocess.Popen([COMMAND, str(path), "--port", "0", "--quiet"], env=environment(home), stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if line.startswith("Serving"):
                where = line.split(" at ")[1].split()[0]
                request = urllib.request.Request(where + "/v1/completions", json.dumps({"prompt": "the", "max_tokens": 4}).encode())
                answer = json.load(urllib.request.urlopen(request, timeout=60))
                assert answer["usage"]["completion_tokens"] >= 1, answer
                return line.strip()
        raise AssertionError("the server ended")
    finally:
        server.terminate()
        server.wait(60)


def compile_for_gpus(path, work):
    """Without a C compiler, nvcc or a GPU: with what accrt[serve] brings."""
    command = [sys.executable, "-m", "accrt.models", str(path), "-o", str(work / "gpu.accx"), "--target", "sm_90"]
    return subprocess.run(command, env=environment(work / "home", ACCRT_NVCC="nvrtc"), capture_output=True, text=True, timeout=600)


def main():
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, path, adapter in models(work):
            start = time.monotonic()
            done = generate(path, adapter, work / "home")
            good = done.returncode == 0 and len(json.loads(done.stdout or "[]")) == 4
            print(f"{name}: {f'{time.monotonic() - start:.1f} s' if good else 'FAILED ' + done.stderr[-600:]}", flush=True)
            failed += [] if good else [name]
        print(serve(BYTELM, work / "home"), "(bundle in the cache)")
        print(serve(BYTELM, work / "other"), "(first start)")
        done = compile_for_gpus(BYTELM, work)
        print("bundle for GPUs, by NVRTC:", "made" if done.returncode == 0 else done.stderr[-600:], flush=True)
        failed += [] if done.returncode == 0 else ["kernels for GPUs"]
        done = subprocess.run([COMMAND, str(BYTELM)], env=environment(work / "third", ACCRT_PREBUILT_KERNELS=""), capture_output=True, text=True, timeout=60)
        lines = [line for line in done.stderr.splitlines() if not line.startswith((" ", "Loading"))]
        print(*lines)
        if done.returncode != 1 or len(lines) != 1 or "install gcc" not in lines[0]:
            failed.append("what is missing is not said in one line")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    os.write(1, b"every family is served without a compiler\n")


if __name__ == "__main__":
    main()
