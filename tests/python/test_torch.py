"""torch's tensors in and out, without a copy. Runs where torch is installed: `./dev torch-test`;
skipped elsewhere, since no test of the project may need it."""
import ctypes
import subprocess
import sys

import pytest

import accrt
from accrt import _fast
from accrt._system import loaded_library

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch


def test_tensors_go_in_without_a_copy(program):
    session = program.session()
    x, y = torch.arange(100, dtype=torch.float32), torch.ones(100)
    before = y.data_ptr()
    session.scale_add(x, y)
    assert y.data_ptr() == before and torch.equal(y, 2 * x + 1)


def test_results_come_out_without_a_copy(program):
    result = program.session().weighted(torch.ones(16))
    view = torch.from_dlpack(result)
    assert view.data_ptr() == result.address
    del result
    assert view[3].item() == 2 + 2 * 3


def test_import_keeps_the_producer_alive(program, device):
    tensor = accrt.from_dlpack(torch.full((16,), 3.0), device)
    assert program.session().weighted(tensor).tolist()[0] == 6


def test_types_and_strides_are_checked(program):
    session = program.session()
    with pytest.raises(accrt.TypeMismatchError):
        session.weighted(torch.ones(16, dtype=torch.float64))
    with pytest.raises(accrt.ShapeMismatchError, match="contiguous"):
        session.weighted(torch.ones(32)[::2])


def test_a_type_that_numpy_lacks_gets_the_same_advice(program, device):
    session = program.session()
    with pytest.raises(accrt.TypeMismatchError, match=r"got bf16; tensor\.to\(torch\.float32\) converts it"):
        session.weighted(torch.ones(16, dtype=torch.bfloat16))
    with pytest.raises(accrt.TypeMismatchError, match=r"got bf16; numpy\.asarray\(tensor, 'float32'\) converts it"):
        session.weighted(accrt.from_dlpack(torch.ones(16, dtype=torch.bfloat16), device))


def test_tensors_that_are_not_strided_get_advice(program):
    session = program.session()
    for tensor, way in ((torch.ones(16).to_sparse(), "torch.sparse_coo, .*to_dense"), (torch.ones(4, 4).to_sparse_csr(), "torch.sparse_csr, .*to_dense"),
                        (torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "nested, .*torch.nested.to_padded_tensor"),
                        (torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged), "nested, .*torch.nested.to_padded_tensor")):
        with pytest.raises(BufferError, match=f"weighted: x: the tensor is {way}") as told:
            session.weighted(tensor)
        assert "\n" not in str(told.value)


def test_functions_of_torch_say_what_they_take(program):
    """Both classes are called Tensor, and torch's own text is "must be Tensor, not Tensor"."""
    result, own = program.session().weighted(torch.ones(16)), torch.ones(16)
    for call in (lambda: torch.softmax(result, -1), lambda: torch.nn.functional.relu(result), lambda: torch.cat([own, result]), lambda: own.add(result),
                 lambda: torch.stack([result, result]), lambda: own.copy_(result), lambda: torch.nn.Linear(16, 2)(result)):
        with pytest.raises(TypeError, match=r"^torch's \w+ takes torch's tensors, and this is an accrt\.Tensor: torch\.from_dlpack\(t\) makes one of it$"):
            call()
    values = torch.from_dlpack(result)
    for made in (torch.tensor(result), torch.as_tensor(result), torch.asarray(result), own.new_tensor(result)):
        assert torch.equal(made, values)
    assert (own == result).tolist() == (result == own).tolist() == (own == values).tolist()
    assert not torch.is_tensor(result)


def test_bfloat16_and_gradients(program, device):
    assert accrt.from_dlpack(torch.ones(4, dtype=torch.bfloat16), device).dtype == "bf16"
    with pytest.raises(Exception, match="grad"):
        program.session().weighted(torch.ones(16, requires_grad=True))


# ---- what a tensor is beside its memory

@pytest.fixture
def echo(echo_bundle):
    return accrt.load(echo_bundle, host_code="all", options={"host.threads": 1})


