"""How fast batches come, task by task: batches of 32 per second, made one by one and through the feed.

Command:  python benchmarks/feeds.py
Minutes:  1
"""

import argparse
import itertools
import time

from kerastf import data

CASES = [
    ("embedded:corpus", "language", {"length": 128, "tokenizer": "characters"}),
    ("embedded:stories", "masked", {"length": 128, "tokenizer": "word"}),
    ("embedded:stories", "masked_pairs", {"length": 128, "tokenizer": "word"}),
    ("embedded:stories", "classification", {"length": 128, "tokenizer": "word"}),
    ("embedded:tagged_sentences", "tagging", {"length": 64, "tokenizer": "word"}),
    ("embedded:dates", "translation", {"length": 48, "tokenizer": "characters"}),
    ("embedded:analogies", "bidirectional", {"length": 16}),
    ("embedded:analogies", "word_vectors", {"subsample": 0}),
    ("embedded:digits", "images", {"shift": 1, "flip": True}),
]


def rate(batches, seconds):
    """Batches per second, the first one not counted."""
    next(batches)
    start = time.perf_counter()
    for count in itertools.count(1):
        next(batches)
        if (took := time.perf_counter() - start) > seconds:
            return count / took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each")
    seconds = parser.parse_args().seconds
    print(f"{'task':16} {'load, s':>8} {'alone, 1/s':>11} {'feed, 1/s':>10}   unit per second")
    for source, task, options in CASES:
        start = time.perf_counter()
        found = data.load(source, task=task, **options)
        took = time.perf_counter() - start
        alone = rate(found.train.batches.run(0), seconds)
        fed = rate(iter(found.train.dataset()), seconds)
        print(f"{task:16} {took:8.2f} {alone:11.0f} {fed:10.0f}   {fed * found.train.units:,.0f} {found.train.unit}")


if __name__ == "__main__":
    main()
