"""Finds and loads libaccrt.so and the libraries that stand on it, and turns statuses into
exceptions. The one place that knows where they lie."""
from __future__ import annotations

import ctypes
import functools
import os
from operator import index as _index
from typing import Any, Callable, Iterable, List, NoReturn, TypeVar

from . import _ffi, errors
from ._system import check_search


def _candidates() -> list[str]:
    """Where to look, in order: $ACCRT_LIBRARY (alone, when set), inside the package, the tree's
    build folder, the system."""
    chosen = os.environ.get("ACCRT_LIBRARY")
    if chosen:  # a path is not left to where the process is: packs are looked for beside it
        return [os.path.abspath(chosen) if "/" in chosen else chosen]
    here = os.path.dirname(os.path.realpath(__file__))
    near = [os.path.join(here, *place) for place in (("libaccrt.so.0",), ("libaccrt.so",),
                                                     ("..", "..", "build", "lib", "libaccrt.so.0"))]
    return [p for p in near if os.path.exists(p)] + ["libaccrt.so.0"]


def _opened(path: str) -> _ffi.Library:
    """Raises OSError; PermissionError where a name without slashes would be found in the current
    folder, or where others may write."""
    if "/" not in path:
        check_search(path)
    return _ffi.Library(path)


def _load() -> _ffi.Library:
    tried = []
    for path in _candidates():
        try:
            library = _opened(path)
        except OSError as error:
            tried.append(str(error))
            continue
        try:
            version = library.accrt_version()
        except AttributeError:
            raise ImportError(f"{path} is another library: it has no accrt_version") from None
        _check_version(path, version)
        return library
    raise ImportError("libaccrt.so was not found; set ACCRT_LIBRARY to its path, or build it. Tried: " + "; ".join(tried))


def _check_version(path: str, version: int) -> None:
    """The same version; from 1.0 on also a later minor one, which has every function that this
    package knows. Before, the C ABI may change with a minor version, as accrt_get_api has it."""
    major, minor = version >> 24, (version >> 12) & 0xFFF
    own = (_ffi.ACCRT_VERSION_MAJOR, _ffi.ACCRT_VERSION_MINOR)
    if major != own[0] or (minor < own[1] if major else minor != own[1]):
        raise ImportError(f"{path} has version {major}.{minor}, this package needs {own[0]}.{own[1]}{' or a later minor one' if own[0] else ''}")


lib = _load()


def _candidates(name: str) -> list[str]:
    """Where libaccrt_NAME.so may be, in order: the environment's path to it (alone, when set),
    beside libaccrt.so, the system."""
    chosen = os.environ.get(f"ACCRT_{name.upper()}_LIBRARY")
    if chosen:
        return [os.path.abspath(chosen) if "/" in chosen else chosen]
    folder = os.path.dirname(lib._name)
    near = [os.path.join(folder, file) for file in (f"libaccrt_{name}.so.0", f"libaccrt_{name}.so")] if folder else []
    return [p for p in near if os.path.exists(p)] or [f"libaccrt_{name}.so.0"]


def _load_above(name: str, purpose: str) -> _ffi.Library:
    """A library that stands on libaccrt.so."""
    tried = []
    for path in _candidates(name):
        try:
            library = _opened(path)
            version = library[f"accrt_{name}_version"]()
        except (OSError, AttributeError) as error:
            tried.append(str(error))
            continue
        if version >> 12 != lib.accrt_version() >> 12:
            raise ImportError(f"{path} has version {version >> 24}.{version >> 12 & 0xFFF}, which is not that of {lib._name}")
        return library
    raise ImportError(f"{purpose} need libaccrt_{name}.so, which was not found: install it beside "
                      f"{lib._name}, or set ACCRT_{name.upper()}_LIBRARY to its path. Tried: " + "; ".join(tried))  # fmt: skip


_above: dict[str, _ffi.Library] = {}


def _library_above(name: str, purpose: str) -> _ffi.Library:
    if name not in _above:
        _above[name] = _load_above(name, purpose)
    return _above[name]


def write_library() -> _ffi.Library:
    """libaccrt_write.so, loaded when it is first asked for: what runs bundles works without. Raises
    ImportError where it is not there."""
    return _library_above("write", "writing, signing and quantizing")


def serve_library() -> _ffi.Library:
    """libaccrt_serve.so, loaded when it is first asked for. Raises ImportError where it is not
    there."""
    return _library_above("serve", "serving language models")


lib.write = write_library
lib.serve = serve_library


def http_library() -> _ffi.Library:
    """libaccrt_http.so, loaded when it is first asked for. Raises ImportError where it is not
    there."""
    return _library_above("http", "HTTP servers")


