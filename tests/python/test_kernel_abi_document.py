"""The example of docs/kernel-abi.md, as it stands there: built, run from C, put into a bundle,
verified, run from Python."""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build" / "lib" / "libaccrt.so")).resolve()


def code(label):
    """The code block with that label."""
    found = re.findall(rf"^```\w+ {re.escape(label)}\n(.*?)^```$", (ROOT / "docs" / "kernel-abi.md").read_text(), re.M | re.S)
    assert len(found) == 1, f"docs/kernel-abi.md has {len(found)} blocks {label!r}"
    return found[0]


def environment():
    accx = shutil.which("accx") or str(LIBRARY.parents[1] / "bin" / "accx")
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ, ACCRT_INCLUDE=str(ROOT / "include"), ACCRT_LIBRARY=str(LIBRARY), ACCX=accx,
                LD_LIBRARY_PATH=str(LIBRARY.parent), PYTHONPATH=os.pathsep.join(filter(None, paths)))  # fmt: skip


def shell(label, folder):
    return subprocess.run(["sh", "-e", "-c", code(label)], cwd=folder, env=environment(), capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if shutil.which("cc") is None or not LIBRARY.exists():
        pytest.skip("needs a C compiler and the built library")
    path = tmp_path_factory.mktemp("kernel-abi")
    for name in ("scale_rows.c", "host.c", "bundle.py", "running_sum.c", "sums.py"):
        (path / name).write_text(code(name))
    done = shell("build", path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return path


def test_from_c(folder):
    done = shell("run", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "10 20 30 400 500 600\n"
    assert re.fullmatch(r"run: .*ACCRT_ERROR_KERNEL.*'scale_rows' returned 7 .*a result is beyond the limit "
                        r"\(ACCRT_ERROR_POISONED, driver code 7\)\n", done.stderr)  # fmt: skip


def test_the_build_line_refuses_another_function_and_needs_no_c_library(folder):
    """The same options, on a root and on an entry without parameters."""
    line = code("build").replace("scale_rows.so", "other.so")
    for change, text in (("row * p->x.strides[0];", ""), ("const accrt_kernel_workgroup_t* workgroup", "incompatible")):
        changed = code("scale_rows.c").replace(change, change if text else change + " const float root = __builtin_sqrtf(*x); if (root > p->limit) return 8;")
        changed = changed.replace(change, change + ", int more") if text else changed
        assert changed != code("scale_rows.c")
        (folder / "other.c").write_text(changed)
        done = subprocess.run(["sh", "-e", "-c", line.replace("scale_rows.c", "other.c")], cwd=folder, env=environment(), capture_output=True, text=True)
        assert (done.returncode != 0) == bool(text) and text in done.stderr, done.stderr


def test_as_cpp(folder):
    """The header is C++ too; the example is not (designated initialisers), so a line of its own."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    source = folder / "header.cpp"
    source.write_text('#include "accrt/kernel.h"\nint main() { return ACCRT_KERNEL_ABI_VERSION == 0; }\n')
    subprocess.run(["c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", str(source), "-o",
                    str(folder / "header")], check=True)  # fmt: skip


def test_operator(folder):
    pytest.importorskip("numpy")
    done = subprocess.run(["sh", "-e", "-c", code("sums").replace("python3", sys.executable)], cwd=folder, env=environment(),
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[ 1.  3.  6. 10.]\n"
    # Without the option: beside the library.
    (folder / "lib" / "accrt" / "packs").mkdir(parents=True)
    shutil.copy(folder / "example.sums.so", folder / "lib" / "accrt" / "packs")
    library = shutil.copy(LIBRARY, folder / "lib" / "libaccrt.so.0")
    (folder / "example.sums.so").unlink()
    source = code("sums.py").replace('accrt.Instance(trust="all", options={"packs.path": os.getcwd()})', 'accrt.Instance(trust="all")')
    done = subprocess.run([sys.executable, "-c", source], cwd=folder, env=dict(environment(), ACCRT_LIBRARY=str(library)),
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and done.stdout == "[ 1.  3.  6. 10.]\n", done.stderr


def test_checked(folder):
    if not pathlib.Path(environment()["ACCX"]).exists():
        pytest.skip("the tool was not built")
    done = shell("check", folder)
    assert done.returncode == 0 and done.stdout == "kernel scale_rows: ok, 4 cases\n", done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the example's variant is for x86-64")
def test_in_a_bundle(folder):
    done = subprocess.run([sys.executable, "bundle.py"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if not pathlib.Path(environment()["ACCX"]).exists():
        pytest.skip("the tool was not built")
    done = shell("verify", folder)
    assert done.returncode == 0, done.stderr + done.stdout
