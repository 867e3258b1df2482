"""The server: libaccrt_http in front of an engine, and the threads that make requests of bodies."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import threading
import traceback
from typing import Any, Callable, Dict, Hashable, Iterable, List, Optional, Tuple

from .. import _ffi
from .._files import read_small
from .._library import Handle, check, created, lib, need, struct
from .._limited import NotStarted
from .._waits import apart
from ..errors import AlreadyExistsError, Error, NotFoundError, NotReadyError
from . import options as given_options
from . import requests, responses
from .adapters import Adapters
from .engine import Engine, now_ns
from .grammar import NotCompiled
from .parameters import BadParameter, constrain, Grammar, Limits, json_words, shown
from .text import Text, TokenizerError, limited
from .turns import contained, Turns

#: How a server is set up: names, defaults and helps are those of accrt-serve. Times are in seconds.
OPTIONS: Dict[str, Tuple[Any, str]] = {
    "host": ("127.0.0.1", "the name or address on which the server listens"),
    "port": (8000, "the port on which the server listens; 0: any free one"),
    "api_key": (None, "the key that requests to /v1/..., /tokenize and /detokenize need; also from $ACCRT_API_KEY"),
    "cors_origin": (None, "the origin whose pages may call from a browser, or '*'"),
    "max_connections": (1024, "most connections; others get 503"),
    "max_jobs": (256, "most requests that wait for a worker, and most that wait for a new grammar; others get 429"),
    "retry_after": (1, "fewest seconds in Retry-After; more if the queue is longer"),
    "max_header_bytes": (65536, "most bytes of a request's path and headers; longer ones get 431"),
    "max_body_bytes": (16 << 20, "most bytes of a request's body; longer ones get 413"),
    "max_held_bytes": (256 << 20, "most bytes of the bodies of all requests; others get 503. As many of all answers that are not sent yet; beyond it the largest ends"),
    "max_output_bytes": (1 << 20, "most bytes that a stream's client may leave unread; then its connection is closed"),
    "request_timeout": (30.0, "longest time from a request's first byte to its last; then 408"),
    "idle_timeout": (75.0, "a connection without a request is closed after this time"),
    "stall_timeout": (30.0, "a client that reads nothing is closed after this time"),
    "health_timeout": (30.0, "if work waits and no step ends for this time, /health fails"),
    "workers": (0, "threads that turn text into tokens; 0: as many as suit the processors"),
    "adapter_loading": (False, "clients may load LoRA adapters from folders of this machine, and unload them"),
}
_TIMES = ("request_timeout", "idle_timeout", "stall_timeout", "health_timeout")
_NUMBERS = ("port", "max_connections", "max_jobs", "max_header_bytes", "max_body_bytes", "max_held_bytes", "max_output_bytes")

#: Of these, 0 is the default.
ZEROS = (*_TIMES, *_NUMBERS[1:], "retry_after")
_MOST_WORKERS = 1024
_MAX_JOBS = 256
#: An answer reaches its client a little before the engine has done with its request.
_LEAST_UNLOAD_SECONDS = 0.25

#: HTTP's status for what the engine says to a request.
_STATUS = {
    _ffi.ACCRT_ERROR_NOT_READY: (429, "overloaded"),
    _ffi.ACCRT_ERROR_NOT_FOUND: (404, "model_not_found"),
    _ffi.ACCRT_ERROR_OUT_OF_RANGE: (400, "invalid_value"),
    _ffi.ACCRT_ERROR_INVALID_ARGUMENT: (400, "invalid_value"),
    _ffi.ACCRT_ERROR_UNSUPPORTED: (400, "unsupported"),
    _ffi.ACCRT_ERROR_TIMEOUT: (504, "deadline"),
    _ffi.ACCRT_ERROR_INVALID_STATE: (503, "draining"),
    _ffi.ACCRT_ERROR_OUT_OF_MEMORY: (503, "overloaded"),
    _ffi.ACCRT_ERROR_POISONED: (503, "engine_failed"),
    _ffi.ACCRT_ERROR_BUDGET: (400, "answer_too_large"),
}


def check_address(host: str, port: int) -> None:
    """Raises what a server at this address would, before anything else is done for it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OSError(f"host {host!r}: {getattr(error, 'strerror', None) or error}") from None
    failure: Optional[OSError] = None
    for family, kind, protocol, _name, address in found:
        try:
            with socket.socket(family, kind, protocol) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(address)
            return
        except OSError as error:
            failure = error
    reason = os.strerror(failure.errno) if failure and failure.errno else "no address"
    raise OSError(f"cannot listen at {host} port {port}: {reason}")


