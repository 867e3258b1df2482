"""MiniLM on a GPU: the bundle beside torch.compile with CUDA graphs, 1 x 32 and 256 x 128 tokens;
outputs beside the host driver's.

    gpu_minilm.py [--rounds R] [BUNDLE]

Inputs and outputs stay on the GPU; a figure is the time of a call, many in a row, to completion.
torch runs the same architecture (transformers' BertModel, mean pooling, normalization) in the type
that the bundle computes in, with random weights: speed does not depend on them. Text to the
terminal, JSON to gpu_minilm.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import time

import numpy as np

import accrt

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
RESULTS = os.environ.get("ACCRT_BENCH_RESULTS", ".")
SIZES = ((1, 32), (256, 128))


def inputs(batch: int, tokens: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1000, 29000, (batch, tokens), dtype=np.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    return ids, np.ones((batch, tokens), np.int64)


def agreement(path: str, device) -> float:
    """Least cosine between the GPU's vectors and the host's, sentences of several lengths,
    padded."""
    host = accrt.load(path, "host", host_code="all")
    gpu = accrt.Program(accrt.Bundle(path, device.instance), device).session()
    worst = 1.0
    for batch, tokens in ((1, 1), (1, 32), (3, 17), (8, 128), (2, 256)):
        ids, mask = inputs(batch, tokens, tokens)
        for row in range(batch):
            mask[row, tokens - (row * 5) % max(tokens, 1):] = 0 if row else 1
        mask[:, 0] = 1
        a, b = host.encode(ids, mask).numpy(), gpu.encode(ids, mask).numpy()
        assert np.isfinite(b).all(), f"{batch} x {tokens}: not finite"
        worst = min(worst, float((a * b).sum(1).min()))
    return worst


def ours(path: str, device):
    import torch
    session = accrt.Program(accrt.Bundle(path, device.instance), device).session()

    def make(batch: int, tokens: int):
        ids, mask = (torch.from_numpy(a).cuda() for a in inputs(batch, tokens))
        out = torch.empty(batch, 384, device="cuda")
        torch.cuda.synchronize()
        call = session.encode.bind(ids, mask, out=out)
        call()
        return call.submit, session.stream.synchronize, (ids, mask, out, call)
    return make


def peer(dtype):
    import torch
    import transformers
    config = transformers.BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                                     intermediate_size=1536, max_position_embeddings=512)
    model = transformers.BertModel(config, add_pooling_layer=False).eval().cuda().to(dtype)

    def encode(ids, mask):
        hidden = model(ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=1)

    compiled = torch.compile(encode, mode="reduce-overhead", fullgraph=False, dynamic=False)

    def make(batch: int, tokens: int):
        ids, mask = (torch.from_numpy(a).cuda() for a in inputs(batch, tokens))

        def run():
            with torch.inference_mode():
                compiled(ids, mask)
        for _ in range(5):
            run()
        torch.cuda.synchronize()
        return run, torch.cuda.synchronize, (ids, mask)
    return make


def sample(run, finish, calls: int) -> float:
    finish()
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    finish()
    return (time.perf_counter() - begin) / calls


def main() -> int:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--") and not a.isdigit()]
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 15
    path = arguments[0] if arguments else os.path.join(os.environ.get("ACCRT_TEST_BUNDLES", "build/models"), "minilm.accx")
    device = accrt.default_instance().device(DEVICE)
    cosine = agreement(path, device)
    print(f"least cosine between the GPU's vectors and the host driver's: {cosine:.7f}")
    table = [{"name": "least cosine with the host driver", "value": cosine}]
    import torch
    makers = {"accrt": ours(path, device)}
    for name, dtype in (("torch.compile, f16", torch.float16), ("torch.compile, bf16", torch.bfloat16)):
        try:
            makers[name] = peer(dtype)
        except Exception as error:
            print(f"{name}: left out: {type(error).__name__}: {str(error)[:150]}")
    for batch, tokens in SIZES:
        made, samples = {}, {}
        for name, make in makers.items():
            try:
                made[name] = make(batch, tokens)
            except Exception as error:
                print(f"{name}: left out: {type(error).__name__}: {str(error)[:150]}")
        calls = 100 if batch == 1 else 20
        for _ in range(rounds):
            for name, (run, finish, _keep) in made.items():
                samples.setdefault(name, []).append(sample(run, finish, calls))
        best = min((statistics.median(s) for n, s in samples.items() if n != "accrt"), default=None)
        for name, s in samples.items():
            low, _, high = statistics.quantiles(s, n=4)
            ratio = f"   {statistics.median(s) / best:5.2f} x torch's best" if best and name == "accrt" else ""
            print(f"  {batch:3d} x {tokens:3d}  {name:24} {statistics.median(s) * 1e6:10.1f} us   p25 {low * 1e6:10.1f}  p75 {high * 1e6:10.1f}{ratio}")
            table.append({"name": f"{batch} x {tokens}, {name}", "median": statistics.median(s) * 1e6, "p25": low * 1e6, "p75": high * 1e6,
                          "unit": "us"})
    with open(os.path.join(RESULTS, "gpu_minilm.json"), "w") as file:
        json.dump({"title": "MiniLM", "rows": table}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
