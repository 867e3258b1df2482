"""The Python surfaces: instances, memory, streams, tensors, sessions and calls, on the small golden
bundle."""
import array
import asyncio
import ctypes
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import accrt


# ---- instances and devices

def test_another_library_is_no_runtime():
    code = "import accrt; accrt.caps()"
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, ACCRT_LIBRARY="libc.so.6"), capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: libc.so.6 is another library: it has no accrt_version" in done.stderr, done.stderr


def test_devices_and_caps(instance):
    names = [d.name for d in instance.devices()]
    assert names[0].startswith("host")
    info = instance.device("host").info
    assert info.driver == "host" and info.host_memory and info.concurrency == 2
    caps = accrt.caps()
    assert caps["command_mask"] & (1 << 1) and caps["cpu_arch"]


def test_wrong_options_are_named():
    with pytest.raises(accrt.NotFoundError, match="host.thread"):
        accrt.Instance(options={"host.thread": 2})
    with pytest.raises(accrt.InvalidArgumentError, match="many"):
        accrt.Instance(options={"host.threads": "many"})
    with pytest.raises(ValueError, match="trust is"):
        accrt.Instance(trust="maybe")
    with pytest.raises(LookupError, match="host"):
        accrt.Instance().device("hots")


def test_errors_carry_the_record_and_pickle(instance):
    with pytest.raises(accrt.Error) as caught:
        instance.device("nowhere")
    error = caught.value
    assert error.name == "ACCRT_ERROR_NOT_FOUND" and "nowhere" in error.message and error.operation and error.source
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.message == error.message and again.source == error.source


def test_log_sink_is_called():
    lines = []
    instance = accrt.Instance(log=lambda *line: lines.append(line), log_level="debug")
    instance.device("host")
    assert all(level in ("error", "warning", "info", "debug") for level, _, _ in lines)


# ---- memory and streams

def test_pool_accounts_for_every_byte(device):
    pool = accrt.Pool(device, label="test")
    buffers = [pool.buffer(1000 * (i + 1), label=f"b{i}") for i in range(5)]
    stats = pool.statistics
    assert stats["live_count"] == 5 and stats["requested_bytes"] == 15000
    assert stats["used_bytes"] + stats["retiring_bytes"] + stats["free_bytes"] == stats["reserved_bytes"]
    assert {e.label for e in pool.snapshot()} == {f"b{i}" for i in range(5)}
    del buffers
    gc.collect()
    pool.trim()
    assert pool.statistics["reserved_bytes"] == 0


def test_out_of_device_memory_says_who(device):
    pool = accrt.Pool(device, limit_bytes=1 << 20, label="small")
    hog = pool.buffer(1 << 19, label="the hog")
    with pytest.raises(MemoryError, match="the hog"):
        pool.buffer(1 << 20)
    hog.close()


def test_copies_and_fills(device):
    stream, pool = accrt.Stream(device), accrt.Pool(device)
    buffer = pool.buffer(4096)
    source = np.arange(1024, dtype=np.uint32)
    target = np.zeros_like(source)
    stream.copy(source, buffer)
    stream.copy(buffer, target)
    stream.synchronize()
    assert (source == target).all()
    stream.fill(buffer, 0xABCD, pattern_bytes=2, offset=2, size_bytes=4)
    stream.synchronize()
    assert bytes(buffer.memoryview()[:8]) == b"\x00\x00\xcd\xab\xcd\xab\x00\x00"
    with pytest.raises(accrt.OutOfRangeError, match="4096"):
        stream.fill(buffer, 0, offset=4090, size_bytes=10)
    with pytest.raises(ValueError):
        stream.copy(buffer, bytes(4096))  # read-only


def test_semaphores_order_streams_and_hosts(instance, device):
    first, second = accrt.Stream(device), accrt.Stream(device)
    semaphore, buffer = accrt.Semaphore(instance), accrt.Pool(device).buffer(64)
    second.wait(semaphore, 2)  # before anybody signals
    second.fill(buffer, 2)
    first.fill(buffer, 1)
    first.signal(semaphore, 1)
    semaphore.wait(1, timeout=5)
    assert not second.done()
    with pytest.raises(accrt.TimeoutError):
        semaphore.wait(2, timeout=0.01)
    semaphore.signal(2)
    second.synchronize(timeout=5)
    assert set(buffer.memoryview()) == {2}


