"""PEP 517 build backend of the `accrt` wheel.

A wheel is a zip archive of the package, its metadata and a list of digests. Writing it here, with
the standard library alone, keeps `pip install .` working where the Python registry is out of reach
and gives the tag this package needs (`py3-none-<platform>`: no Python ABI, native libraries and
tools).

The platform is what the built files ask of the C library (old_glibc.py): manylinux_2_28 or older,
on every machine with glibc.
"""

import base64
import contextlib
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

import old_glibc

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "accrt"
NAME = "accrt"
SUMMARY = "Runs compiled .accx accelerator programs on numpy arrays and anything with DLPack"
# One date for every member makes the archive the same for the same content.
ZIP_DATE = (2020, 1, 1, 0, 0, 0)
SDIST_PARTS = (
    "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "README.md", "VERSION", "pyproject.toml", "abi", "cmake",
    "docs", "format", "include", "loader", "python", "packs", "runtime", "serve", "tools", "write",
)  # fmt: skip


#: What compiles kernels for GPUs on a machine without nvcc, and where there are such machines.
GPU_COMPILER = ("nvidia-cuda-nvrtc>=13", "nvidia-cuda-runtime>=13")
GPU_MACHINES = 'sys_platform == "linux" and (platform_machine == "x86_64" or platform_machine == "aarch64")'


def version():
    return (ROOT / "VERSION").read_text().strip()


def metadata():
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {version()}",
        f"Summary: {SUMMARY}",
        "License: Apache-2.0",
        "Requires-Python: >=3.9",
        "Provides-Extra: numpy",
        'Requires-Dist: numpy; extra == "numpy"',
        "Provides-Extra: compiler",
        'Requires-Dist: numpy; extra == "compiler"',
        'Requires-Dist: xxhash; extra == "compiler"',
        "Provides-Extra: serve",
        'Requires-Dist: numpy; extra == "serve"',
        'Requires-Dist: xxhash; extra == "serve"',
        'Requires-Dist: tokenizers; extra == "serve"',
        'Requires-Dist: llguidance; extra == "serve"',
        'Requires-Dist: jinja2; extra == "serve"',
        *(f'Requires-Dist: {one}; {GPU_MACHINES} and extra == "serve"' for one in GPU_COMPILER),
        "Provides-Extra: cuda",
        'Requires-Dist: numpy; extra == "cuda"',
        'Requires-Dist: xxhash; extra == "cuda"',
        *(f'Requires-Dist: {one}; {GPU_MACHINES} and extra == "cuda"' for one in GPU_COMPILER),
    ]
    readme = ROOT / "README.md"
    if readme.exists():
        lines += ["Description-Content-Type: text/markdown", "", readme.read_text()]
    return "\n".join(lines) + "\n"


ENTRY_POINTS = "[console_scripts]\naccrt-serve = accrt.serve.start:main\n[torch_dynamo_backends]\naccrt = accrt.torch:backend\n"
#: What accx prints of itself when it is built, and where it belongs below share/.
WORDS = {"accx.1": "man/man1/accx.1", "bash": "bash-completion/completions/accx", "zsh": "zsh/site-functions/_accx",
         "fish": "fish/vendor_completions.d/accx.fish"}
#: What a manylinux system has.
SYSTEM_LIBRARIES = re.compile(r"^(lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux[-\w]*\.so\.\d+|libaccrt\.so\.0|libaccrt_serve\.so\.0)$")


