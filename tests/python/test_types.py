"""Type checkers: the stubs say what is there, and mypy --strict accepts the quick starts and knows
what results are."""
from __future__ import annotations

import ast
import builtins
import os
import pathlib
import re
import subprocess
import sys

import pytest

import accrt
from accrt import errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/accrt"


def strict(path: pathlib.Path) -> str:
    """What mypy says of a file; the package is found as an installed one is: its own lines are not
    judged."""
    pytest.importorskip("mypy")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(path.parent / "cache"), path.name],
                         cwd=path.parent, env={**os.environ, "MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=300, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def test_the_stub_of_the_package_has_every_name():
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    found = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    assert found >= set(accrt._HOME) | set(accrt._LAZY)
    for name in found:
        assert getattr(accrt, name) is not None
    homes = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}
    assert {name: homes[name] for name in accrt._HOME} == accrt._HOME


def test_the_stub_of_the_errors_has_every_class_and_its_bases():
    tree = ast.parse((PACKAGE / "errors.pyi").read_text())
    stubs = {node.name: [ast.unparse(base) for base in node.bases] for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(stubs) == set(errors.__all__)
    for name, bases in stubs.items():
        real = [f"builtins.{b.__name__}" if b.__module__ == builtins.__name__ else b.__name__ for b in getattr(errors, name).__bases__]
        assert bases == real, name


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("document", ("README.md", "docs/quick-start.md", "docs/python-guide.md"))
def test_mypy_accepts_the_quick_start(document, tmp_path):
    blocks = [b for b in re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S) if "import" in b]
    assert blocks
    if document == "docs/python-guide.md":  # its blocks are one program
        blocks = ["\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S))]
    for number, block in enumerate(blocks):
        path = tmp_path / f"block_{number}.py"
        path.write_text(block)
        assert strict(path) == "", block


USES = """
import accrt
import numpy as np

model = accrt.load("a.accx")
reveal_type(model)
y = model.encode(np.zeros(4, np.float32))
reveal_type(y)
reveal_type(y[0, ::2])
reveal_type(float(y[0]))
reveal_type([row for row in y][0])
a, b = model.pair(1)
reveal_type(b)
out = np.zeros(4, np.float32)
reveal_type(model.encode(1, out=out).dtype.name)
reveal_type(y.numpy().shape)
reveal_type(accrt.load("a.accx", sandbox=True))
with accrt.Bundle("a.accx") as bundle:
    reveal_type(bundle)
try:
    accrt.load("a.accx", timeout=1)
except accrt.MissingFileError as error:
    reveal_type(error.filename)
except accrt.Error as other:
    reveal_type(other.status)
"""
REVEALED = ["accrt.session.Session", "accrt.tensor.Tensor", "accrt.tensor.Tensor", "builtins.float", "accrt.tensor.Tensor", "accrt.tensor.Tensor",
            "builtins.str", "tuple[Any, ...]", "accrt.sandbox.SandboxSession", "accrt.bundle.Bundle", "builtins.str", "builtins.int"]


def test_results_are_typed(tmp_path):
    path = tmp_path / "uses.py"
    path.write_text(USES)
    pytest.importorskip("mypy")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), path.name],
                         cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=300, check=False)
    found = [text.replace("builtins.tuple", "tuple") for text in re.findall(r'Revealed type is "(.*)"', ran.stdout)]
    # numpy's own, by its version
    found = [text.replace("tuple[int, ...]", "tuple[Any, ...]") for text in found]
    short = [re.sub(r"^(int|str|float)$", r"builtins.\1", text) for text in found]
    assert ran.returncode == 0 and short == REVEALED, ran.stdout + ran.stderr


@pytest.mark.parametrize("line", ("accrt.lode('a')", "accrt.load(3)", "accrt.load('a').f(1).nmpy()", "x: str = accrt.load('a').f(1).item()"))
def test_mistakes_are_found(line, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(f"import accrt\n{line}\n")
    assert "error:" in strict(path)
