"""Word vectors: nearest words, analogies, words per second.

Command:  python recipes/word2vec.py                                        (an embedded corpus, a minute)
          python recipes/word2vec.py --text wiki.txt.gz --questions questions-words.txt --lowercase --words king paris
Expected: on the embedded corpus at least 95 % of the planted analogies
"""

import argparse
import time

import keras
import numpy as np

import kerastf
from kerastf import data, text, vectors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="text file, plain or .gz, one sentence or paragraph per line")
    parser.add_argument("--mode", default="skip_gram", help="skip_gram or cbow (skip_gram)")
    parser.add_argument("--dim", type=int, help="width of a vector (100; 32 for the embedded corpus)")
    parser.add_argument("--epochs", type=int, help="epochs (5; 20 for the embedded corpus)")
    parser.add_argument("--min-count", type=int, default=5, help="how often a word must occur (5)")
    parser.add_argument("--lowercase", action="store_true", help="make capitals small")
    parser.add_argument("--questions", help="analogy file")
    parser.add_argument("--words", nargs="*", default=["paris"], help="whose neighbours to print")
    parser.add_argument("--export", help="write the vectors in word2vec's text format")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    planted = options.text is None
    corpus, questions = data.analogies(seed=1) if planted else (options.text, [])
    tokenizer = text.train(
        "word", corpus, vocab_size=10**7, special_tokens=(), min_count=options.min_count, lowercase=options.lowercase
    )
    model = kerastf.create_model(
        "word2vec", tokenizer=tokenizer, mode=options.mode, dim=options.dim or (32 if planted else 100)
    )
    sizes = {"subsample": 0, "batch_size": 16} if planted else {"batch_size": 256}
    model.compile()
    epochs = options.epochs or (20 if planted else 5)
    start = time.monotonic()
    model.fit(data.windows(corpus, tokenizer, **sizes), epochs=epochs, verbose=2)
    seconds = time.monotonic() - start
    print(f"{epochs * sum(tokenizer.counts) / seconds:,.0f} words per second, a vocabulary of {tokenizer.ordinary:,}")
    for word in options.words:
        print(f"{word}: " + ", ".join(f"{w} {cosine:.2f}" for w, cosine in model.nearest(word, k=6)))
    if planted:
        numbers = np.array([[tokenizer.numbers[w] for w in q] for q in questions])
        right = vectors.answer(vectors.normalised(model.vectors), numbers[:, :3]) == numbers[:, 3]
        print(f"planted analogies found: {right.mean():.1%} of {len(questions)}")
    if options.questions:
        found = model.evaluate_analogies(options.questions)
        for name, section in {**found["sections"], "in all": found}.items():
            print(f"{name}: {section['right']} of {section['asked']} right, {section['skipped']} skipped")
    if options.export:
        model.save_word2vec(options.export)


if __name__ == "__main__":
    main()
