"""Grapheme to phoneme: the pronunciation of a word, stress removed, 10 % of the words held out.

Command:  python recipes/g2p.py --dictionary cmudict.dict
Minutes:  about 5 for 13 epochs on a GPU through JAX, most of it compiling
Expected: word error rate 29.2 % with 5 beams (published for a Transformer of width 256: 30.2 %)
"""

import argparse
import re

import keras
from common import SPECIAL, build, report, train, write

from kerastf import data, metrics, text
from kerastf.text import CharacterTokenizer


def read(path):
    """Words with their pronunciations, each a string of phonemes without stress."""
    found = {}
    for line in text.read_lines(path):
        line = line.partition("#")[0].strip()
        if line and not line.startswith(";"):
            word, _, phonemes = line.partition(" ")
            word = re.sub(r"\(\d+\)$", "", word).lower()
            found.setdefault(word, []).append(re.sub(r"\d", "", phonemes).strip())
    return {word: list(dict.fromkeys(all_)) for word, all_ in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dictionary", required=True, help="a file of lines: WORD PHONEME PHONEME ...")
    parser.add_argument("--model", default="transformer", help="which model (transformer)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs (20)")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    parser.add_argument("--batch", type=int, default=256, help="words per batch (256)")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate (0.001)")
    parser.add_argument("--beams", type=int, default=5, help="beams (5)")
    parser.add_argument("--limit", type=int, help="use this many words only")
    parser.add_argument("--out", help="file to append the figures to")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    known = read(options.dictionary)
    words, held_out = data.split(sorted(known)[: options.limit], 0.1, seed=1)
    pairs = [(word, p) for word in words for p in known[word]]
    pairs, valid = data.split(pairs, 0.01, seed=2, key=lambda pair: pair[0])
    source_tokenizer = CharacterTokenizer.from_text("".join(known), special_tokens=SPECIAL)
    tokenizer = text.train("word", [p for _, p in pairs], vocab_size=60, special_tokens=SPECIAL, lowercase=False)
    sizes = {"dim": 256, "num_layers": 3, "num_heads": 4, "mlp_dim": 1024, "norm_order": "pre"}
    sizes = sizes if options.model == "transformer" else {}
    model = build(options.model, source_tokenizer, tokenizer, max_length=40, dropout=0.1, label_smoothing=0.1, **sizes)
    print(f"{options.model}: {model.count_params():,} parameters, {len(pairs):,} pronunciations to learn from")
    _, seconds = train(
        model, pairs, valid, epochs=options.epochs, batch_size=options.batch, rate=options.rate,
        minutes=options.minutes,
    )  # fmt: skip
    for beams in (1, options.beams):
        found = write(model, held_out, max_length=36, batch_size=512, num_beams=beams)
        wrong = sum(f not in known[word] for word, f in zip(held_out, found, strict=True))
        edits = metrics.error_rate(found, [known[w][0] for w in held_out])
        report(
            options.out, model=options.model, parameters=model.count_params(), beams=beams, words=len(held_out),
            word_error_rate=wrong / len(held_out), phoneme_error_rate=edits, minutes=seconds / 60,
        )  # fmt: skip


if __name__ == "__main__":
    main()
