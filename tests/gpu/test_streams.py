"""`accrt.Stream.wrap` on the streams of torch and CuPy: work of both sides in one order, nothing
taken over, captures refused and kept valid. Needs a GPU, and torch or CuPy for the tests that are
about them."""

from __future__ import annotations

import numpy as np
import pytest

import accrt
from gpu_device import DEVICE, why_not

PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry add_to(.param .u64 cells, .param .u32 value, .param .u32 count)
{
  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [cells]; ld.param.u32 %r1, [value]; ld.param.u32 %r2, [count];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r3, %r3, 256, %r4;
  setp.ge.u32 %p, %r3, %r2;
  @%p bra DONE;
  mul.wide.u32 %d2, %r3, 4; add.s64 %d3, %d1, %d2;
  ld.global.u32 %r5, [%d3]; add.u32 %r5, %r5, %r1; st.global.u32 [%d3], %r5;
DONE:
  ret;
}
"""
COUNT = 1 << 20
GRID = (COUNT // 256,)

NO_DEVICE = why_not()
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")


@pytest.fixture(scope="module")
def device():
    return accrt.Instance().device(DEVICE)


@pytest.fixture(scope="module")
def kernel(device):
    kernels = [accrt.DeviceKernel("add_to", [("cells", "read_write"), ("value", "u32"), ("count", "u32")], (256,))]
    return accrt.KernelPack.of_module(device, PTX, kernels).kernel("add_to")


class Torch:
    """What the tests need of torch: streams, an array, work on a stream."""

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="no torch")
        if not self.torch.cuda.is_available():
            pytest.skip("torch has no CUDA")
        self.zeros = lambda: self.torch.zeros(COUNT, dtype=self.torch.int32, device="cuda")
        self.stream = self.torch.cuda.Stream

    def double_add(self, stream, cells):
        with self.torch.cuda.stream(stream):
            cells.mul_(2).add_(1)

    def wait(self, stream):
        stream.synchronize()

    def default(self):
        return self.torch.cuda.default_stream()

    def host(self, cells):
        return cells.cpu().numpy()


class Cupy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy", reason="no CuPy")
        self.zeros = lambda: self.cupy.zeros(COUNT, dtype=self.cupy.int32)
        self.stream = lambda: self.cupy.cuda.Stream(non_blocking=True)

    def double_add(self, stream, cells):
        with stream:
            cells *= 2
            cells += 1

    def wait(self, stream):
        stream.synchronize()

    def default(self):
        return self.cupy.cuda.Stream.null

    def host(self, cells):
        return self.cupy.asnumpy(cells)


@pytest.fixture(params=[Torch, Cupy], ids=["torch", "cupy"])
def peer(request):
    return request.param()


def address(cells):
    return cells.data_ptr() if hasattr(cells, "data_ptr") else cells.data.ptr


def expected(rounds, first=3):
    value = 0
    for i in range(rounds):
        value = 2 * (value + first + i) + 1
    return value


@pytest.mark.parametrize("which", ["own", "default"])
def test_work_of_both_is_in_one_order(peer, device, kernel, which):
    cells = peer.zeros()
    stream = peer.stream() if which == "own" else peer.default()
    peer.wait(peer.default())
    mine = accrt.Stream.wrap(device, stream)
    assert mine.native == (getattr(stream, "cuda_stream", None) if hasattr(stream, "cuda_stream") else stream.ptr)
    launch = accrt.Launch(device, kernel)
    fire = launch.on(mine, GRID)
    for i in range(20):
        fire(address(cells), 3 + i, COUNT)
        peer.double_add(stream, cells)
    peer.wait(stream)
    assert (peer.host(cells) == np.int64(expected(20)).astype(np.int32)).all()
    mine.synchronize(timeout=60)


def test_the_number_of_a_stream_is_enough(peer, device, kernel):
    cells, stream = peer.zeros(), peer.stream()
    peer.wait(peer.default())
    number = getattr(stream, "cuda_stream", None) if hasattr(stream, "cuda_stream") else stream.ptr
    mine = accrt.Stream.wrap(device, int(number))
    accrt.Launch(device, kernel).on(mine, GRID)(address(cells), 9, COUNT)
    mine.synchronize(timeout=60)
    assert (peer.host(cells) == 9).all()


def test_events_and_semaphores_on_a_wrapped_stream(peer, device, kernel):
    """The library's own stream waits for what the peer enqueued, and the peer's for what the
    library did."""
    cells, stream = peer.zeros(), peer.stream()
    peer.wait(peer.default())
    theirs, mine = accrt.Stream.wrap(device, stream), accrt.Stream(device)
    semaphore = accrt.Semaphore(device.instance)
    fire = accrt.Launch(device, kernel).on(mine, GRID)
    for i in range(10):
        peer.double_add(stream, cells)
        theirs.signal(semaphore, 2 * i + 1)
        mine.wait(semaphore, 2 * i + 1)
        fire(address(cells), 5, COUNT)
        mine.signal(semaphore, 2 * i + 2)
        theirs.wait(semaphore, 2 * i + 2)
    theirs.synchronize(timeout=60)
    value = 0
    for _ in range(10):
        value = 2 * value + 1 + 5
    assert (peer.host(cells) == value).all()


def test_the_stream_stays_its_owners(peer, device):
    cells, stream = peer.zeros(), peer.stream()
    peer.wait(peer.default())
    mine = accrt.Stream.wrap(device, stream)
    mine.close()
    peer.double_add(stream, cells)
    peer.wait(stream)
    assert (peer.host(cells) == 1).all()


def refused(call):
    with pytest.raises(accrt.InvalidStateError, match="captur"):
        call()


def test_torch_capture_is_refused_and_stays_valid(device, kernel):
    peer = Torch()
    torch = peer.torch
    cells, other = peer.zeros(), peer.zeros()
    stream = peer.stream()
    mine, apart = accrt.Stream.wrap(device, stream), accrt.Stream(device)
    pool = accrt.Pool(device)
    fire, fire_apart = accrt.Launch(device, kernel).on(mine, GRID), accrt.Launch(device, kernel).on(apart, GRID)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        cells.add_(1)
        refused(lambda: fire(address(cells), 100, COUNT))
        refused(lambda: mine.copy(np.zeros(4, np.int32), pool.buffer(16)))
        refused(lambda: mine.record(accrt.Event(device)))
        buffer = pool.buffer(1 << 20)  # what is not on the stream goes on
        apart.fill(buffer, 1)
        fire_apart(address(other), 7, COUNT)
        apart.synchronize(timeout=60)
        cells.add_(10)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (peer.host(cells) == 33).all() and (peer.host(other) == 7).all()
    fire(address(cells), 1000, COUNT)
    mine.synchronize(timeout=60)
    assert (peer.host(cells) == 1033).all()


def test_cupy_capture_is_refused_and_stays_valid(device, kernel):
    peer = Cupy()
    cells, stream = peer.zeros(), peer.stream()
    peer.wait(peer.default())
    peer.double_add(stream, cells)  # compiled before the capture
    peer.wait(stream)
    mine = accrt.Stream.wrap(device, stream)
    fire = accrt.Launch(device, kernel).on(mine, GRID)
    with stream:
        stream.begin_capture()
        cells *= 2
        refused(lambda: fire(address(cells), 100, COUNT))
        cells += 1
        graph = stream.end_capture()
    graph.launch(stream)
    peer.wait(stream)
    assert (peer.host(cells) == 3).all()


@pytest.mark.parametrize("bad", ["a stream", 1.5, None])
def test_what_is_no_stream_is_refused(device, bad):
    with pytest.raises((TypeError, ValueError, accrt.Error, AttributeError)):
        if bad is None:
            accrt.Stream.wrap(accrt.Instance().device("host"), 0)
        else:
            accrt.Stream.wrap(device, bad)
