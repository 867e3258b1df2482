"""The command-line tool, run as a user runs it: build/bin/accx (or ACCRT_ACCX) as a process of its
own."""
from __future__ import annotations

import io
import json
import os
import pathlib
import platform
import random
import re
import struct
import subprocess
import zipfile
import zlib

import numpy as np
import pytest

import accx_tool
import rotation
from accrt import bundle_writer as bw

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCX = pathlib.Path(os.environ.get("ACCRT_ACCX", ROOT / "build/bin/accx"))
pytestmark = pytest.mark.skipif(not ACCX.exists(), reason=f"{ACCX} is not built (it needs json-c, zlib and libyaml)")

OK, FAILED, USAGE, BAD_BUNDLE, REFUSED = range(5)
ALLOW = "--allow-host-code"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR",)}


def accx(*arguments, code=OK, cwd=None):
    """Runs the tool and checks what holds always: the exit code, and either clean output or one
    line of error alone."""
    done = subprocess.run([str(ACCX), *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT,
                          timeout=120)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "\x1b" not in done.stdout + done.stderr
    if code == OK:
        return done.stdout
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("accx: "), done.stderr
    return lines[0]


def accx_json(*arguments, **how):
    return json.loads(accx(*arguments, "--json", **how))


def writer_module():
    """The public writer alone, as a compiler author would use it."""
    from accrt import bundle_writer

    return bundle_writer


KERNEL = r"""
#include "accrt/kernel.h"
ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()
typedef struct params {
  const float* x;
  float* y;
  int64_t n;
  float a;
} params_t;
static int32_t scale_add(const accrt_kernel_environment_t* environment, const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const params_t* p = dispatch->params;
  const int64_t first = (int64_t)workgroup->workgroup_id[0] * 1024;
  for (int64_t i = first; i < p->n && i < first + 1024; i++) p->y[i] += p->a * p->x[i];
  return 0;
}
static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(params_t, x, BUFFER, READ), ACCRT_KERNEL_PARAM(params_t, y, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(params_t, n, SYMBOL, NONE), ACCRT_KERNEL_PARAM(params_t, a, SCALAR, NONE)};
static const accrt_kernel_def_t kernels[] = {{.struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC, .name = "scale_add", .entry = scale_add, .params = params, .param_count = 4,
    .params_size_bytes = sizeof(params_t)}};
static const accrt_kernel_pack_table_t table = {.struct_size = sizeof table, .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "scale_add", .kernels = kernels, .kernel_count = 1, .kernel_size_bytes = sizeof kernels[0]};
ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t* accrt_kernel_pack_query(
    uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  if (max_abi < ACCRT_KERNEL_ABI_VERSION) return 0;
  accrt_kernel_bind(environment);
  return &table;
}
"""


def build_model(bw, image, arch):
    """y += a * x in some functions that show every kind of argument: in place, result, scalar,
    optional, state."""
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/python/test_tool.py")
    n, count, flag = (bundle.symbol(name, maximum=most) for name, most in (("n", 1 << 20), ("count", 1000), ("flag", 1)))
    kernel = bundle.kernel("scale_add", [bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "read_write"),
                                         bw.Parameter("n", "symbol"), bw.Parameter("a", "scalar", size_bytes=4)])
    kernel.variant(bundle.image("scale_add", image), arch=arch)

    def add(block, x, y, size, a, after=()):
        arguments = {"x": x.read(0, size * 4), "y": y.update(0, size * 4), "n": size, "a": bw.scalar(a, "f32")}
        return block.dispatch(kernel, arguments, (bw.ceildiv(size, 1024), 1, 1), after=after)

    def inputs(function):
        return function.input("x", "f32", [n]), function.input("y", "f32", [n], access="read_write")

    scale_add = bundle.function("scale_add", doc="y = 2 * x + y")
    add(scale_add.body, *inputs(scale_add), n, 2.0)

    weight = bundle.constant("w", struct.pack("<16f", *range(16)), dtype="f32", shape=[16])
    doubled = bundle.prepared("w.doubled", 64, dtype="f32", shape=[16], encoding=bw.Encoding.PLAIN)
    prepare = bundle.function("prepare", prepare=True)
    source, product = prepare.source("w", weight), prepare.product("w.doubled", doubled)
    zero = prepare.body.fill(product.write(0, 64), 0, 4)
    add(prepare.body, source, product, bw.constant(16), 2.0, [zero])
    weighted = bundle.function("weighted", doc="y = 2 * x + 2 * w")
    x, y = weighted.input("x", "f32", [16]), weighted.result("y", "f32", [16])
    copied = weighted.body.copy(weighted.constant(doubled).read(), y.write(), 64)
    add(weighted.body, x, y, bw.constant(16), 2.0, [copied])

    steps = bundle.function("steps", doc="y += x, count times, through transient memory")
    x, y = inputs(steps)
    steps.scalar("count", count)
    arena = steps.transient(n * 4)
    cleared = steps.body.fill(arena.write(0, n * 4), 0, 4)
    loop = steps.body.repeat(count, after=[cleared])
    add(loop.body, x, arena, n, 1.0)
    add(steps.body, arena, y, n, 1.0, [loop])

    gated = bundle.function("gated", doc="y += 2 * x where flag, else y += extra where given")
    x, y = inputs(gated)
    extra = gated.input("extra", "f32", [n], optional=True)
    gated.scalar("flag", flag)
    branch = gated.body.branch(flag)
    branch.then.call(scale_add, {"x": x.read(0, n * 4), "y": y.update(0, n * 4)})
    add(branch.otherwise.branch(gated.present(extra)).then, extra, y, n, 1.0)

    counter = bundle.function("count", doc="total += x; y = total")
    x, y = counter.input("x", "f32", [16]), counter.result("y", "f32", [16])
    total = counter.state(bundle.state("total", "f32", [16]))
    added = add(counter.body, x, total, bw.constant(16), 1.0)
    counter.body.copy(total.read(), y.write(), 64, after=[added])
    return bundle


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A bundle with machine code for this processor."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "kernel.c").write_text(KERNEL)
    arch = "aarch64" if platform.machine() == "aarch64" else "x86-64-v3"
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c11", "-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib",
                    "-fvisibility=hidden", "-Wl,--build-id=none", f"-I{ROOT / 'include'}", folder / "kernel.c",
                    "-o", folder / "kernel.so"], check=True)
    build_model(writer_module(), (folder / "kernel.so").read_bytes(), arch).write(str(folder / "model.accx"))
    return folder / "model.accx"


