"""Reverse a string: at the lengths seen, and at longer ones for each position block.

Command:  python recipes/reverse.py
Minutes:  3 to 4 for each model on two cores, 1 to 2 on a GPU through JAX
Expected: all right at lengths 3 to 8 for seq2seq and for sinusoidal, learned and rotary positions;
          longer words as in docs/translation.md
"""

import argparse
import random
import string

import keras
from common import SPECIAL, build, report, train, write

from kerastf import metrics
from kerastf.text import CharacterTokenizer


def words(count, shortest, longest, seed):
    rng = random.Random(seed)
    rows = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(shortest, longest))) for _ in range(count)]
    return [(row, row[::-1]) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--positions", default="sinusoidal,learned,rotary,alibi,none", help="position blocks to compare"
    )
    parser.add_argument("--epochs", type=int, default=12, help="epochs each (12)")
    options = parser.parse_args()
    tokenizer = CharacterTokenizer(string.ascii_lowercase, special_tokens=SPECIAL)
    cases = [("seq2seq", {"dim": 48, "units": 96})]
    cases += [
        ("transformer", {"dim": 64, "num_layers": 2, "num_heads": 4, "norm_order": "pre", "position": p})
        for p in options.positions.split(",")
    ]
    for name, sizes in cases:
        keras.utils.set_random_seed(1)
        model = build(name, tokenizer, tokenizer, max_length=24, dropout=0.0, **sizes)
        _, seconds = train(
            model, words(20_000, 3, 8, 1), words(500, 3, 8, 2), epochs=options.epochs, batch_size=128, rate=4e-3
        )
        found = {}
        for longest in (8, 10, 12):
            test = words(500, 3 if longest == 8 else longest - 1, longest, 3)
            outputs = write(model, [s for s, _ in test], max_length=16, batch_size=250)
            found[f"up_to_{longest}"] = metrics.exact_match(outputs, [t for _, t in test])
        report(None, model=name, position=sizes.get("position", "-"), minutes=seconds / 60, **found)


if __name__ == "__main__":
    main()
