"""`./dev test --slowest` lists what took most seconds of processors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import subprocess, sys, time
import pytest

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def inner():
    work(0.3)

@pytest.fixture(scope="module")
def outer(inner):
    work(0.1)

def test_first(outer):
    pass

def test_waits():
    time.sleep(0.15)

def test_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.9: pass"], check=True)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_seconds_of_processors(tmp_path, workers):
    if workers:
        pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text("import cost\n\ndef pytest_configure(config):\n    cost.register(config)\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("ACCRT_TEST_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", *workers, *(("--dist", "loadfile") if workers else ())]
    given = dict(cwd=tmp_path, capture_output=True, text=True, check=True)
    said = subprocess.run(command, env={**plain, "PYTHONPATH": str(Path(__file__).parent), "ACCRT_TEST_COSTS": "2"}, **given).stdout
    found = re.findall(r"^ +(\d+\.\d)  (\S+(?: of \S+)?)$", said, re.M)
    assert [name for _seconds, name in found] == ["test_it.py", "test_it.py::test_child", "test_it.py::test_first", "inner of test_it.py", "outer of test_it.py"]
    least = dict(zip((name for _seconds, name in found), (1.3, 0.9, 0.4, 0.3, 0.1)))
    assert all(float(seconds) >= least[name] - 0.05 for seconds, name in found), said
    assert "seconds of processors" not in subprocess.run(command, env={**plain, "PYTHONPATH": str(Path(__file__).parent)}, **given).stdout
