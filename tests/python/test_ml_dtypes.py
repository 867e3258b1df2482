"""Every type of ml_dtypes: it goes in without a copy, by a copy that packs it, or is refused by its
name. Runs where ml_dtypes is installed: `./dev check interop`."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import accrt
import rotation
from accrt import bundle_writer as bw

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

SEED = rotation.SEED
#: As docs/python-guide.md has them.
MAPPED = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "f8e8m0"}
PACKED = {"int4": "i4", "uint4": "u4", "float4_e2m1fn": "f4e2m1"}
REFUSED = {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn",
           "int1", "int2", "uint1", "uint2", "complex32", "bcomplex32"}  # fmt: skip
ALL = sorted(n for n, v in vars(ml_dtypes).items() if isinstance(v, type) and issubclass(v, np.generic))


@pytest.fixture(scope="module")
def session(instance, tmp_path_factory):
    """Functions that copy x to y, one for each type."""
    bundle = bw.BundleWriter()
    n = bundle.symbol("n", maximum=1 << 10)
    for dtype in (*MAPPED.values(), *PACKED.values(), "u8"):
        bits = 16 if dtype == "bf16" else 4 if dtype in PACKED.values() else 8
        f = bundle.function(dtype)
        x, y = f.input("x", dtype, [n]), f.result("y", dtype, [n])
        f.body.copy(x.read(), y.write(), bw.ceildiv(n * bits, 8))
    path = tmp_path_factory.mktemp("types") / "types.accx"
    bundle.write(path)
    return accrt.Program(accrt.Bundle(path, instance), instance.device("host")).session()


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name))


def array(name, *shape):
    """Of random bits, as the type has them."""
    kind = dtype(name)
    bits = np.random.default_rng(SEED).integers(0, 256, (*shape, kind.itemsize), np.uint8)
    if name in PACKED:
        bits &= 15
    return bits.view(kind)[..., 0]


def same(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32), equal_nan=True), f"seed {SEED}"


def test_every_type_is_in_one_list():
    assert set(ALL) <= {*MAPPED, *PACKED, *REFUSED} and len({*MAPPED, *PACKED, *REFUSED}) == len(MAPPED) + len(PACKED) + len(REFUSED)
    assert {*MAPPED, *PACKED} <= set(ALL)


@pytest.mark.parametrize("name", MAPPED)
def test_what_is_mapped_is_not_copied(session, device, name):
    from accrt.tensor import as_view
    x = array(name, 33)
    view = as_view(x, device)
    assert view.c.data == x.ctypes.data
    result = getattr(session, MAPPED[name])(x)
    assert result.dtype == MAPPED[name]
    same(result.numpy(), x)
    assert result.numpy().tobytes() == x.tobytes()
    same(np.asarray(result, np.float32), x.astype(np.float32))
    same(getattr(session, MAPPED[name])(result.numpy()).numpy(), x)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 999])
@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed(session, name, count):
    """The first of two elements has the low bits; an odd one is followed by nothing."""
    x, function = array(name, count), session[PACKED[name]]
    if count:
        with pytest.raises(TypeError, match=f"an array of {name} has one element in each byte, and the runtime's {PACKED[name]} has two.*copy=True"):
            function(x)
    result = function(x, copy=True)
    assert result.dtype == PACKED[name] and result.shape == (count,)
    bits = x.view(np.uint8) & 15
    padded = np.append(bits, np.zeros(count % 2, np.uint8))
    assert bytes(result._read()) == (padded[::2] | padded[1::2] << 4).tobytes()
    same(result.numpy(), x)
    same(np.asarray(result), x)
    same(np.asarray(result, dtype(name)), x)
    assert result.tolist() == x.astype(np.float32).tolist()
    for other in (np.float32, np.float64, np.int8):
        if other is not np.int8 or name == "int4":
            same(np.asarray(result, other), x.astype(other))
    with pytest.raises(ValueError, match="comes to numpy by a copy"):
        np.asarray(result, copy=False) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else result.__array__(copy=False)


@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed_of_other_layouts(session, device, name):
    x = array(name, 6, 7)
    for part in (x[:, 3], x[::2, ::-1].reshape(-1), x.T.reshape(-1)):
        same(session[PACKED[name]](part, copy=True).numpy(), part)
    tensor = accrt.Tensor(accrt.Pool(device).buffer(64), PACKED[name], (7, 3))
    flat = array(name, 21)
    tensor.buffer.memoryview()[:11] = bytes((np.append(flat.view(np.uint8), 0)[::2] | np.append(flat.view(np.uint8), 0)[1::2] << 4).astype(np.uint8))
    whole = flat.reshape(7, 3)
    same(tensor.numpy(), whole)
    for key in ((slice(None, None, 2),), (slice(None), 0), (4, slice(None, None, -1)), (slice(None, None, -2), slice(None))):
        same(tensor[key].numpy(), whole[key])
    same(accrt.Tensor(tensor.buffer, PACKED[name], (3, 7), (1, 3)).numpy(), whole.T)


@pytest.mark.parametrize("name", sorted(REFUSED & set(ALL)))
@pytest.mark.parametrize("how", [{}, {"copy": True}], ids=["as it is", "copy"])
def test_what_is_refused_by_its_name(session, name, how):
    x = array(name, 8)
    for function in ("u8", "f8e4m3fn", "bf16", "i4"):
        with pytest.raises(TypeError, match=f"arrays of type {name} are not supported: the runtime has no such type.*numpy.float32"):
            session[function](x, **how)
    call = session["u8"].bind(None)
    with pytest.raises(TypeError, match=f"arrays of type {name} are not supported"):
        call.set("x", x, dtype="u8")


@pytest.mark.parametrize("name", sorted(MAPPED))
def test_an_array_for_a_type_of_numpy_hears_how_to_convert_it(session, name):
    given = np.ones(32, dtype(name))
    with pytest.raises(accrt.TypeMismatchError, match=f"got {MAPPED[name]}; array.astype\\('uint8'\\) converts it$"):
        session.u8(given)
    assert session.u8(given.astype("uint8")).tolist() == [1] * 32


@pytest.mark.parametrize("name", ALL)
def test_bits_are_said_to_be_bits(session, name):
    """An uint8 that holds a type of 8 bits goes in as one where that is asked for."""
    x = array(name, 16)
    if x.itemsize != 1 or name in PACKED:
        return
    call = session[MAPPED[name] if name in MAPPED else "u8"].bind(None)
    call.set("x", x.view(np.uint8), dtype=MAPPED.get(name, "u8"))
    assert bytes(call()._read()) == x.tobytes()


@pytest.mark.parametrize("name", ALL)
def test_arrays_of_jax(device, name):
    """The same types through DLPack: what the runtime has not is refused with its name."""
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    if not hasattr(jnp, name) or name in ("int1", "uint1"):
        return
    try:
        x = jnp.arange(6).astype(getattr(jnp, name))
        x.__dlpack__()
    except Exception:  # noqa: BLE001 - XLA or its DLPack has not got it
        return
    if name in REFUSED:
        with pytest.raises(accrt.errors.UnsupportedError, match=f"the tensor is of {name}"):
            accrt.from_dlpack(x, device)
        return
    tensor = accrt.from_dlpack(x, device)
    assert tensor.dtype == {**MAPPED, **PACKED}[name]
    assert np.array_equal(np.asarray(tensor, np.float32), np.asarray(x).astype(np.float32), equal_nan=True)


def test_the_guide_has_every_type():
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/python-guide.md").read_text()
    for name in (*MAPPED, *PACKED, *REFUSED):
        assert f"`{name}`" in text, name
