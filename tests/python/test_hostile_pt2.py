"""Exported programs of torch (.pt2) that somebody made to harm: no code of theirs runs, no file of
some kilobytes takes gigabytes, and each refusal is one line that names the file."""
from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

from accrt.compiler import IRError  # noqa: E402  - behind what skips without torch
from accrt.from_torch import convert  # noqa: E402  - behind what skips without torch
from apart import Apart  # noqa: E402  - behind what skips without torch
import rotation  # noqa: E402  - behind what skips without torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = rotation.SEED
WEIGHTS, CONSTANTS, MODEL = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json", "models/model.json"
mark: pathlib.Path  # a file that only code of an attacker makes


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self.register_buffer("b", torch.ones(4))
        self.c = torch.arange(4.0)

    def forward(self, x):
        return {"y": torch.relu(self.l(x) * self.b + self.c)[:, :2]}


def exported():
    file = io.BytesIO()
    torch.export.save(torch.export.export(Small(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=64)}}), file)
    return file.getvalue()


GOOD = exported()
with zipfile.ZipFile(io.BytesIO(GOOD)) as _good:
    ROOT_FOLDER = _good.namelist()[0].partition("/")[0]


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {mark}",)


class Odd:
    """Something that a file may have, and that is no tensor."""


def evil():
    return f"__import__('os').system('touch {mark}')"


def saved(item):
    file = io.BytesIO()
    torch.save(item, file)
    return file.getvalue()


def archive(change=None, more=(), compression=zipfile.ZIP_STORED, text=None):
    """The good file with changed members: {name: what makes new bytes of old ones; None: gone}."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(GOOD)) as old, zipfile.ZipFile(made, "w", compression) as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for info in old.infolist():
            name, data = info.filename.partition("/")[2], old.read(info)
            data = change[name](data) if change and name in change else data
            if data is not None:
                new.writestr(info.filename, data)
        for name, data in dict(more).items():
            new.writestr(f"{ROOT_FOLDER}/{name}", data)
    return made.getvalue()


def of_json(member, change, more=(), **others):
    def changed(data):
        value = json.loads(data)
        change(value)
        return json.dumps(value)

    return archive({member: changed, **others}, more)


def of_weight(about, **others):
    def change(value):
        value["config"]["l.bias"].update(about)
        value["config"]["l.bias"].setdefault("tensor_meta", None)

    return of_json(WEIGHTS, change, **others)


def of_meta(**meta):
    return of_json(WEIGHTS, lambda value: value["config"]["l.bias"]["tensor_meta"].update(meta))


def graph_of(value):
    return value["graph_module"]["graph"]


def of_expression(text):
    return of_json(MODEL, lambda value: graph_of(value)["tensor_values"]["x"]["sizes"][0]["as_expr"].update(expr_str=text))


def of_node(target, *args):
    def change(value):
        node = graph_of(value)["nodes"][3]
        node["target"], node["inputs"] = target, [{"name": "x", "arg": arg, "kind": 1} for arg in args]

    return of_json(MODEL, change)


def of_range(low, high):
    def change(value):
        for bounds in value["range_constraints"].values():
            bounds.update(min_val=low, max_val=high)

    return of_json(MODEL, change)


def renamed(old, new):
    return archive({MODEL: lambda data: data.replace(json.dumps(old).encode(), json.dumps(new).encode())})


def of_spec(module, name):
    def change(value):
        spec = json.loads(value["graph_module"]["module_call_graph"][0]["signature"]["out_spec"])
        about = {"default_factory_module": module, "default_factory_name": name, "dict_context": ["y"]}
        spec[1].update(type="collections.defaultdict", context=json.dumps(about))
        value["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps(spec)

    return of_json(MODEL, change)


def opaque(path, data):
    return of_json(CONSTANTS, lambda value: value["config"].update(e={"path_name": path, "is_param": False, "use_pickle": True, "tensor_meta": None}),
                   {f"data/constants/{path}": data})


def keyword(value):
    graph_of(value)["nodes"][3]["inputs"].append({"name": f"a={evil()}, b", "arg": {"as_int": 1}, "kind": 2})


def of_first(target, **args):
    """A node without inputs, whose result the file says to have 4 elements."""
    def change(value):
        graph = graph_of(value)
        node = json.loads(json.dumps(graph["nodes"][1]))
        node.update(target=target, name="evil", outputs=[{"as_tensor": {"name": "evil"}}], inputs=[{"name": key, "arg": arg, "kind": 1} for key, arg in args.items()])
        graph["tensor_values"]["evil"] = graph["tensor_values"]["b_b"]
        graph["nodes"][1]["inputs"][1]["arg"] = {"as_tensor": {"name": "evil"}}
        graph["nodes"].insert(0, node)

    return of_json(MODEL, change)


def of_file(path, shared):
    return of_first("torch.ops.aten.from_file.default", filename={"as_string": str(path)}, shared={"as_bool": shared}, size={"as_int": 4})


def and_decomposed(data):
    """With a node that torch decomposes, for which it goes through the whole graph."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        graph = json.loads(old.read(f"{ROOT_FOLDER}/{MODEL}"))
    graph_of(graph)["nodes"][4]["target"] = "torch.ops.aten.hardswish.default"
    return archive({MODEL: lambda _: json.dumps(graph)})


