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


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("pack"), "tests/fuzz/nothing.c")


def compiled(folder, source):
    out = folder / (pathlib.Path(source).stem + ".so")
    subprocess.run(["cc", "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", f"-I{ROOT / 'include'}",
                    str(ROOT / source), "-o", str(out)], check=True)
    return out


def test_every_public_name_is_fuzzed():
    found, known = python_surface.surface(), set(python_surface.OPERATIONS)
    assert found - known == set(), "new public names: tests/fuzz/python_surface.py has to know what they take"
    assert known - found == set(), "names that the package has no more"


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_the_surface_stands(seed, golden_bundle, nothing):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.run([sys.executable, str(ROOT / "tests/fuzz/python_surface.py"), "--bundle", str(golden_bundle), "--pack", str(nothing),
                          "--seed", str(seed), "--operations", "4000"], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"


@pytest.mark.parametrize("seed", (1, 2))
def test_random_work_that_is_dropped_gives_numpys_results(seed, golden_bundle):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "MALLOC_PERTURB_": "165"}
    ran = subprocess.run([sys.executable, stress.__file__, "--bundle", str(golden_bundle), "--seed", str(seed), "--operations", "1500"],
                         env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"
