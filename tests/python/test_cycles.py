"""What the last name drops goes at once, with all its device memory: no object of the package is
part of a cycle, which only Python's collector would find, long after a second model no longer fits
the device."""
from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import operator
import pathlib

import numpy as np
import pytest

import accrt
from accrt import layouts, trust
from accrt.bundle_writer import BundleWriter

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = BundleWriter()
SOURCE_F = SOURCE.function("peek")
SOURCE_W = SOURCE.constant("w", np.arange(64, dtype=np.uint8))
SOURCE_F.body.copy(SOURCE_F.constant(SOURCE_W).read(), SOURCE_F.result("out", "u8", [64]).write(), 64)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cycles") / "peek.accx"
    SOURCE.write(path)
    return path


def session_of(path):
    return accrt.Program(accrt.Bundle(path)).session()


def calls(path):
    session_of(path).peek()


def numbers(path):
    session_of(path).peek().numpy()


def prepared(path):
    call = session_of(path).peek.bind()
    call()
    call.submit()
    call.wait()
    call.run(10)
    call.results()


def loads(path):
    accrt.load(path, timeout=10).peek().tolist()


def errors(path):
    session = session_of(path)
    for wrong in (lambda: session.nothing, lambda: session.peek(1), lambda: accrt.Bundle(path.parent / "absent.accx")):
        try:
            wrong()
            raise AssertionError
        except (AttributeError, TypeError, FileNotFoundError):
            pass


def addresses(path):
    """What asks for the address of a handle: `operator.index`, comparisons, messages."""
    session = session_of(path)
    assert all(operator.index(o.handle) for o in (session, session.program, session.program.bundle, session.stream)), repr(session)


def streams(path):
    device = accrt.default_instance().device("host")
    stream, event, semaphore = accrt.Stream(device), accrt.Event(device), accrt.Semaphore(device.instance)
    source, target = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    stream.copy(source, target)
    stream.record(event)
    stream.wait_event(event)
    stream.signal(semaphore, 1)
    semaphore.wait(1, timeout=10)
    stream.synchronize()
    assert (source == target).all()


def memory(path):
    device = accrt.default_instance().device("host")
    pool = accrt.Pool(device)
    buffer = pool.buffer(64)
    tensor = accrt.Tensor(buffer, "f32", [4, 4])
    np.asarray(tensor)[:] = 1
    assert np.from_dlpack(tensor).sum() == 16 == tensor[1].numpy().sum() * 4 and tensor.memoryview() and pool.statistics


def weights(path):
    program = accrt.Program(accrt.Bundle(path))
    program.swap_weights({"w": np.zeros(64, np.uint8)})
    assert bytes(program.bundle.constant_bytes("w")) and program.bundle.signature("peek") and program.session().peek().numpy().sum() == 0


def quantized(path):
    layouts.dequantize(layouts.quantize(np.ones((4, 64), np.float32), "q8_0"))


def signed(path):
    trust.sign(path, path.with_suffix(".signed"), key=trust.SigningKey.generate(), vouch=True)
    accrt.Bundle(path.with_suffix(".signed")).verify()


@functools.lru_cache
def bundle_of(name: str) -> bytes:
    """"work" fills a megabyte 65,536 times; "plan" takes years to plan. (Writers are cycles, and
    hold nothing of a device.)"""
    b = BundleWriter()
    f = b.function("main")
    y, block = f.result("y", "u8", [1 << 20]), f.body
    for _ in range(1 if name == "work" else 10):
        block = block.repeat(1 << 16).body
    if name == "work":
        block.fill(y.write(), 1)
    else:
        block.barrier()
    return b.to_bytes()


def long_work():
    device = accrt.Instance(trust="all").device("host")
    return accrt.Program(accrt.Bundle(bundle_of("work"), device.instance), device).session()


def raised(kind, work):
    try:
        work()
    except kind:
        return
    raise AssertionError(f"no {kind}")


def timeouts(path):
    """Each limit ends another way of waiting; then the work is cancelled, and the stream has
    failed."""
    session = long_work()
    call = session.main.bind()
    call.submit()
    for limit in (0.01, 0.12):
        raised(accrt.TimeoutError, lambda: call.wait(limit))  # noqa: B023
        raised(accrt.TimeoutError, lambda: session.stream.synchronize(limit))  # noqa: B023
    session.stream.cancel()
    raised(accrt.Error, session.stream.synchronize)
    raised(accrt.Error, call.wait)
    session.stream.reset()