def hidden():
    """The evil directory is what a reader finds that looks for the last mark alone."""
    bad = archive({"data/sample_inputs/model.pt": lambda data: saved(((Evil(),), {}))})
    return GOOD[:-22] + GOOD[-22:-2] + len(bad).to_bytes(2, "little") + bad


#: What runs code where torch.export.load reads the file.
CODE = {
    "inputs": lambda: archive({"data/sample_inputs/model.pt": lambda data: saved(((Evil(),), {}))}),
    "inputs in old form": lambda: archive({"data/sample_inputs/model.pt": lambda data: pickle.dumps(((Evil(),), {}))}),
    "weight": lambda: of_weight({"use_pickle": True}, **{"data/weights/weight_1": lambda data: saved(Evil())}),
    "weight, yes": lambda: of_weight({"use_pickle": "yes"}, **{"data/weights/weight_1": lambda data: saved(Evil())}),
    "opaque": lambda: opaque("opaque_obj_0", pickle.dumps(Evil())), "custom": lambda: opaque("custom_obj_0", pickle.dumps(Evil())),
    "old weights": lambda: archive(more={"data/weights/model.pt": saved({"l.weight": Evil()})}),
    "old weights, listed": lambda: of_weight({"path_name": "model.pt"}, more={"data/weights/model.pt": saved({"l.weight": Evil()})}),
    "size": lambda: of_expression(evil()), "size in a call": lambda: of_expression(f"Max(1, {evil()})"),
    "size in a name": lambda: of_expression(f"Symbol('s77', positive={evil()})"), "size in a text": lambda: of_expression(f"Add(1, {evil()!r})"),
    "name of an input": lambda: renamed("x", f"x, y={evil()}"), "name of a value": lambda: renamed("add", f"add = {evil()}; add"),
    "name of an argument": lambda: of_json(MODEL, keyword),
    "operation": lambda: of_node("torch.serialization.os.system", {"as_string": f"touch {mark}"}),
    "operators": lambda: of_node("_operator.call", {"as_string": "x"}), "library": lambda: of_node("torch.ops.load_library", {"as_string": str(mark)}),
    "machine code": lambda: archive(more={"data/aotinductor/model/x.so": b"\x7fELF", "data/aotinductor/model/x_metadata.json": b"{}"}),
    "second directory": hidden, "module": lambda: of_spec("antigravity", "fly"),
    "reads a file": lambda: of_file("/etc/passwd", False), "writes a file": lambda: of_file(mark, True), "writes, decomposed": lambda: and_decomposed(of_file(mark, True)),
    "not exported": lambda: saved({"a": Evil()}),
}  # fmt: skip