DTYPES = ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2"]
ONE_BYTE = ("bool", "i8", "u8", "f8e4m3fn", "f8e5m2")
HOSTILE_NAME = "../../escape\x1b[31m"


@pytest.fixture(scope="session")
def echo_bundle(tmp_path_factory):
    """A bundle without machine code: its functions copy, for each data type and for sizes that are
    expressions."""
    bw = writer_module()
    bundle = bw.BundleWriter()
    bundle.metadata("producer", "tests/python/test_tool.py")
    n = bundle.symbol("n", maximum=1 << 20)
    m = bundle.symbol("m", bw.SymbolClass.BUCKET, minimum=2, maximum=64, divisor=2, buckets=[8, 64])

    def copies(name, dtype, dims, size_bytes, result="y"):
        function = bundle.function(name, doc=f"y = x, {dtype}")
        x, y = function.input("x", dtype, dims), function.result(result, dtype, dims)
        function.body.copy(x.read(), y.write(), size_bytes)

    for dtype in DTYPES:
        copies(f"echo_{dtype}", dtype, [n], n * (1 if dtype in ONE_BYTE else bw.DTYPES[dtype][1] // 8))
    copies("grid", "f32", [n, m, 3], n * m * 12)
    copies("scalar", "f32", [], 4)
    copies("hostile", "f32", [n], n * 4, result=HOSTILE_NAME)
    sizes = bundle.function("sizes", doc="sizes that are expressions")
    sizes.input("a", "f32", [n])
    b = sizes.input("b", "i32", [n * 2 + 1, bw.ceildiv(n, 4)])
    z = sizes.result("z", "i32", [n * 2 + 1, bw.ceildiv(n, 4)])
    sizes.body.copy(b.read(), z.write(), (n * 2 + 1) * bw.ceildiv(n, 4) * 4)
    path = tmp_path_factory.mktemp("echo") / "echo.accx"
    bundle.write(str(path))
    return path


# ---- help, versions, mistakes

def test_help_names_every_verb_and_every_verb_has_help():
    overview = accx("help")
    assert accx("--help") == overview and "Exit codes" in overview
    for verb in ("inspect", "verify", "run", "bench", "devices", "caps"):
        assert f"\n  {verb} " in overview
        text = accx("help", verb)
        assert text.startswith(f"usage: accx {verb}") and "Examples:" in text
        assert accx(verb, "--help") == text


def test_version():
    version = (ROOT / "VERSION").read_text().strip()
    assert accx("--version").strip() == f"accx {version} (libaccrt {version})"


@pytest.mark.parametrize("arguments, wanted", [
    ([], "accx help"),
    (["inspekt", "x"], "did you mean 'inspect'"),
    (["help", "rnu"], "did you mean 'run'"),
    (["--json", "caps"], "the verb comes first"),
    (["--versoin"], "did you mean '--version'"),
    (["--hlep"], "did you mean '--help'"),
    (["caps", "--jsno"], "did you mean '--json'"),
    (["caps", "-j"], "no option -j, did you mean '--json'?"),
    (["build", "a", "-o", "b"], "no option -o, did you mean '--output'?"),
    (["run", "a", "-z"], "no option -z: accx run FILE (accx help run)"),
    (["quantize", "a", "--output", "b"], "no option --output: accx quantize IN OUT.accx (accx help quantize)"),
    (["caps", "--json=1"], "takes no value"),
    (["caps", "file"], "takes no file"),
    (["inspect"], "needs a file"),
    (["completion"], "needs one of bash zsh fish"),
    (["trust"], "needs one of add list remove"),
    (["inspect", "a", "b"], "'b' is one too many"),
    (["inspect", "a", "--top"], "--top needs a value"),
    (["inspect", "a", "--top", "x"], "whole number"),
    (["inspect", "a", "--section", "symbol"], "did you mean 'symbols'"),
    (["run", "a", "--repeat", "0"], "from 1"),
    (["run", "a", "--repeat", "1", "--repeat", "2"], "twice"),
    (["run", "a", "--option", "host.threads"], "key=value"),
    (["devices", "--threads", "1025"], "1024"),
    (["bench", "a", "--repeat", "1", "--seconds", "1"], "exclude"),
])
def test_mistakes_on_the_command_line(arguments, wanted):
    assert wanted in accx(*arguments, code=USAGE)


def test_double_dash_ends_options(model):
    accx("verify", "--", model)
    assert "--json" in accx("verify", "--", "--json", code=FAILED)


# ---- devices and caps

def test_devices():
    devices = accx_json("devices", "--option", "host.devices=2", "--threads", "1")["devices"]
    assert [d["name"] for d in devices if d["driver"] == "host"] == ["host:0", "host:1"]
    assert devices[0]["concurrency"] == 1 and devices[0]["memory_total_bytes"] > 1 << 20
    text = accx("devices")
    assert "host:0" in text and re.search(r"\b[1-9][0-9]* devices?\b", text)
    assert "host.thread" in accx("devices", "--option", "host.thread=1", code=FAILED)


def test_caps():
    caps = accx_json("caps")
    assert caps["container"] == "0.3" and "dispatch" in caps["command_set"]
    assert "files" in caps["sections"] and "select" in caps["expression_ops"]
    assert {"id": 19, "name": "q4_k"} in caps["encodings"]
    host = next(d for d in caps["drivers"] if d["name"] == "host")
    assert caps["cpu_arch"] in host["architectures"]
    installed = ACCX.resolve().parents[1] / "lib" / "accrt" / "packs"
    assert caps["packs"] == sorted(path.stem for path in installed.glob("*.so"))
    assert caps["function_features"] == ["target"] and "pack" in caps["image_kinds"]
    assert "bf16" in caps["dtypes"] and caps["cpu_arch"] in accx("caps")


# ---- inspect and verify

def test_inspect_json_has_everything(model):
    seen = accx_json("inspect", model)
    assert seen["size_bytes"] == model.stat().st_size
    assert seen["metadata"] == {"producer": "tests/python/test_tool.py"}
    functions = {f["name"]: f for f in seen["functions"]}
    assert set(functions) == {"scale_add", "weighted", "steps", "gated", "count", "prepare"}
    assert functions["prepare"]["flags"] == ["prepare"]
    x, y, extra, flag = functions["gated"]["inputs"]
    assert (x["type"], y["kind"], extra["optional"], flag["symbol"]) == ("f32[n]", "in place", True, "flag")
    assert functions["weighted"]["results"][0]["type"] == "f32[16]"
    assert {s["name"]: s["maximum"] for s in seen["symbols"]} == {"n": 1 << 20, "count": 1000, "flag": 1}
    assert {c["name"]: c["source"] for c in seen["constants"]} == {"w": "stored", "w.doubled": "prepared"}
    assert seen["states"] == [{"name": "total", "type": "f32[16]", "dtype": "f32", "dims": [16]}]
    (kernel,) = seen["kernels"]
    assert kernel["parameter_count"] == 4 and {"host"} == {v["driver"] for v in kernel["variants"]}
    assert sum(s["size_bytes"] for s in seen["sections"]) <= seen["size_bytes"]


def test_inspect_for_people(model, echo_bundle):
    text = accx("inspect", model)
    assert "y: f32[n]  (updated in place)" in text and "extra?: f32[n]" in text and "# y = 2 * x + y" in text
    assert "prepare function not shown" in text and "\n  prepare" not in text
    assert "\n  prepare" in accx("inspect", model, "--all")
    assert accx("inspect", model, "--section", "states").split() == ["States", "total", "f32[16]"]
    assert "1 more (--all" in accx("inspect", model, "--section=constants", "--top", "1")
    assert not re.search(r" \n", text)
    text = accx("inspect", echo_bundle, "--section", "symbols,functions")
    assert "bucket, 2 to 64, multiple of 2, buckets 8 64" in text and "i32[(n * 2) + 1, ceildiv(n, 4)]" in text


def test_names_from_a_file_cannot_drive_the_terminal(echo_bundle):
    text = accx("inspect", echo_bundle)
    assert r"escape\x1b[31m" in text
    results = [r["name"] for f in accx_json("inspect", echo_bundle)["functions"] for r in f["results"]]
    assert HOSTILE_NAME in results


def test_json_cannot_drive_the_terminal(tmp_path):
    """Names have what json-c leaves as it is: DEL, C1 (U+009B begins what ESC [ does), and what
    turns the direction of writing round."""
    bundle, name = writer_module().BundleWriter(), "e\x1b[31m \x7f \x9b31m \u202e \u2066 \u00e9\u20ac\U0001f600 \u00c2\u00e2"
    bundle.metadata(name, name)
    bundle.function(name, doc=name)
    bundle.write(tmp_path / "odd.accx")
    text = accx("inspect", "--json", tmp_path / "odd.accx")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text)
    assert "\u00e9\u20ac\U0001f600 \u00c2\u00e2" in text and json.loads(text)["metadata"] == {name: name}


def test_verify(model, echo_bundle):
    assert accx("verify", model, echo_bundle).count(": ok, ") == 2
    (report,) = accx_json("verify", "--full", model)["files"]
    assert report["ok"] and report["data_checked"] and report["size_bytes"] == model.stat().st_size
    assert report["deprecated"] == []  # docs/contract.md: nothing is


def damaged(path, target, change):
    data = bytearray(path.read_bytes())
    change(data)
    target.write_bytes(data)
    return target


def test_verify_of_damaged_bundles(model, tmp_path):
    size = model.stat().st_size
    bad = {
        "truncated": lambda d: d.__delitem__(slice(size // 2, None)),
        "magic": lambda d: d.__setitem__(0, 0),
        "version": lambda d: d.__setitem__(slice(8, 10), b"\x09\x00"),
        "flipped": lambda d: d.__setitem__(1400, d[1400] ^ 1),
        "empty": lambda d: d.clear(),
    }
    for name, change in bad.items():
        path = damaged(model, tmp_path / f"{name}.accx", change)
        for verb in ("verify", "inspect", "run"):
            assert name in accx(verb, path, code=BAD_BUNDLE)
    weight = damaged(model, tmp_path / "weight.accx", lambda d: d.__setitem__(size - 1, d[size - 1] ^ 1))
    accx("verify", weight)
    assert "weight" in accx("verify", "--full", weight, code=BAD_BUNDLE)
    assert "no such file" in accx("verify", tmp_path / "nothing.accx", code=FAILED)


def test_verify_goes_on_after_a_failure(model, tmp_path):
    bad = damaged(model, tmp_path / "bad.accx", lambda d: d.__setitem__(0, 0))
    done = subprocess.run([ACCX, "verify", tmp_path / "none.accx", model, bad], capture_output=True, text=True)
    assert done.returncode == FAILED and done.stdout == "" and len(done.stderr.splitlines()) == 2


# ---- run: what must be said

def test_host_code_needs_permission(model):
    line = accx("run", model, "--function", "scale_add", "--input", "random", "--symbol", "n=4", code=REFUSED)
    assert ALLOW in line and "machine code" in line and "ACCRT_ERROR_UNTRUSTED" in line


@pytest.mark.parametrize("arguments, wanted", [
    (["--function", "scaleadd"], "did you mean 'scale_add'"),
    ([], "choose one with --function"),
    (["--function", "prepare"], "no function 'prepare' to call"),
    (["--function", "scale_add", "--input", "x=ones"], "y: f32[n]"),
    (["--function", "scale_add", "--input", "xx=ones"], "did you mean 'x'"),
    (["--function", "scale_add", "--input", "x=ones", "--input", "x=zeros"], "given twice"),
    (["--function", "scale_add", "--input", "ones", "--symbol", "n=2", "--output", "y=a.npy", "--output", "y=b.npy"], "--output names two files for result 'y'"),
    (["--function", "scale_add", "--input", "ones", "--symbol", "n=2", "--symbol", "n=3"], "symbol 'n' is 2 by --symbol n=2 and 3 by --symbol n=3"),
    (["--function", "steps", "--scalar", "count=1", "--scalar", "count=2"], "symbol 'count' is 1 by --scalar count=1 and 2 by --scalar count=2"),
    (["--function", "scale_add", "--input", "nonsense"], "says no input"),
    (["--function", "scale_add", "--input", "x=zeroes"], "there is no file 'zeroes', did you mean 'zeros'"),
    (["--function", "scale_add", "--input", "random:-1"], "seed"),
    (["--function", "scale_add", "--input", "random"], "n (specialize, 0 to 1048576)"),
    (["--function", "scale_add", "--input", "random", "--symbol", "n"], "NAME=WHOLE NUMBER"),
    (["--function", "scale_add", "--input", "random", "--symbol", "nn=1"], "did you mean 'n'"),
    (["--function", "scale_add", "--input", "random", "--symbol", "width=1"], "has no symbol 'width' (symbols: "),
    (["--function", "scale_add", "--input", "random", "--symbol", "n=1048577"], "0 to 1048576"),
    (["--function", "steps", "--input", "random", "--symbol", "n=4"], "count (specialize, 0 to 1000)"),
    (["--function", "steps", "--input", "count=ones"], "--scalar count="),
    (["--function", "steps", "--scalar", "cuont=1"], "did you mean 'count'"),
    (["--function", "steps", "--scalar", "count=1001"], "0 to 1000"),
    (["--function", "steps", "--scalar", "count=1", "--symbol", "count=2"], "count"),
])
def test_what_run_needs(model, arguments, wanted):
    assert wanted in accx("run", model, ALLOW, *arguments, code=USAGE)


def test_plan_of_outputs_is_checked_before_running(model, tmp_path):
    how = ["run", model, ALLOW, "--function", "weighted", "--input", "ones"]
    assert "did you mean 'y'" in accx(*how, "--output", "yy=a.npy", code=USAGE)
    assert "NAME=FILE.npy" in accx(*how, "--output", "y", code=USAGE)
    assert "cannot write" in accx(*how, "--output", f"y={tmp_path}/no/such.npy", code=FAILED)
    assert "cannot make" in accx(*how, "--out-dir", "/proc/nowhere", code=FAILED)


# ---- run: what comes out

def test_run_matches_numpy(model, tmp_path):
    x, y = np.linspace(-1, 1, 2500, dtype=np.float32), np.arange(2500, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "in.npz", x=x, y=y, other=x)
    np.savez_compressed(tmp_path / "packed.npz", values=y)
    wanted = 2 * x + y
    for inputs in (["--input", "in.npz"], ["--input", "x=x.npy", "--input", "y=packed.npz:values"],
                   ["--input", "y=in.npz", "--input", "x=in.npz:other"]):
        text = accx("run", model, ALLOW, "--function", "scale_add", *inputs, "--output", "y=y.npy", cwd=tmp_path)
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-6)
        assert "y: f32[2500]" in text and "(updated in place)" in text and "written to y.npy" in text
    assert np.array_equal(np.load(tmp_path / "in.npz")["y"], y)


def test_without_any_input_all_are_random(model):
    done = subprocess.run([ACCX, "run", model, ALLOW, "--function", "scale_add", "--symbol", "n=3"], capture_output=True, text=True)
    assert done.returncode == OK and "n=3 x=random y=random" in done.stdout
    assert done.stderr == "accx: note: no --input is given, so inputs are random\n"
    # the error alone, without the note
    accx("run", model, "--function", "scale_add", "--symbol", "n=3", code=REFUSED)


def test_summary_in_json(model, tmp_path):
    x = np.array([1, np.nan, -3, np.inf] * 4, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    seen = accx_json("run", model, ALLOW, "--function", "weighted", "--input", f"x={tmp_path}/x.npy",
                     "--out-dir", tmp_path / "out", "--threads", 1, "--device", "host:0")
    wanted = 2 * x + 2 * np.arange(16, dtype=np.float32)
    (result,) = seen["results"]
    assert np.array_equal(np.load(tmp_path / "out/y.npy"), wanted, equal_nan=True)
    assert result["path"] == str(tmp_path / "out/y.npy") and result["shape"] == [16] and result["size_bytes"] == 64
    assert (result["nan_count"], result["max"], result["mean"]) == (4, "Infinity", "Infinity")
    assert result["min"] == np.nanmin(wanted) and result["first"][1:4] == ["NaN", -2.0, "Infinity"]
    assert seen["device"] == "host:0" and seen["device_concurrency"] == 1 and seen["time_ns"]["count"] == 1


def test_scalars_optional_inputs_state_and_repeat(model, tmp_path):
    run = ["run", model, ALLOW]
    first = accx_json(*run, "--function", "steps", "--input", "ones", "--symbol", "n=5", "--scalar", "count=3")
    assert first["results"][0]["first"] == [4.0] * 5 and first["symbols"] == {"count": 3, "n": 5}
    assert accx_json(*run, "--function", "steps", "--input", "ones", "--symbol", "n=5", "--symbol", "count=3")[
        "results"] == first["results"]
    gated = [*run, "--function", "gated", "--input", "ones", "--symbol", "n=2"]
    assert accx_json(*gated, "--scalar", "flag=1")["results"][0]["first"] == [3.0, 3.0]
    assert accx_json(*gated, "--scalar", "flag=0")["results"][0]["first"] == [1.0, 1.0]
    assert accx_json(*gated, "--scalar", "flag=0", "--input", "extra=arange")["results"][0]["first"] == [1.0, 2.0]
    count = accx_json(*run, "--function", "count", "--input", "ones", "--repeat", 5)
    assert count["results"][0]["first"] == [5.0] * 8 and count["time_ns"]["count"] == 5
    assert "median of 5 runs" in accx(*run, "--function", "count", "--input", "ones", "--repeat", 5)


def test_errors_of_the_library_are_one_line(model, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    np.save(tmp_path / "y.npy", np.zeros(5, np.float32))
    np.save(tmp_path / "d.npy", np.zeros(4))
    np.save(tmp_path / "grid.npy", np.zeros((2, 2), np.float32))
    run = ["run", model, ALLOW, "--function", "scale_add", "--input", f"x={tmp_path}/x.npy", "--input"]
    line = accx(*run, f"y={tmp_path}/y.npy", code=FAILED)
    assert "'n' is 4" in line and "and 5" in line
    assert "holds f64" in accx(*run, f"y={tmp_path}/d.npy", code=FAILED)
    assert "2 dimensions" in accx(*run, f"y={tmp_path}/grid.npy", code=FAILED)
    assert "'n' is 5 by --symbol n=5 and 4 by input 'x'" in accx(*run, "y=ones", "--symbol", "n=5", code=FAILED)
    weighted = ["run", model, ALLOW, "--function", "weighted", "--input"]
    assert "16" in accx(*weighted, f"x={tmp_path}/x.npy", code=FAILED)
    assert "no-such" in accx(*weighted, "ones", "--device", "no-such", code=FAILED)
    assert "x86-64-v99" in accx(*weighted, "ones", "--variant", "x86-64-v99", code=REFUSED)
    (kernel,) = accx_json("inspect", model)["kernels"]
    accx(*weighted, "ones", "--variant", kernel["variants"][0]["arch"])


# ---- data types, files

def as_numpy(dtype):
    numpy_names = {"bf16": np.uint16, "f8e4m3fn": np.uint8, "f8e5m2": np.uint8, "bool": np.bool_}
    return np.dtype(numpy_names.get(dtype) or {"i": "int", "u": "uint", "f": "float"}[dtype[0]] + dtype[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_makes_the_round_trip(echo_bundle, tmp_path, dtype):
    kind = as_numpy(dtype)
    values = np.array([0, 1, 1, 0, 1], kind) if dtype == "bool" else np.arange(-3, 20).astype(kind)
    np.save(tmp_path / "x.npy", values)
    seen = accx_json("run", echo_bundle, "--function", f"echo_{dtype}", "--input", "x=x.npy", "--output", "y=y.npy", cwd=tmp_path)
    back = np.load(tmp_path / "y.npy")
    assert back.dtype == kind and back.tobytes() == values.tobytes()
    (result,) = seen["results"]
    bits = dtype in ("bf16", "f8e4m3fn", "f8e5m2")
    assert result["dtype"] == dtype and bool(result["note"]) == bits
    if not bits:
        assert result["min"] == values.min() and result["max"] == values.max()
        assert result["first"] == values[:8].tolist()
    head = (tmp_path / "y.npy").read_bytes()[:256]
    assert (len((tmp_path / "y.npy").read_bytes()) - values.nbytes) % 64 == 0 and head[6:8] == b"\x01\x00"


def test_values_of_small_floats(echo_bundle, tmp_path):
    def seen(dtype, bits, kind):
        np.save(tmp_path / "x.npy", np.array(bits, kind))
        result = accx_json("run", echo_bundle, "--function", f"echo_{dtype}", "--input", f"x={tmp_path}/x.npy")["results"][0]
        return result["first"]
    assert seen("bf16", [0x3F80, 0xC040, 0x7FC0, 0x7F80, 0x0001], np.uint16)[:4] == [1.0, -3.0, "NaN", "Infinity"]
    assert seen("f8e4m3fn", [0x38, 0xBC, 0x7F, 0x7E, 0x01], np.uint8) == [1.0, -1.5, "NaN", 448.0, pytest.approx(2**-9, 1e-3)]
    assert seen("f8e5m2", [0x3C, 0xFC, 0x7D, 0x7B, 0x00], np.uint8) == [1.0, "-Infinity", "NaN", 57344.0, 0.0]
    halves = np.array([6.1e-5, 5.96e-8, 65504, -0.1, np.nan], np.float16)
    assert seen("f16", halves, np.float16) == [pytest.approx(float(v), 1e-4) for v in halves[:4]] + ["NaN"]


def test_generated_values(echo_bundle, tmp_path):
    def generate(dtype, value, n=4096):
        accx("run", echo_bundle, "--function", f"echo_{dtype}", "--input", value, "--symbol", f"n={n}", "--output", "y=y.npy",
             cwd=tmp_path)
        return np.load(tmp_path / "y.npy")
    for dtype in ("f16", "f32", "f64"):
        values = generate(dtype, "random:7").astype(np.float64)
        assert -1 <= values.min() < -0.99 and 0.99 < values.max() <= 1 and abs(values.mean()) < 0.05
        assert np.array_equal(values, generate(dtype, "random:7")) and not np.array_equal(values, generate(dtype, "random"))
    for dtype in ("i8", "u16", "i64"):
        assert set(np.unique(generate(dtype, "random"))) == set(range(100))
    assert set(np.unique(generate("bool", "random"))) == {False, True}
    # f16 and bf16 by the tool equal the nearest-even rounding of numpy's
    assert np.array_equal(generate("f16", "arange", 5000), np.arange(5000, dtype=np.float32).astype(np.float16))
    f32 = np.arange(5000, dtype=np.float32).view(np.uint32)
    assert np.array_equal(generate("bf16", "arange", 5000), ((f32 + 0x7FFF + (f32 >> 16 & 1)) >> 16).astype(np.uint16))
    assert np.array_equal(generate("u8", "arange", 300), np.arange(300).astype(np.uint8))
    assert np.array_equal(generate("f64", "ones", 3), np.ones(3)) and not generate("f8e5m2", "zeros", 3).any()
    line = accx("run", echo_bundle, "--function", "echo_f8e5m2", "--input", "ones", "--symbol", "n=1", code=USAGE)
    assert "zeros only" in line


def test_shapes(echo_bundle, tmp_path):
    for shape in [(2, 4, 3), (0, 2, 3), (1, 64, 3)]:
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        accx("run", echo_bundle, "--function", "grid", "--input", f"x={tmp_path}/x.npy", "--output", f"y={tmp_path}/y.npy")
        assert np.array_equal(np.load(tmp_path / "y.npy"), x) and np.load(tmp_path / "y.npy").shape == shape
    for shape in [(2, 3, 3), (2, 66, 3)]:  # not a multiple of 2; beyond the maximum
        np.save(tmp_path / "x.npy", np.zeros(shape, np.float32))
        line = accx("run", echo_bundle, "--function", "grid", "--input", f"x={tmp_path}/x.npy", code=FAILED)
        assert "bucket, 2 to 64, multiple of 2" in line
    np.save(tmp_path / "x.npy", np.float32(2.5))
    accx("run", echo_bundle, "--function", "scalar", "--input", f"x={tmp_path}/x.npy", "--output", f"y={tmp_path}/y.npy")
    assert np.load(tmp_path / "y.npy").shape == () and np.load(tmp_path / "y.npy") == np.float32(2.5)


def test_sizes_that_are_expressions_are_worked_out(echo_bundle):
    (result,) = accx_json("run", echo_bundle, "--function", "sizes", "--input", "arange", "--symbol", "n=9")["results"]
    assert result["shape"] == [19, 3] and result["max"] == 19 * 3 - 1
    assert "n (specialize" in accx("run", echo_bundle, "--function", "sizes", "--input", "a=zeros", "--input", "b=ones", code=USAGE)


def test_names_from_a_bundle_stay_in_the_folder(echo_bundle, tmp_path):
    out = tmp_path / "deep" / "out"
    out.parent.mkdir()
    accx("run", echo_bundle, "--function", "hostile", "--input", "ones", "--symbol", "n=2", "--out-dir", out)
    assert [p.name for p in out.iterdir()] == ["_._.._escape__31m.npy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep"]


@pytest.mark.parametrize("words", ["run IN --threads", "run IN --repeat", "run IN --function scalar --input ones --rank",
                                   "run IN --function scalar --input ones --degree",
                                   "run IN --function scalar --input ones --sandbox --sandbox-cpu",
                                   "run IN --function scalar --input ones --sandbox --sandbox-memory", "bench IN --seconds", "bench IN --repeat", "bench IN --warmup",
                                   "inspect IN --top", "dump IN --inline", "pack IN OUT --split", "quantize IN OUT --layout q8_0 --group",
                                   "quantize IN OUT --layout q8_0 --threads"])  # fmt: skip
def test_numbers_are_digits(echo_bundle, tmp_path, words):
    """Nothing that strtoull takes as well: ' -5' was a split of 16 EiB."""
    how = [{"IN": echo_bundle, "OUT": tmp_path / "out.accx"}.get(word, word) for word in words.split()]
    for number in ("", " 5", "+5", " -5", "\t5", "5 ", "0x5", "5e0", "5\n", "٥"):
        said = accx(*how, number, code=USAGE)
        assert how[-1] in said and not (tmp_path / "out.accx").exists()


def test_each_result_has_a_file_of_its_own_whose_name_can_be_shown(tmp_path):
    """Names of results that become one file name, of two kinds: a result was written over
    another."""
    names = ["a_b.3", "a/b", "a\\b", "a b", "a_b.4", "é" * 100 + "xé" * 50, "x\u202ey", "\x85z", "\u2028"]
    b = bw.BundleWriter()
    n, f = b.symbol("n", minimum=1, maximum=9), b.function("main")
    f.input("x", "u8", [n])
    for i, name in enumerate(names):
        f.body.fill(f.result(name, "u8", [n]).write(0, n), i)
    b.write(tmp_path / "names.accx")
    how = ("run", tmp_path / "names.accx", "--input", "zeros", "--symbol", "n=1")
    said = accx(*how, "--out-dir", tmp_path / "out")
    files = [os.fsdecode(name) for name in os.listdir(os.fsencode(tmp_path / "out"))]
    assert sorted(int(np.load(tmp_path / "out" / file)[0]) for file in files) == list(range(len(names)))
    assert all(file.isprintable() and f"written to {tmp_path}/out/{file}\n" in said for file in files)
    twice = ("--output", f"a/b={tmp_path}/z.npy")
    accx(*how, *twice, *twice)
    assert "two results" in accx(*how, *twice, "--output", f"a b={tmp_path}/z.npy", code=USAGE)


# ---- .npy and .npz files that nobody vouches for

def npy(header, data=b"", version=b"\x01\x00", length=None):
    text = header.encode() if isinstance(header, str) else header
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + (struct.pack("<H", size) if version[0] == 1 else struct.pack("<I", size)) + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


def try_npy(bundle, tmp_path, content, code=FAILED, function="echo_f32"):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    return accx("run", bundle, "--function", function, "--input", f"x={path}", code=code)


@pytest.mark.parametrize("name, content, wanted", [
    ("empty", b"", "magic"),
    ("short", b"\x93NUM", "magic"),
    ("text", b"hello, world, this is no array", "magic"),
    ("version", npy(GOOD, b"\0" * 8, b"\x04\x00"), "version 4"),
    ("huge header", npy(GOOD, b"\0" * 8, b"\x02\x00", length=0xFFFFFFFF), "header of 4294967295"),
    ("cut header", npy(GOOD, b"", length=500), "ends inside"),
    ("no dictionary", npy("[1, 2]" + " " * 50), "header that is not"),
    ("code", npy("__import__('os').system('false')" + " " * 30), "header that is not"),
    ("missing key", npy("{'descr': '<f4', 'shape': (2,), }", b"\0" * 8), "header that is not"),
    ("twice", npy(GOOD[:-2] + "'descr': '<f4', }", b"\0" * 8), "header that is not"),
    ("trailing", npy(GOOD + "x", b"\0" * 8), "header that is not"),
    ("nul", npy(GOOD + "\0", b"\0" * 8), "header that is not"),
    ("negative", npy(GOOD.replace("2,", "-2,"), b"\0" * 8), "header that is not"),
    ("overflow", npy(GOOD.replace("2,", "99999999999999999999,"), b"\0" * 8), "header that is not"),
    ("product", npy(GOOD.replace("2,", "4611686018427387904, 4611686018427387904"), b"\0" * 8), "64 bits"),
    ("claims more", npy(GOOD.replace("2,", "1000000000000,"), b"\0" * 8), "needs 4000000000000"),
    ("too little", npy(GOOD, b"\0" * 7), "needs 8"),
    ("too much", npy(GOOD, b"\0" * 9), "needs 8"),
    ("rank", npy(GOOD.replace("2,", "1, " * 9), b"\0" * 4), "9 dimensions"),
    ("not a tuple", npy(GOOD.replace("2,", "2"), b"\0" * 8), "header that is not"),
    ("big-endian", npy(GOOD.replace("<f4", ">f4"), b"\0" * 8), "big-endian"),
    ("fortran", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }", b"\0" * 8), "Fortran"),
    ("object", npy(GOOD.replace("<f4", "|O"), b"\0" * 8), "Python objects"),
    ("unicode", npy(GOOD.replace("<f4", "<U4"), b"\0" * 32), "'<U4'"),
    ("structured", npy(GOOD.replace("'<f4'", "[('a', '<f4')]"), b"\0" * 8), "header that is not"),
    ("long type", npy(GOOD.replace("<f4", "<" + "f" * 100), b"\0" * 8), "header that is not"),
])
def test_bad_npy(echo_bundle, tmp_path, name, content, wanted):
    assert wanted in try_npy(echo_bundle, tmp_path, content), name


def test_good_npy_of_other_hands(echo_bundle, tmp_path):
    data = np.array([1.5, -2], "<f4").tobytes()
    for content in (npy(GOOD, data), npy(GOOD, data, b"\x02\x00"), npy(GOOD, data, b"\x03\x00"),
                    npy('{"shape":(2,),"fortran_order":False,"descr":"<f4"}\n', data)):
        assert "1.5 -2" in try_npy(echo_bundle, tmp_path, content, code=OK)
    one = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", data)
    # one dimension: both orders are the same
    assert "1.5 -2" in try_npy(echo_bundle, tmp_path, one, code=OK)
    # as ml_dtypes saves
    brain = npy("{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }", b"\x80\x3f\0\x40")
    assert "1 2" in try_npy(echo_bundle, tmp_path, brain, code=OK, function="echo_bf16")
    flags = npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", b"\x01\x07")
    assert "holds 7 as a boolean" in try_npy(echo_bundle, tmp_path, flags, function="echo_bool")


def test_random_damage_to_npy_is_survived(echo_bundle, tmp_path):
    dice = random.Random(rotation.seed())
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype=np.float32))
    path = tmp_path / "x.npy"
    for _ in range(60):
        data = bytearray(buffer.getvalue())
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data[:dice.randrange(len(data))] if dice.random() < 0.2 else data)
        done = subprocess.run([ACCX, "run", echo_bundle, "--function", "echo_f32", "--input", f"x={path}"],
                              capture_output=True, timeout=60)
        assert done.returncode in (OK, FAILED), (done.returncode, done.stderr, bytes(data))


def test_npz_mistakes(echo_bundle, tmp_path):
    run = ["run", echo_bundle, "--function", "echo_f32", "--input"]
    np.savez(tmp_path / "a.npz", a=np.zeros(3, np.float32), b=np.zeros(4, np.float32))
    assert "no array 'x'; it has: a, b" in accx(*run, f"x={tmp_path}/a.npz", code=FAILED)
    accx(*run, f"x={tmp_path}/a.npz:b")
    assert "no array with the name of an input" in accx(*run, f"{tmp_path}/a.npz", code=USAGE)
    assert "cannot open" in accx(*run, f"x={tmp_path}/none.npz", code=FAILED)
    (tmp_path / "text.npz").write_text("not an archive")
    assert "cannot open" in accx(*run, f"x={tmp_path}/text.npz", code=FAILED)
    assert "regular file" in accx(*run, "x=/dev/zero", code=FAILED)
    assert "regular file" in accx(*run, f"x={tmp_path}", code=FAILED)


def write_npz(path, payload, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", payload)


def test_npz_that_claims_too_much_or_is_damaged(echo_bundle, tmp_path):
    run = ["run", echo_bundle, "--function", "echo_f32", "--input", f"x={tmp_path}/x.npz"]
    size = 1 << 40
    write_npz(tmp_path / "x.npz", npy(GOOD.replace("2,", f"{size // 4},"), b"\0" * 64))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    central = data.rindex(b"PK\x01\x02")
    for offset in (22, central + 24):  # the uncompressed size, in both headers
        data[offset:offset + 4] = struct.pack("<I", 0xFFFFFFF0)
    (tmp_path / "x.npz").write_bytes(data)
    assert "cannot be" in accx(*run, code=FAILED)
    array = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_npz(tmp_path / "x.npz", buffer.getvalue(), zipfile.ZIP_STORED)
    accx(*run)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[2000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    assert "is damaged: its checksum" in accx(*run, code=FAILED)
    write_npz(tmp_path / "x.npz", buffer.getvalue(), zipfile.ZIP_BZIP2)
    assert "method" in accx(*run, code=FAILED)


def test_npz_of_more_than_32_bits_can_say(echo_bundle, tmp_path):
    """numpy writes ZIP64 fields for each array; here the directory has them too, with its own
    end."""
    array = np.arange(1000, dtype=np.float32)
    buffer = io.BytesIO()
    np.save(buffer, array)
    payload = buffer.getvalue()
    name, extra = b"x.npy", struct.pack("<HHQQQ", 1, 24, len(payload), len(payload), 0)
    crc = zlib.crc32(payload)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), 20) + name
    local += struct.pack("<HHQQ", 1, 16, len(payload), len(payload))
    start = len(local) + len(payload)
    central = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 45, 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0,
                          0xFFFFFFFF) + name + extra
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(central), start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + len(central), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 7) + b"comment"
    (tmp_path / "x.npz").write_bytes(local + payload + central + end64 + locator + end)
    run = ["run", echo_bundle, "--function", "echo_f32", "--input", f"x={tmp_path}/x.npz", "--output", f"y={tmp_path}/y.npy"]
    accx(*run)
    assert np.array_equal(np.load(tmp_path / "y.npy"), array)
    (tmp_path / "x.npz").write_bytes(local + payload + central + end64 + end)
    assert "cannot open" in accx(*run, code=FAILED)


def test_names_that_are_no_utf8_are_escaped(echo_bundle, tmp_path):
    """Names in a zip file are bytes: what is said of them is text all the same, on one line."""
    np.savez(tmp_path / "x.npz", abcd=np.zeros(7, np.int32))
    changed = (tmp_path / "x.npz").read_bytes().replace(b"abcd.npy", b"\xf6\xc3\xa9\x1b.npy")
    (tmp_path / "x.npz").write_bytes(changed)
    done = subprocess.run([ACCX, "run", echo_bundle, "--function", "echo_f32", "--input", f"x={tmp_path}/x.npz"], capture_output=True)
    assert done.returncode != 0 and "it has: \\xf6\u00e9\\x1b\n" in done.stderr.decode(), done.stderr


def test_npz_with_random_changes_is_read_or_refused(echo_bundle, tmp_path):
    rng = np.random.default_rng(rotation.seed())
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(7, np.int32), x=np.arange(64, dtype=np.float32))
    good = (tmp_path / "x.npz").read_bytes()
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        if rng.integers(4) == 0:
            data = data[rng.integers(len(data)):] if rng.integers(2) else data[:rng.integers(len(data))]
        (tmp_path / "x.npz").write_bytes(data)
        done = subprocess.run([ACCX, "run", echo_bundle, "--function", "echo_f32", "--input", f"x={tmp_path}/x.npz"],
                              capture_output=True, text=True)
        assert done.returncode in (OK, FAILED), (done.returncode, done.stderr, bytes(data))


