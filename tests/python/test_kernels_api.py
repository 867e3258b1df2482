"""Kernels without a bundle from Python: packs, launches, recorded commands."""
import pathlib
import subprocess

import numpy as np
import pytest

import accrt

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pack(instance, tmp_path_factory):
    out = tmp_path_factory.mktemp("pack") / "scale_add.so"
    subprocess.run(["cc", "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden",
                    f"-I{ROOT / 'include'}", str(ROOT / "tests/golden/scale_add.c"), "-o", str(out)], check=True)
    return accrt.KernelPack(instance, out.read_bytes(), "scale_add"), out


def test_launch(pack, device):
    kernel = pack[0].kernel("scale_add")
    assert [k for _, k, _ in kernel.parameters] == ["buffer", "buffer", "symbol", "scalar"]
    stream, n = accrt.Stream(device), 3000
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    accrt.launch(stream, kernel, [3], x, y, n, 0.5)
    stream.synchronize(timeout=5)
    assert (y == 0.5 * x + 1).all()


def test_pack_from_path_and_policy(pack, instance):
    assert accrt.KernelPack(instance, pack[1]).kernels()[0].name == "scale_add"
    with pytest.raises(PermissionError):
        accrt.KernelPack(accrt.Instance(), pack[1])
    with pytest.raises(accrt.NotFoundError, match="scale_add"):
        pack[0].kernel("scale_ad")


def test_wrong_arguments(pack, device):
    kernel, stream = pack[0].kernel("scale_add"), accrt.Stream(device)
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="takes 4 arguments"):
        accrt.launch(stream, kernel, [1], x)
    with pytest.raises(accrt.Error, match="x"):
        accrt.launch(stream, kernel, [1], None, x, 4, 1.0)


def test_recorded_commands_with_bindings(pack, device):
    kernel, stream, n = pack[0].kernel("scale_add"), accrt.Stream(device), 1000
    commands = accrt.Commands(device, bindings=2)
    x, y = commands.binding(0), commands.binding(1)
    cleared = commands.fill(y, 4 * n, 0, 4)
    added = commands.dispatch(kernel, [1], x, y, n, 2.0, after=[cleared])
    commands.barrier()
    commands.marker("twice")
    commands.dispatch(kernel, [1], x, y, n, 3.0, after=[added])
    commands.finalize()
    for value in (1, 2):
        source, target = np.full(n, value, np.float32), np.full(n, np.nan, np.float32)
        commands.submit(stream, source, target)
        stream.synchronize(timeout=5)
        assert (target == 5 * value).all()
        commands.run(stream, source, target)
        assert (target == 5 * value).all()
    with pytest.raises(accrt.OutOfRangeError):
        commands.run(stream, np.zeros(n, np.float32), np.zeros(10, np.float32))  # the fill needs n elements
    with pytest.raises(accrt.InvalidStateError):
        commands.barrier()
