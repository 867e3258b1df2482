"""What the Python tests share. The library itself is found by the package: ACCRT_LIBRARY, or the build folder."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

# numpy's BLAS spins while it waits: on two processors with anything else running, the float64 references then take five
# times as long. It reads this when numpy is first imported, which is after here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402

# Keys of the tests' own: what they compile is signed, and the user's folder is not touched.
CONFIG = tempfile.TemporaryDirectory(prefix="accrt-config-")
os.environ["XDG_CONFIG_HOME"] = CONFIG.name
for variable in ("ACCRT_TRUST", "ACCRT_TRUST_KEYS"):
    os.environ.pop(variable, None)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture(scope="session")
def golden_bundle(tmp_path_factory) -> pathlib.Path:
    """The small bundle of tests/golden/scale_add.py: scale_add, weighted, steps, gated, count."""
    path = tmp_path_factory.mktemp("golden") / "scale_add.accx"
    subprocess.run([sys.executable, str(ROOT / "tests/golden/scale_add.py"), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def instance():
    import accrt
    return accrt.Instance(host_code="all", options={"host.threads": 2})


@pytest.fixture
def device(instance):
    return instance.device("host")


@pytest.fixture
def program(golden_bundle, instance, device):
    import accrt
    return accrt.Program(accrt.Bundle(golden_bundle, instance), device)
