"""Weight layouts from Python: quantizing and exact values, against formulas of our own and the
compiler's, and what is refused."""
import pathlib
import re

import numpy as np
import pytest

import accrt
from accrt import layouts
from accrt.compiler import encodings

SEED = 20261120
WRITABLE = [i for i in layouts.all_layouts() if i.writable and i.id > 1]
#: Least signal to noise in decibels on normal values with a few outliers, by bits of an element.
LEAST = {"i8_group": 38, "q8_0": 38, "q6_k": 30, "q5_k": 24, "i8_channel": 28, "f8_tensor": 28, "f8_channel": 28,
         "f8_block128": 28, "mxfp8": 28}


@pytest.fixture(scope="module")
def weight():
    rng = np.random.default_rng(SEED)
    values = rng.standard_normal((256, 512)) * 0.02
    values[rng.random(values.shape) < 0.002] *= 6
    return values.astype(np.float32)


@pytest.mark.parametrize("info", WRITABLE, ids=lambda i: i.name)
def test_what_comes_back_is_what_the_report_says(info, weight):
    packed = layouts.quantize(weight, info.id)
    back = layouts.dequantize(packed)
    error = back.astype(np.float64) - weight
    assert packed.error.sqnr_db > LEAST.get(info.name, 16)
    assert packed.error.rms_error == pytest.approx(np.sqrt((error**2).mean()), rel=1e-9)
    assert packed.error.max_error == np.abs(error).max() and packed.error.amax == np.abs(weight).max()
    searched = layouts.quantize(weight, info.id, search=True)
    assert searched.error.rms_error <= packed.error.rms_error * 1.0005
    importance = np.where(np.arange(512) % 8 == 0, 50.0, 0.02)
    aware = layouts.quantize(weight, info.id, importance=importance)
    noise = importance * (layouts.dequantize(aware).astype(np.float64) - weight) ** 2
    assert aware.error.weighted_sqnr_db == pytest.approx(
        10 * np.log10((importance * weight.astype(np.float64) ** 2).sum() / noise.sum()), abs=1e-4)
    assert noise.sum() < (importance * error**2).sum()


@pytest.mark.parametrize("info", WRITABLE, ids=lambda i: i.name)
def test_the_compiler_reads_the_same_values(info, weight):
    packed = layouts.quantize(weight, info.id)
    kinds = {"f32": np.float32, "i8": np.int8}
    quantized = encodings.Quantized(
        info.name, packed.shape, {r: c.data.view(kinds.get(c.dtype, np.uint8)) for r, c in packed.components.items()},
        packed.group_elements, types={r: c.dtype for r, c in packed.components.items()})
    assert np.array_equal(encodings.dequantize(quantized), layouts.dequantize(packed))


def test_ids_are_those_of_every_writer():
    from accrt.bundle_writer import Encoding
    assert {e.name.lower(): e.value for e in Encoding} == {i.name: i.id for i in layouts.all_layouts()}
    assert {l.name: l.id for l in encodings.LAYOUTS.values() if l.name not in encodings.APART} == {i.name: i.id for i in layouts.all_layouts() if i.id > 1}


def test_the_document_lists_what_there_is():
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/layouts.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \| ([^|]*) \| ([^|]*) \|", text, re.M)
    known = layouts.all_layouts()
    assert [(int(number), name, int(block)) for number, name, block, _group, _parts in rows] == [
        (i.id, i.name, i.block_elements) for i in known]
    for info, (_id, _name, _block, group, parts) in zip(known, rows, strict=True):
        assert ("G" == group.strip()) == info.free_group
        assert info.block_bytes == 0 or f" {info.block_bytes}" in parts
        assert {role for role in layouts.ROLES if role.upper() in parts} == set(info.dtypes)


def test_rows_alone_are_the_rows_of_the_whole(weight):
    packed = layouts.quantize(weight, "q4_k")
    assert np.array_equal(layouts.dequantize(packed, 17, 5), layouts.dequantize(packed)[17:22])
    assert layouts.dequantize(packed, 256, 0).shape == (0, 512)


