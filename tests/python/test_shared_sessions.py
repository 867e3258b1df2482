"""A session that several threads use at once, which is a mistake: who comes second gets
InvalidStateError. Nobody gets another's values, and no memory goes that somebody uses. Each case
runs in a process of its own."""
from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

import accrt
from accrt.bundle_writer import BundleWriter

LIMIT_S = 120
THREADS, TIMES = 4, 1200
SIZE = 4096


def echo() -> bytes:
    """`echo` copies its input to its result, `look` its state."""
    b = BundleWriter()
    f = b.function("echo")
    x, y = f.input("x", "u8", [SIZE]), f.result("y", "u8", [SIZE])
    f.body.copy(x.read(), y.write(), SIZE)
    s = b.state("s", "u8", [SIZE])
    g = b.function("look")
    g.body.copy(g.state(s).read(), g.result("y", "u8", [SIZE]).write(), SIZE)
    return b.to_bytes()


def functions(session, number: int) -> None:
    """`model.f(x)` of one session."""
    x = np.full(SIZE, number, np.uint8)
    assert (session.echo(x).numpy() == number).all()


def temporary(session, number: int) -> None:
    """The same with an array that nobody else has."""
    assert (session.echo(np.full(SIZE, number, np.uint8)).numpy() == number).all()


_call = None


def bound(session, number: int) -> None:
    """One call, bound once. Its result is that of one of its runs."""
    y = _call()
    assert (y.numpy() == 1).all()


def set_anew(session, number: int) -> None:
    """One call that each thread binds and runs: the result is of one of the arrays, and not of
    memory that is gone."""
    _call.set("x", np.full(SIZE, number, np.uint8))
    y = _call().numpy()
    assert (y == y[0]).all() and 0 < y[0] <= THREADS


def submitted(session, number: int) -> None:
    _call.submit()
    assert (_call.results().numpy() == 1).all()
    _call.wait()


def mixed(session, number: int) -> None:
    """A run on one's own array, runs of the device's, new arguments and looks at results."""
    x = np.full(SIZE, number, np.uint8)
    if number == 1:
        _call.set("x", x)
    elif number == 2:
        _call.submit()
    elif number == 3:
        _call.set("y", np.ones(SIZE, np.uint8))
    else:
        y = np.asarray(_call())
        assert y.shape == (SIZE,) and 0 < y[0] <= THREADS


def closed(session, number: int) -> None:
    """Some close what others use."""
    with session.program.session() as own:
        own.echo(np.full(SIZE, number, np.uint8))
        other = threading.Thread(target=own.close)
        other.start()
        try:
            assert (own.echo(np.full(SIZE, number, np.uint8)).numpy() == number).all()
        except ValueError as error:
            assert "closed" in str(error)
        other.join()


def states(session, number: int) -> None:
    """A state that one thread binds to other memory while another looks at it."""
    if number % 2:
        session.state("s").tolist()
    else:
        session.bind_state("s", session.program.device and accrt.Pool(session.program.device).buffer(SIZE))
        session.bind_state("s", None)


CASES = {case.__name__: case for case in (functions, temporary, bound, set_anew, submitted, mixed, closed, states)}


def run(case: str) -> None:
    global _call
    session = accrt.Program(accrt.Bundle(echo())).session()
    _call = session.echo.bind(np.full(SIZE, 1, np.uint8))
    _call()
    wrong, refused, begin = [], [0], threading.Barrier(THREADS)

    def work(number: int) -> None:
        begin.wait()
        for _ in range(TIMES):
            try:
                CASES[case](session, number)
            except accrt.InvalidStateError as error:
                assert "in use" in str(error), error
                refused[0] += 1
            except BaseException as error:  # noqa: BLE001
                wrong.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))
                return
    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(THREADS)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not wrong, wrong
    session.echo(np.full(SIZE, 7, np.uint8))  # whoever was refused, it goes on
    assert (np.asarray(_call.run(10)) == np.asarray(_call.results())).all()
    print("refused", refused[0])


