#!/usr/bin/env python3
"""Semantic search over a few sentences: ranks them by how near in meaning they are to a question.

    python3 examples/minilm/search.py build/models/minilm.accx ["your question" ...]
"""

import argparse
import time

import numpy as np

import accrt
import model

SENTENCES = """\
A man is eating a plate of spaghetti in a small restaurant.
The committee approved the budget for the new hospital.
Heavy rain flooded several streets in the old town last night.
She repaired the bicycle's brakes before riding to work.
The orchestra rehearsed the symphony until late in the evening.
Wheat prices rose after the driest spring in forty years.
The kitten fell asleep in a basket of freshly washed towels.
Engineers tested the bridge with trucks full of sand.
Astronomers found a planet that circles two suns.
The recipe asks for two eggs, flour and a pinch of salt.
Our flight was delayed because of fog over the runway.
He learned to play the violin when he was seven years old.
The bakery on the corner sells bread that is still warm.
Researchers describe a vaccine that needs no refrigeration.
The goalkeeper saved a penalty in the last minute.
Old letters in the attic told the story of their grandparents.""".splitlines()

QUESTIONS = [
    "Where can I buy something fresh to eat?",
    "bad weather and its consequences",
    "someone who makes music",
    "What is new in science and medicine?",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("-n", "--matches", type=int, default=3)
    arguments = parser.parse_args()

    started = time.perf_counter()
    # the bundle holds machine code; its signature is yours
    encode = accrt.load(arguments.bundle).encode
    tokenizer = model.tokenizer()
    known = np.asarray(encode(*model.encode_batch(tokenizer, SENTENCES)))
    print(f"{len(SENTENCES)} sentences indexed in {1000 * (time.perf_counter() - started):.0f} ms, loading included\n")
    for question in arguments.questions:
        started = time.perf_counter()
        vector = np.asarray(encode(*model.encode_batch(tokenizer, [question])))[0]
        scores = known @ vector
        elapsed = time.perf_counter() - started
        print(f"{question}   ({1000 * elapsed:.1f} ms)")
        for index in np.argsort(-scores)[: arguments.matches]:
            print(f"  {scores[index]:6.3f}  {SENTENCES[index]}")
        print()


if __name__ == "__main__":
    main()
