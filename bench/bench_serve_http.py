"""What an engine and a server take of the processors for each token that is streamed, and what
grammars cost in throughput.

    python bench/bench_serve_http.py [--streams 64] [--tokens 500] [--rows 128] [--step-ms 7] [--rounds 5]

The model is the simulated one, so a step takes its time and no processor. *Streams*: so many
clients of another process read answers as they are streamed; the processor time of the engine's
thread and of the server's loop is divided by the tokens. The floor beside them is what the kernel
takes to send as many bytes to as many connections, at the same times. *Grammars*: so many rows of a
model with 128,256 tokens, all without a grammar or half of them with a JSON schema (needs
`llguidance`), in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time

import common

VOCABULARY = 128256
SCHEMA = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 40},
                                           "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 400}},
          "required": ["names", "sizes"], "additionalProperties": False}  # fmt: skip


def post(body: "dict[str, object]") -> bytes:
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def exchange(port: int, requests: "list[bytes]") -> "list[bytes]":
    """All at once; what came for each."""
    selector, answers = selectors.DefaultSelector(), [bytearray() for _ in requests]
    for i, request in enumerate(requests):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(request)
        selector.register(client, selectors.EVENT_READ, i)
    left = len(requests)
    while left:
        for key, _mask in selector.select():
            came = key.fileobj.recv(1 << 18)
            answers[key.data] += came
            if not came:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1
    return [bytes(one) for one in answers]


def threads_of() -> "set[int]":
    return {int(one) for one in os.listdir("/proc/self/task")}


def processor_ns(thread: int) -> int:
    return time.clock_gettime_ns(~thread << 3 | 6)  # CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED


def drain(port: int, streams: int) -> None:
    """Another process: reads all connections to their ends."""
    selector, left = selectors.DefaultSelector(), streams
    for _ in range(streams):
        selector.register(socket.create_connection(("127.0.0.1", port)), selectors.EVENT_READ)
    while left:
        for key, _mask in selector.select():
            if not key.fileobj.recv(1 << 18):
                selector.unregister(key.fileobj)
                left -= 1


def measure_floor(streams: int, tokens: int, size_bytes: int) -> float:
    """Microseconds of the processor that the kernel takes for one send. The loop around it is taken
    off: it is measured by writes to /dev/null."""
    with socket.create_server(("127.0.0.1", 0), backlog=streams) as listening:
        reader = subprocess.Popen([sys.executable, __file__, "--drain", str(listening.getsockname()[1]), "--streams", str(streams)])
        connections = [listening.accept()[0] for _ in range(streams)]
    for one in connections:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nothing, data, spent = os.open(os.devnull, os.O_WRONLY), b"x" * size_bytes, []
    for places in ([one.fileno() for one in connections], [nothing] * streams):
        took = 0
        for _ in range(tokens):
            time.sleep(0.001)
            begin = time.thread_time_ns()
            for place in places:
                os.write(place, data)
            took += time.thread_time_ns() - begin
        spent.append(took)
    os.close(nothing)
    for one in connections:
        one.close()
    reader.wait()
    return (spent[0] - spent[1]) / 1e3 / streams / tokens


def client(port: int, streams: int, tokens: int) -> None:
    """Another process, so that its work is not that of the server's process."""
    came = exchange(port, [post({"prompt": f"{i} tells", "max_tokens": tokens, "stream": True, "ignore_eos": True}) for i in range(streams)])
    assert all(one.rstrip().endswith(b"data: [DONE]\n\n".rstrip()) or b"[DONE]" in one for one in came)
    print(sum(one.count(b"data: {") for one in came), sum(map(len, came)))


