"""Functions and calls: arguments are bound, run and waited for."""
from __future__ import annotations

import ctypes
import functools
import operator
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Iterable, Sequence, TypeVar, overload

from . import _fast, _ffi
from ._advice import advised
from ._alone import alone, in_use
from ._bits import BIT_TYPES, bits_of
from ._copies import copied_view
from ._library import Handle, c_text, check, created, describe, int64, last_error, lib, need, never_raises, not_copied, number
from ._threads import start
from ._waits import SLICE_NS, apart, until, with_limit
from .bundle import Signature
from .errors import Error, PoisonedError, UnsupportedError
from .instance import Device
from .memory import Buffer
from .stream import Semaphore, Stream, timeout_ns
from .tensor import Tensor, View, as_view, dtype_id

if TYPE_CHECKING:
    from .session import Session

_Out = TypeVar("_Out")
_INFINITE = _ffi.ACCRT_TIMEOUT_INFINITE
_RANK = _ffi.ACCRT_MAX_RANK
_LIKE_INPUT, _RESULT, _LIKE_RESULT = 2, 3, 4  # what native.Caller.set gives
_QUICK_NS = 2_000_000  # that an event loop may stand still for a plan


def _timepoints(what: str, pairs: Iterable[tuple[Semaphore, int]]):
    try:
        pairs = [(semaphore, value) for semaphore, value in pairs]
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {pairs!r:.80}, expected pairs as in [(semaphore, 1)]") from None
    table = [(need(s, Semaphore), number(v, "value")) for s, v in pairs]
    return (_ffi.accrt_timepoint * max(len(table), 1))(*table), len(table)


def borrowed(raw: _ffi.accrt_tensor, shape, strides, device: Device, stream: Stream | None = None) -> Tensor:
    """A Tensor for a borrowed C tensor with a buffer; `stream` when work there may still fill
    it."""
    rank = raw.rank
    return Tensor._of(Buffer._of_result(raw.buffer, device, stream), raw.dtype, shape[:rank], strides[:rank], raw.offset_bytes)


