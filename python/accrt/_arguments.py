"""The command lines of the package's programs."""
from __future__ import annotations

import argparse
import os
import sys
from typing import Any, List, NoReturn, Optional

from ._library import close
from .errors import need_folder


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the option that was meant."""

    _given: List[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        wrong = self._unknown()
        if wrong and message.startswith("the following arguments are required"):
            # the argument may be there, behind a wrong name
            message = f"unrecognized arguments: {wrong}"
        near = close(wrong, self._option_string_actions) if wrong and message.startswith("unrecognized arguments") else []
        self.exit(2, f"{self.prog}: {message}" + (f"; is it {near[0]}?" if near else "; --help lists all options") + "\n")

    def _unknown(self) -> Optional[str]:
        """The first option that there is not; a beginning of a name stands for the name."""
        options = [one.partition("=")[0] for one in self._given if len(one) > 2 and one.startswith("--")]
        return next((one for one in options if not any(known.startswith(one) for known in self._option_string_actions)), None)


def need_place(path: str) -> None:
    """Raises where no file can be written at a path, before long work is done for one."""
    need_folder(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path}: it is a folder: name the file to write")
