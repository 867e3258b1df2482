"""Files that appear whole: written beside their name, synced, renamed, the folder synced. As
runtime/core/put_file.c has it; nothing else in the package renames or makes temporary files
(tests/python/test_whole_files.py)."""
from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from typing import Callable, Iterator, Optional, Tuple, Union

_TAIL = r"\.[0-9]+\.[0-9]+\.part"
_numbers = itertools.count()


def regular(path: Union[str, "os.PathLike[str]"], flags: int) -> int:
    """The `opener` for files that others name: a FIFO is not waited for, and what is no regular
    file is an OSError that names it."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a regular file", os.fspath(path))


def read_small(path: str, limit_bytes: int) -> bytes:
    """A regular file of at most so many bytes. ValueError: it is none, or larger. It waits for no
    other end of a FIFO."""
    data = read_beginning(path, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError(f"it has more than {limit_bytes} bytes")
    return data


def read_beginning(path: str, size_bytes: int) -> bytes:
    """So many bytes of a regular file, or all where it has fewer. ValueError: it is none."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):  # fdopen would not close a folder
        os.close(file)
        raise ValueError("it is not a regular file")
    with os.fdopen(file, "rb") as stream:
        # As much memory is taken at once. Files of /proc have no size.
        return stream.read(min(size_bytes, max(about.st_size, 1 << 16)))


def _take_leftovers(folder: int, name: str) -> None:
    """Removes parts without an owner: the process that made them has ended. Name "": of all names,
    for the folder is ours."""
    import fcntl
    wanted = re.compile(re.escape(name) + _TAIL if name else ".*" + _TAIL)
    for entry in os.listdir(folder):
        if not wanted.match(entry):
            continue
        try:
            file = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            facts = os.fstat(file)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry, dir_fd=folder)
        except OSError:
            pass
        finally:
            os.close(file)


def _is_descriptor(folder: int, name: str, links: int = 40) -> bool:
    """True where a name leads through links to a descriptor, as /dev/stdout does. It may be one of
    another process, and closed."""
    try:
        if re.fullmatch("[0-9]+", name) and os.path.ismount("/proc") and os.fstat(folder).st_dev == os.stat("/proc").st_dev:
            return True
        place, name = os.path.split(os.readlink(name, dir_fd=folder))
        below = os.open(place or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return links > 0 and _is_descriptor(below, name, links - 1)
    finally:
        os.close(below)


def _check_name(folder: int, name: str, path: str) -> None:
    """Root who writes to /dev/null means the device, and the machine needs it there. So it is
    with /dev/stdout."""
    error = errno.EEXIST if _is_descriptor(folder, name) else 0
    if not error:
        try:
            mode = os.stat(name, dir_fd=folder).st_mode
        except OSError:
            return
        if not stat.S_ISREG(mode):
            error = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
    if error:
        raise OSError(error, "it is not a regular file, and is not replaced by one", path)


def _make_part(folder: int, name: str, end: str, mode: int) -> Tuple[str, int]:
    """A new file, locked as long as it is made."""
    import fcntl
    while True:
        part = f"{name}.{os.getpid()}.{next(_numbers)}.part{end}"
        try:
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        except FileExistsError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process that looks for leftovers holds it, and removes it
            os.close(file)
            continue
        except OSError:
            pass
        if os.fstat(file).st_nlink:
            return part, file
        os.close(file)


def put(path: str, data: bytes, mode: int, *, end: str = "", ours: bool = False, check: Optional[Callable[[str], None]] = None) -> None:
    """Replaces a file by one with this content and mode, as a whole or not at all. Raises OSError.

    Args:
        end: what is put behind the name of the file while it is made.
        ours: no one else writes in the folder: parts of all names are removed if they have no owner
            any more.
        check: gets the path of the new file before it has its name; what it raises is raised here.
    """
    place, name = os.path.split(path)
    folder = os.open(place or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not ours:
            _check_name(folder, name, path)
        _take_leftovers(folder, "" if ours else name)
        part, file = _make_part(folder, name, end, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view):]
            os.fchmod(file, mode)
            os.fsync(file)
            if check:
                check(os.path.join(place, part))
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise
        finally:
            os.close(file)
        try:
            os.fsync(folder)  # makes the name last; a file system that cannot is no failure
        except OSError:
            pass
    finally:
        os.close(folder)


def _take_leftover_folders(prefix: str) -> None:
    """Takes temporary folders of this user away whose makers were killed: no process holds them."""
    import fcntl
    import shutil
    import tempfile
    place = tempfile.gettempdir()
    try:
        entries = os.listdir(place)
    except OSError:  # a folder that can be written but not read
        return
    for entry in entries:
        if not entry.startswith(prefix):
            continue
        path = os.path.join(place, entry)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(folder)


_swept: "set[str]" = set()


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A folder for temporary files, locked as long as it is used. The first of a process takes away
    what processes that were killed left of the same prefix."""
    import fcntl
    import tempfile
    if prefix not in _swept:
        _swept.add(prefix)
        _take_leftover_folders(prefix)
    while True:
        made = tempfile.TemporaryDirectory(prefix=prefix)
        try:
            folder = os.open(made.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # it was taken away before it was held
            continue
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process that looks for leftovers holds it, and removes it
            os.close(folder)
            made.cleanup()
            continue
        except OSError:  # a file system without locks: no process removes it
            break
        if os.fstat(folder).st_nlink:
            break
        os.close(folder)  # it was taken away before it was locked
    try:
        with made:
            yield made.name
    finally:
        os.close(folder)
