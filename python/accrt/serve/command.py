"""accrt-serve: one command from a model to a server."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .._arguments import Parser
from . import engine as engine_module
from . import loading as load_module
from . import options as given_options
from . import server as server_module
from .adapters import Adapters
from .fitting import Wanted

_DRAIN_SECONDS = 30.0
# of a part that takes long: until a line says so, and until the next one
_SILENT_SECONDS, _AGAIN_SECONDS = 1.0, 10.0


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,20}", text) or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on, in digits alone")
    return int(text)


def _bytes(text: str) -> int:
    """A number of bytes, which may end with a unit."""
    found = re.fullmatch(r"([0-9]{1,20})(?:([KMGT])(?:iB)?)?", text)
    number = int(found[1]) << 10 * " KMGT".index(found[2] or " ") if found is not None else 1 << 64
    if number >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 4294967296, 4096M or 4G (1 G is 1024 M)")
    return number


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def _adapter(text: str) -> Tuple[str, str]:
    name, _equals, folder = text.partition("=")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=FOLDER")
    return name, folder


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the model's name is empty")
    return text


#: How an option is read, by the type of its default.
_READ: Dict[type, Any] = {int: _count, float: _seconds, str: str}


def _unit(name: str, kind: type) -> str:
    """What the help shows for an option's value."""
    units = {"_bytes": "BYTES", "_ns": "NANOSECONDS", "_timeout": "SECONDS", "retry_after": "SECONDS"}
    for end, unit in units.items():
        if name.endswith(end):
            return unit
    return {int: "N", float: "SECONDS"}.get(kind, "TEXT")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="accrt-serve", description="Serves a model over HTTP, with OpenAI's interface.",
                    epilog="BYTES may have a unit: 4G is 4096M. docs/server.md describes answers, limits and metrics.")  # fmt: skip
    parser.add_argument("model", help="a folder with config.json, a .gguf file, or a bundle (.accx)")
    for title, options in (("server", server_module.OPTIONS), ("engine", engine_module.OPTIONS), ("model", load_module.OPTIONS)):
        group = parser.add_argument_group(title)
        for name, (default, words) in options.items():
            if isinstance(default, bool):
                group.add_argument("--" + name.replace("_", "-"), action="store_true", help=words.replace("%", "%%"))
                continue
            kind = type(default) if default is not None else str
            shown = f" (default: {default}{', also for 0' if name in server_module.ZEROS else ''})" if default not in (None, 0) else ""
            read = _port if name == "port" else _bytes if name.endswith("_bytes") else _READ[kind]
            group.add_argument("--" + name.replace("_", "-"), type=read, default=default, help=words.replace("%", "%%") + shown, metavar=_unit(name, kind))
    parser.add_argument("--adapter", action="append", default=[], type=_adapter, metavar="NAME=FOLDER", help="a PEFT folder that is loaded at the start; may be given several times")
    parser.add_argument("--name", type=_name, help="the model's name in answers; default: that of its folder or file")
    parser.add_argument("--drain-timeout", type=_seconds, default=_DRAIN_SECONDS, metavar="SECONDS", help="time for unfinished answers after SIGTERM (default: 30)")
    parser.add_argument("--quiet", action="store_true", help="write no line for each request")
    return parser


def _chosen(arguments: argparse.Namespace, options: Dict[str, Any]) -> Dict[str, Any]:
    return {name: getattr(arguments, name) for name in options}