def platform_tag(binaries):
    """manylinux_2_17_x86_64, say: what the files ask for. linux_x86_64 where they ask for more than
    every such system has."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not shutil.which("readelf"):
        return platform
    newest = (2, 17)  # no manylinux is older on both processors
    for path in binaries:
        version, libraries = old_glibc.needed(path)
        others = [name for name in libraries if not SYSTEM_LIBRARIES.match(name)]
        if others:
            print(f"{path.name} needs {', '.join(others)}: the wheel is for this machine alone", file=sys.stderr)
            return platform
        newest = max(newest, version[:2])
    return platform.replace("linux", f"manylinux_{newest[0]}_{newest[1]}", 1) if platform.startswith("linux") else platform


def wheel_tag(binaries):
    return f"py3-none-{platform_tag(binaries)}"


def wheel_metadata(tag):
    return f"Wheel-Version: 1.0\nGenerator: accrt_build\nRoot-Is-Purelib: false\nTag: {tag}\n"


def _cmake(build_dir, *options):
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(build_dir), *options], check=True)


def build_binaries(build_dir):
    """Builds the libraries and the tools with CMake. Returns {name in the package: path} and {name
    of a command: path}, all stripped.

    Without the archives of json-c, zlib and libyaml there is no accx: a wheel without it, which
    says so, and works.
    """
    if not shutil.which("cmake"):
        raise SystemExit("building accrt needs cmake (Debian: apt-get install cmake gcc libc6-dev)")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    older = old_glibc.prepare(build_dir / "old-glibc", compiler)
    options = ["-G", "Ninja"] if shutil.which("ninja") else []
    # The search path of what is installed: no path of this machine goes into the wheel.
    options += ["-DACCRT_BUILD_TESTS=OFF", "-DACCRT_TOOL_STATIC=ON", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON"]
    options += [f"-DCMAKE_{kind}_LINKER_FLAGS={older}" for kind in ("EXE", "SHARED", "MODULE") if older]
    # whose headers accrt._native is made with: any version's
    options += [f"-DACCRT_PYTHON={sys.executable}"]
    targets = ["accrt", "accrt_write", "accrt_serve", "accrt_http", "accrt-sandbox", "accrt_native"]
    try:
        _cmake(build_dir, *options, "-DACCRT_BUILD_TOOLS=ON")
        targets += ["accx"]
    except subprocess.CalledProcessError:
        print("the wheel is made without accx: see above", file=sys.stderr)
        _cmake(build_dir, *options, "-DACCRT_BUILD_TOOLS=OFF")
    jobs = os.environ.get("ACCRT_JOBS", str(os.cpu_count() or 1))
    help_text = subprocess.run(["cmake", "--build", str(build_dir), "--target", "help"], capture_output=True, text=True).stdout
    targets = [target for target in targets if re.search(rf"(^|\s){target}(:|$)", help_text, re.M)]
    # In a folder that was kept: linked again, since what is linked with is no file that CMake
    # watches.
    for linked in [*build_dir.glob("bin/acc*"), *build_dir.glob("lib/*.so*")]:
        linked.unlink()
    subprocess.run(["cmake", "--build", str(build_dir), "--target", *targets, "-j", jobs], check=True)
    libraries = {f"lib{name}.so.0": (build_dir / "lib" / f"lib{name}.so").resolve() for name in ("accrt", "accrt_write", "accrt_serve", "accrt_http")
                 if name != "accrt_http" or name in targets}
    if "accrt_http" not in targets:
        print("the wheel is made without libaccrt_http.so, so without accrt-serve: it needs llhttp (Debian: node-llhttp)", file=sys.stderr)
    native = build_dir / "lib" / "_native.abi3.so"
    if native.exists():
        libraries[native.name] = native
    else:
        print("the wheel is made without accrt._native, so calls from Python are slower: it needs Python.h (Debian: libpython3-dev)", file=sys.stderr)
    commands = {name: build_dir / "bin" / name for name in ("accx", "accrt-sandbox") if name in targets}
    if shutil.which("strip"):
        for binary in (*libraries.values(), *commands.values()):
            subprocess.run(["strip", "--strip-unneeded", str(binary)], check=True)
    return libraries, commands


def tree_files(folder):
    """Files below a folder in a fixed order, without what Python leaves behind."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


#: What all compiled kernels may take.
MOST_KERNEL_BYTES = 8 << 20


def kernel_files():
    """Compiled kernels (`./dev kernels`), from the folder that ACCRT_WHEEL_KERNELS names. A wheel
    without them compiles kernels where models are served."""
    folder = os.environ.get("ACCRT_WHEEL_KERNELS")
    if not folder:
        return []
    found = sorted(pathlib.Path(folder).glob("*.zip"))
    size = sum(path.stat().st_size for path in found)
    if not 0 < size <= MOST_KERNEL_BYTES:
        raise SystemExit(f"the kernels in {folder} take {size} bytes, expected some, and {MOST_KERNEL_BYTES} at most")
    return [(f"accrt/compiler/prebuilt/{path.name}", path, False) for path in found]