def test_batches_of_matrices(weight):
    experts = np.stack([weight[:100], weight[100:200] * 100])
    packed = layouts.quantize(experts, "f8_block128")
    assert packed.components["scales"].data.nbytes == 2 * 1 * 4 * 4
    alone = layouts.quantize(experts[1], "f8_block128")
    assert np.array_equal(layouts.dequantize(packed)[1], layouts.dequantize(alone))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_plain_rounds_to_nearest_even(dtype):
    rng = np.random.default_rng(SEED)
    values = np.concatenate([rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 5, 4000), [0, -0.0, 65504, 6e-8, -3e-8]])
    values = values.astype(np.float32)[None]
    back = layouts.dequantize(layouts.quantize(values, "plain", dtype=dtype))
    if dtype == "f16":
        expected = values.astype(np.float16).astype(np.float32)
    else:
        bits = values.view(np.uint32)
        expected = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(back.view(np.uint32), expected.view(np.uint32))


def test_elements_of_f8_round_to_nearest_even():
    """With a largest value of 448 the scale is 1, and values on the grid and half-way between come
    back as they should."""
    grid = np.sort(np.unique(np.abs(encodings.f8_values(np.arange(127), False))))
    middle = (grid[:-1] + grid[1:]) / 2
    # codes alternate in their last bit
    even = np.where(np.arange(len(middle)) % 2 == 0, grid[:-1], grid[1:])
    back = layouts.dequantize(layouts.quantize(np.concatenate([grid, -middle])[None], "f8_tensor"))
    assert np.array_equal(back[0], np.concatenate([grid, -even]))


@pytest.mark.parametrize("shape, layout, options, message", [
    ((2, 128), "q4_k", {}, "no multiple"),
    ((2, 33), "i4_group", {}, "no multiple"),
    ((2, 64), "i4_group", {"group_elements": 12}, "multiple of 8"),
    ((2, 64), "q8_0", {"group_elements": 32}, "any other is 0"),
    ((8, 64), "awq", {}, "not written"),
    ((2, 64), "opaque", {}, "no size of its own"),
    ((2, 256), "q3_k", {}, "not written"),
    ((2, 64), "q3_k_m", {}, "there are: plain"),
])  # fmt: skip
def test_refusals_say_why(shape, layout, options, message):
    with pytest.raises(accrt.Error, match=message):
        layouts.quantize(np.zeros(shape, np.float32), layout, **options)


def test_values_that_are_not_finite_are_named(weight):
    wrong = weight.copy()
    wrong[3, 7] = np.nan
    with pytest.raises(accrt.Error, match="row 3, column 7"):
        layouts.quantize(wrong, "q8_0")
    with pytest.raises(accrt.Error, match=r"importance\[5\]"):
        layouts.quantize(weight, "q8_0", importance=np.where(np.arange(512) == 5, -1.0, 1.0))
    with pytest.raises(ValueError, match="512 inputs"):
        layouts.quantize(weight, "q8_0", importance=np.ones(256))


def test_packed_weights_are_compared_by_value():
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    first, second = layouts.quantize(weight, "q8_0"), layouts.quantize(weight, "q8_0")
    assert first == second and first.components == second.components
    assert first != layouts.quantize(-weight, "q8_0") and first.components["data"] != "x"


@pytest.mark.parametrize("bits", (np.uint16, np.uint8))
def test_bits_are_not_quantized_as_numbers(bits, tmp_path):
    from accrt.compiler import quantize
    weight = np.zeros((2, 32), bits)
    for make in (layouts.quantize, quantize):
        with pytest.raises(TypeError, match="may be the bits of bf16"):
            make(weight, "q8_0")
        with pytest.raises(TypeError, match="mask"):
            make(np.ma.masked_array(weight.astype(np.float32)), "q8_0")


def test_weights_in_bf16_are_quantized_by_value(tmp_path):
    import safetensors_file
    from accrt.compiler import Module, quantize
    path, values = tmp_path / "w.safetensors", np.linspace(-2, 2, 64, dtype=np.float32).reshape(2, 32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    path.write_bytes(safetensors_file.safetensors_bytes({"w": ("BF16", bits)}))
    weight = accrt.Weights(path)["w"]
    for given in (weight, weight.numpy()):
        assert layouts.quantize(given, "q8_0") == layouts.quantize(values, "q8_0")
    assert np.array_equal(quantize(weight.numpy(), "q8_0").components["data"], quantize(values, "q8_0").components["data"])
    assert (np.asarray(weight, np.float32) == values).all()
    constant = Module().constant("w", weight.numpy())
    assert constant.type.dtype == "bf16" and (constant.data == bits).all()
