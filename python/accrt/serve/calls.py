"""Calls of tools and reasoning in texts that a model writes, found by the server's own parser,
without a server."""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, List, NamedTuple, Optional

from .. import _ffi
from .._library import Handle, check, created, lib
from .tools import Form


class News(NamedTuple):
    """What a piece of text is: text of the answer, pieces of calls, and reasoning."""

    text: str
    calls: List[Dict[str, Any]]
    reasoning: str


class Calls(Handle):
    """Finds calls and reasoning in one text that comes piece by piece. `one`: calls after the first
    are dropped. `reasoning`: the number of its form; 0: it stays text."""

    __slots__ = ()
    _kind = "accrt_http_calls"

    def __init__(self, form: Optional[Form], one: bool = False, reasoning: int = 0, text_parameters: Optional[bytes] = None) -> None:
        super().__init__(created(lib.accrt_http_calls_create, form.number if form is not None else 0, int(one), text_parameters, reasoning))

    def push(self, text: str, last: bool = False) -> News:
        """What of the text is neither, and pieces of calls as OpenAI's streams have them: of a
        call's first piece `index`, `id`, `type` and `function` with the name; of all of them a
        piece of the arguments."""
        data, news = text.encode(), _ffi.accrt_http_call_news()
        check(lib.accrt_http_calls_push(self.handle, data, len(data), int(last), ctypes.byref(news)))
        fields = _ffi.accrt_http_call_news
        entries = _string(news, fields.entries, news.entries_bytes)
        return News(_string(news, fields.content, news.content_bytes), json.loads(f"[{entries}]"), _string(news, fields.reasoning, news.reasoning_bytes))


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


__all__ = ["Calls", "News", "join"]
