"""accrt.from_torch: weights that torchao and compressed-tensors have quantized stay packed, and
what would be expanded is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

SEED = kh.SEED


def model():
    torch.manual_seed(SEED & 0x7FFFFFFF)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 32, bias=False)).eval()


def configurations():
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from torchao.quantization.granularity import PerAxis, PerGroup

    return {
        "int8": (quantization.Int8WeightOnlyConfig(), "i8_channel"),
        "int4_groups": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)), "i4_group"),
        "int4_rows": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)), "i4_group"),
        "int8_groups": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(16)), "i8_group"),
        "int3_groups": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerGroup(32)), "i8_group"),
        "int8_zeros": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(32), mapping_type=quantization.MappingType.ASYMMETRIC), "i8_asym"),
        "float8": (quantization.Float8WeightOnlyConfig(), "f8_channel"),
        "int8_each_call": (quantization.Int8DynamicActivationInt8WeightConfig(), "i8_channel"),
        "int4_each_call": (quantization.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)), "i4_group"),
        "int4_zeros": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=quantization.MappingType.ASYMMETRIC), "i4_group_asym"),
    }  # fmt: skip


def bits_of(layout):
    return 4 if "i4_" in layout else 8


def weights(layouts):
    """The encodings of `model`'s constants, by name."""
    return {f"{i}.weight": layout for i, layout in zip((0, 2, 3), layouts)} | {f"{i}.bias": "plain" for i in (0, 2)}


def stays_packed(made, module, layout, shape, dtype, at_each_call, instance):
    """The weights are in the bundle in their layout, in as many bytes as their codes have and a few
    for scales, and the results are torch's. `made`: what torch calls, after the conversion.
    `at_each_call`: activations are rounded to codes, so that the last bit of a sum may be one of
    them."""
    from accrt.compiler import compile, Interpreter

    ours = {n: c.type.encoding for n, c in module.constants.items() if n.endswith((".weight", ".bias"))}
    assert ours == weights([layout] * 3)
    assert not [n for n, c in module.constants.items() if c.type.encoding == "plain" and len(c.type.shape) > 1 and c.type.size_bytes > 1024]
    elements = 64 * 64 + 64 * 64 + 32 * 64
    packed = sum(array.nbytes for c in module.constants.values() if c.type.encoding != "plain" for array in c.data.components.values())
    assert elements * bits_of(layout) // 8 < packed <= elements * (bits_of(layout) + 4) // 8
    content = compile(module, targets=[kh.host_targets()[-1]])
    x = torch.randn(*shape, 64, dtype=dtype)
    with accrt.Bundle(content, instance) as bundle, torch.no_grad():
        stored = [c for c in bundle.constants if c.name.partition("_")[0] in ("0.weight", "2.weight", "3.weight")]
        assert sum(c.size_bytes for c in stored) <= elements * (bits_of(layout) + 4) // 8, [(c.name, c.size_bytes) for c in stored]
        wanted = made(x).float().numpy()
        rms = np.sqrt((wanted**2).mean())
        if dtype == torch.float32:
            error = np.abs(Interpreter(module).run("forward", x.numpy())[0] - wanted)
            assert error.max() <= (0.05 if at_each_call else 2e-5) * rms and np.median(error) <= (0.01 if at_each_call else 1e-5) * rms
        ours = torch.from_dlpack(bundle.program().session().forward(x)).float().numpy()
        # integer codes meet activations of 8 bits on hosts
        assert np.abs(ours - wanted).max() <= (0.05 if dtype == torch.float32 else 0.1) * rms


CASES = [((2, 3), "float32"), ((3,), "bfloat16")]
TORCHAO = ["int8", "int4_groups", "int4_rows", "int8_groups", "int3_groups", "int4_zeros", "int8_zeros", "float8", "int8_each_call", "int4_each_call"]


