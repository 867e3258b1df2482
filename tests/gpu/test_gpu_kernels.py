"""accrt.Kernel of GPUs on a GPU, with torch's and CuPy's tensors: results, streams, memory, graphs
that torch captures, what is refused."""

from __future__ import annotations

import gc
import time

import pytest

import accrt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor, long long n) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) y[i] = factor * x[i];
}
extern "C" __global__ void slow(float* y, long long n) {
  long long begin = clock64();
  while (clock64() - begin < 200000000ll) {}
  for (long long i = threadIdx.x; i < n; i += blockDim.x) y[i] = 7;
}
"""
PARAMETERS = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "symbol")]


@pytest.fixture(scope="module")
def scale():
    return accrt.Kernel.from_cuda(SOURCE, "scale", PARAMETERS, lambda v: min((v["n"] + 255) // 256, 1024))


@pytest.fixture(scope="module")
def slow():
    return accrt.Kernel.from_cuda(SOURCE, "slow", [("y", "write f32"), ("n", "symbol")])


def test_torch_tensors(scale):
    for n in (0, 1, 255, 256, 257, 1 << 20):
        x = torch.randn(n, device="cuda")
        y = torch.empty_like(x)
        for factor in (2, 0.5, -1.0):  # the first learns, the others go the quick way
            scale(x, y, factor, n)
            assert torch.equal(y, factor * x)
    x = torch.nn.Parameter(torch.randn(16, 16, device="cuda"))
    y = torch.zeros(16, 16, device="cuda")
    scale(x, y, 3.0, 256)
    assert torch.equal(y, 3 * x)
    scale(x, y, factor=4.0, n=256)
    assert torch.equal(y, 4 * x)


def test_it_runs_on_the_current_stream(scale, slow):
    other = torch.cuda.Stream()
    x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            slow(x, 1000, grid=1)  # and what follows on that stream sees what it wrote
            assert not other.query()
            scale(x, y, 2.0, 1000)
            z = y + 1
        other.synchronize()
        assert (z == 15).all()
    del z


def test_memory_is_freed_as_torch_frees_it(slow):
    torch.cuda.synchronize()
    for _ in range(3):
        y = torch.zeros(1 << 20, device="cuda")
        slow(y, 1 << 20, grid=1)
        kept = y.clone()
        del y
        # may be the same memory: it is after the kernel on the stream
        torch.zeros(1 << 20, device="cuda")
        assert (kept == 7).all()


def test_an_accrt_stream(scale, slow):
    device = accrt.default_instance().device("cuda:0")
    stream, x, y = accrt.Stream(device), torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    slow(x, 1000, grid=1)  # on torch's stream, which comes first
    scale(x, y, 2.0, 1000, stream=stream)
    stream.synchronize()
    assert (y == 14).all()


def test_a_captured_graph(scale):
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    scale(x, y, 1.0, 1000)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(x, y, 3.0, 1000)
        z = y + 1
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert (z == 16).all()
    scale(x, y, 1.0, 1000)
    assert (y == 5).all()


def test_cupy_arrays(scale):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1000, dtype=cupy.float32)
    y = cupy.zeros_like(x)
    for factor in (2.0, 3.0):
        scale(x, y, factor, 1000)
        assert bool((y == factor * x).all())
    with cupy.cuda.Stream(non_blocking=True):
        scale(x, y, 4.0, 1000)
        assert bool((y == 4 * x).all())


def test_streams_of_cupys_that_come_and_go(scale):
    """CuPy destroys a stream that nobody has: the kernel has those that it knows, and work in
    flight."""
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1000, dtype=cupy.float32)
    y = cupy.zeros_like(x)
    for turn in range(100):
        with cupy.cuda.Stream(non_blocking=bool(turn % 2)) as stream:
            scale(x, y, 4.0 + turn, 1000)
            kept = cupy.array(y)  # on that stream
        stream.synchronize()
        assert bool((kept == (4 + turn) * x).all())
        del stream, kept
        if turn % 10 == 0:
            gc.collect()
            time.sleep(0.05)  # the thread that looks after work in flight looks
    torch.cuda.synchronize()


def test_cupy_arrays_are_taken_as_they_are(scale, monkeypatch):
    """Once their class, the GPU and the stream are known nothing is imported."""
    cupy = pytest.importorskip("cupy")
    x, y = cupy.arange(1000, dtype=cupy.float32), cupy.zeros(1000, dtype=cupy.float32)
    scale(x, y, 1.0, 1000)
    import accrt._kernel_call
    with monkeypatch.context() as patched:
        patched.setattr(accrt._kernel_call, "call", lambda *given: pytest.fail("it was done in many steps"))
        for factor in (2.0, 3.0):
            scale(x, y, factor, 1000)
            assert bool((y == factor * x).all())
    for text, error, values in (("x has elements of type f64, and the kernel takes f32", TypeError, (x.astype(cupy.float64), y, 1.0, 1000)),
                                ("contiguous", ValueError, (x[::2], y, 1.0, 500))):
        for _ in range(2):
            with pytest.raises(error, match=text):
                scale(*values)
    mixed = torch.zeros(1000, device="cuda")
    for _ in range(2):
        scale(x, mixed, 5.0, 1000)
        torch.cuda.synchronize()
        assert torch.equal(mixed, 5 * torch.arange(1000.0, device="cuda"))


def test_accrt_tensors(scale):
    device = accrt.default_instance().device("cuda:0")
    x, pool = torch.randn(1000, device="cuda"), accrt.Pool(device)
    y = accrt.Tensor(pool.buffer(4000), "f32", [1000])
    scale(x, y, 2.0, 1000)
    torch.cuda.synchronize()
    assert torch.equal(torch.from_dlpack(y), 2 * x)


def test_what_is_refused(scale):
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    for text, error, values in (
        ("x has elements of type f64, and the kernel takes f32", TypeError, (x.double(), y, 1.0, 1000)),
        ("x lies on the host, and the kernel runs on cuda:0", ValueError, (x.cpu(), y, 1.0, 1000)),
        ("contiguous", ValueError, (x[::2], y, 1.0, 500)),
        ("n is missing", TypeError, (x, y, 1.0)),
        ("factor is 'a'", TypeError, (x, y, "a", 1000)),
        ("1e[+]39, which does not fit f32", OverflowError, (x, y, 1e39, 1000)),
    ):
        for _ in range(2):
            with pytest.raises(error, match=text):
                scale(*values)
    scale(x, y, 1.0, 1000)
    with pytest.raises(accrt.CompileError, match=r'^k\(2\): error: identifier "wrong" is undefined'):
        accrt.Kernel.from_cuda('extern "C" __global__ void k(int* x) {\n  *x = wrong;\n}', "k", [("x", "write i32")])(
            torch.zeros(1, dtype=torch.int32, device="cuda"), grid=1)
    with pytest.raises(accrt.Error):  # the image has another parameter
        accrt.Kernel.from_cuda(SOURCE, "scale", PARAMETERS[:3])(x, y, 1.0, grid=1)


def test_a_triton_function(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "triton_on_a_gpu.py").write_text("""
import triton
import triton.language as tl
@triton.jit
def row_sums(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * n + i, i < n, other=0.0), 0))
""")
    from triton_on_a_gpu import row_sums
    kernel = accrt.Kernel.from_triton(row_sums, {"x": "*fp32:16", "y": "*fp32", "n": "i32", "BLOCK": 1024}, num_warps=8, writes=["y"])
    x, y = torch.randn(77, 1000, device="cuda"), torch.zeros(77, device="cuda")
    for _ in range(3):
        y.zero_()
        kernel(x, y, 1000, grid=77)
        torch.testing.assert_close(y, x.sum(1), rtol=1e-5, atol=1e-4)
    for _ in range(2):
        with pytest.raises(ValueError, match="x: its address is no multiple of the 16 bytes"):
            kernel(x.view(-1)[1:], y, 1000, grid=1)