class Call(Handle):
    """A function with its arguments bound, to be run many times: one foreign call each. Made by
    `Function.bind`.

    `call()` runs it and returns the results as the function does. `set` binds other arguments. Use
    a call, and other calls of its session, from one thread at a time.
    """

    __slots__ = ("_session", "_prepared", "_run_function", "_views", "_outputs", "_fixed", "_running", "_submitted", "_enqueue", "_in_flight", "_uses",
                 "_planned", "_result_of", "_bound", "_quick", "_order")
    _kind = "accrt_call"

    def __init__(self, session: Session, prepared: Prepared) -> None:
        if not isinstance(prepared, Prepared):
            raise TypeError(f"calls are made by Function.bind, not of {describe(prepared)}")
        from .session import Session
        super().__init__(created(lib.accrt_call_create, need(session, Session), c_text(prepared.signature.name)))
        self._session, self._prepared = session, prepared
        self._in_flight, self._uses = session._in_flight, session._uses
        self._running = self._submitted = False  # a run may be in flight: of `run`, of `submit`
        # the plan for these arguments is made: asking C again takes as long as a submission
        self._planned = False
        self._bound: set[int] = set()  # what C has a tensor for
        out, shape, strides = _ffi.accrt_tensor(), (ctypes.c_int64 * _RANK)(), (ctypes.c_int64 * _RANK)()
        # what accrt_call_result fills, each time
        self._result_of = (out, ctypes.byref(out), shape, strides)
        self._run_function, self._enqueue = _shortest(self._pointer)
        self._quick = _fast.caller(self, session.program.device)  # None: everything is done here
        # before each run: what `set` has left to do (_window.py)
        self._order = session._gpu.order if session._gpu is not None else None
        self._forget()

    def close(self) -> None:
        """Releases the call now. A run in flight goes on, and keeps the arguments' memory until it
        is complete."""
        self._run_function, self._enqueue = _shortest(None)
        self._quick = self._order = None
        self._forget()
        super().close()

    def __del__(self) -> None:
        if getattr(self, "_submitted", False) or getattr(self, "_running", False):
            self._in_flight.keep(self._views)

    @property
    def function(self) -> Function:
        """The function that it calls."""
        return Function(self._session, self._prepared)

    def _forget(self) -> None:
        if self._submitted or self._running:
            self._in_flight.keep(self._views)
            self._running = self._submitted = False
        self._views = {}    # argument index -> what keeps its memory alive
        self._outputs = {}  # result index -> the caller's object
        # the results, when all are the caller's
        self._fixed = None if self._prepared.signature.results else ()

    def _let_go(self) -> None:
        """After a run on arguments of its own: the library holds tensors of others until the next
        one, unless they are cleared."""
        views = self._views
        if not (self._submitted or self._running) and isinstance(views, dict):
            for index, view in views.items():
                if isinstance(view, View) and view.c.buffer and lib.accrt_call_set_tensor(self.handle, index, None) == 0:
                    self._bound.discard(index)
        self._forget()

    def set(self, name_or_index: str | int, value: Any, dtype: str | None = None, copy: bool = False) -> None:
        """Binds an argument (inputs, then results): an array or tensor, an int for scalar inputs,
        None to unbind.

        Args:
            dtype: take an array's elements as this type ("bf16" for bits held in uint16).
            copy: copy arrays that cannot be used in place (strided, of the other byte order,
                misaligned) and lists of numbers. Only for arguments that are only read.
        """
        quick = self._quick
        if quick is not None and dtype is None and copy is False:
            done = quick.set(self, name_or_index, value, self._views)
            if done == _LIKE_INPUT:
                return
            if done:
                if done != _LIKE_RESULT:
                    self._planned = False
                if done >= _RESULT:
                    self._give(name_or_index if isinstance(name_or_index, int) else self._prepared._indices[name_or_index], value)
                return
            _fast.learn(value)
            self._set_alone(name_or_index, value, dtype, copy)
            self._widen()
            return
        self._set_alone(name_or_index, value, dtype, copy)

    def _widen(self) -> None:
        """After the quick way did not take a tensor: the next one it may."""
        gpu = self._session._gpu
        if gpu is not None:
            from ._window import widen
            widen(gpu, self._session.program.device)

    @alone
    def _set_alone(self, name_or_index: str | int, value: Any, dtype: str | None, copy: bool) -> None:
        prepared = self._prepared
        index = number(name_or_index, "index", 32) if isinstance(name_or_index, int) else prepared.index(name_or_index)
        if index >= len(prepared.arguments):
            signature = prepared.signature
            raise IndexError(f"{signature.name}() has {len(prepared.arguments)} arguments, there is no {index}; it is {signature}")
        self._set(index, value, dtype, copy)

    def _set(self, index: int, value: Any, dtype: str | None, copy: bool) -> None:
        """`set` of an index that is one of the function's."""
        self._planned = False
        prepared = self._prepared
        signature, argument, inputs = prepared.signature, prepared.arguments[index], prepared.inputs
        if argument.kind == "scalar":
            if value is None:  # not the number of the run before
                check(lib.accrt_call_set_tensor(self.handle, index, None))
            else:
                check(lib.accrt_call_set_scalar(self.handle, index, int64(value, argument.name)))
            return
        view = None
        if value is not None:
            session = self._session
            wanted = dtype_id(dtype) if dtype else None
            bits = prepared.bits.get(index)
            if bits is not None and wanted is None and bits_of(value) == bits:
                wanted = dtype_id(bits)
            try:
                if copy:
                    view = copied_view(value, session.program.device, wanted, argument.type.partition("[")[0], session.stream)
                else:
                    view = as_view(value, session.program.device, wanted, session.stream)
            except (TypeError, ValueError) as error:
                error.args = (f"{signature.name}: {argument.name}: {error}",)
                raise advised(error, argument, value, None, copy) from None
            except (BufferError, UnsupportedError) as error:  # a copy would not help
                error.args = (f"{signature.name}: {argument.name}: {error}",)
                if isinstance(error, UnsupportedError):
                    error.message = error.args[0]
                raise
            if copy and argument.kind != "read" and isinstance(view.owner, ctypes.Array):
                raise ValueError(f"{signature.name}: {argument.name} is written, and a copy would lose that: pass a contiguous array")
            if view.read_only and argument.kind not in ("read", "scalar"):
                raise ValueError(f"{signature.name}: {argument.name} is written, and the array is read-only")
        if view is None and index not in self._bound:  # it is as C has it
            if index >= inputs:
                self._outputs[index - inputs] = self._fixed = None
            return
        views = self._views
        before = views.get(index)
        views[index] = (before, view)  # whatever comes in between (Ctrl-C)
        try:
            if view is not None:
                self._bound.add(index)
            status = lib.accrt_call_set_tensor(self.handle, index, ctypes.byref(view.c) if view is not None else None)
            if status:
                raise last_error(status)
            if before is not None and (self._submitted or self._running):
                # now that no work begins with it any more
                self._in_flight.keep(before)
            if view is None:
                self._bound.discard(index)
        except BaseException as error:
            if isinstance(error, Error):
                views[index] = before
                advised(error, argument, value, view, copy)
            raise
        views[index] = view
        if index >= inputs:
            self._give(index, value)

    def _give(self, index: int, value: Any) -> None:
        """The caller's object for a result."""
        signature, outputs = self._prepared.signature, self._outputs
        outputs[index - self._prepared.inputs] = value
        given = [outputs.get(i) for i in range(len(signature.results))]
        self._fixed = _unpack(given) if all(g is not None for g in given) else None

    def __call__(self) -> Any:
        """Runs and waits; the GIL is released meanwhile. Returns the results: one alone, several as
        a tuple. Ctrl-C ends the wait, and the run goes on: `wait` waits for it, `Session.cancel`
        ends it. A plan that is being made then is made and run, too."""
        # what the run uses, also when another thread closes the call now
        fixed, views = self._fixed, self._views
        if fixed is None:
            return self._run_alone()
        # One step, and nothing of the library's is borrowed: who is alone need not be asked.
        order = self._order
        if order is not None and not order():
            self._order_in_steps()
        self._running = True
        status = self._run_function(SLICE_NS)
        if status:
            self._go_on(status, views, _INFINITE)
        self._running = False
        return fixed

    def _order_in_steps(self) -> None:
        from ._window import order
        order(self._session)

    def _run_now(self) -> Any:
        views, order = self._views, self._order
        if order is not None and not order():
            self._order_in_steps()
        self._running = True
        status = self._run_function(SLICE_NS)
        if status:
            self._go_on(status, views, _INFINITE)
        self._running = self._submitted = False
        return self._fixed if self._fixed is not None else self._results()

    _run_alone = alone(_run_now)

    def _run_quick(self, inputs: tuple, out: Any) -> Any:
        """Binds and runs in one step, on new arguments; NotImplemented: nothing ran, and it is to
        be done in many."""
        quick = self._quick
        if quick is None:
            return NotImplemented
        self._views = views = [inputs, out]  # what the run uses: whatever comes in between (Ctrl-C)
        self._running = True
        results = quick(inputs, out, views)
        if results is quick:
            status = quick.status()
            if status:
                self._go_on(status, views, _INFINITE)
            self._running = False
            self._outputs = {} if out is None else dict(enumerate(out if isinstance(out, tuple) else (out,)))
            results = self._results()
            self._outputs = {}
            quick.let_go()
        self._running = False
        self._views = {}
        return results

    @alone
    def run(self, timeout: float | None = None) -> Any:
        """Runs the call, with a timeout in seconds. After TimeoutError the run goes on: `wait`
        waits for it, `Session.cancel` ends it. If the plan is not complete at the limit, it is
        given up, the message says so, and nothing runs; `Session.warmup` makes the plan ahead."""
        views, pointer, order = self._views, self.handle, self._order
        limit = timeout_ns(timeout)
        begin = 0 if limit == _INFINITE else time.monotonic_ns()
        if order is not None and not order():
            self._order_in_steps()
        self._running = True
        if limit <= SLICE_NS:
            status = lib.accrt_call_run(pointer, limit)
            if status:
                self._keep_on(views)
                raise self._failure(status)
        else:
            status = self._run_function(SLICE_NS)
            if status:
                self._go_on(status, views, limit, begin)
        self._running = self._submitted = False
        return self._fixed if self._fixed is not None else self._results()

    @alone
    def wait(self, timeout: float | None = None) -> None:
        """Waits for the latest run, however it was started. Raises TimeoutError, or the run's
        failure."""
        self._go_on(_ffi.ACCRT_ERROR_NOT_READY, self._views, timeout_ns(timeout))
        self._running = self._submitted = False

    def _go_on(self, status: int, views: dict, limit: int, begin: int = 0) -> None:
        """The first slice is over, or the run has failed. views: what it uses. begin: when the
        limit began; 0: now."""
        left = max(limit - (time.monotonic_ns() - begin), 1) if begin else limit
        try:
            if status == _ffi.ACCRT_ERROR_NOT_READY:
                status = until(lib.accrt_call_wait, left, self.handle, asked_ns=limit)
            elif status == _ffi.ACCRT_ERROR_TIMEOUT:
                apart(lambda: self._plan_and_run(views, limit, left))
                return
            if status:
                raise self._failure(status)
        except BaseException:
            self._keep_on(views)
            raise

    def _plan_and_run(self, views: dict, limit: int, left: int) -> None:
        """Making the plan takes longer than a slice: all of it in one call, whose limit is `left`
        of what was asked. views: what the run uses, until it is over: after Ctrl-C the call may be
        closed, or forget them, before the run begins."""
        status = lib.accrt_call_run(self.handle, left)
        if status:
            self._keep_on(views)
            raise self._failure(status, left, limit)

    def _keep_on(self, views: dict) -> None:
        """A run may go on without a waiter: what it uses stays until it is over, also where the
        call has been closed or looks idle."""
        if self._views is not views or not self._running:
            self._in_flight.keep(views)

    def _failure(self, status: int, part_ns: int = 0, asked_ns: int = 0):
        return with_limit(last_error(status), part_ns, asked_ns) if self._pointer is not None else ValueError("this Call is closed")

    def submit(self, waits: Iterable[tuple[Semaphore, int]] = (), signals: Iterable[tuple[Semaphore, int]] = ()) -> None:
        """Enqueues a run that waits for and signals (semaphore, value) pairs. Never blocks on the
        device. The arguments' memory lives until the run is complete, even if the call is dropped
        or bound again; do not change its contents until then. If there is no plan yet, it is made
        first; Ctrl-C ends that wait."""
        if waits or signals or not self._planned:
            self._submit_in_steps(waits, signals)
            return
        # Without the steps of alone: they take as long as the submission. Who comes in between
        # loses no memory for that: what was bound here is kept where another may have unbound it,
        # or may take the mark back (_set, wait), before the work has its number.
        uses, views = self._uses, self._views
        if uses:
            raise in_use()
        order = self._order
        if order is not None and not order():
            self._order_in_steps()
        self._submitted = True
        status = self._enqueue(None, 0, None, 0)
        if status:
            raise self._failure(status)
        if uses or self._views is not views:
            self._in_flight.keep((*views.values(),))
        self._submitted = True

    @alone
    def _submit_in_steps(self, waits: Iterable[tuple[Semaphore, int]], signals: Iterable[tuple[Semaphore, int]]) -> None:
        views, order = self._views, self._order
        if not self._planned and not self._plan_within(SLICE_NS):
            apart(self._plan)
        if order is not None and not order():
            self._order_in_steps()
        self._submitted = True
        wait_table, wait_count = _timepoints("waits", waits)
        signal_table, signal_count = _timepoints("signals", signals)
        check(lib.accrt_call_submit(self.handle, wait_table, wait_count, signal_table, signal_count))
        if self._views is not views:  # another thread has closed the call meanwhile
            self._in_flight.keep(views)

    def _plan_within(self, limit_ns: int) -> bool:
        """Whether the limit was enough to make the plan, or to see that none can be made: then the
        run fails with the same error."""
        status = lib.accrt_call_plan(self.handle, limit_ns)
        self._planned = status == _ffi.ACCRT_OK
        return status != _ffi.ACCRT_ERROR_TIMEOUT

    def _plan(self) -> None:
        check(lib.accrt_call_plan(self.handle, _INFINITE))
        self._planned = True

    async def _plan_async(self) -> None:
        """Has the plan made, on another thread if that takes long. Who is cancelled leaves it to
        that thread, which has the session until it is made."""
        if self._plan_within(_QUICK_NS):
            return
        import asyncio  # here: it takes longer to import than the rest of the package
        loop = asyncio.get_running_loop()
        made = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if not made.done():
                made.set_result(error)

        def make() -> None:
            error = None
            try:
                self._plan()
            except BaseException as problem:  # noqa: BLE001 - the caller's to raise
                error = problem
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:  # the loop is closed: no task waits
                pass

        start(make)
        error = await made
        if error is not None:
            raise error

    @alone
    def results(self) -> Any:
        """The latest run's results: one Tensor, or several as a tuple. You may take them right
        after `submit`: reading their values (numpy, `tolist`, printing, DLPack) waits for the
        session's stream first."""
        return self._results()

    def _results(self) -> Any:
        return _unpack([self._result(i) for i in range(len(self._prepared.signature.results))])

    def _result(self, index: int):
        given = self._outputs.get(index)
        if given is not None:
            return given
        quick = self._quick
        if quick is not None and not (self._submitted or self._running):
            found = quick.result(index)
            if found is not None:
                return found
        out, place, shape, strides = self._result_of
        handle = self.handle  # which keeps what is lent here
        status = lib.accrt_call_result(handle, index, place, shape, strides)
        if status:
            raise last_error(status)
        if out.buffer:
            session = self._session
            return borrowed(out, shape, strides, session.program.device, session.stream if self._submitted or self._running else None)
        # A result that must share the storage of an input given as plain memory.
        argument = self._prepared.signature.results[index]
        raise NotImplementedError(f"result {argument.name} lies in memory that the caller gave: read it there")

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Call of {self._prepared.signature}>"


