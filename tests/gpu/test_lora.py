"""LoRA adapters in compiled optional slots on a GPU: without one, of several ranks, with arguments
of the caller's own, exchanged while calls are in flight; against numpy, as
tests/python/test_adapters.py does on hosts."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import test_adapters as adapters  # noqa: E402
import test_ops  # noqa: E402

WEIGHT = adapters.numbers(1).standard_normal((adapters.N, adapters.K), np.float32)


def module():
    return adapters.module(WEIGHT)


@pytest.fixture(scope="module")
def program():
    why = test_ops.reason("lora")
    if why:
        pytest.skip(why)
    import accrt

    instance = accrt.default_instance("all")
    return accrt.Bundle(test_ops.built("lora", module()), instance).program(instance.device("cuda:0"))


@pytest.mark.parametrize("kind", adapters.KINDS)
def test_ranks(program, kind):
    adapters.check_ranks(program, WEIGHT, kind)


@pytest.mark.parametrize("kind", adapters.KINDS)
def test_exchanged_in_flight(program, kind):
    """Each of many enqueued runs has the adapter that was set when it was enqueued, though that is
    gone by then."""
    x = adapters.numbers(8).standard_normal((5, adapters.K), np.float32)
    session = program.session()
    pairs = [adapters.pair(rank, 30 + rank) for rank in (1, 4, 16)]
    waiting = []
    for i in range(30):
        a, b = pairs[i % 3]
        session.adapter = program.load_adapter(adapters.weights(program, adapters.file_of(a, b)), alpha=len(a))
        waiting.append((getattr(session, kind).bind(x), a, b))
        waiting[-1][0].submit()
    session.adapter = None
    session.stream.synchronize()
    for call, a, b in waiting:
        adapters.close(call.results(), adapters.expected(WEIGHT, x, a, b))
