"""Scenarios of work in flight whose caller drops what it uses. Each runs in a process of its own:
test_in_flight.py starts them.

    python3 tests/python/in_flight.py SCENARIO BUNDLE PACK

The work is long (`steps` adds x to y many times), and what is dropped is memory of its own mapping:
where it goes too early, the process dies by a signal; where it is used again, the pattern in it is
overwritten.
"""
from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time

import numpy as np

import accrt

N, COUNT = 1 << 18, 300
LONG = 1000  # the most: for what is interrupted after 20 ms, with larger arrays
PATTERN = 0x5A
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Work:
    """What scenarios share: a session with long work, fresh arrays, and a look at memory that was
    handed out anew."""

    def __init__(self, bundle: str, pack: str) -> None:
        self.instance = accrt.Instance(trust="all", options={"host.threads": 2})
        self.device = self.instance.device("host")
        self.program = accrt.Program(accrt.Bundle(bundle, self.instance), self.device)
        self.session = self.program.session()
        self.kernel = accrt.KernelPack(self.instance, pack).kernel("scale_add")

    def x(self, times=1):
        return np.ones(times * N, np.float32)

    def y(self, times=1):
        return np.zeros(times * N, np.float32)

    def check_nothing_overwritten(self, stream=None) -> None:
        """Takes what was freed and looks that nobody writes to it until all is done."""
        gc.collect()
        fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(12)]
        (stream or self.session.stream).synchronize(timeout=60)
        assert all((array == PATTERN).all() for array in fresh), "memory that was free was written"

    def check_session_works(self) -> None:
        y = self.y()
        self.session.steps(self.x(), y, count=3)
        assert (y == 3).all()

    def blocked(self):
        """A stream that waits, and what lets it go on."""
        stream, gate = accrt.Stream(self.device), accrt.Semaphore(self.instance)
        stream.wait(gate, 1)
        return stream, gate


# ---- asyncio

@scenario
def wait_for(work):
    async def main():
        late = 0
        for _ in range(100):  # on a busy machine the work may be done before the limit is looked at
            try:
                await asyncio.wait_for(work.session.steps.call_async(work.x(), work.y(), count=COUNT), 0.01)
            except asyncio.TimeoutError:
                gc.collect()
                late += 1
            if late == 3:
                return
        raise AssertionError("it was quicker than the limit")
    asyncio.run(main())
    work.check_nothing_overwritten()
    work.check_session_works()


@scenario
def task_group(work):
    async def fails():
        await asyncio.sleep(0.01)
        raise KeyError("the other task")

    async def main():
        tasks = [asyncio.ensure_future(work.session.steps.call_async(work.x(), work.y(), count=COUNT)), asyncio.ensure_future(fails())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    try:
        asyncio.run(main())
        raise AssertionError("no failure")
    except KeyError:
        pass
    work.check_nothing_overwritten()
    work.check_session_works()


@scenario
def interrupt_of_asyncio_run(work):
    async def main():
        threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT]).start()
        await work.session.steps.call_async(work.x(4), work.y(4), count=LONG)
        await asyncio.sleep(60)  # the signal may come late on a busy machine
    try:
        asyncio.run(main())
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        pass
    work.check_nothing_overwritten()


@scenario
def interrupt_of_a_call(work):
    try:
        threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT]).start()
        work.session.steps(work.x(4), work.y(4), count=LONG)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    work.check_nothing_overwritten()


# ---- calls

@scenario
def submit_without_a_reference(work):
    for _ in range(3):
        work.session.steps.bind(work.x(), work.y(), count=COUNT).submit()
    work.check_nothing_overwritten()
    work.check_session_works()


@scenario
def submit_and_drop_all(work):
    stream = work.session.stream
    work.session.steps.bind(work.x(), work.y(), count=COUNT).submit()
    work.session = work.program = work.instance = work.device = work.kernel = None
    work.check_nothing_overwritten(stream)


@scenario
def submit_and_close_all(work):
    stream = work.session.stream
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    call.submit()
    call.close()
    work.session.close()
    work.program.bundle.close()
    work.program.close()
    work.device.close()
    work.instance.close()
    work.check_nothing_overwritten(stream)


