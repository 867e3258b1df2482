"""No Python call reaches outside an object, and no wrong kind of object reaches C: each is refused
with what was given."""
import array
import ctypes
import os

import numpy as np
import pytest

import accrt
from accrt import trust


@pytest.fixture
def things(instance, device, program):
    """One of each kind of handle, by class name."""
    session = program.session()
    stream = accrt.Stream(device)
    return {"Instance": instance, "Device": device, "Pool": accrt.Pool(device), "Buffer": accrt.Pool(device).buffer(64), "Stream": stream,
            "Event": accrt.Event(device), "Semaphore": accrt.Semaphore(instance), "Bundle": program.bundle, "Program": program,
            "Session": session, "Call": session.weighted.bind(np.ones(16, np.float32)), "Commands": accrt.Commands(device)}


# What takes a handle: how it is called, and the kinds that it takes. None stands for "nothing",
# where that is allowed.
TAKERS = {
    "Semaphore": (lambda t, v: accrt.Semaphore(v), {"Instance"}),
    "Pool": (lambda t, v: accrt.Pool(v), {"Device"}),
    "Stream": (lambda t, v: accrt.Stream(v), {"Device"}),
    "Stream.wrap": (lambda t, v: accrt.Stream.wrap(v, 1), set()),
    "Event": (lambda t, v: accrt.Event(v), {"Device"}),
    "Commands": (lambda t, v: accrt.Commands(v), {"Device"}),
    "KernelPack": (lambda t, v: accrt.KernelPack(v, "/nonexistent.so"), set()),
    "KernelPack.of_module": (lambda t, v: accrt.KernelPack.of_module(v, b"", []), set()),
    "Launch": (lambda t, v: accrt.Launch(v, None), set()),
    "Launch.kernel": (lambda t, v: accrt.Launch(t["Device"], v), set()),
    "launch.stream": (lambda t, v: accrt.launch(v, None, [1]), set()),
    "launch.kernel": (lambda t, v: accrt.launch(t["Stream"], v, [1]), set()),
    "Kernel": (lambda t, v: accrt.Kernel(v, 4096), set()),
    "Device": (lambda t, v: accrt.Device(v, t["Instance"]), set()),
    "Buffer": (lambda t, v: accrt.Buffer(v), set()),
    "Buffer.borrowed": (lambda t, v: accrt.Buffer.borrowed(v), set()),
    "Bundle.instance": (lambda t, v: accrt.Bundle(b"", v), set()),
    "Weights.instance": (lambda t, v: accrt.Weights(b"", v), set()),
    "Weight": (lambda t, v: accrt.Weight(v, 0), set()),
    "Program.device": (lambda t, v: accrt.Program(t["Bundle"], v), {"Device", "None"}),
    "Adapter": (lambda t, v: accrt.Adapter(v if v is not t["Program"] else None, b""), set()),
    "Session.program": (lambda t, v: accrt.Session(v), {"Program"}),
    "session.stream": (lambda t, v: t["Program"].session(stream=v), {"Stream", "None"}),
    "session.pool": (lambda t, v: t["Program"].session(pool=v), {"Pool", "None"}),
    "session.adapter": (lambda t, v: setattr(t["Session"], "adapter", v), {"None"}),
    "session.bind_state": (lambda t, v: t["Session"].bind_state("total", v), {"Buffer", "None"}),
    "clone.stream": (lambda t, v: t["Session"].clone(v), {"Stream", "None"}),
    "Call.prepared": (lambda t, v: accrt.Call(t["Session"], v), set()),
    "call.waits": (lambda t, v: t["Call"].submit(waits=[(v, 0)]), {"Semaphore"}),
    "call.signals": (lambda t, v: t["Call"].submit(signals=[(v, 1 << 40)]), {"Semaphore"}),
    "Stream.wait": (lambda t, v: t["Stream"].wait(v, 0), {"Semaphore"}),
    "Stream.signal": (lambda t, v: t["Stream"].signal(v, 1 << 41), {"Semaphore"}),
    "Stream.record": (lambda t, v: t["Stream"].record(v), {"Event"}),
    "Stream.wait_event": (lambda t, v: t["Stream"].wait_event(v), {"Event"}),
    "Event.elapsed_ns": (lambda t, v: accrt.Event(t["Device"], timing=True).elapsed_ns(v), {"Event"}),
    "Stream.copy": (lambda t, v: t["Stream"].copy(v, bytearray(64)), {"Buffer"}),
    "Stream.copy.target": (lambda t, v: t["Stream"].copy(bytes(64), v), {"Buffer"}),
    "Stream.fill": (lambda t, v: t["Stream"].fill(v, 0), {"Buffer"}),
    "Tensor": (lambda t, v: accrt.Tensor(v, "u8", (64,)), {"Buffer"}),
    "from_dlpack": (lambda t, v: accrt.from_dlpack(v, t["Device"]), set()),
    "from_dlpack.device": (lambda t, v: accrt.from_dlpack(t["Buffer"], v), set()),
    "Commands.copy": (lambda t, v: t["Commands"].copy(v, t["Buffer"], 0), {"Buffer"}),
    "Commands.fill": (lambda t, v: t["Commands"].fill(v, 0, 0), {"Buffer"}),
    "Commands.submit": (lambda t, v: t["Commands"].submit(v if v is not t["Stream"] else None), set()),
    "Commands.run": (lambda t, v: t["Commands"].run(v if v is not t["Stream"] else None), set()),
    "enable_peer": (lambda t, v: t["Device"].enable_peer(v), {"Device"}),
    "trust.report": (lambda t, v: trust.report(v), {"Bundle"}),
    "trust.filled_key_trust": (lambda t, v: trust.filled_key_trust(v, bytes(range(32))), {"Instance"}),
    "Call.set": (lambda t, v: t["Call"].set("x", v), {"None"}),
}


