"""Programs on a CUDA device, beside the host: bundles with CUDA variants of their kernels
(tests/bundles/make.py: device.accx), with weights, prepared weights, arenas, state, staged
arguments and operators; each result is the host's, bit for bit.

It runs on a GPU, and under the stand-in for CUDA's driver (tests/python/test_standin.py).
ACCRT_TEST_DATA says where the bundles lie.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import accrt
from gpu_device import DATA, DEVICE, why_not

SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261120"))

NO_DEVICE = why_not(DATA / "device.accx")
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")


@pytest.fixture(scope="module", params=["", "1", "0"], ids=["default", "one graph", "no virtual memory"])
def instance(request):
    options = {"packs.path": str(DATA), "host.threads": 1}
    if request.param:
        options.update({"cuda.graphs": 1} if request.param == "1" else {"cuda.virtual_memory": "off"})
    return accrt.Instance(host_code="all", options=options)


@pytest.fixture(scope="module")
def programs(instance):
    bundle = accrt.Bundle(DATA / "device.accx", instance)
    return [accrt.Program(bundle, instance.device(name)) for name in ("host", DEVICE)]


def random():
    return np.random.default_rng(SEED)


def floats(*shape):
    # sums and products of few are exact
    return random().integers(-1000, 1000, shape).astype(np.float32) / 8


def plain(results):
    results = results if isinstance(results, tuple) else (results,)
    return [np.from_dlpack(r).copy() if hasattr(r, "device") and r.device.info.host_memory else np.array(r) for r in results]


#: function: the arguments of several calls
CALLS = {
    "empty": [()],
    "nothing": [()],
    "affine": [(floats(n),) for n in (1, 64, 65, 1000, 0, 4096)],
    "add": [(floats(7), floats(7)), (floats(100), None), (floats(3), floats(3))],
    "bucket": [(floats(b, 4),) for b in (1, 16, 17, 64, 100)],
    "dims": [],
    "divide": [(floats(200), 2), (floats(200), 7)],
    "optional_symbol": [],
    "append": [],
    "iota": [(0,), (63,), (5,)],
    "order": [(2,), (3,), (2,)],
    "calls": [(3,), (4,), (60,)],
    "scratch": [(), ()],
    "which": [(floats(n),) for n in (16, 17, 64, 72, 8)],
    "which_live": [(floats(n),) for n in (8, 16, 128)],
    "which_mode": [(floats(16),)],
    "which_offset": [(floats(16),)],
    "backwards": [(7,), (5,)],
    "column": [(4,), (9,)],
    "weights": [()],
    "scale_weight": [(floats(8),)],
    "picky": [(floats(100),), (floats(1),)],
    "padded": [(p,) for p in (0, 1, 63)],
    "operator": [(floats(n),) for n in (1, 100, 33, 4000, 100)],
    "operator_uncaptured": [(floats(n),) for n in (1, 100, 33, 4000)],
}


def divided(program, commands):
    """A session whose stream divides calls into pieces of so many commands; 0: it does not."""
    return program.session(stream=accrt.Stream(program.device, ahead=2, commands_per_piece=commands) if commands else None)


@pytest.mark.parametrize("commands", [0, 1, 3], ids=["whole", "pieces of 1", "pieces of 3"])
@pytest.mark.parametrize("name", [name for name, calls in CALLS.items() if calls])
def test_function(programs, name, commands):
    host, device = programs[0].session(), divided(programs[1], commands)
    for repeat in range(3):
        for arguments in CALLS[name]:
            given = [a.copy() + repeat if isinstance(a, np.ndarray) else a for a in arguments]
            wanted = plain(host.function(name)(*[a.copy() if isinstance(a, np.ndarray) else a for a in given]))
            got = plain(device.function(name)(*given))
            assert len(got) == len(wanted)
            for have, want in zip(got, wanted):
                np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("name", ["affine", "bucket", "operator", "padded"])
def test_results_in_memory_of_the_caller(programs, name):
    """Staged out as well as in: plain memory of the host, other memory at each call, one bound call
    and many."""
    host, device = (p.session() for p in programs)
    first = CALLS[name][1]
    shape = np.asarray(plain(host.function(name)(*first))[0])
    call = device.function(name).bind(*first, out=np.zeros_like(shape))
    keep = []
    for i in range(10):
        arguments = [a + i if isinstance(a, np.ndarray) else (a + i) % 64 for a in first]
        out = np.full_like(shape, 77)
        wanted = plain(host.function(name)(*arguments))[0]
        for index, value in enumerate(arguments):
            call.set(index, value)
        call.set(len(arguments), out)
        call()
        np.testing.assert_array_equal(out, wanted)
        keep.append((out, wanted))
    for out, wanted in keep:  # nobody wrote to what earlier calls were given
        np.testing.assert_array_equal(out, wanted)


def test_in_place_and_donated(programs):
    for name in ("inplace", "donate"):
        for program in programs:
            x = floats(100)
            want = 2 * x + 1
            program.session().function(name)(x, out=x)
            np.testing.assert_array_equal(x, want)


def test_the_version_for_the_device_is_taken(programs):
    assert [int(plain(program.session().whose())[0][0]) for program in programs] == [1, 2]


def test_arguments_in_memory_of_the_device(programs):
    device = programs[1]
    session, pool = device.session(), accrt.Pool(device.device)
    source, target = pool.buffer(400), pool.buffer(400)
    x = floats(100)
    session.stream.copy(x, source)
    call = session.function("affine").bind(accrt.Tensor(source, "f32", (100,)), out=accrt.Tensor(target, "f32", (100,)))
    for _ in range(5):
        call()
        y = np.zeros(100, np.float32)
        session.stream.copy(target, y)
        session.stream.synchronize()
        np.testing.assert_array_equal(y, 2 * x + 1)
        session.stream.copy(y, source)
        x = y


def test_pieces_that_a_cancel_drops(programs):
    """The call says so, its session is poisoned until it is reset, and then has the host's
    numbers."""
    host, device = programs[0].session(), divided(programs[1], 1)
    wanted = plain(host.order(3))[0]
    call = device.order.bind(3, out=np.zeros_like(wanted))
    never = accrt.Semaphore(programs[1].device.instance)
    for _ in range(3):
        call.submit(waits=[(never, 1)])
        device.stream.cancel()
        with pytest.raises(accrt.CancelledError):
            call.wait()
        device.stream.reset()
        device.reset()
        np.testing.assert_array_equal(plain(device.order(3))[0], wanted)


# ---- State ---------------------------------------------------------------------------------------


def drive(session, positions, base):
    return [float(plain(session.append(np.full(4, base + p, np.float32), p))[0][0]) for p in positions]


def test_state_of_a_session(programs):
    host, device = (p.session({"cap": 16}) for p in programs)
    for base, positions in ((1, range(5)), (100, (3, 4, 5))):
        assert drive(device, positions, base) == drive(host, positions, base)
    for digit in (1, 2, 3):
        assert plain(device.count(digit))[0][0] == plain(host.count(digit))[0][0]
    clone = device.clone()
    assert plain(clone.count(4))[0][0] == 71234 and plain(device.count(5))[0][0] == 71235
    device.reset()
    assert plain(device.count(9))[0][0] == 79
    assert drive(device, range(3), 7) == [4 * 7.0, 4 * 15.0, 4 * 24.0]
    buffer = accrt.Pool(programs[1].device).buffer(16 * 16)
    device.stream.fill(buffer, 0x40000000, pattern_bytes=4)
    device.bind_state("cache", buffer)
    assert drive(device, (1,), 0) == [4 * 2.0 + 4.0]


def test_two_sessions_do_not_touch_each_other(programs):
    sessions = [programs[1].session({"cap": 8}) for _ in range(2)]
    for step in range(8):
        for which, session in enumerate(sessions):
            total = drive(session, (step,), 10 * (which + 1))[0]
            assert total == 4 * sum(10 * (which + 1) + p for p in range(step + 1))
            assert plain(session.count(which + 1))[0][0] == int("7" + str(which + 1) * (step + 1))


# ---- Weights -------------------------------------------------------------------------------------


def expected_weights(w, b):
    return [w + 10, w[::-1], 2 * w + b]


def test_swap_of_weights_with_calls_in_flight(programs):
    """Calls that were submitted keep the weights that they had; later ones, and what prepare
    functions make, have the new."""
    program = programs[1]
    sessions = [program.session() for _ in range(2)]
    bias = np.full(8, 0.5, np.float32)
    weight = np.arange(8, dtype=np.float32)
    program.swap_weights({"weight": weight, "bias": bias})
    for turn in range(12):
        flying = []
        for session in sessions:
            out = [np.zeros(8, np.float32) for _ in range(3)]
            call = session.weights.bind(out=tuple(out))
            call.submit()
            flying.append((session, out, expected_weights(weight, bias), call))
        weight = floats(8) + turn
        program.swap_weights({"weight": weight} if turn % 2 else {"weight": weight, "bias": bias})
        for session, out, wanted, _call in flying:
            session.stream.synchronize(timeout=60)
            for have, want in zip(out, wanted):
                np.testing.assert_array_equal(have, want)
        for have, want in zip(plain(sessions[0].weights()), expected_weights(weight, bias)):
            np.testing.assert_array_equal(have, want)
        np.testing.assert_array_equal(plain(sessions[1].scale_weight(np.ones(8, np.float32)))[0], weight + 1)
    program.swap_weights({"weight": np.arange(8, dtype=np.float32)})


# ---- Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["semaphore", "event"])
def test_a_stream_that_holds_work_back_waits_for_a_device(instance, by):
    """When its own semaphore is signalled, it goes on to wait for what another stream of the device
    has not reached yet."""
    device = instance.device(DEVICE)
    first, second, gate, passed = accrt.Stream(device), accrt.Stream(device), accrt.Semaphore(instance), accrt.Semaphore(instance)
    source, spare, target = (accrt.Pool(device).buffer(1 << 16) for _ in range(3))
    for turn in range(1, 11):
        second.wait(gate, turn)
        for _ in range(50):
            first.copy(spare, source)
        first.fill(source, turn)
        if by == "semaphore":
            first.signal(passed, turn)
            second.wait(passed, turn)
        else:
            event = accrt.Event(device)
            first.record(event)
            second.wait_event(event)
        second.copy(source, target)
        gate.signal(turn)
        found = np.zeros(1 << 16, np.uint8)
        second.copy(target, found)
        second.synchronize()
        assert (found == turn).all()


def test_a_stream_of_the_host_waits_for_a_device(instance):
    device, host = instance.device(DEVICE), instance.device("host")
    first, reader, second = accrt.Stream(device), accrt.Stream(device), accrt.Stream(host)
    passed, over = accrt.Semaphore(instance), accrt.Semaphore(instance)
    source, spare = (accrt.Pool(device).buffer(1 << 16) for _ in range(2))
    found = np.zeros(1 << 16, np.uint8)
    for turn in range(1, 11):
        for _ in range(50):
            first.copy(spare, source)
        first.fill(source, turn)
        first.signal(passed, turn)
        second.wait(passed, turn)
        second.signal(over, turn)
        over.wait(turn, timeout=30)
        reader.copy(source, found)
        reader.synchronize()
        assert (found == turn).all()


# ---- What is refused -----------------------------------------------------------------------------


def test_no_variant_names_the_least_architecture(instance):
    bundle = accrt.Bundle(DATA / "no_device_variant.accx", instance)
    with pytest.raises(accrt.NoVariantError, match="future.*it needs sm_250 or a later one"):
        accrt.Program(bundle, instance.device(DEVICE))


def test_wrong_arguments_are_refused_and_nothing_is_lost(programs):
    session = programs[1].session()
    for name, arguments in (("which_none", (floats(16),)), ("divide", (floats(8), 0)), ("append", (floats(5), 0))):
        with pytest.raises((accrt.Error, ValueError, ArithmeticError)):
            session.function(name)(*arguments)
    np.testing.assert_array_equal(plain(session.affine(floats(9)))[0], 2 * floats(9) + 1)


def test_an_operator_that_fails_is_told_by_its_name(programs):
    for session in (*(program.session() for program in programs), divided(programs[1], 1)):
        session.refuse(0)
        with pytest.raises(accrt.KernelError, match="operator 'refuse'.*asked to refuse") as caught:
            session.refuse(5)
        assert caught.value.driver_code == 5 and not {"grid", "workgroup"} & set(caught.value.message.replace("'", " ").split())
        session.stream.reset()
        session.reset()
        session.refuse(0)


# ---- Launches from Python ------------------------------------------------------------------------

SCALE = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry set_word(.param .u64 cells, .param .u32 value, .param .f32 unused)
{
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  ld.param.u64 %d1, [cells]; ld.param.u32 %r1, [value]; st.global.u32 [%d1], %r1;
  ret;
}
"""


