"""The first compilation of a grammar, in a process that may be ended: llguidance takes minutes and
gigabytes for some of a few hundred bytes, and has no function that ends it."""
from __future__ import annotations

import functools
import json
import os

from ..errors import Error, InvalidFormatError
from .engine import Model
from .grammar import MOST_WORDS, Grammars


@functools.lru_cache(maxsize=1)  # there is one llguidance
def _grammars(path: str) -> Grammars:
    """For tokens of a byte each: what takes long does not depend on tokens."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 2)  # it prints where its memory ends
    return Grammars(Model.simulated(), path)


def answer(question: bytes) -> bytes:
    """Of {"path", "kind", "text"}: nothing, or why it could not be tried. The process that asks
    compiles the grammar for its model, and finds what is wrong with it."""
    asked = json.loads(question)
    try:
        _grammars(asked["path"]).constraint(asked["kind"], asked["text"])
    except (InvalidFormatError, UnicodeError):
        pass
    except Error as error:
        return error.message[:MOST_WORDS].encode()
    finally:
        _grammars(asked["path"]).forget()  # the next one has all of the memory
    return b""
