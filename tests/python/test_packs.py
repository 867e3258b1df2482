"""Packs that bundles name: which kernels they may call, with whose leave, what reaches the kernel,
and where libraries are never looked for. Each test is an attack that an unsigned file, or a file in
the wrong place, could make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import accrt
from accrt import _library, bundle_writer as bw

numpy = pytest.importorskip("numpy")
ROOT = Path(__file__).resolve().parents[2]

# `fill` writes n numbers: it holds n against the length that it is told. `old` is the same as packs
# of kernel ABI 0.2 wrote it.
SOURCE = r"""
#include <stdio.h>
#include "accrt/kernel.h"
#ifdef EVIL
__attribute__((constructor)) static void evil(void) { FILE* f = fopen(EVIL, "w"); if (f) fclose(f); }
#endif
typedef struct params {
  const float* x; float* y; void* scratch; int64_t n; float value; int64_t x_bytes, y_bytes, scratch_bytes;
} params_t;
static int32_t fill(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  const params_t* p = d->params;
  (void)e;
  if (p->n < 0 || p->n > p->y_bytes / 4) {
    snprintf(w->message, w->message_capacity_bytes, "n is %lld, y has %lld bytes", (long long)p->n, (long long)p->y_bytes);
    return 9;
  }
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->value;
  if (p->n > 2) {
    p->y[0] = (float)p->x_bytes; p->y[1] = (float)p->y_bytes; p->y[2] = (float)p->scratch_bytes;
  }
  return 0;
}
typedef struct old_params { float* y; int64_t n; float value; } old_params_t;
static int32_t old(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {
  const old_params_t* p = d->params;
  (void)e, (void)w;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->value;
  return 0;
}
static int32_t add(const accrt_kernel_environment_t* e, const accrt_operator_call_t* c, void* state) {
  const params_t* p = c->params;
  (void)e, (void)state;
  if (p->n > p->y_bytes / 4) return 9;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->value;
  return 0;
}
static const accrt_kernel_param_t params[] = {
    {"x", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, 3, 0, 8, 0},
    ACCRT_KERNEL_PARAM(params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(params_t, scratch, WORKSPACE, READ_WRITE),
    ACCRT_KERNEL_PARAM(params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(params_t, value, SCALAR, NONE),
    ACCRT_KERNEL_LENGTH(params_t, x_bytes),
    ACCRT_KERNEL_LENGTH(params_t, y_bytes),
    ACCRT_KERNEL_LENGTH(params_t, scratch_bytes),
};
static const accrt_kernel_param_t old_list[] = {
    ACCRT_KERNEL_PARAM(old_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(old_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(old_params_t, value, SCALAR, NONE),
};
typedef struct add_params { float* y; int64_t n; float value; int64_t y_bytes; } add_params_t;
static int32_t add_execute(const accrt_kernel_environment_t* e, const accrt_operator_call_t* c, void* state) {
  const add_params_t* p = c->params;
  (void)e, (void)state, (void)add;
  if (p->n > p->y_bytes / 4) return 9;
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->value;
  return 0;
}
static const accrt_kernel_param_t add_list[] = {
    ACCRT_KERNEL_PARAM(add_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(add_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(add_params_t, value, SCALAR, NONE),
    ACCRT_KERNEL_LENGTH(add_params_t, y_bytes),
};
static const accrt_kernel_def_t kernels[] = {
    {.struct_size = sizeof(accrt_kernel_def_t), .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL, .name = "fill", .entry = fill,
     .params = params, .param_count = 8, .params_size_bytes = sizeof(params_t)},
    {.struct_size = sizeof(accrt_kernel_def_t), .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC, .name = "old", .entry = old, .params = old_list, .param_count = 3,
     .params_size_bytes = sizeof(old_params_t)},
};
static const accrt_operator_def_t operators[] = {
    {.struct_size = sizeof(accrt_operator_def_t), .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL, .name = "operator",
     .params = add_list, .param_count = 4, .params_size_bytes = sizeof(add_params_t), .execute = add_execute},
    {.struct_size = sizeof(accrt_operator_def_t), .name = "old_operator", .params = old_list, .param_count = 3,
     .params_size_bytes = sizeof(old_params_t), .execute = add_execute},
};
static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof table, .abi_version = ACCRT_KERNEL_ABI_VERSION, .name = "attack", .kernels = kernels, .kernel_count = 2,
    .kernel_size_bytes = sizeof kernels[0], .host_operators = operators, .host_operator_count = 2,
    .host_operator_size_bytes = sizeof operators[0]};
ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t* accrt_kernel_pack_query(uint32_t max, const accrt_kernel_environment_t* e) {
  (void)e;
  return max < ACCRT_KERNEL_ABI_VERSION ? 0 : &table;
}
"""


def build(out: Path, marker=None) -> Path:
    """The pack as a shared object; with `marker`, loading it makes that file."""
    source = out.with_suffix(".c")
    source.write_text(SOURCE)
    evil = [f'-DEVIL="{marker}"'] if marker else []
    subprocess.run(["cc", "-std=c11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", f"-I{ROOT / 'include'}", *evil, str(source),
                    "-o", str(out)], check=True)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return build(tmp_path_factory.mktemp("packs") / "attack.so")


def bundle(path: Path, entry: str, count=None, signer=None) -> Path:
    """main(m) -> y: f32[n]: the entry of pack `attack` writes `count` numbers (n unless given) into
    y."""
    writer = bw.BundleWriter()
    n = writer.symbol("n", minimum=1, maximum=1 << 20)
    of_kernel = entry == "fill"
    kernel = writer.kernel("k", ([bw.Parameter("x", "buffer", "read", optional=True)] if of_kernel else [])
                           + [bw.Parameter("y", "buffer", "write")]
                           + ([bw.Parameter("scratch", "workspace")] if of_kernel else [])
                           + [bw.Parameter("n", "symbol"), bw.Parameter("value", "scalar", size_bytes=4)])  # fmt: skip
    kernel.variant(writer.pack("attack"), entry=entry, driver="host", arch_kind="portable")
    main = writer.function("main")
    main.input("x", "f32", [n])
    y = main.result("y", "f32", [n])
    arguments = {"y": y.write(0, n * 4), "n": n if count is None else count, "value": 1.5}
    if of_kernel:
        arguments["scratch"] = main.transient(512).update(0, 200)
    main.body.dispatch(kernel, arguments)
    writer.write(str(path), signer) if signer else writer.write(str(path))
    return path


def run(path: Path, instance, values=5):
    program = accrt.Program(accrt.Bundle(str(path), instance=instance), instance.device("host"))
    return numpy.asarray(program.session().main(numpy.zeros(values, "f4")))


def options(pack: Path, **more):
    return {"packs.path": str(pack.parent), **more}


@pytest.mark.parametrize("entry", ["old", "old_operator"])
def test_only_kernels_whose_author_agreed_are_callable(pack, tmp_path, entry):
    """Not under the widest policy either; and not where the program itself has opened the pack."""
    for opened in (False, True):
        instance = accrt.Instance(trust="all", options=options(pack))
        held = accrt.KernelPack(instance, pack) if opened else None
        with pytest.raises(accrt.NoVariantError, match="does not let bundles call it"):
            run(bundle(tmp_path / "old.accx", entry), instance)
        del held


def test_lengths_reach_the_kernel(pack, tmp_path):
    instance = accrt.Instance(trust="all", options=options(pack))
    got = run(bundle(tmp_path / "fill.accx", "fill"), instance, 7)
    assert got.tolist() == [0.0, 28.0, 200.0, 1.5, 1.5, 1.5, 1.5]  # x is absent
    assert run(bundle(tmp_path / "operator.accx", "operator"), instance, 7).tolist() == [1.5] * 7


@pytest.mark.parametrize("entry", ["fill", "operator"])
@pytest.mark.parametrize("count", [6, 1 << 40, -1])
def test_a_count_beyond_the_buffer_is_refused_by_the_kernel(pack, tmp_path, entry, count):
    if entry == "operator" and count < 0:
        pytest.skip("nothing is written")
    instance = accrt.Instance(trust="all", options=options(pack))
    with pytest.raises(accrt.KernelError):
        run(bundle(tmp_path / "far.accx", entry, count), instance)


def test_unsigned_bundles_need_the_policys_leave(tmp_path):
    """And nothing is opened before: the constructor of a pack that is not used does not run."""
    marker = tmp_path / "ran"
    packs = tmp_path / "installed"
    packs.mkdir()
    evil = build(packs / "attack.so", marker)
    key = accrt.trust.SigningKey.generate()
    public = tmp_path / "key.pem"
    key.write_public(public)
    plain, signed = bundle(tmp_path / "plain.accx", "fill"), bundle(tmp_path / "signed.accx", "fill", signer=key)
    code = ("import sys, numpy, accrt; b, trust, packs, keys = sys.argv[1:]\n"
            "i = accrt.Instance(trust=trust, keys=[keys] if keys else [], options={'packs.path': packs})\n"
            "p = accrt.Program(accrt.Bundle(b, instance=i), i.device('host'))\n"
            "print(numpy.asarray(p.session().main(numpy.zeros(5, 'f4')))[3])")  # fmt: skip

    def runs(path, trust, keys=""):
        marker.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-c", code, str(path), trust, str(packs), str(keys)], capture_output=True, text=True)
        assert done.returncode == 0 or "NoVariantError" in done.stderr or "UntrustedError" in done.stderr, done.stderr
        return done.stdout.strip() == "1.5", marker.exists()

    assert runs(plain, "signed") == (False, False)
    assert runs(signed, "signed") == (False, False)
    assert runs(signed, "no-host-code", public) == (False, False)
    assert runs(plain, "no-host-code") == (False, False)
    assert runs(signed, "signed", public) == (True, True)
    assert runs(plain, "all") == (True, True)
    # A folder, or a file, that others may write.
    for path, mode, back in ((packs, 0o777, 0o755), (packs, 0o1777, 0o755), (evil, 0o775, 0o755), (tmp_path, 0o770, 0o700)):
        path.chmod(mode)
        expected = (True, True) if (path, mode) == (packs, 0o1777) else (False, False)  # as /tmp
        assert runs(plain, "all") == expected, (path, oct(mode))
        path.chmod(back)


def test_a_library_found_by_a_relative_path_opens_no_packs(tmp_path, monkeypatch):
    """LD_LIBRARY_PATH=. and accrt/packs/NAME.so under the current folder: its constructors ran,
    whatever the policy."""
    marker = tmp_path / "ran"
    (tmp_path / "accrt" / "packs").mkdir(parents=True)
    build(tmp_path / "accrt" / "packs" / "attack.so", marker)
    shutil.copy(os.path.realpath(_library.lib._name), tmp_path / "libaccrt.so.0")
    # PYTHONPATH may be relative
    package = os.path.dirname(os.path.dirname(os.path.realpath(accrt.__file__)))
    plain = bundle(tmp_path / "plain.accx", "fill")
    for text, options_text in (("", "{}"), ("relative", "{'packs.path': 'accrt/packs'}"), ("dot", "{'packs.path': '.'}")):
        code = ("import accrt\n"
                f"i = accrt.Instance(trust='all', options={options_text})\n"
                f"accrt.Program(accrt.Bundle({str(plain)!r}, instance=i), i.device('host'))")  # fmt: skip
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=package, LD_LIBRARY_PATH=".", ACCRT_LIBRARY="libaccrt.so.0"))  # fmt: skip
        # The package does not open the library there; the library's own rule: safe_open_test.c
        assert "absolute path" in done.stderr and not marker.exists(), (text, done.stderr)
