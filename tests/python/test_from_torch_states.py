"""accrt.from_torch of models that write tensors: wherever a written tensor is kept, the function
begins with the value that it has before the export, and the export leaves the model as it was."""

from __future__ import annotations

import math
import random
from collections import deque

import numpy as np
import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt import _exporting
from accrt.from_torch import convert, Method

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

SEED = rotation.SEED
TARGETS = [kh.host_targets()[-1]]
START = random.Random(SEED).randint(1, 1000) / 8.0
OUTSIDE = torch.full((2,), START)


def begins():
    return torch.full((2,), START)


class Box:
    __slots__ = ("tensor",)

    def __init__(self):
        self.tensor = begins()


class Keeps(torch.nn.Module):
    """A model that keeps a tensor at one place of many, and writes to it in one way of several."""

    of_class = None

    def __init__(self, place, write):
        super().__init__()
        self.place, self.write = place, write
        self.register_buffer("buffer", begins())
        self.register_buffer("passing", begins(), persistent=False)
        self.attribute, self.listed, self.named = begins(), [[begins()]], {"a": begins()}
        self.box, self.queue, self.part = Box(), deque([begins()]), torch.nn.Module()
        self.part.tensor = begins()
        self.expanded = begins()[:1].expand(2)[:1]
        captured = begins()
        self.captured = lambda: captured

    def tensor(self):
        """The tensor at the place."""
        places = {
            "buffer": lambda: self.buffer, "passing": lambda: self.passing, "attribute": lambda: self.attribute, "listed": lambda: self.listed[0][0],
            "named": lambda: self.named["a"], "box": lambda: self.box.tensor, "queue": lambda: self.queue[0], "part": lambda: self.part.tensor,
            "captured": lambda: self.captured(), "outside": lambda: OUTSIDE, "of_class": lambda: self.of_class, "expanded": lambda: self.expanded,
        }  # fmt: skip
        return places[self.place]()

    def forward(self, x):
        if self.write == "assign" and self.place == "attribute":
            self.attribute += 1
        elif self.write == "assign" and self.place == "buffer":
            self.buffer = self.buffer + 1
        else:
            kept = self.tensor()
            {"add": lambda: kept.add_(1), "assign": lambda: kept.__iadd__(1), "part": lambda: kept[:1].mul_(2), "both": lambda: kept.add_(1).add_(x[:1])}[self.write]()
        return x + self.tensor()


PLACES = ("buffer", "passing", "attribute", "listed", "named", "box", "queue", "part", "captured", "outside", "of_class", "expanded")


@pytest.fixture(autouse=True)
def fresh():
    OUTSIDE.fill_(START)
    Keeps.of_class = begins()
    yield


def session_of(model, args, instance, **options):
    from accrt.compiler import compile

    return accrt.Program(accrt.Bundle(compile(convert(model, args, **options), targets=TARGETS), instance)).session()


def some(*shape):
    return torch.from_numpy(np.random.default_rng(SEED).standard_normal(shape).astype(np.float32))


def as_torch(model, session, name="forward", calls=3):
    """Each call gives what the model gives from where it stands."""
    for call in range(calls):
        x = some(2) + call
        wanted = model(x).detach()
        np.testing.assert_allclose(np.asarray(session[name](x.numpy())), wanted.numpy(), rtol=1e-6, err_msg=f"call {call}, seed {SEED}")


@pytest.mark.parametrize("write", ("add", "assign", "part", "both"))
@pytest.mark.parametrize("place", PLACES)
def test_it_begins_with_the_value_before_the_export(place, write, instance):
    if place == "expanded" and write != "add":
        pytest.skip("one element")
    model = Keeps(place, write).eval()
    session = session_of(model, (some(2),), instance)
    assert (model.tensor() == START).all(), f"the export has changed the model, seed {SEED}"
    as_torch(model, session)