def documents():
    """What the headers cite and all that it links to: every document, with its pictures, placed as
    in the repository."""
    docs = [path for path in tree_files(ROOT / "docs") if path.suffix in (".md", ".svg")]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "LICENSE", *docs]


def wheel_files(libraries, commands):
    """Triples of (name in the wheel, file, whether it is executable): the package, the libraries,
    the headers, the documents, the commands.

    accrt-sandbox is there twice: beside the library for Python, which may be installed without the
    commands' folder (`pip install --target`), and beside accx.
    """
    for path in tree_files(PACKAGE):
        yield f"accrt/{path.relative_to(PACKAGE).as_posix()}", path, False
    yield from kernel_files()
    include = ROOT / "include"
    for path in tree_files(include):
        yield f"accrt/include/{path.relative_to(include).as_posix()}", path, False
    for path in documents():
        yield f"{NAME}-{version()}.data/data/share/doc/accrt/{path.relative_to(ROOT).as_posix()}", path, False
    for name, path in libraries.items():
        yield f"accrt/{name}", path, True
    if "accrt-sandbox" in commands:
        yield "accrt/accrt-sandbox", commands["accrt-sandbox"], True
    for name, path in commands.items():
        yield f"{NAME}-{version()}.data/scripts/{name}", path, True
    if "accx" in commands:
        words = commands["accx"].parents[1] / "words"
        for name, place in WORDS.items():
            yield f"{NAME}-{version()}.data/data/share/{place}", words / name, False


class WheelWriter:
    """Writes members and remembers their digests for RECORD."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, executable=False):
        info = zipfile.ZipInfo(name, ZIP_DATE)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        self.archive.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, dist_info):
        self.record.append(f"{dist_info}/RECORD,,")
        info = zipfile.ZipInfo(f"{dist_info}/RECORD", ZIP_DATE)
        info.external_attr = 0o100644 << 16
        self.archive.writestr(info, "\n".join(self.record) + "\n")
        self.archive.close()


def write_wheel(directory, tag, files):
    dist_info = f"{NAME}-{version()}.dist-info"
    filename = f"{NAME}-{version()}-{tag}.whl"
    writer = WheelWriter(os.path.join(directory, filename))
    for name, path, executable in files:
        writer.add(name, path.read_bytes(), executable)
    writer.add(f"{dist_info}/METADATA", metadata().encode())
    writer.add(f"{dist_info}/WHEEL", wheel_metadata(tag).encode())
    writer.add(f"{dist_info}/entry_points.txt", ENTRY_POINTS.encode())
    writer.add(f"{dist_info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    if any(name == "accrt/libaccrt_http.so.0" for name, _, _ in files):
        writer.add(f"{dist_info}/licenses/LICENSE.llhttp", (ROOT / "serve/http/LICENSE.llhttp").read_bytes())
    writer.close(dist_info)
    return filename


# ---- the hooks that pip calls ----------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return [] if shutil.which("cmake") else ["cmake"]


def get_requires_for_build_sdist(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """What the package is and wants, without building it."""
    dist_info = pathlib.Path(metadata_directory) / f"{NAME}-{version()}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(metadata())
    return dist_info.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with contextlib.ExitStack() as stack:
        # ./dev keeps the folder, so that the next wheel is built of what has changed.
        kept = os.environ.get("ACCRT_WHEEL_BUILD_DIR")
        build_dir = kept or stack.enter_context(tempfile.TemporaryDirectory(prefix="accrt-wheel-"))
        libraries, commands = build_binaries(pathlib.Path(build_dir))
        tag = wheel_tag([*libraries.values(), *commands.values()])
        return write_wheel(wheel_directory, tag, list(wheel_files(libraries, commands)))


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{version()}"
    filename = f"{base}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, filename), "w:gz") as archive:
        for part in SDIST_PARTS:
            path = ROOT / part
            if not path.exists():
                continue
            for file in [path] if path.is_file() else tree_files(path):
                archive.add(file, f"{base}/{file.relative_to(ROOT).as_posix()}")
        info = tarfile.TarInfo(f"{base}/PKG-INFO")
        data = metadata().encode()
        info.size = len(data)
        with tempfile.TemporaryFile() as stream:
            stream.write(data)
            stream.seek(0)
            archive.addfile(info, stream)
    return filename
