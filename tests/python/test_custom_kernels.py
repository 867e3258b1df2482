"""accrt.Kernel: from C source, packs and modules; called directly; in a bundle; and
examples/custom_kernel with its guide."""
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import accrt
from accrt.compiler import Interpreter, IRError, Module, TensorType, compile
from accrt.compiler.kernels import image
import rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/custom_kernel"
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so")).resolve()
CUBE = """
int32_t cube(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e;
  const cube_params_t* p = d->params;
  const int64_t first = (int64_t)w->workgroup_id[0] * 256, last = first + 256 < p->n ? first + 256 : p->n;
  if (p->n == 77) return 7;
  for (int64_t i = first; i < last; i++) p->y[i] = p->scale * p->x[i] * p->x[i] * p->x[i];
  return 0;
}
"""
PARAMETERS = [("x", "read f32"), ("y", "write f32"), ("n", "symbol"), ("scale", "f32")]


def blocks_of(v):
    return (v["n"] + 255) // 256


@pytest.fixture(scope="module")
def cube(instance):
    return accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, blocks_of, instance=instance)


def ones(n=1000):
    return np.full(n, 2, np.float32), np.zeros(n, np.float32)


def test_called_directly(cube):
    x, y = ones()
    assert cube(x, y, 1000, 0.5) is None and (y == 4).all()
    cube(x, y, scale=1, n=999)  # by name, and a whole number for a float
    assert (y[:999] == 8).all() and y[999] == 4
    cube(x, y, 1000, 2.0, grid=1)
    assert (y[:256] == 16).all() and (y[256:999] == 8).all()
    cube(x[:0], y[:0], 0, 2.0)  # nothing to do
    assert cube.definition.name == "cube" and [p.dtype for p in cube.definition.params] == ["f32", "f32", "i64", "f32"]


def test_on_a_stream_it_is_not_waited_for_and_keeps_its_arrays(cube, device):
    stream, gate, y = accrt.Stream(device), accrt.Semaphore(device.instance), np.zeros(300_000, np.float32)
    stream.wait(gate, 1)
    # the array is dropped here
    cube(np.full(300_000, 3, np.float32), y, 300_000, 1.0, stream=stream)
    assert (y == 0).all()
    gate.signal(1)
    stream.synchronize(timeout=30)
    assert (y == 27).all()


def test_from_threads(cube):
    def work(seed):
        x, y = np.full(5000, seed, np.float32), np.zeros(5000, np.float32)
        for _ in range(20):
            cube(x, y, 5000, 1.0)
        results[seed] = (y == seed ** 3).all()

    results = {}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(1, 5), True)


