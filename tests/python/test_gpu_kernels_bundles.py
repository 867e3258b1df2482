"""Kernels that there are for GPUs alone in bundles: from CUDA C++, PTX, cubins and Triton, run
under the stand-in for CUDA's driver; what refuses them; and the example with one kernel in C, CUDA
C++ and Triton."""
import os
import runpy
import subprocess
import sys

import numpy as np
import pytest

import accrt
from accrt.compiler import compile, Module, TensorType
from accrt.compiler.cuda import nvcc
from accrt.compiler.ir import IRError
from accrt.compiler.kernels.image import ImageError
from test_custom_kernels import EXAMPLE, LIBRARY
from test_docs import SCALE_PTX
from test_gpu_kernels import built, SOURCE, stub, TWIN_64  # noqa: F401 - fixtures
from test_standin import environment, needs_stand_in, ROOT

WIDE = [("x", "read f32"), ("y", "write f32"), ("factor", "f32"), ("n", "symbol")]
PTX = SCALE_PTX.replace(".u32 n", ".u64 n").lstrip()
HOST = accrt.compiler.available_targets(["host"])


def blocks(values):
    return (values["n"] + 255) // 256


def twice(kernel):
    """A module whose one function runs a kernel of the parameters above."""
    m = Module("twice")
    rows = m.symbol("rows", maximum=1 << 16)
    f = m.function("twice")
    x = f.input("x", "f32", [rows, 8])
    f.result("y", f.kernel(kernel, [x], [TensorType("f32", (rows, 8))], factor=2.0, n=rows * 8)[0])
    return m


def cubin(arch):
    """Of nvcc, from the source with a wide n."""
    from accrt.compiler.kernels.kerneldef import CudaSource
    return nvcc.compile_unit(CudaSource(text=SOURCE.replace("unsigned n", "long long n")), arch)


def needs_nvcc():
    if not nvcc.available_targets()[0]:
        pytest.skip("there is no nvcc here")