def test_failed_semaphore_poisons_and_reset_clears(instance, device):
    stream, semaphore = accrt.Stream(device), accrt.Semaphore(instance)
    after = accrt.Semaphore(instance)
    stream.wait(semaphore, 1)
    stream.signal(after, 1)
    semaphore.fail("stopped by the test")
    with pytest.raises(accrt.PoisonedError):
        after.wait(1, timeout=5)
    with pytest.raises(accrt.Error, match="stopped by the test"):
        stream.synchronize(timeout=5)
    assert "stopped by the test" in str(after.error)
    stream.reset()
    stream.synchronize(timeout=5)


def test_events_time(device):
    stream = accrt.Stream(device)
    start, end = accrt.Event(device, timing=True), accrt.Event(device, timing=True)
    buffer = accrt.Pool(device).buffer(1 << 24)
    stream.record(start)
    stream.fill(buffer, 1)
    stream.record(end)
    end.synchronize(timeout=10)
    assert start.elapsed_ns(end) > 0


def test_asyncio_waits_for_a_semaphore(instance):
    semaphore = accrt.Semaphore(instance)

    async def main():
        threading.Timer(0.02, semaphore.signal, [1]).start()
        await asyncio.wait_for(semaphore.wait_async(1), 5)

    asyncio.run(main())
    assert semaphore.value == 1


# ---- tensors

def test_results_reach_numpy_without_a_copy(program):
    session = program.session()
    result = session.weighted(np.ones(16, np.float32))
    view = result.numpy()
    assert view.__array_interface__["data"][0] == result.address
    assert (view == 2 + 2 * np.arange(16)).all()
    assert result.tolist() == view.tolist()
    assert "f32" in repr(result) and "16" in result._repr_html_()


def test_tensor_outlives_session_and_program(program):
    result = program.session().weighted(np.ones(16, np.float32))
    del program
    gc.collect()
    assert result.numpy()[0] == 2


@pytest.mark.skipif(tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="numpy before 2.1 has no versioned DLPack")
def test_dlpack_both_ways(program, device):
    session = program.session()
    result = session.weighted(np.ones(16, np.float32))
    view = np.from_dlpack(result)
    assert view.__array_interface__["data"][0] == result.address
    source = np.arange(16, dtype=np.float32)
    tensor = accrt.from_dlpack(source, device)
    assert tensor.shape == (16,) and tensor.dtype == "f32"
    assert (session.weighted(tensor).numpy() == 2 * source + 2 * np.arange(16)).all()


def test_dlpack_without_a_device_is_the_memorys_own():
    source = np.arange(6, dtype=np.float32)
    tensor = accrt.from_dlpack(source)
    assert tensor.buffer.address == source.ctypes.data and tensor.tolist() == source.tolist()
    assert tensor.buffer.device.name == accrt.default_instance().device("host").name

    class Elsewhere:  # it is asked for its device before its memory
        def __dlpack_device__(self):
            return 2, 1000

        def __dlpack__(self, **_named):
            raise AssertionError("no capsule is made")

    with pytest.raises(accrt.NotFoundError, match="cuda:1000"):
        accrt.from_dlpack(Elsewhere())
    with pytest.raises(TypeError, match="^source is .*, which has no __dlpack__"):
        accrt.from_dlpack(3)


@pytest.mark.skipif(tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="numpy before 2.1 has no versioned DLPack")
def test_dlpack_read_only_is_not_written(program, device):
    source = np.zeros(4, np.float32)
    source.flags.writeable = False
    tensor = accrt.from_dlpack(source, device)
    assert tensor.read_only and not tensor.numpy().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        program.session().scale_add(np.ones(4, np.float32), tensor)
    assert not source.any()


