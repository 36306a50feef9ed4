"""Fine-tunes a pre-trained BERT beside the same model from scratch, on the same few labels, with several seeds.

Command:  python recipes/bert_finetune.py --model bert.keras                       (topics of generated stories)
          python recipes/bert_finetune.py --model wiki.keras --text train.txt.gz   (sections of WikiText articles)
          python recipes/bert_finetune.py --model wiki.keras --squad xquad.en.json (spans that answer questions)
Minutes:  1 to 4 for five seeds on a GPU through JAX
Expected: mean and deviation over seeds, fine-tuned against from scratch, after bert_pretrain.py as its header says:
          topics, 4 labels a class: 1.000 ± 0.000 against 0.288 ± 0.054; sections, `--per-class 8`: 0.654 ± 0.022
          against 0.361 ± 0.027; F1 of answers, `--seeds 3 --epochs 10`: 0.077 ± 0.012 against 0.056 ± 0.003

Topics: which of eight topics a sentence is about. Sections: under which heading a paragraph stands. The pre-trained
model comes from bert_pretrain.py, which never sees a label.
"""

import argparse
import random
import statistics
import time

import keras
from bert_common import from_scratch, schedule, wikitext
from common import report

import kerastf
from kerastf import data, metrics, training

SECTIONS = (
    "History",
    "Reception",
    "Plot",
    "Taxonomy",
    "Production",
    "Early life",
    "Gameplay",
    "Meteorological history",
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model that bert_pretrain.py saved")
    parser.add_argument("--text", help="articles in WikiText's form; by default generated stories")
    parser.add_argument("--squad", help="questions in SQuAD's form")
    parser.add_argument("--per-class", type=int, default=4, help="labelled texts of each class (4)")
    parser.add_argument("--seeds", type=int, default=5, help="how many trainings of each kind (5)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs (30)")
    parser.add_argument("--batch", type=int, default=16, help="rows in a batch (16)")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate (0.001)")
    parser.add_argument("--decay", type=float, default=1.0, help="rate of a layer divided by the next one's (1)")
    parser.add_argument("--out", help="file to append the figures to")
    return parser.parse_args()


def examples(options):
    """Labelled texts: `(class, text)`."""
    if options.text:
        return [
            (heading, p) for _, heading, paragraphs in wikitext(options.text) for p in paragraphs if heading in SECTIONS
        ]
    return [(topic, sentence) for topic, sentences in data.stories(400, seed=2) for sentence in sentences]


def draw(items, count, seed):
    """Some items of each class to learn from, and at most 100 others of each to test on."""
    rng = random.Random(seed)
    train, test = [], []
    for label in sorted({label for label, _ in items}):
        own = sorted({item for item in items if item[0] == label})  # a text on one side only
        rng.shuffle(own)
        train, test = train + own[:count], test + own[count : count + 100]
    return train, test


def fit(model, batches, options):
    steps = options.epochs * len(batches)
    optimizer = keras.optimizers.AdamW(schedule(options.rate, steps), weight_decay=0.01)
    if options.decay < 1:
        optimizer = training.layer_rates(model, optimizer, decay=options.decay)
    model.compile(optimizer)
    model.fit(batches, epochs=options.epochs, verbose=0, shuffle=False)


def classify(pretrained, make, items, options, seed):
    """Accuracy on what was not learnt from."""
    train, test = draw(items, options.per_class, seed)
    classes = sorted({label for label, _ in items})
    sizes = {"classes": classes, "batch_size": options.batch, "max_length": pretrained.options["max_length"]}
    # The mean of all features: after so little pre-training those of the class token alone say less.
    model = make("classifier", num_classes=len(classes), pooling="mean")
    known, unknown = (
        data.labelled([t for _, t in part], [c for c, _ in part], pretrained.tokenizer, seed=seed, **sizes)
        for part in (train, test)
    )
    fit(model, known, options)
    return model.evaluate(unknown, verbose=0, return_dict=True)["accuracy"]


def answer(pretrained, make, records, options, seed):
    """F1 of answers to questions about contexts that were not learnt from."""
    train, test = data.split(records, 0.2, seed=seed, key=lambda r: r["context"])
    sizes = {"max_length": pretrained.options["max_length"], "stride": pretrained.options["max_length"] // 3}
    longest = sizes["max_length"] - 3 - sizes["stride"]
    train, test = ([r for r in p if len(pretrained.tokenizer.encode(r["question"])) <= longest] for p in (train, test))
    model = make("span")
    fit(model, data.questions(train, pretrained.tokenizer, batch_size=options.batch, seed=seed, **sizes), options)
    batches = data.questions(test, pretrained.tokenizer, batch_size=options.batch, answers=False, **sizes)
    found = data.answers(model.predict(batches, verbose=0), test, pretrained.tokenizer, **sizes)
    wanted = [[a["text"] for a in r["answers"]] for r in test]
    return metrics.answer_scores([f["text"] for f in found], wanted)["f1"]


def main():
    options = arguments()
    pretrained = kerastf.load_model(options.model)
    items = data.read_squad(options.squad) if options.squad else examples(options)
    score = answer if options.squad else classify
    start = time.monotonic()
    found = {"fine_tuned": [], "from_scratch": []}
    for seed in range(options.seeds):
        for kind, make in (
            ("fine_tuned", pretrained.with_head), ("from_scratch", lambda *a, **k: from_scratch(pretrained, *a, **k)),
        ):  # fmt: skip
            keras.utils.set_random_seed(seed)
            found[kind].append(score(pretrained, make, items, options, seed))
        print(f"seed {seed}: " + ", ".join(f"{k} {v[-1]:.3f}" for k, v in found.items()), flush=True)
    figures = {}
    for kind, values in found.items():
        figures[kind] = statistics.mean(values)
        figures[f"{kind}_spread"] = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{kind}: {figures[kind]:.3f} ± {figures[f'{kind}_spread']:.3f} over {len(values)} seeds")
    report(
        options.out, task="questions" if options.squad else "sections" if options.text else "topics", **figures,
        minutes=(time.monotonic() - start) / 60,
    )  # fmt: skip


if __name__ == "__main__":
    main()
