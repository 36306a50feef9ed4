"""Pre-trains a small BERT on masked tokens and next sentences.

Command:  python recipes/bert_pretrain.py                                     (generated stories)
          python recipes/bert_pretrain.py --text train.txt.gz --vocab 4000    (an article collection such as WikiText-2)
Minutes:  stories: 2 for 60 epochs on a GPU through JAX; a core or two need about half an hour
Expected: stories: masked tokens 0.624 (by frequency 4.061, at random 6.306), next sentence 0.228 (at random 0.693).
          WikiText-2 with `--model bert.mini --dim 256 --heads 4 --norm-order pre --rate 0.001 --max-length 64
          --batch 256 --vocab 8000 --epochs 25`: masked tokens 3.973 (6.944, 8.987), next sentence 0.508 (0.693).
"""

import argparse
import math
import time

import keras
import numpy as np
from bert_common import Fixed, documents, schedule
from common import Clock, report

import kerastf
from kerastf import data, text


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="articles in WikiText's form; by default generated stories")
    parser.add_argument("--model", default="bert.tiny", help="which model (bert.tiny)")
    parser.add_argument("--dim", type=int, default=64, help="width (64)")
    parser.add_argument("--heads", type=int, default=2, help="attention heads (2)")
    parser.add_argument("--norm-order", default="post", choices=("pre", "post"), help="where norms stand (post)")
    parser.add_argument("--vocab", type=int, default=4000, help="most tokens (4000)")
    parser.add_argument("--max-length", type=int, default=32, help="tokens in a row (32)")
    parser.add_argument("--batch", type=int, default=64, help="rows in a batch (64)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs (60)")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many, at the end of an epoch (60)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate (0.002)")
    parser.add_argument("--next-weight", type=float, default=1.0, help="weight of the next sentence's loss (1)")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout (0: masks and pairs are new in each epoch)")
    parser.add_argument("--save", default="bert.keras", help="where to save the model (bert.keras)")
    parser.add_argument("--out", help="file to append the figures to")
    return parser.parse_args()


def chances(train, held, size):
    """What is lost by knowing nothing but how frequent tokens are, and by knowing nothing at all."""
    counts = np.ones(size)  # one more each, or a token that is new in the held-out text would cost infinity
    for _, y in train:
        labels = np.asarray(y["masked_tokens"])
        counts += np.bincount(labels[labels >= 0], minlength=size)
    rates = -np.log(counts / counts.sum())
    found = np.concatenate([np.asarray(y["masked_tokens"]).ravel() for _, y in held])
    return float(rates[found[found >= 0]].mean()), math.log(size)


def main():
    options = arguments()
    keras.utils.set_random_seed(1)
    known = documents(options.text) if options.text else [sentences for _, sentences in data.stories(2000, seed=1)]
    known, held = data.split(known, 0.05)
    tokenizer = text.train(
        "wordpiece", [" ".join(d) for d in known], vocab_size=options.vocab, special_tokens=text.BERT, lowercase=True,
        learner="tokenizers",
    )  # fmt: skip
    sizes = {"batch_size": options.batch, "max_length": options.max_length}
    train = data.sentence_pairs(known, tokenizer, seed=1, **sizes)
    valid = Fixed(data.sentence_pairs(held, tokenizer, shuffle=False, seed=2, **sizes))
    model = kerastf.create_model(
        options.model, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, max_length=options.max_length,
        dim=options.dim, num_heads=options.heads, norm_order=options.norm_order, dropout=options.dropout,
        initializer_std=options.dim**-0.5, head="pretraining",
    )  # fmt: skip
    steps = len(train)
    unigram, uniform = chances(data.sentence_pairs(known, tokenizer, seed=1, **sizes), valid, tokenizer.vocab_size)
    print(
        f"{options.model}: {model.count_params():,} parameters, {tokenizer.vocab_size} tokens, {len(known)} documents, "
        f"{steps} batches an epoch",
        flush=True,
    )
    model.compile(
        keras.optimizers.AdamW(schedule(options.rate, options.epochs * steps), weight_decay=0.01),
        loss_weights={"masked_tokens": 1.0, "next_sentence": options.next_weight},
    )
    start = time.monotonic()
    model.fit(
        train, validation_data=valid, epochs=options.epochs, verbose=2, shuffle=False,
        callbacks=[Clock(options.minutes)],
    )  # fmt: skip
    minutes = (time.monotonic() - start) / 60
    found = model.evaluate(valid, verbose=0, return_dict=True)
    print(f"masked tokens: loss {found['masked_tokens_loss']:.3f}; by frequency {unigram:.3f}, at random {uniform:.3f}")
    print(f"next sentence: loss {found['next_sentence_loss']:.3f}; at random {math.log(2):.3f}")
    model.save(options.save)
    report(
        options.out, model=options.model, parameters=model.count_params(), minutes=minutes, unigram=unigram,
        uniform=uniform, **found,
    )  # fmt: skip


if __name__ == "__main__":
    main()
