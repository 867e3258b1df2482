"""Reasoning that a model writes before its answer: between which marks it stands, and what a
grammar of the answer says of it.

Reasoning and answer are separated in C (serve/http/thoughts.c, serve/http/harmony.c).
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

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
    # the answer has marks of its own, which C leaves out
    "command": Form(_ffi.ACCRT_HTTP_REASONING_COMMAND, "<|START_THINKING|>", "<|END_THINKING|>"),
    # the marks of each message's header: the reasoning is a message, and so is the answer
    "harmony": Form(_ffi.ACCRT_HTTP_REASONING_HARMONY, "<|channel|>", "<|message|>"),
}
#: The form whose text is messages with headers, and the marks of these beside those of the header.
HARMONY = "harmony"
START, END, CONSTRAIN = "<|start|>", "<|end|>", "<|constrain|>"
#: Tokens that end such a text: behind an answer, and behind a call.
ENDS = ("<|return|>", "<|call|>")
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
        if self.form is FORMS[HARMONY]:  # the text says itself where the reasoning begins
            return self.form.number
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
    if form == HARMONY:  # the answer's message is known by its header
        return continued is None and prompt.endswith(f"{START}assistant")
    if prompt.rstrip().endswith(marks.open):
        return True
    return continued is not None and continued.rfind(marks.open) > continued.rfind(marks.close)


def begun(form: str, continued: Optional[str]) -> bool:
    """Whether a message that is continued ends within reasoning of which it has some."""
    if continued is None or form == HARMONY or not opened(form, "", continued):
        return False
    return bool(continued.rpartition(FORMS[form].open)[2].strip(_SPACE))


def behind(grammar: Grammar, found: Asked, special: Any) -> Optional[Grammar]:
    """A grammar of the answer behind reasoning that the prompt has opened, which may be anything.
    None: a grammar of the user's own, whose rules may have any names, is one of the whole text."""
    if grammar.parameter.endswith("grammar"):
        return None
    if found.form is FORMS[HARMONY]:
        return grammar._replace(kind="lark", text="\n".join(_messages(grammar, special)))
    close, number = found.form.close, special(found.form.close)
    # `lazy` ends at the first mark; a special token is none of the text before it
    thoughts = f"thoughts[lazy]: /(?s:.*){_in_slashes(re.escape(close))}/" if number is None else f"thoughts: /(?s:.*)/ <[{number}]>"
    return grammar._replace(kind="lark", text="\n".join(["start: thoughts gap answer", thoughts, "gap: /[ \\t\\r\\n]{0,8}/", _rule("answer", grammar)]))


def _rule(name: str, grammar: Grammar) -> str:
    """A grammar as a rule of this name, with its own rules behind it."""
    if grammar.kind == "json":
        return f"{name}: %json {grammar.text}"
    if grammar.kind == "regex":
        return f"{name}: /{_in_slashes(grammar.text)}/"
    return grammar.text.replace("start:", f"{name}:", 1)  # of ours, which begin so


def mark(text: str, special: Any) -> str:
    """A mark in a grammar: the text, or the special token that it is."""
    number = special(text)
    return json.dumps(text) if number is None else f"<[{number}]>"


def final(name: str, special: Any) -> str:
    """The message that has the answer, which is the rule `name`. As OpenAI's guide has it, the
    header may say that it is JSON."""
    channel, message, constrain = (mark(one, special) for one in (*FORMS[HARMONY][1:], CONSTRAIN))
    return f'{channel} "final" (" " {constrain} "json")? {message} {name}'


def _messages(grammar: Grammar, special: Any) -> List[str]:
    """A text that goes on in the header of a message: any messages of reasoning, then the answer.
    The grammar of tools says itself in which message it is."""
    channel, message, start = (mark(one, special) for one in (*FORMS[HARMONY][1:], START))
    number = special(END)
    said = f"said[lazy]: /(?s:.*){_in_slashes(re.escape(END))}/" if number is None else f"said: /(?s:.*)/ <[{number}]>"
    before = f'before: {channel} ("analysis" | "commentary") {message} said {start} "assistant"'
    if grammar.parameter == "tools":
        return ["start: before* answer", before, said, _rule("answer", grammar)]
    return [f"start: before* {final('answer', special)}", before, said, _rule("answer", grammar)]


def _in_slashes(expression: str) -> str:
    return re.sub(r"\\.|/|\n", lambda one: {"/": "\\/", "\n": "\\n"}.get(one[0], one[0]), expression, flags=re.DOTALL)
