"""Bodies of requests that somebody made to take the server's memory and time before they are
refused: what is refused takes about as much as was sent."""
from __future__ import annotations

import json
import time
import tracemalloc

import pytest

from accrt.serve import requests
from accrt.serve.parameters import BadParameter, checked, near

MIB = 1 << 20


def cost(work):
    """Seconds of processor time, and bytes of memory at once."""
    tracemalloc.start()
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letters", ["A", "ab", "abcdefghijklmnop", "max_tokens"])
def test_unknown_parameters_with_long_names_are_not_compared(letters):
    name = (letters * MIB)[:MIB]

    def refused():
        with pytest.raises(BadParameter, match="unknown parameter"):
            checked({name: 1})

    seconds, size = cost(refused)
    assert size < 8 * MIB and seconds < 5, (seconds, size)
    assert near("max_new_tokens", ["max_tokens"]) == "max_tokens" and near("temprature", ["temperature"]) == "temperature"


@pytest.mark.parametrize("part", [b"[],", b"{},", b'{"":0},', b'[[[[""]]]],'])
def test_lists_and_objects_of_a_body_are_counted(part):
    body = b'{"metadata":[' + part * (4 * MIB // len(part)) + b"0]}"

    def refused():
        with pytest.raises(BadParameter, match="lists and objects, expected at most 524288"):
            requests.parse(body)

    seconds, size = cost(refused)
    assert size < MIB and seconds < 5, (seconds, size)


def test_large_honest_bodies_are_taken():
    prompts = [list(range(8000)) for _ in range(128)]
    assert requests.parse(json.dumps({"prompt": prompts}).encode())["prompt"] == prompts
    text = json.dumps([{"a": [1, 2]}] * 100000)
    assert requests.parse(json.dumps({"prompt": text}).encode())["prompt"] == text
