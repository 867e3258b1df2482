"""accrt.from_torch: weights that torchao has quantized stay packed, and what would be expanded is
refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

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
        "int4_zeros": (quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=quantization.MappingType.ASYMMETRIC), "i4_group_asym"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["int8", "int4_groups", "int4_rows", "int8_groups", "int3_groups", "int4_zeros"])
def test_what_torchao_quantized_stays_packed(name, instance):
    config, layout = configurations()[name]
    from accrt.compiler import compile, Interpreter
    from torchao.quantization import quantize_

    made, x = model(), torch.randn(3, 64)
    quantize_(made, config)
    module = convert(made, (x,))
    assert {n: c.type.encoding for n, c in module.constants.items()} == {f"{i}.weight": layout for i in (0, 2, 3)} | {f"{i}.bias": "plain" for i in (0, 2)}
    with accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance) as bundle, torch.no_grad():
        wanted = made(x).numpy()
        rms = np.sqrt((wanted**2).mean())
        np.testing.assert_allclose(Interpreter(module).run("forward", x.numpy())[0], wanted, rtol=1e-5, atol=1e-5 * rms)
        ours = np.asarray(bundle.program().session().forward(x.numpy()))
        # integer codes meet activations of 8 bits on hosts
        assert np.abs(ours - wanted).max() <= 0.05 * rms


def test_what_torchao_quantizes_at_each_call_is_named():
    configurations()
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    made = model()
    quantize_(made, Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedOperations, match="'0.weight', which is quantized as .*would be expanded"):
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