def plans(path):
    """A plan that takes longer than its limit is made on a thread of its own."""
    session = accrt.Program(accrt.Bundle(bundle_of("plan"))).session(budget=accrt.Budget(max_steps=float("inf")))
    raised(accrt.TimeoutError, lambda: session.main.bind().run(0.12))


def asynchronous(path):
    async def main():
        await session_of(path).peek.call_async()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(long_work().main.call_async(), 0.01)
    asyncio.run(main())


def capsules(path):
    """Of which one is taken, one is refused, and one nobody wants."""
    device = accrt.default_instance().device("host")
    tensor = accrt.Tensor(accrt.Pool(device).buffer(64), "bf16", [32])
    accrt.from_dlpack(tensor, device)
    tensor.__dlpack__()
    with contextlib.suppress(TypeError):
        int.from_bytes(tensor.__dlpack__(max_version=(1, 0)), "little")


def files(path):
    """Files of weights, and what is none."""
    with accrt.Weights(path) as weights:
        assert {name: weight.numpy().sum() for name, weight in weights.items()} and weights.info and weights.metadata is not None
        raised(KeyError, lambda: weights["absent"])
    accrt.Program(path).load_weights(path, names=["w"])
    for wrong in (accrt.Weights, accrt.Bundle):
        raised((accrt.Error, ValueError), lambda: wrong(__file__))  # noqa: B023


def commands(path):
    device = accrt.default_instance().device("host")
    stream, source, buffer = accrt.Stream(device), accrt.Pool(device).buffer(64), accrt.Pool(device).buffer(64)
    made = accrt.Commands(device, bindings=1)
    made.fill(made.binding(0), 64, 3)
    made.barrier()
    made.copy(source, made.binding(0), 64)
    made.finalize()
    made.submit(stream, buffer)
    made.run(stream, buffer)


def sessions(path):
    session = session_of(path)
    clone = session.clone()
    session.warmup("peek")
    session.reset()
    assert clone["peek"]() is not None and "peek" in session and list(session) and dir(session) and session.program.estimate("peek")
    raised(accrt.Error, lambda: session.state("absent"))


def instances(path):
    lines = []
    instance = accrt.Instance(trust="all", log=lines.append)
    assert accrt.Program(accrt.Bundle(path, instance)).session().peek() is not None


def sandboxed(path):
    with accrt.load(path, sandbox=True) as session:
        session.peek()
    accrt.load(path, sandbox=True).peek()
    raised((accrt.Error, ValueError), lambda: accrt.load(__file__, sandbox=True))


def keys(path):
    """What a caller's own function raises comes back through C."""
    def key(key_id):
        raise KeyError(key_id)
    raised((accrt.Error, KeyError), lambda: accrt.Bundle(ROOT / "tests/golden/0.4/encrypted.accx", key=key))


WORK = {work.__name__: work for work in (calls, numbers, prepared, loads, errors, addresses, streams, memory, weights, quantized, signed, timeouts, plans, asynchronous, capsules, files, commands, sessions, instances,
                                       sandboxed, keys)}


def ours(found: object) -> bool:
    """Objects of the package, arrays, and pointers and structs of C. Not types: those are always in
    cycles, and hold nothing."""
    kind = type(found)  # isinstance() would ask a weak proxy for what is gone
    if issubclass(kind, type):
        return False
    return kind.__module__.partition(".")[0] == "accrt" or issubclass(kind, (np.ndarray, ctypes._Pointer, ctypes.Structure, ctypes.Array, ctypes._SimpleCData, ctypes.CDLL))


def left_to_the_collector(work, path) -> list[str]:
    gc.freeze()  # the collector passes by what other tests left, which is most of the time
    try:
        work(path)  # what is made once
        gc.collect()
        gc.disable()
        work(path)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted({f"{type(found).__module__}.{type(found).__name__}" for found in gc.garbage if ours(found)})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("name", WORK)
def test_nothing_waits_for_the_collector(path, name):
    assert left_to_the_collector(WORK[name], path) == []


def test_a_cycle_is_seen(path):
    def work(path):
        session = session_of(path)
        cycle = [session]
        cycle.append(cycle)
    assert "accrt.session.Session" in left_to_the_collector(work, path)
