"""transformers on one GPU, as serve_throughput.py's shape 1b: one request, a static cache, and a
step that torch.compile has made. It prints the time between tokens, of 5 runs. The part `peer` of
serve_throughput.py measures the same in its own run.

    python3 bench/gpu/static_cache_peer.py [--mode reduce-overhead]

The step alone is compiled, and the loop around it is this file's: model.generate compiles anew for
each length of its cache, and takes more than a minute for that."""

import argparse
import pathlib
import statistics
import sys
import time

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import serve_throughput  # noqa: E402

PROMPT, NEW, SKIPPED = 128, 400, 21


def model_of(shape):
    config = serve_throughput.config_of(shape)
    theta = config.pop("rope_theta")
    kept = {key: value for key, value in config.items() if key not in ("torch_dtype", "architectures")}
    found = transformers.LlamaConfig(**kept, rope_parameters={"rope_type": "default", "rope_theta": theta})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(found).eval()


class Peer:
    def __init__(self, model, mode):
        self.model, self.cache = model, transformers.StaticCache(config=model.config, max_cache_len=1024)
        self.ids = torch.randint(1000, 120000, (1, PROMPT), device="cuda")
        self.step = torch.compile(self.next_token, mode=mode)

    def next_token(self, tokens, positions):
        out = self.model(tokens, position_ids=positions.view(1, -1), cache_position=positions, past_key_values=self.cache, use_cache=True)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def between_tokens_ms(self, count):
        self.cache.reset()
        token = self.next_token(self.ids, torch.arange(PROMPT, device="cuda"))
        position = torch.tensor([PROMPT], device="cuda")
        for i in range(count):
            if i == SKIPPED:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            torch.compiler.cudagraph_mark_step_begin()
            token = self.step(token, position).clone()
            position += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / (count - SKIPPED) * 1e3


@torch.no_grad()
def measured(model, mode):
    """Milliseconds between tokens, of 5 runs."""
    peer = Peer(model, mode)
    for _ in range(2):
        peer.between_tokens_ms(2 * SKIPPED)
    return [peer.between_tokens_ms(NEW) for _ in range(5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    mode = parser.parse_args().mode
    begin = time.perf_counter()
    found = measured(model_of("1b"), mode)
    print(f"transformers, static cache, torch.compile({mode}): {statistics.median(found):.3f} ms ({min(found):.3f} to {max(found):.3f}), {time.perf_counter() - begin:.1f} s in all")


if __name__ == "__main__":
    main()
