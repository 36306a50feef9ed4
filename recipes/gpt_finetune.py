"""Pre-trains a small GPT on unlabelled text, then fine-tunes it on few labels beside the same model from scratch.

Command:  python recipes/gpt_finetune.py                                   (generated opinions)
          python recipes/gpt_finetune.py --folder surnames                 (FOLDER/CLASS.txt, one text per line)
          python recipes/gpt_finetune.py --file reviews.jsonl              (text and label; .csv and .tsv too)
          python recipes/gpt_finetune.py --file reviews.jsonl --unlabelled more.txt
Minutes:  7 to 9 for three seeds on a GPU through JAX
Expected: three seeds; opinions, 64 labels a class: 0.605 ± 0.021 against 0.554 ± 0.032 from scratch; surnames, 16
          labels a class (18 classes): 0.248 ± 0.008 against 0.154 ± 0.025

All texts but the test's, without their labels, are the text to pre-train on; `--per-class` of them keep their labels.
Both models see the same labels for the same number of steps, with the same rates to choose from: the best of each on
some of the labels is taken.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np

import kerastf
from kerastf import data, text
from kerastf.data.files import read_file


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="labelled texts: .jsonl, .csv or .tsv")
    parser.add_argument("--folder", type=Path, help="a folder with a text file per class")
    parser.add_argument("--unlabelled", type=Path, help="more text to pre-train on, a line each")
    parser.add_argument("--tokenizer", help="character, word, wordpiece, ... (by what is read)")
    parser.add_argument("--length", type=int, help="the most tokens of a text (by what is read)")
    parser.add_argument("--per-class", type=int, default=64, help="labelled texts of each class (64)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of pre-training (1500)")
    parser.add_argument("--tune-steps", type=int, default=300, help="steps of fine-tuning (300)")
    parser.add_argument("--seeds", type=int, default=5, help="how many draws of labels (5)")
    parser.add_argument("--dim", type=int, default=128, help="width of the model (128)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model (4)")
    return parser.parse_args()


def read(options):
    """Labelled texts, the name of a tokenizer and a length."""
    if options.file:
        rows = [(r["text"], str(r["label"])) for r in read_file(options.file, "classification")]
        return rows, "wordpiece", 64
    if options.folder:
        rows = [
            (line.strip(), path.stem)
            for path in sorted(options.folder.glob("*.txt"))
            for line in path.read_text("utf-8").splitlines() if line.strip()
        ]  # fmt: skip
        return rows, "character", 24
    return data.sentiment(20_000, seed=0), "word", 32


def rows_of(texts, tokenizer, length):
    """Packed rows `(N, length)`, as the classifier and the language model read them."""
    packed = [data.pack(t, tokenizer, max_length=length)[0] for t in texts]
    return text.pad(packed, tokenizer.pad_id, length)


def pretrain(model, rows, steps, batch_size=64):
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=2e-3, warmup_steps=max(1, steps // 20))
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0))
    epochs = max(1, round(steps * batch_size / len(rows)))
    held = rows[: max(1, len(rows) // 20)]
    rest = rows[len(held) :]
    history = model.fit(
        rest[:, :-1], rest[:, 1:], batch_size=batch_size, epochs=epochs, verbose=0,
        validation_data=(held[:, :-1], held[:, 1:]), validation_freq=epochs,
    )  # fmt: skip
    return history.history["val_loss"][-1]


def tune(start, rows, labels, classes, options, seed):
    """Fine-tunes with two rates and gives the model that is better on a fifth of the labels; then on all of them."""
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = max(len(rows) // 5, 1)
    held, rest = order[:cut], order[cut:]
    scores = {}
    for rate in (3e-4, 1e-3):
        model = fitted(start, rows[rest], labels[rest], classes, rate, options, seed)
        scores[rate] = model.evaluate(rows[held], labels[held], verbose=0, return_dict=True)["accuracy"]
    return fitted(start, rows, labels, classes, max(scores, key=scores.get), options, seed)


def fitted(start, rows, labels, classes, rate, options, seed):
    keras.utils.set_random_seed(seed)
    model = start().with_head("classifier", num_classes=len(classes), pooling="mean")
    per_epoch = -(-len(rows) // 16)
    epochs = -(-options.tune_steps // per_epoch)
    steps = epochs * per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=rate, warmup_steps=max(1, steps // 10))
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0))
    model.fit(rows, labels, batch_size=16, epochs=epochs, verbose=0)
    return model


def main():
    options, began = arguments(), time.monotonic()
    found, tokenizer_name, length = read(options)
    length = options.length or length
    random.Random(0).shuffle(found)
    classes = sorted({label for _, label in found})
    test, rest = found[: len(found) // 5], found[len(found) // 5 :]
    texts = [t for t, _ in rest]
    if options.unlabelled:
        texts += [line for line in options.unlabelled.read_text("utf-8").splitlines() if line.strip()]
    tokenizer = text.train(options.tokenizer or tokenizer_name, texts, special_tokens=text.BERT, vocab_size=8000)
    keras.utils.set_random_seed(0)
    size = {"dim": options.dim, "num_layers": options.layers, "num_heads": 4, "max_length": length, "dropout": 0.1}
    body = kerastf.create_model("gpt", tokenizer=tokenizer, **size)
    print(f"{len(texts)} texts, {len(classes)} classes, {body.count_params():,} parameters", flush=True)
    loss = pretrain(body, rows_of(texts, tokenizer, length), options.steps)
    print(f"pre-trained: validation loss {loss:.3f}, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    test_rows = rows_of([t for t, _ in test], tokenizer, length)
    test_labels = np.array([classes.index(label) for _, label in test])
    starts = {
        "fine-tuned": lambda: body,
        "from scratch": lambda: kerastf.create_model("gpt", tokenizer=tokenizer, **size),
    }
    scores = defaultdict(list)
    for seed in range(options.seeds):
        chosen = few(rest, options.per_class, seed)
        rows = rows_of([t for t, _ in chosen], tokenizer, length)
        labels = np.array([classes.index(label) for _, label in chosen])
        for name, start in starts.items():
            model = tune(start, rows, labels, classes, options, seed)
            scores[name].append(model.evaluate(test_rows, test_labels, verbose=0, return_dict=True)["accuracy"])
            print(f"seed {seed} {name:<14}{scores[name][-1]:.3f}", flush=True)
    for name, found in scores.items():
        print(f"{name:<14}{statistics.mean(found):.3f} ± {statistics.pstdev(found):.3f}")
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


def few(rows, per_class, seed):
    """As many rows of each class, drawn by the seed."""
    shuffled, taken, counts = list(rows), [], defaultdict(int)
    random.Random(seed).shuffle(shuffled)
    for row in shuffled:
        if counts[row[1]] < per_class:
            counts[row[1]] += 1
            taken.append(row)
    return taken


if __name__ == "__main__":
    main()
