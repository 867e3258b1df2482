"""python -m accrt.models MODEL -o model.accx: a model's folder or GGUF file made into a bundle."""

from __future__ import annotations

import os
import sys
from typing import List, Optional

from .._arguments import Parser
from . import Options, Refused, open as open_model


def main(arguments: Optional[List[str]] = None) -> int:
    parser = Parser(prog="python -m accrt.models", description=__doc__)
    parser.add_argument("model", help="a folder with config.json, or a .gguf file")
    parser.add_argument("-o", "--output", help="where the bundle is written (default: the user's cache)")
    parser.add_argument("--target", action="append", help="host (this machine), x86-64-v3, cuda, ... (default: all that can be built here, which may take minutes); may be given several times")
    parser.add_argument("--kv-type", default="", help="type of keys and values: f32, f16, bf16 or fp8 (default: 16 bits if the weights have 16 bits)")
    parser.add_argument("--max-position", type=int, default=0, help="tokens of the longest sequence (default: what the model was made for)")
    parser.add_argument("--page-size", type=int, default=0, help="tokens on a page of the KV cache (default: 16, and more for models whose layers have scans)")
    parser.add_argument("--adapters", type=int, default=0, help="places for LoRA adapters (default: 0)")
    parser.add_argument("--max-rank", type=int, default=16, help="the largest rank of adapters (default: 16)")
    parser.add_argument("--adapter-targets", default="", help="ends of the names of the products that adapters change, as q_proj,v_proj (default: all)")
    parser.add_argument("--batch-invariant", action="store_true", help="a request's results have the same bits alone and beside others, on GPUs too")
    given = parser.parse_args(arguments)
    targets = tuple(filter(None, given.adapter_targets.split(",")))
    options = Options(
        page_size=given.page_size, kv_type=given.kv_type, max_position=given.max_position, adapters=given.adapters, max_rank=given.max_rank,
        adapter_targets=targets, batch_invariant=given.batch_invariant,
    )  # fmt: skip
    try:
        opened = open_model(given.model, options=options, targets=given.target, output=given.output, progress=_say)
    except Refused as refused:
        print(f"{refused.what} is refused:", *(f"  - {point}" for point in refused._lines()), sep="\n", file=sys.stderr)
        return 1
    except (OSError, LookupError, ValueError, RuntimeError) as error:
        # RuntimeError: no such target, or no compiler
        text = str(error)
        named = text.startswith((f"{given.model}:", f"{os.path.abspath(given.model)}:"))
        print(text if named else f"{given.model}: {text}", file=sys.stderr)
        return 1
    print(opened.bundle)
    return 0


def _say(what: str, seconds: float) -> None:
    print(f"{seconds:8.2f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