@pytest.mark.parametrize("shape, dtype", CASES)
@pytest.mark.parametrize("name", TORCHAO)
def test_what_torchao_quantized_stays_packed(name, shape, dtype, instance, monkeypatch):
    config, layout = configurations()[name]
    from torchao.kernel import intmm
    from torchao.quantization import quantize_

    # On processors with VNNI and without AMX, torchao adds 128 to codes of activations, and takes
    # it back by the sums of the weight's codes, for which these would be expanded.
    monkeypatch.setattr(intmm, "_cpu_is_vnni_supported", lambda: False, raising=False)

    made = model().to(getattr(torch, dtype))
    quantize_(made, config)
    module = convert(made, (torch.randn(*shape, 64, dtype=getattr(torch, dtype)),))
    stays_packed(made, module, layout, shape, getattr(torch, dtype), "each_call" in name, instance)


#: Of compressed-tensors: the weights (bits, type, symmetric, strategy), activations of 8 bits at
#: each call, and the layout.
COMPRESSED = {
    "int4_group": ((4, "int", True, "group"), None, "i4_group"),
    "int4_group_zeros": ((4, "int", False, "group"), None, "ct_i4_asym"),
    "int4_channel": ((4, "int", True, "channel"), None, "i4_group"),
    "int8_channel": ((8, "int", True, "channel"), None, "ct_i8"),
    "int8_group_zeros": ((8, "int", False, "group"), None, "ct_i8_asym"),
    "int8_each_call": ((8, "int", True, "channel"), (True, "token", True), "i8_channel"),
    "int8_each_call_zeros": ((8, "int", True, "channel"), (False, "token", True), "i8_channel"),
    "int8_fixed": ((8, "int", True, "tensor"), (True, "tensor", False), "i8_channel"),
    "int4_each_call": ((4, "int", True, "group"), (True, "token", True), "i8_group"),
    "float8_channel": ((8, "float", True, "channel"), None, "f8_channel"),
    "float8_tensor": ((8, "float", True, "tensor"), None, "f8_tensor"),
}


