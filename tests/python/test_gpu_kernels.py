"""accrt.Kernel of GPUs: from CUDA C++ by NVRTC, from cubins and PTX, called under the stand-in for
CUDA's driver; what NVRTC says; its cache."""
import os
import subprocess
import sys
import threading
import types

import pytest

import accrt
from accrt import _nvrtc
from test_docs import SCALE_PTX, SCALE_TWIN
from test_standin import environment, needs_stand_in, ROOT

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
"""
PARAMETERS = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "u32")]

#: A library with NVRTC's functions: it "compiles" to a fixed PTX, says "no" to a source with the
#: word wrong, and counts its compilations.
STUB = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char image[] = PTX;
struct program { char entry[64]; int bad; };
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
const char* nvrtcGetErrorString(int result) { return result == 6 ? "NVRTC_ERROR_COMPILATION" : "another"; }
int nvrtcGetNumSupportedArchs(int* out) { *out = 2; return 0; }
int nvrtcGetSupportedArchs(int* out) { out[0] = 75; out[1] = 80; return 0; }
int nvrtcCreateProgram(struct program** out, const char* text, const char* name, int n, const char** h, const char** i) {
  (void)name, (void)n, (void)h, (void)i;
  *out = calloc(1, sizeof **out);
  (*out)->bad = strstr(text, "wrong") != NULL;
  return 0;
}
int nvrtcAddNameExpression(struct program* p, const char* name) { snprintf(p->entry, sizeof p->entry, "%s", name); return 0; }
int nvrtcCompileProgram(struct program* p, int count, const char** options) {
  FILE* log = fopen(getenv("STUB_LOG"), "a");
  for (int i = 0; i < count; i++) fprintf(log, "%s ", options[i]);
  fprintf(log, "\\n");
  fclose(log);
  return p->bad ? 6 : 0;
}
static const char said[] = "scale(3): error: identifier \\"wrong\\" is undefined\\n\\n1 error detected.\\n";
int nvrtcGetProgramLogSize(struct program* p, size_t* out) { (void)p; *out = sizeof said; return 0; }
int nvrtcGetProgramLog(struct program* p, char* out) { (void)p; memcpy(out, said, sizeof said); return 0; }
int nvrtcGetLoweredName(struct program* p, const char* name, const char** out) { (void)name; *out = p->entry; return 0; }
int nvrtcGetPTXSize(struct program* p, size_t* out) { (void)p; *out = sizeof image; return 0; }
int nvrtcGetPTX(struct program* p, char* out) { (void)p; memcpy(out, image, sizeof image); return 0; }
int nvrtcGetCUBINSize(struct program* p, size_t* out) { return nvrtcGetPTXSize(p, out); }
int nvrtcGetCUBIN(struct program* p, char* out) { return nvrtcGetPTX(p, out); }
int nvrtcDestroyProgram(struct program** p) { free(*p); *p = NULL; return 0; }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The stub, and the twin of its kernel for the stand-in."""
    folder = tmp_path_factory.mktemp("nvrtc")
    (folder / "stub.c").write_text(STUB.replace("PTX;", '"' + SCALE_PTX.replace("\n", "\\n") + '";', 1))
    (folder / "twin.c").write_text(SCALE_TWIN)
    flags = ["cc", "-std=gnu11", f"-I{ROOT / 'tests/fakecuda'}", f"-I{ROOT / 'include'}", "-shared", "-fPIC"]
    subprocess.run([*flags, "-o", folder / "libnvrtc.so", folder / "stub.c"], check=True)
    subprocess.run([*flags, "-o", folder / "twin.so", folder / "twin.c"], check=True)
    return folder