def test_dlpack_round_trip_without_numpy(program, device):
    """Export and import meet each other: a capsule of version 1.0, taken once, freed once."""
    result = program.session().weighted(array.array("f", range(16)))
    again = accrt.from_dlpack(result, device)
    assert again.address == result.address and again.shape == (16,) and again.dtype == "f32"
    expected = result.tolist()
    del result
    gc.collect()
    assert again.tolist() == expected == [4.0 * i for i in range(16)]


def test_dlpack_capsules_that_nobody_takes_are_freed(program):
    result = program.session().weighted(np.ones(16, np.float32))
    for version in (None, (1, 0)):
        capsule = result.__dlpack__(max_version=version)
        del capsule  # by its destructor
        gc.collect()


def test_numpy_scalars_have_no_memory_to_use(device):
    from accrt.tensor import as_view
    with pytest.raises(TypeError, match="asarray"):
        as_view(np.float32(2.5), device)
    view = as_view(np.asarray(np.float32(2.5)), device)
    assert view.c.rank == 0 and ctypes.c_float.from_address(view.c.data).value == 2.5


# ---- calls

def test_plain_buffers_without_numpy(program):
    x, y = array.array("f", [1, 2, 3]), array.array("f", [10, 20, 30])
    program.session().scale_add(x, y)
    assert list(y) == [12, 24, 36]


def test_handles_are_neither_copied_nor_pickled(program):
    session = program.session()
    for handle in (session, program, program.bundle, program.device):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"^a {type(handle).__name__} is a handle.*; another process makes its own"):
                how(handle)
    with pytest.raises(TypeError, match="^an Instance is a handle"):
        copy.copy(program.device.instance)
    assert session.weighted(np.ones(16, np.float32)).numpy()[0] == 2


def test_scalars_are_whole_numbers_that_fit(program):
    session = program.session()
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    for wrong in (0.5, "3", b"1", np.float64(2)):
        with pytest.raises(TypeError, match="integer"):
            session.steps(x, y, count=wrong)
    for wrong in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(OverflowError, match=f"count: {wrong} does not fit"):
            session.steps(x, y, count=wrong)
    session.steps(x, y, count=np.int64(3))
    assert (y == 3).all()


def test_none_unbinds_a_scalar(program):
    """A call without a number must not run with the number of the call before it."""
    session = program.session()
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    call = session.steps.bind(x, y, 7)
    call()
    call.set("count", None)
    session.steps(x, y, 2)
    for run in (call, lambda: session.steps(x, y, None), lambda: session.steps(x, y, count=None), lambda: session.steps(x, y, None, copy=True)):
        with pytest.raises(accrt.InvalidArgumentError, match="'count'.* is not bound"):
            run()
    assert (y == 9).all()
    call.set("count", 1)
    call()
    session.steps(x, y, 2)
    assert (y == 12).all()


def test_named_inputs_scalars_and_optionals(program):
    session = program.session()
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    session.steps(x=x, y=y, count=7)
    assert (y == 7).all()
    session.gated(x, y, flag=1)
    assert (y == 9).all()
    session.gated(x, y, flag=0)
    assert (y == 9).all()
    session.gated(x, y, extra=np.full(100, 5, np.float32), flag=0)
    assert (y == 14).all()


def test_state_lives_in_the_session(program):
    one, two = program.session(), program.session()
    x = np.ones(16, np.float32)
    one.count(x), one.count(x), two.count(x)
    assert one.count(x).numpy()[0] == 3 and two.count(x).numpy()[0] == 2
    clone = one.clone()
    one.reset()
    assert one.count(x).numpy()[0] == 1 and clone.count(x).numpy()[0] == 4
    assert one.state("total").numpy()[0] == 1


def test_bound_state(program, device):
    session = program.session()
    buffer = accrt.Pool(device).buffer(64)
    buffer.memoryview()[:] = np.full(16, 40, np.float32).tobytes()
    session.bind_state("total", buffer)
    assert session.count(np.ones(16, np.float32)).numpy()[0] == 41
    assert np.frombuffer(buffer.memoryview(), np.float32)[0] == 41


