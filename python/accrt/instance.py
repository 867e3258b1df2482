"""Instances and devices: the root of everything."""
from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock  # threading takes longer to import than this module
from collections.abc import Mapping
from typing import Callable

from . import _ffi
from ._library import Handle, c_path, c_text, check, created, describe, filled, lib, need, never_raises, retained, shown, struct, text
from ._paths import user_folder
from ._waits import apart
from .errors import NotFoundError
from ._records import Counter, DeviceInfo

_POLICIES = {None: _ffi.ACCRT_HOST_CODE_DEFAULT, "signed": _ffi.ACCRT_HOST_CODE_SIGNED, "all": _ffi.ACCRT_HOST_CODE_ALL,
             "no-host-code": _ffi.ACCRT_HOST_CODE_NONE, "none": _ffi.ACCRT_HOST_CODE_NONE}
_LEVELS = {1: "error", 2: "warning", 3: "info", 4: "debug"}


class Instance(Handle):
    """An instance of the runtime.

    Args:
        trust: which machine code of the host CPU found in bundles may run: "signed" (by a key that
            is trusted), "all" (a bundle is then as trusted as this program), or "no-host-code".
            Default: $ACCRT_TRUST, or else "signed".
        keys: whose signatures are trusted: paths of public keys, or of folders of them. Default:
            $ACCRT_TRUST_KEYS and the user's folder (accx trust), and what this process compiles.
        host_code: an older name of `trust` ("none" is "no-host-code").
        options: driver options by key, e.g. {"host.threads": 2}; docs/options.md lists them. Unless
            it is given, "cuda.cache" is accrt/ptx in XDG_CACHE_HOME (or in ~/.cache); "" keeps
            compiled PTX nowhere. "prepare.cache", where results of prepare functions are kept, is
            accrt/prepared there.
        log: called as log(level, component, line) with level "error", "warning", "info" or "debug",
            from any thread.
        log_level: the highest level wanted.
        perf_map: append the names of loaded kernels to /tmp/perf-PID.map.
    Raises:
        NotFoundError: an unknown option. InvalidArgumentError: a bad value.
    """

    __slots__ = ("_callbacks", "_taught", "own_keys", "trust")
    _kind = "accrt_instance"

    def __init__(self, trust: str | None = None, options: Mapping[str, object] | None = None,
                 log: Callable[[str, str, str], None] | None = None, log_level: str = "warning",
                 perf_map: bool = False, keys=None, host_code: str | None = None) -> None:
        trust = policy_of(trust, host_code)
        # The plus sign: a library that was built without the CUDA driver does not know the key.
        if options is not None and (not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options)):
            raise TypeError(f"options is {options!r:.80}, expected a dict of driver options by name, as in {{'host.threads': 2}}: "
                            "docs/options.md lists them")
        given = {"+cuda.cache": _cache_folder("ptx"), "prepare.cache": _cache_folder("prepared"), **(options or {})}
        self._taught = 0
        self.own_keys = keys is None and "trust.keys" not in given
        if "trust.keys" not in given:
            from .trust import paths
            found = paths(keys)
            given.update({"trust.keys": found} if found is not None else {})
        pairs = [(c_text(k), c_text(_option_text(k, v))) for k, v in given.items()]
        table = (_ffi.accrt_option * max(len(pairs), 1))(*pairs)
        native = struct(_ffi.accrt_instance_options, host_code_policy=_POLICIES[trust],
                        flags=_ffi.ACCRT_INSTANCE_FLAG_PERF_MAP if perf_map else 0, option_count=len(pairs),
                        option_size_bytes=ctypes.sizeof(_ffi.accrt_option))
        native.options = table
        self._callbacks = []
        if log is not None:
            native.log_sink = ctypes.pointer(self._log_sink(log, log_level))
        self.trust = trust
        try:
            super().__init__(apart(lambda: created(lib.accrt_instance_create, ctypes.byref(native))))
        except NotFoundError as error:
            if "option" in str(error) and "did you mean" not in str(error):
                error.message += "; docs/options.md lists them, host.threads for example"
                error.args = (error.message,)
            raise

    def _log_sink(self, log, level: str):
        if level not in _LEVELS.values():
            raise ValueError(f"log_level is {level!r}, expected one of {', '.join(_LEVELS.values())}")

        def write(_self, number, component, line):
            log(_LEVELS.get(number, str(number)), text(component), text(line))

        sink = _ffi.accrt_log_sink()
        sink.write = dict(_ffi.accrt_log_sink._fields_)["write"](write)
        sink.level = next(n for n, name in _LEVELS.items() if name == level)
        self._callbacks.append(sink)
        return sink

    def device(self, name: str = "host") -> Device:
        """A device by name: "host", "host:1", "cuda:0". Raises NotFoundError, whose message lists
        the devices."""
        if not isinstance(name, str):
            raise TypeError(f"a device's name is {shown(name)}, expected a str; there are "
                            + ", ".join(repr(device.name) for device in self.devices()))
        asked = (self.handle, c_text(name))
        return Device(apart(lambda: created(lib.accrt_instance_device_by_name, *asked)), self)

    def devices(self) -> list[Device]:
        """All devices of all drivers."""
        handle, count = self.handle, ctypes.c_uint32()

        def find() -> list:
            check(lib.accrt_instance_device_count(handle, ctypes.byref(count)))
            return [created(lib.accrt_instance_device, handle, i) for i in range(count.value)]

        return [Device(one, self) for one in apart(find)]

    def counters(self) -> list[Counter]:
        """What the runtime, the engines and the servers of this instance have counted, and what
        programs have added in C. docs/server.md lists the names.

            for counter in instance.counters():
                print(counter.name, counter.labels, counter.value)
        """
        found: list[Counter] = []
        failures: list[BaseException] = []

        def visit(_user, group, values) -> None:
            try:
                found.extend(_counters_of(group.contents, values))
            except BaseException as error:  # ctypes would print it and go on
                failures.append(error)

        visitor = lib.accrt_counters_read.argtypes[1](visit)
        check(lib.accrt_counters_read(self.handle, visitor, None))
        if failures:
            raise failures[0]
        return found

    def load_driver(self, path: str | os.PathLike) -> None:
        """Opens a driver from a shared object; its devices join `devices()`. A name without slashes
        is looked for as the system looks for libraries; raises PermissionDeniedError when others
        may write to the file or to a folder above it."""
        name = c_path(path)
        wanted = (self.handle, os.path.abspath(name) if b"/" in name else name)
        apart(lambda: check(lib.accrt_instance_load_driver(*wanted)))

    @never_raises
    def __repr__(self) -> str:
        return f"accrt.Instance(trust={self.trust!r})"


