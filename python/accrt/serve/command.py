"""accrt-serve: one command from a model to a server."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from . import engine as engine_module
from . import loading as load_module
from . import server as server_module

_DRAIN_SECONDS = 30.0


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 on")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port: they end at 65535")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


#: How an option is read, by the type of its default.
_READ: Dict[type, Any] = {int: _count, float: _seconds, str: str}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="accrt-serve", description="Serves a model over HTTP, as OpenAI's interface has it.",
                                     epilog="docs/server.md describes answers, limits and metrics.")  # fmt: skip
    parser.add_argument("model", help="a folder with config.json, a .gguf file, or a bundle (.accx)")
    for title, options in (("server", server_module.OPTIONS), ("engine", engine_module.OPTIONS), ("model", load_module.OPTIONS)):
        group = parser.add_argument_group(title)
        for name, (default, words) in options.items():
            kind = type(default) if default is not None else str
            shown = f" (default: {default})" if default not in (None, 0) else ""
            read = _port if name == "port" else _READ[kind]
            group.add_argument("--" + name.replace("_", "-"), type=read, default=default, help=words.replace("%", "%%") + shown, metavar=kind.__name__.upper())
    parser.add_argument("--name", help="the model's name in answers; default: that of its folder or file")
    parser.add_argument("--drain-timeout", type=_seconds, default=_DRAIN_SECONDS, help="seconds for answers under way after SIGTERM (default: 30)")
    parser.add_argument("--quiet", action="store_true", help="no line for each request")
    return parser


def _chosen(arguments: argparse.Namespace, options: Dict[str, Any]) -> Dict[str, Any]:
    return {name: getattr(arguments, name) for name in options}


class _Progress:
    """Lines on stderr: what was done, and how long it took."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, what: str, seconds: float) -> None:
        print(f"  {what} ({seconds:.2f} s)", file=sys.stderr, flush=True)


def main(argv: Optional[List[str]] = None) -> int:
    arguments = _parser().parse_args(argv)
    progress = _Progress()
    print(f"Loading {arguments.model}", file=sys.stderr, flush=True)
    try:
        loaded = load_module.load(arguments.model, progress=progress, **_chosen(arguments, load_module.OPTIONS))
        engine = engine_module.Engine(loaded.model, **_chosen(arguments, engine_module.OPTIONS))
        options = _chosen(arguments, server_module.OPTIONS)
        options["api_key"] = options["api_key"] or os.environ.get("ACCRT_API_KEY") or None
        server = server_module.Server(engine, loaded.text, name=arguments.name or loaded.name, log_fd=-1 if arguments.quiet else 2, **options)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        print(f"accrt-serve: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - progress.start
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"Serving {arguments.name or loaded.name} at http://{host}:{server.port} after {seconds:.2f} s", file=sys.stderr, flush=True)
    return _until_told(server, engine, arguments.drain_timeout)


def _until_told(server: server_module.Server, engine: engine_module.Engine, seconds: float) -> int:
    """SIGTERM or SIGINT: answers under way end; the second one: at once."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: _tell(told))
    signal.signal(signal.SIGINT, lambda number, frame: _tell(told))
    while not told.wait(3600):
        pass
    print("Ending: answers under way are finished", file=sys.stderr, flush=True)
    whole = server.drain(seconds)
    server.close()
    engine.close()
    if not whole:
        print(f"accrt-serve: answers were cut off after {seconds:g} s", file=sys.stderr)
    return 0 if whole else 1


def _tell(told: threading.Event) -> None:
    if told.is_set():
        os._exit(130)
    told.set()
