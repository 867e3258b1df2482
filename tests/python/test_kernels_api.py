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
        accrt.KernelPack(accrt.Instance(trust="no-host-code"), pack[1])
    with pytest.raises(accrt.NotFoundError, match="scale_add"):
        pack[0].kernel("scale_ad")


def test_wrong_arguments(pack, device):
    kernel, stream = pack[0].kernel("scale_add"), accrt.Stream(device)
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="takes 4 arguments"):
        accrt.launch(stream, kernel, [1], x)
    with pytest.raises(accrt.Error, match="x"):
        accrt.launch(stream, kernel, [1], None, x, 4, 1.0)


def test_prepared_launch(pack, device):
    kernel, stream, n = pack[0].kernel("scale_add"), accrt.Stream(device), 3000
    pool = accrt.Pool(device)
    x, y = pool.buffer(4 * n), pool.buffer(4 * n)
    stream.copy(np.arange(n, dtype=np.float32), x)
    stream.fill(y, 0)
    launch = accrt.Launch(device, kernel)
    with pytest.raises(accrt.InvalidStateError, match="x"):
        launch(stream, (3,))
    for index, value in enumerate((x, y, n, 0.5)):
        launch.set(index, value)
    launch(stream, (3,))
    launch.set(3, 0.25)
    launch(stream, (3,))
    stream.synchronize(timeout=5)
    assert (np.frombuffer(y.read(), np.float32) == 0.75 * np.arange(n)).all()
    with pytest.raises(IndexError):
        launch.set(9, 1)
    with pytest.raises(accrt.InvalidArgumentError, match="n"):
        launch.set(0, None)


def test_prepared_launch_with_raw_values(pack, device):
    kernel, stream, n = pack[0].kernel("scale_add"), accrt.Stream(device), 100
    pool = accrt.Pool(device)
    x, y = pool.buffer(4 * n), pool.buffer(4 * n)
    stream.copy(np.ones(n, np.float32), x)
    stream.fill(y, 0)
    fire = accrt.Launch(device, kernel).on(stream, (1,))
    for scale in (1.0, 2.0, 3.0):
        # bits: a pack from a shared object does not say what its scalars are
        fire(x.address, y.address, n, int(np.float32(scale).view(np.uint32)))
    stream.synchronize(timeout=5)
    assert (np.frombuffer(y.read(), np.float32) == 6).all()


def test_device_modules_are_described_and_refused_by_the_host(device):
    described = accrt.DeviceKernel("step", [("out", "write"), ("scale", "f32"), ("n", "i64")], (32,))
    with pytest.raises(accrt.UnsupportedError, match="module"):
        accrt.KernelPack.of_module(device, ".version 9.0", [described], "ptx")
    with pytest.raises(ValueError, match="f33"):
        accrt.KernelPack.of_module(device, "", [described._replace(parameters=[("x", "f33")])])
    with pytest.raises(ValueError, match="cubim"):
        accrt.KernelPack.of_module(device, b"", [], "cubim")


def test_foreign_queues_and_peers_of_the_host(device):
    with pytest.raises(accrt.UnsupportedError):
        accrt.Stream.wrap(device, 0)
    with pytest.raises(accrt.UnsupportedError):
        accrt.Stream(device).native
    device.enable_peer(device)
    assert device.info.dlpack_device == (1, 0)


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
        # the fill needs n elements
        commands.run(stream, np.zeros(n, np.float32), np.zeros(10, np.float32))
    with pytest.raises(accrt.InvalidStateError):
        commands.barrier()