def test_out_and_bind(program):
    session, x, y = program.session(), np.ones(16, np.float32), np.zeros(16, np.float32)
    assert session.weighted(x, out=y) is y and y[0] == 2
    call = session.weighted.bind(x, out=y)
    for i in range(3):
        x[:] = i
        assert call() is y
        assert y[0] == 2 * i


def test_each_result_is_its_own(program):
    session = program.session()
    results = [session.weighted(np.full(16, i, np.float32)) for i in range(4)]
    assert [r.numpy()[0] for r in results] == [0, 2, 4, 6]


def test_submit_with_semaphores(program, instance):
    session, x, y = program.session(), np.ones(16, np.float32), np.zeros(16, np.float32)
    start, done = accrt.Semaphore(instance), accrt.Semaphore(instance)
    call = session.weighted.bind(x, out=y)
    call.submit(waits=[(start, 1)], signals=[(done, 1)])
    assert not y.any()
    start.signal(1)
    done.wait(1, timeout=5)
    assert y[0] == 2


def test_call_async(program):
    session = program.session()

    async def main():
        return await asyncio.gather(*[session.weighted.call_async(np.full(16, i, np.float32)) for i in range(3)])

    assert [r.numpy()[0] for r in asyncio.run(main())] == [0, 2, 4]


def test_threads_with_sessions_of_their_own(program):
    errors = []

    def work(value):
        try:
            session, x = program.session(), np.full(5000, value, np.float32)
            for _ in range(50):
                y = np.zeros(5000, np.float32)
                session.scale_add(x, y)
                assert (y == 2 * value).all()
        except Exception as error:  # noqa: BLE001 - reported to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(v,)) for v in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


# ---- what goes wrong is said

def test_signatures_and_wrong_calls(program):
    session = program.session()
    assert "scale_add(x: f32[n], y: f32[n] (read_write)) -> ()" in repr(session.scale_add)
    with pytest.raises(TypeError, match="misses y"):
        session.scale_add(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="no argument 'z'"):
        session.scale_add(z=1)
    with pytest.raises(AttributeError, match="scale_add"):
        session.scale_ad
    with pytest.raises(accrt.TypeMismatchError, match="x.*f64"):
        session.scale_add(np.ones(3), np.ones(3))
    with pytest.raises(accrt.ShapeMismatchError, match=r"scale_add.*y.*n"):
        session.scale_add(np.ones(3, np.float32), np.ones(4, np.float32))
    with pytest.raises(accrt.AliasedError, match="x.*y"):
        both = np.ones(3, np.float32)
        session.scale_add(both, both)
    with pytest.raises(accrt.ShapeMismatchError, match="contiguous"):
        session.scale_add(np.ones(6, np.float32)[::2], np.ones(3, np.float32))
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        session.scale_add(np.ones(3, np.float32), read_only)
    y = np.zeros(3, np.float32)
    session.scale_add(np.ones(3, np.float32), y)  # and the session still works
    assert (y == 2).all()


def test_policy_forbids_host_code_by_default(golden_bundle):
    with pytest.raises(PermissionError, match="signed by no key"):
        accrt.load(golden_bundle)


def test_estimate_warmup_and_swap(program):
    needs = program.estimate("steps", {"n": 1000, "count": 3})
    assert needs["transient_bytes"] >= 4000 and needs["state_bytes"] >= 64
    session = program.session()
    session.warmup("steps", {"n": 1000, "count": 3})
    x = np.zeros(16, np.float32)
    assert session.weighted(x).numpy()[1] == 2
    program.swap_weights({"w": np.full(16, 7, np.float32)})
    assert session.weighted(x).numpy()[1] == 14
    with pytest.raises(accrt.ShapeMismatchError, match="w"):
        program.swap_weights({"w": np.zeros(3, np.float32)})
    assert session.weighted(x).numpy()[1] == 14