@pytest.mark.parametrize("name", TAKERS)
def test_a_wrong_kind_is_a_type_error(name, things):
    take, right = TAKERS[name]
    others = {"None": None, "int": 4096, "str": "x", "object": object()}
    for kind, value in {**things, **others}.items():
        if kind in right or name.endswith("of_module") and kind == "Device" or name in ("KernelPack", "Bundle.instance", "Weights.instance") and (
                kind in ("Instance", "None")) or name in ("Stream.wrap", "Launch") and kind == "Device" or name == "Kernel" and kind == "KernelPack":
            try:
                take(things, value)
            except (accrt.Error, TypeError, ValueError, OSError):
                pass
            continue
        with pytest.raises(TypeError) as caught:
            take(things, value)
        if kind in things and name not in ("Call.set", "from_dlpack", "from_dlpack.device", "call.waits"):
            assert kind in str(caught.value) or "expected" in str(caught.value), str(caught.value)


def test_handles_of_pointers_are_typed(things):
    """Where a wrapper forgets, ctypes refuses: no C function takes the pointer of another kind, or
    a number."""
    from accrt._library import lib
    with pytest.raises(ctypes.ArgumentError, match="accrt_device"):
        lib.accrt_stream_create(things["Instance"].handle, None, None)
    with pytest.raises(ctypes.ArgumentError, match="accrt_stream"):
        lib.accrt_stream_query(4096)


def test_closed_handles_say_so(things, device):
    for name, thing in things.items():
        if name in ("Instance", "Device", "Program", "Bundle"):
            continue
        thing.close()
        with pytest.raises(ValueError, match=f"{name} is closed"):
            thing.handle
    for call in (lambda: things["Stream"].copy(bytes(4), bytearray(4)), lambda: things["Call"](), lambda: things["Call"].submit(),
                 lambda: things["Call"].run(1), lambda: things["Call"].set("x", None), lambda: things["Buffer"].memoryview(),
                 lambda: accrt.Stream(device).wait(things["Semaphore"], 1), lambda: accrt.Tensor(things["Buffer"], "u8", (1,))):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_element_sizes_of_dtype(program):
    call = program.session().weighted.bind(np.ones(16, np.float32))
    for wrong in (np.ones(16, np.uint8), np.ones(16, np.float16), array.array("b", 16 * [0]), bytearray(16), memoryview(bytes(16))):
        with pytest.raises(TypeError):
            call.set("x", wrong, dtype="f32")
    for wrong in ("f33", 99, -1, None.__class__, b"f32"):
        with pytest.raises(ValueError, match="not known"):
            call.set("x", np.ones(16, np.float32), dtype=wrong)
    with pytest.raises(TypeError):
        call.set("x", np.full(16, None), dtype="i64")  # references to objects
    with pytest.raises(TypeError):
        call.set("x", np.ones(16, ">f4"), dtype="f32")
    call.set("x", np.ones(16, np.int32).view(np.uint32), dtype="f32")
    tensor = program.session().weighted(np.ones(16, np.float32))
    with pytest.raises(TypeError, match="32"):
        call.set("x", tensor, dtype="f64")


