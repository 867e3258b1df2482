"""Mistakes that people make are answered with what was given, what is expected, what there is, and
what would help."""
from __future__ import annotations

import asyncio
import copy
import math
import pickle

import numpy as np
import pytest

import accrt
from accrt.bundle_writer import BundleWriter
from test_tensor_values import tensor_of

X = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.fixture
def echo(echo_bundle):
    with accrt.load(echo_bundle) as session:
        yield session


def refused(error, take) -> str:
    with pytest.raises(error) as caught:
        take()
    if isinstance(caught.value, accrt.Error):
        assert caught.value.message == str(caught.value)
    return str(caught.value)


class Foreign:
    """A tensor of another library: DLPack alone."""

    def __init__(self, array) -> None:
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


# ---- copy=True

@pytest.fixture
def lying(device):
    """What cannot be used as it lies, each with what it is worth."""
    x = X.reshape(-1)
    shifted = np.zeros(33, np.float32)[1:]
    shifted[:] = x
    assert shifted.ctypes.data % 16
    return {
        "strided": (np.repeat(x, 2)[::2], x), "backwards": (x[::-1], x[::-1]),
        "misaligned": (shifted, x), "big endian": (x.astype(">f4"), x), "a list": (x.tolist(), x), "a tuple": (tuple(x.tolist()), x),
        "a tensor": (tensor_of(np.repeat(x, 2), device)[::2], x), "a memoryview": (memoryview(np.repeat(x, 2))[::2], x),
        "dlpack": (Foreign(np.repeat(x, 2)[::2]), x),
    }


def test_what_copy_takes_says_so(lying, echo):
    for what, (value, worth) in lying.items():
        for take in (lambda: echo.f32(value), lambda: echo.f32.bind(value), lambda: asyncio.run(echo.f32.call_async(value)),
                     lambda: echo.f32.bind(None).set("x", value)):
            assert "copy=True" in refused((accrt.Error, TypeError, ValueError), take), what
        assert echo.f32(value, copy=True).tolist() == worth.tolist(), what


def test_what_copy_does_not_help_does_not_say_so(echo, lying):
    for value in (np.zeros(4, "M8[s]"), np.zeros(4, object), object(), {}, None, np.zeros(4, "S3"), np.zeros((2, 2), np.float32), echo):
        assert "copy=True" not in refused((accrt.Error, TypeError, ValueError), lambda: echo.f32(value))
    out = lying["strided"][0]
    for written in (out, lying["misaligned"][0]):
        text = refused(accrt.Error, lambda: echo.f32(X.reshape(-1), out=written))
        assert "copy=True" not in text and "numpy.empty" in text
    assert "copy=True" not in refused((TypeError, ValueError), lambda: echo.f32(["a", "b"], copy=True))


def test_another_type_says_how_to_convert(echo):
    for wrong, name in ((np.float64, "f32"), (np.int64, "f32"), (np.int64, "i32"), (np.float32, "f16"), (np.uint8, "bool")):
        text = refused(accrt.TypeMismatchError, lambda: echo[name](np.zeros(4, wrong)))
        converted = np.zeros(4, wrong).astype(text.partition("astype('")[2].partition("'")[0])
        assert echo[name](converted).shape == (4,)
    assert "astype" not in refused(accrt.TypeMismatchError, lambda: echo.f32(X.reshape(-1), out=np.zeros(32)))


def test_out_says_what_it_takes(echo):
    assert "takes an array" in refused(TypeError, lambda: echo.f32(X.reshape(-1), out=[[0.0], [0.0]]))


def test_an_argument_that_there_is_not(echo):
    call = echo.f32.bind(None)
    assert "has 2 arguments, there is no 7" in refused(IndexError, lambda: call.set(7, X))


@pytest.mark.parametrize("wrong", (5, [1], ["ab", 3], None.__class__, [(1, 2, 3)]))
def test_what_to_wait_for_is_pairs(echo, wrong):
    call = echo.f32.bind(X.reshape(-1))
    for what in ("waits", "signals"):
        text = refused(TypeError, lambda: call.submit(**{what: wrong}))  # noqa: B023
        assert text.startswith(what) and "pairs" in text or "Semaphore" in text


