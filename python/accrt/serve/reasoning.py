"""Reasoning that a model writes before its answer: between which marks it stands, and what a
grammar of the answer says of it.

Reasoning and answer are separated in C (serve/http/thoughts.c).
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, NamedTuple, Optional

from .. import _ffi
from .parameters import Grammar, flag


class Form(NamedTuple):
    """The marks of a family of models."""

    number: int
    open: str
    close: str


FORMS: Dict[str, Form] = {
    "think": Form(_ffi.ACCRT_HTTP_REASONING_THINK, "<think>", "</think>"),
    "mistral": Form(_ffi.ACCRT_HTTP_REASONING_BRACKETS, "[THINK]", "[/THINK]"),
    "seed_oss": Form(_ffi.ACCRT_HTTP_REASONING_SEED, "<seed:think>", "</seed:think>"),
}
#: In place of a form: reasoning stays text.
NONE = "none"
#: What is left out around reasoning.
_SPACE = " \n\r\t"


def detect(template: str, known: Callable[[str], bool]) -> str:
    """The form whose marks the chat template has, or the tokenizer as tokens; `known` says that of
    a text."""
    for has in (template.__contains__, known):
        for name, form in FORMS.items():
            if has(form.close):
                return name
    return NONE


class Asked(NamedTuple):
    """How the reasoning of one request is found."""

    form: Form
    opened: bool  # by the prompt: the model begins within its reasoning
    left_out: bool  # of the answer
    begun: bool = False  # the prompt has some of it: white space that follows belongs to it

    @property
    def number(self) -> int:
        """For C."""
        begun = _ffi.ACCRT_HTTP_REASONING_BEGUN if self.begun else 0
        return self.form.number | (_ffi.ACCRT_HTTP_REASONING_OPEN | begun if self.opened else 0)

    def skip_special(self, wanted: bool, special: Any) -> bool:
        """Whether special tokens are left out of the text: not where one is a mark."""
        return wanted and special(self.form.open) is None and special(self.form.close) is None


def asked(given: Dict[str, Any], form: str, opened: bool, begun: bool = False) -> Optional[Asked]:
    """What a request says of reasoning; None: it stays text."""
    separate, include = [given.get(name) is None or flag(name, given[name]) for name in ("separate_reasoning", "include_reasoning")]
    return Asked(FORMS[form], opened, not include, begun) if form != NONE and separate else None


def opened(form: str, prompt: str, continued: Optional[str] = None) -> bool:
    """Whether a prompt ends within reasoning. What a user writes says nothing of that, so the mark
    must be the last word, or stand in the message that is continued."""
    if form == NONE:
        return False
    marks = FORMS[form]
    if prompt.rstrip().endswith(marks.open):
        return True
    return continued is not None and continued.rfind(marks.open) > continued.rfind(marks.close)


def begun(form: str, continued: Optional[str]) -> bool:
    """Whether a message that is continued ends within reasoning of which it has some."""
    if continued is None or not opened(form, "", continued):
        return False
    return bool(continued.rpartition(FORMS[form].open)[2].strip(_SPACE))


def behind(grammar: Grammar, found: Asked, special: Any) -> Optional[Grammar]:
    """A grammar of the answer behind reasoning that the prompt has opened, which may be anything.
    None: a grammar of the user's own, whose rules may have any names, is one of the whole text."""
    if grammar.parameter.endswith("grammar"):
        return None
    close, number = found.form.close, special(found.form.close)
    # `lazy` ends at the first mark; a special token is none of the text before it
    thoughts = f"thoughts[lazy]: /(?s:.*){_in_slashes(re.escape(close))}/" if number is None else f"thoughts: /(?s:.*)/ <[{number}]>"
    if grammar.kind == "json":
        answer = f"answer: %json {grammar.text}"
    elif grammar.kind == "regex":
        answer = f"answer: /{_in_slashes(grammar.text)}/"
    else:
        answer = grammar.text.replace("start:", "answer:", 1)  # of ours, which begin so
    return grammar._replace(kind="lark", text="\n".join(["start: thoughts gap answer", thoughts, "gap: /[ \\t\\r\\n]{0,8}/", answer]))


def _in_slashes(expression: str) -> str:
    return re.sub(r"\\.|/|\n", lambda one: {"/": "\\/", "\n": "\\n"}.get(one[0], one[0]), expression, flags=re.DOTALL)
