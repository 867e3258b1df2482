"""What LoRA adapters cost a served model: Llama shapes with random weights in bf16, requests of an
engine in this process.

    python bench/bench_serve_adapters.py [--shape small] [--adapters 16] [--rank 16] [--requests 32] [--new 32]
    python bench/bench_serve_adapters.py --shape 1b --device cuda --requests 256 --least 32 --most 512 --new 128 [--bundles PREFIX]
    python bench/bench_serve_adapters.py --shape 1b --make PREFIX          # compiles the bundles, for a machine without nvcc

Three kinds of work in turn: a bundle without places for adapters; one with places, none of which is
used; the same with requests that have all adapters in turn. What is lost is the median over rounds
of what a round of each lost beside the first one, in tokens a second.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent / "gpu")]
import common  # noqa: E402
import serve_throughput as shapes  # noqa: E402

SMALL = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 6, "num_attention_heads": 14, "head_dim": 64, "tie_word_embeddings": True,
         "vocab_size": 32000, "num_key_value_heads": 2}  # fmt: skip


def config_of(shape):
    return {**shapes.COMMON, **SMALL} if shape == "small" else shapes.config_of(shape)


def make(path, config, adapters, rank, targets):
    from accrt import models
    from accrt.compiler import driver
    from accrt.models import _peft, _registry, _tokens

    with tempfile.TemporaryDirectory() as name:
        shapes.write_model(Path(name), config, content=False)
        made = _registry.decoder(models.read(name), models.Options(adapters=adapters, max_rank=rank))
        module, count = made.build(), config["vocab_size"]
        table = _tokens.table([b" w%d" % i for i in range(count)], [0] * count)
        assets = {"serve.token_bytes": (table, "application/octet-stream")}
        if adapters:
            assets["serve.adapters"] = (json.dumps(_peft.layout_of(made)).encode(), "application/json")
        driver.compile(module, path, targets=targets, assets=assets)


def random_tensors(layout, rank, seed):
    """Factors of about what training gives; bf16 as bits."""
    rng, found = np.random.default_rng(seed), {}
    for product, sizes in layout["products"].items():
        for part, size in zip("ab", sizes):
            array = np.zeros((layout["max_rank"], size), np.float32)
            array[:rank] = rng.standard_normal((rank, size), np.float32) * 0.02
            found[f"lora.{product}.{part}"] = np.ascontiguousarray((array.view(np.uint32) >> 16).astype(np.uint16))
    return found


class Engine:
    def __init__(self, bundle, weights, device, rows):
        import accrt
        from accrt import serve

        pages = {} if device == "host" else {"kv_bytes": 8 << 30}  # two engines share a GPU
        self.llm = accrt.LLM(serve.load(str(bundle), weights=str(weights), device=device, **pages), max_running=rows)
        self.engine = self.llm.engine

    def load(self, count, rank):
        layout = json.loads(self.llm._loaded.layout)
        for i in range(count):
            self.llm._adapters.put(f"a{i}", "random", random_tensors(layout, rank, i))

    def drained(self, prompts, new, names):
        """Seconds until all have ended, and their tokens; requests have the names in turn."""
        from accrt import _ffi, serve
        from accrt._library import check, lib
        from accrt.serve.parameters import checked

        common_values = {"max_tokens": new, "ignore_eos": True, "temperature": 0}
        requests = [serve.Request(p, checked({**common_values, **({"adapter": names[i % len(names)]} if names else {})})) for i, p in enumerate(prompts)]
        events, count, tokens, left = (_ffi.accrt_serve_event * 1024)(), ctypes.c_uint32(), 0, len(requests)
        begin = time.perf_counter()
        for request in requests:
            self.engine.submit(request)
        while left:
            check(lib.accrt_serve_engine_wait(self.engine.handle, 60_000_000_000))
            time.sleep(0.005)  # events are taken in lots
            while lib.accrt_serve_engine_poll(self.engine.handle, events, ctypes.sizeof(events[0]), 1024, ctypes.byref(count)) == 0:
                for event in events[: count.value]:
                    tokens += event.token_count
                    left -= event.last
        return time.perf_counter() - begin, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=["small", *shapes.SHAPES], default="small")
    parser.add_argument("--device", default="host")
    for name, default in (("adapters", 16), ("rank", 16), ("requests", 32), ("new", 32), ("least", 16), ("most", 96), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bundles", help="what --make has written")
    parser.add_argument("--make", help="writes PREFIX.plain.accx and PREFIX.adapters.accx, and ends")
    parser.add_argument("--target", default="")
    given = parser.parse_args()
    config = config_of(given.shape)
    from accrt.compiler import available_targets

    hosts = ["aarch64"] if platform.machine() == "aarch64" else ["x86-64-v3", "x86-64-v4"]
    targets = [given.target] if given.target else ["sm_90"] if given.device != "host" or given.make else available_targets(hosts)
    with tempfile.TemporaryDirectory() as name:
        prefix = given.make or given.bundles or f"{name}/bundle"
        paths = {"plain": f"{prefix}.plain.accx", "adapters": f"{prefix}.adapters.accx"}
        if not given.bundles:
            for kind, path in paths.items():
                make(path, config, given.adapters if kind == "adapters" else 0, given.rank, targets)
        if given.make:
            return
        folder = Path(name)
        shapes.write_model(folder, config)
        engines = {kind: Engine(path, folder / "model.safetensors", given.device, min(given.requests, 256)) for kind, path in paths.items()}
        engines["adapters"].load(given.adapters, given.rank)
        names = [f"a{i}" for i in range(given.adapters)]
        runs = {"no places": ("plain", []), f"{given.adapters} places, none used": ("adapters", []), f"{given.adapters} adapters mixed": ("adapters", names)}
        found = {what: [] for what in runs}
        order = list(runs)
        for turn in range(given.rounds + 1):
            for what in order:
                rng = random.Random(turn)  # the same for each
                prompts = [[rng.randrange(1000, config["vocab_size"]) for _ in range(rng.randint(given.least, given.most))] for _ in range(given.requests)]
                seconds, tokens = engines[runs[what][0]].drained(prompts, given.new, runs[what][1])
                if turn:  # the first one makes plans
                    found[what].append(tokens / seconds)
            order.reverse()
        base, rows = found["no places"], []
        for what, rates in found.items():
            rate, lost = statistics.median(rates), statistics.median(1 - a / b for a, b in zip(rates, base)) * 100
            rows.append({"what": what, "tokens_per_s": rate, "lost_percent": lost, "least": min(rates), "most": max(rates)})
            print(f"{what:28s} {rate:10.1f} tok/s  ({min(rates):.1f} to {max(rates):.1f})  lost {lost:5.1f}%", flush=True)
        common.save("serve_adapters", {**vars(given), "rows": rows})


if __name__ == "__main__":
    main()
