"""Where a user's files are, and whether others can write to them."""
from __future__ import annotations

import errno
import os
import stat
from typing import Optional

from ._files import put


def user_folder(variable: str, fallback: str) -> Optional[str]:
    """accrt's folder in the one that an XDG variable names, or else in `fallback`; None when there
    is no home."""
    for base in (os.environ.get(variable, ""), os.path.expanduser(fallback)):
        if os.path.isabs(base):
            return os.path.join(base, "accrt")
    return None


def is_private(path: str) -> bool:
    """Whether no other user may write to a file or folder or to a folder above it: all belong to
    root or to this user, and have no write bits for others; folders above may be sticky, as /tmp
    is. As runtime/core/safe_open.c has it."""
    return not why_not_private(path)


def why_not_private(path: str, *owners: int) -> str:
    """What is at fault; "" where nothing is. `owners`: users who are believed besides root and this
    one."""
    try:
        for start in (os.path.abspath(path), os.path.realpath(path)):
            part, leaf = start, True
            while True:
                facts = os.lstat(part)
                if facts.st_uid not in (0, os.geteuid(), *owners):
                    return f"{part} belongs to user {facts.st_uid}, who is neither root nor you ({os.geteuid()})"
                sticky = not leaf and stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
                if not stat.S_ISLNK(facts.st_mode) and facts.st_mode & 0o022 and not sticky:
                    return f"others may write to {part} (mode {stat.S_IMODE(facts.st_mode):04o}); chmod go-w it first"
                if os.path.dirname(part) == part:
                    break
                part, leaf = os.path.dirname(part), False
    except OSError as error:
        return error.strerror or str(error)
    return ""


def make_private_folder(path: str) -> None:
    """With those above it that are missing, each for this user alone, whatever the umask. Raises
    OSError."""
    if not os.path.isabs(path):
        raise FileNotFoundError(errno.ENOENT, "it is not an absolute path", path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass


def read_own_file(path: str) -> bytes:
    """The content of a file in a folder of this user's. A link is not followed, a FIFO not waited
    for. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not is_private(path):
            raise PermissionError(f"{path}: it is no regular file, or another user may write to it or to a folder above it")
        return file.read()


def set_own_file(path: str, content: bytes) -> None:
    """Writes a file as a whole or not at all, in a folder of this user's that is made where it is
    missing. Raises OSError."""
    folder = os.path.dirname(path)
    make_private_folder(folder)
    if not is_private(folder):
        raise PermissionError(f"{folder}: another user may write to it or to a folder above it")
    put(path, content, 0o600, ours=True)