lib.http = http_library


def check(status: int) -> None:
    """Raises the exception of a failed call, with the thread's whole record."""
    if status != 0:
        raise last_error(status)


def last_error(status: int) -> errors.Error:
    """The exception for `status` made from this thread's record."""
    record = struct(_ffi.accrt_error)
    lib.accrt_last_error(ctypes.byref(record))
    return from_record(record, status)


def from_record(record: _ffi.accrt_error, status: int) -> errors.Error:
    """The exception for a record; `status` decides its class."""
    return errors.make(status, lib.accrt_status_name(status).decode(), record)


#: Letters of names that are compared with others. A longer one is none that a person wrote, and a
#: search for it takes 60 times its memory.
MOST_COMPARED = 200


def close(name: str, known: Iterable[str]) -> List[str]:
    """The known name that was probably meant, or none."""
    import difflib
    return difflib.get_close_matches(name, known, 1) if len(name) <= MOST_COMPARED else []


def known_options(where: str, options: Iterable[str], *takers: Callable[..., Any]) -> None:
    """TypeError: a keyword argument that none of the functions has, with the nearest."""
    import inspect
    known = {name for taker in takers for name, p in inspect.signature(taker).parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    for name in options:
        if name not in known:
            near = close(name, known)
            raise TypeError(f"{where}() got an unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def struct(kind, /, **values):
    """A new extensible struct with its size set."""
    out = kind(**values)
    out.struct_size = ctypes.sizeof(kind)
    return out


def filled(kind, function, *arguments):
    """Calls `function(*arguments, &struct)` on a new output struct and returns it. It keeps the
    handle, whose memory it may point to."""
    out = struct(kind)
    check(function(*arguments, ctypes.byref(out)))
    out._lent_by = arguments
    return out


def c_text(value: str, encode=str.encode, what: str = "a name") -> bytes:
    """A string for C. TypeError: it is none. ValueError: a NUL in it, where C would end it."""
    if encode is str.encode and not isinstance(value, str):
        raise TypeError(f"{what} is {shown(value)}, expected a str")
    data = encode(value)
    if b"\0" in data:
        raise ValueError(f"{value!r} has a NUL in it, which would end it")
    return data


def c_path(path) -> bytes:
    """The same of a path."""
    return c_text(path, os.fsencode)


def text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


class _State:
    """Whether references are still given back: not once the interpreter ends (_in_flight)."""

    gives_back = True
    byref = staticmethod(ctypes.byref)


def _give_back(pointer, _state=_State, _bool=bool, _clear=ctypes.memset) -> None:
    if _state.gives_back and _bool(pointer):
        pointer.give_back(pointer)
        # Finalizers of what is garbage together run in any order: who comes later finds NULL, which
        # C refuses.
        _clear(_state.byref(pointer), 0, 8)


#: Kind of handle ("accrt_stream") -> the type of pointers that own a reference.
_owners: dict[str, type] = {}


def _owner(kind: str) -> type:
    """The type of owning pointers: ctypes takes them where the C function wants this kind of
    handle, and nothing else. The reference goes with the last one who holds the pointer, so also a
    foreign call in another thread that has it. No ctypes.cast of them: it puts what is cast into a
    cycle, and the reference would wait for Python's collector."""
    found = _owners.get(kind)
    if found is None:
        base = getattr(_ffi, kind + "_p")
        retain = lib[kind + "_retain"]  # a new one, whose result type is set here alone
        found = type(base)(kind + "_owner", (base,), {
            "_type_": base._type_, "__del__": _give_back, "give_back": staticmethod(getattr(lib, kind + "_release")),
            "retain": staticmethod(retain), "__index__": lambda self: ctypes.c_size_t.from_buffer(self).value})
        retain.restype = found
        found = _owners.setdefault(kind, found)  # the same for all threads
    return found


_Self = TypeVar("_Self", bound="Handle")


def not_copied(self: object, protocol: object) -> NoReturn:
    """The `__reduce_ex__` of classes whose objects belong to this process. It also answers
    copy.copy and copy.deepcopy."""
    name = type(self).__name__
    article = "an" if name[0] in "AEIOU" or name.isupper() else "a"
    raise TypeError(f"{article} {name} is a handle of this process: it can be neither copied nor pickled; another process makes its own")


def never_raises(show: Callable[..., str]) -> Callable[..., str]:
    """Makes a `__repr__` that says what is wrong where it cannot say more: closed, broken, in a
    forked child."""
    @functools.wraps(show)
    def safe(self: Any) -> str:
        name = f"{type(self).__module__.partition('.')[0]}.{type(self).__name__}"
        try:
            if getattr(self, "_pointer", "none") is None:
                return f"<{name}, closed>"
            return show(self)
        except Exception as error:  # noqa: BLE001
            return f"<{name}: {type(error).__name__}: {' '.join(str(error).split())}>"
    return safe


class Handle:
    """Owner of one reference to a handle of the library. Subclasses name the kind of handle in
    `_kind`."""

    __slots__ = ("_pointer", "__weakref__")
    _kind = ""

    def __init__(self, pointer) -> None:
        if not isinstance(pointer, _owner(self._kind)):
            raise TypeError(f"an accrt.{type(self).__name__} is not made of {describe(pointer)}: see its class for what makes one")
        self._pointer = pointer

    @property
    def handle(self):
        """The C handle, a ctypes pointer; its address is `operator.index(handle)`. It keeps what it
        points to alive."""
        try:
            pointer = self._pointer
        except AttributeError:  # its constructor failed
            pointer = None
        if type(pointer) is not _owners.get(self._kind):
            raise self._no_handle(pointer)
        return pointer

    def _no_handle(self, pointer: object) -> Exception:
        name = type(self).__name__
        if pointer is None:
            return ValueError(f"this {name} is closed")
        return TypeError(f"this {name} is broken: its _pointer was set to {describe(pointer)}")

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.{type(self).__name__}>"

    def close(self) -> None:
        """Gives the reference back now instead of when the object is collected. Closing twice is
        fine, and so is closing while another thread uses it: then it goes when that call has
        returned."""
        self._pointer = None

    # A copy would share the one reference, and end it.
    __reduce_ex__ = not_copied

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def describe(value: object) -> str:
    """What a value is, for messages."""
    if value is None:
        return "None"
    kind = type(value)
    return f"an accrt.{kind.__name__}" if kind.__module__.startswith("accrt.") else f"a value of type {kind.__name__}"


def shown(value: object) -> str:
    """The same with a short value itself."""
    return f"{value!r}" if isinstance(value, (str, bytes, int, float)) and len(repr(value)) < 80 else describe(value)


def need(value: object, kind: type, what: str = ""):
    """The C handle of an argument that must be of class `kind` (a subclass of Handle), and open."""
    if isinstance(value, kind):
        return value.handle
    raise TypeError(f"{what or kind.__name__.lower()} is {describe(value)}, expected an accrt.{kind.__name__}{_MADE.get(kind.__name__, '')}")


#: What makes one, where names are often given in its place.
_MADE = {"Device": ': accrt.default_instance().device("host") gives one'}


def allowed(value: object, kind: type, what: str = ""):
    """As `need`; None for None."""
    return None if value is None else need(value, kind, what)


def whole(value: object, what: str) -> int:
    """An int, or what stands for one. TypeError: a float, a str, ..."""
    try:
        return _index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is {shown(value)}, expected an integer") from None


def number(value: object, what: str, bits: int = 64, signed: bool = False) -> int:
    """A whole number that fits: ctypes would cut what does not."""
    found = whole(value, what)
    least = -(1 << bits - 1) if signed else 0
    if not least <= found < 1 << (bits - 1 if signed else bits):
        raise OverflowError(f"{what} is {found}, which does not fit {'a signed' if signed else 'an unsigned'} number of {bits} bits")
    return found


def int64(value, name: str) -> int:
    found = whole(value, name)  # ctypes would cut what does not fit, and int() what is no integer
    if not -(1 << 63) <= found < 1 << 63:
        raise OverflowError(f"{name}: {found} does not fit 64 bits")
    return found


def created(function, *arguments):
    """Calls `function(*arguments, &out)` and returns the new handle: an owning pointer, where that
    kind of handle is owned."""
    base = function.argtypes[-1]._type_
    kind = base._type_.__name__
    out = (_owner(kind) if kind in _OWNED else base)()
    check(function(*arguments, ctypes.byref(out)))
    return out


def retained(pointer):
    """A new reference to what a borrowed handle points to, as an owning pointer."""
    return _owner(type(pointer)._type_.__name__).retain(pointer)


def adopted(pointer):
    """The reference that a C function has left in a struct, as an owning pointer."""
    return _owner(type(pointer)._type_.__name__).from_buffer_copy(pointer)


#: Kinds of handles of which C functions give references; devices are lent by their instance,
#: kernels by their pack.
_OWNED = frozenset(kind for kind in _ffi._HANDLES if kind + "_retain" in _ffi._PROTOTYPES) - {"accrt_device"}
