"""Families beside the logits that Hugging Face's own code computed of them (family_models.py):
ragged batches of prompts in pieces and of single tokens, from folders and from GGUF files; what a
configuration asks for and a family does not do is refused by name."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import family_models as family
import kernel_harness as kh
from accrt import models
from accrt.models import Refused, _registry
from accrt.models._config import MEANINGFUL
from test_model_folders import JUNK
from test_step_programs import OPTIONS, opened, run

RECORDED = family.recorded()


def compare(program, page_size, name, atol):
    rng, ids, logits = np.random.default_rng(0), family.ids_of(family.CONFIGS[name]), family.expected(name)
    for row, position, result in run(program, page_size, ids, rng):
        np.testing.assert_allclose(result[list(family.COLUMNS)], logits[row][position], rtol=0, atol=atol, err_msg=f"row {row}, position {position}")


@pytest.mark.parametrize("name", family.CONFIGS)
def test_a_folder(tmp_path, name):
    folder, _weights = family.write(tmp_path / "m", name)
    compare(*opened(folder, OPTIONS), name, 2e-4)


@pytest.mark.parametrize("name", family.GGUF)
def test_a_gguf_file(tmp_path, name):
    family.write_gguf(tmp_path / "m.gguf", name)
    compare(*opened(tmp_path / "m.gguf", OPTIONS), name, 2e-4)


@pytest.mark.parametrize("name", family.CONFIGS)
def test_junk_in_a_configuration_is_refused_or_taken(tmp_path, name):
    config, rng = family.CONFIGS[name], random.Random(f"{kh.SEED} {name}")
    folder, _weights = family.write(tmp_path / "m", name)
    inner = "text_config" if "text_config" in config else None
    keys = sorted({*family.text_of(config), *MEANINGFUL})
    for _ in range(60):
        changed = {rng.choice(keys): rng.choice(JUNK) for _ in range(rng.choice([1, 1, 2]))}
        text = {**family.text_of(config), **changed}
        (folder / "config.json").write_text(json.dumps({**config, inner: text} if inner else text))
        try:
            _registry.decoder(models.read(folder)).build()
        except Refused as refused:
            assert refused.points and all(refused.points)


def test_every_configuration_was_recorded():
    assert sorted(RECORDED) == sorted(family.CONFIGS)
