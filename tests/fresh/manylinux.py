"""Whether a wheel runs on the systems that its name promises: manylinux_2_28 or older.

    python3 tests/fresh/manylinux.py dist/accrt-*.whl [PYTHON]

Each ELF file in it is read with readelf: the versions of glibc's functions, the libraries, the
search paths, and for programs that no constructor is left to libc (before 2.34 libc ran none for
programs that were linked with a later one). auditwheel, where a Python that has it is given, says
what it finds; both must agree with the name.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "_build"))
import accrt_build  # noqa: E402
import old_glibc  # noqa: E402


def elf_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def faults(path):
    """What is wrong with a file, a line each, and the version of glibc that it wants."""
    version, libraries = old_glibc.needed(path)
    found = []
    if version[:2] > old_glibc.NEWEST:
        late = sorted({f"{name} ({'.'.join(map(str, v))})" for name, v, *_ in old_glibc.dynamic_symbols(path) if v > old_glibc.NEWEST})
        found.append(f"asks for glibc {'.'.join(map(str, version))}: {', '.join(late)}")
    found += [f"needs {name}" for name in libraries if not accrt_build.SYSTEM_LIBRARIES.match(name)]
    for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", readelf("-d", path)):
        found += [f"searches {part!r}" for part in paths.split(":") if part != "$ORIGIN"]
    program = "(DEBUG)" in readelf("-d", path)
    size = re.search(r"\.init_array\s+INIT_ARRAY\s+\w+\s+\w+\s+(\w+)", readelf("-S", path))
    if program and size and int(size.group(1), 16) > 8:
        found.append(f"has constructors of its own (.init_array of {int(size.group(1), 16)} bytes), which older glibc does not run")
    return found, version[:2]


def main():
    wheel = pathlib.Path(sys.argv[1])
    promised = re.search(r"-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if not promised:
        sys.exit(f"{wheel.name} is for this machine alone: its name has no manylinux tag")
    promised = tuple(map(int, promised.groups()))
    wrong, newest = [], (2, 17)
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        files = list(elf_files(pathlib.Path(folder)))
        names = {path.name for path in files}
        wrong += [f"{name} is not in the wheel" for name in ("libaccrt.so.0", "libaccrt_write.so.0", "_native.abi3.so", "accx", "accrt-sandbox") if name not in names]
        for path in files:
            found, version = faults(path)
            newest = max(newest, version)
            wrong += [f"{path.relative_to(folder)} {fault}" for fault in found]
    if promised != newest or newest > old_glibc.NEWEST:
        wrong.append(f"the name promises glibc {promised}, the files want {newest}, the most allowed is {old_glibc.NEWEST}")
    said = "auditwheel was not asked"
    if len(sys.argv) > 2:
        text = " ".join(subprocess.run([sys.argv[2], "-m", "auditwheel", "show", str(wheel)], check=True, capture_output=True, text=True).stdout.split())
        tag = re.search(r'following platform tag: "(?:manylinux_(\d+)_(\d+)_\w+|[^"]*)"', text)
        said = f"auditwheel: {tag.group(0) if tag else text}"
        if not tag or not tag.group(1) or tuple(map(int, tag.groups())) != promised:
            wrong.append(f"auditwheel finds another tag: {said}")
    if wrong:
        sys.exit("\n".join([f"{wheel.name}:", *wrong]))
    print(f"{wheel.name}: {len(files)} ELF files want glibc {'.'.join(map(str, newest))} or older; {said}")


if __name__ == "__main__":
    main()