def test_copies_stay_inside(device):
    stream, buffer = accrt.Stream(device), accrt.Pool(device).buffer(64)
    small, large = bytearray(16), bytes(64)
    for wrong in ({}, {"size_bytes": 17}, {"target_offset": 1, "size_bytes": 16}, {"target_offset": 17, "size_bytes": 0},
                  {"source_offset": 65, "size_bytes": 0}, {"size_bytes": 1 << 63}, {"source_offset": 63, "size_bytes": 2}):
        with pytest.raises(IndexError):
            stream.copy(large, small, **wrong)
        with pytest.raises(IndexError):
            stream.copy(buffer, small, **wrong)
    for wrong in ({"size_bytes": -1}, {"size_bytes": 1 << 64}, {"source_offset": -1}, {"target_offset": -1}, {"target_offset": (1 << 64) + 1}):
        with pytest.raises(OverflowError):
            stream.copy(large, small, **wrong)
    with pytest.raises(IndexError):
        stream.fill(small, 0, size_bytes=17)
    with pytest.raises(IndexError):
        stream.fill(buffer, 0, offset=65)
    with pytest.raises(OverflowError):
        stream.fill(buffer, 0, size_bytes=(1 << 64) + 8)
    with open(os.devnull, "rb") as file:
        with pytest.raises(IndexError):
            stream.read_file(file, small, 17)
        with pytest.raises(OverflowError):
            stream.read_file(1 << 32, small, 1)
    with pytest.raises(ValueError, match="references"):
        stream.copy(bytes(64), np.full(8, None))
    with pytest.raises(ValueError):
        stream.copy(bytes(16), accrt.Tensor(buffer, "u8", (8, 2), (1, 8)))
    stream.copy(large, small, 16)
    stream.synchronize()


def test_tensors_stay_inside_their_buffer(device):
    pool = accrt.Pool(device)
    buffer = pool.buffer(64)
    for shape, strides, offset in (((17,), None, 0), ((16,), None, 1), ((16,), None, 4), ((2,), (16,), 0), ((2,), (-1,), 0), ((1,), None, -4),
                                   ((4, 5), None, 0), ((1 << 61, 8), None, 0), ((), None, 64), ((0,), None, 65), ((), None, 1 << 64)):
        with pytest.raises(IndexError, match="64 bytes"):
            accrt.Tensor(buffer, "f32", shape, strides, offset)
    for shape, strides in (((-1,), None), ((2, 2), (1,)), ((1,) * 99, None)):
        with pytest.raises(ValueError):
            accrt.Tensor(buffer, "f32", shape, strides)
    with pytest.raises(TypeError):
        accrt.Tensor(buffer, "f32", (1.5,))
    assert accrt.Tensor(buffer, "f32", (16,), (-1,), 60).shape == (16,)
    assert accrt.Tensor(buffer, "i4", (128,)).nbytes == 64
    tensor = accrt.Tensor(buffer, "f32", (16,))
    for name, value in (("shape", (1 << 20,)), ("offset_bytes", 4096), ("strides", (99,)), ("dtype", "f64"), ("buffer", buffer)):
        with pytest.raises(AttributeError):
            setattr(tensor, name, value)
    with pytest.raises(OverflowError):
        pool.buffer((1 << 64) + 16)
    for offset, size in ((60, 8), (-1, 1), (0, -1), (65, None)):
        with pytest.raises(IndexError):
            buffer.read(offset, size)


