"""Every path that opens a file is in a table of docs/hostile-input.md, which says what is checked;
files that somebody cuts while they are verified are errors; the static library leaves gdb's names
to whoever defines them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accrt
import accx_tool
from accrt import bundle_writer as bw

numpy = pytest.importorskip("numpy")
ROOT = Path(__file__).resolve().parents[2]
BUILD = accx_tool.BUILD

C_CALLS = re.compile(r"(?<![\w.>])(open|openat|creat|fopen|freopen|fdopen|opendir|fdopendir|scandir|dlopen|dlmopen|mkstemp|mkostemp|tmpfile|popen|"
                     r"execv\w*|fexecve|execl\w*|posix_spawnp?|system|shm_open|json_object_from_file|zip_open|zip_source_file\w*|"
                     r"SYS_openat2|accrt_open_at|accrt_open_file|accrt_library_open)(?=\(|,)")
PYTHON_CALLS = re.compile(r"(?<![\w.])((?:os\.|io\.|gzip\.|mmap\.|tarfile\.)?open|models\.open|os\.fdopen|mkstemp|tempfile\.mkstemp|tempfile\.NamedTemporaryFile|"
                          r"ctypes\.(?:CDLL|PyDLL|util\.find_library)|CDLL|find_library|_ffi\.Library|open_library|loaded_library|(?:\w+\.)*cdll\.\w+|tempfile\.TemporaryDirectory|subprocess\.(?:run|Popen|check_\w+|call)|"
                          r"os\.posix_spawnp?|os\.exec\w+|os\.system|"
                          r"[\w.]*(?:numpy|np)\.(?:load|save|fromfile|memmap)|"
                          # Other packages, which open what they are given, or what a file names.
                          r"(?:onnx|onnx\.\w+)\.load\w*|load_external_data\w*|torch\.load|torch\.\w+\.load|torch\.ops\.load_library|"
                          r"(?:safetensors\.)?safe_open|[\w.]+\.from_file|[\w.()]*[pP]ath\w*(?:\([^()]*\))?\.open|(?:\w+\.)*ExtensionFileLoader|"
                          r"zipfile\.(?:ZipFile|is_zipfile)|[\w.()]+\.(?:read_bytes|read_text|write_bytes|write_text))\(")
FOLDERS = {"*.[ch]": ("runtime", "loader", "format", "write", "serve", "abi", "tools", "packs", "python/native"), "*.py": ("python/accrt",)}
DEFINITIONS = re.compile(r"^\s*(def |static |int |accrt_status_t |/?\*|#(?!define)|//)")


def calls():
    """{(file, call): how often} of every source but tests."""
    found = {}
    for pattern, folders in FOLDERS.items():
        for folder in folders:
            for path in sorted((ROOT / folder).rglob(pattern)) if (ROOT / folder).is_dir() else ():
                name = path.relative_to(ROOT).as_posix()
                if re.search(r"_test\.c$|(^|/)(testing|test_\w+)\.h$", name):
                    continue
                text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S) if path.suffix != ".py" else re.sub(
                    r'"""(?:.|\n)*?"""|#.*', "", path.read_text())  # fmt: skip
                for line in text.splitlines():
                    if DEFINITIONS.match(line) and not line.rstrip().endswith(";"):
                        continue
                    for match in (C_CALLS if path.suffix != ".py" else PYTHON_CALLS).finditer(line):
                        if path.suffix == ".h" and path.suffix != ".py":
                            continue
                        key = name, match[1].rsplit(".", 1)[-1]
                        found[key] = found.get(key, 0) + 1
    return found


def table():
    """The same, as the table says."""
    text = (ROOT / "docs/hostile-input.md").read_text()
    part = text.split("## Every path that opens a file", 1)[1].split("\n## ", 1)[0]
    found = {}
    for row in re.findall(r"^\| `([\w./]+)` \| ([^|]*) \| ([^|]+) \| ([^|]+) \|$", part, re.M):
        for call, count in re.findall(r"`(\w+)`(?: x(\d+))?", row[1]):
            found[row[0], call] = int(count or 1)
        assert row[2].strip() and row[3].strip(), row
    return found


def test_every_path_that_opens_a_file_is_in_the_table():
    have, said = calls(), table()
    assert len(have) > 40
    wrong = [f"{f}: {c}: {have.get((f, c), 0)} in the source, {said.get((f, c), 0)} in the table"
             for f, c in sorted(set(have) | set(said)) if have.get((f, c)) != said.get((f, c))]  # fmt: skip
    assert not wrong, "\n".join(wrong)


LIBRARIES = {"dlopen", "dlmopen", "CDLL", "PyDLL", "Library", "LoadLibrary", "find_library", "load_library", "ExtensionFileLoader"}


def test_what_the_library_opens_goes_through_the_helper():
    """safe_open.c alone calls the system: no file of the library forgets a flag. What stands on it,
    and its tools, have the flags themselves: each has its row in the table. Libraries are opened by
    safe_open.c and python/accrt/_system.py alone, in every part."""
    raw = {"open", "openat", "creat", "fopen", "freopen", "opendir"}
    allowed = {("runtime/core/safe_open.c", "openat"), ("runtime/core/safe_open.c", "dlopen"),
               ("runtime/core/put_file.c", "openat"),  # new files, and what was left of such
               ("runtime/program/plan_flatten.c", "open"),  # a function of its own
               ("packs/cublaslt/library.c", "dlopen"),  # with RTLD_NOLOAD: it opens nothing
               ("python/accrt/_system.py", "CDLL"),
               # beside libaccrt.so or this package
               ("python/accrt/_fast.py", "ExtensionFileLoader"),
               # libaccrt.so itself: by an absolute path, or as python/accrt/_system.py allows
               ("python/accrt/_library.py", "Library"),
               # of None, the process itself
               ("python/accrt/_kernel_child.py", "CDLL"), ("python/accrt/torch/_cuda.py", "CDLL"), ("python/accrt/torch/_shim.py", "CDLL")}
    found = {key for key in calls() if key[1] in LIBRARIES or key[1] in raw and "/text/" not in key[0]
             and key[0].split("/")[0] in ("runtime", "loader", "format", "abi", "packs", "serve") or key[1] in raw and key[0].startswith("python/native")}
    assert found == allowed, found ^ allowed
    for name, call in (("packs/cublaslt/library.c", r"dlopen\([^()]*RTLD_NOLOAD\)"), ("python/accrt/torch/_cuda.py", r"CDLL\(None\)"),
                       ("python/accrt/torch/_shim.py", r"CDLL\(None\)"), ("python/accrt/_kernel_child.py", r"CDLL\(None\b")):  # fmt: skip
        assert len(re.findall(call, (ROOT / name).read_text())) == 1, name


def test_the_patterns_see_what_opens_files_and_libraries():
    seen = lambda line: [match[1] for match in PYTHON_CALLS.finditer(line)]  # noqa: E731
    for line in ("open(path)", "os.open(path, 0)", "onnx.load(path)", "torch.export.load(path)", "torch.load(path)", "Tokenizer.from_file(path)",
                 "ctypes.CDLL('x')", "ctypes.cdll.LoadLibrary('x')", "ctypes.util.find_library('x')", "Path(name).open('rb')", "path.read_bytes()",
                 "np.load(path)", "models.open(path)", "zipfile.ZipFile(path)", "onnx.external_data_helper.load_external_data_for_model(m, f)",
                 "safe_open(path)", "open_library(name)", "loaded_library(name)", "importlib.machinery.ExtensionFileLoader(name, path)", "_ffi.Library(path)"):  # fmt: skip
        assert len(seen(line)) == 1, line
    for line in ("reopen(path)", "self.load(path)", "json.loads(text)", "stream.read(3)", "opened(path)"):
        assert not seen(line), line


CUT = """
import os, sys, threading, time
import accrt
path, seconds = sys.argv[1], float(sys.argv[2])
size, stop = os.path.getsize(path), False
tail = open(path, "rb").read()[size // 4:]
def cut():
    while not stop:
        os.truncate(path, size // 4)
        time.sleep(0.0005)
        with open(path, "r+b") as file:
            file.seek(size // 4)
            file.write(tail)
        time.sleep(0.0015)
instance = accrt.Instance(trust="all")
good = bad = 0
thread = threading.Thread(target=cut, daemon=True)
bundle = accrt.Bundle(path, instance=instance)
thread.start()
end = time.monotonic() + seconds
while time.monotonic() < end or not bad and time.monotonic() < end + 20:
    try:
        bundle.verify()
        good += 1
    except accrt.Error as error:
        assert type(error).__name__ in ("IoError", "DataCorruptError", "InvalidFormatError"), repr(error)
        bad += 1
    try:
        accrt.Bundle(path, instance=instance, verify="full").close()
        good += 1
    except accrt.Error:
        bad += 1
stop = True
thread.join()
print(good, bad)
"""


def large_bundle(path: Path, signer=None) -> Path:
    writer = bw.BundleWriter()
    rng = numpy.random.default_rng(20261122)
    for i in range(6):
        writer.constant(f"w{i}", rng.random((1 << 20) + 3 * i, dtype="f4"))
    writer.write(str(path), signer) if signer else writer.write(str(path))
    return path


@pytest.mark.parametrize("signed", [False, True])
def test_a_file_that_is_cut_while_it_is_verified_is_an_error(tmp_path, signed):
    """The process ended with SIGBUS."""
    path = large_bundle(tmp_path / "large.accx", accrt.trust.SigningKey.generate() if signed else None)
    done = subprocess.run([sys.executable, "-c", CUT, str(path), "4"], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout.split()[1]) > 0, done.stdout


# A child in which one thread cuts a file and makes it whole again, while another does what reads
# and checks it.
CUT_EACH = """
import os, struct, subprocess, sys, threading, time
import numpy as np
import accrt
from accrt import bundle_writer as bw
folder, kind, seconds, accx = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
os.chdir(folder)
rng = np.random.default_rng(20261122)
arrays = {f"w{i}": rng.random((1 << 10, 1 << 9), dtype="f4") for i in range(6)}
sizes = {name: a.nbytes for name, a in arrays.items()}

def safetensors(path):
    at, entries = 0, []
    for name, a in arrays.items():
        entries.append('"%s":{"dtype":"F32","shape":%s,"data_offsets":[%d,%d]}' % (name, list(a.shape), at, at + a.nbytes))
        at += a.nbytes
    # A long header is read in many pieces.
    text = ("{" + '"__metadata__":{' + ",".join('"k%d":"v"' % i for i in range(20000)) + "}," + ",".join(entries) + "}").encode()
    text += b" " * (-(8 + len(text)) % 64)  # aligned, so that weights are used in place
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))

def gguf(path):
    names, at = b"", 0
    for name, a in arrays.items():
        names += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQQIQ", 2, *reversed(a.shape), 0, at)
        at += a.nbytes
    keys = b"".join(struct.pack("<Q", 8) + b"k%07d" % i + struct.pack("<IB", 0, 1) for i in range(20000))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), 20000) + keys + names
    open(path, "wb").write(head + bytes(-len(head) % 32) + b"".join(a.tobytes() for a in arrays.values()))