def test_reflection(program):
    bundle = program.bundle
    assert {"scale_add", "weighted", "steps", "gated", "count"} <= set(bundle.function_names())
    assert "prepare" not in bundle.function_names() and "prepare" in bundle.function_names(internal=True)
    assert {s.name: s.maximum for s in bundle.symbols}["n"] == 1 << 20
    assert [c.name for c in bundle.constants] == ["w", "w.doubled"]
    assert np.frombuffer(bundle.constant_bytes("w"), np.float32)[3] == 3
    assert bundle.metadata["producer"]
    bundle.verify()


def test_bundle_from_memory_and_fd(golden_bundle, instance):
    data = golden_bundle.read_bytes()
    assert accrt.Bundle(data, instance).function_names()
    with open(golden_bundle, "rb") as file:
        assert accrt.Bundle(file.fileno(), instance).function_names()
    with pytest.raises(accrt.InvalidFormatError):
        accrt.Bundle(data[:1000], instance)
    with pytest.raises(accrt.NotFoundError, match="nothing.accx"):
        accrt.Bundle("nothing.accx", instance)


def test_closed_objects_say_so(program):
    session = program.session()
    session.close()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.reset()


def test_compiled_ptx_has_a_folder(monkeypatch):
    from accrt.instance import _cache_folder

    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert _cache_folder("ptx") == "/caches/accrt/ptx"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert _cache_folder("ptx") == "/home/someone/.cache/accrt/ptx"
    # The key is passed over where there is no CUDA driver, and may be given all the same.
    assert accrt.Instance(options={"host.threads": 1}).device().info.driver == "host"


# ---- kernels of device modules

@pytest.mark.parametrize("values, words", [
    (("", [], (1,)), "name is ''"), (("k", [("x", "float")], (1,)), "x is 'float'"), (("k", ["xy"], (1,)), r"parameter 'xy'"),
    (("k", [], ()), r"block is \(\)"), (("k", [], 32), "block is 32"), (("k", [], (0, 1)), r"block is \(0, 1\)"),
    (("k", [], (1, 2, 3, 4)), "block is"), (("k", [], (1.5,)), "block is"), (("k", [], (1,), -1), "shared_bytes is -1"),
    (("k", [], (1,), 0, (2, 0)), r"cluster is \(2, 0\)"),
])
def test_a_device_kernel_is_checked_when_it_is_made(values, words):
    with pytest.raises((TypeError, ValueError), match=words):
        accrt.DeviceKernel(*values)
    good = accrt.DeviceKernel("k", [("x", "read"), ("n", "i64")], (32, 2), cluster=(2,), cooperative=True)
    assert good.block == (32, 2) and good == accrt.DeviceKernel(*good)


def test_what_is_dropped_is_gone(golden_bundle, instance):
    """A program gives its memory back when the last reference to it goes: the collector of cycles
    knows nothing of a device's memory."""
    gc.collect()
    gc.disable()
    try:
        for use in range(4):
            program = accrt.Program(accrt.Bundle(golden_bundle, instance), instance.device("host:0"))
            session = program.session()
            gone = [weakref.ref(program), weakref.ref(session), weakref.ref(program.bundle)]
            x = np.ones(16, np.float32)
            function = session.weighted
            call = function.bind(x)
            del session, program
            if use > 0:
                function(x)  # keeps its session
            if use > 1:
                call()
            assert all(ref() is not None for ref in gone)
            del function
            assert call.function.session is gone[1]()
            del call
            assert all(ref() is None for ref in gone), use
    finally:
        gc.enable()


FIRST = """
import os, sys
import numpy
import accrt

failed = []
for name in accrt.__all__:
    child = os.fork()
    if not child:
        getattr(accrt, name)
        ways_in = sys.modules.get("accrt._incoming")
        fits = ways_in is None or isinstance(ways_in.Tensor, type)
        if name == "from_dlpack":
            value = accrt.from_dlpack(numpy.arange(3), accrt.default_instance().device("host"))
            fits = fits and value.tolist() == [0, 1, 2]
        os._exit(0 if fits else 1)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(failed)
"""


def test_each_name_may_be_the_first_of_a_process():
    """Modules are loaded when their names are asked for: each brings what it works with."""
    ran = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
