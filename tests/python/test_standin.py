"""Programs and the engine under the stand-in for CUDA's driver: tests/gpu/ in processes of its own,
in several orders of things; and that the transcript, which holds the stand-in against the real
driver, has every entry point that the driver uses."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so")).resolve().parents[1]
STAND_IN = BUILD / "tests/fakecuda/lib"

needs_stand_in = pytest.mark.skipif(
    not (STAND_IN / "libcuda.so.1").exists(), reason="the stand-in for CUDA's driver was not built: CUDA 13's headers are not here"
)


def environment(**settings):
    """`settings` are the stand-in's, in small letters."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FAKECUDA_")}
    env.update({f"FAKECUDA_{k.upper()}": str(v) for k, v in settings.items()})
    env.update(LD_LIBRARY_PATH=str(STAND_IN), FAKECUDA_KERNELS=str(STAND_IN / "twins.so"), FAKECUDA_STRICT="1",
               ACCRT_TEST_DATA=str(BUILD / "tests/bundles"), ACCRT_DEVICE="cuda:0", PYTHONPATH=str(ROOT / "python"))  # fmt: skip
    return env


@needs_stand_in
@pytest.mark.parametrize("settings", [{}, {"seed": 2, "delay_us": 1000}, {"seed": 3, "arch": 80, "devices": 1}], ids=["plain", "late", "sm_80"])
def test_programs(settings):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(ROOT / "tests/gpu/test_programs.py")]
    done = subprocess.run(command, env=environment(**settings), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) >= 80 and "skipped" not in done.stdout, done.stdout


@needs_stand_in
@pytest.mark.parametrize("settings", [{}, {"seed": 2, "delay_us": 1000}, {"seed": 3, "arch": 80, "devices": 1}], ids=["plain", "late", "sm_80"])
def test_served_engine(settings):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(ROOT / "tests/gpu/test_served_engine.py"), "-k", "not on_a_gpu"]
    done = subprocess.run(command, env=environment(**settings), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) >= 20 and "skipped" not in done.stdout, done.stdout


@needs_stand_in
@pytest.mark.parametrize("file, least, settings", [("test_xla_frames.py", 16, {}), ("test_xla_frames.py", 16, {"seed": 2, "delay_us": 1000}),
                                                   ("test_cuda_arrays.py", 60, {"seed": 3, "delay_us": 1000}),
                                                   ("test_bound_arrays.py", 40, {}), ("test_bound_arrays.py", 40, {"seed": 4, "delay_us": 1000})])
def test_arrays_and_calls_of_others(file, least, settings):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(ROOT / "tests/gpu" / file)]
    done = subprocess.run(command, env=environment(**settings), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counted, skipped = re.search(r"(\d+) passed", done.stdout), done.stdout.count("SKIPPED") - done.stdout.count("ml_dtypes is not installed")
    assert counted and int(counted[1]) >= least and not skipped, done.stdout


@needs_stand_in
def test_weights_outside_the_bundle():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/python/test_placing.py")]
    done = subprocess.run(command, env=environment(seed=4), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def names(path, pattern):
    return re.findall(pattern, (ROOT / path).read_text(), re.M)


#: Entry points that the driver uses and the transcript has not, and why.
NOT_IN_THE_TRANSCRIPT = {
    "cuLibraryEnumerateKernels": "only for the near names in a message, and a driver may lack it",
    "cuKernelGetName": "only for the near names in a message, and a driver may lack it",
}


def test_the_transcript_has_every_entry_point():
    used = names("runtime/drivers/cuda/symbols.def", r"^CUDA_SYMBOL\((\w+),")
    called = [name for part in ("", "_graphs", "_memory") for name in names(f"tests/fakecuda/transcript{part}.c", r"\b(cu[A-Z]\w+)\(")]
    assert len(used) > 80 and set(used) - set(called) == set(NOT_IN_THE_TRANSCRIPT)


def test_the_stand_in_offers_every_entry_point():
    used = names("runtime/drivers/cuda/symbols.def", r"^CUDA_SYMBOL\((\w+),")
    offered = set(names("tests/fakecuda/entries.def", r"^(?:ENTRY|VERSIONED)\((\w+)"))
    assert not set(used) - offered


def devices(env):
    done = subprocess.run([BUILD / "bin/accx", "devices"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "host:0" in done.stdout, done.stderr
    return done.stdout


@needs_stand_in
@pytest.mark.skipif(not (BUILD / "bin/accx").exists(), reason="the tool was not built")
@pytest.mark.parametrize("settings, words", [
    ({}, "cuda:1"), ({"init": 100}, "CUDA_ERROR_NO_DEVICE"), ({"version": 12020}, "12.2"), ({"devices": 0}, "no device 'cuda'"),
])
def test_the_tool_says_why_there_is_no_device(settings, words):
    shown = devices(environment(**settings))
    assert words in shown and ("no device 'cuda'" in shown) == bool(settings)


@pytest.mark.skipif(not (BUILD / "bin/accx").exists(), reason="the tool was not built")
def test_the_tool_says_that_there_is_no_driver(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    shown = devices({**environment(), "LD_LIBRARY_PATH": str(tmp_path)})
    assert "no device 'cuda'" in shown


@needs_stand_in
@pytest.mark.skipif(not (BUILD / "bin/accx").exists(), reason="the tool was not built")
def test_the_tool_says_for_what_devices_a_function_is():
    path = BUILD / "tests/bundles/device.accx"
    shown = subprocess.run([BUILD / "bin/accx", "inspect", path], capture_output=True, text=True, check=True).stdout
    assert "one version for cuda, one for other devices" in shown
    refused = subprocess.run([BUILD / "bin/accx", "run", path, "--function", "scratch", "--variant", "sm_70", "--allow-host-code"],
                             capture_output=True, text=True)  # fmt: skip
    assert refused.returncode != 0 and "only variants for sm_70 are asked for" in refused.stderr