def test_values_of_a_launch_that_do_not_fit(instance):
    device = instance.device(DEVICE)
    kernel = accrt.DeviceKernel("set_word", [("cells", "write"), ("value", "u32"), ("unused", "f32")], (1,))
    launch = accrt.Launch(device, accrt.KernelPack.of_module(device, SCALE, [kernel]).kernel("set_word"))
    fire = launch.on(accrt.Stream(device), (1,))
    buffer = accrt.Pool(device).buffer(64)
    for values, words in (((buffer.address, 1 << 32, 1.0), "value is 4294967296"), ((buffer.address, -1, 1.0), "value is -1"),
                          ((buffer.address, 1.5, 1.0), "value is 1.5"), ((buffer, 1, 1.0), "cells is <accrt.Buffer"),
                          ((buffer.address, 1, "x"), "unused is 'x'")):  # fmt: skip
        with pytest.raises(accrt.InvalidArgumentError, match=words):
            fire(*values)
    with pytest.raises(TypeError, match="set_word takes 3 values .cells, value, unused., 2 were given"):
        fire(buffer.address, 1)


def test_tensors_of_the_host_device_are_refused(programs):
    """They have memory that no GPU reaches; numpy's arrays are copied."""
    values = floats(64)
    on_host, on_device = (program.session().function("affine") for program in programs)
    result = on_host(values)
    with pytest.raises(accrt.UnsupportedError, match="input 'x'.*memory of host:0 is out of reach of " + DEVICE):
        on_device(result)
    assert np.array_equal(plain(on_device(plain(result)[0]))[0], plain(on_host(plain(result)[0]))[0])
