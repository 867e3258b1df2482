"""States that begin as zeros take no memory on hosts before they are touched, and are zeros
wherever their memory comes from."""

import numpy as np

import accrt
from accrt.compiler import Module, SymbolClass, compile

MIB = 1 << 20


def program():
    m = Module("lazy")
    rows = m.symbol("rows", SymbolClass.SESSION, minimum=1, maximum=1 << 20)
    cache = m.state("cache", "f32", [rows, 1024])
    f = m.function("put")
    f.input("x", "f32", [1, 1024]).state_scatter(cache, f.input("slot", "i32", [1]))
    g = m.function("get")
    g.result("y", g.state_gather(cache, g.input("slots", "i32", [3])))
    # whose pool has nothing that was used before
    return accrt.Bundle(compile(m, targets=["host"]), accrt.Instance(host_code="all")).program()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_state_takes_memory_where_it_is_touched():
    made = program()
    before = resident()
    session = made.session({"rows": 128 << 10})  # 512 MiB
    assert resident() - before < 64 * MIB
    session.put(np.full((1, 1024), 7, np.float32), np.array([100000], np.int32))
    found = session.get(np.array([0, 100000, (128 << 10) - 1], np.int32)).numpy()
    assert not found[0].any() and (found[1] == 7).all() and not found[2].any()
    assert resident() - before < 64 * MIB


def test_memory_of_a_session_that_is_gone_is_zeros_again():
    made = program()
    for rows in (100, 5000, 100, 20000):
        session = made.session({"rows": rows})
        slots = np.array([0, rows // 2, rows - 1], np.int32)
        assert not session.get(slots).numpy().any()
        for slot in slots:
            session.put(np.full((1, 1024), 7, np.float32), np.array([slot], np.int32))
        assert session.get(slots).numpy().all()
        session.reset()
        assert not session.get(slots).numpy().any()
        session.put(np.full((1, 1024), 7, np.float32), np.array([0], np.int32))
        session.close()
