"""The library's reader against the reader in pure Python: on every file both accept, or both refuse
at the same numbered check.

    python tests/fuzz/differential.py [--count N | --seconds S] [--seed SEED] [--keep FOLDER]

Files are mutations of the golden bundles (mutate.py). The seed is printed; a file on which the two
differ is kept and named, and the exit status is 1.
"""
from __future__ import annotations

import argparse
import ctypes
import pathlib
import random
import re
import sys
import time
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "fuzz")]

from accrt import _ffi, bundle_reader  # noqa: E402
from accrt._library import lib, struct  # noqa: E402
from accrt.instance import Instance  # noqa: E402
from mutate import Mutator  # noqa: E402

_RULE = re.compile(rb"\(rule (\d+)\)")
ACCEPTED = 0


class LibraryReader:
    """accrt_bundle_open_memory: the number of the rule that refused, or ACCEPTED."""

    def __init__(self) -> None:
        self.instance = Instance()
        self.record = struct(_ffi.accrt_error)
        self.no_release = lib.accrt_bundle_open_memory.argtypes[3]()

    def __call__(self, data: bytes) -> int:
        out = _ffi.accrt_bundle_p()
        status = lib.accrt_bundle_open_memory(
            self.instance.handle, data, len(data), self.no_release, None, None, ctypes.byref(out)
        )
        if status == 0:
            lib.accrt_bundle_release(out)
            return ACCEPTED
        lib.accrt_last_error(ctypes.byref(self.record))
        message = self.record.message
        found = _RULE.search(message)
        if found is None:
            raise AssertionError(f"a refusal without a rule: {message!r}")
        return int(found.group(1))


def python_reader(data: bytes) -> int:
    try:
        bundle_reader.read(data)
    except bundle_reader.FormatError as error:
        return error.rule
    return ACCEPTED


def seeds() -> list[bytes]:
    """Golden bundles, and the seeds of the fuzz target for files: those that are accepted."""
    found = []
    folders = (ROOT / "tests" / "golden", ROOT / "tests" / "fuzz" / "corpus")
    for path in sorted(path for folder in folders for path in folder.glob("*/*.accx")):
        data = path.read_bytes()
        if python_reader(data) == ACCEPTED and len(data) <= 1 << 20:
            found.append(data)
    return found


def compare(count: int, seconds: float, seed: int, keep: pathlib.Path, quiet: bool = False) -> int:
    """Compares the two on mutated files. Returns how many they differ on."""
    library, rng = LibraryReader(), random.Random(seed)
    mutator, rules, differ = Mutator(seeds(), rng), Counter(), 0
    begin = last = time.monotonic()
    done = 0
    while done < count and time.monotonic() - begin < seconds:
        data = mutator.next()
        one, two = library(data), python_reader(data)
        done += 1
        rules[one] += 1
        if one != two:
            differ += 1
            keep.mkdir(parents=True, exist_ok=True)
            path = keep / f"differ-{seed}-{done}.accx"
            path.write_bytes(data)
            print(f"{path}: the library says rule {one}, Python says rule {two} (0: accepted)", flush=True)
            if differ == 20:
                break
        if not quiet and time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"  {done} files, {done / (last - begin):.0f} a second, {len(rules) - 1} rules", flush=True)
    accepted = rules.pop(ACCEPTED, 0)
    print(f"seed {seed}: {done} files, {accepted} accepted ({100 * accepted / max(done, 1):.1f} %), refused at {len(rules)} "
          f"different rules, {differ} differences, {time.monotonic() - begin:.0f} s")
    if not quiet:
        print("refusals by rule: " + ", ".join(f"{rule}: {rules[rule]}" for rule in sorted(rules)))
    return differ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1 << 62, help="files to try (default: until --seconds)")
    parser.add_argument("--seconds", type=float, default=60, help="how long to try (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="of the choices (default: drawn, and printed)")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "build" / "fuzz", help="where differing files go")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    seconds = options.seconds if options.count == 1 << 62 else float("inf")
    return 1 if compare(options.count, seconds, seed, options.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
