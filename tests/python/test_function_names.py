"""Every function of a bundle can be reached, whatever its name is, and the compiler says which
names are taken."""
from __future__ import annotations

import inspect

import numpy as np
import pytest

import accrt
from accrt.session import Session
from accrt.sandbox import SandboxSession

X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("sandbox", (False, True))
def test_items_are_functions_of_any_name(sandbox, echo_bundle):
    try:
        session = accrt.load(echo_bundle, sandbox=sandbox)
    except accrt.UnsupportedError as error:
        pytest.skip(str(error))
    for name in ("close", "reset", "2 of us", "f32"):
        assert name in session and name in list(session)
        assert np.asarray(session[name](X)).tolist() == X.tolist()
    assert np.asarray(session.f32(X)).tolist() == X.tolist()
    with pytest.raises(accrt.NotFoundError, match="no function 'f31'; did you mean 'f32'"):
        session["f31"]
    with pytest.raises(AttributeError, match="did you mean 'f32'"):
        session.f31
    with pytest.raises(TypeError, match="a function's name is 3, expected a str; there are 2 of us, bf16"):
        session[3]
    assert "f31" not in session and 3 not in session and (sandbox or inspect.ismethod(session.close))
    session.close()
    assert "close" in dir(session)


def test_a_session_that_is_called_names_its_functions(echo_bundle):
    with accrt.load(echo_bundle) as session, pytest.raises(TypeError, match=r"^a session is not called, its functions are: session\['2 of us'\]\(\.\.\.\), session\.bf16"):
        session(X)


def reserved():
    return {name for kind in (Session, SandboxSession) for name in dir(kind) if not name.startswith("_")} | {"bundle", "confinement", "program"}


def test_the_compiler_warns_of_names_that_are_taken():
    from accrt.compiler import Module, ir
    assert set(ir.RESERVED_NAMES) == reserved()
    for name in sorted(reserved()):
        with pytest.warns(UserWarning, match=rf'"{name}".*session\["{name}"\]'):
            Module().function(name)


def test_the_compiler_warns_of_names_that_are_no_attributes(recwarn):
    from accrt.compiler import Module
    m = Module()
    m.function("forward")
    m.function("close", internal=True)
    m.function("reset", prepare=True)
    assert not recwarn.list
    for name in ("_hidden", "layer 1", "class", "2nd"):
        with pytest.warns(UserWarning, match="session\\["):
            m.function(name)