_KINDS = {_ffi.ACCRT_COUNTER_TOTAL: "total", _ffi.ACCRT_COUNTER_GAUGE: "gauge", _ffi.ACCRT_COUNTER_HISTOGRAM: "histogram"}


def _counters_of(group, values) -> list[Counter]:
    """The counters of one group, copied."""
    found, at = [], 0
    for raw in group.counters[:group.counter_count]:
        buckets, below = [], 0
        if raw.kind == _ffi.ACCRT_COUNTER_HISTOGRAM:
            for bound in (*raw.bounds[:raw.bound_count], float("inf")):
                below += int(values[at])
                buckets.append((bound, below))
                at += 1
        labels = {text(raw.label): text(raw.label_value)} if raw.label else {}
        found.append(Counter(text(group.name), text(raw.name), text(raw.help), _KINDS.get(raw.kind, str(raw.kind)), labels,
                             values[at], tuple(buckets)))
        at += 1
    return found


def policy_of(trust: str | None, host_code: str | None) -> str | None:
    """The policy's name from its two names."""
    if trust is not None and host_code is not None:
        raise ValueError("host_code is an older name of trust: give one of the two")
    found = trust if trust is not None else host_code
    if found not in _POLICIES:
        name = "trust" if trust is not None else "host_code"
        raise ValueError(f"{name} is {found!r}, expected 'signed', 'all' or 'no-host-code'")
    return "no-host-code" if found == "none" else found


