"""Work in flight owns what it uses, whatever the caller drops: each scenario of in_flight.py in a
process of its own."""
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import in_flight

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 300  # and none may hang


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    out = tmp_path_factory.mktemp("pack") / "scale_add.so"
    subprocess.run(["cc", "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden",
                    f"-I{ROOT / 'include'}", str(ROOT / "tests/golden/scale_add.c"), "-o", str(out)], check=True)
    return out


@pytest.mark.rotating(15)
@pytest.mark.parametrize("name", sorted(in_flight.SCENARIOS))
def test_in_flight(name, golden_bundle, pack):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_PERTURB_": "165"}
    start = time.monotonic()
    ran = subprocess.run([sys.executable, in_flight.__file__, name, str(golden_bundle), str(pack)], env=environment, timeout=LIMIT_S,
                         capture_output=True, text=True, check=False)
    said = f"{ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    assert ran.returncode == 0, f"{name} ended with {ran.returncode} after {time.monotonic() - start:.1f} s: {said}"
    if name not in ("ends_with_exit", "ends_with_an_exception"):
        assert f"done {name}" in ran.stdout, said
    assert "Exception ignored" not in ran.stderr and "Traceback" not in ran.stderr, said


#: A thread of the package takes long to begin. CPython frees what it begins with when the
#: interpreter ends, so the end has to wait for it.
LATE = """
import _thread, atexit, time
started, begun = [], []
atexit.register(lambda: print(len(started), "started,", len(begun), "begun"))  # runs after accrt's own
start_new_thread = _thread.start_new_thread
def start_late(run, arguments):
    def begin():
        time.sleep(0.5)
        begun.append(run)
        run(*arguments)
    started.append(run)
    return start_new_thread(begin, ())
_thread.start_new_thread = start_late
import accrt
import numpy as np
device = accrt.default_instance().device("host")
accrt.Stream(device).copy(np.ones(64, np.uint8), accrt.Pool(device).buffer(64))
"""


def test_the_end_waits_until_threads_have_begun():
    ran = subprocess.run([sys.executable, "-c", LATE], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=LIMIT_S,
                         capture_output=True, text=True, check=False)
    found = re.fullmatch(r"(\d+) started, (\d+) begun\n", ran.stdout)
    assert ran.returncode == 0 and found and int(found[1]) == int(found[2]) > 0, ran.stdout + ran.stderr
