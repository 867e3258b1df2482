"""Chat templates: Jinja in a sandbox, in a process of its own, whose memory has an end. A template
comes with a model, and is not trusted."""
from __future__ import annotations

import datetime
import functools
import json
from typing import Any, Dict

# Before the limits of a template's time and memory begin: on a busy machine it takes seconds.
import jinja2
import jinja2.ext
import jinja2.sandbox

_WORDS = 4000  # characters of a message


class _Said(Exception):
    """raise_exception in a template."""


def _refuse(message: str) -> None:
    raise _Said(message)


@functools.lru_cache(maxsize=1)  # a process has one template
def _compiled(source: str) -> Any:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])  # fmt: skip
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


def _rendered(source: str, names: Dict[str, Any]) -> Dict[str, str]:
    try:
        return {"text": _compiled(source).render(**names)}
    except _Said as error:
        return {"says": str(error)}
    except MemoryError:
        return {"memory": ""}
    except jinja2.TemplateError as error:
        return {"refuses": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it does is its own
        return {"fails": str(error)}


def _read(source: str) -> Dict[str, str]:
    try:
        _compiled(source)
    except jinja2.TemplateError as error:
        return {"unreadable": str(error)}
    except (MemoryError, RecursionError, SyntaxError) as error:  # by Python's limits of depth
        return {"unreadable": f"it is nested too deeply or too large ({type(error).__name__})"}
    except Exception as error:  # noqa: BLE001 - constants are calculated
        return {"unreadable": str(error)}
    return {"text": ""}


def answer(question: bytes) -> bytes:
    """Of {"source", "names"}; without names, the template is read alone."""
    asked = json.loads(question)
    found = _read(asked["source"]) if asked["names"] is None else _rendered(asked["source"], asked["names"])
    return json.dumps({kind: said if kind == "text" else said[:_WORDS] for kind, said in found.items()}).encode()
