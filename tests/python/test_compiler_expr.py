"""Symbolic sizes: canonical forms mean the same, and what they fold to is what the file's
arithmetic gives."""

from __future__ import annotations

import random

import pytest

import kernel_harness as kh
from accrt.bundle_writer import Expr, constant, less, less_equal, logical_and, logical_not, logical_or, not_equal
from accrt.compiler import expr as ex

A, B, C = (ex.symbol(name) for name in "abc")


@pytest.mark.parametrize("size, expected", [
    ((A * B * 384) // (B * A), 384),
    (A * 4 + B - A * 4, B),
    ((A * 12 + 5) % 4, 1),
    ((A * 12 + B) // 4, A * 3 + B // 4),
    (ex.ceildiv(A * 64 + 3, 32), A * 2 + 1),
    (ex.maximum(A + 1, 1), A + 1),
    (ex.minimum(A, A + B), A),
    (ex.maximum(A * 4, A * 8), A * 8),
    (less(B + A, A), constant(0)),
    (less_equal(A, A + B), constant(1)),
    (ex.select(ex.equal(A, A), B, C), B),
    ((A + B) * (A - B), A * A - B * B),
    (ex.align_up(A * 512, 256), A * 512),
    ((A * B) // A, B),
    ((A * B * 32 + B * 32) // (A * B * 8 + B * 8), 4),
    (((A + 1) * (B + 2) * C) // (B * C + C * 2), A + 1),
    ((A * A - B * B) // (A - B), A + B),
    ((A // 2 * 6 + 3) % (A // 2 * 2 + 1), 0),
    ((A * 4 + 5) // (A * 2 + 2), (A * 4 + 5) // (A * 2 + 2)),
    (((A - 1) // 2) // 2, (A - 1) // 4),
    (((A // 2 + 3) // 4 + B) // 3, (A + B * 8 + 6) // 24),
    (ex.ceildiv(ex.ceildiv(A, 2) + B, 3), ex.ceildiv(A + B * 2, 6)),
    ((A * 4 + 5) // 6, (A * 2 + 2) // 3),
    (ex.ceildiv(A * 4 + 5, 6), ex.ceildiv(A * 2 + 3, 3)),
    ((A // 2 * 2) // 4, A // 4),
    (ex.minimum(A, A // 2 * 2), A // 2 * 2),
    (ex.maximum(A * B, A * (B // 8 * 8)), A * B),
    (A // (1 << 31) // (1 << 31), A // (1 << 31) // (1 << 31)),
])  # fmt: skip
def test_canonical_form(size, expected):
    assert ex.simplify(size) == ex.simplify(expected)


def random_size(generator: random.Random, depth: int) -> Expr:
    if depth == 0 or generator.random() < 0.15:
        return generator.choice([A, B, C, constant(generator.randint(-4, 40))])
    op = generator.choice(["add", "sub", "mul", "floordiv", "ceildiv", "mod", "min", "max", "eq", "ne", "lt", "le", "and", "or", "not", "select"])
    count = {"not": 1, "select": 3}.get(op, 2)
    return Expr(op, [random_size(generator, depth - 1) for _ in range(count)])


def test_simplifying_keeps_the_value():
    """Wherever an expression has a value, its canonical form has the same one."""
    generator = random.Random(kh.SEED)
    print("seed", kh.SEED)
    checked = 0
    for _ in range(3000):
        size = random_size(generator, 4)
        simple = ex.simplify(size)
        for _ in range(4):
            values = {name: generator.choice([0, 1, 2, 3, 7, 64, 1000]) for name in "abc"}
            try:
                expected = ex.evaluate(size, values)
            except ZeroDivisionError:
                continue
            assert ex.evaluate(simple, values) == expected, f"{size} -> {simple} at {values}"
            checked += 1
    assert checked > 6000


def strided(size, kernel, stride, padding):
    """The size that a convolution gives."""
    return (size + 2 * padding - kernel) // stride + 1


@pytest.mark.parametrize("a, b", [
    (strided(strided(A, 3, 2, 1), 3, 2, 1), ex.ceildiv(A, 4)),
    (strided(strided(strided(A, 7, 2, 3), 3, 2, 1), 1, 4, 0), (A + 15) // 16),
    (strided(strided(strided(A, 4, 2, 1), 4, 2, 1), 4, 2, 1), A // 8),
    (A - A // 2, ex.ceildiv(A, 2)),
    (A // 3 + (A + 1) // 3 + (A + 2) // 3, A),
    (A + (4 - A % 4) % 4, ex.align_up(A, 4)),
    (A + (0 - A) % 4, ex.align_up(A, 4)),
    ((A + (32 - A % 32) % 32) * (B + (32 - B % 32) % 32), ex.align_up(A, 32) * ex.align_up(B, 32)),
    ((A * A + A) // 2 * 2, A * A + A),
    (ex.maximum(A, 5) // 2 // 3, ex.maximum(A, 5) // 6),
])  # fmt: skip
def test_sizes_that_are_proved_equal(a, b):
    assert ex.proved_equal(a, b) and not ex.proved_equal(a, b + 1) and (a == b)
    assert ex.proved_less_equal(a, b) and ex.proved_less_equal(b, a + 1)


def random_quotients(generator: random.Random, depth: int) -> Expr:
    if depth == 0 or generator.random() < 0.15:
        return generator.choice([A, A, B, constant(generator.randint(-4, 9))])
    op = generator.choice(["add", "sub", "mul", "floordiv", "floordiv", "ceildiv", "mod"])
    by = constant(generator.randint(1, 4)) if op in ("floordiv", "ceildiv", "mod") else random_quotients(generator, depth - 1)
    return Expr(op, [random_quotients(generator, depth - 1), by])


def test_what_is_proved_of_quotients_holds():
    """Sizes that differ anywhere are never equal, and both ways: few variables and small divisors
    leave no pair undecided that is equal."""
    generator = random.Random(kh.SEED + 2)
    print("seed", kh.SEED + 2)
    made = [random_quotients(generator, generator.randint(1, 3)) for _ in range(300)]
    points = [{"a": a, "b": b} for a in (0, 1, 2, 3, 5, 11, 24, 70, 1009) for b in (0, 1, 2, 7, 12, 999)]
    values = [[ex.evaluate(size, point) for point in points] for size in made]
    equal, less = 0, 0
    for i, a in enumerate(made):
        for j in generator.sample(range(len(made)), 25):
            if ex.proved_equal(a, made[j]):
                assert values[i] == values[j], f"{a} == {made[j]}"
                equal += i != j
            if ex.proved_less_equal(a, made[j]):
                assert all(x <= y for x, y in zip(values[i], values[j])), f"{a} <= {made[j]}"
                less += 1
    assert equal > 10 and less > 500


def test_small_quotients_of_one_size_are_all_decided():
    generator = random.Random(kh.SEED + 3)
    print("seed", kh.SEED + 3)
    by_values = {}
    for _ in range(1000):
        size = A
        for _ in range(generator.randint(1, 4)):
            size = Expr(generator.choice(["floordiv", "ceildiv"]), [size + generator.randint(-3, 3), constant(generator.randint(1, 3))])
        by_values.setdefault(tuple(ex.evaluate(size, {"a": a}) for a in range(200)), []).append(size)
    assert len(by_values) > 50
    for sizes in by_values.values():
        assert all(ex.proved_equal(sizes[0], other) for other in sizes)


def test_bounds_hold():
    generator = random.Random(kh.SEED + 1)
    print("seed", kh.SEED + 1)
    ranges = {"a": (0, 9), "b": (1, 5), "c": (3, 3)}
    for _ in range(2000):
        size = random_size(generator, 3)
        low, high = ex.bounds(size, ranges)
        for _ in range(5):
            values = {name: generator.randint(*bounds) for name, bounds in ranges.items()}
            try:
                value = ex.evaluate(size, values)
            except ZeroDivisionError:
                continue
            assert (low is None or low <= value) and (high is None or value <= high), f"{size} at {values}: {low}..{high}"


def test_equal_sizes_are_one_object_in_the_canonical_form():
    assert ex.simplify(A * B + C) == ex.simplify(C + B * A)
    assert hash(ex.simplify(A * B + C)) == hash(ex.simplify(C + B * A))
    assert not ex.proved_equal(A, B)


def test_the_truth_of_a_size_is_not_taken_by_accident():
    with pytest.raises(ValueError, match="not known while compiling"):
        if less(A, B):
            pass
    with pytest.raises(ValueError, match="not known while compiling"):
        assert A == B
    assert not ex.same(not_equal(A, B), logical_and(A, B)) and not ex.same(logical_and(A, B), logical_or(A, logical_not(B)))
