"""python -m accrt.compiler: what it takes, what it tells meanwhile and at the end, and one line for
each mistake."""

from __future__ import annotations

import gc
import os
import pathlib
import re
import select
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import accrt
from accrt import bundle_reader
from accrt import bundle_writer as bw
from accrt.compiler import Module, available_targets, compile, driver, progress
from accrt.compiler import __main__ as main
from accrt.compiler import _children
from accrt.compiler.kernels import image

HOSTS = [t for t in available_targets() if t in driver.HOST_TARGETS]
pytestmark = pytest.mark.skipif(not HOSTS, reason="no C compiler")

PROGRAM = """
import numpy as np
from accrt.compiler import Module

def build():
    m = Module("two")
    w = m.constant("layers.0.weight", np.eye(64, dtype=np.float32))
    for name, factor in (("once", 1.0), ("twice", 2.0)):
        f = m.function(name)
        f.result("y", f.input("x", "f32", [4, 64]).linear(w) * factor)
    return m
"""


def command(tmp_path, *arguments, **more):
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(accrt.__file__).parents[1]))
    return subprocess.run([sys.executable, "-m", "accrt.compiler", *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, env=environment, **more)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "two.py").write_text(PROGRAM)
    return tmp_path


def archs(path):
    return {v.arch for k in bundle_reader.read(path).kernels.values() for v in k.variants}


def test_a_program_for_this_machine(program):
    done = command(program, "two.py", "-o", "two.accx", "--target", "host")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    first, last = done.stderr.splitlines()
    assert re.fullmatch(r"two\.py: 2 functions, 1 weights, read in [\d.]+ s", first)
    assert re.fullmatch(rf"two\.accx: [\d.]+ [kM]B for {driver.own_target()}; compiled in [\d.]+ s, functions planned in [\d.]+ s, "
                        r"\d+ pieces of code \(\d+ cached\) in [\d.]+ s, written in [\d.]+ s", last)  # fmt: skip
    assert archs(program / "two.accx") == {driver.own_target()}
    x = np.ones((4, 64), np.float32)
    session = accrt.load(program / "two.accx", trust="all")  # another process made the key
    assert np.asarray(session.twice(x)).tolist() == (2 * x).tolist()
    again = command(program, "two.py", "-o", "again.accx", "--target", driver.own_target(), "--quiet")
    assert (again.returncode, again.stderr) == (0, "")
    assert (program / "again.accx").read_bytes() == (program / "two.accx").read_bytes()
    count, cached = re.search(r"(\d+) pieces of code \((\d+) cached\)", command(program, "two.py", "-o", "two.accx", "--target", "host").stderr).groups()
    assert count == cached


def test_names_of_targets():
    assert driver._expanded(["host"]) == [driver.own_target()]
    assert driver._expanded(["hosts", "sm_90"]) == [*driver.HOST_TARGETS, "sm_90"]
    assert driver._expanded(["cuda", "sm_90", "x86-64-v3"]) == [*driver.CUDA_TARGETS, "x86-64-v3"]


@pytest.mark.parametrize("arch, words", [("x86-64-v2", "this machine is x86-64-v2, and there are x86-64-v3"), ("", "this machine is unknown")])
def test_a_machine_without_a_target(arch, words, monkeypatch):
    monkeypatch.setattr(accrt.instance, "caps", lambda: {"cpu_arch": arch})
    with pytest.raises(image.ImageError, match=f"target 'host': {words}"):
        driver.own_target()


def test_targets_with_commas(program):
    done = command(program, "two.py", "-o", "two.accx", "--target", ",".join(HOSTS[:2]), "--target", HOSTS[0])
    assert done.returncode == 0 and f" for {', '.join(HOSTS[:2])}; " in done.stderr, done.stderr
    assert archs(program / "two.accx") == set(HOSTS[:2])


