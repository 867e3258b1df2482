"""Calls of tools in texts that a model writes, found by the server's own parser, without a
server."""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, List, Tuple

from .. import _ffi
from .._library import Handle, check, created, lib
from .tools import Form


class Calls(Handle):
    """Finds calls in one text that comes piece by piece. `one`: calls after the first are
    dropped."""

    __slots__ = ()
    _kind = "accrt_http_calls"

    def __init__(self, form: Form, one: bool = False) -> None:
        super().__init__(created(lib.accrt_http_calls_create, form.number, int(one)))

    def push(self, text: str, last: bool = False) -> Tuple[str, List[Dict[str, Any]]]:
        """What of the text is none of a call, and pieces of calls as OpenAI's streams have them: of
        a call's first piece `index`, `id`, `type` and `function` with the name; of all of them a
        piece of the arguments."""
        data, news = text.encode(), _ffi.accrt_http_call_news()
        check(lib.accrt_http_calls_push(self.handle, data, len(data), int(last), ctypes.byref(news)))
        entries = _string(news, _ffi.accrt_http_call_news.entries, news.entries_bytes)
        return _string(news, _ffi.accrt_http_call_news.content, news.content_bytes), json.loads(f"[{entries}]")


def _string(news: Any, field: Any, size: int) -> str:
    """Not the field's own value: ctypes would copy up to a NUL that is not there."""
    return ctypes.string_at(ctypes.c_void_p.from_buffer(news, field.offset).value, size).decode() if size else ""


def join(calls: List[Dict[str, Any]], pieces: List[Dict[str, Any]]) -> None:
    """Adds a stream's pieces to whole calls, as a message has them."""
    for piece in pieces:
        function = piece["function"]
        if "id" in piece:
            calls.append({"id": piece["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}})
        calls[piece["index"]]["function"]["arguments"] += function.get("arguments", "")


__all__ = ["Calls", "join"]