def digest_of(data):
    return accrt.bundle_reader.container.digest_of(data)

def touch(b, constants):
    f = b.function("main")
    y = f.result("y", "u8", [4])
    for constant in constants:
        f.body.copy(f.constant(constant).read(), y.write(), 4)

def external(file, kind, each):
    # Its file has a digest, or each tensor has.
    b = bw.BundleWriter()
    named = b.file(file, kind, digest=None if each else digest_of(open(file, "rb").read()))
    touch(b, [b.external(name, "f32", a.shape, file=named, digest=digest_of(a.tobytes()) if each else None)
              for name, a in arrays.items()])
    b.write("names.accx")

import accrt.bundle_reader, accrt.bundle_reader.container
path = "weights." + kind.split(":")[0]
if path == "weights.accx":
    b = bw.BundleWriter()
    touch(b, [b.constant(name, a) for name, a in arrays.items()])
    b.write(path)
    arrays["w5"][-1] += 1
    b = bw.BundleWriter()
    touch(b, [b.constant(name, a) for name, a in arrays.items()])
    b.write("other.accx")
else:
    {"weights.safetensors": safetensors, "weights.gguf": gguf}[path](path)
    external(path, bw.FileKind.SAFETENSORS if path == "weights.safetensors" else bw.FileKind.GGUF,
             kind.endswith("each"))
