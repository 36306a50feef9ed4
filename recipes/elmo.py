"""ELMo's features for a tagger: pre-trained on plain sentences, against the same model from scratch.

Command:  python recipes/elmo.py
Minutes:  30 on two cores with some fifteen other jobs on them; not measured on quiet ones yet
Expected: accuracy on new sentences, mean and deviation of three seeds: pre-trained 100.0 ± 0.0 %, scratch 92.0 ± 2.2 %;
          of the words that may be noun or verb: 100.0 ± 0.0 % against 90.1 ± 6.6 %

The task is the part of speech of each word in generated sentences (`kerastf.data.tagged_sentences`), ten labelled
sentences only; ten of the words are nouns or verbs by context. Pre-training sees other sentences, without their tags.
Both models read characters, have the same size and see the same labels: one keeps the language model's weights and
learns its mix and its head, the other learns everything from the labels.
"""

import argparse
import statistics
import time

import keras
import numpy as np
from common import report

import kerastf
from kerastf import data, text

LENGTH = 20  # words of the longest sentence, begin and end included
EMBEDDING = {
    "name": "character_cnn", "filters": [[1, 8], [2, 16], [3, 24]], "character_dim": 8, "num_highway": 1,
    "max_characters": 14,
}  # fmt: skip


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", type=int, default=10, help="labelled sentences (10)")
    parser.add_argument("--unlabelled", type=int, default=2000, help="sentences to pre-train on (2000)")
    parser.add_argument("--test", type=int, default=300, help="sentences to score (300)")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of pre-training (6)")
    parser.add_argument("--tagger-epochs", type=int, default=60, help="epochs over the labelled sentences (60)")
    parser.add_argument("--seeds", type=int, default=3, help="how many times, with other weights and sentences (3)")
    parser.add_argument("--out", help="file to append the figures to")
    return parser.parse_args()


def fixed(rows, fill):
    """Rows of one length for all batches, so that nothing is compiled twice."""
    return np.pad(rows, [(0, 0), (0, LENGTH - rows.shape[1])] + [(0, 0)] * (rows.ndim - 2), constant_values=fill)


def encode(tokenizer, sentences):
    """Characters, and tags with -1 for the begin, the end and the padding, which do not count."""
    words, tags = zip(*sentences, strict=True)
    labels = np.full((len(words), LENGTH), -1)
    for i, row in enumerate(tags):
        labels[i, 1 : 1 + len(row)] = row
    return fixed(tokenizer.encode_characters(words), 0), labels


def train_tagger(model, rate, labelled, test, epochs):
    """Accuracy on new sentences, in percent: of all words, and of those that may be noun or verb."""
    model.compile(keras.optimizers.Adam(rate))
    model.fit(*labelled, batch_size=len(labelled[0]), epochs=epochs, verbose=0)
    seen = model.evaluate(*labelled, verbose=0, return_dict=True)["accuracy"]
    guesses = model.predict(test[0], batch_size=100, verbose=0).argmax(-1)
    right, counts = guesses == test[1], test[1] >= 0
    return 100 * right[counts].mean(), 100 * right[counts & test[2]].mean(), 100 * seen


def main():
    options = arguments()
    start = time.monotonic()
    scores = {"pretrained": [], "scratch": []}
    for seed in range(options.seeds):
        keras.utils.set_random_seed(seed)
        plain = [words for words, _ in data.tagged_sentences(options.unlabelled, seed=100 + seed)]
        tokenizer = text.train("word_characters", [" ".join(w) for w in plain], max_characters=14)
        sizes = {"dim": 32, "units": 64, "dropout": 0.1, "embedding": EMBEDDING, "tokenizer": tokenizer}
        labelled = encode(tokenizer, data.tagged_sentences(options.labelled, seed=200 + seed))
        sentences = data.tagged_sentences(options.test, seed=300 + seed)
        both = {w for words, tags in sentences for w, t in zip(words, tags, strict=True) if t == 3} & {
            w for words, tags in sentences for w, t in zip(words, tags, strict=True) if t == 2
        }
        unsure = np.zeros((len(sentences), LENGTH), dtype="bool")
        for i, (words, _) in enumerate(sentences):
            unsure[i, 1 : 1 + len(words)] = [w in both for w in words]
        test = (*encode(tokenizer, sentences), unsure)

        model = kerastf.create_model("elmo", **sizes)
        model.compile(keras.optimizers.Adam(5e-3))
        x, y = (
            fixed(tokenizer.encode_characters(plain), 0),
            fixed(tokenizer.encode_words(plain), tokenizer.pad_id),
        )
        history = model.fit(x, y, batch_size=64, epochs=options.epochs, verbose=0).history
        print(
            f"seed {seed}: perplexity forward {history['forward_perplexity'][-1]:.1f}, backward "
            f"{history['backward_perplexity'][-1]:.1f}, of {tokenizer.vocab_size} words; "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )
        head = {"name": "tagger", "num_classes": len(data.TAGS)}
        tagger = model.with_head("tagger", num_classes=len(data.TAGS)).freeze()
        fresh = kerastf.create_model("elmo", **sizes, head=head)
        for name, one, rate in (("pretrained", tagger, 2e-2), ("scratch", fresh, 5e-3)):
            found = train_tagger(one, rate, labelled, test, options.tagger_epochs)
            scores[name].append(found)
            print(f"  {name}: all words {found[0]:.1f} %, noun or verb {found[1]:.1f} %, labelled {found[2]:.1f} %")
        print(f"  weights of the layers: {np.round(keras.ops.convert_to_numpy(tagger.mix.weights_of_layers()), 2)}")
    figures = {}
    for name, rows in scores.items():
        for what, column in zip(("accuracy", "ambiguous"), list(zip(*rows, strict=True))[:2], strict=True):
            figures[f"{name}_{what}"] = statistics.mean(column)
            figures[f"{name}_{what}_spread"] = statistics.stdev(column) if len(column) > 1 else 0.0
    report(options.out, labelled=options.labelled, seeds=options.seeds, **figures)
    print(f"{(time.monotonic() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
