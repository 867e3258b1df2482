"""docs/python-guide.md: its tables are true. (Its examples run in test_docs.py.)"""
from __future__ import annotations

import asyncio
import builtins
import pathlib
import re
import subprocess

import numpy as np
import pytest

import accrt
import accx_tool
from accrt import instance, trust
from safetensors_file import safetensors_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCX = accx_tool.ACCX
BUNDLE = ROOT / "build/models/bytelm.accx"


def table(head: str) -> list[list[str]]:
    """The rows of the table with this head."""
    text = (ROOT / "docs/python-guide.md").read_text()
    rows = re.search(rf"^\| {head} \|.*\n\| --- .*\n((?:\|.*\n)+)", text, re.M)[1]
    return [[cell.strip() for cell in row.strip("|\n").split(" | ")] for row in rows.splitlines()]


WANTED = dict(table("want"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the rows name, in a folder of its own."""
    if not BUNDLE.exists():
        pytest.skip("build/models/bytelm.accx was not built")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCRT_TRUST", "all")
    monkeypatch.setattr(instance, "_defaults", {})  # made anew, with that policy
    pathlib.Path("new.safetensors").write_bytes(safetensors_bytes({"model.norm.weight": ("BF16", np.full(256, 0x3F80, np.uint16))}))
    array = accrt.Weights("new.safetensors")["model.norm.weight"]
    pathlib.Path("model.safetensors").write_bytes(safetensors_bytes({"w": np.ones((4, 8), np.float32)}))
    return {"accrt": accrt, "asyncio": asyncio, "np": np, "path": str(BUNDLE), "token": np.array([65], np.uint8), "y": np.empty((1, 256), np.float32), "array": array}


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("want", WANTED)
def test_what_to_write(want, place):
    from accrt import compiler
    model = accrt.load(place["path"], trust="all")
    own = model.program.device.instance
    a, b = accrt.Semaphore(own, 1), accrt.Semaphore(own)
    names = {**place, "model": model, "program": model.program, "a": a, "b": b, "call": model.decode.bind(place["token"], 4)}
    if "encrypted.accx" in WANTED[want]:
        if not ACCX.exists():
            pytest.skip("the tool was not built")
        subprocess.run([ACCX, "keygen", "--secret", "--output", "weights.key"], check=True, capture_output=True)
        try:
            trust.encrypt(place["path"], "encrypted.accx", trust.read_secret_key("weights.key"))
        except accrt.UnsupportedError as error:
            pytest.skip(str(error))
    if "bare.accx" in WANTED[want]:
        m = compiler.Module()
        f = m.function("f")
        f.result("y", f.input("x", "f32", [2, 8]).linear(m.external("w", "f32", [4, 8], by_name=True)))
        compiler.compile(m, "bare.accx")
    code = [span for span in spans(WANTED[want]) if "(" in span or "=" in span or "[" in span]
    assert code
    for line in code:
        if "sandbox=True" in line:
            try:
                accrt.load(place["path"], sandbox=True).close()
            except accrt.UnsupportedError as error:
                pytest.skip(str(error))
        source = f"async def main():\n    {line}\nasyncio.run(main())" if "await" in line else line
        exec(compile(source, "docs/python-guide.md", "exec"), names)  # noqa: S102
    if want.startswith("ordered"):
        b.wait(1, 10)


REFUSED = {
    "a handle of the wrong kind": lambda t: accrt.Semaphore(t["device"]),
    "a range outside a buffer or an array": lambda t: t["stream"].copy(t["buffer"], bytearray(4), 4, source_offset=61),
    "a number that does not fit the C type": lambda t: accrt.Pool(t["device"]).buffer(1 << 64),
    "a read-only array that would be written": lambda t: t["stream"].copy(t["buffer"], bytes(64)),
    "elements whose size is not that of `dtype=`": lambda t: t["call"].set("x", np.ones(16, np.uint8), dtype="f32"),
    "a masked array": lambda t: t["call"].set("x", np.ma.ones(16, np.float32)),
    "an attribute of the package's objects that was overwritten": lambda t: (setattr(t["buffer"], "_pointer", 3), t["stream"].fill(t["buffer"], 0)),
}


def test_what_is_refused(device, program):
    rows = dict(table("what is wrong"))
    assert set(rows) == set(REFUSED)
    things = {"device": device, "buffer": accrt.Pool(device).buffer(64), "stream": accrt.Stream(device),
              "call": program.session().weighted.bind(np.ones(16, np.float32))}
    for row, cell in rows.items():
        with pytest.raises(Exception) as caught:
            REFUSED[row](things)
        assert isinstance(caught.value, getattr(builtins, spans(cell)[0])), row
        if "names both kinds" in cell:
            assert "Device" in str(caught.value) and "Instance" in str(caught.value)