def test_numbers_are_not_cut(instance, device, program):
    semaphore, session = accrt.Semaphore(instance), program.session()
    for call in (lambda: accrt.Semaphore(instance, 1 << 64), lambda: semaphore.signal((1 << 64) + 1), lambda: semaphore.wait(-1, 0),
                 lambda: semaphore.eventfd(1 << 64), lambda: semaphore.fail("x", 1 << 32), lambda: accrt.Stream(device, priority=1 << 31),
                 lambda: accrt.Pool(device, limit_bytes=-1), lambda: accrt.Commands(device, 1 << 32), lambda: program.session(max_plans=1 << 32),
                 lambda: session.bind_state("total", accrt.Pool(device).buffer(64), (1 << 64) + 0), lambda: accrt.Bundle(1 << 32, instance),
                 lambda: accrt.Commands(device).binding(1 << 32), lambda: accrt.Commands(device).barrier() or accrt.Commands(device).marker("x", [-1])):
        with pytest.raises(OverflowError):
            call()


def test_keys_are_whole():
    for short in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            trust.key_id(short)
        with pytest.raises(ValueError, match="32 bytes"):
            trust.SigningKey(short)
    with pytest.raises(TypeError):
        trust.key_id("x" * 32)


def test_results_keep_their_memory(program):
    result = program.session().weighted(np.ones(16, np.float32))
    view = result.numpy()
    result.buffer.close()
    again = [program.session().weighted(np.zeros(16, np.float32)) for _ in range(4)]
    assert view[0] == 2 and again[0].numpy()[0] == 0
    with pytest.raises(ValueError, match="closed"):
        result.memoryview()


# ---- strings that C would end early

def nul_calls(bundle, path, tmp_path):
    """Every kind of string that goes to C, with a NUL in it."""
    instance = bundle.instance
    program = accrt.Program(bundle)
    session = program.session()
    return {
        "a bundle's path": lambda: accrt.Bundle(f"{path}\0.safetensors"),
        "weights' path": lambda: accrt.Weights(f"{path}\0.gguf"),
        "a session's symbol": lambda: program.session({"n\0x": 5}),
        "a state": lambda: session.state("x\0"),
        "a state to bind": lambda: session.bind_state("x\0", None),
        "a function": lambda: session.function("f\0x"),
        "a function to warm up": lambda: session.warmup("f\0x"),
        "a function to estimate": lambda: program.estimate("f\0x"),
        "a device": lambda: instance.device("host\0:9"),
        "an option's value": lambda: accrt.Instance(options={"host.threads": "1\0"}),
        "an option's key": lambda: accrt.Instance(options={"host.threads\0": "1"}),
        "a folder of keys": lambda: accrt.Instance(keys=[f"{tmp_path}\0/none"]),
        "a variant": lambda: accrt.Program(bundle, variant="x86-64\0"),
        "a weight": lambda: program.swap_weights({"w\0x": bytearray(8)}),
        "a weight to load": lambda: program.load_weights([], names=["w\0x"]),
        "a constant": lambda: bundle.constant_bytes("w\0x"),
        "a label": lambda: program.session(label="a\0b"),
        "a stream's label": lambda: accrt.Stream(instance.device("host"), label="a\0b"),
        "a pool's label": lambda: accrt.Pool(instance.device("host"), label="a\0b"),
        "a driver": lambda: instance.load_driver("/nope\0.so"),
        "a bundle to sign": lambda: accrt.trust.sign(path, f"{tmp_path}/out\0.accx", vouch=True),
    }


def small_bundle(tmp_path):
    from accrt import bundle_writer as bw
    writer = bw.BundleWriter()
    function = writer.function("f")
    x, y = function.input("x", "u8", [8]), function.result("y", "u8", [8])
    function.body.copy(x.read(), y.write(), 8)
    writer.write(tmp_path / "small.accx")
    return tmp_path / "small.accx"


def test_a_nul_in_a_string_is_a_value_error(tmp_path):
    path = small_bundle(tmp_path)
    for what, call in nul_calls(accrt.Bundle(path), path, tmp_path).items():
        try:
            call()
        except ValueError as error:
            assert "NUL" in str(error) or "null" in str(error), (what, error)
        except Exception as error:  # noqa: BLE001 - says which
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from None
        else:
            raise AssertionError(f"{what} with a NUL is taken")


