"""Bundles run by a process that can open no file, reach no network, start nothing and signal no
process.

    m = accrt.load("other.accx", sandbox=True)
    y = m.encode(x)                            # numpy arrays in, numpy arrays out: copies

docs/trust.md says what that protects from and what it does not. Linux alone, with seccomp and
Landlock.
"""
from __future__ import annotations

import ctypes
import math
import operator
import os
import signal
import socket
import stat
import struct
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TYPE_CHECKING, Tuple, Union

from . import _ffi, errors
from ._advice import unless_written
from ._bits import BIT_TYPES, ML_DTYPES, refuse_masked
from ._library import check, describe, filled, int64, lib, never_raises
from ._size_text import dimension
from .budget import above_0
from .bundle import Bundle, Signature
from .tensor import DTYPES

if TYPE_CHECKING:
    import numpy as np

#: Not waiting for the other end of a FIFO.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

# tools/sandbox/wire.h
_HEADER, _ITEM = struct.Struct("=IIQQQ"), struct.Struct("=IIII8qqQQ")
_READY, _CALL, _RESULTS, _ERROR, _LOADED = 1, 2, 3, 4, 5
_ABSENT, _TENSOR, _SCALAR = 0, 1, 2
_FIRST_FD, _ALIGNMENT, _MAX_TEXT = 3, 64, 1024
_RANK = _ffi.ACCRT_MAX_RANK
_HUNG_UP, _SENSELESS, _TOO_LONG = "hung up", "answered without sense", "took too long"
_END_S = 5.0  # for a process that has hung up to end by itself
#: numpy's names of data types; those that it has not are taken and given as their bits.
_NUMPY = {"bool": "?", "i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4", "i64": "i8", "u64": "u8", "f16": "f2",
          "f32": "f4", "f64": "f8", "bf16": "u2", "f8e4m3fn": "u1", "f8e5m2": "u1", "f8e8m0": "u1"}