@pytest.mark.parametrize("wrong, place", (("a", "[1]"), (None, "[1]"), (10 ** 400, "[1]"), (np.ones(2, np.float32), "numpy.array"), (object(), "[1]")))
@pytest.mark.parametrize("name", ("f32", "bf16", "u8"))
def test_a_list_says_which_element_is_no_number(echo, wrong, place, name):
    text = refused((ValueError, TypeError), lambda: echo[name]([1, wrong], copy=True))
    assert place in text and "[1]" in text and name in text
    assert "[0][1]" in refused((ValueError, TypeError), lambda: echo[name]([[1, wrong], [2, 3]], copy=True))


def test_arrays_in_place_of_files(echo_bundle):
    for take in (lambda: accrt.load(echo_bundle, weights={"w": X}), lambda: accrt.Program(echo_bundle, weights={"w": X})):
        text = refused(TypeError, take)
        assert "paths" in text and "swap_weights" in text


def test_a_weight_that_is_no_array_is_named(tmp_path):
    b = BundleWriter()
    f = b.function("f")
    f.body.copy(f.constant(b.constant("some.weight", X)).read(), f.result("y", "f32", X.shape).write(), X.nbytes)
    b.write(tmp_path / "one.accx")
    program = accrt.Program(tmp_path / "one.accx")
    for wrong in (None, "x", [1], 1.5, np.ma.ones(X.shape, np.float32), X.astype(object), X.T):
        assert "weight 'some.weight'" in refused((TypeError, ValueError), lambda: program.swap_weights({"some.weight": wrong}))  # noqa: B023


def test_a_sandbox_names_the_file(tmp_path):
    for name, data in (("text.accx", b"no bundle" * 100), ("empty.accx", b"")):
        (tmp_path / name).write_bytes(data)
        for path in (tmp_path / name, str(tmp_path / name)):
            assert refused(accrt.Error, lambda: accrt.load(path, sandbox=True)).startswith(str(path) + ": ")  # noqa: B023
    assert str(tmp_path) in refused(accrt.Error, lambda: accrt.load(tmp_path, sandbox=True))


# ---- device, options, symbols

@pytest.mark.parametrize("wrong", (0, None, 1.5, b"host", ["host"]))
def test_a_device_that_is_no_name(wrong, echo_bundle, instance):
    for take in (lambda: accrt.load(echo_bundle, device=wrong), lambda: instance.device(wrong), lambda: accrt.load(echo_bundle, device=wrong, sandbox=True)):
        text = refused(TypeError, take)
        assert "'host:0'" in text and (repr(wrong) in text or "list" in text or "None" in text) and ("a name" in text or "a str" in text)


def test_a_device_in_place_of_its_name(echo_bundle, device):
    assert "accrt.Program(path, device).session()" in refused(TypeError, lambda: accrt.load(echo_bundle, device=device))
    assert accrt.Program(echo_bundle, device).session().f32(X.reshape(-1)).shape == (32,)
    for take in (lambda: accrt.Program(echo_bundle, "host"), lambda: accrt.Stream("host"), lambda: accrt.Pool(0)):
        assert 'accrt.default_instance().device("host")' in refused(TypeError, take)


@pytest.mark.parametrize("wrong", (3, "host.threads=2", ["host.threads"], ("host.threads", 2), {3: 4}))
def test_options_that_are_no_dict(wrong, echo_bundle):
    for take in (lambda: accrt.Instance(options=wrong), lambda: accrt.load(echo_bundle, options=wrong)):
        text = refused(TypeError, take)
        assert "{'host.threads': 2}" in text and "docs/options.md" in text


@pytest.mark.parametrize("wrong", (None, [2], {}, object()))
def test_options_whose_value_is_none(wrong):
    assert "'host.threads' is " in refused(TypeError, lambda: accrt.Instance(options={"host.threads": wrong}))


