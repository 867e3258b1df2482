"""Reads .accx bundles without the library: a second reader, written from docs/accx-format.md alone.

    from accrt import bundle_reader

    bundle = bundle_reader.read("model.accx")
    print(bundle.versions, [f.name for f in bundle.functions])
    weight = bundle.constants["layer.0.weight"]
    raw = bundle.data(weight)                     # a memoryview of the bytes in the file

It makes the same checks as the library, in the same order and under the same numbers, so that the
two can be held against each other: `FormatError.rule` is the number. It is for tools and tests that
cannot load a shared library, and for readers who want to know what a byte means; programs that run
bundles use `accrt.load`.

What it does not check: whom to trust (no file is refused here for its machine code: nothing is
run), and the tags of encrypted weights, which it does not decrypt. Signatures are no matter of a
rule; `Bundle.signatures` checks them where the package `cryptography` is installed, and says None
of each where it is not.

It needs the `xxhash` package (digests), not numpy, and imports nothing else of accrt.
"""

from __future__ import annotations

from .container import FormatError, SectionRecord
from .model import Argument, Bundle, Component, Constant, Function, Image, Kernel, State, Symbol, Variant, read
from .records import RULES
from .trust import Signature

__all__ = [
    "Argument", "Bundle", "Component", "Constant", "FormatError", "Function", "Image", "Kernel", "RULES", "SectionRecord",
    "Signature", "State", "Symbol", "Variant", "read",
]  # fmt: skip