def run_under_the_stand_in(bundle, twins, folder, code, *args, **settings):
    (folder / "twin.c").write_text(twins)
    subprocess.run(["cc", "-std=gnu11", f"-I{ROOT / 'tests/fakecuda'}", "-shared", "-fPIC", "-o", folder / "twin.so", folder / "twin.c"], check=True)
    env = dict(environment(**settings), FAKECUDA_KERNELS=str(folder / "twin.so"))
    done = subprocess.run([sys.executable, "-c", code, bundle, *args], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


RUN = """
import sys, numpy as np, accrt
model = accrt.load(sys.argv[1], device="cuda:0", trust="all")
for rows in (3, 1000, 1):
    assert (model.twice(np.full((rows, 8), 3, np.float32)).numpy() == 6).all()
"""


@needs_stand_in
@pytest.mark.parametrize("arch", [80, 90])
def test_ptx_alone_runs_from_a_bundle(tmp_path, arch):
    kernel = accrt.Kernel.from_ptx(PTX, "scale", WIDE, blocks, block=256)
    assert kernel.definition is kernel.definition and kernel.definition.arch == ("ptx",)
    compile(twice(kernel), tmp_path / "twice.accx", targets=["ptx"])
    run_under_the_stand_in(tmp_path / "twice.accx", TWIN_64, tmp_path, RUN, arch=arch)


@needs_stand_in
@pytest.mark.parametrize("arch", [80, 90])
def test_cubins_run_from_a_bundle_on_their_own_architecture(tmp_path, arch):
    needs_nvcc()
    images = {"sm_80": cubin("sm_80"), "sm_90": cubin("sm_90")}
    kernel = accrt.Kernel.from_cubin(images, "scale", WIDE, blocks, block=256)
    assert kernel.definition.arch == ("sm_80", "sm_90")
    compile(twice(kernel), tmp_path / "twice.accx", targets=["cuda"])
    run_under_the_stand_in(tmp_path / "twice.accx", TWIN_64, tmp_path, RUN, arch=arch)
    # without a name its architecture is the one that it says itself
    for name, image in images.items():
        assert accrt.Kernel.from_cubin(image, "scale", WIDE, blocks, block=256).definition.arch == (name,)


@needs_stand_in
def test_ptx_is_for_gpus_from_the_one_that_it_names(tmp_path):
    newer = accrt.Kernel.from_ptx(PTX.replace("sm_80", "sm_90"), "scale", WIDE, blocks, block=256)
    assert newer.definition.producer.ptx == "compute_90"
    compile(twice(newer), tmp_path / "twice.accx", targets=["ptx"])
    run_under_the_stand_in(tmp_path / "twice.accx", TWIN_64, tmp_path, RUN, arch=90)
    with pytest.raises(AssertionError, match="NoVariantError"):
        run_under_the_stand_in(tmp_path / "twice.accx", TWIN_64, tmp_path, RUN, arch=80)


def test_cuda_cpp_has_what_nvrtc_gives(stub):  # noqa: F811
    """The stub knows sm_80 and gives PTX for it; newer ones have PTX."""
    kernel = accrt.Kernel.from_cuda(SOURCE, "scale", WIDE, blocks)
    assert kernel.definition.arch == ("ptx",) and kernel.definition.producer.ptx == "compute_80" and kernel.definition.entry == "scale"


def test_nvrtc_gives_cubins_and_ptx_for_bundles():
    try:
        accrt._nvrtc.find()
    except accrt.CompileError:
        pytest.skip("there is no NVRTC here")
    template = "template <class T> __global__ void scale(const T* x, T* y, T factor, long long n) {\n  y[threadIdx.x] = factor * x[threadIdx.x];\n}\n"
    for kernel in (accrt.Kernel.from_cuda(SOURCE.replace("unsigned n", "long long n"), "scale", WIDE, blocks, block=64),
                   accrt.Kernel.from_cuda(template, "scale", WIDE, blocks, entry="scale<float>")):
        record = kernel.definition
        assert record.arch == ("sm_80", "sm_90", "ptx") and record.family == "cuda" and record.entry in (b"".join(i for _a, i in record.producer.images)).decode("latin1")
        assert "cuda" in str(accrt.Bundle(compile(twice(kernel), targets=["cuda"])).function_targets("twice"))


def test_a_target_of_hosts_refuses_it_by_name():
    kernel = accrt.Kernel.from_ptx(PTX, "scale", WIDE, blocks, block=256)
    for targets in ([*HOST, "ptx"], HOST, None):
        with pytest.raises(IRError, match="function 'twice'.*kernel 'scale' is for cuda, not for host: give targets of CUDA's alone"):
            compile(twice(kernel), targets=targets)


def test_what_cannot_go_into_a_bundle_is_refused_by_name():
    kernel = accrt.Kernel.from_ptx(PTX, "scale", WIDE, blocks, block=256)
    with pytest.raises(ImageError, match="kernel 'scale' has machine code for ptx, and none for sm_90"):
        compile(twice(kernel), targets=["sm_90"])
    fatbin = b"\x50\xed\x55\xba" + bytes(60)
    for text, broken in (
        ("kernel scale has no grid, and one in a bundle needs it: give grid=", accrt.Kernel.from_ptx(PTX, "scale", WIDE, block=256)),
        ("kernel scale is PTX for sm_90a alone", accrt.Kernel.from_ptx(PTX.replace("sm_80", "sm_90a"), "scale", WIDE, blocks, block=256)),
        ("kernel scale is PTX that names no .target", accrt.Kernel.from_ptx("\n.version 7.0\n", "scale", WIDE, blocks, block=256)),
        ("kernel scale has no cubin for sm_80 or sm_90, and no PTX", accrt.Kernel.from_cubin(fatbin, "scale", WIDE, blocks, block=256)),
    ):
        with pytest.raises(ValueError, match=text):
            twice(broken)
    cloned = accrt.Kernel.from_ptx(PTX, "scale", [*WIDE[:1], ("y", "read_write f32"), *WIDE[2:]], blocks, block=256)
    with pytest.raises((IRError, ValueError), match="scale"):
        twice(cloned)


def test_how_a_kernel_is_launched_goes_along():
    """Clusters, all blocks at once, and shared memory are in the record."""
    kernel = accrt.Kernel.from_ptx(PTX.replace("sm_80", "sm_90"), "scale", WIDE, blocks, block=(64, 2), shared_bytes=512, cluster=(2,), cooperative=True)
    record = kernel.definition
    from accrt.compiler.kernels.kerneldef import TRAIT_COOPERATIVE
    assert (record.block, record.cluster, record.local_memory_bytes) == ((64, 2, 1), (2, 1, 1), 512) and record.traits & TRAIT_COOPERATIVE


# ---- The example: one kernel in C, CUDA C++ and Triton -------------------------------------------

#: Blocks of the compiler's own kernels run in any order: the first does all.
ELEMENTWISE = """
FAKECUDA_KERNEL({entry}) {{
  const float* x = *(const float* const*)params[0];
  float* y = *(float* const*)params[1];
  for (long long i = 0; block->index[0] == 0 && i < *(const long long*)params[2]; ++i)
    y[i] = x[i] {operation};
  return 0;
}}
"""
SQUARED = """
FAKECUDA_KERNEL({entry}) {{
  const float* x = *(const float* const*)params[0];
  float* y = *(float* const*)params[1];
  const long long first = (long long)block->index[0] * {each}, n = *(const long long*)params[2];
  for (long long i = first; i < first + {each} && i < n; ++i)
    y[i] = *(const float*)params[3] * (x[i] > 0 ? x[i] * x[i] : 0);
  return 0;
}}
"""
CALLED = """
import sys, numpy as np, accrt
model = accrt.load(sys.argv[1], device=sys.argv[2], trust="all")
for rows in (1, 3, 1000):
    x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
    wanted = np.maximum(x + 1, 0) ** 2 / 2
    for name in sys.argv[3:]:
        np.testing.assert_allclose(np.asarray(getattr(model, name)(x).numpy()), wanted, rtol=1e-5)
"""


@pytest.mark.parametrize("triton", [False, True])
def test_the_example_is_one_bundle_for_c_cuda_cpp_and_triton(tmp_path, monkeypatch, triton):
    """Called from Python and from C on the host, and from Python under the stand-in, where each
    function runs the kernel that it is to have there."""
    needs_nvcc()
    if triton:
        pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    bundle = tmp_path / "custom_kernel.accx"
    for name in ("kernel", "squared_relu_triton"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", ["build.py", *["--triton"] * triton, "-o", str(bundle)])
    try:
        module = runpy.run_path(str(EXAMPLE / "build.py"))["m"]
    finally:
        for name in ("kernel", "squared_relu_triton"):
            sys.modules.pop(name, None)
    functions = ["activate", *["activate_by_triton"] * triton]
    assert all(accrt.Bundle(bundle).function_targets(name) == accrt.Bundle(bundle).function_targets("activate") for name in functions)
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), ACCRT_TRUST="all", LD_LIBRARY_PATH=str(LIBRARY.parent))
    done = subprocess.run([sys.executable, "-c", CALLED, bundle, "host", *functions], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["cc", "-std=c11", EXAMPLE / "main.c", f"-I{ROOT / 'include'}", str(LIBRARY), "-o", tmp_path / "main"], check=True)
    for arguments in ([], *[[name] for name in functions]):
        done = subprocess.run([tmp_path / "main", bundle, *arguments], env=env, capture_output=True, text=True)
        assert done.stdout == "0 0 0 0.5 2 4.5 8 12.5\n", done.stderr

    if not needs_stand_in.args[0]:
        from accrt.compiler.driver import kernels_of
        kernels = kernels_of(module, "cuda")
        own = {k.name: k for k in kernels if "squared_relu" in k.name}
        assert sorted(own) == ["squared_relu.cuda", *["squared_relu_by_triton.cuda"] * triton]
        twins = "#include \"fakecuda.h\"\n" + "".join(
            ELEMENTWISE.format(entry=k.entry, operation="+ 1.0f" if "ew_add" in k.name else "* 0.5f") for k in kernels if k.name not in own)
        twins += SQUARED.format(entry=own["squared_relu.cuda"].entry, each=4096)
        twins += SQUARED.format(entry=own["squared_relu_by_triton.cuda"].entry, each=1024) if triton else ""
        run_under_the_stand_in(bundle, twins, tmp_path, CALLED, "cuda:0", *functions, arch=90)
        assert np.asarray(accrt.load(str(bundle), trust="all").activate(np.ones((2, 8), np.float32))).tolist()[0][0] == 2.0