class Elsewhere:
    """A tensor on a GPU that is not here."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **named):
        raise AssertionError("nobody may ask for it")


def test_wrong_arguments_are_one_line_before_anything_runs(cube):
    x, y = ones(8)
    shifted = np.frombuffer(bytearray(4 * 8 + 1), np.uint8)[1:].view(np.float32)
    fixed = y.copy()
    fixed.flags.writeable = False
    for wrong, error, text in (
            ((x, y, 8), TypeError, r"kernel cube takes 4 arguments \(x, y, n, scale\), scale is missing"),
            ((x, y, 8, 1.0, 5), TypeError, "takes 4 arguments .*, 5 were given"),
            ((x.astype(np.float64), y, 8, 1.0), TypeError, "x has elements of type f64, and the kernel takes f32"),
            ((x, y.view(np.int32), 8, 1.0), TypeError, "y has elements of type i32, and the kernel takes f32"),
            ((x, shifted, 8, 1.0), ValueError, "y: its address is no multiple of the 4 bytes of f32"),
            ((x[::2], y, 4, 1.0), ValueError, "x: strides are"),
            ((x, fixed, 8, 1.0), ValueError, "y is written, and the array is read-only"),
            ((x, [1.0], 8, 1.0), TypeError, "kernel cube: y: list is not a tensor"),
            ((x, None, 8, 1.0), accrt.InvalidArgumentError, "'y' is not optional"),
            ((Elsewhere(), y, 8, 1.0), ValueError, "kernel cube: x lies on a GPU, and the kernel runs on host:0"),
            ((x, y, 8.5, 1.0), TypeError, "n is 8.5, expected a number of type i64"),
            ((x, y, 1 << 63, 1.0), OverflowError, "n is 9223372036854775808, which does not fit i64"),
            ((x, y, 8, "1"), TypeError, "scale is '1', expected a number of type f32"),
            ((x, y, 8, 1e300), OverflowError, "scale is 1e\\+300, which does not fit f32")):
        with pytest.raises(error, match=text) as told:
            cube(*wrong)
        assert "\n" not in str(told.value)
    for named, text in (({"m": 1}, "none is named 'm'"), ({"x": x, "n": 8, "scale": 1.0}, "x was given twice"),
                        ({"n": 8, "scale": 1.0, "grid": "a"}, "grid"), ({"n": 8, "scale": 1.0, "grid": (1, 1, 1, 1)}, "1 to 3 whole numbers"),
                        ({"n": 8, "scale": 1.0, "grid": 0}, "each size is 1 or more")):
        with pytest.raises((TypeError, ValueError), match=text):
            cube(x, y, **named)
    assert (y == 0).all()


def test_what_a_kernel_returns_is_an_error_and_the_next_call_is_fine(cube):
    x, y = ones()
    with pytest.raises(accrt.KernelError, match="'cube' returned 7"):
        cube(x, y, 77, 1.0)
    cube(x, y, 1000, 1.0)
    assert (y == 8).all()


def test_declarations_that_are_wrong(instance):
    for parameters, error, text in (("x", TypeError, "expected .name, type. pairs"), ([("x", "f33")], ValueError, "'f33', expected"),
                                    ([("x", "read"), ("x", "read")], ValueError, "there twice"), ([("x y", "read")], ValueError, "no name in C"),
                                    ([("x", "bf16")], ValueError, "no 16-bit float"), (["x"], TypeError, r"expected \(name, type\)")):
        with pytest.raises(error, match=text):
            accrt.Kernel.from_c(CUBE, "cube", parameters, blocks_of, instance=instance)
    with pytest.raises(TypeError, match="grid is"):
        accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, (1, 1, 1), instance=instance)
    with pytest.raises(ValueError, match="entry="):
        accrt.Kernel.from_c(CUBE, "my.cube", PARAMETERS, blocks_of, instance=instance)
    with pytest.raises(image.ImageError, match="cube:5:.*no member named"):
        accrt.Kernel.from_c(CUBE, "cube", PARAMETERS[:2], blocks_of, instance=instance)
    with pytest.raises(FileNotFoundError):
        accrt.Kernel.from_c("none.c", "cube", PARAMETERS, blocks_of, instance=instance)


def test_a_grid_that_asks_for_what_is_no_parameter(instance):
    wrong = accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, lambda v: v["rows"], instance=instance)
    names = [name for name, kind in PARAMETERS if not kind.startswith(("read", "write"))]
    with pytest.raises(KeyError, match=f"kernel cube: grid asks for 'rows'; it gets {', '.join(names)}"):
        wrong(np.ones(8, np.float32), np.ones(8, np.float32), 8, 1.0)


@pytest.mark.parametrize("body, first", [("retrun 0;", "error: "), ("puts(0); return 0;", "undefined reference|undefined symbol|implicit declaration"),
                                         ("int puts(const char*); puts(0); return 0;", "undefined reference|undefined symbol")])  # fmt: skip
def test_what_the_compiler_says_comes_before_its_command(instance, body, first):
    source = "int32_t cube(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {\n  (void)e, (void)d, (void)w;\n  " + body + "\n}\n"
    with pytest.raises(image.ImageError) as caught:
        accrt.Kernel.from_c(source, "cube", PARAMETERS, blocks_of, instance=instance)
    said, _, command = str(caught.value).rpartition("\nthe command was: ")
    assert re.search(first, said) and "-shared" not in said and "-O3" not in said and command.split()[0]
    if "undefined" in said:
        assert "a kernel has no C library" in said


TAKES = ("const accrt_kernel_environment_t* e", "const accrt_kernel_dispatch_t* d", "const accrt_kernel_workgroup_t* w")


def wrong_functions(seed):
    """Functions that are no kernel's, each with what an error has to quote: parameters of another
    order, number and type, and other results."""
    chosen = random.Random(seed)
    others = ("int x", "const float* x, int64_t n", "void", "float* p", "const cube_params_t* p")
    orders = [order for order in itertools.permutations(TAKES) if order != TAKES]
    takes = [", ".join(part) for part in (*chosen.sample(orders, 3), TAKES[:chosen.randrange(1, 3)], (*TAKES, "int q"), (*TAKES, "void* q"))]
    for parameters in (*others, *takes):
        yield f"int32_t cube({parameters})", "{ return 0; }"
    for result in ("int64_t", "float", "uint32_t"):
        yield f"{result} cube({', '.join(TAKES)})", "{ return 0; }"
    yield f"void cube({', '.join(TAKES)})", "{ }"


def test_a_function_with_other_parameters_than_a_kernels_does_not_compile(instance):
    for head, body in wrong_functions(rotation.seed()):
        with pytest.raises(image.ImageError) as caught:
            accrt.Kernel.from_c(f"/* cube(x) {{ */\n{head} {body}\n", "cube", PARAMETERS, blocks_of, instance=instance)
        first = str(caught.value).splitlines()[0]
        assert first.startswith("kernel cube: ") and f"`{head}`" in first and "dispatch->params" in first, (head, str(caught.value))
        assert f"`int32_t cube({', '.join(part[:-2] for part in TAKES)})`" in first and "x, y, n, scale" in first
    good = f"inline int32_t cube({', '.join(TAKES)}) {{ (void)e, (void)d, (void)w; return 0; }}\n"
    accrt.Kernel.from_c(good, "cube", PARAMETERS, blocks_of, instance=instance)


@pytest.mark.parametrize("body, text", [("const double* x = p->x; return x[0] > 0;", "incompatible"), ("int64_t* y = p->y; *y = 0; return 0;", "incompatible"),
                                        ("float* n = p->n; return *n > 0;", "int-conversion"), ("p->y[0] = 1;", "return-type")])  # fmt: skip
def test_pointers_of_another_type_than_declared_do_not_compile(instance, body, text):
    with pytest.raises(image.ImageError) as caught:
        accrt.Kernel.from_c(f"int32_t cube({', '.join(TAKES)}) {{ const cube_params_t* p = d->params; {body} }}", "cube", PARAMETERS, blocks_of, instance=instance)
    assert text in str(caught.value).partition("\nthe command was: ")[0]


@pytest.mark.parametrize("source, text", [
    (f"int32_t cubic({', '.join(TAKES)}) {{ return 0; }}\nstatic int half(int v) {{ if (v) {{ return v; }} return 0; }}\n",
     "kernel cube: the source has no function cube; it has cubic, half: give entry="),
    ("int none;\n", "kernel cube: the source has no function cube: give entry="),
    (f"int32_t cubic({', '.join(TAKES)}) {{ const cubic_params_t* p = d->params; return p->n != 0; }}\n",
     "kernel cube: the source has no function cube; it has cubic: give entry="),
    (f"int32_t cube({', '.join(TAKES)}) {{ const cub_params_t* p = d->params; return p->n != 0; }}\n",
     "kernel cube: the source names cub_params_t, and the parameters of cube are cube_params_t"),
    (f"int32_t cube({', '.join(TAKES)}) {{ return ((const cub_params_t*)d->params)->n != 0; }}\n",
     "kernel cube: the source names cub_params_t, and the parameters of cube are cube_params_t"),
    ("\n", "kernel cube: the source has no function cube: give entry="),
    (f"static int32_t cube({', '.join(TAKES)}) {{ return 0; }}\n", "kernel cube: the function cube is static"),
])  # fmt: skip
def test_a_missing_function_is_said_ahead_of_what_the_linker_says(instance, source, text):
    with pytest.raises(image.ImageError) as caught:
        accrt.Kernel.from_c(source, "cube", PARAMETERS, blocks_of, instance=instance)
    assert str(caught.value).startswith(text) and "unrecognized command-line option" not in str(caught.value)


@pytest.mark.parametrize("source, error, text", [("", ValueError, "source is empty"), ("none.c", FileNotFoundError, "no such file"),
                                                 ("int none;", FileNotFoundError, "C text has a line break or a brace"),
                                                 (pathlib.Path("no/none.c"), FileNotFoundError, "no such file"), ("/", OSError, "not a regular file"),
                                                 ("a" * 5000, OSError, "name too long"), ("a\0.c", ValueError, "null")])  # fmt: skip
def test_sources_that_are_not_there(instance, source, error, text):
    for make in (accrt.Kernel.from_c, accrt.Kernel.from_cuda):
        with pytest.raises(error, match=f"(?i){text}"):
            make(source, "cube", PARAMETERS, blocks_of, instance=instance)


@pytest.mark.parametrize("word", ["int", "return", "const", "register"])
def test_words_of_c_are_no_names(instance, word):
    with pytest.raises(ValueError, match=f"parameter '{word}' is no name in C"):
        accrt.Kernel.from_c(CUBE, "cube", [(word, "read f32")], blocks_of, instance=instance)
    with pytest.raises(ValueError, match=f"its entry is '{word}', which is no name in C"):
        accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, blocks_of, entry=word, instance=instance)


def test_all_types_have_their_place_in_the_struct(instance):
    types = {"a": "i8", "b": "f64", "c": "bool", "d": "u16", "e": "i32", "f": "u64", "g": "f32", "out": "write f64"}
    adds = " + ".join(f"(double)p->{name}" for name in types if name != "out")
    text = CUBE.split("{")[0].replace("cube", "sum") + "{ (void)e; (void)w; const sum_params_t* p = d->params; *p->out = %s; return 0; }\n" % adds
    kernel, out = accrt.Kernel.from_c(text, "sum", types, lambda v: 1, instance=instance), np.zeros(1)
    kernel(-3, 0.25, True, 500, -70000, 1 << 40, 0.5, out)
    assert out[0] == -3 + 0.25 + 1 + 500 - 70000 + (1 << 40) + 0.5


def test_the_cache_sees_a_change_of_what_is_included(instance, tmp_path):
    (tmp_path / "one.c").write_text('#include "add.h"\n' + CUBE.replace("p->scale *", "ADD +"))
    found = []
    for value in (1, 2):
        (tmp_path / "add.h").write_text(f"#define ADD {value}\n")
        kernel = accrt.Kernel.from_c(tmp_path / "one.c", "cube", PARAMETERS, blocks_of, instance=instance)
        x, y = ones(4)
        kernel(x, y, 4, 0.0)
        found.append(y[0])
    assert found == [9, 10]


def test_many_processes_compile_it_at_once(tmp_path):
    program = (f"import accrt, numpy as np\nk = accrt.Kernel.from_c({CUBE!r}, 'cube', {PARAMETERS!r}, lambda v: (v['n'] + 255) // 256)\n"
               "x, y = np.full(9, 2, np.float32), np.zeros(9, np.float32)\nk(x, y, 9, 1.0)\nassert (y == 8).all()\n")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), XDG_CACHE_HOME=str(tmp_path))
    running = [subprocess.Popen([sys.executable, "-c", program], env=env, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for one in running:
        _, errors = one.communicate(timeout=300)
        assert one.returncode == 0, errors
    left = [p for p in (tmp_path / "accrt/kernels").rglob("*") if p.is_file()]
    assert left and all(re.fullmatch("[0-9a-f]{64}", p.name) for p in left)


def test_in_a_bundle(cube, instance):
    m = Module("mine")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("cubes")
    (y,) = f.kernel(cube, [f.input("x", "f32", [n])], [TensorType("f32", (n,))], reference=lambda x, n, scale: scale * x ** 3, n=n, scale=2.0)
    f.result("y", y + 1.0)
    session = accrt.Program(accrt.Bundle(compile(m, targets=image.available_targets()[0][:1]), instance)).session()
    x = np.arange(200, dtype=np.float32)  # exact in float32
    assert (session.cubes(x).numpy() == 2 * x ** 3 + 1).all() and session.cubes(x[:0]).shape == (0,)
    assert (np.asarray(Interpreter(m).run("cubes", x)[0]) == 2 * x.astype(np.float64) ** 3 + 1).all()


def test_what_does_not_fit_in_a_bundle_is_said_by_name(cube, instance):
    m = Module("mine")
    f = m.function("f")
    x = f.input("x", "f64", [8])
    with pytest.raises(IRError, match="'cube' takes x as f32, and it is f64"):
        f.kernel(cube, [x], [TensorType("f32", (8,))], n=8, scale=1.0)
    both = accrt.Kernel.from_c(CUBE, "cube", [("x", "read f32"), ("y", "read_write f32"), *PARAMETERS[2:]], blocks_of, instance=instance)
    with pytest.raises(IRError, match="reads and writes .'y'., and values of a program do not change: give it a state there"):
        f.kernel(both, [x.to_copy("f32"), x.to_copy("f32")], [], n=8, scale=1.0)


@pytest.mark.parametrize("values, text", [
    ({"n": float("nan")}, "n is nan, expected an integer .i64. or an expression"), ({"n": 8.0}, "n is 8.0, expected an integer"),
    ({"n": float("inf")}, "n is inf, expected an integer"), ({"n": True}, "n is True, expected an integer"), ({"n": 1 << 63}, "n is .*, which does not fit i64"),
    ({"n": "8"}, "n is '8', expected a number"), ({"n": None}, "n is None, expected a number"), ({"k": 1 << 31}, "k is 2147483648, which does not fit i32"),
    ({"k": -1.5}, "k is -1.5, expected an integer .i32."), ({"u": -1}, "u is -1, which does not fit u8"), ({"u": 256}, "u is 256, which does not fit u8"),
])  # fmt: skip
def test_numbers_that_a_kernel_does_not_take_are_refused_where_they_are_given(instance, values, text):
    takes = [("x", "read f32"), ("y", "write f32"), ("n", "symbol"), ("k", "i32"), ("u", "u8"), ("scale", "f32")]
    kernel = accrt.Kernel.from_c(f"int32_t f({', '.join(TAKES)}) {{ (void)e, (void)d, (void)w; return 0; }}", "f", takes, lambda v: 1, instance=instance)
    m = Module("numbers")
    f = m.function("f")
    x = f.input("x", "f32", [8])
    good = {"n": np.int64(8), "k": np.int32(-3), "u": 255, "scale": float("nan")}
    assert len(f.kernel(kernel, [x], [TensorType("f32", (8,))], **good)) == 1
    with pytest.raises(IRError, match=f"function 'f', kernel 'f': {text}"):
        f.kernel(kernel, [x], [TensorType("f32", (8,))], **{**good, **values})


def test_truth_values_that_are_none_are_refused(instance):
    kernel = accrt.Kernel.from_c(f"int32_t f({', '.join(TAKES)}) {{ (void)e, (void)w; const f_params_t* p = d->params; p->y[0] = p->on; return 0; }}", "f",
                                 [("y", "write u8"), ("on", "bool")], lambda v: 1, instance=instance)
    for value in (True, False, 1, 0, np.bool_(True), np.bool_(False), np.int64(1), np.array(True)):
        y = np.full(1, 9, np.uint8)
        kernel(y, value)
        assert y[0] == bool(value)
    for value in ("no", "", None, 2, -1, 1.0, float("nan"), [], np.float32(1), b"1"):
        with pytest.raises(TypeError, match="kernel f: on is .*, expected a number of type bool"):
            kernel(np.zeros(1, np.uint8), value)


@pytest.mark.parametrize("found", [(), (1, 2, 3, 4), None, 1.5, float("nan"), "1", -1, 1 << 32])
def test_what_a_grid_function_gives_is_checked(instance, found):
    kernel = accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, lambda v: found, instance=instance)
    with pytest.raises((TypeError, ValueError, OverflowError), match="kernel cube: grid is"):
        kernel(*ones(8), 8, 1.0)


@pytest.mark.parametrize("flags", ["-O2", ["-O2", 3], [None], b"-O2"])
def test_flags_are_a_list_of_options(instance, flags):
    with pytest.raises(TypeError, match="kernel cube: flags is .*, expected a list of options"):
        accrt.Kernel.from_c(CUBE, "cube", PARAMETERS, blocks_of, flags=flags, instance=instance)


PUT = """
int32_t put(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  (void)e; (void)w;
  const put_params_t* p = d->params;
  for (int64_t i = 0; i < p->n; i++) {
    if (p->slots[i] < 0 || p->slots[i] >= p->size) return 5;
    p->out[i] = p->cache[p->slots[i]] * p->factor[0];
    p->cache[p->slots[i]] += p->x[i];
  }
  return 0;
}
"""
PUT_PARAMETERS = [("x", "read f32"), ("cache", "read_write f32"), ("slots", "read i32"), ("factor", "read f32"), ("out", "write f32"),
                  ("n", "symbol"), ("size", "symbol")]  # fmt: skip


def put_reference(x, cache, slots, factor, n, size):
    out = np.empty(n)
    for i, slot in enumerate(slots):
        out[i] = cache[slot] * factor[0]
        cache[slot] += x[i]
    return out


def test_states_are_read_and_written_where_they_lie(instance):
    """At places that a tensor gives; what the function reads of them before and after is what was
    there then."""
    m = Module("cached")
    n = m.symbol("n", maximum=64)
    cache, factor = m.state("cache", "f32", [6]), m.state("factor", "f32", [1], fill_pattern=0x40000000)
    put = accrt.Kernel.from_c(PUT, "put", PUT_PARAMETERS, lambda v: 1, instance=instance)
    f = m.function("put")
    x, slots = f.input("x", "f32", [n]), f.input("slots", "i32", [n])
    f.result("before", f.state_read(cache) + 0.5)
    (old,) = f.kernel(put, [x, cache, slots, factor], [TensorType("f32", (n,))], reference=put_reference, n=n, size=6)
    f.result("old", old)
    f.result("after", f.state_read(cache) + 0.25)
    session = accrt.Program(accrt.Bundle(compile(m, targets=image.available_targets()[0][:1]), instance)).session()
    interpreter, rng = Interpreter(m), np.random.default_rng(20261128)
    for count in (3, 1, 7):
        x, slots = np.arange(count, dtype=np.float32) + 1, rng.integers(0, 6, count).astype(np.int32)
        for got, expected in zip(session.put(x, slots), interpreter.run("put", x, slots)):
            np.testing.assert_array_equal(got.numpy(), expected, err_msg=f"slots {slots}")
    with pytest.raises(accrt.Error, match="'put' returned 5"):
        session.put(x[:1], np.array([6], np.int32))


def test_states_that_do_not_fit_a_kernel_are_said_by_name(instance):
    m, other = Module("cached"), Module("other")
    put = accrt.Kernel.from_c(PUT, "put", PUT_PARAMETERS, lambda v: 1, instance=instance)
    cache, factor, wide = m.state("cache", "f32", [6]), m.state("factor", "f32", [1]), m.state("wide", "f64", [6])
    f = m.function("put")
    x, slots, out = f.input("x", "f32", [2]), f.input("slots", "i32", [2]), [TensorType("f32", (2,))]
    for operands, text in (([x, wide, slots, factor], "'put' takes cache as f32, and it is f64"), ([x, cache, slots], "3 operands"),
                           ([x, cache, slots, cache], "gets state 'cache' twice, and writes it as cache"),
                           ([x, other.state("cache", "f32", [6]), slots, factor], "state 'cache' is of another module"),
                           ([x, cache, factor, factor], "takes slots as i32, and it is f32")):  # fmt: skip
        with pytest.raises(IRError, match=text):
            f.kernel(put, operands, out, n=2, size=6)


def test_packs_and_modules(instance, device, tmp_path):
    out = tmp_path / "scale_add.so"
    subprocess.run(["cc", "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden",
                    f"-I{ROOT / 'include'}", str(ROOT / "tests/golden/scale_add.c"), "-o", str(out)], check=True)
    for kernel in (accrt.Kernel.from_pack(out, instance=instance), accrt.Kernel.from_pack(out.read_bytes(), "scale_add", instance)):
        x, y = ones(3000)
        kernel(x, y, 3000, 0.5, grid=(3,))
        assert (y == 1).all() and kernel.definition is None
        with pytest.raises(TypeError, match="grid is missing"):
            kernel(x, y, 3000, 0.5)
        with pytest.raises(TypeError, match="takes 4 arguments"):
            kernel(x, grid=1)
    with pytest.raises(accrt.UnsupportedError, match="module"):
        accrt.Kernel.from_module(device, ".version 9.0", accrt.DeviceKernel("step", [("out", "write")], (32,)), "ptx")


def test_the_guide_has_the_example_and_runs(tmp_path):
    text = (ROOT / "docs/custom-kernels.md").read_text()
    named = re.findall(r"^```\w+ ([\w.]+)\n(.*?)^```$", text, re.M | re.S)
    assert [name for name, _ in named] == ["squared_relu.c", "kernel.py", "build.py", "squared_relu.cu", "squared_relu_triton.py"]
    for name, code in named:
        assert code == (EXAMPLE / name).read_text(), name
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)).replace("/tmp/", f"{tmp_path}/")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), ACCRT_TRUST="all")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "x has elements of type f64" in done.stdout and done.stdout.endswith("2.0\n"), done.stderr


def test_the_example_from_python_and_from_c(tmp_path):
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), ACCRT_TRUST="all", LD_LIBRARY_PATH=str(LIBRARY.parent))
    done = subprocess.run([sys.executable, EXAMPLE / "kernel.py"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "the kernel gives what numpy gives\n", done.stderr
    bundle = tmp_path / "custom_kernel.accx"
    done = subprocess.run([sys.executable, EXAMPLE / "build.py", "-o", bundle], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("cuda" in str(accrt.Bundle(bundle).function_targets("activate"))) == (shutil.which("nvcc") is not None)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    done = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", EXAMPLE / "main.c", f"-I{ROOT / 'include'}", str(LIBRARY),
                           "-o", tmp_path / "main"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for more in ((), ("activate",), ("activate", "host:0")):
        done = subprocess.run([tmp_path / "main", bundle, *more], env=env, capture_output=True, text=True)
        assert done.stdout == "0 0 0 0.5 2 4.5 8 12.5\n", done.stderr
    done = subprocess.run([tmp_path / "main", bundle, "activate", "host:9"], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "host:9" in done.stderr and done.stderr.count("\n") == 1


def made(body, instance):
    text = CUBE.replace("  if (p->n == 77) return 7;\n", "")
    text = text[:text.index("  for (")] + body + "  return 0;\n}\n"
    return accrt.Kernel.from_c(text, "cube", PARAMETERS, blocks_of, instance=instance)


LOOP = "for (int64_t i = first; i < last; i++) p->y[i] = p->x[i];\n"


@pytest.mark.parametrize("body, text", (
    ("  " + LOOP, ""),
    ("  for (int64_t i = first; i <= last; i++) p->y[i] = p->x[i];\n", "writes outside of y: byte 0 after its end"),
    ("  " + LOOP + "  p->y[-1] = 1;\n", "writes outside of y: byte 1 before its beginning"),
    ("  " + LOOP + "  if (p->n) p->y[p->n + 15000] = 1;\n", "writes outside of y: byte 6000[0-3] after its end"),
    ("  " + LOOP + "  ((float*)p->x)[3] = 7;\n", "writes x, which is declared as read: byte 1[2345]"),
    ("  for (int64_t i = first; i < last; i++) p->y[i] = p->x[i + 1];\n", "reads outside of its arguments: y depends on what lies there, from byte 399[67]"),
    ("  static int64_t calls = 1;\n  for (int64_t i = first; i < last; i++) p->y[i] = calls;\n  if (last == p->n) calls += 1;\n",
     "gives other bytes in y when it runs again"),
    ("  for (int64_t i = first; i < last - 1; i++) p->y[i] = p->x[i];\n", "does not write all of y, or reads it: byte"),
    # the last workgroup changes its block of parameters, which a list has in the next run, too
    ("  static int64_t done;\n  " + LOOP + "  if (__atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST) % d->workgroup_count[0] == 0) ((cube_params_t*)p)->n = 0;\n",
     "gives other bytes in y from a recorded list: from byte 2 on"),
    ("  " + LOOP + "  if (p->n == 0) p->y[0] = 1;\n", "writes outside of y: byte 0 after its end, with sizes of 0"),
    ("  if (p->n == 0) return 9;\n  " + LOOP, "refuses its arguments: .*returned 9.*, with sizes of 0")))
def test_a_check_says_what_is_amiss(body, text, instance):
    x, y = np.arange(1, 1001, dtype=np.float32), np.zeros(1000, np.float32)
    found = made(body, instance).check(x, y, 1000, 1.0)
    assert (found == [] if not text else len(found) == 1 and re.match(f"kernel cube {text}", found[0])), found
    assert (y == 0).all() and x[3] == 4  # the arguments themselves stay as they are


@pytest.mark.parametrize("body, text", (
    ("  " + LOOP, ""),
    ("  for (int64_t i = first; i <= last; i++) p->y[i] = p->x[i];\n", "writes outside of y: byte 0 after its end"),
    ("  " + LOOP + "  p->y[1 << 30] = 1;\n", r"crashed with signal 11 \(SIGSEGV\)"),
    ("  " + LOOP + "  *(volatile int*)((char*)0 + p->n) = 7;\n", r"crashed with signal 11 \(SIGSEGV\)"),
    ("  " + LOOP + "  if (p->n == 0) *(volatile int*)0 = 7;\n", r"crashed with signal 11 \(SIGSEGV\), with sizes of 0"),
    ("  " + LOOP + "  volatile float seen = p->x[p->n]; (void)seen;\n", "reads or writes outside of x: after its end"),
    ("  " + LOOP + "  volatile float seen = p->x[-1]; (void)seen;\n", "reads or writes outside of x: before its beginning"),
    ("  " + LOOP + "  ((volatile float*)p->x)[3] = p->x[3];\n", "writes x, which is declared as read"),
    ("  " + LOOP + "  for (volatile int i = 0; p->n;) i = 1;\n", "runs longer than 0.5 seconds"),
    ("  if (p->n) return 9;\n", "refuses its arguments: .*returned 9")))
def test_a_check_in_a_process_of_its_own(body, text, instance):
    x, y = np.arange(1, 1025, dtype=np.float32), np.zeros(1024, np.float32)
    found = made(body, instance).check(x, y, 1024, 1.0, isolated=True, seconds=0.5 if "longer" in text else 60)
    assert (found == [] if not text else len(found) == 1 and re.match(f"kernel cube {text}$" if "returned" not in text else f"kernel cube {text}", found[0])), found
    assert (y == 0).all()


def test_a_check_of_a_pack_in_a_process_of_its_own(instance, tmp_path):
    out = tmp_path / "pack.so"
    subprocess.run(["cc", "-std=c11", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'include'}", str(ROOT / "tests/python/kernel_mistakes.c"), "-o", str(out)], check=True)
    x, y = np.ones(300, np.float32), np.zeros(300, np.float32)
    pack = accrt.KernelPack(instance, out)
    for name, text in (("good", ""), ("crashes", "crashed with signal 11 (SIGSEGV)"), ("reads_after", "reads or writes outside of x: after its end"),
                       ("divides", "crashed with signal 8 (SIGFPE), with sizes of 0")):
        if name == "divides" and os.uname().machine != "x86_64":
            continue
        assert pack.kernel(name).check(x, y, 300, grid=2, isolated=True, seconds=60) == ([f"kernel {name} {text}"] if text else [])
    os.rename(out, tmp_path / "gone.so")
    with pytest.raises(RuntimeError, match="cannot be checked in a process of its own: .*pack.so: no such file"):
        pack.kernel("good").check(x, y, 300, grid=2, isolated=True)


def test_a_check_refuses_what_a_call_refuses(cube, device):
    x, y = ones(1000)
    assert cube.check(x, y, n=1000, scale=2.0) == []
    with pytest.raises(TypeError, match="scale is missing"):
        cube.check(x, y, 1000)
    with pytest.raises(TypeError, match="elements of type f64"):
        cube.check(x.astype(np.float64), y, 1000, 1.0)
    with pytest.raises(TypeError, match="y is a Buffer: a check takes arrays"):
        cube.check(x, accrt.Pool(device).buffer(4000), 1000, 1.0)


ON_A_GPU = """
import sys, numpy as np, accrt
device = accrt.default_instance().device("cuda:0")
described = accrt.DeviceKernel("scale", [("x", "read"), ("y", "write"), ("factor", "f32"), ("n", "u32")], block=(256,))
scale = accrt.Kernel.from_module(device, open(sys.argv[1]).read(), described)
pool, stream, n = accrt.Pool(device), accrt.Stream(device), 1000
buffers = [pool.buffer(4 * n) for _ in range(2)]
x, y = (accrt.Tensor(buffer, "f32", [n]) for buffer in buffers)
stream.copy(np.full(n, 3, np.float32), buffers[0])
stream.synchronize()
scale(x, y, 2, n, grid=4)
assert (y.numpy() == 6).all()
scale(buffers[0], y, factor=4.0, n=n, grid=(4, 1), stream=stream)
stream.synchronize()
assert (y.numpy() == 12).all()
for wrong, text in (((x, y, 2), "n is missing"), ((x, y, "2", n), "factor is '2'"), ((x, y, 2, -1), "n is -1, which does not fit u32"),
                    ((np.zeros(n, np.float32), y, 2, n), "scale: x lies on the host, and the kernel runs on cuda:0")):
    try:
        scale(*wrong, grid=4)
    except (TypeError, ValueError, OverflowError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
try:
    accrt.Kernel.from_module(device, open(sys.argv[1]).read(), described._replace(parameters=described.parameters[:3]))
except accrt.Error as error:
    print(type(error).__name__)
"""


def test_machine_code_of_a_gpu_under_the_stand_in(tmp_path):
    from test_docs import SCALE_PTX, SCALE_TWIN
    from test_standin import environment, STAND_IN

    if not (STAND_IN / "libcuda.so.1").exists():
        pytest.skip("the stand-in for CUDA's driver was not built: CUDA 13's headers are not here")
    (tmp_path / "scale.ptx").write_text(SCALE_PTX)
    (tmp_path / "twin.c").write_text(SCALE_TWIN)
    subprocess.run(["cc", "-std=c11", f"-I{ROOT / 'tests/fakecuda'}", f"-I{ROOT / 'include'}", "-shared", "-fPIC", "-o", tmp_path / "twin.so", tmp_path / "twin.c"],
                   check=True)
    env = dict(environment(), FAKECUDA_KERNELS=str(tmp_path / "twin.so"))
    done = subprocess.run([sys.executable, "-c", ON_A_GPU, tmp_path / "scale.ptx"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "InvalidFormatError\n", done.stdout + done.stderr