TYPES = {"bool": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32,
         "u32": torch.uint32, "i64": torch.int64, "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
         "f64": torch.float64, "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "f8e8m0": torch.float8_e8m0fnu}


@pytest.mark.parametrize("name", TYPES)
def test_every_type_goes_in_and_out(echo, name):
    bits = torch.arange(32, dtype=torch.uint8) % 2 if name == "bool" else torch.arange(32, dtype=torch.uint8)
    tensor = bits.view(TYPES[name])
    for _ in range(2):  # the first time a class is learned
        result = echo[name](tensor)
        back = torch.from_dlpack(result)
        assert back.dtype == TYPES[name] and torch.equal(back.view(torch.uint8), bits) and result.dtype == name


def test_what_has_no_type_here_is_refused(echo, device):
    for other in (torch.ones(4, dtype=torch.complex64), torch.ones(4).to_sparse(), torch.ones(4, device="meta")):
        for _ in range(2):
            with pytest.raises((accrt.Error, BufferError, TypeError, ValueError)):
                echo.f32(other)
            with pytest.raises((accrt.Error, BufferError, TypeError, ValueError)):
                accrt.from_dlpack(other, device)


def test_layouts(echo):
    whole = torch.arange(64, dtype=torch.float32)
    assert echo.f32(whole[16:32]).tolist() == whole[16:32].tolist()  # 64 bytes on
    assert echo.f32(torch.empty(0)).shape == (0,) and echo.f32(whole[:0]).tolist() == []
    for strided in (whole[::2], whole[1:], torch.tensor(3.0), whole.reshape(8, 8), torch.ones(1).expand(16)):
        call = echo.f32.bind(whole)
        for refuse in (lambda: echo.f32(strided), lambda: call.set(0, strided)):
            with pytest.raises((accrt.ShapeMismatchError, ValueError)):
                refuse()
        assert call().tolist() == whole.tolist()
    assert echo.f32(whole[::2], copy=True).tolist() == whole[::2].tolist()


def test_strides_and_offsets_come_with_a_tensor(device):
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for part in (whole[1:3, ::2], whole.t(), whole[2], whole[3, 5], whole[:, 6:], whole.as_strided((3, 3), (1, 1), 2)):
        tensor = accrt.from_dlpack(part, device)
        assert tensor.shape == part.shape and tensor.tolist() == part.tolist()
        assert part.numel() == 0 or (tensor.address == part.data_ptr() and torch.equal(torch.from_dlpack(tensor), part))


def test_what_dlpack_cannot_say_is_refused(echo, device):
    wanted, negative = torch.ones(16, requires_grad=True), torch._neg_view(torch.ones(16))
    call = echo.f32.bind(torch.zeros(16))
    for act in (echo.f32, lambda t: call.set("x", t), lambda t: accrt.from_dlpack(t, device)):
        for _ in range(2):
            with pytest.raises(BufferError, match="gradient"):
                act(wanted)
            with pytest.raises(BufferError, match="resolve_neg"):
                act(negative)
    assert call().tolist() == [0] * 16
    assert echo.f32(negative.resolve_neg()).tolist() == [-1] * 16
    assert echo.f32(torch.nn.Parameter(torch.ones(16), requires_grad=False)).tolist() == [1] * 16
    assert echo.f32(wanted.detach()).tolist() == [1] * 16


@pytest.fixture
def asked_in_python():
    """Tensors say in Python whether a gradient of them is wanted, and whether they are negated, as
    where torch's C++ functions are not known."""
    sample, words = torch.zeros(2), ctypes.c_void_p(1)
    assert _fast.native.learn_questions(torch.Tensor, torch.Tensor.__basicsize__, words.value, words.value, ((sample, 1, False, False),)) is False
    yield
    _fast._learn_questions(torch.Tensor)


@pytest.mark.skipif(_fast.native is None, reason="accrt._native is not there")
def test_what_is_asked_in_cpp_is_what_python_says(echo, device, asked_in_python):
    """The samples find where an object has its tensor; wrong answers are not accepted. Either way
    the same tensors are refused."""
    test_what_dlpack_cannot_say_is_refused(echo, device)
    library = {name: loaded_library(name) for name in ("libc10.so", "libtorch_cpu.so")}
    functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (
        library["libc10.so"]._ZNK3c1010TensorImpl13requires_gradEv, library["libtorch_cpu.so"]._ZN2at6native6is_negERKNS_6TensorE)]

    def learn(*samples, size=torch.Tensor.__basicsize__):
        return _fast.native.learn_questions(torch.Tensor, size, *functions, samples)

    plain, leaf = torch.zeros(2), torch.zeros(2, requires_grad=True)
    samples = [(t, t._cdata, t.requires_grad, t.is_neg()) for t in (plain, leaf, leaf * 2, torch._neg_view(plain), torch._neg_view(leaf), torch.nn.Parameter(plain))]
    for wrong in ((plain, plain._cdata, True, False), (plain, plain._cdata, False, True), (leaf, leaf._cdata, False, False), (plain, leaf._cdata, True, False)):
        assert learn(*samples, wrong) is False
    assert learn() is False and learn(*samples, size=16) is False
    assert learn(*samples) is True
    test_what_dlpack_cannot_say_is_refused(echo, device)
    call = echo.f32.bind(torch.zeros(16))
    changed = torch.ones(16)
    for wanted in (False, True, False):
        changed.requires_grad_(wanted)
        if wanted:
            with pytest.raises(BufferError, match="gradient"):
                call.set("x", changed)
        else:
            call.set("x", changed)