def test_an_argument_by_a_number_that_is_none(tmp_path):
    session = accrt.load(small_bundle(tmp_path))
    x = bytearray(8)
    call = session.f.bind(x)
    before = list(call._views)
    for index, kind in ((-1, OverflowError), (-6, OverflowError), (1 << 32, OverflowError), (1 << 40, OverflowError), (2, IndexError),
                        (99, IndexError), (1.0, TypeError), ("z", TypeError), (None, TypeError)):
        with pytest.raises(kind):
            call.set(index, x)
        assert list(call._views) == before
    call()


def test_a_call_of_a_session_that_is_closed_says_so(tmp_path):
    session = accrt.load(small_bundle(tmp_path))
    function, x = session.f, bytearray(8)
    function(x)
    session.close()
    with pytest.raises(ValueError, match="this Session is closed"):
        function(x)


def test_patterns_are_not_cut(device):
    stream, buffer = accrt.Stream(device), accrt.Pool(device).buffer(64)
    for pattern, size in ((256, 1), (300, 1), (-1, 1), (1 << 16, 2), (1 << 32, 4), (1 << 64, 8)):
        with pytest.raises(OverflowError, match="pattern is"):
            stream.fill(buffer, pattern, pattern_bytes=size)
        with pytest.raises(OverflowError, match="pattern is"):
            accrt.Commands(device).fill(buffer, 64, pattern, pattern_bytes=size)
    stream.fill(buffer, (1 << 64) - 1, pattern_bytes=8)
    stream.synchronize()
    assert bytes(buffer.read()) == b"\xff" * 64


def test_a_closed_default_instance_is_made_anew():
    first = accrt.default_instance()
    first.close()
    again = accrt.default_instance()
    assert again is not first and again.device("host").name == "host:0"


def test_weights_that_would_replace_nothing_are_refused(golden_bundle, device, tmp_path):
    program = accrt.Program(accrt.Bundle(golden_bundle, device.instance), device)
    with pytest.raises(ValueError, match="say which with names="):
        program.load_weights(golden_bundle)


NO_ARRAYS = {
    "str": "abc", "list": [1.0] * 16, "set": {1}, "dict": {}, "generator": (i for i in "ab"), "object": object(), "class": np.ndarray,
    "masked": np.ma.masked_array(np.ones(16, np.float32), np.arange(16) % 2), "objects": np.array([None] * 16), "strings": np.array(["a"] * 16),
    "big-endian": np.ones(16, ">f4"), "complex": np.ones(16, np.complex64), "dates": np.zeros(16, "datetime64[s]"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array_is_refused_with_the_name_of_the_argument(program, name):
    function = program.session().weighted
    argument = str(function).partition("(")[2].partition(":")[0]
    with pytest.raises((TypeError, ValueError), match=f"weighted.*{argument}"):
        function(NO_ARRAYS[name])


@pytest.mark.parametrize("name, advice", [("m.gguf", "accrt.LLM runs a GGUF file"), ("m.safetensors", "take the folder that it lies in"), ("m.onnx", "accrt.from_onnx"),
                                          ("m.PT2", "accrt.from_torch makes a bundle of it"), ("m.pth", "torch.nn.Module"), ("folder", "it is a model's folder: accrt.LLM")])  # fmt: skip
def test_models_of_other_kinds_are_refused_with_what_takes_them(tmp_path, name, advice):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "config.json").write_text("{}")
    else:
        path.write_bytes(b"x" * 200)
    for given in (path, str(path)):
        with pytest.raises(accrt.Error, match=advice):
            accrt.load(given)
    with pytest.raises(accrt.Error) as missing:
        accrt.load(tmp_path / "none.gguf")
    assert "LLM" not in str(missing.value)


def test_a_path_as_bytes_is_taken_for_content(tmp_path):
    (tmp_path / "m.accx").touch()
    with pytest.raises(accrt.InvalidFormatError, match=r"; bytes are the content of a bundle, and these are a path: give os\.fsdecode\(path\)$"):
        accrt.Bundle(bytes(tmp_path / "m.accx"))
    with pytest.raises(accrt.InvalidFormatError, match=r"\(rule 1\)$"):
        accrt.Bundle(b"no path")