def _cache_folder(name: str) -> str:
    """Where something costly to make is kept; "" when there is no home."""
    folder = user_folder("XDG_CACHE_HOME", "~/.cache")
    return os.path.join(folder, name) if folder else ""


def _option_text(key: str, value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if not isinstance(value, (str, int, float)) and not hasattr(value, "__index__"):
        raise TypeError(f"option {key!r} is {value!r:.80}, expected a str, a number, a bool or a path")
    return str(int(value)) if isinstance(value, bool) else str(value)


class Device(Handle):
    """A device. Made by `Instance.device`; keeps its instance alive."""

    __slots__ = ("instance", "_info")
    _kind = "accrt_device"

    def __init__(self, handle, instance: Instance) -> None:
        """`handle`: a ctypes pointer of its kind, which is lent."""
        _held = need(instance, Instance)  # while it lends the handle
        if not isinstance(handle, _ffi.accrt_device_p):
            raise TypeError(f"a device is made by Instance.device, not of {describe(handle)}")
        super().__init__(retained(handle))
        self.instance = instance
        self._info = None

    @property
    def info(self) -> DeviceInfo:
        if self._info is None:
            raw = filled(_ffi.accrt_device_info, lib.accrt_device_info, self.handle)
            self._info = DeviceInfo(
                raw.name.decode(), raw.driver.decode(), raw.description.decode(), raw.arch.decode(),
                raw.memory_total_bytes, raw.concurrency, raw.min_alignment_bytes,
                bool(raw.flags & _ffi.ACCRT_DEVICE_FLAG_HOST_MEMORY), bool(raw.flags & _ffi.ACCRT_DEVICE_FLAG_TIMESTAMPS),
                bool(raw.flags & _ffi.ACCRT_DEVICE_FLAG_CALLER_RUNS),
                (raw.dlpack_device_type or 1, raw.dlpack_device_id), (raw.priority_least, raw.priority_greatest))
        return self._info

    @property
    def name(self) -> str:
        return self.info.name

    def enable_peer(self, peer: Device) -> None:
        """Lets work of this device reach memory of `peer`, one way. Raises UnsupportedError, a
        NotImplementedError, if there is no path."""
        both = (self.handle, need(peer, Device, "peer"))
        apart(lambda: check(lib.accrt_device_enable_peer(*both)))

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Device {self.name} ({self.info.description}, {self.info.arch})>"


_default_lock = allocate_lock()
_defaults: dict[str | None, Instance] = {}


def default_instance(trust: str | None = None, host_code: str | None = None) -> Instance:
    """The process's instance for a policy. It is made at first use, and again after it was closed.
    In a child that was forked after that, this raises ForkedError, as everything does."""
    trust = policy_of(trust, host_code)
    with _default_lock:
        if trust not in _defaults or _defaults[trust]._pointer is None:
            # What "no-host-code" is asked for needs no keys: a folder of them that is amiss is no
            # matter there.
            _defaults[trust] = Instance(trust, keys=() if trust == "no-host-code" else None)
        return _defaults[trust]


def caps() -> dict[str, object]:
    """What this library reads and runs, as a dictionary: the capabilities that a compiler
    targets."""
    raw = filled(_ffi.accrt_caps, lib.accrt_query_caps)
    out = {n: getattr(raw, n) for n, _ in _ffi.accrt_caps._fields_ if n not in ("struct_size", "reserved", "next")}
    out["cpu_arch"] = raw.cpu_arch.decode()
    return out
