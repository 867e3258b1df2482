"""Compiled kernels in the user's cache, by the content of what they were made of. Any number of
processes may use it at once, and one that is killed leaves no half entry. An entry begins with the
SHA-256 of its name and its content: what a disk has damaged, or what was moved, is made again."""
from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Callable, Optional

from ._paths import read_own_file, set_own_file, user_folder

_DIGEST = 32  # bytes


def cache_directory() -> Optional[Path]:
    """Where compiled kernels are kept; None when there is no home. What is in it is machine code
    that is signed with the user's key."""
    folder = user_folder("XDG_CACHE_HOME", "~/.cache")
    return Path(folder) / "kernels" if folder else None


def cached(key: str, make: Callable[[], bytes]) -> bytes:
    """Content of a cache entry, made where there is none, or a damaged one. A cache that cannot be
    written to, or that another user may write to, is no error: the work is done again."""
    folder = cache_directory()
    path = os.fspath(folder / key[:2] / key) if folder else ""
    try:
        entry = read_own_file(path)
        if _seal(key, entry[_DIGEST:]) == entry[:_DIGEST]:
            return entry[_DIGEST:]
    except OSError:
        pass
    content = make()
    try:
        set_own_file(path, _seal(key, content) + content)
    except OSError:
        pass
    return content


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def digest(*parts: str) -> str:
    found = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        found.update(struct.pack("<Q", len(encoded)) + encoded)
    return found.hexdigest()
