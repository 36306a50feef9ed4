"""Human-written dates to ISO, with the alignment drawn.

Command:  python recipes/dates.py
Minutes:  at most 5 on two cores
Expected: at least 99.5 % of unseen dates exactly right
"""

import argparse

import keras
from common import SPECIAL, build, report, train, write

from kerastf import data, plots
from kerastf.text import CharacterTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="seq2seq.bahdanau", help="which model (seq2seq.bahdanau)")
    parser.add_argument("--count", type=int, default=30_000, help="dates to learn from (30000)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs (5)")
    parser.add_argument("--minutes", type=float, default=4.5, help="stop after so many (4.5)")
    parser.add_argument("--out", default="dates.png", help="picture of an alignment (dates.png)")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    known = data.dates(options.count, seed=1)
    seen = {source for source, _ in known}
    unseen = [pair for pair in data.dates(2500, seed=2) if pair[0] not in seen][:2000]
    source_tokenizer, tokenizer = (
        CharacterTokenizer.from_text("".join(side), special_tokens=SPECIAL) for side in zip(*known, strict=True)
    )
    sizes = {"dim": 48, "units": 96} if options.model.startswith("seq2seq") else {}
    model = build(options.model, source_tokenizer, tokenizer, max_length=16, dropout=0.05, **sizes)
    print(f"{options.model}: {model.count_params():,} parameters")
    _, seconds = train(
        model, known, unseen[:500], epochs=options.epochs, batch_size=64, rate=4e-3, minutes=options.minutes
    )
    found = write(model, [s for s, _ in unseen], max_length=12, batch_size=250)
    wrong = [(s, t, f) for (s, t), f in zip(unseen, found, strict=True) if t != f]
    report(None, model=options.model, exact=1 - len(wrong) / len(unseen), unseen=len(unseen), minutes=seconds / 60)
    for source, target, output in wrong[:5]:
        print(f"  wrong: {source!r} is {target}, not {output!r}")
    source, target = next(pair for pair in unseen if sum(c.isalpha() for c in pair[0]) > 6)  # with words in it
    weights = model.attention_weights(
        [source_tokenizer.encode(source)], [[tokenizer.start_id, *tokenizer.encode(target)[:-1]]]
    )
    weights = keras.ops.convert_to_numpy(weights[-1])[0].mean(axis=0)
    plots.attention_map(
        weights, list(target), list(source), path=options.out, title="Where each part of the date was found"
    )
    print(f"drew {options.out}")


if __name__ == "__main__":
    main()
