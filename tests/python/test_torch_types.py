"""Every data type that torch has, in and out: its bits are the same, or one line says why not. Runs
where torch is installed."""
import warnings

import pytest

import accrt
from accrt import _format, bundle_writer as bw

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

#: By torch's name: the runtime's type.
EXACT = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "f8e8m0", "float4_e2m1fn_x2": "f4e2m1",
}  # fmt: skip
#: torch itself gives these as bytes, through DLPack too: its types of 1 to 7 bits are names alone.
BYTES = {f"{sign}int{bits}": f"{sign or 'i'}8" for sign in ("", "u") for bits in range(1, 8)}
#: Refused here, with torch's name of the type in the line.
NO_TYPE = ("complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz")
#: torch does not give these to anybody.
NOT_GIVEN = ("bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "qint32", "qint8", "quint2x4", "quint4x2", "quint8")


def torch_types():
    return sorted({str(v)[len("torch."):] for v in vars(torch).values() if isinstance(v, torch.dtype)})


def tensor_of(name, shape=(4, 8)):
    """Bytes that count up in a tensor of a type."""
    dtype = getattr(torch, name)
    count = dtype.itemsize
    for d in shape:
        count *= d
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flat = torch.arange(count, dtype=torch.int64).to(torch.uint8)
        if name == "bool":
            flat %= 2
        if name.startswith("q"):
            return torch.empty(shape, dtype=dtype)
        return flat.view(dtype).view(shape)


def bits(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


class Capsules:
    """A tensor that gives capsules alone."""

    def __init__(self, tensor, version):
        self.tensor, self.version = tensor, version

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__(max_version=self.version) if self.version else torch.utils.dlpack.to_dlpack(self.tensor)


def sources(tensor):
    """Through the C exchange, a capsule of DLPack 1, and one from before."""
    return {"exchange": tensor, "versioned": Capsules(tensor, (1, 0)), "before": Capsules(tensor, None)}


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """For each type a function that copies x[n, 16] to y[n, 16]."""
    bundle = bw.BundleWriter()
    n = bundle.symbol("n", maximum=1 << 10)
    for name in sorted(set(EXACT.values())):
        f = bundle.function(name)
        x, y = f.input("x", name, [n, 16]), f.result("y", name, [n, 16])
        f.body.copy(x.read(), y.write(), n * (2 * _format.DTYPES[name][1]))
    path = tmp_path_factory.mktemp("types") / "echo.accx"
    bundle.write(path)
    return accrt.load(path, host_code="all", options={"host.threads": 1})


def test_each_type_of_torch_is_here():
    """A type that is new in torch must be put into one of the lists."""
    listed = [*EXACT, *BYTES, *NO_TYPE, *NOT_GIVEN]
    assert sorted(listed) == sorted(set(listed)) and set(torch_types()) <= set(listed), set(torch_types()) - set(listed)


@pytest.mark.parametrize("name", [n for n in torch_types() if n in EXACT])
def test_exact_types_go_in_and_out(device, echo, name):
    two = 2 if name.endswith("_x2") else 1
    tensor = tensor_of(name)
    for way, source in sources(tensor).items():
        taken = accrt.from_dlpack(source, device)
        assert (taken.dtype, taken.shape, taken.strides) == (EXACT[name], (4, 8 * two), (8 * two, 1)), way
        assert taken.address == tensor.data_ptr() and taken.read_only == (way == "before")
        back = torch.from_dlpack(taken)
        assert back.dtype == tensor.dtype and back.shape == tensor.shape and back.data_ptr() == tensor.data_ptr(), way
        assert bits(back) == bits(tensor)
    rows = tensor_of(name, (4, 16 // two))
    for _ in range(3):  # the class and the form are learned
        result = echo[EXACT[name]](rows)
        assert result.dtype == EXACT[name] and result.shape == (4, 16)
        assert torch.from_dlpack(result).shape == rows.shape and bits(torch.from_dlpack(result)) == bits(rows)


@pytest.mark.parametrize("name", [n for n in torch_types() if n in BYTES])
def test_names_of_bytes_are_bytes(device, name):
    tensor = torch.arange(32, dtype=torch.int8 if BYTES[name] == "i8" else torch.uint8).view(getattr(torch, name))
    for source in sources(tensor).values():
        taken = accrt.from_dlpack(source, device)
        assert taken.dtype == BYTES[name] and taken.tolist() == list(range(32)) and taken.address == tensor.data_ptr()


@pytest.mark.parametrize("name", [n for n in torch_types() if n in NO_TYPE])
def test_others_are_refused_by_name(device, echo, name):
    tensor = tensor_of(name)
    for source in (tensor, tensor):
        with pytest.raises(accrt.UnsupportedError, match=f"of torch.{name}") as refused:
            accrt.from_dlpack(source, device)
        assert "\n" not in str(refused.value)
        with pytest.raises(accrt.UnsupportedError, match=f"of torch.{name}"):
            echo.f32(source)


@pytest.mark.parametrize("name", [n for n in torch_types() if n in NOT_GIVEN])
def test_what_torch_does_not_give_is_refused(device, echo, name):
    try:
        tensor = tensor_of(name)
    except RuntimeError as error:
        pytest.skip(f"torch makes no tensor of it: {error}")
    for _ in range(2):
        with pytest.raises((BufferError, accrt.UnsupportedError), match="type") as refused:
            accrt.from_dlpack(tensor, device)
        assert "\n" not in str(refused.value)
        with pytest.raises((BufferError, accrt.UnsupportedError), match="type"):
            echo.f32(tensor)


# ---- pairs of 4 bits

PAIRS = pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4_e2m1fn_x2")


@PAIRS
@pytest.mark.parametrize("shape", [(6,), (1,), (0,), (3, 5), (3, 1), (1, 7), (3, 0), (0, 3), (2, 3, 4), (1, 1, 1)])
def test_shapes_of_pairs(device, shape):
    tensor = tensor_of("float4_e2m1fn_x2", shape)
    for way, source in sources(tensor).items():
        taken = accrt.from_dlpack(source, device)
        assert taken.dtype == "f4e2m1" and taken.shape == (*shape[:-1], 2 * shape[-1]), way
        if taken.size:
            assert bytes(taken.buffer.read(taken.offset_bytes, taken.nbytes)) == bits(tensor)
        back = torch.from_dlpack(taken)
        assert back.shape == tensor.shape and back.dtype == tensor.dtype and bits(back) == bits(tensor), way


@PAIRS
def test_values_of_pairs(device):
    """The low bits are the first of two."""
    tensor = torch.tensor([0x21, 0xF7], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert accrt.from_dlpack(tensor, device).tolist() == [0.5, 1.0, 6.0, -6.0]


@PAIRS
def test_strides_of_pairs(device):
    whole = tensor_of("float4_e2m1fn_x2", (6, 8))
    for part in (whole[1:4, 2:6], whole[::2], whole[2], whole[:, :1], whole[:, 3:4], whole.unsqueeze(0), whole[:1].expand(3, 8)):
        for way, source in sources(part).items():
            taken = accrt.from_dlpack(source, device)
            assert taken.shape == (*part.shape[:-1], 2 * part.shape[-1]) and taken.address == part.data_ptr(), way
            back = torch.from_dlpack(taken)
            assert back.shape == part.shape and back.data_ptr() == part.data_ptr()
            assert bits(back.view(torch.uint8)) == bits(part.view(torch.uint8)), way
    for part in (whole.t(), whole[:, ::2], whole[3, 5]):
        for source in sources(part).values():
            with pytest.raises(accrt.UnsupportedError, match="last dimension") as refused:
                accrt.from_dlpack(source, device)
            assert "\n" not in str(refused.value)


@PAIRS
def test_a_pair_that_is_split_goes_to_torch_by_no_way(device):
    """Parts that begin or end inside a byte are refused, by torch or here."""
    taken = accrt.from_dlpack(tensor_of("float4_e2m1fn_x2", (4, 4)), device)
    assert torch.from_dlpack(taken[:, 2:6]).shape == (4, 2)
    for part in (taken[:, :3], taken[:, ::2], taken[0, 0]):
        with pytest.raises((RuntimeError, BufferError, accrt.Error)) as refused:
            torch.from_dlpack(part)
        assert "float4" in str(refused.value).lower() or "f4e2m1" in str(refused.value)


@PAIRS
def test_copies_of_pairs(device):
    taken = accrt.from_dlpack(tensor_of("float4_e2m1fn_x2", (4, 4)), device)
    copy = torch.utils.dlpack.from_dlpack(taken.__dlpack__(max_version=(1, 0), copy=True))
    assert copy.data_ptr() != taken.address and bits(copy) == bits(tensor_of("float4_e2m1fn_x2", (4, 4)))
