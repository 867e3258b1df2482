#!/usr/bin/env python3
"""Continues a text with bytelm, printing each byte as it is sampled.

    python3 examples/bytelm/generate.py build/models/bytelm.accx [--prompt TEXT] [--bytes N] [--temperature T] [--seed S]
"""

import argparse
import sys
import time

import numpy as np

import accrt

PROMPT = "And it came to pass in those days, that "


def sample(logits, temperature, random):
    """A byte, drawn in proportion to exp(logits / temperature); the best one when the temperature
    is 0."""
    if temperature <= 0:
        return int(np.argmax(logits))
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return int(random.choice(256, p=weights / weights.sum()))


def continued(model, prompt, count, temperature, random):
    """Yields `count` bytes after the prompt, each as soon as it is known."""
    tokens = np.frombuffer(prompt, np.uint8)
    logits = np.asarray(model.prefill(tokens, 0))[-1]
    for position in range(len(tokens), len(tokens) + count):
        byte = sample(logits, temperature, random)
        yield byte
        if position + 1 < len(tokens) + count:
            logits = np.asarray(model.decode(np.array([byte], np.uint8), position))[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--bytes", type=int, default=400, help="how many to add")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()

    prompt = arguments.prompt.encode("ascii", "replace")
    model = accrt.load(arguments.bundle)
    random = np.random.default_rng(arguments.seed)
    sys.stdout.write(prompt.decode())
    sys.stdout.flush()
    started = time.perf_counter()
    for byte in continued(model, prompt, arguments.bytes, arguments.temperature, random):
        sys.stdout.write(chr(byte) if byte < 128 else "?")
        sys.stdout.flush()
    elapsed = time.perf_counter() - started
    print(f"\n\n{arguments.bytes} bytes in {elapsed:.2f} s, {arguments.bytes / elapsed:.0f} a second")


if __name__ == "__main__":
    main()
