"""What `./dev gpu-pack`'s run.sh makes of test runs: counts of passed, failed and skipped tests
with the reasons; and that the example models' bundles, which it carries, have versions for CUDA
where nvcc was."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import accx_exec
from accrt.compiler import available_targets

ROOT = pathlib.Path(__file__).resolve().parents[2]
COUNT = ROOT / "bench/gpu/count_tests.py"
MODELS = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", ROOT / "build/models"))

PYTEST = """....s.F
FAILED test_x.py::test_a - assert 1 == 2
SKIPPED [2] tests/gpu/test_streams.py:61: no torch
SKIPPED [1] tests/gpu/test_streams.py:83: no torch
SKIPPED [1] test_programs.py: no CUDA device: said by the driver
1 failed, 5 passed, 4 skipped in 1.20s
"""
CMOCKA = """[==========] Running 4 test(s).
[ RUN      ] launch.one
[       OK ] launch.one
[ RUN      ] launch.two
  the device lacks what this needs
[  SKIPPED ] launch.two
[==========] 4 test(s) run.
[  PASSED  ] 3 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] launch.two
"""


def counted(tmp_path, suites):
    for i, (text, code) in enumerate(suites):
        (tmp_path / "log").write_text(text)
        subprocess.run([sys.executable, COUNT, "one", f"suite{i}", tmp_path / "log", str(code), "3", tmp_path / "records"], check=True)
    done = subprocess.run([sys.executable, COUNT, "table", tmp_path / "records", tmp_path / "test.json", tmp_path / "test.txt"],
                          capture_output=True, text=True)  # fmt: skip
    return done.returncode, json.loads((tmp_path / "test.json").read_text()), (tmp_path / "test.txt").read_text()


def test_counts_of_both_kinds_of_suites(tmp_path):
    code, table, text = counted(tmp_path, [(PYTEST, 1), (CMOCKA, 0)])
    first, second = table["suites"]
    assert code == 1 and table["total"] == {"passed": 8, "failed": 1, "skipped": 5}
    assert (first["result"], first["passed"], first["failed"], first["skipped"]) == ("FAILED", 5, 1, 4)
    assert first["reasons"] == ["3 x no torch", "1 x no CUDA device: said by the driver"]
    assert (second["result"], second["passed"], second["skipped"]) == ("passed", 3, 1)
    assert second["reasons"] == ["1 x the device lacks what this needs: launch.two"]
    assert "skipped in suite0: 3 x no torch" in text


@pytest.mark.parametrize("text, code, result", [
    ("s\nSKIPPED [3] a.py:1: no nvcc\n3 skipped in 0.10s\n", 0, "skipped"), ("no device\n", 77, "skipped"), ("fine\n", 0, "passed"),
    ("Segmentation fault\n", 139, "FAILED"), ("5 passed in 1.00s\n", 124, "FAILED"), ("no tests ran in 0.01s\n", 5, "FAILED"),
])  # fmt: skip
def test_what_did_not_run_has_not_passed(tmp_path, text, code, result):
    status, table, _text = counted(tmp_path, [(text, code)])
    assert table["suites"][0]["result"] == result and status == (result == "FAILED")
    assert bool(table["total"]["passed"]) == (result == "passed") or code == 124


@pytest.mark.parametrize("name", ["minilm", "bytelm"])
def test_bundles_of_both_models_have_versions_for_cuda(name):
    path = MODELS / f"{name}.accx"
    if not path.exists():
        pytest.skip(f"{path.name} was not made: its packages or weights are not here")
    bundle = accx_exec.Bundle(path.read_bytes())
    targets = {}
    for function in bundle.functions:
        if not function.flags & 1:  # prepare functions belong to one version alone
            targets.setdefault(function.name, set()).add(function.target)
    if not any("cuda" in found for found in targets.values()) and not available_targets(["cuda"]):
        pytest.skip(f"{path.name} was made without nvcc: it has no versions for CUDA")
    assert targets and all("cuda" in found and len(found) > 1 for found in targets.values()), targets
    kinds = {kind for kind, _name, _offset, _size in bundle.images}
    assert kinds & {2, 3, 4}, "no machine code of a GPU"


def test_help_and_verbs_that_are_not_there():
    run = lambda verb: subprocess.run(["sh", ROOT / "bench/gpu/pack_run.sh", verb], capture_output=True, text=True)  # noqa: E731
    assert run("--help").returncode == 0 and "run.sh bench" in run("--help").stdout
    assert run("tset").returncode == 2 and "there is no 'tset'" in run("tset").stderr


def test_modules_of_the_gpu_tests_can_be_described():
    """Without nvcc and a device: what the compiler refuses is seen here, not on a GPU machine. (A
    process of its own: tests of both folders have the same names.)"""
    code = """
import prebuild
for name, module in prebuild.MODULES.items():
    try:
        assert module().functions, name
        print("described")
    except ModuleNotFoundError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/gpu"), str(ROOT / "python")])})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("described") >= 12, done.stdout
