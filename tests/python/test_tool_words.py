"""Completion for bash, zsh and fish, the manual page, and `-` for standard input and output: accx
as a user of a shell has it."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import accrt._library
import accx_tool
from accx_tool import ACCX

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = accx_tool.needs_tool


def accx(*arguments, code=0, **options):
    done = subprocess.run([ACCX, *map(str, arguments)], capture_output=True, **options)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout


def verbs():
    """{verb: its options}, as the help has them."""
    overview = accx("help").decode()
    names = re.findall(r"^  ([a-z]+)  ", overview.split("Examples:")[0], re.M)
    assert {"run", "inspect", "completion", "manual"} <= set(names)
    return {name: re.findall(r"^  (--[a-z-]+)", accx("help", name).decode(), re.M) for name in names if name != "help"}


def test_examples_have_a_heading():
    """In the help of each verb; completion's lines are installed, not tried."""
    for name in verbs():
        text = accx("help", name).decode()
        examples = re.search(r"^  accx ", text, re.M)
        assert not examples or name == "completion" or "\nExamples:\n" in text[:examples.start() + 1], name


def needs(shell):
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")


# ---- bash

def complete_in_bash(*words, folder=None):
    """What bash offers for the last of the words, taken apart as bash does at `=`."""
    script = '. <("$ACCX" completion bash)\n_accx\nprintf "%s\\n" "${COMPREPLY[@]}"'
    parts = [part for word in words for part in (re.split("(=)", word) if "=" in word else [word]) if part or not word]
    if words[-1].endswith("="):
        parts = parts[:-1] + ["="] if parts[-1] == "" else parts
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in parts)
    done = subprocess.run(["bash", "-c", f"COMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n{script}"], capture_output=True, text=True,
                          cwd=folder, env={**os.environ, "ACCX": str(ACCX)})
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split("\n")) - {""}


def test_bash_offers_every_verb_and_option(tmp_path):
    table = verbs()
    assert complete_in_bash("accx", "") == set(table) | {"help", "--help", "--version", "--time-limit"}
    assert complete_in_bash("accx", "--time-limit", "3", "ins") == {"inspect"}
    assert complete_in_bash("accx", "help", "qu") == {"quantize"}
    for verb, options in table.items():
        assert complete_in_bash("accx", verb, "--") == set(options) | {"--help"}, verb


def test_bash_offers_files_and_values(tmp_path):
    (tmp_path / "my model.accx").touch()
    (tmp_path / "x.npy").touch()
    assert complete_in_bash("accx", "run", "my", folder=tmp_path) == {"my model.accx"}
    assert complete_in_bash("accx", "run", "--input", "", folder=tmp_path) == {"my model.accx", "x.npy"}
    assert complete_in_bash("accx", "run", "--input", "x=x", folder=tmp_path) == {"x.npy"}
    assert complete_in_bash("accx", "run", "--trust", "") == {"signed", "all", "no-host-code"}
    assert complete_in_bash("accx", "run", "--trust=a") == {"all"}
    assert complete_in_bash("accx", "sign", "--scope", "w") == {"weights"}
    assert complete_in_bash("accx", "trust", "re", folder=tmp_path) == {"remove", "revoke"}
    assert complete_in_bash("accx", "completion", "", folder=tmp_path) == {"bash", "zsh", "fish"}
    assert complete_in_bash("accx", "run", "--threads", "", folder=tmp_path) == set()


# ---- zsh, fish

@needs("zsh")
def test_zsh_offers_verbs_and_options():
    script = r'''
autoload -Uz compinit; compinit -u -D
. <("$ACCX" completion zsh)
compadd() { local -a words; [[ "$*" == *-O* || "$*" == *-A* || "$*" == *-D* ]] && { builtin compadd "$@"; return }; }
whence -w _accx
'''
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, env={**os.environ, "ACCX": str(ACCX)})
    assert done.returncode == 0 and "_accx: function" in done.stdout and not done.stderr, done.stderr
    text = accx("completion", "zsh").decode()
    for verb, options in verbs().items():
        part = text[text.index(f"\n  {verb})\n"):]
        part = part[:part.index(";;")]
        assert set(re.findall(r"'\*?(--[a-z-]+)", part)) - {"--help"} == set(options), verb
    shown = in_zsh_terminal("accx ins\t")
    assert "accx inspect" in shown, shown
    shown = in_zsh_terminal("accx run --trust no\t")
    assert "no-host-code" in shown, shown