def test_a_bound_tensor_keeps_its_storage(echo):
    """Whatever becomes of the tensor: what lies in the memory is what was there."""
    for forget in (lambda t: t.set_(torch.zeros(4)), lambda t: setattr(t, "data", torch.zeros(16)), lambda t: None):
        tensor = torch.arange(1 << 10, dtype=torch.float32)
        call = echo.f32.bind(tensor[:16])
        call.set(0, tensor)  # the quick way, once the class is known
        storage = tensor.untyped_storage()
        forget(tensor)
        del tensor
        torch.zeros(1 << 10)  # takes the place of what is free
        assert call().tolist() == list(range(1 << 10)) and storage.nbytes() == 4 << 10


def test_work_in_flight_keeps_its_tensors(echo):
    """The device is not done: a run waits for a semaphore, and everybody has dropped the tensor."""
    semaphore = accrt.Semaphore(echo.program.device.instance)
    call = echo.f32.bind(torch.zeros(16))
    for value in (1, 2, 3):
        call.set(0, torch.full((1 << 10,), float(value)))
        out = torch.zeros(1 << 10)
        call.set("y", out)
        call.submit(waits=[(semaphore, value)])
        call.set(0, torch.zeros(16))
        call.set("y", None)
        for _ in range(4):
            torch.full((1 << 10,), -1.0)
        semaphore.signal(value)
        call.wait()
        assert out[0].item() == value and out[-1].item() == value


def test_a_result_may_outlive_everything(echo_bundle):
    views = []
    for _ in range(20):
        session = accrt.load(echo_bundle, host_code="all")
        views.append(torch.from_dlpack(session.f32(torch.arange(16, dtype=torch.float32))))
        del session
    assert all(view.tolist() == list(range(16)) for view in views)
def test_kernels_take_tensors(instance):
    source = """
int32_t half(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e, (void)w;
  const half_params_t* p = d->params;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->x[i] / 2;
  return 0;
}
"""
    half = accrt.Kernel.from_c(source, "half", [("x", "read f32"), ("y", "write f32"), ("n", "symbol")], lambda v: 1, instance=instance)
    x, y = torch.arange(10.0), torch.zeros(10)
    half(x, y, 10)
    assert torch.equal(y, x / 2) and half.check(x, y, 10) == []
    assert half.check(x, y, 11) == ["kernel half writes outside of y: byte 0 after its end"]
    with pytest.raises(TypeError, match="x has elements of type f64, and the kernel takes f32"):
        half(x.double(), y, 10)
    with pytest.raises(ValueError, match="x: strides are"):
        half(x[::2], y, 5)
    with pytest.raises(Exception, match="kernel half: x: .*grad"):
        half(x.requires_grad_(), y, 10)


#: Each holds memory of the other's, and a thread goes on importing, when the interpreter ends. The
#: thread runs no operation of torch: those release the GIL in C++ that a thread may not end in, so
#: the end of the interpreter would abort the process, with or without accrt.
AT_THE_END = """
import sys, threading, time
import torch
import accrt
from accrt import bundle_writer as bw

b = bw.BundleWriter()
n = b.symbol("n", maximum=1 << 10)
f = b.function("f32")
x, y = f.input("x", "f32", [n]), f.result("y", "f32", [n])
f.body.copy(x.read(), y.write(), n * 4)
b.write(sys.argv[1])
module = accrt.load(sys.argv[1], trust="all")
views = [torch.from_dlpack(module.f32(torch.arange(16.0))) for _ in range(50)]
taken = [accrt.from_dlpack(torch.ones(8), module.program.device) for _ in range(50)]
call = module.f32.bind(torch.arange(8.0))
call.submit()

given = torch.arange(16.0)

def forever():
    while True:
        torch.from_dlpack(module.program.session().f32(given))

dropped = threading.Thread(target=lambda: [views.pop() for _ in range(20)])
dropped.start()
dropped.join()
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
print("ends", flush=True)
"""


