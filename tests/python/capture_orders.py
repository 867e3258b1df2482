"""Random work of this library and of another one in one captured graph, under the stand-in for
CUDA's driver: `capture_orders.py PTX SEED ROUNDS`, from test_capture_order.py.

The other library has streams of its own, forks a capture to them by events as torch does, and lends
memory through DLPack, whose `stream=` it orders itself. Each graph is launched several times, and
memory compared with what the same operations give one after the other.
"""
from __future__ import annotations

import ctypes
import os
import random
import sys
from typing import Any, Dict, List

import numpy as np

import accrt

PTX, SEED, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
N, BUFFERS, STREAMS = 1000, 5, 4
cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    assert result == 0, f"the driver gave {result}"


def made(function: Any, *given: Any) -> ctypes.c_void_p:
    out = ctypes.c_void_p()
    check(function(ctypes.byref(out), *given))
    return out


class Peer:
    """The other library's streams, and events between them."""

    def __init__(self) -> None:
        check(cuda.cuInit(0))
        context = made(cuda.cuDevicePrimaryCtxRetain, 0)
        check(cuda.cuCtxSetCurrent(context))
        self.streams = [made(cuda.cuStreamCreate, 1) for _ in range(STREAMS)]
        self.asked: List[Any] = []  # streams that consumers named

    def after(self, stream: Any, before: Any) -> None:
        """What comes on `stream` comes after what is on `before`."""
        event = made(cuda.cuEventCreate, 2)
        check(cuda.cuEventRecord(event, before))
        check(cuda.cuStreamWaitEvent(stream, event, 0))


class Lent:
    """Memory of the other library: it makes the consumer's stream wait for the one that fills
    it."""

    def __init__(self, peer: Peer, tensor: Any, filled_on: Any) -> None:
        self.peer, self.tensor, self.filled_on = peer, tensor, filled_on

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, stream: Any = None, **more: Any) -> Any:
        self.peer.asked.append(stream)
        if stream not in (None, -1) and stream != self.filled_on.value:
            self.peer.after(ctypes.c_void_p(stream), self.filled_on)
        return self.tensor.__dlpack__(stream=-1, **more)


def order(peer: Peer, last: List[Dict[str, Any]], stream: Any, reads: int, writes: int, lends: bool) -> Any:
    """Before an operation on `stream`: after the last writer of what it reads, and everybody who
    had what it writes. lends: DLPack orders what it reads."""
    for other in {*last[writes]["readers"], last[writes]["writer"], None if lends else last[reads]["writer"]} - {None, stream.value}:
        peer.after(stream, ctypes.c_void_p(other))
    filled_on = ctypes.c_void_p(last[reads]["writer"] or stream.value)
    last[reads]["readers"].add(stream.value)
    last[writes] = {"writer": stream.value, "readers": set()}
    return filled_on


