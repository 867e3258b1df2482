"""The cryptographic tree (rules 142 to 144), from docs/accx-format.md and hashlib alone; and the
signatures of its roots, which no rule is about: a file whose signature is of something else opens,
and is not trusted. They need the package `cryptography`."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any, List, Optional

from . import records as r
from .container import Container

#: Sections that the code root does not cover: digests, the tree itself, weights and their
#: encryption.
NOT_COVERED = (20, 40, 41, 43, 44, 45, 63)


def _digest(prefix: str, *parts: Any) -> bytes:
    digest = hashlib.sha256(prefix.encode().ljust(16, b"\0"))
    for part in parts:
        digest.update(part)
    return digest.digest()


def code_root(container: Container) -> bytes:
    """The digest of everything that says what runs."""
    header = container.header
    covered = [s for s in container.table if s.type not in NOT_COVERED]
    parts: List[bytes] = [struct.pack("<3Q", header.required_features & ~1, header.optional_features, len(covered))]
    for s in covered:
        content = hashlib.sha256(container.data[s.offset : s.offset + s.size_bytes]).digest()
        parts.append(struct.pack("<4IQ16s", s.type, s.flags, s.record_bytes, s.record_count, s.size_bytes, s.name) + content)
    return _digest("accrt code v1", *parts)


def leaves(data: Any) -> bytes:
    """The leaf of each chunk of DATA, one after another."""
    out = []
    for index, start in enumerate(range(0, len(data), r.CHUNK_BYTES)):
        chunk = data[start : start + r.CHUNK_BYTES]
        out.append(_digest("accrt leaf v1", struct.pack("<2Q", index, len(chunk)), chunk))
    return b"".join(out)


def weight_root(data_bytes: int, all_leaves: Any, encryption: Any = b"", tags: Any = b"") -> bytes:
    """The digest of the weights; zeros where there are none."""
    if not data_bytes:
        return bytes(32)
    counts = struct.pack("<3Q", data_bytes, len(all_leaves) // 32, bool(encryption))
    return _digest("accrt weights v1", counts, all_leaves, encryption, tags)


def statement(scope: int, root: bytes) -> bytes:
    """The bytes that a signature of a root signs. Scope: 1 code, 2 weights."""
    return struct.pack("<16s2I32s", b"accrt sign v1", scope, 1, root)


@dataclass(frozen=True)
class Signature:
    scope: str  #: code or weights
    key: bytes  #: the public Ed25519 key whose it says it is
    #: whether it is that key's, of the root in the file's tree; None: `cryptography` is not
    #: installed
    valid: Optional[bool]


def _is_of(key: bytes, signature: bytes, message: bytes) -> Optional[bool]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return None
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def signatures(container: Container, records: Any) -> List[Signature]:
    """What the file's signatures are worth, in their order. That the tree is the file's is
    `check`'s to say."""
    tree = bytes(container.sections.get("tree", b""))
    roots = {1: tree[8:40], 2: tree[40:72]}
    return [
        Signature(("", "code", "weights")[s.scope], s.key, _is_of(s.key, s.signature, statement(s.scope, roots[s.scope])))
        for s in records
    ]


def check(container: Container) -> None:
    """Raises FormatError where the tree is not that of the file."""
    content = container.sections
    if "tree" not in content:
        return
    data = content.get("data", memoryview(b""))
    stored = bytes(content.get("leaves", b""))
    if leaves(data) != stored:
        raise container.fail(144, "a chunk of data is not what its leaf says")
    if code_root(container) != bytes(content["tree"][8:40]):
        raise container.fail(142, "tree: the code root is not that of the file")
    encryption, tags = content.get("encryption", b""), content.get("tags", b"")
    if weight_root(len(data), stored, encryption, tags) != bytes(content["tree"][40:72]):
        raise container.fail(143, "tree: the weight root is not that of the file")