@scenario
def results_dropped(work):
    gate, x = accrt.Semaphore(work.instance), np.ones(16, np.float32)
    calls = [work.session.weighted.bind(x) for _ in range(4)]
    for call in calls:
        call.submit(waits=[(gate, 1)])
        call.submit()
    del calls, call
    gc.collect()
    kept = [work.session.program.session().weighted(x) for _ in range(8)]
    before = [t.numpy().copy() for t in kept]
    gate.signal(1)
    work.session.stream.synchronize(timeout=60)
    assert all((t.numpy() == b).all() for t, b in zip(kept, before))


@scenario
def results_read_at_once(work):
    """Whoever looks at a result's values waits for the work that makes them."""
    x, x64 = np.arange(16, dtype=np.float32), np.arange(16)
    wanted = np.asarray(work.session.weighted(x)).tolist()
    assert wanted == (2 * x64 + 2 * np.arange(16)).tolist()
    readers = {"numpy": lambda t: np.asarray(t).tolist(), "method": lambda t: t.numpy().tolist(), "list": lambda t: t.tolist(),
               "memoryview": lambda t: t.memoryview().tolist(), "items": lambda t: [float(v) for v in t],
               "text": lambda t: [float(v) for v in re.search(r"\[([^\[\]]*,[^\[\]]*)\]", repr(t))[1].split(",")],
               "view": lambda t: np.asarray(t[3:]).tolist()}
    if hasattr(np, "from_dlpack") and np.lib.NumpyVersion(np.__version__) >= "1.23.0":
        readers["dlpack"] = lambda t: np.from_dlpack(t).tolist()
    for name, read in readers.items():
        call = work.session.weighted.bind(x)
        work.session.steps.bind(work.x(), work.y(), count=COUNT // 8).submit()
        call.submit()
        found = read(call.results())
        assert found == (wanted[3:] if name == "view" else wanted), (name, found)


@scenario
def timeout_then_drop(work):
    gate = accrt.Semaphore(work.instance)
    work.session.stream.wait(gate, 1)
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    try:
        call.run(timeout=0.01)
        raise AssertionError("no timeout")
    except TimeoutError:
        pass
    del call
    gc.collect()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(12)]
    gate.signal(1)
    work.session.stream.synchronize(timeout=60)
    assert all((array == PATTERN).all() for array in fresh)


@scenario
def rebound_in_flight(work):
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    results = []
    for _ in range(3):
        results.append(work.y())
        call.set("y", results[-1])
        call.set("x", work.x())
        call.submit()
    call.set("x", work.x())
    call.set("y", work.y())
    work.check_nothing_overwritten()
    assert all((y == COUNT).all() for y in results)


@scenario
def failed_call_keeps(work):
    """A call that cannot be enqueued behind one that is in flight: the first one's memory stays."""
    gate, bad = accrt.Semaphore(work.instance), accrt.Semaphore(work.instance)
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    call.submit(waits=[(gate, 1)])
    bad.fail("the test")
    try:
        call.submit(waits=[(bad, 1)])
    except accrt.Error:
        pass
    try:
        call.run(timeout=0)
    except accrt.Error:
        pass
    del call
    gc.collect()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(12)]
    gate.signal(1)
    try:
        work.session.stream.synchronize(timeout=60)
    except accrt.Error:
        pass
    assert all((array == PATTERN).all() for array in fresh)


