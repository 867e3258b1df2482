"""Programs that multiply straight from packed weights predict held-out text as well as the f32 program on the exact values: within 0.001 bits
per byte, for each layout with kernels. On 8,192 bytes; `./dev bench layouts` does 65,536 (docs/benchmarks/layouts.md), tests/gpu/test_bits.py the same
on a GPU."""

import pytest

import bytelm_bits as bits
import compiler_harness as h
import test_packed_kernels

TEXT = bits.text(8193)


@pytest.fixture(scope="module")
def plain(instance):
    data = bits.compiled([h.target()])
    return bits.program(data, bits.source(bits.matrices(), instance), instance)


def test_every_layout_with_kernels_is_tried():
    assert {layout for layout, _group in bits.PACKED} == set(test_packed_kernels.PACKED)


@pytest.mark.parametrize("layout, group", bits.PACKED, ids=lambda v: str(v))
def test_packed_is_as_good_as_exact(plain, layout, group, instance):
    packed = bits.nearest(layout, group)
    plain.load_weights(bits.source(bits.exact(packed), instance))
    program = bits.program(bits.compiled([h.target()], layout, group), bits.source(packed, instance), instance)
    exact, found = bits.bits_per_byte(plain, TEXT), bits.bits_per_byte(program, TEXT)
    print(f"{layout} {group}: exact {exact:.5f}, packed {found:.5f}, difference {found - exact:+.5f}")
    assert abs(found - exact) < bits.MOST
