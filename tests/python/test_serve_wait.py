"""An engine at rest wakes nobody: neither its own thread nor who waits for its events."""

import pathlib
import threading
import time

import pytest

pytest.importorskip("accrt.serve.engine")
from accrt.serve.engine import Engine, Model  # noqa: E402


def sleeps():
    """How often each thread of this process has gone to sleep of its own will."""
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[task.name] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return found


def test_an_engine_at_rest_wakes_nobody():
    with Engine(Model.simulated()) as engine:
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(engine.wait(2.0)))
        waiting.start()
        time.sleep(0.5)
        before = sleeps()
        time.sleep(1.0)
        after = sleeps()
        waiting.join()
        assert seen == [False]
    me = str(threading.get_native_id())
    woken = {task: after[task] - before[task] for task in before if task in after and task != me}
    assert len(woken) >= 2 and sum(woken.values()) <= 2, woken
