"""Translation from scratch, for any pair of parallel files or one TSV.

Command:  python recipes/translate.py --pairs fra-eng.tsv.gz --model transformer.small --epochs 6 --batch 256
          python recipes/translate.py --source train.de --target train.en --valid val.de val.en --test test.de test.en
Minutes:  3 to 4 for 6 epochs of 174,427 pairs on a GPU through JAX, most of it compiling
Expected: BLEU of held-out pairs as in docs/translation.md, all with `--rate 0.001`: 48.8 for transformer.small

Models: seq2seq.plain, seq2seq.context, seq2seq.bahdanau, conv_s2s.small, conv_s2s.multi30k, transformer.small, or any
other encoder-decoder.
"""

import argparse

import keras
from common import SPECIAL, batches, build, report, train, write

from kerastf import data, metrics, text


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", help="a .tsv or .tsv.gz: source, target")
    parser.add_argument("--source", help="a text file, one source per line")
    parser.add_argument("--target", help="a text file, one target per line")
    parser.add_argument("--valid", nargs=2, help="two files to validate on; otherwise 1 %% is held out")
    parser.add_argument("--test", nargs=2, help="two files to score; otherwise 1 %% is held out")
    parser.add_argument("--swap", action="store_true", help="translate the other way")
    parser.add_argument("--limit", type=int, help="use this many pairs only")
    parser.add_argument("--model", default="transformer.small", help="which model (transformer.small)")
    parser.add_argument("--vocab", type=int, default=8000, help="tokens per side (8000)")
    parser.add_argument(
        "--tokenizer", default="word", choices=("word", "bpe", "wordpiece"), help="kind of tokens (word)"
    )
    parser.add_argument("--epochs", type=int, default=20, help="epochs (20)")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    parser.add_argument("--batch", type=int, default=128, help="pairs per batch (128)")
    parser.add_argument("--rate", type=float, help="highest learning rate (0.001; seq2seq 0.002)")
    parser.add_argument("--dropout", type=float, default=0.2, help="dropout (0.2)")
    parser.add_argument("--smoothing", type=float, default=0.1, help="label smoothing (0.1)")
    parser.add_argument("--max-length", type=int, default=48, help="longest text in tokens (48)")
    parser.add_argument("--beams", type=int, default=5, help="beams (5)")
    parser.add_argument("--save", help="where to save the model, a .keras file")
    parser.add_argument("--out", help="file to append the figures to")
    options = parser.parse_args()
    options.rate = options.rate or (2e-3 if options.model.startswith("seq2seq") else 1e-3)
    return options


def read(options):
    """Pairs for training, validation and test."""
    known = data.read_pairs(options.pairs) if options.pairs else data.read_pairs(options.source, options.target)
    parts = [data.read_pairs(*files) if files else None for files in (options.valid, options.test)]
    for i, part in enumerate(parts):
        if part is None:
            known, parts[i] = data.split(known, 0.01, seed=i, key=lambda pair: pair[0])
    found = [known[: options.limit], *parts]
    return [[(t, s) for s, t in part] for part in found] if options.swap else found


def main():
    options = arguments()
    keras.utils.set_random_seed(1)
    train_pairs, valid_pairs, test_pairs = read(options)
    more = {"min_count": 2, "lowercase": True} if options.tokenizer == "word" else {}
    source_tokenizer, tokenizer = (
        text.train(options.tokenizer, side, vocab_size=options.vocab, special_tokens=SPECIAL, **more)
        for side in zip(*train_pairs, strict=True)
    )
    model = build(
        options.model, source_tokenizer, tokenizer, max_length=options.max_length, dropout=options.dropout,
        label_smoothing=options.smoothing,
    )  # fmt: skip
    print(f"{options.model}: {model.count_params():,} parameters, {len(train_pairs):,} pairs")
    history, seconds = train(
        model, train_pairs, valid_pairs, epochs=options.epochs, batch_size=options.batch, rate=options.rate,
        minutes=options.minutes, max_length=options.max_length,
    )  # fmt: skip
    if options.save:
        model.save(options.save)
    # One source may have several right translations: they are all references.
    references: dict[str, list[str]] = {}
    for source, target in test_pairs:
        references.setdefault(source, []).append(target.lower() if options.tokenizer == "word" else target)
    sources = list(references)
    wanted = list(references.values())
    sizes = {"batch_size": options.batch, "max_length": options.max_length}
    scores = {"test_perplexity": model.evaluate(batches(model, test_pairs, **sizes), return_dict=True)["perplexity"]}
    for name, beams in (("greedy", 1), (f"beam_{options.beams}", options.beams)):
        found = write(model, sources, max_length=options.max_length - 1, num_beams=beams)
        scores[f"bleu_{name}"] = metrics.corpus_bleu(found, wanted)
    for source, output, right in list(zip(sources, found, wanted, strict=True))[:4]:
        print(f"  {source!r} -> {output!r} ({right[0]!r})")
    report(
        options.out, model=options.model, parameters=model.count_params(), epochs=len(history["loss"]),
        minutes=seconds / 60, valid_perplexity=min(history["val_perplexity"]), **scores,
    )  # fmt: skip


if __name__ == "__main__":
    main()