class _Found(ctypes.Structure):
    """Dl_info"""

    _fields_ = [("name", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def helper() -> str:
    """The path of accrt-sandbox: beside the library, or in the `bin` folder beside its folder.

    Raises:
        UnsupportedError: it is not there.
    """
    found = _Found()
    ctypes.pythonapi.dladdr(ctypes.c_void_p.from_buffer(lib.accrt_version), ctypes.byref(found))
    here = os.path.dirname(os.path.realpath(os.fsdecode(found.name or b"")))
    for place in (here, os.path.join(os.path.dirname(here), "bin")):
        path = os.path.join(place, "accrt-sandbox")
        if os.access(path, os.X_OK):
            return path
    raise errors.UnsupportedError(f"there is no accrt-sandbox beside the library in {here}, nor in the bin folder beside that")


class _Reply(NamedTuple):
    """What the answer to a call must be: worked out here, of the signature and the arguments."""

    items: bytes             # byte for byte
    # of each item: argument, offset, numpy's type, shape
    places: List[Tuple[int, int, str, Tuple[int, ...]]]
    size: int                # of the payload


class _Function(NamedTuple):
    """What the bundle says of a function, read here."""

    index: int
    arguments: List[Any]     # accrt_argument_info, inputs first
    signature: Signature


class SandboxSession:
    """A session in a process of its own. Functions of the bundle are its attributes:
    `session.encode(x)`. Made by `accrt.load(sandbox=...)`.

    Arguments are anything that numpy makes an array of, results are new numpy arrays (bf16 and
    8-bit floats as their bits), a tuple when there are several; inputs that a function updates are
    updated in place. Host device only. Threads take turns. A context manager; when it is closed or
    collected its process ends. It belongs to the process that made it; a forked child of that
    process cannot call it.

    If a call ends before its answer is here (by Ctrl-C, another exception, a limit), the sandbox
    ends too. Later calls raise InvalidStateError with the reason.

    Args:
        source: the bundle's path or an open file descriptor, whose file is opened again for
            reading.
        weights: paths of weights that are not in the bundle.
        symbols: values of session symbols. variant: kernel variants to consider. threads: of the
            host device; None: the default.
        memory_mib: limit of the process's address space, 64 to 2^30. cpu_s: limit of its processor
            time over all calls, 1 to 2^30. Whole numbers; None: no limit.
        timeout: seconds that loading, and then each call, may take, whatever the code does
            meanwhile; None: no limit.
        weak: run it where the kernel has no Landlock, too: seccomp alone.
        trust: "all" (default): any code runs, in the sandbox. "signed", "no-host-code": the policy
            is checked first, as without a sandbox.
    Raises:
        UnsupportedError: this machine has no sandbox; the message says what is missing.
        UntrustedError: `trust` does not allow the bundle's code.
        PermissionDeniedError: the code asked for something that the sandbox does not allow; it was
            ended. Calls raise this, too.
        TimeoutError: a limit of time is reached. OutOfMemoryError: a call's results are larger than
            memory_mib.
        ValueError: a limit that would limit nothing.
    """

    def __init__(self, source, weights: Sequence[Union[str, "os.PathLike[str]"]] = (), symbols: Optional[Mapping[str, int]] = None,
                 variant: str = "", threads: Optional[int] = None, memory_mib: Optional[int] = None, cpu_s: Optional[int] = None,
                 weak: bool = False, trust: Optional[str] = None, timeout: Optional[float] = None) -> None:
        from .weights import refuse_unused
        self._lock = threading.Lock()
        self._process: Optional[_Process] = None
        self._socket: Optional[socket.socket] = None
        self._report: Any = None
        self._functions: Dict[str, _Function] = {}
        self._why = ""
        self._waiting = False  # an answer may still come
        self._end: Optional[float] = None
        self._owner = os.getpid()
        memory, cpu = _limit("memory_mib", memory_mib, 64), _limit("cpu_s", cpu_s, 1)
        self._memory, self._cpu = memory << 20, cpu
        self._timeout = above_0(timeout)
        given = {name: int64(value, name) for name, value in (symbols or {}).items()}
        files: List[int] = []
        try:
            files.append(_again(source) if isinstance(source, int) else _opened(source, "source"))
            self.bundle = _named(source, lambda: _checked(files[0], trust))
            self._symbols = {i: given.get(symbol.name, symbol.maximum // symbol.divisor * symbol.divisor)
                             for i, symbol in enumerate(self.bundle.symbols) if symbol.symbol_class == "session"}
            for path in [weights] if isinstance(weights, (str, os.PathLike)) else weights or ():
                files.append(_opened(path, "weights"))
            if len(files) > 1:
                refuse_unused(self.bundle)
            self._start(files, [
                "weak" if weak else "strict", "" if threads is None else str(operator.index(threads)), str(self._memory), str(cpu),
                str(len(files) - 1), variant, *(f"{name}={value}" for name, value in given.items())])
            self._begin()
            #: What confines the process, e.g. "seccomp, Landlock 7". Said before anything of the
            #: bundle could run.
            self.confinement = _confinement(self._receive(_READY, 0))
            self._receive(_LOADED, 0)
        except BaseException:
            self.close()
            raise
        finally:
            for file in files:
                os.close(file)
        self._waiting = False

    # ---- the process

    def _start(self, files: List[int], arguments: List[str]) -> None:
        _sessions.add(self)
        self._socket, its = socket.socketpair()
        report, its_report = os.pipe()
        self._report = os.fdopen(report, "rb", buffering=0)
        try:
            self._process = _spawn(helper(), arguments, [its.fileno(), its_report, *files])
        finally:
            its.close()
            os.close(its_report)

    def close(self) -> None:
        """Ends the process. Closing twice is fine. In a forked child it releases only the child's
        copy."""
        process, self._process = getattr(self, "_process", None), None
        for end in (getattr(self, "_socket", None), getattr(self, "_report", None)):
            if end is not None:
                end.close()
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()

    def __enter__(self) -> "SandboxSession":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: BLE001 - the interpreter may be ending
            pass

    def _ended(self, why: str) -> None:
        """The process is ended here: why."""
        self._why = self._why or why
        self.close()

    def _broken(self, what: str) -> errors.Error:
        """The process is of no use any more: why. It has hung up, or is ended at once.

        Code that has hung up may live on, for as long as the limit lets it. Its end may be seen
        late: a limit that is over by then is why.
        """
        process = self._process
        if process is None:
            return errors.InvalidStateError(self._why or "the sandbox is closed")
        if what != _HUNG_UP:
            process.kill()
        self._socket.close()
        try:
            code = process.wait(timeout=_END_S if self._end is None else min(_END_S, max(0.0, self._end - time.monotonic())))
        except TimeoutError:
            process.kill()
            process.wait()
            code = 0  # the signal is of here
        if what == _HUNG_UP and self._end is not None and time.monotonic() >= self._end:
            what = _TOO_LONG
        os.set_blocking(self._report.fileno(), False)
        said = _clean((self._report.read(200) or b"").decode("ascii", "replace"))
        error = self._reason(what, said, code, bool(self._cpu) and process.cpu_s >= self._cpu)
        self._ended(str(error))
        return error

    def _reason(self, what: str, said: str, code: int, used_up: bool) -> errors.Error:
        if said or code == -signal.SIGSYS:
            why = f"the bundle's code asked for {said or 'a system call'}, which its sandbox does not allow: it was ended"
            return errors.PermissionDeniedError(why, name="ACCRT_ERROR_PERMISSION_DENIED")
        if what == _TOO_LONG:
            return errors.TimeoutError(f"the sandbox's limit of {self._timeout} s is reached: it was ended", name="ACCRT_ERROR_TIMEOUT")
        if code == -signal.SIGXCPU or what == _HUNG_UP and used_up:
            # the code may take that signal for anything
            return errors.TimeoutError("the sandbox's limit of processor time is reached: it was ended", name="ACCRT_ERROR_TIMEOUT")
        if what == _HUNG_UP and code:
            what = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return errors.KernelError(f"the sandbox's process {what}", name="ACCRT_ERROR_KERNEL")

    # ---- messages

    def _begin(self) -> None:
        """From here on an answer may come, until `_waiting` is false again; the time runs."""
        self._waiting = True
        self._end = None if self._timeout is None else time.monotonic() + self._timeout

    def _limit_wait(self) -> None:
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise self._broken(_TOO_LONG)
            self._socket.settimeout(left)

    def _send(self, part) -> None:
        if not len(part):
            # all of the call may be with the process, which may have ended: nothing is there to
            # send
            return
        self._limit_wait()
        try:
            self._socket.sendall(part)
        except socket.timeout:
            raise self._broken(_TOO_LONG) from None
        except OSError:
            raise self._broken(_HUNG_UP) from None

    def _read(self, view: memoryview) -> None:
        while view:
            self._limit_wait()
            try:
                got = self._socket.recv_into(view)
            except socket.timeout:
                raise self._broken(_TOO_LONG) from None
            except OSError:
                got = 0
            if got == 0:
                raise self._broken(_HUNG_UP)
            view = view[got:]

    def _bytes(self, size: int) -> bytearray:
        data = bytearray(size)
        self._read(memoryview(data))
        return data

    def _receive(self, wanted: int, call: int, items: int = 0, size: int = 0) -> int:
        """The header of a message of this kind, of this call, with this many items and bytes: its
        number. Nothing else is believed."""
        kind, its_items, number, its_call, its_size = _HEADER.unpack(self._bytes(_HEADER.size))
        if kind == _ERROR and its_call == call and its_size <= _MAX_TEXT:
            text = _clean(self._bytes(its_size).decode("utf-8", "replace"))
            self._waiting = False
            raise errors._CLASSES.get(number & 0xFFFFFFFF, errors.Error)(text, name=_status_name(number))
        if (kind, its_items, its_call, its_size) != (wanted, items, call, size):
            raise self._broken(_SENSELESS)
        return number

    # ---- functions

    def functions(self) -> List[str]:
        """Names of the functions that can be called."""
        return self.bundle.function_names()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name == "bundle":
            raise AttributeError(name)
        try:
            return self[name]
        except errors.NotFoundError as error:
            raise AttributeError(str(error)) from None

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The bundle's function of any name: `session["close"]` is not `session.close`. Raises
        NotFoundError with near names."""
        signature = self.bundle.signature(name)

        def function(*inputs, **named):
            return self._call(signature, inputs, named)
        function.__name__, function.__doc__, function.signature = name, signature.doc, signature  # type: ignore[attr-defined]
        return function

    def __contains__(self, name: object) -> bool:
        return name in self.bundle.function_names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.bundle.function_names())

    def _given(self, signature: Signature, inputs: Sequence, named: Mapping[str, Any]) -> List[Any]:
        names = [argument.name for argument in signature.inputs]
        if len(inputs) > len(names):
            raise TypeError(f"{signature.name}() takes {len(names)} input{'s'[:len(names) != 1]}, {len(inputs)} {'was' if len(inputs) == 1 else 'were'} given; it is {signature}")
        given: List[Any] = [*inputs, *[None] * (len(names) - len(inputs))]
        for name, value in named.items():
            if name not in names or names.index(name) < len(inputs):
                raise TypeError(f"{signature.name}() got {name!r} " + ("twice" if name in names else f"; it is {signature}"))
            given[names.index(name)] = value
        missing = [a.name for a, value in zip(signature.inputs, given) if value is None and not a.optional]
        if missing:
            raise TypeError(f"{signature.name}() misses {', '.join(missing)}; it is {signature}")
        return given

    def _function(self, signature: Signature) -> _Function:
        found = self._functions.get(signature.name)
        if found is None:
            index = _function_index(self.bundle, signature.name)
            arguments = [filled(_ffi.accrt_argument_info, lib.accrt_bundle_argument, self.bundle.handle, index, argument.index)
                         for argument in signature.inputs + signature.results]
            found = self._functions[signature.name] = _Function(index, arguments, signature)
        return found

    def _call(self, signature: Signature, inputs: Sequence, named: Mapping[str, Any]):
        if self._owner != os.getpid():
            raise errors.InvalidStateError("the sandbox belongs to the process that made it, and this is one that was forked from it")
        function = self._function(signature)
        given = self._given(signature, inputs, named)
        arrays = [None if value is None or argument.kind == "scalar" else _as_array(signature, argument, value)
                  for argument, value in zip(signature.inputs, given)]
        request, blobs = _request(function, given, arrays)
        reply = self._reply(function, given, arrays)
        if reply is not None and self._memory and reply.size > self._memory:
            raise errors.OutOfMemoryError(f"{signature.name}() would give {reply.size} bytes, and the sandbox has {self._memory}",
                                          name="ACCRT_ERROR_OUT_OF_MEMORY")
        with self._lock:
            if self._waiting:
                self._ended("a call was interrupted, and its sandbox was ended")
            if self._process is None:
                raise errors.InvalidStateError(self._why or "the sandbox is closed")
            try:
                return self._exchange(function, request, blobs, reply, arrays)
            finally:
                if self._waiting:  # an answer would be taken for the next call's
                    self._ended("a call was interrupted, and its sandbox was ended")

    def _exchange(self, function: _Function, request: bytes, blobs: List[Any], reply: Optional[_Reply], arrays: List[Any]):
        call = int.from_bytes(os.urandom(8), "little") | 1
        self._begin()
        self._send(_HEADER.pack(_CALL, len(function.signature.inputs), function.index, call,
                                len(request) + sum(map(len, blobs))) + request)
        for blob in blobs:
            self._send(blob)
        if reply is None:  # what is wrong the process will say
            self._receive(_ERROR, call, -1)
        self._receive(_RESULTS, call, len(reply.places), reply.size)
        if self._bytes(len(reply.items)) != reply.items:
            raise self._broken(_SENSELESS)
        results = self._take(reply)
        self._waiting = False
        for argument, array in zip(function.signature.inputs, arrays):
            new = results.get(argument.index)
            if new is not None:
                import numpy as np
                np.copyto(array, new)
        out = tuple(results[argument.index] for argument in function.signature.results)
        return None if not out else out[0] if len(out) == 1 else out

    def _take(self, reply: _Reply) -> "Dict[int, np.ndarray]":
        import numpy as np
        results, at = {}, len(reply.items)
        for index, offset, dtype, shape in reply.places:
            self._bytes(offset - at)
            array = np.empty(shape, dtype)
            if array.nbytes:
                self._read(memoryview(array.reshape(-1).view(np.uint8)))
            results[index], at = array, offset + array.nbytes
        self._bytes(reply.size - at)
        return results

    def _reply(self, function: _Function, given: List[Any], arrays: List[Any]) -> Optional[_Reply]:
        """What a right answer is, of what the bundle declares and the arguments; None where the
        arguments are wrong."""
        signature = function.signature
        symbols = dict(self._symbols)
        for info, value, array in zip(function.arguments, given, arrays):
            if value is not None and array is None:
                symbols.setdefault(info.symbol, operator.index(value))
            if array is not None and array.ndim == info.rank:
                for dim, size in zip(info.dims, array.shape):
                    if dim.kind == _ffi.ACCRT_DIM_SYMBOL:
                        symbols.setdefault(dim.value, size)
        shapes = [(argument, array.shape) for argument, array in zip(signature.inputs, arrays)
                  if array is not None and argument.kind == "read_write"]
        for argument in signature.results:
            shape = self._shape(function, argument, symbols, [value is not None for value in given])
            if shape is None:
                return None
            shapes.append((argument, shape))
        return _layout(shapes)

    def _shape(self, function: _Function, argument, symbols: Dict[int, int], present: List[bool]) -> Optional[Tuple[int, ...]]:
        info, shape = function.arguments[argument.index], []
        names = [symbol.name for symbol in self.bundle.symbols] if info.rank else []
        for i, dim in enumerate(info.dims[:info.rank]):
            size = dim.value if dim.kind == _ffi.ACCRT_DIM_CONSTANT else symbols.get(dim.value)
            if dim.kind == _ffi.ACCRT_DIM_EXPRESSION:
                size = dimension(argument.type, i, {names[s]: v for s, v in symbols.items()}, present)
                if size is None and "..." in argument.type:
                    raise errors.UnsupportedError(f"{argument.name!r} is {argument.type}: dimension {i} is too long to be worked out here, "
                                                  "and a sandbox takes no size from the code", name="ACCRT_ERROR_UNSUPPORTED")
            if size is None or size < 0:
                return None
            shape.append(size)
        return tuple(shape) if math.prod(shape) < 1 << 56 else None

    @never_raises
    def __repr__(self) -> str:
        state = self.confinement if self._process is not None else self._why or "closed"
        return f"<accrt.sandbox.SandboxSession of {self.bundle.info['name']!r}: {state}>"


_sessions: "weakref.WeakSet[SandboxSession]" = weakref.WeakSet()


def _let_go() -> None:
    """In a process that was forked: it may outlive the owner of the sandboxes, whose end Linux
    tells them when no copy of the descriptors is left."""
    for session in list(_sessions):
        session.close()


os.register_at_fork(after_in_child=_let_go)


def _checked(file: int, trust: Optional[str]) -> Bundle:
    """The bundle, opened here for its functions' types; its code is not loaded here."""
    from . import trust as keys
    from .instance import Instance, policy_of
    policy = policy_of(trust, None) or "all"
    bundle = Bundle(file, Instance(trust="no-host-code" if policy == "no-host-code" else "signed"))
    if policy == "all":
        return bundle
    keys.apply(bundle.instance)
    found = keys.report(bundle)
    if found["has_host_code"] and (policy == "no-host-code" or not found["code_trusted"]):
        raise errors.UntrustedError(f"its machine code is not allowed by the policy {policy!r}", name="ACCRT_ERROR_UNTRUSTED")
    return bundle


def _named(source: object, make: Callable[[], Bundle]) -> Bundle:
    """Errors of the file name its path, which who opens a descriptor does not know."""
    try:
        return make()
    except errors.Error as error:
        head, colon, rest = error.message.partition(": ")
        if colon and head in ("bundle", "file descriptor") and isinstance(source, (str, os.PathLike)):
            error.message = f"{os.fspath(source)}: {rest}"  # type: ignore[str-bytes-safe]
            error.args = (error.message,)
        raise


def _spawn(path: str, arguments: List[str], files: List[int]) -> "_Process":
    """Starts the helper with `files` as 3, 4, ... and an empty environment."""
    # First above all of those numbers, so that none is overwritten before it is moved.
    high = [_above(fd, _FIRST_FD + len(files)) for fd in files]
    actions = [(os.POSIX_SPAWN_DUP2, fd, _FIRST_FD + i) for i, fd in enumerate(high)]
    try:
        pid = os.posix_spawn(path, [path, *arguments], {}, file_actions=actions)
    finally:
        for fd in high:
            os.close(fd)
    return _Process(pid)


def _above(fd: int, least: int) -> int:
    import fcntl
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)


class _Process:
    """A process of posix_spawn, which can give numbers to descriptors: subprocess.Popen cannot."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cpu_s = 0.0  # processor time that it has used, once it has ended
        self._code: Optional[int] = None

    def kill(self) -> None:
        if self._code is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self, timeout: Optional[float] = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            try:
                pid, status, used = os.wait4(self.pid, 0 if end is None else os.WNOHANG)
            except ChildProcessError:  # it was waited for elsewhere
                self._code = 0
                break
            if pid:
                self.cpu_s = used.ru_utime + used.ru_stime
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            elif end is not None and time.monotonic() > end:
                raise TimeoutError
            else:
                time.sleep(0.001)
        return self._code


def _opened(path: object, what: str) -> int:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{what} is {describe(path)}, expected a path")
    with errors.named_files():
        file = os.open(path, _OPEN)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise errors.IoError(f"{os.fsdecode(path)}: not a regular file (mode {mode:o})", name="ACCRT_ERROR_IO")
    return file


def _again(source: int) -> int:
    """The file of an open descriptor, opened again: for reading alone, with a place in it of its
    own."""
    return os.open(f"/proc/self/fd/{operator.index(source)}", _OPEN)


def _limit(name: str, value: Optional[int], least: int) -> int:
    """A limit for the process; 0: none."""
    if value is None:
        return 0
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= operator.index(value) <= 1 << 30:
        raise ValueError(f"{name} is {value!r}, expected a whole number from {least} to {1 << 30}, or None")
    return operator.index(value)


def _confinement(landlock: int) -> str:
    return f"seccomp, Landlock {landlock}" if landlock else "seccomp"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _item(argument, offset: int, shape: Sequence[int], size: int) -> bytes:
    return _ITEM.pack(argument.index, _TENSOR, DTYPES[_dtype_of(argument)], len(shape), *shape, *[0] * (8 - len(shape)), 0, offset, size)


def _request(function: _Function, given: List[Any], arrays: List[Any]) -> Tuple[bytes, List[Any]]:
    """The items of a call with what fills them up, and the bytes behind them."""
    import numpy as np
    begin = end = _round_up(_ITEM.size * len(given))
    items, blobs = [], []
    for argument, value, array in zip(function.signature.inputs, given, arrays):
        if value is None:
            items.append(_ITEM.pack(argument.index, _ABSENT, *[0] * 13))
        elif array is None:
            items.append(_ITEM.pack(argument.index, _SCALAR, 0, 0, *[0] * 8, int64(value, argument.name), 0, 0))
        else:
            items.append(_item(argument, end, array.shape, array.nbytes))
            padding = bytes(-array.nbytes % _ALIGNMENT)
            blobs += [memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)) if array.nbytes else b"", padding]
            end += array.nbytes + len(padding)
    head = b"".join(items)
    return head + bytes(begin - len(head)), blobs


def _layout(shapes: List[Tuple[Any, Tuple[int, ...]]]) -> _Reply:
    import numpy as np
    end = _round_up(_ITEM.size * len(shapes))
    items, places = [], []
    for argument, shape in shapes:
        dtype = _numpy_of(argument)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        items.append(_item(argument, end, shape, size))
        places.append((argument.index, end, dtype, shape))
        end += _round_up(size)
    return _Reply(b"".join(items), places, end)


def _function_index(bundle: Bundle, name: str) -> int:
    index = ctypes.c_uint32()
    check(lib.accrt_bundle_find_function(bundle.handle, name.encode(), ctypes.byref(index)))
    return index.value


def _status_name(status: int) -> str:
    name = lib.accrt_status_name(status & 0x7FFFFFFF)
    return name.decode() if name else ""


def _dtype_of(argument) -> str:
    return argument.type.split("[", 1)[0].split()[0]


def _numpy_of(argument) -> str:
    name = _dtype_of(argument)
    if name not in _NUMPY:
        raise errors.UnsupportedError(f"{argument.name!r} is {argument.type}: numpy has no such type, and a sandbox takes numpy's alone")
    return _NUMPY[name]


def _as_array(signature: Signature, argument, value) -> "np.ndarray":
    """The value as an array of the declared type; another type is a TypeError, nothing is
    converted. Of what is written, its own memory."""
    import numpy as np
    written = argument.kind == "read_write"
    if isinstance(value, (bytes, bytearray)):
        value = memoryview(value)
    if written and not isinstance(value, memoryview) and not any(hasattr(value, f"__{way}__") for way in ("array_interface", "array",
                                                                                                        "dlpack")):
        raise TypeError(f"{signature.name}: {argument.name} is written, and {describe(value)} is copied")
    refuse_masked(value)
    wanted = np.dtype(_numpy_of(argument))
    try:
        array = np.asarray(value)
    except errors.Error:
        raise
    except (RuntimeError, TypeError, ValueError) as error:  # as of uneven lists
        kind = next(kind for kind in (TypeError, ValueError, RuntimeError) if isinstance(error, kind))
        raise kind(f"{signature.name}: {argument.name}: {error}") from error
    if array.dtype != wanted:
        own, named = _dtype_of(argument), hasattr(value, "dtype")
        way = f"array.astype({wanted.name!r}) converts it" if named else f"numpy.asarray({argument.name}, {wanted.name!r}) makes one of it"
        if own in BIT_TYPES:
            way = f"a sandbox takes its bits: array.astype(ml_dtypes.{ML_DTYPES[own]}).view({wanted.name!r})"
        way = unless_written(argument.kind, way, f"an array of {wanted.name}{', which are its bits' if own in BIT_TYPES else ''}")
        got = next((name for name, kind in _NUMPY.items() if np.dtype(kind) == array.dtype), array.dtype)
        raise errors.TypeMismatchError(f"function {signature.name!r}, input {argument.name!r} ({argument.type}): got {got}; {way}")
    if array.ndim > _RANK:
        raise ValueError(f"tensor has {array.ndim} dimensions, at most {_RANK} are supported")
    if (written or argument.kind == "donated") and not array.flags.writeable:
        raise ValueError(f"{signature.name}: {argument.name} is written, and the array is read-only")
    return array


__all__ = ["SandboxSession", "helper"]
