"""What the tests of the server share: a server over the simulated model, a client on a plain
socket, and what must be so afterwards."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import random
import signal
import socket
import time

import pytest

from accrt import _library

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def need_server():
    """Skips the module where the server was not built."""
    for library in (_library.serve_library, _library.http_library):
        try:
            library()
        except ImportError as error:
            pytest.skip(str(error), allow_module_level=True)
    pytest.importorskip("jinja2")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def open_files():
    """What the descriptors lead to: for who asks which one was left open."""
    found = []
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return sorted(found)


def free_port():
    """One below those that connections get: none of another test takes it while its server is
    down, and a client that tries it does not reach itself."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(10_000, first)
    for port in [*random.sample(below, min(len(below), 50)), 0]:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return one.getsockname()[1]
    raise AssertionError("no port is free")


def until(condition, seconds=60.0):
    """Whether it becomes true. The limit is for what never does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


def stopped_within(process, condition):
    """Whether the condition holds, with the process stopped: it stays so."""
    assert process.poll() is None
    if not condition():
        return False
    process.send_signal(signal.SIGSTOP)
    assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code == os.CLD_STOPPED
    if condition():
        return True
    process.send_signal(signal.SIGCONT)
    return False


def holds_no_page(engine):
    """No sequence runs, and each page is free, or in the cache."""
    stats = engine.stats()
    return stats["running"] == 0 and stats["pages_free"] + stats["pages_cached"] == stats["pages"]


class Served:
    def __init__(self, server, engine):
        self.server, self.engine = server, engine

    @property
    def port(self):
        return self.server.port

    def connect(self, receive_bytes=None):
        client = socket.socket()
        client.settimeout(120)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(("127.0.0.1", self.port))
        return client

    def raw(self, data, **options):
        """Sends bytes; everything that comes until the server closes."""
        with self.connect(**options) as client:
            client.sendall(data)
            return read_all(client)

    def busy(self):
        stats = self.engine.stats()
        return stats["running"] + stats["waiting"] + stats["preempted"]

    def submitted(self):
        """How much the engine was given so far. Who waits until a request has come waits for more
        of this: a short request may have ended before anybody sees the server busy."""
        return self.engine.stats()["submitted"]

    def at_rest(self):
        """Nothing is held: no connection, no job, no body, no sequence, no page."""
        stats = self.engine.stats()
        counts = dict(self.server.counts(), draining=0)
        return not any(counts.values()) and not self.busy() and stats["pages_free"] + stats["pages_cached"] == stats["pages"]


@contextlib.contextmanager
def served(*, name="sim", engine=None, model=None, check_descriptors=True, **options):
    """A server that must be at rest when the test is done, and give back every descriptor."""
    from accrt import serve

    before, files = descriptors(), open_files()
    loaded = serve.simulated(**{"chat_template": TEMPLATE, **(model or {})})
    made = serve.Engine(loaded.model, **(engine or {}))
    server = serve.Server(made, loaded.text, name=name, port=0, **options)
    out = Served(server, made)
    yield out
    if not server.counts()["draining"]:
        assert until(out.at_rest), (server.counts(), made.stats())
        assert server.drain(20)
    server.close()
    made.close()
    loaded.text.close()
    gc.collect()  # models that other tests made meanwhile
    assert not check_descriptors or until(lambda: descriptors() <= before), (files, open_files())


def post(path, body, *headers, close=True):
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(data)}", *headers, *(["Connection: close"] if close else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def get(path, *headers, version="1.1", method="GET"):
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: test", "Connection: close", *headers]).encode() + b"\r\n\r\n"


def read_all(client):
    out = bytearray()  # which grows in place: answers of a megabyte come in hundreds of pieces
    with contextlib.suppress(ConnectionResetError):
        while True:
            data = client.recv(1 << 16)
            if not data:
                break
            out += data
    return bytes(out)


class Answer:
    """An answer taken apart, by the rules of HTTP and nothing else."""

    def __init__(self, data):
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        assert lines[0].startswith("HTTP/1.1 "), data[:200]
        self.status = int(lines[0].split()[1])
        self.headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        self.whole = True
        if self.headers.get("transfer-encoding") == "chunked":
            rest, self.whole = _chunks(rest)
        elif "content-length" in self.headers:
            size = int(self.headers["content-length"])
            rest, self.rest = rest[:size], rest[size:]
        self.body = rest

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def events(self):
        parts = self.body.split(b"\n\n")
        assert parts.pop() == b"" and all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
        return [part[6:] for part in parts]


def _chunks(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return out, data == b"\r\n"
        if len(data) < count + 2:
            return out + data[:count], False
        assert data[count : count + 2] == b"\r\n"
        out, data = out + data[:count], data[count + 2 :]
    return out, False
