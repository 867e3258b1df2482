"""`accx kernel check`: a kernel that keeps what it declares, and each way not to."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import accx_tool
from accx_tool import accx, accx_output

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = ["--type", "x=f32[n]", "--type", "y=f32[n]", "--grid", "ceildiv(n, 256)"]
pytestmark = [accx_tool.needs_tool, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]


def build(folder, name, *flags):
    path = folder / f"{name}.so"
    subprocess.run(["cc", "-std=c11", "-O1", "-fPIC", "-shared", *flags, f"-I{ROOT / 'include'}", str(ROOT / "tests/python/kernel_mistakes.c"), "-o", str(path)],
                   check=True)
    return path


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return build(tmp_path_factory.mktemp("kernels"), "mistakes")


def checked(pack, kernel, *options, code=5, sizes=SIZES):
    return accx_output("kernel", "check", pack, "--kernel", kernel, *sizes, *options, code=code)[0].splitlines()


def test_a_good_kernel(pack):
    assert checked(pack, "good", code=0) == ["kernel good: ok, 4 cases"]
    assert checked(pack, "good", "--set", "n=1,255,256,257,5000", code=0) == ["kernel good: ok, 6 cases"]
    assert checked(pack, "good", "--input", "x=random:7", "--threads", "3", code=0) == ["kernel good: ok, 4 cases"]


@pytest.mark.parametrize("kernel, found", [
    ("writes_after", "writes outside of y: byte 0 after its end, with n=1"),
    ("writes_before", "writes outside of y: byte 1 before its beginning, with n=1"),
    ("writes_far_after", "writes outside of y: byte 1048576 after its end, with n=1"),
    ("reads_after", "reads outside of x: byte 0 after its end, with n=1"),
    ("reads_before", "reads outside of x: byte 4 before its beginning, with n=1"),
    ("differs", "gives other bytes in y when it runs again: from byte 0 on, with n=1"),
    ("writes_read", "writes x, which is declared as read: byte 0, with n=1"),
    ("writes_same", "writes x, which is declared as read: byte 0, with n=1"),
    ("leaves", "does not write all of y, or reads it: byte 144 depends on what was there before, with n=37"),
    ("crashes", "crashed with signal 11 (SIGSEGV), with n=1"),
    ("endless", "runs longer than 2 seconds, with n=37"),
    ("remembers", "writes outside of y: byte N before its beginning, with n=1"),
    ("changes_parameters", "gives other bytes in y from a recorded list: from byte 0 on, with n=1"),
    ("writes_later", "writes outside of y: byte 0 after its end, with n=1"),
    ("divides", "crashed with signal 8 (SIGFPE), with sizes of 0"),
    ("touches_nothing", "writes outside of y: byte 0 after its end, with sizes of 0"),
    ("refuses", "refuses its arguments: kernel 'refuses' returned 9 in workgroup (0, 0, 0) of (1, 1, 1), with n=37")])
def test_a_mistake_is_one_line(pack, kernel, found):
    if kernel in ("divides", "writes_same", "reads_after", "reads_before") and os.uname().machine != "x86_64":
        pytest.skip("this processor divides by 0, or does not say whether a fault reads or writes")
    lines = checked(pack, kernel, *(["--set", "n=37", "--seconds", "2"] if kernel == "endless" else ["--seconds", "60"]))
    assert f"kernel {kernel} {found}" in (re.sub(r"byte \d{2,} before", "byte N before", line) for line in lines)
    assert len(lines) <= 2  # a kernel may do the same to another argument


def test_what_cannot_be_captured_has_a_word(pack):
    """A list runs twice, as a graph is replayed: what a kernel leaves in its block of parameters is
    there in the second run, and in no other."""
    told = json.loads(accx_output("kernel", "check", pack, "--kernel", "changes_parameters", *SIZES, "--json", "--seconds", "60", code=5)[0])
    findings = told["kernels"][0]["findings"]
    assert [f["what"] for f in findings] == ["not_capturable"] * len(findings) and findings[0]["parameter"] == "y"
    assert "n=100003" not in str(findings)  # there it does nothing


def test_what_it_may_differ_in_is_no_finding(pack):
    assert checked(pack, "says_it_differs", code=0) == ["kernel says_it_differs: ok, 4 cases, not deterministic, as it declares"]


def test_kernels_that_bundles_may_call_need_no_options(pack):
    assert checked(pack, "keeps_lengths", code=0, sizes=[]) == ["kernel keeps_lengths: ok, 7 cases"]
    assert checked(pack, "keeps_lengths", code=0) == ["kernel keeps_lengths: ok, 11 cases"]
    found = checked(pack, "trusts_numbers", sizes=[])
    assert len(found) == 1 and re.match(r"kernel trusts_numbers (crashed with signal 11 \(SIGSEGV\)|writes outside of y: byte .*), with n=9223372036854775807", found[0])


def test_one_crash_does_not_take_the_report_along(tmp_path):
    pack = build(tmp_path, "three", "-DONLY=KERNEL(crashes),KERNEL(writes_far_after),KERNEL(good)", "-w")
    out, _ = accx_output("kernel", "check", pack, *SIZES, "--seconds", "60", code=5)
    assert out.splitlines() == ["kernel crashes crashed with signal 11 (SIGSEGV), with n=1",
                                "kernel writes_far_after writes outside of y: byte 1048576 after its end, with n=1", "kernel good: ok, 4 cases"]


def test_the_report_has_every_kernel_that_could_be_checked(tmp_path):
    pack = build(tmp_path, "two", "-DONLY=KERNEL(good),OPEN(keeps_lengths)", "-w")
    lines = accx_output("kernel", "check", pack, code=5)[0].splitlines()
    assert lines[0].startswith("kernel good: not checked: its pack does not declare how large its memory is") and lines[1:] == ["kernel keeps_lengths: ok, 7 cases"]


def test_kernels_are_checked_where_pipes_have_no_packets(pack, tmp_path):
    """As in gVisor."""
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text("""
        #define _GNU_SOURCE
        #include <errno.h>
        #include <fcntl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int pipe2(int ends[2], int flags) {
          if ((flags & O_DIRECT) == 0)
            return (int)syscall(SYS_pipe2, ends, flags);
          errno = EINVAL;
          return -1;
        }""")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(shim)], check=True)
    # a sanitizer's library would have to come first
    environment = {**os.environ, "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {shim}".strip()}
    for kernel, code, line in (("good", 0, "kernel good: ok, 4 cases"), ("crashes", 5, "kernel crashes crashed with signal 11 (SIGSEGV), with n=1")):
        done = subprocess.run([str(accx_tool.ACCX), "kernel", "check", str(pack), "--kernel", kernel, *SIZES], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout.splitlines()) == (code, [line]), done.stderr


def test_json(pack):
    told = json.loads(accx_output("kernel", "check", pack, "--kernel", "writes_after", *SIZES, "--json", code=5)[0])
    assert told["ok"] is False and [kernel["name"] for kernel in told["kernels"]] == ["writes_after"]
    (found,) = told["kernels"][0]["findings"]
    assert found == {"what": "writes_outside", "parameter": "y", "byte": 4, "size_bytes": 4, "with": "n=1",
                     "text": "kernel writes_after writes outside of y: byte 0 after its end, with n=1"}
    told = json.loads(accx("kernel", "check", pack, "--kernel", "good", *SIZES, "--json"))
    assert told["ok"] is True and told["kernels"][0]["cases"] == 4 and told["kernels"][0]["findings"] == []
    told = json.loads(accx_output("kernel", "check", pack, "--kernel", "crashes", *SIZES, "--json", code=5)[0])
    assert told["kernels"][0]["findings"][0]["what"] == "crashes" and told["kernels"][0]["findings"][0]["signal"] == 11


def test_what_is_missing_or_wrong_is_one_line(pack, tmp_path):
    def said(code, *words):
        text = accx("kernel", *words, code=code)
        assert text.count("\n") == 1
        return text

    one = ["check", pack, "--kernel", "good"]
    missing = said(2, *one)
    assert "its pack does not declare how large its memory is, and how many workgroups it takes" in missing
    assert "--type 'x=f32[n]' --type 'y=f32[n]' --grid 'ceildiv(n, 256)'" in missing
    assert "does not declare how many workgroups" in said(2, *one, *SIZES[:4])
    assert "no kernel of the pack has a parameter 'z'" in said(2, *one, *SIZES, "--type", "z=f32[n]")
    assert "--type 'x=g32[n]' is no type" in said(2, *one, "--type", "x=g32[n]")
    assert "has the size m, which is no parameter: give its values, --set m=1,37" in said(2, *one, "--type", "x=f32[m]", *SIZES[2:])
    assert "cannot be computed: sizes are numbers, names of sizes, (n + 1) // 2" in said(2, *one, "--type", "x=f32[n/2]", *SIZES[2:])
    assert "cannot be computed" in said(2, *one, "--type", "x=f32[n * n * n]", *SIZES[2:])
    assert "--grid is ''" in said(2, *one, *SIZES[:4], "--grid", "")
    assert "is no whole number" in said(2, *one, *SIZES, "--set", "n=1.5")
    assert "--set gives 'n' twice" in said(2, *one, *SIZES, "--set", "n=1", "--set", "n=2")
    assert "--type gives 'x' twice" in said(2, *one, *SIZES, "--type", "x=f32[n]")
    assert "x is memory" in said(2, *one, *SIZES, "--set", "x=1")
    assert "did you mean 'random'" in said(2, *one, *SIZES, "--input", "x=randm")
    assert "is too large" in said(2, *one, *SIZES, "--set", "n=100000000000")
    assert "good" in said(1, "check", pack, "--kernel", "god", *SIZES)
    assert "accx kernel check PACK" in said(2, "chek", pack)
    assert "No such file" in said(1, "check", tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no machine code")
    assert "text.so is no shared object of this machine; machine code of a GPU needs --device cuda:0" in said(1, "check", tmp_path / "text.so")
    (tmp_path / "code.cubin").write_bytes(b"\x7fELF" + bytes(14) + bytes([190, 0]))
    assert "needs --device cuda:0" in said(1, "check", tmp_path / "code.cubin")
    assert "minimal.accx is a bundle: check the pack" in said(1, "check", ROOT / "tests/golden/0.3/minimal.accx")


def test_a_pack_that_crashes_when_it_is_loaded(tmp_path):
    pack = build(tmp_path, "crash", "-DCRASH_AT_LOAD")
    (line,) = accx_output("kernel", "check", pack, code=5)[0].splitlines()
    assert line == f"pack {pack} crashed with signal 11 (SIGSEGV)"


def test_a_pack_whose_table_is_wrong_is_malformed(tmp_path):
    pack = build(tmp_path, "wrong", "-DONLY=KERNEL(good),KERNEL(good)", "-Wno-unused-function", "-Wno-unused-const-variable")
    said = accx("kernel", "check", os.path.relpath(pack), *SIZES, code=3)
    assert "good" in said and said.count(pathlib.Path(pack).name) == 1, said


# ---- Machine code of a GPU, under the stand-in for CUDA's driver

PTX = ".version 7.0\n.target sm_80\n.address_size 64\n" + "".join(
    f".visible .entry {name}(.param .u64 x, .param .u64 y, .param .u64 n)\n{{\n  ret;\n}}\n"
    for name in ("good", "writes_after", "writes_read", "differs", "reads_after", "leaves", "far"))
TWIN = """
#include "fakecuda.h"
#define TWIN(name, ...)                                                                  \\
  FAKECUDA_KERNEL(name) {                                                                \\
    float *x = *(float* const*)params[0], *y = *(float* const*)params[1];                \\
    const long long n = *(const long long*)params[2], first = (long long)block->index[0] * block->block[0]; \\
    for (long long i = first; i < first + block->block[0] && i < n; ++i) { __VA_ARGS__; } \\
    return 0;                                                                            \\
  }
