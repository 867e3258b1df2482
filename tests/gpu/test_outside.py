"""Weights of files outside the bundle, on the device: tests/python/test_placing.py."""
from __future__ import annotations

import os
import pathlib
import sys

os.environ.setdefault("ACCRT_DEVICE", "cuda:0")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from test_placing import *  # noqa: E402, F403