def test_an_export_that_fails_leaves_the_model_as_it_was():
    class Fails(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = begins()

        def forward(self, x):
            self.count.add_(1)
            return x if x.sum() > 0 else -x

    model = Fails()
    with pytest.raises(accrt.from_torch.UnsupportedOperations):
        convert(model, (some(2),))
    assert (model.count == START).all()


class Holds(torch.nn.Module):
    """A model that reads none of the tensors that it keeps."""

    def __init__(self, kept):
        super().__init__()
        self.kept = [kept]

    def forward(self, x):
        return x + 1


def read_only(tmp_path):
    (tmp_path / "numbers").write_bytes(np.array([np.nan, START], np.float32).tobytes())
    return torch.from_numpy(np.memmap(tmp_path / "numbers", np.float32, "r"))


def of_inference(tmp_path):
    with torch.inference_mode():
        return torch.tensor([math.nan, START])


#: Tensors that torch cannot compare, copy or write, or that differ from themselves.
ODD = {
    "nan": lambda tmp_path: torch.tensor([math.nan, START]), "read-only": read_only, "inference": of_inference,
    "nan of bf16": lambda tmp_path: torch.tensor([math.nan], dtype=torch.bfloat16), "nan of f64": lambda tmp_path: torch.tensor([math.nan], dtype=torch.float64),
    "nan of f8": lambda tmp_path: torch.tensor([math.nan]).to(torch.float8_e5m2), "f4": lambda tmp_path: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "uint4": lambda tmp_path: torch.empty(4, dtype=torch.uint4), "bits8": lambda tmp_path: torch.empty(4, dtype=torch.bits8),
    "conjugate": lambda tmp_path: torch.ones(2, dtype=torch.complex64).conj(), "negative": lambda tmp_path: torch.ones(2, dtype=torch.complex64).conj().imag,
    "complex of f64": lambda tmp_path: torch.ones(2, dtype=torch.complex128), "empty": lambda tmp_path: torch.empty(0), "scalar": lambda tmp_path: torch.tensor(math.nan),
    "gradient": lambda tmp_path: torch.tensor([math.nan], requires_grad=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("kind", ODD)
def test_what_the_model_does_not_write_is_not_written(kind, tmp_path):
    tensor = ODD[kind](tmp_path)
    version = None if tensor.is_inference() else tensor._version
    convert(Holds(tensor), (some(2),))
    assert version is None or tensor._version == version


def test_buffers_of_the_model_are_not_copied():
    """torch traces with stand-ins of them, and they may be the weights of a quantized model."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2)).eval()
    model[1].register_buffer("table", begins())
    assert not list(_exporting._others(model))
    model[1].kept = model[1].table  # which torch does not see as the buffer
    assert [id(tensor) for tensor in _exporting._others(model)] == [id(model[1].table)]


def test_an_attribute_that_is_a_buffer_too_begins_as_before_the_export(instance):
    model = Keeps("buffer", "add").eval()
    model.same = [model.buffer]
    model.tensor = lambda: model.same[0]
    session = session_of(model, (some(2),), instance)
    assert (model.buffer == START).all()
    as_torch(model, session)


class Counts(torch.nn.Module):
    """Methods of one model: two write a tensor, one reads it, one writes another one, and one of
    the containers is a list, so that torch numbers both."""

    def __init__(self, method, kept=None):
        super().__init__()
        self.method, self.kept = method, kept or ([begins()], [begins() * 2])

    def forward(self, x):
        return getattr(self, self.method)(x)

    def one(self, x):
        self.kept[0][0].add_(1)
        return x + self.kept[0][0]

    def two(self, x):
        self.kept[0][0].mul_(2)
        return x + self.kept[0][0]

    def read(self, x):
        return x * self.kept[0][0]

    def other(self, x):
        self.kept[1][0].add_(3)
        return x + self.kept[1][0]


def test_methods_share_what_they_write(instance):
    """In any order: functions that keep one tensor have one state, and others have their own."""
    first = Counts("one")
    models = {name: first if name == "one" else Counts(name, first.kept) for name in ("one", "two", "read", "other")}
    names = list(models)
    random.Random(SEED).shuffle(names)
    session = session_of({name: Method(models[name], (some(2),)) for name in names}, (), instance)
    assert [float(tensor[0][0]) for tensor in first.kept] == [START, START * 2], names
    for name in names * 2 + names[::-1]:
        as_torch(models[name], session, name, 1)


@pytest.mark.parametrize("form", ["program", "file"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("place", ("buffer", "passing", "attribute", "listed", "outside"))
def test_a_program_begins_with_what_it_has(place, strict, form, instance, tmp_path):
    """What a program of the caller has is what it begins with, as its own module does: of buffers
    and with strict=True the model's value, else perhaps a later one."""
    model = Keeps(place, "add").eval()
    program = torch.export.export(model, (some(2),), strict=strict)
    torch.export.save(program, tmp_path / "kept.pt2")
    session = session_of(program if form == "program" else tmp_path / "kept.pt2", (), instance)
    again = torch.export.load(tmp_path / "kept.pt2").module()
    as_torch(again, session)
    if strict or place in ("buffer", "passing"):
        model = Keeps(place, "add").eval()
        OUTSIDE.fill_(START)
        as_torch(model, session_of(program if form == "program" else tmp_path / "kept.pt2", (), instance))


def test_programs_number_their_constants_apart(instance, tmp_path):
    """Two files have a constant of one number each, which are not one."""
    for name in ("one", "other"):
        torch.export.save(torch.export.export(Counts(name), (some(2),), strict=False), tmp_path / f"{name}.pt2")
    session = session_of({name: tmp_path / f"{name}.pt2" for name in ("one", "other")}, (), instance)
    one, other = (torch.export.load(tmp_path / f"{name}.pt2").module() for name in ("one", "other"))
    for model, name in ((one, "one"), (other, "other"), (one, "one"), (other, "other")):
        as_torch(model, session, name, 1)