def test_options_that_are_unknown_or_wrong(tmp_path):
    assert "did you mean 'host.threads'" in refused(accrt.NotFoundError, lambda: accrt.Instance(options={"host.thread": 2}))
    assert "expected a number" in refused(accrt.InvalidArgumentError, lambda: accrt.Instance(options={"host.threads": 2.5}))
    accrt.Instance(options={"prepare.cache": tmp_path, "host.threads": np.int64(2)})


@pytest.mark.parametrize("wrong", (3, "n=2", ["n"], [("n", 2)], {3: 4}, {b"n": 3}))
def test_symbols_that_are_no_dict(wrong, echo_bundle):
    program = accrt.Bundle(echo_bundle).program()
    for take in (lambda: program.session().warmup("f32", wrong), lambda: program.estimate("f32", wrong)):
        assert "symbols are n" in refused(TypeError, take)
    assert "no session symbols" in refused(TypeError, lambda: program.session(wrong))
    assert "no session symbols" in refused(TypeError, lambda: accrt.load(echo_bundle, symbols=wrong))


@pytest.mark.parametrize("wrong", ("x", 2.5, None, [1]))
def test_symbols_whose_value_is_no_integer(wrong, echo_bundle):
    program = accrt.Bundle(echo_bundle).program()
    for take in (lambda: program.session().warmup("f32", {"n": wrong}), lambda: program.session({"n": wrong})):
        assert "symbol 'n' is " in refused(TypeError, take)


def test_names_that_are_none(program, device, instance):
    for take in (lambda: program.estimate(3), lambda: program.session().warmup(None), lambda: program.session().state(0),
                 lambda: accrt.Pool(device, label=3), lambda: program.bundle.signature(0), lambda: program.session().function(0)):
        assert "expected a str" in refused(TypeError, take)
    for wrong in (None, 1.5, ["a.accx"], {}, instance):
        assert "path" in refused(TypeError, lambda: accrt.load(wrong))


def test_numbers_that_are_none(program, device):
    for take, what in ((lambda: accrt.Pool(device).buffer(2.5), "size_bytes"), (lambda: accrt.Pool(device, limit_bytes="1G"), "limit_bytes"),
                       (lambda: program.session(max_plans=1.5), "max_plans"), (lambda: accrt.Commands(device, None), "bindings")):
        text = refused(TypeError, take)
        assert what in text and "expected an integer" in text


# ---- timeouts

def takers(program, device, instance, golden_bundle):
    session, semaphore = program.session(), accrt.Semaphore(instance, 1)
    call, stream, event = session.weighted.bind(np.ones(16, np.float32)), accrt.Stream(device), accrt.Event(device)
    stream.record(event)
    yield from (call.run, lambda limit: (call.submit(), call.wait(limit)), stream.synchronize, event.synchronize, lambda limit: semaphore.wait(1, limit))
    yield accrt.Budget
    yield lambda limit: accrt.load(golden_bundle, trust="all", timeout=limit)
    if sandboxed(golden_bundle):
        yield lambda limit: accrt.load(golden_bundle, sandbox={"timeout": limit}).close()


def sandboxed(path) -> bool:
    try:
        accrt.load(path, sandbox=True).close()
    except accrt.UnsupportedError:
        return False
    return True


def test_timeouts(program, device, instance, golden_bundle):
    for take in takers(program, device, instance, golden_bundle):
        for none in (None, math.inf, np.inf, np.float32(np.inf), 10**400, 1e300, 1e18, 30, 30.5, np.float32(30), np.int64(30)):
            take(none)
        for wrong in (math.nan, np.nan, -1, -math.inf, -10**400, np.float64(-0.5)):
            assert "timeout is " in refused(ValueError, lambda: take(wrong))
        for wrong in ("1", b"1", [1], 1j, object(), {}):
            assert "timeout is " in refused(TypeError, lambda: take(wrong))
    with pytest.raises(ValueError, match="max_steps"):
        accrt.Budget(max_steps=math.nan)
    with pytest.raises(TypeError, match="max_memory"):
        accrt.Budget(max_memory="1G")


# ---- weights that nobody needs

