"""What the Python tests share. The library itself is found by the package: ACCRT_LIBRARY, or the
build folder."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

# numpy's BLAS spins while it waits: on two processors with anything else running, the float64
# references then take five times as long. It reads this when numpy is first imported, which is
# after here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402

import cost  # noqa: E402
import rotation  # noqa: E402
from rotation import pytest_collection_modifyitems, pytest_runtest_makereport, pytest_terminal_summary, quick_kernels  # noqa: E402, F401

# Keys of the tests' own: what they compile is signed, and the user's folder is not touched.
CONFIG = tempfile.TemporaryDirectory(prefix="accrt-config-")
os.environ["XDG_CONFIG_HOME"] = CONFIG.name
for variable in ("ACCRT_TRUST", "ACCRT_TRUST_KEYS"):
    os.environ.pop(variable, None)

# A cache of the run's own, for all its processes: what the user's has decides nothing. Compiled
# kernels are taken from there all the same, as they take long and are found by all that they follow
# from.
if "ACCRT_TEST_CACHE" not in os.environ:
    CACHE = tempfile.TemporaryDirectory(prefix="accrt-cache-")
    kernels = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "accrt", "kernels")
    own = pathlib.Path(CACHE.name, "accrt")
    own.mkdir()
    try:
        kernels.mkdir(parents=True, exist_ok=True)
        (own / "kernels").symlink_to(kernels)
    except OSError:  # there is no home
        pass
    os.environ["XDG_CACHE_HOME"] = os.environ["ACCRT_TEST_CACHE"] = CACHE.name


def pytest_configure(config) -> None:
    rotation.pytest_configure(config)
    cost.register(config)


ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture(scope="session")
def golden_bundle(tmp_path_factory) -> pathlib.Path:
    """The small bundle of tests/golden/scale_add.py: scale_add, weighted, steps, gated, count."""
    path = tmp_path_factory.mktemp("golden") / "scale_add.accx"
    subprocess.run([sys.executable, str(ROOT / "tests/golden/scale_add.py"), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def echo_bundle(tmp_path_factory) -> pathlib.Path:
    """A bundle without machine code: for every data type a function of its name, "close", "reset"
    and "2 of us" copy x[n] to y[n]."""
    from accrt import bundle_writer as bw
    bundle = bw.BundleWriter()
    n = bundle.symbol("n", maximum=1 << 10)
    types = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
             "f8e4m3fn": 1, "f8e5m2": 1, "f8e8m0": 1}
    for name, dtype in [*zip(types, types), ("close", "f32"), ("reset", "f32"), ("2 of us", "f32")]:
        f = bundle.function(name)
        x, y = f.input("x", dtype, [n]), f.result("y", dtype, [n])
        f.body.copy(x.read(), y.write(), n * types[dtype])
    path = tmp_path_factory.mktemp("echo") / "echo.accx"
    bundle.write(path)
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
