"""Kernels that come with the package, compiled: what they are for needs no compiler.

A folder has one archive (ZIP) for each target. A member is an image, called by the digest of all
that it follows from: the sources of its kernels and what these include, the flags, their records.
So it is found when nothing of it has changed, whatever model it is for, and what is not there is
compiled. `python -m accrt.models._prebuilt FOLDER` makes the archives; the wheel has them
(docs/compiler.md).
"""

from __future__ import annotations

import functools
import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Tuple

from ..._files import put

#: Names another folder; empty: none.
_VARIABLE = "ACCRT_PREBUILT_KERNELS"
_FOLDER = Path(__file__).resolve().parents[1] / "prebuilt"
_DATE = (2020, 1, 1, 0, 0, 0)


@functools.lru_cache(maxsize=None)
def _read(path: Path) -> Tuple[Optional[zipfile.ZipFile], str]:
    """The archive, or why there is none."""
    try:
        return zipfile.ZipFile(io.BytesIO(path.read_bytes())), ""
    except FileNotFoundError:
        return None, f"no kernels for {path.stem} came with accrt"
    except (OSError, zipfile.BadZipFile) as error:
        return None, f"the kernels that came with accrt cannot be read ({path}: {error})"


def _of(target: str) -> Tuple[Optional[zipfile.ZipFile], str]:
    chosen = os.environ.get(_VARIABLE)
    if chosen == "":
        return None, f"{_VARIABLE} is empty"
    return _read((Path(chosen) if chosen else _FOLDER) / f"{target}.zip")


def available_targets(names: Sequence[str]) -> List[str]:
    """Those of the targets that there is an archive for."""
    return [name for name in names if _of(name)[0] is not None]


def why_missing(target: str) -> str:
    """Why a target's archive does not help."""
    return _of(target)[1]


def find(target: str, key: str) -> Optional[bytes]:
    """An image; None where it is not there, or not as it was written."""
    archive = _of(target)[0]
    if archive is None:
        return None
    try:
        return archive.read(key)
    except (KeyError, ValueError, NotImplementedError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def write(path: Path, members: Mapping[str, bytes]) -> None:
    """An archive, whole or not at all; the same members give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in sorted(members):
            info = zipfile.ZipInfo(key, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, members[key], compresslevel=9)
    put(str(path), content.getvalue(), 0o644)