def in_zsh_terminal(keys):
    """What a terminal shows of a real zsh where these keys are pressed."""
    import pty
    import select
    import time
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", ACCX=str(ACCX), PS1="%% ")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    seen = b""

    def read(until, seconds):
        nonlocal seen
        end = time.monotonic() + seconds
        while time.monotonic() < end and not re.search(until, seen):
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 4096)
    try:
        os.write(terminal, b'autoload -Uz compinit; compinit -u -D; . <("$ACCX" completion zsh); echo rea""dy\n')
        read(rb"\nready|\rready", 60)
        seen = b""
        os.write(terminal, keys.encode())
        read(rb"inspect|no-host-code", 60)
        return seen.decode(errors="replace").replace("\a", "")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


@needs("fish")
def test_fish_offers_verbs_options_and_values(tmp_path):
    (tmp_path / "accx.fish").write_bytes(accx("completion", "fish"))
    (tmp_path / "model.accx").touch()

    def offered(line):
        done = subprocess.run(["fish", "--no-config", "-c", "source accx.fish; complete -C $argv[1]", "--", line], capture_output=True, text=True,
                              cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
        assert done.returncode == 0 and not done.stderr, done.stderr
        return {word.split("\t")[0] for word in done.stdout.splitlines()}
    table = verbs()
    assert set(table) | {"help"} <= offered("accx ")
    for verb, options in table.items():
        assert set(options) <= offered(f"accx {verb} --"), verb
    assert offered("accx run --trust ") == {"signed", "all", "no-host-code"}
    assert "model.accx" in offered("accx run mo")


# ---- the manual page

def test_manual_page_names_everything_and_has_no_fault(tmp_path):
    page = tmp_path / "accx.1"
    page.write_bytes(accx("manual"))
    text = page.read_text()
    for verb, options in verbs().items():
        assert f'.SS "accx {verb}' in text
        for option in options:
            assert f'.B "{option}'.replace("-", "\\-") in text, (verb, option)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-z", page], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr + done.stdout == ""
    if shutil.which("mandoc"):
        done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
        assert done.stdout == ""
        shown = subprocess.run(["mandoc", "-T", "ascii", page], capture_output=True, text=True, check=True).stdout
        assert "--time-limit" in re.sub(".\b", "", shown)


# ---- standard input and output

@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("standard") / "scale_add.accx"
    subprocess.run([sys.executable, ROOT / "tests/golden/scale_add.py", "-o", path], check=True)
    return path


def test_bundles_from_standard_input(bundle):
    data = bundle.read_bytes()
    assert b"scale_add" in accx("inspect", "-", input=data)
    assert accx("verify", "-", input=data).startswith(b"standard input: ok")
    assert b"no differences" in accx("diff", "-", bundle, input=data)
    assert accx("dump", "-", input=data) == accx("dump", "-", "--output", "-", input=data)
    ran = accx("run", "-", "--allow-host-code", "--function", "scale_add", "--input", "ones", "--symbol", "n=3", input=data)
    assert b"3 3 3" in ran
    done = subprocess.run([ACCX, "verify", "-"], input=data[:1000], capture_output=True)
    assert done.returncode == 3 and b"standard input" in done.stderr and b"/proc" not in done.stderr


def test_standard_input_without_proc_says_so(bundle):
    """The library opens what was read by a name under /proc."""
    without = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"']
    if subprocess.run([*without, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace of one's own here")
    # The loader finds $ORIGIN, which the tool's libraries are beside, under /proc too.
    libraries = str(pathlib.Path(accrt._library.lib._name).resolve().parent)
    done = subprocess.run([*without, ACCX, "verify", "-"], input=bundle.read_bytes(), capture_output=True,
                          env=dict(os.environ, LD_LIBRARY_PATH=libraries))  # fmt: skip
    assert done.returncode == 1 and b"standard input: '-' needs /proc, which is not here; name a file" in done.stderr


def test_arrays_from_standard_input_and_to_standard_output(bundle, tmp_path):
    x, y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    run = ["run", bundle, "--allow-host-code", "--function", "scale_add"]
    out = accx(*run, "--input", "x=-", "--input", "y=ones", "--output", "y=-", input=(tmp_path / "x.npy").read_bytes())
    (tmp_path / "y.npy").write_bytes(out)  # nothing but the array
    assert np.array_equal(np.load(tmp_path / "y.npy"), 2 * x + 1)
    out = accx(*run, "--input", "-", "--output", "y=-", input=(tmp_path / "xy.npz").read_bytes())
    (tmp_path / "y.npy").write_bytes(out)
    assert np.array_equal(np.load(tmp_path / "y.npy"), 2 * x + y)


def test_bundles_to_standard_output(bundle, tmp_path):
    accx("dump", bundle, "--output", tmp_path / "whole.yaml", "--inline", 1 << 20)
    built = accx("build", "-", "--output", "-", input=(tmp_path / "whole.yaml").read_bytes())
    accx("build", tmp_path / "whole.yaml", "--output", tmp_path / "again.accx")
    assert built == (tmp_path / "again.accx").read_bytes()
    np.savez(tmp_path / "w.npz", w=np.eye(4, dtype=np.float32))
    packed = accx("pack", "-", "-", input=(tmp_path / "w.npz").read_bytes())
    assert b'"w"' in accx("inspect", "-", "--json", input=packed)
    key = tmp_path / "key"
    accx("keygen", "--secret", "--output", key)
    sealed = accx("encrypt", "-", "--output", "-", "--secret-key", key, input=bundle.read_bytes())
    opened = accx("decrypt", "-", "--output", "-", "--secret-key", key, input=sealed)
    def functions(data):
        return json.loads(accx("inspect", "-", "--json", input=data))["functions"]
    assert functions(opened) == functions(bundle.read_bytes())


def test_a_failure_leaves_standard_output_and_the_folder_empty(bundle, tmp_path):
    done = subprocess.run([ACCX, "encrypt", "-", "--output", "-", "--secret-key", tmp_path / "none"], input=bundle.read_bytes(),
                          capture_output=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode != 0 and done.stdout == b"" and done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def failed(*arguments, **environment):
    done = subprocess.run([ACCX, *map(str, arguments)], capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode and done.stdout == "", done.stdout
    return done.stderr


def test_messages_say_standard_output_and_no_path_of_the_tools_own(bundle, tmp_path):
    """Of every verb that writes: where the file is amiss, and where it cannot be made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    run = ["run", bundle, "--allow-host-code", "--function", "scale_add", "--symbol", "n=4"]
    said = failed(*run, "--output", "-", TMPDIR=str(folder))
    assert "--output is 'standard output'; it must be NAME=FILE.npy" in said
    with open("/dev/full", "w") as full:
        done = subprocess.run([ACCX, *run, "--output", "y=-"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "TMPDIR": str(folder)})
    assert done.returncode and "cannot write standard output" in done.stderr and str(folder) not in done.stderr
    missing = tmp_path / "missing"
    verbs = (["sign", missing, "--output", "-"], ["dump", missing, "--output", "-"], ["build", missing, "--output", "-"], ["pack", missing, "-"],
             ["quantize", missing, "-", "--layout", "q8_0"], ["encrypt", missing, "--output", "-", "--secret-key", missing], ["run", *run[1:], "--output", "q=-"],
             ["decrypt", bundle, "--output", "-", "--secret-key", missing], ["dump", "-", "--output", "-"], ["pack", "-", "-"])
    for verb in verbs:
        assert str(folder) not in failed(*verb, TMPDIR=str(folder)), verb
        said = failed(*verb, TMPDIR=str(missing))
        assert "accx." not in said and "standard-output" not in said, said
    said = failed(*verbs[0], TMPDIR=str(missing))
    assert said.startswith(f"accx: standard output: no temporary folder in {missing}: No such file"), said
    assert list(folder.iterdir()) == []