def test_weights_for_a_bundle_that_has_them_all(golden_bundle, tmp_path):
    from safetensors_file import safetensors_bytes
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({"w": np.full(16, 3, np.float32)}))
    takes = [lambda: accrt.load(golden_bundle, trust="all", weights=path), lambda: accrt.load(golden_bundle, trust="all", weights=[accrt.Weights(path)]),
             lambda: accrt.Bundle(golden_bundle).program(weights=str(path)), lambda: accrt.Program(golden_bundle, weights=[path])]
    if sandboxed(golden_bundle):
        takes += [lambda: accrt.load(golden_bundle, sandbox=True, weights=path)]
    for take in takes:
        text = refused(ValueError, take)
        assert "has all of its weights" in text and "load_weights(weights, names=[...])" in text
    session = accrt.load(golden_bundle, trust="all", weights=[])
    session.program.load_weights(path, names=["w"])
    assert session.weighted(np.zeros(16, np.float32)).tolist() == [6.0] * 16


def test_swapped_weights_may_be_weights(golden_bundle, tmp_path):
    from safetensors_file import safetensors_bytes
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({"w": np.full(16, 3, np.float32)}))
    session = accrt.load(golden_bundle, trust="all")
    session.program.swap_weights({"w": accrt.Weights(path)["w"]})
    assert session.weighted(np.zeros(16, np.float32)).tolist() == [6.0] * 16
    assert "load_weights takes files" in refused(TypeError, lambda: session.program.swap_weights(str(path)))


def test_swapped_weights_of_another_type_say_what_to_pass(program, echo_bundle, tmp_path):
    assert "astype('float32')" in refused(accrt.TypeMismatchError, lambda: program.swap_weights({"w": np.zeros(16)}))


# ---- what people try first

def test_what_arrays_have_and_tensors_have_not(device):
    t = tensor_of(X, device)
    for name in ("argmax", "T", "mean", "astype", "reshape", "cpu", "to", "sum", "max"):
        assert "t.numpy()" in refused(AttributeError, lambda: getattr(t, name)) and not hasattr(t, name)
    for wrong in (t > 3, [0, 1], 1.5, t[0]):
        assert "use numpy() for others" in refused(TypeError, lambda: t[wrong])
    assert f"{t[0, 1]:.2f}" == "1.00" and f"{t[0, 1]:>8}" == "     1.0" and f"{t[:1, :1]}" == "[[0.0]]"
    for use in (lambda: pickle.dumps(t), lambda: copy.deepcopy(t), lambda: copy.copy(t)):
        assert "numpy() and tolist()" in refused(TypeError, use)


def test_integers_of_tensors_are_integers(program, device):
    session = program.session()
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    count = tensor_of(np.array([3], np.int64), device)
    session.steps(x, y, count)
    assert y.tolist() == [3.0] * 4 and [10, 11, 12, 13][count[0]] == 13 and tensor_of(X, device)[count].shape == (8,)
    for wrong in (tensor_of(np.array([3.0]), device), tensor_of(np.array([1, 2]), device)):
        assert "expected an integer" in refused(TypeError, lambda: session.steps(x, y, wrong))


def test_text_files_and_names(echo_bundle, golden_bundle, program):
    session = accrt.load(echo_bundle)
    assert "encode() gives its bytes" in refused(TypeError, lambda: session.u8("text"))
    assert session.u8("text".encode()).tolist() == list(b"text")
    with open(echo_bundle, "rb") as file:
        assert "fileno() is its descriptor" in refused(TypeError, lambda: accrt.load(file))
        assert accrt.load(file.fileno()).u8(b"a").tolist() == [97]
    assert "there are count, gated, scale_add, steps, weighted" in refused(AttributeError, lambda: program.session().forward)
    assert "there are count, gated" in refused(accrt.NotFoundError, lambda: program.bundle.signature("forward"))
    assert "there is 'w'" in refused(accrt.NotFoundError, lambda: program.swap_weights({"norm": np.zeros(16, np.float32)}))
    assert "'w'" in refused(accrt.NotFoundError, lambda: program.swap_weights({"model.w": np.zeros(16, np.float32)}))
    assert "docs/options.md" in refused(accrt.NotFoundError, lambda: accrt.Instance(options={"num_threads": 2}))
