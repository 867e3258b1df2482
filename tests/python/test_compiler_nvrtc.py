"""Bundles for GPUs on a machine without nvcc: the reference compiler's units by NVRTC. The first
tests use a stub of NVRTC; the others want NVRTC itself and run in `./dev check interop`."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest
import rotation
from limited_processes import Watched
from test_compiler_cuda import small_module
from test_gpu_kernels import STUB

import accrt
from accrt import _limited, _nvrtc
from accrt.compiler import compile, driver
from accrt.compiler.cuda import nvcc, rtc
from accrt.compiler.kernels.image import ImageError
from accrt.compiler.kernels.kerneldef import CudaSource
from accrt.models import _prebuilt



def forget():
    _nvrtc._found.cache_clear()
    _nvrtc._helper.cache_clear()
    nvcc.find_compiler.cache_clear()


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """No compiler is known, none is cached, and no nvcc is found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("ACCRT_NVCC", raising=False)
    monkeypatch.setattr(nvcc, "_candidates", lambda: [os.environ["ACCRT_NVCC"]] if "ACCRT_NVCC" in os.environ else ["/nowhere/nvcc"])
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def stub(fresh, monkeypatch):
    """As a wheel has it: lib/libnvrtc.so.13, include/ beside."""
    (fresh / "lib").mkdir()
    (fresh / "include").mkdir()
    (fresh / "include" / "cuda_fp16.h").write_text("")
    (fresh / "include" / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    (fresh / "stub.c").write_text(STUB.replace("PTX;", '"// made of nothing\\n";', 1))
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-o", fresh / "lib" / "libnvrtc.so.13", fresh / "stub.c"], check=True)
    monkeypatch.setenv("ACCRT_NVRTC", str(fresh / "lib" / "libnvrtc.so.13"))
    return fresh


def test_nvrtc_takes_the_place_of_nvcc(stub):
    found = nvcc.find_compiler()
    assert found.library is not None and not found.command and found.version.startswith("NVRTC 13.0 ") and "CUDA_VERSION 13000" in found.version
    assert nvcc.available_targets() == (["sm_80", "sm_90", "ptx"], {})
    unit = CudaSource(text='extern "C" __global__ void one() {}\n', flags=("-fmad=true",))
    assert nvcc.compile_unit(unit, "compute_80") == b"// made of nothing\n\0"
    assert nvcc.compile_unit(unit, "compute_80") and nvcc.compile_unit(CudaSource(text=unit.text), "sm_90")
    first, second = (stub / "log").read_text().splitlines()
    assert first.count("fmad=") == 1 and "-fmad=true" in first and "--gpu-architecture=compute_80" in first, "one value of an option"
    assert "--fmad=false" in second and "--gpu-architecture=sm_90" in second and f"--include-path={stub / 'include'}" in second
    with pytest.raises(ImageError, match=r'^compiling a kernel for sm_90 failed: NVRTC 13\.0 .*\nscale\(3\): error: identifier "wrong"'):
        nvcc.compile_unit(CudaSource(text="wrong"), "sm_90")


def test_the_environment_chooses(stub, monkeypatch):
    monkeypatch.setenv("ACCRT_NVCC", "nvrtc")
    assert nvcc.find_compiler().library is not None
    forget()
    monkeypatch.setenv("ACCRT_NVCC", "/elsewhere/nvcc")
    with pytest.raises(ImageError, match="^no CUDA compiler: tried /elsewhere/nvcc$"):
        nvcc.find_compiler()


def test_what_is_missing_is_said_in_one_line(stub, monkeypatch):
    monkeypatch.setattr(_nvrtc.Nvrtc, "include", property(lambda self: [], lambda self, value: None), raising=False)
    with pytest.raises(ImageError, match=r"^no CUDA compiler: tried /nowhere/nvcc, and NVRTC: .*no cuda_fp16.h .*pip install nvidia-cuda-runtime\)$"):
        nvcc.find_compiler()
    forget()
    monkeypatch.setenv("ACCRT_NVRTC", str(stub / "none.so"))
    with pytest.raises(ImageError, match=r"^no CUDA compiler: tried /nowhere/nvcc, and NVRTC: .*pip install nvidia-cuda-nvrtc[^\n]*$"):
        nvcc.find_compiler()


def test_builtins_beside_it_are_opened_first(stub):
    """Wheels before CUDA 13.1 do not say where this library is."""
    mark = stub / "opened"
    (stub / "b.c").write_text(f'#include <fcntl.h>\n__attribute__((constructor)) static void f(void) {{ open("{mark}", O_CREAT, 0600); }}\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", stub / "lib" / "libnvrtc-builtins.so.13.0", stub / "b.c"], check=True)
    nvcc.find_compiler()
    assert mark.exists()


HOSTILE = """
  if (strstr(text, "no end")) for (;;) ;
  if (strstr(text, "no sleep")) { signal(SIGALRM, SIG_IGN); for (;;) pause(); }
  if (strstr(text, "all memory")) { for (;;) { char* p = malloc(1 << 20); if (p == NULL) return 1; memset(p, 1, 1 << 20); } }
  if (strstr(text, "a crash")) abort();
  if (strstr(text, "an exit")) _exit(0);
  if (strstr(text, "a print")) { printf("12345678 forged"); fflush(stdout); }
  if (strstr(text, "a close")) { for (int fd = 0; fd < 64; fd++) close(fd); for (;;) pause(); }
"""


@pytest.fixture
def hostile(stub, monkeypatch):
    """A compiler that does what a source asks for."""
    text = (stub / "stub.c").read_text().replace("  *out = calloc", HOSTILE + "  *out = calloc", 1)
    (stub / "stub.c").write_text("#include <signal.h>\n#include <unistd.h>\n" + text)
    subprocess.run(["cc", "-std=gnu11", "-w", "-shared", "-fPIC", "-o", stub / "lib" / "libnvrtc.so.13", stub / "stub.c"], check=True)
    return stub


@pytest.mark.rotating(3)
@pytest.mark.parametrize("what, message", [
    ("no end", "takes longer than 2 seconds"), ("no sleep", "takes longer than 2 seconds"), ("all memory", "NVRTC: another|may take 256 MiB of memory"), ("a crash", r"ended its process: signal 6 \(SIGABRT\)"),
    ("an exit", "ended its process: exit code 0"), ("a close", "ended its process|takes longer than 2 seconds"), ("a print", None)])  # fmt: skip
def test_a_source_without_an_end_ends(hostile, monkeypatch, what, message):
    """By what the compiler does, by its messages, and with nothing left in this process."""
    ordinary = _nvrtc.COMPILE_SECONDS
    monkeypatch.setattr(_nvrtc, "COMPILE_BYTES", 256 << 20)
    if message and "2 seconds" in message:  # what ends in time has more, on a busy machine too
        monkeypatch.setattr(_nvrtc, "COMPILE_SECONDS", 2.0)
    watched = Watched(monkeypatch)
    unit = CudaSource(text=f'extern "C" __global__ void one() {{}}  // {what}\n')
    if message is None:
        assert nvcc.compile_unit(unit, "compute_80") == b"// made of nothing\n\0"
    else:
        with pytest.raises(ImageError, match=message) as caught:
            nvcc.compile_unit(unit, "compute_80")
        assert "compute_80" in str(caught.value) and len(str(caught.value)) < 6000
        with pytest.raises(accrt.CompileError, match=message):
            accrt.Kernel.from_cuda(unit.text, "one", [("x", "read f32")], None, arch="sm_80")
        monkeypatch.setattr(_nvrtc, "COMPILE_SECONDS", ordinary)
    assert nvcc.compile_unit(CudaSource(text='extern "C" __global__ void two() {}\n'), "compute_80") == b"// made of nothing\n\0"
    assert watched.fit(256 << 20, _nvrtc.IMAGE_BYTES)


def test_ctrl_c_ends_a_compilation(hostile):
    """And its process, in far less than its limit."""
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    ended, begun = [], _limited._Process.ask

    def ask(self, *given):
        ended.append(self)
        timer.start()  # its process is there, however long that took
        return begun(self, *given)

    _nvrtc._helper().close()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_limited._Process, "ask", ask)
        _nvrtc.find().compile("no end", "unit.cu", "", [], True)
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 60 and len(ended) == 1 and ended[0]._process.returncode == -signal.SIGKILL


# ---- NVRTC itself --------------------------------------------------------------------------------


@pytest.fixture
def real(fresh, monkeypatch):
    monkeypatch.delenv("ACCRT_NVRTC", raising=False)
    try:
        rtc.found()
    except ImageError as error:
        pytest.skip(f"there is no NVRTC here, with headers: {error}")


def test_serving_kernels_by_nvrtc_match_their_records(real):
    """A part, from a seed: every unit must compile, and a cubin's parameters are those of its
    record (build_images compares them)."""
    chance = random.Random(rotation.seed())
    layouts = [(layout, group, given) for layout in _prebuilt.LAYOUTS for group, given in list(_prebuilt._packed(layout))[:1]]
    asked = [_prebuilt._decoder("llama", _prebuilt._SIZES, "bf16"), _prebuilt._decoder("llama", _prebuilt._SIZES, "bf16", chance.choice(layouts))]
    found = {kernel.name: kernel for made in asked for kernel in driver.kernels_of(made.build(), "cuda") if kernel.producer is not None}
    some = chance.sample(sorted(found), 12)
    images = nvcc.build_images([found[name] for name in some], ["sm_80", "sm_90", "ptx"])
    assert {image.arch for image in images} >= {"sm_80", "sm_90", "compute_80"}
    assert {kernel.name for image in images for kernel in image.kernels} == set(some)


@pytest.mark.parametrize("source", [
    "template <int N, int M> struct A { static constexpr long v = A<N - 1, 2 * M>::v + A<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct A<0, M> { static constexpr long v = M; };\n__global__ void k(long* x) { *x = A<26, 0>::v; }\n",
    "#define A0 1 + 1\n" + "".join(f"#define A{i} A{i - 1} + A{i - 1} + A{i - 1} + A{i - 1}\n" for i in range(1, 16)) + "__global__ void k(long* x) { *x = A15; }\n",
    "__device__ int big[1u << 30] = {1};\n__global__ void k(int* x) { *x = big[*x]; }\n"], ids=["templates", "macros", "output"])  # fmt: skip
def test_sources_that_nvrtc_never_ends(real, monkeypatch, source):
    monkeypatch.setattr(_nvrtc, "COMPILE_BYTES", 1 << 30)
    with monkeypatch.context() as patch, pytest.raises(ImageError, match="longer than 5 seconds|may take 1024 MiB of memory|NVRTC: |NVRTC gave error|larger than"):
        patch.setattr(_nvrtc, "COMPILE_SECONDS", 5.0)
        nvcc.compile_unit(CudaSource(text=source), "sm_90")
    assert nvcc.compile_unit(CudaSource(text='extern "C" __global__ void two() {}\n'), "sm_90")[:4] == b"\x7fELF"


def test_a_bundle_by_nvrtc_is_the_same_each_time(real, tmp_path, monkeypatch):
    first = compile(small_module(), targets=["sm_90"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert compile(small_module(), targets=["sm_90"]) == first