@scenario
def threads_drop(work):
    def run():
        session = work.program.session()
        for _ in range(5):
            session.steps.bind(work.x(), work.y(), count=COUNT // 10).submit()
            gc.collect()
    threads = [threading.Thread(target=run) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(40)]
    time.sleep(1)
    work.check_session_works()
    assert all((array == PATTERN).all() for array in fresh)


@scenario
def fork(work):
    y = work.y()
    work.session.steps.bind(work.x(), y, count=COUNT).submit()
    work.session.steps.bind(work.x(), work.y(), count=COUNT).submit()
    child = os.fork()
    if child == 0:
        gc.collect()
        code = 0
        try:
            work.session.steps(work.x(), work.y(), count=1)
            code = 3
        except accrt.ForkedError:
            pass
        sys.exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    work.check_nothing_overwritten()
    assert (y == COUNT).all()


@scenario
def dlpack_source_dropped(work):
    source = work.program.session().weighted(np.ones(16, np.float32))
    stream, gate = work.blocked()
    session = work.program.session(stream=stream)
    tensor, out = accrt.from_dlpack(source, work.device), np.zeros(16, np.float32)
    session.weighted.bind(tensor, out=out).submit()
    del source, tensor, session
    gc.collect()
    other = work.program.session()
    kept = [other.weighted(np.zeros(16, np.float32)) for _ in range(8)]
    gate.signal(1)
    stream.synchronize(timeout=60)
    assert (out == 4 + 6 * np.arange(16)).all() and all((t.numpy() == 2 * np.arange(16)).all() for t in kept)


@scenario
def dropped_in_a_cycle(work):
    """The collector finalizes what is garbage together in any order: a call that is in flight still
    has its stream."""
    class Ring:
        def __del__(self):
            self.stream.done()
    for _ in range(60):
        session, gate = work.program.session(), accrt.Semaphore(work.instance)
        ring = Ring()
        ring.call, ring.stream, ring.own = session.scale_add.bind(np.ones(16, np.float32), np.ones(16, np.float32)), session.stream, ring
        ring.call.submit(waits=[(gate, 1)])
        del session, ring
        gc.collect()
        gate.signal(1)
    time.sleep(0.3)
    work.check_nothing_overwritten()
    work.check_session_works()


# ---- streams

@scenario
def copies_dropped(work):
    stream, gate = work.blocked()
    other = accrt.Stream(work.device)
    buffer = accrt.Pool(work.device).buffer(4 * N)
    stream.copy(np.full(N, 7, np.float32), buffer)
    stream.copy(buffer, work.y())
    stream.fill(work.y(), 3)
    stream.copy(np.full(4 * N, 9, np.uint8), bytearray(4 * N))
    del stream
    gc.collect()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(12)]
    gate.signal(1)
    found, deadline = np.frombuffer(buffer.memoryview(), np.float32), time.monotonic() + 30
    while not (found == 7).all() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # and the work behind it
    other.synchronize()
    assert all((array == PATTERN).all() for array in fresh)
    assert (found == 7).all()


@scenario
def read_file_dropped(work):
    with tempfile.TemporaryFile() as file:
        file.write(b"\1" * (4 * N))
        file.flush()
        stream, gate = work.blocked()
        stream.read_file(file, work.y(), 4 * N)
    stream.read_file
    del stream
    gc.collect()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(12)]
    gate.signal(1)
    time.sleep(0.5)
    assert all((array == PATTERN).all() for array in fresh)