def _shortest(pointer):
    """accrt_call_attempt and accrt_call_submit of a call, without conversions of the handle's type.
    They keep the handle, also when another thread closes the call meanwhile. None: of one that is
    closed."""
    address = None if pointer is None else operator.index(pointer)
    made = [functools.partial(function, address) for function in _SHORTEST]
    for one in made:
        one.owner = pointer  # type: ignore[attr-defined]
    return made


def _untyped(name: str):
    function = lib[name]
    function.argtypes = [ctypes.c_void_p, *function.argtypes[1:]]
    return function


_SHORTEST = (_untyped("accrt_call_attempt"), _untyped("accrt_call_submit"))


def _unpack(values: Sequence):
    return values[0] if len(values) == 1 else tuple(values)


def _learn(inputs: Sequence, out: Any) -> None:
    for value in (*inputs, *(out if isinstance(out, (tuple, list)) else (out,))):
        _fast.learn(value)


class Prepared:
    """What a session keeps of a function between calls. It refers to no session: a program that is
    dropped gives its memory back at once, and does not wait for the collector of cycles, which
    knows nothing of a device's memory."""

    __slots__ = ("signature", "arguments", "inputs", "doc", "bits", "kinds", "_indices")

    def __init__(self, signature: Signature, shared: frozenset[int] = frozenset()) -> None:
        """shared: inputs whose memory results may have."""
        self.signature = signature
        self.arguments, self.inputs = (*signature.inputs, *signature.results), len(signature.inputs)
        types = [a.type.partition("[")[0] for a in signature.inputs + signature.results]
        # numpy has none of these
        self.bits = {i: name for i, name in enumerate(types) if name in BIT_TYPES}
        self.doc = f"{signature}\n\n{signature.doc}"
        self._indices = {a.name: a.index for a in signature.results + signature.inputs}
        self.kinds = _fast.kinds(self, shared)

    def index(self, name: str) -> int:
        if name not in self._indices:
            raise TypeError(f"{self.signature.name}() has no argument {name!r}; it is {self.signature}")
        return self._indices[name]


