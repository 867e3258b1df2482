#!/usr/bin/env python3
"""What compiling for size saves in libaccrt.so, file by file, and what its packed tables save.

    size_flags.py BUILD            the tables of docs/decisions/size-by-file.md, on standard output
    size_flags.py BUILD --tables   only that of packed tables, at once

BUILD is a build folder with compile_commands.json, made by gcc. Each file is compiled as the build
does it, for speed and for size. Bytes are those of code and constants of the object; linking joins
equal constants and aligns, so sums are a little above the library's.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
#: How often code runs, by the beginning of its path: the first that fits. Hot files are in the
#: list of cmake/AccrtLibrary.cmake.
FREQUENCY = (
    ("build/error_files", "when something fails"), ("abi/entries", "at each call"), ("abi/watch", "at each call, if handles are validated"), ("abi/", "once a process"),
    ("format/digest", "for each MiB of weights"), ("format/encryption", "for each MiB of weights"), ("format/", "when a bundle is opened or written"),
    ("loader/layout_decode", "for each row of weights that become f32"), ("loader/", "when a bundle or weights are opened"),
    ("runtime/core/hash128", "for each MiB of weights"), ("runtime/core/sha256", "for each MiB of signed weights"),
    ("runtime/core/(memory|zone)", "when something is made"), ("runtime/core/(struct|error)", "when something is made, or fails"),
    ("runtime/core/(trace|profile)", "at each command, if somebody watches"), ("runtime/core/", "when an instance or a bundle is made"),
    ("runtime/drivers/built_in|runtime/drivers/null", "when an instance is made"),
    ("runtime/drivers/common/(commands|operators|command_)", "when commands are recorded or submitted"),
    ("runtime/drivers/common/(semaphore|notif|defer|copy|transfer|staging|host_call|file)", "at each wait, signal or copy"),
    ("runtime/drivers/common/", "when a device, a stream or a buffer is made"),
    ("runtime/drivers/cuda/(copy|command|graph)", "when a list is made, or at each copy"), ("runtime/drivers/cuda/", "when a device, a module or memory is made"),
    ("runtime/drivers/host/(prepare|operator|progress)", "when a list is made; at values that change"),
    ("runtime/drivers/host/", "when a device or a queue is made"),
    ("runtime/memory/(pool|arena|suballoc)", "when memory is taken or given back"), ("runtime/memory/", "when memory is imported or reported"),
    ("runtime/program/(plan|symbolic|solve|lower|upload|kernels|variant)", "when a plan is made"),
    ("runtime/program/", "when a program or a session is made"),
)  # fmt: skip


class Sizes(NamedTuple):
    source: str
    built: int
    speed: int
    size: int
    options: str


def hot_pattern() -> str:
    text = (ROOT / "cmake/AccrtLibrary.cmake").read_text()
    match = re.search(r"set\(ACCRT_HOT_SOURCES\n(.*?)\)\n(?=[^ ])", text, re.S)
    assert match
    return "^(" + "|".join(re.findall(r'"([^"]*)"', match.group(1))) + ")"


def options_of_size() -> list[str]:
    text = (ROOT / "cmake/AccrtLibrary.cmake").read_text()
    match = re.search(r"list\(APPEND ACCRT_SIZE_OPTIONS (-fno-optimize.*?)\)", text, re.S)
    assert match
    return ["-Oz", *match.group(1).split(), "-malign-data=abi"]


def bytes_of(words: list[str], folder: str, options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "x.o")
        subprocess.run([*words, *options, "-o", out], cwd=folder, check=True, capture_output=True)
        text, data, bss = subprocess.run(["size", out], check=True, capture_output=True, text=True).stdout.splitlines()[1].split()[:3]
        return int(text) + int(data) + int(bss)


def measure(entry: dict[str, str]) -> Sizes:
    words = shlex.split(entry["command"])
    words = [w for w in words if os.path.basename(w) != "ccache"]
    at = words.index("-o")
    del words[at : at + 2]
    source = os.path.relpath(entry["file"], ROOT)
    own = [w for w in words if re.match(r"-O|-fno-(inline-f|caller|tree|split|move|optimize-s|align)|--param|-malign", w)]
    plain = [w for w in words if w not in own] + ["-g0"]
    return Sizes(
        source, bytes_of(plain, entry["directory"], own), bytes_of(plain, entry["directory"], ["-O2", "-fno-align-loops", "-fno-align-jumps"]),
        bytes_of(plain, entry["directory"], options_of_size()), " ".join(own))  # fmt: skip


# ---- Packed tables -------------------------------------------------------------------------------

#: A pointer and its relocation.
POINTER_BYTES = 32


class Table(NamedTuple):
    source: str
    form: str
    texts: list[str]
    packed: int


def texts_of(definition: str, *kinds: str) -> list[str]:
    """What messages say of the rows of these kinds in format.def: `shown`, else `word`."""
    columns = {kind: names.replace("\\\n", "").replace(" ", "").split(",") for kind, names in re.findall(r"#define DEF_(\w+)\(([^)]*)\)", definition)}
    found = []
    for kind, cells in re.findall(r"^DEF_(\w+)\((.*)\)$", definition, re.M):
        if kind in kinds:
            quoted = re.findall(r'"((?:\\.|[^"\\])*)"', cells)
            found.append(quoted[1] if "shown" in columns[kind] and len(quoted) > 1 else quoted[0])
    return found


def tables(build: pathlib.Path) -> list[Table]:
    found = []
    for folder in "runtime", "loader", "format", "abi":
        for path in sorted((ROOT / folder).rglob("*.c")):
            text = path.read_text()
            for width, body in re.findall(r"static const char \w+\[\]\[(\d+)\] = \{(.*?)\};", text, re.S):
                texts = re.findall(r'"((?:\\.|[^"\\])*)"', body)
                if not path.name.endswith("_test.c"):
                    found.append(Table(str(path.relative_to(ROOT)), f"{width} bytes each", texts, len(texts) * int(width)))
    definition = (ROOT / "format/format.def").read_text()
    for source, width, kinds in (("format/names.c", 10, ("COMMAND", "EXPRESSION", "IMAGE")), ("format/names.c", 16, ("FILE_FEATURE", "FUNCTION_FEATURE")),
                                 ("format/common.c", 16, ("SECTION",)), ("format/layout.c", 16, ("LAYOUT",)), ("runtime/core/dtype.c", 9, ("DTYPE",)),
                                 ("runtime/core/cpu.c", 12, ("CPU",))):  # fmt: skip
        texts = texts_of(definition, *kinds)
        found.append(Table(source, f"{width} bytes each", texts, width * len(texts)))
    members = re.findall(r'MEMBER\("(\w+)"', (ROOT / "loader/caps.c").read_text())
    found.append(Table("loader/caps.c", "18 bytes each", members, 18 * len(members)))
    for source, path in (("runtime/drivers/cuda/symbols.c", ROOT / "runtime/drivers/cuda/symbols.def"), ("error_files.c", build / "error_files.c")):
        texts = re.findall(r"CUDA_SYMBOL\((\w+)," if path.suffix == ".def" else r'"([^"]*)\\0"', path.read_text())
        found.append(Table(source, "one string", texts, sum(len(word) + 1 for word in texts)))
    return found


def print_tables(build: pathlib.Path) -> None:
    print("| table in | form | entries | bytes | with pointers | saved |\n| --- | --- | ---: | ---: | ---: | ---: |")
    total = 0
    for table in sorted(tables(build), key=lambda t: -len(t.texts)):
        pointers = POINTER_BYTES * len(table.texts) + sum(len(word) + 1 for word in set(table.texts))
        total += pointers - table.packed
        print(f"| `{table.source}` | {table.form} | {len(table.texts)} | {table.packed:,} | {pointers:,} | {pointers - table.packed:,} |")
    print(f"| all | | | | | {total:,} |")


# ---- Files ---------------------------------------------------------------------------------------


def frequency(source: str, hot: str) -> str:
    if re.match(hot, source):
        return "at each call, launch or submission"
    return next((words for prefix, words in FREQUENCY if re.match(prefix, source)), "?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build)
    if not arguments.tables:
        print_files(build)
        print()
    print_tables(build)


def print_files(build: pathlib.Path) -> None:
    commands = json.loads((build / "compile_commands.json").read_text())
    wanted = [e for e in commands if re.search(r"CMakeFiles/accrt_(format_)?objects\.dir/", e["command"])]
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("ACCRT_JOBS", "2"))) as pool:
        rows = sorted(pool.map(measure, wanted))
    hot = hot_pattern()
    print("| file | bytes | compiled for | -Oz saves | its code runs |\n| --- | ---: | --- | ---: | --- |")
    for row in rows:
        what = "size" if "-Oz" in row.options else "speed" if "-fno-align-loops" in row.options else "its own"
        print(f"| `{row.source}` | {row.built:,} | {what} | {row.speed - row.size:,} | {frequency(row.source, hot)} |")
    print(f"| all {len(rows)} | {sum(r.built for r in rows):,} | | {sum(r.speed - r.size for r in rows):,} | |")


if __name__ == "__main__":
    main()
