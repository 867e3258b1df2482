"""`repr` never raises, and no attribute that somebody overwrites makes a call fail in ctypes: each
public class, whatever was done to it."""
from __future__ import annotations

import ctypes
import dataclasses
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

import accrt
from accrt import layouts, trust
from test_python_surface import compiled


def classes():
    """Every public class but exceptions and records, which are whole or not there."""
    found = [getattr(accrt, name) for name in accrt._HOME] + [v for m in (layouts, trust) for v in vars(m).values() if inspect.isclass(v)]
    found += [accrt.sandbox.SandboxSession] if hasattr(accrt, "sandbox") else []
    return sorted({c for c in found if inspect.isclass(c) and not dataclasses.is_dataclass(c) and c.__module__.startswith("accrt") and not issubclass(c, tuple)}, key=lambda c: c.__name__)


def shows(thing) -> None:
    for show in (repr, str, lambda t: getattr(t, "_repr_html_", str)() if not isinstance(t, type) else "", dir):
        assert show(thing) is not None


@pytest.fixture(scope="module")
def pack_path(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("pack"), "tests/fuzz/nothing.c")


@pytest.fixture
def everything(instance, device, program, golden_bundle, pack_path):
    """An object of every public class that a program comes by, by the class's name."""
    session = program.session()
    call = session.weighted.bind(np.ones(16, np.float32))
    weights = accrt.Weights(program.bundle)
    pack = accrt.KernelPack(instance, pack_path)
    return {
        "Instance": accrt.Instance(), "Device": accrt.Instance().device("host"), "Pool": accrt.Pool(device), "Buffer": accrt.Pool(device).buffer(64),
        "Stream": accrt.Stream(device), "Event": accrt.Event(device), "Semaphore": accrt.Semaphore(instance), "Bundle": accrt.Bundle(golden_bundle),
        "Program": accrt.Program(accrt.Bundle(golden_bundle, instance), device), "Session": session, "Call": call, "Function": session.weighted,
        "Commands": accrt.Commands(device), "Weights": weights, "Weight": accrt.Weight(weights, 0), "Budget": accrt.Budget(1),
        "Tensor": call(), "SigningKey": trust.SigningKey.generate(),
        "KernelPack": pack, "Kernel": pack.kernels()[0], "Launch": accrt.Launch(device, pack.kernels()[0]),
    }


def test_repr_of_open_closed_and_half_made(everything):
    for thing in everything.values():
        shows(thing)
    for name, thing in everything.items():
        if hasattr(thing, "close"):
            thing.close()
            assert "closed" in repr(thing), name
    for thing in everything.values():
        shows(thing)
    for kind in classes():
        shows(kind.__new__(kind))


def test_repr_without_what_it_stands_on(everything):
    """Its program, bundle, device are closed; it is not."""
    for name in ("Instance", "Device", "Bundle", "Program", "Weights", "Session"):
        everything[name].close()
        for thing in everything.values():
            shows(thing)


