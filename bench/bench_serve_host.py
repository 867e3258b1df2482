"""How fast a model is served by processors: prompts, decoding, and eight requests at once, with one
thread and with two; where llama-cpp-python is installed beside llama.cpp with the same GGUF file.

    python bench/make_serve_model.py PLACE gguf
    python bench/bench_serve_host.py --model PLACE/q8_0.gguf PLACE/q4_k.gguf [--peer ENV/bin/python] [--priority]

Both sides are processes that take turns, a piece of work each; the other one sleeps meanwhile. What
counts is wall time; --priority gives both the right of way (SCHED_RR), so that other work on the
machine changes it less. The table has tokens in a second: medians, and their first and last
quarters. --peer is a Python that has llama_cpp; only .gguf files are measured with it.

prefill: a prompt of random tokens and one token of answer. decode: --new tokens, one request.
batch: as many for each of eight requests, whose prompts have 16 tokens; llama.cpp has them as eight
sequences of one batch. Both draw the most likely token.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time

import common

sys.path.insert(0, str(common.ROOT / "python"))

REQUESTS, SHORT = 8, 16
WORKS = ("prefill", "decode", "batch")


class Ours:
    def __init__(self, options: argparse.Namespace) -> None:
        import accrt

        self.options, self.llm = options, accrt.LLM(options.model[0])

    def prefill(self, prompt: "list[int]") -> None:
        self.llm.generate(prompt, max_tokens=1, temperature=0)

    def decode(self, prompts: "list[list[int]]", new: int) -> None:
        for output in self.llm.generate(prompts, max_tokens=new, min_tokens=new, temperature=0, ignore_eos=True):
            assert len(output.token_ids) == new, output


class Theirs:
    def __init__(self, options: argparse.Namespace) -> None:
        import ctypes

        import llama_cpp
        import numpy

        self.api, self.np, self.ctypes = llama_cpp, numpy, ctypes
        llama_cpp.llama_log_set(ctypes.cast(None, llama_cpp.llama_log_callback), None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(options.model[0].encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        # It is shared out among the sequences.
        parameters.n_ctx = REQUESTS * max(options.tokens + 16, SHORT + options.new)
        parameters.n_batch = parameters.n_ubatch = max(512, options.tokens)
        parameters.n_seq_max = REQUESTS
        parameters.n_threads = parameters.n_threads_batch = options.threads[0]
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(max(512, options.tokens), 0, 1)

    def _step(self, tokens: "list[tuple[int, int, int, bool]]") -> "list[int]":
        """Tokens, places, sequences, and whether the next one is wanted: these."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, place, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, place, 1, wanted
            batch.seq_id[i][0] = sequence
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        rows = [self.api.llama_get_logits_ith(self.context, i) for i, one in enumerate(tokens) if one[3]]
        return [int(self.np.argmax(self.np.ctypeslib.as_array(row, (self.vocabulary,)))) for row in rows]

    def _clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def prefill(self, prompt: "list[int]") -> None:
        self._clear()
        self._step([(token, i, 0, i == len(prompt) - 1) for i, token in enumerate(prompt)])

    def decode(self, prompts: "list[list[int]]", new: int) -> None:
        self._clear()
        last = self._step([(token, i, s, i == SHORT - 1) for s, prompt in enumerate(prompts) for i, token in enumerate(prompt)])
        for k in range(new - 1):
            last = self._step([(token, SHORT + k, s, True) for s, token in enumerate(last)])


def serve(side: "Ours | Theirs", options: argparse.Namespace) -> None:
    """Does what each line of the input names, and answers with the seconds that it took."""
    numbers = random.Random(options.seed)

    def prompt(count: int) -> "list[int]":
        return [numbers.randrange(options.vocabulary) for _ in range(count)]

    for line in sys.stdin:
        work = line.strip()
        prompts = [prompt(options.tokens)] if work == "prefill" else [prompt(SHORT) for _ in range(REQUESTS if work == "batch" else 1)]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        if work == "prefill":
            side.prefill(prompts[0])
        else:
            side.decode(prompts, options.new)
        print(json.dumps([time.perf_counter() - begin, time.process_time() - begin_cpu]), flush=True)


class Child:
    def __init__(self, python: str, whose: str, model: str, threads: int, options: argparse.Namespace) -> None:
        command = [python, __file__, "--model", model, "--threads", str(threads), "--only", whose]
        for name in ("tokens", "new", "vocabulary", "seed"):
            command += [f"--{name}", str(getattr(options, name))]

        def prepare() -> None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
            if options.priority:
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))

        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=prepare)

    def take(self, work: str) -> "tuple[float, float]":
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args} ended")
        return tuple(json.loads(answer))

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(model: str, threads: int, options: argparse.Namespace) -> "dict[str, dict[str, list[float]]]":
    """Tokens in a second, by work and side."""
    sides = {"accrt": sys.executable}
    if options.peer and model.endswith(".gguf"):
        sides["llama.cpp"] = options.peer
    children = {name: Child(python, name, model, threads, options) for name, python in sides.items()}
    counts = {"prefill": options.tokens, "decode": options.new, "batch": REQUESTS * options.new}
    rates: "dict[str, dict[str, list[float]]]" = {work: {name: [] for name in sides} for work in options.works}
    for turn in range(options.rounds + 1):  # the first warms up
        for work in options.works:
            for name, child in children.items():
                wall, _cpu = child.take(work)
                if turn > 0:
                    rates[work][name].append(counts[work] / wall)
    for child in children.values():
        child.end()
    return rates


def shown(rates: "list[float]") -> str:
    if len(rates) < 2:
        return f"{rates[0]:8.1f}"
    first, middle, last = statistics.quantiles(rates, n=4)
    return f"{middle:8.1f} ({first:.1f} to {last:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[str(common.ROOT / "examples" / "bytelm")])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--tokens", type=int, default=192, help="of a prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens of a request that decodes")
    parser.add_argument("--vocabulary", type=int, default=250, help="prompts have tokens below this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--priority", action="store_true")
    parser.add_argument("--peer", default=sys.executable if importlib.util.find_spec("llama_cpp") else "")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        serve(Ours(options) if options.only == "accrt" else Theirs(options), options)
        return 0
    found = {}
    for model in options.model:
        for threads in options.threads:
            for work, sides in compare(model, threads, options).items():
                parts = [f"{name} {shown(rates)}" for name, rates in sides.items()]
                if len(sides) == 2:
                    ours, theirs = (statistics.median(rates) for rates in sides.values())
                    parts.append(f"{ours / theirs:.2f} x")
                print(f"  {os.path.basename(model):12} {threads} thread{'s' * (threads > 1)} {work:8} tokens/s: {'  '.join(parts)}", flush=True)
                found[f"{os.path.basename(model)}/{threads}/{work}"] = sides
    common.save("serve_host", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