@pytest.fixture
def stub(built, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCRT_NVRTC", str(built / "libnvrtc.so"))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _nvrtc._found.cache_clear()
    _nvrtc._helper.cache_clear()
    yield tmp_path / "log"
    _nvrtc._found.cache_clear()
    _nvrtc._helper.cache_clear()


def made(source=SOURCE, **more):
    return accrt.Kernel.from_cuda(source, "scale", PARAMETERS, lambda v: (v["n"] + 255) // 256, **more)


def test_compiled_once_for_one_content(stub):
    image, kind = made(arch="sm_80").image("sm_80")
    assert kind == "cubin" and b".entry scale" in image
    made(arch=["sm_80", "sm_80"])
    assert len(stub.read_text().splitlines()) == 1
    made(SOURCE + "\n", arch="sm_80")
    made(options=["--use_fast_math"], arch="sm_80")
    lines = stub.read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("--gpu-architecture=sm_80 --std=c++17") and "--use_fast_math" in lines[2]


def test_a_gpu_that_nvrtc_does_not_know_gets_ptx(stub):
    assert made().image("sm_90")[1] == "ptx" and "--gpu-architecture=compute_80" in stub.read_text()
    with pytest.raises(accrt.CompileError, match="kernel scale: NVRTC 13.0 does not compile for sm_50, the oldest is sm_75"):
        made(arch="sm_50")
    for arch in ("90", "sm_", "gfx942", "sm_90x"):
        with pytest.raises(ValueError, match="expected one as 'sm_90'"):
            made(arch=arch)


def test_the_files_beside_a_file_count(stub, tmp_path):
    (tmp_path / "scale.cu").write_text('#include "part.cuh"\n' + SOURCE)
    (tmp_path / "part.cuh").write_text("// 1\n")
    made(tmp_path / "scale.cu", arch="sm_80")
    made(tmp_path / "scale.cu", arch="sm_80")
    assert f"--include-path={tmp_path}" in stub.read_text() and len(stub.read_text().splitlines()) == 1
    (tmp_path / "part.cuh").write_text("// 2\n")
    made(tmp_path / "scale.cu", arch="sm_80")
    assert len(stub.read_text().splitlines()) == 2


def test_what_does_not_compile_says_so_in_the_compilers_words(stub):
    with pytest.raises(accrt.CompileError) as caught:
        made(SOURCE.replace("factor *", "wrong *"), arch="sm_80")
    lines = str(caught.value).splitlines()
    assert lines[0] == 'scale(3): error: identifier "wrong" is undefined' and lines[-1] == "(kernel scale: NVRTC 13.0 for sm_80)"
    with pytest.raises(accrt.CompileError):  # it is not in the cache
        made(SOURCE.replace("factor *", "wrong *"), arch="sm_80")


def test_without_nvrtc_it_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCRT_NVRTC", str(tmp_path / "none.so"))
    with pytest.raises(accrt.CompileError, match=r"CUDA C\+\+ needs NVRTC \(pip install nvidia-cuda-nvrtc.*none.so") as caught:
        made(arch="sm_80")
    assert "\n" not in str(caught.value)


def test_many_compile_at_once(stub):
    found = []
    threads = [threading.Thread(target=lambda: found.append(made(arch="sm_80").image("sm_80")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    cached = [path for path in (stub.parent / "cache").rglob("*") if path.is_file()]
    assert len(cached) == 1 and not [path for path in cached if path.suffix == ".part"]


def test_what_is_wrong_is_said_before_anything_is_compiled():
    with pytest.raises(ValueError, match="kernel scale: parameter x is 'in f32'"):
        accrt.Kernel.from_cuda(SOURCE, "scale", [("x", "in f32")])
    with pytest.raises(TypeError, match="grid is .*expected a function"):
        accrt.Kernel.from_cuda(SOURCE, "scale", PARAMETERS, (1, 1, 1))
    with pytest.raises(TypeError, match="options is '-O3', expected a list"):
        accrt.Kernel.from_cuda(SOURCE, "scale", PARAMETERS, options="-O3")
    with pytest.raises(ValueError, match=r"block is \(0,\)"):
        accrt.Kernel.from_cuda(SOURCE, "scale", PARAMETERS, block=0)
    with pytest.raises(FileNotFoundError):
        accrt.Kernel.from_cuda("no/such.cu", "scale", PARAMETERS)
    kernel = accrt.Kernel.from_ptx(SCALE_PTX, "scale", PARAMETERS)
    assert kernel.parameters == [("x", "buffer", 8), ("y", "buffer", 8), ("factor", "scalar", 4), ("n", "scalar", 4)]
    assert repr(kernel) == "<accrt.GpuKernel scale(x: buffer, y: buffer, factor: scalar, n: scalar)>"
    with pytest.raises(TypeError, match="loaded on each GPU apart"):
        kernel.handle
    with pytest.raises(TypeError, match="compute-sanitizer"):
        kernel.check()
    with pytest.raises(ValueError, match="kernel scale is for CUDA GPUs, and host"):
        kernel.on(accrt.default_instance().device("host"))
    with pytest.raises(TypeError, match="from_ptx takes PTX"):
        accrt.Kernel.from_cubin(SCALE_PTX, "scale", PARAMETERS)
    with pytest.raises(accrt.NoVariantError, match="no machine code for sm_90, but for sm_80, sm_100"):
        accrt.Kernel.from_cubin({"sm_80": b"1", "sm_100": b"2"}, "scale", PARAMETERS).image("sm_90")
    assert accrt.Kernel.from_cubin({"sm_80": b"\x7fELF1", "sm_86": b"2"}, "scale", PARAMETERS).image("sm_89") == (b"2", "fatbin")


CALLED = """
import sys, types, ctypes, numpy as np, accrt
PARAMETERS = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "u32")]
scale = accrt.Kernel.from_cuda(open(sys.argv[1]).read(), "scale", PARAMETERS, lambda v: (v["n"] + 255) // 256)
ptx = accrt.Kernel.from_ptx(sys.argv[2], "scale", PARAMETERS)
device, other = (accrt.default_instance().device(f"cuda:{i}") for i in (0, 1))
n = 1000

def pair(device):
    pool, stream = accrt.Pool(device), accrt.Stream(device)
    buffers = [pool.buffer(4 * n) for _ in range(2)]
    stream.copy(np.full(n, 3, np.float32), buffers[0])
    stream.synchronize()
    return stream, [accrt.Tensor(buffer, "f32", [n]) for buffer in buffers]

stream, (x, y) = pair(device)
scale(x, y, 2, n)
assert (y.numpy() == 6).all()
scale(x, y, factor=4.0, n=n, stream=stream)
stream.synchronize()
assert (y.numpy() == 12).all()
ptx(x, y, 5, n, grid=(4, 1))
assert (y.numpy() == 15).all()
scale(x, y, 5, 0)  # nothing to do
_, (x1, y1) = pair(other)  # the other GPU, by where the tensors lie
scale(x1, y1, 3, n)
assert (y1.numpy() == 9).all() and len(scale._on) == 2
accrt.launch(stream, scale, (4,), x, y, 7.0, n)
accrt.Launch(device, scale)
commands = accrt.Commands(device)
commands.dispatch(scale, (4,), x, y, 8.0, n)
commands.finalize().run(stream)
assert (y.numpy() == 24).all()

def refused(text, *values, kernel=scale, **more):
    try:
        kernel(*values, **more)
    except (TypeError, ValueError, BufferError, OverflowError, accrt.Error) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

refused("kernel scale takes 4 arguments (x, y, factor, n), n is missing", x, y, 2)
refused("factor is '2'", x, y, "2", n)
refused("n is -1, which does not fit u32", x, y, 2, -1)
refused("scale: x lies on the host, and the kernel runs on cuda:0", np.zeros(n, np.float32), y, 2, n)
refused("y lies on cuda:1, and the kernel runs on cuda:0", x, y1, 2, n)
refused("scale: grid is missing", x, y, 2, n, kernel=ptx)
refused("y has elements of type i32, and the kernel takes f32", x, accrt.Tensor(y.buffer, "i32", [n]), 2, n)
refused("its address is no multiple of the 4 bytes of f32", x, accrt.Tensor(y.buffer, "f32", [n - 1], offset_bytes=2), 2, n)

class Nowhere:  # as torch's tensors of the meta device
    def __dlpack_device__(self): raise ValueError("Unknown device type meta\\nfor Dlpack")
    def __dlpack__(self, **more): raise AssertionError("nobody may ask for it")

refused("kernel scale: x: Unknown device type meta", Nowhere(), y, 2, n)

class Torch:  # what this needs of torch: tensors on a GPU, and a stream that they are used on
    def __init__(self, tensor): self.tensor = tensor
    is_cuda, asked = True, []
    def __dlpack_device__(self): return self.tensor.__dlpack_device__()
    def __dlpack__(self, stream=None, **more):
        Torch.asked.append(stream)
        return self.tensor.__dlpack__(stream=stream, **more)

queue = accrt.Stream(device)
current = types.SimpleNamespace(cuda_stream=queue.native)
sys.modules["torch"] = types.SimpleNamespace(Tensor=Torch, cuda=types.SimpleNamespace(current_stream=lambda index: current))
scale(Torch(x), Torch(y), 10, n)
for one in scale.on(device)._borrowed.values():
    one.synchronize()
assert (y.numpy() == 30).all() and Torch.asked == [queue.native] * 2, Torch.asked
scale(Torch(x), y, 11, n, stream=stream)
stream.synchronize()
assert (y.numpy() == 33).all() and Torch.asked[2:] == [stream.native]
refused("y lies on cuda:1, and the kernel runs on cuda:0", Torch(x), Torch(y1), 2, n)
del sys.modules["torch"]
"""


#: The quick way: tensors of a library with DLPack's C exchange, told apart by class.
QUICKLY = """
import ctypes, struct, sys, types, numpy as np, accrt
from accrt import _fast
class DL(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]
borrow_t = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DL))
stream_t = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
from_t = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
borrowed = []

@borrow_t
def borrow(tensor, out):
    borrowed.append(tensor)
    t = tensor.tensor
    tensor.numbers = (ctypes.c_int64 * 16)(*t.shape, *[0] * (8 - t.ndim), *tensor.strides)
    out[0] = DL(t.address, *t.__dlpack_device__(), t.ndim, *{"f32": (2, 32), "i32": (0, 32)}[t.dtype], 1, ctypes.addressof(tensor.numbers), ctypes.addressof(tensor.numbers) + 64, 0)
    return 0

@stream_t
def current_stream(type, id, out):
    out[0] = queues[id].native
    return 0

@from_t
def no(value, out):
    return -1

class Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("from_object", from_t), ("to_object", ctypes.c_void_p), ("borrow", borrow_t), ("current_stream", stream_t)]
table = Api(1, 3, None, None, no, None, borrow, current_stream)
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

class Torch:
    __dlpack_c_exchange_api__ = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    is_cuda, requires_grad, negative = True, False, False
    def __init__(self, tensor, strides=None): self.tensor, self.strides = tensor, strides or tensor.strides
    def is_neg(self): return self.negative
    def detach(self): return Torch(self.tensor, self.strides)
    def resolve_neg(self): pass
    def __dlpack_device__(self): return self.tensor.__dlpack_device__()
    def __dlpack__(self, stream=None, **more):
        if self.strides != self.tensor.strides: raise BufferError("strides")
        return self.tensor.__dlpack__(stream=stream, **more)

class Parameter(Torch):
    requires_grad = True

n = 1000
devices = [accrt.default_instance().device(f"cuda:{i}") for i in (0, 1)]
queues = [accrt.Stream(device) for device in devices]
sys.modules["torch"] = types.SimpleNamespace(Tensor=Torch, cuda=types.SimpleNamespace(current_stream=lambda i: types.SimpleNamespace(cuda_stream=queues[i].native)))

def pair(i):
    pool = accrt.Pool(devices[i])
    buffers = [pool.buffer(4 * n) for _ in range(2)]
    queues[i].copy(np.full(n, 3, np.float32), buffers[0])
    queues[i].synchronize()
    return [accrt.Tensor(buffer, "f32", [n]) for buffer in buffers]

PARAMETERS = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "u32")]
scale = accrt.Kernel.from_ptx(sys.argv[1], "scale", PARAMETERS, lambda v: (v["n"] + 255) // 256)
steps = []
from accrt import _kernel_call
call = _kernel_call.call
_kernel_call.call = lambda *given: (steps.append(1), call(*given))[1]

def wait(i):  # the queue knows only of what was enqueued by itself
    for stream in scale.on(devices[i])._borrowed.values():
        stream.synchronize()

def check(i, times, *values, slowly, **more):
    begin = len(steps)
    assert scale(*values, **more) is None
    wait(i)
    assert (values[1].tensor.numpy() == np.float32(3) * np.float32(times)).all()
    assert len(steps) - begin == slowly, (len(steps) - begin, slowly)

quick = 0 if _fast.native is not None else 1
for i in (0, 1):
    x, y = pair(i)
    check(i, 2, Torch(x), Torch(y), 2, n, slowly=1)  # it learns
    check(i, 4, Torch(x), Torch(y), 4.0, n, slowly=quick)
    check(i, 5, Torch(x), Torch(y), 5, n, grid=4, slowly=quick)
    check(i, 6, Torch(x), Torch(y), 6, n, grid=(4, 1, 1), slowly=quick)
    check(i, 7, Parameter(x), Torch(y), 7, n, slowly=quick)
    check(i, 0.1, Torch(x), Torch(y), 0.1, n, slowly=quick)
    check(i, 8, Torch(x), Torch(y), factor=8, n=n, slowly=1)
    check(i, 9, Torch(x, (1,)), Torch(y), 9, n, slowly=quick)
    queues[i] = accrt.Stream(devices[i])  # another one is current
    check(i, 10, Torch(x), Torch(y), 10, n, slowly=1)
    check(i, 11, Torch(x), Torch(y), 11, n, slowly=quick)
x, y = pair(0)
check(0, 3, Torch(x), Torch(y), 3, n, slowly=quick)
x1, y1 = pair(1)

def refused(text, *values, **more):
    try:
        scale(*values, **more)
    except (TypeError, ValueError, OverflowError, BufferError, accrt.Error) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

refused("takes 4 arguments (x, y, factor, n), n is missing", Torch(x), Torch(y), 2)
refused("takes 4 arguments (x, y, factor, n), 5 were given", Torch(x), Torch(y), 2, n, n)
refused("n is -1, which does not fit u32", Torch(x), Torch(y), 2, -1, grid=1)
refused("n is 4294967296, which does not fit u32", Torch(x), Torch(y), 2, 1 << 32)
refused("n is 18446744073709551616, which does not fit u32", Torch(x), Torch(y), 2, 1 << 64, grid=1)
refused("factor is 1e+39, which does not fit f32", Torch(x), Torch(y), 1e39, n)
refused("factor is '2'", Torch(x), Torch(y), "2", n)
refused("grid is (0,)", Torch(x), Torch(y), 2, n, grid=0)
refused("4294967296", Torch(x), Torch(y), 2, n, grid=1 << 32)
refused("grid is (1, 1, 1, 1)", Torch(x), Torch(y), 2, n, grid=(1, 1, 1, 1))
refused("y lies on cuda:1, and the kernel runs on cuda:0", Torch(x), Torch(y1), 2, n)
refused("y has elements of type i32, and the kernel takes f32", Torch(x), Torch(accrt.Tensor(y.buffer, "i32", [n])), 2, n)
refused("its address is no multiple of the 4 bytes of f32", Torch(x), Torch(accrt.Tensor(y.buffer, "f32", [n - 1], offset_bytes=2)), 2, n)
refused("strides", Torch(x, (2,)), Torch(y), 2, n)
negative = Torch(x)
negative.negative = True
refused("negatives", negative, Torch(y), 2, n)
scale(Torch(x), Torch(y), 2, 0)  # nothing to do
check(0, 12, Torch(x), Torch(y), 12, n, slowly=quick)
if not quick:
    import threading
    threads = [threading.Thread(target=lambda: [scale(Torch(x), Torch(y), 13, n) for _ in range(200)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    check(0, 14, Torch(x), Torch(y), 14, n, slowly=quick)
del sys.modules["torch"]
"""


@needs_stand_in
@pytest.mark.parametrize("native", ["1", "0"])
def test_the_quick_way_does_what_the_other_does(built, tmp_path, native):
    env = dict(environment(), FAKECUDA_KERNELS=str(built / "twin.so"), ACCRT_NATIVE=native)
    done = subprocess.run([sys.executable, "-c", QUICKLY, SCALE_PTX], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_stand_in
def test_called_under_the_stand_in(built, tmp_path):
    (tmp_path / "scale.cu").write_text(SOURCE)
    env = dict(environment(), FAKECUDA_KERNELS=str(built / "twin.so"), ACCRT_NVRTC=str(built / "libnvrtc.so"), STUB_LOG=str(tmp_path / "log"),
               XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", CALLED, tmp_path / "scale.cu", SCALE_PTX], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "log").read_text().splitlines()) == 1


@pytest.fixture
def real(monkeypatch, tmp_path):
    """NVRTC itself."""
    monkeypatch.delenv("ACCRT_NVRTC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _nvrtc._found.cache_clear()
    _nvrtc._helper.cache_clear()
    try:
        _nvrtc.find()
    except accrt.CompileError:
        pytest.skip("there is no NVRTC here")


def test_nvrtc_compiles_without_a_gpu(real):
    image, kind = made(arch=("sm_80", "sm_90")).image("sm_90")
    assert kind == "cubin" and image[:4] == b"\x7fELF" and b"scale" in image
    with pytest.raises(accrt.CompileError) as caught:
        made(SOURCE.replace("factor *", "wrong *"), arch="sm_90")
    assert str(caught.value).startswith('scale(4): error: identifier "wrong" is undefined')
    template = "template <typename T> __global__ void twice(T* x) { *x *= 2; }\n"
    twice = accrt.Kernel.from_cuda(template, "twice", [("x", "read_write f32")], entry="twice<float>", block=1, arch="sm_90")
    assert b"_Z5twiceIfEvPT_" in twice.image("sm_90")[0]


@needs_stand_in
def test_what_nvrtc_made_is_called(real, built, tmp_path):
    """NVRTC asks the driver for more than the stand-in has, so it compiles here, into the cache."""
    (tmp_path / "scale.cu").write_text(SOURCE)
    made(arch="sm_90")
    env = dict(environment(), FAKECUDA_KERNELS=str(built / "twin.so"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    env.pop("ACCRT_NVRTC", None)
    done = subprocess.run([sys.executable, "-c", CALLED, tmp_path / "scale.cu", SCALE_PTX], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.listdir(tmp_path / "cache")


# ---- Triton

TRITON = """
import triton
import triton.language as tl
@triton.jit
def scale(x, y, factor, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * factor, i < n)
"""
SIGNATURE = {"x": "*fp32:16", "y": "*fp32", "factor": "fp32", "n": "i32", "BLOCK": 256}


@pytest.fixture
def triton_scale(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "triton_scale.py").write_text(TRITON)
    sys.modules.pop("triton_scale", None)
    import triton_scale
    return triton_scale.scale


def test_a_triton_function_is_compiled_without_a_gpu(triton_scale):
    kernel = accrt.Kernel.from_triton(triton_scale, SIGNATURE, grid=lambda v: (v["n"] + 255) // 256, writes=["y"])
    image, kind = kernel.image("sm_90")
    assert kind == "cubin" and image[:4] == b"\x7fELF" and kernel.name == "scale"
    assert kernel.parameters == [("x", "buffer", 8), ("y", "buffer", 8), ("factor", "scalar", 4), ("n", "scalar", 4)]
    assert kernel.image("sm_80")[0] != image


def test_what_is_wrong_with_a_triton_function(triton_scale):
    for text, error, function, signature, more in (
        ("expected what triton.jit gives", TypeError, print, SIGNATURE, {}),
        ("kernel scale takes x, y, factor, n, BLOCK, n, BLOCK have neither a type nor a value", TypeError, triton_scale,
         {"x": "*fp32", "y": "*fp32", "factor": "fp32"}, {}),
        ("none is named 'z'", TypeError, triton_scale, {**SIGNATURE, "z": "i32"}, {}),
        ("kernel scale: n is 'int', expected a type of Triton's", ValueError, triton_scale, {**SIGNATURE, "n": "int"}, {}),
        ("kernel scale: n is 'i32:16'", ValueError, triton_scale, {**SIGNATURE, "n": "i32:16"}, {}),
        ("target is '90'", ValueError, triton_scale, SIGNATURE, {"target": "90"}),
        # no power of two
        ("kernel scale: Triton 3", accrt.CompileError, triton_scale, {**SIGNATURE, "BLOCK": 100}, {}),
        ("clusters of blocks", accrt.CompileError, triton_scale, SIGNATURE, {"options": {"num_ctas": 2}}),
    ):
        with pytest.raises(error, match=text):
            accrt.Kernel.from_triton(function, signature, **more)


def test_hidden_parameters_that_nobody_knows_are_refused():
    from types import SimpleNamespace

    from accrt import _kernel_triton
    text = ".visible .entry k(\n.param .u64 a,\n.param .u32 n,\n.param .u64 b,\n.param .u64 c\n)\n{ }"
    both = SimpleNamespace(global_scratch_size=0, profile_scratch_size=0)
    assert _kernel_triton._hidden(both, "3.9.0", text, "k", 2) == [("hidden_global_scratch", "u64"), ("hidden_profile_scratch", "u64")]
    with pytest.raises(accrt.CompileError, match="Triton 9.9 is not known here: its kernels have 2 hidden parameters, of which accrt knows 1"):
        _kernel_triton._hidden(SimpleNamespace(global_scratch_size=0), "9.9", text, "k", 2)
    assert _kernel_triton._unsupported(SimpleNamespace(global_scratch_size=64)) == "64 bytes of global scratch memory"


def test_without_triton_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(accrt.CompileError, match="a Triton function needs Triton"):
        accrt.Kernel.from_triton(types.SimpleNamespace(arg_names=["x"], fn=print), {})
    with pytest.raises(TypeError, match="expected what triton.jit gives"):
        accrt.Kernel.from_triton(print, {})


CALLED_TRITON = """
import sys, numpy as np, accrt, triton_scale
scale = accrt.Kernel.from_triton(triton_scale.scale, {"x": "*fp32:16", "y": "*fp32", "factor": "fp32", "n": "i32", "BLOCK": 256},
                                 grid=lambda v: (v["n"] + 255) // 256, num_warps=8, writes=["y"])
device, n = accrt.default_instance().device("cuda:0"), 1000
pool, stream = accrt.Pool(device), accrt.Stream(device)
buffers = [pool.buffer(4 * n + 4) for _ in range(2)]
stream.copy(np.full(n + 1, 3, np.float32), buffers[0])
stream.synchronize()
x, y = (accrt.Tensor(buffer, "f32", [n]) for buffer in buffers)
scale(x, y, 2, n)
assert (y.numpy() == 6).all()
scale(x, y, 3, n=n, grid=4, stream=stream)
accrt.launch(stream, scale, (4,), x, y, 4.0, n)
stream.synchronize()
assert (y.numpy() == 12).all()
for text, values in (("x: its address is no multiple of the 16 bytes that it was compiled for", (accrt.Tensor(buffers[0], "f32", [n], offset_bytes=4), y, 2, n)),
                     ("takes 4 arguments (x, y, factor, n), 5 were given", (x, y, 2, n, 0))):
    try:
        scale(*values)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
"""


@needs_stand_in
def test_a_triton_function_is_called(triton_scale, built, tmp_path):
    env = dict(environment(), FAKECUDA_KERNELS=str(built / "twin.so"), TRITON_CACHE_DIR=str(tmp_path / "triton"))
    env["PYTHONPATH"] += f":{tmp_path}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CALLED_TRITON], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


IN_A_BUNDLE = """
import sys, numpy as np, accrt
model = accrt.load(sys.argv[1], device="cuda:0", trust="all")
assert (model.twice(np.full((3, 8), 3, np.float32)).numpy() == 6).all()
"""
HOST = """
int32_t scale(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e;
  const scale_params_t* p = d->params;
  for (int64_t i = (int64_t)w->workgroup_id[0] * 256; i < ((int64_t)w->workgroup_id[0] + 1) * 256 && i < p->n; i++) p->y[i] = p->factor * p->x[i];
  return 0;
}
"""
TWIN_64 = SCALE_TWIN.replace("*(const int*)params[3]", "*(const long long*)params[3]")


@needs_stand_in
def test_a_triton_function_in_a_bundle(triton_scale, tmp_path):
    """As the CUDA version of a kernel of hosts: one bundle runs on both."""
    from accrt.compiler import compile, Module, TensorType
    from accrt.compiler.cuda import nvcc
    if not nvcc.available_targets()[0]:
        pytest.skip("there is no nvcc here")
    signature = {**SIGNATURE, "x": "*fp32", "n": "i64"}
    on_gpu = accrt.Kernel.from_triton(triton_scale, signature, writes=["y"], num_warps=8)
    parameters = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "symbol")]
    kernel = accrt.Kernel.from_c(HOST, "scale", parameters, lambda v: (v["n"] + 255) // 256, cuda=on_gpu)
    m = Module("twice")
    rows = m.symbol("rows", maximum=1 << 16)
    f = m.function("twice")
    f.result("y", f.kernel(kernel, [f.input("x", "f32", [rows, 8])], [TensorType("f32", (rows, 8))], factor=2.0, n=rows * 8)[0])
    compile(m, tmp_path / "twice.accx", targets=["host", "sm_90"])
    (tmp_path / "twin.c").write_text(TWIN_64)
    subprocess.run(["cc", "-std=gnu11", f"-I{ROOT / 'tests/fakecuda'}", f"-I{ROOT / 'include'}", "-shared", "-fPIC", "-o", tmp_path / "twin.so",
                    tmp_path / "twin.c"], check=True)
    env = dict(environment(), FAKECUDA_KERNELS=str(tmp_path / "twin.so"))
    for code in (IN_A_BUNDLE, IN_A_BUNDLE.replace("cuda:0", "host")):
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "twice.accx"], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    for text, wrong in (("its cuda: n is scalar i32, and the host's symbol i64: a symbol is an i64", {"n": "i32"}),
                        ("its cuda takes x at multiples of 16 bytes", {"x": "*fp32:16"})):
        with pytest.raises(ValueError, match=text):
            accrt.Kernel.from_c(HOST, "scale", parameters, lambda v: 1, cuda=accrt.Kernel.from_triton(triton_scale, {**signature, **wrong}, writes=["y"]))