def first() -> None:
    """Threads that all are the first to use the package."""
    made, wrong, begin = echo(), [], threading.Barrier(THREADS)

    def work(number: int) -> None:
        begin.wait()
        try:
            session = accrt.Program(accrt.Bundle(made)).session()
            functions(session, number)
            stream = accrt.Stream(session.program.device)
            stream.copy(np.ones(64, np.uint8), accrt.Pool(session.program.device).buffer(64))
            stream.signal(accrt.Semaphore(session.program.device.instance), 1)
            stream.record(accrt.Event(session.program.device))
            stream.synchronize()
        except BaseException:  # noqa: BLE001
            wrong.append(traceback.format_exc())
    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(THREADS)]
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def ran(case: str) -> None:
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "MALLOC_PERTURB_": "165"}
    done = subprocess.run([sys.executable, __file__, case], env=environment, timeout=LIMIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_threads_that_share_a_session(case):
    ran(case)


# ---- A call that another thread closes -----------------------------------------------------------


def closing(call, reference):
    """Closes the call on another thread, and lets pass what would give its arrays back. Whether the
    array is there still."""
    other = threading.Thread(target=call.close)
    other.start()
    other.join()
    # what the thread that looks after memory in flight does, some times a second
    call._in_flight.look()
    gc.collect()
    return reference() is not None


def bound_to_its_own(session):
    """A call with `out=` whose input nobody else has, and what tells whether that is there."""
    x, y = np.full(SIZE, 7, np.uint8), np.zeros(SIZE, np.uint8)
    call = session.echo.bind(x, out=y)
    call()
    return call, y, weakref.ref(x)


@pytest.mark.parametrize("submitted", [False, True], ids=["run", "submit"])
def test_a_call_that_is_closed_as_it_begins_keeps_its_arrays(submitted):
    """The other thread comes where the run has its handle and has not begun."""
    session = accrt.Program(accrt.Bundle(echo())).session()
    call, y, reference = bound_to_its_own(session)
    if submitted:
        call.submit()
        call.wait()
    begin, there = call._enqueue if submitted else call._run_function, []

    def interrupted(*arguments):
        there.append(closing(call, reference))
        return begin(*arguments)
    call._run_function = call._enqueue = interrupted
    y[:] = 0
    try:
        call.submit() if submitted else call()
    except ValueError as error:  # the first slice of its wait was over: on a busy machine it may be
        assert "this Call is closed" in str(error) and not submitted
    session.stream.synchronize()
    assert there == [True] and (y == 7).all()
    with pytest.raises(ValueError, match="this Call is closed"):
        call()


@pytest.mark.parametrize("begin", ["run", "_submit_in_steps", "_plan_and_run"])
def test_a_call_of_several_steps_that_is_closed_keeps_its_arrays(begin, monkeypatch):
    """The other thread comes between two steps: the work may be with the device when it is waited
    for, or not at all."""
    session = accrt.Program(accrt.Bundle(echo())).session()
    call, y, reference = bound_to_its_own(session)
    there = []

    def closed_before(function):
        def interrupted(*arguments):
            if not there:
                there.append(closing(call, reference))
            return function(*arguments)
        return interrupted
    for name in ("accrt_call_run", "accrt_call_submit"):
        monkeypatch.setattr(accrt.call.lib, name, closed_before(getattr(accrt.call.lib, name)))
    y[:] = 0
    no_limit = (1 << 64) - 1
    try:
        {"run": lambda: call.run(0.02), "_submit_in_steps": lambda: call._submit_in_steps((), ()),
         "_plan_and_run": lambda: call._plan_and_run(call._views, no_limit, no_limit)}[begin]()
    except ValueError as error:  # it has run, and its results are not to be asked for any more
        assert "this Call is closed" in str(error)
    except accrt.TimeoutError:  # a busy machine took longer than the 20 ms, and goes on
        assert begin == "run"
    session.stream.synchronize()
    assert there == [True] and (y == 7).all()


def test_a_call_that_is_closed_while_it_waits_keeps_its_arrays_until_it_is_over():
    session = accrt.Program(accrt.Bundle(echo())).session()
    gate = accrt.Semaphore(session.program.device.instance)
    stream = accrt.Stream(session.program.device)
    session = session.program.session(stream=stream)
    call, y, reference = bound_to_its_own(session)
    stream.wait(gate, 1)
    y[:] = 0
    raised = []

    def run():
        try:
            call()
        except ValueError as error:  # where the first slice of its wait was over
            raised.append(str(error))

    runs = threading.Thread(target=run)
    runs.start()
    while not call._running:
        time.sleep(0.01)
    there = closing(call, reference)
    gate.signal(1)
    runs.join()
    stream.synchronize()
    assert there and (y == 7).all()
    assert raised in ([], ["this Call is closed"])


def test_threads_that_are_first():
    for _ in range(10):
        ran("first")


if __name__ == "__main__":
    run(sys.argv[1]) if sys.argv[1] in CASES else first()
