"""Where a user's files are."""
from __future__ import annotations

import os
from typing import Optional


def user_folder(variable: str, fallback: str) -> Optional[str]:
    """accrt's folder in the one that an XDG variable names, or else in `fallback`; None when there is no home."""
    for base in (os.environ.get(variable, ""), os.path.expanduser(fallback)):
        if os.path.isabs(base):
            return os.path.join(base, "accrt")
    return None
