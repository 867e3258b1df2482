#!/usr/bin/env python3
"""Adds the golden bundles that are signed and encrypted, from 0.3/neighbours.accx, with the library
(make.py has the others).

    python3 tests/golden/make_trust.py

Both keys are 00 01 02 ... 1f: they protect nothing. Files that are there stay as they are.
"""

import ctypes
import hashlib
import pathlib
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parents[1] / "python"))

import accrt  # noqa: E402
from accrt import _ffi  # noqa: E402
from accrt._library import check, lib, struct  # noqa: E402


def key():
    made = _ffi.accrt_key()
    made.bytes[:] = list(range(32))
    return made


def sign(bundle, path):
    options = struct(_ffi.accrt_sign_options, private_key=ctypes.pointer(key()), scopes=3, flags=1)
    check(lib.accrt_bundle_sign(bundle.handle, ctypes.byref(options), str(path).encode()))


def encrypt(bundle, path):
    check(lib.accrt_bundle_encrypt(bundle.handle, ctypes.byref(key()), str(path).encode()))


def main():
    for name, make, what in (("0.3/signed", sign, "code and weights signed"), ("0.3/encrypted", encrypt, "weights encrypted"),
                             ("0.4/encrypted", encrypt, "weights encrypted for the code beside them (algorithm 2)")):  # fmt: skip
        path = GOLDEN / f"{name}.accx"
        if path.exists():
            continue
        path.parent.mkdir(exist_ok=True)
        make(accrt.Bundle(GOLDEN / "0.3" / "neighbours.accx"), path)
        for file, line in (("manifest", f"{name}.accx OK 0 {what}"),
                           ("checksums", f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}.accx")):  # fmt: skip
            with (GOLDEN / f"{file}.txt").open("a") as lines:
                lines.write(line + "\n")


if __name__ == "__main__":
    main()
