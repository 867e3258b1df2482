"""accrt-serve that is killed, which no handler sees, and started again: at the same port, with a
whole cache, with the same answers, and with nothing left of the one that was killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest
import kernel_harness as kh
import rotation
import serve_http
import tiny_models as tiny
from serve_http import Answer, free_port, post, read_all, stopped_within, until

serve_http.need_server()
PYTHON = str(pathlib.Path(serve_http.__file__).parents[2] / "python")
LIMIT = 120


class Home:
    """A model, a port, a cache and a place for temporary files, which all servers of a test
    have."""

    def __init__(self, place):
        self.model = tiny.write_folder(place / "model", tiny.CONFIGS["llama"], tiny.tensors(tiny.CONFIGS["llama"], 1))
        self.cache, self.has_own_kernels = place / "cache", True
        self.temporary, self.port, self.running = place / "temporary", free_port(), []
        self.temporary.mkdir()

    def start(self):
        process = subprocess.Popen([sys.executable, "-m", "accrt.serve", str(self.model), "--port", str(self.port)], stderr=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": PYTHON, "TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.cache)})  # fmt: skip
        self.running.append(process)
        return process

    def up(self):
        """One that has begun to serve."""
        process, said = self.start(), b""
        end = time.monotonic() + LIMIT
        while not re.search(rb"at http://\S+ after", said):
            assert time.monotonic() < end and process.poll() is None, said.decode()
            if select.select([process.stderr], [], [], 1)[0]:
                said += os.read(process.stderr.fileno(), 1 << 16)
        return process

    def ask(self, **more):
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT) as client:
            client.sendall(post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1, **more}))
            return Answer(read_all(client)).json["choices"][0]

    def takes_kernels(self):
        """Those that were compiled before: a test that is not about compiling takes them."""
        kh.other_cache(self.cache)
        self.has_own_kernels = False

    def parts(self):
        """Files that are not whole yet, and folders of compilers."""
        places = [self.cache] if self.has_own_kernels else [self.cache / "accrt" / name for name in ("models", "prepared")]
        return sorted([*(part for place in places for part in place.rglob("*.part*")), *self.temporary.iterdir()])


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()
        process.stderr.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    assert process.wait(LIMIT) == -signal.SIGKILL


def end(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 0


def test_killed_while_it_compiles(home, capsys):
    """As soon as a compiler runs, and at times by chance: while it packs, writes or loads."""
    seed = rotation.SEED
    with capsys.disabled():
        print(f" seed {seed}", end="", flush=True)
    rng = random.Random(seed)
    process = home.start()
    assert until(lambda: stopped_within(process, lambda: list(home.temporary.glob("accrt-kernel-*"))), LIMIT)
    kill(process)
    assert home.parts()
    for _ in range(3):
        process = home.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.1, 3))
        kill(process)
    process = home.up()
    first = home.ask()
    assert home.parts() == []
    end(process)
    process = home.up()
    assert home.ask() == first and home.parts() == []
    end(process)


def test_killed_while_it_serves(home):
    home.takes_kernels()
    process = home.up()
    first = home.ask()
    under_way = []
    for i in range(8):
        client = socket.create_connection(("127.0.0.1", home.port), timeout=LIMIT)
        client.sendall(post("/v1/completions", {"prompt": [i + 1], "max_tokens": 200, "stream": True, "ignore_eos": True}))
        under_way.append(client)
    assert under_way[0].recv(100)
    kill(process)
    for client in under_way:
        with contextlib.suppress(ConnectionError):
            text = read_all(client)  # what is cut off does not look whole; a fast one may be whole
            assert (b"[DONE]" in text) == text.endswith(b"0\r\n\r\n"), text[-200:]
        client.close()
    process = home.up()
    assert home.ask() == first and home.parts() == []
    end(process)