instance = accrt.Instance(trust="all")
whole = open(path, "rb").read()
# Sometimes in the header, sometimes in the weights.
places = [len(whole) // 4, 1 << 16, 100]
stop = False

def cut():
    turn = 0
    while not stop:
        at = places[turn % 3]
        turn += 1
        os.truncate(path, at)
        time.sleep(0.0005)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(whole[at:])
        time.sleep(0.002)

def read_all(weights):
    for name, size in sizes.items():
        weights[name].read(0, size)

def view_all(bundle):
    for name in sizes:
        bundle.constant_bytes(name)

def independent():
    try:
        accrt.bundle_reader.read(path).verify()
    except accrt.bundle_reader.FormatError as error:
        raise accrt.DataCorruptError(str(error)) from None

def tool(*arguments):
    done = subprocess.run([accx, *arguments], capture_output=True, text=True)
    assert done.returncode >= 0, (done.returncode, done.stderr)  # by no signal
    if done.returncode:
        raise accrt.IoError(done.stderr)

work = {
    "open": lambda: accrt.Bundle(path, instance=instance).close(),
    "full": lambda: accrt.Bundle(path, instance=instance, verify="full").close(),
    "weights": lambda: accrt.Weights(path, instance).close(),
    "weights-full": lambda: accrt.Weights(path, instance, verify="full").close(),
    "read": lambda: read_all(accrt.Weights(path, instance)),
    "external": lambda: accrt.Program(accrt.Bundle("names.accx", instance=instance)).close(),
    "each": lambda: accrt.Program(accrt.Bundle("names.accx", instance=instance)).close(),
    "reader": independent,
    "view": lambda: view_all(accrt.Bundle(path, instance=instance)),
    "program": lambda: accrt.Program(accrt.Bundle(path, instance=instance)).close(),
    "quantize": lambda: tool("quantize", path, "out.accx", "--layout", "q8_0"),
    "diff": lambda: tool("diff", "other.accx", path),
}[kind.split(":")[1]]
thread = threading.Thread(target=cut, daemon=True)
thread.start()
good = bad = 0
end = time.monotonic() + seconds
while time.monotonic() < end or not bad and time.monotonic() < end + 20:
    try:
        work()
        good += 1
    except accrt.Error as error:
        assert type(error).__name__ in ("IoError", "DataCorruptError", "InvalidFormatError"), repr(error)
        bad += 1
stop = True
thread.join()
print(good, bad)
"""


@pytest.mark.rotating(6)
@pytest.mark.parametrize("kind", ["accx:open", "accx:full", "accx:weights", "accx:weights-full", "accx:read", "accx:view",
                                  "accx:program", "accx:diff", "accx:quantize", "accx:reader", "safetensors:weights", "safetensors:read",
                                  "safetensors:external", "safetensors:each", "safetensors:quantize", "gguf:weights", "gguf:read",
                                  "gguf:external", "gguf:each"])
def test_no_file_that_is_cut_while_it_is_checked_ends_the_process(tmp_path, kind):
    done = subprocess.run([sys.executable, "-c", CUT_EACH, str(tmp_path), kind, "0.8", str(BUILD / "bin" / "accx")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    print(kind, done.stdout)
    assert int(done.stdout.split()[1]) > 0, done.stdout


# What a user may name, and what is none of it. A word with F in it is a path of that kind; BUNDLE
# and KEY are good.
NO_FILES = ("fifo", "folder", "socket", "device")
ACCX_READS = [
    "inspect F", "verify F", "verify --full F", "verify --trust-keys F BUNDLE", "run F", "bench F", "dump F --output OUT", "diff F BUNDLE",
    "diff BUNDLE F", "build F --output OUT", "build TEXT --target-caps F --output OUT", "quantize F OUT --layout q8_0",
    "quantize WEIGHTS OUT --layout q8_0 --importance F.npz", "quantize WEIGHTS OUT --layout q8_0 --importance F", "pack F OUT",
    "sign F --output OUT", "sign BUNDLE --output OUT --key F", "kernel check F", "trust add F", "trust floor F 3", "encrypt F --output OUT --secret-key KEY",
    "encrypt BUNDLE --output OUT --secret-key F", "decrypt F --output OUT --secret-key KEY", "devices --driver F",
    *(f"{verb} BUNDLE --allow-host-code --function count --{option}" for verb in ("run", "bench")
      for option in ("input x=F.npy", "input x=F.npz", "input x=F.npz:k", "weights F", "adapter F", "secret-key F", "driver F")),
    "run BUNDLE --trust-keys F --function count", "run F --sandbox", "run BUNDLE --sandbox --weights F --function count",
]  # fmt: skip
VERBS_THAT_OPEN_NOTHING = {"caps", "completion", "manual", "help", "keygen", "accx"}


def make_no_file(path: Path, kind: str) -> Path:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        import socket

        at = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            socket.socket(socket.AF_UNIX).bind(path.name)
        finally:
            os.chdir(at)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_hangs_no_verb(tmp_path, golden_bundle, kind):
    """Every verb and every option that takes a file: refused, and soon."""
    accx = BUILD / "bin" / "accx"
    for end in ("", ".npy", ".npz"):
        make_no_file(tmp_path / f"F{end}", kind)
    config = tmp_path / "config"
    keygen = subprocess.run([str(accx), "keygen", "--secret", "--output", str(tmp_path / "KEY")], capture_output=True, text=True)
    assert keygen.returncode == 0, keygen.stderr
    (tmp_path / "TEXT").write_text(subprocess.run([str(accx), "dump", str(golden_bundle)], capture_output=True, text=True).stdout)
    (tmp_path / "WEIGHTS").write_bytes(bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}")
    (config / "accrt" / "trusted").mkdir(parents=True)
    names = {"BUNDLE": str(golden_bundle)} | {name: str(tmp_path / name) for name in ("KEY", "TEXT", "WEIGHTS", "OUT")}
    tried = set()
    for line in ACCX_READS:
        words = line.split()
        tried.add(words[0])
        words = [names.get(word, re.sub(r"(?<![A-Z])F(?![A-Z])", str(tmp_path / "F"), word)) for word in words]
        rules = config / "accrt" / "trusted" / "trust.rules"
        if line.startswith("trust floor"):
            words[2] = "name"
            make_no_file(rules, kind)
        done = subprocess.run([str(accx), *words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env=os.environ | {"XDG_CONFIG_HOME": str(config)})  # fmt: skip
        if line.startswith("trust floor"):
            # with it, no other verb would come as far as its own file
            rules.rmdir() if kind == "folder" else rules.unlink()
        if kind == "folder" and done.returncode == 0:
            assert "adapter" in line or "trust" in line or "pack" in line or "weights" in line, line
            continue
        assert done.returncode > 0, (line, done.returncode, done.stdout)
        assert done.stderr.startswith("accx: "), (line, done.stderr)
    verbs = set(re.findall(r"^  ([a-z]+) ", subprocess.run([str(accx), "--help"], capture_output=True, text=True).stdout, re.M))
    assert verbs - tried <= VERBS_THAT_OPEN_NOTHING, verbs - tried


PYTHON_READS = {
    "Bundle": "accrt.Bundle(path)", "load": "accrt.load(path)", "Weights": "accrt.Weights(path)",
    "sandbox": "accrt.load(path, sandbox=True)",
    "KernelPack": "accrt.KernelPack(accrt.Instance(trust='all'), path)", "keys": "accrt.Instance(keys=[path])",
    "reader": "accrt.bundle_reader.read(path)", "safetensors": "accrt.compiler.safetensors.read(path)",
    "target": "accrt.bundle_writer.BundleWriter(target_caps=path)",
    "sign": "accrt.trust.sign(path)", "encrypt": "accrt.trust.encrypt(path, path + '.out', bytes(32))",
    "decrypt": "accrt.trust.decrypt(path, path + '.out', bytes(32))", "SigningKey": "accrt.trust.SigningKey.read(path)",
    "read_public_key": "accrt.trust.read_public_key(path)", "read_secret_key": "accrt.trust.read_secret_key(path)",
    "models": "accrt.models.open(path)", "LLM": "accrt.LLM(path)", "serve": "accrt.serve.load(path)",
    **{f"models: {name}": f"accrt.models.open(folder({name!r}))" for name in
       ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", "tokenizer_config.json", "1_Pooling/config.json")},
    "Weights.follow": "accrt.Weights(path, follow_links=True)",
    "from_onnx": "accrt.from_onnx(path)", "from_torch": "accrt.from_torch(path)",
    "from_c": "accrt.Kernel.from_c(pathlib.Path(path), 'f', [('x', 'read_write f32')], lambda v: 1)",
    "from_cuda": "accrt.Kernel.from_cuda(pathlib.Path(path), 'f', [('x', 'read_write f32')], lambda v: 1)",
    "from_cubin": "accrt.Kernel.from_cubin(pathlib.Path(path), 'f', [('x', 'read_write f32')], lambda v: 1)",
    "from_ptx": "accrt.Kernel.from_ptx(pathlib.Path(path), 'f', [('x', 'read_write f32')], lambda v: 1)",
    "role": "accrt.trust.set_role(path, 'code')", "floors": "accrt.trust.floors()", "floor": "accrt.trust.floor('n', 3)",
}  # fmt: skip


FOLDER_WITH = """
import os, pathlib, sys
import accrt, accrt.bundle_reader, accrt.bundle_writer, accrt.compiler.safetensors, accrt.models, accrt.serve, accrt.trust
path = sys.argv[1]
def folder(name):
    made = pathlib.Path(path + "." + name.replace("/", "."))
    (made / name).parent.mkdir(parents=True)
    if name != "config.json":
        (made / "config.json").write_text("{}")
    (made / name).symlink_to(path)
    return made
"""


#: What reads trust.rules, which every instance does: with that one, nothing else would come as far
#: as its own file.
RULES = ("role", "floors", "floor")


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("names", [[name for name in PYTHON_READS if name not in RULES], [*RULES, "load"]], ids=["paths", "rules"])
def test_what_is_no_file_hangs_no_function(tmp_path, kind, names):
    path = make_no_file(tmp_path / "F", kind)
    config = tmp_path / "config"
    (config / "accrt" / "trusted").mkdir(parents=True)
    if "floors" in names:
        make_no_file(config / "accrt" / "trusted" / "trust.rules", kind)
    lines, wanted = [FOLDER_WITH], []
    for name in names:
        if kind != "folder" or name != "keys":  # a folder of keys is one
            lines += ["try:", f"    {PYTHON_READS[name]}", f"    print('taken: ' + {name!r})",
                      "except (OSError, ValueError, accrt.Error) as error:", f"    print({name + chr(9)!r}, repr(error))",
                      *(["except ImportError:", f"    print({name + chr(9) + '(not installed)'!r})"] if name in ("from_onnx", "from_torch") else [])]  # fmt: skip
            wanted.append(name)
    done = subprocess.run([sys.executable, "-c", "\n".join(lines), str(path)], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"XDG_CONFIG_HOME": str(config)})  # fmt: skip
    assert done.returncode == 0 and "taken" not in done.stdout, (done.stdout, done.stderr)
    print(done.stdout)
    said = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert wanted == list(said)
    if kind != "folder":
        unclear = [name for name, text in said.items() if not re.search("regular file|No such device|not installed|others may write|symbolic links", text)]
        assert not unclear, unclear


def test_a_fifo_beside_an_adapter_hangs_nothing(tmp_path, golden_bundle):
    """PEFT's config is opened because it is there: a download may bring anything by that name."""
    os.mkfifo(tmp_path / "adapter_config.json")
    code = f"from accrt.adapter import _peft_config; _peft_config({str(tmp_path / 'adapter_config.json')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "is not JSON" in done.stderr, done.stderr
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}")
    done = subprocess.run([str(BUILD / "bin" / "accx"), "run", str(golden_bundle), "--function", "count", "--allow-host-code", "--adapter", str(tmp_path / "adapter_model.safetensors")],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode != 0 and "not a regular file" in done.stderr, done.stderr


def test_a_fifo_as_a_chat_template_hangs_nothing(tmp_path):
    os.mkfifo(tmp_path / "template")
    code = f"from accrt.serve.loading import load; load('simulated:', chat_template={str(tmp_path / 'template')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "it is not a regular file" in done.stderr, done.stderr


@pytest.mark.skipif(not (BUILD / "lib" / "libaccrt.a").exists(), reason="there is no static library here")
def test_the_static_library_leaves_gdbs_names_to_others(tmp_path):
    archive = BUILD / "lib" / "libaccrt.a"
    names = subprocess.run(["nm", str(archive)], capture_output=True, text=True).stdout
    kinds = {line.split()[-1]: line.split()[-2] for line in names.splitlines() if "__jit_debug_" in line and len(line.split()) == 3}
    assert set(kinds) == {"__jit_debug_descriptor", "__jit_debug_register_code"} and set(kinds.values()) <= set("VW"), kinds
    # A program that has LLVM's, and one with a second copy of the library.
    (tmp_path / "main.c").write_text(
        '#include "accrt/accrt.h"\n'
        "int main(void) { accrt_instance_t* i; return accrt_instance_create(0, &i) == ACCRT_OK ? (accrt_instance_release(i), 0) : 1; }\n")
    (tmp_path / "llvm.c").write_text("int __jit_debug_descriptor[8] = {1}; void __jit_debug_register_code(void) {}\n")
    subprocess.run(["ld", "-r", "-o", "copy.o", "--whole-archive", str(archive)], cwd=tmp_path, check=True)
    subprocess.run(["objcopy", "--wildcard", "--localize-symbol=accrt_*", "--localize-symbol=accx_*", "copy.o", "second.o"], cwd=tmp_path,
                   check=True)  # fmt: skip
    libraries = ["-lpthread", "-ldl", "-lm"]
    for more in (["llvm.c"], ["second.o"]):
        subprocess.run(["cc", f"-I{ROOT / 'include'}", "main.c", *more, str(archive), *libraries, "-o", "program"], cwd=tmp_path, check=True)
        assert subprocess.run([str(tmp_path / "program")]).returncode == 0


def test_verify_says_what_fast_digests_prove(tmp_path):
    """All of them match in a file whose weights somebody has replaced: that says nothing of who
    wrote it."""
    path = large_bundle(tmp_path / "plain.accx")
    said = subprocess.run([str(BUILD / "bin" / "accx"), "verify", "--full", str(path)], capture_output=True, text=True, check=True).stdout
    for scope in ("code", "weights"):
        assert f"{scope:8} not signed: its fast digests match, which finds damage and proves nothing of who wrote it" in said, said