static int calls;
TWIN(good, y[i] = 2 * x[i])
TWIN(writes_after, y[i] = 2 * x[i]; y[n] = 1)
TWIN(writes_read, y[i] = 2 * x[i]; x[i] += 1)
TWIN(differs, y[i] = 2 * x[i] + (float)calls++)
TWIN(reads_after, y[i] = 2 * x[i + 1])
TWIN(leaves, if (i < n - 1 || n == 1) y[i] = 2 * x[i])
TWIN(far, y[i] = 2 * x[i]; if (n == 37) y[1ll << 28] = 1)
"""
GPU = ["--seconds", "60", "--device", "cuda:0", "--block", "256", "--param", "x=read f32[n]", "--param", "y=write f32[n]", "--param", "n=i64", "--grid", "ceildiv(n, 256)"]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """Checks a kernel of PTX: its lines, or with another code its line of error."""
    from test_standin import environment, STAND_IN

    if not (STAND_IN / "libcuda.so.1").exists():
        pytest.skip("the stand-in for CUDA's driver was not built: CUDA 13's headers are not here")
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "mistakes.ptx").write_text(PTX)
    (folder / "twin.c").write_text(TWIN)
    subprocess.run(["cc", "-std=c11", f"-I{ROOT / 'tests/fakecuda'}", f"-I{ROOT / 'include'}", "-shared", "-fPIC", "-o", folder / "twin.so", folder / "twin.c"],
                   check=True)
    env = dict(environment(), FAKECUDA_KERNELS=str(folder / "twin.so"), XDG_CACHE_HOME=str(folder))

    def check(*options, code=5):
        done = subprocess.run([accx_tool.ACCX, "kernel", "check", folder / "mistakes.ptx", *options], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code not in (0, 5) else done.stdout
    return check


@pytest.mark.parametrize("kernel, found", [
    ("writes_after", "writes outside of y: byte 0 after its end, with n=1"),
    ("writes_read", "writes x, which is declared as read: byte 0, with n=1"),
    ("differs", "gives other bytes in y when it runs again: from byte 0 on, with n=1"),
    ("reads_after", "reads outside of its arguments: y depends on what lies there, from byte 0 on, with n=1"),
    ("leaves", "does not write all of y, or reads it: byte 144 depends on what was there before, with n=37")])
def test_a_mistake_on_a_gpu(gpu, kernel, found):
    assert gpu("--kernel", kernel, *GPU) == f"kernel {kernel} {found}\n"


def test_a_gpu_that_fails_is_a_finding_and_the_next_case_runs(gpu):
    line = gpu("--kernel", "far", *GPU)
    assert re.fullmatch(r"kernel far crashed: .*CUDA_ERROR_ILLEGAL_ADDRESS.*, with n=37\n", line)
    told = json.loads(gpu("--kernel", "far", *GPU, "--json"))
    assert told["kernels"][0]["cases"] == 4 and told["kernels"][0]["findings"][0]["what"] == "crashes"


def test_declared_parameters_are_held_against_the_image(gpu):
    assert gpu("--kernel", "good", *GPU, code=0) == "kernel good: ok, 4 cases\n"
    wrong = [word.replace("n=i64", "n=i32") for word in GPU]
    assert "parameter 2 'n': declared at offset 16 with 4 bytes, in the image at offset 16 with 8 bytes" in gpu("--kernel", "good", *wrong, code=3)
    assert "1 parameters are declared, the image has 3" in gpu("--kernel", "good", *GPU[:8], *GPU[12:], code=3)
    assert "did you mean 'good'" in gpu("--kernel", "god", *GPU, code=1)
    assert "give --kernel NAME, --block THREADS" in gpu(*GPU, code=2)
    assert "--block is '0'" in gpu("--kernel", "good", *[word.replace("256", "0") if word == "256" else word for word in GPU], code=2)
    assert "--param is 'n=i65'" in gpu("--kernel", "good", *[word.replace("i64", "i65") for word in GPU], code=2)
    said = gpu("--kernel", "good", *[word.replace(" f32[n]", "") for word in GPU], code=2)
    assert "--type 'x=f32[" in said


def test_options_of_gpus_are_refused_for_packs(pack):
    assert "--block is for machine code of a device" in accx("kernel", "check", pack, *SIZES, "--block", "256", code=2)


#: what a kernel, or the function that gives the pack's table, may do to the process that runs it
HOSTILE = {
    "exit(0);": "ends the process that runs it, or closes its files: exit code 0",
    "exit(5);": "ends the process that runs it, or closes its files: exit code 5",
    "_exit(1);": "ends the process that runs it, or closes its files: exit code 1",
    "for (int fd = 0; fd < 256; ++fd) close(fd);": "ends the process that runs it, or closes its files: exit code 0",
    "fork();": "starts other processes, which were ended",
    "if (fork() == 0) for (setsid();;) sleep(100);": "starts other processes, which were ended",
    "for (;;) sleep(1);": "runs longer than 2 seconds",
    'printf("\\033[2J\\nkernel k: ok, 4 cases\\n"); fprintf(stderr, "\\033[2J"); fflush(stdout);': None,
    'for (int fd = 0; fd < 64; ++fd) (void)!write(fd, "\\033[2J", 4);': "writes to files of the process that runs it",
}


def hostile(folder, at_load, code):
    """A pack whose kernel, or whose table's function, does what `code` says."""
    text = f"""
#include <accrt/kernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct {{ const float* x; float* y; int64_t n; }} params_t;
static int32_t run(const accrt_kernel_environment_t* e, const accrt_kernel_dispatch_t* d, const accrt_kernel_workgroup_t* w) {{
  const params_t* p = d->params;
  (void)e; (void)w;
  {"" if at_load else code}
  for (int64_t i = 0; i < p->n; ++i) p->y[i] = p->x[i];
  return 0;
}}
static const accrt_kernel_param_t params[] = {{ACCRT_KERNEL_PARAM(params_t, x, BUFFER, READ), ACCRT_KERNEL_PARAM(params_t, y, BUFFER, WRITE),
                                              ACCRT_KERNEL_PARAM(params_t, n, SYMBOL, NONE)}};
static const accrt_kernel_def_t kernels[] = {{{{.struct_size = sizeof(accrt_kernel_def_t), .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC, .name = "k",
                                              .entry = run, .params = params, .param_count = 3, .params_size_bytes = sizeof(params_t)}}}};
static const accrt_kernel_pack_table_t table = {{.struct_size = sizeof table, .abi_version = ACCRT_KERNEL_ABI_VERSION, .name = "hostile",
                                                .kernels = kernels, .kernel_count = 1, .kernel_size_bytes = sizeof(accrt_kernel_def_t)}};
ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t* accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {{
  (void)max_abi; (void)environment;
  {code if at_load else ""}
  return &table;
}}
"""
    (folder / "hostile.c").write_text(text)
    subprocess.run(["cc", "-std=gnu11", "-O1", "-w", "-fPIC", "-shared", f"-I{ROOT / 'include'}", str(folder / "hostile.c"), "-o", str(folder / "hostile.so")], check=True)
    return folder / "hostile.so"