@scenario
def launches_dropped(work):
    stream, gate = work.blocked()
    grid = [-(-N // 1024)]
    accrt.launch(stream, work.kernel, grid, work.x(), work.y(), N, 2.0)
    prepared = accrt.Launch(work.device, work.kernel)
    for index, value in enumerate((work.x(), work.y(), N, 0.5)):
        prepared.set(index, value)
    prepared(stream, grid)
    prepared.set(0, work.x())
    prepared.set(1, work.y())
    prepared(stream, grid)
    prepared.close()
    commands = accrt.Commands(work.device, bindings=2)
    commands.dispatch(work.kernel, grid, commands.binding(0), commands.binding(1), N, 2.0)
    commands.dispatch(work.kernel, grid, work.x(), work.y(), N, 2.0)
    commands.finalize().submit(stream, work.x(), work.y())
    commands.close()
    work.kernel.pack.close()
    work.kernel = None
    del stream, prepared, commands
    gc.collect()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(24)]
    gate.signal(1)
    time.sleep(0.5)
    assert all((array == PATTERN).all() for array in fresh)


@scenario
def memory_comes_back(work):
    """What nobody polls goes all the same, once the device is done."""
    import weakref

    class Array(np.ndarray):
        pass
    stream, gate = work.blocked()
    pool = accrt.Pool(work.device)
    arrays = [np.ones(N, np.float32).view(Array) for _ in range(100)]
    gone = [weakref.ref(a) for a in arrays]
    buffer = pool.buffer(4 * N)
    for array in arrays:
        stream.copy(array, buffer)
        work.session.steps.bind(array, array.copy().view(Array), count=1).submit()
    del arrays, array
    gc.collect()
    assert sum(ref() is not None for ref in gone) == 100
    gate.signal(1)
    deadline = time.monotonic() + 60
    while any(ref() is not None for ref in gone) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(ref() is not None for ref in gone)
    # And with somebody who enqueues and never waits.
    # on a busy machine the device's thread may not run for a while
    gone, deadline = [], time.monotonic() + 30
    while len(gone) < 2000 or sum(ref() is not None for ref in gone) >= len(gone) * 3 // 4 and time.monotonic() < deadline:
        for _ in range(1000):
            array = np.ones(16, np.float32).view(Array)
            gone.append(weakref.ref(array))
            stream.copy(array, buffer)
    assert sum(ref() is not None for ref in gone) < len(gone) * 3 // 4
    stream.synchronize()
    del array
    assert not any(ref() is not None for ref in gone)


# ---- handles given back while memory is looked at

@scenario
def views_of_closed_buffers(work):
    pool = accrt.Pool(work.device)
    buffer = pool.buffer(4 * N)
    raw = buffer.memoryview()
    tensor = accrt.Tensor(buffer, "f32", (N,))
    array = tensor.numpy()
    interface = np.asarray(accrt.Tensor(buffer, "f32", (N,)))
    buffer.close()
    pool.trim()
    fresh = [np.full(4 * N, PATTERN, np.uint8) for _ in range(4)]
    raw[:] = bytes(4 * N)
    array[:] = 1
    interface[:] = 2
    assert all((a == PATTERN).all() for a in fresh)
    bundle = work.program.bundle
    weights = bundle.constant_bytes("w")
    bundle.close()
    work.program = work.session = None
    gc.collect()
    assert np.frombuffer(weights, np.float32)[3] == 3


@scenario
def closed_in_another_thread(work):
    """Handles that are closed while another thread is in a call of theirs."""
    def wait(what, *values):
        try:
            what(*values)
        except (accrt.Error, ValueError):
            pass
    for _ in range(20):
        stream, gate = work.blocked()
        threads = [threading.Thread(target=wait, args=(stream.synchronize,)), threading.Thread(target=wait, args=(gate.wait, 1))]
        [t.start() for t in threads]
        time.sleep(0.002)
        signal_it = accrt.Stream(work.device)
        signal_it.signal(gate, 1)
        gate.close()
        stream.close()
        [t.join() for t in threads]
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    thread = threading.Thread(target=wait, args=(call,))
    thread.start()
    time.sleep(0.01)
    call.close()
    thread.join()


# ---- the end of the interpreter

@scenario
def ends(work):
    work.session.steps.bind(work.x(), work.y(), count=COUNT).submit()


@scenario
def ends_with_globals(work):
    globals()["kept"] = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    globals()["kept"].submit()
    globals()["also"] = work


@scenario
def ends_with_exit(work):
    ends(work)
    sys.exit(0)


@scenario
def ends_with_an_exception(work):
    ends(work)
    raise SystemExit(0) from ValueError("on purpose")


@scenario
def ends_blocked(work):
    """Nobody will ever signal."""
    gate = accrt.Semaphore(work.instance)
    call = work.session.steps.bind(work.x(), work.y(), count=COUNT)
    call.submit(waits=[(gate, 1)])
    globals()["blocked"] = gate


@scenario
def ends_with_daemons(work):
    def run(session):
        while True:
            session.steps.bind(work.x(), work.y(), count=2).submit()
            session.steps(work.x(), work.y(), count=20)

    def copy():
        stream, buffer = accrt.Stream(work.device), accrt.Pool(work.device).buffer(4 * N)
        while True:
            stream.copy(work.x(), buffer)
            stream.copy(buffer, work.y())
    for _ in range(2):
        threading.Thread(target=run, args=(work.program.session(),), daemon=True).start()
    threading.Thread(target=copy, daemon=True).start()
    time.sleep(0.2)


@scenario
def ends_in_asyncio(work):
    async def main():
        asyncio.ensure_future(work.session.steps.call_async(work.x(), work.y(), count=COUNT))
        await asyncio.sleep(0.01)
    asyncio.run(main())


@scenario
def ends_with_copies(work):
    stream, buffer = accrt.Stream(work.device), accrt.Pool(work.device).buffer(4 * N)
    work.session.steps.bind(work.x(), work.y(), count=COUNT).submit()
    for _ in range(20):
        stream.copy(work.x(), buffer)
        stream.copy(buffer, work.y())
    globals()["kept"] = stream


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    name, bundle, pack = sys.argv[1:]
    SCENARIOS[name](Work(bundle, pack))
    print("done", name, flush=True)
