"""The fuzzer of the Python surface knows every public name, and a seeded part of what it does."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import python_surface  # noqa: E402
import stress  # noqa: E402
from accrt import bundle_writer as bw, compiler, serve  # noqa: E402


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("pack"), "tests/fuzz/nothing.c")


def compiled(folder, source):
    out = folder / (pathlib.Path(source).stem + ".so")
    subprocess.run(["cc", "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", f"-I{ROOT / 'include'}",
                    str(ROOT / source), "-o", str(out)], check=True)
    return out


@pytest.mark.parametrize("name", ["accrt", "accrt.torch", "accrt.jax", "accrt.serve", "accrt.models", "accrt.compiler", "accrt.from_torch", "accrt.from_onnx"])
def test_dir_has_the_public_names(name):
    """What a notebook completes: names are imported when they are first used."""
    code = f"import {name} as module; print(sorted(set(module.__all__) - set(dir(module))))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_every_public_name_is_fuzzed():
    found, known = python_surface.surface(), set(python_surface.OPERATIONS)
    assert found - known == set(), "new public names: tests/fuzz/python_surface.py has to know what they take"
    assert known - found == set(), "names that the package has no more"


def tensor(size, dtype="f32"):
    return compiler.Module("m").function("f").input("x", dtype, [size])


@pytest.mark.parametrize("use, kind, text", [
    (lambda: bw.BundleWriter().optional_features("x"), bw.BundleError, "the optional features is 'x'"),
    (lambda: bw.BundleWriter().optional_features(-1), bw.BundleError, "the optional features is -1"),
    (lambda: tensor(1 << 40).split(1), compiler.IRError, "gives 1099511627776 parts; at most 65536"),
    (lambda: tensor(1 << 40).chunk(1 << 40), compiler.IRError, "gives 1099511627776 parts"),
    (lambda: tensor(0).chunk(1 << 40), compiler.IRError, "gives 1099511627776 parts"),
    (lambda: tensor(4).upsample_nearest([0]), compiler.IRError, "sizes and factors are above 0"),
    (lambda: tensor(4).upsample_linear([0], False), compiler.IRError, "sizes and factors are above 0"),
    (lambda: tensor(4).upsample_nearest(None, [0.0]), compiler.IRError, "sizes and factors are above 0"),
    (lambda: tensor(1).bessel_i(2), compiler.IRError, "orders 0 and 1"), (lambda: tensor(4).grid_sample(tensor(4), 3), compiler.IRError, "samples of"),
    (lambda: tensor(4).pixel_shuffle(0), compiler.IRError, "pixel_shuffle: its factor"),
    (lambda: tensor(4).pixel_shuffle(2), compiler.IRError, "expected four dimensions"),
    (lambda: tensor(4).celu(0.0), compiler.IRError, "celu: alpha is 0.0"),
])
def test_what_the_fuzzer_found_is_refused(use, kind, text):
    """Each of these hung, took all memory, or ended in an exception of ctypes'."""
    with pytest.raises(kind, match=text):
        use()


def test_a_request_is_cancelled_by_a_number():
    engine = serve.Engine(serve.Model.simulated())
    for number in ("x", 1.5, None):
        with pytest.raises(TypeError, match="the request's number is"):
            engine.cancel(number)
    with pytest.raises(OverflowError, match="the request's number is -1"):
        serve.Hub(engine).forget(-1)


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_the_surface_stands(seed, golden_bundle, nothing):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.run([sys.executable, str(ROOT / "tests/fuzz/python_surface.py"), "--bundle", str(golden_bundle), "--pack", str(nothing),
                          "--seed", str(seed), "--operations", "4000"], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"


@pytest.mark.parametrize("seed", (1, 2))
def test_random_work_that_is_dropped_gives_numpys_results(seed, golden_bundle, tmp_path):
    """Calls, lists, launches, memory of others, files, threads and forks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "MALLOC_PERTURB_": "165"}
    ran = subprocess.run([sys.executable, stress.__file__, "--bundle", str(golden_bundle), "--pack", str(compiled(tmp_path, "tests/golden/scale_add.c")),
                          "--seed", str(seed), "--operations", "1500"], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"


@pytest.mark.parametrize("needs, package", [("accrt.compiler", "xxhash"), ("accrt.compiler", "numpy"), ("accrt.bundle_reader", "xxhash"),
                                            ("accrt.from_onnx", "xxhash")])  # fmt: skip
def test_a_missing_package_is_named_with_what_brings_it(needs, package):
    code = f"import sys; sys.modules[{package!r}] = None\ntry:\n    import {needs}\nexcept ImportError as error:\n    print(error, error.name)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert package in said and "pip install 'accrt[compiler]'" in said