FORKED = """
import os, sys
import numpy as np
import accrt
instance = accrt.Instance(host_code="all")
device = instance.device("host")
program = accrt.Program(accrt.Bundle(sys.argv[1], instance), device)
session = program.session()
call = session.weighted.bind(np.ones(16, np.float32))
things = [instance, device, program.bundle, program, session, session.weighted, call, call(), accrt.Pool(device), accrt.Pool(device).buffer(4),
          accrt.Stream(device), accrt.Event(device), accrt.Semaphore(instance), accrt.Commands(device), accrt.Weights(program.bundle),
          accrt.Weight(accrt.Weights(program.bundle), 0)]
child = os.fork()
if child == 0:
    try:
        for thing in things:
            repr(thing), str(thing), dir(thing)
            getattr(thing, "_repr_html_", str)()
            if hasattr(thing, "close"):
                thing.close()
                repr(thing)
        os._exit(0)
    except BaseException as error:
        print(type(error), error, file=sys.stderr, flush=True)
        os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_repr_in_a_forked_child(golden_bundle):
    ran = subprocess.run([sys.executable, "-c", FORKED, str(golden_bundle)], capture_output=True, text=True, timeout=120, check=False,
                         env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(accrt.__file__))})
    assert ran.returncode == 0, ran.stderr


# ---- overwritten attributes

#: What a method is called with, where it needs something.
ARGUMENTS = {
    "wait": (1, 0.001), "signal": (1 << 40,), "record": "Event", "wait_event": "Event", "elapsed_ns": "Event", "buffer": (16,), "kernel": ("x",),
    "copy": (bytes(4), bytearray(4)), "fill": (bytearray(4), 0), "function": ("weighted",), "state": ("total",), "warmup": ("weighted",),
    "estimate": ("weighted",), "signature": ("weighted",), "function_targets": ("weighted",), "constant_bytes": ("w",), "swap_weights": ({},),
    "set": (0, np.ones(16, np.float32)), "index": ("x",), "marker": ("m",), "device": ("host",), "bind_state": ("total", None), "read": (0, 4),
    "component": (0,), "eventfd": (1,), "fail": ("x",), "__getitem__": (0,), "bind": (np.ones(16, np.float32),),
    "__call__": (np.ones(16, np.float32),), "dispatch": ("Kernel", (1,), None, None, 1, 1.0), "arguments": ([None, None, 1, 1.0], "Device"),
    "on": ("Stream", (1,)), "load": (), "run": (0.5,), "sign": (b"x",), "write": ("/nonexistent/key",), "enable_peer": "Device",
}
NEVER = {"close", "wait_async", "call_async", "load_driver", "program", "load_adapter", "borrowed", "open", "of_module", "wrap", "generate", "read_file",
         "write_public", "cancel"}


def uses(thing, everything):
    """Calls every public method and reads every property; gives what was raised."""
    for name in dir(type(thing)):
        if name in NEVER or name.startswith("_") and name not in ("__len__", "__call__", "__getitem__", "__repr__", "__iter__"):
            continue
        given = ARGUMENTS.get(name, ())
        given = (everything[given],) if isinstance(given, str) else given
        if name == "__call__" and isinstance(thing, (accrt.Call, accrt.Launch)):
            given = () if isinstance(thing, accrt.Call) else ("Stream", (1,))
        given = tuple(everything.get(g, g) if isinstance(g, str) else g for g in given)
        try:
            value = getattr(thing, name)
            if callable(value):
                value(*given)
        except Exception as error:  # noqa: BLE001
            yield name, error


@pytest.mark.parametrize("kind", ("Instance", "Device", "Pool", "Buffer", "Stream", "Event", "Semaphore", "Bundle", "Program", "Session", "Call",
                                  "Commands", "Weights", "Weight", "Tensor", "Function", "KernelPack", "Kernel", "Launch"))
def test_an_overwritten_attribute_is_no_failure_in_ctypes(kind, everything, monkeypatch):
    if "closed" in repr(everything[kind]):
        pytest.fail("it is closed")
    thing = everything[kind]
    names = [n for c in type(thing).__mro__ for n in getattr(c, "__slots__", ()) if not n.startswith("__")] + list(getattr(thing, "__dict__", ()))
    assert kind in ("Function",) or names
    wrong = (3, "x", None, object(), everything["Stream" if kind != "Stream" else "Event"])
    handle = everything["Buffer" if kind != "Buffer" else "Pool"].handle
    for name in names:
        if name == "_info" and kind == "Buffer":
            continue  # the record of where the memory is: there is no more to hold it against
        try:
            before = getattr(thing, name)
        except AttributeError:
            continue
        for value in (*wrong, handle) if name == "_pointer" else wrong:
            try:
                setattr(thing, name, value)
            except (AttributeError, TypeError):
                break  # it cannot be
            for method, error in uses(thing, everything):
                assert not isinstance(error, ctypes.ArgumentError), f"{kind}.{name} = {value!r}, then {method}: {error}"
            setattr(thing, name, before)


def test_what_it_says(everything):
    buffer, other = everything["Buffer"], everything["Stream"]
    for wrong in (3, other.handle, other):
        buffer._pointer = wrong
        with pytest.raises(TypeError, match="this Buffer is broken: its _pointer was set to"):
            other.copy(buffer, bytearray(64))
        assert "broken" in repr(buffer) or "Buffer" in repr(buffer)
