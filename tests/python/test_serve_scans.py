"""A folder of a family with scans, attention and experts, served by accrt-serve: over HTTP with
prompts in chunks, a prefix cache, several answers, streams that are left, and adapters of PEFT.
Texts are those of one request at a time."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import serve_http
from serve_http import Answer, get, post, read_all, until

serve_http.need_server()

pytest.importorskip("tokenizers", reason="the package tokenizers is not here")

import family_models as family  # noqa: E402
import tiny_adapters  # noqa: E402

import accrt  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

GREEDY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
#: Prompts of several pages, and of less than one.
LONG = [7 * i % 200 + 3 for i in range(90)]
PROMPTS = [LONG, LONG[:48] + [5, 9, 11], [17, 4, 9], LONG[:70], [250 - i for i in range(33)]]


class Command:
    """accrt-serve in a process of its own."""

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(accrt.__file__))}
        self.process = subprocess.Popen([sys.executable, "-m", "accrt.serve", *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=environment)
        self.lines, self.port = [], 0
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"at http://\S+:(\d+) after", line)
            if found:
                self.port = int(found[1])
                break
        assert self.port, self.lines
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def raw(self, data):
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as client:
            client.sendall(data)
            return Answer(read_all(client))

    def complete(self, prompt, **more):
        answer = self.raw(post("/v1/completions", {"prompt": prompt, **GREEDY, **more}))
        assert answer.status == 200, answer.body
        return answer.json

    def metric(self, name):
        found = re.search(rf"^{name}(?:{{.*?}})? ([\d.e+]+)$", self.raw(get("/metrics")).body.decode(), re.M)
        assert found, name
        return float(found[1])

    def close(self):
        self.process.terminate()
        assert self.process.wait(30) == 0


def adapter_of(weights, rank=3):
    """Factors of products of attention and of mixers, by the names of transformers' modules."""
    rng, made = np.random.default_rng(1), {}
    for name, array in weights.items():
        if name.endswith(("q_proj.weight", "o_proj.weight", "in_proj.weight", "out_proj.weight")):
            sizes = (rank, array.shape[1]), (array.shape[0], rank)
            made[name[: -len(".weight")].replace("backbone.", "model.", 1)] = tuple(rng.standard_normal(size).astype(np.float32) / np.sqrt(size[1]) for size in sizes)
    return made


@pytest.fixture(scope="module", params=["jamba", "nemotron3", "minimax"])
def served(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("scans")
    folder, weights = family.write(place / "Scans-1", request.param, gain=1.0)
    adapter = adapter_of(weights)
    peft = tiny_adapters.write_adapter(place / "peft", adapter, alpha=6)
    made = Command(folder, "--port", 0, "--max-rank", 4, f"--adapter=mine={peft}", "--max-length", 256, "--max-chunk-tokens", 7)
    yield made
    made.close()


def test_answers_are_those_of_one_at_a_time(served):
    alone = [served.complete(prompt)["choices"][0]["text"] for prompt in PROMPTS]
    assert len(set(alone)) == len(alone)
    found = [None] * len(PROMPTS)

    def ask(at):
        found[at] = served.complete(PROMPTS[at])["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=[at]) for at in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == alone


def test_whole_pages_come_from_the_cache(served):
    prompt = [3 * i % 190 + 2 for i in range(70)]
    first, again = served.complete(prompt), served.complete(prompt)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64  # pages of 16


def test_several_answers_of_one_prompt(served):
    made = served.complete(PROMPTS[1], n=3)
    assert {choice["text"] for choice in made["choices"]} == {served.complete(PROMPTS[1])["choices"][0]["text"]}
    drawn = [served.complete(PROMPTS[1], n=3, temperature=1.0, seed=5) for _ in range(2)]
    texts = [[choice["text"] for choice in sorted(one["choices"], key=lambda choice: choice["index"])] for one in drawn]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3


def test_a_stream_that_is_left_ends(served):
    expected = served.complete(PROMPTS[2])["choices"][0]["text"]
    stream = served.raw(post("/v1/completions", {"prompt": PROMPTS[2], "stream": True, **GREEDY}))
    assert "".join(json.loads(event)["choices"][0]["text"] for event in stream.events[:-1]) == expected
    client = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    client.sendall(post("/v1/completions", {"prompt": LONG, "stream": True, **GREEDY, "max_tokens": 160}))
    assert client.recv(100)
    client.close()
    assert until(lambda: served.metric("vllm:num_requests_running") == 0 and served.metric("vllm:num_requests_waiting") == 0, 60)
    assert served.complete(PROMPTS[2])["choices"][0]["text"] == expected


def test_an_adapter_is_one_of_the_models(served):
    plain = served.complete(PROMPTS[0])["choices"][0]["text"]
    alone = served.complete(PROMPTS[0], model="mine")["choices"][0]["text"]
    assert alone != plain
    found = {}

    def ask(model):
        found[model] = served.complete(PROMPTS[0], model=model)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=[model]) for model in ("mine", "Scans-1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {"mine": alone, "Scans-1": plain}
