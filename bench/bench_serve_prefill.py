"""How fast prompts are computed: tokens in a second of one processor, where llama-cpp-python is
installed beside llama.cpp with the same GGUF file, in turns.

    python bench/make_serve_model.py PLACE
    python bench/bench_serve_prefill.py --model PLACE/q8_0.gguf [--tokens 512] [--rounds 4] [--peer ENV/bin/python]

Each is a process of its own on one processor with one thread. What counts is the process's time, as
other work on the machine changes that less. --peer is a Python that has llama_cpp; only a .gguf
file is measured with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

import common

sys.path.insert(0, str(common.ROOT / "python"))


def ours(model: str):
    import accrt

    llm = accrt.LLM(model)
    return lambda ids: llm.generate(ids, max_tokens=1, temperature=0)


def theirs(model: str, tokens: int):
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=tokens + 16, n_batch=tokens, n_ubatch=tokens, n_threads=1, n_threads_batch=1, verbose=False)

    def run(ids: "list[int]") -> None:
        llama.reset()
        llama.eval(ids)

    return run


def measure(whose: str, model: str, tokens: int, vocabulary: int) -> "list[float]":
    """Seconds of the process for three prompts of random tokens; the first warms up."""
    import random

    run = ours(model) if whose == "accrt" else theirs(model, tokens)
    numbers, taken = random.Random(1), []
    for _ in range(4):
        ids = [numbers.randrange(vocabulary) for _ in range(tokens)]
        begin = time.process_time()
        run(ids)
        taken.append(time.process_time() - begin)
    return taken[1:]


def child(python: str, whose: str, options: argparse.Namespace) -> "list[float]":
    command = [python, __file__, "--model", options.model, "--tokens", str(options.tokens), "--vocabulary", str(options.vocabulary), "--only", whose]
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(common.ROOT / "examples" / "bytelm"))
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--vocabulary", type=int, default=250, help="prompts have tokens below this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default=sys.executable if importlib.util.find_spec("llama_cpp") else "")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.model, options.tokens, options.vocabulary)))
        return 0
    peers = {"accrt": sys.executable}
    if options.peer and options.model.endswith(".gguf"):
        peers["llama.cpp"] = options.peer
    samples = {name: [] for name in peers}
    for _ in range(options.rounds):
        for name, python in peers.items():
            samples[name] += [options.tokens / taken for taken in child(python, name, options)]
    for name, rates in samples.items():
        rates.sort()
        print(f"  {name:10} {rates[len(rates) // 2]:7.1f} tokens in a second of a processor ({rates[0]:.1f} to {rates[-1]:.1f}), prompts of {options.tokens}")
    common.save("serve_prefill", samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
