"""The engine on one GPU: Llama 3.2 1B's or Llama 3 8B's shape with random weights in bf16.

    python3 bench/gpu/serve_throughput.py [--shape 1b] [--bundle FILE] [--json FILE] [PART ...]
    python3 bench/gpu/serve_throughput.py --shape 1b --make FILE       # compiles the bundle, for a machine without nvcc
    python3 bench/gpu/serve_throughput.py --shape 1b --batch-invariant --make FILE

Parts: tokens (time between tokens of one request), batch (256 requests of 32 to 512 tokens, 128 new
each, in process), http (the same over HTTP), steady (256 running: a step of the engine beside the
same graphs replayed), start (process start to first token), prefix (a hit of 8k tokens), idle (the
device's time line, by torch's profiler), limit (the copy speed, and the time that reading all
weights takes), overload (ten times the requests that it can serve, each with a deadline), schema
(every second row of 128 with a JSON schema; needs llguidance), invariant (throughput of a bundle
that is batch-invariant, beside the other one; needs --invariant FILE), peer
(transformers with a static cache and compiled; its continuous batching).
Without names: all from limit to start.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHAPES = {
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64, "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128, "tie_word_embeddings": False},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64, "tie_word_embeddings": True,
             "vocab_size": 4096},
}  # fmt: skip
COMMON = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 16384,
          "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
REQUESTS, NEW = 256, 128
#: A gap this long lies between two steps; kernels of one graph follow one another within 0.5 us.
BETWEEN_STEPS_NS = 1000
#: New tokens of transformers' two timed calls: the time between tokens is the difference's.
PEER_TOKENS = (20, 120)
#: Numbers that weights repeat after: odd, so that no row of a matrix is another's, which would
#: give many tokens the same logit.
PIECE = (1 << 22) + 1


def config_of(shape):
    config = {**COMMON, **SHAPES[shape]}
    config["num_key_value_heads"] = min(config["num_key_value_heads"], config["num_attention_heads"])
    return config


def shapes(c):
    hidden, wide, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    heads = c["num_attention_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (heads, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, heads)),
            ("mlp.gate_proj", (wide, hidden)), ("mlp.up_proj", (wide, hidden)), ("mlp.down_proj", (hidden, wide)), ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):  # fmt: skip
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def weight_bytes(config):
    return sum(2 * int(np.prod(shape)) for _name, shape in shapes(config))


def write_model(folder, config, content=True):
    """A folder with random weights of about 0.02; without content the file is a hole, which is
    enough to compile."""
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in shapes(config):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = ((np.random.default_rng(1).standard_normal(PIECE) * 0.02).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin = file.tell()
        for _ in range(at // len(piece) if content else 0):
            file.write(piece)
        file.write(piece[: at % len(piece)] if content else b"")
        file.truncate(begin + at)


def make(path, config, targets, batch_invariant=False):
    """The bundle, with a table of made-up tokens."""
    from accrt import models
    from accrt.compiler import driver
    from accrt.models import _tokens

    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), config, content=False)
        made = models.decoder(models.read(name), models.Options(batch_invariant=batch_invariant))
        tokens = [bytes([i]) if i < 256 else b" w%d" % i for i in range(config["vocab_size"])]
        table = _tokens.table(tokens, [0] * len(tokens))
        driver.compile(made.build(), path, targets=targets, assets={"serve.token_bytes": (table, "application/octet-stream")})


# ---- What is measured ----------------------------------------------------------------------------


def serve_request(prompt, engine=None, **parameters):
    """`engine`: the one that a grammar is for."""
    from accrt import serve
    from accrt.serve.engine import now_ns
    from accrt.serve.parameters import checked, grammar_of

    values = checked(parameters)
    grammar = grammar_of(values)
    return serve.Request(prompt, values, now_ns(), *([] if grammar is None else [engine.constraint(grammar)]))


class Table:
    def __init__(self):
        self.rows = []

    def add(self, part, what, value, unit, note=""):
        self.rows.append({"part": part, "what": what, "value": value, "unit": unit, "note": note})
        print(f"{part:8s} {what:58s} {value:12.3f} {unit:6s} {note}", flush=True)


class Bench:
    def __init__(self, bundle, folder, config, table, device):
        self.bundle, self.folder, self.config, self.table, self.device = str(bundle), folder, config, table, device
        self._llm = None

    def loaded(self, progress=True):
        from accrt import serve

        say = (lambda what, seconds: self.table.add("load", what, seconds, "s")) if progress else None
        return serve.load(self.bundle, weights=str(self.folder / "model.safetensors"), device=self.device, kv_bytes=16 << 30, progress=say)

    @property
    def llm(self):
        import accrt

        if self._llm is None:
            self._llm = accrt.LLM(self.loaded(), max_running=256)
        return self._llm

    def prompts(self, count=REQUESTS, seed=1, least=32, most=512):
        rng = random.Random(seed)
        return [[rng.randrange(1000, self.config["vocab_size"]) for _ in range(rng.randint(least, most))] for _ in range(count)]

    def stats(self):
        from accrt import _ffi
        from accrt._library import check, lib, struct

        found = struct(_ffi.accrt_serve_stats)
        check(lib.accrt_serve_engine_stats(self.llm.engine.handle, ctypes.byref(found)))
        return found

    # ---- one request ----

    def tokens(self):
        for what, parameters in (("greedy", {"temperature": 0}), ("top-k 40, top-p 0.9", {"temperature": 0.8, "top_k": 40, "top_p": 0.9})):
            between, first, host = [], [], []
            for seed in range(3):
                prompt, begin, times = self.prompts(1, 90 + seed, 128, 128)[0], time.perf_counter(), []
                before = self.stats()
                for piece in self.llm.stream(prompt, max_tokens=400, ignore_eos=True, **parameters):
                    times += [time.perf_counter()] * len(piece.token_ids)
                after = self.stats()
                host.append((after.schedule_ns - before.schedule_ns) / max(1, after.steps - before.steps) / 1e3)
                first.append((times[0] - begin) * 1e3)
                between.append((times[-1] - times[20]) / (len(times) - 21) * 1e3)
            self.table.add("tokens", f"one request, between tokens, {what}", statistics.median(between), "ms", f"of {[round(x, 3) for x in between]}")
            self.table.add("tokens", f"one request, first token of 128, {what}", statistics.median(first), "ms")
            self.table.add("tokens", f"the engine's own part of a step, {what}", statistics.median(host), "us")

    # ---- many requests ----

    def _drained(self, prompts, **parameters):
        """Seconds, new tokens, steps, and the engine's own microseconds of a step."""
        requests = [serve_request(prompt, **{"max_tokens": NEW, "ignore_eos": True, **parameters}) for prompt in prompts]
        before, begin = self.stats(), time.perf_counter()
        for request in requests:
            self.llm.engine.submit(request)
        tokens = self._take(len(requests))
        seconds, after = time.perf_counter() - begin, self.stats()
        return seconds, tokens, after.steps - before.steps, (after.schedule_ns - before.schedule_ns) / 1e3 / (after.steps - before.steps)

    def _on_device(self, prompts, **parameters):
        """What the device runs until the requests have ended, by torch's profiler: of each kernel
        and copy its begin and duration in ns, and its name, in order."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self._drained(prompts, **parameters)
        return sorted((e.start_ns(), e.duration_ns(), e.name()) for e in seen.profiler.kineto_results.events() if "CUDA" in str(e.device_type()))

    def _take(self, left, pause=0.005):
        """New tokens of requests until so many have ended; events are counted by the library's own
        struct, not made into objects. With a pause they are taken in lots."""
        from accrt import _ffi
        from accrt._library import lib

        engine, tokens = self.llm.engine.handle, 0
        events, count = (_ffi.accrt_serve_event * 1024)(), ctypes.c_uint32()
        while left > 0:
            if lib.accrt_serve_engine_wait(engine, 10_000_000_000) != 0:
                raise RuntimeError(f"{left} requests stand still: {self.llm.engine.stats()}")
            time.sleep(pause)
            while lib.accrt_serve_engine_poll(engine, events, ctypes.sizeof(events[0]), 1024, ctypes.byref(count)) == 0 and count.value:
                got = np.frombuffer(events, np.uint8).reshape(1024, -1)[: count.value]
                tokens += int(got[:, EVENT_TOKENS : EVENT_TOKENS + 4].copy().view(np.uint32).sum())
                left -= int(got[:, EVENT_LAST : EVENT_LAST + 4].copy().view(np.uint32).astype(bool).sum())
        return tokens

    def batch(self):
        self._drained(self.prompts(32, 5))
        # Prompts that no run has had: the prefix cache would have those.
        for first, what, parameters in ((7, "greedy", {"temperature": 0}), (107, "top-k 40, top-p 0.9", {"temperature": 0.8, "top_k": 40, "top_p": 0.9})):
            best = min(self._drained(self.prompts(seed=first + i), **parameters) for i in range(3))
            seconds, tokens, steps, own = best
            self.table.add("batch", f"{REQUESTS} requests of 32 to 512, {NEW} new each, {what}", tokens / seconds, "tok/s", f"{seconds:.3f} s, {steps} steps, engine {own:.1f} us a step")
        begin = time.perf_counter()
        outputs = self.llm.generate(self.prompts(seed=17), max_tokens=NEW, ignore_eos=True, temperature=0)
        seconds = time.perf_counter() - begin
        self.table.add("batch", "the same, LLM.generate", sum(len(o.token_ids) for o in outputs) / seconds, "tok/s")

    def steady(self):
        """All decode at some 400 keys: steps of the engine, and the graphs of such a step submitted
        again and again."""
        begin = time.perf_counter()
        each = self._steps(self.prompts(REQUESTS, 32, 368, 368), 48)
        alone = self.replayed(REQUESTS)
        self.table.add("steady", f"{REQUESTS} running, a step of the engine", each, "us")
        self.table.add("steady", f"{REQUESTS} rows, the same graphs replayed", alone, "us", f"{time.perf_counter() - begin:.1f} s")
        self.table.add("steady", "what the engine adds", (each / alone - 1) * 100, "%")
        one, alone = self._steps(self.prompts(1, 33, 368, 368), 48), self.replayed(1)
        self.table.add("steady", "1 running, a step of the engine", one, "us")
        self.table.add("steady", "1 row, the same graphs replayed", alone, "us")
        self.table.add("steady", "what the engine adds to one", (one / alone - 1) * 100, "%")

    def _steps(self, prompts, count):
        """Microseconds of a step while all requests decode: `count` steps from one's end to
        another's."""
        made = [serve_request(prompt, max_tokens=count + 40, ignore_eos=True, temperature=0) for prompt in prompts]
        before = self.stats().prompt_tokens
        for request in made:
            self.llm.engine.submit(request)
        while self.stats().prompt_tokens - before < sum(map(len, prompts)):
            time.sleep(0.001)
        edges, steps = [], self.stats().steps + 4
        for wanted in (steps, steps + count):
            while self.stats().steps < wanted:
                time.sleep(0.0001)
            edges.append((time.perf_counter(), self.stats().steps))
        self._take(len(made))
        return (edges[1][0] - edges[0][0]) / (edges[1][1] - edges[0][1]) * 1e6

    def replayed(self, rows, keys=400, page=16):
        """Microseconds of a step and sample_greedy, submitted again and again by calls that are
        bound once."""
        import accrt

        if not hasattr(self, "_session"):
            program = accrt.Bundle(self.bundle).program(device=accrt.default_instance().device(self.device), weights=[accrt.Weights(self.folder / "model.safetensors")])
            # As many columns as the engine's table has: kernels are chosen by that.
            self._table = np.zeros((REQUESTS, self.config["max_position_embeddings"] // page), np.int32)
            self._table[:, :32] = np.random.default_rng(1).permutation(REQUESTS * 32).reshape(REQUESTS, 32)
            self._session = program.session({"pages": REQUESTS * 32, "table_rows": REQUESTS, "table_pages": self._table.shape[1]})
            state = self._session.state("page_table")
            self._session.stream.copy(self._table, state.buffer, self._table.nbytes, target_offset=state.offset_bytes)
        session, pool, i32 = self._session, accrt.Pool(self._session.stream.device), np.int32

        def tensor(x):
            buffer = pool.buffer(max(x.nbytes, 16))
            session.stream.copy(x, buffer, x.nbytes)
            session.stream.synchronize()
            return accrt.Tensor(buffer, {"int32": "i32", "float32": "f32"}[x.dtype.name], x.shape)

        every, changes = np.arange(rows, dtype=i32), 256 if rows > 64 else 16
        given = (every + 5, np.full(rows, keys - 1, i32), (self._table[:rows, (keys - 1) // page] * page + (keys - 1) % page).astype(i32), every,
                 np.arange(rows + 1, dtype=i32), every, np.full(rows, keys, i32), np.full(changes, -1, i32), np.zeros(changes, i32), every)  # fmt: skip
        logits = tensor(np.zeros((rows, self.config["vocab_size"]), np.float32))
        calls = [session.step.bind(*map(tensor, given), out=logits), session.sample_greedy.bind(logits, tensor(every))]
        took = []
        for _ in range(5):
            session.stream.synchronize()
            begin = time.perf_counter()
            for _ in range(40):
                for call in calls:
                    call.submit()
            session.stream.synchronize()
            took.append((time.perf_counter() - begin) / 40 * 1e6)
        return statistics.median(took)

    def prefix(self):
        prompt, first, hit = self.prompts(1, 77, 8192, 8192)[0], [], []
        for seed in range(3):
            head = [seed + 5, *prompt]
            for times in (first, hit, hit):
                # To its end: steps of a request that was left would run before those of the next.
                begin = time.perf_counter()
                for number, _piece in enumerate(self.llm.stream([*head, 100 + len(hit)], max_tokens=4, ignore_eos=True, temperature=0)):
                    if number == 0:
                        times.append((time.perf_counter() - begin) * 1e3)
        self.table.add("prefix", "first token of a prompt of 8k tokens", statistics.median(first), "ms", f"{8193 / statistics.median(first) * 1e3:.0f} tok/s")
        self.table.add("prefix", "first token after a hit of 8k tokens", statistics.median(hit), "ms", f"of {[round(x, 2) for x in hit]}")
        self._parts_of_a_hit([seed + 5, *prompt])

    def _parts_of_a_hit(self, head):
        """Where a hit's time goes: Python's parts, the engine's, and what the device runs of it, as
        torch's profiler sees it."""
        parts = []
        for i in range(6):
            marks, before = [time.perf_counter()], self.stats()
            request = serve_request([*head, 200 + i], max_tokens=1, ignore_eos=True, temperature=0)
            marks.append(time.perf_counter())
            self.llm.engine.submit(request)
            marks.append(time.perf_counter())
            self._take(1, pause=0)
            marks.append(time.perf_counter())
            after = self.stats()
            parts.append([(b - a) * 1e3 for a, b in zip(marks, marks[1:])] + [after.steps - before.steps, (after.schedule_ns - before.schedule_ns) / 1e6])
        for what, unit, values in zip(("checks of the request, Python", "submit", "from then to its last event", "steps", "of it the engine's own"), ("ms", "ms", "ms", "", "ms"), zip(*parts)):
            self.table.add("prefix", f"a hit apart: {what}", statistics.median(values), unit, f"of {[round(x, 2) for x in values]}")
        found = self._on_device([[*head, 300]], max_tokens=1, temperature=0)
        span = found[-1][0] + found[-1][1] - found[0][0]
        self.table.add("prefix", "a hit apart: on the device, from its first work to its last", span / 1e6, "ms", f"{len(found)} kernels and copies, busy {sum(e[1] for e in found) / 1e6:.2f} ms")
        sums = {}
        for _at, took, name in found:
            count, total = sums.get(name, (0, 0))
            sums[name] = (count + 1, total + took)
        for name, (count, total) in sorted(sums.items(), key=lambda item: -item[1][1])[:8]:
            print(f"#   {total / 1e3:9.1f} us = {count:4d} x {total / count / 1e3:8.2f}  {name[:110]}", flush=True)

    def idle(self):
        """The device's time line while requests decode, by torch's profiler: what part of it no
        kernel runs, and where the rest goes."""
        for rows in (1, REQUESTS):
            prompts = self.prompts(rows, 51 + rows, 300, 300)
            self._drained(prompts, max_tokens=8, temperature=0)
            found = self._on_device([[*prompt, 7] for prompt in prompts], max_tokens=40, temperature=0)
            first, last = found[0][0], found[-1][0]
            found = [e for e in found if first + 0.4 * (last - first) <= e[0] <= first + 0.9 * (last - first)]
            busy, between, end, sums, gaps = 0, 0, found[0][0], {}, {}
            for at, took, name in found:
                if at > end:
                    between += at - end if at - end >= BETWEEN_STEPS_NS else 0
                    count, total = gaps.get(name, (0, 0))
                    gaps[name] = (count + 1, total + at - end)
                busy += max(0, at + took - max(at, end))
                end = max(end, at + took)
                count, total = sums.get(name, (0, 0))
                sums[name] = (count + 1, total + took)
            span = end - found[0][0]
            self.table.add("idle", f"device idle while {rows} decode (profiled)", 100 * (1 - busy / span), "%", f"{len(found)} kernels and copies in {span / 1e6:.1f} ms")
            self.table.add("idle", "of it between steps (gaps of 1 us and more)", 100 * between / span, "%")
            for name, (count, total) in sorted(sums.items(), key=lambda item: -item[1][1])[:14]:
                print(f"#   {100 * total / span:5.1f} % {total / count / 1e3:9.2f} us x {count:6d}  {name[:110]}", flush=True)
            for name, (count, total) in sorted(gaps.items(), key=lambda item: -item[1][1])[:6]:
                print(f"#   {100 * total / span:5.1f} % {total / count / 1e3:9.2f} us x {count:6d}  of nothing, before {name[:90]}", flush=True)

    # ---- what features cost ----

    def _lost(self, what, other, own, rounds=3):
        """How much of the throughput is lost, the median over rounds in which both take turns."""
        rates = [(own(i), other(i)) for i in range(rounds)]
        lost = [100 * (1 - b / a) for a, b in rates]
        without, with_it = (statistics.median(rate[i] for rate in rates) for i in (0, 1))
        self.table.add(what, "throughput without", without, "tok/s")
        self.table.add(what, "throughput with it", with_it, "tok/s")
        self.table.add(what, "lost", statistics.median(lost), "%", f"of {[round(x, 1) for x in lost]}")

    def invariant(self):
        import accrt
        from accrt import serve

        loaded = serve.load(self.invariant_bundle, weights=str(self.folder / "model.safetensors"), device=self.device, kv_bytes=16 << 30)
        plain, strict = self.llm, accrt.LLM(loaded, max_running=256, batch_invariant=True)

        def rate(llm, seed):
            self._llm = llm
            seconds, tokens, _steps, _own = self._drained(self.prompts(seed=seed), temperature=0)
            return tokens / seconds

        try:
            rate(strict, 300), rate(plain, 301)
            self._lost("invariant", lambda i: rate(strict, 310 + i), lambda i: rate(plain, 320 + i))
            for rows in (1, REQUESTS):
                self._llm = strict
                self.table.add("invariant", f"{rows} running, a step of the engine", self._steps(self.prompts(rows, 34, 368, 368), 48), "us")
        finally:
            self._llm = plain
            strict.close()

    def schema(self):
        rows, schema = 128, {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 100},
                                                              "b": {"type": "array", "items": {"type": "integer"}, "minItems": 100}},
                             "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
        prompts = self.prompts(rows, 60, 32, 64)

        def rate(constrained):
            common = {"max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "engine": self.llm.engine}
            requests = [serve_request(p, seed=i, **common, **({"guided_json": schema} if i < constrained else {})) for i, p in enumerate(prompts)]
            begin = time.perf_counter()
            for request in requests:
                self.llm.engine.submit(request)
            return self._take(rows) / (time.perf_counter() - begin)

        rate(rows // 2)  # the schema is compiled
        self._lost("schema", lambda i: rate(rows // 2), lambda i: rate(0))

    def overload(self, times=10, seconds=3.0, limit=2.0):
        """`times` the requests that the engine can serve, for some seconds: tokens a second of
        those that end before their deadlines, beside what it gives when it is just busy. The time
        that the last ones take counts."""
        rate = max(REQUESTS * NEW / self._drained(self.prompts(seed=400 + i), temperature=0)[0] for i in range(2))
        count, rng = int(times * rate / NEW * seconds), np.random.default_rng(401)
        prompts = [rng.integers(1000, self.config["vocab_size"], rng.integers(32, 513)).tolist() for _ in range(count)]
        ended, good, refused, begin = 0, 0, 0, time.perf_counter()
        for i, prompt in enumerate(prompts):
            while begin + i * seconds / count > time.perf_counter():
                found = self._ended()
                ended, good = ended + found[0], good + found[1]
            try:
                self.llm.engine.submit(serve_request(prompt, max_tokens=NEW, ignore_eos=True, temperature=0, timeout=limit))
            except Exception:  # the queue is full, which is what it is for
                refused += 1
        while ended < count - refused:
            time.sleep(0.001)
            found = self._ended()
            ended, good = ended + found[0], good + found[1]
        passed = time.perf_counter() - begin
        self.table.add("overload", f"{times} times the requests: tokens of those that end in time", good * NEW / passed, "tok/s",
                       f"of {rate:.0f}; {count} requests in {seconds} s, {refused} refused, {ended - good} not in time, all over after {passed:.2f} s")  # fmt: skip
        self.table.add("overload", "goodput kept", 100 * good * NEW / passed / rate, "%")

    def _ended(self):
        """Requests that have ended since, and how many of these are complete."""
        from accrt import _ffi
        from accrt._library import lib

        events, count, ended, good = (_ffi.accrt_serve_event * 1024)(), ctypes.c_uint32(), 0, 0
        reason = _ffi.accrt_serve_event.finish_reason.offset
        while lib.accrt_serve_engine_poll(self.llm.engine.handle, events, ctypes.sizeof(events[0]), 1024, ctypes.byref(count)) == 0 and count.value:
            got = np.frombuffer(events, np.uint8).reshape(1024, -1)[: count.value]
            last = got[:, EVENT_LAST : EVENT_LAST + 4].copy().view(np.uint32).ravel() != 0
            ended += int(last.sum())
            good += int((last & (got[:, reason : reason + 4].copy().view(np.uint32).ravel() == _ffi.ACCRT_SERVE_FINISH_LENGTH)).sum())
        return ended, good

    # ---- over HTTP ----

    def http(self):
        from accrt import serve

        server = serve.Server(self.llm.engine, self.llm._loaded.text, name="bench", port=0, workers=4)
        try:
            for what, stream in (("whole answers", False), ("streams", True)):
                for turn in range(2):
                    bodies = [json.dumps({"model": "bench", "prompt": p, "max_tokens": NEW, "ignore_eos": True, "temperature": 0, "stream": stream}) for p in self.prompts(seed=40 + turn + 2 * stream)]
                    told = json.dumps({"port": server.port, "bodies": bodies})
                    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--client"], input=told, capture_output=True, text=True, timeout=120)
                    if done.returncode != 0:
                        raise RuntimeError(done.stderr[-2000:])
                seconds = json.loads(done.stdout)["seconds"]
                self.table.add("http", f"{REQUESTS} requests of 32 to 512, {NEW} new each, {what}", REQUESTS * NEW / seconds, "tok/s", f"{seconds:.3f} s")
        finally:
            server.close()

    def start(self):
        code = ("import time, sys, os\nbegin = float(sys.argv[1])\nimport accrt\nsaid = time.time() - begin\n"
                "llm = accrt.LLM(sys.argv[2], weights=sys.argv[3], device=sys.argv[5], kv_bytes=4 << 30, prepare=int(sys.argv[4]), max_running=256,\n"
                "                progress=lambda what, seconds: print(f'#   {what}: {seconds:.3f} s'))\n"
                "llm.generate([1, 2, 3, 4, 5], max_tokens=1, ignore_eos=True)\nprint(f'# import {said:.3f} s')\n"
                "print(time.time() - begin, flush=True)\nos._exit(0)")  # fmt: skip
        for prepare in (0, 1):
            found = []
            for _ in range(2):
                done = subprocess.run([sys.executable, "-c", code, str(time.time()), self.bundle, str(self.folder / "model.safetensors"), str(prepare), self.device],
                                      capture_output=True, text=True, timeout=120)  # fmt: skip
                if done.returncode != 0:
                    raise RuntimeError(done.stderr[-2000:])
                found.append(float(done.stdout.split()[-1]))
            print("\n".join(line for line in done.stdout.splitlines() if line.startswith("#")), flush=True)
            self.table.add("start", f"process start to first token, {'all sizes prepared' if prepare else 'nothing prepared'}", min(found), "s", f"of {[round(x, 2) for x in found]}")

    def limit(self):
        """The time that reading all weights once takes, at the speed of a copy on the device."""
        import accrt

        device = accrt.default_instance().device(self.device)
        pool, stream, size = accrt.Pool(device), accrt.Stream(device), 1 << 30
        a, b, took = pool.buffer(size), pool.buffer(size), []
        for _ in range(5):
            stream.synchronize()
            begin = time.perf_counter()
            for _ in range(20):
                stream.copy(a, b, size)
            stream.synchronize()
            took.append((time.perf_counter() - begin) / 20)
        speed = 2 * size / min(took)
        self.table.add("limit", "copy speed, bytes read and written", speed / 1e12, "TB/s")
        self.table.add("limit", "weights read once at that speed", weight_bytes(self.config) / speed * 1e3, "ms")

    # ---- transformers ----

    def peer(self):
        import torch
        import transformers

        config = transformers.LlamaConfig(**{k: v for k, v in self.config.items() if k not in ("torch_dtype", "architectures", "rope_theta")},
                                          rope_parameters={"rope_type": "default", "rope_theta": self.config["rope_theta"]})  # fmt: skip
        with torch.device("cuda"):
            torch.set_default_dtype(torch.bfloat16)
            model = transformers.LlamaForCausalLM(config).eval()
        prompt = torch.tensor(self.prompts(1, 90, 128, 128), device="cuda")
        common = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        try:
            for count in PEER_TOKENS:  # warm
                model.generate(prompt, max_new_tokens=count, **common)
            took = []
            for count in PEER_TOKENS:
                torch.cuda.synchronize()
                begin = time.perf_counter()
                model.generate(prompt, max_new_tokens=count, **common)
                torch.cuda.synchronize()
                took.append(time.perf_counter() - begin)
            self.table.add("peer", "transformers, one request, between tokens, dynamic cache", (took[1] - took[0]) / (PEER_TOKENS[1] - PEER_TOKENS[0]) * 1e3, "ms")
        except Exception as error:  # a peer that fails is said, and the rest goes on
            print(f"peer     dynamic cache: {type(error).__name__}: {str(error)[:300]}", flush=True)
        try:
            import static_cache_peer

            begin = time.perf_counter()
            found = static_cache_peer.measured(model, "reduce-overhead")
            self.table.add("peer", "transformers, one request, between tokens, static cache, compiled", statistics.median(found), "ms", f"of {[round(x, 3) for x in found]}, {time.perf_counter() - begin:.1f} s in all")
        except Exception as error:
            print(f"peer     static cache: {type(error).__name__}: {str(error)[:300]}", flush=True)
        try:
            prompts = self.prompts()[:128]
            given = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
            model.set_attn_implementation("paged|sdpa") if hasattr(model, "set_attn_implementation") else None
            begin = time.perf_counter()
            outputs = model.generate_batch(inputs=prompts, generation_config=given)
            seconds = time.perf_counter() - begin
            self.table.add("peer", f"transformers, continuous batching, {len(prompts)} requests", sum(len(o.generated_tokens) for o in outputs.values()) / seconds, "tok/s", f"{seconds:.1f} s")
        except Exception as error:
            print(f"peer     continuous batching: {type(error).__name__}: {str(error)[:300]}", flush=True)


def client():
    """Sends all requests at once, each over a connection of its own, and reads the answers to their
    ends."""
    told = json.loads(sys.stdin.read())
    selector, sockets = selectors.DefaultSelector(), []
    for body in told["bodies"]:
        one = socket.create_connection(("127.0.0.1", told["port"]))
        data = body.encode()
        sockets.append((one, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data))
    begin = time.perf_counter()
    for one, data in sockets:
        one.sendall(data)
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
    left, heads = len(sockets), {}
    while left:
        for key, _ in selector.select():
            piece = key.fileobj.recv(1 << 18)
            if key.fd not in heads:
                heads[key.fd] = piece[:15]
            if not piece:
                selector.unregister(key.fileobj)
                left -= 1
    seconds = time.perf_counter() - begin
    wrong = [head for head in heads.values() if not head.startswith(b"HTTP/1.1 200")]
    if wrong:
        sys.exit(f"{len(wrong)} answers begin with {wrong[0]!r}")
    print(json.dumps({"seconds": seconds}))


def main():
    global EVENT_TOKENS, EVENT_LAST
    if sys.argv[1:] == ["--client"]:
        return client()
    parts = ("limit", "tokens", "batch", "http", "prefix", "steady", "start", "overload", "schema", "invariant", "idle", "peer")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *parts])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--bundle")
    parser.add_argument("--make")
    parser.add_argument("--batch-invariant", action="store_true", help="of what --make makes")
    parser.add_argument("--invariant", help="a bundle that was made so")
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--json")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    config = config_of(given.shape)
    if given.make:
        return make(given.make, config, [given.target], given.batch_invariant)
    from accrt import _ffi

    EVENT_TOKENS, EVENT_LAST = _ffi.accrt_serve_event.token_count.offset, _ffi.accrt_serve_event.last.offset
    assert _ffi.accrt_serve_event.token_count.size == _ffi.accrt_serve_event.last.size == 4
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder, table = Path(name), Table()
        begin = time.perf_counter()
        write_model(folder, config)
        table.add("load", "wrote random weights", time.perf_counter() - begin, "s", f"{weight_bytes(config) / 1e9:.2f} GB")
        bundle = given.bundle
        if not bundle:
            bundle = folder / "model.accx"
            make(bundle, config, [given.target])
        bench = Bench(bundle, folder, config, table, given.device)
        bench.invariant_bundle = given.invariant
        for part in given.parts or parts[:7]:
            begin = time.perf_counter()
            try:
                getattr(bench, part)()
            except Exception as error:  # the other parts go on
                import traceback

                traceback.print_exc()
                print(f"{part:8s} failed: {type(error).__name__}: {error}", flush=True)
            print(f"# {part} took {time.perf_counter() - begin:.1f} s", flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps({"shape": given.shape, "rows": table.rows}, indent=1))
    return None


if __name__ == "__main__":
    main()