MISTAKES = [
    (["two.py", "--target", "sm90"], 1, "no target 'sm90'; did you mean 'sm_80' or 'sm_90'? There are x86-64-v3, x86-64-v4, aarch64, sm_80, sm_90, ptx, "
     "cuda (all of CUDA's), host (this machine's) and hosts (all of hosts)"),
    (["two.py", "--target", "host,zzz"], 1, "no target 'zzz'; there are x86-64-v3, x86-64-v4, aarch64, sm_80, sm_90, ptx, cuda"),
    (["missing.py"], 1, "missing.py: there is no such file"),
    (["missing.pt2"], 1, "missing.pt2: there is no such file"),
    (["model.safetensors"], 1, "model.safetensors: expected a model in .pt2 (torch.export.save), .onnx or .py"),
    (["whole.pt"], 1, "whole.pt: expected a model in .pt2 (torch.export.save), .onnx or .py; accrt.from_torch makes a bundle of a torch.nn.Module"),
    (["folder"], 1, "; it is a model's folder: accrt.LLM runs it, and accrt.models.open makes a bundle of it"),
    (["empty.py"], 1, "empty.py: expected a function build() that gives an accrt.compiler.Module"),
    (["two.py", "--quantize", "q4_k"], 2, "--quantize q4_k: expected PATTERN=LAYOUT, as 'layers.*=q4_k'"),
    (["two.py", "--quantize", "layers.*=q4_z"], 1, "q4_z"),
    (["two.py", "--target", "host", "-o", "no/folder.accx"], 1, "no/folder.accx: no such file: there is no folder"),
    # before the model is read
    (["fails.py", "-o", "no/folder.accx"], 1, "accrt.compiler: no/folder.accx: no such file: there is no folder"),
    (["fails.py", "-o", "folder"], 1, "accrt.compiler: folder: it is a folder: name the file to write"),
    (["two.py", "--quantise", "x=q4_k"], 2, "python -m accrt.compiler: unrecognized arguments: --quantise x=q4_k; is it --quantize?"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, code, words", MISTAKES)
def test_mistakes(arguments, code, words, program, monkeypatch, capsys):
    """In this process, and one of them as people see it."""
    (program / "empty.py").write_text("module = 3\n")
    (program / "fails.py").write_text("1 / 0\n")
    (program / "whole.pt").touch()
    (program / "folder").mkdir(exist_ok=True)
    (program / "folder" / "config.json").write_text("{}")
    monkeypatch.chdir(program)
    monkeypatch.setattr(sys, "argv", ["compiler", "-o", "x.accx", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        with pytest.raises(SystemExit) as stopped:
            main.main()
    finally:
        gc.enable()  # a process that ends leaves it disabled
    # Python prints what is no number, and ends with 1.
    said = capsys.readouterr().err + ("" if isinstance(stopped.value.code, int) else f"{stopped.value.code}\n")
    assert (stopped.value.code if isinstance(stopped.value.code, int) else 1) == code and words in said, said
    assert len(said.splitlines()) <= 2, said
    if arguments == MISTAKES[0][0]:
        done = command(program, "-o", "x.accx", *arguments)
        assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_misspelt_option_is_named_before_one_that_is_missing(program):
    done = command(program, "two.py", "--ouput", "x.accx")
    assert (done.returncode, done.stderr) == (2, "python -m accrt.compiler: unrecognized arguments: --ouput; is it --output?\n")


def test_a_program_that_fails_shows_where(program):
    (program / "fails.py").write_text("def build():\n    return 1 / 0\n")
    done = command(program, "fails.py", "-o", "x.accx")
    assert done.returncode == 1 and 'fails.py", line 2' in done.stderr


def test_converters_are_found_by_how_the_name_ends(program, monkeypatch):
    (program / "model.onnx").write_text("")
    monkeypatch.setitem(main.CONVERTERS, ".onnx", "accrt.no_such_package")
    with pytest.raises(ImportError, match=r"model\.onnx: \.onnx needs accrt\.no_such_package"):
        main.read(str(program / "model.onnx"))


def test_a_quantized_build(program):
    done = command(program, "two.py", "-o", "two.accx", "--target", "host", "--quantize", "layers.*=q8_0")
    assert done.returncode == 0, done.stderr
    assert {c.encoding for c in accrt.Bundle(program / "two.accx").constants if c.name == "layers.0.weight"} == {int(bw.Encoding.Q8_0)}


def test_a_terminal_shows_each_function_and_target(program):
    import pty

    ours, theirs = pty.openpty()
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(accrt.__file__).parents[1]), XDG_CACHE_HOME=str(program / "cache"))
    arguments = [sys.executable, "-m", "accrt.compiler", "two.py", "-o", "two.accx", "--target", HOSTS[0]]
    child = subprocess.Popen(arguments, cwd=program, stderr=theirs, env=environment)
    os.close(theirs)
    text, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    assert child.wait() == 0
    os.close(ours)
    said = text.decode().replace("\r\n", "\n")
    assert "\rhost: planning once (1 of 2)\x1b[K" in said and "\rhost: planning twice (2 of 2)\x1b[K" in said
    assert re.search(rf"\r{HOSTS[0]}: 1 of \d+ pieces of code\x1b\[K", said)
    assert re.search(rf"{HOSTS[0]}: \d+ pieces of code \(0 cached\) in [\d.]+ s\n", said)


def test_what_was_read_is_not_searched_for_garbage(program):
    """The search, through all of torch and the model, took a tenth of a build."""
    more = """
import atexit, gc
while_read = gc.isenabled()
atexit.register(lambda: print(while_read, gc.isenabled(), gc.get_freeze_count() > 10_000))
"""
    (program / "told.py").write_text(PROGRAM + more)
    done = command(program, "told.py", "-o", "told.accx", "--target", HOSTS[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "True"]


def module():
    m = Module("steps")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [8]) * 2.0)
    return m


def test_steps_are_told_to_a_function(tmp_path):
    steps = []
    with progress.watching(lambda step: steps.append((step, threading.get_ident()))):
        compile(module(), tmp_path / "a.accx", targets=HOSTS[:1])
    parts = [step[:2] for step, _ in steps]
    assert list(dict.fromkeys(parts)) == [("functions", "host"), ("kernels", HOSTS[0]), ("bundle", "")]
    kernels = [step for step, _ in steps if step.part == "kernels"]
    assert [step.done for step in kernels] == list(range(1, kernels[0].total + 1))
    before = len(steps)
    compile(module(), tmp_path / "b.accx", targets=HOSTS[:1])
    assert len(steps) == before  # nobody watches


def test_what_a_watcher_raises_ends_the_compilation(tmp_path):
    def watcher(step):
        if step.part == "kernels":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), progress.watching(watcher):
        compile(module(), tmp_path / "a.accx", targets=HOSTS[:1])
    assert not (tmp_path / "a.accx").exists()


