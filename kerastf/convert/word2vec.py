"""Vectors of words in the formats of the original word2vec, text and binary, as `word2vec`."""

from kerastf import config, text
from kerastf.errors import ConfigError
from kerastf.vectors import read_word2vec


def load(path, **options):
    """A `word2vec` with the vectors of a file.

    The file has no vectors of neighbours: those begin at zero, as in a new model. It has no counts either, but its
    words stand in the order of their counts, so they are set by Zipf's law. A word that the tokenizer would cut in two,
    such as one with a full stop in it, is left out.

    Args:
        path: The file.
        **options: Further options of the model.
    """
    words, matrix = read_word2vec(path)
    kept = [i for i, word in enumerate(words) if word and _is_one(word)]
    if len(kept) < 2:
        raise ConfigError(f"Fewer than two words of the file can be read as words. Received: {str(path)!r}")
    counts = [max(1, round(len(words) / (i + 1))) for i in kept]
    tokenizer = text.WordTokenizer([words[i] for i in kept], counts=counts)
    model = config.build_model("word2vec", tokenizer=tokenizer, dim=matrix.shape[1], **options)
    model.embedding.matrix.assign(matrix[kept])
    return model


def _is_one(word):
    try:
        text.WordTokenizer([word])
    except ConfigError:
        return False
    return True
