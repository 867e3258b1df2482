"""Programs that multiply straight from packed weights predict held-out text as well as the f32
program on the exact values: within 0.001 bits per byte, for each layout with kernels. On 16,384
bytes, for some layouts in each run; `./dev bench layouts` does 65,536 (docs/benchmarks/layouts.md),
tests/gpu/test_bits.py the same on a GPU."""

import pytest

import bytelm_bits as bits
import compiler_harness as h
import rotation
import test_packed_kernels
from accrt.compiler import compile

TEXT = bits.text(16385)


@pytest.fixture(scope="module")
def weights(request):
    """Of the layouts of this run."""
    return {key: bits.nearest(key) for key in rotation.asked(request, "key")}


@pytest.fixture(scope="module")
def programs(instance, weights):
    """The f32 program, and the one that has all these layouts."""
    plain = bits.program(compile(bits.module([bits.EXACT]), targets=[h.target()]), bits.source({bits.EXACT: bits.matrices()}, instance), instance)
    return plain, bits.program(compile(bits.module(list(weights)), targets=[h.target()]), bits.source(weights, instance), instance)


def test_every_layout_with_kernels_is_tried():
    assert {key.layout for key in bits.PACKED} | bits.READ_ALONE == set(test_packed_kernels.PACKED)
    assert all(bits.is_packed(key, "host") for key in bits.PACKED)


@pytest.mark.rotating(5)
@pytest.mark.parametrize("key", bits.PACKED, ids=str)
def test_packed_is_as_good_as_exact(programs, weights, key, instance):
    plain, packed = programs
    plain.load_weights(bits.source({bits.EXACT: bits.exact(weights[key])}, instance))
    exact, found = bits.bits_per_byte(plain, bits.EXACT, TEXT), bits.bits_per_byte(packed, key, TEXT)
    print(f"{key}: exact {exact:.5f}, packed {found:.5f}, difference {found - exact:+.5f}")
    assert abs(found - exact) < bits.MOST
