"""Skip-gram beside gensim on one corpus: words per second, processor time, peak memory, analogies.

    python benchmarks/word2vec.py CORPUS.txt [--questions questions-words.txt] [--epochs 1] [--rounds 3]

Both see the same words (cut, lower case, `<unk>` left out), with dim 100, window 5, 5 draws, subsampling 1e-3, words
that occur 5 times or more, and two threads. Rounds alternate, each in a process of its own; training alone is timed,
the building of the vocabulary is not. gensim reads its own fastest form, a file. Prints medians and ratios.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIM, WINDOW, DRAWS, SUBSAMPLE, MIN_COUNT = 100, 5, 5, 1e-3, 5


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB on Linux


def ours(path, questions, epochs, seed, rows):
    import keras
    import tensorflow as tf

    import kerastf
    from kerastf import data, text

    tf.config.threading.set_intra_op_parallelism_threads(2)
    keras.utils.set_random_seed(seed)
    tokenizer = text.train("word", path, vocab_size=10**7, min_count=MIN_COUNT, special_tokens=())
    model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=DIM)
    dataset = data.windows(path, tokenizer, window=WINDOW, subsample=SUBSAMPLE, batch_size=rows, seed=seed)
    model.compile()
    start, used = time.monotonic(), time.process_time()
    model.fit(dataset, epochs=epochs, verbose=0)
    times = time.monotonic() - start, time.process_time() - used, peak()
    return times, model.evaluate_analogies(questions)["accuracy"] if questions else None


def gensim(path, questions, epochs, seed, rows):
    import numpy as np
    from gensim.models import Word2Vec

    from kerastf import vectors

    model = Word2Vec(
        vector_size=DIM,
        window=WINDOW,
        negative=DRAWS,
        sample=SUBSAMPLE,
        min_count=MIN_COUNT,
        sg=1,
        workers=2,
        seed=seed,
    )
    model.build_vocab(corpus_file=path)
    start, used = time.monotonic(), time.process_time()
    model.train(corpus_file=path, total_words=model.corpus_total_words, epochs=epochs)
    times = time.monotonic() - start, time.process_time() - used, peak()
    if not questions:
        return times, None
    numbers = model.wv.key_to_index
    asked = [[w.lower() for w in q] for s in vectors.read_questions(questions).values() for q in s]
    asked = np.array([[numbers[w] for w in q] for q in asked if all(w in numbers for w in q)])
    answers = vectors.answer(vectors.normalised(model.wv.vectors), asked[:, :3])
    return times, float((answers == asked[:, 3]).mean())


def worker(options):
    (seconds, used, memory), accuracy = {"ours": ours, "gensim": gensim}[options.worker](
        options.corpus, options.questions, options.epochs, options.seed, options.rows
    )
    print(json.dumps({"seconds": seconds, "cpu": used, "accuracy": accuracy, "peak_mb": memory}))


def prepare(source, target):
    """Writes the corpus as both will see it, and counts its words."""
    from kerastf.text import read_lines
    from kerastf.text.words import PATTERN

    count = 0
    with open(target, "w", encoding="utf-8") as file:
        for line in read_lines(source):
            words = PATTERN.findall(line.replace("<unk>", " ").lower())
            count += len(words)
            if words:
                file.write(" ".join(words) + "\n")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="text file, plain or .gz, one sentence or paragraph per line")
    parser.add_argument("--questions", help="analogy file")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="each with a seed of its own")
    parser.add_argument("--rows", type=int, default=256, help="rows of 32 words in one of our batches (256)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", choices=("ours", "gensim"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    found = {"ours": [], "gensim": []}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "corpus.txt")
        words = options.epochs * prepare(options.corpus, path)
        for number in range(options.rounds):
            for side, rounds in found.items():
                command = [sys.executable, __file__, path, "--worker", side, "--epochs", str(options.epochs),
                           "--rows", str(options.rows), "--seed", str(options.seed + number)]  # fmt: skip
                command += ["--questions", options.questions] if options.questions else []
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rounds.append(json.loads(done.stdout.splitlines()[-1]))
                print(
                    f"  round {number}, {side}: {words / rounds[-1]['seconds']:,.0f} words/s, {rounds[-1]}", flush=True
                )
    for side, rounds in found.items():
        speed = statistics.median(words / r["seconds"] for r in rounds)
        effort = statistics.median(1e6 * r["cpu"] / words for r in rounds)
        memory = max(r["peak_mb"] for r in rounds)
        right = [f"{r['accuracy']:.4f}" for r in rounds if r["accuracy"] is not None]
        print(f"{side}: {speed:,.0f} words/s, {effort:.2f} processor seconds per million words, peak {memory:.0f} MB, "
              f"analogies {right or 'not asked'}")  # fmt: skip
    for key, what in (("seconds", "time"), ("cpu", "processor time")):
        ratios = [a[key] / b[key] for a, b in zip(found["ours"], found["gensim"], strict=True)]
        print(f"{what}, ours / gensim: {statistics.median(ratios):.2f} (rounds {[round(r, 2) for r in ratios]})")


if __name__ == "__main__":
    main()
