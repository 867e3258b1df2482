#!/usr/bin/env python3
"""Holds the folders' linked symbols against the floors that docs/architecture.md lists.

    floors.py BUILD            fails on an arrow that is not in the table
    floors.py BUILD --graph    prints the arrows between folders
    floors.py BUILD --circles  prints circles of files

BUILD is a build folder: the objects of the libraries are read with nm. An arrow goes from a file
that uses a symbol to the file that defines it.
"""
import argparse
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGETS = ("accrt_format_objects", "accrt_objects", "accrt_write_objects", "accrt_serve_objects", "accrt_http_objects", "accrt_text", "accx",
           "accrt-sandbox")  # fmt: skip
#: What stands on the public functions of the libraries, whichever folder they lie in: of other
#: functions the table says from where.
OUTSIDE = ("write/text", "tools/accx", "tools/sandbox")


def read_table(path):
    """The folders that each folder may use, from the first table of the document whose head says
    `stands on`."""
    allowed = {}
    inside = False
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("|") and "stands on" in line:
                inside = True
            elif inside and not line.startswith("|"):
                break
            elif inside:
                cells = line.split("|")[1:-1]
                names = [re.findall(r"`([a-z0-9_/]+(?:\.c)?)`", cell) for cell in cells]
                if names[0]:
                    allowed[names[0][0].rstrip("/")] = {name.rstrip("/") for name in names[1]}
    return allowed


def check_order(allowed):
    """Each folder stands on folders of earlier rows alone, so that no circle can be written into
    the table."""
    seen, faults = set(), []
    for folder, below in allowed.items():
        folders = {os.path.dirname(name) if name.endswith(".c") else name for name in below}
        faults += [f"{folder} stands on {name}, which is not above it in the table" for name in sorted(folders - seen)]
        seen.add(folder)
    return faults


def objects(build):
    """(source, object) of all files of the libraries. Objects whose source is gone are left over
    from another build."""
    for target in TARGETS:
        top = os.path.join(build, "CMakeFiles", target + ".dir")
        for folder, _, files in os.walk(top):
            for name in files:
                source = os.path.relpath(os.path.join(folder, name), top)[:-2]
                if name.endswith(".c.o") and os.path.exists(os.path.join(ROOT, source)):
                    yield source, os.path.join(folder, name)


def symbols(build):
    """By source: the global symbols that its object defines, and those that it uses. One process
    reads all objects."""
    sources = {path: source for source, path in objects(build)}
    found = {source: (set(), set()) for source in sources.values()}
    text = subprocess.run(["nm", "-g", "-A", *sources], check=True, capture_output=True, text=True).stdout if sources else ""
    for line in text.splitlines():
        path, _, rest = line.rpartition(":")
        (defined, used), words = found[sources[path]], rest.split()
        if len(words) == 2 and words[0] in "Uw":
            used.add(words[1])
        elif len(words) == 3:
            defined.add(words[2])
    return found


def public_functions():
    """What the libraries export."""
    found = set()
    for name in os.listdir(os.path.join(ROOT, "abi")):
        if name.endswith(".map"):
            with open(os.path.join(ROOT, "abi", name), encoding="utf-8") as file:
                found |= set(re.findall(r"^ *(\w+);$", file.read(), re.M))
    return found


def includes_of(source):
    """The files of the tree that a source includes with quotes, by their paths in it."""
    with open(os.path.join(ROOT, source), encoding="utf-8") as file:
        names = re.findall(r'^ *#include "([^"]+)"', file.read(), re.M)
    beside = os.path.dirname(source)
    near = [os.path.normpath(os.path.join(beside, name)) for name in names]
    return [path if os.path.exists(os.path.join(ROOT, path)) else name for name, path in zip(names, near)]


def outside_sources():
    """The files of those folders, headers and tests too."""
    for folder in OUTSIDE:
        yield from sorted(os.path.join(folder, name) for name in os.listdir(os.path.join(ROOT, folder)) if name.endswith((".c", ".h")))


def outside_faults(sources, allowed):
    """One line for each header that a file outside the libraries may not include: it takes public
    ones, its own, and those of what the table says it stands on."""
    faults = []
    for source in sources:
        above = os.path.dirname(source)
        for name in includes_of(source):
            folder, file = os.path.dirname(name), os.path.splitext(name)[0] + ".c"
            if above in OUTSIDE and folder != above and not name.startswith("accrt/") and not {folder, file} & allowed.get(above, set()):
                faults.append(f"{source} includes {name}, which is not public, and {above} does not stand on it")
    return faults


def arrows(files):
    """{(file, file): symbols} of files given as {source: (defined, used)}."""
    owner = {}
    for source, (defined, _) in files.items():
        for symbol in defined:
            owner.setdefault(symbol, source)
    found = collections.defaultdict(set)
    for source, (_, used) in files.items():
        for symbol in used:
            target = owner.get(symbol, source)
            if target != source:
                found[source, target].add(symbol)
    return found


def faults_of(found, allowed):
    """One line for each arrow that the table does not allow."""
    faults = []
    for (source, target), names in sorted(found.items()):
        above, below = os.path.dirname(source), os.path.dirname(target)
        if above != below and not {below, target} & set(allowed.get(above, ())):
            faults.append(f"{source} uses {', '.join(sorted(names))} of {target}: {above} does not stand on {below}")
    return faults


def graph_of(found):
    """{(folder, folder): number of symbols used}."""
    graph = collections.Counter()
    for (source, target), names in found.items():
        above, below = os.path.dirname(source), os.path.dirname(target)
        if above != below:
            graph[above, below] += len(names)
    return graph


def circles_of(found):
    """Sets of files that reach one another, the largest first (Tarjan's algorithm)."""
    to = collections.defaultdict(list)
    for source, target in found:
        to[source].append(target)
    index, low, stack, circles = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in to[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            circle = set()
            while node not in circle:
                circle.add(stack.pop())
            if len(circle) > 1:
                circles.append(circle)

    for node in list(to):
        if node not in index:
            visit(node)
    return sorted(circles, key=len, reverse=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--circles", action="store_true")
    arguments = parser.parse_args()
    files = symbols(arguments.build)
    if not files:
        sys.exit(f"floors: no objects of the libraries under {arguments.build}")
    public = public_functions()
    for source, (defined, used) in files.items():
        # The sandbox defines functions of libc, which the libraries use too.
        if os.path.dirname(source) in OUTSIDE:
            files[source] = {name for name in defined if name.startswith("acc")}, used - public
    found = arrows(files)
    if arguments.graph:
        for (above, below), count in sorted(graph_of(found).items()):
            print(f"{above} -> {below}: {count}")
        return
    if arguments.circles:
        for circle in circles_of(found):
            print(len(circle), *sorted(circle))
        return
    allowed = read_table(os.path.join(ROOT, "docs", "architecture.md"))
    folders = {os.path.dirname(source) for source in files}
    faults = [f"docs/architecture.md lists no folder {name}" for name in sorted(folders - set(allowed))]
    faults += check_order(allowed) + faults_of(found, allowed) + outside_faults(outside_sources(), allowed)
    print(*faults, sep="\n", end="\n" if faults else "")
    if faults:
        sys.exit(f"floors: {len(faults)} faults")
    print(f"{len(files)} files in {len(folders)} folders: no arrow runs up")


if __name__ == "__main__":
    main()