def checked_key(given: Optional[str]) -> Optional[str]:
    """Raises ValueError for a key that no client could send. An empty one would leave open what was
    meant to be locked."""
    if given is not None and (not given or any(not " " < one <= "~" for one in given)):
        reason = "is empty: without a key, leave out --api-key and unset ACCRT_API_KEY" if not given else "has characters that no header may have (spaces, line ends, letters beyond ASCII)"
        raise ValueError(f"the API key {reason}")
    return given


def checked_name(name: str, adapters: Iterable[str]) -> str:
    """The model's name, which is no adapter's: requests could not say which they mean."""
    if name in adapters:
        raise ValueError(f"an adapter is called {name!r}, which is the model's own name")
    return name


def checked_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """Raises ValueError for what a server would refuse, before anything is loaded for it."""
    origin = options["cors_origin"]
    if origin is not None and not re.fullmatch(r"[!-~]+", origin):
        raise ValueError(f"cors_origin is {origin!r}, expected one origin, as https://example.org, or '*'")
    if options["workers"] > _MOST_WORKERS:
        raise ValueError(f"workers is {options['workers']}, expected at most {_MOST_WORKERS}")
    return options


class Server(Handle):
    """Serves an engine over HTTP, as OpenAI's interface has it, until it is closed.

        with Server(engine, text, name="my-model", port=0) as server:
            print(server.url)

    `text` makes tokens of texts; `adapters` are those of the engine, which are models by their
    names. `failed` is called, by any thread, when the engine has failed for good. Options are those
    of accrt-serve, by the same names. `close` cuts off what is under way; `drain` lets it end.
    """

    __slots__ = ("engine", "adapters", "_text", "_name", "_limits", "_loading", "_threads", "_failed", "_kept", "_turns")
    _kind = "accrt_http_server"

    def __init__(self, engine: Engine, text: Text, *, name: str, adapters: Optional[Adapters] = None, log_fd: int = -1, page: Optional[bytes] = None,
                 failed: Callable[[], None] = lambda: None, **options: Any) -> None:  # fmt: skip
        handle = need(engine, Engine)
        given_options.known(options, [OPTIONS], "a server")
        chosen = checked_options(given_options.checked(options, OPTIONS))
        checked_key(chosen["api_key"])
        given = struct(_ffi.accrt_http_options, log_fd=log_fd, model=name.encode(), retry_after_s=int(chosen["retry_after"]))
        given.max_model_tokens = engine.model.info["max_length"]
        for key in _NUMBERS:
            setattr(given, key, int(chosen[key]))
        for key in _TIMES:
            setattr(given, key + "_ns", int(chosen[key] * 1e9))
        for key in ("host", "api_key", "cors_origin"):
            setattr(given, key, chosen[key].encode() if chosen[key] else None)
        content = _page() if page is None else page
        given.page, given.page_bytes = content, len(content)
        self.engine, self._name = engine, name
        self.adapters = Adapters(engine, None) if adapters is None else adapters
        checked_name(name, self.adapters.names())
        self._limits = Limits.of(engine.model.info)
        self._text = limited(text, self._limits.longest)
        self._loading, self._failed = chosen["adapter_loading"], failed
        super().__init__(created(lib.accrt_http_server_create, handle, ctypes.byref(given)))
        count = chosen["workers"] or max(2, min(4, os.cpu_count() or 1))
        self._turns = Turns(max(1, count - 1), given.max_jobs or _MAX_JOBS)
        self._threads = [threading.Thread(target=self._work, name=f"accrt-serve-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self._name

    @property
    def names(self) -> List[str]:
        """What `model` may be: the model, and its adapters."""
        return [self._name, *self.adapters.names()]

    @property
    def port(self) -> int:
        """Where it listens."""
        return lib.accrt_http_server_port(self.handle)

    def counts(self) -> Dict[str, int]:
        """What it holds: connections, queued, jobs, draining, held_bytes."""
        found = _ffi.accrt_http_counts()
        check(lib.accrt_http_server_counts(self.handle, ctypes.byref(found)))
        return {name: getattr(found, name) for name, _ in found._fields_}

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and lets those under way end. False: some were cut off. The server
        serves no more then."""
        handle = self.handle

        def complete() -> bool:
            status = lib.accrt_http_server_drain(handle, int(seconds * 1e9))
            if status != _ffi.ACCRT_ERROR_TIMEOUT:
                check(status)
            return status != _ffi.ACCRT_ERROR_TIMEOUT

        done = apart(complete)
        for thread in self._threads:
            thread.join()
        self._turns.close()  # the clients of those that still wait have left
        return done

    def close(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.drain(0)
        super().close()

    # ---- workers ----

    def _work(self) -> None:
        server = self.handle
        while True:
            job = _ffi.accrt_http_job_p()  # another thread may keep it
            status = lib.accrt_http_next(server, 1 << 62, ctypes.byref(job))
            if status == _ffi.ACCRT_ERROR_TIMEOUT:
                continue
            if status != 0:
                return
            contained(self._serve, job)

    def _serve(self, job: Any, work: Optional[Callable[[Any], None]] = None) -> None:
        """Every job is answered, whatever goes wrong."""
        try:
            with json_words():
                (work or self._answer)(job)
        except BadParameter as error:
            code = error.code
            fail(job, 404 if code == "model_not_found" else 400, str(error), error.parameter, code)
        except NotStarted as error:
            fail(job, 503, str(error), None, "overloaded")
        except TokenizerError as error:
            fail(job, 500, str(error), None, "tokenizer_failed")
        except UnicodeError as error:
            fail(job, 400, f"a text cannot be encoded: {error}", None, "invalid_value")
        except Error as error:
            status, code = _STATUS.get(error.status, (500, "engine_failed"))
            fail(job, status, error.message, None, code)
            if error.status == _ffi.ACCRT_ERROR_POISONED:
                self._failed()
        except MemoryError:
            fail(job, 503, "the server has no memory for this request", None, "overloaded")
        except BaseException:  # noqa: BLE001 - a fault of ours ends one request, and so does a panic of a tokenizer, which is no Exception
            fail(job, 500, "the server failed at this request", None, "internal")
            traceback.print_exc()

    def _wait(self, job: Any, work: requests.Work, grammar: Optional[Grammar], key: Hashable) -> None:
        """Has it begun by another thread, when its grammar's turn has come."""

        def answer(now: bool) -> None:
            self._serve(job, lambda job: compiled(job, now))

        def compiled(job: Any, now: bool) -> None:
            if info_of(job).left:  # nothing is compiled for it
                return fail(job, 499, "the client has left", None, None)
            try:
                self._begin(job, work, grammar, now)
            except NotCompiled:  # also by the one whose turn this was
                refuse()

        def refuse() -> None:
            fail(job, 503, "the grammars of other requests take long to compile: try again later", None, "overloaded")

        if not self._turns.wait(key, answer, refuse):
            fail(job, 429, "as many requests wait for new grammars as may", None, "overloaded")

    def _begin(self, job: Any, work: requests.Work, grammar: Optional[Grammar], now: bool) -> None:
        """Not `now`: a grammar that is not compiled yet is NotCompiled."""
        constraint = self.engine.constraint(grammar, now)
        for request in work.requests:
            constrain(request, constraint)
        start(job, work)

    def _answer(self, job: Any) -> None:
        info, begin = info_of(job), now_ns()
        # at most one, which is compiled when all else is known
        grammars: List[Optional[Grammar]] = []
        given = requests.parse(ctypes.string_at(info.body, info.body_bytes) if info.body_bytes else b"")
        if info.kind == _ffi.ACCRT_HTTP_CHAT:
            work = requests.chat(given, self._text, self.names, begin, grammars.append)
            names = "messages", "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
        elif info.kind == _ffi.ACCRT_HTTP_RESPONSE:
            work = responses.response(given, self._text, self.names, begin, grammars.append)
            names = "input", "max_output_tokens"
        elif info.kind == _ffi.ACCRT_HTTP_COMPLETION:
            work = requests.completion(given, self._text, self.names, begin, grammars.append)
            names = "prompt", "max_tokens"
        elif info.kind == _ffi.ACCRT_HTTP_TOKENIZE:
            return answer(job, {**requests.tokenize(given, self._text, self.names), "max_model_len": self.engine.model.info["max_length"]})
        elif info.kind == _ffi.ACCRT_HTTP_DETOKENIZE:
            return answer(job, requests.detokenize(given, self._text, self.names, self._limits))
        elif info.kind in (_ffi.ACCRT_HTTP_LOAD_ADAPTER, _ffi.ACCRT_HTTP_UNLOAD_ADAPTER):
            return self._answer_adapter(job, given, info.kind == _ffi.ACCRT_HTTP_LOAD_ADAPTER)
        else:
            work = requests.embed(given, self._text, self.names, begin, self.engine.model.info["embedding_size"], self.engine.max_queued)
            names = "input", ""
        self._check(work, *names)
        grammar = grammars[0] if grammars else None
        try:
            self._begin(job, work, grammar, now=False)
        except NotCompiled as error:
            key = error.key
        else:
            return
        self._wait(job, work, grammar, key)

    def _check(self, work: requests.Work, prompt: str, max_tokens: str) -> None:
        """What the engine would refuse, with the names that the client knows."""
        several = len(work.requests) > 1
        if len(work.requests) > self.engine.max_queued:
            raise BadParameter(prompt, f"{prompt} has {len(work.requests)} prompts, and the queue takes {self.engine.max_queued} (--max-queued)")
        for i, request in enumerate(work.requests):
            request.check(self._limits, f"{prompt}[{i}]" if several else prompt, max_tokens)
            if request.adapter is not None and request.adapter not in self.adapters.names():
                raise BadParameter("adapter", f"no adapter {shown(request.adapter)} is loaded", "model_not_found")

    def _answer_adapter(self, job: Any, given: Dict[str, Any], loads: bool) -> None:
        """As vLLM answers."""
        if not self._loading:
            return fail(job, 404, "adapters are not loaded here: the server was started without --adapter-loading", None, "unknown_path")
        if loads:
            name, path = requests.adapter_to_load(given)
            if name == self._name:
                raise BadParameter("lora_name", f"lora_name is {shown(name)}, which is the model's own name")
            try:
                tensors = self.adapters.read(path)
            except (OSError, ValueError, Error) as error:
                raise BadParameter("lora_path", str(error), "invalid_adapter") from None
            try:
                self.adapters.put(name, path, tensors)
            except (AlreadyExistsError, NotReadyError) as error:
                return fail(job, 409, error.message, "lora_name", "adapter_exists" if isinstance(error, AlreadyExistsError) else "no_place")
        else:
            name, seconds = requests.adapter_to_unload(given)
            try:
                self.adapters.unload(name, max(seconds, _LEAST_UNLOAD_SECONDS))
            except NotReadyError as error:
                return fail(job, 409, error.message, "lora_name", "adapter_in_use")
            except NotFoundError as error:
                return fail(job, 404, error.message, "lora_name", "model_not_found")
        text = f"Success: LoRA adapter '{name}' {'added' if loads else 'removed'} successfully.".encode()
        check(lib.accrt_http_answer(job, 200, b"text/plain; charset=utf-8", text, len(text)))


def info_of(job: Any) -> Any:
    info = _ffi.accrt_http_job_info()
    check(lib.accrt_http_job_info(job, ctypes.byref(info)))
    return info


def start(job: Any, work: requests.Work) -> None:
    """Gives the requests to the engine, which answers the job."""
    pointers = (ctypes.POINTER(_ffi.accrt_serve_request) * len(work.requests))(*[ctypes.pointer(one.struct) for one in work.requests])
    form = struct(_ffi.accrt_http_format, flags=work.flags, top_logprobs=work.top_logprobs, tools=work.tools, prompt_top_logprobs=work.prompt_top_logprobs, reasoning=work.reasoning,
                  text_parameters=work.text_parameters, members=work.members, model=work.model.encode() if work.model else None)
    if work.prefixes is not None:
        form.prefixes = (ctypes.c_char_p * len(work.prefixes))(*work.prefixes)
    status = lib.accrt_http_start(job, pointers, len(pointers), ctypes.byref(form))
    if status != _ffi.ACCRT_ERROR_CANCELLED:  # the client has left: that answers it
        check(status)


def answer(job: Any, body: Dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    check(lib.accrt_http_answer(job, 200, b"application/json", data, len(data)))


def fail(job: Any, status: int, message: str, parameter: Optional[str], code: Optional[str]) -> None:
    given = struct(_ffi.accrt_http_failure, status=status, message=_line(message), parameter=parameter and _line(parameter), code=code and code.encode())
    check(lib.accrt_http_fail(job, ctypes.byref(given)))


def _line(text: str) -> bytes:
    return text.replace("\0", "\ufffd").encode(errors="replace")


def _page() -> bytes:
    return read_small(os.path.join(os.path.dirname(__file__), "page.html"), 1 << 20)


__all__: List[str] = ["OPTIONS", "Server"]
