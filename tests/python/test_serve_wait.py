"""An engine at rest wakes nobody: neither its own thread nor who waits for its events."""

import pathlib
import threading
import time

import pytest

pytest.importorskip("accrt.serve.engine")
from accrt.serve import parameters  # noqa: E402
from accrt.serve.engine import Engine, Model  # noqa: E402


def sleeps(tasks):
    """How often each of these threads of this process has gone to sleep of its own will."""
    found = {}
    for task in tasks:
        lines = pathlib.Path("/proc/self/task", task, "status").read_text().splitlines()
        found[task] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return found


def tasks():
    return {task.name for task in pathlib.Path("/proc/self/task").iterdir()}


def test_an_engine_at_rest_wakes_nobody():
    others = tasks()
    with Engine(Model.simulated()) as engine:
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(engine.wait(60.0)))
        waiting.start()
        ours, counts = tasks() - others, []
        assert len(ours) >= 2
        # They may come to rest late, on a busy machine. Who wakes somebody again and again does so
        # within each second.
        for _ in range(10):
            before = sleeps(ours)
            time.sleep(1.0)
            after = sleeps(ours)
            counts.append({task: after[task] - before[task] for task in ours})
            if sum(counts[-1].values()) <= 2:
                break
        assert not seen, "the wait is over"
        engine.submit(parameters.Request([1, 2], parameters.checked({"max_tokens": 1})))
        waiting.join()
        assert seen == [True]
    assert sum(counts[-1].values()) <= 2, counts
