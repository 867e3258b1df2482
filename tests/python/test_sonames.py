"""Libraries that any part opens: not from a folder that others may write to, and not from the
current one. All are planted, as libraries whose constructors leave a mark."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import accx_tool
from accrt import _library

ROOT = Path(__file__).resolve().parents[2]
BUILD = accx_tool.BUILD
PARTS = ("runtime", "loader", "format", "write", "serve", "abi", "tools", "packs", "python/accrt", "python/native")
SOURCE = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { creat(getenv("ACCRT_TEST_MARK"), 0600); }
"""
#: What NVRTC opens itself.
BUILTINS = "libnvrtc-builtins.so.13.0"


def sonames():
    """Those that the sources of any part have as a text."""
    found = set()
    for part in PARTS:
        for path in (ROOT / part).rglob("*"):
            if path.suffix in (".c", ".h", ".py") and not path.name.endswith("_test.c"):
                found |= set(re.findall(r'f?"(lib[\w{}-]+\.so[0-9.]*)"', path.read_text()))
    named = {name.replace("{name}", one) for name in found for one in ("write", "serve", "http")}
    assert not any("{" in name for name in named), named
    return named


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "run.c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "run.so"), str(folder / "run.c")], check=True)
    return folder / "run.so"


@pytest.fixture
def planted(tmp_path, library):
    """A folder with a library of each name, also as Python's packages have them."""
    place = tmp_path / "planted"
    for folder in (place, place / "nvidia/x/lib", place / "lib64"):
        folder.mkdir(parents=True)
        for name in sonames() | {BUILTINS}:
            shutil.copy(library, folder / name)
    (place / "llguidance").mkdir()
    (place / "llguidance/__init__.py").write_text("")
    shutil.copy(library, place / "llguidance/_lib.abi3.so")
    (place / "json.py").write_text("import os; open(os.environ['ACCRT_TEST_MARK'], 'x')")
    return place


GRAMMARS = "import accrt.serve as s; from accrt.serve.grammar import Grammars; Grammars(s.simulated().model, {!r})"
CUDA = "import accrt; accrt.Kernel.from_cuda('__global__ void f() {}', 'f', [], lambda v: 1, arch='sm_90')"
#: What opens libraries by their names: the code, and what it says when it is refused. None: it goes
#: on without.
NAMED = {
    "devices": ("import accrt; print([d.name for d in accrt.Instance(trust='no-host-code').devices()])", None),
    "grammars": (GRAMMARS.format("libllguidance.so"), "grammars need llguidance: "),
    "nvrtc": (CUDA, "libnvrtc.so.13: "),
    "driver": ("from accrt._system import open_library; open_library('libcuda.so.1')", "libcuda.so.1: "),
    "accrt": ("import os; os.environ['ACCRT_LIBRARY'] = 'libaccrt.so.0'; import accrt._library", "libaccrt.so.0: "),
    **{name: (f"import os; os.environ['ACCRT_{name.upper()}_LIBRARY'] = 'libaccrt_{name}.so.0'; from accrt._library import lib; lib.{name}()",
              f"libaccrt_{name}.so.0: ") for name in ("write", "serve", "http")},
}  # fmt: skip


def run(command, planted, mark, **more):
    environment = {name: value for name, value in os.environ.items() if name not in ("ACCRT_NVRTC", "CUDA_HOME", "CUDA_PATH")}
    environment |= {"ACCRT_TEST_MARK": str(mark), "ACCRT_LIBRARY": os.path.realpath(_library.lib._name), "PYTHONPATH": str(ROOT / "python"),
                    "XDG_CACHE_HOME": str(mark.parent / "cache")}  # fmt: skip
    return subprocess.run(command, cwd=planted, env=environment | more, capture_output=True, text=True, timeout=120)


def python(code):
    """A program of its own: with `-c`, Python itself imports from the current folder, and what
    accrt does is not seen."""
    return [sys.executable, "-c", "import sys; sys.path = [p for p in sys.path if p]; import json, numpy; sys.path.insert(0, ''); " + code]


def test_all_names_are_planted():
    assert {"libcuda.so.1", "libcrypto.so.3", "libllguidance.so", "libnvrtc.so.13", "libcublasLt.so.13", "libaccrt_http.so.0"} <= sonames()


@pytest.mark.parametrize("what,element", [(what, element) for what in (*NAMED, "keygen") for element in (".", ":/usr/lib", "/usr/lib:", "sub/..", "OPEN")
                                          if element in (".", "OPEN") or what in ("devices", "grammars", "driver")])  # fmt: skip
