"""PEP 517 build backend of the `accrt` wheel.

A wheel is a zip archive of the package, its metadata and a list of digests. Writing it here, with
the standard library alone, keeps `pip install .` working where the Python registry is out of reach
and gives the tag this package needs (`py3-none-<platform>`: no Python ABI, one native library).
"""

import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "accrt"
NAME = "accrt"
SUMMARY = "Runs compiled .accx accelerator programs on numpy arrays and anything with DLPack"
# One date for every member makes the archive the same for the same content.
ZIP_DATE = (2020, 1, 1, 0, 0, 0)
SDIST_PARTS = (
    "CMakeLists.txt", "LICENSE", "README.md", "VERSION", "pyproject.toml", "abi", "cmake",
    "include", "loader", "python", "runtime",
)  # fmt: skip


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
    ]
    readme = ROOT / "README.md"
    if readme.exists():
        lines += ["Description-Content-Type: text/markdown", "", readme.read_text()]
    return "\n".join(lines) + "\n"


def platform_tag():
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def wheel_tag():
    return f"py3-none-{platform_tag()}"


def wheel_metadata(tag):
    return f"Wheel-Version: 1.0\nGenerator: accrt_build\nRoot-Is-Purelib: false\nTag: {tag}\n"


def build_library(build_dir):
    """Builds the shared library with CMake and returns the path of the file itself, stripped."""
    if not shutil.which("cmake"):
        raise SystemExit("building accrt needs cmake (Debian: apt-get install cmake gcc libc6-dev)")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    jobs = os.environ.get("ACCRT_JOBS", str(os.cpu_count() or 1))
    options = ["-DACCRT_BUILD_TESTS=OFF", "-DACCRT_BUILD_TOOLS=OFF"]
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build_dir), *generator, *options], check=True
    )
    subprocess.run(
        ["cmake", "--build", str(build_dir), "--target", "accrt", "-j", jobs], check=True
    )
    library = (build_dir / "lib" / "libaccrt.so").resolve()
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    return library


def tree_files(folder):
    """Files below a folder in a fixed order, without what Python leaves behind."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def package_files(library):
    """Pairs of (name in the wheel, file): the package, the library, the headers of kernels."""
    for path in tree_files(PACKAGE):
        yield f"accrt/{path.relative_to(PACKAGE).as_posix()}", path
    include = ROOT / "include"
    for path in tree_files(include):
        yield f"accrt/include/{path.relative_to(include).as_posix()}", path
    yield "accrt/libaccrt.so.0", library


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
    for name, path in files:
        writer.add(name, path.read_bytes(), executable=".so" in path.name)
    writer.add(f"{dist_info}/METADATA", metadata().encode())
    writer.add(f"{dist_info}/WHEEL", wheel_metadata(tag).encode())
    writer.add(f"{dist_info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    writer.close(dist_info)
    return filename


# ---- the hooks that pip calls ----------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return [] if shutil.which("cmake") else ["cmake"]


def get_requires_for_build_sdist(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory(prefix="accrt-wheel-") as build_dir:
        library = build_library(pathlib.Path(build_dir))
        return write_wheel(wheel_directory, wheel_tag(), package_files(library))


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