class _Progress:
    """Lines on stderr: what was done, and how long it took; of what takes more than a second also
    what it is, and every ten seconds that it goes on."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._now: Tuple[str, float] = ("", 0.0)  # what goes on, and since when
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def begins(self, what: str) -> None:
        self._now = (what, time.monotonic())

    def goes_on(self, what: str) -> None:
        """The same part is farther."""
        self._now = (what, self._now[1])

    def __call__(self, what: str, seconds: float) -> None:
        self._now = ("", 0.0)
        _say(f"  {what} ({seconds:.2f} s)")

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        known, following = 0.0, _SILENT_SECONDS
        while not self._ended.wait(0.1):
            what, since = self._now
            if since != known:
                known, following = since, _SILENT_SECONDS
            passed = time.monotonic() - since
            if what and passed >= following:
                _say(f"  {what} ({passed:.0f} s so far)")
                following = _AGAIN_SECONDS * (passed // _AGAIN_SECONDS + 1)


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # the terminal is closed: serving goes on, or ends, without it
        pass


class _Interrupted(BaseException):
    """A signal, while the model was being loaded."""


class _Signals:
    """What SIGINT, SIGTERM and SIGHUP do: the first one ends what goes on in order; the third one
    the process, at once."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.number = signal.SIGTERM
        self.loading, self.failed = True, False
        self._count = 0
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if number != signal.SIGHUP or before != signal.SIG_IGN:  # nohup
                self._before[number] = before
                signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def fail(self) -> None:
        """Not a signal: the engine has failed for good, so the server ends. What started it may
        start it again."""
        self.failed = True
        self.came.set()

    def _take(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count >= (3 if self.loading else 2):
            # what is being loaded is cleaned up meanwhile
            os._exit(128 + number)
        if self._count == 1:
            self.number = signal.Signals(number)
            self.came.set()
            if self.loading:
                raise _Interrupted


def _words(error: BaseException) -> str:
    """An error in one line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name in ("numpy", "xxhash"):
        return f"a model's first start needs the package `{error.name}`: pip install 'accrt[serve]'"
    return str(error) or type(error).__name__


def _open(arguments: argparse.Namespace, progress: _Progress, failed: Callable[[], None]) -> server_module.Server:
    """What takes no time is looked at first."""
    options = server_module.checked_options(given_options.checked(_chosen(arguments, server_module.OPTIONS), server_module.OPTIONS))
    engine_options = given_options.checked(_chosen(arguments, engine_module.OPTIONS), engine_module.OPTIONS)
    options["api_key"] = server_module.checked_key(options["api_key"] if options["api_key"] is not None else os.environ.get("ACCRT_API_KEY"))
    server_module.check_address(arguments.host, arguments.port)
    server_module.checked_name(arguments.name or load_module.name_of(arguments.model), [name for name, _folder in arguments.adapter])
    if not arguments.model.endswith(".accx"):  # which has its own places
        arguments.adapters = max(arguments.adapters, len(arguments.adapter))
    wanted = Wanted(engine_options, arguments.adapter)
    loaded = load_module.load(arguments.model, progress=progress, wanted=wanted, **_chosen(arguments, load_module.OPTIONS))
    engine = engine_module.Engine(loaded.model, **engine_options)
    adapters = Adapters(engine, loaded.layout)
    for name, folder in arguments.adapter:
        start = time.monotonic()
        adapters.load(name, folder)
        progress(f"loaded the adapter {name}", time.monotonic() - start)
    log_fd = -1 if arguments.quiet else 2
    return server_module.Server(engine, loaded.text, name=arguments.name or loaded.name, adapters=adapters, log_fd=log_fd, failed=failed, **options)


def main(argv: Optional[List[str]] = None) -> int:
    """Serves until a signal ends it. Returns the exit status: 0, 1 (something is wrong, answers
    were cut off, or the engine failed for good), 128 + the signal that ended it while it was
    loading."""
    arguments = _parser().parse_args(argv)
    progress = _Progress()
    with _Signals() as signals:
        _say(f"Loading {arguments.model}")
        try:
            server = _open(arguments, progress, signals.fail)
            signals.loading = False
        except _Interrupted:
            _say(f"accrt-serve: ended by {signals.number.name} while it was loading")
            return 128 + signals.number
        except (OSError, RuntimeError, TypeError, ValueError, OverflowError, ImportError) as error:
            _say(f"accrt-serve: {_words(error)}")
            return 1
        finally:
            progress.end()
        seconds = time.monotonic() - progress.start
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        _say(f"Serving {server.name} at http://{host}:{server.port} after {seconds:.2f} s")
        return _until_ended(server, signals, arguments.drain_timeout)


def _until_ended(server: server_module.Server, signals: _Signals, seconds: float) -> int:
    """The first signal: answers under way end; the second one: at once."""
    while not signals.came.wait(3600):
        pass
    _say("accrt-serve: the engine has failed for good" if signals.failed else "Ending: answers under way are finished")
    whole = server.drain(seconds)
    server.close()
    server.engine.close()
    if not whole:
        _say(f"accrt-serve: answers were cut off after {seconds:g} s")
    return 0 if whole and not signals.failed else 1