class Function:
    """A function of a session, called like a Python function on numpy arrays, tensors of any
    library with DLPack, or anything with the buffer protocol; contiguous arrays are used without a
    copy.

    `f(*inputs, out=None, **named_inputs)` waits and returns the result (a tuple when there are
    several) as accrt.Tensor. `out=` takes an array (or a tuple with one for each result, None to
    have it allocated) and is returned. `copy=True` copies inputs that cannot be used in place:
    strided, of the other byte order, misaligned, lists of numbers.

    For type checkers a result is a Tensor, because only the bundle says how many there are; a tuple
    of several unpacks (`a, b = f(x)`) and is indexed (`f(x)[1]`) as a Tensor is.
    """

    def __init__(self, session: Session, prepared: Prepared) -> None:
        self.session = session
        self.signature = prepared.signature
        self._prepared = prepared
        self.__doc__ = prepared.doc

    __reduce_ex__ = not_copied

    def __copy__(self) -> Function:
        return self

    def index(self, name: str) -> int:
        """Position of an argument: inputs first, then results."""
        return self._prepared.index(name)

    def bind(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Call:
        """A Call with these arguments bound, to be run many times. A run sees later changes of the
        arrays' contents, but not of arrays that copy=True has copied."""
        call = Call(self.session, self._prepared)
        self._bind(call, inputs, out, named, copy)
        return call

    @overload
    def __call__(self, *inputs: Any, out: None = None, copy: Any = False, **named: Any) -> Tensor: ...

    @overload
    def __call__(self, *inputs: Any, out: _Out, copy: Any = False, **named: Any) -> _Out: ...

    def __call__(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Any:
        calls, name = self.session._calls, self.signature.name
        call = calls.pop(name, None)  # no other thread finds it meanwhile
        if call is None:
            # The session keeps it, so it does not keep the session.
            call = Call(weakref.proxy(self.session), self._prepared)
        try:
            if copy is False and not named:
                results = call._run_quick(inputs, out)
                if results is not NotImplemented:
                    return results
                _learn(inputs, out)
            self._bind(call, inputs, out, named, copy)
            call._widen()
            return call._run_now()
        finally:
            call._let_go()
            calls[name] = call

    @overload
    async def call_async(self, *inputs: Any, out: None = None, copy: Any = False, **named: Any) -> Tensor: ...

    @overload
    async def call_async(self, *inputs: Any, out: _Out, copy: Any = False, **named: Any) -> _Out: ...

    async def call_async(self, *inputs: Any, out: Any = None, copy: Any = False, **named: Any) -> Any:
        """Calls the function from an asyncio event loop, without blocking a thread. If a plan takes
        long, another thread makes it. If the task is cancelled meanwhile, that thread goes on until
        the plan is complete or the session's budget is used up (by default 2^26 steps, some
        seconds; Budget.cancel() ends it). Until then the session is in use. The function has not
        run.

        Raises what a plain call raises. After `Session.cancel` that is CancelledError, which is not
        asyncio's: the task that awaits is not cancelled."""
        call = self.bind(*inputs, out=out, copy=copy, **named)
        await call._plan_async()
        semaphore = Semaphore(self.session.program.device.instance)
        call.submit(signals=[(semaphore, 1)])
        try:
            await semaphore.wait_async(1)
        except PoisonedError as error:  # what the run failed with, as without await
            raise semaphore.error or error from None
        call._submitted = False
        return call.results()

    def _bind(self, call: Call, inputs: Sequence, out, named: Mapping, copy: Any) -> None:
        signature = self.signature
        if copy is not False and "copy" in self._prepared._indices:  # an input of that name
            named, copy = {**named, "copy": copy}, False
        count = len(signature.inputs)
        if len(inputs) > count:
            raise TypeError(f"{signature.name}() takes {count} input{'s'[:count != 1]}, {len(inputs)} {'was' if len(inputs) == 1 else 'were'} given; it is {signature}")
        given = dict(enumerate(inputs))
        for name, value in named.items():
            index = self.index(name)
            if index in given or index >= count:
                raise TypeError(f"{signature.name}() got {name!r} " + ("twice" if index < count else "as an input: use out="))
            given[index] = value
        missing = [a.name for a in signature.inputs if a.index not in given and not a.optional]
        if missing:
            raise TypeError(f"{signature.name}() misses {', '.join(missing)}; it is {signature}")
        for i in range(count):
            call._set(i, given.get(i), None, copy)
        for i, value in enumerate(self._outputs(out)):
            call._set(count + i, value, None, False)

    def _outputs(self, out) -> Sequence:
        results = len(self.signature.results)
        outputs = out if isinstance(out, (tuple, list)) else (out,) + (None,) * (results - 1)
        if results == 0 and out is None:
            return ()
        if len(outputs) != results:
            raise TypeError(f"{self.signature.name}() has {results} result{'s'[:results != 1]}, out= has {len(outputs)}: it takes "
                            + ("an array" if results == 1 else "a tuple with an array, or None, for each"))
        return outputs

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Function {self.signature}>"