def compress(made, bits, kind, symmetric, strategy, activations=None):
    """`made` as compressed-tensors has compressed it."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import apply_quantization_config, QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    wanted = QuantizationArgs(num_bits=bits, type=kind, symmetric=symmetric, strategy=strategy, group_size=32 if strategy == "group" else None)
    inputs = None if activations is None else QuantizationArgs(num_bits=8, type=kind, symmetric=activations[0], strategy=activations[1], dynamic=activations[2])
    config = QuantizationConfig(config_groups={"all": QuantizationScheme(targets=["Linear"], weights=wanted, input_activations=inputs)})
    apply_quantization_config(made, config)
    for layer in (item for item in made.modules() if isinstance(item, torch.nn.Linear)):
        rows = layer.weight.detach().unflatten(1, (-1, 32)) if strategy == "group" else layer.weight.detach()
        least, most = (rows.amin(), rows.amax()) if strategy == "tensor" else (rows.amin(-1, keepdim=strategy == "channel"), rows.amax(-1, keepdim=strategy == "channel"))
        scale, zero = calculate_qparams(least, most, wanted)
        layer.weight_scale.data.copy_(scale.reshape(layer.weight_scale.shape))
        layer.weight_zero_point.data.copy_(zero.reshape(layer.weight_zero_point.shape))
        if hasattr(layer, "input_scale"):
            # calibrated: steps of the largest input over 127
            layer.input_scale.data.fill_(0.03 if layer is made[0] else 0.006)
    ModelCompressor(quantization_config=config).compress_model(made)
    return made


@pytest.mark.parametrize("shape, dtype", CASES)
@pytest.mark.parametrize("name", COMPRESSED)
def test_what_compressed_tensors_quantized_stays_packed(name, shape, dtype, instance):
    scheme, activations, layout = COMPRESSED[name]
    made = compress(model().to(getattr(torch, dtype)), *scheme, activations)
    before = {key: (value.dtype, value.shape) for key, value in made.state_dict().items()}
    module = convert(made, (torch.randn(*shape, 64, dtype=getattr(torch, dtype)),))
    assert {key: (value.dtype, value.shape) for key, value in made.state_dict().items()} == before
    # its hook expands the weights at torch's first call, which comes after the conversion
    stays_packed(made, module, layout, shape, getattr(torch, dtype), activations is not None, instance)
    assert all(value.is_floating_point() or "shape" in key or "zero" in key for key, value in made.state_dict().items())


def test_tiles_of_compressed_tensors_stay_packed(instance):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from accrt.compiler import Interpreter
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import apply_quantization_config, QuantizationArgs, QuantizationConfig, QuantizationScheme

    made = torch.nn.Sequential(torch.nn.Linear(256, 192)).eval()
    wanted = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    config = QuantizationConfig(config_groups={"all": QuantizationScheme(targets=["Linear"], weights=wanted)})
    apply_quantization_config(made, config)
    made[0].weight_scale.data.copy_(torch.rand(made[0].weight_scale.shape) * 1e-3 + 1e-3)
    ModelCompressor(quantization_config=config).compress_model(made)
    x = torch.randn(3, 256)
    module = convert(made, (x,))
    assert module.constants["0.weight"].type.encoding == "f8_block128"
    with torch.no_grad():
        wanted = made(x).numpy()
    np.testing.assert_allclose(Interpreter(module).run("forward", x.numpy())[0], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_bits_without_a_layout_are_named_by_module_and_leave_the_model():
    made = compress(model(), 3, "int", True, "group")
    with pytest.raises(ValueError, match=r"0: the weights of this Linear are of 3 bits \(int, group\), for which there is no packed layout; decompress the model first"):
        convert(made, (torch.randn(3, 64),))
    assert all(hasattr(made[i], "weight_packed") for i in (0, 2, 3))
    assert made(torch.randn(3, 64)).shape == (3, 32)  # the hook is there again


def test_floats_at_each_call_are_named():
    made = compress(model(), 8, "float", True, "channel", (True, "token", True))
    with pytest.raises(UnsupportedOperations, match="tensors of float8_e4m3fn"):
        convert(made, (torch.randn(3, 64),))


class Words(torch.nn.Module):
    """Eight codes in each word, as compressed-tensors has them, unpacked where they are used."""

    def __init__(self, parameter):
        super().__init__()
        words = torch.randint(-(1 << 31), 1 << 31, (32, 8), dtype=torch.int64).to(torch.int32)
        if parameter:
            self.weight_packed = torch.nn.Parameter(words, requires_grad=False)
        else:
            self.register_buffer("weight_packed", words)
        self.weight_scale = torch.nn.Parameter(torch.rand(32, 1))

    def forward(self, x):
        codes = (self.weight_packed.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
        return torch.nn.functional.linear(x, (codes.flatten(1).float() - 8) * self.weight_scale)


class Scaled(torch.nn.Module):
    """Codes of 8 bits with a scale for each row or group, as compressed-tensors stores them
    (int-quantized, float-quantized), in the type of the input where they are used."""

    def __init__(self, dtype, groups):
        super().__init__()
        codes = torch.randint(0, 100, (32, 64))
        self.weight = torch.nn.Parameter(codes.to(torch.float32).to(dtype), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(torch.rand(32, groups), requires_grad=False)

    def forward(self, x):
        codes = self.weight.to(x.dtype).view(32, self.weight_scale.shape[1], -1)
        return torch.nn.functional.linear(x, (codes * self.weight_scale[..., None]).flatten(1))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_codes_of_8_bits_are_not_expanded_without_a_word(dtype, groups):
    with pytest.raises(UnsupportedOperations, match="the quantized weight 'weight' would be expanded to f32"):
        convert(Scaled(getattr(torch, dtype), groups), (torch.randn(3, 64),))


@pytest.mark.parametrize("parameter", [False, True])
def test_other_packed_weights_are_not_expanded_without_a_word(parameter):
    with pytest.raises(UnsupportedOperations, match="the quantized weight 'weight_packed' would be expanded to f32"):
        convert(Words(parameter), (torch.randn(3, 64),))
