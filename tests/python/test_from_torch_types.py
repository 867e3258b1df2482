"""Types that bundles do not have are refused by name, wherever a tensor of one is, in the one list;
the tables of docs/from-torch.md and docs/from-onnx.md have every type of torch and of ONNX."""

from __future__ import annotations

import pathlib
import re

import pytest

from accrt.from_onnx.values import DTYPES as ONNX_TYPES
from accrt.from_torch import convert, UnsupportedOperations
from accrt.from_torch.values import DTYPES

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
REFUSED = ("complex64", "float8_e4m3fn")


class Uses(torch.nn.Module):
    """A tensor of a type in one role."""

    def __init__(self, dtype, role):
        super().__init__()
        self.dtype, self.role = dtype, role
        self.register_buffer("kept", torch.ones(4).to(dtype))
        self.lifted = torch.ones(4).to(dtype)

    def forward(self, x, y):
        return {
            "input": lambda: x + y.float(), "unused input": lambda: x * 2, "buffer": lambda: x + self.kept.float() * x, "attribute": lambda: self.lifted + y,
            "written buffer": lambda: (self.kept.copy_(y), x * 2)[1], "cast": lambda: x.to(self.dtype).to(torch.float32), "made": lambda: torch.full_like(x, 1, dtype=self.dtype),
            "result": lambda: (x * 2, self.kept), "calculated result": lambda: (x * 2, torch.ones(4).to(self.dtype)), "number": lambda: (x * 2, torch.tensor(1).to(self.dtype)),
        }[self.role]()  # fmt: skip


ROLES = ("input", "unused input", "attribute", "written buffer", "cast", "made", "result", "calculated result", "number")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REFUSED)
def test_types_are_refused_by_name(name, role):
    if (name, role) == ("complex64", "cast"):
        pytest.skip("complex numbers within a function are two tensors")
    dtype = getattr(torch, name)
    needs = role in ("input", "unused input", "attribute", "written buffer")
    args = (torch.ones(4), torch.ones(4).to(dtype) if needs else torch.ones(4))
    try:
        torch.export.export(Uses(dtype, role), args, strict=False)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        pytest.skip(f"torch itself does not: {str(error).splitlines()[0][:80]}")
    with pytest.raises(UnsupportedOperations) as caught:
        convert(Uses(dtype, role), args)
    said = str(caught.value)
    assert f"tensors of {name}, which bundles do not have" in said, said


def test_what_is_cast_at_compile_time_needs_no_type():
    """A table of 8-bit floats that the model casts is a table of the type that it casts to."""
    module = convert(Uses(torch.float8_e4m3fn, "buffer"), (torch.ones(4), torch.ones(4)))
    assert {c.type.dtype for c in module.constants.values()} <= {"f32"}


def rows(page, heading):
    """The first two columns of the table behind a heading."""
    section = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {name: line[1].strip().strip("`") for line in lines for name in re.findall(r"`(\w+)`", line[0])}


def test_the_page_has_every_type_of_torch():
    listed = rows("from-torch.md", "Types")
    every = {str(t).rpartition(".")[2] for t in vars(torch).values() if isinstance(t, torch.dtype)}
    every = {t for t in every if not t.startswith(("q", "bits")) and not re.match(r"u?int[1-7]$", t)}
    covered = {name: ours for name, ours in listed.items() if ours != "refused"}
    assert covered == DTYPES
    assert every <= set(listed), sorted(every - set(listed))


def test_the_page_has_every_type_of_onnx():
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    listed = rows("from-onnx.md", "Types")
    assert {name: ours for name, ours in listed.items() if ours != "refused"} == ONNX_TYPES
    assert {n for n in onnx.TensorProto.DataType.keys() if n != "UNDEFINED"} <= set(listed)


@pytest.mark.parametrize("name", ["COMPLEX64", "STRING", "FLOAT8E4M3FN"])
@pytest.mark.parametrize("role", ["input", "constant", "cast"])
def test_types_of_onnx_are_refused_by_name(role, name):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import helper
    from accrt.from_onnx import convert as from_onnx

    code, one = getattr(onnx.TensorProto, name), onnx.TensorProto.FLOAT
    if role != "input" and name != "FLOAT8E4M3FN":
        pytest.skip("as an input")
    x, y = helper.make_tensor_value_info("x", code if role == "input" else one, [4]), helper.make_tensor_value_info("y", code, [4])
    nodes = {"input": [helper.make_node("Identity", ["x"], ["y"])], "constant": [helper.make_node("Add", ["z", "w"], ["y"])], "cast": [helper.make_node("Cast", ["x"], ["y"], to=code)]}
    z = [helper.make_tensor(n, code, [4], [1, 2, 3, 4]) for n in "zw"] if role == "constant" else []
    graph = helper.make_graph(nodes[role], "g", [x], [y], z)
    with pytest.raises(UnsupportedOperations) as caught:
        from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    said = str(caught.value).lower()
    assert f"tensors of {name.lower()}, which bundles do not have" in said, said


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_where_of_a_scalar_and_a_tensor_without_dimensions_has_the_tensors_type(kind):
    """Its mask is of 16 bits, as in MPNet: the product behind it was of two types, and refused."""
    class Masked(torch.nn.Module):
        def forward(self, x, keep):
            low = torch.where(keep, torch.zeros((), dtype=x.dtype), -1.0)
            return torch.matmul(x + low, x), torch.where(keep, 2.0, torch.zeros((), dtype=x.dtype))

    x, keep = torch.ones(3, 3, dtype=kind), torch.tensor([True, False, True])
    made = convert(Masked(), (x, keep)).functions["forward"]
    assert {result.value.dtype for result in made.results} == {DTYPES[str(kind).rpartition(".")[2]]}