@pytest.mark.parametrize("at_load", [False, True], ids=["kernel", "table"])
@pytest.mark.parametrize("code", HOSTILE)
def test_what_a_kernel_does_to_its_process_is_a_finding(tmp_path, code, at_load):
    """Never an `ok`, silence, text of the kernel's own, or a process that is left."""
    found = HOSTILE[code]
    pack = hostile(tmp_path, at_load, code)
    seconds = ("--seconds", "2" if found and "2 seconds" in found else "60")
    command = ["kernel", "check", pack, "--type", "x=f32[n]", "--type", "y=f32[n]", "--grid", "1", "--set", "n=5", *seconds]
    out, err = accx_output(*command, code=0 if found is None else 5)
    assert "\033" not in out + err
    if found is None:
        assert out == "kernel k: ok, 2 cases\n" and err == ""
    else:
        assert found in out, out
        assert all(line.startswith("accx: ") for line in err.splitlines())
    left = [entry for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline") if str(pack).encode() in _read(entry)]
    assert left == []


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("code, found", [
    ("exit(0);", ["kernel k ends the process that runs it, or closes its files: exit code 0"]),
    ("exit(5);", ["kernel k ends the process that runs it, or closes its files: exit code 5"]),
    ("if (fork() == 0) for (;;) sleep(100);", []),
    ("for (;;) sleep(1);", ["kernel k runs longer than 2 seconds"])])
def test_so_is_it_in_python(tmp_path, code, found):
    import numpy as np

    import accrt

    kernel = accrt.Kernel.from_pack(hostile(tmp_path, False, code), "k")
    seconds = 2 if "2 seconds" in "".join(found) else 60
    assert kernel.check(np.ones(5, "f4"), np.zeros(5, "f4"), 5, grid=1, isolated=True, seconds=seconds) == found
