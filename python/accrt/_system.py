"""Libraries and programs that the system looks for: never in the current folder, and libraries not
where others may write. As runtime/core/safe_open.c has it. Nothing else in the package opens a
library by a name (tests/python/test_open_paths.py)."""
from __future__ import annotations

import ctypes
import glob
import os
import re
from typing import Optional

from ._paths import why_not_private


def check_library(path: str) -> None:
    """Whether a library is opened by an absolute path: it, and each folder above, belongs to root,
    to this user or to the owner of this package, no other user may write to it, and it is a regular
    file. Raises OSError, which says what is at fault."""
    if not os.path.isabs(path):
        raise PermissionError(f"{path}: a library is opened by an absolute path or a name without slashes, and this is none")
    fault = why_not_private(path, _owner())
    if fault:
        raise PermissionError(f"{path}: {fault}")
    if not os.path.isfile(path):  # for a FIFO, dlopen would wait
        raise FileNotFoundError(f"{path}: not a regular file")


def check_search(name: str) -> None:
    """Whether the system's search for a library is believed. `name` may have a `*`: for what the
    library opens itself. Raises PermissionError where LD_LIBRARY_PATH leads to it in a folder that
    is no absolute path, or that others may write to."""
    given = os.environ.get("LD_LIBRARY_PATH")
    for folder in re.split("[:;]", given) if given else ():
        if not any(glob.glob(os.path.join(glob.escape(folder), below)) for below in (name, "glibc-hwcaps", "tls")):
            continue
        if not os.path.isabs(folder):
            raise PermissionError(f"{name}: LD_LIBRARY_PATH has the folder '{folder}', which is no absolute path, and the library would be opened there")
        fault = why_not_private(folder, _owner())
        if fault:
            raise PermissionError(f"{name}: LD_LIBRARY_PATH has the folder '{folder}': {fault}")


def open_library(name: str, *also: str) -> ctypes.CDLL:
    """Opens a library by an absolute path or by its soname, or finds it where the process has it
    already. `also`: what it opens itself, by the system's search. Raises OSError; PermissionError
    where the place is not believed."""
    if "/" in name or not name:
        check_library(name)
    else:
        there = loaded_library(name)
        if there is not None:
            return there
        check_search(name)
    for one in also:
        check_search(one)
    return ctypes.CDLL(name)


def loaded_library(name: str) -> Optional[ctypes.CDLL]:
    """A library that the process has already, by its soname; None: it has not. Nothing is
    loaded."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def programs() -> str:
    """PATH without what is no absolute path, which would be the current folder."""
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    return os.pathsep.join(folders) or os.defpath


def environment() -> dict[str, str]:
    """For a program that is started by its name: it finds the programs that it starts by that PATH
    too."""
    return {**os.environ, "PATH": programs()}


def _owner() -> int:
    return os.stat(__file__).st_uid