def test_the_process_ends_while_each_holds_the_others_memory(tmp_path):
    for turn in range(3):
        done = subprocess.run([sys.executable, "-c", AT_THE_END, str(tmp_path / f"{turn}.accx")], capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_tensors_without_memory_are_refused_by_name(echo, device):
    meta = torch.ones(16, device="meta")
    for act in (lambda: echo.f32(meta), lambda: accrt.from_dlpack(meta, device), lambda: echo.f32(torch.ones(16), out=meta), lambda: echo.f32(meta, copy=True)):
        with pytest.raises(BufferError, match="meta device, which has shapes and no values"):
            act()


@pytest.mark.parametrize("make, text", [
    (lambda: torch.ones(16, requires_grad=True), r"weighted: x: .*detach\(\)"),
    (lambda: torch._neg_view(torch.ones(16)), r"weighted: x: .*resolve_neg\(\)"),
    (lambda: torch.ones(16).to_sparse(), "weighted: x: "),
    (lambda: torch.ones(16, dtype=torch.complex64), "weighted: x: .*complex64"),
    (lambda: torch.ones(16, device="meta"), "weighted: x: .*meta"),
    (lambda: torch.ones(16, dtype=torch.float64), r"'x' .*tensor.to\(torch.float32\)"),
    (lambda: b"0" * 64, r"'x' .*numpy.frombuffer\(data, 'float32'\)"),
])  # fmt: skip
def test_what_is_refused_is_named_with_its_argument(program, make, text):
    with pytest.raises((BufferError, accrt.Error), match=text) as caught:
        program.session().weighted(make())
    assert "copy=True" not in str(caught.value)


def test_traced_tensors_are_refused_with_what_to_use(program):
    session = program.session()

    def run(x):
        return torch.from_dlpack(session.weighted(x * 1))

    from torch._subclasses import FakeTensorMode

    def fake(run, x):
        with FakeTensorMode():
            run(torch.ones(16))

    for trace in (lambda: torch.vmap(run)(torch.ones(2, 16)), lambda: torch.func.functionalize(run)(torch.ones(16)), lambda: fake(run, None)):
        with pytest.raises(BufferError, match="weighted: x: .*accrt.torch.operator"):
            trace()


def test_kernels_refuse_tensors_without_memory_by_name(instance):
    source = ("int32_t f(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {\n"
              "  (void)e, (void)d, (void)w;\n  return 0;\n}\n")
    kernel = accrt.Kernel.from_c(source, "f", [("x", "read f32")], lambda v: 1, instance=instance)
    for act in (kernel, kernel.check):
        with pytest.raises(BufferError, match="kernel f: x: .*meta device, which has shapes and no values"):
            act(torch.ones(16, device="meta"))
    with pytest.raises(BufferError, match="kernel f: x: .*[Bb]atch"):
        torch.vmap(lambda x: kernel(x) or x)(torch.ones(2, 8))


BACKWARDS = """
import sys, numpy as np, torch, accrt
device = accrt.default_instance().device("host")
for dtype in ("float32", "int8", "int64", "bool", "float16"):
    array = (np.arange(24).reshape(4, 6) % 5).astype(dtype)
    try:
        array.__dlpack__()
    except BufferError:  # numpy before 1.25 gives no bool
        assert dtype == "bool"
        continue
    for index in ((slice(None, None, -2),), (slice(None), slice(None, None, -1)), (slice(None, None, -1), slice(3, None, -3)), (slice(None, 0, -1), 2)):
        view, wanted = accrt.from_dlpack(array, device)[index], array[index]
        for take in (torch.from_dlpack, torch.as_tensor, lambda t: torch.utils.dlpack.from_dlpack(t.__dlpack__()), np.from_dlpack,
                     lambda t: torch.utils.dlpack.from_dlpack(t.__dlpack__(max_version=(1, 0)))):
            found = np.asarray(take(view))
            assert found.dtype == wanted.dtype and (found == wanted).all(), (dtype, index)
        try:
            view.__dlpack__(copy=False)
            raise SystemExit("copy=False")
        except BufferError as error:
            assert "negative" in str(error)
        assert np.shares_memory(view.numpy(), array)
one = accrt.from_dlpack(np.ones((1, 3), "f"), device)[::-1]  # of one row: in order
assert torch.from_dlpack(one).tolist() == [[1.0] * 3]
"""


def test_negative_strides_go_to_torch_as_a_copy():
    """In a process of its own: torch ends the one that gives it negative strides."""
    done = subprocess.run([sys.executable, "-c", BACKWARDS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
