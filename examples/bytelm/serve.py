#!/usr/bin/env python3
"""Serves bytelm over HTTP in this process, and asks it once: the answer is printed as it comes.

    python3 examples/bytelm/serve.py [--prompt TEXT] [--tokens N]

`accrt-serve examples/bytelm/weights.safetensors` serves it until it is told to end.
"""

import argparse
import http.client
import json
import pathlib
import sys
import time

from accrt import serve

WEIGHTS = pathlib.Path(__file__).parent / "weights.safetensors"
PROMPT = "And it came to pass in those days, that "


def streamed(port, body):
    """The text of a streamed answer, piece by piece."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])["choices"][0]["text"]
    connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=300)
    arguments = parser.parse_args()

    loaded = serve.load(WEIGHTS, kv_bytes=64 << 20)
    with serve.Engine(loaded.model) as engine, serve.Server(engine, loaded.text, name="bytelm", port=0) as server:
        print(f"POST http://127.0.0.1:{server.port}/v1/completions\n\n{arguments.prompt}", end="", flush=True)
        started = time.perf_counter()
        for text in streamed(server.port, {"prompt": arguments.prompt, "max_tokens": arguments.tokens, "temperature": 0.6, "seed": 7}):
            sys.stdout.write(text)
            sys.stdout.flush()
        elapsed = time.perf_counter() - started
        print(f"\n\n{arguments.tokens} tokens in {elapsed:.2f} s, {arguments.tokens / elapsed:.0f} a second")


if __name__ == "__main__":
    main()