def test_no_library_of_an_open_folder_is_opened(tmp_path, planted, element, what):
    mark = tmp_path / "mark"
    (planted / "sub").mkdir()
    if element == "OPEN":
        planted.chmod(0o777)
    if what in ("write", "serve", "http", "grammars") and not (BUILD / "lib" / f"libaccrt_{what.replace('grammars', 'serve')}.so").exists():
        pytest.skip("it is not built")
    if what == "keygen":  # the loader starts the tool, and its own libraries are what it finds
        for own in planted.glob("libaccrt*"):
            own.unlink()
    command = [str(BUILD / "bin" / "accx"), "keygen", "--output", "key"] if what == "keygen" else python(NAMED[what][0])
    done = run(command, planted, mark, LD_LIBRARY_PATH=str(planted) if element == "OPEN" else element)
    assert not mark.exists(), done
    says = "" if what == "keygen" else NAMED[what][1]
    if says is None:
        assert done.returncode == 0 and "host" in done.stdout, done.stderr
    else:
        assert done.returncode > 0 and says in done.stderr, done.stderr
        assert ("others may write to" if element == "OPEN" else "no absolute path") in done.stderr, done.stderr


@pytest.mark.parametrize("pattern", ["lib/*.so*", "lib/accrt/packs/*.so", "bin/accx", "bin/accrt-sandbox"])
def test_no_search_of_a_library_leads_to_the_current_folder(pattern):
    """RUNPATH is looked into by dlopen, too; an empty element is the current folder."""
    for path in BUILD.glob(pattern):
        said = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True).stdout
        for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", said):
            assert all(re.match(r"/|\$ORIGIN(/|$)", part) for part in paths.split(":")), (path, paths)


@pytest.mark.parametrize("what", [name for name in NAMED if name not in ("accrt", "nvrtc")])
def test_a_folder_of_ones_own_is_believed(tmp_path, planted, what):
    """The tests above would see a library that was opened."""
    mark = tmp_path / "mark"
    done = run(python(NAMED[what][0]), tmp_path, mark, LD_LIBRARY_PATH=str(planted))
    assert mark.exists(), done.stderr


#: What opens libraries by paths, or where Python's packages are; each in the current folder.
PATHS = {
    "a grammar's path": (GRAMMARS.format("./libllguidance.so"), {}),
    "a grammar's open path": (GRAMMARS.format("PLANTED/libllguidance.so"), {}),
    "a grammar's package": (GRAMMARS.format(None), {}),
    "NVRTC's path": (CUDA, {"ACCRT_NVRTC": "./libnvrtc.so.13"}),
    "NVRTC's open path": (CUDA, {"ACCRT_NVRTC": "PLANTED/libnvrtc.so.13"}),
    "a toolkit": (CUDA, {"CUDA_HOME": "."}),
    "an open toolkit": (CUDA, {"CUDA_PATH": "PLANTED"}),
    "a package": (CUDA, {}),
    "an open package": ("sys.path.append('PLANTED'); " + CUDA, {}),
    "a pack's open path": ("import accrt; accrt.KernelPack(accrt.Instance(trust='all'), './libcuda.so.1')", {}),
    "a driver": ("import accrt; accrt.Instance(options={'cuda.library': './libcuda.so.1'}).devices()", {}),
    "a child": ("from accrt._kernel_apart import _PROGRAM; import subprocess\n"
                "assert not subprocess.run([sys.executable, '-c', _PROGRAM.replace('main()', 'import json'), sys.path[-1]]).returncode", {}),
}  # fmt: skip


@pytest.mark.parametrize("what", PATHS)
def test_no_library_of_the_current_folder_is_opened(tmp_path, planted, what):
    mark = tmp_path / "mark"
    planted.chmod(0o777)
    code, environment = PATHS[what]
    done = run(python(code.replace("PLANTED", str(planted))), planted, mark, **{k: v.replace("PLANTED", str(planted)) for k, v in environment.items()})
    assert not mark.exists(), done
    if "path" in what or "open" in what:
        assert ("others may write to" if "open" in what else "absolute path") in done.stderr, done.stderr


def test_no_program_of_the_current_folder_is_started(tmp_path):
    """PATH may lead there: neither compilers nor what they start are looked for in it."""
    mark = tmp_path / "mark"
    for name in ("gcc", "clang", "cc", "ld.lld", "nvcc", "x86_64-linux-gnu-ld", "aarch64-linux-gnu-ld", "aarch64-linux-gnu-gcc", "nvidia/x/bin/nvcc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    code = """
from accrt.compiler import _children
from accrt.compiler.cuda import nvcc
from accrt.compiler.kernels import image
for target in image.TARGETS:
    try:
        found = image.find_compiler(target).command
        _children.run(["gcc", "--version"], ".")
    except (image.ImageError, OSError):
        pass
try:
    nvcc.find_compiler()
except image.ImageError:
    pass
"""
    done = run(python(f"\n{code}"), tmp_path, mark, PATH=f".::{os.environ['PATH']}:", CUDA_HOME=".")
    assert done.returncode == 0 and not mark.exists(), done.stderr
