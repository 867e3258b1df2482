"""The examples in README.md and docs/ work as written."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import accx_tool
import rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = accx_tool.BUILD
MODELS = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", BUILD / "models"))
PYTHON_DOCS = ["README.md", "docs/quick-start.md", "docs/python-guide.md", "docs/compiler.md"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)


def environment() -> dict[str, str]:
    """Whose the bundles in build/models are, is not what is tried here: tests/python/test_trust.py
    does that."""
    return dict(os.environ, PYTHONPATH=str(ROOT / "python"), ACCRT_TRUST="all")


@pytest.mark.rotating(4)
@pytest.mark.parametrize("document", PYTHON_DOCS)
def test_python_examples(document):
    """All Python blocks of a document, one after the other in one program, from the repository's
    root. They compile for whatever can be compiled for: in one run of four for GPUs too."""
    program = "\n".join(blocks(document, "python"))
    assert program, f"{document} has no Python example"
    env = environment()
    if 0 not in rotation.part(range(4), 1, "examples for GPUs"):
        env["ACCRT_NVCC"] = "/nonexistent/nvcc"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_readme_python_prints_what_comes_next():
    done = subprocess.run([sys.executable, "-c", blocks("README.md", "python")[0]], cwd=ROOT, env=environment(),
                          capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["t", "h"]


def section(document: str, heading: str) -> str:
    """From a heading to the next one of its kind."""
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", (ROOT / document).read_text(), re.M | re.S)[1]


@pytest.fixture
def user(tmp_path):
    """Someone with a clone that is built, whose key has signed the bundle, and with no other
    setting."""
    build, home = tmp_path / "clone/build", tmp_path / "home"
    build.mkdir(parents=True)
    home.mkdir()
    for entry in BUILD.iterdir():
        if entry.name != "models":
            (build / entry.name).symlink_to(entry)
    env = {name: value for name, value in os.environ.items()
           if name not in ("PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "PYTHONPATH") and not name.startswith(("ACCRT_", "XDG_"))}
    env["HOME"] = str(home)
    (build / "models").mkdir()
    model, signed = MODELS / "bytelm.accx", build / "models/bytelm.accx"
    if subprocess.run([BUILD / "bin/accx", "keygen"], env=env, capture_output=True).returncode == 0:
        subprocess.run([BUILD / "bin/accx", "sign", model, "--vouch", "--output", signed], env=env, check=True, capture_output=True)
    else:  # no libcrypto: nothing is signed
        signed.symlink_to(model)
        env["ACCRT_TRUST"] = "all"
    return env


def test_readme_c_example(tmp_path, user):
    """README's own lines, with nothing added: the first in the clone, the others in an empty
    folder."""
    text = section("README.md", "From C")
    (program,) = re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)
    install, lines = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    done = subprocess.run(["sh", "-ec", install], cwd=tmp_path / "clone", env=user, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "readme.c").write_text(program)
    done = subprocess.run(["sh", "-ec", lines], cwd=folder, env=user, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r'score of \' \' after "In": -?\d+\.\d+\n', done.stdout)
    wrong = subprocess.run(["./readme", "readme.c"], cwd=folder, env=user, capture_output=True, text=True)
    assert wrong.returncode == 1 and "ACCRT_ERROR_INVALID_FORMAT" in wrong.stderr
    nothing = subprocess.run(["./readme"], cwd=folder, env=user, capture_output=True, text=True)
    assert nothing.returncode == 2 and nothing.stderr == "usage: ./readme bytelm.accx\n"


#: Whole C programs of all documents that need nothing but this library's headers.
PROGRAMS = [pytest.param(program, id=f"{path.relative_to(ROOT)}-{i}")
            for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
            for i, program in enumerate(re.findall(r"^```c(?: \S+)?\n(.*?)^```$", path.read_text(), re.M | re.S)) if re.search('#include (<accrt/|"accrt/)', program) and not re.search('#include (<cuda.h>|"model.h")', program)]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_c_programs_have_no_warning(program, compiler, tmp_path):
    """Neither compiler's: each sees what the other does not."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "program.c").write_text(program)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}"]
    done = subprocess.run([compiler, *flags, "-c", "program.c"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_are_c_programs():
    assert len(PROGRAMS) >= 10


def test_log_c_example(tmp_path):
    """It prints the line about a key that is none."""
    (program,) = [block for block in blocks("docs/errors.md", "c") if "int main" in block]
    (tmp_path / "log.c").write_text(program)
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "-o", "log", "log.c", f"-L{BUILD / 'lib'}", "-laccrt"],
                   cwd=tmp_path, check=True)  # fmt: skip
    (tmp_path / "keys").mkdir(mode=0o700)
    (tmp_path / "keys/none.pem").write_text("not a key")
    env = dict(os.environ, LD_LIBRARY_PATH=str(BUILD / "lib"), ACCRT_TRUST_KEYS=str(tmp_path / "keys"))
    done = subprocess.run([tmp_path / "log"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and re.fullmatch(r"level 2: \w+: [^\n]*none.pem[^\n]*\n", done.stderr), done.stderr


def test_bundle_writer_c_example(tmp_path):
    """Built and run for what is here, for a reader that knows no assets, and for one that cannot
    copy."""
    (tmp_path / "copy.c").write_text(blocks("docs/bundle-writer.md", "c")[0])
    flags = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    subprocess.run([*flags, "-o", "copy", "copy.c", f"-L{BUILD / 'lib'}", "-laccrt_write", "-laccrt"], cwd=tmp_path, check=True)
    env = dict(os.environ, LD_LIBRARY_PATH=str(BUILD / "lib"))
    now = json.loads(subprocess.run([BUILD / "bin/accx", "caps", "--json"], env=env, capture_output=True, text=True, check=True).stdout)
    before = {**now, "sections": [s for s in now["sections"] if not s.startswith("asset")]}
    less = {**now, "command_set": ["dispatch"]}
    results = []
    for index, target in enumerate((now, before, less)):
        (tmp_path / "target.json").write_text(json.dumps(target))
        results.append(subprocess.run(["./copy", "target.json", f"{index}.accx"], cwd=tmp_path, env=env, capture_output=True, text=True))
    assert [r.returncode for r in results] == [0, 0, 1]
    assert b"LICENSE" in (tmp_path / "0.accx").read_bytes() and b"LICENSE" not in (tmp_path / "1.accx").read_bytes()
    said = "function 'main', command 0 (copy 'c'): the target does not know opcode 2 (copy)"
    assert said in (ROOT / "docs/bundle-writer.md").read_text() and said in results[2].stderr
    assert not (tmp_path / "2.accx").exists()


#: The kernel of docs/cuda.md's example, for machines without nvcc, and its twin for the stand-in.
SCALE_PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 factor, .param .u32 n)
{
  ret;
}
"""
SCALE_TWIN = """
#include "fakecuda.h"
FAKECUDA_KERNEL(scale) {
  const float* x = *(const float* const*)params[0];
  float* y = *(float* const*)params[1];
  for (unsigned t = 0; t < block->block[0]; ++t) {
    const int i = (int)(block->index[0] * block->block[0] + t);
    if (i < *(const int*)params[3])
      y[i] = *(const float*)params[2] * x[i];
  }
  return 0;
}
"""


def test_cuda_c_example(tmp_path):
    """Under the stand-in for CUDA's driver: compiled without a warning, and it prints what the
    document says."""
    stand_in, headers = BUILD / "tests/fakecuda/lib", cuda_headers()
    if not (stand_in / "libcuda.so.1").exists() or headers is None:
        pytest.skip("the stand-in for CUDA's driver was not built: CUDA 13's headers are not here")
    (tmp_path / "example.c").write_text(blocks("docs/cuda.md", "c")[-1])
    (tmp_path / "twin.c").write_text(SCALE_TWIN)
    (tmp_path / "scale.cu").write_text(blocks("docs/cuda.md", "cuda")[0])
    (tmp_path / "scale.ptx").write_text(SCALE_PTX)
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc:
        subprocess.run([nvcc, "-ptx", "-arch=sm_80", "scale.cu"], cwd=tmp_path, check=True)
    flags = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    subprocess.run([*flags, "-isystem", headers, "-o", "example", "example.c", f"-L{BUILD / 'lib'}", "-laccrt", "-l:libcuda.so.1",
                    f"-L{stand_in}"], cwd=tmp_path, check=True)  # fmt: skip
    subprocess.run([*flags, f"-I{ROOT / 'tests/fakecuda'}", "-shared", "-fPIC", "-o", "twin.so", "twin.c"], cwd=tmp_path, check=True)
    env = dict(os.environ, LD_LIBRARY_PATH=f"{stand_in}:{BUILD / 'lib'}", FAKECUDA_KERNELS=str(tmp_path / "twin.so"), FAKECUDA_STRICT="1")
    done = subprocess.run([tmp_path / "example", "scale.ptx"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = re.search(r"^It prints ([^.]*)\.", (ROOT / "docs/cuda.md").read_text(), re.M)
    assert done.stdout.splitlines() == re.findall(r"`([^`]+)`", said[1])


def cuda_headers():
    """Where the build found them."""
    found = re.search(r"^ACCRT_CUDA_INCLUDE_DIR:PATH=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    return found[1] if found and (pathlib.Path(found[1]) / "cuda.h").exists() else None


@pytest.mark.skipif(shutil.which("accx") is None and not (BUILD / "bin/accx").exists(), reason="the tool was not built")
def test_readme_shell_examples():
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines() if line.startswith("build/bin/accx")]
    assert len(lines) >= 2
    for line in lines:
        line = line.replace("build/bin/accx", str(accx_tool.ACCX))
        done = subprocess.run(line, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize("document", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_examples_are_built_against_an_installed_library(document):
    """CMake finds no library without its folder, and no library is installed in a clone."""
    lines = [line for block in re.findall(r"^```\w*\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)
             for line in block.splitlines() if re.search(r"\bcmake -S examples/", line)]
    assert [line for line in lines if "-DCMAKE_PREFIX_PATH=" not in line] == []


def test_every_link_leads_somewhere():
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_figures_that_name_their_section_stand_there():
    """`2.9 us ([measured](benchmarks/gpu.md#section))`: the number is in that section."""
    seen = 0
    for page in sorted((ROOT / "docs").glob("*.md")):
        for figure, unit, file, anchor in re.findall(r"(\d[\d.]*) (us|ms)\s+\(\[[^\]]*\]\((benchmarks/[\w.-]+)#([\w-]+)\)", page.read_text()):
            parts = re.split(r"^#+ (.*)$", (page.parent / file).read_text(), flags=re.M)
            found = [text for heading, text in zip(parts[1::2], parts[2::2]) if re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") == anchor]
            assert len(found) == 1, f"{page.name}: {file} has no section {anchor}"
            assert re.search(rf"(?<![\d.]){re.escape(figure)} {unit}\b", found[0]), f"{page.name} says {figure} {unit}, which {file}#{anchor} does not"
            seen += 1
    assert seen >= 1


def test_readme_names_every_folder_of_sources():
    """The table of folders has each folder of the tree that holds sources."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {n.split("/")[0] for n in names if "/" in n and not n.startswith(".")}
    rows = re.findall(r"^\| (`\w+/.*?) \|", section("README.md", "Where things are"), re.M)
    named = {f for row in rows for f in re.findall(r"`(\w+)/", row)}
    assert folders - named - {"cmake"} == set()


def test_headers_say_since_when_a_function_is_there():
    """As abi/*.def have it. Functions of the writer are older than its library. Nothing is of a
    version that is still to come."""
    versions, seen = {}, set()
    for name in ("api", "write", "serve", "http"):
        for function, major, minor in re.findall(r"^ACCRT_FUNCTION\((\w+), (\d+), (\d+)\)", (ROOT / f"abi/{name}.def").read_text(), re.M):
            versions[function] = int(major), int(minor), name
    now = tuple(map(int, (ROOT / "VERSION").read_text().split(".")[:2]))
    for header in sorted((ROOT / "include/accrt").rglob("*.h")):
        text = re.sub(r"\n *\* ?", " ", header.read_text())
        late = [since for since in re.findall(r"Since: *(\d+\.\d+)", text) if tuple(map(int, since.split("."))) > now]
        assert not late, (header, late)
        for comment, function in re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*ACCRT_API\s[^;]*?\b(accrt_\w+)\(", text, re.S):
            since = re.findall(r"Since: *(\d+)\.(\d+)", comment)
            if function in versions and header.name != "api.h" and not function.endswith("get_api"):
                *wanted, library = versions[function]
                seen.add(function)
                assert len(since) == 1, (function, since)
                given = list(map(int, since[0]))
                assert given == wanted or library == "write" and given <= wanted, (function, given, wanted)
    assert {function for function in versions if not function.endswith("get_api")} == seen


def test_options_lists_the_environment_variables():
    """Those that product sources read, and no others."""
    sources = {p: p.read_text() for f in ("runtime", "loader", "abi", "write", "serve", "tools", "packs", "python/accrt")
               for p in sorted((ROOT / f).rglob("*")) if p.suffix in (".c", ".py") and "test" not in p.name}
    read = set()
    for path, text in sources.items():
        if path.suffix == ".c":
            read |= set(re.findall(r'getenv\("([A-Z]\w+)"', text))
        elif "environ" in text:
            names = set(re.findall(r'"((?:ACCRT|CUDA|XDG|TMP|NO|LD)[A-Z_]*[A-Z_]|PATH|HOME)"', text))
            read |= {name for name in names if not re.match("ACCRT_(CUDA|DTYPE|ERROR|WATCH)_", name)}
    rows = re.findall(r"^\| (`.*?) \|", section("docs/options.md", "Environment variables"), re.M)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(read) >= 15
    assert {name for name in read if not any(one == name or name.endswith("_") and one.startswith(name) for one in listed)} == set()
    everything = "\n".join(sources.values())
    assert {one for one in listed if one not in everything and not re.match(r"ACCRT_\w+_(LIBRARY|X86_64|AARCH64)", one)} == set()
