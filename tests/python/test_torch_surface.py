"""The fuzzer of accrt.torch, from_torch and from_onnx knows every public name, and a seeded part of
what it does. Runs where torch is installed: `./dev torch-test`, and with onnx in `./dev check
models`."""
import importlib
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/fuzz"))


def test_every_public_name_is_fuzzed():
    import torch_surface

    found = {f"{module}.{name}" for module in ("torch", "from_torch", "from_onnx") for name in importlib.import_module(f"accrt.{module}").__all__}
    found |= {"from_torch.from_torch", "from_onnx.from_onnx"}
    assert found == set(torch_surface.AREAS), "tests/fuzz/torch_surface.py has to know what is public"
    assert all(hasattr(torch_surface.Fuzzer, area) for area in torch_surface.AREAS.values())


@pytest.mark.parametrize("part, seed, operations", [("operators", 1, 400), ("modules", 3, 150), ("backends", 4, 40), ("from_torch", 5, 40),
                                                    ("from_onnx", 6, 800)])  # fmt: skip
def test_the_surface_stands(part, seed, operations):
    if part == "from_onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.run([sys.executable, str(ROOT / "tests/fuzz/torch_surface.py"), "--seed", str(seed), "--operations", str(operations), "--only", part],
                         env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"
    assert f"{operations} operations" in ran.stdout and ", 0 results compared" not in ran.stdout
