"""Instance.counters: the runtime's own group, and groups that programs add."""
from __future__ import annotations

import ctypes
import math
import threading

import pytest

import accrt
from accrt import _ffi
from accrt._library import check, lib, struct


def by_name(counters, name):
    return {tuple(c.labels.values()): c for c in counters if c.name == name}


def test_the_runtime_counts_memory():
    instance = accrt.Instance()
    before = by_name(instance.counters(), "accrt:memory_used_bytes")
    assert set(before) == {("host",), ("device",)} and all(c.kind == "gauge" and c.group == "accrt_instance" and c.help for c in before.values())
    kept = accrt.Pool(instance.device()).buffer(400_000)
    after = by_name(instance.counters(), "accrt:memory_used_bytes")
    assert after[("host",)].value - before[("host",)].value >= 400_000
    assert by_name(instance.counters(), "accrt:buffers")[("host",)].value >= 1
    assert after[("device",)].value == 0
    del kept


class Group:
    """A group of a program's own."""

    def __init__(self, instance, numbers):
        self.instance, self.identity = instance, ctypes.c_uint64()
        bounds = (ctypes.c_double * 2)(1, 2.5)
        self.rows = (_ffi.accrt_counter * 2)()
        for row, name in zip(self.rows, (b"test:sizes", b"test:many_total")):
            row.name, row.help = name, b"A test's."
        self.rows[0].kind, self.rows[0].bounds, self.rows[0].bound_count = _ffi.ACCRT_COUNTER_HISTOGRAM, bounds, 2
        self.rows[1].kind, self.rows[1].label, self.rows[1].label_value = _ffi.ACCRT_COUNTER_TOTAL, b"of", b"all"

        def read(_self, values):
            for i, number in enumerate(numbers):
                values[i] = number

        self.read = dict(_ffi.accrt_counter_group._fields_)["read"](read)
        group = struct(_ffi.accrt_counter_group, name=b"test", counters=self.rows, counter_count=2,
                       counter_size_bytes=ctypes.sizeof(_ffi.accrt_counter), read=self.read)
        check(lib.accrt_counters_add(instance.handle, ctypes.byref(group), ctypes.byref(self.identity)))

    def remove(self):
        check(lib.accrt_counters_remove(self.instance.handle, self.identity))


def test_a_group_of_a_program():
    instance = accrt.Instance()
    group = Group(instance, [3, 0, 4, 60.5, 7])
    sizes, many = instance.counters()[-2:]
    assert sizes == ("test", "test:sizes", "A test's.", "histogram", {}, 60.5, ((1, 3), (2.5, 3), (math.inf, 7)))
    assert many == ("test", "test:many_total", "A test's.", "total", {"of": "all"}, 7, ())
    group.remove()
    assert not [c for c in instance.counters() if c.group == "test"]
    with pytest.raises(accrt.NotFoundError):
        group.remove()


def test_threads_read_at_once():
    instance, failures = accrt.Instance(), []
    group = Group(instance, [1, 1, 1, 4, 9])

    def read():
        for _ in range(50):
            names = [c.name for c in instance.counters()]
            if names[-2:] != ["test:sizes", "test:many_total"]:
                failures.append(names)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    group.remove()
