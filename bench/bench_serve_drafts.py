"""What drafts from the text itself (num_speculative_tokens) gain and cost: a Llama shape with
random weights in bf16, requests of an engine in this process.

    python bench/bench_serve_drafts.py [--shape small] [--drafts 3,7] [--requests 1] [--new 128]

Three kinds of text: one that repeats itself (the most probable tokens of random weights), one of
tokens that never come again (drawn from all), and one whose pairs are always found and mostly go on
otherwise (drawn from four tokens). What is printed is the median over rounds, beside no drafts.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent / "gpu")]
import bench_serve_adapters as models_of  # noqa: E402
import common  # noqa: E402
import serve_throughput as shapes  # noqa: E402

TEXTS = {
    "repeats itself": {"temperature": 0},
    "never matches": {"temperature": 5, "seed": 1},
    "matches, mostly wrong": {"temperature": 5, "seed": 1, "logit_bias": {token: 100 for token in (1001, 1002, 1003, 1004)}},
}


def measure(llm, parameters, drafts, requests, new, turn):
    """Tokens a second, and of the drafts the part that was right."""
    rng = random.Random(turn)
    prompts = [[rng.randrange(2000, 20000) for _ in range(32)] for _ in range(requests)]
    before = llm.engine.stats()
    begin = time.perf_counter()
    outputs = llm.generate(prompts, max_tokens=new, ignore_eos=True, num_speculative_tokens=drafts, **parameters)
    seconds = time.perf_counter() - begin
    after = llm.engine.stats()
    guessed, right, steps = (after[name] - before[name] for name in ("draft_tokens", "accepted_tokens", "steps"))
    return sum(len(o.token_ids) for o in outputs) / seconds, guessed, right, steps, [o.token_ids for o in outputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=["small", *shapes.SHAPES], default="small")
    parser.add_argument("--drafts", default="3,7")
    for name, default in (("requests", 1), ("new", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    import accrt
    from accrt import serve
    from accrt.compiler import available_targets

    config = models_of.config_of(given.shape)
    counts = [0, *map(int, given.drafts.split(","))]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = ["aarch64"] if platform.machine() == "aarch64" else ["x86-64-v3", "x86-64-v4"]
        models_of.make(folder / "plain.accx", config, 0, 1, available_targets(hosts))
        shapes.write_model(folder, config)
        loaded = serve.load(str(folder / "plain.accx"), weights=str(folder / "model.safetensors"), device="host")
        with accrt.LLM(loaded, max_running=max(given.requests, 1)) as llm:
            for text, parameters in TEXTS.items():
                found = {count: [] for count in counts}
                for turn in range(given.rounds + 1):
                    runs = {count: measure(llm, parameters, count, given.requests, given.new, turn) for count in counts}
                    assert all(run[4] == runs[0][4] for run in runs.values()), "drafts changed the tokens"
                    for count, run in runs.items():
                        if turn:  # the first one makes plans
                            found[count].append(run)
                base = [run[0] for run in found[0]]
                for count, several in found.items():
                    rate, gain = statistics.median(run[0] for run in several), statistics.median(run[0] / b for run, b in zip(several, base))
                    guessed, right = sum(run[1] for run in several), sum(run[2] for run in several)
                    steps = statistics.median(run[3] for run in several)
                    rows.append({"text": text, "drafts": count, "tokens_per_s": rate, "times": gain, "right": right / max(guessed, 1), "steps": steps})
                    print(f"{text:24s} {count:2d} drafts {rate:8.1f} tok/s  {gain:5.2f} times  {steps:5.0f} steps  {100 * right / max(guessed, 1):3.0f}% of {guessed} right",
                          flush=True)  # fmt: skip
    common.save("serve_drafts", {**vars(given), "rows": rows})


if __name__ == "__main__":
    main()
