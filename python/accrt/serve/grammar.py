"""Grammars: what `response_format` and its relatives ask for, and the constraints of the engine
that come of it.

llguidance computes the masks. Its C interface is in the extension module of the Python package,
which the engine opens itself: no Python runs for a token.
"""

from __future__ import annotations

import collections
import glob
import hashlib
import importlib.machinery
import json
import os
import sys
import threading
import weakref
from time import monotonic
from typing import MutableMapping, Optional, Tuple

from .. import _ffi, _limited
from .._library import Handle, created, lib, need
from .._waits import apart
from ..errors import InvalidFormatError, OutOfMemoryError, PermissionDeniedError, UnsupportedError
from .parameters import BadParameter, Grammar

_KINDS = {"json": _ffi.ACCRT_SERVE_GRAMMAR_JSON_SCHEMA, "regex": _ffi.ACCRT_SERVE_GRAMMAR_REGEX, "lark": _ffi.ACCRT_SERVE_GRAMMAR_LARK}
_KEPT, _KEPT_BYTES = 128, 256 << 10  # what a grammar takes of memory follows from its text's size
#: A grammar is compiled in a process of its own first, which ends at these.
TRIAL_SECONDS, TRIAL_BYTES = 10.0, 512 << 20
MOST_WORDS = 1000  # of its answer
_STACK_BYTES = 1 << 30  # of the thread that compiles: serve/grammars.c
#: A grammar that was refused is not tried again for this time. If it was too complex, the machine
#: may have been busy.
_REFUSED_SECONDS = 60.0


class NotCompiled(Exception):
    """The grammar is new, and was not to be compiled now."""

    def __init__(self, key: Tuple[str, str]) -> None:
        super().__init__()
        #: of this grammar alone
        self.key = key


class Constraint(Handle):
    """A compiled grammar."""

    __slots__ = ()
    _kind = "accrt_serve_constraint"


class Grammars(Handle):
    """Compiles grammars for a model's tokens, and keeps those that were used last: at most 128, of
    256 KiB of text together, or one."""

    __slots__ = ("_guard", "_constraints", "_path")
    _kind = "accrt_serve_grammars"

    def __init__(self, model: Handle, path: Optional[str] = None) -> None:
        from .engine import Model

        handle = need(model, Model)
        self._guard = threading.Lock()
        self._constraints: "collections.OrderedDict[Tuple[str, str], Constraint]" = collections.OrderedDict()
        self._path = found = path or _library()
        super().__init__(apart(lambda: created(lib.accrt_serve_grammars_open, handle, found.encode() if found else None)))

    def constraint(self, kind: str, text: str, helper: Optional[_limited.Helper] = None, now: bool = True) -> Constraint:
        """The compiled grammar. `helper` tries it first. What ends that is an error of _limited, or
        OutOfMemoryError. Not `now`: a new one is NotCompiled."""
        key = (kind, text)
        with self._guard:
            if key in self._constraints:
                self._constraints.move_to_end(key)
                return self._constraints[key]
        if not now:
            raise NotCompiled(key)
        if helper is not None:
            why = helper.ask(json.dumps({"path": self._path, "kind": kind, "text": text}).encode(), 4 * MOST_WORDS, TRIAL_SECONDS)
            if why:
                raise OutOfMemoryError(why.decode())
        made = Constraint(apart(lambda: created(lib.accrt_serve_grammars_constraint, self.handle, _KINDS[kind], text.encode())))
        with self._guard:
            self._constraints[key] = made
            while len(self._constraints) > 1 and (len(self._constraints) > _KEPT or sum(len(text) for _, text in self._constraints) > _KEPT_BYTES):
                self._constraints.popitem(last=False)
        return made

    def forget(self) -> None:
        """Keeps no grammar any more."""
        with self._guard:
            self._constraints.clear()


def _library() -> Optional[str]:
    """The extension module of the package `llguidance`, which is not imported. It is not looked for
    in the current folder."""
    spec = importlib.machinery.PathFinder.find_spec("llguidance", [folder for folder in sys.path if os.path.isabs(folder)])
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for found in sorted(glob.glob(os.path.join(glob.escape(folder), "_lib*.so"))):
            return found
    return None


class Compiler:
    """A model's grammars, opened when the first one is asked for."""

    def __init__(self, model: Handle) -> None:
        self._model, self._guard, self._grammars = model, threading.Lock(), None
        self._refused: "collections.OrderedDict[bytes, Tuple[str, str, float]]" = collections.OrderedDict()
        self._under_way: MutableMapping[bytes, threading.Lock] = weakref.WeakValueDictionary()
        self._helper = _limited.Helper("accrt.serve._trial", _STACK_BYTES + TRIAL_BYTES, TRIAL_SECONDS) if _limited.possible() else None

    def close(self) -> None:
        """Ends the process that tries grammars. Grammars can be compiled again."""
        if self._helper is not None:
            self._helper.close()

    def __call__(self, grammar: Optional[Grammar], now: bool = True) -> Optional[Constraint]:
        """The constraint of a grammar. BadParameter: the grammar is wrong, or there is nothing that
        compiles it. Not `now`: a new one is NotCompiled."""
        if grammar is None:
            return None
        key = hashlib.sha256(f"{grammar.kind} {grammar.text}".encode(errors="surrogatepass")).digest()
        if not now:
            return self._compiled(grammar, key, now)
        with self._guard:
            one_at_a_time = self._under_way.setdefault(key, threading.Lock())
        with one_at_a_time:  # the others find what the first one has compiled
            return self._compiled(grammar, key, now)

    def _compiled(self, grammar: Grammar, key: bytes, now: bool) -> Constraint:
        with self._guard:
            why, code, until = self._refused.get(key, ("", "", 0.0))
        if monotonic() < until:
            raise BadParameter(grammar.parameter, f"{grammar.parameter}{why}", code)
        try:
            with self._guard:
                if self._grammars is None:
                    self._grammars = Grammars(self._model)
            return self._grammars.constraint(grammar.kind, grammar.text, self._helper, now)
        except _limited.Overdue:
            raise self._refuse(grammar, key, f" takes longer than {TRIAL_SECONDS:g} seconds to compile", "grammar_too_complex") from None
        except (_limited.Ended, OutOfMemoryError) as error:
            why = f" takes more than {TRIAL_BYTES >> 20} MiB of memory to compile, or ended the compiler: {error}"
            raise self._refuse(grammar, key, why, "grammar_too_complex") from None
        except UnsupportedError as error:
            why = "" if "no such file" in error.message.lower() else f" ({error.message})"
            raise BadParameter(grammar.parameter, f"{grammar.parameter} needs the package `llguidance`: pip install llguidance{why}", "unsupported") from None
        except PermissionDeniedError as error:
            raise BadParameter(grammar.parameter, f"{grammar.parameter}: {error.message}", "unsupported") from None
        except InvalidFormatError as error:
            raise self._refuse(grammar, key, f": {error.message}", "invalid_value") from None

    def _refuse(self, grammar: Grammar, key: bytes, why: str, code: str) -> BadParameter:
        with self._guard:
            self._refused[key] = why, code, monotonic() + _REFUSED_SECONDS
            while len(self._refused) > _KEPT:
                self._refused.popitem(last=False)
        return BadParameter(grammar.parameter, f"{grammar.parameter}{why}", code)