@pytest.mark.parametrize("wanted", [1, 3])
def test_as_many_jobs_at_once_as_are_asked_for(wanted):
    """A job waits until so many run; one more would be counted."""
    running, most, lock, together = [0], [0], threading.Lock(), threading.Barrier(wanted)

    def job(number):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(60)
        with lock:
            running[0] -= 1
        return number

    with progress.watching(jobs=wanted):
        assert _children.each(job, list(range(4 * wanted))) == list(range(4 * wanted))
    assert most[0] == wanted


def parts_of_a_bundle():
    m = Module("parts")
    n = m.symbol("n", maximum=64)
    f = m.function("f")
    x = f.input("x", "f32", [n, 32])
    y = x.linear(m.constant("w", np.eye(32, dtype=np.float32))).softmax(-1)
    f.result("y", y.cumsum(1).layer_norm(m.constant("g", np.ones(32, np.float32)), m.constant("b", np.zeros(32, np.float32))))
    return m


def test_builds_at_once_give_the_bytes_of_a_serial_build(tmp_path, monkeypatch):
    """Real compilers, of which the first waits until another has begun; and the same with one at a
    time. Each has an empty cache."""
    run, lock, begun = _children.run, threading.Lock(), threading.Event()
    state = {"running": 0, "most": 0, "all": 0}

    def counted(command, directory, cwd=None):
        with lock:
            state["all"] += 1
            state["running"] += 1
            state["most"] = max(state["most"], state["running"])
            if state["running"] > 1:
                begun.set()
        if state["wait"] and "-c" in command:
            assert begun.wait(60), "no second compiler began while the first ran"
        try:
            return run(command, directory, cwd)
        finally:
            with lock:
                state["running"] -= 1

    monkeypatch.setattr(_children, "run", counted)
    monkeypatch.setattr(image.prebuilt, "find", lambda *_: None)
    made, counts = {}, {}
    for jobs in (1, 3):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{jobs}"))
        state.update(most=0, all=0, wait=jobs > 1)
        with progress.watching(jobs=jobs):
            compile(parts_of_a_bundle(), tmp_path / f"{jobs}.accx", targets=HOSTS[-1:])
        made[jobs], counts[jobs] = (tmp_path / f"{jobs}.accx").read_bytes(), dict(state)
    assert counts[1]["all"] == counts[3]["all"] > 3
    assert counts[1]["most"] == 1 and 2 <= counts[3]["most"] <= 3
    assert made[1] == made[3]