def capture(numbers: random.Random, peer: Peer, kernel: Any, wrapped: List[Any], sessions: List[Any], memory: List[Any], expected: List[Any]) -> None:
    """Captures random operations and launches the graph three times; `expected` gets what that
    does."""
    origin, count = peer.streams[0], numbers.randrange(1, 25)
    last: List[Dict[str, Any]] = [{"writer": origin.value, "readers": set()} for _ in memory]
    steps, joined, keep = [], {0}, []
    check(cuda.cuStreamBeginCapture_v2(origin, numbers.choice((0, 1, 2))))
    for _ in range(count):
        at = numbers.randrange(STREAMS)
        stream = peer.streams[at]
        if at not in joined:
            peer.after(stream, origin)
            joined.add(at)
        reads, writes = numbers.sample(range(BUFFERS), 2)
        lends = numbers.random() < 0.5
        filled_on = order(peer, last, stream, reads, writes, lends)
        given = Lent(peer, memory[reads], filled_on) if lends else memory[reads]
        if numbers.random() < 0.5:
            factor = numbers.randrange(1, 5)
            kernel(given, memory[writes], factor, N, stream=wrapped[at])
            steps.append((reads, writes, factor))
        else:
            call = sessions[at].function("affine").bind(given, out=memory[writes])
            call.submit()
            keep.append(call)
            steps.append((reads, writes, None))
        if lends:
            assert peer.asked[-1] == stream.value, (peer.asked[-1], stream.value)
    for at in joined - {0}:
        peer.after(origin, peer.streams[at])
    graph = ctypes.c_void_p()
    check(cuda.cuStreamEndCapture(origin, ctypes.byref(graph)))
    run = made(cuda.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
    for _ in range(3):
        check(cuda.cuGraphLaunch(run, origin))
        for reads, writes, factor in steps:
            x, y = expected[reads], expected[writes]
            y[:] = np.fmod(x * 2 + 1, 65521) if factor is None else np.fmod(y * factor + x, 65521)
    check(cuda.cuStreamSynchronize(origin))
    check(cuda.cuGraphExecDestroy(run))


def main() -> None:
    numbers, peer = random.Random(SEED), Peer()
    instance = accrt.Instance(host_code="all", options={"packs.path": os.environ["ACCRT_TEST_DATA"]})
    device = instance.device("cuda:0")
    kernel = accrt.Kernel.from_ptx(PTX, "mix", [("x", "read f32"), ("y", "read_write f32"), ("factor", "u32"), ("n", "u32")], lambda v: (v["n"] + 255) // 256,
                                   block=256, instance=instance)
    kernel.on(device)  # loaded before a capture
    program = accrt.Program(accrt.Bundle(os.environ["ORDER_BUNDLE"], instance), device)
    pool, setup = accrt.Pool(device), accrt.Stream(device)
    memory = [accrt.Tensor(pool.buffer(4 * N), "f32", [N]) for _ in range(BUFFERS)]
    program.session().function("affine")(memory[0], out=memory[1])
    # for as long as the streams are there: the last release of a wrapped stream waits for its work,
    # maybe in another thread, which a capture on it cannot have
    wrapped = [accrt.Stream.wrap(device, stream.value) for stream in peer.streams]
    sessions = [program.session(stream=stream) for stream in wrapped]
    for round_ in range(ROUNDS):
        expected = [np.full(N, i + round_ % 7, np.float32) for i in range(BUFFERS)]
        for tensor, value in zip(memory, expected):
            setup.copy(value, tensor.buffer)
        setup.synchronize()
        capture(numbers, peer, kernel, wrapped, sessions, memory, expected)
        for i, (tensor, wanted) in enumerate(zip(memory, expected)):
            got = np.empty(N, np.float32)
            setup.copy(tensor.buffer, got)
            setup.synchronize()
            assert np.array_equal(got, wanted), (SEED, round_, i, got[:3], wanted[:3])
    results_stay_in_order(peer, sessions[0], memory)
    print(f"{ROUNDS} graphs, {len(peer.asked)} tensors lent")


def results_stay_in_order(peer: Peer, session: Any, memory: List[Any]) -> None:
    """What a captured call gives is lent on its own stream; to others it is refused in one line,
    and the capture stays valid."""
    stream, other = peer.streams[:2]
    call = session.function("affine").bind(memory[0])
    call()
    check(cuda.cuStreamBeginCapture_v2(stream, 0))
    call.submit()
    result = call.results()
    result.__dlpack__(stream=stream.value, max_version=(1, 0))
    try:
        result.__dlpack__(stream=other.value, max_version=(1, 0))
    except accrt.InvalidStateError as error:
        assert "captur" in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError("a stream outside of the capture waits for nothing")
    graph = ctypes.c_void_p()
    check(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
    run = made(cuda.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
    check(cuda.cuGraphLaunch(run, stream))
    check(cuda.cuStreamSynchronize(stream))


if __name__ == "__main__":
    main()