# ---- drivers from outside

@pytest.mark.parametrize("host_memory", [True, False])
def test_driver_from_outside(echo_bundle, tmp_path, host_memory):
    """The null driver as a shared object; without its HOST_MEMORY flag arrays must travel through
    buffers and copies."""
    source = (ROOT / "runtime/drivers/null/null.c").read_text()
    if not host_memory:
        assert source.count("ACCRT_DEVICE_FLAG_HOST_MEMORY | ") == 1
        source = source.replace("ACCRT_DEVICE_FLAG_HOST_MEMORY | ", "")
    (tmp_path / "null.c").write_text(source)
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden",
                    f"-I{ROOT / 'include'}", "null.c", "-o", "null.so"], cwd=tmp_path, check=True)
    how = ["--driver", "./null.so", "--device", "null", "--function", "grid", "--symbol", "m=2", "--input", "arange"]
    for n in (5, 0):
        accx("run", echo_bundle, *how, "--symbol", f"n={n}", "--output", "y=y.npy", cwd=tmp_path)
        wanted = np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3)
        assert np.array_equal(np.load(tmp_path / "y.npy"), wanted)
        assert accx_json("bench", echo_bundle, *how, "--symbol", f"n={n}", "--repeat", 5, cwd=tmp_path)["device"] == "null:0"
    flags = {d["name"]: d["flags"] for d in accx_json("devices", "--driver", tmp_path / "null.so")["devices"]}
    assert ("host-memory" in flags["null:0"]) == host_memory
    assert accx("devices", "--driver", tmp_path / "nowhere.so", code=FAILED).count("nowhere.so") == 1


