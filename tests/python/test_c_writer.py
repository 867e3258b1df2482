"""The C bundle writer, held against Python's: the same content gives the same bytes from both, in whatever order it is declared."""

from __future__ import annotations

import os
import pathlib
import random

import pytest

import writer_replay

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("ACCRT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
BUILD = pathlib.Path(os.environ.get("ACCRT_TEST_BUILD", ROOT / "build"))
#: One of the test bundles has a weight that does not match its digest: that is not made again.
FILES = sorted((ROOT / "tests" / "golden").glob("0.*/*.accx")) + sorted(BUILD.glob("models/*.accx")) + sorted(
    set(BUILD.glob("tests/bundles/*.accx")) - {BUILD / "tests/bundles/damaged.accx"})  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_bundles_are_made_again(path):
    print("seed", SEED)
    data = path.read_bytes()
    assert writer_replay.rewritten(data, random.Random(SEED)) == data
