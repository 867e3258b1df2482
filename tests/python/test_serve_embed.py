"""examples/serve_embed: a C program that serves a bundle by itself says what accrt.LLM says."""

import os
import pathlib
import subprocess

import kernel_harness as kh
import pytest
import serve_http

serve_http.need_server()

import accrt  # noqa: E402
from accrt import models  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "examples/bytelm/weights.safetensors"
PROGRAM = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so")).parents[1] / "bin/serve_embed"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="examples/serve_embed is not built")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return models.open(WEIGHTS, targets=kh.host_targets()[-1:], output=tmp_path_factory.mktemp("embed") / "bytelm.accx").bundle


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, env={**os.environ, "ACCRT_TRUST": "all"})


def test_it_prints_what_both_prompts_give(bundle):
    prompts = ["In the beginning ", "And he said, "]
    done = run(bundle, WEIGHTS, *prompts)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with accrt.LLM(bundle, weights=str(WEIGHTS), kv_bytes=16 << 20) as llm:
        expected = llm.generate(prompts, max_tokens=200, temperature=0)
    for number, output in enumerate(expected, 1):
        lines = [line[4:] for line in done.stdout.splitlines() if line.startswith(f"{number} | ")]
        assert "".join(lines) == output.text.replace("\n", "")


def test_what_is_wrong_is_said(bundle, tmp_path):
    assert run().returncode == 2
    missing = run(tmp_path / "none.accx", WEIGHTS)
    assert missing.returncode == 1 and "ACCRT_ERROR_NOT_FOUND" in missing.stderr
    long = run(bundle, WEIGHTS, "", "x")
    assert long.returncode == 1 and "the prompt has no tokens" in long.stderr