def measure_streams(streams: int, tokens: int, rounds: int) -> "list[dict[str, float]]":
    from accrt import serve

    loaded = serve.simulated(step_ns=1_000_000, max_rows=streams)
    before = threads_of()
    engine = serve.Engine(loaded.model)
    engine_threads = threads_of() - before
    server = serve.Server(engine, loaded.text, name="sim", port=0)
    loop_threads = threads_of() - before - engine_threads
    found = []
    for _ in range(rounds):
        begin = [sum(map(processor_ns, some)) for some in (engine_threads, loop_threads)]
        steps = engine.stats()["steps"]
        out = subprocess.run([sys.executable, __file__, "--client", str(server.port), "--streams", str(streams), "--tokens", str(tokens)],
                             check=True, stdout=subprocess.PIPE)  # fmt: skip
        end = [sum(map(processor_ns, some)) for some in (engine_threads, loop_threads)]
        events, size_bytes = map(int, out.stdout.split())
        found.append({"engine_us": (end[0] - begin[0]) / 1e3 / events, "loop_us": (end[1] - begin[1]) / 1e3 / events, "events": events,
                      "floor_us": measure_floor(streams, tokens, size_bytes // events), "steps": engine.stats()["steps"] - steps})  # fmt: skip
    server.drain(10)
    server.close()
    engine.close()
    return found


def one_round(server: object, rows: int, tokens: int, constrained: int) -> float:
    """Tokens a second."""
    requests = []
    for i in range(rows):
        given = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}} if i < constrained else {}
        requests.append(post({"prompt": f"{i} tells", "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0, "seed": i, **given}))
    begin = time.perf_counter()
    answers = exchange(server.port, requests)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - begin
    refused = [one for one in answers if b" 200 " not in one[:16]]
    assert not refused, refused[0]
    made = sum(json.loads(one.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] for one in answers)
    return made / seconds


def measure_grammars(rows: int, tokens: int, step_ms: float, rounds: int) -> "list[tuple[float, float]]":
    from accrt import serve

    loaded = serve.simulated(step_ns=int(step_ms * 1e6), max_rows=rows, vocab_size=VOCABULARY)
    engine = serve.Engine(loaded.model)
    server = serve.Server(engine, loaded.text, name="sim", port=0)
    found = []
    one_round(server, 1, 8, 1)  # the schema is compiled; of many that wait for that, some get 503
    one_round(server, rows, 8, rows // 2)
    for i in range(rounds):
        order = (0, rows // 2) if i % 2 == 0 else (rows // 2, 0)
        rates = {constrained: one_round(server, rows, tokens, constrained) for constrained in order}
        found.append((rates[0], rates[rows // 2]))
    server.drain(10)
    server.close()
    engine.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("streams", 64), ("tokens", 500), ("rows", 128), ("rounds", 5), ("client", 0), ("drain", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-ms", type=float, default=7.0)
    options = parser.parse_args()
    if options.client:
        client(options.client, options.streams, options.tokens)
        return 0
    if options.drain:
        drain(options.drain, options.streams)
        return 0
    streams = measure_streams(options.streams, options.tokens, options.rounds)
    engine, loop, floor = (statistics.median(one[name] for one in streams) for name in ("engine_us", "loop_us", "floor_us"))
    print(f"{options.streams} streams of {options.tokens} tokens, {streams[0]['events']:.0f} events, processor time of an event: "
          f"the engine's thread {engine:.2f} us, the server's loop {loop:.2f} us, together {engine + loop:.2f} us (wanted: 5), of which the kernel's send is {floor:.2f} us")  # fmt: skip
    results: "dict[str, object]" = {"streams": streams}
    try:
        import llguidance  # noqa: F401
    except ImportError:
        print("grammars: not measured without llguidance")
    else:
        rates = measure_grammars(options.rows, options.tokens // 2, options.step_ms, options.rounds)
        lost = [100 * (1 - half / none) for none, half in rates]
        results["grammars"] = {"tokens_per_second": rates, "lost_percent": lost}
        print(f"{options.rows} rows, steps of {options.step_ms:g} ms, {VOCABULARY} tokens: {statistics.median(r[0] for r in rates):.0f} tokens a second, with a JSON "
              f"schema for every second row {statistics.median(r[1] for r in rates):.0f}: {statistics.median(lost):.1f} % lost ({min(lost):.1f} to {max(lost):.1f}; wanted: 5)")  # fmt: skip
    common.save("serve_http", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