# ---- bench

def test_bench(model):
    seen = accx_json("bench", model, ALLOW, "--function", "scale_add", "--input", "random", "--symbol", "n=1000",
                     "--repeat", 50, "--threads", 1)
    call = seen["call_ns"]
    assert call["count"] == 50 and 0 < call["minimum"] <= call["median"] <= call["p90"] <= call["maximum"]
    assert seen["memory"]["weight_bytes"] >= 64 and seen["open_ns"] > 0 and seen["first_call_ns"] > 0
    text = accx("bench", model, ALLOW, "--function", "count", "--input", "ones", "--seconds", 1, "--warmup", 0)
    for word in ("median", "p90", "first call", "weights", "state", "transient"):
        assert f"\n  {word} " in text
    assert ALLOW in accx("bench", model, "--function", "count", "--input", "ones", code=REFUSED)


# ---- terminals

def on_terminal(*arguments, **environment):
    """Standard output and error as a terminal shows them."""
    return accx_tool.on_terminal([ACCX, *arguments], {**ENVIRONMENT, "TERM": "xterm", **environment})


def test_colours_only_on_a_terminal(model):
    code, text = on_terminal("inspect", model)
    assert code == OK and "\x1b[36m" in text
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, plain = on_terminal("inspect", model, **environment)
        assert code == OK and "\x1b[36m" not in plain and "\x1b[1m" not in plain
    code, text = on_terminal("run", model, ALLOW, "--function", "count", "--input", "ones", "--repeat", 3000000)
    assert code == OK and "running: " in text and "of 3000000" in text


def test_output_that_cannot_be_written_is_an_error(model):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([ACCX, "inspect", model], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == FAILED and "cannot write standard output" in done.stderr
