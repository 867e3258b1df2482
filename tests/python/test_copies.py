"""copy, copy.deepcopy and pickle of what users hold: each works, or is one line that says what to
do. What torch's own venv has is in test_torch_modules.py and test_torch_operators.py."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import accrt
import rotation
from accrt import bundle_reader
from accrt.compiler import compile, Module
from accrt.compiler import expr as ex

pytestmark = pytest.mark.quick_kernels

KERNEL = """
int32_t twice(const accrt_kernel_environment_t* environment, const accrt_kernel_dispatch_t* dispatch, const accrt_kernel_workgroup_t* workgroup) {
  const twice_params_t* p = dispatch->params;
  p->y[0] = 2 * p->x[0];
  return 0;
}
"""
WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


def module(weight):
    m = Module("copied")
    n = m.symbol("n", maximum=64)
    w = m.constant("w", weight)
    f = m.function("forward")
    x = f.input("x", "f32", [n, 4])
    f.result("y", x @ f.constant(w) + 1.0)
    f.result("size", f.full([], n * 2 + 1, "i64"))
    return m


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(rotation.seed()).standard_normal((4, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory, weight):
    path = tmp_path_factory.mktemp("copies") / "m.accx"
    compile(module(weight), path)
    return path


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copied_module_compiles_to_the_same_bundle(tmp_path, path, weight, way):
    copied = WAYS[way](module(weight))
    compile(copied, tmp_path / "m.accx")
    assert (tmp_path / "m.accx").read_bytes() == path.read_bytes()


def test_a_copied_module_is_apart_from_the_first(tmp_path, path, weight):
    first = module(weight)
    second = copy.deepcopy(first)
    function = second.functions["forward"]
    function.result("more", function.results[0].value * 2.0)
    compile(first, tmp_path / "m.accx")
    assert (tmp_path / "m.accx").read_bytes() == path.read_bytes() and len(function.results) == 3


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_the_operations_of_a_copied_module_may_be_many(way):
    """Each is made of the one before: a limit of Python's ends what goes from one to the next."""
    m = Module("long")
    f = m.function("forward")
    x = f.input("x", "f32", [4])
    for _ in range(20_000):
        x = x + 1.0
    f.result("y", x)
    assert len(WAYS[way](m).functions["forward"].body.ops) == len(f.body.ops) >= 20_000


@pytest.mark.parametrize("way", WAYS)
def test_sizes_are_copied(way):
    n = ex.symbol("n")
    for size in (n, n * 2 + 1, ex.maximum(n, ex.ceildiv(n, 3))):
        copied = WAYS[way](size)
        assert ex.same(copied, size) and hash(copied) == hash(size)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_read_is_copied(path, way):
    first = bundle_reader.read(path)
    copied = WAYS[way](first)
    assert bytes(copied.data(copied.constants["w"])) == bytes(first.data(first.constants["w"])) and copied.functions == first.functions


def test_objects_of_this_process_say_so(path, tmp_path, monkeypatch):
    session = accrt.load(path)
    kernel = accrt.Kernel.from_c(KERNEL, "twice", [("x", "read f32"), ("y", "write f32")], grid=lambda v: 1)
    x = np.ones((1, 4), np.float32)
    llm = object.__new__(accrt.LLM)
    for item, name in ((session, "a Session"), (session.forward, "a Function"), (session.forward.bind(x), "a Call"), (kernel, "a Kernel"), (llm, "an LLM")):
        for way in ("deepcopy", "pickle"):
            with pytest.raises(TypeError, match=f"^{name} is a handle of this process: it can be neither copied nor pickled; another process makes its own$"):
                WAYS[way](item)
    # a function has nothing of its own that a copy could change
    assert copy.copy(session.forward)(x)[0].numpy().shape == (1, 4)
    with pytest.raises(TypeError, match="^a Kernel is a handle"):
        copy.copy(kernel)
    y = np.zeros(1, np.float32)
    kernel(x[0, :1].copy(), y)
    assert y[0] == 2
