"""The programs of examples/torch, which run models in C, beside torch: bundles are exported,
programs run, what they print compared. Runs where torch and transformers are: `./dev check
models`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

import accrt
import accx_tool

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]
PROGRAMS = accx_tool.LIBRARY.parents[1] / "bin"


def example():
    spec = importlib.util.spec_from_file_location("torch_export", accx_tool.ROOT / "examples/torch/export.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(name, tmp_path):
    """What a program prints of its model, and the methods."""
    program = PROGRAMS / f"torch_{name}"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    if name in ("classifier", "speech"):
        pytest.importorskip("transformers", reason="transformers is not installed")
    methods = example().made(name)
    accrt.from_torch(methods, path=tmp_path / f"{name}.accx", name=name, targets=["host"])
    done = subprocess.run([program, tmp_path / f"{name}.accx"], capture_output=True, text=True, env=dict(os.environ, ACCRT_TRUST="all"))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), {key: method.model for key, method in methods.items()}


def numbers(*shape):
    """As the programs make them."""
    return ((torch.arange(int(np.prod(shape))) * 37 % 101).float() / 50 - 1).view(shape)


def test_classifier(tmp_path):
    lines, models = printed("classifier", tmp_path)
    ids, mask = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
    for i, length in enumerate((12, 7)):
        mask[i, :length] = 1
        ids[i, :length] = 3 + (i * 31 + torch.arange(length) * 7) % 990
    with torch.no_grad():
        wanted = models["forward"](ids, mask).softmax(-1)
    got = [[float(word) for word in line.split(":")[1].split()] for line in lines]
    np.testing.assert_allclose(got, wanted.numpy(), atol=2e-6)
    assert [line.split(":")[0] for line in lines] == ["text 0", "text 1"] and not np.allclose(got[0], got[1], atol=1e-3)


def test_speech(tmp_path):
    (line,), models = printed("speech", tmp_path)
    tokens = torch.tensor([[1]])
    with torch.no_grad():
        heard = models["encode"](numbers(1, 16, 100))
        while tokens.shape[1] < 24:
            best = models["decode"](tokens, heard).topk(2)
            assert best.values[0, 0] - best.values[0, 1] > 1e-3
            tokens = torch.cat([tokens, best.indices[:, :1]], 1)
    assert [int(word) for word in line.split()] == tokens[0, 1:].tolist()
    assert len(set(tokens[0].tolist())) >= 8


def test_diffusion(tmp_path):
    lines, models = printed("diffusion", tmp_path)
    picture = numbers(1, 4, 16, 16)
    with torch.no_grad():
        for step in range(20):
            picture = picture - models["forward"](picture, torch.tensor([1 - step / 20]), torch.tensor([7])) / 20
    wanted = picture.flatten()[::64].numpy()
    np.testing.assert_allclose([float(line) for line in lines], wanted, atol=1e-4)
    assert np.abs(wanted - numbers(1, 4, 16, 16).flatten()[::64].numpy()).max() > 0.1


def test_unet(tmp_path):
    lines, models = printed("unet", tmp_path)
    with torch.no_grad():
        scores = models["forward"](numbers(1, 3, 32, 32))[0]
    rows = [line.split() for line in lines]
    np.testing.assert_allclose([float(row[1]) for row in rows], scores[1].diagonal().numpy(), atol=1e-5)
    apart = (scores[1] - scores[0]).numpy()
    drawn = np.array([[c == "#" for c in row[0]] for row in rows])
    assert ((drawn == (apart > 0)) | (np.abs(apart) < 1e-4)).all() and 0 < drawn.sum() < drawn.size


def test_an_operation_with_a_kernel_of_its_own(tmp_path):
    script = accx_tool.ROOT / "examples/torch/own_operation.py"
    environment = dict(os.environ, PYTHONPATH=str(accx_tool.ROOT / "python"))
    done = subprocess.run([sys.executable, script, tmp_path / "own.accx"], capture_output=True, text=True, env=environment)
    assert done.stdout == "the bundle gives what torch gives\n", done.stderr


def test_readme_takes_a_model_out_of_torch(tmp_path):
    code = (accx_tool.ROOT / "README.md").read_text().split("```python notest\n")[1].split("```")[0]
    environment = dict(os.environ, PYTHONPATH=str(accx_tool.ROOT / "python"), ACCRT_TRUST="all")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "model.accx").exists(), done.stderr


def test_documents_show_what_is_run():
    text = (accx_tool.ROOT / "examples/torch/own_operation.py").read_text()
    document = (accx_tool.ROOT / "docs/missing-operations.md").read_text()
    assert text[text.index("# The operation") : text.index("class Model")].rstrip() in document
    document = (accx_tool.ROOT / "docs/torch-to-c.md").read_text()
    assert (accx_tool.ROOT / "examples/torch/classifier.c").read_text().split("*/", 1)[1].strip() in document
    exported = (accx_tool.ROOT / "examples/torch/export.py").read_text()
    assert document.split("```python notest\n")[1].split("```")[0].strip() in exported.replace('    """What the C program calls has tensors alone: inputs by name, the logits as the one result."""\n\n', "")
