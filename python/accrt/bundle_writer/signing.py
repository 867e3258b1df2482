"""The cryptographic tree of a bundle that is being written, and signatures of its roots (docs/accx-format.md)."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Iterable, List, Optional, Sequence, Tuple

TREE_BYTES, SIGNATURE_BYTES, LEAF_BYTES = 80, 112, 32
CODE, WEIGHTS = 1, 2
#: Sections that the code root does not cover: digests, the tree itself, weights and their encryption.
_NOT_COVERED = ("chunk_digests", "tree", "signatures", "leaves", "encryption", "tags", "data")


class Signer:
    """What `BundleWriter.write` signs with. `accrt.trust.SigningKey` is one."""

    #: The 32 bytes of the public Ed25519 key.
    public_key: bytes

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        raise NotImplementedError


def digest(prefix: str, *parts: Any) -> bytes:
    found = hashlib.sha256(prefix.encode().ljust(16, b"\0"))
    for part in parts:
        found.update(part)
    return found.digest()


def code_root(sections: Iterable[Tuple[str, Tuple[int, ...], Any]], optional_features: int) -> bytes:
    """The root over (name, (type, flags, record size, record count), bytes) of the sections that it covers."""
    covered = [(name, numbers, content) for name, numbers, content in sections if name not in _NOT_COVERED]
    parts = [struct.pack("<3Q", 0, optional_features, len(covered))]
    for name, numbers, content in covered:
        parts.append(struct.pack("<4IQ16s", *numbers, len(content), name.encode()) + hashlib.sha256(content).digest())
    return digest("accrt code v1", *parts)


def weight_root(data_bytes: int, leaves: bytes) -> bytes:
    if not data_bytes:
        return bytes(32)
    return digest("accrt weights v1", struct.pack("<3Q", data_bytes, len(leaves) // LEAF_BYTES, 0), leaves)


class Leaf:
    """The leaf of one chunk in the making: its size comes before its bytes, which are therefore kept until it is known."""

    def __init__(self, index: int):
        self.index = index
        self.pieces: List[memoryview] = []

    def finish(self) -> bytes:
        size = sum(len(piece) for piece in self.pieces)
        return digest("accrt leaf v1", struct.pack("<2Q", self.index, size), *self.pieces)


def scopes(data_bytes: int) -> Sequence[int]:
    return (CODE, WEIGHTS) if data_bytes else (CODE,)


def tree(code: bytes, weights: bytes) -> bytes:
    return struct.pack("<2I32s32sQ", 1, 20, code, weights, 0)


def signatures(signer: Signer, code: bytes, weights: Optional[bytes]) -> bytes:
    """Records of SIGNATURES: of the code, and of the weights where there are any."""
    records = b""
    for scope, root in ((CODE, code), (WEIGHTS, weights)):
        if root is not None:
            signed = signer.sign(struct.pack("<16s2I32s", b"accrt sign v1", scope, 1, root))
            records += struct.pack("<2I32s64sQ", scope, 1, signer.public_key, signed, 0)
    return records