#: What is damaged, or too much.
DAMAGED = {
    "deep": lambda: archive({MODEL: lambda data: "[" * 100000}), "no JSON": lambda: archive({MODEL: lambda data: b"\xff\xfe{"}),
    "no object": lambda: archive({MODEL: lambda data: b"[]"}), "no model": lambda: archive({MODEL: lambda data: None}),
    "bomb": lambda: archive({MODEL: lambda data: b" " * (64 << 20) + data}, compression=zipfile.ZIP_DEFLATED),
    "no bytes": lambda: of_json(WEIGHTS, lambda v: v["config"]["l.bias"]["tensor_meta"].update(sizes=[{"as_int": 1 << 33}]), **{"data/weights/weight_1": lambda data: b""}),
    "strides of 0": lambda: of_meta(sizes=[{"as_int": 1 << 33}], strides=[{"as_int": 0}]),
    "sizes that wrap": lambda: of_meta(sizes=[{"as_int": 1 << 62}] * 4, strides=[{"as_int": 0}] * 4),
    "negative": lambda: of_meta(sizes=[{"as_int": -4}]), "beyond": lambda: of_meta(strides=[{"as_int": 100}]), "offset": lambda: of_meta(storage_offset={"as_int": 1 << 60}),
    "type": lambda: of_meta(dtype=5), "no type": lambda: of_meta(dtype=99), "sizes": lambda: of_meta(sizes="x"), "shape": lambda: of_meta(sizes=[{"as_int": 2}]),
    "no entry": lambda: of_json(WEIGHTS, lambda v: v["config"].pop("l.bias")), "no member": lambda: archive({"data/weights/weight_1": lambda data: None}),
    "path": lambda: of_weight({"path_name": "../../../etc/passwd"}), "absolute": lambda: of_weight({"path_name": "/etc/passwd"}), "no path": lambda: of_weight({"path_name": 7}),
    "list": lambda: archive({WEIGHTS: lambda data: b"[]"}), "range": lambda: of_range(64, 2), "far": lambda: of_range(1 << 20, 1 << 21), "below": lambda: of_range(-5, -1),
    "powers": lambda: of_expression("9**9**9**9"), "Pow": lambda: of_expression("Pow(Pow(Pow(Integer(9), Integer(64)), Integer(64)), Integer(64))"),
    "shift": lambda: of_expression("LShift(Integer(1), Integer(99999999999))"), "factorial": lambda: of_expression("factorial(99999999)"),
    "digits": lambda: of_expression("9" * 5000), "float": lambda: of_expression("1e999999999"), "precision": lambda: of_expression("Float('0.1', precision=9999999999)"),
    "cycle": lambda: of_json(MODEL, lambda v: graph_of(v)["nodes"][0]["inputs"][0]["arg"].update(as_tensor={"name": "relu"})),
    "twice": lambda: archive(more={MODEL: "{}"}), "twice, other letters": lambda: archive(more={MODEL.upper(): "{}"}), "two models": lambda: archive(more={"models/other.json": "{}"}),
    "version": lambda: archive({"archive_version": lambda data: b"\xff"}), "cut": lambda: GOOD[: len(GOOD) * 2 // 3], "cut inside": lambda: GOOD[:2000] + GOOD[-1500:],
    "prefix": lambda: b"x" * 100 + GOOD, "suffix": lambda: GOOD + b"x" * 100, "empty": lambda: b"PK\5\6" + b"\0" * 18, "nothing": lambda: b"",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def marked(tmp_path_factory):
    global mark
    mark = tmp_path_factory.mktemp("mark") / "ran"


def refused(tmp_path, data):
    path = tmp_path / "model.pt2"
    path.write_bytes(data)
    begin = time.monotonic()
    with pytest.raises(ValueError) as caught:
        convert(path)
    assert time.monotonic() - begin < 60
    message = str(caught.value)
    assert not mark.exists(), "code of the file ran"
    assert str(path) in message or "no lowering" in message, message
    assert len(message) < 1000 and all(c.isprintable() or c == "\n" for c in message), message
    return message


def test_the_good_file_is_taken(tmp_path):
    (tmp_path / "model.pt2").write_bytes(GOOD)
    assert list(convert(tmp_path / "model.pt2").functions) == ["forward"]
    (tmp_path / "model.pt2").write_bytes(archive())  # as Python writes archives
    assert list(convert(tmp_path / "model.pt2").functions) == ["forward"]


@pytest.mark.parametrize("name", CODE)
def test_no_code_of_a_file_runs(tmp_path, name):
    message = refused(tmp_path, CODE[name]())
    assert message.count("\n") == ("no lowering for 1 operation" in message)
    assert "antigravity" not in sys.modules


def test_guards_of_a_file_do_not_run(tmp_path):
    """torch keeps conditions on inputs as texts, which a module of the program would execute."""
    (tmp_path / "model.pt2").write_bytes(of_json(MODEL, lambda value: value.update(guards_code=[f"{evil()} == 0"])))
    assert list(convert(tmp_path / "model.pt2").functions) == ["forward"] and not mark.exists()


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_line(tmp_path, capfd, name):
    message = refused(tmp_path, DAMAGED[name]())
    assert "no lowering" in message or message.count("\n") == 0
    assert capfd.readouterr().err.count("\n") <= 1, "torch's pages stay away"


def converted_apart(path):
    """In a process of its own."""
    try:
        convert(path)
    except ValueError as error:
        return str(error)
    return "taken"


@pytest.fixture(scope="module", name="apart")
def _apart(tmp_path_factory):
    good = tmp_path_factory.mktemp("good") / "model.pt2"
    good.write_bytes(GOOD)
    child = Apart("test_hostile_pt2:converted_apart", str(good))
    yield child
    child.end()


@pytest.mark.parametrize("target, args", [
    ("torch.ops.aten.full.default", {"size": {"as_ints": [1 << 31]}, "fill_value": {"as_float": 1.5}}), ("torch.ops.aten.arange.default", {"end": {"as_int": 1 << 30}}),
    ("torch.ops.aten._reshape_alias.default", {"self": {"as_tensor": {"name": "b_b"}}, "size": {"as_ints": [1 << 20]}, "stride": {"as_ints": [1]}}),
])  # fmt: skip
def test_constants_larger_than_the_file_says_are_not_made(apart, tmp_path, target, args):
    """What depends on constants alone is calculated while a model is converted."""
    path = tmp_path / "model.pt2"
    path.write_bytes(of_first(target, **args))
    said, seconds, peak = apart(str(path))
    assert said != "taken" and (str(path) in said or "no lowering" in said), said
    assert seconds < 60 and peak < 1 << 20, "KiB"


def test_ranges_beyond_all_sizes_end_at_the_maximum(tmp_path):
    for high in (1 << 70, None):
        (tmp_path / "model.pt2").write_bytes(of_range(2, high))
        assert [(s.minimum, s.maximum) for s in convert(tmp_path / "model.pt2", maximum=512).symbols.values()] == [(1, 512)]


def test_sizes_that_torch_writes_are_taken(tmp_path):
    """Each kind of expression in what torch.export writes is known."""
    class Sized(torch.nn.Module):
        def forward(self, x, z):
            n = x.shape[0]
            return x.new_zeros(n // 2 + 1, n * n), z.reshape(-1, 2)

    n = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Sized(), (torch.ones(6, 4), torch.ones(8)), dynamic_shapes={"x": {0: n}, "z": {0: 2 * torch.export.Dim("k", min=3, max=64)}})
    torch.export.save(program, tmp_path / "model.pt2")
    from accrt import _pt2_archive as checks

    with open(tmp_path / "model.pt2", "rb") as file:
        assert "expr_str" in checks.check(file)[0]


def test_every_function_of_torchs_sizes_is_known():
    """What torch can write into a size is let through."""
    import sympy
    from torch.utils._sympy import functions as f

    from accrt import _pt2_archive as checks

    s, u = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("u0", integer=True)
    for e in (s // 2, f.FloorDiv(s + u, 3), f.Mod(s, 4), f.PythonMod(u, 3), f.Max(s, u), f.Min(s, 3), sympy.Ne(s, 3), sympy.Eq(s, 3), sympy.And(s > 3, u < 4), sympy.Or(s >= 3, u <= 4),
              s**2, f.IntTrueDiv(s, 2), s * sympy.Rational(1, 2), s * sympy.Float(0.5), f.Where(s > 2, s, u), -s, sympy.Not(sympy.Eq(f.Mod(s, 2), 0)), f.CeilToInt(f.FloatTrueDiv(s, 2.0)),
              f.PowByNatural(s, 2), sympy.true, sympy.false, f.ModularIndexing(s, 2, 3), f.TruncToInt(f.ToFloat(s)), f.CleanDiv(s, 2), f.Identity(s), sympy.Integer(7)):  # fmt: skip
        for text in (sympy.printing.repr.srepr(e), str(e)):
            checks._check_expression("a model", text)


def test_a_tool_says_it_in_one_line(tmp_path):
    (tmp_path / "model.pt2").write_bytes(CODE["name of an input"]())
    for program in ("accrt.compiler", "accrt.from_torch"):
        ran = subprocess.run([sys.executable, "-m", program, "model.pt2", "-o", "model.accx"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")})  # fmt: skip
        assert ran.returncode == 1 and ran.stderr.count("\n") == 1 and "model.pt2: models/model.json" in ran.stderr, ran.stderr
    assert not mark.exists() and not (tmp_path / "model.accx").exists()


def places(value):
    found, rest = [], [value]
    while rest:
        item = rest.pop()
        pairs = list(item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ())
        found += [(item, key) for key, _ in pairs]
        rest += [part for _, part in pairs]
    return found


ODD = (None, -1, 0, 1, 1 << 62, 1 << 80, 1.5, float("nan"), "", "x", "s77", "torch.ops.aten.cat.default", "torch.ops.aten.view.default", "torch.ops.aten.sum.default", [], {}, [[]], True,
       {"as_int": 1 << 40}, {"as_tensor": {"name": "x"}}, {"as_none": True}, {"as_ints": [-1, 1 << 40]}, {"as_string": "\x1b[2J"})


def test_changed_graphs_are_refused_or_converted():
    """A hundred files with one or two values of their graph or lists changed."""
    chance = random.Random(SEED)
    rotation.seed()
    outcomes = {"taken": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.pt2")
        for at in range(int(os.environ.get("ACCRT_TEST_COUNT", "100"))):
            def change(value):
                for _ in range(chance.randrange(1, 3)):
                    item, key = chance.choice(places(value))
                    item[key] = chance.choice(ODD)

            path.write_bytes(of_json(chance.choice((MODEL, MODEL, MODEL, WEIGHTS)), change))
            begin = time.monotonic()
            try:
                convert(path)
                outcomes["taken"] += 1
            except (ValueError, IRError) as error:
                assert len(str(error)) < 2000 and all(c.isprintable() or c == "\n" for c in str(error)), (at, str(error))
                outcomes["refused"] += 1
            assert time.monotonic() - begin < 60, at
    assert min(outcomes.values()) > 0, outcomes


def test_a_trusted_file_is_given_as_a_program(tmp_path, monkeypatch):
    """The way that refusals name: torch reads it, and the program is taken."""
    monkeypatch.setattr(logging, "raiseExceptions", False)  # a line of torch's own log is wrong
    (tmp_path / "model.pt2").write_bytes(archive({"data/sample_inputs/model.pt": lambda data: saved(((torch.ones(3, 4),), {"o": Odd()}))}))
    with pytest.raises(ValueError, match=r"model.pt: not a pickle of tensors alone .*torch.export.load"):
        convert(tmp_path / "model.pt2")
    with torch.serialization.safe_globals([Odd]):
        assert convert(torch.export.load(tmp_path / "model.pt2")).functions
