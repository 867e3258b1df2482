"""Compiled bundles as a whole: state, loops, branches, calls, users' kernels, memory sharing,
determinism."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

import accx_exec
import compiler_harness as ch
import kernel_harness as kh
from accrt.bundle_writer import less
from accrt.compiler import CSource, Interpreter, IRError, KernelDef, Module, SymbolClass, TensorType, cat, compile, driver
from accrt.compiler import expr as ex
from accrt.compiler.kernels import kerneldef


def random():
    return np.random.default_rng(kh.SEED)


def f32(*shape):
    return random().uniform(-1, 1, shape).astype(np.float32)


# ---- State ----


def cache_module():
    m = Module("cache")
    t = m.symbol("t", minimum=1, maximum=64)
    position = m.symbol("position", SymbolClass.RUNTIME, maximum=63)
    capacity = m.symbol("capacity", SymbolClass.SESSION, minimum=1, maximum=64)
    state = m.state("keys", "f32", [capacity, 2, 3], fill_pattern=0x3F800000)
    f = m.function("append")
    x = f.input("x", "f32", [t, 2, 3])
    f.scalar("position", position)
    (x * 2.0).state_write(state, [position, 0, 0])
    f.result("total", f.state_read(state)[: position + t].sum(0))
    g = m.function("read")
    g.result("all", g.state_read(state))
    return m


def test_state_is_appended_at_a_runtime_position():
    m = cache_module()
    session, oracle = ch.session(ch.program(m), capacity=9), Interpreter(m, {"capacity": 9})
    for t, position in ((3, 0), (1, 3), (5, 4), (2, 1)):
        x = f32(t, 2, 3)
        got, want = session.run("append", x, position=position), oracle.run("append", x, position=position)
        ch.assert_close(got[0], want[0], "f32", 16)
        ch.assert_close(session.run("read")[0], oracle.run("read")[0], "f32", 1)


def test_what_a_function_requires_of_sizes_is_checked():
    m = Module("required")
    a, b = (m.symbol(name, minimum=1, maximum=64) for name in "ab")
    f = m.function("join")
    x, y = f.input("x", "f32", [a]), f.input("y", "f32", [b])
    f.require(less(a, b), "a is below b")
    f.require(less(0, b + 1), "which always holds")
    f.result("both", cat([x, y], 0))
    session = ch.session(ch.program(m))
    for sizes in ((1, 2), (3, 64)):
        assert session.run("join", *map(f32, sizes))[0].shape == (sum(sizes),)
    for sizes in ((2, 2), (9, 1)):
        with pytest.raises(accx_exec.FormatError):
            session.run("join", *map(f32, sizes))
    with pytest.raises(IRError, match="what is required is 3, expected a str"):
        f.require(less(a, b), 3)
    with pytest.raises(IRError, match="no sizes meet what is required: a is below itself"):
        f.require(less(a, a), "a is below itself")


def test_sessions_do_not_see_one_another():
    m = cache_module()
    running = ch.program(m)
    a, b = ch.session(running), ch.session(running)
    a.run("append", f32(3, 2, 3), position=0)
    assert (b.run("read")[0] == 1.0).all()
    assert not (a.run("read")[0] == 1.0).all()


def test_writing_past_the_capacity_is_an_error():
    session = ch.session(ch.program(cache_module()), capacity=4)
    with pytest.raises(accx_exec.FormatError, match="range"):
        session.run("append", f32(3, 2, 3), position=2)


def test_what_was_read_before_a_write_stays():
    m = Module("order")
    state = m.state("s", "f32", [4])
    f = m.function("swap")
    x = f.input("x", "f32", [4])
    old = f.state_read(state)
    (x + 1.0).state_write(state, [0])
    f.result("old", old * 1.0)
    f.result("new", f.state_read(state) * 1.0)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    for _ in range(3):
        x = f32(4)
        for got, want in zip(session.run("swap", x), oracle.run("swap", x)):
            ch.assert_close(got, want, "f32", 1)


def test_a_producer_that_reads_the_state_is_not_moved_into_it():
    m = Module("roll")
    state = m.state("s", "f32", [4, 2])
    f = m.function("roll")
    x = f.input("x", "f32", [1, 2])
    old = f.state_read(state)
    cat([old[1:], x], 0).state_write(state, [0, 0])
    f.result("now", f.state_read(state) * 1.0)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    for _ in range(5):
        x = f32(1, 2)
        ch.assert_close(session.run("roll", x)[0], oracle.run("roll", x)[0], "f32", 1)


# ---- Inputs that are written, results that share ----


def test_an_input_is_updated_in_place():
    m = Module("update")
    n = m.symbol("n", maximum=999)
    f = m.function("scale_add")
    x, y = f.input("x", "f32", [n]), f.input("y", "f32", [n], access="read_write")
    (x * 2.0 + y).write_input("y")
    f.result("sum", y.sum(0))
    running = ch.program(m)
    x, y = f32(33), f32(33)
    expected = 2 * x.astype(np.float64) + y
    (total,) = ch.session(running).run("scale_add", x, y)
    ch.assert_close(y, expected, "f32", 2)
    ch.assert_close(total, expected.sum(), "f32", 64, 32)
    body = running.bundle.functions[0].body
    # calculated in place, no copy; sums in pieces
    assert len(running.bundle.block_commands[body]) == (3 if ch.ON_CUDA else 2)


def test_a_result_may_share_a_donated_input():
    m = Module("donate")
    n = m.symbol("n", maximum=99)
    f = m.function("step")
    x = f.input("x", "f32", [n, 4], access="donated")
    f.result("y", x.softmax(-1) + x.sum(0), alias="x")
    running = ch.program(m)
    ch.compare(m, running, "step", [f32(5, 4)], roundings=64, scale=16)
    assert running.bundle.functions[0].results[0]["alias_kind"] == 1


def test_one_value_may_be_several_results():
    m = Module("twice")
    f = m.function("f")
    x = f.input("x", "f32", [3, 2])
    y = x.exp()
    f.result("a", y)
    f.result("b", y)
    f.result("c", y.transpose(0, 1))
    f.result("d", x)
    ch.compare(m, ch.program(m), "f", [f32(3, 2)])


# ---- Loops, branches, calls ----


def loop_module():
    m = Module("loops")
    n, count = m.symbol("n", maximum=99), m.symbol("count", maximum=9)
    weights = m.constant("w", f32(9, 6, 6))
    f = m.function("layers")
    x = f.input("x", "f32", [n, 6])
    f.scalar("count", count)

    def body(i, y, total):
        w = f.constant(weights)[i]
        z = (y @ w).tanh() + x
        return z, total + z

    y, total = f.repeat(count, [x * 1.0, f.full([n, 6], 0.0)], body)
    f.result("y", y)
    f.result("total", total)
    return m


def test_repeat_carries_values_and_offsets_follow_the_index():
    m = loop_module()
    running = ch.program(m)
    for n, count in ((3, 0), (3, 1), (5, 4), (1, 9), (0, 3)):
        ch.compare(m, running, "layers", [f32(n, 6)], {"count": count}, roundings=256, scale=4)


def test_nested_repeats_and_swapped_values():
    m = Module("nested")
    f = m.function("f")
    table = m.constant("t", f32(3, 4, 5))
    x = f.input("x", "f32", [5])

    def outer(i, a, b):
        (a,) = f.repeat(4, [a], lambda j, v: v * 0.5 + f.constant(table)[i, j])
        return b, a  # exchanged

    a, b = f.repeat(3, [x, x * 3.0], outer)
    f.result("a", a)
    f.result("b", b)
    ch.compare(m, ch.program(m), "f", [f32(5)], roundings=64)


def test_cond_takes_one_side():
    m = Module("branches")
    n, flag = m.symbol("n", maximum=99), m.symbol("flag", maximum=1)
    f = m.function("f")
    x = f.input("x", "f32", [n, 3])
    f.scalar("flag", flag)
    y = x.exp()
    (chosen,) = f.cond(flag, lambda: y * 2.0, lambda: (y + x).softmax(-1))
    f.result("y", chosen + 1.0)
    running = ch.program(m)
    for value in (0, 1):
        ch.compare(m, running, "f", [f32(4, 3)], {"flag": value}, roundings=64)


def test_an_optional_input_may_be_left_out():
    m = Module("optional")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x, bias = f.input("x", "f32", [n, 3]), f.input("bias", "f32", [3], optional=True)
    (y,) = f.cond(f.present(bias), lambda: x * 2.0 + bias, lambda: x * 2.0)
    f.result("y", y)
    running, oracle = ch.program(m), Interpreter(m)
    for given in (f32(3), None):
        (got,) = ch.session(running).run("f", f32(5, 3), given)
        ch.assert_close(got, oracle.run("f", f32(5, 3), given)[0], "f32", 4)
        loaded = ch.runtime_program(running.bundle.data, ch.target())
        if loaded is not None:
            (made,) = ch.run_in_runtime(loaded.session(), m, "f", [f32(5, 3), given], {}, [got])
            assert made.tobytes() == got.tobytes()


@pytest.mark.parametrize(("hosts", "targets", "warned"), [([], None, True), (["x86-64-v3"], None, False), ([], ["cuda"], False)])
def test_without_a_c_compiler_the_user_hears_that_no_host_runs_it(monkeypatch, hosts, targets, warned):
    """NVRTC alone compiles for GPUs: the bundle was made, and a host refused it much later."""
    m = Module("gpu_alone")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [4]) * 2.0)
    monkeypatch.setattr(driver.image, "available_targets", lambda: (hosts, {}))
    monkeypatch.setattr(driver.nvcc, "available_targets", lambda: (["sm_90"], {}))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with contextlib.suppress(driver.image.ImageError):  # no compiler for GPUs either
            driver.compile_writer(m, targets)
    assert [str(one.message) for one in found if "no C compiler" in str(one.message)] == (
        ['there is no C compiler, so the bundle is for CUDA alone and runs on no host; targets=["cuda"] says that it shall be'] if warned else [])


def test_targets_are_those_of_the_devices_that_a_bundle_is_for():
    """It was compiled for processors that are not there, and failed where it was loaded."""
    import accrt
    from accrt import bundle_writer as bw

    m = Module("elsewhere")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [4]) * 2.0)
    caps = {key: value for key, value in accrt.caps().items()}
    known = bw.TargetCaps.of(caps)
    assert known.architectures is None

    def there(**drivers):
        raw = type(known.raw).from_buffer_copy(known.raw)
        raw.devices = " ".join(f"{name}:{arch}" for name, archs in drivers.items() for arch in archs).encode()
        return bw.TargetCaps(raw)

    hosts = [t for t in driver.available_targets() if t in driver.HOST_TARGETS]
    x86 = [t for t in hosts if t.startswith("x86")]
    if not x86:
        pytest.skip("no compiler for x86-64")

    def images(**how):
        return {v.arch for k in driver.compile_writer(m, **how)._kernels.values() for v in k.variants}

    assert images(target_caps=there(host=("x86-64-v3",))) == {"x86-64-v3"}
    assert images(target_caps=there(host=("x86-64-v4",), cuda=())) == set(x86)
    assert images(targets=["x86-64-v3", "aarch64"] if "aarch64" in hosts else x86, target_caps=there(host=("x86-64-v4",))) >= {"x86-64-v3"}
    for arches, targets in (({"host": ("aarch64",), "cuda": ("sm_75",)}, ["x86-64-v3"]), ({"host": ("x86-64-v3",)}, ["x86-64-v4"])):
        with pytest.raises(bw.TargetError, match=r"no target of .* is for the devices of target_caps \(host: "):
            driver.compile_writer(m, targets, there(**arches))
    runs = lambda target, arch: driver._runs(target, arch)  # noqa: E731
    assert runs("sm_80", "sm_86") and runs("sm_90", "sm_90") and runs("ptx", "sm_120") and runs("ptx", "sm_100a") and runs("aarch64", "aarch64")
    assert not any(runs(target, arch) for target in ("ptx", "sm_80", "x86-64-v3") for arch in ("sm_", "sm_9x", "sm_\u00b2", "x86-64-v", "x86-64-vx"))
    assert not runs("sm_90", "sm_89") and not runs("sm_80", "sm_90") and not runs("ptx", "sm_75") and not runs("sm_80", "x86-64-v4")


def test_an_optional_input_stands_under_its_condition_alone():
    """It was compiled all the same, and calls without the input failed."""
    def build(use):
        m = Module("optional")
        f = m.function("f")
        x, a = f.input("x", "f32", [3]), f.input("a", "f32", [3], optional=True)
        b = f.input("b", "f32", [3], optional=True)
        f.result("y", use(f, x, a, b))
        return m

    refused = {
        "operation aten.add": lambda f, x, a, b: x + a,
        "operation aten.mul": lambda f, x, a, b: f.cond(f.present(b), lambda: x * a, lambda: x)[0],
        "operation aten.sub": lambda f, x, a, b: f.cond(f.present(a), lambda: x, lambda: x - a)[0],
        "what operation accrt.cond yields": lambda f, x, a, b: f.cond(f.present(a), lambda: x, lambda: a)[0],
        "result 'y'": lambda f, x, a, b: a,
        "operation aten.abs": lambda f, x, a, b: f.cond(f.present(a) + f.present(b), lambda: a.abs(), lambda: x)[0],
        "operation accrt.repeat": lambda f, x, a, b: f.repeat(2, [a], lambda i, v: v * x)[0],
    }
    for words, use in refused.items():
        with pytest.raises(IRError, match=rf"function 'f': the optional input 'a' is used by {words}.*cond\(f.present\(a\)"):
            compile(build(use), targets=[ch.target()])
    for use in (
        lambda f, x, a, b: f.cond(f.present(a) * f.present(b), lambda: a + b, lambda: x)[0],
        lambda f, x, a, b: f.cond(ex.equal(f.present(a), 0), lambda: x, lambda: x + a)[0],
        lambda f, x, a, b: f.cond(ex.select(f.present(b), f.present(a), 0), lambda: f.repeat(2, [x], lambda i, v: v + a)[0], lambda: x)[0],
        lambda f, x, a, b: f.cond(f.present(a), lambda: f.cond(f.present(b), lambda: a + b, lambda: a)[0], lambda: x)[0],
    ):
        assert compile(build(use), targets=[ch.target()])


def test_calls_run_internal_functions():
    m = Module("calls")
    n, k = m.symbol("n", maximum=99), m.symbol("k", maximum=9)
    state = m.state("s", "f32", [3])
    g = m.function("inner", internal=True)
    a, b = g.input("a", "f32", [n, 3]), g.input("b", "f32", [3])
    g.scalar("k", k)
    (g.state_read(state) + b).state_write(state, [0])
    g.result("y", a * b + g.full((), k, "f32"))
    f = m.function("outer")
    x = f.input("x", "f32", [n, 3])
    (y,) = f.call(g, x.exp(), f.constant(m.constant("c", f32(3))), k=4)
    (z,) = f.call(g, y, f.constant(m.constants["c"]), k=n)
    f.result("z", z * 1.0)
    f.result("s", f.state_read(state) * 1.0)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    for _ in range(2):
        x = f32(7, 3)
        for got, want in zip(session.run("outer", x), oracle.run("outer", x)):
            ch.assert_close(got, want, "f32", 16, 16)


def test_recursion_is_refused():
    m = Module("recursion")
    f = m.function("f")
    x = f.input("x", "f32", [2])
    f.result("y", x * 1.0)
    f.call(f, x)
    with pytest.raises(IRError, match="calls itself"):
        compile(m, targets=[ch.target()])


# ---- Users' kernels ----

SOURCE = """
#include "accrt/kernel.h"
typedef struct { const float* x; float* y; int64_t n; float a; } cubed_params_t;
int32_t accrt_user_cubed(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d,
                         const accrt_kernel_workgroup_t* w) {
  (void)e;
  const cubed_params_t* p = (const cubed_params_t*)d->params;
  int64_t first = (int64_t)w->workgroup_id[0] * 100, last = first + 100 < p->n ? first + 100 : p->n;
  for (int64_t i = first; i < last; i++) p->y[i] = p->a * p->x[i] * p->x[i] * p->x[i];
  return 0;
}
"""


def users_kernel():
    params = kerneldef.layout(
        [kerneldef.reads("x"), kerneldef.writes("y"), kerneldef.symbol("n"), kerneldef.scalar("a", "f32")]
    )
    return KernelDef(
        "user.cubed", "user.cubed", CSource(text=SOURCE, struct="cubed_params_t"), params,
        grid=lambda v: ((v["n"] + 99) // 100, 1, 1), entry="accrt_user_cubed",
    )  # fmt: skip


@pytest.mark.skipif(ch.ON_CUDA, reason="the kernel is for hosts")
def test_a_users_kernel_is_an_operation_like_any_other():
    m = Module("custom")
    n = m.symbol("n", maximum=9999)
    f = m.function("f")
    x = f.input("x", "f32", [n])
    (y,) = f.kernel(users_kernel(), [x.abs()], [TensorType("f32", (n,))], lambda x, n, a: a * x**3, n=n, a=0.5)
    f.result("y", y + 1.0)
    running = ch.program(m)
    for size in (1, 100, 257):
        ch.compare(m, running, "f", [f32(size)], roundings=8)


def test_a_users_kernel_is_checked():
    m = Module("custom")
    f = m.function("f")
    x = f.input("x", "f32", [4])
    with pytest.raises(IRError, match="reads .*writes"):
        f.kernel(users_kernel(), [x, x], [TensorType("f32", (4,))], n=4, a=1.0)
    with pytest.raises(IRError, match="needs values"):
        f.kernel(users_kernel(), [x], [TensorType("f32", (4,))], n=4)


# ---- Plans ----


def test_independent_commands_may_run_at_once_and_chains_stay_chains():
    m = Module("graph")
    f = m.function("f")
    x = f.input("x", "f32", [64, 8])
    a, b = x.softmax(-1), x.transpose(0, 1).sum(1)
    f.result("y", a.softmax(-1).softmax(-1) * b.view([1, 8]))
    running = ch.program(m)
    commands = running.bundle.block_commands[running.bundle.functions[0].body]
    before = {c["name"] + str(i): c["before"] for i, c in enumerate(commands)}
    assert [len(v) for v in before.values()].count(0) == 2
    assert max(len(v) for v in before.values()) == 2


def test_transient_memory_is_shared_by_values_that_do_not_live_at_once():
    m = Module("memory")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("f")
    x = f.input("x", "f32", [n, 64])
    y = x
    for _ in range(12):
        y = y.softmax(0)  # each needs memory of its own: reductions and element-wise work in turn
    f.result("y", y)
    running = ch.program(m)
    function = running.bundle.functions[0]
    names = [s.name for s in running.bundle.symbols]
    size = accx_exec.Expressions(function.expressions, names, {"n": 1000}, [])[function.transient_size]
    assert size <= 3 * 1000 * 64 * 4
    ch.compare(m, running, "f", [f32(9, 64)], roundings=256)


def test_any_order_that_the_predecessors_allow_gives_the_same_bytes():
    m = loop_module()
    data = compile(m, targets=[ch.target()])
    x = f32(5, 6)
    results = []
    for seed in range(6):
        session = ch.session(ch.load(data, ch.target(), seed))
        results.append([r.tobytes() for r in session.run("layers", x, count=4)])
    assert all(r == results[0] for r in results)


def test_compilation_is_deterministic():
    assert compile(loop_module(), targets=[ch.target()]) == compile(loop_module(), targets=[ch.target()])
    assert compile(cache_module(), targets=[ch.target()]) == compile(cache_module(), targets=[ch.target()])


def test_weights_keep_their_names():
    m = Module("names")
    f = m.function("f")
    x = f.input("x", "f32", [3, 6])
    f.result("y", x.linear(m.constant("block.weight", f32(4, 6)), m.constant("block.bias", f32(4))))
    names = [c["name"] for c in ch.program(m).bundle.constants if not c["prepared"]]
    assert names == ["block.bias", "block.weight"]


def test_bf16_weights_are_exact():
    m = Module("half")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x = f.input("x", "f32", [n, 48])
    w = m.constant("w", kh.bf16_from(f32(40, 48)), "bf16")
    w2 = m.constant("w2", kh.bf16_from(f32(7, 48)), "bf16")
    b = m.constant("b", kh.bf16_from(f32(40)), "bf16")
    f.result("y", x.linear(w, b).gelu())
    f.result("z", x.linear(w2))
    running = ch.program(m)
    for rows in (1, 5, 33):
        ch.compare(m, running, "f", [f32(rows, 48)], roundings=64, scale=16)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32"])
def test_weights_of_every_type(dtype):
    m = Module("typed")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x = f.input("x", dtype, [n, 20])
    integer = dtype == "i32"
    weights = {name: ch.values(random(), dtype, shape, *((-9, 9) if integer else (-1, 1))) for name, shape in (
        ("w", (20, 20)), ("b", (20,)), ("v", (20, 33)))}  # fmt: skip
    w, b, v = (m.constant(name, data, dtype) for name, data in weights.items())
    y = x.linear(w, b)
    f.result("y", y + x)
    f.result("z", (y if integer else y.tanh()) @ f.constant(v))
    running = ch.program(m)
    for rows in (1, 7, 0):
        # A result of 16 bits is rounded at each step that is stored, and z adds up 20 of them.
        ch.compare(m, running, "f", [ch.values(random(), dtype, (rows, 20), -1, 1)], roundings=64 if dtype == "f64" else 8, scale=16)


def test_tensors_without_dimensions():
    m = Module("scalars")
    f = m.function("f")
    x = f.input("x", "f32", [])
    for name in ("sum", "mean", "amax"):
        f.result(name, getattr(x, name)())
    f.result("softmax", x.softmax(-1))
    f.result("view", x.view([1, 1]).exp())
    ch.compare(m, ch.program(m), "f", [np.array(2.5, np.float32)])


def test_a_product_does_not_overwrite_what_it_reads():
    """y @ w + y: the residual's memory is not the result's, as other rows and columns still read
    it."""
    m = Module("residual")
    n = m.symbol("n", maximum=999)
    w = m.constant("w", f32(384, 384) * 0.05)
    f = m.function("f")
    y = f.input("x", "f32", [n, 384])
    for _layer in range(3):
        y = (y.linear(w).gelu() + y).layer_norm()
    f.result("y", y)
    ch.compare(m, ch.program(m), "f", [f32(300, 384)], roundings=4096)
    for family in ("host", "cuda"):
        _work, planned = driver._planned(m, family, True)
        (commands,) = (buffers.commands for buffers, _plan in planned if not buffers.function.prepare)
        for command in commands:
            for inner in [command, *(c for block in command.blocks for c in block)]:
                used = {name: access.storage for name, access in inner.accesses.items()}
                if "residual" in used:
                    assert used["out"] is not used["a"]


@pytest.mark.skipif(ch.ON_CUDA, reason="hosts pack weights")
def test_joined_weights_are_packed_without_a_copy():
    m = Module("joined")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x = f.input("x", "f32", [n, 40])
    for index, columns in enumerate((32, 64, 96)):
        f.result(f"y{index}", x.linear(m.constant(f"w{index}", f32(columns, 40))))
    running = ch.program(m)
    (prepare,) = [fn for fn in running.bundle.functions if fn.flags & 1]
    names = [c["name"] for c in running.bundle.block_commands[prepare.body]]
    assert names == ["pack"] * 3
    ch.compare(m, running, "f", [f32(5, 40)], roundings=64, scale=8)


def test_two_functions_share_what_follows_from_weights():
    """Of what one function has made at load already, more follows in the second."""
    m = Module("shared")
    weights = m.constant("a", kh.bf16_from(f32(1)), "bf16"), m.constant("b", f32(1))
    for name in ("f", "g"):
        f = m.function(name)
        x = f.input("x", "f32", [5])
        a, b = f.constant(weights[0]).to_copy("f32"), f.constant(weights[1])
        f.result("y", x * a + ((b.exp() if name == "f" else b.tanh()) + a) * x)
    running = ch.program(m)
    for name in ("f", "g"):
        ch.compare(m, running, name, [f32(5)], roundings=16)


def test_extreme_values_pass_through_fused_chains():
    m = Module("extremes")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x = f.input("x", "f32", [n])
    f.result("kept", (x * 1.0).maximum(-np.inf))
    f.result("relu", x.relu() + 0.0)
    f.result("sigmoid", x.sigmoid() * 1.0)
    f.result("max", x.amax(0))
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3.4e38, -3.4e38, 1.0], np.float32)
    running = ch.program(m)
    for data in (values, values[1:], values[3:]):
        ch.compare(m, running, "f", [data], roundings=8)


def test_bucketed_sizes():
    m = Module("buckets")
    n = m.symbol("n", SymbolClass.BUCKET, minimum=1, maximum=64, buckets=[8, 64])
    f = m.function("f")
    x = f.input("x", "f32", [n, 6])
    f.result("y", x.softmax(0).transpose(0, 1).linear(f.input("w", "f32", [3, n])))
    running = ch.program(m)
    assert running.bundle.symbols[0].buckets == (8, 64)
    for size in (1, 8, 9, 64):
        ch.compare(m, running, "f", [f32(size, 6), f32(3, size)], roundings=64)


def test_every_target_of_this_machine_gives_the_same_within_tolerance():
    m = Module("targets")
    n = m.symbol("n", maximum=99)
    f = m.function("f")
    x = f.input("x", "f32", [n, 96])
    y = x.linear(m.constant("w", f32(200, 96)), m.constant("b", f32(200))).gelu()
    f.result("y", y.layer_norm() @ m.functions["f"].constant(m.constant("v", f32(200, 33))))
    targets = kh.host_targets()
    data = compile(m, targets=targets)
    for target in targets:
        ch.compare(m, accx_exec.Program(data, target), "f", [f32(37, 96)], roundings=256, scale=32)


def test_assets_come_along():
    import accrt

    data = compile(cache_module(), targets=[kh.host_targets()[-1]], assets={"LICENSE": (b"free", "text/plain")})
    (asset,) = accrt.Bundle(data).assets.values()
    assert (asset.name, asset.media_type, bytes(asset.data)) == ("LICENSE", "text/plain", b"free")
