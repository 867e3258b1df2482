#!/usr/bin/env python3
"""Counts the files that an addition to the product touches.

    growth.py check              the patches of this folder still fit the tree
    growth.py count [NAME...]    makes each addition in a copy of the tree, builds it, runs its
                                 tests, and prints what was touched (`--unbuilt`: no build, no tests)
    growth.py edit NAME          the tree with the patch, in build/growth/NAME.edit, to change it
    growth.py save NAME          writes the patch anew from what was edited there

A patch has what people edit, and nothing that `./dev gen` writes. So its files are those that an
addition touches by hand, and the others that differ afterwards are written.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PATCHES = ROOT / "tests" / "growth"
COPIES = ROOT / "build" / "growth"


class Addition(NamedTuple):
    """What is built of an addition, and the tests that show that it works."""

    what: str
    targets: tuple[str, ...]  # of CMake
    c_tests: str  # a pattern of ctest
    python_tests: tuple[str, ...]
    most: int  # files of the product by hand


ADDITIONS = {
    "new-opcode": Addition("an opcode (`iota`: counts up), with a driver command of its own", ("accx", "cts", "cts_direct"), "^cts\\.(host|null)",
                           ("test_new_opcode.py",), 10),
    "new-layout": Addition("a layout (`q3_0`: 3 bits in blocks of 32), written, read and computed with",
                           ("accx", "format.layout", "write.layout_encode"), "^(format.layout|write.layout_encode)$",
                           ("test_new_layout.py", "test_layouts.py", "test_packed.py", "test_quantizers.py"), 10),
    "new-driver": Addition("a driver as a shared object, with an image kind of its own (`toy`)", ("accx",), "", ("test_new_driver.py", "test_text_by_hand.py"), 10),
}  # fmt: skip
#: What every addition is tested with: the two readers, the two forms and the documents agree.
COMMON_TESTS = ("test_format_document.py", "test_text_document.py", "test_targets.py")
KINDS = ("product", "documents", "tests")


def run(*command: object, folder: pathlib.Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Runs a command and gives what it printed; ends with the end of that where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env={**os.environ, **(environment or {})})  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"growth: {' '.join(words)}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def git(folder: pathlib.Path, *words: object) -> str:
    return run("git", "-c", "user.name=growth", "-c", "user.email=growth@localhost", "-c", "commit.gpgsign=false", *words, folder=folder)


def patch_of(name: str) -> pathlib.Path:
    return PATCHES / f"{name}.patch"


def by_hand(name: str) -> list[str]:
    """The files that a patch changes or adds."""
    return sorted(set(re.findall(r"^\+\+\+ b/(.*)$", patch_of(name).read_text(), re.M)))


def kind_of(path: str) -> str:
    if path.startswith("tests/") or re.search(r"_test\.[ch]$", path):
        return "tests"
    return "documents" if path.startswith("docs/") or path.endswith(".md") else "product"


def check() -> None:
    """Each patch fits the tree, and touches no more of it by hand than it may."""
    for name, addition in ADDITIONS.items():
        run("git", "apply", "--check", patch_of(name))
        count = sum(kind_of(path) == "product" for path in by_hand(name))
        if count > addition.most:
            sys.exit(f"growth: {name} touches {count} files of the product by hand; {addition.most} at most")
    print(f"{len(ADDITIONS)} additions fit the tree")


def copy_tree(copy: pathlib.Path) -> None:
    """A copy of the tree as it is now, committed in a repository of its own. A build folder in it
    stays, and times of files too: little is built again."""
    copy.mkdir(parents=True, exist_ok=True)
    for entry in copy.iterdir():
        if entry.name != "build":
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for path in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if path and (ROOT / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    git(copy, "commit", "-q", "-m", "before")


def edit(name: str) -> None:
    copy = COPIES / f"{name}.edit"
    copy_tree(copy)
    if patch_of(name).exists():
        done = subprocess.run(["git", "apply", "--reject", str(patch_of(name))], cwd=copy, check=False)
        if done.returncode != 0:
            print("what does not fit lies beside its file, with the ending .rej")
    print(f"{copy}: edit, do not generate, then: growth.py save {name}")


def save(name: str) -> None:
    """One line around each change: neighbours may change."""
    copy = COPIES / f"{name}.edit"
    git(copy, "add", "-A")
    patch_of(name).write_text(git(copy, "diff", "--cached", "-U1", "--no-color", "-C", "--find-copies-harder", "--", ".", ":!*.rej"))
    print(f"wrote {patch_of(name).relative_to(ROOT)}")


def make(name: str) -> tuple[pathlib.Path, list[str]]:
    """Makes an addition: the patch, then what `./dev gen` writes. Gives the folder and the files
    that differ."""
    copy = COPIES / name
    copy_tree(copy)
    git(copy, "apply", patch_of(name))
    for generator in "format/gen.py", "abi/gen.py":
        run(sys.executable, generator, folder=copy)
    git(copy, "add", "-A")
    return copy, git(copy, "diff", "--cached", "--name-only").split()


def prove(name: str, copy: pathlib.Path) -> str:
    """Builds the addition and runs its tests; gives their last lines."""
    addition, built = ADDITIONS[name], copy / "build"
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    if not (built / "CMakeCache.txt").exists():
        generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
        run("cmake", "-S", copy, "-B", built, "-G", generator, "-DACCRT_ASSERTIONS=ON", *launcher)
    jobs = os.environ.get("ACCRT_JOBS", str(os.cpu_count() or 2))
    run("cmake", "--build", built, "-j", jobs, "--target", "accrt", "accrt_write", *addition.targets)
    environment = {"PYTHONPATH": str(copy / "python"), "ACCRT_LIBRARY": str(built / "lib/libaccrt.so"),
                   "ACCRT_ACCX": str(built / "bin/accx"), "ACCRT_TRUST": "all"}  # fmt: skip
    said = []
    if addition.c_tests:
        said += run("ctest", "--test-dir", built, "-R", addition.c_tests, "--output-on-failure", environment=environment).splitlines()
        said = [line for line in said if " tests passed" in line]
    tests = [f"tests/python/{test}" for test in addition.python_tests + COMMON_TESTS]
    said += run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, folder=copy, environment=environment).splitlines()[-1:]
    return "; ".join(said)


def count(names: list[str], unbuilt: bool) -> None:
    rows, lists, failed = [], [], []
    for name in names or list(ADDITIONS):
        copy, changed = make(name)
        hand = by_hand(name)
        written = [path for path in changed if path not in hand]
        counts = [sum(kind_of(path) == kind for path in files) for files in (hand, written) for kind in KINDS]
        rows.append(f"| {ADDITIONS[name].what} | " + " | ".join(map(str, counts)) + " |")
        lists += [f"\n{name}"]
        for title, files in (("by hand", hand), ("written", written)):
            lists += [f"  {title}, {kind}: " + " ".join(p for p in files if kind_of(p) == kind)
                      for kind in KINDS if any(kind_of(p) == kind for p in files)]  # fmt: skip
        if not unbuilt:
            try:
                lists.append(f"  proved: {prove(name, copy)}")
            except SystemExit as error:
                lists.append(f"  FAILED: {error}")
                failed.append(name)
    head = ["addition", *(f"{kind}, {how}" for how in ("by hand", "written") for kind in KINDS)]
    print("| " + " | ".join(head) + " |", "| --- |" + " ---: |" * 6, *rows, *lists, sep="\n")
    if failed:
        sys.exit(f"growth: {', '.join(failed)} failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "count", "edit", "save"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ADDITIONS))
    parser.add_argument("--unbuilt", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in ADDITIONS:
            parser.error(f"no addition {name}; there are: {', '.join(ADDITIONS)}")
    if arguments.action == "check":
        check()
    elif arguments.action == "count":
        count(arguments.names, arguments.unbuilt)
    else:
        for name in arguments.names:
            {"edit": edit, "save": save}[arguments.action](name)


if __name__ == "__main__":
    main()
