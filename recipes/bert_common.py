"""What the BERT recipes share: documents of sentences, the schedule, the same model without what it has learnt."""

import re

import keras
import numpy as np

from kerastf import text

HEADING = re.compile(r"(= )+(.*?)( =)+")
SENTENCE = re.compile(r"(?<= [.!?]) (?=[A-Z\"])")


def clean(line):
    """WikiText's own marks, as they were written."""
    for mark, sign in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "")):
        line = line.replace(mark, sign)
    return line.strip()


def wikitext(path):
    """Sections of a WikiText file: `(article, heading, paragraphs)`."""
    article, heading, found = 0, "", []
    for line in text.read_lines(path):
        line = line.strip()
        match = HEADING.fullmatch(line)
        if match:
            article += line.count("=") == 2
            heading = match[2]
            found.append((article, heading, []))
        elif clean(line) and found:
            found[-1][2].append(clean(line))
    return [section for section in found if section[2]]


def documents(path):
    """The articles of a WikiText file, as lists of sentences."""
    articles: dict[int, list[str]] = {}
    for article, _, paragraphs in wikitext(path):
        articles.setdefault(article, []).extend(s for p in paragraphs for s in SENTENCE.split(p))
    return list(articles.values())


def schedule(rate, steps, warmup=0.1):
    """A rate that rises for a tenth of the steps, and falls to zero."""
    first = max(1, int(warmup * steps))
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - first), warmup_target=rate, warmup_steps=first, alpha=0.0
    )


class Fixed(keras.utils.PyDataset):
    """The batches of one pass over a data set, the same in each epoch: masks to validate on."""

    def __init__(self, batches):
        super().__init__()
        self.batches = [keras.tree.map_structure(np.asarray, b) for b in batches]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def from_scratch(model, head, **options):
    """The same family, sizes and tokenizer with new weights."""
    given = {k: v for k, v in model.get_config().items() if k not in ("provenance", "name")}
    return type(model)(**{**given, "head": {"name": head, **options}})
