"""Opens what torch.export.save wrote, after a look at it: torch believes what it finds."""

from __future__ import annotations

import contextlib
import logging
import re
import types
import typing
import zipfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import _pt2_archive
from ._files import regular
from .errors import named_files

#: A type of a .pt2 file that has a list of keys, in JSON that is text in JSON.
_KEYED = re.compile(r'"type\\*": \\*"(\w+(?:\.\w+)+)\\*", \\*"context\\*": \\*"\[\\')


class _Reason(logging.Filter):
    """torch logs a page about an archive that it cannot read, and raises something else. This keeps
    the page from the terminal, and the reason for the message."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Optional[BaseException] = None

    def filter(self, record: logging.LogRecord) -> bool:
        self.error = record.exc_info[1] if record.exc_info else self.error
        return False


def loaded(path: str) -> Any:
    """What torch.export.save wrote. torch believes what it finds, so the file is looked at
    first."""
    import torch

    from .from_torch.values import plain, short

    with named_files():
        opened = open(path, "rb", opener=regular)
    with opened as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not what torch.export.save writes (a .pt2 file)")
        try:
            _stand_ins(_pt2_archive.check(file))
        except _pt2_archive.Refused as error:
            raise ValueError(plain(f"{path}: {error}. torch.export.load reads it, if you trust it; give the program then")) from error
        file.seek(0)
        reason, log = _Reason(), logging.getLogger("torch.export")
        log.addFilter(reason)
        try:
            with _fields_asked_once():
                program = torch.export.load(file)
            program._accrt_file = path
            return program
        except Exception as error:  # of any kind: the file says what torch does
            why: BaseException = reason.error or error.__cause__ or error
            raise ValueError(plain(f"{path}: torch {torch.__version__} cannot load it: {short(why)}")) from error
        finally:
            log.removeFilter(reason)


@contextlib.contextmanager
def _fields_asked_once() -> Iterator[None]:
    """torch asks for the types of a class's fields at each record of the graph, which takes as long
    as to build the graph. Within, its reader of records asks once for each class."""
    try:
        from torch._export.serde import serialize
    except ImportError:  # a torch that keeps it elsewhere
        serialize = None
    if getattr(serialize, "typing", None) is not typing:
        yield
        return
    known: Dict[Tuple[Any, int], Dict[str, Any]] = {}

    def hints(kind: Any, globalns: Any = None, localns: Any = None, include_extras: bool = False) -> Dict[str, Any]:
        key = (kind, id(globalns))
        if localns is not None or include_extras:
            return typing.get_type_hints(kind, globalns, localns, include_extras)
        if key not in known:
            known[key] = typing.get_type_hints(kind, globalns)
        return known[key]

    serialize.typing = types.SimpleNamespace(**{**vars(typing), "get_type_hints": hints})
    try:
        yield
    finally:
        serialize.typing = typing


def _stand_ins(texts: List[str]) -> None:
    """transformers makes its outputs known to torch when it makes the first of them. A file that
    names such types (their keys are in it) is read with dicts in their place, and without
    transformers."""
    from torch.utils import _pytree as pytree

    for kind in sorted({kind for text in texts for kind in _KEYED.findall(text)}):
        if kind not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            made = type(kind.rpartition(".")[2], (dict,), {})
            pytree.register_pytree_node(
                made, lambda item: (list(item.values()), list(item)), lambda values, keys, made=made: made(zip(keys, values)),
                serialized_type_name=kind, flatten_with_keys_fn=pytree._dict_flatten_with_keys,
            )  # fmt: skip
