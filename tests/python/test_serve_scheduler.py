"""The scheduler of serving engines beside a plain one: the same operations, the same pages."""

import random

import pytest
import rotation
import serve_reference

needs_driver = pytest.mark.skipif(not serve_reference.DRIVER.exists(), reason="build/tests/serve.scheduler_drive is not built")


@needs_driver
def test_the_same_operations_give_the_same_state():
    seed = rotation.seed()
    serve_reference.compare(100_000, seed)


@needs_driver
def test_a_difference_is_found_and_cut_down(monkeypatch):
    """A reference without a cache: few operations show it."""
    monkeypatch.setattr(serve_reference.Scheduler, "hits", lambda self, s: ([], None))
    operations = list(serve_reference.random_operations(random.Random(2), 2000))
    assert serve_reference.difference(operations) is not None
    few = serve_reference.shrink(operations)
    assert serve_reference.difference(few) is not None and len(few) <= 12
